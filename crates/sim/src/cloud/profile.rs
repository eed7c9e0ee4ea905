//! What a cloud is made of: the parameters of its paths, as plain values.

use core::time::Duration;
use std::sync::LazyLock;

use crate::cloud::queueing::Waits;
use crate::quantiles::Quantiles;

/// The delays and losses of a cloud. The values of `default()` are of the size that is measured
/// inside one zone; the files in `models/` have fitted ones, each with its source.
#[derive(Clone, Debug, PartialEq)]
pub struct CloudProfile {
    /// Lasting delay of a pair of hosts: the median over pairs.
    pub base: Duration,
    /// Lasting differences between pairs and between hosts.
    pub spread: Spread,
    /// Hosts that are slow all the time.
    pub stragglers: Stragglers,
    /// What comes on top of the lasting delay: the queue on the path.
    pub waits: Waits,
    /// Times at which a single path stands still.
    pub spikes: Option<Outages>,
    /// Times at which nothing enters or leaves a host: a neighbour on the same machine is noisy.
    /// Egress and ingress of the host stand still together.
    pub episodes: Option<Outages>,
    /// Traffic of strangers at the card of a host.
    pub load: Option<HostLoad>,
    /// Standard deviation of the slow drift of a pair's lasting delay, as a share of it; 0 for
    /// none. At most .5.
    pub wander: f64,
    /// The time in which a pair's drift is renewed: values this far apart are independent.
    pub wander_period: Duration,
    /// Changes of the route of a pair.
    pub reroutes: Option<Reroutes>,
    /// Packets that never arrive.
    pub loss: PathLoss,
    /// Most bits per second of all packets from one host to another; 0 for no limit.
    pub flow_bits_per_s: u64,
    /// The longest queue at that limit, as the time in which it drains. A packet that finds a
    /// longer queue is dropped. The files of models have no such number, because nobody states it:
    /// 10 ms is a guess, and the feeds of the studies stay far below the limit.
    pub flow_queue: Duration,
    /// Paths from one host to another over which its packets are sprayed. Each packet takes one of
    /// them by chance, with the delays and losses of that path, so that packets overtake each
    /// other. With 1 path, or 0, the packets of a pair stay in order.
    pub sprayed_paths: u32,
    /// Delay between two nodes of one host.
    pub loopback: Duration,
    /// The longest queue at a sender's card, as a time. A sender with a longer queue waits.
    pub send_queue: Duration,
}

/// How much pairs and hosts differ, as standard deviations of the logarithm of the delay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Of a host as sender.
    pub sender: f64,
    /// Of a host as receiver.
    pub receiver: f64,
    /// Correlation between the two: a slow host is mostly slow both ways.
    pub correlation: f64,
    /// Of a pair of hosts, both ways alike.
    pub pair: f64,
    /// Of each direction of a pair by itself. Together with `sender` and `receiver` it is the
    /// asymmetry of the model: [`Spread::asymmetry`].
    pub direction: f64,
}

impl Spread {
    /// Standard deviation of the difference between the logarithms of the two directions of a
    /// pair.
    pub fn asymmetry(&self) -> f64 {
        let Self { sender, receiver, correlation, direction, .. } = *self;
        let host = sender * sender + receiver * receiver - 2.0 * correlation * sender * receiver;
        (2.0 * (host + direction * direction)).max(0.0).sqrt()
    }

    /// Standard deviation of the logarithm of the delay over all pairs.
    pub fn total(&self) -> f64 {
        let square = |x: f64| x * x;
        let hosts = square(self.sender) + square(self.receiver);
        (hosts + square(self.pair) + square(self.direction)).sqrt()
    }
}

/// Hosts that are slow all the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stragglers {
    /// Their share of all hosts.
    pub share: f64,
    /// Factor on the delay of what they send.
    pub send: f64,
    /// Factor on the delay of what they receive.
    pub receive: f64,
}

impl Stragglers {
    /// No host is a straggler.
    pub const NONE: Self = Self { share: 0.0, send: 1.0, receive: 1.0 };
}

/// Outages that begin at random times: no packet passes until the outage is over, and all that
/// waited pass then, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Outages {
    /// Mean time from one beginning to the next.
    pub mean_gap: Duration,
    /// How long an outage lasts.
    pub length: Quantiles,
}

/// Traffic of strangers that shares the card of a host, in both directions.
///
/// The traffic comes in bursts at random times, and the length of bursts is exponential. So the
/// wait is that of the queue M/M/1: longer than `x` with probability
/// `u exp(-x (1 - u) / burst)`, where `u` is the share of the time in which the card is busy.
#[derive(Clone, Debug, PartialEq)]
pub struct HostLoad {
    /// Shares of the time, and how busy the card is with strangers then (below 1).
    pub levels: Vec<(f64, f64)>,
    /// How long the card takes for a burst in the mean.
    pub burst: Duration,
    /// How long a level lasts before the next one is drawn.
    pub period: Duration,
}

/// Changes of the route of a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reroutes {
    /// Mean time between two changes; at least 200 ms.
    pub every: Duration,
    /// Standard deviation of the logarithm of the lasting delay over the routes of a pair.
    pub sigma: f64,
}

/// Packets that never arrive.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathLoss {
    /// Probability that a packet is lost outside of a burst.
    pub random: f64,
    /// Times at which a path loses packets.
    pub bursts: Option<Outages>,
    /// Share of the packets that are lost at these times.
    pub within: f64,
}

static DEFAULT: LazyLock<CloudProfile> = LazyLock::new(|| {
    let us = Duration::from_micros;
    let millis = Duration::from_millis;
    CloudProfile {
        base: us(25),
        spread: Spread { sender: 0.05, receiver: 0.05, pair: 0.15, ..Spread::default() },
        stragglers: Stragglers { share: 0.02, send: 1.5, receive: 1.5 },
        waits: Waits::new(&Quantiles::lognormal(us(8), 0.6), us(50)),
        spikes: Some(Outages {
            mean_gap: millis(250),
            length: Quantiles::pareto(us(100), 1.5, millis(10)),
        }),
        wander: 0.05,
        wander_period: Duration::from_secs(5),
        send_queue: millis(1),
        loopback: us(5),
        ..CloudProfile::constant(us(25))
    }
});

impl Default for CloudProfile {
    fn default() -> Self {
        DEFAULT.clone()
    }
}

impl CloudProfile {
    /// Every packet between two hosts takes exactly this long.
    pub fn constant(delay: Duration) -> Self {
        Self {
            base: delay,
            spread: Spread::default(),
            stragglers: Stragglers::NONE,
            waits: Waits::NONE,
            spikes: None,
            episodes: None,
            load: None,
            wander: 0.0,
            wander_period: Duration::from_secs(5),
            reroutes: None,
            loss: PathLoss::default(),
            flow_bits_per_s: 0,
            flow_queue: Duration::from_millis(10),
            sprayed_paths: 1,
            loopback: Duration::from_micros(5),
            send_queue: Duration::from_millis(1),
        }
    }
}
