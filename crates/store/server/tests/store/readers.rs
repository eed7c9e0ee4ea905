//! Any node reads any file, and a program lists, reads and follows recordings of a server.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenfall_feed_formats::Format;
use evenfall_store_engine::{
    BucketOptions, ClusterSource, Freshness, RecordSource, Store, StoreAckLevel, StoreConfig,
    StoreError,
};
use evenfall_store_recording::{RecordingFollower, RecordingWriter, Recordings};
use evenfall_store_server::Server;
use tempfile::TempDir;

use crate::servers::{each_directory, eventually};
use crate::suite::{Backend, all_of, records, said, schema};

/// Connections that the primary has taken, and bytes in its cache.
fn taken_from(store: &Store, server: &Server) -> (u64, u64) {
    (server.counts().accepted, store.occupancy().cache_bytes)
}

#[test]
fn old_records_come_from_objects_and_recent_ones_from_the_primary() {
    each_directory(|names| {
        let (objects, path) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let backend = Backend {
            objects: objects.path().display().to_string(),
            options: BucketOptions::default(),
            names: Some(names.address()),
            is_atomic: true,
        };
        let mut config = backend.config(path.path());
        config.publish_every = Duration::from_secs(3_600);
        let store = Arc::new(Store::open(config).expect("a store").store);
        let file = store.create("a", &schema()).expect("a file");
        store.append(&file, &records(0..500_000), StoreAckLevel::Object).expect("published");
        let server =
            Server::start(Arc::clone(&store), "127.0.0.1:0".parse().unwrap()).expect("a port");
        store.member().unwrap().serve_at(Some(server.address().to_string())).expect("said");
        store.append(&file, &records(500_000..500_700), StoreAckLevel::Memory).expect("taken");

        let source = |freshness| {
            let options = BucketOptions::default();
            ClusterSource::open(&names.address(), None, &options, freshness).expect("a source")
        };
        // A scan of what is published, by a reader of either kind: nothing is asked of the primary.
        let is_sealed = || store.await_columns(Duration::ZERO);
        eventually("a quiet primary", || is_sealed() && store.occupancy().memory_bytes == 0);
        let before = taken_from(&store, &server);
        let published = source(Freshness::Published);
        assert!(all_of(&published, "a") == records(0..500_000));
        assert_eq!(published.listed().unwrap()[0].records, 500_000);
        let fresh = source(Freshness::Fresh);
        assert_eq!(fresh.between("a", 1_000, 499_000).unwrap(), 1_000..499_001);
        assert!(fresh.numbers("a", 1_000..499_001).unwrap() == records(1_000..499_001));
        assert_eq!(taken_from(&store, &server), before, "the primary was asked");
        let missing = said(published.numbers("a", 500_000..500_001));
        assert!(missing.contains("no record 500000"), "{missing}");

        // The end comes from the primary, and the rest still does not.
        assert!(all_of(&fresh, "a") == records(0..500_700));
        assert_eq!(fresh.between("a", 499_999, 500_010).unwrap(), 499_999..500_011);
        assert_eq!(fresh.between("a", 500_100, 500_110).unwrap(), 500_100..500_111);
        assert_eq!(fresh.between("a", i64::MIN, -1).unwrap(), 0..0);
        assert_eq!(fresh.listed().unwrap()[0].records, 500_700);
        assert_eq!(taken_from(&store, &server).0, before.0 + 1);

        // Without the primary, published records are readable, and an error names the missing rest.
        server.stop();
        drop(file);
        Arc::into_inner(store).expect("alone").close().expect("a clean stop");
        let unreached = said(fresh.between("a", 0, i64::MAX));
        assert!(unreached.contains("serves nowhere now"), "{unreached}");
        let unlisted = said(fresh.listed());
        assert!(unlisted.contains("a is known up to record 500700 (excluded)"), "{unlisted}");
        assert!(unlisted.contains("serves nowhere now"), "{unlisted}");
        assert!(all_of(&source(Freshness::Published), "a") == records(0..500_700));
    });
}

/// The calls of the face's example `recording`, while the recording grows.
#[test]
fn a_recording_of_a_server_is_listed_read_and_followed_while_it_grows() {
    let path = TempDir::new().unwrap();
    let store = Arc::new(Store::open(StoreConfig::new(path.path())).expect("a store").store);
    let server = Server::start(Arc::clone(&store), "127.0.0.1:0".parse().unwrap()).expect("a port");
    let mut writer = RecordingWriter::new(&store, "r", 1, StoreAckLevel::Local).expect("a name");
    let mut record = |numbers: Range<u64>| {
        for number in numbers {
            let (time_ns, bytes) = (number as i64 * 1_000, number.to_le_bytes());
            writer.push(0, number, time_ns, Format::OPAQUE, &bytes).expect("taken");
        }
        writer.flush().expect("committed");
    };
    record(0..10);

    let recordings = Recordings::open(&format!("tcp://{}", server.address())).expect("a place");
    assert!(recordings.grows());
    let catalog = recordings.catalog().expect("a list");
    assert!(catalog.recordings().map(|recording| recording.name.as_str()).eq(["r"]));
    let recording = recordings.recording("r").expect("a recording");
    let mut seen = Vec::new();
    let read = recording.read::<StoreError>(&recording.rows(), None, &mut |row| {
        seen.push(row.recorded.number);
        Ok(ControlFlow::Continue(()))
    });
    read.expect("rows");
    assert!(seen.iter().copied().eq(0..10), "{seen:?}");

    let mut follower = RecordingFollower::beginning_with(&recording, 0).expect("the end");
    let end = Instant::now() + Duration::from_secs(30);
    for first in [10, 20, 30] {
        record(first..first + 10);
        while seen.last() != Some(&(first + 9)) {
            let read = follower.read_new::<StoreError>(&mut |row| {
                seen.push(row.recorded.number);
                Ok(())
            });
            read.expect("new rows");
            assert!(Instant::now() < end, "{seen:?}");
            follower.wait_new(Instant::now() + Duration::from_millis(100)).expect("a wait");
        }
    }
    assert!(seen.iter().copied().eq(0..40), "{seen:?}");
    server.stop();
}
