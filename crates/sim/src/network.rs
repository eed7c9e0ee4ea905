//! The trait of network models. A network gives each packet a verdict, which states whether and
//! when the packet arrives.
//!
//! A model that can tell at once when a packet arrives (the cloud, sites) answers
//! [`Verdict::Deliver`] and costs one event per hop. A model in which a later packet can change
//! the fate of an earlier one (switch queues with priorities, flows that share a link) answers
//! [`Verdict::Hold`], asks to be woken through its [`Agenda`], and releases the packet then.

use core::time::Duration;

use evenfall_core::time::nanos;
use evenfall_core::{Prng, TrafficClass};

use crate::{HostIndex, HostSpec, NodeIndex, SimTime};

/// A packet as the network sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// When the sender handed it to its network card.
    pub at: SimTime,
    /// Sending node.
    pub from: NodeIndex,
    /// Receiving node.
    pub to: NodeIndex,
    /// Host of the sender.
    pub from_host: HostIndex,
    /// Host of the receiver.
    pub to_host: HostIndex,
    /// Length of the datagram, without what lower layers add.
    pub bytes: u32,
    /// Priority.
    pub class: TrafficClass,
}

/// The verdict of a network about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet reaches the receiver's socket at this time.
    Deliver(SimTime),
    /// The packet and a copy of it reach the receiver's socket at these times.
    Twice(SimTime, SimTime),
    /// The packet is lost.
    Lose(Loss),
    /// The network keeps it under this ticket and will release it through its agenda.
    Hold(Ticket),
}

/// The network's own name for a packet that it holds: a small number, used again once the packet
/// is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Why a packet was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// By chance, at the rate in force.
    Random,
    /// A finite buffer inside the network, or of the receiver's card, was full.
    Buffer,
    /// A partition was in force when the packet was sent.
    Partition,
    /// No node has this address.
    Unroutable,
    /// The receiver was down when the packet arrived.
    Down,
    /// The receiver's socket buffer was full.
    Socket,
}

/// Random faults of the whole network. A packet meets at most one of these faults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet is delayed so that later packets overtake it.
    pub reorder: f64,
    /// Longest delay of a reordered packet, and longest time by which a duplicate lags behind.
    pub reorder_by: Duration,
}

/// The requests of a network to the world besides its verdict.
#[derive(Debug, Default)]
pub struct Agenda {
    pub(crate) wakes: Vec<(SimTime, u64)>,
    pub(crate) releases: Vec<(Ticket, Verdict)>,
}

impl Agenda {
    /// Calls [`Network::wake`] with this token at this time.
    pub fn wake_at(&mut self, at: SimTime, token: u64) {
        self.wakes.push((at, token));
    }

    /// Gives the verdict about a packet that was held. A second [`Verdict::Hold`] is a bug.
    pub fn release(&mut self, ticket: Ticket, verdict: Verdict) {
        self.releases.push((ticket, verdict));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.wakes.is_empty() && self.releases.is_empty()
    }
}

/// A model of the network between hosts.
pub trait Network {
    /// A host joins. Hosts are numbered from 0 in the order of these calls.
    fn add_host(&mut self, spec: &HostSpec);

    /// Decides on one packet. Calls for one node come in the order of [`Packet::at`], which may be
    /// ahead of the run's time by what the sender's processor still has to do: a model whose
    /// queues interact takes a packet in at that time, by a wake-up.
    fn route(&mut self, packet: &Packet, prng: &mut Prng, agenda: &mut Agenda) -> Verdict;

    /// When the network card of a host takes the next packet. A time after `now` is the
    /// backpressure that a socket gives to its sender.
    fn send_ready(&self, host: HostIndex, now: SimTime) -> SimTime {
        let _ = host;
        now
    }

    /// A wake-up that was asked for.
    fn wake(&mut self, now: SimTime, token: u64, prng: &mut Prng, agenda: &mut Agenda) {
        let _ = (now, token, prng, agenda);
    }

    /// Sets the random faults from now on.
    fn set_rates(&mut self, rates: Rates);

    /// Makes a host slower than its specification by this factor, from now on.
    fn slow(&mut self, now: SimTime, host: HostIndex, factor: f64);
}

/// The part of a verdict that the path of the packet alone decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The packet is lost.
    Lost(Loss),
    /// The packet arrives at a time, unless it is lost at random.
    Arrives {
        /// Time of the arrival.
        at: SimTime,
        /// Probability of a random loss in units of 2^-32. Zero needs no draw.
        loss: u64,
    },
}

impl Fate {
    /// The verdict, with a draw where chance decides.
    #[inline]
    pub(crate) fn drawn(self, prng: &mut Prng) -> Verdict {
        match self {
            Self::Lost(loss) => Verdict::Lose(loss),
            Self::Arrives { loss, .. } if loss > 0 && prng.next_u64() >> 32 < loss => {
                Verdict::Lose(Loss::Random)
            }
            Self::Arrives { at, .. } => Verdict::Deliver(at),
        }
    }
}

/// A network whose hosts can send at the same time on several cores, because a packet changes
/// nothing but the state of its sender.
pub trait Divisible: Network {
    /// The state of a sending host.
    type Sender: Send;
    /// The state that all hosts read.
    type Map: Sync;

    /// The parts of the network, and the senders by the numbers of their hosts. `None` while the
    /// fate of a packet depends on chance before its path is known.
    fn divide(&mut self) -> Option<(&Self::Map, &mut [Self::Sender])>;

    /// No packet arrives earlier than this after it was handed to the network.
    fn least(&self) -> Duration;

    /// The same as [`Network::route`] up to the last draw.
    fn fate(map: &Self::Map, sender: &mut Self::Sender, packet: &Packet) -> Fate;

    /// The same as [`Network::send_ready`].
    fn ready(map: &Self::Map, sender: &Self::Sender, now: SimTime) -> SimTime;
}

/// What a fault adds to the delay of all packets of a host.
///
/// When the delay becomes shorter, it falls as fast as time passes, so that no packet overtakes an
/// earlier one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slowing {
    /// What the fault adds, nanoseconds.
    ns: u64,
    /// Before this time nothing leaves the stage.
    floor: u64,
}

impl Slowing {
    /// What is added for a packet that comes at a time.
    #[inline]
    pub(crate) fn at(&self, at: u64) -> u64 {
        self.ns.max(self.floor.saturating_sub(at))
    }

    /// Adds `ns` from now on. The network gets packets before the run has reached their times,
    /// because the processors and cards of the senders still have work to do. So the change comes
    /// after `latest`, the times of the last packets of all senders.
    pub(crate) fn change(&mut self, now: SimTime, latest: impl Iterator<Item = u64>, ns: u64) {
        let changed = latest.fold(now.0, u64::max);
        *self = Self { ns, floor: changed + self.at(changed) };
    }
}

/// The simplest network, for tests: every packet takes the same time, and no packet waits in a
/// queue. Only a fault makes the packets of a host slower.
#[derive(Clone, Debug)]
pub struct Wire {
    map: WireMap,
    chances: Chances,
    /// For each host, when the last of its packets entered the wire.
    senders: Vec<u64>,
}

/// The part of a [`Wire`] that every packet reads.
#[derive(Clone, Debug)]
pub struct WireMap {
    delay: Duration,
    hosts: Vec<Slowing>,
}

impl WireMap {
    #[inline]
    fn arrival(&self, latest: &mut u64, packet: &Packet) -> SimTime {
        let mut at = packet.at.0;
        let is_slowed = packet.from_host != packet.to_host;
        if is_slowed {
            at += self.hosts[packet.from_host.0 as usize].at(at);
        }
        *latest = (*latest).max(at);
        if is_slowed {
            at += self.hosts[packet.to_host.0 as usize].at(at);
        }
        SimTime(at) + self.delay
    }
}

impl Wire {
    /// A wire of this delay.
    pub fn new(delay: Duration) -> Self {
        let map = WireMap { delay, hosts: Vec::new() };
        Self { map, chances: Chances::default(), senders: Vec::new() }
    }
}

impl Network for Wire {
    fn add_host(&mut self, _: &HostSpec) {
        self.map.hosts.push(Slowing::default());
        self.senders.push(0);
    }

    #[inline]
    fn route(&mut self, packet: &Packet, prng: &mut Prng, _: &mut Agenda) -> Verdict {
        let arrival = self.map.arrival(&mut self.senders[packet.from_host.0 as usize], packet);
        match self.chances.draw(prng) {
            Chance::Nothing => Verdict::Deliver(arrival),
            Chance::Lose => Verdict::Lose(Loss::Random),
            Chance::Duplicate(lag) => Verdict::Twice(arrival, arrival + lag),
            Chance::Reorder(delay) => Verdict::Deliver(arrival + delay),
        }
    }

    fn set_rates(&mut self, rates: Rates) {
        self.chances = Chances::new(rates);
    }

    fn slow(&mut self, now: SimTime, host: HostIndex, factor: f64) {
        let more = self.map.delay.mul_f64((factor - 1.0).max(0.0));
        let latest = self.senders.iter().copied();
        self.map.hosts[host.0 as usize].change(now, latest, nanos(more));
    }
}

impl Divisible for Wire {
    type Sender = u64;
    type Map = WireMap;

    fn divide(&mut self) -> Option<(&WireMap, &mut [u64])> {
        (self.chances == Chances::default()).then_some((&self.map, &mut self.senders[..]))
    }

    fn least(&self) -> Duration {
        self.map.delay
    }

    fn fate(map: &WireMap, latest: &mut u64, packet: &Packet) -> Fate {
        Fate::Arrives { at: map.arrival(latest, packet), loss: 0 }
    }

    fn ready(_: &WireMap, _: &u64, now: SimTime) -> SimTime {
        now
    }
}

/// [`Rates`] as thresholds for one random word, for models to share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chances {
    lose: u64,
    duplicate: u64,
    reorder: u64,
    by_ns: u64,
}

/// The random fault of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chance {
    /// Nothing.
    Nothing,
    /// The packet is lost.
    Lose,
    /// A copy of the packet comes this much later.
    Duplicate(Duration),
    /// The packet is late by this much and may be overtaken.
    Reorder(Duration),
}

impl Chances {
    /// Thresholds for these rates.
    pub fn new(rates: Rates) -> Self {
        let threshold = |p: f64| (p.clamp(0.0, 1.0) * 4_294_967_296.0) as u64;
        let lose = threshold(rates.loss);
        let duplicate = lose + threshold(rates.duplicate);
        let reorder = duplicate + threshold(rates.reorder);
        Self { lose, duplicate, reorder, by_ns: nanos(rates.reorder_by) }
    }

    /// Draws the fate of one packet; draws nothing when every rate is zero.
    #[inline]
    pub fn draw(&self, prng: &mut Prng) -> Chance {
        if self.reorder == 0 {
            return Chance::Nothing;
        }
        let word = prng.next_u64();
        let (chance, rest) = (word >> 32, word & 0xffff_ffff);
        if chance >= self.reorder {
            return Chance::Nothing;
        }
        let lag = Duration::from_nanos(((u128::from(self.by_ns) * u128::from(rest)) >> 32) as u64);
        if chance < self.lose {
            Chance::Lose
        } else if chance < self.duplicate {
            Chance::Duplicate(lag)
        } else {
            Chance::Reorder(lag)
        }
    }
}
