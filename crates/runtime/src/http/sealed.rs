//! Connections that are sealed under the shared key of a run.
//!
//! ```text
//!  client                                             server
//!    | 0, "EVH", version, key id, 0, 0, 32 random bytes |
//!    |------------------------------------------------->|
//!    |<-------------------------------------------------|
//!    |            the same with 32 bytes of its own     |
//!    |  | length u16 | sealed bytes | tag |  ...        |
//! ```
//!
//! Each direction has a key of its own, which follows from the shared key and the random bytes of
//! both ends. The seal is ChaCha20-Poly1305, with the number of the record as the nonce and the
//! length of the record as associated data. An end without the shared key sends no record that
//! opens, and a recorded connection opens nowhere again. HTTP finds a connection that is cut
//! between two records, because HTTP tells the length of every body.
//!
//! No request of HTTP begins with a zero byte. A server therefore tells sealed connections from
//! plain connections by the first byte.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use evenfall_core::cipher::TAG_BYTES;
use evenfall_core::{Cipher, SharedKey};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The first bytes of both ends, in front of the id of the key.
const MAGIC: [u8; 5] = [0, b'E', b'V', b'H', 1];
/// Bytes of the magic, the id of the key, and two zeros.
const PREFIX_BYTES: usize = 8;
/// Random bytes of each end, out of which both ends derive the keys of the connection.
const RANDOM_BYTES: usize = 32;
/// Bytes of the hello of each end.
const HELLO_BYTES: usize = PREFIX_BYTES + RANDOM_BYTES;
/// Bytes of a record before they are sealed.
const RECORD_BYTES_MAX: usize = 32 << 10;
/// Bytes that are read from the network at once.
const READ_BYTES: usize = 32 << 10;
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

/// One direction of a connection.
struct Half {
    cipher: Cipher,
    number: u64,
}

impl Half {
    /// The number of the next record.
    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number - 1
    }
}

/// A connection, sealed or not.
pub(super) enum Stream {
    Plain(TcpStream),
    Sealed(Box<Sealed>),
}

/// See the documentation of the module.
pub(super) struct Sealed {
    stream: TcpStream,
    reads: Half,
    writes: Half,
    /// Bytes that have come and are no whole record yet.
    came: BytesMut,
    /// Opened bytes that have not been read yet.
    opened: BytesMut,
    /// Sealed bytes that the network has not taken.
    leaving: BytesMut,
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

fn hello(key: &SharedKey) -> io::Result<[u8; HELLO_BYTES]> {
    let mut hello = [0; HELLO_BYTES];
    hello[..MAGIC.len()].copy_from_slice(&MAGIC);
    hello[MAGIC.len()] = key.id();
    evenfall_host::random::fill(&mut hello[PREFIX_BYTES..])?;
    Ok(hello)
}

/// Refuses bytes that do not begin a sealed connection under this key.
fn check(hello: &[u8; HELLO_BYTES], key: &SharedKey) -> io::Result<()> {
    let is_ours = hello[..MAGIC.len()] == MAGIC && hello[MAGIC.len()] == key.id();
    let wrong = || io::Error::new(ErrorKind::InvalidData, "no connection under this key");
    is_ours.then_some(()).ok_or_else(wrong)
}

impl Sealed {
    fn new(
        stream: TcpStream,
        key: &SharedKey,
        (client, server): (&[u8; HELLO_BYTES], &[u8; HELLO_BYTES]),
        is_client: bool,
    ) -> Self {
        let material = [&key.secret()[..], client, server].concat();
        let half = |context: &str| {
            let cipher = Cipher::new(&blake3::derive_key(context, &material));
            Half { cipher, number: 0 }
        };
        let to_server = half("evenfall http v1 to the server");
        let to_client = half("evenfall http v1 to the client");
        let (reads, writes) =
            if is_client { (to_client, to_server) } else { (to_server, to_client) };
        let [came, opened, leaving] = [BytesMut::new(), BytesMut::new(), BytesMut::new()];
        Self { stream, reads, writes, came, opened, leaving }
    }

    /// Opens the next record, if all of it has come.
    fn open(&mut self) -> io::Result<bool> {
        let Some(prefix) = self.came.first_chunk::<2>().copied() else { return Ok(false) };
        let len = usize::from(u16::from_le_bytes(prefix));
        let forged = || io::Error::new(ErrorKind::InvalidData, "a record that does not open");
        if len == 0 || len > RECORD_BYTES_MAX {
            return Err(forged());
        }
        if self.came.len() < 2 + len + TAG_BYTES {
            return Ok(false);
        }
        self.came.advance(2);
        let mut body = self.came.split_to(len + TAG_BYTES);
        let number = self.reads.next();
        if !self.reads.cipher.open_in_place(number, &prefix, &mut body) {
            return Err(forged());
        }
        self.opened = body;
        Ok(true)
    }

    /// Gives the sealed bytes to the network.
    fn poll_leave(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.leaving.is_empty() {
            let stream = Pin::new(&mut self.stream);
            match ready!(stream.poll_write(context, &self.leaving))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                len => self.leaving.advance(len),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.opened.is_empty() {
            if self.open()? {
                continue;
            }
            let before = self.came.len();
            self.came.resize(before + READ_BYTES, 0);
            let mut into = ReadBuf::new(&mut self.came[before..]);
            let polled = Pin::new(&mut self.stream).poll_read(context, &mut into);
            let len = into.filled().len();
            self.came.truncate(before + len);
            ready!(polled)?;
            if len == 0 {
                let is_whole = self.came.is_empty();
                return Poll::Ready(is_whole.then_some(()).ok_or(ErrorKind::UnexpectedEof.into()));
            }
        }
        let len = out.remaining().min(self.opened.len());
        out.put_slice(&self.opened.split_to(len));
        Poll::Ready(Ok(()))
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_leave(context))?;
        let len = bytes.len().min(RECORD_BYTES_MAX);
        if len == 0 {
            return Poll::Ready(Ok(0));
        }
        let prefix = (len as u16).to_le_bytes();
        self.leaving.reserve(2 + len + TAG_BYTES);
        self.leaving.extend_from_slice(&prefix);
        self.leaving.extend_from_slice(&bytes[..len]);
        let number = self.writes.next();
        let tag = self.writes.cipher.seal(number, &prefix, &mut self.leaving[2..]);
        self.leaving.extend_from_slice(&tag);
        // Bytes that the network does not take now leave with the next write or flush.
        if let Poll::Ready(left) = self.poll_leave(context) {
            left?;
        }
        Poll::Ready(Ok(len))
    }
}

impl Stream {
    /// A connection to a server, sealed when there is a key.
    pub(super) async fn connect(
        addresses: &[SocketAddr],
        key: Option<&SharedKey>,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect(addresses).await?;
        let Some(key) = key else { return Ok(Self::Plain(stream)) };
        let own = hello(key)?;
        write_all(&stream, &own).await?;
        let mut server = [0; HELLO_BYTES];
        read_all(&stream, &mut server).await?;
        check(&server, key)?;
        Ok(Self::Sealed(Box::new(Sealed::new(stream, key, (&own, &server), true))))
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
        if first[0] != MAGIC[0] {
            if guard.is_open || from.ip().to_canonical().is_loopback() {
                return Ok(Self::Plain(stream));
            }
            write_all(&stream, REFUSAL).await?;
            return Err(ErrorKind::PermissionDenied.into());
        }
        let mut client = [0; HELLO_BYTES];
        read_all(&stream, &mut client).await?;
        check(&client, &guard.key)?;
        let own = hello(&guard.key)?;
        write_all(&stream, &own).await?;
        Ok(Self::Sealed(Box::new(Sealed::new(stream, &guard.key, (&client, &own), false))))
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
                ready!(sealed.poll_leave(context))?;
                Pin::new(&mut sealed.stream).poll_shutdown(context)
            }
        }
    }
}
