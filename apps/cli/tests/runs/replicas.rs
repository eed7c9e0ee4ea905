//! The level `replica` between two processes, when either node is killed or the primary's disk is
//! lost.

use std::net::SocketAddr;

use evenfall_host::process::{self, Signal};
use evenfall_store_engine::{Client, StoreAckLevel};
use evenfall_store_format::Schema;

use super::clusters::{Node, append, append_at_last, records};
use super::common::{Scratch, finish};
use super::servers;

const BATCH: u64 = 100;

fn kill(node: Node) {
    process::send(node.child.id(), Signal::Kill);
    let mut child = node.child;
    child.wait().expect("its end");
}

fn connect(address: SocketAddr) -> Client {
    Client::connect(address).expect("a connection")
}

/// Repeats an append at `replica` until it is acknowledged, because the second node may not be
/// connected yet.
fn append_replica(client: &mut Client, numbers: std::ops::Range<u64>) -> u64 {
    append_at_last(client, numbers, StoreAckLevel::Replica, "is away")
}

/// The number of records that a node has. Asserts that they are the first ones of the file.
fn there(address: SocketAddr) -> u64 {
    let mut client = connect(address);
    let file = client.open("a").expect("the file");
    let end = file.numbers.end;
    let read = client.numbers(&file, 0..end).expect("its records");
    assert!(read == records(0..end), "other records");
    end
}

/// Appends batches at `replica` with many under way, and kills the primary meanwhile. Returns the
/// number of acknowledged records.
fn append_until_killed(primary: Node, from: u64) -> u64 {
    let mut client = connect(primary.address);
    let file = client.create("a", &Schema::opaque(16)).expect("a file");
    let mut acknowledged = from;
    for batch in 0..400 {
        let first = from + batch * BATCH;
        client.append(&file, &records(first..first + BATCH), StoreAckLevel::Replica).expect("sent");
    }
    for _ in 0..150 {
        let done = client.completion().expect("a reply").expect("an append");
        acknowledged = done.first.expect("taken") + BATCH;
    }
    kill(primary);
    while let Ok(Some(done)) = client.completion() {
        acknowledged = done.first.map_or(acknowledged, |first| first + BATCH);
    }
    acknowledged
}

/// A primary, its second node, and a client of the primary.
fn pair(first: &str, second: &str) -> (Node, Node, Client) {
    let second = Node::start(second, &[]);
    let first = Node::start(first, &["--replica", &second.address.to_string()]);
    let client = connect(first.address);
    (first, second, client)
}

#[test]
fn what_was_acknowledged_replica_is_on_the_second_node_when_the_first_and_its_disk_are_gone() {
    let scratch = Scratch::beside();
    let place = |name: &str| scratch.path(name).display().to_string();
    let (first, second, mut client) = pair(&place("first"), &place("second"));
    assert_eq!(append_replica(&mut client, 0..BATCH), 0);
    let refused = append(&mut connect(second.address), 0..BATCH, StoreAckLevel::Local).unwrap_err();
    assert!(refused.contains("is a copy of another node's file"), "{refused}");
    let acknowledged = append_until_killed(first, BATCH);
    std::fs::remove_dir_all(scratch.path("first")).expect("its disk is lost");
    assert!(acknowledged >= 150 * BATCH, "{acknowledged}");
    assert!(there(second.address) >= acknowledged);

    // A crash of the second node loses no record of the copy, and the node can take the file over.
    kill(second);
    let second = Node::start(&place("second"), &["--take-over"]);
    let end = there(second.address);
    assert!(end >= acknowledged, "{end} of {acknowledged}");
    let mut client = connect(second.address);
    assert_eq!(append(&mut client, end..end + 1, StoreAckLevel::Local), Ok(end));
    process::send(second.child.id(), Signal::Terminate);
    let ended = finish(second.child);
    assert!(ended.ok, "{}", ended.err);
}

#[test]
fn without_the_second_node_replica_is_refused_by_its_name_and_caught_up_with_when_it_is_back() {
    let scratch = Scratch::beside();
    let place = |name: &str| scratch.path(name).display().to_string();
    let (first, second, mut client) = pair(&place("first"), &place("second"));
    let replica = second.address.to_string();
    append_replica(&mut client, 0..BATCH);
    kill(second);
    // An append that is under way when the second node is killed may fail up to ten seconds later.
    let mut end = BATCH;
    let away = loop {
        let refused = append(&mut client, end..end + BATCH, StoreAckLevel::Replica).unwrap_err();
        if !refused.contains("taken and synced on this node only") {
            break refused;
        }
        end += BATCH;
    };
    assert!(away.contains(&format!("replica {replica}: the second node is away")), "{away}");
    for level in [StoreAckLevel::Memory, StoreAckLevel::Local] {
        assert_eq!(append(&mut client, end..end + 30_000, level), Ok(end));
        end += 30_000;
    }
    let second = Node::start_at(&replica, &place("second"), &[]);
    assert_eq!(append_replica(&mut client, end..end + BATCH), end);
    assert_eq!(there(second.address), end + BATCH);

    // The first node is killed and started again, and the second node follows it.
    kill(first);
    let first = Node::start(&place("first"), &["--replica", &replica]);
    let mut client = connect(first.address);
    let end = end + BATCH;
    assert_eq!(append_replica(&mut client, end..end + BATCH), end);
    assert_eq!(there(second.address), end + BATCH);
    for node in [first, second] {
        process::send(node.child.id(), Signal::Terminate);
        let ended = finish(node.child);
        assert!(ended.ok, "{}", ended.err);
    }
}

#[test]
fn a_second_node_of_a_cluster_becomes_the_primary_of_what_it_has_and_no_other_node_does() {
    servers::each_directory(|directory| {
        let scratch = Scratch::beside();
        let place = |name: &str| scratch.path(name).display().to_string();
        let (names, objects) = (directory.address(), place("objects"));
        let common = ["--names", &names, "--lease", "2s", "--objects", &objects, "--take-over"];
        let mut second = Node::start(&place("second"), &common);
        let replica = second.address.to_string();
        let first = Node::start(&place("first"), &[&common[..], &["--replica", &replica]].concat());
        // The third node knows only the objects, which have fewer records, and must not take the
        // file over.
        let third = Node::start(&place("third"), &common);
        let mut client = connect(first.address);
        assert_eq!(append_replica(&mut client, 0..BATCH), 0);
        let acknowledged = append_until_killed(first, BATCH);
        second.says("taking over");
        second.says("serving");
        let end = there(second.address);
        assert!(end >= acknowledged, "{end} of {acknowledged}");
        let mut client = connect(second.address);
        assert_eq!(append(&mut client, end..end + BATCH, StoreAckLevel::Object), Ok(end));
        let told = append(&mut connect(third.address), 0..1, StoreAckLevel::Local).unwrap_err();
        assert!(told.contains(&format!("append at tcp://{replica}")), "{told}");

        // The old primary comes back, learns that it is no longer the primary, and becomes the
        // second node.
        let first = Node::start(&place("first"), &common);
        let told = append(&mut connect(first.address), 0..1, StoreAckLevel::Local).unwrap_err();
        assert!(told.contains(&format!("append at tcp://{replica}")), "{told}");
        for node in [first, second, third] {
            process::send(node.child.id(), Signal::Terminate);
            let ended = finish(node.child);
            assert!(ended.ok, "{}", ended.err);
        }
    });
}
