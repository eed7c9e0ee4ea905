//! SQL over recordings and tables, up to the record that was appended last.
//!
//! A desk asks about the last five seconds and about the last five years, in one language. The
//! tables are the store's ([`Tables`](evenfall_store_recording::tables::Tables)). A snapshot is
//! taken when a statement is planned, so that the statement sees every append that had returned,
//! and nothing that comes later. [DataFusion](https://datafusion.apache.org) plans and runs the
//! statement. What it lacks is here:
//!
//! - joins of time: `ASOF JOIN ... MATCH_CONDITION`, with a tolerance, forward and nearest;
//! - `time_bucket`, `first`, `last`, `vwap`, `twap`;
//! - a catalogue of recordings, and scans that read the asked columns and times alone;
//! - limits of memory, spilled bytes and statements, and a refusal of everything but reading.
//!
//! | module | what |
//! |---|---|
//! | `engine` | the engine of a process and its sessions |
//! | `catalog` | which tables a name means |
//! | `scan` | a snapshot as a table of DataFusion |
//! | `syntax` | the words that DataFusion lacks, rewritten in the syntax tree |
//! | `asof` | joins of time: condition, plan, operator |
//! | `functions` | functions of time |
//! | `book` | the order book of a symbol at a time |
//! | `running`, `stop` | a query that runs, and what ends it early |
//! | `nesting` | how deeply a statement may nest |
//! | `words` | where an error points, and the places of parameters |
//! | `door` | the listeners of all protocols: loopback, seats, clients that do nothing |

mod asof;
mod book;
mod budget;
mod catalog;
mod door;
mod engine;
mod functions;
mod nesting;
#[cfg(test)]
mod questions;
mod running;
mod scan;
mod stop;
mod syntax;
#[cfg(test)]
mod tests;
mod words;

pub use budget::{BESIDE_STATEMENT_BYTES, BudgetShare, LongMessageBudget, UNCOUNTED_BYTES};
pub use datafusion;
pub use door::{DoorLimits, DoorSocket, QueryDoor};
pub use engine::{EngineLimits, QueryEngine, QuerySession};
pub use nesting::QUERY_STACK_BYTES;
pub use running::{BackgroundRows, RunningQuery, run_on};
pub use stop::QueryStop;
pub use words::{number_placeholders, statement_error};
