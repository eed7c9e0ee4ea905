//! Packets of channels that are not the feed's, counted by their address.

use super::{CapturedPacket, ends_of};
use crate::pcap::packet::Transport;
use std::collections::BTreeMap;

/// Addresses that are counted one by one. A host that listens to everything hears thousands.
const ADDRESSES_MAX: usize = 1_024;
/// Addresses that are named, those with the most packets.
const NAMED_MAX: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Strangers {
    counts: BTreeMap<String, u64>,
    total: u64,
}

impl Strangers {
    pub fn count(&mut self, packet: &CapturedPacket) {
        // Acknowledgements carry no bytes that could be missed.
        if packet.transport != Transport::Udp && packet.payload.is_empty() {
            return;
        }
        self.total += 1;
        let name = match ends_of(packet) {
            (None, destination) => destination.to_string(),
            (Some(source), destination) => format!("TCP from {source} to {destination}"),
        };
        if self.counts.len() < ADDRESSES_MAX || self.counts.contains_key(&name) {
            *self.counts.entry(name).or_default() += 1;
        }
    }

    /// A sentence about them; `None` when there are none.
    pub fn remark(&self) -> Option<String> {
        let mut all: Vec<(&String, &u64)> = self.counts.iter().collect();
        all.sort_by_key(|(name, count)| (core::cmp::Reverse(**count), *name));
        let of = |(name, count): &(&String, &u64)| match **count {
            1 => (*name).clone(),
            count => format!("{name} ({count})"),
        };
        let named: Vec<String> = all.iter().take(NAMED_MAX).map(of).collect();
        let more = match all.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} further addresses"),
        };
        let packets = if self.total == 1 { "packet" } else { "packets" };
        let (total, named) = (self.total, named.join(", "));
        (total > 0).then(|| format!("{total} {packets} of another protocol: {named}{more}"))
    }
}
