//! Reports on their way up: what a receiver measures, and how proxies and the root merge it.
//!
//! Per sampled frame the tree takes the maximum over receivers, so that the root learns the true
//! overall latency (OML) of those frames: percentiles of single receivers would not tell it, since
//! what counts is whether *all* had a message in time.

use core::time::Duration;
use std::collections::BTreeMap;

use evenfall_core::time::nanos;
use evenfall_core::{Histogram, NodeId, Timestamp};

use crate::control::{Report, SAMPLES_MAX, Sample, Tally, WORST_MAX, Worst};

/// Samples that may wait for further children: one second at the default rate.
const PENDING_MAX: usize = 2_048;
/// The 95th percentile covers between one and two of these.
const P95_WINDOW: Duration = Duration::from_millis(500);

pub(crate) fn saturating_ns(duration: Duration) -> u32 {
    u32::try_from(nanos(duration)).unwrap_or(u32::MAX)
}

/// Copies that one neighbour sent, or stays of frames inside this host, in one interval.
#[derive(Clone, Copy, Debug, Default)]
struct Track {
    count: u64,
    sum_ns: u64,
    max_ns: u64,
}

impl Track {
    fn record(&mut self, delay: Duration) {
        self.count += 1;
        self.sum_ns += nanos(delay);
        self.max_ns = self.max_ns.max(nanos(delay));
    }

    fn worst(&self, from: NodeId, to: NodeId) -> Option<Worst> {
        let mean = self.sum_ns.checked_div(self.count)?;
        let narrow = |ns: u64| u32::try_from(ns).unwrap_or(u32::MAX);
        Some(Worst { from, to, mean_ns: narrow(mean), max_ns: narrow(self.max_ns) })
    }
}

/// Delays of the edges that lead to this node, and of the node itself. Duplicates count too: they
/// are timed before they are dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edges {
    edges: Vec<(NodeId, Track)>,
    inside: Track,
}

/// Neighbours timed at once: parent and aunts of two places, and the root.
const EDGES_MAX: usize = 64;

impl Edges {
    pub(crate) fn arrived(&mut self, from: NodeId, delay: Duration) {
        if let Some((_, track)) = self.edges.iter_mut().find(|(node, _)| *node == from) {
            track.record(delay);
        } else if self.edges.len() < EDGES_MAX {
            let mut track = Track::default();
            track.record(delay);
            self.edges.push((from, track));
        }
    }

    pub(crate) fn stayed(&mut self, delay: Duration) {
        self.inside.record(delay);
    }

    /// The interval's tracks; a new interval begins.
    fn take(&mut self, me: NodeId, into: &mut Vec<Worst>) {
        into.extend(self.edges.iter().filter_map(|(from, track)| track.worst(*from, me)));
        into.extend(self.inside.worst(me, me));
        self.edges.clear();
        self.inside = Track::default();
    }
}

/// Keeps the few entries with the largest mean.
fn keep_worst(worst: &mut Vec<Worst>) {
    worst.sort_unstable_by_key(|w| (core::cmp::Reverse(w.mean_ns), w.from, w.to));
    worst.truncate(WORST_MAX);
}

/// What one receiver measures.
#[derive(Clone, Debug, Default)]
pub(crate) struct Margins {
    pub tally: Tally,
    samples: Vec<Sample>,
    delays: Histogram,
    /// Two halves of the sliding window of the 95th percentile.
    recent: [Histogram; 2],
    turned: Timestamp,
}

impl Margins {
    /// A frame arrived for the first time, `delay` after the root sent it.
    pub(crate) fn arrived(&mut self, sequence: u64, delay: Duration, sampled: bool) {
        self.delays.record(delay);
        if sampled && self.samples.len() < SAMPLES_MAX {
            self.samples.push(Sample { sequence, latest_ns: saturating_ns(delay), receivers: 1 });
        }
    }

    /// The root started anew: what was measured of its last run is not told to the new one.
    pub(crate) fn restart(&mut self) {
        self.tally = Tally { receivers: 1, ..Tally::default() };
        self.samples.clear();
        self.delays.clear();
    }

    /// The report of the interval that ends now.
    pub(crate) fn take(&mut self, now: Timestamp, me: NodeId, edges: &mut Edges) -> Report {
        self.recent[0].merge(&self.delays);
        let mut both = self.recent[0].clone();
        both.merge(&self.recent[1]);
        if now.since(self.turned) >= P95_WINDOW {
            self.turned = now;
            self.recent.swap(0, 1);
            self.recent[0].clear();
        }
        let mut worst = Vec::new();
        edges.take(me, &mut worst);
        keep_worst(&mut worst);
        Report {
            tally: self.tally,
            p95_ns: saturating_ns(both.quantile(0.95)),
            samples: core::mem::take(&mut self.samples),
            worst,
            delays: core::mem::take(&mut self.delays),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Child {
    heard: Timestamp,
    /// It has nobody below it, whatever it said when it had.
    is_spare: bool,
    /// The last report's cumulative part, if there was one since it was last forgotten.
    last: Option<(Tally, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    latest_ns: u32,
    receivers: u32,
    since: Timestamp,
}

/// Merges the reports of the children.
#[derive(Clone, Debug, Default)]
pub(crate) struct Merger {
    children: BTreeMap<NodeId, Child>,
    pending: BTreeMap<u64, Pending>,
    worst: Vec<Worst>,
    delays: Histogram,
}

impl Merger {
    /// From now on exactly these report. Known ones keep what they said, but what a spare said when
    /// it had children is for others to say now.
    pub(crate) fn expect(
        &mut self,
        now: Timestamp,
        children: impl Iterator<Item = NodeId>,
        spares: impl Iterator<Item = NodeId>,
    ) {
        let old = core::mem::take(&mut self.children);
        let all = children.map(|id| (id, false)).chain(spares.map(|id| (id, true)));
        for (id, is_spare) in all {
            let (heard, last) = old.get(&id).map_or((now, None), |child| (child.heard, child.last));
            self.children.insert(id, Child { heard, is_spare, last });
        }
    }

    /// Those with somebody below them.
    fn parents(&self) -> impl Iterator<Item = &Child> {
        self.children.values().filter(|child| !child.is_spare)
    }

    /// Takes a report in; `false` when its sender is not a child.
    pub(crate) fn absorb(&mut self, now: Timestamp, from: NodeId, report: &Report) -> bool {
        let Some(child) = self.children.get_mut(&from) else { return false };
        (child.heard, child.last) = (now, Some((report.tally, report.p95_ns)));
        self.delays.merge(&report.delays);
        self.worst.extend_from_slice(&report.worst);
        keep_worst(&mut self.worst);
        for s in &report.samples {
            let fresh = Pending { latest_ns: 0, receivers: 0, since: now };
            let pending = self.pending.entry(s.sequence).or_insert(fresh);
            pending.latest_ns = pending.latest_ns.max(s.latest_ns);
            pending.receivers = pending.receivers.saturating_add(s.receivers);
        }
        while self.pending.len() > PENDING_MAX {
            self.pending.pop_first();
        }
        true
    }

    /// A child said something that is not a report.
    pub(crate) fn heard(&mut self, now: Timestamp, from: NodeId) {
        if let Some(child) = self.children.get_mut(&from) {
            child.heard = now;
        }
    }

    /// Children silent for longer than this. Each is named again only after another such time, and
    /// what it said is forgotten.
    pub(crate) fn silent(&mut self, now: Timestamp, silence: Duration) -> Vec<NodeId> {
        let mut silent = Vec::new();
        for (id, child) in &mut self.children {
            if now.since(child.heard) >= silence {
                (child.heard, child.last) = (now, None);
                silent.push(*id);
            }
        }
        silent
    }

    /// Sum over the children that are heard of.
    pub(crate) fn tally(&self) -> Tally {
        let mut sum = Tally::default();
        self.parents().filter_map(|c| c.last).for_each(|(tally, _)| sum.add(&tally));
        sum
    }

    /// The merged report of the interval that ends now. Samples that lack receivers wait for
    /// `patience` first.
    pub(crate) fn take(&mut self, now: Timestamp, patience: Duration) -> Report {
        let tally = self.tally();
        let all_heard = self.parents().all(|c| c.last.is_some());
        let p95_ns = self.parents().filter_map(|c| c.last).map(|(_, p)| p).max();
        let mut samples = Vec::new();
        self.pending.retain(|&sequence, p| {
            let whole = all_heard && p.receivers >= tally.receivers;
            let ripe = whole || now.since(p.since) >= patience;
            if ripe && samples.len() < SAMPLES_MAX {
                let (latest_ns, receivers) = (p.latest_ns, p.receivers);
                samples.push(Sample { sequence, latest_ns, receivers });
                return false;
            }
            true
        });
        Report {
            tally,
            p95_ns: p95_ns.unwrap_or(0),
            samples,
            worst: core::mem::take(&mut self.worst),
            delays: core::mem::take(&mut self.delays),
        }
    }

    /// Adds this node's own edges to what goes up next.
    pub(crate) fn add_edges(&mut self, me: NodeId, edges: &mut Edges) {
        edges.take(me, &mut self.worst);
        keep_worst(&mut self.worst);
    }
}

#[cfg(test)]
mod tests {
    use core::iter::{empty, once};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(100);

    fn report(receivers: u32, samples: &[(u64, u32)]) -> Report {
        let mut report = Report { p95_ns: 10 * receivers, ..Report::default() };
        report.tally.receivers = receivers;
        let sample = |&(sequence, latest_ns)| Sample { sequence, latest_ns, receivers };
        report.samples = samples.iter().map(sample).collect();
        report
    }

    #[test]
    fn a_sample_goes_up_when_all_receivers_are_in_or_patience_ends() {
        let mut merger = Merger::default();
        let now = Timestamp::from_nanos(1);
        merger.expect(now, [NodeId(1), NodeId(2)].into_iter(), empty());
        assert!(merger.absorb(now, NodeId(1), &report(2, &[(7, 50), (8, 90)])));
        assert!(merger.take(now, PATIENCE).samples.is_empty());
        assert!(merger.absorb(now, NodeId(2), &report(3, &[(7, 70)])));
        let merged = merger.take(now, PATIENCE);
        assert_eq!(merged.samples, [Sample { sequence: 7, latest_ns: 70, receivers: 5 }]);
        assert_eq!((merged.p95_ns, merged.tally.receivers), (30, 5));
        let late = merger.take(now + PATIENCE, PATIENCE);
        assert_eq!(late.samples, [Sample { sequence: 8, latest_ns: 90, receivers: 2 }]);
    }

    #[test]
    fn a_report_from_a_stranger_is_refused_and_a_silent_child_is_forgotten() {
        let mut merger = Merger::default();
        let now = Timestamp::from_nanos(1);
        merger.expect(now, [NodeId(1), NodeId(2)].into_iter(), empty());
        assert!(!merger.absorb(now, NodeId(9), &report(9, &[])));
        merger.absorb(now, NodeId(1), &report(2, &[]));
        merger.absorb(now, NodeId(2), &report(3, &[]));
        let later = now + PATIENCE;
        merger.absorb(later, NodeId(1), &report(2, &[]));
        assert_eq!(merger.silent(later, PATIENCE), [NodeId(2)]);
        assert!(merger.silent(later, PATIENCE).is_empty(), "named once per silence");
        assert_eq!(merger.tally().receivers, 2);
        assert_eq!(merger.take(later, PATIENCE).p95_ns, 20, "no longer the forgotten child's");
    }

    #[test]
    fn receivers_that_moved_away_from_a_spare_are_counted_once() {
        let (now, mut merger) = (Timestamp::ZERO, Merger::default());
        merger.expect(now, [NodeId(1), NodeId(2)].into_iter(), empty());
        merger.absorb(now, NodeId(1), &report(2, &[]));
        merger.absorb(now, NodeId(2), &report(3, &[]));
        merger.expect(now, [NodeId(3), NodeId(2)].into_iter(), once(NodeId(1)));
        merger.absorb(now, NodeId(3), &report(2, &[]));
        assert_eq!(merger.tally().receivers, 5);
        merger.absorb(now, NodeId(1), &report(2, &[]));
        assert_eq!(merger.tally().receivers, 5, "sent before it knew");
    }
}
