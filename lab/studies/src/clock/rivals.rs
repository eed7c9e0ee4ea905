//! Two rivals on the same stamps.
//!
//! Each rival follows a chain of masters. A node follows the neighbour with the fewest hops to the
//! reference, as the strata of NTP do. Both rivals get every probe between a node and its master,
//! which is more than NTP or PTP would send.
//!
//! - **NTP-style**: the exchange with the least round trip of a window gives the offset (RFC 5905,
//!   the clock filter).
//! - **PTP-style**: the mean of all exchanges of a window gives the offset, as a servo does that
//!   takes every message (IEEE 1588 without transparent clocks in the switches).
//!
//! Both estimate the rate by a running mean of the changes from window to window.

use evenfall_clock_machine::CodedPair;
use evenfall_core::Timestamp;

/// Share of a new rate in the rate that is kept: loops average over several polls.
const RATE_SHARE: f64 = 0.25;

/// One exchange: when, the offset of the master, and the round trip.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    at: Timestamp,
    offset_ns: f64,
    round_trip_ns: f64,
}

/// A line that a rival follows.
#[derive(Clone, Copy, Debug)]
struct Line {
    at: Timestamp,
    offset_ns: f64,
    rate: f64,
}

impl Line {
    /// The line that follows `old` once an offset was found.
    fn after(old: Option<Self>, at: Timestamp, offset_ns: f64) -> Self {
        let rate = old.map_or(0.0, |old| {
            let fresh = (offset_ns - old.offset_ns) / at.signed_since(old.at).max(1) as f64;
            if old.rate == 0.0 { fresh } else { old.rate + RATE_SHARE * (fresh - old.rate) }
        });
        Self { at, offset_ns, rate }
    }

    fn at(&self, now: Timestamp) -> f64 {
        self.offset_ns + self.rate * now.signed_since(self.at) as f64
    }
}

/// A node's view of its master.
#[derive(Clone, Debug, Default)]
pub(super) struct Follower {
    base_ns: Option<i64>,
    out: Option<[Timestamp; 2]>,
    exchanges: Vec<Exchange>,
    ntp: Option<Line>,
    ptp: Option<Line>,
}

impl Follower {
    /// A completed pair of probes; only the first of the two counts.
    pub(super) fn pair(&mut self, ours: bool, pair: &CodedPair) {
        let (sent, received) = (pair.sent[0], pair.received[0]);
        if ours {
            self.out = Some([sent, received]);
            return;
        }
        let Some([t1, t2]) = self.out.take() else { return };
        let base = *self.base_ns.get_or_insert(t2.signed_since(t1));
        let there = (t2.signed_since(t1) - base) as f64;
        let back = (sent.signed_since(received) - base) as f64;
        // Up to 50 ms lie between the probes of the two ways, and the clocks drift in that time. So
        // the offset is that of the middle, and the known drift does not count as delay.
        let apart = received.signed_since(t1);
        let drifted = self.ntp.map_or(0.0, |line| line.rate * apart as f64);
        self.exchanges.push(Exchange {
            at: Timestamp::from_nanos(t1.nanos().saturating_add_signed(apart / 2)),
            offset_ns: (there + back) / 2.0,
            round_trip_ns: there - back + drifted,
        });
    }

    /// A window ends.
    pub(super) fn close(&mut self) {
        let exchanges = core::mem::take(&mut self.exchanges);
        let least = exchanges.iter().min_by(|a, b| a.round_trip_ns.total_cmp(&b.round_trip_ns));
        let (Some(best), Some(last)) = (least, exchanges.last()) else { return };
        self.ntp = Some(Line::after(self.ntp, best.at, best.offset_ns));
        let n = exchanges.len() as f64;
        let x = |exchange: &Exchange| exchange.at.signed_since(last.at) as f64;
        let mean_x = exchanges.iter().map(x).sum::<f64>() / n;
        let offset_ns = exchanges.iter().map(|exchange| exchange.offset_ns).sum::<f64>() / n;
        let at = Timestamp::from_nanos(last.at.nanos().saturating_add_signed(mean_x as i64));
        self.ptp = Some(Line::after(self.ptp, at, offset_ns));
    }

    /// What to add to the node's clock to get the master's: NTP-style and PTP-style.
    pub(super) fn offsets(&self, now: Timestamp) -> Option<[i64; 2]> {
        let base = self.base_ns?;
        let whole = |line: Option<Line>| Some(base + (line?.at(now) + 0.5).floor() as i64);
        Some([whole(self.ntp)?, whole(self.ptp)?])
    }
}
