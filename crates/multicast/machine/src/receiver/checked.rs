//! A receiver that checks that the root wrote what it releases. See [`signing`](crate::signing).

use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::Timestamp;

use super::{Receiver, ReceiverEvent};
use crate::signing::check::CHECK_TAKES;
use crate::signing::{ReleaseAfter, SignatureCheck, SignatureVerifier};
use crate::wire::{Datagram, DatagramKind};

impl Receiver {
    /// Checks that the root wrote all frames from the receiver's place on. Signatures may be late
    /// by as long as their repair and a change of the root take. The call must come before the
    /// receiver joins.
    pub fn check_signatures(
        mut self,
        verifier: Arc<dyn SignatureVerifier>,
        rule: ReleaseAfter,
    ) -> Self {
        let patience = self.up.config.frame_patience();
        self.check = Some(Box::new(SignatureCheck::new(verifier, rule, patience)));
        self
    }

    /// Hands the first copy of a frame or a signature to the checks.
    pub(super) fn note_copy(&mut self, now: Timestamp, datagram: &Datagram, body: &Bytes) {
        let Some(check) = &mut self.check else { return };
        let (fixed, via) = (&datagram.fixed, datagram.hop.from);
        match fixed.kind {
            DatagramKind::Signature => check.take_signature(now, fixed.sequence, body, via),
            _ => check.take_frame(now, fixed, body, via),
        }
    }

    /// Releases what is due, then checks signatures, and releases what waited for them.
    pub(super) fn settle(&mut self, now: Timestamp) {
        self.release(now);
        if self.check.is_none() {
            return;
        }
        let next = self.next_release();
        let Some(check) = &mut self.check else { return };
        let has_time = next.is_none_or(|at| at > now + CHECK_TAKES);
        let is_verified = check.check(now, has_time);
        if let Some(broken) = check.poll_break() {
            self.held.clear();
            self.tell(ReceiverEvent::Broken(broken));
        } else if is_verified {
            self.release(now);
        }
    }

    pub(super) fn check_due(&self) -> Option<Timestamp> {
        self.check.as_ref()?.poll_timeout()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.check.as_ref().is_some_and(|check| check.is_broken())
    }

    /// Whether a frame may be handed on as far as its signature is concerned.
    pub(super) fn is_permitted(&self, sequence: u64) -> bool {
        self.check.as_ref().is_none_or(|check| check.permits(sequence))
    }

    /// Whether signatures must not wait in the socket: later frames are released only when theirs
    /// was checked.
    pub(super) fn reads_at_once(&self) -> bool {
        self.check.as_ref().is_some_and(|check| check.rule() == ReleaseAfter::Verified)
    }
}
