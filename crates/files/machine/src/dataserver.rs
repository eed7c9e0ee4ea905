//! A dataserver: copies of files, which follow a primary or lead as one.
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
//! Appends to a file go to its primary, which gives each its offset, stores it and relays it. An
//! append is acknowledged when the primary and all members have it on their disks. A follower takes
//! an append only in the epoch that it has on its disk, and only behind the bytes that it has.
//!
//! [`Seal`](Control::Seal) ends an epoch: the copy promises on its disk to take nothing more of
//! the epoch, and answers with its length. [`Assign`](Control::Assign) begins the next: the copy is
//! cut to the common length, the epoch is written, and a primary among the members leads. A primary
//! that has restarted does not lead on in the same epoch, because followers may have appends of its
//! earlier life that it has lost. It asks for a new epoch.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::durable::Durable;
use evenfall_core::journal::{self, Journal};
use evenfall_core::{
    Arrival, Class, ClockReading, Destination, Head, Install, Machine, Malformed, Prng,
    StorageError, Timestamp, Transmit, Write, WriteId,
};
use serde::{Deserialize, Serialize};

use crate::chunk::Scan;
use crate::config::{DataConfig, PAGE_MAX, TRANSMITS_MAX};
use crate::copy::{Copy, LogChange, View, removal};
use crate::lead::{Follower, Lead};
use crate::wire::{Assignment, Control, Held, Message};
use crate::{DiskId, FileId, FilesError, Refusal};

/// The name of the log of promises.
pub const LOG: &str = "copies";
/// The writes of chunks have ids from here on, and those of the log have lower ones.
const DATA_WRITES: u64 = 1 << 63;

/// What a dataserver tells its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An append is on the disks of all members; the file is this long with it.
    Appended {
        /// The token of the call.
        token: u64,
        /// The length of the file with the append.
        end: u64,
    },
    /// The nameserver knows the length.
    Flushed {
        /// The token of the call.
        token: u64,
    },
    /// An append or a flush ended otherwise.
    Refused {
        /// The token of the call.
        token: u64,
        /// Why. [`Refusal::Unknown`] leaves open whether the append is there.
        why: Refusal,
    },
    /// The owner shall read appends of a file from this offset on, and give them.
    Read {
        /// The file.
        file: FileId,
        /// For whom.
        disk: DiskId,
        /// The place of the first.
        offset: u64,
    },
    /// The disk failed.
    Failed(StorageError),
}

/// What a dataserver has to remember.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Record {
    Disk { disk: DiskId },
    Cluster { cluster: u64 },
    Copy { file: FileId, epoch: u64, start: u64, is_member: bool },
    Promise { file: FileId, epoch: u64 },
    Dropped { file: FileId },
}

/// What follows when a record is on the disk.
#[derive(Clone, Copy, Debug)]
enum Effect {
    Switched(FileId, u64),
    Promised(FileId, u64),
}

/// A write of a chunk that is under way.
#[derive(Debug)]
struct DataWrite {
    file: FileId,
    life: u64,
    /// The length of the copy when an append is done; `None` for a cut or a removal.
    end: Option<u64>,
    log: String,
    is_removal: bool,
}

/// See the documentation of the module.
#[derive(Debug)]
pub struct Dataserver {
    pub(crate) config: DataConfig,
    nameserver: SocketAddr,
    http: SocketAddr,
    pub(crate) disk: DiskId,
    pub(crate) cluster: u64,
    pub(crate) copies: BTreeMap<FileId, Copy>,
    /// Copies with something to do at the next tick.
    pub(crate) busy: BTreeSet<FileId>,
    /// Bytes in the windows of all files.
    pub(crate) windows_bytes: usize,
    lives: u64,
    free: u64,
    journal: Journal<Effect>,
    checkpoint_bytes: u64,
    last_write: u64,
    data_out: VecDeque<Write>,
    data_writes: BTreeMap<WriteId, DataWrite>,
    pub(crate) transmits: VecDeque<Transmit>,
    pub(crate) events: VecDeque<Event>,
    beat_at: Timestamp,
    tick_at: Timestamp,
    retry_at: Option<Timestamp>,
    paged: Option<FileId>,
    pub(crate) dropped: u64,
}

impl Dataserver {
    /// A dataserver that reports to a nameserver, out of its log of promises and the chunks that
    /// the disk has. Randomness comes from the seed, which must differ from disk to disk.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn new(
        config: DataConfig,
        nameserver: SocketAddr,
        http: SocketAddr,
        seed: u64,
        log: &Bytes,
        chunks: Vec<(FileId, u64, Scan)>,
    ) -> Result<Self, FilesError> {
        let (records, good) = journal::read(log);
        let journal = match log.is_empty() {
            true => Journal::new(LOG),
            false => Journal::behind(LOG, good),
        };
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
            free: 0,
            journal,
            checkpoint_bytes: 0,
            last_write: DATA_WRITES,
            data_out: VecDeque::new(),
            data_writes: BTreeMap::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            beat_at: Timestamp::ZERO,
            tick_at: Timestamp::ZERO,
            retry_at: None,
            paged: None,
            dropped: 0,
        };
        for record in records {
            let record = serde_json::from_slice(&record).map_err(|_| FilesError::Log(LOG))?;
            server.replay(record);
        }
        if server.disk == DiskId(0) {
            server.disk = DiskId(Prng::new(seed).next_u64() | 1);
            server.remember(&Record::Disk { disk: server.disk }, None);
        }
        server.adopt(chunks);
        Ok(server)
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Disk { disk } => self.disk = disk,
            Record::Cluster { cluster } => self.cluster = cluster,
            Record::Copy { file, epoch, start, is_member } => {
                let copy = self.copies.entry(file).or_insert_with(|| Copy::new(file, 0));
                (copy.epoch, copy.promised, copy.start) = (epoch, epoch, start);
                copy.is_member = is_member;
            }
            Record::Promise { file, epoch } => {
                let copy = self.copies.entry(file).or_insert_with(|| Copy::new(file, 0));
                (copy.promised, copy.is_promise_written) = (epoch, true);
            }
            Record::Dropped { file } => drop(self.copies.remove(&file)),
        }
    }

    /// Gives the chunks to their copies. Chunks that belong to none are removed, and so are chunks
    /// behind a gap.
    fn adopt(&mut self, mut chunks: Vec<(FileId, u64, Scan)>) {
        chunks.sort_unstable_by_key(|(file, start, _)| (*file, *start));
        for (file, start, scan) in chunks {
            let log = crate::chunk::log_name(file, start);
            let copy = self.copies.get_mut(&file);
            let is_ours = copy.is_some_and(|copy| copy.adopt(start, &scan));
            let change = match is_ours {
                true if scan.bytes == scan.good => continue,
                true => evenfall_core::durable::Change::Truncate(scan.good),
                false => removal(),
            };
            self.write(file, 0, (log, change), None);
        }
        let files: Vec<FileId> = self.copies.keys().copied().collect();
        for file in files {
            let life = self.next_life();
            let Some(copy) = self.copies.get_mut(&file) else { continue };
            copy.life = life;
            copy.commit(if copy.is_member { copy.start } else { 0 });
            self.busy.insert(file);
        }
    }

    fn next_life(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    /// The disk of this dataserver.
    pub fn disk(&self) -> DiskId {
        self.disk
    }

    /// The epoch of a copy.
    pub fn epoch(&self, file: FileId) -> Option<u64> {
        self.copies.get(&file).map(|copy| copy.epoch)
    }

    /// Bytes of files here.
    pub fn used(&self) -> u64 {
        self.copies.values().map(|copy| copy.length).sum()
    }

    /// Copies here.
    pub fn copies(&self) -> usize {
        self.copies.len()
    }

    /// The owner has looked how many bytes the disk has left.
    pub fn set_free(&mut self, free: u64) {
        self.free = free;
    }

    /// What can be read of a file here.
    pub fn view(&self, file: FileId) -> Option<View> {
        self.copies.get(&file).filter(|copy| copy.epoch > 0).map(Copy::view)
    }

    /// Waits until the nameserver knows the length that was acknowledged before.
    ///
    /// # Errors
    /// When this is not the primary.
    pub fn flush(&mut self, token: u64, file: FileId) -> Result<(), Refusal> {
        let copy = self.copies.get_mut(&file).ok_or(Refusal::NotHere)?;
        if copy.lead.is_none() {
            return Err(Refusal::NotPrimary);
        }
        let length = copy.committed();
        copy.flushes.push((token, length));
        self.busy.insert(file);
        self.tell_length(file);
        Ok(())
    }

    /// The copy of a file here is damaged: a checksum does not match.
    pub fn report_bad(&mut self, file: FileId) {
        if let Some(copy) = self.copies.get(&file) {
            let (epoch, disk) = (copy.epoch, self.disk);
            self.tell(Control::Bad { file, epoch, disk });
        }
    }

    pub(crate) fn tell(&mut self, control: Control) {
        let to = self.nameserver;
        let message = Message::Control(control);
        send(&mut self.transmits, &mut self.dropped, self.cluster, to, message);
    }

    pub(crate) fn tell_length(&mut self, file: FileId) {
        let Some(copy) = self.copies.get(&file) else { return };
        if copy.lead.is_some() {
            let (epoch, length) = (copy.epoch, copy.committed());
            self.tell(Control::Length { file, epoch, length });
        }
    }

    fn remember(&mut self, record: &Record, effect: Option<Effect>) {
        // A record has numbers only.
        let body = serde_json::to_vec(record).unwrap_or_default();
        self.journal.add(&body, effect);
    }

    pub(crate) fn write(
        &mut self,
        file: FileId,
        life: u64,
        (log, change): LogChange,
        end: Option<u64>,
    ) {
        self.last_write += 1;
        let id = WriteId(self.last_write);
        let is_removal = change == removal();
        self.data_writes.insert(id, DataWrite { file, life, end, log: log.clone(), is_removal });
        self.data_out.push_back(Write { id, log, change });
    }

    /// Asks for changes that have to be done before the copy goes on.
    fn change(&mut self, file: FileId, changes: Vec<LogChange>) {
        let Some(copy) = self.copies.get_mut(&file) else { return };
        copy.cuts += changes.len();
        let life = copy.life;
        for change in changes {
            self.write(file, life, change, None);
        }
    }

    fn control(&mut self, control: Control) {
        match control {
            Control::Seal { file, epoch } => self.seal(file, epoch),
            Control::Assign(assignment) => self.assign(assignment),
            Control::Drop { file, epoch, disk } if disk == self.disk => self.drop_copy(file, epoch),
            Control::Noted { file, length } => {
                let Some(copy) = self.copies.get_mut(&file) else { return };
                let is_noted = |(_, wanted): &(u64, u64)| *wanted <= length;
                let done: Vec<_> = copy.flushes.extract_if(.., |flush| is_noted(flush)).collect();
                let told = done.into_iter().map(|(token, _)| Event::Flushed { token });
                self.events.extend(told);
            }
            _ => {}
        }
    }

    fn seal(&mut self, file: FileId, epoch: u64) {
        // A member that has not heard of the file yet has none of its bytes.
        let life = self.next_life();
        let copy = self.copies.entry(file).or_insert_with(|| Copy::new(file, life));
        if epoch <= copy.epoch || epoch < copy.promised || copy.switch.is_some() {
            return;
        }
        if epoch > copy.promised {
            (copy.promised, copy.is_promise_written) = (epoch, false);
            self.remember(&Record::Promise { file, epoch }, Some(Effect::Promised(file, epoch)));
        }
        self.answer_seal(file);
    }

    /// Answers a seal when the promise is on the disk and the length changes no more.
    pub(crate) fn answer_seal(&mut self, file: FileId) {
        let Some(copy) = self.copies.get(&file) else { return };
        let is_still = copy.queued == copy.length && copy.cuts == 0 && !copy.is_broken;
        if copy.promised > copy.epoch && copy.is_promise_written && is_still {
            let (epoch, disk) = (copy.promised, self.disk);
            let (length, committed) = (copy.length, copy.committed());
            self.tell(Control::Sealed { file, epoch, disk, length, committed });
        }
    }

    fn assign(&mut self, assignment: Assignment) {
        let (file, epoch, disk) = (assignment.file, assignment.epoch, self.disk);
        let is_member = assignment.members.iter().any(|place| place.disk == disk);
        let valid = assignment.joiners.iter().find(|(place, _)| place.disk == disk);
        let limit = match (is_member, valid) {
            (true, _) => assignment.start,
            (false, Some((_, valid))) => *valid,
            (false, None) => return,
        };
        let life = self.next_life();
        let copy = self.copies.entry(file).or_insert_with(|| Copy::new(file, life));
        if epoch < copy.promised || copy.switch.is_some() {
            return;
        }
        if epoch == copy.epoch {
            return self.update(assignment);
        }
        // Writes under way are answered first, and the nameserver asks again.
        if copy.queued != copy.length || copy.cuts > 0 || copy.is_broken {
            return;
        }
        let limit = if is_member { limit } else { copy.whole_chunks(limit) };
        let Some(changes) = copy.cut(limit, life) else { return self.report_bad(file) };
        if is_member && copy.length < limit {
            return self.report_bad(file);
        }
        copy.switch = Some(assignment);
        copy.leader = None;
        if let Some(lead) = copy.lead.take() {
            self.windows_bytes -= lead.window_bytes;
        }
        self.change(file, changes);
        self.write_switch(file);
    }

    /// Writes the new epoch down, once nothing of the old one is left behind its beginning.
    fn write_switch(&mut self, file: FileId) {
        let Some(copy) = self.copies.get(&file).filter(|copy| copy.cuts == 0) else { return };
        let Some(Assignment { epoch, start, members, .. }) = copy.switch.as_ref() else { return };
        let (epoch, start) = (*epoch, *start);
        let is_member = members.iter().any(|place| place.disk == self.disk);
        let record = Record::Copy { file, epoch, start, is_member };
        self.remember(&record, Some(Effect::Switched(file, epoch)));
    }

    /// The new epoch is on the disk.
    fn switched(&mut self, file: FileId, epoch: u64) {
        let disk = self.disk;
        let Some(copy) = self.copies.get_mut(&file) else { return };
        let Some(assignment) = copy.switch.take_if(|switch| switch.epoch == epoch) else { return };
        copy.is_member = assignment.members.iter().any(|place| place.disk == disk);
        (copy.epoch, copy.promised, copy.start) = (epoch, epoch, assignment.start);
        (copy.is_fresh, copy.is_promise_written) = (true, false);
        if copy.is_member {
            copy.commit(assignment.start);
        }
        // All members have what is in front of the beginning of the epoch. The rest is gone from
        // all of them.
        let (is_member, start) = (copy.is_member, assignment.start);
        for (token, end) in core::mem::take(&mut copy.waiting) {
            self.events.push_back(match (is_member, end <= start) {
                (true, true) => Event::Appended { token, end },
                (true, false) => Event::Refused { token, why: Refusal::Again },
                (false, _) => Event::Refused { token, why: Refusal::Unknown },
            });
        }
        if !copy.leads(disk) && assignment.members.first().is_none_or(|first| first.disk != disk) {
            for (token, _) in core::mem::take(&mut copy.flushes) {
                self.events.push_back(Event::Refused { token, why: Refusal::Unknown });
            }
        }
        self.update(assignment);
    }

    /// Takes places and joiners of the epoch that the copy is in.
    fn update(&mut self, assignment: Assignment) {
        let (file, round, disk) = (assignment.file, assignment.round, self.disk);
        let Some(copy) = self.copies.get_mut(&file) else { return };
        copy.members = assignment.members;
        let epoch = copy.epoch;
        if copy.promised == epoch && copy.leads(disk) {
            if !copy.is_fresh || copy.is_broken {
                return self.tell(Control::Trouble { file, epoch });
            }
            let start = copy.start;
            let lead = copy.lead.get_or_insert_with(Lead::default);
            let members = copy.members.iter().map(|place| (*place, true));
            let joiners = assignment.joiners.iter().map(|(place, _)| (*place, false));
            let followers = members.chain(joiners).filter(|(place, _)| place.disk != disk);
            let old = core::mem::take(&mut lead.followers);
            lead.followers = followers
                .map(|(place, is_member)| {
                    let known = old.iter().find(|follower| follower.place.disk == place.disk);
                    let new = Follower {
                        place,
                        is_member,
                        acked: is_member.then_some(start),
                        next: start,
                        sent_at: Timestamp::ZERO,
                        is_reading: false,
                        told: 0,
                    };
                    known.map_or(new, |known| Follower { place, ..*known })
                })
                .collect();
            self.busy.insert(file);
        }
        self.tell(Control::Holds { file, epoch, round, disk });
        self.advance(file);
    }

    fn drop_copy(&mut self, file: FileId, epoch: u64) {
        let Some(copy) = self.copies.get(&file) else { return };
        if copy.epoch > epoch || copy.switch.as_ref().is_some_and(|switch| switch.epoch > epoch) {
            return;
        }
        let Some(copy) = self.copies.remove(&file) else { return };
        self.windows_bytes -= copy.lead.as_ref().map_or(0, |lead| lead.window_bytes);
        let tokens = copy.waiting.iter().chain(&copy.flushes).map(|(token, _)| *token);
        let refused = tokens.map(|token| Event::Refused { token, why: Refusal::NotHere });
        self.events.extend(refused);
        for log in copy.logs() {
            self.write(file, 0, (log, removal()), None);
        }
        self.remember(&Record::Dropped { file }, None);
        self.busy.remove(&file);
    }

    fn beat(&mut self) {
        let after = self.paged.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let held = |copy: &Copy| Held { file: copy.file, epoch: copy.epoch, asks: !copy.is_fresh };
        let behind = self.copies.range((after, std::ops::Bound::Unbounded));
        let page: Vec<Held> = behind.take(PAGE_MAX).map(|(_, copy)| held(copy)).collect();
        self.paged = page.last().map(|held| held.file).filter(|_| page.len() == PAGE_MAX);
        let is_ill = self.journal.is_failing() || self.copies.values().any(|copy| copy.is_broken);
        let (disk, http) = (self.disk, self.http);
        let (used, free) = (self.used(), self.free);
        self.tell(Control::Beat { disk, http, is_ill, used, free, page });
    }

    /// A write of a chunk was answered.
    fn written(&mut self, now: Timestamp, write: DataWrite, done: Result<(), StorageError>) {
        let file = write.file;
        let Some(copy) = self.copies.get_mut(&file) else { return };
        if let Err(error) = done {
            if write.is_removal {
                copy.strays.push(write.log);
            }
            copy.cuts = copy.cuts.saturating_sub(usize::from(write.end.is_none()));
            if !copy.is_broken {
                copy.is_broken = true;
                self.events.push_back(Event::Failed(error));
            }
            copy.switch = None;
            // What is on its way to this disk counts no more.
            copy.life = u64::MAX;
            if let Some(lead) = copy.lead.take() {
                self.windows_bytes -= lead.window_bytes;
            }
            copy.is_fresh = false;
            let epoch = copy.epoch;
            self.retry_at.get_or_insert(now + self.config.full_retry);
            return self.tell(Control::Trouble { file, epoch });
        }
        match write.end {
            Some(end) if write.life == copy.life => {
                copy.length = end;
                copy.commit(0);
                if copy.lead.is_some() {
                    self.advance(file);
                } else {
                    self.acknowledge(file);
                }
            }
            Some(_) => {}
            None if write.life == copy.life => {
                copy.cuts = copy.cuts.saturating_sub(1);
                if copy.cuts == 0 && copy.is_broken {
                    copy.is_broken = false;
                }
                if copy.switch.is_some() {
                    self.write_switch(file);
                }
            }
            None => {}
        }
        self.answer_seal(file);
    }

    /// Mends what a failed write has left.
    fn mend(&mut self) {
        let is_under_way = |file: FileId| self.data_writes.values().any(|w| w.file == file);
        let broken = self.copies.values().filter(|copy| copy.is_broken && copy.life == u64::MAX);
        let broken: Vec<FileId> =
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

    /// Replaces a long log of promises by what is true now.
    fn compact(&mut self) {
        let long = self.config.log_bytes.max(4 * self.checkpoint_bytes);
        if self.journal.len() < long || self.journal.is_compacting() {
            return;
        }
        let mut records =
            vec![Record::Disk { disk: self.disk }, Record::Cluster { cluster: self.cluster }];
        for copy in self.copies.values() {
            let (file, epoch, start) = (copy.file, copy.epoch, copy.start);
            if epoch > 0 || copy.promised > 0 {
                records.push(Record::Copy { file, epoch, start, is_member: copy.is_member });
            }
            if copy.promised > epoch {
                records.push(Record::Promise { file, epoch: copy.promised });
            }
            // A switch that is not on the disk yet must not be forgotten by the new log.
            if let Some(switch) = copy.switch.as_ref().filter(|_| copy.cuts == 0) {
                let is_member = switch.members.iter().any(|place| place.disk == self.disk);
                let (epoch, start) = (switch.epoch, switch.start);
                records.push(Record::Copy { file, epoch, start, is_member });
            }
        }
        let bodies = records.iter().map(|record| serde_json::to_vec(record).unwrap_or_default());
        self.journal.replace(bodies, None);
        self.checkpoint_bytes = self.journal.unwritten() as u64;
    }
}

/// Queues a datagram. One that finds no room is dropped and counted.
pub(crate) fn send(
    transmits: &mut VecDeque<Transmit>,
    dropped: &mut u64,
    cluster: u64,
    to: SocketAddr,
    message: Message,
) {
    if transmits.len() >= TRANSMITS_MAX {
        *dropped += 1;
        return;
    }
    let (head, body) = message.encode(cluster);
    let to = Destination::One(to);
    transmits.push_back(Transmit::new(Class::Live, to, Head::new(&head), body));
}

impl Machine for Dataserver {
    type Event = Event;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let (cluster, message) = Message::decode(&arrival.datagram)?;
        if self.cluster == 0 && arrival.from == self.nameserver && cluster != 0 {
            self.cluster = cluster;
            self.remember(&Record::Cluster { cluster }, None);
        }
        if cluster != self.cluster || cluster == 0 {
            self.dropped += 1;
            return Ok(());
        }
        match message {
            Message::Relay { file, epoch, offset, committed, bytes } => {
                self.relay(arrival.from, file, epoch, (offset, committed), &bytes);
            }
            Message::Ack { file, epoch, disk, length } => {
                self.acknowledged(now, file, epoch, disk, length);
            }
            Message::Control(control) => self.control(control),
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
        if self.retry_at.is_some_and(|at| now >= at) {
            self.journal.retry();
            self.mend();
            let is_ill = self.journal.is_failing() || self.copies.values().any(|c| c.is_broken);
            self.retry_at = is_ill.then(|| now + self.config.full_retry);
        }
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn poll_install(&mut self) -> Option<Install> {
        None
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    fn poll_urgent(&mut self, _: Timestamp) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let tick = (!self.busy.is_empty()).then_some(self.tick_at);
        [Some(self.beat_at), tick, self.retry_at].into_iter().flatten().min()
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
            if let Some(write) = self.data_writes.remove(&id) {
                self.written(now, write, done);
            }
            return;
        }
        match done {
            Ok(()) => {
                for effect in self.journal.done(id) {
                    match effect {
                        Effect::Switched(file, epoch) => self.switched(file, epoch),
                        Effect::Promised(file, epoch) => {
                            if let Some(copy) = self.copies.get_mut(&file)
                                && copy.promised == epoch
                            {
                                copy.is_promise_written = true;
                                self.busy.insert(file);
                                self.answer_seal(file);
                            }
                        }
                    }
                }
            }
            Err(error) => {
                if !self.journal.is_failing() {
                    self.events.push_back(Event::Failed(error));
                }
                self.journal.failed(id);
                self.retry_at.get_or_insert(now + self.config.full_retry);
            }
        }
    }
}
