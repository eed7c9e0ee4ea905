//! The effect of re-placement when a proxy's host turns slow during the feed.

use core::time::Duration;

use evenfall_campaigns::model::Model;
use evenfall_campaigns::multicast::{OverlayParams, OverlayRun, run};
use evenfall_campaigns::seeds::{in_parallel, mean_and_half_width};
use evenfall_core::Hedging;
use evenfall_multicast_machine::replace::ReplacementStep;
use evenfall_multicast_machine::{Mode, Replacement};
use evenfall_sim::{Fault, NodeIndex};

use super::Table;
use super::overlay::Effort;

/// When the host turns slow, counted from the first message.
const SLOW_AT: Duration = Duration::from_secs(2);
/// The feed: long enough that the deadline's window has passed over the switch twice.
const FEED: Duration = Duration::from_secs(9);
/// How far back the deadline looks; the default is ten seconds, which only lengthens the wait.
const WINDOW: Duration = Duration::from_secs(2);
/// How much slower the host becomes, processor and network.
const FACTOR: f64 = 20.0;
const SECOND: Duration = Duration::from_secs(1);

/// What happens to the proxy's host, and whether re-placement is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplacementCase {
    /// No host turns slow, and re-placement is off.
    Undisturbed,
    /// No host turns slow, and re-placement is on.
    Watched,
    /// A host turns slow, and re-placement is off.
    Endured,
    /// A host turns slow, and re-placement is on.
    Replaced,
}

impl ReplacementCase {
    const ALL: [Self; 4] = [Self::Undisturbed, Self::Watched, Self::Endured, Self::Replaced];

    fn name(self) -> &'static str {
        match self {
            Self::Undisturbed => "no host turns slow",
            Self::Watched => "no host turns slow, re-placement on",
            Self::Endured => "one host turns slow, nothing is done",
            Self::Replaced => "one host turns slow, and is replaced",
        }
    }
}

/// A run with 100 receivers, ten proxies and two spares.
pub fn scenario(
    model: &Model,
    case: ReplacementCase,
    hedging: Hedging,
    seed: u64,
) -> OverlayParams {
    let effort = Effort::on(model.clone());
    let effort = Effort { rate: 1_000.0, messages: 1_000, warm_up: 1_000, ..effort };
    let mut params = effort.params(100, Mode::Release, hedging);
    params.seed = seed;
    params.spares = 2;
    params.duration = FEED;
    params.config.deadline.window = WINDOW;
    params.config.replace.enabled =
        matches!(case, ReplacementCase::Watched | ReplacementCase::Replaced);
    if matches!(case, ReplacementCase::Endured | ReplacementCase::Replaced) {
        let proxy = NodeIndex(1 + (seed % 10) as u32);
        params.faults = vec![(SLOW_AT, Fault::Slow(proxy, FACTOR))];
    }
    params
}

/// The median hold of frames made from one time to another, microseconds.
pub fn hold_us(run: &OverlayRun, from: Duration, to: Duration) -> Option<f64> {
    let within = run.frames.iter().filter(|frame| (from..to).contains(&frame.at));
    let mut holds: Vec<Duration> = within.map(|frame| frame.hold).collect();
    holds.sort_unstable();
    evenfall_core::nearest_rank(&holds, 0.5).map(|hold| hold.as_secs_f64() * 1e6)
}

/// The share of frames made from one time to another that were late at a receiver.
pub fn late_share(run: &OverlayRun, from: Duration, to: Duration) -> Option<f64> {
    let within = || run.frames.iter().filter(|frame| (from..to).contains(&frame.at));
    let late = within().filter(|frame| frame.late).count();
    (within().count() > 0).then(|| late as f64 / within().count() as f64)
}

/// When the tree was switched to the spare, counted from the first message.
pub fn switched_at(run: &OverlayRun) -> Option<Duration> {
    let made = |(_, step): &&(Duration, Replacement)| step.step == ReplacementStep::Made;
    run.replacements.iter().find(made).map(|(at, _)| *at)
}

/// What the runs of a seed came to, by case: the figures of a row.
fn figures(model: &Model, hedging: Hedging, seed: u64) -> [Vec<Option<f64>>; 4] {
    let runs = ReplacementCase::ALL.map(|case| run(&scenario(model, case, hedging, seed)));
    let switch = switched_at(&runs[3]);
    let from = switch.unwrap_or(SLOW_AT + SECOND);
    let figures = |(case, run): (ReplacementCase, &OverlayRun)| {
        let counts = run.roots[0].replacements;
        let own = switch.filter(|_| case == ReplacementCase::Replaced);
        vec![
            hold_us(run, SECOND, SECOND * 2),
            hold_us(run, SECOND * 3, SECOND * 4),
            hold_us(run, FEED - SECOND, FEED),
            late_share(run, from, from + SECOND),
            late_share(run, Duration::ZERO, FEED),
            Some(run.results.lost as f64),
            own.map(|at| at.saturating_sub(SLOW_AT).as_secs_f64() * 1e3),
            Some(counts.tried as f64),
            Some(counts.rolled_back as f64),
        ]
    };
    let mut runs = ReplacementCase::ALL.into_iter().zip(&runs).map(figures);
    core::array::from_fn(|_| runs.next().expect("a run of each case"))
}

/// Every case with and without hedging, over this many seeds. Every row has the same seeds, so that
/// rows differ by the case and not by luck.
pub fn table(model: &Model, first_seed: u64, seeds: u32, progress: &mut dyn FnMut(&str)) -> Table {
    let figures_of = [
        "hold, second 2",
        "hold, second 4",
        "hold, last second",
        "late",
        "late in all",
        "lost",
        "switched after, ms",
        "tried",
        "rolled back",
    ];
    let columns = figures_of.iter().flat_map(|name| [*name, "+-"]);
    let columns: Vec<&str> = core::iter::once("run").chain(columns).collect();
    let mut table = Table::new(
        "A proxy's host turns slow",
        format!(
            "our machines on the model {}, 100 receivers, ten proxies and two spares, 1,000 \
             msg/s for 9 s; after 2 s a proxy's host is {FACTOR} times slower; deadline window \
             2 s; holds in microseconds; means over seeds {first_seed} to {}, +- is 95 % by \
             Student's t. \"Late\": share of frames late somewhere, made in the second after the \
             switch of the same seed's replaced run (when it had none, after 3 s)",
            model.name,
            first_seed + u64::from(seeds) - 1
        ),
        &columns,
    );
    for hedging in [0, 1] {
        let one = |seed| figures(model, Hedging(hedging), seed);
        let done = |finished| progress(&format!("H={hedging}, {finished} of {seeds} seeds"));
        let all = in_parallel(first_seed, seeds.into(), one, done);
        for (at, case) in ReplacementCase::ALL.into_iter().enumerate() {
            let values = (0..figures_of.len()).flat_map(|column| {
                let known: Vec<f64> = all.iter().filter_map(|seed| seed[at][column]).collect();
                let (mean, half) = mean_and_half_width(&known);
                [mean, half]
            });
            table.row(format!("H={hedging}, {}", case.name()), values.collect::<Vec<_>>());
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_comes_down_again_and_the_switch_makes_nothing_late() {
        let cases =
            [ReplacementCase::Undisturbed, ReplacementCase::Endured, ReplacementCase::Replaced];
        let model = Model::named("aws").expect("built in");
        let runs = cases.map(|case| run(&scenario(&model, case, Hedging::NONE, 1)));
        let [undisturbed, endured, replaced] = &runs;
        let switch = switched_at(replaced).expect("a switch");
        assert!(switch > SLOW_AT && switch < SLOW_AT + SECOND * 3, "{switch:?}");
        let last = |run| hold_us(run, FEED - SECOND, FEED).expect("frames");
        assert!(last(replaced) < 1.5 * last(undisturbed), "{}", last(replaced));
        assert!(last(endured) > 3.0 * last(undisturbed), "{}", last(endured));
        let late = |run| late_share(run, switch, switch + SECOND).expect("frames");
        // Spikes of single paths make some frames of a thousand late in either run.
        assert!(late(replaced) <= late(endured) + 0.01, "{} {}", late(replaced), late(endured));
        assert!(runs.iter().all(|run| run.finished && run.results.lost == 0));
    }
}
