//! Calls among the processes of a group: shuffle, broadcast, gather, reduction and barrier.

pub use evenfall_collectives_machine::group::{
    Collective, CollectiveOutcome, GroupSettings, Reduce,
};
pub use evenfall_collectives_machine::{RankFailure, StartError};
pub use evenfall_collectives_member::{
    GroupError, GroupMember, GroupSocket, GroupSocketOptions, local,
};
