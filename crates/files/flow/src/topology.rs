//! The network of a data centre: nodes, directed links, and the shortest paths between two nodes.
//!
//! ```text
//!              core 0      core 1            every aggregation switch has a link to every core
//!               / \  \    /  / \
//!          agg 0   agg 1 ...                 `aggs` in a pod
//!            |  \ /  |
//!            |  / \  |
//!          rack 0   rack 1 ...               `racks` in a pod
//!           / | \
//!         host host host                     `hosts` in a rack
//! ```
//!
//! A flow takes one of the shortest paths, because a longer path loads more links with the same
//! bytes (thesis, 3.2.2).

use std::collections::BTreeMap;
use std::sync::Arc;

/// A host or a switch. Hosts come first, numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopologyNode(pub u32);

/// One direction of a wire. Numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkIndex(pub u32);

/// Limit of shortest paths that are kept for one pair of nodes. A fat tree of 16-port switches has
/// 64 paths between two pods. Further paths of a larger tree share nearly all of their links with
/// the first 64.
pub const PATHS_MAX: usize = 64;

/// One direction of a wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DirectedLink {
    /// The node that sends.
    pub from: TopologyNode,
    /// The node that receives.
    pub to: TopologyNode,
    /// Bytes a second.
    pub bytes_per_s: f64,
}

/// All shortest paths from one node to another.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortestPaths {
    links: Box<[LinkIndex]>,
    hops: usize,
    count: usize,
}

impl ShortestPaths {
    /// Number of paths; 0 when the second node cannot be reached.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the second node cannot be reached.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of links of each path; 0 from a node to itself.
    pub fn hops(&self) -> usize {
        self.hops
    }

    /// The links of a path, in order.
    ///
    /// # Panics
    /// When there is no path of this number.
    pub fn path(&self, number: usize) -> &[LinkIndex] {
        assert!(number < self.count, "path {number} of {}", self.count);
        &self.links[number * self.hops..(number + 1) * self.hops]
    }

    /// The paths in order.
    pub fn iter(&self) -> impl Iterator<Item = &[LinkIndex]> {
        (0..self.count).map(|number| self.path(number))
    }
}

/// Nodes, links, and a cache of the paths that callers asked for.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    nodes: u32,
    links: Vec<DirectedLink>,
    /// For each node, the links that begin there.
    out: Vec<Vec<LinkIndex>>,
    paths: BTreeMap<(TopologyNode, TopologyNode), Arc<ShortestPaths>>,
}

impl Topology {
    /// A network without nodes and links.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node.
    pub fn node(&mut self) -> TopologyNode {
        self.nodes += 1;
        self.out.push(Vec::new());
        TopologyNode(self.nodes - 1)
    }

    /// Adds a link in one direction, with its capacity in bytes a second.
    ///
    /// # Panics
    /// When a node is unknown, or the link carries nothing.
    pub fn link(&mut self, from: TopologyNode, to: TopologyNode, bytes_per_s: f64) -> LinkIndex {
        assert!(from.0 < self.nodes && to.0 < self.nodes, "a link between known nodes");
        assert!(bytes_per_s > 0.0 && bytes_per_s.is_finite(), "a link carries bytes");
        let link = LinkIndex(self.links.len() as u32);
        self.links.push(DirectedLink { from, to, bytes_per_s });
        self.out[from.0 as usize].push(link);
        self.paths.clear();
        link
    }

    /// Adds a wire: a link in each direction, with the capacity of each direction in bytes a
    /// second.
    pub fn wire(&mut self, one: TopologyNode, other: TopologyNode, bytes_per_s: f64) {
        self.link(one, other, bytes_per_s);
        self.link(other, one, bytes_per_s);
    }

    /// All links, by number.
    pub fn links(&self) -> &[DirectedLink] {
        &self.links
    }

    /// The shortest paths between two nodes, in a fixed order.
    pub fn paths(&mut self, from: TopologyNode, to: TopologyNode) -> Arc<ShortestPaths> {
        if let Some(known) = self.paths.get(&(from, to)) {
            return Arc::clone(known);
        }
        let found = Arc::new(self.search(from, to));
        self.paths.insert((from, to), Arc::clone(&found));
        found
    }

    /// Finds all shortest paths: a breadth-first search from the last node gives the distances, and
    /// each step of a path lowers the distance by one.
    fn search(&self, from: TopologyNode, to: TopologyNode) -> ShortestPaths {
        let mut away = vec![u32::MAX; self.nodes as usize];
        away[to.0 as usize] = 0;
        let mut into = vec![Vec::new(); self.nodes as usize];
        for link in &self.links {
            into[link.to.0 as usize].push(link.from);
        }
        let mut layer = vec![to];
        while !layer.is_empty() {
            let mut next = Vec::new();
            for node in layer {
                for &before in &into[node.0 as usize] {
                    if away[before.0 as usize] == u32::MAX {
                        away[before.0 as usize] = away[node.0 as usize] + 1;
                        next.push(before);
                    }
                }
            }
            layer = next;
        }
        let hops = away[from.0 as usize];
        if hops == u32::MAX {
            return ShortestPaths { links: Box::default(), hops: 0, count: 0 };
        }
        let (mut links, mut count) = (Vec::new(), 0);
        let mut way = Vec::new();
        self.descend(from, &away, &mut way, &mut |way| {
            links.extend_from_slice(way);
            count += 1;
            count < PATHS_MAX
        });
        ShortestPaths { links: links.into(), hops: hops as usize, count }
    }

    fn descend(
        &self,
        node: TopologyNode,
        away: &[u32],
        way: &mut Vec<LinkIndex>,
        found: &mut dyn FnMut(&[LinkIndex]) -> bool,
    ) -> bool {
        let left = away[node.0 as usize];
        if left == 0 {
            return found(way);
        }
        for &link in &self.out[node.0 as usize] {
            let next = self.links[link.0 as usize].to;
            if away[next.0 as usize] != left - 1 {
                continue;
            }
            way.push(link);
            let more = self.descend(next, away, way, found);
            way.pop();
            if !more {
                return false;
            }
        }
        true
    }
}

/// A data centre of three tiers, as drawn above.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreeTier {
    /// Pods.
    pub pods: u32,
    /// Racks in a pod.
    pub racks: u32,
    /// Hosts in a rack.
    pub hosts: u32,
    /// Aggregation switches in a pod.
    pub aggs: u32,
    /// Core switches.
    pub cores: u32,
    /// Bytes a second of each wire between host and rack.
    pub host_bytes_per_s: f64,
    /// Bytes a second of each wire between rack and aggregation.
    pub rack_bytes_per_s: f64,
    /// Bytes a second of each wire between aggregation and core.
    pub core_bytes_per_s: f64,
}

impl ThreeTier {
    /// The network of the thesis (3.4.1): 64 hosts, 4 pods of 4 racks, two aggregation switches in
    /// each pod, two core switches, and links of 1 Gb/s to the hosts.
    ///
    /// `rack_ratio` is the bandwidth of the hosts of a rack divided by the bandwidth of the rack's
    /// uplinks. `total_ratio` is the bandwidth of all hosts divided by the bandwidth of the core.
    /// The thesis prints the second ratio only.
    pub fn thesis(rack_ratio: f64, total_ratio: f64) -> Self {
        let host = 125e6;
        let (racks, hosts, aggs, cores) = (4u32, 4u32, 2u32, 2u32);
        let rack = host * f64::from(hosts) / f64::from(aggs) / rack_ratio;
        let core = host * f64::from(racks * hosts) / f64::from(aggs * cores) / total_ratio;
        Self {
            pods: 4,
            racks,
            hosts,
            aggs,
            cores,
            host_bytes_per_s: host,
            rack_bytes_per_s: rack,
            core_bytes_per_s: core,
        }
    }

    /// How many hosts there are.
    pub fn host_count(&self) -> u32 {
        self.pods * self.racks * self.hosts
    }

    /// The rack of a host, counted over all pods.
    pub fn rack_of(&self, host: TopologyNode) -> u32 {
        host.0 / self.hosts
    }

    /// The pod of a host.
    pub fn pod_of(&self, host: TopologyNode) -> u32 {
        host.0 / (self.hosts * self.racks)
    }

    /// Builds the network. Hosts are nodes `0..host_count()`, rack by rack.
    pub fn build(&self) -> Topology {
        let mut topology = Topology::new();
        for _ in 0..self.host_count() {
            topology.node();
        }
        let cores: Vec<_> = (0..self.cores).map(|_| topology.node()).collect();
        for pod in 0..self.pods {
            let aggs: Vec<_> = (0..self.aggs).map(|_| topology.node()).collect();
            for &agg in &aggs {
                for &core in &cores {
                    topology.wire(agg, core, self.core_bytes_per_s);
                }
            }
            for rack in 0..self.racks {
                let switch = topology.node();
                for &agg in &aggs {
                    topology.wire(switch, agg, self.rack_bytes_per_s);
                }
                for host in 0..self.hosts {
                    let host = (pod * self.racks + rack) * self.hosts + host;
                    topology.wire(TopologyNode(host), switch, self.host_bytes_per_s);
                }
            }
        }
        topology
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_as_many_as_the_tiers_allow() {
        let spec = ThreeTier::thesis(2.0, 8.0);
        let mut topology = spec.build();
        let count = |topology: &mut Topology, to| {
            let paths = topology.paths(TopologyNode(0), TopologyNode(to));
            (paths.len(), paths.hops())
        };
        assert_eq!(count(&mut topology, 0), (1, 0), "itself");
        assert_eq!(count(&mut topology, 1), (1, 2), "the same rack");
        assert_eq!(count(&mut topology, 4), (2, 4), "another rack of the pod");
        assert_eq!(count(&mut topology, 16), (8, 6), "another pod: up 2, across 2, down 2");
    }

    #[test]
    fn every_path_leads_from_its_first_node_to_its_last() {
        let mut topology = ThreeTier::thesis(2.0, 8.0).build();
        let paths = topology.paths(TopologyNode(3), TopologyNode(60));
        for path in paths.iter() {
            let mut at = TopologyNode(3);
            for link in path {
                let link = topology.links()[link.0 as usize];
                assert_eq!(link.from, at);
                at = link.to;
            }
            assert_eq!(at, TopologyNode(60));
        }
    }

    #[test]
    fn oversubscription_is_what_hosts_send_over_what_cores_carry() {
        let spec = ThreeTier::thesis(2.0, 8.0);
        let hosts = f64::from(spec.host_count()) * spec.host_bytes_per_s;
        let core = f64::from(spec.pods * spec.aggs * spec.cores) * spec.core_bytes_per_s;
        assert_eq!(hosts / core, 8.0);
        let rack = f64::from(spec.hosts) * spec.host_bytes_per_s;
        assert_eq!(rack / (f64::from(spec.aggs) * spec.rack_bytes_per_s), 2.0);
    }

    #[test]
    fn a_node_without_wires_is_reached_by_no_path() {
        let mut topology = ThreeTier::thesis(1.0, 1.0).build();
        let lone = topology.node();
        assert!(topology.paths(TopologyNode(0), lone).is_empty());
        assert_eq!(topology.paths(lone, lone).len(), 1);
    }
}
