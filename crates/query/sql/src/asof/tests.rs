//! As-of joins beside the plain definition: for each left row, every right row is looked at.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray as _, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use futures_util::TryStreamExt as _;

use crate::tests::{QuerySeed, empty_store};
use crate::{EngineLimits, QueryEngine};

/// A row: key, time, and its number in the order of appends.
#[derive(Clone, Copy, Debug)]
struct PlainRow {
    key: Option<i64>,
    ts: Option<i64>,
    seq: i64,
}

fn rows(seed: &mut QuerySeed, count: u64) -> Vec<PlainRow> {
    let mut ts = 0;
    (0..count)
        .map(|seq| {
            // Steps of 0 make equal times, which the last appended row must win.
            ts += seed.below(3) as i64;
            PlainRow {
                key: (seed.below(12) > 0).then(|| seed.below(4) as i64),
                ts: (seed.below(15) > 0).then_some(ts),
                seq: seq as i64 + 1,
            }
        })
        .collect()
}

/// The rows as a table of several batches in several partitions, as scans hand them over.
fn table(rows: &[PlainRow], batch_rows: usize, partitions: usize) -> Arc<dyn TableProvider> {
    let append_order = Field::new("seq", DataType::Int64, false)
        .with_metadata([(crate::scan::APPEND_ORDER.to_owned(), String::new())].into());
    let schema = Arc::new(Schema::new(vec![
        Field::new("symbol", DataType::Utf8, true),
        Field::new("ts", DataType::Int64, true),
        append_order,
        Field::new("number", DataType::Int32, true),
    ]));
    let batch = |rows: &[PlainRow]| {
        let symbols: StringArray =
            rows.iter().map(|row| row.key.map(|key| format!("S{key}"))).collect();
        let times: Int64Array = rows.iter().map(|row| row.ts).collect();
        let numbers: Int64Array = rows.iter().map(|row| Some(row.seq)).collect();
        let keys: Int32Array = rows.iter().map(|row| row.key.map(|key| key as i32)).collect();
        let columns: Vec<ArrayRef> =
            vec![Arc::new(symbols), Arc::new(times), Arc::new(numbers), Arc::new(keys)];
        RecordBatch::try_new(schema.clone(), columns).unwrap()
    };
    let mut parts = vec![Vec::new(); partitions];
    for (at, chunk) in rows.chunks(batch_rows.max(1)).enumerate() {
        parts[at % partitions].push(batch(chunk));
    }
    Arc::new(MemTable::try_new(schema.clone(), parts).unwrap())
}

/// What `MATCH_CONDITION` says, in plain words.
#[derive(Clone, Copy)]
struct PlainCondition {
    sql: &'static str,
    /// Whether a right time may match, and how far it is.
    takes: fn(i64, i64) -> bool,
    /// Of two right times, whether the second is the better match.
    is_better: fn(i64, i64, i64) -> bool,
}

const CONDITIONS: [PlainCondition; 7] = [
    PlainCondition { sql: "a.ts >= b.ts", takes: |l, r| r <= l, is_better: |_, x, y| y > x },
    PlainCondition { sql: "a.ts > b.ts", takes: |l, r| r < l, is_better: |_, x, y| y > x },
    PlainCondition { sql: "a.ts <= b.ts", takes: |l, r| r >= l, is_better: |_, x, y| y < x },
    PlainCondition { sql: "b.ts > a.ts", takes: |l, r| r > l, is_better: |_, x, y| y < x },
    PlainCondition {
        sql: "a.ts >= b.ts AND a.ts - b.ts <= 2",
        takes: |l, r| r <= l && l - r <= 2,
        is_better: |_, x, y| y > x,
    },
    PlainCondition {
        sql: "nearest(a.ts, b.ts)",
        takes: |_, _| true,
        is_better: |l, x, y| ((l - y).abs(), y) < ((l - x).abs(), x),
    },
    PlainCondition {
        sql: "nearest(a.ts, b.ts) AND a.ts - b.ts <= 1",
        takes: |l, r| (l - r).abs() <= 1,
        is_better: |l, x, y| ((l - y).abs(), y) < ((l - x).abs(), x),
    },
];

fn plain_match(
    left: PlainRow,
    right: &[PlainRow],
    condition: PlainCondition,
    by_key: bool,
) -> Option<i64> {
    let time = left.ts?;
    let mut best: Option<PlainRow> = None;
    for row in right {
        let Some(ts) = row.ts else { continue };
        if by_key && (left.key.is_none() || left.key != row.key) {
            continue;
        }
        if !(condition.takes)(time, ts) {
            continue;
        }
        // Rows come in the order of appends, so that the last of equal times wins.
        let wins = best.is_none_or(|best| {
            let before = best.ts.expect("only rows with a time are taken");
            ts == before || (condition.is_better)(time, before, ts)
        });
        if wins {
            best = Some(*row);
        }
    }
    best.map(|row| row.seq)
}

async fn joined(
    left: &[PlainRow],
    right: &[PlainRow],
    sql: &str,
    shape: (usize, usize, usize),
) -> BTreeMap<i64, Vec<Option<i64>>> {
    let (batch_rows, partitions, threads) = shape;
    let mut added: BTreeMap<String, Arc<dyn TableProvider>> = BTreeMap::new();
    added.insert("a".into(), table(left, batch_rows, partitions));
    added.insert("b".into(), table(right, batch_rows, partitions));
    let limits = EngineLimits { threads, ..EngineLimits::default() };
    let store = empty_store();
    let engine = QueryEngine::new(store.tables(), added, limits).unwrap();
    let session = engine.session(None, "evenfall").unwrap();
    let running = session.run(sql).await.unwrap();
    let batches: Vec<RecordBatch> = running.stream.try_collect().await.unwrap();
    let mut found: BTreeMap<i64, Vec<Option<i64>>> = BTreeMap::new();
    for batch in batches {
        let left = batch.column(0).as_primitive::<Int64Type>();
        let right = batch.column(1).as_primitive::<Int64Type>();
        for (left, right) in left.iter().zip(right.iter()) {
            found.entry(left.unwrap()).or_default().push(right);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn each_condition_matches_the_row_of_its_definition() {
    for number in 0..12 {
        let mut seed = QuerySeed::new(number);
        let (a, b) = (seed.below(60), seed.below(80));
        let (left, right) = (rows(&mut seed, a), rows(&mut seed, b));
        for condition in CONDITIONS {
            for on in [
                "",
                "ON a.symbol = b.symbol",
                "ON a.number = b.number",
                "ON a.symbol = b.symbol AND a.number = b.number",
            ] {
                let sql = format!(
                    "SELECT a.seq, b.seq FROM a ASOF JOIN b MATCH_CONDITION ({}) {on}",
                    condition.sql
                );
                let shape = (1 + seed.below(20) as usize, 1 + seed.below(3) as usize, 2);
                let found = joined(&left, &right, &sql, shape).await;
                assert_eq!(found.len(), left.len(), "seed {number}: {sql}");
                for row in &left {
                    let wanted = plain_match(*row, &right, condition, !on.is_empty());
                    assert_eq!(found[&row.seq], [wanted], "seed {number}, row {row:?}: {sql}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_on_the_left_side_changes_no_match() {
    let mut seed = QuerySeed::new(77);
    let (left, right) = (rows(&mut seed, 50), rows(&mut seed, 70));
    let sql = "SELECT a.seq, b.seq FROM a ASOF JOIN b MATCH_CONDITION (a.ts >= b.ts) \
               ON a.symbol = b.symbol WHERE a.symbol = 'S1' AND a.ts > 5";
    let found = joined(&left, &right, sql, (7, 2, 2)).await;
    let kept = left.iter().filter(|row| row.key == Some(1) && row.ts.is_some_and(|ts| ts > 5));
    let mut count = 0;
    for row in kept {
        assert_eq!(found[&row.seq], [plain_match(*row, &right, CONDITIONS[0], true)]);
        count += 1;
    }
    assert_eq!(found.len(), count);
}

#[tokio::test(flavor = "multi_thread")]
async fn markouts_join_at_times_that_are_computed() {
    let left = [PlainRow { key: Some(0), ts: Some(10), seq: 1 }];
    let right: Vec<_> =
        (0..40).map(|ts| PlainRow { key: Some(0), ts: Some(ts), seq: ts }).collect();
    let sql = "SELECT h.ns, b.seq FROM a CROSS JOIN (VALUES (0), (5), (20)) AS h(ns) \
               ASOF JOIN b MATCH_CONDITION (a.ts + h.ns >= b.ts) ON a.symbol = b.symbol";
    let found = joined(&left, &right, sql, (4, 1, 1)).await;
    let wanted = [(0, 10), (5, 15), (20, 30)].map(|(ns, seq)| (ns, vec![Some(seq)]));
    assert_eq!(found, BTreeMap::from(wanted));
}

#[tokio::test]
async fn a_condition_that_says_nothing_is_refused_with_an_example() {
    let store = empty_store();
    let mut added: BTreeMap<String, Arc<dyn TableProvider>> = BTreeMap::new();
    added.insert("a".into(), table(&[], 1, 1));
    added.insert("b".into(), table(&[], 1, 1));
    let engine = QueryEngine::new(store.tables(), added, EngineLimits::default()).unwrap();
    let session = engine.session(None, "evenfall").unwrap();
    for (sql, words) in [
        ("MATCH_CONDITION (a.ts = b.ts)", "a.ts >= b.ts"),
        ("MATCH_CONDITION (a.ts >= b.ts AND a.ts - b.ts <= -1)", "below 0"),
        ("MATCH_CONDITION (a.ts >= b.ts) USING (symbol)", "names its keys by ON"),
        ("MATCH_CONDITION (a.ts >= b.ts) ON a.symbol > b.symbol", "equalities"),
        ("MATCH_CONDITION (cast(a.ts AS double) >= cast(b.ts AS double))", "floating-point"),
    ] {
        let sql = format!("SELECT 1 FROM a ASOF JOIN b {sql}");
        let error = session.run(&sql).await.err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains(words)), "{sql}: {error:?}");
    }
}

/// A window, in plain words: the first and the last right time of a left time.
struct PlainWindow {
    sql: &'static str,
    takes: fn(i64, i64) -> bool,
}

const WINDOWS: [PlainWindow; 8] = [
    PlainWindow {
        sql: "b.ts BETWEEN a.ts - 2 AND a.ts + 1",
        takes: |l, r| l - 2 <= r && r <= l + 1,
    },
    PlainWindow { sql: "b.ts BETWEEN a.ts AND 3 + a.ts", takes: |l, r| l <= r && r <= l + 3 },
    PlainWindow { sql: "b.ts >= a.ts - 4 AND b.ts < a.ts", takes: |l, r| l - 4 <= r && r < l },
    PlainWindow {
        sql: "a.ts - 1 < b.ts AND a.ts + 6 >= b.ts",
        takes: |l, r| l - 1 < r && r <= l + 6,
    },
    PlainWindow {
        sql: "b.ts BETWEEN a.ts - 50 AND a.ts - 20",
        takes: |l, r| l - 50 <= r && r <= l - 20,
    },
    PlainWindow {
        sql: "b.ts BETWEEN a.ts + 5 AND a.ts + 9",
        takes: |l, r| l + 5 <= r && r <= l + 9,
    },
    // Nothing lies in a window that ends before it begins.
    PlainWindow { sql: "b.ts BETWEEN a.ts + 2 AND a.ts - 2", takes: |_, _| false },
    PlainWindow {
        sql: "b.ts BETWEEN a.ts - 1000 AND a.ts + 1000",
        takes: |l, r| (l - r).abs() <= 1000,
    },
];

/// The right rows beside a left row, in order; one `None` where there are none.
fn plain_window(
    left: PlainRow,
    right: &[PlainRow],
    window: &PlainWindow,
    by_key: bool,
) -> Vec<Option<i64>> {
    let is_beside = |row: &&PlainRow| {
        let is_near = left.ts.zip(row.ts).is_some_and(|(l, r)| (window.takes)(l, r));
        is_near && (!by_key || (left.key.is_some() && left.key == row.key))
    };
    let mut found: Vec<_> = right.iter().filter(is_beside).map(|row| Some(row.seq)).collect();
    found.sort_unstable();
    if found.is_empty() { vec![None] } else { found }
}

fn windows_of(window: &PlainWindow, by_key: bool) -> String {
    let on = if by_key { "AND a.symbol = b.symbol" } else { "" };
    format!("SELECT a.seq, b.seq FROM a LEFT JOIN b ON {} {on}", window.sql)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_window_has_the_rows_of_its_definition() {
    for number in 0..12 {
        let mut seed = QuerySeed::new(number + 100);
        let (a, b) = (seed.below(60), seed.below(80));
        let (left, right) = (rows(&mut seed, a), rows(&mut seed, b));
        for window in &WINDOWS {
            for by_key in [true, false] {
                let sql = windows_of(window, by_key);
                let shape = (1 + seed.below(20) as usize, 1 + seed.below(3) as usize, 2);
                let mut found = joined(&left, &right, &sql, shape).await;
                assert_eq!(found.len(), left.len(), "seed {number}: {sql}");
                found.values_mut().for_each(|rows| rows.sort_unstable());
                for row in &left {
                    let wanted = plain_window(*row, &right, window, by_key);
                    assert_eq!(found[&row.seq], wanted, "seed {number}, row {row:?}: {sql}");
                }
            }
        }
    }
}

/// Whether the definitions refuse what another join answers, for some drawn rows.
async fn is_refused(sql: &str, wanted: impl Fn(PlainRow, &[PlainRow]) -> Vec<Option<i64>>) -> bool {
    let mut seed = QuerySeed::new(3);
    let (left, right) = (rows(&mut seed, 60), rows(&mut seed, 80));
    let found = joined(&left, &right, sql, (9, 2, 2)).await;
    left.iter().any(|row| found[&row.seq] != wanted(*row, &right))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_definitions_refuse_joins_that_are_wrong_by_one_row_or_one_nanosecond() {
    // The rule of an as-of join, and an answer of another rule in its place.
    for (rule, wrong) in [
        // The next row, and the row at the same time.
        (0, "a.ts <= b.ts"),
        (0, "a.ts > b.ts"),
        (3, "a.ts <= b.ts"),
        // A tolerance that leaves out its own limit, or takes one more.
        (4, "a.ts >= b.ts AND a.ts - b.ts < 2"),
        (4, "a.ts >= b.ts AND a.ts - b.ts <= 3"),
        (5, "a.ts >= b.ts"),
    ] {
        let sql = |condition: &str| {
            let on = "ON a.symbol = b.symbol";
            format!("SELECT a.seq, b.seq FROM a ASOF JOIN b MATCH_CONDITION ({condition}) {on}")
        };
        let condition = CONDITIONS[rule];
        let wanted =
            |row: PlainRow, right: &[PlainRow]| vec![plain_match(row, right, condition, true)];
        assert!(!is_refused(&sql(condition.sql), wanted).await, "{}", condition.sql);
        assert!(is_refused(&sql(wrong), wanted).await, "{wrong} for {}", condition.sql);
    }
    // Windows that leave out one of their ends, or take one more.
    for wrong in [
        "b.ts > a.ts - 2 AND b.ts <= a.ts + 1",
        "b.ts >= a.ts - 2 AND b.ts < a.ts + 1",
        "b.ts BETWEEN a.ts - 3 AND a.ts + 1",
        "b.ts BETWEEN a.ts - 2 AND a.ts + 2",
    ] {
        let wrong = PlainWindow { sql: wrong, takes: |_, _| false };
        let wanted =
            |row: PlainRow, right: &[PlainRow]| plain_window(row, right, &WINDOWS[0], true);
        assert!(!is_refused(&windows_of(&WINDOWS[0], true), wanted).await);
        assert!(is_refused(&windows_of(&wrong, true), wanted).await, "{}", wrong.sql);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_are_added_up_and_their_filters_keep_every_left_row() {
    let mut seed = QuerySeed::new(5);
    let (left, right) = (rows(&mut seed, 50), rows(&mut seed, 90));
    let sql = "SELECT a.seq, count(b.seq) FROM a LEFT JOIN b ON b.ts BETWEEN a.ts - 2 AND a.ts + 1 \
               AND a.symbol = b.symbol AND b.seq > 30 WHERE a.symbol <> 'S2' GROUP BY a.seq";
    let found = joined(&left, &right, sql, (7, 2, 2)).await;
    let later: Vec<_> = right.iter().filter(|row| row.seq > 30).copied().collect();
    let kept = left.iter().filter(|row| row.key.is_some_and(|key| key != 2));
    let wanted: BTreeMap<_, _> = kept
        .map(|row| {
            let beside = plain_window(*row, &later, &WINDOWS[0], true);
            (row.seq, vec![Some(beside.iter().flatten().count() as i64)])
        })
        .collect();
    assert_eq!(found, wanted);
}

#[tokio::test]
async fn only_a_window_of_one_time_becomes_a_window_join() {
    let store = empty_store();
    let mut added: BTreeMap<String, Arc<dyn TableProvider>> = BTreeMap::new();
    added.insert("a".into(), table(&[], 1, 1));
    added.insert("b".into(), table(&[], 1, 1));
    let engine = QueryEngine::new(store.tables(), added, EngineLimits::default()).unwrap();
    let session = engine.session(None, "evenfall").unwrap();
    for (on, is_window) in [
        ("b.ts BETWEEN a.ts - 5 AND a.ts", true),
        ("b.ts BETWEEN a.ts - 5 AND a.ts AND a.symbol = b.symbol AND b.seq > 3", true),
        ("b.ts >= a.ts - 5", false),
        ("b.ts BETWEEN a.ts - 5 AND a.seq", false),
        ("b.ts BETWEEN a.ts - a.seq AND a.ts", false),
        ("b.ts BETWEEN a.ts - 5 AND a.ts AND a.seq > 3", false),
        ("b.ts NOT BETWEEN a.ts - 5 AND a.ts", false),
        ("b.ts BETWEEN a.ts - 5 AND a.ts OR a.symbol = b.symbol", false),
    ] {
        let sql = format!("EXPLAIN SELECT * FROM a LEFT JOIN b ON {on}");
        let batches: Vec<RecordBatch> =
            session.run(&sql).await.unwrap().stream.try_collect().await.unwrap();
        let plan = arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string();
        assert_eq!(plan.contains("WindowJoin"), is_window, "{sql}\n{plan}");
    }
}

#[test]
fn a_window_join_holds_one_window_of_rows() {
    use super::merge::{KeyNumbers, Step, TimeMerge as _};
    use super::window::{WindowMerge, WindowRule};
    const BATCH: i64 = 100;
    let schema = Arc::new(Schema::new(vec![Field::new("ts", DataType::Int64, true)]));
    let output = Arc::new(Schema::new(vec![
        Field::new("l", DataType::Int64, true),
        Field::new("r", DataType::Int64, true),
    ]));
    let rule = WindowRule { from: -150, to: 0 };
    let mut merge = WindowMerge::new(rule, &schema, output, 64);
    let mut keys = KeyNumbers::new(&[]).unwrap();
    let mut side = |from: i64| {
        let times: Int64Array = (from..from + BATCH).collect();
        let batch = RecordBatch::try_new(schema.clone(), vec![Arc::new(times.clone())]).unwrap();
        keys.number_batch(batch, times, &[]).unwrap()
    };
    let (mut left, mut right, mut most, mut pairs) = (0, 0, 0, 0);
    while left < 1_000 * BATCH {
        match merge.advance().unwrap() {
            Step::NeedLeft => {
                merge.add_left(side(left));
                left += BATCH;
            }
            Step::NeedRight => {
                merge.add_right(Some(side(right)));
                right += BATCH;
            }
            Step::Joined(batch) => pairs += batch.num_rows() as i64,
        }
        most = most.max(merge.memory_bytes());
    }
    // The left rows of the last batch are not joined yet.
    assert!(pairs > 150 * (left - 2 * BATCH), "{pairs}");
    // A window of 151 rows lies in three batches at most, and one more is read ahead.
    assert!(most < 4 * BATCH as usize * 64, "{most} bytes");
}
