//! The questions of a desk beside a plain scatter and gather over TCP: the same rows, scans, merges
//! and processes. Only what carries them differs.
//!
//! ```text
//!  tcp   the asker writes to each worker and reads a table of each; for nbbo each pair of workers
//!        has a connection, which a thread writes while another reads
//!  ours  a standing group over UDP (`evenfall burst`)
//! ```
//!
//! Connections of TCP are open and warm before the first question, as a standing service would have
//! them. TCP has no roll call and names nobody who is missing: a dead worker is an error there.
//!
//! `cargo run --release -p evenfall-lab --example desk_rival -- nbbo 8 10000 200`
//! (question, workers, rows of each, questions a round) runs five rounds of each, in turn.

use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_collectives_member::{
    GroupSocket, GroupSocketOptions, packet_bytes, unlimited_settings,
};
use evenfall_host::process::{Signal, end_with_parent};
use evenfall_query_member::desk::made::{MadeFeed, play_rows};
use evenfall_query_member::desk::nbbo::{
    encode_nbbo, exchange_fills, exchange_venue, merge_symbols,
};
use evenfall_query_member::desk::recent::{RecentConfig, RecentRows};
use evenfall_query_member::desk::reprice::{PositionBook, encode_changes, sum_changes};
use evenfall_query_member::desk::{
    DeskAsk, DeskQuestion, DeskWorkerPlan, TableHead, TimedQuestion, merge_tables,
};
use evenfall_query_member::standing_group::{AskerEvent, BurstWorker, StandingConfig};
use evenfall_query_member::{DeskClient, SharedRows, answer_questions};

/// Rounds of each; medians are taken over them.
const ROUNDS: usize = 5;
const WINDOW: Duration = Duration::from_secs(5);
const MARKOUT: Duration = Duration::from_millis(100);
/// Tells a process that this program started what it is: `tcp 3` or `ours 3`.
const ROLE: &str = "DESK_RIVAL_ROLE";
/// The MTU of loopback, as `evenfall burst --local` finds it.
const LOOPBACK_MTU: u32 = 65_536;

type Failure = Box<dyn Error>;

/// The arguments.
#[derive(Clone, Copy)]
struct Load {
    of: DeskQuestion,
    feed: MadeFeed,
    asks: usize,
}

fn load() -> Result<Load, Failure> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [word, workers, rows, asks] = words.as_slice() else {
        return Err("arguments: reprice|nbbo WORKERS ROWS QUESTIONS".into());
    };
    let by_venue = word == "nbbo";
    let of = match by_venue {
        true => DeskQuestion::Nbbo { markout: MARKOUT },
        false => DeskQuestion::Reprice,
    };
    let feed = MadeFeed {
        seed: 1,
        workers: workers.parse()?,
        symbols: 500,
        rows: rows.parse()?,
        accounts: 1_000,
        positions: 100_000,
        fills: 200,
        span_ns: 2 * WINDOW.as_nanos() as i64,
        by_venue,
    };
    Ok(Load { of, feed, asks: asks.parse()? })
}

fn write_part(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    // One write for both, so that a short part is one segment.
    let part = [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat();
    to.write_all(&part)
}

fn read_part(from: &mut impl Read) -> io::Result<Bytes> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    from.read_exact(&mut bytes)?;
    Ok(bytes.into())
}

/// Answers over TCP: the first connection is the asker's, and those of the other workers follow.
fn answer_tcp(load: &Load, number: usize) -> Result<(), Failure> {
    let own = load.feed.rows_of(number);
    let mut recent = RecentRows::new(RecentConfig::default());
    play_rows(&own, &mut recent);
    let book = PositionBook::new(own.positions);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?);
    let (mut asker, _) = listener.accept()?;
    asker.set_nodelay(true)?;
    let peers = connect_peers(&listener, &mut asker, number)?;
    loop {
        let Ok(question) = read_part(&mut asker) else {
            // The round is over.
            return Ok(());
        };
        let question = TimedQuestion::decode(&question)?;
        let snapshot = recent.snapshot();
        let times = [question.after_ns(), question.until_ns];
        let table = match question.of {
            DeskQuestion::Reprice => {
                let head = TableHead { rows: snapshot.rows() as u64, moved: 0 };
                encode_changes(head, &sum_changes(&snapshot, &book, times))
            }
            DeskQuestion::Nbbo { .. } => {
                let window = question.nbbo_window();
                let fills = read_part(&mut asker)?;
                let ranks = peers.len() as u16 + 1;
                let (mine, rows) = exchange_venue(&snapshot, window, ranks);
                let mut all = exchange_tcp(&peers, number, &mine)?;
                all.insert(0, fills);
                encode_nbbo(TableHead { rows, moved: 0 }, &merge_symbols(&all, window))
            }
        };
        write_part(&mut asker, &table)?;
    }
}

/// A connection to each other worker, by number; the own place is empty.
fn connect_peers(
    listener: &TcpListener,
    asker: &mut TcpStream,
    number: usize,
) -> Result<Vec<Option<TcpStream>>, Failure> {
    let list = read_part(asker)?;
    let list = String::from_utf8(list.to_vec())?;
    let addresses: Vec<SocketAddr> = list.lines().map(str::parse).collect::<Result<_, _>>()?;
    let mut peers: Vec<Option<TcpStream>> = addresses.iter().map(|_| None).collect();
    for (at, address) in addresses.iter().enumerate().take(number) {
        let mut peer = TcpStream::connect(address)?;
        peer.set_nodelay(true)?;
        write_part(&mut peer, &[number as u8])?;
        peers[at] = Some(peer);
    }
    for _ in number + 1..addresses.len() {
        let (mut peer, _) = listener.accept()?;
        peer.set_nodelay(true)?;
        let from = usize::from(read_part(&mut peer)?[0]);
        peers[from] = Some(peer);
    }
    write_part(asker, b"ready")?;
    Ok(peers)
}

/// Sends a message to each worker and reads one of each. Messages of ranks begin with the asker's.
fn exchange_tcp(
    peers: &[Option<TcpStream>],
    number: usize,
    messages: &[Bytes],
) -> io::Result<Vec<Bytes>> {
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for (at, peer) in peers.iter().enumerate() {
                if let Some(mut peer) = peer.as_ref() {
                    write_part(&mut peer, &messages[at + 1])?;
                }
            }
            Ok::<(), io::Error>(())
        });
        let read = |(at, peer): (usize, &Option<TcpStream>)| match peer.as_ref() {
            Some(mut peer) => read_part(&mut peer),
            None => Ok(messages[at + 1].clone()),
        };
        debug_assert!(peers[number].is_none());
        let all = peers.iter().enumerate().map(read).collect::<io::Result<Vec<Bytes>>>()?;
        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(all)
    })
}

/// Answers as a worker of a standing group.
fn answer_ours(load: &Load, number: usize) -> Result<(), Failure> {
    let own = load.feed.rows_of(number);
    let mut recent = RecentRows::new(RecentConfig::default());
    play_rows(&own, &mut recent);
    let plan = DeskWorkerPlan::new(SharedRows::new(recent), own.positions);
    let settings = unlimited_settings(packet_bytes(LOOPBACK_MTU));
    let socket = socket()?;
    println!("{}", socket.address());
    let each = &mut |_, _: &[_]| ControlFlow::Continue(());
    Ok(answer_questions(socket, BurstWorker::new(plan, settings), each)?)
}

fn socket() -> Result<GroupSocket, Failure> {
    Ok(GroupSocket::bind((Ipv4Addr::LOCALHOST, 0).into(), GroupSocketOptions::default())?)
}

/// The processes of workers, which end with this value.
struct Workers {
    children: Vec<Child>,
    addresses: Vec<SocketAddr>,
}

impl Workers {
    fn start(kind: &str, count: usize) -> Result<Self, Failure> {
        let mut workers = Self { children: Vec::new(), addresses: Vec::new() };
        for number in 0..count {
            let mut command = Command::new(env::current_exe()?);
            command.args(env::args().skip(1)).env(ROLE, format!("{kind} {number}"));
            command.stdout(Stdio::piped());
            end_with_parent(&mut command, Signal::Kill);
            workers.children.push(command.spawn()?);
        }
        for child in &mut workers.children {
            let mut line = String::new();
            let out = child.stdout.take().ok_or("no output")?;
            BufReader::new(out).read_line(&mut line)?;
            workers.addresses.push(line.trim().parse()?);
        }
        Ok(workers)
    }

    /// Processor seconds of all workers so far.
    fn cpu_seconds(&self) -> f64 {
        let ticks = |child: &Child| {
            let text = std::fs::read_to_string(format!("/proc/{}/stat", child.id()));
            let text = text.unwrap_or_default();
            let fields: Vec<&str> = text.rsplit(") ").next().unwrap_or("").split(' ').collect();
            let field = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
            field(11) + field(12)
        };
        self.children.iter().map(ticks).sum::<u64>() as f64 / 100.0
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The worker has ended by itself when it lost its asker.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// The times of a round, and the processor seconds of the workers in it.
struct Round {
    times: Vec<Duration>,
    cpu_seconds: f64,
    checksum: u64,
}

fn ask_tcp(load: &Load) -> Result<Round, Failure> {
    let workers = Workers::start("tcp", load.feed.workers)?;
    let list: Vec<String> = workers.addresses.iter().map(ToString::to_string).collect();
    let mut streams = Vec::new();
    for address in &workers.addresses {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        write_part(&mut stream, list.join("\n").as_bytes())?;
        streams.push(stream);
    }
    for stream in &mut streams {
        read_part(stream)?;
    }
    let fills = load.feed.make_fills();
    let until_ns = (0..load.feed.workers).map(|worker| newest_ns(load, worker)).max();
    let until_ns = until_ns.unwrap_or(0);
    let question = TimedQuestion { of: load.of, until_ns, window: WINDOW }.encode();
    let before = workers.cpu_seconds();
    let (mut times, mut checksum) = (Vec::new(), 0);
    for _ in 0..load.asks {
        let begin = Instant::now();
        let for_ranks = exchange_fills(&fills, streams.len() as u16 + 1);
        for (at, stream) in streams.iter_mut().enumerate() {
            write_part(stream, &question)?;
            if load.feed.by_venue {
                write_part(stream, &for_ranks[at + 1])?;
            }
        }
        let tables = streams.iter_mut().map(read_part).collect::<io::Result<Vec<Bytes>>>()?;
        let table = merge_tables(load.of, &tables);
        times.push(begin.elapsed());
        checksum = sum_bytes(&table[16..]);
    }
    Ok(Round { times, cpu_seconds: workers.cpu_seconds() - before, checksum })
}

/// Time of the newest row of a worker.
fn newest_ns(load: &Load, worker: usize) -> i64 {
    let rows = load.feed.rows_of(worker);
    let quote = rows.quotes.last().map_or(0, |(_, quote)| quote.time_ns);
    rows.trades.last().map_or(quote, |(_, trade)| trade.time_ns.max(quote))
}

fn sum_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}

fn ask_ours(load: &Load) -> Result<Round, Failure> {
    let workers = Workers::start("ours", load.feed.workers)?;
    let mut group = unlimited_settings(packet_bytes(LOOPBACK_MTU));
    group.shuffle.silence_max = Duration::from_secs(1);
    let answer_within = Duration::from_secs(10);
    let config = StandingConfig { group, workers_min: load.feed.workers, answer_within };
    let mut client = DeskClient::new(socket()?, workers.addresses.clone(), config, 1);
    let fills = load.feed.make_fills().into();
    let ask = DeskAsk { of: load.of, window: WINDOW, worst: 10, fills };
    let before = workers.cpu_seconds();
    let (mut times, mut checksum) = (Vec::new(), 0);
    for _ in 0..load.asks {
        match client.ask(ask.clone())? {
            AskerEvent::Answered(answer) => {
                times.push(answer.took);
                checksum = answer.output.bytes_moved;
            }
            AskerEvent::Unanswered { missing, .. } => return Err(format!("{missing:?}").into()),
        }
    }
    Ok(Round { times, cpu_seconds: workers.cpu_seconds() - before, checksum })
}

fn main() -> Result<(), Failure> {
    let load = load()?;
    if let Ok(role) = env::var(ROLE) {
        let (kind, number) = role.split_once(' ').ok_or("no role")?;
        let number = number.parse()?;
        return if kind == "tcp" { answer_tcp(&load, number) } else { answer_ours(&load, number) };
    }
    let mut rows: [Vec<[f64; 3]>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (at, ask) in [ask_tcp, ask_ours].into_iter().enumerate() {
            let mut round = ask(&load)?;
            round.times.sort_unstable();
            let us = |share: usize| {
                let at = (round.times.len() * share / 100).min(round.times.len() - 1);
                round.times[at].as_nanos() as f64 / 1e3
            };
            let cpu_us = round.cpu_seconds * 1e6 / load.asks as f64;
            rows[at].push([us(50), us(99), cpu_us]);
            assert!(round.checksum > 0, "an answer has bytes");
        }
    }
    for (name, rounds) in ["tcp", "ours"].iter().zip(&mut rows) {
        let median = |rounds: &mut Vec<[f64; 3]>, of: usize| {
            rounds.sort_by(|a, b| a[of].total_cmp(&b[of]));
            rounds[rounds.len() / 2][of]
        };
        let [p50, p99, cpu] = [0, 1, 2].map(|of| median(rounds, of));
        println!("{name:<5} p50 {p50:>8.0} us, p99 {p99:>8.0} us, workers {cpu:>8.0} CPU us each");
    }
    Ok(())
}
