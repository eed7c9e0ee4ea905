//! Where the copies of a file shall be: racks, free room, disks that leave, and balance.
//!
//! A new copy goes to the rack with the fewest copies of its file, and there to the disk of which
//! the smallest share is used. A copy *moves* when its disk leaves, when all copies of the file are
//! in one rack although another rack has room, and while the disks are being balanced. The file
//! first gets a joiner elsewhere. The member whose copy moves is left out in the epoch in which the
//! joiner becomes a member, so a move never leaves the file with fewer copies.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use evenfall_core::Timestamp;

use crate::config::{LOOKS_MAX, UNEVEN_PARTS, USED_PARTS};
use crate::nameserver::{Effect, KnownDataserver, Nameserver};
use crate::namespace::{CopyGroup, NamespaceChange};
use crate::{DiskId, FilesRefusal, InodeId};

/// A copy that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The disk that has the copy.
    pub from: DiskId,
    /// The disk that shall have the copy. When this disk dies meanwhile, another disk gets the
    /// copy.
    pub to: DiskId,
}

/// Disks that are being balanced.
#[derive(Clone, Copy, Debug)]
pub struct Balance {
    /// Bytes that move in a second at most.
    bytes_per_s: u64,
    /// When the next copy may move.
    next_at: Timestamp,
    /// The last file that was looked at.
    looked: Option<InodeId>,
    /// Whether a copy has moved since the first file was looked at.
    has_moved: bool,
}

impl KnownDataserver {
    /// The used share of the disk in parts of [`USED_PARTS`].
    fn used_parts(&self, more: u64) -> u64 {
        let used = u128::from(self.used) + u128::from(more);
        let all = (u128::from(self.used) + u128::from(self.free)).max(1);
        u64::try_from(used * u128::from(USED_PARTS) / all).unwrap_or(u64::MAX)
    }
}

impl Nameserver {
    /// Up to `count` live disks that take bytes, do not leave and are not in `without`. Racks with
    /// few of the copies in `beside` go first, then disks with a small used share. A disk with too
    /// little room is chosen only when no other disk is left.
    pub fn choose(
        &self,
        now: Timestamp,
        count: usize,
        beside: &[DiskId],
        without: &[DiskId],
    ) -> Vec<DiskId> {
        let is_fit = |(disk, _): &(&DiskId, &KnownDataserver)| {
            let is_out = self.namespace.is_leaving(**disk) || without.contains(disk);
            self.is_fit(now, **disk) && !is_out
        };
        let mut fit: Vec<(&DiskId, &KnownDataserver)> =
            self.servers.iter().filter(is_fit).collect();
        // Disks that are equally used take turns: each new file changes their order.
        let turn = self.namespace.inodes().len() as u32 % 64;
        let mut racks: BTreeMap<&str, usize> = BTreeMap::new();
        for server in beside.iter().filter_map(|disk| self.servers.get(disk)) {
            *racks.entry(server.rack.as_str()).or_default() += 1;
        }
        let mut chosen = Vec::new();
        while chosen.len() < count {
            let rank = |at: &usize| {
                let (disk, server) = fit[*at];
                let has_little = server.free < self.config.room_bytes_min;
                let copies = racks.get(server.rack.as_str()).copied().unwrap_or(0);
                (has_little, copies, server.used_parts(0), disk.0.rotate_left(turn))
            };
            let Some(best) = (0..fit.len()).min_by_key(rank) else { break };
            let (disk, server) = fit.swap_remove(best);
            *racks.entry(server.rack.as_str()).or_default() += 1;
            chosen.push(*disk);
        }
        chosen
    }

    /// The members whose copies move.
    pub(crate) fn moving(&self, id: InodeId, group: &CopyGroup) -> Vec<DiskId> {
        let from = self.works.get(&id).and_then(|work| work.moves).map(|moves| moves.from);
        let is_moving = |disk: &DiskId| self.namespace.is_leaving(*disk) || from == Some(*disk);
        group.members.iter().copied().filter(is_moving).collect()
    }

    /// Whether all copies of a file are in one rack.
    pub(crate) fn is_crowded(&self, group: &CopyGroup) -> bool {
        let mut racks = group.members.iter().map(|disk| self.servers.get(disk).map(|s| &s.rack));
        let Some(first) = racks.next().flatten() else { return false };
        group.members.len() > 1 && racks.all(|rack| rack == Some(first))
    }

    /// Moves a copy of a file whose copies are all in one rack, if another rack has room. Returns
    /// whether a copy moves.
    pub(crate) fn part(&mut self, now: Timestamp, id: InodeId, group: &CopyGroup) -> bool {
        let Some((from, staying)) = group.members.split_last() else { return false };
        let chosen = self.choose(now, 1, staying, &group.members);
        let rack = |disk: &DiskId| self.servers.get(disk).map(|server| &server.rack);
        let Some(to) = chosen.first().filter(|to| rack(to) != rack(from)) else { return false };
        self.works.entry(id).or_default().moves = Some(Move { from: *from, to: *to });
        true
    }

    /// Moves all copies away from a disk, or lets the disk have copies again. [`Event::Done`]
    /// follows when the change is in the log. The copies move afterwards.
    ///
    /// [`Event::Done`]: crate::nameserver::Event::Done
    ///
    /// # Errors
    /// [`FilesRefusal::Invalid`] for a disk that was not heard, and [`FilesRefusal::DiskFull`].
    pub fn leave(
        &mut self,
        token: u64,
        disk: DiskId,
        is_leaving: bool,
    ) -> Result<(), FilesRefusal> {
        self.check_changes()?;
        if !self.servers.contains_key(&disk) {
            return Err(FilesRefusal::Invalid("no dataserver with this disk was heard".into()));
        }
        self.record(NamespaceChange::Leaving { disk, is_leaving }, [Effect::Done(token)]);
        self.look_at_files_of(disk, false);
        Ok(())
    }

    /// Begins to move copies from full disks to empty ones, and stops when the used shares of the
    /// disks differ little, or when no copy may move. `None` stops the moves at once.
    pub fn balance(&mut self, bytes_per_s: Option<u64>) {
        self.balance = bytes_per_s.map(|bytes_per_s| Balance {
            bytes_per_s: bytes_per_s.max(1),
            next_at: Timestamp::ZERO,
            looked: None,
            has_moved: false,
        });
    }

    /// Whether disks are being balanced.
    pub fn is_balancing(&self) -> bool {
        self.balance.is_some()
    }

    /// Copies that balancing has moved or begun to move since the start.
    pub fn balanced(&self) -> u64 {
        self.balanced
    }

    /// The disk with the greatest and the disk with the smallest used share, when they differ much.
    fn uneven(&self, now: Timestamp) -> Option<(DiskId, DiskId)> {
        let is_in = |(disk, _): &(&DiskId, &KnownDataserver)| {
            self.is_fit(now, **disk) && !self.namespace.is_leaving(**disk)
        };
        let mut all: Vec<(u64, DiskId)> = self
            .servers
            .iter()
            .filter(is_in)
            .map(|(disk, server)| (server.used_parts(0), *disk))
            .collect();
        all.sort_unstable();
        let (least, most) = (all.first()?, all.last()?);
        (most.0 - least.0 > UNEVEN_PARTS).then_some((most.1, least.1))
    }

    /// Whether a copy may move for balance. The file has to be in order, the move must not leave
    /// its copies in fewer racks, and the disk that gets the copy has to stay the emptier of the
    /// two.
    fn may_move(&self, id: InodeId, from: DiskId, to: DiskId) -> Option<u64> {
        let file = self.namespace.file(id).filter(|_| !self.works.contains_key(&id))?;
        let members = &file.group.members;
        let is_whole = members.len() == usize::from(file.replication);
        if !is_whole || file.length == 0 || !members.contains(&from) || members.contains(&to) {
            return None;
        }
        let (giver, taker) = (self.servers.get(&from)?, self.servers.get(&to)?);
        let mut others = members.iter().filter(|disk| **disk != from);
        let is_shared =
            others.any(|disk| self.servers.get(disk).is_some_and(|s| s.rack == taker.rack));
        let is_spread = taker.rack == giver.rack || !is_shared;
        let is_emptier = taker.used_parts(file.length) < giver.used_parts(0);
        (is_spread && is_emptier).then_some(file.length)
    }

    /// Lets the next copy move for balance. Copies move one at a time, within the limit of bytes a
    /// second.
    pub(crate) fn drive_balance(&mut self, now: Timestamp) {
        let Some(mut balance) = self.balance.filter(|balance| now >= balance.next_at) else {
            return;
        };
        if self.works.values().any(|work| work.moves.is_some()) {
            return;
        }
        let Some((from, to)) = self.uneven(now) else { return self.balance = None };
        let after = balance.looked.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.namespace.inodes().range((after, Bound::Unbounded));
        let (mut last, mut found) = (None, None);
        for id in behind.take(LOOKS_MAX).map(|(id, _)| id) {
            last = Some(*id);
            if let Some(length) = self.may_move(*id, from, to) {
                found = Some((*id, length));
                break;
            }
        }
        match (found, last) {
            (Some((id, length)), _) => {
                let moves = Move { from, to };
                self.works.entry(id).or_default().moves = Some(moves);
                self.dirty.insert(id);
                self.balanced += 1;
                let takes = Duration::from_secs_f64(length as f64 / balance.bytes_per_s as f64);
                // The next choice waits until beats have reported the used bytes after this move.
                balance.next_at = now + takes.max(self.config.dead_after);
                (balance.looked, balance.has_moved) = (Some(id), true);
            }
            (None, Some(last)) => balance.looked = Some(last),
            // No copy of any file may move.
            (None, None) if !balance.has_moved => return self.balance = None,
            (None, None) => (balance.looked, balance.has_moved) = (None, false),
        }
        self.balance = Some(balance);
    }
}
