//! The tables that every process reads: the run, sockets and threads, injected delays, and the
//! nodes.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_core::{NodeId, SharedKey};
use evenfall_host::clock::{SyncSource, clockbound};
use evenfall_host::whole_file::{KEY_BYTES_MAX, read_up_to};
use evenfall_port::{Kind, Options};
use serde::{Deserialize, Serialize};

use super::SettingsError;
use super::check::{Mistake, within};
use crate::address;

/// The words of `run.clock`.
pub const CLOCKS: [&str; 7] =
    ["auto", "mesh", "host", "same-host", "realtime", "chrony", "clockbound"];
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
pub struct Run {
    /// Directory of logs and report, relative to the settings file.
    pub dir: PathBuf,
    /// File with the shared key: 64 hexadecimal digits. Without a key nothing leaves loopback.
    pub key_file: Option<PathBuf>,
    /// The clock that all hosts share, one of [`CLOCKS`] or `/dev/ptpN`.
    pub clock: String,
    /// Whether every process writes the log of its messages, from which the report is made.
    pub log: bool,
    /// The shared key of a program without a key file. This key takes precedence over `key_file`.
    #[serde(skip)]
    pub key: Option<SharedKey>,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("run"),
            key_file: None,
            clock: "auto".into(),
            log: true,
            key: None,
        }
    }
}

impl Run {
    /// Makes relative paths begin from `base`.
    pub fn rebase(&mut self, base: &Path) {
        self.dir = base.join(&self.dir);
        self.key_file = self.key_file.take().map(|key| base.join(key));
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
    pub fn check_here(&self) -> Result<(), Mistake> {
        let source = match self.clock.as_str() {
            "chrony" => SyncSource::Chrony,
            "clockbound" => SyncSource::ClockBound(clockbound::SEGMENT.into()),
            device if device.starts_with("/dev/") => SyncSource::Ptp(device.into()),
            _ => return Ok(()),
        };
        source.read().map(drop).map_err(|error| {
            let why = format!("run.clock = \"{}\": {error}", self.clock);
            Mistake::new("run.clock", why)
        })
    }

    /// Checks that there is a clock of this name.
    ///
    /// # Errors
    /// The allowed names.
    pub fn check(&self) -> Result<(), Mistake> {
        check_clock(&self.clock).map_err(|why| Mistake::new("run.clock", why))
    }
}

/// Reads the shared key. As with ssh, a key file that belongs to the user of this process must be
/// closed to all other users. A key file of another owner was handed in, as Kubernetes does, and
/// its mode is the owner's matter.
///
/// # Errors
/// When the file cannot be read, is open to other users, or holds no key.
pub fn read_key(path: &Path) -> Result<SharedKey, SettingsError> {
    let shown = path.display();
    let failed = |error: std::io::Error| SettingsError(format!("{shown}: {error}"));
    let read = read_up_to(path, KEY_BYTES_MAX).map_err(failed)?;
    let file = read.about.clone();
    let text = read.into_text().map_err(failed)?;
    let own = fs::metadata("/proc/self").map_err(failed)?.uid();
    let mode = file.mode() & 0o777;
    if file.uid() == own && mode & 0o077 != 0 {
        return Err(SettingsError(format!(
            "{shown}: its mode {mode:o} gives the key to other users; run chmod 600 {shown}"
        )));
    }
    SharedKey::from_hex(1, &text).map_err(|why| SettingsError(format!("{shown}: {why}")))
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

/// How sockets and threads are used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Io {
    /// The kind of port that moves the datagrams of roles, by name ([`Kind::NAMED`]).
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
    /// Cores that the thread of the role may use. By default it may use all.
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
    /// The kind of port that roles open.
    ///
    /// # Errors
    /// The allowed kinds.
    pub fn kind(&self) -> Result<Kind, Mistake> {
        Kind::named(&self.port).ok_or_else(|| {
            let names: Vec<_> = Kind::NAMED.iter().map(|(name, _)| *name).collect();
            let why = format!("io.port = \"{}\": must be {}", self.port, names.join(" or "));
            Mistake::new("io.port", why)
        })
    }

    /// The options of ports as these settings state them. A process adds the options that follow
    /// from the run and from the host.
    ///
    /// # Errors
    /// As [`kind`](Self::kind).
    pub fn options(&self) -> Result<Options, Mistake> {
        Ok(Options {
            kind: self.kind()?,
            never_sleep: self.never_sleep,
            busy_poll: self.kernel_busy_poll,
            segmentation: self.segmentation,
            coalescing: self.segmentation,
            receive_buffer_bytes: self.receive_buffer_bytes,
            ..Options::default()
        })
    }

    /// # Errors
    /// The value that is out of range.
    pub fn check(&self) -> Result<(), Mistake> {
        self.kind()?;
        within("io.real_time", self.real_time.unwrap_or(*REAL_TIME.start()), &REAL_TIME)?;
        match self.spin {
            Some(spin) if spin > SPIN_MAX => {
                let why = format!("io.spin = {spin:?}: must be 0s to {SPIN_MAX:?}");
                Err(Mistake::new("io.spin", why))
            }
            _ => Ok(()),
        }
    }
}

/// Injected delays of arriving datagrams, a tool for experiments. See [`evenfall_port::Inject`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Inject {
    /// File with the delays, which is read again during the run. Without a file there are no
    /// delays.
    pub file: Option<PathBuf>,
    /// Seed of the delays. The same seed draws the same delays.
    pub seed: u64,
    /// Datagrams that a process holds back at once. Beyond this number the newest are dropped and
    /// counted.
    pub queue_datagrams_max: usize,
}

impl Default for Inject {
    fn default() -> Self {
        // The queue holds half a second of 100,000 datagrams a second.
        Self { file: None, seed: 1, queue_datagrams_max: 50_000 }
    }
}

impl Inject {
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
fn check_name(at: usize, node: &Node) -> Result<(), Mistake> {
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
    Err(Mistake::new(format!("node.{at}.name"), why))
}

/// Refuses an address that belongs to no single host.
fn check_single(at: usize, node: &Node) -> Result<(), Mistake> {
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
        return Err(Mistake::new(format!("node.{at}.{key}"), why));
    }
    Ok(())
}

/// Refuses nodes that share a name or an id, names that no file can have, and addresses of groups
/// of hosts.
///
/// # Errors
/// The name or the address, or the second of the two nodes and the name or id that they share.
pub fn check_nodes(nodes: &[Node]) -> Result<(), Mistake> {
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
            return Err(Mistake::new(format!("node.{at}.{key}"), why));
        }
    }
    Ok(())
}

/// Refuses nodes that other machines can reach, when there is no key.
///
/// # Errors
/// The first such node, and what to do.
pub fn check_closed(nodes: &[Node], keyed: bool) -> Result<(), Mistake> {
    for (at, node) in nodes.iter().enumerate().filter(|_| !keyed) {
        let addresses = [("address", Some(node.address)), ("http", node.http)];
        let mut given = addresses.into_iter().filter_map(|(key, address)| Some((key, address?)));
        if let Some((key, address)) = given.find(|(_, address)| !address.ip().is_loopback()) {
            let why = format!("node {}: {key} = {address}: {OPEN}", node.name);
            return Err(Mistake::new(format!("node.{at}.{key}"), why));
        }
    }
    Ok(())
}

/// Refuses two nodes at one address. The second node could not bind it, or would take datagrams of
/// the first. Refuses IPv4 beside IPv6 as well, because a socket sends to one of them alone.
///
/// # Errors
/// The second node, and the node at its address or the first node.
pub fn check_addresses(nodes: &[Node]) -> Result<(), Mistake> {
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
            return Err(Mistake::new(format!("node.{at}.address"), why));
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
                return Err(Mistake::new(format!("node.{at}.{key}"), why));
            }
        }
    }
    Ok(())
}
