//! The engine for clients of PostgreSQL: psql, drivers, dashboards.
//!
//! pgwire speaks the protocol. What it leaves out is here: a session for each connection, a limit
//! of connections, statements that end when their client cancels or vanishes, and answers to the
//! statements by which clients make themselves at home (`SET`, `SHOW`, `BEGIN`).
//!
//! | module | what |
//! |---|---|
//! | `server` | the listener, its limit of connections, and the watch over vanished clients |
//! | `session` | one connection: its statements, plain and prepared |
//! | `settings` | `SET`, `SHOW` and transactions |
//! | `values` | parameters in, rows out |
//! | `cancel` | which statement a cancel request ends |

mod cancel;
mod server;
mod session;
mod settings;
mod values;

pub use server::{PgLimits, PgListener};
