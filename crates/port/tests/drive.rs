//! The loop obeys the rule of the contract, as the simulator asserts it.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenfall_core::durable::Change;
use evenfall_core::{
    Arrival, ClockReading, Destination, Durable, GroupId, Head, Install, Machine, Malformed,
    StorageError, Timestamp, TrafficClass, Transmit, Write, WriteId,
};
use evenfall_host::clock::{ClockWatch, MonotonicClock, SyncSource, thread_cpu};
use evenfall_host::writes::Writes;
use evenfall_port::cpu_meter::CpuMeter;
use evenfall_port::memory::Switch;
use evenfall_port::run::{Loop, Sidecar};
use evenfall_port::udp::UdpDriver;
use evenfall_port::{Options, Port, Wake};

/// Repeats every datagram to a group of one, and ticks every ten milliseconds. Panics when an input
/// comes before its events and installs are drained.
struct Echo {
    number: u8,
    peer: SocketAddr,
    events: VecDeque<String>,
    installs: VecDeque<Install>,
    transmits: VecDeque<Transmit>,
    next: Timestamp,
    clock: Option<ClockReading>,
    /// Whether arrivals are useless before the next tick.
    rests: bool,
}

impl Echo {
    fn new(number: u8, peer: SocketAddr) -> Self {
        let install = Install::Group(GroupId(1), [peer].into());
        Self {
            number,
            peer,
            events: VecDeque::new(),
            installs: [install].into(),
            transmits: VecDeque::new(),
            next: MonotonicClock::now(),
            clock: None,
            rests: false,
        }
    }

    fn assert_drained(&self) {
        assert!(self.events.is_empty() && self.installs.is_empty(), "the rule is broken");
    }
}

impl Machine for Echo {
    type Event = String;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        self.assert_drained();
        assert!(arrival.received <= now);
        if arrival.datagram.len() < 2 {
            return Err(Malformed { what: "short", offset: 1 });
        }
        self.events.push_back(format!("{} got {}", self.number, arrival.datagram[1]));
        self.installs.push_back(Install::Group(GroupId(1), [self.peer].into()));
        self.transmits.push_back(Transmit::new(
            TrafficClass::Live,
            Destination::Group(GroupId(1)),
            Head::new(b"echo"),
            arrival.datagram,
        ));
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.assert_drained();
        assert!(now >= self.next);
        self.events.push_back(format!("{} tick", self.number));
        self.next = now + Duration::from_millis(10);
    }

    fn handle_clock(&mut self, _: Timestamp, reading: ClockReading) {
        self.clock = Some(reading);
    }

    fn poll_event(&mut self) -> Option<String> {
        self.events.pop_front()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.installs.pop_front()
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        Some(self.next)
    }

    fn poll_lull(&self) -> Option<Timestamp> {
        self.rests.then_some(self.next)
    }
}

#[test]
fn two_machines_share_a_socket_by_the_rule() {
    let loopback: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let outside = [UdpSocket::bind(loopback).unwrap(), UdpSocket::bind(loopback).unwrap()];
    let peers = outside.each_ref().map(|socket| socket.local_addr().unwrap());
    let mut machines = [Echo::new(0, peers[0]), Echo::new(1, peers[1])];
    let mut driver = UdpDriver::bind(loopback, Options::default()).unwrap();
    let watch = ClockWatch::start(SyncSource::SameHost, Duration::from_secs(60)).unwrap();
    let mut drive =
        Loop::dispatching(|bytes| bytes.first().map(|b| usize::from(*b))).with_clock(watch);
    for datagram in [&[0, 10][..], &[1, 11], &[0], &[9, 9], &[]] {
        outside[0].send_to(datagram, driver.local_addr()).unwrap();
    }
    let mut log = Vec::new();
    let mut events = |_: &Echo, _: Timestamp, event: String| log.push(event);
    let end = MonotonicClock::now() + Duration::from_millis(100);
    while MonotonicClock::now() < end {
        drive.turn(&mut machines, &mut driver, Some(end), &mut events).unwrap();
    }
    assert!(log.contains(&"0 got 10".into()) && log.contains(&"1 got 11".into()), "{log:?}");
    let ticks = log.iter().filter(|event| event.ends_with("tick")).count();
    assert!((8..=24).contains(&ticks), "{ticks} ticks");
    assert_eq!(drive.counters().malformed, 1);
    assert_eq!(drive.counters().undispatched, 2);
    assert!(machines.iter().all(|machine| machine.clock.is_some()));
    for (number, socket) in outside.iter().enumerate() {
        let mut bytes = [0; 64];
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let len = socket.recv(&mut bytes).unwrap();
        assert_eq!(bytes[..len], [&b"echo"[..], &[number as u8, 10 + number as u8]].concat());
    }
}

#[test]
fn after_a_rest_what_is_due_goes_before_what_has_arrived() {
    let loopback: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let outside = UdpSocket::bind(loopback).unwrap();
    let moderation = Duration::from_secs(1);
    let mut driver =
        UdpDriver::bind(loopback, Options { moderation, ..Options::default() }).unwrap();
    let mut machines = [Echo { rests: true, ..Echo::new(0, outside.local_addr().unwrap()) }];
    let mut drive = Loop::new();
    let mut log = Vec::new();
    // A tick that is late by a millisecond does not count as a rest, so the test may need some
    // tries.
    for _ in 0..200 {
        log.clear();
        let mut events = |_: &Echo, _: Timestamp, event: String| log.push(event);
        drive.turn(&mut machines, &mut driver, None, &mut events).unwrap();
        outside.send_to(&[0, 1], driver.local_addr()).unwrap();
        drive.turn(&mut machines, &mut driver, None, &mut events).unwrap();
        if log.iter().map(String::as_str).eq(["0 tick", "0 got 1"]) {
            return;
        }
    }
    panic!("an arrival always went first");
}

/// Ticks, and works for some time at each tick.
struct Worker {
    every: Duration,
    work: Duration,
    next: Timestamp,
    worked: Arc<AtomicU64>,
}

fn works_for(work: Duration) -> Duration {
    let began = thread_cpu();
    while thread_cpu() - began < work {}
    thread_cpu() - began
}

impl Machine for Worker {
    type Event = ClockReading;

    fn handle(&mut self, _: Timestamp, _: Arrival) -> Result<(), Malformed> {
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.next = now + self.every;
        let worked = works_for(self.work).as_nanos() as u64;
        self.worked.fetch_add(worked, Ordering::Relaxed);
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<ClockReading> {
        None
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        None
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        Some(self.next)
    }
}

#[test]
fn the_processor_time_of_the_machine_beside_is_told_from_that_of_the_role_and_of_the_owner() {
    let loopback: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let mut driver = UdpDriver::bind(loopback, Options::default()).unwrap();
    let worker = |every, work| Worker {
        every: Duration::from_micros(every),
        work: Duration::from_micros(work),
        next: MonotonicClock::now(),
        worked: Arc::default(),
    };
    let beside = worker(2_000, 300);
    let (worked, spent) = (Arc::clone(&beside.worked), CpuMeter::default());
    let mut drive = Loop::new();
    let machine = Box::new(beside);
    drive.set_sidecar(Sidecar { magic: [0, 0], machine, meter: spent.clone() });
    let mut role = [worker(3_000, 900)];
    while worked.load(Ordering::Relaxed) < 100_000_000 {
        drive.turn(&mut role, &mut driver, None, &mut |_, _, _| {}).unwrap();
        works_for(Duration::from_micros(100));
    }
    let share = spent.total().as_nanos() as f64 / worked.load(Ordering::Relaxed) as f64;
    // The role works twice as long as the machine beside, so that a share of 3 or more would count
    // the role's work too. On a machine so busy that both are always due together, the meter halves
    // the time of both, and the share is 2.
    assert!((0.4..2.5).contains(&share), "{share} of the time of the machine beside");
}

/// A machine with endless repairs, and one frame of the feed that comes up after some of them.
struct Repairing {
    to: SocketAddr,
    repairs: usize,
    is_live_sent: bool,
}

/// Repairs that the machine gives before its frame of the feed.
const REPAIRS_BEFORE: usize = 4;

impl Repairing {
    fn transmit(&self, class: TrafficClass) -> Transmit {
        let head = Head::new(&[class as u8]);
        Transmit::new(class, Destination::One(self.to), head, bytes::Bytes::new())
    }
}

impl Machine for Repairing {
    type Event = ();

    fn handle(&mut self, _: Timestamp, _: Arrival) -> Result<(), Malformed> {
        Ok(())
    }

    fn handle_timeout(&mut self, _: Timestamp) {}

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<()> {
        None
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        let urgent = self.poll_urgent(now);
        self.repairs += 1;
        urgent.or_else(|| Some(self.transmit(TrafficClass::Repair)))
    }

    fn poll_urgent(&mut self, _: Timestamp) -> Option<Transmit> {
        let is_due = self.repairs >= REPAIRS_BEFORE;
        (is_due && !std::mem::replace(&mut self.is_live_sent, true))
            .then(|| self.transmit(TrafficClass::Live))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        None
    }
}

#[test]
fn the_feed_is_pulled_while_the_queue_of_repairs_is_full() {
    let loopback: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let outside = UdpSocket::bind(loopback).unwrap();
    let to = outside.local_addr().unwrap();
    let options = Options { queue_frames_max: REPAIRS_BEFORE, ..Options::default() };
    let mut driver = UdpDriver::bind(loopback, options).unwrap();
    let mut machine = [Repairing { to, repairs: 0, is_live_sent: false }];
    let now = MonotonicClock::now();
    Loop::new().turn(&mut machine, &mut driver, Some(now), &mut |_, _, ()| {}).unwrap();
    outside.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut first = [0; 8];
    outside.recv(&mut first).unwrap();
    assert_eq!(first[0], TrafficClass::Live as u8, "the feed goes before the repairs that wait");
}

/// Has one line written, and says when the line is on the disk.
#[derive(Default)]
struct Scribe {
    is_asked: bool,
    written: Option<Result<(), StorageError>>,
}

impl Machine for Scribe {
    type Event = bool;

    fn handle(&mut self, _: Timestamp, _: Arrival) -> Result<(), Malformed> {
        Ok(())
    }

    fn handle_timeout(&mut self, _: Timestamp) {}

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<bool> {
        self.written.take().map(|done| done.is_ok())
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        None
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        None
    }

    fn durable(&mut self) -> Option<&mut dyn Durable> {
        Some(self)
    }
}

impl Durable for Scribe {
    fn poll_write(&mut self) -> Option<Write> {
        if std::mem::replace(&mut self.is_asked, true) {
            return None;
        }
        let change = Change::Append(bytes::Bytes::from_static(b"a line"));
        Some(Write { id: WriteId(1), log: "log".into(), change })
    }

    fn handle_written(&mut self, _: Timestamp, _: WriteId, done: Result<(), StorageError>) {
        self.written = Some(done);
    }
}

#[test]
fn a_write_that_is_done_ends_the_wait_and_its_machine_is_told() {
    let directory = std::env::temp_dir().join(format!("evenfall-drive-{}", std::process::id()));
    let writes = Writes::open(&directory).expect("a directory");
    let mut port = Switch::default().port(Options::default()).expect("a port");
    let mut drive = Loop::new().with_writes(0, writes);
    let mut machines = [Scribe::default()];
    let (mut written, mut wakes) = (None, Vec::new());
    while written.is_none() {
        let wake = drive.turn(&mut machines, &mut port, None, &mut |_, _, done| {
            written = Some(done);
        });
        wakes.push(wake.expect("no group is installed"));
    }
    assert_eq!(written, Some(true));
    assert!(wakes.contains(&Wake::Woken), "{wakes:?}");
    assert_eq!(std::fs::read(directory.join("log")).expect("a log"), b"a line");
    drop(drive);
    std::fs::remove_dir_all(&directory).expect("the directory is ours");
}
