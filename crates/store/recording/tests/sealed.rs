//! Sealed chunks of recordings: their messages are columns, and every byte comes back.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use evenfall_feed_formats::codec::{LOBSTER, TimeOrigin};
use evenfall_feed_formats::synthetic::{Config, Generator};
use evenfall_feed_formats::{FeedMessage, Format, MessageSource, codec, open as open_feed};
use evenfall_store_engine::{
    ChunkForm, RecordSource, Store, StoreAckLevel, StoreConfig, clean_shutdown,
};
use evenfall_store_recording::layouts::message_layouts;
use evenfall_store_recording::{
    RecordingWriter, RowSelection, StoreTables, StreamReplay, TableName, Tables as _,
};
use tempfile::TempDir;

/// Midnight in New York, 2026-09-21.
const MIDNIGHT_NS: i64 = 1_789_963_200_000_000_000;
const DAY_NS: i64 = 86_400_000_000_000;

/// How a store keeps the messages of whole chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sealed {
    Rows,
    Bytes,
    Columns,
}

/// A store without objects, on the afternoon of the day.
fn dated(path: &Path) -> StoreConfig {
    let clock = || MIDNIGHT_NS + 16 * 3_600_000_000_000;
    StoreConfig { objects: None, clock, ..StoreConfig::new(path) }
}

fn config(path: &Path, sealed: Sealed) -> StoreConfig {
    let layouts = message_layouts().filter(|_| sealed == Sealed::Columns);
    let chunks = if sealed == Sealed::Rows { ChunkForm::Raw } else { ChunkForm::Columns };
    StoreConfig { chunks, layouts, ..dated(path) }
}

/// Records messages as stream 0, and closes the store when its whole chunks are in their form.
fn record(path: &Path, sealed: Sealed, messages: &[(i64, FeedMessage)]) {
    let store = Store::open(config(path, sealed)).expect("a store").store;
    let mut writer =
        RecordingWriter::new(&store, "r", 1, StoreAckLevel::Memory).expect("a recording");
    for (number, (time_ns, message)) in (0..).zip(messages) {
        let (format, bytes) = (message.format, &message.bytes);
        writer.push(0, number, *time_ns, format, bytes).expect("a push");
    }
    writer.flush().expect("a flush");
    drop(writer);
    store.close().expect("a stop");
    // What is not synced yet is not due, and a stop syncs all of it.
    let store = Store::open(config(path, sealed)).expect("a store").store;
    assert!(store.await_columns(Duration::from_secs(120)));
    assert_eq!(store.occupancy().encode_errors, 0);
    store.close().expect("a stop");
}

/// The chunks in columns.
fn sealed_files(path: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(path).expect("a directory");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "parquet"));
    files.sort();
    files
}

fn sealed_bytes(path: &Path) -> u64 {
    let len = |file: &PathBuf| std::fs::metadata(file).expect("a chunk").len();
    sealed_files(path).iter().map(len).sum()
}

/// Enough ITCH for a whole chunk of each of its sizes.
fn generated() -> Vec<(i64, FeedMessage)> {
    let config = Config { messages: 230_000, symbols: 200, ..Config::default() };
    let mut feed = Generator::new(config).expect("a feed");
    let next = || feed.next_message().expect("a message");
    std::iter::from_fn(next)
        .map(|message| (MIDNIGHT_NS + message.time_ns as i64, message))
        .collect()
}

fn tables(path: &Path) -> StoreTables {
    let store = Store::open_to_read(dated(path)).expect("a store").store;
    let source: Arc<dyn RecordSource> = Arc::new(store);
    StoreTables::new(source)
}

/// Batches of a table: these columns of the rows that `select` wants.
fn scan(
    path: &Path,
    table: &str,
    times: Option<(i64, i64)>,
    columns: &[usize],
) -> Vec<RecordBatch> {
    let name = TableName::of_recording("r", table);
    let snapshot = tables(path).open(&name).expect("a table");
    let rows: RowSelection = match times {
        Some((from, to)) => snapshot.between(from, to).expect("rows"),
        None => snapshot.rows(),
    };
    let mut batches = Vec::new();
    let mut take = |batch| {
        batches.push(batch);
        ControlFlow::Continue(())
    };
    snapshot.scan(&rows, columns, &mut take).expect("a scan");
    batches
}

fn replayed(path: &Path) -> Vec<(u64, i64, Option<Format>, Vec<u8>)> {
    let store = Store::open_to_read(dated(path)).expect("a store").store;
    let mut replay = StreamReplay::new(&store, "r", 0, i64::MIN..=i64::MAX).expect("a replay");
    let next = || replay.next_message().expect("a message");
    std::iter::from_fn(next).map(|m| (m.number, m.time_ns, m.format, m.bytes)).collect()
}

/// Compares all that readers get from chunks in columns with what they get from raw chunks.
fn compare(raw: &Path, columns: &Path, messages: &[(i64, FeedMessage)]) {
    let back = replayed(columns);
    assert_eq!(back.len(), messages.len());
    for (found, (number, (time_ns, message))) in back.iter().zip((0..).zip(messages)) {
        let wanted = (number, *time_ns, Some(message.format), message.bytes.to_vec());
        assert!(*found == wanted, "message {number}");
    }
    let all: Vec<usize> = (0..15).collect();
    let middle = messages[messages.len() / 3].0;
    let end = messages[messages.len() / 2].0;
    for (times, wanted) in [
        (None, &all[..]),
        (None, &[12, 13]),
        (Some((middle, end)), &all[..]),
        (Some((middle, middle + 5_000_000)), &[5, 12]),
        (Some((end, i64::MAX)), &[10, 6, 3]),
        (None, &[]),
    ] {
        let found = scan(columns, "messages", times, wanted);
        assert!(!found.is_empty(), "{times:?}");
        assert!(found == scan(raw, "messages", times, wanted), "{times:?} {wanted:?}");
    }
    for table in ["raw", "trades", "quotes"] {
        let found = scan(columns, table, Some((middle, end)), &[0, 1, 5, 7]);
        assert!(found == scan(raw, table, Some((middle, end)), &[0, 1, 5, 7]), "{table}");
    }
    assert!(clean_shutdown::verify_directory(columns).expect("a check").findings.is_empty());
}

struct Recorded {
    raw: TempDir,
    bytes: TempDir,
    columns: TempDir,
}

fn record_all(messages: &[(i64, FeedMessage)]) -> Recorded {
    let dir = || tempfile::tempdir().expect("a directory");
    let all = Recorded { raw: dir(), bytes: dir(), columns: dir() };
    record(all.raw.path(), Sealed::Rows, messages);
    record(all.bytes.path(), Sealed::Bytes, messages);
    record(all.columns.path(), Sealed::Columns, messages);
    all
}

#[test]
fn itch_in_sealed_chunks_is_columns_and_reads_as_it_came() {
    let messages = generated();
    let all = record_all(&messages);
    let (bytes, columns) = (sealed_bytes(all.bytes.path()), sealed_bytes(all.columns.path()));
    assert!(sealed_files(all.columns.path()).len() > 1, "a chunk of each size of messages");
    assert!(columns * 3 < bytes * 2, "{columns} bytes in columns, {bytes} as bytes");
    compare(all.raw.path(), all.columns.path(), &messages);
    // Another life seals what an earlier one has left as rows.
    let store = Store::open(config(all.raw.path(), Sealed::Columns)).expect("a store").store;
    assert!(store.await_columns(Duration::from_secs(120)));
    store.close().expect("a stop");
    assert_eq!(sealed_bytes(all.raw.path()), columns);
    compare(all.bytes.path(), all.raw.path(), &messages);
}

/// Lines, lines that are not as LOBSTER writes them, packets without fields, and messages that went
/// back in time.
#[test]
fn messages_that_no_layout_reads_stay_bytes_among_the_others() {
    let mut time_ns = MIDNIGHT_NS + 34_200_000_000_000;
    let message = |(number, (format, text)): (u64, (Format, String))| {
        time_ns += 1_000_003;
        let back = if number % 1_000 == 77 && number < 60_000 { 5_000_000_000 } else { 0 };
        let (index, shard_key) = (number, 0);
        let bytes = text.into_bytes().into();
        (time_ns - back, FeedMessage { index, time_ns: 0, shard_key, format, bytes })
    };
    let lines = (0..190_000u64).map(|number| {
        let day_ns = 34_200_000_000_000 + number * 1_000_003;
        let seconds = format!("{}.{:09}", day_ns / 1_000_000_000, day_ns % 1_000_000_000);
        let seconds = seconds.trim_end_matches('0').trim_end_matches('.');
        let kind = 1 + number % 7;
        let side = if number % 3 == 0 { -1 } else { 1 };
        let line = format!("{seconds},{kind},{},100,{},{side}", number / 2, 5_853_300 + number % 9);
        match number {
            // In the second chunk all messages are lines as LOBSTER writes them.
            60_000.. => (LOBSTER, line),
            _ if number % 500 == 1 => (LOBSTER, format!("{line},null")),
            _ if number % 500 == 2 => (LOBSTER, line.replace(",100,", ",-100,")),
            _ if number % 500 == 3 => (LOBSTER, line.replacen(",100,", ",0100,", 1)),
            _ if number % 500 == 4 => (Format::OPAQUE, "any packet, as long as a line is".into()),
            _ if number % 500 == 5 => {
                (codec::MDP3, "not a packet of this format, but tagged".into())
            }
            _ => (LOBSTER, line),
        }
    });
    let messages: Vec<(i64, FeedMessage)> = (0..).zip(lines).map(message).collect();
    let all = record_all(&messages);
    assert!(sealed_files(all.columns.path()).len() >= 2);
    compare(all.raw.path(), all.columns.path(), &messages);
}

#[test]
fn a_flipped_byte_of_columns_of_messages_is_found_and_named() {
    let messages = generated();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path();
    record(path, Sealed::Columns, &messages);
    let wanted = scan(path, "messages", None, &[5, 12, 13]);
    let chunk = sealed_files(path).remove(0);
    let name = chunk.file_name().expect("a name").to_string_lossy().into_owned();
    let whole = std::fs::read(&chunk).expect("a chunk");
    let mut refused = 0;
    for at in (3..whole.len()).step_by(whole.len() / 24) {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x20;
        std::fs::write(&chunk, &flipped).expect("a flip");
        let seen = clean_shutdown::verify_directory(path).expect("a check");
        assert!(seen.findings.iter().any(|one| one.place.contains(&name)), "byte {at}");
        // A scan gives the same rows, because it does not read that column, or an error.
        let snapshot = tables(path).open(&TableName::of_recording("r", "messages"));
        let mut found = Vec::new();
        let mut take = |batch| {
            found.push(batch);
            ControlFlow::Continue(())
        };
        let read = snapshot.and_then(|of| of.scan(&of.rows(), &[5, 12, 13], &mut take));
        match read {
            Ok(()) => assert!(found == wanted, "byte {at}"),
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains(&name), "{error}");
            }
        }
    }
    assert!(refused > 3, "{refused} flips were in the way of a scan");
}

fn data(file: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data");
    let folder = std::env::var_os("EVENFALL_DATA").map_or_else(beside, PathBuf::from);
    let path = folder.join(file);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: no data (set EVENFALL_DATA)");
    None
}

/// The messages of a file on several days before the present one, so that they fill chunks.
fn days(path: &Path, days: i64) -> Vec<(i64, FeedMessage)> {
    let file = Box::new(File::open(path).expect("a file"));
    let mut feed = open_feed(file, &path.display().to_string()).expect("a feed");
    let next = || feed.next_message().expect("a message");
    let messages: Vec<FeedMessage> = std::iter::from_fn(next).collect();
    let origin = |message: &FeedMessage| match codec::of(message.format).map(|codec| codec.clock())
    {
        Some(TimeOrigin::Midnight { .. }) => MIDNIGHT_NS,
        _ => 0,
    };
    let day = |day: i64| {
        let at =
            move |message: &FeedMessage| origin(message) + message.time_ns as i64 + day * DAY_NS;
        messages.iter().map(move |message| (at(message), message.clone()))
    };
    (-days..0).flat_map(day).collect()
}

#[test]
fn real_feeds_in_sealed_chunks_read_as_they_came() {
    for (file, count) in [
        ("itch/nasdaq_20191230_aapl.itch50", 4),
        ("lobster/LOBSTER_SampleFile_AAPL_2012-06-21_1.zip", 1),
        ("pcap/Cme.Mdp3.Sbe.v6.1.pcap", 3),
    ] {
        let Some(path) = data(file) else { return };
        let messages = days(&path, count);
        let all = record_all(&messages);
        let (bytes, columns) = (sealed_bytes(all.bytes.path()), sealed_bytes(all.columns.path()));
        println!("{file}: {columns} bytes in columns, {bytes} as bytes");
        assert!(!sealed_files(all.columns.path()).is_empty(), "{file} fills no chunk");
        compare(all.raw.path(), all.columns.path(), &messages);
    }
}
