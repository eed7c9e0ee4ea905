//! Files whose primary is another node of the cluster, as this node serves them to its readers.
//!
//! Kawkab's nodes serve reads of every file (thesis, 5.3.2 and 5.4.3). Historical queries then load
//! a node without appends, and many readers of one file are spread over nodes.
//!
//! ```text
//!            record is in a published chunk  ──> cache, or else the object store
//!  reader ──> record is in the published end ──> kept in memory since the last look
//!            record is not published         ──> only for a fresh read: the primary
//! ```
//!
//! A look at the published end asks the names and reads one block of metadata. It takes place once
//! a second at most for each file, and only for a reader. Chunks and index nodes come through the
//! cache of this node. Up to the published end nobody asks the primary, and the primary need not
//! run.
//!
//! Records that are not published may be lost with their primary, and other records then get their
//! numbers. They are therefore kept beside the cache, under the token of the primary's life, and a
//! connection to a primary belongs to one life. A primary answers such a request only while its
//! lease holds.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::Objects as _;
use evenfall_store_format::cache::{Cache, Interest};
use evenfall_store_format::layout::{Layout, SEGMENT_BYTES};
use evenfall_store_format::{Error, FileId, Schema, SegmentKind, Segments, SnapshotReader};

use super::{SHARDS, StoreEngine};
use crate::archive::{PublishedEnd, block_of, node_in, node_of};
use crate::names::membership::ClusterMembership;
use crate::parts::Parts;
use crate::{
    Bucket, Client, ConnectOptions, Entry, FileListing, Freshness, NamesError, StoreError, lock,
};

/// How long a published end counts as the newest. Primaries publish every ten seconds.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A primary that is silent for this long does not answer. Its disk answers within milliseconds,
/// and its lease is over after ten seconds.
const PRIMARY_PATIENCE: Duration = Duration::from_secs(5);
/// Idle connections that are kept to one primary. Each holds a buffer of a mebibyte.
const IDLE_MAX: usize = 4;
/// Segments that are asked of a primary at once: a mebibyte.
const RECENT_SEGMENTS: u32 = 64;

/// A file of another node.
#[derive(Debug)]
pub struct NonPrimaryFile {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: FileId,
    /// Meaning of the records.
    pub schema: Arc<Schema>,
    layout: Layout,
    /// Lock of the thread that looks for a newer end.
    look_turn: Mutex<()>,
    known: Mutex<KnownFile>,
}

/// What this node knows of another node's file.
#[derive(Debug)]
struct KnownFile {
    entry: Entry,
    /// The published end; `None` when nothing is published, or after it has made room.
    end: Option<Arc<PublishedEnd>>,
    looked_at: Option<Instant>,
    used_at: Instant,
}

impl NonPrimaryFile {
    fn new(name: &str, entry: Entry) -> Result<Self, StoreError> {
        let (id, schema) = (entry.id, Arc::new(entry.schema.clone()));
        let layout = schema.layout()?;
        let known =
            Mutex::new(KnownFile { entry, end: None, looked_at: None, used_at: Instant::now() });
        let (name, look_turn) = (name.to_owned(), Mutex::new(()));
        Ok(Self { name, id, schema, layout, look_turn, known })
    }

    fn entry(&self) -> Entry {
        lock(&self.known).entry.clone()
    }

    /// The published end, if it was looked for after this moment.
    fn end_since(&self, moment: Instant) -> Option<Option<Arc<PublishedEnd>>> {
        let mut known = lock(&self.known);
        known.looked_at.filter(|at| *at >= moment)?;
        known.used_at = Instant::now();
        Some(known.end.clone())
    }

    /// Bytes that the published end takes, and when it was last used.
    fn end_bytes(&self) -> Option<(Instant, usize)> {
        let known = lock(&self.known);
        let end = known.end.as_ref()?;
        Some((known.used_at, bytes_of(end)))
    }

    fn forget_end(&self) {
        let mut known = lock(&self.known);
        (known.end, known.looked_at) = (None, None);
    }
}

fn bytes_of(end: &PublishedEnd) -> usize {
    end.tail.values().map(Bytes::len).sum()
}

fn unknown(name: &str) -> StoreError {
    Error::UnknownFile { file: name.to_owned() }.into()
}

/// The moment from which on a look is new enough.
fn look_due() -> Instant {
    let now = Instant::now();
    now.checked_sub(LOOK_EVERY).unwrap_or(now)
}

/// The list of all files of the cluster: when it was made, and each file with its entry.
type KeptListing = Option<(Instant, Arc<Vec<(FileListing, Entry)>>)>;

/// The life of a primary: number of the node, and token.
type PrimaryLife = (u32, u32);

/// The files of other nodes that this node has served.
pub(super) struct NonPrimaryFiles {
    files: Mutex<BTreeMap<String, Arc<NonPrimaryFile>>>,
    listing: Mutex<KeptListing>,
    /// Records of full segments that are not published, by file, token of the primary and number.
    recent: Mutex<Cache<(FileId, u32, u32), Bytes>>,
    /// Connections without a request under way.
    idle: Mutex<BTreeMap<PrimaryLife, Vec<Client>>>,
    /// Bytes that the published ends may take.
    end_bytes_max: usize,
    from_cache: AtomicU64,
    from_objects: AtomicU64,
    from_primary: AtomicU64,
}

/// Bytes that reads of other nodes' files have taken from each place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NonPrimaryBytes {
    /// From the memory of this node.
    pub cache: u64,
    /// From the object store.
    pub objects: u64,
    /// From the primaries.
    pub primary: u64,
}

impl NonPrimaryFiles {
    /// Files of a node whose read cache has this size. The recent segments take an eighth of it
    /// more, and the published ends a half.
    pub(super) fn new(cache_bytes: u64) -> Self {
        let bytes = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
        Self {
            files: Mutex::default(),
            listing: Mutex::default(),
            recent: Mutex::new(Cache::new(bytes / 8 / SEGMENT_BYTES)),
            idle: Mutex::default(),
            end_bytes_max: bytes / 2,
            from_cache: AtomicU64::new(0),
            from_objects: AtomicU64::new(0),
            from_primary: AtomicU64::new(0),
        }
    }

    pub(super) fn bytes(&self) -> NonPrimaryBytes {
        NonPrimaryBytes {
            cache: self.from_cache.load(Relaxed),
            objects: self.from_objects.load(Relaxed),
            primary: self.from_primary.load(Relaxed),
        }
    }

    /// Forgets the ends that were used longest ago, until the others fit.
    fn limit_ends(&self) {
        let files: Vec<_> = lock(&self.files).values().cloned().collect();
        let ends = files.iter().filter_map(|file| Some((file.end_bytes()?, file)));
        let mut ends: Vec<_> = ends.collect();
        let mut all: usize = ends.iter().map(|((_, bytes), _)| bytes).sum();
        if all <= self.end_bytes_max {
            return;
        }
        ends.sort_by_key(|((used_at, _), _)| *used_at);
        // The end that was used last stays, whatever its size: its reader needs it now.
        ends.pop();
        for ((_, bytes), file) in ends {
            if all <= self.end_bytes_max {
                return;
            }
            file.forget_end();
            all -= bytes;
        }
    }
}

/// The segments of a published file, for one reader.
struct EndSegments<'a> {
    shared: &'a StoreEngine,
    bucket: &'a Bucket,
    end: &'a PublishedEnd,
    interest: Interest,
    parts: Parts,
}

impl Segments for EndSegments<'_> {
    fn segment(
        &mut self,
        kind: SegmentKind,
        file: FileId,
        number: u32,
    ) -> evenfall_store_format::Result<Bytes> {
        let (shared, tail) = (self.shared, &self.end.tail);
        let count = |place: &AtomicU64| place.fetch_add(SEGMENT_BYTES as u64, Relaxed);
        let shard = &shared.cache[number as usize % SHARDS];
        // Only chunks are cached: a segment of a tail may get further records.
        let kept = match tail.get(&(kind, number)) {
            Some(bytes) => Some(bytes.clone()),
            None => lock(shard).get(&(file, kind, number)),
        };
        if let Some(bytes) = kept {
            count(&shared.others.from_cache);
            return Ok(bytes);
        }
        let is_object = |number| !tail.contains_key(&(SegmentKind::Data, number));
        let bytes = self.parts.segment(self.bucket, kind, file, number, &is_object)?;
        count(&shared.others.from_objects);
        // The bytes are copied, because a slice in the cache would keep the whole part in memory.
        let bytes = Bytes::copy_from_slice(&bytes);
        lock(shard).insert((file, kind, number), bytes.clone(), self.interest);
        Ok(bytes)
    }

    fn expect(&mut self, _: FileId, numbers: Range<u32>) {
        self.parts.expect(numbers);
    }
}

impl StoreEngine {
    /// The part in the cluster, and the objects; an error for a store that has no other nodes.
    fn cluster_of(&self, name: &str) -> Result<(&dyn ClusterMembership, &Bucket), StoreError> {
        let member = self.names.member().ok_or_else(|| unknown(name))?;
        match &self.bucket {
            Some(bucket) => Ok((member, bucket)),
            // Without objects, this node knows of the file no more than who has it.
            None => Err(member.whose(name)?.map_or_else(|| unknown(name), StoreError::from)),
        }
    }

    /// The entry of a file that this node may serve.
    fn entry_of(&self, name: &str) -> Result<Entry, StoreError> {
        let (member, _) = self.cluster_of(name)?;
        let entry = member.find(name)?.filter(|entry| !entry.is_deleted);
        let entry = entry.ok_or_else(|| unknown(name))?;
        let is_served = entry.readers.is_empty() || entry.readers.contains(&member.node());
        if is_served || entry.primary == member.node() {
            return Ok(entry);
        }
        let nodes = member.nodes()?;
        let readers = entry.readers.iter().map(|node| {
            let address = nodes.get(node).and_then(|node| node.address.clone());
            (*node, address)
        });
        let (file, readers) = (name.to_owned(), readers.collect());
        Err(NamesError::NotReader { file, readers }.into())
    }

    /// The file of this name, of which another node is the primary.
    pub(super) fn other_file(&self, name: &str) -> Result<Arc<NonPrimaryFile>, StoreError> {
        let known = lock(&self.others.files).get(name).cloned();
        let is_new = |file: &&Arc<NonPrimaryFile>| file.end_since(look_due()).is_some();
        if let Some(file) = known.as_ref().filter(is_new) {
            return Ok(Arc::clone(file));
        }
        let entry = match (self.entry_of(name), known) {
            // What was published stays published while the names do not answer.
            (Err(StoreError::Names(NamesError::Unavailable(_))), Some(known)) => return Ok(known),
            (entry, _) => entry?,
        };
        let mut files = lock(&self.others.files);
        if let Some(known) = files.get(name).filter(|known| known.id == entry.id) {
            return Ok(Arc::clone(known));
        }
        let file = Arc::new(NonPrimaryFile::new(name, entry)?);
        files.insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    /// The published end of a file, as it was after `moment` at the earliest.
    fn end_after(
        &self,
        file: &NonPrimaryFile,
        moment: Instant,
    ) -> Result<Option<Arc<PublishedEnd>>, StoreError> {
        if let Some(end) = file.end_since(moment) {
            return Ok(end);
        }
        let _turn = lock(&file.look_turn);
        // Another reader may have looked while this one waited.
        if let Some(end) = file.end_since(moment) {
            return Ok(end);
        }
        let looked = self.entry_of(&file.name).and_then(|entry| self.look_at(file, entry));
        let (entry, end) = match looked {
            Ok(looked) => looked,
            Err(error) => return self.end_without_look(file, error),
        };
        let mut known = lock(&file.known);
        let is_known = |end: &Arc<PublishedEnd>| {
            known.end.as_ref().is_some_and(|known| Arc::ptr_eq(known, end))
        };
        let is_new = end.as_ref().is_some_and(|end| !is_known(end));
        (known.entry, known.end) = (entry, end.clone());
        (known.looked_at, known.used_at) = (Some(Instant::now()), Instant::now());
        drop(known);
        // Most looks find the end that takes its room already.
        if is_new {
            self.others.limit_ends();
        }
        Ok(end)
    }

    /// The known end, while the names do not answer: what was published stays published. Otherwise
    /// the error. A file that is gone is forgotten.
    fn end_without_look(
        &self,
        file: &NonPrimaryFile,
        error: StoreError,
    ) -> Result<Option<Arc<PublishedEnd>>, StoreError> {
        if matches!(error, StoreError::Store(Error::UnknownFile { .. })) {
            lock(&self.others.files).remove(&file.name);
        }
        let are_names_away = matches!(error, StoreError::Names(NamesError::Unavailable(_)));
        let mut known = lock(&file.known);
        match known.end.clone().filter(|_| are_names_away) {
            Some(end) => {
                known.looked_at = Some(Instant::now());
                Ok(Some(end))
            }
            None => Err(error),
        }
    }

    /// The published end by this entry, or by a newer one when a new primary has published since
    /// and removed the objects of the old primary.
    fn look_at(
        &self,
        file: &NonPrimaryFile,
        entry: Entry,
    ) -> Result<(Entry, Option<Arc<PublishedEnd>>), StoreError> {
        if entry.id != file.id {
            return Err(unknown(&file.name));
        }
        let (_, bucket) = self.cluster_of(&file.name)?;
        let known = lock(&file.known).end.clone();
        let read = |entry: &Entry| -> Result<Option<Arc<PublishedEnd>>, StoreError> {
            let Some(node) = node_of(bucket, entry)? else { return Ok(None) };
            if let Some(same) = known.as_ref().filter(|known| known.node == node) {
                return Ok(Some(Arc::clone(same)));
            }
            let end = PublishedEnd::open(bucket, entry, node)?;
            self.others.from_objects.fetch_add(bytes_of(&end) as u64, Relaxed);
            Ok(Some(Arc::new(end)))
        };
        match read(&entry) {
            Ok(end) => Ok((entry, end)),
            Err(error) => {
                let newer = self.entry_of(&file.name)?;
                if newer.id != file.id || newer.listed == entry.listed {
                    return Err(error);
                }
                let end = read(&newer)?;
                Ok((newer, end))
            }
        }
    }

    /// The published end of a file, a second old at most.
    pub(super) fn published_end(
        &self,
        file: &NonPrimaryFile,
    ) -> Result<Option<Arc<PublishedEnd>>, StoreError> {
        self.end_after(file, look_due())
    }

    /// Reads in the published part of a file.
    pub(super) fn read_published<T>(
        &self,
        file: &NonPrimaryFile,
        end: &PublishedEnd,
        interest: Interest,
        read: impl FnOnce(&mut SnapshotReader<'_>) -> evenfall_store_format::Result<T>,
    ) -> Result<T, StoreError> {
        let (_, bucket) = self.cluster_of(&file.name)?;
        let parts = Parts::default();
        let mut segments = EndSegments { shared: self, bucket, end, interest, parts };
        Ok(read(&mut SnapshotReader::new(&end.snapshot, &mut segments))?)
    }

    /// The error for a missing object, to a reader of records from this record on. The object is
    /// damaged, unless retention removed it meanwhile, which the metadata states.
    pub(super) fn explain_missing(
        &self,
        file: &NonPrimaryFile,
        first: u64,
        error: StoreError,
    ) -> StoreError {
        if !matches!(error, StoreError::Store(Error::Damaged { .. })) {
            return error;
        }
        match self.end_after(file, Instant::now()) {
            Ok(Some(end)) if end.snapshot.first > first => {
                let record = format!("{first}: retention deleted it while it was read");
                let (first, end) = (end.snapshot.first, end.snapshot.records);
                Error::NoRecord { record, first, end }.into()
            }
            _ => error,
        }
    }

    /// Asks the primary of a file. Returns also the token of the primary's life. A file whose
    /// primary has changed is asked of the new primary.
    pub(super) fn ask_primary<T>(
        &self,
        file: &NonPrimaryFile,
        mut ask: impl FnMut(&mut Client) -> Result<T, StoreError>,
    ) -> Result<(T, u32), StoreError> {
        let entry = file.entry();
        let error = match self.ask_life(&entry, &mut ask) {
            Ok(answer) => return Ok((answer, entry.token)),
            Err(error) => error,
        };
        let newer = self.entry_of(&file.name).ok().filter(|newer| {
            newer.id == file.id && (newer.primary, newer.token) != (entry.primary, entry.token)
        });
        let Some(newer) = newer else { return Err(silent(file, &entry, error)) };
        lock(&file.known).entry = newer.clone();
        match self.ask_life(&newer, &mut ask) {
            Ok(answer) => Ok((answer, newer.token)),
            Err(error) => Err(silent(file, &newer, error)),
        }
    }

    /// Asks the life of the primary that this entry names.
    fn ask_life<T>(
        &self,
        entry: &Entry,
        ask: &mut impl FnMut(&mut Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let life = (entry.primary, entry.token);
        let idle = lock(&self.others.idle).get_mut(&life).and_then(Vec::pop);
        let mut client = match idle.filter(Client::is_open) {
            Some(client) => client,
            None => self.connect_to_life(entry)?,
        };
        // A connection whose request failed may be broken, so the next request connects anew.
        let answer = ask(&mut client)?;
        let mut idle = lock(&self.others.idle);
        idle.retain(|(node, token), _| *node != life.0 || *token == life.1);
        let of_life = idle.entry(life).or_default();
        if of_life.len() < IDLE_MAX {
            of_life.push(client);
        }
        Ok(answer)
    }

    fn connect_to_life(&self, entry: &Entry) -> Result<Client, StoreError> {
        let absent = || {
            let what = "it serves nowhere now".to_owned();
            StoreError::Remote { what, is_retryable: true }
        };
        let member = self.names.member().ok_or_else(absent)?;
        let find_address = || -> Result<Option<SocketAddr>, StoreError> {
            let node = member.nodes()?.remove(&entry.primary);
            let node = node.filter(|node| node.token == entry.token);
            Ok(node.and_then(|node| node.address).and_then(|address| address.parse().ok()))
        };
        let address = find_address()?.ok_or_else(absent)?;
        let (timeout, key) = (PRIMARY_PATIENCE, self.config.primary_key.clone());
        let options = ConnectOptions { timeout, key, freshness: Freshness::Primary };
        let client = Client::connect_with(address, &options)?;
        // A later life joins the names before it serves. While the names still have this life, it
        // is this life that has taken the connection.
        match find_address()? == Some(address) {
            true => Ok(client),
            false => Err(absent()),
        }
    }

    /// Counts bytes of records that a primary has given.
    pub(super) fn count_from_primary(&self, bytes: usize) {
        self.others.from_primary.fetch_add(bytes as u64, Relaxed);
    }

    /// The records of these numbers, which are not published, from the primary or from what it has
    /// given before.
    pub(super) fn read_recent(
        &self,
        file: &NonPrimaryFile,
        numbers: Range<u64>,
        each: &mut dyn FnMut(Bytes) -> evenfall_store_format::Result<()>,
    ) -> Result<(), StoreError> {
        let (layout, size) = (file.layout, file.layout.record_bytes());
        let mut number = numbers.start;
        while number < numbers.end {
            let segment = layout.locate(number)?.0;
            let begins = layout.first_record(segment);
            let key = (file.id, lock(&file.known).entry.token, segment);
            let kept = lock(&self.others.recent).get(&key);
            let (bytes, end) = match kept {
                Some(bytes) => {
                    self.others.from_cache.fetch_add(bytes.len() as u64, Relaxed);
                    (bytes, begins + layout.records_per_segment())
                }
                None => {
                    let end = layout.first_record(segment.saturating_add(RECENT_SEGMENTS));
                    let end = end.min(numbers.end);
                    (self.fetch_recent(file, begins..end)?, end)
                }
            };
            let end = end.min(numbers.end);
            let part = (number - begins) as usize * size..(end - begins) as usize * size;
            each(bytes.slice(part))?;
            number = end;
        }
        Ok(())
    }

    /// Records of the primary, from the first of a segment on. Full segments are kept.
    fn fetch_recent(
        &self,
        file: &NonPrimaryFile,
        numbers: Range<u64>,
    ) -> Result<Bytes, StoreError> {
        let (layout, size) = (file.layout, file.layout.record_bytes());
        let wanted = (numbers.end - numbers.start) as usize * size;
        let (bytes, token) = self.ask_primary(file, |client| {
            let remote = client.open(&file.name)?;
            let Range { start: first, end } = remote.numbers;
            if numbers.start < first || numbers.end > end {
                let record = format!("{} to {}", numbers.start, numbers.end);
                return Err(Error::NoRecord { record, first, end }.into());
            }
            let bytes = client.numbers(&remote, numbers.clone())?;
            if bytes.len() == wanted {
                return Ok(Bytes::from(bytes));
            }
            let what = format!("it has sent {} bytes in the place of {wanted}", bytes.len());
            Err(StoreError::Remote { what, is_retryable: false })
        })?;
        self.count_from_primary(bytes.len());
        let first = layout.locate(numbers.start)?.0;
        let segment_bytes = layout.records_per_segment() as usize * size;
        let mut recent = lock(&self.others.recent);
        for (segment, part) in (first..).zip(bytes.chunks_exact(segment_bytes)) {
            let key = (file.id, token, segment);
            recent.insert(key, Bytes::copy_from_slice(part), Interest::Recent);
        }
        Ok(bytes)
    }

    /// Every file of the cluster with its published records, a second old at most. While the names
    /// do not answer, the last list.
    fn list_published(&self) -> Result<Arc<Vec<(FileListing, Entry)>>, StoreError> {
        let mut kept = lock(&self.others.listing);
        let is_new = |(at, _): &&(Instant, _)| *at >= look_due();
        if let Some((_, listing)) = kept.as_ref().filter(is_new) {
            return Ok(Arc::clone(listing));
        }
        let (member, bucket) = self.cluster_of("")?;
        let files = match (member.list(), kept.as_mut()) {
            (Err(NamesError::Unavailable(_)), Some((at, listing))) => {
                // The readers that wait for this lock do not ask the silent names in turn.
                *at = Instant::now();
                return Ok(Arc::clone(listing));
            }
            (files, _) => files?,
        };
        let mut blocks: BTreeMap<String, Option<Bytes>> = BTreeMap::new();
        let mut listing = Vec::with_capacity(files.len());
        for (name, entry) in files.into_iter().filter(|(_, entry)| !entry.is_deleted) {
            let mut node = None;
            if entry.listed > 0 {
                let block = block_of(&entry);
                let bytes = match blocks.entry(block.clone()) {
                    Place::Occupied(known) => known.into_mut(),
                    Place::Vacant(place) => place.insert(bucket.get(&block, 0, SEGMENT_BYTES)?),
                };
                if let Some(bytes) = bytes {
                    node = node_in(bytes, &block, &entry)?;
                }
                if node.is_none() {
                    // A new primary has published the file since.
                    let Some(newer) = member.find(&name)? else { continue };
                    node = node_of(bucket, &newer)?;
                }
            }
            let records = node.map_or(0, |node| node.records);
            let schema = entry.schema.clone();
            listing.push((FileListing { name, schema, records }, entry));
        }
        let listing = Arc::new(listing);
        *kept = Some((Instant::now(), Arc::clone(&listing)));
        Ok(listing)
    }

    /// The files of which this node has neither the original nor a copy.
    pub(super) fn list_others(&self, freshness: Freshness) -> Result<Vec<FileListing>, StoreError> {
        if self.names.member().is_none() || self.bucket.is_none() {
            return Ok(Vec::new());
        }
        let listing = self.list_published()?;
        let is_other = |name: &str| {
            let ours = self.named(name);
            // A copy has no fresh records.
            ours.is_none_or(|file| freshness != Freshness::Published && file.check_ours().is_err())
        };
        let others = listing.iter().filter(|(file, _)| is_other(&file.name));
        if freshness == Freshness::Published {
            return Ok(others.map(|(file, _)| file.clone()).collect());
        }
        let mut of_primaries: BTreeMap<u32, BTreeMap<String, u64>> = BTreeMap::new();
        let mut listed = Vec::new();
        for (file, entry) in others {
            let of_primary = match of_primaries.entry(entry.primary) {
                Place::Occupied(known) => known.into_mut(),
                Place::Vacant(place) => {
                    let one = self.other_file(&file.name)?;
                    let asked = self.ask_primary(&one, Client::list);
                    let (files, _) = asked.map_err(|error| known_up_to(file.records, error))?;
                    place.insert(files.into_iter().map(|file| (file.name, file.records)).collect())
                }
            };
            let records = of_primary.get(&file.name).copied().unwrap_or(0).max(file.records);
            listed.push(FileListing { records, ..file.clone() });
        }
        Ok(listed)
    }
}

/// The error for a silent primary, to a reader who knows how many records are published.
fn known_up_to(known: u64, mut error: StoreError) -> StoreError {
    if let StoreError::PrimarySilent { published, .. } = &mut error {
        *published = known.max(*published);
    }
    error
}

/// The error for a primary that does not give its newest records. That a record is not there is an
/// answer of the primary.
fn silent(file: &NonPrimaryFile, entry: &Entry, why: StoreError) -> StoreError {
    if matches!(why, StoreError::Store(Error::NoRecord { .. })) {
        return why;
    }
    let published = lock(&file.known).end.as_ref().map_or(0, |end| end.snapshot.records);
    let (file, primary, why) = (file.name.clone(), entry.primary, Box::new(why));
    StoreError::PrimarySilent { file, primary, published, why }
}
