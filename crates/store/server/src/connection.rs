//! One connection: reads its requests in order, and writes replies as they become ready.

mod entrance;
mod pushes;
mod replies;
mod room;

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::StorageError;
use evenfall_store_format::{FileId, Schema};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::pushes::{AwaitedFile, LaterReply, PushTable, PushThread};
use self::replies::ReplyWriter;
pub(crate) use self::room::RoomSeekers;
use super::users::{FileRight, StoreUser, UserSession};
use super::{ConnectionState, Served, connection_thread};
use evenfall_store_engine::names::membership::ClusterMembership;
use evenfall_store_engine::protocol::{
    BODY_BYTES_MAX, FrameHeader, Freshness, HEADER_BYTES, MalformedFrame, NAME_BYTES_MAX,
    SCHEMA_BYTES_MAX, StoreReply, StoreRequest, VERSION, VERSION_MIN, frame, listed_bytes,
    schema_bytes,
};
use evenfall_store_engine::wire_socket::SocketReader;
use evenfall_store_engine::{
    Entry, FileListing, ReadableFile, Store, StoreAckLevel, StoreError, StoreFile, shorten_name,
};
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
/// First size of the buffer that requests are read into. A client that fills it gets a larger one.
const READ_BYTES: usize = 4 << 10;
/// Size to which the buffer grows for a client that fills it with requests.
const READ_BYTES_MAX: usize = 256 << 10;
/// A connection without a request for this long gives back its buffers and its further threads. The
/// next request makes them again, which costs microseconds.
const REST_AFTER: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// The last name of all. A client that only wants an answer asks for the files behind it.
const LAST_NAME: &str = "\u{10ffff}";
/// How long an append that a stage refused is tried again: a shared disk may take nothing for
/// seconds, and the client waits for credit meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may take to say which protocol it speaks.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take from its hello to its first request.
const SILENT_TIMEOUT: Duration = Duration::from_secs(30);
/// A client that reads nothing for this long counts as dead.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a connection ends before its client closes it.
enum Broken {
    Malformed,
    Socket,
    /// The client was silent for too long.
    Silent,
    /// A record of the client does not open.
    Forged,
    /// The server does not serve this user, or not any more. The user was told why.
    Refused,
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Forged,
            _ => Self::Socket,
        }
    }
}

impl From<MalformedFrame> for Broken {
    fn from(_: MalformedFrame) -> Self {
        Self::Malformed
    }
}

/// An append whose level is not reached yet.
struct Pending {
    request: u32,
    cost: u64,
    file: Arc<StoreFile>,
    first: u64,
    ticket: u64,
    level: StoreAckLevel,
}

struct OpenFile {
    file: ReadableFile,
    /// For a copy, the token of the primary that feeds the copy on this connection.
    primary: u32,
    /// An append has failed. All later appends fail until the file is opened again.
    is_stopped: bool,
}

pub(super) use self::entrance::turn_away;

pub(super) struct Connection {
    served: Arc<Served>,
    replies: Arc<ReplyWriter>,
    files: Vec<OpenFile>,
    numbers: BTreeMap<FileId, u32>,
    pending: Option<(Sender<Pending>, JoinHandle<()>)>,
    /// Subscriptions and waits, and their thread, from the first of them on.
    pushes: Option<PushThread>,
    /// The list of files that the client reads part by part.
    listing: Vec<FileListing>,
    is_greeted: bool,
    state: Arc<ConnectionState>,
    /// The user whose key the client has named. The first record that opens proves the key.
    user: Option<Arc<StoreUser>>,
    /// Counts the connection against the limit of its user.
    session: Option<UserSession>,
}

impl Connection {
    /// Serves a connection until it ends. Returns whether malformed bytes of the client ended it.
    pub(super) fn serve(
        served: &Arc<Served>,
        stream: Arc<TcpStream>,
        state: Arc<ConnectionState>,
    ) -> bool {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_write_timeout(Some(WRITE_TIMEOUT));
        let until = Instant::now() + GREETING_TIMEOUT;
        let closing = Arc::clone(&stream);
        let Some(entered) = entrance::enter(served, stream, until) else {
            // The list of connections has the socket too, so that dropping it closes nothing.
            let _ = closing.shutdown(Shutdown::Both);
            return false;
        };
        drop(closing);
        let user = entered.user;
        let writer = ReplyWriter::new(served, entered.writer, Arc::clone(&state), user.clone());
        let mut connection = Self {
            served: Arc::clone(served),
            replies: Arc::new(writer),
            files: Vec::new(),
            numbers: BTreeMap::new(),
            pending: None,
            pushes: None,
            listing: Vec::new(),
            is_greeted: false,
            state,
            user,
            session: None,
        };
        let mut reader = entered.reader;
        let ended = connection.run(&mut reader, until);
        if let Some(pushes) = connection.pushes.take() {
            pushes.end();
        }
        // Running requests are still answered, if the client still reads.
        if let Some((sender, thread)) = connection.pending.take() {
            drop(sender);
            let _ = thread.join();
        }
        let _ = connection.replies.flush();
        connection.replies.end();
        let _ = reader.as_socket().shutdown(Shutdown::Both);
        connection.count_end(&ended)
    }

    /// Counts how the connection ended. Returns whether malformed bytes ended it.
    fn count_end(&self, ended: &Result<(), Broken>) -> bool {
        let counters = &self.served.counters;
        let is_stranger = self.user.is_some() && !self.is_greeted;
        match ended {
            Err(Broken::Silent) => counters.timed_out.fetch_add(1, Relaxed),
            // A client with a wrong key ends by itself, or its first record does not open.
            Ok(()) | Err(Broken::Socket | Broken::Forged) if is_stranger => {
                counters.refused_handshakes.fetch_add(1, Relaxed)
            }
            _ => 0,
        };
        let is_forged = matches!(ended, Err(Broken::Forged)) && !is_stranger;
        is_forged || matches!(ended, Err(Broken::Malformed))
    }

    fn run(&mut self, reader: &mut SocketReader, until: Instant) -> Result<(), Broken> {
        let mut buffer = vec![0; READ_BYTES];
        let mut filled = 0;
        let mut has_asked = false;
        let greeting = until.saturating_duration_since(Instant::now());
        reader.as_socket().set_read_timeout(Some(greeting.max(Duration::from_millis(1))))?;
        loop {
            if self.served.is_stopping.load(Relaxed) {
                return Ok(());
            }
            if filled == 0 && self.is_resting(reader) {
                buffer = vec![0; READ_BYTES];
                self.release_memory();
            }
            let read = match reader.read(&mut buffer[filled..]) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                // A read with a time limit is interrupted when the process goes on after a stop.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if is_timeout(&error) => {
                    // The client may be waiting for the disk too.
                    if self.is_greeted && self.replies.requests() > 0 {
                        continue;
                    }
                    return Err(Broken::Silent);
                }
                Err(error) => return Err(error.into()),
            };
            if !self.is_greeted && Instant::now() > until {
                return Err(Broken::Silent);
            }
            filled += read;
            if let Some(user) = &self.user {
                self.served.rest(user.charge_bytes(read));
            }
            if !self.is_greeted && entrance::refuse_key(self, &buffer[..filled]) {
                return Err(Broken::Malformed);
            }
            let mut at = 0;
            while let Some((header, body)) = frame(&buffer[at..filled])? {
                let request = StoreRequest::decode(&header, body)?;
                if request.has_reply() {
                    self.replies.spend(header.cost())?;
                }
                let was_greeted = self.is_greeted;
                self.answer(&header, request)?;
                // A client that has never asked for anything is not kept as long as a client that
                // has.
                let timeout = self.served.limits.idle_timeout;
                if self.is_greeted && !was_greeted {
                    reader.as_socket().set_read_timeout(Some(timeout.min(SILENT_TIMEOUT)))?;
                } else if !has_asked {
                    reader.as_socket().set_read_timeout(Some(timeout))?;
                    has_asked = true;
                }
                at += HEADER_BYTES + body.len();
            }
            write_replies(&self.replies, self.pushes.as_ref())?;
            let was_full = filled == buffer.len();
            buffer.copy_within(at..filled, 0);
            filled -= at;
            if filled == buffer.len() && filled >= READ_BYTES_MAX {
                buffer.resize(HEADER_BYTES + BODY_BYTES_MAX, 0);
            } else if was_full && buffer.len() < READ_BYTES_MAX {
                buffer.resize((buffer.len() * 4).min(READ_BYTES_MAX), 0);
            }
        }
    }

    /// Whether the client has been silent for a while. Returns at once when bytes are there.
    fn is_resting(&self, reader: &SocketReader) -> bool {
        // The timeout of the socket ends the wait for a stranger, and a short idle time.
        let is_short = self.served.limits.idle_timeout <= Duration::from_secs(1);
        if !self.is_greeted || is_short || reader.is_ready() {
            return false;
        }
        poll(&mut [PollFd::new(reader.as_socket(), PollFlags::IN)], Some(&REST_AFTER)) == Ok(0)
    }

    /// Gives back what a connection without requests does not need.
    fn release_memory(&mut self) {
        // A thread that still writes would have to be waited for.
        if self.replies.requests() > 0 || !self.replies.release_memory() {
            return;
        }
        self.listing = Vec::new();
        if let Some((sender, thread)) = self.pending.take() {
            drop(sender);
            let _ = thread.join();
        }
        if self.pushes.as_ref().is_some_and(|pushes| pushes.table.is_idle())
            && let Some(pushes) = self.pushes.take()
        {
            pushes.end();
        }
    }

    fn answer(&mut self, header: &FrameHeader, request: StoreRequest<'_>) -> Result<(), Broken> {
        if let StoreRequest::Hello { version } = request {
            return self.greet(header, version);
        }
        if !self.is_greeted {
            return Err(Broken::Malformed);
        }
        if self.served.is_for_readers && is_write(&request) {
            let what = "this server takes no records: it answers readers of a recorder".to_owned();
            let error = StoreError::Remote { what, is_retryable: false };
            self.replies.put_failed(header.request, header.cost(), &error);
            return Ok(());
        }
        if let Err(error) = self.check_right(&request) {
            self.served.counters.refused_rights.fetch_add(1, Relaxed);
            self.replies.put_failed(header.request, header.cost(), &error);
            return Ok(());
        }
        let done = match request {
            StoreRequest::Append { file, level, records } => {
                return self.append(header, file, level, records);
            }
            StoreRequest::Copy { file, first, records } => {
                return self.copy(header, file, first, records);
            }
            StoreRequest::Grant { credit } => {
                self.pushes
                    .iter()
                    .for_each(|pushes| pushes.table.add_credit(header.request, credit));
                return Ok(());
            }
            StoreRequest::Unsubscribe => {
                self.pushes.iter().for_each(|pushes| pushes.table.end_subscription(header.request));
                return Ok(());
            }
            StoreRequest::Subscribe { file, first, credit } => {
                let later = LaterReply { request: header.request, cost: header.cost() };
                match self.own_file(file) {
                    Ok(file) => self.push_table()?.begin_subscription(later, &file, first, credit),
                    Err(error) => Err(error),
                }
            }
            StoreRequest::Wait { time_ms, ends } => {
                let later = LaterReply { request: header.request, cost: header.cost() };
                let time = Duration::from_millis(time_ms.into());
                // The names are looked up before the thread starts, and before its readers are
                // locked: another node's file takes a question to the directory of names.
                match AwaitedFile::find_all(&self.served.store, &ends, header.read_freshness()) {
                    Ok(files) => self.push_table()?.begin_wait(later, files, time),
                    Err(error) => Err(error),
                }
            }
            StoreRequest::Follow { name, entry } => self.follow(header, name, &entry),
            StoreRequest::Open { name, schema } => self.open(header, name, schema),
            StoreRequest::List { after } => self.list(header, after),
            other => self.read(header, &other),
        };
        if let Err(error) = done {
            self.replies.put_failed(header.request, header.cost(), &error);
        }
        Ok(())
    }

    fn push_table(&mut self) -> io::Result<&PushTable> {
        let pushes = match self.pushes.take() {
            Some(pushes) => pushes,
            None => PushThread::start(&self.served, &self.replies)?,
        };
        Ok(&self.pushes.insert(pushes).table)
    }

    fn greet(&mut self, header: &FrameHeader, version: u32) -> Result<(), Broken> {
        if self.is_greeted || !(VERSION_MIN..=VERSION).contains(&version) {
            let what = format!(
                "hello of version {version}: say hello once, with a version from {VERSION_MIN} to \
                 {VERSION}"
            );
            let error = StoreError::Remote { what, is_retryable: false };
            self.replies.put_failed(header.request, header.cost(), &error);
            return Err(Broken::Malformed);
        }
        if let Some(user) = self.user.clone() {
            match self.served.admit(&user, &self.state) {
                Ok(session) => self.session = Some(session),
                Err(error) => {
                    self.replies.put_failed(header.request, header.cost(), &error);
                    self.is_greeted = true;
                    return Err(Broken::Refused);
                }
            }
        }
        self.is_greeted = true;
        self.replies.reset_credit();
        let hello = StoreReply::Hello { version, requests_max: REQUESTS_MAX as u32 };
        self.replies.put(header.request, CREDIT_BYTES, &hello);
        Ok(())
    }

    fn open(
        &mut self,
        header: &FrameHeader,
        name: &str,
        schema: Option<Schema>,
    ) -> Result<(), StoreError> {
        let store = &self.served.store;
        let freshness = header.read_freshness();
        if schema.as_ref().is_some_and(|schema| schema_bytes(schema) > SCHEMA_BYTES_MAX) {
            return Err(too_large(name));
        }
        let file = match schema {
            Some(schema) => {
                if store.file(name).is_err() {
                    self.expect_may_create(name)?;
                    Catalog::read(&**store)?.expect_free(name, &schema)?;
                }
                ReadableFile::Ours(store.create(name, &schema)?)
            }
            None => store.readable_file(name)?,
        };
        if schema_bytes(file.schema()) > SCHEMA_BYTES_MAX {
            return Err(too_large(name));
        }
        let (numbers, is_published) = {
            let reader = store.reader_of(&file, freshness)?;
            (reader.numbers()?, reader.is_published())
        };
        let schema = (**file.schema()).clone();
        let number = self.number(file, 0)?;
        let reply = StoreReply::Opened { file: number, numbers, schema, is_published };
        self.replies.put_last(header.request, header.cost(), &reply);
        Ok(())
    }

    /// The number of a file on this connection.
    fn number(&mut self, file: ReadableFile, primary: u32) -> Result<u32, StoreError> {
        let id = file.id();
        let number = match self.numbers.get(&id) {
            Some(number) => *number,
            None if self.files.len() == FILES_MAX => {
                let what = format!("{FILES_MAX} files are open on this connection: take another");
                return Err(StoreError::Remote { what, is_retryable: false });
            }
            None => self.files.len() as u32,
        };
        self.numbers.insert(id, number);
        let opened = OpenFile { file, primary, is_stopped: false };
        match self.files.get_mut(number as usize) {
            Some(known) => *known = opened,
            None => self.files.push(opened),
        }
        Ok(number)
    }

    /// The file of this number, of which this node takes appends or gives subscriptions. The error
    /// for another node's file names its primary.
    fn own_file(&self, number: u32) -> Result<Arc<StoreFile>, StoreError> {
        let open = self.files.get(number as usize).ok_or_else(|| unopened(number))?;
        own_file(&self.served.store, &open.file)
    }

    fn follow(
        &mut self,
        header: &FrameHeader,
        name: &str,
        entry: &Entry,
    ) -> Result<(), StoreError> {
        let file = self.served.store.follow(name, entry)?;
        let number = self.number(ReadableFile::Ours(Arc::clone(&file)), entry.token)?;
        let node = self.served.store.member().map_or(0, ClusterMembership::node);
        // Records that are not synced here do not count as copied, so the primary sends them again.
        let numbers = 0..file.durable.load(Relaxed);
        let reply = StoreReply::Followed { file: number, numbers, node };
        self.replies.put_last(header.request, header.cost(), &reply);
        Ok(())
    }

    fn append(
        &mut self,
        header: &FrameHeader,
        file: u32,
        level: StoreAckLevel,
        records: &[u8],
    ) -> Result<(), Broken> {
        let begun = self.begin(file, |store, open| {
            let file = own_file(store, &open.file)?;
            store.append_begin(&file, records, level)
        });
        self.taken(header, file, level, begun)
    }

    fn copy(
        &mut self,
        header: &FrameHeader,
        file: u32,
        first: u64,
        records: &[u8],
    ) -> Result<(), Broken> {
        let begun = self.begin(file, |store, open| {
            let copy = own_file(store, &open.file)?;
            let copied = store.copy_begin(&copy, open.primary, first, records);
            copied.map(|(numbers, ticket)| (numbers.start, ticket))
        });
        self.taken(header, file, StoreAckLevel::Local, begun)
    }

    /// Answers an append, or hands it to the thread that waits for its commit.
    fn taken(
        &mut self,
        header: &FrameHeader,
        file: u32,
        level: StoreAckLevel,
        begun: Result<(u64, u64), StoreError>,
    ) -> Result<(), Broken> {
        let (request, cost) = (header.request, header.cost());
        match begun {
            Ok((first, _)) if level.waits().is_empty() => {
                self.replies.put_last(request, cost, &StoreReply::Appended { first });
                Ok(())
            }
            Ok((first, ticket)) => {
                let Ok(file) = self.own_file(file) else { return Err(Broken::Socket) };
                let pending = Pending { request, cost, file, first, ticket, level };
                self.pending()?.send(pending).map_err(|_| Broken::Socket)
            }
            Err(error) => {
                self.served.counters.failed_appends.fetch_add(1, Relaxed);
                self.replies.put_failed(request, cost, &error);
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
            let what = format!("an append to {} failed: open it again", known.file.name());
            return Err(StoreError::Remote { what, is_retryable: false });
        }
        let (started, mut waiter) = (Instant::now(), None);
        loop {
            let begun = begin(&self.served.store, known);
            // Without the second node other levels go on, and wait for nobody.
            let is_retryable = begun.as_ref().is_err_and(|error| {
                error.is_retryable() && !matches!(error, StoreError::Replica { .. })
            });
            let is_stopping = self.served.is_stopping.load(Relaxed);
            if is_retryable && started.elapsed() < PATIENCE && !is_stopping {
                let _ = write_replies(&self.replies, self.pushes.as_ref());
                let waiter = waiter.get_or_insert_with(|| self.served.room.join());
                std::thread::sleep(waiter.pause());
                continue;
            }
            known.is_stopped = begun.is_err();
            return begun;
        }
    }

    /// The channel to the thread that waits for commits. The first append that needs the thread
    /// starts it.
    fn pending(&mut self) -> Result<&Sender<Pending>, Broken> {
        if self.pending.is_none() {
            // The credit of the client limits the appends under way, and a channel with a limit of
            // its own would take memory for as many at once.
            let (sender, receiver) = channel();
            let (served, replies) = (Arc::clone(&self.served), Arc::clone(&self.replies));
            let run = move || acknowledge(&served, &replies, &receiver);
            let thread = connection_thread("store-acknowledge").spawn(run)?;
            self.pending = Some((sender, thread));
        }
        self.pending.as_ref().map(|(sender, _)| sender).ok_or(Broken::Socket)
    }

    fn list(&mut self, header: &FrameHeader, after: &str) -> Result<(), StoreError> {
        // The parts of a list are of one moment, and cost one look at the cluster.
        if after < LAST_NAME && (after.is_empty() || self.listing.is_empty()) {
            self.listing = self.served.store.readable_files(header.read_freshness())?;
        }
        let may_read = |name: &str| {
            self.user.as_ref().is_none_or(|u| u.user_rights().has_right(FileRight::Read, name))
        };
        let first = self.listing.partition_point(|file| file.name.as_str() <= after);
        let behind = self.listing[first..].iter().filter(|file| may_read(&file.name));
        let mut listed = Vec::new();
        let mut bytes = 0;
        for one in behind.take(LISTED_MAX) {
            if one.name.len() > NAME_BYTES_MAX || schema_bytes(&one.schema) > SCHEMA_BYTES_MAX {
                return Err(too_large(&one.name));
            }
            bytes += listed_bytes(one);
            if bytes > BODY_BYTES_MAX {
                break;
            }
            listed.push(one.clone());
        }
        if listed.is_empty() {
            self.listing = Vec::new();
        }
        let reply = StoreReply::Listed { files: listed };
        self.replies.put_last(header.request, header.cost(), &reply);
        Ok(())
    }

    fn read(&self, header: &FrameHeader, request: &StoreRequest<'_>) -> Result<(), StoreError> {
        let file = self.files.get(header.extra as usize).ok_or_else(|| unopened(header.extra))?;
        let reader = self.served.store.reader_of(&file.file, header.read_freshness())?;
        let of_primary = header.read_freshness() == Freshness::Primary;
        let mut each = |part: Bytes| {
            if of_primary {
                self.served.counters.primary_bytes.fetch_add(part.len() as u64, Relaxed);
            }
            self.send(header.request, &part)
        };
        let numbers = match request {
            StoreRequest::Record { number, .. } => {
                each(reader.record(*number)?)?;
                *number..number.saturating_add(1)
            }
            StoreRequest::Latest { time_ns, .. } => {
                let (number, record) = reader.record_at(*time_ns)?;
                each(record)?;
                number..number + 1
            }
            StoreRequest::Between { from_ns, to_ns, .. } => {
                reader.read_between(*from_ns, *to_ns, &mut each)?
            }
            StoreRequest::Find { from_ns, to_ns, .. } => reader.find(*from_ns, *to_ns)?,
            StoreRequest::Numbers { numbers, .. } => {
                reader.read_numbers(numbers.clone(), &mut each)?;
                numbers.clone()
            }
            _ => reader.numbers()?,
        };
        let reply = StoreReply::Numbers { numbers };
        self.replies.put_last(header.request, header.cost(), &reply);
        Ok(())
    }

    fn send(&self, request: u32, bytes: &[u8]) -> evenfall_store_format::Result<()> {
        if !self.replies.put(request, 0, &StoreReply::Records { bytes }) {
            return Ok(());
        }
        let gone = |error: io::Error| StorageError::Failed {
            name: "connection".into(),
            what: error.to_string(),
        };
        Ok(self.replies.flush().map_err(gone)?)
    }
}

/// Writes the replies so far. A connection that pushes records does not wait for its client here.
fn write_replies(replies: &ReplyWriter, pushes: Option<&PushThread>) -> io::Result<()> {
    let Some(pushes) = pushes else { return replies.flush() };
    if replies.flush_ready()? {
        pushes.table.wake();
    }
    Ok(())
}

/// Whether a request changes the store.
fn is_write(request: &StoreRequest<'_>) -> bool {
    matches!(
        request,
        StoreRequest::Append { .. }
            | StoreRequest::Copy { .. }
            | StoreRequest::Follow { .. }
            | StoreRequest::Open { schema: Some(_), .. }
    )
}

/// The file as this node has it, for an append or a subscription.
fn own_file(store: &Store, file: &ReadableFile) -> Result<Arc<StoreFile>, StoreError> {
    match file {
        ReadableFile::Ours(file) => Ok(Arc::clone(file)),
        // This node may have taken the file over since it was opened.
        ReadableFile::Other(file) => store.file(&file.name),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn too_large(name: &str) -> StoreError {
    let name = shorten_name(name);
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
fn acknowledge(served: &Served, replies: &ReplyWriter, receiver: &Receiver<Pending>) {
    loop {
        let pending = match receiver.try_recv() {
            Ok(pending) => pending,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                let _ = replies.flush();
                let Ok(pending) = receiver.recv() else { return };
                pending
            }
        };
        if !served.store.is_reached(pending.ticket, pending.level) {
            let _ = replies.flush();
        }
        let begun = (pending.first, pending.ticket);
        let done = served.store.append_end(&pending.file, begun, pending.level);
        let (request, cost) = (pending.request, pending.cost);
        match done {
            Ok(()) => {
                replies.put_last(request, cost, &StoreReply::Appended { first: pending.first })
            }
            Err(error) => replies.put_failed(request, cost, &error),
        }
    }
}
