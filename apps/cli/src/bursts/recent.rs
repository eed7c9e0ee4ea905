//! A recorder that holds the last seconds of its feed and answers the questions of a desk.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Instant;

use evenfall_collectives_member::{GroupSocket, GroupSocketOptions, unlimited_settings};
use evenfall_core::Format;
use evenfall_multicast_recorder::recent::{RecentHolder, RecentHolding, RecentTap};
use evenfall_query_member::desk::DeskWorkerPlan;
use evenfall_query_member::desk::recent::{RecentConfig, RecentRows};
use evenfall_query_member::desk::reprice::read_positions;
use evenfall_query_member::standing_group::{BurstWorker, WorkerEvent};
use evenfall_query_member::{FeedTap, SharedRows, StandingThread};
use evenfall_runtime::notes::NotePace;
use evenfall_runtime::telemetry::Metrics;

use super::ranks::read_named;

/// Rows and the thread that answers questions about them.
struct HeldRecent {
    rows: SharedRows,
    thread: StandingThread,
}

/// Holds rows and answers questions, and says where.
///
/// # Errors
/// When the address cannot be bound, or the file of positions cannot be read.
pub fn hold_recent(
    holding: RecentHolding,
) -> Result<Box<dyn RecentHolder>, Box<dyn std::error::Error>> {
    let RecentHolding { name, keep, limits, listen, positions, key } = holding;
    let positions = match &positions {
        Some(file) => read_named("positions", file, read_positions)?,
        None => Vec::new(),
    };
    let at_most = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let (rows_max, bytes_max) = (at_most(limits.rows_max), at_most(limits.bytes_max));
    let rows = SharedRows::new(RecentRows::new(RecentConfig { keep, rows_max, bytes_max }));
    let options = GroupSocketOptions { key, ..GroupSocketOptions::default() };
    let settings = unlimited_settings(options.packet_bytes(listen, listen)?);
    let socket = GroupSocket::bind(listen, options)?;
    let count = positions.len();
    let plan = DeskWorkerPlan::new(rows.clone(), positions);
    let worker = BurstWorker::new(plan, settings);
    let notes = RefCell::new(EventNotes { name: name.clone(), ..EventNotes::default() });
    let note = move |event: &WorkerEvent| notes.borrow_mut().note(event, Instant::now());
    let thread = StandingThread::start(socket, worker, rows.clone(), note);
    aside!("{name}: questions at {}, {count} positions", thread.address());
    Ok(Box::new(HeldRecent { rows, thread }))
}

/// What is noted about questions. Anybody can have a question refused, or let it fail, as often as
/// datagrams can be sent, so that each kind has one note a second.
#[derive(Default)]
struct EventNotes {
    name: String,
    refused: NotePace,
    failed: NotePace,
}

impl EventNotes {
    fn note(&mut self, event: &WorkerEvent, now: Instant) {
        let Some((text, left_out)) = self.pace(event, now) else { return };
        let name = &self.name;
        match left_out {
            0 => tracing::warn!("{name}: {text}"),
            _ => tracing::warn!("{name}: {text} (and {left_out} more since the last such line)"),
        }
    }

    /// The words about an event that may be noted now, and how many were left out before.
    fn pace(&mut self, event: &WorkerEvent, now: Instant) -> Option<(String, u64)> {
        let (pace, text) = match event {
            WorkerEvent::Refused { asker, why } => {
                (&mut self.refused, format!("refused a question of {asker}: {why}"))
            }
            WorkerEvent::Failed { number, failure, blamed } => {
                let blamed = blamed.map_or_else(String::new, |at| format!(", which is {at}"));
                (&mut self.failed, format!("question {number}: {failure}{blamed}"))
            }
            WorkerEvent::Began { .. } | WorkerEvent::Ended { .. } => return None,
        };
        pace.let_pass(now).map(|left_out| (text, left_out))
    }
}

/// Turns messages into rows.
struct RowTap {
    books: FeedTap,
    rows: SharedRows,
}

impl RecentTap for RowTap {
    fn push(&mut self, tree: u32, time_ns: i64, format: Format, message: &[u8]) {
        let Self { books, rows } = self;
        rows.with(|rows| books.push(tree, time_ns, format, message, rows));
    }

    fn settle(&mut self) {
        let Self { books, rows } = self;
        rows.with(|rows| books.settle(rows));
    }
}

impl RecentHolder for HeldRecent {
    fn address(&self) -> SocketAddr {
        self.thread.address()
    }

    fn make_tap(&self) -> Box<dyn RecentTap> {
        Box::new(RowTap { books: FeedTap::new(), rows: self.rows.clone() })
    }

    fn add_metrics(&self, m: &mut Metrics) {
        let counters = self.thread.counters();
        let (rows, bytes, held) = self.thread.held();
        m.gauge("burst_rows", "Rows of the last seconds in memory.", 0, rows as f64);
        m.gauge("burst_bytes", "Bytes of their columns.", 0, bytes as f64);
        m.counter("burst_quotes_total", "Changes of best prices.", 0, held.quotes);
        m.counter("burst_trades_total", "Trades.", 0, held.trades);
        let help = "Rows that left early, because a limit was reached.";
        m.counter("burst_over_limit_total", help, 0, held.over_limit);
        let help = "Rows of securities beyond the limit, and trades of unknown price.";
        let unused = held.unknown_symbols + held.unpriced_trades;
        m.counter("burst_unused_rows_total", help, 0, unused);
        m.counter("questions_total", "Questions taken.", 0, counters.worker.questions);
        m.counter("questions_refused_total", "Questions refused.", 0, counters.worker.refused);
        let help = "Questions that failed at another worker or at the asker.";
        m.counter("questions_failed_total", help, 0, counters.worker.failed);
        let help = "Datagrams that were no questions, of another version or under another key.";
        let malformed = counters.malformed + counters.worker.other_versions;
        m.counter("questions_malformed_total", help, 0, malformed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_one_note_a_second_with_its_number() {
        let mut notes = EventNotes::default();
        let asker = SocketAddr::from(([127, 0, 0, 1], 9));
        let refused = WorkerEvent::Refused { asker, why: "asked in version 1".into() };
        let begin = Instant::now();
        let flood = (0..31_890).map(|n| begin + std::time::Duration::from_micros(100 * n));
        let noted: Vec<u64> =
            flood.filter_map(|at| notes.pace(&refused, at)).map(|(_, more)| more).collect();
        assert_eq!(noted, [0, 9_999, 9_999, 9_999]);
    }
}
