//! The settings of the multicast's roles: the tables `[run]`, `[feed]`, `[io]`, `[inject]`,
//! `[clock]`, `[trust]` and `[multicast]`, and the nodes that are root, proxy, receiver or
//! recorder.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

pub use evenfall_clock_service::settings::steps_file;
pub use evenfall_clock_service::{ClockSettings, Planting};
use evenfall_core::{EndKeys, NodeId, SharedKey};
#[cfg(feature = "roles")]
use evenfall_feed_service::Feed;
use evenfall_multicast_machine::{Begin, Config};
use evenfall_runtime::address;
use evenfall_runtime::settings::check::within;
use evenfall_runtime::settings::{
    self, InjectSettings, Io, RunSettings, SettingsError, SettingsMistake, check_addresses,
    check_closed, check_nodes,
};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

#[cfg(feature = "settings")]
mod file;
mod mesh;
mod plain;
mod signing_keys;
mod voters;

pub use self::plain::{EmbeddedRootSettings, PublisherSettings, Subscription};
pub use self::signing_keys::{TrustSettings, public_text};

/// Trees of a run. One feed does not keep more than sixty-four cores busy.
const TREES: RangeInclusive<u32> = 1..=64;

/// Role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RoleName {
    /// Publishes the feed.
    Root,
    /// Votes with the root on each frame, and may go on with the feed when the root dies.
    Standby,
    /// Takes the feed in and publishes it to the root that leads. An author is a process that
    /// outlives the root.
    Author,
    /// Forwards the feed.
    Proxy,
    /// Holds and releases messages. Older settings use the word `recv`.
    #[serde(alias = "recv")]
    Receiver,
    /// A receiver that hands every message on to participants who are no nodes.
    Gateway,
    /// A receiver that keeps every message in a store, and repairs messages for other nodes.
    Recorder,
    /// A role of another service, such as that of an agent.
    #[serde(other)]
    Other,
}

impl fmt::Display for RoleName {
    /// Writes the name of the role as in the settings.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "root",
            Self::Standby => "standby",
            Self::Author => "author",
            Self::Proxy => "proxy",
            Self::Receiver => "receiver",
            Self::Gateway => "gateway",
            Self::Recorder => "recorder",
            Self::Other => "other",
        })
    }
}

/// One process of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MulticastNode {
    /// The name by which people call the node. Names are unique.
    pub name: String,
    /// The number by which the wire calls the node. Ids are unique.
    pub id: NodeId,
    /// Role of the node.
    pub role: RoleName,
    /// Where the node listens, and where other nodes reach it. Other nodes need only the root's
    /// address. Port 0 takes any free port, except at a root.
    #[serde(deserialize_with = "address::deserialize")]
    pub address: SocketAddr,
    /// Where the node serves `/metrics`, `/healthz` and `/status`. By default it serves none of
    /// them.
    #[serde(
        default,
        deserialize_with = "address::deserialize_optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub http: Option<SocketAddr>,
    /// The tree that a proxy serves, when the run has several trees.
    #[serde(default, skip_serializing_if = "is_first_tree")]
    pub tree: u32,
    /// Directory of the store in which a recorder keeps the feed, relative to the settings file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<PathBuf>,
    /// Where a receiver begins, instead of with the live feed: `start` for a recorder's first
    /// message, the number of a message, or a time such as `2026-11-21T14:30:00Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

impl MulticastNode {
    /// Where the node begins.
    ///
    /// # Errors
    /// When `from` has none of its allowed forms.
    pub fn begin(&self) -> Result<Begin, SettingsError> {
        match self.from.as_deref() {
            None | Some("live") => Ok(Begin::Live),
            Some("start") => Ok(Begin::Start),
            Some(text) => begin_at(text).ok_or_else(|| {
                SettingsError::new(format!(
                    "node {}: from = \"{text}\": must be start, live, the number of a message, or \
                     a time such as 2026-11-21T14:30:00Z",
                    self.name
                ))
            }),
        }
    }
}

impl MulticastNode {
    /// The name under which an author publishes, for the roots: the same in each of its processes.
    pub fn line(&self) -> u64 {
        u64::from(self.id.0) + 1
    }

    /// The part of the node that every service knows.
    pub fn plain(&self) -> settings::Node {
        settings::Node {
            name: self.name.clone(),
            id: self.id,
            role: self.role.to_string(),
            address: self.address,
            http: self.http,
        }
    }
}

/// Whether a node may leave its tree out.
fn is_first_tree(tree: &u32) -> bool {
    *tree == 0
}

fn begin_at(text: &str) -> Option<Begin> {
    if let Ok(number) = text.parse() {
        return Some(Begin::Message(number));
    }
    let time = humantime::parse_rfc3339_weak(text).ok()?;
    let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_nanos()).ok().map(Begin::Time)
}

/// The keys of the table `[run]` that the multicast adds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunOptions {
    /// Trees side by side, over which symbols are sharded.
    pub trees: u32,
    /// How long empty frames measure the paths of each tree before the first message.
    #[serde(with = "humantime_serde")]
    pub warm_up: Duration,
    /// How long the root waits at the end for receivers that are not finished.
    #[serde(with = "humantime_serde")]
    pub finish_timeout: Duration,
    /// How long a key of the run is in use, in a run with node keys. Zero is as long as the run.
    #[serde(with = "humantime_serde")]
    pub key_lifetime: Duration,
}

impl RunOptions {
    /// How long the rehearsal takes. Each frame goes to one tree, and each tree gets as many frames
    /// as if it were alone.
    pub fn rehearsal(&self) -> Duration {
        self.warm_up * self.trees
    }
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            trees: 1,
            warm_up: Duration::from_secs(5),
            finish_timeout: Duration::from_secs(15),
            key_lifetime: Duration::from_secs(3_600),
        }
    }
}

/// The settings of the multicast's roles. All hosts use the same settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// General settings of the run.
    pub run: RunSettings,
    /// The multicast's settings of the run.
    pub course: RunOptions,
    /// Where the messages come from.
    #[cfg(feature = "roles")]
    pub feed: Feed,
    /// Sockets and threads.
    pub io: Io,
    /// Injected delays.
    pub inject: InjectSettings,
    /// How the nodes measure each other's clocks.
    pub clock: ClockSettings,
    /// The public keys of those who may write the feed, and the own signing key.
    pub trust: TrustSettings,
    /// The protocol.
    pub multicast: Config,
    /// The processes that have a role of the multicast.
    pub nodes: Vec<MulticastNode>,
}

impl Settings {
    /// The node of this name.
    ///
    /// # Errors
    /// The names in the settings.
    pub fn node(&self, name: &str) -> Result<&MulticastNode, SettingsError> {
        self.nodes.iter().find(|node| node.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.nodes.iter().map(|n| n.name.as_str()).collect();
            SettingsError::new(format!("no node is called {name}; there are: {}", names.join(", ")))
        })
    }

    /// Nodes that have this role.
    pub fn count(&self, role: RoleName) -> usize {
        self.nodes.iter().filter(|node| node.role == role).count()
    }

    /// Nodes that receive: a gateway or a recorder takes a place beside the receivers.
    pub fn count_leaves(&self) -> usize {
        let roles = [RoleName::Receiver, RoleName::Gateway, RoleName::Recorder];
        roles.into_iter().map(|role| self.count(role)).sum()
    }

    /// The root.
    ///
    /// # Errors
    /// When no node has that role.
    pub fn root(&self) -> Result<&MulticastNode, SettingsError> {
        let root = self.nodes.iter().find(|node| node.role == RoleName::Root);
        root.ok_or_else(|| SettingsError::new("no [[node]] has role = \"root\""))
    }

    /// The master key of a root or standby, or the key of another node; `None` for a run without
    /// node keys.
    ///
    /// # Errors
    /// When the file of the key cannot be read or is not the key of this node.
    pub fn node_keys(&self, node: &MulticastNode) -> Result<Option<EndKeys>, SettingsError> {
        let is_root = matches!(node.role, RoleName::Root | RoleName::Standby);
        self.run.node_keys(&node.plain(), is_root)
    }

    /// The shared key, if one is configured.
    ///
    /// # Errors
    /// When its file cannot be read or is no key.
    pub fn key(&self) -> Result<Option<SharedKey>, SettingsError> {
        self.run.key()
    }
}

impl MulticastNode {
    /// Checks the node, which stands at this place in the list.
    fn check(&self, at: usize, trees: u32) -> Result<(), SettingsMistake> {
        if let Err(error) = self.begin() {
            return Err(SettingsMistake::new(format!("node.{at}.from"), error.to_string()));
        }
        if self.tree >= trees {
            let Self { name, tree, .. } = self;
            let why =
                format!("node {name}: tree = {tree}, but run.trees = {trees} (trees count from 0)");
            return Err(SettingsMistake::new(format!("node.{at}.tree"), why));
        }
        Ok(())
    }
}

impl Settings {
    /// Checks that the settings make sense to a program.
    fn check(&self) -> Result<(), SettingsMistake> {
        self.multicast
            .check()
            .map_err(|why| SettingsMistake::in_words(format!("multicast.{why}")))?;
        within("run.trees", self.course.trees, &TREES)?;
        self.run.check()?;
        #[cfg(feature = "roles")]
        self.feed.check()?;
        self.io.check()?;
        self.clock.check()?;
        self.trust.check()?;
        check_nodes(&self.plain_nodes())?;
        for (at, node) in self.nodes.iter().enumerate() {
            node.check(at, self.course.trees)?;
        }
        let roots = self.count(RoleName::Root);
        if self.count(RoleName::Other) < self.nodes.len() && roots != 1 {
            let last = self.nodes.iter().rposition(|node| node.role == RoleName::Root);
            let key = last.map_or(String::new(), |at| format!("node.{at}.role"));
            let why = format!("node: {roots} nodes have role = \"root\"; there must be one");
            return Err(SettingsMistake::new(key, why));
        }
        self.check_voters()
    }

    /// Checks the settings that `evenfall run` would refuse later, and the settings that would make
    /// a run wait without end.
    ///
    /// # Errors
    /// The missing part, or an address that is open beyond this machine without a key.
    pub fn check_run(&self) -> Result<(), SettingsMistake> {
        let others = self.count(RoleName::Other);
        // The receivers may stand in another file, when this file says how many to expect.
        let expected = self.multicast.membership.expect_receivers > 0;
        if others < self.nodes.len() && self.count_leaves() == 0 && !expected {
            let why = "no receivers: a run needs one root and at least one receiver, gateway or \
                       recorder";
            return Err(SettingsMistake::new("", why));
        }
        check_addresses(&self.plain_nodes())?;
        self.check_root_ports()?;
        self.check_mesh()?;
        let keyed = self.run.is_keyed();
        #[cfg(feature = "roles")]
        self.feed.check_closed(keyed)?;
        check_closed(&self.plain_nodes(), keyed)
    }

    /// Every node begins at a root's address, so a port that the system picks would be found by
    /// nobody.
    fn check_root_ports(&self) -> Result<(), SettingsMistake> {
        let is_root = |role| matches!(role, RoleName::Root | RoleName::Standby);
        let lost = |node: &MulticastNode| is_root(node.role) && node.address.port() == 0;
        let Some(at) = self.nodes.iter().position(lost) else { return Ok(()) };
        let MulticastNode { name, address, .. } = &self.nodes[at];
        let why =
            format!("node {name}: address = {address}: nobody finds a root on port 0; give a port");
        Err(SettingsMistake::new(format!("node.{at}.address"), why))
    }

    /// Checks the parts of this machine that a run needs.
    ///
    /// # Errors
    /// The file or the clock that is missing.
    pub fn check_here(&self) -> Result<(), SettingsMistake> {
        #[cfg(feature = "roles")]
        if let Some(file) = &self.feed.file
            && let Err(error) = opens(file)
        {
            let shown = file.display();
            let why = format!("feed.file = {shown}: {error}; the root reads it on its host");
            return Err(SettingsMistake::new("feed.file", why));
        }
        self.run.check_here()
    }

    fn plain_nodes(&self) -> Vec<settings::Node> {
        self.nodes.iter().map(MulticastNode::plain).collect()
    }
}

/// Whether this process can read the file.
#[cfg(feature = "roles")]
fn opens(file: &std::path::Path) -> std::io::Result<()> {
    let is_directory = std::fs::File::open(file)?.metadata()?.is_dir();
    if is_directory { Err(std::io::ErrorKind::IsADirectory.into()) } else { Ok(()) }
}
