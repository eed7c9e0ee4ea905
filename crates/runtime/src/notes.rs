//! The notes of a running process: lines on standard error, which an orchestrator keeps.
//!
//! The code of roles and services states an event by the macros of `tracing`, so a program of your
//! own may send the events elsewhere. The programs of evenfall [`start`] this writer. A role must
//! continue when nobody takes its notes, so its thread never writes them:
//!
//! ```text
//! role's thread --formatted line--> queue of 1,024 lines --> thread "notes" --> standard error
//!                                      | full: the line is dropped and counted
//! ```
//!
//! A full disk, a reader that has gone and a reader that does not read cost notes and nothing else.
//! When lines are written again, a line states how many were dropped.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

use crate::LEVEL_VARIABLE;

#[cfg(test)]
mod tests;

/// Lines that may wait. A tree of a thousand nodes that changes at once writes a line for each
/// node.
const LINES_MAX: usize = 1_024;
/// How long a process that ends waits for its last notes to be taken.
const FAREWELL: Duration = Duration::from_millis(500);
/// How often a process that ends looks for room in the queue.
const LOOK: Duration = Duration::from_millis(5);

/// What begins each line of this process.
static NAME: OnceLock<String> = OnceLock::new();

/// Lets each later line of this process begin with this name, because several processes write to
/// one terminal. Only the first call counts.
pub fn name(name: &str) {
    // A second call finds the name of the first.
    let _ = NAME.set(format!("{name}: "));
}

/// What begins the lines of this process; empty without a name.
fn named() -> &'static str {
    NAME.get().map_or("", String::as_str)
}

/// The least time between two notes about one kind of event.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// Lets one note a second pass, and counts the notes in between. A stranger who causes events at
/// any rate, such as refused datagrams, then does not fill the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotePace {
    last: Option<Instant>,
    left_out: u64,
}

impl NotePace {
    /// The number of notes that were left out since the last note, when a note may be written now;
    /// `None` when this note is left out too.
    pub fn let_pass(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < NOTE_EVERY) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

enum Line {
    Note(Vec<u8>),
    /// The end of the notes. The answer comes after all earlier notes are written.
    Last(SyncSender<()>),
}

/// The end of the queue into which notes are put.
#[derive(Clone)]
struct Queue {
    to: SyncSender<Line>,
    dropped: Arc<AtomicU64>,
}

impl Write for &Queue {
    /// Takes one note. The formatter hands over whole lines.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let note = [named().as_bytes(), line].concat();
        if self.to.try_send(Line::Note(note)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

/// Why notes are not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotesError {
    /// [`LEVEL_VARIABLE`] names no level.
    #[error("{LEVEL_VARIABLE} = {0}: must be off, error, warn, info, debug or trace")]
    Level(String),
    /// The thread of the writer could not be started.
    #[error("no thread that writes notes: {0}")]
    Thread(io::Error),
    /// The notes of this process already go elsewhere.
    #[error("notes: {0}; start the writer of notes once in a process")]
    Taken(tracing::subscriber::SetGlobalDefaultError),
}

/// Writes notes until it is dropped. Dropping it waits half a second at most for the last notes.
#[must_use = "notes are written as long as this is kept"]
pub struct Notes {
    queue: Queue,
    farewell: Duration,
}

/// Writes the notes of this process to standard error from now on.
///
/// # Errors
/// When [`LEVEL_VARIABLE`] names no level, or the notes of this process already go elsewhere.
pub fn start() -> Result<Notes, NotesError> {
    let level = std::env::var_os(LEVEL_VARIABLE);
    let level = level_of(level.as_ref().map(|text| text.to_string_lossy()).as_deref())?;
    let notes = Notes::new(io::stderr()).map_err(NotesError::Thread)?;
    // Below this level, the notes of libraries are about their own workings.
    let filter = Targets::new().with_default(LevelFilter::WARN.min(level));
    let filter = filter.with_target("evenfall", level);
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        // A macro that panics must not report a failed write.
        .log_internal_errors(false)
        .with_writer(notes.queue.clone());
    let subscriber = tracing_subscriber::registry().with(lines).with(filter);
    tracing::subscriber::set_global_default(subscriber).map_err(NotesError::Taken)?;
    Ok(notes)
}

fn level_of(text: Option<&str>) -> Result<LevelFilter, NotesError> {
    text.filter(|text| !text.is_empty()).map_or(Ok(LevelFilter::INFO), |text| {
        text.parse().map_err(|_| NotesError::Level(text.to_owned()))
    })
}

impl Notes {
    fn new(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (to, from) = sync_channel(LINES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let queue = Queue { to, dropped: Arc::clone(&dropped) };
        let work = move || write_all(&from, &dropped, out);
        std::thread::Builder::new().name("notes".into()).spawn(work)?;
        Ok(Self { queue, farewell: FAREWELL })
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        let until = Instant::now() + self.farewell;
        let (done, is_done) = sync_channel(1);
        let mut last = Line::Last(done);
        while let Err(TrySendError::Full(line)) = self.queue.to.try_send(last) {
            last = line;
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(LOOK);
        }
        // The process ends whether or not its last notes were taken.
        is_done.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
    }
}

fn write_all(from: &Receiver<Line>, dropped: &AtomicU64, mut out: impl Write) {
    while let Ok(line) = from.recv() {
        let line = match line {
            Line::Note(line) => line,
            Line::Last(done) => {
                done.send(()).ok();
                return;
            }
        };
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 && writeln!(out, "{}notes that nobody took: {lost}", named()).is_err() {
            dropped.fetch_add(lost, Ordering::Relaxed);
        }
        if out.write_all(&line).is_err() {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
