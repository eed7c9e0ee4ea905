//! `evenfall sim trading`: four participants trade on a simulated feed.

use std::time::Duration;

use evenfall_campaigns::model::{Model, Stack};
use evenfall_campaigns::multicast::OverlayParams;
use evenfall_core::time::nanos;
use evenfall_multicast_machine::Mode;
use evenfall_multicast_machine::config::Rule;
use evenfall_runtime::program::Outcome;
use evenfall_runtime::progress::Progress;
use evenfall_studies::trading::{MarketOutcome, OrderStamping, PARTICIPANTS, TradingScene, run};
use serde_json::Value;

use super::{named, seeds, told};

/// Arguments of `evenfall sim trading`.
#[derive(clap::Args, Debug)]
pub struct SimTradingArgs {
    /// How trades travel: unicast, tree, hedge, release or cloudex.
    #[arg(long, default_value = "release", value_parser = named::<Mode>)]
    mode: Mode,
    /// Receivers. The first two and the last two trade.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(4..=10_000))]
    receivers: u32,
    /// Orders that the exchange fills.
    #[arg(
        long,
        default_value_t = 5_000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    orders: u32,
    /// Trades per second.
    #[arg(long, value_name = "MSG/S", default_value_t = 5_000.0)]
    rate: f64,
    /// The rule for deadlines: on-time or max-p95.
    #[arg(long, default_value = "on-time", value_parser = named::<Rule>)]
    rule: Rule,
    /// A participant whose clock is ahead, such as 1=2us. May be repeated.
    #[arg(long, value_name = "1-4=DURATION", value_parser = clock)]
    clock_ahead: Vec<(usize, Duration)>,
    /// A participant whose clock is behind. May be repeated.
    #[arg(long, value_name = "1-4=DURATION", value_parser = clock)]
    clock_behind: Vec<(usize, Duration)>,
    /// A participant that acts on messages when they arrive, and not at their deadlines. May be
    /// repeated.
    #[arg(long, value_name = "1-4", value_parser = participant)]
    opens_early: Vec<usize>,
    /// A participant that writes the deadline as its stamp when it has the message earlier. May be
    /// repeated.
    #[arg(long, value_name = "1-4", value_parser = participant)]
    writes_deadline: Vec<usize>,
    /// Whose time an order has: the participant's; not-early refuses stamps before the deadline;
    /// release is the time at which a gateway of the exchange releases the message.
    #[arg(long, default_value = "participant", value_parser = parse_stamping)]
    stamps: OrderStamping,
    /// The cloud: aws, gcp, quiet, namespaces, or the path of a file of the same form.
    #[arg(long, value_name = "NAME|FILE", default_value = "aws", value_parser = Model::named)]
    model: Model,
    /// How hosts send and receive: sockets, or kernel-bypass as in the published measurements.
    #[arg(long, default_value = "kernel-bypass")]
    stack: Stack,
    /// Seed of the run.
    #[arg(long, default_value_t = 1, value_parser = seeds::first_seed())]
    seed: u64,
    /// Run under this many seeds, from --seed on. Prints means with 95 % intervals by Student's t.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The place of a participant in the market, from its number.
fn participant(text: &str) -> Result<usize, String> {
    let number: Option<usize> =
        text.parse().ok().filter(|number| (1..=PARTICIPANTS).contains(number));
    number.map(|number| number - 1).ok_or_else(|| format!("a participant from 1 to {PARTICIPANTS}"))
}

/// The longest error of a participant's clock.
const CLOCK_MAX: Duration = Duration::from_secs(1);

fn clock(text: &str) -> Result<(usize, Duration), String> {
    let (whose, error) =
        text.split_once('=').ok_or("a participant and a duration, such as 1=2us")?;
    let error = humantime::parse_duration(error).map_err(|error| error.to_string())?;
    if error > CLOCK_MAX {
        return Err("the error of a clock is at most 1s".into());
    }
    Ok((participant(whose)?, error))
}

fn parse_stamping(text: &str) -> Result<OrderStamping, String> {
    match text {
        "participant" => Ok(OrderStamping::Participant),
        "not-early" => Ok(OrderStamping::NotEarly),
        "release" => Ok(OrderStamping::Release),
        _ => Err("participant, not-early or release".into()),
    }
}

fn scene(args: &SimTradingArgs) -> Result<TradingScene, Box<dyn std::error::Error>> {
    let fits = args.rate >= 1.0 && args.rate <= 1e6;
    if !fits {
        return Err(format!("--rate {}: must be from 1 to 1000000", args.rate).into());
    }
    let mut scene = TradingScene::on(&args.model, args.stack, args.mode);
    scene.orders = args.orders;
    scene.stamping = args.stamps;
    let params = &mut scene.params;
    (params.receivers, params.rate) = (args.receivers, args.rate);
    params.config.deadline.rule = args.rule;
    params.config.check()?;
    let signed = |error: Duration| i64::try_from(nanos(error)).unwrap_or(i64::MAX);
    for (whose, error) in &args.clock_ahead {
        scene.conducts[*whose].ahead_ns += signed(*error);
    }
    for (whose, error) in &args.clock_behind {
        scene.conducts[*whose].ahead_ns -= signed(*error);
    }
    args.opens_early.iter().for_each(|whose| scene.conducts[*whose].opens_early = true);
    args.writes_deadline.iter().for_each(|whose| scene.conducts[*whose].writes_deadline = true);
    Ok(scene)
}

fn object(market: &MarketOutcome) -> serde_json::Result<Value> {
    serde_json::to_value(market)
}

/// Runs the command.
pub fn main(args: &SimTradingArgs) -> Outcome {
    let scene = scene(args)?;
    let mode = serde_json::to_value(args.mode)?;
    if args.seeds > 1 {
        let one = |seed| {
            let params = OverlayParams { seed, ..scene.params.clone() };
            run(&TradingScene { params, ..scene.clone() }, &mut |_| {})
        };
        let with_mode = |market: &MarketOutcome| {
            let mut json = object(market)?;
            json["mode"] = mode.clone();
            Ok(json)
        };
        seeds::several((args.seed, args.seeds), args.json, one, with_mode)?;
        return Ok(());
    }
    let params = OverlayParams { seed: args.seed, ..scene.params.clone() };
    let shown = Progress::new();
    let market = run(&TradingScene { params, ..scene }, &mut told(&shown));
    shown.end();
    if args.json {
        let mut json = object(&market)?;
        json["mode"] = mode;
        json["seed"] = args.seed.into();
        say!("{json}");
        return Ok(());
    }
    say!("participant   profit   orders filled   refused");
    for seat in 0..PARTICIPANTS {
        say!(
            "P{}          {:>7.2} % {:>14} {:>9}",
            seat + 1,
            market.profit_share[seat],
            market.filled[seat],
            market.refused[seat]
        );
    }
    say!(
        "{} orders; last release minus first {:.1} us at the median{}",
        market.orders,
        market.window_p50_us,
        market.p_f.map_or(String::new(), |p_f| format!("; in time everywhere {p_f:.4}"))
    );
    Ok(())
}
