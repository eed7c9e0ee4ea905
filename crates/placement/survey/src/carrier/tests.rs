//! Messages between processes, and clients that attack the gRPC port of an agent: its limits on
//! connections, streams and time hold against them.

use super::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as Port, TcpStream};

/// The first bytes of a client: the preface, and an empty SETTINGS frame.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn waker() -> Waker {
    Waker::new().unwrap()
}

fn agent() -> (Carrier, SocketAddr) {
    let address = Port::bind(any_port()).unwrap().local_addr().unwrap();
    (Carrier::start(Some(address), false, waker()).unwrap(), address)
}

/// A HEADERS frame that begins a call of [`CARRY`] on this stream.
fn call(stream: u32, authority: SocketAddr) -> Vec<u8> {
    let literal = |index: u8, value: &str| {
        // Literal without indexing, the name by its number in HPACK's static table.
        [&[index, value.len() as u8][..], value.as_bytes()].concat()
    };
    let block = [
        vec![0x83, 0x86],
        literal(4, CARRY),
        literal(1, &authority.to_string()),
        // Content-Type is number 31, above the 15 that a nibble holds.
        [&[0x0f, 16, 16][..], b"application/grpc"].concat(),
    ]
    .concat();
    let head = [&(block.len() as u32).to_be_bytes()[1..], &[1, 4], &stream.to_be_bytes()].concat();
    [head, block].concat()
}

#[test]
fn message_is_carried_there_and_back() {
    let (agent, address) = agent();
    let surveyor = Carrier::start(None, false, waker()).unwrap();
    surveyor.send(address, Bytes::from_static(b"poll"));
    let take = |carrier: &Carrier| {
        loop {
            if let Some(found) = carrier.take() {
                return found;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let (from, message) = take(&agent);
    assert_eq!(&message[..], b"poll");
    agent.send(from, Bytes::from_static(b"status"));
    assert_eq!(take(&surveyor), (address, Bytes::from_static(b"status")));
}

#[test]
fn streams_of_one_connection_are_few_whatever_a_client_opens() {
    let (agent, address) = agent();
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(HELLO).unwrap();
    for stream in 0..5_000 {
        // A client that goes on after the server has hung up finds a closed connection.
        if client.write_all(&call(2 * stream + 1, address)).is_err() {
            break;
        }
    }
    // The message of another client comes after the attack. Its arrival shows that the agent goes
    // on to serve others.
    let surveyor = Carrier::start(None, false, waker()).unwrap();
    surveyor.send(address, Bytes::from_static(b"poll"));
    while agent.take().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Each open stream holds the shared state twice at most: its service and its reader.
    let holders = Arc::strong_count(&agent.shared);
    assert!(holders < 6 * STREAMS_PER_CONNECTION_MAX as usize, "{holders}");
    assert!(lock(&agent.shared.links).len() <= 2);
}

fn listen(limits: door::Limits) -> (SocketAddr, Arc<AtomicU64>, JoinHandle<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind(any_port())).unwrap();
    let address = listener.local_addr().unwrap();
    let turned_away = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&turned_away);
    let count = move || {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    let incoming = door::open(listener, limits, count);
    let work = async move {
        let mut incoming = std::pin::pin!(incoming);
        // Reads each connection to its end, as hyper does before the handshake.
        while let Some(Ok(mut guest)) = incoming.next().await {
            tokio::spawn(async move {
                tokio::io::copy(&mut guest, &mut tokio::io::sink()).await.ok();
            });
        }
    };
    (address, turned_away, std::thread::spawn(move || runtime.block_on(work)))
}

#[test]
fn connection_without_a_preface_is_closed_and_makes_room() {
    let preface_timeout = Duration::from_millis(200);
    let (address, turned_away, _) = listen(door::Limits { connections_max: 10, preface_timeout });
    let ended = |mut client: TcpStream| client.read(&mut [0]).map_or(true, |bytes| bytes == 0);
    let mut clients: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    // A client that sends only a part of the preface is closed as a silent client is.
    clients[0].write_all(&HELLO[..10]).unwrap();
    assert!(clients.into_iter().all(ended), "all are closed, by their number or by the clock");
    let before = turned_away.load(Ordering::Relaxed);
    assert!((1..=90).contains(&before), "{before}");
    // A client that has sent its preface stays connected beyond the time-out of the preface.
    let mut speaker = TcpStream::connect(address).unwrap();
    speaker.write_all(HELLO).unwrap();
    assert!(ended(TcpStream::connect(address).unwrap()));
    speaker.set_nonblocking(true).unwrap();
    let open = speaker.read(&mut [0]).unwrap_err();
    assert_eq!(open.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn agent_ends_while_strangers_are_connected() {
    let (agent, address) = agent();
    let mut spoke = TcpStream::connect(address).unwrap();
    spoke.write_all(HELLO).unwrap();
    let silent = TcpStream::connect(address).unwrap();
    drop(agent);
    drop((spoke, silent));
}
