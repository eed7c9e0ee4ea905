//! As-of joins beside the plain definition: for each left row, every right row is looked at.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{AsArray as _, Int64Array, RecordBatch, StringArray};
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
    ]));
    let batch = |rows: &[PlainRow]| {
        let symbols: StringArray =
            rows.iter().map(|row| row.key.map(|key| format!("S{key}"))).collect();
        let times: Int64Array = rows.iter().map(|row| row.ts).collect();
        let numbers: Int64Array = rows.iter().map(|row| Some(row.seq)).collect();
        let columns = vec![Arc::new(symbols) as _, Arc::new(times) as _, Arc::new(numbers) as _];
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
            for by_key in [true, false] {
                let on = if by_key { "ON a.symbol = b.symbol" } else { "" };
                let sql = format!(
                    "SELECT a.seq, b.seq FROM a ASOF JOIN b MATCH_CONDITION ({}) {on}",
                    condition.sql
                );
                let shape = (1 + seed.below(20) as usize, 1 + seed.below(3) as usize, 2);
                let found = joined(&left, &right, &sql, shape).await;
                assert_eq!(found.len(), left.len(), "seed {number}: {sql}");
                for row in &left {
                    let wanted = plain_match(*row, &right, condition, by_key);
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
