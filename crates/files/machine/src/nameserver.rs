//! A nameserver: the names, and who has the bytes of each file.
//!
//! Every change of a name is in the log before it is answered. Who has a file is a change too:
//!
//! ```text
//!  a member is dead, in trouble or wanted elsewhere
//!      │ Seal(epoch + 1) to the live members and to joiners that have caught up
//!      v
//!  all of them have promised, and told their lengths
//!      │ common length = the least of the members; the log has it
//!      v
//!  Assign(epoch + 1) to the members, until they hold it
//! ```
//!
//! Every member has every acknowledged byte, so the least length of any live members has them too.
//! A member that is left out becomes a *former* one. Its copy is kept until the file has all its
//! copies again, for the case that all members lose their disks. The last member is never left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::durable::Durable;
use evenfall_core::journal::{self, Journal};
use evenfall_core::{
    Arrival, ClockReading, Install, Machine, Malformed, Prng, StorageError, Timestamp, Transmit,
    Write, WriteId,
};

use crate::config::{LOOKS_MAX, NameConfig, OWED_MAX};
use crate::dataserver::send;
use crate::groups::Work;
use crate::space::{Call, File, Group, Record, Space};
use crate::wire::{Control, Held, Message, Place};
use crate::{DiskId, FileId, FilesError, Refusal};

/// The name of the log.
pub const LOG: &str = "names";

/// What a nameserver tells its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A call is in the log.
    Done {
        /// The token of the call.
        token: u64,
    },
    /// The disk failed. The nameserver tries again.
    Failed(StorageError),
    /// All members of a file lost their disks, and some of its bytes are gone.
    Lost {
        /// The file.
        file: FileId,
        /// The first and the last byte that are gone, the last exclusive.
        range: (u64, u64),
    },
}

/// What follows when a record is on the disk.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Done(u64),
    /// Those who have the file are told.
    Publish(FileId),
    /// Those who had the file may delete it.
    Drop(FileId, Group),
    Noted(FileId, u64, SocketAddr),
}

/// What is known of a dataserver.
#[derive(Clone, Debug)]
pub struct Server {
    /// Where it is.
    pub place: Place,
    /// When it was last heard.
    pub heard: Timestamp,
    /// Its disk takes no bytes.
    pub is_ill: bool,
    /// Bytes of files that it has.
    pub used: u64,
    /// Bytes that its disk has left.
    pub free: u64,
    /// Its silence was noticed.
    pub(crate) is_given_up: bool,
    /// Files whose assignment it has to be told, each with the number of the last assignment.
    pub(crate) owed: BTreeMap<FileId, u64>,
}

/// See the documentation of the module.
#[derive(Debug)]
pub struct Nameserver {
    pub(crate) config: NameConfig,
    pub(crate) space: Space,
    pub(crate) servers: BTreeMap<DiskId, Server>,
    /// What goes on with files that are not in order.
    pub(crate) works: BTreeMap<FileId, Work>,
    /// Files to look at.
    pub(crate) dirty: BTreeSet<FileId>,
    /// Where the last tick stopped looking.
    looked: Option<FileId>,
    pub(crate) journal: Journal<Effect>,
    checkpoint_bytes: u64,
    transmits: VecDeque<Transmit>,
    pub(crate) events: VecDeque<Event>,
    started: Option<Timestamp>,
    /// All dataservers had time to say that they live.
    is_started: bool,
    /// The number of the last assignment.
    pub(crate) rounds: u64,
    tick_at: Timestamp,
    retry_at: Option<Timestamp>,
    dropped: u64,
    /// The wall clock as the owner last gave it, in milliseconds since 1970.
    pub(crate) at_ms: u64,
}

impl Nameserver {
    /// A nameserver out of its log. An empty log is a new cluster, whose name comes from the seed.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn new(config: NameConfig, seed: u64, log: &Bytes) -> Result<Self, FilesError> {
        let (records, good) = journal::read(log);
        let mut space = Space::default();
        for record in records {
            let record = serde_json::from_slice(&record).map_err(|_| FilesError::Log(LOG))?;
            space.apply(record);
        }
        let journal = match log.is_empty() {
            true => Journal::new(LOG),
            false => Journal::behind(LOG, good),
        };
        let files = space.inodes().keys().filter(|id| space.file(**id).is_some());
        let dirty: BTreeSet<FileId> = files.copied().collect();
        let mut server = Self {
            config,
            space,
            servers: BTreeMap::new(),
            works: BTreeMap::new(),
            dirty,
            looked: None,
            journal,
            checkpoint_bytes: 0,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            started: None,
            is_started: false,
            rounds: Prng::new(seed).fork(1).next_u64() >> 1,
            tick_at: Timestamp::ZERO,
            retry_at: None,
            dropped: 0,
            at_ms: 0,
        };
        if server.space.cluster == 0 {
            let cluster = Prng::new(seed).next_u64() | 1;
            server.record(Record::Cluster { cluster }, None);
        }
        Ok(server)
    }

    /// The names as they are now. The last changes may not be in the log yet.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// The wall clock, in milliseconds since 1970.
    pub fn set_at_ms(&mut self, at_ms: u64) {
        self.at_ms = at_ms;
    }

    /// What is known of the dataservers.
    pub fn servers(&self) -> &BTreeMap<DiskId, Server> {
        &self.servers
    }

    /// Whether a dataserver lives.
    pub fn is_live(&self, now: Timestamp, disk: DiskId) -> bool {
        if self.space.is_gone(disk) {
            return false;
        }
        match (self.servers.get(&disk), self.started) {
            (Some(server), _) => now < server.heard + self.config.dead_after,
            // Nobody is dead before there was time to speak.
            (None, Some(started)) => now < started + self.config.dead_after,
            (None, None) => true,
        }
    }

    /// Who has a file, the primary first. Only those whose address is known are named.
    pub fn places(&self, file: &File) -> Vec<Place> {
        let places = file.group.members.iter().filter_map(|disk| self.servers.get(disk));
        places.map(|server| server.place).collect()
    }

    /// Files that are not in order, at most `most` of them.
    pub fn unsettled(&self, most: usize) -> Vec<FileId> {
        self.dirty.iter().take(most).copied().collect()
    }

    /// Makes a change. [`Event::Done`] follows when it is in the log. `at_ms` is the time in
    /// milliseconds since 1970.
    ///
    /// # Errors
    /// When nothing is changed.
    pub fn call(
        &mut self,
        now: Timestamp,
        at_ms: u64,
        token: u64,
        user: &str,
        call: &Call,
    ) -> Result<(), Refusal> {
        if self.journal.is_failing() {
            return Err(Refusal::DiskFull);
        }
        self.at_ms = at_ms;
        let members = match call {
            Call::Create { replication, .. } => self.choose(now, usize::from(*replication), &[]),
            _ => Vec::new(),
        };
        let records = self.space.decide(call, user, at_ms, &members)?;
        if let (Call::Create { .. }, true) = (call, members.is_empty()) {
            return Err(Refusal::TooFewServers(1, 0));
        }
        let mut effects = vec![Effect::Done(token)];
        let count = records.len();
        if let (Some(Record::Inode { id, name, .. }), false) = (records.last(), members.is_empty())
        {
            effects.extend(name.is_some().then_some(Effect::Publish(*id)));
        }
        if let (Call::SetReplication { .. }, Some(Record::Inode { id, .. })) =
            (call, records.last())
        {
            self.dirty.insert(*id);
        }
        for (at, record) in records.into_iter().enumerate() {
            let effects = if at + 1 == count { core::mem::take(&mut effects) } else { Vec::new() };
            self.record(record, effects);
        }
        // A call that changes nothing is done when what was before is in the log.
        if !effects.is_empty() {
            let next = Record::Next { next: FileId(0) };
            self.record(next, effects);
        }
        Ok(())
    }

    /// Live disks with the most room in use of which none is in `without`: the least used first.
    pub(crate) fn choose(&self, now: Timestamp, count: usize, without: &[DiskId]) -> Vec<DiskId> {
        let is_fit = |(disk, server): &(&DiskId, &Server)| {
            self.is_live(now, **disk) && !server.is_ill && !without.contains(disk)
        };
        let mut fit: Vec<_> = self.servers.iter().filter(is_fit).collect();
        // Equal disks take turns by the number of the next file.
        let turn = self.space.inodes().len() as u64;
        fit.sort_by_key(|(disk, server)| (server.used >> 20, disk.0.rotate_left(turn as u32 % 64)));
        fit.into_iter().take(count).map(|(disk, _)| *disk).collect()
    }

    pub(crate) fn record(&mut self, record: Record, effects: impl IntoIterator<Item = Effect>) {
        // A record has numbers, names and lists.
        let body = serde_json::to_vec(&record).unwrap_or_default();
        let mut effects: Vec<Effect> = effects.into_iter().collect();
        for (file, group) in self.space.apply(record) {
            self.works.remove(&file);
            self.dirty.remove(&file);
            effects.push(Effect::Drop(file, group));
        }
        self.journal.add(&body, effects);
    }

    pub(crate) fn tell(&mut self, to: SocketAddr, control: Control) {
        let message = Message::Control(control);
        send(&mut self.transmits, &mut self.dropped, self.space.cluster, to, message);
    }

    fn control(&mut self, now: Timestamp, from: SocketAddr, control: Control) {
        match control {
            Control::Beat { disk, http, is_ill, used, free, page } => {
                let place = Place { disk, address: from, http };
                self.beat(now, place, (is_ill, used, free), &page);
            }
            Control::Sealed { file, epoch, disk, length, committed } => {
                self.sealed(now, file, epoch, disk, (length, committed));
            }
            Control::Holds { file, epoch, round, disk } => self.holds(file, epoch, round, disk),
            Control::Trouble { file, epoch }
                if self.space.file(file).is_some_and(|f| f.group.epoch == epoch) =>
            {
                self.works.entry(file).or_default().is_troubled = true;
                self.dirty.insert(file);
            }
            Control::Caught { file, epoch, joiner } => self.caught(file, epoch, joiner),
            Control::Bad { file, epoch, disk } => self.bad(now, file, epoch, disk),
            Control::Length { file, epoch, length } => self.length(from, file, epoch, length),
            _ => {}
        }
    }

    fn length(&mut self, from: SocketAddr, id: FileId, epoch: u64, length: u64) {
        let Some(file) = self.space.file(id).filter(|file| file.group.epoch == epoch) else {
            return;
        };
        if length <= file.length {
            // The record may still be on its way to the disk, so the answer goes behind it.
            return self
                .record(Record::Next { next: FileId(0) }, [Effect::Noted(id, length, from)]);
        }
        let at_ms = self.at_ms;
        self.record(Record::Length { id, length, at_ms }, [Effect::Noted(id, length, from)]);
    }

    fn beat(
        &mut self,
        now: Timestamp,
        place: Place,
        (is_ill, used, free): (bool, u64, u64),
        page: &[Held],
    ) {
        let disk = place.disk;
        if self.space.is_gone(disk) {
            return;
        }
        let old = self.servers.get(&disk);
        let is_new = old.is_none_or(|old| old.place != place);
        let was_live = old.is_some() && self.is_live(now, disk);
        let was_ill = old.is_some_and(|old| old.is_ill);
        if is_new {
            // Another disk at the same address: the old disk is gone.
            let is_same = |(other, server): &(&DiskId, &Server)| {
                **other != disk && server.place.address == place.address
            };
            let gone: Vec<DiskId> = self.servers.iter().filter(is_same).map(|(d, _)| *d).collect();
            for disk in gone {
                self.servers.remove(&disk);
                self.disk_is_gone(disk);
            }
        }
        let owed = self.servers.remove(&disk).map(|server| server.owed).unwrap_or_default();
        let server = Server { place, heard: now, is_ill, used, free, is_given_up: false, owed };
        self.servers.insert(disk, server);
        if is_new || !was_live || was_ill != is_ill {
            self.look_at_files_of(disk, is_new);
        }
        for held in page {
            self.look_at_copy(now, place, *held);
        }
        let Some(server) = self.servers.get(&disk) else { return };
        let owed: Vec<FileId> = server.owed.keys().take(OWED_MAX).copied().collect();
        for file in owed {
            self.assign_to(disk, file);
        }
    }

    /// The state of a disk has changed. At a new address it has to be told what it has, and so have
    /// the others who share files with it.
    fn look_at_files_of(&mut self, disk: DiskId, is_new: bool) {
        let mut owed = Vec::new();
        for (id, inode) in self.space.inodes() {
            let crate::space::Kind::File(file) = &inode.kind else { continue };
            if file.group.members.len() < usize::from(file.replication) {
                self.dirty.insert(*id);
            }
            if file.group.members.contains(&disk) {
                self.dirty.insert(*id);
                if is_new {
                    owed.extend(file.group.members.iter().map(|member| (*member, *id)));
                }
            }
        }
        for (member, id) in owed {
            self.rounds += 1;
            if let Some(server) = self.servers.get_mut(&member) {
                server.owed.insert(id, self.rounds);
            }
        }
    }

    /// Silent disks are noticed here.
    fn tick(&mut self, now: Timestamp) {
        let grace = self.started.map(|started| started + self.config.dead_after);
        if !self.is_started && grace.is_some_and(|grace| now >= grace) {
            // Who has not spoken until now is dead.
            self.is_started = true;
            let inodes = self.space.inodes().keys();
            self.dirty.extend(inodes.filter(|id| self.space.file(**id).is_some()));
        }
        let mut dead = Vec::new();
        for (disk, server) in &mut self.servers {
            if !server.is_given_up && now >= server.heard + self.config.dead_after {
                server.is_given_up = true;
                dead.push(*disk);
            }
        }
        for disk in dead {
            self.look_at_files_of(disk, false);
        }
        let after = self.looked.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let range = (after, std::ops::Bound::Unbounded);
        let files: Vec<FileId> = self.dirty.range(range).take(LOOKS_MAX).copied().collect();
        self.looked = files.last().copied().filter(|_| files.len() == LOOKS_MAX);
        for file in files {
            if self.examine(now, file) {
                self.dirty.remove(&file);
            }
        }
        self.compact();
    }

    /// Replaces a long log by a checkpoint.
    fn compact(&mut self) {
        let long = self.config.log_bytes.max(4 * self.checkpoint_bytes);
        if self.journal.len() < long || self.journal.is_compacting() {
            return;
        }
        let records = self.space.records();
        let bodies = records.iter().map(|record| serde_json::to_vec(record).unwrap_or_default());
        self.journal.replace(bodies, None);
        self.checkpoint_bytes = self.journal.unwritten() as u64;
    }

    fn follow(&mut self, effect: Effect) {
        match effect {
            Effect::Done(token) => self.events.push_back(Event::Done { token }),
            Effect::Publish(file) => self.publish(file),
            Effect::Noted(file, length, to) => self.tell(to, Control::Noted { file, length }),
            Effect::Drop(file, group) => {
                let former = group.former.iter().map(|(disk, _)| *disk);
                let disks: Vec<DiskId> = group.members.iter().copied().chain(former).collect();
                for disk in disks {
                    if let Some(server) = self.servers.get(&disk) {
                        let to = server.place.address;
                        self.tell(to, Control::Drop { file, epoch: u64::MAX, disk });
                    }
                }
            }
        }
    }

    pub(crate) fn start(&mut self, now: Timestamp) {
        self.started.get_or_insert(now);
    }
}

impl Machine for Nameserver {
    type Event = Event;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        self.start(now);
        let (cluster, message) = Message::decode(&arrival.datagram)?;
        // A new dataserver does not know the name of the cluster, and may only say that it lives.
        let is_beat = matches!(message, Message::Control(Control::Beat { .. }));
        if cluster != self.space.cluster && !(cluster == 0 && is_beat) {
            self.dropped += 1;
            return Ok(());
        }
        if let Message::Control(control) = message {
            self.control(now, arrival.from, control);
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.start(now);
        if now >= self.tick_at {
            self.tick_at = now + self.config.tick;
            self.tick(now);
        }
        if self.retry_at.is_some_and(|at| now >= at) {
            self.journal.retry();
            let is_failing = self.journal.is_failing();
            self.retry_at = is_failing.then(|| now + self.config.full_retry);
        }
    }

    fn handle_clock(&mut self, now: Timestamp, _: ClockReading) {
        self.start(now);
    }

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
        [Some(self.tick_at), self.retry_at].into_iter().flatten().min()
    }

    fn durable(&mut self) -> Option<&mut dyn Durable> {
        Some(self)
    }
}

impl Durable for Nameserver {
    fn poll_write(&mut self) -> Option<Write> {
        self.journal.poll()
    }

    fn handle_written(&mut self, now: Timestamp, id: WriteId, done: Result<(), StorageError>) {
        match done {
            Ok(()) => {
                for effect in self.journal.done(id) {
                    self.follow(effect);
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
