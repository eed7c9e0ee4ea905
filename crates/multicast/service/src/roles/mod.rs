//! The roles of a process. A role is set up from the settings. One thread then turns it until the
//! stream ends, a signal comes, or the root is lost.

#[cfg(feature = "publisher")]
pub mod author;
mod part;
pub mod proxy;
pub mod receiver;
#[cfg(feature = "publisher")]
pub mod root;
mod tree_threads;

use std::fs;
use std::path::Path;
use std::time::Duration;

use evenfall_clock_service::{ClockMesh, MeshView, Standing};
#[cfg(feature = "publisher")]
use evenfall_core::MasterKey;
use evenfall_core::{EndKeys, Machine, NodeKey, SyncTime, Timestamp};
#[cfg(feature = "publisher")]
use evenfall_feed_service::IntakeError;
use evenfall_host::clock::{MonotonicClock, auto};
use evenfall_host::{interrupt, pin};
use evenfall_multicast_machine::tree::Dimensions;
use evenfall_multicast_machine::wire::{MAGIC, STREAM_OFFSET};
use evenfall_multicast_machine::{ChainBreak, DepartureReason, Identity, Mode, Relay};
use evenfall_port::StreamField;
use evenfall_port::choice::{TrialLoad, TrialPart};
use evenfall_runtime::process::{Process as Base, ProcessOptions, RoleStreams, StreamWork};
use evenfall_runtime::telemetry::{Metrics, Orders, PageDraft};
use evenfall_runtime::{ProcessError, SettingsError, memory};
use serde::de::IntoDeserializer;
use serde::de::value::{Error as Unknown, StrDeserializer};
use serde::{Deserialize, Serialize};

pub use self::part::{Ended, Part, TreeMember};
#[cfg(feature = "summary")]
use crate::runinfo::RunInfoError;
use crate::runlog::{
    self, LogThread, LoggedRole, RUN_FILE, RunLogHeader, RunLogRecord, RunLogWriter,
};
use crate::settings::{MulticastNode, RoleName, Settings};

/// Why a role ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoleError {
    /// The settings are wrong, or the operating system refused.
    #[error(transparent)]
    Process(ProcessError),
    /// The feed is missing or damaged.
    #[cfg(feature = "publisher")]
    #[error(transparent)]
    Intake(#[from] IntakeError),
    /// A message of the feed cannot be published.
    #[error("message {index}: {why}")]
    Message {
        /// The message's number in the feed.
        index: u64,
        /// Reason of the refusal.
        why: evenfall_multicast_machine::PublishError,
    },
    /// The description of the run cannot be written.
    #[cfg(feature = "summary")]
    #[error(transparent)]
    RunInfo(#[from] RunInfoError),
    /// A part of the role that another service brings has failed, such as the store of a recorder.
    #[error(transparent)]
    Part(Box<dyn std::error::Error + Send + Sync>),
    /// The feed of this root is not the feed of the root that leads, from this message on.
    #[cfg(feature = "publisher")]
    #[error(
        "message {0} of this node's feed is not the message that the root sent; the root and its \
         standbys must read equal files with equal settings of [feed]"
    )]
    OtherFeed(u64),
    /// This root was away for so long that the other roots have forgotten what it missed.
    #[cfg(feature = "publisher")]
    #[error(
        "this node was away for so long that the other roots have forgotten what it missed; the \
         run goes on without it"
    )]
    Forgotten,
    /// This root was started again, and the other roots go on without it.
    #[cfg(feature = "publisher")]
    #[error(
        "this root was started again, and has forgotten its votes; the run goes on without it. All \
         roots have to be started again for another run"
    )]
    Replaced,
    /// This root has heard no majority of the roots for the stated time.
    #[cfg(feature = "publisher")]
    #[error(
        "no majority of the roots was heard for {0:?} (multicast.membership.root_timeout), and no \
         message leaves without one"
    )]
    NoMajority(Duration),
    /// Messages of an author have no number, because no root answered for the stated time.
    #[cfg(feature = "publisher")]
    #[error(
        "no root has answered for {waited:?} (multicast.membership.root_timeout), and {messages} \
         messages have no number: they may be in the feed or not. Start this author again when a \
         root leads, and it goes on behind what is in the feed"
    )]
    Unanswered {
        /// Messages without a number.
        messages: usize,
        /// How long the author waited.
        waited: Duration,
    },
    /// Another process publishes under the name of this author.
    #[cfg(feature = "publisher")]
    #[error(
        "another process publishes under the name of this author, and has taken over; run one \
         process under each name"
    )]
    NameTaken,
    /// The run has this many lines of authors, which is the limit.
    #[cfg(feature = "publisher")]
    #[error("the roots take no further author: a run has {0} starts of authors at most")]
    TooManyAuthors(usize),
    /// The root was silent for the stated time.
    #[error(
        "the root has been silent for {0:?} (multicast.membership.root_timeout); start it again \
         and then this node"
    )]
    RootLost(Duration),
    /// The root started again. The next run has a log of its own.
    #[error(
        "the root started again (epoch {epoch}): what was not released of its last run is lost; \
         start this node again to follow the new one"
    )]
    RootRestarted {
        /// The new run.
        epoch: u32,
    },
    /// A frame of the feed is not what the root signed.
    #[error(
        "{0}; the feed ends here. Somebody who holds the shared key wrote it, or its signature was \
         lost, or the root signs by a key that is not in trust.signers"
    )]
    Broken(ChainBreak),
    /// The root took this node out.
    #[error("{}", explain_eviction(*.0))]
    Evicted(DepartureReason),
    /// Some receivers did not finish before the time limit.
    #[error(
        "{finished} of {receivers} receivers had everything {waited:?} after the end \
         (run.finish_timeout); see their logs"
    )]
    Unfinished {
        /// Receivers that finished.
        finished: u32,
        /// Receivers of the run.
        receivers: usize,
        /// How long the root waited.
        waited: Duration,
    },
}

/// Why the root took this node out, and what helps.
fn explain_eviction(reason: DepartureReason) -> String {
    if reason == DepartureReason::TooSlow {
        return "the root evicted this node: it asked for more repair than its queue holds \
                (multicast.repair.child_queue_max); give it more CPU or a faster link"
            .into();
    }
    format!("the root took this node out: {reason:?}")
}

macro_rules! of_process {
    ($($error:ty),*) => {
        $(impl From<$error> for RoleError {
            fn from(error: $error) -> Self {
                Self::Process(error.into())
            }
        })*
    };
}
of_process!(ProcessError, SettingsError, evenfall_host::Error);

/// Random bytes of the system.
#[cfg(feature = "publisher")]
pub(crate) fn random<const N: usize>() -> Result<[u8; N], RoleError> {
    let mut bytes = [0; N];
    evenfall_host::random::fill(&mut bytes)
        .map_err(|error| file_error("the random numbers of the system".as_ref(), error))?;
    Ok(bytes)
}

/// A file of the run that cannot be written.
pub(crate) fn file_error(path: &Path, error: std::io::Error) -> RoleError {
    ProcessError::File(path.to_owned(), error).into()
}

/// How long a node waits for its time before the node takes its place in the tree. The root tells
/// the first times two seconds after its own start, and may be started some seconds after the node.
const TIME_PATIENCE: Duration = Duration::from_secs(10);

/// Children of a trial of ports at most, each of which is a socket.
const FANOUT_TRIED_MAX: usize = 32;

/// A process with a role of the multicast, and the log that its role keeps.
pub struct RoleProcess {
    /// The parts that every evenfall process has.
    pub base: Base,
    /// This node's clock as the mesh of clocks knows it; `None` without a mesh.
    time: Option<MeshView>,
    /// The run log, if the settings ask for a log.
    log: Option<RunLogWriter<LogThread>>,
    /// The master key of a root, or the key of another node; `None` without node keys.
    keys: Option<EndKeys>,
}

/// The name of a role in the log.
fn logged(role: RoleName) -> Option<LoggedRole> {
    match role {
        RoleName::Root => Some(LoggedRole::Root),
        RoleName::Standby => Some(LoggedRole::Standby),
        RoleName::Proxy => Some(LoggedRole::Proxy),
        RoleName::Receiver => Some(LoggedRole::Receiver),
        RoleName::Gateway => Some(LoggedRole::Gateway),
        RoleName::Recorder => Some(LoggedRole::Recorder),
        RoleName::Author | RoleName::Other => None,
    }
}

fn summary_file(name: &str) -> String {
    format!("summary-{name}.json")
}

/// The index of the machine for a datagram. Each stream has a machine, in the order of stream
/// numbers.
fn by_stream(datagram: &[u8]) -> Option<usize> {
    let bytes = datagram.get(STREAM_OFFSET..STREAM_OFFSET + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
}

/// The mode of travel that this word names.
///
/// # Errors
/// The allowed words.
fn mode(word: &str) -> Result<Mode, SettingsError> {
    let word: StrDeserializer<'_, Unknown> = word.into_deserializer();
    Mode::deserialize(word).map_err(|error| SettingsError::new(error.to_string()))
}

/// The order to a root to send in another mode.
const TO_MODE: Orders = Orders { path: "/mode", check: |word| mode(word).map(drop) };

/// The order to a root to shut a node out. The root has to know the name.
const TO_SHUT_OUT: Orders = Orders {
    path: "/shut-out",
    check: |name| match name.is_empty() {
        true => Err(SettingsError::new("name the node that is to be shut out")),
        false => Ok(()),
    },
};

impl RoleProcess {
    /// Starts the process of a node, and its log.
    ///
    /// # Errors
    /// [`RoleError`].
    pub fn start(settings: &Settings, node: &MulticastNode) -> Result<Self, RoleError> {
        let mut process = Self::unlogged(settings, node)?;
        process.begin_log(settings, node)?;
        Ok(process)
    }

    /// Starts the process of a node.
    fn unlogged(settings: &Settings, node: &MulticastNode) -> Result<Self, RoleError> {
        let is_root = matches!(node.role, RoleName::Root | RoleName::Standby);
        // The votes of a root and the letters of an author name no stream. A root that votes, or
        // that takes letters, has one tree.
        let has_letters = !settings.voters().is_empty() || settings.count(RoleName::Author) > 0;
        let is_single = matches!(node.role, RoleName::Proxy | RoleName::Author);
        let alone = is_single || is_root && has_letters;
        settings.check_mesh().map_err(|mistake| SettingsError::new(mistake.why))?;
        // A node without its own key must not listen.
        let keys = settings.node_keys(node)?;
        let member = settings.member(node);
        let steps = settings.clock.steps_of(&node.name);
        let options = ProcessOptions {
            run: &settings.run,
            io: &settings.io,
            inject: &settings.inject,
            dispatch: if alone { |_: &[u8]| Some(0) } else { by_stream },
            is_crowded: is_crowded(settings, node),
            is_one_host: settings.nodes.iter().all(|n| n.address.ip().is_loopback()),
            is_meshed: member.is_some(),
            steps: steps.as_deref(),
            may_moderate: matches!(node.role, RoleName::Receiver | RoleName::Gateway),
            orders: if is_root { &[TO_MODE, TO_SHUT_OUT] } else { &[] },
            trial: trial_load(settings, node.role),
            files: None,
            streams: tree_streams(settings, node.role),
        };
        let base = Base::start(&node.plain(), options)?;
        let mut process = Self { base, time: None, log: None, keys };
        if let Some(member) = member {
            let now = MonotonicClock::now();
            let plant = settings.clock.plant(node.id.0, now);
            let key = process.base.key.as_ref();
            let source = auto(false).0.stepped_by(steps.as_deref());
            let mut mesh = ClockMesh::new(&settings.clock, member, key, Some(source), (now, plant));
            if let Some(keys) = &process.keys {
                let ids = settings.timed().iter().map(|node| node.id).collect();
                let nonce = evenfall_host::random::number().map_err(|error| {
                    file_error("the random numbers of the system".as_ref(), error)
                })?;
                mesh = mesh.with_node_keys(keys.clone(), ids, nonce);
            }
            process.time = Some(mesh.view());
            process.base.driver.set_sidecar(mesh.sidecar());
            process.await_time()?;
        }
        process.say_where(node);
        Ok(process)
    }

    /// The key of this node; `None` for a root, and without node keys.
    pub fn node_key(&self) -> Option<NodeKey> {
        match &self.keys {
            Some(EndKeys::Node(key)) => Some(key.clone()),
            _ => None,
        }
    }

    /// The master key of this root; `None` for other nodes, and without node keys.
    #[cfg(feature = "publisher")]
    pub(crate) fn master_key(&self) -> Option<MasterKey> {
        match &self.keys {
            Some(EndKeys::Root(master)) => Some(master.clone()),
            _ => None,
        }
    }

    /// Begins the log of the role, if the settings ask for a log.
    fn begin_log(&mut self, settings: &Settings, node: &MulticastNode) -> Result<(), RoleError> {
        if let Some(role) = logged(node.role).filter(|_| settings.run.log) {
            self.log = Some(self.open_log(settings, node, role)?);
            self.base.log_memory(&settings.run.dir)?;
        }
        Ok(())
    }

    /// Runs the mesh of clocks alone until this node knows its time. A message that is stamped or
    /// released earlier would have the time of a clock that nobody has measured.
    fn await_time(&mut self) -> Result<(), RoleError> {
        let until = MonotonicClock::now() + TIME_PATIENCE;
        while !self.base.take_time() && !interrupt::raised() {
            if MonotonicClock::now() >= until {
                tracing::warn!(
                    "{}: the root has not told this node its time for {TIME_PATIENCE:?}. The \
                     node goes on by the clock of its host. Is the root running, with the same \
                     list of nodes and the same key?",
                    self.base.name
                );
                break;
            }
            let port = self.base.port.as_mut();
            self.base.driver.turn::<Relay>(&mut [], port, Some(until), &mut |_, _, _| {})?;
        }
        Ok(())
    }

    /// The clock of this node for other threads; `None` when this node uses its host's clock.
    pub fn time(&self) -> Option<MeshView> {
        self.time.clone()
    }

    /// The state of this node's clock in the mesh; `None` when this node uses its host's clock.
    pub fn standing(&self) -> Option<Standing> {
        self.time.as_ref().map(MeshView::standing)
    }

    /// Publishes the state of the role and the state of its clock, where somebody can read them.
    /// Another thread calls `page` and writes the texts, and this thread does not wait.
    pub fn publish<S: Serialize + Send + 'static>(
        &self,
        status: S,
        ill: Option<String>,
        page: impl FnOnce(&S) -> Metrics + Send + 'static,
    ) {
        self.publish_with(status, self.standing(), ill, page);
    }

    /// Publishes the state of the role, with `clock` as the state of the clock.
    fn publish_with<S: Serialize + Send + 'static>(
        &self,
        status: S,
        clock: impl Serialize + Send + 'static,
        ill: Option<String>,
        page: impl FnOnce(&S) -> Metrics + Send + 'static,
    ) {
        let standing = self.standing();
        self.base.telemetry.publish_later(move || {
            let mut page = page(&status);
            standing.iter().for_each(|standing| standing.put(&mut page));
            PageDraft::new(page, &status, &clock, ill)
        });
    }

    fn say_where(&self, node: &MulticastNode) {
        let http = self.base.telemetry.address().map(|http| format!(", HTTP on {http}"));
        let (address, http) = (self.base.port.local_addr(), http.unwrap_or_default());
        tracing::info!("{}: {} listening on {address}{http}", self.base.name, node.role);
    }

    fn open_log(
        &self,
        settings: &Settings,
        node: &MulticastNode,
        role: LoggedRole,
    ) -> Result<RunLogWriter<LogThread>, RoleError> {
        let dir = &settings.run.dir;
        let failed = |error| file_error(dir, error);
        fs::create_dir_all(dir).map_err(failed)?;
        let mut names = vec![
            runlog::file_name(&node.name),
            memory::file_name(&node.name),
            summary_file(&node.name),
        ];
        // The root writes the description of the run, so it moves the old description aside.
        names.extend((role == LoggedRole::Root).then(|| RUN_FILE.to_owned()));
        runlog::set_aside(dir, &names).map_err(failed)?;
        let header = RunLogHeader {
            role,
            node: node.id,
            name: node.name.clone(),
            clock: self.base.clock().reading().error,
            started_ns: self.base.started.nanos(),
        };
        runlog::RunLogWriter::create(dir, &header).map_err(failed)
    }

    /// Hands the clock to the machines when there is a new reading. The first call, before the
    /// first turn, sets `first`.
    ///
    /// # Errors
    /// [`RoleError`].
    pub fn keep_time<M: Machine>(
        &mut self,
        machines: &mut [M],
        first: bool,
        events: &mut impl FnMut(&M, Timestamp, M::Event),
    ) -> Result<(), RoleError> {
        if let Some(reading) = self.base.keep_time(machines, first, events)? {
            let at_ns = self.base.sync_now().nanos();
            self.note(RunLogRecord::Clock { at_ns, reading });
        }
        Ok(())
    }

    /// Writes a record into the run log.
    pub fn note(&mut self, record: RunLogRecord) {
        if let Some(log) = &mut self.log {
            log.append(&record);
        }
    }

    /// Whether housekeeping is due.
    pub fn housekeeping_due(&mut self) -> bool {
        if !self.base.housekeeping_due() {
            return false;
        }
        if let Some(log) = &mut self.log {
            log.idle();
        }
        true
    }

    /// Writes the summary of a role that keeps no log.
    #[cfg(feature = "publisher")]
    fn write_summary(
        &self,
        settings: &Settings,
        summary: &impl Serialize,
    ) -> Result<(), RoleError> {
        let dir = &settings.run.dir;
        if !settings.run.log {
            return Ok(());
        }
        fs::create_dir_all(dir).map_err(|error| file_error(dir, error))?;
        write_summary(&dir.join(summary_file(&self.base.name)), summary)
    }

    /// Ends the log and writes the summary beside it.
    ///
    /// # Errors
    /// When a file cannot be written into the directory of the run.
    pub fn end(self, settings: &Settings, summary: &impl Serialize) -> Result<(), RoleError> {
        let Some(log) = self.log else { return Ok(()) };
        let dir = &settings.run.dir;
        log.finish().map_err(|error| file_error(dir, error))?;
        write_summary(&dir.join(summary_file(&self.base.name)), summary)
    }
}

#[cfg(feature = "summary")]
fn write_summary(path: &Path, summary: &impl Serialize) -> Result<(), RoleError> {
    let text = serde_json::to_string_pretty(summary).unwrap_or_default();
    fs::write(path, text).map_err(|error| file_error(path, error))
}

#[cfg(not(feature = "summary"))]
fn write_summary(_: &Path, _: &impl Serialize) -> Result<(), RoleError> {
    Ok(())
}

/// What a node of this role sends to many: the longest datagrams of the run, to as many children as
/// it may have. `None` for a role that sends to nobody in groups.
fn trial_load(settings: &Settings, role: RoleName) -> Option<TrialLoad> {
    let part = match role {
        RoleName::Proxy => TrialPart::Proxy,
        RoleName::Root | RoleName::Standby => TrialPart::Root,
        _ => return None,
    };
    let multicast = &settings.multicast;
    let tree = Dimensions::of(&multicast.shape, multicast.mode, settings.count_leaves());
    let fanout = tree.fanout.min(FANOUT_TRIED_MAX);
    Some(TrialLoad { part, datagram_bytes: multicast.framing.datagram_bytes, fanout })
}

/// The trees of a root or a receiver, each of which may have a thread.
fn tree_streams(settings: &Settings, role: RoleName) -> Option<RoleStreams> {
    let work = match role {
        RoleName::Receiver => StreamWork::Machine,
        RoleName::Root => StreamWork::Socket,
        _ => return None,
    };
    let field = StreamField { magic: MAGIC.to_le_bytes(), offset: STREAM_OFFSET };
    Some(RoleStreams { field, count: settings.course.trees as usize, work })
}

/// Whether more evenfall processes than cores share the host of this node.
fn is_crowded(settings: &Settings, node: &MulticastNode) -> bool {
    // Planted clocks are for processes of one machine, which may have an address for each process.
    let one_host = settings.run.clock == "same-host" || settings.clock.plant.is_some();
    let beside = settings.nodes.iter();
    let here = beside.filter(|n| one_host || n.address.ip() == node.address.ip()).count();
    pin::is_crowded(here)
}

/// The identity of a proxy or receiver in one tree.
///
/// # Errors
/// When no node is the root.
pub fn identity(
    settings: &Settings,
    node: &MulticastNode,
    stream: u32,
    started: SyncTime,
) -> Result<Identity, RoleError> {
    let root = settings.root()?.address;
    let standbys = settings.voters().iter().skip(1).map(|node| node.address).collect();
    Ok(Identity { id: node.id, stream, root, standbys, incarnation: started.nanos() })
}
