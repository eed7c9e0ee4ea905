//! A worker that stands: it answers roll calls and takes part in questions, several at a time.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenfall_collectives_machine::RankFailure;
use evenfall_collectives_machine::group::{GroupSettings, ProcessGroup};
use evenfall_collectives_machine::wire::{HEADER_BYTES, ShuffleHeader};
use evenfall_core::{
    Arrival, ClockReading, Destination, Machine, Malformed, Timestamp, TrafficClass, Transmit,
};

use super::wire::{
    AskBody, QUESTION_HEADER_BYTES, QUESTION_MAGIC, QUESTION_VERSION, QuestionHead, QuestionHeader,
    QuestionKind, encode_reason,
};
use super::{AnswerPlan, RankPlace, Waiting, WorkMachine, question_of};
use crate::burst::{Burst, BurstEvent, DoneWork, Work};

/// Questions that a worker answers at a time. Each may hold the rows of an exchange in memory, so
/// further askers are refused by name.
pub const QUESTIONS_MAX: usize = 8;
/// Ended questions that a worker remembers, so that it can repeat lost acknowledgements.
const ENDED_MAX: usize = 64;
/// Bytes of datagrams that are kept for questions which have not come yet: a fast rank's first
/// packets. The oldest go first, and their sender repeats them.
const EARLY_BYTES_MAX: usize = 4 << 20;
/// How long such datagrams are kept.
const EARLY_FOR: Duration = Duration::from_secs(1);
/// Answers that may wait to be sent. Further answers are dropped, and askers ask again.
const WAITING_MAX: usize = 1_024;
/// The least and the greatest silence that an asker may choose. Below, the load of a host alone
/// would name workers. Above, a dead asker would hold a question's memory for long.
pub const SILENCES: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(60)];

/// What a worker counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounters {
    /// Roll calls answered.
    pub calls: u64,
    /// Questions in which this worker took part.
    pub questions: u64,
    /// Questions that have ended with a failure here.
    pub failed: u64,
    /// Questions refused.
    pub refused: u64,
    /// Datagrams of another version.
    pub other_versions: u64,
    /// Datagrams of a burst whose question is not known here, dropped because they were too many or
    /// too old.
    pub early_dropped: u64,
    /// Answers that were dropped because too many waited.
    pub answers_dropped: u64,
}

/// Events of a worker for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerEvent {
    /// The worker takes part in a question.
    Began {
        /// Number of the question.
        number: u32,
        /// Address of the asker.
        asker: SocketAddr,
    },
    /// All ranks have what this worker sent.
    Ended {
        /// Number of the question.
        number: u32,
    },
    /// The burst of a question has failed.
    Failed {
        /// Number of the question.
        number: u32,
        /// Cause of the failure, with the rank to blame.
        failure: RankFailure,
        /// Address of the rank to blame, when the question has such a rank.
        blamed: Option<SocketAddr>,
    },
    /// The worker refused a question.
    Refused {
        /// Address of the asker.
        asker: SocketAddr,
        /// The reason.
        why: String,
    },
}

/// A question that this worker takes part in.
struct Session<P: AnswerPlan> {
    asker: SocketAddr,
    burst: Burst<P::Program>,
    /// When the session is forgotten, once it has ended.
    until: Option<Timestamp>,
    linger: Duration,
}

/// A worker that waits for questions. The documentation of the module shows the protocol.
pub struct BurstWorker<P: AnswerPlan> {
    plan: P,
    settings: GroupSettings,
    sessions: BTreeMap<u32, Session<P>>,
    early: VecDeque<(Timestamp, u32, Arrival)>,
    early_bytes: usize,
    waiting: VecDeque<Waiting>,
    events: VecDeque<WorkerEvent>,
    counters: WorkerCounters,
}

impl<P: AnswerPlan> BurstWorker<P> {
    /// A worker with this plan. Packet size and silence of the settings are those of each asker.
    pub fn new(plan: P, settings: GroupSettings) -> Self {
        Self {
            plan,
            settings,
            sessions: BTreeMap::new(),
            early: VecDeque::new(),
            early_bytes: 0,
            waiting: VecDeque::new(),
            events: VecDeque::new(),
            counters: WorkerCounters::default(),
        }
    }

    /// Counts so far.
    pub fn counters(&self) -> WorkerCounters {
        self.counters
    }

    /// Questions that are being answered.
    pub fn open_questions(&self) -> usize {
        self.sessions.values().filter(|session| session.until.is_none()).count()
    }

    fn say(&mut self, to: SocketAddr, header: QuestionHeader, payload: Bytes) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(Waiting { to, header, payload });
        } else {
            self.counters.answers_dropped += 1;
        }
    }

    fn refuse(&mut self, to: SocketAddr, number: u32, why: String) {
        let header = QuestionHeader::new(QuestionKind::Refused, number);
        self.say(to, header, encode_reason(&why));
        self.counters.refused += 1;
        self.events.push_back(WorkerEvent::Refused { asker: to, why });
    }

    fn handle_question(&mut self, now: Timestamp, arrival: &Arrival) -> Result<(), Malformed> {
        let from = arrival.from;
        match QuestionHeader::decode(&arrival.datagram)? {
            QuestionHead::OtherVersion { version, number } => {
                self.counters.other_versions += 1;
                let why = format!(
                    "asked in version {version} of questions; this worker knows version \
                     {QUESTION_VERSION}"
                );
                self.refuse(from, number, why);
            }
            QuestionHead::Known(header) => match header.kind {
                QuestionKind::Call => {
                    self.counters.calls += 1;
                    let held = self.plan.held();
                    let here = QuestionHeader {
                        rows: u32::try_from(held.rows).unwrap_or(u32::MAX),
                        newest_ns: held.newest_ns.unwrap_or(i64::MIN),
                        ..QuestionHeader::new(QuestionKind::Here, header.number)
                    };
                    self.say(from, here, Bytes::new());
                }
                QuestionKind::Ask => self.take_question(now, &header, arrival)?,
                QuestionKind::Here | QuestionKind::Taken | QuestionKind::Refused => {
                    return Err(Malformed { what: "an answer, sent to a worker", offset: 3 });
                }
            },
        }
        Ok(())
    }

    fn take_question(
        &mut self,
        now: Timestamp,
        header: &QuestionHeader,
        arrival: &Arrival,
    ) -> Result<(), Malformed> {
        let (number, asker) = (header.number, arrival.from);
        if let Some(session) = self.sessions.get(&number) {
            if session.asker == asker {
                // The answer was lost, and the asker asks again.
                self.say(asker, QuestionHeader::new(QuestionKind::Taken, number), Bytes::new());
            } else {
                self.refuse(asker, number, format!("question {number} is another asker's"));
            }
            return Ok(());
        }
        let body = AskBody::decode(&arrival.datagram.slice(QUESTION_HEADER_BYTES..))?;
        if self.open_questions() >= QUESTIONS_MAX {
            let why = format!("{QUESTIONS_MAX} questions are being answered already");
            self.refuse(asker, number, why);
            return Ok(());
        }
        match self.begin(now, asker, header, body) {
            Err(why) => self.refuse(asker, number, why),
            Ok(session) => {
                self.counters.questions += 1;
                self.sessions.insert(number, session);
                self.say(asker, QuestionHeader::new(QuestionKind::Taken, number), Bytes::new());
                self.events.push_back(WorkerEvent::Began { number, asker });
                self.follow(now, number);
                self.unstage(now, number);
            }
        }
        Ok(())
    }

    fn begin(
        &mut self,
        now: Timestamp,
        asker: SocketAddr,
        header: &QuestionHeader,
        body: AskBody,
    ) -> Result<Session<P>, String> {
        let ranks = body.workers.len() + 1;
        let place = RankPlace { rank: header.rank, ranks: ranks as u16 };
        if header.rank == 0 || usize::from(header.rank) >= ranks {
            return Err(format!("rank {} of {ranks} ranks is no worker", header.rank));
        }
        if !(64..=u32::from(u16::MAX) - HEADER_BYTES as u32).contains(&body.packet_bytes) {
            return Err(format!("packets of {} bytes", body.packet_bytes));
        }
        let program = self.plan.answer(&body.question, place)?;
        let mut settings = self.settings.clone();
        settings.epoch = header.number;
        settings.shuffle.packet_bytes = body.packet_bytes;
        settings.shuffle.silence_max = body.silence.clamp(SILENCES[0], SILENCES[1]);
        let linger = settings.shuffle.silence_max;
        let members: Vec<SocketAddr> = std::iter::once(asker).chain(body.workers).collect();
        let group = ProcessGroup::new(usize::from(header.rank), members, settings);
        let mut burst = Burst::new(group.map_err(|error| error.to_string())?);
        burst.start(now, program);
        Ok(Session { asker, burst, until: None, linger })
    }

    /// Tells the owner what has happened in a question.
    fn follow(&mut self, now: Timestamp, number: u32) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        while let Some(event) = session.burst.poll_event() {
            match event {
                // The answer is the asker's, and other ranks may still need what this rank sent.
                BurstEvent::Result { .. } => {}
                BurstEvent::Ended => {
                    session.until = Some(now + session.linger);
                    self.events.push_back(WorkerEvent::Ended { number });
                }
                BurstEvent::Failed(failure) => {
                    session.until = Some(now + session.linger);
                    self.counters.failed += 1;
                    let members = session.burst.group().members();
                    let blamed = members.get(usize::from(failure.rank())).copied();
                    self.events.push_back(WorkerEvent::Failed { number, failure, blamed });
                }
            }
        }
        let ended = self.sessions.values().filter(|session| session.until.is_some()).count();
        if ended > ENDED_MAX {
            let until = |(&number, session): (&u32, &Session<P>)| Some((session.until?, number));
            if let Some((_, oldest)) = self.sessions.iter().filter_map(until).min() {
                self.sessions.remove(&oldest);
            }
        }
    }

    fn stage(&mut self, now: Timestamp, number: u32, arrival: Arrival) {
        self.early_bytes += arrival.datagram.len();
        self.early.push_back((now, number, arrival));
        while self.early_bytes > EARLY_BYTES_MAX {
            self.drop_early();
        }
    }

    fn drop_early(&mut self) {
        if let Some((_, _, arrival)) = self.early.pop_front() {
            self.early_bytes -= arrival.datagram.len();
            self.counters.early_dropped += 1;
        }
    }

    fn unstage(&mut self, now: Timestamp, number: u32) {
        let (mine, others): (VecDeque<_>, VecDeque<_>) =
            core::mem::take(&mut self.early).into_iter().partition(|early| early.1 == number);
        self.early = others;
        for (_, _, arrival) in mine {
            self.early_bytes -= arrival.datagram.len();
            // The group counts what it cannot read.
            let _ = self.handle(now, arrival);
        }
    }
}

impl<P: AnswerPlan> WorkMachine for BurstWorker<P> {
    fn poll_work(&mut self) -> Option<Work> {
        self.sessions.values_mut().find_map(|session| session.burst.poll_work())
    }

    fn handle_work(&mut self, now: Timestamp, done: DoneWork) {
        let number = done.question();
        if let Some(session) = self.sessions.get_mut(&number) {
            session.burst.handle_work(now, done);
            self.follow(now, number);
        }
    }
}

impl<P: AnswerPlan> Machine for BurstWorker<P> {
    type Event = WorkerEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        if arrival.datagram.starts_with(&QUESTION_MAGIC) {
            return self.handle_question(now, &arrival);
        }
        let short = Malformed { what: "no datagram of a burst", offset: 0 };
        let number = question_of(&arrival.datagram).ok_or(short)?;
        let Some(session) = self.sessions.get_mut(&number) else {
            // Datagrams that the group would refuse are not kept for it.
            ShuffleHeader::decode(&arrival.datagram)?;
            self.stage(now, number, arrival);
            return Ok(());
        };
        let result = session.burst.handle(now, arrival);
        self.follow(now, number);
        result
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        while self.early.front().is_some_and(|early| now.since(early.0) >= EARLY_FOR) {
            self.drop_early();
        }
        self.sessions.retain(|_, session| session.until.is_none_or(|until| until > now));
        let due = |session: &Session<P>| session.burst.poll_timeout().is_some_and(|at| at <= now);
        let numbers: Vec<u32> = self
            .sessions
            .iter()
            .filter(|(_, session)| due(session))
            .map(|(&number, _)| number)
            .collect();
        for number in numbers {
            if let Some(session) = self.sessions.get_mut(&number) {
                session.burst.handle_timeout(now);
            }
            self.follow(now, number);
        }
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<WorkerEvent> {
        self.events.pop_front()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        if let Some(Waiting { to, header, payload }) = self.waiting.pop_front() {
            let head = header.encode();
            return Some(Transmit::new(TrafficClass::Control, Destination::One(to), head, payload));
        }
        self.sessions.values_mut().find_map(|session| session.burst.poll_transmit(now))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let sessions = self.sessions.values();
        let due = sessions.flat_map(|session| [session.burst.poll_timeout(), session.until]);
        let stale = self.early.front().map(|early| early.0 + EARLY_FOR);
        due.chain([stale]).flatten().min()
    }
}

impl<P: AnswerPlan> core::fmt::Debug for BurstWorker<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "BurstWorker({} questions)", self.sessions.len())
    }
}
