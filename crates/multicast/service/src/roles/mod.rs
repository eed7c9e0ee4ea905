//! The roles of a process: set up from the settings, then turned by one thread until the stream
//! ends, a signal comes, or the root is lost.

pub mod agent;
mod part;
pub mod proxy;
pub mod receiver;
pub mod recorder;
pub mod root;
pub mod surveyor;

use std::fmt;
use std::fs;
use std::io;
use std::time::Duration;

use evenfall_core::{Clock, ClockError, ClockReading, Machine, SyncTime, Timestamp};
use evenfall_feed_formats::FeedError;
use evenfall_host::clock::{ClockWatch, MonotonicClock, SyncSource, auto};
use evenfall_port::run::Loop;
use evenfall_port::udp::{Options, UdpDriver};
use evenfall_host::{interrupt, pin, procstat};
use evenfall_multicast_machine::wire::STREAM_OFFSET;
use evenfall_multicast_machine::{Identity, Reason, SharedKey};
use serde::Serialize;

use evenfall_feed_service::input::InputError;
use evenfall_runtime::memory::{self, MemoryLog};
use crate::report::RUN_FILE;
use crate::runlog::{self, Header, Record, Role, Writer};
use evenfall_runtime::settings::{Node, RoleName, Settings, SettingsError};
use evenfall_runtime::telemetry::Telemetry;

/// How often a role looks at signals and orders, and publishes its state.
pub(crate) const HOUSEKEEPING: Duration = Duration::from_millis(200);
/// How long before a deadline a thread spins where cores are plenty: what a sleeping thread of a
/// virtual machine wakes late.
const SPIN: Duration = Duration::from_micros(100);
/// The same where cores are few, and the greatest share of a process' time that may go there.
const SPIN_CROWDED: Duration = Duration::from_micros(40);
const SPIN_CROWDED_SHARE: f64 = 0.01;
/// How long a receiver leaves arrivals in its socket where cores are few.
const MODERATION: Duration = Duration::from_millis(2);
/// How often the synchronised clock is compared with the local one.
const CLOCK_PERIOD: Duration = Duration::from_millis(500);

/// Why a role ended before its time.
#[derive(Debug)]
pub enum RoleError {
    /// The settings are wrong.
    Settings(SettingsError),
    /// The operating system refused.
    Io(evenfall_host::Error),
    /// There is no feed.
    Input(InputError),
    /// The feed is damaged; what was read before was sent.
    Feed {
        /// Where and how.
        error: FeedError,
        /// Messages sent before.
        sent: u64,
    },
    /// A file of the run cannot be written.
    File(String, io::Error),
    /// The HTTP address cannot be used.
    Http(String),
    /// The store of a recorder refuses, or is full.
    Store(String),
    /// Control messages cannot be carried.
    Carrier(String),
    /// The root was silent for the stated time.
    RootLost(Duration),
    /// The root started again: what follows is another run, with a log of its own.
    RootRestarted {
        /// The new run.
        epoch: u32,
    },
    /// The root took this node out.
    Evicted(Reason),
    /// Some receivers did not finish in time.
    Unfinished {
        /// Receivers that did.
        finished: u32,
        /// Receivers there are.
        receivers: usize,
        /// How long the root waited.
        waited: Duration,
    },
}

impl fmt::Display for RoleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(error) => write!(f, "{error}"),
            Self::Io(error) => write!(f, "{error}"),
            Self::Input(error) => write!(f, "{error}"),
            Self::Feed { error, sent } => {
                write!(f, "{error}; the {sent} messages before it were sent")
            }
            Self::File(path, error) => write!(f, "{path}: {error}"),
            Self::Http(why) | Self::Carrier(why) | Self::Store(why) => f.write_str(why),
            Self::RootLost(silence) => write!(
                f,
                "the root has been silent for {silence:?} (multicast.membership.root_timeout); \
                 start it again and then this node"
            ),
            Self::RootRestarted { epoch } => write!(
                f,
                "the root started again (epoch {epoch}): what was not released of its last run is \
                 lost; start this node again to follow the new one"
            ),
            Self::Evicted(Reason::TooSlow) => write!(
                f,
                "the root evicted this node: it asked for more repair than its queue holds \
                 (multicast.repair.child_queue_max); give it more CPU or a faster link"
            ),
            Self::Evicted(reason) => write!(f, "the root took this node out: {reason:?}"),
            Self::Unfinished { finished, receivers, waited } => write!(
                f,
                "{finished} of {receivers} receivers had everything {waited:?} after the end \
                 (run.finish_timeout); see their logs"
            ),
        }
    }
}

impl std::error::Error for RoleError {}

macro_rules! from {
    ($error:ty, $variant:ident) => {
        impl From<$error> for RoleError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        }
    };
}
from!(SettingsError, Settings);
from!(evenfall_host::Error, Io);
from!(InputError, Input);

/// What every role has around its machines.
pub(crate) struct Process {
    pub name: String,
    pub key: Option<SharedKey>,
    pub driver: UdpDriver,
    /// Wakes the driver when a signal comes.
    _signals: interrupt::Watch,
    pub turn: Loop,
    pub telemetry: Telemetry,
    pub log: Option<Writer<fs::File>>,
    memory: Option<MemoryLog>,
    clock: Clock,
    /// When it started; in its log, and what tells it from an earlier process of its name.
    pub started: SyncTime,
    watch: Option<ClockWatch>,
    housekeeping_at: Timestamp,
    /// Largest resident memory seen.
    pub resident_bytes_max: u64,
}

/// The loop and the driver of a role, without what is around them.
pub(crate) struct Turning<'a> {
    pub turn: &'a mut Loop,
    pub driver: &'a mut UdpDriver,
}

/// How a role's log calls it; an agent keeps none.
fn logged(role: RoleName) -> Option<Role> {
    match role {
        RoleName::Root => Some(Role::Root),
        RoleName::Proxy => Some(Role::Proxy),
        RoleName::Receiver => Some(Role::Receiver),
        RoleName::Recorder => Some(Role::Recorder),
        RoleName::Agent => None,
    }
}

fn summary_file(name: &str) -> String {
    format!("summary-{name}.json")
}

/// The machine of a datagram: one per stream, in order of their numbers.
fn by_stream(datagram: &[u8]) -> Option<usize> {
    let bytes = datagram.get(STREAM_OFFSET..STREAM_OFFSET + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
}

impl Process {
    pub(crate) fn start(settings: &Settings, node: &Node) -> Result<Self, RoleError> {
        let key = settings.key()?;
        let mut options = Options { keyed: key.is_some(), ..Options::default() };
        let crowded = crowded(settings, node);
        (options.spin, options.spin_share) = match settings.io.spin {
            Some(spin) => (spin, 1.0),
            None if crowded => (SPIN_CROWDED, SPIN_CROWDED_SHARE),
            None => (SPIN, 1.0),
        };
        if node.role == RoleName::Receiver {
            let moderation = if crowded { MODERATION } else { Duration::ZERO };
            options.moderation = settings.io.moderation.unwrap_or(moderation);
            options.kernel_timestamps = !options.moderation.is_zero();
        }
        options.never_sleep = settings.io.never_sleep;
        options.busy_poll = settings.io.kernel_busy_poll;
        options.segmentation = settings.io.segmentation;
        options.coalescing = settings.io.segmentation;
        options.receive_buffer_bytes = settings.io.receive_buffer_bytes;
        options.inject = settings.inject.to_driver();
        if !settings.io.cores.is_empty() {
            pin::to_cores(&settings.io.cores)?;
        }
        match settings.io.real_time {
            Some(priority) => pin::schedule(pin::Schedule::Fifo(priority))?,
            None if crowded => pin::schedule(pin::Schedule::Batch)?,
            None => {}
        }
        let driver = UdpDriver::bind(node.address, options)?;
        let signals = interrupt::watch(driver.waker())?;
        let takes_orders = node.role == RoleName::Root;
        let telemetry =
            Telemetry::start(node.http, key.is_some(), takes_orders).map_err(RoleError::Http)?;
        let (clock, watch) = start_clock(settings)?;
        let alone = matches!(node.role, RoleName::Proxy | RoleName::Agent);
        let dispatch = if alone { |_: &[u8]| Some(0) } else { by_stream };
        let mut process = Self {
            name: node.name.clone(),
            key,
            driver,
            _signals: signals,
            turn: Loop::dispatching(dispatch),
            telemetry,
            log: None,
            memory: None,
            started: clock.sync(MonotonicClock::now()),
            clock,
            watch,
            housekeeping_at: MonotonicClock::now(),
            resident_bytes_max: 0,
        };
        if let Some(role) = logged(node.role).filter(|_| settings.run.log) {
            process.log = Some(process.open_log(settings, node, role)?);
            let dir = &settings.run.dir;
            let memory = MemoryLog::create(dir, &node.name, MonotonicClock::now());
            let failed = |error| RoleError::File(dir.display().to_string(), error);
            process.memory = Some(memory.map_err(failed)?);
        }
        for note in process.driver.notes() {
            tracing::warn!("{}: {note}", node.name);
        }
        process.say_where(node);
        Ok(process)
    }

    fn say_where(&self, node: &Node) {
        let http = self.telemetry.address().map(|http| format!(", HTTP on {http}"));
        let (address, http) = (self.driver.local_addr(), http.unwrap_or_default());
        tracing::info!("{}: {} listening on {address}{http}", self.name, node.role);
    }

    fn open_log(
        &self,
        settings: &Settings,
        node: &Node,
        role: Role,
    ) -> Result<Writer<fs::File>, RoleError> {
        let dir = &settings.run.dir;
        let failed = |error| RoleError::File(dir.display().to_string(), error);
        fs::create_dir_all(dir).map_err(failed)?;
        let mut names = vec![
            runlog::file_name(role, node.id),
            memory::file_name(&node.name),
            summary_file(&node.name),
        ];
        // What the run before was is written by its root.
        names.extend((role == Role::Root).then(|| RUN_FILE.to_owned()));
        runlog::set_aside(dir, &names).map_err(failed)?;
        let header = Header {
            role,
            node: node.id,
            name: node.name.clone(),
            clock: self.clock.reading().error,
            started_ns: self.started.nanos(),
        };
        runlog::Writer::create(dir, &header).map_err(failed)
    }

    pub(crate) fn turning(&mut self) -> Turning<'_> {
        Turning { turn: &mut self.turn, driver: &mut self.driver }
    }

    /// The synchronised time of this very moment.
    pub(crate) fn sync_now(&self) -> SyncTime {
        self.clock.sync(MonotonicClock::now())
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Hands the clock to the machines when there is a new reading; call once before the first
    /// turn with `first`.
    pub(crate) fn keep_time<M: Machine>(
        &mut self,
        machines: &mut [M],
        first: bool,
        events: &mut impl FnMut(&M, Timestamp, M::Event),
    ) -> Result<(), RoleError> {
        let fresh = self.watch.as_mut().and_then(ClockWatch::fresh);
        if let Some(reading) = fresh {
            if reading.error != self.clock.reading().error {
                let at_ns = self.sync_now().nanos();
                self.note(Record::Clock { at_ns, error: reading.error });
            }
            self.clock.set(reading);
        }
        if fresh.is_some() || first {
            let reading = self.clock.reading();
            self.turn.adopt_clock(reading, machines, &mut self.driver, events)?;
        }
        Ok(())
    }

    /// Datagrams refused so far: no messages, forged, or for no machine that is here.
    pub(crate) fn refused(&self) -> u64 {
        let counters = self.turn.counters();
        counters.malformed + counters.undispatched
    }

    pub(crate) fn note(&mut self, record: Record) {
        if let Some(log) = &mut self.log {
            log.append(&record);
        }
    }

    /// Whether it is time to look around.
    pub(crate) fn housekeeping_due(&mut self) -> bool {
        let now = MonotonicClock::now();
        if now < self.housekeeping_at {
            return false;
        }
        self.housekeeping_at = now + HOUSEKEEPING;
        if let Some(log) = &mut self.log {
            log.idle();
        }
        if let Some(memory) = &mut self.memory {
            memory.sample(now);
        }
        if let Ok(usage) = procstat::this_process() {
            self.resident_bytes_max = self.resident_bytes_max.max(usage.resident_bytes);
        }
        true
    }

    /// Ends the log and writes the summary next to it.
    pub(crate) fn end(
        self,
        settings: &Settings,
        summary: &impl Serialize,
    ) -> Result<(), RoleError> {
        let Some(log) = self.log else { return Ok(()) };
        let dir = &settings.run.dir;
        log.finish().map_err(|error| RoleError::File(dir.display().to_string(), error))?;
        let path = dir.join(summary_file(&self.name));
        let text = serde_json::to_string_pretty(summary).unwrap_or_default();
        fs::write(&path, text).map_err(|error| RoleError::File(path.display().to_string(), error))
    }
}

/// Whether more evenfall processes than cores share the host of this node.
fn crowded(settings: &Settings, node: &Node) -> bool {
    let one_host = settings.run.clock == "same-host";
    let beside = settings.nodes.iter();
    let here = beside.filter(|n| one_host || n.address.ip() == node.address.ip()).count();
    pin::is_crowded(here)
}

fn start_clock(settings: &Settings) -> Result<(Clock, Option<ClockWatch>), RoleError> {
    let one_host = settings.nodes.iter().all(|n| n.address.ip().is_loopback());
    let source = match settings.run.clock.as_str() {
        "auto" => auto(one_host).0,
        "same-host" => SyncSource::SameHost,
        "realtime" => SyncSource::Realtime,
        "chrony" => SyncSource::Chrony,
        device if device.starts_with("/dev/") => SyncSource::Ptp(device.into()),
        other => {
            return Err(RoleError::Io(evenfall_host::Error::Clock {
                what: format!(
                    "run.clock = \"{other}\": must be auto, same-host, realtime, chrony or \
                     /dev/ptpN"
                ),
            }));
        }
    };
    let mut clock = Clock::default();
    if matches!(source, SyncSource::SameHost) {
        clock.set(ClockReading { offset_ns: 0, error: ClockError::SameClock });
        return Ok((clock, None));
    }
    clock.set(source.read()?);
    Ok((clock, Some(ClockWatch::start(source, CLOCK_PERIOD)?)))
}

/// Who a proxy or receiver is in one tree.
pub(crate) fn identity(
    settings: &Settings,
    node: &Node,
    stream: u32,
    started: SyncTime,
) -> Result<Identity, RoleError> {
    let root = settings.root()?.address;
    Ok(Identity { id: node.id, stream, root, incarnation: started.nanos() })
}
