//! A study of the cost of a plan in probes and time. It compares TreeBuilder, which grows the tree
//! parent by parent, with min-max planning from all pairs or from some pairs.

use core::fmt;
use core::time::Duration;

use evenfall_core::{ClockError, Timestamp};
use evenfall_placement_machine::{
    Agent, AgentConfig, Extent, Pace, Surveyor, SurveyorConfig, SurveyorEvent, TreeSurvey,
};
use evenfall_placement_planner::builder::Racing;
use evenfall_placement_planner::planner::{Method, Planner};
use evenfall_placement_planner::strategy::Strategy;
use evenfall_placement_planner::tree::Shape;
use evenfall_sim::{
    ClockSpec, Cloud, CloudProfile, HostSpec, NodeIndex, Observer, Seen, SimTime, World,
};

use super::subject::{Ear, Station, StationEvent, Subject};

/// Time after which a survey counts as stuck.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// One row: one way of planning on one pool.
#[derive(Clone, Debug)]
pub struct Row {
    /// Hosts of the pool.
    pub hosts: usize,
    /// Depth and fan-out of the tree.
    pub shape: Shape,
    /// The pairs that were measured.
    pub extent: Extent,
    /// Number of jobs.
    pub jobs: u64,
    /// Probes that were sent and counted, including the evaluation of the tree.
    pub probes: u64,
    /// Time from the first greeting to the evaluated tree.
    pub took: Duration,
    /// 90th percentile of the delay of the slowest leaf in the evaluation, in microseconds.
    pub worst_leaf_us: f64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.extent {
            Extent::ByParent => "weighted, by parent".into(),
            Extent::AllPairs => "min-max, all pairs".into(),
            Extent::Pairs(pairs) => format!("min-max, at most {pairs} pairs"),
        };
        write!(
            f,
            "| {} | {}/{} | {way} | {} | {} | {:.1} | {:.1} |",
            self.hosts,
            self.shape.depth,
            self.shape.fanout,
            self.jobs,
            self.probes,
            self.took.as_secs_f64(),
            self.worst_leaf_us
        )
    }
}

/// Observer that records the ends of jobs and of the survey.
#[derive(Default)]
struct Watch {
    jobs: u64,
    over: Option<SimTime>,
}

impl Observer<Subject, Cloud> for Watch {
    fn event(&mut self, seen: Seen, event: StationEvent) {
        match event {
            StationEvent::Surveyor(SurveyorEvent::Finished(_)) => self.jobs += 1,
            StationEvent::Surveyor(SurveyorEvent::Over) => self.over = Some(seen.at),
            _ => {}
        }
    }
}

fn host() -> HostSpec {
    let stated = ClockError::Within(Duration::from_micros(10));
    let origin = Some(Timestamp::from_nanos(1_000_000_000));
    HostSpec { clock: ClockSpec { stated, origin, ..ClockSpec::default() }, ..HostSpec::default() }
}

/// Plans over a pool of healthy agents on this cloud.
///
/// # Panics
/// When the survey ends without a plan, because this world has no faults.
pub fn measure(
    cloud: CloudProfile,
    hosts: usize,
    shape: Shape,
    pace: Pace,
    extent: Extent,
    seed: u64,
) -> Row {
    let mut world = World::new(Cloud::new(cloud, seed), seed);
    let method = match extent {
        Extent::ByParent => Method::best(Strategy::weighted()),
        Extent::AllPairs | Extent::Pairs(_) => Method::MinMax,
    };
    let racing = Racing { rounds: 4, rounds_min: 3 };
    let planner = Planner { racing, seed, ..Planner::new(method, shape) };
    let names = (1..=hosts).map(|host| format!("h{host}")).collect();
    let survey = TreeSurvey::new(planner, names, pace, extent);
    let (ear, agents) = (
        Ear { survey, deaf: false },
        (1..=hosts as u32).map(|node| NodeIndex(node).address()).collect(),
    );
    let now = Timestamp::from_nanos(1_000_000_000);
    let surveyor = Surveyor::new(SurveyorConfig::default(), seed, agents, ear, now);
    world.add(Subject::new(Station::Surveyor(Box::new(surveyor)), None, false), host());
    for _ in 0..hosts {
        let agent = Box::new(Agent::new(AgentConfig::default()));
        world.add(Subject::new(Station::Agent(agent), None, false), host());
    }
    let mut watch = Watch::default();
    while watch.over.is_none() && world.now() < SimTime::ZERO + PATIENCE {
        world.run_until(world.now() + Duration::from_millis(100), &mut watch);
    }
    let Station::Surveyor(surveyor) = world.machine(NodeIndex(0)).station() else {
        unreachable!("node 0 is the surveyor")
    };
    let survey = &surveyor.program().survey;
    let plan = survey.result().unwrap_or_else(|error| panic!("{hosts} hosts: {error}"));
    Row {
        hosts,
        shape,
        extent,
        jobs: watch.jobs,
        probes: survey.probes(),
        took: watch.over.unwrap_or(world.now()).since(SimTime::ZERO),
        worst_leaf_us: plan.evaluation.worst_leaf.map_or(f64::NAN, |(_, us)| us),
    }
}
