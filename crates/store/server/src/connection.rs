//! One connection: reads its requests in order, and writes replies as they become ready.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::StorageError;
use evenfall_store_format::{FileId, Schema};

use super::{Idle, Served};
use evenfall_store_engine::names::membership::Membership;
use evenfall_store_engine::protocol::{
    BODY_BYTES_MAX, HEADER_BYTES, Header, Malformed, NAME_BYTES_MAX, Reply, Request,
    SCHEMA_BYTES_MAX, VERSION, frame, listed_bytes, schema_bytes,
};
use evenfall_store_engine::{Entry, Level, Listed, Store, StoreError, StoreFile, lock};
use evenfall_store_recording::Catalog;

/// Limit of the bytes of a client's requests without a last reply, about one group commit of a slow
/// disk. The server buffers only one request at a time. A client that wants earlier
/// acknowledgements sends fewer requests at once.
const CREDIT_BYTES: u64 = 64 << 20;
/// Limit of the requests without a last reply. Their short replies fit into the socket, so neither
/// side waits for the other to read.
const REQUESTS_MAX: u64 = 1_024;
/// Files that one connection may have open.
const FILES_MAX: usize = 65_536;
/// Files of one reply to a list.
const LISTED_MAX: usize = 256;
/// First size of the buffer that requests are read into.
const READ_BYTES: usize = 256 << 10;
/// Replies above this are written at once.
const WRITE_BYTES: usize = 256 << 10;
/// How long an append that a stage refused is tried again: a shared disk may take nothing for
/// seconds, and the client waits for credit meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may take to say which protocol it speaks.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take from its hello to its first request.
const SILENT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client that is turned away may take to send its first request. The port accepts no
/// other connection meanwhile.
const TURN_AWAY_TIMEOUT: Duration = Duration::from_millis(50);
/// A client that reads nothing for this long is taken for dead.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a connection ends before its client closes it.
enum Broken {
    Malformed,
    Socket,
    /// The client was silent for too long.
    Silent,
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Socket
    }
}

impl From<Malformed> for Broken {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// Replies that wait to be sent, and the client's used credit. After a failed write it is unknown
/// how many bytes left, and the client would take a later reply for the rest of the failed one.
/// Nothing is therefore written after a failure.
struct Replies {
    served: Arc<Served>,
    stream: TcpStream,
    bytes: Vec<u8>,
    spent: u64,
    requests: u64,
    is_broken: bool,
    idle: Arc<Idle>,
}

impl Replies {
    fn spend(&mut self, cost: u64) -> Result<(), Malformed> {
        self.spent += cost;
        self.requests += 1;
        self.idle.end();
        match self.spent > CREDIT_BYTES || self.requests > REQUESTS_MAX {
            true => Err(Malformed("requests over the credit")),
            false => Ok(()),
        }
    }

    fn last(&mut self, request: u32, cost: u64, reply: &Reply<'_>) {
        self.spent -= cost;
        self.requests -= 1;
        if self.requests == 0 {
            self.idle.begin();
        }
        self.put(request, cost, reply);
    }

    /// Adds a reply to those that the next flush sends.
    fn put(&mut self, request: u32, grant: u64, reply: &Reply<'_>) {
        if !self.is_broken {
            reply.encode(request, grant as u32, &mut self.bytes);
        }
    }

    fn failed(&mut self, request: u32, cost: u64, error: &StoreError) {
        let what = error.to_string();
        let is_retryable = error.is_retryable();
        self.last(request, cost, &Reply::Failed { is_retryable, what: &what });
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.is_broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let written = self.stream.write_all(&self.bytes);
        if written.is_err() {
            self.is_broken = true;
            // The shutdown also wakes the thread that waits for a request of this client.
            let _ = self.stream.shutdown(Shutdown::Both);
        } else {
            self.served.counters.sent_bytes.fetch_add(self.bytes.len() as u64, Relaxed);
        }
        self.bytes.clear();
        written
    }
}

/// An append whose level is not reached yet.
struct Pending {
    request: u32,
    cost: u64,
    file: Arc<StoreFile>,
    first: u64,
    ticket: u64,
    level: Level,
}

struct OpenFile {
    file: Arc<StoreFile>,
    /// For a copy, the token of the primary that feeds the copy on this connection.
    primary: u32,
    /// An append has failed. All later appends fail until the file is opened again.
    is_stopped: bool,
}

pub(super) struct Connection {
    served: Arc<Served>,
    replies: Arc<Mutex<Replies>>,
    files: Vec<OpenFile>,
    numbers: BTreeMap<FileId, u32>,
    pending: Option<(SyncSender<Pending>, JoinHandle<()>)>,
    is_greeted: bool,
}

impl Connection {
    /// Serves a connection until it ends. Returns whether malformed bytes of the client ended it.
    pub(super) fn serve(served: &Arc<Served>, stream: TcpStream, idle: Arc<Idle>) -> bool {
        let Ok(writing) = stream.try_clone() else { return false };
        let _ = stream.set_nodelay(true);
        let _ = stream.set_write_timeout(Some(WRITE_TIMEOUT));
        let _ = stream.set_read_timeout(Some(GREETING_TIMEOUT));
        let replies = Replies {
            served: Arc::clone(served),
            stream: writing,
            bytes: Vec::new(),
            spent: 0,
            requests: 0,
            is_broken: false,
            idle,
        };
        let mut connection = Self {
            served: Arc::clone(served),
            replies: Arc::new(Mutex::new(replies)),
            files: Vec::new(),
            numbers: BTreeMap::new(),
            pending: None,
            is_greeted: false,
        };
        let ended = connection.run(&stream);
        // Running requests are still answered, if the client still reads.
        if let Some((sender, thread)) = connection.pending.take() {
            drop(sender);
            let _ = thread.join();
        }
        let _ = lock(&connection.replies).flush();
        let _ = stream.shutdown(Shutdown::Both);
        if matches!(ended, Err(Broken::Silent)) {
            served.counters.timed_out.fetch_add(1, Relaxed);
        }
        matches!(ended, Err(Broken::Malformed))
    }

    fn run(&mut self, mut stream: &TcpStream) -> Result<(), Broken> {
        let mut buffer = vec![0; READ_BYTES];
        let mut filled = 0;
        let mut has_asked = false;
        let started = Instant::now();
        loop {
            let read = match stream.read(&mut buffer[filled..]) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if is_timeout(&error) => {
                    // The client may be waiting for the disk too.
                    if self.is_greeted && lock(&self.replies).requests > 0 {
                        continue;
                    }
                    return Err(Broken::Silent);
                }
                Err(error) => return Err(error.into()),
            };
            if !self.is_greeted && started.elapsed() > GREETING_TIMEOUT {
                return Err(Broken::Silent);
            }
            filled += read;
            let mut at = 0;
            while let Some((header, body)) = frame(&buffer[at..filled])? {
                lock(&self.replies).spend(header.cost())?;
                let request = Request::decode(&header, body)?;
                let was_greeted = self.is_greeted;
                self.answer(&header, request)?;
                // A client that has never asked for anything is not kept as long as a client that
                // has.
                let timeout = self.served.idle_timeout;
                if self.is_greeted && !was_greeted {
                    stream.set_read_timeout(Some(timeout.min(SILENT_TIMEOUT)))?;
                } else if !has_asked {
                    stream.set_read_timeout(Some(timeout))?;
                    has_asked = true;
                }
                at += HEADER_BYTES + body.len();
            }
            lock(&self.replies).flush()?;
            buffer.copy_within(at..filled, 0);
            filled -= at;
            if filled == buffer.len() {
                buffer.resize(HEADER_BYTES + BODY_BYTES_MAX, 0);
            }
        }
    }

    fn answer(&mut self, header: &Header, request: Request<'_>) -> Result<(), Broken> {
        if let Request::Hello { version } = request {
            return self.greet(header, version);
        }
        if !self.is_greeted {
            return Err(Broken::Malformed);
        }
        if self.served.is_for_readers && is_write(&request) {
            let what = "this server takes no records: it answers readers of a recorder".to_owned();
            let error = StoreError::Remote { what, is_retryable: false };
            lock(&self.replies).failed(header.request, header.cost(), &error);
            return Ok(());
        }
        let done = match request {
            Request::Append { file, level, records } => {
                return self.append(header, file, level, records);
            }
            Request::Copy { file, first, records } => {
                return self.copy(header, file, first, records);
            }
            Request::Follow { name, entry } => self.follow(header, name, &entry),
            Request::Open { name, schema } => self.open(header, name, schema),
            Request::List { after } => self.list(header, after),
            other => self.read(header, &other),
        };
        if let Err(error) = done {
            lock(&self.replies).failed(header.request, header.cost(), &error);
        }
        Ok(())
    }

    fn greet(&mut self, header: &Header, version: u32) -> Result<(), Broken> {
        let mut replies = lock(&self.replies);
        if self.is_greeted || version != VERSION {
            let what =
                format!("hello of version {version}: say hello once, with version {VERSION}");
            let error = StoreError::Remote { what, is_retryable: false };
            replies.failed(header.request, header.cost(), &error);
            return Err(Broken::Malformed);
        }
        self.is_greeted = true;
        replies.spent = 0;
        replies.requests = 0;
        replies.idle.begin();
        let hello = Reply::Hello { version, requests_max: REQUESTS_MAX as u32 };
        replies.put(header.request, CREDIT_BYTES, &hello);
        Ok(())
    }

    fn open(
        &mut self,
        header: &Header,
        name: &str,
        schema: Option<Schema>,
    ) -> Result<(), StoreError> {
        let store = &self.served.store;
        if schema.as_ref().is_some_and(|schema| schema_bytes(schema) > SCHEMA_BYTES_MAX) {
            return Err(too_large(name));
        }
        let file = match schema {
            Some(schema) => {
                if store.file(name).is_err() {
                    Catalog::read(&**store)?.expect_free(name, &schema)?;
                }
                store.create(name, &schema)?
            }
            None => store.file(name)?,
        };
        if schema_bytes(&file.schema) > SCHEMA_BYTES_MAX {
            return Err(too_large(name));
        }
        let number = self.number(&file, 0)?;
        let (numbers, schema) = (file.first()..file.records(), (*file.schema).clone());
        let reply = Reply::Opened { file: number, numbers, schema };
        lock(&self.replies).last(header.request, header.cost(), &reply);
        Ok(())
    }

    /// The number of a file on this connection.
    fn number(&mut self, file: &Arc<StoreFile>, primary: u32) -> Result<u32, StoreError> {
        let number = match self.numbers.get(&file.id) {
            Some(number) => *number,
            None if self.files.len() == FILES_MAX => {
                let what = format!("{FILES_MAX} files are open on this connection: take another");
                return Err(StoreError::Remote { what, is_retryable: false });
            }
            None => self.files.len() as u32,
        };
        self.numbers.insert(file.id, number);
        let opened = OpenFile { file: Arc::clone(file), primary, is_stopped: false };
        match self.files.get_mut(number as usize) {
            Some(known) => *known = opened,
            None => self.files.push(opened),
        }
        Ok(number)
    }

    fn follow(&mut self, header: &Header, name: &str, entry: &Entry) -> Result<(), StoreError> {
        let file = self.served.store.follow(name, entry)?;
        let number = self.number(&file, entry.token)?;
        let node = self.served.store.member().map_or(0, Membership::node);
        // Records that are not synced here do not count as copied, so the primary sends them again.
        let numbers = 0..file.durable.load(Relaxed);
        let reply = Reply::Followed { file: number, numbers, node };
        lock(&self.replies).last(header.request, header.cost(), &reply);
        Ok(())
    }

    fn append(
        &mut self,
        header: &Header,
        file: u32,
        level: Level,
        records: &[u8],
    ) -> Result<(), Broken> {
        let begun = self.begin(file, |store, open| store.append_begin(&open.file, records, level));
        self.taken(header, file, level, begun)
    }

    fn copy(
        &mut self,
        header: &Header,
        file: u32,
        first: u64,
        records: &[u8],
    ) -> Result<(), Broken> {
        let begun = self.begin(file, |store, open| {
            let copied = store.copy_begin(&open.file, open.primary, first, records);
            copied.map(|(numbers, ticket)| (numbers.start, ticket))
        });
        self.taken(header, file, Level::Local, begun)
    }

    /// Answers an append that has begun, or sees to it that it is answered.
    fn taken(
        &mut self,
        header: &Header,
        file: u32,
        level: Level,
        begun: Result<(u64, u64), StoreError>,
    ) -> Result<(), Broken> {
        let (request, cost) = (header.request, header.cost());
        match begun {
            Ok((first, _)) if level.waits().is_empty() => {
                lock(&self.replies).last(request, cost, &Reply::Appended { first });
                Ok(())
            }
            Ok((first, ticket)) => {
                let file = Arc::clone(&self.files[file as usize].file);
                let pending = Pending { request, cost, file, first, ticket, level };
                self.pending()?.send(pending).map_err(|_| Broken::Socket)
            }
            Err(error) => {
                self.served.counters.failed_appends.fetch_add(1, Relaxed);
                lock(&self.replies).failed(request, cost, &error);
                Ok(())
            }
        }
    }

    fn begin(
        &mut self,
        number: u32,
        begin: impl Fn(&Store, &OpenFile) -> Result<(u64, u64), StoreError>,
    ) -> Result<(u64, u64), StoreError> {
        let known = self.files.get_mut(number as usize).ok_or_else(|| unopened(number))?;
        if known.is_stopped {
            let what = format!("an append to {} failed: open it again", known.file.name);
            return Err(StoreError::Remote { what, is_retryable: false });
        }
        let started = Instant::now();
        loop {
            let begun = begin(&self.served.store, known);
            // Without the second node other levels go on, and wait for nobody.
            let is_retryable = begun.as_ref().is_err_and(|error| {
                error.is_retryable() && !matches!(error, StoreError::Replica { .. })
            });
            let is_stopping = self.served.is_stopping.load(Relaxed);
            if is_retryable && started.elapsed() < PATIENCE && !is_stopping {
                let _ = lock(&self.replies).flush();
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            known.is_stopped = begun.is_err();
            return begun;
        }
    }

    /// The way to the thread that waits for commits; it starts with the first append that needs it.
    fn pending(&mut self) -> Result<&SyncSender<Pending>, Broken> {
        if self.pending.is_none() {
            let (sender, receiver) = sync_channel(REQUESTS_MAX as usize);
            let (served, replies) = (Arc::clone(&self.served), Arc::clone(&self.replies));
            let thread = std::thread::Builder::new().name("store-acknowledge".into());
            let run = move || acknowledge(&served, &replies, &receiver);
            self.pending = Some((sender, thread.spawn(run)?));
        }
        self.pending.as_ref().map(|(sender, _)| sender).ok_or(Broken::Socket)
    }

    fn list(&self, header: &Header, after: &str) -> Result<(), StoreError> {
        let files = self.served.store.files();
        let behind = files.iter().filter(|file| file.name.as_str() > after);
        let mut listed = Vec::new();
        let mut bytes = 0;
        for file in behind.take(LISTED_MAX) {
            let (name, schema) = (file.name.clone(), (*file.schema).clone());
            let one = Listed { name, schema, records: file.records() };
            if one.name.len() > NAME_BYTES_MAX || schema_bytes(&one.schema) > SCHEMA_BYTES_MAX {
                return Err(too_large(&one.name));
            }
            bytes += listed_bytes(&one);
            if bytes > BODY_BYTES_MAX {
                break;
            }
            listed.push(one);
        }
        let reply = Reply::Listed { files: listed };
        lock(&self.replies).last(header.request, header.cost(), &reply);
        Ok(())
    }

    fn read(&self, header: &Header, request: &Request<'_>) -> Result<(), StoreError> {
        let store = &self.served.store;
        let file = &self.files.get(header.extra as usize);
        let file = &file.ok_or_else(|| unopened(header.extra))?.file;
        let mut each = |part: Bytes| self.send(header.request, &part);
        let one = |(number, record): (u64, Bytes)| -> evenfall_store_format::Result<_> {
            self.send(header.request, &record)?;
            Ok(number..number + 1)
        };
        let numbers = match request {
            Request::Record { number, .. } => one((*number, store.record(file, *number)?))?,
            Request::Latest { time_ns, .. } => one(store.record_at(file, *time_ns)?)?,
            Request::Between { from_ns, to_ns, .. } => {
                store.read(file, *from_ns, *to_ns, &mut each)?
            }
            Request::Find { from_ns, to_ns, .. } => store.find(file, *from_ns, *to_ns)?,
            Request::Numbers { numbers, .. } => {
                store.read_numbers(file, numbers.clone(), &mut each)?;
                numbers.clone()
            }
            _ => file.first()..file.records(),
        };
        let reply = Reply::Numbers { numbers };
        lock(&self.replies).last(header.request, header.cost(), &reply);
        Ok(())
    }

    fn send(&self, request: u32, bytes: &[u8]) -> evenfall_store_format::Result<()> {
        let mut replies = lock(&self.replies);
        replies.put(request, 0, &Reply::Records { bytes });
        if !replies.is_broken && replies.bytes.len() < WRITE_BYTES {
            return Ok(());
        }
        let gone = |error: io::Error| StorageError::Failed {
            name: "connection".into(),
            what: error.to_string(),
        };
        Ok(replies.flush().map_err(gone)?)
    }
}

/// Whether a request changes the store.
fn is_write(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Append { .. }
            | Request::Copy { .. }
            | Request::Follow { .. }
            | Request::Open { schema: Some(_), .. }
    )
}

/// Sends a client the reason for which it is not served.
pub(super) fn turn_away(mut stream: TcpStream, connections: usize) {
    let _ = stream.set_read_timeout(Some(TURN_AWAY_TIMEOUT));
    let _ = stream.set_write_timeout(Some(TURN_AWAY_TIMEOUT));
    // Closing a socket with unread bytes would discard the answer, so the request is read first.
    let mut asked = [0; 256];
    let read = stream.read(&mut asked).unwrap_or(0);
    let Ok(Some((header, _))) = frame(&asked[..read]) else { return };
    let what = format!("{connections} connections have requests under way here: try later");
    let mut reply = Vec::new();
    Reply::Failed { is_retryable: true, what: &what }.encode(header.request, 0, &mut reply);
    let _ = stream.write_all(&reply);
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn too_large(name: &str) -> StoreError {
    let name: String = name.chars().take(64).collect();
    let what = format!(
        "name or schema of {name} is over the limits of a frame ({NAME_BYTES_MAX} and \
         {SCHEMA_BYTES_MAX} bytes): use the store where it is"
    );
    StoreError::Remote { what, is_retryable: false }
}

fn unopened(number: u32) -> StoreError {
    let what = format!("file {number} is not open on this connection");
    StoreError::Remote { what, is_retryable: false }
}

/// Answers appends in order as their commits are done.
fn acknowledge(served: &Served, replies: &Mutex<Replies>, receiver: &Receiver<Pending>) {
    loop {
        let pending = match receiver.try_recv() {
            Ok(pending) => pending,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                let _ = lock(replies).flush();
                let Ok(pending) = receiver.recv() else { return };
                pending
            }
        };
        if !served.store.is_reached(pending.ticket, pending.level) {
            let _ = lock(replies).flush();
        }
        let begun = (pending.first, pending.ticket);
        let done = served.store.append_end(&pending.file, begun, pending.level);
        let (request, cost) = (pending.request, pending.cost);
        let mut replies = lock(replies);
        match done {
            Ok(()) => replies.last(request, cost, &Reply::Appended { first: pending.first }),
            Err(error) => replies.failed(request, cost, &error),
        }
    }
}

#[cfg(test)]
mod tests;
