//! [`Client`]: one connection to a store's server, with many appends under way.

pub(crate) mod subscription;

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::UserKey;
use evenfall_host::whole_file::{KEY_BYTES_MAX, read_secret_up_to};
use evenfall_store_format::Schema;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use self::subscription::PushQueue;
use super::protocol::{
    BODY_BYTES_MAX, FrameHeader, Freshness, HEADER_BYTES, MalformedFrame, StoreReply, StoreRequest,
    frame,
};
use super::source::Each;
use super::wire_socket::{SocketReader, SocketWriter, split_plain};
use super::{
    Entry, FileListing, KnownEnd, RecordSource, StoreAckLevel, StoreError, expect_closed, lock,
};

pub use self::subscription::{FileSubscription, PushedRecords, WINDOW_BYTES};

/// Gathered requests beyond this size are written at once.
const WRITE_BYTES: usize = 64 << 10;
/// Completions that may wait until the caller takes them.
const DONE_MAX: usize = 1 << 20;
/// A server that is silent for this long is gone. A read may have to wait for a slow object store.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A server that does not state its version within this time does not run, because a greeting needs
/// no disk.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// The variable that names the file of the key with which programs connect to stores.
pub const KEY_VARIABLE: &str = "EVENFALL_STORE_KEY";
/// The advice for a server on another machine.
const KEY_ADVICE: &str = "give the key of a user of that store (--key FILE, or the variable \
                          EVENFALL_STORE_KEY), or use 127.0.0.1 and a tunnel";

/// How a client connects.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// A server that is silent for this long is gone.
    pub timeout: Duration,
    /// The key of a user of the server. With it the connection is sealed, and the server may be on
    /// another machine.
    pub key: Option<UserKey>,
    /// How new the records of reads have to be. A server of version 2 answers
    /// [`Freshness::Published`] alone.
    pub freshness: Freshness,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { timeout: TIMEOUT, key: None, freshness: Freshness::Published }
    }
}

impl ConnectOptions {
    /// The options of a client with this key, or without one.
    pub fn with_key(key: Option<UserKey>) -> Self {
        Self { key, ..Self::default() }
    }
}

/// Reads the key of a user, which `evenfall store user` has made.
///
/// # Errors
/// When the file cannot be read, is open to other users, or has no such key.
pub fn read_user_key(path: &Path) -> Result<UserKey, StoreError> {
    let said = |why: String| {
        let what = format!("key {}: {why}", path.display());
        StoreError::Remote { what, is_retryable: false }
    };
    let text = read_secret_up_to(path, KEY_BYTES_MAX).map_err(|error| said(error.to_string()))?;
    UserKey::from_text(&text).map_err(|error| said(error.to_string()))
}

/// The key in the file that the variable [`KEY_VARIABLE`] names; `None` without the variable.
///
/// # Errors
/// As [`read_user_key`].
pub fn user_key_from_environment() -> Result<Option<UserKey>, StoreError> {
    let file = std::env::var_os(KEY_VARIABLE).filter(|file| !file.is_empty());
    file.map(|file| read_user_key(Path::new(&file))).transpose()
}

/// A file that is open on a connection.
#[derive(Clone, Debug)]
pub struct RemoteFile {
    number: u32,
    /// Records that the file had when it was opened.
    pub numbers: Range<u64>,
    /// Meaning of the records.
    pub schema: Schema,
    /// Whether the server has answered with the published records of another node's file, which may
    /// have more.
    pub is_published: bool,
}

/// The result of an append.
#[derive(Clone, Debug)]
pub struct AppendCompletion {
    /// The number that [`Client::append`] returned.
    pub request: u32,
    /// Number of the append's first record.
    pub first: Result<u64, StoreError>,
}

/// A connection. Appends are sent in batches, and [`flush`](Self::flush) sends the waiting appends.
pub struct Client {
    address: SocketAddr,
    reader: SocketReader,
    writer: SocketWriter,
    /// How the client has connected, for further connections to the same server.
    options: ConnectOptions,
    /// How long a reply may take to begin.
    patience: Duration,
    out: Vec<u8>,
    input: Vec<u8>,
    /// The part of `input` that has been received and not read yet.
    came: Range<usize>,
    credit: u64,
    credit_max: u64,
    requests_max: u32,
    waiting: u32,
    next: u32,
    done: VecDeque<AppendCompletion>,
    /// Subscriptions by the number of their request, with what the caller has not taken yet.
    pushed: BTreeMap<u32, PushQueue>,
    /// Subscriptions whose last reply is still to come. They are counted in `waiting` too.
    subscribed: u32,
}

/// The number of the request after this one. The numbers begin anew after four billion requests,
/// and pass over those of subscriptions, which may be under way for as long as that.
fn next_number<T>(last: u32, subscriptions: &BTreeMap<u32, T>) -> u32 {
    let mut next = last.wrapping_add(1);
    while subscriptions.contains_key(&next) {
        next = next.wrapping_add(1);
    }
    next
}

fn broken(what: impl std::fmt::Display) -> StoreError {
    StoreError::Remote { what: format!("connection to the store: {what}"), is_retryable: false }
}

impl From<MalformedFrame> for StoreError {
    fn from(error: MalformedFrame) -> Self {
        broken(error)
    }
}

impl Client {
    /// Connects without a key to a server on this machine, and agrees on the version.
    ///
    /// # Errors
    /// [`StoreError::Remote`] with the error of the connection or of the server. All methods have
    /// this error.
    pub fn connect(address: SocketAddr) -> Result<Self, StoreError> {
        Self::connect_with(address, &ConnectOptions::default())
    }

    /// Connects with a key, or with another limit for a silent server.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with(address: SocketAddr, options: &ConnectOptions) -> Result<Self, StoreError> {
        let said = |error| broken(format!("{address}: {error}"));
        expect_closed("store server", address, options.key.is_some(), KEY_ADVICE)
            .map_err(broken)?;
        let timeout = options.timeout;
        // A running server answers at once. Only its disk and its objects may take longer.
        let patience = timeout.min(GREETING_TIMEOUT);
        let stream = TcpStream::connect_timeout(&address, patience).map_err(|error| {
            broken(format!("{address}: {error}; is `evenfall store serve` running there?"))
        })?;
        stream.set_nodelay(true).map_err(said)?;
        stream.set_write_timeout(Some(timeout)).map_err(said)?;
        let (reader, writer) = match &options.key {
            Some(key) => seal_connection(stream, address, key, patience)?,
            None => split_plain(stream),
        };
        reader.as_socket().set_read_timeout(Some(patience)).map_err(said)?;
        let mut client = Self {
            address,
            reader,
            writer,
            options: options.clone(),
            patience,
            out: Vec::new(),
            input: vec![0; HEADER_BYTES + BODY_BYTES_MAX],
            came: 0..0,
            credit: 1 << 10,
            credit_max: 0,
            requests_max: 1,
            waiting: 0,
            next: 0,
            done: VecDeque::new(),
            pushed: BTreeMap::new(),
            subscribed: 0,
        };
        client.credit_max = client.credit;
        let hello = StoreRequest::Hello { version: options.freshness.version() };
        client.requests_max = client.call(&hello, |reply| match reply {
            StoreReply::Hello { requests_max, .. } => Some(requests_max.max(1)),
            _ => None,
        })?;
        client.credit_max = client.credit;
        client.reader.as_socket().set_read_timeout(Some(timeout)).map_err(said)?;
        client.patience = timeout;
        Ok(client)
    }

    /// Creates the file, or opens the existing file with the same schema.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn create(&mut self, name: &str, schema: &Schema) -> Result<RemoteFile, StoreError> {
        self.open_with(name, Some(schema.clone()))
    }

    /// Opens a file. After a failed append the file must be opened again, which shows the records
    /// that were taken.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn open(&mut self, name: &str) -> Result<RemoteFile, StoreError> {
        self.open_with(name, None)
    }

    fn open_with(&mut self, name: &str, schema: Option<Schema>) -> Result<RemoteFile, StoreError> {
        self.call(&StoreRequest::Open { name, schema }, |reply| match reply {
            StoreReply::Opened { file: number, numbers, schema, is_published } => {
                Some(RemoteFile { number, numbers, schema, is_published })
            }
            _ => None,
        })
    }

    /// Begins an append of whole records, one mebibyte at most. The call waits while the server
    /// grants no credit. The call returns the number of the request, which completes later.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn append(
        &mut self,
        file: &RemoteFile,
        records: &[u8],
        level: StoreAckLevel,
    ) -> Result<u32, StoreError> {
        if records.len() > BODY_BYTES_MAX {
            return Err(broken(format!("an append of more than {BODY_BYTES_MAX} bytes: split it")));
        }
        self.send(&StoreRequest::Append { file: file.number, level, records }, records.len())
    }

    /// Asks a second node to copy the file of this entry. Returns the copy as it is, and the second
    /// node's number in a cluster, or zero.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn follow(&mut self, name: &str, entry: &Entry) -> Result<(RemoteFile, u32), StoreError> {
        let schema = entry.schema.clone();
        self.call(&StoreRequest::Follow { name, entry: entry.clone() }, |reply| match reply {
            StoreReply::Followed { file: number, numbers, node } => {
                let (schema, is_published) = (schema.clone(), false);
                Some((RemoteFile { number, numbers, schema, is_published }, node))
            }
            _ => None,
        })
    }

    /// Begins to copy records to a second node, from record `first` on. The request completes when
    /// the records are synced in that node's journal.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn copy(
        &mut self,
        file: &RemoteFile,
        first: u64,
        records: &[u8],
    ) -> Result<u32, StoreError> {
        let request = StoreRequest::Copy { file: file.number, first, records };
        self.send(&request, 8 + records.len())
    }

    /// Checks that the server answers.
    ///
    /// # Errors
    /// [`StoreError::Remote`] when it does not.
    pub fn check(&mut self) -> Result<(), StoreError> {
        // No name sorts after this one, so the list is empty.
        let request = StoreRequest::List { after: "\u{10ffff}" };
        self.call(&request, |reply| matches!(reply, StoreReply::Listed { .. }).then_some(()))
    }

    /// Sends the waiting requests.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn flush(&mut self) -> Result<(), StoreError> {
        if self.out.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.writer.write_all(&self.out) {
            // A part of the bytes may have left, so no later write may follow. What the server has
            // sent can still be read.
            let _ = self.writer.as_socket().shutdown(Shutdown::Write);
            return Err(broken(error));
        }
        self.out.clear();
        Ok(())
    }

    /// An append that has completed. The call does not wait.
    pub fn completed(&mut self) -> Option<AppendCompletion> {
        self.done.pop_front()
    }

    /// The next append that completes; `None` when none is under way.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn completion(&mut self) -> Result<Option<AppendCompletion>, StoreError> {
        self.flush()?;
        while self.done.is_empty() && self.has_requests() {
            self.receive(None, &mut |_| None::<()>)?;
        }
        Ok(self.done.pop_front())
    }

    /// The next append that completes before `end`; `None` when none does. Returns at once when no
    /// append is under way.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn completion_until(
        &mut self,
        end: Instant,
    ) -> Result<Option<AppendCompletion>, StoreError> {
        self.flush()?;
        while self.done.is_empty() && self.has_requests() {
            let is_there = frame(&self.input[self.came.clone()])?.is_some();
            if !is_there && !self.comes_until(end)? {
                return Ok(None);
            }
            self.receive(None, &mut |_| None::<()>)?;
        }
        Ok(self.done.pop_front())
    }

    /// Whether a request is under way that ends by itself. A subscription does not.
    fn has_requests(&self) -> bool {
        self.waiting > self.subscribed
    }

    /// Whether bytes arrive before `end`, or are there.
    fn comes_until(&self, end: Instant) -> Result<bool, StoreError> {
        if self.reader.is_ready() {
            return Ok(true);
        }
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(broken)?;
            match poll(&mut [PollFd::new(self.reader.as_socket(), PollFlags::IN)], Some(&left)) {
                Err(Errno::INTR) => {}
                ready => return Ok(ready.map_err(broken)? > 0),
            }
        }
    }

    /// The record of this number.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn record(&mut self, file: &RemoteFile, number: u64) -> Result<Vec<u8>, StoreError> {
        Ok(self.records(&StoreRequest::Record { file: file.number, number })?.1)
    }

    /// Number and bytes of the latest record at or before this time.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn latest(
        &mut self,
        file: &RemoteFile,
        time_ns: i64,
    ) -> Result<(u64, Vec<u8>), StoreError> {
        let (numbers, bytes) =
            self.records(&StoreRequest::Latest { file: file.number, time_ns })?;
        Ok((numbers.start, bytes))
    }

    /// Numbers and bytes of the records from one time to another, both included.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn between(
        &mut self,
        file: &RemoteFile,
        from_ns: i64,
        to_ns: i64,
    ) -> Result<(Range<u64>, Vec<u8>), StoreError> {
        self.records(&StoreRequest::Between { file: file.number, from_ns, to_ns })
    }

    /// The numbers of the records from one time to another, both included.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn find(
        &mut self,
        file: &RemoteFile,
        from_ns: i64,
        to_ns: i64,
    ) -> Result<Range<u64>, StoreError> {
        Ok(self.records(&StoreRequest::Find { file: file.number, from_ns, to_ns })?.0)
    }

    /// The records of these numbers.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn numbers(
        &mut self,
        file: &RemoteFile,
        numbers: Range<u64>,
    ) -> Result<Vec<u8>, StoreError> {
        Ok(self.records(&StoreRequest::Numbers { file: file.number, numbers })?.1)
    }

    /// The records of these numbers, in the parts in which the server sends them.
    ///
    /// # Errors
    /// [`StoreError::Remote`], and the error of `each` after the server has sent all parts.
    pub fn read(
        &mut self,
        file: &RemoteFile,
        numbers: Range<u64>,
        each: &mut Each<'_>,
    ) -> Result<(), StoreError> {
        let mut failed = None;
        self.call(&StoreRequest::Numbers { file: file.number, numbers }, |reply| match reply {
            StoreReply::Records { bytes } => {
                if failed.is_none() {
                    failed = each(Bytes::copy_from_slice(bytes)).err();
                }
                None
            }
            StoreReply::Numbers { .. } => Some(()),
            _ => None,
        })?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// The numbers of the records in the file.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn size(&mut self, file: &RemoteFile) -> Result<Range<u64>, StoreError> {
        Ok(self.records(&StoreRequest::Size { file: file.number })?.0)
    }

    /// Every file, in order of names.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn list(&mut self) -> Result<Vec<FileListing>, StoreError> {
        let mut all: Vec<FileListing> = Vec::new();
        loop {
            let after = all.last().map(|file| file.name.clone()).unwrap_or_default();
            let part = self.call(&StoreRequest::List { after: &after }, |reply| match reply {
                StoreReply::Listed { files } => Some(files),
                _ => None,
            })?;
            if part.is_empty() {
                return Ok(all);
            }
            all.extend(part);
        }
    }

    fn records(&mut self, request: &StoreRequest<'_>) -> Result<(Range<u64>, Vec<u8>), StoreError> {
        let mut all = Vec::new();
        let numbers = self.call(request, |reply| match reply {
            StoreReply::Records { bytes } => {
                all.extend_from_slice(bytes);
                None
            }
            StoreReply::Numbers { numbers } => Some(numbers),
            _ => None,
        })?;
        Ok((numbers, all))
    }

    /// Sends a request and gives its replies to `take` until that has its result.
    fn call<T>(
        &mut self,
        request: &StoreRequest<'_>,
        mut take: impl FnMut(StoreReply<'_>) -> Option<T>,
    ) -> Result<T, StoreError> {
        let number = self.send(request, 4_096)?;
        self.flush()?;
        loop {
            if let Some(taken) = self.receive(Some(number), &mut take)? {
                return Ok(taken);
            }
        }
    }

    /// Queues a request for sending, once there is credit for about this many bytes.
    fn send(&mut self, request: &StoreRequest<'_>, bytes: usize) -> Result<u32, StoreError> {
        let cost = (HEADER_BYTES + bytes) as u64;
        if self.credit < cost.min(self.credit_max) || self.waiting >= self.requests_max {
            // Requests wait for half of the credit, so that they are sent in batches.
            let (enough, few) = (cost.max(self.credit_max / 2), self.requests_max / 2);
            self.flush()?;
            while self.has_requests() && (self.credit < enough || self.waiting > few) {
                self.receive(None, &mut |_| None::<()>)?;
            }
        }
        let start = self.out.len();
        self.next = next_number(self.next, &self.pushed);
        request.encode_fresh(self.next, self.options.freshness, &mut self.out);
        let cost = (self.out.len() - start) as u64;
        let fits = cost <= (HEADER_BYTES + BODY_BYTES_MAX) as u64;
        let Some(left) = self.credit.checked_sub(cost).filter(|_| fits) else {
            // No byte of the request is sent, so the connection is unchanged.
            self.out.truncate(start);
            return Err(broken(format!("a request of {cost} bytes is over the limit or credit")));
        };
        self.credit = left;
        self.waiting += 1;
        if self.out.len() >= WRITE_BYTES {
            self.flush()?;
        }
        Ok(self.next)
    }

    /// The next whole frame.
    fn frame(&mut self) -> Result<(FrameHeader, Range<usize>), StoreError> {
        loop {
            if let Some((header, body)) = frame(&self.input[self.came.clone()])? {
                let start = self.came.start + HEADER_BYTES;
                let end = start + body.len();
                self.came.start = end;
                return Ok((header, start..end));
            }
            self.input.copy_within(self.came.clone(), 0);
            self.came = 0..self.came.len();
            let read = self.reader.read(&mut self.input[self.came.end..]);
            if read.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted) {
                // A signal ends the wait of a socket that has a timeout.
                continue;
            }
            let read = read.map_err(|error| match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    broken(format!("the server has not answered within {:?}", self.patience))
                }
                _ => broken(error),
            })?;
            if read == 0 {
                return Err(broken("the server closed it"));
            }
            self.came.end += read;
        }
    }

    /// Whether the server still holds the connection, of which nothing may be under way.
    pub(crate) fn is_open(&self) -> bool {
        let mut fds = [PollFd::new(self.reader.as_socket(), PollFlags::IN | PollFlags::RDHUP)];
        // A server that was asked for nothing sends nothing, so whatever can be read is the end.
        !self.reader.is_ready()
            && poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }

    /// Receives one reply. A reply to `number` goes to `take`, and other replies complete appends.
    fn receive<T>(
        &mut self,
        number: Option<u32>,
        take: &mut dyn FnMut(StoreReply<'_>) -> Option<T>,
    ) -> Result<Option<T>, StoreError> {
        let (header, body) = self.frame()?;
        let reply = StoreReply::decode(&header, &self.input[body])?;
        self.credit += u64::from(header.extra);
        let is_last = reply.is_last();
        let less = u32::from(is_last);
        self.waiting =
            self.waiting.checked_sub(less).ok_or_else(|| broken("a reply to nothing"))?;
        if let Some(queue) = self.pushed.get_mut(&header.request) {
            self.subscribed -= u32::from(queue.receive(reply)?);
            return Ok(None);
        }
        let failed = match reply {
            StoreReply::Failed { is_retryable, what } => {
                Some(StoreError::Remote { what: what.to_owned(), is_retryable })
            }
            _ => None,
        };
        if number == Some(header.request) {
            return match (failed, take(reply)) {
                (Some(error), _) => Err(error),
                (None, None) if is_last => Err(broken("a reply of another kind")),
                (None, taken) => Ok(taken),
            };
        }
        let first = match (failed, reply) {
            (Some(error), _) => Err(error),
            (None, StoreReply::Appended { first }) => Ok(first),
            _ => return Err(broken("a reply to no append")),
        };
        if self.done.len() == DONE_MAX {
            return Err(broken("completions are not taken: call completed"));
        }
        self.done.push_back(AppendCompletion { request: header.request, first });
        Ok(None)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.writer.end();
    }
}

/// Seals a connection under the key of a user.
#[cfg(feature = "sealed")]
fn seal_connection(
    stream: TcpStream,
    address: SocketAddr,
    key: &UserKey,
    patience: Duration,
) -> Result<(SocketReader, SocketWriter), StoreError> {
    use super::wire_socket::handshake::{ConnectionRefused, connect_sealed};
    use evenfall_core::sealed_stream::HandshakeError;
    connect_sealed(stream, key, Instant::now() + patience).map_err(|refused| {
        let name = key.name();
        let why = match &refused {
            ConnectionRefused::Handshake(HandshakeError::WrongKey) => format!(
                "the server does not have this key of the user {name}: the key is another one, \
                 the users file lacks the user, or this is another server"
            ),
            ConnectionRefused::Handshake(HandshakeError::NoKeys) => {
                "the server has no users: start it with --users, or give no key".to_owned()
            }
            ConnectionRefused::Socket(error) => match error.kind() {
                ErrorKind::TimedOut => format!("the server has not answered within {patience:?}"),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
                    "the server closed the connection in the place of an answer to a client with a \
                     key: it is a build without users, or is busy"
                        .to_owned()
                }
                _ => error.to_string(),
            },
            other => other.to_string(),
        };
        broken(format!("{address}: {why}"))
    })
}

#[cfg(not(feature = "sealed"))]
fn seal_connection(
    _: TcpStream,
    _: SocketAddr,
    _: &UserKey,
    _: Duration,
) -> Result<(SocketReader, SocketWriter), StoreError> {
    Err(broken("this build has no sealed connections: build it with the feature `sealed`"))
}

/// The files of a server as a source of records. Each reader under way has a connection of its
/// own, so that readers do not wait for each other.
pub struct RemoteSource {
    address: SocketAddr,
    options: ConnectOptions,
    /// Connections without a request under way.
    idle: Mutex<Vec<Client>>,
}

impl RemoteSource {
    /// A source over this connection. Further readers connect to the same server.
    pub fn new(client: Client) -> Self {
        let (address, options) = (client.address, client.options.clone());
        Self { address, options, idle: Mutex::new(vec![client]) }
    }

    fn ask<T>(
        &self,
        ask: impl FnOnce(&mut Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // The server has closed connections when it restarted, and those that were idle for long.
        let idle = std::iter::from_fn(|| lock(&self.idle).pop()).find(Client::is_open);
        let mut client = match idle {
            Some(client) => client,
            None => Client::connect_with(self.address, &self.options)?,
        };
        // A connection whose request failed may be broken, so the next request connects anew.
        let answer = ask(&mut client)?;
        lock(&self.idle).push(client);
        Ok(answer)
    }
}

impl RecordSource for RemoteSource {
    fn listed(&self) -> Result<Vec<FileListing>, StoreError> {
        self.ask(Client::list)
    }

    fn between(&self, name: &str, from_ns: i64, to_ns: i64) -> Result<Range<u64>, StoreError> {
        self.ask(|client| {
            let file = client.open(name)?;
            client.find(&file, from_ns, to_ns)
        })
    }

    fn read(&self, name: &str, numbers: Range<u64>, each: &mut Each<'_>) -> Result<(), StoreError> {
        self.ask(|client| {
            let file = client.open(name)?;
            client.read(&file, numbers, each)
        })
    }

    fn wait_past(&self, ends: &[KnownEnd], until: Instant) -> Result<bool, StoreError> {
        self.ask(|client| client.wait_past(ends, until))
    }

    fn published_end(&self, name: &str) -> Result<Option<u64>, StoreError> {
        let file = self.ask(|client| client.open(name))?;
        Ok(file.is_published.then_some(file.numbers.end))
    }
}
