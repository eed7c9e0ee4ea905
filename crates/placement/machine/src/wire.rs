//! Control messages, byte by byte. The same drawing with prose is in `docs/wire/survey.md`.
//!
//! All integers are little-endian. The first eight bytes are the same in every version, so that
//! another version can be refused by its number:
//!
//! ```text
//!  0        2         3       4         5            8
//!  | "ES"   | version | kind  | key id  | zero       |
//!  8                                 16              20             24
//!  | run                             | job          | zero          |
//! 24                                 32
//!  | message authentication code     |  body
//! ```
//!
//! A connection (gRPC) or a simulated datagram carries one message at a time. Decoding is total,
//! and never allocates more than the received bytes allow.

use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::histogram::BUCKETS;
use evenfall_core::{ClockError, MacKey, Malformed, Reader};

use super::job::{
    HOSTS_MAX, JobSeat, LENGTH_MAX, MESH_HOSTS_MAX, MeasurementKind, ProbePace, Task, Timing,
};
use super::probe::{error_from_wire, error_to_wire};
use super::record::DelayRecord;

/// First bytes of a control message.
pub const MAGIC: [u8; 2] = *b"ES";
/// Version of this layout and of what the messages mean.
pub const VERSION: u8 = 1;
/// Bytes in front of the body.
pub const HEADER_BYTES: usize = 32;
/// Bytes of the largest message. A task of 4,096 IPv6 hosts and a part of a report are well below.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Entries of one part of a report: 70 KB at the most.
pub const PART_ENTRIES: usize = 64;
/// Bytes of the name of a software that are kept.
const SOFTWARE_BYTES_MAX: usize = 64;
const MAC_OFFSET: usize = 24;

fn length(r: &mut Reader<'_>) -> Result<Duration, Malformed> {
    let duration = Duration::from_micros(r.u64()?);
    if duration > LENGTH_MAX {
        return Err(r.malformed("a time longer than any job"));
    }
    Ok(duration)
}

/// A sum of nanoseconds.
fn sum(r: &mut Reader<'_>) -> Result<f64, Malformed> {
    let value = f64::from_bits(r.u64()?);
    if value.is_finite() { Ok(value) } else { Err(r.malformed("not a finite number")) }
}

/// Why a host did not do its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum HostFailure {
    /// The host did not answer in time.
    #[error("does not answer: is its agent running and reachable?")]
    Silent,
    /// The host works for another surveyor, whose run is named.
    #[error("works for another survey (run {0:016x})")]
    Busy(u64),
    /// The host speaks this version of the protocol.
    #[error("speaks version {0} of the survey protocol, and not {VERSION}")]
    Version(u8),
    /// The host does not know a job that it had taken: it started again, or was idle for too long.
    #[error("does not know its job any more: it started again")]
    Forgot,
    /// The host's clock stepped by this many nanoseconds, beyond its error bounds.
    #[error("its clock stepped by {:.1} us during the job", *.0 as f64 / 1e3)]
    ClockStepped(i64),
    /// A delay of this many nanoseconds was measured. The host's clock, or the clock of the other
    /// end, is beyond its bound.
    #[error(
        "its clock is wrong beyond its bound: a delay of {:.1} us was measured",
        *.0 as f64 / 1e3
    )]
    ClockLies(i64),
    /// The host is behind this place, whose host failed.
    #[error("is behind place {0} of the job, which failed")]
    Unreached(u16),
    /// The host refuses the job: too fast, too long, or malformed.
    #[error("refused the job: too many probes per second for it")]
    Refused,
    /// The host answered, but had no report in time.
    #[error("had no report in time")]
    Unfinished,
    /// No probe reached the host.
    #[error("was reached by no probe: is UDP to it open?")]
    NoProbes,
}

impl HostFailure {
    fn parts(self) -> (u8, i64) {
        match self {
            Self::Silent => (0, 0),
            Self::Busy(run) => (1, run as i64),
            Self::Version(version) => (2, version.into()),
            Self::Forgot => (3, 0),
            Self::ClockStepped(ns) => (4, ns),
            Self::ClockLies(ns) => (5, ns),
            Self::Unreached(place) => (6, place.into()),
            Self::Refused => (7, 0),
            Self::Unfinished => (8, 0),
            Self::NoProbes => (9, 0),
        }
    }

    fn from_parts(code: u8, value: i64) -> Option<Self> {
        Some(match code {
            0 => Self::Silent,
            1 => Self::Busy(value as u64),
            2 => Self::Version(value as u8),
            3 => Self::Forgot,
            4 => Self::ClockStepped(value),
            5 => Self::ClockLies(value),
            6 => Self::Unreached(value as u16),
            7 => Self::Refused,
            8 => Self::Unfinished,
            9 => Self::NoProbes,
            _ => return None,
        })
    }
}

/// The phase of an agent in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// The host does not have the job.
    None = 0,
    /// The host asks the hosts below it.
    Preparing = 1,
    /// The host waits for the go.
    Ready = 2,
    /// Probes run.
    Running = 3,
    /// The host gathers the results of the hosts below it.
    Gathering = 4,
    /// Its report is complete.
    Done = 5,
}

impl Phase {
    fn from_wire(byte: u8) -> Option<Self> {
        [Self::None, Self::Preparing, Self::Ready, Self::Running, Self::Gathering, Self::Done]
            .get(usize::from(byte))
            .copied()
    }
}

/// One line of a report. Places are those of the job.
#[derive(Clone, Debug, PartialEq)]
pub enum ReportEntry {
    /// Delays of the probes from one place to another.
    Delays {
        /// Sender; the leader for a path.
        from: u16,
        /// Receiver.
        to: u16,
        /// Whether the delays are those of the whole path from the leader, and not of one hop.
        path: bool,
        /// The delays.
        record: DelayRecord,
    },
    /// Probes that count, sent by a place to each of its receivers.
    Sent {
        /// Sender.
        from: u16,
        /// Receiver. The sender's own place stands for all of its receivers.
        to: u16,
        /// Number of probes.
        count: u32,
    },
    /// A host failed.
    Failed {
        /// Place of the host.
        place: u16,
        /// Reason of the failure.
        reason: HostFailure,
    },
}

/// The body of a control message.
#[derive(Clone, Debug, PartialEq)]
pub enum SurveyBody {
    /// Greeting of a surveyor to an agent.
    Hello,
    /// Answer to `Hello`.
    Welcome {
        /// Name and version of the software, for people.
        software: String,
        /// Error bound of the agent's clock.
        clock: ClockError,
    },
    /// A job.
    Task(Task),
    /// Probes may run.
    Go,
    /// Heartbeat, which also asks for the parts of the report from this number on.
    Poll(u32),
    /// The job is over, and the agent drops it.
    Release,
    /// State of the agent in the job.
    Status {
        /// Phase of the agent.
        phase: Phase,
        /// Number of parts of the report, in phase `Done`.
        parts: u32,
        /// Number that grows while results are still gathered.
        progress: u32,
    },
    /// A part of the report.
    Part {
        /// Number of the part, from 0.
        index: u32,
        /// Entries of the part.
        entries: Vec<ReportEntry>,
    },
    /// The agent refuses the job for this reason.
    Refusal(HostFailure),
}

/// A control message.
#[derive(Clone, Debug, PartialEq)]
pub struct SurveyMessage {
    /// The run of the surveyor; unique.
    pub run: u64,
    /// The job; unique in the run, 0 for none.
    pub job: u32,
    /// Body of the message.
    pub body: SurveyBody,
}

/// The result of decoding.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded {
    /// A message.
    Message(SurveyMessage),
    /// A message of another version. The first eight bytes have the same layout in every version.
    Foreign {
        /// The version.
        version: u8,
        /// The kind of message, as that version numbers it.
        kind: u8,
    },
}

fn put_seats(out: &mut BytesMut, seats: &[JobSeat]) {
    out.put_u16_le(seats.len() as u16);
    for seat in seats {
        out.put_u16_le(seat.place);
        out.put_u16_le(seat.address.port());
        match seat.address.ip() {
            IpAddr::V4(ip) => {
                out.put_u8(4);
                out.put_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                out.put_u8(6);
                out.put_slice(&ip.octets());
            }
        }
    }
}

fn seats(r: &mut Reader<'_>, most: usize) -> Result<Vec<JobSeat>, Malformed> {
    let count = usize::from(r.u16()?);
    if count > most {
        return Err(r.malformed("more hosts than a job may have"));
    }
    // The list grows with the bytes that are present, because the stated count may be false.
    let seat = |_| {
        let (place, port) = (r.u16()?, r.u16()?);
        let ip = match r.u8()? {
            4 => IpAddr::V4(Ipv4Addr::from(r.array::<4>()?)),
            6 => IpAddr::V6(Ipv6Addr::from(r.array::<16>()?)),
            _ => return Err(r.malformed("address family")),
        };
        Ok(JobSeat { place, address: SocketAddr::new(ip, port) })
    };
    (0..count).map(seat).collect()
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros().min(u128::from(u64::MAX)) as u64
}

fn put_task(out: &mut BytesMut, task: &Task) {
    out.put_u8(task.kind as u8);
    out.put_u16_le(task.fanout);
    out.put_u16_le(task.above);
    out.put_u32_le(task.pace.rate_hz);
    out.put_u16_le(task.pace.probe_bytes);
    let Timing { poll, step, lease } = task.timing;
    for time in [task.pace.duration, task.pace.warm_up, poll, step, lease] {
        out.put_u64_le(micros(time));
    }
    put_seats(out, &task.seats);
    put_seats(out, &task.mesh);
}

fn task(r: &mut Reader<'_>) -> Result<Task, Malformed> {
    let kind = MeasurementKind::from_wire(r.u8()?).ok_or(r.malformed("unknown kind of job"))?;
    let (fanout, above, rate_hz, probe_bytes) = (r.u16()?, r.u16()?, r.u32()?, r.u16()?);
    let pace = ProbePace { rate_hz, probe_bytes, duration: length(r)?, warm_up: length(r)? };
    pace.check().map_err(|_| r.malformed("a pace that no job may have"))?;
    let timing = Timing { poll: length(r)?, step: length(r)?, lease: length(r)? };
    if timing.poll.is_zero() || timing.step < timing.poll || timing.lease < timing.poll {
        return Err(r.malformed("a step or lease shorter than a poll"));
    }
    let (hosts, mesh) = (seats(r, HOSTS_MAX)?, seats(r, MESH_HOSTS_MAX)?);
    if hosts.is_empty() || fanout == 0 {
        return Err(r.malformed("a job without hosts or fan-out"));
    }
    if !mesh.windows(2).all(|pair| pair[0].place < pair[1].place) {
        return Err(r.malformed("a mesh that is not in the order of its places"));
    }
    let in_mesh = mesh.iter().any(|seat| seat.place == hosts[0].place);
    let fits = match kind {
        MeasurementKind::AllToAll => in_mesh,
        MeasurementKind::BothWays => mesh.len() == 1 && mesh[0].place == above,
        MeasurementKind::Parent | MeasurementKind::Multicast => !in_mesh,
    };
    if !fits {
        return Err(r.malformed("a mesh that does not fit the kind of job"));
    }
    Ok(Task { kind, fanout, pace, timing, above, seats: hosts, mesh })
}

fn put_record(out: &mut BytesMut, record: &DelayRecord) {
    out.put_u64_le(record.mean_ns.to_bits());
    out.put_u64_le(record.squares_ns2.to_bits());
    out.put_i64_le(record.min_ns);
    out.put_i64_le(record.max_ns);
    out.put_u32_le(error_to_wire(record.error));
    out.put_u8(record.histogram.occupied().count() as u8);
    for (bucket, count) in record.histogram.occupied() {
        out.put_u8(bucket as u8);
        out.put_u32_le(count);
    }
}

fn record(r: &mut Reader<'_>) -> Result<DelayRecord, Malformed> {
    let mut record = DelayRecord {
        mean_ns: sum(r)?,
        squares_ns2: sum(r)?,
        min_ns: r.i64()?,
        max_ns: r.i64()?,
        error: error_from_wire(r.u32()?),
        ..DelayRecord::default()
    };
    if record.min_ns > record.max_ns {
        return Err(r.malformed("a shortest delay above the longest"));
    }
    for _ in 0..r.u8()? {
        let (bucket, count) = (usize::from(r.u8()?), r.u32()?);
        if bucket >= BUCKETS {
            return Err(r.malformed("histogram bucket out of range"));
        }
        record.histogram.add(bucket, count);
    }
    Ok(record)
}

fn put_reason(out: &mut BytesMut, reason: HostFailure) {
    let (code, value) = reason.parts();
    out.put_u8(code);
    out.put_i64_le(value);
}

fn reason(r: &mut Reader<'_>) -> Result<HostFailure, Malformed> {
    let (code, value) = (r.u8()?, r.i64()?);
    HostFailure::from_parts(code, value).ok_or(r.malformed("unknown reason"))
}

fn put_entry(out: &mut BytesMut, entry: &ReportEntry) {
    match entry {
        ReportEntry::Delays { from, to, path, record } => {
            out.put_u8(if *path { 1 } else { 0 });
            out.put_u16_le(*from);
            out.put_u16_le(*to);
            put_record(out, record);
        }
        ReportEntry::Sent { from, to, count } => {
            out.put_u8(2);
            out.put_u16_le(*from);
            out.put_u16_le(*to);
            out.put_u32_le(*count);
        }
        ReportEntry::Failed { place, reason } => {
            out.put_u8(3);
            out.put_u16_le(*place);
            put_reason(out, *reason);
        }
    }
}

fn entry(r: &mut Reader<'_>) -> Result<ReportEntry, Malformed> {
    Ok(match r.u8()? {
        kind @ (0 | 1) => ReportEntry::Delays {
            from: r.u16()?,
            to: r.u16()?,
            path: kind == 1,
            record: record(r)?,
        },
        2 => ReportEntry::Sent { from: r.u16()?, to: r.u16()?, count: r.u32()? },
        3 => ReportEntry::Failed { place: r.u16()?, reason: reason(r)? },
        _ => return Err(r.malformed("unknown line of a report")),
    })
}

impl SurveyMessage {
    fn kind(&self) -> u8 {
        match self.body {
            SurveyBody::Hello => 0,
            SurveyBody::Welcome { .. } => 1,
            SurveyBody::Task(_) => 2,
            SurveyBody::Go => 3,
            SurveyBody::Poll(_) => 4,
            SurveyBody::Release => 5,
            SurveyBody::Status { .. } => 6,
            SurveyBody::Part { .. } => 7,
            SurveyBody::Refusal(_) => 8,
        }
    }

    /// The bytes.
    pub fn encode(&self, key: Option<&MacKey>) -> Bytes {
        let mut out = BytesMut::with_capacity(128);
        out.put_slice(&MAGIC);
        out.put_slice(&[VERSION, self.kind(), MacKey::id_of(key), 0, 0, 0]);
        out.put_u64_le(self.run);
        out.put_u32_le(self.job);
        out.put_u32_le(0);
        out.put_u64_le(0);
        match &self.body {
            SurveyBody::Hello | SurveyBody::Go | SurveyBody::Release => {}
            SurveyBody::Welcome { software, clock } => {
                let mut end = software.len().min(SOFTWARE_BYTES_MAX);
                while !software.is_char_boundary(end) {
                    end -= 1;
                }
                out.put_u32_le(error_to_wire(*clock));
                out.put_u8(end as u8);
                out.put_slice(&software.as_bytes()[..end]);
            }
            SurveyBody::Task(task) => put_task(&mut out, task),
            SurveyBody::Poll(from) => out.put_u32_le(*from),
            SurveyBody::Status { phase, parts, progress } => {
                out.put_u8(*phase as u8);
                out.put_u32_le(*parts);
                out.put_u32_le(*progress);
            }
            SurveyBody::Part { index, entries } => {
                out.put_u32_le(*index);
                out.put_u8(entries.len() as u8);
                entries.iter().for_each(|entry| put_entry(&mut out, entry));
            }
            SurveyBody::Refusal(reason) => put_reason(&mut out, *reason),
        }
        let (header, body) = out.split_at(HEADER_BYTES);
        let mac = MacKey::mac_of(key, &[&header[..MAC_OFFSET], body]);
        out[MAC_OFFSET..HEADER_BYTES].copy_from_slice(&mac.to_le_bytes());
        out.freeze()
    }
}

/// Reads a control message. For a message of another version, only the version and the kind are
/// read.
///
/// # Errors
/// [`Malformed`], with the fault and its position.
pub fn decode(bytes: &[u8], key: Option<&MacKey>) -> Result<Decoded, Malformed> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(Malformed { what: "longer than any message", offset: MESSAGE_BYTES_MAX });
    }
    let mut r = Reader::new(bytes);
    if r.take(2)? != MAGIC {
        return Err(Malformed { what: "not a message of a survey", offset: 0 });
    }
    let version = r.u8()?;
    let (kind, key_id) = (r.u8()?, r.u8()?);
    if version != VERSION {
        return Ok(Decoded::Foreign { version, kind });
    }
    if key_id != MacKey::id_of(key) {
        return Err(Malformed { what: "sealed under another key, or none", offset: 4 });
    }
    r.take(3)?;
    let (run, job) = (r.u64()?, r.u32()?);
    r.u32()?;
    let mac = r.u64()?;
    if mac != MacKey::mac_of(key, &[&bytes[..MAC_OFFSET], &bytes[HEADER_BYTES..]]) {
        return Err(Malformed { what: "message authentication failed", offset: MAC_OFFSET });
    }
    let body = match kind {
        0 => SurveyBody::Hello,
        1 => welcome(&mut r)?,
        2 => SurveyBody::Task(task(&mut r)?),
        3 => SurveyBody::Go,
        4 => SurveyBody::Poll(r.u32()?),
        5 => SurveyBody::Release,
        6 => {
            let phase = Phase::from_wire(r.u8()?).ok_or(r.malformed("unknown phase"))?;
            SurveyBody::Status { phase, parts: r.u32()?, progress: r.u32()? }
        }
        7 => {
            let (index, count) = (r.u32()?, r.u8()?);
            if usize::from(count) > PART_ENTRIES {
                return Err(r.malformed("more lines than a part may have"));
            }
            let entries = (0..count).map(|_| entry(&mut r)).collect::<Result<_, _>>()?;
            SurveyBody::Part { index, entries }
        }
        8 => SurveyBody::Refusal(reason(&mut r)?),
        _ => return Err(Malformed { what: "unknown kind of message", offset: 3 }),
    };
    r.finish()?;
    Ok(Decoded::Message(SurveyMessage { run, job, body }))
}

fn welcome(r: &mut Reader<'_>) -> Result<SurveyBody, Malformed> {
    let clock = error_from_wire(r.u32()?);
    let length = usize::from(r.u8()?);
    let software = core::str::from_utf8(r.take(length)?)
        .map_err(|_| r.malformed("the name of a software that is no text"))?;
    Ok(SurveyBody::Welcome { software: software.to_owned(), clock })
}
