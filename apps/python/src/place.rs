//! A store that is opened when somebody reads it.
//!
//! A directory that is open to be read cannot be written by anybody. A notebook stays open all day,
//! and a recorder must be able to start meanwhile. A directory is therefore open only while rows of
//! it are read; readers at the same time share it. The connection to a server stays.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use evenfall::recording::{Catalog, RecordingFiles, RecordingSnapshot, StoreTables};
use evenfall::store::{RecordSource, Store, StoreConfig, StoreError};
use evenfall_store_engine::StorePlaces;
use evenfall_store_recording::layouts::message_layouts;
use evenfall_store_recording::names::near_names;
use evenfall_store_recording::open_source;
use pyo3::PyErr;

use crate::errors::{RowsError, not_found, store_error, wrong_argument};

/// The advice to a user who named a directory without a store.
const STORE_ADVICE: &str =
    "name the directory that Store.record, `evenfall store append` or --record has made";

/// Time after which a silent node of a cluster may be replaced, as for `evenfall store append`.
const LEASE: Duration = Duration::from_secs(10);

/// How long a writer waits for readers of the same place. A reader that nobody holds any more ends
/// with its next batch of rows.
const READERS_PATIENCE: Duration = Duration::from_secs(1);

/// Where a store is.
pub(crate) struct StorePlace {
    place: String,
    /// What readers of the directory share.
    open: Mutex<Weak<dyn RecordSource>>,
    /// The connection to a server.
    server: Mutex<Option<Arc<dyn RecordSource>>>,
}

impl StorePlace {
    pub(crate) fn new(place: String) -> Self {
        Self { place, open: Mutex::new(Weak::<Store>::new()), server: Mutex::default() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.place
    }

    /// Whether others may append while the store is read.
    pub(crate) fn is_served(&self) -> bool {
        self.place.contains("://")
    }

    /// The directory; a mistake for a server.
    pub(crate) fn directory(&self) -> Result<&Path, PyErr> {
        match self.is_served() {
            true => Err(wrong_argument(format!(
                "{}: a feed is recorded in a directory of this machine, by Store.record or by \
                 `evenfall run recorder`",
                self.place
            ))),
            false => Ok(Path::new(&self.place)),
        }
    }

    /// Opens the store, or shares it with other readers.
    pub(crate) fn open(&self) -> Result<Arc<dyn RecordSource>, RowsError> {
        if self.is_served() {
            let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(server) = &*server {
                return Ok(Arc::clone(server));
            }
            return Ok(Arc::clone(server.insert(open_source(&self.place)?)));
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = open.upgrade() {
            return Ok(open);
        }
        let directory = Path::new(&self.place);
        if !directory.is_dir() {
            let words = format!("{}: there is no such directory; {STORE_ADVICE}", self.place);
            return Err(RowsError::NotFound(words));
        }
        let opened = open_source(&self.place)?;
        *open = Arc::downgrade(&opened);
        Ok(opened)
    }

    /// Opens the directory to write. A missing directory is made. Readers of this place that are
    /// about to end are waited for.
    pub(crate) fn open_to_write(&self) -> Result<Store, PyErr> {
        let directory = self.directory()?;
        if directory.exists() && !directory.is_dir() {
            let words = format!("{}: this is a file, and a store is a directory", self.place);
            return Err(wrong_argument(words));
        }
        let until = Instant::now() + READERS_PATIENCE;
        while self.has_readers() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let opened = StoreConfig::placed(directory, &remembered_places())
            .map(|placed| StoreConfig { layouts: message_layouts(), ..placed })
            .map_err(StoreError::from)
            .and_then(Store::open)
            .map_err(|error| store_error(&error))?;
        Ok(opened.store)
    }

    fn has_readers(&self) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.strong_count() > 0
    }

    /// Forgets the connection to a server, which the next reader makes anew.
    pub(crate) fn forget_server(&self) {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(crate) fn tables(&self) -> Result<StoreTables, RowsError> {
        Ok(StoreTables::new(self.open()?))
    }

    pub(crate) fn catalog(&self) -> Result<Catalog, RowsError> {
        Ok(Catalog::read(&*self.open()?)?)
    }

    /// A recording at this moment.
    pub(crate) fn recording(&self, name: &str) -> Result<RecordingSnapshot, RowsError> {
        let source = self.open()?;
        let catalog = Catalog::read(&*source)?;
        let files = catalog.recording(name).ok_or_else(|| self.unknown(name, &catalog))?;
        Ok(RecordingSnapshot::open(source, files)?)
    }

    /// The error for a name that nothing here has.
    pub(crate) fn unknown(&self, name: &str, catalog: &Catalog) -> RowsError {
        let recordings = catalog.recordings().map(|recording: &RecordingFiles| &recording.name);
        let files = catalog.files().map(|file| &file.name);
        let known: Vec<String> = recordings.chain(files).cloned().collect();
        let near = near_names(name, &known);
        let words = format!("{}: there is no recording {name}{near}", self.place);
        RowsError::NotFound(words)
    }
}

/// Objects and names where the directory remembers them, or below it.
fn remembered_places() -> StorePlaces {
    StorePlaces { objects: None, names: None, lease: LEASE, take_over: false }
}

/// Refuses a place without a store.
pub(crate) fn expect_place(place: &str) -> Result<(), PyErr> {
    let path = Path::new(place);
    if !place.contains("://") && path.exists() && !path.is_dir() {
        let words = format!("{place}: this is a file, and a store is a directory; {STORE_ADVICE}");
        return Err(not_found(words));
    }
    Ok(())
}
