//! A flowserver. It keeps a picture of the hosts, racks and flows of a cluster, and chooses the
//! copies that a read takes.
//!
//! ```text
//!              core                 a link of each rack carries `rack_bytes_per_s`
//!            /      \
//!        rack a    rack b           a link of each host carries `host_bytes_per_s`
//!        /    \      |  \
//!     host   host  host  a client   a client of an unknown rack is a rack of its own
//! ```
//!
//! Clients tell of the reads that begin and end, and dataservers tell of writes and count the bytes
//! of flows. A tenant of a cloud sees no switches. The flowserver therefore takes the network for
//! the tree above, with a single path between two racks. The [`Selector`] makes the choice.
//!
//! Whoever runs the switches may set up several paths between racks beforehand, each for the
//! connections from some source ports. Each rack then has a link to each path in place of the link
//! to the core, and the selector chooses copy and path together, as in Mayflower:
//!
//! ```text
//!         path 0      path 1          `paths_bytes_per_s`: the rate of a rack's link to each path
//!           |    \  /    |
//!           |    /  \    |
//!         rack a      rack b
//! ```
//!
//! A flow of which nothing is heard for a while is dead: its client has died, or the message of its
//! end was lost. A host without flows is forgotten when the room for hosts is needed.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use evenfall_core::Timestamp;

use crate::model::{Config, FlowId};
use crate::policy::{BeginningRead, Count, FlowRoute, Policy};
use crate::selector::{Selector, Two};
use crate::topology::{Topology, TopologyNode};

/// Most hosts that are known at once.
pub const HOSTS_MAX: usize = 4_096;
/// Most flows that are known at once. Readers beyond this number choose their copies themselves.
pub const FLOWS_MAX: usize = 100_000;
/// Most copies of one file among which a read can choose.
pub const COPIES_MAX: usize = 16;

/// The settings of a flowserver.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowserverSpec {
    /// Bytes a second of a host's link, in each direction.
    pub host_bytes_per_s: f64,
    /// Bytes a second of a rack's link, in each direction.
    pub rack_bytes_per_s: f64,
    /// A flow is dead when nothing is heard of it for this long.
    pub silence: Duration,
    /// Bytes a second of a rack's link to each path that was set up beforehand, in each direction.
    /// When the list is empty, there is one path between two racks.
    pub paths_bytes_per_s: Vec<f64>,
}

/// A flow of a read: its name, the host of its copy, and the bytes that it is expected to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The name of the flow. The messages that count the flow and that end it carry this name.
    pub flow: FlowId,
    /// The index of the copy in the list of copies that the reader gave.
    pub copy: usize,
    /// The bytes that the flow is expected to read.
    pub bytes: u64,
    /// The number of the path that was set up beforehand. `None` where there is only one path.
    pub path: Option<usize>,
}

/// What a flowserver has counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTotals {
    /// Reads that began.
    pub reads: u64,
    /// Reads that were divided between two copies.
    pub divided: u64,
    /// Writes that began.
    pub writes: u64,
    /// Flows that were found dead.
    pub expired: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    from: IpAddr,
    to: IpAddr,
    bytes: Option<u64>,
    /// Bytes since the flow began.
    moved: u64,
    /// The value of `moved` when the network was last built anew.
    before: u64,
    /// The number of the path that was set up beforehand, where the flowserver chose one.
    path: Option<usize>,
}

/// See the documentation of the module.
#[derive(Debug)]
pub struct Flowserver {
    spec: FlowserverSpec,
    selector: Selector,
    /// The rack of each host that a dataserver named.
    racks: BTreeMap<IpAddr, String>,
    nodes: BTreeMap<IpAddr, TopologyNode>,
    /// The nodes above the racks: one for each path, or the core alone.
    above: Vec<TopologyNode>,
    flows: BTreeMap<FlowId, Known>,
    /// The last name of a flow.
    last: u64,
    totals: FlowTotals,
}

impl Flowserver {
    /// A flowserver that knows no flow. The names of flows count up from `first`, which has to be a
    /// random number. A flowserver that has restarted then gives no name of its earlier life again.
    pub fn new(spec: FlowserverSpec, first: u64) -> Self {
        let selector = selector_of(Topology::new(), &spec);
        let (racks, nodes, flows) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        // 48 bits leave room for all later flows below 2^53, the largest integer that JavaScript
        // keeps exactly.
        let last = first & 0xffff_ffff_ffff;
        let (above, totals) = (Vec::new(), FlowTotals::default());
        Self { spec, selector, racks, nodes, above, flows, last, totals }
    }

    /// Flows that are known now.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether no flow is known.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// What was counted since the start.
    pub fn totals(&self) -> FlowTotals {
        self.totals
    }

    /// The estimated bytes a second of a flow.
    pub fn share(&self, flow: FlowId) -> Option<f64> {
        self.selector.model().share(flow)
    }

    /// A dataserver tells the rack of its host.
    pub fn place(&mut self, now: Timestamp, host: IpAddr, rack: &str) {
        if self.racks.len() >= HOSTS_MAX && !self.racks.contains_key(&host) {
            return;
        }
        if self.racks.insert(host, rack.to_owned()).as_deref() != Some(rack) {
            self.rebuild(now, &[host]);
        }
    }

    /// Chooses the copies of a read, and adds its flows to the picture. The list is empty when too
    /// many flows or hosts are known, and when the client is on the host of a copy, because that
    /// read needs no network.
    pub fn read(
        &mut self,
        now: Timestamp,
        client: IpAddr,
        copies: &[IpAddr],
        bytes: u64,
    ) -> Vec<Given> {
        self.expire(now);
        let copies = &copies[..copies.len().min(COPIES_MAX)];
        self.totals.reads += 1;
        if self.flows.len() + 2 > FLOWS_MAX || copies.contains(&client) {
            return Vec::new();
        }
        let hosts: Vec<IpAddr> = copies.iter().copied().chain([client]).collect();
        if !self.know(now, &hosts) {
            return Vec::new();
        }
        let nodes: Vec<TopologyNode> = copies.iter().map(|host| self.nodes[host]).collect();
        let flows = [FlowId(self.last + 1), FlowId(self.last + 2)];
        self.last += 2;
        let read = BeginningRead { client: self.nodes[&client], copies: &nodes, bytes, flows };
        let legs = self.selector.choose(now, &read);
        self.totals.divided += u64::from(legs.len() > 1);
        let mut given = Vec::new();
        for leg in legs {
            let Some(copy) = nodes.iter().position(|node| *node == leg.copy) else { continue };
            let path = match leg.route {
                FlowRoute::Path(number) => self.path_of(leg.copy, self.nodes[&client], number),
                FlowRoute::Port(_) => None,
            };
            let (from, to, bytes) = (copies[copy], client, Some(leg.bytes));
            let known = Known { from, to, bytes, moved: 0, before: 0, path };
            self.flows.insert(leg.flow, known);
            given.push(Given { flow: leg.flow, copy, bytes: leg.bytes, path });
        }
        given
    }

    /// A dataserver reports a write that begins: an unknown number of bytes from one host to
    /// another. `None` when too many flows or hosts are known.
    pub fn write(&mut self, now: Timestamp, from: IpAddr, to: IpAddr) -> Option<FlowId> {
        self.expire(now);
        self.totals.writes += 1;
        if self.flows.len() >= FLOWS_MAX || from == to || !self.know(now, &[from, to]) {
            return None;
        }
        self.last += 1;
        let flow = FlowId(self.last);
        let (bytes, path) = (None, None);
        self.flows.insert(flow, Known { from, to, bytes, moved: 0, before: 0, path });
        self.take(now, flow);
        Some(flow)
    }

    /// A flow has ended.
    pub fn ended(&mut self, now: Timestamp, flow: FlowId) {
        if self.flows.remove(&flow).is_some() {
            self.selector.ended(now, flow);
        }
    }

    /// A dataserver has counted bytes of flows since they began. Returns the flows that are not
    /// known. The dataserver stops counting these flows.
    pub fn counted(&mut self, now: Timestamp, counts: &[(FlowId, u64)]) -> Vec<FlowId> {
        let mut unknown = Vec::new();
        let mut known = Vec::new();
        for (flow, moved) in counts {
            match self.flows.get_mut(flow) {
                Some(of) => {
                    of.moved = of.moved.max(*moved);
                    let since = of.moved - of.before;
                    known.push(Count { flow: *flow, moved: since as f64 });
                }
                None => unknown.push(*flow),
            }
        }
        self.selector.counted(now, &known);
        self.expire(now);
        unknown
    }

    /// Forgets flows of which nothing was heard for long.
    pub fn expire(&mut self, now: Timestamp) {
        let dead = self.selector.model_mut().expire(now, self.spec.silence);
        self.totals.expired += dead.len() as u64;
        for flow in dead {
            self.flows.remove(&flow);
        }
    }

    /// The number of the prepared path over which a shortest path leads.
    fn path_of(&mut self, from: TopologyNode, to: TopologyNode, number: usize) -> Option<usize> {
        if self.spec.paths_bytes_per_s.is_empty() {
            return None;
        }
        let topology = self.selector.topology_mut();
        let paths = topology.paths(from, to);
        let mut nodes = paths.path(number).iter().map(|link| topology.links()[link.0 as usize].to);
        nodes.find_map(|node| self.above.iter().position(|above| *above == node))
    }

    /// Adds a flow to the model. A flow whose path the flowserver did not choose takes some path:
    /// the switches hash its ports.
    fn take(&mut self, now: Timestamp, flow: FlowId) {
        let Some(known) = self.flows.get(&flow).copied() else { return };
        let (from, to) = (self.nodes[&known.from], self.nodes[&known.to]);
        let paths = self.selector.topology_mut().paths(from, to);
        if paths.is_empty() {
            return;
        }
        let left = known.bytes.map(|bytes| bytes.saturating_sub(known.moved) as f64);
        let mut numbers = 0..paths.len();
        let chosen = known
            .path
            .and_then(|path| numbers.find(|number| self.path_of(from, to, *number) == Some(path)));
        let number = chosen.unwrap_or((flow.0 % paths.len() as u64) as usize);
        self.selector.model_mut().add(now, flow, paths.path(number), left);
    }

    /// Adds these hosts. Returns false when there are too many.
    fn know(&mut self, now: Timestamp, hosts: &[IpAddr]) -> bool {
        if hosts.iter().any(|host| !self.nodes.contains_key(host)) {
            self.rebuild(now, hosts);
        }
        hosts.iter().all(|host| self.nodes.contains_key(host))
    }

    /// Builds the network anew with these hosts, all hosts of dataservers and all hosts that have
    /// flows.
    fn rebuild(&mut self, now: Timestamp, hosts: &[IpAddr]) {
        let mut all: BTreeSet<IpAddr> = self.racks.keys().copied().collect();
        all.extend(self.flows.values().flat_map(|flow| [flow.from, flow.to]));
        all.extend(hosts);
        let mut topology = Topology::new();
        // Without prepared paths, the core is the one path.
        let rates = match &self.spec.paths_bytes_per_s[..] {
            [] => core::slice::from_ref(&self.spec.rack_bytes_per_s),
            paths => paths,
        };
        self.above = rates.iter().map(|_| topology.node()).collect();
        let mut racks: BTreeMap<String, TopologyNode> = BTreeMap::new();
        self.nodes.clear();
        for host in all.into_iter().take(HOSTS_MAX) {
            let node = topology.node();
            let rack = self.racks.get(&host);
            if let (None, [only]) = (rack, &self.above[..]) {
                topology.wire(node, *only, self.spec.host_bytes_per_s);
                self.nodes.insert(host, node);
                continue;
            }
            // Hosts in no known rack have a rack each. Its links are as fast as the host's, so
            // that they limit nothing.
            let name = rack.map_or_else(|| format!("host {host}"), |rack| format!("rack {rack}"));
            let rack = *racks.entry(name).or_insert_with(|| {
                let own = topology.node();
                for (above, rate) in self.above.iter().zip(rates) {
                    let rate = if rack.is_some() { *rate } else { self.spec.host_bytes_per_s };
                    topology.wire(own, *above, rate);
                }
                own
            });
            topology.wire(node, rack, self.spec.host_bytes_per_s);
            self.nodes.insert(host, node);
        }
        self.selector = selector_of(topology, &self.spec);
        let flows: Vec<FlowId> = self.flows.keys().copied().collect();
        for flow in flows {
            if let Some(known) = self.flows.get_mut(&flow) {
                known.before = known.moved;
            }
            self.take(now, flow);
        }
    }
}

fn selector_of(topology: Topology, spec: &FlowserverSpec) -> Selector {
    // Dataservers count every second, so that three counts come before a flow counts as dead.
    Selector::new(topology, Config::default(), Two::Finish, spec.silence / 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    /// Hosts 1 and 2 in rack a, 3 and 4 in rack b. A rack's link carries half of its hosts' links.
    fn four() -> Flowserver {
        four_over(Vec::new())
    }

    /// The same hosts, with a link of each rack to each of these paths.
    fn four_over(paths_bytes_per_s: Vec<f64>) -> Flowserver {
        let spec = FlowserverSpec {
            host_bytes_per_s: 100e6,
            rack_bytes_per_s: 100e6,
            silence: Duration::from_secs(5),
            paths_bytes_per_s,
        };
        let mut server = Flowserver::new(spec, 1);
        for n in 1..=4 {
            server.place(at(0), host(n), if n < 3 { "a" } else { "b" });
        }
        server
    }

    #[test]
    fn a_read_goes_to_the_copy_whose_links_are_idle_and_avoids_a_busy_rack() {
        let mut server = four();
        // The client is not on a host of a dataserver, and shares its link with nobody.
        let first = server.read(at(1), host(9), &[host(1), host(3)], 100_000_000);
        assert_eq!(first.len(), 1);
        // The next client finds the other copy idle.
        let second = server.read(at(1), host(8), &[host(1), host(3)], 100_000_000);
        assert_ne!(first[0].copy, second[0].copy);
        server.ended(at(2), first[0].flow);
        server.ended(at(2), second[0].flow);
        // A write into rack a takes its link into the rack, which a reader of host 1 does not need.
        assert!(server.write(at(2), host(3), host(1)).is_some());
        let third = server.read(at(2), host(8), &[host(1), host(4)], 100_000_000);
        assert_eq!((third[0].copy, server.totals().writes), (0, 1), "rack b sends a write");
    }

    #[test]
    fn a_slow_first_copy_has_the_read_divided_and_its_counts_are_learned() {
        let mut server = four();
        // Host 1 gives half of its link to another client.
        let busy = server.read(at(1), host(7), &[host(1)], 10_000_000_000);
        let again = server.read(at(1), host(7), &[host(3)], 10_000_000_000);
        let legs = server.read(at(1), host(9), &[host(1), host(3)], 1_000_000_000);
        assert_eq!(legs.len(), 2, "{legs:?}");
        assert_eq!(legs.iter().map(|leg| leg.bytes).sum::<u64>(), 1_000_000_000);
        assert_eq!(server.totals().divided, 1);
        let counts = [(busy[0].flow, 30_000_000), (again[0].flow, 1), (FlowId(5), 1)];
        assert_eq!(server.counted(at(3), &counts), [FlowId(5)]);
        assert_eq!(server.share(busy[0].flow), Some(15e6));
    }

    #[test]
    fn a_flow_of_which_nothing_is_heard_is_forgotten_and_a_new_host_keeps_the_others() {
        let mut server = four();
        let dead = server.read(at(1), host(9), &[host(1)], 1_000_000_000);
        let live = server.read(at(1), host(9), &[host(3)], 1_000_000_000);
        server.counted(at(5), &[(live[0].flow, 10)]);
        server.place(at(6), host(77), "c");
        server.expire(at(9));
        assert_eq!((server.len(), server.totals().expired), (2, 0), "a new network counts anew");
        server.counted(at(11), &[(live[0].flow, 20)]);
        server.expire(at(12));
        assert_eq!((server.len(), server.totals().expired), (1, 1));
        server.ended(at(12), dead[0].flow);
        server.ended(at(12), live[0].flow);
        assert!(server.is_empty());
    }

    #[test]
    fn copy_and_path_are_chosen_together_where_paths_were_set_up_beforehand() {
        let mut server = four_over(vec![100e6, 100e6]);
        let first = server.read(at(1), host(9), &[host(1)], 1_000_000_000);
        let second = server.read(at(1), host(8), &[host(2)], 1_000_000_000);
        let mut paths = [first[0].path, second[0].path];
        paths.sort_unstable();
        assert_eq!(paths, [Some(0), Some(1)], "the second read avoids the path of the first");
        // A network that is built anew keeps the paths of its flows.
        server.place(at(2), host(77), "c");
        server.ended(at(2), first[0].flow);
        let third = server.read(at(2), host(7), &[host(1)], 1_000_000_000);
        assert_eq!(third[0].path, first[0].path, "the path that is free again");
        // Both paths out of rack a are busy now.
        let fourth = server.read(at(2), host(6), &[host(1), host(4)], 1_000_000_000);
        assert_eq!((fourth.len(), fourth[0].copy), (1, 1));
        // Within a rack there is one path only.
        assert_eq!(server.read(at(2), host(3), &[host(4)], 5)[0].path, None);
    }

    #[test]
    fn a_client_on_the_host_of_a_copy_needs_no_flow() {
        let mut server = four();
        assert!(server.read(at(1), host(1), &[host(3), host(1)], 5).is_empty());
        assert!(server.is_empty() && server.write(at(1), host(1), host(1)).is_none());
    }
}
