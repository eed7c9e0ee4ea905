//! The rounds of reports at the root: frames are judged, the hold is set, stragglers are named.

use evenfall_core::{ClockError, Timestamp};

use super::{Root, RootEvent};
use crate::control::{DepartureReason, ReleaseSpread, Report, SampledDelay};
use crate::merge::Wait;
use crate::replace::{Known, ReplacementStep};

impl Root {
    /// Takes the round of reports that ends now, and sets the hold by it.
    pub(super) fn digest(&mut self, now: Timestamp) {
        let report = self.merger.take(now, &Wait::new(&self.config));
        report.samples.iter().for_each(|sample| self.judge(now, sample));
        report.spreads.iter().for_each(|spread| self.time(now, spread));
        self.directory.hear(now, &report.members);
        self.hold.update(now, report.p95_ns);
        self.reconsider(now, &report);
        if !report.worst.is_empty() {
            self.status.worst = report.worst;
        }
        for child in self.merger.silent(now, self.config.membership.silence) {
            self.members.suspect(now, self.me, child, DepartureReason::Silent, &self.config);
        }
        self.check_finished();
    }

    /// Judges whether a sampled frame was in time at every receiver. A frame that is missing at a
    /// receiver was not in time. A frame that looked in time may later turn out to be late.
    ///
    /// A frame that came by repair long after it was judged, or that never came, does not lengthen
    /// the hold, since no hold helps such a frame. It only counts as late.
    fn judge(&mut self, now: Timestamp, sample: &SampledDelay) {
        let Some(frame) = self.sampled_frames.find_frame(sample.sequence) else { return };
        if sample.receivers == 0 && sample.missing == 0 {
            // No receiver reported, so the outcome is unknown.
            return;
        }
        let late = frame.hold_ns.map(|hold| sample.missing > 0 || sample.latest_ns > hold);
        let (load, messages) = (frame.load, frame.messages);
        match frame.was_late {
            None => {
                frame.was_late = Some(late == Some(true));
                self.status.sampled += u64::from(late.is_some());
                self.status.sampled_late += u64::from(late == Some(true));
                self.fairness.note_arrival(now, messages, sample.latest_ns, late);
                if sample.receivers > 0 {
                    self.watch.observe(now, sample.sequence, sample.latest_ns);
                    self.hold.observe(now, load, sample.latest_ns, messages, late);
                } else if let Some(late) = late {
                    self.hold.correct(load, messages, late);
                }
            }
            Some(false) if late == Some(true) => {
                frame.was_late = Some(true);
                self.status.sampled_late += 1;
                self.fairness.note_late(now, messages);
                self.hold.correct(load, messages, true);
            }
            Some(_) => {}
        }
    }

    /// Takes the releases of a frame.
    fn time(&mut self, now: Timestamp, spread: &ReleaseSpread) {
        let Some(frame) = self.sampled_frames.find_frame(spread.sequence) else { return };
        self.fairness.note_releases(now, frame.hold_ns, spread);
    }

    /// Decides by the reports whether a straggler is to be replaced.
    fn reconsider(&mut self, now: Timestamp, report: &Report) {
        let rules = self.config.replace;
        let Some(tree) = self.members.tree().filter(|_| rules.enabled) else { return };
        let clock_error_ns = match self.out.clock.reading().error {
            // An edge has two clocks, so the error counts twice.
            ClockError::Within(bound) => 2 * evenfall_core::time::nanos(bound),
            _ => 0,
        };
        let step = self.watch.round(
            now,
            &Known {
                worst: &report.worst,
                delays: &report.delays,
                tree,
                rules: &rules,
                interval: self.config.membership.report_interval,
                usable: &|spare| self.members.is_usable(now, spare, rules.cooldown),
                settled: self.members.is_settled(),
                clock_error_ns,
            },
        );
        let Some(step) = step else { return };
        self.members.replace(now, &step, &self.config);
        if step.step == ReplacementStep::Made {
            // Latencies with the straggler say nothing about the tree without it. In the second
            // half of the trial its successor already fed.
            self.hold.forget(now, rules.trial / 2);
        }
        self.events.push_back(RootEvent::Replacement(step));
    }
}
