//! The fault campaign of live measurement: agents and a surveyor in the simulator, with all kinds
//! of faults.
//!
//! ```text
//! 0         0.1 s                                   the end          idle
//! |-greet---|-- jobs; agents crash, stall, lie about --|- all agents --|
//!           |   time, vanish; the surveyor may die and  |  must become |
//!           |   go on from what it kept                 |  idle        |
//! ```
//!
//! A seed gives a pool, a wanted plan, and faults. [`checks`] verify that every run ends in time,
//! with a plan or with an error message. [`subject`] has the mutants that the checks must detect.

pub mod checks;
pub mod pool;
pub mod subject;

use core::fmt;
use core::time::Duration;

use evenfall_core::{ClockError, Prng, Timestamp};
use evenfall_placement_machine::{
    Agent, AgentConfig, Extent, MacKey, ProbePace, SurveyLine, Surveyor, SurveyorConfig, Timing,
    TreeSurvey,
};
use evenfall_placement_planner::builder::{Racing, RootRule};
use evenfall_placement_planner::planner::{PlanMethod, Planner};
use evenfall_placement_planner::strategy::Strategy;
use evenfall_placement_planner::tree::TreeShape;
use evenfall_sim::campaign::{Outline, Trap};
use evenfall_sim::{
    Action, Bounds, Campaign, ClockSpec, Cloud, CloudProfile, Fault, FaultKind, HostSpec,
    NodeIndex, Plan, Rates, Run, SimTime, Transcript, Victims, World,
};

use checks::{Check, Owner, SAVE};
use subject::{Ear, Mutant, Station, SurveySubject};

/// Ranges from which a seed draws its parameters.
const KNOBS: [(&str, core::ops::RangeInclusive<u64>); 16] = [
    ("agents", 3..=14),
    ("depth", 1..=2),
    ("fanout", 1..=3),
    ("candidates", 2..=6),
    ("rounds", 1..=3),
    // 0: all pairs are measured first, or only the pairs that the min-max planner asks for.
    ("mesh", 0..=3),
    ("rate", 50..=400),
    ("duration-ms", 40..=400),
    ("key", 0..=1),
    // 0: the surveyor dies, and returns unless the parameter `returns` is 0.
    ("dies", 0..=3),
    ("returns", 0..=2),
    // 0: the clock of one agent is off by far more than its stated bound.
    ("liar", 0..=3),
    // 0: one agent uses another version of the protocol.
    ("foreign", 0..=4),
    // 0: one agent sends probes of an old job for ever.
    ("rogue", 0..=2),
    // 0: the clock of one agent steps. In a quarter of the seeds the clock steps when a measurement
    // is likely to run. In the other seeds the clock steps when the agent takes part in a
    // multicast.
    ("step", 0..=3),
    // 0: no other faults occur.
    ("calm", 0..=7),
];
/// Faults occur within this time of the start. Most surveys take about as long.
const WINDOW: Duration = Duration::from_secs(4);
/// Longest outage. The time is longer than a lease, so that surveys survive some outages and not
/// others.
const OUTAGE_MAX: Duration = Duration::from_millis(1_600);
/// Time after which a run counts as endless.
const PATIENCE: Duration = Duration::from_secs(900);
/// The planted step of a clock, in nanoseconds. The step is larger than every stated bound.
const STEP_NS: i64 = 20_000_000;
/// The bound that clocks state.
const CLOCK_BOUND: Duration = Duration::from_micros(50);

fn bounds() -> Bounds {
    Bounds {
        knobs: KNOBS.to_vec(),
        kinds: FaultKind::OF_HOSTS.to_vec(),
        per_kind_max: 3,
        window: SimTime::from_millis(0)..=SimTime::from_nanos(WINDOW.as_nanos() as u64),
        rates_max: Rates {
            loss: 0.2,
            duplicate: 0.2,
            reorder: 0.2,
            reorder_by: Duration::from_millis(5),
        },
        outage: Duration::from_millis(1)..=OUTAGE_MAX,
        slow_max: 10.0,
        clock_step_max: Duration::from_millis(50),
        clock_drift_max_ppb: 100_000,
        ..Bounds::default()
    }
}

/// A step of a clock. If a pair is measured in both ways, the step makes one of its delays
/// impossible, and the surveyor drops a host. A multicast measures one way, so that only the host
/// of the clock can tell that the clock stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The clock of this node steps at this time.
    At(SimTime, NodeIndex),
    /// The clock of a receiver steps during a multicast.
    InMulticast,
}

impl Step {
    fn of(seed: u64, early: SimTime, node: u32) -> Self {
        if seed.is_multiple_of(4) { Self::At(early, NodeIndex(node)) } else { Self::InMulticast }
    }
}

/// The scene that a seed draws.
#[derive(Clone, Debug)]
pub struct SurveyScene {
    /// Pool, knobs and faults.
    pub plan: Plan,
    /// The mutant that all machines run.
    mutant: Option<Mutant>,
    agents: u32,
    wanted: Planner,
    extent: Extent,
    pace: ProbePace,
    key: Option<MacKey>,
    foreign: Option<u32>,
    liar: Option<(u32, i64)>,
    rogue: Option<u32>,
    step: Option<Step>,
    dies: Option<SimTime>,
    returns: Option<SimTime>,
}

impl AsMut<Plan> for SurveyScene {
    fn as_mut(&mut self) -> &mut Plan {
        &mut self.plan
    }
}

impl SurveyScene {
    /// Draws the scene of a seed.
    pub fn of(seed: u64) -> Self {
        let bounds = bounds();
        let mut plan = Plan::new(seed, &bounds);
        let mut prng = Prng::new(seed).fork(0x0073_7572_7665_7973);
        let agents = plan.knob("agents") as u32;
        let nodes: Vec<NodeIndex> = (1..=agents).map(NodeIndex).collect();
        if plan.knob("calm") == 0 {
            plan.kinds.clear();
            plan.rates = Rates { reorder_by: plan.rates.reorder_by, ..Rates::default() };
        }
        plan.aim(&bounds, &Victims { any: nodes.clone(), expendable: nodes });
        let calm = plan.knob("calm") == 0;
        let any = |prng: &mut Prng| 1 + prng.below(agents.into()) as u32;
        let foreign = (plan.knob("foreign") == 0).then(|| any(&mut prng));
        let liar = (plan.knob("liar") == 0).then(|| {
            let by = 200_000 + prng.below(20_000_000) as i64;
            (any(&mut prng), if prng.chance(0.5) { by } else { -by })
        });
        let rogue = (plan.knob("rogue") == 0).then(|| any(&mut prng));
        let early = SimTime::from_millis(20 + prng.below(600));
        let step = (plan.knob("step") == 0).then(|| Step::of(seed, early, any(&mut prng)));
        let at = SimTime::from_millis(prng.below(WINDOW.as_millis() as u64));
        let dies = (plan.knob("dies") == 0 && !calm).then_some(at);
        let later = at + Duration::from_millis(10 + prng.below(3_000));
        let returns = dies.filter(|_| plan.knob("returns") > 0).map(|_| later);
        let fanout = plan.knob("fanout") as u16;
        let rounds = plan.knob("rounds") as u32;
        let extent = match plan.knob("mesh") {
            0 if prng.chance(0.5) => Extent::AllPairs,
            // With so few pairs, some surveys end before their tree is settled.
            0 => Extent::Pairs(30 + prng.below(200)),
            _ => Extent::ByParent,
        };
        let method = match extent {
            Extent::ByParent => PlanMethod::best(Strategy::weighted()),
            Extent::Pairs(_) => PlanMethod::MinMax,
            Extent::AllPairs => {
                let words = ["minmax", "greedy", "lemondrop", "weighted"];
                let word = words[prng.below(words.len() as u64) as usize];
                PlanMethod::parse(word).expect("a method")
            }
        };
        let wanted = Planner {
            candidates: Some((plan.knob("candidates") as usize).max(fanout as usize)),
            root: if prng.chance(0.3) { RootRule::Reach(2) } else { RootRule::Random },
            racing: Racing { rounds, rounds_min: rounds.min(2) },
            seed,
            ..Planner::new(method, TreeShape { depth: plan.knob("depth") as u8, fanout })
        };
        let pace = ProbePace {
            rate_hz: plan.knob("rate") as u32,
            duration: Duration::from_millis(plan.knob("duration-ms")),
            warm_up: Duration::from_millis(20),
            ..ProbePace::default()
        };
        let key = (plan.knob("key") == 1).then(|| MacKey::new(1, &[seed as u8; 16]));
        Self {
            plan,
            mutant: None,
            agents,
            wanted,
            extent,
            pace,
            key,
            foreign,
            liar,
            rogue,
            step,
            dies,
            returns,
        }
    }

    fn host(&self, number: u32, prng: &mut Prng) -> (HostSpec, Timestamp) {
        let origin = Timestamp::from_nanos(1_000_000_000 + prng.below(1 << 43));
        let mut spread = |most: u64| prng.below(2 * most + 1) as i64 - most as i64;
        let honest = spread(30_000);
        let lie = self.liar.filter(|(liar, _)| *liar == number).map(|(_, by)| by);
        let clock = ClockSpec {
            origin: Some(origin),
            drift_ppb: spread(50_000),
            offset_ns: lie.unwrap_or(honest),
            noise: Duration::from_micros(1),
            stated: ClockError::Within(CLOCK_BOUND),
            ..ClockSpec::default()
        };
        (HostSpec { clock, ..HostSpec::default() }, origin)
    }

    fn agent(&self, number: u32) -> SurveySubject {
        let agent = Agent::new(AgentConfig { key: self.key.clone(), ..AgentConfig::default() });
        let foreign = self.foreign == Some(number);
        let subject = SurveySubject::new(Station::Agent(Box::new(agent)), self.mutant, foreign);
        if self.rogue == Some(number) { subject.rogue() } else { subject }
    }

    /// The surveyor in its life number `life`, with the lines that earlier lives saved.
    fn surveyor(&self, life: u64, kept: Vec<SurveyLine>, now: Timestamp) -> SurveySubject {
        let agents = (1..=self.agents).map(|node| NodeIndex(node).address()).collect();
        let names = (1..=self.agents).map(|n| format!("h{n}")).collect();
        let seed = self.plan.seed;
        let survey = TreeSurvey::new(self.wanted.clone(), names, self.pace, self.extent);
        let ear = Ear { survey: survey.resume(kept), deaf: self.mutant == Some(Mutant::Deaf) };
        let config = SurveyorConfig { key: self.key.clone(), ..SurveyorConfig::default() };
        let surveyor = Surveyor::new(config, seed << 8 | life, agents, ear, now);
        SurveySubject::new(Station::Surveyor(Box::new(surveyor)), self.mutant, false)
    }

    /// Runs the scene under the checks.
    fn run(&self, story: bool) -> Run<Check> {
        let seed = self.plan.seed;
        let mut world = World::new(Cloud::new(CloudProfile::default(), seed), seed);
        let mut prng = Prng::new(seed).fork(0x68_6f_73_74);
        for number in 0..=self.agents {
            let (spec, now) = self.host(number, &mut prng);
            let subject = match number {
                0 => self.surveyor(1, Vec::new(), now),
                _ => self.agent(number),
            };
            world.add(subject, spec);
        }
        let mut watch = Transcript::told(Owner::new(self.clone()), story);
        self.plan.schedule(&mut world);
        let steps = |node| Action::Fault(Fault::ClockStep(node, STEP_NS));
        if let Some(Step::At(at, node)) = self.step {
            world.schedule(at, steps(node));
        }
        let mut awaited = self.step.filter(|step| *step == Step::InMulticast);
        if let Some(at) = self.dies {
            world.schedule(at, Action::Token(SAVE));
            let crash = Action::Fault(Fault::Crash(NodeIndex(0)));
            world.schedule(at + Duration::from_nanos(1), crash);
        }
        if let Some(at) = self.returns {
            world.schedule(at, Action::Fault(Fault::Restart(NodeIndex(0))));
        }
        let step = Duration::from_millis(20);
        let gone = |now: SimTime| self.dies.is_some_and(|at| now > at) && self.returns.is_none();
        while !watch.inner.is_over() && !gone(world.now()) && world.now() < SimTime::ZERO + PATIENCE
        {
            let next = world.now() + step;
            world.run_until(next, &mut watch);
            if let Some(node) = watch.inner.measured().filter(|_| awaited.take().is_some()) {
                world.schedule(world.now(), steps(node));
            }
        }
        let ended = world.now();
        // Machines that were down need time to notice the end.
        let calm = ended.max(SimTime::ZERO + WINDOW + OUTAGE_MAX);
        let idle = Timing::default().idle_limit(4) + step;
        world.run_until(calm + idle, &mut watch);
        let mut run = watch.inner.close(&world, ended);
        let told = if story { format!("{self}{}{}", watch.text, run.story) } else { watch.text };
        run.story = told;
        run
    }

    fn bytes_key(&self) -> Option<&MacKey> {
        self.key.as_ref()
    }
}

impl fmt::Display for SurveyScene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  surveyor dies {:?}, returns {:?}; ", self.dies, self.returns)?;
        write!(f, "liar {:?}, of another version {:?}, ", self.liar, self.foreign)?;
        writeln!(f, "rogue {:?}, steps {:?}", self.rogue, self.step)
    }
}

/// The campaign of live measurement.
pub struct Survey;

impl Campaign for Survey {
    type Check = Check;
    type Mutant = Mutant;
    type Scene = SurveyScene;

    fn outline(&self) -> Outline<Mutant, Check> {
        const TRAPS: &[Trap<Mutant, Check>] = &[
            (Mutant::ForgetsLease, Check::Idle, 0..400),
            (Mutant::WaitsForever, Check::Ends, 0..400),
            (Mutant::CountsOthers, Check::Counted, 0..400),
            (Mutant::CountsTwice, Check::Counted, 0..400),
            (Mutant::TrustsClock, Check::Stepped, 0..400),
            (Mutant::MissesVersion, Check::Named, 0..400),
            (Mutant::Deaf, Check::Placed, 0..400),
        ];
        Outline {
            name: "survey",
            about: "live measurement ends with a plan or a clear error, whatever agents do",
            seeds: 1_000,
            once_failed: &[700_080, 713_037],
            kinds: &FaultKind::OF_HOSTS,
            // More than half of the surveys end with a plan.
            counts_min: &[
                ("plans", 400),
                ("plans around failed hosts", 100),
                ("errors in words", 1),
                ("hosts named as failed", 1),
            ],
            mutants: TRAPS,
        }
    }

    fn scene(&self, seed: u64) -> SurveyScene {
        SurveyScene::of(seed)
    }

    fn run(&self, scene: &SurveyScene, mutant: Option<Mutant>, story: bool) -> Run<Check> {
        SurveyScene { mutant, ..scene.clone() }.run(story)
    }
}
