//! Users with keys: sealed connections, rights, limits, and strangers.

#![cfg(feature = "users")]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenfall_core::UserKey;
use evenfall_core::sealed_stream::{ClientHandshake, StreamUse};
use evenfall_host::lab::Lab;
use evenfall_store_engine::protocol::{StoreRequest, VERSION};
use evenfall_store_engine::{
    Client, ConnectOptions, Entry, KnownEnd, Store, StoreAckLevel, StoreConfig, StoreError,
};
use evenfall_store_format::Schema;
use evenfall_store_server::users::{StoreUsers, UserRights};
use evenfall_store_server::{ClientLimits, Server};

/// Connections of strangers that a server has at once.
const STRANGERS_MAX: usize = 64;

fn records(numbers: Range<u64>) -> Vec<u8> {
    numbers.flat_map(|n| [(n as i64).to_le_bytes(), (n * 7).to_le_bytes()].concat()).collect()
}

fn start(path: &Path) -> Server {
    let store = Arc::new(Store::open(StoreConfig::new(path)).unwrap().store);
    Server::start(store, "127.0.0.1:0".parse().unwrap()).unwrap()
}

fn key(name: &str) -> UserKey {
    let mut secret = [7; 32];
    secret[..name.len()].copy_from_slice(name.as_bytes());
    UserKey::new(name, secret).unwrap()
}

fn prefixes(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// One who may do everything, one who reads `a`, and one who feeds `b.`.
fn users() -> Arc<StoreUsers> {
    let all = prefixes(&[""]);
    let owner = UserRights {
        read: all.clone(),
        append: all.clone(),
        create: all.clone(),
        admin: all,
        ..UserRights::default()
    };
    let reader = UserRights { read: prefixes(&["a"]), connections: 2, ..UserRights::default() };
    let feeder = UserRights {
        append: prefixes(&["b."]),
        create: prefixes(&["b."]),
        files: 2,
        bytes_per_second: Some(64 << 20),
        ..UserRights::default()
    };
    let users = [("owner", owner), ("reader", reader), ("feeder", feeder)];
    StoreUsers::new(users.map(|(name, rights)| (key(name), rights)).into()).unwrap().into()
}

fn start_at(path: &Path, listen: SocketAddr, users: &Arc<StoreUsers>) -> Server {
    let store = Arc::new(Store::open(StoreConfig::new(path)).unwrap().store);
    let limits = ClientLimits::default();
    Server::start_for_users(store, listen, limits, Arc::clone(users)).unwrap()
}

fn start_sealed(path: &Path) -> Server {
    start_at(path, "127.0.0.1:0".parse().unwrap(), &users())
}

fn connect_as(address: SocketAddr, key: &UserKey) -> Result<Client, StoreError> {
    Client::connect_with(address, &ConnectOptions::with_key(Some(key.clone())))
}

fn words<T>(result: Result<T, StoreError>) -> String {
    result.err().expect("a refusal").to_string()
}

fn append_all(client: &mut Client, name: &str, batches: Range<u64>, level: StoreAckLevel) {
    let file = client.create(name, &Schema::opaque(16)).unwrap();
    for batch in batches {
        client.append(&file, &records(batch * 100..batch * 100 + 100), level).unwrap();
    }
    while let Some(completion) = client.completion().unwrap() {
        completion.first.unwrap();
    }
}

#[test]
fn what_a_user_appends_over_a_sealed_connection_is_read_back_equal() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_sealed(dir.path());
    let mut owner = connect_as(server.address(), &key("owner")).unwrap();
    append_all(&mut owner, "a", 0..3_000, StoreAckLevel::Local);
    append_all(&mut owner, "c", 0..10, StoreAckLevel::Memory);
    let mut reader = connect_as(server.address(), &key("reader")).unwrap();
    let file = reader.open("a").unwrap();
    assert_eq!(reader.numbers(&file, 0..300_000).unwrap(), records(0..300_000));
    assert_eq!(reader.record(&file, 9).unwrap(), records(9..10));
    let names: Vec<_> = reader.list().unwrap().into_iter().map(|file| file.name).collect();
    assert_eq!(names, ["a"], "a list shows what the user may read");
    // Pushed records, while the same connection asks for others.
    let pushed = reader.subscribe_to(&file, 299_900).unwrap();
    let soon = || Instant::now() + Duration::from_secs(20);
    let batch = reader.next_batch(pushed, soon()).unwrap().expect("old records");
    assert_eq!(batch.records, records(299_900..300_000));
    assert!(reader.next_batch(pushed, Instant::now()).unwrap().is_none());
    append_all(&mut owner, "a", 3_000..3_001, StoreAckLevel::Memory);
    let batch = reader.next_batch(pushed, soon()).unwrap().expect("new records");
    assert_eq!(batch.records, records(300_000..300_100));
    assert_eq!(reader.size(&file).unwrap(), 0..300_100);
    drop((owner, reader));
    let counts = server.stop();
    assert_eq!((counts.malformed, counts.refused_handshakes, counts.refused_rights), (0, 0, 0));
}

#[test]
fn a_client_without_a_key_with_a_wrong_one_or_with_an_unknown_name_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_sealed(dir.path());
    let plain = words(Client::connect(server.address()));
    assert!(plain.contains("serves users with keys only") && plain.contains("--key"), "{plain}");
    for wrong in [UserKey::new("reader", [9; 32]).unwrap(), key("nobody")] {
        let error = words(connect_as(server.address(), &wrong));
        let name = wrong.name();
        assert!(error.contains(&format!("not have this key of the user {name}")), "{error}");
    }
    assert!(connect_as(server.address(), &key("reader")).is_ok());
    let until = Instant::now() + Duration::from_secs(20);
    while server.counts().refused_handshakes < 3 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.stop().refused_handshakes, 3);
}

#[test]
fn a_client_with_a_key_hears_that_a_server_has_no_users() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let error = words(connect_as(server.address(), &key("reader")));
    assert!(error.contains("the server has no users"), "{error}");
    assert!(Client::connect(server.address()).is_ok());
    // A build without users closes the connection without a word.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = deaf.local_addr().unwrap();
    let closed = std::thread::spawn(move || deaf.accept().unwrap().0.read(&mut [0; 64]).unwrap());
    let error = words(connect_as(address, &key("reader")));
    assert!(error.contains("closed the connection in the place of an answer"), "{error}");
    assert!(closed.join().unwrap() > 0);
}

#[test]
fn a_user_without_a_right_is_told_which_for_what_and_who_grants_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_sealed(dir.path());
    let mut owner = connect_as(server.address(), &key("owner")).unwrap();
    for name in ["a", "b.1", "c"] {
        append_all(&mut owner, name, 0..1, StoreAckLevel::Memory);
    }
    let mut reader = connect_as(server.address(), &key("reader")).unwrap();
    let mut feeder = connect_as(server.address(), &key("feeder")).unwrap();
    let a = reader.open("a").unwrap();
    let b = feeder.open("b.1").unwrap();
    let entry = entry_of_a();
    let missing = KnownEnd { name: "c".into(), end: 0 };
    reader.append(&a, &records(0..1), StoreAckLevel::Memory).unwrap();
    let appended = reader.completion().unwrap().unwrap().first;
    let refusals = [
        (words(appended), "reader has no right to append a"),
        (words(reader.create("a2", &Schema::opaque(16))), "reader has no right to create a2"),
        (words(reader.open("c")), "reader has no right to read c"),
        (words(reader.open("never")), "reader has no right to read never"),
        (words(reader.wait_past(&[missing], Instant::now())), "reader has no right to read c"),
        (words(reader.follow("a", &entry)), "reader has no right to admin a"),
        (words(feeder.numbers(&b, 0..1)), "feeder has no right to read b.1"),
        (words(feeder.create("a", &Schema::opaque(16))), "feeder has no right to read a"),
    ];
    for (error, wanted) in &refusals {
        assert!(error.contains(wanted) && error.contains("who operates this server"), "{error}");
    }
    // A refused request leaves the connection as it was.
    assert_eq!(reader.size(&a).unwrap(), 0..100);
    feeder.append(&b, &records(100..101), StoreAckLevel::Memory).unwrap();
    assert_eq!(feeder.completion().unwrap().unwrap().first.unwrap(), 100);
    drop((owner, reader, feeder));
    assert_eq!(server.stop().refused_rights, 7);
}

/// The entry of a file `a`, with which a first node would ask for a copy.
fn entry_of_a() -> Entry {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreConfig::new(dir.path())).unwrap().store;
    let entry = store.create("a", &Schema::opaque(16)).unwrap().entry.clone();
    store.close().unwrap();
    entry
}

#[test]
fn limits_of_connections_and_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_sealed(dir.path());
    let both: Vec<_> =
        (0..2).map(|_| connect_as(server.address(), &key("reader")).unwrap()).collect();
    let error = connect_as(server.address(), &key("reader")).err().unwrap();
    assert!(error.to_string().contains("reader has 2 connections"), "{error}");
    assert!(error.is_retryable());
    drop(both);
    let until = Instant::now() + Duration::from_secs(20);
    while connect_as(server.address(), &key("reader")).is_err() {
        assert!(Instant::now() < until, "the places of closed connections are free again");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut feeder = connect_as(server.address(), &key("feeder")).unwrap();
    for name in ["b.1", "b.2", "b.1"] {
        feeder.create(name, &Schema::opaque(16)).unwrap();
    }
    let error = words(feeder.create("b.3", &Schema::opaque(16)));
    assert!(error.contains("feeder has 2 files, and its limit is 2"), "{error}");
    assert!(feeder.open("b.2").is_ok());
}

#[test]
fn garbage_and_half_a_handshake_end_and_users_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_sealed(dir.path());
    let mut owner = connect_as(server.address(), &key("owner")).unwrap();
    append_all(&mut owner, "a", 0..1, StoreAckLevel::Memory);
    let random = [3; 32];
    let known = key("owner");
    let cipher = evenfall_core::Cipher::new_aes;
    let client = ClientHandshake::new(StreamUse::Store, b"owner", known.secret(), &random, cipher);
    let mut version = client.hello().to_vec();
    version[4] = 9;
    let mut begun = client.hello().to_vec();
    begun.extend_from_slice(&[9; 4_000]);
    let mut hello = Vec::new();
    StoreRequest::Hello { version: VERSION }.encode(1, &mut hello);
    let garbage: [&[u8]; 6] =
        [b"GET / HTTP/1.1\r\n\r\n", &[0; 64], &[255; 64], &version, &begun, &hello];
    for bytes in garbage {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(bytes).unwrap();
        // An answer, the end, or a reset when bytes were left unread; never a hang.
        let _ = stream.read_to_end(&mut Vec::new());
        let file = owner.open("a").unwrap();
        assert_eq!(owner.size(&file).unwrap(), 0..100);
    }
    // Who says nothing, and who stops in the middle of a hello, is let go after five seconds.
    let silent = TcpStream::connect(server.address()).unwrap();
    let mut half = TcpStream::connect(server.address()).unwrap();
    half.write_all(&client.hello()[..20]).unwrap();
    for mut stream in [silent, half] {
        assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
    }
    let until = Instant::now() + Duration::from_secs(20);
    while server.counts().timed_out < 2 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(owner);
    let counts = server.stop();
    assert_eq!((counts.refused_handshakes, counts.timed_out), (6, 2), "{counts:?}");
}

#[test]
fn strangers_take_no_place_of_a_user() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_sealed(dir.path());
    let mut owner = connect_as(server.address(), &key("owner")).unwrap();
    append_all(&mut owner, "a", 0..1, StoreAckLevel::Memory);
    let strangers: Vec<_> = (0..2 * STRANGERS_MAX + 10)
        .map(|_| TcpStream::connect(server.address()).unwrap())
        .collect();
    let mut later = connect_as(server.address(), &key("owner")).unwrap();
    assert_eq!(later.list().unwrap().len(), 1);
    assert_eq!(owner.list().unwrap().len(), 1, "the idle user was not closed");
    assert!(server.counts().made_room > 0 && server.counts().turned_away == 0);
    drop(strangers);
}

#[test]
fn a_user_who_is_taken_out_loses_the_connection_and_finds_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let all = users();
    let server = start_at(dir.path(), "127.0.0.1:0".parse().unwrap(), &all);
    let mut owner = connect_as(server.address(), &key("owner")).unwrap();
    let mut reader = connect_as(server.address(), &key("reader")).unwrap();
    let rights = |name: &str| (key(name), all.find(name).unwrap().user_rights().clone());
    assert!(all.replace(vec![rights("owner"), rights("feeder")]).unwrap());
    assert_eq!(server.close_revoked(), 1);
    assert!(reader.list().is_err());
    assert!(connect_as(server.address(), &key("reader")).is_err());
    assert!(owner.list().is_ok());
}

#[test]
fn a_second_node_takes_a_first_node_as_a_user() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = start_sealed(second.path());
    let config = |key: Option<UserKey>| StoreConfig {
        replica: Some(server.address()),
        replica_key: key,
        objects: None,
        ..StoreConfig::new(first.path())
    };
    let store = Store::open(config(Some(key("owner")))).unwrap().store;
    let file = store.create("a", &Schema::opaque(16)).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while let Err(error) = store.append(&file, &records(0..100), StoreAckLevel::Replica) {
        assert!(error.is_retryable() && Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut reader = connect_as(server.address(), &key("reader")).unwrap();
    let copy = reader.open("a").unwrap();
    assert_eq!(reader.numbers(&copy, 0..100).unwrap(), records(0..100));
    store.close().unwrap();
    // Without its key the first node is refused, and says why.
    let store = Store::open(config(None)).unwrap().store;
    let file = store.file("a").unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let error =
            words(store.append(&file, &records(100..101), StoreAckLevel::Replica).map(drop));
        if error.contains("serves users with keys only") {
            break;
        }
        assert!(Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_sealed_store_is_used_from_another_host() {
    let lab = match Lab::new(2) {
        Ok(lab) => lab,
        Err(error) if error.to_string().contains("need root") => return println!("not root"),
        Err(error) => panic!("{error}"),
    };
    let dir = tempfile::tempdir().unwrap();
    let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7410));
    let all = users();
    let server = lab.within(0, || start_at(dir.path(), listen, &all)).unwrap();
    let address = SocketAddr::from((lab.address(0), 7410));
    let used = lab.within(1, || {
        let mut owner = connect_as(address, &key("owner")).unwrap();
        append_all(&mut owner, "a", 0..1_000, StoreAckLevel::Local);
        let mut reader = connect_as(address, &key("reader")).unwrap();
        let file = reader.open("a").unwrap();
        let plain = words(Client::connect(address));
        (reader.numbers(&file, 0..100_000).unwrap(), plain)
    });
    let (read, plain) = used.unwrap();
    assert!(read == records(0..100_000));
    assert!(plain.contains("nothing leaves loopback") && plain.contains("--key"), "{plain}");
    // The server wakes its own thread, which is inside of the host.
    lab.within(0, || server.stop()).unwrap();
}
