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
//! With some seeds the records are parts of messages (`parted`), and a sixth check reads messages:
//! each is whole, as it was appended, or not there at all.
//!
//! Bits of synced segments and of journals flip. A flipped bit in a journal costs no record but
//! those of the commit that it is in (`rot`), and none that another place has. Some records look
//! like commits, and none of them is believed.
//!
//! A wall clock that steps by years beside this deletes no record that is young (`ages`).

mod ages;
mod appending;
mod columns;
mod hand;
mod objects;
mod packing;
mod parted;
mod reading;
mod rot;
mod second;

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::Prng;
use evenfall_sim::campaign::{Outline, Trap};
use evenfall_sim::{
    Campaign, DiskFaults, Fault, FaultKind, NodeIndex, ObjectFaults, Plan, Rates, Run, SimDisk,
    SimObjects, SimTime, Violation, named_variants,
};
use evenfall_store_format::journal::Origin;
use evenfall_store_format::metadata::MetadataNode;
use evenfall_store_format::pack::PackedEnd;
use evenfall_store_format::reader::resume;
use evenfall_store_format::volume::RecoveredFile;
use evenfall_store_format::{
    Appender, ColumnDisk, Error, FileEndSnapshot, FileId, Result, Schema, SealedSegment,
    SegmentKind, TailRecords, Volume, VolumeConfig,
};

use self::hand::Hand;
use self::reading::{Local, everything};
use self::rot::JournalRot;
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
        /// A message of several records is read whole, as it was appended, or not at all.
        Whole,
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
        /// Recovery drops what a journal has behind damage.
        DropsBehindDamage,
        /// Recovery believes a commit of another life behind damage in a journal.
        BelievesStaleCommit,
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
        /// A message is acknowledged by a commit that lacks its last record.
        CommitCutsMessage,
        /// A reader takes a part behind the first for the beginning of a message.
        ContinuationIsHead,
        /// A seal keeps the first record of a message and drops the rest.
        SealCutsMessage,
        /// A writer goes on behind a message that a crash has cut short.
        CutMessageForgotten,
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
    /// Streams that ended within a message after a crash.
    cut: u64,
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
    /// Commits of journals of which a bit was flipped.
    rotten_commits: u64,
    /// Records that were lost with them.
    lost_records: u64,
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
    /// The number behind the last message that was appended, and behind the last of those that were
    /// acknowledged, where the records are messages.
    drafted: u64,
    acknowledged: u64,
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
    /// Records of commits in journals that have rotted since the last crash.
    touched: Vec<Range<u64>>,
    /// Those of them that were lost, in order.
    missing: Vec<Range<u64>>,
}

impl Stream {
    fn new(appender: Appender, schema: Arc<Schema>) -> Self {
        let file = appender.file();
        Self {
            appender,
            schema,
            truth: Vec::new(),
            local: 0,
            object: 0,
            replica: 0,
            drafted: 0,
            acknowledged: 0,
            published: MetadataNode { file, ..MetadataNode::default() },
            block: None,
            packed: PackedEnd::default(),
            held: BTreeSet::new(),
            clock: 0,
            lost: BTreeSet::new(),
            gone: BTreeSet::new(),
            touched: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Whether these bytes are a beginning of the appended records, but for these segments and for
    /// missing records, which are zeros.
    fn begins_with(&self, found: &[u8], lost: &BTreeSet<u32>) -> bool {
        let Some(truth) = self.truth.get(..found.len()) else { return false };
        let (layout, size) = (self.appender.layout(), self.size());
        let step = layout.payload_bytes(layout.records_per_segment() as usize);
        let is_missing = |number: u64| self.missing.iter().any(|range| range.contains(&number));
        let mut parts = (0..).zip(truth.chunks(step).zip(found.chunks(step)));
        parts.all(|(number, (truth, found))| {
            let mut records = (layout.first_record(number)..).zip(truth.chunks(size));
            truth == found
                || lost.contains(&number)
                || found.chunks(size).all(|found| {
                    let (number, truth) = records.next().expect("as many as there are");
                    truth == found || is_missing(number) && found.iter().all(|byte| *byte == 0)
                })
        })
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
    waiting: VecDeque<SealedSegment>,
    streams: Vec<Stream>,
    outcome: Outcome,
    config: VolumeConfig,
    /// Number of the pack that was put last.
    packs: u32,
    /// Limit of appended bytes. With most seeds a run fills segments, and with some seeds it fills
    /// chunks.
    append_bytes_max: u64,
    rot: JournalRot,
    /// The events of the run as a text, for replays.
    story: Option<String>,
}

/// The campaign: a node that crashes, and a second node.
pub struct StoreCampaign;

impl Campaign for StoreCampaign {
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
            (Mutant::DropsBehindDamage, Check::Durable, 0..400),
            (Mutant::BelievesStaleCommit, Check::True, 0..400),
            (Mutant::HealsNothing, Check::Published, 0..400),
            (Mutant::ColumnsUnsynced, Check::Works, 0..400),
            (Mutant::JournalDroppedEarly, Check::Durable, 0..400),
            (Mutant::AgeBySteppedClock, Check::Aged, 0..100),
            (Mutant::ClockForgotten, Check::Aged, 0..100),
            (Mutant::CommitCutsMessage, Check::Whole, 0..40),
            (Mutant::ContinuationIsHead, Check::Whole, 0..40),
            (Mutant::SealCutsMessage, Check::Whole, 200..280),
            (Mutant::CutMessageForgotten, Check::Whole, 56..100),
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
                ("segments rotten", 100),
                ("segments lost in front of whole ones", 10),
                ("commits of journals rotten", 100),
                ("records lost with rotten commits", 100),
                ("steps of the clock", 1_000),
                ("looks at which ages stood still", 1_000),
                ("records gone for their age", 1_000),
                // Some crashes must lose records, or else the campaign would be too mild.
                ("unpromised records lost", 1),
                ("messages cut short", 10),
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
        let rot = JournalRot::new(seed);
        let sizes = columns::volume_sizes(seed, journal_bytes_max);
        let config = VolumeConfig { secret: rot.secret, ..sizes };
        let (mut volume, _) = columns::open(hand, &config)?;
        let mut streams = Vec::new();
        for file in 0..1 + prng.below(4) {
            // Large records fill chunks, and small records fill segments.
            let sizes = [8, 16, 40, 100, if seed.is_multiple_of(16) { 8_000 } else { 333 }];
            let opaque = Schema::opaque(sizes[prng.below(5) as usize]);
            let schema = Arc::new(parted::message_schema(seed).unwrap_or(opaque));
            let appender = Appender::new(FileId(file), 1, schema.clone())?;
            let stream = Stream::new(appender, schema);
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
            rot,
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
            self.rot_journal();
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
            ("messages cut short", outcome.cut),
            ("chunks evicted", outcome.evicted),
            ("chunks put into columns", outcome.columns),
            ("chunks written once", outcome.sealed),
            ("segments rotten", outcome.rotten),
            ("segments lost in front of whole ones", outcome.lost),
            ("commits of journals rotten", outcome.rotten_commits),
            ("records lost with rotten commits", outcome.lost_records),
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

    fn write_some(&mut self) {
        for _ in 0..self.prng.below(20) {
            if let Some(sealed) = self.waiting.pop_front() {
                // The volume keeps the data of a failed write and writes it again.
                let _ = self.volume.hold_segment(sealed);
            }
        }
    }

    fn release(streams: &mut [Stream], flushed: Vec<SealedSegment>) {
        for sealed in flushed.into_iter().filter(|sealed| sealed.kind == SegmentKind::Data) {
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

    fn checkpoint(&mut self) {
        while let Some(sealed) = self.waiting.pop_front() {
            let _ = self.volume.hold_segment(sealed);
        }
        let streams = &self.streams;
        let forgets = self.mutant == Some(Mutant::TailForgotten);
        let done = self.volume.checkpoint(&mut |file, first| {
            let appender = &streams[file.0 as usize].appender;
            if forgets { Some(TailRecords::default()) } else { appender.records_from(first) }
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
        let snapshot = FileEndSnapshot::of(&stream.appender, 0);
        let appender = Some(&stream.appender);
        let (volume, waiting, objects) = (&self.volume, &self.waiting, &self.objects);
        let mut local = Local { appender, volume, waiting, objects };
        let found = match everything(&snapshot, &mut local, &stream.lost, &stream.missing) {
            Ok(found) => found,
            // A disk that cannot be read returns an error and no false records.
            Err(Error::Storage(_)) => return Ok(()),
            Err(error) => return Err(works(error)),
        };
        self.check_reading(at, &found)?;
        let stream = &self.streams[at];
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
        let is_excused = self.lies || is_lost || self.rot.is_rotten || self.mutant.is_some();
        if let Some(loss) = damage.filter(|_| !is_excused) {
            return Err(broken(Check::Works, format!("{}: {}", loss.place, loss.what)));
        }
        for at in 0..self.streams.len() {
            let origin = self.streams[at].origin();
            let nothing = || {
                let (tail, partial, lost) = (TailRecords::default(), vec![], vec![]);
                RecoveredFile { origin, records: 0, tail, partial, lost, unwritten: vec![] }
            };
            let mut recovered = found.files.remove(&origin.file).unwrap_or_else(nothing);
            let wipes = self.mutant == Some(Mutant::WipesBehindDamage);
            match recovered.partial.first().copied().filter(|_| wipes) {
                Some(first) => {
                    let records = self.streams[at].appender.layout().first_record(first.number);
                    self.recover(at, records, TailRecords::default())?;
                }
                None => {
                    self.lose(at, &mut recovered)?;
                    self.recover(at, recovered.records, recovered.tail)?;
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

    fn recover(&mut self, at: usize, records: u64, tail: TailRecords) -> Result<(), Broken> {
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
        let snapshot = FileEndSnapshot::of(&stream.appender, 0);
        let found = match everything(&snapshot, &mut local, &stream.lost, &stream.missing) {
            Ok(found) => found,
            Err(_) if lies => return Ok(()),
            Err(error) => return Err(broken(Check::Works, format!("stream {at}: {error}"))),
        };
        let promised = if lies { 0 } else { stream.acknowledged };
        stream.check_messages(0, &found, &stream.lost, promised, self.mutant)?;
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
        self.outcome.cut += u64::from(stream.ends_cut());
        stream.missing.retain(|range| range.end as usize * size <= ahead);
        let (layout, geometry) = (stream.appender.layout(), stream.appender.index().geometry());
        let full = layout.full_segments(records);
        // The times of lost records are unknown to the appender.
        stream.clock = stream.clock.max(stream.appender.last_ns());
        self.volume.register(stream.origin());
        let nodes = full / geometry.entries_per_node();
        let wiped = self.volume.truncate(SegmentKind::Index, file, nodes);
        wiped.and_then(|()| self.volume.flush()).map_err(works)?;
        self.waiting.extend(sealed);
        Ok(())
    }
}
