//! What traders ask about a real day, beside DuckDB over tables that a program in Python has made.
//!
//! `tests/questions.sql` has the statements. `tests/questions.py` reads the feed by itself, keeps
//! books of its own, and compares both answers.

use std::path::{Path, PathBuf};
use std::process::Command;

use arrow::ipc::writer::StreamWriter;
use evenfall_feed_formats::dates::Date;
use evenfall_store_engine::StoreAckLevel;
use evenfall_store_recording::intake::{FeedDay, record_feed};
use evenfall_store_recording::{BooksConfig, DerivedWriter, RecordingWriter};
use futures_util::TryStreamExt as _;

use crate::tests::{TestStore, empty_store};

/// Five minutes of one security.
const ONE_SYMBOL: &str = "itch/nasdaq_20191230_aapl.itch50";
/// The first 1,000 messages of an open, of many securities.
const MANY_SYMBOLS: &str = "itch/nasdaq_20191230_open_multi_symbol.itch50";

/// What the comparison needs, or a line that says what is missing.
fn needed() -> Result<(PathBuf, PathBuf), &'static str> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let beside = || root.join("../shared/data");
    let data = std::env::var_os("EVENFALL_DATA").map_or_else(beside, PathBuf::from);
    let python = root.join("target/venv-store/bin/python");
    match (data.join(ONE_SYMBOL).is_file(), python.exists()) {
        (false, _) => Err("skipped: no data (set EVENFALL_DATA)"),
        (_, false) => Err("skipped: no Python with duckdb in target/venv-store (make deps)"),
        (true, true) => Ok((data, python)),
    }
}

/// The first feed has its trades and quotes in the store, and those of the second are made while
/// they are read.
fn record(feed: &Path) -> TestStore {
    let store = empty_store();
    let mut writer = RecordingWriter::new(&store.store, "aapl", 1, StoreAckLevel::Memory).unwrap();
    let day = FeedDay { date: Some(Date::constant(2019, 12, 30)) };
    let file = Box::new(std::fs::File::open(feed).unwrap());
    let mut messages = evenfall_feed_formats::open(file, "aapl").unwrap();
    record_feed(&mut writer, &mut *messages, day, &mut || true).unwrap();
    drop(writer);
    if feed.ends_with(ONE_SYMBOL) {
        let mut tables = DerivedWriter::open(&store.store, "aapl", BooksConfig::default()).unwrap();
        tables.catch_up(u64::MAX).unwrap();
        tables.flush().unwrap();
        assert!(tables.records().1 > 1_000);
    }
    store
}

/// Asks the questions that are chosen, and compares the answers. Returns how many there are.
async fn compare_answers(feed: &Path, python: &Path, is_chosen: fn(&str) -> bool) -> usize {
    let store = record(feed);
    let session = store.session();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let asked = tests.join("questions.sql");
    let text = std::fs::read_to_string(&asked).unwrap();
    let answers = tempfile::tempdir().unwrap();
    let mut count = 0;
    for (number, block) in (1..).zip(text.split("\n-- question ").skip(1)) {
        let (title, rest) = block.split_once('\n').unwrap();
        let sql = rest.split("\n-- duckdb\n").next().unwrap();
        if !is_chosen(sql) {
            continue;
        }
        count += 1;
        let running = session.run(sql).await;
        let mut running = running.unwrap_or_else(|error| panic!("{title}: {error}"));
        let file = std::fs::File::create(answers.path().join(format!("{number}.arrow"))).unwrap();
        let mut writer = StreamWriter::try_new(file, &running.stream.schema()).unwrap();
        let mut next = async || running.stream.try_next().await;
        while let Some(batch) = next().await.unwrap_or_else(|error| panic!("{title}: {error}")) {
            writer.write(&batch).unwrap();
        }
        writer.finish().unwrap();
    }
    let mut command = Command::new(python);
    command.arg(tests.join("questions.py")).arg(feed).arg(&asked).arg(answers.path());
    let compared = command.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    let said = String::from_utf8_lossy(&compared.stdout);
    let errors = String::from_utf8_lossy(&compared.stderr);
    assert!(compared.status.success(), "{}: {said}{errors}", feed.display());
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_of_traders_have_the_answers_of_an_independent_reader() {
    let (data, python) = match needed() {
        Ok(found) => found,
        Err(why) => return println!("{why}"),
    };
    let all = compare_answers(&data.join(ONE_SYMBOL), &python, |_| true).await;
    assert!(all >= 30, "{all} questions");
    // Whole tables and joins of many securities. Their books are asked for above.
    let joins = |sql: &str| !sql.contains("book(") && (sql.contains("JOIN") || !sql.contains('('));
    let some = compare_answers(&data.join(MANY_SYMBOLS), &python, joins).await;
    assert!(some >= 15, "{some} questions");
}
