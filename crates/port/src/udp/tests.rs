use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{Arrival, Destination, GroupId, Head, StampedBy, Token, TrafficClass};

use super::*;
use crate::{DATAGRAM_BYTES_MAX, Inject};

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn driver(options: Options) -> UdpDriver {
    UdpDriver::bind(loopback(), options).unwrap()
}

fn transmit(class: TrafficClass, to: Destination, head: &[u8], body: &Bytes) -> Transmit {
    Transmit::new(class, to, Head::new(head), body.clone())
}

/// Receives until `count` datagrams have come, or half a second passes without one.
fn receive(driver: &mut UdpDriver, count: usize) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    while arrivals.len() < count {
        let quiet = MonotonicClock::now() + Duration::from_millis(500);
        if driver.receive(&mut arrivals) == 0 && driver.wait(None, Some(quiet)) == Wake::Deadline {
            break;
        }
    }
    arrivals
}

fn payloads(driver: &mut UdpDriver, count: usize) -> Vec<Vec<u8>> {
    receive(driver, count).into_iter().map(|arrival| arrival.datagram.to_vec()).collect()
}

/// Frames of mixed lengths, each with its number in front.
fn mixed_frames() -> Vec<(Vec<u8>, Bytes)> {
    let lengths = [40, 40, 40, 7, 40, 0, 900, 900, 1400, 3, 3, 40, 40, 41, 40, 9000, 9000, 9000];
    lengths
        .iter()
        .cycle()
        .take(200)
        .enumerate()
        .map(|(number, len)| {
            let body: Vec<u8> = (0..*len).map(|i| (i + number) as u8).collect();
            ((number as u32).to_le_bytes().to_vec(), body.into())
        })
        .collect()
}

type Payloads = Vec<Vec<u8>>;

/// The datagrams of each of three receivers, the sender's counters, and the expected datagrams.
fn exchange(send: Options, receive: Options) -> (Vec<Payloads>, Counters, Payloads) {
    let mut sender = driver(send);
    let mut receivers: Vec<_> = (0..3).map(|_| driver(receive.clone())).collect();
    let members: Vec<_> = receivers.iter().map(Port::local_addr).collect();
    sender.install(0, &Install::Group(GroupId(1), members.into())).unwrap();
    let mut expected = Vec::new();
    for (head, body) in mixed_frames() {
        let frame = transmit(TrafficClass::Live, Destination::Group(GroupId(1)), &head, &body);
        sender.send(0, frame).unwrap();
        expected.push([head, body.to_vec()].concat());
    }
    assert!(sender.flush());
    let count = expected.len();
    let got = receivers.iter_mut().map(|receiver| payloads(receiver, count)).collect();
    (got, *sender.counters(), expected)
}

#[test]
fn same_bytes_in_order_with_and_without_segmentation_and_coalescing() {
    for segmentation in [false, true] {
        for coalescing in [false, true] {
            let options = Options { segmentation, coalescing, ..Options::default() };
            let (got, counters, expected) = exchange(options.clone(), options);
            for receiver in got {
                assert_eq!(receiver, expected, "segmentation {segmentation} GRO {coalescing}");
            }
            assert_eq!(counters.sent[TrafficClass::Live as usize], 600);
            assert_eq!(counters.failed, 0, "errno {}", counters.last_send_error);
        }
    }
}

#[test]
fn coalesced_bodies_are_handed_over_and_pinned_memory_is_bounded() {
    for pinned_bytes_max in [0, 256 << 10, 64 << 20] {
        let options = Options { pinned_bytes_max, ..Options::default() };
        let mut receiver = driver(options);
        let mut sender = driver(Options::default());
        let mut held = Vec::new();
        let body: Bytes = (0..1000).map(|i| i as u8).collect::<Vec<_>>().into();
        let to = Destination::One(receiver.local_addr());
        for round in 0..40_u8 {
            for _ in 0..50 {
                sender.send(0, transmit(TrafficClass::Live, to, &[round], &body)).unwrap();
            }
            sender.flush();
            held.extend(receive(&mut receiver, 50));
        }
        assert_eq!(held.len(), 2000);
        for (number, arrival) in held.iter().enumerate() {
            assert_eq!(usize::from(arrival.datagram[0]), number / 50);
            assert_eq!(arrival.datagram[1..], body[..]);
        }
        let copied = receiver.counters().copied_out;
        assert_eq!(copied > 0, pinned_bytes_max < 2 << 20, "{pinned_bytes_max}: {copied} copied");
    }
}

#[test]
fn pooled_memory_is_used_again_once_arrivals_are_dropped() {
    let mut receiver = driver(Options { pinned_bytes_max: 512 << 10, ..Options::default() });
    let mut sender = driver(Options::default());
    let body = Bytes::from(vec![5; 1000]);
    let to = Destination::One(receiver.local_addr());
    for count in [1, 50].into_iter().cycle().take(400) {
        for _ in 0..count {
            sender.send(0, transmit(TrafficClass::Live, to, b"", &body)).unwrap();
        }
        sender.flush();
        assert_eq!(receive(&mut receiver, count).len(), count);
    }
    assert_eq!(receiver.counters().copied_out, 0);
}

#[test]
fn order_per_destination_holds_when_groups_overlap() {
    let mut sender = driver(Options::default());
    let mut receivers: Vec<_> = (0..3).map(|_| driver(Options::default())).collect();
    let at: Vec<_> = receivers.iter().map(Port::local_addr).collect();
    sender.install(0, &Install::Group(GroupId(1), [at[0], at[1]].into())).unwrap();
    sender.install(0, &Install::Group(GroupId(2), [at[1], at[2]].into())).unwrap();
    let mut expected = vec![Vec::new(); 3];
    for number in 0..150_u8 {
        let (to, members): (_, &[usize]) = match number % 3 {
            0 => (Destination::Group(GroupId(1)), &[0, 1]),
            1 => (Destination::Group(GroupId(2)), &[1, 2]),
            _ => (Destination::One(at[1]), &[1]),
        };
        sender
            .send(0, transmit(TrafficClass::Live, to, &[number], &Bytes::from_static(b"same")))
            .unwrap();
        members.iter().for_each(|member| expected[*member].push([&[number][..], b"same"].concat()));
    }
    sender.flush();
    for (receiver, expected) in receivers.iter_mut().zip(expected) {
        assert_eq!(payloads(receiver, expected.len()), expected);
    }
}

#[test]
fn control_goes_before_live_before_repair_before_bulk() {
    let mut sender = driver(Options::default());
    let mut receiver = driver(Options::default());
    let to = Destination::One(receiver.local_addr());
    for class in
        [TrafficClass::Bulk, TrafficClass::Repair, TrafficClass::Live, TrafficClass::Control]
    {
        for _ in 0..3 {
            sender.send(0, transmit(class, to, &[class as u8], &Bytes::new())).unwrap();
        }
    }
    sender.flush();
    let classes: Vec<_> = payloads(&mut receiver, 12).concat();
    assert_eq!(classes, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
}

#[test]
fn full_queue_drops_the_newest_of_its_class_and_counts_copies() {
    let mut sender = driver(Options { queue_frames_max: 4, ..Options::default() });
    let mut receiver = driver(Options::default());
    let to = receiver.local_addr();
    sender.install(0, &Install::Group(GroupId(7), [to, to].into())).unwrap();
    let group = Destination::Group(GroupId(7));
    for number in 0..6_u8 {
        let pushed = sender.send(0, transmit(TrafficClass::Live, group, &[number], &Bytes::new()));
        assert_eq!(pushed.is_err(), number >= 4);
    }
    assert!(!sender.has_room(TrafficClass::Bulk));
    let control = transmit(TrafficClass::Control, Destination::One(to), b"c", &Bytes::new());
    assert!(sender.send(0, control).is_ok(), "another class has its own room");
    assert_eq!(sender.counters().dropped_full, [0, 4, 0, 0]);
    sender.flush();
    assert_eq!(receive(&mut receiver, 9).len(), 9);
}

#[test]
fn a_queue_full_of_repairs_leaves_room_for_the_feed() {
    let mut sender = driver(Options { queue_frames_max: 4, ..Options::default() });
    let to = Destination::One(driver(Options::default()).local_addr());
    for _ in 0..4 {
        sender.send(0, transmit(TrafficClass::Repair, to, b"r", &Bytes::new())).unwrap();
    }
    assert!(!sender.has_room(TrafficClass::Bulk) && !sender.has_room(TrafficClass::Repair));
    assert!(sender.has_room(TrafficClass::Live) && sender.has_room(TrafficClass::Control));
}

#[test]
fn a_queue_is_bounded_in_bytes_too() {
    let mut sender = driver(Options { queue_bytes_max: 1_000, ..Options::default() });
    let mut receiver = driver(Options::default());
    let to = Destination::One(receiver.local_addr());
    let body = Bytes::from(vec![1; 600]);
    for number in 0..3_u8 {
        let pushed = sender.send(0, transmit(TrafficClass::Live, to, &[number], &body));
        assert_eq!(pushed.is_err(), number == 2);
    }
    assert!(!sender.has_room(TrafficClass::Live) && sender.has_room(TrafficClass::Control));
    sender.flush();
    assert!(sender.has_room(TrafficClass::Live));
    assert_eq!(receive(&mut receiver, 2).len(), 2);
}

#[test]
fn the_longest_datagram_arrives_whole_without_coalescing() {
    let options = Options { segmentation: false, coalescing: false, ..Options::default() };
    let (mut receiver, mut sender) = (driver(options.clone()), driver(options));
    let to = Destination::One(receiver.local_addr());
    let body = Bytes::from(vec![7; DATAGRAM_BYTES_MAX - 1]);
    sender.send(0, transmit(TrafficClass::Live, to, b"h", &body)).unwrap();
    sender.flush();
    assert_eq!(payloads(&mut receiver, 1)[0].len(), DATAGRAM_BYTES_MAX);
    assert_eq!(receiver.counters().truncated, 0);
}

#[test]
fn nothing_leaves_loopback_without_a_key() {
    let outside: SocketAddr = "192.0.2.1:7000".parse().unwrap();
    let refused = UdpDriver::bind("0.0.0.0:0".parse().unwrap(), Options::default());
    let message = refused.err().expect("must be refused").to_string();
    assert!(message.contains("without a key") && message.contains("configure"), "{message}");
    let mut unkeyed = driver(Options::default());
    let one = transmit(TrafficClass::Live, Destination::One(outside), b"x", &Bytes::new());
    assert_eq!(unkeyed.send(0, one), Err(Refusal::Unkeyed(outside)));
    let members = [unkeyed.local_addr(), outside].into();
    assert!(unkeyed.install(0, &Install::Group(GroupId(1), members)).is_err());
    let group = transmit(TrafficClass::Live, Destination::Group(GroupId(1)), b"x", &Bytes::new());
    assert_eq!(unkeyed.send(0, group), Err(Refusal::UnknownGroup(GroupId(1))));
    assert_eq!(unkeyed.counters().refused, 2);
    assert!(UdpDriver::bind("0.0.0.0:0".parse().unwrap(), Options::default().keyed()).is_ok());
}

#[test]
fn segments_longer_than_the_path_fall_back_to_single_datagrams() {
    // Loopback carries 65,536 bytes a packet, so only a size near it is refused as a segment.
    let mut sender = driver(Options::default());
    let mut receiver = driver(Options::default());
    let to = Destination::One(receiver.local_addr());
    let body = Bytes::from(vec![9; 32_000]);
    for _ in 0..6 {
        sender.send(0, transmit(TrafficClass::Live, to, b"h", &body)).unwrap();
    }
    assert!(sender.flush());
    assert_eq!(receive(&mut receiver, 6).len(), 6);
    assert_eq!(sender.counters().failed, 0);
}

#[test]
fn closed_ports_are_harmless() {
    let closed = UdpSocket::bind(loopback()).unwrap().local_addr().unwrap();
    let mut sender = driver(Options::default());
    let mut receiver = driver(Options::default());
    let members = [closed, receiver.local_addr(), closed].into();
    sender.install(0, &Install::Group(GroupId(1), members)).unwrap();
    for number in 0..100_u8 {
        let group = Destination::Group(GroupId(1));
        sender.send(0, transmit(TrafficClass::Live, group, &[number], &Bytes::new())).unwrap();
        assert!(sender.flush());
    }
    assert_eq!(receive(&mut receiver, 100).len(), 100);
}

#[test]
fn kernel_stamps_are_on_the_local_clock_and_before_the_read() {
    let mut sender = driver(Options::default());
    let mut receiver = driver(Options { kernel_timestamps: true, ..Options::default() });
    // The kernel starts to stamp shortly after the first socket asked. Until then it stamps reads.
    std::thread::sleep(Duration::from_millis(100));
    let before = MonotonicClock::now();
    let to = Destination::One(receiver.local_addr());
    sender.send(0, transmit(TrafficClass::Live, to, b"x", &Bytes::new())).unwrap();
    sender.flush();
    std::thread::sleep(Duration::from_millis(20));
    let arrival = receive(&mut receiver, 1).remove(0);
    assert_eq!(arrival.stamped_by, StampedBy::Kernel);
    assert!(arrival.received + Duration::from_micros(100) >= before);
    assert!(MonotonicClock::now().since(arrival.received) >= Duration::from_millis(19));
}

#[test]
fn the_kernel_stamps_departures_that_ask_between_the_call_and_the_arrival() {
    let options = || Options { kernel_timestamps: true, ..Options::default() };
    let (mut sender, mut receiver) = (driver(options()), driver(options()));
    // The kernel starts to stamp arrivals shortly after the first socket asked.
    std::thread::sleep(Duration::from_millis(100));
    let to = Destination::One(receiver.local_addr());
    let mut answers = Vec::new();
    for number in 0..100 {
        let before = MonotonicClock::now();
        // A departure that does not ask has no number and no answer.
        sender.send(0, transmit(TrafficClass::Control, to, b"plain", &Bytes::new())).unwrap();
        assert!(sender.flush());
        let asking =
            transmit(TrafficClass::Control, to, b"asks", &Bytes::new()).asking(Token(number));
        sender.send(3, asking).unwrap();
        assert!(sender.flush());
        let arrived = receive(&mut receiver, 2).remove(1).received;
        sender.answers(&mut answers);
        let Some(Answer::Sent(3, sent)) = answers.pop() else { panic!("no answer to {number}") };
        assert_eq!((sent.token, sent.stamped_by), (Token(number), StampedBy::Kernel));
        let at = sent.at.unwrap();
        assert!(before < at && at < arrived, "{before:?}, {at:?}, {arrived:?}");
        assert!(answers.is_empty());
    }
}

#[test]
fn departures_whose_answers_nobody_takes_are_all_answered_once() {
    let stamped = Options { kernel_timestamps: true, segmentation: false, ..Options::default() };
    let mut sender = driver(stamped);
    let to = Destination::One(driver(Options::default()).local_addr());
    let count = 300;
    for number in 0..count {
        let asking =
            transmit(TrafficClass::Control, to, b"asks", &Bytes::new()).asking(Token(number));
        sender.send(0, asking).unwrap();
    }
    assert!(sender.flush());
    let (mut answers, mut tokens) = (Vec::new(), Vec::new());
    let end = MonotonicClock::now() + Duration::from_secs(10);
    while tokens.len() < count as usize && MonotonicClock::now() < end {
        sender.receive(&mut Vec::new());
        sender.answers(&mut answers);
        tokens.extend(answers.drain(..).map(|answer| match answer {
            Answer::Sent(_, sent) => sent.token,
            Answer::Counters(..) => panic!("nothing is installed"),
        }));
    }
    tokens.sort_unstable();
    assert_eq!(tokens, (0..count).map(Token).collect::<Vec<_>>());
}

#[test]
fn another_thread_ends_a_wait() {
    let mut waiting = driver(Options::default());
    let waker = waiting.waker();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        waker.wake();
    });
    let start = MonotonicClock::now();
    assert_eq!(waiting.wait(None, Some(start + Duration::from_secs(20))), Wake::Woken);
    assert!(MonotonicClock::now().since(start) < Duration::from_secs(10));
    other.join().unwrap();
    let soon = MonotonicClock::now() + Duration::from_millis(1);
    assert_eq!(waiting.wait(None, Some(soon)), Wake::Deadline, "a wake-up is used up");
}

#[test]
fn wait_ends_at_the_deadline_and_not_before() {
    for (spin, spin_share, never_sleep) in
        [(0, 1.0, false), (200, 1.0, false), (200, 0.01, false), (0, 1.0, true)]
    {
        let spin = Duration::from_micros(spin);
        let mut waiting = driver(Options { spin, spin_share, never_sleep, ..Options::default() });
        let deadline = MonotonicClock::now() + Duration::from_millis(2);
        assert_eq!(waiting.wait(None, Some(deadline)), Wake::Deadline);
        let now = MonotonicClock::now();
        assert!(now >= deadline);
        assert_eq!(
            waiting.wait(None, Some(deadline)),
            Wake::Deadline,
            "a past deadline returns at once"
        );
    }
}

#[test]
fn a_spin_keeps_to_its_share_of_the_time() {
    let longest = Duration::from_secs(3_600);
    let options = Options { spin: longest, spin_share: 0.01, ..Options::default() };
    let mut waiting = driver(options);
    let unused = waiting.waiting.spin(&waiting.options);
    assert_eq!(waiting.wait(None, Some(MonotonicClock::now())), Wake::Deadline);
    assert!(
        waiting.waiting.spin(&waiting.options) < unused,
        "the share begins anew with each wait"
    );
    waiting.options.spin_share = 1.0;
    assert_eq!(waiting.waiting.spin(&waiting.options), longest);
}

#[test]
fn too_long_datagrams_are_counted() {
    let options = Options { coalescing: false, datagram_bytes_max: 100, ..Options::default() };
    let mut receiver = driver(options);
    let socket = UdpSocket::bind(loopback()).unwrap();
    socket.send_to(&[1; 101], receiver.local_addr()).unwrap();
    socket.send_to(&[1; 100], receiver.local_addr()).unwrap();
    socket.send_to(&[], receiver.local_addr()).unwrap();
    let lengths: Vec<_> = payloads(&mut receiver, 2).iter().map(Vec::len).collect();
    assert_eq!(lengths, [100, 0]);
    assert_eq!(receiver.counters().truncated, 1);
    let long = Bytes::from(vec![0; DATAGRAM_BYTES_MAX + 1]);
    let to = Destination::One(receiver.local_addr());
    assert_eq!(
        receiver.send(0, transmit(TrafficClass::Bulk, to, b"", &long)),
        Err(Refusal::TooLong)
    );
}

#[test]
fn shared_bodies_are_let_go_after_the_last_copy() {
    let mut sender = driver(Options::default());
    let receiver = driver(Options::default());
    let owner: Arc<[u8]> = vec![1; 500].into();
    struct Held(Arc<[u8]>);
    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let to = Destination::One(receiver.local_addr());
    let body = Bytes::from_owner(Held(Arc::clone(&owner)));
    sender.send(0, transmit(TrafficClass::Live, to, b"", &body)).unwrap();
    drop(body);
    assert_eq!(Arc::strong_count(&owner), 2);
    sender.flush();
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn marks_per_class_are_accepted() {
    let options = Options { dscp: Some([48, 46, 18, 8]), ..Options::default() };
    let mut sender = driver(options);
    let mut receiver = driver(Options::default());
    let to = Destination::One(receiver.local_addr());
    for class in [TrafficClass::Bulk, TrafficClass::Live, TrafficClass::Control] {
        sender.send(0, transmit(class, to, b"x", &Bytes::new())).unwrap();
    }
    assert!(sender.flush());
    assert_eq!(receive(&mut receiver, 3).len(), 3);
    assert!(sender.notes().iter().all(|note| !note.contains("code point")), "{:?}", sender.notes());
}

#[test]
fn a_group_is_joined_on_loopback_and_refused_elsewhere_without_a_key() {
    let group: SocketAddr = "239.192.77.1:0".parse().unwrap();
    let interface = Some(Ipv4Addr::LOCALHOST);
    let lo = Options { multicast_interface: interface, ..Options::default() };
    assert!(matches!(
        UdpDriver::bind(group, Options::default()),
        Err(Error::Unkeyed { verb: "bind to", .. })
    ));
    let elsewhere = Options { multicast_interface: Some(Ipv4Addr::UNSPECIFIED), ..lo.clone() };
    assert!(UdpDriver::bind(group, elsewhere).is_err());
    let mut first = UdpDriver::bind(group, lo.clone()).unwrap();
    let group = first.local_addr();
    let mut second = UdpDriver::bind(group, lo.clone()).unwrap();
    let mut sender = driver(lo);
    let body = Bytes::from_static(b"to all");
    sender.send(0, transmit(TrafficClass::Live, Destination::One(group), b"", &body)).unwrap();
    assert!(sender.flush());
    assert_eq!(payloads(&mut first, 1), [b"to all"]);
    assert_eq!(payloads(&mut second, 1), [b"to all"], "a copy for each");
    let mut outsider = driver(Options::default());
    let refused =
        outsider.send(0, transmit(TrafficClass::Live, Destination::One(group), b"", &body));
    assert_eq!(refused, Err(Refusal::Unkeyed(group)));
}

#[test]
fn a_watched_socket_ends_the_wait_of_another() {
    let mut waiting = driver(Options::default());
    let mut watched = driver(Options::default());
    waiting.watch(vec![watched.handle().unwrap()]);
    let mut sender = driver(Options::default());
    let to = Destination::One(watched.local_addr());
    sender.send(0, transmit(TrafficClass::Live, to, b"x", &Bytes::new())).unwrap();
    assert!(sender.flush());
    assert_eq!(waiting.wait(None, None), Wake::Readable);
    assert_eq!(payloads(&mut watched, 1), [b"x"]);
    waiting.watch(Vec::new());
    assert_eq!(waiting.wait(None, Some(MonotonicClock::now())), Wake::Deadline);
}

#[test]
fn injected_delays_change_while_running() {
    let dir = std::env::temp_dir().join(format!("evenfall-inject-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("delays");
    std::fs::write(&file, "* * 20000\n").unwrap();
    let inject = Inject { file: file.clone(), seed: 1, queue_datagrams_max: 100 };
    let mut slow = driver(Options { inject: Some(inject), ..Options::default() });
    let sender = UdpSocket::bind(loopback()).unwrap();
    let mut took = || {
        let sent = MonotonicClock::now();
        sender.send_to(b"x", slow.local_addr()).unwrap();
        let arrivals = receive(&mut slow, 1);
        arrivals[0].received.since(sent)
    };
    assert!(took() >= Duration::from_millis(20));
    std::fs::write(dir.join("next"), "* * 60000\n").unwrap();
    std::fs::rename(dir.join("next"), &file).unwrap();
    std::thread::sleep(Duration::from_millis(150));
    assert!(took() >= Duration::from_millis(60));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn who_rests_is_not_woken_by_arrivals_and_finds_them_after() {
    let moderation = Duration::from_millis(50);
    let mut resting = driver(Options { moderation, ..Options::default() });
    let mut awake = driver(Options::default());
    for receiver in [&mut resting, &mut awake] {
        let to = Destination::One(receiver.local_addr());
        let mut sender = driver(Options::default());
        sender.send(0, transmit(TrafficClass::Live, to, b"x", &Bytes::new())).unwrap();
        assert!(sender.flush());
    }
    let now = MonotonicClock::now();
    let (lull, deadline) = (now + Duration::from_millis(5), now + Duration::from_secs(20));
    assert_eq!(
        awake.wait(Some(lull), Some(deadline)),
        Wake::Readable,
        "nothing is moderated by default"
    );
    assert_eq!(resting.wait(Some(lull), Some(deadline)), Wake::Deadline);
    assert!(MonotonicClock::now() >= lull);
    assert_eq!(resting.wait(None, Some(deadline)), Wake::Readable);
    assert_eq!(receive(&mut resting, 1).len(), 1);
    let start = MonotonicClock::now();
    assert_eq!(
        resting.wait(Some(deadline), Some(deadline)),
        Wake::Deadline,
        "no longer than is allowed"
    );
    let rested = MonotonicClock::now().since(start);
    assert!((moderation..Duration::from_secs(10)).contains(&rested), "{rested:?}");
}
