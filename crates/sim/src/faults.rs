//! Faults, and plans of faults that a seed draws.
//!
//! A plan is a value with three parts: the *knobs* of the run (such as the shape of the tree, the
//! number of receivers or the rate of the feed), the random faults of the network, and a list of
//! timed faults. A fault that can end ends within the plan's window, so that a checker can ask
//! whether the system healed. [`Coverage`] adds up what the plans of a campaign exercised.

use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;

use evenfall_core::time::nanos;
use evenfall_core::{ClockError, Prng};

use crate::disk::DiskFaults;
use crate::network::{Network, Rates};
use crate::objects::ObjectFaults;
use crate::world::{Action, Bursts, Cut, Late, World};
use crate::{NodeIndex, SimTime};

/// A fault, or the end of a fault.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// [`World::crash`].
    Crash(NodeIndex),
    /// [`World::restart`], with the machine of [`Observer::revive`](crate::Observer::revive).
    Restart(NodeIndex),
    /// [`World::pause`].
    Pause(NodeIndex, Duration),
    /// [`World::partition`].
    Partition(Vec<NodeIndex>),
    /// [`World::cut`] in one direction. [`Fault::Heal`] ends it.
    OneWay(Vec<NodeIndex>, Cut),
    /// [`World::heal_all`].
    Heal,
    /// [`World::set_rates`].
    Rates(Rates),
    /// [`World::set_bursts`].
    Bursts(Bursts),
    /// [`World::set_late`].
    Late(Late),
    /// [`World::slow`].
    Slow(NodeIndex, f64),
    /// [`World::step_clock`], in nanoseconds.
    ClockStep(NodeIndex, i64),
    /// [`World::state_clock`].
    ClockStated(NodeIndex, ClockError),
    /// [`World::set_drift`], in parts per billion.
    ClockDrift(NodeIndex, i64),
    /// The faults of the disk of a node from now on. The world applies this to a disk that it was
    /// given ([`World::attach`]). Any other disk belongs to the owner of the run, who applies this
    /// in [`Observer::fault`](crate::Observer::fault).
    Disk(NodeIndex, DiskFaults),
    /// The faults of the object store from now on. The object store belongs to the owner of the run
    /// too.
    Objects(ObjectFaults),
}

impl Fault {
    /// The outage that the fault begins or ends: its kind and its node. A replay leaves out whole
    /// outages, because a crash without its restart is another fault.
    pub fn outage(&self) -> (FaultKind, Option<NodeIndex>) {
        match *self {
            Self::Crash(node) | Self::Restart(node) => (FaultKind::Restart, Some(node)),
            Self::Pause(node, _) => (FaultKind::Pause, Some(node)),
            Self::Partition(_) | Self::OneWay(..) | Self::Heal => (FaultKind::Partition, None),
            Self::Rates(_) => (FaultKind::Loss, None),
            Self::Bursts(_) => (FaultKind::Bursts, None),
            Self::Late(_) => (FaultKind::Late, None),
            Self::Slow(node, _) => (FaultKind::Slow, Some(node)),
            Self::ClockStep(node, _) | Self::ClockStated(node, _) => {
                (FaultKind::ClockStep, Some(node))
            }
            Self::ClockDrift(node, _) => (FaultKind::ClockDrift, Some(node)),
            Self::Disk(node, _) => (FaultKind::Disk, Some(node)),
            Self::Objects(_) => (FaultKind::Objects, None),
        }
    }
}

/// The kinds that plans mix and coverage counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// Random loss.
    Loss,
    /// Random duplication.
    Duplicate,
    /// Random reordering.
    Reorder,
    /// A crash for good.
    Crash,
    /// A crash and, later, a restart.
    Restart,
    /// A pause.
    Pause,
    /// A partition and, later, its end.
    Partition,
    /// A host that is slower for a while.
    Slow,
    /// A step of a synchronised clock.
    ClockStep,
    /// A local clock that drifts.
    ClockDrift,
    /// A step of a synchronised clock by years, as of a host whose battery is empty.
    ClockYears,
    /// A disk that fails, fills up or is slow for a while.
    Disk,
    /// An object store that fails or answers late for a while.
    Objects,
    /// Losses in bursts for a while.
    Bursts,
    /// A partition in one direction and, later, its end.
    OneWay,
    /// Packets that arrive long after they were given up, for a while.
    Late,
}

impl FaultKind {
    /// All of them, in order.
    pub const ALL: [Self; 16] = [
        Self::Loss,
        Self::Duplicate,
        Self::Reorder,
        Self::Crash,
        Self::Restart,
        Self::Pause,
        Self::Partition,
        Self::Slow,
        Self::ClockStep,
        Self::ClockDrift,
        Self::ClockYears,
        Self::Disk,
        Self::Objects,
        Self::Bursts,
        Self::OneWay,
        Self::Late,
    ];

    /// The kinds of hosts and networks, which every protocol must survive.
    pub const OF_HOSTS: [Self; 13] = {
        let [a, b, c, d, e, f, g, h, i, j, .., k, l, m] = Self::ALL;
        [a, b, c, d, e, f, g, h, i, j, k, l, m]
    };
    /// Kinds that were added after seeds had been recorded as failed. See [`Plan::new`].
    const YOUNGER: [Self; 3] = [Self::Bursts, Self::OneWay, Self::Late];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Duplicate => "duplicate",
            Self::Reorder => "reorder",
            Self::Crash => "crash",
            Self::Restart => "restart",
            Self::Pause => "pause",
            Self::Partition => "partition",
            Self::Slow => "slow",
            Self::ClockStep => "clock-step",
            Self::ClockDrift => "clock-drift",
            Self::ClockYears => "clock-years",
            Self::Disk => "disk",
            Self::Objects => "objects",
            Self::Bursts => "bursts",
            Self::OneWay => "one-way",
            Self::Late => "late",
        }
    }
}

/// Nanoseconds of a year of 365 days.
const YEAR_NS: i64 = 365 * 86_400 * 1_000_000_000;
/// The most years by which a clock steps: from 2026 back to 1970, with which a host without a
/// battery begins, or as far ahead.
const CLOCK_YEARS_MAX: u64 = 56;

/// The limits within which a plan is drawn.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Numbers that the scenario understands, by name, each with its range.
    pub knobs: Vec<(&'static str, RangeInclusive<u64>)>,
    /// Kinds that may occur. Each is in a plan with probability one half, so that combinations
    /// vary as much as amounts do.
    pub kinds: Vec<FaultKind>,
    /// Most timed faults of one kind.
    pub per_kind_max: u64,
    /// First and last time of any fault. Faults that can end, and the random faults of the network,
    /// end by the last time.
    pub window: RangeInclusive<SimTime>,
    /// Longest mean turns and largest share of losses in bursts.
    pub bursts_max: Bursts,
    /// Largest share of late packets, and the longest that they are late. No packet that was sent
    /// in an outage arrives after its end, so half an outage is another limit.
    pub late_max: Late,
    /// Largest random rates, and the largest delay of a reordered packet.
    pub rates_max: Rates,
    /// Shortest and longest pause, crash before a restart, partition and slowness.
    pub outage: RangeInclusive<Duration>,
    /// Largest slowness.
    pub slow_max: f64,
    /// Largest step of a clock, either way.
    pub clock_step_max: Duration,
    /// Largest drift of a clock, either way, in parts per billion.
    pub clock_drift_max_ppb: u64,
    /// Largest shares of disk faults, and the longest additional time of a write. A plan keeps this
    /// `bytes_max` unchanged.
    pub disk_max: DiskFaults,
    /// Largest shares and delays of the object store's faults.
    pub objects_max: ObjectFaults,
}

impl Default for Bounds {
    /// Everything that hosts and networks do may happen between 0.1 and 1 s.
    fn default() -> Self {
        Self {
            knobs: Vec::new(),
            kinds: FaultKind::OF_HOSTS.to_vec(),
            per_kind_max: 3,
            window: SimTime::from_millis(100)..=SimTime::from_millis(1_000),
            rates_max: Rates {
                loss: 0.1,
                duplicate: 0.1,
                reorder: 0.1,
                reorder_by: Duration::from_millis(5),
            },
            bursts_max: Bursts {
                good: Duration::from_millis(100),
                bad: Duration::from_millis(20),
                loss: 1.0,
            },
            late_max: Late { share: 0.2, by: Duration::from_millis(500) },
            outage: Duration::from_millis(1)..=Duration::from_millis(300),
            slow_max: 10.0,
            clock_step_max: Duration::from_millis(100),
            clock_drift_max_ppb: 100_000,
            disk_max: DiskFaults {
                write_fails: 0.1,
                sync_fails: 0.1,
                read_fails: 0.1,
                slow_by: Duration::from_millis(50),
                ..DiskFaults::default()
            },
            objects_max: ObjectFaults { fails: 0.1, answers_late: 0.2, late_by: 20, list_lag: 20 },
        }
    }
}

/// The nodes that faults may hit. These nodes are chosen apart from the rest of the plan, because
/// the nodes of a run depend on the plan's knobs.
#[derive(Clone, Debug, Default)]
pub struct Victims {
    /// May crash and come back, be paused, slowed and cut off, and have bad clocks.
    pub any: Vec<NodeIndex>,
    /// May crash for good.
    pub expendable: Vec<NodeIndex>,
}

impl Victims {
    /// These nodes may be hit, and none of them may crash for good.
    pub fn returning(nodes: core::ops::Range<u32>) -> Self {
        Self { any: nodes.map(NodeIndex).collect(), expendable: Vec::new() }
    }
}

/// The plan that a seed draws.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The knobs of the bounds, each with its value.
    pub knobs: Vec<(&'static str, u64)>,
    /// Kinds that are in it.
    pub kinds: Vec<FaultKind>,
    /// Random faults of the network during the window.
    pub rates: Rates,
    /// Timed faults, by time. Empty until [`Plan::aim`].
    pub faults: Vec<(SimTime, Fault)>,
}

impl Plan {
    /// Draws a plan: knobs, kinds and rates. [`aim`](Self::aim) adds the timed faults once the
    /// nodes are known.
    ///
    /// Younger kinds of faults have a generator of their own, so that a seed that failed before
    /// there were such faults keeps all the others.
    pub fn new(seed: u64, bounds: &Bounds) -> Self {
        let mut prng = Prng::new(seed).fork(0x706c_616e);
        let knob = |(name, range): &(&'static str, RangeInclusive<u64>)| {
            (*name, range.start() + prng.below(range.end() - range.start() + 1))
        };
        let knobs = bounds.knobs.iter().map(knob).collect();
        let mut younger = Prng::new(seed).fork(0x796f_756e);
        let mut is_in = |kind: &FaultKind| match FaultKind::YOUNGER.contains(kind) {
            true => younger.chance(0.5),
            false => prng.chance(0.5),
        };
        let kinds: Vec<_> = bounds.kinds.iter().copied().filter(&mut is_in).collect();
        let mut rate = |kind, most: f64| {
            let share = prng.unit();
            // The cube makes small rates as common as large ones.
            if kinds.contains(&kind) { most * share * share * share } else { 0.0 }
        };
        let rates = Rates {
            loss: rate(FaultKind::Loss, bounds.rates_max.loss),
            duplicate: rate(FaultKind::Duplicate, bounds.rates_max.duplicate),
            reorder: rate(FaultKind::Reorder, bounds.rates_max.reorder),
            reorder_by: bounds.rates_max.reorder_by,
        };
        Self { seed, knobs, kinds, rates, faults: Vec::new() }
    }

    /// Whether the bounds have a knob of this name.
    pub fn has_knob(&self, name: &str) -> bool {
        self.knobs.iter().any(|knob| knob.0 == name)
    }

    /// The value of a knob.
    ///
    /// # Panics
    /// When the bounds have no knob of this name, which is a mistake of the scenario.
    pub fn knob(&self, name: &str) -> u64 {
        let knob = self.knobs.iter().find(|knob| knob.0 == name);
        knob.unwrap_or_else(|| panic!("the plan has no knob {name:?}")).1
    }

    /// Draws the timed faults.
    pub fn aim(&mut self, bounds: &Bounds, victims: &Victims) {
        let mut prng = Prng::new(self.seed).fork(0x0061_696d);
        let (first, last) = (*bounds.window.start(), *bounds.window.end());
        self.faults.clear();
        if self.rates != (Rates { reorder_by: self.rates.reorder_by, ..Rates::default() }) {
            self.faults.push((first, Fault::Rates(self.rates)));
            self.faults.push((last, Fault::Rates(Rates::default())));
        }
        for kind in self.kinds.clone() {
            for _ in 0..=prng.below(bounds.per_kind_max.max(1)) {
                self.draw(kind, bounds, victims, &mut prng);
            }
        }
        // The sort is stable. Faults at equal times stay in the order of their drawing, so an end
        // follows its beginning.
        self.faults.sort_by_key(|&(at, _)| at);
    }

    /// The plan, [aimed](Self::aim).
    pub fn aimed(mut self, bounds: &Bounds, victims: &Victims) -> Self {
        self.aim(bounds, victims);
        self
    }

    fn draw(&mut self, kind: FaultKind, bounds: &Bounds, victims: &Victims, prng: &mut Prng) {
        let pool = if kind == FaultKind::Crash { &victims.expendable } else { &victims.any };
        if pool.is_empty() {
            return;
        }
        let node = pool[prng.below(pool.len() as u64) as usize];
        let between =
            |prng: &mut Prng, from: u64, to: u64| from + prng.below(to.max(from) - from + 1);
        let (first, last) = (bounds.window.start().0, bounds.window.end().0);
        let at = between(prng, first, last);
        let outage = between(prng, nanos(*bounds.outage.start()), nanos(*bounds.outage.end()));
        let end = SimTime((at + outage).min(last));
        let mut either_way = |most: u64| prng.below(2 * most + 1) as i64 - most as i64;
        let at = SimTime(at);
        match kind {
            FaultKind::Loss | FaultKind::Duplicate | FaultKind::Reorder => {}
            FaultKind::Crash => self.faults.push((at, Fault::Crash(node))),
            FaultKind::Restart => {
                self.faults.push((at, Fault::Crash(node)));
                self.faults.push((end, Fault::Restart(node)));
            }
            FaultKind::Pause => self.faults.push((at, Fault::Pause(node, end.since(at)))),
            FaultKind::Partition => {
                self.faults.push((at, Fault::Partition(at_most_half(pool, prng))));
                self.faults.push((end, Fault::Heal));
            }
            FaultKind::OneWay => {
                let inside = at_most_half(pool, prng);
                let cut = if prng.chance(0.5) { Cut::Deaf } else { Cut::Mute };
                self.faults.push((at, Fault::OneWay(inside, cut)));
                self.faults.push((end, Fault::Heal));
            }
            FaultKind::Bursts => {
                self.faults.push((at, Fault::Bursts(bounds.bursts_max.drawn(prng))));
                self.faults.push((end, Fault::Bursts(Bursts::default())));
            }
            FaultKind::Late => {
                let half = end.since(at) / 2;
                let late = bounds.late_max.drawn(half, prng);
                self.faults.push((at, Fault::Late(late)));
                self.faults.push((at + half, Fault::Late(Late::default())));
            }
            FaultKind::Slow => {
                let factor = 1.0 + prng.unit() * (bounds.slow_max - 1.0);
                self.faults.push((at, Fault::Slow(node, factor)));
                self.faults.push((end, Fault::Slow(node, 1.0)));
            }
            FaultKind::ClockStep => {
                let by = either_way(nanos(bounds.clock_step_max));
                self.faults.push((at, Fault::ClockStep(node, by)));
            }
            FaultKind::ClockDrift => {
                let ppb = either_way(bounds.clock_drift_max_ppb);
                self.faults.push((at, Fault::ClockDrift(node, ppb)));
            }
            FaultKind::ClockYears => {
                let years = prng.below(CLOCK_YEARS_MAX) as i64 + 1;
                let by = if prng.chance(0.5) { years } else { -years } * YEAR_NS;
                self.faults.push((at, Fault::ClockStep(node, by)));
            }
            FaultKind::Disk => {
                let faults = bounds.disk_max.drawn(prng);
                self.faults.push((at, Fault::Disk(node, faults)));
                self.faults.push((end, Fault::Disk(node, DiskFaults::default())));
            }
            FaultKind::Objects => {
                let faults = bounds.objects_max.drawn(prng);
                self.faults.push((at, Fault::Objects(faults)));
                self.faults.push((end, Fault::Objects(ObjectFaults::default())));
            }
        }
    }

    /// Puts the timed faults on a world's agenda.
    pub fn schedule<M: evenfall_core::Machine, N: Network>(&self, world: &mut World<M, N>) {
        for (at, fault) in &self.faults {
            world.schedule(*at, Action::Fault(fault.clone()));
        }
    }
}

/// Some of these nodes, half of them at most, rounded up.
fn at_most_half(pool: &[NodeIndex], prng: &mut Prng) -> Vec<NodeIndex> {
    let mut inside = pool.to_vec();
    prng.shuffle(&mut inside);
    inside.truncate(1 + prng.below(pool.len().div_ceil(2) as u64) as usize);
    inside
}

/// A scene that is nothing but a plan.
impl AsMut<Self> for Plan {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}", self.seed)?;
        for (name, value) in &self.knobs {
            write!(f, " {name}={value}")?;
        }
        writeln!(f)?;
        for (at, fault) in &self.faults {
            writeln!(f, "  {at} {fault:?}")?;
        }
        Ok(())
    }
}

/// Counts of what a set of plans exercised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Plans counted.
    pub runs: u64,
    kinds: [(u64, u64); FaultKind::ALL.len()],
    knobs: Vec<(&'static str, u64, u64)>,
    /// Name, sum over all runs, and most in one run.
    counts: Vec<(&'static str, u64, u64)>,
    /// Equal sets of runs have equal digests, in whatever order the runs came.
    pub digest: u64,
}

impl Coverage {
    /// Counts a plan.
    pub fn add(&mut self, plan: &Plan) {
        self.runs += 1;
        for kind in FaultKind::ALL {
            let times = plan.faults.iter().filter(|(_, fault)| counts(kind, fault, plan)).count();
            let (runs, faults) = &mut self.kinds[kind as usize];
            *runs += u64::from(times > 0);
            *faults += times as u64;
        }
        for &(name, value) in &plan.knobs {
            self.knob(name, value, value);
        }
    }

    /// Adds the counts of another set.
    pub fn merge(&mut self, other: &Self) {
        self.runs += other.runs;
        for (mine, theirs) in self.kinds.iter_mut().zip(other.kinds) {
            *mine = (mine.0 + theirs.0, mine.1 + theirs.1);
        }
        for &(name, least, most) in &other.knobs {
            self.knob(name, least, most);
        }
        for &(name, sum, most) in &other.counts {
            self.add_up(name, sum, most);
        }
        self.digest = self.digest.wrapping_add(other.digest);
    }

    /// Adds the digest and the counts of a run.
    pub fn note(&mut self, seed: u64, digest: u64, counts: &[(&'static str, u64)]) {
        // Mixed with the seed, so that two runs that change places change the sum.
        self.digest = self.digest.wrapping_add(Prng::new(seed ^ digest).next_u64());
        for &(name, count) in counts {
            self.add_up(name, count, count);
        }
    }

    fn add_up(&mut self, name: &'static str, sum: u64, most: u64) {
        match self.counts.iter_mut().find(|count| count.0 == name) {
            Some(count) => *count = (name, count.1 + sum, count.2.max(most)),
            None => self.counts.push((name, sum, most)),
        }
    }

    /// Whether these kinds occurred and these counts were reached.
    ///
    /// # Errors
    /// The first missing kind or count, in words.
    pub fn demand(&self, kinds: &[FaultKind], counts: &[(&str, u64)]) -> Result<(), String> {
        if let Some(kind) = kinds.iter().find(|kind| self.runs_with(**kind) == 0) {
            return Err(format!("no run had the fault {}", kind.name()));
        }
        for &(name, least) in counts {
            let found = self.counts.iter().find(|count| count.0 == name).map_or(0, |count| count.1);
            if found < least {
                return Err(format!("{found} {name} in all runs, {least} expected at least"));
            }
        }
        Ok(())
    }

    fn knob(&mut self, name: &'static str, least: u64, most: u64) {
        match self.knobs.iter_mut().find(|knob| knob.0 == name) {
            Some(knob) => *knob = (name, knob.1.min(least), knob.2.max(most)),
            None => self.knobs.push((name, least, most)),
        }
    }

    /// The counts of the runs: name, sum over all runs, and most in one run.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        self.counts.iter().copied()
    }

    /// In how many runs this kind occurred.
    pub fn runs_with(&self, kind: FaultKind) -> u64 {
        self.kinds[kind as usize].0
    }
}

/// Whether a timed fault of a plan counts as one of this kind.
fn counts(kind: FaultKind, fault: &Fault, plan: &Plan) -> bool {
    let returns = |node| plan.faults.iter().any(|(_, fault)| *fault == Fault::Restart(node));
    match (kind, fault) {
        (FaultKind::Loss, Fault::Rates(rates)) => rates.loss > 0.0,
        (FaultKind::Duplicate, Fault::Rates(rates)) => rates.duplicate > 0.0,
        (FaultKind::Reorder, Fault::Rates(rates)) => rates.reorder > 0.0,
        (FaultKind::Crash, Fault::Crash(node)) => !returns(*node),
        (FaultKind::Slow, Fault::Slow(_, factor)) => *factor > 1.0,
        (FaultKind::Restart, Fault::Restart(_))
        | (FaultKind::Pause, Fault::Pause(..))
        | (FaultKind::Partition, Fault::Partition(_))
        | (FaultKind::OneWay, Fault::OneWay(..))
        | (FaultKind::ClockDrift, Fault::ClockDrift(..)) => true,
        (FaultKind::Bursts, Fault::Bursts(bursts)) => *bursts != Bursts::default(),
        (FaultKind::Late, Fault::Late(late)) => *late != Late::default(),
        (FaultKind::ClockStep, Fault::ClockStep(_, by)) => by.abs() < YEAR_NS,
        (FaultKind::ClockYears, Fault::ClockStep(_, by)) => by.abs() >= YEAR_NS,
        (FaultKind::Disk, Fault::Disk(_, faults)) => *faults != DiskFaults::default(),
        (FaultKind::Objects, Fault::Objects(faults)) => *faults != ObjectFaults::default(),
        _ => false,
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12} {:>8} {:>8}   of {} runs", "fault", "runs", "faults", self.runs)?;
        for kind in FaultKind::ALL {
            let (runs, faults) = self.kinds[kind as usize];
            if runs > 0 {
                writeln!(f, "{:<12} {runs:>8} {faults:>8}", kind.name())?;
            }
        }
        for (name, least, most) in &self.knobs {
            writeln!(f, "{name:<12} from {least} to {most}")?;
        }
        for (name, sum, most) in self.counts.iter().filter(|(_, sum, _)| *sum > 0) {
            writeln!(f, "{sum} {name}, at most {most} in one run")?;
        }
        writeln!(f, "digest {:016x}", self.digest)
    }
}
