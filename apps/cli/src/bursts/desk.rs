//! `evenfall burst reprice|nbbo` asks standing workers about the last seconds of a feed.
//!
//! The workers are recorders that hold the last seconds (`run recorder --burst`), or processes of
//! this machine, which begin at `main` with the same arguments and hold generated rows.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{ControlFlow, RangeInclusive};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use evenfall_collectives_member::{GroupSocket, GroupSocketOptions, unlimited_settings};
use evenfall_host::process::{Signal, end_with_parent};
use evenfall_query_member::desk::made::{MadeFeed, play_rows};
use evenfall_query_member::desk::nbbo::{DeskFill, read_fills};
use evenfall_query_member::desk::plain::{PlainRows, answer_plainly};
use evenfall_query_member::desk::recent::{RecentConfig, RecentRows};
use evenfall_query_member::desk::{
    DeskAsk, DeskOutput, DeskQuestion, DeskWorkerPlan, TimedQuestion,
};
use evenfall_query_member::standing_group::wire::count_askable;
use evenfall_query_member::standing_group::{AskedAnswer, AskerEvent, BurstWorker};
use evenfall_query_member::{SharedRows, WORKER_SILENCE, WorkerAccess, answer_questions};
use evenfall_runtime::settings::read_key;
use humantime::parse_duration;

use super::desk_output::{AskTimes, tell_answer};
use super::queries::{BurstArgs, DeskWord, OptionUse};
use super::ranks::{LOCAL_RANKS_MAX, read_addresses, read_named};
use crate::Outcome;

type Failure = Box<dyn std::error::Error>;

/// Tells a process that this command started which worker it is.
const WORKER: &str = "EVENFALL_LOCAL_WORKER";
/// Securities of the generated feed.
const SYMBOLS: usize = 500;
/// Accounts of the generated positions.
const ACCOUNTS: usize = 1_000;
/// Generated positions.
const POSITIONS: usize = 100_000;
/// Generated fills.
const FILLS: usize = 200;
/// Bytes of memory that a generated row takes at most, at its worker and in the plain program:
/// measured with 300,000 rows a worker.
const DESK_MEMORY: u128 = 350;

/// Options of `reprice` and `nbbo`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Only with reprice and nbbo")]
pub struct DeskArgs {
    /// Ask these workers: a file with the address of each, one a line. They are recorders that run
    /// with --burst.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["members", "local", "rank"])]
    pub workers: Option<PathBuf>,
    /// With --workers: the address of this host from which the workers are asked. Needed when they
    /// are on other hosts.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", requires = "workers")]
    own: SocketAddr,
    /// Length of the window, which ends with the newest row of any worker: 5s by default.
    #[arg(long, value_name = "DURATION", value_parser = parse_window)]
    last: Option<Duration>,
    /// How often to ask: 20 times by default. The times are those of all questions, and the answer
    /// is the last.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    asks: Option<u32>,
    /// The fewest workers of an answer; by default more than half of them.
    #[arg(long, value_name = "COUNT")]
    workers_min: Option<usize>,
    /// reprice: how many of the accounts that lost most to list: 10 by default.
    #[arg(long, value_name = "COUNT")]
    worst: Option<usize>,
    /// nbbo: a file of the desk's fills, lines of time_ns,symbol,side,price,shares below that
    /// heading. With --local they are generated.
    #[arg(long, value_name = "FILE")]
    fills: Option<PathBuf>,
    /// nbbo: the time between a fill and its markout: 100ms by default.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    markout: Option<Duration>,
}

/// Windows that may be asked about: with none no row counts.
const WINDOWS: RangeInclusive<Duration> = Duration::from_nanos(1)..=Duration::from_secs(86_400);

fn parse_window(text: &str) -> Result<Duration, String> {
    let window = parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = WINDOWS.contains(&window).then_some(window);
    allowed.ok_or_else(|| "must be above 0 and at most 1day".to_owned())
}

impl DeskArgs {
    /// Length of the window.
    fn window(&self) -> Duration {
        self.last.unwrap_or(Duration::from_secs(5))
    }

    fn ask_count(&self) -> u32 {
        self.asks.unwrap_or(20)
    }

    /// The use of each option in this question of a desk, or in another question.
    pub fn option_uses(&self, word: Option<DeskWord>) -> [OptionUse; 8] {
        let (is_desk, desks) = (word.is_some(), "reprice and nbbo");
        let is_nbbo = word == Some(DeskWord::Nbbo);
        let has_workers = self.workers.is_some();
        [
            OptionUse::new("workers", has_workers, is_desk, desks),
            OptionUse::new("last", self.last.is_some(), is_desk, desks),
            OptionUse::new("asks", self.asks.is_some(), is_desk, desks),
            OptionUse::new("workers-min", self.workers_min.is_some(), is_desk, desks),
            OptionUse::new("worst", self.worst.is_some(), is_desk && !is_nbbo, "reprice"),
            OptionUse::new("fills", self.fills.is_some(), is_nbbo, "nbbo"),
            OptionUse::new("fills", self.fills.is_some(), has_workers, "--workers"),
            OptionUse::new("markout", self.markout.is_some(), is_nbbo, "nbbo"),
        ]
    }

    /// What is asked, with these fills.
    fn ask(&self, word: DeskWord, fills: Arc<[DeskFill]>) -> DeskAsk {
        let of = match word {
            DeskWord::Reprice => DeskQuestion::Reprice,
            DeskWord::Nbbo => {
                let markout = self.markout.unwrap_or(Duration::from_millis(100));
                DeskQuestion::Nbbo { markout }
            }
        };
        DeskAsk { of, window: self.window(), worst: self.worst.unwrap_or(10), fills }
    }
}

/// Asks, or answers as one of the processes that ask was started with.
pub fn ask_desk(args: &BurstArgs, word: DeskWord) -> Outcome {
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
    let workers = args.local();
    let any = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); LOCAL_RANKS_MAX];
    let most = count_askable(&any, TimedQuestion::BYTES);
    if workers == 0 || workers > most {
        return Err(format!("--local {workers}: between 1 and {most} workers"));
    }
    Ok(MadeFeed {
        seed: args.seed(),
        workers,
        symbols: SYMBOLS,
        rows: args.rank_rows(),
        accounts: ACCOUNTS,
        positions: POSITIONS,
        fills: FILLS,
        // The feed is twice as long as the window, so that most securities have a price at its
        // begin.
        span_ns: i64::try_from(2 * args.desk.window().as_nanos()).unwrap_or(i64::MAX / 2),
        by_venue: word == DeskWord::Nbbo,
    })
}

/// Answers questions about the generated rows of this worker until the command that started it
/// ends.
fn answer_as(args: &BurstArgs, word: DeskWord, number: usize) -> Outcome {
    let feed = made(args, word)?;
    let own = feed.rows_of(number);
    let config = RecentConfig { keep: args.desk.window(), ..RecentConfig::default() };
    let mut recent = RecentRows::new(config);
    play_rows(&own, &mut recent);
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    // The workers of one machine share its cores: a worker that looks for arrivals before it sleeps
    // takes the core from the worker that is to send them.
    let options = GroupSocketOptions::default();
    let settings = unlimited_settings(options.packet_bytes(any, any)?);
    let socket = GroupSocket::bind(any, options)?;
    let plan = DeskWorkerPlan::new(SharedRows::new(recent), own.positions);
    say!("{}", socket.address());
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
    args.expect_row_memory(args.local(), DESK_MEMORY)?;
    let workers = LocalWorkers::start(args.local())?;
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
    let silence = args.hosts.silence.unwrap_or(WORKER_SILENCE);
    let workers = workers.to_vec();
    let access = WorkerAccess { workers, own, key, silence, workers_min: args.desk.workers_min };
    let mut client = access.connect()?;
    tracing::debug!("asking {} workers {} times", access.workers.len(), args.desk.ask_count());
    let (mut times, mut last, mut unanswered) = (Vec::new(), None, 0);
    for _ in 0..args.desk.ask_count() {
        match client.ask(ask.clone())? {
            AskerEvent::Answered(answer) => {
                times.push(answer.took);
                last = Some(Ok(answer));
            }
            AskerEvent::Unanswered { workers: here, missing, .. } => {
                unanswered += 1;
                last = Some(Err(access.say_unanswered(here, &missing)));
            }
        }
    }
    let answer = last.ok_or("nothing was asked")??;
    Ok(AskedDesk { answer, times: AskTimes::new(times), unanswered, workers: access.workers })
}
