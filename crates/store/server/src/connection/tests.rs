use std::net::TcpListener;
use std::sync::atomic::AtomicBool;

use super::*;
use evenfall_store_engine::StoreConfig;

#[test]
fn behind_a_write_that_failed_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let served = Arc::new(Served {
        store: Arc::new(Store::open(StoreConfig::new(dir.path())).unwrap().store),
        counters: Default::default(),
        idle_timeout: Duration::from_secs(1),
        is_for_readers: false,
        is_stopping: AtomicBool::new(false),
        open: Mutex::new(BTreeMap::new()),
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let stream = listener.accept().unwrap().0;
    stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    let (bytes, spent, requests) = (Vec::new(), 16, 1);
    let mut replies =
        Replies { served, stream, bytes, spent, requests, is_broken: false, idle: Idle::new() };
    // A client that reads nothing, until the socket takes no more.
    let part = vec![7; 1 << 16];
    let mut sent = 0;
    loop {
        Reply::Records { bytes: &part }.encode(1, 0, &mut replies.bytes);
        sent += replies.bytes.len();
        if replies.flush().is_err() {
            break;
        }
    }
    replies.failed(1, 16, &StoreError::Closing);
    assert!(replies.flush().is_err() && replies.bytes.is_empty());
    assert_eq!((replies.spent, replies.requests), (0, 0));
    // The client reads again and finds the end. No frame is cut short and continued by another
    // frame.
    let mut came = Vec::new();
    client.read_to_end(&mut came).unwrap();
    assert!(came.len() < sent);
    let end = Reply::Failed { is_retryable: false, what: &StoreError::Closing.to_string() };
    let mut failed = Vec::new();
    end.encode(1, 16, &mut failed);
    assert!(!came.ends_with(&failed));
}
