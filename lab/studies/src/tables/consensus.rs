//! Figures 4.4 to 4.7 of the thesis on Canopus: rates and times of Canopus beside its rivals, over
//! the racks of a data centre and over sites.
//!
//! The thesis raises the rate until the median exceeds 10 ms in a data centre, and 1.5 times the
//! base over sites ([`wide::peak`]). Times are taken at 70 % of that rate. The text of the thesis
//! states only some of the numbers of its figures. The column `thesis` has the stated numbers.

use std::collections::BTreeMap;
use std::time::Duration;

use evenfall_campaigns::consensus::rivals::Protocol;
use evenfall_campaigns::consensus::wide::{self, Scenario};
use evenfall_campaigns::model::Model;
use evenfall_campaigns::seeds::{in_parallel, mean_and_half_width};

use super::Table;

/// The figures, each with its title.
const FIGURES: [(&str, &str); 4] = [
    ("4.4", "Nodes in three racks"),
    ("4.5", "Beside Zab with observers, in three racks"),
    ("4.6", "Three nodes at each site, 20 % writes"),
    ("4.7", "Three sites, by the share of writes"),
];
/// Heads of the columns.
const COLUMNS: [&str; 12] = [
    "run",
    "thesis, M requests/s",
    "M requests/s",
    "+-",
    "commit p50 at 70 %, ms",
    "+-",
    "p99",
    "+-",
    "read p50, ms",
    "+-",
    "bytes between super-leaves per write",
    "+-",
];
/// Requests a second of an idle system: one for each tick of the clients.
const IDLE_PER_S: f64 = 1_000.0;
/// Time between two batches of rivals with a leader, and of Nezha, in a data centre.
const RACK_BATCH: Duration = Duration::from_millis(1);
/// Time between two batches over sites, and between two cycles of Canopus. EPaxos has the batches
/// of the thesis.
const BATCH: Duration = Duration::from_millis(5);
/// The time between two cycles of Canopus at seven sites, where cycles of 5 ms would mean 132
/// cycles under way. A replica looks at each cycle that is under way.
const SEVEN_SITES_CYCLE: Duration = Duration::from_millis(20);
/// How long clients are watched in a data centre and over sites: at least ten cycles.
const WATCHED: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(200)];

/// A scenario with its name and the rate that the thesis states in millions.
type Row = (String, Scenario, Option<f64>);
/// The end of the name of a row whose times are those of [`IDLE_PER_S`] and not of 70 % of a peak.
const IDLE: &str = ", idle";

fn with(scenario: Scenario, protocol: Protocol, cycle_every: Duration, writes: f64) -> Scenario {
    let watched = WATCHED[usize::from(scenario.farthest() > Duration::from_millis(10))];
    Scenario { protocol, cycle_every, writes, watched, ..scenario }
}

/// Canopus at some shares of writes, EPaxos at two times between batches, and the others.
fn data_centre() -> Vec<Row> {
    let mut rows = Vec::new();
    for size in [3, 5, 7, 9] {
        let nodes = size * 3;
        let mut row = |name: &str, protocol, batch, writes| {
            let name = format!("{nodes} nodes, {name}, {:.0} % writes", writes * 100.0);
            rows.push((name, with(Scenario::racks(size), protocol, batch, writes), None));
        };
        for writes in [0.01, 0.2, 0.5, 1.0] {
            row("Canopus", Protocol::Canopus, BATCH, writes);
        }
        row("EPaxos, batches of 5 ms", Protocol::Epaxos, BATCH, 0.2);
        row("EPaxos, batches of 2 ms", Protocol::Epaxos, Duration::from_millis(2), 0.2);
        if size == 3 || size == 9 {
            row("Raft", Protocol::Raft, RACK_BATCH, 0.2);
            row("Multi-Paxos", Protocol::MultiPaxos, RACK_BATCH, 0.2);
            // With 27 nodes, batches of 1 ms bring each replica more answers than it has time for.
            let batch = if size == 3 { RACK_BATCH } else { BATCH };
            row("Nezha", Protocol::Nezha, batch, 0.2);
            row("EPaxos, batches of 5 ms", Protocol::Epaxos, BATCH, 1.0);
        }
    }
    for (is_high, height) in [(false, 2), (true, 3)] {
        let name = format!("27 nodes in nine racks, Canopus of height {height}, 20 % writes");
        let racks = with(Scenario::many_racks(9, 3), Protocol::Canopus, BATCH, 0.2);
        rows.push((name, Scenario { is_high, ..racks }, None));
    }
    rows
}

fn observers() -> Vec<Row> {
    let mut rows = Vec::new();
    for (size, writes) in [3, 9].into_iter().flat_map(|size| [0.01, 0.2, 0.5].map(|w| (size, w))) {
        let protocols = [(Protocol::Canopus, BATCH), (Protocol::Zab, RACK_BATCH)];
        for (protocol, batch) in protocols {
            let (nodes, percent) = (size * 3, writes * 100.0);
            let name = format!("{nodes} nodes, {protocol}, {percent:.0} % writes");
            let scenario = with(Scenario::racks(size), protocol, batch, writes);
            if writes == 0.2 {
                let idle = Scenario { requests_per_s: IDLE_PER_S, ..scenario.clone() };
                rows.push((format!("{name}{IDLE}"), idle, None));
            }
            rows.push((name, scenario, None));
        }
    }
    rows
}

fn sites() -> Vec<Row> {
    let mut rows = Vec::new();
    // EPaxos: the thesis says that Canopus has 4 to 13.6 times its rate.
    let stated = [(3, 2.6, 2.6 / 4.0), (5, 3.8, f64::NAN), (7, 4.7, 4.7 / 13.6)];
    for (count, canopus, epaxos) in stated {
        for protocol in Protocol::ALL {
            let batch = match protocol {
                Protocol::Canopus if count == 7 => SEVEN_SITES_CYCLE,
                _ => BATCH,
            };
            let thesis = match protocol {
                Protocol::Canopus => Some(canopus),
                Protocol::Epaxos => Some(epaxos).filter(|rate| rate.is_finite()),
                _ => None,
            };
            let scenario = with(Scenario::sites(count), protocol, batch, 0.2);
            rows.push((format!("{count} sites, {protocol}"), scenario, thesis));
        }
    }
    rows
}

fn shares() -> Vec<Row> {
    let three = || Scenario::sites(3);
    let mut rows = Vec::new();
    // At 50 % writes the thesis has 2.5 times the rate of EPaxos.
    for (writes, thesis) in [(0.01, 3.6), (0.2, 2.65), (0.5, 2.6 / 4.0 * 2.5)] {
        let name = format!("canopus, {:.0} % writes", writes * 100.0);
        rows.push((name, with(three(), Protocol::Canopus, BATCH, writes), Some(thesis)));
    }
    for (writes, conflicts) in [(0.01, 0.0), (0.2, 0.0), (0.5, 0.0), (0.2, 0.02), (0.2, 1.0)] {
        let epaxos = with(three(), Protocol::Epaxos, BATCH, writes);
        let (percent, shared) = (writes * 100.0, conflicts * 100.0);
        let name = format!("epaxos, {percent:.0} % writes, {shared:.0} % of them of one key");
        let thesis = (conflicts == 0.0).then_some(2.6 / 4.0);
        rows.push((name, Scenario { conflicts, ..epaxos }, thesis));
    }
    rows
}

/// What all rows have in common.
#[derive(Clone, Debug)]
pub struct ConsensusEffort {
    /// Processor time of a write at one replica.
    pub write_cost: Duration,
    /// The cloud in which all replicas are; `None` for the plain network of the thesis.
    pub model: Option<Model>,
    /// First seed of every row.
    pub seed: u64,
    /// Seeds of every row.
    pub seeds: u32,
    /// Cores that share the run of a row of one seed. The results do not depend on their number.
    pub cores: usize,
}

/// The tables of these figures, or of all figures when the list is empty.
///
/// # Errors
/// A name in the list is not the number of a figure.
pub fn tables(
    figures: &[String],
    effort: &ConsensusEffort,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Table>, String> {
    let numbers = FIGURES.map(|(number, _)| number);
    if let Some(name) = figures.iter().find(|name| !numbers.contains(&name.as_str())) {
        return Err(format!("--figure {name}: there are {}", numbers.join(", ")));
    }
    let mut tables = Vec::new();
    // Figures share some scenarios, under different names.
    let mut known = BTreeMap::new();
    for (number, title) in FIGURES {
        if !figures.is_empty() && !figures.iter().any(|name| name == number) {
            continue;
        }
        let rows = match number {
            "4.4" => data_centre(),
            "4.5" => observers(),
            "4.6" => sites(),
            _ => shares(),
        };
        let method = format!(
            "{:?} of a processor for a write at each replica, clients watched for {:?} in a data \
             centre and {:?} over sites, {}, seeds {} to {}, +- is 95 % by Student's t; idle is {} \
             requests/s",
            effort.write_cost,
            WATCHED[0],
            WATCHED[1],
            effort
                .model
                .as_ref()
                .map_or("no model".into(), |model| format!("model {}", model.name)),
            effort.seed,
            effort.seed + u64::from(effort.seeds) - 1,
            IDLE_PER_S
        );
        let mut table = Table::new(&format!("Figure {number}: {title}"), method, &COLUMNS);
        for (name, scenario, thesis) in rows {
            let (write_cost, model) = (effort.write_cost, effort.model.clone());
            let cores = if effort.seeds == 1 { effort.cores } else { 1 };
            let scenario = Scenario { write_cost, model, cores, ..scenario };
            let is_idle = name.ends_with(IDLE);
            let found = known
                .entry(format!("{is_idle} {scenario:?}"))
                .or_insert_with(|| values(&scenario, is_idle, effort));
            table.row(name, [&[thesis], &found[..]].concat());
            progress(table.last_line().trim_end());
        }
        tables.push(table);
    }
    Ok(tables)
}

/// The values of all columns after the column `thesis`, over the seeds.
fn values(scenario: &Scenario, is_idle: bool, effort: &ConsensusEffort) -> Vec<Option<f64>> {
    let one = |seed| value(&Scenario { seed, ..scenario.clone() }, is_idle);
    let runs = in_parallel(effort.seed, effort.seeds.into(), one, |_| {});
    let column = |at: usize| runs.iter().filter_map(|run| run[at]).collect::<Vec<f64>>();
    (0..5)
        .flat_map(|at| {
            let (mean, half) = mean_and_half_width(&column(at));
            [mean, half]
        })
        .collect()
}

/// The values of one seed.
fn value(scenario: &Scenario, is_idle: bool) -> [Option<f64>; 5] {
    let (rate, below) = if is_idle {
        (None, scenario.run())
    } else {
        let (rate, _) = wide::peak(scenario);
        (Some(rate), Scenario { requests_per_s: rate * 0.7, ..scenario.clone() }.run())
    };
    let ms = |times: &wide::Times, share| Some(times.quantile(share).as_secs_f64() * 1e3);
    let has_reads = scenario.writes < 1.0;
    [
        rate.map(|rate| rate / 1e6),
        ms(&below.write_times, 0.5),
        ms(&below.write_times, 0.99),
        ms(&below.read_times, 0.5).filter(|_| has_reads),
        Some(below.wan_bytes_per_write),
    ]
}
