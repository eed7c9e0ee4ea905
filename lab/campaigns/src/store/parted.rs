//! Streams of messages that take several records each, and a reader that must see each message
//! whole or not at all.
//!
//! The store knows records alone. A crash may therefore keep the first records of a message, a
//! flipped bit may take some out of its middle, and a seal puts all of them into one row. With some
//! seeds all streams of the node are recordings. Their writer and their reader follow the rules of
//! [`parts`](evenfall_store_format::messages::parts), as those of recordings do.
//!
//! The bytes of a message follow from its number, because a feed gives the same message again after
//! a crash. The check needs no list of what was appended for this reason.

use std::collections::BTreeSet;

use evenfall_core::Prng;
use evenfall_store_format::messages::parts::{
    MESSAGE_BYTES_MAX, PARTED_RECORD_BYTES, PartKind, PartRecord, PartStep, PartedMessage,
    is_parted, parted_schema, split_own_time,
};
use evenfall_store_format::schema::ArrivalOrder;
use evenfall_store_format::{FileId, Schema};

use super::{Broken, Check, Mutant, Scene, Stream, broken};

/// Bytes of a record.
const RECORD: usize = PARTED_RECORD_BYTES as usize;
/// The tag of all messages.
const TAG: u8 = 1;

/// The schema of the streams, where a seed gives them messages.
pub(super) fn message_schema(seed: u64) -> Option<Schema> {
    (seed % 8 == 5).then(|| parted_schema(&ArrivalOrder::default()))
}

/// The message of this number and its own time. Most messages fit into a few records.
fn message_of(file: FileId, number: u64) -> (Option<i64>, Vec<u8>) {
    let mut prng = Prng::new((file.0 << 40) ^ number);
    let len_max = match prng.below(64) {
        0 => MESSAGE_BYTES_MAX as u64,
        1..8 => 4_000,
        8..24 => 200,
        _ => 41,
    };
    let len = prng.below(len_max + 1) as usize;
    let own_ns = prng.chance(0.1).then(|| prng.next_u64() as i64);
    // No two words of a message are alike, so that parts in a wrong order are seen.
    let mark = prng.next_u64();
    let words = (0..len.div_ceil(8) as u64).map(|at| mark.wrapping_add(at).to_le_bytes());
    (own_ns, words.flatten().take(len).collect())
}

/// A reader of messages, one record after the other.
struct MessageReader {
    mutant: Option<Mutant>,
    /// The message whose parts so far are in `bytes`.
    open: Option<u64>,
    bytes: Vec<u8>,
}

/// What a reader has: number, own time and bytes of a message.
type ReadMessage = (u64, (Option<i64>, Vec<u8>));

impl MessageReader {
    fn new(mutant: Option<Mutant>) -> Self {
        Self { mutant, open: None, bytes: Vec::new() }
    }

    /// Gives up the open message.
    fn forget_open(&mut self) {
        self.open = None;
        self.bytes.clear();
    }

    /// Reads the next record. Returns the message that ends with it.
    fn read_record(&mut self, record: &[u8]) -> Option<ReadMessage> {
        let PartRecord { mut kind, message, has_own_time } = PartRecord::of(record);
        if self.mutant == Some(Mutant::ContinuationIsHead) && self.open.is_none() {
            kind = match kind {
                PartKind::Middle => PartKind::First,
                PartKind::Last => PartKind::Whole,
                other => other,
            };
        }
        let mut step = kind.step_of(message.number, self.open);
        if step == PartStep::Cut {
            self.forget_open();
            step = kind.step_of(message.number, None);
        }
        match step {
            PartStep::Cut | PartStep::Pass => None,
            PartStep::Extend => {
                self.bytes.extend_from_slice(message.bytes);
                self.open = Some(message.number);
                None
            }
            PartStep::End => {
                self.bytes.extend_from_slice(message.bytes);
                let (bytes, own_ns) = split_own_time(&self.bytes, has_own_time);
                let found = (message.number, (own_ns, bytes.to_vec()));
                self.forget_open();
                Some(found)
            }
        }
    }
}

impl Stream {
    /// Whether the records of the stream are messages.
    pub(super) fn is_parted(&self) -> bool {
        is_parted(&self.schema)
    }

    fn last_record(&self) -> Option<PartRecord<'_>> {
        self.truth.last_chunk::<RECORD>().map(|record| PartRecord::of(record))
    }

    /// Whether the stream ends within a message, which a crash has cut short.
    pub(super) fn ends_cut(&self) -> bool {
        self.is_parted() && self.last_record().is_some_and(|last| last.kind.is_cut_end())
    }

    /// Whether a reader gets this record. Where records were lost, a reader gets an error instead,
    /// and zeros stand here.
    fn is_held(&self, number: u64, record: &[u8], lost: &BTreeSet<u32>) -> bool {
        let segment = (number / self.appender.layout().records_per_segment()) as u32;
        let is_missing = || self.missing.iter().any(|range| range.contains(&number));
        let at = number as usize * RECORD;
        !(lost.contains(&segment) || is_missing())
            || self.truth.get(at..at + RECORD) == Some(record)
    }

    /// Reads these records, which begin with the one of number `first`, as messages. Each message
    /// comes in its turn and as it was appended, and none is missing but where records were lost.
    /// The messages in front of `promised` are among them.
    pub(super) fn check_messages(
        &self,
        first: u64,
        found: &[u8],
        lost: &BTreeSet<u32>,
        promised: u64,
        mutant: Option<Mutant>,
    ) -> Result<(), Broken> {
        if !self.is_parted() {
            return Ok(());
        }
        let file = self.appender.file();
        let wrong = |number: u64, what: &str| {
            Err(broken(Check::Whole, format!("stream {file}: message {number} {what}")))
        };
        let mut reader = MessageReader::new(mutant);
        // A reader that begins within a message passes over the rest of that message.
        let (mut next, mut has_gap) = (0, first > 0);
        for (at, record) in (first..).zip(found.chunks_exact(RECORD)) {
            if !self.is_held(at, record, lost) {
                reader.forget_open();
                has_gap = true;
                continue;
            }
            let Some((number, read)) = reader.read_record(record) else { continue };
            if number < next || number > next && !has_gap {
                return wrong(number, &format!("is read in the place of message {next}"));
            }
            if read != message_of(file, number) {
                return wrong(number, "is read otherwise than it was appended");
            }
            (next, has_gap) = (number + 1, false);
        }
        if next < promised && !has_gap {
            return wrong(next, "was acknowledged, and is not read");
        }
        Ok(())
    }
}

impl Scene {
    /// The next messages of a stream, in about so many records.
    pub(super) fn draft_messages(&mut self, at: usize, records: u64) -> Vec<u8> {
        let stream = &mut self.streams[at];
        let file = stream.appender.file();
        let before = (stream.truth.len() / RECORD) as u64;
        let (mut next, mut last) = (0, None);
        if let Some(PartRecord { kind, message, .. }) = stream.last_record() {
            let is_cut = kind.is_cut_end() && self.mutant != Some(Mutant::CutMessageForgotten);
            next = message.number + u64::from(!is_cut);
            last = Some(PartedMessage { own_ns: None, bytes: &[], ..message });
        }
        let (mut batch, mut count) = (Vec::new(), 0);
        while count < records {
            stream.clock += self.prng.below(3) as i64;
            let (own_ns, bytes) = message_of(file, next);
            let (recorded_ns, number, tag) = (stream.clock, next, TAG);
            let message =
                PartedMessage { recorded_ns, number, tag, missed: 0, own_ns, bytes: &bytes };
            count += message.put_behind(last, before + count, &mut batch);
            last = Some(PartedMessage { own_ns: None, bytes: &[], ..message });
            next += 1;
        }
        stream.drafted = next;
        batch
    }

    /// Bytes of a batch that the mutant leaves out of its commit: the last record, where it ends a
    /// message of several.
    pub(super) fn bytes_left_out(&self, at: usize, batch: &[u8]) -> usize {
        let is_mutant = self.mutant == Some(Mutant::CommitCutsMessage);
        let last = batch.last_chunk::<RECORD>().filter(|_| is_mutant);
        let is_last = |record: &[u8; RECORD]| PartRecord::of(record).kind == PartKind::Last;
        if self.streams[at].is_parted() && last.is_some_and(is_last) { RECORD } else { 0 }
    }

    /// Reads all messages of a stream, and again from a record that may lie within a message.
    pub(super) fn check_reading(&mut self, at: usize, found: &[u8]) -> Result<(), Broken> {
        let stream = &self.streams[at];
        if !stream.is_parted() {
            return Ok(());
        }
        let records = (found.len() / RECORD) as u64;
        for first in [0, self.prng.below(records + 1)] {
            let from = &found[first as usize * RECORD..];
            stream.check_messages(first, from, &stream.lost, 0, self.mutant)?;
        }
        Ok(())
    }
}
