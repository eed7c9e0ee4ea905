//! The overlay on a model of a cloud: latency by shape and mode, fairness by size, and the price of
//! P(F).

use core::time::Duration;

use evenfall_core::Hedging;
use evenfall_multicast_machine::Mode;
use evenfall_multicast_machine::config::{Rule, Scheme};

use super::Table;
use crate::model::{Model, Stack};
use crate::multicast::{Params, Run, run};

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
    /// Seed of every run.
    pub seed: u64,
}

impl Effort {
    /// The usual effort on a model. The stack is that of the published measurements that stand
    /// beside ours.
    pub fn on(model: Model) -> Self {
        // 5,000 messages a second is what the papers use; two in a hundred lie beyond p98.
        let (rate, messages, warm_up) = (5_000.0, 10_000, 5_000);
        Self { model, stack: Stack::KernelBypass, rate, messages, warm_up, seed: 1 }
    }

    fn method(&self) -> String {
        let Self { model, stack, rate, messages, warm_up, seed } = self;
        let model = &model.name;
        format!(
            "our machines on the model {model} with the stack {stack}, {rate} msg/s, {messages} \
             messages after {warm_up} empty ones, seed {seed}; microseconds"
        )
    }

    /// A run of this size on the model.
    pub fn params(&self, receivers: u32, mode: Mode, hedging: Hedging) -> Params {
        let mut params = Params {
            receivers,
            rate: self.rate,
            duration: Duration::from_secs_f64(f64::from(self.messages) / self.rate),
            warm_up: Duration::from_secs_f64(f64::from(self.warm_up) / self.rate),
            seed: self.seed,
            ..Params::default()
        };
        params = params.on(&self.model, self.stack);
        params.config.mode = mode;
        params.config.shape.hedging = hedging;
        params
    }
}

fn measured(params: &Params, progress: &mut dyn FnMut(&str), name: &str) -> Run {
    progress(name);
    run(params)
}

/// Median OML by shape, published beside ours.
pub fn shapes(effort: &Effort, progress: &mut dyn FnMut(&str)) -> Table {
    // A sender of 100 copies at a time cannot do 5,000 messages a second at 2.7 us a copy.
    let effort = &Effort { rate: effort.rate.min(1_000.0), ..effort.clone() };
    let mut table =
        Table::new("Median OML by tree shape", effort.method(), &["shape", "published", "ours"]);
    for (n, depth, fanout, published) in [
        (10, 1, 10, 66.0),
        (10, 2, 4, 88.0),
        (100, 1, 100, 351.0),
        (100, 2, 10, 139.0),
        (100, 3, 5, 141.0),
        (1_000, 2, 32, 282.0),
        (1_000, 3, 10, 217.0),
        (1_000, 4, 6, 226.0),
    ] {
        let mut params = effort.params(n, Mode::Tree, Hedging::NONE);
        params.config.shape.depth = Some(depth);
        params.config.shape.fanout = Some(fanout);
        let name = format!("N={n} D={depth} F={fanout}");
        let ours = measured(&params, progress, &name).results.oml_us.p50;
        table.row(name, [Some(published), Some(ours)]);
    }
    table
}

/// OML percentiles of every mode at 100 receivers, and the windows.
pub fn modes(effort: &Effort, progress: &mut dyn FnMut(&str)) -> Table {
    let mut table = Table::new(
        "OML of every mode, 100 receivers",
        effort.method(),
        &["mode", "p50", "ours", "p90", "ours", "p99", "ours", "window p50", "ours", "p99", "P(F)"],
    );
    for (name, mode, hedging, published, published_window) in [
        ("unicast", Mode::Unicast, 0, [254.0, 331.0, 466.0], None),
        ("tree", Mode::Tree, 0, [147.0, 213.0, 401.0], Some(103.0)),
        ("tree, H=1", Mode::Hedge, 1, [f64::NAN; 3], Some(91.0)),
        ("tree, H=2", Mode::Hedge, 2, [129.0, 146.0, 199.0], Some(72.0)),
        ("release, H=2", Mode::Release, 2, [151.0, 156.0, 174.0], None),
        ("cloudex", Mode::Cloudex, 0, [406.0, 453.0, 716.0], None),
    ] {
        // Direct modes saturate their sender above this rate.
        let rate = if mode.direct() { effort.rate.min(1_000.0) } else { effort.rate };
        let slower = if rate < effort.rate { format!(", {rate} msg/s") } else { String::new() };
        let mut params = Effort { rate, ..effort.clone() }.params(100, mode, Hedging(hedging));
        params.config.deadline.rule = Rule::MaxP95;
        let run = measured(&params, progress, name);
        let r = &run.results;
        let (oml, window) = match mode.holds() {
            true => (r.held_oml_us, r.window_us),
            false => (r.oml_us, r.arrival_window_us),
        };
        let ours = [oml.p50, oml.p90, oml.p99];
        let beside = published.into_iter().zip(ours);
        let mut values: Vec<Option<f64>> =
            beside.flat_map(|(p, o)| [Some(p).filter(|p| !p.is_nan()), Some(o)]).collect();
        values.extend([published_window, Some(window.p50), Some(window.p99), r.p_f]);
        table.row(format!("{name}{slower}"), values);
    }
    table
}

/// P(F) by size and rule.
pub fn fairness(effort: &Effort, sizes: &[u32], progress: &mut dyn FnMut(&str)) -> Table {
    let mut table = Table::new(
        "P(F) by receivers, hedging and rule",
        effort.method(),
        &["run", "P(F) published", "P(F)", "held OML p50", "OML p50", "OML p99", "wait p50"],
    );
    for &n in sizes {
        for (hedging, rule) in
            [(1, Rule::MaxP95), (2, Rule::MaxP95), (1, Rule::OnTime), (2, Rule::OnTime)]
        {
            let published = match (n, hedging, rule) {
                (100, _, Rule::MaxP95) => Some(0.92),
                (5_000, 1, Rule::MaxP95) => Some(0.36),
                (5_000, 2, Rule::MaxP95) => Some(0.86),
                _ => None,
            };
            let mut params = effort.params(n, Mode::Release, Hedging(hedging));
            params.config.deadline.rule = rule;
            let name = format!("N={n} H={hedging} {rule:?}");
            let run = measured(&params, progress, &name);
            let r = &run.results;
            table.row(
                name,
                [
                    published,
                    r.p_f,
                    Some(r.held_oml_us.p50),
                    Some(r.oml_us.p50),
                    Some(r.oml_us.p99),
                    Some(r.wait_us.p50),
                ],
            );
        }
    }
    table
}

/// What was published of larger trees beside ours, and the variants of one of 100 receivers.
pub fn scale(effort: &Effort, progress: &mut dyn FnMut(&str)) -> Table {
    let mut table = Table::new(
        "Larger trees, and variants",
        effort.method(),
        &["run", "p50", "ours", "p90", "ours", "p99", "ours", "P(F)", "ours", "wait p50"],
    );
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
    let unknown = [f64::NAN; 3];
    for (name, params, published, p_f) in [
        ("N=1000 H=2, 10 a host", un_held, [214.0, 244.0, 377.0], None),
        ("the same, held", held, [325.0, 397.0, 1_745.0], Some(0.87)),
        ("N=5832 D=3 F=18 H=1, 20 a host", deep, [315.0, 355.0, 541.0], None),
        ("N=5000 H=1, 20 a host, held", one, unknown, Some(0.36)),
        ("N=5000 H=2, 20 a host, held", two, unknown, Some(0.86)),
        ("N=100 H=0", tree, [147.0, 213.0, 401.0], None),
        ("N=100 F+H with H=2", extra, unknown, None),
    ] {
        let mode = params.config.mode;
        let run = measured(&params, progress, name);
        let r = &run.results;
        let oml = if mode.holds() { r.held_oml_us } else { r.oml_us };
        let beside = published.into_iter().zip([oml.p50, oml.p90, oml.p99]);
        let mut values: Vec<Option<f64>> =
            beside.flat_map(|(p, o)| [Some(p).filter(|p| !p.is_nan()), Some(o)]).collect();
        values.extend([p_f, r.p_f, mode.holds().then_some(r.wait_us.p50)]);
        table.row(name.into(), values);
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
    let mut table = Table::new(
        &format!("P(F) against held OML, {receivers} receivers, H={hedging}"),
        effort.method(),
        &["target", "P(F)", "held OML p50", "held OML p99", "OML p99"],
    );
    for target in [0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999] {
        let mut params = effort.params(receivers, Mode::Release, hedging);
        params.config.deadline.target = target;
        let name = format!("{target}");
        let run = measured(&params, progress, &name);
        let r = &run.results;
        let values = [r.p_f, Some(r.held_oml_us.p50), Some(r.held_oml_us.p99), Some(r.oml_us.p99)];
        table.row(name, values);
    }
    table
}
