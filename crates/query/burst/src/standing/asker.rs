//! Whoever asks a standing group: calls the roll, asks, and asks again without those that failed.

use core::fmt;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenfall_collectives_machine::RankFailure;
use evenfall_collectives_machine::group::ProcessGroup;
use evenfall_core::{
    Arrival, ClockReading, Destination, Machine, Malformed, Timestamp, TrafficClass, Transmit,
};

use super::wire::{
    AskBody, QUESTION_HEADER_BYTES, QUESTION_MAGIC, QUESTION_PAYLOAD_MAX, QuestionHead,
    QuestionHeader, QuestionKind, decode_reason,
};
use super::{
    MissingReason, QuestionPlan, RankPlace, StandingConfig, Waiting, WorkMachine, question_of,
};
use crate::burst::{Burst, BurstEvent, BurstProgram, DoneWork, SortPhases, Work};

/// Ended attempts that are remembered, so that ranks which still run them are told the end.
const PAST_MAX: usize = 16;
/// Attempts in which the ranks may blame the asker. A rank that blames it again is left out.
const OWN_FAILURES_MAX: u32 = 2;

/// A worker that has no part in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingWorker {
    /// Place of the worker in the asker's list.
    pub worker: usize,
    /// Address of the worker.
    pub address: SocketAddr,
    /// Why it is missing.
    pub why: MissingReason,
}

/// An answer.
#[derive(Debug)]
pub struct AskedAnswer<O> {
    /// What the burst gave at rank 0.
    pub output: O,
    /// Time from the question to the answer, with roll calls and failed attempts.
    pub took: Duration,
    /// The phases of the last attempt at rank 0.
    pub phases: SortPhases,
    /// The workers that have a part in the answer, as places in the asker's list. Their ranks are
    /// 1, 2 and so on.
    pub workers: Vec<usize>,
    /// The workers that have none.
    pub missing: Vec<MissingWorker>,
    /// Bursts that were begun for this answer.
    pub attempts: u32,
}

/// Events of an asker for its owner. Each question has one.
#[derive(Debug)]
pub enum AskerEvent<O> {
    /// The answer.
    Answered(AskedAnswer<O>),
    /// There is no answer.
    Unanswered {
        /// Time from the question.
        took: Duration,
        /// Workers that would have a part.
        workers: usize,
        /// The workers that are missing.
        missing: Vec<MissingWorker>,
    },
}

/// Why a question was not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// An earlier question has no answer yet.
    #[error("an earlier question has no answer yet")]
    Busy,
}

/// A worker as the asker sees it.
#[derive(Debug)]
struct Known {
    address: SocketAddr,
    /// Why it is not waited for; `None` when it answered the last time.
    missing: Option<MissingReason>,
    /// Why it has no part in the present question, although it may answer calls.
    left_out: Option<MissingReason>,
    /// Why it has no part in the present attempt; it may have come back since.
    absent: Option<MissingReason>,
    /// The last call that it answered.
    called: Option<u32>,
    newest_ns: Option<i64>,
}

impl Known {
    fn has_part(&self) -> bool {
        self.missing.is_none() && self.left_out.is_none()
    }

    fn why_missing(&self) -> Option<MissingReason> {
        self.left_out.clone().or_else(|| self.missing.clone())
    }
}

/// A roll call or a burst of the present question.
enum Stage<P: QuestionPlan> {
    Idle,
    Calling {
        number: u32,
        since: Timestamp,
    },
    Asking {
        number: u32,
        since: Timestamp,
        /// Places of the workers, by rank from 1 on.
        workers: Vec<usize>,
        /// Whether each of them has said that it takes part.
        taken: Vec<bool>,
        body: Bytes,
        burst: Box<Burst<P::Program>>,
    },
}

/// The present question.
struct Pending<P> {
    plan: P,
    since: Timestamp,
    attempts: u32,
}

type Output<P> = <<P as QuestionPlan>::Program as BurstProgram>::Output;

/// An attempt that the asker has ended. Ranks that still run it are told of the end until a time.
struct PastAttempt<P: QuestionPlan> {
    number: u32,
    until: Timestamp,
    burst: Box<Burst<P::Program>>,
}

/// Asks a standing group, one question after the other. The documentation of the module shows the
/// protocol.
pub struct BurstAsker<P: QuestionPlan> {
    config: StandingConfig,
    own: SocketAddr,
    workers: Vec<Known>,
    next: u32,
    pending: Option<Pending<P>>,
    stage: Stage<P>,
    /// When calls and questions without an answer are sent again.
    again_at: Option<Timestamp>,
    past: VecDeque<PastAttempt<P>>,
    waiting: VecDeque<Waiting>,
    events: VecDeque<AskerEvent<Output<P>>>,
    foreign: u64,
}

impl<P: QuestionPlan> BurstAsker<P> {
    /// An asker of these workers. Numbers of questions begin with `first`, which should differ from
    /// those of other askers of the same workers: a random number.
    pub fn new(
        own: SocketAddr,
        workers: impl IntoIterator<Item = SocketAddr>,
        config: StandingConfig,
        first: u32,
    ) -> Self {
        let known = |address| Known {
            address,
            missing: None,
            left_out: None,
            absent: None,
            called: None,
            newest_ns: None,
        };
        Self {
            config,
            own,
            workers: workers.into_iter().map(known).collect(),
            next: first,
            pending: None,
            stage: Stage::Idle,
            again_at: None,
            past: VecDeque::new(),
            waiting: VecDeque::new(),
            events: VecDeque::new(),
            foreign: 0,
        }
    }

    /// Datagrams that came from no worker, or belong to no question.
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    /// Asks. The answer comes as an event.
    ///
    /// # Errors
    /// When an earlier question has no answer yet.
    pub fn ask(&mut self, now: Timestamp, plan: P) -> Result<(), AskError> {
        if self.pending.is_some() {
            return Err(AskError::Busy);
        }
        self.workers.iter_mut().for_each(|worker| worker.left_out = None);
        self.pending = Some(Pending { plan, since: now, attempts: 0 });
        self.call_roll(now);
        Ok(())
    }

    fn silence(&self) -> Duration {
        self.config.group.shuffle.silence_max
    }

    fn take_number(&mut self) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        number
    }

    fn call_roll(&mut self, now: Timestamp) {
        let number = self.take_number();
        self.stage = Stage::Calling { number, since: now };
        self.send_again(now);
        self.begin_when_all_are_here(now);
    }

    /// Sends the calls or questions of the stage to those that have not answered.
    fn send_again(&mut self, now: Timestamp) {
        self.again_at = Some(now + self.config.group.shuffle.resend_after);
        if self.waiting.len() > 2 * self.workers.len() {
            // The driver has no room. What waits is no other than what would be added.
            return;
        }
        match &self.stage {
            Stage::Idle => self.again_at = None,
            Stage::Calling { number, .. } => {
                let header = QuestionHeader::new(QuestionKind::Call, *number);
                let others = self
                    .workers
                    .iter()
                    .filter(|worker| worker.called != Some(*number) && worker.left_out.is_none());
                let call = |worker: &Known| {
                    let to = worker.address;
                    Waiting { to, header, payload: Bytes::new() }
                };
                self.waiting.extend(others.map(call));
            }
            Stage::Asking { number, workers, taken, body, .. } => {
                let open = workers.iter().zip(taken).enumerate().filter(|(_, (_, taken))| !**taken);
                for (at, (&worker, _)) in open {
                    let rank = at as u16 + 1;
                    let header =
                        QuestionHeader { rank, ..QuestionHeader::new(QuestionKind::Ask, *number) };
                    let to = self.workers[worker].address;
                    self.waiting.push_back(Waiting { to, header, payload: body.clone() });
                }
            }
        }
    }

    fn begin_when_all_are_here(&mut self, now: Timestamp) {
        let Stage::Calling { number, .. } = self.stage else { return };
        let is_here = |worker: &Known| !worker.has_part() || worker.called == Some(number);
        // A worker that was missing is not waited for, but somebody must be here.
        let any = self.workers.iter().any(|worker| worker.called == Some(number));
        if any && self.workers.iter().all(is_here) {
            self.begin(now);
        }
    }

    fn begin(&mut self, now: Timestamp) {
        let all = self.workers.iter().enumerate();
        let workers: Vec<usize> =
            all.filter(|(_, worker)| worker.has_part()).map(|(at, _)| at).collect();
        if workers.len() < self.config.workers_min.max(1) {
            return self.end_unanswered(now, workers.len());
        }
        self.workers.iter_mut().for_each(|worker| worker.absent = worker.why_missing());
        let number = self.take_number();
        let newest = workers.iter().filter_map(|&at| self.workers[at].newest_ns).max();
        let addresses: Vec<SocketAddr> =
            workers.iter().map(|&at| self.workers[at].address).collect();
        let Some(pending) = &mut self.pending else { return };
        pending.attempts += 1;
        let question = pending.plan.question(newest);
        let mut settings = self.config.group.clone();
        settings.epoch = number;
        let body = AskBody {
            packet_bytes: settings.shuffle.packet_bytes,
            silence: settings.shuffle.silence_max,
            workers: addresses.clone(),
            question: question.clone(),
        };
        let body = body.encode();
        let members = std::iter::once(self.own).chain(addresses).collect();
        let ranks = workers.len() as u16 + 1;
        let group = ProcessGroup::new(0, members, settings);
        let (Ok(group), true) = (group, body.len() <= QUESTION_PAYLOAD_MAX) else {
            return self.end_unanswered(now, workers.len());
        };
        let program = pending.plan.program(&question, RankPlace { rank: 0, ranks });
        let mut burst = Box::new(Burst::new(group));
        burst.start(now, program);
        let taken = vec![false; workers.len()];
        self.stage = Stage::Asking { number, since: now, workers, taken, body, burst };
        self.send_again(now);
        self.follow(now);
    }

    fn list_missing(&self, why: impl Fn(&Known) -> Option<MissingReason>) -> Vec<MissingWorker> {
        let missing = |(worker, known): (usize, &Known)| {
            Some(MissingWorker { worker, address: known.address, why: why(known)? })
        };
        self.workers.iter().enumerate().filter_map(missing).collect()
    }

    fn end_unanswered(&mut self, now: Timestamp, workers: usize) {
        self.retire(now, None);
        let Some(pending) = self.pending.take() else { return };
        let took = now.since(pending.since);
        let missing = self.list_missing(Known::why_missing);
        self.events.push_back(AskerEvent::Unanswered { took, workers, missing });
    }

    /// Ends the attempt. After a failure, the ranks are told that the attempt is given up.
    fn retire(&mut self, now: Timestamp, failure: Option<RankFailure>) {
        self.again_at = None;
        let stage = core::mem::replace(&mut self.stage, Stage::Idle);
        if let Stage::Asking { number, mut burst, .. } = stage {
            if let Some(failure) = failure {
                burst.give_up(failure);
            }
            let until = now + self.silence();
            self.past.push_back(PastAttempt { number, until, burst });
            while self.past.len() > PAST_MAX {
                self.past.pop_front();
            }
        }
    }

    /// Leaves the workers of these ranks out, and asks the others again.
    fn leave_out(&mut self, now: Timestamp, ranks: &[(u16, MissingReason)], is_lasting: bool) {
        let Stage::Asking { workers, .. } = &self.stage else { return };
        for (rank, why) in ranks {
            let Some(&worker) = workers.get(usize::from(*rank).wrapping_sub(1)) else { continue };
            let known = &mut self.workers[worker];
            known.left_out = Some(why.clone());
            if is_lasting {
                known.missing = Some(why.clone());
            }
        }
        let rank = ranks.first().map_or(0, |(rank, _)| *rank);
        self.retire(now, Some(RankFailure::Silent { rank }));
        self.call_roll(now);
    }

    /// Takes the events of the burst.
    fn follow(&mut self, now: Timestamp) {
        let Stage::Asking { burst, workers, .. } = &mut self.stage else { return };
        while let Some(event) = burst.poll_event() {
            match event {
                BurstEvent::Ended => {}
                BurstEvent::Result { output, phases, .. } => {
                    let workers = core::mem::take(workers);
                    let Some(pending) = self.pending.take() else { return };
                    let took = now.since(pending.since);
                    let missing = self.list_missing(|known| known.absent.clone());
                    let attempts = pending.attempts;
                    self.retire(now, None);
                    self.events.push_back(AskerEvent::Answered(AskedAnswer {
                        output,
                        took,
                        phases,
                        workers,
                        missing,
                        attempts,
                    }));
                    return;
                }
                BurstEvent::Failed(failure) => {
                    let attempts = self.pending.as_ref().map_or(0, |pending| pending.attempts);
                    let rank = match failure {
                        // The asker itself was silent, because its process was stopped: nobody else
                        // is to blame, and the same workers are asked again.
                        _ if failure.rank() == 0 && attempts <= OWN_FAILURES_MAX => 0,
                        RankFailure::Aborted { by, rank: 0, .. } => by,
                        other => other.rank(),
                    };
                    return self.leave_out(now, &[(rank, MissingReason::Failed(failure))], true);
                }
            }
        }
    }

    fn place_of(&self, address: SocketAddr) -> Option<usize> {
        self.workers.iter().position(|worker| worker.address == address)
    }

    fn handle_answer(&mut self, now: Timestamp, arrival: &Arrival) -> Result<(), Malformed> {
        let head = QuestionHeader::decode(&arrival.datagram)?;
        let Some(worker) = self.place_of(arrival.from) else {
            self.foreign += 1;
            return Ok(());
        };
        let header = match head {
            QuestionHead::Known(header) => header,
            QuestionHead::OtherVersion { version, .. } => {
                self.workers[worker].missing = Some(MissingReason::Version(version));
                self.begin_when_all_are_here(now);
                return Ok(());
            }
        };
        match header.kind {
            QuestionKind::Here => {
                let known = &mut self.workers[worker];
                (known.missing, known.called) = (None, Some(header.number));
                known.newest_ns = (header.newest_ns > i64::MIN).then_some(header.newest_ns);
                self.begin_when_all_are_here(now);
            }
            QuestionKind::Taken => {
                if let Stage::Asking { number, workers, taken, .. } = &mut self.stage
                    && *number == header.number
                    && let Some(at) = workers.iter().position(|&other| other == worker)
                {
                    taken[at] = true;
                }
            }
            QuestionKind::Refused => {
                let why = decode_reason(&arrival.datagram[QUESTION_HEADER_BYTES..]);
                self.take_refusal(now, worker, header.number, MissingReason::Refused(why));
            }
            QuestionKind::Call | QuestionKind::Ask => {
                return Err(Malformed { what: "a question, sent to an asker", offset: 3 });
            }
        }
        Ok(())
    }

    fn take_refusal(&mut self, now: Timestamp, worker: usize, to: u32, why: MissingReason) {
        match &self.stage {
            Stage::Asking { number, workers, .. } if *number == to => {
                if let Some(at) = workers.iter().position(|&other| other == worker) {
                    self.leave_out(now, &[(at as u16 + 1, why)], false);
                }
            }
            Stage::Calling { number, .. } if *number == to => {
                self.workers[worker].missing = Some(why);
                self.begin_when_all_are_here(now);
            }
            // Of an attempt that has ended.
            _ => {}
        }
    }

    /// Ends stages whose time is over.
    fn end_stage(&mut self, now: Timestamp) {
        let silence = self.silence();
        let silent = MissingReason::Silent(silence);
        match &self.stage {
            Stage::Calling { number, since } if now.since(*since) >= silence => {
                let number = *number;
                for worker in &mut self.workers {
                    if worker.has_part() && worker.called != Some(number) {
                        worker.missing = Some(silent.clone());
                    }
                }
                self.begin(now);
            }
            Stage::Asking { since, taken, .. } if now.since(*since) >= silence => {
                let open = taken.iter().zip(1..).filter(|(taken, _)| !**taken);
                let ranks: Vec<_> = open.map(|(_, rank)| (rank, silent.clone())).collect();
                if !ranks.is_empty() {
                    self.leave_out(now, &ranks, true);
                }
            }
            _ => {}
        }
    }

    fn stage_ends_at(&self) -> Option<Timestamp> {
        match &self.stage {
            Stage::Calling { since, .. } => Some(*since + self.silence()),
            Stage::Asking { since, taken, .. } => {
                taken.iter().any(|taken| !taken).then(|| *since + self.silence())
            }
            Stage::Idle => None,
        }
    }

    fn gives_up_at(&self) -> Option<Timestamp> {
        Some(self.pending.as_ref()?.since + self.config.answer_within)
    }
}

impl<P: QuestionPlan> WorkMachine for BurstAsker<P> {
    fn poll_work(&mut self) -> Option<Work> {
        match &mut self.stage {
            Stage::Asking { burst, .. } => burst.poll_work(),
            _ => None,
        }
    }

    fn handle_work(&mut self, now: Timestamp, done: DoneWork) {
        if let Stage::Asking { number, burst, .. } = &mut self.stage
            && *number == done.question()
        {
            burst.handle_work(now, done);
            self.follow(now);
        }
    }
}

impl<P: QuestionPlan> Machine for BurstAsker<P> {
    type Event = AskerEvent<Output<P>>;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        if arrival.datagram.starts_with(&QUESTION_MAGIC) {
            return self.handle_answer(now, &arrival);
        }
        let short = Malformed { what: "no datagram of a burst", offset: 0 };
        let question = question_of(&arrival.datagram).ok_or(short)?;
        if let Stage::Asking { number, burst, .. } = &mut self.stage
            && *number == question
        {
            let result = burst.handle(now, arrival);
            self.follow(now);
            return result;
        }
        if let Some(past) = self.past.iter_mut().find(|past| past.number == question) {
            let result = past.burst.handle(now, arrival);
            // The attempt has ended, and its events are no news.
            while past.burst.poll_event().is_some() {}
            return result;
        }
        self.foreign += 1;
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.past.retain(|past| past.until > now);
        for past in &mut self.past {
            if past.burst.poll_timeout().is_some_and(|due| due <= now) {
                past.burst.handle_timeout(now);
            }
            while past.burst.poll_event().is_some() {}
        }
        if let Stage::Asking { burst, .. } = &mut self.stage
            && burst.poll_timeout().is_some_and(|due| due <= now)
        {
            burst.handle_timeout(now);
            self.follow(now);
        }
        self.end_stage(now);
        if self.gives_up_at().is_some_and(|at| at <= now) {
            let workers = self.workers.iter().filter(|worker| worker.has_part()).count();
            if let Stage::Asking { burst, .. } = &mut self.stage {
                burst.give_up(RankFailure::Silent { rank: 0 });
            }
            self.end_unanswered(now, workers);
        }
        if self.again_at.is_some_and(|at| at <= now) {
            self.send_again(now);
        }
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<Self::Event> {
        self.events.pop_front()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        if let Some(Waiting { to, header, payload }) = self.waiting.pop_front() {
            let head = header.encode();
            return Some(Transmit::new(TrafficClass::Control, Destination::One(to), head, payload));
        }
        let running = match &mut self.stage {
            Stage::Asking { burst, .. } => burst.poll_transmit(now),
            _ => None,
        };
        running.or_else(|| self.past.iter_mut().find_map(|past| past.burst.poll_transmit(now)))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let running = match &self.stage {
            Stage::Asking { burst, .. } => burst.poll_timeout(),
            _ => None,
        };
        let past = self.past.iter();
        let past = past.flat_map(|past| [past.burst.poll_timeout(), Some(past.until)]);
        let own = [running, self.again_at, self.stage_ends_at(), self.gives_up_at()];
        past.chain(own).flatten().min()
    }
}

impl<P: QuestionPlan> fmt::Debug for BurstAsker<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BurstAsker({} workers)", self.workers.len())
    }
}
