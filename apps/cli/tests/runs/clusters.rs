//! Store nodes as processes over a real etcd, and over ordered keys. One node is stopped for longer
//! than its lease, and another node is killed.

use std::io::{BufRead as _, BufReader, Lines};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout};
use std::time::{Duration, Instant};

use evenfall_host::process::{self, Signal};
use evenfall_store_engine::{Client, StoreAckLevel};
use evenfall_store_format::Schema;

use super::common::{Scratch, evenfall, finish, say, signal};
use super::servers;

/// A served store in a process of its own.
pub struct Node {
    pub child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    pub address: SocketAddr,
}

impl Node {
    pub fn start(dir: &str, more: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", dir, more)
    }

    pub fn start_at(listen: &str, dir: &str, more: &[&str]) -> Self {
        let always = ["store", "serve", dir, "--listen", listen];
        let all: Vec<&str> = always.into_iter().chain(more.iter().copied()).collect();
        let mut child = evenfall(&all).spawn().expect("a server");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let line = lines.next().expect("a line").expect("a line");
        let address = line.strip_prefix("serving tcp://").expect("an address");
        let address = address.parse().expect("an address");
        Self { child, lines, address }
    }

    pub fn says(&mut self, words: &str) {
        let mut lines = self.lines.by_ref().map(|line| line.expect("a line"));
        assert!(lines.any(|line| line.contains(words)), "never said: {words}");
    }
}

pub fn records(numbers: std::ops::Range<u64>) -> Vec<u8> {
    numbers.flat_map(|n| [(n as i64).to_le_bytes(), (n * 7).to_le_bytes()].concat()).collect()
}

/// Appends one batch. The error is in words.
pub fn append(
    client: &mut Client,
    numbers: std::ops::Range<u64>,
    level: StoreAckLevel,
) -> Result<u64, String> {
    let file = client.create("a", &Schema::opaque(16)).map_err(|error| error.to_string())?;
    client.append(&file, &records(numbers), level).map_err(|error| error.to_string())?;
    let done = client.completion().map_err(|error| error.to_string())?;
    done.expect("a completion").first.map_err(|error| error.to_string())
}

/// Appends one batch, and again while the node says that it cannot `yet`.
pub fn append_at_last(
    client: &mut Client,
    numbers: std::ops::Range<u64>,
    level: StoreAckLevel,
    yet: &str,
) -> u64 {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match append(client, numbers.clone(), level) {
            Ok(first) => return first,
            Err(why) => assert!(Instant::now() < end && why.contains(yet), "{why}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What a node says that has no rival and misses its lease, as it may on a crowded machine.
const LEASE_MISSED: &str = "appends go on if";

fn rows(args: &[&str]) -> usize {
    let said = say(args);
    assert!(said.ok, "{}", said.err);
    said.out.lines().count() - 1
}

#[test]
fn a_primary_that_was_stopped_past_its_lease_is_replaced_and_acknowledges_nothing_more() {
    servers::each_directory(|directory| {
        let scratch = Scratch::beside();
        let place = |name: &str| scratch.path(name).display().to_string();
        let (names, objects) = (directory.address(), place("objects"));
        let common = ["--names", &names, "--lease", "2s", "--objects", &objects, "--take-over"];
        let old = Node::start(&place("first"), &common);
        let mut client = Client::connect(old.address).expect("a connection");
        assert_eq!(append(&mut client, 0..5_000, StoreAckLevel::Object), Ok(0));
        let mut new = Node::start(&place("second"), &common);
        let mut other = Client::connect(new.address).expect("a connection");
        let told = append(&mut other, 5_000..5_100, StoreAckLevel::Local).unwrap_err();
        assert!(told.contains(&format!("append at tcp://{}", old.address)), "{told}");

        signal(old.child.id(), "STOP");
        new.says("1 files taken over");
        signal(old.child.id(), "CONT");
        let refused = append(&mut client, 5_000..5_100, StoreAckLevel::Memory);
        assert!(refused.is_err(), "{refused:?}");
        let ended = finish(old.child);
        assert!(!ended.ok && ended.err.contains("lease lost"), "{}", ended.err);

        assert_eq!(
            append_at_last(&mut other, 6_000..6_500, StoreAckLevel::Object, LEASE_MISSED),
            5_000
        );
        assert_eq!(
            append_at_last(&mut other, 6_500..6_600, StoreAckLevel::Memory, LEASE_MISSED),
            5_500
        );
        assert_eq!(rows(&["store", "read", &names, "a"]), 5_500);
        assert_eq!(rows(&["store", "read", &names, "a", "--fresh"]), 5_600);
        // The published records can be read while no node runs. The next node has them, too.
        process::send(new.child.id(), Signal::Kill);
        new.child.wait().expect("its end");
        let published = rows(&["store", "read", &names, "a"]);
        assert!(published == 5_500 || published == 5_600, "{published}");
        let mut third = Node::start(&place("third"), &common);
        third.says("1 files taken over");
        let mut client = Client::connect(third.address).expect("a connection");
        assert_eq!(
            append_at_last(&mut client, 7_000..7_001, StoreAckLevel::Local, LEASE_MISSED),
            published as u64
        );
        process::send(third.child.id(), Signal::Terminate);
        let ended = finish(third.child);
        assert!(ended.ok, "{}", ended.err);
        assert_eq!(rows(&["store", "read", &objects, "a", "--objects"]), published + 1);
        let proven = say(&["store", "verify", &place("third")]);
        assert!(proven.ok, "{}{}", proven.out, proven.err);
    });
}
