//! Tables that reproduce the figures of chapter 3 of the Mayflower thesis.
//!
//! The thesis draws its figures and prints few of their numbers. The tables therefore hold our
//! results, and `docs/results/files.md` quotes the printed numbers beside them.

use std::time::Duration;

use evenfall_campaigns::seeds::mean_and_half_width;
use evenfall_files_flow::ThreeTier;

use crate::files::workload::{Locality, Placement};
use crate::files::{FILES, FilesSummary, PERCENTS, RACK_RATIO, ReadParams, Steering, TOTAL_RATIO};
use crate::shuffle::curves::Curves;
use crate::tables::Table;

/// The available figures: number and title.
pub const FIGURES: [(&str, &str); 15] = [
    ("3.3", "3.3, time of a read by policy, seconds"),
    ("3.3b", "3.3b, distribution of the times of reads, seconds"),
    ("3.4", "3.4, mean time by locality (rack, pod, beyond), seconds"),
    (
        "locality",
        "3.4, growth of the mean time from locality (.5, .3, .2), by what the thesis leaves open",
    ),
    ("3.5", "3.5, mean time by reads per second and host, seconds"),
    ("3.6", "3.6, mean time by oversubscription, seconds"),
    ("3.7a", "3.7a, mean time of reads beside flows of others, by rate of reads, seconds"),
    ("3.7b", "3.7b, mean time of the flows of others, by rate of reads, seconds"),
    ("3.8", "3.8, mean time by block and rate, seconds"),
    ("3.9", "3.9, HDFS, blocks of 256 MB, by rate, seconds"),
    ("placement", "Mean time by placement of copies, seconds"),
    ("split", "Mean time by oversubscription at the racks, 8:1 in all, seconds"),
    ("interval", "Mean time by interval of the byte counts, seconds"),
    ("two", "Rules for two copies, by rate, mean seconds"),
    ("tpch", "TPC-H's queries at scale factor 10, time of a read and of a query, seconds"),
];

/// The policies of figures 3.4 and 3.5, and the policy without an agent.
const MOST: [Steering; 6] = [
    Steering::Mayflower,
    Steering::Agentless,
    Steering::SinbadMf,
    Steering::Sinbad,
    Steering::NearestMf,
    Steering::Nearest,
];
/// The policies of the figures that compare the best policies.
const BEST: [Steering; 4] =
    [Steering::Mayflower, Steering::MayflowerB, Steering::Agentless, Steering::SinbadMf];

/// The title and the parameters of a column.
type Setting = (String, ReadParams);

/// Makes a table from runs of the seeds `first..first + seeds`.
///
/// # Panics
/// When there is no figure of this number.
pub fn table(figure: &str, first: u64, seeds: u64, progress: &mut dyn FnMut(&str)) -> Table {
    let known = FIGURES.iter().find(|(number, _)| *number == figure);
    let title = known.unwrap_or_else(|| panic!("there is no figure {figure}")).1;
    let method = format!("Seeds {first} to {}; columns +- are 95 % by t.", first + seeds - 1);
    if figure == "3.3" {
        return policies(title, method, first, seeds, &ReadParams::default(), progress);
    }
    if figure == "tpch" {
        let mut params = ReadParams::default();
        params.load.queries = Some(TPCH_FACTOR);
        return policies(title, method, first, seeds, &params, progress);
    }
    if figure == "3.3b" {
        return distribution_of_reads(first, seeds, progress).table();
    }
    if figure == "locality" {
        return growth_by_locality(title, method, first, seeds, progress);
    }
    let (rows, settings) = settings(figure);
    let mut columns = vec!["policy".to_owned()];
    for (name, _) in &settings {
        columns.extend([name.clone(), "+-".to_owned()]);
    }
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new(title, method, &columns);
    let mut bounds = vec![None; 2 * settings.len()];
    for (name, change) in rows {
        let mut values = Vec::new();
        for (at, (setting, params)) in settings.iter().enumerate() {
            progress(&format!("figure {figure}: {name}, {setting}"));
            let mut params = params.clone();
            change(&mut params);
            let summary = params.runs(first, seeds);
            let shown = if figure == "3.7b" { &summary.strangers_s } else { &summary.mean_s };
            let (mean, half) = mean_and_half_width(shown);
            values.extend([mean, half]);
            bounds[2 * at] = mean_and_half_width(&summary.bound_s).0;
        }
        table.row(name, values);
    }
    // The bound does not include background flows, so figure 3.7 has no row for it.
    if !figure.starts_with("3.7") {
        table.row("bound".to_owned(), bounds);
    }
    table
}

/// A change by a row to the parameters of a column.
type Change = Box<dyn Fn(&mut ReadParams)>;

/// A row for each policy.
fn steer(all: &[Steering]) -> Vec<(String, Change)> {
    let row = |&steering: &Steering| -> (String, Change) {
        (steering.name().to_owned(), Box::new(move |params| params.steering = steering))
    };
    all.iter().map(row).collect()
}

fn with(name: String, change: impl Fn(&mut ReadParams)) -> Setting {
    let mut params = ReadParams::default();
    change(&mut params);
    (name, params)
}

/// A column for each rate of reads.
fn rates(rates: &[f64], change: impl Fn(&mut ReadParams)) -> Vec<Setting> {
    let setting = |&rate: &f64| {
        let (name, mut params) = with(format!("{rate:.2}"), &change);
        params.load.rate = rate;
        (name, params)
    };
    rates.iter().map(setting).collect()
}

/// A column for each network: oversubscription at the racks, and in total.
fn networks(all: &[(f64, f64)], name: impl Fn(f64, f64) -> String) -> Vec<Setting> {
    let setting = |&(rack, total): &(f64, f64)| {
        with(name(rack, total), |params| params.spec = ThreeTier::thesis(rack, total))
    };
    all.iter().map(setting).collect()
}

fn localities() -> Vec<Setting> {
    let all = [(0.5, 0.3), (0.3, 0.5), (0.2, 0.3), (1.0 / 3.0, 1.0 / 3.0)];
    let setting = |&(rack, pod): &(f64, f64)| {
        let name = format!("({rack:.2}, {pod:.2}, {:.2})", 1.0 - rack - pod);
        with(name, |params| params.load.locality = Locality { rack, pod })
    };
    all.iter().map(setting).collect()
}

fn blocks() -> Vec<Setting> {
    let all = [(32, 0.4), (64, 0.2), (128, 0.1), (256, 0.05), (256, 0.06)];
    let setting = |&(mega, rate): &(u64, f64)| {
        with(format!("{mega} MB, {rate}"), |params| {
            (params.load.bytes, params.load.rate) = (mega * 1_000_000, rate);
        })
    };
    all.iter().map(setting).collect()
}

fn placements() -> Vec<Setting> {
    let all = [
        ("another rack, another pod", Placement::Spread),
        ("same rack, any other", Placement::Rack),
    ];
    let setting = |&(name, placement): &(&str, Placement)| {
        with(name.to_owned(), |params| params.load.placement = placement)
    };
    all.iter().map(setting).collect()
}

fn intervals() -> Vec<Setting> {
    let setting = |&seconds: &u64| {
        with(format!("{seconds} s"), |params| params.interval = Duration::from_secs(seconds))
    };
    [1, 2, 5].iter().map(setting).collect()
}

/// Rows and columns of a figure.
fn settings(figure: &str) -> (Vec<(String, Change)>, Vec<Setting>) {
    match figure {
        "3.4" => (steer(&MOST), localities()),
        "3.5" => (steer(&MOST), rates(&[0.06, 0.08, 0.1, 0.12, 0.14], |_| {})),
        "3.6" => {
            let totals = [8.0, 12.0, 16.0].map(|total| (RACK_RATIO * total / TOTAL_RATIO, total));
            (steer(&BEST), networks(&totals, |_, total| format!("{total}:1")))
        }
        "3.7a" | "3.7b" => {
            background(rates(&[0.04, 0.06, 0.08], |params| params.strangers_rate = 0.08))
        }
        "3.8" => (steer(&BEST), blocks()),
        "3.9" => {
            let rows = [Steering::Mayflower, Steering::Agentless, Steering::HdfsMf, Steering::Hdfs];
            (steer(&rows), rates(&[0.06, 0.07, 0.08], |params| params.load.bytes = 256_000_000))
        }
        "placement" => (steer(&MOST), placements()),
        "split" => {
            let splits = [1.0, 2.0, 4.0, 8.0].map(|rack| (rack, TOTAL_RATIO));
            (steer(&MOST), networks(&splits, |rack, _| format!("{rack}:1")))
        }
        "interval" => {
            let rows = [Steering::Mayflower, Steering::MayflowerB, Steering::SinbadMf];
            (steer(&rows), intervals())
        }
        _ => {
            let rows = [Steering::Mayflower, Steering::MayflowerPrinted, Steering::MayflowerB];
            (steer(&rows), rates(&[0.06, 0.1, 0.14], |_| {}))
        }
    }
}

/// Rows of figure 3.7: policies that are told of background flows, and policies that are not.
fn background(columns: Vec<Setting>) -> (Vec<(String, Change)>, Vec<Setting>) {
    let all = [
        ("mayflower-b, unaware", Steering::MayflowerB, false),
        ("mayflower-b, aware", Steering::MayflowerB, true),
        ("mayflower, unaware", Steering::Mayflower, false),
        ("mayflower, aware", Steering::Mayflower, true),
        ("agentless", Steering::Agentless, false),
    ];
    let row = |&(name, steering, seen): &(&str, Steering, bool)| -> (String, Change) {
        let change = move |params: &mut ReadParams| {
            (params.steering, params.strangers_seen) = (steering, seen);
        };
        (name.to_owned(), Box::new(change))
    };
    (all.iter().map(row).collect(), columns)
}

/// Figure 3.3b: percentiles of the times of reads by policy, over seeds.
pub fn distribution_of_reads(first: u64, seeds: u64, progress: &mut dyn FnMut(&str)) -> Curves {
    let curve = |&steering: &Steering| {
        progress(&format!("figure 3.3b: {}", steering.name()));
        let summary = ReadParams { steering, ..ReadParams::default() }.runs(first, seeds);
        let at = |at: usize| summary.percentiles_s.iter().map(|run| run[at]).collect();
        (steering.name().to_owned(), (0..PERCENTS.len()).map(at).collect())
    };
    let all: Vec<Steering> = MOST.into_iter().chain([Steering::MayflowerB]).collect();
    Curves {
        number: "3.3b",
        title: "seconds of a read, by percentile",
        x: "percentile",
        at: PERCENTS.map(f64::from).to_vec(),
        worst: 90,
        curves: all.iter().map(curve).collect(),
    }
}

/// What the thesis leaves open about figure 3.4: oversubscription at the racks, of 8:1 in all, and
/// the number of files.
const OPEN: [(f64, usize); 6] =
    [(4.0, FILES), (1.0, FILES), (2.0, FILES), (8.0, FILES), (4.0, 3_000), (2.0, 3_000)];

/// Figure 3.4: the factor by which the mean time grows when clients stand farther from the primary
/// copy, seed by seed.
fn growth_by_locality(
    title: &str,
    method: String,
    first: u64,
    seeds: u64,
    progress: &mut dyn FnMut(&str),
) -> Table {
    let name = |(rack, files): (f64, usize), to: &str| {
        format!("{rack}:1 at racks, {files} files, to {to}")
    };
    let heads = OPEN.map(|open| [name(open, "(.3, .5, .2)"), name(open, "(.2, .3, .5)")]);
    let mut columns = vec!["policy".to_owned()];
    columns.extend(heads.into_iter().flatten().flat_map(|head| [head, "+-".to_owned()]));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new(title, method, &columns);
    for steering in MOST {
        let mut values = Vec::new();
        for (rack, files) in OPEN {
            progress(&format!("locality: {}, {rack}:1, {files} files", steering.name()));
            let mut params = ReadParams { steering, ..ReadParams::default() };
            params.spec = ThreeTier::thesis(rack, TOTAL_RATIO);
            params.load.files = files;
            let near = params.runs(first, seeds).mean_s;
            for (rack, pod) in [(0.3, 0.5), (0.2, 0.3)] {
                params.load.locality = Locality { rack, pod };
                let far = params.runs(first, seeds).mean_s;
                let factors: Vec<f64> =
                    far.iter().zip(&near).map(|(far, near)| far / near).collect();
                let (mean, half) = mean_and_half_width(&factors);
                values.extend([mean, half]);
            }
        }
        table.row(steering.name().to_owned(), values);
    }
    table
}

/// The scale factor of the table of TPC-H. The 53 blocks of the largest table then are one wave of
/// tasks on 64 hosts.
const TPCH_FACTOR: u64 = 10;

/// Figure 3.3: all policies, with their percentiles; where queries read, with the times of queries.
fn policies(
    title: &str,
    method: String,
    first: u64,
    seeds: u64,
    params: &ReadParams,
    progress: &mut dyn FnMut(&str),
) -> Table {
    let mut columns =
        vec!["policy", "mean", "+-", "over mayflower", "p50", "p95", "+-", "p99", "two copies"];
    let queries = params.load.queries.is_some();
    columns.extend(["query", "+-"].iter().filter(|_| queries));
    let mut table = Table::new(title, method, &columns);
    let mut least: Option<f64> = None;
    let mut bound = None;
    for (name, steering) in Steering::ALL {
        progress(&format!("{title}: {name}"));
        let summary: FilesSummary = ReadParams { steering, ..params.clone() }.runs(first, seeds);
        let (mean, half) = mean_and_half_width(&summary.mean_s);
        let (p95, p95_half) = mean_and_half_width(&summary.p95_s);
        let ratio = mean.map(|mean| mean / *least.get_or_insert(mean));
        let [p50, p99] =
            [&summary.p50_s, &summary.p99_s].map(|values| mean_and_half_width(values).0);
        let divided = mean_and_half_width(&summary.divided).0;
        let (wave, wave_half) = mean_and_half_width(&summary.waves_s);
        let mut values = vec![mean, half, ratio, p50, p95, p95_half, p99, divided];
        values.extend([wave, wave_half].iter().filter(|_| queries));
        table.row(name.to_owned(), values);
        bound = mean_and_half_width(&summary.bound_s).0;
    }
    table.row(
        "bound".to_owned(),
        [bound, None, bound.zip(least).map(|(b, l)| b / l)].into_iter().chain(vec![
            None;
            columns.len()
                - 4
        ]),
    );
    table
}
