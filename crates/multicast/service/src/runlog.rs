//! Run logs. Each process of a run records what it did and when, and no conclusions.
//!
//! Fairness is a statement about many processes, so no process can judge it alone. Sending the
//! times over the network would disturb the measured network. Every process therefore appends
//! fixed-size records to a file of its own, and [`report`](crate::report) joins the files
//! afterwards.
//!
//! All numbers are little-endian, all times nanoseconds on the synchronised clock.
//!
//! ```text
//! header, 64 bytes
//!  0        8         10     11      12     16             24           32                  64
//!  +--------+---------+------+-------+------+--------------+------------+-------------------+
//!  |EVENLOG\n| version| role | clock | node | clock error  | started    | name, zero padded |
//!  +--------+---------+------+-------+------+--------------+------------+-------------------+
//!
//! record, 40 bytes
//!  0      1       2       4        8          16           24           32           40
//!  +------+-------+-------+--------+----------+------------+------------+------------+
//!  | kind | flags | count | stream | message  | a          | b          | c          |
//!  +------+-------+-------+--------+----------+------------+------------+------------+
//!  1 sent                   stream   message    scheduled    sent         deadline
//!  2 released flags  count  stream   first      arrival      release      via, taken
//!  3 lost                   stream   first      how many
//!  4 duplicates                                 how many
//!  5 clock    source                            at           error        offset
//!  6 end                                        records before it
//!  7 handed           count  stream   first      release      handed
//! ```
//!
//! The last field of a release is two halves of 32 bits: the node that sent the copy, and the time
//! from the arrival until the program took the copy, at most 4.3 s. Logs of versions without that
//! time have a zero in its place. The offset of a clock is what the process adds to the local clock
//! of its host. The times of the log contain the offset.
//!
//! A process that is killed leaves no `end` record, and possibly a part of a record. The reader
//! keeps all whole records and states how the file ended.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use evenfall_core::{ClockError, ClockReading, NodeId};
use evenfall_multicast_report::{Flags, Handed, Lost, Released, SentMessage};

mod background;

pub use self::background::{LogOutput, LogThread};

/// Name of the file that describes a run.
pub const RUN_FILE: &str = "run.json";
/// File name extension of run logs.
pub const EXTENSION: &str = "evlog";
/// Length of the header.
pub const HEADER_BYTES: usize = 64;
/// Length of a record.
pub const RECORD_BYTES: usize = 40;
/// Longest name. The rest of a longer name is cut off.
pub const NAME_BYTES_MAX: usize = 32;

const MAGIC: [u8; 8] = *b"EVENLOG\n";
const VERSION: u16 = 1;
/// Records that are held in memory until the process is idle. 256 KiB hold 6,500 records, which are
/// 65 ms at 100,000 messages a second.
const PENDING_BYTES_MAX: usize = 256 << 10;
/// The least that an idle moment writes. Less than a page is not worth a system call.
const IDLE_BYTES_MIN: usize = 4 << 10;
/// Bytes that the reader asks for at a time.
const READ_BYTES: usize = RECORD_BYTES * 4_096;

/// The role of a process in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum LoggedRole {
    /// Sends the feed.
    Root = 1,
    /// Forwards the feed.
    Proxy = 2,
    /// Releases the feed.
    Receiver = 3,
    /// Releases the feed into a store. Nobody trades on a recorder's releases, so the report does
    /// not count it as a receiver.
    Recorder = 4,
    /// Votes on the feed, and may send it later. Its log has every message that was sent.
    Standby = 5,
    /// Releases the feed, and hands it on to participants who are no nodes.
    Gateway = 6,
}

impl fmt::Display for LoggedRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "root",
            Self::Proxy => "proxy",
            Self::Receiver => "receiver",
            Self::Recorder => "recorder",
            Self::Standby => "standby",
            Self::Gateway => "gateway",
        })
    }
}

/// Name of a node's log. The other files of the node are named after it in the same way.
pub fn file_name(node: &str) -> String {
    format!("{node}.{EXTENSION}")
}

/// Earlier lives of a node whose files are kept. When a node has more lives, the last number is
/// used again.
const LIVES_MAX: u32 = 99;

/// The file of an earlier life: `a.evlog` becomes `a.1.evlog`.
fn numbered(name: &str, life: u32) -> String {
    match name.rsplit_once('.') {
        Some((stem, extension)) => format!("{stem}.{life}.{extension}"),
        None => format!("{name}.{life}"),
    }
}

/// Renames the files that an earlier life of a node left in a directory, all with the same number.
/// The releases of that life are recorded in its log and nowhere else.
pub(crate) fn set_aside(directory: &Path, names: &[String]) -> io::Result<()> {
    let there = |name: &&String| directory.join(name).exists();
    let is_free = |life: &u32| !names.iter().any(|n| directory.join(numbered(n, *life)).exists());
    let life = (1..LIVES_MAX).find(is_free).unwrap_or(LIVES_MAX);
    names.iter().filter(there).try_for_each(|name| {
        std::fs::rename(directory.join(name), directory.join(numbered(name, life)))
    })
}

/// The process that wrote a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunLogHeader {
    /// Role of the process.
    pub role: LoggedRole,
    /// Id of the process.
    pub node: NodeId,
    /// Name of the process in the settings.
    pub name: String,
    /// Error of its synchronised clock at the start.
    pub clock: ClockError,
    /// When the process started.
    pub started_ns: u64,
}

/// A record of a run log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunLogRecord {
    /// The root sent a message.
    Sent(SentMessage),
    /// This receiver released a frame. The receiver's id is in the header and not repeated here.
    Released(Released),
    /// This receiver reported a loss.
    Lost(Lost),
    /// This receiver dropped this many further copies since its last such record.
    Duplicates(u64),
    /// The clock was read anew.
    Clock {
        /// When the clock was read.
        at_ns: u64,
        /// The offset to the local clock and the error, from this record on.
        reading: ClockReading,
    },
    /// The process ended normally, after this many records.
    End(u64),
    /// This gateway handed a frame on.
    Handed(Handed),
}

impl RunLogRecord {
    /// The record with each of its times moved back by this many nanoseconds.
    pub fn moved_back(mut self, by_ns: i64) -> Self {
        let back = |ns: &mut u64| *ns = ns.saturating_add_signed(by_ns.saturating_neg());
        match &mut self {
            Self::Sent(sent) => {
                back(&mut sent.scheduled_ns);
                back(&mut sent.sent_ns);
                sent.deadline_ns.iter_mut().for_each(back);
            }
            Self::Released(released) => {
                back(&mut released.arrival_ns);
                back(&mut released.taken_ns);
                back(&mut released.release_ns);
            }
            Self::Clock { at_ns, .. } => back(at_ns),
            Self::Handed(handed) => {
                back(&mut handed.released_ns);
                back(&mut handed.handed_ns);
            }
            Self::Lost(_) | Self::Duplicates(_) | Self::End(_) => {}
        }
        self
    }

    /// Time of the record, if the record has a time.
    pub fn at_ns(&self) -> Option<u64> {
        match self {
            Self::Sent(sent) => Some(sent.sent_ns),
            Self::Released(released) => Some(released.release_ns),
            Self::Clock { at_ns, .. } => Some(*at_ns),
            Self::Handed(handed) => Some(handed.handed_ns),
            Self::Lost(_) | Self::Duplicates(_) | Self::End(_) => None,
        }
    }
}

/// Appends records to memory, and hands them to its output when the process is idle.
#[derive(Debug)]
pub struct RunLogWriter<W> {
    out: W,
    pending: Vec<u8>,
    records: u64,
    written_in_a_hurry: u64,
    failed: Option<io::Error>,
    dropped: u64,
}

/// Figures of the writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Records in the file.
    pub records: u64,
    /// Times that memory was full and the busy path had to hand it over.
    pub in_a_hurry: u64,
}

impl RunLogWriter<LogThread> {
    /// Creates the log of this node in a run directory: `<name>.evlog`. A thread writes the file.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn create(directory: &Path, header: &RunLogHeader) -> io::Result<Self> {
        let mut file = std::fs::File::create(directory.join(file_name(&header.name)))?;
        file.write_all(&encode_header(header))?;
        Ok(Self::behind_header(LogThread::start(file)?))
    }
}

impl<W: LogOutput> RunLogWriter<W> {
    /// Writes the header. The writer has a buffer of its own, so `out` should have none.
    ///
    /// # Errors
    /// The errors of `out`.
    pub fn new(mut out: W, header: &RunLogHeader) -> io::Result<Self> {
        out.put_bytes(&mut encode_header(header).to_vec())?;
        Ok(Self::behind_header(out))
    }

    fn behind_header(out: W) -> Self {
        let pending = Vec::with_capacity(PENDING_BYTES_MAX);
        Self { out, pending, records: 0, written_in_a_hurry: 0, failed: None, dropped: 0 }
    }

    /// Appends a record to memory. It hands records over only when memory is full, which
    /// [`Written::in_a_hurry`] counts. A log that cannot be written must not stop the feed. The
    /// first failure is therefore kept for [`finish`](Self::finish), and later records are dropped.
    #[inline]
    pub fn append(&mut self, record: &RunLogRecord) {
        if self.pending.len() + RECORD_BYTES > PENDING_BYTES_MAX {
            self.written_in_a_hurry += 1;
            self.hand_over();
        }
        if self.failed.is_some() {
            self.dropped += 1;
            return;
        }
        self.records += 1;
        self.pending.extend_from_slice(&encode(record));
    }

    /// The process is idle: hands records over if enough of them wait. Returns whether it did.
    pub fn idle(&mut self) -> bool {
        let worth_it = self.pending.len() >= IDLE_BYTES_MIN;
        if worth_it {
            self.hand_over();
        }
        worth_it
    }

    /// Writes all records, and returns when they are written.
    pub fn flush(&mut self) {
        self.hand_over();
        if self.failed.is_none() {
            self.failed = self.out.settle_bytes().err();
        }
    }

    /// Writes all records and an end record.
    ///
    /// # Errors
    /// The first failure since the log was created.
    pub fn finish(mut self) -> io::Result<Written> {
        let records = self.records;
        self.append(&RunLogRecord::End(records));
        self.flush();
        match self.failed {
            None => Ok(Written { records: self.records, in_a_hurry: self.written_in_a_hurry }),
            Some(error) => {
                let dropped = self.dropped;
                Err(io::Error::new(error.kind(), format!("{error}; {dropped} records dropped")))
            }
        }
    }

    fn hand_over(&mut self) {
        if self.failed.is_none() {
            self.failed = self.out.put_bytes(&mut self.pending).err();
        }
        // Bytes that could not be written are dropped.
        self.pending.clear();
    }
}

/// How a log ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunLogTail {
    /// The log was not read to its end yet.
    #[default]
    Unread,
    /// The log has an end record.
    Clean,
    /// The log has no end record: the process was killed, or still runs. This many bytes of a half
    /// record are left over.
    Cut(usize),
    /// Reading the file failed.
    Failed(String),
}

impl fmt::Display for RunLogTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unread => f.write_str("not read to its end"),
            Self::Clean => f.write_str("clean end"),
            Self::Cut(0) => f.write_str("no end record: the process was killed, or still runs"),
            Self::Cut(bytes) => write!(f, "cut off within a record ({bytes} bytes left over)"),
            Self::Failed(error) => write!(f, "could not be read on: {error}"),
        }
    }
}

/// Why a file is no run log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunLogError {
    /// The file could not be read.
    #[error("cannot be read: {0}")]
    Io(io::Error),
    /// The file does not begin as a run log.
    #[error("is no run log: it does not begin with EVENLOG")]
    Foreign,
    /// The log has another version.
    #[error("is a run log of version {0}; this program reads {VERSION}")]
    Version(u16),
    /// A header field has no meaning.
    #[error("has a run log header with a wrong {0}")]
    Header(&'static str),
}

/// Reads a log record by record.
#[derive(Debug)]
pub struct RunLogReader<R> {
    input: R,
    header: RunLogHeader,
    buffer: Vec<u8>,
    at: usize,
    records: u64,
    malformed: u64,
    tail: RunLogTail,
}

impl<R: Read> RunLogReader<R> {
    /// Reads the header. The reader has a buffer of its own, so `input` needs none.
    ///
    /// # Errors
    /// [`RunLogError`] when the input is no run log of this version.
    pub fn new(mut input: R) -> Result<Self, RunLogError> {
        let mut bytes = [0; HEADER_BYTES];
        input.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => RunLogError::Foreign,
            _ => RunLogError::Io(error),
        })?;
        let header = decode_header(&bytes)?;
        let (buffer, tail) = (Vec::new(), RunLogTail::Unread);
        Ok(Self { input, header, buffer, at: 0, records: 0, malformed: 0, tail })
    }

    /// The process that wrote the log.
    pub fn header(&self) -> &RunLogHeader {
        &self.header
    }

    /// Records read so far, with the end record.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Records of no known kind, skipped.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// How the log ended, once it was read to its end.
    pub fn tail(&self) -> &RunLogTail {
        &self.tail
    }

    /// Makes the next record available in the buffer; false at the end.
    fn fill(&mut self) -> bool {
        if self.buffer.len() - self.at >= RECORD_BYTES {
            return true;
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        let missing = (READ_BYTES - self.buffer.len()) as u64;
        if let Err(error) = self.input.by_ref().take(missing).read_to_end(&mut self.buffer) {
            self.tail = RunLogTail::Failed(error.to_string());
            return false;
        }
        if self.buffer.len() < RECORD_BYTES {
            self.tail = RunLogTail::Cut(self.buffer.len());
            return false;
        }
        true
    }
}

impl<R: Read> Iterator for RunLogReader<R> {
    type Item = RunLogRecord;

    fn next(&mut self) -> Option<RunLogRecord> {
        while self.tail == RunLogTail::Unread && self.fill() {
            let bytes = self.buffer[self.at..].first_chunk::<RECORD_BYTES>()?;
            let record = decode(bytes, self.header.node);
            self.at += RECORD_BYTES;
            let Some(record) = record else {
                self.malformed += 1;
                continue;
            };
            self.records += 1;
            if matches!(record, RunLogRecord::End(_)) {
                self.tail = RunLogTail::Clean;
            }
            return Some(record);
        }
        None
    }
}

fn clock_code(clock: ClockError) -> (u8, u64) {
    match clock {
        ClockError::SameClock => (0, 0),
        ClockError::Within(bound) => (1, u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX)),
        ClockError::Unknown => (2, 0),
        ClockError::Disproved => (3, 0),
    }
}

fn clock_of(code: u8, error_ns: u64) -> Option<ClockError> {
    match code {
        0 => Some(ClockError::SameClock),
        1 => Some(ClockError::Within(Duration::from_nanos(error_ns))),
        2 => Some(ClockError::Unknown),
        3 => Some(ClockError::Disproved),
        _ => None,
    }
}

fn encode_header(header: &RunLogHeader) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let (source, error_ns) = clock_code(header.clock);
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10] = header.role as u8;
    bytes[11] = source;
    bytes[12..16].copy_from_slice(&header.node.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&error_ns.to_le_bytes());
    bytes[24..32].copy_from_slice(&header.started_ns.to_le_bytes());
    let end = (0..=NAME_BYTES_MAX.min(header.name.len()))
        .rev()
        .find(|&end| header.name.is_char_boundary(end));
    let name = &header.name.as_bytes()[..end.unwrap_or(0)];
    bytes[32..32 + name.len()].copy_from_slice(name);
    bytes
}

fn decode_header(bytes: &[u8; HEADER_BYTES]) -> Result<RunLogHeader, RunLogError> {
    if bytes[..8] != MAGIC {
        return Err(RunLogError::Foreign);
    }
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    if version != VERSION {
        return Err(RunLogError::Version(version));
    }
    let roles = [
        LoggedRole::Root,
        LoggedRole::Proxy,
        LoggedRole::Receiver,
        LoggedRole::Recorder,
        LoggedRole::Standby,
        LoggedRole::Gateway,
    ];
    let role = roles.into_iter().find(|&role| role as u8 == bytes[10]);
    let name = bytes[32..].split(|&byte| byte == 0).next().unwrap_or(&[]);
    Ok(RunLogHeader {
        role: role.ok_or(RunLogError::Header("role"))?,
        node: NodeId(word(bytes, 12) as u32),
        name: String::from_utf8_lossy(name).into_owned(),
        clock: clock_of(bytes[11], word(bytes, 16)).ok_or(RunLogError::Header("clock source"))?,
        started_ns: word(bytes, 24),
    })
}

/// The eight bytes at `at`.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[inline]
fn encode(record: &RunLogRecord) -> [u8; RECORD_BYTES] {
    let (kind, flags, count, stream, words) = match record {
        RunLogRecord::Sent(s) => {
            // Zero stands for no deadline.
            let deadline_ns = s.deadline_ns.unwrap_or(0);
            (1, 0, 0, s.stream, [s.message, s.scheduled_ns, s.sent_ns, deadline_ns])
        }
        RunLogRecord::Released(r) => {
            let waited = r.taken_ns.saturating_sub(r.arrival_ns).min(u32::MAX.into());
            let last = u64::from(r.via.0) | waited << 32;
            let words = [r.first_message, r.arrival_ns, r.release_ns, last];
            (2, r.flags.0, r.count, r.stream, words)
        }
        RunLogRecord::Lost(l) => (3, 0, 0, l.stream, [l.first_message, l.count, 0, 0]),
        RunLogRecord::Duplicates(count) => (4, 0, 0, 0, [0, *count, 0, 0]),
        RunLogRecord::Clock { at_ns, reading } => {
            let (source, error_ns) = clock_code(reading.error);
            (5, source, 0, 0, [0, *at_ns, error_ns, reading.offset_ns as u64])
        }
        RunLogRecord::End(records) => (6, 0, 0, 0, [0, *records, 0, 0]),
        RunLogRecord::Handed(h) => {
            (7, 0, h.count, h.stream, [h.first_message, h.released_ns, h.handed_ns, 0])
        }
    };
    let mut bytes = [0; RECORD_BYTES];
    bytes[0] = kind;
    bytes[1] = flags;
    bytes[2..4].copy_from_slice(&u16::to_le_bytes(count));
    bytes[4..8].copy_from_slice(&stream.to_le_bytes());
    for (at, word) in (8..).step_by(8).zip(words) {
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn decode(bytes: &[u8; RECORD_BYTES], node: NodeId) -> Option<RunLogRecord> {
    let flags = bytes[1];
    let count = u16::from_le_bytes([bytes[2], bytes[3]]);
    let stream = word(bytes, 4) as u32;
    let [message, a, b, c] = [8, 16, 24, 32].map(|at| word(bytes, at));
    Some(match bytes[0] {
        1 => {
            let deadline_ns = Some(c).filter(|deadline_ns| *deadline_ns > 0);
            RunLogRecord::Sent(SentMessage {
                stream,
                message,
                scheduled_ns: a,
                sent_ns: b,
                deadline_ns,
            })
        }
        2 => RunLogRecord::Released(Released {
            receiver: node,
            stream,
            first_message: message,
            count,
            arrival_ns: a,
            taken_ns: a.saturating_add(c >> 32),
            release_ns: b,
            flags: Flags(flags),
            via: NodeId(c as u32),
        }),
        3 => RunLogRecord::Lost(Lost { receiver: node, stream, first_message: message, count: a }),
        4 => RunLogRecord::Duplicates(a),
        5 => {
            let reading = ClockReading { offset_ns: c as i64, error: clock_of(flags, b)? };
            RunLogRecord::Clock { at_ns: a, reading }
        }
        6 => RunLogRecord::End(a),
        7 => RunLogRecord::Handed(Handed {
            stream,
            first_message: message,
            count,
            released_ns: a,
            handed_ns: b,
        }),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> RunLogHeader {
        RunLogHeader {
            role: LoggedRole::Receiver,
            node: NodeId(7),
            name: "r-7".into(),
            clock: ClockError::Within(Duration::from_micros(3)),
            started_ns: 1_700_000_000_000_000_000,
        }
    }

    fn records() -> Vec<RunLogRecord> {
        let released = Released {
            receiver: NodeId(7),
            stream: 2,
            first_message: 1 << 40,
            count: 9,
            arrival_ns: 5,
            taken_ns: 5 + u64::from(u32::MAX),
            release_ns: 6,
            flags: Flags::HEDGE_WIN | Flags::REPAIRED,
            via: NodeId(u32::MAX),
        };
        vec![
            RunLogRecord::Sent(SentMessage {
                stream: 2,
                message: 3,
                scheduled_ns: 4,
                sent_ns: 5,
                deadline_ns: Some(6),
            }),
            RunLogRecord::Released(released),
            RunLogRecord::Lost(Lost { receiver: NodeId(7), stream: 1, first_message: 2, count: 3 }),
            RunLogRecord::Duplicates(12),
            RunLogRecord::Clock {
                at_ns: 8,
                reading: ClockReading { offset_ns: -7, error: ClockError::Unknown },
            },
            RunLogRecord::Handed(Handed {
                stream: 3,
                first_message: 1 << 41,
                count: u16::MAX,
                released_ns: 9,
                handed_ns: 10,
            }),
        ]
    }

    fn log(records: &[RunLogRecord], finish: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = RunLogWriter::new(&mut bytes, &header()).expect("memory");
        records.iter().for_each(|record| writer.append(record));
        if finish {
            writer.finish().expect("memory");
        } else {
            writer.flush();
        }
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = log(&records(), true);
        assert_eq!(bytes.len(), HEADER_BYTES + 7 * RECORD_BYTES);
        let mut reader = RunLogReader::new(&bytes[..]).expect("a log");
        assert_eq!(*reader.header(), header());
        let read: Vec<RunLogRecord> = reader.by_ref().collect();
        assert_eq!(read[..6], records()[..]);
        assert_eq!((read[6], reader.tail()), (RunLogRecord::End(6), &RunLogTail::Clean));
    }

    #[test]
    fn log_cut_anywhere_gives_its_whole_records_and_says_so() {
        let bytes = log(&records(), false);
        for end in HEADER_BYTES..bytes.len() {
            let mut reader = RunLogReader::new(&bytes[..end]).expect("a log");
            let whole = (end - HEADER_BYTES) / RECORD_BYTES;
            assert_eq!(reader.by_ref().collect::<Vec<_>>(), records()[..whole]);
            assert_eq!(*reader.tail(), RunLogTail::Cut((end - HEADER_BYTES) % RECORD_BYTES));
        }
        assert!(matches!(RunLogReader::new(&bytes[..HEADER_BYTES - 1]), Err(RunLogError::Foreign)));
    }

    #[test]
    fn any_bytes_give_records_or_are_counted() {
        let mut prng = evenfall_core::Prng::new(11);
        let mut bytes = log(&[], false);
        bytes.extend((0..RECORD_BYTES * 500).map(|_| prng.next_u64() as u8 & 7));
        let mut reader = RunLogReader::new(&bytes[..]).expect("a log");
        let read = reader.by_ref().count() as u64;
        assert_eq!(read, reader.records());
        assert!(read > 0 && reader.malformed() > 0);
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let mut bytes = log(&[], true);
        bytes[8] = 9;
        let said = RunLogReader::new(&bytes[..]).expect_err("another version").to_string();
        assert!(said.contains("version 9"), "{said}");
        assert!(matches!(RunLogReader::new(&[0u8; 200][..]), Err(RunLogError::Foreign)));
    }

    #[test]
    fn many_records_stream_through_bounded_memory() {
        let sent = |message| RunLogRecord::Sent(SentMessage { message, ..SentMessage::default() });
        let all: Vec<RunLogRecord> = (0..20_000).map(sent).collect();
        let mut bytes = Vec::new();
        let mut writer = RunLogWriter::new(&mut bytes, &header()).expect("memory");
        for record in &all {
            writer.append(record);
            assert!(writer.pending.len() <= PENDING_BYTES_MAX);
        }
        assert!(writer.idle() && !writer.idle());
        assert_eq!(writer.finish().expect("memory").in_a_hurry, 3);
        let read: Vec<RunLogRecord> = RunLogReader::new(&bytes[..]).expect("a log").collect();
        assert_eq!(read[..20_000], all[..]);
    }

    #[test]
    fn full_disk_is_said_at_the_end_and_stops_nothing() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if bytes.len() == HEADER_BYTES { Ok(bytes.len()) } else { Err(full()) }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        fn full() -> io::Error {
            io::Error::new(io::ErrorKind::StorageFull, "no space left")
        }
        let mut writer = RunLogWriter::new(Full, &header()).expect("the header fits");
        (0..20_000).for_each(|count| writer.append(&RunLogRecord::Duplicates(count)));
        let said = writer.finish().expect_err("the disk is full").to_string();
        assert!(said.contains("no space left") && said.contains("records dropped"), "{said}");
    }

    #[test]
    fn long_name_is_cut_at_a_character() {
        let name = "\u{e9}".repeat(20);
        let header = RunLogHeader { name: name.clone(), ..header() };
        let read = decode_header(&encode_header(&header)).expect("a header");
        assert_eq!(read.name, "\u{e9}".repeat(16));
    }
}
