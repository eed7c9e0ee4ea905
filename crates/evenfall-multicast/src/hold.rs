//! The root's rule for the time from sending to release.
//!
//! Jasper takes the maximum over receivers of their 95th percentile delay. With independent
//! receivers that leaves N chances in twenty to be late, so P(F) falls as N grows. The `on-time`
//! rule looks at what it is aimed at: the overall latency (OML) of sampled frames, of which it
//! takes the quantile that is wanted.

use core::time::Duration;
use std::collections::VecDeque;

use evenfall_core::Timestamp;

use crate::config::{Deadline, Rule};

/// Samples that the rule remembers at most; beyond, the oldest go. Sorting this many costs about
/// half a millisecond, once per report.
const SAMPLES_MAX: usize = 20_000;
/// Fewer samples than this say nothing about a tail: the initial hold stays.
const SAMPLES_MIN: usize = 50;
/// The recent past that can lift the hold at once, and the quantile of it that does.
const RECENT: Duration = Duration::from_millis(250);
const RECENT_QUANTILE: f64 = 0.9;

/// Sets the hold.
#[derive(Clone, Debug)]
pub(crate) struct HoldControl {
    config: Deadline,
    hold: Duration,
    samples: VecDeque<(Timestamp, u32)>,
    scratch: Vec<u32>,
}

impl HoldControl {
    pub(crate) fn new(config: Deadline) -> Self {
        Self { config, hold: config.hold_initial, samples: VecDeque::new(), scratch: Vec::new() }
    }

    pub(crate) fn hold(&self) -> Duration {
        self.hold
    }

    /// The OML of one frame became known.
    pub(crate) fn observe(&mut self, now: Timestamp, oml_ns: u32) {
        self.samples.push_back((now, oml_ns));
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }

    /// The smallest value that at least `q` of the samples since `from` do not exceed.
    fn quantile(&mut self, from: Timestamp, q: f64) -> Option<u32> {
        self.scratch.clear();
        let recent = self.samples.iter().rev().take_while(|(at, _)| *at >= from);
        self.scratch.extend(recent.map(|(_, oml)| *oml));
        if self.scratch.len() < SAMPLES_MIN {
            return None;
        }
        // One rank higher than the sample's own quantile: what is still to come has a say too.
        let rank = ((self.scratch.len() + 1) as f64 * q).ceil() as usize;
        let at = rank.clamp(1, self.scratch.len()) - 1;
        Some(*self.scratch.select_nth_unstable(at).1)
    }

    /// Sets the hold anew after a round of reports, of which the largest 95th percentile is given.
    pub(crate) fn update(&mut self, now: Timestamp, p95_ns: u32) -> Duration {
        while self.samples.front().is_some_and(|(at, _)| now.since(*at) > self.config.window) {
            self.samples.pop_front();
        }
        let wanted = match self.config.rule {
            Rule::MaxP95 => (p95_ns > 0).then_some(p95_ns),
            Rule::OnTime => {
                let steady = self.quantile(Timestamp::ZERO, self.config.target);
                let recent = self.quantile(now - RECENT, RECENT_QUANTILE);
                steady.map(|s| s.max(recent.unwrap_or(0)))
            }
        };
        if let Some(ns) = wanted {
            self.hold = Duration::from_nanos(u64::from(ns)).min(self.config.hold_max);
        }
        self.hold
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenfall_core::Prng;

    fn control(rule: Rule) -> HoldControl {
        HoldControl::new(Deadline { rule, target: 0.99, ..Deadline::default() })
    }

    #[test]
    fn on_time_reaches_its_target_on_what_it_has_not_seen() {
        let mut control = control(Rule::OnTime);
        let mut prng = Prng::new(1);
        let mut draw = move || (100_000.0 + prng.exponential(30_000.0)) as u32;
        let mut now = Timestamp::ZERO;
        let (mut late, mut total) = (0, 0);
        for round in 0..2_000 {
            now += Duration::from_millis(50);
            for _ in 0..10 {
                let oml = draw();
                if round > 200 {
                    total += 1;
                    late += u32::from(u64::from(oml) > control.hold().as_nanos() as u64);
                }
                control.observe(now, oml);
            }
            control.update(now, 0);
        }
        let share = f64::from(late) / f64::from(total);
        assert!((0.005..0.015).contains(&share), "{share}");
    }

    #[test]
    fn the_cap_bounds_what_a_straggler_costs_and_load_lifts_the_hold_at_once() {
        let mut control = control(Rule::OnTime);
        let mut now = Timestamp::ZERO;
        for ms in 0..9_000 {
            now = Timestamp::from_nanos(ms * 1_000_000);
            control.observe(now, 100_000);
        }
        assert_eq!(control.update(now, 0), Duration::from_micros(100));
        for _ in 0..300 {
            now += Duration::from_millis(1);
            control.observe(now, 500_000_000);
        }
        assert_eq!(control.update(now, 0), Deadline::default().hold_max);
    }

    #[test]
    fn jaspers_rule_follows_the_largest_95th_percentile() {
        let mut control = control(Rule::MaxP95);
        assert_eq!(control.update(Timestamp::ZERO, 0), Deadline::default().hold_initial);
        assert_eq!(control.update(Timestamp::ZERO, 130_000), Duration::from_micros(130));
    }
}
