//! The limits of an agent's gRPC port: the number of TCP connections, and the time until a
//! connection speaks HTTP/2.
//!
//! hyper pings a connection that has finished its HTTP/2 handshake and closes it when the client is
//! silent. Nothing limits the time before the handshake, so a stream in here ends by itself when
//! the client's preface is late:
//!
//! ```text
//! accepted --24 bytes, within preface_timeout--> HTTP/2, watched by pings
//!     |                                     \--> read error: closed
//!     +-- no place left: closed at once, counted
//! ```

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::Stream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Connections at once. Surveyors dial an agent, and so does each host that leads a job with it.
/// 1,024 connections serve a pool of a thousand hosts.
const CONNECTIONS_MAX: usize = 1_024;
/// Time for the client's preface, counted from the accept. A client sends the preface with its
/// first packet.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of the preface (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;
/// How long accepting rests when the kernel refuses a connection, for example for want of file
/// descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// The limits of what clients may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections at once. Beyond this number the newest is closed at once, and counted.
    pub connections_max: usize,
    /// Time for the preface of a connection. A connection that takes longer is closed.
    pub preface_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections_max: CONNECTIONS_MAX, preface_timeout: PREFACE_TIMEOUT }
    }
}

/// An endless stream of the incoming connections. `turned_away` is called for each connection
/// beyond the limit.
pub(super) fn open(
    listener: TcpListener,
    limits: Limits,
    turned_away: impl Fn() + Send + 'static,
) -> impl Stream<Item = io::Result<Guest>> {
    let places = Arc::new(Semaphore::new(limits.connections_max));
    futures_util::stream::unfold((listener, turned_away), move |(listener, turned_away)| {
        let places = Arc::clone(&places);
        async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    tokio::time::sleep(ACCEPT_REST).await;
                    continue;
                };
                let Ok(place) = places.clone().try_acquire_owned() else {
                    turned_away();
                    continue;
                };
                // A connection that refuses the option still works, and is slower.
                stream.set_nodelay(true).ok();
                let late = Box::pin(tokio::time::sleep(limits.preface_timeout));
                let guest = Guest { stream, read: 0, late, _place: place };
                return Some((Ok(guest), (listener, turned_away)));
            }
        }
    })
}

/// A connection within the limit.
pub(super) struct Guest {
    stream: TcpStream,
    /// Bytes read so far, up to the length of the preface.
    read: usize,
    late: Pin<Box<tokio::time::Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connected for Guest {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if self.read < PREFACE_BYTES {
            self.read += buffer.filled().len() - before;
            if polled.is_pending() && self.late.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        polled
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
