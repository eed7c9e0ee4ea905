//! A store keeps its promises when its disk, its objects or its node fails.

use std::path::{Path, PathBuf};
use std::time::Instant;

use evenfall_store_format::layout::{DataChunk, chunk_name, packs_prefix};

use super::*;
use crate::names::Claimed;
use crate::{Archive, Entry, RecordSource as _};

/// Records of a chunk of 16-byte records.
const CHUNK: u64 = 1_022 * 256;
/// The first object of the first file.
const FIRST_CHUNK: &str = "D-0000000000000001-00000000";

fn records(numbers: Range<u64>) -> Vec<u8> {
    numbers.flat_map(|n| [(n as i64).to_le_bytes(), (n * 7).to_le_bytes()].concat()).collect()
}

/// Records of 4,096 bytes, three to a segment.
fn large(numbers: Range<u64>) -> Vec<u8> {
    let one = |n: u64| [(n as i64).to_le_bytes().to_vec(), vec![n as u8; 4_088]].concat();
    numbers.flat_map(one).collect()
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "never came: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A configuration that publishes only when a caller waits for it.
fn config(path: &Path, objects: &Path) -> StoreConfig {
    StoreConfig {
        objects: Some(objects.display().to_string()),
        publish_every: Duration::from_secs(3_600),
        // These tests look at raw chunks. `server/tests/store/columns.rs` has those in columns.
        chunks: ChunkForm::Raw,
        ..StoreConfig::new(path)
    }
}

fn open(config: StoreConfig) -> Store {
    Store::open(config).unwrap().store
}

fn all_of(store: &Store, name: &str) -> Vec<u8> {
    let numbers = store.between(name, i64::MIN, i64::MAX).unwrap();
    store.numbers(name, numbers).unwrap()
}

fn directories() -> (tempfile::TempDir, tempfile::TempDir) {
    (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap())
}

/// Puts a directory in the place of an object, which can then be neither put nor deleted. Lifting
/// the block brings the object back.
struct Blocked(PathBuf, Option<Vec<u8>>);

impl Blocked {
    fn at(path: PathBuf) -> Self {
        let bytes = std::fs::read(&path).ok();
        let _ = std::fs::remove_file(&path);
        std::fs::create_dir_all(path.join("in-the-way")).unwrap();
        Self(path, bytes)
    }

    fn lift(self) {
        std::fs::remove_dir_all(&self.0).unwrap();
        if let Some(bytes) = self.1 {
            std::fs::write(self.0, bytes).unwrap();
        }
    }
}

#[test]
fn a_chunk_that_is_uploaded_before_it_is_published_moves_nothing_for_a_successor() {
    let (first, objects) = directories();
    let store = open(config(first.path(), objects.path()));
    let [a, b] = ["a", "b"].map(|name| store.create(name, &Schema::opaque(16)).unwrap());
    store.append(&a, &records(0..100_000), StoreAckLevel::Object).unwrap();
    store.append(&a, &records(100_000..CHUNK + 1_000), StoreAckLevel::Memory).unwrap();
    let chunk = objects.path().join(FIRST_CHUNK);
    eventually("an upload", || chunk.exists() && store.occupancy().upload_chunks == 0);
    // A publication of the neighbour writes the metadata nodes of both files.
    store.append(&b, &records(0..1), StoreAckLevel::Object).unwrap();
    drop((a, b, store, first));
    let second = tempfile::tempdir().unwrap();
    let store = open(config(second.path(), objects.path()));
    let a = store.file("a").unwrap();
    store.append(&a, &records(100_000..100_100), StoreAckLevel::Local).unwrap();
    drop((a, store));
    let store = open(config(second.path(), objects.path()));
    assert!(all_of(&store, "a") == records(0..100_100));
    // The file is then published further, chunk by chunk.
    let a = store.file("a").unwrap();
    store.append(&a, &records(100_100..2 * CHUNK), StoreAckLevel::Object).unwrap();
    let archive = Archive::open(objects.path().to_str().unwrap()).unwrap();
    let numbers = archive.between("a", i64::MIN, i64::MAX).unwrap();
    assert!(archive.numbers("a", numbers).unwrap() == records(0..2 * CHUNK));
}

#[test]
fn an_append_that_is_taken_and_does_not_reach_its_level_is_not_to_be_repeated() {
    let (path, objects) = directories();
    let store = open(config(path.path(), objects.path()));
    let file = store.create("a", &Schema::opaque(16)).unwrap();
    store.append(&file, &records(0..100), StoreAckLevel::Object).unwrap();
    let pack = Blocked::at(objects.path().join("P-00000001-00000002"));
    let unreached = store.append(&file, &records(100..200), StoreAckLevel::Object).unwrap_err();
    assert!(!unreached.is_retryable(), "{unreached}");
    assert!(unreached.to_string().contains("records from 100 on are taken"), "{unreached}");
    assert_eq!(file.records(), 200);
    pack.lift();
    store.append(&file, &records(200..300), StoreAckLevel::Object).unwrap();
    assert!(all_of(&store, "a") == records(0..300));
}

/// A directory with a file, and without the names of its files.
fn nameless(path: &Path) -> StoreConfig {
    let config = StoreConfig { objects: None, ..StoreConfig::new(path) };
    let store = open(config.clone());
    let file = store.create("a", &Schema::opaque(16)).unwrap();
    store.append(&file, &records(0..5_000), StoreAckLevel::Local).unwrap();
    drop((file, store));
    std::fs::remove_file(path.join(names::FILE)).unwrap();
    config
}

#[test]
fn a_new_file_has_nothing_of_one_whose_name_was_lost() {
    let path = tempfile::tempdir().unwrap();
    let config = nameless(path.path());
    let store = open(config.clone());
    let file = store.create("b", &Schema::opaque(16)).unwrap();
    store.append(&file, &records(0..100), StoreAckLevel::Local).unwrap();
    drop((file, store));
    let store = open(config);
    assert!(all_of(&store, "b") == records(0..100));
}

#[test]
fn a_file_whose_name_was_lost_keeps_its_end() {
    let path = tempfile::tempdir().unwrap();
    let config = nameless(path.path());
    for _ in 0..2 {
        let opened = Store::open(config.clone()).unwrap();
        let lost = opened.losses.iter().find(|loss| loss.what.contains("without a name"));
        assert!(lost.unwrap().what.starts_with("5000 records"), "{:?}", opened.losses);
        opened.store.close().unwrap();
    }
}

#[test]
fn a_takeover_beside_appends_leaves_no_segment_in_memory() {
    let (first, objects) = directories();
    let path = tempfile::tempdir().unwrap();
    let before = open(config(first.path(), objects.path()));
    let store = open(config(path.path(), objects.path()));
    before.create("other", &Schema::opaque(16)).unwrap();
    let file = before.create("a", &Schema::opaque(16)).unwrap();
    before.append(&file, &records(0..50_000), StoreAckLevel::Object).unwrap();
    let entry = Entry { listed: file.entry.token, ..file.entry.clone() };
    drop((file, before));
    let file = store.create("b", &Schema::opaque(16)).unwrap();
    // These segments are written and not synced when the takeover comes.
    let turn = lock(&store.shared.flush_turn);
    store.append(&file, &records(0..100_000), StoreAckLevel::Memory).unwrap();
    eventually("written segments", || lock(&store.shared.volume).unsynced() >= 97);
    drop(turn);
    let one = Claimed { name: "a".into(), entry, was_ours: true };
    let adopted = store.shared.adopt(one, None, None, &mut Vec::new()).unwrap();
    store.shared.install_all(vec![adopted]).unwrap();
    assert!(all_of(&store, "a") == records(0..50_000));
    eventually("room in memory", || store.occupancy().memory_bytes == 0);
}

#[test]
fn a_name_that_several_create_at_once_is_one_file() {
    let path = tempfile::tempdir().unwrap();
    let store = open(StoreConfig { objects: None, ..StoreConfig::new(path.path()) });
    for round in 0..20 {
        let name = format!("f{round}");
        let create = || store.create(&name, &Schema::opaque(16)).unwrap();
        let files: Vec<_> = std::thread::scope(|scope| {
            let created: Vec<_> = (0..4).map(|_| scope.spawn(create)).collect();
            created.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(files.iter().all(|file| Arc::ptr_eq(file, &files[0])), "{name}");
    }
}

#[test]
fn what_retention_could_not_delete_is_deleted_later() {
    let (path, objects) = directories();
    let keep = Retention { bytes_max: Some(8 << 20), age_ns_max: None };
    for is_reopened in [false, true] {
        let name = format!("a{is_reopened}");
        let mut store = open(config(path.path(), objects.path()));
        let mut file = store.create(&name, &Schema::opaque(4_096)).unwrap();
        store.append(&file, &large(0..256 * 3 * 5 + 10), StoreAckLevel::Object).unwrap();
        let chunk =
            |number: u32| objects.path().join(chunk_name(SegmentKind::Data, file.id, number));
        let chunks = [0, 1].map(chunk);
        let blocked = Blocked::at(chunks[1].clone());
        store.retain(&file, keep).unwrap_err();
        assert!(!chunks[0].exists());
        blocked.lift();
        if is_reopened {
            drop((file, store));
            store = open(config(path.path(), objects.path()));
            file = store.file(&name).unwrap();
        }
        let first = store.retain(&file, keep).unwrap();
        assert_eq!(first, 256 * 3 * 2);
        assert!(!chunks.iter().any(|chunk| chunk.exists()), "{is_reopened}");
        assert!(all_of(&store, &name) == large(first..256 * 3 * 5 + 10));
        drop(file);
        store.close().unwrap();
    }
}

#[test]
fn a_deletion_that_was_cut_short_is_finished_by_the_next_life() {
    let (path, objects) = directories();
    let store = open(config(path.path(), objects.path()));
    let file = store.create("a", &Schema::opaque(4_096)).unwrap();
    store.append(&file, &large(0..2_000), StoreAckLevel::Object).unwrap();
    drop(file);
    let blocked = Blocked::at(objects.path().join("M-00000001-00000000"));
    store.delete("a").unwrap_err();
    assert!(store.file("a").is_err());
    blocked.lift();
    drop(store);
    let store = open(config(path.path(), objects.path()));
    assert!(store.file("a").is_err());
    for place in [path.path(), objects.path()] {
        let left = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.map(|name| name.into_string().unwrap()).collect();
        assert!(!left.iter().any(|name| name.contains("-0000000000000001-")), "{left:?}");
    }
    let again = store.create("a", &Schema::opaque(16)).unwrap();
    assert_ne!(again.id, FileId(1));
}

#[test]
fn what_is_acknowledged_at_memory_is_in_the_journal_soon() {
    let path = tempfile::tempdir().unwrap();
    let config = StoreConfig { objects: None, ..StoreConfig::new(path.path()) };
    let store = open(config.clone());
    let file = store.create("a", &Schema::opaque(16)).unwrap();
    let mut end = 0;
    // First a few records of an open segment, then further ones, then several segments and the
    // beginning of another.
    for count in [5, 5, 2_500] {
        store.append(&file, &records(end..end + count), StoreAckLevel::Memory).unwrap();
        end += count;
        eventually("the tail in a journal", || file.durable.load(Relaxed) == end);
    }
    drop((file, store));
    assert!(all_of(&open(config), "a") == records(0..end));
}

/// A file system of a few megabytes; `None` where it cannot be mounted.
struct Small(tempfile::TempDir);

impl Small {
    fn mounted() -> Option<Self> {
        let path = tempfile::tempdir().unwrap();
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=12m", "tmpfs"])
            .arg(path.path())
            .output();
        let is_mounted = mount.is_ok_and(|done| done.status.success());
        if !is_mounted {
            println!("skipped: a tmpfs cannot be mounted here (root can)");
        }
        is_mounted.then_some(Self(path))
    }

    fn config(&self) -> StoreConfig {
        StoreConfig { objects: None, ..StoreConfig::new(&self.0.path().join("store")) }
    }

    /// A store with a thousand records in one file, whose disk is full since then.
    fn filled(&self) -> (Store, Arc<StoreFile>) {
        let store = open(self.config());
        let file = store.create("a", &Schema::opaque(16)).unwrap();
        store.append(&file, &records(0..1_000), StoreAckLevel::Local).unwrap();
        // A write that fails in the middle has filled the disk.
        let _ = std::fs::write(self.ballast(), vec![0; 12 << 20]);
        (store, file)
    }

    /// The file that fills the disk.
    fn ballast(&self) -> PathBuf {
        self.0.path().join("ballast")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_answers_every_append_by_its_name_and_goes_on_when_there_is_room() {
    let Some(small) = Small::mounted() else { return };
    let (store, file) = small.filled();
    let mut end = 1_000;
    let mut refused = 0;
    for level in
        [StoreAckLevel::Local, StoreAckLevel::Memory, StoreAckLevel::Local, StoreAckLevel::Memory]
            .repeat(3)
    {
        let error = loop {
            match store.append(&file, &records(end..end + 20_000), level) {
                Ok(_) => end = file.records(),
                Err(error) => break error,
            }
        };
        end = file.records();
        assert!(error.to_string().contains("the local disk is full"), "{error}");
        refused += u32::from(error.is_retryable());
    }
    assert!(refused > 0, "none was refused before it was taken");
    std::fs::remove_file(small.ballast()).unwrap();
    eventually("room", || {
        store.append(&file, &records(end..end + 1), StoreAckLevel::Local).is_ok()
    });
    drop((file, store));
    assert!(all_of(&open(small.config()), "a") == records(0..end + 1));
}

#[test]
fn a_store_on_a_full_disk_closes_with_an_error_and_keeps_what_it_acknowledged() {
    let Some(small) = Small::mounted() else { return };
    let (store, file) = small.filled();
    let mut end = 1_000;
    while store.append(&file, &records(end..end + 20_000), StoreAckLevel::Local).is_ok() {
        end = file.records();
    }
    drop(file);
    let error = store.close().unwrap_err();
    assert!(error.to_string().contains("no room left"), "{error}");
    std::fs::remove_file(small.ballast()).unwrap();
    let there = all_of(&open(small.config()), "a");
    assert!(there.len() as u64 >= end * 16 && there == records(0..there.len() as u64 / 16));
}

#[test]
fn a_file_can_be_deleted_on_a_full_disk_while_appends_wait_for_its_room() {
    let Some(small) = Small::mounted() else { return };
    let config = StoreConfig { chunks: ChunkForm::Raw, ..small.config() };
    let store = open(config.clone());
    let [file, other] = ["a", "b"].map(|name| store.create(name, &Schema::opaque(16)).unwrap());
    store.append(&file, &records(0..100_000), StoreAckLevel::Local).unwrap();
    eventually("its chunk", || store.occupancy().memory_bytes == 0);
    let _ = std::fs::write(small.ballast(), vec![0; 12 << 20]);
    let mut end = 0;
    while store.append(&other, &records(end..end + 20_000), StoreAckLevel::Local).is_ok() {
        end = other.records();
    }
    end = other.records();
    store.delete("a").unwrap();
    store.file("a").map(|_| ()).unwrap_err();
    eventually("room", || {
        store.append(&other, &records(end..end + 1), StoreAckLevel::Local).is_ok()
    });
    drop((file, other, store));
    let opened = Store::open(config).unwrap();
    assert!(opened.losses.iter().all(|loss| loss.is_torn_end), "{:?}", opened.losses);
    assert!(all_of(&opened.store, "b") == records(0..end + 1));
    opened.store.file("a").map(|_| ()).unwrap_err();
}

#[test]
fn a_restart_asks_no_objects_when_the_disk_is_whole() {
    let (path, objects) = directories();
    let elsewhere = tempfile::tempdir().unwrap();
    let away = elsewhere.path().join("away");
    for is_clean in [false, true] {
        let store = open(config(path.path(), objects.path()));
        let names = ["a", "b"].map(|name| format!("{name}{is_clean}"));
        for name in &names {
            let file = store.create(name, &Schema::opaque(16)).unwrap();
            store.append(&file, &records(0..CHUNK + 10), StoreAckLevel::Memory).unwrap();
            store.append(&file, &records(CHUNK + 10..CHUNK + 20), StoreAckLevel::Object).unwrap();
            store.append(&file, &records(CHUNK + 20..CHUNK + 30), StoreAckLevel::Local).unwrap();
        }
        match is_clean {
            true => store.close().unwrap(),
            false => drop(store),
        }
        // An empty bucket is worse than a bucket that does not answer.
        std::fs::rename(objects.path(), &away).unwrap();
        let store = open(config(path.path(), objects.path()));
        for name in &names {
            assert!(all_of(&store, name) == records(0..CHUNK + 30), "{name}");
        }
        let file = store.file(&names[0]).unwrap();
        let error = store.append(&file, &records(CHUNK + 30..CHUNK + 40), StoreAckLevel::Object);
        assert!(error.unwrap_err().to_string().contains("it is another bucket, or was lost"));
        std::fs::remove_dir_all(objects.path()).unwrap();
        std::fs::rename(&away, objects.path()).unwrap();
        store.append(&file, &records(CHUNK + 40..CHUNK + 50), StoreAckLevel::Object).unwrap();
        let archive = Archive::open(objects.path().to_str().unwrap()).unwrap();
        let numbers = archive.between(&names[0], i64::MIN, i64::MAX).unwrap();
        assert!(archive.numbers(&names[0], numbers).unwrap() == records(0..CHUNK + 50));
        drop(file);
        store.close().unwrap();
    }
}

#[test]
fn lives_leave_no_packs_behind() {
    let (path, objects) = directories();
    let mut end = 0;
    for _ in 0..3 {
        let store = open(config(path.path(), objects.path()));
        let file = store.create("a", &Schema::opaque(16)).unwrap();
        for _ in 0..5 {
            store.append(&file, &records(end..end + 10), StoreAckLevel::Object).unwrap();
            end += 10;
        }
        let names = std::fs::read_dir(objects.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let packs: Vec<_> = names.filter(|name| name.starts_with("P-")).collect();
        let ours = packs_prefix(store.shared.names.token());
        assert!(packs.iter().all(|name| name.starts_with(&ours)), "{packs:?}");
        assert_eq!(packs.len(), 5, "one that is named, and others for readers: {packs:?}");
        drop((file, store));
    }
}

#[test]
fn a_disk_that_lost_what_was_published_asks_the_objects() {
    let (path, objects) = directories();
    let store = open(config(path.path(), objects.path()));
    let file = store.create("a", &Schema::opaque(16)).unwrap();
    store.append(&file, &records(0..5_000), StoreAckLevel::Object).unwrap();
    drop((file, store));
    for entry in std::fs::read_dir(path.path()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("J-") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    let store = open(config(path.path(), objects.path()));
    assert!(all_of(&store, "a") == records(0..5_000));
}

#[test]
fn retention_waits_for_a_scan_that_is_under_way() {
    let (path, objects) = directories();
    let store = open(config(path.path(), objects.path()));
    let file = store.create("a", &Schema::opaque(4_096)).unwrap();
    let end = 256 * 3 * 5 + 10;
    store.append(&file, &large(0..end), StoreAckLevel::Object).unwrap();
    let keep = Retention { bytes_max: Some(16 << 20), age_ns_max: None };
    let (mut found, mut first) = (Vec::new(), 0);
    let numbers = store.read(&file, i64::MIN, i64::MAX, &mut |part| {
        if found.is_empty() {
            first = store.retain(&file, keep).unwrap();
            // The cache is emptied, so that it cannot help the reader.
            let cache = &store.shared.cache;
            cache
                .iter()
                .for_each(|shard| *lock(shard) = evenfall_store_format::cache::Cache::new(1));
        }
        found.extend_from_slice(&part);
        Ok(())
    });
    assert_eq!(numbers.unwrap(), 0..end);
    assert!(found == large(0..end));
    assert!(
        first > 0 && store.shared.disk.has_chunk(DataChunk { file: file.id, number: 0 }).unwrap()
    );
    // The store does not know a reader of objects, and the reader gets the reason for the missing
    // records.
    let archive = Archive::open(objects.path().to_str().unwrap()).unwrap();
    let mut archived = archive.file("a").unwrap();
    assert_eq!(store.retain(&file, keep).unwrap(), first);
    assert!(!store.shared.disk.has_chunk(DataChunk { file: file.id, number: 0 }).unwrap());
    drop(archived);
    archived = archive.file("a").unwrap();
    let less = Retention { bytes_max: Some(8 << 20), age_ns_max: None };
    let later = store.retain(&file, less).unwrap();
    assert!(later > first);
    let error = archived.read_numbers(first..end, &mut |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("retention deleted it"), "{error}");
}

#[test]
fn files_that_come_and_go_leave_room_for_others() {
    let path = tempfile::tempdir().unwrap();
    let config =
        StoreConfig { objects: None, local_bytes_max: 16 << 20, ..StoreConfig::new(path.path()) };
    let store = open(config);
    for _ in 0..8 {
        let file = store.create("a", &Schema::opaque(4_096)).unwrap();
        store.append(&file, &large(0..1_500), StoreAckLevel::Local).unwrap();
        drop(file);
        store.delete("a").unwrap();
    }
    assert_eq!(store.occupancy().local_bytes, 0);
}
