//! The gain of coded probes, of hulls and of loops: errors of clocks with all parts of the method,
//! without each part, and without all three, on the same stamps.

use evenfall_campaigns::model::Model;
use evenfall_campaigns::seeds::{in_parallel, mean_and_half_width};

use super::{Table, columns};
use crate::clock::parts::PartsLeftOut;
use crate::clock::paths::FabricSpec;
use crate::clock::{ClockParams, ClockResults, run};

/// A network: its name, and what differs from a load of one half.
type NetworkRow = (&'static str, fn(&mut ClockParams));

/// Networks in which all clocks are compared.
const NETWORKS: [NetworkRow; 8] = [
    ("load .5", |_| {}),
    ("load .9", |params| params.paths.load = 0.9),
    ("load .5, ways differ by up to 2 us", |params| params.paths.asymmetry_ns = 2_000),
    ("fat tree, load .5", |params| params.paths.fabric = Some(FabricSpec::default())),
    ("fat tree, load .9", |params| {
        params.paths.fabric = Some(FabricSpec::default());
        params.paths.load = 0.9;
    }),
    ("quiet.toml", |params| params.model = named("quiet")),
    ("aws.toml", |params| params.model = named("aws")),
    ("gcp.toml", |params| params.model = named("gcp")),
];

fn named(name: &str) -> Option<Model> {
    Model::named(name).ok()
}

/// A percentile of the errors: its name, and its value with all parts or without some.
type Percentile = (&'static str, fn(&crate::clock::ClockSpread) -> f64);

const PERCENTILES: [Percentile; 2] = [("p50", |errors| errors.p50), ("p99", |errors| errors.p99)];

/// The tables, one for each percentile, for this many nodes, under `seeds` seeds from `first` on.
pub fn tables(nodes: u32, first: u64, seeds: u32, progress: &mut dyn FnMut(&str)) -> Vec<Table> {
    let without = PartsLeftOut::EACH_AND_ALL;
    let usual = ClockParams { nodes, without: without.to_vec(), ..ClockParams::default() };
    let method = format!(
        "{nodes} nodes, {} kb/s of probes for each node, {} s after a warm-up; means over seeds \
         {first} to {}, +- is 95 % by Student's t; microseconds, with the part of asymmetry",
        usual.config.budget_bits_s / 1_000,
        usual.duration.as_secs(),
        first + u64::from(seeds) - 1,
    );
    let names: Vec<String> =
        without.iter().map(|parts| format!("without {}", parts.name())).collect();
    let heads = ["all parts"].into_iter().chain(names.iter().map(String::as_str));
    let heads: Vec<(Option<&str>, &str)> = heads.map(|name| (None, name)).collect();
    let title =
        |percentile: &str| format!("Errors of clocks without parts of the method, {percentile}");
    let mut tables = PERCENTILES.map(|(percentile, _)| {
        Table::new(&title(percentile), method.clone(), &columns("network", &heads))
    });
    for (name, change) in NETWORKS {
        progress(name);
        let mut params = usual.clone();
        change(&mut params);
        let one = |seed| run(&ClockParams { seed, ..params.clone() }, &mut |_, _| {});
        let done = |finished| progress(&format!("{name}, {finished} of {seeds} seeds"));
        let runs = in_parallel(first, seeds.into(), one, done);
        for (table, (_, of)) in tables.iter_mut().zip(PERCENTILES) {
            let all: Vec<f64> = runs.iter().map(|run| of(&run.whole_error_us)).collect();
            let each = without.map(|parts| cells(&runs, &parts.name(), of));
            let cells = [all].into_iter().chain(each).flat_map(|values| {
                let (mean, half) = mean_and_half_width(&values);
                [mean, half]
            });
            table.row(name.to_owned(), cells);
        }
    }
    tables.into()
}

/// A percentile of the errors without these parts, by seed.
fn cells(
    runs: &[ClockResults],
    parts: &str,
    of: fn(&crate::clock::ClockSpread) -> f64,
) -> Vec<f64> {
    runs.iter().filter_map(|run| run.without_us.get(parts)).map(of).collect()
}
