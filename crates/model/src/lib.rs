//! Models of clouds: files whose every number stands beside its source, and the model of a pool
//! out of its survey.
//!
//! A claim about a thousand receivers is simulated, so the numbers behind the simulation are
//! evidence. The files in `models/` are built in and have names. Any other file of the same form
//! is named by its path. A number without a source is refused:
//!
//! ```toml
//! [path]
//! base_us = { is = 42.0, source = "the 110 pairs of ..., by `cargo run ...`" }
//! ```
//!
//! - [`Model`] is a file: read, checked, changed by key, and written. The laboratory turns a model
//!   into a network and its hosts.
//! - [`PoolSurvey`] is what agents measured between the hosts of a pool. [`PoolSurvey::model`] is
//!   the model of that pool. A number that the survey cannot see is taken from another model, and
//!   its source says so.
//! - [`Effects`] splits the delays of pairs into an effect of the sender, an effect of the
//!   receiver, and a rest.
//!
//! ```
//! use evenfall_model::Model;
//!
//! let model = Model::named("aws")?;
//! let slower = model.scaled("path.base_us", 2.0)?;
//! assert_eq!(Model::parse("slower", &slower.to_toml())?, slower);
//! # Ok::<(), evenfall_model::ModelError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod check;
mod effects;
mod file;
mod pool;
mod spikes;
#[cfg(test)]
mod tests;

pub use effects::{Effects, Parts};
pub use file::{
    ClockFile, DelayShape, Distribution, HostFile, LoadFile, LossFile, Model, ModelError, Number,
    OutageFile, PathFile, RerouteFile, Stack, StackFile, StackFiles,
};
pub use pool::{Pair, PoolError, PoolSurvey};
