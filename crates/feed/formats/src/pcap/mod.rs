//! Captures as feeds: the UDP payloads of pcap and pcapng files, with their capture times.
//!
//! A venue's multicast is recorded as packets, so a capture is the most honest input: real sizes,
//! real bursts, both redundant sides. **Each UDP datagram is one message** of any protocol, and its
//! payload is the message's bytes. A capture of both sides of a redundant feed (A and B) gives
//! both, as different channels. [`crate::arbiter`] chooses the first copy, for which it needs the
//! feed's own sequence numbers.
//!
//! The channel of a datagram is its destination address and port. The sender does not count,
//! because order must hold when a venue fails over to another publisher of the same group.
//!
//! The format of the datagrams is found once, by the structure of the first [`LOOK_DATAGRAMS`]. If
//! all of these datagrams belong to a single format, the capture has this format.
//!
//! A packet that is not a whole UDP datagram is skipped, and [`Skipped`] counts it by reason. A
//! file whose structure is broken gives an error at the byte where it breaks.

mod classic;
mod ng;
mod packet;

#[cfg(test)]
mod tests;

use crate::codec::{self, Format};
use crate::error::FeedError;
use crate::input::Input;
use crate::source::{Message, Source};
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use packet::Skip;
use std::collections::VecDeque;
use std::io::Read;

/// Datagrams by which a capture's format is recognised. By chance, four packets in a thousand look
/// like a packet of some other format. Sixteen in a row do not.
const LOOK_DATAGRAMS: usize = 16;

/// Byte order of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn array<const N: usize>(self, bytes: &[u8], at: usize) -> [u8; N] {
        let mut raw = [0; N];
        raw.copy_from_slice(&bytes[at..at + N]);
        if self == Self::Big {
            raw.reverse();
        }
        raw
    }

    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        u16::from_le_bytes(self.array(bytes, at))
    }

    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(self.array(bytes, at))
    }

    fn u64(self, bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(self.array(bytes, at))
    }
}

/// A captured frame of any protocol.
#[derive(Debug)]
struct Captured {
    time_ns: u64,
    link_type: u16,
    /// Whether the capture kept less than was on the wire.
    cut: bool,
    bytes: Bytes,
}

/// A UDP datagram of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// When it was captured, nanoseconds since 1970.
    pub time_ns: u64,
    /// Sender of the datagram.
    pub source: SocketAddr,
    /// Destination of the datagram.
    pub destination: SocketAddr,
    /// Contents of the datagram.
    pub payload: Bytes,
}

/// Captured packets that are no whole UDP datagram, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Frames of an unknown link type.
    pub link_type: u64,
    /// Frames that hold no IP packet.
    pub not_ip: u64,
    /// IP packets of other protocols than UDP.
    pub not_udp: u64,
    /// Fragments of a datagram, which are not reassembled.
    pub fragments: u64,
    /// Datagrams of which the capture kept only the beginning.
    pub cut: u64,
    /// Packets whose headers contradict their length.
    pub malformed: u64,
    /// Messages of types that the format does not have. These messages are not skipped, and are
    /// given as opaque bytes.
    pub unknown_types: u64,
}

impl core::fmt::Display for Skipped {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let reasons = [
            (self.link_type, "frames of a link type that is not read"),
            (self.not_ip, "frames without an IP packet"),
            (self.not_udp, "packets of another protocol than UDP"),
            (self.fragments, "fragments of datagrams, which are not put together"),
            (self.cut, "datagrams cut by the capture: capture whole packets (tcpdump -s 0)"),
            (self.malformed, "packets whose headers contradict their length"),
        ];
        let mut separator = "";
        for (count, words) in reasons.iter().filter(|(count, _)| *count > 0) {
            write!(f, "{separator}{count} {words}")?;
            separator = "; ";
        }
        if self.unknown_types > 0 {
            let count = self.unknown_types;
            write!(f, "{separator}{count} messages of unknown types, passed on unread")?;
        }
        Ok(())
    }
}

impl Skipped {
    /// Number of all skipped packets.
    pub fn total(&self) -> u64 {
        self.link_type + self.not_ip + self.not_udp + self.fragments + self.cut + self.malformed
    }

    fn count(&mut self, skip: Skip) {
        let count = match skip {
            Skip::LinkType => &mut self.link_type,
            Skip::NotIp => &mut self.not_ip,
            Skip::NotUdp => &mut self.not_udp,
            Skip::Fragment => &mut self.fragments,
            Skip::Cut => &mut self.cut,
            Skip::Malformed => &mut self.malformed,
        };
        *count += 1;
    }
}

/// Whether a file with this beginning is a capture.
#[cfg(feature = "files")]
pub(crate) fn is_capture(head: &[u8]) -> bool {
    let ng_magic = ng::SECTION_HEADER.to_le_bytes();
    classic::magic(head).is_some() || head.starts_with(&ng_magic)
}

/// A capture as a [`Source`]. Each UDP datagram is a message, and its shard key is its [`channel`].
#[derive(Debug)]
pub struct PcapSource<R> {
    input: Input<R>,
    format: Option<FileFormat>,
    skipped: Skipped,
    /// Captures behind the first one.
    further_captures: u64,
    /// The tag of the datagrams, once it is known.
    tag: Option<Format>,
    /// Datagrams that were read to find the tag.
    ahead: VecDeque<Datagram>,
    /// The end or error that stopped the look ahead early.
    ahead_end: Option<Result<(), FeedError>>,
    given: u64,
}

#[derive(Debug)]
enum FileFormat {
    Classic(classic::Classic),
    Ng(ng::Section),
}

impl<R: Read> PcapSource<R> {
    /// Reads from `reader`. Errors call it `name`.
    pub fn new(reader: R, name: &str) -> Self {
        let input = Input::new(reader, name);
        Self {
            input,
            format: None,
            skipped: Skipped::default(),
            further_captures: 0,
            tag: None,
            ahead: VecDeque::new(),
            ahead_end: None,
            given: 0,
        }
    }

    /// Reads datagrams whose format the user knows.
    pub fn with_format(reader: R, name: &str, format: Option<Format>) -> Self {
        Self { tag: format, ..Self::new(reader, name) }
    }

    /// Reads the first datagrams to tell their format by.
    fn look_ahead(&mut self) -> Format {
        while self.ahead.len() < LOOK_DATAGRAMS {
            match self.next_datagram() {
                Ok(Some(datagram)) => self.ahead.push_back(datagram),
                Ok(None) => {
                    self.ahead_end = Some(Ok(()));
                    break;
                }
                Err(error) => {
                    self.ahead_end = Some(Err(error));
                    break;
                }
            }
        }
        codec::of_packets(self.ahead.iter().map(|datagram| &datagram.payload[..]))
    }

    /// The next UDP datagram; `None` at the end.
    ///
    /// # Errors
    /// When the reader fails, the file ends inside a record, or a record contradicts itself.
    pub fn next_datagram(&mut self) -> Result<Option<Datagram>, FeedError> {
        while let Some(captured) = self.next_captured()? {
            let Captured { time_ns, link_type, cut, bytes } = captured;
            match packet::udp(link_type, &bytes, cut) {
                Ok(packet::Udp { source, destination, payload }) => {
                    self.input.next_index();
                    let payload = bytes.slice(payload);
                    return Ok(Some(Datagram { time_ns, source, destination, payload }));
                }
                Err(skip) => self.skipped.count(skip),
            }
        }
        Ok(None)
    }

    fn next_captured(&mut self) -> Result<Option<Captured>, FeedError> {
        loop {
            if self.format.is_some() && self.begins_another() {
                // Each of the captures has its own byte order and units.
                self.format = None;
                self.further_captures += 1;
            }
            if self.format.is_none() {
                let is_ng = self.input.peek(4) == ng::SECTION_HEADER.to_le_bytes();
                self.format = Some(match is_ng {
                    true => FileFormat::Ng(ng::Section::new()),
                    false => FileFormat::Classic(classic::Classic::start(&mut self.input)?),
                });
            }
            let captured = match &mut self.format {
                Some(FileFormat::Classic(classic)) => classic.next(&mut self.input)?,
                Some(FileFormat::Ng(section)) => section.next(&mut self.input)?,
                None => None,
            };
            if captured.is_some() || self.input.at_end()? {
                return Ok(captured);
            }
        }
    }

    /// Whether another capture begins here, because files were put behind each other. A section of
    /// pcapng belongs to the pcapng before it.
    fn begins_another(&mut self) -> bool {
        let is_classic = matches!(self.format, Some(FileFormat::Classic(_)));
        classic::is_file_header(self.input.peek(classic::HEADER_BYTES))
            || is_classic && ng::is_section(self.input.peek(ng::SECTION_START_BYTES))
    }
}

impl<R: Read> Source for PcapSource<R> {
    fn next_message(&mut self) -> Result<Option<Message>, FeedError> {
        let format = self.tag.unwrap_or_else(|| self.look_ahead());
        self.tag = Some(format);
        let datagram = match (self.ahead.pop_front(), self.ahead_end.clone()) {
            (Some(datagram), _) => datagram,
            (None, Some(end)) => return end.map(|()| None),
            (None, None) => match self.next_datagram()? {
                Some(datagram) => datagram,
                None => return Ok(None),
            },
        };
        let Datagram { time_ns, destination, payload: bytes, .. } = datagram;
        let (index, shard_key) = (self.given, channel(destination));
        self.given += 1;
        Ok(Some(Message { index, time_ns, shard_key, format, bytes }))
    }

    fn skipped(&self) -> Skipped {
        self.skipped
    }

    fn notes(&self) -> Vec<String> {
        let count = self.further_captures + 1;
        let note = format!("the file holds {count} captures, one behind the other");
        (count > 1).then_some(note).into_iter().collect()
    }
}

/// The channel of a destination: FNV-1a over address and port. The result never changes between
/// versions.
pub fn channel(destination: SocketAddr) -> u32 {
    // The address is hashed as IPv6, so that a group written in both forms is one channel.
    let address = match destination.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let port = destination.port().to_be_bytes();
    let bytes = address.iter().chain(&port);
    let hash = bytes
        .fold(0x811c_9dc5, |hash: u32, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    // The key for messages of all channels is no channel's key.
    hash.min(crate::sharding::GLOBAL - 1)
}
