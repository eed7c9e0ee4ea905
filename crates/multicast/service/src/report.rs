//! The report of a run. It joins the run logs of all processes and states how fair the run was, in
//! numbers and in one self-contained page.
//!
//! ```text
//! run directory                                    ledger              page
//!   run.json        settings, receivers, events ------------------------+
//!   root.evlog       --+                                                |
//!   receiver-1.evlog --+-- merged by time --> Ledger ------> LedgerOutcome --> report.html
//!   receiver-2.evlog --+                             |
//!                                                    +--> fairness.csv, one line per message
//! ```
//!
//! Logs are merged as streams. Memory therefore follows the number of messages in flight and not
//! the length of the run.

mod clocks;
pub mod compare;
mod departures;
pub mod text;
pub mod verdict;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use evenfall_core::{ClockError, NodeId};
use evenfall_multicast_report::{Config, FairnessRow, Ledger, LedgerOutcome, MESSAGE_BYTES};
use serde::Serialize;

pub use self::clocks::ClockCurve;
use self::clocks::ClockTrack;
pub use crate::runinfo::{NodeInfo, RUN_FILE, ReceiverMembership, RunEvent, RunInfo, RunInfoError};
use crate::runlog::{
    self, LoggedRole, RunLogError, RunLogHeader, RunLogReader, RunLogRecord, RunLogTail,
};
use evenfall_runtime::memory::{self, MemoryCurve};
use evenfall_runtime::page::page;

/// Messages sent are read this far ahead of the releases, so that a release never comes before its
/// message, even when clocks disagree by as much.
const READ_AHEAD_NS: u64 = 1_000_000_000;
/// Memory for the messages in flight while logs are joined.
const JOIN_BYTES_MAX: usize = 256 << 20;

const SCRIPT: &str = include_str!("../../../../web/report.js");

/// One log, as read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogLine {
    /// File name.
    pub file: String,
    /// Name of the process that wrote the log.
    pub name: String,
    /// Role of the process.
    pub role: String,
    /// Whole records in the log.
    pub records: u64,
    /// How the log ended.
    pub tail: String,
}

/// The contents of a page. A simulation has no logs and makes a report directly.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Facts about the run.
    pub info: RunInfo,
    /// Figures of the run.
    pub outcome: LedgerOutcome,
    /// The logs that were read.
    pub logs: Vec<LogLine>,
    /// Memory over the run, of the [`memory::CURVES_MAX`] processes that used most, as far as they
    /// recorded it.
    pub memory: Vec<MemoryCurve>,
    /// The clocks of the processes over the run. In a run of many processes, only the processes
    /// with the widest bounds are listed.
    pub clocks: Vec<ClockCurve>,
    /// Facts that a reader must know before believing the figures.
    pub warnings: Vec<String>,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A file could not be read or written.
    #[error("{}: {error}", .0.display(), error = .1)]
    Io(PathBuf, io::Error),
    /// The description of the run is missing or broken.
    #[error(transparent)]
    Info(#[from] RunInfoError),
    /// A log is broken.
    #[error("{} {error}", .0.display(), error = .1)]
    Log(PathBuf, RunLogError),
    /// The directory has no log of a root.
    #[error(
        "{}: no log of a root (*.{}); is this the directory of a run?",
        .0.display(),
        runlog::EXTENSION
    )]
    NoRoot(PathBuf),
    /// The root ended while it waited for its nodes.
    #[error(
        "{}: the tree never stood, so nothing was sent: the root ended while it waited for its \
         nodes. It says on standard error for whom",
        .0.display()
    )]
    NeverStood(PathBuf),
}

/// Reads a run directory and judges the run. `each_row` gets every closed message, for an export of
/// the fairness log.
///
/// # Errors
/// [`ReportError`]. A log that was cut off is no error, but a warning.
pub fn read(
    directory: &Path,
    mut each_row: Option<&mut dyn FnMut(&FairnessRow)>,
) -> Result<Report, ReportError> {
    let mut info = RunInfo::read(directory)?;
    let mut departures = departures::settle(&mut info, directory)?;
    let mut logs = open_logs(directory)?;
    if !logs.iter().any(|log| log.reader.header().role == LoggedRole::Root) {
        return Err(ReportError::NoRoot(directory.to_owned()));
    }
    let mut ledger = ledger(&info, each_row.is_some());
    let mut courses = Vec::new();
    courses.resize_with(logs.len(), ClockTrack::default);
    let clock = join(&mut logs, info.is_planted, &mut ledger, &mut courses, &mut each_row);
    ledger.close_all();
    drain(&mut ledger, &mut each_row);
    let outcome = ledger.finish(clock);
    if outcome.results.messages == 0 && !info.events.iter().any(|event| event.kind == "view") {
        return Err(ReportError::NeverStood(directory.to_owned()));
    }
    let mut warnings = warnings(&info, &logs, &outcome);
    warnings.append(&mut departures);
    let memory = logs.iter().filter_map(|log| memory::read(directory, &log.name()));
    let memory = memory::largest(memory);
    let clocks = clocks::curves(logs.iter().map(Log::name).zip(courses));
    let logs = logs.iter().map(Log::line).collect();
    Ok(Report { info, outcome, logs, memory, clocks, warnings })
}

/// The data of the page's script: the report, and the verdict that the terminal prints too.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    report: &'a Report,
    verdict: String,
    mood: verdict::Mood,
}

impl Report {
    /// The page.
    pub fn html(&self) -> String {
        let (verdict, mood) = (verdict::sentence(self), verdict::mood(self));
        page(&self.info.title, SCRIPT, &Shown { report: self, verdict, mood })
    }

    /// Writes the page.
    ///
    /// # Errors
    /// [`ReportError::Io`].
    pub fn write_html(&self, path: &Path) -> Result<(), ReportError> {
        let written = std::fs::write(path, self.html());
        written.map_err(|error| ReportError::Io(path.to_owned(), error))
    }
}

/// Whether people trade on what this node releases: behind a gateway, its participants do.
fn does_release(node: &NodeInfo) -> bool {
    [LoggedRole::Receiver, LoggedRole::Gateway].iter().any(|role| role.to_string() == node.role)
}

/// A ledger that expects of every receiver the messages that the run expected.
pub(crate) fn ledger(info: &RunInfo, rows: bool) -> Ledger {
    let all = info.nodes.iter().filter(|node| does_release(node)).map(|node| node.id);
    let partial = |id: &NodeId| info.memberships.iter().any(|m| m.receiver == *id);
    let founders: Vec<NodeId> = all.clone().filter(|id| !partial(id)).collect();
    let per_message = MESSAGE_BYTES + all.count().div_ceil(8);
    let in_flight_max = JOIN_BYTES_MAX / per_message;
    let mut ledger = Ledger::new(Config { receivers: founders, in_flight_max, rows });
    for membership in &info.memberships {
        ledger.join(membership.receiver, membership.stream, membership.from);
        if let Some(until) = membership.until {
            ledger.leave(membership.receiver, membership.stream, until);
        }
    }
    ledger
}

struct Log {
    file: String,
    reader: RunLogReader<File>,
}

impl Log {
    /// Name of the node, with the number of its life when it had several: `receiver-1.1.evlog` has
    /// the log of `receiver-1.1`.
    fn name(&self) -> String {
        let name = &self.reader.header().name;
        let stem = self.file.strip_suffix(runlog::EXTENSION).unwrap_or_default();
        let rest = stem.strip_prefix(name.as_str()).unwrap_or_default().trim_matches('.');
        let is_life = !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
        if is_life { format!("{name}.{rest}") } else { name.clone() }
    }

    fn line(&self) -> LogLine {
        let header = self.reader.header();
        LogLine {
            file: self.file.clone(),
            name: self.name(),
            role: header.role.to_string(),
            records: self.reader.records(),
            tail: self.reader.tail().to_string(),
        }
    }
}

fn open(path: &Path) -> Result<RunLogReader<File>, ReportError> {
    let file = File::open(path).map_err(|error| ReportError::Io(path.to_owned(), error))?;
    RunLogReader::new(file).map_err(|error| ReportError::Log(path.to_owned(), error))
}

/// Whether a process took part in a run before that of the root that started at this time. No
/// receiver and no standby outlives its root's run, and no message is sent before the root has
/// started.
fn is_earlier(path: &Path, root_started_ns: u64) -> Result<bool, ReportError> {
    let first = open(path)?.find_map(|record| match record {
        RunLogRecord::Released(released) => Some(released.release_ns),
        RunLogRecord::Sent(sent) => Some(sent.sent_ns),
        _ => None,
    });
    Ok(first.is_some_and(|at_ns| at_ns < root_started_ns))
}

/// Logs of the last run in the directory, by file name. A root that is started again begins another
/// run, and leaves the logs of the previous run in place.
fn open_logs(directory: &Path) -> Result<Vec<Log>, ReportError> {
    let io = |error| ReportError::Io(directory.to_owned(), error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|extension| extension == runlog::EXTENSION) {
            paths.push(path);
        }
    }
    paths.sort();
    let mut logs = Vec::new();
    for path in &paths {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        logs.push(Log { file, reader: open(path)? });
    }
    let roots = logs.iter().map(|log| log.reader.header()).filter(|h| h.role == LoggedRole::Root);
    let Some(root_started_ns) = roots.map(|header| header.started_ns).max() else {
        return Ok(logs);
    };
    let mut last = Vec::new();
    for (path, log) in paths.iter().zip(logs) {
        let RunLogHeader { role, started_ns, .. } = log.reader.header();
        let is_over = *started_ns < root_started_ns
            && (*role == LoggedRole::Root || is_earlier(path, root_started_ns)?);
        if !is_over {
            last.push(log);
        }
    }
    Ok(last)
}

/// Feeds all logs to the ledger, roughly in the order of time, and the readings of their clocks to
/// `courses`. Returns the largest clock error.
///
/// In a run with planted clocks, each log's offset is taken out of its times. What remains is the
/// host's local clock, which all processes share. The windows of such a run are therefore exact.
fn join(
    logs: &mut [Log],
    is_planted: bool,
    ledger: &mut Ledger,
    courses: &mut [ClockTrack],
    each_row: &mut Option<&mut dyn FnMut(&FairnessRow)>,
) -> ClockError {
    let mut clock = ClockError::SameClock;
    let mut heap = BinaryHeap::new();
    let mut heads: Vec<Option<RunLogRecord>> = Vec::new();
    let mut offsets = vec![0; logs.len()];
    let mut errors: Vec<ClockError> = logs.iter().map(|log| log.reader.header().clock).collect();
    // A root and its standbys log the same messages in the same order. A log ends where its process
    // was killed, so each message counts where it comes first.
    let has_standbys = logs.iter().any(|log| log.reader.header().role == LoggedRole::Standby);
    let mut next: BTreeMap<u32, u64> = BTreeMap::new();
    for (at, log) in logs.iter_mut().enumerate() {
        clock = worse(clock, log.reader.header().clock);
        let head = log.reader.next();
        heap.push(Reverse((head.as_ref().map_or(0, |record| turn(record, 0)), at)));
        heads.push(head);
    }
    while let Some(Reverse((turn_now, at))) = heap.pop() {
        let Some(record) = heads[at].take() else { continue };
        let record = if is_planted { record.moved_back(offsets[at]) } else { record };
        let RunLogHeader { role, node: receiver, .. } = *logs[at].reader.header();
        match record {
            RunLogRecord::Sent(sent) => {
                let next = next.entry(sent.stream).or_default();
                if !has_standbys || sent.message >= *next {
                    *next = sent.message + 1;
                    ledger.sent(&sent);
                }
            }
            RunLogRecord::Clock { at_ns, reading } => {
                courses[at].read(at_ns, reading);
                (offsets[at], errors[at]) = (reading.offset_ns, reading.error);
                clock = worse(clock, reading.error);
            }
            // Nobody trades on the messages that a recorder releases.
            _ if role == LoggedRole::Recorder => {}
            RunLogRecord::Released(released) => {
                let error = if is_planted { ClockError::SameClock } else { errors[at] };
                ledger.clock(receiver, error);
                ledger.released(&released);
            }
            RunLogRecord::Lost(lost) => ledger.lost(&lost),
            RunLogRecord::Duplicates(count) => ledger.duplicates(receiver, count),
            RunLogRecord::Handed(handed) => ledger.count_handed(&handed),
            RunLogRecord::End(_) => {}
        }
        drain(ledger, each_row);
        if let Some(next) = logs[at].reader.next() {
            heap.push(Reverse((turn(&next, turn_now), at)));
            heads[at] = Some(next);
        }
    }
    clock
}

/// The time at which a record is fed. A record without a time follows the record before it.
fn turn(record: &RunLogRecord, before: u64) -> u64 {
    match record {
        RunLogRecord::Sent(sent) => sent.sent_ns.saturating_sub(READ_AHEAD_NS),
        // A reading that waited for its time would hold up the sent records behind it, which are
        // read ahead.
        RunLogRecord::Clock { .. } => before,
        other => other.at_ns().unwrap_or(before),
    }
}

fn drain(ledger: &mut Ledger, each_row: &mut Option<&mut dyn FnMut(&FairnessRow)>) {
    if let Some(each_row) = each_row {
        while let Some(row) = ledger.poll_row() {
            each_row(&row);
        }
    }
}

fn worse(a: ClockError, b: ClockError) -> ClockError {
    match (a, b) {
        (ClockError::Disproved, _) | (_, ClockError::Disproved) => ClockError::Disproved,
        (ClockError::Unknown, _) | (_, ClockError::Unknown) => ClockError::Unknown,
        (ClockError::Within(a), ClockError::Within(b)) => ClockError::Within(a.max(b)),
        (within @ ClockError::Within(_), _) | (_, within) => within,
    }
}

fn warnings(info: &RunInfo, logs: &[Log], outcome: &LedgerOutcome) -> Vec<String> {
    let mut warnings = Vec::new();
    for node in info.nodes.iter().filter(|node| does_release(node)) {
        if !logs.iter().any(|log| log.reader.header().node == node.id) {
            warnings.push(format!(
                "{} ({}) left no log: all it should have is lost",
                node.name, node.id
            ));
        }
    }
    for log in logs {
        if *log.reader.tail() != RunLogTail::Clean {
            warnings.push(format!("{}: {}", log.file, log.reader.tail()));
        }
        if log.reader.malformed() > 0 {
            warnings.push(format!("{}: {} records unreadable", log.file, log.reader.malformed()));
        }
    }
    let why = match outcome.results.clock_error_us.0 {
        ClockError::Unknown => Some("At least one process states no bound on its clock's error"),
        ClockError::Disproved => Some("A clock left the bound that other nodes proved for it"),
        ClockError::SameClock | ClockError::Within(_) => None,
    };
    warnings.extend(
        why.map(|why| format!("{why}: times compared between hosts may be off by any amount.")),
    );
    if outcome.results.released_again > 0 {
        let again = outcome.results.released_again;
        warnings.push(format!("{again} copies were released or reported twice: a broken protocol"));
    }
    if outcome.results.orphans > 0 {
        let orphans = outcome.results.orphans;
        warnings.push(format!("{orphans} records belong to no message of the root's log"));
    }
    warnings
}

#[cfg(test)]
mod tests;
