//! One test body for a store over any objects and names.

use std::path::Path;
use std::time::Duration;

use evenfall_core::{Objects as _, PutOutcome};
use evenfall_store_engine::{
    Archive, Bucket, BucketOptions, ChunkForm, ClusterConfig, RecordSource, Store, StoreAckLevel,
    StoreConfig, StoreError, clean_shutdown,
};
use evenfall_store_format::retention::Retention;
use evenfall_store_format::volume::Verification;
use evenfall_store_format::{FieldType, Schema};
use tempfile::TempDir;

use crate::servers::eventually;

/// The shortest lease that etcd grants.
pub const LEASE: Duration = Duration::from_secs(2);

/// The objects and names below a store.
pub struct Backend {
    /// Directory or address of the objects.
    pub objects: String,
    pub options: BucketOptions,
    /// Address of a cluster's names.
    pub names: Option<String>,
    /// Whether the server carries out two simultaneous conditional puts one after the other.
    pub is_atomic: bool,
}

impl Backend {
    /// Settings of a store in this directory, with small limits of memory and disk.
    pub fn config(&self, directory: &Path) -> StoreConfig {
        let cluster = self.names.clone().map(|address| ClusterConfig {
            address,
            lease: LEASE,
            take_over: true,
        });
        StoreConfig {
            objects: Some(self.objects.clone()),
            bucket_options: self.options.clone(),
            cluster,
            cache_bytes: 1 << 20,
            publish_every: Duration::from_secs(1),
            ..StoreConfig::new(directory)
        }
    }

    pub fn open(&self, directory: &Path) -> Store {
        Store::open(self.config(directory)).expect("a store").store
    }

    pub fn bucket(&self) -> Bucket {
        Bucket::open_with(&self.objects, &self.options).expect("a bucket")
    }

    pub fn archive(&self) -> Archive {
        Archive::of(self.bucket()).expect("an archive")
    }

    pub fn verify(&self) -> Verification {
        let mut seen = Verification::default();
        clean_shutdown::verify_objects(&self.bucket(), &mut seen).expect("objects");
        seen
    }

    /// Opens the store of another node, as soon as the last one's lease is over.
    pub fn open_when_free(&self, directory: &Path, file: &str) -> Store {
        let store = self.open(directory);
        eventually("a takeover", || {
            store.take_over().expect("a takeover");
            store.file(file).is_ok()
        });
        store
    }
}

pub fn schema() -> Schema {
    let fields = [("time", FieldType::Time), ("value", FieldType::U64)];
    Schema::of(&fields).with_aggregates(&["value"])
}

/// Records of 16 bytes: number as time, and seven times that.
pub fn records(numbers: std::ops::Range<u64>) -> Vec<u8> {
    numbers.flat_map(|n| [(n as i64).to_le_bytes(), (n * 7).to_le_bytes()].concat()).collect()
}

/// Every record of a file.
pub fn all_of(source: &dyn RecordSource, name: &str) -> Vec<u8> {
    let numbers = source.between(name, i64::MIN, i64::MAX).expect("numbers");
    source.numbers(name, numbers).expect("records")
}

/// Appends, and repeats a refused append until there is room.
pub fn append(store: &Store, name: &str, bytes: &[u8], level: StoreAckLevel) -> u64 {
    let file = store.file(name).expect("the file");
    let mut first = None;
    eventually("room", || match store.append(&file, bytes, level) {
        Ok(number) => {
            first = Some(number);
            true
        }
        Err(error) if error.is_retryable() => false,
        Err(error) => panic!("{error}"),
    });
    first.expect("a number")
}

/// The error in words.
pub fn said<T>(outcome: Result<T, StoreError>) -> String {
    outcome.err().map(|error| error.to_string()).unwrap_or_default()
}

/// The body.
pub fn behaves(backend: &Backend) {
    puts_are_conditional(backend);
    let first = TempDir::new().expect("a directory");
    // Raw chunks fill the disk, and later lives of the store continue with columns.
    let (local_bytes_max, chunks) = (8 << 20, ChunkForm::Raw);
    let config = StoreConfig { local_bytes_max, chunks, ..backend.config(first.path()) };
    let store = Store::open(config).expect("a store").store;
    appended_is_published_and_read_back(backend, &store, first.path());
    kept_less(backend, &store);
    flipped_bytes_are_found(backend);
    let end = store.file("a").expect("the file").records();
    // The node ends without a clean stop, and its disk is lost.
    drop((store, first));
    goes_on_elsewhere(backend, end);
}

fn puts_are_conditional(backend: &Backend) {
    let bucket = backend.bucket();
    let bytes = |text: &'static str| bytes::Bytes::from_static(text.as_bytes());
    assert_eq!(bucket.put_new("X-1", bytes("a")).unwrap(), PutOutcome::Created);
    assert_eq!(bucket.put_new("X-1", bytes("b")).unwrap(), PutOutcome::Exists);
    assert_eq!(bucket.swap("X-1", &bytes("b"), bytes("c")).unwrap(), PutOutcome::Exists);
    assert_eq!(bucket.swap("X-2", &bytes("b"), bytes("c")).unwrap(), PutOutcome::Exists);
    assert_eq!(bucket.get("X-1", 0, usize::MAX).unwrap(), Some(bytes("a")));
    assert_eq!(bucket.swap("X-1", &bytes("a"), bytes("c")).unwrap(), PutOutcome::Created);
    assert_eq!(bucket.get("X-1", 0, 100).unwrap(), Some(bytes("c")));
    assert_eq!(bucket.get("X-2", 0, usize::MAX).unwrap(), None);
    assert_eq!(bucket.list("X-").unwrap(), ["X-1"]);
    if backend.is_atomic {
        for round in 0..10 {
            one_of_many_wins(&bucket, &format!("X-3-{round}"));
        }
    }
    bucket.list("X-").unwrap().iter().for_each(|name| bucket.delete(name).unwrap());
    bucket.delete("X-2").unwrap();
}

/// Several writers put an absent object, and swap it, at the same time. One writer wins each time.
fn one_of_many_wins(bucket: &Bucket, name: &str) {
    let put = |number: u8| bucket.put_new(name, vec![number; 50_000].into());
    let race = |act: &(dyn Fn(u8) -> Result<PutOutcome, evenfall_core::StorageError> + Sync)| {
        std::thread::scope(|scope| {
            let racers: Vec<_> = (0..6u8).map(|n| scope.spawn(move || act(n))).collect();
            let ends = racers.into_iter().map(|racer| racer.join().expect("a racer"));
            let won = ends.enumerate().filter(|(_, end)| *end == Ok(PutOutcome::Created));
            won.map(|(number, _)| number as u8).collect::<Vec<_>>()
        })
    };
    let winner = race(&put);
    assert_eq!(winner.len(), 1, "{winner:?} have put {name}");
    let there = bucket.get(name, 0, usize::MAX).unwrap().expect("an object");
    assert_eq!(there, vec![winner[0]; 50_000]);
    let swap = |number: u8| bucket.swap(name, &there, vec![100 + number; 50_000].into());
    let winner = race(&swap);
    assert_eq!(winner.len(), 1, "{winner:?} have swapped {name}");
    let there = bucket.get(name, 0, usize::MAX).unwrap().expect("an object");
    assert_eq!(there, vec![100 + winner[0]; 50_000]);
}

fn appended_is_published_and_read_back(backend: &Backend, store: &Store, directory: &Path) {
    store.create("a", &schema()).expect("a file");
    for batch in 0..60u64 {
        let level = [StoreAckLevel::Memory, StoreAckLevel::Local][batch as usize % 2];
        append(store, "a", &records(batch * 10_000..(batch + 1) * 10_000), level);
    }
    append(store, "a", &records(600_000..600_001), StoreAckLevel::Object);
    let whole = records(0..600_001);
    assert!(all_of(store, "a") == whole, "the store's own");
    eventually("eviction of the first chunk", || {
        !directory.join("D-0000000000000001-00000000").exists()
    });
    assert!(all_of(store, "a") == whole, "after eviction");
    let archive = backend.archive();
    assert!(all_of(&archive, "a") == whole, "from objects alone");
    assert_eq!(archive.between("a", 1_000, 1_999).unwrap(), 1_000..2_000);
    let listed = archive.listed().unwrap();
    assert_eq!((listed[0].name.as_str(), listed[0].records), ("a", 600_001));
    let seen = backend.verify();
    assert!(seen.findings.is_empty(), "{:?}", seen.findings);
}

fn kept_less(backend: &Backend, store: &Store) {
    let large = |n: u64| [(n as i64).to_le_bytes().to_vec(), vec![n as u8; 4_088]].concat();
    let file = store.create("b", &Schema::opaque(4_096)).expect("a file");
    let bytes: Vec<u8> = (0..2_000).flat_map(large).collect();
    append(store, "b", &bytes, StoreAckLevel::Object);
    let keep = Retention { bytes_max: Some(4 << 20), age_ns_max: None };
    let first = store.retain(&file, keep).expect("retention");
    assert!(first >= 768, "{first}");
    assert_eq!(backend.archive().between("b", i64::MIN, i64::MAX).unwrap(), first..2_000);
    assert!(all_of(store, "b") == bytes[first as usize * 4_096..]);
    store.delete("b").expect("deleted");
    let left = backend.bucket().list("").unwrap();
    assert!(!left.iter().any(|name| name.contains("-0000000000000002")), "{left:?}");
    assert!(said(backend.archive().file("b")).contains("no file b"));
}

fn flipped_bytes_are_found(backend: &Backend) {
    let bucket = backend.bucket();
    let mut prng = evenfall_core::Prng::new(5);
    // One object of each kind.
    let mut names = bucket.list("").unwrap();
    names.sort();
    names.dedup_by_key(|name| name.as_bytes()[0]);
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        let whole = bucket.get(&name, 0, usize::MAX).unwrap().expect("an object");
        let mut bytes = whole.to_vec();
        bytes[prng.below(whole.len() as u64) as usize] ^= 1 << prng.below(8);
        bucket.put(&name, bytes.into()).unwrap();
        let seen = backend.verify();
        assert!(seen.findings.iter().any(|found| found.place.contains(&name)), "{name}");
        bucket.put(&name, whole).unwrap();
    }
    assert!(backend.verify().findings.is_empty());
}

fn goes_on_elsewhere(backend: &Backend, end: u64) {
    let directory = TempDir::new().expect("a directory");
    let store = backend.open_when_free(directory.path(), "a");
    assert!(all_of(&store, "a") == records(0..end), "taken over");
    let file = store.file("a").expect("the file");
    store.append(&file, &records(end..end + 1_000), StoreAckLevel::Local).expect("taken");
    drop(file);
    store.close().expect("a clean stop");
    assert!(all_of(&backend.archive(), "a") == records(0..end + 1_000), "after the stop");
    let seen = backend.verify();
    assert!(seen.findings.is_empty(), "{:?}", seen.findings);
}
