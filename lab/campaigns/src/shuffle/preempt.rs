//! Pre-emption: each node loses the processor half of the time (section 6.2 of the thesis).
//!
//! Intervals without the processor (pauses) and intervals with it (runs) alternate. The lengths of
//! pauses are normal with a standard deviation of a quarter of the mean. The thesis does not state
//! the lengths of runs, and [`Runs`] has two readings of it. Each node starts at a random point of
//! the cycle.
//!
//! The simulator of the thesis counts in packet times. As in that simulator, a pause ends at a
//! whole packet time and begins just before one, so a run has room for whole packets only.

use evenfall_core::Prng;

/// The distribution of the lengths of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// The distribution of pauses: normal, with a standard deviation of a quarter of the mean.
    Alike,
    /// Exponential with the mean of the pauses: a pause is equally likely to begin at any time.
    Memoryless,
}

/// Parameters of the pauses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pauses {
    /// Mean length of pauses, and of runs, in nanoseconds.
    pub mean_ns: f64,
    /// See [`Runs`].
    pub runs: Runs,
    /// A packet's time on the link, in nanoseconds.
    pub packet_ns: u64,
}

/// The pauses of one node. Pauses are drawn up to the latest time that a caller has asked for.
#[derive(Clone, Debug)]
pub struct PauseSchedule {
    prng: Prng,
    law: Pauses,
    /// Beginnings and ends of pauses.
    pauses: Vec<(u64, u64)>,
}

impl PauseSchedule {
    /// A schedule with pauses of this law.
    pub fn new(law: Pauses, mut prng: Prng) -> Self {
        let start = prng.unit() * 2.0 * law.mean_ns;
        let mut schedule = Self { prng, law, pauses: Vec::new() };
        let first = match law.runs {
            Runs::Alike => (start - law.mean_ns).max(0.0),
            Runs::Memoryless if start < law.mean_ns => 0.0,
            Runs::Memoryless => schedule.prng.exponential(law.mean_ns),
        };
        let length = if start < law.mean_ns { start } else { schedule.pause_length() };
        schedule.push(first, length);
        schedule
    }

    /// A schedule that begins with these pauses, each a beginning and an end in nanoseconds. Pauses
    /// beyond them follow the law.
    pub fn of_pauses(law: Pauses, prng: Prng, pauses: Vec<(u64, u64)>) -> Self {
        Self { prng, law, pauses }
    }

    fn pause_length(&mut self) -> f64 {
        let length = self.law.mean_ns * (1.0 + self.prng.normal() / 4.0);
        length.max(self.law.mean_ns / 10.0)
    }

    fn run_length(&mut self) -> f64 {
        match self.law.runs {
            Runs::Alike => self.pause_length(),
            Runs::Memoryless => self.prng.exponential(self.law.mean_ns),
        }
    }

    /// Adds a pause that begins `run` after the last pause and lasts `pause`. Both lengths are
    /// rounded to whole packet times.
    fn push(&mut self, run: f64, pause: f64) {
        let packets = |ns: f64| (ns / self.law.packet_ns as f64).round() as u64;
        let last = self.pauses.last().map_or(0, |pause| pause.1);
        // A run has room for at least one packet.
        let begin = last + packets(run).max(1) * self.law.packet_ns;
        let end = begin + packets(pause).max(1) * self.law.packet_ns;
        self.pauses.push((begin - 1, end));
    }

    /// Begin and end of the pause with this number, in nanoseconds.
    pub fn pause(&mut self, number: usize) -> (u64, u64) {
        while self.pauses.len() <= number {
            let (run, pause) = (self.run_length(), self.pause_length());
            self.push(run, pause);
        }
        self.pauses[number]
    }

    /// Time that the node spends in pauses before `until_ns`, in nanoseconds.
    pub fn paused_ns(&mut self, until_ns: u64) -> u64 {
        let pauses = self.pauses_until(until_ns).into_iter();
        pauses.map(|(begin, end)| end.min(until_ns) - begin).sum()
    }

    fn pauses_until(&mut self, until_ns: u64) -> Vec<(u64, u64)> {
        let mut number = 0;
        while self.pause(number).0 < until_ns {
            number += 1;
        }
        self.pauses[..number].to_vec()
    }

    /// The first time from `at_ns` on at which the node runs.
    pub fn runs_at(&mut self, at_ns: u64) -> u64 {
        let last = self.pauses_until(at_ns + 1).last().map_or(0, |pause| pause.1);
        at_ns.max(last)
    }

    /// The runs that work of this length takes when it begins at once. The network card finishes a
    /// packet that it has begun before a pause.
    pub fn runs_for(&mut self, work_ns: u64) -> Vec<(u64, u64)> {
        let (mut at, mut left, mut runs) = (0, work_ns, Vec::new());
        for number in 0.. {
            let (begin, end) = self.pause(number);
            let run = (begin + 1 - at).min(left);
            if run > 0 {
                runs.push((at, at + run));
                left -= run;
            }
            if left == 0 {
                break;
            }
            at = end;
        }
        runs
    }
}

/// The oracles of section 6.2.1: lower bounds on the time of a shuffle under these schedules, in
/// nanoseconds. `work_ns(from, to)` is the time of a message on an idle link. The oracles leave out
/// latency.
///
/// The last packet of a message may be shorter than the others. A run with this packet may have
/// room for a part of another packet. The oracles therefore leave out one packet time per message.
///
/// The thesis names three oracles: of senders, of receivers and of messages. The oracle of a
/// message is never above the oracle of its receiver, which waits for all of its messages.
pub fn oracles_ns(
    schedules: &mut [PauseSchedule],
    packet_ns: u64,
    work_ns: impl Fn(usize, usize) -> u64,
) -> u64 {
    let nodes = schedules.len();
    let work = |from: usize, to: usize| {
        if from == to { 0 } else { work_ns(from, to).saturating_sub(packet_ns) }
    };
    let sender = |(from, schedule): (usize, &mut PauseSchedule)| {
        let all = (0..nodes).map(|to| work(from, to)).sum();
        schedule.runs_for(all).last().map_or(0, |run| run.1)
    };
    let senders = schedules.iter_mut().enumerate().map(sender).max().unwrap_or(0);
    let receivers = (0..nodes).map(|to| receiver_ns(schedules, to, |from| work(from, to)));
    senders.max(receivers.max().unwrap_or(0))
}

/// The earliest time at which a receiver can have all of its data, if there is no other receiver.
/// Every sender sends as soon as it runs. Packets beyond the rate of the link wait in front of it.
/// The receiver takes the last packet when it runs.
///
/// A link that is never idle while packets wait ends at the largest `t + rest(t)` over all times t.
/// `rest(t)` is the link time of the packets that were not sent before t.
pub fn receiver_ns(
    schedules: &mut [PauseSchedule],
    to: usize,
    work_ns: impl Fn(usize) -> u64,
) -> u64 {
    let mut changes = Vec::new();
    let mut rest: u64 = 0;
    for (from, schedule) in schedules.iter_mut().enumerate() {
        let work = work_ns(from);
        rest += work;
        for (begin, end) in schedule.runs_for(work) {
            changes.extend([(begin, 1i64), (end, -1)]);
        }
    }
    changes.sort_unstable();
    let (mut at, mut senders, mut ends) = (0, 0, rest);
    for (time, change) in changes {
        rest -= (time - at) * senders as u64;
        at = time;
        senders += change;
        ends = ends.max(at + rest);
    }
    schedules[to].runs_at(ends)
}
