//! A network card: what its driver tells, and what of it delays a feed.

use std::fs;
use std::io;
use std::path::Path;

use super::ethtool::DriverQuestions;
use super::{DATAGRAM_MTU, FactVerdict, HostFinding, read_word};

/// Parts of names of counters that count lost packets: what a cloud's allowances refused (ENA), and
/// what found no buffer or was thrown away (mlx5, gve, MANA and others).
const LOSS_WORDS: [&str; 5] =
    ["allowance_exceeded", "out_of_buffer", "no_buf", "discard", "missed"];
/// Counters of losses that are shown.
const LOSSES_SHOWN: usize = 6;

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
    /// Counters of lost packets that are not 0, by name.
    pub losses: Vec<(String, u64)>,
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
        let dropped = read_word(&directory.join("statistics/rx_dropped"));
        let missed = read_word(&directory.join("statistics/rx_missed_errors"));
        for (counter, value) in [("rx_dropped", dropped), ("rx_missed_errors", missed)] {
            let value = value.and_then(|value| value.parse().ok()).unwrap_or(0);
            if value > 0 {
                facts.losses.push((counter.into(), value));
            }
        }
        facts
    }

    fn ask_driver(&mut self) -> io::Result<()> {
        let driver = DriverQuestions::open(&self.name)?;
        let about = driver.ask_about()?;
        self.coalescing = driver.ask_coalescing().ok();
        self.rings = driver.ask_rings().ok();
        self.channels = driver.ask_channels().ok();
        let counters = driver.ask_counters(about.counters).unwrap_or_default();
        let is_loss = |name: &str| LOSS_WORDS.iter().any(|word| name.contains(word));
        self.losses =
            counters.into_iter().filter(|(name, value)| *value > 0 && is_loss(name)).collect();
        self.driver = Some(about.driver);
        Ok(())
    }

    /// Judges the card on a host of so many cores.
    pub(super) fn judge_card(&self, cores: usize) -> Vec<HostFinding> {
        let name = &self.name;
        if !self.exists {
            let mut missing =
                HostFinding::new(name, FactVerdict::Costly, "there is no such interface");
            missing.mend = Some("ip link lists the interfaces".into());
            return vec![missing];
        }
        let driver = self.driver.as_deref().unwrap_or("driver not told");
        let mut findings = vec![HostFinding::new(name, FactVerdict::Good, driver)];
        findings.extend(self.mtu.map(|mtu| {
            HostFinding::good_if(
                mtu >= DATAGRAM_MTU,
                format!("{name}: MTU"),
                format!("{mtu} bytes"),
            )
            .explain_cost(
                "full datagrams are split, and one lost half loses the whole",
                format!("ip link set {name} mtu {DATAGRAM_MTU}"),
            )
        }));
        findings.extend(self.coalescing.map(|CoalescingFacts { receive_us, is_adaptive }| {
            let by = if is_adaptive { ", adaptive" } else { "" };
            let is_good = receive_us == 0 && !is_adaptive;
            let found = format!("after {receive_us} us{by}");
            HostFinding::good_if(is_good, format!("{name}: interrupts"), found).explain_cost(
                "the card gathers packets so long before the kernel sees the first; without it the \
                 interrupts take more processor time",
                format!("ethtool -C {name} adaptive-rx off rx-usecs 0"),
            )
        }));
        findings.extend(self.rings.map(|RingSizes { receive, receive_max }| {
            let found = format!("{receive} of {receive_max} packets");
            HostFinding::good_if(receive >= receive_max, format!("{name}: receive ring"), found)
                .explain_cost(
                    "a burst that comes while the core is away is lost in the card",
                    format!("ethtool -G {name} rx {receive_max}"),
                )
        }));
        findings.extend(self.channels.map(|ChannelCounts { combined, combined_max }| {
            let wanted = combined_max.min(u32::try_from(cores).unwrap_or(u32::MAX)).max(1);
            let found = format!("{combined} of {combined_max}");
            HostFinding::good_if(combined >= wanted, format!("{name}: queues"), found).explain_cost(
                "all packets are taken by few cores, and a busy core delays them all",
                format!("ethtool -L {name} combined {wanted}"),
            )
        }));
        findings.push(self.judge_losses());
        findings
    }

    fn judge_losses(&self) -> HostFinding {
        let about = format!("{}: packets lost", self.name);
        let shown = self.losses.iter().take(LOSSES_SHOWN);
        let shown: Vec<_> = shown.map(|(counter, value)| format!("{counter} {value}")).collect();
        let found = if shown.is_empty() { "none told".into() } else { shown.join(", ") };
        let is_cloud = self.losses.iter().any(|(counter, _)| counter.contains("allowance"));
        let mend = if is_cloud {
            "the cloud refused packets beyond the allowance of this kind of machine; take a larger \
             kind, or send less by a smaller fan-out (plan tree --depth)"
        } else {
            "see the rows above on the ring, the queues and the buffers"
        };
        HostFinding::good_if(self.losses.is_empty(), about, found)
            .explain_cost("they are repaired one round trip later", mend)
    }
}
