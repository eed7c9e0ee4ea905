//! The listener: a limit of connections, a session for each, and a watch over vanished clients.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use evenfall_query_sql::QueryEngine;
use futures_util::Sink;
use pgwire::api::auth::{
    DefaultServerParameterProvider, StartupHandler, finish_authentication, protocol_negotiation,
    save_startup_parameters_to_metadata,
};
use pgwire::api::cancel::CancelHandler;
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler};
use pgwire::api::{ClientInfo, PgWireServerHandlers};
use pgwire::api::{PidSecretKeyGenerator as _, RandomPidSecretKeyGenerator};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::cancel::CancelRegistry;
use crate::session::{PgSession, user_error};
use crate::settings::SERVER_VERSION;

/// How often it is looked whether a client is still there. A vanished client's statement therefore
/// ends within half a second.
const CLIENT_LOOK: Duration = Duration::from_millis(250);

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct PgLimits {
    /// Connections at once. Later ones are told so and closed.
    pub connections: usize,
}

impl Default for PgLimits {
    fn default() -> Self {
        // As many as PostgreSQL's own default would take ten times over: a connection costs a
        // task and some kilobytes, and statements share the memory of the engine.
        Self { connections: 1_000 }
    }
}

/// A port for clients of PostgreSQL.
#[derive(Debug)]
pub struct PgListener {
    listener: TcpListener,
    engine: Arc<QueryEngine>,
    recording: Option<String>,
    compute: Handle,
    limits: PgLimits,
    cancels: Arc<CancelRegistry>,
}

impl PgListener {
    /// Listens on an address. Queries run on the threads of `compute`, and connections on those of
    /// the caller, so that a query that keeps all of its threads busy holds no client up.
    /// Connections carry no password and no encryption, so that only addresses of loopback are
    /// taken.
    ///
    /// # Errors
    /// An address beyond loopback, and an address that cannot be listened on.
    pub async fn bind(
        address: SocketAddr,
        engine: Arc<QueryEngine>,
        recording: Option<String>,
        compute: Handle,
        limits: PgLimits,
    ) -> io::Result<Self> {
        if !address.ip().is_loopback() {
            let what = format!(
                "--pg {address} is not loopback: connections carry no password and no encryption. \
                 Listen on 127.0.0.1, and reach it from other hosts through ssh -L"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let listener = TcpListener::bind(address).await.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen on --pg {address}: {error}"))
        })?;
        Ok(Self { listener, engine, recording, compute, limits, cancels: Arc::default() })
    }

    /// The address, with the port that the system chose for port 0.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the future is dropped.
    ///
    /// # Errors
    /// An error of the listening socket itself.
    pub async fn serve(self) -> io::Result<()> {
        let seats = Arc::new(Semaphore::new(self.limits.connections));
        loop {
            let socket = match self.listener.accept().await {
                Ok((socket, _)) => socket,
                Err(error) if is_of_one_client(&error) => continue,
                Err(error) => {
                    // Out of descriptors: the next connection may find one again.
                    eprintln!("evenfall-query: a connection was not taken: {error}");
                    tokio::time::sleep(CLIENT_LOOK).await;
                    continue;
                }
            };
            let seat = Arc::clone(&seats).try_acquire_owned().ok();
            let compute = self.compute.clone();
            let session = PgSession::new(Arc::clone(&self.engine), self.recording.clone(), compute);
            let connection = Connection {
                session: Arc::new(session),
                cancels: Arc::clone(&self.cancels),
                is_refused: seat.is_none(),
                limit: self.limits.connections,
            };
            tokio::spawn(async move {
                connection.serve(socket).await;
                drop(seat);
            });
        }
    }
}

fn is_of_one_client(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

/// One connection.
#[derive(Clone)]
struct Connection {
    session: Arc<PgSession>,
    cancels: Arc<CancelRegistry>,
    is_refused: bool,
    limit: usize,
}

impl Connection {
    async fn serve(self, socket: TcpStream) {
        // A second handle of the same socket shows whether the client is still there while a
        // statement runs and nobody reads.
        let Ok(watched) = socket.as_fd().try_clone_to_owned() else { return };
        let session = Arc::clone(&self.session);
        let served = pgwire::tokio::process_socket(socket, None, self);
        tokio::select! {
            // Whatever ends a connection, the client knows it.
            _ = served => {}
            () = until_gone(watched) => session.cancels.send_modify(|count| *count += 1),
        }
    }
}

/// Ends when the other side has closed or reset the connection.
async fn until_gone(socket: std::os::fd::OwnedFd) {
    use rustix::event::{PollFd, PollFlags, poll};
    loop {
        tokio::time::sleep(CLIENT_LOOK).await;
        let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(gone) {
            return;
        }
    }
}

#[async_trait]
impl StartupHandler for Connection {
    async fn on_startup<C>(
        &self,
        client: &mut C,
        message: PgWireFrontendMessage,
    ) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: std::fmt::Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let PgWireFrontendMessage::Startup(startup) = &message else { return Ok(()) };
        if self.is_refused {
            let what =
                format!("sorry, {} clients are connected already (--connections)", self.limit);
            return Err(user_error("53300", &what, None));
        }
        protocol_negotiation(client, startup).await?;
        save_startup_parameters_to_metadata(client, startup);
        let (pid, secret) = RandomPidSecretKeyGenerator::default().generate(client);
        client.set_pid_and_secret_key(pid, secret.clone());
        self.cancels.register(pid, secret, &self.session.cancels);
        let mut parameters = DefaultServerParameterProvider::default();
        parameters.server_version = SERVER_VERSION.to_owned();
        parameters.default_transaction_read_only = true;
        parameters.is_superuser = false;
        finish_authentication(client, &parameters).await
    }
}

impl PgWireServerHandlers for Connection {
    fn simple_query_handler(&self) -> Arc<impl SimpleQueryHandler> {
        Arc::clone(&self.session)
    }

    fn extended_query_handler(&self) -> Arc<impl ExtendedQueryHandler> {
        Arc::new(crate::session::PreparedStatements(Arc::clone(&self.session)))
    }

    fn startup_handler(&self) -> Arc<impl StartupHandler> {
        Arc::new(self.clone())
    }

    fn cancel_handler(&self) -> Arc<impl CancelHandler> {
        Arc::clone(&self.cancels)
    }
}

impl Drop for PgSession {
    fn drop(&mut self) {
        // Rows of a statement that is still under way end with their connection.
        self.cancels.send_modify(|count| *count += 1);
    }
}
