//! The replies of a connection, on their way to its client.
//!
//! Three threads make replies: one reads the requests, one acknowledges appends, and one pushes
//! records. Each of them puts its replies into a queue and writes the queue to the socket. A write
//! waits while the client reads nothing, for example because the client itself writes a large
//! append. If the thread that reads requests waited too, client and server would wait for each
//! other.
//!
//! Queue and socket therefore have a lock each, and nobody waits for the socket while it holds the
//! queue. The thread that reads requests writes only what the socket takes at once, and leaves the
//! rest to the thread that pushes records, which may wait.

use std::io;
use std::net::Shutdown;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use evenfall_store_engine::protocol::{MalformedFrame, StoreReply};
use evenfall_store_engine::wire_socket::SocketWriter;
use evenfall_store_engine::{StoreError, lock};

use super::{CREDIT_BYTES, REQUESTS_MAX};
use crate::users::StoreUser;
use crate::{ConnectionState, Served};

/// Replies above this are written before more are put.
const WRITE_BYTES: usize = 256 << 10;
/// Unwritten replies above which the thread that reads requests waits for the socket after all. The
/// other threads leave no more than one push of a mebibyte and `WRITE_BYTES`, and the error texts
/// for 1,024 requests are 0.3 MiB. More than that are lists, whose client must read them.
const UNWRITTEN_BYTES_MAX: usize = 2 << 20;

/// Replies that wait to be written, and the client's used credit. After a failed write it is
/// unknown how many bytes left, and the client would take a later reply for the rest of the failed
/// one. Nothing is therefore written after a failure.
struct ReplyQueue {
    bytes: Vec<u8>,
    spent: u64,
    requests: u64,
    is_broken: bool,
}

/// The way of the replies to the client.
pub(super) struct ReplyWriter {
    served: Arc<Served>,
    state: Arc<ConnectionState>,
    /// Who pays for the bytes.
    user: Option<Arc<StoreUser>>,
    queue: Mutex<ReplyQueue>,
    /// The lock of the stream is taken before that of the queue, and is held while bytes are taken
    /// out of the queue and written. So bytes leave in the order in which they were put.
    stream: Mutex<SocketWriter>,
}

impl ReplyWriter {
    pub(super) fn new(
        served: &Arc<Served>,
        stream: SocketWriter,
        state: Arc<ConnectionState>,
        user: Option<Arc<StoreUser>>,
    ) -> Self {
        let queue = ReplyQueue { bytes: Vec::new(), spent: 0, requests: 0, is_broken: false };
        let (served, queue) = (Arc::clone(served), Mutex::new(queue));
        Self { served, state, user, queue, stream: Mutex::new(stream) }
    }

    /// Counts a request against the client's credit.
    pub(super) fn spend(&self, cost: u64) -> Result<(), MalformedFrame> {
        let mut queue = lock(&self.queue);
        queue.spent += cost;
        queue.requests += 1;
        self.state.end_idleness();
        match queue.spent > CREDIT_BYTES || queue.requests > REQUESTS_MAX {
            true => Err(MalformedFrame("requests over the credit")),
            false => Ok(()),
        }
    }

    /// Begins the credit anew, for a client that has said hello.
    pub(super) fn reset_credit(&self) {
        let mut queue = lock(&self.queue);
        (queue.spent, queue.requests) = (0, 0);
        self.state.begin_idleness();
    }

    /// Requests without a last reply.
    pub(super) fn requests(&self) -> u64 {
        lock(&self.queue).requests
    }

    /// Puts a reply that is not the last of its request, or grants another credit than the request
    /// has spent. Returns whether the replies should be written before more are put.
    pub(super) fn put(&self, request: u32, grant: u64, reply: &StoreReply<'_>) -> bool {
        let mut queue = lock(&self.queue);
        queue.put(request, grant, reply);
        queue.is_broken || queue.bytes.len() >= WRITE_BYTES
    }

    /// Puts the last reply of a request.
    pub(super) fn put_last(&self, request: u32, cost: u64, reply: &StoreReply<'_>) {
        let mut queue = lock(&self.queue);
        queue.spent -= cost;
        queue.requests -= 1;
        if queue.requests == 0 {
            self.state.begin_idleness();
        }
        queue.put(request, cost, reply);
    }

    /// Puts the error of a request as its last reply.
    pub(super) fn put_failed(&self, request: u32, cost: u64, error: &StoreError) {
        let what = error.to_string();
        let is_retryable = error.is_retryable();
        self.put_last(request, cost, &StoreReply::Failed { is_retryable, what: &what });
    }

    /// Writes all replies so far, however long the client makes this wait, and rests for as long as
    /// the rate of the user wants.
    pub(super) fn flush(&self) -> io::Result<()> {
        // The stream is free while the user rests.
        let (_, rest) = {
            let mut stream = lock(&self.stream);
            self.write_with(&mut stream, |stream, bytes| {
                stream.write_all(bytes)?;
                Ok(bytes.len())
            })?
        };
        self.served.rest(rest);
        Ok(())
    }

    /// Writes the replies that the socket takes at once. Returns whether some are left, for a
    /// thread that may wait.
    pub(super) fn flush_ready(&self) -> io::Result<bool> {
        if lock(&self.queue).bytes.len() > UNWRITTEN_BYTES_MAX {
            return self.flush().map(|()| false);
        }
        let mut stream = match self.stream.try_lock() {
            Ok(stream) => stream,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            // The writing thread has taken its bytes already, and may not know of newer replies.
            Err(TryLockError::WouldBlock) => return Ok(true),
        };
        // The thread that reads rests before its next request.
        Ok(self.write_with(&mut stream, SocketWriter::write_ready)?.0)
    }

    /// Writes bytes that are no reply, to a client that speaks another protocol.
    #[cfg(feature = "users")]
    pub(super) fn write_raw(&self, bytes: &[u8]) {
        let _ = lock(&self.stream).write_all(bytes);
    }

    /// Gives back the memory of replies that are written. Returns whether all are.
    pub(super) fn release_memory(&self) -> bool {
        // A thread that holds the stream is writing, and may wait for a client that does not read.
        let Ok(mut stream) = self.stream.try_lock() else { return false };
        let mut queue = lock(&self.queue);
        let is_written = queue.bytes.is_empty() && !stream.has_unsent();
        if is_written {
            queue.bytes = Vec::new();
            stream.release_memory();
        }
        is_written
    }

    /// Ends a sealed stream, so that its client knows that nothing was cut off. Nothing is written
    /// afterwards.
    pub(super) fn end(&self) {
        lock(&self.queue).is_broken = true;
        lock(&self.stream).end();
    }

    /// Takes the replies out of the queue, and writes them by a function that returns how many
    /// bytes it has taken. Returns whether some are left, and how long the user has to rest.
    fn write_with(
        &self,
        stream: &mut SocketWriter,
        write: impl Fn(&mut SocketWriter, &[u8]) -> io::Result<usize>,
    ) -> io::Result<(bool, Duration)> {
        let mut bytes = {
            let mut queue = lock(&self.queue);
            if queue.is_broken {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            std::mem::take(&mut queue.bytes)
        };
        if bytes.is_empty() && !stream.has_unsent() {
            return Ok((false, Duration::ZERO));
        }
        let written = write(stream, &bytes);
        let mut queue = lock(&self.queue);
        match written {
            Ok(written) => {
                self.served.counters.sent_bytes.fetch_add(written as u64, Relaxed);
                bytes.drain(..written);
                // Newer replies follow what is left, in the buffer that has room already.
                bytes.extend_from_slice(&queue.bytes);
                let is_left = !bytes.is_empty() || stream.has_unsent();
                queue.bytes = bytes;
                let rest =
                    self.user.as_ref().map_or(Duration::ZERO, |user| user.charge_bytes(written));
                Ok((is_left, rest))
            }
            Err(error) => {
                queue.is_broken = true;
                queue.bytes.clear();
                // The shutdown also wakes the thread that waits for a request of this client.
                let _ = stream.as_socket().shutdown(Shutdown::Both);
                Err(error)
            }
        }
    }
}

impl ReplyQueue {
    fn put(&mut self, request: u32, grant: u64, reply: &StoreReply<'_>) {
        if !self.is_broken {
            reply.encode(request, grant as u32, &mut self.bytes);
        }
    }
}

#[cfg(test)]
mod tests;
