//! Checkpoints. A checkpoint has the state after all cycles up to a certain cycle, as the owner of
//! a replica encodes it.
//!
//! ```text
//!   log    | c1 | c2 | ... | c900 | c901 |          Event::CheckpointWanted
//!   owner executes c901, encodes what it has, calls checkpoint()
//!   log    | checkpoint of c901 | groups | entries of c902 and later |
//!
//!   a replica that misses cycle 5, and peers that have forgotten cycle 5:
//!   replica ──FETCH──> peer ──parts──> replica: Event::Installed, goes on with cycle 902
//! ```
//!
//! A replica keeps its latest checkpoint in memory and sends it to any node that asks. A replica
//! asks the members of its super-leaf first. When none of them is ahead, all members need a cycle
//! from another super-leaf. A super-leaf that is behind holds up all cycles, so no other super-leaf
//! is more than a few cycles ahead. But a node that went on from a checkpoint has no states of the
//! cycles before, and all nodes of the other super-leaf may have done so. Such a node answers
//! FORGOT, and the replica fetches the node's checkpoint.

use bytes::Bytes;
use evenfall_core::journal::{HEAD_BYTES, Records};
use evenfall_core::{Malformed, NodeId, Reader, Timestamp};

use crate::canopus::{Canopus, Event, Pending, bytes_of};
use crate::config::{CHECKPOINT_BYTES_MAX, FETCH_BYTES};
use crate::journal::{self, Effect, ReplicaRecord};
use crate::wire::{ReplicaMessage, Whole};
use crate::{EmulationTable, VnodeId, parts};

/// Bytes that are reserved for a checkpoint without its snapshot.
const TABLE_BYTES: usize = 16 << 10;

/// The state after all cycles up to `cycle`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The last of these cycles.
    pub cycle: u64,
    /// The members that take part, as these cycles have agreed.
    pub table: EmulationTable,
    /// The super-leaves that have vanished under an incarnation, as far as the replica still has
    /// their groups: the first cycle without each. For a service outside that decides who has
    /// vanished.
    pub ends: Vec<(VnodeId, u32, u64)>,
    /// The state that the owner of the replica has computed from the requests.
    pub snapshot: Bytes,
}

impl Checkpoint {
    /// Cycle u64, the table, the number of ends u16 and the ends, the length of the snapshot u32,
    /// and the snapshot. An end is a vnode u16, an incarnation u32 and a cycle u64.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        self.put_with(out, |out| out.extend_from_slice(&self.snapshot));
    }

    /// As [`put`](Self::put), with the snapshot that `snapshot` appends in place of the own one.
    /// Returns the number of bytes of that snapshot.
    fn put_with(&self, out: &mut Vec<u8>, snapshot: impl FnOnce(&mut Vec<u8>)) -> usize {
        out.extend(self.cycle.to_le_bytes());
        self.table.put(out);
        out.extend((self.ends.len() as u16).to_le_bytes());
        for (leaf, incarnation, end) in &self.ends {
            out.extend(leaf.0.to_le_bytes());
            out.extend(incarnation.to_le_bytes());
            out.extend(end.to_le_bytes());
        }
        let length_at = out.len();
        out.extend([0; 4]);
        snapshot(out);
        let length = out.len() - length_at - 4;
        out[length_at..length_at + 4].copy_from_slice(&(length as u32).to_le_bytes());
        length
    }

    pub(crate) fn read(r: &mut Reader<'_>, bytes: &Bytes) -> Result<Self, Malformed> {
        let (cycle, table) = (r.u64()?, EmulationTable::read(r)?);
        let mut ends = Vec::new();
        for _ in 0..r.u16()? {
            ends.push((VnodeId(r.u16()?), r.u32()?, r.u64()?));
        }
        let length = r.u32()? as usize;
        let snapshot = bytes.slice_ref(r.take(length)?);
        Ok(Self { cycle, table, ends, snapshot })
    }
}

/// A checkpoint of a peer, on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetching {
    pub(crate) from: NodeId,
    /// The cycle of the checkpoint; 0 until its first part has come.
    cycle: u64,
    /// The byte up to which the checkpoint was asked for.
    until: usize,
    /// When the last part of the checkpoint came.
    pub(crate) heard: Timestamp,
}

impl Canopus {
    /// Takes the owner's state after all cycles up to the last [`Event::Committed`], and compacts
    /// the log. Returns false when no cycle was committed since the last checkpoint, when the
    /// snapshot is too long, or when the log is being compacted already.
    pub fn checkpoint(&mut self, snapshot: &[u8]) -> bool {
        self.checkpoint_with(snapshot.len(), |out| out.extend_from_slice(snapshot))
    }

    /// As [`checkpoint`](Self::checkpoint), for a snapshot that `snapshot` appends to the new log,
    /// without a copy of the snapshot. `bytes` is about the length of the snapshot.
    pub fn checkpoint_with(&mut self, bytes: usize, snapshot: impl FnOnce(&mut Vec<u8>)) -> bool {
        if self.progress.committed == self.checkpoint.cycle || self.journal.is_compacting() {
            return false;
        }
        let checkpoint = Checkpoint {
            cycle: self.progress.committed,
            table: self.table.clone(),
            ends: self.known_ends(),
            snapshot: Bytes::new(),
        };
        let is_kept = self.keep_checkpoint(&checkpoint, bytes, snapshot);
        self.checkpoint.is_wanted &= !is_kept;
        is_kept
    }

    /// Replaces the log by a checkpoint with the snapshot that `snapshot` appends, and by what is
    /// behind it. Changes nothing and returns false when the snapshot is too long.
    fn keep_checkpoint(
        &mut self,
        checkpoint: &Checkpoint,
        bytes: usize,
        snapshot: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let next = checkpoint.cycle + 1;
        let disk = ReplicaRecord::Disk(self.disk.own.clone());
        let mut records = vec![disk];
        records.extend(self.record_of_list());
        let mut effects = Vec::new();
        for (owner, group) in &self.groups {
            let mine = group.decided();
            records.push(ReplicaRecord::Group(*owner, group.incarnation(), mine));
            let entries = group.entries_from(next);
            records.extend(entries.map(|entry| self.record_of(*owner, group.incarnation(), entry)));
            effects.push(Effect::Report(*owner, group.incarnation(), mine));
        }
        let bodies: Vec<Vec<u8>> = records.iter().map(journal::body).collect();
        let others: usize = bodies.iter().map(|body| HEAD_BYTES + body.len()).sum();
        // A checkpoint may be long. Each copy of it takes time and new pages of memory.
        let (mut log, mut length) = (Records::with_capacity(bytes + TABLE_BYTES + others), 0);
        let place = log.add_with(|out| {
            journal::put_checkpoint(out, |out| length = checkpoint.put_with(out, snapshot));
        });
        if length > CHECKPOINT_BYTES_MAX {
            return false;
        }
        bodies.iter().for_each(|body| log.add(body));
        let log = self.journal.replace_by(log, effects);
        self.checkpoint.encoded = log.slice(place.start + journal::KIND_BYTES..place.end);
        self.checkpoint.cycle = checkpoint.cycle;
        true
    }

    /// Asks the owner for a checkpoint when the log is long.
    pub(crate) fn consider_checkpoint(&mut self) {
        let bytes_min = self.config.log_bytes.max(4 * self.checkpoint.encoded.len() as u64);
        if self.journal.len() > bytes_min && !self.journal.is_compacting() {
            self.want_checkpoint();
        }
    }

    fn want_checkpoint(&mut self) {
        if !core::mem::replace(&mut self.checkpoint.is_wanted, true) {
            self.events.push_back(Event::CheckpointWanted);
        }
    }

    /// A node asks for this replica's checkpoint.
    pub(crate) fn take_fetch(&mut self, from: NodeId, cycle: u64, offset: u32) {
        let latest = self.checkpoint.cycle;
        let is_useful = latest > 0 && latest + 1 >= self.oldest();
        if !is_useful {
            // Cycles behind the checkpoint are forgotten here, so the node could not go on from
            // this checkpoint.
            return self.want_checkpoint();
        }
        let offset = if cycle == latest { offset as usize } else { 0 };
        let of = Whole::Checkpoint(latest, self.me);
        let encoded = self.checkpoint.encoded.clone();
        let datagram_bytes = self.config.datagram_bytes;
        for part in parts::cut(of, &encoded, offset, FETCH_BYTES, datagram_bytes) {
            self.send(from, &ReplicaMessage::Part(part));
        }
    }

    /// Asks a peer for its newest checkpoint, or for the next bytes of the checkpoint that is on
    /// its way from this peer.
    pub(crate) fn fetch_checkpoint(&mut self, now: Timestamp, from: NodeId) {
        let begun = self.checkpoint.fetching.take().filter(|fetching| fetching.from == from);
        let mut fetching = begun.unwrap_or(Fetching { from, cycle: 0, until: 0, heard: now });
        let at = self.parts.contiguous(Whole::Checkpoint(fetching.cycle, from));
        fetching.until = at + FETCH_BYTES;
        self.send(from, &ReplicaMessage::Fetch(fetching.cycle, at as u32));
        self.checkpoint.fetching = Some(fetching);
    }

    /// A part of a checkpoint has come. When all bytes that were asked for are there, the replica
    /// asks for the next bytes at once.
    pub(crate) fn fetched(&mut self, now: Timestamp, from: NodeId, cycle: u64) {
        let at = self.parts.contiguous(Whole::Checkpoint(cycle, from));
        let Some(fetching) = self.checkpoint.fetching.as_mut().filter(|known| known.from == from)
        else {
            return;
        };
        (fetching.cycle, fetching.heard) = (cycle, now);
        if at >= fetching.until {
            self.fetch_checkpoint(now, from);
        }
    }

    /// Goes on behind a checkpoint of a peer.
    pub(crate) fn install(&mut self, now: Timestamp, checkpoint: Checkpoint) {
        if checkpoint.cycle <= self.progress.committed || !checkpoint.table.is_of(&self.tree) {
            return;
        }
        let cycle = checkpoint.cycle;
        self.adopt_checkpoint(&checkpoint);
        self.found_groups();
        for (leaf, incarnation, end) in &checkpoint.ends {
            self.end_group(*leaf, *incarnation, *end);
        }
        self.forget_groups();
        self.skip(cycle + 1);
        let snapshot = &checkpoint.snapshot;
        self.keep_checkpoint(&checkpoint, snapshot.len(), |out| out.extend_from_slice(snapshot));
        self.store_all_states();
        let unknown = self.forget_proposed(cycle);
        let snapshot = checkpoint.snapshot;
        self.events.push_back(Event::Installed { cycle, snapshot, unknown });
        self.checkpoint.fetching = None;
        self.advance(now);
    }

    /// Takes over the state of a checkpoint, which comes from a peer or from the own disk.
    pub(crate) fn adopt_checkpoint(&mut self, checkpoint: &Checkpoint) {
        let cycle = checkpoint.cycle;
        let before = self.leaf_after_all();
        self.table = checkpoint.table.clone();
        self.consider_staying(before);
        self.progress.committed = cycle;
        self.progress.started = self.progress.started.max(cycle);
        self.progress.seen = self.progress.seen.max(self.progress.started);
        self.cycles = self.cycles.split_off(&(cycle + 1));
        self.early.retain(|(_, of), _| *of > cycle);
        self.progress.is_behind = false;
    }

    /// Forgets the proposals of this replica in cycles up to this one, which the replica will never
    /// see. Their reads wait for a later cycle. Returns the client and the sequence of each write,
    /// which may have been committed or not.
    fn forget_proposed(&mut self, cycle: u64) -> Vec<(u64, u64)> {
        let later = self.own.proposed.split_off(&(cycle + 1));
        let earlier = core::mem::replace(&mut self.own.proposed, later);
        let (mut unknown, mut reads) = (Vec::new(), Vec::new());
        for one in earlier.into_values().flatten() {
            match one {
                Pending::Write(request, _) => unknown.push((request.client, request.sequence)),
                read => reads.push(read),
            }
        }
        for read in reads.into_iter().rev() {
            self.own.pending_bytes += bytes_of(&read);
            self.own.pending.push_front(read);
        }
        unknown
    }
}
