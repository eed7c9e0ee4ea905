//! Tests that drive the machines by hand: their messages to each other, and their limits of time.

use core::time::Duration;
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockError, ClockReading, Destination, Machine, Prng, StampedBy, SyncTime, Timestamp,
};

use super::job::{JobSeat, Task};
use super::probe::DelayProbe;
use super::surveyor::Welcome;
use super::wire::{Decoded, Phase, ReportEntry, SurveyBody, SurveyMessage, decode};
use super::*;

mod both_ways;

fn address(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 9_400))
}

fn at(ms: u64) -> Timestamp {
    Timestamp::from_nanos(1_000_000_000 + ms * 1_000_000)
}

fn task(kind: MeasurementKind, hosts: u16, fanout: u16) -> Task {
    let seats: Vec<JobSeat> =
        (0..hosts).map(|place| JobSeat { place, address: address(place as u8 + 1) }).collect();
    let mesh = match kind {
        MeasurementKind::AllToAll => seats.clone(),
        MeasurementKind::BothWays => seats[..1].to_vec(),
        MeasurementKind::Parent | MeasurementKind::Multicast => Vec::new(),
    };
    Task {
        kind,
        fanout,
        pace: ProbePace::default(),
        timing: Timing::default(),
        above: 0,
        seats,
        mesh,
    }
}

fn messages() -> Vec<SurveyMessage> {
    let mut record = DelayRecord::default();
    [40_000, 55_000, -2_000, 9_000_000].into_iter().for_each(|ns| {
        record.record(ns, ClockError::Within(Duration::from_micros(9)));
    });
    let reasons = [
        HostFailure::Silent,
        HostFailure::Busy(u64::MAX),
        HostFailure::Version(7),
        HostFailure::Forgot,
        HostFailure::ClockStepped(-9),
        HostFailure::ClockLies(i64::MIN),
        HostFailure::Unreached(3),
        HostFailure::Refused,
        HostFailure::Unfinished,
        HostFailure::NoProbes,
    ];
    let mut entries: Vec<ReportEntry> = reasons
        .into_iter()
        .enumerate()
        .map(|(place, reason)| ReportEntry::Failed { place: place as u16, reason })
        .collect();
    entries.push(ReportEntry::Sent { from: 1, to: 2, count: 500 });
    entries.push(ReportEntry::Delays { from: 1, to: 2, path: true, record });
    let software = "evenfall, mit Umläuten".to_owned();
    let bodies = [
        SurveyBody::Hello,
        SurveyBody::Welcome { software, clock: ClockError::SameClock },
        SurveyBody::Task(task(MeasurementKind::Multicast, 7, 2)),
        SurveyBody::Task(task(MeasurementKind::AllToAll, 9, 8)),
        SurveyBody::Task(task(MeasurementKind::BothWays, 9, 8)),
        SurveyBody::Go,
        SurveyBody::Poll(3),
        SurveyBody::Release,
        SurveyBody::Status { phase: Phase::Done, parts: 4, progress: 9 },
        SurveyBody::Part { index: 2, entries },
        SurveyBody::Refusal(HostFailure::Version(2)),
    ];
    bodies.into_iter().map(|body| SurveyMessage { run: 5, job: 6, body }).collect()
}

#[test]
fn messages_survive_the_wire_with_a_key_and_without() {
    let key = MacKey::new(1, &[7; 16]);
    for message in messages() {
        for key in [None, Some(&key)] {
            let bytes = message.encode(key);
            assert_eq!(decode(&bytes, key), Ok(Decoded::Message(message.clone())));
        }
        assert!(decode(&message.encode(Some(&key)), None).is_err(), "sealed, and nobody has a key");
        assert!(decode(&message.encode(None), Some(&key)).is_err(), "not sealed");
    }
}

#[test]
fn decoding_is_total_and_a_flipped_bit_is_noticed_under_a_key() {
    let key = MacKey::new(1, &[7; 16]);
    let mut prng = Prng::new(1);
    for message in messages() {
        let bytes = message.encode(None);
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len], None).is_err(), "{len} bytes of {message:?}");
        }
        for _ in 0..2_000 {
            let mut bytes = bytes.to_vec();
            for _ in 0..=prng.below(3) {
                let at = prng.below(bytes.len() as u64) as usize;
                bytes[at] = prng.next_u64() as u8;
            }
            // Decoding changed bytes gives a value or an error.
            drop(decode(&bytes, None));
        }
        let sealed = message.encode(Some(&key));
        for at in (0..sealed.len()).filter(|at| !(2..4).contains(at)) {
            let mut bytes = sealed.to_vec();
            bytes[at] ^= 1;
            assert!(decode(&bytes, Some(&key)).is_err(), "byte {at} of {message:?}");
        }
    }
}

#[test]
fn a_probe_survives_the_wire_and_is_authenticated() {
    let key = MacKey::new(1, &[7; 16]);
    let probe = DelayProbe {
        warm_up: true,
        from: 3,
        run: 4,
        job: 5,
        sequence: 6,
        origin: SyncTime::from_nanos(7),
        sent: SyncTime::from_nanos(8),
        origin_error: ClockError::Within(Duration::from_micros(20)),
        sent_error: ClockError::Unknown,
    };
    for key in [None, Some(&key)] {
        let bytes = probe.encode(key);
        assert_eq!(DelayProbe::decode(&bytes, key), Ok(probe));
        (0..bytes.len()).for_each(|len| assert!(DelayProbe::decode(&bytes[..len], key).is_err()));
    }
    for at in 0..probe::HEADER_BYTES {
        let mut bytes = probe.encode(Some(&key));
        bytes[at] ^= 2;
        // Byte 5 is reserved, and is authenticated like the other bytes.
        assert!(DelayProbe::decode(&bytes, Some(&key)).is_err(), "byte {at}");
    }
}

/// An agent and its sent messages.
struct Bench {
    agent: Agent,
}

impl Bench {
    fn new() -> Self {
        let mut agent = Agent::new(AgentConfig::default());
        agent.handle_clock(at(0), reading(0));
        Self { agent }
    }

    fn hear(&mut self, now: Timestamp, from: u8, message: &SurveyMessage) -> Vec<SurveyMessage> {
        self.hear_bytes(now, from, message.encode(None))
    }

    fn hear_bytes(&mut self, now: Timestamp, from: u8, datagram: Bytes) -> Vec<SurveyMessage> {
        let (from, stamped_by) = (address(from), StampedBy::User);
        let arrival = Arrival::new(from, datagram, now, stamped_by);
        self.agent.handle(now, arrival).expect("a message");
        self.said(now)
    }

    fn pass(&mut self, now: Timestamp) -> Vec<SurveyMessage> {
        self.agent.handle_timeout(now);
        self.said(now)
    }

    /// The control messages that the agent sent. Probes are left out.
    fn said(&mut self, now: Timestamp) -> Vec<SurveyMessage> {
        let mut said = Vec::new();
        while let Some(transmit) = self.agent.poll_transmit(now) {
            if let (Destination::One(_), Ok(Decoded::Message(message))) =
                (transmit.to, decode(&transmit.body, None))
            {
                said.push(message);
            }
        }
        said
    }
}

fn reading(offset_ns: i64) -> ClockReading {
    ClockReading { offset_ns, error: ClockError::Within(Duration::from_micros(20)) }
}

fn order(run: u64, job: u32, body: SurveyBody) -> SurveyMessage {
    SurveyMessage { run, job, body }
}

fn leaf() -> Task {
    let mut task = task(MeasurementKind::Parent, 2, 1);
    task.seats.remove(0);
    task
}

#[test]
fn an_agent_is_idle_when_nobody_polls_it_for_its_lease() {
    let mut bench = Bench::new();
    let said = bench.hear(at(0), 9, &order(1, 1, SurveyBody::Task(leaf())));
    let ready = SurveyBody::Status { phase: Phase::Ready, parts: 0, progress: 0 };
    assert_eq!(said.last().map(|message| &message.body), Some(&ready));
    bench.hear(at(900), 9, &order(1, 1, SurveyBody::Poll(0)));
    bench.pass(at(1_800));
    assert!(bench.agent.is_busy(), "polled 900 ms ago");
    bench.pass(at(1_900));
    assert!(!bench.agent.is_busy(), "a lease of 1 s is over");
    assert_eq!(bench.agent.status().leases_lapsed, 1);
}

#[test]
fn another_run_is_refused_and_a_newer_job_of_the_same_replaces() {
    let mut bench = Bench::new();
    bench.hear(at(0), 9, &order(1, 1, SurveyBody::Task(leaf())));
    for body in [SurveyBody::Hello, SurveyBody::Task(leaf())] {
        let said = bench.hear(at(1), 8, &order(2, 1, body));
        assert_eq!(said[0].body, SurveyBody::Refusal(HostFailure::Busy(1)));
    }
    bench.hear(at(2), 9, &order(1, 2, SurveyBody::Task(leaf())));
    let none = SurveyBody::Status { phase: Phase::None, parts: 0, progress: 0 };
    let said = bench.hear(at(3), 9, &order(1, 1, SurveyBody::Task(leaf())));
    assert_eq!(said[0].body, none, "a late copy of the first order");
    bench.hear(at(4), 9, &order(1, 2, SurveyBody::Release));
    assert!(!bench.agent.is_busy());
    let said = bench.hear(at(5), 9, &order(1, 2, SurveyBody::Go));
    assert_eq!(said[0].body, none, "it has no such job any more");
}

#[test]
fn another_version_is_answered_with_ours() {
    let mut bench = Bench::new();
    let mut bytes = order(1, 0, SurveyBody::Hello).encode(None).to_vec();
    bytes[2] = 9;
    let said = bench.hear_bytes(at(0), 9, bytes.into());
    assert_eq!(said[0].body, SurveyBody::Refusal(HostFailure::Version(wire::VERSION)));
    // An answer of another version gets no answer, because two agents would otherwise answer each
    // other for ever.
    let mut bytes = order(0, 0, SurveyBody::Refusal(HostFailure::Version(9))).encode(None).to_vec();
    bytes[2] = 9;
    assert!(bench.hear_bytes(at(1), 9, bytes.into()).is_empty());
}

#[test]
fn a_clock_that_steps_in_a_job_is_reported_instead_of_its_delays() {
    for (offset_ns, steps) in [(20_000, false), (900_000, true)] {
        let mut bench = Bench::new();
        bench.hear(at(0), 9, &order(1, 1, SurveyBody::Task(leaf())));
        bench.hear(at(1), 9, &order(1, 1, SurveyBody::Go));
        bench.agent.handle_clock(at(100), reading(offset_ns));
        let mut parts = Vec::new();
        for ms in (100..2_000).step_by(50) {
            bench.hear(at(ms), 9, &order(1, 1, SurveyBody::Poll(9)));
            parts.extend(bench.pass(at(ms)));
        }
        let lines = parts.into_iter().filter_map(|message| match message.body {
            SurveyBody::Part { entries, .. } => Some(entries),
            _ => None,
        });
        let failed = ReportEntry::Failed { place: 1, reason: HostFailure::ClockStepped(offset_ns) };
        assert_eq!(lines.flatten().any(|line| line == failed), steps, "{offset_ns} ns");
    }
}

#[test]
fn records_merge_as_if_they_were_one() {
    let mut prng = Prng::new(3);
    let (mut one, mut two, mut whole) = Default::default();
    for n in 0..1_000 {
        let ns = prng.exponential(50_000.0) as i64 - 2_000;
        let error = ClockError::Within(Duration::from_nanos(n));
        let part: &mut DelayRecord = if n % 3 == 0 { &mut one } else { &mut two };
        part.record(ns, error);
        DelayRecord::record(&mut whole, ns, error);
    }
    one.merge(&two);
    assert_eq!((one.count(), one.min_ns, one.max_ns), (1_000, whole.min_ns, whole.max_ns));
    assert_eq!(one.bound(), Some(Duration::from_nanos(999)), "the worst of all");
    assert!((one.mean_ns - whole.mean_ns).abs() < 1e-3);
    assert!((one.stddev_ns() / whole.stddev_ns() - 1.0).abs() < 1e-9);
    assert!(whole.min_ns < -999 && whole.impossible_ns() == Some(whole.min_ns));
}

/// A program that orders no jobs.
struct Nothing(Vec<Result<Welcome, HostFailure>>);

impl Program for Nothing {
    fn greeted(&mut self, pool: &[Result<Welcome, HostFailure>]) {
        self.0 = pool.to_vec();
    }

    fn next(&mut self) -> SurveyStep {
        SurveyStep::Done
    }

    fn take(&mut self, _: &JobOutcome) {}
}

#[test]
fn a_surveyor_names_whoever_does_not_answer() {
    let agents = vec![address(1), address(2), address(3)];
    let config = SurveyorConfig::default();
    let mut surveyor = Surveyor::new(config, 7, agents, Nothing(Vec::new()), at(0));
    let mut hear = |now: Timestamp, from: u8, datagram: Bytes| {
        let (from, stamped_by) = (address(from), StampedBy::User);
        let arrival = Arrival::new(from, datagram, now, stamped_by);
        surveyor.handle(now, arrival).expect("a message");
    };
    let welcome = SurveyBody::Welcome { software: "evenfall".into(), clock: ClockError::SameClock };
    hear(at(1), 1, order(7, 0, welcome).encode(None));
    let mut foreign =
        order(0, 0, SurveyBody::Refusal(HostFailure::Version(9))).encode(None).to_vec();
    foreign[2] = 9;
    hear(at(2), 2, foreign.into());
    while let Some(due) = surveyor.poll_timeout() {
        assert!(due <= at(1_100), "it waits for ever");
        surveyor.handle_timeout(due);
    }
    let found = &surveyor.program().0;
    assert!(found[0].is_ok());
    assert_eq!(found[1], Err(HostFailure::Version(9)));
    assert_eq!(found[2], Err(HostFailure::Silent));
    assert!(HostFailure::Version(9).to_string().contains("speaks version 9"));
}
