//! Draws percentiles of delays by pair of hosts, measured and of the model:
//! `cargo run --release -p evenfall-studies --example by_pair -- DIRECTORY`.
//!
//! Reads `latency/gcp_pairs_owd_us.csv` and `latency/aws52_rtt_ms.csv.gz` from `$EVENFALL_DATA`, or
//! `../shared/data`. Writes `gcp.svg` and `aws.svg`. Each curve has the pairs in the order of one
//! percentile, from the nearest pair to the farthest. A band shows the 10th to the 90th percentile
//! over simulated pools.
//!
//! The sample of AWS has round trips between machines of one region, of which half counts as the
//! delay of a direction. The machines may lie in several zones of the region. The model is of one
//! zone.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use evenfall_campaigns::model::Model;
use evenfall_core::nearest_rank;
use evenfall_studies::placement::model::Pool;
use evenfall_studies::shuffle::curves::Curves;
use evenfall_studies::shuffle::plot;

/// Simulated pools, one a seed.
const POOLS: u64 = 20;
/// Probes of a simulated pair. The 99th percentile then has 40 probes above it.
const PROBES: u32 = 4_000;
/// Round trips of a pair that give it a 99th percentile.
const SAMPLES_MIN: usize = 100;
/// Shares of the pairs at which curves have points.
const SHARES: [f64; 19] = [
    0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85,
    0.9, 0.95,
];

type Failed = Box<dyn std::error::Error>;

/// Percentiles of each pair, us: as many as there are names.
type Pairs<const N: usize> = Vec<[f64; N]>;

/// For each percentile, the values at all shares of the pairs.
fn over_pairs<const N: usize>(pairs: &Pairs<N>) -> [Vec<f64>; N] {
    core::array::from_fn(|percentile| {
        let mut values: Vec<f64> = pairs.iter().map(|pair| pair[percentile]).collect();
        values.sort_by(f64::total_cmp);
        SHARES.iter().filter_map(|share| nearest_rank(&values, *share)).collect()
    })
}

/// The medians of p25, p50, p75 and p90 over the repeats of each pair.
fn gcp(text: &str) -> Pairs<4> {
    let mut by_pair: BTreeMap<(String, String), Vec<[f64; 4]>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let words: Vec<&str> = line.split(',').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<f64>().ok());
        let percentiles = [number(4), number(5), number(6), number(7)];
        // A row of zeros is no measurement.
        if let [Some(p25), Some(p50), Some(p75), Some(p90)] = percentiles
            && p50 > 0.0
        {
            let pair = (words[2].to_owned(), words[3].to_owned());
            by_pair.entry(pair).or_default().push([p25, p50, p75, p90]);
        }
    }
    let middle = |repeats: Vec<[f64; 4]>| {
        core::array::from_fn(|at| {
            let mut values: Vec<f64> = repeats.iter().map(|repeat| repeat[at]).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        })
    };
    by_pair.into_values().map(middle).collect()
}

/// p25, p50, p90 and p99 of half the round trips of each pair within a region.
fn aws(text: &str) -> Pairs<4> {
    let mut by_pair: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let words: Vec<&str> = line.split(',').collect();
        if let [from, to, _, ms, there, here] = words[..]
            && there == here
            && let Ok(ms) = ms.parse::<f64>()
        {
            by_pair.entry((from.into(), to.into())).or_default().push(ms * 500.0);
        }
    }
    let percentiles = |mut delays: Vec<f64>| {
        delays.sort_by(f64::total_cmp);
        let at = |share| nearest_rank(&delays, share);
        let all = [at(0.25)?, at(0.5)?, at(0.9)?, at(0.99)?];
        (delays.len() >= SAMPLES_MIN).then_some(all)
    };
    by_pair.into_values().filter_map(percentiles).collect()
}

/// The percentiles of the pairs of simulated pools, pool by pool.
fn simulated(name: &str, hosts: usize, has_p75: bool) -> Result<Vec<Pairs<4>>, Failed> {
    let model = Model::named(name)?;
    let pool = |seed| {
        let pool = Pool::new(&model, hosts, true, seed);
        let pairs = (0..hosts * hosts).map(|pair| (pair / hosts, pair % hosts));
        let stats = pairs.filter(|(from, to)| from != to).map(|(from, to)| {
            let s = pool.probe(from, to, PROBES, 0);
            let far = if has_p75 { [s.p75_us, s.p90_us] } else { [s.p90_us, s.p99_us] };
            [s.p25_us, s.p50_us, far[0], far[1]].map(f64::from)
        });
        stats.collect()
    };
    Ok((1..=POOLS).map(pool).collect())
}

fn draw(
    path: &Path,
    title: &'static str,
    names: [&str; 4],
    measured: &Pairs<4>,
    pools: &[Pairs<4>],
) -> Result<(), Failed> {
    let file = over_pairs(measured);
    let pools: Vec<[Vec<f64>; 4]> = pools.iter().map(over_pairs).collect();
    let mut curves: Vec<(String, Vec<Vec<f64>>)> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let points = file[at].iter().map(|value| vec![*value]).collect();
        curves.push((format!("{name}, measured"), points));
        let point = |share: usize| pools.iter().map(|pool| pool[at][share]).collect();
        curves.push((format!("{name}, model"), (0..SHARES.len()).map(point).collect()));
    }
    let middle = SHARES.len() / 2;
    for (name, points) in &curves {
        let ours = points
            .iter()
            .map(|values: &Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64);
        let all: Vec<f64> = ours.collect();
        println!("{name:<16} {:>8.1} {:>8.1} {:>8.1}", all[1], all[middle], all[17]);
    }
    let x = "share of the pairs that are nearer";
    let figure = Curves { number: "us", title, x, at: SHARES.to_vec(), worst: 90, curves };
    let drawing = plot::svg(&figure).ok_or("there are no pairs")?;
    std::fs::write(path, drawing).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn main() -> Result<(), Failed> {
    let dir = PathBuf::from(std::env::args().nth(1).ok_or("name a directory for the pictures")?);
    let data = std::env::var_os("EVENFALL_DATA").map_or("../shared/data".into(), PathBuf::from);
    let bytes = |name: &str| {
        let path = data.join("latency").join(name);
        std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let measured = gcp(&String::from_utf8(bytes("gcp_pairs_owd_us.csv")?)?);
    let mut round_trips = String::new();
    let packed = bytes("aws52_rtt_ms.csv.gz")?;
    flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut round_trips)?;
    println!("us, over pairs          10 %     50 %     90 %");
    let names = ["p25", "p50", "p75", "p90"];
    let title = "delays between 20 machines of Google Cloud and of the model gcp";
    draw(&dir.join("gcp.svg"), title, names, &measured, &simulated("gcp", 20, true)?)?;
    let names = ["p25", "p50", "p90", "p99"];
    let title = "half of round trips within regions of AWS, and delays of the model aws";
    let pools = simulated("aws", 18, false)?;
    draw(&dir.join("aws.svg"), title, names, &aws(&round_trips), &pools)
}
