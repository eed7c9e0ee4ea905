//! The receiver's side: compares what arrived with what the root signed.
//!
//! ```text
//!   frame ────> digest ──> pending ──┐ equal: verified
//!                                    ├─────────────────
//!   signature ──> waiting ──> batch ─┘ else: a break
//!                 (checked when
//!                  nothing is due)
//! ```
//!
//! A check takes longer than a frame, so signatures wait until no release is near, and for
//! [`CHECK_WITHIN`] at most. A frame without a signature waits for one as long as its repair and a
//! change of the root may take. After the first break nothing of the run is checked any more.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use evenfall_core::{NodeId, Timestamp};

use super::{CHAIN_BYTES, ChainHash, FrameDigest, FrameHasher, SignatureVerifier, SignedBatch};
use crate::wire::OriginHeader;

/// How long a signature waits for a moment in which no release is near.
pub(crate) const CHECK_WITHIN: Duration = Duration::from_millis(1);
/// Time that a check may take. A check begins only when no release is due within it.
pub(crate) const CHECK_TAKES: Duration = Duration::from_micros(100);
/// Signatures that wait for their check. Beyond this number the oldest is checked at once.
const WAITING_MAX: usize = 64;
/// Frames that wait for their signature: ten megabytes. Frames of a signed feed wait for
/// milliseconds, so only a feed without signatures reaches this number, and ends as unsigned.
const PENDING_MAX: usize = 131_072;
/// Signed digests of frames that have not arrived. Beyond this number the oldest is forgotten, and
/// its frame then counts as unsigned.
const KNOWN_MAX: usize = 65_536;
/// Signatures whose neighbours are compared with them: one second of them at one each millisecond.
/// A signature that is older counts as an anchor.
const ANCHORS_MAX: usize = 1_024;

/// When a receiver may hand a frame on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReleaseAfter {
    /// At the deadline. The signature is checked a moment later.
    #[default]
    Deadline,
    /// At the deadline, and not before the signature was checked.
    Verified,
}

/// How a frame or a signature differs from what the root signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BreakCause {
    /// The root signed another frame under this number.
    #[error("the root signed another frame under this number")]
    OtherFrame,
    /// No known root made the signature.
    #[error("no signer of trust.signers made the signature")]
    WrongSignature,
    /// The signature does not follow the signature before it.
    #[error("the signature does not follow the signature before it")]
    OtherHistory,
    /// No signature has come for this frame in time.
    #[error("no signature came for it")]
    Unsigned,
}

/// The first frame that is not what the root sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("frame {number}, which node {} sent, is not the root's: {cause}", .via.0)]
pub struct ChainBreak {
    /// Number of the frame or of the signature.
    pub number: u64,
    /// The neighbour that sent the copy.
    pub via: NodeId,
    /// How it differs.
    pub cause: BreakCause,
}

/// Counters of the checks of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TrustCounts {
    /// Messages whose frame the root signed.
    pub verified: u64,
    /// Messages that were not checked, because they were sent before the receiver had its place.
    pub unsigned: u64,
    /// Signatures that were checked.
    pub signatures: u64,
    /// Signatures before which none was known: the first, and those after a gap.
    pub anchors: u64,
    /// Breaks; a receiver ends with the first.
    pub breaks: u64,
    /// Sum over the verified frames of the time from the arrival to the check, ns.
    pub verify_ns_sum: u64,
    /// The longest of these times, ns.
    pub verify_ns_max: u64,
    /// Verified frames.
    pub frames: u64,
}

/// A frame that waits for its signature.
#[derive(Clone, Copy, Debug)]
struct PendingFrame {
    number: u64,
    digest: FrameDigest,
    count: u16,
    arrived: Timestamp,
    via: NodeId,
}

/// A signature that waits for its check.
#[derive(Clone, Debug)]
struct WaitingSignature {
    number: u64,
    batch: SignedBatch,
    arrived: Timestamp,
    via: NodeId,
}

/// A checked signature: its own chain hash, and the signature before.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    before: ChainHash,
    hash: ChainHash,
    /// Number of the signature before; `None` for the first of a run.
    follows: Option<u64>,
}

/// The checks of one receiver.
pub(crate) struct SignatureCheck {
    verifier: Arc<dyn SignatureVerifier>,
    rule: ReleaseAfter,
    /// How long a frame waits for its signature.
    patience: Duration,
    /// `None` until the receiver has a place.
    hasher: Option<FrameHasher>,
    /// The first frame that is checked.
    from: u64,
    /// By number.
    pending: VecDeque<PendingFrame>,
    waiting: VecDeque<WaitingSignature>,
    known: BTreeMap<u64, FrameDigest>,
    anchors: BTreeMap<u64, Anchor>,
    broken: Option<ChainBreak>,
    is_told: bool,
    /// Whether the receiver has no place, so that signatures do not come either.
    is_suspended: bool,
    counts: TrustCounts,
}

impl SignatureCheck {
    /// The checks of a receiver that has no place yet.
    pub(crate) fn new(
        verifier: Arc<dyn SignatureVerifier>,
        rule: ReleaseAfter,
        patience: Duration,
    ) -> Self {
        Self {
            verifier,
            rule,
            patience,
            hasher: None,
            from: 0,
            pending: VecDeque::new(),
            waiting: VecDeque::new(),
            known: BTreeMap::new(),
            anchors: BTreeMap::new(),
            broken: None,
            is_told: false,
            is_suspended: false,
            counts: TrustCounts::default(),
        }
    }

    /// Checks all frames of a run from this frame on. A run that is checked already goes on as it
    /// is, whichever root leads it.
    pub(crate) fn begin(&mut self, now: Timestamp, stream: u32, run_id: u64, from: u64) {
        let was_suspended = core::mem::replace(&mut self.is_suspended, false);
        if self.hasher.as_ref().is_some_and(|hasher| hasher.is_of(run_id)) {
            // Signatures could not come meanwhile, and repair may bring them now.
            let waiting = self.pending.iter_mut().filter(|_| was_suspended);
            waiting.for_each(|frame| frame.arrived = now);
            return;
        }
        self.hasher = Some(FrameHasher::new(stream, run_id));
        self.from = from;
        self.pending.clear();
        self.waiting.clear();
        self.known.clear();
        self.anchors.clear();
        (self.broken, self.is_told) = (None, false);
    }

    /// Lets no frame miss a signature until the receiver has a place again.
    pub(crate) fn suspend_checks(&mut self) {
        self.is_suspended = true;
    }

    /// Takes the first copy of a frame.
    pub(crate) fn take_frame(
        &mut self,
        now: Timestamp,
        fixed: &OriginHeader,
        messages: &[u8],
        via: NodeId,
    ) {
        let Some(hasher) = self.hasher.as_ref().filter(|_| self.broken.is_none()) else {
            return;
        };
        let (number, count) = (fixed.sequence, fixed.count);
        if number < self.from {
            self.counts.unsigned += u64::from(count);
            return;
        }
        let digest = hasher.digest(fixed, messages);
        let frame = PendingFrame { number, digest, count, arrived: now, via };
        if let Some(signed) = self.known.remove(&number) {
            return self.compare(now, &frame, &signed);
        }
        if self.pending.len() >= PENDING_MAX
            && let Some(oldest) = self.pending.pop_front()
        {
            return self.fail(oldest.number, oldest.via, BreakCause::Unsigned);
        }
        if self.pending.back().is_none_or(|last| last.number < number) {
            return self.pending.push_back(frame);
        }
        let at = self.pending.partition_point(|other| other.number < number);
        self.pending.insert(at, frame);
    }

    /// Takes the first copy of a signature.
    pub(crate) fn take_signature(&mut self, now: Timestamp, number: u64, body: &[u8], via: NodeId) {
        if self.hasher.is_none() || self.broken.is_some() || number < self.from {
            return;
        }
        let Ok(batch) = SignedBatch::decode(body) else {
            return self.fail(number, via, BreakCause::WrongSignature);
        };
        if batch.digests.len() as u64 > number {
            return self.fail(number, via, BreakCause::WrongSignature);
        }
        self.waiting.push_back(WaitingSignature { number, batch, arrived: now, via });
        if self.waiting.len() > WAITING_MAX {
            self.check_next(now);
        }
    }

    /// Checks what must not wait longer, and one more signature if there is time. Returns whether
    /// frames were verified.
    pub(crate) fn check(&mut self, now: Timestamp, has_time: bool) -> bool {
        let before = self.counts.frames;
        let is_urgent = |waiting: &WaitingSignature| now >= waiting.arrived + CHECK_WITHIN;
        while self.rule == ReleaseAfter::Verified || self.waiting.front().is_some_and(is_urgent) {
            if !self.check_next(now) {
                break;
            }
        }
        if has_time {
            self.check_next(now);
        }
        if let Some(frame) = self.overdue(now) {
            self.fail(frame.number, frame.via, BreakCause::Unsigned);
        }
        self.counts.frames > before
    }

    /// A frame that has waited too long for its signature: the first or the last of the pending
    /// frames. An unsigned frame becomes the first when the frames before it are signed. A forged
    /// frame far ahead of the feed is the last.
    fn overdue(&self, now: Timestamp) -> Option<PendingFrame> {
        let ends = [self.pending.front(), self.pending.back()].into_iter().flatten();
        let mut ends = ends.copied().filter(|_| !self.is_suspended);
        ends.find(|frame| now >= frame.arrived + self.patience)
    }

    /// Checks the oldest signature. Returns whether there was one.
    fn check_next(&mut self, now: Timestamp) -> bool {
        let Some(WaitingSignature { number, batch, via, .. }) = self.waiting.pop_front() else {
            return false;
        };
        let Some(hasher) = &self.hasher else { return false };
        let hash = batch.chain_hash(hasher, number);
        self.counts.signatures += 1;
        if !self.verifier.verify(&hash, &batch.signature) {
            self.fail(number, via, BreakCause::WrongSignature);
            return false;
        }
        let first = number - batch.digests.len() as u64;
        if !self.link(number, first.checked_sub(1), &batch.before, &hash) {
            self.fail(number, via, BreakCause::OtherHistory);
            return false;
        }
        self.match_frames(now, first, &batch.digests);
        true
    }

    /// Puts a signature between its neighbours. `false` when one of them does not fit.
    fn link(
        &mut self,
        number: u64,
        follows: Option<u64>,
        before: &ChainHash,
        hash: &ChainHash,
    ) -> bool {
        let fits_before = match follows.map(|number| self.anchors.get(&number)) {
            Some(Some(anchor)) => anchor.hash == *before,
            Some(None) => {
                self.counts.anchors += 1;
                true
            }
            None => {
                self.counts.anchors += 1;
                *before == [0; CHAIN_BYTES]
            }
        };
        let next = self.anchors.range(number + 1..).next().map(|(_, anchor)| anchor);
        let next = next.filter(|next| next.follows == Some(number));
        let fits_after = next.is_none_or(|next| next.before == *hash);
        self.anchors.insert(number, Anchor { before: *before, hash: *hash, follows });
        if self.anchors.len() > ANCHORS_MAX {
            self.anchors.pop_first();
        }
        fits_before && fits_after
    }

    /// Compares the frames from `first` on with their signed digests.
    fn match_frames(&mut self, now: Timestamp, first: u64, digests: &[FrameDigest]) {
        let end = first + digests.len() as u64;
        let from = self.pending.partition_point(|frame| frame.number < first);
        let to = self.pending.partition_point(|frame| frame.number < end);
        let arrived: Vec<PendingFrame> = self.pending.drain(from..to).collect();
        let mut arrived = arrived.into_iter().peekable();
        for (number, signed) in (first..).zip(digests) {
            if let Some(frame) = arrived.next_if(|frame| frame.number == number) {
                self.compare(now, &frame, signed);
            } else if number >= self.from {
                self.known.insert(number, *signed);
            }
        }
        while self.known.len() > KNOWN_MAX {
            self.known.pop_first();
        }
    }

    fn compare(&mut self, now: Timestamp, frame: &PendingFrame, signed: &FrameDigest) {
        if frame.digest != *signed {
            return self.fail(frame.number, frame.via, BreakCause::OtherFrame);
        }
        let took_ns = evenfall_core::time::nanos(now.since(frame.arrived));
        self.counts.frames += 1;
        self.counts.verified += u64::from(frame.count);
        self.counts.verify_ns_sum += took_ns;
        self.counts.verify_ns_max = self.counts.verify_ns_max.max(took_ns);
    }

    fn fail(&mut self, number: u64, via: NodeId, cause: BreakCause) {
        if self.broken.is_none() {
            self.broken = Some(ChainBreak { number, via, cause });
            self.counts.breaks += 1;
        }
    }

    /// Forgets the signed digests of the frames below this number, which come no more.
    pub(crate) fn skip_to(&mut self, number: u64) {
        if self.known.first_key_value().is_some_and(|(first, _)| *first < number) {
            self.known = self.known.split_off(&number);
        }
    }

    /// Whether the receiver may hand this frame on when its deadline has come.
    pub(crate) fn permits(&self, number: u64) -> bool {
        let unverified = || self.pending.front().is_some_and(|first| first.number <= number);
        self.broken.is_none() && (self.rule == ReleaseAfter::Deadline || !unverified())
    }

    /// Whether every frame that arrived is verified.
    pub(crate) fn is_settled(&self) -> bool {
        self.pending.is_empty() && self.waiting.is_empty() && self.broken.is_none()
    }

    /// Whether a break was found.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// The break, when it was not told before.
    pub(crate) fn poll_break(&mut self) -> Option<ChainBreak> {
        let is_told = core::mem::replace(&mut self.is_told, self.broken.is_some());
        self.broken.filter(|_| !is_told)
    }

    /// When the next check is due.
    pub(crate) fn poll_timeout(&self) -> Option<Timestamp> {
        if self.broken.is_some() {
            return None;
        }
        let check = self.waiting.front().map(|waiting| waiting.arrived + CHECK_WITHIN);
        let ends = [self.pending.front(), self.pending.back()].into_iter().flatten();
        let ends = ends.filter(|_| !self.is_suspended);
        let patience = ends.map(|frame| frame.arrived + self.patience);
        check.into_iter().chain(patience).min()
    }

    pub(crate) fn rule(&self) -> ReleaseAfter {
        self.rule
    }

    pub(crate) fn counts(&self) -> TrustCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests;
