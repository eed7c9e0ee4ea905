//! The heir of a file whose members have all lost their disks: the disk from which the file goes
//! on.
//!
//! The nameserver knows up to which length a former member's copy is right. The copy may be
//! shorter, and the nameserver does not know its length when the former member was silent as it was
//! left out. The nameserver therefore asks all former members for their lengths, with the same
//! message that ends an epoch. The former member with most right bytes is the heir. The nameserver
//! also asks the joiners of the last epoch, because every byte of such a joiner came from a primary
//! of that epoch.
//!
//! **Waiting.** A file without an heir takes no appends. After the first answer, the nameserver
//! waits at most [`heir_wait`](crate::NameConfig::heir_wait) for former members that may have more
//! bytes than every disk that has answered. The bytes that only a silent former member has are then
//! lost. Without any answer the file waits.

use evenfall_core::Timestamp;

use crate::groups::Replies;
use crate::nameserver::{Event, Nameserver};
use crate::namespace::{CopyGroup, InodeKind, NamespaceChange};
use crate::valid_length::ValidLength;
use crate::{DiskId, InodeId};

impl Nameserver {
    /// Notes that a disk will never come back. A file whose last member was on this disk gets an
    /// heir, if another disk has bytes of the file.
    pub(crate) fn disk_is_gone(&mut self, disk: DiskId) {
        self.record(NamespaceChange::DiskGone { disk }, None);
        let mut changed = Vec::new();
        for (id, inode) in self.namespace.inodes() {
            let InodeKind::File(file) = &inode.kind else { continue };
            let is_former = file.group.former.iter().any(|(former, _)| *former == disk);
            if is_former || file.group.members.contains(&disk) {
                changed.push((*id, file.group.clone(), file.length));
            }
        }
        for (id, mut group, length) in changed {
            self.dirty.insert(id);
            group.former.retain(|(former, _)| *former != disk);
            if group.members.iter().all(|member| self.namespace.is_gone(*member)) {
                self.ask_joiners_too(id, &mut group);
                if group.former.is_empty() {
                    group.lost = Some((0, length));
                    self.events.push_back(Event::Lost { file: id, range: (0, length) });
                }
            }
            self.record(NamespaceChange::Group { id, group }, None);
        }
    }

    /// Turns the joiners that hold the file's epoch into former members, so that the log names
    /// their disks.
    fn ask_joiners_too(&mut self, id: InodeId, group: &mut CopyGroup) {
        let Some(work) = self.works.get_mut(&id) else { return };
        // The promises so far came from other disks.
        work.seal = None;
        for joiner in core::mem::take(&mut work.joiners) {
            if joiner.held == group.epoch && !self.namespace.is_gone(joiner.disk) {
                group.former.retain(|(former, _)| *former != joiner.disk);
                group.former.push((joiner.disk, ValidLength::up_to(u64::MAX)));
            }
        }
    }

    /// Whether all members of a file have lost their disks, and the file has no heir yet.
    pub(crate) fn is_orphan(&self, group: &CopyGroup) -> bool {
        let is_gone = |member: &DiskId| self.namespace.is_gone(*member);
        !group.former.is_empty() && group.members.iter().all(is_gone)
    }

    /// Asks the former members that may have the most bytes for their lengths, and chooses the
    /// heir.
    pub(crate) fn drive_heir(&mut self, now: Timestamp, id: InodeId, mut group: CopyGroup) {
        let work = self.works.entry(id).or_default();
        let (epoch, replies) = work.seal.get_or_insert((group.epoch + 1, Replies::new()));
        if replies.is_empty() {
            work.seal_since = now;
        }
        let length = |disk: &DiskId| replies.get(disk).map(|reply| reply.0);
        let answered = group.former.iter().enumerate();
        let answered = answered.filter_map(|(at, (disk, _))| Some((length(disk)?, at)));
        let best = answered.max();
        let may_have_more = |(disk, valid): &&(DiskId, ValidLength)| {
            let is_more = best.is_none_or(|(most, _)| valid.of(u64::MAX) > most);
            is_more && length(disk).is_none()
        };
        let missed = group.former.iter().filter(may_have_more).map(|(disk, _)| *disk);
        let (missed, epoch): (Vec<DiskId>, u64) = (missed.collect(), *epoch);
        let is_late = now >= work.seal_since + self.config.heir_wait;
        match best.filter(|_| missed.is_empty() || is_late) {
            Some((_, at)) => {
                let (disk, valid) = group.former.remove(at);
                (group.members, group.adopted) = (vec![disk], Some(valid));
                work.seal = None;
                self.dirty.insert(id);
                self.record(NamespaceChange::Group { id, group }, None);
            }
            None => self.ask_for_promises(id, epoch, missed),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::config::{NameConfig, REPLACED_PARTS};
    use crate::groups::Joiner;
    use crate::groups::tests::{create, hand_in, hand_in_with};

    /// A file in epoch 3 whose only member has lost its disk. Disk 2 is a former member, and the
    /// first five bytes of its copy are right. Disk 3 is a joiner that holds the epoch `held`.
    fn orphan(held: u64) -> (Nameserver, InodeId) {
        let mut names = Nameserver::new(NameConfig::default(), 1, &Bytes::new()).expect("no log");
        (1..=3).for_each(|n| hand_in(&mut names, n, Vec::new()));
        let id = create(&mut names, "/a", 2);
        let group = names.namespace().file(id).expect("a file").group.clone();
        let (members, former) = (vec![DiskId(1)], vec![(DiskId(2), ValidLength::up_to(5))]);
        let group = CopyGroup { epoch: 3, start: 5, members, former, ..group };
        names.record(NamespaceChange::Group { id, group }, None);
        let (disk, valid, has_caught_up) = (DiskId(3), ValidLength::up_to(0), false);
        let joiner = Joiner { disk, valid, held, has_caught_up };
        names.works.entry(id).or_default().joiners.push(joiner);
        names.disk_is_gone(DiskId(1));
        names.examine(Timestamp::ZERO, id);
        assert_eq!(group_of(&names, id).members, [DiskId(1)]);
        (names, id)
    }

    fn group_of(names: &Nameserver, id: InodeId) -> &CopyGroup {
        &names.namespace().file(id).expect("a file").group
    }

    /// A disk answers that its copy holds the epoch `held` and has `length` bytes.
    fn answer(names: &mut Nameserver, id: InodeId, disk: u64, (held, length): (u64, u64)) {
        names.sealed(Timestamp::ZERO, id, 4, DiskId(disk), held, (length, 0));
    }

    #[test]
    fn a_file_without_members_goes_on_from_the_disk_with_most_right_bytes() {
        // The former member cannot have more, and is not waited for.
        let (mut names, id) = orphan(3);
        answer(&mut names, id, 3, (3, 8));
        let group = group_of(&names, id);
        assert_eq!(
            (&group.members[..], group.adopted),
            (&[DiskId(3)][..], Some(ValidLength::up_to(u64::MAX)))
        );
        assert_eq!(group.former, [(DiskId(2), ValidLength::up_to(5))]);

        // The joiner has less than the former member may have, and the former member has it.
        let (mut names, id) = orphan(3);
        answer(&mut names, id, 3, (3, 3));
        assert_eq!(group_of(&names, id).members, [DiskId(1)]);
        answer(&mut names, id, 2, (2, 7));
        let group = group_of(&names, id);
        assert_eq!(
            (&group.members[..], group.adopted),
            (&[DiskId(2)][..], Some(ValidLength::up_to(5)))
        );

        // The former member has less than it may have.
        let (mut names, id) = orphan(3);
        answer(&mut names, id, 2, (2, 2));
        answer(&mut names, id, 3, (3, 3));
        assert_eq!(group_of(&names, id).members, [DiskId(3)]);
    }

    #[test]
    fn a_silent_former_member_is_waited_for_and_not_for_ever() {
        let (mut names, id) = orphan(3);
        answer(&mut names, id, 3, (3, 3));
        let wait = names.config.heir_wait;
        names.examine(Timestamp::ZERO + (wait - wait / 8), id);
        assert_eq!(group_of(&names, id).members, [DiskId(1)]);
        names.examine(Timestamp::ZERO + wait, id);
        assert_eq!(group_of(&names, id).members, [DiskId(3)]);
    }

    #[test]
    fn a_joiner_that_never_came_to_the_epoch_is_no_heir() {
        let (mut names, id) = orphan(2);
        answer(&mut names, id, 3, (2, 9));
        assert_eq!(group_of(&names, id).members, [DiskId(1)]);
        answer(&mut names, id, 2, (2, 5));
        assert_eq!(group_of(&names, id).members, [DiskId(2)]);
    }

    #[test]
    fn a_disk_is_replaced_by_another_at_its_address_when_it_is_silent_and_not_before() {
        let mut names = Nameserver::new(NameConfig::default(), 1, &Bytes::new()).expect("no log");
        let silence = names.config.dead_after / REPLACED_PARTS;
        let mut now = Timestamp::ZERO;
        let mut beat = |now, disk| {
            hand_in_with(&mut names, now, (1, disk), Vec::new());
            let present: Vec<u64> = names.servers().keys().map(|disk| disk.0).collect();
            (present, [1, 2].map(|disk| names.namespace().is_gone(DiskId(disk))))
        };
        assert_eq!(beat(now, 2), (vec![2], [false, false]));
        // A late beat of the disk that the dataserver had before.
        now += silence - silence / 8;
        assert_eq!(beat(now, 1), (vec![2], [false, false]));
        assert_eq!(beat(now, 2), (vec![2], [false, false]));
        now += silence - silence / 8;
        assert_eq!(beat(now, 1), (vec![2], [false, false]), "disk 2 was just heard");
        // Disk 2 is silent, and disk 1 goes on.
        now += silence / 8;
        assert_eq!(beat(now, 1), (vec![1], [false, true]));
        assert_eq!(beat(now + silence, 2), (vec![1], [false, true]), "a disk that is gone");
    }
}
