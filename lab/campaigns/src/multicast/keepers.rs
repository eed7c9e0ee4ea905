//! The clocks that the product would have: a [`Timekeeper`] on every host, beside the roles.
//!
//! Without keepers a run reads clocks out of the model, which errs by what its file says. With
//! keepers each host has one further node, the keeper, which sends its probes over the network and
//! the card that the multicast uses. Every 20 ms a keeper tells the roles of its host what it has
//! found, as the service does. The host of the first root is the reference, and its local clock
//! shows true time, so that the error of every other clock is known.

use core::time::Duration;
use std::collections::VecDeque;

use evenfall_clock_machine::{BoundedReading, ClockSeat, ClockState, Config, Timekeeper};
use evenfall_core::{ClockError, ClockReading, Machine, Timestamp, nearest_rank};
use evenfall_sim::{Cloud, HostIndex, NodeIndex, World};
use serde::Serialize;

use super::node::CampaignNode;

/// How often a keeper tells the roles of its host the time: as often as the service.
pub(super) const TELL_EVERY: Duration = Duration::from_millis(20);
/// How long keepers run before the feed begins: five windows, in which their filters settle.
pub const SETTLING: Duration = Duration::from_millis(12_500);
/// Errors of clocks that are kept for the percentiles.
const ERRORS_MAX: usize = 1 << 20;

/// How far the clocks of a run were off while the feed ran, microseconds. An error is that of the
/// clock by which a role acts, at the moment before it is told anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ClockErrors {
    /// Half of the errors are smaller.
    pub p50_us: f64,
    /// All but one in a hundred are smaller.
    pub p99_us: f64,
    /// The largest.
    pub max_us: f64,
    /// Share of the errors within the bound that the clock stated.
    pub within: f64,
    /// Median of the stated bounds.
    pub bound_p50_us: f64,
}

/// The keepers of a run.
pub(super) struct Keepers {
    /// The node of the first keeper. Keepers have the order of their hosts.
    first: u32,
    /// The last reading of each host.
    readings: Vec<Option<ClockReading>>,
    /// The host of each role.
    host_of: Vec<u32>,
    in_use: Vec<bool>,
    errors_ns: VecDeque<u64>,
    bounds_ns: VecDeque<u64>,
    within: (u64, u64),
}

/// Adds a keeper to every host.
pub(super) fn add(
    world: &mut World<CampaignNode, Cloud>,
    origins: &[Timestamp],
    seed: u64,
) -> Keepers {
    let first = world.node_count() as u32;
    let host_of: Vec<u32> = (0..first).map(|node| world.host_of(NodeIndex(node)).0).collect();
    let hosts = origins.len() as u32;
    let addresses: Vec<_> = (first..first + hosts).map(|n| NodeIndex(n).address()).collect();
    for (number, origin) in (0..).zip(origins) {
        let seat =
            ClockSeat { addresses: addresses.clone(), number, run: seed | 1 << 63, started: 0 };
        let keeper = Timekeeper::new(Config::default(), seat, None, *origin);
        world.add_node(CampaignNode::Keeper(Box::new(keeper)), HostIndex(number));
    }
    Keepers {
        first,
        readings: vec![None; origins.len()],
        host_of,
        in_use: vec![false; origins.len()],
        errors_ns: VecDeque::new(),
        bounds_ns: VecDeque::new(),
        within: (0, 0),
    }
}

/// What a keeper tells its roles until it tells them again: the offset of the middle of that time,
/// with a bound that includes the drift up to its ends.
fn told(now: BoundedReading, next: BoundedReading, is_left_out: bool) -> ClockReading {
    let meanwhile = Duration::from_nanos(now.offset_ns.abs_diff(next.offset_ns) / 2 + 1);
    let within = |ns| ClockError::Within(Duration::from_nanos(ns) + meanwhile);
    let error = match is_left_out {
        true => ClockError::Disproved,
        false => now.assumed_ns.map_or(ClockError::Unknown, within),
    };
    ClockReading { offset_ns: now.offset_ns.midpoint(next.offset_ns), error }
}

impl Keepers {
    /// The last reading of the host of a role.
    pub(super) fn reading(&self, node: NodeIndex) -> Option<ClockReading> {
        let host = *self.host_of.get(node.0 as usize)?;
        self.readings[host as usize]
    }

    /// Reads all keepers. Returns the nodes to be called with [`take`]: the roles of hosts that
    /// know the time, and keepers whose time is used for the first time. While the feed runs, the
    /// errors of the readings before are noted.
    pub(super) fn read(
        &mut self,
        world: &World<CampaignNode, Cloud>,
        is_feed: bool,
    ) -> Vec<NodeIndex> {
        let mut to_call = Vec::new();
        for host in 0..self.readings.len() {
            let index = NodeIndex(self.first + host as u32);
            let local = world.local(index);
            if is_feed && let Some(before) = self.readings[host] {
                self.note(world.now().nanos(), local, before);
            }
            let CampaignNode::Keeper(keeper) = world.machine(index) else { continue };
            let now = keeper.read(local);
            if now.state == ClockState::Unknown {
                continue;
            }
            if !core::mem::replace(&mut self.in_use[host], true) {
                to_call.push(index);
            }
            let next = keeper.read(local + TELL_EVERY);
            self.readings[host] = Some(told(now, next, keeper.is_left_out()));
        }
        let knows = |node: &NodeIndex| self.reading(*node).is_some();
        to_call.extend((0..self.first).map(NodeIndex).filter(knows));
        to_call
    }

    fn note(&mut self, now_ns: u64, local: Timestamp, reading: ClockReading) {
        let shown = local.nanos().saturating_add_signed(reading.offset_ns);
        let error = shown.abs_diff(now_ns);
        self.within.1 += 1;
        if let ClockError::Within(bound) = reading.error {
            let bound = evenfall_core::time::nanos(bound);
            self.within.0 += u64::from(error <= bound);
            self.bounds_ns.push_back(bound);
        }
        self.errors_ns.push_back(error);
        for kept in [&mut self.errors_ns, &mut self.bounds_ns] {
            if kept.len() > ERRORS_MAX {
                kept.pop_front();
            }
        }
    }

    pub(super) fn errors(mut self) -> ClockErrors {
        let us = |ns: &mut VecDeque<u64>, share| {
            let sorted = ns.make_contiguous();
            sorted.sort_unstable();
            nearest_rank(sorted, share).map_or(0.0, |ns| ns as f64 / 1e3)
        };
        ClockErrors {
            p50_us: us(&mut self.errors_ns, 0.5),
            p99_us: us(&mut self.errors_ns, 0.99),
            max_us: us(&mut self.errors_ns, 1.0),
            within: self.within.0 as f64 / self.within.1.max(1) as f64,
            bound_p50_us: us(&mut self.bounds_ns, 0.5),
        }
    }

    /// The largest bound of the last readings; `Unknown` when some clock has none.
    pub(super) fn bound(&self) -> ClockError {
        let mut most = Duration::ZERO;
        for reading in &self.readings {
            match reading.map(|reading| reading.error) {
                Some(ClockError::Within(bound)) => most = most.max(bound),
                _ => return ClockError::Unknown,
            }
        }
        ClockError::Within(most)
    }
}

/// Hands a role the reading of its host, or lets a keeper begin to slew.
pub(super) fn take(machine: &mut CampaignNode, now: Timestamp, reading: Option<ClockReading>) {
    match (machine, reading) {
        (CampaignNode::Keeper(keeper), _) => keeper.begin_use(),
        (role, Some(reading)) => role.handle_clock(now, reading),
        (_, None) => {}
    }
}
