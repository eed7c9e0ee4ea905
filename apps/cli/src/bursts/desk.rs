//! `evenfall burst reprice|nbbo` asks standing workers about the last seconds of a feed.
//!
//! The workers are recorders that hold the last seconds (`run recorder --burst`), or processes of
//! this machine, which begin at `main` with the same arguments and hold generated rows.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use evenfall_collectives_member::{
    GroupSocket, GroupSocketOptions, packet_bytes, unlimited_settings,
};
use evenfall_host::process::{Signal, end_with_parent};
use evenfall_host::{interrupt, random};
use evenfall_port::udp::link_mtu;
use evenfall_query_member::desk::made::{MadeFeed, play_rows};
use evenfall_query_member::desk::nbbo::{DeskFill, read_fills};
use evenfall_query_member::desk::plain::{PlainRows, answer_plainly};
use evenfall_query_member::desk::recent::{RecentConfig, RecentRows};
use evenfall_query_member::desk::{DeskAsk, DeskOutput, DeskQuestion, DeskWorkerPlan};
use evenfall_query_member::standing_group::{
    AskedAnswer, AskerEvent, BurstWorker, MissingWorker, StandingConfig,
};
use evenfall_query_member::{DeskClient, SharedRows, answer_questions};
use evenfall_runtime::settings::read_key;
use humantime::parse_duration;

use super::desk_output::{AskTimes, tell_answer};
use super::ranks::{KEY_CONTEXT, LOCAL_RANKS_MAX, read_addresses, read_named};
use super::{DeskWord, queries::BurstArgs};
use crate::Outcome;

type Failure = Box<dyn std::error::Error>;

/// Tells a process that this command started which worker it is.
const WORKER: &str = "EVENFALL_LOCAL_WORKER";
/// How long a worker may be silent by default. It is above the time that a worker of a busy host
/// waits for a core, and a question waits that long for each failure.
const SILENCE: Duration = Duration::from_millis(250);
/// Silences after which a question has no answer: each of several workers may cost one.
const SILENCES_MAX: u32 = 10;
/// Securities of the generated feed.
const SYMBOLS: usize = 500;
/// Accounts of the generated positions.
const ACCOUNTS: usize = 1_000;
/// Generated positions.
const POSITIONS: usize = 100_000;
/// Generated fills.
const FILLS: usize = 200;

/// Options of `reprice` and `nbbo`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Only with reprice and nbbo")]
pub struct DeskArgs {
    /// Ask these workers: a file with the address of each, one a line. They are recorders that run
    /// with --burst.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["members", "local", "rank"])]
    workers: Option<PathBuf>,
    /// With --workers: the address of this host from which the workers are asked. Needed when they
    /// are on other hosts.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", requires = "workers")]
    own: SocketAddr,
    /// Length of the window, which ends with the newest row of any worker.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    last: Duration,
    /// How often to ask. The times are those of all questions, and the answer is the last.
    #[arg(long, value_name = "COUNT", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    asks: u32,
    /// The fewest workers of an answer; by default more than half of them.
    #[arg(long, value_name = "COUNT")]
    workers_min: Option<usize>,
    /// reprice: how many of the accounts that lost most to list.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    worst: usize,
    /// nbbo: a file of the desk's fills, lines of time_ns,symbol,side,price,shares below that
    /// heading. With --local they are generated.
    #[arg(long, value_name = "FILE")]
    fills: Option<PathBuf>,
    /// nbbo: the time between a fill and its markout.
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = parse_duration)]
    markout: Duration,
}

impl DeskArgs {
    /// What is asked, with these fills.
    fn ask(&self, word: DeskWord, fills: Arc<[DeskFill]>) -> DeskAsk {
        let of = match word {
            DeskWord::Reprice => DeskQuestion::Reprice,
            DeskWord::Nbbo => DeskQuestion::Nbbo { markout: self.markout },
        };
        DeskAsk { of, window: self.last, worst: self.worst, fills }
    }
}

/// Asks, or answers as one of the processes that ask was started with.
pub fn ask_desk(args: &BurstArgs, word: DeskWord) -> Outcome {
    interrupt::install()?;
    if let Ok(number) = env::var(WORKER) {
        let number = number.parse().map_err(|_| format!("{WORKER}={number}: no number"))?;
        return answer_as(args, word, number);
    }
    match &args.desk.workers {
        Some(file) => ask_hosts(args, word, file),
        None => ask_local(args, word),
    }
}

/// The generated feed: of `nbbo` each worker is a venue, of `reprice` each has symbols of its own.
fn made(args: &BurstArgs, word: DeskWord) -> Result<MadeFeed, String> {
    let workers = args.local;
    if workers == 0 || workers > LOCAL_RANKS_MAX {
        return Err(format!("--local {workers}: between 1 and {LOCAL_RANKS_MAX} workers"));
    }
    Ok(MadeFeed {
        seed: args.seed,
        workers,
        symbols: SYMBOLS,
        rows: args.records,
        accounts: ACCOUNTS,
        positions: POSITIONS,
        fills: FILLS,
        // The feed is twice as long as the window, so that most securities have a price at its
        // begin.
        span_ns: i64::try_from(2 * args.desk.last.as_nanos()).unwrap_or(i64::MAX / 2),
        by_venue: word == DeskWord::Nbbo,
    })
}

/// Answers questions about the generated rows of this worker until the command that started it
/// ends.
fn answer_as(args: &BurstArgs, word: DeskWord, number: usize) -> Outcome {
    let feed = made(args, word)?;
    let own = feed.rows_of(number);
    let config = RecentConfig { keep: args.desk.last, ..RecentConfig::default() };
    let mut recent = RecentRows::new(config);
    play_rows(&own, &mut recent);
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    // The workers of one machine share its cores: a worker that looks for arrivals before it sleeps
    // takes the core from the worker that is to send them.
    let socket = GroupSocket::bind(any, GroupSocketOptions::default())?;
    let settings = unlimited_settings(packet_bytes(link_mtu(any.ip(), any)?));
    let plan = DeskWorkerPlan::new(SharedRows::new(recent), own.positions);
    println!("{}", socket.address());
    answer_questions(socket, BurstWorker::new(plan, settings), &mut |_, _| {
        ControlFlow::Continue(())
    })?;
    Ok(())
}

/// The processes of the workers. They end with this value, or with this process.
struct LocalWorkers {
    children: Vec<Child>,
    addresses: Vec<SocketAddr>,
}

impl LocalWorkers {
    fn start(count: usize) -> Result<Self, Failure> {
        let mut workers = Self { children: Vec::new(), addresses: Vec::new() };
        for number in 0..count {
            let mut command = Command::new(env::current_exe()?);
            command.args(env::args_os().skip(1)).env(WORKER, number.to_string());
            command.stdout(Stdio::piped()).stdin(Stdio::null());
            end_with_parent(&mut command, Signal::Kill);
            workers.children.push(command.spawn()?);
        }
        for (number, child) in workers.children.iter_mut().enumerate() {
            let mut line = String::new();
            let out = child.stdout.take().ok_or("a worker without output")?;
            BufReader::new(out).read_line(&mut line)?;
            let address = line.trim().parse();
            let address = address.map_err(|_| format!("worker {number} did not begin"))?;
            workers.addresses.push(address);
        }
        Ok(workers)
    }
}

impl Drop for LocalWorkers {
    fn drop(&mut self) {
        for child in &mut self.children {
            // A worker that has died already is what was asked about.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn ask_local(args: &BurstArgs, word: DeskWord) -> Outcome {
    let feed = made(args, word)?;
    args.hosts.refuse_key()?;
    if args.desk.fills.is_some() {
        return Err("--fills: only with --workers; with --local the fills are generated".into());
    }
    let workers = LocalWorkers::start(args.local)?;
    let own = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let fills: Arc<[DeskFill]> = match word {
        DeskWord::Nbbo => feed.make_fills().into(),
        DeskWord::Reprice => Arc::from([]),
    };
    let ask = args.desk.ask(word, fills);
    let asked = ask_workers(args, own, &workers.addresses, &ask)?;
    let AskedAnswer { output, workers: here, .. } = &asked.answer;
    let rows: Vec<PlainRows> = here.iter().map(|&worker| feed.rows_of(worker)).collect();
    let plain = answer_plainly(&rows, &ask, output.window_ns);
    let is_plain = output.answer == Some(plain);
    tell_answer(&asked, Some(is_plain), args.json)
}

fn ask_hosts(args: &BurstArgs, word: DeskWord, file: &Path) -> Outcome {
    let workers = read_addresses("--workers", file)?;
    if workers.is_empty() {
        return Err(format!("--workers {}: no address in it", file.display()).into());
    }
    let fills = match &args.desk.fills {
        Some(file) => read_named("--fills", file, read_fills)?,
        None => Vec::new(),
    };
    let ask = args.desk.ask(word, fills.into());
    let asked = ask_workers(args, args.desk.own, &workers, &ask)?;
    tell_answer(&asked, None, args.json)
}

/// What came of all questions.
pub struct AskedDesk {
    /// The last answer.
    pub answer: AskedAnswer<DeskOutput>,
    /// The time of each answer, ascending.
    pub times: AskTimes,
    /// Questions without an answer.
    pub unanswered: u32,
    /// Addresses of the workers, for the venues of an answer.
    pub workers: Vec<SocketAddr>,
}

fn ask_workers(
    args: &BurstArgs,
    own: SocketAddr,
    workers: &[SocketAddr],
    ask: &DeskAsk,
) -> Result<AskedDesk, Failure> {
    let key = args.hosts.key_file.as_deref().map(read_key).transpose();
    let key = key.map_err(|why| format!("--key-file {why}"))?;
    let options = GroupSocketOptions { keyed: key.is_some(), ..GroupSocketOptions::default() };
    let is_afar = workers.iter().any(|worker| !worker.ip().is_loopback());
    if is_afar && key.is_none() {
        return Err("workers on other hosts: give the shared key by --key-file".into());
    }
    if is_afar && own.ip() == IpAddr::from(Ipv4Addr::LOCALHOST) {
        return Err("workers on other hosts: give an address of this host by --own".into());
    }
    let silence = args.hosts.silence.unwrap_or(SILENCE);
    let mut group = unlimited_settings(packet_bytes(link_mtu(own.ip(), workers[0])?));
    group.shuffle.silence_max = silence;
    group.shuffle.key = key.as_ref().map(|key| key.derive(KEY_CONTEXT).1);
    let workers_min = args.desk.workers_min.unwrap_or(workers.len() / 2 + 1);
    let config = StandingConfig { group, workers_min, answer_within: silence * SILENCES_MAX };
    let socket = GroupSocket::bind(own, options)?;
    let mut client = DeskClient::new(socket, workers.to_vec(), config, random::number()? as u32);
    tracing::debug!("asking {} workers {} times", workers.len(), args.desk.asks);
    let (mut times, mut last, mut unanswered) = (Vec::new(), None, 0);
    for _ in 0..args.desk.asks {
        match client.ask(ask.clone())? {
            AskerEvent::Answered(answer) => {
                times.push(answer.took);
                last = Some(Ok(answer));
            }
            AskerEvent::Unanswered { workers: here, missing, .. } => {
                unanswered += 1;
                last = Some(Err(name_missing(here, workers.len(), workers_min, &missing)));
            }
        }
    }
    let answer = last.ok_or("nothing was asked")??;
    let workers = workers.to_vec();
    Ok(AskedDesk { answer, times: AskTimes::new(times), unanswered, workers })
}

/// Why there is no answer.
fn name_missing(here: usize, all: usize, workers_min: usize, missing: &[MissingWorker]) -> String {
    let mut text = format!("{here} of {all} workers answer, and {workers_min} are needed");
    for MissingWorker { address, why, .. } in missing {
        text += &format!("\n  {address}: {why}");
    }
    text
}
