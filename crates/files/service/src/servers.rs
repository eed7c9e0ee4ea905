//! The servers and their client, which the feature `servers` turns on.

mod checksums;
mod client;
mod create_concat;
mod dataserver;
mod facts;
mod fetching;
mod flows;
mod leases;
mod listing;
mod logs;
mod nameserver;
#[cfg(feature = "objects")]
mod objects;
mod options;
mod owner;
mod pages;
mod reading;
mod rebuilding;
mod reports;
mod scrubbing;
mod users;
mod webhdfs;
mod webhdfs_dataserver;
mod webhdfs_nameserver;
mod writing;

pub use client::{BytesSource, FilesClient, Tell};
pub use dataserver::run as run_dataserver;
pub use fetching::Fetched;
pub use flows::run as run_flowserver;
pub use nameserver::run as run_nameserver;
#[cfg(feature = "objects")]
pub use objects::FileObjects;
pub use options::{Options, ServiceError};
pub use rebuilding::{RebuildSource, rebuild};
pub use users::user_of_environment;
