//! Two nodes, the probes between them, and what the probes say about the difference of their
//! clocks.
//!
//! A probe from us to a peer leaves at `s` on our clock and arrives at `r` on the peer's. `r - s`
//! is the difference of the clocks plus the delay: an upper point. A probe from the peer to us
//! gives a lower point. See [`crate::hull`] for the band between the points.
//!
//! **Coded pairs.** Two probes leave with a known time between them. A queue on the way, or an
//! interruption at a stamp, changes the time between them nearly always. Only pairs whose time
//! between them arrived intact count for the estimate (Huygens, section 3.1). The proven bound
//! takes all probes, because a probe that waited is late and never early.

use core::time::Duration;
use std::collections::VecDeque;

use evenfall_core::Timestamp;
use evenfall_core::time::nanos;

use crate::Config;
use crate::hull::{Band, HullPoint, Side, boundary};

/// Probes that a window keeps of each way: 500 a second for two seconds. Later probes are counted
/// and dropped, so that a peer that sends too many costs bounded memory.
pub const SAMPLES_MAX: usize = 1_000;

/// Index of the intact pairs among the corners of a window.
const CODED: usize = 0;
/// Index of all probes.
const ALL: usize = 1;

/// The usual change of the rate of one clock against another, in nanoseconds per second squared.
/// This is twice the value that `filter` assumes, so that a change of rate in a window without
/// queues does not count as a queue.
const BENT_NS_S2: f64 = 40.0;

/// Nanoseconds after the end of a window for which the bounds of the window grow: 8 s. Three calls
/// to end a window may be lost in this time. A longer time means that our own clock has jumped, and
/// a jump must not widen the bounds that show the jump.
const CARRIED_NS: f64 = 8e9;

/// The stamps of two probes that followed each other the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodedPair {
    /// Departures, on the sender's clock.
    pub sent: [Timestamp; 2],
    /// Arrivals, on the receiver's clock.
    pub received: [Timestamp; 2],
}

impl CodedPair {
    /// How much the time between the two probes changed on the way.
    pub fn strain_ns(&self) -> u64 {
        let between = |at: [Timestamp; 2]| i128::from(at[1].nanos()) - i128::from(at[0].nanos());
        let strain = (between(self.received) - between(self.sent)).unsigned_abs();
        u64::try_from(strain).unwrap_or(u64::MAX)
    }
}

/// Why a window gives no estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gap {
    /// No probe came through one of the two ways.
    Silent,
    /// No line of an allowed slope fits between the points: a clock stepped, or a stamp is wrong.
    Crossed,
}

/// The estimate of one window: `peer's clock - our clock` as a line, and its bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairEstimate {
    /// The middle of the window, on our clock.
    pub middle: Timestamp,
    /// The end of the window, on our clock. The proven bounds begin there.
    pub end: Timestamp,
    /// The difference at `middle`.
    pub offset_ns: i64,
    /// How much the peer's clock gains on ours for each nanosecond of ours.
    pub rate: f64,
    /// Half the width of the widest band: the least delay of a round trip, halved.
    pub half_ns: u64,
    /// Probes that touch the hulls of the estimate.
    pub kept: u32,
    /// The least and the greatest difference at `end` that the delays leave possible.
    pub proven_ns: [i64; 2],
    /// The least and the greatest rate from `end` on.
    pub proven_rate: [f64; 2],
}

impl PairEstimate {
    /// The report that no line fits between the probes of a window that ended at `end`.
    pub(crate) fn crossed(end: Timestamp) -> Self {
        Self {
            middle: end,
            end,
            offset_ns: 0,
            rate: 0.0,
            half_ns: 0,
            kept: 0,
            proven_ns: [0; 2],
            proven_rate: [0.0; 2],
        }
    }

    /// Whether this is a report that no line fits. Every other estimate rests on at least one
    /// probe of each way.
    pub(crate) fn is_crossed(&self) -> bool {
        self.kept == 0
    }
}

/// Points of one window, by way.
#[derive(Clone, Debug, Default)]
struct Points {
    lower: Vec<HullPoint>,
    upper: Vec<HullPoint>,
}

/// The probes between this node and one peer. Times are relative to an origin, so that an `f64`
/// resolves a nanosecond for a hundred days and an offset of 30 years costs no precision.
#[derive(Clone, Debug, Default)]
pub struct PairMeter {
    origin: Option<(Timestamp, i64)>,
    /// Of pairs that arrived intact.
    coded: Points,
    /// Of all probes.
    all: Points,
    /// Corners of the clouds of the last windows: of intact pairs, and of all probes.
    earlier: VecDeque<[Points; 2]>,
    /// The estimate of the last window, with its proven bounds.
    last: Option<PairEstimate>,
    /// Probes beyond [`SAMPLES_MAX`].
    dropped: u64,
}

impl PairMeter {
    /// Probes that came beyond [`SAMPLES_MAX`] in a window.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Two probes that we sent.
    pub fn outgoing(&mut self, pair: CodedPair, tolerance: Duration) {
        let intact = pair.strain_ns() <= nanos(tolerance);
        for (sent, received) in pair.sent.into_iter().zip(pair.received) {
            self.note(sent, received.signed_since(sent), Side::Below, intact);
        }
    }

    /// Two probes that the peer sent.
    pub fn incoming(&mut self, pair: CodedPair, tolerance: Duration) {
        let intact = pair.strain_ns() <= nanos(tolerance);
        for (sent, received) in pair.sent.into_iter().zip(pair.received) {
            self.note(received, sent.signed_since(received), Side::Above, intact);
        }
    }

    /// Whether two probes that we sent contradict the proven bounds of the last window. When they
    /// do, a clock has jumped or a stamp is wrong.
    pub fn outgoing_defies(&self, pair: &CodedPair, config: &Config) -> bool {
        pair.sent.into_iter().zip(pair.received).any(|(sent, received)| {
            let least = self.proven_at(sent, config).map(|[least, _]| least);
            least.is_some_and(|least| received.signed_since(sent) < least)
        })
    }

    /// Whether two probes that the peer sent contradict the proven bounds of the last window.
    pub fn incoming_defies(&self, pair: &CodedPair, config: &Config) -> bool {
        pair.sent.into_iter().zip(pair.received).any(|(sent, received)| {
            let most = self.proven_at(received, config).map(|[_, most]| most);
            most.is_some_and(|most| sent.signed_since(received) > most)
        })
    }

    /// The bounds of the last window on the difference of the clocks, carried on to `at` on our
    /// clock. A delay makes the difference of an outgoing probe greater and the difference of an
    /// incoming probe smaller, so each way is compared with one bound.
    fn proven_at(&self, at: Timestamp, config: &Config) -> Option<[i64; 2]> {
        let last = self.last.as_ref()?;
        let age = (at.signed_since(last.end) as f64).clamp(-CARRIED_NS, CARRIED_NS);
        let [slow, fast] = last.proven_rate.map(|rate| rate * age);
        let margin = config.bend_ns(age) + nanos(config.stamp_error) as f64 + 1.0;
        let [least, most] = last.proven_ns;
        Some([
            least.saturating_add((slow.min(fast) - margin) as i64),
            most.saturating_add((slow.max(fast) + margin) as i64),
        ])
    }

    fn note(&mut self, at: Timestamp, difference_ns: i64, side: Side, intact: bool) {
        let (start, base) = *self.origin.get_or_insert((at, difference_ns));
        let y = i128::from(difference_ns) - i128::from(base);
        let point = HullPoint { x: at.signed_since(start) as f64, y: y as f64 };
        let cloud = |points: &mut Points| {
            let cloud = match side {
                Side::Below => &mut points.upper,
                Side::Above => &mut points.lower,
            };
            let room = cloud.len() < SAMPLES_MAX;
            if room {
                cloud.push(point);
            }
            room
        };
        self.dropped += u64::from(!cloud(&mut self.all));
        if intact {
            cloud(&mut self.coded);
        }
    }

    /// Forgets all probes: a clock stepped.
    pub fn clear(&mut self) {
        *self = Self { dropped: self.dropped, ..Self::default() };
    }

    /// Ends the window at `end` on our clock and begins the next.
    ///
    /// # Errors
    /// [`Gap`] when the window gives no estimate.
    pub fn close(&mut self, end: Timestamp, config: &Config) -> Result<PairEstimate, Gap> {
        self.last = None;
        let mut coded = core::mem::take(&mut self.coded);
        let mut all = core::mem::take(&mut self.all);
        let Some((start, base)) = self.origin else { return Err(Gap::Silent) };
        let last = end.signed_since(start) as f64;
        self.earlier.push_back([corners(&mut coded), corners(&mut all)]);
        while self.earlier.len() > config.windows_proven {
            self.earlier.pop_front();
        }
        let proven = self.proven(last, config)?;
        if all.lower.is_empty() || all.upper.is_empty() {
            return Err(Gap::Silent);
        }
        // Bounds of the rate over all windows keep a window of few probes from tilting.
        let change = f64::from(config.wander_ppb_s) * 1e-9 * config.window.as_secs_f64();
        let slopes = (proven.1[0] - change, proven.1[1] + change);
        let (band, kept) = self.best(slopes, config).ok_or(Gap::Silent)?;
        let middle = last - nanos(config.window) as f64 / 2.0;
        let absolute = |y: f64| base.saturating_add(y as i64);
        let estimate = PairEstimate {
            middle: Timestamp::from_nanos(start.nanos().saturating_add_signed(middle as i64)),
            end,
            offset_ns: absolute(round(band.at(middle))),
            rate: band.slope,
            half_ns: band.half.max(0.0) as u64,
            kept: kept as u32,
            proven_ns: [absolute(proven.0[0] - 1.0), absolute(proven.0[1] + 1.0)],
            proven_rate: proven.1,
        };
        self.last = Some(estimate);
        Ok(estimate)
    }

    /// The band that the estimate takes, and the corners that made it.
    ///
    /// More probes make the band narrower, for two kinds of reasons. Stamps with errors and clocks
    /// whose rate changes make it a little narrower, and the estimate worse. When few probes met
    /// empty queues, more probes make it much narrower, and the estimate better. So the estimate
    /// takes the smallest set of probes whose band is nearly as narrow as that of all probes.
    fn best(&self, slopes: (f64, f64), config: &Config) -> Option<(Band, usize)> {
        let windows = config.windows_proven;
        let age = windows as f64 * config.window.as_secs_f64();
        let bent = BENT_NS_S2 * age * age / 8.0;
        let early = 2.0 * nanos(config.stamp_error) as f64;
        let (narrowest, kept) = self.band(ALL, windows, slopes)?;
        let fewer = [(CODED, 1, early + bent), (CODED, windows, early), (ALL, 1, bent)];
        let enough = |(kind, windows, wider): (usize, usize, f64)| {
            let found = self.band(kind, windows, slopes)?;
            (found.0.half <= narrowest.half.max(0.0) + wider).then_some(found)
        };
        fewer.into_iter().find_map(enough).or(Some((narrowest, kept)))
    }

    /// The widest band between points of one kind of the last windows, and how many corners there
    /// are.
    fn band(&self, kind: usize, windows: usize, slopes: (f64, f64)) -> Option<(Band, usize)> {
        let mut points = Points::default();
        for window in self.earlier.iter().rev().take(windows) {
            points.lower.extend(&window[kind].lower);
            points.upper.extend(&window[kind].upper);
        }
        let kept = points.lower.len() + points.upper.len();
        let hulls = corners(&mut points);
        Some((Band::widest(&hulls.lower, &hulls.upper, slopes)?, kept))
    }

    /// The bounds at `last`. Every point is moved outwards by the error of its stamp and by the
    /// bend that the clocks may have had since. The difference of the clocks is then a straight
    /// line that fits between the points.
    fn proven(&mut self, last: f64, config: &Config) -> Result<([f64; 2], [f64; 2]), Gap> {
        let stamp = nanos(config.stamp_error) as f64;
        let widened = |point: &HullPoint, sign: f64| {
            let margin = stamp + config.bend_ns(last - point.x);
            HullPoint { x: point.x - last, y: point.y + sign * margin }
        };
        let gather = |of: fn(&Points) -> &[HullPoint], sign: f64| -> Vec<HullPoint> {
            let points = self.earlier.iter().flat_map(|[_, all]| of(all));
            points.map(|point| widened(point, sign)).collect()
        };
        let lower = boundary(&mut gather(|points| &points.lower, -1.0), Side::Above);
        let upper = boundary(&mut gather(|points| &points.upper, 1.0), Side::Below);
        let most = config.drift_max();
        let band = Band::widest(&lower, &upper, (-most, most)).ok_or(Gap::Silent)?;
        if band.half < 0.0 {
            // A clock stepped in one of these windows. The probes do not show in which window, so
            // all windows are dropped.
            self.clear();
            return Err(Gap::Crossed);
        }
        Ok(([band.low(&lower, 0.0), band.high(&upper, 0.0)], [band.slope_min, band.slope_max]))
    }
}

fn corners(points: &mut Points) -> Points {
    Points {
        lower: boundary(&mut points.lower, Side::Above),
        upper: boundary(&mut points.upper, Side::Below),
    }
}

/// The nearest whole number. Halves are rounded up. Addition and `floor` give the same result on
/// every platform.
fn round(y: f64) -> f64 {
    (y + 0.5).floor()
}

#[cfg(test)]
mod tests;
