//! Buckets that do not answer, at the beginning and at the end, and disks that run low.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use evenfall_store_engine::{BucketOptions, ChunkForm, Store, StoreAckLevel, StoreConfig};
use evenfall_store_format::{Error, Schema};
use tempfile::TempDir;

use crate::servers::{S3, eventually};
use crate::suite::{Backend, all_of, append, records, said, schema};

/// A port of this machine at which nothing answers: connections are taken and lie there.
fn silent_bucket() -> (TcpListener, BucketOptions) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let options = [
        ("aws_endpoint", endpoint.as_str()),
        ("aws_allow_http", "true"),
        ("aws_access_key_id", "evenfall"),
        ("aws_secret_access_key", "evenfall-secret"),
        ("aws_region", "us-east-1"),
    ];
    let options = options.map(|(key, value)| (key.into(), value.into())).into();
    (listener, BucketOptions(options))
}

fn in_bucket(path: &Path, options: BucketOptions) -> StoreConfig {
    StoreConfig {
        objects: Some("s3://ticks/some/where".into()),
        bucket_options: options,
        publish_every: Duration::from_secs(3_600),
        ..StoreConfig::new(path)
    }
}

#[test]
fn a_new_directory_opens_without_its_bucket_and_publishes_when_it_answers() {
    let mut s3 = S3::s3s();
    s3.server.kill();
    let dir = TempDir::new().expect("a directory");
    let open = || Store::open(in_bucket(dir.path(), s3.options())).expect("a store").store;
    let store = open();
    let file = store.create("a", &schema()).expect("a file");
    store.append(&file, &records(0..1_000), StoreAckLevel::Local).expect("records");
    // The next life has names, and still does not know what is in the bucket.
    drop((file, store));
    let store = open();
    let file = store.file("a").expect("the file");
    store.append(&file, &records(1_000..2_000), StoreAckLevel::Local).expect("records");
    assert!(store.publish(&file).is_err());
    s3.server.restart();
    let objects = "s3://ticks/some/where".to_owned();
    let backend = Backend { objects, options: s3.options(), names: None, is_atomic: false };
    eventually("a publication", || store.publish(&file).is_ok());
    assert!(all_of(&backend.archive(), "a") == records(0..2_000));
    drop(file);
    store.close().expect("a clean stop");

    // Another new directory must not publish over the first.
    s3.server.kill();
    let other = TempDir::new().expect("a directory");
    let store = Store::open(in_bucket(other.path(), s3.options())).expect("a store").store;
    let file = store.create("b", &schema()).expect("a file");
    store.append(&file, &records(7..9), StoreAckLevel::Local).expect("records");
    s3.server.restart();
    eventually("a refusal", || said(store.publish(&file)).contains("\"a\""));
    said(store.delete("b"));
    assert!(all_of(&backend.archive(), "a") == records(0..2_000));
    let seen = backend.verify();
    assert!(seen.findings.is_empty(), "{:?}", seen.findings);
}

#[test]
fn a_stop_waits_for_a_silent_bucket_three_seconds_and_not_once_for_each_file() {
    let s3 = S3::s3s();
    let dir = TempDir::new().expect("a directory");
    let store = Store::open(in_bucket(dir.path(), s3.options())).expect("a store").store;
    store.close().expect("a clean stop");
    let (_listener, options) = silent_bucket();
    let store = Store::open(in_bucket(dir.path(), options.clone())).map(|opened| opened.store);
    // A directory without files asks the bucket, and gives up.
    let store = store.expect("a store");
    let wanted: Vec<_> = (0..40).map(|n| (format!("s{n}"), schema())).collect();
    for file in store.create_all(&wanted).expect("files") {
        store.append(&file, &records(0..10), StoreAckLevel::Local).expect("records");
    }
    let begun = Instant::now();
    let error = said(store.stop());
    assert!(error.contains("did not answer before the store stopped"), "{error}");
    // A request alone may take thirty seconds, and its repetitions fifteen.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let store = Store::open(in_bucket(dir.path(), options)).expect("a store").store;
    assert!(all_of(&store, "s39") == records(0..10));
}

/// A file system of some megabytes; `None` where it cannot be mounted.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mounted() -> Option<Self> {
        let dir = TempDir::new().expect("a directory");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=48m", "tmpfs"]).arg(dir.path());
        let is_mounted = mount.output().is_ok_and(|done| done.status.success());
        if !is_mounted {
            println!("skipped: a tmpfs cannot be mounted here (root can)");
        }
        is_mounted.then_some(Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_disk_that_is_smaller_than_its_limit_takes_appends_as_long_as_chunks_can_leave() {
    let Some(small) = SmallDisk::mounted() else { return };
    let objects = TempDir::new().expect("a directory");
    let config = || StoreConfig {
        objects: Some(objects.path().display().to_string()),
        chunks: ChunkForm::Raw,
        cache_bytes: 1 << 20,
        ..StoreConfig::new(&small.0.path().join("store"))
    };
    let store = Store::open(config()).expect("a store").store;
    store.create("a", &Schema::opaque(16)).expect("a file");
    // Four times the disk, at the level whose records are in the journal too.
    let (mut end, step) = (0, 32_768);
    while end < (192 << 20) / 16 {
        append(&store, "a", &records(end..end + step), StoreAckLevel::Local);
        end += step;
        // What is not an object cannot leave, so the writer does not run ahead of the uploads.
        eventually("uploads", || {
            let sizes = store.occupancy();
            sizes.upload_chunks == 0 && sizes.memory_bytes < 8 << 20
        });
    }
    assert!(store.occupancy().local_bytes < 48 << 20);
    // The disk is filled by another program, and its chunks leave until appends go on.
    let ballast = small.0.path().join("ballast");
    let _ = std::fs::write(&ballast, vec![0; 48 << 20]);
    for _ in 0..20 {
        let file = store.file("a").expect("the file");
        eventually("an append", || {
            let appended = store.append(&file, &records(end..end + 100), StoreAckLevel::Local);
            if let Err(error) = &appended {
                assert!(error.to_string().contains("disk is full"), "{error}");
            }
            end = file.records();
            appended.is_ok()
        });
    }
    std::fs::remove_file(ballast).expect("the ballast");
    drop(store);
    let store = Store::open(config()).expect("a store").store;
    let there = store.file("a").expect("the file").records();
    assert_eq!(there, end);
    let mut last = Vec::new();
    let file = store.file("a").expect("the file");
    let mut each = |part: bytes::Bytes| {
        last.extend_from_slice(&part);
        Ok::<_, Error>(())
    };
    store.read_numbers(&file, end - 200_000..end, &mut each).expect("records");
    assert!(last == records(end - 200_000..end));
}
