//! The packets of pcap and pcapng files, with their capture times.
//!
//! [`PcapReader`] gives UDP datagrams and, to the crate, TCP segments. Tags, labels and tunnels
//! around them are taken off. What the packets mean is decided for each channel
//! ([`crate::capture`]).
//!
//! A packet that is not a whole UDP datagram or TCP segment is skipped, and [`Skipped`] counts it
//! by reason. A file whose structure is broken gives an error at the byte where it breaks.

mod classic;
mod ng;
pub(crate) mod packet;
mod tunnel;

#[cfg(test)]
mod tests;

use crate::error::{FeedError, FeedFault};
use crate::input::Input;
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use packet::{Skip, Transport, TransportPacket};
use std::io::Read;

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
pub struct CapturedDatagram {
    /// When it was captured, nanoseconds since 1970.
    pub time_ns: u64,
    /// Sender of the datagram.
    pub source: SocketAddr,
    /// Destination of the datagram.
    pub destination: SocketAddr,
    /// Contents of the datagram.
    pub payload: Bytes,
}

/// A UDP datagram or a TCP segment of a capture.
#[derive(Clone, Debug)]
pub(crate) struct CapturedPacket {
    pub time_ns: u64,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub transport: Transport,
    pub payload: Bytes,
}

/// Captured packets that are no whole UDP datagram, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Frames of an unknown link type.
    pub link_type: u64,
    /// Frames that hold no IP packet.
    pub not_ip: u64,
    /// IP packets of other protocols than UDP and SoupBinTCP.
    pub other_protocols: u64,
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
            (self.other_protocols, "packets of other protocols than UDP and SoupBinTCP"),
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
        self.link_type
            + self.not_ip
            + self.other_protocols
            + self.fragments
            + self.cut
            + self.malformed
    }

    fn count(&mut self, skip: Skip) {
        let count = match skip {
            Skip::LinkType => &mut self.link_type,
            Skip::NotIp => &mut self.not_ip,
            Skip::OtherProtocol => &mut self.other_protocols,
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

/// Reads the packets of a capture.
#[derive(Debug)]
pub struct PcapReader<R> {
    input: Input<R>,
    format: Option<FileFormat>,
    skipped: Skipped,
    /// Captures behind the first one.
    further_captures: u64,
}

#[derive(Debug)]
enum FileFormat {
    Classic(classic::Classic),
    Ng(ng::Section),
}

impl<R: Read> PcapReader<R> {
    /// Reads from `reader`. Errors call it `name`.
    pub fn new(reader: R, name: &str) -> Self {
        let input = Input::new(reader, name);
        Self { input, format: None, skipped: Skipped::default(), further_captures: 0 }
    }

    /// Packets that were skipped so far.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// A note about captures that were put behind each other.
    pub(crate) fn note(&self) -> Option<String> {
        let count = self.further_captures + 1;
        (count > 1).then(|| format!("the file holds {count} captures, one behind the other"))
    }

    /// The next UDP datagram; `None` at the end. All other packets count as skipped.
    ///
    /// # Errors
    /// When the reader fails, the file ends inside a record, or a record contradicts itself.
    pub fn next_datagram(&mut self) -> Result<Option<CapturedDatagram>, FeedError> {
        while let Some(packet) = self.next_packet()? {
            let CapturedPacket { time_ns, source, destination, transport, payload } = packet;
            match transport {
                Transport::Udp => {
                    return Ok(Some(CapturedDatagram { time_ns, source, destination, payload }));
                }
                Transport::Tcp { .. } => self.skipped.other_protocols += 1,
            }
        }
        Ok(None)
    }

    /// The next UDP datagram or TCP segment; `None` at the end.
    pub(crate) fn next_packet(&mut self) -> Result<Option<CapturedPacket>, FeedError> {
        while let Some(captured) = self.next_captured()? {
            let Captured { time_ns, link_type, cut, bytes } = captured;
            match packet::transport_of(link_type, &bytes, cut) {
                Ok(TransportPacket { source, destination, transport, payload }) => {
                    self.input.next_index();
                    let payload = bytes.slice(payload);
                    let packet =
                        CapturedPacket { time_ns, source, destination, transport, payload };
                    return Ok(Some(packet));
                }
                Err(skip) => self.skipped.count(skip),
            }
        }
        Ok(None)
    }

    /// An error at the present place.
    pub(crate) fn error(&self, fault: FeedFault) -> FeedError {
        self.input.error(fault)
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
