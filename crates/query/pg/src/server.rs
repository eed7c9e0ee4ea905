//! The listener: a session for each connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use evenfall_query_sql::{DoorLimits, QueryDoor, QueryEngine};
use tokio::runtime::Handle;

use crate::cancel::CancelRegistry;
use crate::connection::Connection;
use crate::messages::MessageBounds;
use crate::prepared::PreparedStatements;
use crate::session::PgSession;

/// A port for clients of PostgreSQL.
#[derive(Debug)]
pub struct PgListener {
    door: QueryDoor,
    engine: Arc<QueryEngine>,
    recording: Option<String>,
    compute: Handle,
    bounds: MessageBounds,
    cancels: Arc<CancelRegistry>,
}

impl PgListener {
    /// Listens on an address. Queries run on the threads of `compute`, and connections on those of
    /// the caller, so that a query that keeps all of its threads busy holds no client up.
    ///
    /// # Errors
    /// As [`QueryDoor::bind`].
    pub async fn bind(
        address: SocketAddr,
        engine: Arc<QueryEngine>,
        recording: Option<String>,
        compute: Handle,
        limits: DoorLimits,
    ) -> io::Result<Self> {
        let door = QueryDoor::bind("--pg", address, limits).await?;
        let bounds = MessageBounds::new(engine.limits().statement_bytes, limits.message);
        Ok(Self { door, engine, recording, compute, bounds, cancels: Arc::default() })
    }

    /// The address, with the port that the system chose for port 0.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.door.local_address()
    }

    /// Serves until the future is dropped.
    pub async fn serve(self) {
        loop {
            let socket = self.door.accept().await;
            let compute = self.compute.clone();
            let session = PgSession::new(Arc::clone(&self.engine), self.recording.clone(), compute);
            let session = Arc::new(session);
            let connection = Connection {
                prepared: Arc::new(PreparedStatements::new(Arc::clone(&session))),
                session,
                cancels: Arc::clone(&self.cancels),
                refusal: socket.is_refused().then(|| self.door.refusal_words().into()),
                limits: self.door.limits(),
                bounds: self.bounds.clone(),
            };
            tokio::spawn(connection.serve(socket));
        }
    }
}
