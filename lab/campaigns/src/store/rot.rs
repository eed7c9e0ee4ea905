//! Bits of synced bytes that flip, in segments and in journals.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use evenfall_core::{Disk as _, Prng};
use evenfall_store_format::SegmentKind;
use evenfall_store_format::columnar::columnar_name;
use evenfall_store_format::journal::{
    COMMIT_BYTES, FRAME_BYTES, Frame, HEADER_BYTES, JournalBatch, ScannedCommit, scan_commits,
};
use evenfall_store_format::layout::{
    DataChunk, SEGMENT_BYTES, SEGMENTS_PER_CHUNK, chunk_name, parse_journal_name, segment_place,
};
use evenfall_store_format::publication::mend_lost;
use evenfall_store_format::volume::RecoveredFile;

use super::reading::{PatientObjects, retry};
use super::{Broken, Check, Mutant, Scene, Stream, broken, works};

/// The rot of journals, and records that look like commits.
pub(super) struct JournalRot {
    /// A generator of its own, so that the node does the same with and without rot.
    prng: Prng,
    /// The number from which the journals have their identities.
    pub(super) secret: u64,
    /// Whether a bit of a journal was flipped in this run. The journal may come back after crashes.
    pub(super) is_rotten: bool,
    /// Journals of whose header one copy has rotted.
    headers: BTreeSet<String>,
}

impl JournalRot {
    pub(super) fn new(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x0707);
        let secret = prng.next_u64();
        Self { prng, secret, is_rotten: false, headers: BTreeSet::new() }
    }
}

/// The records in the frames of a commit, by file.
fn records_of<'a>(
    streams: &'a [Stream],
    commit: &'a ScannedCommit,
) -> impl Iterator<Item = (usize, Range<u64>)> + 'a {
    commit.frames.iter().filter_map(|frame| match frame {
        Frame::Records(origin, first, records) => {
            let at = origin.file.0 as usize;
            Some((at, *first..first + (records.len() / streams[at].size()) as u64))
        }
        _ => None,
    })
}

impl Scene {
    /// Flips a bit in a synced segment. Everything in front of it and behind it stays.
    ///
    /// The last synced segment is spared, with its chunk when it is in columns. When the journal
    /// that had its records is gone and none has stated it yet, nothing tells its damage from an
    /// end that a crash has torn.
    pub(super) fn rot_segment(&mut self) {
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
        if self.disk.rot_byte(&chunk_name(SegmentKind::Data, file, chunk), byte) {
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

    /// Flips a bit of a journal now and then: in a commit, or in the header.
    ///
    /// The last commit of a file in a journal is spared. Nothing tells its damage from an end that
    /// a crash has torn, or from a commit that had no records of the file.
    pub(super) fn rot_journal(&mut self) {
        let rots = [None, Some(Mutant::DropsBehindDamage), Some(Mutant::BelievesStaleCommit)];
        if self.lies || !rots.contains(&self.mutant) || !self.rot.prng.chance(0.05) {
            return;
        }
        let listed = self.disk.list().unwrap_or_default();
        let names = listed.into_iter().map(|(name, _)| name);
        let names: Vec<String> = names.filter(|name| parse_journal_name(name).is_some()).collect();
        if names.is_empty() {
            return;
        }
        let name = &names[self.rot.prng.below(names.len() as u64) as usize];
        let Ok(bytes) = self.disk.read(name, 0, usize::MAX) else { return };
        let mut commits = Vec::new();
        if scan_commits(name, &bytes, &mut |commit| commits.push(commit)).is_err() {
            return;
        }
        if self.rot.prng.chance(0.1) {
            let at = self.rot.prng.below(HEADER_BYTES as u64);
            if !commits.is_empty() && self.rot.headers.insert(name.clone()) {
                self.rot.is_rotten |= self.disk.rot_byte(name, at);
            }
            return;
        }
        let is_spared = |at: usize| {
            let has_more = |file: usize| {
                let mut behind = commits[at + 1..].iter();
                behind.any(|commit| records_of(&self.streams, commit).any(|(of, _)| of == file))
            };
            at + 1 == commits.len()
                || records_of(&self.streams, &commits[at]).any(|(file, _)| !has_more(file))
        };
        let candidates: Vec<usize> = (0..commits.len()).filter(|at| !is_spared(*at)).collect();
        if candidates.is_empty() {
            return;
        }
        let commit = candidates[self.rot.prng.below(candidates.len() as u64) as usize];
        let commit = &commits[commit];
        let len = commit.place.end - commit.place.start;
        let at = commit.place.start + self.rot.prng.below(len);
        if self.disk.rot_byte(name, at) {
            let touched: Vec<_> = records_of(&self.streams, commit).collect();
            for (file, numbers) in touched {
                self.streams[file].touched.push(numbers);
            }
            self.rot.is_rotten = true;
            self.outcome.rotten_commits += 1;
            self.tell(&format!("a bit of a commit in {name} has flipped"));
        }
    }

    /// A record's bytes behind its time that look like a commit, if its stream has room for them: a
    /// commit of another life, with a record that nobody has appended.
    pub(super) fn craft_commit(&mut self, at: usize) -> Option<Vec<u8>> {
        let target = self.rot.prng.below(self.streams.len() as u64) as usize;
        let is_wanted = self.rot.prng.chance(0.3);
        let (target, identity) = (&self.streams[target], self.rot.prng.next_u64());
        let len = COMMIT_BYTES + FRAME_BYTES + target.size();
        if !is_wanted || self.streams[at].size() < 8 + len {
            return None;
        }
        let mut record = target.clock.to_le_bytes().to_vec();
        record.resize(target.size(), 0xee);
        let mut batch = JournalBatch::default();
        batch.push_records(target.origin(), target.appender.records(), &record);
        let (len, bytes) = batch.seal(identity, 0, 0);
        Some(bytes[..len].to_vec())
    }

    /// Recovery has found that a stream has lost records. The objects may have them.
    pub(super) fn lose(&mut self, at: usize, found: &mut RecoveredFile) -> Result<(), Broken> {
        self.outcome.lost += found.partial.len() as u64;
        // A commit that has rotted may have stated that a chunk is in the objects alone.
        let elsewhere = if self.rot.is_rotten { self.streams[at].object } else { 0 };
        self.check_lost(at, &found.lost, elsewhere)?;
        let (node, schema) = (self.streams[at].published, Arc::clone(&self.streams[at].schema));
        let heals = self.mutant != Some(Mutant::HealsNothing);
        if node.records > 0 && !found.lost.is_empty() && heals {
            let (volume, objects) = (&self.volume, PatientObjects(&self.objects));
            let mut read = |number| volume.read(SegmentKind::Data, node.file, number);
            let healed = retry(|| mend_lost(&objects, node, &schema, found, &mut read));
            for sealed in healed.map_err(|error| broken(Check::Published, error))? {
                self.volume.write(sealed).map_err(works)?;
            }
        }
        self.check_lost(at, &found.lost, 0)?;
        let stream = &mut self.streams[at];
        let layout = stream.appender.layout();
        for range in &found.lost {
            for (number, piece) in pieces_of(range, layout.records_per_segment()) {
                if stream.has_rotten(&piece) {
                    self.outcome.lost_records += piece.end - piece.start;
                    stream.missing.push(piece);
                } else {
                    stream.lost.insert(number);
                    if stream.object < layout.first_record(number + 1) {
                        stream.gone.insert(number);
                    }
                }
            }
        }
        stream.missing = join_ranges(std::mem::take(&mut stream.missing));
        stream.touched.clear();
        Ok(())
    }

    /// No record is lost that was promised, but for those that rot has touched, and those before
    /// `elsewhere`.
    fn check_lost(&self, at: usize, lost: &[Range<u64>], elsewhere: u64) -> Result<(), Broken> {
        let stream = &self.streams[at];
        let per_segment = stream.appender.layout().records_per_segment();
        for (number, piece) in lost.iter().flat_map(|range| pieces_of(range, per_segment)) {
            let promised = piece.start.max(elsewhere)..piece.end.min(stream.local);
            let is_excused = self.lies || stream.lost.contains(&number);
            if !promised.is_empty() && !is_excused && !stream.has_rotten(&promised) {
                let what = format!("stream {at}: records {promised:?} were promised and are lost");
                return Err(broken(Check::Durable, what));
            }
        }
        Ok(())
    }
}

impl Stream {
    /// Whether all of these records were in commits that have rotted.
    fn has_rotten(&self, numbers: &Range<u64>) -> bool {
        let rotten = || self.touched.iter().chain(&self.missing);
        numbers.clone().all(|number| rotten().any(|range| range.contains(&number)))
    }
}

/// The parts of a range of records, each with the segment that it is in.
fn pieces_of(
    range: &Range<u64>,
    per_segment: u64,
) -> impl Iterator<Item = (u32, Range<u64>)> + use<> {
    let range = range.clone();
    (range.start / per_segment..=(range.end - 1) / per_segment).map(move |number| {
        let (first, end) = (number * per_segment, (number + 1) * per_segment);
        (number as u32, range.start.max(first)..range.end.min(end))
    })
}

/// Ranges in order, with those joined that touch or overlap.
fn join_ranges(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => all.push(range),
        }
    }
    all
}
