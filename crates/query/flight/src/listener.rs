//! The listener, and the limits of connections and requests.
//!
//! tonic limits the bytes of one message, and the streams of one connection. A thousand connections
//! with sixteen streams each could still hold 16 GiB of statements. The bytes of requests therefore
//! come out of one budget, and a request has a time limit, as has the preface of a connection.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use bytes::{Buf as _, Bytes};
use evenfall_query_sql::{
    BESIDE_STATEMENT_BYTES, BudgetShare, DoorLimits, DoorSocket, LongMessageBudget, QueryDoor,
    QueryEngine, UNCOUNTED_BYTES,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::Sleep;
use tonic::Status;
use tonic::codegen::{Body, Service, StdError, http};
use tonic::transport::Server;
use tonic::transport::server::Connected;

use crate::service::FlightDoor;

/// Calls of one connection at once. Drivers open a stream for each result that is read.
const STREAMS_PER_CONNECTION: u32 = 16;

/// Bytes of the headers of a call. Those of drivers have some hundred.
const HEADER_BYTES: u32 = 16 << 10;

/// Bytes by which a client of HTTP/2 begins (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;

/// The call that asks for the columns of a statement.
const GET_SCHEMA: &str = "/arrow.flight.protocol.FlightService/GetSchema";
/// The call whose answer has those columns too: field 1 of `FlightInfo` has the number and the type
/// of field 1 of `SchemaResult`.
const GET_FLIGHT_INFO: &str = "/arrow.flight.protocol.FlightService/GetFlightInfo";

/// How often a silent client is asked whether it lives, and how long it may take to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// A port for clients of Flight SQL.
#[derive(Debug)]
pub struct FlightListener {
    door: QueryDoor,
    service: FlightDoor,
    bounds: RequestBounds,
}

impl FlightListener {
    /// Listens on an address. Queries run on the threads of `compute`, and connections on those of
    /// the caller.
    ///
    /// # Errors
    /// As [`QueryDoor::bind`], and a system without random numbers for handles.
    pub async fn bind(
        address: SocketAddr,
        engine: Arc<QueryEngine>,
        recording: Option<String>,
        compute: Handle,
        limits: DoorLimits,
    ) -> io::Result<Self> {
        let door = QueryDoor::bind("--flight", address, limits).await?;
        let bounds = RequestBounds::new(engine.limits().statement_bytes, limits.message);
        let service = FlightDoor::new(engine, recording, compute)?;
        Ok(Self { door, service, bounds })
    }

    /// The address, with the port that the system chose for port 0.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.door.local_address()
    }

    /// Serves until the future is dropped.
    ///
    /// # Errors
    /// An error of the server itself, and not of one client.
    pub async fn serve(self) -> io::Result<()> {
        let Self { door, service, bounds } = self;
        let limits = door.limits();
        let refusal: Arc<str> = door.refusal_words().into();
        let clients = futures_util::stream::unfold(door, move |door| async move {
            let socket = door.accept().await;
            let late = Some(Box::pin(tokio::time::sleep(limits.greeting)));
            Some((Ok::<_, io::Error>(FlightSocket { socket, read: 0, late }), door))
        });
        let service = FlightServiceServer::new(service)
            .max_decoding_message_size(bounds.request_bytes)
            // The encoder cuts batches at 2 MiB. A single row may be longer.
            .max_encoding_message_size(usize::MAX);
        Server::builder()
            .max_concurrent_streams(STREAMS_PER_CONNECTION)
            .http2_max_header_list_size(HEADER_BYTES)
            .http2_keepalive_interval(Some(KEEP_ALIVE))
            .http2_keepalive_timeout(Some(KEEP_ALIVE))
            .serve_with_incoming(BoundedService { service, bounds, refusal }, clients)
            .await
            .map_err(io::Error::other)
    }
}

/// The limits of requests.
#[derive(Clone, Debug)]
struct RequestBounds {
    request_bytes: usize,
    request_time: Duration,
    budget: LongMessageBudget,
}

impl RequestBounds {
    fn new(statement_bytes: usize, request_time: Duration) -> Self {
        let request_bytes = statement_bytes.saturating_add(BESIDE_STATEMENT_BYTES);
        Self { request_bytes, request_time, budget: LongMessageBudget::new(statement_bytes) }
    }
}

/// A socket whose client must begin in time.
struct FlightSocket {
    socket: DoorSocket,
    /// Bytes read so far, up to the length of the preface.
    read: usize,
    late: Option<Pin<Box<Sleep>>>,
}

/// What a call knows of its connection.
#[derive(Clone, Copy, Debug)]
struct ConnectionInfo {
    is_refused: bool,
}

impl Connected for FlightSocket {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        ConnectionInfo { is_refused: self.socket.is_refused() }
    }
}

impl AsyncRead for FlightSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(cx, buf);
        self.read = self.read.saturating_add(buf.filled().len() - before);
        if self.read >= PREFACE_BYTES {
            self.late = None;
        }
        if polled.is_pending()
            && let Some(late) = &mut self.late
            && late.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl AsyncWrite for FlightSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// The calls of Flight, behind the limits of requests.
#[derive(Clone)]
struct BoundedService {
    service: FlightServiceServer<FlightDoor>,
    bounds: RequestBounds,
    refusal: Arc<str>,
}

type Answer = http::Response<tonic::body::Body>;
type Answering = Pin<Box<dyn Future<Output = Result<Answer, std::convert::Infallible>> + Send>>;

impl<B> Service<http::Request<B>> for BoundedService
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = Answer;
    type Error = std::convert::Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let connection = request.extensions().get::<ConnectionInfo>();
        if connection.is_some_and(|connection| connection.is_refused) {
            let answer = Status::resource_exhausted(self.refusal.as_ref()).into_http();
            return Box::pin(std::future::ready(Ok(answer)));
        }
        let mut request = request;
        // arrow-flight answers no `GetSchema`, whose answer is the first field of `FlightInfo`.
        if request.uri().path() == GET_SCHEMA {
            *request.uri_mut() = http::Uri::from_static(GET_FLIGHT_INFO);
        }
        let bounds = self.bounds.clone();
        let late = Box::pin(tokio::time::sleep(bounds.request_time));
        let request =
            request.map(|body| BoundedBody { body, bounds, late, bytes: 0, shares: Vec::new() });
        Box::pin(self.service.call(request))
    }
}

/// The body of a request within its limits.
struct BoundedBody<B> {
    body: B,
    bounds: RequestBounds,
    /// When the request is too late.
    late: Pin<Box<Sleep>>,
    bytes: usize,
    /// The request's share of the budget, kept until its body has been read and dropped.
    shares: Vec<BudgetShare>,
}

impl<B> BoundedBody<B> {
    fn count(&mut self, bytes: usize) -> Result<(), Status> {
        self.bytes = self.bytes.saturating_add(bytes);
        let limit = self.bounds.request_bytes;
        if self.bytes > limit {
            let words = format!("a request of more than {limit} bytes (--statement-bytes)");
            return Err(Status::resource_exhausted(words));
        }
        if self.bytes <= UNCOUNTED_BYTES {
            return Ok(());
        }
        let share = self.bounds.budget.take_share(bytes).ok_or_else(|| {
            Status::resource_exhausted(
                "long requests of other clients hold the memory for requests; ask again later",
            )
        })?;
        self.shares.push(share);
        Ok(())
    }
}

impl<B> Body for BoundedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<StdError>,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, StdError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending => {
                std::task::ready!(self.late.as_mut().poll(cx));
                let seconds = self.bounds.request_time.as_secs();
                let words = format!("a request was not whole within {seconds} seconds");
                Poll::Ready(Some(Err(Status::deadline_exceeded(words).into())))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::remaining);
                Poll::Ready(Some(self.count(bytes).map(|()| frame).map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
