//! The limits of the multicast, each with its unit and its reason.

use core::fmt;
use core::time::Duration;

use evenfall_core::Hedging;
use serde::{Deserialize, Serialize};

use crate::seal::TAG_BYTES;
use crate::wire::{HEADER_BYTES, MESSAGE_OVERHEAD};

/// How messages travel, and whether receivers hold them. The mode can change while the feed runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The root sends to every receiver itself. Receivers do not hold messages.
    Unicast,
    /// A tree of proxies without hedging. Receivers do not hold messages.
    Tree,
    /// The tree with sibling hedging. Receivers do not hold messages.
    Hedge,
    /// The tree with hedging. Receivers hold messages and release them on one deadline.
    #[default]
    Release,
    /// Direct unicast with one deadline (CloudEx). Receivers hold messages until the deadline.
    Cloudex,
}

impl Mode {
    /// Whether the root sends to receivers directly, without proxies.
    pub fn direct(self) -> bool {
        matches!(self, Self::Unicast | Self::Cloudex)
    }

    /// Whether receivers hold a message until its deadline.
    pub fn holds(self) -> bool {
        matches!(self, Self::Release | Self::Cloudex)
    }

    /// Whether proxies also send to the children of their siblings.
    pub fn hedges(self) -> bool {
        matches!(self, Self::Hedge | Self::Release)
    }
}

impl fmt::Display for Mode {
    /// Writes the name of the mode as in the settings.
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

/// Which nodes send the extra copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Every proxy also sends to the children of H siblings (the final design of Jasper, section
    /// 5.1).
    #[default]
    Siblings,
    /// Each parent has H extra children without children of their own. An extra child sends to all
    /// children of its siblings (the F+H variant of section 5.1), F^2 copies. The scheme is for
    /// comparison.
    Extra,
}

/// The shape of the tree. Dimensions that are not given follow from the number of receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// Hops from the root to a receiver. Default: round(log10 N), at least 1.
    pub depth: Option<u8>,
    /// Children of the root, and of each proxy above the last layer. The default is 10. When only
    /// the depth is given, the default is the smallest fan-out that reaches all receivers in
    /// `depth` hops.
    pub fanout: Option<u16>,
    /// Extra copies of each message that a node below the first layer gets.
    pub hedging: Hedging,
    /// The nodes that send the extra copies.
    pub scheme: Scheme,
}

impl Default for Shape {
    fn default() -> Self {
        Self { depth: None, fanout: None, hedging: Hedging::DEFAULT, scheme: Scheme::Siblings }
    }
}

/// The rule by which the root sets the time from sending to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The maximum over receivers of their 95th percentile delay (Jasper section 6).
    MaxP95,
    /// The smallest hold that brings a stated share of messages to every receiver in time.
    #[default]
    OnTime,
}

/// The settings of hold and release.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Deadline {
    /// The rule.
    pub rule: Rule,
    /// Share of messages that should reach every receiver before their deadline (`on-time` only).
    pub target: f64,
    /// The hold before delays are measured.
    #[serde(with = "humantime_serde")]
    pub hold_initial: Duration,
    /// No straggler can make the hold longer than this. A receiver that needs more time releases
    /// late and is named.
    #[serde(with = "humantime_serde")]
    pub hold_max: Duration,
    /// How far back the `on-time` rule looks. A longer window is steadier, and a shorter window
    /// follows load faster.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
    /// Frames per second whose delay is reported one by one. More samples cost more control
    /// traffic.
    pub samples_per_second: u32,
}

impl Default for Deadline {
    fn default() -> Self {
        Self {
            rule: Rule::OnTime,
            // The target lies well above the .99 that a venue would promise. Messages between two
            // reports are sent on old knowledge, and on a shared machine the next second differs
            // from the last.
            target: 0.994,
            // Long enough for a first message across any single cloud region.
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
    /// Bytes that the root and each proxy keep at most. The ring ends at whichever limit is reached
    /// first, and drops its oldest frames.
    pub ring_bytes: usize,
    /// Width of the de-duplication window in frames, a power of two. The window moves on for a
    /// frame that lies further ahead, and the missing frames that fall out of the window are given
    /// up.
    pub window_frames: usize,
    /// How long a gap may be mere reordering before a node asks for the missing frames. A node adds
    /// a random time of up to the same length, so that nodes which miss the same frame do not all
    /// ask at once.
    #[serde(with = "humantime_serde")]
    pub reorder_delay: Duration,
    /// How long a node waits for an answer before it asks the next node: parent, aunts, root, and
    /// the parent again.
    #[serde(with = "humantime_serde")]
    pub retry: Duration,
    /// How long a missing message may hold up its successors, counted from the last progress of its
    /// repair. After that time the message is reported lost.
    #[serde(with = "humantime_serde")]
    pub gap_timeout: Duration,
    /// Frames that may wait for repair on behalf of one child. Further requests are dropped and
    /// counted.
    pub child_queue_max: usize,
    /// How long a late joiner waits for a recorder to name its first frame. After that time it
    /// begins with the live feed, and reports the earlier messages as lost.
    #[serde(with = "humantime_serde")]
    pub locate_timeout: Duration,
    /// Frames per second that the root, and each proxy, sends as repair to all nodes together. The
    /// limit keeps a burst of repair from delaying the live feed.
    pub frames_per_second: u32,
    /// Frames per second that a recorder sends to all nodes together, so that neither its own
    /// reception nor the live feed on a shared link suffers. When the feed has more than half as
    /// many frames per second, a recorder sends twice as many as the feed. Otherwise late joiners
    /// would never catch up.
    pub recorder_frames_per_second: u32,
    /// Dropped repair requests within a second after which a child is too slow and is evicted.
    pub evict_after_drops: u32,
}

impl Default for Repair {
    fn default() -> Self {
        Self {
            // A ring of 65,536 frames holds two seconds at 30,000 frames a second.
            ring_frames: 65_536,
            ring_bytes: 64 << 20,
            window_frames: 65_536,
            reorder_delay: Duration::from_micros(500),
            retry: Duration::from_millis(5),
            gap_timeout: Duration::from_millis(1_000),
            child_queue_max: 4_096,
            // At this rate, two seconds of a feed of 30,000 frames a second are repaired within 1.2
            // s. At 300 bytes a frame the rate is an eighth of a link of 1 Gb/s.
            frames_per_second: 50_000,
            // Two seconds are enough for a recorder that is just joining, or for the successor of a
            // recorder that died.
            locate_timeout: Duration::from_secs(2),
            // Several times a venue's mean rate, so that a node that is a minute behind catches up
            // within seconds.
            recorder_frames_per_second: 50_000,
            // Eight full queues in a second show a child that asks faster than it reads.
            evict_after_drops: 32_768,
        }
    }
}

/// Which nodes the tree waits for, and how their silence is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MembershipConfig {
    /// Receivers that the first tree waits for. With 0, the first node that joins starts the tree.
    pub expect_receivers: u32,
    /// Proxies that the first tree waits for.
    pub expect_proxies: u32,
    /// How long the first tree waits for these nodes before it is built of the nodes that have
    /// joined.
    #[serde(with = "humantime_serde")]
    pub expect_timeout: Duration,
    /// Time between two attempts to join, or to get an acknowledgement.
    #[serde(with = "humantime_serde")]
    pub join_retry: Duration,
    /// A parent that has forwarded nothing for this long sends a beacon.
    #[serde(with = "humantime_serde")]
    pub beacon_interval: Duration,
    /// Time between two reports to the parent. Reports are also the heartbeat to the parent.
    #[serde(with = "humantime_serde")]
    pub report_interval: Duration,
    /// Silence after which a neighbour is suspected and its reports are forgotten.
    #[serde(with = "humantime_serde")]
    pub silence: Duration,
    /// How long a suspected node may take to answer the root before it is taken out.
    #[serde(with = "humantime_serde")]
    pub probe_timeout: Duration,
    /// Silence of the root after which proxies and receivers give up.
    #[serde(with = "humantime_serde")]
    pub root_timeout: Duration,
    /// How long a new view waits for the acknowledgements of the proxies that it changes.
    #[serde(with = "humantime_serde")]
    pub view_timeout: Duration,
}

impl Default for MembershipConfig {
    fn default() -> Self {
        Self {
            expect_receivers: 0,
            expect_proxies: 0,
            expect_timeout: Duration::from_secs(30),
            join_retry: Duration::from_millis(50),
            beacon_interval: Duration::from_millis(50),
            report_interval: Duration::from_millis(50),
            // Ten reports. A machine under load pauses a process for tens of milliseconds.
            silence: Duration::from_millis(500),
            probe_timeout: Duration::from_millis(300),
            // Longer than two seconds, because a paused root may take two seconds to come back.
            root_timeout: Duration::from_secs(5),
            view_timeout: Duration::from_millis(250),
        }
    }
}

/// Live re-placement: a spare takes the place of a proxy that delays all receivers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Replace {
    /// Whether stragglers are replaced while the feed runs. Replacing needs spares (proxies beyond
    /// those that the tree needs) or `siblings`.
    pub enabled: bool,
    /// How many times slower than a quick hop the mean of an edge must be.
    pub slow_factor: f64,
    /// Share of the overall latency that a replacement must promise, and then bring.
    pub gain_min: f64,
    /// How long a proxy must be blamed in most reports before a spare is tried.
    #[serde(with = "humantime_serde")]
    pub patience: Duration,
    /// How long the straggler and the spare both feed before they are judged.
    #[serde(with = "humantime_serde")]
    pub trial: Duration,
    /// Trials that may begin in a minute.
    pub per_minute: u32,
    /// How long a spare that did not help is not tried again for the same proxy. A proxy that was
    /// replaced gets no place for the same time.
    #[serde(with = "humantime_serde")]
    pub cooldown: Duration,
    /// Whether a sibling takes over the children of a straggler when there is no spare.
    pub siblings: bool,
}

impl Default for Replace {
    fn default() -> Self {
        Self {
            enabled: true,
            // Machines of one type differ by half, and the mean of an edge lies half above its
            // quick hops. A factor of three is beyond both.
            slow_factor: 3.0,
            // Each change of the tree is a risk, so a change must gain at least a tenth.
            gain_min: 0.1,
            // Ten rounds of reports, after which a mere pause of a process is over.
            patience: Duration::from_millis(500),
            // A thousand samples at the default rate.
            trial: Duration::from_millis(500),
            // Enough for one straggler and five spares that do not help.
            per_minute: 6,
            cooldown: Duration::from_secs(60),
            // Off, because the tree stays thinner afterwards, although the host may only have been
            // slow for a while.
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

/// Shortest allowed interval of any repeated action. With a shorter interval, the action would be
/// due at all times and a node would do nothing else.
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
    pub membership: MembershipConfig,
    /// Framing.
    pub framing: Framing,
    /// Live re-placement.
    pub replace: Replace,
}

/// A setting that the protocol cannot work with. The text begins with the key, and states the value
/// and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// How messages are packed into datagrams, and how many frames may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Framing {
    /// The distance between frames. A message that is due sooner after the last frame waits and
    /// shares the next frame and its deadline. The first message after a pause leaves at once. Zero
    /// packs only messages that are due at the same instant.
    #[serde(with = "humantime_serde")]
    pub coalesce: Duration,
    /// Limit of a datagram in bytes, with all headers. A datagram is closed before it exceeds the
    /// limit. A single message above the limit travels alone, and IP fragments it.
    pub datagram_bytes: usize,
    /// Messages that one datagram may hold. The value 1 switches packing off.
    pub messages_max: u16,
    /// Frames that may wait to be sent. Beyond this number publishing is refused until some frames
    /// have left.
    pub send_queue_frames: usize,
    /// Frames that a receiver may hold, counted from the next frame to release. A frame further
    /// ahead is refused, and repaired when its turn is nearer.
    pub held_frames: usize,
}

impl Default for Framing {
    fn default() -> Self {
        Self {
            coalesce: Duration::ZERO,
            // The 1,500 bytes of Ethernet, less 28 for IPv4 and UDP, and 40 bytes of room for
            // tunnels.
            datagram_bytes: 1_432,
            messages_max: 64,
            send_queue_frames: 8_192,
            held_frames: 65_536,
        }
    }
}

impl Framing {
    /// Bytes that messages may take in one datagram whose seal takes `seal_bytes`. The limit of a
    /// datagram is checked with the settings, and is above its header and seal.
    pub(crate) fn body_bytes(&self, seal_bytes: usize) -> usize {
        self.datagram_bytes - HEADER_BYTES - seal_bytes
    }

    /// The most messages of `bytes` each in one datagram, by the length of the datagram alone. The
    /// result is 1 at least, because a message above the limit travels alone.
    pub fn messages_per_datagram(&self, bytes: usize, is_sealed: bool) -> usize {
        let room = self.body_bytes(if is_sealed { TAG_BYTES } else { 0 });
        (room / bytes.saturating_add(MESSAGE_OVERHEAD)).max(1)
    }
}

impl Config {
    /// The longest time that a node waits for a missing frame: its repair, and before that perhaps
    /// the loss of a root.
    pub(crate) fn frame_patience(&self) -> Duration {
        self.membership.root_timeout + self.repair.gap_timeout
    }

    /// Checks all settings, also against each other.
    ///
    /// # Errors
    /// The key, its value and what is allowed. The text begins with the key.
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
        // The window is words of 64 bits, and a frame's bit in them is found by a mask.
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

    /// Checks the settings that must not be below a minimum.
    fn check_minima(&self) -> Result<(), ConfigError> {
        let (f, r, m) = (&self.framing, &self.repair, &self.membership);
        for (key, value, least) in [
            ("shape.fanout", self.shape.fanout.map_or(1, usize::from), 1),
            ("repair.ring_frames", r.ring_frames, 1),
            ("repair.child_queue_max", r.child_queue_max, 1),
            ("repair.frames_per_second", r.frames_per_second as usize, 1),
            ("framing.messages_max", f.messages_max.into(), 1),
            // The queue holds a frame under way and the frame behind it.
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

#[cfg(test)]
mod tests {
    use evenfall_core::{ClockError, ClockReading, Format, Machine, NodeId, Timestamp};

    use super::*;
    use crate::{Root, RootRun, SharedKey};

    #[test]
    fn root_closes_a_datagram_at_the_number_of_messages_that_its_framing_states() {
        let now = Timestamp::from_nanos(1 << 40);
        let mut config = Config::default();
        config.framing.messages_max = u16::MAX;
        for key in [None, Some(SharedKey::new(1, [7; 32]))] {
            for bytes in [0, 40, 600, 1_400, 9_000] {
                let run = RootRun::new(1, [7; 24]);
                let mut root = Root::new(config, NodeId(0), 0, run, key.as_ref(), now);
                root.handle_clock(now, ClockReading { offset_ns: 0, error: ClockError::SameClock });
                let most = config.framing.messages_per_datagram(bytes, key.is_some());
                for _ in 0..most {
                    root.publish(now, Format::OPAQUE, &vec![7; bytes]).expect("room");
                }
                assert_eq!(root.status().frames, 0, "{most} of {bytes} bytes");
                root.publish(now, Format::OPAQUE, &vec![7; bytes]).expect("room");
                assert_eq!(root.status().frames, 1, "{most} of {bytes} bytes and another");
            }
        }
    }
}
