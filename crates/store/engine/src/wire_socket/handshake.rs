//! The handshake of a sealed connection to a store.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenfall_core::sealed_stream::{
    ANSWER_BYTES, CipherOf, ClientHandshake, ClientHello, HandshakeError, HelloVerdict,
    KEY_NAME_BYTES_MAX, PREFIX_BYTES, RANDOM_BYTES, StreamUse, is_sealed, refuse_hello,
};
use evenfall_core::{Cipher, UserKey};

use super::{SocketReader, SocketWriter, split_sealed};

const USE: StreamUse = StreamUse::Store;
/// Processors of servers have instructions for AES, which seal six times as fast as ChaCha20.
const CIPHER_OF: CipherOf = Cipher::new_aes;

/// Why a connection is not sealed.
#[derive(Debug)]
pub enum ConnectionRefused {
    /// The socket failed, or the other end was late.
    Socket(io::Error),
    /// The ends do not agree.
    Handshake(HandshakeError),
}

impl From<io::Error> for ConnectionRefused {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl From<HandshakeError> for ConnectionRefused {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

impl std::fmt::Display for ConnectionRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(error) => error.fmt(f),
            Self::Handshake(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectionRefused {}

/// Fills `out`. Fails when the moment comes first.
fn read_exact_until(mut socket: &TcpStream, mut out: &mut [u8], until: Instant) -> io::Result<()> {
    while !out.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match socket.read(out) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => out = &mut out[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
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

/// Connects a client with a key.
///
/// # Errors
/// Why the server does not take the client, or no server with this key answers in time.
pub fn connect_sealed(
    mut socket: TcpStream,
    key: &UserKey,
    until: Instant,
) -> Result<(SocketReader, SocketWriter), ConnectionRefused> {
    let name = key.name().as_bytes();
    let client = ClientHandshake::new(USE, name, key.secret(), &draw_random()?, CIPHER_OF);
    socket.write_all(client.hello())?;
    let mut answer = [0; ANSWER_BYTES];
    let (prefix, rest) = answer.split_at_mut(PREFIX_BYTES);
    read_exact_until(&socket, prefix, until)?;
    client.check_prefix(prefix.first_chunk().ok_or(HandshakeError::NotSealed)?)?;
    read_exact_until(&socket, rest, until)?;
    Ok(split_sealed(socket, client.finish(&answer)?))
}

/// A connection that a server with users has accepted.
pub enum AcceptedClient {
    /// A client without a key, which has sent something else than a hello.
    Plain(Arc<TcpStream>),
    /// A client that says that it has the key. Its first record proves that.
    Sealed(Box<SocketReader>, Box<SocketWriter>),
}

/// Answers the hello of a client. The key of an unknown name is a random one.
///
/// # Errors
/// When the hello does not come in time, or is no hello.
pub fn accept_sealed(
    socket: Arc<TcpStream>,
    secret_of: impl FnOnce(&str) -> Option<[u8; 32]>,
    until: Instant,
) -> Result<AcceptedClient, ConnectionRefused> {
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    socket.set_read_timeout(Some(left))?;
    let mut first = [0];
    if socket.peek(&mut first)? == 1 && !is_sealed(&first) {
        return Ok(AcceptedClient::Plain(socket));
    }
    let mut hello = [0; PREFIX_BYTES + RANDOM_BYTES + KEY_NAME_BYTES_MAX];
    let (prefix, rest) = hello.split_at_mut(PREFIX_BYTES);
    read_exact_until(&socket, prefix, until)?;
    let prefix = prefix.first_chunk().ok_or(HandshakeError::NotSealed)?;
    let length = match ClientHello::length(USE, prefix) {
        Err(error @ HandshakeError::Version(_)) => {
            (&*socket).write_all(&refuse_hello(HelloVerdict::Version))?;
            return Err(error.into());
        }
        length => length?,
    };
    read_exact_until(&socket, &mut rest[..length - PREFIX_BYTES], until)?;
    let client = ClientHello::parse(USE, &hello[..length])?;
    let name = String::from_utf8_lossy(client.key_name()).into_owned();
    let secret = match secret_of(&name) {
        Some(secret) => secret,
        None => draw_random()?,
    };
    let (answer, ends) = client.answer(&secret, &draw_random()?, CIPHER_OF);
    (&*socket).write_all(&answer)?;
    let (reader, writer) = split_sealed(socket, ends);
    Ok(AcceptedClient::Sealed(Box::new(reader), Box::new(writer)))
}

/// The answer of a server without users to a client with a key.
pub fn refuse_for_want_of_users() -> [u8; PREFIX_BYTES] {
    refuse_hello(HelloVerdict::NoKeys)
}
