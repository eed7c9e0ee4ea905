//! The root's rule for the time from sending to release.
//!
//! Jasper takes the maximum over receivers of their 95th percentile delay. Each receiver is then
//! late with a chance of one in twenty. With N independent receivers these chances add up, so P(F)
//! falls as N grows. The `on-time` rule takes a quantile of the overall latency (OML) of sampled
//! frames instead, and the target states which quantile.
//!
//! Three things make a plain quantile of the past a poor deadline.
//!
//! *Latency depends on load.* A frame behind ten others waits for their copies in every queue of
//! the tree. A single hold for all frames is too long for a quiet frame and too short for a frame
//! in a burst. The root knows the load before it sends: it classes a frame by the number of frames
//! that left a moment ago, and each class has its own quantile (Mondrian conformal prediction, Vovk
//! 2005).
//!
//! *Latencies are not independent.* A stall makes a run of frames late, load drifts, and the
//! quantile of the past misses its target. So the quantile itself is corrected by the frames that
//! were late (adaptive conformal inference, Gibbs and Candes 2021). Every late frame lowers the
//! share that may be late, and every punctual frame raises that share a little.
//!
//! *A stall is seen many times.* While a host pauses, every frame waits for the end of the pause,
//! and each frame waits less long than the frame before it. A pause of 20 ms lengthens forty
//! samples. A quantile of the last second that counts each of them is the pause, and the next
//! frames are held for a pause that is over. So a late frame that took less time than the late
//! frame before it does not count in the quantile. It still counts as late. Where stalls come so
//! often that more frames are late in the long run than [`Tuning::late_max`] allows, every frame
//! counts, and the hold covers the stalls.

use core::time::Duration;
use std::collections::VecDeque;

use evenfall_core::Timestamp;

use crate::config::{Deadline, Rule};

/// Samples that a class remembers: ten seconds at the default rate. The oldest samples are dropped
/// first.
const SAMPLES_MAX: usize = 20_000;
/// Classes of load, one per doubling. The last class begins at 1,024 frames within
/// [`Tuning::load_memory`].
const CLASSES: usize = 11;

/// The constants of the rule. A study removes, halves and doubles each of them
/// (`evenfall sim study hold`); nothing else sets them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Messages beyond the wanted quantile from which the quantile is trusted. The largest values
    /// of a small sample say little.
    pub tail_min: f64,
    /// The factor of the first hold over the measured quantile. The factor falls to 1 while the
    /// messages beyond the quantile grow to `tail_min`.
    pub guard: f64,
    /// The hold never exceeds 1.3 times the latency that 1 % of messages exceed (by default). The
    /// tail beyond that latency is stalls of the host, and waiting for the longest stall costs all
    /// messages more than it saves. The goals are 99 % of messages on time and a median held
    /// latency of at most 1.5 times the 99th percentile. Of eight runs, five reached both goals
    /// with a factor of 1.4, and all eight with 1.2 but with fewer messages on time; 1.3 lies
    /// between the two.
    pub ceiling: f64,
    /// The share of messages that exceed the latency of the ceiling, as a multiple of the share
    /// that may be late. When .6 % of messages may be late, this share is 1 %.
    pub ceiling_share: f64,
    /// Messages of a class that are remembered at any age. The burst of a minute ago still tells
    /// how long the next burst takes. The ceiling begins with half as many messages again: begun
    /// with the kept messages alone, it made half a per cent of a feed late.
    pub messages_kept: u64,
    /// The correction for a late message, as a part of the allowed share. After twenty late
    /// messages in a row the hold covers nearly all observed latencies. After four thousand
    /// punctual messages the hold is as before (at a target of .994).
    pub step: f64,
    /// The least corrected share, in parts of the allowed share. A share of zero would ask for the
    /// longest observed latency, which does not predict the next message. The bound also lets the
    /// hold fall soon after a long stall: without it, recorded runs had two messages in a thousand
    /// more in time, and a median held latency a fifth longer.
    pub share_min: f64,
    /// The largest corrected share, in parts of the allowed share.
    pub share_max: f64,
    /// The share of late messages beyond which late frames of one stall count one by one, in parts
    /// of the allowed share. With 1.5, real runs on a machine that its host pauses many times a
    /// second had .002 fewer of their messages in time than without the rule for stalls.
    pub late_max: f64,
    /// How long a frame counts as load for the frames behind it: about the time in which a burst
    /// drains.
    pub load_memory: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            tail_min: 20.0,
            guard: 2.5,
            ceiling: 1.3,
            ceiling_share: 5.0 / 3.0,
            messages_kept: 1_000,
            step: 0.05,
            share_min: 0.1,
            share_max: 1.5,
            late_max: 1.25,
            load_memory: Duration::from_millis(1),
        }
    }
}

/// The number of a class of load.
pub type LoadClass = u8;

/// The frames that left a moment ago. A younger frame counts more.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    frames: f64,
    at: Timestamp,
}

impl Load {
    /// Counts a frame that leaves. Returns the class of load of the frame.
    fn add(&mut self, now: Timestamp, memory: Duration) -> LoadClass {
        let memory = memory.as_nanos() as f64;
        // The decay is hyperbolic and not exponential. Without a transcendental function, the
        // result is the same on every machine.
        let left = memory / (memory + now.since(self.at).as_nanos() as f64);
        *self = Self { frames: self.frames * left + 1.0, at: now };
        ((self.frames as u64).max(1).ilog2() as usize).min(CLASSES - 1) as LoadClass
    }
}

/// The overall latency of a frame, and its number of messages.
#[derive(Clone, Copy, Debug)]
struct Observed {
    at: Timestamp,
    oml_ns: u32,
    messages: u16,
}

/// Latencies of one class of load in a sliding window. The buckets are so fine that a quantile is
/// at most .8 % too long. Sliding the window costs as much as filling it.
#[derive(Clone, Debug, Default)]
struct Sliding {
    observed: VecDeque<Observed>,
    counts: Vec<u32>,
    messages: u64,
}

/// Buckets per doubling: a bucket is at most 0.8 % wide.
const PER_OCTAVE: u32 = 128;
/// Doublings from [`FLOOR_NS`] to the 4.29 s that 32 bits of nanoseconds can state.
const OCTAVES: u32 = 22;
/// Latencies below 1.02 us fall into the first bucket. No hold is that short.
const FLOOR_NS: u32 = 1 << 10;

fn bucket(ns: u32) -> usize {
    let ns = ns.max(FLOOR_NS);
    let octave = ns.ilog2() - FLOOR_NS.ilog2();
    let within = (u64::from(ns - (FLOOR_NS << octave)) * u64::from(PER_OCTAVE)) >> ns.ilog2();
    (octave * PER_OCTAVE + within as u32) as usize
}

/// The longest latency that falls in a bucket.
fn upper_edge_ns(bucket: usize) -> u32 {
    let (octave, within) = (bucket as u32 / PER_OCTAVE, bucket as u32 % PER_OCTAVE);
    let low = u64::from(FLOOR_NS) << octave;
    u32::try_from(low + low * u64::from(within + 1) / u64::from(PER_OCTAVE)).unwrap_or(u32::MAX)
}

impl Sliding {
    fn push(&mut self, new: Observed) {
        self.counts.resize((PER_OCTAVE * OCTAVES) as usize, 0);
        self.counts[bucket(new.oml_ns)] += u32::from(new.messages);
        self.messages += u64::from(new.messages);
        self.observed.push_back(new);
        if self.observed.len() > SAMPLES_MAX {
            self.pop();
        }
    }

    fn pop(&mut self) {
        let Some(old) = self.observed.pop_front() else { return };
        self.counts[bucket(old.oml_ns)] -= u32::from(old.messages);
        self.messages -= u64::from(old.messages);
    }

    /// Forgets samples older than `span`, but keeps the last `messages_kept` messages.
    fn slide(&mut self, now: Timestamp, span: Duration, messages_kept: u64) {
        while self.observed.front().is_some_and(|old| {
            now.since(old.at) > span && self.messages - u64::from(old.messages) >= messages_kept
        }) {
            self.pop();
        }
    }

    /// The smallest latency that at least `q` of the messages do not exceed; `None` without
    /// messages.
    fn quantile(&self, q: f64) -> Option<u32> {
        // The rank is one higher than that of the sample's own quantile, because the next message
        // counts too.
        let rank = ((self.messages + 1) as f64 * q).ceil() as u64;
        let rank = rank.clamp(1, self.messages.max(1));
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += u64::from(*count);
            seen >= rank
        });
        at.map(upper_edge_ns)
    }
}

/// The state of the rule: takes observed latencies, and gives the hold of the next frame.
#[derive(Clone, Debug)]
pub struct HoldControl {
    config: Deadline,
    tuning: Tuning,
    load: Load,
    /// The hold of every class of load.
    holds: [Duration; CLASSES],
    /// The class of the last frame.
    class: LoadClass,
    /// The observed latencies of every class.
    observed: [Sliding; CLASSES],
    /// By class, the share of messages that the next hold lets be late, in parts of the allowed
    /// share.
    share: [f64; CLASSES],
    /// The overall latency of the last sample, if the sample was late.
    late_ns: Option<u32>,
    /// The share of late messages among the last [`SAMPLES_MAX`] or so.
    late_share: f64,
}

impl HoldControl {
    /// A rule that has seen nothing.
    pub fn new(config: Deadline) -> Self {
        Self::tuned(config, Tuning::default())
    }

    /// A rule with other constants, for studies.
    pub fn tuned(config: Deadline, tuning: Tuning) -> Self {
        Self {
            config,
            tuning,
            load: Load::default(),
            holds: [config.hold_initial; CLASSES],
            class: 0,
            observed: Default::default(),
            share: [1.0; CLASSES],
            late_ns: None,
            late_share: 1.0 - config.target,
        }
    }

    /// The share of messages that may be late.
    fn allowed(&self) -> f64 {
        1.0 - self.config.target
    }

    /// The hold of the last frame.
    pub fn hold(&self) -> Duration {
        self.holds[usize::from(self.class)]
    }

    /// The hold of a frame that leaves now, and the class of load of the frame.
    pub fn next(&mut self, now: Timestamp) -> (Duration, LoadClass) {
        self.class = self.load.add(now, self.tuning.load_memory);
        (self.hold(), self.class)
    }

    /// Corrects the share of a class by `messages` that were late or punctual. Their overall
    /// latency may be unknown.
    pub fn correct(&mut self, class: LoadClass, messages: u16, late: bool) {
        let allowed = self.allowed();
        let wrong = allowed - f64::from(u8::from(late));
        let share = &mut self.share[usize::from(class)];
        let correction = self.tuning.step * f64::from(messages.max(1)) * wrong;
        *share = (*share + correction).clamp(self.tuning.share_min, self.tuning.share_max);
        let weight = f64::from(messages.max(1)) / SAMPLES_MAX as f64;
        self.late_share += (f64::from(u8::from(late)) - self.late_share) * weight.min(1.0);
    }

    /// Takes the overall latency of a frame with this many messages, and whether the frame was late
    /// (if it had a deadline).
    pub fn observe(
        &mut self,
        now: Timestamp,
        class: LoadClass,
        oml_ns: u32,
        messages: u16,
        late: Option<bool>,
    ) {
        let messages = messages.max(1);
        if let Some(late) = late {
            self.correct(class, messages, late);
        }
        let late_ns = (late == Some(true)).then_some(oml_ns);
        let before = core::mem::replace(&mut self.late_ns, late_ns);
        let is_same_stall = late_ns.zip(before).is_some_and(|(this, before)| this < before);
        if is_same_stall && self.late_share <= self.allowed() * self.tuning.late_max {
            return;
        }
        self.observed[usize::from(class)].push(Observed { at: now, oml_ns, messages });
    }

    /// The tree has changed: samples older than `keep` are forgotten, and so are all corrections
    /// for late messages.
    pub fn forget(&mut self, now: Timestamp, keep: Duration) {
        self.observed.iter_mut().for_each(|class| class.slide(now, keep, 0));
        self.share.iter_mut().for_each(|share| *share = share.max(1.0));
        (self.late_ns, self.late_share) = (None, self.allowed());
    }

    /// Sets the hold after a round of reports. `p95_ns` is the largest 95th percentile in the
    /// reports.
    pub fn update(&mut self, now: Timestamp, p95_ns: u32) {
        for class in &mut self.observed {
            class.slide(now, self.config.window, self.tuning.messages_kept);
        }
        match self.config.rule {
            Rule::MaxP95 if p95_ns > 0 => self.holds = [self.capped(p95_ns.into()); CLASSES],
            Rule::MaxP95 => {}
            Rule::OnTime => self.set_by_class(),
        }
    }

    fn capped(&self, ns: f64) -> Duration {
        Duration::from_nanos(ns as u64).min(self.config.hold_max)
    }

    fn set_by_class(&mut self) {
        let tuning = self.tuning;
        let allowed = self.allowed();
        // For each class: the number of messages, and the least hold for classes with more load.
        let mut lent = [(0, 0.0); CLASSES];
        for class in 0..CLASSES {
            // A class without messages borrows from the nearest class with less load, and else
            // from the nearest class with more.
            let near = (0..=class).rev().chain(class + 1..CLASSES);
            let Some(lender) = near.map(|c| &self.observed[c]).find(|c| c.messages > 0) else {
                return;
            };
            let exceeded_by =
                |share: f64| lender.quantile(1.0 - share * allowed).map_or(0.0, f64::from);
            // The wanted quantile lies beyond the few messages, so the hold gets some room above
            // them.
            let messages = self.observed[class].messages;
            let trust = (messages as f64 * allowed / tuning.tail_min).min(1.0);
            let guard = tuning.guard + (1.0 - tuning.guard) * trust;
            let mut own = exceeded_by(self.share[class]) * guard;
            // A class that is seen seldom has only the messages that are kept at any age: too few
            // for the latency on which the ceiling rests.
            if messages >= tuning.messages_kept * 3 / 2 {
                own = own.min(exceeded_by(tuning.ceiling_share) * tuning.ceiling);
            }
            // More load is never quicker. A class that looks quicker than a class with less load
            // and with more messages was seen too seldom, and takes the longer hold. Classes with
            // fewer messages do not count: the first messages of a steady feed are few and slow,
            // and they are kept at any age.
            let seen_more = lent[..class].iter().filter(|(seen, _)| *seen > messages);
            let below = seen_more.fold(0.0, |most: f64, (_, quantile)| most.max(*quantile));
            self.holds[class] = self.capped(own.max(below));
            if messages > 0 {
                // Only the measured quantile is lent. The correction for late messages belongs to
                // the class itself.
                lent[class] = (messages, exceeded_by(1.0).min(own));
            }
        }
    }
}

#[cfg(test)]
mod tests;
