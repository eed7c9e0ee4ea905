//! Statements and literals that nobody would write: each is answered or refused, and none ends the
//! process.
//!
//! The questions of traders are cut, glued and changed word by word, at places that a seed chooses,
//! and are planned. Literals of every kind take the places of times, intervals, limits and levels,
//! and those statements run to their end. A text that once did harm is kept in
//! `fuzz/corpus/sql_statements`.

use std::path::Path;

use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use futures_util::TryStreamExt as _;

use crate::tests::{QuerySeed, TestStore, empty_store};
use crate::{QuerySession, number_placeholders};

/// Changed statements of a run. Each takes some milliseconds to plan without optimisation.
const CHANGED: u64 = 400;
/// Statements with odd literals of a run.
const ODD: u64 = 300;

fn store() -> TestStore {
    let store = empty_store();
    store.record("day", 0..9);
    store
}

/// The questions of traders, and texts that once did harm.
fn texts() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let questions = std::fs::read_to_string(root.join("tests/questions.sql")).unwrap();
    let questions = questions.split("\n-- question ").skip(1).map(|block| {
        let (_, rest) = block.split_once('\n').unwrap();
        rest.split("\n-- duckdb\n").next().unwrap().to_owned()
    });
    let mut texts: Vec<String> = questions.collect();
    let corpus = root.join("../../../fuzz/corpus/sql_statements");
    for file in std::fs::read_dir(corpus).expect("the corpus is in the repository") {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        texts.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    texts
}

/// Plans every statement of a text. Errors are answers.
async fn plan_all(session: &QuerySession, sql: &str) -> usize {
    let _ = number_placeholders(sql);
    let Ok(statements) = session.parse(sql) else { return 0 };
    let mut planned = 0;
    for statement in statements {
        planned += usize::from(session.plan(statement).await.is_ok());
    }
    planned
}

#[tokio::test(flavor = "multi_thread")]
async fn what_once_was_interesting_is_planned_or_refused() {
    let store = store();
    let session = store.session();
    let mut planned = 0;
    for text in texts() {
        planned += plan_all(&session, &text).await;
    }
    assert!(planned >= 30, "{planned} statements");
}

/// A text with some words gone, doubled, exchanged, or taken from another text.
fn changed(texts: &[Vec<Token>], seed: &mut QuerySeed) -> String {
    let pick = |seed: &mut QuerySeed| &texts[seed.below(texts.len() as u64) as usize];
    let mut tokens = pick(seed).clone();
    for _ in 0..=seed.below(4) {
        let at = seed.below(tokens.len() as u64) as usize;
        let from = pick(seed);
        let start = seed.below(from.len() as u64) as usize;
        let some = &from[start..(start + 1 + seed.below(12) as usize).min(from.len())];
        match seed.below(6) {
            0 => drop(tokens.remove(at)),
            1 => tokens.insert(at, tokens[at].clone()),
            2 => {
                let other = seed.below(tokens.len() as u64) as usize;
                tokens.swap(at, other);
            }
            3 => tokens.truncate(at.max(1)),
            4 => drop(tokens.splice(at..at, some.iter().cloned())),
            _ => {
                let end = (at + some.len()).min(tokens.len());
                drop(tokens.splice(at..end, some.iter().cloned()));
            }
        }
        if tokens.is_empty() {
            break;
        }
    }
    tokens.iter().map(ToString::to_string).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_statements_are_planned_or_refused() {
    let store = store();
    let session = store.session();
    let tokens = |text: &String| Tokenizer::new(&PostgreSqlDialect {}, text).tokenize().ok();
    let texts: Vec<Vec<Token>> = texts().iter().filter_map(tokens).collect();
    let mut planned = 0;
    for number in 0..CHANGED {
        let sql = changed(&texts, &mut QuerySeed::new(number + 1));
        planned += plan_all(&session, &sql).await;
    }
    // A change that every statement fails by would try the parser alone.
    assert!(planned > CHANGED as usize / 20, "{planned} of {CHANGED} were planned");
}

/// Values that programs and people put where a value belongs.
const LITERALS: [&str; 44] = [
    "0",
    "1",
    "-1",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "1e308",
    "-1e400",
    "0.0001",
    "99999999999999999999999999999999999999999",
    "'NaN'::double precision",
    "'infinity'::double precision",
    "NULL",
    "''",
    "' '",
    "'0'",
    "'-'",
    "'x'",
    "'1 second'",
    "'-1 second'",
    "'1 minute'",
    "'1 month'",
    "'1000000 years'",
    "'9223372036854775807 days'",
    "'1 parsec'",
    "'0 seconds'",
    "INTERVAL '1 hour'",
    "INTERVAL '-9223372036854775808 ns'",
    "'2026-11-20'",
    "'2026-13-45'",
    "'2026-11-20 09:30:00.123456789123'",
    "'09:30'",
    "'25:61:61'",
    "'-290000-01-01'",
    "'294276-12-31T23:59:59Z'",
    "TIMESTAMP '1677-09-21 00:12:43'",
    "TIMESTAMP '2262-04-11 23:47:16.854775807'",
    "TIMESTAMPTZ '2026-11-20T14:30:00+99:00'",
    "DATE '0001-01-01'",
    "true",
    "'\u{1f980}'",
    "X'00'",
    "ARRAY[1, 2]",
    "(SELECT 1)",
];

/// Statements with places for values, written `{}`.
const PLACES: [&str; 20] = [
    "SELECT time_bucket({}, time) FROM messages",
    "SELECT time_bucket({}, ts) FROM messages",
    "SELECT count(*) FROM messages WHERE time >= {} AND time < {}",
    "SELECT count(*) FROM trades WHERE recorded BETWEEN {} AND {}",
    "SELECT count(*) FROM quotes WHERE recorded > {}",
    "SELECT * FROM book('day', 'AAPL', {}, 3)",
    "SELECT * FROM book('day', {}, '09:30:01', {})",
    "SELECT * FROM book({}, 'AAPL', '09:30:01', 2)",
    "SELECT a.seq, b.seq FROM messages a ASOF JOIN messages b
     MATCH_CONDITION (a.ts >= b.ts AND a.ts - b.ts <= {}) ON a.symbol = b.symbol",
    "SELECT a.seq, b.seq FROM messages a ASOF JOIN messages b MATCH_CONDITION (a.ts + {} >= b.ts)",
    "SELECT a.seq, b.seq FROM messages a ASOF JOIN messages b
     MATCH_CONDITION (a.time + {} > b.time) ON a.symbol = b.symbol",
    "SELECT a.seq, b.seq FROM messages a ASOF JOIN messages b
     MATCH_CONDITION (nearest(a.ts, {})) ON a.symbol = b.symbol",
    "SELECT a.seq, b.seq FROM messages a ASOF JOIN messages b
     MATCH_CONDITION (nearest(a.time, b.time)) ON a.symbol = {}",
    "SELECT count(*) FROM messages a LEFT JOIN messages b ON b.ts BETWEEN a.ts - {} AND a.ts + {}",
    "SELECT count(*) FROM messages a LEFT JOIN messages b
     ON b.time BETWEEN a.time - {} AND a.time + {} AND a.symbol = b.symbol",
    "SELECT count(*) FROM messages a LEFT JOIN messages b ON b.ts >= a.ts - {} AND b.ts < a.ts",
    "SELECT twap({}, ts), vwap(price, {}), first({}, seq), last(price, {}) FROM messages",
    "SELECT twap(price, {}) FROM messages",
    "SELECT {} + {}, {} = {}, {} || {}",
    "SELECT sum(shares) OVER (ORDER BY ts RANGE BETWEEN {} PRECEDING AND {} FOLLOWING)
     FROM messages",
];

#[tokio::test(flavor = "multi_thread")]
async fn odd_literals_are_answered_or_refused_in_every_place() {
    let store = store();
    let session = store.session();
    let (mut answered, mut refused) = (0, 0);
    for number in 0..ODD {
        let mut seed = QuerySeed::new(number + 1);
        let mut sql = PLACES[(number % PLACES.len() as u64) as usize].to_owned();
        while sql.contains("{}") {
            let literal = LITERALS[seed.below(LITERALS.len() as u64) as usize];
            sql = sql.replacen("{}", literal, 1);
        }
        let rows = match session.run(&sql).await {
            Ok(running) => running.stream.try_collect::<Vec<_>>().await.map(|_| ()),
            Err(error) => Err(error),
        };
        match rows {
            Ok(()) => answered += 1,
            Err(error) => {
                let words = error.to_string();
                assert!(!words.contains("fault of the program"), "{sql}: {words}");
                refused += 1;
            }
        }
    }
    assert!(answered > 20 && refused > 20, "{answered} answered, {refused} refused");
}
