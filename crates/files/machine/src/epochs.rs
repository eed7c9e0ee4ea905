//! The epochs of a copy: how its dataserver begins and ends them.
//!
//! [`Seal`](FilesControl::Seal) ends an epoch. The dataserver writes down the promise that the copy
//! takes no more appends of the epoch, and answers with the length of the copy.
//! [`Assign`](FilesControl::Assign) begins the next epoch. The copy is cut to the common length,
//! the epoch is written, and the first member is the primary. A primary that has restarted asks for
//! a new epoch, because followers may have appends of its earlier life that its own disk has lost.

use evenfall_core::Timestamp;

use crate::copy::FileCopy;
use crate::dataserver::{Dataserver, Effect, Event, Record};
use crate::primary::{Follower, PrimaryState};
use crate::wire::{FileAssignment, FilesControl};
use crate::{FilesRefusal, InodeId};

impl Dataserver {
    pub(crate) fn seal(&mut self, file: InodeId, epoch: u64) {
        // A member that does not know the file yet has none of its bytes.
        let life = self.next_life();
        let copy = self.copies.entry(file).or_insert_with(|| FileCopy::new(file, life));
        if epoch <= copy.epoch || epoch < copy.promised || copy.switch.is_some() {
            return;
        }
        if epoch > copy.promised {
            (copy.promised, copy.is_promise_written) = (epoch, false);
            self.remember(&Record::Promise { file, epoch }, Some(Effect::Promised(file, epoch)));
        }
        self.answer_seal(file);
    }

    pub(crate) fn promised(&mut self, file: InodeId, epoch: u64) {
        let copy = self.copies.get_mut(&file).filter(|copy| copy.promised == epoch);
        if let Some(copy) = copy {
            copy.is_promise_written = true;
            self.busy.insert(file);
            self.answer_seal(file);
        }
    }

    /// Answers a seal if the promise is on the disk and no write under way can change the length.
    pub(crate) fn answer_seal(&mut self, file: InodeId) {
        let Some(copy) = self.copies.get(&file) else { return };
        let is_still = copy.queued == copy.length && copy.cuts == 0 && !copy.is_broken;
        if copy.promised > copy.epoch && copy.is_promise_written && is_still {
            let (epoch, held, disk) = (copy.promised, copy.epoch, self.disk);
            let (length, committed) = (copy.length, copy.committed());
            self.tell(FilesControl::Sealed { file, epoch, held, disk, length, committed });
        }
    }

    pub(crate) fn assign(&mut self, assignment: FileAssignment) {
        let (file, epoch, disk) = (assignment.file, assignment.epoch, self.disk);
        let is_member = assignment.members.iter().any(|place| place.disk == disk);
        let valid = assignment.joiners.iter().find(|(place, _)| place.disk == disk);
        if !is_member && valid.is_none() {
            return;
        }
        let life = self.next_life();
        let copy = self.copies.entry(file).or_insert_with(|| FileCopy::new(file, life));
        let limit = match valid.filter(|_| !is_member) {
            Some((_, valid)) => valid.of(copy.epoch),
            None => assignment.start,
        };
        if epoch < copy.promised || copy.switch.is_some() {
            return;
        }
        if epoch == copy.epoch {
            return self.update(assignment);
        }
        // Writes of the copy are still unanswered. The nameserver repeats the assignment later.
        if copy.queued != copy.length || copy.cuts > 0 || copy.is_broken {
            return;
        }
        let limit = if is_member { limit } else { copy.whole_chunks(limit) };
        let changes = copy.cut(limit, life);
        let Some(changes) = changes.filter(|_| !is_member || copy.length >= limit) else {
            // The copy never comes to this epoch.
            return self.tell(FilesControl::Bad { file, epoch, disk });
        };
        copy.switch = Some(assignment);
        copy.leader = None;
        if let Some(primary) = copy.primary.take() {
            self.windows_bytes -= primary.window_bytes;
        }
        self.change(file, changes);
        self.write_switch(file);
    }

    /// Writes the new epoch of a copy to the log when all cuts of the copy are done.
    pub(crate) fn write_switch(&mut self, file: InodeId) {
        let Some(copy) = self.copies.get(&file).filter(|copy| copy.cuts == 0) else { return };
        let Some(FileAssignment { epoch, start, members, .. }) = copy.switch.as_ref() else {
            return;
        };
        let (epoch, start) = (*epoch, *start);
        let is_member = members.iter().any(|place| place.disk == self.disk);
        let record = Record::Copy { file, epoch, start, is_member };
        self.remember(&record, Some(Effect::Switched(file, epoch)));
    }

    /// Begins the new epoch of a copy, which is on the disk now.
    pub(crate) fn switched(&mut self, file: InodeId, epoch: u64) {
        let disk = self.disk;
        let Some(copy) = self.copies.get_mut(&file) else { return };
        let Some(assignment) = copy.switch.take_if(|switch| switch.epoch == epoch) else { return };
        copy.is_member = assignment.members.iter().any(|place| place.disk == disk);
        (copy.epoch, copy.promised, copy.start) = (epoch, epoch, assignment.start);
        (copy.is_fresh, copy.is_promise_written) = (true, false);
        // A later epoch is a later word, also where the nameserver has lost a grant that it never
        // acknowledged.
        copy.lease = assignment.lease.clone();
        // An earlier primary may have told of bytes that its disk lost before any copy here had
        // them. Other bytes take their places in this epoch, and are not committed yet.
        copy.told = copy.told.min(assignment.start);
        if copy.is_member {
            copy.commit(assignment.start);
        }
        // All members have the bytes in front of the epoch's beginning, and no member has the bytes
        // behind the epoch's beginning.
        let (is_member, start) = (copy.is_member, assignment.start);
        let again = if self.is_full { FilesRefusal::NoRoom } else { FilesRefusal::Again };
        for (token, end) in core::mem::take(&mut copy.waiting) {
            self.events.push_back(match (is_member, end <= start) {
                (true, true) => Event::Appended { token, end },
                (true, false) => Event::Refused { token, why: again.clone() },
                (false, _) => Event::Refused { token, why: FilesRefusal::Unknown },
            });
        }
        if !copy.leads(disk) && assignment.members.first().is_none_or(|first| first.disk != disk) {
            for (token, _) in core::mem::take(&mut copy.flushes) {
                self.events.push_back(Event::Refused { token, why: FilesRefusal::Unknown });
            }
        }
        self.update(assignment);
    }

    /// Takes the members and joiners of an assignment in the epoch that the copy is in.
    fn update(&mut self, assignment: FileAssignment) {
        let (file, round, disk) = (assignment.file, assignment.round, self.disk);
        let Some(copy) = self.copies.get_mut(&file) else { return };
        copy.members = assignment.members;
        // Assignments of one epoch may overtake each other, and an old lease must not come back.
        if assignment.lease.generation > copy.lease.generation {
            (copy.lease, copy.renew_at) = (assignment.lease, Timestamp::ZERO);
        }
        let epoch = copy.epoch;
        if copy.promised == epoch && copy.leads(disk) {
            if !copy.is_fresh || copy.is_broken {
                return self.tell(FilesControl::Trouble { file, epoch });
            }
            let start = copy.start;
            let primary = copy.primary.get_or_insert_with(PrimaryState::default);
            let members = copy.members.iter().map(|place| (*place, true));
            let joiners = assignment.joiners.iter().map(|(place, _)| (*place, false));
            let followers = members.chain(joiners).filter(|(place, _)| place.disk != disk);
            let old = core::mem::take(&mut primary.followers);
            primary.followers = followers
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
        self.tell(FilesControl::Holds { file, epoch, round, disk });
        self.advance(file);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use bytes::Bytes;
    use evenfall_core::durable::Durable as _;
    use evenfall_core::{Arrival, Machine as _, StampedBy};

    use super::*;
    use crate::leases::WriterLease;
    use crate::wire::{DataserverPlace, FilesMessage};
    use crate::{DataConfig, DiskId, ValidLength};

    const FILE: InodeId = InodeId(2);

    /// A dataserver takes a message of the server at this port, and its disk writes everything.
    fn take(data: &mut Dataserver, port: u16, message: FilesMessage) {
        let now = Timestamp::ZERO;
        let (head, body) = message.encode(7);
        let datagram = Bytes::from([&head[..], &body].concat());
        data.handle(now, Arrival::new(at(port), datagram, now, StampedBy::User)).expect("ours");
        while let Some(write) = data.poll_write() {
            data.handle_written(now, write.id, Ok(()));
        }
    }

    fn at(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    /// The dataserver joins the file in an epoch that begins at byte 4, under the primary at
    /// `port`.
    fn join(data: &mut Dataserver, port: u16, epoch: u64, valid: u64) {
        let place = |disk, port| DataserverPlace { disk, address: at(port), http: at(port) };
        let members = vec![place(DiskId(u64::from(port)), port)];
        let joiners = vec![(place(data.disk(), 9), ValidLength::up_to(valid))];
        let (round, start, lease) = (1, 4, WriterLease::default());
        let assignment =
            FileAssignment { file: FILE, epoch, round, start, members, joiners, lease };
        take(data, 1, FilesMessage::Control(FilesControl::Assign(assignment)));
    }

    fn relay(epoch: u64, offset: u64, committed: u64, bytes: &'static [u8]) -> FilesMessage {
        FilesMessage::Relay {
            file: FILE,
            epoch,
            offset,
            committed,
            bytes: Bytes::from_static(bytes),
        }
    }

    /// Seed 298385 of the campaign `files`.
    #[test]
    fn a_reader_sees_no_byte_because_of_what_the_primary_of_an_earlier_epoch_told() {
        let config = DataConfig::default();
        let data = Dataserver::new(config, at(1), at(9), 1, &Bytes::new(), Vec::new());
        let mut data = data.expect("no log");
        join(&mut data, 2, 3, 0);
        // The primary has 9 committed bytes, and loses its disk before the other bytes come here.
        take(&mut data, 2, relay(3, 0, 9, b"abcd"));
        // The file goes on from a disk that has 4 of these bytes.
        join(&mut data, 3, 4, 4);
        take(&mut data, 3, relay(4, 4, 4, b"efg"));
        let view = data.view(FILE).expect("a copy");
        assert_eq!((view.committed, view.queued), (4, 7));
        take(&mut data, 3, relay(4, 7, 7, b""));
        assert_eq!(data.view(FILE).expect("a copy").committed, 7);
    }
}
