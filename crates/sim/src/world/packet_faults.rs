//! Troubles of packets besides the random faults of the network: losses in bursts, and packets that
//! come long after they were given up.
//!
//! The world does both for every network, as it does partitions. A packet that a burst swallows
//! never enters the network, and a late packet has passed the network already. Neither takes
//! room in a queue of the network.

use core::time::Duration;
use std::collections::BTreeMap;

use evenfall_core::time::nanos;
use evenfall_core::{Prng, math};

use crate::SimTime;

/// Losses in bursts, after Gilbert (1960) and Elliott (1963), in time instead of in packets: the
/// way from one node to another is good or bad by turns, and loses packets while it is bad. Each
/// way has turns of its own. The lengths of turns are exponential, so that a path loses the same
/// share of a slow feed and of a fast one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bursts {
    /// Mean length of a good turn.
    pub good: Duration,
    /// Mean length of a bad turn; zero of a network without bursts.
    pub bad: Duration,
    /// Share of packets that are lost in a bad turn.
    pub loss: f64,
}

impl Bursts {
    /// Lengths and a share up to these. A good turn has at least a tenth of its longest mean, so
    /// that something still arrives.
    pub(crate) fn drawn(&self, prng: &mut Prng) -> Self {
        Self {
            good: self.good.mul_f64(0.1 + 0.9 * prng.unit()),
            bad: self.bad.mul_f64(prng.unit()),
            loss: self.loss * prng.unit(),
        }
    }

    fn are_off(&self) -> bool {
        self.bad.is_zero() || self.loss <= 0.0
    }
}

/// Some packets come so late that their receiver has given them up, or their sender has another
/// life by then. [`Rates::reorder`](crate::Rates) delays packets by less than a timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Late {
    /// Share of packets that are late; zero of a network without late packets.
    pub share: f64,
    /// How late they are at most.
    pub by: Duration,
}

impl Late {
    /// A share up to this share, and packets that are late by less than `limit`.
    pub(crate) fn drawn(&self, limit: Duration, prng: &mut Prng) -> Self {
        let share = prng.unit();
        // The cube makes a few late packets as common as many.
        Self { share: self.share * share * share * share, by: self.by.min(limit) }
    }
}

/// The state of a way between two nodes when its last packet was sent.
#[derive(Clone, Copy, Debug)]
struct Way {
    bad: bool,
    at: u64,
}

/// The troubles in force.
#[derive(Debug, Default)]
pub(super) struct PacketFaults {
    bursts: Bursts,
    late: Late,
    /// One for each pair that has sent during the bursts that are in force.
    ways: BTreeMap<(u32, u32), Way>,
}

impl PacketFaults {
    pub(super) fn set_bursts(&mut self, bursts: Bursts) {
        self.bursts = bursts;
        self.ways.clear();
    }

    pub(super) fn set_late(&mut self, late: Late) {
        self.late = late;
    }

    pub(super) fn is_over(&self) -> bool {
        self.bursts.are_off() && self.late.share <= 0.0
    }

    /// Whether a burst swallows a packet that leaves now.
    pub(super) fn swallows(&mut self, at: u64, way: (u32, u32), prng: &mut Prng) -> bool {
        if self.bursts.are_off() {
            return false;
        }
        // A way that is never good is bad all the time: a nanosecond keeps the ratio finite.
        let (good, bad) = (self.bursts.good.as_secs_f64().max(1e-9), self.bursts.bad.as_secs_f64());
        let share = bad / (good + bad);
        // The chance of being bad drifts from what was seen to the lasting share.
        let seen = self.ways.get(&way).map_or(share, |seen| {
            let gap = at.saturating_sub(seen.at) as f64 / 1e9;
            let memory = math::exp(-gap / good - gap / bad);
            share + (f64::from(u8::from(seen.bad)) - share) * memory
        });
        let bad = prng.chance(seen);
        self.ways.insert(way, Way { bad, at });
        bad && prng.chance(self.bursts.loss)
    }

    /// When a packet arrives that would arrive at `at`.
    pub(super) fn delays(&self, at: SimTime, prng: &mut Prng) -> SimTime {
        if self.late.share > 0.0 && prng.chance(self.late.share) {
            return at + Duration::from_nanos(prng.below(nanos(self.late.by) + 1));
        }
        at
    }
}
