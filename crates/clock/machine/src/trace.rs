//! Paths for tests: two clocks, and a queue with memory each way.

use core::time::Duration;

use evenfall_core::{Prng, Timestamp};

use crate::Config;
use crate::pair::{CodedPair, PairMeter};

/// Service time of a full packet at 10 Gb/s, in nanoseconds.
const PACKET_NS: f64 = 1_200.0;

/// A queue whose other traffic comes in bursts at a stated load, so that two probes that follow
/// each other find nearly the same queue.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    load: f64,
    base_ns: u64,
    /// Work that waits, in nanoseconds, at `at`.
    backlog: f64,
    at: f64,
    next: f64,
}

impl Queue {
    pub(crate) fn new(load: f64, base_ns: u64) -> Self {
        Self { load, base_ns, backlog: 0.0, at: 0.0, next: 0.0 }
    }

    /// The delay of a probe that enters at a true time.
    pub(crate) fn delay(&mut self, now: f64, prng: &mut Prng) -> f64 {
        // After a long silence the last millisecond decides.
        if now - self.at > 1e6 {
            (self.at, self.next, self.backlog) = (now - 1e6, now - 1e6, 0.0);
        }
        while self.load > 0.0 && self.next <= now {
            self.backlog = (self.backlog - (self.next - self.at)).max(0.0);
            self.at = self.next;
            let burst = 1.0 + prng.below(8) as f64;
            self.backlog += burst * PACKET_NS;
            self.next += prng.exponential(4.5 * PACKET_NS / self.load);
        }
        self.backlog = (self.backlog - (now - self.at)).max(0.0);
        self.at = now;
        self.base_ns as f64 + self.backlog
    }
}

/// Two nodes. Our clock is the true time.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    out: Queue,
    back: Queue,
    offset_ns: i64,
    rate: f64,
}

impl Path {
    pub(crate) fn new(out: Queue, back: Queue, offset_ns: i64, rate: f64) -> Self {
        Self { out, back, offset_ns, rate }
    }

    pub(crate) fn step(&mut self, by_ns: i64) {
        self.offset_ns += by_ns;
    }

    /// The peer's clock less ours. Our clock begins at [`ZERO`].
    pub(crate) fn difference(&self, ours: Timestamp) -> i128 {
        i128::from(self.offset_ns) + (self.rate * (ours.nanos() - ZERO as u64) as f64) as i128
    }

    fn stamp(at: f64, offset: i128) -> Timestamp {
        Timestamp::from_nanos((ZERO + at as i128 + offset) as u64)
    }

    /// Probes of the default budget for ten peers, both ways: 21 pairs a second.
    pub(crate) fn fill(
        &mut self,
        meter: &mut PairMeter,
        of: (u64, u64),
        config: &Config,
        prng: &mut Prng,
    ) {
        let mut at = of.0 as f64;
        while at < of.1 as f64 - 100_000.0 {
            let mut pair = |queue: &mut Queue| {
                let sent = [at, at + 20_000.0];
                (sent, sent.map(|at| at + queue.delay(at, prng)))
            };
            let ours = |at: f64| Self::stamp(at, 0);
            let theirs =
                |at: f64| Self::stamp(at, i128::from(self.offset_ns) + (self.rate * at) as i128);
            let (sent, received) = pair(&mut self.out);
            let out = CodedPair { sent: sent.map(ours), received: received.map(theirs) };
            let (sent, received) = pair(&mut self.back);
            let back = CodedPair { sent: sent.map(theirs), received: received.map(ours) };
            meter.outgoing(out, config.tolerance);
            meter.incoming(back, config.tolerance);
            at += 40_000_000.0 + prng.below(14_000_000) as f64;
        }
    }
}

/// The reading of our clock at the true time zero: 35 years, so that the clock of a peer that is 30
/// years behind does not go below zero.
pub(crate) const ZERO: i128 = 35 * 31_557_600 * 1_000_000_000;

/// A time of our clock.
pub(crate) fn ours(true_ns: u64) -> Timestamp {
    Timestamp::from_nanos(ZERO as u64) + Duration::from_nanos(true_ns)
}
