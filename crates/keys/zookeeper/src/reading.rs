//! The client for which a read is made, and what the read cost.

use evenfall_keys_machine::AclIdentity;

use crate::watches::Event;

/// The client for which a read is made.
#[derive(Debug)]
pub struct ReadingClient<'a> {
    /// The number of the connection.
    pub connection: u64,
    /// Its session.
    pub session: u64,
    /// Who the client is.
    pub who: &'a [AclIdentity],
    /// Events that the client has missed. They are sent before the answer.
    pub missed: Vec<Event>,
    /// Whether the client has as many watches as it may have.
    pub is_full: bool,
    /// The units of work that the read cost: one for itself, one for each further key that it
    /// looked at, and one for each comparison of a right with an identity.
    pub work: usize,
}

impl<'a> ReadingClient<'a> {
    /// A read of this connection and session, for a client who is all of these.
    pub fn new(connection: u64, session: u64, who: &'a [AclIdentity]) -> Self {
        Self { connection, session, who, missed: Vec::new(), is_full: false, work: 1 }
    }
}
