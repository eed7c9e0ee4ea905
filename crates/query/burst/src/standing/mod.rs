//! A group that stands: workers wait for hours for the next question, and one that died, hangs or
//! comes late costs an answer its share and not its end.
//!
//! The ranks of a [`Burst`](crate::burst::Burst) begin together, and silence of three seconds ends
//! a call. Workers that stand cannot do so: nobody knows when the next question comes, nor from
//! whom, nor which workers still live then. Votes among the workers would cost each question round
//! trips that it does not have. Here whoever asks decides, for each question anew:
//!
//! ```text
//!  asker                     workers 1..n
//!    | CALL ------------------> |      who is there? (all at once)
//!    | <--- HERE rows, newest   |      a worker that does not answer in time is missing
//!    | ASK who, what ---------> |      each worker becomes a rank of a new group
//!    | <----------------- TAKEN |      or REFUSED with a reason
//!    | <===== one burst =====>  |      the asker is rank 0, and has the answer at its end
//! ```
//!
//! - A question has a number of its own. The number is the epoch of a new [`ProcessGroup`], so that
//!   nothing of an earlier question is taken for this one, and a process that was started again
//!   needs to know nothing.
//! - A rank that fails in the burst is named to all ranks ([`RankFailure`]). The asker leaves that
//!   worker out, calls the roll again, and asks the rest under a new number. The answer lists who
//!   is missing, with the reason ([`MissingReason`]). With fewer than
//!   [`StandingConfig::workers_min`] workers there is no answer, and the end says so.
//! - A worker that is missing is called at each question and not waited for. It takes part again as
//!   soon as it has answered.
//! - Between questions nothing is sent. A worker whose asker has died ends its part by the silence
//!   of the burst, and waits for the next question.
//!
//! The asker must be able to reach all workers. A worker that only the asker cannot reach is
//! missing, although other workers reach it.
//!
//! [`ProcessGroup`]: evenfall_collectives_machine::group::ProcessGroup
//! [`RankFailure`]: evenfall_collectives_machine::RankFailure

pub mod asker;
pub mod wire;
pub mod worker;

use core::time::Duration;
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_collectives_machine::RankFailure;
use evenfall_collectives_machine::group::GroupSettings;

pub use self::asker::{AskError, AskedAnswer, AskerEvent, BurstAsker, MissingWorker};
pub use self::worker::{BurstWorker, WorkerCounters, WorkerEvent};
use crate::burst::{BurstProgram, DoneWork, Work};
use evenfall_core::{Machine, Timestamp};

/// Settings of a standing group.
#[derive(Clone, Debug, PartialEq)]
pub struct StandingConfig {
    /// Settings of the groups of questions. Packet size and silence are those of the asker.
    pub group: GroupSettings,
    /// The fewest workers of an answer. An asker with fewer says so and gives no answer.
    pub workers_min: usize,
    /// After this time an asker gives no answer. It is several times the silence, because each
    /// failure in a burst costs that much.
    pub answer_within: Duration,
}

/// Where a rank stands in a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPlace {
    /// The rank; whoever asks is rank 0.
    pub rank: u16,
    /// Number of ranks.
    pub ranks: u16,
}

/// What a worker has to answer questions with.
pub trait AnswerPlan {
    /// The part of a rank.
    type Program: BurstProgram;

    /// Begins this worker's part in a question.
    ///
    /// # Errors
    /// The reason for which the worker takes no part. Whoever asked prints it.
    fn answer(&mut self, question: &Bytes, place: RankPlace) -> Result<Self::Program, String>;

    /// Rows that the worker holds, and the time of the newest in nanoseconds.
    fn held(&self) -> HeldRows;
}

/// What a worker says about its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRows {
    /// Rows.
    pub rows: u64,
    /// Time of the newest row in nanoseconds; `None` without rows.
    pub newest_ns: Option<i64>,
}

/// A question as its asker sees it.
pub trait QuestionPlan {
    /// The part of a rank.
    type Program: BurstProgram;

    /// The bytes of the question, when the newest row of any worker has this time.
    fn question(&mut self, newest_ns: Option<i64>) -> Bytes;

    /// Begins the part of the asker, which is rank 0.
    fn program(&mut self, question: &Bytes, place: RankPlace) -> Self::Program;
}

/// A machine whose work runs on other cores, see [`burst`](crate::burst).
pub trait WorkMachine: Machine {
    /// The next work to do.
    fn poll_work(&mut self) -> Option<Work>;

    /// Hands in work that is done.
    fn handle_work(&mut self, now: Timestamp, done: DoneWork);
}

/// Why a worker has no part in an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MissingReason {
    /// The worker did not answer a call or a question for this long.
    #[error("silent for {} ms", .0.as_millis())]
    Silent(Duration),
    /// The worker refused the question.
    #[error("refused: {0}")]
    Refused(String),
    /// The burst failed, and named the worker.
    #[error("{}", describe_failure(.0))]
    Failed(RankFailure),
    /// The worker speaks another version of the protocol of questions.
    #[error("speaks version {0} of questions, and not {known}", known = wire::QUESTION_VERSION)]
    Version(u8),
}

/// How a worker failed in a burst.
fn describe_failure(failure: &RankFailure) -> String {
    match failure {
        RankFailure::Silent { .. } => "silent in the burst".into(),
        RankFailure::Aborted { .. } => "another worker gave it up in the burst".into(),
        RankFailure::Disagrees { .. } => "sent bytes that are no part of this question".into(),
        RankFailure::TooMuch { .. } => {
            "more bytes than may come in were sent to it, or by it".into()
        }
        _ => failure.to_string(),
    }
}

/// A datagram that waits to be sent.
#[derive(Clone, Debug)]
struct Waiting {
    to: SocketAddr,
    header: wire::QuestionHeader,
    payload: Bytes,
}

/// The question that a datagram of a burst belongs to: the upper half of its operation number.
fn question_of(datagram: &[u8]) -> Option<u32> {
    let half = datagram.get(12..16)?;
    Some(u32::from_le_bytes(half.try_into().ok()?))
}
