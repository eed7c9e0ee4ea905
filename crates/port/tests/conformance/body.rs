//! The tests that every kind of port must pass.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{
    Destination, GroupId, Head, Install, Installed, Sent, StampedBy, Token, TrafficClass, Transmit,
};
use evenfall_host::Error;
use evenfall_host::clock::MonotonicClock;
use evenfall_port::{Answer, Options, Port, Refusal, Wake};

use super::{PATIENCE, Ports, answers, flush, is_empty, number, numbered, numbers, one, receive};

const GROUP: GroupId = GroupId(1);
const TO_GROUP: Destination = Destination::Group(GROUP);

fn group(port: &mut dyn Port, members: &[Box<dyn Port>]) {
    let members = members.iter().map(|member| member.local_addr()).collect();
    let install = Install::Group(GROUP, members);
    assert_eq!(port.install(0, &install).unwrap(), Installed::Taken);
}

pub fn copies_of_one_class_arrive_in_order(kind: &Ports) {
    let mut ports = kind.ports(2, &Options::default());
    let to = one(ports[1].as_ref());
    for round in 0..4 {
        for n in 0..100 {
            ports[0].send(0, numbered(TrafficClass::Live, to, round * 100 + n)).unwrap();
        }
        flush(ports[0].as_mut());
    }
    assert!(numbers(ports[1].as_mut(), 400).into_iter().eq(0..400));
    assert_eq!(ports[0].counters().sent[TrafficClass::Live as usize], 400);
    assert_eq!(ports[1].counters().received, 400);
}

pub fn a_more_urgent_class_leaves_first(kind: &Ports) {
    let mut ports = kind.ports(2, &Options::default());
    let to = one(ports[1].as_ref());
    for class in
        [TrafficClass::Bulk, TrafficClass::Repair, TrafficClass::Live, TrafficClass::Control]
    {
        for _ in 0..10 {
            ports[0].send(0, numbered(class, to, class as u32)).unwrap();
        }
    }
    flush(ports[0].as_mut());
    let got = numbers(ports[1].as_mut(), 40);
    assert_eq!(got.len(), 40);
    assert!(got.is_sorted(), "{got:?}");
}

pub fn every_member_of_a_group_gets_one_copy(kind: &Ports) {
    let mut ports = kind.ports(4, &Options::default());
    let (sender, members) = ports.split_first_mut().unwrap();
    group(sender.as_mut(), members);
    (0..50).for_each(|n| sender.send(0, numbered(TrafficClass::Live, TO_GROUP, n)).unwrap());
    flush(sender.as_mut());
    let from = sender.local_addr();
    for member in members {
        let got = receive(member.as_mut(), 50);
        assert!(got.iter().map(number).eq(0..50));
        let now = MonotonicClock::now();
        assert!(got.iter().all(|a| a.from == from && a.received <= now && !a.is_forwarded));
        assert!(is_empty(member.as_mut()));
    }
    assert!(is_empty(sender.as_mut()), "the sender is no member");
}

pub fn a_group_is_resolved_when_the_transmit_is_queued(kind: &Ports) {
    let mut ports = kind.ports(3, &Options::default());
    let (sender, members) = ports.split_first_mut().unwrap();
    group(sender.as_mut(), &members[..1]);
    sender.send(0, numbered(TrafficClass::Live, TO_GROUP, 7)).unwrap();
    group(sender.as_mut(), &members[1..]);
    sender.send(0, numbered(TrafficClass::Live, TO_GROUP, 8)).unwrap();
    flush(sender.as_mut());
    assert_eq!(numbers(members[0].as_mut(), 1), [7]);
    assert_eq!(numbers(members[1].as_mut(), 1), [8]);
    assert!(members.iter_mut().all(|member| is_empty(member.as_mut())));
}

pub fn a_replaced_group_has_only_its_new_members(kind: &Ports) {
    let mut ports = kind.ports(3, &Options::default());
    let (sender, members) = ports.split_first_mut().unwrap();
    group(sender.as_mut(), members);
    group(sender.as_mut(), &members[1..]);
    sender.send(0, numbered(TrafficClass::Live, TO_GROUP, 1)).unwrap();
    flush(sender.as_mut());
    assert_eq!(numbers(members[1].as_mut(), 1), [1]);
    assert!(is_empty(members[0].as_mut()));
    group(sender.as_mut(), &[]);
    let refused = sender.send(0, numbered(TrafficClass::Live, TO_GROUP, 2));
    assert_eq!(refused, Err(Refusal::UnknownGroup(GROUP)));
}

pub fn machines_on_one_port_name_groups_of_their_own(kind: &Ports) {
    let mut ports = kind.ports(3, &Options::default());
    let (sender, members) = ports.split_first_mut().unwrap();
    for (owner, member) in members.iter().enumerate() {
        let install = Install::Group(GROUP, Arc::new([member.local_addr()]));
        sender.install(owner, &install).unwrap();
    }
    for owner in [0, 1] {
        sender.send(owner, numbered(TrafficClass::Live, TO_GROUP, owner as u32)).unwrap();
    }
    flush(sender.as_mut());
    for (owner, member) in members.iter_mut().enumerate() {
        assert_eq!(numbers(member.as_mut(), 1), [owner as u32]);
    }
}

pub fn what_cannot_be_sent_is_refused_with_the_reason(kind: &Ports) {
    let mut ports = kind.ports(2, &Options::default());
    let to = one(ports[1].as_ref());
    let unknown = ports[0].send(0, numbered(TrafficClass::Live, TO_GROUP, 1));
    assert_eq!(unknown, Err(Refusal::UnknownGroup(GROUP)));
    let long = Bytes::from(vec![0; kind.datagram_bytes_max()]);
    let long = Transmit::new(TrafficClass::Live, to, Head::new(b"h"), long);
    assert_eq!(ports[0].send(0, long), Err(Refusal::TooLong));
    assert_eq!(ports[0].counters().refused, 2);
    flush(ports[0].as_mut());
    assert!(is_empty(ports[1].as_mut()));
}

pub fn nothing_goes_beyond_loopback_without_a_key(kind: &Ports) {
    let outside = "192.0.2.1:7000".parse().unwrap();
    assert!(matches!(kind.open(outside, Options::default()), Err(Error::Unkeyed { .. })));
    if kind.is_keyed() {
        return;
    }
    let mut ports = kind.ports(2, &Options::default());
    let refused = ports[0].send(0, numbered(TrafficClass::Live, Destination::One(outside), 1));
    assert_eq!(refused, Err(Refusal::Unkeyed(outside)));
    let inside = ports[1].local_addr();
    ports[0].install(0, &Install::Group(GROUP, Arc::new([inside]))).unwrap();
    let mixed = Install::Group(GROUP, Arc::new([inside, outside]));
    assert!(matches!(ports[0].install(0, &mixed), Err(Error::Unkeyed { .. })));
    // The group is unchanged.
    ports[0].send(0, numbered(TrafficClass::Live, TO_GROUP, 2)).unwrap();
    flush(ports[0].as_mut());
    assert_eq!(numbers(ports[1].as_mut(), 1), [2]);
}

pub fn a_full_queue_refuses_the_newest_of_its_class_only(kind: &Ports) {
    let options = Options { queue_frames_max: 4, ..Options::default() };
    let mut ports = kind.ports(3, &options);
    let (sender, members) = ports.split_first_mut().unwrap();
    group(sender.as_mut(), members);
    for n in 0..4 {
        assert!(sender.has_room(TrafficClass::Repair));
        sender.send(0, numbered(TrafficClass::Repair, TO_GROUP, n)).unwrap();
    }
    assert!(!sender.has_room(TrafficClass::Repair) && !sender.has_room(TrafficClass::Bulk));
    assert!(sender.has_room(TrafficClass::Control) && sender.has_room(TrafficClass::Live));
    assert_eq!(sender.send(0, numbered(TrafficClass::Repair, TO_GROUP, 4)), Err(Refusal::Full));
    sender.send(0, numbered(TrafficClass::Live, TO_GROUP, 5)).unwrap();
    assert_eq!(sender.counters().dropped_full, [0, 0, 2, 0], "copies of the newest");
    flush(sender.as_mut());
    assert!(sender.has_room(TrafficClass::Bulk));
    for member in members {
        assert_eq!(numbers(member.as_mut(), 5), [5, 0, 1, 2, 3]);
    }
}

pub fn arrivals_beyond_the_room_are_lost_and_the_rest_arrives(kind: &Ports) {
    let options = Options { receive_buffer_bytes: 1 << 16, ..Options::default() };
    let mut ports = kind.ports(2, &options);
    let to = one(ports[1].as_ref());
    let body = Bytes::from(vec![1; 1_000]);
    // The datagrams take sixteen times the room. The kernel grants twice the requested size, or its
    // own minimum.
    for n in 0..1_000_u32 {
        let head = Head::new(&n.to_le_bytes());
        ports[0].send(0, Transmit::new(TrafficClass::Live, to, head, body.clone())).unwrap();
        flush(ports[0].as_mut());
    }
    let mut got = Vec::new();
    let quiet = || Some(MonotonicClock::now() + Duration::from_millis(2));
    while ports[1].receive(&mut got) > 0 || ports[1].wait(None, quiet()) != Wake::Deadline {}
    assert!(!got.is_empty() && got.len() < 1_000, "{} of 1,000", got.len());
    let heads: Vec<_> = got.iter().map(|a| a.datagram[..4].try_into().unwrap()).collect();
    assert!(heads.iter().map(|head| u32::from_le_bytes(*head)).is_sorted());
    ports[0].send(0, numbered(TrafficClass::Live, to, 9)).unwrap();
    flush(ports[0].as_mut());
    assert_eq!(numbers(ports[1].as_mut(), 1), [9], "there is room again");
}

pub fn an_arrival_ends_a_wait(kind: &Ports) {
    let mut ports = kind.ports(2, &Options::default());
    let (mut there, mut here) = (ports.pop().unwrap(), ports.pop().unwrap());
    let to = one(here.as_ref());
    let sending = std::thread::spawn(move || {
        there.send(0, numbered(TrafficClass::Live, to, 1)).unwrap();
        flush(there.as_mut());
        there
    });
    assert_eq!(here.wait(None, Some(MonotonicClock::now() + PATIENCE)), Wake::Readable);
    assert_eq!(numbers(here.as_mut(), 1), [1]);
    drop(sending.join().unwrap());
    let soon = MonotonicClock::now() + Duration::from_millis(2);
    assert_eq!(here.wait(None, Some(soon)), Wake::Deadline, "all has been read");
}

pub fn a_wait_ends_at_its_deadline_and_not_before(kind: &Ports) {
    for spin in [Duration::ZERO, Duration::from_micros(50)] {
        let options = Options { spin, ..Options::default() };
        let mut port = kind.ports(1, &options).pop().unwrap();
        for _ in 0..20 {
            let deadline = MonotonicClock::now() + Duration::from_micros(300);
            assert_eq!(port.wait(None, Some(deadline)), Wake::Deadline);
            assert!(MonotonicClock::now() >= deadline);
        }
    }
}

pub fn another_thread_ends_a_wait(kind: &Ports) {
    let mut port = kind.ports(1, &Options::default()).pop().unwrap();
    let waker = port.waker();
    let waking = std::thread::spawn(move || waker.wake());
    assert_eq!(port.wait(None, Some(MonotonicClock::now() + PATIENCE)), Wake::Woken);
    waking.join().unwrap();
    let soon = MonotonicClock::now() + Duration::from_millis(2);
    assert_eq!(port.wait(None, Some(soon)), Wake::Deadline, "a wake-up is used once");
}

pub fn an_arrival_at_a_watched_port_ends_a_wait(kind: &Ports) {
    let mut ports = kind.ports(3, &Options::default());
    let handle = ports[1].handle().unwrap();
    ports[0].watch(vec![handle]);
    let to = one(ports[1].as_ref());
    ports[2].send(0, numbered(TrafficClass::Live, to, 1)).unwrap();
    flush(ports[2].as_mut());
    let patience = MonotonicClock::now() + PATIENCE;
    assert_eq!(ports[0].wait(None, Some(patience)), Wake::Readable);
    assert!(is_empty(ports[0].as_mut()));
    ports[0].watch(Vec::new());
    let soon = MonotonicClock::now() + Duration::from_millis(2);
    assert_eq!(ports[0].wait(None, Some(soon)), Wake::Deadline);
    assert_eq!(numbers(ports[1].as_mut(), 1), [1]);
}

pub fn who_rests_is_not_woken_by_arrivals_and_finds_them_after(kind: &Ports) {
    let moderation = Duration::from_millis(2);
    let resting = Options { moderation, kernel_timestamps: true, ..Options::default() };
    for (options, wake) in [(Options::default(), Wake::Readable), (resting, Wake::Deadline)] {
        let mut ports = kind.ports(2, &options);
        let to = one(ports[0].as_ref());
        ports[1].send(0, numbered(TrafficClass::Live, to, 1)).unwrap();
        flush(ports[1].as_mut());
        let far = MonotonicClock::now() + PATIENCE;
        assert_eq!(ports[0].wait(Some(far), Some(far)), wake);
        assert_eq!(numbers(ports[0].as_mut(), 1), [1]);
    }
}

fn sent(answer: &Answer) -> (usize, Sent) {
    let Answer::Sent(owner, sent) = *answer else { panic!("{answer:?}") };
    (owner, sent)
}

pub fn every_token_is_answered_once(kind: &Ports) {
    let mut ports = kind.ports(4, &Options::default());
    let (sender, members) = ports.split_first_mut().unwrap();
    group(sender.as_mut(), members);
    let (before, to) = (MonotonicClock::now(), one(members[0].as_ref()));
    // A transmit with a token is sent alone, and among others without one.
    for burst in [1, 150_u64] {
        for n in 0..burst {
            let to = if n % 3 == 0 { to } else { TO_GROUP };
            let transmit = numbered(TrafficClass::Live, to, n as u32);
            let asks = n % 2 == 0;
            let transmit = if asks { transmit.asking(Token(n)) } else { transmit };
            sender.send(0, transmit).unwrap();
        }
        flush(sender.as_mut());
        let expected = burst.div_ceil(2);
        let all = answers(sender.as_mut(), expected as usize);
        let tokens: BTreeSet<_> = all.iter().map(|answer| sent(answer).1.token.0).collect();
        assert!(tokens.into_iter().eq((0..burst).step_by(2)));
        assert_eq!(all.len() as u64, expected);
        for (_, sent) in all.iter().map(sent) {
            let at = sent.at.expect("it was sent");
            assert!(before <= at && at <= MonotonicClock::now());
            assert!(matches!(
                sent.stamped_by,
                StampedBy::Hardware | StampedBy::Kernel | StampedBy::User
            ));
        }
    }
}

pub fn a_refused_transmit_is_answered_as_never_sent(kind: &Ports) {
    let options = Options { queue_frames_max: 1, ..Options::default() };
    let mut ports = kind.ports(2, &options);
    let to = one(ports[1].as_ref());
    let unknown = numbered(TrafficClass::Live, TO_GROUP, 1).asking(Token(1));
    assert!(ports[0].send(0, unknown).is_err());
    ports[0].send(0, numbered(TrafficClass::Live, to, 2)).unwrap();
    let full = numbered(TrafficClass::Live, to, 3).asking(Token(3));
    assert_eq!(ports[0].send(0, full), Err(Refusal::Full));
    let all = answers(ports[0].as_mut(), 2);
    let never = |token| (0, Token(token), None);
    let got: Vec<_> = all.iter().map(sent).map(|(o, s)| (o, s.token, s.at)).collect();
    assert_eq!(got, [never(1), never(3)]);
}

pub fn a_token_is_answered_to_the_machine_that_asked(kind: &Ports) {
    let mut ports = kind.ports(2, &Options::default());
    let to = one(ports[1].as_ref());
    for owner in [2, 0, 1] {
        let transmit = numbered(TrafficClass::Live, to, 1).asking(Token(40 + owner as u64));
        ports[0].send(owner, transmit).unwrap();
    }
    flush(ports[0].as_mut());
    for (owner, sent) in answers(ports[0].as_mut(), 3).iter().map(sent) {
        assert_eq!(sent.token, Token(40 + owner as u64));
    }
}

pub fn answers_that_nobody_takes_are_bounded(kind: &Ports) {
    let mut ports = kind.ports(2, &Options::default());
    let unknown = |n| numbered(TrafficClass::Live, TO_GROUP, 1).asking(Token(n));
    (0..10_000).for_each(|n| assert!(ports[0].send(0, unknown(n)).is_err()));
    let mut all = Vec::new();
    ports[0].answers(&mut all);
    let dropped = ports[0].counters().answers_dropped;
    assert!(dropped > 0);
    assert_eq!(all.len() as u64 + dropped, 10_000);
    assert_eq!(all.last().map(sent).unwrap().1.token, Token(9_999), "the oldest go first");
}

pub fn the_longest_datagram_arrives_whole(kind: &Ports) {
    let mut ports = kind.ports(2, &Options::default());
    let to = one(ports[1].as_ref());
    let body: Bytes = (0..kind.datagram_bytes_max() - 4).map(|i| i as u8).collect();
    let transmit = Transmit::new(TrafficClass::Bulk, to, Head::new(b"head"), body.clone());
    ports[0].send(0, transmit).unwrap();
    flush(ports[0].as_mut());
    let got = receive(ports[1].as_mut(), 1);
    assert_eq!(got[0].datagram, [b"head", &body[..]].concat());
}

pub fn a_receiver_that_is_gone_is_harmless(kind: &Ports) {
    let mut ports = kind.ports(3, &Options::default());
    let gone = ports.remove(1);
    let (dead, alive) = (one(gone.as_ref()), one(ports[1].as_ref()));
    drop(gone);
    for n in 0..20 {
        ports[0].send(0, numbered(TrafficClass::Live, dead, n)).unwrap();
        ports[0].send(0, numbered(TrafficClass::Live, alive, n)).unwrap();
        flush(ports[0].as_mut());
    }
    assert!(numbers(ports[1].as_mut(), 20).into_iter().eq(0..20));
}
