//! The sources of a running root's messages: a file or the generator by a schedule, a live
//! MoldUDP64 feed, or a program that publishes. The root uses all of them through [`Intake`].
//!
//! The root takes a message only when a tree has room for it. Messages therefore wait in the
//! intake, and each intake has a limit:
//!
//! | intake | what waits where, and what happens when it is full |
//! |---|---|
//! | `replay` | the next message; the file waits. Late messages count from their due time |
//! | `mold` | one datagram, and what is held behind a hole (`feed.mold_hold_messages`, `feed.mold_hold_bytes`: then the hole is given up); the rest in the kernel's receive buffers (`io.receive_buffer_bytes`), which drop the newest: a hole, asked for again |
//! | [`handover`] | 16,384 messages and 32 MiB: then `publish` waits and `try_publish` refuses |

pub mod handover;

#[cfg(feature = "feeds")]
pub mod gaps;
#[cfg(feature = "feeds")]
pub(crate) mod mold;
#[cfg(feature = "feeds")]
mod named;
#[cfg(feature = "feeds")]
mod replay;
#[cfg(feature = "feeds")]
mod session_choice;

#[cfg(feature = "feeds")]
pub use self::named::open;

use std::time::Duration;

use evenfall_core::Timestamp;
use evenfall_feed_formats::{FeedError, FeedMessage};
use evenfall_port::Port;
use serde::Serialize;

use crate::IntakeError;
use evenfall_runtime::telemetry::Metrics;

/// The next message of an intake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A message and its due time, which is not later than now.
    Message(FeedMessage, Timestamp),
    /// No message before this time, unless a datagram arrives.
    NotBefore(Timestamp),
    /// The end of the feed.
    End,
}

/// An event for people: its kind and its text.
pub type News = (&'static str, String);

/// A source of messages for a root that runs.
pub trait Intake {
    /// Called when the root's process is ready, before its tree is formed.
    fn attach(&mut self, _port: &dyn Port) {}

    /// Whether the publisher has given up before the tree is formed.
    fn is_cancelled(&self) -> bool {
        false
    }

    /// Called when the tree is formed. A schedule counts from `start`. From now on, arrivals of the
    /// intake end the port's waits.
    fn begin(&mut self, start: Timestamp, port: &mut dyn Port) -> Result<(), IntakeError>;

    /// The next message at `now`. The message stays in the intake.
    fn next(&mut self, now: Timestamp) -> Result<Next, FeedError>;

    /// Takes the message that [`next`](Self::next) showed.
    fn take(&mut self);

    /// Takes the next message before it is due, with its time after the start. `None` at the end,
    /// and for a live feed.
    fn skip(&mut self) -> Result<Option<(FeedMessage, Duration)>, FeedError> {
        Ok(None)
    }

    /// Whether a live feed that is opened again begins again at its first message, which cannot be
    /// [skipped](Self::skip).
    fn repeats(&self) -> bool {
        false
    }

    /// Events since the last call.
    fn news(&mut self) -> Vec<News> {
        Vec::new()
    }

    /// The fault of the intake, if it has one.
    fn ill(&self, _now: Timestamp) -> Option<String> {
        None
    }

    /// Counts of a live feed; `None` for other intakes.
    fn status(&self) -> Option<FeedStatus> {
        None
    }

    /// Name of the intake in the report.
    fn title(&self) -> String;
}

/// Counts of a live feed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FeedStatus {
    /// The session; empty before the first packet.
    pub session: String,
    /// Messages given out in order.
    pub delivered: u64,
    /// Messages whose first copy came over side A.
    pub first_a: u64,
    /// Messages whose first copy came over side B.
    pub first_b: u64,
    /// Messages whose first copy came as an answer to a request.
    pub first_again: u64,
    /// Copies that were not the first.
    pub copies_ignored: u64,
    /// Holes: ranges of messages that were missing on both sides when later messages arrived.
    pub gaps: u64,
    /// Requests for messages again.
    pub requests: u64,
    /// Answers to requests.
    pub answers: u64,
    /// Messages given up.
    pub lost: u64,
    /// Messages that came after they had been given up.
    pub late: u64,
    /// Messages that were not taken, because other bytes came under their numbers before.
    pub reused: u64,
    /// How often the numbers of a session began anew.
    pub restarts: u64,
    /// Datagrams that were not MoldUDP64 packets.
    pub malformed: u64,
    /// Packets of addresses that a side does not listen to.
    pub foreign: u64,
    /// Packets whose sequence, or whose end of the session, contradicts the others.
    pub far: u64,
    /// Packets of sessions that are not followed.
    pub other_sessions: u64,
}

impl FeedStatus {
    /// Writes the counts as metrics.
    pub fn show(&self, m: &mut Metrics) {
        m.counter("feed_messages_total", "Messages of the live feed.", 0, self.delivered);
        m.counter("feed_first_a_total", "First copies over side A.", 0, self.first_a);
        m.counter("feed_first_b_total", "First copies over side B.", 0, self.first_b);
        let again = "First copies that were answers to requests.";
        m.counter("feed_first_again_total", again, 0, self.first_again);
        m.counter("feed_copies_ignored_total", "Further copies.", 0, self.copies_ignored);
        m.counter("feed_gaps_total", "Holes seen in the live feed.", 0, self.gaps);
        m.counter("feed_requests_total", "Requests for messages again.", 0, self.requests);
        m.counter("feed_answers_total", "Answers to requests.", 0, self.answers);
        m.counter("feed_lost_messages_total", "Messages given up.", 0, self.lost);
        let late = "Messages that came after they had been given up.";
        m.counter("feed_late_messages_total", late, 0, self.late);
        let reused = "Messages under a number that came with other bytes before.";
        m.counter("feed_reused_numbers_total", reused, 0, self.reused);
        let restarts = "How often the numbers of a session began anew.";
        m.counter("feed_restarts_total", restarts, 0, self.restarts);
        m.counter(
            "feed_malformed_datagrams_total",
            "Datagrams that are no packets.",
            0,
            self.malformed,
        );
        m.counter("feed_foreign_packets_total", "Packets of other sources.", 0, self.foreign);
        m.counter("feed_far_packets_total", "Packets too far from the feed.", 0, self.far);
        let others = "Packets of sessions that are not followed.";
        m.counter("feed_other_session_packets_total", others, 0, self.other_sessions);
    }
}
