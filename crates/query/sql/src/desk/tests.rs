//! `reprice` and `nbbo`, beside SQL over the same rows.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Decimal128Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Field, Schema};
use arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::{MemTable, TableProvider};
use evenfall_feed_formats::codec::ITCH;
use evenfall_feed_formats::itch::{AddOrder, Alpha, Code, OrderDelete, OrderExecuted, Price4};
use evenfall_query_member::desk::DeskWorkerPlan;
use evenfall_query_member::desk::made::{MadeFeed, play_rows};
use evenfall_query_member::desk::plain::PlainRows;
use evenfall_query_member::desk::recent::{RecentConfig, RecentRows, SidePrice};
use evenfall_query_member::standing_group::BurstWorker;
use evenfall_query_member::{
    GroupSocket, GroupSocketOptions, SharedRows, StandingThread, WorkerAccess, unlimited_settings,
};
use evenfall_store_engine::StoreAckLevel;
use evenfall_store_recording::RecordingWriter;
use evenfall_store_recording::depth::price_type;
use futures_util::TryStreamExt as _;

use super::DeskSource;
use crate::tests::{QuerySeed, TestStore, empty_store};
use crate::{EngineLimits, QueryEngine, QuerySession};

/// 2026-11-20 14:30:00 UTC, half past nine in New York.
const OPEN_NS: i64 = 1_795_185_000_000_000_000;
/// Half past nine as ITCH counts.
const OPEN_TS: u64 = 34_200_000_000_000;
const SYMBOLS: [&str; 4] = ["AAPL", "IBM", "MSFT", "TEST"];

/// Orders come, are executed and leave, some of them in one nanosecond.
fn record_venue(store: &TestStore, name: &str, seed: u64, messages: u64) {
    record_from(store, name, seed, messages, OPEN_NS);
}

fn record_from(store: &TestStore, name: &str, seed: u64, messages: u64, open_ns: i64) {
    let mut random = QuerySeed::new(seed);
    let mut writer = RecordingWriter::new(&store.store, name, 1, StoreAckLevel::Memory).unwrap();
    let (mut at, mut open) = (0u64, Vec::new());
    for number in 0..messages {
        at += random.below(3) * 1_400_000 * random.below(2);
        let (timestamp_ns, time_ns) = (OPEN_TS + at, open_ns + at as i64);
        let bytes = match (random.below(4), open.is_empty()) {
            (2, false) => {
                let (order_reference, stock_locate) =
                    open.swap_remove(random.below(open.len() as u64) as usize);
                OrderDelete {
                    stock_locate,
                    timestamp_ns,
                    order_reference,
                    ..OrderDelete::default()
                }
                .encode()
                .to_vec()
            }
            (3, false) => {
                let (order_reference, stock_locate) =
                    open[random.below(open.len() as u64) as usize];
                OrderExecuted {
                    stock_locate,
                    timestamp_ns,
                    order_reference,
                    executed_shares: 1,
                    match_number: number,
                    ..OrderExecuted::default()
                }
                .encode()
                .to_vec()
            }
            _ => {
                let symbol = random.below(SYMBOLS.len() as u64);
                let is_bid = random.below(2) == 0;
                let price = 1_000_000 + 100 * symbol as u32 + random.below(40) as u32;
                let price = if is_bid { price } else { price + 25 };
                let stock_locate = symbol as u16 + 1;
                open.push((number + 1, stock_locate));
                AddOrder {
                    stock_locate,
                    timestamp_ns,
                    order_reference: number + 1,
                    side: Code(if is_bid { b'B' } else { b'S' }),
                    shares: 100 + random.below(50) as u32,
                    stock: Alpha::new(SYMBOLS[symbol as usize]).unwrap(),
                    price: Price4(price),
                    ..AddOrder::default()
                }
                .encode()
                .to_vec()
            }
        };
        writer.push(0, number, time_ns, ITCH, &bytes).unwrap();
    }
    writer.flush().unwrap();
}

fn table(columns: Vec<(&str, ArrayRef)>) -> Arc<dyn TableProvider> {
    let field =
        |(name, column): &(&str, ArrayRef)| Field::new(*name, column.data_type().clone(), true);
    let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
    let arrays = columns.into_iter().map(|(_, column)| column).collect();
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).unwrap();
    Arc::new(MemTable::try_new(schema, vec![vec![batch]]).unwrap())
}

fn texts<'a>(values: impl IntoIterator<Item = &'a str>) -> ArrayRef {
    Arc::new(values.into_iter().map(Some).collect::<StringArray>())
}

fn longs(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(values.into_iter().map(Some).collect::<Int64Array>())
}

fn prices(values: impl IntoIterator<Item = Option<i64>>) -> ArrayRef {
    let values = values.into_iter().map(|price| price.map(i128::from));
    Arc::new(values.collect::<Decimal128Array>().with_data_type(price_type()))
}

/// Positions of a few accounts, in symbols that are quoted and in one that is not.
fn positions(seed: u64, symbols: &[&str]) -> Arc<dyn TableProvider> {
    let mut random = QuerySeed::new(seed);
    let (mut accounts, mut names, mut quantities) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..30 {
        accounts.push(["ann", "bob", "eve"][random.below(3) as usize]);
        let place = random.below(symbols.len() as u64 + 1) as usize;
        names.push(symbols.get(place).copied().unwrap_or("NONE"));
        quantities.push(random.below(2_000) as i64 - 1_000);
    }
    table(vec![
        ("account", texts(accounts)),
        ("symbol", texts(names)),
        ("quantity", longs(quantities)),
    ])
}

fn session(
    store: &TestStore,
    added: Vec<(&str, Arc<dyn TableProvider>)>,
    desk: DeskSource,
) -> QuerySession {
    let added = added.into_iter().map(|(name, table)| (name.to_owned(), table));
    let added: BTreeMap<String, Arc<dyn TableProvider>> = added.collect();
    let engine = QueryEngine::new(store.tables(), added, EngineLimits::default()).unwrap();
    engine.with_desk(desk).session(None, "evenfall").unwrap()
}

async fn shown(session: &QuerySession, sql: &str) -> String {
    let running = session.run(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let batches: Vec<RecordBatch> =
        running.stream.try_collect().await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    pretty_format_batches(&batches).unwrap().to_string()
}

async fn refusal(session: &QuerySession, sql: &str) -> String {
    match session.run(sql).await {
        Err(error) => error.to_string(),
        Ok(running) => match running.stream.try_collect::<Vec<_>>().await {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{sql} is answered"),
        },
    }
}

/// `reprice` in SQL, of the tables `q` (quotes), `times` (of all rows) and `positions`. A change is
/// in 1/20,000 dollar.
const REPRICE_SQL: &str = "
  WITH p AS (SELECT positions.*, now.at AS until, now.at - 500000000 AS after
             FROM positions CROSS JOIN (SELECT max(at) AS at FROM times) now),
  marked AS (
    SELECT p.account, p.quantity,
           CAST(((b.bid + b.ask) - (a.bid + a.ask)) * 10000 AS BIGINT) AS twice
    FROM p ASOF JOIN q a MATCH_CONDITION (p.after >= a.at) ON p.symbol = a.symbol
           ASOF JOIN q b MATCH_CONDITION (p.until >= b.at) ON p.symbol = b.symbol)
  SELECT account, sum(coalesce(twice, 0) * quantity) AS change, count(*) AS positions,
         count(*) - count(twice) AS unpriced
  FROM marked GROUP BY account ORDER BY change, account LIMIT 2";

const REPRICE_ASKED: &str = "
  SELECT account, CAST(change_dollars * 20000 AS BIGINT) AS change, positions, unpriced
  FROM reprice('positions', interval '500 ms', 2)";

/// The best bid and offer at the end of the window in SQL, with the numbers of rows in it.
const NBBO_SQL: &str = "
  WITH now AS (SELECT max(at) - 500000000 AS after FROM times),
  last AS (SELECT venue, symbol, last_value(bid ORDER BY at, place) AS bid,
                  last_value(ask ORDER BY at, place) AS ask FROM q GROUP BY venue, symbol),
  quoted AS (SELECT symbol, max(bid) AS bid, min(ask) AS ask FROM last GROUP BY symbol),
  counted AS (SELECT q.symbol, count(*) AS quotes FROM q CROSS JOIN now
              WHERE q.at > now.after GROUP BY q.symbol),
  traded AS (SELECT t.symbol, count(*) AS trades FROM t CROSS JOIN now
             WHERE t.at > now.after GROUP BY t.symbol)
  SELECT quoted.symbol AS symbol, bid, ask, coalesce(quotes, 0) AS quotes,
         coalesce(trades, 0) AS trades
  FROM quoted LEFT JOIN counted ON quoted.symbol = counted.symbol
              LEFT JOIN traded ON quoted.symbol = traded.symbol ORDER BY quoted.symbol";

const NBBO_ASKED: &str = "
  SELECT symbol, bid, ask, quotes, trades FROM nbbo(interval '500 ms') ORDER BY symbol";

/// Fills beside the newest quotes of all venues in front of each fill.
const FILLS_SQL: &str = "
  WITH now AS (SELECT max(at) AS at FROM times),
  f AS (SELECT fills.*, time_ns + 100000000 AS later_ns, v.venue
        FROM fills CROSS JOIN (SELECT DISTINCT venue FROM q) v CROSS JOIN now
        WHERE time_ns > now.at - 500000000 AND time_ns <= now.at),
  before AS (SELECT f.fill, f.side, f.price, max(a.bid) AS bid, min(a.ask) AS ask
             FROM f ASOF JOIN q a MATCH_CONDITION (f.time_ns > a.at)
               ON f.symbol = a.symbol AND f.venue = a.venue GROUP BY f.fill, f.side, f.price),
  later AS (SELECT f.fill, max(f.later_ns) AS later_ns, max(b.bid) + min(b.ask) AS twice
            FROM f ASOF JOIN q b MATCH_CONDITION (f.later_ns >= b.at)
              ON f.symbol = b.symbol AND f.venue = b.venue GROUP BY f.fill)
  SELECT before.fill AS fill, bid, ask,
         CASE WHEN side = 'buy' THEN price > ask ELSE price < bid END AS traded_through,
         CASE WHEN later_ns > now.at THEN NULL
              WHEN side = 'buy' THEN CAST((twice - 2 * price) * 10000 AS BIGINT)
              ELSE CAST((2 * price - twice) * 10000 AS BIGINT) END AS markout
  FROM before JOIN later ON before.fill = later.fill CROSS JOIN now ORDER BY before.fill";

const FILLS_ASKED: &str = "
  SELECT fill, bid, ask, traded_through, CAST(markout_dollars * 20000 AS BIGINT) AS markout
  FROM nbbo('fills', interval '500 ms', interval '100 ms')
       CROSS JOIN (SELECT max(at) AS at FROM times) now
  WHERE time_ns > now.at - 500000000 AND time_ns <= now.at ORDER BY fill";

/// Fills in the last .6 seconds in front of a time.
fn fills(seed: u64, symbols: &[&str], until_ns: i64, middle: i64) -> Arc<dyn TableProvider> {
    let mut random = QuerySeed::new(seed);
    let rows = 0..40;
    let times: Vec<i64> =
        rows.clone().map(|_| until_ns - random.below(600_000_000) as i64).collect();
    let names: Vec<&str> =
        rows.clone().map(|_| symbols[random.below(symbols.len() as u64) as usize]).collect();
    let sides: Vec<&str> =
        rows.clone().map(|_| ["buy", "sell"][random.below(2) as usize]).collect();
    let paid: Vec<Option<i64>> =
        rows.clone().map(|_| Some(middle + random.below(400) as i64 - 200)).collect();
    table(vec![
        ("fill", longs(rows.clone())),
        ("time_ns", longs(times)),
        ("symbol", texts(names)),
        ("side", texts(sides)),
        ("price", prices(paid)),
        ("shares", longs(rows.map(|at| at + 1))),
    ])
}

type AddedTables = Vec<(&'static str, Arc<dyn TableProvider>)>;

/// The rows of recordings as the tables `q`, `t` and `times`.
async fn recorded_tables(store: &TestStore, recordings: &[&str]) -> AddedTables {
    let session = session(store, Vec::new(), DeskSource::default());
    let each = |sql: &str| -> String {
        let one = |(venue, name): (usize, &&str)| {
            sql.replace("VENUE", &venue.to_string()).replace("NAME", name)
        };
        recordings.iter().enumerate().map(one).collect::<Vec<_>>().join(" UNION ALL ")
    };
    let at = "CAST(recorded AS BIGINT) AS at";
    let q = each(&format!(
        "SELECT VENUE AS venue, row_number() OVER () AS place, {at}, symbol, bid, ask
         FROM NAME.quotes"
    ));
    let t = each(&format!("SELECT {at}, symbol FROM NAME.trades WHERE price IS NOT NULL"));
    let times = each(&format!(
        "SELECT {at} FROM NAME.quotes
         UNION ALL SELECT {at} FROM NAME.trades WHERE price IS NOT NULL"
    ));
    let mut tables: AddedTables = Vec::new();
    for (name, sql) in [("q", q), ("t", t), ("times", times)] {
        let running = session.run(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let schema = running.stream.schema();
        let batches: Vec<RecordBatch> = running.stream.try_collect().await.unwrap();
        tables.push((name, Arc::new(MemTable::try_new(schema, vec![batches]).unwrap())));
    }
    tables
}

/// The rows of workers as the same tables.
fn row_tables(rows: &[PlainRows]) -> AddedTables {
    let name = |symbol: &[u8; 8]| String::from_utf8_lossy(symbol).trim_end().to_owned();
    let of_venue = |(venue, of): (i64, &'_ PlainRows)| {
        of.quotes.iter().map(|row| (venue, *row)).collect::<Vec<_>>()
    };
    let quotes: Vec<_> = (0..).zip(rows).flat_map(of_venue).collect();
    let trades: Vec<_> = rows.iter().flat_map(|of| of.trades.clone()).collect();
    let symbols: Vec<String> = quotes.iter().map(|(_, (symbol, _))| name(symbol)).collect();
    let traded: Vec<String> = trades.iter().map(|(symbol, _)| name(symbol)).collect();
    let price = |side: Option<SidePrice>| side.map(|side| side.price);
    let q = table(vec![
        ("venue", longs(quotes.iter().map(|(venue, _)| *venue))),
        ("place", longs(0..quotes.len() as i64)),
        ("at", longs(quotes.iter().map(|(_, (_, quote))| quote.time_ns))),
        ("symbol", texts(symbols.iter().map(String::as_str))),
        ("bid", prices(quotes.iter().map(|(_, (_, quote))| price(quote.bid)))),
        ("ask", prices(quotes.iter().map(|(_, (_, quote))| price(quote.ask)))),
    ]);
    let t = table(vec![
        ("at", longs(trades.iter().map(|(_, trade)| trade.time_ns))),
        ("symbol", texts(traded.iter().map(String::as_str))),
    ]);
    let all = quotes.iter().map(|(_, (_, quote))| quote.time_ns);
    let all = all.chain(trades.iter().map(|(_, trade)| trade.time_ns));
    vec![("q", q), ("t", t), ("times", table(vec![("at", longs(all))]))]
}

/// Both ways to ask, in the words of each.
async fn compare(session: &QuerySession, pairs: &[(&str, &str)], about: &str) {
    for (asked, wanted) in pairs {
        let (asked, wanted) = (shown(session, asked).await, shown(session, wanted).await);
        assert_eq!(asked, wanted, "{about}");
        assert!(asked.lines().count() > 5, "{about}: {asked}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_recordings_both_answers_are_those_of_sql() {
    for seed in 1..5 {
        let store = empty_store();
        record_venue(&store, "one", seed, 1_500);
        let mut added = recorded_tables(&store, &["one"]).await;
        added.push(("positions", positions(seed, &SYMBOLS)));
        let about = format!("seed {seed}");
        let one = session(&store, added, DeskSource::default());
        compare(&one, &[(REPRICE_ASKED, REPRICE_SQL)], &about).await;
        record_venue(&store, "two", seed + 100, 1_500);
        // Of another day: its last quotes are no quotes of this window.
        record_from(&store, "yesterday", seed + 200, 500, OPEN_NS - 86_400_000_000_000);
        let mut added = recorded_tables(&store, &["one", "two"]).await;
        let until = OPEN_NS + 1_050_000_000;
        added.push(("fills", fills(seed, &SYMBOLS, until, 1_000_150)));
        let both = session(&store, added, DeskSource::default());
        let pairs = [(NBBO_ASKED, NBBO_SQL), (FILLS_ASKED, FILLS_SQL)];
        compare(&both, &pairs, &about).await;
        let venues = "SELECT DISTINCT bid_venue FROM nbbo(interval '500 ms') ORDER BY 1";
        let venues = shown(&both, venues).await;
        assert!(venues.contains("one") && !venues.contains("yesterday"), "{venues}");
    }
}

/// Standing workers with these rows, as threads.
fn stand(rows: &[PlainRows]) -> Vec<StandingThread> {
    let start = |rows: &PlainRows| {
        let mut recent = RecentRows::new(RecentConfig::default());
        play_rows(rows, &mut recent);
        let shared = SharedRows::new(recent);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = GroupSocket::bind(any, GroupSocketOptions::default()).unwrap();
        let plan = DeskWorkerPlan::new(shared.clone(), rows.positions.clone());
        let worker = BurstWorker::new(plan, unlimited_settings(1_432));
        StandingThread::start(socket, worker, shared, |_| {})
    };
    rows.iter().map(start).collect()
}

fn access(workers: &[StandingThread], silence: Duration) -> WorkerAccess {
    WorkerAccess {
        workers: workers.iter().map(StandingThread::address).collect(),
        own: SocketAddr::from(([127, 0, 0, 1], 0)),
        key: None,
        silence,
        workers_min: None,
    }
}

fn made_feed(seed: u64, by_venue: bool) -> MadeFeed {
    MadeFeed {
        seed,
        workers: 3,
        symbols: 6,
        rows: 300,
        accounts: 7,
        positions: 60,
        fills: 0,
        span_ns: 2_000_000_000,
        by_venue,
    }
}

fn positions_of(rows: &[PlainRows]) -> Arc<dyn TableProvider> {
    let all: Vec<_> = rows.iter().flat_map(|of| of.positions.clone()).collect();
    let name = |name: &[u8]| String::from_utf8_lossy(name).trim_end().to_owned();
    let accounts: Vec<String> = all.iter().map(|one| name(&one.account)).collect();
    let symbols: Vec<String> = all.iter().map(|one| name(&one.symbol)).collect();
    table(vec![
        ("account", texts(accounts.iter().map(String::as_str))),
        ("symbol", texts(symbols.iter().map(String::as_str))),
        ("quantity", longs(all.iter().map(|one| one.quantity))),
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn of_standing_workers_both_answers_are_those_of_sql() {
    let (store, silence) = (empty_store(), Duration::from_secs(5));
    for seed in 1..4 {
        let about = format!("seed {seed}");
        let feed = made_feed(seed, false);
        let rows: Vec<PlainRows> = (0..3).map(|worker| feed.rows_of(worker)).collect();
        let workers = stand(&rows);
        let source = DeskSource::of_workers(access(&workers, silence)).unwrap();
        let mut added = row_tables(&rows);
        added.push(("positions", positions_of(&rows)));
        let asks = session(&store, added, source);
        compare(&asks, &[(REPRICE_ASKED, REPRICE_SQL)], &about).await;
        let feed = made_feed(seed, true);
        let rows: Vec<PlainRows> = (0..3).map(|worker| feed.rows_of(worker)).collect();
        let workers = stand(&rows);
        let source = DeskSource::of_workers(access(&workers, silence)).unwrap();
        let until_ns =
            rows.iter().filter_map(|of| Some(of.quotes.last()?.1.time_ns)).max().unwrap();
        let quote = rows[0].quotes.iter().find_map(|(_, quote)| quote.bid).unwrap();
        let names: Vec<String> = (0..6).map(|at| format!("AAA{}", char::from(b'A' + at))).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut added = row_tables(&rows);
        added.push(("fills", fills(seed, &names, until_ns, quote.price)));
        let asks = session(&store, added, source);
        compare(&asks, &[(NBBO_ASKED, NBBO_SQL), (FILLS_ASKED, FILLS_SQL)], &about).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_gone_is_named_in_each_row_and_too_few_are_an_error() {
    let feed = made_feed(1, true);
    let rows: Vec<PlainRows> = (0..3).map(|worker| feed.rows_of(worker)).collect();
    let mut workers = stand(&rows);
    let source = DeskSource::of_workers(access(&workers, Duration::from_millis(300))).unwrap();
    let asks = session(&empty_store(), Vec::new(), source);
    let missing = "SELECT DISTINCT missing FROM nbbo(interval '500 ms')";
    let all = shown(&asks, missing).await;
    assert!(!all.contains("127.0.0.1"), "{all}");
    let gone = workers.remove(1).address();
    let one = shown(&asks, missing).await;
    assert!(one.contains(&format!("{gone}: silent")), "{one}");
    let other = workers.remove(0).address();
    let error = refusal(&asks, missing).await;
    for address in [gone, other] {
        assert!(error.contains(&address.to_string()), "{error}");
    }
    assert!(error.contains("1 of 3 workers answer, and 2 are needed"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_arguments_tables_and_rows_are_refused_by_name() {
    let store = empty_store();
    record_venue(&store, "one", 1, 50);
    let wrong = table(vec![
        ("account", texts(["ann"])),
        ("symbol", texts(["A LONG NAME"])),
        ("quantity", longs([1])),
    ]);
    let half = table(vec![("account", texts(["ann"]))]);
    let added = vec![("wrong", wrong), ("half", half)];
    let plain = session(&store, added, DeskSource::default());
    for (sql, words) in [
        ("reprice('positions')", "reprice takes a table of positions, a window"),
        ("reprice('positions', 5, 10)", "in the place of a time span"),
        ("reprice('positions', interval '-5 s', 10)", "in the place of a time span"),
        ("reprice('positions', interval '1 month', 10)", "in the place of a time span"),
        ("reprice('positions', interval '5 s', -1)", "accounts"),
        ("reprice('positions', interval '5 s', 10)", "there is no table positions with account"),
        ("reprice('half', interval '5 s', 10)", "the table has no column symbol"),
        ("reprice('wrong', interval '5 s', 10)", "line 2: symbol"),
        ("nbbo()", "nbbo takes a window"),
        ("nbbo('fills', interval '5 s', interval '1 s')", "there is no table fills with time_ns"),
    ] {
        let error = refusal(&plain, &format!("SELECT * FROM {sql}")).await;
        assert!(error.contains(words), "{sql}: {error}");
    }
    let workers = stand(&[PlainRows::default()]);
    let source = DeskSource::of_workers(access(&workers, Duration::from_secs(5))).unwrap();
    let asks = session(&store, Vec::new(), source);
    let error = refusal(&asks, "SELECT * FROM reprice('mine', interval '5 s', 10)").await;
    assert!(error.contains("standing workers hold the positions"), "{error}");
    // A plan asks nothing: an explained statement does not need the workers.
    drop(workers);
    let plan = shown(&asks, "EXPLAIN SELECT * FROM nbbo(interval '5 s')").await;
    assert!(plan.contains("StreamingTable"), "{plan}");
}
