//! The level `replica`: the journal of a second node has every commit too.
//!
//! ```text
//!  append ──> commit here ──> durable ──> COPY ──> commit there ──> have ──> acknowledged: replica
//! ```
//!
//! A thread sends records that this node has and the second node lacks. The thread sends committed
//! records only, so the second node never has more records than this node. The thread reads the
//! records from the files themselves, so there is no queue that could fill. A second node that was
//! away for a moment or for a day catches up in the same way. A file is copied from its first
//! append at `replica` on, from the file's beginning. Where this node has lost records of a file,
//! its copy ends in front of them. Appends to the file at `replica` are then refused with an error
//! that names the lost records.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::UserKey;
use evenfall_store_format::cache::Interest;
use evenfall_store_format::{Error, FileId, SnapshotReader};

use super::{StoreEngine, StoreFile, TICK};
use crate::client::{Client, ConnectOptions, RemoteFile};
use crate::protocol::BODY_BYTES_MAX;
use crate::{StoreError, lock};

/// Bytes that the copy of a file may lack before the file takes no append at `replica`. 256 MiB are
/// a second or two of appends.
const BEHIND_BYTES_MAX: u64 = 256 << 20;
/// How long an append waits for a second node that goes away during the append.
const PATIENCE: Duration = Duration::from_secs(10);
/// A second node that does not answer for this long counts as away.
const TIMEOUT: Duration = Duration::from_secs(15);
/// How often an idle connection asks whether the second node is there.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// Pause before the next attempt to connect.
const RETRY: Duration = Duration::from_millis(200);
/// Bytes under way at once over all files. One commit takes that many quickly.
const ROUND_BYTES: usize = 32 << 20;

/// How far a file is copied.
#[derive(Default)]
struct Copied {
    /// Records in the second node's journal.
    have: u64,
    /// Whether the copy counts for acknowledgements. In a cluster it does once the names state
    /// which node has the copy.
    is_settled: bool,
    /// Why the second node refuses the file, and when it said so.
    refused: Option<(String, Instant)>,
}

struct State {
    files: BTreeMap<FileId, Copied>,
    /// Why the second node is away; `None` while it is connected.
    away: Option<String>,
    has_work: bool,
}

/// The second node, as this node sees it.
pub(super) struct Replication {
    address: SocketAddr,
    options: ConnectOptions,
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
}

/// A file that is being copied on the connection.
struct Link {
    file: Arc<StoreFile>,
    remote: RemoteFile,
    node: u32,
    sent: u64,
    /// Records that were durable here when the connection began. An earlier second node may have
    /// acknowledged at most these.
    before: u64,
}

impl Replication {
    pub(super) fn new(address: SocketAddr, key: Option<UserKey>) -> Self {
        let options = ConnectOptions { timeout: TIMEOUT, ..ConnectOptions::with_key(key) };
        let away = Some("it was not reached yet".to_owned());
        let state = State { files: BTreeMap::new(), away, has_work: false };
        let (work, done) = (Condvar::new(), Condvar::new());
        Self { address, options, state: Mutex::new(state), work, done }
    }

    fn refuse<T>(&self, is_retryable: bool, why: &str) -> Result<T, StoreError> {
        let what = format!("replica {}: {why}", self.address);
        Err(StoreError::Replica { what, is_retryable })
    }

    fn wake(&self) {
        lock(&self.state).has_work = true;
        self.work.notify_one();
    }

    /// Whether an append that waits for the second node may begin.
    fn admit(&self, file: &StoreFile) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        if let Some(why) = &state.away {
            let why = format!("the second node is away ({why}); other levels go on");
            return self.refuse(true, &why);
        }
        let known = state.files.get(&file.id);
        if let Some((why, _)) = known.and_then(|copied| copied.refused.as_ref()) {
            return self.refuse(true, &format!("{} is not taken there: {why}", file.name));
        }
        let behind = file.durable.load(Relaxed).saturating_sub(known.map_or(0, |c| c.have));
        let bytes = behind * u64::from(file.schema.record_bytes);
        if known.is_some() && bytes > BEHIND_BYTES_MAX {
            let why =
                format!("the second node lacks {bytes} bytes of {}: try again later", file.name);
            return self.refuse(true, &why);
        }
        if known.is_none() {
            state.files.insert(file.id, Copied::default());
            drop(state);
            self.wake();
        }
        Ok(())
    }

    /// Returns when the second node has this many records of the file.
    fn wait(&self, file: &StoreFile, records: u64) -> Result<(), StoreError> {
        let end = Instant::now() + PATIENCE;
        let mut state = lock(&self.state);
        loop {
            let copied = state.files.get(&file.id);
            if copied.is_some_and(|copied| copied.is_settled && copied.have >= records) {
                return Ok(());
            }
            let refused = copied.and_then(|copied| copied.refused.clone()).map(|(why, _)| why);
            if refused.is_some() || Instant::now() > end {
                let why = refused.or_else(|| state.away.clone());
                let why = why.unwrap_or_else(|| "the second node does not keep up".to_owned());
                let why = format!("{why}; the records are taken and synced on this node only");
                return self.refuse(false, &why);
            }
            let waited = self.done.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    fn is_away(&self, why: &StoreError) {
        lock(&self.state).away = Some(why.to_string());
        self.done.notify_all();
    }

    /// Waits for work or for the time of a heartbeat. Returns the files to copy.
    fn files(&self) -> Vec<FileId> {
        let state = lock(&self.state);
        let idle = |state: &mut State| !state.has_work;
        let waited = self.work.wait_timeout_while(state, HEARTBEAT, idle);
        let mut state = waited.unwrap_or_else(|e| e.into_inner()).0;
        state.has_work = false;
        state.files.keys().copied().collect()
    }

    fn note(&self, file: FileId, note: impl FnOnce(&mut Copied)) {
        if let Some(copied) = lock(&self.state).files.get_mut(&file) {
            note(copied);
        }
    }

    /// Durable bytes that the second node lacks, and whether it is away.
    fn behind(&self, shared: &StoreEngine) -> (u64, bool) {
        let state = lock(&self.state);
        let of = |(id, copied): (&FileId, &Copied)| {
            let file = shared.file_of(*id)?;
            let records = file.durable.load(Relaxed).saturating_sub(copied.have);
            Some(records * u64::from(file.schema.record_bytes))
        };
        (state.files.iter().filter_map(of).sum(), state.away.is_some())
    }
}

impl StoreEngine {
    pub(super) fn admit_replica(&self, file: &StoreFile) -> Result<(), StoreError> {
        match &self.replication {
            Some(replication) => replication.admit(file),
            None => {
                let what = "no second node is configured (--replica): append at the level local"
                    .to_owned();
                Err(StoreError::Replica { what, is_retryable: false })
            }
        }
    }

    /// Waits until the commit is done here and the second node has all records that are durable
    /// here.
    pub(super) fn await_copy(&self, file: &StoreFile, ticket: u64) -> Result<(), StoreError> {
        let Some(replication) = &self.replication else { return self.admit_replica(file) };
        // Records that are not committed here are not sent, and do not count as durable.
        self.await_commit(ticket)?;
        replication.wait(file, file.durable.load(Relaxed))
    }

    /// Notes files whose records up to these numbers are in the journal.
    pub(super) fn committed(&self, reached: Vec<(Arc<StoreFile>, u64)>) {
        for (file, end) in &reached {
            file.durable.fetch_max(*end, Relaxed);
        }
        if let Some(replication) = self.replication.as_ref().filter(|_| !reached.is_empty()) {
            replication.wake();
        }
    }

    /// Bytes that the second node lacks, and whether it is away.
    pub(super) fn replica_behind(&self) -> (u64, bool) {
        self.replication.as_ref().map_or((0, false), |replication| replication.behind(self))
    }

    pub(super) fn run_replication(&self) {
        let Some(replication) = &self.replication else { return };
        while !self.is_stopping() {
            if let Err(error) = self.replicate(replication) {
                replication.is_away(&error);
                std::thread::sleep(RETRY);
            }
        }
        replication.is_away(&StoreError::Closing);
    }

    /// Copies until the connection breaks or the store stops.
    fn replicate(&self, to: &Replication) -> Result<(), StoreError> {
        let mut client = Client::connect_with(to.address, &to.options)?;
        let mut links = BTreeMap::new();
        let known: Vec<FileId> = lock(&to.state).files.keys().copied().collect();
        self.link_all(to, &mut client, &known, &mut links);
        client.check()?;
        lock(&to.state).away = None;
        while !self.is_stopping() {
            let files = to.files();
            self.link_all(to, &mut client, &files, &mut links);
            if !self.copy_round(to, &mut client, &mut links)? {
                client.check()?;
            }
        }
        Ok(())
    }

    /// Begins to follow files that are not followed yet. A refusal of one file does not delay the
    /// others. The next user of the connection notices when it is broken.
    fn link_all(
        &self,
        to: &Replication,
        client: &mut Client,
        files: &[FileId],
        links: &mut BTreeMap<FileId, Link>,
    ) {
        for id in files {
            let Some(file) = self.file_of(*id) else {
                links.remove(id);
                lock(&to.state).files.remove(id);
                continue;
            };
            let is_refused = |copied: &Copied| {
                copied.refused.as_ref().is_some_and(|(_, at)| at.elapsed() < HEARTBEAT)
            };
            if links.contains_key(id) || lock(&to.state).files.get(id).is_some_and(is_refused) {
                continue;
            }
            let linked = self.link(client, file);
            let (have, refused) = match &linked {
                Ok(link) => (link.sent, None),
                Err(error) => (0, Some((error.to_string(), Instant::now()))),
            };
            to.note(*id, |copied| (copied.have, copied.refused) = (have, refused));
            links.extend(linked.ok().map(|link| (*id, link)));
        }
        to.done.notify_all();
    }

    fn link(&self, client: &mut Client, file: Arc<StoreFile>) -> Result<Link, StoreError> {
        let refused = |what: String| Err(StoreError::Replica { what, is_retryable: false });
        let (remote, node) = client.follow(&file.name, &file.entry)?;
        let (sent, first, here) = (remote.numbers.end, file.first(), file.durable.load(Relaxed));
        if sent > here {
            return refused(format!(
                "the second node has {sent} records and this node only {here}: this node has lost \
                 records; let the second node take over"
            ));
        }
        if sent < first {
            return refused(format!(
                "records before {first} are no longer kept here, and the second node has only \
                 {sent}: begin a copy before retention deletes records"
            ));
        }
        // A name or a directory may come back with other contents, so records of the copy are
        // compared with this file.
        for number in [0, sent.saturating_sub(1)] {
            let is_there = (first..sent).contains(&number);
            if is_there && client.record(&remote, number)? != self.record(&file, number)? {
                return refused(format!(
                    "record {number} differs on the second node, which has a copy of another file \
                     of that name; delete the copy there"
                ));
            }
        }
        if self.names.member().is_some() && node == 0 {
            let why = "the second node is not in this cluster: start it with --names";
            return refused(why.to_owned());
        }
        Ok(Link { file, remote, node, sent, before: here })
    }

    fn record(&self, file: &StoreFile, number: u64) -> Result<Bytes, StoreError> {
        let at = self.snapshot(file);
        let mut segments = self.segments(file, Interest::Passing);
        Ok(SnapshotReader::new(&at, &mut segments).record(number)?)
    }

    /// Sends a part of the missing records of each file, and waits until the second node has them
    /// in its journal. Returns whether there were any.
    fn copy_round(
        &self,
        to: &Replication,
        client: &mut Client,
        links: &mut BTreeMap<FileId, Link>,
    ) -> Result<bool, StoreError> {
        let is_behind = |link: &&mut Link| link.file.durable.load(Relaxed) > link.sent;
        let behind: Vec<&mut Link> = links.values_mut().filter(is_behind).collect();
        let share = (ROUND_BYTES / behind.len().max(1)).max(BODY_BYTES_MAX / 4);
        let (mut was_sent, mut stopped) = (Vec::new(), Vec::new());
        for link in behind {
            match self.send(client, link, share) {
                Ok(()) => was_sent.push(link.file.id),
                // Records that this disk has lost delay no other file.
                Err(StoreError::Store(error @ Error::Damaged { .. })) => {
                    stopped.push((link.file.id, error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        while let Some(completion) = client.completion()? {
            completion.first?;
        }
        for (id, why) in stopped {
            links.remove(&id);
            to.note(id, |copied| copied.refused = Some((why, Instant::now())));
        }
        for id in &was_sent {
            let Some(link) = links.get(id) else { continue };
            to.note(*id, |copied| copied.have = link.sent);
        }
        for link in links.values() {
            let is_due = lock(&to.state).files.get(&link.file.id).is_some_and(|c| !c.is_settled);
            if is_due && link.sent >= link.before {
                self.settle(link)?;
                to.note(link.file.id, |copied| copied.is_settled = true);
            }
        }
        to.done.notify_all();
        let is_more = links.values().any(|link| link.file.durable.load(Relaxed) > link.sent);
        if is_more {
            lock(&to.state).has_work = true;
        }
        Ok(!was_sent.is_empty())
    }

    /// From here on the names state which node may take the file over.
    fn settle(&self, link: &Link) -> Result<(), StoreError> {
        let name = &link.file.name;
        let is_known = self.names.local().find(name)?.and_then(|entry| entry.replica);
        if self.names.member().is_some() && is_known != Some(link.node) {
            self.names.replicate(name, link.node)?;
        }
        Ok(())
    }

    /// Sends the next records of a file, about `bytes` bytes, from memory or from the disk. An
    /// error when some of them are lost, after those in front of the lost ones were sent.
    fn send(&self, client: &mut Client, link: &mut Link, bytes: usize) -> Result<(), StoreError> {
        let size = usize::from(link.file.schema.record_bytes);
        let end = link.file.durable.load(Relaxed).min(link.sent + (bytes / size).max(1) as u64);
        let (at, mut segments) = self.reading(&link.file, Interest::Passing);
        let (mut next, mut part) = (link.sent, Vec::new());
        let most = BODY_BYTES_MAX - 8;
        let mut failed = None;
        let mut send = |part: &mut Vec<u8>| {
            let done = client.copy(&link.remote, next, part);
            next += (part.len() / size) as u64;
            part.clear();
            failed = failed.take().or(done.err());
        };
        let read =
            SnapshotReader::new(&at, &mut segments).records(link.sent..end, &mut |bytes: Bytes| {
                if part.len() + bytes.len() > most {
                    send(&mut part);
                }
                part.extend_from_slice(&bytes);
                Ok(())
            });
        if !part.is_empty() {
            send(&mut part);
        }
        read?;
        link.sent = end;
        failed.map_or(Ok(()), Err)
    }
}
