//! Trades and quotes that the store has, beside those that are made while they are read.

use std::sync::Arc;

use evenfall_core::Prng;
use evenfall_feed_formats::books::BooksConfig;
use evenfall_feed_formats::codec::LOBSTER;
use evenfall_feed_formats::itch::{AddOrder, Alpha, Code, Price4};
use evenfall_store_engine::{RecordSource, Store, StoreAckLevel};
use tempfile::TempDir;

use super::books::{
    LATENCY_NS, MIDNIGHT_NS, OPEN_NS, TimedMessage, add_of, both, deleted, executed, lines,
    recorded, replaced, small_day, table,
};
use super::dated;
use crate::derived::DerivedEdge;
use crate::writer::TakenMessage;
use crate::{
    Catalog, DepthTime, DerivedWriter, RecordingSnapshot, RecordingWriter, Recordings, RowSelection,
};

/// Messages of a seed about few orders of three securities. Most share their nanosecond with the
/// message before.
fn random_day(seed: u64, count: usize) -> Vec<TimedMessage> {
    let mut prng = Prng::new(seed);
    let mut ns = 1;
    let mut next = || {
        ns += u64::from(prng.below(3) == 0);
        let (order, other) = (prng.below(16) + 1, prng.below(16) + 1);
        let (shares, price) = (prng.below(4) as u32 * 50, 100_000 + prng.below(5) as u32 * 100);
        match prng.below(6) {
            0..=2 => {
                let place = order as usize % 3;
                let add = AddOrder {
                    timestamp_ns: OPEN_NS + ns,
                    order_reference: order,
                    side: Code(b"BS"[prng.below(2) as usize]),
                    shares,
                    price: Price4(price),
                    ..AddOrder::default()
                };
                add_of(place as u16 + 1, ["AAPL", "IBM", "MSFT"][place], add)
            }
            3 => executed(ns, order as u16 % 3 + 1, order, 50, prng.below(1_000)),
            4 => replaced(ns, order, other, shares, price),
            _ => deleted(ns, order),
        }
    };
    (0..count).map(|_| next()).collect()
}

/// Everything of both tables, with the times of the store too.
fn everything(store: &Arc<Store>) -> Vec<String> {
    let mut all = Vec::new();
    for (of, columns) in both(store) {
        let columns = [columns, &["time", "utc", "recorded"]].concat();
        all.extend(lines(&*of, &of.rows(), &columns));
    }
    all
}

/// A recording that is written message by message, with its trades and quotes.
struct LiveRecording {
    dir: TempDir,
    store: Arc<Store>,
}

impl LiveRecording {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dated(dir.path())).unwrap().store);
        Self { dir, store }
    }

    /// Records messages from a number on. `seen` looks at the tables after each message that is
    /// shown.
    fn record(
        &self,
        messages: &[TimedMessage],
        first: usize,
        prng: &mut Prng,
        seen: &mut dyn FnMut(usize),
    ) {
        let mut tape = RecordingWriter::new(&self.store, "r", 1, StoreAckLevel::Memory).unwrap();
        let mut tables = DerivedWriter::open(&self.store, "r", BooksConfig::default()).unwrap();
        for (number, message) in messages.iter().enumerate().skip(first) {
            let time_ns = MIDNIGHT_NS + (OPEN_NS + message.ns) as i64 + LATENCY_NS;
            tape.push(0, number as u64, time_ns, message.format, &message.bytes).unwrap();
            let indexed_ns = tape.indexed_ns();
            let (format, bytes) = (message.format, &message.bytes[..]);
            let number = number as u64;
            tables
                .push(TakenMessage { stream: 0, number, indexed_ns, time_ns, format, bytes })
                .unwrap();
            if prng.below(8) == 0 {
                tape.show().unwrap();
                while tables.catch_up(5).unwrap() {}
                tables.flush().unwrap();
                seen(number as usize + 1);
            }
        }
        tape.flush().unwrap();
        while tables.catch_up(5).unwrap() {}
        tables.flush().unwrap();
        seen(messages.len());
    }

    /// Another process goes on.
    fn again(self) -> Self {
        let store = Arc::into_inner(self.store).unwrap();
        store.close().unwrap();
        let store = Store::open(dated(self.dir.path())).unwrap().store;
        Self { dir: self.dir, store: Arc::new(store) }
    }
}

/// How far the store has rows: the edge of stream 0.
fn edge(store: &Arc<Store>) -> Option<DerivedEdge> {
    // Before the first row there are no files.
    store.file("r.0.derived").ok()?;
    crate::derived::last_edge(&**store, "r", 0).unwrap()
}

#[test]
fn stored_rows_are_the_rows_that_are_made_at_every_moment_of_a_recording() {
    for seed in 0..3 {
        let messages = random_day(seed, 120);
        let live = LiveRecording::new();
        let mut prng = Prng::new(seed + 1_000);
        live.record(&messages, 0, &mut prng, &mut |count| {
            let (_dir, made) = recorded(&[random_day(seed, 120).drain(..count).collect()]);
            assert_eq!(everything(&live.store), everything(&made), "seed {seed}, {count} messages");
            let told = edge(&live.store).map_or(0, |edge| edge.messages);
            assert!(told == count as u64 || everything(&made).is_empty(), "{told} of {count}");
        });
        let (_dir, made) = recorded(&[messages]);
        // Any part is the same part, by numbers and by times.
        for ((of, columns), (other, _)) in both(&live.store).into_iter().zip(both(&made)) {
            for _ in 0..40 {
                let (a, b) = (prng.below(121), prng.below(121));
                let range = a.min(b)..a.max(b);
                let rows = RowSelection::of(vec![range]);
                assert_eq!(lines(&*of, &rows, columns), lines(&*other, &rows, columns), "{rows:?}");
                let from = MIDNIGHT_NS + OPEN_NS as i64 + LATENCY_NS + prng.below(40) as i64;
                let to = from + prng.below(8) as i64;
                let (some, others) =
                    (of.between(from, to).unwrap(), other.between(from, to).unwrap());
                assert_eq!(lines(&*of, &some, columns), lines(&*other, &others, columns));
            }
            let whole = lines(&*of, &of.rows(), columns);
            let parts = of.parts(&of.rows(), 5);
            assert_eq!(parts.len(), 5, "stored rows are read side by side");
            let read = parts.iter().flat_map(|part| lines(&*of, part, columns));
            assert!(read.eq(whole.iter().cloned()));
        }
    }
}

#[test]
fn a_recorder_that_begins_again_makes_the_rows_that_are_missing_and_none_twice() {
    for seed in 0..4 {
        let messages = random_day(seed, 150);
        let mut prng = Prng::new(seed);
        let mut live = LiveRecording::new();
        let mut first = 0;
        // Some processes keep tables and some do not.
        for end in [40, 70, 110, 150] {
            if end == 70 {
                let mut tape =
                    RecordingWriter::new(&live.store, "r", 1, StoreAckLevel::Memory).unwrap();
                for (number, message) in messages.iter().enumerate().take(end).skip(first) {
                    let time_ns = MIDNIGHT_NS + (OPEN_NS + message.ns) as i64 + LATENCY_NS;
                    tape.push(0, number as u64, time_ns, message.format, &message.bytes).unwrap();
                }
                tape.flush().unwrap();
                drop(tape);
            } else {
                live.record(&messages[..end], first, &mut prng, &mut |_| {});
            }
            let (_dir, made) = recorded(&[random_day(seed, 150).drain(..end).collect()]);
            assert_eq!(everything(&live.store), everything(&made), "seed {seed}, {end} messages");
            live = live.again();
            first = end;
        }
        assert_eq!(edge(&live.store).unwrap().messages, 150);
    }
}

#[test]
fn rows_of_a_file_that_a_crash_took_have_the_times_of_their_messages() {
    let messages = random_day(5, 100);
    for lost in ["r.0.quotes", "r.0.trades"] {
        let live = LiveRecording::new();
        live.record(&messages, 0, &mut Prng::new(5), &mut |_| {});
        live.store.delete(lost).unwrap();
        let live = live.again();
        let mut tables = DerivedWriter::open(&live.store, "r", BooksConfig::default()).unwrap();
        while tables.catch_up(5).unwrap() {}
        tables.flush().unwrap();
        drop(tables);
        assert_eq!(edge(&live.store).unwrap().messages, 100);
        let (_dir, made) = recorded(&[random_day(5, 100)]);
        assert_eq!(everything(&live.store), everything(&made), "{lost}");
    }
}

#[test]
fn messages_without_rows_behind_an_edge_are_answered_by_their_books() {
    let messages = random_day(3, 100);
    let live = LiveRecording::new();
    live.record(&messages[..61], 0, &mut Prng::new(3), &mut |_| {});
    // A process that was killed between its messages and their rows.
    let mut tape = RecordingWriter::new(&live.store, "r", 1, StoreAckLevel::Memory).unwrap();
    for (number, message) in messages.iter().enumerate().skip(61) {
        let time_ns = MIDNIGHT_NS + (OPEN_NS + message.ns) as i64 + LATENCY_NS;
        tape.push(0, number as u64, time_ns, message.format, &message.bytes).unwrap();
    }
    tape.flush().unwrap();
    drop(tape);
    let (_dir, made) = recorded(&[messages]);
    assert_eq!(everything(&live.store), everything(&made));
    for ((of, columns), (other, _)) in both(&live.store).into_iter().zip(both(&made)) {
        for cut in 0..=100 {
            for range in [0..cut, cut..100] {
                let rows = RowSelection::of(vec![range]);
                assert_eq!(lines(&*of, &rows, columns), lines(&*other, &rows, columns), "{rows:?}");
            }
        }
    }
    assert_eq!(edge(&live.store).unwrap().messages, 61);
}

#[test]
fn an_edge_whose_rows_a_crash_took_is_not_believed() {
    let messages = random_day(5, 80);
    let live = LiveRecording::new();
    live.record(&messages, 0, &mut Prng::new(5), &mut |_| {});
    let told = edge(&live.store).unwrap();
    // The disk kept an edge, and not the rows in front of it.
    let lost = DerivedEdge { messages: 90, trades: told.trades + 3, ..told };
    let file = live.store.file("r.0.derived").unwrap();
    let record = lost.record(file.last_ns().unwrap());
    live.store.append(&file, &record, StoreAckLevel::Memory).unwrap();
    assert_eq!(edge(&live.store), Some(told));
    let (_dir, made) = recorded(&[messages]);
    assert_eq!(everything(&live.store), everything(&made));
    // The next process goes on from there.
    let live = live.again();
    let all = random_day(5, 100);
    live.record(&all, 80, &mut Prng::new(6), &mut |_| {});
    let (_dir, made) = recorded(&[all]);
    assert_eq!(everything(&live.store), everything(&made));
    assert_eq!(edge(&live.store).unwrap().messages, 100);
}

#[test]
fn files_of_trades_and_quotes_belong_to_their_recording() {
    let (_dir, store) = recorded(&[small_day()]);
    let before = everything(&store);
    let derive = || {
        let mut writer = DerivedWriter::open(&store, "r", BooksConfig::default()).unwrap();
        while writer.catch_up(3).unwrap() {}
        writer.flush().unwrap();
        writer.records()
    };
    assert_eq!(derive(), (6, 10));
    assert_eq!(derive(), (6, 10), "a second time changes nothing");
    assert_eq!(everything(&store), before);
    let catalog = Catalog::read(&*store).unwrap();
    assert_eq!(catalog.files().count(), 0, "no file is a user's");
    let names: Vec<_> =
        catalog.recording("r").unwrap().files().map(|file| file.name.clone()).collect();
    for name in ["r.0.trades", "r.0.quotes", "r.0.derived"] {
        assert!(names.iter().any(|known| known == name), "{names:?}");
    }
    let source: Arc<dyn RecordSource> = Arc::<Store>::clone(&store);
    let messages = RecordingSnapshot::open(source, catalog.recording("r").unwrap()).unwrap();
    assert_eq!(messages.streams().len(), 1);
    // A feed whose messages change no book has no such files.
    let mut opaque = RecordingWriter::new(&store, "o", 1, StoreAckLevel::Memory).unwrap();
    opaque.push(0, 0, MIDNIGHT_NS, evenfall_feed_formats::Format::OPAQUE, &[7; 20]).unwrap();
    opaque.flush().unwrap();
    let mut writer = DerivedWriter::open(&store, "o", BooksConfig::default()).unwrap();
    while writer.catch_up(3).unwrap() {}
    writer.flush().unwrap();
    assert_eq!(writer.records(), (0, 0));
    assert!(store.file("o.0.trades").is_err());
}

#[test]
fn rows_of_messages_that_name_none_have_the_symbol_that_the_recording_states() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dated(dir.path())).unwrap().store);
    let symbol = Alpha::new("AAPL");
    let mut writer = RecordingWriter::of_symbol(&store, "r", StoreAckLevel::Local, symbol).unwrap();
    for (number, line) in (0..).zip(["1,11,100,5853300,1", "4,11,30,5853300,1"]) {
        let ns = OPEN_NS + number;
        let bytes = format!("34200.{number:09},{line}");
        writer.push(0, number, MIDNIGHT_NS + ns as i64, LOBSTER, bytes.as_bytes()).unwrap();
    }
    writer.flush().unwrap();
    drop(writer);
    let symbols = |name: &str| {
        let of = table(&store, name);
        lines(&*of, &of.rows(), &["symbol"])
    };
    let of_all = || ["messages", "raw", "trades", "quotes"].map(symbols).concat();
    assert_eq!(of_all(), ["AAPL"; 7]);
    let mut derived = DerivedWriter::open(&store, "r", BooksConfig::default()).unwrap();
    while derived.catch_up(1).unwrap() {}
    derived.flush().unwrap();
    assert_eq!(derived.records(), (1, 2));
    drop(derived);
    assert_eq!(of_all(), ["AAPL"; 7], "out of files");
    let source: Arc<dyn RecordSource> = Arc::<Store>::clone(&store);
    let recording = Recordings::of(source).recording("r").unwrap();
    for asked in [Some("AAPL"), None] {
        let book = recording.depth_of(asked, DepthTime::Indexed(i64::MAX), 1, &|| true).unwrap();
        let best = book.and_then(|book| book.bids.first().copied()).unwrap();
        assert_eq!((best.price, best.shares), (5_853_300, 70), "{asked:?}");
    }
    assert_eq!(recording.named_symbols(&|| true).unwrap(), ["AAPL"]);
}

#[test]
fn books_that_cannot_follow_write_nothing_and_say_so() {
    let (_dir, store) = recorded(&[small_day()]);
    let few = BooksConfig { live_orders_max: 2 };
    let mut writer = DerivedWriter::open(&store, "r", few).unwrap();
    writer.catch_up(u64::MAX).unwrap();
    writer.flush().unwrap();
    assert_eq!(writer.given_up().collect::<Vec<_>>(), [0]);
    let trades = table(&store, "trades");
    assert_eq!(lines(&*trades, &trades.rows(), &["seq"]).len(), 6, "made while they are read");
}
