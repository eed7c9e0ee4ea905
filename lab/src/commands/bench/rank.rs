//! One rank of `evenfall bench shuffle`, in a process of its own.
//!
//! A rank prints its address, reads its task from standard input ([`Spec`]), and prints a line of
//! JSON for rounds ([`Line`]).

use std::hash::{DefaultHasher, Hasher};
use std::io::BufRead;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use evenfall_collectives_machine::ShuffleConfig;
use evenfall_collectives_machine::group::GroupSettings;
use evenfall_collectives_member::{GroupError, GroupMember, GroupSocket, GroupSocketOptions, pace};
use evenfall_core::Prng;
use evenfall_host::clock::{MonotonicClock, process_cpu};
use evenfall_host::{interrupt, pin};
use serde::{Deserialize, Serialize};

use evenfall_runtime::program::Outcome;
use humantime::parse_duration;

/// How far ahead of its pace a rank may run. A rank wakes every half of this time, and may be late
/// by the other half, as on a host with more ranks than cores.
const BURST: Duration = Duration::from_millis(10);

/// Arguments of the hidden `evenfall bench rank`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Address to bind.
    #[arg(long)]
    bind: SocketAddr,
    /// Mark datagrams, and take the key from the specification.
    #[arg(long)]
    lab: bool,
    /// Delays and losses to inject.
    #[arg(long)]
    inject: Option<PathBuf>,
    /// Core on which the rank stays.
    #[arg(long)]
    core: Option<usize>,
    /// How long to look for arrivals before each sleep.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    yield_for: Duration,
}

/// The task of a rank.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Spec {
    /// Number of the rank.
    pub rank: usize,
    /// All addresses.
    pub members: Vec<SocketAddr>,
    /// A number that tells this run from other runs at the same addresses.
    pub epoch: u32,
    /// Seed of the contents.
    pub seed: u64,
    /// The rank's row of the matrix, in bytes.
    pub row: Vec<u64>,
    /// Number of rounds, with the warm-up.
    pub rounds: usize,
    /// The first rounds, in which waiting bytes are looked at.
    pub watched_rounds: usize,
    /// Payload of a packet.
    pub packet_bytes: u32,
    /// See [`ShuffleConfig::rtt_packets`].
    pub rtt_packets: u32,
    /// See [`ShuffleConfig::overcommit`].
    pub overcommit: f64,
    /// See [`ShuffleConfig::grant_packets`].
    pub grant_packets: u32,
    /// Rate of the rank's link, if it is limited.
    pub bits_per_s: Option<u64>,
    /// See [`ShuffleConfig::resend_after`].
    pub resend_after: Duration,
    /// See [`ShuffleConfig::silence_max`].
    pub silence_max: Duration,
    /// How long the rank may delay the report of its rounds, because the reader of reports needs a
    /// core.
    pub say_after: Duration,
}

impl Spec {
    fn settings(&self) -> GroupSettings {
        let shuffle = ShuffleConfig {
            packet_bytes: self.packet_bytes,
            rtt_packets: self.rtt_packets,
            overcommit: self.overcommit,
            grant_packets: self.grant_packets,
            pace: self.bits_per_s.map(|rate| pace(rate, BURST)).unwrap_or_default(),
            resend_after: self.resend_after,
            silence_max: self.silence_max,
            ..ShuffleConfig::default()
        };
        GroupSettings { shuffle, epoch: self.epoch, ..GroupSettings::default() }
    }
}

/// One round at one rank. Times are of the host's monotonic clock.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RankRound {
    /// Number of the round.
    pub number: usize,
    /// Time of the call.
    pub begin_ns: u64,
    /// Time of the return.
    pub end_ns: u64,
    /// Processor time of this process between call and return.
    pub cpu_ns: u64,
    /// Hashes of the sent messages, by receiver.
    pub sent: Vec<u64>,
    /// Hashes of the received messages, by sender.
    pub here: Vec<u64>,
}

/// Counters of a rank over all rounds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Totals {
    /// Packets sent again.
    pub data_again: u64,
    /// Packets that came twice.
    pub duplicates: u64,
    /// Packets sent, repeats included.
    pub data_sent: u64,
    /// Datagrams without payload sent.
    pub control_sent: u64,
    /// Datagrams that were lost on purpose on arrival.
    pub injected_losses: u64,
    /// Most bytes that waited in the socket.
    pub waiting_bytes_max: u64,
    /// How long a small message takes.
    pub latency: Duration,
    /// How long the sender is busy with a small message.
    pub per_message: Duration,
}

/// A line that a rank prints.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The rank is bound to this address.
    Address(SocketAddr),
    /// A round is over.
    Round(RankRound),
    /// A call has failed.
    Failed {
        /// The rank to blame, if there is one.
        rank: Option<u16>,
        /// The failure in words.
        words: String,
        /// Time of the failure.
        at_ns: u64,
    },
    /// All rounds are over.
    Done(Totals),
}

fn say(line: &Line) -> Outcome {
    say!("{}", serde_json::to_string(line)?);
    Ok(())
}

/// The message from one rank to another in one round.
fn message(seed: u64, round: usize, (from, to): (usize, usize), bytes: u64) -> Bytes {
    let mut prng = Prng::new(seed).fork((round as u64) << 32 | (from << 16 | to) as u64);
    let mut out = Vec::with_capacity(bytes as usize + 8);
    while (out.len() as u64) < bytes {
        out.extend_from_slice(&prng.next_u64().to_le_bytes());
    }
    out.truncate(bytes as usize);
    Bytes::from(out)
}

fn hash(body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    hasher.finish()
}

/// Runs one rank to its end.
pub fn main(args: &Args) -> Outcome {
    let outcome = run(args);
    if let Err(error) = &outcome {
        let rank = match error.downcast_ref() {
            Some(GroupError::Failed(failure)) => Some(failure.rank()),
            _ => None,
        };
        let at_ns = MonotonicClock::now().nanos();
        say(&Line::Failed { rank, words: error.to_string(), at_ns })?;
    }
    outcome
}

fn run(args: &Args) -> Outcome {
    interrupt::install()?;
    let options = GroupSocketOptions {
        key: None,
        in_lab: args.lab,
        mark: args.lab,
        inject: args.inject.clone(),
        watch_queue: !args.lab,
        yield_for: args.yield_for,
    };
    if let Some(core) = args.core {
        pin::to_cores(&[core])?;
    }
    let seat = GroupSocket::bind(args.bind, options)?;
    say(&Line::Address(seat.address()))?;
    let mut text = String::new();
    std::io::stdin().lock().read_line(&mut text)?;
    let spec: Spec = serde_json::from_str(&text)?;
    let mut member = seat.join(spec.rank, spec.members.clone(), spec.settings())?;
    let (latency, per_message) = member.measure()?;
    let mut rounds = Vec::new();
    let mut said = MonotonicClock::now();
    for number in 0..spec.rounds {
        if number == spec.watched_rounds {
            member.stop_watching();
        }
        rounds.push(Line::Round(round(&mut member, &spec, number)?));
        if MonotonicClock::now().since(said) >= spec.say_after {
            rounds.drain(..).try_for_each(|round| say(&round))?;
            said = MonotonicClock::now();
        }
    }
    rounds.iter().try_for_each(say)?;
    let (counts, udp) = member.counters();
    let waiting_bytes_max = member.waiting_bytes_max();
    member.leave();
    say(&Line::Done(Totals {
        data_again: counts.data_again,
        duplicates: counts.duplicates,
        data_sent: counts.data_sent,
        control_sent: counts.control_sent,
        injected_losses: udp.inject_lost,
        waiting_bytes_max,
        latency,
        per_message,
    }))
}

fn round(member: &mut GroupMember, spec: &Spec, number: usize) -> Result<RankRound, GroupError> {
    let (seed, me) = (spec.seed, spec.rank);
    let one = |(to, &bytes): (usize, &u64)| message(seed, number, (me, to), bytes);
    let messages: Vec<Bytes> = spec.row.iter().enumerate().map(one).collect();
    let sent = messages.iter().map(|body| hash(body)).collect();
    // Keeping the messages keeps their memory, as MPI's ranks do, so that no round frees it.
    let _kept = messages.clone();
    member.barrier()?;
    let (begin, cpu) = (MonotonicClock::now(), process_cpu());
    let here = member.shuffle(messages)?;
    let (end, cpu_ns) = (MonotonicClock::now(), (process_cpu() - cpu).as_nanos() as u64);
    // The barrier keeps this rank from taking a core for its checks while a slower rank still
    // shuffles.
    member.barrier()?;
    let here = here.iter().map(|body| hash(body)).collect();
    let (begin_ns, end_ns) = (begin.nanos(), end.nanos());
    Ok(RankRound { number, begin_ns, end_ns, cpu_ns, sent, here })
}
