//! A store that fails under a statement: its server is lost, or its bytes are damaged.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use evenfall_feed_formats::codec::ITCH;
use evenfall_feed_formats::itch::AddOrder;
use evenfall_store_engine::{Store, StoreAckLevel, StoreConfig};
use evenfall_store_format::{FieldType, Schema};
use evenfall_store_recording::RecordingWriter;
use evenfall_store_server::Server;

use crate::pg::PgClient;
use crate::served::Served;

/// Records of the file, of 16 bytes, and messages of the recording. A reader asks for a mebibyte of
/// the file at once, and for 256 KiB of the messages.
const RECORDS: u64 = 400_000;
const MESSAGES: u64 = 40_000;

/// A file `ticks` and a recording `day`, each of several reads.
fn fill(store: &Arc<Store>) {
    let schema = Schema::of(&[("time", FieldType::Time), ("value", FieldType::U64)]);
    let file = store.create("ticks", &schema).unwrap();
    let record = |number: u64| [number.to_le_bytes(), number.to_le_bytes()].concat();
    let records: Vec<u8> = (0..RECORDS).flat_map(record).collect();
    store.append(&file, &records, StoreAckLevel::Local).unwrap();
    let mut writer = RecordingWriter::new(store, "day", 1, StoreAckLevel::Local).unwrap();
    for number in 0..MESSAGES {
        let add = AddOrder { order_reference: number + 1, shares: 1, ..AddOrder::default() };
        writer.push(0, number, number as i64, ITCH, &add.encode()).unwrap();
    }
    writer.flush().unwrap();
}

/// A way to a server that ends when so many bytes of the server have passed.
struct Way {
    address: SocketAddr,
    passing: Arc<Passing>,
}

/// What passes on all connections of a way.
struct Passing {
    /// Bytes of the server that still pass.
    left: AtomicU64,
    sockets: Mutex<Vec<TcpStream>>,
}

impl Way {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let passing =
            Arc::new(Passing { left: AtomicU64::new(u64::MAX), sockets: Mutex::default() });
        let all = Arc::clone(&passing);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                // A server that is lost takes no connection.
                if all.left.load(Ordering::SeqCst) > 0 {
                    all.connect(client, TcpStream::connect(server).unwrap());
                }
            }
        });
        Self { address, passing }
    }

    /// The server is lost after so many bytes, or there again for [`u64::MAX`] bytes.
    fn end_after(&self, bytes: u64) {
        self.passing.left.store(bytes, Ordering::SeqCst);
    }
}

impl Passing {
    fn connect(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        let copy = |socket: &TcpStream| socket.try_clone().unwrap();
        self.sockets.lock().unwrap().extend([copy(&client), copy(&server)]);
        let (mut asking, mut asked) = (copy(&client), copy(&server));
        std::thread::spawn(move || std::io::copy(&mut asking, &mut asked));
        let all = Arc::clone(self);
        std::thread::spawn(move || all.pass(server, client));
    }

    /// Passes bytes of the server on. All connections end when no bytes are left.
    fn pass(&self, mut server: TcpStream, mut client: TcpStream) {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(read) = server.read(&mut bytes) {
            let take = |left: u64| Some(left.saturating_sub(read as u64));
            let before = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).unwrap();
            if before <= read as u64 {
                for socket in self.sockets.lock().unwrap().drain(..) {
                    let _ = socket.shutdown(Shutdown::Both);
                }
                return;
            }
            if read == 0 || client.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    }
}

#[test]
fn a_server_that_is_lost_in_the_middle_of_a_scan_is_named_with_table_and_rows() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(StoreConfig::new(dir.path())).unwrap().store);
    fill(&store);
    let server = Server::start_for_readers(store, "127.0.0.1:0".parse().unwrap()).unwrap();
    let way = Way::to(server.address());
    let place = format!("tcp://{}", way.address);
    let served = Served::start(Path::new(&place), &["--threads", "1"]);
    let mut client = PgClient::connect(&served.pg, "day").unwrap();
    for (sql, bytes, expected) in [
        ("SELECT sum(value) FROM ticks", 3 << 20, "table ticks, rows 1 to 400000, after "),
        (
            "SELECT sum(shares) FROM messages",
            1 << 20,
            "table day.messages, rows 1 to 40000, after ",
        ),
        (
            "SELECT count(*) FROM trades",
            1 << 20,
            "table day.trades, messages 1 to 40000, after 0 rows",
        ),
    ] {
        let whole = client.query(sql).unwrap();
        assert_eq!(whole.len(), 1);
        way.end_after(bytes);
        let lost = client.query(sql).unwrap_err();
        assert!(lost.contains("58030") && lost.contains(expected), "{sql}: {lost}");
        assert!(lost.contains("connection to the store"), "{sql}: {lost}");
        // The statement after the server is there again is answered.
        way.end_after(u64::MAX);
        assert_eq!(client.query(sql), Ok(whole), "{sql}");
    }
    // A server that is lost before a statement begins.
    way.end_after(1);
    let mut program = Command::new(env!("CARGO_BIN_EXE_evenfall-query"));
    let output = program.args([&place, "SELECT count(*) FROM ticks"]).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("connection to the store"), "{said}");
}

#[test]
fn damage_is_named_with_table_and_rows_and_other_tables_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(StoreConfig::new(dir.path())).unwrap().store);
    fill(&store);
    Arc::try_unwrap(store).ok().unwrap().close().unwrap();
    // The first chunk of the file that was created first, in the middle.
    let mut chunks: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("D-"))
        .collect();
    chunks.sort();
    let mut bytes = std::fs::read(&chunks[0]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    std::fs::write(&chunks[0], bytes).unwrap();
    let ask = |sql: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_evenfall-query"));
        program.arg(dir.path()).args([sql, "--format", "csv", "--threads", "1"]).output().unwrap()
    };
    let damaged = ask("SELECT sum(value) FROM ticks");
    let said = String::from_utf8_lossy(&damaged.stderr).into_owned();
    assert!(!damaged.status.success(), "{damaged:?}");
    assert!(said.contains("table ticks") && said.contains("damaged"), "{said}");
    let other = ask("SELECT count(shares) AS n FROM day.messages");
    assert_eq!(String::from_utf8_lossy(&other.stdout), "n\n40000\n", "{other:?}");
}
