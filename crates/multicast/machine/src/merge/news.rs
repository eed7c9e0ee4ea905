//! Figures of single nodes on their way up, and the delays behind a node's own figures.

use core::time::Duration;
use std::collections::BTreeMap;

use evenfall_core::{Histogram, NodeId, Timestamp};

use crate::control::MemberFigures;
use crate::members::MEMBERS_MAX;

/// The newest figures of the nodes below that have not gone up yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemberNews {
    /// By node, the figures and when they came.
    waiting: BTreeMap<NodeId, (MemberFigures, Timestamp)>,
}

/// The age of figures that have waited here since `since`.
fn with_age(figures: &MemberFigures, since: Timestamp, now: Timestamp) -> MemberFigures {
    let waited = u32::try_from(now.since(since).as_millis()).unwrap_or(u32::MAX);
    MemberFigures { age_ms: figures.age_ms.saturating_add(waited), ..*figures }
}

impl MemberNews {
    /// Takes figures in. Older figures of the same node are dropped.
    pub(crate) fn hear(&mut self, now: Timestamp, told: &[MemberFigures]) {
        for figures in told {
            let known = self.waiting.get(&figures.id);
            let is_older =
                known.is_some_and(|(known, at)| with_age(known, *at, now).age_ms < figures.age_ms);
            if !is_older && (known.is_some() || self.waiting.len() < MEMBERS_MAX) {
                self.waiting.insert(figures.id, (*figures, now));
            }
        }
    }

    /// Hands out all figures, the oldest first, so that nodes go up in turn.
    pub(crate) fn take_all(&mut self, now: Timestamp) -> Vec<MemberFigures> {
        let waiting = core::mem::take(&mut self.waiting).into_values();
        let mut all: Vec<_> = waiting.map(|(figures, at)| with_age(&figures, at, now)).collect();
        all.sort_by_key(|figures| core::cmp::Reverse(figures.age_ms));
        all
    }
}

/// Half of the window of a node's own percentiles. A percentile covers between one and two of these
/// spans.
const HALF_WINDOW: Duration = Duration::from_millis(500);

/// The delays of the last second.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecentDelays {
    halves: [Histogram; 2],
    turned: Timestamp,
}

impl RecentDelays {
    /// When the present half began.
    pub(crate) fn turned(&self) -> Timestamp {
        self.turned
    }

    /// Adds the delays of the interval that ends now. Returns the delays of the whole window.
    pub(crate) fn end_interval(&mut self, now: Timestamp, delays: &Histogram) -> Histogram {
        self.halves[0].merge(delays);
        let mut both = self.halves[0].clone();
        both.merge(&self.halves[1]);
        if now.since(self.turned) >= HALF_WINDOW {
            self.turned = now;
            self.halves.swap(0, 1);
            self.halves[0].clear();
        }
        both
    }
}
