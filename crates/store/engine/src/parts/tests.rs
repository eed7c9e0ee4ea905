use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenfall_core::{Objects, PutOutcome, StorageError};
use evenfall_store_format::layout::{CHUNK_BYTES, SEGMENTS_PER_CHUNK};

use super::*;
use crate::bucket::BucketBackend;
use crate::names::{self, Names};
use crate::tests::{records, schema};
use crate::{Archive, ChunkForm, DiskDirectory, Store, StoreAckLevel, StoreConfig, StoreFile};

type Outcome<T> = Result<T, StorageError>;

/// A place that counts its reads.
struct Counted {
    place: Arc<dyn BucketBackend>,
    gets: Arc<AtomicUsize>,
}

impl std::fmt::Display for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "counted {}", self.place)
    }
}

impl BucketBackend for Counted {
    fn fetch(&self, name: &str, offset: u64, len: usize) -> Fetch {
        self.gets.fetch_add(1, Relaxed);
        self.place.fetch(name, offset, len)
    }
}

impl Objects for Counted {
    fn put(&self, name: &str, bytes: Bytes) -> Outcome<()> {
        self.place.put(name, bytes)
    }

    fn put_new(&self, name: &str, bytes: Bytes) -> Outcome<PutOutcome> {
        self.place.put_new(name, bytes)
    }

    fn swap(&self, name: &str, was: &Bytes, bytes: Bytes) -> Outcome<PutOutcome> {
        self.place.swap(name, was, bytes)
    }

    fn get(&self, name: &str, offset: u64, len: usize) -> Outcome<Option<Bytes>> {
        self.gets.fetch_add(1, Relaxed);
        self.place.get(name, offset, len)
    }

    fn delete(&self, name: &str) -> Outcome<()> {
        self.place.delete(name)
    }

    fn list(&self, prefix: &str) -> Outcome<Vec<String>> {
        self.place.list(prefix)
    }
}

/// A bucket in this directory, and a counter of its reads.
fn counted(objects: &Path) -> (Bucket, Arc<AtomicUsize>) {
    let gets = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&gets);
    let bucket = Bucket::directory(objects).unwrap();
    (bucket.behind(|place| Arc::new(Counted { place, gets: count })), gets)
}

const RECORDS: u64 = 1_500_000;

/// A store whose first chunks have left the disk, and that has none of them in memory.
fn evicted(directory: &Path) -> (Store, Arc<StoreFile>, Arc<AtomicUsize>) {
    let config = StoreConfig {
        local_bytes_max: 2 * CHUNK_BYTES as u64,
        cache_bytes: 0,
        // Each request of a part is counted, and a chunk in columns comes whole.
        chunks: ChunkForm::Raw,
        publish_every: Duration::from_secs(3_600),
        ..StoreConfig::new(directory)
    };
    let (bucket, gets) = counted(&directory.join("objects"));
    let disk = DiskDirectory::open(directory).unwrap();
    let names = Names::open(&directory.join(names::FILE), 1, None).unwrap();
    let store = Store::start(config, disk, names, Some(bucket)).unwrap().store;
    let file = store.create("a", &schema()).unwrap();
    let patience = Instant::now() + Duration::from_secs(60);
    for first in (0..RECORDS).step_by(10_000) {
        while let Err(error) =
            store.append(&file, &records(first..first + 10_000), StoreAckLevel::Local)
        {
            assert!(error.is_retryable() && Instant::now() < patience, "{error}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    while away(directory) < 4 {
        assert!(Instant::now() < patience, "no eviction");
        std::thread::sleep(Duration::from_millis(5));
    }
    (store, file, gets)
}

/// Number of full chunks that the disk lacks.
fn away(directory: &Path) -> usize {
    let full = schema().layout().unwrap().full_segments(RECORDS) / SEGMENTS_PER_CHUNK;
    let is_away =
        |chunk: &u32| !directory.join(chunk_name(SegmentKind::Data, FileId(1), *chunk)).exists();
    (0..full).filter(is_away).count()
}

fn read(store: &Store, file: &StoreFile, numbers: Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut each = |part: Bytes| {
        bytes.extend_from_slice(&part);
        Ok(())
    };
    store.read_numbers(file, numbers, &mut each).unwrap();
    bytes
}

#[test]
fn a_scan_of_what_left_the_disk_takes_a_get_a_part_and_a_lookup_one() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file, gets) = evicted(dir.path());
    let before = away(dir.path());
    gets.store(0, Relaxed);
    assert!(read(&store, &file, 0..RECORDS) == records(0..RECORDS));
    let (taken, after) = (gets.swap(0, Relaxed), away(dir.path()));
    let wanted = before..=after;
    assert!(wanted.contains(&taken), "{taken} GETs for {before} to {after} chunks");

    for number in [0, 300_000, 700_123] {
        assert_eq!(store.record(&file, number).unwrap(), records(number..number + 1));
    }
    assert_eq!(gets.swap(0, Relaxed), 3);
    // The read fetches three segments, and no more.
    assert_eq!(read(&store, &file, 5_000..7_500), records(5_000..7_500));
    assert_eq!(gets.swap(0, Relaxed), 1);
    // While other readers hold all parts, the read continues segment by segment.
    let bucket = store.shared.bucket.as_ref().unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| bucket.room()).collect();
    assert_eq!(taken.len(), PARTS_MAX);
    assert!(read(&store, &file, 0..100_000) == records(0..100_000));
    let segments = schema().layout().unwrap().locate(99_999).unwrap().0 + 1;
    assert_eq!(gets.swap(0, Relaxed), segments as usize);
    drop(taken);
    assert!(read(&store, &file, 0..100_000) == records(0..100_000));
    assert_eq!(gets.swap(0, Relaxed), 1);
    // A reader that stops early has requested a few parts, and not all.
    let stop = |_| Err(Error::Schema { what: "enough".into() });
    store.read_numbers(&file, 0..RECORDS, &mut { stop }).unwrap_err();
    assert!(gets.swap(0, Relaxed) <= 1 + PARTS_AHEAD);
}

#[test]
fn objects_alone_are_scanned_in_the_same_parts() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file, _) = evicted(dir.path());
    store.publish(&file).unwrap();
    let (bucket, gets) = counted(&dir.path().join("objects"));
    let archive = Archive::of(bucket).unwrap();
    let mut archived = archive.file("a").unwrap();
    gets.store(0, Relaxed);
    let mut bytes = Vec::new();
    let mut each = |part: Bytes| {
        bytes.extend_from_slice(&part);
        Ok(())
    };
    archived.read_numbers(0..RECORDS, &mut each).unwrap();
    assert!(bytes == records(0..RECORDS));
    let full = schema().layout().unwrap().full_segments(RECORDS) / SEGMENTS_PER_CHUNK;
    assert_eq!(gets.swap(0, Relaxed), full as usize);
}

#[test]
fn each_segment_of_a_part_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file, _) = evicted(dir.path());
    let object = dir.path().join("objects").join(chunk_name(SegmentKind::Data, FileId(1), 1));
    let whole = std::fs::read(&object).unwrap();
    let mut flipped = whole.clone();
    flipped[7 * SEGMENT_BYTES + 500] ^= 4;
    let short = whole[..9 * SEGMENT_BYTES + 50].to_vec();
    for (bytes, number) in [(flipped, 7), (short, 9)] {
        std::fs::write(&object, bytes).unwrap();
        let mut seen = 0;
        let mut each = |part: Bytes| {
            seen += part.len() as u64 / 16;
            Ok(())
        };
        let error = store.read_numbers(&file, 0..RECORDS, &mut each).unwrap_err().to_string();
        let segment = SEGMENTS_PER_CHUNK + number;
        assert!(error.contains(&format!("segment {segment} of D-{}", FileId(1))), "{error}");
        assert_eq!(seen, schema().layout().unwrap().first_record(segment));
    }
    std::fs::write(&object, whole).unwrap();
    assert!(read(&store, &file, 0..RECORDS) == records(0..RECORDS));
}
