//! Classic pcap: one header, then records.
//!
//! ```text
//!  file:   0       4         8            16     20          24
//!          +-------+---------+------------+------+-----------+
//!          | magic | version | zone, figs | snap | link type |   magic tells order and unit
//!          +-------+---------+------------+------+-----------+
//!  record: 0         4          8          12         16
//!          +---------+----------+----------+----------+------
//!          | seconds | fraction | captured | original | bytes
//!          +---------+----------+----------+----------+------
//! ```
//!
//! Records of a "modified" pcap have eight bytes more in front of their bytes: the interface, the
//! protocol and the kind of packet. Kernels of some distributions wrote it around 2000, and some
//! capture appliances still do.
//!
//! Source: draft-ietf-opsawg-pcap; `pcap_sf_patched_pkthdr` of libpcap.

use super::{Captured, Order};
use crate::error::{FeedError, FeedFault};
use crate::input::Input;
use std::io::Read;

/// Largest record taken; libpcap's own limit (`MAXIMUM_SNAPLEN`).
const RECORD_BYTES_MAX: u32 = 262_144;

/// Bytes of the header of the file.
pub(super) const HEADER_BYTES: usize = 24;
/// Bytes of the header of each packet.
const RECORD_HEADER_BYTES: usize = 16;
/// Bytes of the header of each packet of a modified pcap.
const MODIFIED_HEADER_BYTES: usize = 24;
/// The version that all files have.
const VERSION: [u16; 2] = [2, 4];

/// Order, unit and records of the file.
#[derive(Debug)]
pub(super) struct Classic {
    variant: Variant,
    link_type: u16,
}

/// What the magic of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    order: Order,
    ns_per_fraction: u32,
    record_header_bytes: usize,
}

/// The variant of a file that starts with these bytes.
pub(super) fn magic(head: &[u8]) -> Option<Variant> {
    let (order, ns_per_fraction, record_header_bytes) = match head.get(..4)? {
        [0xa1, 0xb2, 0xc3, 0xd4] => (Order::Big, 1000, RECORD_HEADER_BYTES),
        [0xd4, 0xc3, 0xb2, 0xa1] => (Order::Little, 1000, RECORD_HEADER_BYTES),
        [0xa1, 0xb2, 0x3c, 0x4d] => (Order::Big, 1, RECORD_HEADER_BYTES),
        [0x4d, 0x3c, 0xb2, 0xa1] => (Order::Little, 1, RECORD_HEADER_BYTES),
        [0xa1, 0xb2, 0xcd, 0x34] => (Order::Big, 1000, MODIFIED_HEADER_BYTES),
        [0x34, 0xcd, 0xb2, 0xa1] => (Order::Little, 1000, MODIFIED_HEADER_BYTES),
        _ => return None,
    };
    Some(Variant { order, ns_per_fraction, record_header_bytes })
}

/// Whether a file header stands where a record is expected: another capture begins. The seconds of
/// a record may have the value of a magic, but the fraction is never a version.
pub(super) fn is_file_header(head: &[u8]) -> bool {
    let version = |order: Order| [order.u16(head, 4), order.u16(head, 6)];
    head.len() >= HEADER_BYTES
        && magic(head).is_some_and(|variant| version(variant.order) == VERSION)
}

impl Classic {
    /// Reads the file header.
    pub fn start<R: Read>(input: &mut Input<R>) -> Result<Self, FeedError> {
        let head = input.look(HEADER_BYTES, "pcap header")?;
        let Some(variant) = magic(head) else {
            let found = format!("magic {:02x?}", &head[..4]);
            return Err(input.error(FeedFault::Malformed { what: "pcap header", found }));
        };
        // The upper half holds the length of the frame check sequence, which is ignored.
        let link_type = variant.order.u32(head, 20) as u16;
        input.take(HEADER_BYTES);
        Ok(Self { variant, link_type })
    }

    /// The next captured packet; `None` at the end.
    pub fn next<R: Read>(&mut self, input: &mut Input<R>) -> Result<Option<Captured>, FeedError> {
        if input.at_end()? {
            return Ok(None);
        }
        let Variant { order, ns_per_fraction, record_header_bytes } = self.variant;
        let head = input.look(record_header_bytes, "pcap record header")?;
        let [seconds, fraction, captured, original] =
            core::array::from_fn(|i| order.u32(head, 4 * i));
        if captured > RECORD_BYTES_MAX {
            let (found, max) = (u64::from(captured), u64::from(RECORD_BYTES_MAX));
            return Err(input.error(FeedFault::TooLarge { what: "pcap record", found, max }));
        }
        let fraction_ns = u64::from(fraction) * u64::from(ns_per_fraction);
        if fraction_ns >= 1_000_000_000 {
            let found = format!("a fraction of {fraction_ns} ns in a second");
            return Err(input.error(FeedFault::Malformed { what: "pcap record", found }));
        }
        let total = record_header_bytes + captured as usize;
        input.look(total, "pcap record")?;
        let bytes = input.take(total).slice(record_header_bytes..);
        let time_ns = u64::from(seconds) * 1_000_000_000 + fraction_ns;
        let (link_type, cut) = (self.link_type, captured < original);
        Ok(Some(Captured { time_ns, link_type, cut, bytes }))
    }
}
