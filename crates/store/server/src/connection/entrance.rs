//! Who enters a connection, and what a user may ask for.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
#[cfg(feature = "users")]
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use evenfall_store_engine::StoreError;
use evenfall_store_engine::protocol::{StoreReply, StoreRequest, frame};
#[cfg(feature = "users")]
use evenfall_store_engine::wire_socket::handshake::{
    AcceptedClient, ConnectionRefused, accept_sealed, refuse_for_want_of_users,
};
use evenfall_store_engine::wire_socket::{SocketReader, SocketWriter, split_plain};

use super::Connection;
use crate::Served;
use crate::users::{FileRight, StoreUser};

/// How long a client that is turned away may take to send its first request. Without users, the
/// port accepts no other connection meanwhile.
const TURN_AWAY_TIMEOUT: Duration = Duration::from_millis(50);

/// A connection whose client has named its key, or needs none.
pub(super) struct EnteredClient {
    pub(super) reader: SocketReader,
    pub(super) writer: SocketWriter,
    /// The user of that name. A name that nobody has gives no user, and its records do not open.
    pub(super) user: Option<Arc<StoreUser>>,
}

/// Takes a connection: plain where the server has no users, and otherwise sealed, with a handshake
/// that ends by the moment. `None` for a client that was refused.
pub(super) fn enter(
    served: &Served,
    stream: Arc<TcpStream>,
    until: Instant,
) -> Option<EnteredClient> {
    #[cfg(feature = "users")]
    if let Some(users) = &served.users {
        return enter_sealed(served, users, stream, until);
    }
    let _ = (served, until);
    let (reader, writer) = split_plain(stream);
    Some(EnteredClient { reader, writer, user: None })
}

#[cfg(feature = "users")]
fn enter_sealed(
    served: &Served,
    users: &crate::users::StoreUsers,
    stream: Arc<TcpStream>,
    until: Instant,
) -> Option<EnteredClient> {
    let counters = &served.counters;
    // Key and rights belong together, also while the users change.
    let mut found = None;
    let secret_of = |name: &str| {
        found = users.find(name);
        found.as_ref().map(|user| *user.secret())
    };
    match accept_sealed(stream, secret_of, until) {
        Ok(AcceptedClient::Sealed(reader, writer)) => {
            // The secret of an unknown name is random, and nobody's records open under it.
            let user = found.unwrap_or_else(|| Arc::new(StoreUser::unknown()));
            Some(EnteredClient { reader: *reader, writer: *writer, user: Some(user) })
        }
        Ok(AcceptedClient::Plain(stream)) => {
            counters.refused_handshakes.fetch_add(1, Relaxed);
            let what = "this server serves users with keys only: give the file of a key (--key, \
                        EVENFALL_STORE_KEY); its operator makes one by `evenfall store user new`";
            turn_away(&stream, what);
            None
        }
        Err(ConnectionRefused::Socket(error)) if super::is_timeout(&error) => {
            counters.timed_out.fetch_add(1, Relaxed);
            None
        }
        Err(_) => {
            counters.refused_handshakes.fetch_add(1, Relaxed);
            None
        }
    }
}

/// Tells a client with a key that this server has no users. Returns whether the bytes are of such a
/// client.
#[cfg(feature = "users")]
pub(super) fn refuse_key(connection: &Connection, bytes: &[u8]) -> bool {
    let is_keyed = connection.user.is_none() && evenfall_core::sealed_stream::is_hello(bytes);
    if is_keyed {
        connection.replies.write_raw(&refuse_for_want_of_users());
    }
    is_keyed
}

/// A build without users closes a connection whose bytes are no frame.
#[cfg(not(feature = "users"))]
pub(super) fn refuse_key(_: &Connection, _: &[u8]) -> bool {
    false
}

/// Sends a client the reason for which it is not served.
pub(crate) fn turn_away(mut stream: &TcpStream, what: &str) {
    let _ = stream.set_read_timeout(Some(TURN_AWAY_TIMEOUT));
    let _ = stream.set_write_timeout(Some(TURN_AWAY_TIMEOUT));
    // Closing a socket with unread bytes would discard the answer, so the request is read first.
    let mut asked = [0; 256];
    let read = stream.read(&mut asked).unwrap_or(0);
    let Ok(Some((header, _))) = frame(&asked[..read]) else { return };
    let mut reply = Vec::new();
    StoreReply::Failed { is_retryable: true, what }.encode(header.request, 0, &mut reply);
    let _ = stream.write_all(&reply);
}

impl Connection {
    /// Refuses what the user of the connection may not ask for.
    pub(super) fn check_right(&self, request: &StoreRequest<'_>) -> Result<(), StoreError> {
        let Some(user) = &self.user else { return Ok(()) };
        let on_file = |number: u32, right| match self.files.get(number as usize) {
            Some(open) => user.expect(right, open.file.name()),
            // The request itself fails for a file that is not open.
            None => Ok(()),
        };
        match request {
            StoreRequest::Open { name, .. } => user.expect_some(name),
            StoreRequest::Append { file, .. } => on_file(*file, FileRight::Append),
            StoreRequest::Follow { name, .. } => user.expect(FileRight::Admin, name),
            StoreRequest::Copy { file, .. } => on_file(*file, FileRight::Admin),
            StoreRequest::Record { file, .. }
            | StoreRequest::Latest { file, .. }
            | StoreRequest::Between { file, .. }
            | StoreRequest::Find { file, .. }
            | StoreRequest::Numbers { file, .. }
            | StoreRequest::Size { file }
            | StoreRequest::Subscribe { file, .. } => on_file(*file, FileRight::Read),
            StoreRequest::Wait { ends, .. } => {
                ends.iter().try_for_each(|known| user.expect(FileRight::Read, &known.name))
            }
            // A list has the files alone that the user may read.
            StoreRequest::List { .. }
            | StoreRequest::Hello { .. }
            | StoreRequest::Grant { .. }
            | StoreRequest::Unsubscribe => Ok(()),
        }
    }

    /// Refuses a new file that the user may not create, or not any more.
    pub(super) fn expect_may_create(&self, name: &str) -> Result<(), StoreError> {
        let Some(user) = &self.user else { return Ok(()) };
        user.expect(FileRight::Create, name)?;
        let files = self.served.store.files();
        user.expect_room(files.iter().map(|file| file.name.as_str()))
    }
}
