//! One test body over all drivers: the simulator, every kind of port on loopback and between hosts,
//! and ports in memory. The simulator and the ports in memory run with and without forwarding of
//! their own.
//!
//! A scene has machines, the actions of their owner, and the condition on which each machine is
//! done. [`net::Net`] plays a scene and returns the record of each machine. Every machine is
//! wrapped in [`evenfall_sim::Strict`], which checks that the driver keeps the machine contract.
#![forbid(unsafe_code)]

mod actor;
mod caller;
mod net;
mod probe;
mod writes;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actor::{MachineRecord, Part, Play};
use caller::Caller;
use evenfall_multicast_machine::Mode;
use net::{Net, Scene};
use probe::{Probe, Saw};

/// Messages of a multicast.
const MESSAGES: u64 = 500;

/// Runs a body over all drivers. A failing test prints the driver that it ran on last. Ports in
/// hosts play all scenes in one lab for each kind.
macro_rules! over_all {
    ($($name:ident),* $(,)?) => {
        over_all!(@row simulated, [Net::Simulated { forwards: false }]; $($name)*);
        over_all!(@row simulated_forwarding, [Net::Simulated { forwards: true }]; $($name)*);
        over_all!(@row opened, Net::opened(); $($name)*);
        over_all!(@row memory, [Net::Memory { forwards: false }]; $($name)*);
        over_all!(@row memory_forwarding, [Net::Memory { forwards: true }]; $($name)*);
        const SCENES: &[(&str, fn(&Net))] = &[$((stringify!($name), $name)),*];
    };
    (@row $row:ident, $all:expr; $($name:ident)*) => {
        mod $row {
            use super::Net;
            $(#[test] fn $name() {
                for net in $all {
                    println!("{net:?}");
                    super::$name(&net);
                }
            })*
        }
    };
}

over_all!(
    group_reaches_each_member_exactly_once_and_in_order,
    control_leaves_before_live_before_repair,
    timeouts_come_when_due_and_never_before,
    clock_reading_is_the_first_input,
    full_queue_refuses_and_loses_nothing,
    every_receiver_releases_all_in_order_on_one_deadline,
    dropped_frames_are_repaired,
    key_changes_nothing_but_the_bytes,
    mode_switch_loses_nothing,
    receivers_leave_and_come_late,
    every_group_call_ends_with_the_same_outcome,
    every_question_when_a_transmit_left_is_answered_once,
);

#[test]
fn every_scene_ends_the_same_way_between_hosts() {
    // To take a program off a hook, the kernel waits for all cores. The scenes wait side by side.
    const THREADS: usize = 3;
    for net in Net::in_hosts() {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((name, play)) = SCENES.get(next.fetch_add(1, Ordering::Relaxed)) {
                println!("{net:?}: {name}");
                play(&net);
            }
        };
        std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    }
}

fn probes(net: &Net, sender: impl Fn(&mut Probe, &[std::net::SocketAddr]) + Sync) -> Vec<Vec<Saw>> {
    net.play(&Scene {
        nodes: 4,
        make: &|node, at, _| {
            let mut probe = Probe::default();
            if node == 0 {
                sender(&mut probe, at);
            }
            probe
        },
        owner: &|_, _, _| {},
        done: &|node, probe| (node == 0 || probe.seen_last()).then(|| probe.saw.clone()),
    })
}

fn datagrams(saw: &[Saw]) -> Vec<u32> {
    let number = |saw: &Saw| if let Saw::Datagram(number) = saw { Some(*number) } else { None };
    saw.iter().filter_map(number).collect()
}

fn group_reaches_each_member_exactly_once_and_in_order(net: &Net) {
    let saw = probes(net, |probe, at| {
        probe.group(&at[1..]);
        (0..100).for_each(|number| probe.send_group(number));
        probe.send_group(Probe::LAST);
    });
    let all: Vec<u32> = (0..100).chain([Probe::LAST]).collect();
    for receiver in &saw[1..] {
        assert_eq!(datagrams(receiver), all);
    }
}

/// A machine hands out its transmits by class, and drivers keep that order.
fn control_leaves_before_live_before_repair(net: &Net) {
    use evenfall_core::TrafficClass::{Control, Live, Repair};
    let saw = probes(net, |probe, at| {
        for (first, class) in [(0, Control), (100, Live), (200, Repair)] {
            for number in first..first + 40 {
                for to in &at[1..] {
                    probe.send_one(*to, class, number);
                }
            }
        }
        at[1..].iter().for_each(|to| probe.send_one(*to, Repair, Probe::LAST));
    });
    for receiver in &saw[1..] {
        let classes: Vec<u32> = datagrams(receiver).iter().map(|number| number / 100).collect();
        assert!(classes.is_sorted(), "{classes:?}");
        assert_eq!(classes.len(), 121);
    }
}

fn timeouts_come_when_due_and_never_before(net: &Net) {
    let saw = net.play(&Scene {
        nodes: 2,
        make: &|_, _, now| Probe::ticking(now),
        owner: &|_, _, _| {},
        done: &|_, probe: &Probe| (probe.timeouts >= 10).then_some(probe.early),
    });
    assert_eq!(saw, [0, 0]);
}

fn clock_reading_is_the_first_input(net: &Net) {
    let saw = probes(net, |probe, at| {
        probe.group(&at[1..]);
        probe.send_group(Probe::LAST);
    });
    for receiver in &saw {
        assert_eq!(receiver.first(), Some(&Saw::Clock));
    }
}

fn every_question_when_a_transmit_left_is_answered_once(net: &Net) {
    let saw = net.play(&Scene {
        nodes: 3,
        make: &|node, at, now| {
            let mut probe = Probe::default();
            if node == 0 {
                probe.group(&at[1..]);
                (0..40).for_each(|number| probe.ask_group(now, number));
            }
            probe
        },
        owner: &|_, _, _| {},
        done: &|node, probe: &Probe| {
            (node > 0 || probe.answered.len() >= 40).then(|| probe.answered.clone())
        },
    });
    let mut answered = saw[0].clone();
    answered.sort_unstable();
    assert!(answered.into_iter().eq((0..40).map(|number| (number, true))));
}

/// Proxies forward by hand the frames that their port does not forward. Receivers see no
/// difference.
#[test]
fn a_run_releases_the_same_with_and_without_forwarding_by_the_port() {
    let play = Play::default();
    let [by_hand, by_port] = [false, true].map(|forwards| play.on(&Net::Simulated { forwards }));
    let told = |all: &[MachineRecord]| -> Vec<_> {
        all.iter().map(|outcome| (outcome.part, outcome.released.clone(), outcome.lost)).collect()
    };
    assert_eq!(told(&by_hand), told(&by_port));
    assert_eq!(forwarded(&by_hand).1, 0);
    let (all, by_port) = forwarded(&by_port);
    // Counters of the port are up to ten milliseconds old, and the first frames are forwarded by
    // hand.
    assert!(by_port * 10 > all * 9, "{by_port} of {all}");
}

/// Frames that the proxies forwarded, and the part of them that their ports forwarded.
fn forwarded(all: &[MachineRecord]) -> (u64, u64) {
    let count = |of: fn(&MachineRecord) -> u64| all.iter().map(of).sum::<u64>();
    (count(|outcome| outcome.forwarded), count(|outcome| outcome.forwarded_by_port))
}

fn check(play: &Play, all: &[MachineRecord]) {
    for receiver in all.iter().filter(|outcome| outcome.part == Part::Receiver) {
        let first = receiver.released.first().copied().unwrap_or(0);
        let expected: Vec<u64> = (first..first + receiver.released.len() as u64).collect();
        assert_eq!(receiver.released, expected, "in order, each once");
        assert_eq!((receiver.lost, receiver.early), (0, 0));
        assert_eq!(receiver.foreign, 0, "contents as published");
        if play.mode.holds() {
            assert!(receiver.held > 0, "released on a deadline");
        }
    }
}

fn all_released(all: &[MachineRecord]) {
    for receiver in all.iter().filter(|outcome| outcome.part == Part::Receiver) {
        assert_eq!((receiver.released.first(), receiver.released.len()), (Some(&0), 500));
    }
}

fn full_queue_refuses_and_loses_nothing(net: &Net) {
    let play = Play { send_queue: 32, per_tick: 200, ..Play::default() };
    let all = play.on(net);
    check(&play, &all);
    all_released(&all);
    assert!(all[0].refused > 0, "32 frames and 200 messages at a time");
}

fn every_receiver_releases_all_in_order_on_one_deadline(net: &Net) {
    let play = Play::default();
    let all = play.on(net);
    check(&play, &all);
    all_released(&all);
    assert!(all.iter().map(|outcome| outcome.duplicates).sum::<u64>() > 0, "hedging sends copies");
    let (_, by_port) = forwarded(&all);
    assert_eq!(by_port > 0, net.forwards(), "by a port that can, and by no other");
}

fn dropped_frames_are_repaired(net: &Net) {
    let play = Play { drop_every: Some(7), ..Play::default() };
    let all = play.on(net);
    check(&play, &all);
    all_released(&all);
    assert!(all.iter().map(|outcome| outcome.dropped).sum::<u64>() > 0);
    assert!(all.iter().map(|outcome| outcome.repaired).sum::<u64>() > 0);
}

fn key_changes_nothing_but_the_bytes(net: &Net) {
    let play = Play { key: true, ..Play::default() };
    let all = play.on(net);
    check(&play, &all);
    all_released(&all);
    let (_, by_port) = forwarded(&all);
    assert_eq!(by_port > 0, net.forwards(), "the table has the key of the hop's code");
}

fn mode_switch_loses_nothing(net: &Net) {
    for (mode, then) in [(Mode::Tree, Mode::Release), (Mode::Release, Mode::Cloudex)] {
        let play = Play { mode, switch: Some((MESSAGES / 2, then)), ..Play::default() };
        let all = play.on(net);
        check(&play, &all);
        all_released(&all);
    }
}

fn receivers_leave_and_come_late(net: &Net) {
    let sleep = Duration::from_millis(200);
    let play = Play { leaves_after: Some(100), late: Some(sleep), ..Play::default() };
    let all = play.on(net);
    check(&play, &all);
    let (leaver, late) = (&all[Play::LEAVER], &all[Play::LATE]);
    assert!(leaver.released.len() >= 100 && leaver.released.len() < 500, "left half-way");
    assert!(late.released[0] > 0, "came half-way: {:?}", late.released.first());
    assert_eq!(late.released.last(), Some(&499));
    for stayed in [Play::LEAVER + 1, Play::LEAVER + 2] {
        assert_eq!(all[stayed].released.len(), 500);
    }
}

fn every_group_call_ends_with_the_same_outcome(net: &Net) {
    let ranks = 5;
    let all = net.play(&Scene {
        nodes: ranks,
        make: &|node, at, _| Caller::new(node, at.to_vec()),
        owner: &|_, caller, now| caller.begin(now),
        done: &|_, caller: &Caller| caller.outcomes(),
    });
    for (me, outcomes) in all.into_iter().enumerate() {
        assert_eq!(outcomes, Caller::expected(me, ranks), "rank {me}");
    }
}
