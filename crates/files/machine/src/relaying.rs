//! Appends on their way: from a client to the primary, and from the primary to its followers.
//!
//! The primary keeps the appends that a member may still lack. It sends each follower a limited
//! number of bytes that the follower has not acknowledged. When an acknowledgement is late, the
//! primary sends again everything behind the last acknowledged byte. A joiner gets older appends
//! from the primary's disk.

use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::Timestamp;

use crate::config::{APPEND_BYTES_MAX, WINDOW_APPENDS_MAX, WINDOW_BYTES_MAX, WINDOWS_BYTES_MAX};
use crate::dataserver::{Dataserver, Event};
use crate::primary::{Follower, FollowerNext};
use crate::wire::{FilesControl, FilesMessage, NO_COPY};
use crate::{DiskId, FilesRefusal, InodeId};

impl Dataserver {
    /// Appends to a file. [`Event::Appended`] or [`Event::Refused`] follows. With `at`, the append
    /// is taken only if it begins at that place in the file. `lease` is the generation of the
    /// writer's lease. Without a lease, the append is taken while nobody holds one.
    ///
    /// # Errors
    /// The reason for which the append is not taken. No event follows.
    pub fn append(
        &mut self,
        now: Timestamp,
        token: u64,
        file: InodeId,
        at: Option<u64>,
        lease: Option<u64>,
        bytes: Bytes,
    ) -> Result<(), FilesRefusal> {
        if bytes.is_empty() || bytes.len() > APPEND_BYTES_MAX {
            return Err(FilesRefusal::Length);
        }
        let copy = self.copies.get_mut(&file).ok_or(FilesRefusal::NotHere)?;
        let primary = copy.primary.as_mut().ok_or(FilesRefusal::NotPrimary)?;
        if !(copy.promised <= copy.epoch && copy.switch.is_none() && !copy.is_broken) {
            return Err(FilesRefusal::NotPrimary);
        }
        copy.lease.check_append(lease)?;
        if at.is_some_and(|at| at != copy.queued) {
            return Err(FilesRefusal::Again);
        }
        let is_over = primary.window_bytes + bytes.len() > WINDOW_BYTES_MAX
            || primary.window.len() >= WINDOW_APPENDS_MAX;
        if is_over || self.windows_bytes + bytes.len() > WINDOWS_BYTES_MAX {
            return Err(FilesRefusal::Busy);
        }
        self.windows_bytes += bytes.len();
        primary.push(copy.queued, bytes.clone());
        copy.waiting.push_back((token, copy.queued + bytes.len() as u64));
        self.store(file, &bytes);
        self.pump(now, file);
        self.renew_lease(now, file);
        Ok(())
    }

    /// Hands in the appends that [`Event::Read`] asked for. An empty list says that they cannot be
    /// read.
    pub fn give(&mut self, file: InodeId, disk: DiskId, offset: u64, appends: Vec<Bytes>) {
        if appends.is_empty() {
            return self.report_bad(file);
        }
        let (cluster, Some(copy)) = (self.cluster, self.copies.get_mut(&file)) else { return };
        let (epoch, committed) = (copy.epoch, copy.committed());
        let Some(follower) = copy.primary.as_mut().and_then(|primary| primary.follower(disk))
        else {
            return;
        };
        follower.is_reading = false;
        if follower.next != offset {
            return;
        }
        let (to, mut next) = (follower.place.address, offset);
        follower.next += appends.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        for bytes in appends {
            let length = bytes.len() as u64;
            let relay = FilesMessage::Relay { file, epoch, offset: next, committed, bytes };
            self.outbox.send(cluster, to, relay);
            next += length;
        }
        self.busy.insert(file);
    }

    pub(crate) fn relay(
        &mut self,
        from: SocketAddr,
        file: InodeId,
        epoch: u64,
        at: (u64, u64),
        bytes: &Bytes,
    ) {
        let (offset, committed) = at;
        let disk = self.disk;
        let Some(copy) = self.copies.get_mut(&file) else {
            let ack = FilesMessage::Ack { file, epoch, disk, length: NO_COPY };
            return self.outbox.send(self.cluster, from, ack);
        };
        if !copy.takes(epoch) || copy.leads(disk) || bytes.len() > APPEND_BYTES_MAX {
            return;
        }
        copy.leader = Some(from);
        copy.commit(committed);
        if !bytes.is_empty() && offset == copy.queued {
            return self.store(file, bytes);
        }
        self.acknowledge(file);
    }

    pub(crate) fn acknowledge(&mut self, file: InodeId) {
        let Some(copy) = self.copies.get(&file) else { return };
        if let Some(to) = copy.leader.filter(|_| copy.takes(copy.epoch)) {
            let (epoch, disk, length) = (copy.epoch, self.disk, copy.length);
            let ack = FilesMessage::Ack { file, epoch, disk, length };
            self.outbox.send(self.cluster, to, ack);
        }
    }

    pub(crate) fn acknowledged(
        &mut self,
        now: Timestamp,
        file: InodeId,
        epoch: u64,
        disk: DiskId,
        length: u64,
    ) {
        let Some(copy) = self.copies.get_mut(&file) else { return };
        if copy.epoch != epoch {
            return;
        }
        let (queued, Some(primary)) = (copy.queued, copy.primary.as_mut()) else { return };
        let Some(follower) = primary.follower(disk) else { return };
        if length == NO_COPY {
            return self.tell(FilesControl::Trouble { file, epoch });
        }
        if length > queued {
            return;
        }
        if follower.acked.is_none_or(|acked| acked < length) {
            if follower.acked.is_none() {
                follower.next = length;
            }
            (follower.acked, follower.sent_at) = (Some(length), now);
            follower.next = follower.next.max(length);
        } else if !follower.is_member {
            // A joiner that was dropped and asked again in the same epoch begins anew. An old
            // acknowledgement does no harm, because the bytes behind it are sent once more.
            follower.acked = Some(length);
        }
        self.advance(file);
        self.pump(now, file);
    }

    /// Acknowledges the appends that all members have.
    pub(crate) fn advance(&mut self, file: InodeId) {
        let Some(copy) = self.copies.get_mut(&file) else { return };
        let Some(primary) = copy.primary.as_mut().filter(|_| copy.promised <= copy.epoch) else {
            return;
        };
        let committed = primary.committed(copy.length);
        self.windows_bytes -= primary.trim(committed);
        copy.commit(committed);
        while copy.waiting.front().is_some_and(|(_, end)| *end <= committed)
            && let Some((token, end)) = copy.waiting.pop_front()
        {
            self.events.push_back(Event::Appended { token, end });
        }
    }

    /// Tells the members the committed length at once, so that their readers do not wait for the
    /// next tick. The tick repeats the length.
    pub(crate) fn tell_followers(&mut self, file: InodeId) {
        let Some(copy) = self.copies.get(&file) else { return };
        let (epoch, committed, offset) = (copy.epoch, copy.committed(), copy.queued);
        let Some(primary) = copy.primary.as_ref().filter(|_| copy.promised <= epoch) else {
            return;
        };
        let lacks = |follower: &&Follower| follower.is_member && follower.told < committed;
        for follower in primary.followers.iter().filter(lacks) {
            let relay = FilesMessage::Relay { file, epoch, offset, committed, bytes: Bytes::new() };
            self.outbox.send(self.cluster, follower.place.address, relay);
        }
    }

    /// Sends followers the next appends, as far as the limit of unacknowledged bytes allows.
    pub(crate) fn pump(&mut self, now: Timestamp, file: InodeId) {
        let cluster = self.cluster;
        let Some(copy) = self.copies.get_mut(&file) else { return };
        let (epoch, committed) = (copy.epoch, copy.committed());
        let (queued, length) = (copy.queued, copy.length);
        if copy.promised > epoch {
            return;
        }
        let Some(primary) = copy.primary.as_mut() else { return };
        for at in 0..primary.followers.len() {
            loop {
                let follower = &primary.followers[at];
                let (disk, to) = (follower.place.disk, follower.place.address);
                match primary.next(follower, queued, length) {
                    FollowerNext::Append(found) => {
                        let (offset, bytes) = primary.window[found].clone();
                        let follower = &mut primary.followers[at];
                        if follower.acked == Some(follower.next) {
                            follower.sent_at = now;
                        }
                        follower.next += bytes.len() as u64;
                        let relay = FilesMessage::Relay { file, epoch, offset, committed, bytes };
                        self.outbox.send(cluster, to, relay);
                    }
                    FollowerNext::Read(offset) => {
                        primary.followers[at].is_reading = true;
                        self.events.push_back(Event::Read { file, disk, offset });
                        break;
                    }
                    FollowerNext::Nothing => break,
                }
            }
        }
        if primary.is_busy(queued, committed) {
            self.busy.insert(file);
        }
    }

    /// Repeats unacknowledged appends, tells followers the committed length, and tells the
    /// nameserver which joiners have caught up. Returns whether the copy needs another tick.
    pub(crate) fn tick(&mut self, now: Timestamp, file: InodeId) -> bool {
        self.answer_seal(file);
        let (cluster, resend) = (self.cluster, self.config.resend);
        let Some(copy) = self.copies.get_mut(&file) else { return false };
        let (epoch, committed, queued) = (copy.epoch, copy.committed(), copy.queued);
        let is_telling = !copy.flushes.is_empty();
        let is_waiting = copy.is_broken || copy.promised > epoch || is_telling;
        let Some(primary) = copy.primary.as_mut().filter(|_| copy.promised <= epoch) else {
            return is_waiting;
        };
        let mut caught = Vec::new();
        for follower in &mut primary.followers {
            if follower.acked == Some(queued) && follower.told >= committed {
                caught.extend((!follower.is_member).then_some(follower.place.disk));
                continue;
            }
            if now < follower.sent_at + resend {
                continue;
            }
            (follower.sent_at, follower.is_reading) = (now, false);
            follower.next = follower.acked.unwrap_or(follower.next);
            if follower.acked == Some(queued) {
                follower.told = committed;
            }
            let (offset, bytes) = (queued, Bytes::new());
            let relay = FilesMessage::Relay { file, epoch, offset, committed, bytes };
            let to = follower.place.address;
            self.outbox.send(cluster, to, relay);
        }
        let is_busy = primary.is_busy(queued, committed) || is_waiting;
        for joiner in caught {
            self.tell(FilesControl::Caught { file, epoch, joiner });
        }
        if is_telling {
            self.tell_length(file);
        }
        self.pump(now, file);
        is_busy
    }
}
