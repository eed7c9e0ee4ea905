//! The thread that writes a recording.
//!
//! Two clocks drive it. Readers want the newest message at once, and a sync of the disk takes
//! milliseconds. So messages are **shown** to readers, which copies them into the store's memory,
//! as soon as nothing waits behind them: a quiet feed is shown message by message, and a busy one
//! in groups that grow by themselves. They are **committed** to the disk every 100 ms or 512
//! messages. Such a commit is not waited for, so that the disk does not hold the next messages up.
//! A file of which 64 KiB are gathered between two commits is committed at once, and that is waited
//! for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use evenfall_clock_service::MeshView;
use evenfall_core::SyncTime;
use evenfall_multicast_machine::Release;
use evenfall_store_engine::{Store, StoreAckLevel, StoreError};
use evenfall_store_recording::RecordingWriter;
use evenfall_store_recording::writer::{BegunFlush, TakenMessage};

use crate::frames::FrameLog;
use crate::recent::RecentTap;
use crate::role::NAME;
use crate::signatures::SignatureLog;
use crate::tables::{OpenTables, TableLog};
use crate::utc::UtcLog;

/// Messages after which the gathered messages are committed, so that a crash loses few.
const FLUSH_MESSAGES: u64 = 512;
/// The longest time that a gathered message waits to be committed.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// Messages that may come while a commit is under way. A disk that is further behind is waited for,
/// and then frames wait in the queue, whose limit ends the recorder by name.
const UNCOMMITTED_MAX: u64 = 16 * FLUSH_MESSAGES;
/// The pause between two turns while tables are made of an earlier process's messages.
const CATCH_UP_PAUSE: Duration = Duration::from_millis(1);

/// What the writer's thread shares with the others.
#[derive(Default)]
pub(crate) struct WriterState {
    /// Acknowledged messages.
    pub(crate) kept: AtomicU64,
    /// Whether the process ends. A store that is at its limit then holds it up no longer.
    pub(crate) is_stopping: AtomicBool,
}

/// What the writer's thread is given: the shape of the recording, and who takes its messages beside
/// the store.
pub(crate) struct RecordingPlan {
    /// Trees of the run: streams of the recording.
    pub(crate) trees: u32,
    /// Nanoseconds to add to the run's time for time since 1970.
    pub(crate) epoch_ns: i64,
    /// The clocks of the run, where the nodes measure each other's.
    pub(crate) clock: Option<MeshView>,
    /// The last seconds in memory.
    pub(crate) recent: Option<Box<dyn RecentTap>>,
    /// Trades and quotes.
    pub(crate) open_tables: Option<OpenTables>,
    /// Whether the store has readers. Each message is then shown to them at once.
    pub(crate) is_served: bool,
}

/// The files of a recording while they are written.
struct RecordingThread<'a> {
    recording: RecordingWriter<'a>,
    frames: FrameLog<'a>,
    signatures: SignatureLog<'a>,
    utc: Option<UtcLog<'a>>,
    tables: Option<Box<dyn TableLog + 'a>>,
    recent: Option<Box<dyn RecentTap>>,
    is_served: bool,
    epoch_ns: i64,
    state: &'a WriterState,
    /// The commit under way.
    begun: Option<BegunFlush>,
    /// Messages of the last commit, and when it was begun.
    begun_messages: u64,
    begun_at: Instant,
    last_at: Option<i64>,
}

impl RecordingThread<'_> {
    fn take_release(&mut self, release: &Release, at: SyncTime) -> Result<(), StoreError> {
        let at = i64::try_from(at.nanos()).unwrap_or(i64::MAX).saturating_add(self.epoch_ns);
        for (number, bytes) in (release.first_message..).zip(release.messages.clone()) {
            if let Some(recent) = &mut self.recent {
                recent.push(release.stream, at, release.format, &bytes);
            }
            self.recording.push(release.stream, number, at, release.format, &bytes)?;
            if let Some(tables) = &mut self.tables {
                tables.push(TakenMessage {
                    stream: release.stream,
                    number,
                    indexed_ns: self.recording.indexed_ns(),
                    time_ns: at,
                    format: release.format,
                    bytes: &bytes,
                })?;
            }
        }
        self.signatures.push(release, at)?;
        self.frames.push(release, at);
        self.last_at = Some(at);
        Ok(())
    }

    /// Shows all messages and their rows to readers. Returns whether rows of messages of an earlier
    /// process are still to be made.
    fn show(&mut self) -> Result<bool, StoreError> {
        self.recording.show()?;
        self.tables.as_mut().map_or(Ok(false), |tables| tables.show())
    }

    /// Begins a commit when it is due, and notes the one before when it is done. At the end of the
    /// recording, waits for both.
    fn commit(&mut self, has_ended: bool) -> Result<(), StoreError> {
        let messages = self.recording.messages();
        if let Some(begun) = self.begun.take() {
            let is_far_behind = messages - begun.messages() >= UNCOMMITTED_MAX;
            if !has_ended && !is_far_behind && !self.recording.is_flushed(&begun) {
                self.begun = Some(begun);
                return Ok(());
            }
            self.end_commit(begun)?;
        }
        let is_due = self.begun_at.elapsed() >= FLUSH_EVERY;
        if !has_ended && !is_due && messages - self.begun_messages < FLUSH_MESSAGES {
            return Ok(());
        }
        let begun = self.recording.begin_flush()?;
        if let Some(tables) = &mut self.tables {
            tables.show()?;
        }
        self.signatures.flush()?;
        self.frames.flush()?;
        if let (Some(utc), Some(at)) = (&mut self.utc, self.last_at) {
            utc.note(at)?;
        }
        (self.begun_messages, self.begun_at) = (messages, Instant::now());
        match has_ended {
            true => self.end_commit(begun),
            false => {
                self.begun = Some(begun);
                Ok(())
            }
        }
    }

    fn end_commit(&self, begun: BegunFlush) -> Result<(), StoreError> {
        let messages = begun.messages();
        self.recording.end_flush(begun)?;
        self.state.kept.store(messages, Ordering::Release);
        Ok(())
    }
}

/// Stores messages until the channel closes.
pub(crate) fn write_recording(
    store: &Store,
    plan: RecordingPlan,
    from: &Receiver<(Release, SyncTime)>,
    state: &WriterState,
) -> Result<(), StoreError> {
    let stopping = &state.is_stopping;
    let recording = RecordingWriter::new(store, NAME, plan.trees, StoreAckLevel::Local)?;
    let clock = plan.clock.map(|clock| UtcLog::new(store, NAME, clock, stopping));
    let tables = plan.open_tables.map(|open| open(store, NAME, stopping));
    let mut writer = RecordingThread {
        recording: recording.stopping_with(stopping),
        frames: FrameLog::new(store, NAME, plan.trees, stopping)?,
        signatures: SignatureLog::new(store, NAME, stopping),
        utc: clock.transpose()?,
        tables: tables.transpose()?,
        recent: plan.recent,
        is_served: plan.is_served,
        epoch_ns: plan.epoch_ns,
        state,
        begun: None,
        begun_messages: 0,
        begun_at: Instant::now(),
        last_at: None,
    };
    // Rows of an earlier process's messages are made between the messages of this one.
    let mut is_behind = writer.tables.is_some();
    loop {
        let next = match from.try_recv() {
            Ok(next) => Ok(next),
            Err(TryRecvError::Disconnected) => Err(RecvTimeoutError::Disconnected),
            Err(TryRecvError::Empty) => {
                if writer.is_served || is_behind {
                    is_behind = writer.show()?;
                }
                from.recv_timeout(if is_behind { CATCH_UP_PAUSE } else { FLUSH_EVERY })
            }
        };
        match &next {
            Ok((release, at)) => writer.take_release(release, *at)?,
            Err(_) if is_behind => {}
            Err(_) => writer.recent.iter_mut().for_each(|recent| recent.settle()),
        }
        let has_ended = matches!(next, Err(RecvTimeoutError::Disconnected));
        writer.commit(has_ended)?;
        if has_ended {
            return Ok(());
        }
    }
}
