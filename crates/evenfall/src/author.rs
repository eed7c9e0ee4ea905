//! A publisher in a process of its own: it has the number of each message, and outlives the root.

pub use evenfall_multicast_service::author::{
    Author, AuthorError, AuthorSummary, Authorship, MESSAGE_BYTES_MAX, Pending,
};
pub use evenfall_multicast_service::{RoleError, Settings};
