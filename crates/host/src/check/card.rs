//! A network card: what its driver tells, and what of it delays a feed.

use std::fs;
use std::io;
use std::path::Path;

use super::{FactVerdict, HostFinding, HostWants, read_word};
use crate::ethtool::DriverQuestions;
use crate::losses::{CardLoss, LossCause, LossReader};

/// Headers of IPv4 and UDP in front of a datagram, bytes.
const IP_UDP_BYTES: u64 = 28;
/// Counters of losses that are shown.
const LOSSES_SHOWN: usize = 6;
/// The feature by which the kernel gathers datagrams that no socket of this host asked to gather.
const GATHERS_FOR_OTHERS: &str = "rx-udp-gro-forwarding";
/// Longest packet that a native XDP program takes in one page of 4 KiB, by the driver of ENA, whose
/// limit is the lowest of the clouds' cards.
const XDP_MTU_MAX: u64 = 3_498;

/// How long a card gathers packets before it interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoalescingFacts {
    /// Microseconds of gathering.
    pub receive_us: u32,
    /// Whether the driver changes the time by itself.
    pub is_adaptive: bool,
}

/// Packets that may wait in the card's receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// Now.
    pub receive: u32,
    /// At most.
    pub receive_max: u32,
}

/// Queues of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelCounts {
    /// Now.
    pub combined: u32,
    /// At most.
    pub combined_max: u32,
}

/// What a card is at one moment. `None` stands for what its driver does not tell.
#[derive(Clone, Debug, Default)]
pub struct CardFacts {
    /// Name of the interface.
    pub name: String,
    /// Whether there is such an interface.
    pub exists: bool,
    /// Name of the driver, such as ena or mlx5_core.
    pub driver: Option<String>,
    /// Longest packet, bytes.
    pub mtu: Option<u64>,
    /// Interrupts.
    pub coalescing: Option<CoalescingFacts>,
    /// Rings.
    pub rings: Option<RingSizes>,
    /// Queues.
    pub channels: Option<ChannelCounts>,
    /// Whether the kernel gathers datagrams that arrive for one socket (GRO).
    pub gathers: Option<bool>,
    /// Whether the kernel also gathers datagrams that no socket asked to gather.
    pub gathers_for_others: Option<bool>,
    /// Nanoseconds for which the kernel holds gathered datagrams back (`gro_flush_timeout`).
    pub gathering_ns: Option<u64>,
    /// Counters of lost packets.
    pub losses: Vec<CardLoss>,
}

/// The interfaces that are up and have carried a packet, without loopback.
pub(super) fn cards_below(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root.join("sys/class/net")).into_iter().flatten().flatten();
    let is_used = |directory: &Path| {
        let is_up = read_word(&directory.join("operstate")).is_some_and(|state| state != "down");
        let received = read_word(&directory.join("statistics/rx_packets"));
        is_up && received.is_some_and(|count| count != "0")
    };
    let entries = entries.filter(|entry| is_used(&entry.path()));
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name != "lo");
    names.sort();
    names
}

impl CardFacts {
    /// Reads an interface of this host: its files below a directory, and its driver.
    pub(super) fn read(root: &Path, name: &str) -> Self {
        let directory = root.join("sys/class/net").join(name);
        let mtu = read_word(&directory.join("mtu")).and_then(|mtu| mtu.parse().ok());
        let mut facts = Self { name: name.into(), exists: mtu.is_some(), mtu, ..Self::default() };
        if facts.exists {
            // Without an answer of the driver the files still say something.
            let _ = facts.ask_driver();
        }
        facts.losses =
            LossReader::open(name).map_or_else(|_| Vec::new(), |card| card.read_losses());
        let gathering = read_word(&directory.join("gro_flush_timeout"));
        facts.gathering_ns = gathering.and_then(|ns| ns.parse().ok());
        facts
    }

    fn ask_driver(&mut self) -> io::Result<()> {
        let driver = DriverQuestions::open(&self.name)?;
        let about = driver.ask_about()?;
        self.coalescing = driver.ask_coalescing().ok();
        self.rings = driver.ask_rings().ok();
        self.channels = driver.ask_channels().ok();
        self.gathers = driver.ask_gathering().ok();
        self.gathers_for_others = driver.ask_feature(GATHERS_FOR_OTHERS).ok().flatten();
        self.driver = Some(about.driver);
        Ok(())
    }

    /// Judges the card on a host of so many cores.
    pub(super) fn judge_card(&self, cores: usize, wants: &HostWants) -> Vec<HostFinding> {
        let name = &self.name;
        if !self.exists {
            let mut missing =
                HostFinding::new(name, FactVerdict::Costly, "there is no such interface");
            missing.mend = Some("ip link lists the interfaces".into());
            return vec![missing];
        }
        let driver = self.driver.as_deref().unwrap_or("driver not told");
        let mut findings = vec![HostFinding::new(name, FactVerdict::Good, driver)];
        findings.extend(self.mtu.map(|mtu| self.judge_mtu(mtu, wants)));
        findings.extend(self.mtu.map(|mtu| self.describe_xdp(mtu)));
        findings.extend(self.coalescing.map(|coalescing| self.judge_interrupts(coalescing)));
        findings.extend(self.judge_gathering(wants));
        findings.extend(self.rings.map(|rings| self.judge_ring(rings)));
        findings.extend(self.channels.map(|channels| self.judge_queues(channels, cores)));
        findings.push(self.judge_losses());
        findings
    }

    /// Judges whether full datagrams fit. The network of a cloud often carries less than 1,500
    /// bytes, and drops what a card with a longer MTU sends, so that shorter datagrams come first.
    fn judge_mtu(&self, mtu: u64, wants: &HostWants) -> HostFinding {
        let name = &self.name;
        let (about, needed) = (format!("{name}: MTU"), wants.datagram_bytes + IP_UDP_BYTES);
        HostFinding::good_if(mtu >= needed, about, format!("{mtu} bytes")).explain_cost(
            "full datagrams are split, and one lost half loses the whole",
            format!(
                "multicast.framing.datagram_bytes = {} in the settings; or, where the whole \
                 network carries {needed} bytes, ip link set {name} mtu {needed}",
                mtu.saturating_sub(IP_UDP_BYTES)
            ),
        )
    }

    /// Tells whether the driver takes a native XDP program at this MTU. No kind of port needs the
    /// program, so neither answer is costly.
    fn describe_xdp(&self, mtu: u64) -> HostFinding {
        let name = &self.name;
        let about = format!("{name}: MTU for native XDP");
        let found = if mtu <= XDP_MTU_MAX {
            format!("{mtu} bytes fit one page")
        } else {
            format!(
                "{mtu} bytes fit no page; no io.port needs it, and a program of yours would need \
                 ip link set {name} mtu {XDP_MTU_MAX}"
            )
        };
        HostFinding::new(about, FactVerdict::Good, found)
    }

    fn judge_interrupts(&self, coalescing: CoalescingFacts) -> HostFinding {
        let (name, CoalescingFacts { receive_us, is_adaptive }) = (&self.name, coalescing);
        let by = if is_adaptive { ", adaptive" } else { "" };
        let is_good = receive_us == 0 && !is_adaptive;
        let found = format!("after {receive_us} us{by}");
        HostFinding::good_if(is_good, format!("{name}: interrupts"), found).explain_cost(
            "the card gathers packets so long before the kernel sees the first; without it the \
             interrupts take more processor time",
            format!("ethtool -C {name} adaptive-rx off rx-usecs 0"),
        )
    }

    /// How the kernel gathers datagrams before sockets and programs see them.
    fn judge_gathering(&self, wants: &HostWants) -> Vec<HostFinding> {
        let name = &self.name;
        let mut findings = Vec::new();
        findings.extend(self.gathers.map(|gathers| {
            let found = if gathers { "on" } else { "off" };
            HostFinding::good_if(gathers, format!("{name}: GRO"), found).explain_cost(
                "each datagram of a burst climbs to the socket by itself",
                format!("ethtool -K {name} gro on"),
            )
        }));
        findings.extend(self.gathering_ns.map(|ns| {
            // A reader that polls the card flushes what was gathered.
            let is_good = ns == 0 || wants.busy_poll_us.is_some();
            let found = format!("{ns} ns");
            HostFinding::good_if(is_good, format!("{name}: GRO holds back"), found).explain_cost(
                "the last datagrams of a burst wait so long for others",
                format!("echo 0 > /sys/class/net/{name}/gro_flush_timeout"),
            )
        }));
        findings.extend(self.gathers_for_others.map(|gathers| {
            let found = if gathers { "on" } else { "off" };
            let is_good = !(gathers && wants.kernel_forwards);
            let about = format!("{name}: GRO for others ({GATHERS_FOR_OTHERS})");
            HostFinding::good_if(is_good, about, found).explain_cost(
                "the kernel forwards single datagrams, and leaves gathered ones to the process",
                format!("ethtool -K {name} {GATHERS_FOR_OTHERS} off"),
            )
        }));
        findings
    }

    fn judge_ring(&self, rings: RingSizes) -> HostFinding {
        let (name, RingSizes { receive, receive_max }) = (&self.name, rings);
        let found = format!("{receive} of {receive_max} packets");
        HostFinding::good_if(receive >= receive_max, format!("{name}: receive ring"), found)
            .explain_cost(
                "a burst that comes while the core is away is lost in the card",
                format!("ethtool -G {name} rx {receive_max}"),
            )
    }

    fn judge_queues(&self, channels: ChannelCounts, cores: usize) -> HostFinding {
        let (name, ChannelCounts { combined, combined_max }) = (&self.name, channels);
        let wanted = combined_max.min(u32::try_from(cores).unwrap_or(u32::MAX)).max(1);
        let found = format!("{combined} of {combined_max}");
        HostFinding::good_if(combined >= wanted, format!("{name}: queues"), found).explain_cost(
            "all packets are taken by few cores, and a busy core delays them all",
            format!("ethtool -L {name} combined {wanted}"),
        )
    }

    fn judge_losses(&self) -> HostFinding {
        let about = format!("{}: packets lost", self.name);
        let lost: Vec<_> = self.losses.iter().filter(|loss| loss.packets > 0).collect();
        let shown = lost.iter().take(LOSSES_SHOWN);
        let shown: Vec<_> =
            shown.map(|loss| format!("{} {}", loss.counter, loss.packets)).collect();
        let found = if shown.is_empty() { "none told".into() } else { shown.join(", ") };
        let is_cloud = lost.iter().any(|loss| loss.cause == LossCause::Cloud);
        let mend = if is_cloud {
            "the cloud refused packets beyond the allowance of this kind of machine; take a larger \
             kind, or send less by a smaller fan-out (plan tree --depth)"
        } else {
            "see the rows above on the ring, the queues and the buffers"
        };
        HostFinding::good_if(lost.is_empty(), about, found)
            .explain_cost("they are repaired one round trip later", mend)
    }
}
