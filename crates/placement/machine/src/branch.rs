//! The superior's record of one subordinate in a job. The superior sends the task, polls, reads the
//! report, and gives the subordinate up when its time is over.
//!
//! ```text
//! Preparing --Status Ready--> Ready --start()--> Going --Status Done--> Reading --parts--> Closed
//!     |                         |                  |                      |
//!     +------ no time left, no sign of life, a refusal, a job forgotten ---+--> Failed(reason)
//! ```

use std::net::SocketAddr;

use evenfall_core::Timestamp;

use super::job::{JobSeat, Task};
use super::wire::{HostFailure, Phase, ReportEntry, SurveyBody};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Preparing,
    Ready,
    Going { running: bool },
    Reading { parts: u32 },
    Closed,
    Failed(HostFailure),
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    task: Task,
    state: State,
    heard: Timestamp,
    deadline: Timestamp,
    poll_at: Timestamp,
    /// Parts of its report that have arrived.
    have: u32,
    progress: u32,
    entries: Vec<ReportEntry>,
}

impl Branch {
    pub(super) fn new(now: Timestamp, task: Task) -> Self {
        let deadline = now + task.timing.ready_limit(task.height());
        Self {
            task,
            state: State::Preparing,
            heard: now,
            deadline,
            poll_at: now,
            have: 0,
            progress: 0,
            entries: Vec::new(),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.task.me().address
    }

    /// Whether the go need not wait for this host.
    pub(super) fn is_prepared(&self) -> bool {
        self.state != State::Preparing
    }

    /// Whether the subordinate has reported or failed.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Closed | State::Failed(_))
    }

    /// A number that grows with every message of progress from the subordinate.
    pub(super) fn progress(&self) -> u32 {
        self.progress.wrapping_add(self.have)
    }

    /// Sends the go, if the subordinate is ready.
    pub(super) fn start(&mut self, now: Timestamp) {
        if self.state == State::Ready {
            let timing = self.task.timing;
            self.state = State::Going { running: false };
            self.deadline = now + timing.report_limit(self.task.height(), &self.task.pace);
            self.poll_at = now;
        }
    }

    /// Time at which [`tick`](Self::tick) must be called next.
    pub(super) fn due(&self) -> Option<Timestamp> {
        (!self.is_over()).then(|| self.poll_at.min(self.deadline).min(self.silent_at()))
    }

    /// Time at which the subordinate counts as silent. Before it is ready for the first time, its
    /// limit for getting ready applies.
    fn silent_at(&self) -> Timestamp {
        match self.state {
            State::Preparing => Timestamp::MAX,
            _ => self.heard + self.task.timing.lease,
        }
    }

    /// The message to send after time has passed, if any.
    pub(super) fn tick(&mut self, now: Timestamp) -> Option<SurveyBody> {
        if self.is_over() {
            return None;
        }
        let silent = now >= self.silent_at();
        if silent || now >= self.deadline {
            let answered = !silent && self.state != State::Preparing;
            let reason = if answered { HostFailure::Unfinished } else { HostFailure::Silent };
            self.state = State::Failed(reason);
            return None;
        }
        if now < self.poll_at {
            return None;
        }
        self.poll_at = now + self.task.timing.poll;
        match self.state {
            State::Preparing => Some(SurveyBody::Task(self.task.clone())),
            State::Going { running: false } => Some(SurveyBody::Go),
            State::Ready | State::Going { .. } => Some(SurveyBody::Poll(0)),
            State::Reading { .. } => Some(SurveyBody::Poll(self.have)),
            State::Closed | State::Failed(_) => None,
        }
    }

    pub(super) fn take(&mut self, now: Timestamp, body: SurveyBody) {
        if self.is_over() {
            return;
        }
        self.heard = now;
        match body {
            SurveyBody::Status { phase, parts, progress } => {
                self.status(now, phase, parts, progress)
            }
            SurveyBody::Part { index, entries } => self.part(now, index, entries),
            SurveyBody::Refusal(reason) => self.state = State::Failed(reason),
            _ => {}
        }
    }

    fn status(&mut self, now: Timestamp, phase: Phase, parts: u32, progress: u32) {
        match (self.state, phase) {
            (State::Preparing, Phase::Ready) => self.state = State::Ready,
            (State::Going { running: false }, Phase::Running | Phase::Gathering) => {
                self.state = State::Going { running: true };
            }
            (State::Going { .. }, Phase::Done) => {
                self.state = State::Reading { parts };
                self.poll_at = now;
                self.close_if_read();
            }
            // The subordinate has restarted and lost the job, or the message is older than the job.
            (State::Ready | State::Going { .. } | State::Reading { .. }, Phase::None) => {
                self.state = State::Failed(HostFailure::Forgot);
            }
            _ => {}
        }
        if progress > self.progress {
            self.progress = progress;
            self.extend(now);
        }
    }

    /// Takes a part of the report. Parts arrive in order, and are requested by number, one window
    /// at a time.
    fn part(&mut self, now: Timestamp, index: u32, entries: Vec<ReportEntry>) {
        let State::Reading { .. } = self.state else { return };
        if index == self.have {
            self.have += 1;
            self.entries.extend(entries);
            self.extend(now);
            // The next parts are asked for when all parts of this window have come.
            if self.have.is_multiple_of(PARTS_PER_POLL) {
                self.poll_at = now;
            }
            self.close_if_read();
        }
    }

    /// Extends the limit by one step after progress.
    fn extend(&mut self, now: Timestamp) {
        if matches!(self.state, State::Going { .. } | State::Reading { .. }) {
            self.deadline = self.deadline.max(now + self.task.timing.step * 2);
        }
    }

    fn close_if_read(&mut self) {
        if let State::Reading { parts } = self.state
            && self.have >= parts
        {
            self.state = State::Closed;
        }
    }

    /// The report of the subordinate. After a failure, the entries name the subordinate and all
    /// hosts behind it.
    pub(super) fn report(&mut self) -> Vec<ReportEntry> {
        let mut entries = core::mem::take(&mut self.entries);
        let reason = match self.state {
            State::Closed => return entries,
            State::Failed(reason) => reason,
            _ => HostFailure::Unfinished,
        };
        // An incomplete report is dropped, because it would look like a complete report.
        entries.clear();
        let place = self.task.me().place;
        entries.push(ReportEntry::Failed { place, reason });
        let behind = |seat: &JobSeat| ReportEntry::Failed {
            place: seat.place,
            reason: HostFailure::Unreached(place),
        };
        entries.extend(self.task.seats.iter().skip(1).map(behind));
        entries
    }
}

/// Parts that answer one poll, half a megabyte in all.
pub(super) const PARTS_PER_POLL: u32 = 8;
