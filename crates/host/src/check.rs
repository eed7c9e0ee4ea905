//! What of a host delays a feed, and the command that mends it.
//!
//! Most of what makes a machine late is a default that suits another purpose: a card that gathers
//! packets before it interrupts, a core that sleeps deeply, a buffer of 200 KiB. Each is known by
//! a file of the kernel or by a question to the card's driver. [`HostFacts`] are these values, read
//! at one moment; [`judge_host`] is a pure function of them, so that tests plant any host.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::quota;
use crate::rights::{self, CAP_BPF, CAP_NET_ADMIN, CAP_SYS_NICE};

mod card;

pub use card::{CardFacts, ChannelCounts, CoalescingFacts, RingSizes};

/// Microseconds of waking up that a release can lose without a place among the largest delays: a
/// tenth of the lateness that a run is judged by.
const WAKE_US_MAX: u64 = 50;
/// Shares of processor time that a hypervisor takes, beyond which deadlines are missed because of
/// it.
const STEAL_SHARE_MAX: f64 = 0.01;
/// Sources of the kernel's clock that are read without a system call.
const FAST_CLOCK_SOURCES: [&str; 4] =
    ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];

/// A state in which an idle core sleeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleState {
    /// Number of the state, deeper ones last.
    pub number: usize,
    /// Name of the state, such as C6.
    pub name: String,
    /// Microseconds until the core works again.
    pub exit_us: u64,
}

/// Datagrams that the kernel dropped since the host started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpDrops {
    /// Because a receive buffer was full.
    pub receive_buffer: u64,
    /// Because a send buffer was full.
    pub send_buffer: u64,
}

/// What a host is at one moment. `None` stands for what this host does not tell.
#[derive(Clone, Debug, Default)]
pub struct HostFacts {
    /// Cores that the process may use.
    pub cores: usize,
    /// The largest receive buffer that a socket may ask for, bytes.
    pub receive_buffer_max: Option<u64>,
    /// Microseconds for which every socket may poll its card without a right
    /// (`net.core.busy_read`).
    pub busy_read_us: Option<u64>,
    /// How cores choose their frequency; empty where the hypervisor does.
    pub governors: BTreeSet<String>,
    /// The deepest sleep that is allowed.
    pub deepest_sleep: Option<IdleState>,
    /// Where the kernel's clock comes from.
    pub clock_source: Option<String>,
    /// Other sources that this host has.
    pub clock_sources: Vec<String>,
    /// The share of processor time since the start that the hypervisor gave to others.
    pub steal_share: Option<f64>,
    /// The processor time that control groups allow, in thousandths of a core.
    pub quota_milli_cores: Option<u64>,
    /// Datagrams that were dropped.
    pub udp_drops: Option<UdpDrops>,
    /// Rights of this process, a bit each.
    pub capabilities: u64,
    /// The network cards that were asked about.
    pub cards: Vec<CardFacts>,
}

impl HostFacts {
    /// Reads this host, and these cards of it.
    pub fn read(cards: &[String]) -> Self {
        let mut facts = Self::read_below(Path::new("/"));
        facts.cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        facts.quota_milli_cores = quota::milli_cores();
        facts.cards = cards.iter().map(|name| CardFacts::read(Path::new("/"), name)).collect();
        facts
    }

    /// Reads the files of a host below a directory.
    fn read_below(root: &Path) -> Self {
        let word = |file: &str| read_word(&root.join(file));
        let cpus = root.join("sys/devices/system/cpu");
        let source = "sys/devices/system/clocksource/clocksource0";
        let sources = word(&format!("{source}/available_clocksource")).unwrap_or_default();
        Self {
            receive_buffer_max: word("proc/sys/net/core/rmem_max").and_then(|max| max.parse().ok()),
            busy_read_us: word("proc/sys/net/core/busy_read").and_then(|us| us.parse().ok()),
            governors: read_governors(&cpus),
            deepest_sleep: read_deepest_sleep(&cpus.join("cpu0/cpuidle")),
            clock_source: word(&format!("{source}/current_clocksource")),
            clock_sources: sources.split_whitespace().map(str::to_owned).collect(),
            steal_share: word("proc/stat").as_deref().and_then(steal_share),
            udp_drops: word("proc/net/snmp").as_deref().and_then(udp_drops),
            capabilities: word("proc/self/status").as_deref().map_or(0, rights::parse_effective),
            ..Self::default()
        }
    }

    fn has_right(&self, capability: u32) -> bool {
        self.capabilities >> capability & 1 == 1
    }
}

/// A file of the kernel, without white space around it.
fn read_word(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The entries of a directory whose names are a word and a number, in order of the numbers.
fn numbered(directory: &Path, word: &str) -> Vec<(usize, std::path::PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix(word)?.parse().ok()?;
        Some((number, entry.path()))
    };
    let mut found: Vec<_> = entries.filter_map(number).collect();
    found.sort();
    found
}

fn read_governors(cpus: &Path) -> BTreeSet<String> {
    let of =
        |(_, cpu): (usize, std::path::PathBuf)| read_word(&cpu.join("cpufreq/scaling_governor"));
    numbered(cpus, "cpu").into_iter().filter_map(of).collect()
}

fn read_deepest_sleep(states: &Path) -> Option<IdleState> {
    let states = numbered(states, "state").into_iter().filter_map(|(number, state)| {
        let is_allowed = read_word(&state.join("disable"))? == "0";
        let exit_us = read_word(&state.join("latency"))?.parse().ok()?;
        let name = read_word(&state.join("name"))?;
        is_allowed.then_some(IdleState { number, name, exit_us })
    });
    states.max_by_key(|state| state.exit_us)
}

/// The eighth count of the first line of `/proc/stat`, of the sum of the first eight.
fn steal_share(stat: &str) -> Option<f64> {
    let counts = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let counts: Vec<f64> = counts.take(8).map_while(|count| count.parse().ok()).collect();
    let sum: f64 = counts.iter().sum();
    (counts.len() == 8 && sum > 0.0).then(|| counts[7] / sum)
}

/// The counters of UDP are two lines of `/proc/net/snmp`: names, then values.
fn udp_drops(snmp: &str) -> Option<UdpDrops> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |wanted: &str| {
        let mut both = names.split_whitespace().zip(values.split_whitespace());
        both.find(|(name, _)| *name == wanted)?.1.parse().ok()
    };
    Some(UdpDrops { receive_buffer: value("RcvbufErrors")?, send_buffer: value("SndbufErrors")? })
}

/// The network cards of this host that are up, without loopback.
pub fn cards_in_use() -> Vec<String> {
    card::cards_below(Path::new("/"))
}

/// What the run on this host wants of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostWants {
    /// Receive buffer of a socket, bytes (`io.receive_buffer_bytes`).
    pub receive_buffer_bytes: u64,
    /// Limit of a datagram, bytes (`multicast.framing.datagram_bytes`).
    pub datagram_bytes: u64,
    /// Whether the kernel is to forward (`io.port = "tc"` or `"auto"`).
    pub kernel_forwards: bool,
    /// Microseconds for which the kernel is to poll the card (`io.kernel_busy_poll`).
    pub busy_poll_us: Option<u64>,
    /// Whether the role's thread is to have a real-time priority (`io.real_time`).
    pub real_time: bool,
}

/// How a fact of the host is for a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FactVerdict {
    /// It is as a feed needs it.
    Good,
    /// This host does not tell it, or nobody on this host decides it.
    Unknown,
    /// It costs time or messages.
    Costly,
}

impl FactVerdict {
    /// The word that people and programs read.
    pub fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Unknown => "unknown",
            Self::Costly => "costly",
        }
    }
}

/// One fact of the host, judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFinding {
    /// What was looked at, such as "receive buffers" or "eth0: interrupts".
    pub about: String,
    /// How it is.
    pub verdict: FactVerdict,
    /// What was found.
    pub found: String,
    /// What it costs, when it does.
    pub why: &'static str,
    /// The command or the step that mends it, when there is one.
    pub mend: Option<String>,
}

impl HostFinding {
    fn new(about: impl Into<String>, verdict: FactVerdict, found: impl Into<String>) -> Self {
        Self { about: about.into(), verdict, found: found.into(), why: "", mend: None }
    }

    /// A finding that is good, or else costs something.
    fn good_if(is_good: bool, about: impl Into<String>, found: impl Into<String>) -> Self {
        let verdict = if is_good { FactVerdict::Good } else { FactVerdict::Costly };
        Self::new(about, verdict, found)
    }

    /// Says what a costly finding costs, and what mends it.
    fn explain_cost(mut self, why: &'static str, mend: impl Into<String>) -> Self {
        if self.verdict == FactVerdict::Costly {
            (self.why, self.mend) = (why, Some(mend.into()));
        }
        self
    }
}

/// Judges a host. The order is that of the facts, cards last.
pub fn judge_host(facts: &HostFacts, wants: &HostWants) -> Vec<HostFinding> {
    let mut findings = vec![
        judge_buffers(facts, wants),
        judge_busy_poll(facts, wants),
        judge_governor(facts),
        judge_sleep(facts),
        judge_clock_source(facts),
        judge_steal(facts),
        judge_quota(facts),
        judge_drops(facts),
    ];
    findings.extend(judge_rights(facts, wants));
    findings.extend(facts.cards.iter().flat_map(|card| card.judge_card(facts.cores, wants)));
    findings
}

fn judge_buffers(facts: &HostFacts, wants: &HostWants) -> HostFinding {
    let about = "receive buffers";
    let Some(max) = facts.receive_buffer_max else {
        return HostFinding::new(about, FactVerdict::Unknown, "no net.core.rmem_max");
    };
    // The kernel counts its own bytes beside a datagram's, and doubles what a socket asks for.
    let needed = wants.receive_buffer_bytes.saturating_mul(2);
    let forced = facts.has_right(CAP_NET_ADMIN);
    let by = if forced { ", and CAP_NET_ADMIN goes beyond it" } else { "" };
    HostFinding::good_if(forced || max >= needed, about, format!("{max} bytes at most{by}"))
        .explain_cost(
            "the kernel drops bursts that do not fit, and they are repaired one round trip later",
            format!("sysctl -w net.core.rmem_max={needed}"),
        )
}

fn judge_busy_poll(facts: &HostFacts, wants: &HostWants) -> HostFinding {
    let about = "polling of the card by readers";
    let Some(wanted) = wants.busy_poll_us else {
        return HostFinding::new(about, FactVerdict::Good, "not asked for by io.kernel_busy_poll");
    };
    let Some(allowed) = facts.busy_read_us else {
        return HostFinding::new(about, FactVerdict::Unknown, "no net.core.busy_read");
    };
    let forced = facts.has_right(CAP_NET_ADMIN);
    let by = if forced { ", and CAP_NET_ADMIN goes beyond it" } else { "" };
    let found = format!("{allowed} us at most of {wanted} us{by}");
    HostFinding::good_if(forced || allowed >= wanted, about, found).explain_cost(
        "the kernel refuses io.kernel_busy_poll, and a reader sleeps until the card interrupts",
        format!("sysctl -w net.core.busy_read={wanted}"),
    )
}

fn judge_governor(facts: &HostFacts) -> HostFinding {
    let about = "frequency of the cores";
    if facts.governors.is_empty() {
        return HostFinding::new(about, FactVerdict::Unknown, "decided outside of this machine");
    }
    let is_fast = facts.governors.iter().all(|governor| governor == "performance");
    let found = facts.governors.iter().cloned().collect::<Vec<_>>().join(", ");
    HostFinding::good_if(is_fast, about, found).explain_cost(
        "a core that slowed down takes milliseconds to become fast again",
        "echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    )
}

fn judge_sleep(facts: &HostFacts) -> HostFinding {
    let about = "sleep of idle cores";
    let Some(IdleState { number, name, exit_us }) = &facts.deepest_sleep else {
        return HostFinding::new(about, FactVerdict::Unknown, "decided outside of this machine");
    };
    HostFinding::good_if(*exit_us <= WAKE_US_MAX, about, format!("{name}, {exit_us} us to wake up"))
        .explain_cost(
            "a release waits until the core works again",
            format!("echo 1 | tee /sys/devices/system/cpu/cpu*/cpuidle/state{number}/disable"),
        )
}

fn judge_clock_source(facts: &HostFacts) -> HostFinding {
    let about = "source of the clock";
    let Some(source) = &facts.clock_source else {
        return HostFinding::new(about, FactVerdict::Unknown, "not told");
    };
    let is_fast = |source: &String| FAST_CLOCK_SOURCES.contains(&source.as_str());
    let mend = match facts.clock_sources.iter().find(|other| is_fast(other)) {
        Some(other) => format!(
            "echo {other} > /sys/devices/system/clocksource/clocksource0/current_clocksource"
        ),
        None => "this machine has no faster source; take another kind of machine".into(),
    };
    HostFinding::good_if(is_fast(source), about, source)
        .explain_cost("each reading of the clock is a system call, several a message", mend)
}

fn judge_steal(facts: &HostFacts) -> HostFinding {
    let about = "time that the hypervisor took";
    let Some(share) = facts.steal_share else {
        return HostFinding::new(about, FactVerdict::Unknown, "not told");
    };
    let found = format!("{:.2} % since the start", share * 100.0);
    HostFinding::good_if(share <= STEAL_SHARE_MAX, about, found).explain_cost(
        "messages that are due meanwhile are late, whatever the program does",
        "measure other machines and take them: evenfall plan live",
    )
}

fn judge_quota(facts: &HostFacts) -> HostFinding {
    let about = "processor time that control groups allow";
    let Some(quota) = facts.quota_milli_cores else {
        return HostFinding::new(about, FactVerdict::Good, "no quota");
    };
    // A quota of all cores stops nothing.
    let is_whole = quota >= facts.cores as u64 * 1_000;
    let found = format!("{} of {} cores", quota as f64 / 1_000.0, facts.cores);
    HostFinding::good_if(is_whole, about, found).explain_cost(
        "a group that used its time stands still for the rest of a tenth of a second",
        "give the process cores of its own (cpusets, --cpuset-cpus) in place of a quota",
    )
}

fn judge_drops(facts: &HostFacts) -> HostFinding {
    let about = "datagrams that the kernel dropped";
    let Some(UdpDrops { receive_buffer, send_buffer }) = facts.udp_drops else {
        return HostFinding::new(about, FactVerdict::Unknown, "not told");
    };
    let found = format!("{receive_buffer} received, {send_buffer} sent, since the start");
    HostFinding::good_if(receive_buffer + send_buffer == 0, about, found).explain_cost(
        "a process of this host did not keep up, or had small buffers",
        "raise io.receive_buffer_bytes, or give the process a core of its own",
    )
}

fn judge_rights(facts: &HostFacts, wants: &HostWants) -> Vec<HostFinding> {
    let forwards = wants.kernel_forwards;
    let rights = [
        (
            CAP_NET_ADMIN,
            "CAP_NET_ADMIN",
            "forwarding by the kernel, polling, large buffers",
            forwards,
        ),
        (CAP_SYS_NICE, "CAP_SYS_NICE", "io.real_time", wants.real_time),
        (CAP_BPF, "CAP_BPF", "forwarding by the kernel (io.port)", forwards),
    ];
    let judge = |(capability, name, for_what, is_needed): (u32, &str, &str, bool)| {
        let (verdict, found) = match (facts.has_right(capability), is_needed) {
            (true, _) => (FactVerdict::Good, format!("there, for {for_what}")),
            (false, true) => (FactVerdict::Costly, format!("missing, for {for_what}")),
            (false, false) => (FactVerdict::Good, format!("not there; only {for_what} needs it")),
        };
        let right = name.to_lowercase();
        HostFinding::new(format!("right {name}"), verdict, found).explain_cost(
            "the kernel refuses what the settings ask for",
            format!(
                "setcap {right}+ep $(command -v evenfall) for this right alone, or \
                 AmbientCapabilities={name} in the unit"
            ),
        )
    };
    rights.map(judge).into()
}

#[cfg(test)]
mod tests;
