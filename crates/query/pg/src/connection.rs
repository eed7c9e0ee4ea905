//! One connection, from its first byte to its last.
//!
//! pgwire takes the messages and answers them. The loop around it is here, because pgwire's own
//! believes each length that a client announces, and waits a minute for half a startup packet.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use evenfall_query_sql::{DoorLimits, DoorSocket};
use futures_util::{Sink, SinkExt as _};
use pgwire::api::auth::{
    DefaultServerParameterProvider, StartupHandler, finish_authentication, protocol_negotiation,
    save_startup_parameters_to_metadata,
};
use pgwire::api::{ClientInfo, DefaultClient, NoopHandler, PgWireConnectionState};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use pgwire::messages::response::{GssEncResponse, SslResponse};
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage, SslNegotiationMetaMessage};
use pgwire::tokio::server::{PgWireMessageServerCodec, process_error, process_message};
use tokio::io::AsyncReadExt as _;
use tokio_util::codec::Framed;

use crate::cancel::CancelRegistry;
use crate::errors::{fatal_error, user_error};
use crate::messages::{MessageBounds, MessageReader, NoMessage};
use crate::prepared::{Prepared, PreparedStatements};
use crate::session::PgSession;
use crate::settings::SERVER_VERSION;

/// How long a closed connection takes bytes that its client still sends. The system discards an
/// error that the client has not read yet when a socket is closed over unread bytes.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes of rows that are written at once. Each write wakes the client. More bytes would let the
/// client wait longer for the first one.
const WRITE_BYTES: usize = 32 << 10;

/// Requests for encryption that a client may make before it starts: one of each kind.
const NEGOTIATIONS: usize = 2;

/// The socket with what pgwire knows of the client. pgwire writes by it; [`MessageReader`] reads.
type Wire = Framed<DoorSocket, PgWireMessageServerCodec<Prepared>>;

/// One connection.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) session: Arc<PgSession>,
    pub(crate) prepared: Arc<PreparedStatements>,
    pub(crate) cancels: Arc<CancelRegistry>,
    /// What a client without a seat is told.
    pub(crate) refusal: Option<Arc<str>>,
    pub(crate) limits: DoorLimits,
    pub(crate) bounds: MessageBounds,
}

impl Connection {
    pub(crate) async fn serve(self, socket: DoorSocket) {
        let gone = socket.until_gone();
        tokio::select! {
            // Whatever ends a connection, the client knows it.
            _ = self.converse(socket) => {}
            // The statement under way is dropped with the conversation.
            () = gone => {}
        }
    }

    async fn converse(self, socket: DoorSocket) -> io::Result<()> {
        let client = DefaultClient::new(socket.peer(), false);
        let mut wire = Framed::new(socket, PgWireMessageServerCodec::new(client));
        wire.set_backpressure_boundary(WRITE_BYTES);
        let mut reader = MessageReader::new(self.bounds.clone());
        let greeting = self.greet(&mut wire, &mut reader);
        let greeted = tokio::time::timeout(self.limits.greeting, greeting);
        let Ok(greeted) = greeted.await else {
            let words = "the connection was not started in time";
            let late = fatal_error("08P01", words);
            // A client that has sent half a packet may read half an answer: nobody waits for it.
            return tokio::time::timeout(LINGER, end_with_error(&mut wire, late))
                .await
                .unwrap_or(Ok(()));
        };
        if !greeted? {
            return Ok(());
        }
        while self.answer_next(&mut wire, &mut reader).await? {}
        Ok(())
    }

    /// Answers messages until the client has started. Returns whether it has.
    async fn greet(&self, wire: &mut Wire, reader: &mut MessageReader) -> io::Result<bool> {
        wire.set_state(PgWireConnectionState::AwaitingStartup);
        let mut negotiations = 0;
        while matches!(
            wire.state(),
            PgWireConnectionState::AwaitingStartup
                | PgWireConnectionState::AuthenticationInProgress
        ) {
            negotiations += 1;
            if negotiations > NEGOTIATIONS + 1 || !self.answer_next(wire, reader).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Answers one message. Returns whether the connection goes on.
    async fn answer_next(&self, wire: &mut Wire, reader: &mut MessageReader) -> io::Result<bool> {
        let message = match reader.next(wire.get_mut()).await {
            Ok(message) => message,
            Err(NoMessage::Gone) => return Ok(false),
            Err(NoMessage::Refused(refusal)) if refusal.is_fatal => {
                end_with_error(wire, fatal_error(refusal.code, &refusal.words)).await?;
                return Ok(false);
            }
            Err(NoMessage::Refused(refusal)) => {
                let error = user_error(refusal.code, &refusal.words, None);
                // After an error of the extended protocol, the server skips everything up to the
                // next Sync.
                process_error(wire, error, refusal.is_extended).await?;
                return Ok(true);
            }
        };
        match &message {
            PgWireFrontendMessage::Terminate(_) => return Ok(false),
            PgWireFrontendMessage::SslNegotiation(asked) => {
                wire.send(match asked {
                    SslNegotiationMetaMessage::PostgresGss(_) => {
                        PgWireBackendMessage::GssEncResponse(GssEncResponse::Refuse)
                    }
                    _ => PgWireBackendMessage::SslResponse(SslResponse::Refuse),
                })
                .await?;
                return Ok(true);
            }
            _ => {}
        }
        let is_extended = message.is_extended_query();
        let is_cancel = matches!(message, PgWireFrontendMessage::CancelRequest(_));
        let answered = process_message(
            message,
            wire,
            Arc::new(self.clone()),
            Arc::clone(&self.session),
            Arc::clone(&self.prepared),
            Arc::new(NoopHandler),
            Arc::clone(&self.cancels),
        );
        // A connection that asks for a cancellation carries nothing else, and gets no answer.
        let Err(error) = answered.await else { return Ok(!is_cancel) };
        if let PgWireError::IoError(error) = error {
            return Err(error);
        }
        let info = ErrorInfo::from(error);
        if info.is_fatal() {
            end_with_error(wire, PgWireError::UserError(Box::new(info))).await?;
            return Ok(false);
        }
        process_error(wire, PgWireError::UserError(Box::new(info)), is_extended).await?;
        Ok(true)
    }
}

/// Sends a last error, and stays until the client has it.
async fn end_with_error(wire: &mut Wire, error: PgWireError) -> io::Result<()> {
    let info = ErrorInfo::from(error);
    wire.send(PgWireBackendMessage::ErrorResponse(info.into())).await?;
    wire.close().await?;
    let socket = wire.get_mut();
    let mut thrown = [0; 8 << 10];
    let drained = async { while socket.read(&mut thrown).await.is_ok_and(|read| read > 0) {} };
    let _late = tokio::time::timeout(LINGER, drained).await;
    Ok(())
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
        if let Some(refusal) = &self.refusal {
            return Err(fatal_error("53300", refusal));
        }
        protocol_negotiation(client, startup).await?;
        save_startup_parameters_to_metadata(client, startup);
        let (pid, secret) = self.cancels.register(client, &self.session.cancels);
        client.set_pid_and_secret_key(pid, secret);
        self.session.apply_startup(&startup.parameters)?;
        let mut parameters = DefaultServerParameterProvider::default();
        parameters.server_version = SERVER_VERSION.to_owned();
        parameters.default_transaction_read_only = true;
        parameters.is_superuser = false;
        finish_authentication(client, &parameters).await
    }
}
