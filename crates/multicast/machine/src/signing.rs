//! Who wrote a frame: the root signs what it sent, and receivers check it.
//!
//! Every subscriber holds the shared key, so a seal shows only that some node of the run made a
//! frame. A signature shows which: the root alone holds the secret half of its signing key, and
//! every receiver may know the public half. To sign and check takes tens of microseconds, which is
//! too long for each frame. So the root signs many frames at once, each millisecond or when
//! [`BATCH_FRAMES_MAX`] frames wait:
//!
//! ```text
//!  frame   0   1   2  [3]  4   5   6   7  [8]  9 ...
//!          └───┴───┘   │   └───┴───┴───┘   │
//!          digests ──> S0  digests ──────> S1        [n] is a signature, and has a frame's number
//!                      └── chain hash ───> in S1
//! ```
//!
//! A signature takes the next number of a frame and travels as a frame does: through proxies, in
//! their rings, and by repair. It signs the digests of the frames directly before it, and the chain
//! hash of the signature before. So each frame can be checked when its signature is there,
//! whichever other frames were lost, and a receiver that joins late begins with any signature. The
//! chain shows that no signature was left out and that the root tells all receivers one history.
//!
//! ```text
//! body of a signature
//!  0        2        4                 36                  100        100 + 16 n
//!  | n u16  | zero   | chain before    | ed25519           | n x digest  |
//!
//! digest of a frame: the first 16 bytes of BLAKE3 over, under a key of (stream, run id),
//!  | count u16 | number | first message | origin | deadline | format u8 | messages |
//!
//! chain hash, and the message that is signed: BLAKE3 over
//!  | stream u32 | run id | number of the signature | n u16 | chain before | n x digest |
//! ```
//!
//! A digest covers the messages as they are before they are sealed, because a seal does not commit:
//! who holds the key can make two bodies with one tag. It leaves out the epoch, with which a
//! recorder or a successor of the root sends a frame again. Sixteen bytes are enough: somebody who
//! is to exchange a frame has to find another with the same digest, which takes 2^128 tries.
//!
//! The machines know no cipher. [`FrameSigner`] and [`SignatureVerifier`] bring ed25519.

use core::time::Duration;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use evenfall_core::{Malformed, Reader, Timestamp};

use crate::wire::{FIXED_BYTES, OriginHeader};

mod audit;
pub(crate) mod check;

pub use self::audit::{AuditBreak, AuditCause, AuditCounts, ChainAudit};
pub(crate) use self::check::SignatureCheck;
pub use self::check::{BreakCause, ChainBreak, ReleaseAfter, TrustCounts};

/// Bytes of the digest of a frame.
pub const DIGEST_BYTES: usize = 16;
/// Bytes of an ed25519 signature.
pub const SIGNATURE_BYTES: usize = 64;
/// Bytes of a chain hash.
pub const CHAIN_BYTES: usize = 32;
/// Frames in one signature. At this number the digests take a kilobyte, which a datagram of 1,432
/// bytes has room for.
pub const BATCH_FRAMES_MAX: usize = 64;
/// How long a frame waits for its signature at the root. At 10,000 frames a second a root then
/// spends 3.1 % of a core on signatures, and a receiver 5.5 % (`docs/results/signing.md`).
pub const SIGN_EVERY: Duration = Duration::from_millis(1);

/// Room for the tag of the seal behind a signature's body.
const SEAL_BYTES: usize = 16;
/// Bytes of a signature's body before the digests.
const BATCH_HEAD_BYTES: usize = 4 + CHAIN_BYTES + SIGNATURE_BYTES;
/// The fields of a fixed header that a digest covers: the count, and all from the number on.
const DIGESTED_COUNT: core::ops::Range<usize> = 6..8;
const DIGESTED: core::ops::Range<usize> = 24..FIXED_BYTES;

/// The digest of a frame.
pub(crate) type FrameDigest = [u8; DIGEST_BYTES];
/// The hash of a signature and all signatures before it.
pub(crate) type ChainHash = [u8; CHAIN_BYTES];

/// Makes signatures that only this process can make.
pub trait FrameSigner: Send + Sync {
    /// The signature of a chain hash.
    fn sign_hash(&self, hash: &[u8; CHAIN_BYTES]) -> [u8; SIGNATURE_BYTES];
}

/// Knows the public keys of the roots.
pub trait SignatureVerifier: Send + Sync {
    /// Whether one of the roots signed this chain hash.
    fn verify(&self, hash: &[u8; CHAIN_BYTES], signature: &[u8; SIGNATURE_BYTES]) -> bool;
}

/// Makes the digests of one run.
#[derive(Clone)]
pub(crate) struct FrameHasher {
    stream: u32,
    run_id: u64,
    key: [u8; 32],
}

impl FrameHasher {
    pub(crate) fn new(stream: u32, run_id: u64) -> Self {
        let mut run = [0; 12];
        run[..4].copy_from_slice(&stream.to_le_bytes());
        run[4..].copy_from_slice(&run_id.to_le_bytes());
        let key = blake3::derive_key("evenfall multicast frame digest v1", &run);
        Self { stream, run_id, key }
    }

    pub(crate) fn is_of(&self, run_id: u64) -> bool {
        self.run_id == run_id
    }

    pub(crate) fn digest(&self, fixed: &OriginHeader, messages: &[u8]) -> FrameDigest {
        let header = fixed.encode();
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&header[DIGESTED_COUNT]);
        hasher.update(&header[DIGESTED]);
        hasher.update(messages);
        *hasher.finalize().as_bytes().first_chunk().expect("32 bytes")
    }
}

/// The digests that one signature covers, and the chain hash before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SignedBatch {
    pub before: ChainHash,
    pub signature: [u8; SIGNATURE_BYTES],
    pub digests: Vec<FrameDigest>,
}

impl SignedBatch {
    pub(crate) fn encode(&self) -> BytesMut {
        let bytes = BATCH_HEAD_BYTES + self.digests.len() * DIGEST_BYTES;
        let mut out = BytesMut::with_capacity(bytes + SEAL_BYTES);
        out.put_u16_le(self.digests.len() as u16);
        out.put_u16_le(0);
        out.put_slice(&self.before);
        out.put_slice(&self.signature);
        self.digests.iter().for_each(|digest| out.put_slice(digest));
        out
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(body);
        let count = r.u16()?;
        if r.u16()? != 0 || count == 0 {
            return Err(r.malformed("a signature of no frames"));
        }
        let (before, signature) = (r.array()?, r.array()?);
        let (digests, _) = r.take(usize::from(count) * DIGEST_BYTES)?.as_chunks();
        let digests = digests.to_vec();
        r.finish()?;
        Ok(Self { before, signature, digests })
    }

    /// The chain hash of the signature with this number.
    pub(crate) fn chain_hash(&self, hasher: &FrameHasher, number: u64) -> ChainHash {
        let mut chain = blake3::Hasher::new_derive_key("evenfall multicast signature chain v1");
        chain.update(&hasher.stream.to_le_bytes());
        chain.update(&hasher.run_id.to_le_bytes());
        chain.update(&number.to_le_bytes());
        chain.update(&(self.digests.len() as u16).to_le_bytes());
        chain.update(&self.before);
        chain.update(self.digests.as_flattened());
        *chain.finalize().as_bytes()
    }
}

/// The root's side: gathers digests, and signs them.
pub(crate) struct SigningChain {
    signer: Arc<dyn FrameSigner>,
    hasher: FrameHasher,
    /// The digests of the frames since the last signature.
    digests: Vec<FrameDigest>,
    /// When the oldest of them was added.
    since: Timestamp,
    /// The chain hash of the last signature.
    last: ChainHash,
    batch_max: usize,
}

impl SigningChain {
    /// A chain without a signature. A signature has room in a body of `body_bytes`.
    pub(crate) fn new(
        signer: Arc<dyn FrameSigner>,
        hasher: FrameHasher,
        body_bytes: usize,
    ) -> Self {
        let room = body_bytes.saturating_sub(BATCH_HEAD_BYTES) / DIGEST_BYTES;
        let batch_max = room.clamp(1, BATCH_FRAMES_MAX);
        Self {
            signer,
            hasher,
            digests: Vec::with_capacity(batch_max),
            since: Timestamp::ZERO,
            last: [0; CHAIN_BYTES],
            batch_max,
        }
    }

    /// The chain of the same signer behind the chain hash of a signature that another root may have
    /// made.
    pub(crate) fn succeed(self, hasher: FrameHasher, last: ChainHash) -> Self {
        Self { hasher, last, digests: Vec::new(), ..self }
    }

    /// Adds the next frame. Frames beyond the limit, which only a successor of a root without a
    /// signing key has, stay unsigned.
    pub(crate) fn add(&mut self, now: Timestamp, fixed: &OriginHeader, messages: &[u8]) {
        if self.digests.is_empty() {
            self.since = now;
        }
        if self.is_full() {
            self.digests.remove(0);
        }
        self.digests.push(self.hasher.digest(fixed, messages));
    }

    /// Whether the frames so far must be signed before another is added.
    pub(crate) fn is_full(&self) -> bool {
        self.digests.len() >= self.batch_max
    }

    /// When the frames so far must be signed; `None` when there are none.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        (!self.digests.is_empty()).then(|| self.since + SIGN_EVERY)
    }

    /// Signs the frames so far under this number. Returns the body of the signature.
    pub(crate) fn sign_batch(&mut self, number: u64) -> BytesMut {
        let digests = core::mem::take(&mut self.digests);
        let before = self.last;
        let mut batch = SignedBatch { before, signature: [0; SIGNATURE_BYTES], digests };
        self.last = batch.chain_hash(&self.hasher, number);
        batch.signature = self.signer.sign_hash(&self.last);
        let body = batch.encode();
        // The next frames take the memory again.
        self.digests = batch.digests;
        self.digests.clear();
        body
    }
}
