//! How a nameserver keeps the copies of a file: epochs and joiners.

use std::collections::BTreeMap;

use evenfall_core::Timestamp;

use crate::config::{JOINS_MAX, STRANGERS_MAX};
use crate::nameserver::{Effect, Event, Nameserver};
use crate::namespace::{CopyGroup, NamespaceChange};
use crate::placing::Move;
use crate::valid_length::ValidLength;
use crate::wire::{DataserverPlace, FileAssignment, FilesControl, Held};
use crate::{DiskId, InodeId};

/// Number of ticks for which a seal waits for joiners. A seal waits for a member as long as the
/// member lives.
const JOINERS_WAIT_TICKS: u32 = 8;

/// Ticks between two assignments of a file that is being copied. Assignments may overtake each
/// other. Without the repetition, a primary that received an older assignment of the same epoch
/// last would not know the joiner.
const REFRESH_TICKS: u32 = 16;

/// A dataserver that copies a file.
#[derive(Clone, Copy, Debug)]
pub struct Joiner {
    pub(crate) disk: DiskId,
    /// The bytes of the joiner's copy that are right.
    pub(crate) valid: ValidLength,
    /// The last epoch that the joiner has said to hold.
    pub(crate) held: u64,
    /// The primary says that the joiner has all acknowledged bytes.
    pub(crate) has_caught_up: bool,
}

/// The disks that have promised, each with its length and the committed length that it knows.
pub(crate) type Replies = BTreeMap<DiskId, (u64, u64)>;

/// The work on a file that is not in order.
#[derive(Debug, Default)]
pub struct FileWork {
    /// The epoch that shall begin, and the promises so far.
    pub(crate) seal: Option<(u64, Replies)>,
    /// When the nameserver first asked for these promises. While an heir is sought, this is the
    /// time of the first answer.
    pub(crate) seal_since: Timestamp,
    pub(crate) joiners: Vec<Joiner>,
    /// When the joiners were last told their assignment.
    told_at: Timestamp,
    /// A member has asked for a new epoch.
    pub(crate) is_troubled: bool,
    /// The new epoch is on its way to the log.
    is_writing: bool,
    /// A member whose copy is damaged.
    bad: Option<DiskId>,
    /// A copy that moves although its disk does not leave.
    pub(crate) moves: Option<Move>,
}

impl Nameserver {
    /// Takes the next step with a file that may not be in order. Returns whether the file is in
    /// order.
    pub(crate) fn examine(&mut self, now: Timestamp, id: InodeId) -> bool {
        let Some(file) = self.namespace.file(id) else { return true };
        let (group, wanted) = (file.group.clone(), usize::from(file.replication));
        let (members, is_orphan) = (group.members.len(), self.is_orphan(&group));
        let live = group.members.iter().filter(|disk| self.is_fit(now, **disk)).count();
        let work = self.works.entry(id).or_default();
        // A step taken now would be chosen for members that the change on its way replaces.
        if work.is_writing {
            return false;
        }
        // Members without their disks can promise nothing, so that a seal would wait for ever.
        if is_orphan {
            self.drive_heir(now, id, group);
            return false;
        }
        if work.seal.is_some() {
            self.drive_seal(now, id);
            return false;
        }
        let has_joined = work.joiners.iter().any(|joiner| joiner.has_caught_up);
        let is_wrong = work.is_troubled
            || work.bad.is_some()
            || has_joined
            || group.adopted.is_some()
            || (live > 0 && live < members)
            || members > wanted;
        if is_wrong {
            work.is_troubled = false;
            work.seal = Some((group.epoch + 1, BTreeMap::new()));
            work.seal_since = now;
            self.drive_seal(now, id);
            return false;
        }
        let moving = self.moving(id, &group);
        let staying = members - moving.len();
        if staying < wanted {
            self.find_joiner(now, id, &group, &moving, wanted - staying);
            return false;
        }
        if live < members || (self.is_crowded(&group) && self.part(now, id, &group)) {
            return false;
        }
        let Some(work) = self.works.get_mut(&id) else { return false };
        let is_empty = work.joiners.is_empty();
        work.joiners.clear();
        if !is_empty {
            self.publish(id);
        }
        self.works.remove(&id);
        self.drop_former(now, id, &group) && is_empty
    }

    /// Asks the former members that live to drop their copies, because the file has all its copies.
    /// The log keeps a former member until its disk has no copy any more: all members may lose
    /// their disks before that. Returns whether no former member lives.
    fn drop_former(&mut self, now: Timestamp, id: InodeId, group: &CopyGroup) -> bool {
        let former = group.former.iter().map(|(disk, _)| *disk);
        let live: Vec<DiskId> = former.filter(|disk| self.is_live(now, *disk)).collect();
        // A crash may still undo changes that are not in the log.
        if self.is_safe() {
            for disk in &live {
                self.tell_disk(
                    *disk,
                    FilesControl::Drop { file: id, epoch: group.epoch, disk: *disk },
                );
            }
        }
        live.is_empty()
    }

    /// Takes the answer of a disk that has no copy of a file any more.
    pub(crate) fn former_dropped(&mut self, id: InodeId, epoch: u64, disk: DiskId) {
        let Some(group) = self.namespace.file(id).map(|file| &file.group) else { return };
        // Only the answers to a seal end the wait of a file whose members are all gone.
        if group.epoch != epoch || self.is_orphan(group) {
            return;
        }
        let mut group = group.clone();
        if group.former.extract_if(.., |(former, _)| *former == disk).count() > 0 {
            self.record(NamespaceChange::Group { id, group }, None);
        }
    }

    /// Number of a file's joiners that count towards [`JOINS_MAX`]. Without a live member the
    /// number is zero: joiners that wait for a dead member must not take the places of joiners that
    /// can go on.
    fn joins(&self, now: Timestamp, id: InodeId, work: &FileWork) -> usize {
        let members = self.namespace.file(id).map_or(&[][..], |file| &file.group.members);
        let is_served = members.iter().any(|member| self.is_live(now, *member));
        if is_served { work.joiners.len() } else { 0 }
    }

    /// Whether a disk lives and takes bytes.
    pub(crate) fn is_fit(&self, now: Timestamp, disk: DiskId) -> bool {
        self.is_live(now, disk) && self.servers.get(&disk).is_none_or(|server| !server.is_ill)
    }

    /// Chooses a joiner for a file that has too few copies. Copies that move away do not count.
    fn find_joiner(
        &mut self,
        now: Timestamp,
        id: InodeId,
        group: &CopyGroup,
        moving: &[DiskId],
        missing: usize,
    ) {
        let joins: usize = self.works.iter().map(|(id, work)| self.joins(now, *id, work)).sum();
        let fit: Vec<Joiner> = match self.works.get(&id) {
            Some(work) => {
                work.joiners.iter().filter(|j| self.is_fit(now, j.disk)).copied().collect()
            }
            None => return,
        };
        let mut beside: Vec<DiskId> = fit.iter().map(|joiner| joiner.disk).collect();
        let mut without = beside.clone();
        let count = missing.saturating_sub(without.len()).min(JOINS_MAX.saturating_sub(joins));
        beside.extend(group.members.iter().filter(|disk| !moving.contains(disk)));
        without.extend(&group.members);
        let mut chosen = self.choose(now, count, &beside, &without);
        let moves = self.works.get(&id).and_then(|work| work.moves);
        if let Some(Move { to, .. }) = moves
            && chosen.len() == 1
            && !without.contains(&to)
            && self.servers.contains_key(&to)
            && self.is_fit(now, to)
        {
            chosen = vec![to];
        }
        let Some(work) = self.works.get_mut(&id) else { return };
        if count > 0 && chosen.is_empty() && fit.is_empty() {
            // No disk takes the copy, so the copy does not move.
            work.moves = None;
        }
        let is_stale = !fit.is_empty() && now >= work.told_at + self.config.tick * REFRESH_TICKS;
        let is_told = !is_stale && chosen.is_empty() && fit.len() == work.joiners.len();
        work.joiners = fit;
        for disk in chosen {
            let former = group.former.iter().find(|(former, _)| *former == disk);
            let valid = former.map_or(ValidLength::up_to(0), |(_, valid)| *valid);
            work.joiners.push(Joiner { disk, valid, held: 0, has_caught_up: false });
        }
        if !is_told {
            work.told_at = now;
            self.publish(id);
        }
    }

    /// Asks for the missing promises, and ends the seal when all have come.
    fn drive_seal(&mut self, now: Timestamp, id: InodeId) {
        let Some(group) = self.namespace.file(id).map(|file| file.group.clone()) else { return };
        let Some(work) = self.works.get(&id) else { return };
        let Some((epoch, replies)) = &work.seal else { return };
        let is_good = |disk: &DiskId| work.bad != Some(*disk) && self.is_live(now, *disk);
        let live: Vec<DiskId> = group.members.iter().copied().filter(is_good).collect();
        let fit: Vec<DiskId> = live.iter().copied().filter(|d| self.is_fit(now, *d)).collect();
        // Members whose disks are full are left out only while another member takes bytes.
        let members = if fit.is_empty() { live } else { fit };
        let joiners = work.joiners.iter().filter(|j| j.has_caught_up && self.is_fit(now, j.disk));
        let asked: Vec<DiskId> =
            members.iter().copied().chain(joiners.map(|joiner| joiner.disk)).collect();
        let silent: Vec<DiskId> =
            asked.iter().copied().filter(|disk| !replies.contains_key(disk)).collect();
        let epoch = *epoch;
        if members.is_empty() {
            return;
        }
        let is_late = now >= work.seal_since + self.config.tick * JOINERS_WAIT_TICKS;
        if silent.is_empty() || (is_late && silent.iter().all(|disk| !members.contains(disk))) {
            let replies = replies.clone();
            return self.end_seal(id, group, epoch, &members, &replies);
        }
        self.ask_for_promises(id, epoch, silent);
    }

    /// Asks disks to promise an epoch, and to tell the lengths of their copies.
    pub(crate) fn ask_for_promises(&mut self, id: InodeId, epoch: u64, disks: Vec<DiskId>) {
        for disk in disks {
            self.tell_disk(disk, FilesControl::Seal { file: id, epoch });
        }
    }

    /// Writes the new epoch down, because every disk that was asked has promised.
    fn end_seal(
        &mut self,
        id: InodeId,
        group: CopyGroup,
        epoch: u64,
        asked: &[DiskId],
        replies: &Replies,
    ) {
        let Some(file) = self.namespace.file(id) else { return };
        let (wanted, noted) = (usize::from(file.replication), file.length);
        let (moving, primary) = (self.moving(id, &group), group.members.first().copied());
        let length = |disk: &DiskId| replies[disk].0;
        // The greatest length that was acknowledged, as far as the log and the asked disks know. A
        // shorter copy is damaged.
        let floor = asked.iter().map(|disk| replies[disk].1).fold(noted, u64::max);
        let most = asked.iter().map(length).max().unwrap_or(0);
        let is_whole = |disk: &DiskId| length(disk) >= floor.min(most);
        let mut members: Vec<DiskId> = asked.iter().copied().filter(is_whole).collect();
        let common = members.iter().map(length).min().unwrap_or(0);
        let lost = (common < floor).then_some((common, floor));
        let Some(work) = self.works.get_mut(&id) else { return };
        let has_all = |joiner: &&Joiner| {
            joiner.has_caught_up && replies.get(&joiner.disk).is_some_and(|r| r.0 >= common)
        };
        let joined: Vec<DiskId> = work.joiners.iter().filter(has_all).map(|j| j.disk).collect();
        members.extend(&joined);
        // Members whose copies move make room for joiners.
        members.sort_by_key(|disk| moving.contains(disk));
        members.truncate(wanted.max(1));
        work.moves = work.moves.filter(|moves| members.contains(&moves.from));
        let mut former = group.former.clone();
        former.retain(|(disk, _)| !members.contains(disk) && !self.namespace.is_gone(*disk));
        former.iter_mut().for_each(|(_, valid)| *valid = valid.at_most(common));
        let left = group.members.iter().filter(|disk| !members.contains(disk));
        let bad = work.bad.take();
        let is_kept = |disk: &&DiskId| bad != Some(**disk) && !self.namespace.is_gone(**disk);
        for disk in left.filter(is_kept) {
            let had = match replies.get(disk) {
                Some(reply) => ValidLength::up_to(reply.0.min(common)),
                None => ValidLength::if_holds(group.epoch, common, group.start),
            };
            former.retain(|(known, _)| known != disk);
            former.push((*disk, had));
        }
        work.joiners.retain(|joiner| !members.contains(&joiner.disk));
        for joiner in &mut work.joiners {
            let is_of_last = joiner.held == group.epoch;
            let valid = if is_of_last { ValidLength::up_to(common) } else { joiner.valid };
            joiner.valid = valid.at_most(common);
            joiner.has_caught_up = false;
        }
        (work.seal, work.is_writing) = (None, true);
        let lost = lost.or(group.lost);
        if let Some(range) = lost.filter(|lost| group.lost != Some(*lost)) {
            self.events.push_back(Event::Lost { file: id, range });
        }
        let has_moved = primary != members.first().copied();
        let group = CopyGroup { epoch, start: common, members, former, adopted: None, lost };
        let record = self.with_lease_end(id, has_moved, NamespaceChange::Group { id, group });
        self.record(record, [Effect::Publish(id, epoch)]);
        if common < noted {
            let at_ms = self.at_ms;
            self.record(NamespaceChange::Length { id, length: common, at_ms }, None);
        }
    }

    /// Sends the assignment of a file to all its members and joiners.
    pub(crate) fn publish(&mut self, id: InodeId) {
        let Some(file) = self.namespace.file(id) else { return };
        let mut disks = file.group.members.clone();
        if let Some(work) = self.works.get_mut(&id) {
            work.is_writing = false;
            disks.extend(work.joiners.iter().map(|joiner| joiner.disk));
        }
        self.dirty.insert(id);
        self.rounds += 1;
        for disk in disks {
            if let Some(server) = self.servers.get_mut(&disk) {
                server.owed.insert(id, self.rounds);
                self.assign_to(disk, id);
            }
        }
    }

    /// Sends a disk its assignment of a file. A deleted file has no assignment.
    pub(crate) fn assign_to(&mut self, disk: DiskId, id: InodeId) {
        let Some(server) = self.servers.get(&disk) else { return };
        let to = server.place.address;
        let round = server.owed.get(&id).copied().unwrap_or(0);
        let is_writing = self.works.get(&id).is_some_and(|work| work.is_writing);
        let Some(file) = self.namespace.file(id).filter(|_| !is_writing) else {
            if !is_writing && let Some(server) = self.servers.get_mut(&disk) {
                server.owed.remove(&id);
            }
            return;
        };
        let place = |disk: &DiskId| self.servers.get(disk).map(|server| server.place);
        // A member that was not heard since this nameserver started has no address yet.
        let members: Vec<DataserverPlace> = file.group.members.iter().filter_map(place).collect();
        if members.len() < file.group.members.len() {
            return;
        }
        let joiners = self.works.get(&id).map_or(&[][..], |work| &work.joiners);
        let joiners = joiners.iter().filter_map(|j| Some((place(&j.disk)?, j.valid))).collect();
        let (epoch, start, lease) = (file.group.epoch, file.group.start, file.lease.clone());
        let assignment = FileAssignment { file: id, epoch, round, start, members, joiners, lease };
        self.tell(to, FilesControl::Assign(assignment));
    }

    pub(crate) fn holds(&mut self, id: InodeId, epoch: u64, round: u64, disk: DiskId) {
        if self.namespace.file(id).is_none_or(|file| file.group.epoch != epoch) {
            return;
        }
        let joiner = self.works.get_mut(&id);
        let joiner = joiner.and_then(|work| work.joiners.iter_mut().find(|j| j.disk == disk));
        if let Some(joiner) = joiner {
            joiner.held = epoch;
        }
        if let Some(server) = self.servers.get_mut(&disk)
            && server.owed.get(&id) == Some(&round)
        {
            server.owed.remove(&id);
        }
    }

    pub(crate) fn caught(&mut self, id: InodeId, epoch: u64, disk: DiskId) {
        if self.namespace.file(id).is_none_or(|file| file.group.epoch != epoch) {
            return;
        }
        let joiner = self.works.get_mut(&id);
        let joiner = joiner.and_then(|work| work.joiners.iter_mut().find(|j| j.disk == disk));
        if let Some(joiner) = joiner.filter(|joiner| joiner.held == epoch) {
            joiner.has_caught_up = true;
            self.dirty.insert(id);
        }
    }

    pub(crate) fn sealed(
        &mut self,
        now: Timestamp,
        id: InodeId,
        epoch: u64,
        disk: DiskId,
        held: u64,
        (length, committed): (u64, u64),
    ) {
        let Some(group) = self.namespace.file(id).map(|file| file.group.clone()) else { return };
        if group.epoch + 1 != epoch {
            return;
        }
        let is_orphan = self.is_orphan(&group);
        let former = group.former.iter().find(|(former, _)| is_orphan && *former == disk);
        // At the address of a member that has lost its disk, another disk answers. If that answer
        // led to further requests, two such members would double the packets each round trip.
        let work = self.works.get(&id);
        let is_joiner = work.is_some_and(|w| w.joiners.iter().any(|j| j.disk == disk));
        let is_asked = match is_orphan {
            true => former.is_some(),
            false => group.members.contains(&disk) || is_joiner,
        };
        if !is_asked {
            return;
        }
        let valid = match former.map(|(_, valid)| *valid).or(group.adopted) {
            // Bytes that the dataserver of the copy knows to be committed are always right.
            Some(valid) => valid.of(held).max(committed),
            None if held == group.epoch => length,
            // The copy has not cut its bytes of an earlier epoch yet.
            None => group.start,
        };
        let work = self.works.entry(id).or_default();
        if work.is_writing {
            return;
        }
        // When there is no seal, the nameserver asked for this promise before its last restart.
        if work.seal.is_none() {
            work.seal_since = now;
        }
        let (_, replies) = work.seal.get_or_insert_with(|| (epoch, BTreeMap::new()));
        replies.insert(disk, (length.min(valid), committed));
        self.dirty.insert(id);
        match is_orphan {
            true => self.drive_heir(now, id, group),
            false => self.drive_seal(now, id),
        }
    }

    /// A member's copy is damaged. If another member lives, the damaged copy is left out and made
    /// anew.
    pub(crate) fn bad(&mut self, now: Timestamp, id: InodeId, epoch: u64, disk: DiskId) {
        let Some(group) = self.namespace.file(id).map(|file| file.group.clone()) else { return };
        let others = group.members.iter().filter(|other| **other != disk);
        let has_other = others.clone().any(|other| self.is_live(now, *other));
        if group.epoch != epoch || !group.members.contains(&disk) || !has_other {
            return;
        }
        self.works.entry(id).or_default().bad = Some(disk);
        self.dirty.insert(id);
    }

    /// A dataserver says that it has a copy.
    pub(crate) fn look_at_copy(&mut self, now: Timestamp, place: DataserverPlace, held: Held) {
        let (id, disk) = (held.file, place.disk);
        // A crash may still undo changes that are not in the log, so no copy is dropped because of
        // such a change.
        let is_written = self.is_safe();
        let Some(file) = self.namespace.file(id) else {
            let has_given = self.namespace.has_given(id);
            if !has_given && self.strangers.len() < STRANGERS_MAX {
                self.strangers.insert(id);
            }
            if !has_given || !is_written {
                return;
            }
            let epoch = u64::MAX;
            return self.tell(place.address, FilesControl::Drop { file: id, epoch, disk });
        };
        let group = &file.group;
        let work = self.works.get(&id);
        let is_joiner = work.is_some_and(|w| w.joiners.iter().any(|j| j.disk == disk));
        if group.members.contains(&disk) || is_joiner {
            if held.asks || held.epoch < group.epoch {
                self.assign_to(disk, id);
            }
            return;
        }
        let is_former = group.former.iter().any(|(former, _)| *former == disk);
        if is_former {
            self.dirty.insert(id);
        }
        let is_wanted = group.members.iter().any(|member| !self.is_live(now, *member));
        if is_written && !is_former && !is_wanted && group.lost.is_none() {
            let epoch = group.epoch;
            self.tell(place.address, FilesControl::Drop { file: id, epoch, disk });
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::Bytes;
    use evenfall_core::{Arrival, Machine as _, StampedBy, Transmit};

    use super::*;
    use crate::config::{BLOCK_BYTES, NameConfig};
    use crate::namespace::{Caller, NamespaceCall};
    use crate::wire::{DataserverBeat, FilesMessage};

    pub(crate) fn hand_in(names: &mut Nameserver, n: u16, page: Vec<Held>) {
        hand_in_at(names, Timestamp::ZERO, n, page);
    }

    pub(crate) fn hand_in_at(names: &mut Nameserver, now: Timestamp, n: u16, page: Vec<Held>) {
        hand_in_with(names, now, (n, u64::from(n)), page);
    }

    /// A beat of dataserver `n`, which has this disk.
    pub(crate) fn hand_in_with(
        names: &mut Nameserver,
        now: Timestamp,
        (n, disk): (u16, u64),
        page: Vec<Held>,
    ) {
        let http = ([127, 0, 0, 1], 7_000 + n).into();
        let disk = DiskId(disk);
        let proof = names.proof(disk, http);
        let beat = DataserverBeat { page, proof, ..DataserverBeat::new(disk, http) };
        say(names, now, n, FilesControl::Beat(beat));
    }

    /// What dataserver `n` says reaches the nameserver.
    pub(crate) fn say(names: &mut Nameserver, now: Timestamp, n: u16, control: FilesControl) {
        let (head, body) = FilesMessage::Control(control).encode(names.namespace.cluster);
        let datagram = Bytes::from([&head[..], &body].concat());
        let from = ([127, 0, 0, 1], 7_000 + n).into();
        let arrival = Arrival::new(from, datagram, now, StampedBy::User);
        names.handle(now, arrival).expect("our own datagram");
    }

    pub(crate) fn create(names: &mut Nameserver, path: &str, replication: u16) -> InodeId {
        let (path, mode, overwrite) = (path.to_owned(), 0o644, false);
        let call = NamespaceCall::Create {
            path: path.clone(),
            mode,
            replication,
            overwrite,
            writer: None,
            block_bytes: BLOCK_BYTES,
        };
        names.call(Timestamp::ZERO, 0, 1, &Caller::superuser("ann"), &call).expect("servers live");
        names.namespace().find(&path).expect("it was made").0
    }

    /// Answers all writes, and returns the bytes that the log then has.
    pub(crate) fn write_all(names: &mut Nameserver, log: &mut Vec<u8>) {
        use evenfall_core::durable::{Change, Durable as _};
        while let Some(write) = names.poll_write() {
            match write.change {
                Change::Append(bytes) => log.extend_from_slice(&bytes),
                Change::Truncate(len) => log.truncate(len as usize),
                Change::Replace(bytes) => *log = bytes.to_vec(),
            }
            names.handle_written(Timestamp::ZERO, write.id, Ok(()));
        }
    }

    /// The messages in these datagrams.
    fn messages(transmits: impl Iterator<Item = Transmit>) -> Vec<FilesMessage> {
        let decoded = transmits.map(|transmit| {
            let datagram = [transmit.head.as_slice(), &transmit.body].concat().into();
            FilesMessage::decode(&datagram).expect("our own datagram").1
        });
        decoded.collect()
    }

    /// The messages that a nameserver sends now.
    pub(crate) fn sent(names: &mut Nameserver) -> Vec<FilesMessage> {
        messages(std::iter::from_fn(|| names.poll_transmit(Timestamp::ZERO)))
    }

    /// The copies that a nameserver asks to be dropped, each with its disk.
    fn drops(names: &mut Nameserver) -> Vec<(InodeId, DiskId)> {
        let drop = |message| match message {
            FilesMessage::Control(FilesControl::Drop { file, disk, .. }) => Some((file, disk)),
            _ => None,
        };
        sent(names).into_iter().filter_map(drop).collect()
    }

    /// The disks that a nameserver asks to drop a copy.
    fn dropped_by(names: &mut Nameserver) -> Vec<u64> {
        drops(names).into_iter().map(|(_, disk)| disk.0).collect()
    }

    /// Answers all writes of a dataserver.
    fn write_data(data: &mut crate::Dataserver) {
        use evenfall_core::durable::Durable as _;
        while let Some(write) = data.poll_write() {
            data.handle_written(Timestamp::ZERO, write.id, Ok(()));
        }
    }

    #[test]
    fn a_nameserver_with_an_old_log_drops_no_newer_file_and_gives_no_number_twice() {
        let config = NameConfig::default();
        let mut log = Vec::new();
        let mut names = Nameserver::new(config, 1, &Bytes::new()).expect("an empty log");
        hand_in(&mut names, 1, Vec::new());
        let deleted = create(&mut names, "/deleted", 1);
        let kept = create(&mut names, "/kept", 1);
        let call = NamespaceCall::Delete { path: "/deleted".into(), recursive: false };
        names.call(Timestamp::ZERO, 0, 2, &Caller::superuser("ann"), &call).expect("it is there");
        write_all(&mut names, &mut log);
        let old = Bytes::from(log.clone());
        let newer = create(&mut names, "/newer", 1);
        write_all(&mut names, &mut log);

        for (log, dropped) in [(Bytes::from(log), vec![deleted]), (old, vec![deleted])] {
            let is_old = !log.windows(5).any(|bytes| bytes == b"newer");
            let mut names = Nameserver::new(config, 2, &log).expect("our own log");
            write_all(&mut names, &mut Vec::new());
            hand_in(&mut names, 1, Vec::new());
            let another = create(&mut names, "/another", 1);
            assert!(![deleted, kept, newer].contains(&another));
            write_all(&mut names, &mut Vec::new());
            drops(&mut names);
            let held = |file| Held { file, epoch: 1, asks: false };
            hand_in(&mut names, 1, [deleted, kept, newer].map(held).to_vec());
            let found: Vec<InodeId> = drops(&mut names).into_iter().map(|(file, _)| file).collect();
            assert_eq!(found, dropped);
            assert_eq!(names.strangers().contains(&newer), is_old);
        }
    }

    /// A file in epoch 2, which began at byte 100, on the disks 1 and 2.
    fn file_in_its_second_epoch(names: &mut Nameserver) -> InodeId {
        (1..=2).for_each(|n| hand_in(names, n, Vec::new()));
        let id = create(names, "/a", 2);
        write_all(names, &mut Vec::new());
        let group = names.namespace().file(id).expect("a file").group.clone();
        let (members, former) = (vec![DiskId(1), DiskId(2)], Vec::new());
        let group = CopyGroup { epoch: 2, start: 100, members, former, ..group };
        names.record(NamespaceChange::Group { id, group }, None);
        write_all(names, &mut Vec::new());
        id
    }

    #[test]
    fn a_copy_that_never_came_to_an_epoch_counts_up_to_the_beginning_of_the_epoch() {
        // Disk 2 has 480 bytes of the first epoch, which were not committed, and answers a seal.
        let mut names = Nameserver::new(NameConfig::default(), 1, &Bytes::new()).expect("no log");
        let id = file_in_its_second_epoch(&mut names);
        let now = Timestamp::ZERO;
        names.works.entry(id).or_default().is_troubled = true;
        names.examine(now, id);
        names.sealed(now, id, 3, DiskId(1), 2, (624, 100));
        names.sealed(now, id, 3, DiskId(2), 1, (480, 0));
        let group = &names.namespace().file(id).expect("a file").group;
        assert_eq!((group.epoch, group.start), (3, 100));

        // Disk 2 dies before it answers, and the disk itself knows whether it came to the epoch.
        let mut names = Nameserver::new(NameConfig::default(), 1, &Bytes::new()).expect("no log");
        let id = file_in_its_second_epoch(&mut names);
        let now = Timestamp::ZERO + names.config.dead_after;
        hand_in_at(&mut names, now, 1, Vec::new());
        names.examine(now, id);
        names.sealed(now, id, 3, DiskId(1), 2, (624, 624));
        let group = &names.namespace().file(id).expect("a file").group;
        assert_eq!((group.members.as_slice(), group.epoch), (&[DiskId(1)][..], 3));
        let [(DiskId(2), valid)] = group.former[..] else { panic!("{group:?}") };
        assert_eq!([1, 2, 3].map(|held| valid.of(held)), [100, 624, 624]);
    }

    #[test]
    fn an_answer_of_a_disk_that_was_not_asked_leads_to_no_further_request() {
        let mut names = Nameserver::new(NameConfig::default(), 1, &Bytes::new()).expect("no log");
        let id = file_in_its_second_epoch(&mut names);
        names.works.entry(id).or_default().is_troubled = true;
        names.examine(Timestamp::ZERO, id);
        assert!(!sent(&mut names).is_empty(), "both members are asked");
        names.sealed(Timestamp::ZERO, id, 3, DiskId(9), 0, (0, 0));
        assert_eq!(sent(&mut names), []);
    }

    #[test]
    fn a_whole_file_remembers_a_former_member_until_its_disk_has_no_copy() {
        let config = NameConfig::default();
        let mut names = Nameserver::new(config, 1, &Bytes::new()).expect("no log");
        (1..=4).for_each(|n| hand_in(&mut names, n, Vec::new()));
        let id = create(&mut names, "/a", 2);
        let group = names.namespace().file(id).expect("a file").group.clone();
        let former = [3, 4].map(|disk| (DiskId(disk), ValidLength::up_to(0))).to_vec();
        names.record(
            NamespaceChange::Group { id, group: CopyGroup { former, ..group.clone() } },
            None,
        );
        let left = |names: &Nameserver| {
            let former = &names.namespace().file(id).expect("a file").group.former;
            former.iter().map(|(disk, _)| disk.0).collect::<Vec<u64>>()
        };
        // Disk 4 is not heard for a while, and the others are.
        let now = Timestamp::ZERO + config.dead_after;
        let members = group.members.iter().map(|disk| disk.0 as u16);
        members.chain([3]).for_each(|n| hand_in_at(&mut names, now, n, Vec::new()));
        write_all(&mut names, &mut Vec::new());
        assert!(dropped_by(&mut names).is_empty());
        assert!(!names.examine(now, id), "disk 3 has not answered");
        assert_eq!(dropped_by(&mut names), [3]);
        names.former_dropped(id, group.epoch - 1, DiskId(3));
        assert_eq!(left(&names), [3, 4], "an answer to an earlier epoch");
        names.former_dropped(id, group.epoch, DiskId(3));
        assert_eq!(left(&names), [4]);
        write_all(&mut names, &mut Vec::new());
        assert!(names.examine(now, id), "disk 4 is silent and is not waited for");
        names.dirty.clear();
        assert_eq!((left(&names), dropped_by(&mut names)), (vec![4], vec![]));
        // Disk 4 is heard, and does not name its copy yet.
        hand_in_at(&mut names, now, 4, Vec::new());
        assert!(names.dirty.contains(&id), "the file is looked at again");
        names.examine(now, id);
        assert_eq!((left(&names), dropped_by(&mut names)), (vec![4], vec![4]));
        names.former_dropped(id, group.epoch, DiskId(4));
        assert!(left(&names).is_empty());
    }

    #[test]
    fn a_copy_that_has_promised_an_epoch_is_not_dropped_for_an_earlier_one() {
        let address = |n| ([127, 0, 0, 1], n).into();
        let config = crate::DataConfig::default();
        let mut data =
            crate::Dataserver::new(config, address(1), address(2), 1, &Bytes::new(), Vec::new())
                .expect("no log");
        let (file, disk) = (InodeId(2), data.disk());
        let mut tell = |control| {
            let (head, body) = FilesMessage::Control(control).encode(7);
            let datagram = Bytes::from([&head[..], &body].concat());
            let arrival = Arrival::new(address(1), datagram, Timestamp::ZERO, StampedBy::User);
            data.handle(Timestamp::ZERO, arrival).expect("our own datagram");
            write_data(&mut data);
            let answers = messages(std::iter::from_fn(|| data.poll_transmit(Timestamp::ZERO)));
            (data.files(None, 1).len(), answers)
        };
        // While a record is on its way to the disk, the disk gives no answer.
        assert_eq!(tell(FilesControl::Drop { file, epoch: 5, disk }), (0, vec![]));
        // A disk without a copy answers, and a file that seeks an heir does not wait for it.
        let answer = FilesControl::Dropped { file, epoch: 5, disk };
        assert_eq!(
            tell(FilesControl::Drop { file, epoch: 5, disk }),
            (0, vec![FilesMessage::Control(answer)])
        );
        let (epoch, held, length, committed) = (6, 0, 0, 0);
        let answer = FilesControl::Sealed { file, epoch, held, disk, length, committed };
        assert_eq!(
            tell(FilesControl::Seal { file, epoch }),
            (1, vec![FilesMessage::Control(answer)])
        );
        assert_eq!(tell(FilesControl::Drop { file, epoch: 5, disk }), (1, vec![]));
        let answer = FilesControl::Dropped { file, epoch: 6, disk };
        assert_eq!(
            tell(FilesControl::Drop { file, epoch: 6, disk }),
            (0, vec![FilesMessage::Control(answer)])
        );
    }

    #[test]
    fn joiners_of_files_without_a_live_member_keep_no_place_from_others() {
        let config = NameConfig::default();
        let mut names = Nameserver::new(config, 1, &Bytes::new()).expect("no log");
        (1..=3).for_each(|n| hand_in(&mut names, n, Vec::new()));
        let on = |names: &mut Nameserver, path: &str, disk: u64| {
            let id = create(names, path, 2);
            let group = names.namespace().file(id).expect("a file").group.clone();
            let group = CopyGroup { members: vec![DiskId(disk)], ..group };
            names.record(NamespaceChange::Group { id, group }, None);
            id
        };
        let stuck: Vec<InodeId> =
            (0..JOINS_MAX).map(|n| on(&mut names, &format!("/stuck-{n}"), 1)).collect();
        let other = on(&mut names, "/other", 2);
        stuck.iter().for_each(|id| assert!(!names.examine(Timestamp::ZERO, *id)));
        names.examine(Timestamp::ZERO, other);
        assert!(names.works[&other].joiners.is_empty(), "all places are taken");
        let now = Timestamp::ZERO + config.dead_after;
        (2..=3).for_each(|n| hand_in_at(&mut names, now, n, Vec::new()));
        names.examine(now, other);
        assert_eq!(names.works[&other].joiners[0].disk, DiskId(3));
    }
}
