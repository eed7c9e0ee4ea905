//! Copies at a second node when either node has lost records.

use std::net::SocketAddr;

use evenfall_store_engine::{RecordSource as _, StoreFile};

use super::*;

/// Flips a bit of this record in the journals of a store.
fn flip_record(directory: &Path, number: u64) {
    let record = records(number..number + 1);
    for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()) {
        if !entry.file_name().to_string_lossy().starts_with("J-") {
            continue;
        }
        let mut bytes = std::fs::read(entry.path()).unwrap();
        let places = bytes.windows(record.len()).enumerate();
        let places: Vec<usize> =
            places.filter(|(_, there)| *there == record).map(|(at, _)| at).collect();
        places.into_iter().for_each(|at| bytes[at] ^= 1);
        std::fs::write(entry.path(), bytes).unwrap();
    }
}

fn open(path: &Path, replica: Option<SocketAddr>) -> Arc<Store> {
    let config = StoreConfig { objects: None, replica, ..StoreConfig::new(path) };
    Arc::new(Store::open(config).unwrap().store)
}

fn serve(store: &Arc<Store>, listen: &str) -> Server {
    Server::start(Arc::clone(store), listen.parse().unwrap()).unwrap()
}

/// Appends at `replica`, again and again while the second node is away. Returns the error of an
/// append that it refuses.
fn append_replica(store: &Store, file: &StoreFile, numbers: Range<u64>) -> Option<String> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match store.append(file, &records(numbers.clone()), StoreAckLevel::Replica) {
            Ok(_) => return None,
            Err(error) if error.is_retryable() && error.to_string().contains("is away") => {}
            Err(error) => return Some(error.to_string()),
        }
        assert!(Instant::now() < end, "the second node never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_copy_ends_in_front_of_lost_records_and_other_files_are_copied() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(first.path(), None);
    let file = store.create("a", &Schema::opaque(16)).unwrap();
    for begin in [0, 10, 20] {
        store.append(&file, &records(begin..begin + 10), StoreAckLevel::Local).unwrap();
    }
    drop((file, store));
    flip_record(first.path(), 15);
    let copies = open(second.path(), None);
    let server = serve(&copies, "127.0.0.1:0");
    let store = open(first.path(), Some(server.address()));
    let file = store.file("a").unwrap();
    let refused = append_replica(&store, &file, 30..31).expect("a refusal");
    assert!(refused.contains("records 10 to 19 are lost"), "{refused}");
    let other = store.create("b", &Schema::opaque(16)).unwrap();
    assert_eq!(append_replica(&store, &other, 0..10), None);
    assert!(copies.numbers("a", 0..10).unwrap() == records(0..10));
    assert_eq!(copies.file("a").unwrap().records(), 10);
    assert!(copies.numbers("b", 0..10).unwrap() == records(0..10));
    drop((file, other, store));
    server.stop();
}

#[test]
fn a_copy_that_has_lost_records_goes_on_behind_them_and_names_them() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let copies = open(second.path(), None);
    let server = serve(&copies, "127.0.0.1:0");
    let address = server.address();
    let store = open(first.path(), Some(address));
    let file = store.create("a", &Schema::opaque(16)).unwrap();
    // Each append waits for the copy of the one before, so that each is a commit there.
    for begin in [0, 10, 20] {
        assert_eq!(append_replica(&store, &file, begin..begin + 10), None);
    }
    server.stop();
    drop(copies);
    flip_record(second.path(), 15);
    let copies = open(second.path(), None);
    let server = serve(&copies, &address.to_string());
    // An append that is under way while the second node is away may fail.
    assert_eq!(append_replica(&store, &file, 30..40), None);
    assert!(copies.numbers("a", 0..10).unwrap() == records(0..10));
    assert!(copies.numbers("a", 20..40).unwrap() == records(20..40));
    let lost = copies.numbers("a", 5..25).unwrap_err().to_string();
    assert!(lost.contains("records 10 to 19 are lost"), "{lost}");
    drop((file, store));
    server.stop();
}
