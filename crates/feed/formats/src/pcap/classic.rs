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
//! Source: draft-ietf-opsawg-pcap.

use super::{Captured, Order};
use crate::error::{Fault, FeedError};
use crate::input::Input;
use std::io::Read;

/// Largest record taken; libpcap's own limit (`MAXIMUM_SNAPLEN`).
const RECORD_BYTES_MAX: u32 = 262_144;

/// Bytes of the header of the file.
pub(super) const HEADER_BYTES: usize = 24;
/// Bytes of the header of each packet.
const RECORD_HEADER_BYTES: usize = 16;

/// Order and unit of the file.
#[derive(Debug)]
pub(super) struct Classic {
    order: Order,
    ns_per_fraction: u32,
    link_type: u16,
}

/// Order and nanoseconds per fraction of a file that starts with these bytes.
pub(super) fn magic(head: &[u8]) -> Option<(Order, u32)> {
    match head.get(..4)? {
        [0xa1, 0xb2, 0xc3, 0xd4] => Some((Order::Big, 1000)),
        [0xd4, 0xc3, 0xb2, 0xa1] => Some((Order::Little, 1000)),
        [0xa1, 0xb2, 0x3c, 0x4d] => Some((Order::Big, 1)),
        [0x4d, 0x3c, 0xb2, 0xa1] => Some((Order::Little, 1)),
        _ => None,
    }
}

impl Classic {
    /// Reads the file header.
    pub fn start<R: Read>(input: &mut Input<R>) -> Result<Self, FeedError> {
        let head = input.look(HEADER_BYTES, "pcap header")?;
        let Some((order, ns_per_fraction)) = magic(head) else {
            let found = format!("magic {:02x?}", &head[..4]);
            return Err(input.error(Fault::Malformed { what: "pcap header", found }));
        };
        // The upper half holds the length of the frame check sequence, which is ignored.
        let link_type = order.u32(head, 20) as u16;
        input.take(HEADER_BYTES);
        Ok(Self { order, ns_per_fraction, link_type })
    }

    /// The next captured packet; `None` at the end.
    pub fn next<R: Read>(&mut self, input: &mut Input<R>) -> Result<Option<Captured>, FeedError> {
        if input.at_end()? {
            return Ok(None);
        }
        let head = input.look(RECORD_HEADER_BYTES, "pcap record header")?;
        let [seconds, fraction, captured, original] =
            core::array::from_fn(|i| self.order.u32(head, 4 * i));
        if captured > RECORD_BYTES_MAX {
            let (found, max) = (u64::from(captured), u64::from(RECORD_BYTES_MAX));
            return Err(input.error(Fault::TooLarge { what: "pcap record", found, max }));
        }
        let fraction_ns = u64::from(fraction) * u64::from(self.ns_per_fraction);
        if fraction_ns >= 1_000_000_000 {
            let found = format!("a fraction of {fraction_ns} ns in a second");
            return Err(input.error(Fault::Malformed { what: "pcap record", found }));
        }
        let total = RECORD_HEADER_BYTES + captured as usize;
        input.look(total, "pcap record")?;
        let bytes = input.take(total).slice(RECORD_HEADER_BYTES..);
        let time_ns = u64::from(seconds) * 1_000_000_000 + fraction_ns;
        let (link_type, cut) = (self.link_type, captured < original);
        Ok(Some(Captured { time_ns, link_type, cut, bytes }))
    }
}
