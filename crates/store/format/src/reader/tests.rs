use std::collections::BTreeMap;
use std::sync::Arc;

use evenfall_core::Prng;

use super::*;
use crate::schema::FieldType;
use crate::segment::SealedSegment;

#[derive(Default)]
struct Shelf(BTreeMap<(SegmentKind, u32), Bytes>);

impl Segments for Shelf {
    fn segment(&mut self, kind: SegmentKind, _: FileId, number: u32) -> Result<Bytes> {
        let found = self.0.get(&(kind, number)).cloned();
        found.ok_or_else(|| Error::damaged(format!("{kind:?} {number}"), "not there"))
    }
}

impl Shelf {
    fn put(&mut self, sealed: Vec<SealedSegment>) {
        self.0.extend(sealed.into_iter().map(|s| ((s.kind, s.number), s.bytes)));
    }
}

fn schema() -> Schema {
    let fields = [("time", FieldType::Time), ("qty", FieldType::U64)];
    Schema::of(&fields).with_aggregates(&["qty"])
}

/// Records with runs of equal times, the shelf that has them, and the plain list.
fn build(count: usize, seed: u64) -> (Appender, Shelf, Vec<(i64, u64)>) {
    let mut appender = Appender::new(FileId(1), 1, Arc::new(schema())).unwrap();
    let (mut shelf, mut prng, mut time) = (Shelf::default(), Prng::new(seed), 0);
    let mut plain = Vec::new();
    while plain.len() < count {
        let mut batch = Vec::new();
        for _ in 0..1 + prng.below(3_000) {
            // A time that stays for a thousand records now and then spans segments.
            time += if prng.chance(0.001) { 1_000 } else { prng.below(2) as i64 };
            let qty = prng.below(1_000);
            plain.push((time, qty));
            batch.extend_from_slice(&time.to_le_bytes());
            batch.extend_from_slice(&qty.to_le_bytes());
        }
        let mut sealed = Vec::new();
        appender.append(&batch, &mut sealed).unwrap();
        shelf.put(sealed);
    }
    (appender, shelf, plain)
}

#[test]
fn reads_by_number_and_time_equal_those_of_a_list() {
    let (appender, mut shelf, plain) = build(80_000, 1);
    let at = FileEndSnapshot::of(&appender, 0);
    let mut reader = SnapshotReader::new(&at, &mut shelf);
    let mut prng = Prng::new(2);
    let span = plain.last().unwrap().0 as u64 + 10;
    for _ in 0..1_000 {
        let number = prng.below(plain.len() as u64);
        let record = reader.record(number).unwrap();
        assert_eq!(record_time(&record), plain[number as usize].0);
        let (a, b) = (prng.below(span) as i64 - 5, prng.below(span) as i64 - 5);
        let found = reader.between(a, b).unwrap();
        let first = plain.partition_point(|(time, _)| *time < a) as u64;
        let end = plain.partition_point(|(time, _)| *time <= b) as u64;
        assert_eq!(found, first..end.max(first), "{a} to {b}");
        let latest = plain.partition_point(|(time, _)| *time <= a).checked_sub(1);
        assert_eq!(reader.latest_at(a).ok(), latest.map(|n| n as u64));
    }
    assert!(matches!(reader.record(plain.len() as u64), Err(Error::NoRecord { .. })));
}

#[test]
fn ranges_and_summaries_equal_those_of_a_list() {
    let (appender, mut shelf, plain) = build(60_000, 3);
    let at = FileEndSnapshot::of(&appender, 0);
    let mut reader = SnapshotReader::new(&at, &mut shelf);
    let mut prng = Prng::new(4);
    for _ in 0..200 {
        let first = prng.below(plain.len() as u64);
        let end = first + prng.below(plain.len() as u64 - first + 1);
        let mut bytes = Vec::new();
        let mut take = |part: Bytes| {
            bytes.extend_from_slice(&part);
            Ok(())
        };
        reader.records(first..end, &mut take).unwrap();
        let part = &plain[first as usize..end as usize];
        assert_eq!(bytes.len(), part.len() * 16);
        let summary = reader.summary(first..end, &schema()).unwrap();
        let Some(summary) = summary else {
            assert!(part.is_empty());
            continue;
        };
        assert_eq!(summary.count, part.len() as u64);
        let sum: i128 = part.iter().map(|(_, qty)| i128::from(*qty)).sum();
        assert_eq!(summary.aggregates[0].sum, sum);
        assert_eq!((summary.min_ns, summary.max_ns), (part[0].0, part[part.len() - 1].0));
    }
}

#[test]
fn an_empty_file_has_no_records_and_says_so() {
    let appender = Appender::new(FileId(1), 1, Arc::new(schema())).unwrap();
    let at = FileEndSnapshot::of(&appender, 0);
    let mut shelf = Shelf::default();
    let mut reader = SnapshotReader::new(&at, &mut shelf);
    assert_eq!(reader.between(i64::MIN, i64::MAX), Ok(0..0));
    assert!(matches!(reader.latest_at(0), Err(Error::NoRecord { .. })));
    assert_eq!(reader.summary(0..0, &schema()), Ok(None));
}

#[test]
fn a_file_is_resumed_with_and_without_its_index() {
    let (appender, mut shelf, _) = build(700_000, 5);
    assert!(appender.index().nodes() > 1);
    let tail = Bytes::copy_from_slice(appender.tail());
    let (file, records) = (FileId(1), appender.records());
    let mut rebuilt = Vec::new();
    let again =
        resume(file, 1, &schema(), records, tail.clone(), &mut shelf, &mut rebuilt).unwrap();
    assert!(rebuilt.is_empty());
    assert_eq!(again.last_ns, appender.last_ns());
    assert_eq!(again.index.encode(file, 1), appender.index().encode(file, 1));
    let whole = shelf.0.clone();
    shelf.0.retain(|(kind, _), _| *kind == SegmentKind::Data);
    let again = resume(file, 1, &schema(), records, tail, &mut shelf, &mut rebuilt).unwrap();
    assert_eq!(again.index.encode(file, 1), appender.index().encode(file, 1));
    for sealed in &rebuilt {
        assert_eq!(sealed.bytes, whole[&(SegmentKind::Index, sealed.number)]);
    }
    assert_eq!(rebuilt.len() as u32, appender.index().nodes());
}
