//! A study of the cost of a plan in probes and time. The study compares TreeBuilder, which grows
//! the tree parent by parent, with min-max planning from all pairs or from some pairs.

use core::time::Duration;

use evenfall_campaigns::model::Model;
use evenfall_campaigns::survey::pool::{PoolSpec, survey};
use evenfall_core::statistics::{half_width, mean};
use evenfall_placement_machine::job::MESH_HOSTS_MAX;
use evenfall_placement_machine::{Extent, ProbePace, TreeSurvey};
use evenfall_placement_planner::builder::Racing;
use evenfall_placement_planner::explorer::PAIRS_PER_HOST;
use evenfall_placement_planner::planner::{PlanMethod, Planner};
use evenfall_placement_planner::strategy::Strategy;
use evenfall_placement_planner::tree::TreeShape;

use crate::tables::{Table, columns};

/// Probes per second from a sender to each receiver: a 90th percentile out of 100 probes.
const RATE_HZ: u32 = 100;
/// Length of a whole measurement of a pair.
const MEASUREMENT: Duration = Duration::from_secs(1);

/// Jobs, probes in millions, seconds and the worst leaf's p90 in us of one survey.
///
/// # Panics
/// When the survey ends without a plan, because this world has no faults but losses and pauses.
fn measure(model: &Model, hosts: usize, shape: TreeShape, extent: Extent, seed: u64) -> [f64; 4] {
    let method = match extent {
        Extent::ByParent => PlanMethod::best(Strategy::weighted()),
        Extent::AllPairs | Extent::Pairs(_) => PlanMethod::MinMax,
    };
    let racing = Racing { rounds: 4, rounds_min: 3 };
    let planner = Planner { racing, seed, ..Planner::new(method, shape) };
    let names = (1..=hosts).map(|host| format!("h{host}")).collect();
    let pace = ProbePace { rate_hz: RATE_HZ, duration: MEASUREMENT, ..ProbePace::default() };
    let mut program = TreeSurvey::new(planner, names, pace, extent);
    let spec = PoolSpec::new(model, hosts as u32, seed);
    let took = survey(&spec, RATE_HZ, &mut program, &mut || false);
    let plan = program.result().unwrap_or_else(|error| panic!("{hosts} hosts: {error}"));
    [
        took.jobs as f64,
        program.probes() as f64 / 1e6,
        took.time.map_or(f64::NAN, |time| time.as_secs_f64()),
        plan.evaluation.worst_leaf.map_or(f64::NAN, |(_, us)| us),
    ]
}

/// The cost of a plan on pools of this model, one pool a seed.
pub fn cost(
    model: &Model,
    cases: &[(usize, TreeShape)],
    seeds: core::ops::Range<u64>,
    progress: &mut dyn FnMut(&str),
) -> Table {
    let mut table = Table::new(
        "The cost of a plan in probes and time",
        format!(
            "model {}, seeds {} to {}, {RATE_HZ} probes/s from a sender to each receiver, \
             {MEASUREMENT:?} a measurement; means with 95 % intervals of Student's t; probes in \
             millions, time in seconds, the worst leaf's p90 in microseconds",
            model.name,
            seeds.start,
            seeds.end - 1,
        ),
        &columns(
            "hosts/D/F, method",
            &["jobs", "probes", "time", "worst leaf"].map(|name| (None, name)),
        ),
    );
    for &(hosts, shape) in cases {
        let some = Extent::Pairs(PAIRS_PER_HOST * hosts as u64);
        let ways = [
            ("weighted, by parent", Extent::ByParent),
            ("min-max, some pairs", some),
            ("min-max, all pairs", Extent::AllPairs),
        ];
        for (way, extent) in ways {
            if extent == Extent::AllPairs && hosts > MESH_HOSTS_MAX {
                continue;
            }
            let name = format!("{hosts}/{}/{}, {way}", shape.depth, shape.fanout);
            let mut values: [Vec<f64>; 4] = Default::default();
            for seed in seeds.clone() {
                progress(&format!("{name}, seed {seed}"));
                let row = measure(model, hosts, shape, extent, seed);
                values.iter_mut().zip(row).for_each(|(all, value)| all.push(value));
            }
            let cells = values.iter().flat_map(|all| [mean(all), half_width(all, 0.05)]);
            table.row(name, cells);
        }
    }
    table
}
