//! A port's behaviour with forwarding installs, on datagrams made by hand. A port that ignores
//! installs runs the same tests: no arrival may be marked and no copy may leave.

use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::forward::{DatagramField, HopCode, Match, Patch, Route, Window};
use evenfall_core::{
    Arrival, ClockError, ClockReading, Destination, Forward, ForwardCounters, ForwardId, GroupId,
    Head, Install, Installed, MacKey, TrafficClass, Transmit,
};
use evenfall_host::clock::MonotonicClock;
use evenfall_port::{Answer, Options, Port};

use super::{PATIENCE, Ports, flush, is_empty, one, receive};

const TABLE: ForwardId = ForwardId(3);
const GROUP: GroupId = GroupId(8);
/// The hop that wrote a datagram, in the patched byte.
const PUBLISHER: u8 = 0;
const PROXY: u8 = 1;

/// `[b'F', hop, number; 8, sent; 8]`, then the body.
fn datagram(hop: u8, number: u64) -> (Head, Bytes) {
    let head = [&[b'F', hop][..], &number.to_le_bytes(), &[0; 8]].concat();
    (Head::new(&head), Bytes::copy_from_slice(format!("body {number}").as_bytes()))
}

fn read(arrival: &Arrival) -> (u8, u64) {
    let number = u64::from_le_bytes(arrival.datagram[2..10].try_into().unwrap());
    assert_eq!(arrival.datagram[18..], *format!("body {number}").as_bytes());
    (arrival.datagram[1], number)
}

/// A publisher, a proxy, and its two receivers.
struct Line {
    ports: Vec<Box<dyn Port>>,
}

impl Line {
    fn new(kind: &Ports, options: &Options) -> Self {
        Self { ports: kind.ports(4, options) }
    }

    fn proxy(&mut self) -> &mut dyn Port {
        self.ports[1].as_mut()
    }

    fn install_group(&mut self) {
        let members = self.ports[2..].iter().map(|port| port.local_addr()).collect();
        self.proxy().install(0, &Install::Group(GROUP, members)).unwrap();
    }

    fn rules(&self, hop: u8) -> Forward {
        Forward {
            class: TrafficClass::Live,
            sources: vec![self.ports[0].local_addr()],
            matches: vec![Match::Bytes(DatagramField::new(0, b"F"))],
            routes: vec![Route { matches: Vec::new(), to: GROUP }],
            window: Window { at: 2, frames: 1_000 },
            head_bytes: 18,
            patches: vec![Patch::Bytes(DatagramField::new(1, &[hop])), Patch::SyncTime(10)],
            code: None,
        }
    }

    fn install(&mut self, hop: u8) -> Installed {
        let rules = self.rules(hop);
        self.proxy().install(0, &Install::Forward(TABLE, Some(Arc::new(rules)))).unwrap()
    }

    fn publish(&mut self, numbers: impl IntoIterator<Item = u64>) {
        let to = one(self.ports[1].as_ref());
        for number in numbers {
            let (head, body) = datagram(PUBLISHER, number);
            self.ports[0].send(0, Transmit::new(TrafficClass::Live, to, head, body)).unwrap();
        }
        flush(self.ports[0].as_mut());
    }

    /// The arrivals that the proxy's machine gets: the number of each, and whether it was sent on.
    fn handed_in(&mut self, count: usize) -> Vec<(u64, bool)> {
        let arrivals = receive(self.proxy(), count);
        assert!(arrivals.iter().all(|arrival| read(arrival).0 == PUBLISHER), "as it came");
        arrivals.iter().map(|arrival| (read(arrival).1, arrival.is_forwarded)).collect()
    }

    fn silent(&mut self) {
        assert!(self.ports[2..].iter_mut().all(|port| is_empty(port.as_mut())));
    }

    /// Sums the counters until they cover `count` datagrams.
    fn counted(&mut self, count: u64) -> ForwardCounters {
        let (mut sum, mut answers) = (ForwardCounters::default(), Vec::new());
        let end = MonotonicClock::now() + PATIENCE;
        while sum.forwarded + sum.duplicates + sum.behind + sum.refused < count {
            assert!(MonotonicClock::now() < end, "{sum:?} of {count}");
            self.proxy().answers(&mut answers);
            for answer in answers.drain(..) {
                let Answer::Counters(0, TABLE, counters) = answer else { panic!("{answer:?}") };
                sum += counters;
            }
        }
        sum
    }
}

pub fn a_table_is_taken_or_ignored_and_ignored_tables_do_nothing(kind: &Ports) {
    let mut line = Line::new(kind, &Options::default());
    line.install_group();
    let installed = line.install(PROXY);
    assert_eq!(installed == Installed::Taken, kind.forwards());
    assert_eq!(line.proxy().counters().installs_ignored, u64::from(!kind.forwards()));
    if !kind.forwards() {
        line.publish([0, 1]);
        assert_eq!(line.handed_in(2), [(0, false), (1, false)]);
        line.silent();
        return;
    }
    let unsound = Forward { head_bytes: 5, ..line.rules(PROXY) };
    let install = Install::Forward(TABLE, Some(Arc::new(unsound)));
    assert_eq!(line.proxy().install(0, &install).unwrap(), Installed::Ignored);
    line.publish([0]);
    assert_eq!(line.handed_in(1), [(0, false)], "nor does the table that it was to replace");
    line.silent();
}

pub fn matching_datagrams_are_sent_on_once_and_handed_in_as_well(kind: &Ports) {
    let mut line = Line::new(kind, &Options::default());
    line.install_group();
    line.install(PROXY);
    let offset_ns = 1_000_000_000_000;
    line.proxy().adopt_clock(ClockReading { offset_ns, error: ClockError::SameClock });
    let before = MonotonicClock::now().nanos();
    line.publish([0, 1, 1, 2]);
    let forwards = kind.forwards();
    let expected = [(0, forwards), (1, forwards), (1, false), (2, forwards)];
    assert_eq!(line.handed_in(4), expected);
    if !forwards {
        return line.silent();
    }
    for receiver in &mut line.ports[2..] {
        let got = receive(receiver.as_mut(), 3);
        assert!(got.iter().map(read).eq([(PROXY, 0), (PROXY, 1), (PROXY, 2)]));
        for arrival in &got {
            let sent = u64::from_le_bytes(arrival.datagram[10..18].try_into().unwrap());
            let range = before..=MonotonicClock::now().nanos();
            assert!(range.contains(&(sent - offset_ns as u64)), "by the synchronised clock");
            assert!(!arrival.is_forwarded);
        }
    }
    line.silent();
    // A datagram from another source, or with other bytes, is left to the machine.
    let to = one(line.ports[1].as_ref());
    let (head, body) = datagram(PUBLISHER, 9);
    line.ports[2].send(0, Transmit::new(TrafficClass::Live, to, head, body.clone())).unwrap();
    flush(line.ports[2].as_mut());
    assert!(!receive(line.proxy(), 1)[0].is_forwarded);
    let other = Transmit::new(TrafficClass::Live, to, Head::new(b"other kind, long enough"), body);
    line.ports[0].send(0, other).unwrap();
    flush(line.ports[0].as_mut());
    assert!(!receive(line.proxy(), 1)[0].is_forwarded);
    line.silent();
}

const KEY: [u8; 16] = *b"a key of a hop  ";
/// The part of a keyed head in front of the code.
const COVERED_BYTES: usize = 24;

fn code_of(head: &[u8], body: &[u8]) -> [u8; 8] {
    MacKey::new(0, &KEY).mac(&[&head[..COVERED_BYTES], &body[body.len() - 16..]]).to_le_bytes()
}

/// The head of a datagram of this number, six spare bytes and the code; then a body of two words
/// and the 16 bytes that the code covers.
fn keyed_datagram(number: u64) -> [Vec<u8>; 2] {
    let (head, _) = datagram(PUBLISHER, number);
    let body = b"not covered, and the tag of a seal".to_vec();
    let mut head = [head.as_slice(), &[0; 6]].concat();
    head.extend(code_of(&head, &body));
    [head, body]
}

pub fn a_keyed_table_checks_the_code_and_writes_its_own(kind: &Ports) {
    let mut line = Line::new(kind, &Options::default());
    line.install_group();
    let code = Some(HopCode::new(&KEY, COVERED_BYTES as u8, 16, COVERED_BYTES as u8));
    let head_bytes = COVERED_BYTES as u8 + 8;
    let rules = Forward { head_bytes, code, ..line.rules(PROXY) };
    line.proxy().install(0, &Install::Forward(TABLE, Some(Arc::new(rules)))).unwrap();
    let to = one(line.ports[1].as_ref());
    let publish = |line: &mut Line, number: u64, flip: Option<usize>| {
        let [mut head, mut body] = keyed_datagram(number);
        match flip {
            Some(at) if at < head.len() => head[at] ^= 1,
            Some(at) => body[at - usize::from(head_bytes)] ^= 1,
            None => {}
        }
        let transmit = Transmit::new(TrafficClass::Live, to, Head::new(&head), body.into());
        line.ports[0].send(0, transmit).unwrap();
        flush(line.ports[0].as_mut());
        let arrived = receive(line.proxy(), 1);
        (arrived[0].datagram.clone(), arrived[0].is_forwarded)
    };
    let length = 32 + keyed_datagram(0)[1].len();
    // The hop, a spare byte, the code, and the first and the last covered byte of the body.
    for at in [1, 20, 24, 31, length - 16, length - 1] {
        assert!(!publish(&mut line, 5, Some(at)).1, "byte {at} is forged");
    }
    line.silent();
    let (datagram, is_forwarded) = publish(&mut line, 5, None);
    assert_eq!(is_forwarded, kind.forwards(), "a forgery marks no number");
    assert_eq!(datagram[..], keyed_datagram(5).concat()[..], "as it came");
    let (flipped, is_forwarded) = publish(&mut line, 6, Some(32));
    assert_eq!(is_forwarded, kind.forwards(), "whoever opens the body notices");
    if !kind.forwards() {
        return line.silent();
    }
    for receiver in &mut line.ports[2..] {
        let got = receive(receiver.as_mut(), 2);
        for (arrival, came) in got.iter().zip([&datagram, &flipped]) {
            let (head, body) = arrival.datagram.split_at(32);
            assert_eq!((head[1], &head[2..10], body), (PROXY, &came[2..10], &came[32..]));
            assert_eq!(head[COVERED_BYTES..], code_of(head, body), "over the head that left");
        }
    }
    line.silent();
}

pub fn counters_come_back_and_begin_again(kind: &Ports) {
    if !kind.forwards() {
        return;
    }
    let mut line = Line::new(kind, &Options::default());
    line.install_group();
    line.install(PROXY);
    line.publish([5_000, 5_000, 10, 5_001]);
    line.handed_in(4);
    let told = line.counted(4);
    let expected = ForwardCounters { forwarded: 2, duplicates: 1, behind: 1, refused: 0 };
    assert_eq!(told, expected);
    line.publish([5_002]);
    line.handed_in(1);
    assert_eq!(line.counted(1), ForwardCounters { forwarded: 1, ..ForwardCounters::default() });
}

pub fn a_table_is_replaced_between_two_datagrams(kind: &Ports) {
    if !kind.forwards() {
        return;
    }
    let mut line = Line::new(kind, &Options::default());
    line.install_group();
    for hop in 1..=20 {
        line.install(hop);
        let first = 10 * u64::from(hop);
        // The table has sent the first five on before.
        line.publish(first - 10..first + 5);
        line.handed_in(15);
    }
    for receiver in &mut line.ports[2..] {
        let got = receive(receiver.as_mut(), 205);
        let sent_by = |number: u64| ((number + 5) / 10).max(1);
        assert!(got.iter().map(read).all(|(hop, number)| sent_by(number) == u64::from(hop)));
        let numbers: Vec<_> = got.iter().map(|arrival| read(arrival).1).collect();
        assert_eq!(numbers, (0..205).collect::<Vec<_>>(), "once, whichever table was in force");
    }
    line.silent();
}

pub fn a_forgotten_table_does_nothing(kind: &Ports) {
    let mut line = Line::new(kind, &Options::default());
    line.install_group();
    line.install(PROXY);
    let forget = Install::Forward(TABLE, None);
    let forgotten = line.proxy().install(0, &forget).unwrap();
    assert_eq!(forgotten == Installed::Taken, kind.forwards());
    line.publish([0]);
    assert_eq!(line.handed_in(1), [(0, false)]);
    line.silent();
}

pub fn a_datagram_without_room_is_left_to_the_machine(kind: &Ports) {
    if !kind.forwards() || !kind.queues_copies() {
        return;
    }
    let options = Options { queue_frames_max: 2, ..Options::default() };
    let mut line = Line::new(kind, &options);
    line.install_group();
    line.install(PROXY);
    // The machine has filled the class itself.
    for number in [100, 101] {
        let (head, body) = datagram(PROXY, number);
        let to = Destination::Group(GROUP);
        line.proxy().send(0, Transmit::new(TrafficClass::Live, to, head, body)).unwrap();
    }
    line.publish([0]);
    assert_eq!(line.handed_in(1), [(0, false)]);
    assert_eq!(line.counted(1).refused, 1);
    line.publish([0]);
    assert_eq!(line.handed_in(1), [(0, true)], "the number had not been sent on");
    for receiver in &mut line.ports[2..] {
        let got = receive(receiver.as_mut(), 3);
        assert!(got.iter().map(read).eq([(PROXY, 100), (PROXY, 101), (PROXY, 0)]));
    }
}

pub fn a_table_without_its_group_is_left_to_the_machine(kind: &Ports) {
    let mut line = Line::new(kind, &Options::default());
    line.install(PROXY);
    line.publish([0]);
    assert_eq!(line.handed_in(1), [(0, false)]);
    line.silent();
    if kind.forwards() {
        line.install_group();
        line.publish([0]);
        assert_eq!(line.handed_in(1), [(0, true)]);
    }
}
