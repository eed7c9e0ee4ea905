//! Waits as processes in time.
//!
//! The obvious model draws a wait for every packet and then holds the packets of a pair in order.
//! Its tails grow with the packet rate, because every packet is another chance to draw a long wait
//! that all later packets stand behind. A real queue is there whether or not somebody sends. Here a
//! wait is therefore a function of time, `B(t)`, and a packet waits for the value at its own time:
//!
//! ```text
//! B(t)   |\                    work arrives: B jumps up
//!        | \      ____         a level holds for one slot
//!        |  \____|    \        nothing new comes: B falls at the rate of time, never faster
//!        +---------------> t
//! ```
//!
//! `B` falls at most as fast as time passes, so `t + B(t)` never decreases: **packets of one path
//! never overtake each other, and no state is kept for it**. `B` comes out of hashes of a path and
//! a slot of time. A path has the same waits for all callers, however often and in whatever order
//! they ask.
//!
//! A stage of a path is one such map of time, and a path is its stages one after the other. A map
//! that never decreases, applied to another such map, never decreases either.

use core::time::Duration;
use std::sync::Arc;

use evenfall_core::time::nanos;

use crate::cloud::profile::{HostLoad, Outages};
use crate::math::{exp, mix};
use crate::quantiles::Quantiles;

/// 2^64 divided by the golden ratio: multiplying by it spreads small numbers.
pub(super) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Fixed-point bits of factors.
pub(super) const POINT: u32 = 20;
/// The factor 1.
pub(super) const ONE: u64 = 1 << POINT;
/// Points at which the distribution of levels is computed. Steps of 1/4,096 of the longest wait are
/// finer than the tables, which have 1,024 cells.
const GRID: usize = 4_096;
/// Slots that the longest wait spans at most. Every slot from which a wait may be left costs each
/// packet a hash, so longer waits get longer slots.
const SLOTS_MAX: u64 = 6;
/// The most lanes of outages. In a model the longest outage has a hundred gaps at most, and a slot
/// has up to a third of that length.
const LANES_MAX: u64 = 34;
/// Waits by the load of strangers that are less likely than this are cut off. [`Outages`] model
/// rarer and longer waits.
const LOAD_EDGE: f64 = 1e-5;
/// A level of [`HostLoad`] lasts this many slots at least.
const LEVEL_SLOTS_MIN: u64 = 4;

/// The hash of a slot of a path.
#[inline]
pub(crate) fn draw(key: u64, slot: u64) -> u64 {
    mix(key ^ slot.wrapping_mul(GOLDEN))
}

/// A hash as a number from 0 to below 1.
#[inline]
pub(crate) fn unit(hash: u64) -> f64 {
    const TWO_53: f64 = 9_007_199_254_740_992.0;
    (hash >> 11) as f64 / TWO_53
}

/// A queue whose wait is drawn for a slot of time, holds, and then drains.
///
/// In every slot of `lasts` a level is drawn. The level holds to the end of its slot and then
/// drains. A packet waits for the highest of its slot's level and what is left of the levels of
/// earlier slots. The levels are drawn so that the wait at a random instant has the distribution
/// that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Waits {
    levels: Option<Arc<Levels>>,
    /// The least wait of a packet, nanoseconds.
    least: u64,
}

#[derive(Debug, PartialEq)]
struct Levels {
    /// Levels above the least wait.
    table: Quantiles,
    /// Highest level.
    most: u64,
    /// Slots have 2^`bits` nanoseconds: a shift finds the slot of a time.
    bits: u32,
    /// The distribution asked for.
    wanted: Quantiles,
}

impl Waits {
    /// No wait.
    pub const NONE: Self = Self { levels: None, least: 0 };

    /// Waits of this distribution, over the instants of a path of median spread. `lasts` is how
    /// long a level holds; it is lengthened to a sixth of the longest wait, and to a power of two
    /// of nanoseconds.
    pub fn new(wanted: &Quantiles, lasts: Duration) -> Self {
        let (least, most) = (wanted.at(0.0), wanted.at(1.0) - wanted.at(0.0));
        if most == 0 {
            return Self { levels: None, least };
        }
        let bits = slot_bits(nanos(lasts).max(most.div_ceil(SLOTS_MAX)));
        let table = levels(wanted, least, most, 1 << bits);
        let levels = Levels { table, most, bits, wanted: wanted.clone() };
        Self { levels: Some(Arc::new(levels)), least }
    }

    /// The distribution that was asked for.
    pub fn wanted(&self) -> Quantiles {
        let constant = || Quantiles::constant(Duration::from_nanos(self.least));
        self.levels.as_ref().map_or_else(constant, |levels| levels.wanted.clone())
    }

    /// Half of all packets wait longer, on a path of median spread.
    pub fn median(&self) -> Duration {
        Duration::from_nanos(self.wanted().at(0.5))
    }

    /// The least wait of a packet on a path of this slowness, nanoseconds.
    #[inline]
    pub(super) fn least(&self, scale: u64) -> u64 {
        (self.least * scale) >> POINT
    }

    /// How long a packet of the path waits at a time, nanoseconds. `scale` is the slowness of the
    /// path in fixed-point: a slow path has higher levels.
    #[inline]
    pub(super) fn at(&self, key: u64, scale: u64, at: u64) -> u64 {
        let least = self.least(scale);
        let Some(levels) = &self.levels else { return least };
        let most = (levels.most * scale) >> POINT;
        let level = |number| (levels.table.sample(draw(key, number)) * scale) >> POINT;
        least + drained(at, key, levels.bits, most, level)
    }
}

/// The power of two that is not below `ns`.
fn slot_bits(ns: u64) -> u32 {
    ns.max(1).next_power_of_two().trailing_zeros()
}

/// A time, shifted by the phase of a path. Without phases all paths would change at one instant.
#[inline]
fn phased(at: u64, key: u64, bits: u32) -> u64 {
    at + (key & ((1 << bits) - 1))
}

/// The highest of the level of this slot and what is left of the levels of earlier slots.
#[inline]
fn drained(at: u64, key: u64, bits: u32, most: u64, level: impl Fn(u64) -> u64) -> u64 {
    let shifted = phased(at, key, bits);
    let number = shifted >> bits;
    let mut wait = level(number);
    // Time since the end of the slot that is looked at.
    let mut passed = shifted - (number << bits);
    let mut back = 1;
    while most > passed + wait && back <= number {
        wait = wait.max(level(number - back).saturating_sub(passed));
        back += 1;
        passed += 1 << bits;
    }
    wait
}

/// The distribution `F` of levels that gives the wait the distribution `G` that is wanted.
///
/// At a time `u` after the beginning of its slot, a wait is at most `x` under two conditions. The
/// level of the slot is at most `x`, and the levels before are at most `x + u`, `x + u + slot` and
/// so on. With `H(y) = F(y) F(y + slot) F(y + 2 slot) ...`
///
/// ```text
/// G(x) = F(x) * mean of H(x + u) over u in 0..slot,     F(x) = G(x) / that mean
/// ```
///
/// The mean has only arguments above `x`, so one pass from the longest wait downward finds `F`.
fn levels(wanted: &Quantiles, least: u64, most: u64, slot: u64) -> Quantiles {
    let step = most as f64 / GRID as f64;
    let slot_steps = ((slot as f64 / step).round() as usize).max(1);
    // Beyond the grid all probabilities are 1.
    let beyond = |v: &[f64], i: usize| v.get(i).copied().unwrap_or(1.0);
    let (mut cdf, mut below) = (vec![1.0; GRID + 1], vec![1.0; GRID + 1]);
    let mut sum = slot_steps as f64;
    for i in (0..GRID).rev() {
        let given = wanted.share_below(least as f64 + step * i as f64);
        let mean = (sum / slot_steps as f64).max(f64::MIN_POSITIVE);
        cdf[i] = (given / mean).min(cdf[i + 1]);
        below[i] = cdf[i] * beyond(&below, i + slot_steps);
        sum += below[i] - beyond(&below, i + slot_steps);
    }
    Quantiles::from_fn(|q| {
        let above = cdf.partition_point(|&p| p <= q).min(GRID);
        let Some(under) = above.checked_sub(1) else { return 0.0 };
        let rise = cdf[above] - cdf[under];
        let part = if rise > 0.0 { ((q - cdf[under]) / rise).clamp(0.0, 1.0) } else { 1.0 };
        (under as f64 + part) * step
    })
}

/// [`Outages`] as a function of time.
#[derive(Clone, Debug)]
pub(super) struct OutageTimes {
    length: Quantiles,
    most: u64,
    bits: u32,
    /// The number of outages that may begin in one slot. The number is one, unless outages are
    /// long and frequent.
    lanes: u64,
    /// The probability that an outage of a lane begins in a slot, in parts of 2^32.
    begins: u64,
}

impl OutageTimes {
    pub(super) fn new(outages: &Outages) -> Self {
        let most = outages.length.at(1.0).max(1);
        let gap = nanos(outages.mean_gap).max(1);
        // At most one outage of a lane begins in a slot. Slots are so short that two would rarely
        // do, unless the longest outage is much longer than the gap.
        let bits = slot_bits((gap / 8).clamp(most.div_ceil(SLOTS_MAX), most));
        let share = (1u64 << bits) as f64 / gap as f64;
        let lanes = (share.ceil() as u64).clamp(1, LANES_MAX);
        let begins = ((share / lanes as f64).min(1.0) * 4_294_967_296.0) as u64;
        Self { length: outages.length.clone(), most, bits, lanes, begins }
    }

    /// How long a packet that comes at a time waits for the end of an outage; zero when there is
    /// none.
    #[inline]
    pub(super) fn at(&self, key: u64, at: u64) -> u64 {
        let first = self.lane(key, at);
        (1..self.lanes).fold(first, |wait, lane| wait.max(self.lane(mix(key ^ lane), at)))
    }

    #[inline]
    fn lane(&self, key: u64, at: u64) -> u64 {
        let shifted = phased(at, key, self.bits);
        let number = shifted >> self.bits;
        let mut wait = self.left(key, number, shifted);
        // Time since the end of the slot that is looked at.
        let mut passed = shifted - (number << self.bits);
        let mut back = 1;
        while self.most > passed + wait && back <= number {
            wait = wait.max(self.left(key, number - back, shifted));
            back += 1;
            passed += 1 << self.bits;
        }
        wait
    }

    /// The rest, at a time, of the outage that began in a slot.
    #[inline]
    fn left(&self, key: u64, slot: u64, shifted: u64) -> u64 {
        let word = draw(key, slot);
        if word >> 32 >= self.begins {
            return 0;
        }
        let start = (slot << self.bits) + (((word & 0xffff_ffff) << self.bits) >> 32);
        if start > shifted {
            return 0;
        }
        (start + self.length.sample(mix(word))).saturating_sub(shifted)
    }
}

/// [`HostLoad`] as a function of time.
#[derive(Clone, Debug)]
pub(super) struct LoadTimes {
    /// Upper ends of the levels' shares, of 2^32, and the waits of each level.
    levels: Vec<(u64, Waits)>,
    /// All levels have slots of one length, so that levels change where slots end.
    bits: u32,
    most: u64,
    slots_a_period: u64,
}

impl LoadTimes {
    pub(super) fn new(load: &HostLoad) -> Self {
        let burst = nanos(load.burst) as f64;
        let queues: Vec<_> = load.levels.iter().map(|&(_, busy)| queue(busy, burst)).collect();
        let most = queues.iter().map(|queue| queue.at(1.0)).max().unwrap_or(0);
        let bits = slot_bits(most.div_ceil(SLOTS_MAX));
        let total: f64 = load.levels.iter().map(|&(share, _)| share).sum();
        let mut sum = 0.0;
        let levels = load.levels.iter().zip(&queues).map(|(&(share, _), queue)| {
            sum += share / total;
            let waits = Waits::new(queue, Duration::from_nanos(1 << bits));
            ((sum * 4_294_967_296.0) as u64, waits)
        });
        let levels = levels.collect();
        let slots_a_period = (nanos(load.period) >> bits).max(LEVEL_SLOTS_MIN);
        Self { levels, bits, most, slots_a_period }
    }

    /// How long a packet waits at the card, nanoseconds. The level of the load is drawn from
    /// `host`, the waits are drawn from `key`, of which each direction of the host has its own.
    #[inline]
    pub(super) fn at(&self, host: u64, key: u64, at: u64) -> u64 {
        let number = phased(at, key, self.bits) >> self.bits;
        let (period, slot) = (number / self.slots_a_period, number % self.slots_a_period);
        if slot <= self.most >> self.bits {
            // Waits may be left from slots of the period before.
            let level = |slot| Self::level(self.table(host, slot / self.slots_a_period), key, slot);
            return drained(at, key, self.bits, self.most, level);
        }
        match self.table(host, period) {
            None => 0,
            // The highest level of this load is lower than that of the highest load.
            Some(Levels { table, most, .. }) => {
                drained(at, key, self.bits, *most, |slot| table.sample(draw(key, slot)))
            }
        }
    }

    #[inline]
    fn level(levels: Option<&Levels>, key: u64, slot: u64) -> u64 {
        levels.map_or(0, |levels| levels.table.sample(draw(key, slot)))
    }

    /// The levels of the waits in a period; `None` while nobody else uses the card.
    #[inline]
    fn table(&self, host: u64, period: u64) -> Option<&Levels> {
        let share = draw(host, period) >> 32;
        let waits = self.levels.iter().find(|(end, _)| share < *end).or(self.levels.last());
        waits.and_then(|(_, waits)| waits.levels.as_deref())
    }
}

/// Waits in the queue M/M/1 whose server is busy this share of the time. At a full load the queue
/// would be endless: more than 99 % counts as 99 %.
fn queue(busy: f64, burst_ns: f64) -> Quantiles {
    let busy = busy.clamp(0.0, 0.99);
    Quantiles::from_fn(|q| {
        let longer = (1.0 - q).max(LOAD_EDGE);
        if longer >= busy {
            return 0.0;
        }
        crate::math::ln(busy / longer) * burst_ns / (1.0 - busy)
    })
}

/// The factor `e^(sigma z)` as a table over words, in fixed-point.
pub(super) fn factors(sigma: f64) -> Option<Quantiles> {
    let value = |q: f64| ONE as f64 * exp(sigma * crate::math::normal_quantile(q));
    (sigma > 0.0).then(|| Quantiles::from_fn(value))
}
