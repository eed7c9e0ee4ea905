//! The engine for clients of PostgreSQL: psql, drivers, dashboards.
//!
//! pgwire speaks the protocol. What it leaves out is here: a session for each connection, a limit
//! of connections, statements that end when their client cancels or vanishes, and answers to the
//! statements by which clients make themselves at home (`SET`, `SHOW`, `BEGIN`).
//!
//! | module | what |
//! |---|---|
//! | `server` | the listener |
//! | `connection` | one connection, from its first byte to its last |
//! | `messages` | the messages of a client, each within its limits |
//! | `session` | the statements of a connection |
//! | `prepared` | prepared statements: parsed, bound, described, executed |
//! | `catalogue` | PostgreSQL's own catalogue, as far as clients ask for it |
//! | `settings` | `SET`, `SHOW` and transactions |
//! | `values` | parameters in, and the types by which rows leave |
//! | `rows`, `zones` | rows as text, in the zone of the connection |
//! | `errors` | errors in the words and codes of PostgreSQL |
//! | `cancel` | which statement a cancel request ends |

mod cancel;
mod catalogue;
mod connection;
mod errors;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod messages;
mod prepared;
mod rows;
mod server;
mod session;
mod settings;
mod values;
mod zones;

pub use server::PgListener;
