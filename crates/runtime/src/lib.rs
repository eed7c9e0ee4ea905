//! What every evenfall process shares, and no role is known to: settings, the process around the
//! machines, telemetry, memory.
//!
//! | module | what it holds |
//! |---|---|
//! | [`settings`] | one TOML file for all hosts, overridden by environment and `--set` |
//! | [`process`] | driver, loop, clock, signals and telemetry of one process |
//! | [`http`] | a small HTTP server with limits, and routes that services bring |
//! | [`telemetry`] | `/metrics`, `/healthz`, `/status` |
//! | [`page`] | the frame of a page: one file, no network |
//! | [`memory`] | the memory of each process over its run, a row per second |
//!
//! A service brings its own section of the settings, its checks, its routes and its errors.
#![forbid(unsafe_code)]

pub mod http;
pub mod memory;
pub mod page;
pub mod process;
pub mod settings;
pub mod telemetry;

pub use process::{Process, ProcessError};
pub use settings::{Document, SettingsError};
