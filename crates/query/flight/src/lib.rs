//! The engine for clients of Arrow Flight SQL: ADBC, JDBC, programs that want columns.
//!
//! Rows leave as Arrow batches, so that decimals and nanoseconds arrive as the engine has them.
//! arrow-flight speaks the protocol. The limits are here: connections, streams, bytes of a request,
//! statements that are kept, and an end for statements whose client cancels or vanishes.
//!
//! | module | what |
//! |---|---|
//! | `listener` | the listener, and the limits of connections and requests |
//! | `service` | the calls of Flight SQL |
//! | `statements` | statements between two calls: prepared, planned, running |
//! | `outgoing` | rows and schemas as they leave |
//! | `metadata` | catalogues, schemas, tables, and what the server says of itself |
//! | `errors` | errors of the engine as states of gRPC |

mod errors;
mod listener;
mod metadata;
mod outgoing;
mod service;
mod statements;

pub use listener::FlightListener;
