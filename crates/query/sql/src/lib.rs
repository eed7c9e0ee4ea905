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
//! | `scan`, `faults` | a snapshot as a table of DataFusion, and why it could not be read |
//! | `syntax` | the words that DataFusion lacks, rewritten in the syntax tree |
//! | `asof` | joins of time: condition, plan, operator |
//! | `functions` | functions of time |
//! | `values_at` | first and last values by time, a number and a byte a group |
//! | `growing` | functions whose answers are long, within the memory of queries |
//! | `book` | the order book of a symbol at a time |
//! | `desk` | what a desk asks of the last seconds: `reprice` and `nbbo` |
//! | `running`, `stop` | a query that runs, and what ends it early |
//! | `nesting` | how deeply a statement may nest |
//! | `placeholders` | the places of parameters |
//! | `words` | what went wrong, and where an error points |
//! | `door` | the listeners of all protocols: loopback, seats, clients that do nothing |

mod asof;
mod book;
mod budget;
mod catalog;
mod desk;
mod door;
mod engine;
mod faults;
mod functions;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod growing;
#[cfg(test)]
mod mutation;
mod nesting;
mod placeholders;
#[cfg(test)]
mod questions;
mod running;
mod scan;
mod stop;
mod syntax;
#[cfg(test)]
mod tests;
mod values_at;
mod words;

pub use budget::{BESIDE_STATEMENT_BYTES, BudgetShare, LongMessageBudget, UNCOUNTED_BYTES};
pub use datafusion;
pub use desk::DeskSource;
pub use door::{DoorLimits, DoorSocket, QueryDoor};
pub use engine::{EngineLimits, QueryEngine, QuerySession};
pub use nesting::QUERY_STACK_BYTES;
pub use running::{BackgroundRows, QueryCounters, RunningQuery, run_on};
pub use stop::QueryStop;
pub use words::{error_words, number_placeholders, statement_error};
