//! Fault runs. A seed gives a topology, a feed, and all faults of a run.
//!
//! ```text
//! 0      0.1 s                        last fault      calm                  end of feed
//! |-boot-|---- faults, joins, leaves, ----|-- healing --|--- all must be well ---|- finish ->
//!        |     switches of mode           |             |                        |
//! feed   ================================================================
//! ```

use core::time::Duration;

use evenfall_core::time::DRIFT_PPM_MAX;
use evenfall_core::{ClockError, Hedging, MasterKey, NodeId, Prng, Timestamp};
use evenfall_multicast_machine::config::{Replace, Rule, Scheme};
use evenfall_multicast_machine::{Config, Mode, ReleaseAfter, SharedKey};
use evenfall_sim::{
    Action, Bounds, Bursts, ClockSpec, Cloud, CloudProfile, Fault, FaultKind, HostSpec, Late,
    NodeIndex, Plan, Quantiles, Rates, SimTime, StallSpec, Victims, World,
};

use super::cast::{Cast, FeedPace, draw_master, draw_signed};
use super::checks::{Checks, Expectations, Replaced, Steps};
use super::mutants::{Mutant, Mutation};
use super::node::CampaignNode;
use super::owner::{JOIN, LEAVE, Owner, SWITCH, TICK, TICK_EVERY};
use super::subject::{OldKeyAttack, Subject, Tamper};

/// The ranges from which the knobs of a seed are drawn.
const KNOBS: [(&str, core::ops::RangeInclusive<u64>); 25] = [
    ("receivers", 1..=9),
    ("depth", 1..=3),
    ("fanout", 1..=3),
    ("hedging", 0..=2),
    // 0 of these: the extra-children scheme.
    ("scheme", 0..=3),
    ("mode", 0..=9),
    ("spares", 0..=2),
    ("key", 0..=1),
    // 0: the default timers; otherwise four times as fast.
    ("timers", 0..=3),
    ("rate", 100..=600),
    ("coalesce-us", 0..=3_000),
    // 0: a ring so small that pauses outlast it.
    ("ring", 0..=3),
    ("rule", 0..=1),
    ("switches", 0..=4),
    ("joins", 0..=4),
    ("leaves", 0..=4),
    ("tamper", 0..=3),
    ("root", 0..=11),
    ("stalls", 0..=3),
    // 0: a receiver may hold few frames, and remembers few.
    ("held", 0..=5),
    ("window", 0..=5),
    // 0: the root, 1: a proxy, 2: a receiver stops for two seconds.
    ("long-pause", 0..=19),
    // 0: nothing is ever down, so that nothing may be lost.
    ("mild", 0..=5),
    // 0: no re-placement; 2 and 3: a proxy is slow from early on, so that there is cause for it;
    // 3: siblings stand in as well.
    ("replace", 0..=3),
    // 0 and 1: receivers leave arrivals in their sockets until they need them.
    ("moderation", 0..=3),
];

/// Kinds of faults under which no node is ever down.
const MILD: [FaultKind; 5] = [
    FaultKind::Loss,
    FaultKind::Duplicate,
    FaultKind::Reorder,
    FaultKind::ClockStep,
    FaultKind::ClockDrift,
];
/// The highest rate of loss at which every gap can be repaired. A gap is asked for nine times
/// before it is given up. At this rate all nine requests, or their answers, are lost once in 10^9
/// gaps.
const MILD_LOSS: f64 = 0.05;

/// Rates at which every gap can be repaired.
fn draw_mild_rates(prng: &mut Prng) -> Rates {
    Rates {
        loss: prng.unit() * MILD_LOSS,
        duplicate: prng.unit() * 0.2,
        reorder: prng.unit() * 0.2,
        reorder_by: Duration::from_millis(5),
    }
}

/// The bounds within which the faults of a seed are drawn.
pub fn bounds() -> Bounds {
    Bounds {
        knobs: KNOBS.to_vec(),
        kinds: FaultKind::OF_HOSTS.to_vec(),
        per_kind_max: 3,
        window: SimTime::from_millis(100)..=SimTime::from_millis(1_500),
        rates_max: Rates {
            loss: 0.2,
            duplicate: 0.2,
            reorder: 0.2,
            reorder_by: Duration::from_millis(5),
        },
        outage: Duration::from_millis(1)..=Duration::from_millis(1_000),
        slow_max: 10.0,
        clock_step_max: Duration::from_millis(50),
        clock_drift_max_ppb: 100_000,
        ..Bounds::default()
    }
}

/// All that a seed stands for.
#[derive(Clone, Debug)]
pub struct MulticastScene {
    /// Topology, knobs and faults.
    pub plan: Plan,
    /// Settings of all machines.
    pub config: Config,
    key: Option<SharedKey>,
    receivers: u32,
    proxies: u32,
    pace: FeedPace,
    calm: SimTime,
    /// Joins, leaves and switches, by time.
    pub(super) acts: Vec<(SimTime, u64)>,
    /// When the root dies and stays dead.
    root_dies: Option<SimTime>,
    /// The defect of all machines, if the run has a mutant.
    pub(super) mutant: Option<Mutant>,
    /// The network.
    pub(super) cloud: CloudProfile,
    /// Modes of the first switches, instead of those that the seed draws.
    pub(super) modes: Option<[Mode; 2]>,
    /// Clocks without error, for stories.
    pub(super) exact_clocks: bool,
    /// A receiver that is far too slow. No other receiver may be delayed by it.
    slow: Option<NodeIndex>,
    /// A proxy that turns slow. The proxy must be replaced, and no receiver may miss a frame.
    pub(super) replaced: Option<Replaced>,
    /// Present when the last receiver is a recorder, and whether the recorder dies.
    pub(super) recorder: Option<RecorderDies>,
    /// Clocks of hosts step by seconds and more.
    steps: Option<Steps>,
    /// A receiver whose clock is wrong by this many nanoseconds, and whose readings say that the
    /// clock has left its proven bound.
    disproved: Option<(NodeIndex, i64)>,
    /// Whether the other nodes disprove the root's clock for a while.
    root_disproved: bool,
    /// Whether a node that was shut out writes frames under keys that are out of use.
    pub(super) old_keys: bool,
}

/// By how much the clocks of hosts step, in seconds: an operator's typing error, a wrong time zone,
/// and a host that starts without a battery and shows the day on which it was made.
const STEPS_S: [i64; 3] = [10, 3_600, 30 * 365 * 86_400];
/// What right clocks show at the start of a run in which clocks step: a day of 2026, so that a
/// clock may be 30 years behind.
const EPOCH_NS: i64 = 1_795_000_000_000_000_000;

/// Whether the recorder of a run dies in the middle.
pub(super) type RecorderDies = bool;

const MODES: [Mode; 5] = [Mode::Unicast, Mode::Tree, Mode::Hedge, Mode::Release, Mode::Cloudex];

/// The mode of this number; hedged release is the most common.
fn mode(number: u64) -> Mode {
    MODES.get(number as usize).copied().unwrap_or(Mode::Release)
}

fn config(plan: &Plan) -> Config {
    let knob = |name| plan.knob(name);
    let mut config = Config { mode: mode(knob("mode")), ..Config::default() };
    config.shape.depth = Some(knob("depth") as u8);
    config.shape.fanout = Some(knob("fanout") as u16);
    config.shape.hedging = Hedging(knob("hedging") as u8);
    config.shape.scheme = if knob("scheme") == 0 { Scheme::Extra } else { Scheme::Siblings };
    config.deadline.rule = if knob("rule") == 0 { Rule::MaxP95 } else { Rule::OnTime };
    config.framing.coalesce = Duration::from_micros(knob("coalesce-us").saturating_sub(1_000));
    config.framing.held_frames = if knob("held") == 0 { 24 } else { 4_096 };
    config.repair.window_frames = if knob("window") == 0 { 64 } else { 4_096 };
    config.repair.ring_frames = if knob("ring") == 0 { 32 } else { 2_048 };
    config.repair.child_queue_max = 1_024;
    if knob("timers") > 0 {
        let m = &mut config.membership;
        for timer in [
            &mut m.join_retry,
            &mut m.beacon_interval,
            &mut m.report_interval,
            &mut m.silence,
            &mut m.probe_timeout,
            &mut m.root_timeout,
            &mut m.view_timeout,
            &mut config.repair.gap_timeout,
        ] {
            *timer /= 4;
        }
    }
    config.replace = replace(knob("replace"), config.membership.report_interval);
    config.membership.expect_receivers = knob("receivers") as u32;
    config.membership.expect_timeout = Duration::from_millis(300);
    config
}

/// Re-placement that is far too eager for a venue: many trials in the second that faults last.
fn replace(knob: u64, round: Duration) -> Replace {
    Replace {
        enabled: knob > 0,
        siblings: knob > 2,
        slow_factor: 1.2,
        gain_min: 0.02,
        patience: round * 3,
        trial: round * 4,
        per_minute: 50,
        cooldown: round * 8,
    }
}

impl AsMut<Plan> for MulticastScene {
    fn as_mut(&mut self) -> &mut Plan {
        &mut self.plan
    }
}

impl MulticastScene {
    /// What this seed is.
    pub fn of(seed: u64) -> Self {
        let bounds = bounds();
        Self::of_plan(Plan::new(seed, &bounds), &bounds)
    }

    pub(super) fn of_plan(mut plan: Plan, bounds: &Bounds) -> Self {
        let seed = plan.seed;
        let mut config = config(&plan);
        let receivers = plan.knob("receivers") as u32;
        let shape = &config.shape;
        // As many proxies as the tree needs in a mode with a tree, because modes switch.
        let wanted = evenfall_multicast_machine::tree::Dimensions::of(shape, Mode::Release, 1);
        let proxies = wanted.proxies(shape) as u32 + plan.knob("spares") as u32;
        config.membership.expect_proxies = proxies;
        let nodes = |range: core::ops::Range<u32>| range.map(NodeIndex).collect::<Vec<_>>();
        let victims = Victims {
            any: nodes(0..1 + proxies + receivers),
            expendable: nodes(1..1 + proxies + receivers),
        };
        if plan.knob("mild") == 0 {
            plan.kinds.retain(|kind| MILD.contains(kind));
            plan.rates.loss = plan.rates.loss.min(MILD_LOSS);
        }
        plan.aim(bounds, &victims);
        let mut prng = Prng::new(seed).fork(0x61_63_74);
        if let Some(pause) = long_pause(&plan, &mut prng, proxies, receivers) {
            plan.faults.push(pause);
            plan.faults.sort_by_key(|&(at, _)| at);
        }
        if let Some(faults) = slow_proxy(&plan, &mut prng, proxies) {
            plan.faults.extend(faults);
            plan.faults.sort_by_key(|&(at, _)| at);
        }
        let ends = |(at, fault): &(SimTime, Fault)| match fault {
            Fault::Pause(_, duration) => *at + *duration,
            _ => *at,
        };
        let last = plan.faults.iter().map(ends).max().unwrap_or_default();
        let last = last.max(*bounds.window.end());
        let acts = acts(&plan, &mut prng, receivers);
        let m = &config.membership;
        let healing =
            (m.silence + m.probe_timeout + m.view_timeout) * 5 + config.repair.gap_timeout * 2;
        let calm = last + healing;
        let interval = Duration::from_secs(1) / plan.knob("rate") as u32;
        let first = SimTime::from_millis(50);
        let span = calm.since(first) + Duration::from_millis(500);
        let count = (span.as_nanos() / interval.as_nanos()) as u64;
        let root_dies = (plan.knob("root") == 0).then(|| SimTime::from_millis(prng.below(1_500)));
        let key = (plan.knob("key") == 1).then(|| SharedKey::new(1, [seed as u8; 32]));
        let pace = FeedPace { first, interval, count };
        Self {
            plan,
            config,
            key,
            receivers,
            proxies,
            pace,
            calm,
            acts,
            root_dies,
            mutant: None,
            cloud: CloudProfile::default(),
            modes: None,
            exact_clocks: false,
            slow: None,
            replaced: None,
            recorder: None,
            steps: None,
            disproved: None,
            root_disproved: false,
            old_keys: false,
        }
    }

    /// A network without faults, with these knobs and middling values of the others.
    fn calm(seed: u64, knobs: &[(&str, u64)]) -> Self {
        let mut plan = Plan::new(seed, &bounds());
        plan.kinds.clear();
        plan.rates = Rates::default();
        for (knob, value) in &mut plan.knobs {
            let given = knobs.iter().find(|(name, _)| name == knob).map(|(_, value)| *value);
            *value = given.unwrap_or(match *knob {
                "mode" | "rate" => 500,
                "root" | "long-pause" => 5,
                "spares" | "joins" | "leaves" | "switches" | "key" | "replace" => 0,
                _ => 2,
            });
        }
        let mut scene = Self::of_plan(plan, &Bounds { kinds: Vec::new(), ..bounds() });
        scene.cloud = CloudProfile::constant(Duration::from_micros(50));
        scene
    }

    /// Three proxies without hedging, two spares and nine receivers. A proxy turns forty times
    /// slower and stays slow. The proxy must be replaced, and no receiver may miss a frame over the
    /// replacement.
    pub fn with_a_slow_proxy(seed: u64) -> Self {
        let knobs = [("receivers", 9), ("fanout", 3), ("hedging", 0), ("spares", 2)];
        let mut scene = Self::calm(seed, &[&knobs[..], &[("replace", 1)]].concat());
        let number = (seed % 3) as u32;
        let (straggler, first) = (NodeIndex(1 + number), 1 + scene.proxies + 3 * number);
        let factor = 40.0;
        scene.plan.faults = vec![(SimTime::from_millis(500), Fault::Slow(straggler, factor))];
        scene.replaced = Some(Replaced {
            straggler,
            below: (NodeIndex(first), NodeIndex(first + 3)),
            // Two hops of 50 us, and some time of the proxy's processor.
            straggling: Duration::from_micros(120).mul_f64(factor),
        });
        scene.exact_clocks = true;
        scene
    }

    /// Two proxies, six receivers and a network without faults. For a second a receiver is five
    /// thousand times too slow. Its socket overflows, and it asks for all frames again.
    pub fn with_a_slow_receiver(seed: u64) -> Self {
        let knobs = [("receivers", 6), ("fanout", 2), ("hedging", 1)];
        let mut scene = Self::calm(seed, &knobs);
        let slow = NodeIndex(5);
        let (from, to) = (SimTime::from_millis(500), SimTime::from_millis(1_500));
        scene.plan.faults = vec![(from, Fault::Slow(slow, 5e3)), (to, Fault::Slow(slow, 1.0))];
        scene.slow = Some(slow);
        scene
    }

    /// A recorder, and rings that remember a quarter of a second. A receiver stops for longer than
    /// that, two receivers come late and ask for earlier frames, and the network loses, doubles and
    /// reorders packets. No receiver may miss a frame. In every fourth seed the recorder dies, and
    /// the live feed must go on undisturbed.
    pub fn with_a_recorder(seed: u64) -> Self {
        let mut prng = Prng::new(seed).fork(0x72_65_63);
        let key = seed % 2;
        let knobs = [("receivers", 6), ("fanout", 2), ("timers", 0), ("tamper", 0), ("key", key)];
        let mut scene = Self::calm(seed, &knobs);
        scene.config.repair.ring_frames = 128;
        scene.config.repair.window_frames = if prng.chance(0.5) { 128 } else { 4_096 };
        let dies = seed % 4 == 3;
        scene.recorder = Some(dies);
        let first = 1 + scene.proxies;
        let victim = NodeIndex(first + prng.below(5) as u32);
        let at = SimTime::from_millis(200 + prng.below(400));
        let pause = Duration::from_millis(900 + prng.below(1_000));
        let rates = draw_mild_rates(&mut prng);
        // A burst of losses is short beside the time in which a gap is asked for, so that one of
        // the requests and its answer get through.
        let bursts = Bursts {
            good: Duration::from_millis(50 + prng.below(200)),
            bad: Duration::from_millis(1 + prng.below(3)),
            loss: prng.unit(),
        };
        let late = Late { share: 0.01 * prng.unit(), by: Duration::from_millis(300) };
        scene.plan.faults = vec![
            (SimTime::from_millis(100), Fault::Rates(rates)),
            (at, Fault::Pause(victim, pause)),
            (SimTime::from_millis(100), Fault::Bursts(bursts)),
            (SimTime::from_millis(100), Fault::Late(late)),
            (scene.calm, Fault::Bursts(Bursts::default())),
            (scene.calm, Fault::Late(Late::default())),
            (scene.calm, Fault::Rates(Rates::default())),
        ];
        if dies {
            let recorder = NodeIndex(scene.proxies + scene.receivers);
            let at = SimTime::from_millis(500 + prng.below(2_000));
            scene.plan.faults.push((at, Fault::Crash(recorder)));
            scene.plan.faults.sort_by_key(|(at, _)| *at);
        }
        scene.acts = vec![
            (SimTime::from_millis(400 + prng.below(2_000)), JOIN),
            (SimTime::from_millis(2_500 + prng.below(2_000)), JOIN + 1),
        ];
        scene
    }

    /// A tree in which keys of the run rotate twice. From then on, a node that was shut out writes
    /// frames with other messages under the first keys, in the place of frames of the feed. The
    /// network loses, doubles and reorders packets, and no receiver may miss a message.
    pub fn with_old_keys(seed: u64) -> Self {
        let mut prng = Prng::new(seed).fork(0x6f_6c_64_6b);
        let knobs = [("receivers", 3 + prng.below(4)), ("fanout", 2), ("rate", 200)];
        let mut scene = Self::calm(seed, &[&knobs[..], &[("key", 1), ("tamper", 0)]].concat());
        scene.old_keys = true;
        scene.calm = SimTime::from_millis(6_500);
        // The feed ends a second after the last fault.
        scene.pace.count = 1_490;
        let rates = draw_mild_rates(&mut prng);
        scene.plan.faults = vec![
            (SimTime::from_millis(100), Fault::Rates(rates)),
            (scene.calm, Fault::Rates(Rates::default())),
        ];
        scene
    }

    /// Root, proxies, receivers and, in half of the seeds, a recorder, whose hosts' clocks step by
    /// 10 s, an hour or 30 years while the feed runs. Half of the steps are taken back. A receiver
    /// joins late, perhaps with a clock that is wrong from the start. In a third of the seeds, the
    /// clock of another receiver has left its proven bound, and no delay of the feed shows that.
    /// Two seeds of three have a network that never errs.
    pub fn with_clock_steps(seed: u64) -> Self {
        let mut prng = Prng::new(seed).fork(0x73_74_65_70);
        let (receivers, hedging) = (3 + prng.below(3), prng.below(2));
        let knobs = [("receivers", receivers), ("fanout", 2), ("hedging", hedging), ("rate", 200)];
        let more = [("key", prng.below(2)), ("timers", 0), ("tamper", 0)];
        let mut scene = Self::calm(seed, &[&knobs[..], &more].concat());
        scene.config.replace.enabled = true;
        scene.plan.kinds = Vec::new();
        // A recorder joins before the feed begins, so that late joiners can have all of it.
        scene.pace.first = SimTime::from_millis(200);
        scene.pace.count = 1_010;
        scene.calm = SimTime::from_millis(4_000);
        scene.recorder = prng.chance(0.5).then_some(false);
        let nodes = 1 + scene.proxies + scene.receivers;
        let mut faults = Vec::new();
        for _ in 0..=prng.below(4) {
            let node = NodeIndex(prng.below(nodes.into()) as u32);
            let at = SimTime::from_millis(800 + prng.below(1_400));
            let by = clock_step(&mut prng);
            faults.push((at, Fault::ClockStep(node, by)));
            if prng.chance(0.5) {
                let later = Duration::from_millis(50 + prng.below(350));
                faults.push((at + later, Fault::ClockStep(node, -by)));
            }
        }
        let joins = SimTime::from_millis(1_000 + prng.below(1_500));
        scene.acts = vec![(joins, JOIN)];
        scene.root_disproved = disprove_root(seed, &mut faults);
        faults.sort_by_key(|(at, _)| *at);
        let calm = !seed.is_multiple_of(3);
        if !calm {
            let rates = draw_mild_rates(&mut prng);
            faults.push((SimTime::from_millis(100), Fault::Rates(rates)));
            faults.push((scene.calm, Fault::Rates(Rates::default())));
        }
        let times = || faults.iter().filter(|fault| matches!(fault.1, Fault::ClockStep(..)));
        let (first, last) = (times().next().map(|f| f.0), times().next_back().map(|f| f.0));
        scene.steps = Some(Steps {
            epoch_ns: EPOCH_NS as u64,
            first: first.unwrap_or_default(),
            last: last.unwrap_or_default(),
            calm,
            joiners: NodeIndex(nodes),
        });
        faults.sort_by_key(|(at, _)| *at);
        scene.plan.faults = faults;
        let mut prng = Prng::new(seed).fork(0x0062_6579_6f6e);
        if prng.chance(1.0 / 3.0) {
            let number = 1 + scene.proxies + prng.below(scene.receivers.into()) as u32;
            let by = 1_000_000 * (2 + prng.below(7) as i64);
            let by = if prng.chance(0.5) { by } else { -by };
            scene.disproved = Some((NodeIndex(number), by));
        }
        scene
    }

    /// Roots whose clocks left their proven bound while the feed ran.
    pub(super) fn disproved_roots(&self) -> u64 {
        u64::from(self.root_disproved)
    }

    /// Clocks that have left their proven bound.
    pub(super) fn disproved_clocks(&self) -> u64 {
        u64::from(self.disproved.is_some())
    }

    /// Steps of clocks that the plan has.
    pub(super) fn clock_steps(&self) -> u64 {
        let steps = |(_, fault): &&(SimTime, Fault)| matches!(fault, Fault::ClockStep(..));
        self.plan.faults.iter().filter(steps).count() as u64
    }

    /// By how much the clocks of a root and a receiver may differ. A node believes the clock of its
    /// host when it starts. A root that starts again after its host's clock stepped is wrong by
    /// that step. A receiver whose delays then look impossible adopts the clock of its own host. A
    /// step during a pause is followed when drift alone could have moved the clock so far.
    fn clocks_differ_max(&self) -> Duration {
        let faults = &self.plan.faults;
        let stepped = |node: NodeIndex, from: SimTime, to: SimTime| {
            let is_step = |fault: &Fault| matches!(fault, Fault::ClockStep(n, _) if *n == node);
            faults.iter().any(|(at, fault)| (from..=to).contains(at) && is_step(fault))
        };
        let is_believed = faults.iter().any(|(at, fault)| {
            matches!(fault, Fault::Restart(node) if stepped(*node, SimTime::ZERO, *at))
        });
        let steps = if is_believed { bounds().clock_step_max * 6 } else { Duration::ZERO };
        let pauses = || {
            let pause = |(at, fault): &(SimTime, Fault)| match fault {
                Fault::Pause(node, length) => Some((*node, *at, *length)),
                _ => None,
            };
            faults.iter().filter_map(pause)
        };
        // Pauses of one node may overlap.
        let unseen =
            |node| pauses().any(|(n, at, length)| n == node && stepped(n, at, at + length));
        let unread = pauses().filter(|(node, ..)| unseen(*node)).map(|(.., length)| length);
        // The readings before and after a pause are up to 50 us off each, and 100 ms apart besides.
        let drift = |length| length * DRIFT_PPM_MAX as u32 / 1_000_000 + Duration::from_micros(150);
        let drift = unread.map(drift).sum::<Duration>();
        Duration::from_micros(300) + steps + drift
    }

    /// Whether late joiners ask for earlier messages.
    pub(super) fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    /// Whether faults are so mild that nothing may be lost.
    fn lossless(&self) -> bool {
        if let Some(dies) = self.recorder {
            return !dies;
        }
        self.plan.kinds.iter().all(|kind| MILD.contains(kind))
            && self.plan.rates.loss <= MILD_LOSS
            // A proxy does not open bodies, so it may keep a tampered body and repair with it.
            && !self.tampers()
            && self.plan.faults.iter().all(|(_, fault)| !matches!(fault, Fault::Pause(..)))
            && self.plan.knob("ring") > 0
            && self.roomy()
            && self.slow.is_none()
            && self.root_dies.is_none()
    }

    /// Whether the feed is signed, and when receivers then release. A receiver that loses a
    /// signature for good must end, so only feeds of which nothing may be lost are signed.
    fn signed(&self) -> Option<ReleaseAfter> {
        // A signature would refuse what a receiver must refuse by its keys.
        draw_signed(self.plan.seed).filter(|_| self.lossless() && !self.old_keys)
    }

    /// Whether this scene's feed is signed.
    pub(super) fn is_signed(&self) -> bool {
        self.signed().is_some()
    }

    fn tampers(&self) -> bool {
        self.key.is_some() && self.plan.knob("tamper") > 0
    }

    fn roomy(&self) -> bool {
        self.plan.knob("window") > 0 && self.plan.knob("held") > 0
    }

    /// How long a frame may take after the last fault. Every clock may have stepped three times.
    fn delay_max(&self) -> Duration {
        self.config.deadline.hold_max + bounds().clock_step_max * 6 + Duration::from_millis(200)
    }

    fn host(&self, prng: &mut Prng) -> (HostSpec, Timestamp) {
        let origin = Timestamp::from_nanos(1_000_000_000 + prng.below(1 << 43));
        let spread = |prng: &mut Prng, most: u64| prng.below(2 * most + 1) as i64 - most as i64;
        let bound = Duration::from_micros(50);
        let clock = ClockSpec {
            origin: Some(origin),
            drift_ppb: spread(prng, 50_000),
            offset_ns: spread(prng, 49_000) + if self.steps.is_some() { EPOCH_NS } else { 0 },
            noise: Duration::from_micros(1),
            stated: ClockError::Within(bound),
            ..ClockSpec::default()
        };
        let exact = ClockSpec { origin: Some(origin), ..ClockSpec::default() };
        let clock = if self.exact_clocks { exact } else { clock };
        let stalls = (self.plan.knob("stalls") == 0).then(|| StallSpec {
            mean_gap: Duration::from_millis(50),
            length: Quantiles::exponential(Duration::from_millis(1)),
        });
        let receive_queue = match (self.slow, self.recorder) {
            (Some(_), _) => 8,
            // Datagrams that arrive during a pause are lost.
            (None, Some(_)) => 64,
            (None, None) => 2_048,
        };
        let moderation = match self.plan.knob("moderation") {
            0 => Duration::from_millis(2),
            1 => Duration::from_millis(20),
            _ => Duration::ZERO,
        };
        let stalls = stalls.into_iter().collect();
        (HostSpec { clock, stalls, receive_queue, moderation, ..HostSpec::default() }, origin)
    }

    /// Wraps a machine that is started at a true time, which is `now` on its own clock.
    pub(super) fn dress(&self, raw: CampaignNode, id: u32, at: SimTime, now: Timestamp) -> Subject {
        let tamper = self.tampers().then(|| {
            let seed = self.plan.seed ^ u64::from(id) << 48;
            Tamper::new(seed, 0.02, now + bounds().window.end().since(at))
        });
        let attack = self.master_key().filter(|_| self.old_keys).map(|master| {
            let seed = self.plan.seed ^ u64::from(id) << 48;
            OldKeyAttack::new(seed, master, 0.05, now + self.calm.since(at))
        });
        let altered = self.mutant.is_some() || tamper.is_some() || attack.is_some();
        let mutation = || Mutation::new(self.mutant, tamper).with_attack(attack);
        Subject::new(raw, altered.then(mutation))
    }

    /// The master key, where nodes have keys of their own.
    fn master_key(&self) -> Option<MasterKey> {
        let drawn = draw_master(self.plan.seed).filter(|_| self.key.is_some());
        if self.old_keys { Some(MasterKey::new([self.plan.seed as u8; 32])) } else { drawn }
    }

    fn owner(&self, world: &mut World<Subject, Cloud>) -> Owner {
        let mut config = self.config;
        if self.mutant == Some(Mutant::IgnoresLimits) {
            config.repair.ring_frames *= 4;
        }
        let cast = Cast {
            config: config.into(),
            key: self.key.clone(),
            master: self.master_key(),
            stream: 3,
            root: NodeId(0),
            root_address: world.address(NodeIndex(0)),
            standbys: Vec::new(),
            signed: self.signed(),
        };
        let mut checks = Checks::new(Expectations {
            seed: self.plan.seed,
            calm: self.calm,
            delay_max: self.delay_max(),
            roomy: self.roomy(),
            lossless: self.lossless(),
            slow: self.slow,
            replaced: self.replaced,
            clocks_differ_max: self.clocks_differ_max(),
            steps: self.steps,
        });
        // A generator of its own ("host" in ASCII): hosts stay the same when the scene draws more.
        let mut prng = Prng::new(self.plan.seed).fork(0x68_6f_73_74);
        for number in 0..1 + self.proxies + self.receivers {
            let (mut spec, now) = self.host(&mut prng);
            if let Some((_, by)) = self.disproved.filter(|(node, _)| node.0 == number) {
                spec.clock.offset_ns += by;
                spec.clock.stated = ClockError::Disproved;
            }
            let node = match number {
                0 => cast.root(1, now),
                _ if number <= self.proxies => cast.relay(NodeId(number), 1, now),
                _ if self.recorder.is_some() && number == self.proxies + self.receivers => {
                    cast.recorder(NodeId(number), 1, now)
                }
                _ => cast.receiver(NodeId(number), 1, now),
            };
            world.add(self.dress(node, number, SimTime::ZERO, now), spec);
            if number > self.proxies {
                checks.born(NodeIndex(number));
            }
        }
        Owner::new(self.clone(), cast, checks, self.proxies, prng)
    }

    pub(super) fn play<O: super::owner::Watch>(
        &self,
        wrap: impl FnOnce(Owner) -> O,
    ) -> (World<Subject, Cloud>, O) {
        let seed = self.plan.seed;
        let mut world = World::new(Cloud::new(self.cloud.clone(), seed), seed);
        let mut owner = wrap(self.owner(&mut world));
        self.plan.schedule(&mut world);
        if let Some(at) = self.root_dies {
            world.schedule(at, Action::Fault(Fault::Crash(NodeIndex(0))));
        }
        for (at, act) in &self.acts {
            world.schedule(*at, Action::Token(*act));
        }
        world.schedule(SimTime::ZERO, Action::Token(TICK));
        let end = self.pace.due(self.pace.count) + TICK_EVERY;
        let patience = match self.root_dies {
            Some(_) => self.config.membership.root_timeout,
            None => self.config.repair.gap_timeout * 4 + Duration::from_secs(1),
        };
        world.run_until(end, &mut owner);
        while !owner.owner().is_finished() && world.now() < end + patience {
            world.run_until(world.now() + TICK_EVERY, &mut owner);
        }
        // Datagrams in flight may still arrive. The run must ignore them.
        world.run_until(world.now() + TICK_EVERY * 5, &mut owner);
        owner.owner().close(&world);
        (world, owner)
    }

    /// The pace of its feed.
    pub(super) fn pace(&self) -> FeedPace {
        self.pace
    }

    /// Host, origin of the clock, and machine of a node that joins later.
    pub(super) fn newcomer(&self, prng: &mut Prng) -> (HostSpec, Timestamp) {
        let (mut spec, origin) = self.host(prng);
        if self.steps.is_some() && prng.chance(0.5) {
            spec.clock.offset_ns += clock_step(prng);
        }
        (spec, origin)
    }

    /// The mode after the `n`-th switch.
    pub(super) fn mode_after(&self, n: u64) -> Mode {
        if let Some(mode) = self.modes.and_then(|modes| modes.get(n as usize).copied()) {
            return mode;
        }
        mode(self.plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(n as u32 * 7) % 7)
    }
}

/// One of [`STEPS_S`], ahead or back, in nanoseconds.
fn clock_step(prng: &mut Prng) -> i64 {
    let seconds = STEPS_S[prng.below(STEPS_S.len() as u64) as usize];
    seconds * if prng.chance(0.5) { 1_000_000_000 } else { -1_000_000_000 }
}

/// Adds a time of some hundred milliseconds in which the other nodes disprove the clock of the
/// root, and in which the root's readings are wrong by some milliseconds or more. Only a quarter of
/// the seeds in which the root's clock does not step get such a time. Returns whether this seed
/// does.
fn disprove_root(seed: u64, faults: &mut Vec<(SimTime, Fault)>) -> bool {
    let (mut prng, root) = (Prng::new(seed).fork(0x72_6f_6f_74), NodeIndex(0));
    let steps =
        |(_, fault): &(SimTime, Fault)| matches!(fault, Fault::ClockStep(n, _) if *n == root);
    if !prng.chance(0.25) || faults.iter().any(steps) {
        return false;
    }
    let small = 1_000_000 * (2 + prng.below(7) as i64);
    let by = if prng.chance(0.5) { small } else { clock_step(&mut prng) };
    let from = SimTime::from_millis(800 + prng.below(1_400));
    let to = from + Duration::from_millis(200 + prng.below(400));
    let measured = ClockError::Within(Duration::from_micros(50));
    faults.extend([
        (from, Fault::ClockStated(root, ClockError::Disproved)),
        (from, Fault::ClockStep(root, by)),
        (to, Fault::ClockStep(root, -by)),
        (to, Fault::ClockStated(root, measured)),
    ]);
    true
}

/// Two seconds of silence, as under SIGSTOP.
fn long_pause(
    plan: &Plan,
    prng: &mut Prng,
    proxies: u32,
    receivers: u32,
) -> Option<(SimTime, Fault)> {
    let number = match plan.knob("long-pause") {
        0 => 0,
        1 if proxies > 0 => 1 + prng.below(proxies.into()) as u32,
        2 => 1 + proxies + prng.below(receivers.into()) as u32,
        _ => return None,
    };
    let at = SimTime::from_millis(100 + prng.below(1_000));
    Some((at, Fault::Pause(NodeIndex(number), Duration::from_secs(2))))
}

/// A proxy that is slow from early on until faults end.
fn slow_proxy(plan: &Plan, prng: &mut Prng, proxies: u32) -> Option<[(SimTime, Fault); 2]> {
    if plan.knob("replace") < 2 || proxies == 0 {
        return None;
    }
    let node = NodeIndex(1 + prng.below(proxies.into()) as u32);
    let at = SimTime::from_millis(100 + prng.below(500));
    let slow = Fault::Slow(node, 2.0 + prng.unit() * 8.0);
    Some([(at, slow), (*bounds().window.end(), Fault::Slow(node, 1.0))])
}

/// Joins, leaves and switches of mode within the time of faults.
fn acts(plan: &Plan, prng: &mut Prng, receivers: u32) -> Vec<(SimTime, u64)> {
    let mut acts = Vec::new();
    for (name, act) in [("joins", JOIN), ("leaves", LEAVE), ("switches", SWITCH)] {
        // Half of all seeds have none.
        for n in 0..plan.knob(name).saturating_sub(2) {
            let at = SimTime::from_millis(100 + prng.below(1_400));
            let argument = if act == LEAVE { prng.below(receivers.into()) } else { n };
            acts.push((at, act + argument));
        }
    }
    acts
}
