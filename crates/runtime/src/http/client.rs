//! One request to the HTTP server of another process, for commands that ask running nodes.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Bytes of an answer. The state of a root with ten thousand receivers has about three million.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The answer to a request: its status, and its body as text.
#[derive(Debug)]
pub struct Reply {
    /// What the server thinks of the request.
    pub status: StatusCode,
    /// The whole body.
    pub text: String,
}

/// Why there is no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum RequestError {
    /// The address cannot be reached, or the connection broke.
    Connection(std::io::Error),
    /// The path is not the path of an address.
    Path(hyper::http::uri::InvalidUri),
    /// The server does not speak HTTP/1.1 as it should.
    Protocol(hyper::Error),
    /// The body is longer than the limit, or is not UTF-8.
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// The time that the caller gave is over.
    Late(Duration),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(_) => f.write_str("no connection"),
            Self::Path(_) => f.write_str("not a path"),
            Self::Protocol(_) => f.write_str("the answer is not HTTP/1.1"),
            Self::Body(_) => write!(f, "the answer is no text of up to {ANSWER_BYTES_MAX} bytes"),
            Self::Late(patience) => write!(f, "no answer within {patience:?}"),
        }
    }
}

impl std::error::Error for RequestError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connection(source) => Some(source),
            Self::Path(source) => Some(source),
            Self::Protocol(source) => Some(source),
            Self::Body(source) => Some(source.as_ref()),
            Self::Late(_) => None,
        }
    }
}

/// Sends a request without a body, and waits for the whole answer.
///
/// `path` begins with `/` and may have a query. The call blocks for `patience` at most. It must not
/// be made from a thread that drives asynchronous tasks.
pub fn ask(
    address: SocketAddr,
    method: Method,
    path: &str,
    patience: Duration,
) -> Result<Reply, RequestError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(RequestError::Connection)?;
    runtime.block_on(async {
        let answer = tokio::time::timeout(patience, exchange(address, method, path));
        answer.await.unwrap_or(Err(RequestError::Late(patience)))
    })
}

async fn exchange(address: SocketAddr, method: Method, path: &str) -> Result<Reply, RequestError> {
    let stream = TcpStream::connect(address).await.map_err(RequestError::Connection)?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(RequestError::Protocol)?;
    // The connection moves bytes while the request waits. Its errors reach the request.
    tokio::spawn(connection);
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().map_err(RequestError::Path)?;
    let host = address.to_string().parse().expect("an address is a header's value");
    request.headers_mut().insert(HOST, host);
    let response = sender.send_request(request).await.map_err(RequestError::Protocol)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
    let bytes = body.collect().await.map_err(RequestError::Body)?.to_bytes();
    let text =
        String::from_utf8(bytes.into()).map_err(|error| RequestError::Body(Box::new(error)))?;
    Ok(Reply { status, text })
}
