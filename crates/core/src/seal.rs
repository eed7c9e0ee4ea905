//! The secret of a run, the cipher that seals what only its owners may read, and the codes that
//! authenticate datagrams. Every protocol derives its own keys from the secret.

use core::fmt;
use core::hash::Hasher;

use bytes::{Bytes, BytesMut};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use siphasher::sip::SipHasher24;

/// Bytes that sealing adds.
pub const TAG_BYTES: usize = 16;

/// The secret that all nodes of a run share.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedKey {
    id: u8,
    bytes: [u8; 32],
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedKey(id {})", self.id)
    }
}

/// Why a text is no key. The error never shows the text itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The text has this many characters instead of 64.
    Length(usize),
    /// The character at this place is no hexadecimal digit. Places count from 1.
    Digit(usize),
}

impl core::fmt::Display for KeyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Length(length) => {
                write!(f, "a key has 64 hexadecimal digits, and this key has {length}")
            }
            Self::Digit(place) => write!(f, "digit {place} of the key is not hexadecimal"),
        }
    }
}

impl core::error::Error for KeyError {}

impl SharedKey {
    /// A key from 32 secret bytes. Datagrams carry `id`; the id 0 means "no key".
    ///
    /// # Panics
    /// When `id` is zero.
    pub fn new(id: u8, bytes: [u8; 32]) -> Self {
        assert!(id != 0, "key id 0 means that there is no key");
        Self { id, bytes }
    }

    /// A key from 64 hexadecimal digits.
    ///
    /// # Errors
    /// What is wrong with the text, without the text itself.
    pub fn from_hex(id: u8, text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        let digits: Vec<Option<u32>> = text.chars().map(|letter| letter.to_digit(16)).collect();
        if digits.len() != 64 {
            return Err(KeyError::Length(digits.len()));
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            let digit = |at: usize| digits[at].ok_or(KeyError::Digit(at + 1));
            *byte = (digit(2 * i)? << 4 | digit(2 * i + 1)?) as u8;
        }
        Ok(Self::new(id, bytes))
    }

    /// The id that datagrams carry.
    pub fn id(&self) -> u8 {
        self.id
    }

    /// The secret bytes, out of which a protocol derives keys of its own.
    pub fn secret(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// The id of this key and 16 secret bytes for the protocol that `context` names. The bytes of
    /// one protocol tell nothing about the bytes of another.
    pub fn derive(&self, context: &str) -> (u8, [u8; 16]) {
        let derived = blake3::derive_key(context, &self.bytes);
        (self.id, derived[..16].try_into().expect("16 bytes"))
    }
}

/// Seals bytes by ChaCha20-Poly1305. The nonce is a number that the owner counts: the owner must not
/// seal twice under one number.
#[derive(Clone)]
pub struct Cipher(LessSafeKey);

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher")
    }
}

impl Cipher {
    /// A cipher under a secret key that nothing else uses.
    pub fn new(key: &[u8; 32]) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key);
        Self(LessSafeKey::new(key.expect("a key of this cipher has 32 bytes")))
    }

    fn nonce(number: u64) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// Seals bytes in place. Returns the tag that must follow them. `beside` is not sealed, and the
    /// bytes open only beside the same.
    ///
    /// # Panics
    /// Never for bytes that fit a datagram or a record: the limit is 256 GiB.
    pub fn seal(&self, number: u64, beside: &[u8], bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        let tag = self.0.seal_in_place_separate_tag(Self::nonce(number), Aad::from(beside), bytes);
        let tag = tag.expect("bytes below the limit of the cipher");
        tag.as_ref().try_into().expect("16 bytes")
    }

    /// Opens sealed bytes that end with their tag. `None` when they were changed, or sealed under
    /// another key, under another number or beside other bytes.
    pub fn open(&self, number: u64, beside: &[u8], sealed: &[u8]) -> Option<Bytes> {
        let mut bytes = BytesMut::from(sealed);
        self.open_in_place(number, beside, &mut bytes).then(|| bytes.freeze())
    }

    /// As [`open`](Self::open), in place. Returns whether the bytes opened. Bytes that did not open
    /// are worth nothing.
    pub fn open_in_place(&self, number: u64, beside: &[u8], sealed: &mut BytesMut) -> bool {
        let opened = self.0.open_in_place(Self::nonce(number), Aad::from(beside), sealed);
        let Ok(length) = opened.map(|bytes| bytes.len()) else { return false };
        sealed.truncate(length);
        true
    }
}

/// Authenticates what one protocol sends, by SipHash-2-4, a keyed function of 64 bits. The key is
/// [derived](SharedKey::derive) from the shared key of the run, so the key of one protocol says
/// nothing about the key of another.
#[derive(Clone)]
pub struct MacKey {
    id: u8,
    sip: SipHasher24,
}

impl fmt::Debug for MacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MacKey(id {})", self.id)
    }
}

impl MacKey {
    /// A key from 16 secret bytes. Datagrams carry `id`; the id 0 means "no key".
    #[inline]
    pub fn new(id: u8, bytes: &[u8; 16]) -> Self {
        Self { id, sip: SipHasher24::new_with_key(bytes) }
    }

    /// The id that datagrams carry; zero without a key.
    pub fn id_of(key: Option<&Self>) -> u8 {
        key.map_or(0, |key| key.id)
    }

    /// The code of these bytes. Only the sequence of the bytes counts, not where one part ends and
    /// the next begins.
    #[inline]
    pub fn mac(&self, parts: &[&[u8]]) -> u64 {
        let mut sip = self.sip;
        parts.iter().for_each(|part| sip.write(part));
        sip.finish()
    }

    /// The code of these bytes; zero without a key.
    #[inline]
    pub fn mac_of(key: Option<&Self>, parts: &[&[u8]]) -> u64 {
        key.map_or(0, |key| key.mac(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OpenSSL made the wanted bytes, through `cryptography` 48 for Python.
    #[test]
    fn sealed_bytes_are_those_of_another_implementation() {
        let key: [u8; 32] = core::array::from_fn(|n| n as u8);
        let mut bytes = *b"bid 100 at 17.25";
        let tag = Cipher::new(&key).seal(0x0102_0304_0506_0708, b"beside", &mut bytes);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&bytes), "47e65908014714bd6000fa943d9fb327");
        assert_eq!(hex(&tag), "5592490429a70c7657095af9659ea3ae");
    }

    #[test]
    fn bytes_open_only_unchanged_under_their_key_their_number_and_beside_the_same() {
        let cipher = Cipher::new(&[7; 32]);
        let mut bytes = b"ask".to_vec();
        let tag = cipher.seal(5, b"head", &mut bytes);
        bytes.extend(tag);
        assert_eq!(cipher.open(5, b"head", &bytes).as_deref(), Some(&b"ask"[..]));
        assert_eq!(Cipher::new(&[8; 32]).open(5, b"head", &bytes), None);
        assert_eq!(cipher.open(6, b"head", &bytes), None);
        assert_eq!(cipher.open(5, b"heap", &bytes), None);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(cipher.open(5, b"head", &changed), None);
            assert_eq!(cipher.open(5, b"head", &bytes[..at]), None);
        }
    }

    #[test]
    fn a_key_is_64_hexadecimal_digits_and_nothing_else() {
        let good = "0123456789abcdefABCDEF0123456789".repeat(2);
        let key = SharedKey::from_hex(1, &format!(" {good}\n")).unwrap();
        assert_eq!(key.secret()[..3], [0x01, 0x23, 0x45]);
        let refusal = |text: &str| SharedKey::from_hex(1, text).map(|_| ()).unwrap_err();
        assert_eq!(refusal(&good[1..]), KeyError::Length(63));
        assert_eq!(refusal(&good.replacen('3', "+", 1)), KeyError::Digit(4));
        assert_eq!(refusal(&good.replacen('3', "é", 1)), KeyError::Digit(4));
    }

    #[test]
    fn a_code_is_that_of_the_reference_vectors_however_the_bytes_are_parted() {
        // The first vectors of the authors' `vectors_sip64`: key 00..0f, messages 00, 01, 02, ...
        let key = MacKey::new(1, &core::array::from_fn(|i| i as u8));
        assert_eq!(
            key.mac(&[]),
            u64::from_le_bytes([0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72])
        );
        let whole: Vec<u8> = (0..15).collect();
        assert_eq!(key.mac(&[&whole]), 0xa129_ca61_49be_45e5);
        assert_eq!(key.mac(&[&whole[..4], &[], &whole[4..]]), key.mac(&[&whole]));
        assert_eq!((MacKey::mac_of(None, &[&whole]), MacKey::id_of(None)), (0, 0));
        assert_eq!((MacKey::id_of(Some(&key)), format!("{key:?}")), (1, "MacKey(id 1)".to_owned()));
    }
}
