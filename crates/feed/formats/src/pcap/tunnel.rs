//! Takes off what a network wraps around a frame: labels of MPLS, and the tunnels in which a mirror
//! port (ERSPAN over GRE) or a cloud (VXLAN, Geneve) carries the frame to the capturing host.
//!
//! ```text
//!  MPLS    label, class, S, TTL: 4 bytes each; the label with bit S is the last
//!  GRE     flags, protocol: 4 bytes; checksum, key and sequence: 4 bytes each where flagged
//!  ERSPAN  inside GRE: no header (type I), 8 bytes (II), or 12 and sometimes 20 bytes (III)
//!  VXLAN   UDP port 4789: flags, network: 8 bytes, then an Ethernet frame
//!  Geneve  UDP port 6081: 8 bytes and options, then what the protocol says
//! ```
//!
//! Sources: RFC 3032, RFC 2784 with 2890, draft-foschiano-erspan, RFC 7348, RFC 8926, RFC 2516.

use super::packet::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, FrameBytes, Skip, TransportPacket, ethernet, network,
};
use core::ops::Range;

/// Labels in front of a packet. Networks stack three or four.
const LABELS_MAX: usize = 8;

/// Bytes of the two hardware addresses in front of an EtherType.
const ADDRESSES_BYTES: usize = 12;

// Numbers of protocols in GRE and Geneve.
const TRANSPARENT_ETHERNET: u16 = 0x6558;
const ERSPAN_2: u16 = 0x88be;
const ERSPAN_3: u16 = 0x22eb;

const PORT_VXLAN: u16 = 4789;
const PORT_GENEVE: u16 = 6081;

/// Reads behind the labels that begin here.
pub(super) fn mpls(frame: &mut FrameBytes<'_>, mut at: usize) -> Result<TransportPacket, Skip> {
    for _ in 0..LABELS_MAX {
        let is_last = frame.byte(at + 2)? & 1 == 1;
        at += 4;
        if is_last {
            return match frame.byte(at)? >> 4 {
                4 | 6 => network(frame, at),
                // A wire over MPLS: a control word of 4 bytes, then a frame.
                0 => ethernet(frame, at + 4 + ADDRESSES_BYTES),
                _ => Err(Skip::NotIp),
            };
        }
    }
    Err(Skip::NotIp)
}

/// Reads the PPP session whose header begins here.
pub(super) fn pppoe(frame: &mut FrameBytes<'_>, at: usize) -> Result<TransportPacket, Skip> {
    match frame.short(at + 6)? {
        0x0021 | 0x0057 => network(frame, at + 8),
        _ => Err(Skip::NotIp),
    }
}

/// Reads what a GRE packet carries that begins here.
pub(super) fn gre(frame: &mut FrameBytes<'_>, at: usize) -> Result<TransportPacket, Skip> {
    let (flags, protocol) = (frame.short(at)?, frame.short(at + 2)?);
    // Version 1 is PPTP.
    if flags & 7 != 0 {
        return Err(Skip::OtherProtocol);
    }
    let has_sequence = flags & 0x1000 != 0;
    let parts = u32::from(flags & 0xb000).count_ones() as usize;
    let inner = at + 4 + 4 * parts;
    match protocol {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => network(frame, inner),
        TRANSPARENT_ETHERNET => ethernet(frame, inner + ADDRESSES_BYTES),
        // Type I has neither a sequence nor a header.
        ERSPAN_2 => {
            let header_bytes = if has_sequence { 8 } else { 0 };
            ethernet(frame, inner + header_bytes + ADDRESSES_BYTES)
        }
        ERSPAN_3 => {
            let has_platform = frame.byte(inner + 11)? & 1 == 1;
            let header_bytes = if has_platform { 20 } else { 12 };
            ethernet(frame, inner + header_bytes + ADDRESSES_BYTES)
        }
        0x8847 | 0x8848 => mpls(frame, inner),
        _ => Err(Skip::OtherProtocol),
    }
}

/// Reads what a datagram to this port carries, if it is a tunnel. A feed may use the port of a
/// tunnel, so a payload that holds no packet is the feed's.
pub(super) fn over_udp(
    frame: &mut FrameBytes<'_>,
    port: u16,
    payload: Range<usize>,
) -> Option<Result<TransportPacket, Skip>> {
    let at = payload.start;
    let inner = match port {
        PORT_VXLAN => {
            let [flags, reserved @ ..]: [u8; 4] = frame.array(at).ok()?;
            (flags == 8 && reserved == [0; 3]).then_some((at + 8, TRANSPARENT_ETHERNET))?
        }
        PORT_GENEVE => {
            let head = frame.byte(at).ok()?;
            let options_bytes = 4 * usize::from(head & 0x3f);
            (head >> 6 == 0).then_some((at + 8 + options_bytes, frame.short(at + 2).ok()?))?
        }
        _ => return None,
    };
    let left = frame.tunnels_left;
    frame.tunnels_left = left.checked_sub(1)?;
    let found = match inner {
        (at, TRANSPARENT_ETHERNET) => ethernet(frame, at + ADDRESSES_BYTES),
        (at, ETHERTYPE_IPV4 | ETHERTYPE_IPV6) => network(frame, at),
        _ => Err(Skip::NotIp),
    };
    // A frame that the capture cut, or that belongs to another protocol, still is the tunnel's.
    if matches!(found, Err(Skip::Malformed | Skip::NotIp)) {
        frame.tunnels_left = left;
        return None;
    }
    Some(found)
}
