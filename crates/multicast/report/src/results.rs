//! The figures by which a run is judged. `--json` prints the same keys.

use evenfall_core::{ClockError, NodeId, Summary};
use serde::{Serialize, Serializer};

use super::sample::Fine;
use super::{Between, Ledger};

/// Edges that a [`Series`] lists: the edges with the most hedge wins.
const EDGES_MAX: usize = 200;

/// The results of a ledger.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LedgerOutcome {
    /// Numbers.
    pub results: Results,
    /// The data of the pictures.
    pub series: Series,
}

/// Numbers of a run. Times are in microseconds. A *copy* is one message at one receiver. A *frame*
/// is the group of messages that one receiver releases at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Results {
    /// Messages that the root sent.
    pub messages: u64,
    /// Receivers that the run had, with those that left.
    pub receivers: u64,
    /// Copies released.
    pub delivered: u64,
    /// Copies that should have been released and were not, whether or not a receiver reported them.
    pub lost: u64,
    /// Lost copies that a receiver reported. The other lost copies went missing without a report,
    /// or with a receiver that died.
    pub lost_reported: u64,
    /// Further copies of the same frames, which receivers dropped.
    pub duplicates_dropped: u64,
    /// Share of held messages that reached every receiver by their deadline: P(F). `None` when no
    /// message was held.
    pub on_time_fraction: Option<f64>,
    /// The value of `on_time_fraction` under its name in the papers.
    pub p_f: Option<f64>,
    /// Held messages that reached some receiver after the deadline, or not at all.
    pub late_messages: u64,
    /// Scheduled send time to the arrival at the slowest receiver.
    pub oml_us: Summary,
    /// Scheduled send time to the release at the slowest receiver.
    pub held_oml_us: Summary,
    /// Delivery window: last release minus first, per message.
    pub window_us: Summary,
    /// The limits of the true delivery window, as far as the bounds of the clocks hold.
    pub window_between_us: Between,
    /// The delivery window without holding: the time between the first and the last program that
    /// took the message. The programs' own stamps measure it, as they measure `window_us`.
    pub arrival_window_us: Summary,
    /// The limits of the true window without holding, as far as the bounds of the clocks hold.
    pub arrival_window_between_us: Between,
    /// Release minus deadline, of every held frame at every receiver. The release is measured.
    pub release_late_us: Summary,
    /// How long a held frame waited at a receiver, from arrival to release, over all held frames
    /// and receivers. The hold is another quantity: the time from sending to deadline.
    pub wait_us: Summary,
    /// Deadline minus arrival, of every held frame at every receiver. The value is negative for a
    /// late frame.
    pub margin_us: Summary,
    /// Messages that gateways handed on to their participants, once a gateway.
    pub handed: u64,
    /// From the release of a message at a gateway until its last copy had left for participants.
    pub handed_us: Summary,
    /// How far the root was behind the feed: sent minus scheduled.
    pub behind_us: Summary,
    /// Bound on the clock error in all figures above that compare two hosts.
    pub clock_error_us: ClockErrorUs,
    /// Frames whose first copy came by hedging.
    pub hedge_wins: u64,
    /// Frames released.
    pub frames: u64,
    /// Copies that came by repair.
    pub repaired: u64,
    /// Copies that a receiver released or reported a second time. Such copies mean a broken
    /// protocol.
    pub released_again: u64,
    /// Records that belong to no message: from a torn log, or from a receiver that was not a
    /// member.
    pub orphans: u64,
}

/// Error of the synchronised clock for people: a number of microseconds (0 when there is only one
/// clock), or the word `unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockErrorUs(pub ClockError);

impl Serialize for ClockErrorUs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            ClockError::SameClock => serializer.serialize_u64(0),
            ClockError::Within(bound) => serializer.serialize_f64(bound.as_secs_f64() * 1e6),
            ClockError::Unknown | ClockError::Disproved => serializer.serialize_str("unknown"),
        }
    }
}

impl core::fmt::Display for ClockErrorUs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            ClockError::SameClock => f.write_str("0 us (same clock)"),
            ClockError::Within(bound) => write!(f, "{:.1} us", bound.as_secs_f64() * 1e6),
            ClockError::Unknown | ClockError::Disproved => f.write_str("unknown"),
        }
    }
}

/// The data of pictures. A CDF is a list of `(microseconds, share at or below)` of at most
/// [`CDF_POINTS_MAX`](super::sample::CDF_POINTS_MAX) points.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Scheduled time of the first closed message. [`TimePoint::at_s`] counts from it.
    pub origin_ns: u64,
    /// CDF of [`Results::oml_us`].
    pub oml: Vec<(f64, f64)>,
    /// CDF of [`Results::held_oml_us`].
    pub held_oml: Vec<(f64, f64)>,
    /// CDF of [`Results::margin_us`]. Its points are dense at the low end, where messages are late.
    pub margin: Vec<(f64, f64)>,
    /// CDF of [`Results::window_us`].
    pub window: Vec<(f64, f64)>,
    /// CDF of [`Results::arrival_window_us`].
    pub arrival_window: Vec<(f64, f64)>,
    /// CDF of [`Results::release_late_us`].
    pub release_late: Vec<(f64, f64)>,
    /// Receivers, in the order in which they were made known.
    pub receivers: Vec<ReceiverLine>,
    /// Edges, the edge with the most hedge wins first.
    pub edges: Vec<EdgeCounts>,
    /// Steps of time of equal width. Steps without messages are left out.
    pub time: Vec<TimePoint>,
}

/// One receiver.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReceiverLine {
    /// Name of the receiver.
    pub receiver: NodeId,
    /// Copies released.
    pub delivered: u64,
    /// Copies missing.
    pub lost: u64,
    /// Copies that came by repair.
    pub repaired: u64,
    /// Further copies that the receiver dropped.
    pub duplicates: u64,
    /// Median of arrival minus sent, over frames.
    pub delay_p50_us: f64,
    /// 99th percentile of arrival minus sent, over frames.
    pub delay_p99_us: f64,
}

/// The frames whose first copy took this edge.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EdgeCounts {
    /// Sender of the last hop.
    pub via: NodeId,
    /// Receiver.
    pub receiver: NodeId,
    /// Frames whose first copy came over this edge.
    pub frames: u64,
    /// Frames whose first copy was a hedge that beat the receiver's own parent.
    pub hedge_wins: u64,
}

/// One step of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimePoint {
    /// Beginning of the step, in seconds since the first message.
    pub at_s: f64,
    /// Messages scheduled in the step.
    pub messages: u64,
    /// Mean of deadline minus sent. This is the hold that the root set.
    pub hold_us: Option<f64>,
    /// Share of the held messages of the step that were on time at every receiver.
    pub p_f: Option<f64>,
    /// Median OML, within 3 %.
    pub oml_p50_us: f64,
    /// 99th percentile of OML, within 3 %.
    pub oml_p99_us: f64,
    /// Copies that some receiver never released.
    pub missing: u64,
}

/// The outcome of a ledger whose messages are all closed.
pub(super) fn outcome(ledger: Ledger, clock: ClockError) -> LedgerOutcome {
    let series_of_receivers = receivers(&ledger);
    let edges = edges(&ledger);
    let Ledger { counts, mut samples, timeline, receivers, .. } = ledger;
    let share = (counts.held > 0).then(|| counts.on_time as f64 / counts.held as f64);
    let results = Results {
        messages: counts.messages,
        receivers: receivers.len() as u64,
        delivered: counts.delivered,
        lost: counts.expected.saturating_sub(counts.delivered),
        lost_reported: counts.lost_reported,
        duplicates_dropped: counts.duplicates,
        on_time_fraction: share,
        p_f: share,
        late_messages: counts.held - counts.on_time,
        oml_us: samples.oml.summary(),
        held_oml_us: samples.held_oml.summary(),
        window_us: samples.window.shown.summary(),
        window_between_us: samples.window.between(),
        arrival_window_us: samples.arrival_window.shown.summary(),
        arrival_window_between_us: samples.arrival_window.between(),
        release_late_us: samples.release_late.summary(),
        wait_us: samples.wait.summary(),
        margin_us: samples.margin.summary(),
        handed: counts.handed,
        handed_us: samples.handed.summary(),
        behind_us: samples.behind.summary(),
        clock_error_us: ClockErrorUs(clock),
        hedge_wins: counts.hedge_wins,
        frames: counts.frames,
        repaired: counts.repaired,
        released_again: counts.released_again,
        orphans: counts.orphans,
    };
    let series = Series {
        origin_ns: timeline.origin_ns(),
        oml: samples.oml.cdf(),
        held_oml: samples.held_oml.cdf(),
        margin: samples.margin.cdf_of_low_tail(),
        window: samples.window.shown.cdf(),
        arrival_window: samples.arrival_window.shown.cdf(),
        release_late: samples.release_late.cdf(),
        receivers: series_of_receivers,
        edges,
        time: timeline.points(),
    };
    LedgerOutcome { results, series }
}

fn receivers(ledger: &Ledger) -> Vec<ReceiverLine> {
    let lines = ledger.receivers.counted().iter().enumerate().map(|(index, receiver)| {
        let flights = ledger.streams.iter().map(|(_, flight)| flight);
        let expected: u64 = flights.map(|flight| flight.expected_of(index)).sum();
        let [delay_p50_us, delay_p99_us] = p50_p99_us(&receiver.delay);
        ReceiverLine {
            receiver: receiver.id,
            delivered: receiver.delivered,
            lost: expected.saturating_sub(receiver.delivered),
            repaired: receiver.repaired,
            duplicates: receiver.duplicates,
            delay_p50_us,
            delay_p99_us,
        }
    });
    lines.collect()
}

fn p50_p99_us(fine: &Fine) -> [f64; 2] {
    let quantiles = fine.quantiles(&[0.5, 0.99]).unwrap_or_else(|| vec![0, 0]);
    [quantiles[0], quantiles[1]].map(|ns| ns as f64 / 1e3)
}

fn edges(ledger: &Ledger) -> Vec<EdgeCounts> {
    let all = ledger.receivers.counted().iter().flat_map(|receiver| {
        let edges = receiver.edges.iter();
        edges.map(|&(via, frames, hedge_wins)| EdgeCounts {
            via,
            receiver: receiver.id,
            frames,
            hedge_wins,
        })
    });
    let mut edges: Vec<EdgeCounts> = all.collect();
    edges.sort_by_key(|e| (u64::MAX - e.hedge_wins, u64::MAX - e.frames, e.receiver, e.via));
    edges.truncate(EDGES_MAX);
    edges
}
