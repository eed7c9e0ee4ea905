//! Every limit of both machines, with its unit and its reason.

use std::time::Duration;

/// Most bytes of one append, which is written whole or not at all. A datagram on loopback has room
/// for one append with its head.
pub const APPEND_BYTES_MAX: usize = 56 << 10;
/// Limit of the bytes of appends that a primary keeps for one file until all members have them. A
/// disk writes fewer bytes in the time that one answer takes. A crash tears at most this many bytes
/// at the end of a file.
pub const WINDOW_BYTES_MAX: usize = 16 << 20;
/// Limit of the appends that a primary keeps for one file until all members have them. Short
/// appends reach this number before the limit of bytes.
pub const WINDOW_APPENDS_MAX: usize = 65_536;
/// Bytes of appends that become one write: four appends of the greatest length. A disk has 64 such
/// writes under way, which are as many bytes as the window of a file.
pub const JOINED_BYTES_MAX: usize = 256 << 10;
/// Limit of the bytes of appends that a primary keeps for all files together. Further appends are
/// refused as busy.
pub const WINDOWS_BYTES_MAX: usize = 256 << 20;
/// Limit of the bytes on the way to one follower. The receive buffer of a port has room for the
/// bytes of several files.
pub const FLIGHT_BYTES_MAX: u64 = 4 << 20;
/// Bytes that a primary asks its owner to read for a joiner at once.
pub const READ_BYTES: usize = 512 << 10;
/// Most appends of one chunk. The head of each append is read again when a dataserver starts.
pub const CHUNK_APPENDS_MAX: usize = 65_536;
/// Most copies that one beat names. Later beats name the other copies in turn.
pub const PAGE_MAX: usize = 64;
/// Limit of the datagrams that wait to be sent. Beyond this number the newest datagram is dropped,
/// and its message is sent again later.
pub const TRANSMITS_MAX: usize = 8_192;
/// Limit of the copies that are being made at once, over all files that have too few copies.
pub const JOINS_MAX: usize = 16;
/// Most files whose state a nameserver looks at in one tick.
pub const LOOKS_MAX: usize = 4_096;
/// Most assignments that a nameserver sends to one dataserver in answer to one beat.
pub const OWED_MAX: usize = 128;
/// Bytes of a path. Hadoop allows 8,000 characters.
pub const PATH_BYTES_MAX: usize = 8_000;
/// Bytes of one name in a path, as in most file systems.
pub const NAME_BYTES_MAX: usize = 255;
/// Names in a path. Hadoop has the same limit.
pub const DEPTH_MAX: usize = 1_000;
/// Entries of one directory, as in Hadoop.
pub const ENTRIES_MAX: usize = 1_048_576;
/// Files and directories in all: each takes about 500 bytes of memory.
pub const INODES_MAX: usize = 4_000_000;
/// Limit of the files without a name that a nameserver with an old log counts.
pub const STRANGERS_MAX: usize = 10_000;
/// Parts into which the used share of a disk is counted.
pub const USED_PARTS: u64 = 1_024;
/// Disks whose used shares differ by a tenth at most count as balanced. Each move costs a copy over
/// the network, and a smaller difference gains nothing.
pub const UNEVEN_PARTS: u64 = USED_PARTS / 10;
/// Bytes of the name of a dataserver or of a rack.
pub const LABEL_BYTES_MAX: usize = 128;
/// Limit of the bytes of a writer's name, which has a user, an address and a number.
pub const WRITER_BYTES_MAX: usize = 160;
/// The block size of a file whose maker names none: the length of a chunk. Blocks are how Hadoop
/// divides a file among its tasks. A dataserver has all bytes of a file or none.
pub const BLOCK_BYTES: u64 = 128 << 20;
/// Smallest block size, as in Hadoop.
pub const BLOCK_BYTES_MIN: u64 = 1 << 20;
/// A block has a whole number of these pieces, each of which has a checksum in Hadoop.
pub const CHECKSUM_PIECE_BYTES: u64 = 512;
/// Copies of a file that may be asked for.
pub const REPLICATION_MAX: u16 = 16;

/// Limit of the dataservers that a nameserver knows. Each sends four signs of life a second.
pub const SERVERS_MAX: usize = 4_096;
/// Silence after which a dataserver is forgotten whose disk the log does not name. A host that
/// starts again is back by then.
pub const FORGET_AFTER: Duration = Duration::from_secs(600);

/// A disk replaces another disk at the same address only after the other disk was silent for this
/// part of [`NameConfig::dead_after`]. A dataserver may start twice, each time with an empty disk,
/// and a beat of its first disk may arrive after beats of its second disk. The first disk must not
/// replace the second one. The part is 1.25 s by default, in which a dataserver sends five beats.
pub const REPLACED_PARTS: u32 = 4;

/// The settings of a nameserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameConfig {
    /// Silence after which a dataserver counts as dead.
    pub dead_after: Duration,
    /// Time between two looks at files that are not in order, and between two requests for the same
    /// promise.
    pub tick: Duration,
    /// Bytes of the log beyond which a checkpoint replaces the log. The log also has to be four
    /// times as long as the last checkpoint.
    pub log_bytes: u64,
    /// Longest wait for silent former members when all members of a file have lost their disks. The
    /// wait begins when the first former member answers. A silent former member may have more
    /// bytes.
    pub heir_wait: Duration,
    /// Time between two attempts to write when the disk is full.
    pub full_retry: Duration,
    /// A disk with less room than this gets copies only when no other disk is left.
    pub room_bytes_min: u64,
    /// Number of dataservers that keep copies of the log. A smaller cluster keeps fewer copies.
    pub keepers: usize,
    /// Soft limit of a lease: the time after the last append for which no other writer may take the
    /// lease over.
    pub lease_soft: Duration,
    /// Hard limit of a lease: the time after the last append at which the lease ends, although no
    /// other writer asks for it.
    pub lease_hard: Duration,
}

impl Default for NameConfig {
    /// With the defaults, a process that the machine stops for a second does not count as dead.
    fn default() -> Self {
        Self {
            dead_after: Duration::from_secs(5),
            tick: Duration::from_millis(100),
            log_bytes: 16 << 20,
            // A host that starts again answers within this time.
            heir_wait: Duration::from_secs(120),
            full_retry: Duration::from_secs(1),
            // Room for eight chunks.
            room_bytes_min: 1 << 30,
            // A file has three copies by default too.
            keepers: 3,
            // The limits of HDFS.
            lease_soft: Duration::from_secs(60),
            lease_hard: Duration::from_secs(20 * 60),
        }
    }
}

/// The settings of a dataserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataConfig {
    /// Bytes of a chunk. The append that reaches this number is the last append of its chunk.
    pub chunk_bytes: u64,
    /// Time between two signs of life.
    pub beat: Duration,
    /// Time after which a primary repeats appends that were not acknowledged.
    pub resend: Duration,
    /// Bytes of the log of promises beyond which a checkpoint replaces the log. The log also has to
    /// be four times as long as the last checkpoint.
    pub log_bytes: u64,
    /// Time between two attempts to write when the disk is full.
    pub full_retry: Duration,
    /// Least time between two renewals of a lease. Several renewals fit into the soft limit of the
    /// lease, because messages may be lost.
    pub renew: Duration,
}

impl Default for DataConfig {
    /// The chunks of the thesis: 128 MiB.
    fn default() -> Self {
        Self {
            chunk_bytes: 128 << 20,
            beat: Duration::from_millis(250),
            resend: Duration::from_millis(100),
            log_bytes: 16 << 20,
            full_retry: Duration::from_secs(1),
            // Four renewals in the soft limit.
            renew: Duration::from_secs(15),
        }
    }
}
