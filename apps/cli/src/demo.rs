//! `evenfall demo`: a whole run on this machine. Root, proxies and receivers are processes, and
//! their logs are judged afterwards.

mod capacity;
mod content;
mod faults;
mod folder;
mod forwarding;
mod modes;
mod participant;
mod processes;
mod record;
mod signed;
mod takeover;
#[cfg(feature = "trading")]
mod trading;
#[cfg(not(feature = "trading"))]
#[path = "demo/trading/lacking.rs"]
mod trading;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_core::Hedging;
use evenfall_feed_formats::pace::Gaps;
use evenfall_feed_formats::sharding::{ContentHash, trees_of};
use evenfall_feed_service::input;
use evenfall_feed_service::{Feed, Synthetic};
use evenfall_host::lab::Lab;
use evenfall_host::{interrupt, pin};
use evenfall_multicast_machine::{Config, Mode, Shape};
use evenfall_multicast_service::Settings;
use evenfall_multicast_service::report::{self, Report, RunInfo};
use evenfall_multicast_service::settings::{ClockSettings, MulticastNode, Planting, RunOptions};
use evenfall_runtime::settings::RunSettings;
use serde_json::Value;

use evenfall_runtime::progress::Progress;

use crate::watch::{LiveThread, PageOwner, open_browser};
use crate::{Outcome, Stopped};
use content::SentContent;
use evenfall_multicast_service::report::text;
use faults::{DemoFault, Harm};
pub use folder::write_key;
use folder::{Folder, KEY_FILE, PIPED_FEED, SETTINGS_FILE, write_file};
use forwarding::Forwarded;
use humantime::parse_duration;
use participant::{Doors, GATEWAY, GatewayWord, HandedOn, Participant};
use processes::PlayedFeed;
use signed::SignedRun;
use takeover::{Takeovers, Voting};
use trading::{Exchange, TradingOutcome};
pub(crate) use trading::{ParticipantSeat, take_part};
use verdict::{Judged, verdict};

/// Mean messages per second by default. Two cores carry this rate to twenty receivers with room for
/// bursts.
const RATE_DEFAULT: f64 = 2_500.0;
/// Shortest replay by default. Six seconds have enough messages for a 99th percentile.
const FIT_MIN: Duration = Duration::from_secs(6);
/// Longest replay by default. A demo with its start and its report then takes less than a minute.
const FIT_MAX: Duration = Duration::from_secs(30);
/// Distance between frames where processes outnumber cores, because a frame wakes all processes.
const COALESCE: Duration = Duration::from_micros(200);

/// Messages between two looks for a signal while a feed is read. Reading this many takes well below
/// a millisecond.
const LOOK_EVERY: u64 = 4_096;

/// Arguments of `evenfall demo`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// A market-data file: ITCH 5.0, pcap or LOBSTER, each plain, in gzip or in a zip; - for
    /// standard input. Without it the feed is generated.
    #[arg(long)]
    feed: Option<PathBuf>,
    /// Number of receivers.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    receivers: u32,
    /// Hops from the root to a receiver.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..))]
    depth: u8,
    /// Children of the root and of each proxy; without it, the smallest number that reaches all
    /// receivers.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    fanout: Option<u16>,
    /// Extra copies that each node below the first layer gets.
    #[arg(long, default_value_t = Hedging::DEFAULT)]
    hedging: Hedging,
    /// How messages travel: unicast, tree, hedge, release or cloudex.
    #[arg(long, default_value = "release", value_parser = mode)]
    mode: Mode,
    /// Play the same feed in the modes unicast, tree, hedge and release, one after the other, and
    /// compare their windows. Loopback has no network that could be uneven, so the paths to two of
    /// five receivers are made 100 us and 300 us longer. Each mode has a directory of its own in
    /// --dir.
    #[arg(long, conflicts_with_all = ["mode", "record"])]
    compare: bool,
    /// Trees side by side, over which symbols are sharded.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    trees: u32,
    /// Proxies beyond those that the tree needs, which replace slow or dead proxies.
    #[arg(long, default_value_t = 0)]
    spares: u32,
    /// Replay at this many messages per second.
    #[arg(
        long,
        value_name = "MSG/S",
        value_parser = above_zero,
        conflicts_with_all = ["speed", "fit"]
    )]
    rate: Option<f64>,
    /// Replay by the messages' own times, this many times as fast.
    #[arg(long, value_name = "TIMES", value_parser = above_zero, conflicts_with = "fit")]
    speed: Option<f64>,
    /// Replay by the messages' own times, scaled so that the whole feed takes this long, such as
    /// 30s. By default the replay takes 6 s to 30 s, at a mean of 2,500 messages per second at
    /// most. A longer feed keeps its own times and has its longest silences cut. A shorter feed is
    /// stretched.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "silence")]
    fit: Option<Duration>,
    /// Cut silences between two messages to this length, such as 500ms.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "rate")]
    silence: Option<Duration>,
    /// Messages to generate without --feed.
    #[arg(
        long,
        default_value_t = Synthetic::default().messages,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    messages: u64,
    /// Seed of the generated feed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Start two standbys beside the root. The three agree on every frame before it leaves, and a
    /// standby goes on with the feed when the root dies: try --fault kill:root@4.
    #[arg(long, conflicts_with = "trees")]
    standby: bool,
    /// Start an author: a process that reads the feed in place of the roots and publishes it to
    /// the root that leads. The author outlives the root. An author that is killed is started again
    /// after a second, and goes on where it was: try --fault kill:author@3.
    #[arg(long, conflicts_with = "trees")]
    author: bool,
    /// Give each process a host of its own, as a network namespace, instead of loopback; needs
    /// the user root.
    #[arg(long)]
    lab: bool,
    /// Authenticate every datagram and seal bodies under a fresh key.
    #[arg(long)]
    key: bool,
    /// Sign the feed: the root and its standbys get a signing key each, and every receiver checks
    /// that one of them wrote what it releases.
    #[arg(long)]
    signed: bool,
    /// The kind of port that moves datagrams: udp, tc, by which the kernel forwards at the
    /// proxies, or auto, by which each proxy takes the quicker one.
    #[arg(long, value_name = "KIND")]
    port: Option<String>,
    /// Harm a process while the feed runs: kill:NAME@SECONDS, pause:NAME@SECONDS+SECONDS,
    /// slow:NAME@SECONDS+DURATION, which delays all its datagrams from then on,
    /// step:NAME@SECONDS+DURATION (or -DURATION), which sets its host's clock, or, with --port tc,
    /// reload:NAME@SECONDS, which attaches its programs in the kernel anew. Times count from the
    /// first message, as in kill:proxy-1@3, pause:receiver-2@3+2 or slow:proxy-2@3+2ms. May be
    /// repeated. The processes are root, standby-1, ..., author, proxy-1, ..., receiver-1, ...
    #[arg(long)]
    fault: Vec<DemoFault>,
    /// Plant a wrong clock in every process, up to this offset and rate, as in 20ms,100ppm. The
    /// processes then measure each other's clocks, and the run is judged by the true clock.
    #[arg(long, value_name = "OFFSET,RATE")]
    plant_clocks: Option<Planting>,
    #[command(flatten)]
    trading: trading::TradingArgs,
    /// Directory of logs and page. Files of an earlier demo there are replaced.
    #[arg(long, default_value = "evenfall-demo")]
    dir: PathBuf,
    /// Record every message in a store in this directory. The recorder joins as one more receiver.
    #[arg(long, value_name = "DIR", conflicts_with = "lab")]
    record: Option<PathBuf>,
    /// Add a gateway, which hands each message on at its release to a participant without the key:
    /// as MoldUDP64, as plain datagrams, or sealed for it. The participant is an `evenfall tap`;
    /// that of MoldUDP64 loses 1 % of its datagrams on purpose, and asks for them again. The
    /// gateway counts as one more receiver.
    #[arg(long, value_enum, value_name = "PROTOCOL", conflicts_with_all = ["trees", "compare"])]
    gateway: Option<GatewayWord>,
    /// Change any setting, such as --set multicast.deadline.target=.999. The option may be given
    /// several times.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Open the live page of the run in a browser.
    #[arg(long, conflicts_with = "lab")]
    open: bool,
    /// Print the results as one JSON object.
    #[arg(long)]
    json: bool,
}

/// The error of a demo that ended before there was anything to judge. When a signal stopped the
/// demo, the program ends with the exit code of the signal.
fn stopped(words: &str) -> Box<dyn std::error::Error> {
    let Some(stopped) = Stopped::by_signal() else { return words.into() };
    aside!("evenfall: {words}");
    stopped.into()
}

fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && f64::is_finite(number) => Ok(number),
        _ => Err("must be a number above 0".to_owned()),
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    serde_json::from_value(Value::String(text.to_owned())).map_err(|error| error.to_string())
}

/// The contents of the feed, found by reading it before the run.
struct Expected {
    messages: u64,
    gaps: Gaps,
    hash: String,
    /// Where the feed is damaged. All messages before that place are to be sent.
    damage: Option<String>,
}

impl Expected {
    /// Refuses a feed that is damaged.
    fn check_damage(&self) -> Result<(), String> {
        let Some(damage) = &self.damage else { return Ok(()) };
        Err(format!("{damage}; the {} messages before this place were sent", self.messages))
    }
}

fn expect(
    feed: &Feed,
    trees: u32,
    progress: &Progress,
) -> Result<Expected, Box<dyn std::error::Error>> {
    let (words, steps) = match &feed.file {
        Some(file) => (format!("reading {}", file.display()), None),
        None => ("making the feed".to_owned(), Some(feed.synthetic.messages)),
    };
    progress.stage(&words, steps);
    let mut source = input::open(feed)?;
    let mut hash = ContentHash::new(trees as usize);
    let mut gaps = Gaps::default();
    let damage = loop {
        match source.next_message() {
            Ok(Some(message)) => {
                if hash.messages().is_multiple_of(LOOK_EVERY) {
                    if interrupt::raised() {
                        return Err(stopped("stopped before its processes were started"));
                    }
                    progress.at(hash.messages(), feed.synthetic.messages);
                }
                gaps.push(message.time_ns);
                for tree in trees_of(message.shard_key, trees) {
                    hash.update(tree as usize, &message.bytes);
                }
            }
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    Ok(Expected { gaps, messages: hash.messages(), hash: hash.finish_hex(), damage })
}

fn feed_of(args: &Args) -> Result<Feed, Box<dyn std::error::Error>> {
    let synthetic = Synthetic { seed: args.seed, messages: args.messages, ..Synthetic::default() };
    // The settings file lies in another directory than the directory to which the path is relative.
    let file = match &args.feed {
        Some(path) => {
            Some(fs::canonicalize(path).map_err(|e| format!("--feed {}: {e}", path.display()))?)
        }
        None => None,
    };
    Ok(Feed {
        file,
        synthetic,
        rate: args.rate,
        speed: args.speed.unwrap_or(1.0),
        fit: args.fit,
        silence: args.silence,
        ..Feed::default()
    })
}

/// Fits a feed without a pace of its own into the time of a demo.
fn set_pace(feed: &mut Feed, expected: &Expected) {
    let span = expected.gaps.span();
    let at_rate = Duration::from_secs_f64(expected.messages as f64 / RATE_DEFAULT);
    let fit = at_rate.max(span).clamp(FIT_MIN, FIT_MAX);
    if span > fit {
        // The bursts stay as they happened. If scaled, the bursts of an hour would come at once.
        feed.silence = Some(expected.gaps.silence_for(fit));
    } else {
        feed.fit = Some(fit);
    }
}

/// Writes the settings of the run to the place where every process reads them.
fn prepare(
    args: &Args,
    lab: Option<&Lab>,
    doors: Option<&Doors>,
    progress: &Progress,
) -> Result<(Settings, Expected), Box<dyn std::error::Error>> {
    let mut feed = feed_of(args)?;
    let expected = expect(&feed, args.trees, progress)?;
    let has_pace = args.rate.or(args.speed).is_some() || args.fit.or(args.silence).is_some();
    if !has_pace {
        set_pace(&mut feed, &expected);
    }
    let shape = Shape {
        depth: Some(args.depth),
        fanout: args.fanout,
        hedging: args.hedging,
        ..Shape::default()
    };
    let mut multicast = Config { mode: args.mode, shape, ..Config::default() };
    if lab.is_none() {
        // Loopback carries datagrams of 64 KiB whole, so a burst fits into few datagrams.
        multicast.framing.datagram_bytes = 16_000;
        multicast.framing.messages_max = 512;
    }
    let keyed = args.key || lab.is_some();
    let run = RunSettings {
        dir: PathBuf::from("."),
        key_file: keyed.then(|| PathBuf::from(KEY_FILE)),
        // All processes run on this host, with or without namespaces.
        clock: match args.plant_clocks {
            Some(_) => "mesh",
            // The fault `step` changes the host's clock, which "same-host" does not read.
            None if processes::steps(args) => "realtime",
            None => "same-host",
        }
        .into(),
        ..RunSettings::default()
    };
    let nodes = processes::nodes(args, lab)?;
    if pin::is_crowded(nodes.len()) {
        multicast.framing.coalesce = COALESCE;
    }
    let course = RunOptions { trees: args.trees, ..RunOptions::default() };
    let clock = ClockSettings {
        plant: args.plant_clocks,
        plant_seed: args.seed,
        steps: processes::steps(args).then(|| PathBuf::from(".")),
        ..ClockSettings::default()
    };
    let mut settings =
        Settings { run, course, feed, clock, multicast, nodes, ..Settings::default() };
    if let Some(port) = &args.port {
        settings.io.port.clone_from(port);
    }
    if processes::plants_delays(args) {
        settings.inject.file = Some(PathBuf::from(processes::DELAYS_FILE));
        let (delays, _) = processes::far_receivers(args, &settings);
        write_file(&args.dir.join(processes::DELAYS_FILE), &delays)?;
    }
    trading::plant_clock_errors(args)?;
    let path = settings_path(&args.dir);
    if keyed {
        write_key(&args.dir.join(KEY_FILE))?;
    }
    if args.signed {
        signed::make_keys(&args.dir, &mut settings)?;
    }
    let mut table = settings.to_table();
    doors.map_or(Ok(()), |doors| doors.put(&mut table, &args.dir))?;
    write_file(&path, &toml::to_string(&table)?)?;
    // The settings are read as the processes will read them, so that a mistake in --set is reported
    // once and before the run.
    let settings = Settings::load(&path, &args.set)?;
    check_reloads(args, &settings)?;
    forwarding::check_sums(&settings, lab)?;
    Ok((settings, expected))
}

/// Refuses to reload where nothing is loaded.
fn check_reloads(args: &Args, settings: &Settings) -> Result<(), &'static str> {
    let reloads = args.fault.iter().any(|fault| fault.harm == Harm::Reload);
    match reloads && settings.io.port != "tc" {
        true => Err("--fault reload: only nodes with --port tc have programs in the kernel"),
        false => Ok(()),
    }
}

fn settings_path(dir: &Path) -> PathBuf {
    dir.join(SETTINGS_FILE)
}

/// The summary that a process wrote at its end; null when it wrote none.
fn summary(args: &Args, name: &str) -> Value {
    let path = args.dir.join(format!("summary-{name}.json"));
    serde_json::from_str(&fs::read_to_string(path).unwrap_or_default()).unwrap_or_default()
}

/// The summary of the root that sent the feed at the end; null when that root wrote none.
fn last_root(args: &Args, settings: &Settings) -> Value {
    let mut all = processes::roots(settings).map(|root| summary(args, &root.name));
    all.find(|summary| summary["leads"] == true).unwrap_or_default()
}

/// What was sent. A run that was stopped is judged by the messages that the root sent before.
fn sent(args: &Args, settings: &Settings, expected: &Expected) -> SentContent {
    let root = last_root(args, settings);
    match (root["messages"].as_u64(), root["content_hash"].as_str()) {
        (Some(sent), Some(hash)) if sent < expected.messages => SentContent::All(hash.to_owned()),
        (None, _) => {
            let feed = Box::new(settings.feed.clone());
            SentContent::Beginning { feed, trees: settings.course.trees }
        }
        _ => SentContent::All(expected.hash.clone()),
    }
}

/// Compares each receiver's released messages with what was sent, and its losses with the report.
fn judged(
    args: &Args,
    settings: &Settings,
    expected: &Expected,
    report: &Report,
) -> Result<Vec<Judged>, Box<dyn std::error::Error>> {
    let lines = &report.outcome.series.receivers;
    let receivers: Vec<&MulticastNode> = processes::receivers(settings).collect();
    let summaries: Vec<Value> = receivers.iter().map(|node| summary(args, &node.name)).collect();
    let equal = sent(args, settings, expected).are_equal(&summaries)?;
    let judged = receivers.iter().zip(equal).map(|(node, is_equal)| Judged {
        name: node.name.clone(),
        is_equal,
        lost: lines.iter().find(|line| line.receiver == node.id).map_or(0, |line| line.lost),
    });
    Ok(judged.collect())
}

pub fn main(args: &Args) -> Outcome {
    let progress = Progress::new();
    capacity::check(args)?;
    let _folder = Folder::take(&args.dir)?;
    // A pipe may give no byte for hours. Until it ends there is no process that a signal should end
    // in order, and so a signal ends this program at once.
    let args = keep_pipe(args)?;
    interrupt::install()?;
    let args = &trading::prepare_feed(args)?;
    if args.compare { modes::compare(args, &progress) } else { once(args, &progress).map(drop) }
}

/// Keeps the bytes of a feed that is no file, because a pipe is read once and a demo reads its feed
/// several times: before the run, and by each root.
fn keep_pipe(args: &Args) -> Result<Args, Box<dyn std::error::Error>> {
    let Some(path) = &args.feed else { return Ok(args.clone()) };
    let failed = |error: std::io::Error| format!("--feed {}: {error}", path.display());
    let is_input = path == Path::new("-");
    if !is_input && fs::metadata(path).map_err(failed)?.is_file() {
        return Ok(args.clone());
    }
    let kept = args.dir.join(PIPED_FEED);
    let mut file = fs::File::create(&kept).map_err(|e| format!("{}: {e}", kept.display()))?;
    let mut pipe: Box<dyn std::io::Read> = if is_input {
        Box::new(std::io::stdin())
    } else {
        Box::new(fs::File::open(path).map_err(failed)?)
    };
    if std::io::copy(&mut pipe, &mut file).map_err(failed)? == 0 {
        return Err(
            format!("--feed {}: is empty; give a file with messages", path.display()).into()
        );
    }
    Ok(Args { feed: Some(kept), ..args.clone() })
}

/// Serves the live page while the run lasts. In a lab the roots have no pages that this process
/// reaches.
fn serve_live(
    args: &Args,
    settings: &Settings,
    progress: &Progress,
) -> Result<Option<LiveThread>, Box<dyn std::error::Error>> {
    let (_, far) = processes::far_receivers(args, settings);
    if !far.is_empty() && (!args.compare || args.mode == Mode::Unicast) {
        let modes = if args.compare { ", in every mode" } else { "" };
        progress.note(&format!("longer paths are planted{modes}: {far}"));
    }
    let owner = |node: &MulticastNode| {
        let (name, is_root) = (node.name.clone(), true);
        Some(PageOwner { name, is_root, http: node.http? })
    };
    let owners: Vec<PageOwner> = processes::roots(settings).filter_map(owner).collect();
    if owners.is_empty() {
        return Ok(None);
    }
    let live = LiveThread::start(&owners).map_err(|error| format!("live page: {error}"))?;
    progress.note(&format!("live page while it runs: {}", live.url()));
    if args.open {
        open_browser(live.url());
    }
    Ok(Some(live))
}

/// Prints how many messages go to how many receivers, and where the processes run.
fn announce_run(args: &Args, settings: &Settings, messages: u64) {
    let (receivers, processes) = (args.receivers, settings.nodes.len());
    let place = if args.lab { "a namespace each" } else { "loopback" };
    say!("{messages} messages to {receivers} receivers, {processes} processes on {place}");
    if let Some(silence) = settings.feed.silence {
        say!("as it happened, but silences are cut to {silence:.1?}");
    }
}

/// Plays and judges one run in the directory, which belongs to this demo.
fn once(args: &Args, progress: &Progress) -> Result<JudgedRun, Box<dyn std::error::Error>> {
    let hosts = processes::hosts(args, args.receivers) as usize;
    let lab = if args.lab { Some(Lab::new(hosts)?) } else { None };
    let doors = Doors::choose(args, lab.as_ref())?;
    let (settings, expected) = prepare(args, lab.as_ref(), doors.as_ref(), progress)?;
    if !args.json && !args.compare {
        announce_run(args, &settings, expected.messages);
    }
    let recording = args.record.as_deref().map(|dir| record::Recording::start(dir, &settings));
    let recording = recording.transpose()?;
    let participant = doors.map(|doors| Participant::start(args, &settings, &doors, lab.as_ref()));
    let participant = participant.transpose()?;
    let live_page = serve_live(args, &settings, progress)?;
    let (exchange, messages) = (Exchange::open(args)?, expected.messages);
    let played =
        processes::play(args, &settings, lab.as_ref(), exchange.as_ref(), messages, progress)
            .map_err(|words| stopped(&words))?;
    let traded = exchange.map(|exchange| exchange.settle(args, &settings)).transpose()?;
    let tapped = participant.map(|participant| participant.finish(played.stopped));
    let forwarded = Forwarded::of(args, &settings, lab.as_ref());
    drop((lab, live_page));
    if played.stopped && !played.is_fed {
        return Err(stopped("stopped before the first message was sent"));
    }
    if played.stopped && args.compare {
        let mode = args.mode;
        return Err(stopped(&format!("stopped in mode {mode}: there is nothing to compare")));
    }
    progress.stage("judging the logs of the processes", None);
    let recorded = match recording {
        None => Ok(()),
        Some(recording) => {
            let kept = recording.finish(&sent(args, &settings, &expected));
            // With --json, standard output holds only the JSON object.
            kept.map(|words| if args.json { aside!("{words}") } else { say!("{words}") })
        }
    };
    let handed_on = tapped.transpose().map(|tapped| {
        let sent = || sent(args, &settings, &expected);
        tapped.map(|tapped| HandedOn::of(&summary(args, GATEWAY), tapped, &sent()))
    });
    let signed = SignedRun::of(args, &settings);
    if let Err(why) = &handed_on {
        // A planted fault may excuse this error below, and then nothing else names it.
        progress.note(why);
    }
    let handed = handed_on.as_ref().ok().and_then(Option::as_ref);
    let (signed_run, traded_run) = (signed.as_ref(), traded.as_ref());
    let shown =
        Shown { handed_on: handed, forwarded: &forwarded, signed: signed_run, traded: traded_run };
    let (report, judged) = match judge(args, &settings, &expected, &played, shown, progress) {
        Ok(judged) => judged,
        // When there is nothing to judge, the reason from the play is the better error.
        Err(error) => return Err(played.outcome.err().map_or(error, Into::into)),
    };
    expected.check_damage()?;
    played.outcome?;
    if let Some(stopped) = Stopped::by_signal().filter(|_| played.stopped) {
        recorded?;
        return Err(stopped.into());
    }
    let voters: Vec<&str> = settings.voters().iter().map(|node| node.name.as_str()).collect();
    verdict(&judged, &voters, unsent(&expected, &report), &args.fault)?;
    if !args.fault.iter().any(DemoFault::is_excuse) {
        handed_on?.map_or(Ok(()), |handed_on| handed_on.check())?;
    }
    signed.map_or(Ok(()), |signed| signed.check())?;
    recorded.map(|()| JudgedRun { report, traded })
}

/// A run that was judged.
struct JudgedRun {
    report: Report,
    /// What trading came to; `None` in a demo without trading.
    traded: Option<TradingOutcome>,
}

/// Makes the report and prints it.
fn judge(
    args: &Args,
    settings: &Settings,
    expected: &Expected,
    played: &PlayedFeed,
    shown: Shown<'_>,
    progress: &Progress,
) -> Result<(Report, Vec<Judged>), Box<dyn std::error::Error>> {
    let dir = &settings.run.dir;
    if !played.events.is_empty() {
        let mut info = RunInfo::read(dir)?;
        info.events.extend(played.events.iter().cloned());
        info.events.sort_by_key(|event| event.at_ns);
        info.write(dir)?;
    }
    let mut takeovers = Takeovers::of(&RunInfo::read(dir)?);
    let mut report = report::read(dir, Some(&mut |row| takeovers.take(row)))?;
    report.warnings.extend(played.missed.iter().cloned());
    progress.end();
    report.write_html(&args.dir.join("report.html"))?;
    let judged = judged(args, settings, expected, &report)?;
    if !args.compare {
        let voting = Voting::of(&last_root(args, settings));
        let is_whole = !last_root(args, settings).is_null();
        let (report, judged) = (&report, &judged[..]);
        let found = Found { report, judged, is_whole, takeovers, voting, shown };
        show(args, expected, &found, played)?;
    }
    Ok((report, judged))
}

/// The results of a run.
struct Found<'a> {
    report: &'a Report,
    judged: &'a [Judged],
    /// Whether a root lived until its end and said what it sent.
    is_whole: bool,
    takeovers: Takeovers,
    /// What voting cost; `None` without standbys, and when no root sent the feed to its end.
    voting: Option<Voting>,
    shown: Shown<'a>,
}

/// What is shown of a run beside its report.
#[derive(Clone, Copy)]
struct Shown<'a> {
    /// The figures of the gateway, if there is one.
    handed_on: Option<&'a HandedOn>,
    /// What the ports of the proxies did.
    forwarded: &'a Forwarded,
    /// What receivers verified; `None` for a feed without signatures.
    signed: Option<&'a SignedRun>,
    /// What participants traded; `None` in a demo without trading.
    traded: Option<&'a TradingOutcome>,
}

fn unsent(expected: &Expected, report: &Report) -> u64 {
    expected.messages.saturating_sub(report.outcome.results.messages)
}

fn found_as_json(
    args: &Args,
    expected: &Expected,
    found: &Found<'_>,
    played: &PlayedFeed,
) -> Result<Value, serde_json::Error> {
    let Found { report, judged, shown, .. } = *found;
    let equal = judged.iter().filter(|receiver| receiver.is_equal).count();
    let mut json = serde_json::to_value(&report.outcome.results)?;
    json["messages"] = expected.messages.into();
    json["unsent"] = unsent(expected, report).into();
    json["stopped"] = played.stopped.into();
    json["content_hash"] = expected.hash.as_str().into();
    json["receivers_with_equal_content"] = equal.into();
    json["report"] = args.dir.join("report.html").display().to_string().into();
    json["warnings"] = report.warnings.clone().into();
    if args.standby {
        json["voting"] = serde_json::to_value(&found.voting)?;
        json["takeovers"] = serde_json::to_value(found.takeovers.results())?;
    }
    if let (Some(all), Some(signed)) = (json.as_object_mut(), shown.signed) {
        all.extend(signed.to_json());
    }
    if let Some(handed_on) = shown.handed_on {
        json["gateway"] = handed_on.to_json();
    }
    if let Some(traded) = shown.traded {
        json["trading"] = traded.to_json();
    }
    let forwarded = serde_json::to_value(shown.forwarded)?;
    if let (Some(all), Value::Object(more)) = (json.as_object_mut(), forwarded) {
        all.extend(more);
    }
    Ok(json)
}

fn show(args: &Args, expected: &Expected, found: &Found<'_>, played: &PlayedFeed) -> Outcome {
    let Found { report, judged, .. } = *found;
    let unsent = unsent(expected, report);
    let results = &report.outcome.results;
    let equal = judged.iter().filter(|receiver| receiver.is_equal).count();
    if args.json {
        say!("{}", found_as_json(args, expected, found, played)?);
        return Ok(());
    }
    say!("{}", report::verdict::sentence(report));
    say_part!("{}", text::table(results));
    say!(
        "content of {equal} of {} receivers equals {} (blake3 of the feed: {}...)",
        judged.len(),
        match (found.is_whole, unsent) {
            // The log of a root that was killed lacks its last messages.
            (false, _) => "the beginning of the feed, as far as each receiver came",
            (true, 0) => "the feed's",
            (true, _) => "what was sent",
        },
        &expected.hash[..16]
    );
    if equal < judged.len() {
        let different = judged.iter().filter(|receiver| !receiver.is_equal);
        let names: Vec<&str> = different.map(|receiver| receiver.name.as_str()).collect();
        say!("  different: {}", names.join(", "));
    }
    if unsent > 0 {
        let all = expected.messages;
        say!(
            "note: {}",
            match (played.stopped, found.is_whole) {
                (true, _) => format!(
                    "{unsent} of the feed's {all} messages were not sent: the run was stopped"
                ),
                (false, true) => format!(
                    "{unsent} of the feed's {all} messages were not sent: the root's log ends early"
                ),
                // Messages that were sent may be missing in the log of a root that was killed.
                (false, false) => format!(
                    "the log of the root ends {unsent} messages before the feed's {all}, because \
                     the root did not live until its end"
                ),
            }
        );
    }
    if args.standby {
        found.voting.iter().for_each(|voting| say!("{voting}"));
        found.takeovers.results().iter().for_each(|takeover| say!("{takeover}"));
    }
    found.shown.handed_on.iter().for_each(|handed_on| say!("{}", handed_on.say()));
    found.shown.signed.iter().for_each(|signed| say!("{}", signed.say()));
    found.shown.traded.iter().for_each(|traded| say_part!("{}", traded.say()));
    found.shown.forwarded.say().iter().for_each(|line| say!("{line}"));
    for warning in &report.warnings {
        say!("note: {warning}");
    }
    say!("page: {}", args.dir.join("report.html").display());
    Ok(())
}
