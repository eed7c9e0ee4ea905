//! What a plan costs in probes and time, as a table:
//! `cargo run --release -p evenfall-lab --example survey_cost`.

use core::time::Duration;

use evenfall_lab::survey::study::measure;
use evenfall_placement_machine::job::MESH_HOSTS_MAX;
use evenfall_placement_machine::{Extent, Pace};
use evenfall_placement_planner::explorer::PAIRS_PER_HOST;
use evenfall_placement_planner::tree::Shape;
use evenfall_sim::CloudProfile;

fn main() {
    let pace = Pace { rate_hz: 100, duration: Duration::from_secs(1), ..Pace::default() };
    println!("| hosts | D/F | way | jobs | probes | s | worst leaf p90, us |");
    println!("|---|---|---|---|---|---|---|");
    for (hosts, depth, fanout) in [(25, 3, 2), (100, 2, 5), (400, 3, 5), (1_500, 3, 10)] {
        let pairs = Extent::Pairs(PAIRS_PER_HOST * hosts as u64);
        for extent in [Extent::ByParent, pairs, Extent::AllPairs] {
            if extent == Extent::AllPairs && hosts > MESH_HOSTS_MAX {
                continue;
            }
            let shape = Shape { depth, fanout };
            println!("{}", measure(CloudProfile::default(), hosts, shape, pace, extent, 1));
        }
    }
}
