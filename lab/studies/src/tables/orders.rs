//! Ways of a whole race on one model of a cloud, in one sitting: a feed to all participants, their
//! orders back, and the exchange's sequence.

use core::time::Duration;

use evenfall_campaigns::multicast::OverlayParams;
use evenfall_campaigns::seeds::{in_parallel, mean_and_half_width};
use evenfall_core::Hedging;
use evenfall_multicast_machine::Mode;
use evenfall_multicast_machine::config::Rule;

use super::overlay::Effort;
use super::{Table, columns};
use crate::orders::{OrderFigures, OrderRanking, OrderScene, RESPONDERS, run_orders};

/// How far clocks are wrong in the row that has wrong clocks: about what the product's own clocks
/// err on the model of AWS.
const CLOCK_ERROR: Duration = Duration::from_micros(4);

fn all_scenes(effort: &Effort, participants: u32) -> Vec<(&'static str, OrderScene)> {
    use OrderRanking::{Arrival, DeliveryClock, Sequencer};
    let on = |mode, hedging, rule| {
        let mut params: OverlayParams = effort.params(participants, mode, Hedging(hedging));
        params.config.deadline.rule = rule;
        params
    };
    let unicast = || on(Mode::Unicast, 0, Rule::MaxP95);
    let tree = || on(Mode::Hedge, 2, Rule::MaxP95);
    let held = || on(Mode::Release, 2, Rule::OnTime);
    let scene = |name, params, ranking| (name, OrderScene { params, ranking });
    vec![
        scene("unicast, first come", unicast(), Arrival),
        scene("tree, H=2, first come", tree(), Arrival),
        scene("CloudEx: unicast held, sequencer", on(Mode::Cloudex, 0, Rule::MaxP95), Sequencer),
        scene("Jasper: tree, H=2, held, first come", on(Mode::Release, 2, Rule::MaxP95), Arrival),
        scene("Jasper's tree and a sequencer", on(Mode::Release, 2, Rule::MaxP95), Sequencer),
        scene("our rule and a sequencer", held(), Sequencer),
        scene(
            "the same, clocks wrong by up to 4 us",
            held().with_clock_error(CLOCK_ERROR),
            Sequencer,
        ),
        scene("DBO over unicast", unicast(), DeliveryClock),
        scene("DBO over the tree, H=2", tree(), DeliveryClock),
    ]
}

/// How fair each way is to the fastest, and when the exchange knows the first order.
pub fn table(effort: &Effort, participants: u32, progress: &mut dyn FnMut(&str)) -> Table {
    let figures = [
        (None, "fastest is first"),
        (None, "pairs in order"),
        (None, "first known p50"),
        (None, "p90"),
        (None, "p99"),
    ];
    let responders = RESPONDERS.min(participants as usize);
    let title = format!("Orders of {responders} of {participants} participants on each message");
    let mut table = Table::new(&title, effort.method(), &columns("way", &figures));
    for (name, scene) in all_scenes(effort, participants) {
        progress(name);
        let one = |seed| {
            let params = OverlayParams { seed, ..scene.params.clone() };
            run_orders(&OrderScene { params, ranking: scene.ranking })
        };
        let runs = in_parallel(effort.seed, effort.seeds.into(), one, |_| {});
        let over = |figure: &dyn Fn(&OrderFigures) -> f64| {
            let (mean, half) = mean_and_half_width(&runs.iter().map(figure).collect::<Vec<f64>>());
            [mean, half]
        };
        let mut values = over(&|run| run.fastest_first).to_vec();
        values.extend(over(&|run| run.pairs_in_order));
        for at in 0..3 {
            values.extend(over(&|run| run.decided_us[at]));
        }
        table.row(name.into(), values);
        progress(table.last_line().trim_end());
    }
    table
}
