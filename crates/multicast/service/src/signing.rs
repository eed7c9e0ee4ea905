//! The keys by which a root signs its frames and receivers check them: ed25519 (RFC 8032).

use std::sync::atomic::{AtomicUsize, Ordering};

use evenfall_multicast_machine::signing::{CHAIN_BYTES, SIGNATURE_BYTES};
use evenfall_multicast_machine::{FrameSigner, SignatureVerifier};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

/// The secret key of a root.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// The key of these 32 random bytes.
    pub fn new(secret: &[u8; 32]) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(secret);
        Self(pair.expect("any 32 bytes are a secret key"))
    }

    /// The public half, by which receivers check signatures.
    pub fn public_key(&self) -> [u8; 32] {
        self.0.public_key().as_ref().try_into().expect("a public key has 32 bytes")
    }
}

impl FrameSigner for SigningKey {
    fn sign_hash(&self, hash: &[u8; CHAIN_BYTES]) -> [u8; SIGNATURE_BYTES] {
        self.0.sign(hash).as_ref().try_into().expect("a signature has 64 bytes")
    }
}

/// The public keys of the root and its standbys.
pub struct RootKeys {
    keys: Vec<UnparsedPublicKey<[u8; 32]>>,
    /// The key of the root that leads, which is tried first.
    last: AtomicUsize,
}

impl RootKeys {
    /// A verifier that knows these public keys.
    pub fn new(keys: &[[u8; 32]]) -> Self {
        let keys = keys.iter().map(|key| UnparsedPublicKey::new(&ED25519, *key)).collect();
        Self { keys, last: AtomicUsize::new(0) }
    }
}

impl SignatureVerifier for RootKeys {
    fn verify(&self, hash: &[u8; CHAIN_BYTES], signature: &[u8; SIGNATURE_BYTES]) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        let fits =
            |at: &usize| self.keys.get(*at).is_some_and(|key| key.verify(hash, signature).is_ok());
        let others = (0..self.keys.len()).filter(|at| *at != last);
        let found = core::iter::once(last).chain(others).find(fits);
        if let Some(at) = found {
            self.last.store(at, Ordering::Relaxed);
        }
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first test vector of RFC 8032, section 7.1, whose message is not 32 bytes; OpenSSL made
    /// the signature of this one, through `cryptography` for Python.
    const SECRET: [u8; 32] = [
        0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec, 0x2c,
        0xc4, 0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae,
        0x7f, 0x60,
    ];

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_public_key_is_that_of_the_standard() {
        let public = SigningKey::new(&SECRET).public_key();
        let wanted = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        assert_eq!(hex(&public), wanted);
    }

    #[test]
    fn a_signature_is_that_of_another_implementation() {
        let signature = SigningKey::new(&SECRET).sign_hash(&[7; CHAIN_BYTES]);
        assert_eq!(hex(&signature), WANTED);
    }

    const WANTED: &str = "a33b2e1aa1b439b83e03e63b616ec3441f495828e6f59f0497df2fcdb317ea33\
                          4958a206d3a4dcef3d6e26474e68dc8fafee36d9aa93571bf2ebb8c731af1c0d";

    #[test]
    fn a_signature_is_of_a_known_root_whichever_leads() {
        let [one, two, three] = [1, 2, 3].map(|seed| SigningKey::new(&[seed; 32]));
        let keys = RootKeys::new(&[one.public_key(), two.public_key()]);
        let hash = [9; CHAIN_BYTES];
        for (key, is_known) in [(&one, true), (&two, true), (&three, false), (&one, true)] {
            assert_eq!(keys.verify(&hash, &key.sign_hash(&hash)), is_known);
            assert!(!keys.verify(&[8; CHAIN_BYTES], &key.sign_hash(&hash)), "of another hash");
        }
    }
}
