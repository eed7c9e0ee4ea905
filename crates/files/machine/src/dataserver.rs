//! A dataserver: copies of files, each of which is the primary of its file or follows the primary.
//!
//! ```text
//!              Seal, Assign              appends
//!  nameserver ─────────────> dataserver <──────── owner (a client at this process)
//!             <─────────────   │    ^
//!   Beat, Sealed, Holds, ...   │    │ Ack
//!                        Relay v    │
//!                       other dataservers
//! ```
//!
//! Appends to a file go to its primary. The primary gives each append an offset, stores the append
//! and relays it. An append is acknowledged when the primary and all members have the append on
//! their disks. A follower takes an append only in the epoch that is on the follower's disk, and
//! only behind the bytes that the follower has.
//!
//! Epochs begin and end as the nameserver says (`epochs`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use evenfall_core::durable::{Change, Durable};
use evenfall_core::journal::Journal;
use evenfall_core::{
    Arrival, ClockReading, Machine, Malformed, Prng, StorageError, Timestamp, Transmit, Write,
    WriteId,
};
use serde::{Deserialize, Serialize};

use crate::chunk::{self, ChunkScan, HEAD_BYTES};
use crate::config::{APPEND_BYTES_MAX, DataConfig, JOINED_BYTES_MAX, PAGE_MAX};
use crate::copy::{CopyView, FileCopy, LogChange, removal};
use crate::log_replica::{LogReplica, LogStream};
use crate::outbox::Outbox;
use crate::wire::{DataserverBeat, FilesControl, FilesMessage, Held};
use crate::{DiskId, FilesError, FilesRefusal, InodeId};

/// The name of the log of promises.
pub const LOG: &str = "copies";
/// Writes of chunks have ids from this number on. Writes of the log have lower ids.
const DATA_WRITES: u64 = 1 << 63;

/// An event of a dataserver for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An append is on the disks of all members.
    Appended {
        /// The token of the call.
        token: u64,
        /// The place in the file behind the append.
        end: u64,
    },
    /// The nameserver has the length on its disk.
    Flushed {
        /// The token of the call.
        token: u64,
    },
    /// An append that was taken, or a flush, has failed.
    Refused {
        /// The token of the call.
        token: u64,
        /// The reason. After [`FilesRefusal::Unknown`] the file may have the append or not.
        why: FilesRefusal,
    },
    /// The owner shall read appends of a file, and hand them in with [`Dataserver::give`].
    Read {
        /// The file.
        file: InodeId,
        /// The disk of the joiner that lacks the appends.
        disk: DiskId,
        /// The place of the first append.
        offset: u64,
    },
    /// The disk failed.
    Failed(StorageError),
}

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    Disk {
        disk: DiskId,
    },
    Cluster {
        cluster: u64,
    },
    Copy {
        file: InodeId,
        epoch: u64,
        start: u64,
        is_member: bool,
    },
    Promise {
        file: InodeId,
        epoch: u64,
    },
    Dropped {
        file: InodeId,
    },
    /// A copy of the nameserver's log begins.
    Names {
        stream: LogStream,
    },
    /// The beginning of a stream of the nameserver's log is whole on this disk.
    NamesWhole {
        stream: LogStream,
    },
}

/// An effect that follows when a record is on the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    Switched(InodeId, u64),
    Promised(InodeId, u64),
    Dropped(InodeId, u64),
    /// The beginning of a stream of the nameserver's log is whole, and the copy of the stream
    /// before is not needed any more.
    NamesWhole(LogStream, Option<LogStream>),
}

/// A write of a chunk that is under way.
#[derive(Debug)]
struct DataWrite {
    file: InodeId,
    life: u64,
    /// The length of the copy when an append is done; `None` for a cut or a removal.
    end: Option<u64>,
    /// The log that a removal makes empty.
    removed: Option<String>,
}

/// See the documentation of the module.
#[derive(Debug)]
pub struct Dataserver {
    pub(crate) config: DataConfig,
    pub(crate) nameserver: SocketAddr,
    http: SocketAddr,
    pub(crate) disk: DiskId,
    pub(crate) cluster: u64,
    pub(crate) copies: BTreeMap<InodeId, FileCopy>,
    /// Copies with something to do at the next tick.
    pub(crate) busy: BTreeSet<InodeId>,
    /// Bytes in the windows of all files.
    pub(crate) windows_bytes: usize,
    lives: u64,
    pub(crate) log_replica: LogReplica,
    /// The name of this dataserver, and the rack of its host.
    labels: (String, String),
    /// Whether datagrams are sealed. The sender of a sealed datagram is a server of the cluster.
    pub(crate) is_sealed: bool,
    /// The nameserver's last proof that this dataserver hears at its address.
    proof: u64,
    free: u64,
    /// Whether the last append found no room on the disk.
    pub(crate) is_full: bool,
    journal: Journal<Effect>,
    last_write: u64,
    pub(crate) data_out: VecDeque<Write>,
    data_writes: BTreeMap<WriteId, DataWrite>,
    pub(crate) outbox: Outbox,
    pub(crate) events: VecDeque<Event>,
    beat_at: Timestamp,
    tick_at: Timestamp,
    /// When copies whose chunks could not be written are mended.
    mend_at: Option<Timestamp>,
    paged: Option<InodeId>,
    /// Datagrams of other clusters, and of senders who may not say what they say.
    foreign: u64,
}

impl Dataserver {
    /// A dataserver that starts from its log of promises and the chunks on its disk, and reports to
    /// a nameserver. Randomness comes from the seed, which must differ from disk to disk.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn new(
        config: DataConfig,
        nameserver: SocketAddr,
        http: SocketAddr,
        seed: u64,
        log: &Bytes,
        chunks: Vec<(InodeId, u64, ChunkScan)>,
    ) -> Result<Self, FilesError> {
        let (records, journal) =
            Journal::open(LOG, config.full_retry, log).map_err(FilesError::Log)?;
        let mut server = Self {
            config,
            nameserver,
            http,
            disk: DiskId(0),
            cluster: 0,
            copies: BTreeMap::new(),
            busy: BTreeSet::new(),
            windows_bytes: 0,
            lives: 0,
            log_replica: LogReplica::default(),
            labels: Default::default(),
            is_sealed: false,
            proof: 0,
            free: 0,
            is_full: false,
            journal,
            last_write: DATA_WRITES,
            data_out: VecDeque::new(),
            data_writes: BTreeMap::new(),
            outbox: Outbox::default(),
            events: VecDeque::new(),
            beat_at: Timestamp::ZERO,
            tick_at: Timestamp::ZERO,
            mend_at: None,
            paged: None,
            foreign: 0,
        };
        for record in records {
            let record = serde_json::from_slice(&record).map_err(|_| FilesError::Record)?;
            server.replay(record);
        }
        if server.disk == DiskId(0) {
            server.disk = DiskId(Prng::new(seed).next_u64() | 1);
            server.remember(&Record::Disk { disk: server.disk }, None);
        }
        // A keeper that restarts gets a new stream, so that a beginning that is not whole is of no
        // use.
        server.forget_part();
        server.adopt(chunks);
        Ok(server)
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Disk { disk } => self.disk = disk,
            Record::Cluster { cluster } => self.cluster = cluster,
            Record::Copy { file, epoch, start, is_member } => {
                let copy = self.copies.entry(file).or_insert_with(|| FileCopy::new(file, 0));
                (copy.epoch, copy.promised, copy.start) = (epoch, epoch, start);
                copy.is_member = is_member;
            }
            Record::Promise { file, epoch } => {
                let copy = self.copies.entry(file).or_insert_with(|| FileCopy::new(file, 0));
                (copy.promised, copy.is_promise_written) = (epoch, true);
            }
            Record::Dropped { file } => drop(self.copies.remove(&file)),
            Record::Names { stream } => self.log_replica.last = stream,
            Record::NamesWhole { stream } => self.log_replica.whole = Some(stream),
        }
    }

    /// Bytes of the log that are on the disk. After a start, those of whole records: the rest is
    /// cut off.
    pub fn logged_bytes(&self) -> u64 {
        self.journal.done_bytes()
    }

    /// Gives the chunks to their copies. Chunks that belong to no copy are removed, and so are
    /// chunks behind a gap.
    fn adopt(&mut self, mut chunks: Vec<(InodeId, u64, ChunkScan)>) {
        chunks.sort_unstable_by_key(|(file, start, _)| (*file, *start));
        for (file, start, scan) in chunks {
            let log = chunk::log_name(file, start);
            let copy = self.copies.get_mut(&file);
            let is_ours = copy.is_some_and(|copy| copy.adopt(start, &scan));
            let change = match is_ours {
                true if scan.bytes == scan.good => continue,
                true => Change::Truncate(scan.good),
                false => removal(),
            };
            self.write(file, 0, (log, change), None);
        }
        let files: Vec<InodeId> = self.copies.keys().copied().collect();
        for file in files {
            let life = self.next_life();
            let Some(copy) = self.copies.get_mut(&file) else { continue };
            copy.life = life;
            copy.commit(if copy.is_member { copy.start } else { 0 });
            self.busy.insert(file);
        }
    }

    pub(crate) fn next_life(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    /// The name of the disk.
    pub fn disk(&self) -> DiskId {
        self.disk
    }

    /// The epoch of the copy of a file.
    pub fn epoch(&self, file: InodeId) -> Option<u64> {
        self.copies.get(&file).map(|copy| copy.epoch)
    }

    /// Bytes of all copies.
    pub fn used(&self) -> u64 {
        self.copies.values().map(|copy| copy.length).sum()
    }

    /// Up to `most` files of which there is a copy here, in order, from the file behind `after` on.
    pub fn files(&self, after: Option<InodeId>, most: usize) -> Vec<InodeId> {
        let after = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let behind = self.copies.range((after, std::ops::Bound::Unbounded));
        behind.take(most).map(|(file, _)| *file).collect()
    }

    /// Number of copies.
    pub fn copies(&self) -> usize {
        self.copies.len()
    }

    /// Datagrams that were dropped, because the driver was too slow or because their sender is of
    /// another cluster or may not say what the datagram says.
    pub fn dropped(&self) -> u64 {
        self.outbox.dropped + self.foreign
    }

    /// Sets how many bytes the disk has left, as the owner has found.
    pub fn set_free(&mut self, free: u64) {
        self.free = free;
    }

    /// Sets the name of this dataserver for people, and the rack of its host.
    pub fn set_labels(&mut self, name: &str, rack: &str) {
        self.labels = (name.to_owned(), rack.to_owned());
    }

    /// From now on, this dataserver takes the word of any sender, and learns the name of the
    /// cluster from the first datagram. Without this call, each word has to come from the address
    /// of the server whose word it is.
    /// Sealed datagrams come from servers of the cluster alone, and a nameserver may send from
    /// another address than the address at which it is reached.
    pub fn trust_senders(&mut self) {
        self.is_sealed = true;
    }

    /// Reports to the nameserver at this address from now on.
    pub fn follow_nameserver(&mut self, at: SocketAddr) {
        self.nameserver = at;
    }

    /// The rack of its host.
    pub fn rack(&self) -> &str {
        &self.labels.1
    }

    /// The part of a file that this dataserver can serve.
    pub fn view(&self, file: InodeId) -> Option<CopyView> {
        self.copies.get(&file).filter(|copy| copy.epoch > 0).map(FileCopy::view)
    }

    /// Asks the nameserver to write down the acknowledged length of a file. [`Event::Flushed`] or
    /// [`Event::Refused`] follows.
    ///
    /// # Errors
    /// [`FilesRefusal::NotHere`], or [`FilesRefusal::NotPrimary`] when this copy is not the
    /// primary.
    pub fn flush(&mut self, token: u64, file: InodeId) -> Result<(), FilesRefusal> {
        let copy = self.copies.get_mut(&file).ok_or(FilesRefusal::NotHere)?;
        if copy.primary.is_none() {
            return Err(FilesRefusal::NotPrimary);
        }
        let length = copy.committed();
        copy.flushes.push((token, length));
        self.busy.insert(file);
        self.tell_length(file);
        self.tell_followers(file);
        Ok(())
    }

    /// Reports to the nameserver that this copy of a file is damaged: a checksum does not match.
    pub fn report_bad(&mut self, file: InodeId) {
        if let Some(copy) = self.copies.get(&file) {
            let (epoch, disk) = (copy.epoch, self.disk);
            self.tell(FilesControl::Bad { file, epoch, disk });
        }
    }

    pub(crate) fn tell(&mut self, control: FilesControl) {
        let to = self.nameserver;
        let message = FilesMessage::Control(control);
        self.outbox.send(self.cluster, to, message);
    }

    pub(crate) fn tell_length(&mut self, file: InodeId) {
        let Some(copy) = self.copies.get(&file) else { return };
        if copy.primary.is_some() {
            let (epoch, length, closes) = (copy.epoch, copy.committed(), copy.closing);
            self.tell(FilesControl::Length { file, epoch, length, closes });
        }
    }

    pub(crate) fn remember(&mut self, record: &Record, effect: Option<Effect>) {
        // A record has numbers only, which JSON always takes.
        let body = serde_json::to_vec(record).unwrap_or_default();
        self.journal.add(&body, effect);
    }

    /// Adds an append to a copy, and asks for its write.
    pub(crate) fn store(&mut self, file: InodeId, body: &[u8]) {
        let Some(copy) = self.copies.get_mut(&file) else { return };
        let (log, offset) = copy.store(body.len(), self.config.chunk_bytes);
        let (life, end) = (copy.life, copy.queued);
        if self.joins_last_write((life, end), &log, (offset, body)) {
            return;
        }
        // A full-length append is likely to be followed by others, which join its write.
        let is_long = body.len() >= APPEND_BYTES_MAX;
        let capacity = if is_long { JOINED_BYTES_MAX } else { HEAD_BYTES + body.len() };
        let mut bytes = BytesMut::with_capacity(capacity);
        chunk::put(offset, body, &mut bytes);
        self.write(file, life, (log, Change::Append(bytes.freeze())), Some(end));
    }

    fn write(&mut self, file: InodeId, life: u64, (log, change): LogChange, end: Option<u64>) {
        let id = self.next_write();
        let removed = (change == removal()).then(|| log.clone());
        self.data_writes.insert(id, DataWrite { file, life, end, removed });
        self.data_out.push_back(Write { id, log, change });
    }

    /// Adds an append to the last write, when that is an append to the same log which the driver
    /// has not taken yet. A slow disk then writes many appends at once.
    fn joins_last_write(
        &mut self,
        (life, end): (u64, u64),
        log: &str,
        (offset, body): (u64, &[u8]),
    ) -> bool {
        let Some(last) = self.data_out.back_mut() else { return false };
        let under_way = self.data_writes.get_mut(&last.id);
        let (Some(known), Change::Append(bytes)) = (under_way, &mut last.change) else {
            return false;
        };
        let is_same = last.log == *log && known.life == life && known.end.is_some();
        if !is_same || bytes.len() + HEAD_BYTES + body.len() > JOINED_BYTES_MAX {
            return false;
        }
        // The bytes of a write that the driver has not taken have no second owner, so that they are
        // not copied here.
        let mut all =
            core::mem::take(bytes).try_into_mut().unwrap_or_else(|shared| shared[..].into());
        chunk::put(offset, body, &mut all);
        *bytes = all.freeze();
        known.end = Some(end);
        true
    }

    pub(crate) fn next_write(&mut self) -> WriteId {
        self.last_write += 1;
        WriteId(self.last_write)
    }

    /// Asks for changes of logs that have to be done before the copy takes an append again.
    pub(crate) fn change(&mut self, file: InodeId, changes: Vec<LogChange>) {
        let Some(copy) = self.copies.get_mut(&file) else { return };
        copy.cuts += changes.len();
        let life = copy.life;
        for change in changes {
            self.write(file, life, change, None);
        }
    }

    fn control(&mut self, control: FilesControl) {
        match control {
            FilesControl::Seal { file, epoch } => self.seal(file, epoch),
            FilesControl::Assign(assignment) => self.assign(assignment),
            FilesControl::Proof { disk, proof } if disk == self.disk && proof != self.proof => {
                self.proof = proof;
                self.beat();
            }
            FilesControl::Drop { file, epoch, disk } if disk == self.disk => {
                self.drop_copy(file, epoch)
            }
            FilesControl::Noted { file, length } => {
                let Some(copy) = self.copies.get_mut(&file) else { return };
                let is_noted = |(_, wanted): &(u64, u64)| *wanted <= length;
                let done: Vec<_> = copy.flushes.extract_if(.., |flush| is_noted(flush)).collect();
                let told = done.into_iter().map(|(token, _)| Event::Flushed { token });
                self.events.extend(told);
            }
            _ => {}
        }
    }

    fn drop_copy(&mut self, file: InodeId, epoch: u64) {
        let Some(copy) = self.copies.get(&file) else {
            // The record of an earlier drop may have no write yet. The nameserver asks again.
            if self.journal.unwritten() == 0 {
                self.tell_dropped(file, epoch);
            }
            return;
        };
        // A copy that has promised a later epoch may be all that is left of the file.
        let switch = copy.switch.as_ref().map_or(0, |switch| switch.epoch);
        if copy.promised.max(copy.epoch).max(switch) > epoch {
            return;
        }
        let Some(copy) = self.copies.remove(&file) else { return };
        self.windows_bytes -= copy.primary.as_ref().map_or(0, |primary| primary.window_bytes);
        let tokens = copy.waiting.iter().chain(&copy.flushes).map(|(token, _)| *token);
        let refused = tokens.map(|token| Event::Refused { token, why: FilesRefusal::NotHere });
        self.events.extend(refused);
        for log in copy.logs() {
            self.write(file, 0, (log, removal()), None);
        }
        self.remember(&Record::Dropped { file }, Some(Effect::Dropped(file, epoch)));
        self.busy.remove(&file);
    }

    /// Tells the nameserver that this disk has no copy of a file.
    fn tell_dropped(&mut self, file: InodeId, epoch: u64) {
        if !self.copies.contains_key(&file) {
            self.tell(FilesControl::Dropped { file, epoch, disk: self.disk });
        }
    }

    fn beat(&mut self) {
        let after = self.paged.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let held =
            |copy: &FileCopy| Held { file: copy.file, epoch: copy.epoch, asks: !copy.is_fresh };
        let behind = self.copies.range((after, std::ops::Bound::Unbounded));
        let page: Vec<Held> = behind.take(PAGE_MAX).map(|(_, copy)| held(copy)).collect();
        self.paged = page.last().map(|held| held.file).filter(|_| page.len() == PAGE_MAX);
        self.mend_names();
        let is_ill = self.is_ill();
        let (used, free, proof) = (self.used(), self.free, self.proof);
        let (name, rack) = self.labels.clone();
        let plain = DataserverBeat::new(self.disk, self.http);
        let beat = DataserverBeat { name, rack, is_ill, used, free, page, proof, ..plain };
        self.tell(FilesControl::Beat(beat));
    }

    /// Whether the disk refuses writes.
    pub fn is_ill(&self) -> bool {
        let is_failing = self.journal.is_failing() || self.log_replica.broken.is_some();
        is_failing || self.has_broken_copies()
    }

    /// Bytes that the disk has left, as the owner last found.
    pub fn free(&self) -> u64 {
        self.free
    }

    fn has_broken_copies(&self) -> bool {
        self.copies.values().any(|copy| copy.is_broken)
    }

    fn follow(&mut self, effect: Effect) {
        match effect {
            Effect::Switched(file, epoch) => self.switched(file, epoch),
            Effect::Promised(file, epoch) => self.promised(file, epoch),
            Effect::Dropped(file, epoch) => self.tell_dropped(file, epoch),
            Effect::NamesWhole(stream, old) => self.names_whole(stream, old),
        }
    }

    /// A write of a chunk was answered.
    fn written(&mut self, now: Timestamp, write: DataWrite, done: Result<(), StorageError>) {
        let file = write.file;
        if write.end.is_some() {
            // An append behind a failed append fails too, and its error does not name the full
            // disk.
            let is_full = matches!(done, Err(StorageError::Full { .. }));
            self.is_full = is_full || (self.is_full && done.is_err());
        }
        let Some(copy) = self.copies.get_mut(&file) else { return };
        if let Err(error) = done {
            copy.strays.extend(write.removed);
            copy.cuts = copy.cuts.saturating_sub(usize::from(write.end.is_none()));
            if !copy.is_broken {
                copy.is_broken = true;
                self.events.push_back(Event::Failed(error));
            }
            copy.switch = None;
            // Answers to the writes under way are ignored from now on.
            copy.life = u64::MAX;
            if let Some(primary) = copy.primary.take() {
                self.windows_bytes -= primary.window_bytes;
            }
            copy.is_fresh = false;
            let epoch = copy.epoch;
            self.mend_at.get_or_insert(now + self.config.full_retry);
            return self.tell(FilesControl::Trouble { file, epoch });
        }
        match write.end {
            // Writes are answered in their order, so all bytes in front of `end` are on the disk,
            // those of the chunks before this one among them.
            Some(end) if write.life == copy.life => {
                copy.length = end;
                copy.commit(0);
                if copy.primary.is_some() {
                    self.advance(file);
                } else {
                    self.acknowledge(file);
                }
            }
            Some(_) => {}
            None if write.life == copy.life => {
                copy.cuts = copy.cuts.saturating_sub(1);
                copy.is_broken &= copy.cuts > 0;
                if copy.switch.is_some() {
                    self.write_switch(file);
                }
            }
            None => {}
        }
        self.answer_seal(file);
    }

    /// Begins to mend the copies that a failed write has left broken.
    fn mend(&mut self) {
        let is_under_way = |file: InodeId| self.data_writes.values().any(|w| w.file == file);
        let broken = self.copies.values().filter(|copy| copy.is_broken && copy.life == u64::MAX);
        let broken: Vec<InodeId> =
            broken.map(|copy| copy.file).filter(|file| !is_under_way(*file)).collect();
        for file in broken {
            let life = self.next_life();
            let Some(copy) = self.copies.get_mut(&file) else { continue };
            copy.cuts = 0;
            match copy.mend(life) {
                Some(changes) if changes.is_empty() => copy.is_broken = false,
                Some(changes) => self.change(file, changes),
                None => self.report_bad(file),
            }
        }
    }

    /// Replaces a long log of promises by records of the present state.
    fn compact(&mut self) {
        if !self.journal.is_long(self.config.log_bytes) {
            return;
        }
        let mut records =
            vec![Record::Disk { disk: self.disk }, Record::Cluster { cluster: self.cluster }];
        records.extend(self.log_replica.records());
        for copy in self.copies.values() {
            let (file, epoch, start) = (copy.file, copy.epoch, copy.start);
            if epoch > 0 || copy.promised > 0 {
                records.push(Record::Copy { file, epoch, start, is_member: copy.is_member });
            }
            if copy.promised > epoch {
                records.push(Record::Promise { file, epoch: copy.promised });
            }
            // The new log repeats the record of a switch, because the record in the old log may
            // have no write yet and be dropped.
            if let Some(switch) = copy.switch.as_ref().filter(|_| copy.cuts == 0) {
                let is_member = switch.members.iter().any(|place| place.disk == self.disk);
                let (epoch, start) = (switch.epoch, switch.start);
                records.push(Record::Copy { file, epoch, start, is_member });
            }
        }
        let bodies = records.iter().map(|record| serde_json::to_vec(record).unwrap_or_default());
        self.journal.replace(bodies, None);
    }
}

impl Machine for Dataserver {
    type Event = Event;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let (cluster, message) = FilesMessage::decode(&arrival.datagram)?;
        let is_trusted = self.is_sealed || arrival.from == self.nameserver;
        if self.cluster == 0 && is_trusted && cluster != 0 {
            self.cluster = cluster;
            self.remember(&Record::Cluster { cluster }, None);
        }
        if cluster != self.cluster || cluster == 0 {
            self.foreign += 1;
            return Ok(());
        }
        if !self.may_say(arrival.from, &message) {
            self.foreign += 1;
            return Ok(());
        }
        match message {
            FilesMessage::Relay { file, epoch, offset, committed, bytes } => {
                self.relay(arrival.from, file, epoch, (offset, committed), &bytes);
            }
            FilesMessage::Ack { file, epoch, disk, length } => {
                self.acknowledged(now, file, epoch, disk, length);
            }
            FilesMessage::Names { stream, done, offset, bytes } => {
                self.take_log_bytes(stream, done, offset, &bytes);
            }
            FilesMessage::Control(control) => self.control(control),
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if now >= self.beat_at {
            self.beat_at = now + self.config.beat;
            self.beat();
            self.compact();
        }
        if now >= self.tick_at {
            self.tick_at = now + self.config.resend / 2;
            for file in core::mem::take(&mut self.busy) {
                if self.tick(now, file) {
                    self.busy.insert(file);
                }
            }
        }
        self.journal.handle_timeout(now);
        if self.mend_at.is_some_and(|at| now >= at) {
            self.mend();
            self.mend_at = self.has_broken_copies().then(|| now + self.config.full_retry);
        }
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        self.outbox.poll()
    }

    fn poll_urgent(&mut self, _: Timestamp) -> Option<Transmit> {
        self.outbox.poll()
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let tick = (!self.busy.is_empty()).then_some(self.tick_at);
        let retry = self.journal.poll_timeout();
        [Some(self.beat_at), tick, self.mend_at, retry].into_iter().flatten().min()
    }

    fn durable(&mut self) -> Option<&mut dyn Durable> {
        Some(self)
    }
}

impl Durable for Dataserver {
    fn poll_write(&mut self) -> Option<Write> {
        self.data_out.pop_front().or_else(|| self.journal.poll())
    }

    fn handle_written(&mut self, now: Timestamp, id: WriteId, done: Result<(), StorageError>) {
        if id.0 >= DATA_WRITES {
            if self.log_replica.cut == Some(id) {
                return self.names_mended(done.is_ok());
            }
            if let Some((generation, end)) = self.log_replica.writes.remove(&id) {
                return self.names_written(generation, end, done.is_ok());
            }
            if let Some(write) = self.data_writes.remove(&id) {
                self.written(now, write, done);
            }
            return;
        }
        match self.journal.handle_written(now, id, done) {
            Ok(effects) => effects.into_iter().for_each(|effect| self.follow(effect)),
            Err(error) => self.events.push_back(Event::Failed(error)),
        }
    }
}
