//! What a plan costs in probes and time, as a table:
//! `cargo run --release -p evenfall-sims --example survey_cost`.

use core::time::Duration;

use evenfall_placement_machine::Pace;
use evenfall_placement_planner::tree::Shape;
use evenfall_sim::CloudProfile;
use evenfall_lab::survey::study::measure;

fn main() {
    let pace = Pace { rate_hz: 100, duration: Duration::from_secs(1), ..Pace::default() };
    println!("| hosts | D/F | way | jobs | probes | s | worst leaf p90, us |");
    println!("|---|---|---|---|---|---|---|");
    for (hosts, depth, fanout) in [(25, 3, 2), (100, 2, 5), (400, 3, 5)] {
        for all_to_all in [false, true] {
            let shape = Shape { depth, fanout };
            println!("{}", measure(CloudProfile::default(), hosts, shape, pace, all_to_all, 1));
        }
    }
}
