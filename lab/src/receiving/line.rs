//! A root, a proxy and a receiver in a line, without a network: how often each role calls the
//! allocator for a frame.
//!
//! The line counts the calls of the machines alone. Its own datagrams lie in memory that is used
//! again, as those of a port do. A step in which a node says something of its own, such as a
//! report, is left out: such a step belongs to a time and not to a frame.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenfall_core::{
    Arrival, ClockError, ClockReading, Destination, Format, FrameMemory, GroupId, Install, Machine,
    NodeId, StampedBy, Timestamp, TrafficClass, Transmit,
};
use evenfall_host::allocations::count_of_thread;
use evenfall_multicast_machine::{
    Config, Identity, Mode, Receiver, ReceiverEvent, Relay, Root, RootRun, SharedKey,
};

const ROOT: u16 = 1;
const PROXY: u16 = 2;
const RECEIVER: u16 = 3;
/// How long the tree takes to form at most.
const FORMING_MS: u32 = 2_000;
/// Time between two frames.
const GAP: Duration = Duration::from_micros(100);
/// Frames that the rings keep, so that a ring is full after a short warm-up.
const RING_FRAMES: usize = 256;
/// Frames until every queue has had its greatest length.
const WARM_UP: u32 = 2_000;
/// Bytes of a message.
const MESSAGE_BYTES: usize = 40;

/// Calls of the allocator by each role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoleAllocations {
    /// Frames during which the calls were counted.
    pub frames: u64,
    /// Calls of the root.
    pub root: u64,
    /// Calls of the proxy.
    pub proxy: u64,
    /// Calls of the receiver.
    pub receiver: u64,
}

/// Adds the calls of the allocator within `work`.
fn count<T>(calls: &mut u64, work: impl FnOnce() -> T) -> T {
    let before = count_of_thread();
    let done = work();
    *calls += count_of_thread() - before;
    done
}

fn address(node: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], node))
}

/// The three roles, and the datagrams between them.
struct RoleLine {
    now: Timestamp,
    root: Root,
    relay: Relay,
    receiver: Receiver,
    groups: BTreeMap<(u16, GroupId), Arc<[SocketAddr]>>,
    /// Memory of the datagrams on their way.
    memory: FrameMemory,
    flight: VecDeque<(u16, Transmit)>,
    /// The calls of the present step.
    step: RoleAllocations,
    /// Whether a node said something of its own in the present step.
    has_control: bool,
    released: u64,
}

impl RoleLine {
    /// A line whose tree stands. A frame has `pack` messages.
    fn form(pack: u16, key: Option<&SharedKey>) -> Self {
        let now = Timestamp::from_nanos(1 << 40);
        let mut config = Config { mode: Mode::Tree, ..Config::default() };
        (config.shape.depth, config.shape.fanout) = (Some(2), Some(1));
        (config.membership.expect_receivers, config.membership.expect_proxies) = (1, 1);
        config.framing.messages_max = pack;
        config.repair.ring_frames = RING_FRAMES;
        // Receivers report sampled frames one by one, which is work for reports and not for frames.
        config.deadline.samples_per_second = 1;
        let who = |node: u16| Identity {
            id: NodeId(node.into()),
            stream: 0,
            root: address(ROOT),
            standbys: Vec::new(),
            incarnation: 1,
        };
        let mut line = Self {
            now,
            root: Root::new(config, NodeId(ROOT.into()), 0, RootRun::new(1, [7; 24]), key, now),
            relay: Relay::new(config, who(PROXY), key, now),
            receiver: Receiver::new(config, who(RECEIVER), key, now),
            groups: BTreeMap::new(),
            memory: FrameMemory::new(65_536, 64),
            flight: VecDeque::new(),
            step: RoleAllocations::default(),
            has_control: false,
            released: 0,
        };
        let reading = ClockReading { offset_ns: 0, error: ClockError::SameClock };
        line.root.handle_clock(now, reading);
        line.relay.handle_clock(now, reading);
        line.receiver.handle_clock(now, reading);
        for _ in 0..FORMING_MS {
            line.pass(Duration::from_millis(1));
            line.carry_datagrams();
        }
        assert!(line.receiver.place().is_some(), "no tree");
        line
    }

    /// Begins the next step, and hands in the timeouts.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        (self.step, self.has_control) = (RoleAllocations::default(), false);
        let (now, receiver) = (self.now, &mut self.receiver);
        // A root and a proxy send frames on when they come, whatever their timers do.
        self.root.handle_timeout(now);
        self.relay.handle_timeout(now);
        count(&mut self.step.receiver, || receiver.handle_timeout(now));
    }

    /// Sends a frame down the line.
    fn send_frame(&mut self, pack: u16) {
        self.pass(GAP);
        let (now, root) = (self.now, &mut self.root);
        count(&mut self.step.root, || {
            for _ in 0..pack {
                let message = &[b'm'; MESSAGE_BYTES];
                root.publish(now, Format::OPAQUE, message).expect("room in the queue");
            }
            root.flush(now);
        });
        self.carry_datagrams();
    }

    /// Carries datagrams until none is on its way.
    fn carry_datagrams(&mut self) {
        loop {
            self.take_outputs();
            let Some((from, transmit)) = self.flight.pop_front() else { return };
            self.has_control |= transmit.class != TrafficClass::Live;
            match transmit.to {
                Destination::One(to) => self.arrive(from, to, &transmit),
                Destination::Group(group) => {
                    let members = self.groups.get(&(from, group)).cloned();
                    for to in members.iter().flat_map(|members| members.iter()) {
                        self.arrive(from, *to, &transmit);
                    }
                }
            }
        }
    }

    fn take_outputs(&mut self) {
        let Self { now, root, relay, receiver, groups, flight, step, released, .. } = self;
        let now = *now;
        while let Some(transmit) = count(&mut step.root, || root.poll_transmit(now)) {
            flight.push_back((ROOT, transmit));
        }
        while let Some(transmit) = count(&mut step.proxy, || relay.poll_transmit(now)) {
            flight.push_back((PROXY, transmit));
        }
        while let Some(transmit) = count(&mut step.receiver, || receiver.poll_transmit(now)) {
            flight.push_back((RECEIVER, transmit));
        }
        let of_root = core::iter::from_fn(|| root.poll_install()).map(|install| (ROOT, install));
        let of_relay = core::iter::from_fn(|| relay.poll_install()).map(|install| (PROXY, install));
        for (owner, install) in of_root.chain(of_relay) {
            if let Install::Group(id, members) = install {
                groups.insert((owner, id), members);
            }
        }
        while count(&mut step.root, || root.poll_event()).is_some() {}
        while count(&mut step.proxy, || relay.poll_event()).is_some() {}
        while let Some(event) = count(&mut step.receiver, || receiver.poll_event()) {
            if let ReceiverEvent::Released(release) = event {
                *released += count(&mut step.receiver, || release.messages.count()) as u64;
            }
        }
    }

    fn arrive(&mut self, from: u16, to: SocketAddr, transmit: &Transmit) {
        let parts = [transmit.head.as_slice(), &transmit.body];
        let (now, datagram) = (self.now, self.memory.copy_parts(&parts).freeze());
        let arrival = Arrival::new(address(from), datagram, now, StampedBy::User);
        let Self { root, relay, receiver, step, .. } = self;
        // A node that is not in the tree yet refuses datagrams for other nodes.
        match to.port() {
            ROOT => count(&mut step.root, || root.handle(now, arrival)).ok(),
            PROXY => count(&mut step.proxy, || relay.handle(now, arrival)).ok(),
            _ => count(&mut step.receiver, || receiver.handle(now, arrival)).ok(),
        };
    }
}

/// Sends frames of `pack` messages down a warm line, and counts the calls of each role.
///
/// # Panics
/// When no tree forms, or a message is not released.
pub fn count_allocations(frames: u32, pack: u16, key: Option<&SharedKey>) -> RoleAllocations {
    let mut line = RoleLine::form(pack, key);
    for _ in 0..WARM_UP {
        line.send_frame(pack);
    }
    let before = line.released;
    let mut sum = RoleAllocations::default();
    for _ in 0..frames {
        line.send_frame(pack);
        if !line.has_control {
            sum.frames += 1;
            sum.root += line.step.root;
            sum.proxy += line.step.proxy;
            sum.receiver += line.step.receiver;
        }
    }
    assert_eq!(line.released - before, u64::from(frames) * u64::from(pack));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_role_calls_the_allocator_for_a_frame_packed_or_not_sealed_or_not() {
        for key in [None, Some(SharedKey::new(1, [7; 32]))] {
            for pack in [1, 20] {
                let calls = count_allocations(2_000, pack, key.as_ref());
                assert!(calls.frames > 1_000, "{calls:?}");
                let of_roles = (calls.root, calls.proxy, calls.receiver);
                assert_eq!(of_roles, (0, 0, 0), "{pack} a frame, {key:?}: {calls:?}");
            }
        }
    }

    #[test]
    fn calls_of_the_allocator_are_counted() {
        let mut calls = 0;
        let text = count(&mut calls, || vec![1_u8; 100]);
        assert_eq!((text.len(), calls), (100, 1));
    }
}
