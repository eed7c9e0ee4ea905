//! A sealed stream between two ends that share a key: a handshake, then records. Without IO, so
//! that a socket that blocks, an asynchronous socket and a test drive the same bytes.
//!
//! ```text
//!  client                                                         server
//!    | 0, "EVS", version, use, length of the name, 0, 32 random bytes, name |
//!    |--------------------------------------------------------------------->|
//!    |<---------------------------------------------------------------------|
//!    |           0, "EVS", version, verdict, 0, 0, 32 random bytes, proof   |
//!    |  | length u16 | sealed bytes | tag |  ...  | 0 | tag |               |
//! ```
//!
//! The client names the key, and the server looks the key up. Each direction has a key of its own,
//! which follows by BLAKE3 from the shared key and all bytes of both hellos. So a recorded
//! connection opens nowhere again, and a hello for one use opens no connection of another use. The
//! proof is a tag that only an owner of the key can make. A client with a wrong key, or at a wrong
//! server, therefore ends before it sends a byte of its own. The first record of the client proves
//! the client.
//!
//! A record is sealed under its number as the nonce, with its length as associated data. A record
//! without bytes ends its direction. A connection that is cut has no such record, and is told apart
//! from one that ended. After each [`RECORDS_PER_KEY`] records of a direction the next key follows
//! from the key before.
//!
//! No frame or request of the plain protocols begins with a zero byte. A server therefore tells
//! sealed clients from plain clients by the first byte.

use core::fmt;

use crate::Cipher;
use crate::cipher::TAG_BYTES;

mod records;
#[cfg(test)]
mod tests;

pub use records::{OpenedRecord, RecordError, RecordOpener, RecordSealer};

/// The first bytes of both ends.
const MAGIC: [u8; 4] = [0, b'E', b'V', b'S'];
/// The version of handshake and records.
const VERSION: u8 = 1;
/// Bytes in front of the random bytes. They decide how an end goes on.
pub const PREFIX_BYTES: usize = 8;
/// Random bytes of each end, out of which both ends derive the keys of the connection.
pub const RANDOM_BYTES: usize = 32;
/// Longest name of a key. Names of users have 64 bytes at most.
pub const KEY_NAME_BYTES_MAX: usize = 64;
/// Bytes of the answer of a server to a hello that it takes.
pub const ANSWER_BYTES: usize = PREFIX_BYTES + RANDOM_BYTES + TAG_BYTES;
/// Bytes of a record before they are sealed. A smaller record costs more for each byte. The
/// receiver of a larger record waits longer for its first byte.
pub const RECORD_BYTES_MAX: usize = 32 << 10;
/// Records under one key: 2 GiB at most. RFC 8446 allows AES-GCM some 24 million records of 16 KiB
/// under one key (section 5.5), which are more than 300 GiB.
pub const RECORDS_PER_KEY: u64 = 1 << 16;

/// Makes the cipher of a key: [`Cipher::new`] or [`Cipher::new_aes`]. Both ends of a stream must
/// use the same function.
pub type CipherOf = fn(&[u8; 32]) -> Cipher;

/// The protocol inside a sealed stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StreamUse {
    /// HTTP between processes of a run.
    Http = 1,
    /// The protocol of a store's port.
    Store = 2,
}

/// Why a server takes no handshake. The numbers are those on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HelloVerdict {
    /// The server speaks another version.
    Version = 1,
    /// The server has no keys.
    NoKeys = 2,
}

/// Why there is no sealed stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The bytes are no hello of a sealed stream.
    #[error("the other end does not answer with a sealed stream")]
    NotSealed,
    /// The other end speaks this version.
    #[error(
        "the other end has version {0} of sealed streams, and this one {VERSION}: use the same \
         build at both ends"
    )]
    Version(u8),
    /// The client wants to speak another protocol.
    #[error("the sealed stream is meant for another protocol")]
    OtherUse,
    /// The server has no keys, so the client must come without one.
    #[error("the server takes connections without a key only")]
    NoKeys,
    /// The server does not have the key of this client.
    #[error("the server does not have this key under this name")]
    WrongKey,
}

/// Both directions of a stream, as one end has them.
#[derive(Debug)]
pub struct SealedEnds {
    /// Seals what this end sends.
    pub sealer: RecordSealer,
    /// Opens what the other end sends.
    pub opener: RecordOpener,
}

/// Whether the first byte is that of a sealed stream. The plain protocol of the port must begin
/// with another byte.
pub fn is_sealed(bytes: &[u8]) -> bool {
    bytes.first() == Some(&MAGIC[0])
}

/// Whether bytes begin the hello of a sealed stream of any version.
pub fn is_hello(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

fn write_prefix(code: u8, name_bytes: u8) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d] = MAGIC;
    [a, b, c, d, VERSION, code, name_bytes, 0]
}

/// The code of a prefix of this version: the use in a hello, the verdict in an answer.
fn read_prefix(prefix: &[u8; PREFIX_BYTES]) -> Result<u8, HandshakeError> {
    if prefix[..MAGIC.len()] != MAGIC || prefix[7] != 0 {
        return Err(HandshakeError::NotSealed);
    }
    match prefix[4] {
        VERSION => Ok(prefix[5]),
        version => Err(HandshakeError::Version(version)),
    }
}

/// The secrets of both directions: to the server, and to the client.
fn derive_secrets(secret: &[u8; 32], hello: &[u8], answer: &[u8]) -> [[u8; 32]; 2] {
    let contexts = ["evenfall sealed stream v1 to server", "evenfall sealed stream v1 to client"];
    contexts.map(|context| {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(secret).update(hello).update(answer);
        *hasher.finalize().as_bytes()
    })
}

/// The handshake of a client, which ends with a sealed stream.
pub struct ClientHandshake {
    hello: Vec<u8>,
    secret: [u8; 32],
    cipher_of: CipherOf,
}

impl fmt::Debug for ClientHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientHandshake")
    }
}

impl ClientHandshake {
    /// A client with the key of this name. The random bytes are used for nothing else.
    ///
    /// # Panics
    /// When the name has more than [`KEY_NAME_BYTES_MAX`] bytes.
    pub fn new(
        of: StreamUse,
        key_name: &[u8],
        secret: &[u8; 32],
        random: &[u8; RANDOM_BYTES],
        cipher_of: CipherOf,
    ) -> Self {
        assert!(key_name.len() <= KEY_NAME_BYTES_MAX, "the name of a key is checked before");
        let prefix = write_prefix(of as u8, key_name.len() as u8);
        let hello = [&prefix[..], random, key_name].concat();
        Self { hello, secret: *secret, cipher_of }
    }

    /// The bytes that the client sends first.
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Looks at the first bytes of the server. The rest of the answer follows only when the server
    /// takes the hello.
    ///
    /// # Errors
    /// Why the server refuses the hello.
    pub fn check_prefix(&self, prefix: &[u8; PREFIX_BYTES]) -> Result<(), HandshakeError> {
        match read_prefix(prefix)? {
            0 => Ok(()),
            code if code == HelloVerdict::NoKeys as u8 => Err(HandshakeError::NoKeys),
            _ => Err(HandshakeError::NotSealed),
        }
    }

    /// Checks the proof in the answer of the server.
    ///
    /// # Errors
    /// As [`check_prefix`](Self::check_prefix), and [`HandshakeError::WrongKey`].
    pub fn finish(&self, answer: &[u8; ANSWER_BYTES]) -> Result<SealedEnds, HandshakeError> {
        let (open, proof) = answer.split_at(PREFIX_BYTES + RANDOM_BYTES);
        let prefix = open.first_chunk().ok_or(HandshakeError::NotSealed)?;
        self.check_prefix(prefix)?;
        let [to_server, to_client] = derive_secrets(&self.secret, &self.hello, open);
        let sealer = RecordSealer::new(to_server, self.cipher_of);
        let opener = RecordOpener::new(to_client, self.cipher_of);
        match opener.is_proof(proof) {
            true => Ok(SealedEnds { sealer, opener }),
            false => Err(HandshakeError::WrongKey),
        }
    }
}

/// The hello of a client, as a server has read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello(Vec<u8>);

impl ClientHello {
    /// Bytes of the whole hello that begins with this prefix.
    ///
    /// # Errors
    /// Why the bytes are no hello for this use.
    pub fn length(of: StreamUse, prefix: &[u8; PREFIX_BYTES]) -> Result<usize, HandshakeError> {
        if read_prefix(prefix)? != of as u8 {
            return Err(HandshakeError::OtherUse);
        }
        let name_bytes = usize::from(prefix[6]);
        match name_bytes <= KEY_NAME_BYTES_MAX {
            true => Ok(PREFIX_BYTES + RANDOM_BYTES + name_bytes),
            false => Err(HandshakeError::NotSealed),
        }
    }

    /// The hello out of all of its bytes.
    ///
    /// # Errors
    /// As [`length`](Self::length), also for bytes of another length.
    pub fn parse(of: StreamUse, bytes: &[u8]) -> Result<Self, HandshakeError> {
        let prefix = bytes.first_chunk().ok_or(HandshakeError::NotSealed)?;
        match Self::length(of, prefix)? == bytes.len() {
            true => Ok(Self(bytes.to_vec())),
            false => Err(HandshakeError::NotSealed),
        }
    }

    /// The name of the key that the client says it has.
    pub fn key_name(&self) -> &[u8] {
        &self.0[PREFIX_BYTES + RANDOM_BYTES..]
    }

    /// The answer of a server under the key of that name, and the stream behind it. A server
    /// answers an unknown name under a random key, so that nobody learns the names by trying.
    pub fn answer(
        &self,
        secret: &[u8; 32],
        random: &[u8; RANDOM_BYTES],
        cipher_of: CipherOf,
    ) -> (Vec<u8>, SealedEnds) {
        let mut answer = [&write_prefix(0, 0)[..], random].concat();
        let [to_server, to_client] = derive_secrets(secret, &self.0, &answer);
        let opener = RecordOpener::new(to_server, cipher_of);
        let sealer = RecordSealer::new(to_client, cipher_of);
        answer.extend_from_slice(&sealer.prove_key());
        (answer, SealedEnds { sealer, opener })
    }
}

/// The answer of a server that refuses a hello.
pub fn refuse_hello(verdict: HelloVerdict) -> [u8; PREFIX_BYTES] {
    write_prefix(verdict as u8, 0)
}
