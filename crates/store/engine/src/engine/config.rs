//! The limits of a store, and the clock by which ages count.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_core::UserKey;
use evenfall_store_format::VolumeConfig;
use evenfall_store_format::age_clock::{ClockPair, Uptime};
use evenfall_store_format::layout::{CHUNK_BYTES, SEGMENT_BYTES};
use evenfall_store_format::messages::InstalledLayouts;
use evenfall_store_format::retention::Retention;
use evenfall_store_format::volume::{JOURNAL_BYTES_MAX, RECOVERY_BYTES_MAX};

use crate::names::cluster::Cluster;
use crate::names::lease;
use crate::{BucketOptions, ClusterConfig, Names, NamesError};

/// Limits of a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The local directory.
    pub directory: PathBuf,
    /// Directory or address of the object store.
    pub objects: Option<String>,
    /// Options of the object store that take precedence over the environment.
    pub bucket_options: BucketOptions,
    /// The cluster that the store belongs to. Without a cluster, the store's directory has its own
    /// names.
    pub cluster: Option<ClusterConfig>,
    /// Number of this node among the store's nodes. A cluster assigns a number of its own.
    pub node: u32,
    /// Address of the second node, for which `replica` waits.
    pub replica: Option<SocketAddr>,
    /// The key with which this node connects to the second node. With it, the second node may be on
    /// another machine.
    pub replica_key: Option<UserKey>,
    /// The key with which this node asks the primaries of other nodes' files for records that are
    /// not published. With it, they may be on other machines.
    pub primary_key: Option<UserKey>,
    /// Whether files that this directory holds as copies of another node's files become its own. In
    /// a cluster, [`ClusterConfig::take_over`] decides together with the lease.
    pub keep_copies: bool,
    /// Bytes of segments in memory that are in no synced chunk. Beyond this limit, the stage
    /// `memory` refuses appends. A fourth of it may hold rows until their chunk is whole and in
    /// columns. Journals have these rows.
    pub memory_bytes_max: u64,
    /// Bytes of chunks on the disk. Beyond this limit, and when no chunk is uploaded that could
    /// make room, the stage `local disk` refuses appends.
    pub local_bytes_max: u64,
    /// Bytes of segments in the read cache.
    pub cache_bytes: u64,
    /// Bytes of a journal after which the next journal begins.
    pub journal_bytes_max: u64,
    /// Bytes of all journals. The opening after a crash reads no more of them, but for one commit.
    pub recovery_bytes_max: u64,
    /// The form of whole chunks, on the disk and in the objects.
    pub chunks: ChunkForm,
    /// How the messages of recordings are shredded in whole chunks. Without layouts the columns
    /// have messages as bytes. Every store reads both.
    pub layouts: InstalledLayouts,
    /// How often records that fill no chunk are published.
    pub publish_every: Duration,
    /// Limit of the bytes of chunks that are uploaded in a second. Appends at `object` put what
    /// they wait for without it.
    pub upload_bytes_per_s: Option<u64>,
    /// The retention of files that have none of their own.
    pub keep: Retention,
    /// How far a record's time may lie ahead of the clock. A batch with a later record is refused.
    /// A file takes records in order of time, so the later time would close the file to all other
    /// records.
    pub time_ahead_max: Duration,
    /// The wall clock, in nanoseconds since 1970. The limit above counts from it, and ages do as
    /// long as it agrees with `uptime`.
    pub clock: fn() -> i64,
    /// The time since this machine was started.
    pub uptime: fn() -> Uptime,
    /// Whether an operator says that the wall clock is right at the opening.
    pub confirm_clock: bool,
}

/// The form of the chunks that a store writes. Every store reads both forms, in a build that has
/// columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChunkForm {
    /// Rows, as they were appended.
    Raw,
    /// Parquet files.
    Columns,
}

impl Default for ChunkForm {
    /// Columns, in a build that has them.
    fn default() -> Self {
        if crate::chunk_codec().is_some() { Self::Columns } else { Self::Raw }
    }
}

/// Where a user says that the objects and the names of a store are. The directory of the store
/// remembers both.
#[derive(Clone, Debug)]
pub struct StorePlaces {
    /// Directory or address of the objects.
    pub objects: Option<String>,
    /// Address of the names that the nodes of a cluster share.
    pub names: Option<String>,
    /// See [`ClusterConfig::lease`].
    pub lease: Duration,
    /// See [`ClusterConfig::take_over`] and [`StoreConfig::keep_copies`].
    pub take_over: bool,
}

/// Least length after which a journal is followed by the next, also when the limit of all journals
/// asks for less. A journal begins with 32 bytes for each file.
const JOURNAL_BYTES_MIN: u64 = 1 << 20;

/// Divisor of `memory_bytes_max` for the rows that wait in memory for their chunk. The rest of the
/// memory is for segments on their way to the disk.
const HELD_PART: u64 = 4;

/// A day: times of any time zone pass, and a wrong year does not.
pub const TIME_AHEAD_MAX: Duration = Duration::from_secs(86_400);

/// Nanoseconds since 1970 by this machine's clock.
pub fn wall_clock_ns() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
}

/// The time since this machine was started. Where the system does not number its starts, the number
/// of this process stands for the start. A later process then counts as one after a new start.
pub fn machine_uptime() -> Uptime {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    let boot = u64::from_str_radix(&digits, 16);
    Uptime { boot: boot.unwrap_or(u64::from(std::process::id())), ns: lease::now_ns() }
}

impl StoreConfig {
    /// Limits for a store in this directory, with its objects in `objects` below it.
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            objects: Some(directory.join("objects").display().to_string()),
            bucket_options: BucketOptions::default(),
            cluster: None,
            node: 1,
            replica: None,
            replica_key: None,
            primary_key: None,
            keep_copies: false,
            memory_bytes_max: 512 << 20,
            local_bytes_max: 64 << 30,
            cache_bytes: 256 << 20,
            journal_bytes_max: JOURNAL_BYTES_MAX,
            recovery_bytes_max: RECOVERY_BYTES_MAX,
            chunks: ChunkForm::default(),
            layouts: None,
            publish_every: Duration::from_secs(10),
            upload_bytes_per_s: None,
            keep: Retention::default(),
            time_ahead_max: TIME_AHEAD_MAX,
            clock: wall_clock_ns,
            uptime: machine_uptime,
            confirm_clock: false,
        }
    }

    /// Limits for a store in this directory, with its objects where the directory remembers.
    ///
    /// # Errors
    /// When a file is in the place of the directory, or its names cannot be read.
    pub fn remembered(directory: &Path) -> Result<Self, NamesError> {
        if directory.exists() && !directory.is_dir() {
            let shown = directory.display();
            let what = format!("{shown}: this is a file, and a store is a directory");
            return Err(NamesError::Failed(what));
        }
        let objects = Names::objects_of(directory)?;
        let config = Self::new(directory);
        Ok(Self { objects: objects.or(config.objects.clone()), ..config })
    }

    /// As [`remembered`](Self::remembered), with the places that a user gives.
    ///
    /// # Errors
    /// As [`remembered`](Self::remembered), or when the cluster does not answer.
    pub fn placed(directory: &Path, places: &StorePlaces) -> Result<Self, NamesError> {
        let remembered = Self::remembered(directory)?;
        let StorePlaces { objects, names, lease, take_over } = places.clone();
        let names = names.map_or_else(|| Names::cluster_of(directory), |names| Ok(Some(names)))?;
        let cluster = names.map(|address| ClusterConfig { address, lease, take_over });
        let mut config = Self { cluster, keep_copies: take_over, ..remembered };
        if objects.is_some() {
            config.objects = objects;
        } else if let (Some(cluster), None) = (&config.cluster, Names::objects_of(directory)?) {
            // A node that joins a cluster learns from it where all nodes keep their objects.
            let known = Cluster::open(&cluster.address)?.objects()?;
            config.objects = known.or(config.objects);
        }
        Ok(config)
    }

    /// The sizes of the volume. Rows are held in memory for a store that keeps its whole chunks in
    /// columns.
    pub(super) fn volume_config(&self) -> VolumeConfig {
        let has_columns = self.chunks == ChunkForm::Columns && crate::chunk_codec().is_some();
        let held = self.memory_bytes_max / HELD_PART / CHUNK_BYTES as u64;
        let recovery_bytes_max = self.recovery_bytes_max;
        VolumeConfig {
            node: self.node,
            // Two journals are there in any case.
            journal_bytes_max: self
                .journal_bytes_max
                .min((recovery_bytes_max / 2).max(JOURNAL_BYTES_MIN)),
            recovery_bytes_max,
            held_chunks_max: if has_columns { held as usize } else { 0 },
            // Of the life that opens the store.
            secret: 0,
        }
    }

    /// Both clocks now.
    pub(super) fn read_clocks(&self) -> ClockPair {
        ClockPair { wall_ns: (self.clock)(), uptime: (self.uptime)() }
    }

    /// Segments of one shard of the read cache.
    pub(super) fn cache_segments(&self) -> usize {
        self.cache_bytes as usize / SEGMENT_BYTES / super::SHARDS
    }
}
