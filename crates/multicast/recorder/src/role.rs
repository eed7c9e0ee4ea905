//! A recorder as a process, or inside one: a receiver whose messages go into a store. From the
//! store it repairs messages that no other node has any more.
//!
//! Three threads share the work, so that no disk delays the reception. The first turns the machine,
//! the second writes released messages, and the third reads the frames that other nodes ask for.
//!
//! ```text
//!  machine --released--> writer --> store --> reader --frames--> machine --> who asked
//!     |                                         ^
//!     +------------------wanted-----------------+
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use evenfall_clock_service::Standing;
use evenfall_core::{Clock, ClockError, NodeId, SyncTime, Timestamp};
use evenfall_host::clock::{MonotonicClock, SyncSource};
use evenfall_host::{Waker, procstat};
use evenfall_multicast_machine::{
    Archived, Begin, ReceiverEvent, ReceiverStatus, Recorder, RecorderStatus, Release, Resume,
    Wanted,
};
use serde::Serialize;

use crate::frames::{self, FrameReader};
use crate::recent::RecentHolder;
use crate::recording_thread::{RecordingPlan, WriterState, write_recording};
use crate::tables::OpenTables;
use evenfall_multicast_service::roles::receiver::{Delivery, Sink, metrics, note_duplicates};
use evenfall_multicast_service::roles::{Ended, Part};
use evenfall_multicast_service::roles::{RoleError, RoleProcess, identity};
use evenfall_multicast_service::settings::{MulticastNode, Settings};
use evenfall_runtime::telemetry::Metrics;
use evenfall_store_engine::{RecordSource, Store, StoreError};
use evenfall_store_recording::Catalog;

/// Name of the recording in its store.
pub const NAME: &str = "feed";
/// Frames that may wait to be written. A disk that is further behind is too slow for this feed. The
/// recorder then ends with an error that says so, and no other node is affected.
const WAITING_MAX: usize = 65_536;
/// Reads that may wait, per tree. The machine never wants more reads at once.
const READS_MAX: usize = 8;

/// The summary of a recorder.
#[derive(Clone, Debug, Serialize)]
pub struct RecorderSummary {
    /// Name of the recorder.
    pub name: String,
    /// Id of the recorder.
    pub id: NodeId,
    /// Messages released, and kept.
    pub messages: u64,
    /// Hash of the released messages, in order, over all trees.
    pub content_hash: String,
    /// Messages that were lost before they reached the recorder.
    pub lost: u64,
    /// Counters of the recorder, one entry per tree.
    pub trees: Vec<RecorderStatus>,
    /// Datagrams that were no messages of the protocol.
    pub malformed: u64,
    /// Largest resident memory seen, bytes.
    pub resident_bytes_max: u64,
    /// The last state of the recorder's clock in the mesh; `None` when the host's clock was used.
    pub clock: Option<Standing>,
    /// Why the recorder ended.
    pub ended: String,
}

/// Passes released messages on, and never waits.
struct StoreSink {
    to: Option<SyncSender<(Release, SyncTime)>>,
    lost: u64,
    is_behind: bool,
}

impl Sink for StoreSink {
    fn released(&mut self, release: &Release, at: SyncTime) {
        let Some(to) = &self.to else { return };
        match to.try_send((release.clone(), at)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.is_behind = true,
            // The writer has ended. Joining its thread gives the reason.
            Err(TrySendError::Disconnected(_)) => self.to = None,
        }
    }

    fn lost(&mut self, _: u32, _: Option<u64>, messages: Option<u64>) {
        self.lost += messages.unwrap_or(1);
    }

    fn wants_to_stop(&self) -> bool {
        self.is_behind || self.to.is_none()
    }
}

/// Nanoseconds to add to the run's time for time since 1970. Processes of one host share a clock
/// that counts from the host's start, and a recording is read after that clock is gone. All other
/// clocks count from 1970 already.
fn epoch_ns(clock: Clock) -> i64 {
    let is_local = clock.reading().error == ClockError::SameClock;
    let reading = is_local.then(|| SyncSource::Realtime.read().ok()).flatten();
    reading.map_or(0, |reading| reading.offset_ns)
}

/// The result of a read.
enum Found {
    Frames { asker: NodeId, count: u16, frames: Vec<Archived> },
    Location { asker: NodeId, begin: Begin, at: Option<(u64, u64)> },
}

/// Reads for requests until the channel closes. Frames that cannot be read count as absent, and the
/// asker asks again.
fn read(
    store: &Store,
    from: &Receiver<(u32, Wanted)>,
    to: &SyncSender<(u32, Found)>,
    waker: &Waker,
) {
    let mut reader = FrameReader::new(store as &dyn RecordSource, NAME);
    while let Ok((stream, wanted)) = from.recv() {
        let found = match wanted {
            Wanted::Frames { asker, first, count } => {
                let frames = reader.frames((asker, stream), first, count);
                let frames = frames.unwrap_or_else(|error| {
                    tracing::warn!("frames {first} and {count} on for node {}: {error}", asker.0);
                    Vec::new()
                });
                Found::Frames { asker, count, frames }
            }
            Wanted::Location { asker, begin } => {
                let at = reader.locate(stream, begin).unwrap_or_else(|error| {
                    tracing::warn!("where node {} begins: {error}", asker.0);
                    None
                });
                Found::Location { asker, begin, at }
            }
        };
        if to.send((stream, found)).is_err() {
            return;
        }
        waker.wake();
    }
}

/// The machines' connection to the reader.
struct ArchiveReader {
    wanted: SyncSender<(u32, Wanted)>,
    found: Receiver<(u32, Found)>,
}

impl ArchiveReader {
    /// Passes on the requests of machines, and hands them the results.
    fn serve(&mut self, machines: &mut [Recorder]) {
        for (stream, machine) in machines.iter_mut().enumerate() {
            while let Some(wanted) = machine.poll_wanted() {
                if self.wanted.try_send((stream as u32, wanted)).is_err() {
                    // The machine treats the frames as absent.
                    answer(machine, none(wanted));
                }
            }
        }
        while let Ok((stream, found)) = self.found.try_recv() {
            if let Some(machine) = machines.get_mut(stream as usize) {
                answer(machine, found);
            }
        }
    }
}

fn none(wanted: Wanted) -> Found {
    match wanted {
        Wanted::Frames { asker, count, .. } => Found::Frames { asker, count, frames: Vec::new() },
        Wanted::Location { asker, begin } => Found::Location { asker, begin, at: None },
    }
}

fn answer(machine: &mut Recorder, found: Found) {
    match found {
        Found::Frames { asker, count, frames } => machine.supply(asker, count, frames),
        Found::Location { asker, begin, at } => machine.locate(asker, begin, at),
    }
}

fn page(
    name: &str,
    all: &[RecorderStatus],
    receivers: &[ReceiverStatus],
    refused: u64,
    kept: u64,
) -> Metrics {
    let mut m = metrics((name, "recorder"), receivers, refused);
    m.counter("kept_messages_total", "Messages kept in the store.", 0, kept);
    for (tree, status) in (0..).zip(all) {
        let help = "Frames sent to nodes that missed them.";
        m.counter("recorder_frames_total", help, tree, status.repairs_sent);
        m.counter("absent_frames_total", "Requested frames not archived.", tree, status.absent);
        m.gauge("askers", "Nodes that wait for frames.", tree, status.askers as f64);
    }
    m
}

/// Where an existing recording continues. A store without the recording begins with the live feed.
fn resumes_of(
    node: &MulticastNode,
    store: &Store,
    trees: u32,
) -> Result<Vec<Option<Resume>>, RoleError> {
    let failed = |error: StoreError| RoleError::Part(Box::new(error));
    let catalog = Catalog::read(store).map_err(failed)?;
    let there = catalog.recording(NAME).map_or(0, |there| there.streams().len());
    if there == 0 {
        return Ok(vec![None; trees as usize]);
    }
    let name = &node.name;
    if there != trees as usize {
        return Err(RoleError::Part(format!(
            "node {name}: its directory has a recording {NAME} of {there} trees, and this run has \
             {trees}: give an empty directory"
        ).into()));
    }
    let resumes = frames::resumes(store, NAME, trees).map_err(failed)?;
    for (tree, resume) in resumes.iter().enumerate() {
        if let Some(Resume { epoch, frame, message }) = resume {
            tracing::info!(
                "{name}: tree {tree} goes on with frame {frame}, message {message} of run {epoch}"
            );
        }
    }
    Ok(resumes)
}

/// Rewrites the error of a recorder that wanted to continue and found another run.
fn of_another_run(error: RoleError, node: &MulticastNode, resumes: &[Option<Resume>]) -> RoleError {
    let wanted = resumes.iter().flatten().next();
    match (&error, wanted) {
        (RoleError::RootRestarted { epoch }, Some(resume)) if *epoch != resume.epoch => {
            RoleError::Part(format!(
                "node {}: its directory has the recording {NAME} of run {}, and the root is in run \
                 {epoch}, whose numbers begin anew: give an empty directory",
                node.name, resume.epoch
            ).into())
        }
        _ => error,
    }
}

/// What a recorder does beside keeping messages.
#[derive(Clone, Copy, Default)]
pub struct RecorderExtras<'a> {
    /// Takes the messages too, and answers questions about the last seconds.
    pub recent: Option<&'a dyn RecentHolder>,
    /// Opens the trades and quotes that are written beside the messages.
    pub open_tables: Option<OpenTables>,
    /// Whether the store has readers. Each message is then shown to them at once.
    pub is_served: bool,
}

impl std::fmt::Debug for RecorderExtras<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecorderExtras").field("is_served", &self.is_served).finish_non_exhaustive()
    }
}

/// Runs a recorder into a store until the feed has ended and no node needs the recorder, a signal
/// comes, or the root is lost. An existing recording of this run is continued. The call does not
/// close the store.
///
/// # Errors
/// [`RoleError`]; the messages kept before stay in the store.
pub fn run(
    settings: &Settings,
    node: &MulticastNode,
    store: &Store,
    extras: RecorderExtras<'_>,
) -> Result<RecorderSummary, RoleError> {
    let failed = |error: StoreError| RoleError::Part(Box::new(error));
    let recent = extras.recent;
    let trees = settings.course.trees;
    let resumes = resumes_of(node, store, trees)?;
    let process = RoleProcess::start(settings, node)?;
    let (sink, released) = sync_channel(WAITING_MAX);
    let (wanted, to_read) = sync_channel(READS_MAX * trees as usize);
    let (found, was_read) = sync_channel(READS_MAX * trees as usize);
    let state = &WriterState::default();
    let waker = process.base.port.waker();
    let plan = RecordingPlan {
        trees,
        epoch_ns: epoch_ns(process.base.clock()),
        clock: process.time(),
        recent: recent.map(RecentHolder::make_tap),
        open_tables: extras.open_tables,
        is_served: extras.is_served,
    };
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || write_recording(store, plan, &released, state));
        scope.spawn(move || read(store, &to_read, &found, &waker));
        let sink = StoreSink { to: Some(sink), lost: 0, is_behind: false };
        let reader = ArchiveReader { wanted, found: was_read };
        let recorded =
            turn(settings, node, process, (sink, reader), (&resumes, &state.kept, recent));
        state.is_stopping.store(true, Ordering::Relaxed);
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // The writer's error goes first. The role ends without a reason of its own when the writer
        // has ended.
        written.map_err(failed)?;
        let mut summary = recorded?;
        if summary.lost > 0 {
            tracing::warn!(
                "{}: {} messages were lost before they reached this recorder",
                node.name,
                summary.lost
            );
        }
        // What the store has, and not what was released to it.
        summary.messages = state.kept.load(Ordering::Acquire);
        tracing::info!("{}: {}: {} messages kept", node.name, summary.ended, summary.messages);
        Ok(summary)
    })
}

/// The recorder's part in the loop of its machines.
struct RecorderPart<'a> {
    node: &'a MulticastNode,
    trees: u32,
    delivery: Delivery<'a, StoreSink>,
    reader: ArchiveReader,
    resumes: &'a [Option<Resume>],
    kept: &'a AtomicU64,
    recent: Option<&'a dyn RecentHolder>,
    duplicates: u64,
}

impl Part<Recorder> for RecorderPart<'_> {
    fn on(&mut self, machine: &Recorder, _: Timestamp, event: ReceiverEvent) {
        self.delivery.on(machine.stream(), event);
    }

    fn set_clock(&mut self, clock: Clock) {
        self.delivery.clock = clock;
    }

    fn turned(&mut self, process: &mut RoleProcess, machines: &mut [Recorder]) {
        self.reader.serve(machines);
        self.delivery.records.drain(..).for_each(|record| process.note(record));
    }

    fn housekeep(&mut self, process: &mut RoleProcess, machines: &[Recorder]) {
        let kept = self.kept.load(Ordering::Acquire);
        let all: Vec<_> = machines.iter().map(Recorder::status).collect();
        let receivers: Vec<_> = all.iter().map(|status| status.receiver).collect();
        let mut text = page(&self.node.name, &all, &receivers, process.base.refused(), kept);
        self.recent.iter().for_each(|recent| recent.add_metrics(&mut text));
        self.duplicates = note_duplicates(process, &receivers, self.duplicates);
        let ill = machines.iter().any(|machine| machine.place().is_none());
        process.publish(all, ill.then(|| "not in every tree".to_owned()), move |_| text);
    }

    fn ended(&mut self, machines: &mut [Recorder]) -> Option<Ended> {
        let name = &self.node.name;
        if let Some(error) = self.delivery.failed.take() {
            return Some(Err(of_another_run(error, self.node, self.resumes)));
        }
        if self.delivery.sink.is_behind {
            return Some(Err(RoleError::Part(format!(
                "{name}: {WAITING_MAX} frames wait to be written: the disk is too slow for this \
                 feed"
            ).into())));
        }
        let now = MonotonicClock::now();
        let is_over = self.delivery.finished.len() >= self.trees as usize
            && machines.iter_mut().all(|machine| machine.is_alone(now));
        is_over.then_some(Ok("the stream ended"))
    }

    fn wants_to_stop(&self) -> bool {
        self.delivery.sink.wants_to_stop()
    }
}

fn turn(
    settings: &Settings,
    node: &MulticastNode,
    mut process: RoleProcess,
    (mut sink, reader): (StoreSink, ArchiveReader),
    (resumes, kept, recent): (&[Option<Resume>], &AtomicU64, Option<&dyn RecentHolder>),
) -> Result<RecorderSummary, RoleError> {
    let key = process.base.key.clone();
    let verifier = settings.trust.load_verifier()?;
    let mut machines = Vec::new();
    for (stream, resume) in (0..settings.course.trees).zip(resumes) {
        let who = identity(settings, node, stream, process.base.started)?;
        let now = MonotonicClock::now();
        let machine = Recorder::new(settings.multicast, who, key.as_ref(), now);
        let machine = match process.node_key() {
            Some(key) => machine.with_node_key(key),
            None => machine,
        };
        let machine = match &verifier {
            Some(verifier) => machine.check_signatures(verifier.clone(), settings.trust.release),
            None => machine,
        };
        machines.push(match resume {
            Some(resume) => machine.resuming(*resume),
            None => machine,
        });
    }
    let delivery = Delivery::new(&mut sink, settings, node, process.base.clock());
    let trees = settings.course.trees;
    let mut part =
        RecorderPart { node, trees, delivery, reader, resumes, kept, recent, duplicates: 0 };
    let ended = process.play(&mut machines, &mut part)?;
    let delivery = part.delivery;
    let summary = RecorderSummary {
        name: node.name.clone(),
        id: node.id,
        messages: delivery.hash.messages(),
        content_hash: delivery.hash.finish_hex(),
        lost: delivery.sink.lost,
        trees: machines.iter().map(Recorder::status).collect(),
        malformed: process.base.refused(),
        resident_bytes_max: procstat::resident_bytes_max(),
        clock: process.standing(),
        ended: ended.as_ref().map_or_else(ToString::to_string, ToString::to_string),
    };
    process.end(settings, &summary)?;
    ended.map(|_| summary)
}
