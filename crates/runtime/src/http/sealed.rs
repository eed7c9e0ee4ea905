//! HTTP over the [sealed stream](evenfall_core::sealed_stream) of the shared key of a run.
//!
//! No request of HTTP begins with a zero byte. A server therefore tells sealed connections from
//! plain connections by the first byte. A connection whose end was not sealed is an error here,
//! also where HTTP does not tell the length of a body.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use evenfall_core::sealed_stream::{
    ANSWER_BYTES, ClientHandshake, ClientHello, HandshakeError, KEY_NAME_BYTES_MAX, OpenedRecord,
    PREFIX_BYTES, RANDOM_BYTES, RECORD_BYTES_MAX, RecordError, SealedEnds, StreamUse, is_sealed,
};
use evenfall_core::{Cipher, SharedKey};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};

use crate::address::SourcePorts;

/// Most local ports that a connection tries, when other connections have taken the first ones.
const PORTS_TRIED: u32 = 32;
/// The protocol inside these streams.
const USE: StreamUse = StreamUse::Http;
/// The answer to a plain request from another host.
const REFUSAL: &[u8] =
    b"HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\ncontent-length: 64\r\n\
                         connection: close\r\n\r\n\
                         connections from other hosts are taken only sealed under a key.\n";

/// The key of a server, and whether clients may connect without the key.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The key under which connections are sealed.
    pub key: SharedKey,
    /// Whether clients on other hosts may connect without the key. Clients on this host always may.
    pub is_open: bool,
}

/// A connection, sealed or not.
pub(super) enum Stream {
    Plain(TcpStream),
    Sealed(Box<Sealed>),
}

/// A connection whose both directions are sealed.
pub(super) struct Sealed {
    stream: TcpStream,
    ends: SealedEnds,
    /// Sealed bytes, of which the network has taken the first `left`.
    leaving: Vec<u8>,
    left: usize,
    has_sealed_end: bool,
}

/// Reads until `out` is full.
async fn read_all(stream: &TcpStream, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        stream.readable().await?;
        match stream.try_read(out) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => out = &mut out[len..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Connects from one of these ports. Connections of this process take turns among the ports.
async fn connect_from(ports: SourcePorts, addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    // Other processes of this host begin at other ports.
    static TURN: AtomicU32 = AtomicU32::new(0);
    let (first, count) =
        (u32::from(ports.first), u32::from(ports.last.saturating_sub(ports.first)) + 1);
    let mut failed = io::Error::from(ErrorKind::AddrNotAvailable);
    for address in addresses {
        for _ in 0..PORTS_TRIED.min(count) {
            let turn = TURN.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id());
            let port = (first + turn % count) as u16;
            let (socket, any) = match address {
                SocketAddr::V4(_) => (TcpSocket::new_v4()?, Ipv4Addr::UNSPECIFIED.into()),
                SocketAddr::V6(_) => (TcpSocket::new_v6()?, Ipv6Addr::UNSPECIFIED.into()),
            };
            // An earlier connection from this port to another server does not keep the port.
            socket.set_reuseaddr(true)?;
            let connected = match socket.bind(SocketAddr::new(any, port)) {
                Ok(()) => socket.connect(*address).await,
                Err(error) => Err(error),
            };
            match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
            if !matches!(failed.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) {
                break;
            }
        }
    }
    Err(failed)
}

async fn write_all(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn draw_random() -> io::Result<[u8; RANDOM_BYTES]> {
    let mut random = [0; RANDOM_BYTES];
    evenfall_host::random::fill(&mut random)?;
    Ok(random)
}

fn refused(error: HandshakeError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

fn broken(error: RecordError) -> io::Error {
    let kind = match error {
        RecordError::CutOff => ErrorKind::UnexpectedEof,
        _ => ErrorKind::InvalidData,
    };
    io::Error::new(kind, error)
}

impl Sealed {
    fn new(stream: TcpStream, ends: SealedEnds) -> Self {
        Self { stream, ends, leaving: Vec::new(), left: 0, has_sealed_end: false }
    }

    /// Gives the sealed bytes to the network.
    fn poll_leave(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.left < self.leaving.len() {
            let stream = Pin::new(&mut self.stream);
            match ready!(stream.poll_write(context, &self.leaving[self.left..]))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                len => self.left += len,
            }
        }
        self.leaving.clear();
        self.left = 0;
        Poll::Ready(Ok(()))
    }

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.ends.opener.take(out.initialize_unfilled()).map_err(broken)? {
                OpenedRecord::Bytes(len) => {
                    out.advance(len);
                    return Poll::Ready(Ok(()));
                }
                OpenedRecord::End => return Poll::Ready(Ok(())),
                OpenedRecord::NeedsMore => {}
            }
            let mut into = ReadBuf::new(self.ends.opener.room());
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut into))?;
            let len = into.filled().len();
            self.ends.opener.note_arrival(len);
            if len == 0 {
                return Poll::Ready(self.ends.opener.note_end().map_err(broken));
            }
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_leave(context))?;
        let len = bytes.len().min(RECORD_BYTES_MAX);
        if len == 0 {
            return Poll::Ready(Ok(0));
        }
        self.ends.sealer.seal(&bytes[..len], &mut self.leaving);
        // Bytes that the network does not take now leave with the next write or flush.
        if let Poll::Ready(left) = self.poll_leave(context) {
            left?;
        }
        Poll::Ready(Ok(len))
    }
}

impl Stream {
    /// A connection to a server, sealed when there is a key. With `ports`, the connection comes
    /// from one of these ports of this host.
    pub(super) async fn connect(
        addresses: &[SocketAddr],
        ports: Option<SourcePorts>,
        key: Option<&SharedKey>,
    ) -> io::Result<Self> {
        let stream = match ports {
            Some(ports) => connect_from(ports, addresses).await?,
            None => TcpStream::connect(addresses).await?,
        };
        let Some(key) = key else { return Ok(Self::Plain(stream)) };
        let random = draw_random()?;
        let client = ClientHandshake::new(USE, &[key.id()], key.secret(), &random, Cipher::new);
        write_all(&stream, client.hello()).await?;
        let mut answer = [0; ANSWER_BYTES];
        read_all(&stream, &mut answer).await?;
        let ends = client.finish(&answer).map_err(refused)?;
        Ok(Self::Sealed(Box::new(Sealed::new(stream, ends))))
    }

    /// The connection of a client to a guarded server: sealed, or plain if the guard allows a plain
    /// connection.
    pub(super) async fn accept(
        stream: TcpStream,
        from: SocketAddr,
        guard: &Guard,
    ) -> io::Result<Self> {
        let mut first = [0];
        stream.peek(&mut first).await?;
        if !is_sealed(&first) {
            if guard.is_open || from.ip().to_canonical().is_loopback() {
                return Ok(Self::Plain(stream));
            }
            write_all(&stream, REFUSAL).await?;
            return Err(ErrorKind::PermissionDenied.into());
        }
        let mut hello = [0; PREFIX_BYTES + RANDOM_BYTES + KEY_NAME_BYTES_MAX];
        let (prefix, rest) = hello.split_at_mut(PREFIX_BYTES);
        read_all(&stream, prefix).await?;
        let prefix = prefix.first_chunk().ok_or(ErrorKind::InvalidData)?;
        let length = ClientHello::length(USE, prefix).map_err(refused)?;
        read_all(&stream, &mut rest[..length - PREFIX_BYTES]).await?;
        let client = ClientHello::parse(USE, &hello[..length]).map_err(refused)?;
        if client.key_name() != [guard.key.id()] {
            return Err(refused(HandshakeError::WrongKey));
        }
        let (answer, ends) = client.answer(guard.key.secret(), &draw_random()?, Cipher::new);
        write_all(&stream, &answer).await?;
        Ok(Self::Sealed(Box::new(Sealed::new(stream, ends))))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, out),
            Self::Sealed(sealed) => sealed.poll_read(context, out),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Sealed(sealed) => sealed.poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
            Self::Sealed(sealed) => {
                let first = pieces.iter().find(|piece| !piece.is_empty());
                sealed.poll_write(context, first.map_or(&[][..], |piece| piece))
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Sealed(sealed) => sealed.poll_leave(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Sealed(sealed) => {
                if !sealed.has_sealed_end {
                    sealed.has_sealed_end = true;
                    sealed.ends.sealer.seal_end(&mut sealed.leaving);
                }
                ready!(sealed.poll_leave(context))?;
                Pin::new(&mut sealed.stream).poll_shutdown(context)
            }
        }
    }
}
