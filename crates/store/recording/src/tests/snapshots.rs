//! Recordings as readers meet them: long messages, tags, names, symbols, the live edge.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenfall_feed_formats::codec::{CODECS, Format, ITCH};
use evenfall_feed_formats::itch::{AddOrder, Alpha, OrderExecuted};
use evenfall_store_engine::*;
use evenfall_store_format::messages::parts::{
    PartKind, PartRecord, PartedMessage, RECORDS_PER_GROUP,
};
use evenfall_store_format::retention::Retention;
use evenfall_store_format::schema::ArrivalOrder;
use evenfall_store_format::{Error, FieldType, Schema};
use tempfile::TempDir;

use super::{NOW_NS, dated};
use crate::records::{HEAD_BYTES, sized_schema};
use crate::{
    Catalog, MessageRow, RecordedMessage, RecordingFollower, RecordingSnapshot, RecordingWriter,
    RowSelection, StreamReplay,
};

fn new_store() -> (TempDir, Arc<Store>) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dated(dir.path())).unwrap().store;
    (dir, Arc::new(store))
}

/// Begins a recording as earlier versions did, with a file for each size of messages.
fn begin_sized(store: &Store, name: &str) {
    let schema = sized_schema(32, &ArrivalOrder::default(), HEAD_BYTES);
    store.create(&format!("{name}.0.32"), &schema).unwrap();
}

fn all_of(store: &Store, name: &str) -> Vec<RecordedMessage> {
    let mut replay = StreamReplay::new(store, name, 0, i64::MIN..=i64::MAX).unwrap();
    std::iter::from_fn(|| replay.next_message().unwrap()).collect()
}

fn snapshot(store: &Arc<Store>, name: &str) -> RecordingSnapshot {
    let catalog = Catalog::read(&**store).unwrap();
    let source: Arc<dyn RecordSource> = Arc::<Store>::clone(store);
    RecordingSnapshot::open(source, catalog.recording(name).unwrap()).unwrap()
}

fn rows(of: &RecordingSnapshot, rows: &RowSelection, symbol: Option<&str>) -> Vec<MessageRow> {
    let mut all = Vec::new();
    let mut take = |row| {
        all.push(row);
        Ok::<_, StoreError>(ControlFlow::Continue(()))
    };
    of.read(rows, symbol, &mut take).unwrap();
    all
}

#[test]
fn a_message_of_a_whole_datagram_is_recorded_in_parts() {
    let (_dir, store) = new_store();
    messages_of_all_lengths(&store);
    let files: Vec<_> = store.files().iter().map(|file| file.name.clone()).collect();
    assert_eq!(files, ["r.0.messages"]);
    let (_dir, store) = new_store();
    begin_sized(&store, "r");
    messages_of_all_lengths(&store);
    assert!(store.file("r.0.messages").is_err(), "a recording keeps its layout");
}

fn messages_of_all_lengths(store: &Arc<Store>) {
    let mut writer = RecordingWriter::new(store, "r", 1, StoreAckLevel::Local).unwrap();
    let message = |len: usize| (0..len).map(|at| (at * 7 + len) as u8).collect::<Vec<_>>();
    // Around the room of one record, of two records, and the most.
    let lengths =
        [20, 16_325, 16_326, 16_333, 16_334, 32_650, 32_651, 32_658, 41, 65_000, 65_535, 0, 16_400];
    for (number, len) in (0..).zip(lengths) {
        // Every second message went back in time, and brings its own time behind its bytes.
        let time_ns = NOW_NS - 1_000 + number as i64 - (number as i64 % 2) * 500;
        writer.push(0, number, time_ns, ITCH, &message(len)).unwrap();
    }
    let too_long = writer.push(0, 99, NOW_NS, ITCH, &message(65_536)).unwrap_err();
    assert!(too_long.to_string().contains("65555"), "{too_long}");
    writer.flush().unwrap();
    let read = all_of(store, "r");
    assert_eq!(read.len(), lengths.len());
    for (number, (recorded, len)) in read.iter().zip(lengths).enumerate() {
        assert_eq!((recorded.number, &recorded.bytes), (number as u64, &message(len)), "{len}");
        let time_ns = NOW_NS - 1_000 + number as i64 - (number as i64 % 2) * 500;
        assert_eq!(recorded.time_ns, time_ns, "{len}");
    }
    // A reader that begins anywhere, and one that counts.
    let now = snapshot(store, "r");
    assert_eq!(now.count(&now.rows()).unwrap(), lengths.len() as u64);
    for from in 0..lengths.len() as u64 {
        let two = from..from + 2;
        let some = RowSelection::of(vec![two]);
        let there: Vec<u64> = rows(&now, &some, None).iter().map(|r| r.recorded.number).collect();
        let end = (from + 2).min(lengths.len() as u64);
        assert_eq!(there, (from..end).collect::<Vec<_>>());
    }
    // A writer that begins again skips what is there.
    let mut again = RecordingWriter::new(store, "r", 1, StoreAckLevel::Local).unwrap();
    for (number, len) in (0..).zip(lengths) {
        again.push(0, number, NOW_NS, ITCH, &message(len)).unwrap();
    }
    again.flush().unwrap();
    assert_eq!(all_of(store, "r").len(), lengths.len());
}

#[test]
fn the_first_parts_of_a_message_that_a_crash_cut_short_are_passed_over() {
    let (_dir, store) = new_store();
    a_message_is_cut_short(&store, "r.0.messages");
    let (_dir, store) = new_store();
    begin_sized(&store, "r");
    a_message_is_cut_short(&store, "r.0.16352");
}

fn a_message_is_cut_short(store: &Arc<Store>, file: &str) {
    let message = vec![7; 40_000];
    let mut writer = RecordingWriter::new(store, "r", 1, StoreAckLevel::Local).unwrap();
    writer.push(0, 0, NOW_NS, ITCH, &message).unwrap();
    writer.flush().unwrap();
    let file = store.file(file).unwrap();
    let size = usize::from(file.schema.record_bytes);
    // The recording as a crash in the middle of message 1 leaves it.
    let mut first_part = store.record(&file, 0).unwrap().to_vec();
    assert_eq!(first_part.len(), size);
    first_part[8] = 1;
    store.append(&file, &first_part, StoreAckLevel::Local).unwrap();
    assert_eq!(all_of(store, "r").len(), 1);
    let mut writer = RecordingWriter::new(store, "r", 1, StoreAckLevel::Local).unwrap();
    for number in 0..3 {
        writer.push(0, number, NOW_NS, ITCH, &message).unwrap();
    }
    writer.flush().unwrap();
    let read = all_of(store, "r");
    assert_eq!(read.iter().map(|m| m.number).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(read.iter().all(|m| m.bytes == message));
    let now = snapshot(store, "r");
    assert_eq!(now.count(&now.rows()).unwrap(), 3);
}

#[test]
fn opaque_is_a_format_and_no_tag_is_none() {
    let (_dir, store) = new_store();
    let itch = AddOrder::default().encode();
    let mut writer = RecordingWriter::new(&store, "r", 1, StoreAckLevel::Local).unwrap();
    for number in 0..5 {
        writer.push(0, number, NOW_NS, Format::OPAQUE, &itch).unwrap();
    }
    writer.flush().unwrap();
    let now = snapshot(&store, "r");
    assert!(rows(&now, &now.rows(), None).iter().all(|row| row.event.kind.is_none()));
    assert!(CODECS.iter().all(|codec| codec.format() != Format(255)), "the tag of opaque bytes");
    // Recordings of runs had the tag 0, whatever their messages were.
    begin_sized(&store, "new");
    let mut writer = RecordingWriter::new(&store, "new", 1, StoreAckLevel::Local).unwrap();
    for number in 0..5 {
        writer.push(0, number, NOW_NS, Format::OPAQUE, &itch).unwrap();
    }
    writer.flush().unwrap();
    let file = store.create("old.0.72", &store.file("new.0.72").unwrap().schema).unwrap();
    let mut records = store.numbers("new.0.72", 0..5).unwrap();
    records.chunks_exact_mut(72).for_each(|record| record[18] = 0);
    store.append(&file, &records, StoreAckLevel::Local).unwrap();
    let old = snapshot(&store, "old");
    let read = rows(&old, &old.rows(), None);
    assert!(read.iter().all(|row| row.event.kind == Some("A")), "{read:?}");
    assert!(read.iter().all(|row| row.recorded.format == Some(ITCH)));
}

#[test]
fn a_table_with_the_name_of_a_part_is_no_part_of_a_recording() {
    let (_dir, store) = new_store();
    let mut writer = RecordingWriter::new(&store, "a", 1, StoreAckLevel::Local).unwrap();
    writer.push(0, 0, NOW_NS, ITCH, &[1; 20]).unwrap();
    writer.flush().unwrap();
    let user = Schema::of(&[("time", FieldType::Time), ("value", FieldType::U64)]);
    for name in
        ["a.7.messages", "a.0.16", "a.0.160", "a.7.1024", "a.0.frames", "a.utc", "b.0.32", "c"]
    {
        let file = store.create(name, &user).unwrap();
        store.append(&file, &[1; 16], StoreAckLevel::Local).unwrap();
    }
    let catalog = Catalog::read(&*store).unwrap();
    assert!(catalog.recordings().map(|recording| &recording.name[..]).eq(["a"]));
    assert_eq!(catalog.files().count(), 8);
    assert_eq!(catalog.recording("a").unwrap().files().count(), 1);
    assert_eq!(all_of(&store, "a").len(), 1);
    let now = snapshot(&store, "a");
    assert_eq!(rows(&now, &now.rows(), None).len(), 1);
}

#[test]
fn one_name_is_one_thing() {
    let (_dir, store) = new_store();
    store.create("t", &Schema::opaque(16)).unwrap();
    let refused = RecordingWriter::new(&store, "t", 1, StoreAckLevel::Local).err().unwrap();
    assert!(refused.to_string().contains("t is the name of a file already"), "{refused}");
    RecordingWriter::new(&store, "r", 1, StoreAckLevel::Local).unwrap();
    let catalog = Catalog::read(&*store).unwrap();
    let refused = catalog.expect_no_recording("r").unwrap_err();
    assert!(refused.to_string().contains("r is the name of a recording already"), "{refused}");
    catalog.expect_no_recording("t").unwrap();
    catalog.expect_no_file("r").unwrap();
    assert!(catalog.expect_no_file("t").is_err());
}

/// Executions name no symbol. The orders of securities 1 and 2 lie far before the executions.
fn executions(store: &Arc<Store>, between: u64) -> RecordingSnapshot {
    let mut writer = RecordingWriter::new(store, "r", 1, StoreAckLevel::Local).unwrap();
    let mut number = 0;
    let mut push = |bytes: &[u8]| {
        let time_ns = NOW_NS - 1_000_000 + number as i64;
        writer.push(0, number, time_ns, ITCH, bytes).unwrap();
        number += 1;
    };
    let order = |stock_locate, name| {
        AddOrder { stock_locate, stock: Alpha::new(name).unwrap(), ..Default::default() }.encode()
    };
    let executed = |stock_locate| OrderExecuted { stock_locate, ..Default::default() }.encode();
    push(&order(1, "AAPL"));
    for _ in 0..between {
        push(&order(3, "MSFT"));
    }
    push(&order(2, "IBM"));
    for locate in [1, 2, 9, 2, 1] {
        push(&executed(locate));
    }
    writer.flush().unwrap();
    snapshot(store, "r")
}

#[test]
fn a_reader_that_begins_in_the_middle_knows_the_symbols_of_before() {
    let (_dir, store) = new_store();
    let between = 40_000;
    let now = executions(&store, between);
    let first_ns = NOW_NS - 1_000_000 + 2 + between as i64;
    let selected = now.between(first_ns..=i64::MAX).unwrap();
    let executions = between + 2..between + 7;
    assert_eq!(selected.ranges, [executions]);
    let read = rows(&now, &selected, None);
    let symbols: Vec<_> =
        read.iter().map(|row| row.event.symbol.map(|symbol| symbol.to_string())).collect();
    let text = |symbol: &str| Some(symbol.to_owned());
    assert_eq!(symbols, [text("AAPL"), text("IBM"), None, text("IBM"), text("AAPL")]);
    assert_eq!(rows(&now, &selected, Some("AAPL")).len(), 2);
    assert_eq!(rows(&now, &now.rows(), Some("IBM")).len(), 3);
    // Parts of the rows read alike, one by one.
    for part in now.rows().parts(7, 1) {
        let whole = rows(&now, &now.rows(), None);
        let range = part.ranges[0].start as usize..part.ranges[0].end as usize;
        let some = rows(&now, &part, None);
        let symbols = |rows: &[MessageRow]| rows.iter().map(|r| r.event.symbol).collect::<Vec<_>>();
        assert_eq!(symbols(&some), symbols(&whole[range]));
    }
}

/// A source that counts the records that are read.
struct Counted(Arc<Store>, AtomicU64, AtomicU64);

impl RecordSource for Counted {
    fn listed(&self) -> Result<Vec<FileListing>, StoreError> {
        self.2.fetch_add(1, Relaxed);
        self.0.listed()
    }

    fn between(
        &self,
        name: &str,
        from_ns: i64,
        to_ns: i64,
    ) -> Result<std::ops::Range<u64>, StoreError> {
        self.0.between(name, from_ns, to_ns)
    }

    fn read(
        &self,
        name: &str,
        numbers: std::ops::Range<u64>,
        each: &mut evenfall_store_engine::source::Each<'_>,
    ) -> Result<(), StoreError> {
        self.1.fetch_add(numbers.end - numbers.start, Relaxed);
        RecordSource::read(&*self.0, name, numbers, each)
    }
}

#[test]
fn the_list_is_read_once_and_messages_before_the_first_time_are_not_read() {
    let (_dir, store) = new_store();
    executions(&store, 200_000);
    let counted = Arc::new(Counted(store, AtomicU64::new(0), AtomicU64::new(0)));
    let catalog = Catalog::read(&*counted).unwrap();
    let source: Arc<dyn RecordSource> = Arc::<Counted>::clone(&counted);
    let now = RecordingSnapshot::open(source, catalog.recording("r").unwrap()).unwrap();
    let first_ns = NOW_NS - 1_000_000 + 199_000;
    let selected = now.between(first_ns..=first_ns + 1).unwrap();
    let read = rows(&now, &selected, None);
    assert_eq!(read.len(), 2);
    assert!(read.iter().all(|row| row.event.symbol == Alpha::new("MSFT")));
    assert_eq!(counted.2.load(Relaxed), 1, "lists");
    let records = counted.1.load(Relaxed);
    assert!(records < 10_000, "{records} records are read for two");
}

#[test]
fn a_follower_gets_each_message_once_with_its_symbol() {
    let (_dir, store) = new_store();
    let mut writer = RecordingWriter::new(&store, "r", 2, StoreAckLevel::Local).unwrap();
    let order =
        AddOrder { stock_locate: 5, stock: Alpha::new("IBM").unwrap(), ..Default::default() };
    writer.push(0, 0, NOW_NS, ITCH, &order.encode()).unwrap();
    writer.flush().unwrap();
    let mut follower = RecordingFollower::new(&snapshot(&store, "r")).unwrap();
    let mut seen = Vec::new();
    for round in 1..=20 {
        let done = OrderExecuted { stock_locate: 5, ..Default::default() };
        writer.push(0, round, NOW_NS, ITCH, &done.encode()).unwrap();
        writer.flush().unwrap();
        follower
            .read_new::<StoreError>(&mut |row| {
                seen.push((row.recorded.number, row.event.symbol));
                Ok(())
            })
            .unwrap();
        assert_eq!(seen.last(), Some(&(round, Alpha::new("IBM"))));
    }
    assert!(seen.iter().map(|(number, _)| *number).eq(0..=20));
}

/// The writer and a follower of a new recording `r`, which has one message.
fn follow_one<'a>(
    store: &'a Arc<Store>,
    message: &[u8],
) -> (RecordingWriter<'a>, RecordingFollower) {
    let mut writer = RecordingWriter::new(store, "r", 1, StoreAckLevel::Memory).unwrap();
    writer.push(0, 0, NOW_NS, ITCH, message).unwrap();
    writer.flush().unwrap();
    let follower = RecordingFollower::new(&snapshot(store, "r")).unwrap();
    (writer, follower)
}

#[test]
fn a_follower_that_waits_is_woken_by_a_message() {
    let (_dir, store) = new_store();
    let message = OrderExecuted::default().encode();
    let (mut writer, mut follower) = follow_one(&store, &message);
    let recording = AtomicU64::new(1);
    let (mut next, mut woken) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..20 {
                // The follower has read the last message, and waits.
                while recording.load(Relaxed) <= number {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(10));
                writer.push(0, number, NOW_NS, ITCH, &message).unwrap();
                writer.flush().unwrap();
            }
        });
        let end = Instant::now() + Duration::from_secs(60);
        while next < 20 {
            woken += u32::from(follower.wait_new(end).unwrap());
            let read = follower.read_new::<StoreError>(&mut |row| {
                assert_eq!(row.recorded.number, next);
                next += 1;
                Ok(())
            });
            read.unwrap();
            recording.store(next + 1, Relaxed);
            assert!(Instant::now() < end);
        }
    });
    // Without a wake-up, the wait for every message ends when it is time to list the files.
    assert!(woken >= 10, "{woken} waits ended by a message");
}

#[test]
fn a_follower_of_a_deleted_recording_waits_as_long_as_it_is_told() {
    let (_dir, store) = new_store();
    let message = OrderExecuted::default().encode();
    let (mut writer, mut follower) = follow_one(&store, &message);
    // A later message is there, and those before it are missing.
    writer.push(0, 5, NOW_NS, ITCH, &message).unwrap();
    writer.flush().unwrap();
    let mut read = 0;
    let mut look = |follower: &mut RecordingFollower| {
        let read = follower.read_new::<StoreError>(&mut |_| {
            read += 1;
            Ok(())
        });
        read.unwrap();
    };
    look(&mut follower);
    drop(writer);
    store.files().iter().for_each(|file| store.delete(&file.name).unwrap());
    // The time in which a missing message may still come is over.
    std::thread::sleep(Duration::from_millis(2_100));
    look(&mut follower);
    let until = Instant::now() + Duration::from_millis(500);
    let mut waits = 0;
    while Instant::now() < until {
        follower.wait_new(until).unwrap();
        look(&mut follower);
        waits += 1;
    }
    assert!(waits < 10, "{waits} waits in half a second");
    assert_eq!(read, 1);
}

#[test]
fn a_writer_at_the_limit_of_its_store_ends_when_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig { local_bytes_max: 0, ..dated(dir.path()) };
    let store = Store::open(config).unwrap().store;
    let is_stopping = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let writer = RecordingWriter::new(&store, "r", 1, StoreAckLevel::Local)?;
            let mut writer = writer.stopping_with(&is_stopping);
            for number in 0.. {
                writer.push(0, number, NOW_NS, ITCH, &[7; 16_000])?;
            }
            Ok(())
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(!writing.is_finished(), "it waits for room");
        is_stopping.store(true, Relaxed);
        let ended: Result<(), StoreError> = writing.join().unwrap();
        assert!(matches!(ended, Err(StoreError::Store(Error::Refused { .. }))), "{ended:?}");
    });
}

/// A recording of five chunks, of which retention removes some while a snapshot is read.
#[test]
fn a_snapshot_that_retention_overtakes_fails_and_gives_no_part_of_the_times() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(StoreConfig::new(dir.path())).unwrap().store);
    let mut writer = RecordingWriter::new(&store, "r", 1, StoreAckLevel::Memory).unwrap();
    // A message has 98 records: 166 messages fit into a group of 16,320, and 664 into a chunk.
    let messages = 664 * 5;
    for number in 0..messages {
        writer.push(0, number, number as i64, Format::OPAQUE, &[7; 4_000]).unwrap();
    }
    writer.flush().unwrap();
    let before = snapshot(&store, "r");
    let all = before.between(0..=i64::MAX).unwrap();
    assert_eq!(before.count(&all).unwrap(), messages);
    let catalog = Catalog::read(&*store).unwrap();
    let keep = Retention { bytes_max: Some(8 << 20), age_ns_max: None };
    let files = catalog.recording("r").unwrap().of_stream(0);
    let retain = || {
        let kept = files.iter().map(|file| {
            let file = store.file(&file.name).unwrap();
            store.retain(&file, keep).unwrap()
        });
        kept.max().unwrap() / 65_280 * 664
    };
    let mut kept = retain();
    // Chunks that are not on the disk yet stay. The limit is a minute.
    for _ in 0..6_000 {
        if kept >= 664 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        kept = retain();
    }
    assert!(kept >= 664, "{kept}");
    let is_gone = |error: StoreError| {
        let words = error.to_string();
        assert!(words.contains("no record 0"), "{words}");
    };
    // Each would otherwise give the messages that are left, as if those were all.
    is_gone(before.count(&all).unwrap_err());
    is_gone(before.between(kept as i64 - 1..=i64::MAX).unwrap_err());
    let read = before.read(&before.rows(), None, &mut |_| Ok(ControlFlow::Continue(())));
    is_gone(read.unwrap_err());
    // Messages behind those that were removed are there.
    let later = before.between(kept as i64 + 10..=i64::MAX).unwrap();
    assert_eq!(before.count(&later).unwrap(), messages - kept - 10);
    let now = snapshot(&store, "r");
    assert_eq!(now.count(&now.between(0..=i64::MAX).unwrap()).unwrap(), messages - kept);
}

/// Numbers that never came, a message that crosses no group, and messages that a crash cut short.
#[test]
fn records_tell_how_many_messages_there_are_without_being_read() {
    let (_dir, store) = new_store();
    let mut prng = evenfall_core::Prng::new(7);
    let (mut number, mut pushed) = (0, Vec::new());
    for life in 0..3 {
        let mut writer = RecordingWriter::new(&store, "r", 1, StoreAckLevel::Memory).unwrap();
        for _ in 0..4_000 {
            number += if prng.below(50) == 0 { 1 + prng.below(40) } else { 1 };
            let len = if prng.below(30) == 0 { prng.below(9_000) } else { prng.below(60) };
            let message = vec![number as u8; len as usize];
            writer.push(0, number, NOW_NS - 5, ITCH, &message).unwrap();
            pushed.push((number, message));
        }
        writer.flush().unwrap();
        if life == 0 {
            // A crash keeps one record of the next message, which the next life records again.
            let file = store.file("r.0.messages").unwrap();
            let mut first = Vec::new();
            let missed = (number - 3_999) as u32;
            let (number, bytes) = (number + 1, &[7; 99][..]);
            let (recorded_ns, tag, own_ns) = (NOW_NS - 5, 1, None);
            PartedMessage { recorded_ns, number, tag, missed, own_ns, bytes }.put(&mut first);
            store.append(&file, &first[..64], StoreAckLevel::Memory).unwrap();
            // Until then nobody counts the message.
            let now = snapshot(&store, "r");
            assert_eq!(now.count(&now.rows()).unwrap(), pushed.len() as u64);
        }
    }
    let read: Vec<_> = all_of(&store, "r").into_iter().map(|m| (m.number, m.bytes)).collect();
    assert!(read == pushed);
    let now = snapshot(&store, "r");
    assert_eq!(now.count(&now.rows()).unwrap(), pushed.len() as u64);
    let first = pushed[0].0;
    for _ in 0..40 {
        let from = prng.below(number - first);
        let to = from + prng.below(number + 1 - first - from);
        let there = pushed.iter().filter(|(n, _)| (from..to).contains(&(n - first))).count();
        let some = RowSelection::of(std::iter::once(from..to).collect());
        assert_eq!(now.count(&some).unwrap(), there as u64, "{from}..{to}");
    }
    let records = store.numbers("r.0.messages", 0..store.file("r.0.messages").unwrap().records());
    for group in records.unwrap().chunks(RECORDS_PER_GROUP as usize * 64) {
        let first = PartRecord::of(&group[..64]).kind;
        assert!(matches!(first, PartKind::Whole | PartKind::First), "{first:?}");
    }
}
