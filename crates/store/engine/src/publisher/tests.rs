use std::fmt::{Display, Formatter};
use std::path::Path;
use std::sync::Condvar;
use std::time::{Duration, Instant};

use evenfall_core::{Objects, PutOutcome, StorageError};
use evenfall_store_format::layout::{CATALOGS_PREFIX, DELETIONS_PREFIX, parse_life_catalog_name};

use super::*;
use crate::bucket::{BucketBackend, Fetch};
use crate::life_catalog::SINGLE_MAX;
use crate::names::{self, Names};
use crate::tests::{records, schema};
use crate::{
    Archive, Bucket, ChunkForm, DiskDirectory, RecordSource as _, Store, StoreAckLevel, StoreConfig,
};

type Outcome<T> = Result<T, StorageError>;

/// What a bucket was asked, and whether it answers puts of packs.
#[derive(Default)]
struct Asked {
    /// Puts and swaps by the first letter of the object, gets under `g`, and listings under `l`.
    counts: BTreeMap<char, usize>,
    is_held: bool,
}

/// A place that counts its requests, and can hold back packs.
struct Gate {
    place: Arc<dyn BucketBackend>,
    asked: Arc<(Mutex<Asked>, Condvar)>,
}

impl Gate {
    fn count(&self, kind: char) {
        let mut asked = lock(&self.asked.0);
        *asked.counts.entry(kind).or_default() += 1;
        if kind == 'P' {
            let patience = Duration::from_secs(60);
            let held = |asked: &mut Asked| asked.is_held;
            drop(self.asked.1.wait_timeout_while(asked, patience, held));
        }
    }

    fn count_put(&self, name: &str) {
        self.count(name.chars().next().unwrap_or('?'));
    }
}

impl Display for Gate {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "gated {}", self.place)
    }
}

impl BucketBackend for Gate {
    fn fetch(&self, name: &str, offset: u64, len: usize) -> Fetch {
        self.count('g');
        self.place.fetch(name, offset, len)
    }
}

impl Objects for Gate {
    fn put(&self, name: &str, bytes: Bytes) -> Outcome<()> {
        self.count_put(name);
        self.place.put(name, bytes)
    }

    fn put_new(&self, name: &str, bytes: Bytes) -> Outcome<PutOutcome> {
        self.count_put(name);
        self.place.put_new(name, bytes)
    }

    fn swap(&self, name: &str, was: &Bytes, bytes: Bytes) -> Outcome<PutOutcome> {
        self.count_put(name);
        self.place.swap(name, was, bytes)
    }

    fn get(&self, name: &str, offset: u64, len: usize) -> Outcome<Option<Bytes>> {
        self.count('g');
        self.place.get(name, offset, len)
    }

    fn delete(&self, name: &str) -> Outcome<()> {
        self.place.delete(name)
    }

    fn list(&self, prefix: &str) -> Outcome<Vec<String>> {
        self.count('l');
        self.place.list(prefix)
    }
}

/// The objects of the store in this directory, behind a gate.
fn gate(directory: &Path) -> (Bucket, Arc<(Mutex<Asked>, Condvar)>) {
    let asked: Arc<(Mutex<Asked>, Condvar)> = Arc::default();
    let bucket = Bucket::directory(&directory.join("objects")).unwrap();
    let gate = Arc::clone(&asked);
    (bucket.behind(|place| Arc::new(Gate { place, asked: gate })), asked)
}

/// A store that publishes only when an append waits for it, and the requests to its bucket.
struct Gated {
    store: Store,
    asked: Arc<(Mutex<Asked>, Condvar)>,
}

impl Gated {
    fn open(directory: &Path) -> Self {
        let config = StoreConfig {
            publish_every: Duration::from_secs(3_600),
            chunks: ChunkForm::Raw,
            ..StoreConfig::new(directory)
        };
        let (bucket, asked) = gate(directory);
        let disk = DiskDirectory::open(directory).unwrap();
        let names = Names::open(&directory.join(names::FILE), 1, None).unwrap();
        let store = Store::start(config, disk, names, Some(bucket)).unwrap().store;
        Self { store, asked }
    }

    /// The requests since the last call.
    fn take_counts(&self) -> BTreeMap<char, usize> {
        std::mem::take(&mut lock(&self.asked.0).counts)
    }

    fn hold(&self, is_held: bool) {
        lock(&self.asked.0).is_held = is_held;
        self.asked.1.notify_all();
    }
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "never came: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn archived(directory: &Path, name: &str) -> Vec<u8> {
    let archive = Archive::open(directory.join("objects").to_str().unwrap()).unwrap();
    let numbers = archive.between(name, i64::MIN, i64::MAX).unwrap();
    archive.numbers(name, numbers).unwrap()
}

#[test]
fn appends_that_wait_for_objects_share_a_pack_and_a_block() {
    let dir = tempfile::tempdir().unwrap();
    let gated = Gated::open(dir.path());
    let wanted: Vec<_> = (0..16).map(|n| (format!("f{n:02}"), schema())).collect();
    let files = gated.store.create_all(&wanted).unwrap();
    for file in &files {
        gated.store.append(file, &records(0..10), StoreAckLevel::Object).unwrap();
    }
    gated.take_counts();
    gated.hold(true);
    let (first, others) = files.split_first().unwrap();
    let append = |file: &Arc<StoreFile>, from: u64| {
        gated.store.append(file, &records(from..from + 10), StoreAckLevel::Object).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| append(first, 10));
        eventually("a pack", || lock(&gated.asked.0).counts.contains_key(&'P'));
        for file in others {
            let append = &append;
            scope.spawn(move || append(file, 10));
        }
        // A second append to the first file waits for the second group too.
        scope.spawn(|| append(first, 20));
        let waiting = || lock(&gated.store.shared.publisher.waiting).files.len();
        eventually("all others wait", || waiting() == 16);
        gated.hold(false);
    });
    assert_eq!(gated.take_counts(), BTreeMap::from([('M', 2), ('P', 2)]));
    for (name, _) in &wanted[1..] {
        assert!(archived(dir.path(), name) == records(0..20));
    }
    assert!(archived(dir.path(), "f00") == records(0..30));
}

#[test]
fn an_append_whose_records_are_published_asks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let gated = Gated::open(dir.path());
    let file = gated.store.create("a", &schema()).unwrap();
    let begun: Vec<_> = (0..3)
        .map(|n| gated.store.append_begin(&file, &records(n * 5..n * 5 + 5), StoreAckLevel::Object))
        .collect::<Result<_, _>>()
        .unwrap();
    gated.store.append_end(&file, begun[0], StoreAckLevel::Object).unwrap();
    assert_eq!(gated.take_counts().get(&'P'), Some(&1));
    for begun in &begun[1..] {
        gated.store.append_end(&file, *begun, StoreAckLevel::Object).unwrap();
    }
    let nothing = gated.store.append(&file, &[], StoreAckLevel::Object).unwrap();
    assert_eq!(nothing, 15);
    assert_eq!(gated.take_counts(), BTreeMap::new());
    assert!(archived(dir.path(), "a") == records(0..15));
}

#[test]
fn a_period_puts_a_few_objects_for_hundreds_of_files() {
    let dir = tempfile::tempdir().unwrap();
    let gated = Gated::open(dir.path());
    let wanted: Vec<_> = (0..300).map(|n| (format!("f{n:03}"), schema())).collect();
    let files = gated.store.create_all(&wanted).unwrap();
    let shared = &gated.store.shared;
    let of_blocks: Vec<_> = (0..4).map(|block| shared.files_of_block(block).len()).collect();
    assert_eq!(of_blocks, [NODES_PER_BLOCK, NODES_PER_BLOCK, 300 - 2 * NODES_PER_BLOCK, 0]);
    let mut end = 0;
    for round in 0..3 {
        for file in &files {
            gated.store.append(file, &records(end..end + 20), StoreAckLevel::Memory).unwrap();
        }
        end += 20;
        shared.publish_changed(&shared.our_files(), &|| true).unwrap();
        let counts = gated.take_counts();
        assert_eq!((counts[&'P'], counts[&'M']), (1, 3), "{counts:?}");
        assert_eq!(counts.get(&'S'), (round == 0).then_some(&1), "{counts:?}");
    }
    // Without new records there is nothing to put.
    shared.publish_changed(&shared.our_files(), &|| true).unwrap();
    assert_eq!(gated.take_counts(), BTreeMap::new());
    // A reader of one file takes a listing, the catalogue, a block and a part.
    let (bucket, asked) = gate(dir.path());
    let archive = Archive::of(bucket).unwrap();
    assert_eq!(archive.file("f299").unwrap().records(), end);
    let counts = std::mem::take(&mut lock(&asked.0).counts);
    assert_eq!(counts, BTreeMap::from([('g', 3), ('l', 1)]));
    // A list with the records of all files takes three blocks more.
    let listed = archive.listed().unwrap();
    assert!(listed.len() == 300 && listed.iter().all(|file| file.records == end));
    assert_eq!(lock(&asked.0).counts, BTreeMap::from([('g', 3)]));
    assert!(archived(dir.path(), "f299") == records(0..end));
}

/// The names of the files that readers of the objects find.
fn found(directory: &Path) -> Vec<String> {
    let bucket = Bucket::directory(&directory.join("objects")).unwrap();
    let files = crate::archive::catalog(&bucket).unwrap();
    files.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn a_life_puts_few_catalogues_and_a_deleted_file_stays_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let publish_all = |store: &Store| {
        let shared = &store.shared;
        shared.publish_changed(&shared.our_files(), &|| true).unwrap();
    };
    let gated = Gated::open(dir.path());
    let mut names: Vec<_> = (0..100).map(|n| format!("f{n:02}")).collect();
    let wanted: Vec<_> = names.iter().map(|name| (name.clone(), schema())).collect();
    drop(gated.store.create_all(&wanted).unwrap());
    publish_all(&gated.store);
    assert_eq!(found(dir.path()), names);
    gated.store.delete("f50").unwrap();
    names.remove(50);
    assert_eq!(found(dir.path()), names);
    drop(gated);
    // The next life has published one file, and then all files.
    let gated = Gated::open(dir.path());
    let file = gated.store.file("f07").unwrap();
    gated.store.append(&file, &records(0..10), StoreAckLevel::Object).unwrap();
    assert_eq!(found(dir.path()), names);
    gated.store.delete("f08").unwrap();
    names.remove(8);
    assert_eq!(found(dir.path()), names);
    publish_all(&gated.store);
    assert_eq!(found(dir.path()), names);
    let token = gated.store.shared.names.token();
    let left = std::fs::read_dir(dir.path().join("objects")).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left: Vec<_> = left.filter(|name| name.starts_with("S-")).collect();
    let of_life = |name: &String| parse_life_catalog_name(name).is_some_and(|(of, _)| of == token);
    assert!(left.len() <= 2 && left.iter().all(of_life), "{left:?}");
    assert!(archived(dir.path(), "f07") == records(0..10));
}

#[test]
fn many_deletions_share_a_catalogue_and_each_is_seen_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let gated = Gated::open(dir.path());
    let shared = &gated.store.shared;
    let names: Vec<_> = (0..SINGLE_MAX + 20).map(|n| format!("f{n:03}")).collect();
    let wanted: Vec<_> = names.iter().map(|name| (name.clone(), schema())).collect();
    drop(gated.store.create_all(&wanted).unwrap());
    shared.publish_changed(&shared.our_files(), &|| true).unwrap();
    let bucket = Bucket::directory(&dir.path().join("objects")).unwrap();
    let objects = |prefix: &str| bucket.list(prefix).unwrap();
    let catalogs = objects(CATALOGS_PREFIX);
    for (count, name) in (1..).zip(&names[..SINGLE_MAX]) {
        gated.store.delete(name).unwrap();
        assert_eq!((objects(CATALOGS_PREFIX).len(), objects(DELETIONS_PREFIX).len()), (1, count));
    }
    assert_eq!(
        (objects(CATALOGS_PREFIX), found(dir.path())),
        (catalogs, names[SINGLE_MAX..].to_vec())
    );
    gated.store.delete(&names[SINGLE_MAX]).unwrap();
    assert_eq!((objects(CATALOGS_PREFIX).len(), objects(DELETIONS_PREFIX).len()), (2, 0));
    assert_eq!(found(dir.path()), names[SINGLE_MAX + 1..]);
}

#[test]
fn old_packs_are_merged_and_a_later_life_goes_on_from_what_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let gated = Gated::open(dir.path());
    let (store, shared) = (&gated.store, &gated.store.shared);
    // Each quiet file keeps the pack of its only publication.
    for n in 0..LIVE_MAX as u64 + 10 {
        let file = store.create(&format!("f{n}"), &schema()).unwrap();
        store.append(&file, &records(0..n + 1), StoreAckLevel::Object).unwrap();
    }
    let named = || lock(&shared.publisher.packs).named.len();
    assert_eq!(named(), LIVE_MAX + 10);
    shared.publish_changed(&shared.our_files(), &|| true).unwrap();
    assert_eq!(named(), LIVE_MAX / 2 + 1, "the others are merged into one");
    for n in [0, 30, LIVE_MAX as u64 + 9] {
        assert!(archived(dir.path(), &format!("f{n}")) == records(0..n + 1), "{n}");
    }
    drop(gated);
    // The disk is lost, and the objects are all that a later life has.
    let second = tempfile::tempdir().unwrap();
    let objects = Some(dir.path().join("objects").display().to_string());
    let config = StoreConfig { objects, ..StoreConfig::new(second.path()) };
    let store = Store::open(config).unwrap().store;
    let numbers = store.between("f40", i64::MIN, i64::MAX).unwrap();
    assert!(store.numbers("f40", numbers).unwrap() == records(0..41));
}

#[test]
fn a_pack_goes_after_a_later_group_and_never_while_it_is_named() {
    let mut packs = LivePacks::default();
    for number in 1..=3 * STALE_MAX as u32 {
        assert_eq!(packs.next_number(), number);
        packs.add_pack(number, 1);
        packs.hold_pack(number);
    }
    // Two files have parts in the first pack.
    packs.hold_pack(1);
    (1..=2 * STALE_MAX as u32).for_each(|number| packs.release_pack(number));
    assert!(packs.take_stale().is_empty(), "readers may still follow the last blocks");
    let gone: Vec<u32> = packs.take_stale().into_iter().map(|(number, _)| number).collect();
    assert_eq!(gone, (2..=STALE_MAX as u32).collect::<Vec<_>>());
    assert!(packs.named.contains_key(&1) && packs.named.len() == STALE_MAX + 1);
    assert!(packs.is_forgotten(2) && !packs.is_forgotten(1));
    let (stale, later) = (2 * STALE_MAX as u32, packs.last + 1);
    assert!(!packs.is_forgotten(stale) && !packs.is_forgotten(later));
    assert_eq!(packs.find_leaving().len(), STALE_MAX + 1 - LIVE_MAX / 2);
    assert!(packs.find_leaving().contains(&1));
    packs.release_pack(1);
    packs.stale.clear();
    packs.add_pack(1_000, STALE_BYTES_MAX + 1);
    assert!(packs.take_stale().is_empty());
    assert_eq!(packs.take_stale().len(), 2, "the large one goes, and the one before it");
}
