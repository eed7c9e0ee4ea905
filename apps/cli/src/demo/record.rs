//! The recorder of a demo, a leaf of the tree in this process. The recorder keeps every message and
//! repairs messages for other nodes.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use evenfall_multicast_recorder::role::{self as recorder, NAME, RecorderExtras, RecorderSummary};
use evenfall_multicast_service::Settings;
use evenfall_store_engine::StoreConfig;
use evenfall_store_recording::Catalog;
use evenfall_store_recording::layouts::message_layouts;
use evenfall_store_recording::verify::content_hash;

use super::content::SentContent;
use crate::store;

/// Name of the recorder's node.
pub const NODE: &str = "recorder";
/// How often the objects are brought up to date. A demo is over before the usual time.
const PUBLISH_EVERY: Duration = Duration::from_secs(2);

/// A recorder that runs.
pub struct Recording {
    dir: PathBuf,
    thread: JoinHandle<Result<RecorderSummary, String>>,
}

impl Recording {
    /// Starts the recorder.
    pub fn start(dir: &Path, settings: &Settings) -> Result<Self, Box<dyn std::error::Error>> {
        let (publish_every, layouts) = (PUBLISH_EVERY, message_layouts());
        let config = StoreConfig { publish_every, layouts, ..StoreConfig::new(dir) };
        let store = store::open_as(config)?;
        if Catalog::read(&store)?.recording(NAME).is_some() {
            let (dir, advice) = (dir.display(), "name another directory");
            return Err(
                format!("--record {dir}: {NAME} is recorded there already; {advice}").into()
            );
        }
        let (settings, node) = (settings.clone(), settings.node(NODE)?.clone());
        let record = move || {
            let open_tables = store::OPEN_TABLES;
            let extras = RecorderExtras { open_tables, ..RecorderExtras::default() };
            let recorded = recorder::run(&settings, &node, &store, extras);
            let closed = store.close().map_err(|error| error.to_string());
            let recorded = recorded.map_err(|error| error.to_string());
            recorded.and_then(|summary| closed.map(|()| summary))
        };
        let thread = std::thread::Builder::new().name(NODE.into()).spawn(record)?;
        Ok(Self { dir: dir.to_owned(), thread })
    }

    /// Waits for the recorder's end, and compares its messages with the sent messages.
    pub fn finish(self, sent: &SentContent) -> Result<String, Box<dyn std::error::Error>> {
        let summary = match self.thread.join() {
            Ok(done) => done.map_err(|error| format!("recorder: {error}"))?,
            Err(_) => return Err("recorder: it panicked".into()),
        };
        let store = store::open_to_read(&self.dir)?;
        let (_, found) = content_hash(&store, NAME)?;
        let (dir, messages) = (self.dir.display(), summary.messages);
        let mut said = serde_json::to_value(&summary)?;
        said["content_hash"] = found.into();
        if sent.are_equal(&[said])? == [true] {
            return Ok(format!("{messages} messages recorded in {dir}, equal to what was sent"));
        }
        Err(format!("{messages} messages recorded in {dir}: NOT equal to what was sent").into())
    }
}
