//! Settings of a program that has no settings file: plain values become the settings of a run.

use std::net::SocketAddr;

use evenfall_core::{EndKeys, MasterKey, NodeId, NodeKey, SharedKey};
use evenfall_multicast_machine::Config;
use evenfall_runtime::settings::{RunSettings, SettingsError};

use super::{MulticastNode, RoleName, RunOptions, Settings, TrustSettings};

/// A receiver in a program, by plain values.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// Name of the receiver, for people.
    pub name: String,
    /// Number of the receiver on the wire. The root of a run without a key lets in only the ids
    /// that its settings name.
    pub id: NodeId,
    /// Where the receiver listens; port 0 takes any free port.
    pub address: SocketAddr,
    /// Where the root listens.
    pub root: SocketAddr,
    /// Where the standbys of the root listen: none, two or four.
    pub standbys: Vec<SocketAddr>,
    /// Trees of the run (`run.trees` of the root's settings). The receiver takes the streams 0 to
    /// `trees - 1`.
    pub trees: u32,
    /// The shared key of the run. Without a key nothing leaves loopback.
    pub key: Option<SharedKey>,
    /// The key of this node, for a run with node keys.
    pub node_key: Option<NodeKey>,
    /// The public keys of those who may write the feed, and the own signing key.
    pub trust: TrustSettings,
    /// The protocol.
    pub multicast: Config,
}

impl Subscription {
    /// A receiver of a run of one tree, without a key.
    pub fn new(root: SocketAddr, address: SocketAddr, id: NodeId) -> Self {
        let (name, multicast) = (format!("receiver-{}", id.0), Config::default());
        let trust = TrustSettings::default();
        let standbys = Vec::new();
        let (key, node_key) = (None, None);
        Self { name, id, address, root, standbys, trees: 1, key, node_key, trust, multicast }
    }

    /// The settings of a run in which this program knows the root, its standbys and itself.
    ///
    /// # Errors
    /// Which value is wrong, and what is allowed.
    pub fn settings(&self) -> Result<Settings, SettingsError> {
        // A receiver asks for the root by address. The number only has to differ from its own.
        let other = |place: u32| NodeId(self.id.0 ^ (place + 1));
        let mut nodes = vec![node("root".into(), other(0), RoleName::Root, self.root)];
        nodes.extend((1..).zip(&self.standbys).map(|(place, address)| {
            node(format!("standby-{place}"), other(place), RoleName::Standby, *address)
        }));
        nodes.push(node(self.name.clone(), self.id, RoleName::Receiver, self.address));
        let own = own_key(self.node_key.as_ref(), self.id)?;
        checked(self.trees, &self.key, own, self.multicast, nodes, &self.trust)
    }
}

/// A root in a program, by plain values.
#[derive(Clone, Debug)]
pub struct EmbeddedRootSettings {
    /// Number of the root on the wire.
    pub id: NodeId,
    /// Where the root listens.
    pub address: SocketAddr,
    /// The receivers that the root waits for: their ids, and where they listen. Port 0 stands for
    /// any port.
    pub receivers: Vec<(NodeId, SocketAddr)>,
    /// Trees over which the keys of messages are spread.
    pub trees: u32,
    /// The shared key of the run. Without a key nothing leaves loopback.
    pub key: Option<SharedKey>,
    /// The master key of the roots, for a run with node keys.
    pub master_key: Option<MasterKey>,
    /// The key by which the root signs the feed.
    pub trust: TrustSettings,
    /// The protocol.
    pub multicast: Config,
}

impl EmbeddedRootSettings {
    /// Name of the root, for people.
    pub const NAME: &str = "root";

    /// A root of one tree, without a key.
    pub fn new(address: SocketAddr, id: NodeId) -> Self {
        let multicast = Config::default();
        let trust = TrustSettings::default();
        let (key, master_key) = (None, None);
        let receivers = Vec::new();
        Self { id, address, receivers, trees: 1, key, master_key, trust, multicast }
    }

    /// The settings of a run of this root and its receivers.
    ///
    /// # Errors
    /// Which value is wrong, and what is allowed.
    pub fn settings(&self) -> Result<Settings, SettingsError> {
        let mut nodes = vec![node(Self::NAME.into(), self.id, RoleName::Root, self.address)];
        nodes.extend(self.receivers.iter().map(|(id, address)| {
            node(format!("receiver-{}", id.0), *id, RoleName::Receiver, *address)
        }));
        let master = self.master_key.clone().map(EndKeys::Root);
        checked(self.trees, &self.key, master, self.multicast, nodes, &self.trust)
    }
}

/// An author in a program, by plain values.
#[derive(Clone, Debug)]
pub struct PublisherSettings {
    /// Number of the author in the settings of its roots. The messages of all processes with this
    /// number are one sequence.
    pub id: NodeId,
    /// Where the author listens; port 0 takes any free port.
    pub address: SocketAddr,
    /// Where the root and its standbys listen: one, three or five addresses, the root first.
    pub roots: Vec<SocketAddr>,
    /// The shared key of the run. Without a key nothing leaves loopback.
    pub key: Option<SharedKey>,
    /// The key of this node, for a run with node keys.
    pub node_key: Option<NodeKey>,
}

impl PublisherSettings {
    /// Name of the author, for people.
    pub const NAME: &str = "author";

    /// An author that knows its roots, without a key.
    pub fn new(roots: &[SocketAddr], address: SocketAddr, id: NodeId) -> Self {
        Self { id, address, roots: roots.to_vec(), key: None, node_key: None }
    }

    /// The settings of a run in which this program knows the roots and itself.
    ///
    /// # Errors
    /// Which value is wrong, and what is allowed.
    pub fn settings(&self) -> Result<Settings, SettingsError> {
        // The roots are found by address. Their numbers only have to differ.
        let root = |(place, address): (u32, &SocketAddr)| {
            let role = if place == 0 { RoleName::Root } else { RoleName::Standby };
            node(format!("root-{place}"), NodeId(self.id.0 ^ (place + 1)), role, *address)
        };
        let mut nodes: Vec<MulticastNode> = (0..).zip(&self.roots).map(root).collect();
        nodes.push(node(Self::NAME.into(), self.id, RoleName::Author, self.address));
        // The receivers stand in the settings of the roots.
        let mut multicast = Config::default();
        multicast.membership.expect_receivers = 1;
        let own = own_key(self.node_key.as_ref(), self.id)?;
        checked(1, &self.key, own, multicast, nodes, &TrustSettings::default())
    }
}

fn node(name: String, id: NodeId, role: RoleName, address: SocketAddr) -> MulticastNode {
    MulticastNode { name, id, role, address, http: None, tree: 0, record: None, from: None }
}

/// The key of the node, which must be of this node.
fn own_key(key: Option<&NodeKey>, id: NodeId) -> Result<Option<EndKeys>, SettingsError> {
    match key {
        Some(key) if key.node() != id => Err(SettingsError::new(format!(
            "the node key is of node {}, and this node has id {}",
            key.node().0,
            id.0
        ))),
        key => Ok(key.cloned().map(EndKeys::Node)),
    }
}

fn checked(
    trees: u32,
    key: &Option<SharedKey>,
    node_keys: Option<EndKeys>,
    multicast: Config,
    nodes: Vec<MulticastNode>,
    trust: &TrustSettings,
) -> Result<Settings, SettingsError> {
    // Each program of the run knows the addresses of the root and of itself. To measure clocks, a
    // node needs the addresses of all nodes. So on several hosts each program believes its host's
    // clock.
    let clock = match nodes.iter().all(|node| node.address.ip().is_loopback()) {
        true => "same-host",
        false => "host",
    };
    if node_keys.is_some() && key.is_none() {
        let why = "a node key or a master key needs the shared key of the run, under which the \
                   feed is sealed";
        return Err(SettingsError::new(why));
    }
    // A run log needs a directory, and the program has named none.
    let (clock, key) = (clock.into(), key.clone());
    let run = RunSettings { log: false, clock, key, node_keys, ..RunSettings::default() };
    let course = RunOptions { trees, ..RunOptions::default() };
    let trust = trust.clone();
    let settings = Settings { run, course, multicast, nodes, trust, ..Settings::default() };
    let checked = settings.check().and_then(|()| settings.check_run());
    checked.map_err(|mistake| SettingsError::new(mistake.why))?;
    Ok(settings)
}
