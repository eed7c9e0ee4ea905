//! Errors of the caller and failures of an operation.

use std::net::SocketAddr;

/// Why an operation did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An operation of this number is running here, or has ended here.
    #[error("operation {operation} was begun here before: take a new number for each operation")]
    Known {
        /// Number of the operation.
        operation: u64,
    },
    /// The number of members is 0, or too large for ranks of 16 bits.
    #[error("{members} members: an operation has 1 to 65,535")]
    Members {
        /// Number of members in the plan.
        members: usize,
    },
    /// The own rank is not below the number of members.
    #[error("own rank {rank} is not below the number of members, {members}")]
    Rank {
        /// The own rank.
        rank: usize,
        /// How many members there are.
        members: usize,
    },
    /// The number of messages differs from the number of members.
    #[error("{messages} messages for {members} members: each member gets one, perhaps empty")]
    Messages {
        /// Number of messages in the plan.
        messages: usize,
        /// How many members there are.
        members: usize,
    },
    /// The values to reduce are not a whole number of 8-byte values.
    #[error("{bytes} bytes of values to reduce: give whole values of 8 bytes")]
    Lanes {
        /// Bytes of all values together.
        bytes: usize,
    },
    /// The ranks of a call among some ranks of a group are not ascending numbers of the group, or
    /// the own rank is not among them.
    #[error("a call among some ranks lists ascending ranks of the group, and its own: {rank}")]
    Among {
        /// The own rank.
        rank: usize,
    },
    /// A message is longer than 4 GiB.
    #[error("the message to rank {to} has {bytes} bytes; split what is longer than 4 GiB")]
    TooLong {
        /// Rank that the message is for.
        to: usize,
        /// Length of the message.
        bytes: usize,
    },
}

/// Why an operation failed. Every failure names a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RankFailure {
    /// A rank was silent for too long while this rank waited for it.
    #[error("rank {rank} is silent: its process is dead or cut off")]
    Silent {
        /// The rank that is dead or cut off.
        rank: u16,
    },
    /// A rank was silent at its address for too long, while datagrams that name the rank as their
    /// sender came from another address: the two ranks have different lists of addresses.
    #[error(
        "rank {rank} is silent at its address, but sends from {address}: check that all members \
         have the same list of addresses"
    )]
    Elsewhere {
        /// The rank that sends from another address.
        rank: u16,
        /// The address from which its last datagram came.
        address: SocketAddr,
    },
    /// A rank's datagrams contradict ours: they state another number of members, packet size,
    /// message length or [`agreed`](crate::group::GroupSettings::agreed) number.
    #[error(
        "rank {rank} and this rank disagree about the operation: check that all members start \
         it with the same members and packet size"
    )]
    Disagrees {
        /// The rank that disagrees.
        rank: u16,
    },
    /// The message that a rank announced would take more memory than is allowed.
    #[error("the message of rank {rank} exceeds the memory allowed for incoming messages")]
    TooMuch {
        /// The rank that announced the message.
        rank: u16,
    },
    /// This rank's own call sends a message that its plan does not list, or sends one twice. The
    /// call is broken, whatever the other ranks do.
    #[error(
        "rank {rank} has no message left for rank {to}: a call sends at most one message from one \
         rank to another, and lists it when it begins"
    )]
    Unlisted {
        /// The own rank.
        rank: u16,
        /// The rank that the message is for.
        to: u16,
    },
    /// Another member gave the operation up.
    #[error("rank {by} {}", describe_abort(*.rank, *.disagrees))]
    Aborted {
        /// The rank that reported the end.
        by: u16,
        /// The rank that the report blames.
        rank: u16,
        /// Whether the report says that the two ranks disagree.
        disagrees: bool,
    },
}

/// What a rank that gave an operation up says of the rank that it blames.
fn describe_abort(rank: u16, disagrees: bool) -> String {
    match disagrees {
        true => format!("and rank {rank} disagree about the operation"),
        false => format!("gave the operation up because of rank {rank}"),
    }
}

impl RankFailure {
    /// The same failure, with the places of ranks in their operation replaced by the ranks' numbers
    /// in the group. The rank that an ABORT blames is a number of the group already.
    pub(crate) fn renamed(self, name: impl Fn(u16) -> u16) -> Self {
        match self {
            Self::Silent { rank } => Self::Silent { rank: name(rank) },
            Self::Elsewhere { rank, address } => Self::Elsewhere { rank: name(rank), address },
            Self::Disagrees { rank } => Self::Disagrees { rank: name(rank) },
            Self::TooMuch { rank } => Self::TooMuch { rank: name(rank) },
            Self::Unlisted { rank, to } => Self::Unlisted { rank: name(rank), to: name(to) },
            Self::Aborted { by, rank, disagrees } => {
                Self::Aborted { by: name(by), rank, disagrees }
            }
        }
    }

    /// Whether two ranks state different things, and not that one of them has failed.
    pub fn is_disagreement(&self) -> bool {
        matches!(
            self,
            Self::Elsewhere { .. } | Self::Disagrees { .. } | Self::Aborted { disagrees: true, .. }
        )
    }

    /// The rank to blame.
    pub fn rank(&self) -> u16 {
        match *self {
            Self::Silent { rank }
            | Self::Elsewhere { rank, .. }
            | Self::Disagrees { rank }
            | Self::TooMuch { rank }
            | Self::Unlisted { rank, .. }
            | Self::Aborted { rank, .. } => rank,
        }
    }
}
