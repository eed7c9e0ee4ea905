//! The second node of the level `replica`. The second node gets the commits of the first node and
//! commits them too. The second node must keep the commits through crashes of either node.

use std::collections::BTreeSet;

use evenfall_core::Prng;
use evenfall_sim::{DiskFaults, SimDisk};
use evenfall_store_format::journal::{JournalBatch, Origin};
use evenfall_store_format::reader::resume;
use evenfall_store_format::{
    Appender, Error, FileEndSnapshot, FileId, Result, SealedSegment, SegmentKind, Segments,
    TailRecords, Volume, VolumeConfig,
};

use super::{Broken, Check, Hand, Mutant, Stream, broken, everything, works};

/// Attempts at a commit before the node gives up and restarts.
const TRIES: u32 = 20;

/// Segments on a disk, and segments of a file that are not on the disk yet.
struct OnDisk<'a> {
    volume: &'a Volume<Hand>,
    appender: Option<&'a Appender>,
}

impl Segments for OnDisk<'_> {
    fn segment(&mut self, kind: SegmentKind, file: FileId, number: u32) -> Result<bytes::Bytes> {
        let kept = self.appender.and_then(|appender| match kind {
            SegmentKind::Data => appender.unsynced_segment(number),
            SegmentKind::Index => appender.unsynced_node(number),
        });
        if let Some(bytes) = kept {
            return Ok(bytes);
        }
        self.volume.read(kind, file, number)?.ok_or_else(|| Error::Damaged {
            place: format!("{kind:?} {file} {number} of the second node"),
            what: "it is not on the disk".into(),
        })
    }
}

/// A second node with a copy of every stream.
pub(super) struct Second {
    prng: Prng,
    disk: SimDisk,
    volume: Volume<Hand>,
    config: VolumeConfig,
    copies: Vec<Appender>,
    mutant: Option<Mutant>,
    /// Copies acknowledged.
    pub(super) acknowledged: u64,
}

/// The disk of the second node. Mutants of the first node's disk do not change this disk.
fn hand(disk: &SimDisk, mutant: Option<Mutant>) -> Hand {
    let unsynced = mutant == Some(Mutant::CopyWithoutSync);
    Hand { disk: disk.clone(), mutant: unsynced.then_some(Mutant::CommitWithoutSync) }
}

impl Second {
    pub(super) fn new(
        seed: u64,
        mutant: Option<Mutant>,
        config: &VolumeConfig,
        streams: &[Stream],
    ) -> Result<Self> {
        // A generator of its own, so that the first node does the same with and without a second
        // node.
        let mut prng = Prng::new(seed ^ 0x5ec0);
        let disk = SimDisk::new(prng.next_u64(), DiskFaults::default());
        let hand = hand(&disk, mutant);
        let (volume, _) = Volume::open(hand, config.clone())?;
        let copy = |stream: &Stream| {
            Appender::new(stream.appender.file(), 1, std::sync::Arc::clone(&stream.schema))
        };
        let copies = streams.iter().map(copy).collect::<Result<_>>()?;
        let config = config.clone();
        Ok(Self { prng, disk, volume, config, copies, mutant, acknowledged: 0 })
    }

    /// One step of the second node between two steps of the first node.
    pub(super) fn step(&mut self, streams: &mut [Stream]) -> Result<(), Broken> {
        match self.prng.below(40) {
            0..=11 => {
                let at = self.prng.below(streams.len() as u64) as usize;
                self.copy(at, streams)
            }
            12 | 13 => {
                self.flush();
                Ok(())
            }
            14 => {
                let copies = &self.copies;
                let tail = &mut |file: FileId, first| copies[file.0 as usize].records_from(first);
                if let Ok(flushed) = self.volume.checkpoint(tail) {
                    self.release(&flushed);
                }
                Ok(())
            }
            15 => self.crash(streams),
            _ => Ok(()),
        }
    }

    /// Copies the records that the first node has committed and the second node lacks. The second
    /// node acknowledges them after its own commit.
    fn copy(&mut self, at: usize, streams: &mut [Stream]) -> Result<(), Broken> {
        let stream = &mut streams[at];
        let copy = &mut self.copies[at];
        let until = match self.mutant {
            Some(Mutant::CopiedTooEarly) => stream.appender.records(),
            _ => stream.local,
        };
        let (size, have) = (stream.size(), copy.records());
        if until > have {
            let part = &stream.truth[have as usize * size..until as usize * size];
            let mut sealed = Vec::new();
            copy.append(part, &mut sealed).map_err(works)?;
            for one in sealed {
                // The volume keeps the data of a failed write and writes it again.
                let _ = self.volume.write(one);
            }
        }
        let copy = &mut self.copies[at];
        let Some((first, records)) = copy.take_uncommitted() else { return Ok(()) };
        let record_bytes = stream.schema.record_bytes;
        let origin = Origin { file: copy.file(), record_bytes, token: copy.token() };
        let mut batch = JournalBatch::default();
        batch.push_records(origin, first, &records);
        for _ in 0..TRIES {
            if self.volume.commit(&mut batch).is_ok() {
                stream.replica = copy.records().min(stream.local);
                self.acknowledged += 1;
                return Ok(());
            }
        }
        self.crash(streams)
    }

    fn flush(&mut self) {
        if let Ok(flushed) = self.volume.flush() {
            self.release(&flushed);
        }
    }

    fn release(&mut self, flushed: &[SealedSegment]) {
        for sealed in flushed {
            let copy = &mut self.copies[sealed.file.0 as usize];
            match sealed.kind {
                SegmentKind::Data => copy.release(sealed.number),
                SegmentKind::Index => copy.release_node(sealed.number),
            }
        }
    }

    /// Crashes and restarts the second node, or checks its records after the disk of the first node
    /// is lost.
    pub(super) fn crash(&mut self, streams: &[Stream]) -> Result<(), Broken> {
        self.disk.crash();
        self.disk.set_faults(DiskFaults::default());
        let hand = hand(&self.disk, self.mutant);
        let (volume, mut found) = Volume::open(hand, self.config.clone()).map_err(works)?;
        self.volume = volume;
        for (at, stream) in streams.iter().enumerate() {
            let file = stream.appender.file();
            let recovered = found.files.remove(&file);
            let (records, tail) =
                recovered.map_or((0, TailRecords::default()), |f| (f.records, f.tail));
            if records < stream.replica {
                let promised = stream.replica;
                let what =
                    format!("second node, stream {at}: {promised} promised, {records} there");
                return Err(broken(Check::Replicated, what));
            }
            let token = self.copies[at].token() + 1;
            let schema = std::sync::Arc::clone(&stream.schema);
            let mut rebuilt = Vec::new();
            let mut segments = OnDisk { volume: &self.volume, appender: None };
            let start = resume(file, token, &schema, records, tail, &mut segments, &mut rebuilt);
            let start = start.map_err(works)?;
            self.volume.register(Origin { file, record_bytes: schema.record_bytes, token });
            self.volume.truncate(SegmentKind::Index, file, start.index.nodes()).map_err(works)?;
            for one in rebuilt {
                self.volume.write(one).map_err(works)?;
            }
            self.copies[at] = Appender::resume(file, token, schema, start).map_err(works)?;
            let appender = Some(&self.copies[at]);
            let mut segments = OnDisk { volume: &self.volume, appender };
            let at_end = FileEndSnapshot::of(&self.copies[at], 0);
            let there = everything(&at_end, &mut segments, &BTreeSet::new(), &[]).map_err(works)?;
            stream.check_messages(0, &there, &BTreeSet::new(), 0, self.mutant)?;
            if !stream.truth.starts_with(&there) {
                let what = format!("second node, stream {at}: it holds what the first does not");
                return Err(broken(Check::True, what));
            }
            let records = self.copies[at].records();
            if there.len() as u64 != records * u64::from(stream.schema.record_bytes) {
                let bytes = there.len();
                let what = format!(
                    "second node, stream {at}: {bytes} bytes of {records} records are read"
                );
                return Err(broken(Check::Replicated, what));
            }
        }
        self.volume.flush().map_err(works)?;
        if self.prng.chance(0.5) {
            let rough = DiskFaults { write_fails: 0.02, sync_fails: 0.05, ..DiskFaults::default() };
            self.disk.set_faults(rough);
        }
        Ok(())
    }
}
