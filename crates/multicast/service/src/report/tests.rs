//! A run of thirty processes is written as logs, read back and judged.

use std::time::Duration;

use evenfall_core::Prng;
use evenfall_multicast_report::{Flags, Lost, Released, Results, SentMessage};

mod pages;

use super::*;
use crate::runlog::{RunLogHeader, RunLogWriter};

const START_NS: u64 = 1_753_000_000_000_000_000;
const RECEIVERS: u32 = 20;
const MESSAGES: u64 = 30_000;
/// Time between two messages: 5,000 messages a second.
const GAP_NS: u64 = 200_000;

/// A directory that is removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("evenfall-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Removal may fail. Files left in the temporary directory harm nobody.
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn header(role: LoggedRole, id: u32, name: &str) -> RunLogHeader {
    let clock = ClockError::Within(Duration::from_micros(2));
    RunLogHeader { role, node: NodeId(id), name: name.into(), clock, started_ns: START_NS }
}

fn event(at_s: f64, kind: &str, node: u32, text: &str) -> RunEvent {
    let at_ns = START_NS + (at_s * 1e9) as u64;
    RunEvent { at_ns, kind: kind.into(), node: Some(NodeId(node)), text: text.into() }
}

fn info() -> RunInfo {
    let node = |id, name: String, role: &str| NodeInfo { id: NodeId(id), name, role: role.into() };
    let receivers = (1..=RECEIVERS).map(|id| node(id, format!("receiver-{id}"), "receiver"));
    let proxies = (101..=104).map(|id| node(id, format!("proxy-{}", id - 100), "proxy"));
    let settings = [("mode", "release"), ("tree", "D=2 F=5"), ("hedging", "H=1")];
    let settings =
        settings.into_iter().chain([("rate", "5,000 msg/s"), ("deadline", "P(F) ≥ 99 %")]);
    RunInfo {
        title: "Demo: a generated feed <b>&</b> twenty receivers".into(),
        started_unix_s: START_NS / 1_000_000_000,
        settings: settings.map(|(key, value)| (key.into(), value.into())).collect(),
        nodes: receivers.chain(proxies).chain([node(100, "root".into(), "root")]).collect(),
        memberships: vec![
            ReceiverMembership {
                receiver: NodeId(19),
                until: Some(21_000),
                ..ReceiverMembership::default()
            },
            ReceiverMembership {
                receiver: NodeId(20),
                from: 10_000,
                ..ReceiverMembership::default()
            },
        ],
        events: vec![
            event(1.95, "join", 20, "late joiner, served from message 10,000"),
            event(2.0, "view", 100, "view 2: 20 receivers"),
            event(3.1, "suspect", 103, "no heartbeat for 60 ms"),
            event(3.25, "view", 100, "view 3: children of proxy-3 moved to proxy-4"),
            event(4.2, "evict", 19, "queue full for 500 ms"),
            event(4.2, "view", 100, "view 4: 19 receivers"),
        ],
        is_planted: false,
    }
}

fn hold_ns(message: u64) -> u64 {
    // When proxy-3 fails, the root widens the hold step by step.
    190_000 + 6_000 * message.clamp(15_500, 16_500).saturating_sub(15_500) / 100
}

fn is_member(receiver: u32, message: u64) -> bool {
    match receiver {
        19 => message < 21_000,
        20 => message >= 10_000,
        _ => true,
    }
}

/// Writes the logs of a made-up run.
fn write_run(directory: &Path) {
    info().write(directory).expect("run.json");
    let mut root =
        RunLogWriter::create(directory, &header(LoggedRole::Root, 100, "root")).expect("a log");
    for message in 0..MESSAGES {
        let scheduled_ns = START_NS + message * GAP_NS;
        let sent_ns = scheduled_ns + 3_000;
        let deadline_ns = Some(sent_ns + hold_ns(message));
        root.append(&RunLogRecord::Sent(SentMessage {
            stream: 0,
            message,
            scheduled_ns,
            sent_ns,
            deadline_ns,
        }));
    }
    root.finish().expect("a log");
    let memory = "seconds,resident_bytes,cpu_seconds\n0.0,7000000,0.1\n1.0,7100000,0.2\n";
    std::fs::write(evenfall_runtime::memory::path(directory, "root"), memory)
        .expect("a memory log");
    let mut prng = Prng::new(4);
    for receiver in 1..=RECEIVERS {
        write_receiver(directory, receiver, &mut prng.fork(receiver.into()));
    }
}

fn write_receiver(directory: &Path, receiver: u32, prng: &mut Prng) {
    let name = format!("receiver-{receiver}");
    let header = header(LoggedRole::Receiver, receiver, &name);
    let mut log = RunLogWriter::create(directory, &header).expect("a log");
    let id = NodeId(receiver);
    let parent = 101 + receiver % 4;
    for message in (0..MESSAGES).filter(|&message| is_member(receiver, message)) {
        let sent_ns = START_NS + message * GAP_NS + 3_000;
        let failing = parent == 103 && (15_500..16_300).contains(&message);
        let slow = if receiver == 7 { 25_000.0 } else { 0.0 };
        let mut delay = 70_000.0 + slow + f64::from(receiver % 5) * 4_000.0;
        delay += prng.exponential(9_000.0);
        if prng.chance(0.0004) {
            delay += prng.exponential(60_000.0);
        }
        let hedged = failing || prng.chance(0.12);
        if failing {
            delay += 60_000.0 + prng.exponential(30_000.0);
        }
        if failing && receiver == 2 && message < 15_540 {
            if message == 15_500 {
                let (stream, count) = (0, 40);
                log.append(&RunLogRecord::Lost(Lost {
                    receiver: id,
                    stream,
                    first_message: message,
                    count,
                }));
            }
            continue;
        }
        let arrival_ns = sent_ns + delay as u64;
        let late = 1_200.0 + prng.exponential(900.0);
        let release_ns = arrival_ns.max(sent_ns + hold_ns(message)) + late as u64;
        let repaired = if failing && prng.chance(0.1) { Flags::REPAIRED } else { Flags(0) };
        let hedge_win = if hedged { Flags::HEDGE_WIN } else { Flags(0) };
        log.append(&RunLogRecord::Released(Released {
            receiver: id,
            stream: 0,
            first_message: message,
            count: 1,
            arrival_ns,
            taken_ns: 0,
            release_ns,
            flags: repaired | hedge_win,
            via: NodeId(if hedged { 101 + (parent - 100) % 4 } else { parent }),
        }));
    }
    log.append(&RunLogRecord::Duplicates(MESSAGES / 2 + u64::from(receiver) * 17));
    if receiver == 19 {
        log.flush();
    } else {
        log.finish().expect("a log");
    }
}

#[test]
fn run_of_many_processes_is_joined_and_judged() {
    let directory = Directory::new("joined");
    write_run(&directory.0);
    let mut rows = 0u64;
    let mut count = |_: &FairnessRow| rows += 1;
    let report = read(&directory.0, Some(&mut count)).expect("a report");
    let results = &report.outcome.results;
    assert_eq!((rows, results.messages, results.receivers), (MESSAGES, MESSAGES, 20));
    let expected = MESSAGES * 18 + 21_000 + 20_000;
    assert_eq!((results.lost, results.lost_reported), (40, 40));
    assert_eq!(results.delivered, expected - 40);
    assert_eq!((results.orphans, results.released_again), (0, 0));
    assert_eq!(results.clock_error_us.0, ClockError::Within(Duration::from_micros(2)));
    let table = super::text::table(results);
    assert!(table.ends_with("clock error between hosts: 2.0 us\n"), "{table}");
    assert!(results.p_f.is_some_and(|p_f| p_f > 0.9 && p_f < 1.0), "{:?}", results.p_f);
    assert!(results.window_us.p50 > 1.0 && results.window_us.p50 < 20.0);
    assert_eq!(
        report.warnings,
        ["receiver-19.evlog: no end record: the process was killed, or \
                                  still runs"]
    );
    assert_eq!(report.logs.len(), 21);
}

#[test]
fn directory_that_is_no_run_says_what_is_missing() {
    let directory = Directory::new("nothing");
    let said = read(&directory.0, None).expect_err("no run").to_string();
    assert!(said.contains("run.json"), "{said}");
    info().write(&directory.0).expect("run.json");
    let said = read(&directory.0, None).expect_err("no logs").to_string();
    assert!(said.contains("no log of a root"), "{said}");
    std::fs::write(directory.0.join("x.evlog"), [1u8; 100]).expect("a file");
    let said = read(&directory.0, None).expect_err("a foreign file").to_string();
    assert!(said.contains("x.evlog is no run log"), "{said}");
    std::fs::write(directory.0.join(RUN_FILE), "{\n \"titel\": 1}").expect("a file");
    let said = read(&directory.0, None).expect_err("a misspelt key").to_string();
    assert!(said.contains("titel") && said.contains("line 2"), "{said}");
}

#[test]
fn worst_clock_of_all_processes_counts() {
    let within = |us| ClockError::Within(Duration::from_micros(us));
    assert_eq!(worse(ClockError::SameClock, within(3)), within(3));
    assert_eq!(worse(within(5), within(3)), within(5));
    assert_eq!(worse(within(5), ClockError::Unknown), ClockError::Unknown);
    assert_eq!(worse(ClockError::Disproved, ClockError::Unknown), ClockError::Disproved);
    assert_eq!(worse(ClockError::SameClock, ClockError::SameClock), ClockError::SameClock);
}

/// A log of one node that releases a message every millisecond.
fn released(directory: &Path, who: &RunLogHeader, messages: std::ops::Range<u64>, clean: bool) {
    let mut log = RunLogWriter::create(directory, who).expect("a log");
    for message in messages {
        let at_ns = START_NS + 1_000_000 * message + 400_000;
        log.append(&RunLogRecord::Released(Released {
            receiver: who.node,
            first_message: message,
            count: 1,
            arrival_ns: at_ns,
            release_ns: at_ns,
            ..Released::default()
        }));
    }
    if clean {
        log.finish().expect("a log");
    } else {
        log.flush();
    }
}

/// A root that sends this many messages, a millisecond apart.
fn sent(
    directory: &Path,
    messages: u64,
    memberships: Vec<ReceiverMembership>,
    nodes: &[(u32, &str)],
) {
    let nodes = nodes.iter().map(|(id, role)| NodeInfo {
        id: NodeId(*id),
        name: format!("{role}-{id}"),
        role: (*role).into(),
    });
    let info = RunInfo { nodes: nodes.collect(), memberships, ..RunInfo::default() };
    info.write(directory).expect("run.json");
    let mut root =
        RunLogWriter::create(directory, &header(LoggedRole::Root, 0, "root")).expect("a log");
    for message in 0..messages {
        let scheduled_ns = START_NS + 1_000_000 * message;
        root.append(&RunLogRecord::Sent(SentMessage {
            message,
            scheduled_ns,
            ..SentMessage::default()
        }));
    }
    root.finish().expect("a log");
}

#[test]
fn receiver_that_is_started_again_is_judged_by_the_logs_of_both_its_lives() {
    let directory = Directory::new("lives");
    let again_ns = START_NS + 50_000_000;
    let first = ReceiverMembership {
        receiver: NodeId(1),
        until: Some(45),
        started_ns: START_NS,
        ..ReceiverMembership::default()
    };
    let second =
        ReceiverMembership { from: 60, until: None, started_ns: again_ns, ..first.clone() };
    sent(&directory.0, 100, vec![first, second], &[(0, "root"), (1, "receiver"), (2, "receiver")]);
    released(&directory.0, &header(LoggedRole::Receiver, 2, "receiver-2"), 0..100, true);
    let mut who = header(LoggedRole::Receiver, 1, "receiver-1");
    released(&directory.0, &who, 0..30, false);
    let names = [runlog::file_name("receiver-1")];
    runlog::set_aside(&directory.0, &names).expect("a free name");
    who.started_ns = again_ns;
    released(&directory.0, &who, 60..100, true);
    let report = read(&directory.0, None).expect("a report");
    let results = &report.outcome.results;
    assert_eq!((results.delivered, results.lost, results.orphans), (100 + 30 + 40, 0, 0));
    let names: Vec<_> = report.logs.iter().map(|log| log.name.as_str()).collect();
    assert_eq!(names, ["receiver-1.1", "receiver-1", "receiver-2", "root"]);
    assert!(report.warnings.iter().any(|w| w.contains("before message 30")), "{report:?}");
}

#[test]
fn dots_in_the_name_of_a_node_are_no_number_of_a_life() {
    let directory = Directory::new("dots");
    let name = "ip-10-0-0-1.ec2.internal";
    sent(&directory.0, 10, vec![], &[(0, "root"), (1, "receiver")]);
    released(&directory.0, &header(LoggedRole::Receiver, 1, name), 0..10, true);
    runlog::set_aside(&directory.0, &[runlog::file_name(name)]).expect("a free name");
    released(&directory.0, &header(LoggedRole::Receiver, 1, name), 0..10, true);
    let report = read(&directory.0, None).expect("a report");
    let names: Vec<_> = report.logs.iter().map(|log| log.name.as_str()).collect();
    assert_eq!(names, ["ip-10-0-0-1.ec2.internal.1", "ip-10-0-0-1.ec2.internal", "root"]);
}

#[test]
fn root_that_is_started_again_begins_another_run_and_keeps_the_log_of_the_first() {
    let directory = Directory::new("again");
    released(&directory.0, &header(LoggedRole::Receiver, 1, "receiver-1"), 0..70, false);
    sent(&directory.0, 100, vec![], &[]);
    let names = |name: &str, other: &[&str]| {
        let mut names = vec![runlog::file_name(name)];
        names.extend(other.iter().map(|name| (*name).to_owned()));
        runlog::set_aside(&directory.0, &names).expect("a free name");
    };
    names("root", &[RUN_FILE]);
    names("receiver-1", &[]);
    let again_ns = START_NS + 200_000_000;
    let root = RunLogHeader { started_ns: again_ns, ..header(LoggedRole::Root, 0, "root") };
    let mut log = RunLogWriter::create(&directory.0, &root).expect("a log");
    for message in 0..5 {
        let scheduled_ns = again_ns + 1_000_000 * message;
        log.append(&RunLogRecord::Sent(SentMessage {
            message,
            scheduled_ns,
            ..SentMessage::default()
        }));
    }
    log.finish().expect("a log");
    info().write(&directory.0).expect("run.json");
    let report = read(&directory.0, None).expect("a report");
    assert_eq!(report.outcome.results.messages, 5);
    assert_eq!((report.outcome.results.orphans, report.logs.len()), (0, 1));
    let kept = directory.0.join("root.1.evlog");
    assert_eq!(open(&kept).expect("a log").count(), 101);
    assert!(directory.0.join("run.1.json").exists());
}

#[test]
fn recorder_is_no_receiver_of_the_report() {
    let directory = Directory::new("recorder");
    sent(&directory.0, 100, vec![], &[(0, "root"), (1, "receiver"), (2, "recorder")]);
    released(&directory.0, &header(LoggedRole::Receiver, 1, "receiver-1"), 0..100, true);
    released(&directory.0, &header(LoggedRole::Recorder, 2, "recorder-2"), 0..90, true);
    let report = read(&directory.0, None).expect("a report");
    let results = &report.outcome.results;
    assert_eq!((results.receivers, results.delivered, results.lost), (1, 100, 0));
    assert_eq!((results.orphans, &report.warnings[..]), (0, &[][..]));
}

/// A reading of the root's clock lies between two messages, and the receiver's clock is so far
/// behind that it releases the second message before the reading.
#[test]
fn a_reading_of_the_clock_hides_no_message_from_a_receiver_whose_clock_is_behind() {
    let directory = Directory::new("behind");
    let node = |id, role: &str| NodeInfo { id: NodeId(id), name: role.into(), role: role.into() };
    let nodes = vec![node(0, "root"), node(1, "receiver")];
    RunInfo { nodes, ..RunInfo::default() }.write(&directory.0).expect("run.json");
    let log = |role, id: u32, records: &[RunLogRecord]| {
        let header = header(role, id, &format!("node-{id}"));
        let mut log = RunLogWriter::create(&directory.0, &header).expect("a log");
        records.iter().for_each(|record| log.append(record));
        log.finish().expect("a log");
    };
    let at_ms = |ms: u64| START_NS + ms * 1_000_000;
    let sent = |message, ms| {
        RunLogRecord::Sent(SentMessage {
            message,
            sent_ns: at_ms(ms),
            scheduled_ns: at_ms(ms),
            ..SentMessage::default()
        })
    };
    let released = |first_message, ms| {
        let (arrival_ns, receiver) = (at_ms(ms), NodeId(1));
        let at = Released { arrival_ns, release_ns: arrival_ns, ..Released::default() };
        RunLogRecord::Released(Released { receiver, first_message, ..at })
    };
    let reading = evenfall_core::ClockReading::default();
    let read_clock = RunLogRecord::Clock { at_ns: at_ms(1_030), reading };
    log(LoggedRole::Root, 0, &[sent(0, 1_020), read_clock, sent(1, 1_040)]);
    log(LoggedRole::Receiver, 1, &[released(0, 1_001), released(1, 1_021)]);
    let results = read(&directory.0, None).expect("a report").outcome.results;
    assert_eq!((results.delivered, results.lost, results.orphans), (2, 0, 0));
}

/// Three clocks that are wrong by microseconds, and a frame that is released 1 us apart in truth.
#[test]
fn a_run_with_planted_clocks_is_judged_by_the_clock_below_them() {
    let directory = Directory::new("planted");
    let node = |id, role: &str| NodeInfo { id: NodeId(id), name: role.into(), role: role.into() };
    let nodes = vec![node(0, "root"), node(1, "receiver"), node(2, "receiver")];
    let planted = RunInfo { nodes, is_planted: true, ..RunInfo::default() };
    let clocks = [5_000, -7_000, 11_000_i64];
    let shown = |ns: u64, node: usize| ns.saturating_add_signed(clocks[node]);
    let log = |role, id: u32, records: &[RunLogRecord]| {
        let header = header(role, id, &format!("node-{id}"));
        let mut log = RunLogWriter::create(&directory.0, &header).expect("a log");
        let offset_ns = clocks[id as usize];
        let error = ClockError::Within(Duration::from_micros(11));
        let reading = evenfall_core::ClockReading { offset_ns, error };
        log.append(&RunLogRecord::Clock { at_ns: shown(START_NS, id as usize), reading });
        records.iter().for_each(|record| log.append(record));
        log.finish().expect("a log");
    };
    let (sent_ns, scheduled_ns) = (shown(START_NS + 1_000, 0), shown(START_NS, 0));
    let deadline_ns = Some(shown(START_NS + 201_000, 0));
    log(
        LoggedRole::Root,
        0,
        &[RunLogRecord::Sent(SentMessage {
            scheduled_ns,
            sent_ns,
            deadline_ns,
            ..SentMessage::default()
        })],
    );
    for id in [1, 2] {
        let receiver = NodeId(id);
        let arrival_ns = shown(START_NS + 100_000, id as usize);
        let release_ns = shown(START_NS + 201_000 + u64::from(id) * 1_000, id as usize);
        let released = Released { receiver, arrival_ns, release_ns, ..Released::default() };
        log(LoggedRole::Receiver, id, &[RunLogRecord::Released(released)]);
    }
    let judged = |is_planted| {
        RunInfo { is_planted, ..planted.clone() }.write(&directory.0).expect("run.json");
        read(&directory.0, None).expect("a report").outcome.results
    };
    let by_the_true_clock = judged(true);
    assert_eq!((by_the_true_clock.window_us.max, by_the_true_clock.p_f), (1.0, Some(1.0)));
    assert_eq!(by_the_true_clock.oml_us.max, 100.0);
    let limits = |results: &Results| results.window_between_us.max;
    assert_eq!(limits(&by_the_true_clock), [1.0, 1.0]);
    let by_the_planted_clocks = judged(false);
    assert_eq!(by_the_planted_clocks.window_us.max, 19.0);
    // Each clock is wrong by 11 us at most, so that the interval holds the true 1 us.
    assert_eq!(limits(&by_the_planted_clocks), [0.0, 41.0]);
    let table = text::table(&by_the_planted_clocks);
    let row = |name: &str| {
        let row = table.lines().find_map(|line| line.trim().strip_prefix(name));
        row.expect(name).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        (row("at least"), row("at most")),
        (vec!["0.0".to_owned(); 4], vec!["41.0".into(); 4])
    );
}
