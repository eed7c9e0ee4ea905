//! How results look on a terminal, and what happens when nobody takes them.

use std::fmt::Arguments;
use std::io::{ErrorKind, Result, Write, stderr, stdout};

use evenfall_core::Summary;
use evenfall_multicast_machine::fairness::Results;

/// Standard output took no more. It is thrown as a panic, so that it passes through every library
/// between the command and its output, and `main` ends the program by it.
pub struct Unwritten(pub std::io::Error);

/// Ends the command: its result is not taken.
pub fn unwritten(error: std::io::Error) -> ! {
    std::panic::panic_any(Unwritten(error))
}

/// Prints a part of the result.
pub fn out(words: Arguments<'_>) {
    stdout().lock().write_fmt(words).unwrap_or_else(|error| unwritten(error));
}

/// Prints something to whom it may concern; the process goes on if nobody takes it.
pub fn offer(words: Arguments<'_>) {
    stdout().lock().write_fmt(words).ok();
}

/// Everything printed so far is taken.
pub fn flush() {
    stdout().flush().unwrap_or_else(|error| unwritten(error));
}

/// Says something beside the result, if it can be said.
pub fn aside(words: Arguments<'_>) {
    stderr().lock().write_fmt(words).ok();
}

/// Standard output for what is written piece by piece; see [`Unwritten`].
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        match stdout().write(bytes) {
            Err(error) if error.kind() != ErrorKind::Interrupted => unwritten(error),
            other => other,
        }
    }

    fn flush(&mut self) -> Result<()> {
        flush();
        Ok(())
    }
}

/// A number of things, as people say it.
pub fn counted(number: usize, thing: &str) -> String {
    match (number, thing.strip_suffix('y')) {
        (1, _) => format!("1 {thing}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        _ => format!("{number} {thing}s"),
    }
}

/// A row of percentiles in microseconds.
fn row(name: &str, s: &Summary) {
    println!("  {name:<18}{:>11.1}{:>11.1}{:>11.1}{:>11.1}", s.p50, s.p90, s.p99, s.max);
}

/// Prints the figures of a run.
pub fn results(r: &Results) {
    println!(
        "{} messages to {} receivers: {} delivered, {} lost, {} repaired, {} duplicates dropped",
        r.messages, r.receivers, r.delivered, r.lost, r.repaired, r.duplicates_dropped
    );
    if let Some(on_time) = r.on_time_fraction {
        println!("on time at every receiver: {:.3} % of messages", on_time * 100.0);
    }
    println!("  {:<18}{:>11}{:>11}{:>11}{:>11}", "us", "p50", "p90", "p99", "max");
    row("OML, un-held", &r.oml_us);
    row("OML, held", &r.held_oml_us);
    row("delivery window", &r.window_us);
    row("release lateness", &r.release_late_us);
    row("hold", &r.hold_us);
    row("margin", &r.margin_us);
    let error = serde_json::to_value(r.clock_error_us).unwrap_or_default();
    println!("  clock error between hosts: {error} us");
}
