//! A root that asks voters before a frame leaves. See [`standby`](crate::standby).

use std::collections::VecDeque;

use evenfall_core::{Histogram, Install, Timestamp};

use super::Root;
use crate::admission::RootRun;
use crate::draft::Draft;
use crate::hold::LoadClass;

/// The frames of a root among the voters.
#[derive(Debug, Default)]
pub(super) struct Voted {
    is_leading: bool,
    /// Frames on which the voters have not agreed yet. Their number has the same limit as the
    /// frames that wait to be sent.
    proposed: VecDeque<Proposed>,
    /// How many of them the owner has taken.
    taken: usize,
    /// The frame and the message behind the last on which the voters agreed.
    agreed: (u64, u64),
    /// How long the voters took for the frames of this root.
    took: Histogram,
}

/// A frame on which the voters have not agreed yet.
#[derive(Debug)]
struct Proposed {
    draft: Draft,
    load: LoadClass,
    at: Timestamp,
}

impl Voted {
    pub(super) fn propose(&mut self, at: Timestamp, draft: Draft, load: LoadClass) {
        self.proposed.push_back(Proposed { draft, load, at });
    }

    /// Whether a frame under another key than this one waits for the voters. The oldest frame has
    /// the oldest key.
    pub(super) fn waits_under_another(&self, key_id: u8) -> bool {
        self.proposed.front().is_some_and(|oldest| oldest.draft.fixed().key_id != key_id)
    }

    /// The median and the 99th percentile of the time that the voters took, ns.
    pub(super) fn took_ns(&self) -> (u64, u64) {
        let quantile = |q| evenfall_core::time::nanos(self.took.quantile(q));
        (quantile(0.5), quantile(0.99))
    }
}

impl Root {
    /// Makes this a root that asks voters. It waits until it is told to [`stand`](Self::stand).
    pub fn voted(mut self) -> Self {
        self.voted = Some(Voted::default());
        self
    }

    /// Whether this root asks voters and does not lead. Such a root sends nothing and ignores all
    /// datagrams.
    pub fn is_waiting(&self) -> bool {
        self.voted.as_ref().is_some_and(|voted| !voted.is_leading)
    }

    /// Frames on which the voters have not agreed yet.
    pub(super) fn proposed(&self) -> usize {
        self.voted.as_ref().map_or(0, |voted| voted.proposed.len())
    }

    /// Leads the run from now on, or waits. A root that leads goes on behind the last frame on
    /// which the voters agreed, and nodes have to join it anew. Frames that were proposed before
    /// are forgotten, because the voters refuse them.
    pub fn stand(&mut self, now: Timestamp, run: RootRun, is_leading: bool) {
        let Voted { agreed, took, .. } = self.voted.take().unwrap_or_default();
        let mut config = self.config;
        // The hold of the last frame is a better beginning than the hold of an unknown tree.
        let hold = self.last_deadline.since(self.last_origin);
        let first = &mut config.deadline.hold_initial;
        *first = hold.max(*first).min(config.deadline.hold_max);
        let (who, seal) = ((self.me, self.stream), self.out.seal.clone());
        let mut next = Self::sealing(config, who, run, seal, now);
        next.config = self.config;
        if agreed.0 > 0 {
            // The nodes of the run are there already, or are gone.
            next.config.membership.expect_timeout = self.config.membership.silence;
        }
        next.admission.keep_guests(&mut self.admission);
        next.out.clock = self.out.clock;
        std::mem::swap(&mut next.ring, &mut self.ring);
        std::mem::swap(&mut next.events, &mut self.events);
        std::mem::swap(&mut next.installs, &mut self.installs);
        for group in [self.groups.0, self.groups.1] {
            next.installs.push_back(Install::Group(group, [].into()));
        }
        (next.next_frame, next.next_message) = agreed;
        (next.last_origin, next.last_deadline) = (self.last_origin, self.last_deadline);
        next.voted = Some(Voted { is_leading, agreed, took, ..Voted::default() });
        (next.signed, next.status.signatures) = (self.signed, self.status.signatures);
        next.rotation = self.rotation.take();
        next.stand_with_keys(now);
        next.succeed_chain(now, self.signing.take());
        *self = next;
    }

    /// The next frame that the voters shall agree on. The same frame is given until it is
    /// [taken](Self::drafted).
    pub fn poll_draft(&self) -> Option<Draft> {
        let voted = self.voted.as_ref()?;
        voted.proposed.get(voted.taken).map(|proposed| proposed.draft.clone())
    }

    /// The frame that [`poll_draft`](Self::poll_draft) gave is on its way to the voters.
    pub fn drafted(&mut self) {
        if let Some(voted) = &mut self.voted {
            voted.taken = (voted.taken + 1).min(voted.proposed.len());
        }
    }

    /// The voters have agreed on this frame. The root that proposed the frame sends it, and another
    /// root keeps it for repair.
    pub fn agreed(&mut self, now: Timestamp, draft: &Draft) {
        let Some(voted) = &mut self.voted else { return };
        let fixed = *draft.fixed();
        voted.agreed = (fixed.sequence + 1, fixed.first_message + u64::from(fixed.count));
        let body = draft.body();
        let own = voted.proposed.front().filter(|own| *own.draft.fixed() == fixed);
        if let Some((load, at)) = own.map(|own| (own.load, own.at)) {
            voted.took.record(now.since(at));
            voted.proposed.pop_front();
            voted.taken = voted.taken.saturating_sub(1);
            return self.send(now, fixed, body, load);
        }
        (self.next_frame, self.next_message) = voted.agreed;
        self.last_origin = self.last_origin.max(fixed.origin);
        self.last_deadline = self.last_deadline.max(fixed.deadline.unwrap_or_default());
        self.keep(fixed, 0, body);
    }
}
