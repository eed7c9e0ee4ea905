mod copies;
mod subscriptions;

use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use evenfall_store_format::Schema;

use super::*;
use evenfall_store_engine::{Client, ConnectOptions, StoreAckLevel, StoreConfig};

fn start(path: &Path) -> Server {
    let store = Arc::new(Store::open(StoreConfig::new(path)).unwrap().store);
    Server::start(store, "127.0.0.1:0".parse().unwrap()).unwrap()
}

fn records(numbers: Range<u64>) -> Vec<u8> {
    numbers.flat_map(|n| [(n as i64).to_le_bytes(), (n * 7).to_le_bytes()].concat()).collect()
}

#[test]
fn what_several_clients_append_is_read_back_equal() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let address = server.address();
    let append = |name: String, level: StoreAckLevel| {
        let mut client = Client::connect(address).unwrap();
        let file = client.create(&name, &Schema::opaque(16)).unwrap();
        for batch in 0..3_000u64 {
            client.append(&file, &records(batch * 100..batch * 100 + 100), level).unwrap();
        }
        let mut done = 0;
        while let Some(completion) = client.completion().unwrap() {
            assert_eq!(completion.first.unwrap(), done * 100);
            done += 1;
        }
        assert_eq!(done, 3_000);
    };
    std::thread::scope(|scope| {
        for n in 0..4 {
            let level = [StoreAckLevel::Memory, StoreAckLevel::Local][n % 2];
            scope.spawn(move || append(format!("s{n}"), level));
        }
    });
    let mut client = Client::connect(address).unwrap();
    assert_eq!(client.list().unwrap().len(), 4);
    for n in 0..4 {
        let file = client.open(&format!("s{n}")).unwrap();
        assert_eq!(file.numbers, 0..300_000);
        assert_eq!(client.size(&file).unwrap(), 0..300_000);
        let (numbers, bytes) = client.between(&file, 5, 250_000).unwrap();
        assert_eq!((numbers, bytes), (5..250_001, records(5..250_001)));
        assert_eq!(client.record(&file, 9).unwrap(), records(9..10));
        assert_eq!(client.latest(&file, 1 << 40).unwrap(), (299_999, records(299_999..300_000)));
        assert_eq!(client.numbers(&file, 7..9).unwrap(), records(7..9));
        assert!(client.record(&file, 300_000).is_err());
    }
    drop(client);
    assert_eq!(server.stop().malformed, 0);
}

#[test]
fn a_completion_is_waited_for_until_a_moment() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut client = Client::connect(server.address()).unwrap();
    let file = client.create("a", &Schema::opaque(16)).unwrap();
    let far = Instant::now() + Duration::from_secs(3_600);
    assert!(client.completion_until(far).unwrap().is_none(), "nothing is under way");
    let mut done = 0;
    for batch in 0..100u64 {
        client.append(&file, &records(batch * 10..batch * 10 + 10), StoreAckLevel::Local).unwrap();
        // A moment that is over: what has come is given, and nothing is waited for.
        done += u64::from(client.completion_until(Instant::now()).unwrap().is_some());
    }
    while let Some(completion) = client.completion_until(far).unwrap() {
        assert_eq!(completion.first.unwrap(), done * 10);
        done += 1;
    }
    assert_eq!(done, 100);
    drop(client);
    server.stop();
}

#[test]
fn bytes_that_are_no_protocol_are_counted_and_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut client = Client::connect(server.address()).unwrap();
    let file = client.create("a", &Schema::opaque(16)).unwrap();
    let wrong: [&[u8]; 3] = [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &[0; 64], &[255; 64]];
    for bytes in wrong {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // The end, or a reset when bytes were left unread.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty());
        client.append(&file, &records(0..1), StoreAckLevel::Memory).unwrap();
        assert!(client.completion().unwrap().unwrap().first.is_ok());
    }
    assert_eq!(client.size(&file).unwrap(), 0..3);
    drop(client);
    assert_eq!(server.stop().malformed, 3);
}

#[test]
fn behind_a_failed_append_nothing_is_taken_until_the_file_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut client = Client::connect(server.address()).unwrap();
    let file = client.create("a", &Schema::opaque(16)).unwrap();
    let sent = [records(5..9), records(1..2), records(9..10)];
    for bytes in &sent {
        client.append(&file, bytes, StoreAckLevel::Memory).unwrap();
    }
    let taken: Vec<bool> =
        (0..3).map(|_| client.completion().unwrap().unwrap().first.is_ok()).collect();
    assert_eq!(taken, [true, false, false]);
    let file = client.open("a").unwrap();
    assert_eq!(file.numbers, 0..4);
    client.append(&file, &sent[2], StoreAckLevel::Memory).unwrap();
    assert_eq!(client.completion().unwrap().unwrap().first.unwrap(), 4);
}

#[test]
fn a_request_that_does_not_fit_leaves_the_connection_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut client = Client::connect(server.address()).unwrap();
    let mut schema = Schema::opaque(16);
    for bytes in [900_000, 1_047_400, 1_048_000, 5_000_000] {
        schema.fields[1].name = "x".repeat(bytes);
        let name = format!("f{bytes}");
        assert_eq!(client.create(&name, &schema).is_ok(), bytes < 1_047_000, "{bytes}");
        assert_eq!(client.list().unwrap().len(), 1);
    }
    let file = client.create("a", &Schema::opaque(16)).unwrap();
    client.append(&file, &records(0..1), StoreAckLevel::Memory).unwrap();
    assert!(client.completion().unwrap().unwrap().first.is_ok());
    assert_eq!(client.list().unwrap().len(), 2);
    drop(client);
    assert_eq!(server.stop().malformed, 0);
}

#[test]
fn who_says_nothing_is_let_go_and_who_works_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(StoreConfig::new(dir.path())).unwrap().store);
    let idle_timeout = Duration::from_millis(500);
    let limits = ClientLimits { idle_timeout, ..ClientLimits::default() };
    let server = Server::start_with(store, "127.0.0.1:0".parse().unwrap(), limits).unwrap();
    let mut silent = TcpStream::connect(server.address()).unwrap();
    let mut idle_client = Client::connect(server.address()).unwrap();
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0, "closed without a word");
    assert!(idle_client.list().is_err());
    let mut client = Client::connect(server.address()).unwrap();
    assert!(client.list().is_ok());
    drop(client);
    assert_eq!(server.stop().timed_out, 2);
}

#[test]
fn without_a_key_nothing_leaves_loopback() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(StoreConfig::new(dir.path())).unwrap().store);
    let refused = Server::start(store, "0.0.0.0:0".parse().unwrap());
    let words = refused.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(words.contains("nothing leaves loopback"), "{words}");
    let elsewhere = "192.0.2.7:7411".parse().unwrap();
    let words = Client::connect(elsewhere).err().unwrap().to_string();
    assert!(words.contains("nothing leaves loopback"), "{words}");
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig { replica: Some(elsewhere), ..StoreConfig::new(dir.path()) };
    let words = Store::open(config).err().unwrap().to_string();
    assert!(words.contains("nothing leaves loopback"), "{words}");
}

#[test]
fn silent_clients_make_room_for_one_that_asks() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(StoreConfig::new(dir.path())).unwrap().store);
    let limits = ClientLimits { connections_max: 32, ..ClientLimits::default() };
    let server = Server::start_with(store, "127.0.0.1:0".parse().unwrap(), limits).unwrap();
    let silent: Vec<_> = (0..32).map(|_| Client::connect(server.address()).unwrap()).collect();
    let end = std::time::Instant::now() + Duration::from_secs(30);
    let mut client = loop {
        match Client::connect(server.address()) {
            Ok(client) => break client,
            Err(error) => assert!(error.to_string().contains("try later"), "{error}"),
        }
        assert!(std::time::Instant::now() < end, "nobody made room");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(client.list().is_ok());
    assert!(server.counts().made_room > 0);
    drop((silent, client));
}

#[test]
fn a_thousand_clients_are_served_at_once() {
    /// Files that this test and its neighbours open.
    const FILES: u64 = 4_096;
    if evenfall_host::procstat::raise_files().is_some_and(|most| most < FILES) {
        println!("skipped: this machine gives a process fewer than {FILES} files");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut clients: Vec<Client> =
        (0..1_000).map(|_| Client::connect(server.address()).unwrap()).collect();
    let file = clients[0].create("a", &Schema::opaque(16)).unwrap();
    clients[0].append(&file, &records(0..1), StoreAckLevel::Local).unwrap();
    assert_eq!(clients[0].completion().unwrap().unwrap().first.unwrap(), 0);
    // The first connections have rested meanwhile, and go on.
    std::thread::sleep(Duration::from_millis(1_200));
    for client in &mut clients {
        let file = client.open("a").unwrap();
        assert_eq!(client.record(&file, 0).unwrap(), records(0..1));
    }
    clients[0].append(&file, &records(1..2), StoreAckLevel::Local).unwrap();
    assert_eq!(clients[0].completion().unwrap().unwrap().first.unwrap(), 1);
    let counts = server.counts();
    assert_eq!((counts.accepted, counts.made_room, counts.turned_away), (1_000, 0, 0));
    drop(clients);
    server.stop();
}

#[test]
fn a_stranger_with_a_token_that_no_primary_has_fences_nobody() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open(StoreConfig::new(first.path())).unwrap().store;
    let entry = store.create("a", &Schema::opaque(16)).unwrap().entry.clone();
    let server = start(second.path());
    let mut client = Client::connect(server.address()).unwrap();
    for token in [0, u32::MAX] {
        let stranger = evenfall_store_engine::Entry { token, ..entry.clone() };
        assert!(client.follow("new", &stranger).is_err(), "{token}");
    }
    client.follow("a", &entry).unwrap();
    let stranger = evenfall_store_engine::Entry { token: u32::MAX, ..entry.clone() };
    let error = client.follow("a", &stranger).unwrap_err();
    assert!(error.to_string().contains("lives after"), "{error}");
    client.follow("a", &entry).unwrap();
}

#[test]
fn a_server_that_does_not_answer_is_given_up_in_words() {
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let timeout = Duration::from_millis(50);
    let options = ConnectOptions { timeout, ..ConnectOptions::default() };
    let error = Client::connect_with(deaf.local_addr().unwrap(), &options).err().unwrap();
    assert!(error.to_string().contains("has not answered within 50ms"), "{error}");
}

#[test]
fn a_second_node_says_what_it_has_synced_and_not_what_it_has_taken() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let alone = |path: &Path| {
        let config = StoreConfig { objects: None, ..StoreConfig::new(path) };
        Store::open(config).unwrap().store
    };
    let store = alone(first.path());
    let entry = store.create("a", &Schema::opaque(16)).unwrap().entry.clone();
    let copy = Arc::new(alone(second.path()));
    let server = Server::start(Arc::clone(&copy), "127.0.0.1:0".parse().unwrap()).unwrap();
    let mut client = Client::connect(server.address()).unwrap();
    let (remote, _) = client.follow("a", &entry).unwrap();
    // The disk stands still.
    let disk = copy.hold_disk();
    client.copy(&remote, 0, &records(0..100)).unwrap();
    client.flush().unwrap();
    let file = copy.file("a").unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while file.records() < 100 {
        assert!(Instant::now() < end, "never came: a copy in memory");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut again = Client::connect(server.address()).unwrap();
    assert_eq!(again.follow("a", &entry).unwrap().0.numbers, 0..0);
    drop(disk);
    assert_eq!(client.completion().unwrap().unwrap().first.unwrap(), 0);
    assert_eq!(again.follow("a", &entry).unwrap().0.numbers, 0..100);
    drop((client, again));
    server.stop();
}
