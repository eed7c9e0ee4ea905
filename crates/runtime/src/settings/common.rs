//! The tables that every process reads: the run, sockets and threads, injected delays, and the
//! nodes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_core::{EndKeys, MasterKey, NodeId, NodeKey, SharedKey};
use evenfall_host::clock::{SyncSource, clockbound};
use evenfall_host::whole_file::{KEY_BYTES_MAX, read_secret_up_to};
use evenfall_port::{Options, PortKind};
use serde::{Deserialize, Serialize};

use super::SettingsError;
use super::check::{SettingsMistake, within};
use crate::address;

/// The words of `run.clock`.
pub const CLOCKS: [&str; 7] =
    ["auto", "mesh", "host", "same-host", "realtime", "chrony", "clockbound"];
/// The word of `io.port` by which every node chooses its kind of port when it starts.
pub const AUTO: &str = "auto";
/// Priorities of the kernel's real-time classes.
const REAL_TIME: RangeInclusive<u8> = 1..=99;
/// Longest spin: twice the longest hold by default. For longer spins there is `io.never_sleep`.
const SPIN_MAX: Duration = Duration::from_millis(100);
/// Bytes of a node's name. File names of its logs may have 255 bytes, and contain other words.
const NAME_BYTES_MAX: usize = 128;
/// The advice for an address that other machines can reach.
pub const OPEN: &str = "without run.key_file nothing listens or sends beyond loopback; set it, or \
                        use an address in 127.0.0.0/8 or ::1";

/// Settings that every process of a run shares. Services may own further keys of the table `[run]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunSettings {
    /// Directory of logs and report, relative to the settings file.
    pub dir: PathBuf,
    /// File with the shared key: 64 hexadecimal digits. Without a key nothing leaves loopback.
    pub key_file: Option<PathBuf>,
    /// File with the master key, which roots and standbys alone have. With it, each node speaks to
    /// the roots and to its neighbours under keys that no third node has.
    pub master_key_file: Option<PathBuf>,
    /// File with the key of a node that is no root. `{name}` stands for the name of the node, since
    /// all hosts have the same settings.
    pub node_key_file: Option<PathBuf>,
    /// The clock that all hosts share, one of [`CLOCKS`] or `/dev/ptpN`.
    pub clock: String,
    /// Whether every process writes the log of its messages, from which the report is made.
    pub log: bool,
    /// The shared key of a program without a key file. This key takes precedence over `key_file`.
    #[serde(skip)]
    pub key: Option<SharedKey>,
    /// The node key, or the master key, of a program without files. It takes precedence over the
    /// files.
    #[serde(skip)]
    pub node_keys: Option<EndKeys>,
}

impl Default for RunSettings {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("run"),
            key_file: None,
            master_key_file: None,
            node_key_file: None,
            clock: "auto".into(),
            log: true,
            key: None,
            node_keys: None,
        }
    }
}

impl RunSettings {
    /// Makes relative paths begin from `base`.
    pub fn rebase(&mut self, base: &Path) {
        self.dir = base.join(&self.dir);
        for file in [&mut self.key_file, &mut self.master_key_file, &mut self.node_key_file] {
            *file = file.take().map(|key| base.join(key));
        }
    }

    /// The file of a node's key.
    pub fn node_key_path(&self, node: &str) -> Option<PathBuf> {
        let file = self.node_key_file.as_ref()?;
        Some(file.to_string_lossy().replace("{name}", node).into())
    }

    /// The master key of a root, or the key of another node; `None` for a run without node keys.
    ///
    /// # Errors
    /// When a file cannot be read, holds no such key, or holds the key of another node.
    pub fn node_keys(&self, node: &Node, is_root: bool) -> Result<Option<EndKeys>, SettingsError> {
        if self.node_keys.is_some() {
            return Ok(self.node_keys.clone());
        }
        let (Some(master), Some(file)) = (&self.master_key_file, self.node_key_path(&node.name))
        else {
            return Ok(None);
        };
        if is_root {
            let named = |why: SettingsError| SettingsError(format!("run.master_key_file: {why}"));
            let key = read_master_key(master, self.key()?.as_ref()).map_err(named)?;
            return Ok(Some(EndKeys::Root(key)));
        }
        let named = |why: String| SettingsError(format!("run.node_key_file: {why}"));
        let key = read_node_key(&file).map_err(|why| named(why.0))?;
        let (shown, of) = (file.display(), key.node().0);
        if key.node() != node.id {
            let (name, id) = (&node.name, node.id.0);
            return Err(named(format!("{shown} is the key of node {of}, and {name} has id {id}")));
        }
        Ok(Some(EndKeys::Node(key)))
    }

    /// The shared key, if one is configured.
    ///
    /// # Errors
    /// When the key file cannot be read or holds no key.
    pub fn key(&self) -> Result<Option<SharedKey>, SettingsError> {
        if self.key.is_some() {
            return Ok(self.key.clone());
        }
        let Some(path) = &self.key_file else { return Ok(None) };
        read_key(path).map(Some).map_err(|error| SettingsError(format!("run.key_file: {error}")))
    }

    /// Whether the run has a shared key.
    pub fn is_keyed(&self) -> bool {
        self.key.is_some() || self.key_file.is_some()
    }

    /// Whether the clock can be read on this machine.
    ///
    /// # Errors
    /// The reason why the clock cannot be read.
    pub fn check_here(&self) -> Result<(), SettingsMistake> {
        let source = match self.clock.as_str() {
            "chrony" => SyncSource::Chrony,
            "clockbound" => SyncSource::ClockBound(clockbound::SEGMENT.into()),
            device if device.starts_with("/dev/") => SyncSource::Ptp(device.into()),
            _ => return Ok(()),
        };
        source.read().map(drop).map_err(|error| {
            let why = format!("run.clock = \"{}\": {error}", self.clock);
            SettingsMistake::new("run.clock", why)
        })
    }

    /// Checks that there is a clock of this name.
    ///
    /// # Errors
    /// The allowed names.
    pub fn check(&self) -> Result<(), SettingsMistake> {
        check_clock(&self.clock).map_err(|why| SettingsMistake::new("run.clock", why))?;
        let files = [&self.master_key_file, &self.node_key_file].map(Option::is_some);
        if files[0] != files[1] {
            let why = "run.master_key_file and run.node_key_file belong together: all hosts have \
                       the same settings, and each host the files of its own nodes";
            let key = if files[0] { "run.master_key_file" } else { "run.node_key_file" };
            return Err(SettingsMistake::new(key, why));
        }
        if files[1] && !self.is_keyed() {
            let why = "run.node_key_file needs run.key_file, under which the feed is sealed";
            return Err(SettingsMistake::new("run.node_key_file", why));
        }
        Ok(())
    }
}

/// Reads a shared key, or a master key, whose text is the same.
///
/// # Errors
/// When the file cannot be read, is open to other users, or holds no key.
pub fn read_key(path: &Path) -> Result<SharedKey, SettingsError> {
    let (text, shown) = (read_secret(path)?, path.display());
    SharedKey::from_hex(1, &text).map_err(|why| match NodeKey::from_text(&text) {
        Ok(key) => SettingsError(format!(
            "{shown} is the key of node {}, and here belongs a key of `evenfall key new` without \
             --nodes",
            key.node().0
        )),
        Err(_) => SettingsError(format!("{shown}: {why}")),
    })
}

/// Reads the master key of the roots, which must differ from the shared key of the run.
///
/// # Errors
/// As [`read_key`], and when the file holds the shared key.
pub fn read_master_key(
    path: &Path,
    shared: Option<&SharedKey>,
) -> Result<MasterKey, SettingsError> {
    let key = read_key(path)?;
    if shared.is_some_and(|shared| shared.secret() == key.secret()) {
        return Err(SettingsError(format!("{} is the shared key", path.display())));
    }
    Ok(MasterKey::new(*key.secret()))
}

/// Reads the key of one node.
///
/// # Errors
/// When the file cannot be read, is open to other users, or holds no key of a node.
pub fn read_node_key(path: &Path) -> Result<NodeKey, SettingsError> {
    let text = read_secret(path)?;
    NodeKey::from_text(&text).map_err(|why| SettingsError(format!("{}: {why}", path.display())))
}

/// Reads a secret, whose file must be closed to other users.
fn read_secret(path: &Path) -> Result<String, SettingsError> {
    let shown = path.display();
    let read = read_secret_up_to(path, KEY_BYTES_MAX);
    read.map_err(|error| SettingsError(format!("{shown}: {error}")))
}

/// Checks that there is a clock of this name.
///
/// # Errors
/// The allowed names.
fn check_clock(name: &str) -> Result<(), String> {
    if CLOCKS.contains(&name) || name.starts_with("/dev/") {
        return Ok(());
    }
    Err(format!("run.clock = \"{name}\": must be {} or /dev/ptpN", CLOCKS.join(", ")))
}

/// How the trees of a run share the threads of a root or a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TreeThreading {
    /// In a receiver, a thread for each tree where the host has more cores than the run has trees,
    /// and no more evenfall processes than cores; else one thread.
    #[default]
    Auto,
    /// A thread for each tree.
    Tree,
    /// One thread for all trees.
    One,
}

/// How sockets and threads are used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Io {
    /// The kind of port that moves the datagrams of roles, by name ([`PortKind::NAMED`]), or
    /// [`AUTO`].
    pub port: String,
    /// How long before a deadline a receiver stops sleeping and watches the clock. The default is
    /// 100 us where there are more cores than evenfall processes, else 40 us.
    #[serde(with = "humantime_serde")]
    pub spin: Option<Duration>,
    /// How long a receiver that holds messages leaves further arrivals unread in its socket, so
    /// that it wakes once for many arrivals. The time never goes beyond the next release. The
    /// default is 2 ms where there are more evenfall processes than cores, else zero.
    #[serde(with = "humantime_serde")]
    pub moderation: Option<Duration>,
    /// Whether a root or a receiver of several trees has a thread and a socket for each.
    pub threads: TreeThreading,
    /// Cores that the threads of the role may use. By default they may use all.
    pub cores: Vec<usize>,
    /// Whether threads never sleep. Each process then takes a core for itself.
    pub never_sleep: bool,
    /// How long the kernel polls the card before it puts a reader to sleep (`SO_BUSY_POLL`).
    #[serde(with = "humantime_serde")]
    pub kernel_busy_poll: Option<Duration>,
    /// Whether several datagrams to one destination are sent, and received, as one segmented
    /// buffer.
    pub segmentation: bool,
    /// Real-time priority of the role's thread, 1 to 99; needs CAP_SYS_NICE.
    pub real_time: Option<u8>,
    /// Bytes of kernel memory for waiting arrivals.
    pub receive_buffer_bytes: usize,
}

impl Default for Io {
    fn default() -> Self {
        Self {
            port: "udp".into(),
            spin: None,
            moderation: None,
            threads: TreeThreading::Auto,
            cores: Vec::new(),
            never_sleep: false,
            kernel_busy_poll: None,
            segmentation: true,
            real_time: None,
            receive_buffer_bytes: 4 << 20,
        }
    }
}

impl Io {
    /// The kind of port that roles open; `None` where every node chooses its own.
    ///
    /// # Errors
    /// The allowed kinds.
    pub fn kind(&self) -> Result<Option<PortKind>, SettingsMistake> {
        if self.port == AUTO {
            return Ok(None);
        }
        PortKind::named(&self.port).map(Some).ok_or_else(|| {
            let names: Vec<_> = PortKind::NAMED.iter().map(|(name, _)| *name).collect();
            let names = names.join(", ");
            let why = format!("io.port = \"{}\": must be {names} or {AUTO}", self.port);
            SettingsMistake::new("io.port", why)
        })
    }

    /// The options of ports as these settings state them. A process adds the options that follow
    /// from the run and from the host.
    ///
    /// # Errors
    /// As [`kind`](Self::kind).
    pub fn options(&self) -> Result<Options, SettingsMistake> {
        let kind = self.kind()?;
        Ok(Options {
            kind: kind.unwrap_or_default(),
            never_sleep: self.never_sleep,
            busy_poll: self.kernel_busy_poll,
            // The kernel of a proxy forwards single datagrams only. Where nodes choose, none of
            // them knows whether a kernel forwards behind it, so all send single datagrams.
            segmentation: self.segmentation && kind.is_some_and(|kind| !kind.forwards()),
            coalescing: self.segmentation,
            receive_buffer_bytes: self.receive_buffer_bytes,
            ..Options::default()
        })
    }

    /// # Errors
    /// The value that is out of range.
    pub fn check(&self) -> Result<(), SettingsMistake> {
        self.kind()?;
        within("io.real_time", self.real_time.unwrap_or(*REAL_TIME.start()), &REAL_TIME)?;
        match self.spin {
            Some(spin) if spin > SPIN_MAX => {
                let why = format!("io.spin = {spin:?}: must be 0s to {SPIN_MAX:?}");
                Err(SettingsMistake::new("io.spin", why))
            }
            _ => Ok(()),
        }
    }
}

/// Injected delays of arriving datagrams, a tool for experiments. See [`evenfall_port::Inject`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InjectSettings {
    /// File with the delays, which is read again during the run. Without a file there are no
    /// delays.
    pub file: Option<PathBuf>,
    /// Seed of the delays. The same seed draws the same delays.
    pub seed: u64,
    /// Datagrams that a process holds back at once. Beyond this number the newest are dropped and
    /// counted.
    pub queue_datagrams_max: usize,
}

impl Default for InjectSettings {
    fn default() -> Self {
        // The queue holds half a second of 100,000 datagrams a second.
        Self { file: None, seed: 1, queue_datagrams_max: 50_000 }
    }
}

impl InjectSettings {
    /// Makes relative paths begin from `base`.
    pub fn rebase(&mut self, base: &Path) {
        self.file = self.file.take().map(|file| base.join(file));
    }

    /// The injection settings of the port.
    pub fn to_port(&self) -> Option<evenfall_port::Inject> {
        let (seed, queue_datagrams_max) = (self.seed, self.queue_datagrams_max);
        let with = |file| evenfall_port::Inject { file, seed, queue_datagrams_max };
        self.file.clone().map(with)
    }
}

/// A process of the run, with the keys that every service knows. The service that owns its role
/// knows more keys of `[[node]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The name by which people call the node. Names are unique.
    pub name: String,
    /// The number by which the wire calls the node. Ids are unique.
    pub id: NodeId,
    /// Role of the node.
    pub role: String,
    /// Where the node listens, and where other nodes reach it. Port 0 takes any free port.
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
}

/// Refuses a name that cannot be part of the name of a file.
fn check_name(at: usize, node: &Node) -> Result<(), SettingsMistake> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = node.name.bytes().all(is_plain)
        && node.name.bytes().any(|byte| byte.is_ascii_alphanumeric());
    if is_name && node.name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let why = format!(
        "node: name = {:?}: must be 1 to {NAME_BYTES_MAX} of the characters a-z, A-Z, 0-9, '-', \
         '_' and '.', with a letter or digit among them",
        node.name
    );
    Err(SettingsMistake::new(format!("node.{at}.name"), why))
}

/// Refuses an address that belongs to no single host.
fn check_single(at: usize, node: &Node) -> Result<(), SettingsMistake> {
    let is_group = |ip: IpAddr| match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    };
    for (key, address) in [("address", Some(node.address)), ("http", node.http)] {
        let Some(address) = address.filter(|address| is_group(address.ip())) else { continue };
        let why = format!(
            "node {}: {key} = {address}: this is the address of a group of hosts; give the address \
             of the node's own host",
            node.name
        );
        return Err(SettingsMistake::new(format!("node.{at}.{key}"), why));
    }
    Ok(())
}

/// Refuses nodes that share a name or an id, names that no file can have, and addresses of groups
/// of hosts.
///
/// # Errors
/// The name or the address, or the second of the two nodes and the name or id that they share.
pub fn check_nodes(nodes: &[Node]) -> Result<(), SettingsMistake> {
    for (at, node) in nodes.iter().enumerate() {
        check_name(at, node)?;
        check_single(at, node)?;
        let twin = nodes[..at].iter().find(|n| n.name == node.name || n.id == node.id);
        if let Some(other) = twin {
            let key = if other.name == node.name { "name" } else { "id" };
            let why = format!(
                "node: {} (id {}) and {} (id {}) share a name or an id",
                other.name, other.id.0, node.name, node.id.0
            );
            return Err(SettingsMistake::new(format!("node.{at}.{key}"), why));
        }
    }
    Ok(())
}

/// Refuses nodes that other machines can reach, when there is no key.
///
/// # Errors
/// The first such node, and what to do.
pub fn check_closed(nodes: &[Node], keyed: bool) -> Result<(), SettingsMistake> {
    for (at, node) in nodes.iter().enumerate().filter(|_| !keyed) {
        let addresses = [("address", Some(node.address)), ("http", node.http)];
        let mut given = addresses.into_iter().filter_map(|(key, address)| Some((key, address?)));
        if let Some((key, address)) = given.find(|(_, address)| !address.ip().is_loopback()) {
            let why = format!("node {}: {key} = {address}: {OPEN}", node.name);
            return Err(SettingsMistake::new(format!("node.{at}.{key}"), why));
        }
    }
    Ok(())
}

/// Refuses two nodes at one address. The second node could not bind it, or would take datagrams of
/// the first. Refuses IPv4 beside IPv6 as well, because a socket sends to one of them alone.
///
/// # Errors
/// The second node, and the node at its address or the first node.
pub fn check_addresses(nodes: &[Node]) -> Result<(), SettingsMistake> {
    // Port 0 and the address of all interfaces may be used on several hosts.
    let is_given = |address: &SocketAddr| address.port() > 0 && !address.ip().is_unspecified();
    let mut taken = BTreeMap::new();
    for (at, node) in nodes.iter().enumerate() {
        let first = &nodes[0];
        if node.address.is_ipv4() != first.address.is_ipv4() {
            let why = format!(
                "node {}: address = {}: node {} has {}; one run has either IPv4 or IPv6 addresses",
                node.name, node.address, first.name, first.address
            );
            return Err(SettingsMistake::new(format!("node.{at}.address"), why));
        }
        for (key, address) in [("address", Some(node.address)), ("http", node.http)] {
            let Some(address) = address.filter(is_given) else { continue };
            // Data goes over UDP and HTTP over TCP, so their ports cannot collide.
            if let Some(other) = taken.insert((key, address), &node.name) {
                let why = format!(
                    "node {}: {key} = {address}: node {other} has it already; give each its own \
                     address or port",
                    node.name
                );
                return Err(SettingsMistake::new(format!("node.{at}.{key}"), why));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_choose_their_ports_send_single_datagrams_and_gather_what_arrives() {
        let options = |port: &str| Io { port: port.into(), ..Io::default() }.options().unwrap();
        let (stated, chosen) = (options("udp"), options(AUTO));
        assert!(stated.segmentation && stated.coalescing);
        assert!(!chosen.segmentation && chosen.coalescing);
        assert!(!options("tc").segmentation, "a kernel forwards behind the node");
        assert_eq!(chosen.kind, PortKind::Udp);
        let refused = Io { port: "quick".into(), ..Io::default() }.check().unwrap_err();
        assert!(refused.why.ends_with("must be udp, tc or auto"), "{}", refused.why);
    }
}
