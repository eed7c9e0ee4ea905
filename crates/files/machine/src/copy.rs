//! One copy of a file on a dataserver: its chunks, its epoch, and how far it is durable.
//!
//! ```text
//!  0          start            committed      length         queued
//!  |-------------|-----------------|-------------|--------------|
//!   equal at all    all members      on the disk    handed to
//!   members when    have it          here           the disk
//!   the epoch began
//! ```

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::Timestamp;
use evenfall_core::durable::Change;

use crate::chunk::{self, AppendMark, ChunkScan, HEAD_BYTES};
use crate::config::{CHUNK_APPENDS_MAX, WINDOW_APPENDS_MAX, WINDOW_BYTES_MAX};
use crate::leases::WriterLease;
use crate::primary::PrimaryState;
use crate::wire::{DataserverPlace, FileAssignment};
use crate::{DiskId, InodeId};

/// A chunk of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// The place of its first byte in the file.
    pub start: u64,
    /// Bytes of its log, with those that are not on the disk yet.
    pub bytes: u64,
    appends: usize,
}

/// A change of one log of a copy.
pub type LogChange = (String, Change);

/// The change that makes a log empty. The owner deletes empty logs at its next start.
pub fn removal() -> Change {
    Change::Replace(Bytes::new())
}

/// See the documentation of the module.
#[derive(Debug)]
pub struct FileCopy {
    pub file: InodeId,
    pub epoch: u64,
    /// The copy serves no epoch before this one. Equal to `epoch` unless the copy is sealed.
    pub promised: u64,
    /// The promise is on the disk.
    pub is_promise_written: bool,
    pub start: u64,
    /// Whether the dataserver of the copy is a member of the file. The copy then has every
    /// acknowledged byte.
    pub is_member: bool,
    /// The epoch began in this life of the dataserver. A primary of another life may have sent
    /// appends that this life does not know.
    pub is_fresh: bool,
    pub members: Vec<DataserverPlace>,
    pub chunks: Vec<Chunk>,
    /// Where the appends behind the committed length begin.
    marks: VecDeque<AppendMark>,
    pub length: u64,
    pub queued: u64,
    /// The committed length as the primary told it. This copy may have fewer bytes.
    pub told: u64,
    /// A number that changes with every cut. Answers to writes of an earlier number are ignored.
    pub life: u64,
    pub is_broken: bool,
    /// Logs whose removal has failed.
    pub strays: Vec<String>,
    /// Changes of logs that are under way. The copy takes no appends until all are done.
    pub cuts: usize,
    /// The assignment that begins when the cuts are done and its record is on the disk.
    pub switch: Option<FileAssignment>,
    pub leader: Option<SocketAddr>,
    /// Appends of clients that are not acknowledged yet: token, and end of the append.
    pub waiting: VecDeque<(u64, u64)>,
    /// Flushes that wait for the nameserver: token, and length.
    pub flushes: Vec<(u64, u64)>,
    pub primary: Option<PrimaryState>,
    /// The lease of the file's writer, as the nameserver last told it.
    pub lease: WriterLease,
    /// When the nameserver is told next that the writer lives.
    pub renew_at: Timestamp,
    /// The generation of the lease that the last writer gave back. The nameserver hears of it with
    /// the length of the file.
    pub closing: Option<u64>,
}

impl FileCopy {
    /// A copy without bytes.
    pub fn new(file: InodeId, life: u64) -> Self {
        Self {
            file,
            epoch: 0,
            promised: 0,
            is_promise_written: false,
            start: 0,
            is_member: false,
            is_fresh: false,
            members: Vec::new(),
            chunks: Vec::new(),
            marks: VecDeque::new(),
            length: 0,
            queued: 0,
            told: 0,
            life,
            is_broken: false,
            strays: Vec::new(),
            cuts: 0,
            switch: None,
            leader: None,
            waiting: VecDeque::new(),
            flushes: Vec::new(),
            primary: None,
            lease: WriterLease::default(),
            renew_at: Timestamp::ZERO,
            closing: None,
        }
    }

    /// Takes the next chunk that the disk has. Returns false when this chunk does not follow the
    /// chunks before it.
    pub fn adopt(&mut self, start: u64, scan: &ChunkScan) -> bool {
        if start != self.queued || scan.end == start {
            return false;
        }
        // Every append that is not committed was in the window of a primary, so older marks are not
        // needed.
        self.marks.extend(&scan.marks);
        let tail = scan.end.saturating_sub(WINDOW_BYTES_MAX as u64);
        while self.marks.len() > WINDOW_APPENDS_MAX
            || self.marks.front().is_some_and(|mark| mark.offset < tail)
        {
            self.marks.pop_front();
        }
        self.chunks.push(Chunk { start, bytes: scan.good, appends: scan.marks.len() });
        (self.queued, self.length) = (scan.end, scan.end);
        true
    }

    /// Bytes that readers may see.
    pub fn committed(&self) -> u64 {
        self.told.min(self.length)
    }

    /// Takes a committed length that the primary told.
    pub fn commit(&mut self, told: u64) {
        self.told = self.told.max(told);
        let committed = self.committed();
        while self.marks.front().is_some_and(|mark| mark.offset < committed) {
            self.marks.pop_front();
        }
    }

    /// Finds room for an append of this length behind everything that is queued. Returns the log
    /// of its chunk, and its place in the file.
    pub fn store(&mut self, length: usize, chunk_bytes: u64) -> (String, u64) {
        let is_full = |chunk: &Chunk| {
            self.queued - chunk.start >= chunk_bytes || chunk.appends >= CHUNK_APPENDS_MAX
        };
        if self.chunks.last().is_none_or(is_full) {
            self.chunks.push(Chunk { start: self.queued, bytes: 0, appends: 0 });
        }
        let offset = self.queued;
        self.queued += length as u64;
        let (file, at) = (self.file, self.chunks.len() - 1);
        let chunk = &mut self.chunks[at];
        self.marks.push_back(AppendMark { offset, position: chunk.bytes });
        chunk.bytes += (HEAD_BYTES + length) as u64;
        chunk.appends += 1;
        (chunk::log_name(file, chunk.start), offset)
    }

    /// Where a cut at `limit` cuts the log of a chunk: `Some(None)` when the cut is between chunks,
    /// and `None` when no append is known to begin at `limit`.
    fn cut_at(&self, limit: u64) -> Option<Option<u64>> {
        let behind = self.chunks.partition_point(|chunk| chunk.start < limit);
        let end = self.chunks.get(behind).map_or(self.queued, |chunk| chunk.start);
        if end <= limit {
            return Some(None);
        }
        self.marks.iter().find(|mark| mark.offset == limit).map(|mark| Some(mark.position))
    }

    /// Cuts the copy at `limit`, and returns the changes of its logs. `None`, and nothing is
    /// changed, when no append is known to begin at `limit`.
    pub fn cut(&mut self, limit: u64, life: u64) -> Option<Vec<LogChange>> {
        let position = self.cut_at(limit)?;
        let (mut changes, mut end) = (Vec::new(), self.queued);
        while let Some(last) = self.chunks.pop_if(|chunk| chunk.start >= limit) {
            end = last.start;
            changes.push((chunk::log_name(self.file, last.start), removal()));
        }
        if let (Some(position), Some(last)) = (position, self.chunks.last_mut()) {
            let cut = self.marks.iter().filter(|mark| (limit..end).contains(&mark.offset)).count();
            last.appends = last.appends.saturating_sub(cut);
            last.bytes = position;
            changes.push((chunk::log_name(self.file, last.start), Change::Truncate(position)));
        }
        if limit < self.queued {
            self.marks.retain(|mark| mark.offset < limit);
            (self.queued, self.length) = (limit, self.length.min(limit));
            self.told = self.told.min(limit);
            self.life = life;
        }
        Some(changes)
    }

    /// The largest length up to `limit` to which the copy can be cut: `limit` itself, or the
    /// beginning of the chunk that has `limit` inside.
    pub fn whole_chunks(&self, limit: u64) -> u64 {
        match self.chunks.iter().rfind(|chunk| chunk.start <= limit) {
            Some(_) if self.cut_at(limit).is_some() => limit,
            Some(chunk) => chunk.start,
            None => 0,
        }
    }

    /// The changes of the logs after a failed write, which leave only bytes that are on the disk
    /// for certain. `None` when the place to cut is not known.
    pub fn mend(&mut self, life: u64) -> Option<Vec<LogChange>> {
        let mut changes = self.cut(self.length, life)?;
        self.life = life;
        changes.extend(self.strays.drain(..).map(|log| (log, removal())));
        if let Some(last) = self.chunks.last() {
            let log = chunk::log_name(self.file, last.start);
            changes.push((log, Change::Truncate(last.bytes)));
        }
        Some(changes)
    }

    /// The logs of all chunks.
    pub fn logs(&self) -> Vec<String> {
        let chunks = self.chunks.iter().map(|chunk| chunk::log_name(self.file, chunk.start));
        chunks.chain(self.strays.iter().cloned()).collect()
    }

    /// Whether relays of this epoch are taken.
    pub fn takes(&self, epoch: u64) -> bool {
        let is_still = self.switch.is_none() && self.cuts == 0 && !self.is_broken;
        epoch == self.epoch && self.promised <= epoch && is_still
    }

    /// Whether this disk leads the epoch.
    pub fn leads(&self, disk: DiskId) -> bool {
        self.is_member && self.members.first().is_some_and(|place| place.disk == disk)
    }

    /// The part of the copy that readers may know.
    pub fn view(&self) -> CopyView {
        CopyView {
            committed: self.committed(),
            queued: self.queued,
            is_member: self.is_member,
            is_primary: self.primary.is_some() && self.promised <= self.epoch,
            chunks: self.chunks.iter().map(|chunk| chunk.start).collect(),
            members: self.members.clone(),
            lease: self.lease.clone(),
        }
    }
}

/// The copy of a file as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyView {
    /// Bytes that all members have. A reader sees no more.
    pub committed: u64,
    /// Bytes with the appends that are not acknowledged yet.
    pub queued: u64,
    /// Whether the copy has every byte that was acknowledged while the copy's disk was a member of
    /// the file. False for a copy in the making.
    pub is_member: bool,
    /// Whether appends are taken here.
    pub is_primary: bool,
    /// Where the chunks begin.
    pub chunks: Vec<u64>,
    /// All members of the file, the primary first.
    pub members: Vec<DataserverPlace>,
    /// The lease of the file's writer, as the nameserver last told it.
    pub lease: WriterLease,
}

/// Appends as a primary keeps them: where each begins, and its bytes.
pub type AppendWindow = VecDeque<(u64, Bytes)>;
