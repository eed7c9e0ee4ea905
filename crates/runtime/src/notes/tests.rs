//! Notes whose reader does not take them.

use super::*;
use std::sync::{Condvar, Mutex};

/// A reader that does not read until it is released, and that refuses while it is ill.
#[derive(Clone, Default)]
struct Reader(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    taken: Vec<u8>,
    stands: bool,
    /// A note is before a reader that stands still.
    waits: bool,
    ill: bool,
}

impl Reader {
    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    fn taken(&self) -> String {
        String::from_utf8(self.0.0.lock().unwrap().taken.clone()).unwrap()
    }
}

impl Write for Reader {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.0.lock().unwrap();
        while state.stands {
            state.waits = true;
            state = self.0.1.wait(state).unwrap();
        }
        if state.ill {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.taken.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Notes that are all written before they end, on however busy a machine.
fn patient(reader: &Reader) -> Notes {
    let mut notes = Notes::new(reader.clone()).unwrap();
    notes.farewell = Duration::from_secs(60);
    notes
}

fn say(notes: &Notes, line: &str) {
    (&notes.queue).write_all(line.as_bytes()).unwrap();
}

#[test]
fn everything_said_before_the_end_is_written() {
    let reader = Reader::default();
    let notes = patient(&reader);
    let lines: String = (0..500).map(|n| format!("note {n}\n")).collect();
    lines.split_inclusive('\n').for_each(|line| say(&notes, line));
    drop(notes);
    assert_eq!(reader.taken(), lines);
}

#[test]
fn reader_that_stands_still_costs_notes_beyond_the_queue_and_nobody_waits() {
    let reader = Reader::default();
    reader.set(|state| state.stands = true);
    let notes = patient(&reader);
    // A writer that takes its first note later takes the count of those dropped with it.
    say(&notes, "note 0\n");
    while !reader.0.0.lock().unwrap().waits {
        std::thread::yield_now();
    }
    (1..LINES_MAX * 3).for_each(|n| say(&notes, &format!("note {n}\n")));
    assert!(notes.queue.dropped.load(Ordering::Relaxed) >= LINES_MAX as u64);
    reader.set(|state| state.stands = false);
    drop(notes);
    let taken = reader.taken();
    assert!(taken.contains("notes that nobody took") && taken.contains("note 1000\n"), "{taken}");
}

#[test]
fn process_ends_though_the_reader_stands_still() {
    let reader = Reader::default();
    reader.set(|state| state.stands = true);
    let notes = Notes::new(reader.clone()).unwrap();
    (0..LINES_MAX * 2).for_each(|_| say(&notes, "note\n"));
    drop(notes);
    assert!(reader.taken().is_empty());
}

#[test]
fn full_disk_costs_the_notes_that_it_refuses_and_they_are_counted() {
    let reader = Reader::default();
    reader.set(|state| state.ill = true);
    let notes = patient(&reader);
    say(&notes, "refused\n");
    while notes.queue.dropped.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    reader.set(|state| state.ill = false);
    say(&notes, "taken\n");
    drop(notes);
    assert_eq!(reader.taken(), "notes that nobody took: 1\ntaken\n");
}

#[test]
fn level_is_info_unless_the_variable_says_another() {
    assert_eq!(level_of(None).unwrap(), LevelFilter::INFO);
    assert_eq!(level_of(Some("")).unwrap(), LevelFilter::INFO);
    assert_eq!(level_of(Some("off")).unwrap(), LevelFilter::OFF);
    assert_eq!(level_of(Some("debug")).unwrap(), LevelFilter::DEBUG);
    assert!(level_of(Some("loud")).unwrap_err().to_string().contains("must be off, error"));
}

#[test]
fn one_note_a_second_passes_with_the_number_of_those_in_between() {
    let (mut pace, begin) = (NotePace::default(), Instant::now());
    let mut at = |ms| pace.let_pass(begin + Duration::from_millis(ms));
    assert_eq!(at(0), Some(0));
    assert_eq!([1, 500, 999].map(&mut at), [None; 3]);
    assert_eq!(at(1_000), Some(3));
    assert_eq!(at(1_001), None);
    assert_eq!(at(5_000), Some(1));
}
