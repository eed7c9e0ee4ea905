//! Reads in a network in which some connections are slow, as those that switches hash to a busy
//! path. Servers of the test give each connection a rate of its own.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use evenfall_files_service::{Fetched, FilesClient, ReadLimits};

use super::cluster::PATIENCE;
use super::processes::MEGABYTE;

/// Bytes a second of a connection: by its number, counted over all dataservers, and by the bytes
/// that it has sent.
type RateOf = fn(connection: usize, sent: u64) -> u64;

/// Time between two pieces of a connection.
const STEP: Duration = Duration::from_millis(5);
/// Most time for which a piece has bytes. A test that was stopped for a second must not send the
/// bytes of a second at once.
const STEP_MAX: Duration = Duration::from_millis(20);

/// A nameserver and dataservers that know one file.
#[derive(Clone)]
struct SlowNetwork {
    length: u64,
    rate_of: RateOf,
    data: Vec<SocketAddr>,
    connections: Arc<AtomicUsize>,
}

fn byte_at(place: u64) -> u8 {
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The number behind a name in the line of a request.
fn number_in(line: &str, name: &str) -> u64 {
    let (_, rest) = line.split_once(name).unwrap_or_else(|| panic!("{name} in {line}"));
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().expect("a number")
}

impl SlowNetwork {
    /// Starts the servers, and returns the address of the nameserver. Their threads end with the
    /// program of tests.
    fn start(length: u64, copies: u8, rate_of: RateOf) -> SocketAddr {
        static NETWORKS: AtomicU8 = AtomicU8::new(1);
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let listen =
            |host| TcpListener::bind((Ipv4Addr::new(127, 79, number, host), 0)).expect("a port");
        let names = listen(1);
        let data: Vec<TcpListener> = (0..copies).map(|copy| listen(copy + 2)).collect();
        let addresses = data.iter().map(|one| one.local_addr().expect("an address")).collect();
        let connections = Arc::default();
        let network = Self { length, rate_of, data: addresses, connections };
        let at = names.local_addr().expect("an address");
        for listener in [names].into_iter().chain(data) {
            let network = network.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (network, is_names) =
                        (network.clone(), listener.local_addr().ok() == Some(at));
                    std::thread::spawn(move || network.answer(stream, is_names));
                }
            });
        }
        at
    }

    fn answer(&self, stream: TcpStream, is_names: bool) {
        let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
        let Some(line) = lines.next() else { return };
        // The head of a request ends with an empty line.
        lines.take_while(|line| !line.is_empty()).for_each(drop);
        let ended = match is_names {
            true => self.answer_name(&stream, &line),
            false => self.send_bytes(&stream, &line),
        };
        // A reader that leaves a connection closes it.
        drop(ended);
    }

    fn answer_name(&self, mut stream: &TcpStream, line: &str) -> std::io::Result<()> {
        let unknown = self.data.iter().find(|one| !line.contains(&one.ip().to_string()));
        let (status, body) = match unknown {
            _ if line.contains("op=GETFILESTATUS") => {
                let file = format!("\"type\":\"FILE\",\"length\":{},\"fileId\":7", self.length);
                ("200 OK", format!("{{\"FileStatus\":{{{file}}}}}"))
            }
            Some(data) => {
                let url = format!("http://{data}/webhdfs/v1/a?op=OPEN&file=7&end=0");
                ("200 OK", format!("{{\"Location\":\"{url}\"}}"))
            }
            None => {
                let words = "\"exception\":\"IOException\",\"message\":\"no further copy\"";
                ("403 Forbidden", format!("{{\"RemoteException\":{{{words}}}}}"))
            }
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close");
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes())
    }

    fn send_bytes(&self, mut stream: &TcpStream, line: &str) -> std::io::Result<()> {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        let (offset, length) = (number_in(line, "&offset="), number_in(line, "&length="));
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close");
        stream.write_all(format!("{head}\r\n\r\n").as_bytes())?;
        let (mut sent, mut at) = (0, Instant::now());
        while sent < length {
            std::thread::sleep(STEP);
            let passed = at.elapsed().min(STEP_MAX);
            at = Instant::now();
            let rate = (self.rate_of)(number, sent) as f64;
            let len = ((passed.as_secs_f64() * rate) as u64).clamp(1, length - sent);
            let piece: Vec<u8> = (offset + sent..offset + sent + len).map(byte_at).collect();
            stream.write_all(&piece)?;
            sent += len;
        }
        Ok(())
    }
}

/// Reads the file over so many connections, and compares all of its bytes.
fn fetch_all(names: SocketAddr, length: u64, connections: usize) -> Fetched {
    let limits = ReadLimits { connections, ..ReadLimits::default() };
    let client = FilesClient::new(&names.to_string(), "ann", PATIENCE).within_limits(limits);
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("fetched");
    let file = File::create(&path).expect("a file");
    let fetched = client.fetch("/a", &file, &mut |_| {}, &mut |_| {}).expect("servers answer");
    let bytes = std::fs::read(path).expect("a file");
    assert_eq!(bytes.len() as u64, length);
    assert!((0..length).zip(&bytes).all(|(place, byte)| byte_at(place) == *byte), "other bytes");
    assert_eq!(fetched.from.values().sum::<u64>(), length, "{fetched:?}");
    fetched
}

#[test]
fn a_connection_that_becomes_slow_goes_on_over_another_port() {
    let length = 9 * MEGABYTE as u64;
    // The path of the first connection becomes busy after 3 MB.
    let names = SlowNetwork::start(length, 1, |connection, sent| match connection {
        0 if sent > 3_000_000 => 400_000,
        _ => 8_000_000,
    });
    let fetched = fetch_all(names, length, 1);
    assert!(fetched.repathed >= 1 && fetched.tried >= fetched.repathed, "{fetched:?}");
}

#[test]
fn a_connection_that_is_slow_beside_another_tries_other_ports() {
    let length = 24 * MEGABYTE as u64;
    let names = SlowNetwork::start(length, 2, |connection, _| match connection {
        0 => 500_000,
        _ => 8_000_000,
    });
    let fetched = fetch_all(names, length, 2);
    assert!(fetched.repathed >= 1, "{fetched:?}");
    assert_eq!(fetched.from.len(), 2, "{fetched:?}");
}

#[test]
fn the_last_bytes_of_a_slow_connection_are_read_a_second_time() {
    let length = 4 * MEGABYTE as u64;
    let names = SlowNetwork::start(length, 2, |connection, sent| match connection {
        0 if sent > 400_000 => 20_000,
        0 => 1_000_000,
        _ => 4_000_000,
    });
    let fetched = fetch_all(names, length, 2);
    assert!(fetched.hedged >= 1, "{fetched:?}");
}
