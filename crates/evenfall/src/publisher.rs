//! The root in a program: a root that runs in a thread and sends what the program publishes.

pub use evenfall_multicast_service::publisher::{MESSAGE_BYTES_MAX, PublishError, Publisher};
pub use evenfall_multicast_service::roles::root::RootSummary;
pub use evenfall_multicast_service::settings::{Publication, Settings};
pub use evenfall_multicast_service::{Config, RoleError};
