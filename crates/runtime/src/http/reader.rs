//! Reads pages of many servers again and again, over connections that stay open.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HOST;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::client::{Reply, RequestError, new_runtime, text_of};

type Connection = SendRequest<Empty<Bytes>>;

/// A page of a server: `path` begins with `/` and may have a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageAddress {
    /// The server.
    pub server: SocketAddr,
    /// The page on it.
    pub path: &'static str,
}

/// A reader of pages. It keeps one connection to each server that it has read from.
pub struct PageReader {
    runtime: Runtime,
    patience: Duration,
    kept: BTreeMap<SocketAddr, Connection>,
}

impl fmt::Debug for PageReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageReader").field("kept", &self.kept.len()).finish_non_exhaustive()
    }
}

impl PageReader {
    /// A reader that waits for each answer for `patience` at most.
    ///
    /// # Errors
    /// When the system refuses a poller.
    pub fn new(patience: Duration) -> Result<Self, RequestError> {
        Ok(Self { runtime: new_runtime()?, patience, kept: BTreeMap::new() })
    }

    /// Reads all pages at once, one of each server at most, and returns the answers in their order.
    /// The call must not be made from a thread that drives asynchronous tasks.
    pub fn read_all(&mut self, pages: &[PageAddress]) -> Vec<Result<Reply, RequestError>> {
        let Self { runtime, patience, kept } = self;
        let patience = *patience;
        let answers = runtime.block_on(async {
            let mut tasks = Vec::new();
            for page in pages {
                let (connection, page) = (kept.remove(&page.server), page.clone());
                tasks.push(tokio::spawn(async move {
                    let read = read_page(connection, &page);
                    let read = tokio::time::timeout(patience, read).await;
                    read.unwrap_or((None, Err(RequestError::Late(patience))))
                }));
            }
            let mut answers = Vec::new();
            for task in tasks {
                answers.push(task.await.unwrap_or((None, Err(RequestError::Late(patience)))));
            }
            answers
        });
        let mut replies = Vec::new();
        for (page, (connection, reply)) in pages.iter().zip(answers) {
            if let Some(connection) = connection {
                self.kept.insert(page.server, connection);
            }
            replies.push(reply);
        }
        replies
    }
}

/// Reads a page over a kept connection, or over a new one when the server has closed the kept one.
async fn read_page(
    kept: Option<Connection>,
    page: &PageAddress,
) -> (Option<Connection>, Result<Reply, RequestError>) {
    if let Some(mut connection) = kept.filter(|connection| !connection.is_closed())
        && let Ok(reply) = ask_over(&mut connection, page).await
    {
        return (Some(connection), Ok(reply));
    }
    let mut connection = match connect(page.server).await {
        Ok(connection) => connection,
        Err(error) => return (None, Err(error)),
    };
    let reply = ask_over(&mut connection, page).await;
    (reply.is_ok().then_some(connection), reply)
}

async fn connect(server: SocketAddr) -> Result<Connection, RequestError> {
    let stream = TcpStream::connect(server).await.map_err(RequestError::Connection)?;
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(RequestError::Protocol)?;
    // The connection moves bytes while a request waits. Its errors reach the request.
    tokio::spawn(connection);
    Ok(sender)
}

async fn ask_over(connection: &mut Connection, page: &PageAddress) -> Result<Reply, RequestError> {
    let path: Uri = page.path.parse().map_err(RequestError::Path)?;
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = path;
    let host = page.server.to_string();
    let host = host.parse().map_err(|_| RequestError::Scheme(host.clone()))?;
    request.headers_mut().insert(HOST, host);
    connection.ready().await.map_err(RequestError::Protocol)?;
    let response = connection.send_request(request).await.map_err(RequestError::Protocol)?;
    let status = response.status();
    let text = text_of(response.into_body()).await?;
    Ok(Reply { status, text })
}
