//! The cipher that seals bytes which only the owners of a key may read and make.

use core::fmt;

use bytes::{Bytes, BytesMut};
use ring::aead::{AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

/// Length of the tag that sealing adds.
pub const TAG_BYTES: usize = 16;

/// Seals bytes by ChaCha20-Poly1305, or by AES-256-GCM. The nonce is a number that the owner
/// counts. The owner must not seal twice under one number.
#[derive(Clone)]
pub struct Cipher(LessSafeKey);

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher")
    }
}

impl Cipher {
    /// ChaCha20-Poly1305 under a secret key that nothing else uses.
    pub fn new(key: &[u8; 32]) -> Self {
        Self::of_algorithm(&CHACHA20_POLY1305, key)
    }

    /// AES-256-GCM under a secret key that nothing else uses. A processor with instructions for AES
    /// seals long bytes faster by this cipher than by ChaCha20-Poly1305.
    pub fn new_aes(key: &[u8; 32]) -> Self {
        Self::of_algorithm(&AES_256_GCM, key)
    }

    fn of_algorithm(algorithm: &'static Algorithm, key: &[u8; 32]) -> Self {
        let key = UnboundKey::new(algorithm, key);
        Self(LessSafeKey::new(key.expect("a key of this cipher has 32 bytes")))
    }

    fn nonce(number: u64) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// Seals bytes in place. Returns the tag that must follow the bytes. `beside` is not sealed,
    /// but the bytes open only beside an equal `beside`.
    ///
    /// # Panics
    /// When there are more than 256 GiB of bytes.
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

    /// Opens sealed bytes in the buffer that has them, where [`open`](Self::open) opens a copy.
    /// Returns whether the bytes opened. A buffer whose bytes did not open has no bytes of use.
    pub fn open_in_place(&self, number: u64, beside: &[u8], sealed: &mut BytesMut) -> bool {
        let Some(length) = self.open_slice(number, beside, sealed) else { return false };
        sealed.truncate(length);
        true
    }

    /// Opens sealed bytes in the slice that has them. Returns the number of opened bytes, which are
    /// the first of the slice.
    pub fn open_slice(&self, number: u64, beside: &[u8], sealed: &mut [u8]) -> Option<usize> {
        let opened = self.0.open_in_place(Self::nonce(number), Aad::from(beside), sealed);
        opened.ok().map(|bytes| bytes.len())
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

    /// OpenSSL made the wanted bytes, through `cryptography` 48 for Python.
    #[test]
    fn aes_seals_as_another_implementation_does() {
        let key: [u8; 32] = core::array::from_fn(|n| n as u8);
        let mut bytes = *b"bid 100 at 17.25";
        let tag = Cipher::new_aes(&key).seal(0x0102_0304_0506_0708, b"beside", &mut bytes);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&bytes), "d5d61545a376524a74efcb1ae9bbaeff");
        assert_eq!(hex(&tag), "cfd422e30647031af3e3df782964caba");
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
}
