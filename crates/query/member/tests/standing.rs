//! Standing workers over UDP, as threads, and the messages of a feed as rows.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use evenfall_collectives_machine::group::GroupSettings;
use evenfall_collectives_member::{GroupSocket, GroupSocketOptions};
use evenfall_core::SharedKey;
use evenfall_feed_formats::MessageSource;
use evenfall_feed_formats::books::{BookRow, Books, BooksConfig};
use evenfall_feed_formats::codec::ITCH;
use evenfall_feed_formats::synthetic::{Config, Generator};
use evenfall_query_member::desk::made::{MadeFeed, play_rows};
use evenfall_query_member::desk::plain::{PlainRows, answer_plainly};
use evenfall_query_member::desk::recent::{RecentConfig, RecentRows};
use evenfall_query_member::desk::{DeskAsk, DeskOutput, DeskQuestion, DeskWorkerPlan};
use evenfall_query_member::standing_group::wire::{
    QUESTION_HEADER_BYTES, QuestionHeader, QuestionKind,
};
use evenfall_query_member::standing_group::{AskedAnswer, AskerEvent, BurstWorker, StandingConfig};
use evenfall_query_member::{DeskClient, FeedTap, SharedRows, answer_questions};

const WINDOW: Duration = Duration::from_secs(2);
const MARKOUT: Duration = Duration::from_millis(100);

fn settings() -> GroupSettings {
    let mut settings = GroupSettings::default();
    settings.shuffle.silence_max = Duration::from_millis(500);
    settings
}

fn bind(address: SocketAddr) -> GroupSocket {
    bind_under(address, None)
}

fn bind_under(address: SocketAddr, key: Option<SharedKey>) -> GroupSocket {
    let options = GroupSocketOptions { key, ..GroupSocketOptions::default() };
    GroupSocket::bind(address, options).expect("loopback")
}

/// A worker as a thread. It falls silent when the flag is set.
struct WorkerThread {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl WorkerThread {
    fn start(rows: &PlainRows, address: SocketAddr) -> Self {
        Self::start_under(rows, address, None)
    }

    fn start_under(rows: &PlainRows, address: SocketAddr, key: Option<SharedKey>) -> Self {
        let mut recent = RecentRows::new(RecentConfig::default());
        play_rows(rows, &mut recent);
        let plan = DeskWorkerPlan::new(SharedRows::new(recent), Vec::new());
        let (socket, worker) = (bind_under(address, key), BurstWorker::new(plan, settings()));
        let (address, is_over) = (socket.address(), Arc::new(AtomicBool::new(false)));
        let over = is_over.clone();
        let thread = spawn(move || {
            let mut malformed = 0;
            let mut each = |counters: evenfall_query_member::StandingCounters, _: &[_]| {
                malformed = counters.malformed;
                match over.load(Ordering::Relaxed) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            answer_questions(socket, worker, &mut each).expect("answers");
            malformed
        });
        Self { address, is_over, thread }
    }

    /// Ends the worker. The result is how many datagrams it did not understand.
    fn end(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("a worker")
    }
}

fn check(answer: &AskedAnswer<DeskOutput>, rows: &[PlainRows], ask: &DeskAsk, wanted: &[usize]) {
    assert_eq!(answer.workers, wanted, "{:?}", answer.missing);
    let rows: Vec<_> = wanted.iter().map(|&worker| rows[worker].clone()).collect();
    let plain = answer_plainly(&rows, ask, answer.output.window_ns);
    assert_eq!(answer.output.answer, Some(plain));
}

#[test]
fn workers_answer_one_falls_silent_and_comes_back() {
    let feed = made_feed(3);
    let rows: Vec<_> = (0..3).map(|worker| feed.rows_of(worker)).collect();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut workers: Vec<_> = rows.iter().map(|rows| WorkerThread::start(rows, any)).collect();
    let addresses: Vec<_> = workers.iter().map(|worker| worker.address).collect();
    let answer_within = Duration::from_secs(20);
    let config = StandingConfig { group: settings(), workers_min: 1, answer_within };
    let mut client = DeskClient::new(bind(any), addresses.clone(), config, 77);
    let of = DeskQuestion::Nbbo { markout: MARKOUT };
    let ask = DeskAsk { of, window: WINDOW, worst: 0, fills: feed.make_fills().into() };
    let mut answer = || match client.ask(ask.clone()).expect("asked") {
        AskerEvent::Answered(answer) => answer,
        AskerEvent::Unanswered { missing, .. } => panic!("{missing:?}"),
    };
    check(&answer(), &rows, &ask, &[0, 1, 2]);
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    stranger.send_to(b"what is this?", addresses[0]).expect("sent");
    workers.remove(1).end();
    let partial = answer();
    check(&partial, &rows, &ask, &[0, 2]);
    assert_eq!(partial.missing[0].address, addresses[1]);
    let late = WorkerThread::start(&rows[1], addresses[1]);
    // A question calls the missing worker too, but does not wait for the worker's answer.
    let back = (0..1_000).map(|_| answer()).find(|answer| answer.workers.len() == 3);
    check(&back.expect("the worker came back"), &rows, &ask, &[0, 1, 2]);
    assert_eq!(late.end(), 0);
    assert_eq!(workers.remove(0).end(), 1, "the stranger's datagram is counted");
    workers.remove(0).end();
}

fn made_feed(workers: usize) -> MadeFeed {
    MadeFeed {
        seed: 4,
        workers,
        symbols: 20,
        rows: 400,
        accounts: 1,
        positions: 0,
        fills: 10,
        span_ns: 4_000_000_000,
        by_venue: true,
    }
}

#[test]
fn a_key_seals_what_is_asked_and_another_key_or_a_second_copy_opens_nothing() {
    let (feed, any) = (made_feed(1), SocketAddr::from(([127, 0, 0, 1], 0)));
    let rows = [feed.rows_of(0)];
    let key = |byte| Some(SharedKey::new(1, [byte; 32]));
    let worker = WorkerThread::start_under(&rows[0], any, key(1));
    let of = DeskQuestion::Nbbo { markout: MARKOUT };
    let ask = DeskAsk { of, window: WINDOW, worst: 0, fills: feed.make_fills().into() };
    let asked = |address: SocketAddr, key: Option<SharedKey>, silence: Duration| {
        let mut group = settings();
        group.shuffle.silence_max = silence;
        let config = StandingConfig { group, workers_min: 1, answer_within: 10 * silence };
        let mut client = DeskClient::new(bind_under(any, key), vec![address], config, 7);
        client.ask(ask.clone()).expect("asked")
    };
    match asked(worker.address, key(1), Duration::from_secs(2)) {
        AskerEvent::Answered(answer) => check(&answer, &rows, &ask, &[0]),
        AskerEvent::Unanswered { missing, .. } => panic!("{missing:?}"),
    }
    for other in [None, key(2)] {
        let answer = asked(worker.address, other, Duration::from_millis(50));
        assert!(matches!(answer, AskerEvent::Unanswered { workers: 0, .. }), "{answer:?}");
    }
    // What a call looks like to a machine on the way.
    let tap = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    tap.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
    asked(tap.local_addr().expect("bound"), key(1), Duration::from_millis(50));
    let mut buffer = [0; 2_048];
    let length = tap.recv(&mut buffer).expect("a call");
    let call = &buffer[..length];
    // The random number of the process, the count, and the code.
    assert_eq!(length, QUESTION_HEADER_BYTES + 16 + 8 + 16);
    // Magic, version, kind, zeros and rank of a call.
    let plain = QuestionHeader::new(QuestionKind::Call, 0).encode();
    assert!(!call.windows(8).any(|part| part == &plain.as_slice()[..8]), "{call:?}");
    // The same call, sent on by another address: the worker answers it once.
    let passer = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    passer.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    let mut answers = 0;
    for _ in 0..2 {
        passer.send_to(call, worker.address).expect("sent");
        answers += usize::from(passer.recv(&mut [0; 2_048]).is_ok());
    }
    assert_eq!(answers, 1);
    assert!(worker.end() >= 3, "both other askers and the second copy are counted");
}

#[test]
fn messages_become_the_quotes_and_trades_of_their_books() {
    let config = Config { seed: 3, symbols: 5, messages: 5_000, ..Config::default() };
    let mut generator = Generator::new(config).expect("a feed");
    let next = || generator.next_message().expect("generated").map(|message| message.bytes);
    let messages: Vec<_> = std::iter::from_fn(next).collect();
    let (mut quotes, mut trades, mut unpriced) = (0, 0, 0);
    let mut books = Books::new(BooksConfig::default());
    let mut each = |row| match row {
        BookRow::Quote(_) => quotes += 1,
        BookRow::Trade(trade) if trade.price.is_some() => trades += 1,
        BookRow::Trade(_) => unpriced += 1,
    };
    for message in &messages {
        books.take(ITCH, message, &mut each);
    }
    books.end_nanosecond(&mut each);
    let mut recent = RecentRows::new(RecentConfig::default());
    let mut tap = FeedTap::new();
    for (at, message) in (0..).zip(&messages) {
        tap.push(0, at, ITCH, message, &mut recent);
    }
    tap.settle(&mut recent);
    let counters = recent.counters();
    assert!(quotes > 100 && trades > 0, "{quotes} quotes, {trades} trades");
    assert_eq!((counters.quotes, counters.trades), (quotes, trades));
    assert_eq!(counters.unpriced_trades, unpriced);
    assert!(recent.newest_ns() > Some(4_900), "{:?}", recent.newest_ns());
}
