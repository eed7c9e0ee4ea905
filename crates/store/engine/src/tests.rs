use std::path::Path;
use std::time::{Duration, Instant};

use evenfall_store_format::{FieldType, Schema};

use super::*;

pub(super) fn schema() -> Schema {
    let fields = [("time", FieldType::Time), ("value", FieldType::U64)];
    Schema::of(&fields).with_aggregates(&["value"])
}

pub(super) fn records(numbers: std::ops::Range<u64>) -> Vec<u8> {
    numbers.flat_map(|n| [(n as i64).to_le_bytes(), (n * 7).to_le_bytes()].concat()).collect()
}

fn open(path: &Path) -> Store {
    let opened = Store::open(StoreConfig::new(path)).unwrap();
    let damage: Vec<_> = opened.losses.iter().filter(|loss| !loss.is_torn_end).collect();
    assert!(damage.is_empty(), "{damage:?}");
    opened.store
}

fn read(store: &Store, name: &str) -> Vec<u8> {
    let file = store.file(name).unwrap();
    let mut bytes = Vec::new();
    let mut each = |part: bytes::Bytes| {
        bytes.extend_from_slice(&part);
        Ok(())
    };
    store.read(&file, i64::MIN, i64::MAX, &mut each).unwrap();
    bytes
}

#[test]
fn what_was_acknowledged_local_is_there_when_the_process_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let file = store.create("a", &schema()).unwrap();
    for batch in 0..50u64 {
        store
            .append(&file, &records(batch * 100..batch * 100 + 100), StoreAckLevel::Local)
            .unwrap();
    }
    drop((file, store));
    let store = open(dir.path());
    assert_eq!(read(&store, "a"), records(0..5_000));
    let file = store.file("a").unwrap();
    store.append(&file, &records(5_000..6_000), StoreAckLevel::Memory).unwrap();
    assert_eq!(store.record_at(&file, 5_500).unwrap().0, 5_500);
    let summary = store.summary(&file, 10, 4_000).unwrap().unwrap();
    assert_eq!(summary.count, 3_991);
    assert_eq!(summary.aggregates[0].max, 28_000);
    store.close().unwrap();
    let seen = clean_shutdown::verify_directory(dir.path()).unwrap();
    assert!(seen.findings.is_empty(), "{:?}", seen.findings);
    assert_eq!(read(&open(dir.path()), "a"), records(0..6_000));
}

#[test]
fn many_writers_share_commits_and_chunks_become_objects() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let wanted: Vec<_> = (0..4).map(|n| (format!("f{n}"), schema())).collect();
    let files = store.create_all(&wanted).unwrap();
    std::thread::scope(|scope| {
        for file in &files {
            let store = &store;
            scope.spawn(move || {
                for batch in 0..60u64 {
                    let level = [StoreAckLevel::Memory, StoreAckLevel::Local][batch as usize % 2];
                    let bytes = records(batch * 5_000..batch * 5_000 + 5_000);
                    store.append(file, &bytes, level).unwrap();
                }
            });
        }
    });
    for (name, _) in &wanted {
        assert_eq!(read(&store, name), records(0..300_000));
    }
    store.close().unwrap();
    assert!(dir.path().join("objects/D-0000000000000001-00000000").exists());
    let archive = Archive::open(dir.path().join("objects").to_str().unwrap()).unwrap();
    let mut bytes = Vec::new();
    let mut file = archive.file("f2").unwrap();
    let mut each = |part: bytes::Bytes| {
        bytes.extend_from_slice(&part);
        Ok(())
    };
    file.read(0, 299_999, &mut each).unwrap();
    assert_eq!(bytes, records(0..300_000));
}

#[test]
fn a_reader_of_missing_objects_gets_an_error_and_makes_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent");
    let place = absent.to_str().unwrap();
    for error in [Archive::open(place).err(), clean_shutdown::verify_archive(place).err()] {
        let words = error.expect("no objects are there").to_string();
        assert!(words.contains("absent: the bucket does not exist (no such directory)"), "{words}");
    }
    assert!(!absent.exists());
}

#[test]
fn another_node_goes_on_from_objects_when_the_disk_is_gone() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let objects = tempfile::tempdir().unwrap();
    let config = |path: &Path, node| StoreConfig {
        objects: Some(objects.path().display().to_string()),
        node,
        ..StoreConfig::new(path)
    };
    let store = Store::open(config(first.path(), 1)).unwrap().store;
    let file = store.create("a", &schema()).unwrap();
    store.append(&file, &records(0..300_000), StoreAckLevel::Object).unwrap();
    drop((file, store, first));
    let store = Store::open(config(second.path(), 2)).unwrap().store;
    assert_eq!(read(&store, "a"), records(0..300_000));
    let file = store.file("a").unwrap();
    store.append(&file, &records(300_000..600_000), StoreAckLevel::Local).unwrap();
    drop((file, store));
    let store = Store::open(config(second.path(), 2)).unwrap().store;
    assert_eq!(read(&store, "a"), records(0..600_000));
}

#[test]
fn a_full_memory_refuses_by_name_and_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig { memory_bytes_max: 0, ..StoreConfig::new(dir.path()) };
    let store = Store::open(config).unwrap().store;
    let file = store.create("a", &schema()).unwrap();
    store.append(&file, &records(0..5_000), StoreAckLevel::Memory).unwrap();
    let refused = store.append(&file, &records(5_000..5_001), StoreAckLevel::Memory);
    // The disk may have been quick enough. Otherwise the refusal names its stage.
    if let Err(error) = refused {
        assert!(error.is_retryable() && error.to_string().contains("memory"), "{error}");
        assert_eq!(file.records(), 5_000);
    }
}

/// A moment in 2026, so that the tests set the wall clock.
const NOW_NS: i64 = 1_790_000_000_000_000_000;
const DAY_NS: i64 = 86_400 * 1_000_000_000;

fn dated(path: &Path) -> StoreConfig {
    StoreConfig { objects: None, clock: || NOW_NS, ..StoreConfig::new(path) }
}

fn stamped(times: &[i64]) -> Vec<u8> {
    times.iter().flat_map(|ns| [ns.to_le_bytes(), [0; 8]].concat()).collect()
}

#[test]
fn a_record_from_the_future_is_refused_by_its_number_and_ends_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dated(dir.path())).unwrap().store;
    let file = store.create("a", &Schema::opaque(16)).unwrap();
    store.append(&file, &stamped(&[NOW_NS, NOW_NS + DAY_NS]), StoreAckLevel::Local).unwrap();
    for bad in [NOW_NS + DAY_NS + 1, i64::MAX] {
        let batch = stamped(&[NOW_NS + DAY_NS, bad, bad]);
        let error = store.append(&file, &batch, StoreAckLevel::Local).unwrap_err();
        assert!(error.to_string().contains("record 1 of the batch"), "{error}");
        assert!(!error.is_retryable(), "{error}");
    }
    assert_eq!(store.append(&file, &stamped(&[NOW_NS + DAY_NS]), StoreAckLevel::Local).unwrap(), 2);
}

#[test]
fn age_counts_from_the_wall_clock_so_a_quiet_file_ages_and_a_stamp_erases_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dated(dir.path())).unwrap().store;
    let age = |days: u64| evenfall_store_format::retention::Retention {
        age_ns_max: Some(days * DAY_NS as u64),
        bytes_max: None,
    };
    // Three chunks of 256 segments of three records. All records are two days old, and one stamp
    // lies a day ahead.
    let old = (0..256 * 3 * 3).flat_map(|n: i64| {
        [(NOW_NS - 2 * DAY_NS + n).to_le_bytes().to_vec(), vec![0; 4_088]].concat()
    });
    let ahead = [(NOW_NS + DAY_NS).to_le_bytes().to_vec(), vec![0; 4_088]].concat();
    let quiet = store.create("quiet", &Schema::opaque(4_096)).unwrap();
    store.append(&quiet, &old.collect::<Vec<u8>>(), StoreAckLevel::Local).unwrap();
    store.append(&quiet, &ahead, StoreAckLevel::Local).unwrap();
    assert_eq!(store.retain(&quiet, age(3)).unwrap(), 0, "nothing is three days old");
    assert_eq!(store.retain(&quiet, age(1)).unwrap(), 256 * 3 * 2, "all but the last chunk is");
    let day = store.create("day", &Schema::opaque(16)).unwrap();
    store.append(&day, &stamped(&[34_200_000_000_000]), StoreAckLevel::Local).unwrap();
    let error = store.retain(&day, age(1)).unwrap_err();
    assert!(error.to_string().contains("count from midnight"), "{error}");
}

#[test]
fn a_second_process_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _store = open(dir.path());
    let again = Store::open(StoreConfig::new(dir.path()));
    assert!(again.is_err_and(|error| error.to_string().contains("another process")));
}

/// A build without the feature says how to get it. A build with the feature tries the address.
#[test]
fn an_address_that_this_build_cannot_reach_names_the_feature() {
    let directory = tempfile::tempdir().unwrap();
    let bucket = crate::Bucket::open("s3://ticks");
    let bucket = bucket.map_or_else(|error| error.to_string(), |_| String::new());
    assert_eq!(bucket.contains("feature buckets"), cfg!(not(feature = "cloud")), "{bucket}");
    let said = |scheme: &str| {
        let cluster = crate::ClusterConfig {
            address: format!("{scheme}://192.0.2.1:2379/ticks"),
            lease: std::time::Duration::from_secs(2),
            take_over: false,
        };
        let names = crate::Names::open(&directory.path().join("names"), 1, Some(&cluster));
        names.map_or_else(|error| error.to_string(), |_| String::new())
    };
    let etcd = said("etcd");
    assert_eq!(etcd.contains("feature etcd"), cfg!(not(feature = "etcd")), "{etcd}");
    // `order` is the old word for `keys`.
    for keys in [said("keys"), said("order")] {
        assert_eq!(keys.contains("feature keys"), cfg!(not(feature = "keys")), "{keys}");
    }
    let other = said("zookeeper");
    assert!(other.contains("zookeeper://192.0.2.1:2379/ticks is no directory"), "{other}");
}

#[test]
fn an_append_wakes_who_waits_for_it_in_the_same_process() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreConfig::new(dir.path())).unwrap().store;
    let file = store.create("a", &Schema::opaque(16)).unwrap();
    let ends = |end| [KnownEnd { name: "a".into(), end }];
    let far = || Instant::now() + Duration::from_secs(60);
    let begun = Instant::now();
    assert!(!store.wait_past(&ends(0), begun + Duration::from_millis(20)).unwrap());
    for round in 0..200 {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| store.wait_past(&ends(round), far()).unwrap());
            // The append falls before, into and behind the beginning of the wait.
            if round % 3 == 0 {
                std::thread::sleep(Duration::from_micros(round * 5));
            }
            store.append(&file, &records(round..round + 1), StoreAckLevel::Memory).unwrap();
            assert!(waiting.join().unwrap());
        });
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| store.wait_past(&ends(200), far()));
        std::thread::sleep(Duration::from_millis(20));
        store.delete("a").unwrap();
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, StoreError::Store(Error::UnknownFile { .. })), "{error}");
    });
    assert!(begun.elapsed() < Duration::from_secs(50), "an append was slept through");
}
