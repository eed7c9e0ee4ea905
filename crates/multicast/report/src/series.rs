//! Fairness over time, in as many steps as a picture can show.

use super::FairnessRow;
use super::results::TimePoint;
use super::sample::Fine;
use super::signed;

/// Width of a step at the start of a run.
const STEP_NS: u64 = 100_000_000;
/// Steps that are kept. When a run is longer, neighbours are merged and each step becomes twice as
/// wide: a run of 100 s has steps of 100 ms, and a run of a day has steps of 102 s.
const STEPS_MAX: usize = 1_000;
/// Binary digits kept of the overall latency within a step, an error of 3 %.
const STEP_DIGITS: u32 = 4;

#[derive(Clone, Debug)]
struct Step {
    messages: u64,
    held: u64,
    on_time: u64,
    missing: u64,
    offset_sum_ns: i64,
    oml: Fine,
}

impl Step {
    fn new() -> Self {
        let oml = Fine::new(STEP_DIGITS);
        Self { messages: 0, held: 0, on_time: 0, missing: 0, offset_sum_ns: 0, oml }
    }

    fn merge(&mut self, other: &Self) {
        self.messages += other.messages;
        self.held += other.held;
        self.on_time += other.on_time;
        self.missing += other.missing;
        self.offset_sum_ns = self.offset_sum_ns.saturating_add(other.offset_sum_ns);
        self.oml.merge(&other.oml);
    }
}

/// Steps by scheduled time, from the first message that closed.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    origin_ns: Option<u64>,
    width_ns: u64,
    steps: Vec<Step>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { origin_ns: None, width_ns: STEP_NS, steps: Vec::new() }
    }
}

impl Timeline {
    /// Counts a closed message. A message scheduled before the origin counts in the first step.
    pub(super) fn record(&mut self, row: &FairnessRow, expected: u32) {
        let origin = *self.origin_ns.get_or_insert(row.scheduled_ns);
        let since = row.scheduled_ns.saturating_sub(origin);
        while since / self.width_ns >= STEPS_MAX as u64 {
            self.widen();
        }
        let at = (since / self.width_ns) as usize;
        if self.steps.len() <= at {
            self.steps.resize_with(at + 1, Step::new);
        }
        let step = &mut self.steps[at];
        step.messages += 1;
        step.missing += u64::from(expected.saturating_sub(row.receivers));
        if row.receivers > 0 {
            step.oml.record(signed(row.last_arrival_ns, row.scheduled_ns));
        }
        if let Some(deadline_ns) = row.deadline_ns.filter(|_| expected > 0) {
            step.held += 1;
            step.on_time += u64::from(row.late == 0);
            let offset_ns = signed(deadline_ns, row.sent_ns);
            step.offset_sum_ns = step.offset_sum_ns.saturating_add(offset_ns);
        }
    }

    fn widen(&mut self) {
        self.width_ns *= 2;
        let pairs = self.steps.chunks(2).map(|pair| {
            let mut merged = pair[0].clone();
            pair.iter().skip(1).for_each(|step| merged.merge(step));
            merged
        });
        self.steps = pairs.collect();
    }

    pub(super) fn origin_ns(&self) -> u64 {
        self.origin_ns.unwrap_or(0)
    }

    /// The steps that have a message.
    pub(super) fn points(&self) -> Vec<TimePoint> {
        let steps = self.steps.iter().enumerate().filter(|(_, step)| step.messages > 0);
        let points = steps.map(|(at, step)| {
            let us = |ns: i64| ns as f64 / 1e3;
            let oml = step.oml.quantiles(&[0.5, 0.99]).unwrap_or_else(|| vec![0, 0]);
            let held = step.held > 0;
            TimePoint {
                at_s: (at as u64 * self.width_ns) as f64 / 1e9,
                messages: step.messages,
                hold_us: held.then(|| us(step.offset_sum_ns) / step.held as f64),
                p_f: held.then(|| step.on_time as f64 / step.held as f64),
                oml_p50_us: us(oml[0]),
                oml_p99_us: us(oml[1]),
                missing: step.missing,
            }
        });
        points.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_run_keeps_its_totals_in_bounded_steps() {
        let mut timeline = Timeline::default();
        for second in 0..10_000u64 {
            let scheduled_ns = 7 + second * 1_000_000_000;
            let row = FairnessRow {
                scheduled_ns,
                sent_ns: scheduled_ns,
                deadline_ns: Some(scheduled_ns + 5_000),
                last_arrival_ns: scheduled_ns + 1_000,
                receivers: 2,
                late: u32::from(second % 4 == 0),
                ..FairnessRow::default()
            };
            timeline.record(&row, 2);
        }
        let points = timeline.points();
        assert!(points.len() <= STEPS_MAX);
        assert_eq!(points.iter().map(|p| p.messages).sum::<u64>(), 10_000);
        assert_eq!(points[1].hold_us, Some(5.0));
        assert!((points[1].p_f.expect("held") - 0.75).abs() < 0.05);
        assert!((points[1].oml_p50_us - 1.0).abs() < 0.05);
    }
}
