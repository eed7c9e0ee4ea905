//! SoupBinTCP, the envelope of ITCH on a connection.
//!
//! ```text
//!  0        2      3                length+2                      all big-endian
//!  +--------+------+-- ... ---------+
//!  | length | type | message        |   the length counts the type
//!  +--------+------+-- ... ---------+
//!
//!  of the server                          of the client
//!  A login accepted: session (10 bytes),  L login request
//!    next number (20 bytes of digits)     U unsequenced message
//!  J login rejected                       R heartbeat
//!  S sequenced message                    O logout
//!  U unsequenced message
//!  H heartbeat, Z end of session, + text for people
//! ```
//!
//! Sequenced messages carry no number. The first one after a login has the number that the login
//! states, and each further one has the next number.
//!
//! Source: SoupBinTCP 3.00, Nasdaq.

use crate::mold::SessionId;
use bytes::{Buf, Bytes, BytesMut};
use std::collections::BTreeMap;

/// Bytes of the length in front of a packet.
const LENGTH_BYTES: usize = 2;
/// Segments that may wait for an earlier segment. A capture host drops some in a burst, and swaps
/// the places of a few.
const SEGMENTS_MAX: usize = 256;

/// A packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SoupPacket {
    /// The server accepts a login.
    LoginAccepted {
        /// The session of the messages that follow.
        session: SessionId,
        /// The number of the next sequenced message.
        sequence: u64,
    },
    /// A message with a number.
    Sequenced(Bytes),
    /// A message without a number: of a client, an order.
    Unsequenced(Bytes),
    /// A login request or rejection, a heartbeat, an end or a text: nothing of the feed.
    Control,
}

impl SoupPacket {
    /// Reads a packet without its length. `None` for a type that the protocol does not have.
    pub fn decode(mut packet: Bytes) -> Option<Self> {
        let letter = *packet.first()?;
        packet.advance(1);
        Some(match letter {
            b'S' => Self::Sequenced(packet),
            b'U' => Self::Unsequenced(packet),
            b'A' => {
                let (session, number) = packet.split_first_chunk::<10>()?;
                let number = core::str::from_utf8(number).ok()?.trim();
                Self::LoginAccepted { session: SessionId(*session), sequence: number.parse().ok()? }
            }
            b'J' | b'H' | b'Z' | b'+' | b'L' | b'R' | b'O' => Self::Control,
            _ => return None,
        })
    }
}

/// Whether a segment holds packets from its first byte on. The last packet may be cut.
pub(crate) fn is_start_of_packets(segment: &[u8]) -> bool {
    let (mut rest, mut packets) = (segment, 0);
    while let Some((length, tail)) = rest.split_first_chunk::<LENGTH_BYTES>() {
        let length = usize::from(u16::from_be_bytes(*length));
        let is_known = tail.first().is_none_or(|letter| match letter {
            b'S' | b'U' | b'+' => length > 0,
            b'H' | b'Z' | b'R' | b'O' => length == 1,
            b'J' => length == 2,
            b'A' => length == 31,
            b'L' => length >= 47,
            _ => false,
        });
        if length == 0 || !is_known {
            return false;
        }
        packets += 1;
        rest = tail.get(length..).unwrap_or_default();
    }
    packets > 0
}

/// One direction of a connection, put together from its segments.
#[derive(Debug, Default)]
pub(crate) struct SoupStream {
    /// The number of the next byte, once a segment has come.
    next: Option<u32>,
    /// Bytes in front of the next byte.
    position: u64,
    /// Segments behind a hole, by their position.
    waiting: BTreeMap<u64, Bytes>,
    /// Bytes of a packet that is not whole yet.
    buffer: BytesMut,
    /// Whether bytes are missing, so that the next packet must be found again.
    is_lost: bool,
    /// Holes in the stream that no segment filled.
    pub holes: u64,
}

impl SoupStream {
    /// Takes a segment. Returns the packets that it completes.
    pub fn push(&mut self, sequence: u32, is_start: bool, bytes: Bytes) -> Vec<SoupPacket> {
        if is_start {
            *self = Self { holes: self.holes, ..Self::default() };
            self.next = Some(sequence.wrapping_add(1));
        }
        if bytes.is_empty() {
            return Vec::new();
        }
        let next = *self.next.get_or_insert(sequence);
        // Numbers of bytes begin anew after 4 GiB, so their distance has a sign.
        let ahead = i64::from(sequence.wrapping_sub(next) as i32);
        let Some(position) = self.position.checked_add_signed(ahead) else { return Vec::new() };
        let kept = self.waiting.entry(position).or_default();
        if kept.len() < bytes.len() {
            *kept = bytes;
        }
        let mut packets = self.take_waiting();
        while self.waiting.len() > SEGMENTS_MAX {
            packets.append(&mut self.skip_hole());
        }
        packets
    }

    /// The end of the capture: what waits behind holes is given.
    pub fn finish(&mut self) -> Vec<SoupPacket> {
        let mut packets = Vec::new();
        while !self.waiting.is_empty() {
            packets.append(&mut self.skip_hole());
        }
        packets
    }

    fn skip_hole(&mut self) -> Vec<SoupPacket> {
        if let Some((&position, _)) = self.waiting.first_key_value() {
            self.advance(position - self.position);
            self.buffer.clear();
            self.is_lost = true;
            self.holes += 1;
        }
        self.take_waiting()
    }

    fn advance(&mut self, bytes: u64) {
        self.position += bytes;
        self.next = self.next.map(|next| next.wrapping_add(bytes as u32));
    }

    fn take_waiting(&mut self) -> Vec<SoupPacket> {
        let mut packets = Vec::new();
        while let Some(entry) = self.waiting.first_entry() {
            if *entry.key() > self.position {
                break;
            }
            let (position, mut bytes) = entry.remove_entry();
            // A segment that was sent again may begin in front of what is new.
            let known = (self.position - position).min(bytes.len() as u64) as usize;
            bytes.advance(known);
            if bytes.is_empty() {
                continue;
            }
            self.advance(bytes.len() as u64);
            if self.is_lost && !is_start_of_packets(&bytes) {
                continue;
            }
            self.is_lost = false;
            self.buffer.extend_from_slice(&bytes);
            self.cut_packets(&mut packets);
        }
        packets
    }

    fn cut_packets(&mut self, packets: &mut Vec<SoupPacket>) {
        while let Some((length, rest)) = self.buffer.split_first_chunk::<LENGTH_BYTES>() {
            let length = usize::from(u16::from_be_bytes(*length));
            if rest.len() < length {
                return;
            }
            let mut packet = self.buffer.split_to(LENGTH_BYTES + length).freeze();
            packet.advance(LENGTH_BYTES);
            let Some(packet) = SoupPacket::decode(packet) else {
                self.buffer.clear();
                self.is_lost = true;
                self.holes += 1;
                return;
            };
            packets.push(packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(letter: u8, body: &[u8]) -> Vec<u8> {
        let length = (1 + body.len() as u16).to_be_bytes();
        [&length[..], &[letter], body].concat()
    }

    fn stream() -> Vec<u8> {
        let login = [&b"   session"[..], b"                   7"].concat();
        let bodies: [(u8, &[u8]); 5] =
            [(b'A', &login), (b'S', b"one"), (b'H', b""), (b'S', b"two"), (b'Z', b"")];
        bodies.iter().flat_map(|(letter, body)| packet(*letter, body)).collect()
    }

    fn sequenced(packets: &[SoupPacket]) -> Vec<&[u8]> {
        packets
            .iter()
            .filter_map(|packet| match packet {
                SoupPacket::Sequenced(bytes) => Some(&bytes[..]),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn segments_of_any_size_and_order_give_every_packet_once() {
        let bytes = stream();
        for size in 1..bytes.len() {
            for first in [1_u32, u32::MAX - 20] {
                let mut segments: Vec<(u32, &[u8])> = bytes
                    .chunks(size)
                    .enumerate()
                    .map(|(n, chunk)| (first.wrapping_add((n * size) as u32), chunk))
                    .collect();
                // Neighbours swap their places, and each segment is sent twice.
                segments[1..].chunks_mut(2).for_each(<[_]>::reverse);
                let mut stream = SoupStream::default();
                let mut packets = Vec::new();
                for (sequence, chunk) in segments.iter().chain(&segments) {
                    let chunk = Bytes::copy_from_slice(chunk);
                    packets.append(&mut stream.push(*sequence, false, chunk));
                }
                packets.append(&mut stream.finish());
                assert_eq!(sequenced(&packets), [b"one", b"two"], "size {size}");
                let session = SessionId(*b"   session");
                assert_eq!(packets[0], SoupPacket::LoginAccepted { session, sequence: 7 });
                assert_eq!((packets.len(), stream.holes), (5, 0));
            }
        }
    }

    #[test]
    fn behind_a_hole_the_next_packet_is_found_again() {
        let parts = [packet(b'S', b"one"), packet(b'S', b"two"), packet(b'S', b"three")];
        let mut stream = SoupStream::default();
        let mut packets = stream.push(1, false, parts[0].clone().into());
        let third = 1 + (parts[0].len() + parts[1].len()) as u32;
        packets.append(&mut stream.push(third, false, parts[2].clone().into()));
        packets.append(&mut stream.finish());
        assert_eq!(sequenced(&packets), [&b"one"[..], b"three"]);
        assert_eq!(stream.holes, 1);
    }

    #[test]
    fn bytes_of_other_protocols_are_no_packets() {
        for other in [&b"GET / HTTP/1.1"[..], b"", b"\0", b"\0\0", b"8=FIX.4.2\x019=5", b"SSH-2.0"]
        {
            assert!(!is_start_of_packets(other), "{other:?}");
        }
        assert!(is_start_of_packets(&stream()) && is_start_of_packets(&stream()[..9]));
    }
}
