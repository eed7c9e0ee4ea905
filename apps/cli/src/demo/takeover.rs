//! What a takeover cost: how long no message was sent, and how fair the run was before and after.

use std::fmt;

use evenfall_multicast_report::FairnessRow;
use evenfall_multicast_service::report::RunInfo;
use serde::Serialize;
use serde_json::Value;

/// The spans before and after a takeover that are judged apart.
const SPAN_NS: u64 = 1_000_000_000;
/// Time after a takeover in which the successor's first message is looked for. A run whose standby
/// is still silent then has failed anyway.
const LATEST_NS: u64 = 10 * SPAN_NS;

/// The time that a frame waited at the root until the roots agreed on it, over the frames of the
/// root that sent the feed at the end. Each frame is timed at that root, from the moment in which
/// the frame is made until the vote is known. The latencies of the report have this time in them.
#[derive(Clone, Debug, Serialize)]
pub struct Voting {
    p50_us: f64,
    p99_us: f64,
}

impl Voting {
    /// Reads the times from the summary of the root that sent the feed at the end.
    pub fn of(summary: &Value) -> Option<Self> {
        let us = |place: usize| Some(summary["trees"][0]["voters_ns"][place].as_f64()? / 1e3);
        Some(Self { p50_us: us(0)?, p99_us: us(1)? })
    }
}

impl fmt::Display for Voting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p50_us, p99_us } = self;
        write!(
            f,
            "voting adds {p50_us:.0} us to each frame (median; p99 {p99_us:.0} us): from the \
             making of the frame until the root knew that the roots agree on it"
        )
    }
}

/// A message near a takeover: when it was sent, and whether it was on time at every receiver.
type Sent = (u64, Option<bool>);

/// The takeovers of a run, and the messages near them.
pub struct Takeovers {
    /// When a root took over, and what it told.
    all: Vec<(u64, String)>,
    near: Vec<Sent>,
}

/// One takeover.
#[derive(Clone, Debug, Serialize)]
pub struct Takeover {
    /// When the successor led, on the clock of the run.
    at_ns: u64,
    /// Which root took over, with which message.
    text: String,
    /// Time from the last message of the root before until the first message of the successor.
    silent_ms: f64,
    /// P(F) of the messages of the last second before the silence; `None` without held messages.
    p_f_before: Option<f64>,
    /// P(F) of the messages of the first second after the silence.
    p_f_after: Option<f64>,
    /// P(F) of the messages of the second that follows.
    p_f_later: Option<f64>,
}

impl Takeovers {
    /// The takeovers that the roots noted.
    pub fn of(info: &RunInfo) -> Self {
        let events = info.events.iter().filter(|event| event.kind == "lead");
        let all = events.map(|event| (event.at_ns, event.text.clone())).collect();
        Self { all, near: Vec::new() }
    }

    /// Takes a message of the run.
    pub fn take(&mut self, row: &FairnessRow) {
        let is_near = |(at_ns, _): &(u64, String)| {
            row.sent_ns + LATEST_NS >= *at_ns && row.sent_ns <= at_ns + LATEST_NS
        };
        if self.all.iter().any(is_near) {
            self.near.push((row.sent_ns, row.deadline_ns.map(|_| row.late == 0)));
        }
    }

    /// What each takeover cost.
    pub fn results(&self) -> Vec<Takeover> {
        self.all.iter().map(|(at_ns, text)| self.result(*at_ns, text)).collect()
    }

    fn result(&self, at_ns: u64, text: &str) -> Takeover {
        let times = || self.near.iter().map(|(sent_ns, _)| *sent_ns);
        let last = times().filter(|sent_ns| *sent_ns < at_ns).max().unwrap_or(at_ns);
        let first = times().filter(|sent_ns| *sent_ns >= at_ns).min().unwrap_or(at_ns);
        Takeover {
            at_ns,
            text: text.to_owned(),
            silent_ms: (first - last) as f64 / 1e6,
            p_f_before: self.p_f(last.saturating_sub(SPAN_NS) + 1, last + 1),
            p_f_after: self.p_f(first, first + SPAN_NS),
            p_f_later: self.p_f(first + SPAN_NS, first + 2 * SPAN_NS),
        }
    }

    /// P(F) of the messages that were sent from one time until another.
    fn p_f(&self, from_ns: u64, until_ns: u64) -> Option<f64> {
        let within = self.near.iter().filter(|(at_ns, _)| (from_ns..until_ns).contains(at_ns));
        let held: Vec<bool> = within.filter_map(|(_, is_on_time)| *is_on_time).collect();
        let on_time = held.iter().filter(|is_on_time| **is_on_time).count();
        (!held.is_empty()).then(|| on_time as f64 / held.len() as f64)
    }
}

impl fmt::Display for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: Option<f64>| match share {
            Some(share) => format!("{:.1} %", (share * 1_000.0).floor() / 10.0),
            None => "unknown".to_owned(),
        };
        write!(
            f,
            "{}: no message for {:.0} ms; P(F) {} in the second before, {} in the second after, {} \
             in the next",
            self.text,
            self.silent_ms,
            percent(self.p_f_before),
            percent(self.p_f_after),
            percent(self.p_f_later)
        )
    }
}

#[cfg(test)]
mod tests {
    use evenfall_multicast_service::report::RunEvent;

    use super::*;

    #[test]
    fn a_takeover_tells_its_silence_and_how_fair_each_second_was() {
        let lead = |at_ns| RunEvent {
            at_ns,
            kind: "lead".into(),
            node: None,
            text: "standby-1 leads".into(),
        };
        let info = RunInfo { events: vec![lead(20_300_000_000)], ..RunInfo::default() };
        let mut takeovers = Takeovers::of(&info);
        // A message each 100 ms, but none from 20.1 s to 20.4 s; the messages of the second after
        // that are late, and so are those of the time that is far away.
        for tenth in 0..400_u64 {
            let late = u32::from(tenth < 50 || (205..215).contains(&tenth));
            let (sent_ns, deadline_ns) = (tenth * 100_000_000, Some(1));
            if !(202..205).contains(&tenth) {
                takeovers.take(&FairnessRow {
                    sent_ns,
                    deadline_ns,
                    late,
                    ..FairnessRow::default()
                });
            }
        }
        let all = takeovers.results();
        let [one] = &all[..] else { panic!("{all:?}") };
        assert_eq!(one.silent_ms, 400.0);
        assert_eq!(
            (one.p_f_before, one.p_f_after, one.p_f_later),
            (Some(1.0), Some(0.0), Some(1.0))
        );
        assert!(one.to_string().contains("no message for 400 ms; P(F) 100.0 %"), "{one}");
    }
}
