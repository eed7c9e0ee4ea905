//! What pairs of cloud machines have in common and what not:
//! `cargo run --release -p evenfall-studies --example pairs`.
//!
//! Reads `latency/gcp_pairs_owd_us.csv` from `$EVENFALL_DATA`, or `../shared/data`. The logarithm
//! of a pair's median is the sum of an effect of its sender, an effect of its receiver and a rest,
//! by least squares. Repeats of a pair say how much of the rest is of the moment. Standard
//! deviations of effects have the noise of their estimate subtracted.

use std::collections::BTreeMap;
use std::path::PathBuf;

use evenfall_core::math;
use evenfall_model::Effects;

/// A line of the file: run and stage, the two hosts, p25, p50, p75 and p90.
struct Line {
    job: (String, String),
    pair: (String, String),
    percentiles: [f64; 4],
}

fn lines(text: &str) -> Vec<Line> {
    let parse = |line: &str| {
        let words: Vec<&str> = line.split(',').collect();
        let host = |word: &str| word.split(':').next().unwrap_or("").to_owned();
        let number = |i: usize| words.get(i)?.parse::<f64>().ok();
        let percentiles = [number(4)?, number(5)?, number(6)?, number(7)?];
        let job = (words[0].to_owned(), format!("{}/{}", words[1], host(words[2])));
        Some(Line { job, pair: (host(words[2]), host(words[3])), percentiles })
    };
    let all = text.lines().skip(1).filter_map(parse);
    all.filter(|line| line.percentiles[1] > 0.0).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|v| math::square(v - mean)).sum();
    (squares / (values.len().max(2) - 1) as f64).sqrt()
}

/// Logarithms of medians by pair, one a job, less what all pairs of the job share.
type Pairs = BTreeMap<(String, String), Vec<f64>>;

/// Sender, receiver and mean logarithm of each pair.
type Means = Vec<(usize, usize, f64)>;

/// Numbers of the hosts by their names, and the pairs by these numbers with their mean logarithms.
fn numbered(pairs: &Pairs) -> (BTreeMap<&str, usize>, Means) {
    let names = pairs.keys().flat_map(|(from, to)| [from.as_str(), to.as_str()]);
    let names: std::collections::BTreeSet<&str> = names.collect();
    let hosts: BTreeMap<&str, usize> =
        names.into_iter().enumerate().map(|(number, name)| (name, number)).collect();
    let of = |((from, to), values): (&(String, String), &Vec<f64>)| {
        (hosts[from.as_str()], hosts[to.as_str()], mean(values))
    };
    let means = pairs.iter().map(of).collect();
    (hosts, means)
}

fn report(name: &str, pairs: &Pairs) {
    let (hosts, means) = numbered(pairs);
    let effects = Effects::of(hosts.len(), &means);
    let parts = effects.parts(&means);
    let repeated = pairs.values().filter(|values| values.len() > 1);
    let (mut within, mut freedom) = (0.0, 0);
    for values in repeated {
        let mean = mean(values);
        within += values.iter().map(|v| math::square(v - mean)).sum::<f64>();
        freedom += values.len() - 1;
    }
    let moment = within / f64::from(freedom.max(1) as u32);
    let repeats = mean(&pairs.values().map(|v| v.len() as f64).collect::<Vec<_>>());
    let of = |from, to| means.iter().find(|mean| (mean.0, mean.1) == (from, to)).map(|mean| mean.2);
    let both_ways: Vec<f64> = means
        .iter()
        .filter(|(from, to, _)| from < to)
        .filter_map(|(from, to, y)| Some(y - of(*to, *from)?))
        .collect();
    println!("{name}: {} pairs, median {:.1} us", pairs.len(), math::exp(effects.mean));
    println!(
        "  over all pairs       {:.3}",
        deviation(&means.iter().map(|mean| mean.2).collect::<Vec<_>>())
    );
    println!("  sender               {:.3}", parts.sender);
    println!("  receiver             {:.3}", parts.receiver);
    println!("  their correlation    {:.2}", parts.correlation);
    println!(
        "  pair                 {:.3}",
        (math::square(parts.rest) - moment / repeats).max(0.0).sqrt()
    );
    println!("  repeats of a pair    {:.3} ({freedom} degrees of freedom)", moment.sqrt());
    println!("  two directions       {:.3} ({} pairs)", deviation(&both_ways), both_ways.len());
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = std::env::var_os("EVENFALL_DATA").map_or("../shared/data".into(), PathBuf::from);
    let path = data.join("latency/gcp_pairs_owd_us.csv");
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: no data at {}", path.display());
        return Ok(());
    };
    let lines = lines(&text);
    // What a job shares is the mean of the differences between its pairs and the same pairs in
    // all jobs.
    let mut logs: Pairs = BTreeMap::new();
    for line in &lines {
        logs.entry(line.pair.clone()).or_default().push(math::ln(line.percentiles[1]));
    }
    let mut shared: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for line in lines.iter().filter(|line| logs[&line.pair].len() > 1) {
        let own = math::ln(line.percentiles[1]) - mean(&logs[&line.pair]);
        shared.entry(line.job.clone()).or_default().push(own);
    }
    let mut pairs: Pairs = BTreeMap::new();
    for line in &lines {
        let job = shared.get(&line.job).map_or(0.0, |differences| mean(differences));
        pairs.entry(line.pair.clone()).or_default().push(math::ln(line.percentiles[1]) - job);
    }
    let jobs: Vec<f64> = shared.values().map(|differences| mean(differences)).collect();
    println!("shared by the pairs of a job: {:.3} over {} jobs", deviation(&jobs), jobs.len());
    report("all hosts", &pairs);
    let (hosts, means) = numbered(&pairs);
    let effects = Effects::of(hosts.len(), &means);
    let slowest = effects.receiver.iter().enumerate().filter_map(|(at, r)| Some((at, (*r)?)));
    let slowest = slowest.max_by(|a, b| a.1.total_cmp(&b.1)).ok_or("no hosts")?.0;
    let straggler = hosts.iter().find(|host| *host.1 == slowest).map(|host| host.0.to_string());
    let straggler = straggler.ok_or("no hosts")?;
    pairs.retain(|pair, _| pair.0 != straggler && pair.1 != straggler);
    report(&format!("without the straggler {straggler}"), &pairs);
    // Of a lognormal above some base, (p75 - p50) / (p50 - p25) = exp(0.674 sigma).
    let skew = |line: &Line| {
        let [p25, p50, p75, _] = line.percentiles;
        (p75 > p50 && p50 > p25).then(|| math::ln((p75 - p50) / (p50 - p25)) / 0.6745)
    };
    let mut skews: Vec<f64> = lines.iter().filter_map(skew).collect();
    skews.sort_by(f64::total_cmp);
    println!("sigma of delays within a pair, by their skew: {:.3}", skews[skews.len() / 2]);
    Ok(())
}
