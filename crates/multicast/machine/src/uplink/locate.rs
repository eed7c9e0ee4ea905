//! A late joiner asks recorders for the frame with which it begins.

use std::collections::BTreeSet;

use evenfall_core::{NodeId, Timestamp};

use super::{News, Uplink};
use crate::control::{Begin, Located, Peer};
use crate::wire::DatagramKind;

/// A late joiner that waits for the frame with which it begins.
#[derive(Clone, Debug)]
pub(super) struct Locating {
    pub(super) until: Timestamp,
    pub(super) next_ask: Timestamp,
    asks: usize,
    /// The earliest frame and message that a recorder has named so far.
    found: Option<(u64, u64)>,
    answered: BTreeSet<NodeId>,
}

impl Uplink {
    pub(super) fn begin_to_locate(&mut self, now: Timestamp) {
        let until = now + self.config.repair.locate_timeout;
        self.locating.get_or_insert_with(|| {
            let (asks, found, answered) = (0, None, BTreeSet::new());
            Box::new(Locating { until, next_ask: now, asks, found, answered })
        });
    }

    pub(super) fn locate(&mut self, now: Timestamp) -> Option<News> {
        let locating = self.locating.as_mut()?;
        if locating.until <= now {
            let found = locating.found;
            self.locating = None;
            return Some(News::Located(found));
        }
        if locating.next_ask <= now {
            locating.next_ask = now + self.config.membership.join_retry;
            locating.asks += 1;
            let silent = |peer: &&Peer| !locating.answered.contains(&peer.id);
            let asked: Vec<_> = self.recorders.iter().filter(silent).collect();
            if let Some(recorder) = asked.get(locating.asks % asked.len().max(1)) {
                self.out.control_to(**recorder, DatagramKind::Locate, self.begin.encode());
            }
        }
        None
    }

    /// A recorder named the frame to begin with. A recorder that was started later has fewer
    /// frames, so the earliest frame that any recorder names counts. A recorder without frames is
    /// asked again.
    pub(super) fn on_located(&mut self, from: NodeId, located: Located) -> Option<News> {
        let locating = self.locating.as_mut().filter(|_| located.begin == self.begin)?;
        let at = located.at?;
        locating.answered.insert(from);
        let found = locating.found.map_or(at, |found| found.min(at));
        locating.found = Some(found);
        let whole = match self.begin {
            Begin::Message(number) => found.1 <= number,
            _ => found.0 == 0,
        };
        let all = self.recorders.iter().all(|peer| locating.answered.contains(&peer.id));
        (whole || all).then(|| {
            self.locating = None;
            News::Located(Some(found))
        })
    }
}
