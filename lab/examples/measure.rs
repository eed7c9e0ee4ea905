//! One measured run, with its speed. `cargo run --release -p evenfall-lab --example measure --`
//! takes `RECEIVERS HEDGING SECONDS [MODEL [CORES]]`.

use std::time::{Duration, Instant};

use evenfall_core::Summary;
use evenfall_lab::model::{Model, Stack};
use evenfall_lab::multicast::{Params, run};

fn argument<T: std::str::FromStr>(n: usize, default: T) -> T {
    std::env::args().nth(n).and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() {
    let duration = Duration::from_secs_f64(argument(3, 2.0));
    let mut params = Params { receivers: argument(1, 100), duration, ..Params::default() };
    if let Some(name) = std::env::args().nth(4) {
        let model = Model::named(&name).expect("the fourth argument names a model");
        params = params.on(&model, Stack::Sockets);
    }
    params.config.shape.hedging = argument(2, evenfall_core::Hedging::DEFAULT);
    params.cores = argument(5, 1);
    let start = Instant::now();
    let run = run(&params);
    let took = start.elapsed().as_secs_f64();
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
    println!("{} hops in {took:.2} s: {:.2} M/s", run.hops, run.hops as f64 / took / 1e6);
}
