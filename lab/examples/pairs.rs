//! What pairs of cloud machines have in common and what not:
//! `cargo run --release -p evenfall-lab --example pairs`.
//!
//! Reads `latency/gcp_pairs_owd_us.csv` from `$EVENFALL_DATA`, or `../shared/data`. The logarithm
//! of a pair's median is the sum of an effect of its sender, an effect of its receiver and a rest,
//! by least squares. Repeats of a pair say how much of the rest is of the moment. Standard
//! deviations of effects have the noise of their estimate subtracted.

use std::collections::BTreeMap;
use std::path::PathBuf;

use evenfall_core::math;

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

/// Effects of senders and receivers.
#[derive(Default)]
struct Effects {
    mean: f64,
    sender: BTreeMap<String, f64>,
    receiver: BTreeMap<String, f64>,
}

impl Effects {
    /// Least squares by fitting one side after the other until nothing moves.
    fn of(pairs: &[(&(String, String), f64)]) -> Self {
        let mut effects = Self::default();
        for _ in 0..2_000 {
            let rest: Vec<f64> = pairs.iter().map(|(pair, y)| y - effects.hosts(pair)).collect();
            effects.mean = mean(&rest);
            let mut by_sender: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
            for (pair, y) in pairs {
                let receiver = effects.receiver.get(&pair.1).unwrap_or(&0.0);
                by_sender.entry(&pair.0).or_default().push(y - effects.mean - receiver);
            }
            effects.sender = by_sender.iter().map(|(&h, v)| (h.clone(), mean(v))).collect();
            let mut by_receiver: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
            for (pair, y) in pairs {
                let sender = effects.sender.get(&pair.0).unwrap_or(&0.0);
                by_receiver.entry(&pair.1).or_default().push(y - effects.mean - sender);
            }
            effects.receiver = by_receiver.iter().map(|(&h, v)| (h.clone(), mean(v))).collect();
        }
        effects
    }

    fn hosts(&self, pair: &(String, String)) -> f64 {
        self.sender.get(&pair.0).unwrap_or(&0.0) + self.receiver.get(&pair.1).unwrap_or(&0.0)
    }

    /// Correlation of the two effects of a host.
    fn correlation(&self) -> f64 {
        let both = self.sender.iter().filter_map(|(h, s)| Some((*s, *self.receiver.get(h)?)));
        let (s, r): (Vec<f64>, Vec<f64>) = both.unzip();
        let (ms, mr) = (mean(&s), mean(&r));
        let products: f64 = s.iter().zip(&r).map(|(s, r)| (s - ms) * (r - mr)).sum();
        products / (s.len() - 1) as f64 / deviation(&s) / deviation(&r)
    }
}

fn report(name: &str, pairs: &Pairs) {
    let means: Vec<_> = pairs.iter().map(|(pair, values)| (pair, mean(values))).collect();
    let effects = Effects::of(&means);
    let rest: Vec<f64> =
        means.iter().map(|(pair, y)| y - effects.mean - effects.hosts(pair)).collect();
    let parameters = effects.sender.len() + effects.receiver.len() - 1;
    let squares: f64 = rest.iter().map(|r| r * r).sum();
    let rest_variance = squares / (rest.len() - parameters) as f64;
    let repeated = pairs.values().filter(|values| values.len() > 1);
    let (mut within, mut freedom) = (0.0, 0);
    for values in repeated {
        let mean = mean(values);
        within += values.iter().map(|v| math::square(v - mean)).sum::<f64>();
        freedom += values.len() - 1;
    }
    let moment = within / f64::from(freedom.max(1) as u32);
    let repeats = mean(&pairs.values().map(|v| v.len() as f64).collect::<Vec<_>>());
    let host = |effects: &BTreeMap<String, f64>| {
        let values: Vec<f64> = effects.values().copied().collect();
        let noise = rest_variance * values.len() as f64 / pairs.len() as f64;
        (math::square(deviation(&values)) - noise).max(0.0).sqrt()
    };
    let of = |a: &String, b: &String| {
        let pair = (a.clone(), b.clone());
        pairs.get(&pair).map(|values| mean(values))
    };
    let both_ways: Vec<f64> = means
        .iter()
        .filter(|(p, _)| p.0 < p.1)
        .filter_map(|(p, y)| Some(y - of(&p.1, &p.0)?))
        .collect();
    println!("{name}: {} pairs, median {:.1} us", pairs.len(), math::exp(effects.mean));
    println!(
        "  over all pairs       {:.3}",
        deviation(&means.iter().map(|m| m.1).collect::<Vec<_>>())
    );
    println!("  sender               {:.3}", host(&effects.sender));
    println!("  receiver             {:.3}", host(&effects.receiver));
    println!("  their correlation    {:.2}", effects.correlation());
    println!("  pair                 {:.3}", (rest_variance - moment / repeats).max(0.0).sqrt());
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
    let slowest = Effects::of(&pairs.iter().map(|(p, v)| (p, mean(v))).collect::<Vec<_>>());
    let straggler = slowest.receiver.iter().max_by(|a, b| a.1.total_cmp(b.1));
    let straggler = straggler.ok_or("no hosts")?.0.clone();
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
