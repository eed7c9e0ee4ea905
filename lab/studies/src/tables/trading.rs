//! The trading demo in every mode, and what a participant gains by a wrong clock or by opening
//! messages early.

use evenfall_campaigns::multicast::OverlayParams;
use evenfall_campaigns::seeds::{in_parallel, mean_and_half_width};
use evenfall_multicast_machine::Mode;

use super::Table;
use super::overlay::Effort;
use crate::trading::{
    OrderStamping, PARTICIPANTS, PUBLISHED, ParticipantConduct, TradingScene, run,
};

/// The error of a participant's clock in the rows about clocks, nanoseconds.
const AHEAD_NS: i64 = 2_000;

/// A row: its name, and the scene.
fn all_scenes(effort: &Effort) -> Vec<(String, TradingScene)> {
    let on = |mode| TradingScene::on(&effort.model, effort.stack, mode);
    let modes = [Mode::Unicast, Mode::Tree, Mode::Hedge, Mode::Release];
    let mut rows: Vec<(String, TradingScene)> =
        modes.into_iter().map(|mode| (format!("{mode:?}").to_lowercase(), on(mode))).collect();
    let mut cheat = |name: &str, mode, conduct, stamping| {
        let mut scene = on(mode);
        (scene.conducts[0], scene.stamping) = (conduct, stamping);
        rows.push((name.into(), scene));
    };
    let honest = ParticipantConduct::default();
    let (fast, slow) = (
        ParticipantConduct { ahead_ns: AHEAD_NS, ..honest },
        ParticipantConduct { ahead_ns: -AHEAD_NS, ..honest },
    );
    let early = ParticipantConduct { opens_early: true, ..honest };
    let sly = ParticipantConduct { writes_deadline: true, ..early };
    let (own, checked, released) =
        (OrderStamping::Participant, OrderStamping::NotEarly, OrderStamping::Release);
    cheat("hedge, P1's clock 2 us slow", Mode::Hedge, slow, own);
    cheat("hedge, P1's clock 2 us fast", Mode::Hedge, fast, own);
    cheat("release, P1's clock 2 us slow", Mode::Release, slow, own);
    cheat("release, P1's clock 2 us fast", Mode::Release, fast, own);
    cheat("release, P1 opens early", Mode::Release, early, own);
    cheat("the same, stamps before the deadline refused", Mode::Release, early, checked);
    cheat("the same, and P1 writes the deadline", Mode::Release, sly, checked);
    cheat("the same, stamped at the release", Mode::Release, sly, released);
    rows
}

/// Profit shares by mode and conduct, the published ones first.
pub fn table(effort: &Effort, orders: u32, progress: &mut dyn FnMut(&str)) -> Table {
    let mut heads = vec!["mode"];
    for (published, ours) in [("P1", "ours"), ("P2", "ours"), ("P3", "ours"), ("P4", "ours")] {
        heads.extend([published, ours, "+-"]);
    }
    heads.extend(["window p50, us", "+-"]);
    let method =
        format!("{}; shares of the profit in percent after {orders} orders", effort.method());
    let mut table = Table::new("Profit of four participants", method, &heads);
    for (name, scene) in all_scenes(effort) {
        progress(&name);
        let published =
            PUBLISHED.iter().find(|(mode, _)| format!("{mode:?}").to_lowercase() == name);
        let one = |seed| {
            let params = OverlayParams { seed, ..scene.params.clone() };
            run(&TradingScene { params, orders, ..scene.clone() }, &mut |_| {})
        };
        let runs = in_parallel(effort.seed, u64::from(effort.seeds), one, |_| {});
        let mut values = Vec::new();
        for seat in 0..PARTICIPANTS {
            let shares: Vec<f64> = runs.iter().map(|run| run.profit_share[seat]).collect();
            let (mean, half) = mean_and_half_width(&shares);
            values.extend([published.map(|(_, shares)| shares[seat]), mean, half]);
        }
        let windows: Vec<f64> = runs.iter().map(|run| run.window_p50_us).collect();
        let (mean, half) = mean_and_half_width(&windows);
        values.extend([mean, half]);
        table.row(name, values);
        progress(table.last_line().trim_end());
    }
    table
}
