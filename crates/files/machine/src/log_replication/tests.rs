use evenfall_core::{Machine as _, StampedBy};

use super::*;
use crate::config::{NameConfig, REPLACED_PARTS};
use crate::groups::tests::{create, hand_in, hand_in_at, hand_in_with, say, sent, write_all};
use crate::nameserver::Event;
use crate::namespace::{Caller, NamespaceCall};
use crate::wire::FilesControl;

/// The log of a namespace that has seen these lives and changes, and has these disks as keepers.
fn log(starts: u64, changes: u64, keepers: &[u64]) -> Bytes {
    let mut namespace = Namespace::default();
    let disks = keepers.iter().map(|disk| DiskId(*disk)).collect();
    namespace.apply(NamespaceChange::Cluster { cluster: 7 });
    namespace.apply(NamespaceChange::Keepers { disks });
    namespace.apply(NamespaceChange::Counted { starts, changes });
    journal::log_of(namespace.records().iter().map(body_of))
}

fn found(disk: u64, generation: u64, log: Bytes) -> FoundLog {
    FoundLog { disk: DiskId(disk), generation, log }
}

#[test]
fn a_log_is_rebuilt_from_the_newest_copy_and_counts_on_behind_every_life() {
    let copies = [
        found(1, 3 << 32 | 1, log(3, 20, &[1, 2])),
        found(2, 3 << 32 | 2, log(3, 21, &[1, 2])),
        // Disk 3 has only a part of a stream of a later life.
        found(3, 5 << 32 | 1, Bytes::new()),
    ];
    let best = rebuilt(&copies).expect("two copies");
    assert_eq!((best.disk, &best.missing[..], best.is_kept), (DiskId(2), &[][..], true));
    let names = Nameserver::new(NameConfig::default(), 1, &best.log).expect("our own log");
    assert_eq!((names.namespace().cluster, names.namespace().starts()), (7, 6));

    let copies = [found(1, 1, log(3, 20, &[1, 2, 3])), found(3, 1, Bytes::new())];
    let best = rebuilt(&copies).expect("a copy");
    assert_eq!((best.disk, best.missing), (DiskId(1), vec![DiskId(2), DiskId(3)]));
    assert_eq!(rebuilt(&[found(3, 1, Bytes::new())]), None);
}

#[test]
fn a_copy_that_names_no_keeper_may_lack_changes_that_were_acknowledged() {
    let best = rebuilt(&[found(1, 3 << 32 | 1, log(3, 20, &[]))]).expect("a copy");
    assert_eq!((&best.missing[..], best.is_kept), (&[][..], false));
    let names = Nameserver::new(NameConfig::default(), 1, &best.log).expect("our own log");
    assert!(names.namespace().changes() >= 20 + CHANGES_SKIPPED);
}

/// Lets a second pass. The nameserver's ticks come, its writes succeed, and dataserver 1 sends
/// beats. Returns the messages that the nameserver sent.
fn run(names: &mut Nameserver, now: &mut Timestamp) -> Vec<FilesMessage> {
    let mut all = Vec::new();
    for _ in 0..10 {
        *now += names.config.tick;
        hand_in(names, 1, Vec::new());
        names.handle_timeout(*now);
        write_all(names, &mut Vec::new());
        all.extend(sent(names));
    }
    all
}

fn kept(names: &mut Nameserver, now: Timestamp, stream: (u64, u64), length: u64) {
    kept_by(names, now, 1, stream, length);
}

fn kept_by(
    names: &mut Nameserver,
    now: Timestamp,
    disk: u64,
    (generation, life): (u64, u64),
    length: u64,
) {
    let control = FilesControl::Kept { disk: DiskId(disk), generation, life, length };
    // The disk may be at the address of another one.
    let server = names.servers().get(&DiskId(disk));
    let n = server.map_or(disk as u16, |server| server.place.address.port() - 7_000);
    say(names, now, n, control);
}

/// The last stream that was sent, and the offset at which the last sent bytes of the stream end.
fn stream_of(sent: &[FilesMessage]) -> (LogStream, u64) {
    let last = sent.iter().rev().find_map(|message| match message {
        FilesMessage::Names { stream, offset, bytes, .. } => {
            Some((*stream, offset + bytes.len() as u64))
        }
        _ => None,
    });
    last.expect("a keeper gets the log")
}

fn done(names: &mut Nameserver) -> usize {
    std::iter::from_fn(|| names.poll_event()).count()
}

#[test]
fn a_change_is_done_when_the_keeper_has_it_and_refused_when_the_keeper_knows_a_later_life() {
    let mut now = Timestamp::ZERO;
    let mut names = Nameserver::new(NameConfig::default(), 1, &Bytes::new()).expect("no log");
    let sent = run(&mut names, &mut now);
    let (stream, end) = stream_of(&sent);
    kept(&mut names, now, (stream.generation, stream.life), end);
    let sent = run(&mut names, &mut now);
    assert_eq!(names.namespace().keepers().len(), 1);
    let (stream, end) = stream_of(&sent);
    kept(&mut names, now, (stream.generation, stream.life), end);

    create(&mut names, "/a", 1);
    let (_, end) = stream_of(&run(&mut names, &mut now));
    assert_eq!(done(&mut names), 0);
    kept(&mut names, now, (stream.generation, stream.life), end);
    assert_eq!(done(&mut names), 1);
    assert!(names.is_safe() && !names.is_old());

    kept(&mut names, now, (stream.generation - 1, stream.life ^ 1), end);
    assert!(!names.is_old());
    kept(&mut names, now, (stream.generation, stream.life ^ 1), end);
    assert!(names.is_old());
    assert_eq!(names.check_changes(), Err(crate::FilesRefusal::OldLog));
}

#[test]
fn silent_keepers_are_named_in_an_error_and_an_operator_gives_them_up() {
    let mut now = Timestamp::ZERO;
    let mut names = Nameserver::new(NameConfig::default(), 1, &Bytes::new()).expect("no log");
    for _ in 0..2 {
        let (stream, end) = stream_of(&run(&mut names, &mut now));
        kept(&mut names, now, (stream.generation, stream.life), end);
    }
    assert_eq!(names.check_changes(), Ok(()));
    let id = create(&mut names, "/a", 1);
    now += names.config.dead_after;
    names.handle_timeout(now);
    write_all(&mut names, &mut Vec::new());
    let silent = crate::FilesRefusal::SilentKeepers(vec!["127.0.0.1:7001".into()]);
    assert_eq!(names.check_changes(), Err(silent));
    // A primary that repeats its length adds no records.
    let changes = names.namespace().changes();
    let length = FilesControl::Length { file: id, epoch: 1, length: 5, closes: None };
    let (head, body) = FilesMessage::Control(length).encode(names.namespace.cluster);
    let datagram = Bytes::from([&head[..], &body].concat());
    let from = ([127, 0, 0, 1], 7_001).into();
    let arrival = evenfall_core::Arrival::new(from, datagram, now, StampedBy::User);
    names.handle(now, arrival).expect("our own datagram");
    assert_eq!((names.namespace().changes(), done(&mut names)), (changes, 0));

    // The only copy of the file is on the silent disk.
    let given_up = [DiskId(1)];
    let refused = names.forget(now, 2, &given_up, false).expect_err("bytes would be lost");
    assert!(refused.to_string().contains("1 file has"), "{refused}");
    names.forget(now, 2, &given_up, true).expect("the disk is silent");
    write_all(&mut names, &mut Vec::new());
    assert!(names.namespace().keepers().is_empty());
    let told: Vec<Event> = std::iter::from_fn(|| names.poll_event()).collect();
    // The creation of the file, the loss of its bytes, and the order itself.
    assert!(matches!(
        &told[..],
        [Event::Lost { .. }, Event::Done { .. }, Event::Done { token: 2 }]
    ));
    hand_in_at(&mut names, now, 2, Vec::new());
    assert_eq!(names.check_changes(), Ok(()));
    let refused = names.forget(now, 3, &[DiskId(2)], true);
    assert!(refused.is_err(), "the disk lives");
}

/// A nameserver with the keepers 1 and 2, which have all of its log, and the time.
fn with_two_keepers() -> (Nameserver, Timestamp) {
    let log = log(1, 0, &[1, 2]);
    let mut names = Nameserver::new(NameConfig::default(), 1, &log).expect("our own log");
    let mut now = Timestamp::ZERO;
    while !(names.log_replication.is_sure && names.is_safe()) {
        now += names.config.tick;
        (1..=2).for_each(|disk| hand_in_at(&mut names, now, disk, Vec::new()));
        names.handle_timeout(now);
        write_all(&mut names, &mut Vec::new());
        for message in sent(&mut names) {
            let FilesMessage::Names { stream, offset, bytes, .. } = message else { continue };
            let (of, end) = ((stream.generation, stream.life), offset + bytes.len() as u64);
            // A keeper is not asked about the stream of the other keeper, and the report is
            // ignored.
            (1..=2).for_each(|disk| kept_by(&mut names, now, disk, of, end));
        }
    }
    (names, now)
}

#[test]
fn the_error_names_each_keeper_that_changes_wait_for_and_no_other() {
    for (ticks_between, named) in [(0, vec![1, 2]), (2, vec![2])] {
        let (mut names, last_beat) = with_two_keepers();
        let (tick, dead_after) = (names.config.tick, names.config.dead_after);
        // Keeper 2 is heard last. When it falls silent too, keeper 1 is no longer waited for.
        let mut now = last_beat + tick * ticks_between;
        hand_in_at(&mut names, now, 2, Vec::new());
        let call = NamespaceCall::Mkdirs { path: "/before".into(), mode: 0o755 };
        names.call(now, 0, 1, &Caller::superuser("ann"), &call).expect("the keepers live");
        while now < last_beat + dead_after + tick * ticks_between {
            assert_eq!(names.check_changes(), Ok(()));
            now += tick;
            names.handle_timeout(now);
            write_all(&mut names, &mut Vec::new());
        }
        let silent = named.iter().map(|disk| format!("127.0.0.1:{}", 7_000 + disk)).collect();
        assert_eq!(names.check_changes(), Err(crate::FilesRefusal::SilentKeepers(silent)));
        assert_eq!(done(&mut names), 0, "the change waits");

        // All that are named have to be given up. When they are, changes go on.
        let disks: Vec<DiskId> = named.iter().map(|disk| DiskId(*disk)).collect();
        if let [first, _, ..] = disks[..] {
            names.forget(now, 2, &[first], false).expect("the disk is silent");
            assert!(names.check_changes().is_err());
        }
        names.forget(now, 3, &disks, false).expect("the disks are silent");
        write_all(&mut names, &mut Vec::new());
        let done_last = Event::Done { token: 3 };
        assert_eq!(std::iter::from_fn(|| names.poll_event()).last(), Some(done_last));
        assert_eq!(names.check_changes(), Ok(()));
    }
}

#[test]
fn a_change_waits_while_the_last_keeper_has_an_empty_disk() {
    let mut now = Timestamp::ZERO;
    let mut names = Nameserver::new(NameConfig::default(), 1, &Bytes::new()).expect("no log");
    for _ in 0..2 {
        let (stream, end) = stream_of(&run(&mut names, &mut now));
        kept(&mut names, now, (stream.generation, stream.life), end);
    }
    now += names.config.dead_after / REPLACED_PARTS;
    hand_in_with(&mut names, now, (1, 3), Vec::new());
    create(&mut names, "/a", 1);
    for answers in [false, true] {
        let mut told = 0;
        for _ in 0..10 {
            now += names.config.tick;
            hand_in_with(&mut names, now, (1, 3), Vec::new());
            names.handle_timeout(now);
            write_all(&mut names, &mut Vec::new());
            for message in sent(&mut names) {
                let FilesMessage::Names { stream, offset, bytes, .. } = message else { continue };
                let (of, end) = ((stream.generation, stream.life), offset + bytes.len() as u64);
                (0..u64::from(answers)).for_each(|_| kept_by(&mut names, now, 3, of, end));
            }
            told += done(&mut names);
        }
        assert_eq!(told > 0, answers, "the only copy of the change must not be here");
    }
    assert_eq!(names.namespace().keepers().iter().collect::<Vec<_>>(), [&DiskId(3)]);
}

/// The epochs of the assignments among these messages.
fn assigned(sent: &[FilesMessage]) -> BTreeSet<u64> {
    let epoch = |message: &FilesMessage| match message {
        FilesMessage::Control(FilesControl::Assign(assignment)) => Some(assignment.epoch),
        _ => None,
    };
    sent.iter().filter_map(epoch).collect()
}

#[test]
fn a_file_is_assigned_no_epoch_that_a_keeper_lacks() {
    let mut now = Timestamp::ZERO;
    let mut names = Nameserver::new(NameConfig::default(), 1, &Bytes::new()).expect("no log");
    let (stream, end) = stream_of(&run(&mut names, &mut now));
    let keep = |names: &mut Nameserver, now, end| {
        kept(names, now, (stream.generation, stream.life), end);
    };
    keep(&mut names, now, end);
    let (_, end) = stream_of(&run(&mut names, &mut now));
    keep(&mut names, now, end);

    // The keeper is slow, and a second epoch begins before the keeper has the file.
    let id = create(&mut names, "/a", 1);
    let sent = run(&mut names, &mut now);
    let (_, made) = stream_of(&sent);
    names.works.entry(id).or_default().is_troubled = true;
    names.examine(now, id);
    names.sealed(now, id, 2, DiskId(1), 1, (0, 0));
    assert_eq!(names.namespace().file(id).expect("a file").group.epoch, 2);
    let (_, sealed) = stream_of(&run(&mut names, &mut now));
    assert!(sealed > made && assigned(&sent).is_empty());
    keep(&mut names, now, made);
    assert!(assigned(&run(&mut names, &mut now)).is_empty());
    keep(&mut names, now, sealed);
    assert_eq!(assigned(&run(&mut names, &mut now)), [2].into());

    // After a restart, the keeper first needs a stream of the new life.
    let log = journal::log_of(names.namespace().records().iter().map(body_of));
    let mut names = Nameserver::new(NameConfig::default(), 2, &log).expect("our own log");
    let held = crate::wire::Held { file: id, epoch: 1, asks: true };
    hand_in(&mut names, 1, vec![held]);
    let sent = run(&mut names, &mut now);
    assert!(assigned(&sent).is_empty());
    let (stream, end) = stream_of(&sent);
    kept(&mut names, now, (stream.generation, stream.life), end);
    hand_in(&mut names, 1, vec![held]);
    assert_eq!(assigned(&run(&mut names, &mut now)), [2].into());
}

#[test]
fn a_log_that_is_never_idle_at_a_tick_keeps_no_keeper_waiting() {
    let mut now = Timestamp::ZERO;
    let mut names = Nameserver::new(NameConfig::default(), 1, &Bytes::new()).expect("no log");
    let mut streams = 0;
    for _ in 0..10 {
        now += names.config.tick;
        write_all(&mut names, &mut Vec::new());
        // A primary repeats a length at every tick until the nameserver answers.
        names.record(NamespaceChange::NOTHING, None);
        hand_in(&mut names, 1, Vec::new());
        names.handle_timeout(now);
        let is_stream = |message: &&FilesMessage| matches!(message, FilesMessage::Names { .. });
        streams += sent(&mut names).iter().filter(is_stream).count();
    }
    assert!(streams > 0);
}
