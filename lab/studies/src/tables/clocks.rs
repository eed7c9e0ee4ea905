//! The cost of wrong clocks: delivery windows and P(F) by the greatest error of a clock.
//!
//! Every host's clock is wrong by a constant between minus and plus the error. A receiver whose
//! clock is ahead releases early, and the delays that it measures lengthen the hold. The windows
//! are in true time.

use core::time::Duration;

use evenfall_campaigns::multicast::OverlayRun;
use evenfall_campaigns::seeds::mean_and_half_width;
use evenfall_core::Hedging;
use evenfall_multicast_machine::Mode;

use super::overlay::Effort;
use super::{Table, columns};
use crate::shuffle::curves::Curves;
use crate::shuffle::plot;

/// Errors of clocks, in microseconds.
const ERRORS_US: [u64; 5] = [0, 1, 10, 30, 100];

/// A figure of a run, and the head of its column.
type Figure = (&'static str, fn(&OverlayRun) -> Option<f64>);

const FIGURES: [Figure; 4] = [
    ("window p50", |run| Some(run.results.window_us.p50)),
    ("window p99", |run| Some(run.results.window_us.p99)),
    ("P(F)", |run| run.results.p_f),
    ("held OML p50", |run| Some(run.results.held_oml_us.p50)),
];

/// The table, and a drawing of the windows against the error of the clocks.
pub fn table(
    effort: &Effort,
    receivers: u32,
    progress: &mut dyn FnMut(&str),
) -> (Table, Option<String>) {
    let heads = columns("clocks wrong by up to", &FIGURES.map(|(name, _)| (None, name)));
    let title = format!("Delivery window and P(F) by clock error, {receivers} receivers");
    let mut table = Table::new(&title, effort.method(), &heads);
    let mut curves = vec![("window p50".to_owned(), vec![]), ("window p99".to_owned(), vec![])];
    for us in ERRORS_US {
        let params = effort.params(receivers, Mode::Release, Hedging::DEFAULT);
        let params = params.with_clock_error(Duration::from_micros(us));
        let name = format!("{us} us");
        let runs = effort.each(&params, progress, &name, |run| FIGURES.map(|(_, of)| of(run)));
        let seeds = |at: usize| runs.iter().filter_map(|run| run[at]).collect::<Vec<f64>>();
        curves.iter_mut().enumerate().for_each(|(at, curve)| curve.1.push(seeds(at)));
        let cells = (0..FIGURES.len()).map(|at| mean_and_half_width(&seeds(at)));
        table.row(name, cells.flat_map(|(mean, half)| [mean, half]));
    }
    let drawing = plot::svg(&Curves {
        number: "Delivery window",
        title: "microseconds of true time, by the greatest error of a clock",
        x: "clocks wrong by up to, microseconds",
        at: ERRORS_US.map(|us| us as f64).to_vec(),
        worst: 90,
        curves,
    });
    (table, drawing)
}
