//! The tables of trades and quotes beside rows that are written by hand.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    Decimal128Type, Int32Type, Int64Type, TimestampNanosecondType as TimestampType,
};
use arrow_array::{Array as _, RecordBatch};
use arrow_schema::{DataType, TimeUnit};
use evenfall_feed_formats::books::BooksConfig;
use evenfall_feed_formats::codec::{ITCH, LOBSTER};
use evenfall_feed_formats::itch::{
    AddOrder, Alpha, Code, OrderDelete, OrderExecuted, OrderExecutedWithPrice, OrderReplace,
    Price4, Stock, Trade,
};
use evenfall_feed_formats::{Format, MessageSource as _};
use evenfall_store_engine::{RecordSource, Store, StoreAckLevel};
use tempfile::TempDir;

use super::dated;
use crate::{RecordingWriter, RowSelection, Snapshot, StoreTables, TableName, Tables as _};

/// Midnight in New York, 2026-09-21.
pub(super) const MIDNIGHT_NS: i64 = 1_789_963_200_000_000_000;
pub(super) const OPEN_NS: u64 = 34_200_000_000_000;
/// From a message's own time to its release.
pub(super) const LATENCY_NS: i64 = 100;

/// A message of these nanoseconds after the open.
pub(super) struct TimedMessage {
    pub(super) format: Format,
    pub(super) ns: u64,
    pub(super) bytes: Vec<u8>,
}

fn itch(ns: u64, bytes: impl Into<Vec<u8>>) -> TimedMessage {
    TimedMessage { format: ITCH, ns, bytes: bytes.into() }
}

pub(super) fn add(ns: u64, reference: u64, side: u8, shares: u32, price: u32) -> TimedMessage {
    add_of(
        1,
        "AAPL",
        AddOrder {
            timestamp_ns: OPEN_NS + ns,
            order_reference: reference,
            side: Code(side),
            shares,
            price: Price4(price),
            ..AddOrder::default()
        },
    )
}

pub(super) fn add_of(stock_locate: u16, symbol: &str, order: AddOrder) -> TimedMessage {
    let stock: Stock = Alpha::new(symbol).unwrap();
    itch(order.timestamp_ns - OPEN_NS, AddOrder { stock_locate, stock, ..order }.encode())
}

pub(super) fn executed(
    ns: u64,
    stock_locate: u16,
    reference: u64,
    shares: u32,
    of: u64,
) -> TimedMessage {
    let done = OrderExecuted {
        stock_locate,
        timestamp_ns: OPEN_NS + ns,
        order_reference: reference,
        executed_shares: shares,
        match_number: of,
        ..OrderExecuted::default()
    };
    itch(ns, done.encode())
}

pub(super) fn replaced(
    ns: u64,
    old: u64,
    new_reference: u64,
    shares: u32,
    price: u32,
) -> TimedMessage {
    let replace = OrderReplace {
        stock_locate: 1,
        timestamp_ns: OPEN_NS + ns,
        original_reference: old,
        new_reference,
        shares,
        price: Price4(price),
        ..OrderReplace::default()
    };
    itch(ns, replace.encode())
}

pub(super) fn deleted(ns: u64, order_reference: u64) -> TimedMessage {
    let timestamp_ns = OPEN_NS + ns;
    let gone =
        OrderDelete { stock_locate: 1, timestamp_ns, order_reference, ..OrderDelete::default() };
    itch(ns, gone.encode())
}

pub(super) fn small_day() -> Vec<TimedMessage> {
    let with_price = OrderExecutedWithPrice {
        stock_locate: 1,
        timestamp_ns: OPEN_NS + 6,
        order_reference: 2,
        executed_shares: 20,
        match_number: 9,
        printable: Code(b'N'),
        execution_price: Price4(100_150),
        ..OrderExecutedWithPrice::default()
    };
    let hidden = Trade {
        stock_locate: 1,
        timestamp_ns: OPEN_NS + 7,
        order_reference: 0,
        side: Code(b'B'),
        shares: 300,
        stock: Alpha::new("AAPL").unwrap(),
        price: Price4(100_000),
        match_number: 10,
        ..Trade::default()
    };
    let ibm = AddOrder {
        timestamp_ns: OPEN_NS + 4,
        order_reference: 4,
        side: Code(b'S'),
        shares: 200,
        price: Price4(500_000),
        ..AddOrder::default()
    };
    vec![
        add(1, 1, b'B', 100, 100_000),
        add(2, 2, b'S', 50, 100_200),
        // What is undone within a nanosecond leaves no quote.
        add(3, 3, b'B', 30, 100_100),
        deleted(3, 3),
        // Two securities change in one nanosecond.
        add_of(2, "IBM", ibm),
        executed(4, 1, 1, 40, 7),
        replaced(5, 1, 5, 80, 99_900),
        executed(6, 1, 5, 10, 8),
        itch(6, with_price.encode()),
        itch(7, hidden.encode()),
        // Orders that were never added.
        executed(8, 2, 77, 5, 11),
        replaced(8, 78, 79, 10, 100_500),
        executed(9, 1, 79, 10, 12),
        deleted(9, 2),
    ]
}

/// `ts` from the open, then the other columns of each table.
const TRADES: [&str; 6] = [
    "0 6 4 E AAPL 100000 40 B 1 7 true",
    "0 8 6 E AAPL 99900 10 B 5 8 true",
    "0 9 6 C AAPL 100150 20 S 2 9 false",
    "0 10 7 P AAPL 100000 300 B - 10 true",
    "0 11 8 E IBM - 5 - 77 11 true",
    "0 13 9 E AAPL 100500 10 - 79 12 true",
];
const QUOTES: [&str; 7] = [
    "0 1 AAPL 100000 100 - -",
    "0 2 AAPL 100000 100 100200 50",
    "0 4 IBM - - 500000 200",
    "0 4 AAPL 100000 60 100200 50",
    "0 5 AAPL 99900 80 100200 50",
    "0 6 AAPL 99900 70 100200 30",
    "0 9 AAPL 99900 70 - -",
];

/// A store with the recording `r` of these streams.
pub(super) fn recorded(streams: &[Vec<TimedMessage>]) -> (TempDir, Arc<Store>) {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dated(dir.path())).unwrap().store);
    let count = streams.len() as u32;
    let mut writer = RecordingWriter::new(&store, "r", count, StoreAckLevel::Local).unwrap();
    for (stream, messages) in (0..).zip(streams) {
        for (number, message) in (0..).zip(messages) {
            let time_ns = MIDNIGHT_NS + (OPEN_NS + message.ns) as i64 + LATENCY_NS;
            writer.push(stream, number, time_ns, message.format, &message.bytes).unwrap();
        }
    }
    writer.flush().unwrap();
    drop(writer);
    (dir, store)
}

pub(super) fn tables(store: &Arc<Store>) -> StoreTables {
    let source: Arc<dyn RecordSource> = Arc::<Store>::clone(store);
    StoreTables::new(source)
}

pub(super) fn table(store: &Arc<Store>, name: &str) -> Arc<dyn Snapshot> {
    tables(store).open(&TableName::of_recording("r", name)).unwrap()
}

pub(super) fn scanned(
    of: &dyn Snapshot,
    rows: &RowSelection,
    columns: &[usize],
) -> Vec<RecordBatch> {
    let mut all = Vec::new();
    let mut each = |batch| {
        all.push(batch);
        ControlFlow::Continue(())
    };
    of.scan(rows, columns, &mut each).unwrap();
    all
}

/// A value as text, times from the open on.
fn text(batch: &RecordBatch, column: usize, row: usize) -> String {
    let array = batch.column(column);
    if array.is_null(row) {
        return "-".into();
    }
    match array.data_type() {
        DataType::Int32 => array.as_primitive::<Int32Type>().value(row).to_string(),
        DataType::Int64 => {
            let value = array.as_primitive::<Int64Type>().value(row);
            let is_ts = batch.schema().field(column).name() == "ts";
            (if is_ts { value - OPEN_NS as i64 } else { value }).to_string()
        }
        DataType::Decimal128(..) => array.as_primitive::<Decimal128Type>().value(row).to_string(),
        DataType::Utf8 => array.as_string::<i32>().value(row).to_owned(),
        DataType::Boolean => array.as_boolean().value(row).to_string(),
        DataType::Timestamp(TimeUnit::Nanosecond, zone) => {
            let ns = array.as_primitive::<TimestampType>().value(row);
            // New York is four hours behind UTC in September.
            let midnight_ns = MIDNIGHT_NS - zone.as_ref().map_or(4 * 3_600_000_000_000, |_| 0);
            (ns - midnight_ns - OPEN_NS as i64).to_string()
        }
        other => panic!("{other}"),
    }
}

pub(super) fn lines(of: &dyn Snapshot, rows: &RowSelection, columns: &[&str]) -> Vec<String> {
    let columns: Vec<usize> =
        columns.iter().map(|name| of.info().schema.index_of(name).unwrap()).collect();
    let mut all = Vec::new();
    for batch in scanned(of, rows, &columns) {
        for row in 0..batch.num_rows() {
            let values = (0..batch.num_columns()).map(|column| text(&batch, column, row));
            all.push(values.collect::<Vec<_>>().join(" "));
        }
    }
    all
}

const TRADE_COLUMNS: [&str; 11] = [
    "stream",
    "seq",
    "ts",
    "type",
    "symbol",
    "price",
    "shares",
    "side",
    "order_ref",
    "match",
    "printable",
];
const QUOTE_COLUMNS: [&str; 7] = ["stream", "ts", "symbol", "bid", "bid_size", "ask", "ask_size"];

/// Both tables, with the columns above.
pub(super) fn both(store: &Arc<Store>) -> [(Arc<dyn Snapshot>, &'static [&'static str]); 2] {
    [(table(store, "trades"), &TRADE_COLUMNS), (table(store, "quotes"), &QUOTE_COLUMNS)]
}

#[test]
fn trades_and_quotes_of_a_recording_are_the_rows_written_by_hand() {
    let (_dir, store) = recorded(&[small_day()]);
    let [(trades, trade_columns), (quotes, quote_columns)] = both(&store);
    assert_eq!(lines(&*trades, &trades.rows(), trade_columns), TRADES);
    assert_eq!(lines(&*quotes, &quotes.rows(), quote_columns), QUOTES);
    // The venue's clock, the same instant in UTC, and the time of the store.
    let times = ["time", "utc", "recorded", "ts"];
    let of_trades = lines(&*trades, &trades.rows(), &times);
    assert_eq!((&of_trades[0][..], &of_trades[3][..]), ("4 4 104 4", "7 7 107 7"));
    assert_eq!(lines(&*quotes, &quotes.rows(), &times)[6], "9 9 109 9");
    for (of, _) in both(&store) {
        assert_eq!(of.info().rows, None, "nobody has counted them");
        assert_eq!(of.summary(&of.rows()).unwrap().count, None);
        let messages = table(&store, "messages");
        assert_eq!(of.info().times, messages.info().times);
        let is_signed = |kind: &DataType| !kind.is_unsigned_integer();
        assert!(of.info().schema.fields().iter().all(|field| is_signed(field.data_type())));
        let rows = scanned(&*of, &of.rows(), &[]).iter().map(RecordBatch::num_rows).sum::<usize>();
        assert_eq!(rows, lines(&*of, &of.rows(), &["stream"]).len());
    }
    let named: Vec<_> = tables(&store).tables().unwrap();
    let named = named.iter().map(|info| &info.name.table[..]);
    assert!(named.eq(["messages", "trades", "quotes", "raw"]));
}

#[test]
fn rows_of_any_messages_are_part_of_the_whole_and_every_row_is_of_one_message() {
    let messages = small_day().len() as u64;
    let (_dir, store) = recorded(&[small_day()]);
    for (of, columns) in both(&store) {
        let whole = lines(&*of, &of.rows(), columns);
        for cut in 0..=messages {
            let selected = RowSelection::of(vec![0..cut, cut..messages]);
            let ranges = selected.ranges.iter().filter(|range| !range.is_empty());
            let mut joined = Vec::new();
            for range in ranges {
                joined.extend(lines(&*of, &RowSelection::of(vec![range.clone()]), columns));
            }
            assert_eq!(joined, whole, "cut at {cut}");
            assert_eq!(lines(&*of, &selected, columns), whole, "two ranges, cut at {cut}");
        }
        let opened_ns = MIDNIGHT_NS + OPEN_NS as i64 + LATENCY_NS;
        let some = of.between(opened_ns + 4, opened_ns + 6).unwrap();
        let column = columns.iter().position(|name| *name == "ts").unwrap();
        let is_of_time = |line: &&String| {
            let ts: u64 = line.split(' ').nth(column).unwrap().parse().unwrap();
            (4..=6).contains(&ts)
        };
        let expected: Vec<_> = whole.iter().filter(is_of_time).cloned().collect();
        assert_eq!(lines(&*of, &some, columns), expected);
    }
    // The middle of a nanosecond: a quote is of the last message that changed its symbol.
    let quotes = table(&store, "quotes");
    let of_message = |number| {
        let only = number..number + 1;
        lines(&*quotes, &RowSelection::of(vec![only]), &["symbol", "bid_size"])
    };
    assert_eq!(of_message(4), ["IBM -"]);
    assert_eq!(of_message(5), ["AAPL 60"]);
    // What a later message of the nanosecond undoes is of no message.
    assert_eq!((of_message(2), of_message(3)), (vec![], vec![]));
}

#[test]
fn each_stream_has_books_of_its_own_and_is_one_part() {
    let (_dir, store) = recorded(&[small_day(), small_day(), small_day()]);
    for (of, columns) in both(&store) {
        let one = match of.info().name.table.as_str() {
            "trades" => TRADES.to_vec(),
            _ => QUOTES.to_vec(),
        };
        let of_stream =
            |stream: usize| one.iter().map(move |line| format!("{stream}{}", &line[1..]));
        let all: Vec<String> = (0..3).flat_map(of_stream).collect();
        assert_eq!(lines(&*of, &of.rows(), columns), all);
        for (n, parts_of_n) in [(1, 1), (2, 2), (3, 3), (8, 3)] {
            let parts = of.parts(&of.rows(), n);
            assert_eq!(parts.len(), parts_of_n, "at most {n}");
            let read = parts.iter().flat_map(|part| lines(&*of, part, columns));
            assert!(read.eq(all.iter().cloned()), "at most {n}");
        }
        assert!(of.parts(&RowSelection::of(vec![]), 4).is_empty());
        let mut batches = 0;
        let mut stop = |_| {
            batches += 1;
            ControlFlow::Break(())
        };
        of.scan(&of.rows(), &[0], &mut stop).unwrap();
        assert_eq!(batches, 1);
        let wrong = of.scan(&of.rows(), &[14], &mut |_| ControlFlow::Continue(()));
        assert!(wrong.unwrap_err().to_string().contains("no column at place 14"));
    }
}

#[test]
fn a_reader_that_wants_no_row_of_a_day_can_end_the_scan() {
    // Orders alone: no message has a trade.
    let order = |number: u64| TimedMessage {
        format: LOBSTER,
        ns: number,
        bytes: format!("34200.{number:09},1,{number},100,5853300,1").into_bytes(),
    };
    let (_dir, store) = recorded(&[(1..40_000).map(order).collect()]);
    let [(trades, _), _] = both(&store);
    let (mut looks, mut end_after) = (0, 3);
    let mut each = |batch: RecordBatch| {
        assert_eq!(batch.num_rows(), 0);
        looks += 1;
        if looks == end_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    trades.scan(&trades.rows(), &[0], &mut each).unwrap();
    assert_eq!(looks, 2, "the scan is heard while it finds nothing");
    (looks, end_after) = (0, 1);
    let mut each = |_| {
        looks += 1;
        if looks == end_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    trades.scan(&trades.rows(), &[0], &mut each).unwrap();
    assert_eq!(looks, 1, "the scan goes on without a reader");
}

#[test]
fn lobster_states_price_and_side_and_messages_of_no_book_change_nothing() {
    let line = |ns: u64, rest: &str| TimedMessage {
        format: LOBSTER,
        ns,
        bytes: format!("34200.{ns:09},{rest}").into_bytes(),
    };
    let opaque = TimedMessage { format: Format::OPAQUE, ns: 2, bytes: vec![7; 30] };
    let torn = TimedMessage { format: ITCH, ns: 2, bytes: vec![b'E'; 5] };
    let messages = vec![
        line(1, "1,11,100,5853300,1"),
        line(2, "4,11,30,5853300,1"),
        opaque,
        torn,
        line(2, "5,0,7,5853350,-1"),
        line(3, "4,99,5,5853400,-1"),
    ];
    let (_dir, store) = recorded(&[messages]);
    let [(trades, _), (quotes, _)] = both(&store);
    let expected = [
        "0 2 2 4 - 5853300 30 B 11 - true",
        "0 5 2 5 - 5853350 7 S - - true",
        "0 6 3 4 - 5853400 5 S 99 - true",
    ];
    assert_eq!(lines(&*trades, &trades.rows(), &TRADE_COLUMNS), expected);
    let expected = ["0 1 - 5853300 100 - -", "0 2 - 5853300 70 - -"];
    assert_eq!(lines(&*quotes, &quotes.rows(), &QUOTE_COLUMNS), expected);
    // The messages that no book reads neither end a nanosecond nor have a row.
    let of_messages = |numbers| lines(&*quotes, &RowSelection::of(vec![numbers]), &["ts"]);
    assert_eq!((of_messages(1..2), of_messages(2..5)), (vec!["2".to_owned()], vec![]));
}

#[test]
fn more_orders_than_the_books_follow_are_an_error_and_no_wrong_quote() {
    let (_dir, store) = recorded(&[small_day()]);
    let few = tables(&store).with_books(BooksConfig { live_orders_max: 2 });
    let quotes = few.open(&TableName::of_recording("r", "quotes")).unwrap();
    let refused = quotes.scan(&quotes.rows(), &[0], &mut |_| ControlFlow::Continue(()));
    let refused = refused.unwrap_err().to_string();
    assert_eq!(refused, "table r.quotes: more than 2 orders are in the books at a time");
}

/// The project's real inputs, when they are there: `../shared/data` beside the repository, or
/// `EVENFALL_DATA`.
#[test]
fn a_real_session_has_a_trade_for_each_execution_and_quotes_that_differ() {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data");
    let folder = std::env::var_os("EVENFALL_DATA").map_or_else(beside, std::path::PathBuf::from);
    let Ok(file) = std::fs::File::open(folder.join("itch/nasdaq_20191230_aapl.itch50")) else {
        println!("skipped: no data (set EVENFALL_DATA)");
        return;
    };
    let mut source = evenfall_feed_formats::open(Box::new(file), "aapl").unwrap();
    let read = std::iter::from_fn(|| source.next_message().unwrap());
    let of = |message: evenfall_feed_formats::FeedMessage| {
        let bytes = message.bytes.to_vec();
        let ns = u64::from_be_bytes([&[0, 0], &bytes[5..11]].concat().try_into().unwrap());
        TimedMessage { format: ITCH, ns: ns - OPEN_NS, bytes }
    };
    let messages: Vec<TimedMessage> = read.map(of).collect();
    let executions = messages.iter().filter(|message| b"ECP".contains(&message.bytes[0])).count();
    let (_dir, store) = recorded(&[messages]);
    let [(trades, _), (quotes, _)] = both(&store);
    let all = lines(&*trades, &trades.rows(), &["type", "price", "symbol"]);
    assert!(all.len() == executions && executions > 1_000, "{} of {executions}", all.len());
    assert!(all.iter().all(|line| line.ends_with("AAPL")));
    assert!(!all.iter().any(|line| line.starts_with("C -") || line.starts_with("P -")));
    let quoted = lines(&*quotes, &quotes.rows(), &["ts", "bid", "bid_size", "ask", "ask_size"]);
    let split: Vec<_> = quoted.iter().map(|line| line.split_once(' ').unwrap()).collect();
    assert!(split.len() > 1_000);
    for pair in split.windows(2) {
        let [before, after] =
            pair.iter().map(|(ts, _)| ts.parse::<u64>().unwrap()).collect::<Vec<_>>()[..]
        else {
            unreachable!("two quotes")
        };
        assert!(before < after && pair[0].1 != pair[1].1, "{pair:?}");
    }
}
