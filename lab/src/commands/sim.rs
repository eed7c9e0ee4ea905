//! `evenfall sim`: runs the machines of the product in the simulator.

mod campaign;
mod clock;
mod consensus;
mod figures;
mod files;
mod placement;
mod recorded;
pub(super) mod seeds;
mod shuffle;
mod shuffle_study;
mod sort;
mod trading;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Subcommand, ValueEnum};
use evenfall_campaigns::model::{Model, Stack};
use evenfall_campaigns::multicast::campaign::FAULTS;
use evenfall_campaigns::multicast::{OverlayParams, OverlayRun, RunProgress, run_seen};
use evenfall_core::Hedging;
use evenfall_feed_formats::pace::{self, Pace};
use evenfall_feed_formats::source::MessageSource;
use evenfall_multicast_machine::config::{Deadline, Rule, Scheme};
use evenfall_multicast_machine::{Config, Mode, SharedKey};
use evenfall_multicast_service::publisher::MESSAGE_BYTES_MAX;
use evenfall_multicast_service::report::{Report, RunInfo};
use evenfall_studies::tables::overlay::Effort;
use evenfall_studies::tables::{
    Table, clock_parts, clocks, consensus as consensus_study, hedging, hold, orders, overlay,
    replacement, rivals, sensitivity, time, trading as trading_study,
};
use serde_json::Value;

use evenfall_multicast_service::report::text;
use evenfall_runtime::program::Outcome;
use evenfall_runtime::progress::Progress;
use humantime::{format_duration, parse_duration};

/// Arguments of `evenfall sim`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Multicast in a simulated cloud region.
    Multicast(Box<Multicast>),
    /// A campaign of faults: many seeds, or the events of one seed.
    Campaign(campaign::Args),
    /// A shuffle on a fat tree, by our shuffle or a rival, compared with the bound of its links.
    Shuffle(Box<shuffle::Args>),
    /// MilliSort on the network of its thesis; its tables beside ours.
    Sort(sort::SimSortArgs),
    /// A query over the rows of many servers, on the network of MilliSort's thesis.
    Burst(sort::SimBurstArgs),
    /// Bulk reads in a data centre: which copy, over which path.
    Files(files::Args),
    /// One order of requests over sites or racks: rate, times, bytes on wide links.
    #[command(alias = "order")]
    Consensus(Box<consensus::Args>),
    /// One time for all nodes: errors and bounds of clocks, compared with NTP-style and PTP-style.
    Clock(Box<clock::Args>),
    /// Four participants trade on a feed: whose orders come first, by the way of sending.
    Trading(Box<trading::SimTradingArgs>),
    /// Tables that compare with the papers' figures. docs/results/ shows them.
    Study(Box<Study>),
}

/// A table to make.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// Delivery windows and P(F), the share of messages in time everywhere, by the error of clocks.
    Clocks,
    /// Errors and bounds of clocks that nodes find by themselves, by load, budget and fault.
    Time,
    /// What coded probes, hulls and loops each gain: errors of clocks without them.
    ClockParts,
    /// Hedging over random links, with independent copies and with real siblings.
    Hedging,
    /// Overall latency (OML) by depth and fan-out.
    Shapes,
    /// OML percentiles and windows of every mode, 100 receivers.
    Modes,
    /// The published runs of 1,000 receivers and more, and variants of 100.
    Scale,
    /// A copy made by a switch, two machines for each participant, packets sprayed over paths, and
    /// the shapes that a linear cost picks, beside unicast and trees. Then whose order is first at
    /// the exchange: CloudEx, Jasper, DBO and first come.
    Rivals,
    /// Every published curve of the multicast beside ours, and the error of each.
    Figures,
    /// The profit of four participants by the way of sending, and what cheating gains.
    Trading,
    /// P(F) by number of receivers and hedging.
    Fairness,
    /// P(F) and the price of the hold at a target, at a steady pace and at a feed's own times.
    Goal,
    /// P(F) against held overall latency.
    Curve,
    /// The rule for the hold, with each of its constants removed, halved and doubled.
    Hold,
    /// How far each headline moves when a number of the model is wrong by its stated error.
    Sensitivity,
    /// Planners of trees on pools fitted to public measurements.
    Placement,
    /// Holds and late frames when a proxy's host turns slow, with live re-placement and without.
    Replacement,
    /// The figures of the shuffle thesis; a stopped study can be continued.
    Shuffle,
    /// The figures of the Mayflower thesis.
    Files,
    /// Figures 4.4 to 4.7 of the thesis on Canopus, with its rivals.
    #[value(alias = "order")]
    Consensus,
}

/// Arguments of `evenfall sim study`.
#[derive(clap::Args, Debug)]
struct Study {
    /// The table to make.
    name: Name,
    /// Numbers of receivers. fairness and goal take all of them. curve and clocks take the first,
    /// and time and clock-parts take the first as their number of nodes.
    #[arg(long, value_delimiter = ',', default_value = "100,1000,5000")]
    receivers: Vec<u32>,
    /// Extra copies (for curve).
    #[arg(long, default_value_t = Hedging::DEFAULT)]
    hedging: Hedging,
    /// Messages in every run, or orders (for trading). By default, each study has its own number.
    #[arg(long)]
    messages: Option<u32>,
    /// Share of messages that the on-time rule brings to every receiver in time (for goal
    /// and hold).
    #[arg(long, value_name = "SHARE", default_value_t = Deadline::default().target)]
    target: f64,
    /// A feed file. The study also sends messages at the times of this feed (for goal and hold). At
    /// most 20,000 messages of the feed are used, and at most --messages.
    #[arg(long, value_name = "FILE")]
    feed: Option<PathBuf>,
    /// The directory of a run, for instance of a demo. The study also uses the frames of this run
    /// (for hold). May be repeated.
    #[arg(long, value_name = "DIR")]
    run: Vec<PathBuf>,
    /// The cloud: aws, gcp, quiet, namespaces, or the path of a file of the same form. By default
    /// aws; for placement gcp, whose machines were measured in pairs; for consensus none.
    #[arg(long, value_name = "NAME|FILE", value_parser = Model::named)]
    model: Option<Model>,
    /// How hosts send and receive: sockets, or kernel-bypass as in the published measurements.
    #[arg(long, default_value = "kernel-bypass")]
    stack: Stack,
    /// First seed of every row. For placement, the seed of the first pool.
    #[arg(long, default_value_t = 1, value_parser = seeds::first_seed())]
    seed: u64,
    /// Seeds of every row of the studies of the multicast, and pools of every row of placement. By
    /// default 5, 2 for figures, 3 for trading and rivals, 10 for replacement, 50 for placement,
    /// and 1 for consensus.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: Option<u32>,
    /// Draw the windows (for clocks), or the loads of links or the times of reads (for files,
    /// figures morning and 3.3b), into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Processor time of a write at one replica (for consensus).
    #[arg(long, default_value = "130ns", value_name = "DURATION", value_parser = parse_duration)]
    write_cost: Duration,
    #[command(flatten)]
    placement: placement::Args,
    #[command(flatten)]
    shuffle: shuffle_study::Args,
    #[command(flatten)]
    figures: figures::FiguresArgs,
    /// Print the table as JSON instead of Markdown.
    #[arg(long)]
    json: bool,
}

/// Arguments of `evenfall sim multicast`.
#[derive(clap::Args, Debug)]
#[command(allow_negative_numbers = true)]
struct Multicast {
    /// Number of receivers.
    #[arg(long, default_value_t = 100)]
    receivers: u32,
    /// Hops from the root to a receiver. By default, the decimal logarithm of the number of
    /// receivers, rounded.
    #[arg(long)]
    depth: Option<u8>,
    /// Children of the root and of each proxy. By default 10, or the smallest number that reaches
    /// all receivers in --depth hops.
    #[arg(long)]
    fanout: Option<u16>,
    /// Extra copies that each node below the first layer gets.
    #[arg(long, default_value_t = Hedging::DEFAULT)]
    hedging: Hedging,
    /// The senders of extra copies: siblings (of the parent), or extra (proxies beside the tree).
    #[arg(long, default_value = "siblings", value_parser = named::<Scheme>)]
    scheme: Scheme,
    /// How messages travel: unicast, tree, hedge, release or cloudex.
    #[arg(long, default_value = "release", value_parser = named::<Mode>)]
    mode: Mode,
    /// The rule for deadlines: on-time or max-p95.
    #[arg(long, default_value = "on-time", value_parser = named::<Rule>)]
    rule: Rule,
    /// Share of messages that the on-time rule brings to every receiver before the deadline.
    #[arg(long, value_name = "SHARE", default_value_t = Deadline::default().target)]
    target: f64,
    /// Trees side by side, over which the feed is sharded.
    #[arg(long, default_value_t = 1)]
    trees: u32,
    /// Messages per second.
    #[arg(long, value_name = "MSG/S", default_value_t = 5_000.0)]
    rate: f64,
    /// Bytes of a message.
    #[arg(long, default_value_t = 40)]
    size: usize,
    /// Send at the times of this feed file instead of a steady --rate. The warm-up keeps the rate.
    #[arg(long)]
    feed: Option<PathBuf>,
    /// Factor by which the feed's own times are sped up.
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Take at most this many messages from --feed.
    #[arg(long)]
    messages: Option<usize>,
    /// Duration of the feed in simulated time.
    #[arg(long, default_value = "2s", value_name = "DURATION", value_parser = parse_duration)]
    duration: Duration,
    /// The cloud: aws, gcp, quiet, namespaces, or the path of a file of the same form.
    #[arg(long, value_name = "NAME|FILE", default_value = "aws", value_parser = Model::named)]
    model: Model,
    /// How hosts send and receive: sockets, or kernel-bypass as in the published measurements.
    #[arg(long, default_value = "sockets")]
    stack: Stack,
    /// Clocks of hosts are wrong by up to this much, ahead or behind, instead of the model's error.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    clock_error: Option<Duration>,
    /// Every host finds its time by the product's own clock, over the simulated network, and the
    /// feed begins when the clocks have settled, after 12.5 s of simulated time.
    #[arg(long, conflicts_with = "clock_error")]
    clock_mesh: bool,
    /// Seed of the run. The same seed gives the same run on any machine.
    #[arg(long, default_value_t = 1, value_parser = seeds::first_seed())]
    seed: u64,
    /// Run under this many seeds, from --seed on. Prints means with 95 % intervals by Student's t.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Cores that share a single run. The results are those of one core. With --seeds each seed
    /// runs on one core, and this option is refused.
    #[arg(
        long,
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=CORES_MAX as i64),
        conflicts_with = "seeds"
    )]
    cores: u16,
    /// Seal and authenticate datagrams under a key.
    #[arg(long)]
    key: bool,
    /// The same as `sim campaign multicast --seed SEED`.
    #[arg(long, hide = true)]
    faults: bool,
    /// Write the page of the run here.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Reads a value by its name in settings files.
fn named<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(Value::String(text.to_owned())).map_err(|error| error.to_string())
}

/// Runs the command.
pub fn main(args: &Args) -> Outcome {
    match &args.command {
        Command::Multicast(args) if args.faults => {
            campaign::seed(&FAULTS, args.seed, None, args.json)
        }
        Command::Multicast(args) => multicast(args),
        Command::Campaign(args) => campaign::main(args),
        Command::Shuffle(args) => shuffle::main(args),
        Command::Sort(args) => sort::run_sort(args),
        Command::Burst(args) => sort::run_query(args),
        Command::Files(args) => files::main(args),
        Command::Consensus(args) => consensus::main(args),
        Command::Clock(args) => clock::main(args),
        Command::Trading(args) => trading::main(args),
        Command::Study(args) => study(args),
    }
}

/// Receivers of a simulated run over all of its trees at most. A receiver takes some 150 KB.
const RECEIVERS_MAX: u64 = 100_000;
/// Nodes of a simulated run at most: that many receivers below trees that fan out by ten.
const NODES_MAX: u64 = 112_000;
/// Largest error of the clocks of hosts.
const CLOCK_ERROR_MAX: Duration = Duration::from_secs(3_600);
/// The highest rate of a simulated feed, in messages a second. A tree sends far fewer.
const RATE_MAX: f64 = 10_000_000.0;
/// Messages of a simulated run at most. The ledger keeps the times of each message.
const MESSAGES_MAX: f64 = 100_000_000.0;
/// Limit of the cores that share a run.
const CORES_MAX: usize = 64;
/// Trials of the hedging study, as many as in the paper.
const TRIALS: usize = 100_000;
/// Messages that a study takes of a feed: two minutes of one busy symbol.
const FEED_MESSAGES: usize = 20_000;

/// Seeds of every row of the studies of trading and of rivals, as in docs/results.
const SEEDS_OF_TRADING: u32 = 3;

/// Refuses receivers, messages and a target that no study can run with. Returns the rule of the
/// deadline.
fn checked(args: &Study) -> Result<Deadline, Box<dyn std::error::Error>> {
    let least = if matches!(args.name, Name::Time | Name::ClockParts) { 2 } else { 1 };
    let fits = |receivers: &u32| (least..=RECEIVERS_MAX).contains(&u64::from(*receivers));
    if let Some(wrong) = args.receivers.iter().find(|receivers| !fits(receivers)) {
        let error =
            format!("--receivers {wrong}: must be {least} or more, {RECEIVERS_MAX} at most");
        return Err(error.into());
    }
    if args.messages == Some(0) {
        return Err("--messages 0: must be 1 or more".into());
    }
    let deadline = Deadline { target: args.target, ..Deadline::default() };
    Config { deadline, ..Config::default() }.check()?;
    Ok(deadline)
}

/// How much a study spends, unless it has its own rule.
fn effort_of(args: &Study, model: &Model) -> Effort {
    let standard = Effort::on(model.clone());
    let (messages, seeds) = match args.name {
        Name::Figures => {
            let size = args.figures.row_size();
            (size.messages, size.seeds)
        }
        Name::Trading | Name::Rivals => (standard.messages, SEEDS_OF_TRADING),
        _ => (standard.messages, standard.seeds),
    };
    let messages = args.messages.unwrap_or(messages);
    let seeds = args.seeds.unwrap_or(seeds);
    // The runs of this study warm up by half of their messages (`FigureScene::params`).
    let is_figures = matches!(args.name, Name::Figures);
    let warm_up = if is_figures { messages / 2 } else { standard.warm_up };
    Effort { messages, warm_up, seed: args.seed, seeds, stack: args.stack, ..standard }
}

fn study(args: &Study) -> Outcome {
    let usual = if matches!(args.name, Name::Placement) { "gcp" } else { "aws" };
    let model = args.model.clone().map_or_else(|| Model::named(usual), Ok)?;
    writable("--svg", args.svg.as_deref())?;
    let effort = effort_of(args, &model);
    let shown = Progress::new();
    let progress = &mut |name: &str| shown.stage(name, None);
    let one = *args.receivers.first().ok_or("--receivers: give a number")?;
    let deadline = checked(args)?;
    let most = args.messages.map_or(FEED_MESSAGES, |most| FEED_MESSAGES.min(most as usize));
    let feed = args.feed.as_deref().map(|path| times(path, 1.0, most)).transpose()?;
    if let Some(tables) = study_of_tables(args, &effort, progress) {
        shown.end();
        return show(&tables?, args.json);
    }
    if matches!(args.name, Name::Figures) {
        let text = figures::text(&args.figures, &effort, args.json, progress)?;
        shown.end();
        say_part!("{text}");
        return Ok(());
    }
    let table: Table = match args.name {
        Name::Hedging => {
            hedging::monte_carlo(args.messages.map_or(TRIALS, |n| n as usize), args.seed)
        }
        Name::Shapes => overlay::shapes(&effort, progress),
        Name::Modes => overlay::modes(&effort, progress),
        Name::Scale => overlay::scale(&effort, progress),
        Name::Fairness => overlay::fairness(&effort, &args.receivers, progress),
        Name::Replacement => {
            replacement::table(&model, args.seed, args.seeds.unwrap_or(10), progress)
        }
        Name::Trading => {
            let orders = args.messages.unwrap_or(evenfall_studies::trading::ORDERS);
            trading_study::table(&effort, orders, progress)
        }
        Name::Curve => overlay::curve(&effort, one, args.hedging, progress),
        Name::Goal => overlay::goal(&effort, &args.receivers, args.target, feed.as_ref(), progress),
        Name::Hold => {
            let mut traces = Vec::new();
            if !args.run.is_empty() {
                let runs = args.run.iter().map(|run| recorded::frames(run));
                let runs = runs.collect::<Result<_, _>>()?;
                traces.push(hold::Trace { name: "recorded".into(), runs });
            }
            traces.extend(hold::traces(&effort, feed.as_ref(), progress));
            hold::table(&traces, deadline, progress)
        }
        Name::Clocks => {
            let (table, drawing) = clocks::table(&effort, one, progress);
            if let Some((path, drawing)) = args.svg.as_ref().zip(drawing) {
                std::fs::write(path, drawing).map_err(|e| format!("{}: {e}", path.display()))?;
            }
            table
        }
        Name::Time => time::table(one, (args.seed, effort.seeds), progress),
        Name::Sensitivity => sensitivity::table(&effort, progress),
        Name::Placement => {
            let (seed, seeds, messages) = (args.seed, args.seeds, args.messages);
            placement::table(&args.placement, model, seed, seeds, messages, progress)?
        }
        // These make several tables, and have been made.
        Name::Figures
        | Name::Rivals
        | Name::Shuffle
        | Name::Files
        | Name::Consensus
        | Name::ClockParts => return Ok(()),
    };
    shown.end();
    show(&[table], args.json)
}

/// The cores of this machine, as many as may share a run.
fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(CORES_MAX)
}

/// The tables of a study that has several; `None` for a study of one table.
fn study_of_tables(
    args: &Study,
    effort: &Effort,
    progress: &mut dyn FnMut(&str),
) -> Option<Result<Vec<Table>, String>> {
    Some(match args.name {
        Name::Shuffle => shuffle_study::tables(&args.shuffle, progress),
        Name::Files => {
            let shuffle_study::Args { figure, runs, .. } = &args.shuffle;
            files::tables(figure, args.seed, *runs, args.svg.as_deref(), progress)
        }
        Name::Consensus => {
            let effort = consensus_study::ConsensusEffort {
                write_cost: args.write_cost,
                model: args.model.clone(),
                seed: args.seed,
                seeds: args.seeds.unwrap_or(1),
                cores: all_cores(),
            };
            consensus_study::tables(&args.shuffle.figure, &effort, progress)
        }
        Name::ClockParts => {
            let nodes = args.receivers.first().copied().unwrap_or(100);
            Ok(clock_parts::tables(nodes, args.seed, effort.seeds, progress))
        }
        Name::Rivals => rivals_tables(args, effort, progress),
        _ => return None,
    })
}

/// The tables of the rivals, or those that --figure names.
fn rivals_tables(
    args: &Study,
    effort: &Effort,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Table>, String> {
    const PARTS: [&str; 3] = ["ways", "shapes", "orders"];
    let chosen = &args.shuffle.figure;
    if let Some(name) = chosen.iter().find(|name| !PARTS.contains(&name.as_str())) {
        return Err(format!("--figure {name}: there are {}", PARTS.join(", ")));
    }
    let participants = args.receivers.first().copied().unwrap_or(100);
    let is_wanted =
        |part: &&str| chosen.is_empty() || chosen.iter().any(|name| name.as_str() == *part);
    let mut tables = Vec::new();
    for part in PARTS.into_iter().filter(is_wanted) {
        tables.push(match part {
            "ways" => rivals::table(effort, participants, progress),
            "shapes" => rivals::shapes_by_cost(effort, &[100, 1_000], progress),
            _ => orders::table(effort, participants, progress),
        });
    }
    Ok(tables)
}

fn show(tables: &[Table], json: bool) -> Outcome {
    for table in tables {
        if json {
            say!("{}", serde_json::to_string(table)?);
        } else {
            say!("{}", table.markdown());
        }
    }
    Ok(())
}

/// Reports progress on a terminal and in a log.
fn told(shown: &Progress) -> impl FnMut(RunProgress) {
    let mut words = "";
    move |seen| {
        let (stage, steps) = match seen {
            RunProgress::Forming => ("forming the tree", None),
            RunProgress::Sending { at, of, .. } => {
                let [at, of] = [at, of].map(|time| time.as_millis() as u64);
                ("simulating milliseconds of the feed", Some((at, of)))
            }
            RunProgress::Ending => ("waiting for the last receivers", None),
        };
        if std::mem::replace(&mut words, stage) != stage {
            shown.stage(stage, steps.map(|(_, of)| of));
        }
        if let Some((at, of)) = steps {
            shown.at(at, of);
        }
    }
}

/// The results of a run as one object.
fn object(done: &OverlayRun) -> Result<Value, serde_json::Error> {
    let mut json = serde_json::to_value(&done.results)?;
    json["finished"] = done.finished.into();
    json["hops"] = done.hops.into();
    if let Some(clocks) = done.clocks {
        json["clocks"] = serde_json::to_value(clocks)?;
    }
    json["digest"] = format!("{:016x}", done.digest).into();
    Ok(json)
}

const UNFINISHED: &str = "some receivers lacked messages when the run was stopped, so that its \
                          figures are of the other messages: the losses, delays or pauses of the \
                          model are larger, or its queues shorter, than repairs can follow";

/// The same run under several seeds.
fn several(args: &Multicast) -> Outcome {
    if args.html.is_some() {
        return Err("--html: is the page of a single run, and --seeds asks for several".into());
    }
    let params = params(args)?;
    let run = |seed| run_seen(&OverlayParams { seed, ..params.clone() }, &mut |_| {});
    let runs = seeds::several((args.seed, args.seeds), args.json, run, object)?;
    let unfinished = runs.iter().filter(|run| !run.finished).count();
    match unfinished {
        0 => Ok(()),
        _ => Err(format!("{unfinished} of {} runs: {UNFINISHED}", runs.len()).into()),
    }
}

/// Refuses a file that cannot be written, before a long run whose result would be lost. Other
/// things than files are not tried, because a pipe would be used up.
fn writable(option: &str, path: Option<&Path>) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    let is_new = path.symlink_metadata().is_err();
    if is_new || path.is_file() || path.is_dir() {
        let opened = File::options().create(true).append(true).open(path);
        opened.map_err(|error| format!("{option} {}: {error}", path.display()))?;
    }
    if is_new { std::fs::remove_file(path).map_err(|error| error.to_string()) } else { Ok(()) }
}

fn multicast(args: &Multicast) -> Outcome {
    if args.seeds > 1 {
        return several(args);
    }
    let params = params(args)?;
    writable("--html", args.html.as_deref())?;
    let started = Instant::now();
    let shown = Progress::new();
    let done = run_seen(&params, &mut told(&shown));
    let took = started.elapsed().as_secs_f64();
    shown.end();
    if let Some(path) = &args.html {
        let info =
            RunInfo { title: format!("simulated run, seed {}", args.seed), ..RunInfo::default() };
        let (results, series) = (done.results.clone(), done.series.clone());
        let outcome = evenfall_multicast_report::LedgerOutcome { results, series };
        let (logs, memory, warnings) = (Vec::new(), Vec::new(), Vec::new());
        let report = Report { info, outcome, logs, memory, clocks: Vec::new(), warnings };
        report.write_html(path)?;
    }
    if args.json {
        let mut json = object(&done)?;
        json["seed"] = args.seed.into();
        json["hops_per_s"] = (done.hops as f64 / took).round().into();
        say!("{json}");
    } else {
        say_part!("{}", text::table(&done.results));
        say!(
            "{} hops in {took:.1} s, {:.1} M a second; seed {}, digest {:016x}",
            done.hops,
            done.hops as f64 / took / 1e6,
            args.seed,
            done.digest
        );
    }
    if done.finished { Ok(()) } else { Err(UNFINISHED.into()) }
}

/// When the first `most` messages of the feed file are due, counted from the first.
fn times(
    path: &Path,
    speed: f64,
    most: usize,
) -> Result<Arc<[Duration]>, Box<dyn std::error::Error>> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| format!("--feed {name}: {error}"))?;
    let mut source = evenfall_feed_formats::file::open(Box::new(file), &name)?;
    let mut pace = Pace::new(pace::PaceMode::OwnTimes { speed, silence: Duration::MAX })?;
    let mut times = Vec::new();
    while times.len() < most {
        let Some(message) = source.next_message()? else { break };
        times.push(pace.due(&message));
    }
    if times.is_empty() {
        return Err(format!("--feed {name}: has no message").into());
    }
    Ok(times.into())
}

/// Refuses runs without a receiver, and runs that are too large.
fn check_size(receivers: u64, trees: u64, params: &OverlayParams) -> Result<(), String> {
    if !(1..=RECEIVERS_MAX).contains(&(receivers * trees)) {
        return Err(format!(
            "--receivers {receivers} and --trees {trees}: at least one of each, and at most \
             {RECEIVERS_MAX} receivers over all trees"
        ));
    }
    let nodes = trees * (1 + u64::from(params.proxies()) + receivers);
    if nodes > NODES_MAX {
        return Err(format!(
            "--receivers {receivers}, --trees {trees}, --depth and --fanout make {nodes} nodes, \
             and a run has {NODES_MAX} at most"
        ));
    }
    Ok(())
}

fn params(args: &Multicast) -> Result<OverlayParams, Box<dyn std::error::Error>> {
    if args.size > MESSAGE_BYTES_MAX {
        let size = args.size;
        return Err(
            format!("--size {size}: a message has {MESSAGE_BYTES_MAX} bytes at most").into()
        );
    }
    let mut params = OverlayParams {
        receivers: args.receivers,
        trees: args.trees,
        rate: args.rate,
        size: args.size,
        duration: args.duration,
        times: args
            .feed
            .as_deref()
            .map(|path| times(path, args.speed, args.messages.unwrap_or(usize::MAX)))
            .transpose()?,
        cores: args.cores.into(),
        seed: args.seed,
        keepers: args.clock_mesh,
        key: args.key.then(|| SharedKey::new(1, [7; 32])),
        ..OverlayParams::default()
    };
    params = params.on(&args.model, args.stack);
    if let Some(error) = args.clock_error {
        if error > CLOCK_ERROR_MAX {
            let most = format_duration(CLOCK_ERROR_MAX);
            return Err(format!("--clock-error {}: at most {most}", format_duration(error)).into());
        }
        params = params.with_clock_error(error);
    }
    let config = &mut params.config;
    config.mode = args.mode;
    config.shape.depth = args.depth;
    config.shape.fanout = args.fanout;
    config.shape.hedging = args.hedging;
    config.shape.scheme = args.scheme;
    config.deadline.rule = args.rule;
    config.deadline.target = args.target;
    config.check()?;
    check_size(args.receivers.into(), args.trees.into(), &params)?;
    let fits = args.rate > 0.0 && args.rate <= RATE_MAX;
    if !fits {
        return Err(format!("--rate {}: must be above 0, and at most {RATE_MAX}", args.rate).into());
    }
    if args.feed.is_none() {
        let (duration, messages) = (args.duration, args.rate * args.duration.as_secs_f64());
        if duration.is_zero() || messages > MESSAGES_MAX {
            let duration = format_duration(duration);
            return Err(format!(
                "--duration {duration}: must be above 0, and at most {MESSAGES_MAX} messages long \
                 at --rate {}",
                args.rate
            )
            .into());
        }
    }
    Ok(params)
}
