//! Statements over a store on the disk.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenfall_store_engine::source::Each;
use evenfall_store_engine::{FileListing, RecordSource, Store, StoreConfig, StoreError};
use evenfall_store_recording::tables::StoreTables;

use evenfall_store_recording::tables::Tables;

/// A small generator of numbers, so that a failing case is replayed by its seed.
pub(crate) struct QuerySeed(u64);

impl QuerySeed {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        // xorshift64: good enough to scatter times and keys.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }
}

/// A store in a directory that is removed at the end.
pub(crate) struct TestStore {
    pub(crate) store: Arc<Store>,
    _dir: tempfile::TempDir,
}

impl TestStore {
    pub(crate) fn tables(&self) -> Arc<dyn Tables> {
        let source: Arc<dyn RecordSource> = self.store.clone();
        Arc::new(StoreTables::new(source))
    }
}

/// A store without a table.
pub(crate) fn empty_store() -> TestStore {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreConfig::new(dir.path())).unwrap().store;
    TestStore { store: Arc::new(store), _dir: dir }
}

use std::collections::BTreeMap;

use arrow::array::{AsArray as _, RecordBatch};
use arrow::datatypes::Int64Type;
use evenfall_feed_formats::codec::{ITCH, MACH};
use evenfall_feed_formats::itch::{AddOrder, Alpha, Code, OrderExecuted, Price4};
use evenfall_store_engine::StoreAckLevel;
use evenfall_store_format::{FieldType, Schema};
use evenfall_store_recording::RecordingWriter;
use futures_util::{StreamExt as _, TryStreamExt as _};

use crate::{EngineLimits, QueryEngine, QuerySession};

/// 2026-11-20 14:30:00 UTC, half past nine in New York.
const OPEN_NS: i64 = 1_795_185_000_000_000_000;

/// Half past nine as ITCH counts.
const OPEN_TS: u64 = 34_200_000_000_000;

impl TestStore {
    pub(crate) fn session(&self) -> QuerySession {
        let engine = QueryEngine::new(self.tables(), BTreeMap::new(), EngineLimits::default());
        engine.unwrap().session(None, "evenfall").unwrap()
    }

    /// Records an order of each symbol and its execution, a millisecond apart.
    pub(crate) fn record(&self, name: &str, orders: std::ops::Range<u64>) {
        let mut writer = RecordingWriter::new(&self.store, name, 1, StoreAckLevel::Memory).unwrap();
        for order in orders {
            let stock = Alpha::new(["AAPL", "MSFT", "TEST"][order as usize % 3]).unwrap();
            let locate = (order % 3) as u16 + 1;
            let at =
                |step: u64| (OPEN_NS + ((2 * order + step) * 1_000_000) as i64, 2 * order + step);
            let (time_ns, number) = at(0);
            let add = AddOrder {
                stock_locate: locate,
                timestamp_ns: OPEN_TS + 2 * order * 1_000_000,
                order_reference: order + 1,
                side: Code(b'B'),
                shares: 100 + order as u32,
                stock,
                price: Price4(1_000_000 + order as u32),
                ..AddOrder::default()
            };
            writer.push(0, number, time_ns, ITCH, &add.encode()).unwrap();
            let (time_ns, number) = at(1);
            let done = OrderExecuted {
                stock_locate: locate,
                timestamp_ns: OPEN_TS + (2 * order + 1) * 1_000_000,
                order_reference: order + 1,
                executed_shares: 10,
                match_number: order,
                ..OrderExecuted::default()
            };
            writer.push(0, number, time_ns, ITCH, &done.encode()).unwrap();
        }
        writer.flush().unwrap();
    }
}

async fn rows_of(session: &QuerySession, sql: &str) -> Vec<RecordBatch> {
    let running = session.run(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    running.stream.try_collect().await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

async fn number(session: &QuerySession, sql: &str) -> Option<i64> {
    let batches = rows_of(session, sql).await;
    let batch = batches.iter().find(|batch| batch.num_rows() > 0)?;
    let column = arrow::compute::cast(batch.column(0), &arrow::datatypes::DataType::Int64).unwrap();
    column.as_primitive::<Int64Type>().iter().next().flatten()
}

async fn error(session: &QuerySession, sql: &str) -> String {
    match session.run(sql).await {
        Err(error) => error.to_string(),
        Ok(running) => match running.stream.try_collect::<Vec<_>>().await {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{sql} is answered"),
        },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_sees_each_append_that_had_returned() {
    let store = empty_store();
    store.record("day", 0..10);
    let session = store.session();
    assert_eq!(number(&session, "SELECT count(*) FROM messages").await, Some(20));
    store.record("day", 10..11);
    assert_eq!(number(&session, "SELECT count(*) FROM messages").await, Some(22));
    let last = "SELECT ts FROM day.messages ORDER BY seq DESC LIMIT 1";
    assert_eq!(number(&session, last).await, Some((OPEN_TS + 21 * 1_000_000) as i64));
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_are_typed_as_traders_expect() {
    let store = empty_store();
    store.record("day", 0..6);
    let session = store.session();
    let sql = "SELECT sum(-shares) FROM messages WHERE type = 'E' AND symbol = 'AAPL'";
    assert_eq!(number(&session, sql).await, Some(-20));
    let sql = "SELECT count(*) FROM messages WHERE price IS NULL AND type = 'E'";
    assert_eq!(number(&session, sql).await, Some(6));
    // The wall clock of the venue, and the instant.
    let sql = "SELECT count(*) FROM messages WHERE time >= '2026-11-20 09:30:00' \
               AND time < '2026-11-20 09:30:00.004' AND utc >= '2026-11-20T14:30:00Z'";
    assert_eq!(number(&session, sql).await, Some(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn times_that_are_not_asked_for_are_not_read() {
    let store = empty_store();
    store.record("day", 0..20_000);
    let session = store.session();
    let sql = "SELECT count(*) FROM messages WHERE recorded >= '2026-11-20T14:30:39.990Z'";
    let mut running = session.run(sql).await.unwrap();
    while running.stream.try_next().await.unwrap().is_some() {}
    let (read, skipped) = (running.counters().rows_read(), running.counters().rows_skipped());
    assert!(read < 2_000, "{read} of 40,000 rows were read");
    assert!(skipped > 38_000, "{skipped} rows were skipped");
    assert_eq!(number(&session, sql).await, Some(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn trades_and_quotes_come_out_of_the_messages() {
    let store = empty_store();
    store.record("day", 0..6);
    let session = store.session();
    assert_eq!(number(&session, "SELECT count(*) FROM trades").await, Some(6));
    // An execution has the price and the side of its order.
    let sql = "SELECT round(sum(price * 10000)) FROM trades WHERE side = 'B'";
    let prices: i64 = (0..6).map(|order| 1_000_000 + order).sum();
    assert_eq!(number(&session, sql).await, Some(prices));
    assert_eq!(
        number(&session, "SELECT count(*) FROM (SELECT * FROM trades LIMIT 2)").await,
        Some(2)
    );
    let sql = "SELECT count(*) FROM trades t ASOF JOIN quotes q MATCH_CONDITION (t.ts > q.ts) \
               ON t.symbol = q.symbol WHERE q.bid IS NOT NULL";
    assert_eq!(number(&session, sql).await, Some(6));
}

#[tokio::test(flavor = "multi_thread")]
async fn names_mean_the_recording_that_is_searched_first() {
    let store = empty_store();
    store.record("a", 0..1);
    let schema = Schema::of(&[("time", FieldType::Time), ("size", FieldType::U32)]);
    let file = store.store.create("fills", &schema).unwrap();
    let mut record = OPEN_NS.to_le_bytes().to_vec();
    record.extend(7u32.to_le_bytes());
    store.store.append(&file, &record, StoreAckLevel::Memory).unwrap();
    let session = store.session();
    assert_eq!(session.searched_first(), "a");
    assert_eq!(number(&session, "SELECT size FROM fills").await, Some(7));
    assert_eq!(number(&session, "SELECT size FROM public.fills").await, Some(7));
    store.record("b", 0..2);
    let engine =
        QueryEngine::new(store.tables(), BTreeMap::new(), EngineLimits::default()).unwrap();
    let session = engine.session(Some("b"), "b").unwrap();
    assert_eq!(number(&session, "SELECT count(*) FROM messages").await, Some(4));
    assert_eq!(number(&session, "SELECT count(*) FROM a.messages").await, Some(2));
    // Two recordings and no word which: a name needs its schema.
    let session = engine.session(Some("nosuch"), "evenfall").unwrap();
    assert_eq!(session.searched_first(), "public");
    assert!(error(&session, "SELECT 1 FROM messages").await.contains("messages"));
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_columns_one_over_the_other_are_made_once_each() {
    let store = empty_store();
    let session = store.session();
    for (column, expected) in [("x * 2", 16), ("x + 1", 5)] {
        let sql = (0..4).fold("VALUES (1)".to_owned(), |below, level| {
            let from = if level == 0 { format!("({below}) AS t(x)") } else { format!("({below})") };
            format!("SELECT {column} AS x FROM {from}")
        });
        assert_eq!(number(&session, &sql).await, Some(expected), "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_statements_that_read_are_taken() {
    let store = empty_store();
    store.record("day", 0..1);
    let session = store.session();
    let out = tempfile::tempdir().unwrap();
    let copy = format!("COPY (SELECT 1) TO '{}/x.csv'", out.path().display());
    for sql in [
        "CREATE TABLE t AS SELECT 1",
        "INSERT INTO messages VALUES (1)",
        "DROP TABLE messages",
        "SET datafusion.execution.batch_size = 1",
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/etc/passwd'",
        &copy,
    ] {
        error(&session, sql).await;
    }
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0, "a file was written");
    error(&session, "SELECT * FROM '/etc/passwd'").await;
    let long = format!("SELECT '{}'", "x".repeat(2 << 20));
    assert!(error(&session, &long).await.contains("--statement-bytes"));
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_of_time_give_what_a_plain_sum_gives() {
    let store = empty_store();
    store.record("day", 0..9);
    let session = store.session();
    let sql = "SELECT count(DISTINCT time_bucket('4 milliseconds', time)) FROM messages";
    assert_eq!(number(&session, sql).await, Some(5));
    let sql =
        "SELECT time_bucket(4000000, ts) - 34200000000000 FROM messages ORDER BY 1 DESC LIMIT 1";
    assert_eq!(number(&session, sql).await, Some(16_000_000));
    // Prices are 100.0000 + order; the weights are the shares.
    let sql = "SELECT round(vwap(price, shares) * 10000) FROM messages WHERE type = 'A'";
    let weighted: f64 = (0..9).map(|o| (1_000_000 + o) as f64 * (100 + o) as f64).sum();
    let shares: f64 = (0..9).map(|o| (100 + o) as f64).sum();
    assert_eq!(number(&session, sql).await, Some((weighted / shares).round() as i64));
    let sql =
        "SELECT first(order_ref, ts) * 100 + last(order_ref, ts) FROM messages WHERE type = 'A'";
    assert_eq!(number(&session, sql).await, Some(109));
    // Each price stood for two milliseconds until the next, and the last for no known time.
    let sql = "SELECT round(twap(price, ts) * 100000) FROM messages WHERE type = 'A'";
    assert_eq!(number(&session, sql).await, Some(10_000_035));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_size_without_a_price_weighs_nothing_in_a_vwap() {
    let store = empty_store();
    let session = store.session();
    let sql = "SELECT vwap(price, size) FROM (VALUES (10, 1), (20, 3), (NULL, 96)) t(price, size)";
    assert_eq!(number(&session, &sql.replace("vwap", "2 * vwap")).await, Some(34));
    let sql = "SELECT vwap(price, size) FROM (VALUES (10, 0), (NULL, 5)) t(price, size)";
    assert_eq!(number(&session, sql).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_tables_of_a_statement_end_at_one_message() {
    let store = empty_store();
    store.record("day", 0..4);
    let session = store.session();
    let sql = "SELECT (SELECT count(*) FROM messages) * 1000000 + (SELECT count(*) FROM raw) \
               + (SELECT count(*) FROM trades) * 1000";
    let statement = session.parse(sql).unwrap().pop().unwrap();
    let plan = session.plan(statement).await.unwrap();
    store.record("day", 4..9);
    let running = session.start(plan).await.unwrap();
    let batches: Vec<RecordBatch> = running.stream.try_collect().await.unwrap();
    assert_eq!(batches[0].column(0).as_primitive::<Int64Type>().value(0), 8_004_008);
    assert_eq!(number(&session, sql).await, Some(18_009_018));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_book_has_the_orders_of_its_moment() {
    let store = empty_store();
    // Orders of AAPL are 1, 4 and 7: 90, 93 and 96 shares are left of them.
    store.record("day", 0..9);
    let session = store.session();
    let at =
        |time: &str, levels: usize| format!("SELECT * FROM book('day', 'AAPL', {time}, {levels})");
    let sum = |of: &str, from: String| format!("SELECT {of} FROM ({from}) b");
    for (time, sizes) in [
        ("TIMESTAMP '2026-11-20 09:30:00'", Some(100)),
        ("'2026-11-20 09:30:00.000999999'", Some(100)),
        // The moment's own messages are in it.
        ("'09:30:00.001'", Some(90)),
        ("TIMESTAMPTZ '2026-11-20T14:30:00.006Z'", Some(90 + 103)),
        ("'2026-11-20T09:30:00.017-05:00'", Some(90 + 93 + 96)),
        ("TIMESTAMP '2026-11-21 00:00:00'", Some(90 + 93 + 96)),
        ("TIMESTAMP '2026-11-20 09:29:59.999999999'", None),
        ("DATE '2026-11-20'", None),
    ] {
        let sql = sum("sum(size)", at(time, 10));
        assert_eq!(number(&session, &sql).await, sizes, "{time}");
    }
    let end = "TIMESTAMP '2026-11-20 16:00:00'";
    let sql = sum("round(max(price) * 10000)", at(end, 1));
    assert_eq!(number(&session, &sql).await, Some(1_000_006));
    let sql = sum("sum(level) * 100 + count(*) * 10 + sum(orders)", at(end, 2));
    assert_eq!(number(&session, &sql).await, Some(322));
    assert_eq!(
        number(&session, &sum("count(*) FILTER (WHERE side <> 'B')", at(end, 9))).await,
        Some(0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_book_is_answered_with_what_there_is() {
    let store = empty_store();
    store.record("day", 0..9);
    let session = store.session();
    for (arguments, words) in [
        ("'dya', 'AAPL', '09:31', 5", "there is no recording dya; the nearest are day"),
        ("'day', 'APPL', '09:31', 5", "names the symbol APPL; the nearest are AAPL"),
        ("'day', 'NOTASYMBOL', '09:31', 5", "names the symbol NOTASYMBOL; the nearest are"),
        ("'day', NULL, '09:31', 5", "name one of them"),
        ("'day', 'AAPL', 'noon', 5", "noon is no time: 2026-11-21"),
        ("'day', 'AAPL', 5, 5", "5 in the place of a time"),
        ("'day', 'AAPL', '09:31', 0", "ask for 1 or more"),
        ("'day', 'AAPL', '09:31'", "found 3 arguments"),
        ("'day', 'AAPL', '09:31', 1.5", "1.5 levels"),
    ] {
        let said = error(&session, &format!("SELECT * FROM book({arguments})")).await;
        assert!(said.contains(words), "{arguments}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mistake_in_a_statement_is_answered_with_what_is_right_in_plain_words() {
    let store = empty_store();
    store.record("day", 0..9);
    store.record("night", 0..9);
    let session = store.session();
    for (sql, words) in [
        ("SELECT * FROM trades", ["name one of ", "night.trades"]),
        ("SELECT * FROM trades", ["'evenfall.public.trades' not found", "day.trades"]),
        ("SELECT * FROM day.tradez", ["not found", "the nearest are day.trades"]),
        ("SELEC 1", ["an SQL statement, found: SELEC", "Line: 1, Column: 1"]),
        ("SELECT 'one", ["Unterminated string literal", "Line: 1"]),
        ("DROP TABLE day.trades", ["only statements that read are taken", "store create"]),
    ] {
        let error = session.run(sql).await.err().unwrap_or_else(|| panic!("{sql} is answered"));
        let said = crate::error_words(&error);
        assert!(words.iter().all(|word| said.contains(word)), "{sql}: {said}");
        for debug in ["Error during", "ParserError", "TokenizerError", "Bare {"] {
            assert!(!said.contains(debug), "{sql}: {said}");
        }
    }
}

/// Files of the store have no nulls and no text: time, key and value.
fn stored_file(store: &TestStore, name: &str, rows: &[(i64, u32)]) {
    let fields = [("time", FieldType::Time), ("key", FieldType::U32), ("value", FieldType::U32)];
    let file = store.store.create(name, &Schema::of(&fields)).unwrap();
    let mut records = Vec::new();
    for (value, (time, key)) in (0u32..).zip(rows) {
        records.extend((OPEN_NS + time).to_le_bytes());
        records.extend(key.to_le_bytes());
        records.extend(value.to_le_bytes());
    }
    store.store.append(&file, &records, StoreAckLevel::Memory).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_in_order_of_time_are_joined_without_a_sort() {
    let store = empty_store();
    // Several segments of 16 KiB, which are several parts of a scan.
    let left: Vec<(i64, u32)> = (0..4_000).map(|row| (10 * row, row as u32 % 3)).collect();
    let right: Vec<(i64, u32)> = (0..6_000).map(|row| (7 * row, row as u32 % 3)).collect();
    stored_file(&store, "a", &left);
    stored_file(&store, "b", &right);
    let session = store.session();
    let last = |time: i64, key: u32| {
        let at = right.iter().rposition(|(other, of)| *other <= time && *of == key);
        at.map_or(0, |at| at as i64)
    };
    let wanted: i64 = left.iter().map(|(time, key)| last(*time, *key)).sum();
    let as_of = "SELECT sum(b.value) FROM a ASOF JOIN b MATCH_CONDITION (a.time >= b.time) \
                 ON a.key = b.key";
    let window = "SELECT sum(b.value) FROM a LEFT JOIN b ON b.time BETWEEN \
                  a.time - INTERVAL '50 nanoseconds' AND a.time AND a.key = b.key";
    let beside = |time: i64, key: u32| {
        let rows = (0i64..).zip(&right);
        let is_beside = |other: i64, of: u32| time - 50 <= other && other <= time && of == key;
        let values = rows.filter(|(_, (other, of))| is_beside(*other, *of)).map(|(value, _)| value);
        values.sum::<i64>()
    };
    let wanted_beside: i64 = left.iter().map(|(time, key)| beside(*time, *key)).sum();
    for (sql, wanted) in [(as_of, wanted), (window, wanted_beside)] {
        assert_eq!(number(&session, sql).await, Some(wanted), "{sql}");
        let plan = rows_of(&session, &format!("EXPLAIN {sql}")).await;
        let plan = arrow::util::pretty::pretty_format_batches(&plan).unwrap().to_string();
        assert!(!plan.contains("Sort") && plan.contains("in 1 parts"), "{plan}");
    }
}

#[tokio::test]
async fn a_stop_ends_a_join_that_finds_nothing() {
    let store = empty_store();
    let session = store.session();
    // As at the doors, a statement begins and goes on at threads of its own. On the thread of this
    // test it would leave nobody to look at the clock.
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let compute = threads.handle().clone();
    for sql in [
        "SELECT count(*) FROM generate_series(1, 1000000) AS a(x)
         JOIN generate_series(1, 1000000) AS b(y) ON a.x + b.y < 0",
        "SELECT count(*) FROM generate_series(1, 1000000) AS a(x)
         JOIN generate_series(1, 1000000) AS b(y)
         ON a.x / 2000000 = b.y / 2000000 AND a.x + b.y < 0",
    ] {
        let session = session.clone();
        let running = compute.spawn(async move { session.run(sql).await }).await.unwrap().unwrap();
        let stop = running.stop();
        let mut rows = running.on_threads_of(&compute, |batch| batch);
        let early = std::time::Duration::from_millis(300);
        assert!(tokio::time::timeout(early, rows.next()).await.is_err(), "{sql} has an end");
        stop.stop();
        // The join gives the error of the stop; without the stop it would compute for hours.
        let error = rows.next().await.unwrap().flatten().unwrap_err();
        assert!(error.to_string().contains("was stopped"), "{error}");
    }
    threads.shutdown_background();
}

/// A user's file and a recording of five chunks each.
fn store_of_chunks() -> TestStore {
    let store = empty_store();
    let file = store.store.create("a", &Schema::opaque(4_096)).unwrap();
    let mut writer = RecordingWriter::new(&store.store, "day", 1, StoreAckLevel::Memory).unwrap();
    // Three records to a segment, 768 to a chunk.
    for number in 0..768 * 5 {
        let time = OPEN_NS + number as i64;
        let record = [&time.to_le_bytes()[..], &[7; 4_088]].concat();
        store.store.append(&file, &record, StoreAckLevel::Memory).unwrap();
        writer.push(0, number, time, evenfall_feed_formats::Format::OPAQUE, &[7; 4_000]).unwrap();
    }
    writer.flush().unwrap();
    store
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_that_retention_overtakes_names_the_table_and_the_rows() {
    let store = store_of_chunks();
    let session = store.session();
    let mut plans = Vec::new();
    for (beginning, sql) in [
        ("table a, rows 1 to ", "SELECT max(time) FROM a"),
        ("table day.raw, rows ", "SELECT max(stream) FROM day.raw"),
        // The search by time fails, before there is a scan.
        (
            "table day.messages: no record 0",
            "SELECT max(seq) FROM day.messages WHERE recorded >= '2026-11-20T14:30:00Z'",
        ),
    ] {
        let statement = session.parse_one(sql).unwrap();
        plans.push((beginning, sql, session.plan(statement).await.unwrap()));
    }
    let keep =
        evenfall_store_format::retention::Retention { bytes_max: Some(8 << 20), age_ns_max: None };
    // A file may be empty.
    for file in store.store.files().into_iter().filter(|file| file.records() > 0) {
        // Chunks that are not on the disk yet stay.
        while store.store.retain(&file, keep).unwrap() < 768 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
    for (beginning, sql, plan) in plans {
        let started = session.start(plan).await;
        let rows = match started {
            Ok(running) => running.stream.try_collect::<Vec<_>>().await.map(|_| ()),
            Err(error) => Err(error),
        };
        let words = crate::error_words(&rows.unwrap_err());
        assert!(words.starts_with(beginning), "{sql}: {words}");
        let is_of_scan = words.contains("after 0 rows: no record");
        assert!(is_of_scan || !beginning.contains("rows"), "{sql}: {words}");
        // The next statement sees what is left.
        assert!(!rows_of(&session, sql).await.is_empty(), "{sql}");
    }
}

/// A store that counts how often it is read.
struct CountingSource {
    store: Arc<Store>,
    reads: AtomicUsize,
}

impl CountingSource {
    fn count(&self) -> &Store {
        self.reads.fetch_add(1, Ordering::Relaxed);
        &self.store
    }
}

impl RecordSource for CountingSource {
    fn listed(&self) -> Result<Vec<FileListing>, StoreError> {
        self.count().listed()
    }

    fn between(&self, name: &str, from_ns: i64, to_ns: i64) -> Result<Range<u64>, StoreError> {
        self.count().between(name, from_ns, to_ns)
    }

    fn read(&self, name: &str, numbers: Range<u64>, each: &mut Each<'_>) -> Result<(), StoreError> {
        RecordSource::read(self.count(), name, numbers, each)
    }
}

/// How often the store is read for the plan of a statement.
async fn reads_to_plan(store: &TestStore, sql: &str) -> usize {
    let source =
        Arc::new(CountingSource { store: Arc::clone(&store.store), reads: AtomicUsize::new(0) });
    let counted: Arc<dyn RecordSource> = Arc::<CountingSource>::clone(&source);
    let tables = Arc::new(StoreTables::new(counted));
    let engine = QueryEngine::new(tables, BTreeMap::new(), EngineLimits::default()).unwrap();
    let session = engine.session(Some("day"), "day").unwrap();
    // The first statement over a recording whose rows nobody writes waits for them.
    session.plan(session.parse_one(sql).unwrap()).await.unwrap();
    let before = source.reads.load(Ordering::Relaxed);
    session.plan(session.parse_one(sql).unwrap()).await.unwrap();
    source.reads.load(Ordering::Relaxed) - before
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_reads_nothing_of_tables_that_it_does_not_name() {
    let store = empty_store();
    store.record("day", 0..10);
    stored_file(&store, "a", &[(0, 1), (1, 2)]);
    let statements = [
        ("SELECT count(*) FROM messages m JOIN trades t ON m.seq = t.seq", 40),
        ("SELECT value FROM a", 10),
    ];
    let mut alone = Vec::new();
    for (sql, most) in statements {
        let reads = reads_to_plan(&store, sql).await;
        assert!(reads <= most, "{reads} reads to plan {sql}");
        alone.push(reads);
    }
    for other in 0..20 {
        store.record(&format!("other{other}"), 0..3);
        stored_file(&store, &format!("file{other}"), &[(0, 1)]);
    }
    for ((sql, _), alone) in statements.into_iter().zip(alone) {
        assert_eq!(reads_to_plan(&store, sql).await, alone, "{sql}");
    }
}

/// A packet of MIAX with a bid or an offer of product 77 in 1/100 dollar, at 5 ns of a second.
fn miax_side(kind: u8, price: u16) -> Vec<u8> {
    let mut message = [&[kind][..], &5u32.to_le_bytes(), &77u32.to_le_bytes()].concat();
    message.extend([price, 10, 0].map(u16::to_le_bytes).concat());
    message.push(b'A');
    let length = 12 + message.len() as u16;
    [&1u64.to_le_bytes()[..], &length.to_le_bytes(), &[3, 1], &message].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_of_another_format_has_the_columns_of_its_format() {
    let store = empty_store();
    for (name, format) in [("miax", MACH), ("bytes", evenfall_feed_formats::Format::OPAQUE)] {
        let mut writer =
            RecordingWriter::new(&store.store, name, 1, StoreAckLevel::Memory).unwrap();
        for (number, (kind, price)) in (0..).zip([(b'B', 815), (b'O', 840)]) {
            let time = OPEN_NS + number as i64;
            writer.push(0, number, time, format, &miax_side(kind, price)).unwrap();
        }
        writer.flush().unwrap();
    }
    let session = store.session();
    let mut described = Vec::new();
    for batch in rows_of(&session, "DESCRIBE miax.messages").await {
        let (names, types) = (batch.column(0).as_string::<i32>(), batch.column(1));
        let types = types.as_string::<i32>().iter();
        described.extend(
            names
                .iter()
                .zip(types)
                .map(|(name, kind)| (name.unwrap().to_owned(), kind.unwrap().to_owned())),
        );
    }
    let has = |name: &str, kind: &str| described.contains(&(name.to_owned(), kind.to_owned()));
    assert!(has("price", "Decimal128(18, 4)") && has("product_id", "Int64"), "{described:?}");
    for (sql, answer) in [
        ("SELECT count(*) FROM miax.messages WHERE product_id = 77 AND price > 8", 2),
        ("SELECT CAST(10000 * bid AS BIGINT) FROM miax.quotes WHERE bid IS NOT NULL", 81_500),
        ("SELECT count(*) FROM miax.trades", 0),
        ("SELECT count(*) FROM book('miax', '77', '2026-11-20T14:30:01Z', 5) WHERE price > 8", 2),
        ("SELECT count(*) FROM bytes.messages", 2),
    ] {
        assert_eq!(number(&session, sql).await, Some(answer), "{sql}");
    }
    let refused = error(&session, "SELECT count(*) FROM bytes.trades").await;
    assert!(refused.contains("messages of opaque bytes are not read into it"), "{refused}");
    // All tables are listed nevertheless.
    let listed = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'bytes'";
    assert_eq!(number(&session, listed).await, Some(4));
}
