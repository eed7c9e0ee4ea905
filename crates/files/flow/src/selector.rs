//! Chooses copy and path together: the least cost over all copies and all their shortest paths.
//!
//! **One flow.** Equation 3.2 counts the seconds that the new read takes and the seconds by which
//! all others end later. The selector weighs candidates in the order of the duration of the read
//! alone. It stops at the first candidate whose duration exceeds the best cost, because harm is
//! never negative.
//!
//! **Two flows.** The selector adds the best candidate to the model for a trial, and weighs
//! candidates of other copies beside it. Both flows end together, after `T = bytes / (b1 + b2)`.
//! The thesis (3.2.3) compares the *sum* of both costs with the cost of one flow, and so counts T
//! twice. Two flows that halve the time then cost as much as one before any harm, and a read is
//! hardly ever divided. A client waits for T once, so [`Two::Finish`] compares `T + harm1 + harm2`
//! with the cost of one flow. [`Two::Printed`] is the rule of the thesis.

use core::time::Duration;

use evenfall_core::Timestamp;

use crate::model::{Config, Estimate, FlowId, FlowModel};
use crate::policy::{BeginningRead, Count, FlowLeg, FlowRoute, Policy, Reroute};
use crate::topology::{LinkIndex, Topology, TopologyNode};

/// The rule that decides whether a read is divided between two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Two {
    /// A read is never divided. The thesis calls this variant Mayflower-B.
    Never,
    /// A read is divided when its duration plus the harm of both flows is less than the cost of one
    /// flow. The duration counts once.
    Finish,
    /// A read is divided when the sum of both costs is less than the cost of one flow, as the
    /// thesis prints the rule.
    Printed,
}

/// A copy and a path with their cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathCandidate {
    /// The host that has the copy.
    pub copy: TopologyNode,
    /// The number of the path from the copy to the client.
    pub path: usize,
    /// Share and harm of a flow on this path.
    pub estimate: Estimate,
    /// Equation 3.2, in seconds.
    pub cost_s: f64,
}

/// Chooses by equation 3.2. In Mayflower this is the decision of the Flowserver.
#[derive(Clone, Debug)]
pub struct Selector {
    topology: Topology,
    model: FlowModel,
    two: Two,
    interval: Duration,
    /// Candidates of a decision: duration of the read alone, number of links, copy, path.
    scratch: Vec<(f64, usize, TopologyNode, usize)>,
}

impl Selector {
    /// A selector without flows. The driver passes in byte counts every `interval`. The thesis uses
    /// 1 s and sees no difference up to 5 s.
    pub fn new(topology: Topology, config: Config, two: Two, interval: Duration) -> Self {
        let model = FlowModel::new(config, topology.links());
        Self { topology, model, two, interval, scratch: Vec::new() }
    }

    /// The model of the network.
    pub fn model(&self) -> &FlowModel {
        &self.model
    }

    /// The model of the network, for corrections by the caller.
    pub fn model_mut(&mut self) -> &mut FlowModel {
        &mut self.model
    }

    /// Nodes and links of the network.
    pub fn topology_mut(&mut self) -> &mut Topology {
        &mut self.topology
    }

    /// The candidate of least cost. The model does not change. Among candidates of equal cost the
    /// path with the fewest links wins. Returns `None` when no copy can be reached.
    pub fn best(
        &mut self,
        now: Timestamp,
        client: TopologyNode,
        copies: &[TopologyNode],
        bytes: u64,
    ) -> Option<PathCandidate> {
        self.list(client, copies, bytes as f64);
        let mut best: Option<PathCandidate> = None;
        for at in 0..self.scratch.len() {
            let (time_s, _, copy, path) = self.scratch[at];
            let least = best.map_or(f64::INFINITY, |best| best.cost_s);
            if time_s >= least {
                break;
            }
            let paths = self.topology.paths(copy, client);
            let weighed = self.model.weigh(now, paths.path(path), None, least - time_s);
            let Some(estimate) = weighed.map(|weighed| weighed.estimate) else { continue };
            let cost_s = time_s + estimate.harm_s;
            if cost_s < least {
                best = Some(PathCandidate { copy, path, estimate, cost_s });
            }
        }
        best
    }

    /// Lists the candidates by the duration of the read alone, then by number of links.
    fn list(&mut self, client: TopologyNode, copies: &[TopologyNode], bytes: f64) {
        self.model.forget_links();
        self.scratch.clear();
        for &copy in copies {
            let paths = self.topology.paths(copy, client);
            for (number, path) in paths.iter().enumerate() {
                let time_s = bytes / self.model.share_on(path);
                self.scratch.push((time_s, path.len(), copy, number));
            }
        }
        // A stable sort keeps equal candidates in the order of copies and paths.
        self.scratch.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    }

    /// Adds the flow of a chosen candidate to the model.
    fn take(
        &mut self,
        now: Timestamp,
        read: &BeginningRead<'_>,
        flow: FlowId,
        leg: (TopologyNode, usize),
        bytes: f64,
    ) {
        let paths = self.topology.paths(leg.0, read.client);
        self.model.add(now, flow, paths.path(leg.1), Some(bytes));
    }

    /// Looks for a second copy beside the first, whose flow is in the model already. Returns the
    /// second leg and the bytes of the first leg.
    fn second(
        &mut self,
        now: Timestamp,
        read: &BeginningRead<'_>,
        first: &PathCandidate,
    ) -> Option<(TopologyNode, usize, u64)> {
        let others: Vec<_> = read.copies.iter().copied().filter(|&c| c != first.copy).collect();
        let bytes = read.bytes as f64;
        let half = Some(read.flows[0]);
        self.list(read.client, &others, bytes);
        let finish = self.two == Two::Finish;
        let mut best: Option<(f64, TopologyNode, usize, f64)> = None;
        // The cost that a second path must stay below. The thesis chooses the second path as if the
        // read had no other flow.
        let mut limit_s = if finish { first.cost_s } else { f64::INFINITY };
        for at in 0..self.scratch.len() {
            let (time_s, _, copy, path) = self.scratch[at];
            // A second flow never gives the first flow more bandwidth, so this duration is a lower
            // bound. The bound rises with each candidate.
            let fastest_s = bytes / (first.estimate.share + bytes / time_s);
            let least_s = if finish { fastest_s + first.estimate.harm_s } else { time_s };
            if least_s >= limit_s {
                break;
            }
            let paths = self.topology.paths(copy, read.client);
            let weighed = self.model.weigh(now, paths.path(path), half, limit_s - least_s);
            let Some(weighed) = weighed else { continue };
            let (share, harm_s) = (weighed.estimate.share, weighed.estimate.harm_s);
            let own = weighed.half.unwrap_or(first.estimate.share);
            let both_s = bytes / (own + share);
            let harms_s = first.estimate.harm_s + harm_s;
            let times = if finish { 1.0 } else { 2.0 };
            let cost_s = times * both_s + harms_s;
            let rank_s = if finish { cost_s } else { time_s + harm_s };
            if rank_s < limit_s {
                limit_s = rank_s;
                best = Some((cost_s, copy, path, own / (own + share)));
            }
        }
        let (cost_s, copy, path, part) = best?;
        (cost_s < first.cost_s).then_some((copy, path, (bytes * part) as u64))
    }
}

impl Policy for Selector {
    fn choose(&mut self, now: Timestamp, read: &BeginningRead<'_>) -> Vec<FlowLeg> {
        let Some(first) = self.best(now, read.client, read.copies, read.bytes) else {
            return Vec::new();
        };
        let [one, other] = read.flows;
        let leg =
            |flow, copy, path, bytes| FlowLeg { flow, copy, route: FlowRoute::Path(path), bytes };
        let alone = leg(one, first.copy, first.path, read.bytes);
        let paths = self.topology.paths(first.copy, read.client);
        let path: &[LinkIndex] = paths.path(first.path);
        if self.two == Two::Never || path.is_empty() || read.bytes == 0 {
            self.take(now, read, one, (first.copy, first.path), read.bytes as f64);
            return vec![alone];
        }
        let before = self.model.shares_along(path);
        self.take(now, read, one, (first.copy, first.path), read.bytes as f64);
        let Some((copy, path, bytes)) = self.second(now, read, &first) else {
            return vec![alone];
        };
        self.model.undo(now, one, &before);
        self.take(now, read, one, (first.copy, first.path), bytes as f64);
        self.take(now, read, other, (copy, path), (read.bytes - bytes) as f64);
        vec![leg(one, first.copy, first.path, bytes), leg(other, copy, path, read.bytes - bytes)]
    }

    fn ended(&mut self, now: Timestamp, flow: FlowId) {
        self.model.remove(now, flow);
    }

    fn counted(&mut self, now: Timestamp, counts: &[Count]) -> Vec<Reroute> {
        for count in counts {
            self.model.count(now, count.flow, count.moved);
        }
        Vec::new()
    }

    fn background(&mut self, now: Timestamp, flow: FlowId, path: &[LinkIndex]) {
        self.model.add(now, flow, path, None);
    }

    fn interval(&self) -> Duration {
        self.interval
    }
}
