//! Packets that a network card, or the cloud around it, lost: the counters of the card's driver.
//!
//! A message that is repaired was lost somewhere, and the counters of evenfall do not say where. A
//! machine of a cloud has allowances of bandwidth and of packets. What goes beyond them is queued
//! or dropped outside of the machine, and the driver alone can tell: ENA has five counters of it.
//! Other drivers count what found no room in the card. Each driver has names of its own, and most
//! count by queue:
//!
//! ```text
//!   pps_allowance_exceeded                       ena: the cloud
//!   rx_queue_0_drops, rx_queue_1_drops           virtio_net, veth   -> rx_drops
//!   rx_queue_drop_cnt[0]                         gve                -> rx_queue_drop_cnt
//!   rx0_out_of_buffer, rx_discards_phy           mlx5               -> rx_out_of_buffer
//!   hc_rx_discards_no_wqe                        mana
//! ```
//!
//! [`sum_losses`] takes the counters that count lost packets by parts of their names, and adds up
//! the queues. [`LossReader`] asks the driver by a call of the kernel. Some drivers ask the card
//! before they answer, so the reader belongs on a thread that may wait for milliseconds.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checked;
use crate::ethtool::DriverQuestions;

/// The part of a name that counts what went beyond an allowance of the cloud.
const CLOUD_WORD: &str = "allowance_exceeded";
/// Parts of names that count packets which found no room, or were thrown away.
const CARD_WORDS: [&str; 6] = ["drop", "discard", "missed", "out_of_buffer", "no_buf", "overrun"];
/// The part of a name that counts what a program of XDP decided, which is no loss of the card.
const XDP_WORD: &str = "xdp";
/// The file in which the kernel counts the packets that it dropped at each interface of the network
/// namespace of the reading thread.
const KERNEL_FILE: &str = "/proc/thread-self/net/dev";
/// The columns of that file with dropped packets, counted behind the name.
const KERNEL_COLUMNS: [(usize, &str); 2] = [(3, "kernel_rx_dropped"), (11, "kernel_tx_dropped")];

/// Who lost packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossCause {
    /// The cloud, beyond an allowance of this kind of machine.
    Cloud,
    /// The card, its driver or the kernel's queue for it, which had no room.
    Card,
}

impl LossCause {
    /// The word that people and programs read.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cloud => "cloud",
            Self::Card => "card",
        }
    }
}

/// A counter of lost packets, summed over the queues of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardLoss {
    /// The driver's name of the counter, without a queue.
    pub counter: String,
    /// Who lost the packets.
    pub cause: LossCause,
    /// Packets since the driver started.
    pub packets: u64,
}

/// The name of a counter without its queue: the digits of a part, a part of digits alone with the
/// word `queue` before it, and a number in brackets.
fn strip_queue(name: &str) -> String {
    let name = name.split('[').next().unwrap_or(name);
    let mut parts: Vec<&str> = Vec::new();
    for part in name.split('_') {
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            if parts.last() == Some(&"queue") {
                parts.pop();
            }
            continue;
        }
        let word = part.trim_end_matches(|letter: char| letter.is_ascii_digit());
        parts.push(if ["rx", "tx", "ch", "queue"].contains(&word) { word } else { part });
    }
    parts.join("_")
}

/// Who lost the packets that a counter of this name counts; `None` for a counter of anything else.
fn cause_of(counter: &str) -> Option<LossCause> {
    if counter.contains(CLOUD_WORD) {
        return Some(LossCause::Cloud);
    }
    let is_card = CARD_WORDS.iter().any(|word| counter.contains(word));
    (is_card && !counter.contains(XDP_WORD)).then_some(LossCause::Card)
}

/// The counters of lost packets among the counters of a driver, the cloud's first. A counter that
/// is 0 is among them, because it says that the driver would tell.
pub fn sum_losses(counters: impl IntoIterator<Item = (String, u64)>) -> Vec<CardLoss> {
    let mut sums: BTreeMap<(LossCause, String), u64> = BTreeMap::new();
    for (name, packets) in counters {
        let counter = strip_queue(&name);
        if let Some(cause) = cause_of(&counter) {
            let sum = sums.entry((cause, counter)).or_default();
            *sum = sum.saturating_add(packets);
        }
    }
    let loss = |((cause, counter), packets)| CardLoss { counter, cause, packets };
    sums.into_iter().map(loss).collect()
}

/// The packets that the kernel dropped at an interface, by the text of [`KERNEL_FILE`].
fn kernel_drops(text: &str, interface: &str) -> Vec<CardLoss> {
    let of = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        (name.trim() == interface).then(|| numbers.split_whitespace().map(str::to_owned).collect())
    };
    let numbers: Vec<String> = text.lines().find_map(of).unwrap_or_default();
    let loss = |(at, counter): (usize, &str)| {
        let packets = numbers.get(at)?.parse().ok()?;
        Some(CardLoss { counter: counter.into(), cause: LossCause::Card, packets })
    };
    KERNEL_COLUMNS.into_iter().filter_map(loss).collect()
}

/// Reads the counters of lost packets of one card. Each read asks the driver anew.
pub struct LossReader {
    interface: String,
    driver: DriverQuestions,
}

impl LossReader {
    /// A reader for an interface, in the network namespace of this thread.
    ///
    /// # Errors
    /// When there is no such interface, or the process may open no socket.
    pub fn open(interface: &str) -> io::Result<Self> {
        let driver = DriverQuestions::open(interface)?;
        driver.check_interface()?;
        Ok(Self { interface: interface.into(), driver })
    }

    /// A reader for the card that has this address; `None` for loopback and for an address that no
    /// interface has.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn for_address(address: IpAddr) -> io::Result<Option<Self>> {
        interface_of(address)?.map(|interface| Self::open(&interface)).transpose()
    }

    /// Name of the interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The lost packets so far, the cloud's first. The counters of the kernel follow those of the
    /// driver. A driver without counters adds nothing to the list.
    pub fn read_losses(&self) -> Vec<CardLoss> {
        let counters =
            self.driver.ask_about().and_then(|about| self.driver.ask_counters(about.counters));
        let mut losses = sum_losses(counters.unwrap_or_default());
        let text = fs::read_to_string(KERNEL_FILE).unwrap_or_default();
        losses.extend(kernel_drops(&text, &self.interface));
        losses
    }
}

/// The interface that has this address, unless it is loopback.
fn interface_of(wanted: IpAddr) -> io::Result<Option<String>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the pointer is to a live local, which the kernel's library sets to a list.
    checked(unsafe { libc::getifaddrs(&raw mut list) })?;
    let mut found = None;
    let mut at = list;
    // SAFETY: `at` is null or an element of the list, which lives until it is freed below.
    while let Some(entry) = unsafe { at.as_ref() } {
        let is_loopback = entry.ifa_flags & libc::IFF_LOOPBACK as libc::c_uint != 0;
        if !is_loopback && ip_of(entry.ifa_addr) == Some(wanted.to_canonical()) {
            // SAFETY: the name of an element is a string that ends with a nul.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            found = Some(name.to_string_lossy().into_owned());
            break;
        }
        at = entry.ifa_next;
    }
    // SAFETY: `list` came from `getifaddrs`, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// The address of IP in the kernel's form; `None` for null and for other families.
fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the pointer is null or to an address of the list above, whose family is always set.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: an address of this family has this form. It may stand at any byte.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
