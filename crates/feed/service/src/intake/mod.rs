//! Where the root's messages come from while it runs: a file or the generator by a schedule, a
//! live MoldUDP64 feed, or a program that publishes. The root sees one thing, [`Intake`].
//!
//! The root looks at the next message and takes it only when a tree had room for it, so whatever
//! waits, waits in the intake, which bounds it:
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
mod mold;
#[cfg(feature = "feeds")]
mod named;
#[cfg(feature = "feeds")]
mod replay;
#[cfg(feature = "feeds")]
mod trust;

#[cfg(feature = "feeds")]
pub use self::named::open;

use evenfall_core::Timestamp;
use evenfall_feed_formats::{FeedError, Message};
use evenfall_port::Port;
use serde::Serialize;

use crate::IntakeError;
use evenfall_runtime::telemetry::Metrics;

/// What an intake has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A message, and when it was due; not later than now.
    Message(Message, Timestamp),
    /// None before this time, unless something arrives.
    NotBefore(Timestamp),
    /// None any more.
    End,
}

/// What happened, for people: what kind of thing, and in words.
pub type News = (&'static str, String);

/// A source of messages for a root that runs.
pub trait Intake {
    /// The root's process stands; its tree does not yet.
    fn attach(&mut self, _port: &dyn Port) {}

    /// Whether nobody waits for a tree any more.
    fn is_cancelled(&self) -> bool {
        false
    }

    /// The tree stands. A schedule counts from `start`; what arrives from now on shall end the
    /// port's waits.
    fn begin(&mut self, start: Timestamp, port: &mut dyn Port) -> Result<(), IntakeError>;

    /// What there is now, without taking it.
    fn next(&mut self, now: Timestamp) -> Result<Next, FeedError>;

    /// Takes the message that [`next`](Self::next) showed.
    fn take(&mut self);

    /// What happened since the last call.
    fn news(&mut self) -> Vec<News> {
        Vec::new()
    }

    /// Why it is not well.
    fn ill(&self, _now: Timestamp) -> Option<String> {
        None
    }

    /// What came in, if it is a live feed.
    fn status(&self) -> Option<FeedStatus> {
        None
    }

    /// What the report calls it.
    fn title(&self) -> String;
}

/// What came in over a live feed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FeedStatus {
    /// The session; empty before the first packet.
    pub session: String,
    /// Messages in order.
    pub delivered: u64,
    /// Messages whose first copy came over side A.
    pub first_a: u64,
    /// Messages whose first copy came over side B.
    pub first_b: u64,
    /// Messages whose first copy came as an answer to a request.
    pub first_again: u64,
    /// Copies that were not the first.
    pub copies_ignored: u64,
    /// Holes: ranges of messages that were missing on both sides when their successors came.
    pub gaps: u64,
    /// Requests for messages again.
    pub requests: u64,
    /// Answers to them.
    pub answers: u64,
    /// Messages given up.
    pub lost: u64,
    /// Datagrams that were no packets of MoldUDP64.
    pub malformed: u64,
    /// Packets of addresses that a side does not listen to.
    pub foreign: u64,
    /// Packets whose sequence, or whose end of the session, contradicts the others.
    pub far: u64,
    /// Packets of sessions that are not followed.
    pub other_sessions: u64,
}

impl FeedStatus {
    /// Writes it as metrics.
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
