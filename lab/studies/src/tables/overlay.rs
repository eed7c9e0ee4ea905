//! The overlay on a model of a cloud: latency by shape and mode, fairness by size, and the price of
//! P(F).
//!
//! Every row is the mean over the same seeds, and each of its values has half the width of the 95 %
//! interval beside it.

use core::time::Duration;
use std::sync::Arc;

use evenfall_campaigns::model::{Model, Stack};
use evenfall_campaigns::multicast::{OverlayParams, OverlayRun, run};
use evenfall_campaigns::seeds::{in_parallel, mean_and_half_width};
use evenfall_core::{Hedging, nearest_rank};
use evenfall_multicast_machine::Mode;
use evenfall_multicast_machine::config::{Rule, Scheme};

use super::{Table, columns};

/// How much a study spends, and where.
#[derive(Clone, Debug)]
pub struct Effort {
    /// The cloud.
    pub model: Model,
    /// How hosts send and receive.
    pub stack: Stack,
    /// Messages per second.
    pub rate: f64,
    /// Messages in every run.
    pub messages: u32,
    /// Empty frames before them; the deadline rule learns from these.
    pub warm_up: u32,
    /// First seed of every row.
    pub seed: u64,
    /// Seeds of every row.
    pub seeds: u32,
}

/// A value of a row.
enum Cell {
    /// A published figure, if there is one.
    Published(Option<f64>),
    /// The same figure of a run. A column with half the width of its interval follows.
    Ours(fn(&OverlayRun) -> Option<f64>),
}

impl Effort {
    /// The usual effort on a model. The stack is that of the published measurements that stand
    /// beside ours.
    pub fn on(model: Model) -> Self {
        Self {
            model,
            stack: Stack::KernelBypass,
            // The published rate.
            rate: 5_000.0,
            // A hundred of them lie beyond the 99th percentile.
            messages: 10_000,
            warm_up: 5_000,
            seed: 1,
            seeds: 5,
        }
    }

    pub(super) fn method(&self) -> String {
        let Self { model, stack, rate, messages, warm_up, seed, seeds } = self;
        let model = &model.name;
        format!(
            "our machines on the model {model} with the stack {stack}, {rate} msg/s, {messages} \
             messages after {warm_up} empty ones; means over seeds {seed} to {}, +- is 95 % by \
             Student's t; microseconds",
            seed + u64::from(*seeds) - 1
        )
    }

    /// A figure of the same run under every seed.
    pub(super) fn each<T: Send>(
        &self,
        params: &OverlayParams,
        progress: &mut dyn FnMut(&str),
        name: &str,
        figure: impl Fn(&OverlayRun) -> T + Sync,
    ) -> Vec<T> {
        progress(name);
        let one = |seed| figure(&run(&OverlayParams { seed, ..params.clone() }));
        let done = |finished| progress(&format!("{name}, {finished} of {} seeds", self.seeds));
        in_parallel(self.seed, self.seeds.into(), one, done)
    }

    fn row(
        &self,
        table: &mut Table,
        name: &str,
        params: &OverlayParams,
        cells: &[Cell],
        progress: &mut dyn FnMut(&str),
    ) {
        let figures = self.each(params, progress, name, |run| {
            let ours = cells.iter().map(|cell| match cell {
                Cell::Published(_) => None,
                Cell::Ours(figure) => figure(run),
            });
            ours.collect::<Vec<_>>()
        });
        let mut values = Vec::new();
        for (at, cell) in cells.iter().enumerate() {
            match cell {
                Cell::Published(published) => values.push(*published),
                Cell::Ours(_) => {
                    let known: Vec<f64> = figures.iter().filter_map(|run| run[at]).collect();
                    let (mean, half) = mean_and_half_width(&known);
                    values.extend([mean, half]);
                }
            }
        }
        table.row(name.into(), values);
        progress(table.last_line().trim_end());
    }

    /// A run of this size on the model.
    pub fn params(&self, receivers: u32, mode: Mode, hedging: Hedging) -> OverlayParams {
        let mut params = OverlayParams {
            receivers,
            rate: self.rate,
            duration: Duration::from_secs_f64(f64::from(self.messages) / self.rate),
            warm_up: Duration::from_secs_f64(f64::from(self.warm_up) / self.rate),
            ..OverlayParams::default()
        };
        params = params.on(&self.model, self.stack);
        params.config.mode = mode;
        params.config.shape.hedging = hedging;
        params
    }
}

/// The median of the un-held latency, and other figures of rows.
fn p50(run: &OverlayRun) -> Option<f64> {
    Some(run.results.oml_us.p50)
}

fn p99(run: &OverlayRun) -> Option<f64> {
    Some(run.results.oml_us.p99)
}

fn hold_p50(run: &OverlayRun) -> Option<f64> {
    let mut holds: Vec<Duration> = run.frames.iter().map(|frame| frame.hold).collect();
    holds.sort_unstable();
    nearest_rank(&holds, 0.5).map(|hold| hold.as_secs_f64() * 1e6)
}

fn held_p50(run: &OverlayRun) -> Option<f64> {
    Some(run.results.held_oml_us.p50)
}

fn p_f(run: &OverlayRun) -> Option<f64> {
    run.results.p_f
}

/// The price of the hold: the median held latency over the 99th percentile of the un-held one.
pub(super) fn hold_ratio(run: &OverlayRun) -> Option<f64> {
    Some(run.results.held_oml_us.p50 / run.results.oml_us.p99)
}

/// Heads of the columns that [`percentiles`] fills.
const PERCENTILES: [(Option<&str>, &str); 3] =
    [(Some("p50"), "ours"), (Some("p90"), "ours"), (Some("p99"), "ours")];
/// Heads of the figures of runs in which receivers hold messages.
const HELD: [(Option<&str>, &str); 5] = [
    (None, "P(F)"),
    (None, "held OML p50"),
    (None, "OML p50"),
    (None, "OML p99"),
    (None, "held p50 / OML p99"),
];

/// Published percentiles, each followed by ours. In a mode that holds messages, ours are
/// percentiles of the held latency.
fn percentiles(mode: Mode, published: [Option<f64>; 3]) -> Vec<Cell> {
    let ours: [fn(&OverlayRun) -> Option<f64>; 3] = match mode.holds() {
        true => [
            |run| Some(run.results.held_oml_us.p50),
            |run| Some(run.results.held_oml_us.p90),
            |run| Some(run.results.held_oml_us.p99),
        ],
        false => [p50, |run| Some(run.results.oml_us.p90), p99],
    };
    let beside = published.into_iter().zip(ours);
    beside.flat_map(|(published, ours)| [Cell::Published(published), Cell::Ours(ours)]).collect()
}

/// Median OML by shape, published beside ours.
pub fn shapes(effort: &Effort, progress: &mut dyn FnMut(&str)) -> Table {
    // A sender of 100 copies at a time cannot do 5,000 messages a second at 2.7 us a copy.
    let effort = &Effort { rate: effort.rate.min(1_000.0), ..effort.clone() };
    let heads = columns("shape", &[(Some("published"), "ours")]);
    let mut table = Table::new("Median OML by tree shape", effort.method(), &heads);
    // The published trees of 1,000 receivers had ten receivers on each machine.
    for (n, depth, fanout, published, per_host) in [
        (10, 1, 10, 66.0, 1),
        (10, 2, 4, 88.0, 1),
        (100, 1, 100, 351.0, 1),
        (100, 2, 10, 139.0, 1),
        (100, 3, 5, 141.0, 1),
        (1_000, 2, 32, 282.0, 10),
        (1_000, 3, 10, 217.0, 10),
        (1_000, 4, 6, 226.0, 10),
    ] {
        let mut params = effort.params(n, Mode::Tree, Hedging::NONE);
        params.config.shape.depth = Some(depth);
        params.config.shape.fanout = Some(fanout);
        params.receivers_per_host = per_host;
        let name = format!("N={n} D={depth} F={fanout}");
        let cells = [Cell::Published(Some(published)), Cell::Ours(p50)];
        effort.row(&mut table, &name, &params, &cells, progress);
    }
    table
}

/// OML percentiles of every mode at 100 receivers, and the windows.
pub fn modes(effort: &Effort, progress: &mut dyn FnMut(&str)) -> Table {
    let windows = [(Some("window p50"), "ours"), (None, "p99"), (None, "P(F)")];
    let heads = columns("mode", &[&PERCENTILES[..], &windows].concat());
    let mut table = Table::new("OML of every mode, 100 receivers", effort.method(), &heads);
    let all = |p50, p90, p99| [Some(p50), Some(p90), Some(p99)];
    for (name, mode, hedging, published, published_window) in [
        ("unicast", Mode::Unicast, 0, all(254.0, 331.0, 466.0), None),
        ("tree", Mode::Tree, 0, all(147.0, 213.0, 401.0), Some(103.0)),
        ("tree, H=1", Mode::Hedge, 1, [None; 3], Some(91.0)),
        ("tree, H=2", Mode::Hedge, 2, all(129.0, 146.0, 199.0), Some(72.0)),
        ("release, H=2", Mode::Release, 2, all(151.0, 156.0, 174.0), None),
        ("cloudex", Mode::Cloudex, 0, all(406.0, 453.0, 716.0), None),
    ] {
        // Direct modes saturate their sender above this rate.
        let rate = if mode.direct() { effort.rate.min(1_000.0) } else { effort.rate };
        let slower = if rate < effort.rate { format!(", {rate} msg/s") } else { String::new() };
        let effort = Effort { rate, ..effort.clone() };
        let mut params = effort.params(100, mode, Hedging(hedging));
        params.config.deadline.rule = Rule::MaxP95;
        let windows: [fn(&OverlayRun) -> Option<f64>; 2] = match mode.holds() {
            true => [|run| Some(run.results.window_us.p50), |run| Some(run.results.window_us.p99)],
            false => [
                |run| Some(run.results.arrival_window_us.p50),
                |run| Some(run.results.arrival_window_us.p99),
            ],
        };
        let mut cells = percentiles(mode, published);
        cells.push(Cell::Published(published_window));
        cells.extend(windows.map(Cell::Ours));
        cells.push(Cell::Ours(p_f));
        effort.row(&mut table, &format!("{name}{slower}"), &params, &cells, progress);
    }
    table
}

/// P(F) by size and rule.
pub fn fairness(effort: &Effort, sizes: &[u32], progress: &mut dyn FnMut(&str)) -> Table {
    let mut heads = HELD;
    heads[0] = (Some("P(F) published"), "P(F)");
    let title = "P(F) by receivers, hedging and rule";
    let mut table = Table::new(title, effort.method(), &columns("run", &heads));
    for &n in sizes {
        for (hedging, rule) in
            [(1, Rule::MaxP95), (2, Rule::MaxP95), (1, Rule::OnTime), (2, Rule::OnTime)]
        {
            let published = (n == 100 && rule == Rule::MaxP95).then_some(0.92);
            let mut params = effort.params(n, Mode::Release, Hedging(hedging));
            params.config.deadline.rule = rule;
            let ours = [p_f, held_p50, p50, p99, hold_ratio].map(Cell::Ours);
            let cells: Vec<Cell> = [Cell::Published(published)].into_iter().chain(ours).collect();
            let name = format!("N={n} H={hedging} {rule:?}");
            effort.row(&mut table, &name, &params, &cells, progress);
        }
    }
    table
}

/// P(F) and the price of the hold under the on-time rule with H=2: at a steady pace with a host for
/// each receiver and with twenty receivers on a host, and at the own times of a feed.
pub fn goal(
    effort: &Effort,
    sizes: &[u32],
    target: f64,
    feed: Option<&Arc<[Duration]>>,
    progress: &mut dyn FnMut(&str),
) -> Table {
    let title = format!("P(F) and the price of the hold, target {target}");
    // The time that the root holds a frame, without the pauses of hosts at the release.
    let heads = [&HELD[..1], &[(None, "hold p50")], &HELD[1..]].concat();
    let mut table = Table::new(&title, effort.method(), &columns("run", &heads));
    let cells = [p_f, hold_p50, held_p50, p50, p99, hold_ratio].map(Cell::Ours);
    for &n in sizes {
        let mut params = effort.params(n, Mode::Release, Hedging(2));
        params.config.deadline.target = target;
        for per_host in [1, 20] {
            params.receivers_per_host = per_host;
            let name = format!("N={n}, steady, {per_host} a host");
            effort.row(&mut table, &name, &params, &cells, progress);
        }
        if let Some(times) = feed {
            (params.receivers_per_host, params.times) = (1, Some(times.clone()));
            effort.row(&mut table, &format!("N={n}, feed, 1 a host"), &params, &cells, progress);
        }
    }
    table
}

/// The published figures of larger trees beside ours, and variants of a tree of 100 receivers.
pub fn scale(effort: &Effort, progress: &mut dyn FnMut(&str)) -> Table {
    // Jasper's rule follows the last reports and needs no long warm-up.
    let effort = &Effort { warm_up: effort.warm_up.min(effort.messages / 2), ..effort.clone() };
    let held = [(Some("P(F)"), "ours"), (None, "wait p50")];
    let heads = columns("run", &[&PERCENTILES[..], &held].concat());
    let mut table = Table::new("Larger trees, and variants", effort.method(), &heads);
    let at = |receivers, per_host, mode, hedging| {
        let mut params = effort.params(receivers, mode, Hedging(hedging));
        params.receivers_per_host = per_host;
        params.config.deadline.rule = Rule::MaxP95;
        params
    };
    let mut deep = at(5_832, 20, Mode::Hedge, 1);
    (deep.config.shape.depth, deep.config.shape.fanout) = (Some(3), Some(18));
    let mut extra = at(100, 1, Mode::Hedge, 2);
    extra.config.shape.scheme = Scheme::Extra;
    let (un_held, held) = (at(1_000, 10, Mode::Hedge, 2), at(1_000, 10, Mode::Release, 2));
    let [one, two] = [1, 2].map(|hedging| at(5_000, 20, Mode::Release, hedging));
    let tree = at(100, 1, Mode::Tree, 0);
    let all = |p50, p90, p99| [Some(p50), Some(p90), Some(p99)];
    let unknown = [None; 3];
    for (name, params, published, published_p_f) in [
        ("N=1000 H=2, 10 a host", un_held, all(214.0, 244.0, 377.0), None),
        ("the same, held", held, all(325.0, 397.0, 1_745.0), Some(0.87)),
        ("N=5832 D=3 F=18 H=1, 20 a host", deep, all(315.0, 355.0, 541.0), None),
        ("N=5000 H=1, 20 a host, held", one, unknown, Some(0.36)),
        ("N=5000 H=2, 20 a host, held", two, unknown, Some(0.86)),
        ("N=100 H=0", tree, all(147.0, 213.0, 401.0), None),
        ("N=100 F+H with H=2", extra, unknown, None),
    ] {
        let mode = params.config.mode;
        let mut cells = percentiles(mode, published);
        cells.extend([Cell::Published(published_p_f), Cell::Ours(p_f)]);
        cells.push(Cell::Ours(if mode.holds() {
            |run| Some(run.results.wait_us.p50)
        } else {
            |_| None
        }));
        effort.row(&mut table, name, &params, &cells, progress);
    }
    table
}

/// What P(F) costs: the on-time rule at targets from .5 to .999.
pub fn curve(
    effort: &Effort,
    receivers: u32,
    hedging: Hedging,
    progress: &mut dyn FnMut(&str),
) -> Table {
    let mut heads = HELD;
    heads[2] = (None, "held OML p99");
    let title = format!("P(F) against held OML, {receivers} receivers, H={hedging}");
    let mut table = Table::new(&title, effort.method(), &columns("target", &heads));
    for target in [0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999] {
        let mut params = effort.params(receivers, Mode::Release, hedging);
        params.config.deadline.target = target;
        let held_p99 = |run: &OverlayRun| Some(run.results.held_oml_us.p99);
        let cells = [p_f, held_p50, held_p99, p99, hold_ratio].map(Cell::Ours);
        effort.row(&mut table, &format!("{target}"), &params, &cells, progress);
    }
    table
}
