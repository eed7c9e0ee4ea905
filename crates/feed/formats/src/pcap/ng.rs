//! pcapng: a chain of blocks, of which packets and interface descriptions are read.
//!
//! ```text
//!  0      4       8                                    total-4   total
//!  +------+-------+-- body, padded to 4 bytes ---------+-------+
//!  | type | total |                                    | total |
//!  +------+-------+------------------------------------+-------+
//! ```
//!
//! Source: draft-ietf-opsawg-pcapng.

use super::{Captured, Order, classic};
use crate::error::{FeedError, FeedFault};
use crate::input::Input;
use std::io::Read;

/// Largest block taken: far above any packet. A block that claims to be larger has a damaged
/// length.
const BLOCK_BYTES_MAX: usize = 16 << 20;

/// Interfaces taken in a section: a capture host has a few, so more is a damaged file.
const INTERFACES_MAX: usize = 4096;

/// Finest decimal resolution taken, 10^-20 s: beyond it no 64-bit time reaches a second.
const DECIMALS_MAX: u8 = 20;

// Types of blocks, as the pcapng specification numbers them.
pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

// Codes of options of an interface: the end of the options, `if_tsresol` and `if_tsoffset`.
const OPTION_END: u16 = 0;
const OPTION_RESOLUTION: u16 = 9;
const OPTION_OFFSET: u16 = 14;

/// Bytes by which a section is recognised behind a classic capture.
pub(super) const SECTION_START_BYTES: usize = 12;

/// Whether a section begins here: the type and the byte-order magic, in either order.
pub(super) fn is_section(head: &[u8]) -> bool {
    head.starts_with(&SECTION_HEADER.to_le_bytes())
        && matches!(head.get(8..12), Some([0x4d, 0x3c, 0x2b, 0x1a] | [0x1a, 0x2b, 0x3c, 0x4d]))
}

/// What an interface description says that is needed to read its packets.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link_type: u16,
    snap_bytes: u32,
    resolution: u8,
    offset_s: i64,
}

impl Interface {
    /// A block's time stamp in nanoseconds since 1970, saturating at both ends.
    fn time_ns(&self, ticks: u64) -> u64 {
        let ticks = i128::from(ticks);
        let ns = match self.resolution {
            binary if binary & 0x80 != 0 => (ticks * 1_000_000_000) >> (binary & 0x7f),
            decimals @ 0..=9 => ticks * 10i128.pow(u32::from(9 - decimals)),
            decimals => ticks / 10i128.pow(u32::from(decimals.min(DECIMALS_MAX) - 9)),
        };
        let ns = ns + i128::from(self.offset_s) * 1_000_000_000;
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

#[derive(Debug)]
pub(super) struct Section {
    order: Order,
    interfaces: Vec<Interface>,
    last_time_ns: u64,
}

impl Section {
    pub fn new() -> Self {
        Self { order: Order::Little, interfaces: Vec::new(), last_time_ns: 0 }
    }

    /// The next captured packet; `None` at the end, or where a classic capture begins.
    pub fn next<R: Read>(&mut self, input: &mut Input<R>) -> Result<Option<Captured>, FeedError> {
        while !input.at_end()? && !classic::is_file_header(input.peek(classic::HEADER_BYTES)) {
            let (kind, total) = self.look_block(input)?;
            let body = &input.look(total, "pcapng block")?[8..total - 4];
            let read = self.read_block(kind, body);
            match read {
                Ok(None) => {
                    input.take(total);
                }
                Ok(Some(packet)) => {
                    let Packet { time_ns, link_type, cut, start, length } = packet;
                    let block = input.take(total);
                    let bytes = block.slice(8 + start..8 + start + length);
                    return Ok(Some(Captured { time_ns, link_type, cut, bytes }));
                }
                Err(found) => {
                    return Err(input.error(FeedFault::Malformed { what: "pcapng block", found }));
                }
            }
        }
        Ok(None)
    }

    /// The type and the length of the next block, which is then buffered whole.
    fn look_block<R: Read>(&mut self, input: &mut Input<R>) -> Result<(u32, usize), FeedError> {
        let what = "pcapng block";
        let head = input.look(12, what)?;
        let kind = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        if kind == SECTION_HEADER {
            // Type and magic read the same in both orders; the length does not.
            self.order = match head[8..12] {
                [0x4d, 0x3c, 0x2b, 0x1a] => Order::Little,
                [0x1a, 0x2b, 0x3c, 0x4d] => Order::Big,
                _ => {
                    let found = format!("byte-order magic {:02x?}", &head[8..12]);
                    return Err(input.error(FeedFault::Malformed { what, found }));
                }
            };
        }
        let kind = self.order.u32(head, 0);
        let total = self.order.u32(head, 4) as usize;
        if total > BLOCK_BYTES_MAX {
            let (found, max) = (total as u64, BLOCK_BYTES_MAX as u64);
            return Err(input.error(FeedFault::TooLarge { what, found, max }));
        }
        if total < 12 || !total.is_multiple_of(4) {
            let found = format!("a length of {total}");
            return Err(input.error(FeedFault::Malformed { what, found }));
        }
        let block = input.look(total, what)?;
        let behind = self.order.u32(block, total - 4) as usize;
        if behind != total {
            let found = format!("length {total} in front and {behind} behind");
            return Err(input.error(FeedFault::Malformed { what, found }));
        }
        Ok((kind, total))
    }

    /// Reads a block's body; errors say what was found.
    fn read_block(&mut self, kind: u32, body: &[u8]) -> Result<Option<Packet>, String> {
        match kind {
            SECTION_HEADER => self.interfaces.clear(),
            INTERFACE_DESCRIPTION => {
                if self.interfaces.len() == INTERFACES_MAX {
                    return Err(format!("more than {INTERFACES_MAX} interfaces"));
                }
                self.interfaces.push(self.read_interface(body)?);
            }
            ENHANCED_PACKET | OBSOLETE_PACKET => return self.read_packet(kind, body).map(Some),
            SIMPLE_PACKET => return self.read_simple(body).map(Some),
            // Names, statistics, secrets and whatever else: made to be passed over.
            _ => {}
        }
        Ok(None)
    }

    fn read_interface(&self, body: &[u8]) -> Result<Interface, String> {
        if body.len() < 8 {
            return Err(format!("an interface description of {} bytes", body.len()));
        }
        let mut interface = Interface {
            link_type: self.order.u16(body, 0),
            snap_bytes: self.order.u32(body, 4),
            resolution: 6,
            offset_s: 0,
        };
        let mut options = &body[8..];
        while options.len() >= 4 {
            let (code, length) = (self.order.u16(options, 0), self.order.u16(options, 2));
            let padded = usize::from(length).next_multiple_of(4);
            let Some(value) = options.get(4..4 + padded) else {
                return Err(format!("option {code} of {length} bytes, {} left", options.len() - 4));
            };
            match (code, length) {
                (OPTION_END, _) => break,
                (OPTION_RESOLUTION, 1) => interface.resolution = value[0],
                (OPTION_OFFSET, 8) => interface.offset_s = self.order.u64(value, 0) as i64,
                _ => {}
            }
            options = &options[4 + padded..];
        }
        if interface.resolution & 0x80 == 0 && interface.resolution > DECIMALS_MAX {
            return Err(format!("a time resolution of 10^-{} s", interface.resolution));
        }
        Ok(interface)
    }

    fn read_packet(&mut self, kind: u32, body: &[u8]) -> Result<Packet, String> {
        const HEADER: usize = 20;
        if body.len() < HEADER {
            return Err(format!("a packet block of {} bytes", body.len()));
        }
        let id = match kind {
            ENHANCED_PACKET => self.order.u32(body, 0),
            _ => u32::from(self.order.u16(body, 0)),
        };
        let interface = self.interface(id)?;
        let ticks = u64::from(self.order.u32(body, 4)) << 32 | u64::from(self.order.u32(body, 8));
        let (length, original) = (self.order.u32(body, 12), self.order.u32(body, 16));
        if length as usize > body.len() - HEADER {
            return Err(format!("a packet of {length} bytes, {} left", body.len() - HEADER));
        }
        let time_ns = interface.time_ns(ticks);
        self.last_time_ns = time_ns;
        let (link_type, cut) = (interface.link_type, length < original);
        Ok(Packet { time_ns, link_type, cut, start: HEADER, length: length as usize })
    }

    /// A simple packet has no time: it gets the one of the packet before it.
    fn read_simple(&self, body: &[u8]) -> Result<Packet, String> {
        const HEADER: usize = 4;
        if body.len() < HEADER {
            return Err(format!("a simple packet block of {} bytes", body.len()));
        }
        let interface = self.interface(0)?;
        let original = self.order.u32(body, 0);
        let snapped = match interface.snap_bytes {
            0 => original,
            snap_bytes => original.min(snap_bytes),
        };
        let length = (snapped as usize).min(body.len() - HEADER);
        let cut = length < original as usize;
        let (link_type, time_ns) = (interface.link_type, self.last_time_ns);
        Ok(Packet { time_ns, link_type, cut, start: HEADER, length })
    }

    fn interface(&self, id: u32) -> Result<Interface, String> {
        let described = self.interfaces.len();
        let interface = self.interfaces.get(id as usize).copied();
        interface.ok_or_else(|| format!("interface {id}, {described} are described"))
    }
}

/// A packet within a block's body.
struct Packet {
    time_ns: u64,
    link_type: u16,
    cut: bool,
    start: usize,
    length: usize,
}
