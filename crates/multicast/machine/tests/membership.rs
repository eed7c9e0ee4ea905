//! What a root makes of nodes that come, come again, and go.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{Arrival, Machine, NodeId, StampedBy, Timestamp};
use evenfall_multicast_machine::{Config, Identity, Reason, Receiver, Role, Root, RootEvent};

const START: Timestamp = Timestamp::from_nanos(1_000_000_000);

fn addr(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn config() -> Config {
    let mut config = Config { mode: evenfall_multicast_machine::Mode::Unicast, ..Config::default() };
    (config.membership.expect_receivers, config.membership.expect_proxies) = (1, 0);
    config
}

fn receiver(incarnation: u64) -> Receiver {
    let who = Identity { id: NodeId(2), stream: 0, root: addr(1), incarnation };
    Receiver::new(config(), who, None, START)
}

/// What a machine sends now, as it arrives elsewhere.
fn sent<M: Machine>(machine: &mut M, now: Timestamp, from: SocketAddr) -> Vec<Arrival> {
    let transmits = core::iter::from_fn(|| machine.poll_transmit(now));
    let arrival = |transmit: evenfall_core::Transmit| Arrival {
        from,
        datagram: Bytes::from([transmit.head.as_slice(), &transmit.body].concat()),
        received: now,
        stamped_by: StampedBy::User,
    };
    transmits.map(arrival).collect()
}

/// Lets both talk for this long, in steps of a millisecond.
fn talk(root: &mut Root, receiver: &mut Receiver, from: Timestamp, millis: u64) -> Timestamp {
    let mut now = from;
    for _ in 0..millis {
        receiver.handle_timeout(now);
        for arrival in sent(receiver, now, addr(2)) {
            root.handle(now, arrival).unwrap();
        }
        root.handle_timeout(now);
        for arrival in sent(root, now, addr(1)) {
            // Beacons to a group that it is not in yet are refused.
            let _ = receiver.handle(now, arrival);
        }
        now += Duration::from_millis(1);
    }
    now
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
    let mut root = Root::new(config(), NodeId(1), 0, 1, None, START);
    let now = talk(&mut root, &mut receiver(1), START, 60);
    assert_eq!(comings_and_goings(&mut root), [RootEvent::Joined(NodeId(2), Role::Receiver, 1)]);

    let mut again = receiver(2);
    let now = talk(&mut root, &mut again, now, 60);
    let expected = [
        RootEvent::Removed(NodeId(2), Reason::Restarted),
        RootEvent::Joined(NodeId(2), Role::Receiver, 2),
    ];
    assert_eq!(comings_and_goings(&mut root), expected);

    let now = now + Duration::from_millis(100);
    again.handle_timeout(now);
    let reports = sent(&mut again, now, addr(2));
    assert!(!reports.is_empty());
    let replayed = |root: &Root| root.status().refusals.replayed;
    reports.iter().for_each(|report| root.handle(now, report.clone()).unwrap());
    assert_eq!(replayed(&root), 0);
    reports.iter().for_each(|report| root.handle(now, report.clone()).unwrap());
    assert_eq!(replayed(&root), reports.len() as u64);
}

#[test]
fn a_feed_has_ended_for_all_when_the_last_receiver_has_said_good_bye() {
    let mut root = Root::new(config(), NodeId(1), 0, 1, None, START);
    let mut receiver = receiver(1);
    let now = talk(&mut root, &mut receiver, START, 60);
    receiver.leave();
    let now = talk(&mut root, &mut receiver, now, 60);
    let expected = [
        RootEvent::Joined(NodeId(2), Role::Receiver, 1),
        RootEvent::Removed(NodeId(2), Reason::Left),
    ];
    assert_eq!(comings_and_goings(&mut root), expected, "the feed goes on");
    root.finish(now);
    root.handle_timeout(now + Duration::from_millis(100));
    let events = comings_and_goings(&mut root);
    assert!(matches!(events[..], [RootEvent::Finished(tally)] if tally.receivers == 0));
}
