//! One process around the machines of a role: the port and its loop, the clock, signals, telemetry,
//! and the log of its memory.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_core::{Clock, ClockError, ClockReading, Machine, SharedKey, SyncTime, Timestamp};
use evenfall_host::clock::{ClockWatch, MonotonicClock, SyncSource, auto, clockbound};
use evenfall_host::{interrupt, pin, quota};
use evenfall_port::choice::{self, PortChoice, TrialLoad};
use evenfall_port::run::{Dispatch, Loop};
use evenfall_port::{Options, Port, PortKind, StreamField};
use serde::Serialize;

use crate::memory::{MemoryLog, MemoryWatch};
use crate::settings::{
    CLOCKS, InjectSettings, Io, Node, RunSettings, SettingsError, TreeThreading,
};
use crate::telemetry::{FilesPage, Orders, Telemetry, TelemetryError};

/// How often a role looks at signals and orders, and publishes its state.
pub const HOUSEKEEPING: Duration = Duration::from_millis(200);
/// How long before a deadline a thread spins where there are enough cores. A sleeping thread of a
/// virtual machine wakes late by about this time.
const SPIN: Duration = Duration::from_micros(100);
/// How long a thread spins where cores are few. Spinning takes the time of a neighbour.
const SPIN_CROWDED: Duration = Duration::from_micros(40);
/// The greatest share of the process' time for spinning where cores are few.
const SPIN_CROWDED_SHARE: f64 = 0.01;
/// How long a receiver leaves arrivals in its socket where cores are few.
const MODERATION: Duration = Duration::from_millis(2);
/// Memory of departing datagrams beyond which copies of missed datagrams stay in the process: some
/// 25 full datagrams with their heads in the kernel, which take a third of a millisecond on a link
/// of 1 Gb/s.
const REPAIR_BACKLOG_BYTES: usize = 64 << 10;
/// How often the synchronised clock is compared with the local one.
const CLOCK_PERIOD: Duration = Duration::from_millis(500);

/// Why a process cannot begin or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The settings are wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The operating system refused.
    #[error(transparent)]
    Host(#[from] evenfall_host::Error),
    /// A file of the run cannot be written.
    #[error("{}: {error}", .0.display(), error = .1)]
    File(PathBuf, io::Error),
    /// The pages of the process cannot be served.
    #[error(transparent)]
    Telemetry(TelemetryError),
}

/// What a role asks of its process.
#[derive(Clone, Copy)]
pub struct ProcessOptions<'a> {
    /// The settings of the run.
    pub run: &'a RunSettings,
    /// Sockets and threads.
    pub io: &'a Io,
    /// Injected delays.
    pub inject: &'a InjectSettings,
    /// Finds the machine for a datagram.
    pub dispatch: Dispatch,
    /// Whether more evenfall processes than cores share the host.
    pub is_crowded: bool,
    /// Whether every process of the run is on this host.
    pub is_one_host: bool,
    /// Whether a sidecar of the role keeps the synchronised clock. Until the machine's first
    /// reading the process uses the clock of its host.
    pub is_meshed: bool,
    /// The file with planted steps of the host's clock, for experiments.
    pub steps: Option<&'a Path>,
    /// Whether arrivals may wait in the socket until the next release.
    pub may_moderate: bool,
    /// The orders that the role takes over HTTP.
    pub orders: &'static [Orders],
    /// What the role sends to many; `None` for a role that does not. Where `io.port` is `auto`, the
    /// role tries the kinds of ports with it.
    pub trial: Option<TrialLoad>,
    /// Files that the role gives out over HTTP.
    pub files: Option<FilesPage<'a>>,
    /// The streams of a role that can take each on a thread of its own; `None` for other roles.
    pub streams: Option<RoleStreams>,
}

/// The streams of a role, each of which may have a thread and a port.
#[derive(Clone, Copy, Debug)]
pub struct RoleStreams {
    /// Where a datagram names its stream.
    pub field: StreamField,
    /// Number of the streams.
    pub count: usize,
    /// What the threads of the streams do.
    pub work: StreamWork,
}

/// What the thread of a stream does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamWork {
    /// It has the machine of the stream, and the port.
    Machine,
    /// It sends and receives for a machine of the role's thread.
    Socket,
}

impl RoleStreams {
    /// Whether each stream gets a thread, as the settings state or as suits this host.
    fn are_threaded(self, threads: TreeThreading, is_crowded: bool) -> bool {
        let suits = || !is_crowded && pin::whole_cores() > self.count;
        match threads {
            // A frame that another thread sends leaves later, by the time that a wake-up takes.
            TreeThreading::Auto if self.work == StreamWork::Socket => false,
            TreeThreading::Auto => self.count > 1 && suits(),
            TreeThreading::Tree => self.count > 1,
            TreeThreading::One => false,
        }
    }
}

/// The kind of port that a process has, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortTaken {
    /// Name of the kind, as in settings.
    pub kind: &'static str,
    /// The reason, in words for people.
    pub why: String,
}

/// The parts that every role has around its machines.
pub struct Process {
    /// What people call the node.
    pub name: String,
    /// The key of the run.
    pub key: Option<SharedKey>,
    /// The port, which moves the packets.
    pub port: Box<dyn Port>,
    /// The ports of the second stream and of those behind it, where each machine gets a thread.
    /// Each has the address of [`port`](Self::port).
    pub stream_ports: Vec<Box<dyn Port>>,
    /// The kind of the port.
    pub port_taken: PortTaken,
    /// Wakes the port when a signal comes.
    _signals: interrupt::Watch,
    /// Drives the machines.
    pub driver: Loop,
    /// The pages of the process over HTTP.
    pub telemetry: Telemetry,
    /// The thread that records the memory of this process; `None` until a role asks for it.
    _memory: Option<MemoryWatch>,
    clock: Clock,
    source: SourceReading,
    /// When the process started. The time tells the process from an earlier process with the same
    /// name.
    pub started: SyncTime,
    watch: Option<ClockWatch>,
    housekeeping_at: Timestamp,
}

/// A reading of the source of the clock, as it came.
#[derive(Clone, Copy, Debug)]
pub struct SourceReading {
    /// The number of this reading, from 1.
    pub count: u64,
    /// The reading.
    pub reading: ClockReading,
}

/// The loop and the port of a role.
pub struct DriverAndPort<'a> {
    /// Drives the machines.
    pub driver: &'a mut Loop,
    /// The port, which moves the packets.
    pub port: &'a mut dyn Port,
}

fn options(process: ProcessOptions<'_>, keyed: bool) -> Result<Options, SettingsError> {
    let ProcessOptions { io, inject, is_crowded, .. } = process;
    let stated = io.options().map_err(|mistake| SettingsError::new(mistake.why))?;
    let mut options = Options { keyed, inject: inject.to_port(), ..stated };
    (options.spin, options.spin_share) = match io.spin {
        Some(spin) => (spin, 1.0),
        None if is_crowded => (SPIN_CROWDED, SPIN_CROWDED_SHARE),
        None => (SPIN, 1.0),
    };
    if process.may_moderate {
        let moderation = if is_crowded { MODERATION } else { Duration::ZERO };
        options.moderation = io.moderation.unwrap_or(moderation);
        options.kernel_timestamps = !options.moderation.is_zero();
    }
    options.repair_backlog_bytes_max = Some(REPAIR_BACKLOG_BYTES);
    // The time until a program takes an arrival would count as delay of a probe.
    options.kernel_timestamps |= process.is_meshed;
    Ok(options)
}

/// Opens the ports of a node, of the kind that the settings state or that suits the node best. The
/// node has a port for each stream where the thread of a stream has the machine, and one port
/// otherwise.
fn open_ports(
    node: &Node,
    process: ProcessOptions<'_>,
    keyed: bool,
) -> Result<(Vec<Box<dyn Port>>, PortTaken), ProcessError> {
    let stated = process.io.kind().map_err(|mistake| SettingsError::new(mistake.why))?;
    let options = options(process, keyed)?;
    let choice = match (stated, process.trial) {
        (Some(kind), _) => {
            let ports = open_stated(node, process, options)?;
            let why = "io.port states it".to_owned();
            return Ok((ports, PortTaken { kind: kind.settings_name(), why }));
        }
        (None, Some(load)) => choice::choose_kind(&options, load),
        // The trial measures copies, which this role does not send.
        (None, None) => {
            let why = "this role sends to nobody in groups".to_owned();
            PortChoice { kind: options.kind, why }
        }
    };
    let (ports, choice) = match choice.kind == options.kind {
        // No other kind stands in for the default kind, so that streams may have ports.
        true => (open_stated(node, process, options)?, choice),
        false => {
            let (port, choice) = choice::open_chosen(node.address, options, choice)?;
            (vec![port], choice)
        }
    };
    let (kind, why) = (choice.kind.settings_name(), choice.why);
    tracing::info!("{}: io.port = \"auto\" took {kind}: {why}", node.name);
    Ok((ports, PortTaken { kind, why }))
}

/// Opens the port of the kind that these options state, or a port for each stream.
fn open_stated(
    node: &Node,
    process: ProcessOptions<'_>,
    options: Options,
) -> Result<Vec<Box<dyn Port>>, ProcessError> {
    let (threads, is_crowded) = (process.io.threads, process.is_crowded);
    let streams = process.streams.filter(|streams| streams.are_threaded(threads, is_crowded));
    match streams {
        Some(RoleStreams { field, count, work }) if options.kind == PortKind::Udp => {
            tracing::debug!("{}: a socket and a thread for each of {count} trees", node.name);
            Ok(match work {
                StreamWork::Machine => {
                    evenfall_port::open_streams(node.address, options, field, count)?
                }
                StreamWork::Socket => {
                    vec![evenfall_port::open_senders(node.address, options, field, count)?]
                }
            })
        }
        Some(_) => {
            let name = options.kind.settings_name();
            let port = evenfall_port::open(node.address, options)?;
            tracing::warn!(
                "{}: one thread takes all trees, because a port of kind {name} has one socket \
                 (io.threads)",
                node.name
            );
            Ok(vec![port])
        }
        None => Ok(vec![evenfall_port::open(node.address, options)?]),
    }
}

impl Process {
    /// Binds, pins, reads the clock and starts the telemetry of a node.
    ///
    /// # Errors
    /// [`ProcessError`].
    pub fn start(node: &Node, process: ProcessOptions<'_>) -> Result<Self, ProcessError> {
        let key = process.run.key()?;
        let io = process.io;
        // Cores come first, because threads inherit them from the thread that starts them.
        if !io.cores.is_empty() {
            pin::to_cores(&io.cores)?;
        }
        match io.real_time {
            Some(priority) => pin::schedule(pin::ThreadSchedule::Fifo(priority))?,
            None if process.is_crowded => pin::schedule(pin::ThreadSchedule::Batch)?,
            None => {}
        }
        let (mut ports, port_taken) = open_ports(node, process, key.is_some())?;
        let stream_ports = ports.split_off(1);
        let port = ports.remove(0);
        // A signal wakes the port, so that a role that waits for a packet ends at once.
        let signals = interrupt::watch(port.waker())?;
        let keyed = key.is_some();
        let telemetry = Telemetry::start(node.http, keyed, process.orders, process.files);
        let mut telemetry = telemetry.map_err(ProcessError::Telemetry)?;
        telemetry.describe_port(&port_taken, port.local_addr().ip());
        let (clock, watch) = match process.is_meshed {
            true => (unproven_clock()?, None),
            false => start_clock(&process.run.clock, process.is_one_host, process.steps)?,
        };
        for note in port.notes() {
            tracing::warn!("{}: {note}", node.name);
        }
        if let Some(milli) = quota::milli_cores().filter(|milli| *milli < 1_000) {
            tracing::warn!(
                "{}: the control group of this process has a quota of {}.{:03} cores, so that all \
                 its threads stand still whenever the quota of a period is used up. Give the group \
                 whole cores for even releases",
                node.name,
                milli / 1_000,
                milli % 1_000
            );
        }
        Ok(Self {
            name: node.name.clone(),
            key,
            port,
            stream_ports,
            port_taken,
            _signals: signals,
            driver: Loop::dispatching(process.dispatch),
            telemetry,
            _memory: None,
            started: clock.sync(MonotonicClock::now()),
            source: SourceReading { count: 1, reading: clock.reading() },
            clock,
            watch,
            housekeeping_at: MonotonicClock::now(),
        })
    }

    /// From now on, the memory of this process is recorded in a file in this directory.
    ///
    /// # Errors
    /// When the file cannot be created, or the thread that writes it cannot be started.
    pub fn log_memory(&mut self, dir: &Path) -> Result<(), ProcessError> {
        let memory = MemoryLog::create(dir, &self.name, MonotonicClock::now());
        let memory = memory.and_then(MemoryWatch::start);
        self._memory = Some(memory.map_err(|error| ProcessError::File(dir.to_owned(), error))?);
        Ok(())
    }

    /// The loop and the port.
    pub fn driver_and_port(&mut self) -> DriverAndPort<'_> {
        DriverAndPort { driver: &mut self.driver, port: self.port.as_mut() }
    }

    /// Takes a reading of the sidecar before the machines of the role have begun. Returns
    /// whether there was one.
    pub fn take_time(&mut self) -> bool {
        let reading = self.driver.reading();
        reading.into_iter().for_each(|reading| self.clock.set(reading));
        reading.is_some()
    }

    /// The synchronised time at this moment.
    pub fn sync_now(&self) -> SyncTime {
        self.clock.sync(MonotonicClock::now())
    }

    /// The last reading of the clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The last reading that machines got from the source of the clock. Machines on other threads
    /// take it too.
    pub fn source_reading(&self) -> SourceReading {
        self.source
    }

    /// Hands the clock to the machines when there is a new reading. The first call, before the
    /// first turn, sets `first`. Returns the reading that applies from now on, at the first call
    /// and when it has changed.
    ///
    /// # Errors
    /// As [`Loop::adopt_clock`].
    pub fn keep_time<M: Machine>(
        &mut self,
        machines: &mut [M],
        first: bool,
        events: &mut impl FnMut(&M, Timestamp, M::Event),
    ) -> Result<Option<ClockReading>, ProcessError> {
        let beside = self.driver.reading();
        let fresh = beside.or_else(|| self.watch.as_mut().and_then(ClockWatch::fresh));
        let Some(reading) = fresh.or(first.then(|| self.clock.reading())) else { return Ok(None) };
        self.source = SourceReading { count: self.source.count + 1, reading };
        self.driver.adopt_clock(reading, machines, self.port.as_mut(), events)?;
        let before = self.clock;
        match machines.first().and_then(M::clock) {
            Some(clock) => self.clock = clock,
            None => self.clock.set(reading),
        }
        if self.clock.steps() > before.steps() {
            let by = reading.offset_ns.abs_diff(self.clock.reading().offset_ns);
            tracing::warn!(
                "{}: the clock of this host stepped, and is {:?} from the time of the run. The run \
                 goes on without the step. Restart this node if the clock of the host is right now",
                self.name,
                Duration::from_nanos(by)
            );
        }
        let reading = self.clock.reading();
        Ok((first || reading != before.reading()).then_some(reading))
    }

    /// Datagrams refused so far: no messages, forged, or for a machine that is not here.
    pub fn refused(&self) -> u64 {
        let counters = self.driver.counters();
        counters.malformed + counters.undispatched
    }

    /// Whether housekeeping is due.
    pub fn housekeeping_due(&mut self) -> bool {
        let now = MonotonicClock::now();
        if now < self.housekeeping_at {
            return false;
        }
        self.housekeeping_at = now + HOUSEKEEPING;
        true
    }
}

/// The host's clock with an unknown error, until the sidecar has measured the clock.
fn unproven_clock() -> Result<Clock, ProcessError> {
    let mut clock = Clock::default();
    let reading = SyncSource::Realtime.read()?;
    clock.set(ClockReading { error: ClockError::Unknown, ..reading });
    Ok(clock)
}

fn start_clock(
    name: &str,
    is_one_host: bool,
    steps: Option<&Path>,
) -> Result<(Clock, Option<ClockWatch>), ProcessError> {
    let source = match name {
        "auto" => auto(is_one_host).0,
        // An agent keeps no mesh, and takes the best clock of its host.
        "host" | "mesh" => auto(false).0,
        "same-host" => SyncSource::SameHost,
        "realtime" => SyncSource::Realtime,
        "chrony" => SyncSource::Chrony,
        "clockbound" => SyncSource::ClockBound(clockbound::SEGMENT.into()),
        device if device.starts_with("/dev/") => SyncSource::Ptp(device.into()),
        other => {
            let words = CLOCKS.join(", ");
            let what = format!("run.clock = \"{other}\": must be {words} or /dev/ptpN");
            return Err(evenfall_host::Error::Clock { what }.into());
        }
    };
    let mut clock = Clock::default();
    if matches!(source, SyncSource::SameHost) {
        clock.set(ClockReading { offset_ns: 0, error: ClockError::SameClock });
        return Ok((clock, None));
    }
    let source = source.stepped_by(steps);
    clock.set(source.read()?);
    Ok((clock, Some(ClockWatch::start(source, CLOCK_PERIOD)?)))
}
