//! The MoldUDP64 client and server of the crate `moldudp`, an independent implementation of the
//! same specification. `check.sh` runs the client behind evenfall and the server in front of
//! evenfall, and compares the contents.
//!
//! - `moldudp-peer take GROUP:PORT SERVER:PORT COUNT OUT.itch` listens until it has COUNT messages,
//!   asks again for what is missing, and writes them behind 2-byte lengths;
//! - `moldudp-peer hear ADDRESS:PORT SERVER:PORT COUNT OUT.itch` does the same at an address of
//!   this host, in place of a group;
//! - `moldudp-peer give IN.itch GROUP:PORT SERVER:PORT` sends them, leaves out every 20th packet,
//!   and serves requests.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use moldudp::{MoldUDP64, MoldUDP64Server, Packet, RetransmissionPacket, RetransmissionRequest};

/// Silence after which the first missing message is requested again. The crate's client requests it
/// only once.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// Messages of a packet: below its payload of 1,452 bytes, because the crate's server (0.1.1) gives
/// all pieces of a longer batch the same sequence number.
const BATCH: usize = 20;

fn take(at: SocketAddrV4, server: SocketAddr, count: u64) -> Result<Vec<u8>, Box<dyn Error>> {
    let client = MoldUDP64::builder()
        .multicast_addr(at)
        .interface_addr(Ipv4Addr::LOCALHOST)
        .rerequest_server_addrs(vec![server])
        .expected_seq_num(1)
        .build();
    let (datagrams, ask) = if at.ip().is_multicast() {
        client.start()?
    } else {
        let own = UdpSocket::bind((*at.ip(), 0))?;
        client.start_with_sockets(UdpSocket::bind(at)?, own, &[server])?
    };
    let mut messages = BTreeMap::new();
    let mut session = None;
    while (messages.len() as u64) < count {
        if let Ok(datagram) = datagrams.recv_timeout(ASK_AGAIN) {
            let packet = Packet::new(datagram.bytes());
            session = Some(*packet.session_ident_raw());
            for (sequence, message) in (packet.seq_num()..).zip(packet.iter()) {
                messages.insert(sequence, message.data().to_vec());
            }
        } else if let (Some(session), Some(first)) =
            (session, (1..=count).find(|n| !messages.contains_key(n)))
        {
            let request = RetransmissionPacket::new(session, first, BATCH as u16);
            ask.try_send(RetransmissionRequest::new(request)).ok();
        }
    }
    let mut out = Vec::new();
    for message in messages.into_values() {
        out.extend_from_slice(&(message.len() as u16).to_be_bytes());
        out.extend_from_slice(&message);
    }
    Ok(out)
}

fn give(file: &[u8], group: SocketAddrV4, server: SocketAddr) -> Result<(), Box<dyn Error>> {
    let mut messages = Vec::new();
    let mut rest = file;
    while let Some((length, tail)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length));
        let Some((message, tail)) = tail.split_at_checked(length).filter(|_| length > 0) else {
            break;
        };
        messages.push(message.to_vec());
        rest = tail;
    }
    let handle = MoldUDP64Server::builder()
        .multicast_addr(group)
        .interface_addr(Ipv4Addr::LOCALHOST)
        .rerequest_bind_addr(server)
        .session("FOREIGN".to_owned())
        .build()
        .start()?;
    for (number, batch) in messages.chunks(BATCH).enumerate() {
        if number % 20 == 19 {
            handle.send_dropped(batch.to_vec());
        } else {
            handle.send(batch.to_vec());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    handle.shutdown();
    // The server announces the end once a second for five seconds, and serves requests meanwhile.
    std::thread::sleep(Duration::from_secs(5));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["take" | "hear", at, server, count, out] => {
            let bytes = take(at.parse()?, server.parse()?, count.parse()?)?;
            Ok(std::fs::write(out, bytes)?)
        }
        ["give", file, group, server] => {
            give(&std::fs::read(file)?, group.parse()?, server.parse()?)
        }
        _ => {
            Err("take|hear ADDRESS:PORT SERVER:PORT COUNT OUT | give IN GROUP:PORT SERVER:PORT"
                .into())
        }
    }
}
