//! Requests and answers that are longer than the memory for them, such as files.
//!
//! A function of [`Routes::streams`](super::Routes::streams) runs on a thread of its own for as
//! long as its request takes. The function reads the body as it comes, and its answer may be the
//! pieces of an iterator. Between the connection and the thread lie [`PIECES_MAX`] pieces in each
//! direction. A slow client therefore makes the thread wait, and a slow disk makes the client wait.
//!
//! A body is first read from the connection when its function wants bytes. A client that waits for
//! `100 Continue` before it sends its body therefore gets either these words or the answer, and
//! never both: an answer without the body, such as a redirect, spares the client the sending.
//!
//! A connection on which nothing moves for the time of a request is closed. The thread then reads
//! an error, or finds that nobody takes its pieces, and ends. A body that is cut ends in an error
//! too, so that no function takes a part of a body for the whole.

use std::io::{self, BufRead, Read};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{HeaderName, HeaderValue};
use tokio::sync::{Notify, mpsc, oneshot};

use super::{Awaited, Life, Request};

/// Pieces of a body between a connection and the thread of its request.
const PIECES_MAX: usize = 4;
/// Bytes of a body that are read although the function has answered without them. A client that was
/// sending then sees the answer and not a broken connection: when the server closes a connection
/// with unread bytes, the kernel throws away the answer that the client has not read yet. By
/// default Linux holds 4 MB at the sender and 6 MB at the receiver, and the client stops when it
/// sees the answer.
const UNWANTED_BYTES_MAX: usize = 16 << 20;

/// Bytes of a whole answer that hyper is given at once. hyper asks for more when the client takes
/// them, so that the body lives as long as the client has not taken almost all of it.
const ANSWER_PIECE_BYTES: usize = 64 << 10;

/// A piece of a body; `None` behind the last one. A channel that ends without it was cut.
type Piece = io::Result<Option<Bytes>>;

/// The body of a request, as it comes.
#[derive(Debug)]
pub struct Arriving {
    pieces: mpsc::Receiver<Piece>,
    piece: Bytes,
    is_over: bool,
    /// Starts the reading from the connection.
    wanted: Arc<Notify>,
}

impl Arriving {
    /// The next bytes of the body: `len` at most, and at least half as many unless the body ends.
    /// Bytes that came in one piece of at least half of `len` are not copied.
    ///
    /// # Errors
    /// When the body was cut.
    pub fn next_bytes(&mut self, len: usize) -> io::Result<Bytes> {
        self.fill_buf()?;
        if self.piece.len() >= len / 2 {
            return Ok(self.piece.split_to(len.min(self.piece.len())));
        }
        let mut bytes = BytesMut::with_capacity(len);
        while bytes.len() < len && !self.fill_buf()?.is_empty() {
            let room = (len - bytes.len()).min(self.piece.len());
            bytes.extend_from_slice(&self.piece.split_to(room));
        }
        Ok(bytes.freeze())
    }
}

impl Read for Arriving {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(self.fill_buf()?.len());
        self.piece.copy_to_slice(&mut out[..len]);
        Ok(len)
    }
}

impl BufRead for Arriving {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.piece.is_empty() && !self.is_over {
            self.wanted.notify_one();
            match self.pieces.blocking_recv() {
                Some(piece) => match piece? {
                    Some(piece) => self.piece = piece,
                    None => self.is_over = true,
                },
                None => return Err(cut()),
            }
        }
        Ok(&self.piece)
    }

    fn consume(&mut self, len: usize) {
        self.piece.advance(len);
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended before the body")
}

/// The pieces of an answer, in order. An error cuts the connection, so that no client takes a part
/// of an answer for the whole.
pub type Pieces = Box<dyn Iterator<Item = io::Result<Bytes>> + Send>;

/// The body of an answer.
pub enum Content {
    /// These bytes.
    Whole(Bytes),
    /// These pieces, and the number of their bytes where that is known.
    Stream(Option<u64>, Pieces),
}

/// An answer with any headers.
pub struct StreamAnswer {
    /// The status, 200 and so on.
    pub status: StatusCode,
    /// Headers, each with its name in lower case. A value that no header can have is left out.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub content: Content,
}

/// A function from a request, whose own body is empty, and its arriving body to its answer.
pub type Streams = dyn Fn(&Request, Arriving) -> StreamAnswer + Send + Sync;

/// The body of an answer on its way. When hyper drops the body, the connection waits for the next
/// request.
pub(super) struct Outgoing {
    body: OutgoingBody,
    life: Arc<Life>,
}

enum OutgoingBody {
    Whole(Bytes),
    Stream { left: Option<u64>, pieces: mpsc::Receiver<Piece> },
}

impl Outgoing {
    /// A body of these bytes.
    pub(super) fn whole(bytes: Bytes, life: Arc<Life>) -> Self {
        Self { body: OutgoingBody::Whole(bytes), life }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.life.awaits(Awaited::Request);
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Self { body, life } = self.get_mut();
        let (left, pieces) = match body {
            OutgoingBody::Whole(bytes) if bytes.is_empty() => return Poll::Ready(None),
            OutgoingBody::Whole(bytes) => {
                let piece = bytes.split_to(bytes.len().min(ANSWER_PIECE_BYTES));
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            OutgoingBody::Stream { left: Some(0), .. } => return Poll::Ready(None),
            OutgoingBody::Stream { left, pieces } => (left, pieces),
        };
        pieces.poll_recv(context).map(|piece| {
            life.moved();
            let mut piece = match piece.unwrap_or_else(|| Err(cut())) {
                Ok(Some(piece)) => piece,
                Ok(None) if left.is_none() => return None,
                Ok(None) => return Some(Err(cut())),
                Err(error) => return Some(Err(error)),
            };
            if let Some(left) = left {
                piece.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= piece.len() as u64;
            }
            Some(Ok(Frame::data(piece)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.size_hint().exact() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            OutgoingBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            OutgoingBody::Stream { left, .. } => {
                left.map_or_else(SizeHint::new, SizeHint::with_exact)
            }
        }
    }
}

/// Hands the body of a request to its thread, piece by piece, from the time when the body is wanted
/// or the request is answered.
async fn pump(mut body: Incoming, wanted: Arc<Notify>, give: mpsc::Sender<Piece>, life: Arc<Life>) {
    // The first poll of the body makes hyper send `100 Continue`, unless the answer has begun.
    wanted.notified().await;
    let mut unwanted_bytes = 0;
    loop {
        life.owes_body(true);
        let frame = body.frame().await;
        life.owes_body(false);
        let Some(frame) = frame else { break };
        let piece = match frame.map(Frame::into_data) {
            Ok(Ok(piece)) => Ok(Some(piece)),
            Ok(Err(_trailers)) => continue,
            Err(error) => Err(io::Error::other(error)),
        };
        let (is_last, len) = match &piece {
            Ok(piece) => (false, piece.as_ref().map_or(0, Bytes::len)),
            Err(_) => (true, 0),
        };
        if give.send(piece).await.is_err() {
            unwanted_bytes += len;
        }
        if is_last || unwanted_bytes > UNWANTED_BYTES_MAX {
            return;
        }
    }
    // A connection that was closed because it is late ends its body like a whole body.
    let end = if life.is_cut() { Err(cut()) } else { Ok(None) };
    // The thread may have answered before the end of the body.
    let _ = give.send(end).await;
}

/// Lets the pump begin when the request has its answer, or when the connection has ended before.
struct Begin(Arc<Notify>);

impl Drop for Begin {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Answers a request by a function on a thread of its own.
pub(super) async fn answer(
    streams: Arc<Streams>,
    request: hyper::Request<Incoming>,
    from: SocketAddr,
    life: Arc<Life>,
) -> hyper::Response<Outgoing> {
    let (head, body) = request.into_parts();
    let request = Request::new(&mut hyper::Request::from_parts(head, ()), Bytes::new(), from);
    let (give, pieces) = mpsc::channel(PIECES_MAX);
    let wanted = Arc::new(Notify::new());
    tokio::spawn(pump(body, Arc::clone(&wanted), give, Arc::clone(&life)));
    let begin = Begin(Arc::clone(&wanted));
    let arriving = Arriving { pieces, piece: Bytes::new(), is_over: false, wanted };
    let (tell, told) = oneshot::channel();
    let (out, leaving) = mpsc::channel(PIECES_MAX);
    tokio::task::spawn_blocking(move || {
        let StreamAnswer { status, headers, content } = streams(&request, arriving);
        let (length, rest) = match content {
            Content::Whole(bytes) => (Err(bytes), None),
            Content::Stream(length, rest) => (Ok(length), Some(rest)),
        };
        let is_wanted = tell.send((status, headers, length)).is_ok();
        if let Some(rest) = rest.filter(|_| is_wanted) {
            send_all(rest, &out);
        }
    });
    // A function that panicked has printed its words.
    let failed = |_| (StatusCode::INTERNAL_SERVER_ERROR, Vec::new(), Err(Bytes::new()));
    let (status, headers, length) = told.await.unwrap_or_else(failed);
    // The runtime has one thread, so hyper writes the head of the answer before the pump goes on.
    drop(begin);
    let body = match length {
        Err(bytes) => OutgoingBody::Whole(bytes),
        Ok(left) => OutgoingBody::Stream { left, pieces: leaving },
    };
    let mut response = hyper::Response::new(Outgoing { body, life });
    *response.status_mut() = status;
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().append(HeaderName::from_static(name), value);
        }
    }
    response
}

/// Sends the pieces of an answer until nobody takes them.
fn send_all(pieces: Pieces, out: &mpsc::Sender<Piece>) {
    for piece in pieces {
        let is_last = piece.is_err();
        if out.blocking_send(piece.map(Some)).is_err() || is_last {
            return;
        }
    }
    // A client that has gone needs no end.
    let _ = out.blocking_send(Ok(None));
}
