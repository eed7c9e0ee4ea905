//! What a plan costs in probes and time, as a table:
//! `cargo run --release -p evenfall-studies --example survey_cost -- MODEL SEEDS`.

use evenfall_campaigns::model::Model;
use evenfall_placement_planner::tree::TreeShape;
use evenfall_studies::survey::cost;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = Model::named(&arguments.next().unwrap_or("gcp".into()))?;
    let seeds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let shape = |depth, fanout| TreeShape { depth, fanout };
    let cases = [(25, shape(3, 2)), (100, shape(2, 5)), (400, shape(3, 5)), (1_500, shape(3, 10))];
    let table = cost(&model, &cases, 1..seeds + 1, &mut |row| eprintln!("{row}"));
    print!("{}", table.markdown());
    Ok(())
}
