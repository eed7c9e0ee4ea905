//! Names in real directories, etcd and ordered keys: leases, takeovers, and the limits of an old
//! primary.

use std::time::Instant;

use evenfall_host::process::Signal;
use evenfall_store_engine::{BucketOptions, Store, StoreAckLevel, StoreError};
use evenfall_store_format::publication::{as_it_is, put_chunk};
use evenfall_store_format::{Error, FieldType, Schema, SegmentKind};
use tempfile::TempDir;

use crate::servers::{Names, S3, each_directory, eventually, replicas_of_keys};
use crate::suite::{Backend, LEASE, all_of, behaves, records, said, schema};

fn over(names: &Names, objects: &TempDir) -> Backend {
    Backend {
        objects: objects.path().display().to_string(),
        options: BucketOptions::default(),
        names: Some(names.address()),
        is_atomic: true,
    }
}

fn directory() -> TempDir {
    TempDir::new().expect("a directory")
}

#[test]
fn a_store_over_shared_names_and_a_directory() {
    each_directory(|names| behaves(&over(&names, &directory())));
}

#[test]
fn a_store_over_shared_names_and_s3s() {
    each_directory(|names| {
        let s3 = S3::s3s();
        let (objects, names) = ("s3://ticks".to_owned(), Some(names.address()));
        behaves(&Backend { objects, options: s3.options(), names, is_atomic: false });
    });
}

/// Ends the lease of a store without the knowledge of the store.
fn revoke(names: &Names, store: &Store) {
    let member = store.member().expect("a member");
    names.revoke(member.node(), member.lease_id());
}

/// Appends until an append is refused. Returns the refusal.
fn append_until_refused(store: &Store, level: StoreAckLevel, end: &mut u64) -> StoreError {
    let file = store.file("a").expect("the file");
    loop {
        match store.append(&file, &records(*end..*end + 100), level) {
            Ok(first) => assert_eq!(first, *end),
            // The append is taken, and the next append is refused.
            Err(StoreError::Unreached { first, .. }) => assert_eq!(first, *end),
            Err(error) => return error,
        }
        *end += 100;
    }
}

#[test]
fn a_primary_that_loses_its_lease_is_fenced_and_its_successor_has_what_was_published() {
    each_directory(|names| {
        let (objects, first, second) = (directory(), directory(), directory());
        let backend = over(&names, &objects);
        let old = backend.open(first.path());
        let file = old.create("a", &schema()).expect("a file");
        old.append(&file, &records(0..300_000), StoreAckLevel::Object).expect("published");
        let mut end = 300_000;
        revoke(&names, &old);
        let lost = append_until_refused(&old, StoreAckLevel::Local, &mut end);
        assert!(matches!(lost, StoreError::LeaseLost { is_over: true, .. }), "{lost}");
        assert!(lost.to_string().starts_with("lease lost") && !lost.is_retryable(), "{lost}");

        let new = backend.open_when_free(second.path(), "a");
        // The records that the old primary published before it knew are present too.
        let taken = new.file("a").expect("the file");
        let common = taken.records();
        assert!((300_000..=end).contains(&common), "{common} of {end}");
        assert!(all_of(&new, "a") == records(0..common));
        // Other records than the old node still has, over more than a chunk.
        let others: Vec<u8> = records(4_000_000..4_300_000);
        new.append(&taken, &others, StoreAckLevel::Object).expect("published");

        // The old primary tries to publish.
        match old.publish(&file) {
            // The old primary has nothing left to publish, or one of the two fences refuses it.
            Ok(())
            | Err(StoreError::LeaseLost { .. } | StoreError::Store(Error::Fenced { .. })) => {}
            Err(other) => panic!("{other}"),
        }
        for level in [StoreAckLevel::Memory, StoreAckLevel::Local, StoreAckLevel::Object] {
            let refused = old.append(&file, &records(end..end + 100), level);
            assert!(matches!(refused, Err(StoreError::LeaseLost { .. })), "{}", said(refused));
        }
        assert!(matches!(old.create("b", &schema()), Err(StoreError::LeaseLost { .. })));
        assert!(matches!(old.delete("a"), Err(StoreError::LeaseLost { .. })));
        let chunk = bytes::Bytes::from(vec![0; 4 << 20]);
        let stale =
            put_chunk(&backend.bucket(), (SegmentKind::Data, file.id, 1), 1, &chunk, &as_it_is);
        assert!(matches!(stale, Err(Error::Fenced { .. })), "{stale:?}");
        let whole = [records(0..common), others].concat();
        assert!(all_of(&backend.archive(), "a") == whole, "the old one has changed something");
        assert!(all_of(&new, "a") == whole);

        // The old node restarts and learns the new primary of the file. Records that only the old
        // node had are put aside.
        drop((file, old));
        let old = Store::open(backend.config(first.path())).expect("a store");
        if end > common {
            let aside = old.losses.iter().find(|loss| loss.what.contains("took it over"));
            let aside = aside.expect("a word about it").what.rsplit(' ').next().expect("a file");
            let kept = std::fs::read(first.path().join(aside)).expect("the records");
            // The append at which the lease ended was taken, and perhaps not committed.
            let acknowledged = records(common..end - 100);
            assert!(kept.starts_with(&acknowledged), "{} of {}", kept.len(), acknowledged.len());
        }
        let told = said(old.store.file("a"));
        assert!(told.contains("store node 2 is the primary of a"), "{told}");
        old.store.close().expect("a clean stop");
        new.close().expect("a clean stop");
        assert!(all_of(&backend.archive(), "a") == whole);
        let seen = backend.verify();
        assert!(seen.findings.is_empty(), "{:?}", seen.findings);
    });
}

#[test]
fn without_names_appends_stop_with_the_lease_and_go_on_when_it_is_back() {
    each_directory(|mut names| {
        let (objects, path) = (directory(), directory());
        let backend = over(&names, &objects);
        let store = backend.open(path.path());
        let file = store.create("a", &schema()).expect("a file");
        let mut end = 0;
        store.append(&file, &records(0..100), StoreAckLevel::Object).expect("published");
        end += 100;
        names.kill();
        let lost = append_until_refused(&store, StoreAckLevel::Local, &mut end);
        assert!(matches!(lost, StoreError::LeaseLost { is_over: false, .. }), "{lost}");
        assert!(lost.is_retryable());
        assert_eq!(file.records(), end);
        assert!(all_of(&store, "a") == records(0..end));
        names.restart();
        eventually("a renewed lease", || {
            let taken = store.append(&file, &records(end..end + 100), StoreAckLevel::Object);
            end = file.records();
            taken.is_ok()
        });
        assert!(all_of(&backend.archive(), "a") == records(0..end));
        store.close().expect("a clean stop");
    });
}

#[test]
fn a_killed_node_has_its_files_again_and_nobody_else_had_them() {
    each_directory(|names| {
        let (objects, path, other) = (directory(), directory(), directory());
        let backend = over(&names, &objects);
        let store = backend.open(path.path());
        let file = store.create("a", &schema()).expect("a file");
        store.append(&file, &records(0..50_000), StoreAckLevel::Local).expect("taken");
        let another = backend.open(other.path());
        let told = another.create("a", &schema()).map(drop);
        assert!(said(told).contains("holds its lease"));
        assert_eq!(another.take_over().expect("nothing").files, 0);
        // A second life begins when the first one's lease has run out, and not before.
        drop((file, store));
        let store = backend.open(path.path());
        assert!(all_of(&store, "a") == records(0..50_000));
        let file = store.file("a").expect("the file");
        store.append(&file, &records(50_000..50_100), StoreAckLevel::Object).expect("published");
        assert!(all_of(&backend.archive(), "a") == records(0..50_100));
        drop(file);
        // That life has a greater token than the waiting life, which a publication would fence. A
        // new life takes the file over.
        store.close().expect("a clean stop");
        assert_eq!(another.take_over().expect("nothing").files, 0);
        assert!(another.is_new_life_due().expect("an answer"));
        another.close().expect("a clean stop");
        let another = backend.open(other.path());
        assert!(all_of(&another, "a") == records(0..50_100));
        let file = another.file("a").expect("the file");
        another.append(&file, &records(50_100..50_200), StoreAckLevel::Object).expect("published");
        assert!(all_of(&backend.archive(), "a") == records(0..50_200));
        drop(file);
        another.close().expect("a clean stop");
    });
}

#[test]
fn names_that_are_lost_come_back_from_the_catalogue() {
    each_directory(|names| {
        let empty = names.another();
        let (objects, path, other) = (directory(), directory(), directory());
        let backend = over(&names, &objects);
        let store = backend.open(path.path());
        let file = store.create("a", &schema()).expect("a file");
        store.append(&file, &records(0..10_000), StoreAckLevel::Object).expect("published");
        drop(file);
        store.close().expect("a clean stop");
        let backend = over(&empty, &objects);
        let store = backend.open_when_free(other.path(), "a");
        let file = store.file("a").expect("the file");
        store.append(&file, &records(10_000..10_100), StoreAckLevel::Object).expect("published");
        assert!(all_of(&backend.archive(), "a") == records(0..10_100));
    });
}

#[test]
fn two_processes_are_never_one_node() {
    each_directory(|names| {
        let (objects, path, copy) = (directory(), directory(), directory());
        let backend = over(&names, &objects);
        backend.open(path.path()).close().expect("a clean stop");
        for entry in std::fs::read_dir(path.path()).expect("a directory").flatten() {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("a copy");
        }
        let _store = backend.open(path.path());
        let again = Store::open(backend.config(copy.path())).map(drop);
        assert!(said(again).contains("is held by another process"));
    });
}

#[test]
fn many_files_are_created_and_claimed_in_few_steps() {
    each_directory(|names| {
        let (objects, path) = (directory(), directory());
        let backend = over(&names, &objects);
        let wanted: Vec<_> = (0..1_234).map(|n| (format!("f{n:04}"), schema())).collect();
        let store = backend.open(path.path());
        let files = store.create_all(&wanted).expect("files");
        let numbers: std::collections::BTreeSet<u64> = files.iter().map(|file| file.id.0).collect();
        assert_eq!(numbers.len(), wanted.len());
        store.close().expect("a clean stop");
        assert_eq!(backend.open(path.path()).files().len(), wanted.len());
    });
}

#[test]
fn a_file_that_cannot_be_taken_over_yet_keeps_back_no_other_and_is_tried_again() {
    each_directory(|names| {
        let (objects, first, second) = (directory(), directory(), directory());
        let backend = over(&names, &objects);
        let old = backend.open(first.path());
        for name in ["a", "b", "c"] {
            let file = old.create(name, &schema()).expect("a file");
            old.append(&file, &records(0..1_000), StoreAckLevel::Object).expect("published");
        }
        let new = backend.open(second.path());
        drop(old);
        let pack = objects.path().join("P-00000001-00000001");
        let elsewhere = pack.with_extension("gone");
        std::fs::rename(&pack, &elsewhere).expect("a lost object");
        let mut failed = Vec::new();
        eventually("a takeover of the others", || {
            failed = new.take_over().expect("names").failed;
            new.file("b").is_ok()
        });
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(failed[0].0, "a");
        assert!(new.file("c").is_ok() && new.file("a").is_err());
        std::fs::rename(&elsewhere, &pack).expect("the object");
        let taken = new.take_over().expect("names");
        assert_eq!((taken.files, taken.failed.len()), (1, 0));
        let file = new.file("a").expect("the file");
        new.append(&file, &records(1_000..1_100), StoreAckLevel::Object).expect("published");
        assert!(all_of(&backend.archive(), "a") == records(0..1_100));
        drop(file);
        new.close().expect("a clean stop");
    });
}

#[test]
fn a_name_that_several_create_at_once_has_one_primary_and_one_file() {
    each_directory(|names| {
        let (objects, path) = (directory(), directory());
        let store = over(&names, &objects).open(path.path());
        for round in 0..10 {
            let name = format!("f{round}");
            let create = || store.create(&name, &schema()).expect("a file");
            let files: Vec<_> = std::thread::scope(|scope| {
                let created: Vec<_> = (0..8).map(|_| scope.spawn(create)).collect();
                created.into_iter().map(|thread| thread.join().expect("a thread")).collect()
            });
            assert!(files.iter().all(|file| std::sync::Arc::ptr_eq(file, &files[0])), "{name}");
        }
    });
}

#[test]
fn a_file_that_could_not_be_deleted_without_names_takes_appends_again() {
    each_directory(|mut names| {
        let (objects, path) = (directory(), directory());
        let store = over(&names, &objects).open(path.path());
        let file = store.create("a", &schema()).expect("a file");
        store.append(&file, &records(0..100), StoreAckLevel::Object).expect("published");
        names.kill();
        store.delete("a").expect_err("no names");
        names.restart();
        let mut end = 100;
        eventually("an append", || {
            let taken = store.append(&file, &records(end..end + 1), StoreAckLevel::Local);
            end = file.records();
            taken.is_ok()
        });
        assert!(all_of(&store, "a") == records(0..end));
        store.delete("a").expect("deleted");
        assert!(store.file("a").is_err());
    });
}

/// The node's client is connected to the replica that stands still, for longer than a lease.
#[test]
fn a_replica_that_stands_still_is_passed_by() {
    let names = replicas_of_keys(3);
    let (objects, path, other) = (directory(), directory(), directory());
    let backend = over(&names, &objects);
    let store = backend.open(path.path());
    let file = store.create("a", &schema()).expect("a file");
    store.append(&file, &records(0..100), StoreAckLevel::Object).expect("published");
    names.signal(0, Signal::Stop);
    let mut end = 100;
    let begun = Instant::now();
    while begun.elapsed() < 3 * LEASE {
        eventually("an append", || {
            let taken = store.append(&file, &records(end..end + 1), StoreAckLevel::Object);
            end = file.records();
            assert!(taken.as_ref().map_or_else(StoreError::is_retryable, |_| true), "{taken:?}");
            taken.is_ok()
        });
    }
    // So does a node that starts meanwhile.
    let another = backend.open(other.path());
    assert!(said(another.create("a", &schema()).map(drop)).contains("holds its lease"));
    names.signal(0, Signal::Continue);
    assert!(all_of(&store, "a") == records(0..end));
}

#[test]
fn files_with_long_schemas_are_claimed_in_several_steps() {
    let fields: Vec<(String, FieldType)> =
        (0..300).map(|n| (format!("{n:060}"), FieldType::U64)).collect();
    let mut fields: Vec<(&str, FieldType)> = fields.iter().map(|(n, f)| (&n[..], *f)).collect();
    fields[0].1 = FieldType::Time;
    let schema = Schema::of(&fields);
    each_directory(|names| {
        let (objects, path) = (directory(), directory());
        let backend = over(&names, &objects);
        let store = backend.open(path.path());
        let wanted: Vec<_> = (0..60).map(|n| (format!("f{n:04}"), schema.clone())).collect();
        store.create_all(&wanted).expect("files");
        store.close().expect("a clean stop");
        assert_eq!(backend.open(path.path()).files().len(), wanted.len());
    });
}
