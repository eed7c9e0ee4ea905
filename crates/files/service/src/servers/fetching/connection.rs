//! One connection of a reader: a range of a copy, read by a thread of its own.

use std::io::{self, Read as _};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenfall_runtime::address::SourcePorts;

use super::super::client::{FilesClient, accepted, authority, location};
use crate::ServiceError;

/// Bytes that a connection hands over at once.
pub const PIECE_BYTES: usize = 128 << 10;
/// Time between two measurements of a connection. TCP's slow start is over after some round trips,
/// and shorter measurements show how a busy machine shares its processors.
const MEASURE_EVERY: Duration = Duration::from_millis(250);
/// Redirects that a connection follows until a server gives bytes.
const REDIRECTS_MAX: usize = 5;

/// A message of a connection.
pub enum ReadEvent {
    Bytes(Vec<u8>),
    Ended(Result<(), ServiceError>),
}

/// What the reader knows of one of its connections.
pub struct ReadConnection {
    /// The number of this connection. After the reader has left a connection, messages with its
    /// number are ignored.
    pub turn: u64,
    pub copy: usize,
    /// Where the connection stops. Another connection may take the last bytes, which brings the end
    /// nearer.
    end: Arc<AtomicU64>,
    /// The place of the next byte in the file.
    pub at: u64,
    pub moved: u64,
    begun: Instant,
    moved_at: Instant,
    /// Whether the rest of this part is or was read a second time. That happens once at most.
    pub is_hedged: bool,
    /// Bytes a second in the last measurement.
    pub measured: Option<f64>,
    /// When the present measurement began, and the bytes until then.
    since: Option<(Instant, u64)>,
}

impl ReadConnection {
    /// A connection that begins now, and the place where its thread looks for its end.
    pub fn new(turn: u64, copy: usize, range: &Range<u64>) -> (Self, Arc<AtomicU64>) {
        let (now, end) = (Instant::now(), Arc::new(AtomicU64::new(range.end)));
        let connection = Self {
            turn,
            copy,
            end: Arc::clone(&end),
            at: range.start,
            moved: 0,
            begun: now,
            moved_at: now,
            is_hedged: false,
            measured: None,
            since: None,
        };
        (connection, end)
    }

    /// The mean bytes a second since the connection began.
    pub fn mean_rate(&self) -> f64 {
        self.moved as f64 / self.begun.elapsed().as_secs_f64().max(1e-3)
    }

    /// How long nothing has come.
    pub fn silence(&self) -> Duration {
        self.moved_at.elapsed()
    }

    /// Counts bytes that have come.
    pub fn add_bytes(&mut self, len: u64) {
        let now = Instant::now();
        (self.at, self.moved, self.moved_at) = (self.at + len, self.moved + len, now);
        // The first bytes wait for the connection, the request and the disk.
        if self.since.is_none() {
            self.since = Some((now, self.moved));
        }
    }

    /// The rate since the last measurement, when that was long enough ago.
    pub fn measure_rate(&mut self) -> Option<f64> {
        let (since, before) = self.since?;
        let passed = since.elapsed();
        if passed < MEASURE_EVERY {
            return None;
        }
        self.since = Some((Instant::now(), self.moved));
        self.measured = Some((self.moved - before) as f64 / passed.as_secs_f64());
        self.measured
    }

    /// Sets the place in the file at which the connection stops.
    pub fn set_end(&self, end: u64) {
        self.end.store(end, Relaxed);
    }

    /// The reader leaves the connection. Its thread ends when it looks at its end, or when its
    /// server falls silent.
    pub fn stop_reading(&self) {
        self.set_end(0);
    }
}

/// What a connection reads.
pub struct CopyRange {
    /// The copy with its range.
    pub url: String,
    /// The place of the first byte in the file.
    pub at: u64,
    /// The ports from which the connection comes, where a path was chosen.
    pub ports: Option<SourcePorts>,
}

/// Reads from one dataserver until `end`, which may come nearer meanwhile.
pub fn read_range(
    client: &FilesClient,
    request: CopyRange,
    end: &AtomicU64,
    give: &mut dyn FnMut(Vec<u8>) -> bool,
) -> Result<(), ServiceError> {
    let CopyRange { mut url, mut at, ports } = request;
    let mut answer = accepted(client.once_from(ports, &url)?)?;
    for _ in 0..REDIRECTS_MAX {
        if !answer.status.is_redirection() {
            break;
        }
        url = location(&answer)?;
        answer = accepted(client.once_from(ports, &url)?)?;
    }
    let cut = |error: io::Error| ServiceError::cut(authority(&url), error);
    while at < end.load(Relaxed) {
        let mut piece = vec![0; PIECE_BYTES];
        let len = answer.read(&mut piece).map_err(cut)?;
        if len == 0 {
            return Err(cut(io::ErrorKind::UnexpectedEof.into()));
        }
        piece.truncate(len);
        at += len as u64;
        if !give(piece) {
            return Ok(());
        }
    }
    Ok(())
}
