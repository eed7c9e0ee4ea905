//! What a root tells: events, refusals, and its state at a moment.

use evenfall_core::{NodeId, SyncTime};

use super::*;

/// What the root tells its owner.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootEvent {
    /// A node came in, under this incarnation: that of its start, or as many more as it was taken
    /// out since.
    Joined(NodeId, Role, u64),
    /// A node is out.
    Removed(NodeId, Reason),
    /// A tree has come into force; the first one means that publishing reaches everybody.
    View(View),
    /// A spare is tried in the place of a straggler, or a trial has ended.
    Replacement(Replacement),
    /// A frame was made: what to write down to judge it later.
    Framed(Framed),
    /// All receivers have released everything, or reported it lost.
    Finished(Tally),
}

/// A frame as the root made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framed {
    /// Frame number.
    pub sequence: u64,
    /// Number of its first message.
    pub first_message: u64,
    /// Messages in it.
    pub count: u16,
    /// When it was made, by the synchronised clock.
    pub origin: SyncTime,
    /// When it may be released; `None` when it is not held.
    pub deadline: Option<SyncTime>,
}

/// Why a message was not taken.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishError {
    /// `framing.send_queue_frames` are waiting: try again when some have left.
    Full,
    /// The message does not fit in any datagram.
    TooLarge {
        /// Its bytes.
        bytes: usize,
        /// Most bytes that fit.
        max: usize,
    },
    /// The stream has been finished.
    Ended,
}

impl core::fmt::Display for PublishError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Full => write!(f, "the send queue is full; publish again when it has drained"),
            Self::TooLarge { bytes, max } => {
                write!(f, "a message of {bytes} bytes does not fit; the most is {max}")
            }
            Self::Ended => write!(f, "the stream has been finished"),
        }
    }
}

impl std::error::Error for PublishError {}

/// What the root knows of the run.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct RootStatus {
    /// Number of the view in force.
    pub view: u32,
    /// Receivers that are members, recorders among them.
    pub receivers: usize,
    /// Proxies that are members, spares among them.
    pub proxies: usize,
    /// Frames made.
    pub frames: u64,
    /// Messages published.
    pub messages: u64,
    /// The present hold, ns.
    pub hold_ns: u64,
    /// Sampled frames whose OML is known, and those of them that were late.
    pub sampled: u64,
    /// Of these, late at one receiver at least.
    pub sampled_late: u64,
    /// Sums over the receivers.
    pub tally: Tally,
    /// The worst edges and hosts of the last report interval.
    pub worst: Vec<Worst>,
    /// Stragglers replaced.
    pub replacements: Replacements,
    /// Repair copies sent by the root itself.
    pub repairs_sent: u64,
    /// What it keeps now.
    pub stored: Stored,
    /// What came in wrong.
    pub refusals: Refusals,
}
