//! How a root treats nodes that join, join again, leave, or pretend to be another node.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{Arrival, Destination, Format, Machine, NodeId, StampedBy, Timestamp};
use evenfall_multicast_machine::{
    Config, DepartureReason, Guest, GuestList, Identity, Receiver, ReceiverEvent, Role, Root,
    RootEvent, RootRun, SharedKey,
};

const START: Timestamp = Timestamp::from_nanos(1_000_000_000);

/// The largest incarnation that leaves room for the control numbers of a life, which count from it.
const LARGEST: u64 = (1 << 63) - 1_000_000;

fn addr(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn config() -> Config {
    let mut config =
        Config { mode: evenfall_multicast_machine::Mode::Unicast, ..Config::default() };
    (config.membership.expect_receivers, config.membership.expect_proxies) = (1, 0);
    config
}

fn root(key: Option<&SharedKey>) -> Root {
    Root::new(config(), NodeId(1), 0, RootRun::new(1, [7; 24]), key, START)
}

fn node(id: u32, incarnation: u64, key: Option<&SharedKey>) -> Receiver {
    let who = Identity { id: NodeId(id), stream: 0, root: addr(1), standbys: vec![], incarnation };
    Receiver::new(config(), who, key, START)
}

fn receiver(incarnation: u64) -> Receiver {
    node(2, incarnation, None)
}

/// The datagrams that a machine sends now to a group or to this address, as they arrive there.
fn sent<M: Machine>(
    machine: &mut M,
    now: Timestamp,
    from: SocketAddr,
) -> Vec<(Destination, Arrival)> {
    let transmits = core::iter::from_fn(|| machine.poll_transmit(now));
    let arrival = |transmit: evenfall_core::Transmit| {
        let datagram = Bytes::from([transmit.head.as_slice(), &transmit.body].concat());
        (transmit.to, Arrival::new(from, datagram, now, StampedBy::User))
    };
    transmits.map(arrival).collect()
}

/// The datagrams that nodes sent to the root.
#[derive(Default)]
struct Heard {
    by_root: Vec<Arrival>,
    refused: usize,
}

/// Lets all nodes exchange datagrams for this long, in steps of a millisecond.
fn talk(
    root: &mut Root,
    nodes: &mut [(u16, &mut Receiver)],
    from: Timestamp,
    millis: u64,
) -> (Timestamp, Heard) {
    let mut now = from;
    let mut heard = Heard::default();
    for _ in 0..millis {
        for (port, node) in nodes.iter_mut() {
            node.handle_timeout(now);
            for (_, arrival) in sent(*node, now, addr(*port)) {
                heard.refused += usize::from(root.handle(now, arrival.clone()).is_err());
                heard.by_root.push(arrival);
            }
        }
        root.handle_timeout(now);
        for (to, arrival) in sent(root, now, addr(1)) {
            for (port, node) in nodes.iter_mut() {
                if matches!(to, Destination::Group(_)) || to == Destination::One(addr(*port)) {
                    // A node refuses beacons to a group that it is not in yet.
                    let _ = node.handle(now, arrival.clone());
                }
            }
        }
        now += Duration::from_millis(1);
    }
    (now, heard)
}

fn comings_and_goings(root: &mut Root) -> Vec<RootEvent> {
    let events = core::iter::from_fn(|| root.poll_event());
    let kept = |event: &RootEvent| {
        matches!(event, RootEvent::Joined(..) | RootEvent::Removed(..) | RootEvent::Finished(_))
    };
    events.filter(kept).collect()
}

#[test]
fn a_node_that_starts_again_goes_before_it_comes_and_cannot_be_played_back() {
    let mut root = root(None);
    let (now, _) = talk(&mut root, &mut [(2, &mut receiver(1))], START, 60);
    assert_eq!(comings_and_goings(&mut root), [RootEvent::Joined(NodeId(2), Role::Receiver, 1)]);

    let mut again = receiver(2);
    let (now, _) = talk(&mut root, &mut [(2, &mut again)], now, 60);
    let expected = [
        RootEvent::Removed(NodeId(2), DepartureReason::Restarted),
        RootEvent::Joined(NodeId(2), Role::Receiver, 2),
    ];
    assert_eq!(comings_and_goings(&mut root), expected);

    let now = now + Duration::from_millis(100);
    again.handle_timeout(now);
    let reports = sent(&mut again, now, addr(2));
    assert!(!reports.is_empty());
    let replayed = |root: &Root| root.status().refusals.replayed;
    reports.iter().for_each(|(_, report)| root.handle(now, report.clone()).unwrap());
    assert_eq!(replayed(&root), 0);
    reports.iter().for_each(|(_, report)| root.handle(now, report.clone()).unwrap());
    assert_eq!(replayed(&root), reports.len() as u64);
}

#[test]
fn a_report_without_a_place_is_no_forgery_and_one_from_another_address_is() {
    let (mut root, mut fresh) = (root(None), root(None));
    let mut node = receiver(1);
    let (now, _) = talk(&mut root, &mut [(2, &mut node)], START, 60);
    let now = now + Duration::from_millis(100);
    node.handle_timeout(now);
    let (_, report) = sent(&mut node, now, addr(2)).remove(0);
    let counts = |root: &Root| {
        let refusals = root.status().refusals;
        (refusals.forged, refusals.unplaced)
    };
    let before = counts(&root);
    assert!(fresh.handle(now, report.clone()).is_err());
    assert_eq!(counts(&fresh), (0, 1));
    assert!(root.handle(now, Arrival { from: addr(9), ..report.clone() }).is_err());
    assert_eq!(counts(&root), (before.0 + 1, before.1));
    assert!(root.handle(now, report).is_ok());
    assert_eq!(counts(&root), (before.0 + 1, before.1));
}

#[test]
fn a_feed_has_ended_for_all_when_the_last_receiver_has_said_good_bye() {
    let mut root = root(None);
    let mut receiver = receiver(1);
    let (now, _) = talk(&mut root, &mut [(2, &mut receiver)], START, 60);
    receiver.leave();
    let (now, _) = talk(&mut root, &mut [(2, &mut receiver)], now, 60);
    let expected = [
        RootEvent::Joined(NodeId(2), Role::Receiver, 1),
        RootEvent::Removed(NodeId(2), DepartureReason::Left),
    ];
    assert_eq!(comings_and_goings(&mut root), expected, "the feed goes on");
    root.finish(now);
    root.handle_timeout(now + Duration::from_millis(100));
    let events = comings_and_goings(&mut root);
    assert!(matches!(events[..], [RootEvent::Finished(tally)] if tally.receivers == 0));
}

#[test]
fn a_join_recorded_on_the_way_does_nothing_from_another_address_and_is_not_amplified() {
    let key = SharedKey::new(1, [3; 32]);
    for key in [None, Some(&key)] {
        let mut root = root(key);
        let mut genuine = node(2, 1, key);
        let (now, heard) = talk(&mut root, &mut [(2, &mut genuine)], START, 60);
        assert_eq!(comings_and_goings(&mut root).len(), 1);
        let mut bytes = 0;
        for recorded in heard.by_root {
            bytes += recorded.datagram.len();
            let _ = root.handle(now, Arrival { from: addr(9), ..recorded });
        }
        let answers = sent(&mut root, now, addr(1));
        let to_thief = answers.iter().filter(|(to, _)| *to == Destination::One(addr(9)));
        let answered: usize = to_thief.map(|(_, answer)| answer.datagram.len()).sum();
        assert!(answered <= bytes, "{answered} bytes for {bytes}");
        talk(&mut root, &mut [(2, &mut genuine)], now, 1_000);
        assert_eq!(comings_and_goings(&mut root), [], "the genuine receiver stays");
        assert!(genuine.place().is_some());
    }
}

#[test]
fn a_join_under_the_id_of_the_root_is_refused() {
    let mut root = root(None);
    let (_, heard) = talk(&mut root, &mut [(9, &mut node(1, 1, None))], START, 60);
    assert!(heard.refused > 0);
    assert_eq!(comings_and_goings(&mut root), []);
    assert_eq!(root.status().receivers, 0);
}

/// A list with receiver 2 at its own port and no other node.
fn guests() -> GuestList {
    let guest = Guest { role: Some(Role::Receiver), addr: Some(addr(2)) };
    GuestList { named: [(NodeId(2), guest)].into(), only_named: true, ..GuestList::default() }
}

#[test]
fn a_flood_of_joins_of_ids_that_no_setting_names_leaves_nothing_behind() {
    let mut root = root(None).admitting(guests());
    let mut genuine = receiver(1);
    let (now, _) = talk(&mut root, &mut [(2, &mut genuine)], START, 60);
    for id in 3..20_003 {
        let mut stranger = node(id, 1, None);
        stranger.handle_timeout(now);
        for (_, arrival) in sent(&mut stranger, now, addr(9)) {
            assert!(root.handle(now, arrival).is_err());
        }
    }
    assert_eq!(root.status().receivers, 1);
    assert_eq!(root.status().refusals.forged, 20_000);
    assert_eq!(comings_and_goings(&mut root).len(), 1);
}

#[test]
fn an_id_comes_in_only_in_the_role_and_from_the_address_that_the_settings_give_it() {
    let mut list = guests();
    for (role, port) in [(Some(Role::Proxy), 2), (None, 2), (Some(Role::Receiver), 3)] {
        list.named.insert(NodeId(2), Guest { role, addr: Some(addr(port)) });
        let mut root = root(None).admitting(list.clone());
        let (_, heard) = talk(&mut root, &mut [(2, &mut receiver(1))], START, 60);
        assert!(heard.refused > 0, "{role:?} at {port}");
        assert_eq!(root.status().receivers, 0);
    }
}

#[test]
fn a_living_receiver_keeps_its_name_from_a_thief_with_the_largest_incarnation() {
    let mut root = root(None);
    let (mut genuine, mut thief) = (receiver(1), receiver(LARGEST));
    let (now, _) = talk(&mut root, &mut [(2, &mut genuine)], START, 60);
    let mut both = [(2, &mut genuine), (9, &mut thief)];
    talk(&mut root, &mut both, now, 2_000);
    assert_eq!(comings_and_goings(&mut root).len(), 1, "nobody came after the genuine receiver");
    assert!(genuine.place().is_some() && thief.place().is_none());
}

#[test]
fn a_thief_that_came_first_with_the_largest_incarnation_loses_the_name_when_it_falls_silent() {
    let mut root = root(None);
    let mut thief = receiver(LARGEST);
    let (now, _) = talk(&mut root, &mut [(9, &mut thief)], START, 60);
    assert!(thief.place().is_some());
    let mut genuine = receiver(1);
    talk(&mut root, &mut [(2, &mut genuine)], now, 600);
    assert!(genuine.place().is_some());
}

#[test]
fn a_host_whose_clock_began_anew_comes_in_under_a_smaller_incarnation() {
    let mut root = root(None);
    let (now, _) = talk(&mut root, &mut [(2, &mut receiver(9_000))], START, 60);
    let mut again = receiver(1);
    talk(&mut root, &mut [(2, &mut again)], now, 600);
    assert!(again.place().is_some(), "its own answers must not keep its last life in");
}

#[test]
fn a_stranger_with_the_name_of_a_member_does_not_spoil_its_numbers() {
    let mut root = root(None);
    let mut genuine = receiver(1);
    let (now, _) = talk(&mut root, &mut [(2, &mut genuine)], START, 60);
    let mut stranger = receiver(LARGEST);
    stranger.leave();
    talk(&mut root, &mut [(2, &mut genuine), (9, &mut stranger)], now, 200);
    assert_eq!(root.status().refusals.replayed, 0);
    assert_eq!(root.status().receivers, 1);
}

/// The second at which a signed 32-bit number of seconds overflows: 19 January 2038.
const SECOND_OF_2038: u32 = 1 << 31;

#[test]
fn orders_of_a_root_that_starts_after_2038_are_understood() {
    let run = RootRun::new(SECOND_OF_2038 + 5, [7; 24]);
    let mut root = Root::new(config(), NodeId(1), 0, run, None, START);
    let mut receiver = receiver(1);
    let (now, _) = talk(&mut root, &mut [(2, &mut receiver)], START, 60);
    assert!(receiver.place().is_some());
    let run = RootRun::new(SECOND_OF_2038 + 6, [8; 24]);
    let mut next = Root::new(config(), NodeId(1), 0, run, None, now);
    talk(&mut next, &mut [(2, &mut receiver)], now, 2_000);
    assert!(next.has_member(NodeId(2)), "a later run is followed although it counts from zero");
}

#[test]
fn a_restart_of_the_root_takes_nothing_from_what_a_receiver_has_counted() {
    let mut receiver = receiver(1);
    let publish = |root: &mut Root, receiver: &mut Receiver, now: Timestamp| {
        let (now, _) = talk(root, &mut [(2, &mut *receiver)], now, 2_000);
        root.publish(now, Format::OPAQUE, b"trade").unwrap();
        root.flush(now);
        let (now, _) = talk(root, &mut [(2, &mut *receiver)], now, 500);
        (now, core::iter::from_fn(|| receiver.poll_event()).collect::<Vec<_>>())
    };
    let (now, _) = publish(&mut root(None), &mut receiver, START);
    assert_eq!(receiver.status().tally.released, 1);
    let mut later = Root::new(config(), NodeId(1), 0, RootRun::new(2, [8; 24]), None, now);
    let (_, events) = publish(&mut later, &mut receiver, now);
    let is_restart = |event: &ReceiverEvent| matches!(event, ReceiverEvent::Restarted { .. });
    assert!(events.iter().any(is_restart), "{events:?}");
    let tally = receiver.status().tally;
    assert_eq!((tally.released, tally.receivers), (2, 1));
    assert_eq!(later.status().tally.released, 1, "the root is told of its own run alone");
}
