//! The ranks of a burst: processes of this machine, or one rank on this host. Their reports.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use evenfall_collectives_member::{
    GroupError, GroupMember, GroupSocket, GroupSocketOptions, RankFailure, SEALED_MEMBERS_MAX,
    local_with, unlimited_settings,
};
use evenfall_core::Timestamp;
use evenfall_core::math::{FNV_BASIS, fnv1a};
use evenfall_host::whole_file::read_text_up_to;
use evenfall_query_member::{BurstRun, SortPhases, parse_addresses};
use evenfall_runtime::settings::read_key;
use humantime::parse_duration;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::agree::{RankFailed, StatedOptions, expect_same_options};
use crate::Outcome;

type Failure = Box<dyn std::error::Error>;

/// Ranks that one machine may be asked to run.
pub const LOCAL_RANKS_MAX: usize = 256;
/// Records or rows of a rank at most.
pub const RANK_ROWS_MAX: u64 = 1 << 32;
/// How long a waiting rank of this machine looks for arrivals before it sleeps, which spares most
/// wake-ups of a burst.
const YIELD_FOR: Duration = Duration::from_micros(200);

/// Where the ranks are, when they are not processes of this machine.
#[derive(clap::Args, Debug)]
pub struct HostArgs {
    /// Take part as one rank of many hosts: a file with the address of each rank, one a line. Every
    /// host runs this command with the same file and options, and with its own --rank.
    #[arg(long, value_name = "FILE", requires = "rank")]
    pub members: Option<PathBuf>,
    /// With --members: the number of this rank, from 0. Rank 0 prints the result.
    #[arg(long, value_name = "NUMBER", requires = "members")]
    pub rank: Option<usize>,
    /// The file of the shared key, which is the same at every host. Nothing is sent beyond loopback
    /// without a key. The key seals every datagram: no other host can read it or make one.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// How long a rank may be silent before the others name it: 3s by default, and 250ms for what a
    /// desk asks.
    #[arg(long, value_name = "DURATION", value_parser = parse_silence)]
    pub silence: Option<Duration>,
}

/// The silences that may be chosen. Below, the load of a host alone would name ranks, and above,
/// nobody waits for a name.
const SILENCES: RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_secs(86_400);

/// A time of silence.
fn parse_silence(text: &str) -> Result<Duration, String> {
    let silence = parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = SILENCES.contains(&silence).then_some(silence);
    allowed.ok_or_else(|| "must be between 5ms and 1day".to_owned())
}

/// How long a rank may be silent by default.
const SILENCE: Duration = Duration::from_secs(3);

/// Bytes of a file of addresses, positions or fills: some millions of lines.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// What a file that an option or a key names holds. Errors begin with both names.
pub fn read_named<T, E: std::fmt::Display>(
    option: &str,
    file: &Path,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, String> {
    let about = |error: &dyn std::fmt::Display| format!("{option} {}: {error}", file.display());
    let text = read_text_up_to(file, FILE_BYTES_MAX);
    parse(&text.map_err(|error| about(&error))?).map_err(|error| about(&error))
}

/// The lines of the file of addresses that an option names.
pub fn read_addresses(option: &str, file: &Path) -> Result<Vec<SocketAddr>, String> {
    read_named(option, file, parse_addresses)
}

impl HostArgs {
    /// Becomes a rank: of this many processes on this machine, which begin at `main` with the same
    /// arguments, or of the hosts of a file, which must have been started with the same options.
    pub fn join(&self, local: usize, options: &StatedOptions) -> Result<GroupMember, Failure> {
        match (&self.members, self.rank) {
            (Some(file), Some(rank)) => {
                let member = self.join_hosts(file, rank)?;
                let agreed = expect_same_options(member, options);
                agreed.map_err(|error| tell_rank(rank, explain_disagreement(rank, error)))
            }
            _ => self.join_local(local),
        }
    }

    fn join_local(&self, local: usize) -> Result<GroupMember, Failure> {
        self.refuse_key()?;
        if local == 0 || local > LOCAL_RANKS_MAX {
            return Err(format!("{local} ranks: between 1 and {LOCAL_RANKS_MAX}").into());
        }
        let any = SocketAddr::from(([127, 0, 0, 1], 9));
        let options = GroupSocketOptions { yield_for: YIELD_FOR, ..GroupSocketOptions::default() };
        let mut settings = unlimited_settings(options.packet_bytes(any, any)?);
        settings.shuffle.silence_max = self.silence();
        Ok(local_with(local, &options, &settings)?)
    }

    fn join_hosts(&self, file: &Path, rank: usize) -> Result<GroupMember, Failure> {
        let members = read_addresses("--members", file)?;
        let Some(&own) = members.get(rank) else {
            let count = members.len();
            return Err(format!("--rank {rank}: {} has {count} lines", file.display()).into());
        };
        let key = self.key_file.as_deref().map(read_key).transpose();
        let key = key.map_err(|why| format!("--key-file {why}"))?;
        if key.is_some() && members.len() > SEALED_MEMBERS_MAX {
            let count = members.len();
            return Err(format!("{count} ranks with a key: at most {SEALED_MEMBERS_MAX}").into());
        }
        let options = GroupSocketOptions { key, ..GroupSocketOptions::default() };
        let other = members.iter().find(|&&member| member != own).copied().unwrap_or(own);
        let mut settings = unlimited_settings(options.packet_bytes(own, other)?);
        settings.shuffle.silence_max = self.silence();
        settings.agreed = hash_list(&members);
        let socket = GroupSocket::bind(own, options)?;
        Ok(socket.join(rank, members, settings)?)
    }

    /// The number of ranks, of which `local` run on this machine without a file of hosts.
    pub fn rank_count(&self, local: usize) -> Result<usize, String> {
        match &self.members {
            Some(file) => Ok(read_addresses("--members", file)?.len()),
            None => Ok(local),
        }
    }

    fn silence(&self) -> Duration {
        self.silence.unwrap_or(SILENCE)
    }

    /// Leaves the group. A process of this machine that has done its part, but does not end because
    /// it is stopped, is killed and named.
    pub fn leave(&self, member: GroupMember) {
        for rank in member.leave_within(self.silence()) {
            let silence = humantime::format_duration(self.silence());
            aside!(
                "evenfall: rank {rank} has done its part, did not end within {silence}, and was \
                 killed"
            );
        }
    }

    /// Refuses a key where all ranks are processes of this machine.
    pub fn refuse_key(&self) -> Result<(), String> {
        match &self.key_file {
            Some(_) => Err("--key-file: ranks of this machine need no key".into()),
            None => Ok(()),
        }
    }

    /// Whether all ranks share the clock of this host.
    pub fn has_one_clock(&self) -> bool {
        self.members.is_none()
    }

    /// The end of a command at one rank. Where all ranks are processes of this command, a rank that
    /// another rank made fail says nothing, because rank 0 says it.
    pub fn end_rank(&self, rank: usize, end: Outcome) -> Outcome {
        match end {
            Err(error) if rank > 0 => {
                let is_of_all = matches!(error.downcast_ref(), Some(GroupError::Failed(_)))
                    || error.is::<RankFailed>();
                if is_of_all && self.has_one_clock() {
                    return Ok(());
                }
                Err(tell_rank(rank, error))
            }
            end => end,
        }
    }
}

/// A hash of the list of addresses, in which their order counts.
fn hash_list(members: &[SocketAddr]) -> u32 {
    let text = members.iter().map(|member| format!("{member}\n")).collect::<String>();
    fnv1a(FNV_BASIS, text.as_bytes()) as u32
}

/// The error of the first call, in which ranks disagree only about what they were started with.
fn explain_disagreement(own: usize, error: Failure) -> Failure {
    let failure = match error.downcast_ref() {
        Some(GroupError::Failed(failure)) => *failure,
        _ => return error,
    };
    let (rank, other) = match failure {
        RankFailure::Disagrees { rank } => (rank, own),
        RankFailure::Aborted { by, rank, disagrees: true } => (rank, by.into()),
        _ => return error,
    };
    let words = format!(
        "rank {rank} has another list of --members than rank {other}, another version of this \
         program, or a link of another MTU"
    );
    RankFailed(words).into()
}

/// The error of a rank, which has its name beside the errors of others. Rank 0 speaks for all, and
/// what all ranks say names the rank.
fn tell_rank(rank: usize, error: Failure) -> Failure {
    if rank == 0 || error.is::<RankFailed>() {
        error
    } else {
        format!("rank {rank}: {error}").into()
    }
}

/// What a rank says about its part of a burst.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct RankReport {
    /// Begin and end by the host's clock.
    pub began_ns: u64,
    pub ended_ns: u64,
    /// Processor time of the process.
    pub cpu_ns: u64,
    /// Each phase in nanoseconds.
    phases: BTreeMap<String, u64>,
    /// Records or rows of the input.
    pub records: u64,
    /// Records or rows of this rank's part.
    pub part: u64,
    /// Summaries of input and output, as they are on the wire.
    pub summaries: [Vec<u8>; 2],
}

impl RankReport {
    /// The report of a burst.
    pub fn of<O>(run: &BurstRun<O>, cpu: Duration) -> Self {
        let ended: Timestamp = run.began + run.took;
        Self {
            began_ns: run.began.nanos(),
            ended_ns: ended.nanos(),
            cpu_ns: cpu.as_nanos() as u64,
            phases: named(&run.phases),
            ..Self::default()
        }
    }

    /// Brings the reports of all ranks to rank 0; an empty list elsewhere.
    pub fn gather(&self, member: &mut GroupMember) -> Result<Vec<Self>, Failure> {
        let bodies = member.gather(0, Bytes::from(serde_json::to_vec(self)?))?;
        Ok(bodies.iter().map(|body| serde_json::from_slice(body)).collect::<Result<_, _>>()?)
    }
}

fn named(phases: &SortPhases) -> BTreeMap<String, u64> {
    phases.iter().map(|(&name, took)| (name.to_owned(), took.as_nanos() as u64)).collect()
}

/// Seconds from the first begin to the last end. Without a common clock it is the longest time of
/// one rank.
pub fn burst_seconds(reports: &[RankReport], has_one_clock: bool) -> f64 {
    let took_ns = if has_one_clock {
        let begin = reports.iter().map(|report| report.began_ns).min();
        let end = reports.iter().map(|report| report.ended_ns).max();
        end.unwrap_or(0) - begin.unwrap_or(0)
    } else {
        let took = reports.iter().map(|report| report.ended_ns - report.began_ns);
        took.max().unwrap_or(0)
    };
    took_ns as f64 / 1e9
}

/// The largest part over the mean; 1 where there is nothing.
pub fn part_imbalance(reports: &[RankReport]) -> f64 {
    let sum: u64 = reports.iter().map(|report| report.part).sum();
    let most = reports.iter().map(|report| report.part).max().unwrap_or(0);
    if sum == 0 { 1.0 } else { most as f64 * reports.len() as f64 / sum as f64 }
}

/// Mean and largest time of each phase over the ranks that have it, and the largest over the least.
/// A phase that no rank has is null.
pub fn phases_us(reports: &[RankReport], names: &[&str]) -> Value {
    let phase = |name: &&str| {
        let times: Vec<f64> = reports
            .iter()
            .filter_map(|report| report.phases.get(*name))
            .map(|&ns| ns as f64 / 1e3)
            .collect();
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        let most = times.iter().copied().fold(0.0, f64::max);
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        let ratio = (least > 0.0 && least.is_finite()).then_some(most / least);
        let all = json!({"mean": mean, "max": most, "max_over_min": ratio});
        ((*name).to_owned(), if times.is_empty() { Value::Null } else { all })
    };
    Value::Object(names.iter().map(phase).collect())
}

/// Prints a line for each phase.
pub fn print_phases(phases: &Value, names: &[&str]) {
    for name in names {
        let (Some(mean), Some(most)) =
            (phases[name]["mean"].as_f64(), phases[name]["max"].as_f64())
        else {
            continue;
        };
        say!("  {name:<14} {mean:>9.0} us in the mean, {most:>9.0} at most");
    }
}
