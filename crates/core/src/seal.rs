//! The secret of a run and the codes that authenticate datagrams. Every protocol derives its own
//! keys from the secret.

use core::fmt;
use core::hash::Hasher;

use siphasher::sip::SipHasher24;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text has this many characters instead of 64.
    #[error("a key has 64 hexadecimal digits, and this key has {0}")]
    Length(usize),
    /// The character at this place is no hexadecimal digit. Places count from 1.
    #[error("digit {0} of the key is not hexadecimal")]
    Digit(usize),
    /// The text of a node's key does not begin with the id of its node.
    #[error(
        "the key of a node begins with the id of its node; `evenfall key new --nodes` writes one"
    )]
    NoNode,
}

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
        Ok(Self::new(id, secret_from_hex(text)?))
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

/// The 32 bytes of 64 hexadecimal digits.
pub(crate) fn secret_from_hex(text: &str) -> Result<[u8; 32], KeyError> {
    let digits: Vec<Option<u32>> = text.trim().chars().map(|letter| letter.to_digit(16)).collect();
    if digits.len() != 64 {
        return Err(KeyError::Length(digits.len()));
    }
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        let digit = |at: usize| digits[at].ok_or(KeyError::Digit(at + 1));
        *byte = (digit(2 * i)? << 4 | digit(2 * i + 1)?) as u8;
    }
    Ok(bytes)
}

/// The 64 hexadecimal digits of 32 bytes.
pub(crate) fn secret_to_hex(secret: &[u8; 32]) -> String {
    secret.iter().map(|byte| format!("{byte:02x}")).collect()
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
