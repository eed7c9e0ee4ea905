//! Chunks in columns: on the disk, in the objects, after crashes, and with flipped bytes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use evenfall_store_engine::{
    Archive, BucketOptions, ChunkForm, RecordSource as _, Store, StoreAckLevel, StoreConfig,
    clean_shutdown,
};
use evenfall_store_format::columnar::columnar_name;
use evenfall_store_format::layout::{DataChunk, chunk_name};
use evenfall_store_format::{FieldType, FileId, Schema, SegmentKind};
use tempfile::TempDir;

use crate::servers::eventually;
use crate::suite::{Backend, all_of, append};

/// Rows of a chunk of 512-byte rows: 31 to a segment.
const CHUNK: u64 = 31 * 256;
const FILE: FileId = FileId(1);

/// Rows of 512 bytes, so that few of them fill a chunk.
fn schema() -> Schema {
    let fields = [("time", FieldType::Time), ("px", FieldType::Price), ("ref", FieldType::U64)];
    let mut schema = Schema::of(&fields).with_aggregates(&["px"]);
    (schema.record_bytes, schema.price_decimals) = (512, 4);
    schema
}

fn rows(numbers: std::ops::Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in numbers {
        let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut row = vec![0; 512];
        row[..8].copy_from_slice(&(number as i64 * 1_000 + (mixed % 900) as i64).to_le_bytes());
        row[8..16].copy_from_slice(&(1_000_000 + (mixed >> 60) as i64).to_le_bytes());
        row[16..24].copy_from_slice(&mixed.to_le_bytes());
        // No field covers this byte.
        row[511] = mixed as u8;
        bytes.append(&mut row);
    }
    bytes
}

fn columns_name(chunk: u32) -> String {
    columnar_name(DataChunk { file: FILE, number: chunk })
}

fn config(path: &Path, chunks: ChunkForm) -> StoreConfig {
    StoreConfig { chunks, cache_bytes: 0, ..StoreConfig::new(path) }
}

fn open(path: &Path, chunks: ChunkForm) -> Store {
    Store::open(config(path, chunks)).expect("a store").store
}

fn raw(path: &Path, chunk: u32) -> PathBuf {
    path.join(chunk_name(SegmentKind::Data, FILE, chunk))
}

fn columns(path: &Path, chunk: u32) -> PathBuf {
    path.join(columns_name(chunk))
}

/// A store of three whole chunks and some more rows, which is closed.
fn filled(path: &Path, chunks: ChunkForm) -> u64 {
    let store = open(path, chunks);
    store.create("a", &schema()).expect("a file");
    let end = 3 * CHUNK + 100;
    for first in (0..end).step_by(1_000) {
        append(&store, "a", &rows(first..end.min(first + 1_000)), StoreAckLevel::Local);
    }
    store.close().expect("a stop");
    end
}

/// Opens the store until all whole chunks are in columns.
fn encode(path: &Path) {
    let store = open(path, ChunkForm::Columns);
    assert!(store.await_columns(Duration::from_secs(60)));
    assert_eq!(store.occupancy().encode_errors, 0);
    store.close().expect("a stop");
}

#[test]
fn whole_chunks_become_columns_on_the_disk_and_in_the_objects() {
    let path = TempDir::new().expect("a directory");
    let path = path.path();
    let end = filled(path, ChunkForm::Columns);
    encode(path);
    for chunk in 0..3 {
        assert!(columns(path, chunk).exists() && !raw(path, chunk).exists(), "chunk {chunk}");
        let object = std::fs::read(raw(&path.join("objects"), chunk)).expect("an object");
        assert_eq!(object, std::fs::read(columns(path, chunk)).expect("columns"));
        assert!(object.len() * 10 < 4 << 20, "{} bytes", object.len());
    }
    assert!(!columns(path, 3).exists(), "it is not whole");
    let store = open(path, ChunkForm::Columns);
    assert!(store.occupancy().local_bytes < 2 << 20, "{:?}", store.occupancy());
    assert!(all_of(&store, "a") == rows(0..end));
    let archive = Archive::open(&path.join("objects").display().to_string()).expect("objects");
    assert!(all_of(&archive, "a") == rows(0..end));
    // Single records, times and sums come out as from raw chunks.
    let file = store.file("a").expect("the file");
    for number in [0, CHUNK - 1, CHUNK, 2 * CHUNK + 77, end - 1] {
        assert!(store.record(&file, number).expect("a record") == rows(number..number + 1));
        let time_ns = i64::from_le_bytes(rows(number..number + 1)[..8].try_into().expect("a time"));
        assert_eq!(store.record_at(&file, time_ns).expect("a record").0, number);
    }
    let sum = store.summary(&file, i64::MIN, i64::MAX).expect("a summary").expect("records");
    assert_eq!((sum.count, sum.aggregates.len()), (end, 1));
    drop(file);
    store.close().expect("a stop");
    assert!(clean_shutdown::verify_directory(path).expect("a check").findings.is_empty());
}

#[test]
fn rows_are_written_once_beside_their_journal_and_are_read_meanwhile() {
    let path = TempDir::new().expect("a directory");
    let path = path.path();
    let store = open(path, ChunkForm::Columns);
    let file = store.create("a", &schema()).expect("a file");
    let end = 3 * CHUNK + 100;
    let (all, is_done) = (rows(0..end), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Relaxed) {
                let there = file.records();
                let found = store.numbers("a", 0..there).expect("rows");
                assert!(found == all[..there as usize * 512], "{there} rows");
            }
        });
        for first in (0..end).step_by(1_000) {
            append(&store, "a", &rows(first..end.min(first + 1_000)), StoreAckLevel::Local);
        }
        eventually("chunks in columns", || store.occupancy().encoded_chunks == 3);
        eventually("memory", || store.occupancy().memory_bytes == 0);
        is_done.store(true, Relaxed);
    });
    let (sizes, appended) = (store.occupancy(), end * 512);
    assert_eq!((sizes.written.raw_chunks, sizes.encode_errors), (0, 0));
    assert!((appended..appended / 20 * 21).contains(&sizes.written.journals), "{sizes:?}");
    assert!(sizes.written.columns > 0 && sizes.written.total() < appended / 10 * 13, "{sizes:?}");
    assert_eq!(sizes.held_bytes, 3 << 14, "the hundred rows behind the chunks fill three segments");
    assert!((0..4).all(|chunk| columns(path, chunk).exists() == (chunk < 3)));
    assert!((0..4).all(|chunk| !raw(path, chunk).exists()));
    // The process ends here, and the next one finds everything.
    drop((file, store));
    let store = open(path, ChunkForm::Columns);
    assert!(all_of(&store, "a") == all);
    // What the journals had is raw now, and goes into columns with the rest of its chunk.
    append(&store, "a", &rows(end..4 * CHUNK), StoreAckLevel::Memory);
    eventually("the fourth chunk", || columns(path, 3).exists() && !raw(path, 3).exists());
    assert!(all_of(&store, "a") == rows(0..4 * CHUNK));
    store.close().expect("a stop");
    assert!(clean_shutdown::verify_directory(path).expect("a check").findings.is_empty());
}

#[test]
fn a_store_that_ends_at_any_moment_keeps_the_rows_that_it_held() {
    let path = TempDir::new().expect("a directory");
    let path = path.path();
    let store = open(path, ChunkForm::Columns);
    store.create("a", &schema()).expect("a file");
    drop(store);
    let mut end = 0;
    for count in [700, CHUNK, 31 * 200, CHUNK + 1] {
        let store = open(path, ChunkForm::Columns);
        append(&store, "a", &rows(end..end + count), StoreAckLevel::Local);
        end += count;
        // The encoder is at whatever step it is.
        drop(store);
        let seen = Store::open_to_read(config(path, ChunkForm::Columns)).expect("a reader").store;
        assert!(all_of(&seen, "a") == rows(0..end), "{end} rows");
    }
}

#[test]
fn a_file_that_is_deleted_while_it_is_sealed_leaves_nothing() {
    let path = TempDir::new().expect("a directory");
    let path = path.path();
    let store = open(path, ChunkForm::Columns);
    for round in 0..3 {
        store.create("a", &schema()).expect("a file");
        append(&store, "a", &rows(0..CHUNK + 40), StoreAckLevel::Local);
        std::thread::sleep(Duration::from_millis(round * 20));
        store.delete("a").expect("a deletion");
    }
    assert!(store.await_columns(Duration::from_secs(60)));
    let sizes = || store.occupancy();
    eventually("no memory", || (sizes().held_bytes, sizes().memory_bytes) == (0, 0));
    store.close().expect("a stop");
    let names = std::fs::read_dir(path).expect("names").map(|name| name.expect("a name"));
    let names: Vec<_> = names.map(|name| name.file_name().display().to_string()).collect();
    assert!(!names.iter().any(|name| name.contains(".parquet")), "{names:?}");
}

/// The bytes of two fields, `ref` and `time`, out of rows.
fn two_fields(rows: &[u8]) -> [Vec<u8>; 2] {
    [16, 0].map(|at| rows.chunks(512).flat_map(|row| row[at..at + 8].to_vec()).collect())
}

#[test]
fn fields_out_of_columns_are_those_of_the_rows() {
    let path = TempDir::new().expect("a directory");
    let path = path.path();
    let end = filled(path, ChunkForm::Columns);
    encode(path);
    let store = open(path, ChunkForm::Columns);
    let in_columns = 3 * CHUNK;
    for numbers in
        [0..end, 5..6, CHUNK - 1..CHUNK + 1, 31 * 64 - 3..31 * 64 + 3, 2 * CHUNK + 77..end]
    {
        let mut next = numbers.start;
        while next < numbers.end.min(in_columns) {
            let found = store.read_fields("a", next..numbers.end, &[2, 0]).expect("a read");
            let found = found.expect("the chunk is in columns");
            let until = next + found.records;
            assert!(found.records > 0 && until <= numbers.end, "{next} {}", found.records);
            assert_eq!(found.fields, two_fields(&rows(next..until)), "{next}..{until}");
            next = until;
        }
    }
    for numbers in [in_columns..end, end..end + 1, 7..7] {
        let found = store.read_fields("a", numbers.clone(), &[0]).expect("a read");
        assert_eq!(found, None, "{numbers:?}");
    }
    store.close().expect("a stop");
    // A flipped byte is found, or is in a column that was not asked for.
    let (file, wanted) = (columns(path, 1), two_fields(&rows(CHUNK..2 * CHUNK)));
    let whole = std::fs::read(&file).expect("columns");
    let mut damaged = 0;
    for at in (0..whole.len()).step_by(whole.len() / 40) {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        std::fs::write(&file, flipped).expect("columns");
        let opened = Store::open_to_read(config(path, ChunkForm::Columns)).expect("a reader");
        match opened.store.read_fields("a", CHUNK..2 * CHUNK, &[2, 0]) {
            Ok(found) => assert_eq!(found.expect("columns").fields, wanted, "byte {at}"),
            Err(error) => {
                damaged += 1;
                assert!(error.to_string().contains(".parquet"), "{error}");
            }
        }
    }
    assert!(damaged > 0, "no flip was found");
}

#[test]
fn a_raw_store_opens_and_becomes_columns_and_may_stay_raw() {
    let path = TempDir::new().expect("a directory");
    let path = path.path();
    let end = filled(path, ChunkForm::Raw);
    assert!(raw(path, 0).exists() && !columns(path, 0).exists());
    let store = open(path, ChunkForm::Raw);
    assert!(store.await_columns(Duration::ZERO) && all_of(&store, "a") == rows(0..end));
    store.close().expect("a stop");
    assert!(raw(path, 0).exists());
    encode(path);
    assert!(columns(path, 0).exists() && !raw(path, 0).exists());
    // The objects were raw, and are not put a second time.
    let object = std::fs::read(raw(&path.join("objects"), 0)).expect("an object");
    assert_eq!(object.len(), 4 << 20);
    // A store that writes raw chunks reads those in columns, and appends behind them.
    let store = open(path, ChunkForm::Raw);
    append(&store, "a", &rows(end..end + 2 * CHUNK), StoreAckLevel::Local);
    assert!(all_of(&store, "a") == rows(0..end + 2 * CHUNK));
    store.close().expect("a stop");
    assert!(columns(path, 0).exists() && raw(path, 3).exists());
    encode(path);
    let store = open(path, ChunkForm::Columns);
    assert!(all_of(&store, "a") == rows(0..end + 2 * CHUNK));
    // The archive reads raw objects and those in columns, one behind the other.
    store.publish(&store.file("a").expect("the file")).expect("a publication");
    let archive = Archive::open(&path.join("objects").display().to_string()).expect("objects");
    assert!(all_of(&archive, "a") == rows(0..end + 2 * CHUNK));
}

#[test]
fn a_switch_that_was_cut_short_leaves_a_whole_store() {
    let path = TempDir::new().expect("a directory");
    let path = path.path();
    let end = filled(path, ChunkForm::Raw);
    let before = std::fs::read(raw(path, 1)).expect("a chunk");
    encode(path);
    let whole = std::fs::read(columns(path, 1)).expect("columns");
    let staged = |chunk| path.join(format!("{}.new", columns_name(chunk)));
    // What the disk may have after a crash between any two steps, and the bytes of the columns.
    for (has_raw, named, len) in [
        (true, false, whole.len() / 2),
        (true, false, whole.len()),
        (true, true, 0),
        (true, true, whole.len() / 2),
        (true, true, whole.len()),
        (false, true, whole.len()),
    ] {
        std::fs::remove_file(columns(path, 1)).expect("columns");
        let place = if named { columns(path, 1) } else { staged(1) };
        std::fs::write(place, &whole[..len]).expect("columns");
        if has_raw {
            std::fs::write(raw(path, 1), &before).expect("a chunk");
        }
        let store = Store::open_to_read(config(path, ChunkForm::Columns)).expect("a reader").store;
        assert!(all_of(&store, "a") == rows(0..end), "{has_raw} {named} {len}");
        drop(store);
        let store = open(path, ChunkForm::Columns);
        assert!(all_of(&store, "a") == rows(0..end), "{has_raw} {named} {len}");
        assert!(store.await_columns(Duration::from_secs(60)));
        assert!(all_of(&store, "a") == rows(0..end), "{has_raw} {named} {len}");
        store.close().expect("a stop");
        assert!(!raw(path, 1).exists() && !staged(1).exists());
        assert_eq!(std::fs::read(columns(path, 1)).expect("columns"), whole);
    }
}

#[test]
fn a_flipped_byte_of_columns_is_found_and_named_and_the_rest_stays_readable() {
    let path = TempDir::new().expect("a directory");
    let path = path.path();
    let end = filled(path, ChunkForm::Columns);
    encode(path);
    let place = columns(path, 1);
    let whole = std::fs::read(&place).expect("columns");
    let object = raw(&path.join("objects"), 1);
    for at in [0, 9, whole.len() / 3, whole.len() - 500, whole.len() - 2] {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        for (of, named) in
            [(&place, columns_name(1)), (&object, chunk_name(SegmentKind::Data, FILE, 1))]
        {
            std::fs::write(of, &flipped).expect("a flip");
            let seen = clean_shutdown::verify_directory(path).expect("a check");
            let places: Vec<&str> = seen.findings.iter().map(|one| one.place.as_str()).collect();
            assert!(places.iter().all(|place| place.contains(&named)), "byte {at}: {places:?}");
            assert_eq!(places.len(), 1, "byte {at}: {places:?}");
            std::fs::write(of, &whole).expect("as it was");
        }
    }
    let mut flipped = whole.clone();
    flipped[whole.len() / 3] ^= 1;
    std::fs::write(&place, &flipped).expect("a flip");
    let store = open(path, ChunkForm::Columns);
    let file = store.file("a").expect("the file");
    let read = |numbers: std::ops::Range<u64>| store.numbers("a", numbers);
    assert!(read(0..CHUNK).expect("rows") == rows(0..CHUNK));
    assert!(read(2 * CHUNK..end).expect("rows") == rows(2 * CHUNK..end));
    let error = read(CHUNK..2 * CHUNK).expect_err("damage").to_string();
    assert!(error.contains(&columns_name(1)) && error.contains("column"), "{error}");
    // Appends go on.
    append(&store, "a", &rows(end..end + 10), StoreAckLevel::Local);
    assert_eq!(file.records(), end + 10);
}

#[test]
fn chunks_in_columns_leave_the_disk_by_retention_and_deletion() {
    let path = TempDir::new().expect("a directory");
    let path = path.path();
    let end = filled(path, ChunkForm::Columns);
    encode(path);
    let store = open(path, ChunkForm::Columns);
    let file = store.file("a").expect("the file");
    let keep =
        evenfall_store_format::retention::Retention { bytes_max: Some(4 << 20), age_ns_max: None };
    let first = store.retain(&file, keep).expect("a retention");
    assert_eq!(first, 2 * CHUNK);
    assert!(!columns(path, 1).exists() && !raw(&path.join("objects"), 1).exists());
    assert!(all_of(&store, "a") == rows(first..end));
    drop(file);
    store.delete("a").expect("a deletion");
    assert!(!columns(path, 2).exists());
    eventually("no bytes of chunks", || store.occupancy().local_bytes == 0);
}

#[test]
fn a_node_without_a_disk_continues_from_objects_in_columns() {
    let (objects, first) = (TempDir::new().expect("a directory"), TempDir::new().expect("one"));
    let backend = Backend {
        objects: objects.path().display().to_string(),
        options: BucketOptions::default(),
        names: None,
        is_atomic: true,
    };
    let store = backend.open(first.path());
    store.create("a", &schema()).expect("a file");
    let end = 2 * CHUNK + 50;
    append(&store, "a", &rows(0..end), StoreAckLevel::Object);
    drop(store);
    let object = std::fs::read(raw(objects.path(), 0)).expect("an object");
    assert!(object.starts_with(b"PAR1"), "a publication encodes what it puts");
    let second = TempDir::new().expect("a directory");
    let store = backend.open(second.path());
    assert!(all_of(&store, "a") == rows(0..end));
    append(&store, "a", &rows(end..end + CHUNK), StoreAckLevel::Object);
    assert!(all_of(&store, "a") == rows(0..end + CHUNK));
    assert!(all_of(&backend.archive(), "a") == rows(0..end + CHUNK));
    assert!(backend.verify().findings.is_empty());
}
