//! The recorder of a demo: one more receiver, in this process, that keeps every message.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use evenfall_node::settings::Settings;
use evenfall_node::store::Level;
use evenfall_node::store::recording::{Recorder, streams};
use evenfall_node::{Subscriber, Update};

use crate::store;

/// Name of the recorder's node.
pub const NODE: &str = "recorder";
/// Name of the recording.
pub const NAME: &str = "feed";
/// Messages after which what was gathered is appended, so that a crash loses little.
const FLUSH_MESSAGES: u64 = 512;

/// A recorder at work.
pub struct Recording {
    dir: PathBuf,
    thread: JoinHandle<Result<u64, String>>,
}

impl Recording {
    /// Starts it.
    pub fn start(dir: &Path, settings: &Settings) -> Result<Self, Box<dyn std::error::Error>> {
        let store = store::open(dir)?;
        if !streams(&store, NAME)?.is_empty() {
            let dir = dir.display();
            return Err(format!("--record {dir}: there is a recording already").into());
        }
        let mut updates = Subscriber::with(settings.clone(), NODE)?;
        let record = move || -> Result<u64, String> {
            let words = |error: &dyn std::error::Error| error.to_string();
            let mut recorder = Recorder::new(&store, NAME, Level::Local);
            let mut lost = 0;
            for update in &mut updates {
                match update.map_err(|error| words(&error))? {
                    Update::Message(m) => {
                        let at = i64::try_from(m.released.nanos()).unwrap_or(i64::MAX);
                        let pushed = recorder.push(m.stream, m.number, at, &m.bytes);
                        pushed.map_err(|error| words(&error))?;
                        if recorder.messages() % FLUSH_MESSAGES == 0 {
                            recorder.flush().map_err(|error| words(&error))?;
                        }
                    }
                    Update::Lost { messages, .. } => lost += messages.unwrap_or(1),
                }
            }
            recorder.flush().map_err(|error| words(&error))?;
            let messages = recorder.messages();
            drop(recorder);
            store.close().map_err(|error| words(&error))?;
            match lost {
                0 => Ok(messages),
                _ => Err(format!("{lost} messages were lost before the recorder")),
            }
        };
        let thread = std::thread::Builder::new().name(NODE.into()).spawn(record)?;
        Ok(Self { dir: dir.to_owned(), thread })
    }

    /// Waits for its end, and compares what it kept with the feed.
    pub fn finish(self, hash: &str) -> Result<String, Box<dyn std::error::Error>> {
        let messages = match self.thread.join() {
            Ok(done) => done.map_err(|error| format!("recorder: {error}"))?,
            Err(_) => return Err("recorder: it panicked".into()),
        };
        let store = store::open(&self.dir)?;
        let (_, found) = store::hash_of(&store, NAME)?;
        store.close()?;
        let dir = self.dir.display();
        if found == hash {
            return Ok(format!("{messages} messages recorded in {dir}, equal to the feed"));
        }
        Ok(format!("{messages} messages recorded in {dir}; NOT equal to the feed"))
    }
}
