//! Sends probes at a pace, and receives them.

use core::time::Duration;
use std::collections::BTreeMap;

use bytes::Bytes;
use evenfall_core::time::nanos;
use evenfall_core::{
    ClockError, Destination, GroupId, Head, SyncTime, Timestamp, TrafficClass, Transmit,
};

use super::job::{JobSeat, LEADER, MeasurementKind, ProbePace, Task};
use super::probe::{self, DelayProbe};
use super::record::{DelayRecord, between};
use super::wire::ReportEntry;

/// The group of receivers to which a host sends one probe at once.
pub(super) const GROUP: GroupId = GroupId(1);
/// How far a sender may fall behind its pace. Beyond this time the sender skips probes, because a
/// burst to catch up would measure its own queue.
const BEHIND_MAX: Duration = Duration::from_millis(10);

/// The sending side of a job on one host. The leader of a tree sends to its children at once. Other
/// hosts, and every host of an all-to-all job, take their receivers in turn.
#[derive(Clone, Debug)]
pub(super) struct Prober {
    receivers: Vec<JobSeat>,
    in_turn: bool,
    interval: Duration,
    next_at: Timestamp,
    counts_from: Timestamp,
    ends_at: Timestamp,
    turn: usize,
    /// Probes sent to each receiver (to all, when they are sent at once), warm-up included.
    rounds: u32,
    /// Probes that count, by receiver.
    sent: Vec<u32>,
    due: bool,
}

impl Prober {
    /// The sending side of a task that starts at `now`; `None` for a host that sends no probes of
    /// its own.
    pub(super) fn new(now: Timestamp, task: &Task) -> Option<Self> {
        let receivers = task.receivers();
        let leads = task.above == task.me().place;
        let all_send = matches!(task.kind, MeasurementKind::AllToAll | MeasurementKind::BothWays);
        if receivers.is_empty() || !(leads || all_send) {
            return None;
        }
        let in_turn = task.sends_in_turn();
        let ProbePace { rate_hz, warm_up, .. } = task.pace;
        let per_round = if in_turn { receivers.len() as u64 } else { 1 };
        let interval = 1_000_000_000 / u64::from(rate_hz) / per_round;
        Some(Self {
            sent: vec![0; if in_turn { receivers.len() } else { 1 }],
            receivers,
            in_turn,
            interval: Duration::from_nanos(interval.max(1)),
            next_at: now,
            counts_from: now + warm_up,
            ends_at: now + task.pace.length(),
            turn: 0,
            rounds: 0,
            due: false,
        })
    }

    pub(super) fn poll_timeout(&self) -> Option<Timestamp> {
        (!self.due && self.next_at < self.ends_at).then_some(self.next_at)
    }

    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        if now >= self.next_at && self.next_at < self.ends_at {
            self.due = true;
            if now.since(self.next_at) > BEHIND_MAX {
                self.next_at = now;
            }
            self.next_at += self.interval;
        }
    }

    /// The probe that is due now: its destination, whether it only warms the path up, and its
    /// number.
    pub(super) fn take(&mut self, now: Timestamp) -> Option<(Destination, bool, u32)> {
        if !core::mem::take(&mut self.due) || now >= self.ends_at {
            return None;
        }
        let warm_up = now < self.counts_from;
        let sequence = self.rounds;
        let to = if self.in_turn {
            Destination::One(self.receivers[self.turn].address)
        } else {
            Destination::Group(GROUP)
        };
        self.sent[self.turn] += u32::from(!warm_up);
        self.turn = (self.turn + 1) % self.sent.len();
        self.rounds += u32::from(self.turn == 0);
        Some((to, warm_up, sequence))
    }

    /// Entries about sent probes, for the report.
    pub(super) fn entries(&self, me: u16) -> Vec<ReportEntry> {
        let to = |number: usize| if self.in_turn { self.receivers[number].place } else { me };
        let sent = self.sent.iter().enumerate();
        sent.map(|(number, count)| ReportEntry::Sent { from: me, to: to(number), count: *count })
            .collect()
    }
}

/// The numbers seen from one sender: the highest number, and a bit for it and for each of the 63
/// numbers below it.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    next: u64,
    recent: u64,
}

impl Seen {
    /// Whether this is the first copy of a probe. A number that is 64 or more behind the highest
    /// counts as a duplicate.
    fn first(&mut self, sequence: u32) -> bool {
        let sequence = u64::from(sequence);
        if sequence >= self.next {
            let ahead = (sequence - self.next + 1).min(64) as u32;
            self.recent = self.recent.checked_shl(ahead).unwrap_or(0) | 1;
            self.next = sequence + 1;
            return true;
        }
        let behind = (self.next - 1 - sequence).min(64) as u32;
        let bit = 1u64.checked_shl(behind).unwrap_or(0);
        let first = bit != 0 && self.recent & bit == 0;
        self.recent |= bit;
        first
    }
}

/// The receiving side of a job on one host.
#[derive(Clone, Debug, Default)]
pub(super) struct Catcher {
    hops: BTreeMap<u16, (Seen, DelayRecord)>,
    path: DelayRecord,
}

impl Catcher {
    /// Takes a probe of this job. Returns whether it is the first copy.
    pub(super) fn take(&mut self, probe: &DelayProbe, at: SyncTime, here: ClockError) -> bool {
        let (seen, hop) = self.hops.entry(probe.from).or_default();
        if !seen.first(probe.sequence) {
            return false;
        }
        if !probe.warm_up {
            hop.record(at.signed_since(probe.sent), between(probe.sent_error, here));
            self.path.record(at.signed_since(probe.origin), between(probe.origin_error, here));
        }
        true
    }

    /// Entries about received probes, for the report.
    pub(super) fn entries(&mut self, task: &Task) -> Vec<ReportEntry> {
        let me = task.me().place;
        let hop = |(from, (_, record)): (u16, (Seen, DelayRecord))| ReportEntry::Delays {
            from,
            to: me,
            path: false,
            record,
        };
        let mut entries: Vec<ReportEntry> =
            core::mem::take(&mut self.hops).into_iter().map(hop).collect();
        if task.kind == MeasurementKind::Multicast && me != LEADER {
            let record = core::mem::take(&mut self.path);
            entries.push(ReportEntry::Delays { from: LEADER, to: me, path: true, record });
        }
        entries
    }
}

/// A probe on the wire: its head, and padding that all copies share.
pub(super) fn transmit(
    probe: &DelayProbe,
    to: Destination,
    padding: &Bytes,
    key: Option<&evenfall_core::MacKey>,
) -> Transmit {
    Transmit::new(TrafficClass::Live, to, Head::new(&probe.encode(key)), padding.clone())
}

/// The padding of probes of this pace.
pub(super) fn padding(pace: &ProbePace) -> Bytes {
    Bytes::from(vec![0; usize::from(pace.probe_bytes).saturating_sub(probe::HEADER_BYTES)])
}

/// Time at which the last probe of a job that starts now has been sent.
pub(super) fn ends_at(now: Timestamp, pace: &ProbePace) -> Timestamp {
    Timestamp::from_nanos(now.nanos().saturating_add(nanos(pace.length())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_told_from_late_originals() {
        let mut seen = Seen::default();
        assert!([0, 1, 5, 3].into_iter().all(|n| seen.first(n)));
        assert!(![0, 1, 3, 5].into_iter().any(|n| seen.first(n)));
        assert!(seen.first(200) && seen.first(137) && !seen.first(136));
        assert!(seen.first(u32::MAX) && !seen.first(u32::MAX));
    }
}
