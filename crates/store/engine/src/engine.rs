//! [`Store`]: the files of one node, and the thread that owns its disk.

mod adoption;
mod closing;
mod config;
mod copies;
mod disk;
mod disposal;
mod encoder;
mod file;
mod node_reader;
mod non_primary;
mod occupancy;
mod orphans;
mod replication;
mod segments;
mod settlement;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::{Disk as _, StorageError};
use evenfall_store_format::cache::{Cache, Interest};
use evenfall_store_format::index::IndexSummary;
use evenfall_store_format::journal::Origin;
use evenfall_store_format::layout::SEGMENT_BYTES;
use evenfall_store_format::retention::Retention;
use evenfall_store_format::volume::{DiskLoss, Recovered};
use evenfall_store_format::{
    Appender, Error, FileEndSnapshot, FileId, Schema, SealedSegment, SegmentKind, SnapshotReader,
    Stage, TailRecords, Volume, VolumeConfig,
};

use self::disposal::KeptAgeClock;
use self::encoder::Encodings;
use self::non_primary::NonPrimaryFiles;
use self::replication::Replication;
use super::life_catalog::CatalogWriter;
use super::names::membership::ClusterMembership;
use super::publisher::PackPublisher;
use super::uploads::{Uploads, restore_names};
use super::{
    Bucket, DiskDirectory, Names, NamesError, NotLoopback, StoreAckLevel, StoreDisk, StoreError,
    Wait, chunk_codec, clean_shutdown, expect_closed, lock, names,
};

pub use self::config::{
    ChunkForm, StoreConfig, StorePlaces, TIME_AHEAD_MAX, machine_uptime, wall_clock_ns,
};
pub use self::file::StoreFile;
pub use self::node_reader::{NodeReader, ReadableFile};
pub use self::non_primary::{NonPrimaryBytes, NonPrimaryFile};
pub use self::occupancy::Occupancy;

/// Shards of the cache. With eight shards, readers on a few cores seldom wait for each other.
const SHARDS: usize = 8;
/// Unsynced segments (64 MiB) after which chunks are synced. The number is small enough that memory
/// drains, and large enough that a sync moves megabytes.
const FLUSH_SEGMENTS: usize = 4_096;
/// How long the disk thread waits for work before it looks at its timers.
const TICK: Duration = Duration::from_millis(50);
/// Unsynced segments that do not reach the number above are synced after this long. Retention runs
/// as often. Before it come two looks of [`JOURNAL_LAG`] and a tick, so an append at `memory` is on
/// the disk half a second after its acknowledgement, plus the time of one sync.
const FLUSH_LAG: Duration = Duration::from_millis(250);
/// How often the disk thread looks for records that no append waits for and no journal has. A file
/// whose open segment is the same at two looks is committed, and so is a file that holds full
/// segments in memory. In any other file the segment has filled, and the next flush syncs it.
const JOURNAL_LAG: Duration = Duration::from_millis(100);
/// How long an append waits for a disk whose commits fail. Two seconds outlast a short failure, and
/// let a stop answer all clients within five seconds.
const TROUBLE_PATIENCE: Duration = Duration::from_secs(2);

/// The work that waits for the disk thread.
#[derive(Default)]
struct Queue {
    /// Files with records that an append waits for.
    waiting: BTreeSet<FileId>,
    /// Number of the group commit that will include these records.
    ticket: u64,
    /// Number of the last group commit that is done.
    committed: u64,
    sealed: Vec<SealedSegment>,
    /// Files with records that no append waits for, since the last look at them.
    lagging: BTreeSet<FileId>,
    /// Whether the disk thread has been woken and will look for work.
    has_work: bool,
    /// Since when commits fail, with the last error.
    trouble: Option<(Instant, Error)>,
}

/// A part of the cache of segments, by file, kind and number, with its own lock.
type CacheShard = Mutex<Cache<(FileId, SegmentKind, u32), Bytes>>;

/// The state that all threads of a store share. Locks are taken in this order: `naming_turn` or
/// `adoption_turn`, `flush_turn`, `volume`, the maps of files, a file's `appender`, `queue`.
/// Publications take the packs of `publisher`, `catalog`, a block of `blocks`, then of a file
/// `published`, `packed` and `appender`.
pub(super) struct StoreEngine {
    /// Whether the store was opened to read. A store that was opened to read claims, writes and
    /// uploads nothing.
    is_reading: bool,
    /// Whether the bucket did not answer when this directory was begun, nor since.
    pub(super) is_catalog_unseen: AtomicBool,
    pub(super) config: StoreConfig,
    pub(super) disk: StoreDisk,
    pub(super) bucket: Option<Bucket>,
    pub(super) names: Names,
    files: RwLock<BTreeMap<FileId, Arc<StoreFile>>>,
    by_name: RwLock<BTreeMap<String, Arc<StoreFile>>>,
    cache: Vec<CacheShard>,
    queue: Mutex<Queue>,
    work: Condvar,
    done: Condvar,
    volume: Mutex<Volume<StoreDisk>>,
    /// Whether enough segments wait for a sync of chunks. The syncing thread waits for it.
    flush_due: Mutex<bool>,
    flush: Condvar,
    /// Lock of the thread that syncs chunks. This lock is taken before the volume.
    flush_turn: Mutex<()>,
    memory_bytes: AtomicU64,
    /// Bytes of chunks. The volume counts them.
    local_bytes: Arc<AtomicU64>,
    refused: AtomicU64,
    disk_errors: AtomicU64,
    /// Whether the disk had no room at its last write.
    is_disk_full: AtomicBool,
    /// Whether the file system ran low at the last look.
    is_disk_low: AtomicBool,
    pub(super) uploads: Uploads,
    pub(super) publisher: PackPublisher,
    pub(super) catalog: Mutex<CatalogWriter>,
    encodings: Encodings,
    replication: Option<Replication>,
    /// The files of other nodes that readers of this node read.
    others: NonPrimaryFiles,
    /// Blocks of metadata as this life has last put them. A thread that writes a block holds the
    /// lock of the block.
    pub(super) blocks: Mutex<BTreeMap<u32, Arc<Mutex<Option<Bytes>>>>>,
    /// Blocks of earlier lives that are known to be in the object store.
    pub(super) blocks_seen: Mutex<BTreeSet<String>>,
    /// Blocks of earlier lives by name, read ahead of the files that are adopted.
    blocks_before: Mutex<BTreeMap<String, Bytes>>,
    /// Lock of the thread that gives names to files.
    naming_turn: Mutex<()>,
    /// Lock of the thread that takes files over.
    adoption_turn: Mutex<()>,
    /// Records of nameless files that fill no segment. A journal keeps them until the name comes
    /// back.
    strays: Mutex<BTreeMap<FileId, TailRecords>>,
    /// The clock by which ages count.
    age_clock: Mutex<KeptAgeClock>,
    stop: AtomicBool,
    /// Whether the disk thread has ended and commits nothing any more.
    disk_ended: AtomicBool,
}

/// The files of one node. Dropping the store without [`close`](Self::close) is the same as a crash.
pub struct Store {
    pub(super) shared: Arc<StoreEngine>,
    threads: Vec<JoinHandle<()>>,
}

/// A store, with the losses that were found when it was opened.
pub struct OpenedStore {
    /// The store.
    pub store: Store,
    /// Dropped and damaged records.
    pub losses: Vec<DiskLoss>,
}

/// The result of a takeover.
#[derive(Debug, Default)]
pub struct TakenOver {
    /// Number of files that this node has taken over.
    pub files: usize,
    /// Losses in these files.
    pub losses: Vec<DiskLoss>,
    /// Files that could not be read yet, with the reason. This node has claimed them, and the next
    /// takeover tries again.
    pub failed: Vec<(String, StoreError)>,
}

impl Store {
    /// Opens the directory, in whatever state it was left.
    ///
    /// # Errors
    /// When the disk, the names or the object store cannot be opened, or when no place has the data
    /// of a file.
    pub fn open(config: StoreConfig) -> Result<OpenedStore, StoreError> {
        if let Some(replica) = config.replica {
            let refused = |error: NotLoopback| StoreError::Replica {
                what: error.to_string(),
                is_retryable: false,
            };
            let advice = "give the key of a user of that store (--replica-key FILE), or use \
                          127.0.0.1 and a tunnel";
            let is_keyed = config.replica_key.is_some();
            expect_closed("replica", replica, is_keyed, advice).map_err(refused)?;
        }
        let disk = DiskDirectory::open(&config.directory)?;
        // From now on the list of a clean stop is no longer true.
        disk.remove(clean_shutdown::NAME)?;
        disk.remove(clean_shutdown::NEW)?;
        let path = config.directory.join(names::FILE);
        let names = Names::open(&path, config.node, config.cluster.as_ref())?;
        let open = |place: &str| Bucket::open_with(place, &config.bucket_options);
        let bucket = config.objects.as_deref().map(open).transpose()?;
        if let Some(place) = &config.objects {
            names.settle_objects(&config.directory, place)?;
        }
        Self::start(config, disk, names, bucket)
    }

    /// [`open`](Self::open) with parts that are already open.
    pub(super) fn start(
        config: StoreConfig,
        disk: DiskDirectory,
        names: Names,
        bucket: Option<Bucket>,
    ) -> Result<OpenedStore, StoreError> {
        let (shared, losses) = StoreEngine::open(config, disk, names, bucket)?;
        let mut threads = vec![
            spawn("store-disk", &shared, StoreEngine::run_disk)?,
            spawn("store-flush", &shared, StoreEngine::run_flushes)?,
        ];
        if shared.bucket.is_some() {
            threads.push(spawn("store-upload", &shared, StoreEngine::run_uploads)?);
        }
        if shared.has_columns() {
            threads.push(spawn("store-encode", &shared, StoreEngine::run_encoder)?);
        }
        if shared.replication.is_some() {
            threads.push(spawn("store-replica", &shared, StoreEngine::run_replication)?);
        }
        Ok(OpenedStore { store: Self { shared, threads }, losses })
    }

    /// Opens the directory as it is after a stop or a crash, without changing a byte. The writes of
    /// recovery stay in memory. Other processes may read the directory too, and none may write
    /// meanwhile.
    ///
    /// # Errors
    /// As for [`open`](Self::open). Also when another process has the directory open to write.
    pub fn open_to_read(config: StoreConfig) -> Result<OpenedStore, StoreError> {
        let disk = DiskDirectory::open_to_read(&config.directory)?;
        let names = Names::open_to_read(&config.directory.join(names::FILE))?;
        let open = |place: &str| Bucket::open_to_read(place, &config.bucket_options);
        let bucket = match config.objects.as_deref().map(open) {
            // A store that never published has no directory of objects.
            Some(Err(StorageError::NoBucket { .. })) => None,
            opened => opened.transpose()?,
        };
        let (shared, losses) = StoreEngine::open(config, disk, names, bucket)?;
        Ok(OpenedStore { store: Self { shared, threads: Vec::new() }, losses })
    }

    /// The file of this name.
    ///
    /// # Errors
    /// [`Error::UnknownFile`].
    pub fn file(&self, name: &str) -> Result<Arc<StoreFile>, StoreError> {
        if let Some(found) = self.shared.named(name) {
            self.shared.check_kept(&found)?;
            return Ok(found);
        }
        match self.shared.names.member().map(|member| member.whose(name)).transpose()?.flatten() {
            Some(another) => Err(another.into()),
            None => Err(Error::UnknownFile { file: name.into() }.into()),
        }
    }

    /// Every file, in order of names.
    pub fn files(&self) -> Vec<Arc<StoreFile>> {
        let files = self.shared.by_name.read().unwrap_or_else(|e| e.into_inner());
        files.values().filter(|file| !file.is_deleted.load(Relaxed)).cloned().collect()
    }

    /// Creates the file, or returns the existing file.
    ///
    /// # Errors
    /// [`Error::FileExists`] with another schema; [`Error::Schema`].
    pub fn create(&self, name: &str, schema: &Schema) -> Result<Arc<StoreFile>, StoreError> {
        let files = self.create_all(&[(name.to_owned(), schema.clone())])?;
        Ok(Arc::clone(&files[0]))
    }

    /// [`create`](Self::create) for many files, with one write to the directory of names.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_all(
        &self,
        wanted: &[(String, Schema)],
    ) -> Result<Vec<Arc<StoreFile>>, StoreError> {
        for (name, schema) in wanted {
            self.shared.check_writing(name)?;
            schema.check()?;
        }
        let shared = &self.shared;
        let _turn = lock(&shared.naming_turn);
        let entries = shared.names.create(wanted)?;
        let mut files = Vec::with_capacity(wanted.len());
        for ((name, schema), (entry, is_new)) in wanted.iter().zip(entries) {
            if entry.is_deleted {
                return Err(NamesError::Deleted { file: name.clone() }.into());
            }
            if entry.schema != *schema {
                return Err(Error::FileExists { file: name.clone() }.into());
            }
            if !is_new {
                files.push(self.file(name)?);
                continue;
            }
            let schema = Arc::new(schema.clone());
            let appender = Appender::new(entry.id, entry.token, schema.clone())?;
            let file = StoreFile::new(name, entry, schema, appender, None);
            files.push(shared.install(&mut lock(&shared.volume), file));
        }
        Ok(files)
    }

    /// Takes over the files whose primary has no lease any more. Without a cluster it does nothing.
    ///
    /// # Errors
    /// The errors of the names and of the disk. A repeated call continues with the rest.
    pub fn take_over(&self) -> Result<TakenOver, StoreError> {
        let member = self.shared.names.member();
        member.map_or(Ok(TakenOver::default()), |_| self.shared.adopt_orphans())
    }

    /// Whether there are files without a primary that only a new life of this node may take over:
    /// files of which it has a copy, and files whose last primary has a later token. A caller that
    /// gets `true` closes the store and opens it again.
    ///
    /// # Errors
    /// The errors of the names.
    pub fn is_new_life_due(&self) -> Result<bool, StoreError> {
        Ok(self.shared.names.member().map_or(Ok(false), ClusterMembership::is_new_life_due)?)
    }

    /// The node's part in a cluster, if the store belongs to a cluster.
    pub fn member(&self) -> Option<&dyn ClusterMembership> {
        self.shared.names.member()
    }

    /// Appends whole records in order of time. Returns the number of the first record.
    ///
    /// # Errors
    /// [`Error::Refused`] by a stage at its limit, [`Error::TimeAhead`] for a record from the
    /// future, and the errors of [`Appender::append`]: no record is taken then. After
    /// [`StoreError::Unreached`], all records are taken.
    pub fn append(
        &self,
        file: &StoreFile,
        records: &[u8],
        level: StoreAckLevel,
    ) -> Result<u64, StoreError> {
        let (first, ticket) = self.append_begin(file, records, level)?;
        self.append_end(file, (first, ticket), level)?;
        Ok(first)
    }

    /// The first half of an append: the records are taken and readable. Returns the number of the
    /// first record and the commit to wait for.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn append_begin(
        &self,
        file: &StoreFile,
        records: &[u8],
        level: StoreAckLevel,
    ) -> Result<(u64, u64), StoreError> {
        let shared = &self.shared;
        shared.check_writing(&file.name)?;
        shared.admit()?;
        let mut sealed = Vec::new();
        let mut appender = lock(&file.appender);
        shared.check_kept(file)?;
        file.check_ours()?;
        file.check_end()?;
        if level.any(Wait::needs_second_node) {
            shared.admit_replica(file)?;
        }
        appender.check_ahead(records, shared.time_limit_ns())?;
        let range = appender.append(records, &mut sealed)?;
        // The appender stays locked, so that its segments are queued in order.
        let ticket = shared.queue(file, sealed, level.any(Wait::hurries_commit));
        drop(appender);
        file.signals.raise();
        Ok((range.start, ticket))
    }

    /// The second half of an append, with the result of the first half. Returns when the level is
    /// reached.
    ///
    /// # Errors
    /// [`StoreError::Unreached`]; the records are taken.
    pub fn append_end(
        &self,
        file: &StoreFile,
        (first, ticket): (u64, u64),
        level: StoreAckLevel,
    ) -> Result<(), StoreError> {
        let reached = self.reach(file, first, ticket, level);
        reached.map_err(|why| StoreError::Unreached { first, level, why: Box::new(why) })
    }

    fn reach(
        &self,
        file: &StoreFile,
        first: u64,
        ticket: u64,
        level: StoreAckLevel,
    ) -> Result<(), StoreError> {
        for wait in level.waits() {
            match wait {
                Wait::Commit => self.shared.await_commit(ticket)?,
                Wait::Copy => self.shared.await_copy(file, ticket)?,
                Wait::Objects => self.shared.await_published(file, first)?,
            }
        }
        // Only a node that is still the primary acknowledges the records.
        Ok(self.shared.names.confirm(level.any(Wait::is_shared))?)
    }

    /// Whether [`append_end`](Self::append_end) returns without waiting. The first half of the
    /// append returned the commit `ticket`.
    pub fn is_reached(&self, ticket: u64, level: StoreAckLevel) -> bool {
        level.waits().iter().all(|wait| match wait {
            Wait::Commit => lock(&self.shared.queue).committed >= ticket,
            Wait::Copy | Wait::Objects => false,
        })
    }

    /// Puts all records of the file into the object store, and states them in its metadata.
    ///
    /// # Errors
    /// [`StoreError::NoObjects`], [`Error::Fenced`], [`Error::Storage`].
    pub fn publish(&self, file: &StoreFile) -> Result<(), StoreError> {
        self.shared.publish(file)
    }

    /// The record of this number.
    ///
    /// # Errors
    /// [`Error::NoRecord`], and the errors of reading.
    pub fn record(&self, file: &StoreFile, number: u64) -> Result<Bytes, StoreError> {
        let (at, mut segments) = self.shared.reading(file, Interest::Recent);
        Ok(SnapshotReader::new(&at, &mut segments).record(number)?)
    }

    /// Number and bytes of the latest record at or before this time.
    ///
    /// # Errors
    /// As [`record`](Self::record).
    pub fn record_at(&self, file: &StoreFile, time_ns: i64) -> Result<(u64, Bytes), StoreError> {
        let (at, mut segments) = self.shared.reading(file, Interest::Recent);
        let mut reader = SnapshotReader::new(&at, &mut segments);
        let number = reader.latest_at(time_ns)?;
        Ok((number, reader.record(number)?))
    }

    /// The records from one time to another, both included, as parts of segments.
    ///
    /// # Errors
    /// The errors of reading a segment, and of `each`.
    pub fn read(
        &self,
        file: &StoreFile,
        from_ns: i64,
        to_ns: i64,
        each: &mut dyn FnMut(Bytes) -> evenfall_store_format::Result<()>,
    ) -> Result<Range<u64>, StoreError> {
        let (at, mut segments) = self.shared.reading(file, Interest::Recent);
        let mut reader = SnapshotReader::new(&at, &mut segments);
        let numbers = reader.between(from_ns, to_ns)?;
        reader.records(numbers.clone(), each)?;
        Ok(numbers)
    }

    /// The numbers of the records from one time to another, both included.
    ///
    /// # Errors
    /// The errors of reading a segment.
    pub fn find(
        &self,
        file: &StoreFile,
        from_ns: i64,
        to_ns: i64,
    ) -> Result<Range<u64>, StoreError> {
        let (at, mut segments) = self.shared.reading(file, Interest::Recent);
        Ok(SnapshotReader::new(&at, &mut segments).between(from_ns, to_ns)?)
    }

    /// For each pair of times, the segments that hold the records between them, found by the index
    /// alone.
    ///
    /// # Errors
    /// The errors of reading an index node.
    pub fn find_segments(
        &self,
        file: &StoreFile,
        times_ns: &[(i64, i64)],
    ) -> Result<Vec<Range<u32>>, StoreError> {
        let (at, mut segments) = self.shared.reading(file, Interest::Recent);
        let mut reader = SnapshotReader::new(&at, &mut segments);
        let find = |(from_ns, to_ns): &(i64, i64)| Ok(reader.segments_between(*from_ns, *to_ns)?);
        times_ns.iter().map(find).collect()
    }

    /// The records of these numbers.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Error::NoRecord`].
    pub fn read_numbers(
        &self,
        file: &StoreFile,
        numbers: Range<u64>,
        each: &mut dyn FnMut(Bytes) -> evenfall_store_format::Result<()>,
    ) -> Result<(), StoreError> {
        let (at, mut segments) = self.shared.reading(file, Interest::Passing);
        Ok(SnapshotReader::new(&at, &mut segments).records(numbers, each)?)
    }

    /// Count, times and aggregates of the records from one time to another. Whole segments are
    /// answered by the index alone.
    ///
    /// # Errors
    /// The errors of reading a segment.
    pub fn summary(
        &self,
        file: &StoreFile,
        from_ns: i64,
        to_ns: i64,
    ) -> Result<Option<IndexSummary>, StoreError> {
        let (at, mut segments) = self.shared.reading(file, Interest::Recent);
        let mut reader = SnapshotReader::new(&at, &mut segments);
        let numbers = reader.between(from_ns, to_ns)?;
        Ok(reader.summary(numbers, &file.schema)?)
    }

    /// Stops the disk until the result is dropped, for tests of code that waits for a disk.
    #[doc(hidden)]
    pub fn hold_disk(&self) -> impl Sized + '_ {
        lock(&self.shared.volume)
    }

    /// The wall clock of this store.
    pub fn now_ns(&self) -> i64 {
        self.shared.now_ns()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.end_threads();
    }
}

fn spawn(
    name: &str,
    shared: &Arc<StoreEngine>,
    run: fn(&StoreEngine),
) -> Result<JoinHandle<()>, StoreError> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(&shared));
    thread.map_err(|error| StoreError::Remote {
        what: format!("thread {name}: {error}"),
        is_retryable: false,
    })
}

/// The error for a name for which the local disk has no room.
fn no_room(name: String) -> Error {
    Error::NoRoom { stage: Stage::LocalDisk, why: StorageError::Full { name } }
}

fn origin(file: &StoreFile, token: u32) -> Origin {
    Origin { file: file.id, record_bytes: file.schema.record_bytes, token }
}

impl StoreEngine {
    /// Combines the contents of the disk, the names and the objects.
    fn open(
        config: StoreConfig,
        disk: DiskDirectory,
        names: Names,
        bucket: Option<Bucket>,
    ) -> Result<(Arc<Self>, Vec<DiskLoss>), StoreError> {
        let secret = evenfall_host::random::number().map_err(|error| StorageError::Failed {
            name: "/dev/urandom".into(),
            what: error.to_string(),
        })?;
        let volume_config = VolumeConfig { secret, ..config.volume_config() };
        let disk = StoreDisk::open(disk, chunk_codec())?.with_layouts(config.layouts);
        disk.sweep()?;
        let held_max = volume_config.held_chunks_max;
        let (mut volume, mut found) = Volume::open(disk.clone(), volume_config)?;
        for (chunk, bytes) in disk.columnar_chunks() {
            volume.count_columnar(chunk, bytes);
        }
        let is_reading = disk.inner().is_reading();
        let restored = bucket.as_ref().map(|bucket| restore_names(&names, bucket, is_reading));
        let is_catalog_unseen = AtomicBool::new(restored.transpose()?.unwrap_or(false));
        // Before any file is adopted or created: a directory of names that was lost gives out
        // numbers anew.
        if !is_reading {
            Self::reserve(&names, volume.newest_file(), &found)?;
        }
        let age_clock = KeptAgeClock::open(&names)?;
        let per_shard = config.cache_segments();
        let held_bytes = volume.held_bytes();
        let shared = Arc::new(Self {
            is_reading,
            is_catalog_unseen,
            disk,
            bucket,
            names,
            files: RwLock::default(),
            by_name: RwLock::default(),
            cache: (0..SHARDS).map(|_| Mutex::new(Cache::new(per_shard))).collect(),
            queue: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            flush_due: Mutex::new(false),
            flush: Condvar::new(),
            flush_turn: Mutex::new(()),
            memory_bytes: AtomicU64::new(0),
            local_bytes: volume.chunk_bytes(),
            volume: Mutex::new(volume),
            refused: AtomicU64::new(0),
            disk_errors: AtomicU64::new(0),
            is_disk_full: AtomicBool::new(false),
            is_disk_low: AtomicBool::new(false),
            uploads: Uploads::default(),
            publisher: PackPublisher::default(),
            catalog: Mutex::default(),
            encodings: Encodings::new(held_max, held_bytes),
            others: NonPrimaryFiles::new(config.cache_bytes),
            replication: config.replica.map(|to| Replication::new(to, config.replica_key.clone())),
            blocks: Mutex::default(),
            blocks_seen: Mutex::default(),
            blocks_before: Mutex::default(),
            naming_turn: Mutex::new(()),
            adoption_turn: Mutex::new(()),
            strays: Mutex::default(),
            age_clock: Mutex::new(age_clock),
            stop: AtomicBool::new(false),
            disk_ended: AtomicBool::new(false),
            config,
        });
        if shared.config.confirm_clock && !shared.is_reading {
            shared.confirm_clock()?;
        }
        shared.adopt_all(&mut found)?;
        shared.name_files(&mut found.losses);
        Ok((shared, found.losses))
    }

    /// Puts the names of files into losses that state their numbers. The disk knows numbers only.
    fn name_files(&self, losses: &mut [DiskLoss]) {
        if losses.is_empty() {
            return;
        }
        let files = self.files.read().unwrap_or_else(|e| e.into_inner());
        let names: BTreeMap<String, &String> =
            files.values().map(|file| (format!("file {}", file.id), &file.name)).collect();
        for loss in losses {
            if let Some(name) = names.get(&loss.place) {
                loss.place = format!("file {name}");
            }
        }
    }

    /// A directory of names that was lost, or is older than the disk, gives out no number and no
    /// token that this disk has seen. `of` is the newest file with chunks.
    fn reserve(names: &Names, of: Option<FileId>, found: &Recovered) -> Result<(), StoreError> {
        let seen = of.into_iter().chain(found.files.keys().copied());
        let token = found.files.values().map(|file| file.origin.token).max();
        Ok(names.reserve(seen.max().unwrap_or_default(), token.unwrap_or(0))?)
    }

    fn check_writing(&self, file: &str) -> Result<(), StoreError> {
        if !self.is_reading {
            return Ok(self.names.check_lease()?);
        }
        let what = "the store is open to read only".to_owned();
        Err(evenfall_core::StorageError::Failed { name: file.into(), what }.into())
    }

    /// The wall clock.
    pub fn now_ns(&self) -> i64 {
        (self.config.clock)()
    }

    /// The latest time that a record may have at present.
    fn time_limit_ns(&self) -> i64 {
        let ahead = i64::try_from(self.config.time_ahead_max.as_nanos()).unwrap_or(i64::MAX);
        self.now_ns().saturating_add(ahead)
    }

    fn snapshot(&self, file: &StoreFile) -> FileEndSnapshot {
        FileEndSnapshot::of(&lock(&file.appender), file.first())
    }

    /// The files of which this node is the primary.
    pub(super) fn our_files(&self) -> Vec<Arc<StoreFile>> {
        let files = self.files.read().unwrap_or_else(|e| e.into_inner());
        let ours =
            |file: &&Arc<StoreFile>| file.check_ours().is_ok() && !file.is_deleted.load(Relaxed);
        files.values().filter(ours).cloned().collect()
    }

    fn named(&self, name: &str) -> Option<Arc<StoreFile>> {
        self.by_name.read().unwrap_or_else(|e| e.into_inner()).get(name).cloned()
    }

    pub(super) fn file_of(&self, id: FileId) -> Option<Arc<StoreFile>> {
        self.files.read().unwrap_or_else(|e| e.into_inner()).get(&id).cloned()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(Relaxed)
    }

    fn admit(&self) -> Result<(), StoreError> {
        let refuse = |stage, bytes, bytes_max| {
            self.refused.fetch_add(1, Relaxed);
            Err(Error::Refused { stage, bytes, bytes_max }.into())
        };
        let memory = self.memory_bytes.load(Relaxed);
        if memory > self.config.memory_bytes_max {
            return refuse(Stage::Memory, memory, self.config.memory_bytes_max);
        }
        let local = self.local_bytes.load(Relaxed);
        if local > self.config.local_bytes_max {
            return refuse(Stage::LocalDisk, local, self.config.local_bytes_max);
        }
        if self.is_disk_full.load(Relaxed) {
            self.refused.fetch_add(1, Relaxed);
            return Err(no_room(self.config.directory.display().to_string()).into());
        }
        Ok(())
    }

    /// Hands segments to the disk thread, and the file if an append waits for it. Returns the
    /// commit that will include them.
    pub(super) fn queue(&self, file: &StoreFile, sealed: Vec<SealedSegment>, waits: bool) -> u64 {
        let begins_to_lag = !waits && !file.is_lagging.swap(true, Relaxed);
        if begins_to_lag {
            lock(&self.queue).lagging.insert(file.id);
        }
        if sealed.is_empty() && !waits {
            return 0;
        }
        let bytes = (sealed.len() * SEGMENT_BYTES) as u64;
        self.memory_bytes.fetch_add(bytes, Relaxed);
        let mut queue = lock(&self.queue);
        let mut ticket = 0;
        if waits {
            queue.waiting.insert(file.id);
            ticket = queue.ticket + 1;
        }
        queue.sealed.extend(sealed);
        let was_idle = std::mem::replace(&mut queue.has_work, true);
        drop(queue);
        if !was_idle {
            self.work.notify_one();
        }
        ticket
    }

    /// Adds a file to this store. Returns the existing file when there is one.
    fn install(&self, volume: &mut Volume<StoreDisk>, mut file: StoreFile) -> Arc<StoreFile> {
        // The caller holds the volume, so that no other thread installs the file in between.
        if let Some(known) = self.file_of(file.id) {
            return known;
        }
        if file.retention() == Retention::default() {
            file.retention = Mutex::new(self.config.keep);
        }
        let file = Arc::new(file);
        volume.register(origin(&file, file.entry.token));
        let mut files = self.files.write().unwrap_or_else(|e| e.into_inner());
        files.insert(file.id, Arc::clone(&file));
        let mut by_name = self.by_name.write().unwrap_or_else(|e| e.into_inner());
        by_name.insert(file.name.clone(), Arc::clone(&file));
        file
    }
}
