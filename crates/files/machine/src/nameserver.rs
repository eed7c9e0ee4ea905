//! A nameserver: the names of files, and the dataservers that have the bytes of each file.
//!
//! Every change of a name is in the log before the client gets its answer. A change of the members
//! of a file goes through the log too:
//!
//! ```text
//!  a member is dead, in trouble or wanted elsewhere
//!      │ Seal(epoch + 1) to the live members and to joiners that have caught up
//!      v
//!  all of these have promised, and told their lengths
//!      │ common length = the least of the members; the log has it
//!      v
//!  Assign(epoch + 1) to the members, until they hold it
//! ```
//!
//! Every member has every acknowledged byte, so a file that is cut to the least length of its live
//! members keeps all acknowledged bytes. A member that is left out becomes a *former* member. The
//! copy of a former member is kept until the file has all its copies again, because all members may
//! lose their disks before that. The nameserver then sends `Drop`, and forgets the former member
//! when the former member has answered `Dropped`. The last member is never left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::durable::Durable;
use evenfall_core::journal::Journal;
use evenfall_core::{
    Arrival, ClockReading, MacKey, Machine, Malformed, Prng, StorageError, Timestamp, Transmit,
    Write, WriteId,
};

use crate::config::{
    FORGET_AFTER, LABEL_BYTES_MAX, LOOKS_MAX, NameConfig, OWED_MAX, REPLACED_PARTS, SERVERS_MAX,
};
use crate::groups::FileWork;
use crate::leases::{LeaseClock, clocks_of};
use crate::log_replication::LogReplication;
use crate::namespace::{
    Caller, CopyGroup, FIRST_EPOCH, File, Namespace, NamespaceCall, NamespaceChange,
};
use crate::outbox::Outbox;
use crate::placing::Balance;
use crate::sender_checks::proof_key;
use crate::wire::{DataserverBeat, DataserverPlace, FilesControl, FilesMessage};
use crate::{DiskId, FilesError, FilesRefusal, InodeId};

/// The name of the log.
pub const LOG: &str = "names";

/// An event of a nameserver for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A call is in the log.
    Done {
        /// The token of the call.
        token: u64,
    },
    /// The disk failed. The nameserver tries again every [`NameConfig::full_retry`].
    Failed(StorageError),
    /// All members of a file lost their disks, and some of its bytes are gone.
    Lost {
        /// The file.
        file: InodeId,
        /// The offset of the first lost byte, and the offset behind the last lost byte.
        range: (u64, u64),
    },
}

/// An effect that follows when a record is on the disk.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Done(u64),
    /// The dataservers that have the file are told their assignment, if the file is still in this
    /// epoch. The record of a later epoch has an effect of its own.
    Publish(InodeId, u64),
    /// The dataservers that had the file may delete their copies.
    Drop(InodeId, CopyGroup),
    /// A primary is told that the length of its file is in the log.
    Noted(InodeId, u64, SocketAddr),
    /// The record of this life is on the disk here, so streams to keepers may begin.
    Begun,
}

/// A dataserver as the nameserver knows it.
#[derive(Clone, Debug)]
pub struct KnownDataserver {
    /// Its disk and addresses.
    pub place: DataserverPlace,
    /// Its name for people; empty when it has none.
    pub name: String,
    /// The rack of its host.
    pub rack: String,
    /// When the dataserver was last heard.
    pub heard: Timestamp,
    /// Whether its disk refuses writes.
    pub is_ill: bool,
    /// Bytes of files on its disk.
    pub used: u64,
    /// Bytes that its disk has left.
    pub free: u64,
    /// Whether the dataserver checks the leases of writers. Earlier builds do not.
    pub checks_leases: bool,
    /// Whether the nameserver has noticed that the dataserver is silent.
    pub(crate) is_given_up: bool,
    /// Files whose assignment the dataserver has not confirmed, each with the number of the last
    /// assignment.
    pub(crate) owed: BTreeMap<InodeId, u64>,
}

/// See the documentation of the module.
#[derive(Debug)]
pub struct Nameserver {
    pub(crate) config: NameConfig,
    pub(crate) namespace: Namespace,
    pub(crate) servers: BTreeMap<DiskId, KnownDataserver>,
    /// The work on files that are not in order.
    pub(crate) works: BTreeMap<InodeId, FileWork>,
    /// Files that may not be in order. Ticks look at them in turn.
    pub(crate) dirty: BTreeSet<InodeId>,
    /// The file at which the last tick stopped looking.
    looked: Option<InodeId>,
    pub(crate) balance: Option<Balance>,
    /// Copies that balancing has moved or begun to move.
    pub(crate) balanced: u64,
    pub(crate) journal: Journal<(u64, Effect)>,
    pub(crate) log_replication: LogReplication,
    pub(crate) leases: BTreeMap<InodeId, LeaseClock>,
    pub(crate) outbox: Outbox,
    pub(crate) events: VecDeque<Event>,
    started: Option<Timestamp>,
    /// Whether every dataserver has had the time to send a beat since the start.
    is_started: bool,
    /// The number of the last assignment.
    pub(crate) rounds: u64,
    tick_at: Timestamp,
    /// Datagrams of other clusters, and of senders who may not say what they say.
    foreign: u64,
    /// Whether datagrams are sealed. The sender of a sealed datagram is a server of the cluster.
    pub(crate) is_sealed: bool,
    /// The key of the proofs of this life.
    pub(crate) proof_key: MacKey,
    /// When silent dataservers are forgotten next.
    forget_at: Timestamp,
    /// Files that dataservers have and that no name of this log ever had.
    pub(crate) strangers: BTreeSet<InodeId>,
    /// The wall clock as the owner last gave it, in milliseconds since 1970.
    pub(crate) at_ms: u64,
}

impl Nameserver {
    /// A nameserver that starts from its log. An empty log begins a new cluster, whose name comes
    /// from the seed.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn new(config: NameConfig, seed: u64, log: &Bytes) -> Result<Self, FilesError> {
        let (records, journal) =
            Journal::open(LOG, config.full_retry, log).map_err(FilesError::Log)?;
        let mut namespace = Namespace::default();
        for record in records {
            let record = serde_json::from_slice(&record).map_err(|_| FilesError::Record)?;
            namespace.apply(record);
        }
        // No dataserver has reported yet, so that every file has to be looked at.
        let files = namespace.inodes().keys().filter(|id| namespace.file(**id).is_some());
        let dirty: BTreeSet<InodeId> = files.copied().collect();
        let leases = clocks_of(&namespace);
        let mut server = Self {
            config,
            namespace,
            servers: BTreeMap::new(),
            works: BTreeMap::new(),
            dirty,
            looked: None,
            balance: None,
            balanced: 0,
            journal,
            log_replication: LogReplication::default(),
            leases,
            outbox: Outbox::default(),
            events: VecDeque::new(),
            started: None,
            is_started: false,
            rounds: Prng::new(seed).fork(1).next_u64() >> 1,
            tick_at: Timestamp::ZERO,
            foreign: 0,
            is_sealed: false,
            proof_key: proof_key(seed),
            forget_at: Timestamp::ZERO,
            strangers: BTreeSet::new(),
            at_ms: 0,
        };
        if server.namespace.cluster == 0 {
            let cluster = Prng::new(seed).next_u64() | 1;
            server.record(NamespaceChange::Cluster { cluster }, None);
        }
        let mut prng = Prng::new(seed).fork(2);
        let term = server.namespace.begin_term(|| prng.next_u64());
        server.record(term, [Effect::Begun]);
        Ok(server)
    }

    /// Bytes of the log that are on the disk. After a start, those of whole records: the rest is
    /// cut off.
    pub fn logged_bytes(&self) -> u64 {
        self.journal.done_bytes()
    }

    /// The names as they are now. The last changes may not be in the log yet.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Sets the wall clock, in milliseconds since 1970.
    pub fn set_at_ms(&mut self, at_ms: u64) {
        self.at_ms = at_ms;
    }

    /// Datagrams that were dropped, because the driver was too slow or because their sender is of
    /// another cluster or may not say what the datagram says.
    pub fn dropped(&self) -> u64 {
        self.outbox.dropped + self.foreign
    }

    /// Number of files that may not have all their copies, or that are being changed.
    pub fn unsettled(&self) -> usize {
        self.dirty.union(&self.works.keys().copied().collect()).count()
    }

    /// The dataservers that were heard since the start, by disk.
    pub fn servers(&self) -> &BTreeMap<DiskId, KnownDataserver> {
        &self.servers
    }

    /// Whether a dataserver lives.
    pub fn is_live(&self, now: Timestamp, disk: DiskId) -> bool {
        if self.namespace.is_gone(disk) {
            return false;
        }
        match (self.servers.get(&disk), self.started) {
            (Some(server), _) => now < server.heard + self.config.dead_after,
            // After a start, a dataserver first gets the time to send a beat.
            (None, Some(started)) => now < started + self.config.dead_after,
            (None, None) => true,
        }
    }

    /// The members of a file whose addresses are known, the primary first.
    pub fn places(&self, file: &File) -> Vec<DataserverPlace> {
        let places = file.group.members.iter().filter_map(|disk| self.servers.get(disk));
        places.map(|server| server.place).collect()
    }

    /// Files that dataservers have and that this log never named, because the log is older than
    /// these files. At most [`STRANGERS_MAX`](crate::config::STRANGERS_MAX) files are listed. The
    /// dataservers keep their copies of these files.
    pub fn strangers(&self) -> &BTreeSet<InodeId> {
        &self.strangers
    }

    /// Makes a change. [`Event::Done`] follows when the change is in the log. `at_ms` is the time
    /// in milliseconds since 1970.
    ///
    /// # Errors
    /// The reason for which nothing is changed.
    pub fn call(
        &mut self,
        now: Timestamp,
        at_ms: u64,
        token: u64,
        caller: &Caller,
        call: &NamespaceCall,
    ) -> Result<(), FilesRefusal> {
        self.check_changes()?;
        self.check_writers(now, caller, call)?;
        self.at_ms = at_ms;
        let members = match call {
            NamespaceCall::Create { replication, writer, .. } => {
                self.choose_beside(now, usize::from(*replication), *writer)?
            }
            _ => Vec::new(),
        };
        let records = self.namespace.decide(call, caller, at_ms, &members)?;
        let mut effects = vec![Effect::Done(token)];
        match (call, records.last()) {
            (NamespaceCall::Create { .. }, _) if members.is_empty() => {
                return Err(FilesRefusal::TooFewServers(1, 0));
            }
            (NamespaceCall::Create { .. }, Some(NamespaceChange::Inode { id, .. })) => {
                effects.push(Effect::Publish(*id, FIRST_EPOCH));
            }
            (
                NamespaceCall::SetReplication { .. } | NamespaceCall::Replace { .. },
                Some(NamespaceChange::Inode { id, .. }),
            ) => {
                self.dirty.insert(*id);
            }
            _ => {}
        }
        // A call that changes nothing is done when all earlier changes are in the log.
        // A crash leaves all records of a call, or none of them.
        self.record(NamespaceChange::together(records), effects);
        Ok(())
    }

    /// The disks of a new file. The writer's disk is the first of them.
    fn choose_beside(
        &self,
        now: Timestamp,
        count: usize,
        writer: Option<DiskId>,
    ) -> Result<Vec<DiskId>, FilesRefusal> {
        if writer.is_some_and(|disk| !self.is_fit(now, disk) || self.namespace.is_leaving(disk)) {
            return Err(FilesRefusal::NotPrimary);
        }
        let mut all: Vec<DiskId> = writer.into_iter().collect();
        all.extend(self.choose(now, count.saturating_sub(all.len()), &all, &all));
        Ok(all)
    }

    /// Whether the nameserver takes changes.
    ///
    /// # Errors
    /// The reason for which no change is acknowledged now.
    pub fn check_changes(&self) -> Result<(), FilesRefusal> {
        self.check_log()?;
        match self.silent_keepers() {
            silent if silent.is_empty() => Ok(()),
            silent => Err(FilesRefusal::SilentKeepers(silent)),
        }
    }

    /// Whether the log takes records.
    pub(crate) fn check_log(&self) -> Result<(), FilesRefusal> {
        match self.journal.is_failing() {
            true => Err(FilesRefusal::DiskFull),
            false if self.is_old() => Err(FilesRefusal::OldLog),
            false => Ok(()),
        }
    }

    pub(crate) fn record(
        &mut self,
        record: NamespaceChange,
        effects: impl IntoIterator<Item = Effect>,
    ) {
        // A record has numbers, names and lists, which JSON always takes.
        let body = serde_json::to_vec(&record).unwrap_or_default();
        let mut effects: Vec<Effect> = effects.into_iter().collect();
        for (file, group) in self.namespace.apply(record) {
            self.works.remove(&file);
            self.dirty.remove(&file);
            self.leases.remove(&file);
            effects.push(Effect::Drop(file, group));
        }
        let count = self.namespace.changes();
        self.journal.add(&body, effects.into_iter().map(|effect| (count, effect)));
        self.keep(&body);
    }

    /// Sends a message to a dataserver. While a rebuild may still undo the present state, the
    /// message is dropped. The nameserver repeats every message.
    pub(crate) fn tell(&mut self, to: SocketAddr, control: FilesControl) {
        if self.log_replication.is_sure {
            let message = FilesMessage::Control(control);
            self.outbox.send(self.namespace.cluster, to, message);
        }
    }

    /// Sends a message to the dataserver of a disk. Nothing is sent before the first beat of that
    /// dataserver.
    pub(crate) fn tell_disk(&mut self, disk: DiskId, control: FilesControl) {
        if let Some(to) = self.servers.get(&disk).map(|server| server.place.address) {
            self.tell(to, control);
        }
    }

    fn control(&mut self, now: Timestamp, from: SocketAddr, control: FilesControl) {
        match control {
            FilesControl::Beat(beat) => self.beat(now, beat),
            FilesControl::Sealed { file, epoch, held, disk, length, committed } => {
                self.sealed(now, file, epoch, disk, held, (length, committed));
            }
            FilesControl::Holds { file, epoch, round, disk } => {
                self.holds(file, epoch, round, disk)
            }
            FilesControl::Trouble { file, epoch }
                if self.namespace.file(file).is_some_and(|f| f.group.epoch == epoch) =>
            {
                self.works.entry(file).or_default().is_troubled = true;
                self.dirty.insert(file);
            }
            FilesControl::Caught { file, epoch, joiner } => self.caught(file, epoch, joiner),
            FilesControl::Bad { file, epoch, disk } => self.bad(now, file, epoch, disk),
            FilesControl::Dropped { file, epoch, disk } => self.former_dropped(file, epoch, disk),
            FilesControl::Length { file, epoch, length, closes } => {
                self.length(from, file, epoch, length, closes);
            }
            FilesControl::Renew { file, epoch, generation }
                if self.namespace.file(file).is_some_and(|f| f.group.epoch == epoch) =>
            {
                self.lease_renewed(now, file, generation);
            }
            FilesControl::Kept { disk, generation, life, length } => {
                self.kept_by(now, disk, (generation, life), length);
            }
            _ => {}
        }
    }

    /// Takes the length that a primary tells. A writer that has ended also gives back the lease of
    /// the generation `closes`.
    fn length(
        &mut self,
        from: SocketAddr,
        id: InodeId,
        epoch: u64,
        length: u64,
        closes: Option<u64>,
    ) {
        let Some(file) = self.namespace.file(id).filter(|file| file.group.epoch == epoch) else {
            return;
        };
        let known = file.length;
        // A primary repeats its length. While changes are refused, a record for each repetition
        // would fill the memory.
        if self.check_changes().is_err() {
            return;
        }
        // The record of a known length may still be on its way to the disk. The answer then has to
        // wait for that record, behind a record that changes nothing.
        let (mut records, mut effects) = (Vec::new(), vec![Effect::Noted(id, length, from)]);
        if length > known {
            records.push(NamespaceChange::Length { id, length, at_ms: self.at_ms });
        }
        if let Some(closed) = self.closed_lease(id, closes) {
            records.push(closed);
            effects.push(Effect::Publish(id, epoch));
        }
        self.record(NamespaceChange::together(records), effects);
    }

    fn beat(&mut self, now: Timestamp, beat: DataserverBeat) {
        let DataserverBeat { disk, http, name, rack, is_ill, page, .. } = beat;
        let right = self.proof(disk, http);
        if beat.proof != right {
            // The name of the cluster goes with the proof, so it has to be on the disk here. The
            // other copies of the log may wait for this very dataserver.
            if self.log_replication.is_begun {
                let message = FilesMessage::Control(FilesControl::Proof { disk, proof: right });
                self.outbox.send(self.namespace.cluster, http, message);
            }
            return;
        }
        let place = DataserverPlace { disk, address: http, http };
        if name.len().max(rack.len()) > LABEL_BYTES_MAX {
            return;
        }
        let is_known = self.servers.contains_key(&disk);
        if self.namespace.is_gone(disk) || (!is_known && self.servers.len() >= SERVERS_MAX) {
            return;
        }
        let old = self.servers.get(&disk);
        let is_new = old.is_none_or(|old| old.place != place || old.rack != rack);
        let was_live = old.is_some() && self.is_live(now, disk);
        let was_ill = old.is_some_and(|old| old.is_ill);
        if is_new && !self.make_room_at(now, place) {
            return;
        }
        let owed = self.servers.remove(&disk).map(|server| server.owed).unwrap_or_default();
        let server = KnownDataserver {
            place,
            name,
            rack,
            heard: now,
            is_ill,
            used: beat.used,
            free: beat.free,
            checks_leases: beat.checks_leases,
            is_given_up: false,
            owed,
        };
        self.servers.insert(disk, server);
        if is_new || !was_live || was_ill != is_ill {
            self.look_at_files_of(disk, is_new);
        }
        for held in page {
            self.look_at_copy(now, place, held);
        }
        let Some(server) = self.servers.get(&disk) else { return };
        let owed: Vec<InodeId> = server.owed.keys().take(OWED_MAX).copied().collect();
        for file in owed {
            self.assign_to(disk, file);
        }
    }

    /// Gives up a silent disk, at whose address a beat names another disk. Returns false when the
    /// old disk was heard a moment ago.
    fn make_room_at(&mut self, now: Timestamp, place: DataserverPlace) -> bool {
        let is_same = |(other, server): &(&DiskId, &KnownDataserver)| {
            **other != place.disk && server.place.address == place.address
        };
        let present = self.servers.iter().filter(is_same);
        let is_heard = |(_, server): (&DiskId, &KnownDataserver)| {
            now < server.heard + self.config.dead_after / REPLACED_PARTS
        };
        if present.clone().any(is_heard) {
            return false;
        }
        let gone: Vec<DiskId> = present.map(|(disk, _)| *disk).collect();
        for disk in gone {
            self.servers.remove(&disk);
            self.disk_is_gone(disk);
        }
        true
    }

    /// The state of a disk has changed. A disk at a new address is sent the assignments of its
    /// files again, and so are the other members of these files. Files that know the disk as a
    /// former member are looked at too, because the copy on this disk may be dropped now.
    pub(crate) fn look_at_files_of(&mut self, disk: DiskId, is_new: bool) {
        let mut owed = Vec::new();
        let racks: BTreeSet<&String> = self.servers.values().map(|server| &server.rack).collect();
        let has_racks = racks.len() > 1;
        for (id, inode) in self.namespace.inodes() {
            let crate::namespace::InodeKind::File(file) = &inode.kind else { continue };
            let has_few = file.group.members.len() < usize::from(file.replication);
            let is_former = file.group.former.iter().any(|(former, _)| *former == disk);
            if has_few || is_former || (has_racks && self.is_crowded(&file.group)) {
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

    /// Notices silent disks, and looks at files that may not be in order.
    fn tick(&mut self, now: Timestamp) {
        let grace = self.started.map(|started| started + self.config.dead_after);
        if !self.is_started && grace.is_some_and(|grace| now >= grace) {
            // A dataserver that has sent no beat until now is dead.
            self.is_started = true;
            let inodes = self.namespace.inodes().keys();
            self.dirty.extend(inodes.filter(|id| self.namespace.file(**id).is_some()));
        }
        if now >= self.forget_at {
            self.forget_at = now + FORGET_AFTER / 4;
            self.forget_silent(now);
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
        self.end_old_leases(now);
        let after = self.looked.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let range = (after, std::ops::Bound::Unbounded);
        let files: Vec<InodeId> = self.dirty.range(range).take(LOOKS_MAX).copied().collect();
        self.looked = files.last().copied().filter(|_| files.len() == LOOKS_MAX);
        for file in files {
            if self.examine(now, file) {
                self.dirty.remove(&file);
            }
        }
        self.drive_balance(now);
        self.drive_keepers(now);
        self.compact();
    }

    /// Forgets dataservers that have long been silent and whose disks the log does not name, as
    /// after a start with another directory. Nobody waits for them.
    pub(crate) fn forget_silent(&mut self, now: Timestamp) {
        let is_silent = |server: &KnownDataserver| now >= server.heard + FORGET_AFTER;
        if !self.servers.values().any(is_silent) {
            return;
        }
        let mut named: BTreeSet<DiskId> = self.namespace.keepers().clone();
        for id in self.namespace.inodes().keys() {
            let Some(file) = self.namespace.file(*id) else { continue };
            named.extend(&file.group.members);
            named.extend(file.group.former.iter().map(|(disk, _)| *disk));
        }
        self.servers.retain(|disk, server| named.contains(disk) || !is_silent(server));
    }

    /// Replaces a long log by a checkpoint.
    fn compact(&mut self) {
        if !self.journal.is_long(self.config.log_bytes) {
            return;
        }
        let records = self.namespace.records();
        let bodies = records.iter().map(|record| serde_json::to_vec(record).unwrap_or_default());
        self.journal.replace(bodies, None);
    }

    pub(crate) fn follow(&mut self, effect: Effect) {
        match effect {
            Effect::Done(token) => self.events.push_back(Event::Done { token }),
            Effect::Publish(id, epoch) => {
                if self.namespace.file(id).is_some_and(|file| file.group.epoch == epoch) {
                    self.publish(id);
                }
            }
            Effect::Noted(file, length, to) => self.tell(to, FilesControl::Noted { file, length }),
            Effect::Begun => self.log_replication.is_sure = true,
            Effect::Drop(file, group) => {
                let former = group.former.iter().map(|(disk, _)| *disk);
                let disks: Vec<DiskId> = group.members.iter().copied().chain(former).collect();
                for disk in disks {
                    self.tell_disk(disk, FilesControl::Drop { file, epoch: u64::MAX, disk });
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
        let (cluster, message) = FilesMessage::decode(&arrival.datagram)?;
        // A new dataserver does not know the name of the cluster, and may only say that it lives.
        let is_beat = matches!(message, FilesMessage::Control(FilesControl::Beat(_)));
        if cluster != self.namespace.cluster && !(cluster == 0 && is_beat) {
            self.foreign += 1;
            return Ok(());
        }
        match message {
            FilesMessage::Control(control) if self.may_say(arrival.from, &control) => {
                self.control(now, arrival.from, control);
            }
            _ => self.foreign += 1,
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.start(now);
        if now >= self.tick_at {
            self.tick_at = now + self.config.tick;
            self.tick(now);
        }
        self.journal.handle_timeout(now);
    }

    fn handle_clock(&mut self, now: Timestamp, _: ClockReading) {
        self.start(now);
    }

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
        [Some(self.tick_at), self.journal.poll_timeout()].into_iter().flatten().min()
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
        match self.journal.handle_written(now, id, done) {
            Ok(effects) => self.written_here(effects),
            Err(error) => self.events.push_back(Event::Failed(error)),
        }
    }
}
