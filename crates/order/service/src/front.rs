//! Where clients connect: sessions, and requests in the order in which they come.

use std::io::{self, BufReader, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use bytes::Bytes;
use evenfall_order_machine::keys::{Call, Command, Reply};

use crate::connection::{Connection, SLOTS_MAX, Slot};
use crate::jute::{FRAME_BYTES_MAX, Fields, Message, error, frame, op};
use crate::operations::{Request, Shape};
use crate::replica::{Answer, now_ms, random_number};
use crate::shared::Shared;
use crate::{ServiceError, words};

/// Connections at once: each has two threads with small stacks.
const CONNECTIONS_MAX: usize = 2_048;
/// Stack of a thread of a connection, which holds no large value.
const STACK_BYTES: usize = 256 << 10;
/// Shortest and longest timeout of a session. A client that asks for another gets the nearest.
const TIMEOUT_MS: core::ops::RangeInclusive<i32> = 1_000..=60_000;
/// A client that has connected has this long to say who it is.
const HELLO: Duration = Duration::from_secs(10);
/// A write to a client that takes nothing for this long fails, and the connection is closed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a password, of which ours uses the first eight.
const PASSWORD_BYTES: usize = 16;
/// Pings have this xid.
const PING_XID: i32 = -2;

/// Listens in a thread of its own.
pub fn start(shared: &Arc<Shared>, listener: TcpListener) -> Result<(), ServiceError> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("order-accept".into());
    let failed = |error| ServiceError::Io("start a thread".into(), error);
    thread.spawn(move || accept(&shared, &listener)).map_err(failed)?;
    Ok(())
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for (id, stream) in (1..).zip(listener.incoming()) {
        let Ok(stream) = stream else {
            // No file descriptor is left: some connection has to end first.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        shared.counters.accepted.fetch_add(1, Relaxed);
        let served = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("order-read".into()).stack_size(STACK_BYTES);
        if thread.spawn(move || serve(&served, id, stream)).is_err() {
            shared.counters.turned_away.fetch_add(1, Relaxed);
        }
    }
}

fn serve(shared: &Arc<Shared>, id: u64, stream: TcpStream) {
    let (slots, taken) = sync_channel(SLOTS_MAX);
    let ready = stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(HELLO)))
        .and_then(|()| stream.set_write_timeout(Some(WRITE_TIMEOUT)))
        .and_then(|()| stream.try_clone());
    let Ok(own) = ready else { return };
    let connection = Arc::new(Connection::new(id, own, slots));
    if !shared.begin(id, &connection, CONNECTIONS_MAX) {
        shared.counters.turned_away.fetch_add(1, Relaxed);
        return connection.end();
    }
    let (writer, writes_to) = (Arc::clone(&connection), Arc::clone(shared));
    let thread = std::thread::Builder::new().name("order-write".into()).stack_size(STACK_BYTES);
    if let Ok(thread) = thread.spawn(move || writer.answer(&writes_to, &taken)) {
        if let Err(error) = read(shared, &connection, stream) {
            let is_malformed = error.kind() == io::ErrorKind::InvalidData;
            shared.counters.malformed.fetch_add(is_malformed.into(), Relaxed);
            connection.end();
        }
        // A client that says goodbye gets its answers first.
        connection.push(Slot::End);
        let _ = thread.join();
    }
    connection.end();
    shared.finish(id);
}

/// Reads requests until the client closes the connection or sends what cannot be read.
fn read(shared: &Shared, connection: &Connection, stream: TcpStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut first = [0; 4];
    stream.read_exact(&mut first)?;
    if let Some(text) = words::answer(&first, shared) {
        return stream.get_mut().write_all(text.as_bytes());
    }
    let hello = frame(first, &mut stream, FRAME_BYTES_MAX)?;
    let Some(timeout_ms) = greet(shared, connection, &hello)? else { return Ok(()) };
    // A client that is alive sends a ping before its session times out.
    let patience = Duration::from_millis(timeout_ms) + HELLO;
    stream.get_ref().set_read_timeout(Some(patience))?;
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let bytes = frame(length, &mut stream, FRAME_BYTES_MAX)?;
        shared.counters.requests.fetch_add(1, Relaxed);
        shared.touch(connection.session());
        if !take(shared, connection, &bytes)? {
            return Ok(());
        }
    }
}

fn invalid(error: evenfall_core::Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn gone() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

/// Opens a session or goes on with one. The timeout of the session; `None` when it has ended.
fn greet(shared: &Shared, connection: &Connection, bytes: &[u8]) -> io::Result<Option<u64>> {
    let mut fields = Fields::new(bytes);
    let hello = &mut fields;
    let (_protocol, seen) = (hello.int().map_err(invalid)?, hello.long().map_err(invalid)?);
    let asked_ms = hello.int().map_err(invalid)?;
    let session = hello.long().map_err(invalid)?;
    let password = hello.buffer().map_err(invalid)?;
    let timeout_ms = asked_ms.clamp(*TIMEOUT_MS.start(), *TIMEOUT_MS.end());
    let is_new = session == 0;
    let random = || random_number().map_err(io::Error::other);
    let (session, password) = match (is_new, password.first_chunk()) {
        (true, _) => (random()?, random()?),
        (false, Some(password)) => (session as u64, u64::from_le_bytes(*password)),
        (false, None) => return Err(gone()),
    };
    let command = Command::Open { timeout_ms: timeout_ms as u32, password, is_new };
    let call = Call { session, sequence: 0, at_ms: now_ms(), command };
    let Ok(Answer::Applied(reply, revision)) = shared.inbox.call(&call).recv() else {
        return Err(gone());
    };
    // All that this client was ever answered is in front of the call; else it was another service.
    if seen > revision as i64 {
        return Err(gone());
    }
    let is_open = matches!(reply, Reply::Done(_));
    let (timeout, id) = if is_open { (timeout_ms, session) } else { (0, 0) };
    let mut shown = password.to_le_bytes().to_vec();
    shown.resize(PASSWORD_BYTES, 0);
    let answer = Message::default().int(0).int(timeout).long(id as i64).buffer(&shown).bool(false);
    if is_open {
        connection.begin(session);
        shared.move_session(session, connection.id);
    }
    let is_sent = connection.push(Slot::Ready(answer));
    Ok((is_open && is_sent).then_some(timeout_ms as u64))
}

/// Takes one request. Whether the client may send another.
fn take(shared: &Shared, connection: &Connection, bytes: &[u8]) -> io::Result<bool> {
    let mut head = Fields::new(bytes);
    let (xid, number) = (head.int().map_err(invalid)?, head.int().map_err(invalid)?);
    let revision = || shared.keys().revision();
    let slot = match number {
        op::PING => Slot::Ready(Message::reply(PING_XID, revision(), error::OK)),
        // Every client that reaches the port may do everything, so authentication always succeeds.
        op::AUTH => Slot::Ready(Message::reply(xid, revision(), error::OK)),
        _ => match Request::read(number, &bytes[8..]).map_err(invalid)? {
            Request::Read(query) => Slot::Read(xid, query),
            Request::Error(error) => Slot::Ready(Message::reply(xid, revision(), error)),
            Request::Sync(path) => Slot::Write(xid, Shape::Sync(path), shared.inbox.sync()),
            Request::Write(command, shape) => {
                let is_last = matches!(shape, Shape::Close);
                if is_last {
                    connection.leave();
                }
                let session = connection.session();
                let call = Call { session, sequence: 0, at_ms: now_ms(), command };
                let slot = Slot::Write(xid, shape, shared.inbox.call(&call));
                return Ok(connection.push(slot) && !is_last);
            }
            Request::Call(body) => own_call(shared, connection, xid, &body)?,
        },
    };
    Ok(connection.push(slot))
}

/// A call with a sequence. Its session is that of the connection, whatever the client says.
fn own_call(shared: &Shared, connection: &Connection, xid: i32, body: &Bytes) -> io::Result<Slot> {
    let call = Call::decode(body).map_err(invalid)?;
    let Command::Change(_) = call.command else {
        return Ok(Slot::Ready(Message::reply(xid, 0, error::UNIMPLEMENTED)));
    };
    let call = Call { session: connection.session(), at_ms: now_ms(), ..call };
    Ok(Slot::Write(xid, Shape::Call, shared.inbox.call(&call)))
}
