//! The recorder of a demo: one more receiver, in this process, that keeps every message.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenfall_io::clock::SyncSource;
use evenfall_node::settings::Settings;
use evenfall_node::store::recording::{Recorder, streams};
use evenfall_node::store::{Level, Store, StoreConfig, StoreError};
use evenfall_node::{Subscriber, Update};

use crate::store;

/// Name of the recorder's node.
pub const NODE: &str = "recorder";
/// Name of the recording.
pub const NAME: &str = "feed";
/// Messages after which what was gathered is appended, so that a crash loses little.
const FLUSH_MESSAGES: u64 = 512;
/// And the longest that a message waits for that.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// And the longest that objects are behind the disk; a demo is over before the usual time.
const PUBLISH_EVERY: Duration = Duration::from_secs(2);

/// A recorder at work.
pub struct Recording {
    dir: PathBuf,
    thread: JoinHandle<Result<u64, String>>,
}

impl Recording {
    /// Starts it.
    pub fn start(dir: &Path, settings: &Settings) -> Result<Self, Box<dyn std::error::Error>> {
        let config = StoreConfig { publish_every: PUBLISH_EVERY, ..StoreConfig::new(dir) };
        let store = store::open_as(config)?;
        if !streams(&store, NAME)?.is_empty() {
            let dir = dir.display();
            return Err(format!("--record {dir}: there is a recording already").into());
        }
        let mut updates = Subscriber::with(settings.clone(), NODE)?;
        let (trees, epoch_ns) = (settings.run.trees, epoch_ns(settings));
        let record = move || {
            let recorded = record(&store, &mut updates, trees, epoch_ns);
            let closed = store.close().map_err(|error| error.to_string());
            recorded.and_then(|messages| closed.map(|()| messages))
        };
        let thread = std::thread::Builder::new().name(NODE.into()).spawn(record)?;
        Ok(Self { dir: dir.to_owned(), thread })
    }

    /// Waits for its end, and compares what it kept with what was sent.
    pub fn finish(self, hash: &str) -> Result<String, Box<dyn std::error::Error>> {
        let messages = match self.thread.join() {
            Ok(done) => done.map_err(|error| format!("recorder: {error}"))?,
            Err(_) => return Err("recorder: it panicked".into()),
        };
        let store = store::open_to_read(&self.dir)?;
        let (_, found) = store::proof::hash_of(&store, NAME)?;
        let dir = self.dir.display();
        if found == hash {
            return Ok(format!("{messages} messages recorded in {dir}, equal to what was sent"));
        }
        Err(format!("{messages} messages recorded in {dir}: NOT equal to what was sent").into())
    }
}

/// What makes nanoseconds since 1970 of the run's time: processes of one host share a clock that
/// counts from its start, and a recording is read after that.
fn epoch_ns(settings: &Settings) -> i64 {
    let is_local = matches!(settings.run.clock.as_str(), "same-host" | "auto");
    let reading = is_local.then(|| SyncSource::Realtime.read().ok()).flatten();
    reading.map_or(0, |reading| reading.offset_ns)
}

/// Keeps every message until the feed ends; gives their number.
fn record(
    store: &Store,
    updates: &mut Subscriber,
    trees: u32,
    epoch_ns: i64,
) -> Result<u64, String> {
    let words = |error: StoreError| error.to_string();
    let mut recorder = Recorder::new(store, NAME, trees, Level::Local).map_err(words)?;
    let (mut lost, mut flushed, mut flushed_at) = (0, 0, Instant::now());
    loop {
        let is_due = flushed_at.elapsed() > FLUSH_EVERY;
        if recorder.messages() - flushed >= FLUSH_MESSAGES || is_due {
            recorder.flush().map_err(words)?;
            (flushed, flushed_at) = (recorder.messages(), Instant::now());
        }
        if !updates.wait(FLUSH_EVERY) {
            continue;
        }
        let Some(update) = updates.next() else { break };
        match update.map_err(|error| error.to_string())? {
            Update::Message(m) => {
                let at = i64::try_from(m.released.nanos()).unwrap_or(i64::MAX);
                let at = at.saturating_add(epoch_ns);
                recorder.push(m.stream, m.number, at, &m.bytes).map_err(words)?;
            }
            Update::Lost { messages, .. } => lost += messages.unwrap_or(1),
        }
    }
    recorder.flush().map_err(words)?;
    match lost {
        0 => Ok(recorder.messages()),
        _ => Err(format!("{lost} messages were lost before the recorder")),
    }
}
