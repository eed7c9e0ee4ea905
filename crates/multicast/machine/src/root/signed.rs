//! A root that signs its frames. See [`signing`](crate::signing).

use super::*;
use crate::signing::{BATCH_FRAMES_MAX, SignedBatch};

impl Root {
    /// Signs all frames of this root from now on. The call must come before the first frame.
    pub fn sign_frames(mut self, signer: Arc<dyn FrameSigner>) -> Self {
        let room = self.config.framing.body_bytes(self.out.seal.overhead());
        let hasher = FrameHasher::new(self.stream, self.run.id);
        self.signing = Some(Box::new(SigningChain::new(signer, hasher, room)));
        self
    }

    /// When the frames that have no signature yet are to be signed.
    pub(super) fn signature_due(&self) -> Option<Timestamp> {
        self.signing.as_ref().filter(|_| !self.ended)?.due()
    }

    /// Signs the frames that have no signature yet. The signature takes the next number of a frame.
    pub(super) fn sign_waiting(&mut self, now: Timestamp) {
        let due = self.signing.as_mut().filter(|signing| signing.due().is_some());
        let Some(signing) = due.filter(|_| !self.ended) else { return };
        let body = signing.sign_batch(self.next_frame);
        let origin = self.out.clock.sync(now).max(self.last_origin);
        self.last_origin = origin;
        // The deadlines of a stream never decrease.
        let holds = self.config.mode.holds() && self.last_deadline > SyncTime::ZERO;
        let RootRun { epoch, id: run_id, .. } = self.run;
        let fixed = OriginHeader {
            class: TrafficClass::Live,
            key_id: self.out.seal.key_id(),
            run_id,
            first_message: self.next_message - u64::from(self.open.count),
            origin,
            deadline: holds.then_some(self.last_deadline),
            ..OriginHeader::control(DatagramKind::Signature, self.stream, epoch, self.next_frame)
        };
        self.dispatch(now, fixed, &body, 0);
    }

    /// Remembers a signature that leaves, or that another root made and the voters agreed on.
    pub(super) fn note_signature(&mut self, fixed: &OriginHeader, body: &[u8]) {
        if fixed.kind != DatagramKind::Signature {
            return;
        }
        self.status.signatures += 1;
        // A root without voters has no successor that goes on with its chain.
        if self.voted.is_some()
            && let Ok(batch) = SignedBatch::decode(body)
        {
            let hasher = FrameHasher::new(self.stream, fixed.run_id);
            self.signed = (fixed.sequence + 1, batch.chain_hash(&hasher, fixed.sequence));
        }
    }

    /// Goes on with the chain of the roots before. The frames behind the last signature that the
    /// voters agreed on are still in the ring, because there are few of them.
    pub(super) fn succeed_chain(&mut self, now: Timestamp, signing: Option<Box<SigningChain>>) {
        let Some(signing) = signing else { return };
        let hasher = FrameHasher::new(self.stream, self.run.id);
        let mut signing = signing.succeed(hasher, self.signed.1);
        // A root before that had no key left more frames without a signature than one holds.
        let first = self.signed.0.max(self.next_frame.saturating_sub(BATCH_FRAMES_MAX as u64));
        for number in first..self.next_frame {
            let frame =
                self.ring.get(number).filter(|frame| frame.fixed.kind == DatagramKind::Data);
            let Some(Frame { fixed, body, .. }) = frame else { continue };
            if let Ok(messages) = self.out.seal.open(fixed, body) {
                signing.add(now, fixed, &messages);
            }
        }
        self.signing = Some(Box::new(signing));
    }
}
