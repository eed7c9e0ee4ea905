//! Every published curve of the multicast beside ours.
//!
//! A published curve is a list of percentiles, 1 to 99, that was read off a figure. Ours are the
//! same percentiles of a run of the published set-up, as the mean over seeds. The error of a curve
//! is the sum of the distances of its percentiles over the sum of the published percentiles: an
//! error of .1 says that the curves lie a tenth apart in the mean.

mod curves;
mod measured;
pub mod series;

use evenfall_campaigns::model::Model;
use evenfall_campaigns::multicast::OverlayParams;
use evenfall_campaigns::multicast::run_heard;
use evenfall_campaigns::seeds::in_parallel;
use serde::Serialize;

use super::Table;
use super::overlay::Effort;
use crate::shuffle::curves::Curves;
use crate::trading;
use curves::{CURVES, FigureScene, PublishedCurve};
use measured::{FigureQuantity, MeasuredMessages, rank};
use series::{Point, PublishedSeries};

/// The published percentiles that tables show.
const SHOWN: [u32; 3] = [50, 90, 99];
/// Percentiles of the tables by figure.
const DETAILED: [u32; 7] = [1, 10, 25, 50, 75, 90, 99];
/// Seeds of runs of more than a thousand receivers at most.
const SEEDS_OF_LARGE: u64 = 2;

/// A published figure beside ours.
#[derive(Clone, Debug, Serialize)]
pub struct FigureRow {
    /// Number of the figure or table in the paper, or "later" for figures of its successors.
    pub figure: &'static str,
    /// The curve or the row.
    pub curve: String,
    /// Published: the percentiles 50, 90 and 99, or one value.
    pub published: Vec<Option<f64>>,
    /// Ours, in the same order.
    pub ours: Vec<Option<f64>>,
    /// Distance of the curves as a share of the published one.
    pub error: Option<f64>,
    /// Whether the model was fitted to it.
    pub fit: bool,
    /// Points that are compared.
    pub points: usize,
    /// What ran.
    pub run: String,
    /// Why nothing ran, or how the run differs from the published one.
    pub note: &'static str,
}

/// The outcome of the study.
pub struct PublishedFigures {
    /// All rows.
    pub rows: Vec<FigureRow>,
    /// A table for each figure with the percentiles of its curves.
    pub tables: Vec<Table>,
    /// A drawing for each figure: microseconds by percentile.
    pub drawings: Vec<Curves>,
}

/// A run and what it gives.
struct MeasuredScene {
    scene: FigureScene,
    /// Percentiles 1 to 99 by curve, or values by receiver: the mean over seeds.
    values: Vec<(usize, Vec<f64>)>,
    p_f: Option<f64>,
    /// Median OML, or the median window of a run that holds.
    typical: f64,
    missing: u64,
}

/// Values of a quantity that can be averaged over seeds: percentiles 1 to 99, or a value for each
/// receiver.
fn shown_values(messages: &MeasuredMessages, of: FigureQuantity) -> Vec<f64> {
    let values = messages.values(of);
    if matches!(of, FigureQuantity::ByReceiver(_)) {
        return values;
    }
    (1..=99).filter_map(|percent| rank(&values, percent).copied()).collect()
}

/// Runs a scene once for each seed.
fn measure(scene: FigureScene, effort: &Effort, progress: &mut dyn FnMut(&str)) -> MeasuredScene {
    let model = scene.model.and_then(|name| Model::named(name).ok());
    let effort = Effort { model: model.unwrap_or(effort.model.clone()), ..effort.clone() };
    let params = scene.params(&effort);
    let wanted: Vec<usize> =
        (0..CURVES.len()).filter(|at| CURVES[*at].scene == Some(scene)).collect();
    let one = |seed| {
        let mut messages = MeasuredMessages::to_receivers(params.receivers);
        let params = OverlayParams { seed, ..params.clone() };
        run_heard(&params, &mut |_| {}, &mut |course| messages.hear(course));
        let of = |at: &usize| shown_values(&messages, CURVES[*at].of);
        let windows = messages.values(FigureQuantity::HeldWindow);
        let window = rank(&windows, 50).copied().unwrap_or(f64::NAN);
        let oml = rank(&messages.values(FigureQuantity::Oml), 50).copied().unwrap_or(f64::NAN);
        let values: Vec<Vec<f64>> = wanted.iter().map(of).collect();
        (values, messages.p_f(), [window, oml], messages.missing())
    };
    let few = if scene.receivers > 1_000 { SEEDS_OF_LARGE } else { u64::MAX };
    let seeds = u64::from(effort.seeds).min(few);
    progress(scene.name);
    let runs = in_parallel(effort.seed, seeds, one, |_| {});
    let mean = |values: &mut dyn Iterator<Item = f64>| {
        let all: Vec<f64> = values.collect();
        all.iter().sum::<f64>() / all.len().max(1) as f64
    };
    let values = wanted.iter().enumerate().map(|(place, at)| {
        let points = runs.iter().map(|run| run.0[place].len()).min().unwrap_or(0);
        let values = (0..points).map(|p| mean(&mut runs.iter().map(|run| run.0[place][p])));
        (*at, values.collect())
    });
    let p_f: Option<Vec<f64>> = runs.iter().map(|run| run.1).collect();
    let which = usize::from(!scene.mode.holds());
    MeasuredScene {
        scene,
        values: values.collect(),
        p_f: p_f.map(|all| mean(&mut all.into_iter())),
        typical: mean(&mut runs.iter().map(|run| run.2[which])),
        missing: runs.iter().map(|run| run.3).sum(),
    }
}

/// Published values in the order of ours: by percentile, or sorted by receiver. `None` where a
/// percentile was cut off.
fn align_published(points: &[Point], of: FigureQuantity) -> Vec<Option<f64>> {
    if matches!(of, FigureQuantity::ByReceiver(_)) {
        let mut values: Vec<f64> = points.iter().map(|point| point.1).collect();
        values.sort_by(f64::total_cmp);
        return values.into_iter().map(Some).collect();
    }
    let at = |percent: u32| {
        let is = |point: &&Point| (point.1 - f64::from(percent)).abs() < 0.05;
        points.iter().find(is).map(|point| point.0.max(0.0))
    };
    (1..=99).map(at).collect()
}

/// The value at a percentile of values in ascending order.
fn at_percent(values: &[Option<f64>], percent: u32) -> Option<f64> {
    // Percentiles 1 to 99 and a hundred receivers have the same places.
    rank(values, percent).copied().flatten()
}

/// The distance of two curves as a share of the first, and the points compared.
fn distance_of(published: &[Option<f64>], ours: &[f64]) -> (Option<f64>, usize) {
    let both = published.iter().zip(ours);
    let both: Vec<(f64, f64)> = both.filter_map(|(p, o)| Some(((*p)?, *o))).collect();
    let apart: f64 = both.iter().map(|(published, ours)| (ours - published).abs()).sum();
    let all: f64 = both.iter().map(|pair| pair.0).sum();
    ((all > 0.0).then_some(apart / all), both.len())
}

/// The row of a curve, with the published and our values in order.
fn row(
    curve: &PublishedCurve,
    published: Option<&PublishedSeries>,
    measured: &[MeasuredScene],
    index: usize,
) -> (FigureRow, Vec<Option<f64>>, Vec<f64>) {
    let (file, series) = curve.source;
    let points = published.and_then(|published| published.curve(file, series));
    let known = points.map(|points| align_published(points, curve.of)).unwrap_or_default();
    let run = measured.iter().find(|run| curve.scene == Some(run.scene));
    let values = run.and_then(|run| run.values.iter().find(|value| value.0 == index));
    let ours = values.map(|value| value.1.clone()).unwrap_or_default();
    let (error, points) = distance_of(&known, &ours);
    let ours_known: Vec<Option<f64>> = ours.iter().copied().map(Some).collect();
    let shown = |values: &[Option<f64>]| SHOWN.map(|percent| at_percent(values, percent)).to_vec();
    let row = FigureRow {
        figure: curve.figure,
        curve: curve.name.into(),
        published: shown(&known),
        ours: shown(&ours_known),
        error,
        fit: curve.fit,
        points,
        run: run.map_or("not run".into(), |run| run.scene.name.into()),
        note: curve.why,
    };
    (row, known, ours)
}

/// A row of a single published value.
fn value_row(
    figure: &'static str,
    name: String,
    published: f64,
    ours: Option<f64>,
    fit: bool,
    note: &'static str,
) -> FigureRow {
    let error = ours.filter(|_| published > 0.0).map(|ours| (ours - published).abs() / published);
    FigureRow {
        figure,
        run: name.clone(),
        curve: name,
        published: vec![Some(published)],
        ours: vec![ours],
        error,
        fit,
        points: 1,
        note,
    }
}

/// Published values of tables 1 and 3, section 8.6, and the runs that they are compared with.
fn scalar_rows(
    effort: &Effort,
    measured: &mut Vec<MeasuredScene>,
    progress: &mut dyn FnMut(&str),
) -> Vec<FigureRow> {
    let mut rows = Vec::new();
    let mut take = |scene: FigureScene, progress: &mut dyn FnMut(&str)| -> usize {
        let known = measured.iter().position(|run| run.scene == scene);
        known.unwrap_or_else(|| {
            measured.push(measure(scene, effort, progress));
            measured.len() - 1
        })
    };
    let mut places = Vec::new();
    for (n, depth, fanout, per_host, published) in [
        (10, 1, 10, 1, 66.0),
        (10, 2, 4, 1, 88.0),
        (100, 1, 100, 1, 351.0),
        (100, 3, 5, 1, 141.0),
        (100, 2, 10, 1, 139.0),
        (1_000, 2, 32, 10, 282.0),
        (1_000, 3, 10, 10, 217.0),
        (1_000, 4, 6, 10, 226.0),
    ] {
        let at = take(FigureScene::shape(n, depth, fanout, per_host), progress);
        places.push((at, format!("median OML, N={n} D={depth} F={fanout}"), published));
    }
    let fair = [
        (curves::RELEASE_1, "P(F), N=100, H=1", 0.92, "8.5, Table 3"),
        (curves::RELEASE, "P(F), N=100, H=2", 0.92, "8.5, Table 3"),
        (curves::MANY_1, "P(F), N=5,000, H=1", 0.36, "8.5, Table 3"),
        (curves::MANY_2, "P(F), N=5,000, H=2", 0.86, "8.5, Table 3"),
        (curves::FAST, "P(F), 35,000 messages a second, H=2", 0.96, "8.6"),
    ]
    .map(|(scene, name, published, figure)| (take(scene, progress), name, published, figure));
    for (place, (at, name, published)) in places.into_iter().enumerate() {
        // The first four shapes are rows of the fit.
        let (run, fit) = (&measured[at], place < 4);
        rows.push(value_row("Table 1", name, published, Some(run.typical), fit, ""));
    }
    for (at, name, published, figure) in fair {
        let run = &measured[at];
        rows.push(value_row(figure, name.into(), published, run.p_f, false, ""));
        let window = match run.scene {
            curves::MANY_1 => 8.0,
            _ if figure == "8.6" => continue,
            _ => 0.0,
        };
        let name = name.replace("P(F)", "median window, us");
        rows.push(value_row(figure, name, window, Some(run.typical), false, ""));
    }
    rows
}

/// The shares of the trading demo.
fn shares(effort: &Effort, progress: &mut dyn FnMut(&str)) -> Vec<FigureRow> {
    let mut rows = Vec::new();
    for (mode, published) in trading::PUBLISHED {
        progress(&format!("trading, {mode:?}"));
        let scene = trading::TradingScene::on(&effort.model, effort.stack, mode);
        let one = |seed| {
            let seeded = trading::TradingScene {
                params: OverlayParams { seed, ..scene.params.clone() },
                ..scene.clone()
            };
            trading::run(&seeded, &mut |_| {}).profit_share
        };
        let runs = in_parallel(effort.seed, u64::from(effort.seeds), one, |_| {});
        let ours: Vec<f64> = (0..published.len())
            .map(|at| runs.iter().map(|run| run[at]).sum::<f64>() / runs.len().max(1) as f64)
            .collect();
        let known: Vec<Option<f64>> = published.into_iter().map(Some).collect();
        let (error, points) = distance_of(&known, &ours);
        rows.push(FigureRow {
            figure: "8.4, Table 2",
            curve: format!("profit shares of P1 to P4, {mode:?}").to_lowercase(),
            published: known,
            ours: ours.into_iter().map(Some).collect(),
            error,
            fit: false,
            points,
            run: format!("{} orders", scene.orders),
            note: "",
        });
    }
    rows
}

/// Makes all figures. Without the published curves their columns stay empty.
pub fn make(
    effort: &Effort,
    published: Option<&PublishedSeries>,
    progress: &mut dyn FnMut(&str),
) -> PublishedFigures {
    let mut measured: Vec<MeasuredScene> = Vec::new();
    for scene in CURVES.iter().filter_map(|curve| curve.scene) {
        if !measured.iter().any(|run| run.scene == scene) {
            measured.push(measure(scene, effort, progress));
        }
    }
    let (mut rows, mut tables, mut drawings) = (Vec::new(), Vec::<Table>::new(), Vec::new());
    for (index, curve) in CURVES.iter().enumerate() {
        let (row, known, ours) = row(curve, published, &measured, index);
        rows.push(row);
        if ours.is_empty() && known.is_empty() {
            continue;
        }
        let title = format!("Figure {}", curve.figure);
        if tables.last().is_none_or(|table| table.title != title) {
            let heads: Vec<String> = DETAILED.iter().map(|p| format!("p{p}")).collect();
            let heads: Vec<&str> =
                ["curve"].into_iter().chain(heads.iter().map(String::as_str)).collect();
            tables.push(Table::new(&title, effort.method(), &heads));
            drawings.push(Curves {
                number: curve.figure,
                title: "microseconds by percentile",
                x: "percentile",
                at: (1..=99).map(f64::from).collect(),
                worst: 90,
                curves: Vec::new(),
            });
        }
        let (table, drawing) =
            tables.last_mut().zip(drawings.last_mut()).expect("both were just pushed");
        let ours: Vec<Option<f64>> = ours.into_iter().map(Some).collect();
        for (whose, values) in [("published", &known), ("ours", &ours)] {
            let name = format!("{}, {whose}", curve.name);
            table.row(name.clone(), DETAILED.map(|percent| at_percent(values, percent)));
            let points = (1..=99).map(|percent| at_percent(values, percent).into_iter().collect());
            drawing.curves.push((name, points.collect()));
        }
    }
    rows.extend(scalar_rows(effort, &mut measured, progress));
    rows.extend(shares(effort, progress));
    let lost: Vec<&MeasuredScene> = measured.iter().filter(|run| run.missing > 0).collect();
    for run in lost {
        progress(&format!("{}: {} copies were not released", run.scene.name, run.missing));
    }
    PublishedFigures { rows, tables, drawings }
}

impl PublishedFigures {
    /// The errors of all rows: those of the fit, or those that judge the model.
    pub fn table(&self, effort: &Effort, fit: bool) -> Table {
        let title = if fit { "Rows of the fit" } else { "Rows that judge the model" };
        let heads =
            ["figure", "p50 published", "ours", "p90 published", "ours", "p99 published", "ours"];
        let heads: Vec<&str> = heads.into_iter().chain(["error, %"]).collect();
        let mut table = Table::new(title, effort.method(), &heads);
        for row in self.rows.iter().filter(|row| row.fit == fit && row.error.is_some()) {
            let at = |values: &[Option<f64>], at: usize| values.get(at).copied().flatten();
            // The four shares of the trading demo stand in a table of their own.
            let at = |values: &[Option<f64>], n: usize| at(values, n).filter(|_| values.len() < 4);
            let both = (0..3).flat_map(|n| [at(&row.published, n), at(&row.ours, n)]);
            let name = format!("{}: {}", row.figure, row.curve);
            table.row(name, both.chain([row.error.map(|error| 100.0 * error)]));
        }
        let errors: Vec<f64> = table.rows.iter().filter_map(|row| *row.1.last()?).collect();
        let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
        table.row(
            format!("mean of {}", errors.len()),
            [const { None }; 6].into_iter().chain([Some(mean)]),
        );
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_the_mean_distance_of_percentiles_that_both_curves_have() {
        let points: Vec<Point> =
            (1..=99).filter(|p| *p != 7).map(|p| (100.0, f64::from(p))).collect();
        let known = align_published(&points, FigureQuantity::Oml);
        assert_eq!((known.len(), known[6]), (99, None));
        let (error, compared) = distance_of(&known, &[110.0; 99]);
        assert_eq!(compared, 98);
        assert!((error.expect("a distance") - 0.1).abs() < 1e-9);
    }

    #[test]
    fn every_scene_is_a_run_that_the_machines_accept() {
        let effort = Effort::on(Model::named("aws").expect("built in"));
        for scene in CURVES.iter().filter_map(|curve| curve.scene) {
            scene.params(&effort).config.check().expect(scene.name);
        }
    }
}
