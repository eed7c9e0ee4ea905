//! Objects in a directory and in real S3 servers.

use evenfall_store_engine::{
    BucketOptions, ChunkForm, Store, StoreAckLevel, StoreConfig, StoreError,
};
use tempfile::TempDir;

use crate::servers::{FileServers, S3, eventually};
use crate::suite::{Backend, all_of, append, behaves, records, said, schema};

/// Records of an append.
const BATCH: u64 = 20_000;

fn in_s3(s3: &S3) -> Backend {
    let objects = "s3://ticks/some/where".to_owned();
    Backend { objects, options: s3.options(), names: None, is_atomic: s3.is_atomic }
}

fn in_directory(objects: &TempDir) -> Backend {
    let objects = objects.path().display().to_string();
    Backend { objects, options: BucketOptions::default(), names: None, is_atomic: true }
}

#[test]
fn a_store_over_a_directory() {
    let objects = TempDir::new().expect("a directory");
    behaves(&in_directory(&objects));
}

#[test]
fn a_store_over_s3s() {
    behaves(&in_s3(&S3::s3s()));
}

#[test]
fn a_store_over_evenfalls_own_files() {
    let servers = FileServers::start();
    let objects = format!("files://{}/some/where", servers.address);
    behaves(&Backend { objects, options: BucketOptions::default(), names: None, is_atomic: true });
}

#[test]
fn a_store_over_minio() {
    if let Some(s3) = S3::minio() {
        behaves(&in_s3(&s3));
    }
}

/// Appends until the absence of the server stops the store. Acknowledged records are present
/// afterwards.
fn append_to_the_limit(store: &Store, end: &mut u64) {
    let file = store.file("a").expect("the file");
    let refused = loop {
        match store.append(&file, &records(*end..*end + BATCH), StoreAckLevel::Local) {
            Ok(first) => assert_eq!(first, *end),
            Err(error) => break error,
        }
        *end += BATCH;
    };
    assert!(refused.is_retryable() && refused.to_string().contains("local disk"), "{refused}");
    assert_eq!(file.records(), *end);
    let mut recent = Vec::new();
    let mut each = |part: bytes::Bytes| {
        recent.extend_from_slice(&part);
        Ok(())
    };
    store.read_numbers(&file, *end - 10 * BATCH..*end, &mut each).expect("what is on the disk");
    assert!(recent == records(*end - 10 * BATCH..*end));
    let unreached = store.append_end(&file, (*end, 0), StoreAckLevel::Object).unwrap_err();
    assert!(!unreached.is_retryable(), "{unreached}");
}

fn survives_kills(mut s3: S3) {
    let backend = in_s3(&s3);
    let directory = TempDir::new().expect("a directory");
    // Raw chunks fill the disk, as this test wants.
    let chunks = ChunkForm::Raw;
    let config = |path| StoreConfig { local_bytes_max: 12 << 20, chunks, ..backend.config(path) };
    let store = Store::open(config(directory.path())).expect("a store").store;
    let file = store.create("a", &schema()).expect("a file");
    let mut end = 0;
    for _ in 0..2 {
        // Chunks are being uploaded when the server stops.
        eventually("an upload", || {
            append(&store, "a", &records(end..end + BATCH), StoreAckLevel::Memory);
            end += BATCH;
            store.occupancy().upload_chunks > 0
        });
        s3.server.kill();
        append_to_the_limit(&store, &mut end);
        s3.server.restart();
        append(&store, "a", &records(end..end + BATCH), StoreAckLevel::Local);
        end += BATCH;
    }
    assert!(store.occupancy().upload_errors > 0);
    eventually("everything in the objects", || store.publish(&file).is_ok());
    assert!(all_of(&store, "a") == records(0..end));
    assert!(all_of(&backend.archive(), "a") == records(0..end));
    // The store is gone too, with a server that comes back later.
    append(&store, "a", &records(end..end + BATCH), StoreAckLevel::Local);
    end += BATCH;
    drop((file, store));
    let store = Store::open(config(directory.path())).expect("a store").store;
    assert!(all_of(&store, "a") == records(0..end));
    store.close().expect("a clean stop");
    let seen = backend.verify();
    assert!(seen.findings.is_empty(), "{:?}", seen.findings);
}

#[test]
fn uploads_go_on_when_s3s_was_killed_in_the_middle() {
    survives_kills(S3::s3s());
}

#[test]
fn uploads_go_on_when_minio_was_killed_in_the_middle() {
    if let Some(s3) = S3::minio() {
        survives_kills(s3);
    }
}

/// A bucket disappears and returns. Meanwhile everything else goes on.
fn says_that_the_bucket_is_lost(backend: &Backend, bucket: &std::path::Path) {
    let directory = TempDir::new().expect("a directory");
    let store = backend.open(directory.path());
    let file = store.create("a", &schema()).expect("a file");
    store.append(&file, &records(0..100), StoreAckLevel::Object).expect("published");
    let elsewhere = bucket.with_extension("gone");
    std::fs::rename(bucket, &elsewhere).expect("a lost bucket");
    let lost = store.append(&file, &records(100..200), StoreAckLevel::Object).unwrap_err();
    assert!(matches!(lost, StoreError::Unreached { first: 100, .. }), "{lost}");
    assert!(lost.to_string().contains("the bucket does not exist"), "{lost}");
    store.append(&file, &records(200..300), StoreAckLevel::Local).expect("taken");
    assert!(all_of(&store, "a") == records(0..300));
    std::fs::rename(&elsewhere, bucket).expect("the bucket");
    store.append(&file, &records(300..400), StoreAckLevel::Object).expect("published");
    assert!(all_of(&backend.archive(), "a") == records(0..400));
    store.close().expect("a clean stop");
}

#[test]
fn a_lost_bucket_has_its_own_error() {
    let parent = TempDir::new().expect("a directory");
    let bucket = parent.path().join("ticks");
    let objects = bucket.display().to_string();
    std::fs::create_dir(&bucket).expect("a bucket");
    let options = BucketOptions::default();
    says_that_the_bucket_is_lost(
        &Backend { objects, options, names: None, is_atomic: true },
        &bucket,
    );
}

/// `s3s-fs` treats a missing bucket as empty, so this test needs another server.
#[test]
fn a_bucket_that_minio_has_lost_has_its_own_error() {
    let Some(s3) = S3::minio() else { return };
    says_that_the_bucket_is_lost(&in_s3(&s3), &s3.server.directory.path().join("ticks"));
    let never = Backend { objects: "s3://never/made".into(), ..in_s3(&s3) };
    let directory = TempDir::new().expect("a directory");
    let opened = Store::open(never.config(directory.path())).map(drop);
    assert!(said(opened).contains("the bucket does not exist"));
}

#[test]
fn keys_are_printed_nowhere() {
    let options = S3::s3s().options();
    assert!(!format!("{options:?}").contains("evenfall-secret"), "{options:?}");
}
