//! The exchange of everything with everyone: the all-to-all that bounds sorts and joins, and the
//! rest of group communication.
#![forbid(unsafe_code)]

pub mod config;
pub mod error;
mod exchange;
pub mod matrix;
mod operation;
mod priority;
mod receiver;
mod reduce;
mod sender;
pub mod wire;
pub mod workload;

pub use config::{Config, Pace, Policy, Unscheduled, Window};
pub use error::{Failure, StartError};
pub use exchange::{Counters, Event, Exchange, Outbound, Plan};
pub use matrix::{Links, Matrix, MatrixError};
pub use workload::Normal;
