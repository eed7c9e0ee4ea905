//! Finds the payload of a UDP datagram or of a TCP segment in a captured frame.
//!
//! Only the headers in front of the payload are read: link header, tags, IP header with its
//! extensions, UDP or TCP header. What a mirror port or a cloud wraps around a frame is taken off
//! ([`super::tunnel`]). Checksums are not checked, because network cards fill them in after the
//! capture point, and a correct packet often shows a wrong checksum. Lengths come from the headers,
//! since Ethernet pads short frames.

use super::tunnel;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::Range;

/// Tags that are skipped in a frame. Real traffic has at most two of VLANs (802.1ad) and one of a
/// switch's port extender.
const TAGS_MAX: usize = 4;

/// IPv6 extension headers that are skipped. The standard names five that may stand before UDP.
const EXTENSIONS_MAX: usize = 8;

/// Tunnels inside each other that are taken off. A mirrored frame of a cloud has two.
const TUNNELS_MAX: u8 = 4;

// Numbers of protocols, as IANA assigns them.
pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_IPV4: u8 = 4;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_IPV6: u8 = 41;
const PROTOCOL_GRE: u8 = 47;

/// Why a packet is no part of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skip {
    LinkType,
    NotIp,
    OtherProtocol,
    Fragment,
    Cut,
    Malformed,
}

/// What the transport of a packet says beside addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    /// The number of the first byte, and whether the segment begins a connection.
    Tcp {
        sequence: u32,
        is_start: bool,
    },
}

/// A packet's addresses and where its payload lies in the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransportPacket {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub transport: Transport,
    pub payload: Range<usize>,
}

/// Reads within a frame. Running out means cut when the capture kept less than was on the wire.
pub(super) struct FrameBytes<'a> {
    pub bytes: &'a [u8],
    short: Skip,
    /// Tunnels that may still be taken off.
    pub tunnels_left: u8,
}

impl FrameBytes<'_> {
    pub fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], Skip> {
        let slice = self.bytes.get(at..at + N).ok_or(self.short)?;
        let mut out = [0; N];
        out.copy_from_slice(slice);
        Ok(out)
    }

    pub fn byte(&self, at: usize) -> Result<u8, Skip> {
        self.array::<1>(at).map(|[byte]| byte)
    }

    pub fn short(&self, at: usize) -> Result<u16, Skip> {
        self.array(at).map(u16::from_be_bytes)
    }
}

/// The UDP datagram or TCP segment in a captured frame of this link type
/// (tcpdump.org/linktypes.html).
pub(crate) fn transport_of(
    link_type: u16,
    bytes: &[u8],
    cut: bool,
) -> Result<TransportPacket, Skip> {
    let short = if cut { Skip::Cut } else { Skip::Malformed };
    let mut frame = FrameBytes { bytes, short, tunnels_left: TUNNELS_MAX };
    match link_type {
        1 => ethernet(&mut frame, 12),
        // Linux cooked capture, versions 1 and 2: the EtherType is at the end or the start.
        113 => ethernet(&mut frame, 14),
        276 => match frame.short(0)? {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => network(&mut frame, 20),
            _ => Err(Skip::NotIp),
        },
        // BSD loopback: an address family whose byte order is the capturing host's.
        0 | 108 => network(&mut frame, 4),
        12 | 14 | 101 | 228 | 229 => network(&mut frame, 0),
        _ => Err(Skip::LinkType),
    }
}

/// Reads an Ethernet frame whose first EtherType is here.
pub(super) fn ethernet(frame: &mut FrameBytes<'_>, mut at: usize) -> Result<TransportPacket, Skip> {
    for _ in 0..=TAGS_MAX {
        match frame.short(at)? {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => return network(frame, at + 2),
            // VLANs.
            0x8100 | 0x88a8 | 0x9100 => at += 4,
            // VN-tag and E-tag (802.1BR) of a port extender.
            0x8926 => at += 6,
            0x893f => at += 8,
            0x8847 | 0x8848 => return tunnel::mpls(frame, at + 2),
            0x8864 => return tunnel::pppoe(frame, at + 2),
            _ => break,
        }
    }
    Err(Skip::NotIp)
}

/// Reads an IP packet that begins here.
pub(super) fn network(frame: &mut FrameBytes<'_>, at: usize) -> Result<TransportPacket, Skip> {
    match frame.byte(at)? >> 4 {
        4 => ipv4(frame, at),
        6 => ipv6(frame, at),
        _ => Err(Skip::NotIp),
    }
}

/// The addresses of an IP packet and the bytes that it holds.
struct IpPacket {
    source: IpAddr,
    destination: IpAddr,
    /// Where the header behind the IP header begins, and where the packet ends.
    at: usize,
    end: usize,
}

fn ipv4(frame: &mut FrameBytes<'_>, at: usize) -> Result<TransportPacket, Skip> {
    let header_bytes = usize::from(frame.byte(at)? & 0x0f) * 4;
    let total_bytes = usize::from(frame.short(at + 2)?);
    let fragment = frame.short(at + 6)?;
    let protocol = frame.byte(at + 9)?;
    let source: [u8; 4] = frame.array(at + 12)?;
    let destination: [u8; 4] = frame.array(at + 16)?;
    if header_bytes < 20 {
        return Err(Skip::Malformed);
    }
    // More-fragments bit or an offset: a piece of a datagram is not a message.
    if fragment & 0x3fff != 0 {
        let is_read = [PROTOCOL_UDP, PROTOCOL_TCP, PROTOCOL_GRE].contains(&protocol);
        return Err(if is_read { Skip::Fragment } else { Skip::OtherProtocol });
    }
    // Zero is what a card that segments for the kernel leaves; the frame's own end holds then.
    let end = if total_bytes == 0 { frame.bytes.len() } else { at + total_bytes };
    let (source, destination) = (Ipv4Addr::from(source).into(), Ipv4Addr::from(destination).into());
    let packet = IpPacket { source, destination, at: at + header_bytes, end };
    behind_ip(frame, protocol, &packet)
}

fn ipv6(frame: &mut FrameBytes<'_>, at: usize) -> Result<TransportPacket, Skip> {
    let payload_bytes = usize::from(frame.short(at + 4)?);
    let mut protocol = frame.byte(at + 6)?;
    let source: [u8; 16] = frame.array(at + 8)?;
    let destination: [u8; 16] = frame.array(at + 24)?;
    let mut next = at + 40;
    let end = if payload_bytes == 0 { frame.bytes.len() } else { next + payload_bytes };
    for _ in 0..EXTENSIONS_MAX {
        match protocol {
            // Hop-by-hop, routing, destination options: length in units of 8 bytes, less one.
            0 | 43 | 60 => {
                protocol = frame.byte(next)?;
                next += 8 * (usize::from(frame.byte(next + 1)?) + 1);
            }
            44 => return Err(Skip::Fragment),
            _ => break,
        }
    }
    let (source, destination) = (Ipv6Addr::from(source).into(), Ipv6Addr::from(destination).into());
    behind_ip(frame, protocol, &IpPacket { source, destination, at: next, end })
}

fn behind_ip(
    frame: &mut FrameBytes<'_>,
    protocol: u8,
    packet: &IpPacket,
) -> Result<TransportPacket, Skip> {
    match protocol {
        PROTOCOL_UDP => datagram(frame, packet),
        PROTOCOL_TCP => segment(frame, packet),
        PROTOCOL_GRE | PROTOCOL_IPV4 | PROTOCOL_IPV6 => {
            frame.tunnels_left = frame.tunnels_left.checked_sub(1).ok_or(Skip::OtherProtocol)?;
            match protocol {
                PROTOCOL_GRE => tunnel::gre(frame, packet.at),
                _ => network(frame, packet.at),
            }
        }
        _ => Err(Skip::OtherProtocol),
    }
}

fn datagram(frame: &mut FrameBytes<'_>, packet: &IpPacket) -> Result<TransportPacket, Skip> {
    let &IpPacket { source, destination, at, end: ip_end } = packet;
    let source = SocketAddr::new(source, frame.short(at)?);
    let destination = SocketAddr::new(destination, frame.short(at + 2)?);
    let udp_bytes = usize::from(frame.short(at + 4)?);
    // RFC 2675: a length of zero is a jumbogram, as long as the IP packet says.
    let end = if udp_bytes == 0 { ip_end } else { at + udp_bytes };
    if end > ip_end || end < at + 8 {
        return Err(Skip::Malformed);
    }
    if let Some(inner) = tunnel::over_udp(frame, destination.port(), at + 8..end) {
        return inner;
    }
    if end > frame.bytes.len() {
        return Err(frame.short);
    }
    let payload = at + 8..end;
    Ok(TransportPacket { source, destination, transport: Transport::Udp, payload })
}

fn segment(frame: &FrameBytes<'_>, packet: &IpPacket) -> Result<TransportPacket, Skip> {
    /// The flag of the segment that begins a connection.
    const SYN: u8 = 2;
    let &IpPacket { source, destination, at, end } = packet;
    let source = SocketAddr::new(source, frame.short(at)?);
    let destination = SocketAddr::new(destination, frame.short(at + 2)?);
    let sequence = u32::from_be_bytes(frame.array(at + 4)?);
    let header_bytes = usize::from(frame.byte(at + 12)? >> 4) * 4;
    let is_start = frame.byte(at + 13)? & SYN != 0;
    let payload = at + header_bytes..end;
    if header_bytes < 20 || payload.start > end {
        return Err(Skip::Malformed);
    }
    if end > frame.bytes.len() {
        return Err(frame.short);
    }
    let transport = Transport::Tcp { sequence, is_start };
    Ok(TransportPacket { source, destination, transport, payload })
}
