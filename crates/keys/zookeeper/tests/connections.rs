//! Clients that write bytes themselves: sessions that move, and many dear reads at once.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use evenfall_keys_client::KeysClient;
use evenfall_keys_machine::jute::{Fields, JuteMessage, error, op};
use evenfall_keys_machine::{Existing, KeyOperation};

use crate::processes::{PATIENCE, Replicas, answer, free, put, start};

/// A connection that opens a session, or goes on with one: its session and password.
fn open(at: SocketAddr, session: u64, password: &[u8]) -> (TcpStream, u64, Vec<u8>) {
    let mut stream = TcpStream::connect(at).expect("room for another");
    let hello = JuteMessage::default().int(0).long(0).int(600_000).long(session as i64);
    stream.write_all(&hello.buffer(password).bool(false).finish()).expect("sent");
    let greeted = answer(&mut stream);
    let mut fields = Fields::new(&greeted[8..]);
    let session = fields.long().expect("a session") as u64;
    assert_ne!(session, 0, "the session is known");
    let password = fields.buffer().expect("a password").to_vec();
    (stream, session, password)
}

/// Asks to make a node that everybody may change.
fn create(stream: &mut TcpStream, path: &str) {
    let ask = JuteMessage::default().int(1).int(op::CREATE).text(path).buffer(b"");
    let ask = ask.int(1).int(31).text("world").text("anyone").int(0);
    // A replica that has closed the connection may show this by an error.
    stream.write_all(&ask.finish()).ok();
}

fn is_closed(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0; 64]).unwrap_or(0) == 0
}

#[test]
fn a_session_that_moved_or_ended_changes_nothing_from_its_earlier_connection() {
    let directory = tempfile::tempdir().expect("a directory");
    let addresses: Vec<SocketAddr> = (20..=22).map(free).collect();
    let _replicas =
        Replicas((0..3).map(|node| start(node, directory.path(), &addresses)).collect());
    let mut client = KeysClient::new(addresses.clone(), PATIENCE);
    put(&mut client, "ready", 1);
    let has = |path: &str| {
        let found =
            KeysClient::new(vec![addresses[2]], PATIENCE).get(path).expect("a majority lives");
        found.is_some()
    };

    let (mut first, session, password) = open(addresses[0], 0, &[0; 16]);
    create(&mut first, "/one");
    assert_eq!(Fields::new(&answer(&mut first)[12..]).int(), Ok(error::OK));
    let (mut second, again, _) = open(addresses[1], session, &password);
    assert_eq!(again, session);
    create(&mut first, "/moved");
    assert!(is_closed(&mut first), "ZooKeeper closes this connection, too");
    assert!(has("/one") && !has("/moved"));

    // A replica that the session leaves closes the connection, whether it asks for anything or not.
    let (mut third, ..) = open(addresses[2], session, &password);
    assert!(is_closed(&mut second));
    create(&mut third, "/two");
    assert_eq!(Fields::new(&answer(&mut third)[12..]).int(), Ok(error::OK));
    assert!(has("/two"));
}

/// One connection counts all nodes a thousand times, while another client sets a key. The answers
/// of the counts have the zxid of their time: the replica goes on applying changes between them.
#[test]
fn dear_reads_of_one_connection_hold_up_no_changes() {
    const NODES: usize = 8_000;
    const COUNTS: i32 = 1_000;
    const ATTEMPTS: usize = 30;
    /// The requests come in two or three pieces, and a change may come between these.
    const FEW: usize = 5;
    let directory = tempfile::tempdir().expect("a directory");
    let at = free(23);
    let _replica = Replicas(vec![start(0, directory.path(), &[at])]);
    let mut client = KeysClient::new(vec![at], PATIENCE);
    put(&mut client, "key", 0);
    for first in (0..NODES).step_by(1_000) {
        let made =
            (first..first + 1_000).map(|n| KeyOperation::put(format!("/{n}"), "", Existing::None));
        client.change(made.collect()).expect("there is room");
    }
    let (mut counts, ..) = open(at, 0, &[0; 16]);
    let asks = (0..COUNTS)
        .flat_map(|n| JuteMessage::default().int(n).int(op::COUNT_CHILDREN).text("/").finish());
    let asks: Vec<u8> = asks.collect();
    let is_done = AtomicBool::new(false);
    let failed = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(SeqCst) {
                put(&mut client, "key", 0);
            }
        });
        // On a busy machine the other client may hardly have its turn.
        let changes = (0..ATTEMPTS).map(|_| changes_between(&mut counts, &asks, COUNTS));
        let changes = changes.inspect(|changes| println!("{changes} changes between counts"));
        let failed = changes.take_while(|changes| *changes <= FEW).count();
        is_done.store(true, SeqCst);
        failed
    });
    assert!(failed < ATTEMPTS, "at most {FEW} changes between {COUNTS} counts");
}

/// Asks for many counts, and returns how often the zxid of the answers changed.
fn changes_between(counts: &mut TcpStream, asks: &[u8], count: i32) -> usize {
    counts.write_all(asks).expect("taken");
    let zxid = |_| Fields::new(&answer(counts)[4..]).long().expect("a zxid");
    let zxids: Vec<i64> = (0..count).map(zxid).collect();
    zxids.windows(2).filter(|pair| pair[0] != pair[1]).count()
}
