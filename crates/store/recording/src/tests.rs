//! Recordings over a real store: every byte, every stamp, crashes and flipped bits.

use std::path::Path;

use evenfall_feed_formats::codec::{self, Format, ITCH, MACH};
use evenfall_store_engine::*;
use evenfall_store_format::{Field, FieldType, Schema};

use crate::{Catalog, RecordingSnapshot, RecordingWriter, StreamReplay};

mod appends;
#[cfg(feature = "arrow")]
mod books;
#[cfg(feature = "arrow")]
mod coded;
#[cfg(feature = "arrow")]
mod derived;
mod snapshots;

const NOW_NS: i64 = 1_790_000_000_000_000_000;
const DAY_NS: i64 = 86_400 * 1_000_000_000;

fn dated(path: &Path) -> StoreConfig {
    StoreConfig { objects: None, clock: || NOW_NS, ..StoreConfig::new(path) }
}

fn schema() -> Schema {
    let fields = [("time", FieldType::Time), ("value", FieldType::U64)];
    Schema::of(&fields).with_aggregates(&["value"])
}

fn open(path: &Path) -> Store {
    let opened = Store::open(StoreConfig::new(path)).unwrap();
    let damage: Vec<_> = opened.losses.iter().filter(|loss| !loss.is_torn_end).collect();
    assert!(damage.is_empty(), "{damage:?}");
    opened.store
}

#[test]
fn a_recording_keeps_every_stamp_as_it_came_and_one_wrong_stamp_moves_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dated(dir.path())).unwrap().store;
    // Lengths around the border of a class, so that the own time does not fit behind some messages.
    let times = [-90, -80, 400 * DAY_NS, -70, -75, -60, i64::MAX - NOW_NS, -50, -50];
    let message = |n: usize| vec![n as u8; 6 + n];
    let mut recorder = RecordingWriter::new(&store, "r", 1, StoreAckLevel::Local).unwrap();
    for (n, ns) in times.iter().enumerate() {
        recorder.push(0, n as u64, NOW_NS + ns, ITCH, &message(n)).unwrap();
    }
    recorder.flush().unwrap();
    let read = |times: std::ops::RangeInclusive<i64>| {
        let mut replay = StreamReplay::new(&store, "r", 0, times).unwrap();
        std::iter::from_fn(move || replay.next_message().unwrap()).collect::<Vec<_>>()
    };
    let all = read(i64::MIN..=i64::MAX);
    assert_eq!(all.len(), times.len());
    for (n, recorded) in all.iter().enumerate() {
        assert_eq!((recorded.number, &recorded.bytes), (n as u64, &message(n)));
        assert_eq!(recorded.time_ns, NOW_NS + times[n], "message {n}");
        assert!(recorded.indexed_ns <= NOW_NS, "message {n}");
    }
    // Messages that were sent in order before the clock's time are found by their time.
    assert!(read(i64::MIN..=NOW_NS - 80).iter().map(|m| m.number).eq(0..2));
}

/// A directory with a recording: chunks, journal, names and objects.
fn recorded(path: &Path, messages: u64) -> Vec<Vec<u8>> {
    let store = open(path);
    let mut recorder = RecordingWriter::new(&store, "feed", 2, StoreAckLevel::Local).unwrap();
    let mut all = Vec::new();
    for number in 0..messages {
        let message: Vec<u8> = (0..12 + number % 39).map(|at| (number * 31 + at) as u8).collect();
        recorder.push((number % 2) as u32, number / 2, number as i64, ITCH, &message).unwrap();
        all.push(message);
    }
    recorder.flush().unwrap();
    drop(recorder);
    store.close().unwrap();
    all
}

fn replayed(source: &dyn RecordSource, streams: u32) -> Vec<Vec<Vec<u8>>> {
    let of = |stream| {
        let mut replay = StreamReplay::new(source, "feed", stream, i64::MIN..=i64::MAX).unwrap();
        std::iter::from_fn(|| replay.next_message().unwrap()).map(|m| m.bytes).collect()
    };
    (0..streams).map(of).collect()
}

#[test]
fn a_recording_keeps_the_format_of_each_message() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut recorder = RecordingWriter::new(&store, "feed", 1, StoreAckLevel::Local).unwrap();
    let formats = [ITCH, MACH, Format::OPAQUE, Format(200)];
    for (number, format) in (0..).zip(formats) {
        recorder.push(0, number, 1, format, &[7; 40]).unwrap();
    }
    recorder.flush().unwrap();
    let mut replay = StreamReplay::new(&store, "feed", 0, i64::MIN..=i64::MAX).unwrap();
    let read = std::iter::from_fn(|| replay.next_message().unwrap()).map(|m| (m.format, m.bytes));
    assert_eq!(read.collect::<Vec<_>>(), formats.map(|format| (Some(format), vec![7; 40])));
}

/// A recording as version 0.1 wrote it, without formats. The recording can be read and continued in
/// its layout, and its format is the format that reads all of its messages.
#[test]
fn a_recording_of_an_earlier_version_is_read_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut schema = Schema::of(&[("time", FieldType::Time), ("number", FieldType::U64)]);
    for (name, offset, len, kind) in
        [("length", 16, 2, FieldType::U16), ("message", 18, 14, FieldType::Bytes)]
    {
        schema.fields.push(Field { name: name.into(), offset, len, kind, aggregate: false });
    }
    schema.record_bytes = 32;
    let file = store.create("old.0.32", &schema).unwrap();
    let message = evenfall_feed_formats::itch::SystemEvent::default().encode();
    let record =
        [&1i64.to_le_bytes()[..], &0u64.to_le_bytes(), &12u16.to_le_bytes(), &message, &[0; 2]];
    store.append(&file, &record.concat(), StoreAckLevel::Local).unwrap();
    let mut recorder = RecordingWriter::new(&store, "old", 1, StoreAckLevel::Local).unwrap();
    let order = evenfall_feed_formats::itch::AddOrder::default().encode();
    recorder.push(0, 1, 2, MACH, &order).unwrap();
    recorder.flush().unwrap();
    let mut replay = StreamReplay::new(&store, "old", 0, i64::MIN..=i64::MAX).unwrap();
    let read: Vec<_> = std::iter::from_fn(|| replay.next_message().unwrap()).collect();
    assert_eq!((&read[0].bytes[..], &read[1].bytes[..]), (&message[..], &order[..]));
    assert!(read.iter().all(|recorded| recorded.format.is_none()));
    drop(replay);
    drop(recorder);
    let store: std::sync::Arc<dyn RecordSource> = std::sync::Arc::new(store);
    let catalog = Catalog::read(&*store).unwrap();
    let old = RecordingSnapshot::open(store, catalog.recording("old").unwrap()).unwrap();
    assert_eq!(old.untagged_format().unwrap(), ITCH);
    assert_eq!(codec::of_untagged([&message[..], b"no ITCH"]), Format::OPAQUE);
}

/// Every file below the directory, with its bytes.
fn contents(path: &Path) -> std::collections::BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut all = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            all.insert(path, bytes);
        }
    }
    all
}

#[test]
fn a_recording_comes_back_in_order_from_disk_and_objects_and_reading_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let all = recorded(dir.path(), 5_000);
    let before = contents(dir.path());
    let opened = Store::open_to_read(StoreConfig::new(dir.path())).unwrap();
    assert!(opened.losses.is_empty(), "{:?}", opened.losses);
    let store = opened.store;
    let of = |stream| all.iter().skip(stream).step_by(2).cloned().collect::<Vec<_>>();
    assert_eq!(replayed(&store, 2), vec![of(0), of(1)]);
    let catalog = Catalog::read(&store).unwrap();
    assert!(catalog.recordings().map(|files| &files.name[..]).eq(["feed"]));
    let file = store.file("feed.0.messages").unwrap();
    let refused = store.append(&file, &[0; 64], StoreAckLevel::Memory).unwrap_err();
    assert!(refused.to_string().contains("open to read only"), "{refused}");
    // A second reader may open the store, a second writer may not.
    Store::open_to_read(StoreConfig::new(dir.path())).unwrap();
    assert!(Store::open(StoreConfig::new(dir.path())).is_err());
    store.close().unwrap();
    assert!(contents(dir.path()) == before, "reading changed the directory");
    let archive = Archive::open(dir.path().join("objects").to_str().unwrap()).unwrap();
    assert_eq!(replayed(&archive, 2), vec![of(0), of(1)]);
}

#[test]
fn bytes_flipped_at_random_anywhere_are_found() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path(), 4_000);
    let mut prng = evenfall_core::Prng::new(11);
    for (path, whole) in contents(dir.path()) {
        // Headers and ends, and some places between them.
        let ends = (0..16).flat_map(|at| [at, whole.len().saturating_sub(at + 1)]);
        let inside = (0..24).map(|_| prng.below(whole.len() as u64) as usize);
        for at in ends.chain(inside).filter(|at| *at < whole.len()).collect::<Vec<_>>() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << prng.below(8);
            std::fs::write(&path, &bytes).unwrap();
            let seen = clean_shutdown::verify_directory(dir.path()).unwrap();
            assert!(!seen.findings.is_empty(), "{} byte {at}", path.display());
            let changed = seen.findings.iter().filter(|f| f.what.contains("the last stop")).count();
            assert!(changed <= 1, "one file was changed: {:?}", seen.findings);
        }
        std::fs::write(&path, &whole).unwrap();
    }
    assert!(clean_shutdown::verify_directory(dir.path()).unwrap().findings.is_empty());
}

/// Without the list of a clean stop, only the checksums of parts protect the store.
#[test]
fn a_byte_flipped_behind_a_crash_is_found_or_changes_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let all = recorded(dir.path(), 4_000);
    std::fs::remove_file(dir.path().join(clean_shutdown::NAME)).unwrap();
    assert!(clean_shutdown::verify_directory(dir.path()).unwrap().findings.is_empty());
    let mut prng = evenfall_core::Prng::new(12);
    let (mut found, mut harmless) = (0, 0);
    for (path, whole) in contents(dir.path()) {
        for _ in 0..40 {
            let mut bytes = whole.clone();
            bytes[prng.below(whole.len() as u64) as usize] ^= 1 << prng.below(8);
            std::fs::write(&path, &bytes).unwrap();
            if !clean_shutdown::verify_directory(dir.path()).unwrap().findings.is_empty() {
                found += 1;
                continue;
            }
            harmless += 1;
            let store = Store::open_to_read(StoreConfig::new(dir.path())).unwrap().store;
            let messages: usize = replayed(&store, 2).iter().map(Vec::len).sum();
            assert_eq!(messages, all.len(), "{}", path.display());
        }
        std::fs::write(&path, &whole).unwrap();
    }
    assert!(found > 200 && harmless < found, "{found} found, {harmless} harmless");
}

/// Records of 4,096 bytes, three to a segment, so that few records fill chunks.
fn large(numbers: std::ops::Range<u64>) -> Vec<u8> {
    numbers
        .flat_map(|n| [(n as i64).to_le_bytes().to_vec(), vec![n as u8; 4_088]].concat())
        .collect()
}

#[test]
fn retention_takes_the_oldest_chunks_from_disk_and_objects_and_survives_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let file = store.create("a", &Schema::opaque(4_096)).unwrap();
    let (chunk, records) = (256 * 3, 256 * 3 * 5 + 10);
    store.append(&file, &large(0..records), StoreAckLevel::Object).unwrap();
    let keep =
        evenfall_store_format::retention::Retention { bytes_max: Some(8 << 20), age_ns_max: None };
    let first = store.retain(&file, keep).unwrap();
    assert!(first >= chunk && first.is_multiple_of(chunk), "{first}");
    let check = |source: &dyn RecordSource| {
        let numbers = source.between("a", i64::MIN, i64::MAX).unwrap();
        assert_eq!(numbers, first..records);
        assert!(source.numbers("a", numbers.clone()).unwrap() == large(numbers));
        assert!(source.numbers("a", first - 1..first).is_err());
    };
    check(&store);
    let objects = dir.path().join("objects");
    assert!(!objects.join("D-0000000000000001-00000000").exists());
    assert!(!dir.path().join("D-0000000000000001-00000000").exists());
    // The process ends without closing the store, and the records are found again.
    drop((file, store));
    let store = open(dir.path());
    check(&store);
    let file = store.file("a").unwrap();
    assert_eq!(file.retention(), keep);
    store.append(&file, &large(records..records + 1), StoreAckLevel::Local).unwrap();
    store.close().unwrap();
    let seen = clean_shutdown::verify_directory(dir.path()).unwrap();
    assert!(seen.findings.is_empty(), "{:?}", seen.findings);
    let archive = Archive::open(objects.to_str().unwrap()).unwrap();
    assert_eq!(archive.between("a", i64::MIN, i64::MAX).unwrap(), first..records + 1);
}

#[test]
fn a_deleted_file_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let [a, b] = ["a", "b"].map(|name| store.create(name, &Schema::opaque(4_096)).unwrap());
    for file in [&a, &b] {
        store.append(file, &large(0..1_000), StoreAckLevel::Object).unwrap();
    }
    store.delete("a").unwrap();
    let gone = store.append(&a, &large(1_000..1_001), StoreAckLevel::Memory).unwrap_err();
    assert!(gone.to_string().contains('a'), "{gone}");
    assert!(store.file("a").is_err() && store.delete("a").is_err());
    store.create("a", &schema()).unwrap();
    store.close().unwrap();
    let seen = clean_shutdown::verify_directory(dir.path()).unwrap();
    assert!(seen.findings.is_empty(), "{:?}", seen.findings);
    let left = contents(dir.path()).into_keys().map(|path| path.display().to_string());
    let left: Vec<_> = left.filter(|path| path.contains("-0000000000000001")).collect();
    assert!(left.iter().all(|path| path.contains("J-")), "{left:?}");
    let store = open(dir.path());
    assert_eq!(store.file("a").unwrap().records(), 0);
    assert_eq!(store.file("b").unwrap().records(), 1_000);
}
