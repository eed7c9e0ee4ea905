//! The parts that all evenfall processes share: settings, the process around the machines,
//! telemetry and memory. This crate knows no role.
//!
//! | module | contents |
//! |---|---|
//! | [`address`] | hosts and ports as people write them; the one place where names are looked up |
//! | [`causes`] | errors in words, with their causes |
//! | [`settings`] | the tables that every process reads; from a TOML file (feature `settings`) |
//! | [`process`] | port, loop, clock, signals and telemetry of one process |
//! | `http` | a small HTTP server with limits, and routes that services bring (feature `http`) |
//! | [`telemetry`] | metrics, health and state; served as pages (feature `http`) |
//! | `output_file` | files that commands write: whole, or as they were (feature `program`) |
//! | `page` | the frame of a page: one file, no network (feature `page`) |
//! | `notes` | messages of a process about itself, on standard error (feature `notes`) |
//! | `program` | the frame of a program: arguments, output, exit code (feature `program`) |
//! | `progress` | progress that a person sees while a command works (feature `program`) |
//! | `service` | the contract of a service: settings, checks, pages, run (feature `service`) |
//! | [`listing`] | names of other people in a form that is safe for a terminal |
//! | [`memory`] | the memory of each process over its run, a row per second |
//!
//! A service brings its own section of the settings, its checks, its routes and its errors.
#![forbid(unsafe_code)]
// The print macros panic when a note cannot be written, and a note must not end a process.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod address;
pub mod causes;
#[cfg(feature = "http")]
pub mod http;
pub mod listing;
pub mod memory;
#[cfg(feature = "notes")]
pub mod notes;
#[cfg(feature = "program")]
pub mod output_file;
#[cfg(feature = "page")]
pub mod page;
pub mod process;
#[cfg(feature = "program")]
pub mod program;
#[cfg(feature = "program")]
pub mod progress;
#[cfg(feature = "service")]
pub mod service;
pub mod settings;
pub mod telemetry;

pub use process::{Process, ProcessError};
#[cfg(feature = "settings")]
pub use settings::SettingsDocument;
pub use settings::SettingsError;
pub use telemetry::TelemetryError;

/// The variable that names the lowest level of a note: off, error, warn, info, debug or trace.
pub const LEVEL_VARIABLE: &str = "EVENFALL_LOG";
