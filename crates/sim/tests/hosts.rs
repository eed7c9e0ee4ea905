//! What hosts cost: processors, cores, network cards, socket buffers.

use std::time::Duration;

use crate::common::{MS, US, heard, ms, probes, probes_on, quiet, send};
use evenfall_core::{Destination, GroupId};
use evenfall_sim::{
    Cloud, CloudProfile, Collect, HostSpec, Loss, NodeIndex, Quantiles, SimTime, StallSpec, Wire,
    World,
};

fn costly() -> HostSpec {
    HostSpec {
        wake_cost: 4 * US,
        receive_cost: US,
        send_cost: 3 * US,
        copy_cost: 2 * US,
        ..HostSpec::ideal()
    }
}

#[test]
fn copies_leave_one_after_the_other() {
    let (mut world, mut watch) = probes(4, &costly());
    let members: Vec<_> = (1..4).map(|n| world.address(NodeIndex(n))).collect();
    world.call(NodeIndex(0), &mut watch, |probe, _| {
        probe.install(7, &members);
        probe.send(Destination::Group(GroupId(7)), &[2]);
        probe.send(Destination::Group(GroupId(8)), &[4]);
    });
    world.run_until(ms(1), &mut watch);
    // 3 us for the call, 2 for each copy, 50 of wire, 5 to wake up and receive.
    for node in 1..4 {
        assert_eq!(heard(&watch, node), [(58_000 + 2_000 * u64::from(node), 2)]);
    }
    assert_eq!(world.tally().sent, 3, "a group that is not installed has no members");
}

#[test]
fn who_asks_is_told_when_the_last_copy_left_or_that_none_did() {
    let (mut world, mut watch) = probes(4, &costly());
    let members: Vec<_> = (1..4).map(|n| world.address(NodeIndex(n))).collect();
    world.call(NodeIndex(0), &mut watch, |probe, _| {
        probe.install(7, &members);
        probe.ask(Destination::Group(GroupId(7)), 70);
        probe.ask(Destination::Group(GroupId(8)), 80);
    });
    let begun = world.local(NodeIndex(0));
    world.run_until(ms(1), &mut watch);
    // 3 us for the call and 2 for each of three copies.
    let sent = &world.machine(NodeIndex(0)).sent;
    assert_eq!(sent[..], [(70, Some(begun + 9 * US)), (80, None)]);
}

/// A host with sending threads: 1 us to hand over, 2 us of a thread and 10 us of the card a copy.
fn with_threads(send_threads: u16) -> HostSpec {
    let (send_cost, copy_cost, card_cost) = (US, 2 * US, 10 * US);
    HostSpec { send_cost, copy_cost, card_cost, send_threads, ..HostSpec::ideal() }
}

#[test]
fn threads_that_send_have_queues_of_the_card_of_their_own() {
    let (mut world, mut watch) = probes(4, &with_threads(2));
    let members: Vec<_> = (1..4).map(|n| world.address(NodeIndex(n))).collect();
    world.call(NodeIndex(0), &mut watch, |probe, _| {
        probe.install(7, &members);
        probe.send(Destination::Group(GroupId(7)), &[2]);
        probe.send(Destination::Group(GroupId(7)), &[4]);
        probe.ask(Destination::Group(GroupId(7)), 70);
        probe.ask(Destination::Group(GroupId(8)), 80);
    });
    let begun = world.local(NodeIndex(0));
    world.run_until(ms(1), &mut watch);
    // Handed over at 1 and 2 us, the first copies are made at 3 and 4. Then the card needs 10 us
    // for each copy of a thread. The third transmit waits for the thread that is idle first.
    for node in 1..4 {
        let first = 53_000 + 10_000 * u64::from(node);
        let heard: Vec<_> = heard(&watch, node).into_iter().take(2).collect();
        assert_eq!(heard, [(first, 2), (first + 1_000, 4)], "node {node}");
    }
    let sent = &world.machine(NodeIndex(0)).sent;
    assert_eq!(sent[..], [(80, None), (70, Some(begun + 63 * US))]);
}

#[test]
fn full_queues_of_sending_threads_hold_the_sender_back_but_not_its_ears() {
    let spec = HostSpec { send_queue: 100 * US, ..with_threads(1) };
    let (mut world, mut watch) = probes(2, &spec);
    let to = world.address(NodeIndex(1));
    world.call(NodeIndex(0), &mut watch, |probe, _| {
        (0..200).for_each(|_| probe.send(Destination::One(to), &[2]));
    });
    let left = world.machine(NodeIndex(0)).outbox.len();
    assert!((185..195).contains(&left), "100 us are ten copies, {left} left");
    send(&mut world, &mut watch, (1, 0), &[4]);
    world.run_until(ms(1), &mut watch);
    assert_eq!(heard(&watch, 0).len(), 1, "node 0 hears while it sends");
    world.run_until(ms(3), &mut watch);
    assert_eq!(heard(&watch, 1).len(), 200);
    assert_eq!(heard(&watch, 1)[199].0, 2_053_000, "the card is never idle");
}

#[test]
fn packets_that_find_the_receiver_busy_wait_and_need_no_wake_up() {
    let (mut world, mut watch) = probes(6, &HostSpec { send_cost: Duration::ZERO, ..costly() });
    for from in 1..6 {
        send(&mut world, &mut watch, (from, 0), &[2 * from as u8]);
    }
    world.run_until(ms(1), &mut watch);
    // All arrive at 52; the first is handed in at 57, the others 1 us apart.
    let expected: Vec<_> = (0..5).map(|i| (57_000 + 1_000 * i, 2 + 2 * i as u8)).collect();
    assert_eq!(heard(&watch, 0), expected);
    assert_eq!(world.tally().longest_inbox, 4);
}

#[test]
fn a_node_that_lets_arrivals_wait_takes_them_when_its_timeout_wakes_it() {
    let (mut world, mut watch) = probes(2, &HostSpec { moderation: 2 * MS, ..HostSpec::ideal() });
    world.call(NodeIndex(0), &mut watch, |probe, now| {
        (probe.timeout, probe.lull) = (Some(now + MS), Some(now + 10 * MS));
    });
    send(&mut world, &mut watch, (1, 0), &[2]);
    world.run_until(SimTime::from_micros(500), &mut watch);
    send(&mut world, &mut watch, (1, 0), &[4]);
    world.run_until(ms(2), &mut watch);
    assert_eq!(heard(&watch, 0), [(1_000_000, 2), (1_000_000, 4)]);
    // Without a timeout the first datagram waits as long as the host allows, and no longer.
    send(&mut world, &mut watch, (1, 0), &[6]);
    world.run_until(ms(6), &mut watch);
    assert_eq!(heard(&watch, 0)[2..], [(4_050_000, 6)]);
}

#[test]
fn sending_delays_what_arrives_meanwhile() {
    let (mut world, mut watch) = probes(3, &costly());
    send(&mut world, &mut watch, (1, 0), &[2]);
    // At 54 node 0 begins to send 10 datagrams of 5 us each; node 1's packet is there at 55.
    world.run_until(SimTime::from_micros(54), &mut watch);
    (0..10).for_each(|_| send(&mut world, &mut watch, (0, 2), &[2]));
    world.run_until(ms(1), &mut watch);
    assert_eq!(heard(&watch, 0), [(54_000 + 50_000 + 1_000, 2)]);
}

#[test]
fn the_card_serialises_by_bytes() {
    let spec = HostSpec { nic_bits_per_s: 1_000_000_000, ..HostSpec::ideal() };
    let cloud = Cloud::new(CloudProfile::constant(20 * US), 3);
    let (mut world, mut watch) = probes_on(cloud, 2, &spec);
    (0..10).for_each(|_| send(&mut world, &mut watch, (0, 1), &[2; 934]));
    world.run_until(ms(1), &mut watch);
    // 934 and 66 bytes at 1 Gb/s: 8 us each.
    let expected: Vec<_> = (1..=10).map(|i| (20_000 + 8_000 * i, 2)).collect();
    let heard = heard(&watch, 1);
    for ((at, _), (expected, _)) in heard.iter().zip(&expected) {
        assert!(at.abs_diff(*expected) <= 10, "{heard:?}");
    }
    assert_eq!(heard.len(), 10);
}

#[test]
fn a_full_card_holds_the_sender_back_but_not_its_ears() {
    let spec = HostSpec { nic_bits_per_s: 100_000_000, ..HostSpec::ideal() };
    let profile = CloudProfile { send_queue: MS, ..CloudProfile::constant(20 * US) };
    let (mut world, mut watch) = probes_on(Cloud::new(profile, 3), 2, &spec);
    let to = world.address(NodeIndex(1));
    // 1,000 packets of 80 us: 80 ms of sending.
    world.call(NodeIndex(0), &mut watch, |probe, _| {
        (0..1_000).for_each(|_| probe.send(Destination::One(to), &[2; 934]));
    });
    let left = |world: &World<_, _>| {
        let probe: &crate::common::Probe = world.machine(NodeIndex(0));
        probe.outbox.len()
    };
    assert!(left(&world) > 980, "1 ms is 12 packets, {} left", left(&world));
    send(&mut world, &mut watch, (1, 0), &[4]);
    world.run_until(ms(40), &mut watch);
    assert_eq!(heard(&watch, 0).len(), 1, "node 0 hears while it sends");
    assert!((480..=520).contains(&left(&world)), "{} left at half time", left(&world));
    world.run_until(ms(90), &mut watch);
    assert_eq!((left(&world), heard(&watch, 1).len()), (0, 1_000));
}

#[test]
fn long_sending_lets_arrivals_in_between_batches() {
    let spec = HostSpec { copy_cost: 10 * US, ..HostSpec::ideal() };
    let (mut world, mut watch) = probes(2, &spec);
    let to = world.address(NodeIndex(1));
    world.call(NodeIndex(0), &mut watch, |probe, _| {
        (0..1_000).for_each(|_| probe.send(Destination::One(to), &[2]));
    });
    send(&mut world, &mut watch, (1, 0), &[4]);
    world.run_until(ms(20), &mut watch);
    assert_eq!(heard(&watch, 0), [(640_000, 4)], "after the first 64 of 10 us");
    assert_eq!(heard(&watch, 1).len(), 1_000);
}

#[test]
fn a_full_socket_buffer_drops_and_counts() {
    let spec = HostSpec { receive_queue: 10, receive_cost: US, ..HostSpec::ideal() };
    let (mut world, mut watch) = probes(2, &spec);
    (0..50).for_each(|_| send(&mut world, &mut watch, (0, 1), &[2]));
    world.run_until(ms(1), &mut watch);
    // One is in service while ten wait.
    assert_eq!(heard(&watch, 1).len(), 11);
    assert_eq!(world.tally().lost(Loss::Socket), 39);
}

#[test]
fn nodes_beyond_the_cores_take_turns() {
    let finish = |cores| {
        let mut world = World::new(Wire::new(50 * US), 1);
        let sender = world.add(quiet(), HostSpec::ideal());
        let spec = HostSpec { cores, receive_cost: 10 * US, ..HostSpec::ideal() };
        let host = world.add_host(spec);
        let nodes: Vec<_> = (0..4).map(|_| world.add_node(quiet(), host)).collect();
        let mut watch = Collect::default();
        nodes.iter().for_each(|to| send(&mut world, &mut watch, (sender.0, to.0), &[2]));
        world.run_until(ms(1), &mut watch);
        let mut at: Vec<_> = watch.0.iter().map(|(seen, _)| seen.at.nanos() / 1_000).collect();
        at.sort_unstable();
        at
    };
    assert_eq!(finish(4), [60; 4]);
    assert_eq!(finish(2), [60, 60, 70, 70]);
    assert_eq!(finish(1), [60, 70, 80, 90]);
}

#[test]
fn a_slow_host_takes_longer_to_receive_and_so_do_its_packets() {
    let (mut world, mut watch) = probes(2, &costly());
    world.slow(NodeIndex(1), 3.0);
    send(&mut world, &mut watch, (0, 1), &[2]);
    world.run_until(ms(1), &mut watch);
    assert_eq!(heard(&watch, 1), [(5_000 + 150_000 + 15_000, 2)]);
}

#[test]
fn pre_emption_hits_all_nodes_of_a_host_and_no_other() {
    let stalls = StallSpec { mean_gap: 20 * MS, length: Quantiles::constant(5 * MS) };
    let spec = HostSpec { stalls: vec![stalls], ..HostSpec::ideal() };
    let mut world = World::new(Wire::new(50 * US), 5);
    let sender = world.add(quiet(), HostSpec::ideal());
    let hosts = [world.add_host(spec.clone()), world.add_host(spec)];
    let nodes: Vec<_> = (0..4).map(|i| world.add_node(quiet(), hosts[i / 2])).collect();
    let mut watch = Collect::default();
    for at in 0..1_000u64 {
        world.run_until(ms(at), &mut watch);
        nodes.iter().for_each(|to| send(&mut world, &mut watch, (sender.0, to.0), &[2]));
    }
    world.run_until(ms(2_000), &mut watch);
    let late = |node: NodeIndex| -> Vec<bool> {
        let heard = heard(&watch, node.0);
        heard.iter().enumerate().map(|(i, (at, _))| at - i as u64 * 1_000_000 > 50_000).collect()
    };
    let late: Vec<_> = nodes.iter().map(|&node| late(node)).collect();
    assert_eq!(late[0], late[1], "neighbours on one host");
    assert_eq!(late[2], late[3], "neighbours on one host");
    let count = |late: &[bool]| late.iter().filter(|&&late| late).count();
    for node in &late {
        assert!((120..=280).contains(&count(node)), "a fifth of the time: {}", count(node));
    }
    let both = late[0].iter().zip(&late[2]).filter(|(a, b)| **a && **b).count();
    assert!((10..=90).contains(&both), "4 % if independent: {both}");
}

#[test]
fn many_senders_at_once_queue_at_the_receivers_card_which_drops_what_it_cannot_hold() {
    // 934 and 66 bytes at 1 Gb/s are 8 us; the card holds 200 us of them.
    let spec =
        HostSpec { nic_bits_per_s: 1_000_000_000, ingress_queue: 200 * US, ..HostSpec::ideal() };
    let cloud = Cloud::new(CloudProfile::constant(20 * US), 3);
    let (mut world, mut watch) = probes_on(cloud, 41, &spec);
    for from in 1..41 {
        send(&mut world, &mut watch, (from, 0), &[2; 934]);
    }
    world.run_until(ms(1), &mut watch);
    let heard = heard(&watch, 0);
    // One is through at once, and 26 wait from 0 to 200 us.
    assert_eq!((heard.len(), world.tally().lost(Loss::Buffer)), (27, 13));
    assert!(heard.windows(2).all(|pair| pair[1].0 - pair[0].0 == 8_000), "{heard:?}");
    assert!(heard[0].0.abs_diff(28_000) < 10, "an idle card adds nothing: {heard:?}");
}

#[test]
fn a_card_takes_so_many_packets_a_second_however_short() {
    let spec = HostSpec { nic_packets_per_s: 100_000, ..HostSpec::ideal() };
    let cloud = Cloud::new(CloudProfile::constant(20 * US), 3);
    let (mut world, mut watch) = probes_on(cloud, 2, &spec);
    (0..10).for_each(|_| send(&mut world, &mut watch, (0, 1), &[2]));
    world.run_until(ms(1), &mut watch);
    let expected: Vec<_> = (1..=10).map(|i| (20_000 + 10_000 * i, 2)).collect();
    assert_eq!(heard(&watch, 1), expected);
}

/// The review found no pause above .81 ms.
#[test]
fn a_host_has_short_pauses_often_and_long_ones_rarely() {
    let short = StallSpec { mean_gap: 10 * MS, length: Quantiles::constant(MS) };
    let long = StallSpec { mean_gap: 1_000 * MS, length: Quantiles::constant(40 * MS) };
    let spec = HostSpec { stalls: vec![short, long], ..HostSpec::ideal() };
    let mut world = World::new(Wire::new(50 * US), 5);
    let sender = world.add(quiet(), HostSpec::ideal());
    let host = world.add(quiet(), spec);
    let mut watch = Collect::default();
    for at in 0..40_000 {
        world.run_until(SimTime::from_micros(500 * at), &mut watch);
        send(&mut world, &mut watch, (sender.0, host.0), &[2]);
    }
    world.run_until(ms(21_000), &mut watch);
    let heard = heard(&watch, host.0);
    let late: Vec<u64> =
        heard.iter().enumerate().map(|(i, (at, _))| at - 50_000 - i as u64 * 500_000).collect();
    let longer = |ns| late.windows(2).filter(|w| w[0] <= ns && w[1] > ns).count();
    assert!((1_000..2_500).contains(&longer(0)), "{} pauses in 20 s", longer(0));
    assert!((10..35).contains(&longer(30_000_000)), "{} long ones", longer(30_000_000));
}
