//! The reports of a root: events, refusals, and its state at a moment.

use evenfall_core::{NodeId, SyncTime};

use super::*;

/// An event of the root for its owner.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootEvent {
    /// A node joined under this incarnation. The incarnation is the number of the node's start plus
    /// the number of times that the node was taken out since.
    Joined(NodeId, Role, u64),
    /// A node was removed.
    Removed(NodeId, DepartureReason),
    /// A tree has come into force. From the first tree on, published messages reach all receivers.
    View(View),
    /// A spare is being tried in the place of a straggler, or a trial has ended.
    Replacement(Replacement),
    /// A frame was made. A later judgement of the frame needs these values.
    Framed(Framed),
    /// All receivers have released all messages or reported them lost.
    Finished(Tally),
}

/// A frame as the root made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framed {
    /// Frame number.
    pub sequence: u64,
    /// Number of the frame's first message.
    pub first_message: u64,
    /// Messages in it.
    pub count: u16,
    /// When the frame was made, by the synchronised clock.
    pub origin: SyncTime,
    /// When the frame may be released; `None` when it is not held.
    pub deadline: Option<SyncTime>,
}

/// Why a message was refused.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// `framing.send_queue_frames` frames are waiting. Try again when some have left.
    #[error("the send queue is full; publish again when it has drained")]
    Full,
    /// The message does not fit in any datagram.
    #[error("a message of {bytes} bytes does not fit; the most is {max}")]
    TooLarge {
        /// Length of the message.
        bytes: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// The stream has been finished.
    #[error("the stream has been finished")]
    Ended,
}

/// The state of the run as the root knows it.
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
    /// Signatures of frames, this root's and those of the roots before it; 0 for a root without a
    /// signing key.
    pub signatures: u64,
    /// Keys of the run that came into use behind the first key.
    pub key_turns: u64,
    /// The present hold, ns.
    pub hold_ns: u64,
    /// Sampled frames whose overall latency is known.
    pub sampled: u64,
    /// Sampled frames that were late at one receiver or more.
    pub sampled_late: u64,
    /// Sums over the receivers.
    pub tally: Tally,
    /// The worst edges and hosts of the last report interval.
    pub worst: Vec<Worst>,
    /// Stragglers replaced.
    pub replacements: Replacements,
    /// Repair copies sent by the root itself.
    pub repairs_sent: u64,
    /// The median and the 99th percentile of the time that voters took to agree on a frame of this
    /// root, ns; `None` for a root without voters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voters_ns: Option<(u64, u64)>,
    /// The amounts that the root keeps at present.
    pub stored: Stored,
    /// Counters of refused datagrams.
    pub refusals: Refusals,
}
