//! Copies of the nameserver's log on dataservers. A nameserver that has lost its disk is rebuilt
//! from such a copy.
//!
//! Some dataservers, the *keepers*, get every record of the log. The effects of a record, such as
//! the answer to a client, wait until the record is on the disk here **and** on the disks of all
//! keepers. Every keeper therefore has every acknowledged change. The log also names the keepers.
//!
//! ```text
//!  record ──> journal here ──┐
//!     │                      ├──> the effects follow
//!     └─ Names ──> keepers ──┘
//!            <── Kept ──
//! ```
//!
//! A keeper gets a stream of bytes, framed as in the journal. The stream begins with the records
//! that make the present state out of an empty state, and every further record follows. A keeper
//! that has restarted, or whose stream has become long, gets a new stream of a higher generation.
//! The keeper holds on to the old stream until the first part of the new stream has come.
//!
//! A silent keeper is left out while another keeper with the whole log lives, and another
//! dataserver takes the place of the silent keeper. While no keeper with the whole log lives,
//! changes wait. When all keepers are silent, further changes are refused with an error that names
//! the keepers, until another dataserver has become a keeper. An operator can give up dataservers
//! that never come back, with [`forget`](Nameserver::forget). When all keepers have come back with
//! empty disks, changes wait until a live dataserver has the whole log and is a keeper.
//!
//! **An old log.** The generations of streams increase over all lives of a nameserver. A nameserver
//! whose log was replaced by an old log begins with a generation that keepers have seen before, or
//! with fewer changes than were acknowledged. Keepers refuse the streams of such a nameserver. The
//! nameserver then refuses all changes with an error that asks for a rebuild.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use evenfall_core::Timestamp;
use evenfall_core::journal;

use crate::config::{APPEND_BYTES_MAX, FLIGHT_BYTES_MAX, WINDOW_BYTES_MAX};
use crate::log_replica::LogStream;
use crate::nameserver::{Effect, Nameserver};
use crate::namespace::{Namespace, NamespaceChange};
use crate::wire::FilesMessage;
use crate::{DiskId, FilesRefusal};

/// The length in the answer of a dataserver that cannot go on with a stream.
pub const NOT_THERE: u64 = u64::MAX;

/// Number of lives that a rebuilt log skips when a keeper is missing. A nameserver starts less
/// often during an outage.
const STARTS_SKIPPED: u64 = 1 << 16;
/// Number of changes that a rebuilt log skips when a keeper is missing. A nameserver makes fewer
/// changes during an outage.
const CHANGES_SKIPPED: u64 = 1 << 40;

/// The nameserver's view of a keeper.
#[derive(Debug)]
struct Keeper {
    stream: LogStream,
    /// Pieces of the stream that the keeper may lack. Each entry has the offset of the piece, the
    /// piece, and the number of changes up to the end of the piece.
    window: VecDeque<(u64, Bytes, u64)>,
    end: u64,
    next: u64,
    acked: u64,
    /// Number of changes that the keeper has on its disk.
    count: u64,
    /// Number of changes in the stream.
    pushed: u64,
    sent_at: Timestamp,
}

impl Keeper {
    fn is_whole(&self) -> bool {
        self.acked >= self.stream.base
    }

    /// Adds bytes to the stream. The keeper has `count` changes when it has all of them.
    fn push(&mut self, mut bytes: Bytes, count: u64) {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(APPEND_BYTES_MAX));
            let of = if bytes.is_empty() { count } else { self.pushed };
            let at = self.end;
            self.end += piece.len() as u64;
            self.window.push_back((at, piece, of));
        }
        self.pushed = count;
    }

    fn acknowledged(&mut self, length: u64) {
        self.acked = self.acked.max(length);
        self.next = self.next.max(self.acked);
        let is_there = |(at, bytes, _): &(u64, Bytes, u64)| at + bytes.len() as u64 <= length;
        while self.window.front().is_some_and(is_there)
            && let Some((_, _, count)) = self.window.pop_front()
        {
            self.count = count;
        }
    }
}

/// The keepers of the nameserver's log, and the effects that wait for them.
#[derive(Debug, Default)]
pub struct LogReplication {
    keepers: BTreeMap<DiskId, Keeper>,
    /// Effects whose records are on the disk here. Each effect waits until all keepers have this
    /// number of changes.
    waiting: VecDeque<(u64, Effect)>,
    /// Number of acknowledged changes.
    done: u64,
    /// Number of streams that began in this life.
    streams: u64,
    /// Whether the record of this life of the nameserver is on the disk here.
    pub(crate) is_begun: bool,
    /// Whether all keepers have the state with which this life began. Until then a rebuild may undo
    /// a part of this state.
    pub(crate) is_sure: bool,
    /// Whether all keepers were silent at the last tick. Changes are refused then.
    is_silent: bool,
    /// Whether a keeper has a stream of a later life, so that the log of this nameserver is old.
    pub(crate) is_old: bool,
}

fn body_of(record: &NamespaceChange) -> Vec<u8> {
    // JSON can represent every record, so the default is never used.
    serde_json::to_vec(record).unwrap_or_default()
}

impl Nameserver {
    /// Whether the log is older than a copy that a keeper has, so that this nameserver has to be
    /// rebuilt.
    pub fn is_old(&self) -> bool {
        self.log_replication.is_old
    }

    /// Number of changes that all keepers have on their disks.
    fn replicated_changes(&self) -> u64 {
        let keepers = &self.log_replication.keepers;
        let count = |disk: &DiskId| match keepers.get(disk) {
            Some(keeper) if keeper.is_whole() => keeper.count,
            _ => 0,
        };
        self.namespace.keepers().iter().map(count).min().unwrap_or(u64::MAX)
    }

    /// Whether every change is on the disk here and on those of all keepers.
    pub(crate) fn is_safe(&self) -> bool {
        self.journal.unwritten() == 0 && self.replicated_changes() >= self.namespace.changes()
    }

    /// Sends a record that was added to the journal to all keepers.
    pub(crate) fn keep(&mut self, body: &[u8]) {
        let count = self.namespace.changes();
        if self.log_replication.keepers.is_empty() {
            return;
        }
        let bytes = journal::framed(body);
        self.log_replication
            .keepers
            .values_mut()
            .for_each(|keeper| keeper.push(bytes.clone(), count));
        // A keeper that lacks too much gets a new stream at the next tick.
        let is_near = |keeper: &mut Keeper| {
            keeper.end - keeper.acked.max(keeper.stream.base) <= WINDOW_BYTES_MAX as u64
        };
        self.log_replication.keepers.retain(|_, keeper| is_near(keeper));
        let disks: Vec<DiskId> = self.log_replication.keepers.keys().copied().collect();
        disks.into_iter().for_each(|disk| self.pump(disk));
    }

    /// Takes effects whose records are on the disk here.
    pub(crate) fn written_here(&mut self, effects: Vec<(u64, Effect)>) {
        self.log_replication.is_begun |=
            effects.iter().any(|(_, effect)| matches!(effect, Effect::Begun));
        self.log_replication.waiting.extend(effects);
        self.release();
    }

    /// Releases the effects whose records all keepers have.
    fn release(&mut self) {
        let kept = self.replicated_changes();
        let is_kept = |(count, _): &(u64, Effect)| *count <= kept;
        while self.log_replication.waiting.front().is_some_and(is_kept)
            && let Some((count, effect)) = self.log_replication.waiting.pop_front()
        {
            self.log_replication.done = count;
            self.follow(effect);
        }
    }

    /// Begins a stream to each of these keepers.
    fn begin_streams(&mut self, now: Timestamp, disks: &[DiskId]) {
        if disks.is_empty() {
            return;
        }
        let bytes = journal::log_of(self.namespace.records().iter().map(body_of));
        for disk in disks {
            self.log_replication.streams += 1;
            let stream = LogStream {
                generation: self.namespace.starts() << 32 | self.log_replication.streams,
                life: self.namespace.term(),
                base: bytes.len() as u64,
                changes: self.namespace.changes(),
            };
            let mut keeper = Keeper {
                stream,
                window: VecDeque::new(),
                end: 0,
                next: 0,
                acked: 0,
                count: 0,
                pushed: 0,
                sent_at: now,
            };
            keeper.push(bytes.clone(), stream.changes);
            self.log_replication.keepers.insert(*disk, keeper);
        }
    }

    /// Takes a dataserver's report of how many bytes of a stream are on its disk.
    pub(crate) fn kept_by(
        &mut self,
        now: Timestamp,
        disk: DiskId,
        (generation, life): (u64, u64),
        length: u64,
    ) {
        let Some(keeper) = self.log_replication.keepers.get_mut(&disk) else { return };
        if life != keeper.stream.life {
            // Streams of an earlier life have lower generations.
            self.log_replication.is_old |= generation >= keeper.stream.generation;
            return;
        }
        if generation != keeper.stream.generation {
            return;
        }
        if length == NOT_THERE {
            // The next tick begins a new stream.
            self.log_replication.keepers.remove(&disk);
            return;
        }
        if length > keeper.end {
            return;
        }
        if length > keeper.acked {
            keeper.acknowledged(length);
            keeper.sent_at = now;
        }
        self.pump(disk);
        self.release();
    }

    /// Sends a keeper the next bytes, as far as the limit of unacknowledged bytes allows.
    fn pump(&mut self, disk: DiskId) {
        let cluster = self.namespace.cluster;
        let done = self.log_replication.done;
        let Some(to) = self.servers.get(&disk).map(|server| server.place.address) else { return };
        let Some(keeper) = self.log_replication.keepers.get_mut(&disk) else { return };
        while keeper.next < keeper.end && keeper.next - keeper.acked < FLIGHT_BYTES_MAX {
            let at = keeper.window.partition_point(|(offset, ..)| *offset < keeper.next);
            let Some((offset, bytes, _)) = keeper.window.get(at) else { return };
            let (stream, offset, bytes) = (keeper.stream, *offset, bytes.clone());
            keeper.next = offset + bytes.len() as u64;
            let names = FilesMessage::Names { stream, done, offset, bytes };
            self.outbox.send(cluster, to, names);
        }
    }

    /// Leaves silent keepers out, finds new keepers, and sends lost bytes again.
    pub(crate) fn drive_keepers(&mut self, now: Timestamp) {
        // A stream must not begin before this life of the nameserver is in the log. Otherwise the
        // next life would not count this life, and keepers would take the next life for an older
        // one.
        if self.log_replication.is_old || !self.log_replication.is_begun {
            return;
        }
        if self.config.keepers == 0 && !self.namespace.keepers().is_empty() {
            self.record(NamespaceChange::Keepers { disks: Vec::new() }, None);
            self.log_replication.keepers.clear();
        }
        self.leave_keepers_out(now, true);
        self.find_keepers(now);
        self.repeat_streams(now);
        self.release();
    }

    /// Begins streams to keepers that have no stream and to new candidates. A candidate with the
    /// whole beginning of its stream becomes a keeper.
    fn find_keepers(&mut self, now: Timestamp) {
        let known: Vec<DiskId> = self.log_replication.keepers.keys().copied().collect();
        let set = self.namespace.keepers().clone();
        // A keeper of an earlier life of this nameserver needs a stream of this life.
        let missing = set.iter().filter(|disk| self.servers.contains_key(disk));
        let missing: Vec<DiskId> = missing.filter(|disk| !known.contains(disk)).copied().collect();
        self.begin_streams(now, &missing);
        let all: BTreeSet<DiskId> = set.iter().chain(&known).copied().collect();
        let all: Vec<DiskId> = all.into_iter().collect();
        let live = all.iter().filter(|disk| self.is_fit(now, **disk)).count();
        let lacking = self.config.keepers.saturating_sub(live);
        let chosen = self.choose(now, lacking, &all, &all);
        self.begin_streams(now, &chosen);
        let is_ready = |(disk, keeper): &(&DiskId, &Keeper)| {
            !set.contains(disk) && keeper.is_whole() && self.is_live(now, **disk)
        };
        let ready = self.log_replication.keepers.iter().filter(is_ready).map(|(disk, _)| *disk);
        let ready: Vec<DiskId> = ready.collect();
        if !ready.is_empty() {
            let disks = set.iter().copied().chain(ready).collect();
            self.record(NamespaceChange::Keepers { disks }, None);
        }
    }

    /// Begins long streams anew, and repeats bytes that were not acknowledged.
    fn repeat_streams(&mut self, now: Timestamp) {
        let every = self.config.tick * 2;
        let known: Vec<DiskId> = self.log_replication.keepers.keys().copied().collect();
        for disk in known {
            let Some(keeper) = self.log_replication.keepers.get_mut(&disk) else { continue };
            let is_long = keeper.end > self.config.log_bytes && keeper.end / 4 > keeper.stream.base;
            if is_long && keeper.acked == keeper.end {
                self.begin_streams(now, &[disk]);
            } else if keeper.acked < keeper.end && now >= keeper.sent_at + every {
                (keeper.next, keeper.sent_at) = (keeper.acked, now);
            }
            self.pump(disk);
        }
    }

    /// The names of all keepers, if all of them are silent. Changes wait for just these keepers: a
    /// keeper that fell silent before the last one is left out, and changes go on without it.
    pub(crate) fn silent_keepers(&self) -> Vec<String> {
        let name = |disk: &DiskId| match self.servers.get(disk) {
            Some(server) if !server.name.is_empty() => server.name.clone(),
            Some(server) => server.place.http.to_string(),
            None => format!("disk {disk}"),
        };
        let set = self.namespace.keepers().iter().filter(|_| self.log_replication.is_silent);
        set.map(name).collect()
    }

    /// Gives up disks that never come back, as an operator has said. [`Event::Done`] follows when
    /// the log names all of these disks as gone. The nameserver does not hear a dataserver that
    /// comes back with one of these disks.
    ///
    /// # Errors
    /// [`FilesRefusal::Invalid`] for the disk of a dataserver that lives. Also
    /// [`FilesRefusal::Invalid`] when a file has all its copies on disks that are given up, unless
    /// the order is forced.
    ///
    /// [`Event::Done`]: crate::nameserver::Event::Done
    pub fn forget(
        &mut self,
        now: Timestamp,
        token: u64,
        disks: &[DiskId],
        is_forced: bool,
    ) -> Result<(), FilesRefusal> {
        self.check_log()?;
        if disks.iter().any(|disk| self.is_live(now, *disk)) {
            let what = "the dataserver lives or was just alive: use `evenfall files decommission`";
            return Err(FilesRefusal::Invalid(what.into()));
        }
        let is_left = |disk: &DiskId| disks.contains(disk) || self.namespace.is_gone(*disk);
        let files = self.namespace.inodes().keys().filter_map(|id| self.namespace.file(*id));
        let last = files.filter(|file| file.group.members.iter().all(is_left)).count();
        if last > 0 && !is_forced {
            let files = match last {
                1 => "1 file has its".to_owned(),
                _ => format!("{last} files have their"),
            };
            return Err(FilesRefusal::Invalid(format!(
                "{files} newest bytes on these disks alone: give --force to give these bytes up"
            )));
        }
        for disk in disks {
            self.servers.remove(disk);
            if !self.namespace.is_gone(*disk) {
                self.disk_is_gone(*disk);
            }
        }
        // The operator gives up the last keeper too, and changes go on without a keeper.
        self.leave_keepers_out(now, false);
        self.record(NamespaceChange::NOTHING, [Effect::Done(token)]);
        Ok(())
    }

    /// Leaves out each keeper whose dataserver is silent, gone, or to be emptied, while another
    /// keeper with the whole log lives. With `keeps_last`, the log always names a keeper.
    fn leave_keepers_out(&mut self, now: Timestamp, keeps_last: bool) {
        let is_bad = |disk: &DiskId| !self.is_fit(now, *disk) || self.namespace.is_leaving(*disk);
        let set = self.namespace.keepers();
        let is_whole = |disk: &&DiskId| {
            self.log_replication.keepers.get(disk).is_some_and(Keeper::is_whole) && !is_bad(disk)
        };
        let good: BTreeSet<DiskId> = set.iter().filter(is_whole).copied().collect();
        let rest: BTreeSet<DiskId> = match good.is_empty() {
            // No live keeper has the whole log. Keepers that never come back are left out, as long
            // as another keeper is left. Otherwise changes wait until a live dataserver is one.
            true if keeps_last && set.iter().all(|disk| self.namespace.is_gone(*disk)) => {
                set.clone()
            }
            true => set.iter().copied().filter(|disk| !self.namespace.is_gone(*disk)).collect(),
            false => set.iter().copied().filter(|d| good.contains(d) || !is_bad(d)).collect(),
        };
        let are_gone = rest.iter().all(|disk| self.namespace.is_gone(*disk));
        let has_heir = are_gone && self.servers.keys().any(|disk| self.is_live(now, *disk));
        let is_any_live = has_heir || rest.iter().any(|disk| self.is_live(now, *disk));
        let are_silent = !rest.is_empty() && !is_any_live;
        let is_less = rest.len() < set.len();
        let is_candidate_bad = |disk: &DiskId| is_bad(disk) && !rest.contains(disk);
        let drop: Vec<DiskId> = self
            .log_replication
            .keepers
            .keys()
            .copied()
            .filter(|disk| is_candidate_bad(disk))
            .collect();
        self.log_replication.is_silent = are_silent;
        for disk in drop {
            self.log_replication.keepers.remove(&disk);
        }
        if is_less {
            self.record(NamespaceChange::Keepers { disks: rest.into_iter().collect() }, None);
        }
    }
}

/// The copy of a nameserver's log on a dataserver.
#[derive(Clone, Debug)]
pub struct FoundLog {
    /// The disk of the dataserver.
    pub disk: DiskId,
    /// The generation of the last stream that began on the dataserver.
    pub generation: u64,
    /// The last whole copy of the log. Without a whole copy, this is empty.
    pub log: Bytes,
}

/// A log for a nameserver that lost its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuiltLog {
    /// The disk that has the newest copy.
    pub disk: DiskId,
    /// The log.
    pub log: Bytes,
    /// Keepers whose copies were not found. A missing keeper may have a newer copy. When no keeper
    /// is missing and `is_kept`, the log has every change that was acknowledged.
    pub missing: Vec<DiskId>,
    /// Whether the log names a keeper. Without one, changes were acknowledged when they were in
    /// the nameserver's own log alone, and this copy may be older than the last of them.
    pub is_kept: bool,
}

/// Makes a log from the newest of the copies. Returns `None` when no copy can be read.
pub fn rebuilt(found: &[FoundLog]) -> Option<RebuiltLog> {
    let state = |one: &FoundLog| -> Option<Namespace> {
        let (records, _) = journal::read(&one.log).ok()?;
        let mut namespace = Namespace::default();
        for record in records {
            namespace.apply(serde_json::from_slice(&record).ok()?);
        }
        Some(namespace)
    };
    let readable = found.iter().filter(|one| !one.log.is_empty());
    let readable = readable.filter_map(|one| Some((one.disk, state(one)?)));
    let mut readable: Vec<(DiskId, Namespace)> = readable.collect();
    readable.sort_by_key(|(_, namespace)| (namespace.starts(), namespace.changes()));
    let (disk, mut namespace) = readable.pop()?;
    let has = |keeper: &DiskId| readable.iter().any(|(other, _)| other == keeper);
    let missing = namespace.keepers().iter().copied();
    let missing = missing.filter(|keeper| *keeper != disk && !has(keeper));
    let missing: Vec<DiskId> = missing.filter(|keeper| !namespace.is_gone(*keeper)).collect();
    let is_kept = namespace.keepers().iter().any(|keeper| !namespace.is_gone(*keeper));
    // The next life of the nameserver gets a higher number than every life that a dataserver has
    // heard of, and than every life that a missing keeper can have heard of.
    let mut starts =
        found.iter().map(|one| one.generation >> 32).fold(namespace.starts(), u64::max);
    let mut changes = namespace.changes();
    if !missing.is_empty() || !is_kept {
        (starts, changes) = (starts + STARTS_SKIPPED, changes + CHANGES_SKIPPED);
    }
    namespace.apply(NamespaceChange::Counted { starts, changes });
    let log = journal::log_of(namespace.records().iter().map(body_of));
    Some(RebuiltLog { disk, log, missing, is_kept })
}

#[cfg(test)]
mod tests;
