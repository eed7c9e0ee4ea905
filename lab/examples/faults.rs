//! A fault campaign: `cargo run --release -p evenfall-sims --example faults -- FIRST COUNT`, or,
//! with
//! one number and `replay`, the transcript of one seed.

use evenfall_lab::multicast::faults::{replay, run_seed};
use evenfall_sim::{Campaign, Coverage};

fn main() {
    let number = |n: usize| std::env::args().nth(n).and_then(|text| text.parse::<u64>().ok());
    let first = number(1).unwrap_or(0);
    if std::env::args().nth(2).as_deref() == Some("replay") {
        print!("{}", replay(first));
        return;
    }
    let seeds = first..first + number(2).unwrap_or(100);
    let mut campaign =
        Campaign::new(seeds.clone(), "evenfall sim multicast --faults --seed {seed}");
    campaign.stop_at_first = false;
    let outcome = campaign.run(run_seed, |_| {});
    let (mut coverage, mut hops) = (Coverage::default(), 0);
    for (_, (plan, verdict)) in &outcome.passed {
        coverage.add(plan);
        hops += verdict.hops;
    }
    println!("{coverage}");
    for failure in outcome.failed.iter().take(10) {
        println!("{failure}");
    }
    println!("{} passed, {} failed, {hops} hops", outcome.passed.len(), outcome.failed.len());
}
