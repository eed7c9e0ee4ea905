//! One test body that runs over every kind of port.
//!
//! The row `opened` goes over [`PortKind::NAMED`], so a new kind needs no change here. A kind that
//! lacks a privilege or a device is skipped by its name. Ports in memory, which a switch connects,
//! have rows of their own.
#![forbid(unsafe_code)]

mod body;
mod forwarding;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{Arrival, Destination, Head, TrafficClass, Transmit};
use evenfall_host::Error;
use evenfall_host::clock::MonotonicClock;
use evenfall_host::lab::Lab;
use evenfall_port::memory::Switch;
use evenfall_port::{Answer, DATAGRAM_BYTES_MAX, Options, Port, PortKind, Wake};

/// How long a test waits for an expected arrival. Nothing on this host takes that long.
const PATIENCE: Duration = Duration::from_secs(10);

/// The source of a test's ports.
#[derive(Debug)]
enum Ports {
    Opened(PortKind),
    /// Ports of hosts of a lab, with a virtual link between any two hosts.
    Hosts {
        kind: PortKind,
        lab: Lab,
    },
    Memory {
        forwards: bool,
    },
}

/// Settings let ports of kinds that forward send single datagrams, which alone are forwarded.
fn single(kind: PortKind, options: Options) -> Options {
    Options { segmentation: options.segmentation && !kind.forwards(), ..options }
}

impl Ports {
    /// Ports of every kind that this process can open.
    fn opened() -> impl Iterator<Item = Self> {
        let skip = |name: &str, lacks: &str| println!("skipped: ports of kind {name}: {lacks}");
        PortKind::available(skip).map(Self::Opened)
    }

    /// Ports of every kind in hosts, which compute and check all checksums.
    fn in_hosts() -> impl Iterator<Item = Self> {
        let skip = |name: &str, lacks: &str| println!("skipped: {name} in hosts: {lacks}");
        PortKind::available(skip).filter_map(|kind| {
            let lab = Lab::new(4).and_then(|lab| {
                (0..lab.hosts()).try_for_each(|host| lab.turn_off_checksums(host))?;
                Ok(lab)
            });
            let lab = lab.inspect_err(|error| println!("skipped: hosts: {error}")).ok()?;
            Some(Self::Hosts { kind, lab })
        })
    }

    /// Whether the ports carry out a forwarding install.
    fn forwards(&self) -> bool {
        match self {
            Self::Opened(kind) | Self::Hosts { kind, .. } => kind.forwards(),
            Self::Memory { forwards } => *forwards,
        }
    }

    /// Whether the ports have a key, without which hosts reach nobody.
    fn is_keyed(&self) -> bool {
        matches!(self, Self::Hosts { .. })
    }

    /// Whether the copies of a forwarded datagram wait in the queues of the port. The kernel's
    /// copies do not.
    fn queues_copies(&self) -> bool {
        !matches!(self, Self::Opened(PortKind::Tc) | Self::Hosts { kind: PortKind::Tc, .. })
    }

    /// Bytes of the longest datagram that the ports carry.
    fn datagram_bytes_max(&self) -> usize {
        match self {
            Self::Opened(kind) | Self::Hosts { kind, .. } => kind.datagram_bytes_max(),
            Self::Memory { .. } => DATAGRAM_BYTES_MAX,
        }
    }

    /// Opens ports that reach each other, with these options.
    fn ports(&self, count: usize, options: &Options) -> Vec<Box<dyn Port>> {
        let switch = Switch::new();
        let open = |number| -> Box<dyn Port> {
            let options = options.clone();
            match self {
                Self::Opened(kind) => self.open(kind.test_address(number), options).unwrap(),
                Self::Hosts { kind, lab } => {
                    // The ports behind the second one only receive.
                    let kind = if number < 2 { kind } else { &PortKind::Udp };
                    let address = (lab.address(number), 0).into();
                    let options = Options { kind: *kind, ..single(*kind, options).keyed() };
                    lab.within(number, || evenfall_port::open(address, options)).unwrap().unwrap()
                }
                Self::Memory { forwards: false } => Box::new(switch.port(options).unwrap()),
                Self::Memory { forwards: true } => {
                    Box::new(switch.port(options).unwrap().forwarding())
                }
            }
        };
        (0..count).map(open).collect()
    }

    /// Opens a port at an address.
    fn open(&self, address: SocketAddr, options: Options) -> Result<Box<dyn Port>, Error> {
        match self {
            Self::Opened(kind) | Self::Hosts { kind, .. } => {
                evenfall_port::open(address, Options { kind: *kind, ..single(*kind, options) })
            }
            Self::Memory { .. } => Ok(Box::new(Switch::new().port_at(address, options)?)),
        }
    }
}

/// A test of the suite.
type Test = fn(&Ports);

/// Runs each test over the ports of each row. A failing test shows its ports. Ports in hosts run
/// all tests in one lab for each kind, since hosts take longer to make than a test takes.
macro_rules! over_all {
    (body: $($body:ident)*; forwarding: $($forwarding:ident)*;) => {
        over_all!(@all body: $($body)*; forwarding: $($forwarding)*;);
        const IN_HOSTS: &[(&str, Test)] = &[
            $((stringify!($body), body::$body),)*
            $((stringify!($forwarding), forwarding::$forwarding),)*
        ];
    };
    (@all $($room:ident: $($name:ident)*;)*) => {
        over_all!(@row opened, Ports::opened(); $($room: $($name)*;)*);
        over_all!(@row memory, [Ports::Memory { forwards: false }]; $($room: $($name)*;)*);
        over_all!(@row memory_forwarding, [Ports::Memory { forwards: true }];
            $($room: $($name)*;)*);
    };
    (@row $row:ident, $all:expr; $($room:ident: $($name:ident)*;)*) => {
        mod $row {
            use super::*;
            $($(#[test] fn $name() {
                for ports in $all {
                    println!("{ports:?}");
                    $room::$name(&ports);
                }
            })*)*
        }
    };
}

over_all! {
    body:
        copies_of_one_class_arrive_in_order
        a_more_urgent_class_leaves_first
        every_member_of_a_group_gets_one_copy
        a_group_is_resolved_when_the_transmit_is_queued
        a_replaced_group_has_only_its_new_members
        machines_on_one_port_name_groups_of_their_own
        what_cannot_be_sent_is_refused_with_the_reason
        nothing_goes_beyond_loopback_without_a_key
        a_full_queue_refuses_the_newest_of_its_class_only
        arrivals_beyond_the_room_are_lost_and_the_rest_arrives
        an_arrival_ends_a_wait
        a_wait_ends_at_its_deadline_and_not_before
        another_thread_ends_a_wait
        an_arrival_at_a_watched_port_ends_a_wait
        who_rests_is_not_woken_by_arrivals_and_finds_them_after
        every_token_is_answered_once
        a_refused_transmit_is_answered_as_never_sent
        a_token_is_answered_to_the_machine_that_asked
        answers_that_nobody_takes_are_bounded
        the_longest_datagram_arrives_whole
        a_receiver_that_is_gone_is_harmless;
    forwarding:
        a_table_is_taken_or_ignored_and_ignored_tables_do_nothing
        matching_datagrams_are_sent_on_once_and_handed_in_as_well
        a_keyed_table_checks_the_code_and_writes_its_own
        counters_come_back_and_begin_again
        a_table_is_replaced_between_two_datagrams
        a_forgotten_table_does_nothing
        a_datagram_without_room_is_left_to_the_machine
        a_table_without_its_group_is_left_to_the_machine;
}

#[test]
fn every_kind_passes_between_hosts() {
    // To take a program off a hook, the kernel waits for all cores. The tests wait side by side.
    const THREADS: usize = 6;
    for ports in Ports::in_hosts() {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((name, test)) = IN_HOSTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                println!("{ports:?}: {name}");
                test(&ports);
            }
        };
        std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    }
}

/// A transmit whose head is this number.
fn numbered(class: TrafficClass, to: Destination, number: u32) -> Transmit {
    Transmit::new(class, to, Head::new(&number.to_le_bytes()), Bytes::from_static(b"body"))
}

fn number(arrival: &Arrival) -> u32 {
    assert_eq!(&arrival.datagram[4..], b"body");
    u32::from_le_bytes(arrival.datagram[..4].try_into().unwrap())
}

/// Receives until `count` datagrams have come, or none comes in the time that it could take.
fn receive(port: &mut dyn Port, count: usize) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    while arrivals.len() < count {
        let quiet = MonotonicClock::now() + PATIENCE;
        if port.receive(&mut arrivals) == 0 && port.wait(None, Some(quiet)) == Wake::Deadline {
            break;
        }
    }
    arrivals
}

/// The numbers of the next `count` datagrams, and of datagrams that came with them.
fn numbers(port: &mut dyn Port, count: usize) -> Vec<u32> {
    receive(port, count).iter().map(number).collect()
}

/// Whether no arrival waits to be read. A datagram that was sent on this host before this call has
/// arrived.
fn is_empty(port: &mut dyn Port) -> bool {
    port.receive(&mut Vec::new()) == 0
}

/// Sends all that is queued.
fn flush(port: &mut dyn Port) {
    let end = MonotonicClock::now() + PATIENCE;
    while !port.flush() {
        assert!(MonotonicClock::now() < end, "the port takes no more");
        port.wait(None, Some(end));
    }
}

/// Takes answers until there are `count`.
fn answers(port: &mut dyn Port, count: usize) -> Vec<Answer> {
    let mut answers = Vec::new();
    let end = MonotonicClock::now() + PATIENCE;
    while answers.len() < count && MonotonicClock::now() < end {
        port.answers(&mut answers);
        std::thread::yield_now();
    }
    answers
}

fn one(port: &dyn Port) -> Destination {
    Destination::One(port.local_addr())
}
