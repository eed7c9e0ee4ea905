//! The connection of a client: the bytes that the client has sent, the answers that it waits for in
//! their order, and the bytes that it has not taken yet. No call here blocks.
//!
//! ```text
//!  New ──hello──> Greeting ──session──> Open ──close──> Leaving ──> Closing
//!   └──word of four letters──────────────────────────────────────────^
//! ```

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_consensus_replica::random_number;
use evenfall_core::Malformed;
use evenfall_keys_machine::rights::{IDENTITIES_MAX, READ, allows};
use evenfall_keys_machine::{Call, Command, Identity, Keys, Refusal, Reply};

use crate::operations::{ANSWER_BYTES_MAX, Query, Request, Shape, refused};
use crate::replica::{Answer, Asked, Input, now_ms};
use crate::shared::Shared;
use crate::watches::Event;
use crate::{rights, words};
use evenfall_keys_machine::jute::{FRAME_BYTES_MAX, Fields, Message, error, op};

/// Limit of the requests of a client that wait for their answers. At the limit, the replica reads
/// nothing more from the client.
pub const SLOTS_MAX: usize = 1_024;
/// Bytes of the requests of a client that wait, and of their answers. At this number, the replica
/// reads nothing more from the client, as at the limit of their number.
const SLOTS_BYTES_HIGH: usize = 1 << 20;
/// Bytes that a waiting request counts for beside its own.
const SLOT_BYTES: usize = 64;
/// Bytes of an answer that cost one unit of work.
const BYTES_PER_WORK: usize = 64;
/// Most bytes of the identities of a client, which are in each of its calls.
const IDENTITIES_BYTES_MAX: usize = 64 << 10;
/// Bytes of answers that a client has not taken. At this number, the replica answers no further
/// requests of the client.
const OUTPUT_HIGH_BYTES: usize = 1 << 20;
/// Limit of the bytes of events and answers that a client has not taken. At the limit the
/// connection is closed. The client then connects anew and sets its watches again.
const OUTPUT_BYTES_MAX: usize = ANSWER_BYTES_MAX;
/// Bytes that are read from a client before other clients have their turn.
const READ_BYTES: usize = 256 << 10;
/// An empty buffer of up to this length is kept for the next message.
const KEPT_BYTES: usize = 1 << 10;
/// Longest first message: a session and its password, with room for other versions.
const HELLO_BYTES_MAX: usize = 256;
/// A client that has connected has this long to send its first message. Its pings may also come
/// this late.
pub const HELLO: Duration = Duration::from_secs(10);
/// The connection of a client that takes nothing for this long is closed.
const STALL: Duration = Duration::from_secs(30);
/// Bytes of a password. Evenfall uses only the first eight bytes.
const PASSWORD_BYTES: usize = 16;
/// The xids of events, pings and authentication.
const EVENT_XID: i32 = -1;
const PING_XID: i32 = -2;
const AUTH_XID: i32 = -4;
/// The state in every event: connected.
const CONNECTED: i32 = 3;

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client is gone, was silent for too long, takes nothing, or has to repeat a request at
    /// another replica.
    Gone,
    /// The client sent bytes that cannot be read.
    Malformed,
}

impl From<Malformed> for End {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    New,
    Greeting,
    Open,
    /// The client has asked to close its session, and waits for the answer.
    Leaving,
    /// The connection is closed when the client has taken the output.
    Closing,
}

/// A request that waits for its answer.
#[derive(Debug)]
enum Slot {
    /// A call or a sync that has no answer yet, and when it was asked.
    Asked(i32, Shape, Instant),
    /// A call or a sync with its answer.
    Answered(i32, Shape, Reply, u64),
    /// A read, which is answered out of the keys when its turn comes.
    Read(i32, Query),
    /// An answer that is ready to be sent.
    Ready(Message),
}

/// What a client asked for when it opened its session.
#[derive(Clone, Copy, Debug)]
pub struct Hello {
    seen: i64,
    password: u64,
}

/// What the front counts over all connections.
#[derive(Debug, Default)]
pub struct Stats {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that were closed at once, because there were as many as may be.
    pub turned_away: u64,
    /// Connections that were closed because their bytes could not be read.
    pub malformed: u64,
    /// Requests that were read.
    pub received: u64,
    /// Answers and events.
    pub sent: u64,
    /// Of all calls and syncs that were answered: their number, and the sum, the least and the
    /// greatest of their times in microseconds.
    pub latency: (u64, u64, u64, u64),
}

impl Stats {
    fn took(&mut self, time: Duration) {
        let us = time.as_micros() as u64;
        let (count, sum, least, most) = self.latency;
        let least = if count == 0 { us } else { least.min(us) };
        self.latency = (count + 1, sum + us, least, most.max(us));
    }
}

/// The client for which a read is made.
#[derive(Debug)]
pub struct Reading<'a> {
    /// The number of the connection.
    pub connection: u64,
    /// Its session.
    pub session: u64,
    /// Who the client is.
    pub who: &'a [Identity],
    /// Events that the client has missed. They are sent before the answer.
    pub missed: Vec<Event>,
    /// Whether the client has as many watches as it may have.
    pub is_full: bool,
    /// The units of work that the read cost: one for itself, one for each further key that it
    /// looked at, and one for each comparison of a right with an identity.
    pub work: usize,
}

impl<'a> Reading<'a> {
    /// A read of this connection and session, for a client who is all of these.
    pub fn new(connection: u64, session: u64, who: &'a [Identity]) -> Self {
        Self { connection, session, who, missed: Vec::new(), is_full: false, work: 1 }
    }
}

/// A client that is connected. See the module documentation.
#[derive(Debug)]
pub struct Connection {
    /// The number of the connection.
    pub id: u64,
    /// Where the client is.
    pub peer: SocketAddr,
    /// The session; 0 before there is one.
    pub session: u64,
    /// The timeout of the session.
    pub timeout_ms: u64,
    /// The revision at which this connection opened the session.
    opened: u64,
    /// Number of requests and of answers of this connection.
    pub packets: (u64, u64),
    /// The bytes that the front has counted for this connection.
    pub counted_bytes: usize,
    /// When the front began to count many bytes for this connection.
    pub long_since: Option<Instant>,
    stream: TcpStream,
    stage: Stage,
    /// Whether the client has sent its last byte.
    is_done: bool,
    who: Vec<Identity>,
    who_bytes: usize,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of the output that the client has taken.
    taken: usize,
    /// Requests that wait, with the bytes for which they count.
    slots: VecDeque<(Slot, usize)>,
    /// The sum of these bytes.
    slots_bytes: usize,
    /// How many slots were answered.
    answered: u64,
    heard: Instant,
    stalled: Option<Instant>,
}

impl Connection {
    /// A client on this stream. The stream does not block.
    pub fn new(id: u64, stream: TcpStream, peer: SocketAddr) -> Self {
        Self {
            id,
            peer,
            session: 0,
            timeout_ms: 0,
            opened: 0,
            packets: (0, 0),
            counted_bytes: 0,
            long_since: None,
            stream,
            stage: Stage::New,
            is_done: false,
            who: vec![Identity::new("ip", &peer.ip().to_string())],
            who_bytes: 0,
            input: Vec::new(),
            output: Vec::new(),
            taken: 0,
            slots: VecDeque::new(),
            slots_bytes: 0,
            answered: 0,
            heard: Instant::now(),
            stalled: None,
        }
    }

    /// The socket, to wait for.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether there is room for further bytes from the client.
    pub fn wants_input(&self) -> bool {
        !self.is_done && self.may_take() && self.input.len() <= FRAME_BYTES_MAX + 4
    }

    /// Whether bytes wait for the client.
    pub fn wants_output(&self) -> bool {
        self.taken < self.output.len()
    }

    /// Whether everything was sent and the connection can be closed.
    pub fn is_over(&self) -> bool {
        let is_silent = self.is_done && self.slots.is_empty() && !self.has_request();
        (self.stage == Stage::Closing || is_silent) && !self.wants_output()
    }

    /// Bytes in the buffers and waiting requests that this replica holds for the client.
    pub fn held_bytes(&self) -> usize {
        self.input.capacity() + self.output.capacity() + self.slots_bytes + self.who_bytes
    }

    /// Requests that wait.
    pub fn queued(&self) -> usize {
        self.slots.len()
    }

    /// Whether these keys have the session as this connection has opened it.
    pub fn is_known_to(&self, keys: &Keys) -> bool {
        let session = keys.session(self.session);
        !self.is_open() || session.is_some_and(|session| session.opened == self.opened)
    }

    /// Whether the client has its session.
    pub fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Whether a further step is possible without waiting for the client or for the order.
    pub fn can_go_on(&self) -> bool {
        let has_answer = !matches!(self.slots.front(), None | Some((Slot::Asked(..), _)));
        let has_room = self.output.len() - self.taken < OUTPUT_HIGH_BYTES;
        (has_answer && has_room) || self.has_request()
    }

    /// Whether the client asked to end its session.
    pub fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving | Stage::Closing)
    }

    /// Whether the client is silent, or takes nothing, for longer than it may.
    pub fn is_late(&self, now: Instant) -> bool {
        let patience = Duration::from_millis(self.timeout_ms) + HELLO;
        let is_stalled = self.stalled.is_some_and(|since| now.duration_since(since) > STALL);
        let is_waiting = !self.slots.is_empty();
        is_stalled || (!is_waiting && now.duration_since(self.heard) > patience)
    }

    /// Reads what the client has sent.
    pub fn read(&mut self, scratch: &mut [u8]) -> Result<(), End> {
        let mut count = 0;
        while count < READ_BYTES && self.wants_input() {
            match self.stream.read(scratch) {
                Ok(0) => self.is_done = true,
                Ok(more) => {
                    self.input.extend_from_slice(&scratch[..more]);
                    count += more;
                    if more < scratch.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(End::Gone),
            }
        }
        if count > 0 {
            self.heard = Instant::now();
        }
        Ok(())
    }

    fn may_take(&self) -> bool {
        let has_room = self.slots.len() < SLOTS_MAX && self.slots_bytes < SLOTS_BYTES_HIGH;
        matches!(self.stage, Stage::New | Stage::Open) && has_room
    }

    /// Whether a whole request, a word of four letters, or a message that is too long has come and
    /// was not taken.
    pub fn has_request(&self) -> bool {
        let Some(first) = self.input.first_chunk() else { return false };
        let length = u32::from_be_bytes(*first) as usize;
        let is_word = self.stage == Stage::New && words::is_word(first);
        let is_whole = self.input.len() - 4 >= length || length > self.longest();
        self.may_take() && (is_word || is_whole)
    }

    /// Bytes of the longest message that the state of the connection allows.
    fn longest(&self) -> usize {
        if self.stage == Stage::New { HELLO_BYTES_MAX } else { FRAME_BYTES_MAX }
    }

    /// Takes the requests that have come as a whole. `says` answers a word of four letters.
    pub fn take(
        &mut self,
        shared: &Shared,
        stats: &mut Stats,
        says: &mut Vec<(u64, [u8; 4])>,
    ) -> Result<(), End> {
        let input = core::mem::take(&mut self.input);
        let mut at = 0;
        while let Some(length) = input[at..].first_chunk::<4>()
            && self.may_take()
        {
            if self.stage == Stage::New && words::is_word(length) {
                says.push((self.id, *length));
                self.stage = Stage::Closing;
                return Ok(());
            }
            let length = u32::from_be_bytes(*length) as usize;
            if length > self.longest() {
                return Err(End::Malformed);
            }
            let Some(message) = input.get(at + 4..at + 4 + length) else { break };
            at += 4 + length;
            stats.received += 1;
            self.packets.0 += 1;
            match self.stage {
                Stage::New => self.greet(shared, message)?,
                _ => self.request(shared, message)?,
            }
        }
        if self.is_open() && at > 0 {
            shared.touch(self.session);
        }
        self.input = input;
        self.input.drain(..at);
        give_back(&mut self.input);
        Ok(())
    }

    /// Hands a call or a sync of this many bytes to the order. The answer comes to the slot.
    fn ask(
        &mut self,
        shared: &Shared,
        (xid, bytes): (i32, usize),
        shape: Shape,
        input: impl FnOnce(Asked) -> Input,
    ) {
        let asked = Asked { connection: self.id, slot: self.answered + self.slots.len() as u64 };
        shared.inbox.send(input(asked));
        self.wait(Slot::Asked(xid, shape, Instant::now()), bytes);
    }

    /// Adds a request that waits, and counts it for this many bytes.
    fn wait(&mut self, slot: Slot, bytes: usize) {
        let bytes = bytes + SLOT_BYTES;
        self.slots_bytes += bytes;
        self.slots.push_back((slot, bytes));
    }

    /// Opens a session or goes on with one.
    fn greet(&mut self, shared: &Shared, message: &[u8]) -> Result<(), End> {
        let hello = &mut Fields::new(message);
        let (_protocol, seen, asked_ms) = (hello.int()?, hello.long()?, hello.int()?);
        let (session, password) = (hello.long()?, hello.buffer()?);
        let timeout_ms = shared.settings.zookeeper.timeout_ms(asked_ms);
        let is_new = session == 0;
        let random = || random_number().map_err(|_| End::Gone);
        let (session, password) = match (is_new, password.first_chunk()) {
            (true, _) => (random()?, random()?),
            (false, Some(password)) => (session as u64, u64::from_le_bytes(*password)),
            (false, None) => return Err(End::Malformed),
        };
        let command = Command::Open { timeout_ms, password, is_new };
        let call = Call { session, opened: 0, sequence: 0, at_ms: now_ms(), command };
        (self.session, self.timeout_ms, self.stage) = (session, timeout_ms.into(), Stage::Greeting);
        self.ask(shared, (0, 0), Shape::Open(Hello { seen, password }), |asked| {
            Input::call(&call, Some(asked))
        });
        Ok(())
    }

    /// Takes one request.
    fn request(&mut self, shared: &Shared, message: &[u8]) -> Result<(), End> {
        let mut head = Fields::new(message);
        let (xid, number, bytes) = (head.int()?, head.int()?, message.len());
        let revision = || shared.keys().revision();
        let (session, opened) = (self.session, self.opened);
        let call = |command| Call { session, opened, sequence: 0, at_ms: now_ms(), command };
        let slot = match number {
            op::PING => Slot::Ready(Message::reply(PING_XID, revision(), error::OK)),
            op::AUTH => self.authenticate(shared, &mut head)?,
            _ => match Request::read(number, &message[8..], &self.who)? {
                Request::Read(query) => Slot::Read(xid, query),
                Request::Error(error) => Slot::Ready(Message::reply(xid, revision(), error)),
                Request::Unknown => {
                    self.stage = Stage::Leaving;
                    Slot::Ready(Message::reply(xid, revision(), error::UNIMPLEMENTED))
                }
                Request::Refused(count, at, error) => {
                    let reply = Message::reply(xid, revision(), error::OK);
                    Slot::Ready(refused(reply, count, at, error))
                }
                Request::Sync(path, lease) => {
                    // A lease does not tell of this client's own requests that are under way.
                    let lease = lease.filter(|_| self.slots.is_empty());
                    self.ask(shared, (xid, bytes), Shape::Sync(path), |asked| {
                        Input::Sync(asked, lease)
                    });
                    return Ok(());
                }
                Request::Write(command, shape) => {
                    if matches!(shape, Shape::Close) {
                        self.stage = Stage::Leaving;
                    }
                    let call = call(command);
                    self.ask(shared, (xid, bytes), shape, |asked| Input::call(&call, Some(asked)));
                    return Ok(());
                }
                Request::Retire(rack) => {
                    Slot::Ready(Message::reply(xid, revision(), self.retire(shared, rack)))
                }
                Request::Limit(_) if !self.is_of_this_host(shared) => {
                    Slot::Ready(Message::reply(xid, revision(), error::NO_AUTH))
                }
                Request::Limit(..1) => {
                    Slot::Ready(Message::reply(xid, revision(), error::BAD_ARGUMENTS))
                }
                Request::Limit(mib) => {
                    let command = Command::Limit { bytes: (mib as u64) << 20, is_first: false };
                    let call = Call { session: 0, ..call(command) };
                    self.ask(shared, (xid, bytes), Shape::Delete, |asked| {
                        Input::call(&call, Some(asked))
                    });
                    return Ok(());
                }
                Request::Call(body) => return self.own_call(shared, xid, &body),
            },
        };
        let bytes = match &slot {
            Slot::Ready(answer) => answer.length(),
            Slot::Read(_, query) => bytes + query.overhead_bytes(),
            _ => bytes,
        };
        self.wait(slot, bytes);
        Ok(())
    }

    /// Whether the client runs on the host of this replica.
    fn is_of_this_host(&self, shared: &Shared) -> bool {
        let ip = self.peer.ip();
        ip.is_loopback() || ip == shared.settings.listen.ip()
    }

    /// Hands in the plan that a rack leaves, and returns the error of the answer.
    fn retire(&self, shared: &Shared, rack: i32) -> i32 {
        if !self.is_of_this_host(shared) {
            return error::NO_AUTH;
        }
        let numbers = shared.settings.replica.racks.numbers();
        let Some(at) = numbers.iter().position(|number| i32::from(*number) == rack) else {
            return error::NO_NODE;
        };
        if shared.counters.racks_needed.load(Relaxed) & 1 << at != 0 {
            return error::BAD_ARGUMENTS;
        }
        shared.inbox.send(Input::Retire(at));
        error::OK
    }

    /// A call with a sequence. Its session and identities are replaced by those of the connection.
    fn own_call(&mut self, shared: &Shared, xid: i32, body: &Bytes) -> Result<(), End> {
        let call = Call::decode(body)?;
        let (Command::Change(ops) | Command::ChangeBy(_, ops)) = call.command else {
            let reply = Message::reply(xid, 0, error::UNIMPLEMENTED);
            self.wait(Slot::Ready(reply), 0);
            return Ok(());
        };
        let command = Command::ChangeBy(self.who.clone(), ops);
        let (session, opened, sequence) = (self.session, self.opened, call.sequence);
        let call = Call { session, opened, sequence, at_ms: now_ms(), command };
        self.ask(shared, (xid, body.len()), Shape::Call, |asked| Input::call(&call, Some(asked)));
        Ok(())
    }

    /// Checks who the client says it is. A client whose proof is wrong, or who has too many
    /// identities, gets an error. The connection then ends.
    fn authenticate(&mut self, shared: &Shared, fields: &mut Fields<'_>) -> Result<Slot, End> {
        let (_kind, scheme, proof) = (fields.int()?, fields.text()?, fields.buffer()?);
        let super_digest = shared.settings.zookeeper.super_digest.as_deref();
        let revision = shared.keys().revision();
        let Some(new) = rights::authenticate(scheme, proof, super_digest, self.peer.ip()) else {
            return Ok(self.refuse_proof(revision));
        };
        for identity in new {
            if !self.who.contains(&identity) {
                self.who.push(identity);
            }
        }
        let bytes = |who: &Identity| who.scheme.len() + who.name.len();
        self.who_bytes = self.who.iter().map(bytes).sum();
        if self.who.len() > IDENTITIES_MAX || self.who_bytes > IDENTITIES_BYTES_MAX {
            return Ok(self.refuse_proof(revision));
        }
        Ok(Slot::Ready(Message::reply(AUTH_XID, revision, error::OK)))
    }

    fn refuse_proof(&mut self, revision: u64) -> Slot {
        self.stage = Stage::Leaving;
        Slot::Ready(Message::reply(AUTH_XID, revision, error::AUTH_FAILED))
    }

    /// The answer of the order to a slot.
    pub fn answer_of(&mut self, slot: u64, answer: Answer, stats: &mut Stats) -> Result<(), End> {
        let at = slot.checked_sub(self.answered).and_then(|at| usize::try_from(at).ok());
        let Some((slot, bytes)) = at.and_then(|at| self.slots.get_mut(at)) else { return Ok(()) };
        // The end of the connection tells the client to ask again.
        let Answer::Applied(reply, revision) = answer else { return Err(End::Gone) };
        let nothing = Slot::Ready(Message::default());
        *slot = match core::mem::replace(slot, nothing) {
            Slot::Asked(xid, shape, since) => {
                stats.took(since.elapsed());
                self.slots_bytes -= *bytes;
                *bytes = reply.bytes() + SLOT_BYTES;
                self.slots_bytes += *bytes;
                Slot::Answered(xid, shape, reply, revision)
            }
            other => other,
        };
        Ok(())
    }

    /// Answers requests in their order, as long as answers are there and the client takes them.
    /// `room` is the work that reads may still cost. Each read lowers `room`, and no read begins
    /// when it is 0.
    pub fn answer(
        &mut self,
        keys: &Keys,
        shared: &Shared,
        stats: &mut Stats,
        room: &mut usize,
    ) -> Result<(), End> {
        while self.output.len() - self.taken < OUTPUT_HIGH_BYTES {
            match self.slots.front() {
                None | Some((Slot::Asked(..), _)) => break,
                Some((Slot::Read(..), _)) if *room == 0 => break,
                Some(_) => {}
            }
            let Some((slot, bytes)) = self.slots.pop_front() else { break };
            self.slots_bytes -= bytes;
            self.answered += 1;
            let message = match slot {
                Slot::Ready(message) => message,
                Slot::Answered(_, Shape::Open(hello), reply, revision) => {
                    self.opened(hello, &reply, revision, keys)?
                }
                // As ZooKeeper does: the client of an earlier connection gets no answer here.
                Slot::Answered(_, _, Reply::Refused(_, Refusal::Moved), _) => {
                    return Err(End::Gone);
                }
                Slot::Answered(xid, shape, reply, revision) => {
                    let is_end = matches!((&shape, &reply), (Shape::Close, Reply::Done(_)));
                    // A client whose session has ended needs a new one.
                    let has_ended = matches!(reply, Reply::Refused(_, Refusal::NoSession));
                    if is_end || has_ended {
                        self.stage = Stage::Closing;
                    }
                    shape.answer(xid, revision, &reply)
                }
                Slot::Read(xid, query) => {
                    let (connection, session, who) = (self.id, self.session, &self.who[..]);
                    let mut reading = Reading::new(connection, session, who);
                    let message = query.answer(xid, keys, shared, &mut reading);
                    let Reading { missed, is_full, work, .. } = reading;
                    *room = room.saturating_sub(work + message.length() / BYTES_PER_WORK);
                    if is_full {
                        return Err(End::Gone);
                    }
                    for event in missed {
                        self.tell(&event, stats)?;
                    }
                    message
                }
                Slot::Asked(..) => break,
            };
            self.output.extend(message.finish());
            stats.sent += 1;
            self.packets.1 += 1;
        }
        if self.stage == Stage::Leaving && self.slots.is_empty() {
            self.stage = Stage::Closing;
        }
        Ok(())
    }

    /// The answer to a client that has opened its session. The session may have kept a longer
    /// timeout than the client asked for here.
    fn opened(
        &mut self,
        hello: Hello,
        reply: &Reply,
        revision: u64,
        keys: &Keys,
    ) -> Result<Message, End> {
        // The revision of the call is above every revision that this client has seen. Otherwise the
        // client has seen another service.
        if hello.seen > revision as i64 {
            return Err(End::Gone);
        }
        let is_open = matches!(reply, Reply::Done(_));
        if !is_open {
            (self.session, self.timeout_ms) = (0, 0);
        } else if let Some(session) = keys.session(self.session) {
            self.timeout_ms = session.timeout_ms.into();
        }
        self.opened = revision;
        self.stage = if is_open { Stage::Open } else { Stage::Closing };
        let mut shown = hello.password.to_le_bytes().to_vec();
        shown.resize(PASSWORD_BYTES, 0);
        let message = Message::default().int(0).int(self.timeout_ms as i32);
        Ok(message.long(self.session as i64).buffer(&shown).bool(false))
    }

    /// Sends an event before all answers that are not in the output yet. A client that may not read
    /// the key does not get the event.
    pub fn tell(&mut self, event: &Event, stats: &mut Stats) -> Result<(), End> {
        if !allows(&event.rights, READ, &self.who) {
            return Ok(());
        }
        let message = Message::reply(EVENT_XID, u64::MAX, 0);
        let message = message.int(event.told as i32).int(CONNECTED).text(&event.path);
        self.output.extend(message.finish());
        stats.sent += 1;
        self.packets.1 += 1;
        if self.output.len() - self.taken > OUTPUT_BYTES_MAX {
            return Err(End::Gone);
        }
        Ok(())
    }

    /// Sends a text for people, without a head.
    pub fn say(&mut self, text: &str) {
        self.output.extend(text.as_bytes());
    }

    /// Sends the client as much of the output as it takes now.
    pub fn write(&mut self) -> Result<(), End> {
        while self.wants_output() {
            match self.stream.write(&self.output[self.taken..]) {
                Ok(0) => return Err(End::Gone),
                Ok(more) => {
                    self.taken += more;
                    self.stalled = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stalled.get_or_insert_with(Instant::now);
                    self.output.drain(..self.taken);
                    self.taken = 0;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(End::Gone),
            }
        }
        self.output.clear();
        self.taken = 0;
        give_back(&mut self.output);
        Ok(())
    }
}

/// Frees the memory of a long buffer when the buffer is empty.
fn give_back(buffer: &mut Vec<u8>) {
    if buffer.is_empty() && buffer.capacity() > KEPT_BYTES {
        *buffer = Vec::new();
    }
}
