//! A recording's side: compares recorded frames with recorded signatures, long after the feed.
//!
//! A receiver has to decide within milliseconds which copy it believes, and waits for signatures
//! that are late ([`check`](super::check)). A recording is whole: frames and signatures come in
//! the order of their numbers, and what is missing comes no more. So each frame is compared when
//! its signature is read, and the first difference ends the audit:
//!
//! ```text
//!   frames    17  18  19  [20]  21   ·  [23]
//!             └────┴───┘ ──┘    └────┴────┘
//!              compared          22: the root signed it, and it is not recorded
//! ```
//!
//! A recording may begin in the middle of a feed. Frames before the first signature are counted as
//! unsigned, and so are frames behind the last one.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;

use super::{CHAIN_BYTES, ChainHash, FrameDigest, FrameHasher, SignatureVerifier, SignedBatch};
use crate::recorder::Archived;
use crate::wire::{DatagramKind, OriginHeader, put_message};

/// Frames that wait for their signature. A signature counts its frames in two bytes.
const PENDING_MAX: usize = 65_535;

/// How a recording differs from what the root signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuditCause {
    /// The root signed another frame under this number.
    #[error("the root signed another frame under this number")]
    OtherFrame,
    /// The root signed a frame under this number, and none is recorded.
    #[error("the root signed this frame, and it is not recorded")]
    MissingFrame,
    /// No known root made the signature.
    #[error("none of the given signers made this signature")]
    WrongSignature,
    /// The signature with this number is not recorded.
    #[error("this signature is not recorded")]
    MissingSignature,
    /// The signature does not follow the signature before it.
    #[error("this signature does not follow the signature before it")]
    OtherHistory,
    /// The frame lies between frames that are signed, and no signature covers it.
    #[error("no signature covers this frame")]
    Unsigned,
}

/// The first place at which a recording is not what the root signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditBreak {
    /// Number of the frame or of the signature.
    pub number: u64,
    /// How it differs.
    pub cause: AuditCause,
}

/// What an audit has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct AuditCounts {
    /// Frames that the root signed.
    pub signed: u64,
    /// Messages of these frames.
    pub signed_messages: u64,
    /// Frames that the root signed together with the first frames of a recording, and sent before
    /// the recording began.
    pub missing_before: u64,
    /// Frames before the first signature of a run.
    pub unsigned_before: u64,
    /// Frames behind the last signature.
    pub unsigned_behind: u64,
    /// Signatures that were checked.
    pub signatures: u64,
}

impl AuditCounts {
    /// Adds what the audit of another stream has seen.
    pub fn add_stream(&mut self, other: &Self) {
        self.signed += other.signed;
        self.signed_messages += other.signed_messages;
        self.missing_before += other.missing_before;
        self.unsigned_before += other.unsigned_before;
        self.unsigned_behind += other.unsigned_behind;
        self.signatures += other.signatures;
    }
}

struct PendingFrame {
    number: u64,
    digest: FrameDigest,
    messages: u64,
}

/// Compares the frames of a recorded stream with its signatures. Both are handed in by their
/// numbers, in ascending order.
pub struct ChainAudit {
    stream: u32,
    verifier: Arc<dyn SignatureVerifier>,
    /// Of the present run; `None` before the first.
    hasher: Option<FrameHasher>,
    /// The first number of the present run that is recorded.
    first: u64,
    /// The last signature of the present run, and its chain hash.
    last: Option<(u64, ChainHash)>,
    pending: VecDeque<PendingFrame>,
    counts: AuditCounts,
}

impl ChainAudit {
    /// The audit of a stream that begins with nothing.
    pub fn new(stream: u32, verifier: Arc<dyn SignatureVerifier>) -> Self {
        Self {
            stream,
            verifier,
            hasher: None,
            first: 0,
            last: None,
            pending: VecDeque::new(),
            counts: AuditCounts::default(),
        }
    }

    /// Takes the next frame of the stream. `run_id` is the run of the first signature behind the
    /// frame; `None` when no signature follows.
    ///
    /// # Errors
    /// The break that the frame shows. The audit ends there.
    pub fn take_frame(&mut self, frame: &Archived, run_id: Option<u64>) -> Result<(), AuditBreak> {
        let number = frame.sequence;
        let Some(run_id) = run_id else {
            self.counts.unsigned_behind += 1;
            return Ok(());
        };
        self.begin_run(run_id, number);
        let last = self.pending.back().map(|frame| frame.number);
        let last = last.max(self.last.map(|(number, _)| number));
        if last.is_some_and(|last| last >= number) {
            return Err(AuditBreak { number, cause: AuditCause::OtherFrame });
        }
        if self.pending.len() == PENDING_MAX
            && let Some(oldest) = self.pending.pop_front()
        {
            self.leave_unsigned(&oldest)?;
        }
        let Some(hasher) = &self.hasher else { return Ok(()) };
        let mut body = BytesMut::new();
        frame.messages.iter().for_each(|message| put_message(&mut body, message));
        let fixed = OriginHeader {
            count: frame.messages.len() as u16,
            first_message: frame.first_message,
            origin: frame.origin,
            deadline: frame.deadline,
            format: frame.format,
            ..OriginHeader::control(DatagramKind::Data, self.stream, 0, number)
        };
        let (digest, messages) = (hasher.digest(&fixed, &body), frame.messages.len() as u64);
        self.pending.push_back(PendingFrame { number, digest, messages });
        Ok(())
    }

    /// Takes the next signature of the stream: its number, its run and its body.
    ///
    /// # Errors
    /// The break that the signature shows. The audit ends there.
    pub fn take_signature(
        &mut self,
        number: u64,
        run_id: u64,
        body: &[u8],
    ) -> Result<(), AuditBreak> {
        self.begin_run(run_id, number);
        let wrong = AuditBreak { number, cause: AuditCause::WrongSignature };
        let batch = SignedBatch::decode(body).map_err(|_| wrong)?;
        let first = number.checked_sub(batch.digests.len() as u64).ok_or(wrong)?;
        let hash = self.hasher.as_ref().map(|hasher| batch.chain_hash(hasher, number));
        let hash = hash.filter(|hash| self.verifier.verify(hash, &batch.signature));
        let hash = hash.ok_or(wrong)?;
        self.counts.signatures += 1;
        self.follow_chain(number, first, &batch.before)?;
        self.last = Some((number, hash));
        self.match_frames(first, &batch.digests)
    }

    /// Whether a signature of the present run was taken.
    pub fn is_anchored(&self) -> bool {
        self.last.is_some()
    }

    /// What was seen. Frames that wait for a signature have none.
    pub fn finish(mut self) -> AuditCounts {
        self.counts.unsigned_behind += self.pending.len() as u64;
        self.counts
    }

    fn begin_run(&mut self, run_id: u64, number: u64) {
        if self.hasher.as_ref().is_some_and(|hasher| hasher.is_of(run_id)) {
            return;
        }
        self.counts.unsigned_behind += self.pending.drain(..).len() as u64;
        self.hasher = Some(FrameHasher::new(self.stream, run_id));
        (self.first, self.last) = (number, None);
    }

    /// A frame that no signature covers.
    fn leave_unsigned(&mut self, frame: &PendingFrame) -> Result<(), AuditBreak> {
        if self.is_anchored() {
            return Err(AuditBreak { number: frame.number, cause: AuditCause::Unsigned });
        }
        self.counts.unsigned_before += 1;
        Ok(())
    }

    /// Compares a signature, whose first frame is `first`, with the signature before it.
    fn follow_chain(
        &mut self,
        number: u64,
        first: u64,
        before: &ChainHash,
    ) -> Result<(), AuditBreak> {
        let other = Err(AuditBreak { number, cause: AuditCause::OtherHistory });
        let Some((last, hash)) = self.last else {
            let is_right = first > 0 || *before == [0; CHAIN_BYTES];
            return if is_right { Ok(()) } else { other };
        };
        let next = last + 1;
        if first > next {
            let unsigned = self.pending.front().filter(|frame| frame.number < first);
            return Err(match unsigned {
                Some(frame) => AuditBreak { number: frame.number, cause: AuditCause::Unsigned },
                None => AuditBreak { number: first - 1, cause: AuditCause::MissingSignature },
            });
        }
        if first == next && hash == *before { Ok(()) } else { other }
    }

    /// Compares the frames from `first` on with their signed digests.
    fn match_frames(&mut self, first: u64, digests: &[FrameDigest]) -> Result<(), AuditBreak> {
        while self.pending.front().is_some_and(|frame| frame.number < first) {
            self.pending.pop_front();
            self.counts.unsigned_before += 1;
        }
        for (number, signed) in (first..).zip(digests) {
            let Some(frame) = self.pending.pop_front_if(|frame| frame.number == number) else {
                if number < self.first {
                    self.counts.missing_before += 1;
                    continue;
                }
                return Err(AuditBreak { number, cause: AuditCause::MissingFrame });
            };
            if frame.digest != *signed {
                return Err(AuditBreak { number, cause: AuditCause::OtherFrame });
            }
            self.counts.signed += 1;
            self.counts.signed_messages += frame.messages;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
