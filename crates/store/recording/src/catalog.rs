//! What a store holds: recordings, and users' files. The list of files is read once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use evenfall_feed_formats::itch::Stock;
use evenfall_store_engine::{
    Archive, Client, ConnectOptions, FileListing, Names, RecordSource, RemoteSource, Store,
    StoreConfig, StoreError, user_key_from_environment,
};
use evenfall_store_format::Schema;
use evenfall_store_format::schema::ArrivalOrder;

use crate::files::{beside, message_file};
use crate::snapshot::RecordingSnapshot;

/// The recordings and files of a store at one moment.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    files: BTreeMap<String, FileListing>,
    recordings: BTreeMap<String, RecordingFiles>,
}

/// The files of a recording.
#[derive(Clone, Debug, Default)]
pub struct RecordingFiles {
    /// Its name.
    pub name: String,
    /// How messages come to the recording.
    pub arrival: ArrivalOrder,
    /// Files of messages, by stream.
    streams: BTreeMap<u32, Vec<FileListing>>,
    /// Files of frames, of trades and quotes, and of UTC.
    beside: Vec<FileListing>,
}

impl RecordingFiles {
    /// The streams, in order.
    pub fn streams(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.streams.keys().copied()
    }

    /// The files of a stream's messages.
    pub(crate) fn of_stream(&self, stream: u32) -> &[FileListing] {
        self.streams.get(&stream).map_or(&[], Vec::as_slice)
    }

    /// The security of messages that name none, where the recording's writer stated it.
    pub fn only_symbol(&self) -> Option<Stock> {
        Stock::new(&self.arrival.symbol).filter(|symbol| *symbol != Stock::default())
    }

    /// Records of messages. A message of many bytes has several records.
    pub fn records(&self) -> u64 {
        self.streams.values().flatten().map(|file| file.records).sum()
    }

    /// Whether a file of this name belongs to the recording.
    #[cfg(feature = "arrow")]
    pub(crate) fn has(&self, name: &str) -> bool {
        self.files().any(|file| file.name == name)
    }

    /// Every file, those beside the messages too.
    pub fn files(&self) -> impl Iterator<Item = &FileListing> {
        self.streams.values().flatten().chain(&self.beside)
    }
}

impl Catalog {
    /// The recordings and files of this store.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn read(source: &dyn RecordSource) -> Result<Self, StoreError> {
        Ok(Self::of(source.listed()?))
    }

    fn of(listed: Vec<FileListing>) -> Self {
        let mut catalog = Self::default();
        let mut others = Vec::new();
        for file in listed {
            let Some(name) = message_file(&file) else {
                others.push(file);
                continue;
            };
            let (recording, stream) = (name.recording.to_owned(), name.stream);
            let files = catalog.recordings.entry(recording).or_insert_with_key(|name| {
                let (name, arrival) = (name.clone(), file.schema.arrival.clone());
                RecordingFiles { name, arrival, ..RecordingFiles::default() }
            });
            files.streams.entry(stream).or_default().push(file);
        }
        for file in others {
            let recording = beside(&file).map(str::to_owned);
            match recording.and_then(|name| catalog.recordings.get_mut(&name)) {
                Some(recording) => recording.beside.push(file),
                None => drop(catalog.files.insert(file.name.clone(), file)),
            }
        }
        catalog
    }

    /// Files of users, in order of names.
    pub fn files(&self) -> impl Iterator<Item = &FileListing> {
        self.files.values()
    }

    /// A user's file.
    pub fn file(&self, name: &str) -> Option<&FileListing> {
        self.files.get(name)
    }

    /// The recordings, in order of names.
    pub fn recordings(&self) -> impl ExactSizeIterator<Item = &RecordingFiles> {
        self.recordings.values()
    }

    /// A recording.
    pub fn recording(&self, name: &str) -> Option<&RecordingFiles> {
        self.recordings.get(name)
    }

    /// Refuses the name of a recording for a new file: one name is one thing.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`].
    pub fn expect_no_recording(&self, name: &str) -> Result<(), StoreError> {
        expect_free(name, "recording", self.recordings.contains_key(name))
    }

    /// Refuses a new file whose name another thing has: a recording, or for a part of a recording
    /// a file.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`].
    pub fn expect_free(&self, name: &str, schema: &Schema) -> Result<(), StoreError> {
        self.expect_no_recording(name)?;
        let file = FileListing { name: name.to_owned(), schema: schema.clone(), records: 0 };
        message_file(&file).map_or(Ok(()), |part| self.expect_no_file(part.recording))
    }

    /// Refuses the name of a file for a new recording.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`].
    pub fn expect_no_file(&self, name: &str) -> Result<(), StoreError> {
        expect_free(name, "file", self.files.contains_key(name))
    }
}

/// The recordings of a store in any place.
#[derive(Clone)]
pub struct Recordings {
    source: Arc<dyn RecordSource>,
    grows: bool,
}

impl Recordings {
    /// The recordings in a store's directory, or of the server at `tcp://127.0.0.1:7410`.
    ///
    /// # Errors
    /// When there is no such store, and the errors of opening it.
    pub fn open(place: &str) -> Result<Self, StoreError> {
        let grows = place.contains("://");
        Ok(Self { source: open_source(place)?, grows })
    }

    /// The recordings of a source, to which others may append meanwhile.
    pub fn of(source: Arc<dyn RecordSource>) -> Self {
        Self { source, grows: true }
    }

    /// Whether recordings can grow. Nobody writes a directory while it is open to be read.
    pub fn grows(&self) -> bool {
        self.grows
    }

    /// What the store holds now.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn catalog(&self) -> Result<Catalog, StoreError> {
        Catalog::read(&*self.source)
    }

    /// A recording at this moment.
    ///
    /// # Errors
    /// When there is no recording of this name, and the errors of the source.
    pub fn recording(&self, name: &str) -> Result<RecordingSnapshot, StoreError> {
        let catalog = self.catalog()?;
        let unknown = || evenfall_store_format::Error::UnknownFile { file: name.to_owned() };
        let files = catalog.recording(name).ok_or_else(unknown)?;
        RecordingSnapshot::open(Arc::clone(&self.source), files)
    }
}

/// Opens a place to read: a store's directory, `tcp://127.0.0.1:7410` of a server or of a recorder
/// that serves, or the place of a store's objects. A directory is not changed by a byte, and nobody
/// may write it meanwhile.
///
/// # Errors
/// When there is no such store, and the errors of opening it.
pub fn open_source(place: &str) -> Result<Arc<dyn RecordSource>, StoreError> {
    if place.starts_with("tcp://") {
        return Ok(Arc::new(RemoteSource::new(connect_to(place)?)));
    }
    if place.contains("://") {
        return Ok(Arc::new(Archive::open(place)?));
    }
    let directory = Path::new(place);
    let mut config = StoreConfig::new(directory);
    if directory.is_dir()
        && let Some(objects) = Names::objects_of(directory)?
    {
        config.objects = Some(objects);
    }
    Ok(Arc::new(Store::open_to_read(config)?.store))
}

/// Connects to the server at `tcp://127.0.0.1:7410`, for appends; as the user whose key the
/// variable `EVENFALL_STORE_KEY` names, when it does.
///
/// # Errors
/// A place of another form, and the errors of the connection.
pub fn connect_to(place: &str) -> Result<Client, StoreError> {
    let wrong = |why: String| StoreError::Remote {
        what: format!("{place}: {why}: write tcp://127.0.0.1:7410"),
        is_retryable: false,
    };
    let address = place.strip_prefix("tcp://").ok_or_else(|| wrong("takes no appends".into()))?;
    let address = address.parse();
    let address = address.map_err(|error: std::net::AddrParseError| wrong(error.to_string()))?;
    Client::connect_with(address, &ConnectOptions::with_key(user_key_from_environment()?))
}

fn expect_free(name: &str, by: &'static str, is_taken: bool) -> Result<(), StoreError> {
    match is_taken {
        true => Err(StoreError::NameTaken { name: name.to_owned(), by }),
        false => Ok(()),
    }
}
