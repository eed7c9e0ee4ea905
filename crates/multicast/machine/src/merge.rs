//! Reports on their way up: the measurements of a receiver, and how proxies and the root merge
//! them.
//!
//! For each sampled frame the tree takes the maximum over receivers, so that the root learns the
//! true overall latency (OML) of those frames. Percentiles of single receivers are not enough,
//! since a message is on time only when *all* receivers have it in time.
//!
//! A receiver that lacks a frame reports nothing about the frame. A receiver whose report was lost
//! is silent as well. Numbers on the reports tell the two cases apart:
//!
//! ```text
//! reports that came from a child     the frame is in none of them
//! 7 8 9 10, none is missing    ->    the child lacks it: `missing`, and late at the root
//! 7 8 _ 10                     ->    not known: the others are judged without this child
//! ```
//!
//! A node leaves out a number on purpose when it drops samples or puts them off, and when it is
//! being replayed to. A sample that arrives after its frame was judged travels up by itself, and
//! the root then counts the frame as late.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use evenfall_core::time::nanos;
use evenfall_core::{ClockError, Histogram, NodeId, Timestamp};

use crate::config::Config;
use crate::control::{MemberFigures, ReleaseSpread, Report, SampledDelay, Tally, WORST_MAX, Worst};

mod news;

pub(crate) use self::news::{MemberNews, RecentDelays};

/// Samples that may wait for further children: two seconds at the default rate. The same number of
/// frames is remembered after their samples have gone up.
const PENDING_MAX: usize = 4_096;
/// Samples that may wait for room in a report: two seconds at the default rate. A receiver that was
/// cut off for two seconds has that many at once.
const READY_MAX: usize = 4_096;
/// Levels below a node that lengthen its wait. Beyond three levels, 15 report intervals are enough.
const HEIGHT_MAX: u8 = 3;
/// Releases that may wait for further receivers, or for room: ten seconds at the rate of the root.
const SPREADS_PENDING_MAX: usize = 1_024;
/// How often a node tells its own figures. Every level of the tree adds less than this time, so
/// that the figures at the root are younger than two seconds.
const FIGURES_EVERY: Duration = Duration::from_millis(500);

pub(crate) fn saturating_ns(duration: Duration) -> u32 {
    u32::try_from(nanos(duration)).unwrap_or(u32::MAX)
}

/// Delays of the copies from one neighbour in one interval, or of the frames inside this host.
#[derive(Clone, Copy, Debug, Default)]
struct Track {
    count: u64,
    sum_ns: u64,
    max_ns: u64,
}

impl Track {
    fn record(&mut self, delay: Duration) {
        self.count += 1;
        self.sum_ns += nanos(delay);
        self.max_ns = self.max_ns.max(nanos(delay));
    }

    fn worst(&self, from: NodeId, to: NodeId) -> Option<Worst> {
        let mean = self.sum_ns.checked_div(self.count)?;
        let narrow = |ns: u64| u32::try_from(ns).unwrap_or(u32::MAX);
        Some(Worst { from, to, mean_ns: narrow(mean), max_ns: narrow(self.max_ns) })
    }
}

/// Delays of the edges that lead to this node, and of the node itself. Duplicates count too,
/// because they are timed before they are dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edges {
    edges: Vec<(NodeId, Track)>,
    inside: Track,
}

/// Neighbours that are timed at once: the parent and the aunts of two places, and the root.
const EDGES_MAX: usize = 64;

impl Edges {
    pub(crate) fn arrived(&mut self, from: NodeId, delay: Duration) {
        if let Some((_, track)) = self.edges.iter_mut().find(|(node, _)| *node == from) {
            track.record(delay);
        } else if self.edges.len() < EDGES_MAX {
            let mut track = Track::default();
            track.record(delay);
            self.edges.push((from, track));
        }
    }

    /// Reads the edge from the parent.
    pub(crate) fn prefetch(&self) -> u64 {
        self.edges.first().map_or(0, |(_, track)| track.count ^ track.max_ns)
    }

    pub(crate) fn stayed(&mut self, delay: Duration) {
        self.inside.record(delay);
    }

    /// Hands out the tracks of this interval, and begins a new interval.
    fn take(&mut self, me: NodeId, into: &mut Vec<Worst>) {
        into.extend(self.edges.iter().filter_map(|(from, track)| track.worst(*from, me)));
        into.extend(self.inside.worst(me, me));
        self.edges.clear();
        self.inside = Track::default();
    }
}

/// Keeps the entries with the largest means.
fn keep_worst(worst: &mut Vec<Worst>) {
    worst.sort_unstable_by_key(|w| (core::cmp::Reverse(w.mean_ns), w.from, w.to));
    worst.truncate(WORST_MAX);
}

/// Samples for the next report, and the number of that report.
#[derive(Clone, Debug, Default)]
struct Ready {
    samples: Vec<SampledDelay>,
    spreads: Vec<ReleaseSpread>,
    serial: u32,
    dropped: u64,
}

impl Ready {
    /// Adds a sample. When too many samples wait, every second sample is dropped, so that the
    /// others stay evenly spread over the time.
    fn push(&mut self, sample: SampledDelay) {
        if self.samples.len() >= READY_MAX {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.dropped += (READY_MAX - self.samples.len()) as u64;
            self.serial = self.serial.wrapping_add(1);
        }
        self.samples.push(sample);
    }

    /// Adds the releases of a frame. Releases without room are dropped, because they only measure.
    fn push_spread(&mut self, spread: ReleaseSpread) {
        if self.spreads.len() < SPREADS_PENDING_MAX {
            self.spreads.push(spread);
        }
    }

    /// Takes back what had no room in the report. Until all samples are told, a frame that is in no
    /// report may have arrived.
    fn put_back(&mut self, report: Report) {
        if !report.samples.is_empty() {
            self.serial = self.serial.wrapping_add(1);
        }
        (self.samples, self.spreads) = (report.samples, report.spreads);
    }

    fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }
}

/// The measurements of one receiver.
#[derive(Clone, Debug, Default)]
pub(crate) struct Margins {
    pub tally: Tally,
    ready: Ready,
    delays: Histogram,
    /// The bucket of the last delay.
    bucket: usize,
    recent: RecentDelays,
    /// When this receiver told its figures last.
    told_at: Option<Timestamp>,
}

impl Margins {
    /// Counts a frame that arrived for the first time, `delay` after the root sent the frame.
    /// `delay` is `None` when this node's clock is not sound. The frame then lengthens no hold.
    pub(crate) fn arrived(&mut self, sequence: u64, delay: Option<Duration>, sampled: bool) {
        if let Some(delay) = delay {
            self.bucket = Histogram::bucket(delay);
            self.delays.add(self.bucket, 1);
        }
        if sampled {
            let latest_ns = delay.map_or(0, saturating_ns);
            self.ready.push(SampledDelay { sequence, latest_ns, receivers: 1, missing: 0 });
        }
    }

    /// A frame was released `after` the root sent the frame.
    pub(crate) fn released(&mut self, sequence: u64, after: Duration) {
        let ns = saturating_ns(after);
        self.ready.push_spread(ReleaseSpread {
            sequence,
            earliest_ns: ns,
            latest_ns: ns,
            receivers: 1,
        });
    }

    /// Reads the lines of the cache that a frame needs. The result depends on each of these lines.
    pub(crate) fn prefetch(&self) -> u64 {
        let tally = self.tally.released ^ self.tally.late;
        tally ^ self.delays.total() ^ self.ready.dropped ^ self.recent.turned().nanos()
    }

    /// Reads the bucket of the last delay.
    pub(crate) fn prefetch_far(&self) -> u64 {
        self.delays.count(self.bucket)
    }

    /// The root has started a new run. Measurements of the old run are not told to the new run.
    pub(crate) fn restart(&mut self) {
        self.tally = Tally { receivers: 1, ..Tally::default() };
        self.ready.samples.clear();
        self.ready.spreads.clear();
        self.delays.clear();
    }

    /// Leaves out a number, because not all samples are told: a frame that is in no report may have
    /// arrived.
    pub(crate) fn skip_a_number(&mut self) {
        self.ready.serial = self.ready.serial.wrapping_add(1);
    }

    /// Takes back what had no room in the last report.
    pub(crate) fn put_back(&mut self, report: Report) {
        // Figures without room are told anew with the next report.
        self.told_at = self.told_at.filter(|_| report.members.is_empty());
        self.ready.put_back(report);
    }

    /// Samples dropped because reports had no room for them.
    pub(crate) fn dropped(&self) -> u64 {
        self.ready.dropped
    }

    /// The report of the interval that ends now, by a node whose clock errs this much.
    pub(crate) fn take(
        &mut self,
        now: Timestamp,
        me: NodeId,
        edges: &mut Edges,
        clock: ClockError,
    ) -> Report {
        let recent = self.recent.end_interval(now, &self.delays);
        let mut worst = Vec::new();
        edges.take(me, &mut worst);
        keep_worst(&mut worst);
        let is_due = self.told_at.is_none_or(|at| now.since(at) >= FIGURES_EVERY);
        let figures = is_due.then(|| figures_of(me, clock, &self.tally, &recent));
        self.told_at = if is_due { Some(now) } else { self.told_at };
        Report {
            tally: self.tally,
            p95_ns: saturating_ns(recent.quantile(0.95)),
            serial: self.ready.next_serial(),
            height: 0,
            members: figures.into_iter().collect(),
            spreads: core::mem::take(&mut self.ready.spreads),
            samples: core::mem::take(&mut self.ready.samples),
            worst,
            delays: core::mem::take(&mut self.delays),
        }
    }
}

/// The figures of a node with these delays in the last second.
fn figures_of(id: NodeId, clock: ClockError, tally: &Tally, recent: &Histogram) -> MemberFigures {
    let Tally { released, late, lost, repaired, hedge_wins, .. } = *tally;
    MemberFigures {
        id,
        age_ms: 0,
        clock,
        delay_p50_ns: saturating_ns(recent.interpolated_quantile(0.5)),
        delay_p99_ns: saturating_ns(recent.interpolated_quantile(0.99)),
        released,
        late,
        lost,
        repaired,
        hedge_wins,
    }
}

#[derive(Clone, Copy, Debug)]
struct Child {
    heard: Timestamp,
    /// Whether the child is a spare. A spare has no node below it, whatever its earlier reports
    /// stated.
    is_spare: bool,
    /// The cumulative part of the last report; `None` when it was forgotten or never came.
    last: Option<(Tally, u32)>,
    /// Number of the last report.
    serial: u32,
    /// Time since which all reports of this child came.
    whole_since: Timestamp,
    /// Levels of the tree below the child.
    height: u8,
    /// The child's bit in [`Pending::told_by`].
    slot: usize,
}

#[derive(Clone, Debug)]
struct Pending {
    latest_ns: u32,
    receivers: u32,
    missing: u32,
    since: Timestamp,
    /// The children that reported this frame, a bit for each.
    told_by: Vec<u64>,
}

impl Pending {
    fn new(since: Timestamp) -> Self {
        Self { latest_ns: 0, receivers: 0, missing: 0, since, told_by: Vec::new() }
    }

    fn add(&mut self, sample: &SampledDelay, slot: usize) {
        self.latest_ns = self.latest_ns.max(sample.latest_ns);
        self.receivers = self.receivers.saturating_add(sample.receivers);
        self.missing = self.missing.saturating_add(sample.missing);
        if self.told_by.len() <= slot / 64 {
            self.told_by.resize(slot / 64 + 1, 0);
        }
        self.told_by[slot / 64] |= 1 << (slot % 64);
    }

    fn is_told_by(&self, slot: usize) -> bool {
        self.told_by.get(slot / 64).is_some_and(|word| word & 1 << (slot % 64) != 0)
    }

    fn sample(&self, sequence: u64) -> SampledDelay {
        let (latest_ns, receivers, missing) = (self.latest_ns, self.receivers, self.missing);
        SampledDelay { sequence, latest_ns, receivers, missing }
    }
}

/// How long samples wait for children.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// Time between two reports of a node.
    pub interval: Duration,
    /// The longest hold. A copy that arrives after it is late in any case.
    pub hold_max: Duration,
}

impl Wait {
    pub(crate) fn new(config: &Config) -> Self {
        let interval = config.membership.report_interval;
        Self { interval, hold_max: config.deadline.hold_max }
    }

    /// Three intervals for a parent of receivers. A node higher up waits until a node below it has
    /// waited and reported, twice over: 7 intervals, then 15.
    fn patience(&self, height: u8) -> Duration {
        let intervals = (2 << height.min(HEIGHT_MAX)) - 1;
        (self.interval * intervals).max(self.hold_max + self.interval * 2)
    }
}

/// Merges the reports of the children.
#[derive(Clone, Debug, Default)]
pub(crate) struct Merger {
    children: BTreeMap<NodeId, Child>,
    pending: BTreeMap<u64, Pending>,
    /// The latest frames whose samples have gone up.
    judged: BTreeSet<u64>,
    /// The releases of frames that wait for further receivers, and since when.
    spreads: BTreeMap<u64, (ReleaseSpread, Timestamp)>,
    ready: Ready,
    worst: Vec<Worst>,
    delays: Histogram,
    news: MemberNews,
    /// When this node told its own figures last.
    told_at: Option<Timestamp>,
}

impl Merger {
    /// This node has sent a frame that receivers report one by one.
    pub(crate) fn sampled(&mut self, now: Timestamp, sequence: u64) {
        if !self.judged.contains(&sequence) {
            self.pending.entry(sequence).or_insert_with(|| Pending::new(now));
            self.bound();
        }
    }

    fn bound(&mut self) {
        while self.pending.len() > PENDING_MAX {
            self.pending.pop_first();
        }
        while self.judged.len() > PENDING_MAX {
            self.judged.pop_first();
        }
        while self.spreads.len() > SPREADS_PENDING_MAX {
            self.spreads.pop_first();
        }
    }

    /// Sets the children that report from now on. Known children keep their reports. The earlier
    /// reports of a proxy that became a spare are dropped, because other nodes now report for its
    /// children.
    pub(crate) fn expect(
        &mut self,
        now: Timestamp,
        children: impl Iterator<Item = NodeId>,
        spares: impl Iterator<Item = NodeId>,
    ) {
        let old = core::mem::take(&mut self.children);
        let all = children.map(|id| (id, false)).chain(spares.map(|id| (id, true)));
        // A slot that is given again belongs to a child without any report.
        let mut free = {
            let taken: BTreeSet<usize> = old.values().map(|child| child.slot).collect();
            (0..).filter(move |slot| !taken.contains(slot))
        };
        for (id, is_spare) in all {
            let child = old.get(&id).copied().unwrap_or_else(|| Child {
                heard: now,
                is_spare,
                last: None,
                serial: 0,
                whole_since: now,
                height: 0,
                slot: free.next().expect("numbers do not end"),
            });
            self.children.insert(id, Child { is_spare, ..child });
        }
    }

    /// The children that have nodes below them.
    fn parents(&self) -> impl Iterator<Item = &Child> {
        self.children.values().filter(|child| !child.is_spare)
    }

    /// Takes in a report; `false` when its sender is no child.
    pub(crate) fn absorb(&mut self, now: Timestamp, from: NodeId, report: &Report) -> bool {
        let Some(child) = self.children.get_mut(&from) else { return false };
        if child.last.is_none() || report.serial != child.serial.wrapping_add(1) {
            child.whole_since = now;
        }
        (child.heard, child.last) = (now, Some((report.tally, report.p95_ns)));
        (child.serial, child.height) = (report.serial, report.height);
        let slot = child.slot;
        self.delays.merge(&report.delays);
        self.worst.extend_from_slice(&report.worst);
        keep_worst(&mut self.worst);
        self.news.hear(now, &report.members);
        for s in &report.spreads {
            let waiting = self.spreads.entry(s.sequence);
            waiting.and_modify(|(spread, _)| spread.add(s)).or_insert((*s, now));
        }
        for s in &report.samples {
            if self.judged.contains(&s.sequence) {
                self.ready.push(*s);
            } else {
                let fresh = || Pending::new(now);
                self.pending.entry(s.sequence).or_insert_with(fresh).add(s, slot);
            }
        }
        self.bound();
        true
    }

    /// Notes a sign of life of a child that is no report.
    pub(crate) fn heard(&mut self, now: Timestamp, from: NodeId) {
        if let Some(child) = self.children.get_mut(&from) {
            child.heard = now;
        }
    }

    /// The children that were silent for longer than `silence`. Each of them is named again only
    /// after another such time. Its reports are forgotten.
    pub(crate) fn silent(&mut self, now: Timestamp, silence: Duration) -> Vec<NodeId> {
        let mut silent = Vec::new();
        for (id, child) in &mut self.children {
            if now.since(child.heard) >= silence {
                (child.heard, child.last) = (now, None);
                silent.push(*id);
            }
        }
        silent
    }

    /// Sum over the children that are not forgotten.
    pub(crate) fn tally(&self) -> Tally {
        let mut sum = Tally::default();
        self.parents().filter_map(|c| c.last).for_each(|(tally, _)| sum.add(&tally));
        sum
    }

    /// The receivers that are known to lack a frame which has waited for `patience`. These are the
    /// receivers of children that did not report the frame, although all their reports came, from
    /// before the frame was sent until now.
    fn missing(&self, now: Timestamp, frame: &Pending, patience: Duration, wait: &Wait) -> u32 {
        let silent = self.parents().filter(|child| !frame.is_told_by(child.slot));
        let lacking = silent.filter(|child| {
            child.whole_since + patience <= frame.since
                && now.since(child.heard) * 2 < wait.interval * 3
        });
        let receivers = lacking.filter_map(|child| child.last).map(|(tally, _)| tally.receivers);
        receivers.fold(0, u32::saturating_add)
    }

    /// The merged report of the interval that ends now. A sample that lacks receivers first waits
    /// until every level below has waited for its own children.
    pub(crate) fn take(&mut self, now: Timestamp, wait: &Wait) -> Report {
        let tally = self.tally();
        let all_heard = self.parents().all(|c| c.last.is_some());
        let p95_ns = self.parents().filter_map(|c| c.last).map(|(_, p)| p).max();
        let height = 1 + self.parents().map(|c| c.height.min(u8::MAX - 1)).max().unwrap_or(0);
        let patience = wait.patience(height);
        let whole =
            |p: &Pending| all_heard && p.receivers.saturating_add(p.missing) >= tally.receivers;
        let ripe = |(_, p): &(&u64, &Pending)| whole(p) || now.since(p.since) >= patience;
        let ripened: Vec<u64> = self.pending.iter().filter(ripe).map(|(s, _)| *s).collect();
        for sequence in ripened {
            let Some(mut frame) = self.pending.remove(&sequence) else { continue };
            if !whole(&frame) {
                let missing = self.missing(now, &frame, patience, wait);
                frame.missing = frame.missing.saturating_add(missing);
            }
            self.judged.insert(sequence);
            self.ready.push(frame.sample(sequence));
        }
        let ready = &mut self.ready;
        self.spreads.retain(|_, (spread, since)| {
            let is_whole = all_heard && spread.receivers >= tally.receivers;
            let is_ripe = is_whole || now.since(*since) >= patience;
            if is_ripe {
                ready.push_spread(*spread);
            }
            !is_ripe
        });
        Report {
            tally,
            p95_ns: p95_ns.unwrap_or(0),
            serial: self.ready.next_serial(),
            height,
            members: self.news.take_all(now),
            spreads: core::mem::take(&mut self.ready.spreads),
            samples: core::mem::take(&mut self.ready.samples),
            worst: core::mem::take(&mut self.worst),
            delays: core::mem::take(&mut self.delays),
        }
    }

    /// Takes back what had no room in the last report.
    pub(crate) fn put_back(&mut self, now: Timestamp, mut report: Report) {
        self.news.hear(now, &core::mem::take(&mut report.members));
        self.ready.put_back(report);
    }

    /// Tells this node's own figures with the next report, if they are due.
    pub(crate) fn tell_own(
        &mut self,
        now: Timestamp,
        me: NodeId,
        clock: ClockError,
        recent: &Histogram,
    ) {
        if self.told_at.is_none_or(|at| now.since(at) >= FIGURES_EVERY) {
            self.told_at = Some(now);
            self.news.hear(now, &[figures_of(me, clock, &Tally::default(), recent)]);
        }
    }

    /// Samples dropped because reports had no room for them.
    pub(crate) fn dropped(&self) -> u64 {
        self.ready.dropped
    }

    /// Adds this node's own edges to the next report.
    pub(crate) fn add_edges(&mut self, me: NodeId, edges: &mut Edges) {
        edges.take(me, &mut self.worst);
        keep_worst(&mut self.worst);
    }
}

#[cfg(test)]
mod tests {
    use core::iter::{empty, once};

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(50);
    const WAIT: Wait = Wait { interval: INTERVAL, hold_max: Duration::from_millis(50) };
    const PATIENCE: Duration = Duration::from_millis(150);
    const SAME: ClockError = ClockError::SameClock;

    fn report(receivers: u32, samples: &[(u64, u32)]) -> Report {
        let mut report = Report { p95_ns: 10 * receivers, ..Report::default() };
        report.tally.receivers = receivers;
        let sample =
            |&(sequence, latest_ns)| SampledDelay { sequence, latest_ns, receivers, missing: 0 };
        report.samples = samples.iter().map(sample).collect();
        report
    }

    fn sample(sequence: u64, latest_ns: u32, receivers: u32, missing: u32) -> SampledDelay {
        SampledDelay { sequence, latest_ns, receivers, missing }
    }

    #[test]
    fn a_sample_goes_up_when_all_receivers_are_in_or_patience_ends() {
        let mut merger = Merger::default();
        let now = Timestamp::from_nanos(1);
        merger.expect(now, [NodeId(1), NodeId(2)].into_iter(), empty());
        assert!(merger.absorb(now, NodeId(1), &report(2, &[(7, 50), (8, 90)])));
        assert!(merger.take(now, &WAIT).samples.is_empty());
        assert!(merger.absorb(now, NodeId(2), &report(3, &[(7, 70)])));
        let merged = merger.take(now, &WAIT);
        assert_eq!(merged.samples, [sample(7, 70, 5, 0)]);
        assert_eq!((merged.p95_ns, merged.tally.receivers), (30, 5));
        let late = merger.take(now + PATIENCE, &WAIT);
        assert_eq!(late.samples, [sample(8, 90, 2, 0)], "nothing is known of the second child");
    }

    /// Two children report four times each. The reports in `lost` of the second child do not
    /// arrive. A frame is sent after the fourth round, and only the first child has it.
    fn frame_that_a_child_does_not_report(lost: &[u32]) -> SampledDelay {
        let mut merger = Merger::default();
        let mut now = Timestamp::from_nanos(1 << 40);
        merger.expect(now, [NodeId(1), NodeId(2)].into_iter(), empty());
        for round in 1..=9 {
            let samples: &[(u64, u32)] = if round == 5 { &[(7, 50)] } else { &[] };
            if round == 5 {
                merger.sampled(now, 7);
            }
            for (child, samples) in [(NodeId(1), samples), (NodeId(2), &[])] {
                let report = Report { serial: round, ..report(1, samples) };
                if child == NodeId(1) || !lost.contains(&round) {
                    merger.absorb(now, child, &report);
                }
            }
            if let Some(sample) = merger.take(now, &WAIT).samples.first() {
                return *sample;
            }
            now += INTERVAL;
        }
        panic!("patience never ended");
    }

    #[test]
    fn a_frame_that_no_report_names_is_missing_unless_a_report_is() {
        assert_eq!(frame_that_a_child_does_not_report(&[]), sample(7, 50, 1, 1));
        for lost in 2..=7 {
            let judged = frame_that_a_child_does_not_report(&[lost]);
            assert_eq!(judged, sample(7, 50, 1, 0), "report {lost} did not come");
        }
    }

    #[test]
    fn what_arrives_after_a_frame_was_judged_goes_up_by_itself() {
        let mut merger = Merger::default();
        let now = Timestamp::from_nanos(1);
        merger.expect(now, [NodeId(1), NodeId(2)].into_iter(), empty());
        merger.absorb(now, NodeId(1), &report(1, &[(7, 50)]));
        let later = now + PATIENCE;
        assert_eq!(merger.take(later, &WAIT).samples.len(), 1);
        merger.sampled(later, 7);
        merger.absorb(later, NodeId(2), &report(1, &[(7, 900)]));
        assert_eq!(merger.take(later, &WAIT).samples, [sample(7, 900, 1, 0)]);
        assert!(merger.take(later + PATIENCE, &WAIT).samples.is_empty());
    }

    #[test]
    fn samples_beyond_the_room_are_thinned_evenly_counted_and_not_taken_for_losses() {
        let mut margins = Margins::default();
        let first = margins.take(Timestamp::ZERO, NodeId(1), &mut Edges::default(), SAME).serial;
        (0..READY_MAX as u64 + 1).for_each(|s| margins.arrived(s, Some(INTERVAL), true));
        assert_eq!(margins.dropped(), READY_MAX as u64 / 2);
        let report = margins.take(Timestamp::ZERO, NodeId(1), &mut Edges::default(), SAME);
        assert_eq!(report.serial, first + 2, "a number is left out");
        let kept: Vec<u64> = report.samples.iter().take(3).map(|s| s.sequence).collect();
        assert_eq!(kept, [0, 2, 4]);
    }

    #[test]
    fn a_report_from_a_stranger_is_refused_and_a_silent_child_is_forgotten() {
        let mut merger = Merger::default();
        let now = Timestamp::from_nanos(1);
        merger.expect(now, [NodeId(1), NodeId(2)].into_iter(), empty());
        assert!(!merger.absorb(now, NodeId(9), &report(9, &[])));
        merger.absorb(now, NodeId(1), &report(2, &[]));
        merger.absorb(now, NodeId(2), &report(3, &[]));
        let later = now + PATIENCE;
        merger.absorb(later, NodeId(1), &report(2, &[]));
        assert_eq!(merger.silent(later, PATIENCE), [NodeId(2)]);
        assert!(merger.silent(later, PATIENCE).is_empty(), "named once per silence");
        assert_eq!(merger.tally().receivers, 2);
        assert_eq!(merger.take(later, &WAIT).p95_ns, 20, "no longer the forgotten child's");
    }

    #[test]
    fn receivers_that_moved_away_from_a_spare_are_counted_once() {
        let (now, mut merger) = (Timestamp::ZERO, Merger::default());
        merger.expect(now, [NodeId(1), NodeId(2)].into_iter(), empty());
        merger.absorb(now, NodeId(1), &report(2, &[]));
        merger.absorb(now, NodeId(2), &report(3, &[]));
        merger.expect(now, [NodeId(3), NodeId(2)].into_iter(), once(NodeId(1)));
        merger.absorb(now, NodeId(3), &report(2, &[]));
        assert_eq!(merger.tally().receivers, 5);
        merger.absorb(now, NodeId(1), &report(2, &[]));
        assert_eq!(merger.tally().receivers, 5, "sent before it knew");
    }

    fn spread(sequence: u64, earliest_ns: u32, latest_ns: u32, receivers: u32) -> ReleaseSpread {
        ReleaseSpread { sequence, earliest_ns, latest_ns, receivers }
    }

    #[test]
    fn releases_go_up_with_the_first_and_the_last_when_all_receivers_are_in_or_patience_ends() {
        let (now, mut merger) = (Timestamp::from_nanos(1), Merger::default());
        merger.expect(now, [NodeId(1), NodeId(2)].into_iter(), empty());
        let told = |receivers, spreads| Report { spreads, ..report(receivers, &[]) };
        merger.absorb(
            now,
            NodeId(1),
            &told(2, vec![spread(7, 250, 260, 2), spread(8, 250, 251, 2)]),
        );
        merger.absorb(now, NodeId(2), &told(1, vec![]));
        assert_eq!(merger.take(now, &WAIT).spreads, [], "the second child has not released");
        merger.absorb(now, NodeId(2), &told(1, vec![spread(7, 240, 240, 1)]));
        assert_eq!(merger.take(now, &WAIT).spreads, [spread(7, 240, 260, 3)]);
        let late = merger.take(now + PATIENCE, &WAIT);
        assert_eq!(
            late.spreads,
            [spread(8, 250, 251, 2)],
            "nothing is known of the third receiver"
        );
    }

    #[test]
    fn figures_of_a_receiver_pass_two_levels_with_their_age() {
        let mut now = Timestamp::from_nanos(1 << 40);
        let tally = Tally { receivers: 1, late: 3, ..Tally::default() };
        let mut margins = Margins { tally, ..Margins::default() };
        (1..=100).for_each(|n| margins.arrived(n, Some(Duration::from_micros(100)), false));
        let mut merger = Merger::default();
        merger.expect(now, once(NodeId(9)), empty());
        let bound = ClockError::Within(Duration::from_nanos(40));
        let first = margins.take(now, NodeId(9), &mut Edges::default(), bound);
        merger.absorb(now, NodeId(9), &first);
        assert_eq!(margins.take(now, NodeId(9), &mut Edges::default(), bound).members, []);
        now += INTERVAL;
        let [figures] = merger.take(now, &WAIT).members[..] else { panic!("one node") };
        assert_eq!((figures.id, figures.age_ms, figures.late), (NodeId(9), 50, 3));
        assert_eq!(figures.clock, bound);
        assert!((96_000..=104_000).contains(&figures.delay_p50_ns), "{figures:?}");
        assert_eq!(merger.take(now, &WAIT).members, [], "told once");
    }
}
