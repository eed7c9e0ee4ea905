//! The fault campaign of the store: a disk that tears and loses writes, and an object store that
//! fails. A seed decides when a node appends, flushes, checkpoints, publishes and crashes. The
//! campaign compares the store with a plain list of the appended records.
//!
//! The campaign runs the formats (`crates/store/format`) without the engine, and plays the engine's
//! part by hand. For each wait of a level of acknowledgement, the campaign counts the records that
//! the wait has promised, and a check tests the promise ([`OF_WAITS`]).
//!
//! After every crash, five checks hold:
//!
//! - records that were acknowledged `local` are present, and records acknowledged `object` are
//!   readable from the objects without the disk;
//! - the present records are a beginning of the appended records, byte for byte;
//! - records that were acknowledged `replica` are on a second node, which crashes independently and
//!   has no record that the first node lacks;
//! - a chunk that changes its form, from rows to columns, is in one of the two whatever happens in
//!   between, also when its rows were in memory and in journals alone;
//! - a disk that lies about syncs may lose records that it promised, and must not give false
//!   records.
//!
//! A wall clock that steps by years beside this deletes no record that is young (`ages`).

mod ages;
mod columns;
mod hand;
mod objects;
mod packing;
mod reading;
mod second;

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::Prng;
use evenfall_sim::campaign::{Outline, Trap};
use evenfall_sim::{
    Campaign, DiskFaults, Fault, FaultKind, NodeIndex, ObjectFaults, Plan, Rates, Run, SimDisk,
    SimObjects, SimTime, Violation, named_variants,
};
use evenfall_store_format::columnar::columnar_name;
use evenfall_store_format::journal::{Batch, Origin};
use evenfall_store_format::layout::{
    DataChunk, SEGMENT_BYTES, SEGMENTS_PER_CHUNK, chunk_name, segment_place,
};
use evenfall_store_format::metadata::MetadataNode;
use evenfall_store_format::pack::PackedEnd;
use evenfall_store_format::publication::published_segments;
use evenfall_store_format::reader::resume;
use evenfall_store_format::volume::PartialSegment;
use evenfall_store_format::{
    Appender, ColumnDisk, Error, FileId, Kind, Result, Schema, Sealed, Snapshot, Volume,
    VolumeConfig,
};

use self::hand::Hand;
use self::reading::{Local, everything, retry};
use self::second::Second;

named_variants! {
    /// The checks of the campaign.
    pub enum Check {
        /// Records acknowledged `local` are present after a crash.
        Durable,
        /// Records acknowledged `object` are readable from the objects without the disk.
        Published,
        /// Records acknowledged `replica` are on the second node after a crash.
        Replicated,
        /// Records are read as they were appended, byte for byte.
        True,
        /// On a disk that keeps synced writes, no call fails and no record is damaged.
        Works,
        /// No record goes for its age that is younger, whatever the wall clock shows.
        Aged,
    }
    /// Faults put into the store on purpose. The campaign must detect each of them.
    pub enum Mutant {
        /// Commits are acknowledged without a sync.
        CommitWithoutSync,
        /// A failed sync counts as a success.
        SyncErrorIgnored,
        /// A checkpoint forgets the records that fill no segment.
        TailForgotten,
        /// `object` is acknowledged before the metadata node is put.
        PublishedTooEarly,
        /// Old journals are removed before chunks are synced.
        ChunksUnsynced,
        /// The second node gets records that the first node has not committed.
        CopiedTooEarly,
        /// The second node acknowledges without a sync.
        CopyWithoutSync,
        /// A put of a metadata block overwrites any present block, so a late put undoes its
        /// successor.
        BlockUnconditional,
        /// All packs of a life have one name, so a put undoes its predecessor.
        PackInOnePlace,
        /// A pack is removed before the blocks that do not name it any more are put.
        PackDroppedEarly,
        /// A part of the disk that cannot be read at present counts as empty.
        ReadErrorIsEmptiness,
        /// An object that a listing leaves out counts as lost.
        ListingTrusted,
        /// Recovery wipes everything behind damage.
        WipesBehindDamage,
        /// What the disk has lost is not taken from the objects.
        HealsNothing,
        /// A raw chunk is removed before its columns and their name are synced.
        ColumnsUnsynced,
        /// Journals are removed although memory alone has rows of them besides.
        JournalDroppedEarly,
        /// Ages count by the wall clock, whatever step it makes.
        AgeBySteppedClock,
        /// A life takes the wall clock of its start as right.
        ClockForgotten,
    }
}

/// The check that tests the promise of each wait of the engine, by the name of the wait
/// (`evenfall_store_engine::Wait`).
pub const OF_WAITS: &[(&str, Check)] =
    &[("Commit", Check::Durable), ("Copy", Check::Replicated), ("Objects", Check::Published)];

/// A check that failed.
type Broken = Violation<Check>;

fn broken(check: Check, what: impl ToString) -> Broken {
    Broken { check, what: what.to_string() }
}

/// The violation for an error in a call that must not fail.
fn works(error: Error) -> Broken {
    broken(Check::Works, error)
}

/// Counts of one run.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Outcome {
    /// Crashes.
    crashes: u64,
    /// Requests of disk and objects that failed.
    failures: u64,
    /// Records appended.
    records: u64,
    /// Appends acknowledged `local`.
    local: u64,
    /// Publications acknowledged `object`.
    object: u64,
    /// Copies acknowledged `replica`.
    replica: u64,
    /// Records that were lost in a crash and had no acknowledgement.
    unpromised: u64,
    /// Chunks that were removed from the disk because the objects have them.
    evicted: u64,
    /// Chunks that were put into columns.
    columns: u64,
    /// Chunks among them that were never written as rows.
    sealed: u64,
    /// Synced segments of which a bit was flipped.
    rotten: u64,
    /// Segments that recovery found lost in front of whole ones.
    lost: u64,
    /// Steps of the wall clock, looks at which ages stood still, and records that were too old.
    ages: ages::AgeCounts,
}

/// A file of the store, and the list of records that were appended to it.
struct Stream {
    appender: Appender,
    schema: Arc<Schema>,
    truth: Vec<u8>,
    local: u64,
    object: u64,
    /// Records that the second node has acknowledged.
    replica: u64,
    published: MetadataNode,
    /// The metadata block as the present life of the node put it last.
    block: Option<Bytes>,
    /// The parts in which the present life of the node has put the end.
    packed: PackedEnd,
    /// Packs that a block may name for the stream.
    held: BTreeSet<String>,
    clock: i64,
    /// Segments that have rotted, and segments of which a crash took records that nobody was
    /// promised.
    lost: BTreeSet<u32>,
    /// Those of them that the objects were not promised to have.
    gone: BTreeSet<u32>,
}

impl Stream {
    /// Whether these bytes are a beginning of the appended records, but for these segments.
    fn begins_with(&self, found: &[u8], lost: &BTreeSet<u32>) -> bool {
        let Some(truth) = self.truth.get(..found.len()) else { return false };
        let layout = self.appender.layout();
        let step = layout.payload_bytes(layout.records_per_segment() as usize);
        let mut parts = (0..).zip(truth.chunks(step).zip(found.chunks(step)));
        parts.all(|(number, (truth, found))| truth == found || lost.contains(&number))
    }

    fn origin(&self) -> Origin {
        let record_bytes = self.schema.record_bytes;
        Origin { file: self.appender.file(), record_bytes, token: self.appender.token() }
    }

    fn size(&self) -> usize {
        usize::from(self.schema.record_bytes)
    }
}

/// One run.
struct Scene {
    prng: Prng,
    disk: SimDisk,
    objects: SimObjects,
    mutant: Option<Mutant>,
    lies: bool,
    volume: Volume<ColumnDisk<Hand>>,
    waiting: VecDeque<Sealed>,
    streams: Vec<Stream>,
    outcome: Outcome,
    config: VolumeConfig,
    /// Number of the pack that was put last.
    packs: u32,
    /// Limit of appended bytes. With most seeds a run fills segments, and with some seeds it fills
    /// chunks.
    append_bytes_max: u64,
    /// The events of the run as a text, for replays.
    story: Option<String>,
}

/// The campaign: a node that crashes, and a second node.
pub struct Store;

impl Campaign for Store {
    type Check = Check;
    type Mutant = Mutant;
    /// The faults of disk and objects. Everything else is drawn during the run.
    type Scene = Plan;

    fn outline(&self) -> Outline<Mutant, Check> {
        const TRAPS: &[Trap<Mutant, Check>] = &[
            (Mutant::CommitWithoutSync, Check::Durable, 0..200),
            (Mutant::SyncErrorIgnored, Check::Durable, 0..200),
            (Mutant::TailForgotten, Check::Durable, 0..200),
            (Mutant::PublishedTooEarly, Check::Published, 0..200),
            (Mutant::ChunksUnsynced, Check::Works, 0..200),
            (Mutant::CopiedTooEarly, Check::True, 0..200),
            (Mutant::CopyWithoutSync, Check::Replicated, 0..200),
            (Mutant::BlockUnconditional, Check::Published, 0..200),
            (Mutant::PackInOnePlace, Check::Published, 0..200),
            (Mutant::PackDroppedEarly, Check::Published, 0..200),
            (Mutant::ReadErrorIsEmptiness, Check::Works, 0..200),
            (Mutant::ListingTrusted, Check::Published, 0..200),
            (Mutant::WipesBehindDamage, Check::Durable, 0..400),
            (Mutant::HealsNothing, Check::Published, 0..400),
            (Mutant::ColumnsUnsynced, Check::Works, 0..400),
            (Mutant::JournalDroppedEarly, Check::Durable, 0..400),
            (Mutant::AgeBySteppedClock, Check::Aged, 0..100),
            (Mutant::ClockForgotten, Check::Aged, 0..100),
        ];
        Outline {
            name: "store",
            about: "what the store acknowledged is readable after any crash of disks and objects",
            seeds: 400,
            once_failed: &[],
            kinds: &[FaultKind::Disk, FaultKind::Objects],
            counts_min: &[
                ("crashes", 1_000),
                ("failed requests", 1_000),
                ("chunks evicted", 1),
                ("chunks put into columns", 10),
                ("chunks written once", 1),
                ("segments rotten", 100),
                ("segments lost in front of whole ones", 10),
                ("steps of the clock", 1_000),
                ("looks at which ages stood still", 1_000),
                ("records gone for their age", 1_000),
                // Some crashes must lose records, or else the campaign would be too mild.
                ("unpromised records lost", 1),
            ],
            mutants: TRAPS,
        }
    }

    fn scene(&self, seed: u64) -> Plan {
        Scene::new(seed, None).expect("a fresh disk opens").1
    }

    fn run(&self, plan: &Plan, mutant: Option<Mutant>, story: bool) -> Run<Check> {
        let (mut scene, _) = Scene::new(plan.seed, mutant).expect("a fresh disk opens");
        scene.story = story.then(String::new);
        for (_, fault) in &plan.faults {
            match *fault {
                Fault::Disk(_, faults) => scene.disk.set_faults(faults),
                Fault::Objects(faults) => scene.objects.set_faults(faults),
                _ => {}
            }
        }
        let violations = scene.life(plan.seed).err().into_iter().collect();
        scene.run(violations)
    }
}

impl Scene {
    fn new(seed: u64, mutant: Option<Mutant>) -> Result<(Self, Plan)> {
        let mut prng = Prng::new(seed);
        let lies = seed % 8 == 7;
        let disk = SimDisk::new(prng.next_u64(), DiskFaults::default());
        let objects = SimObjects::new(prng.next_u64(), ObjectFaults::default());
        let hand = Hand { disk: disk.clone(), mutant };
        let journal_bytes_max = 20_000 + prng.below(200_000);
        let config = columns::sizes(seed, journal_bytes_max);
        let (mut volume, _) = columns::open(hand, &config)?;
        let mut streams = Vec::new();
        for file in 0..1 + prng.below(4) {
            // Large records fill chunks, and small records fill segments.
            let sizes = [8, 16, 40, 100, if seed.is_multiple_of(16) { 8_000 } else { 333 }];
            let schema = Arc::new(Schema::opaque(sizes[prng.below(5) as usize]));
            let appender = Appender::new(FileId(file), 1, schema.clone())?;
            let published = MetadataNode { file: FileId(file), ..MetadataNode::default() };
            let (truth, clock) = (Vec::new(), 0);
            let (local, object, replica) = (0, 0, 0);
            let (block, packed, held) = (None, PackedEnd::default(), BTreeSet::new());
            let stream = Stream {
                appender,
                schema,
                truth,
                local,
                object,
                replica,
                published,
                block,
                packed,
                held,
                clock,
                lost: BTreeSet::new(),
                gone: BTreeSet::new(),
            };
            volume.register(stream.origin());
            streams.push(stream);
        }
        let sync_lies = if lies { 0.3 } else { 0.0 };
        let rough = prng.chance(0.5);
        let disk_faults = DiskFaults {
            write_fails: if rough { 0.02 } else { 0.0 },
            read_fails: if rough { 0.02 } else { 0.0 },
            sync_fails: if rough { 0.05 } else { 0.0 },
            sync_lies,
            bytes_max: prng.chance(0.1).then_some(3 << 20),
            slow_by: Duration::ZERO,
        };
        let object_faults =
            ObjectFaults { fails: 0.05, answers_late: 0.1, late_by: 12, list_lag: 9 };
        let faults = [Fault::Disk(NodeIndex(0), disk_faults), Fault::Objects(object_faults)];
        let faults = faults.map(|fault| (SimTime::ZERO, fault)).to_vec();
        let plan = Plan { seed, knobs: vec![], kinds: vec![], rates: Rates::default(), faults };
        let (outcome, waiting) = (Outcome::default(), VecDeque::new());
        let append_bytes_max = columns::append_bytes_max(seed);
        let story = None;
        let scene = Self {
            prng,
            disk,
            objects,
            mutant,
            lies,
            volume,
            waiting,
            streams,
            outcome,
            config,
            packs: 0,
            append_bytes_max,
            story,
        };
        Ok((scene, plan))
    }

    /// Runs both nodes to the end of the seed's events.
    fn life(&mut self, seed: u64) -> Result<(), Broken> {
        // A first node whose disk lies may restart with fewer records than the second node has.
        let mut second = match self.lies {
            true => None,
            false => {
                let made = Second::new(seed, self.mutant, &self.config, &self.streams);
                Some(made.map_err(works)?)
            }
        };
        let steps = 40 + self.prng.below(80);
        let mut aging = ages::AgingFile::new(seed, self.mutant);
        for _ in 0..steps {
            self.step()?;
            let aged = aging.step();
            self.outcome.ages = aging.counts;
            aged?;
            if let Some(second) = &mut second {
                second.step(&mut self.streams)?;
            }
            // A disk that lies may return to any older state, so only one crash is judged.
            if self.lies && self.disk.counts().0 > 0 {
                break;
            }
        }
        self.tell("crash").crash()?;
        // The disk of the first node is lost, and the second node has the only copy.
        if let Some(second) = &mut second {
            self.tell("lose the disk");
            second.crash(&self.streams)?;
            self.outcome.replica = second.acknowledged;
        }
        let (disk, objects) = (self.disk.counts(), self.objects.counts());
        self.outcome.crashes = disk.0;
        self.outcome.failures = disk.1 + objects.1;
        Ok(())
    }

    /// The result of the run.
    fn run(self, violations: Vec<Broken>) -> Run<Check> {
        let outcome = self.outcome;
        let mut hasher = DefaultHasher::new();
        outcome.hash(&mut hasher);
        self.streams.iter().for_each(|stream| stream.truth.hash(&mut hasher));
        let counts = vec![
            ("crashes", outcome.crashes),
            ("failed requests", outcome.failures),
            ("records", outcome.records),
            ("appends acknowledged local", outcome.local),
            ("publications acknowledged object", outcome.object),
            ("copies acknowledged replica", outcome.replica),
            ("unpromised records lost", outcome.unpromised),
            ("chunks evicted", outcome.evicted),
            ("chunks put into columns", outcome.columns),
            ("chunks written once", outcome.sealed),
            ("segments rotten", outcome.rotten),
            ("segments lost in front of whole ones", outcome.lost),
            ("steps of the clock", outcome.ages.steps),
            ("looks at which ages stood still", outcome.ages.stood_still),
            ("records gone for their age", outcome.ages.gone),
        ];
        let story = self.story.unwrap_or_default();
        Run { violations, digest: hasher.finish(), counts, story }
    }

    /// Adds the next event and the present state of all streams to the story.
    fn tell(&mut self, what: &str) -> &mut Self {
        let Some(story) = &mut self.story else { return self };
        for (at, stream) in self.streams.iter().enumerate() {
            let Stream { local, object, replica, .. } = stream;
            let records = stream.truth.len() / stream.size();
            let _ = writeln!(
                story,
                "stream {at}: {records} records, {local} local, {object} object, {replica} replica"
            );
        }
        let _ = writeln!(story, "{what}");
        self
    }

    fn step(&mut self) -> Result<(), Broken> {
        match self.prng.below(24) {
            0..=9 => self.tell("append").append()?,
            10..=12 => self.tell("write").write_some(),
            13 => drop(self.tell("flush").flush()),
            14 => self.tell("checkpoint").checkpoint(),
            15..=17 => self.tell("publish").publish(),
            18 => self.tell("read").read()?,
            19 => self.tell("evict").evict(),
            20 => self.tell("rot").rot_segment(),
            21..=22 => self.tell("columns").put_into_columns()?,
            _ => self.tell("crash").crash()?,
        }
        Ok(())
    }

    fn append(&mut self) -> Result<(), Broken> {
        let at = self.prng.below(self.streams.len() as u64) as usize;
        let local = self.prng.chance(0.5);
        let stream = &mut self.streams[at];
        let size = stream.size();
        let budget = [400, 20_000, self.append_bytes_max][self.prng.below(3) as usize];
        let mut batch = Vec::new();
        for _ in 0..1 + self.prng.below(1 + budget / size as u64) {
            stream.clock += self.prng.below(3) as i64;
            let start = batch.len();
            batch.extend_from_slice(&stream.clock.to_le_bytes());
            let mark = (stream.truth.len() + start) as u64 ^ self.prng.next_u64();
            batch.extend(mark.to_le_bytes().iter().cycle().take(size - 8));
        }
        let mut sealed = Vec::new();
        let taken = stream.appender.append(&batch, &mut sealed);
        taken.map_err(works)?;
        self.waiting.extend(sealed);
        stream.truth.extend_from_slice(&batch);
        self.outcome.records += (batch.len() / size) as u64;
        if local { self.commit(at) } else { Ok(()) }
    }

    /// Commits the records of a stream. Repeats a failed commit until it succeeds or the node gives
    /// up.
    fn commit(&mut self, at: usize) -> Result<(), Broken> {
        let stream = &mut self.streams[at];
        let Some((first, records)) = stream.appender.take_uncommitted() else {
            stream.local = stream.local.max(stream.appender.records());
            self.outcome.local += 1;
            return Ok(());
        };
        let mut batch = Batch::default();
        batch.push_records(stream.origin(), first, &records);
        for _ in 0..20 {
            if self.volume.commit(&mut batch).is_ok() {
                stream.local = stream.appender.records();
                self.outcome.local += 1;
                return Ok(());
            }
        }
        // The disk stays broken, so the process ends without an acknowledgement.
        self.disk.set_faults(DiskFaults::default());
        self.crash()
    }

    fn write_some(&mut self) {
        for _ in 0..self.prng.below(20) {
            if let Some(sealed) = self.waiting.pop_front() {
                // The volume keeps the data of a failed write and writes it again.
                let _ = self.volume.hold_segment(sealed);
            }
        }
    }

    fn release(streams: &mut [Stream], flushed: Vec<Sealed>) {
        for sealed in flushed.into_iter().filter(|sealed| sealed.kind == Kind::Data) {
            streams[sealed.file.0 as usize].appender.release(sealed.number);
        }
    }

    fn flush(&mut self) -> Result<()> {
        let flushed = self.volume.flush()?;
        Self::release(&mut self.streams, flushed);
        self.promise_synced();
        Ok(())
    }

    /// Records in synced segments are as safe as those that were acknowledged `local`.
    fn promise_synced(&mut self) {
        for stream in &mut self.streams {
            stream.local = stream.local.max(self.volume.synced(stream.appender.file()));
        }
    }

    /// Flips a bit in a synced segment. Everything in front of it and behind it stays.
    ///
    /// The last synced segment is spared, with its chunk when it is in columns. When the journal
    /// that had its records is gone and none has stated it yet, nothing tells its damage from an
    /// end that a crash has torn.
    fn rot_segment(&mut self) {
        let at = self.prng.below(self.streams.len() as u64) as usize;
        let stream = &mut self.streams[at];
        let file = stream.appender.file();
        let full = stream.appender.layout().full_segments(self.volume.synced(file));
        if self.lies || full < 2 {
            return;
        }
        let number = self.prng.below(u64::from(full) - 1) as u32;
        let (chunk, offset) = segment_place(number);
        let byte = offset + self.prng.below(SEGMENT_BYTES as u64);
        if self.disk.rot_byte(&chunk_name(Kind::Data, file, chunk), byte) {
            stream.lost.insert(number);
            self.outcome.rotten += 1;
        } else if (chunk + 1) * SEGMENTS_PER_CHUNK < full
            && self.disk.rot_byte(&columnar_name(DataChunk { file, number: chunk }), byte)
        {
            // A damaged chunk in columns may have lost all of its segments.
            stream.lost.extend(chunk * SEGMENTS_PER_CHUNK..(chunk + 1) * SEGMENTS_PER_CHUNK);
            self.outcome.rotten += 1;
        }
    }

    fn checkpoint(&mut self) {
        while let Some(sealed) = self.waiting.pop_front() {
            let _ = self.volume.hold_segment(sealed);
        }
        let streams = &self.streams;
        let forgets = self.mutant == Some(Mutant::TailForgotten);
        let done = self.volume.checkpoint(&mut |file, first| {
            let appender = &streams[file.0 as usize].appender;
            if forgets { Some(Bytes::new()) } else { appender.records_from(first) }
        });
        if let Ok(flushed) = done {
            Self::release(&mut self.streams, flushed);
            self.promise_synced();
            if self.mutant == Some(Mutant::JournalDroppedEarly) {
                self.drop_old_journals();
            }
        }
    }

    /// Removes chunks from the disk that the objects have.
    fn evict(&mut self) {
        for stream in &self.streams {
            for chunk in 0..stream.published.data_chunks {
                let gone = self.volume.evict_chunk(stream.appender.file(), chunk);
                self.outcome.evicted += u64::from(gone.is_ok_and(|gone| gone));
            }
        }
    }

    fn read(&mut self) -> Result<(), Broken> {
        let at = self.prng.below(self.streams.len() as u64) as usize;
        let stream = &self.streams[at];
        let snapshot = Snapshot::of(&stream.appender, 0);
        let appender = Some(&stream.appender);
        let (volume, waiting, objects) = (&self.volume, &self.waiting, &self.objects);
        let mut local = Local { appender, volume, waiting, objects };
        let found = match everything(&snapshot, &mut local, &stream.lost) {
            Ok(found) => found,
            // A disk that cannot be read returns an error and no false records.
            Err(Error::Storage(_)) => return Ok(()),
            Err(error) => return Err(works(error)),
        };
        if found.len() != stream.truth.len() || !stream.begins_with(&found, &stream.lost) {
            let what = format!("stream {at} reads otherwise than it was written");
            return Err(broken(Check::True, what));
        }
        Ok(())
    }

    fn crash(&mut self) -> Result<(), Broken> {
        self.crash_now()?;
        self.check_objects()
    }

    fn crash_now(&mut self) -> Result<(), Broken> {
        self.disk.crash();
        self.waiting.clear();
        let faults = DiskFaults::default();
        self.disk.set_faults(faults);
        let hand = Hand { disk: self.disk.clone(), mutant: self.mutant };
        let (volume, mut found) = columns::open(hand, &self.config).map_err(works)?;
        self.volume = volume;
        let damage = found.losses.iter().find(|loss| !loss.is_torn_end);
        let is_lost = found.files.values().any(|file| !file.partial.is_empty());
        if let Some(loss) = damage.filter(|_| !self.lies && !is_lost && self.mutant.is_none()) {
            return Err(broken(Check::Works, format!("{}: {}", loss.place, loss.what)));
        }
        for at in 0..self.streams.len() {
            let file = self.streams[at].appender.file();
            let recovered = found.files.remove(&file);
            let (records, tail, partial) = recovered
                .map_or((0, Bytes::new(), vec![]), |file| (file.records, file.tail, file.partial));
            match partial.first().filter(|_| self.mutant == Some(Mutant::WipesBehindDamage)) {
                Some(first) => {
                    let records = self.streams[at].appender.layout().first_record(first.number);
                    self.recover(at, records, Bytes::new())?;
                }
                None => {
                    self.lose(at, &partial)?;
                    self.recover(at, records, tail)?;
                }
            }
        }
        if self.prng.chance(0.5) {
            let rough =
                DiskFaults { write_fails: 0.02, sync_fails: 0.05, read_fails: 0.02, ..faults };
            self.disk.set_faults(rough);
        }
        Ok(())
    }

    /// Recovery has found that segments of a stream have lost records. The objects may have them.
    fn lose(&mut self, at: usize, partial: &[PartialSegment]) -> Result<(), Broken> {
        self.outcome.lost += partial.len() as u64;
        let stream = &mut self.streams[at];
        let layout = stream.appender.layout();
        for one in partial {
            let first = layout.first_record(one.number);
            let end = layout.first_record(one.number + 1);
            let is_promised = first + one.kept < stream.local.min(end);
            if is_promised && !self.lies && !stream.lost.contains(&one.number) {
                let what = format!("stream {at}: {one:?} has lost records that were promised");
                return Err(broken(Check::Durable, what));
            }
            stream.lost.insert(one.number);
            if stream.object < end {
                stream.gone.insert(one.number);
            }
        }
        let node = stream.published;
        if node.records == 0 || partial.is_empty() || self.mutant == Some(Mutant::HealsNothing) {
            return Ok(());
        }
        let numbers: Vec<u32> = partial.iter().map(|one| one.number).collect();
        let healed = retry(|| published_segments(&self.objects, node, &numbers));
        for sealed in healed.map_err(|error| broken(Check::Published, error))? {
            self.volume.write(sealed).map_err(works)?;
        }
        Ok(())
    }

    fn recover(&mut self, at: usize, records: u64, tail: Bytes) -> Result<(), Broken> {
        let lies = self.lies;
        let stream = &mut self.streams[at];
        let size = stream.size();
        if records < stream.local && !lies {
            let local = stream.local;
            let what = format!("stream {at}: {local} records were promised, {records} are there");
            return Err(broken(Check::Durable, what));
        }
        let mut rebuilt = Vec::new();
        let (volume, waiting, objects) = (&self.volume, &self.waiting, &self.objects);
        let mut local = Local { appender: None, volume, waiting, objects };
        let file = stream.appender.file();
        // Each life of the primary has a token of its own.
        let token = stream.appender.token() + 1;
        let resumed = resume(file, token, &stream.schema, records, tail, &mut local, &mut rebuilt);
        let resumption = match resumed {
            Ok(resumption) => resumption,
            Err(error) if !lies => {
                return Err(broken(Check::Works, format!("stream {at}: {error}")));
            }
            // Segments that the disk had promised are lost, and the store reports it. The run ends
            // here.
            Err(_) => return Ok(()),
        };
        let appender = Appender::resume(file, token, stream.schema.clone(), resumption);
        stream.appender = appender.map_err(works)?;
        (stream.block, stream.packed) = (None, PackedEnd::default());
        // Rebuilt segments are readable from now on.
        self.waiting.extend(rebuilt);
        let (volume, waiting, objects) = (&self.volume, &self.waiting, &self.objects);
        let mut local = Local { appender: None, volume, waiting, objects };
        let snapshot = Snapshot::of(&stream.appender, 0);
        let found = match everything(&snapshot, &mut local, &stream.lost) {
            Ok(found) => found,
            Err(_) if lies => return Ok(()),
            Err(error) => return Err(broken(Check::Works, format!("stream {at}: {error}"))),
        };
        if !stream.begins_with(&found, &stream.lost) {
            let what = format!("stream {at} holds what was never written to it");
            return Err(broken(Check::True, what));
        }
        let there = stream.appender.records();
        if found.len() as u64 != there * size as u64 {
            let what = format!("stream {at}: {} bytes of {there} records are read", found.len());
            return Err(broken(Check::Works, what));
        }
        self.outcome.unpromised += ((stream.truth.len() - found.len()) / size) as u64;
        // The store takes records that the disk lost from the objects.
        let ahead = (stream.object as usize * size).max(found.len());
        let mut sealed = Vec::new();
        let missing = &stream.truth[found.len()..ahead];
        stream.appender.append(missing, &mut sealed).map_err(works)?;
        stream.truth.truncate(ahead);
        let (layout, geometry) = (stream.appender.layout(), stream.appender.index().geometry());
        let full = layout.full_segments(records);
        // The times of lost records are unknown to the appender.
        stream.clock = stream.clock.max(stream.appender.last_ns());
        self.volume.register(stream.origin());
        let nodes = full / geometry.entries_per_node();
        let wiped = self.volume.truncate(Kind::Index, file, nodes);
        wiped.and_then(|()| self.volume.flush()).map_err(works)?;
        self.waiting.extend(sealed);
        Ok(())
    }
}
