//! The machines of a multicast, wrapped so that a test can read what they did.

use std::net::SocketAddr;
use std::time::Duration;

use evenfall_campaigns::multicast::cast::Cast;
use evenfall_campaigns::multicast::node::{CampaignNode, NodeEvent};
use evenfall_core::{
    Arrival, Clock, ClockReading, Format, ForwardCounters, ForwardId, Hedging, Install, Machine,
    Malformed, MasterKey, NodeId, Sent, Timestamp, TrafficClass, Transmit,
};
use evenfall_multicast_machine::wire::{self, DatagramKind};
use evenfall_multicast_machine::{
    Config, Mode, PublishError, ReceiverEvent, Release, RootEvent, SharedKey,
};

use super::MESSAGES;
use super::net::{Net, Scene};

/// The role of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    #[default]
    Root,
    Proxy,
    Receiver,
}

/// The record of what a machine did.
#[derive(Clone, Debug, Default)]
pub struct MachineRecord {
    pub part: Part,
    /// Numbers of the messages released, in order.
    pub released: Vec<u64>,
    /// Messages whose bytes differ from the published bytes.
    pub foreign: u64,
    /// Frames released before their deadline by the receiver's own clock.
    pub early: u64,
    /// Frames that had a deadline.
    pub held: u64,
    /// Frames reported lost.
    pub lost: u64,
    /// Frames that the shim dropped.
    pub dropped: u64,
    /// Messages that the root did not take at once.
    pub refused: u64,
    /// Frames that a proxy forwarded, by hand or by its port.
    pub forwarded: u64,
    pub forwarded_by_port: u64,
    pub repaired: u64,
    pub duplicates: u64,
}

/// A multicast: root, two proxies, four receivers, H = 1.
#[derive(Clone, Debug)]
pub struct Play {
    pub mode: Mode,
    pub key: bool,
    /// Messages published per tick.
    pub per_tick: u64,
    pub send_queue: usize,
    /// Of this many live frames that arrive at a receiver, one is dropped.
    pub drop_every: Option<u64>,
    /// Number of messages after which the root switches to a mode.
    pub switch: Option<(u64, Mode)>,
    /// Number of messages after which [`Play::LEAVER`] leaves.
    pub leaves_after: Option<u64>,
    /// Time by which [`Play::LATE`] joins late. The root stops half-way until it has joined.
    pub late: Option<Duration>,
}

impl Default for Play {
    fn default() -> Self {
        Self {
            mode: Mode::Release,
            key: false,
            per_tick: 2,
            send_queue: 1_024,
            drop_every: None,
            switch: None,
            leaves_after: None,
            late: None,
        }
    }
}

impl Play {
    /// The receiver that leaves.
    pub const LEAVER: usize = 3;
    /// The receiver that comes late.
    pub const LATE: usize = 6;
    const NODES: usize = 7;

    fn config(&self) -> Config {
        let mut config = Config { mode: self.mode, ..Config::default() };
        (config.shape.depth, config.shape.fanout, config.shape.hedging) =
            (Some(2), Some(2), Hedging(1));
        config.framing.send_queue_frames = self.send_queue;
        config.framing.messages_max = 1;
        config.membership.expect_proxies = 2;
        config.membership.expect_receivers = if self.late.is_some() { 3 } else { 4 };
        // A loaded machine may stop a thread for long. The limits are high, so that no member
        // counts as dead and no repair is given up.
        config.membership.silence = Duration::from_secs(5);
        config.membership.probe_timeout = Duration::from_secs(5);
        config.membership.root_timeout = Duration::from_secs(30);
        config.repair.gap_timeout = Duration::from_secs(20);
        config
    }

    fn make(&self, node: usize, at: &[SocketAddr], now: Timestamp) -> Actor {
        let cast = Cast {
            config: self.config().into(),
            key: self.key.then(|| SharedKey::new(1, [7; 32])),
            master: self.key.then(|| MasterKey::new([8; 32])),
            stream: 0,
            root: NodeId(0),
            root_address: at[0],
            standbys: vec![],
            signed: None,
        };
        let id = NodeId(node as u32);
        let (part, machine) = match node {
            0 => (Part::Root, cast.root(1, now)),
            1 | 2 => (Part::Proxy, cast.relay(id, 1, now)),
            _ => (Part::Receiver, cast.receiver(id, 1, now)),
        };
        let asleep = self.late.filter(|_| node == Self::LATE).map(|late| now + late);
        Actor {
            machine,
            clock: Clock::default(),
            now,
            asleep,
            next: 0,
            late_is_in: false,
            // Each receiver drops different frames.
            drop_every: self.drop_every.filter(|_| part == Part::Receiver).map(|n| n + node as u64),
            // A proxy has no end of its own, because it serves as long as other machines need it.
            done: part == Part::Proxy,
            outcome: MachineRecord { part, ..MachineRecord::default() },
        }
    }

    fn owner(&self, node: usize, actor: &mut Actor, now: Timestamp) {
        actor.now = now;
        match &mut actor.machine {
            CampaignNode::Root(root) => {
                let status = root.status();
                if status.view == 0 {
                    return;
                }
                let waits = self.late.is_some() && !actor.late_is_in;
                for _ in 0..self.per_tick {
                    if actor.next == MESSAGES || (actor.next == MESSAGES / 2 && waits) {
                        break;
                    }
                    match root.publish(now, Format::OPAQUE, &message(actor.next)) {
                        Ok(number) => assert_eq!(number, actor.next),
                        Err(PublishError::Full) => {
                            actor.outcome.refused += 1;
                            break;
                        }
                        Err(error) => panic!("{error}"),
                    }
                    actor.next += 1;
                    if let Some((at, mode)) = self.switch
                        && at == actor.next
                    {
                        root.set_mode(now, mode);
                    }
                }
                root.flush(now);
                if actor.next == MESSAGES {
                    root.finish(now);
                }
            }
            CampaignNode::Receiver(receiver) if node == Self::LEAVER => {
                let released = actor.outcome.released.len() as u64;
                if self.leaves_after.is_some_and(|n| released >= n) && !actor.done {
                    receiver.leave();
                    actor.done = true;
                }
            }
            _ => {}
        }
    }

    /// Plays the scene on one kind of network.
    pub fn on(&self, net: &Net) -> Vec<MachineRecord> {
        net.play(&Scene {
            nodes: Self::NODES,
            make: &|node, at, now| self.make(node, at, now),
            owner: &|node, actor, now| self.owner(node, actor, now),
            done: &|_, actor| actor.done.then(|| actor.told()),
        })
    }
}

fn message(number: u64) -> [u8; 40] {
    let mut bytes = [number as u8; 40];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A machine and what it did.
pub struct Actor {
    machine: CampaignNode,
    clock: Clock,
    now: Timestamp,
    /// The machine is absent before this time.
    asleep: Option<Timestamp>,
    next: u64,
    late_is_in: bool,
    drop_every: Option<u64>,
    done: bool,
    outcome: MachineRecord,
}

impl Actor {
    fn told(&self) -> MachineRecord {
        let mut outcome = self.outcome.clone();
        match &self.machine {
            CampaignNode::Root(_) | CampaignNode::Recorder(_) | CampaignNode::Keeper(_) => {}
            CampaignNode::Relay(relay) => {
                let status = relay.status();
                outcome.duplicates = status.duplicates;
                outcome.forwarded = status.forwarded;
                outcome.forwarded_by_port = status.forwarded_by_port;
            }
            CampaignNode::Receiver(receiver) => {
                let tally = receiver.status().tally;
                (outcome.duplicates, outcome.repaired) = (tally.duplicates, tally.repaired);
            }
        }
        outcome
    }

    fn released(&mut self, release: &Release) {
        for (number, bytes) in (release.first_message..).zip(release.messages.clone()) {
            self.outcome.released.push(number);
            self.outcome.foreign += u64::from(bytes[..] != message(number)[..]);
        }
        self.outcome.held += u64::from(release.deadline.is_some());
        let now = self.clock.sync(self.now);
        self.outcome.early += u64::from(release.deadline.is_some_and(|deadline| now < deadline));
    }

    /// Whether the shim drops this arrival.
    fn drops(&mut self, arrival: &Arrival) -> bool {
        let Some(every) = self.drop_every else { return false };
        // The shim drops every copy of the frame. Otherwise the hedged copy would arrive, and
        // repair would not be tested.
        let dropped = wire::parse(&arrival.datagram).is_ok_and(|d| {
            let live = d.fixed.kind == DatagramKind::Data && d.fixed.class == TrafficClass::Live;
            live && d.fixed.sequence.is_multiple_of(every)
        });
        self.outcome.dropped += u64::from(dropped);
        dropped
    }
}

impl Machine for Actor {
    type Event = ();

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        self.now = now;
        if self.asleep.is_some() || self.drops(&arrival) {
            return Ok(());
        }
        self.machine.handle(now, arrival)
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.now = now;
        if self.asleep.is_some_and(|until| now < until) {
            return;
        }
        self.asleep = None;
        self.machine.handle_timeout(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.now = now;
        self.clock.set(reading);
        self.machine.handle_clock(now, reading);
    }

    fn handle_sent(&mut self, now: Timestamp, sent: Sent) {
        self.now = now;
        self.machine.handle_sent(now, sent);
    }

    fn handle_counters(&mut self, now: Timestamp, of: ForwardId, counters: ForwardCounters) {
        self.now = now;
        self.machine.handle_counters(now, of, counters);
    }

    fn poll_event(&mut self) -> Option<()> {
        match self.machine.poll_event()? {
            NodeEvent::Root(RootEvent::Joined(id, ..)) => {
                self.late_is_in |= id.0 as usize == Play::LATE;
            }
            NodeEvent::Receiver(ReceiverEvent::Released(release)) => self.released(&release),
            NodeEvent::Receiver(ReceiverEvent::Lost { frames, .. }) => self.outcome.lost += frames,
            NodeEvent::Root(RootEvent::Finished(_))
            | NodeEvent::Receiver(ReceiverEvent::Finished) => self.done = true,
            _ => {}
        }
        Some(())
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.machine.poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        if self.asleep.is_some() {
            return None;
        }
        self.machine.poll_transmit(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        match self.asleep {
            Some(until) => Some(until),
            None => self.machine.poll_timeout(),
        }
    }
}
