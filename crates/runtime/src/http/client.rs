//! One request to the HTTP server of another process: [`ask`] for a short text, [`exchange_under`]
//! for bodies that are longer than the memory for them.

use std::fmt;
use std::io::{self, BufRead, Read};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use evenfall_core::SharedKey;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderMap};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::runtime::Runtime;

use super::sealed::Stream;
use crate::address::SourcePorts;

/// Bytes of an answer. The state of a root with ten thousand receivers has about three million.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Bytes that are read from the source of a body at once.
const UPLOAD_BYTES: usize = 64 << 10;
/// Time between two reports of an upload.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// The answer to a request: its status, and its body as text.
#[derive(Debug)]
pub struct Reply {
    /// What the server thinks of the request.
    pub status: StatusCode,
    /// The whole body.
    pub text: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The address cannot be reached, or the connection broke.
    #[error("no connection")]
    Connection(#[source] io::Error),
    /// The path is not the path of an address.
    #[error("not a path")]
    Path(#[source] hyper::http::uri::InvalidUri),
    /// The address is not one of HTTP without TLS.
    #[error("{0:.200}: give http:// with a host")]
    Scheme(String),
    /// The server does not speak HTTP/1.1 as it should.
    #[error("the answer is not HTTP/1.1")]
    Protocol(#[source] hyper::Error),
    /// The body is longer than the limit, or is not UTF-8.
    #[error("the answer is no text of up to {ANSWER_BYTES_MAX} bytes")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The time that the caller gave is over.
    #[error("no answer within {0:?}")]
    Late(Duration),
}

pub(super) fn new_runtime() -> Result<Runtime, RequestError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().map_err(RequestError::Connection)
}

/// Sends a request without a body, and waits for the whole answer.
///
/// `path` begins with `/` and may have a query. The call blocks for `patience` at most. The call
/// must not be made from a thread that drives asynchronous tasks.
pub fn ask(
    address: SocketAddr,
    method: Method,
    path: &str,
    patience: Duration,
) -> Result<Reply, RequestError> {
    let text = async {
        let path: Uri = path.parse().map_err(RequestError::Path)?;
        let host = address.to_string();
        let response =
            send(Peer::at(&[address], &host), method, path, Empty::<Bytes>::new()).await?;
        let status = response.status();
        let text = text_of(response.into_body()).await?;
        Ok(Reply { status, text })
    };
    new_runtime()?.block_on(async {
        let answer = tokio::time::timeout(patience, text);
        answer.await.unwrap_or(Err(RequestError::Late(patience)))
    })
}

/// A server, and how a connection reaches the server.
struct Peer<'a> {
    addresses: &'a [SocketAddr],
    /// The name of the server in the head of the request.
    host: &'a str,
    ports: Option<SourcePorts>,
    key: Option<&'a SharedKey>,
}

impl<'a> Peer<'a> {
    fn at(addresses: &'a [SocketAddr], host: &'a str) -> Self {
        Self { addresses, host, ports: None, key: None }
    }
}

/// Sends a request over a new connection, whose bytes move as a task of the runtime.
async fn send<B>(
    to: Peer<'_>,
    method: Method,
    path: Uri,
    body: B,
) -> Result<Response<Incoming>, RequestError>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let stream = Stream::connect(to.addresses, to.ports, to.key).await;
    let stream = stream.map_err(RequestError::Connection)?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(RequestError::Protocol)?;
    // The connection moves bytes while the request waits. Its errors reach the request.
    tokio::spawn(connection);
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = path;
    let host = to.host.parse().map_err(|_| RequestError::Scheme(to.host.to_owned()))?;
    request.headers_mut().insert(HOST, host);
    sender.send_request(request).await.map_err(RequestError::Protocol)
}

pub(super) async fn text_of(body: Incoming) -> Result<String, RequestError> {
    let body = Limited::new(body, ANSWER_BYTES_MAX);
    let bytes = body.collect().await.map_err(RequestError::Body)?.to_bytes();
    String::from_utf8(bytes.into()).map_err(|error| RequestError::Body(Box::new(error)))
}

/// The body of a request.
pub struct Upload {
    from: Box<dyn Read + Send>,
    /// Bytes that are still to come, where that is known.
    left: Option<u64>,
    sent: Arc<AtomicU64>,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Upload {
    /// No body.
    pub fn none() -> Self {
        Self::of(Box::new(io::empty()), Some(0))
    }

    /// What this source gives, and the number of its bytes where that is known.
    pub fn of(from: Box<dyn Read + Send>, length: Option<u64>) -> Self {
        Self { from, left: length, sent: Arc::default() }
    }

    fn next(&mut self) -> io::Result<Option<Bytes>> {
        let wanted = self.left.map_or(UPLOAD_BYTES, |left| {
            usize::try_from(left).unwrap_or(usize::MAX).min(UPLOAD_BYTES)
        });
        if wanted == 0 {
            return Ok(None);
        }
        let mut piece = vec![0; wanted];
        let len = loop {
            match self.from.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        piece.truncate(len);
        self.sent.fetch_add(len as u64, Ordering::Relaxed);
        match &mut self.left {
            Some(_) if len == 0 => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the source is shorter than it was at the beginning",
            )),
            Some(left) => {
                *left -= len as u64;
                Ok(Some(piece.into()))
            }
            None => Ok((len > 0).then(|| piece.into())),
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    /// Reads from the source, for which the runtime of this one request waits.
    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(self.get_mut().next().map(|piece| piece.map(Frame::data)).transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

/// An answer whose body is read as it comes. Reading fails when nothing comes for the patience of
/// the request.
#[derive(Debug)]
pub struct Answered {
    /// The status.
    pub status: StatusCode,
    headers: HeaderMap,
    body: Incoming,
    piece: Bytes,
    patience: Duration,
    runtime: Runtime,
}

impl Answered {
    /// The value of a header; `None` when it is missing or is no text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The whole body as text.
    ///
    /// # Errors
    /// [`RequestError::Body`] and [`RequestError::Late`].
    pub fn text(self) -> Result<String, RequestError> {
        let Self { body, patience, runtime, .. } = self;
        runtime.block_on(async {
            let text = tokio::time::timeout(patience, text_of(body));
            text.await.unwrap_or(Err(RequestError::Late(patience)))
        })
    }
}

impl Read for Answered {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(self.fill_buf()?.len());
        self.piece.copy_to_slice(&mut out[..len]);
        Ok(len)
    }
}

impl BufRead for Answered {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.piece.is_empty() {
            let (body, patience) = (&mut self.body, self.patience);
            let frame = self.runtime.block_on(async {
                tokio::time::timeout(patience, body.frame()).await.map_err(io::Error::from)
            })?;
            match frame.transpose().map_err(io::Error::other)?.map(Frame::into_data) {
                Some(Ok(piece)) => self.piece = piece,
                Some(Err(_trailers)) => {}
                None => break,
            }
        }
        Ok(&self.piece)
    }

    fn consume(&mut self, len: usize) {
        self.piece.advance(len);
    }
}

/// Sends a request to a URL of the form `http://HOST:PORT/PATH`, and returns when the head of the
/// answer has come. Redirects are answers like others.
///
/// The call fails when nothing moves for `patience`. While the body leaves, `tell` hears from time
/// to time how many bytes have left. The call must not be made from a thread that drives
/// asynchronous tasks. The connection is sealed under the key when there is one.
pub fn exchange_under(
    key: Option<&SharedKey>,
    url: &str,
    method: Method,
    body: Upload,
    patience: Duration,
    tell: &mut dyn FnMut(u64),
) -> Result<Answered, RequestError> {
    exchange_from(None, key, url, method, body, patience, tell)
}

/// As [`exchange_under`], over a connection from one of these ports of this host.
pub fn exchange_from(
    ports: Option<SourcePorts>,
    key: Option<&SharedKey>,
    url: &str,
    method: Method,
    body: Upload,
    patience: Duration,
    tell: &mut dyn FnMut(u64),
) -> Result<Answered, RequestError> {
    let uri: Uri = url.parse().map_err(RequestError::Path)?;
    let wrong = || RequestError::Scheme(url.to_owned());
    let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"));
    let authority = authority.ok_or_else(wrong)?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let addresses = (host, authority.port_u16().unwrap_or(80)).to_socket_addrs();
    let addresses: Vec<SocketAddr> = addresses.map_err(RequestError::Connection)?.collect();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let path: Uri = path.parse().map_err(RequestError::Path)?;
    let runtime = new_runtime()?;
    let sent = Arc::clone(&body.sent);
    let response = runtime.block_on(async {
        let to = Peer { ports, key, ..Peer::at(&addresses, authority.as_str()) };
        let answer = send(to, method, path, body);
        let mut answer = std::pin::pin!(answer);
        let (mut told, mut waited) = (0, Duration::ZERO);
        loop {
            tokio::select! {
                answer = answer.as_mut() => return answer,
                () = tokio::time::sleep(TELL_EVERY) => {}
            }
            let now = sent.load(Ordering::Relaxed);
            waited = if now > told { Duration::ZERO } else { waited + TELL_EVERY };
            if waited >= patience {
                return Err(RequestError::Late(patience));
            }
            told = now;
            tell(told);
        }
    })?;
    let (head, body) = response.into_parts();
    let (status, headers) = (head.status, head.headers);
    Ok(Answered { status, headers, body, piece: Bytes::new(), patience, runtime })
}
