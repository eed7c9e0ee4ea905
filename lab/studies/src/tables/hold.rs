//! Which constants of the hold matter: the rule for the hold, run again over recorded latencies
//! with each constant removed, halved and doubled.
//!
//! The time that a frame takes to its slowest receiver does not depend on the hold. So the
//! simulator runs once for each cloud and seed, and the rule (`HoldControl` of the multicast) is
//! then driven over the recorded frames, as the root drives it: reports of sampled frames come a
//! moment later, and a deadline never lies before the one of the frame ahead.

use core::time::Duration;
use std::sync::Arc;

use evenfall_campaigns::model::Model;
use evenfall_campaigns::multicast::FrameCourse;
use evenfall_campaigns::seeds::mean_and_half_width;
use evenfall_core::{Hedging, Timestamp, nearest_rank};
use evenfall_multicast_machine::Mode;
use evenfall_multicast_machine::config::Deadline;
use evenfall_multicast_machine::hold::{HoldControl, Tuning};

use super::Table;
use super::overlay::Effort;

/// The root looks at reports this often.
const ROUND: Duration = Duration::from_millis(50);
/// From the arrival of a frame at its slowest receiver until the root has the report: half a round
/// at each of three levels.
const REPORTED_AFTER: Duration = Duration::from_millis(75);
/// Frames of the first second are learned from and not judged.
const LEARNING: Duration = Duration::from_secs(1);

/// Frames of runs that differ by their seeds alone.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The cloud, the number of receivers and the pace.
    pub name: String,
    /// The frames of each run.
    pub runs: Vec<Vec<FrameCourse>>,
}

/// What the rule came to over a recorded run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JudgedHold {
    /// Share of messages that reached every receiver before their deadline.
    pub p_f: f64,
    /// The median of the held latency over the 99th percentile of the un-held latency.
    pub ratio: f64,
}

/// Records the un-held latencies on a model, at a steady pace or at a feed's own times.
pub fn record(
    effort: &Effort,
    receivers: u32,
    times: Option<Arc<[Duration]>>,
    progress: &mut dyn FnMut(&str),
) -> Trace {
    let mut params = effort.params(receivers, Mode::Release, Hedging(2));
    let pace = if times.is_some() { "a feed" } else { "steady" };
    params.times = times;
    let name = format!("{}, {receivers}, {pace}", effort.model.name);
    let runs = effort.each(&params, progress, &name, |run| run.frames.clone());
    Trace { name, runs }
}

/// Drives the rule over the frames of a run.
pub fn replay(frames: &[FrameCourse], config: Deadline, tuning: Tuning) -> JudgedHold {
    let mut control = HoldControl::tuned(config, tuning);
    let origin = Timestamp::from_nanos(1_000_000_000);
    let every = Duration::from_secs(1) / config.samples_per_second;
    let mut round = Duration::ZERO;
    let mut next_sample = Duration::ZERO;
    let mut deadline = Duration::ZERO;
    // Sampled frames whose reports are under way: when they left, their class, and whether late.
    let mut reports = std::collections::VecDeque::new();
    let (mut held, mut un_held) = (Vec::new(), Vec::new());
    let (mut messages, mut in_time) = (0_u64, 0_u64);
    for frame in frames {
        if frame.at >= round + ROUND {
            round =
                ROUND * u32::try_from(frame.at.as_nanos() / ROUND.as_nanos()).unwrap_or(u32::MAX);
            let due = |report: &(FrameCourse, u8, bool)| {
                report.0.at + report.0.took + REPORTED_AFTER <= round
            };
            while reports.front().is_some_and(due) {
                let Some((frame, class, late)) = reports.pop_front() else { break };
                let oml_ns = u32::try_from(frame.took.as_nanos()).unwrap_or(u32::MAX);
                control.observe(origin + round, class, oml_ns, frame.messages, Some(late));
            }
            control.update(origin + round, 0);
        }
        let (hold, class) = control.next(origin + frame.at);
        deadline = deadline.max(frame.at + hold);
        let hold = deadline - frame.at;
        let late = frame.took > hold;
        if frame.at >= next_sample {
            next_sample = frame.at + every;
            reports.push_back((*frame, class, late));
        }
        if frame.at >= LEARNING {
            messages += u64::from(frame.messages);
            in_time += if late { 0 } else { u64::from(frame.messages) };
            let each = usize::from(frame.messages);
            held.extend(core::iter::repeat_n(hold.max(frame.took), each));
            un_held.extend(core::iter::repeat_n(frame.took, each));
        }
    }
    held.sort_unstable();
    un_held.sort_unstable();
    let at = |sorted: &[Duration], q| nearest_rank(sorted, q).map_or(0.0, |d| d.as_secs_f64());
    JudgedHold {
        p_f: in_time as f64 / messages.max(1) as f64,
        ratio: at(&held, 0.5) / at(&un_held, 0.99),
    }
}

/// A constant of the rule, and what the study does with it.
type Change = (&'static str, fn(&mut Tuning));

/// Every constant removed, halved and doubled.
const CHANGES: [Change; 29] = [
    ("as it is", |_| {}),
    ("guard removed", |t| t.guard = 1.0),
    ("guard halved", |t| t.guard /= 2.0),
    ("guard doubled", |t| t.guard *= 2.0),
    ("tail_min halved", |t| t.tail_min /= 2.0),
    ("tail_min doubled", |t| t.tail_min *= 2.0),
    ("ceiling removed", |t| t.ceiling = f64::INFINITY),
    ("ceiling halved above 1", |t| t.ceiling = 1.0 + (t.ceiling - 1.0) / 2.0),
    ("ceiling doubled above 1", |t| t.ceiling = 1.0 + (t.ceiling - 1.0) * 2.0),
    ("ceiling_share removed", |t| t.ceiling_share = 1.0),
    ("ceiling_share doubled", |t| t.ceiling_share *= 2.0),
    ("messages_kept removed", |t| t.messages_kept = 0),
    ("messages_kept halved", |t| t.messages_kept /= 2),
    ("messages_kept doubled", |t| t.messages_kept *= 2),
    ("step removed", |t| t.step = 0.0),
    ("step halved", |t| t.step /= 2.0),
    ("step doubled", |t| t.step *= 2.0),
    ("share_min removed", |t| t.share_min = f64::NEG_INFINITY),
    ("share_min halved", |t| t.share_min /= 2.0),
    ("share_min doubled", |t| t.share_min *= 2.0),
    ("share_max removed", |t| t.share_max = f64::INFINITY),
    ("share_max halved", |t| t.share_max = 1.0 + (t.share_max - 1.0) / 2.0),
    ("share_max doubled", |t| t.share_max = 1.0 + (t.share_max - 1.0) * 2.0),
    ("late_max removed", |t| t.late_max = f64::INFINITY),
    ("late_max halved above 1", |t| t.late_max = 1.0 + (t.late_max - 1.0) / 2.0),
    ("late_max doubled above 1", |t| t.late_max = 1.0 + (t.late_max - 1.0) * 2.0),
    ("load_memory removed", |t| t.load_memory = Duration::ZERO),
    ("load_memory halved", |t| t.load_memory /= 2),
    ("load_memory doubled", |t| t.load_memory *= 2),
];

/// P(F) and the price of the hold by constant and trace.
pub fn table(traces: &[Trace], config: Deadline, progress: &mut dyn FnMut(&str)) -> Table {
    let heads = traces.iter().flat_map(|trace| {
        let name = &trace.name;
        [format!("{name}: P(F)"), "+-".into(), "hold".into(), "+-".into()]
    });
    let heads: Vec<String> = core::iter::once("constant".to_owned()).chain(heads).collect();
    let columns: Vec<&str> = heads.iter().map(String::as_str).collect();
    let seeds = traces.iter().map(|trace| trace.runs.len()).min().unwrap_or(0);
    let method = format!(
        "the rule on-time at the target {} over recorded frames, {seeds} runs or more of each \
         kind, +- is 95 % by Student's t; hold: median held over un-held p99",
        config.target
    );
    let mut table = Table::new("Constants of the hold", method, &columns);
    for (name, change) in CHANGES {
        progress(name);
        let mut tuning = Tuning::default();
        change(&mut tuning);
        let values = traces.iter().flat_map(|trace| {
            let judged: Vec<JudgedHold> =
                trace.runs.iter().map(|frames| replay(frames, config, tuning)).collect();
            let p_f: Vec<f64> = judged.iter().map(|run| run.p_f).collect();
            let ratio: Vec<f64> = judged.iter().map(|run| run.ratio).collect();
            let ((p_f, p_f_half), (ratio, ratio_half)) =
                (mean_and_half_width(&p_f), mean_and_half_width(&ratio));
            [p_f, p_f_half, ratio, ratio_half]
        });
        table.row(name.into(), values.collect::<Vec<_>>());
    }
    table
}

/// The traces of the study: the built-in models at a steady pace, and a feed if there is one.
pub fn traces(
    effort: &Effort,
    feed: Option<&Arc<[Duration]>>,
    progress: &mut dyn FnMut(&str),
) -> Vec<Trace> {
    // Three seconds, of which the last two are judged.
    let effort = Effort { messages: 15_000, warm_up: 50, ..effort.clone() };
    let mut traces = Vec::new();
    for (model, receivers) in [("aws", 100), ("aws", 1_000), ("gcp", 100), ("quiet", 100)] {
        let Ok(model) = Model::named(model) else { continue };
        let effort = Effort { model, ..effort.clone() };
        traces.push(record(&effort, receivers, None, progress));
    }
    if let Some(times) = feed {
        traces.push(record(&effort, 100, Some(times.clone()), progress));
    }
    traces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_over_recorded_frames_agrees_with_the_simulated_root() {
        let model = Model::named("aws").expect("built in");
        let effort = Effort { rate: 2_000.0, messages: 8_000, seeds: 1, ..Effort::on(model) };
        let mut params = effort.params(20, Mode::Release, Hedging(2));
        params.warm_up = Duration::from_millis(20);
        let run = evenfall_campaigns::multicast::run(&params);
        let judged = replay(&run.frames, params.config.deadline, Tuning::default());
        let simulated = run.frames.iter().filter(|frame| frame.at >= LEARNING);
        let late = simulated.clone().filter(|frame| frame.late).count();
        let p_f = 1.0 - late as f64 / simulated.count() as f64;
        assert!((judged.p_f - p_f).abs() < 0.004, "{judged:?} and {p_f}");
        // A hold of nothing would make half of the messages late, or more.
        let none = Deadline {
            hold_initial: Duration::ZERO,
            hold_max: Duration::ZERO,
            ..params.config.deadline
        };
        assert!(replay(&run.frames, none, Tuning::default()).p_f < 0.5);
    }
}
