//! How full the stages of a store are.

use std::sync::atomic::Ordering::Relaxed;

use evenfall_store_format::layout::SEGMENT_BYTES;

use super::Store;
use crate::lock;
use crate::write_counters::{WriteCounters, WrittenBytes};

/// Sizes of the stages at one moment.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Occupancy {
    /// Bytes of full segments on their way to a synced chunk.
    pub memory_bytes: u64,
    /// Bytes of full segments that are held until their chunk is whole and in columns. Journals
    /// have the records.
    pub held_bytes: u64,
    /// Bytes of chunks on the local disk.
    pub local_bytes: u64,
    /// Chunks that wait for the object store.
    pub upload_chunks: u64,
    /// Bytes in the read cache.
    pub cache_bytes: u64,
    /// Chunks that wait for the encoder of columns.
    pub encode_chunks: u64,
    /// Chunks that this store has put into columns since it was opened.
    pub encoded_chunks: u64,
    /// Failed attempts to put a chunk into columns.
    pub encode_errors: u64,
    /// Segments that have left the read cache to make room.
    pub cache_evictions: u64,
    /// Appends refused so far.
    pub refused: u64,
    /// Turns of the disk thread after which commits are done. Idle turns count too.
    pub commits: u64,
    /// Failed requests of the disk so far. The thread repeats them.
    pub disk_errors: u64,
    /// Failed requests of the object store so far.
    pub upload_errors: u64,
    /// Seconds by which the wall clock has stepped, when retention by age stands still for it; zero
    /// otherwise.
    pub clock_step_seconds: i64,
    /// Bytes that are synced on this node and that the second node lacks.
    pub replica_bytes: u64,
    /// Whether a second node is configured and absent.
    pub is_replica_away: bool,
    /// Bytes that reads of other nodes' files have taken from the memory of this node.
    pub others_cache_bytes: u64,
    /// Bytes that reads of other nodes' files have taken from the object store.
    pub others_object_bytes: u64,
    /// Bytes that reads of other nodes' files have taken from their primaries.
    pub others_primary_bytes: u64,
    /// Bytes written to the directory since this store was opened.
    pub written: WrittenBytes,
}

impl Store {
    /// The counters of the bytes that are written to the directory. They outlive the store.
    pub fn written(&self) -> WriteCounters {
        self.shared.disk.inner().write_counters()
    }

    /// Sizes of the stages at present.
    pub fn occupancy(&self) -> Occupancy {
        let shared = &self.shared;
        let (replica_bytes, is_replica_away) = shared.replica_behind();
        let others = shared.others.bytes();
        let held_bytes = shared.encodings.held_bytes();
        let cached: usize = shared.cache.iter().map(|shard| lock(shard).len()).sum();
        Occupancy {
            memory_bytes: shared.memory_bytes.load(Relaxed).saturating_sub(held_bytes),
            held_bytes,
            local_bytes: shared.local_bytes.load(Relaxed),
            upload_chunks: shared.uploads.waiting(),
            encode_chunks: shared.encodings.waiting(),
            encoded_chunks: shared.encodings.encoded_chunks(),
            encode_errors: shared.encodings.errors(),
            cache_bytes: (cached * SEGMENT_BYTES) as u64,
            cache_evictions: shared.cache.iter().map(|s| lock(s).counts().evictions).sum(),
            refused: shared.refused.load(Relaxed),
            commits: lock(&shared.queue).committed,
            disk_errors: shared.disk_errors.load(Relaxed),
            upload_errors: shared.uploads.errors(),
            clock_step_seconds: self.clock_step().map_or(0, |step| step.ns / 1_000_000_000),
            replica_bytes,
            is_replica_away,
            others_cache_bytes: others.cache,
            others_object_bytes: others.objects,
            others_primary_bytes: others.primary,
            written: self.written().bytes(),
        }
    }
}
