//! What every evenfall process shares, and no role is known to: settings, the process around the
//! machines, telemetry, memory.
//!
//! | module | what it holds |
//! |---|---|
//! | [`settings`] | one TOML file for all hosts, overridden by environment and `--set` |
//! | [`process`] | port, loop, clock, signals and telemetry of one process |
//! | [`http`] | a small HTTP server with limits, and routes that services bring |
//! | [`telemetry`] | `/metrics`, `/healthz`, `/status` |
//! | [`page`] | the frame of a page: one file, no network |
//! | [`notes`] | what a process says of itself, on standard error |
//! | `program` | the frame of a program: arguments, output, exit code (feature `program`) |
//! | `progress` | what a person sees while a command works (feature `program`) |
//! | [`memory`] | the memory of each process over its run, a row per second |
//!
//! A service brings its own section of the settings, its checks, its routes and its errors.
#![forbid(unsafe_code)]
// A note that cannot be written costs the note; these macros panic.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod http;
pub mod memory;
pub mod notes;
pub mod page;
pub mod process;
#[cfg(feature = "program")]
pub mod program;
#[cfg(feature = "program")]
pub mod progress;
pub mod settings;
pub mod telemetry;

pub use process::{Process, ProcessError};
pub use settings::{Document, SettingsError};
