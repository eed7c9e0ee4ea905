//! Digests of runs that must be the same everywhere, a line each. `scripts/same-everywhere.sh`
//! compares the lines of several builds. This command prints them:
//! `cargo run --release -p evenfall-studies --example same`.

use core::time::Duration;
use std::fmt::Debug;

use evenfall_campaigns::CAMPAIGNS;
use evenfall_campaigns::model::{Model, Stack};
use evenfall_campaigns::multicast::{OverlayParams, run};
use evenfall_core::{Prng, math, statistics};
use evenfall_feed_formats::MessageSource;
use evenfall_feed_formats::synthetic::{Config, Generator};
use evenfall_placement_planner::planner::{PlanMethod, Planner};
use evenfall_placement_planner::tree::TreeShape;
use evenfall_studies::placement::model::Pool;

/// Seeds of each campaign: few, because a build without optimisation runs them too.
const SEEDS: u64 = 3;
/// Numbers drawn from each distribution.
const DRAWS: usize = 20_000;
/// Messages of the synthetic feed.
const MESSAGES: u64 = 20_000;
/// Hosts of the pool in which trees are planned.
const HOSTS: usize = 24;

/// A digest of bytes, in order.
fn digest(bytes: &[u8]) -> u64 {
    let fold = |sum: u64, chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        math::mix(sum ^ u64::from_le_bytes(word)).wrapping_add(chunk.len() as u64)
    };
    bytes.chunks(8).fold(bytes.len() as u64, fold)
}

/// A digest of a value's text. The shortest text that reads back as the same number tells every bit
/// of a number.
fn told(value: &impl Debug) -> u64 {
    digest(format!("{value:?}").as_bytes())
}

fn say(name: &str, digest: u64) {
    println!("{name:<24} {digest:016x}");
}

fn numbers() {
    let mut prng = Prng::new(1);
    let normal: Vec<f64> = (0..DRAWS).map(|_| prng.normal()).collect();
    say("normal numbers", told(&normal));
    let exponential: Vec<f64> = (0..DRAWS).map(|_| prng.exponential(3.0)).collect();
    say("exponential numbers", told(&exponential));
    let widths: Vec<_> = [2, 3, 10, 50].map(|n| statistics::half_width(&normal[..n], 0.05)).into();
    say("intervals of means", told(&widths));
}

fn feed() {
    let config = Config { messages: MESSAGES, symbols: 200, ..Config::default() };
    let mut feed = Generator::new(config).expect("a configuration of our own");
    let mut sum = 0;
    while let Some(message) = feed.next_message().expect("a generator does not fail") {
        sum = math::mix(sum ^ digest(&message.bytes) ^ message.time_ns);
    }
    say("synthetic feed", sum);
}

fn overlay() {
    let mut params = OverlayParams {
        receivers: 60,
        rate: 2_000.0,
        duration: Duration::from_millis(300),
        warm_up: Duration::from_millis(20),
        ..OverlayParams::default()
    };
    let model = Model::named("aws").expect("a built-in model");
    params = params.on(&model, Stack::Sockets);
    params.config.shape.hedging = evenfall_core::Hedging(1);
    say("multicast results", told(&run(&params).results));
}

fn planning() {
    let model = Model::named("gcp").expect("a built-in model");
    let delays = Pool::new(&model, HOSTS, true, 1).measure(50);
    let pool: Vec<usize> = (0..HOSTS).collect();
    say("measured pool", told(&delays));
    for word in ["minmax", "greedy", "lemondrop", "weighted"] {
        let method = PlanMethod::parse(word).expect("a method");
        let planner = Planner::new(method, TreeShape { depth: 2, fanout: 3 });
        say(&format!("plan by {word}"), told(&planner.plan(&delays, &pool)));
    }
}

fn main() {
    numbers();
    feed();
    overlay();
    planning();
    for campaign in CAMPAIGNS {
        let run = campaign.prove(Some(0..SEEDS), &mut |_| {});
        let coverage = run.unwrap_or_else(|why| panic!("{why}"));
        say(&format!("campaign {}", campaign.name()), coverage.digest);
    }
}
