//! Tables: the tables of the thesis beside our results, planners by shape, and probing against
//! all-to-all measurement.

use core::time::Duration;

use evenfall_campaigns::model::Model;
use evenfall_core::Hedging;
use evenfall_core::statistics::{half_width, mean};
use evenfall_placement_planner::builder::{
    BuildPlan, BuilderStep, Racing, RootRule, TreeBuilder, TreePart,
};
use evenfall_placement_planner::delays::{DelayMatrix, EdgeStats};
use evenfall_placement_planner::explorer::{self, Explorer, PAIRS_PER_HOST};
use evenfall_placement_planner::lemondrop::{AssignmentMethod, LEMON_SETTINGS};
use evenfall_placement_planner::minmax::MinMax;
use evenfall_placement_planner::planner::{PlanMethod, Planner, TreePlan};
use evenfall_placement_planner::strategy::{Pick, Strategy};
use evenfall_placement_planner::tree::{PlacedTree, TreeShape};

use super::model::Pool;
use crate::tables::Table;

/// The size of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementEffort {
    /// The cloud in which the pools are.
    pub model: Model,
    /// Seed of the first pool.
    pub first: u64,
    /// Pools, one per seed.
    pub seeds: u64,
    /// Probes of every measured pair.
    pub probes: u32,
    /// Messages that judge a tree.
    pub messages: u32,
    /// Whether delays drift between measuring and judging as they do between the repeats of the
    /// measurements.
    pub drift: bool,
}

impl PlacementEffort {
    fn said(&self) -> String {
        format!(
            "model {}, seeds {} to {}, {} probes per pair, {} messages per judgement, {}",
            self.model.name,
            self.first,
            self.first + self.seeds - 1,
            self.probes,
            self.messages,
            if self.drift { "delays drift in between" } else { "no drift in between" }
        )
    }

    fn range(&self) -> core::ops::Range<u64> {
        self.first..self.first + self.seeds
    }

    /// The pool of this seed.
    fn pool(&self, hosts: usize, seed: u64) -> Pool {
        Pool::new(&self.model, hosts, self.drift, seed)
    }
}

fn four(stats: &EdgeStats) -> [f64; 4] {
    [stats.p90_us, stats.p50_us, stats.mean_us, stats.stddev_us].map(f64::from)
}

/// The planner of a row. `root` is the number of a host; with `None` the planner chooses the root.
fn planner(method: PlanMethod, shape: TreeShape, root: Option<usize>) -> Planner {
    let root = root.map_or(RootRule::Random, RootRule::Host);
    Planner { root, ..Planner::new(method, shape) }
}

/// The plan that a planner makes from these measurements.
fn choose(planner: &Planner, delays: &DelayMatrix, seed: u64) -> Result<TreePlan, String> {
    let hosts: Vec<usize> = (0..delays.hosts()).collect();
    let planner = Planner { seed, ..planner.clone() };
    planner.plan(delays, &hosts).map_err(|error| error.to_string())
}

/// A row of the thesis: its name, the printed delays of its worst leaf (p90, p50, mean, stddev),
/// and our planner for it.
type ThesisRow = (&'static str, Option<[f64; 4]>, Planner);

/// Rows for depth 3 and fan-out 2. The two roots of the thesis are the hosts 0 and 1 of every pool,
/// and K is 2 F.
fn thesis_rows() -> Vec<ThesisRow> {
    let shape = TreeShape { depth: 3, fanout: 2 };
    let best = |strategy, root| planner(PlanMethod::best(strategy), shape, Some(root));
    let printed = |setting: usize| {
        let (_, epsilon, iterations_max) = LEMON_SETTINGS[setting];
        let method = AssignmentMethod::Printed { epsilon, iterations_max };
        planner(PlanMethod::LemonDrop(method), shape, None)
    };
    let worst = PlanMethod::TreeBuilder(Strategy::p90(), Pick::Worst);
    let (first, second) = ("BEST-WEIGHTED, first root", "BEST-WEIGHTED, second root");
    let (p90_first, p90_second) = ("BEST-P90, first root", "BEST-P90, second root");
    let (p50_first, p50_second) = ("BEST-P50, first root", "BEST-P50, second root");
    vec![
        (first, Some([358.0, 247.0, 261.4, 79.0]), best(Strategy::weighted(), 0)),
        (second, Some([312.0, 208.0, 223.1, 68.6]), best(Strategy::weighted(), 1)),
        (p90_first, Some([364.0, 246.0, 262.1, 159.2]), best(Strategy::p90(), 0)),
        (p90_second, Some([306.0, 210.0, 226.5, 153.9]), best(Strategy::p90(), 1)),
        (p50_first, Some([392.0, 269.0, 282.6, 83.6]), best(Strategy::p50(), 0)),
        (p50_second, Some([288.0, 186.0, 205.3, 156.1]), best(Strategy::p50(), 1)),
        ("RAND", Some([383.0, 256.0, 281.1, 308.3]), planner(PlanMethod::random(), shape, Some(0))),
        ("WORST-P90", Some([498.0, 318.0, 353.7, 352.3]), planner(worst, shape, Some(0))),
        ("LEMON printed, 1e-4 (LEMON-1)", Some([338.0, 236.0, 249.5, 94.9]), printed(0)),
        ("LEMON printed, 1e-4 (LEMON-2)", Some([325.0, 223.0, 236.7, 76.4]), printed(0)),
        ("LEMON printed, 1e-4 (LEMON-A-1)", None, printed(0)),
        ("LEMON printed, 2.2e-5 (LEMON-B-1)", None, printed(1)),
        (LONG_ROW, None, printed(2)),
        ("LemonDrop, correct step", None, planner(PlanMethod::lemondrop(1), shape, None)),
        ("greedy on all pairs, first root", None, planner(PlanMethod::Greedy, shape, Some(0))),
        ("min-max, first root", None, planner(PlanMethod::MinMax, shape, Some(0))),
        ("min-max, own root", None, planner(PlanMethod::MinMax, shape, None)),
    ]
}

/// The printed variant runs to its limit of 100,000 steps, so its row has only a few pools.
const LONG_ROW: &str = "LEMON printed, 1.7e-5 (LEMON-C-1), 3 pools";

/// Worst leaves of the thesis' appendix A.5.6, p90 and stddev, by setting.
const LEMON_WORST: [[f64; 2]; 3] = [[295.0, 83.35], [273.0, 64.19], [285.0, 57.64]];

/// Sections 5.2.1 to 5.2.4 and A.5.6: the worst leaf by strategy, root and planner.
///
/// # Errors
/// The error of a planner.
pub fn thesis(effort: &PlacementEffort, progress: &mut dyn FnMut(&str)) -> Result<Table, String> {
    let mut table = Table::new(
        "The worst leaf: thesis and simulation, 25 hosts, D3, F2, K4, microseconds",
        format!("simulated: mean over {}; the thesis: one run on one pool", effort.said()),
        &[
            "tree",
            "thesis p90",
            "p50",
            "mean",
            "stddev",
            "simulated p90",
            "+-",
            "p50",
            "mean",
            "stddev",
        ],
    );
    let pools: Vec<_> = effort
        .range()
        .map(|seed| {
            let pool = effort.pool(25, seed);
            (pool.measure(effort.probes), pool, seed)
        })
        .collect();
    for (name, published, planner) in thesis_rows() {
        progress(name);
        let mut values: [Vec<f64>; 4] = Default::default();
        let some = if name == LONG_ROW { 3 } else { pools.len() };
        let pools = &pools[..some.min(pools.len())];
        for (delays, pool, seed) in pools {
            let tree = choose(&planner, delays, *seed)?.tree;
            let stats = four(&pool.judge(&tree, effort.messages));
            values.iter_mut().zip(stats).for_each(|(all, value)| all.push(value));
        }
        let [p90, p50, whole, stddev] = &values;
        let ours = [mean(p90), half_width(p90, TAIL), mean(p50), mean(whole), mean(stddev)];
        let lemon = LEMON_SETTING_ROWS.iter().position(|row| name.contains(row));
        let published = match (published, lemon) {
            (Some(values), _) => values.map(Some),
            (None, Some(i)) => [Some(LEMON_WORST[i][0]), None, None, Some(LEMON_WORST[i][1])],
            (None, None) => [None; 4],
        };
        table.row(name.into(), published.into_iter().chain(ours));
    }
    Ok(table)
}

const LEMON_SETTING_ROWS: [&str; 3] = ["LEMON-A-1", "LEMON-B-1", "LEMON-C-1"];

/// Section 3.1, goal 3: the cost of rebuilding a part of a tree after one of its hosts has turned
/// slow.
///
/// # Errors
/// The error of the builder.
pub fn rebuilds(effort: &PlacementEffort) -> Result<Table, String> {
    let mut table = Table::new(
        "Rebuilds: worst leaf p90 by what is built anew, microseconds, and probing",
        format!(
            "{}; D3 F2 K4, BEST-WEIGHTED; a proxy of the second level turns into a straggler \
             (in every other pool: a leaf) and is avoided; a new leaf layer cannot mend a proxy",
            effort.said()
        ),
        &["part", "p90", "+-", "measurements of a candidate"],
    );
    let shape = TreeShape { depth: 3, fanout: 2 };
    let mut rows = [
        ("before", vec![], vec![]),
        ("leaf layer", vec![], vec![]),
        ("subtree of the first proxy", vec![], vec![]),
        ("everything below the root", vec![], vec![]),
    ];
    for seed in effort.range() {
        let pool = effort.pool(25, seed);
        let delays = pool.measure(effort.probes);
        let hosts: Vec<usize> = (0..25).collect();
        let plan = BuildPlan {
            shape,
            candidates: 4,
            strategy: Strategy::weighted(),
            pick: Pick::Best,
            root: RootRule::Host(0),
            racing: Racing::OFF,
        };
        let said = |error: evenfall_placement_planner::builder::BuildError| error.to_string();
        let mut builder = TreeBuilder::new(plan.clone(), &hosts, seed).map_err(said)?;
        let tree = builder.run_on(&delays).map_err(said)?;
        let slow = tree.hosts()[if seed % 2 == 0 { 3 } else { 7 }];
        let slowed = pool.slowed(slow);
        let delays = slowed.measure(effort.probes);
        let p90 = |tree: &PlacedTree| f64::from(slowed.judge(tree, effort.messages).p90_us);
        rows[0].1.push(p90(&tree));
        rows[0].2.push(builder.probing());
        let parts = [TreePart::Leaves, TreePart::Below(1), TreePart::Below(0)];
        for (row, part) in rows[1..].iter_mut().zip(parts) {
            let builder = TreeBuilder::rebuild(plan.clone(), &tree, part, &hosts, &[slow], seed);
            let mut builder = builder.map_err(said)?;
            let tree = builder.run_on(&delays).map_err(said)?;
            row.1.push(p90(&tree));
            row.2.push(builder.probing());
        }
    }
    for (name, p90, probing) in rows {
        table.row(name.into(), [mean(&p90), half_width(&p90, TAIL), mean(&probing)]);
    }
    Ok(table)
}

/// The gap between min-max plans and the best possible plans, on measurements of the fitted pools.
///
/// # Errors
/// The error of the planner.
pub fn gaps(
    cases: &[(usize, TreeShape)],
    effort: &PlacementEffort,
    progress: &mut dyn FnMut(&str),
) -> Result<Table, String> {
    let mut table = Table::new(
        "Gap: the worst leaf's p90 as estimated, and the bound under it",
        format!("{}; microseconds, means; gaps in percent", effort.said()),
        &[
            "hosts/D/F, root",
            "worst leaf",
            "+-",
            "bound",
            "gap, mean",
            "+-",
            "gap, most",
            "proven best, %",
        ],
    );
    for &(hosts, shape) in cases {
        for (hedging, root, name) in [
            (Hedging::NONE, Some(0), "given"),
            (Hedging::NONE, None, "any"),
            (Hedging(1), Some(0), "given, H1"),
        ] {
            let (mut worst, mut bound, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
            for seed in effort.range() {
                progress(&format!("{hosts} hosts, root {name}, seed {seed}"));
                let delays = effort.pool(hosts, seed).measure(effort.probes);
                let planner = Planner { hedging, ..planner(PlanMethod::MinMax, shape, root) };
                let plan = choose(&planner, &delays, seed)?;
                worst.push(plan.worst_leaf_us);
                bound.extend(plan.bound_us);
                gaps.extend(plan.gap().map(|gap| gap * 100.0));
            }
            let most = gaps.iter().copied().reduce(f64::max);
            let proven = gaps.iter().filter(|gap| **gap == 0.0).count() as f64;
            let proven = Some(proven / gaps.len() as f64 * 100.0);
            let name = format!("{hosts}/{}/{}, {name}", shape.depth, shape.fanout);
            let (worst_half, gap_half) = (half_width(&worst, TAIL), half_width(&gaps, TAIL));
            let row = [mean(&worst), worst_half, mean(&bound), mean(&gaps), gap_half, most, proven];
            table.row(name, row);
        }
    }
    Ok(table)
}

/// Number of FAQ starts with which LemonDrop takes about as long as min-max on a pool of this size.
/// The table prints the seconds of both.
fn starts(hosts: usize) -> u32 {
    match hosts {
        0..=50 => 300,
        51..=200 => 60,
        _ => 1,
    }
}

/// The rows of [`shape`].
fn rivals(hosts: usize, shape: TreeShape) -> Vec<(String, Rival)> {
    let own = |method| Rival::Planner(planner(method, shape, None));
    let first = |method| Rival::Planner(planner(method, shape, Some(0)));
    let named = |name: &str, rival| (name.to_owned(), rival);
    let many = starts(hosts);
    let mut rows = vec![
        named("min-max, own root", own(PlanMethod::MinMax)),
        named("min-max", first(PlanMethod::MinMax)),
        named("min-max on some pairs", Rival::Explorer),
        named("greedy on all pairs, own root", own(PlanMethod::Greedy)),
        named("greedy on all pairs", first(PlanMethod::Greedy)),
        named("LemonDrop, 1 start, own root", own(PlanMethod::lemondrop(1))),
    ];
    if many > 1 {
        rows.push((
            format!("LemonDrop, {many} starts, own root"),
            own(PlanMethod::lemondrop(many)),
        ));
    }
    rows.extend([
        named("BEST-WEIGHTED", first(PlanMethod::best(Strategy::weighted()))),
        named("BEST-P90", first(PlanMethod::best(Strategy::p90()))),
        named("RAND", first(PlanMethod::random())),
    ]);
    rows
}

/// The planner of a row.
enum Rival {
    /// A planner that reads all pairs.
    Planner(Planner),
    /// Min-max at root 0, which reads only the pairs that it asks for.
    Explorer,
}

/// Sums for the row of a planner.
#[derive(Default)]
struct Gathered {
    us: Vec<f64>,
    seconds: Vec<f64>,
    pairs: Vec<f64>,
}

/// Planners on one shape, judged on samples that they have not seen. K is twice F. `clock` measures
/// the time of a planner.
///
/// # Errors
/// The error of a planner.
pub fn shape(
    hosts: usize,
    shape: TreeShape,
    effort: &PlacementEffort,
    clock: &dyn Fn() -> Duration,
    progress: &mut dyn FnMut(&str),
) -> Result<Table, String> {
    let TreeShape { depth, fanout } = shape;
    let mut table = Table::new(
        &format!("Pool {hosts}, D{depth}, F{fanout}: worst leaf p90, microseconds"),
        format!(
            "{}; K = {}; root 0 where not said; +- is Student's 95 % interval of the mean before \
             it; seconds of planning are this machine's",
            effort.said(),
            2 * u32::from(fanout)
        ),
        &[
            "planner",
            "mean",
            "+-",
            "least",
            "most",
            "min-max below it, mean %",
            "+-",
            "in the worst seed",
            "pairs it reads",
            "s",
        ],
    );
    let rivals = rivals(hosts, shape);
    let mut all: Vec<Gathered> = rivals.iter().map(|_| Gathered::default()).collect();
    for seed in effort.range() {
        let pool = effort.pool(hosts, seed);
        let delays = pool.measure(effort.probes);
        for (row, (name, rival)) in all.iter_mut().zip(&rivals) {
            let began = clock();
            let (tree, pairs) = match rival {
                Rival::Explorer => {
                    let found = explored(&delays, shape, seed)?;
                    (found.plan.tree, found.pairs)
                }
                Rival::Planner(planner) => {
                    (choose(planner, &delays, seed)?.tree, pairs_read(planner, hosts))
                }
            };
            row.seconds.push((clock() - began).as_secs_f64());
            row.pairs.push(pairs as f64);
            let us = pool.judge(&tree, effort.messages).p90_us;
            progress(&format!("seed {seed}, {name}: {us}"));
            row.us.push(f64::from(us));
        }
    }
    for ((name, rival), row) in rivals.iter().zip(&all) {
        // A planner that chooses its root is compared with a min-max planner that also chooses its
        // root.
        let own = matches!(rival, Rival::Planner(planner) if planner.root == RootRule::Random);
        let ours = &all[usize::from(!own)].us;
        let below = |(other, ours): (&f64, &f64)| (1.0 - ours / other) * 100.0;
        let below: Vec<f64> = row.us.iter().zip(ours).map(below).collect();
        let values = [
            mean(&row.us),
            half_width(&row.us, TAIL),
            row.us.iter().copied().reduce(f64::min),
            row.us.iter().copied().reduce(f64::max),
            mean(&below),
            half_width(&below, TAIL),
            below.iter().copied().reduce(f64::min),
            mean(&row.pairs),
            mean(&row.seconds),
        ];
        table.row(name.clone(), values);
    }
    Ok(table)
}

/// Probability that the true mean lies outside the interval: 5 % for a 95 % interval.
const TAIL: f64 = 0.05;

/// Pairs that a planner reads. TreeBuilder reads the pairs from each parent to its K candidates.
fn pairs_read(planner: &Planner, hosts: usize) -> u64 {
    let hosts = hosts as u64;
    match planner.build_plan() {
        Some(plan) if plan.pick == Pick::Random => 0,
        Some(plan) => (plan.shape.inner() * plan.candidates) as u64,
        None => hosts * (hosts - 1),
    }
}

/// The result of an explorer.
struct Explored {
    plan: TreePlan,
    pairs: u64,
    jobs: u64,
}

/// Runs min-max at root 0. `delays` has all pairs, and the planner reads only the pairs that it
/// asks for.
fn explored(delays: &DelayMatrix, shape: TreeShape, seed: u64) -> Result<Explored, String> {
    let what = MinMax { root: Some(0), seed, ..MinMax::new(shape) };
    let hosts: Vec<usize> = (0..delays.hosts()).collect();
    let budget = PAIRS_PER_HOST * hosts.len() as u64;
    let mut explorer = Explorer::new(what, delays.names().to_vec(), &hosts, budget);
    let mut jobs = 0;
    loop {
        match explorer.step() {
            explorer::ExplorerStep::Measure(ask) => {
                let edge = |(from, to)| Some((from, to, *delays.edge(from, to)?));
                let edges: Vec<_> = ask.pairs().into_iter().filter_map(edge).collect();
                explorer.answer(&edges);
                jobs += 1;
            }
            explorer::ExplorerStep::Done(plan) => {
                return Ok(Explored { plan, pairs: explorer.spent(), jobs });
            }
            explorer::ExplorerStep::Failed(error) => return Err(error.to_string()),
        }
    }
}

/// Duration of the measurement of one pair in seconds, as in the thesis.
const JOB_S: f64 = 10.0;
/// Probes per second of the measurement of one pair, as in the thesis.
const PROBES_PER_S: f64 = 10_000.0;

/// Probe traffic and time to a plan. TreeBuilder with and without racing is compared with the
/// all-to-all measurement that LemonDrop and min-max use.
///
/// # Errors
/// The error of a planner.
pub fn probing(effort: &PlacementEffort, progress: &mut dyn FnMut(&str)) -> Result<Table, String> {
    let mut table = Table::new(
        "Probe traffic and time to a plan, by planner and pool",
        format!(
            "{}; a pair is probed for 10 s at 10,000/s, in ten rounds where raced; jobs of \
             TreeBuilder, and groups and trees of some pairs, run one after another, K = 2F; \
             all-to-all with each host sending to 2F others at a time, as a TreeBuilder \
             parent does",
            effort.said()
        ),
        &["planner, hosts/D/F", "probes, millions", "time, s", "worst leaf p90, us", "+-"],
    );
    for (hosts, depth, fanout) in [(25, 3, 2), (100, 2, 5), (400, 3, 5)] {
        let shape = TreeShape { depth, fanout };
        let candidates = 2 * fanout as usize;
        progress(&format!("{hosts} hosts"));
        let mut raced = [Vec::new(), Vec::new(), Vec::new()];
        let mut grown = [Vec::new(), Vec::new(), Vec::new()];
        let mut some = [Vec::new(), Vec::new(), Vec::new()];
        let mut least = Vec::new();
        for seed in effort.range() {
            let pool = effort.pool(hosts, seed);
            for (racing, columns) in [(Racing::default(), &mut raced), (Racing::OFF, &mut grown)] {
                let row = race(&pool, shape, candidates, racing, effort, seed)?;
                columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
            }
            let delays = pool.measure(effort.probes);
            let tree = choose(&planner(PlanMethod::MinMax, shape, Some(0)), &delays, seed)?.tree;
            let judge = |tree| f64::from(pool.judge(tree, effort.messages).p90_us);
            least.push(judge(&tree));
            let found = explored(&delays, shape, seed)?;
            let millions = found.pairs as f64 * JOB_S * PROBES_PER_S / 1e6;
            let row = [millions, found.jobs as f64 * JOB_S, judge(&found.plan.tree)];
            some.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
        }
        let pairs = (hosts * (hosts - 1)) as f64;
        let name = |what: &str| format!("{what}, {hosts}/{depth}/{fanout}");
        for (what, [millions, seconds, us]) in [
            ("BEST-WEIGHTED raced", raced),
            ("BEST-WEIGHTED", grown),
            ("some pairs, min-max", some),
        ] {
            let row = [mean(&millions), mean(&seconds), mean(&us), half_width(&us, TAIL)];
            table.row(name(what), row);
        }
        let millions = pairs * JOB_S * PROBES_PER_S / 1e6;
        let seconds = ((hosts - 1) as f64 / candidates as f64).ceil() * JOB_S;
        table.row(
            name("all-to-all, min-max"),
            [Some(millions), Some(seconds), mean(&least), half_width(&least, TAIL)],
        );
    }
    Ok(table)
}

/// Returns millions of probes, seconds, and the delay of the worst leaf.
fn race(
    pool: &Pool,
    shape: TreeShape,
    candidates: usize,
    racing: Racing,
    effort: &PlacementEffort,
    seed: u64,
) -> Result<[f64; 3], String> {
    let plan = BuildPlan {
        shape,
        candidates,
        strategy: Strategy::weighted(),
        pick: Pick::Best,
        root: RootRule::Host(0),
        racing,
    };
    let hosts: Vec<usize> = (0..pool.hosts()).collect();
    let mut builder = TreeBuilder::new(plan, &hosts, seed).map_err(|error| error.to_string())?;
    let (mut rounds, mut millions) = (0u32, 0.0);
    let tree = loop {
        match builder.step() {
            BuilderStep::Done(tree) => break tree,
            BuilderStep::Failed(error) => return Err(error.to_string()),
            BuilderStep::Measure(request) => {
                let share = 1.0 / f64::from(request.rounds);
                let probes = (f64::from(effort.probes) * share).ceil() as u32;
                let name = u64::from(request.round) + 1;
                let result = |&to: &usize| (to, Ok(pool.probe(request.parent, to, probes, name)));
                let results: Vec<_> = request.candidates.iter().map(result).collect();
                rounds += 1;
                millions += results.len() as f64 * JOB_S * PROBES_PER_S * share / 1e6;
                builder.answer(&results);
            }
        }
    };
    let judged = pool.judge(&tree, effort.messages);
    let seconds = f64::from(rounds) * JOB_S / f64::from(racing.rounds);
    Ok([millions, seconds, f64::from(judged.p90_us)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn little() -> PlacementEffort {
        let model = Model::named("gcp").expect("built in");
        PlacementEffort { model, first: 1, seeds: 3, probes: 200, messages: 500, drift: false }
    }

    #[test]
    fn min_max_beats_the_thesis_on_messages_nobody_saw() {
        let (places, clock) = (TreeShape { depth: 3, fanout: 2 }, || Duration::ZERO);
        let table = shape(25, places, &little(), &clock, &mut |_| ()).expect("plans");
        let mean = |name: &str| {
            let row = table.rows.iter().find(|row| row.0 == name).expect("a row");
            row.1[0].expect("a mean")
        };
        assert!(mean("min-max") < mean("BEST-WEIGHTED"));
        assert!(mean("BEST-WEIGHTED") < mean("RAND"));
    }

    #[test]
    fn racing_probes_less_than_whole_measurements() {
        let pool = little().pool(25, 1);
        let shape = TreeShape { depth: 3, fanout: 2 };
        let raced = race(&pool, shape, 4, Racing::default(), &little(), 1).expect("a tree");
        let whole = race(&pool, shape, 4, Racing::OFF, &little(), 1).expect("a tree");
        assert!(raced[0] < whole[0], "{raced:?} {whole:?}");
    }

    #[test]
    fn rebuilds_probe_less_the_less_they_rebuild() {
        let table = rebuilds(&little()).expect("trees");
        let probing: Vec<f64> = table.rows.iter().filter_map(|row| row.1[2]).collect();
        assert!(probing[2] < probing[1] && probing[1] < probing[3], "{probing:?}");
    }
}
