//! The socket of a connection in two halves, plain or sealed under the key of a user.
//!
//! A half that is sealed has the same calls as a plain one, so that client and server do not know
//! which one they have. Only the handshake differs ([`handshake`]).

use std::io::{self, Read, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

#[cfg(feature = "sealed")]
use evenfall_core::sealed_stream::{
    OpenedRecord, RECORD_BYTES_MAX, RecordError, RecordOpener, RecordSealer, SealedEnds,
};

#[cfg(feature = "sealed")]
pub mod handshake;

/// The half of a connection that reads.
pub struct SocketReader {
    socket: Arc<TcpStream>,
    #[cfg(feature = "sealed")]
    opener: Option<RecordOpener>,
}

/// The half of a connection that writes.
pub struct SocketWriter {
    socket: Arc<TcpStream>,
    #[cfg(feature = "sealed")]
    sealed: Option<SealedWrites>,
}

/// What a sealed connection writes.
#[cfg(feature = "sealed")]
struct SealedWrites {
    sealer: RecordSealer,
    /// Sealed bytes, of which the socket has taken the first `left`. They have to leave before
    /// anything else, because records are numbered.
    leaving: Vec<u8>,
    left: usize,
}

/// Both halves of a plain connection. They share one file descriptor: a process may have some
/// thousands of descriptors, and a server as many connections.
pub fn split_plain(socket: impl Into<Arc<TcpStream>>) -> (SocketReader, SocketWriter) {
    let socket = socket.into();
    let writing = Arc::clone(&socket);
    #[cfg(feature = "sealed")]
    let halves =
        (SocketReader { socket, opener: None }, SocketWriter { socket: writing, sealed: None });
    #[cfg(not(feature = "sealed"))]
    let halves = (SocketReader { socket }, SocketWriter { socket: writing });
    halves
}

/// Both halves of a connection whose handshake is done.
#[cfg(feature = "sealed")]
pub fn split_sealed(
    socket: impl Into<Arc<TcpStream>>,
    ends: SealedEnds,
) -> (SocketReader, SocketWriter) {
    let socket = socket.into();
    let writing = Arc::clone(&socket);
    let sealed = SealedWrites { sealer: ends.sealer, leaving: Vec::new(), left: 0 };
    let reader = SocketReader { socket, opener: Some(ends.opener) };
    (reader, SocketWriter { socket: writing, sealed: Some(sealed) })
}

#[cfg(feature = "sealed")]
fn broken(error: RecordError) -> io::Error {
    let kind = match error {
        RecordError::CutOff => io::ErrorKind::UnexpectedEof,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, error)
}

impl SocketReader {
    /// The socket, for its time limits and to wait for it.
    pub fn as_socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether a read returns without the socket. A caller must not wait for the socket then.
    #[cfg(feature = "sealed")]
    pub fn is_ready(&self) -> bool {
        self.opener.as_ref().is_some_and(RecordOpener::is_ready)
    }

    /// Whether a read returns without the socket. A plain read never does.
    #[cfg(not(feature = "sealed"))]
    pub fn is_ready(&self) -> bool {
        false
    }
}

impl Read for SocketReader {
    /// Reads opened bytes. A sealed connection that is cut off gives an error, where a plain one
    /// just ends. After a time limit, the next read goes on where this one stopped.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        #[cfg(feature = "sealed")]
        if let Some(opener) = &mut self.opener {
            loop {
                match opener.take(out).map_err(broken)? {
                    OpenedRecord::Bytes(len) => return Ok(len),
                    OpenedRecord::End => return Ok(0),
                    OpenedRecord::NeedsMore => {}
                }
                let len = (&*self.socket).read(opener.room())?;
                opener.note_arrival(len);
                if len == 0 {
                    opener.note_end().map_err(broken)?;
                    return Ok(0);
                }
            }
        }
        (&*self.socket).read(out)
    }
}

fn send_ready(socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        sent => Ok(sent?),
    }
}

#[cfg(feature = "sealed")]
impl SealedWrites {
    /// Gives sealed bytes to the socket by a function that returns how many the socket has taken.
    /// Returns whether none are left.
    fn leave(&mut self, mut send: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<bool> {
        while self.left < self.leaving.len() {
            match send(&self.leaving[self.left..])? {
                0 => return Ok(false),
                len => self.left += len,
            }
        }
        self.leaving.clear();
        self.left = 0;
        Ok(true)
    }

    fn write_ready(&mut self, socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        let mut sealed = 0;
        for part in bytes.chunks(RECORD_BYTES_MAX) {
            if !self.leave(|bytes| send_ready(socket, bytes))? {
                return Ok(sealed);
            }
            self.sealer.seal(part, &mut self.leaving);
            sealed += part.len();
        }
        self.leave(|bytes| send_ready(socket, bytes))?;
        Ok(sealed)
    }
}

impl SocketWriter {
    /// The socket, to shut it down.
    pub fn as_socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Writes all bytes, however long that takes.
    ///
    /// # Errors
    /// Those of the socket. A part of the bytes may have left, so nothing may be written
    /// afterwards.
    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        #[cfg(feature = "sealed")]
        if let Some(SealedWrites { sealer, leaving, left }) = &mut self.sealed {
            sealer.seal(bytes, leaving);
            (&*self.socket).write_all(&leaving[*left..])?;
            leaving.clear();
            *left = 0;
            return Ok(());
        }
        (&*self.socket).write_all(bytes)
    }

    /// Writes what the socket takes at once. Returns the number of bytes that need not be given
    /// again.
    ///
    /// # Errors
    /// As [`write_all`](Self::write_all).
    pub fn write_ready(&mut self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(feature = "sealed")]
        if let Some(sealed) = &mut self.sealed {
            return sealed.write_ready(&self.socket, bytes);
        }
        send_ready(&self.socket, bytes)
    }

    /// Whether the socket still has to take bytes that need not be given again.
    #[cfg(feature = "sealed")]
    pub fn has_unsent(&self) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed.left < sealed.leaving.len())
    }

    /// Whether the socket still has to take bytes. A plain half keeps none.
    #[cfg(not(feature = "sealed"))]
    pub fn has_unsent(&self) -> bool {
        false
    }

    /// Gives back the memory of bytes that have left. A connection that rests keeps little.
    #[cfg(feature = "sealed")]
    pub fn release_memory(&mut self) {
        if let Some(sealed) = self.sealed.as_mut().filter(|sealed| sealed.leaving.is_empty()) {
            sealed.leaving = Vec::new();
        }
    }

    /// Gives back the memory of bytes that have left. A plain half has none.
    #[cfg(not(feature = "sealed"))]
    pub fn release_memory(&mut self) {}

    /// Ends a sealed stream, so that the other end knows that nothing was cut off. Does not wait
    /// for a socket that takes nothing.
    pub fn end(&mut self) {
        #[cfg(feature = "sealed")]
        if let Some(sealed) = &mut self.sealed {
            sealed.sealer.seal_end(&mut sealed.leaving);
            let _ = sealed.leave(|bytes| send_ready(&self.socket, bytes));
        }
    }
}
