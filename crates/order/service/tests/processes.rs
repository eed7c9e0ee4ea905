//! Three replicas as processes, one of which is killed.
//!
//! The program of tests starts itself: with the variable set, the test [`replica`] is a replica.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use evenfall_order_service::keys::{Existing, Kind, Op};
use evenfall_order_service::{Client, Settings};

/// Tells a process which replica it is: its number, its directory, and the addresses of all.
const REPLICA: &str = "EVENFALL_TEST_REPLICA";
/// A machine may stop this process for minutes.
const PATIENCE: Duration = Duration::from_secs(300);

#[test]
fn replica() {
    let Ok(text) = std::env::var(REPLICA) else { return };
    let mut words = text.split(' ');
    let node: usize = words.next().and_then(|word| word.parse().ok()).expect("a number");
    let directory = words.next().expect("a directory").into();
    let replicas: Vec<SocketAddr> = words.map(|word| word.parse().expect("an address")).collect();
    let listen = replicas[node];
    let settings = Settings { node, replicas, listen, directory, bytes_max: 64 << 20 };
    evenfall_order_service::run(&settings, || {}).expect("a replica");
}

/// A port that is free for both protocols. The address is of this test alone.
fn free(host: u8) -> SocketAddr {
    loop {
        let tcp = TcpListener::bind((Ipv4Addr::new(127, 0, 77, host), 0)).expect("a port");
        let address = tcp.local_addr().expect("bound");
        if UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
}

fn start(node: usize, directory: &Path, replicas: &[SocketAddr]) -> Child {
    let own = directory.join(node.to_string());
    let all: Vec<String> = replicas.iter().map(ToString::to_string).collect();
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "processes::replica", "--nocapture"])
        .env(REPLICA, format!("{node} {} {}", own.display(), all.join(" ")))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("a process")
}

/// Processes that end with the test, however it ends.
struct Replicas(Vec<Child>);

impl Drop for Replicas {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn put(client: &mut Client, key: &str, value: u32) {
    let value = Bytes::from(value.to_string());
    let (existing, kind) = (Existing::Any(true), Kind::Persistent);
    let op = Op::Put { key: key.into(), value, existing, kind, numbered: false };
    client.change(vec![op]).expect("a majority lives");
}

/// Every put was made once: the version counts them.
fn expect(client: &mut Client, key: &str, puts: u32) {
    let found = client.get(key).expect("a majority lives").expect("the key");
    let value: u32 = std::str::from_utf8(&found.value).expect("digits").parse().expect("digits");
    assert_eq!((found.stat.version, value), (puts - 1, puts - 1), "{key}");
}

#[test]
fn what_was_answered_survives_kill_9_of_each_replica_and_is_there_once() {
    const PUTS: u32 = 60;
    let directory = tempfile::tempdir().expect("a directory");
    let addresses: Vec<SocketAddr> = (1..=3).map(free).collect();
    let begin = |node| start(node, directory.path(), &addresses);
    let mut replicas = Replicas((0..3).map(begin).collect());
    let names = ["one", "two", "three"];
    std::thread::scope(|scope| {
        for (turn, name) in names.iter().enumerate() {
            let mut order = addresses.clone();
            order.rotate_left(turn);
            scope.spawn(move || {
                let mut client = Client::new(order, PATIENCE);
                (0..PUTS).for_each(|value| put(&mut client, name, value));
            });
        }
        let mut watch = Client::new(addresses.clone(), PATIENCE);
        for node in 0..3 {
            // Some puts of the first client are there, and most are still to come.
            let enough = (node as u32 + 1) * PUTS / 6;
            let is_there = |found: &evenfall_order_service::Found| found.stat.version >= enough;
            while !watch.get("one").expect("a majority lives").is_some_and(|f| is_there(&f)) {
                std::thread::yield_now();
            }
            replicas.0[node].kill().expect("a process");
            replicas.0[node].wait().expect("a process");
            replicas.0[node] = begin(node);
        }
    });
    let mut client = Client::new(addresses.clone(), PATIENCE);
    names.iter().for_each(|name| expect(&mut client, name, PUTS));
    drop(client);

    // All end at once, and go on from their directories.
    drop(replicas);
    let replicas = Replicas((0..3).map(begin).collect());
    for at in &addresses {
        let mut client = Client::new(vec![*at], PATIENCE);
        names.iter().for_each(|name| expect(&mut client, name, PUTS));
    }
    drop(replicas);
}

/// kazoo is a client of ZooKeeper in Python. `scripts/deps.sh` installs it.
#[test]
fn a_client_of_zookeeper_finds_what_it_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = folder.join("../../../target/venv-zookeeper/bin/python");
    if !python.exists() {
        println!("skipped: no kazoo (scripts/deps.sh installs it)");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let addresses: Vec<SocketAddr> = (4..=6).map(free).collect();
    let begin = |node| start(node, directory.path(), &addresses);
    let replicas = Replicas((0..3).map(begin).collect());
    let hosts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let script = folder.join("tests/zookeeper.py");
    let said = Command::new(python).arg(script).arg(hosts.join(",")).output().expect("Python");
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success() && out.contains("all there"), "{out}\n{err}");
    drop(replicas);
}
