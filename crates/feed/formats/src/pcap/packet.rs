//! Finds the UDP payload in a captured frame.
//!
//! Only the headers in front of the payload are read: link header, VLAN tags, IP header with its
//! extensions, UDP header. Checksums are not checked, because network cards fill them in after the
//! capture point, and a correct packet often shows a wrong checksum. Lengths come from the headers,
//! since Ethernet pads short frames.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::Range;

/// VLAN tags that are skipped in a frame. Real traffic has at most two (802.1ad).
const VLAN_TAGS_MAX: usize = 4;

/// IPv6 extension headers that are skipped. The standard names five that may stand before UDP.
const EXTENSIONS_MAX: usize = 8;

// Numbers of protocols, as IANA assigns them.
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_UDP: u8 = 17;

/// Why a packet is no datagram of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skip {
    LinkType,
    NotIp,
    NotUdp,
    Fragment,
    Cut,
    Malformed,
}

/// A datagram's addresses and where its payload lies in the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Udp {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub payload: Range<usize>,
}

/// Reads within a frame. Running out means cut when the capture kept less than was on the wire.
struct Frame<'a> {
    bytes: &'a [u8],
    short: Skip,
}

impl Frame<'_> {
    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], Skip> {
        let slice = self.bytes.get(at..at + N).ok_or(self.short)?;
        let mut out = [0; N];
        out.copy_from_slice(slice);
        Ok(out)
    }

    fn byte(&self, at: usize) -> Result<u8, Skip> {
        self.array::<1>(at).map(|[byte]| byte)
    }

    fn short(&self, at: usize) -> Result<u16, Skip> {
        self.array(at).map(u16::from_be_bytes)
    }
}

/// The UDP datagram in a captured frame of this link type (tcpdump.org/linktypes.html).
pub(crate) fn udp(link_type: u16, bytes: &[u8], cut: bool) -> Result<Udp, Skip> {
    let frame = Frame { bytes, short: if cut { Skip::Cut } else { Skip::Malformed } };
    let network = match link_type {
        1 => ethernet(&frame, 12)?,
        // Linux cooked capture, versions 1 and 2: the EtherType is at the end or the start.
        113 => ethernet(&frame, 14)?,
        276 => match frame.short(0)? {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => 20,
            _ => return Err(Skip::NotIp),
        },
        // BSD loopback: an address family whose byte order is the capturing host's.
        0 | 108 => 4,
        12 | 14 | 101 | 228 | 229 => 0,
        _ => return Err(Skip::LinkType),
    };
    match frame.byte(network)? >> 4 {
        4 => ipv4(&frame, network),
        6 => ipv6(&frame, network),
        _ => Err(Skip::NotIp),
    }
}

/// Where the network header starts, given where the first EtherType is.
fn ethernet(frame: &Frame<'_>, mut at: usize) -> Result<usize, Skip> {
    for _ in 0..=VLAN_TAGS_MAX {
        match frame.short(at)? {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => return Ok(at + 2),
            0x8100 | 0x88a8 | 0x9100 => at += 4,
            _ => break,
        }
    }
    Err(Skip::NotIp)
}

fn ipv4(frame: &Frame<'_>, at: usize) -> Result<Udp, Skip> {
    let header_bytes = usize::from(frame.byte(at)? & 0x0f) * 4;
    let total_bytes = usize::from(frame.short(at + 2)?);
    let fragment = frame.short(at + 6)?;
    let protocol = frame.byte(at + 9)?;
    let source: [u8; 4] = frame.array(at + 12)?;
    let destination: [u8; 4] = frame.array(at + 16)?;
    if header_bytes < 20 {
        return Err(Skip::Malformed);
    }
    if protocol != PROTOCOL_UDP {
        return Err(Skip::NotUdp);
    }
    // More-fragments bit or an offset: a piece of a datagram is not a message.
    if fragment & 0x3fff != 0 {
        return Err(Skip::Fragment);
    }
    // Zero is what a card that segments for the kernel leaves; the frame's own end holds then.
    let end = if total_bytes == 0 { frame.bytes.len() } else { at + total_bytes };
    let addresses = (IpAddr::V4(Ipv4Addr::from(source)), IpAddr::V4(Ipv4Addr::from(destination)));
    datagram(frame, at + header_bytes, end, addresses)
}

fn ipv6(frame: &Frame<'_>, at: usize) -> Result<Udp, Skip> {
    let payload_bytes = usize::from(frame.short(at + 4)?);
    let mut protocol = frame.byte(at + 6)?;
    let source: [u8; 16] = frame.array(at + 8)?;
    let destination: [u8; 16] = frame.array(at + 24)?;
    let mut next = at + 40;
    let end = if payload_bytes == 0 { frame.bytes.len() } else { next + payload_bytes };
    for _ in 0..EXTENSIONS_MAX {
        match protocol {
            PROTOCOL_UDP => break,
            // Hop-by-hop, routing, destination options: length in units of 8 bytes, less one.
            0 | 43 | 60 => {
                protocol = frame.byte(next)?;
                next += 8 * (usize::from(frame.byte(next + 1)?) + 1);
            }
            44 => return Err(Skip::Fragment),
            _ => return Err(Skip::NotUdp),
        }
    }
    if protocol != PROTOCOL_UDP {
        return Err(Skip::NotUdp);
    }
    let addresses = (IpAddr::V6(Ipv6Addr::from(source)), IpAddr::V6(Ipv6Addr::from(destination)));
    datagram(frame, next, end, addresses)
}

fn datagram(
    frame: &Frame<'_>,
    at: usize,
    ip_end: usize,
    (source, destination): (IpAddr, IpAddr),
) -> Result<Udp, Skip> {
    let source = SocketAddr::new(source, frame.short(at)?);
    let destination = SocketAddr::new(destination, frame.short(at + 2)?);
    let udp_bytes = usize::from(frame.short(at + 4)?);
    // RFC 2675: a length of zero is a jumbogram, as long as the IP packet says.
    let end = if udp_bytes == 0 { ip_end } else { at + udp_bytes };
    if end > ip_end || end < at + 8 {
        return Err(Skip::Malformed);
    }
    if end > frame.bytes.len() {
        return Err(frame.short);
    }
    Ok(Udp { source, destination, payload: at + 8..end })
}
