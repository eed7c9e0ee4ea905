//! Retention by age, under a wall clock that steps and a machine that is started again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use evenfall_store_engine::{ChunkForm, Store, StoreAckLevel, StoreConfig, StoreFile};
use evenfall_store_format::age_clock::Uptime;
use evenfall_store_format::layout::chunk_name;
use evenfall_store_format::retention::Retention;
use evenfall_store_format::{Schema, SegmentKind};
use tempfile::TempDir;

use crate::servers::eventually;

const HOUR_NS: i64 = 3_600 * 1_000_000_000;
const DAY_NS: i64 = 24 * HOUR_NS;
const NOW_NS: i64 = 1_790_000_000_000_000_000;
const YEARS_NS: i64 = 40 * 365 * DAY_NS;
/// Records of 4,096 bytes in a chunk: three to a segment.
const CHUNK: u64 = 3 * 256;

/// A retention of this many days.
fn days(days: i64) -> Retention {
    Retention { age_ns_max: Some((days * DAY_NS) as u64), bytes_max: None }
}

/// Three chunks of records of the moment `NOW_NS`, and one more record, all in the objects.
fn record_three_chunks(store: &Store) -> Arc<StoreFile> {
    let file = store.create("a", &Schema::opaque(4_096)).expect("a file");
    let one = [NOW_NS.to_le_bytes().to_vec(), vec![7; 4_088]].concat();
    let all = one.repeat(CHUNK as usize * 3 + 1);
    store.append(&file, &all, StoreAckLevel::Object).expect("records");
    file
}

fn object(path: &Path, number: u32, file: &StoreFile) -> std::path::PathBuf {
    path.join("objects").join(chunk_name(SegmentKind::Data, file.id, number))
}

#[test]
fn a_clock_that_jumps_deletes_nothing_until_an_operator_confirms_it() {
    static STEP_NS: AtomicI64 = AtomicI64::new(0);
    static BOOT: AtomicU64 = AtomicU64::new(1);
    let dir = TempDir::new().expect("a directory");
    let config = || StoreConfig {
        clock: || NOW_NS + STEP_NS.load(Relaxed),
        uptime: || Uptime { boot: BOOT.load(Relaxed), ns: 1_000 },
        publish_every: Duration::from_millis(20),
        chunks: ChunkForm::Raw,
        ..StoreConfig::new(dir.path())
    };
    let open = |config| Store::open(config).expect("a store").store;
    let mut store = open(config());
    let mut file = record_three_chunks(&store);
    assert_eq!(store.retain(&file, days(30)).expect("a retention"), 0);
    let mut steps = [YEARS_NS, -YEARS_NS, DAY_NS * 31, HOUR_NS + 1].into_iter().cycle();
    // The running store, its next life, and a life after a new start of the machine.
    for life in 0..3 {
        if life > 0 {
            drop((file, store));
            STEP_NS.store(steps.next().expect("a step"), Relaxed);
            BOOT.fetch_add(u64::from(life == 2), Relaxed);
            store = open(config());
            file = store.file("a").expect("the file");
        }
        for step_ns in steps.by_ref().take(4) {
            STEP_NS.store(step_ns, Relaxed);
            assert_eq!(store.retain(&file, days(1)).expect("a retention"), 0, "{step_ns}");
            let step = store.clock_step().expect("a step");
            assert_eq!(step.ns, step_ns);
            assert!(step.to_string().contains("--confirm-clock"), "{step}");
            assert_eq!(store.occupancy().clock_step_seconds, step_ns / 1_000_000_000);
        }
        STEP_NS.store(HOUR_NS, Relaxed);
        eventually("a clock that is back", || store.clock_step().is_none());
        assert!((0..3).all(|number| object(dir.path(), number, &file).exists()));
    }
    // A person says that the years have passed.
    drop((file, store));
    STEP_NS.store(YEARS_NS, Relaxed);
    let store = open(StoreConfig { confirm_clock: true, ..config() });
    let file = store.file("a").expect("the file");
    eventually("records that are too old", || file.first() == 2 * CHUNK);
    eventually("their objects", || !object(dir.path(), 1, &file).exists());
    assert!(object(dir.path(), 2, &file).exists(), "the last chunk stays");
}

#[test]
fn objects_stay_a_day_longer_than_their_records_and_the_disk_has_its_room_at_once() {
    static PASSED_NS: AtomicI64 = AtomicI64::new(0);
    let dir = TempDir::new().expect("a directory");
    let config = || StoreConfig {
        clock: || NOW_NS + PASSED_NS.load(Relaxed),
        uptime: || Uptime { boot: 1, ns: PASSED_NS.load(Relaxed) as u64 },
        publish_every: Duration::from_millis(20),
        chunks: ChunkForm::Raw,
        ..StoreConfig::new(dir.path())
    };
    let mut store = Store::open(config()).expect("a store").store;
    let mut file = record_three_chunks(&store);
    assert_eq!(store.retain(&file, days(30)).expect("a retention"), 0);
    for is_reopened in [false, true] {
        if is_reopened {
            drop((file, store));
            store = Store::open(config()).expect("a store").store;
            file = store.file("a").expect("the file");
        }
        PASSED_NS.store(30 * DAY_NS + HOUR_NS, Relaxed);
        eventually("records that are too old", || file.first() == 2 * CHUNK);
        let on_disk =
            |number| dir.path().join(chunk_name(SegmentKind::Data, file.id, number)).exists();
        eventually("room on the disk", || !on_disk(0) && !on_disk(1));
        // A call sweeps too: what it leaves is to stay.
        store.retain(&file, days(30)).expect("a retention");
        assert!(object(dir.path(), 0, &file).exists() && object(dir.path(), 1, &file).exists());
    }
    PASSED_NS.store(31 * DAY_NS + HOUR_NS, Relaxed);
    let gone = |number| !object(dir.path(), number, &file).exists();
    eventually("the objects", || gone(0) && gone(1));
    assert!(!gone(2), "the last chunk stays");
    // Bytes are no matter of a clock.
    let bytes = Retention { age_ns_max: None, bytes_max: Some(4 << 20) };
    store.retain(&file, bytes).expect("a retention");
    drop(file);
    store.close().expect("a clean stop");
}
