//! A node serves reads of other nodes' files to its own clients: from its cache, from the objects,
//! and for fresh reads from the primary.

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenfall_store_engine::names::cluster::Cluster;
use evenfall_store_engine::{
    BucketOptions, Client, ConnectOptions, Freshness, KnownEnd, Occupancy, Store, StoreAckLevel,
};
use evenfall_store_server::Server;
use tempfile::TempDir;

use crate::servers::{Names, eventually, replicas_of_keys};
use crate::suite::{Backend, records, said, schema};

/// Records of which the first node has published all, and those that it has appended since: some
/// full segments and a part of one.
const PUBLISHED: u64 = 300_000;
const APPENDED: u64 = 304_000;

/// A store node that serves. Its records are published when a test says so.
struct ServingNode {
    server: Server,
    store: Arc<Store>,
    _path: TempDir,
}

impl ServingNode {
    fn start(backend: &Backend) -> Self {
        let path = TempDir::new().expect("a directory");
        let mut config = backend.config(path.path());
        config.publish_every = Duration::from_secs(3_600);
        let store = Arc::new(Store::open(config).expect("a store").store);
        let listen = "127.0.0.1:0".parse().expect("an address");
        let server = Server::start(Arc::clone(&store), listen).expect("a port");
        let address = server.address().to_string();
        store.member().expect("a member").serve_at(Some(address)).expect("said");
        Self { server, store, _path: path }
    }

    fn client(&self, freshness: Freshness) -> Client {
        let options = ConnectOptions { freshness, ..ConnectOptions::default() };
        Client::connect_with(self.server.address(), &options).expect("a connection")
    }

    fn sizes(&self) -> Occupancy {
        self.store.occupancy()
    }

    /// Ends the node as a crash does, and its lease at once.
    fn crash(self, names: &Names) {
        let Self { server, store, _path } = self;
        let member = store.member().expect("a member");
        let (node, lease) = (member.node(), member.lease_id());
        server.stop();
        drop(store);
        names.revoke(node, lease);
    }
}

struct TwoNodes {
    first: ServingNode,
    second: ServingNode,
    names: Names,
    _objects: TempDir,
}

impl TwoNodes {
    /// The first node has the file `a`, of which a part is published.
    fn start() -> Self {
        let (names, objects) = (replicas_of_keys(1), TempDir::new().expect("a directory"));
        let backend = Backend {
            objects: objects.path().display().to_string(),
            options: BucketOptions::default(),
            names: Some(names.address()),
            is_atomic: true,
        };
        let first = ServingNode::start(&backend);
        let file = first.store.create("a", &schema()).expect("a file");
        first
            .store
            .append(&file, &records(0..PUBLISHED), StoreAckLevel::Object)
            .expect("published");
        let newer = records(PUBLISHED..APPENDED);
        first.store.append(&file, &newer, StoreAckLevel::Memory).expect("taken");
        let second = ServingNode::start(&backend);
        second.store.create("b", &schema()).expect("a file");
        Self { first, second, names, _objects: objects }
    }
}

#[test]
fn history_read_at_another_node_costs_the_primary_nothing() {
    let nodes = TwoNodes::start();
    let (first, second) = (&nodes.first, &nodes.second);
    let mut client = second.client(Freshness::Published);
    let listed = client.list().expect("a list");
    let listed: Vec<_> = listed.iter().map(|file| (file.name.as_str(), file.records)).collect();
    assert_eq!(listed, [("a", PUBLISHED), ("b", 0)]);
    let file = client.open("a").expect("the file");
    assert!(file.is_published && file.numbers == (0..PUBLISHED), "{:?}", file.numbers);
    let whole = client.between(&file, i64::MIN, i64::MAX).expect("records");
    assert!(whole == (0..PUBLISHED, records(0..PUBLISHED)));
    assert_eq!(client.find(&file, 1_000, 1_999).expect("numbers"), 1_000..2_000);
    assert_eq!(client.record(&file, 77).expect("a record"), records(77..78));
    let last = PUBLISHED - 1;
    let latest = client.latest(&file, i64::MAX).expect("a record");
    assert_eq!(latest, (last, records(last..PUBLISHED)));
    let beyond = said(client.numbers(&file, last..PUBLISHED + 1));
    assert!(beyond.contains("the file has records 0 to 300000"), "{beyond}");

    // What was read last comes from the memory of this node.
    let before = second.sizes();
    assert_eq!(client.numbers(&file, 70..80).expect("records"), records(70..80));
    let after = second.sizes();
    assert!(before.others_object_bytes > 0);
    assert_eq!(after.others_object_bytes, before.others_object_bytes);
    assert!(after.others_cache_bytes > before.others_cache_bytes);
    assert_eq!(after.others_primary_bytes, 0);
    let counts = first.server.counts();
    assert_eq!((counts.accepted, counts.sent_bytes, counts.primary_bytes), (0, 0, 0));

    // Nobody appends or subscribes here, and the error names the primary.
    let address = first.server.address();
    client.append(&file, &records(9..10), StoreAckLevel::Local).expect("sent");
    let refused = said(client.completion().expect("an answer").expect("one").first);
    assert!(refused.contains(&format!("tcp://{address}")), "{refused}");
    let subscription = client.subscribe_to(&file, 0).expect("sent");
    let refused = said(client.next_batch(subscription, Instant::now() + Duration::from_secs(30)));
    assert!(refused.contains(&format!("tcp://{address}")), "{refused}");
}

fn file_of(client: &mut Client) -> evenfall_store_engine::RemoteFile {
    client.open("a").expect("the file")
}

#[test]
fn a_fresh_read_has_the_newest_record_and_only_the_newest_come_from_the_primary() {
    let nodes = TwoNodes::start();
    let (first, second) = (&nodes.first, &nodes.second);
    let mut client = second.client(Freshness::Fresh);
    let file = client.open("a").expect("the file");
    assert!(!file.is_published && file.numbers == (0..APPENDED), "{:?}", file.numbers);
    assert_eq!(client.numbers(&file, 1_000..2_000).expect("records"), records(1_000..2_000));
    assert_eq!(first.server.counts().primary_bytes, 0, "history was asked of the primary");
    let whole = client.between(&file, i64::MIN, i64::MAX).expect("records");
    assert!(whole == (0..APPENDED, records(0..APPENDED)));
    let newest = first.server.counts().primary_bytes;
    // From the beginning of the segment in which the published part ends.
    let most = (APPENDED - PUBLISHED + 1_022) * 16;
    assert!((1..=most).contains(&newest), "{newest} of {most}");
    assert_eq!(second.sizes().others_primary_bytes, newest);
    // Full segments are kept, and the open one is asked for again.
    let again = client.numbers(&file, PUBLISHED - 5..APPENDED).expect("records");
    assert!(again == records(PUBLISHED - 5..APPENDED));
    assert!(first.server.counts().primary_bytes - newest <= 2 * 1_022 * 16);

    let own = first.store.file("a").expect("the file");
    let more = records(APPENDED..APPENDED + 1);
    first.store.append(&own, &more, StoreAckLevel::Local).expect("taken");
    assert_eq!(client.size(&file).expect("numbers"), 0..APPENDED + 1);
    assert_eq!(client.latest(&file, i64::MAX).expect("a record"), (APPENDED, more.clone()));
    assert_eq!(client.record(&file, APPENDED).expect("a record"), more);
    let beyond = said(client.record(&file, APPENDED + 1));
    assert!(beyond.contains("the file has records 0 to 304001"), "{beyond}");
    assert_eq!(client.list().expect("a list")[0].records, APPENDED + 1);
    let known = [KnownEnd { name: "a".into(), end: APPENDED + 1 }];
    let later = Instant::now() + Duration::from_secs(30);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.wait_past(&known, later).expect("an answer"));
        let more = records(APPENDED + 1..APPENDED + 2);
        first.store.append(&own, &more, StoreAckLevel::Memory).expect("taken");
        assert!(waiting.join().expect("a thread"), "an append was not seen");
    });
    // A primary answers for itself alone.
    let mut strict = second.client(Freshness::Primary);
    assert!(said(strict.open("a")).contains("store node 1 is the primary of a"));
    assert_eq!(strict.list().expect("a list").len(), 1);
}

#[test]
fn a_silent_primary_is_named_with_what_is_known_and_readers_go_on_at_its_successor() {
    let TwoNodes { first, second, names, _objects } = TwoNodes::start();
    let (mut old, mut fresh) =
        (second.client(Freshness::Published), second.client(Freshness::Fresh));
    let (published, file) = (file_of(&mut old), file_of(&mut fresh));
    assert_eq!(file.numbers, 0..APPENDED);
    first.crash(&names);
    let silent = said(fresh.size(&file));
    assert!(silent.contains("a is known up to record 300000 (excluded)"), "{silent}");
    assert!(silent.contains("its primary, store node 1, does not give the rest"), "{silent}");
    let mut given = 0;
    let cut = fresh.read(&file, PUBLISHED - 10..APPENDED, &mut |part| {
        given += part.len() / 16;
        Ok(())
    });
    assert!(said(cut).contains("known up to record 300000"));
    assert_eq!(given, 10, "the published records come before the error");
    // A list says up to where the first file of the silent primary is known.
    let silent = said(fresh.list());
    assert!(silent.contains("a is known up to record 300000 (excluded)"), "{silent}");
    assert!(silent.contains("its primary, store node 1, does not give the rest"), "{silent}");
    // History needs no primary.
    let there = old.numbers(&published, 0..PUBLISHED).expect("records");
    assert!(there == records(0..PUBLISHED));

    eventually("a takeover", || {
        second.store.take_over().expect("names");
        second.store.file("a").is_ok()
    });
    // The same connections and file numbers go on.
    assert_eq!(fresh.size(&file).expect("numbers"), 0..PUBLISHED);
    let newer = records(PUBLISHED..PUBLISHED + 10);
    fresh.append(&file, &newer, StoreAckLevel::Local).expect("sent");
    let first = fresh.completion().expect("an answer").expect("one").first;
    assert_eq!(first.expect("taken"), PUBLISHED);
    assert_eq!(old.numbers(&published, PUBLISHED..PUBLISHED + 10).expect("records"), newer);
    // The node ends before the names that it asks.
    drop((old, fresh, second));
}

#[test]
fn only_the_nodes_that_the_names_name_serve_a_file() {
    let nodes = TwoNodes::start();
    let (first, second) = (&nodes.first, &nodes.second);
    let cluster = Cluster::open(&nodes.names.address()).expect("names");
    let mut client = second.client(Freshness::Published);
    cluster.assign_readers("a", &[7]).expect("assigned");
    let refused = said(client.open("a"));
    assert!(refused.contains("serves no reads of a: read it at store node 7"), "{refused}");
    // The primary serves its file whoever else does, and its publications keep the assignment.
    let own = first.store.file("a").expect("the file");
    first.store.publish(&own).expect("published");
    assert!(first.client(Freshness::Published).open("a").is_ok());
    let number = second.store.member().expect("a member").node();
    assert!(said(client.open("a")).contains("store node 7"));
    cluster.assign_readers("a", &[number]).expect("assigned");
    assert_eq!(client.open("a").expect("the file").numbers, 0..APPENDED);
    assert!(cluster.assign_readers("c", &[number]).is_err());
}
