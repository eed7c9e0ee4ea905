//! Live re-placement: finds the proxy that delays all receivers, puts a spare in its place, and
//! checks whether the change helped.
//!
//! The reports that flow up the tree for the deadline name the worst few hosts and edges of every
//! interval, so a straggler is seen without a single probe. Nothing tells in advance whether a
//! spare is faster, because no message was ever sent to the spare. The root therefore *tries* the
//! spare before it lets the straggler go:
//!
//! ```text
//!  blamed for `patience`        view in force            OML judged after `trial`
//!  ----------------------> fed, and feeding beside ------> helped: the straggler is let go
//!                          the straggler                   not: the spare steps back
//! ```
//!
//! While both feed, every child takes the first copy and drops the other. The overall latency (OML)
//! of that time *is* therefore the latency with the spare. The straggler leaves only when the
//! children do not need it any more. A spare that is slow, dead or cut off costs some duplicates
//! and nothing else.
//!
//! When no spare is left and `siblings` allows it, a sibling takes over the straggler's children in
//! the same way. During the trial the sibling then carries the load of both proxies.
//!
//! Three limits keep trials from doing harm. A host must be blamed in most reports for `patience`.
//! A pair that did not help is left alone for `cooldown`, and so is a host that was replaced. No
//! more than `per_minute` trials begin in a minute.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use evenfall_core::time::nanos;
use evenfall_core::{Histogram, NodeId, Timestamp};
use serde::Serialize;

use crate::config::Replace;
use crate::control::Worst;
use crate::tree::Tree;

/// Overall latencies that are remembered: half a second at the default rate of samples, and enough
/// for a 90th percentile at any rate.
const OMLS_MAX: usize = 1_024;
/// Samples that a 90th percentile needs. Fewer samples say nothing about it.
const OMLS_MIN: usize = 20;
/// The quantile of the overall latency by which trials are judged. It lies in the tail that sets
/// the deadline, and is still steady over half a second.
const QUANTILE: f64 = 0.9;
/// A trial without samples ends after this many times its length, because the feed may have
/// stopped.
const TRIAL_STRETCH: u32 = 8;
/// The quantile of all first arrivals that counts as a quick path. A quarter of the paths are free
/// of the straggler, even when half of all receivers are behind it.
const QUICK_QUANTILE: f64 = 0.25;
/// Rounds whose arrivals are remembered. A trial has ten rounds by default.
const ROUNDS_MAX: usize = 64;
/// The span in which trials are counted.
const MINUTE: Duration = Duration::from_secs(60);
/// Pairs that did not help and are remembered. The oldest pairs are forgotten first.
const FAILED_MAX: usize = 256;

/// One round of reports, summarised.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    /// The worst few edges and hosts.
    pub worst: &'a [Worst],
    /// Time of a hop on the quick paths, ns.
    pub hop_ns: u64,
    /// The overall latency by which trials are judged, ns.
    pub oml_ns: u64,
    /// Largest error of the difference of two hosts' clocks, ns.
    pub clock_error_ns: u64,
}

/// A proxy that delays all receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Straggler {
    /// The proxy.
    pub node: NodeId,
    /// The mean of its worst edge, ns.
    pub edge_ns: u64,
}

/// Names the proxies that delay all receivers, the worst first.
///
/// An edge is slow when three things hold: its mean is `slow_factor` times a quick hop; its excess
/// is at least `gain_min` of the overall latency, and more than the clocks may be wrong; and it
/// shows in the overall latency, which it does not where a hedge comes first. The other edges tell
/// which end is at fault. Several slow edges from one proxy are the fault of that sender. Several
/// slow edges to one node are the fault of that node. A single slow edge is the fault of the
/// receiving proxy. A slow receiver is left out, since no spare can replace it.
pub fn stragglers(round: &Round<'_>, tree: &Tree, rules: &Replace) -> Vec<Straggler> {
    let quick_path = round.hop_ns * u64::from(tree.depth());
    let slow = |w: &&Worst| {
        let (mean, hop) = (u64::from(w.mean_ns), round.hop_ns);
        let excess = mean.saturating_sub(hop);
        mean as f64 >= hop as f64 * rules.slow_factor
            && excess as f64 >= round.oml_ns as f64 * rules.gain_min
            && (w.from == w.to || excess > round.clock_error_ns)
            && round.oml_ns >= quick_path + excess / 2
    };
    let edges: Vec<&Worst> = round.worst.iter().filter(slow).collect();
    let (mut into, mut out) = (BTreeMap::new(), BTreeMap::new());
    for edge in edges.iter().filter(|edge| edge.from != edge.to) {
        *into.entry(edge.to).or_insert(0) += 1;
        *out.entry(edge.from).or_insert(0) += 1;
    }
    let blamed = |edge: &Worst| {
        let near = tree.neighbours(edge.from);
        let fanout = near.children.len() + near.nieces.len();
        let slow = out.get(&edge.from).copied().unwrap_or(0);
        if edge.from == edge.to || into[&edge.to] > 1 {
            Some(edge.to)
        } else if tree.is_replaceable(edge.from) && (slow > 1 || fanout == 1) {
            Some(edge.from)
        } else if slow > 1 && 2 * slow > fanout {
            // The edges of the root are slow to most nodes, and the root cannot be replaced.
            None
        } else {
            Some(edge.to)
        }
    };
    let mut worst = BTreeMap::new();
    for edge in &edges {
        if let Some(node) = blamed(edge).filter(|node| tree.is_replaceable(*node)) {
            let edge_ns: &mut u64 = worst.entry(node).or_default();
            *edge_ns = (*edge_ns).max(edge.mean_ns.into());
        }
    }
    let mut found: Vec<_> =
        worst.into_iter().map(|(node, edge_ns)| Straggler { node, edge_ns }).collect();
    found.sort_by_key(|straggler| core::cmp::Reverse(straggler.edge_ns));
    found
}

/// The step that a replacement has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplacementStep {
    /// The spare is fed, and feeds beside the straggler.
    Tried,
    /// The spare helped, and the straggler was let go.
    Made,
    /// The spare did not help, and steps back.
    RolledBack,
    /// One of the two nodes left, or the tree was built anew.
    Abandoned,
}

/// A proxy and the spare, or sibling, that stands in for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Replacement {
    /// The straggler.
    pub old: NodeId,
    /// The spare or sibling that takes the place.
    pub new: NodeId,
    /// The step that it has reached.
    pub step: ReplacementStep,
    /// Mean of the straggler's worst edge when the trial began, ns.
    pub edge_ns: u64,
    /// Time of a quick hop when the trial began, ns.
    pub hop_ns: u64,
    /// 90th percentile of the OML before the trial, ns.
    pub oml_before_ns: u64,
    /// 90th percentile of the overall latency while both fed, ns; zero when it is unknown.
    pub oml_after_ns: u64,
}

/// Counts of trials in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replacements {
    /// Trials begun.
    pub tried: u64,
    /// Trials that ended with the straggler let go.
    pub made: u64,
    /// Trials that ended with the spare stepping back.
    pub rolled_back: u64,
}

/// A trial under way.
#[derive(Clone, Copy, Debug)]
struct Trial {
    replacement: Replacement,
    /// Mean delay of first arrivals before the trial, ns.
    mean_before_ns: u64,
    began: Timestamp,
    /// When both began to feed, and the first frame that both got.
    feeding: Option<(Timestamp, u64)>,
}

/// The latest measurements.
#[derive(Clone, Debug, Default)]
struct Lately {
    /// The latest samples: when each became known, its frame and its overall latency.
    omls: VecDeque<(Timestamp, u64, u32)>,
    /// The latest rounds: the end of each, its first arrivals, and the sum of their delays.
    arrivals: VecDeque<(Timestamp, u64, u64)>,
}

impl Lately {
    fn slide(&mut self, now: Timestamp, span: Duration) {
        let old = |at: Timestamp| now.since(at) > span;
        while self.omls.len() > OMLS_MIN && self.omls.front().is_some_and(|(at, ..)| old(*at)) {
            self.omls.pop_front();
        }
        while self.arrivals.len() > ROUNDS_MAX
            || self.arrivals.front().is_some_and(|(at, ..)| old(*at))
        {
            self.arrivals.pop_front();
        }
    }

    /// The overall latency of the frames from this one on; `None` when there are too few samples.
    fn oml_ns(&self, from: u64) -> Option<u64> {
        let since = self.omls.iter().filter(|(_, sequence, _)| *sequence >= from);
        let mut omls: Vec<u32> = since.map(|(.., oml)| *oml).collect();
        if omls.len() < OMLS_MIN {
            return None;
        }
        omls.sort_unstable();
        evenfall_core::nearest_rank(&omls, QUANTILE).map(u64::from)
    }

    /// The mean delay of first arrivals in rounds that ended after this time.
    fn mean_ns(&self, after: Timestamp) -> Option<u64> {
        let since = self.arrivals.iter().filter(|(at, ..)| *at > after);
        let sum = |(count, sum): (u64, u64), round: &(Timestamp, u64, u64)| {
            (u64::saturating_add(count, round.1), sum.saturating_add(round.2))
        };
        let (count, sum) = since.fold((0, 0), sum);
        sum.checked_div(count)
    }
}

/// Watches the rounds of reports and decides the next step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    /// By proxy, the rounds that blamed it minus the rounds that did not.
    blame: BTreeMap<NodeId, u32>,
    lately: Lately,
    trial: Option<Trial>,
    /// Times at which the trials of the last minute began.
    begun: VecDeque<Timestamp>,
    /// Pairs that did not help, with the time of that finding.
    failed: BTreeMap<(NodeId, NodeId), Timestamp>,
    pub counts: Replacements,
}

/// The root's knowledge after a round of reports.
pub(crate) struct Known<'a> {
    pub worst: &'a [Worst],
    /// Delays of first arrivals.
    pub delays: &'a Histogram,
    pub tree: &'a Tree,
    pub rules: &'a Replace,
    /// Time between two rounds.
    pub interval: Duration,
    pub clock_error_ns: u64,
    /// Whether a spare may be tried.
    pub usable: &'a dyn Fn(NodeId) -> bool,
    /// Whether no other change of the tree is under way.
    pub settled: bool,
}

impl Watch {
    /// The overall latency of a frame became known.
    pub(crate) fn observe(&mut self, now: Timestamp, sequence: u64, oml_ns: u32) {
        self.lately.omls.push_back((now, sequence, oml_ns));
        if self.lately.omls.len() > OMLS_MAX {
            self.lately.omls.pop_front();
        }
    }

    /// A view came into force in which these two feed side by side, from this frame on.
    pub(crate) fn feeding(&mut self, now: Timestamp, pair: (NodeId, NodeId), next_frame: u64) {
        if let Some(trial) = &mut self.trial
            && (trial.replacement.old, trial.replacement.new) == pair
        {
            trial.feeding.get_or_insert((now, next_frame));
        }
    }

    /// The step to take after a round of reports, if any.
    pub(crate) fn round(&mut self, now: Timestamp, known: &Known<'_>) -> Option<Replacement> {
        let (count, sum) = known.delays.occupied().fold((0, 0), |(count, sum), (bucket, n)| {
            let delay_ns = nanos(Histogram::upper_edge(bucket)).saturating_mul(n);
            (u64::saturating_add(count, n), u64::saturating_add(sum, delay_ns))
        });
        self.lately.arrivals.push_back((now, count, sum));
        self.lately.slide(now, known.rules.patience.max(known.rules.trial));
        if self.trial.is_some() { self.judge(now, known) } else { self.choose(now, known) }
    }

    fn choose(&mut self, now: Timestamp, known: &Known<'_>) -> Option<Replacement> {
        let Known { worst, tree, rules, .. } = *known;
        let oml_ns = self.lately.oml_ns(0)?;
        let path_ns = nanos(known.delays.quantile(QUICK_QUANTILE));
        let hop_ns = path_ns / u64::from(tree.depth().max(1));
        if hop_ns == 0 || worst.is_empty() {
            return None;
        }
        let clock_error_ns = known.clock_error_ns;
        let round = Round { worst, hop_ns, oml_ns, clock_error_ns };
        let found = stragglers(&round, tree, rules);
        // Reports name the worst few only, so that a straggler may be missing from one. Such a
        // round takes one round of blame away, not all.
        self.blame.retain(|node, rounds| {
            *rounds -= u32::from(found.iter().all(|found| found.node != *node));
            *rounds > 0
        });
        let patience = (rules.patience.as_nanos() / known.interval.as_nanos().max(1)).max(1) as u32;
        for straggler in &found {
            let rounds = self.blame.entry(straggler.node).or_default();
            // Without the limit, a host that was slow for long would be blamed long after it is
            // well.
            *rounds = (*rounds + 1).min(2 * patience);
        }
        let ripe = |straggler: &&Straggler| self.blame[&straggler.node] >= patience;
        let Straggler { node: old, edge_ns } =
            *found.iter().find(ripe).filter(|_| known.settled)?;
        self.failed.retain(|_, at| now.since(*at) < rules.cooldown);
        let may = |new: &NodeId| (known.usable)(*new) && !self.failed.contains_key(&(old, *new));
        let spare = tree.spares().iter().copied().find(may);
        let free = |new: &NodeId| may(new) && found.iter().all(|found| found.node != *new);
        let sibling = || {
            let siblings = tree.siblings(old).filter(|_| rules.siblings).filter(free);
            siblings.min_by_key(|sibling| tree.receivers_below(*sibling))
        };
        // A spare first: it serves nobody, while a sibling carries the load of two proxies.
        let new = spare.or_else(sibling)?;
        while self.begun.front().is_some_and(|at| now.since(*at) >= MINUTE) {
            self.begun.pop_front();
        }
        if self.begun.len() >= rules.per_minute as usize {
            return None;
        }
        self.begun.push_back(now);
        let oml_before_ns = oml_ns;
        let replacement = Replacement {
            old,
            new,
            step: ReplacementStep::Tried,
            edge_ns,
            hop_ns,
            oml_before_ns,
            oml_after_ns: 0,
        };
        let mean_before_ns = self.lately.mean_ns(Timestamp::ZERO).unwrap_or(0);
        self.trial = Some(Trial { replacement, mean_before_ns, began: now, feeding: None });
        self.blame.clear();
        self.counts.tried += 1;
        Some(replacement)
    }

    fn judge(&mut self, now: Timestamp, known: &Known<'_>) -> Option<Replacement> {
        let Known { tree, rules, .. } = *known;
        let trial = self.trial?;
        let mut replacement = trial.replacement;
        let pair = (replacement.old, replacement.new);
        let step = if tree.overlap() != Some(pair) {
            ReplacementStep::Abandoned
        } else {
            let after = trial.feeding.and_then(|(_, first)| self.lately.oml_ns(first));
            replacement.oml_after_ns = after.unwrap_or(0);
            let ripe = trial.feeding.is_some_and(|(since, _)| now.since(since) >= rules.trial);
            match after {
                Some(_) if ripe && self.helped(now, &trial, &replacement, known) => {
                    ReplacementStep::Made
                }
                Some(_) if ripe => ReplacementStep::RolledBack,
                _ if now.since(trial.began) >= rules.trial * TRIAL_STRETCH => {
                    ReplacementStep::RolledBack
                }
                _ => return None,
            }
        };
        self.trial = None;
        match step {
            ReplacementStep::Made => self.counts.made += 1,
            ReplacementStep::RolledBack => self.did_not_help(now, pair),
            ReplacementStep::Tried | ReplacementStep::Abandoned => {}
        }
        // Measurements with both nodes feeding say nothing about the time after it.
        self.lately = Lately::default();
        Some(Replacement { step, ..replacement })
    }

    /// Whether the overall latency fell by the wanted share. It cannot fall while another straggler
    /// delays all receivers. In that case the receivers below must have gained at least half of the
    /// delay of the slow edge.
    fn helped(&self, now: Timestamp, trial: &Trial, end: &Replacement, known: &Known<'_>) -> bool {
        let wanted = end.oml_before_ns as f64 * (1.0 - known.rules.gain_min);
        let below = known.tree.receivers_below(end.old) as u64;
        let all = known.tree.receivers_below(known.tree.root()).max(1) as u64;
        let cost_ns = end.edge_ns.saturating_sub(end.hop_ns) * below / all;
        // Only the second half of the trial counts, because reports take some rounds to come up.
        let mean_ns = self.lately.mean_ns(now - known.rules.trial / 2);
        let gained = mean_ns.is_some_and(|mean| mean + cost_ns / 2 <= trial.mean_before_ns);
        end.oml_after_ns as f64 <= wanted || gained
    }

    fn did_not_help(&mut self, now: Timestamp, pair: (NodeId, NodeId)) {
        self.counts.rolled_back += 1;
        self.failed.insert(pair, now);
        while self.failed.len() > FAILED_MAX {
            let oldest = self.failed.iter().min_by_key(|(_, at)| **at).map(|(pair, _)| *pair);
            oldest.and_then(|pair| self.failed.remove(&pair));
        }
    }
}

#[cfg(test)]
mod tests;
