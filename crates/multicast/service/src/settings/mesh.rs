//! Which nodes of a run measure each other's clocks.

use std::net::SocketAddr;

use evenfall_clock_service::mesh::MeshMember;
use evenfall_runtime::settings::SettingsMistake;

use super::{MulticastNode, RoleName, Settings};

/// Whether other nodes can find a node at the address that its settings give.
pub(super) fn is_known(address: &SocketAddr) -> bool {
    address.port() > 0 && !address.ip().is_unspecified()
}

fn keeps_time(role: RoleName) -> bool {
    !matches!(role, RoleName::Author | RoleName::Other)
}

impl Settings {
    /// The nodes that can measure each other's clocks: all roles of the multicast, the root first.
    /// Authors stamp nothing, and are left out. The place of a node in a mesh is its index in this
    /// list.
    pub fn timed(&self) -> Vec<&MulticastNode> {
        let mut nodes: Vec<&MulticastNode> =
            self.nodes.iter().filter(|node| keeps_time(node.role)).collect();
        nodes.sort_by_key(|node| node.role != RoleName::Root);
        nodes
    }

    /// Whether the nodes measure each other's clocks. With `run.clock = "auto"` the nodes do so
    /// when there are several hosts and this file has the address of every node. Where receivers
    /// are expected from other files, this file lacks their addresses.
    pub fn is_meshed(&self) -> bool {
        let nodes = self.timed();
        let is_one_host = nodes.iter().all(|node| node.address.ip().is_loopback());
        let is_whole = self.multicast.membership.expect_receivers == 0
            && nodes.len() > 1
            && nodes.iter().all(|node| is_known(&node.address));
        match self.run.clock.as_str() {
            "mesh" => true,
            "auto" => !is_one_host && is_whole,
            _ => false,
        }
    }

    /// The place of a node among the nodes that measure each other's clocks; `None` when each node
    /// uses the clock of its own host.
    pub fn member(&self, node: &MulticastNode) -> Option<MeshMember> {
        let nodes = self.timed();
        let place = nodes.iter().position(|other| other.id == node.id)? as u32;
        let addresses = nodes.iter().map(|node| node.address).collect();
        self.is_meshed().then_some(MeshMember { addresses, place })
    }

    /// Refuses a mesh whose nodes cannot find each other.
    pub(crate) fn check_mesh(&self) -> Result<(), SettingsMistake> {
        if !self.is_meshed() {
            return match self.clock.plant {
                None => Ok(()),
                Some(_) => {
                    let why = "clock.plant: needs run.clock = \"mesh\", so that the nodes find \
                               the planted errors";
                    Err(SettingsMistake::new("clock.plant", why))
                }
            };
        }
        let Some(node) = self.timed().into_iter().find(|node| !is_known(&node.address)) else {
            return Ok(());
        };
        let why = format!(
            "run.clock = \"mesh\": node {}: address = {}: nodes that measure each other's clocks \
             must know each other's addresses; give a port and the address of one interface",
            node.name, node.address
        );
        Err(SettingsMistake::new("run.clock", why))
    }
}
