//! Measured one-way delays between named hosts, per ordered pair.
//!
//! A pair is known by its percentiles, its spread and its loss. The samples are not kept, because
//! 25 hosts at 10,000 probes a second would give gigabytes. An unknown value is not a number
//! (`NaN`), so that it is never mistaken for a good value. A pair without statistics is an edge
//! that cannot be used.

mod clocks;
mod files;
mod stats;

pub use files::{BadFile, Loaded, SKIPPED_MAX, SkippedRow};
pub use stats::{DelayStatistic, EdgeStats};

use crate::tree::PlacedTree;

/// Hosts that a pool may have. 10,000 hosts are 100 million pairs, with 4.8 GB of statistics.
pub const HOSTS_MAX: usize = 10_000;

/// Named hosts and the statistics of every ordered pair that can be used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DelayMatrix {
    names: Vec<String>,
    /// By sender times the number of hosts plus receiver.
    stats: Vec<Option<EdgeStats>>,
}

impl DelayMatrix {
    /// A pool without measured delays.
    ///
    /// # Panics
    /// When there are more than [`HOSTS_MAX`] hosts.
    pub fn new(names: Vec<String>) -> Self {
        assert!(names.len() <= HOSTS_MAX, "{} hosts, {HOSTS_MAX} at most", names.len());
        let stats = vec![None; names.len() * names.len()];
        Self { names, stats }
    }

    /// A pool in which the delay of every pair is constant: `owd_us(from, to)`, in microseconds.
    pub fn from_fn(names: Vec<String>, owd_us: impl Fn(usize, usize) -> f64) -> Self {
        let mut delays = Self::new(names);
        for from in 0..delays.hosts() {
            for to in (0..delays.hosts()).filter(|&to| to != from) {
                delays.set(from, to, Some(EdgeStats::constant(owd_us(from, to))));
            }
        }
        delays
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.names.len()
    }

    /// Names of the hosts, by number.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The number of a host.
    pub fn host(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    /// The statistics from one host to another; `None` when the edge cannot be used.
    pub fn edge(&self, from: usize, to: usize) -> Option<&EdgeStats> {
        self.stats[from * self.hosts() + to].as_ref()
    }

    /// Replaces the statistics of an edge. A host has no edge to itself, so a call for such an edge
    /// does nothing.
    pub fn set(&mut self, from: usize, to: usize, stats: Option<EdgeStats>) {
        let hosts = self.hosts();
        if from != to {
            self.stats[from * hosts + to] = stats;
        }
    }

    /// Edges that can be used.
    pub fn edges(&self) -> usize {
        self.stats.iter().flatten().count()
    }

    /// Whether every usable edge has this statistic.
    pub fn has(&self, field: DelayStatistic) -> bool {
        self.stats.iter().flatten().all(|stats| !stats.field(field).is_nan())
    }
}

/// The hosts that a plan may use, numbered from 0, and the delays between them.
///
/// Delays may include hosts that died after they were measured. Planners work with the numbers of a
/// pool, so a host outside the pool has no number that a planner could choose.
#[derive(Clone, Copy, Debug)]
pub struct HostPool<'a> {
    delays: &'a DelayMatrix,
    hosts: &'a [usize],
}

impl<'a> HostPool<'a> {
    /// The pool of these hosts, out of all measured hosts.
    pub fn new(delays: &'a DelayMatrix, hosts: &'a [usize]) -> Self {
        Self { delays, hosts }
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// The statistics from one host to another, both by their numbers in the pool.
    pub fn edge(&self, from: usize, to: usize) -> Option<&'a EdgeStats> {
        self.delays.edge(self.hosts[from], self.hosts[to])
    }

    /// The number in the pool of a host of the delays.
    pub fn number(&self, host: usize) -> Option<usize> {
        self.hosts.iter().position(|known| *known == host)
    }

    /// The tree of the pool as a tree of the delays' hosts.
    pub fn named(&self, tree: &PlacedTree) -> PlacedTree {
        let host = |number: &usize| self.hosts[*number];
        PlacedTree::new(tree.shape(), tree.hosts().iter().map(host).collect())
    }

    /// The tree of the delays' hosts as a tree of the pool; `None` when the pool lacks one of them.
    pub fn numbered(&self, tree: &PlacedTree) -> Option<PlacedTree> {
        let numbers: Option<Vec<usize>> =
            tree.hosts().iter().map(|&host| self.number(host)).collect();
        Some(PlacedTree::new(tree.shape(), numbers?))
    }
}

#[cfg(test)]
mod tests;
