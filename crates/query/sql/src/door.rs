//! The listeners of all protocols: loopback alone, a limit of connections, and time limits for
//! clients that take a seat and do nothing.
//!
//! A client that is over the limit is told so in the words of its protocol, and for that it gets
//! one of a few further seats. A client that finds none of those either is closed without a word:
//! whoever opens connections in a loop gets no memory for it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// Connections over the limit that are told so at the same time.
const REFUSALS_AT_ONCE: usize = 64;

/// How often it is looked whether a client is still there. A vanished client's statement therefore
/// ends within half a second.
const CLIENT_LOOK: Duration = Duration::from_millis(250);

/// How long no connection is taken after the system had no descriptor for one.
const REST_AFTER_ERROR: Duration = Duration::from_millis(250);

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct DoorLimits {
    /// Connections at once. Later ones are told so and closed.
    pub connections: usize,
    /// How long a client may take until it has introduced itself.
    pub greeting: Duration,
    /// How long a client may take for a message that it has begun.
    pub message: Duration,
    /// How long rows may wait for a client that takes no byte of them.
    pub unread: Duration,
}

impl Default for DoorLimits {
    fn default() -> Self {
        Self {
            // Ten times the default of PostgreSQL: a connection costs a task and some kilobytes,
            // and statements share the memory of the engine.
            connections: 1_000,
            // A client on the same machine takes milliseconds; one that a person drives by hand
            // through a debugger takes seconds.
            greeting: Duration::from_secs(10),
            message: Duration::from_secs(60),
            // A program that works on each batch for a minute is slow, and not gone.
            unread: Duration::from_secs(300),
        }
    }
}

/// A port for clients of one protocol.
#[derive(Debug)]
pub struct QueryDoor {
    listener: TcpListener,
    limits: DoorLimits,
    seats: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
}

impl QueryDoor {
    /// Listens on an address, which `option` names in errors. Connections carry no password and no
    /// encryption, so that only addresses of loopback are taken.
    ///
    /// # Errors
    /// An address beyond loopback, and an address that cannot be listened on.
    pub async fn bind(option: &str, address: SocketAddr, limits: DoorLimits) -> io::Result<Self> {
        if !address.ip().is_loopback() {
            let what = format!(
                "{option} {address} is not loopback: connections carry no password and no \
                 encryption. Listen on 127.0.0.1, and reach it from other hosts through ssh -L"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let listener = TcpListener::bind(address).await.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen on {option} {address}: {error}"))
        })?;
        let seats = Arc::new(Semaphore::new(limits.connections));
        let refusals = Arc::new(Semaphore::new(REFUSALS_AT_ONCE));
        Ok(Self { listener, limits, seats, refusals })
    }

    /// The address, with the port that the system chose for port 0.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The limits.
    pub fn limits(&self) -> DoorLimits {
        self.limits
    }

    /// The next client that has a seat, or that is to be told that there is none.
    pub async fn accept(&self) -> DoorSocket {
        loop {
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) if is_of_one_client(&error) => continue,
                Err(error) => {
                    // Out of descriptors: the next connection may find one again.
                    eprintln!("evenfall-query: a connection was not taken: {error}");
                    tokio::time::sleep(REST_AFTER_ERROR).await;
                    continue;
                }
            };
            let seat = Arc::clone(&self.seats).try_acquire_owned().ok();
            let is_refused = seat.is_none();
            let seat = seat.or_else(|| Arc::clone(&self.refusals).try_acquire_owned().ok());
            let (Some(seat), Ok(())) = (seat, stream.set_nodelay(true)) else { continue };
            return DoorSocket {
                stream: Arc::new(stream),
                peer,
                is_refused,
                unread_max: self.limits.unread,
                unread: None,
                _seat: seat,
            };
        }
    }

    /// What a refused client is told.
    pub fn refusal_words(&self) -> String {
        format!("sorry, {} clients are connected already (--connections)", self.limits.connections)
    }
}

fn is_of_one_client(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

/// The socket of a client, with its seat. Writing fails when the client takes no byte for long.
#[derive(Debug)]
pub struct DoorSocket {
    stream: Arc<TcpStream>,
    peer: SocketAddr,
    is_refused: bool,
    unread_max: Duration,
    /// Runs while bytes wait for the client.
    unread: Option<Pin<Box<Sleep>>>,
    _seat: OwnedSemaphorePermit,
}

impl DoorSocket {
    /// Where the client is.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether the client is only to be told that there is no seat.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Ends when the client has closed or reset the connection. A protocol that does not read while
    /// a statement runs hears by this that nobody waits for the rows.
    pub fn until_gone(&self) -> impl Future<Output = ()> + Send + 'static {
        use rustix::event::{PollFd, PollFlags, poll};
        let stream = Arc::clone(&self.stream);
        async move {
            loop {
                tokio::time::sleep(CLIENT_LOOK).await;
                let fd = stream.as_fd();
                let mut fds = [PollFd::new(&fd, PollFlags::RDHUP)];
                let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
                let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
                if poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(gone) {
                    return;
                }
            }
        }
    }

    /// What a write gave, under the time limit of unread rows.
    fn within_unread<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.unread = None;
            return written;
        }
        let unread_max = self.unread_max;
        let unread = self.unread.get_or_insert_with(|| Box::pin(tokio::time::sleep(unread_max)));
        match unread.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                let what = "the client took no byte of its rows for too long";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, what)))
            }
        }
    }
}

impl AsyncRead for DoorSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            std::task::ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read(buf.initialize_unfilled()) {
                Ok(read) => {
                    buf.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for DoorSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = loop {
            match self.stream.poll_write_ready(cx) {
                Poll::Pending => break Poll::Pending,
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => {}
            }
            match self.stream.try_write(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => break Poll::Ready(written),
            }
        };
        self.within_unread(cx, written)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The system has each byte as soon as it is written.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let fd = self.stream.as_fd();
        let ended = rustix::net::shutdown(fd, rustix::net::Shutdown::Write);
        // A client that has gone needs no end.
        Poll::Ready(ended.or_else(|error| match error {
            rustix::io::Errno::NOTCONN => Ok(()),
            other => Err(other.into()),
        }))
    }
}
