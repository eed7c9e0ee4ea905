//! A real run in a lab of namespaces beside its simulation, from one file of a model:
//! `cargo run --release -p evenfall-lab --example agree -- [MODEL] [RUNS] [SEEDS]`; needs root.
//!
//! The delays of the model's paths are injected into the receiving drivers of
//! `evenfall demo --lab`: `path.base_us` as the fixed part, and the exponential `path.wait` as the
//! part that is drawn for each datagram. The simulation takes the same file, and the settings that
//! the demo has written. `$EVENFALL` names the program; without the variable, the example takes the
//! program `evenfall` of the same build.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evenfall_campaigns::model::{Model, Stack};
use evenfall_campaigns::multicast::{OverlayParams, run};
use evenfall_core::SharedKey;
use evenfall_core::statistics::{half_width, mean};
use evenfall_lab::product;
use evenfall_model::DelayShape;
use evenfall_multicast_service::Settings;

/// Receivers: few enough for two cores, so that the injected delays are most of the latency.
const RECEIVERS: u32 = 10;
/// Messages per second. The lab draws the delay of each datagram and then keeps the datagrams of a
/// sender in order. The distance of 10 ms keeps messages from waiting for each other.
const RATE: u32 = 100;
/// Messages of a run. The 99th percentile then has 30 messages above it.
const MESSAGES: u32 = 3_000;
/// Bytes of a message of the generated feed, in the mean.
const MESSAGE_BYTES: usize = 36;
/// The largest difference that counts as agreement.
const AGREEMENT: f64 = 0.15;

type Failed = Box<dyn std::error::Error>;

/// Median and 99th percentile of the overall latency in us, and P(F).
type Row = [f64; 3];

const NAMES: [&str; 3] = ["OML p50, us", "OML p99, us", "P(F)"];

/// The rules that inject the delays of the model.
fn rules(model: &Model) -> Result<String, Failed> {
    let DelayShape::Exponential { mean_us } = model.path.wait.shape else {
        return Err(format!("model {}: path.wait must be exponential", model.name).into());
    };
    Ok(format!("* * {} {mean_us} {}\n", model.path.base_us.is, model.path.random_loss.is))
}

/// One real run. Returns its figures and the settings of its processes.
fn real(program: &Path, dir: &Path, rules: &Path) -> Result<(Row, Settings), Failed> {
    let inject = format!("inject.file={}", rules.display());
    let count = |number: u32| number.to_string();
    let said = Command::new(program)
        .args(["demo", "--lab", "--json", "--depth", "2", "--set", &inject])
        .args(["--receivers", &count(RECEIVERS), "--rate", &count(RATE)])
        .args(["--messages", &count(MESSAGES), "--dir"])
        .arg(dir)
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&said.stdout);
    let json: serde_json::Value = serde_json::from_str(&text)
        .map_err(|_| format!("the demo failed: {}", String::from_utf8_lossy(&said.stderr)))?;
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or(f64::NAN);
    let row =
        [number(&json["oml_us"]["p50"]), number(&json["oml_us"]["p99"]), number(&json["p_f"])];
    Ok((row, Settings::load(&dir.join("evenfall.toml"), &[inject])?))
}

/// The same run in the simulator.
fn simulated(model: &Model, settings: &Settings, seed: u64) -> Row {
    let params = OverlayParams {
        config: settings.multicast,
        receivers: RECEIVERS,
        rate: RATE.into(),
        size: MESSAGE_BYTES,
        duration: Duration::from_secs_f64(f64::from(MESSAGES) / f64::from(RATE)),
        warm_up: settings.course.warm_up,
        key: Some(SharedKey::new(1, [7; 32])),
        seed,
        ..OverlayParams::default()
    };
    let results = run(&params.on(model, Stack::Sockets)).results;
    [results.oml_us.p50, results.oml_us.p99, results.p_f.unwrap_or(f64::NAN)]
}

fn column(rows: &[Row], at: usize) -> Vec<f64> {
    rows.iter().map(|row| row[at]).collect()
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let model = Model::named(&arguments.next().unwrap_or("namespaces".into()))?;
    let runs: u32 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let seeds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("delays");
    std::fs::write(&file, rules(&model)?)?;
    let (mut there, mut settings) = (Vec::new(), None);
    for number in 1..=runs {
        let (row, of) =
            real(&product::program(), &dir.path().join(format!("run-{number}")), &file)?;
        eprintln!("real run {number}: {row:?}");
        there.push(row);
        settings = Some(of);
    }
    let settings = settings.ok_or("RUNS must be above 0")?;
    let here: Vec<Row> = (1..=seeds).map(|seed| simulated(&model, &settings, seed)).collect();
    println!("model {}, {RECEIVERS} receivers, {RATE} messages/s, {MESSAGES} messages", model.name);
    println!("| figure | real | +- | simulated | +- | simulated / real |");
    println!("|---|---|---|---|---|---|");
    let mut is_close = true;
    for (at, name) in NAMES.iter().enumerate() {
        let (real, ours) = (column(&there, at), column(&here, at));
        let [real_mean, ours_mean] = [&real, &ours].map(|all| mean(all).unwrap_or(f64::NAN));
        let half = |all: &[f64]| half_width(all, 0.05).unwrap_or(f64::NAN);
        let ratio = ours_mean / real_mean;
        is_close &= (ratio - 1.0).abs() <= AGREEMENT;
        println!(
            "| {name} | {real_mean:.4} | {:.4} | {ours_mean:.4} | {:.4} | {ratio:.3} |",
            half(&real),
            half(&ours)
        );
    }
    if is_close {
        println!("all figures agree within {:.0} %", AGREEMENT * 100.0);
        Ok(())
    } else {
        Err(format!("a figure is off by more than {:.0} %", AGREEMENT * 100.0).into())
    }
}
