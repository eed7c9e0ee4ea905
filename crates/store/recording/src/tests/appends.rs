//! Rows of users: the row that a store refuses is found, and what is before it is kept.

use evenfall_store_format::schema::ArrivalOrder;

use super::{NOW_NS, dated, schema};
use crate::late_window::LateWindowError;
use crate::record_append::{RecordAppendError, RecordAppender};
use evenfall_store_engine::{Store, StoreAckLevel};

fn record(time_ns: i64, value: u64) -> Vec<u8> {
    [time_ns.to_le_bytes(), value.to_le_bytes()].concat()
}

fn records_of(store: &Store) -> u64 {
    store.files().iter().map(|file| file.records()).sum()
}

#[test]
fn a_refused_row_is_named_and_all_rows_before_it_are_appended() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dated(dir.path())).unwrap().store;
    store.create("t", &schema()).unwrap();
    // More than a batch, whose last row but three goes back in time.
    let wrong = 40_000;
    for first in [NOW_NS - 2_000_000, NOW_NS - 1_000_000] {
        let before = records_of(&store);
        let mut appender =
            RecordAppender::to_store(&store, "t", StoreAckLevel::Memory, "row").unwrap();
        let pushed = (0..wrong + 3).try_for_each(|row| {
            let time_ns = if row == wrong { 5 } else { first + row as i64 };
            appender.push(row, &record(time_ns, row))
        });
        let error = pushed.and_then(|()| appender.finish()).unwrap_err();
        let RecordAppendError::Record { position, .. } = error else { panic!("{error:?}") };
        assert_eq!((position, appender.records_appended()), (wrong, wrong));
        assert_eq!(records_of(&store) - before, wrong);
        // What is behind a refused row would leave a hole.
        appender.finish().unwrap();
        assert_eq!(records_of(&store) - before, wrong);
    }
    store.close().unwrap();
}

#[test]
fn a_batch_that_the_store_cannot_acknowledge_is_named_by_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dated(dir.path())).unwrap().store;
    store.create("t", &schema()).unwrap();
    let mut appender =
        RecordAppender::to_store(&store, "t", StoreAckLevel::Replica, "row").unwrap();
    for row in 7..10 {
        appender.push(row, &record(NOW_NS, row)).unwrap();
    }
    let error = appender.finish().unwrap_err();
    let RecordAppendError::Batch { first, last, .. } = error else { panic!("{error:?}") };
    assert_eq!((first, last, appender.records_appended()), (7, 9, 0));
    store.close().unwrap();
}

#[test]
fn a_window_sorts_rows_drops_copies_and_remarks_on_late_ones() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dated(dir.path())).unwrap().store;
    let arrival =
        ArrivalOrder { window_ns: 10, sequence: "value".into(), ..ArrivalOrder::default() };
    store.create("t", &evenfall_store_format::Schema { arrival, ..schema() }).unwrap();
    let mut appender = RecordAppender::to_store(&store, "t", StoreAckLevel::Local, "line").unwrap();
    let rows = [(100, 1), (103, 3), (102, 2), (103, 3), (120, 4), (99, 5)];
    for (line, (time_ns, value)) in (2..).zip(rows) {
        appender.push(line, &record(time_ns, value)).unwrap();
    }
    appender.finish().unwrap();
    assert_eq!((appender.records_appended(), records_of(&store)), (4, 4));
    assert_eq!(appender.take_remarks(), ["refused: line 7 of 99 ns, behind 103 ns"]);
    let window = appender.window().expect("a window");
    assert_eq!((window.counts().duplicates, window.counts().reordered), (1, 1));
    assert_eq!(window.judge(), Err(LateWindowError::Refused(1)));
    store.close().unwrap();
}

#[test]
fn rows_that_a_window_refuses_or_drops_take_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dated(dir.path())).unwrap().store;
    let arrival =
        ArrivalOrder { window_ns: 10, sequence: "value".into(), ..ArrivalOrder::default() };
    store.create("t", &evenfall_store_format::Schema { arrival, ..schema() }).unwrap();
    let mut appender =
        RecordAppender::to_store(&store, "t", StoreAckLevel::Memory, "line").unwrap();
    for (line, time_ns) in [(0, 1_000), (1, 2_000), (2, 3_000)] {
        appender.push(line, &record(time_ns, line)).unwrap();
    }
    let before = appender.records_waiting();
    for line in 3..500 {
        // Too late, each with values of its own; then a copy.
        appender.push(line, &record(5, line)).unwrap();
        appender.push(line, &record(3_000, 2)).unwrap();
    }
    assert_eq!(appender.records_waiting(), before);
    appender.finish().unwrap();
    assert_eq!(appender.records_appended(), 3);
    store.close().unwrap();
}
