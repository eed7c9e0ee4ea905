//! The section `[files]` of the settings, and the nodes that keep replicated files.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_core::SharedKey;
use evenfall_runtime::address::{HostPort, SourcePorts};
use evenfall_runtime::settings::{
    self, KnownTable, RunSettings, SettingsDocument, SettingsError, SettingsMistake, check_closed,
    check_nodes,
};
use serde::{Deserialize, Serialize};

/// The value of `role` in `[[node]]` for the nameserver.
pub const NAMESERVER: &str = "nameserver";
/// The value of `role` in `[[node]]` for a dataserver.
pub const DATASERVER: &str = "dataserver";
/// The value of `role` in `[[node]]` for the flowserver.
pub const FLOWSERVER: &str = "flowserver";
/// Bytes of the name of a rack, as the machines allow.
const RACK_BYTES_MAX: usize = 128;
/// Shortest silence after which a dataserver counts as dead: four of its signs of life.
const DEAD_AFTER_MIN: Duration = Duration::from_secs(1);
/// Shortest soft limit of a lease. A dataserver renews a lease four times within its soft limit,
/// and some of the renewals may be lost.
const LEASE_MIN: Duration = Duration::from_secs(1);

/// Most connections over which a client reads one file. Each of them may have one more beside it,
/// while a part is hedged or another path is tried.
pub const CONNECTIONS_MAX: usize = 8;
/// Most ports that a slow connection may try.
const READ_PORTS_MAX: u32 = 64;
/// The bytes that a client may have read and not written. The least is one piece of a connection.
/// The greatest is four times what a network of 100 Gb/s carries in a round trip of 20 ms.
const READ_BYTES: core::ops::RangeInclusive<usize> = 131_072..=1 << 30;

/// Most paths that are set up beforehand: those between two pods of a fat tree of 16-port switches.
/// A flowserver looks at so many paths between two racks.
const PATHS_MAX: usize = 64;

/// A path between racks that was set up beforehand: switches carry the connections of clients from
/// these ports over it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreparedPath {
    /// The name of the path for people.
    pub name: String,
    /// The ports of clients.
    pub ports: SourcePorts,
    /// Bytes a second of a rack's link to the path, in each direction.
    pub bytes_per_second: u64,
}

/// The limits within which `evenfall files get` reads a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// Connections that read at once, from 1 to [`CONNECTIONS_MAX`].
    pub connections: usize,
    /// Source ports that a slow connection tries, the first one included. One turns trials off.
    pub ports: u32,
    /// Bytes that have come and are not written yet.
    pub bytes_in_flight: usize,
}

impl Default for ReadLimits {
    fn default() -> Self {
        FilesSettings::default().read_limits()
    }
}

/// The keys of the table `[files]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilesSettings {
    /// Whether clients on other hosts may connect without the key.
    pub open: bool,
    /// Names by which clients address the servers, beside `localhost`, the name of the server's
    /// host, and the names in `address` and `advertise`. `*.` at the beginning of a name stands for
    /// any name in front of the rest.
    pub hosts: Vec<String>,
    /// Whether owner, group and mode are enforced. A client is believed who it says it is.
    pub permissions: bool,
    /// Users who may do everything, beside the user of the nameserver's process.
    pub superusers: Vec<String>,
    /// The group whose members may do everything.
    pub supergroup: String,
    /// Silence after which a dataserver counts as dead.
    #[serde(with = "humantime_serde")]
    pub dead_after: Duration,
    /// A disk with less room gets copies only when no other disk is left.
    pub room_bytes_min: u64,
    /// Number of dataservers that keep copies of the nameserver's log.
    pub log_copies: u16,
    /// Time without bytes after which another writer may take over the lease of a file.
    #[serde(with = "humantime_serde")]
    pub lease_soft_limit: Duration,
    /// Time without bytes after which a writer loses its lease, although nobody asks for it.
    #[serde(with = "humantime_serde")]
    pub lease_hard_limit: Duration,
    /// Bytes that a dataserver reads in a second to look for damage. Zero turns this reading off.
    pub scrub_bytes_per_second: u64,
    /// Connections over which a client reads one file.
    pub read_connections: usize,
    /// Source ports that a slow connection of a client tries, the first one included.
    pub read_ports: u32,
    /// Bytes of one file that a client has read and not written yet.
    pub read_bytes_in_flight: usize,
    /// Bytes a second of a host's link, as a flowserver assumes.
    pub host_bytes_per_second: u64,
    /// Bytes a second of a rack's link, as a flowserver assumes.
    pub rack_bytes_per_second: u64,
    /// Paths between racks among which a flowserver chooses.
    pub paths: Vec<PreparedPath>,
}

impl Default for FilesSettings {
    fn default() -> Self {
        Self {
            open: false,
            hosts: Vec::new(),
            permissions: true,
            superusers: Vec::new(),
            supergroup: "supergroup".into(),
            dead_after: Duration::from_secs(5),
            room_bytes_min: 1 << 30,
            log_copies: 3,
            // The limits of HDFS.
            lease_soft_limit: Duration::from_secs(60),
            lease_hard_limit: Duration::from_secs(20 * 60),
            scrub_bytes_per_second: 4_000_000,
            // More than two connections take bandwidth from others and gain little.
            read_connections: 2,
            // The limit of the simulated policy `agentless`.
            read_ports: 8,
            read_bytes_in_flight: 2 << 20,
            host_bytes_per_second: 1_250_000_000,
            rack_bytes_per_second: 2_500_000_000,
            paths: Vec::new(),
        }
    }
}

impl FilesSettings {
    /// The limits within which a client reads a file.
    pub fn read_limits(&self) -> ReadLimits {
        ReadLimits {
            connections: self.read_connections,
            ports: self.read_ports,
            bytes_in_flight: self.read_bytes_in_flight,
        }
    }

    /// Refuses paths that cannot be told apart.
    fn check_paths(&self) -> Result<(), SettingsMistake> {
        let wrong =
            |why: String| Err(SettingsMistake::new("files.paths", format!("files.paths: {why}")));
        if self.paths.len() > PATHS_MAX {
            return wrong(format!("there may be {PATHS_MAX} paths"));
        }
        for (at, path) in self.paths.iter().enumerate() {
            if path.bytes_per_second == 0 {
                return wrong(format!("{}: bytes_per_second must be above 0", path.name));
            }
            let overlaps = |other: &&PreparedPath| {
                path.ports.first <= other.ports.last && other.ports.first <= path.ports.last
            };
            if let Some(other) = self.paths[..at].iter().find(overlaps) {
                let (own, other) = (&path.name, &other.name);
                return wrong(format!("{own} and {other} have the same ports"));
            }
        }
        Ok(())
    }

    /// Refuses limits of leases that cannot work.
    fn check_leases(&self) -> Result<(), SettingsMistake> {
        let wrong =
            |key: &str, why: String| Err(SettingsMistake::new(key, format!("{key}: {why}")));
        if self.lease_soft_limit < LEASE_MIN {
            return wrong("files.lease_soft_limit", format!("must be {LEASE_MIN:?} at least"));
        }
        if self.lease_hard_limit < self.lease_soft_limit {
            let why = "must be files.lease_soft_limit at least".to_owned();
            return wrong("files.lease_hard_limit", why);
        }
        Ok(())
    }

    /// Refuses limits of a client that cannot work.
    fn check_reading(&self) -> Result<(), SettingsMistake> {
        let wrong =
            |key: &str, why: String| Err(SettingsMistake::new(key, format!("{key}: {why}")));
        if !(1..=CONNECTIONS_MAX).contains(&self.read_connections) {
            return wrong("files.read_connections", format!("must be 1 to {CONNECTIONS_MAX}"));
        }
        if !(1..=READ_PORTS_MAX).contains(&self.read_ports) {
            return wrong("files.read_ports", format!("must be 1 to {READ_PORTS_MAX}"));
        }
        if !READ_BYTES.contains(&self.read_bytes_in_flight) {
            let (least, most) = READ_BYTES.into_inner();
            return wrong("files.read_bytes_in_flight", format!("must be {least} to {most}"));
        }
        Ok(())
    }
}

/// A server of replicated files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesNode {
    /// The keys that every service knows. The server takes HTTP at its address, and datagrams on
    /// the same number.
    pub plain: settings::Node,
    /// The keys that only servers of files have.
    pub own: Own,
}

/// The keys of `[[node]]` that only servers of files read, or that they read in their own way.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Own {
    /// The address at which the server listens, as it is written: a name is looked up again when
    /// the server is lost.
    pub address: HostPort,
    /// The address at which other servers and clients reach the server, when that differs from the
    /// address at which it listens.
    pub advertise: Option<HostPort>,
    /// The rack of a dataserver's host.
    pub rack: Option<String>,
    /// Directory of the server's log and chunks, relative to the settings file.
    pub files: Option<PathBuf>,
}

impl FilesNode {
    fn is(&self, role: &str) -> bool {
        self.plain.role == role
    }

    fn is_ours(&self) -> bool {
        [NAMESERVER, DATASERVER, FLOWSERVER].contains(&self.plain.role.as_str())
    }

    /// The address at which others reach the server, as it is written.
    pub fn reached_by(&self) -> &HostPort {
        self.own.advertise.as_ref().unwrap_or(&self.own.address)
    }

    /// The address at which others reach the server. A name is looked up.
    ///
    /// # Errors
    /// When the name has no address.
    pub fn reached_at(&self) -> Result<SocketAddr, SettingsError> {
        let found = self.reached_by().look_up();
        found.map_err(|error| SettingsError::new(format!("node {}: {error}", self.plain.name)))
    }

    fn check(&self, at: usize) -> Result<(), SettingsMistake> {
        let wrong = |key: &str, why: &str| {
            let why = format!("node {}: {why}", self.plain.name);
            Err(SettingsMistake::new(format!("node.{at}.{key}"), why))
        };
        if !self.is_ours() {
            return Ok(());
        }
        if self.own.rack.as_ref().is_some_and(|rack| rack.len() > RACK_BYTES_MAX) {
            return wrong("rack", "rack has more than 128 bytes");
        }
        let looked_up = self.reached_by().look_up();
        let reached = match looked_up {
            Ok(reached) => reached,
            Err(error) => return wrong("advertise", &error.to_string()),
        };
        if reached.ip().is_unspecified() || reached.port() == 0 {
            let why = format!("nobody reaches {reached}: give advertise = \"HOST:PORT\"");
            return wrong("advertise", &why);
        }
        Ok(())
    }
}

/// The settings that servers of files and their clients read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The run itself, with the key.
    pub run: RunSettings,
    /// The table `[files]`.
    pub files: FilesSettings,
    /// The nameserver, the dataservers and the flowserver.
    pub nodes: Vec<FilesNode>,
}

impl Settings {
    /// The tables and keys that these settings own, for [`SettingsDocument::refuse_unknown`].
    pub fn known() -> Vec<KnownTable> {
        vec![KnownTable { table: "files", keys: &[] }]
    }

    /// Reads the file, then the environment, then `sets` (`key=value`).
    ///
    /// # Errors
    /// Which file, line and key, or which override, and what is allowed.
    pub fn load(path: &Path, sets: &[String]) -> Result<Self, SettingsError> {
        Self::of(&SettingsDocument::load(path, sets)?)
    }

    /// The settings of a document.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn of(document: &SettingsDocument) -> Result<Self, SettingsError> {
        let refuse = |mistake| document.refuse(mistake);
        let plain: Vec<settings::Node> = document.list("node")?;
        check_nodes(&plain).map_err(refuse)?;
        let own: Vec<Own> = document.list("node")?;
        let all = plain.into_iter().zip(own).map(|(plain, own)| FilesNode { plain, own });
        let all: Vec<FilesNode> = all.collect();
        for (at, node) in all.iter().enumerate() {
            node.check(at).map_err(refuse)?;
        }
        for role in [NAMESERVER, FLOWSERVER] {
            let mut found = all.iter().enumerate().filter(|(_, node)| node.is(role));
            if let (Some(_), Some((at, second))) = (found.next(), found.next()) {
                let why = format!("node {}: there may be one {role}", second.plain.name);
                return Err(refuse(SettingsMistake::new(format!("node.{at}.role"), why)));
            }
        }
        let files: FilesSettings = document.part("files")?;
        if files.dead_after < DEAD_AFTER_MIN {
            let why = format!("files.dead_after: must be {DEAD_AFTER_MIN:?} at least");
            return Err(refuse(SettingsMistake::new("files.dead_after", why)));
        }
        if files.host_bytes_per_second.min(files.rack_bytes_per_second) == 0 {
            let why = "files.host_bytes_per_second and files.rack_bytes_per_second: above 0";
            return Err(refuse(SettingsMistake::new("files.host_bytes_per_second", why)));
        }
        files.check_leases().map_err(refuse)?;
        files.check_reading().map_err(refuse)?;
        files.check_paths().map_err(refuse)?;
        let mut run: RunSettings = document.part("run")?;
        document.check_durations()?;
        run.rebase(document.base());
        let mut nodes: Vec<FilesNode> = all.into_iter().filter(FilesNode::is_ours).collect();
        for node in &mut nodes {
            let directory = node.own.files.take().map(|directory| document.base().join(directory));
            node.own.files = Some(directory.unwrap_or_else(|| run.dir.join(&node.plain.name)));
        }
        Ok(Self { run, files, nodes })
    }

    /// Refuses servers that are open to more than this machine, when there is no key.
    ///
    /// # Errors
    /// The first of them, and what to do.
    pub fn check_closed(&self) -> Result<(), SettingsMistake> {
        let plain: Vec<_> = self.nodes.iter().map(|node| node.plain.clone()).collect();
        check_closed(&plain, self.run.is_keyed())?;
        let is_there = self.nodes.iter().any(|node| node.is(NAMESERVER));
        match is_there || self.nodes.is_empty() {
            true => Ok(()),
            false => Err(SettingsMistake::new("", "no [[node]] has role = \"nameserver\"")),
        }
    }

    /// The nameserver.
    ///
    /// # Errors
    /// When no node has that role.
    pub fn nameserver(&self) -> Result<&FilesNode, SettingsError> {
        let found = self.nodes.iter().find(|node| node.is(NAMESERVER));
        found.ok_or_else(|| SettingsError::new("no [[node]] has role = \"nameserver\""))
    }

    /// Where the flowserver is reached, if there is one.
    pub fn flowserver(&self) -> Option<&HostPort> {
        let found = self.nodes.iter().find(|node| node.is(FLOWSERVER));
        found.map(FilesNode::reached_by)
    }

    /// The names by which the settings address servers of files.
    pub fn names(&self) -> Vec<String> {
        let all = self.nodes.iter().flat_map(|node| [&node.own.address, node.reached_by()]);
        all.filter(|address| address.is_name()).map(|address| address.host().to_owned()).collect()
    }

    /// The node of a role. `name` may be left out where only one node has the role.
    ///
    /// # Errors
    /// The names of the nodes with this role.
    pub fn node(&self, role: &str, name: Option<&str>) -> Result<&FilesNode, SettingsError> {
        let all: Vec<&FilesNode> = self.nodes.iter().filter(|node| node.is(role)).collect();
        let names =
            || all.iter().map(|node| node.plain.name.as_str()).collect::<Vec<_>>().join(", ");
        let error = match (name, &all[..]) {
            (Some(name), _) => match all.iter().find(|node| node.plain.name == name) {
                Some(node) => return Ok(node),
                None => format!("no {role} is called {name}; there are: {}", names()),
            },
            (None, [node]) => return Ok(node),
            (None, []) => format!("no [[node]] of the settings has role = \"{role}\""),
            (None, _) => format!("there are several; choose with --name: {}", names()),
        };
        Err(SettingsError::new(error))
    }

    /// The shared key, if one is configured.
    ///
    /// # Errors
    /// When its file cannot be read or is no key.
    pub fn key(&self) -> Result<Option<SharedKey>, SettingsError> {
        self.run.key()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Settings, String> {
        let document = SettingsDocument::parse(text, "test", std::iter::empty(), &[]);
        let settings = document.and_then(|document| Settings::of(&document));
        settings.map_err(|error| error.to_string())
    }

    fn node(role: &str, rest: &str) -> String {
        let id = rest.len() + role.len() * 100;
        format!("[[node]]\nname = \"n{id}\"\nid = {id}\nrole = \"{role}\"\n{rest}\n")
    }

    #[test]
    fn a_cluster_is_read_with_racks_directories_and_advertised_addresses() {
        let names = node("nameserver", "address = \"127.0.0.1:9870\"");
        let rest = "address = \"0.0.0.0:9871\"\nadvertise = \"10.0.0.2:9871\"\nrack = \"b\"";
        let data = node("dataserver", &format!("{rest}\nfiles = \"disk\""));
        let settings = of(&format!("{names}{data}")).unwrap();
        let data = settings.node(DATASERVER, None).unwrap();
        assert_eq!(data.reached_by().to_string(), "10.0.0.2:9871");
        let Own { rack, files, .. } = &data.own;
        assert_eq!((rack.as_deref(), files), (Some("b"), &Some("disk".into())));
        let names = settings.nameserver().unwrap();
        assert_eq!(names.own.files, Some(Path::new("run").join(&names.plain.name)));
        assert!(settings.check_closed().unwrap_err().why.contains("run.key_file"));
    }

    #[test]
    fn paths_have_ports_of_their_own() {
        let path = |name: &str, ports: &str| {
            let key = "bytes_per_second = 1000";
            format!("[[files.paths]]\nname = \"{name}\"\nports = \"{ports}\"\n{key}\n")
        };
        let two = path("one", "40000-40999") + &path("two", "41000-41999");
        let settings = of(&two).unwrap();
        assert_eq!(settings.files.paths[1].ports, SourcePorts { first: 41_000, last: 41_999 });
        for (text, said) in [
            (two + &path("three", "40999-41000"), "have the same ports"),
            (path("one", "41000-40000"), "give the first and the last port"),
            (path("one", "40000-40001").replace("1000", "0"), "above 0"),
        ] {
            let error = of(&text).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_refused_with_their_line() {
        let local = "address = \"127.0.0.1:1\"";
        for (text, said) in [
            (node("dataserver", "address = \"0.0.0.0:1\""), "give advertise"),
            (node("nameserver", local) + &node("nameserver", &format!("{local} ")), "one name"),
            ("[files]\ndead_after = \"1ms\"\n".into(), "1s at least"),
            ("[files]\nread_connections = 9\n".into(), "must be 1 to 8"),
            ("[files]\nread_ports = 0\n".into(), "must be 1 to 64"),
            ("[files]\nread_bytes_in_flight = 5\n".into(), "must be 131072 to"),
        ] {
            let error = of(&text).unwrap_err();
            assert!(error.contains(said) && error.contains("line"), "{error}");
        }
    }
}
