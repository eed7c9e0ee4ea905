use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::*;
use evenfall_store_engine::{Store, StoreConfig};

/// A writer whose client is the stream, with a request under way that has spent 16 bytes.
fn connected(write_timeout: Duration) -> (tempfile::TempDir, ReplyWriter, TcpStream) {
    let dir = tempfile::tempdir().unwrap();
    let served = Arc::new(Served {
        store: Arc::new(Store::open(StoreConfig::new(dir.path())).unwrap().store),
        counters: Default::default(),
        limits: Default::default(),
        is_for_readers: false,
        users: None,
        room: Default::default(),
        is_stopping: AtomicBool::new(false),
        open: Mutex::new(BTreeMap::new()),
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let stream = listener.accept().unwrap().0;
    stream.set_write_timeout(Some(write_timeout)).unwrap();
    let (_, stream) = evenfall_store_engine::wire_socket::split_plain(stream);
    let writer = ReplyWriter::new(&served, stream, ConnectionState::new(), None);
    writer.spend(16).unwrap();
    (dir, writer, client)
}

fn encoded(reply: &StoreReply<'_>, grant: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(1, grant, &mut bytes);
    bytes
}

#[test]
fn behind_a_write_that_failed_nothing_is_written() {
    let (_dir, writer, mut client) = connected(Duration::from_millis(20));
    // A client that reads nothing, until the socket takes no more.
    let part = vec![7; 1 << 16];
    let mut sent = 0;
    loop {
        writer.put(1, 0, &StoreReply::Records { bytes: &part });
        sent += part.len() + 16;
        if writer.flush().is_err() {
            break;
        }
    }
    writer.put_failed(1, 16, &StoreError::Closing);
    assert!(writer.flush().is_err() && writer.flush_ready().is_err());
    let queue = lock(&writer.queue);
    assert!(queue.bytes.is_empty());
    assert_eq!((queue.spent, queue.requests), (0, 0));
    // The client reads again and finds the end. No frame is cut short and continued by another
    // frame.
    let mut came = Vec::new();
    client.read_to_end(&mut came).unwrap();
    assert!(came.len() < sent);
    let what = StoreError::Closing.to_string();
    let failed = encoded(&StoreReply::Failed { is_retryable: false, what: &what }, 16);
    assert!(!came.ends_with(&failed));
}

/// Puts a reply with so many of this byte. Returns its frame.
fn put_part(writer: &ReplyWriter, byte: u8, len: usize) -> Vec<u8> {
    let part = vec![byte; len];
    let reply = StoreReply::Records { bytes: &part };
    writer.put(1, 0, &reply);
    encoded(&reply, 0)
}

#[test]
fn a_thread_that_must_not_wait_leaves_replies_in_order_to_one_that_may() {
    let (_dir, writer, mut client) = connected(Duration::from_secs(30));
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut sent = Vec::new();
    // Until the socket takes no more. The cut falls inside a frame.
    while !writer.flush_ready().unwrap() {
        sent.extend(put_part(&writer, (sent.len() % 251) as u8, 100_000));
    }
    let begun = Instant::now();
    sent.extend(put_part(&writer, 1, 10));
    assert!(writer.flush_ready().unwrap(), "nobody has read");
    let last = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| writer.flush());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished(), "nobody has read");
        // The other thread waits for the socket, and holds up neither a reply nor a request.
        let last = put_part(&writer, 2, 10);
        assert!(writer.flush_ready().unwrap() && writer.requests() == 1);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        let mut came = vec![0; sent.len()];
        client.read_exact(&mut came).unwrap();
        assert!(came == sent, "replies out of order");
        waiting.join().unwrap().unwrap();
        last
    });
    assert!(!writer.flush_ready().unwrap());
    let mut came = vec![0; last.len()];
    client.read_exact(&mut came).unwrap();
    assert_eq!(came, last);
}
