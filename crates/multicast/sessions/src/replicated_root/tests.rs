//! Roots over a consensus that is not Canopus: one list in memory, which all replicas share.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use evenfall_consensus_machine::{ConsensusStatus, RequestSet, VnodeId};
use evenfall_core::{Destination, StampedBy};
use evenfall_multicast_machine::Config as OverlayConfig;

use super::*;

/// The list. A request that is proposed anywhere is decided at once.
type SharedLog = Arc<Mutex<Vec<Arc<VnodeState>>>>;

/// A replica that has told its owner the first entries of the list.
struct ListReader {
    me: NodeId,
    log: SharedLog,
    told: usize,
}

impl Machine for ListReader {
    type Event = Event;

    fn handle(&mut self, _: Timestamp, _: Arrival) -> Result<(), Malformed> {
        Err(Malformed { what: "the list needs no datagrams", offset: 0 })
    }

    fn handle_timeout(&mut self, _: Timestamp) {}

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<Event> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let state = Arc::clone(log.get(self.told)?);
        self.told += 1;
        Some(Event::Committed { state, reads: Vec::new(), table: 0 })
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        None
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        None
    }
}

impl Consensus for ListReader {
    fn node(&self) -> NodeId {
        self.me
    }

    fn propose(
        &mut self,
        _: Timestamp,
        request: ClientRequest,
        _: LeaseKey,
    ) -> Result<(), ConsensusError> {
        let requests = [&request].into_iter().collect();
        let sets = vec![RequestSet { node: self.me, incarnation: 0, number: 0, requests }];
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let (cycle, vnode, changes) = (log.len() as u64 + 1, VnodeId::ROOT, Vec::new());
        log.push(Arc::new(VnodeState { cycle, vnode, number: 0, changes, sets }));
        Ok(())
    }

    fn read_index(
        &mut self,
        _: Timestamp,
        _: u64,
        _: Option<LeaseKey>,
    ) -> Result<(), ConsensusError> {
        Ok(())
    }

    fn status(&self) -> ConsensusStatus {
        ConsensusStatus { committed: self.told as u64, ..ConsensusStatus::default() }
    }
}

fn address(node: u32) -> SocketAddr {
    ([127, 0, 0, 1], 7_000 + node as u16).into()
}

/// One of two roots.
fn root(node: u32, log: &SharedLog, now: Timestamp) -> ReplicatedRoot {
    let run = RootRun::new(1 + node, [7; 24]);
    let root = Root::new(OverlayConfig::default(), NodeId(node), 0, run, None, now);
    let voters = (0..2).map(|node| (NodeId(node), address(node))).collect();
    let config = VoterConfig { me: NodeId(node), voters, seed: 1 + u64::from(node), key: None };
    let open = |start: ConsensusStart| -> Result<Box<dyn Consensus>, ConsensusError> {
        Ok(Box::new(ListReader { me: start.me, log: Arc::clone(log), told: 0 }))
    };
    ReplicatedRoot::with_consensus(root, run, &config, open).expect("two voters")
}

/// Carries the datagrams that the roots have for each other.
fn carry(roots: &mut [ReplicatedRoot; 2], now: Timestamp) {
    for from in 0..2_u32 {
        while let Some(transmit) = roots[from as usize].poll_transmit(now) {
            let to = address(1 - from);
            if !matches!(transmit.to, Destination::One(one) if one == to) {
                continue;
            }
            let bytes = [transmit.head.as_slice(), &transmit.body[..]].concat();
            let arrival = Arrival::new(address(from), bytes.into(), now, StampedBy::User);
            roots[1 - from as usize].handle(now, arrival).expect("a greeting");
        }
    }
}

#[test]
fn roots_stand_over_any_consensus_and_keep_what_it_decided() {
    let now = Timestamp::from_nanos(1_000_000_000);
    let log = SharedLog::default();
    let mut roots = [0, 1].map(|node| root(node, &log, now));
    for _ in 0..4 {
        roots.iter_mut().for_each(|root| root.handle_timeout(now));
        carry(&mut roots, now);
    }
    let [first, second] = &mut roots;
    let led = std::iter::from_fn(|| first.poll_event())
        .any(|event| matches!(event, ReplicatedRootEvent::Leads { next_message: 0, .. }));
    assert!(led, "the first voter leads");
    assert!(first.leads() && !second.leads());
    let published = first.input(now, |root| {
        let number = root.publish(now, Format::OPAQUE, b"a trade");
        root.flush(now);
        number
    });
    assert_eq!(published.expect("a root that leads takes messages"), 0);
    second.handle_timeout(now);
    let kept: Vec<u64> = std::iter::from_fn(|| second.poll_event())
        .filter_map(|event| match event {
            ReplicatedRootEvent::Kept(draft) => Some(draft.first_message()),
            _ => None,
        })
        .collect();
    assert_eq!(kept, [0], "the standby has the frame before any datagram of the feed");
}
