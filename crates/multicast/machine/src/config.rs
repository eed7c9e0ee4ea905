//! Every limit of the multicast, with its unit and its reason.

use core::fmt;
use core::time::Duration;

use evenfall_core::Hedging;
use serde::{Deserialize, Serialize};

/// How messages travel and whether they are held. Switchable while the feed runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The root sends to every receiver itself; nothing is held.
    Unicast,
    /// A tree of proxies without hedging; nothing is held.
    Tree,
    /// The tree with sibling hedging; nothing is held.
    Hedge,
    /// The tree with hedging, held and released on one deadline.
    #[default]
    Release,
    /// Direct unicast, held and released on one deadline (CloudEx).
    Cloudex,
}

impl Mode {
    /// Whether the root sends to receivers without proxies between.
    pub fn direct(self) -> bool {
        matches!(self, Self::Unicast | Self::Cloudex)
    }

    /// Whether receivers hold a message until its deadline.
    pub fn holds(self) -> bool {
        matches!(self, Self::Release | Self::Cloudex)
    }

    /// Whether proxies also send to the children of siblings.
    pub fn hedges(self) -> bool {
        matches!(self, Self::Hedge | Self::Release)
    }
}

impl fmt::Display for Mode {
    /// The word of the settings.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unicast => "unicast",
            Self::Tree => "tree",
            Self::Hedge => "hedge",
            Self::Release => "release",
            Self::Cloudex => "cloudex",
        })
    }
}

/// Who sends the extra copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Every proxy also sends to the children of H siblings (Jasper section 5.1, final design).
    #[default]
    Siblings,
    /// Each parent has H extra children that have none of their own and send to all nieces (the
    /// F+H variant of section 5.1). For comparison: an extra child sends F^2 copies.
    Extra,
}

/// The shape of the tree. What is not given follows from the number of receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// Hops from the root to a receiver. Default: round(log10 N), at least 1.
    pub depth: Option<u8>,
    /// Children of the root and of each proxy above the last layer. Default 10, or the smallest
    /// that reaches all receivers in `depth` hops when only the depth is given.
    pub fanout: Option<u16>,
    /// Extra copies of each message that a node below the first layer gets.
    pub hedging: Hedging,
    /// Who sends them.
    pub scheme: Scheme,
}

impl Default for Shape {
    fn default() -> Self {
        Self { depth: None, fanout: None, hedging: Hedging::DEFAULT, scheme: Scheme::Siblings }
    }
}

/// By what rule the root sets the time from sending to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The maximum over receivers of their 95th percentile delay (Jasper section 6).
    MaxP95,
    /// The smallest hold that brings a stated share of messages to every receiver in time.
    #[default]
    OnTime,
}

/// Hold-and-release.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Deadline {
    /// The rule.
    pub rule: Rule,
    /// Share of messages that should reach every receiver before their deadline (`on-time` only).
    pub target: f64,
    /// Hold before anything was measured.
    #[serde(with = "humantime_serde")]
    pub hold_initial: Duration,
    /// No straggler can make the hold longer than this; whoever needs more is late, and named.
    #[serde(with = "humantime_serde")]
    pub hold_max: Duration,
    /// How far back the `on-time` rule looks. Longer is steadier, shorter follows load faster.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
    /// Frames per second whose delay is reported one by one; more costs control traffic.
    pub samples_per_second: u32,
}

impl Default for Deadline {
    fn default() -> Self {
        Self {
            rule: Rule::OnTime,
            // Well above the .99 that a venue would promise: messages between two reports are sent
            // on
            // old knowledge, and on a shared machine the next second is not like the last.
            target: 0.994,
            // Long enough for a first message over any one cloud region.
            hold_initial: Duration::from_millis(2),
            hold_max: Duration::from_millis(50),
            window: Duration::from_secs(10),
            samples_per_second: 2_000,
        }
    }
}

/// Repair of what was lost on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Repair {
    /// Frames that the root and each proxy keep for repair.
    pub ring_frames: usize,
    /// Bytes that they keep at most, whichever is reached first; the oldest go first.
    pub ring_bytes: usize,
    /// Width of the de-duplication window, in frames; a power of two. A frame further ahead than
    /// this gives up what is missing behind it.
    pub window_frames: usize,
    /// How long a gap may be mere reordering before it is asked for. A node adds a random time of
    /// up to as much again, so that nodes which miss the same frame do not ask all at once.
    #[serde(with = "humantime_serde")]
    pub reorder_delay: Duration,
    /// How long to wait for an answer before asking the next one: parent, aunts, root, and again.
    #[serde(with = "humantime_serde")]
    pub retry: Duration,
    /// How long a missing message may hold its successors, counted from the last progress of its
    /// repair. Then it is reported lost.
    #[serde(with = "humantime_serde")]
    pub gap_timeout: Duration,
    /// Frames that one child may have waiting for repair; more requests are dropped and counted.
    pub child_queue_max: usize,
    /// How long a late joiner waits for a recorder to say where its messages begin; then it begins
    /// with the live feed, and reports what it should have had before as lost.
    #[serde(with = "humantime_serde")]
    pub locate_timeout: Duration,
    /// Frames per second that the root, and each proxy, sends to all who ask, so that a burst of
    /// repair does not delay the live feed.
    pub frames_per_second: u32,
    /// Frames per second that a recorder sends to all who ask, so that neither its own reception
    /// nor the live feed on a shared link suffers. Beside a feed of more than half as many frames
    /// a recorder sends twice as many as the feed, or late joiners would never catch up.
    pub recorder_frames_per_second: u32,
    /// Dropped repair requests within a second after which a child is too slow and is evicted.
    pub evict_after_drops: u32,
}

impl Default for Repair {
    fn default() -> Self {
        Self {
            // Two seconds of pause at 30,000 frames a second.
            ring_frames: 65_536,
            ring_bytes: 64 << 20,
            window_frames: 65_536,
            reorder_delay: Duration::from_micros(500),
            retry: Duration::from_millis(5),
            gap_timeout: Duration::from_millis(1_000),
            child_queue_max: 4_096,
            // Two seconds of a feed of 30,000 frames a second are back within 1.2 s. At 300 bytes a
            // frame the rate is an eighth of a link of 1 Gb/s.
            frames_per_second: 50_000,
            // A recorder that is just joining, or just died and is being replaced.
            locate_timeout: Duration::from_secs(2),
            // Several times a venue's mean rate: who is a minute behind is back within seconds.
            recorder_frames_per_second: 50_000,
            // Eight full queues: a child that asks faster than it reads.
            evict_after_drops: 32_768,
        }
    }
}

/// Who is in the tree and how their silence is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Membership {
    /// Receivers that the first tree waits for; 0 builds as soon as anybody joins.
    pub expect_receivers: u32,
    /// Proxies that the first tree waits for.
    pub expect_proxies: u32,
    /// How long the first tree waits for them before it is built from who is there.
    #[serde(with = "humantime_serde")]
    pub expect_timeout: Duration,
    /// Time between two attempts to join or to be acknowledged.
    #[serde(with = "humantime_serde")]
    pub join_retry: Duration,
    /// A parent that forwarded nothing for this long says that it lives.
    #[serde(with = "humantime_serde")]
    pub beacon_interval: Duration,
    /// Time between two reports to the parent; they are the heartbeat upwards.
    #[serde(with = "humantime_serde")]
    pub report_interval: Duration,
    /// Silence after which a neighbour is suspected, and its reports forgotten.
    #[serde(with = "humantime_serde")]
    pub silence: Duration,
    /// How long a suspected node has to answer the root before it is taken out.
    #[serde(with = "humantime_serde")]
    pub probe_timeout: Duration,
    /// Silence of the root after which proxies and receivers give up.
    #[serde(with = "humantime_serde")]
    pub root_timeout: Duration,
    /// How long a new view waits for the proxies it changes to acknowledge it.
    #[serde(with = "humantime_serde")]
    pub view_timeout: Duration,
}

impl Default for Membership {
    fn default() -> Self {
        Self {
            expect_receivers: 0,
            expect_proxies: 0,
            expect_timeout: Duration::from_secs(30),
            join_retry: Duration::from_millis(50),
            beacon_interval: Duration::from_millis(50),
            report_interval: Duration::from_millis(50),
            // Ten reports: a machine under load pauses a process for tens of milliseconds.
            silence: Duration::from_millis(500),
            probe_timeout: Duration::from_millis(300),
            // Above the two seconds that a paused root may take to come back.
            root_timeout: Duration::from_secs(5),
            view_timeout: Duration::from_millis(250),
        }
    }
}

/// Live re-placement: a spare takes the place of a proxy that holds everybody up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Replace {
    /// Whether stragglers are replaced while the feed runs. It takes spares (proxies beyond those
    /// that the tree needs) or `siblings`.
    pub enabled: bool,
    /// How many times slower than a quick hop an edge must be in the mean.
    pub slow_factor: f64,
    /// Share of the overall latency that a replacement must promise, and then bring.
    pub gain_min: f64,
    /// How long a proxy must be blamed, most of the time, before a spare is tried.
    #[serde(with = "humantime_serde")]
    pub patience: Duration,
    /// How long straggler and spare feed side by side before they are judged.
    #[serde(with = "humantime_serde")]
    pub trial: Duration,
    /// Trials that may begin in a minute.
    pub per_minute: u32,
    /// How long a spare that did not help is not tried for the same proxy again, and a proxy that
    /// was let go is not tried at all.
    #[serde(with = "humantime_serde")]
    pub cooldown: Duration,
    /// Whether a sibling takes over the children of a straggler when there is no spare for it.
    pub siblings: bool,
}

impl Default for Replace {
    fn default() -> Self {
        Self {
            enabled: true,
            // Machines of one type differ by half, and the mean of an edge lies half above its
            // quick hops: three times is another matter.
            slow_factor: 3.0,
            // Each change of the tree is a risk: not for less than a tenth.
            gain_min: 0.1,
            // Ten rounds of reports: a pause of a process is over by then.
            patience: Duration::from_millis(500),
            // A thousand samples at the default rate.
            trial: Duration::from_millis(500),
            // One straggler and five spares that do not help.
            per_minute: 6,
            cooldown: Duration::from_secs(60),
            // The tree stays thinner, although the host may only have been slow for a while.
            siblings: false,
        }
    }
}

impl Replace {
    fn check(&self) -> Result<(), ConfigError> {
        if self.slow_factor < 1.0 || !self.slow_factor.is_finite() {
            return Err(ConfigError(format!(
                "replace.slow_factor = {}: must be at least 1",
                self.slow_factor
            )));
        }
        if !(0.0..1.0).contains(&self.gain_min) {
            return Err(ConfigError(format!(
                "replace.gain_min = {}: must be in 0 .. 1",
                self.gain_min
            )));
        }
        Ok(())
    }
}

/// The shortest time of anything that is done again and again: a node that is always due does
/// nothing else.
const INTERVAL_MIN: Duration = Duration::from_micros(100);
/// Proxies that the widest layer of a tree may have.
const PROXIES_MAX: u64 = 65_536;

/// All settings of one overlay.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How messages travel.
    pub mode: Mode,
    /// Shape of the tree.
    pub shape: Shape,
    /// Hold-and-release.
    pub deadline: Deadline,
    /// Repair.
    pub repair: Repair,
    /// Membership.
    pub membership: Membership,
    /// Framing.
    pub framing: Framing,
    /// Live re-placement.
    pub replace: Replace,
}

/// A value that the protocol cannot work with: the key, the value and what is allowed. The words
/// begin with the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for ConfigError {}

/// How messages are packed into datagrams, and how many may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Framing {
    /// How far apart frames leave: a message that is due sooner after the last frame waits and
    /// shares the next one, and its deadline; the first after a pause leaves at once. Zero packs
    /// only those that are due at the same instant.
    #[serde(with = "humantime_serde")]
    pub coalesce: Duration,
    /// A datagram is closed before it exceeds this, in bytes with all headers; a single larger
    /// message still goes, alone, and is fragmented by IP.
    pub datagram_bytes: usize,
    /// Most messages in one datagram; 1 switches packing off.
    pub messages_max: u16,
    /// Frames that may wait to be sent; then publishing is refused until some have left.
    pub send_queue_frames: usize,
    /// Frames that a receiver holds, counted from the next one to release; what is further ahead is
    /// refused, and repaired when it has come nearer.
    pub held_frames: usize,
}

impl Default for Framing {
    fn default() -> Self {
        Self {
            coalesce: Duration::ZERO,
            // 1,500 of Ethernet less 28 of IPv4 and UDP, and some room for tunnels.
            datagram_bytes: 1_432,
            messages_max: 64,
            send_queue_frames: 8_192,
            held_frames: 65_536,
        }
    }
}

impl Config {
    /// Says which setting contradicts another or lies out of range.
    ///
    /// # Errors
    /// The key, its value and what is allowed. The words begin with the key.
    pub fn check(&self) -> Result<(), ConfigError> {
        let d = &self.deadline;
        if !(0.5..1.0).contains(&d.target) {
            return Err(ConfigError(format!(
                "deadline.target = {}: must be in 0.5 .. 1.0",
                d.target
            )));
        }
        if d.hold_initial > d.hold_max {
            return Err(ConfigError(format!(
                "deadline.hold_initial = {:?} is above deadline.hold_max = {:?}",
                d.hold_initial, d.hold_max
            )));
        }
        self.replace.check()?;
        let r = &self.repair;
        if !r.window_frames.is_power_of_two() || r.window_frames < 64 {
            return Err(ConfigError(format!(
                "repair.window_frames = {}: must be a power of two, at least 64",
                r.window_frames
            )));
        }
        if r.recorder_frames_per_second == 0 {
            let why = "repair.recorder_frames_per_second: must be at least 1";
            return Err(ConfigError(why.into()));
        }
        if self.shape.depth == Some(0) || self.shape.depth > Some(8) {
            return Err(ConfigError("shape.depth: must be 1 to 8".into()));
        }
        if let (Some(depth), Some(fanout)) = (self.shape.depth, self.shape.fanout) {
            let last = u64::from(fanout).checked_pow(u32::from(depth) - 1);
            if last.is_none_or(|proxies| proxies > PROXIES_MAX) {
                return Err(ConfigError(format!(
                    "shape.fanout = {fanout}, shape.depth = {depth}: more than {PROXIES_MAX} \
                     proxies in the last layer"
                )));
            }
        }
        if !self.shape.hedging.is_allowed() {
            let (hedging, max) = (self.shape.hedging, Hedging::MAX);
            return Err(ConfigError(format!("shape.hedging = {hedging}: must be 0 to {max}")));
        }
        self.check_minima()?;
        if !(256..=60_000).contains(&self.framing.datagram_bytes) {
            return Err(ConfigError(format!(
                "framing.datagram_bytes = {}: must be 256 to 60000",
                self.framing.datagram_bytes
            )));
        }
        Ok(())
    }

    /// What must not be nothing.
    fn check_minima(&self) -> Result<(), ConfigError> {
        let (f, r, m) = (&self.framing, &self.repair, &self.membership);
        for (key, value, least) in [
            ("shape.fanout", self.shape.fanout.map_or(1, usize::from), 1),
            ("repair.ring_frames", r.ring_frames, 1),
            ("repair.child_queue_max", r.child_queue_max, 1),
            ("repair.frames_per_second", r.frames_per_second as usize, 1),
            ("framing.messages_max", f.messages_max.into(), 1),
            // A frame under way, and the one behind it.
            ("framing.send_queue_frames", f.send_queue_frames, 2),
            ("framing.held_frames", f.held_frames, 1),
        ] {
            if value < least {
                return Err(ConfigError(format!("{key} = {value}: must be at least {least}")));
            }
        }
        for (key, value) in [
            ("deadline.window", self.deadline.window),
            ("repair.retry", r.retry),
            ("membership.join_retry", m.join_retry),
            ("membership.beacon_interval", m.beacon_interval),
            ("membership.report_interval", m.report_interval),
            ("membership.silence", m.silence),
            ("membership.probe_timeout", m.probe_timeout),
        ] {
            if value < INTERVAL_MIN {
                return Err(ConfigError(format!(
                    "{key} = {value:?}: must be at least {INTERVAL_MIN:?}"
                )));
            }
        }
        Ok(())
    }
}
