//! The simulated network: flows share links as fluids.

use std::collections::{BTreeMap, BTreeSet};

use evenfall_files_flow::{FlowId, LinkIndex, Policy, ThreeTier, TopologyNode};
use evenfall_sim::{Fluid, FluidFlow, FluidLink, SimTime};

use super::scene::{self, FlowNetwork, ReadPlan, ReadTimes, Way};

/// See the module documentation.
struct Fluids {
    fluid: Fluid,
    flows: BTreeMap<FlowId, FluidFlow>,
    /// The sender and the path of each flow.
    ways: BTreeMap<FlowId, (TopologyNode, Vec<FluidLink>)>,
    /// Hosts that send nothing. Their flows cross one more link, which carries next to nothing.
    hung: BTreeSet<TopologyNode>,
    blocked: FluidLink,
    names: BTreeMap<FluidFlow, FlowId>,
}

/// Runs all reads to their ends on a simulated network.
pub fn run(plan: ReadPlan<'_>, policy: &mut dyn Policy) -> ReadTimes {
    let mut network = Fluids::new(plan.spec);
    let mut times = match scene::run(plan, policy, &mut network) {
        Ok(times) => times,
        Err(error) => unreachable!("fluids do not fail: {error}"),
    };
    let at = SimTime::from_nanos((times.end_s * 1e9) as u64);
    let links = 0..plan.spec.build().links().len() as u32;
    times.carried = links.map(|link| network.fluid.carried(at, FluidLink(link))).collect();
    times
}

impl Fluids {
    fn new(spec: &ThreeTier) -> Self {
        let mut fluid = Fluid::new();
        for link in spec.build().links() {
            fluid.link(link.bytes_per_s as u64);
        }
        let (flows, ways, hung) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let (blocked, names) = (fluid.link(1), BTreeMap::new());
        Self { fluid, flows, ways, hung, blocked, names }
    }

    /// The links that a flow crosses now.
    fn links(&self, flow: FlowId) -> Vec<FluidLink> {
        let (from, path) = &self.ways[&flow];
        let blocked = self.hung.contains(from).then_some(self.blocked);
        path.iter().copied().chain(blocked).collect()
    }
}

fn links(path: &[LinkIndex]) -> Vec<FluidLink> {
    path.iter().map(|link| FluidLink(link.0)).collect()
}

impl FlowNetwork for Fluids {
    fn start(&mut self, now: u64, flow: FlowId, way: Way<'_>, bytes: u64) {
        self.ways.insert(flow, (way.ends[0], links(way.path)));
        let fluid = self.fluid.start(SimTime::from_nanos(now), &self.links(flow), bytes);
        self.flows.insert(flow, fluid);
        self.names.insert(fluid, flow);
    }

    fn stop(&mut self, now: u64, flow: FlowId) {
        if let Some(fluid) = self.flows.remove(&flow) {
            self.names.remove(&fluid);
            self.ways.remove(&flow);
            self.fluid.stop(SimTime::from_nanos(now), fluid);
        }
    }

    fn left(&mut self, now: u64, flow: FlowId) -> f64 {
        self.fluid.left(SimTime::from_nanos(now), self.flows[&flow])
    }

    fn resize(&mut self, now: u64, flow: FlowId, bytes: u64) {
        self.fluid.resize(SimTime::from_nanos(now), self.flows[&flow], bytes);
    }

    fn reroute(&mut self, now: u64, flow: FlowId, way: Way<'_>) {
        self.ways.insert(flow, (way.ends[0], links(way.path)));
        self.fluid.reroute(SimTime::from_nanos(now), self.flows[&flow], &self.links(flow));
    }

    fn hang(&mut self, now: u64, host: TopologyNode, is_hung: bool) {
        match is_hung {
            true => self.hung.insert(host),
            false => self.hung.remove(&host),
        };
        let of_host = self.ways.iter().filter(|(_, (from, _))| *from == host);
        for flow in of_host.map(|(flow, _)| *flow).collect::<Vec<_>>() {
            self.fluid.reroute(SimTime::from_nanos(now), self.flows[&flow], &self.links(flow));
        }
    }

    fn wait(&mut self, until: u64) -> Result<(u64, Option<FlowId>), String> {
        let end = self.fluid.next_end().filter(|(at, _)| at.nanos() <= until);
        Ok(end.map_or((until, None), |(at, fluid)| (at.nanos(), Some(self.names[&fluid]))))
    }
}
