//! Stores that are opened after rot while their objects do not answer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::engine::OpenedStore;
use crate::names::{self, Names};
use crate::tests::records;
use crate::{
    Archive, Bucket, ChunkForm, DiskDirectory, RecordSource as _, StoreAckLevel, StoreConfig,
};

/// A directory of objects in whose place a file stands, so that every request fails.
struct AwayObjects {
    objects: PathBuf,
    elsewhere: PathBuf,
}

impl AwayObjects {
    fn begin(objects: &Path) -> Self {
        let elsewhere = objects.with_extension("away");
        std::fs::rename(objects, &elsewhere).unwrap();
        std::fs::write(objects, b"").unwrap();
        Self { objects: objects.to_owned(), elsewhere }
    }

    fn end(self) {
        std::fs::remove_file(&self.objects).unwrap();
        std::fs::rename(&self.elsewhere, &self.objects).unwrap();
    }
}

/// A store, and the place of its objects.
struct Scratch {
    disk: tempfile::TempDir,
    place: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Self {
        Self { disk: tempfile::tempdir().unwrap(), place: tempfile::tempdir().unwrap() }
    }

    fn objects(&self) -> PathBuf {
        self.place.path().join("objects")
    }

    fn config(&self) -> StoreConfig {
        StoreConfig {
            objects: Some(self.objects().display().to_string()),
            publish_every: Duration::from_secs(3_600),
            chunks: ChunkForm::Raw,
            ..StoreConfig::new(self.disk.path())
        }
    }

    fn open(&self) -> Store {
        Store::open(self.config()).unwrap().store
    }

    fn open_away(&self) -> (OpenedStore, AwayObjects) {
        let bucket = Bucket::directory(&self.objects()).unwrap();
        let away = AwayObjects::begin(&self.objects());
        let disk = DiskDirectory::open(self.disk.path()).unwrap();
        let names = Names::open(&self.disk.path().join(names::FILE), 1, None).unwrap();
        (Store::start(self.config(), disk, names, Some(bucket)).unwrap(), away)
    }

    /// The files of the store's disk whose names begin with one of these letters.
    fn files(&self, kinds: &[&str]) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.disk.path()).unwrap().map(|entry| entry.unwrap());
        let is_wanted = |entry: &std::fs::DirEntry| {
            let name = entry.file_name().into_string().unwrap();
            kinds.iter().any(|kind| name.starts_with(kind))
        };
        entries.filter(is_wanted).map(|entry| entry.path()).collect()
    }

    fn remove(&self, kinds: &[&str]) {
        self.files(kinds).iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }

    /// Flips a bit of this record in the journals.
    fn flip_record(&self, number: u64) {
        let record = records(number..number + 1);
        for path in self.files(&["J-"]) {
            let mut bytes = std::fs::read(&path).unwrap();
            let places = bytes.windows(record.len()).enumerate();
            let places = places.filter(|(_, there)| *there == record).map(|(at, _)| at);
            for at in places.collect::<Vec<_>>() {
                bytes[at] ^= 1;
            }
            std::fs::write(&path, bytes).unwrap();
        }
    }
}

fn can_settle(store: &Store) -> bool {
    let answered = store.ask_to_settle();
    assert_eq!(answered.is_some(), store.awaits_objects());
    answered.is_some_and(|answered| answered.recv_timeout(Duration::from_secs(30)).unwrap())
}

fn said(losses: &[DiskLoss]) -> String {
    losses.iter().map(|loss| format!("{loss}\n")).collect()
}

#[test]
fn lost_records_come_from_the_objects_when_these_answer_again() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let file = store.create("a", &Schema::opaque(16)).unwrap();
    for first in (0..3_000).step_by(500) {
        store.append(&file, &records(first..first + 500), StoreAckLevel::Local).unwrap();
    }
    store.publish(&file).unwrap();
    drop((file, store));
    // Records 1,000 to 1,499 were in one commit, and in chunks that were not synced.
    scratch.flip_record(1_200);
    scratch.remove(&["D-", "I-"]);

    let (OpenedStore { store, losses }, away) = scratch.open_away();
    let said = said(&losses);
    assert!(said.contains("file a: records 1000 to 1499 are lost"), "{said}");
    assert!(said.contains("do not answer, and may have its lost records"), "{said}");
    let file = store.file("a").unwrap();
    assert!(store.numbers("a", 0..1_000).unwrap() == records(0..1_000));
    assert!(store.numbers("a", 1_500..3_000).unwrap() == records(1_500..3_000));
    store.numbers("a", 0..1_100).unwrap_err();
    store.append(&file, &records(3_000..3_100), StoreAckLevel::Local).unwrap();
    let error = store.publish(&file).unwrap_err().to_string();
    assert!(error.contains("open it again while they answer"), "{error}");
    assert!(!can_settle(&store));
    away.end();
    assert!(can_settle(&store));
    drop(file);
    store.close().unwrap();

    let store = scratch.open();
    assert!(!can_settle(&store));
    let file = store.file("a").unwrap();
    assert!(store.numbers("a", 0..3_100).unwrap() == records(0..3_100));
    // The index has them too.
    let summary = store.summary(&file, i64::MIN, i64::MAX).unwrap().unwrap();
    assert_eq!((summary.count, summary.min_ns, summary.max_ns), (3_100, 0, 3_099));
    assert_eq!(store.find(&file, 1_100, 1_200).unwrap(), 1_100..1_201);
    store.publish(&file).unwrap();
    let archive = Archive::open(scratch.objects().to_str().unwrap()).unwrap();
    assert!(archive.numbers("a", 0..3_100).unwrap() == records(0..3_100));
    let kept = store.shared.names.local().setting(LOST).unwrap();
    assert_eq!(kept.as_deref(), Some("[]"));
}

#[test]
fn a_file_whose_end_is_not_known_takes_no_records_until_the_objects_answer() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let file = store.create("a", &Schema::opaque(16)).unwrap();
    store.append(&file, &records(0..2_000), StoreAckLevel::Object).unwrap();
    let other = store.create("b", &Schema::opaque(16)).unwrap();
    store.append(&other, &records(0..10), StoreAckLevel::Local).unwrap();
    drop((file, other, store));
    scratch.remove(&["J-", "D-", "I-"]);

    let (OpenedStore { store, losses }, away) = scratch.open_away();
    let said = said(&losses);
    assert!(said.contains("may have more than the 0 records on this disk"), "{said}");
    let file = store.file("a").unwrap();
    let error = store.append(&file, &records(0..10), StoreAckLevel::Local).unwrap_err();
    assert!(error.is_retryable(), "{error}");
    // A file that was never published needs no objects.
    let other = store.file("b").unwrap();
    store.append(&other, &records(0..10), StoreAckLevel::Local).unwrap();
    assert!(!can_settle(&store));
    away.end();
    assert!(can_settle(&store));
    drop((file, other));
    store.close().unwrap();

    let store = scratch.open();
    assert!(store.numbers("a", 0..2_000).unwrap() == records(0..2_000));
    assert!(store.numbers("b", 0..10).unwrap() == records(0..10));
}

#[test]
fn a_caller_that_asks_silent_objects_is_not_held_up() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let file = store.create("a", &Schema::opaque(16)).unwrap();
    store.append(&file, &records(0..2_000), StoreAckLevel::Object).unwrap();
    drop((file, store));
    scratch.remove(&["J-", "D-", "I-"]);
    let (OpenedStore { store, .. }, away) = scratch.open_away();
    away.end();
    // The read of a pipe waits for somebody who opens it to write.
    let block = store.file("a").unwrap().entry.clone();
    let block = scratch.objects().join(archive::block_of(&block));
    std::fs::remove_file(&block).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&block).status().unwrap();
    assert!(made.success());
    let answered = store.ask_to_settle().unwrap();
    assert!(answered.try_recv().is_err());
    store.file("a").unwrap();
    // A store that ends does not wait for the answer either.
    drop(store);
    assert!(answered.try_recv().is_err());
    drop(std::fs::OpenOptions::new().write(true).open(&block).unwrap());
    assert!(!answered.recv_timeout(Duration::from_secs(30)).unwrap(), "a pipe has no block");
}
