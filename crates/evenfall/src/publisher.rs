//! A publisher in a process of its own: it has the number of each message, and outlives the root.

pub use evenfall_multicast_service::publisher::{
    MESSAGE_BYTES_MAX, PendingMessage, Publisher, PublisherError, PublisherSettings,
    PublisherSummary,
};
pub use evenfall_multicast_service::{RoleError, Settings};
