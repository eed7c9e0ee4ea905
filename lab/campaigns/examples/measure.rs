//! One measured run, with its speed:
//! `cargo run --release -p evenfall-campaigns --example measure --` takes
//! `RECEIVERS HEDGING SECONDS [MODEL [CORES [WARM_UP_SECONDS]]]`.
//!
//! Speeds are hops per second of CPU time, so that other programs on the computer matter less. On
//! several cores the CPU time of all cores counts.

use std::time::{Duration, Instant};

use evenfall_campaigns::model::{Model, Stack};
use evenfall_campaigns::multicast::{OverlayParams, RunProgress, run_seen};
use evenfall_core::Summary;
use evenfall_host::clock::process_cpu;

fn argument<T: std::str::FromStr>(n: usize, default: T) -> T {
    std::env::args().nth(n).and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() {
    let mut params = OverlayParams {
        receivers: argument(1, 100),
        duration: Duration::from_secs_f64(argument(3, 2.0)),
        warm_up: Duration::from_secs_f64(argument(6, 1.0)),
        ..OverlayParams::default()
    };
    if let Some(name) = std::env::args().nth(4) {
        let model = Model::named(&name).expect("the fourth argument names a model");
        params = params.on(&model, Stack::Sockets);
    }
    params.config.shape.hedging = argument(2, evenfall_core::Hedging::DEFAULT);
    params.cores = argument(5, 1);
    let (start, cpu_start) = (Instant::now(), process_cpu());
    // The first and the last report while the feed runs: simulated time, CPU time, hops.
    let (mut first, mut last) = (None, None);
    let run = run_seen(&params, &mut |progress| {
        if let RunProgress::Sending { at, hops, .. } = progress {
            last = Some((at, process_cpu(), hops));
            first = first.or(last);
        }
    });
    let (took, cpu) = (start.elapsed().as_secs_f64(), process_cpu() - cpu_start);
    let r = &run.results;
    let line = |name: &str, s: Summary| {
        println!("{name:<14} {:>9.1} {:>9.1} {:>9.1} {:>9.1} us", s.p50, s.p90, s.p99, s.max);
    };
    println!("{} messages, {} delivered, {} lost", r.messages, r.delivered, r.lost);
    println!("P(F) {:?}, deadline {:.1} us after sending", r.p_f, run.hold_us);
    println!("{:<14} {:>9} {:>9} {:>9} {:>9}", "", "p50", "p90", "p99", "max");
    line("OML", r.oml_us);
    line("held OML", r.held_oml_us);
    line("window", r.window_us);
    line("arrival window", r.arrival_window_us);
    line("release late", r.release_late_us);
    line("wait", r.wait_us);
    println!("{:?}", run.tally);
    let speed = |what: &str, hops: u64, cpu: Duration| {
        let cpu = cpu.as_secs_f64();
        println!(
            "{what}: {hops} hops in {cpu:.2} s of CPU time, {:.2} M/s",
            hops as f64 / cpu / 1e6
        );
    };
    speed(&format!("in all {took:.2} s"), run.hops, cpu);
    if let (Some((from, cpu_from, hops_from)), Some((to, cpu_to, hops_to))) = (first, last) {
        let what =
            format!("{:.2} simulated seconds of warm-up and feed", (to - from).as_secs_f64());
        speed(&what, hops_to - hops_from, cpu_to - cpu_from);
    }
}
