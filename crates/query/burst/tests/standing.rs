//! A standing group in memory: answers, and answers without the dead, the hung and the refusing.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenfall_collectives_machine::ShuffleConfig;
use evenfall_collectives_machine::group::GroupSettings;
use evenfall_core::{Arrival, Destination, Machine, Prng, StampedBy, Timestamp, Transmit};
use evenfall_query_burst::desk::made::{MadeFeed, play_rows};
use evenfall_query_burst::desk::plain::{PlainRows, answer_plainly};
use evenfall_query_burst::desk::recent::{RecentConfig, RecentRows};
use evenfall_query_burst::desk::{
    DeskAsk, DeskOutput, DeskQuestion, DeskWorkerPlan, TimedQuestion,
};
use evenfall_query_burst::standing::wire::{QuestionHeader, QuestionKind};
use evenfall_query_burst::standing::{
    AskedAnswer, AskerEvent, BurstAsker, BurstWorker, MissingReason, StandingConfig, WorkMachine,
};

const STEP: Duration = Duration::from_micros(500);
const SILENCE: Duration = Duration::from_millis(100);

type DeskWorker = BurstWorker<DeskWorkerPlan<RecentRows>>;

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7_000 + node as u16))
}

fn settings() -> GroupSettings {
    let shuffle = ShuffleConfig {
        packet_bytes: 512,
        resend_after: Duration::from_millis(2),
        silence_max: SILENCE,
        ..ShuffleConfig::default()
    };
    GroupSettings { shuffle, ..GroupSettings::default() }
}

/// What happens to a node's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerFate {
    Lives,
    /// Gets and sends nothing.
    Dead,
    /// Dies when it has taken part in this many questions.
    DiesAfter(u64),
}

/// An asker, node 0, and its workers.
struct MemoryGroup {
    asker: BurstAsker<DeskAsk>,
    workers: Vec<DeskWorker>,
    fates: Vec<WorkerFate>,
    wire: Vec<(usize, Arrival)>,
    now: Timestamp,
    prng: Prng,
    loss: f64,
}

fn worker(rows: &PlainRows, keep: Duration) -> DeskWorker {
    let mut recent = RecentRows::new(RecentConfig { keep, ..RecentConfig::default() });
    play_rows(rows, &mut recent);
    BurstWorker::new(DeskWorkerPlan::new(recent, rows.positions.clone()), settings())
}

impl MemoryGroup {
    fn new(rows: &[PlainRows], seed: u64, loss: f64, workers_min: usize) -> Self {
        let config = StandingConfig {
            group: settings(),
            workers_min,
            answer_within: Duration::from_secs(3),
        };
        let addresses = (1..=rows.len()).map(address);
        Self {
            asker: BurstAsker::new(address(0), addresses, config, seed as u32),
            workers: rows.iter().map(|rows| worker(rows, Duration::from_secs(9))).collect(),
            fates: vec![WorkerFate::Lives; rows.len()],
            wire: Vec::new(),
            now: Timestamp::from_nanos(1_000_000_000),
            prng: Prng::new(seed),
            loss,
        }
    }

    fn is_dead(&self, node: usize) -> bool {
        let Some(worker) = node.checked_sub(1) else { return false };
        match self.fates[worker] {
            WorkerFate::Lives => false,
            WorkerFate::Dead => true,
            WorkerFate::DiesAfter(questions) => {
                self.workers[worker].counters().questions >= questions
            }
        }
    }

    fn put(&mut self, from: usize, transmit: Transmit) {
        let Destination::One(to) = transmit.to else { panic!("no groups") };
        let datagram = [transmit.head.as_slice(), &transmit.body].concat().into();
        let arrival = Arrival::new(address(from), datagram, self.now, StampedBy::User);
        self.wire.push((usize::from(to.port()) - 7_000, arrival));
    }

    fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        let mut wire = std::mem::take(&mut self.wire);
        self.prng.shuffle(&mut wire);
        for (to, arrival) in wire {
            if self.is_dead(to) || self.prng.chance(self.loss) {
                continue;
            }
            match to {
                0 => self.asker.handle(now, arrival).expect("ours"),
                to => self.workers[to - 1].handle(now, arrival).expect("ours"),
            }
        }
        while let Some(work) = self.asker.poll_work() {
            self.asker.handle_work(now, work.run());
        }
        if self.asker.poll_timeout().is_some_and(|due| due <= now) {
            self.asker.handle_timeout(now);
        }
        while let Some(transmit) = self.asker.poll_transmit(now) {
            self.put(0, transmit);
        }
        for at in 0..self.workers.len() {
            if self.is_dead(at + 1) {
                continue;
            }
            let worker = &mut self.workers[at];
            while let Some(work) = worker.poll_work() {
                worker.handle_work(now, work.run());
            }
            if worker.poll_timeout().is_some_and(|due| due <= now) {
                worker.handle_timeout(now);
            }
            while worker.poll_event().is_some() {}
            while let Some(transmit) = self.workers[at].poll_transmit(now) {
                self.put(at + 1, transmit);
            }
        }
    }

    fn ask(&mut self, ask: DeskAsk) -> AskerEvent<DeskOutput> {
        self.asker.ask(self.now, ask).expect("no other question");
        for _ in 0..20_000 {
            self.step();
            if let Some(event) = self.asker.poll_event() {
                return event;
            }
        }
        panic!("no end: {:?}", self.asker);
    }

    fn answer(&mut self, ask: DeskAsk) -> AskedAnswer<DeskOutput> {
        match self.ask(ask) {
            AskerEvent::Answered(answer) => answer,
            AskerEvent::Unanswered { missing, .. } => panic!("no answer: {missing:?}"),
        }
    }
}

fn feed(seed: u64, workers: usize, by_venue: bool) -> MadeFeed {
    MadeFeed {
        seed,
        workers,
        symbols: 6,
        rows: 150,
        accounts: 9,
        positions: 80,
        fills: 12,
        span_ns: 4_000_000_000,
        by_venue,
    }
}

fn ask(feed: &MadeFeed, of: DeskQuestion) -> DeskAsk {
    let window = Duration::from_secs(2);
    DeskAsk { of, window, worst: 4, fills: feed.make_fills().into() }
}

const NBBO: DeskQuestion = DeskQuestion::Nbbo { markout: Duration::from_millis(100) };

fn assert_plain(rows: &[PlainRows], ask: &DeskAsk, answer: &AskedAnswer<DeskOutput>) {
    let rows: Vec<_> = answer.workers.iter().map(|&worker| rows[worker].clone()).collect();
    let plain = answer_plainly(&rows, ask, answer.output.window_ns);
    assert_eq!(answer.output.answer, Some(plain), "{:?}", answer.missing);
}

#[test]
fn answers_are_those_of_plain_programs() {
    for seed in 0..30 {
        for (workers, of) in [(1, NBBO), (3, NBBO), (8, NBBO), (5, DeskQuestion::Reprice)] {
            let feed = feed(seed, workers, of == NBBO);
            let rows: Vec<_> = (0..workers).map(|worker| feed.rows_of(worker)).collect();
            let mut group = MemoryGroup::new(&rows, seed, 0.03, 1);
            let ask = ask(&feed, of);
            let answer = group.answer(ask.clone());
            assert_plain(&rows, &ask, &answer);
            // Under loss a worker may be left out, which the answer then says.
            assert_eq!(answer.workers.len() + answer.missing.len(), workers);
            assert!(answer.output.rows > 0 && answer.output.bytes_moved > 0);
        }
    }
}

#[test]
fn empty_workers_and_unknown_symbols_take_part() {
    let feed = feed(3, 3, true);
    let mut rows: Vec<_> = (0..3).map(|worker| feed.rows_of(worker)).collect();
    rows[1] = PlainRows::default();
    rows[2].quotes.iter_mut().for_each(|(_, quote)| quote.ask = None);
    for of in [NBBO, DeskQuestion::Reprice] {
        let mut group = MemoryGroup::new(&rows, 1, 0.0, 3);
        let ask = ask(&feed, of);
        let answer = group.answer(ask.clone());
        assert_plain(&rows, &ask, &answer);
        assert_eq!((answer.workers.len(), answer.attempts), (3, 1));
    }
}

#[test]
fn a_dead_worker_is_named_and_costs_time_once() {
    let feed = feed(5, 4, true);
    let rows: Vec<_> = (0..4).map(|worker| feed.rows_of(worker)).collect();
    let mut group = MemoryGroup::new(&rows, 1, 0.0, 2);
    group.fates[2] = WorkerFate::Dead;
    let ask = ask(&feed, NBBO);
    let first = group.answer(ask.clone());
    assert_plain(&rows, &ask, &first);
    assert_eq!(first.workers, [0, 1, 3]);
    assert_eq!(first.missing[0].address, address(3));
    assert_eq!(first.missing[0].why, MissingReason::Silent(SILENCE));
    assert!(first.took >= SILENCE && first.took < 2 * SILENCE, "{:?}", first.took);
    let second = group.answer(ask.clone());
    assert!(second.took < SILENCE, "{:?}", second.took);
    assert_eq!(second.missing, first.missing);
    // It comes back, is called with the others, and takes part in the next question at the latest.
    group.fates[2] = WorkerFate::Lives;
    group.answer(ask.clone());
    let last = group.answer(ask.clone());
    assert_eq!((last.workers.len(), last.missing.len()), (4, 0));
    assert_plain(&rows, &ask, &last);
}

#[test]
fn a_worker_that_dies_in_the_burst_is_named_by_the_others() {
    for victim in 0..5 {
        for of in [NBBO, DeskQuestion::Reprice] {
            let feed = feed(7, 5, of == NBBO);
            let rows: Vec<_> = (0..5).map(|worker| feed.rows_of(worker)).collect();
            let mut group = MemoryGroup::new(&rows, 1, 0.0, 3);
            let ask = ask(&feed, of);
            group.answer(ask.clone());
            group.fates[victim] = WorkerFate::DiesAfter(2);
            let answer = group.answer(ask.clone());
            assert_plain(&rows, &ask, &answer);
            assert_eq!(answer.missing.len(), 1, "{answer:?}");
            assert_eq!(answer.missing[0].worker, victim);
            assert!(answer.attempts == 2 && answer.took < 4 * SILENCE, "{answer:?}");
        }
    }
}

#[test]
fn fewer_workers_than_wanted_give_no_answer_and_all_names() {
    let feed = feed(5, 3, true);
    let rows: Vec<_> = (0..3).map(|worker| feed.rows_of(worker)).collect();
    let mut group = MemoryGroup::new(&rows, 1, 0.0, 2);
    group.fates = vec![WorkerFate::Dead, WorkerFate::Lives, WorkerFate::Dead];
    match group.ask(ask(&feed, NBBO)) {
        AskerEvent::Unanswered { workers, missing, .. } => {
            let names: Vec<_> = missing.iter().map(|missing| missing.worker).collect();
            assert_eq!((workers, names), (1, vec![0, 2]));
        }
        AskerEvent::Answered(answer) => panic!("{answer:?}"),
    }
    group.fates = vec![WorkerFate::Lives; 3];
    group.ask(ask(&feed, NBBO));
    assert_eq!(group.answer(ask(&feed, NBBO)).workers.len(), 3);
}

#[test]
fn a_worker_that_holds_less_refuses_by_name() {
    let feed = feed(5, 3, true);
    let rows: Vec<_> = (0..3).map(|worker| feed.rows_of(worker)).collect();
    let mut group = MemoryGroup::new(&rows, 1, 0.0, 2);
    group.workers[1] = worker(&rows[1], Duration::from_secs(1));
    let ask = ask(&feed, NBBO);
    let answer = group.answer(ask.clone());
    assert_plain(&rows, &ask, &answer);
    assert_eq!(answer.workers, [0, 2]);
    assert_eq!(answer.missing[0].why.to_string(), "refused: holds the last 1 s, not 2 s");
    assert_eq!(group.workers[1].counters().refused, 1);
}

#[test]
fn strangers_other_versions_and_other_questions_are_refused_and_counted() {
    let feed = feed(5, 1, true);
    let mut stands = worker(&feed.rows_of(0), Duration::from_secs(9));
    let now = Timestamp::from_nanos(1);
    let mut hand_in = |bytes: Vec<u8>| {
        stands.handle(now, Arrival::new(address(9), bytes.into(), now, StampedBy::User))
    };
    assert!(hand_in(b"nonsense".to_vec()).is_err());
    assert!(hand_in(vec![0; 100]).is_err());
    let call = QuestionHeader::new(QuestionKind::Call, 1).encode().as_slice().to_vec();
    let mut other = call.clone();
    other[2] = 7;
    hand_in(other).expect("answered");
    let mut unknown = call.clone();
    unknown[3] = 99;
    assert!(hand_in(unknown).is_err());
    let mut in_use = call.clone();
    in_use[4] = 1;
    assert!(hand_in(in_use).is_err());
    let body = evenfall_query_burst::standing::wire::AskBody {
        packet_bytes: 512,
        silence: SILENCE,
        workers: vec![address(1)],
        question: Bytes::from_static(b"what?"),
    };
    let payload = body.encode();
    let header = QuestionHeader { rank: 1, ..QuestionHeader::new(QuestionKind::Ask, 4) };
    hand_in([header.encode().as_slice(), &payload].concat()).expect("answered");
    let refusals: Vec<String> = std::iter::from_fn(|| stands.poll_transmit(now))
        .map(|transmit| String::from_utf8_lossy(&transmit.body).into_owned())
        .collect();
    assert_eq!(
        refusals,
        [
            "asked in version 7 of questions; this worker knows version 2",
            "a question of 5 bytes, and not 25"
        ]
    );
    let counters = stands.counters();
    assert_eq!((counters.other_versions, counters.refused, counters.questions), (1, 2, 0));
    assert!(TimedQuestion::decode(&[9; 25]).is_err());
}
