//! The root in a program: a root that runs in a thread and sends what the program publishes.

pub use evenfall_multicast_service::embedded_root::{
    EmbeddedRoot, EmbeddedRootError, MESSAGE_BYTES_MAX,
};
pub use evenfall_multicast_service::roles::root::RootSummary;
pub use evenfall_multicast_service::settings::{EmbeddedRootSettings, Settings};
pub use evenfall_multicast_service::{Config, RoleError};
