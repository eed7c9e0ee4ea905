//! Settings: one TOML file for all hosts of a run, then `EVENFALL_*`, then `--set key=value`.
//!
//! A mistake names the key, the line and what is allowed. `EVENFALL_MULTICAST__MODE=tree` and
//! `--set multicast.mode=tree` change the same key: `__` in a variable is the dot.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_core::NodeId;
use evenfall_multicast_machine::{Begin, Config, SharedKey};
use evenfall_placement_machine::{AgentConfig, Timing};
use serde::{Deserialize, Serialize};

mod check;
mod example;

pub use check::line_of;

use self::check::Mistake;

/// The variable that names the settings of one key starts with this.
const ENVIRONMENT: &str = "EVENFALL_";
/// Variables that only tests read.
const OF_TESTS: [&str; 3] = ["EVENFALL_DATA", "EVENFALL_SEEDS", "EVENFALL_SEED_FIRST"];

/// What is wrong with the settings: where, what, and what to do.
#[derive(Debug)]
pub struct SettingsError(String);

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SettingsError {}

/// A role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoleName {
    /// Publishes.
    Root,
    /// Forwards.
    Proxy,
    /// Holds and releases.
    Receiver,
    /// A receiver that keeps every message in a store, and answers those who miss some.
    Recorder,
    /// Measures what a surveyor orders.
    Agent,
}

impl fmt::Display for RoleName {
    /// The word of the settings.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "root",
            Self::Proxy => "proxy",
            Self::Receiver => "receiver",
            Self::Recorder => "recorder",
            Self::Agent => "agent",
        })
    }
}

/// One process of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// What people call it; unique.
    pub name: String,
    /// What the wire calls it; unique.
    pub id: NodeId,
    /// What it does.
    pub role: RoleName,
    /// Where it listens, and where others reach it. Only the root's is needed by others; port 0
    /// takes any free one.
    pub address: SocketAddr,
    /// Where it serves `/metrics`, `/healthz` and `/status`; nowhere by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<SocketAddr>,
    /// The tree that a proxy serves, when there are several.
    #[serde(default)]
    pub tree: u32,
    /// Directory of the store in which a recorder keeps what it receives; relative to the settings
    /// file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<PathBuf>,
    /// Where a receiver begins, if not with the live feed: `start` of what a recorder has, the
    /// number of a message, or a time such as `2026-11-21T14:30:00Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

impl Node {
    /// Where it begins.
    ///
    /// # Errors
    /// When `from` is none of what it may be.
    pub fn begin(&self) -> Result<Begin, SettingsError> {
        match self.from.as_deref() {
            None | Some("live") => Ok(Begin::Live),
            Some("start") => Ok(Begin::Start),
            Some(text) => begin_at(text).ok_or_else(|| {
                SettingsError(format!(
                    "node {}: from = \"{text}\": must be start, live, the number of a message, or \
                     a time such as 2026-11-21T14:30:00Z",
                    self.name
                ))
            }),
        }
    }
}

fn begin_at(text: &str) -> Option<Begin> {
    if let Ok(number) = text.parse() {
        return Some(Begin::Message(number));
    }
    let time = humantime::parse_rfc3339_weak(text).ok()?;
    let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_nanos()).ok().map(Begin::Time)
}

/// Where the messages come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Feed {
    /// A market-data file: ITCH (plain or gzip), pcap, LOBSTER CSV or zip.
    pub file: Option<PathBuf>,
    /// A live MoldUDP64 feed: the address to listen on; a multicast group is joined. The feed
    /// itself carries no key, so beyond loopback it takes `run.key_file` to be listened to.
    pub mold: Option<SocketAddr>,
    /// The redundant side of the same session; of each message the first copy counts.
    pub mold_b: Option<SocketAddr>,
    /// Where missing messages are asked for again; nowhere by default.
    pub mold_request: Option<SocketAddr>,
    /// IPv4 address of the interface on which groups are joined; the routing table's choice by
    /// default. Without a key it must be a loopback address.
    pub mold_interface: Option<Ipv4Addr>,
    /// The first sequence that is wanted, 1 for the whole session; by default whichever comes
    /// first.
    pub mold_from: Option<u64>,
    /// How long missing messages hold what is behind them, from the last progress of their repair.
    /// Then they are reported lost and passed over.
    #[serde(with = "humantime_serde")]
    pub mold_gap_timeout: Duration,
    /// A generated feed, when neither is given.
    pub synthetic: Synthetic,
    /// Replay by the messages' own times, this many times faster.
    pub speed: f64,
    /// Replay at this many messages per second instead.
    pub rate: Option<f64>,
    /// Replay so fast that the whole file takes this long instead; needs a file or the generator.
    #[serde(with = "humantime_serde")]
    pub fit: Option<Duration>,
    /// Cut silences between two messages to this, after `speed`: bursts stay as they happened, and
    /// a capture of a weekend is replayed in seconds.
    #[serde(with = "humantime_serde")]
    pub silence: Option<Duration>,
}

impl Default for Feed {
    fn default() -> Self {
        Self {
            file: None,
            mold: None,
            mold_b: None,
            mold_request: None,
            mold_interface: None,
            mold_from: None,
            // Many exchanges with a re-request server of the same site, and short enough that
            // the messages behind the hole are still worth having.
            mold_gap_timeout: Duration::from_millis(500),
            synthetic: Synthetic::default(),
            speed: 1.0,
            rate: None,
            fit: None,
            silence: None,
        }
    }
}

/// The generated feed: ITCH with the bursts of a real open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Synthetic {
    /// The same seed gives the same feed.
    pub seed: u64,
    /// Securities, 1 to 65,535.
    pub symbols: u16,
    /// Messages in all, the directory included.
    pub messages: u64,
    /// Messages per second in the mean.
    pub mean_rate: f64,
    /// Whether the rate follows the bursts of a real open, or stays the same.
    pub bursts: bool,
}

impl Default for Synthetic {
    fn default() -> Self {
        // What two cores can carry to twenty receivers with some air for the bursts.
        Self { seed: 1, symbols: 200, messages: 40_000, mean_rate: 2_000.0, bursts: true }
    }
}

/// How sockets and threads are used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Io {
    /// How long before a deadline a receiver stops sleeping and watches the clock. By default
    /// 100 us where there are more cores than evenfall processes, else none.
    #[serde(with = "humantime_serde")]
    pub spin: Option<Duration>,
    /// How long a receiver that holds messages leaves what else arrives unread in its socket, to be
    /// woken once for many; never beyond the next release. By default 2 ms where there are more
    /// evenfall processes than cores, else none.
    #[serde(with = "humantime_serde")]
    pub moderation: Option<Duration>,
    /// Cores that the thread of the role may use; all by default.
    pub cores: Vec<usize>,
    /// Never sleep: one core per process.
    pub never_sleep: bool,
    /// The kernel polls the card for so long before it puts a reader to sleep (`SO_BUSY_POLL`).
    #[serde(with = "humantime_serde")]
    pub kernel_busy_poll: Option<Duration>,
    /// Send several datagrams to one destination as one segmented buffer, and take them so.
    pub segmentation: bool,
    /// Real-time priority of the role's thread, 1 to 99; needs CAP_SYS_NICE.
    pub real_time: Option<u8>,
    /// Bytes asked of the kernel for waiting arrivals.
    pub receive_buffer_bytes: usize,
}

impl Default for Io {
    fn default() -> Self {
        Self {
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

/// Delays put into the path of arriving datagrams: an experiment tool, see
/// [`evenfall_port::udp::Inject`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Inject {
    /// File with the delays, looked at again while the run goes on; no delays without it.
    pub file: Option<PathBuf>,
    /// The same seed draws the same delays.
    pub seed: u64,
    /// Datagrams that a process holds back at once; beyond it the newest are dropped and counted.
    pub queue_datagrams_max: usize,
}

impl Default for Inject {
    fn default() -> Self {
        // Half a second of 100,000 datagrams a second.
        Self { file: None, seed: 1, queue_datagrams_max: 50_000 }
    }
}

impl Inject {
    /// What the driver is told.
    pub fn to_driver(&self) -> Option<evenfall_port::udp::Inject> {
        let (seed, queue_datagrams_max) = (self.seed, self.queue_datagrams_max);
        let with = |file| evenfall_port::udp::Inject { file, seed, queue_datagrams_max };
        self.file.clone().map(with)
    }
}

/// Live measurement: what agents allow, and what a surveyor waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Survey {
    /// Probes per second that an agent sends at most, over all receivers; faster jobs are refused.
    pub agent_probes_per_second_max: u64,
    /// Time between two polls of those who take part in a job: heartbeat and retry.
    #[serde(with = "humantime_serde")]
    pub poll: Duration,
    /// What one layer of a job may take besides the probes themselves.
    #[serde(with = "humantime_serde")]
    pub step: Duration,
    /// An agent that is not polled for this long drops its job; one that does not answer for this
    /// long is taken for dead.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
}

impl Default for Survey {
    fn default() -> Self {
        let Timing { poll, step, lease } = Timing::default();
        let agent = AgentConfig::default();
        Self { agent_probes_per_second_max: agent.probes_per_second_max, poll, step, lease }
    }
}

impl Survey {
    /// The clock of control that these are.
    pub fn timing(&self) -> Timing {
        Timing { poll: self.poll, step: self.step, lease: self.lease }
    }
}

/// The run itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Run {
    /// Where logs and the report go; relative to the settings file.
    pub dir: PathBuf,
    /// File with the shared key: 64 hexadecimal digits. Without it nothing leaves loopback.
    pub key_file: Option<PathBuf>,
    /// Trees side by side, over which symbols are sharded.
    pub trees: u32,
    /// How long empty frames measure the paths of each tree before the first message.
    #[serde(with = "humantime_serde")]
    pub warm_up: Duration,
    /// How long the root waits at the end for receivers that are not finished.
    #[serde(with = "humantime_serde")]
    pub finish_timeout: Duration,
    /// Clock that all hosts share: `auto`, `same-host`, `realtime`, `chrony` or `/dev/ptpN`.
    pub clock: String,
    /// Whether every process writes the log of its messages from which the report is made.
    pub log: bool,
}

impl Run {
    /// How long the rehearsal takes: a frame goes to one tree, and each is to be known as well as
    /// if it were the only one.
    pub fn rehearsal(&self) -> Duration {
        self.warm_up * self.trees
    }
}

impl Default for Run {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("run"),
            key_file: None,
            trees: 1,
            warm_up: Duration::from_secs(5),
            finish_timeout: Duration::from_secs(15),
            clock: "auto".into(),
            log: true,
        }
    }
}

/// Everything that is configured, for all hosts alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The run itself.
    pub run: Run,
    /// Where the messages come from.
    pub feed: Feed,
    /// Sockets and threads.
    pub io: Io,
    /// Injected delays.
    pub inject: Inject,
    /// The protocol.
    pub multicast: Config,
    /// Live measurement.
    pub survey: Survey,
    /// The processes.
    #[serde(rename = "node", skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Node>,
}

/// The environment's variables that are settings.
///
/// # Errors
/// Which of them is no UTF-8. Of other variables nothing is expected.
pub fn overrides() -> Result<Vec<(String, String)>, SettingsError> {
    overrides_of(std::env::vars_os())
}

fn overrides_of(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String)>, SettingsError> {
    let ours = |(name, _): &(OsString, OsString)| {
        name.as_encoded_bytes().starts_with(ENVIRONMENT.as_bytes())
    };
    let text = |(name, value): (OsString, OsString)| {
        let shown = name.to_string_lossy().into_owned();
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => Ok((name, value)),
            _ => Err(SettingsError(format!("environment variable {shown}: is no UTF-8"))),
        }
    };
    variables.filter(ours).map(text).collect()
}

impl Settings {
    /// Reads the file, then the environment, then `sets` (`key=value`).
    ///
    /// # Errors
    /// Which file, line and key, or which override, and what is allowed.
    pub fn load(path: &Path, sets: &[String]) -> Result<Self, SettingsError> {
        Self::load_checked(path, sets, Self::check)
    }

    /// Settings with which a run can begin: refused is also what `evenfall run` would refuse later,
    /// or wait for without end.
    ///
    /// # Errors
    /// As [`load`](Self::load), and what is missing.
    pub fn load_runnable(path: &Path, sets: &[String]) -> Result<Self, SettingsError> {
        let settings = Self::load_checked(path, sets, |s| s.check().and_then(|()| s.check_run()))?;
        settings.key()?;
        Ok(settings)
    }

    fn load_checked(
        path: &Path,
        sets: &[String],
        check: impl Fn(&Self) -> Result<(), Mistake>,
    ) -> Result<Self, SettingsError> {
        let text = fs::read_to_string(path).map_err(|error| {
            SettingsError(format!(
                "{}: {error}; name the settings file with --config",
                path.display()
            ))
        })?;
        let variables = overrides()?.into_iter();
        let mut settings =
            Self::parse_checked(&text, &path.display().to_string(), variables, sets, check)?;
        let base = path.parent().unwrap_or(Path::new("."));
        settings.run.dir = base.join(&settings.run.dir);
        settings.run.key_file = settings.run.key_file.map(|key| base.join(key));
        settings.feed.file = settings.feed.file.map(|file| base.join(file));
        settings.inject.file = settings.inject.file.map(|file| base.join(file));
        for node in &mut settings.nodes {
            node.record = node.record.take().map(|dir| base.join(dir));
        }
        Ok(settings)
    }

    /// Parses a text and applies overrides.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn parse(
        text: &str,
        name: &str,
        variables: impl Iterator<Item = (String, String)>,
        sets: &[String],
    ) -> Result<Self, SettingsError> {
        Self::parse_checked(text, name, variables, sets, Self::check)
    }

    fn parse_checked(
        text: &str,
        name: &str,
        variables: impl Iterator<Item = (String, String)>,
        sets: &[String],
        check: impl Fn(&Self) -> Result<(), Mistake>,
    ) -> Result<Self, SettingsError> {
        // The file by itself first, so that its own mistakes carry its own line numbers.
        let mut settings: Self = toml::from_str(text).map_err(|error| {
            let (words, such) = (error.to_string(), such_as(error.message()));
            SettingsError(format!("{name}: {}{such}", words.trim_end()))
        })?;
        let mut document: toml_edit::DocumentMut = text.parse().map_err(|error| {
            SettingsError(format!("{name}: {error}")) // Unreachable: the text parsed above.
        })?;
        let from_environment = variables
            .filter(|(variable, _)| !OF_TESTS.contains(&variable.as_str()))
            .map(|(variable, value)| {
                let key = variable[ENVIRONMENT.len()..].to_lowercase().replace("__", ".");
                (variable, key, value)
            });
        let from_sets = sets.iter().map(|set| {
            let (key, value) = set.split_once('=').unwrap_or((set, ""));
            (format!("--set {set}"), key.trim().to_owned(), value.trim().to_owned())
        });
        let mut origins = Vec::new();
        for (origin, key, value) in from_environment.chain(from_sets) {
            apply(&mut document, &key, &value)
                .map_err(|why| SettingsError(format!("{origin}: {why}")))?;
            settings = toml::from_str(&document.to_string()).map_err(|error| {
                SettingsError(format!("{origin}: {}{}", error.message(), such_as(error.message())))
            })?;
            origins.push((key, origin));
        }
        check(&settings).map_err(|mistake| {
            let origin = origins.iter().rev().find(|(key, _)| *key == mistake.key);
            let place = match (origin, mistake.line(text)) {
                (Some((_, origin)), _) => origin.clone(),
                (None, Some(line)) => format!("{name}: line {line}"),
                (None, None) => name.to_owned(),
            };
            SettingsError(format!("{place}: {}", mistake.why))
        })?;
        Ok(settings)
    }

    /// The node of this name.
    ///
    /// # Errors
    /// Which names there are.
    pub fn node(&self, name: &str) -> Result<&Node, SettingsError> {
        self.nodes.iter().find(|node| node.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.nodes.iter().map(|n| n.name.as_str()).collect();
            SettingsError(format!("no node is called {name}; there are: {}", names.join(", ")))
        })
    }

    /// Nodes that have this role.
    pub fn count(&self, role: RoleName) -> usize {
        self.nodes.iter().filter(|node| node.role == role).count()
    }

    /// The root.
    ///
    /// # Errors
    /// When no node has that role.
    pub fn root(&self) -> Result<&Node, SettingsError> {
        let root = self.nodes.iter().find(|node| node.role == RoleName::Root);
        root.ok_or_else(|| SettingsError("no [[node]] has role = \"root\"".into()))
    }

    /// The shared key, if one is configured.
    ///
    /// # Errors
    /// When its file cannot be read or is no key.
    pub fn key(&self) -> Result<Option<SharedKey>, SettingsError> {
        let Some(path) = &self.run.key_file else { return Ok(None) };
        let shown = path.display();
        let text = fs::read_to_string(path)
            .map_err(|error| SettingsError(format!("run.key_file: {shown}: {error}")))?;
        let key = SharedKey::from_hex(1, &text)
            .map_err(|why| SettingsError(format!("run.key_file: {shown}: {why}")))?;
        Ok(Some(key))
    }

    /// The settings as a file that [`load`](Self::load) reads back.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("settings are plain tables")
    }
}

/// An example of what was expected, where the words of the libraries have none.
fn such_as(message: &str) -> &'static str {
    if message.ends_with("expected a duration") {
        ", such as \"50ms\""
    } else if message.ends_with("invalid socket address syntax") {
        ", such as \"10.0.0.2:9000\""
    } else {
        ""
    }
}

/// Sets a dotted key in a document, making tables on the way.
pub(crate) fn apply(
    document: &mut toml_edit::DocumentMut,
    key: &str,
    value: &str,
) -> Result<(), String> {
    if key.is_empty() || value.is_empty() {
        return Err("must be key=value, such as multicast.mode=tree".into());
    }
    // What is not TOML as it stands is meant as a string: mode=tree, hold_max=5ms.
    let value = value.parse().unwrap_or_else(|_| toml_edit::Value::from(value));
    let mut table = document.as_table_mut() as &mut dyn toml_edit::TableLike;
    let parts: Vec<&str> = key.split('.').collect();
    for part in &parts[..parts.len() - 1] {
        let item = table.entry(part).or_insert(toml_edit::table());
        let kind = item.type_name();
        table = item.as_table_like_mut().ok_or(format!("{part} is a {kind}, not a table"))?;
    }
    table.insert(parts[parts.len() - 1], toml_edit::value(value));
    Ok(())
}

#[cfg(test)]
mod tests;
