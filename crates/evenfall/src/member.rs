//! Calls among the processes of a group: shuffle, broadcast, gather, reduction and barrier.

pub use evenfall_exchange_machine::group::{Call, Outcome, Reduce, Settings};
pub use evenfall_exchange_machine::{Failure, StartError};
pub use evenfall_exchange_member::{GroupError, Member, Seat, SeatOptions, local};
