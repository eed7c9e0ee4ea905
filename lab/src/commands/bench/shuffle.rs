//! `evenfall bench shuffle`: shuffles between processes over real sockets, one after the other.
//!
//! Ranks are processes on loopback, or in namespaces whose links are limited (`--lab`). A round is
//! a barrier and a shuffle. A round lasts from the first rank's call to the last rank's return.
//! This program hashes and compares the messages that each rank sent and got.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use evenfall_campaigns::shuffle::{Links, Matrix, workload};
use evenfall_collectives_member::{FRAME_BYTES, packet_bytes};
use evenfall_core::Prng;
use evenfall_host::process::{Signal, end_with_parent, send};
use evenfall_host::{interrupt, pin};
use evenfall_port::udp::link_mtu;
use serde_json::json;

use super::median;
use super::rank::{Line, RankRound, Spec, Totals};
use crate::networks::{NetworkLab, RackHost, Racks};
use evenfall_runtime::program::Outcome;
use humantime::parse_duration;

/// Port of every rank in a lab.
const LAB_PORT: u16 = 9_300;
/// Time between two checks of signals and buffers.
const LOOK: Duration = Duration::from_millis(20);
/// How long processes may take to print their address.
const STARTUP: Duration = Duration::from_secs(20);
/// Round trip for which limited links are tuned. Most of it is the wait for a core, where there are
/// fewer cores than ranks.
const RTT: Duration = Duration::from_millis(12);
/// Bytes that may go unasked, and be granted ahead, where links have no limit.
const UNLIMITED_BYTES: u32 = 4 << 20;
/// Value of [`Spec::say_after`]: several rounds, and less than a person waits for progress.
const SAY_AFTER: Duration = Duration::from_millis(500);
/// Default of `--yield-for`.
const YIELD_FOR: Duration = Duration::from_micros(200);
/// Ranks that one machine may be asked to run.
const RANKS_MAX: usize = 256;

/// Notes below the list of options.
const AFTER: &str = "\
A round lasts from the first rank's call to the last rank's return; every message of every round
is hashed where it is made and where it arrives, and compared. The bound is the time that the
busiest link needs for its frames, control apart; without limited links there is none.

  evenfall bench shuffle --skewness .9                     eight processes on loopback
  evenfall bench shuffle --lab --cross 30                  two racks of namespaces, as root
  evenfall bench shuffle --ranks 4 --kill 2@5              the others end and name rank 2
  evenfall bench shuffle --mpi ./alltoallv --json          OpenMPI right after
      (mpicc -O2 -o alltoallv bench-peers/shuffle/alltoallv.c)";

/// Arguments of `evenfall bench shuffle`.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER)]
pub struct Args {
    /// Number of processes.
    #[arg(long, default_value_t = 8)]
    ranks: usize,
    /// Mean length of a message in bytes.
    #[arg(long, default_value_t = 100_000.0)]
    mean_bytes: f64,
    /// Message skewness of the generated matrix: 0 when all messages are equal, 1 when each rank
    /// sends one message.
    #[arg(long, default_value_t = 0.5)]
    skewness: f64,
    /// Read the matrix from this file instead: a row per sender, bytes.
    #[arg(long, value_name = "FILE")]
    matrix: Option<PathBuf>,
    /// Number of rounds that count. Their medians are printed.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Number of rounds before the rounds that count.
    #[arg(long, default_value_t = 2)]
    warm_up: usize,
    /// Seed of the matrix and the contents.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Pace of each rank's link, Mb/s; unlimited by default, 100 in a lab.
    #[arg(long)]
    link_mbps: Option<u64>,
    /// Run the ranks in network namespaces, in racks behind limited links. Needs the user root.
    #[arg(long)]
    lab: bool,
    /// With --lab: ranks in a rack.
    #[arg(long, default_value_t = 4)]
    rack_hosts: usize,
    /// With --lab: rate of a rack's uplink, in percent of the rate of its hosts together.
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    core: u64,
    /// With --lab: percent of each uplink that other traffic takes, both ways.
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    cross: u64,
    /// Share of datagrams that are lost on purpose, 0 to 0.5.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    loss: f64,
    /// Kill this rank after this round. The other ranks must end and name it.
    #[arg(long, value_name = "RANK@ROUND", value_parser = kill_at)]
    kill: Option<(usize, usize)>,
    /// How long a rank may be silent before the other ranks take it for dead.
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = parse_duration)]
    silence: Duration,
    /// Payload of a packet. By default, the longest that the link takes in one piece.
    #[arg(long)]
    packet_bytes: Option<u32>,
    /// Round trip in packets. By default, it follows from the rate.
    #[arg(long)]
    rtt_packets: Option<u32>,
    /// Round trips of packets that a receiver grants ahead.
    #[arg(long, default_value_t = 4.0)]
    overcommit: f64,
    /// Packets granted at a time.
    #[arg(long, default_value_t = 8)]
    grant_packets: u32,
    /// How long a waiting rank looks for arrivals before it sleeps. The rank yields its core
    /// between two looks. By default 200us where links have no limit, else none.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    yield_for: Option<Duration>,
    /// Keep each rank on one core, also the ranks of --mpi. Pinning takes luck out of a comparison
    /// where there are more ranks than cores.
    #[arg(long)]
    pin: bool,
    /// An MPI program (bench-peers/shuffle) that runs beside, on the same hosts and matrix.
    #[arg(long, value_name = "PROGRAM")]
    mpi: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn kill_at(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once('@').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parts.ok_or_else(|| format!("`{text}` is not RANK@ROUND, such as 3@5"))
}

impl Args {
    fn check(&self) -> Result<(), String> {
        let ranks = self.ranks;
        let rules = [
            ((2..=RANKS_MAX).contains(&ranks), "--ranks: 2 to 256"),
            ((0.0..=1.0).contains(&self.skewness), "--skewness: between 0 and 1"),
            (self.mean_bytes > 0.0 && self.mean_bytes <= 1e9, "--mean-bytes: above 0, up to 1e9"),
            ((1..=1_000_000).contains(&self.rounds), "--rounds: 1 to 1,000,000"),
            ((0.0..=0.5).contains(&self.loss), "--loss: between 0 and 0.5"),
            (self.link_mbps.is_none_or(|rate| rate > 0), "--link-mbps: above 0"),
            ((1..=RANKS_MAX).contains(&self.rack_hosts), "--rack-hosts: 1 to 256"),
            ((1..=400).contains(&self.core), "--core: 1 to 400 percent"),
            (self.cross < 100, "--cross: below 100 percent"),
            (!(self.lab && self.pin), "--pin: on one host, without --lab"),
            (self.lab || self.cross == 0, "--cross: needs --lab, where there are links to share"),
            (
                self.packet_bytes.is_none_or(|b| (64..=65_467).contains(&b)),
                "--packet-bytes: 64 to 65467",
            ),
            (self.overcommit >= 1.0, "--overcommit: 1 at least"),
            (self.silence >= Duration::from_millis(50), "--silence: 50ms at least"),
            (self.kill.is_none_or(|(rank, _)| rank < ranks), "--kill: no such rank"),
        ];
        match rules.iter().find(|rule| !rule.0) {
            Some((_, words)) => Err((*words).to_owned()),
            None => Ok(()),
        }
    }

    fn matrix(&self) -> Result<Matrix, String> {
        let Some(path) = &self.matrix else {
            let mut prng = Prng::new(self.seed);
            let normal = workload::by_sampling(self.ranks, self.skewness, &mut prng);
            return Ok(normal.bytes(self.mean_bytes));
        };
        let failed =
            |error: &dyn std::fmt::Display| format!("--matrix {}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
        let matrix = Matrix::parse(&text).map_err(|error| failed(&error))?;
        if matrix.nodes() != self.ranks {
            let rows = matrix.nodes();
            return Err(failed(&format!("{rows} rows, but --ranks is {}", self.ranks)));
        }
        Ok(matrix)
    }

    fn link_bits_per_s(&self) -> Option<u64> {
        self.link_mbps.or(self.lab.then_some(100)).map(|mbps| mbps * 1_000_000)
    }

    fn yield_for(&self) -> Duration {
        let by_links = if self.link_bits_per_s().is_some() { Duration::ZERO } else { YIELD_FOR };
        self.yield_for.unwrap_or(by_links)
    }

    fn uplink_bits_per_s(&self) -> u64 {
        let host = self.link_bits_per_s().unwrap_or(0);
        host * self.rack_hosts.min(self.ranks) as u64 * self.core / 100
    }

    fn racks(&self) -> Racks {
        let host = |rank: usize| RackHost {
            rack: rank / self.rack_hosts,
            bits_per_s: self.link_bits_per_s(),
        };
        let mut hosts: Vec<RackHost> = (0..self.ranks).map(host).collect();
        if self.cross > 0 {
            // The additional host in each rack, whose link has no limit, is for the other traffic.
            let racks = self.ranks.div_ceil(self.rack_hosts);
            hosts.extend((0..racks).map(|rack| RackHost { rack, bits_per_s: None }));
        }
        Racks { hosts, uplink_bits_per_s: self.uplink_bits_per_s() }
    }

    /// The bounds of the links in microseconds: by frames with their headers, and by payload alone.
    fn bounds(&self, matrix: &Matrix, packet: u32) -> Option<(f64, f64)> {
        let host_bits_per_s = self.link_bits_per_s()? as f64;
        let left = (100 - self.cross) as f64 / 100.0;
        let (rack_hosts, rack_bits_per_s) = if self.lab {
            (self.rack_hosts, self.uplink_bits_per_s() as f64 * left)
        } else {
            (self.ranks, f64::INFINITY)
        };
        let links = Links { rack_hosts, host_bits_per_s, rack_bits_per_s };
        let frames = |bytes: u64| {
            bytes as f64 + bytes.div_ceil(packet.into()) as f64 * f64::from(FRAME_BYTES)
        };
        let bound = |frame: &dyn Fn(u64) -> f64| matrix.bound(&links, frame) * 1e6;
        Some((bound(&frames), bound(&|bytes| bytes as f64)))
    }

    /// The part of the task that all ranks share.
    fn spec(&self, members: Vec<SocketAddr>, packet: u32) -> std::io::Result<Spec> {
        let rate = self.link_bits_per_s();
        let packets =
            |rate: u64| (rate as f64 * RTT.as_secs_f64() / 8.0 / f64::from(packet)).ceil();
        let by_rate = rate.map_or(UNLIMITED_BYTES / packet, |rate| packets(rate) as u32).max(8);
        let rtt_packets = self.rtt_packets.unwrap_or(by_rate);
        // The time is far above the longest queue that grants allow.
        let granted_bytes = self.overcommit * f64::from(rtt_packets) * f64::from(packet);
        let queue = rate.map_or(0.0, |rate| granted_bytes * 8.0 / rate as f64);
        let mut epoch = [0; 4];
        evenfall_host::random::fill(&mut epoch)?;
        Ok(Spec {
            rank: 0,
            members,
            epoch: u32::from_le_bytes(epoch),
            seed: self.seed,
            row: Vec::new(),
            rounds: self.warm_up + self.rounds,
            watched_rounds: self.warm_up.max(1),
            packet_bytes: packet,
            rtt_packets,
            overcommit: self.overcommit,
            grant_packets: self.grant_packets,
            // In a lab, the link has a limit and a queue of its own. The pace is 5 % above the rate
            // of the link, so that the queue does not run dry when a rank is woken late.
            bits_per_s: if self.lab { rate.map(|rate| rate + rate / 20) } else { rate },
            resend_after: Duration::from_secs_f64(4.0 * queue).max(Duration::from_millis(20)),
            silence_max: self.silence,
            // In a lab, buffers are looked at until the first rounds are over.
            say_after: if self.lab || self.kill.is_some() { Duration::ZERO } else { SAY_AFTER },
        })
    }
}

/// An event of a rank: a line, or its end.
enum Said {
    Line(Line),
    /// A line of unknown form.
    Words(String),
    Ended,
}

/// The processes, which end when this value is dropped.
struct Ranks {
    children: Vec<Child>,
    said: Receiver<(usize, Said)>,
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            if !matches!(child.try_wait(), Ok(Some(_))) {
                send(child.id(), Signal::Kill);
            }
            // The rank was killed, so its exit status tells nothing.
            drop(child.wait());
        }
    }
}

/// This program, to be started once more. The process ends with this one.
pub(in crate::commands) fn program() -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| format!("own program: {error}"))?;
    let mut command = Command::new(program);
    // Ctrl-C on the terminal goes to this process alone, which ends the others.
    command.process_group(0);
    end_with_parent(&mut command, Signal::Kill);
    Ok(command)
}

fn listen(rank: usize, child: &mut Child, to: &Sender<(usize, Said)>) {
    let (out, to) = (child.stdout.take(), to.clone());
    std::thread::spawn(move || {
        for line in
            out.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(Result::ok)
        {
            let said = serde_json::from_str(&line).map_or(Said::Words(line), Said::Line);
            if to.send((rank, said)).is_err() {
                return;
            }
        }
        // The listener may be gone.
        to.send((rank, Said::Ended)).ok();
    });
}

impl Ranks {
    fn start(
        args: &Args,
        lab: Option<&NetworkLab>,
        inject: Option<&PathBuf>,
    ) -> Result<Self, String> {
        let (to, said) = channel();
        let cores = pin::available_cores();
        let mut ranks = Self { children: Vec::new(), said };
        for rank in 0..args.ranks {
            let bind = match lab {
                Some(lab) => SocketAddr::new(IpAddr::V4(lab.hosts.address(rank)), LAB_PORT),
                None => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            };
            let mut command = program()?;
            command.args(["bench", "rank", "--bind", &bind.to_string()]);
            command.args(["--yield-for", &format!("{}ns", args.yield_for().as_nanos())]);
            command.args(lab.map(|_| "--lab"));
            if args.pin {
                command.args(["--core", &cores[rank % cores.len()].to_string()]);
            }
            command.args(inject.iter().flat_map(|file| ["--inject".as_ref(), file.as_os_str()]));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            if let Some(lab) = lab {
                lab.hosts.inside(rank, &mut command).map_err(|error| error.to_string())?;
            }
            let mut child = command.spawn().map_err(|error| format!("rank {rank}: {error}"))?;
            listen(rank, &mut child, &to);
            ranks.children.push(child);
        }
        Ok(ranks)
    }

    /// The next event; `None` when none came for a while.
    fn next(&self) -> Result<Option<(usize, Said)>, String> {
        if interrupt::raised() {
            return Err("interrupted; the ranks were ended".into());
        }
        match self.said.recv_timeout(LOOK) {
            Ok(said) => Ok(Some(said)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err("all ranks are gone".into()),
        }
    }

    fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let mut found = vec![None; self.children.len()];
        let end = Instant::now() + STARTUP;
        while let Some(rank) = found.iter().position(Option::is_none) {
            match self.next()? {
                Some((rank, Said::Line(Line::Address(address)))) => found[rank] = Some(address),
                Some((rank, Said::Line(Line::Failed { words, .. }))) => {
                    return Err(format!("rank {rank}: {words}"));
                }
                Some((rank, _)) => return Err(format!("rank {rank} ended before it began")),
                None if Instant::now() > end => return Err(format!("rank {rank} does not start")),
                None => {}
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    fn tell(&mut self, spec: &Spec, matrix: &Matrix) -> Result<(), String> {
        for (rank, child) in self.children.iter_mut().enumerate() {
            let spec = Spec { rank, row: matrix.row(rank).to_vec(), ..spec.clone() };
            let line = serde_json::to_string(&spec).map_err(|error| error.to_string())?;
            let input = child.stdin.as_mut().ok_or("no pipe")?;
            writeln!(input, "{line}").map_err(|error| format!("rank {rank}: {error}"))?;
        }
        Ok(())
    }
}

/// The lines of all ranks.
#[derive(Default)]
struct Heard {
    /// Rounds by number, then by rank.
    rounds: Vec<Vec<Option<RankRound>>>,
    failures: Vec<(usize, Option<u16>, String, u64)>,
    killed_ns: Option<u64>,
    totals: Vec<Totals>,
    backlog_bytes_max: u64,
}

fn watch(args: &Args, ranks: &Ranks, lab: Option<&NetworkLab>) -> Result<Heard, String> {
    let total = args.warm_up + args.rounds;
    let mut heard = Heard { rounds: vec![vec![None; args.ranks]; total], ..Heard::default() };
    let (mut alive, mut shown) = (args.ranks, Instant::now());
    while alive > 0 {
        let said = ranks.next()?;
        match said {
            Some((rank, Said::Line(Line::Round(round)))) => {
                let number = round.number;
                if args.kill == Some((rank, number)) {
                    heard.killed_ns = Some(evenfall_host::clock::MonotonicClock::now().nanos());
                    send(ranks.children[rank].id(), Signal::Kill);
                }
                if let Some(slot) = heard.rounds.get_mut(number) {
                    slot[rank] = Some(round);
                }
            }
            Some((rank, Said::Line(Line::Failed { rank: blamed, words, at_ns }))) => {
                heard.failures.push((rank, blamed, words, at_ns));
            }
            Some((_, Said::Line(Line::Done(totals)))) => heard.totals.push(totals),
            Some((rank, Said::Words(words))) => return Err(format!("rank {rank}: {words}")),
            Some((_, Said::Ended)) => alive -= 1,
            Some((_, Said::Line(Line::Address(_)))) => {}
            None => {
                // Buffers are looked at only during the warm-up, because a look takes a core for
                // some milliseconds.
                let warming = heard.rounds.get(args.warm_up).is_some_and(|r| r[0].is_none());
                if let Some(lab) = lab.filter(|_| warming) {
                    let most = lab.backlogs().map_err(|error| error.to_string())?;
                    heard.backlog_bytes_max =
                        most.into_iter().fold(heard.backlog_bytes_max, u64::max);
                }
            }
        }
        if !args.json && shown.elapsed() > Duration::from_secs(2) {
            shown = Instant::now();
            let over =
                heard.rounds.iter().filter(|round| round.iter().all(Option::is_some)).count();
            aside!("round {over} of {total}");
        }
    }
    Ok(heard)
}

impl Heard {
    /// Checks that every message of every round arrived once and unchanged.
    fn check(&self) -> Result<(), String> {
        for (number, round) in self.rounds.iter().enumerate() {
            let all: Vec<&RankRound> = round.iter().flatten().collect();
            if all.len() != round.len() {
                return Err(format!("round {number}: {} ranks only ended it", all.len()));
            }
            for (to, receiver) in all.iter().enumerate() {
                for (from, sender) in all.iter().enumerate() {
                    if receiver.here.get(from) != sender.sent.get(to) {
                        return Err(format!(
                            "round {number}: what rank {to} got is not what rank {from} sent it"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Time of each counted round in microseconds, and its processor time.
    fn times(&self, warm_up: usize) -> (Vec<f64>, Vec<f64>) {
        let counted = || self.rounds.iter().skip(warm_up).map(|round| round.iter().flatten());
        let took = counted().map(|round| {
            let begin = round.clone().map(|r| r.begin_ns).min().unwrap_or(0);
            let end = round.map(|r| r.end_ns).max().unwrap_or(0);
            (end - begin) as f64 / 1e3
        });
        let cpu = counted().map(|round| round.map(|r| r.cpu_ns).sum::<u64>() as f64 / 1e3);
        (took.collect(), cpu.collect())
    }

    /// The error when ranks failed: which rank is blamed, by how many ranks, and how fast.
    fn verdict(&self, args: &Args) -> Result<(), String> {
        let Some((rank, blamed, words, _)) = self.failures.first() else { return Ok(()) };
        let Some(blamed) = blamed else { return Err(format!("rank {rank}: {words}")) };
        let naming = self.failures.iter().filter(|f| f.1 == Some(*blamed)).count();
        let dead = args.ranks - self.failures.len();
        let within = self.killed_ns.and_then(|killed| {
            let last = self.failures.iter().map(|failure| failure.3).max()?;
            Some(Duration::from_nanos(last.saturating_sub(killed)))
        });
        let when =
            within.map_or(String::new(), |within| format!(" within {within:.0?} of its death"));
        Err(format!(
            "rank {rank}: {words} ({naming} of {} ranks that were left name rank {blamed}{when}; \
             {dead} said nothing)",
            args.ranks - dead
        ))
    }
}

/// Starts the ranks, and prints their results.
pub fn main(args: &Args) -> Outcome {
    args.check()?;
    let matrix = args.matrix()?;
    interrupt::install()?;
    let lab = args.lab.then(|| NetworkLab::with_racks(&args.racks())).transpose()?;
    let _cross = match &lab {
        Some(lab) if args.cross > 0 => {
            let each = args.uplink_bits_per_s() * args.cross / 100;
            Some(super::cross::start(&lab.hosts, args.ranks, each)?)
        }
        _ => None,
    };
    let losses = match args.loss {
        0.0 => None,
        loss => {
            let file = std::env::temp_dir().join(format!("evenfall-loss-{}", std::process::id()));
            std::fs::write(&file, format!("* * 0 0 {loss}\n"))?;
            Some(file)
        }
    };
    let heard = play(args, &matrix, lab.as_ref(), losses.as_ref());
    losses.iter().for_each(|file| drop(std::fs::remove_file(file)));
    let (heard, packet) = heard?;
    heard.verdict(args)?;
    heard.check()?;
    let peers = match &args.mpi {
        Some(program) => super::mpi::beside(
            program,
            &matrix,
            (args.rounds, args.warm_up),
            args.pin,
            lab.as_ref().map(|lab| &lab.hosts),
        )?,
        None => Vec::new(),
    };
    report(args, &matrix, packet, &heard, &peers);
    Ok(())
}

fn play(
    args: &Args,
    matrix: &Matrix,
    lab: Option<&NetworkLab>,
    inject: Option<&PathBuf>,
) -> Result<(Heard, u32), String> {
    let mut ranks = Ranks::start(args, lab, inject)?;
    let members = ranks.addresses()?;
    let link = || link_mtu(members[0].ip(), members[1]);
    let mtu = match lab {
        Some(lab) => lab.hosts.within(0, link).and_then(|mtu| mtu),
        None => link(),
    };
    let mtu = mtu.map_err(|error| error.to_string())?;
    let packet = args.packet_bytes.unwrap_or_else(|| packet_bytes(mtu));
    let spec = args.spec(members, packet).map_err(|error| format!("/dev/urandom: {error}"))?;
    ranks.tell(&spec, matrix)?;
    let heard = watch(args, &ranks, lab)?;
    Ok((heard, packet))
}

fn report(args: &Args, matrix: &Matrix, packet: u32, heard: &Heard, peers: &[super::mpi::MpiPeer]) {
    let (took, cpu) = heard.times(args.warm_up);
    let (completion_us, cpu_us) = (median(took.clone()), median(cpu));
    let worst_us = took.iter().copied().fold(0.0, f64::max);
    let bounds = args.bounds(matrix, packet);
    let (bound_us, payload_us) = (bounds.map(|b| b.0), bounds.map(|b| b.1));
    let efficiency = bound_us.map(|bound| bound / completion_us);
    let nodes = matrix.nodes();
    let gbps = |us: f64| matrix.total() as f64 * 8.0 / nodes as f64 / us / 1e3;
    let messages = (nodes * (nodes - 1)) as f64;
    let cpu_us_per_message = cpu_us / messages;
    let sum = |of: fn(&Totals) -> u64| heard.totals.iter().map(of).sum::<u64>();
    let waiting = heard.totals.iter().map(|totals| totals.waiting_bytes_max).max();
    let buffer_bytes_max = heard.backlog_bytes_max.max(waiting.unwrap_or(0));
    let again = sum(|totals| totals.data_again);
    let us = |of: fn(&Totals) -> Duration| heard.totals.first().map(|t| of(t).as_secs_f64() * 1e6);
    if args.json {
        let peers: Vec<_> = peers.iter().map(|peer| peer.json(gbps(peer.completion_us))).collect();
        let result = json!({
            "completion_us": completion_us, "completion_us_max": worst_us, "bound_us": bound_us,
            "bound_payload_us": payload_us, "efficiency": efficiency,
            "throughput_gbps": gbps(completion_us), "buffer_bytes_max": buffer_bytes_max,
            "cpu_us_per_message": cpu_us_per_message, "skewness": matrix.skewness(),
            "ranks": nodes, "rounds": args.rounds, "seed": args.seed, "packet_bytes": packet,
            "data_sent": sum(|t| t.data_sent), "control_sent": sum(|t| t.control_sent),
            "data_again": again, "duplicates": sum(|t| t.duplicates),
            "injected_losses": sum(|t| t.injected_losses), "latency_us": us(|t| t.latency),
            "per_message_us": us(|t| t.per_message), "peers": peers,
        });
        say!("{result}");
        return;
    }
    say!("{nodes} ranks, message skewness {:.3}, medians of {}", matrix.skewness(), args.rounds);
    say!("  completed in   {completion_us:.0} us (slowest round {worst_us:.0})");
    match (bound_us, efficiency) {
        (Some(bound), Some(efficiency)) => {
            say!("  at least       {bound:.0} us: efficiency {:.1} %", efficiency * 100.0);
        }
        _ => say!("  at least       unknown: the links have no limit"),
    }
    say!("  throughput     {:.2} Gb/s per rank", gbps(completion_us));
    say!("  processor      {cpu_us_per_message:.1} us per message");
    say!("  largest buffer {buffer_bytes_max} bytes; {again} packets sent again");
    for peer in peers {
        say!(
            "  {:<14} {:.0} us, {:.2} Gb/s per rank",
            peer.name,
            peer.completion_us,
            gbps(peer.completion_us)
        );
    }
}
