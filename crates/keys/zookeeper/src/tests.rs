//! One replica in a directory, and clients that break the rules.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use evenfall_consensus_machine::journal;
use evenfall_keys_client::{ClientError, KeysClient};
use evenfall_keys_machine::{Existing, KeyOperation, KeyRefusal};

use crate::{Options, Settings};

mod wire;
use evenfall_keys_machine::jute::{Fields, JuteMessage, error, op};

/// The settings of a single replica.
fn settings(directory: &std::path::Path) -> Settings {
    let free = || evenfall_host::ports::free(Ipv4Addr::LOCALHOST.into()).expect("a port");
    let replica = evenfall_consensus_replica::Settings {
        node: 0,
        replicas: vec![free()],
        directory: directory.to_owned(),
        lease_cycles: 0,
        racks: Default::default(),
        key: None,
    };
    let zookeeper = Options { tick_ms: 100, ..Options::default() };
    Settings { replica, listen: free(), bytes_max: Some(64 << 20), zookeeper }
}

/// A replica in a thread that lives as long as the test program.
fn replica(directory: &std::path::Path) -> SocketAddr {
    start(settings(directory))
}

/// A replica of these settings, as [`replica`].
fn start(settings: Settings) -> SocketAddr {
    let listen = settings.listen;
    let (started, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        crate::run(&settings, None, || started.send(()).expect("the test waits"))
            .expect("a replica");
    });
    wait.recv_timeout(Duration::from_secs(60)).expect("the replica starts");
    listen
}

fn put(key: &str, value: &'static str, existing: Existing) -> KeyOperation {
    KeyOperation::put(key, value, existing)
}

fn client(at: SocketAddr) -> KeysClient {
    KeysClient::new(vec![at], Duration::from_secs(60))
}

#[test]
fn a_replica_refuses_the_log_of_another_version_and_leaves_it_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join(journal::LOG);
    let log = b"EFLG\xff, and what another version wrote";
    std::fs::write(&path, log).expect("a log");
    let started = || panic!("the replica starts");
    let error =
        crate::run(&settings(directory.path()), None, started).expect_err("the log is refused");
    let words = format!("{}: the log", path.display());
    assert!(error.to_string().starts_with(&words), "{error}");
    assert_eq!(std::fs::read(&path).expect("the log"), log);
}

#[test]
fn keys_are_put_read_compared_listed_and_watched() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = replica(directory.path());
    let mut one = client(at);
    assert_eq!(one.get("a").expect("an answer"), None);
    let made = one.change(vec![put("a", "1", Existing::Any(true))]).expect("an answer");
    assert_eq!(made[0].stat.version, 0);
    let found = one.get("a").expect("an answer").expect("the key");
    assert_eq!((&found.value[..], found.stat.version), (&b"1"[..], 0));
    let stale = one.change(vec![put("a", "2", Existing::Version(7))]);
    assert!(matches!(stale, Err(ClientError::Refused(KeyRefusal::BadVersion))));
    let mut watching = client(at).watch("a", false).expect("an answer");
    one.change(vec![put("a", "2", Existing::Version(0))]).expect("the version is right");
    one.change(vec![put("b", "3", Existing::None)]).expect("the key is new");
    let told = loop {
        if let Some(told) = watching.next(Duration::from_secs(1)).expect("connected") {
            break told;
        }
    };
    assert_eq!((told.told, &told.key[..]), ("changed", "a"));
    let (all, more) = one.range("", "", 1).expect("an answer");
    assert_eq!((all.len(), more, &all[0].key[..]), (1, true, "a"));
    let value = || "x".repeat(900_000);
    one.limit(1).expect("a client of this host");
    one.change(vec![KeyOperation::put("long", value(), Existing::None)]).expect("there is room");
    let full = one.change(vec![KeyOperation::put("more", value(), Existing::None)]);
    assert!(matches!(full, Err(ClientError::Refused(KeyRefusal::Full))), "{full:?}");
    one.limit(2).expect("a client of this host");
    one.change(vec![KeyOperation::put("more", value(), Existing::None)]).expect("there is room");
    strangers_are_answered_and_do_no_harm(at);
    assert!(one.get("b").expect("the replica lives").is_some());
}

/// A client that sends many long requests and waits for none of them.
#[test]
fn requests_that_wait_are_bounded_by_their_bytes() {
    use crate::connection::Connection;
    use crate::replica::ReplicaInbox;
    use crate::shared::SharedKeys;
    use evenfall_keys_machine::jute::FRAME_BYTES_MAX;

    let directory = tempfile::tempdir().expect("a directory");
    let waker = || evenfall_host::Waker::new().expect("a descriptor is left");
    let (inputs, _calls) = std::sync::mpsc::sync_channel(1_024);
    let shared =
        SharedKeys::new(settings(directory.path()), ReplicaInbox::new(inputs, waker()), waker());
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let mut stream = TcpStream::connect(listener.local_addr().expect("a port")).expect("connected");
    let (accepted, peer) = listener.accept().expect("a client");
    accepted.set_nonblocking(true).expect("a socket");
    let mut connection = Connection::new(2, accepted, peer, FRAME_BYTES_MAX);
    let take = |connection: &mut Connection| {
        connection.read(&mut [0; 65_536]).expect("connected");
        connection.take(&shared, &mut Default::default(), &mut Vec::new()).expect("requests");
    };
    let hello = JuteMessage::default().int(0).long(0).int(1).long(0).buffer(&[0; 16]).bool(false);
    stream.write_all(&hello.finish()).expect("sent");
    while connection.queued() == 0 {
        take(&mut connection);
    }
    let opened = crate::replica::ReplicaAnswer::Applied(Default::default(), 1);
    connection.answer_of(0, opened, &mut Default::default()).expect("the session is opened");
    connection
        .answer(&shared.keys(), &shared, &mut Default::default(), &mut 1)
        .expect("the session is open");

    let mut ask = JuteMessage::default().int(1).int(op::SET_WATCHES).long(0).int(10_000);
    for n in 0..10_000 {
        ask = ask.text(&format!("/{n:06}"));
    }
    let ask = ask.int(0).int(0).finish();
    let sync = JuteMessage::default().int(1).int(op::SYNC).text("/").finish();
    let sender = std::thread::spawn(move || {
        stream.write_all(&sync).expect("sent");
        // The replica takes no more at some time, and then closes.
        while stream.write_all(&ask).is_ok() {}
    });
    while connection.wants_input() || connection.has_request() {
        take(&mut connection);
    }
    let (held, queued) = (connection.held_bytes(), connection.queued());
    drop(connection);
    sender.join().expect("the client ends");
    assert!((2..30).contains(&queued) && held < 4 << 20, "{queued} requests, {held} bytes");
}

fn exchange(stream: &mut TcpStream, message: JuteMessage) -> Vec<u8> {
    stream.write_all(&message.finish()).expect("sent");
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("a length");
    evenfall_keys_client::frame(length, stream, 1 << 20).expect("a message")
}

fn strangers_are_answered_and_do_no_harm(at: SocketAddr) {
    let closed = "wchp is not executed because it is not in the whitelist.\n";
    for (word, answer) in [(b"ruok", "imok"), (b"wchp", closed)] {
        let mut text = String::new();
        let mut stream = TcpStream::connect(at).expect("connected");
        stream.write_all(word).expect("sent");
        stream.read_to_string(&mut text).expect("an answer");
        assert_eq!(text, answer);
    }

    // A length beyond all limits, and a greeting that is cut.
    for bytes in [&[255; 8][..], &[0, 0, 0, 4, 1, 2, 3, 4]] {
        let mut stream = TcpStream::connect(at).expect("connected");
        stream.write_all(bytes).expect("sent");
        assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "{bytes:?} ends the connection");
    }

    let mut stream = TcpStream::connect(at).expect("connected");
    let hello = JuteMessage::default().int(0).long(0).int(1).long(0).buffer(&[0; 16]).bool(false);
    let greeted = exchange(&mut stream, hello);
    assert_eq!(Fields::new(&greeted[4..]).int(), Ok(200), "the shortest timeout");
    let number_of = |bytes: &[u8]| Fields::new(&bytes[12..]).int();
    let bad_path =
        JuteMessage::default().int(1).int(op::SET_DATA).text("a\0b").buffer(b"x").int(-1);
    assert_eq!(number_of(&exchange(&mut stream, bad_path)), Ok(error::BAD_ARGUMENTS));
    let missing = JuteMessage::default().int(2).int(op::DELETE).text("/none").int(-1);
    assert_eq!(number_of(&exchange(&mut stream, missing)), Ok(error::NO_NODE));
    let unknown = JuteMessage::default().int(3).int(77).text("/none");
    assert_eq!(number_of(&exchange(&mut stream, unknown)), Ok(error::UNIMPLEMENTED));
}
