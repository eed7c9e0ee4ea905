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
use evenfall_keys_machine::{AclIdentity, Command, KeyCall, KeyRefusal, KeyReply, Keys};

use crate::operations::{ANSWER_BYTES_MAX, Query, ReplyShape, ZooKeeperRequest};
use crate::reading::ReadingClient;
use crate::refusals::ClientRefusal;
use crate::replica::{AskedRequest, ConnectionInput, ReplicaAnswer, now_ms};
use crate::shared::SharedKeys;
use crate::stats::{Latency, ShownConnection, Stats};
use crate::watches::Event;
use crate::{rights, words};
use evenfall_keys_machine::jute::{Fields, JuteMessage, error, op};

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
/// The xids of events and pings, whatever xid a ping has.
const EVENT_XID: i32 = -1;
const PING_XID: i32 = -2;
/// The state in every event: connected.
const CONNECTED: i32 = 3;

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The client is gone, was silent for too long, takes nothing, or has to repeat a request at
    /// another replica.
    Gone,
    /// The client sent bytes that cannot be read.
    Malformed,
}

impl From<Malformed> for ConnectionEnd {
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
struct Waiting {
    slot: Slot,
    /// The bytes for which the request counts.
    bytes: usize,
    /// The number of its operation.
    number: i32,
    /// Its xid.
    xid: i32,
    /// When it was taken.
    since: Instant,
}

/// What a request that waits still needs.
#[derive(Debug)]
enum Slot {
    /// A call or a sync that has no answer yet.
    Asked(i32, ReplyShape),
    /// A call or a sync with its answer.
    Answered(i32, ReplyShape, KeyReply, u64),
    /// A read, which is answered out of the keys when its turn comes.
    Read(i32, Query),
    /// An answer that is ready to be sent.
    Ready(JuteMessage),
}

/// The head of a request, and the bytes for which it counts.
#[derive(Clone, Copy, Debug)]
struct RequestHead {
    xid: i32,
    number: i32,
    bytes: usize,
}

/// What a client asked for when it opened its session.
#[derive(Clone, Copy, Debug)]
pub struct Hello {
    seen: i64,
    password: u64,
    /// Whether the client says if it takes a server that serves reads alone. Clients of ZooKeeper
    /// before 3.4 do not, and take no answer to it either.
    has_read_only: bool,
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
    /// What `cons` shows.
    pub shown: ShownConnection,
    /// Most bytes of a message of the client.
    frame_bytes_max: usize,
    /// The bytes that the front has counted for this connection.
    pub counted_bytes: usize,
    /// When the front began to count many bytes for this connection.
    pub long_since: Option<Instant>,
    stream: TcpStream,
    stage: Stage,
    /// Whether the client has sent its last byte.
    is_done: bool,
    who: Vec<AclIdentity>,
    who_bytes: usize,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of the output that the client has taken.
    taken: usize,
    /// Requests that wait.
    slots: VecDeque<Waiting>,
    /// The sum of these bytes.
    slots_bytes: usize,
    /// How many slots were answered.
    answered: u64,
    heard: Instant,
    stalled: Option<Instant>,
}

impl Connection {
    /// A client on this stream, whose messages have at most this many bytes. The stream does not
    /// block.
    pub fn new(id: u64, stream: TcpStream, peer: SocketAddr, frame_bytes_max: usize) -> Self {
        Self {
            id,
            peer,
            frame_bytes_max,
            shown: ShownConnection {
                established_ms: now_ms(),
                last_operation: 0,
                last_xid: 0,
                last_revision: 0,
                last_response_ms: 0,
                latency: Latency::default(),
                last_latency_us: 0,
            },
            session: 0,
            timeout_ms: 0,
            opened: 0,
            packets: (0, 0),
            counted_bytes: 0,
            long_since: None,
            stream,
            stage: Stage::New,
            is_done: false,
            who: vec![AclIdentity::new("ip", &peer.ip().to_string())],
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
        !self.is_done && self.may_take() && self.input.len() <= self.frame_bytes_max + 4
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
        let has_answer =
            self.slots.front().is_some_and(|first| !matches!(first.slot, Slot::Asked(..)));
        let has_room = self.output.len() - self.taken < OUTPUT_HIGH_BYTES;
        (has_answer && has_room) || self.has_request()
    }

    /// Whether the client asked to end its session.
    pub fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving | Stage::Closing)
    }

    /// Whether the client takes nothing for longer than it may, and how many bytes wait for it.
    pub fn stalls(&self, now: Instant) -> Option<usize> {
        let is_stalled = self.stalled.is_some_and(|since| now.duration_since(since) > STALL);
        is_stalled.then(|| self.output.len() - self.taken)
    }

    /// Whether the client is silent for longer than it may.
    pub fn is_late(&self, now: Instant) -> bool {
        let patience = Duration::from_millis(self.timeout_ms) + HELLO;
        let is_waiting = !self.slots.is_empty();
        !is_waiting && now.duration_since(self.heard) > patience
    }

    /// Reads what the client has sent.
    pub fn read(&mut self, scratch: &mut [u8]) -> Result<(), ConnectionEnd> {
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
                Err(_) => return Err(ConnectionEnd::Gone),
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
        if self.stage == Stage::New { HELLO_BYTES_MAX } else { self.frame_bytes_max }
    }

    /// Takes the requests that have come as a whole. `says` answers a word of four letters.
    pub fn take(
        &mut self,
        shared: &SharedKeys,
        stats: &mut Stats,
        says: &mut Vec<(u64, [u8; 4])>,
    ) -> Result<(), ConnectionEnd> {
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
            let bytes_max = self.longest();
            if length > bytes_max {
                let refusal = ClientRefusal::TooLong { bytes: length, bytes_max };
                stats.refusals.note(self.peer, &refusal);
                return Err(ConnectionEnd::Malformed);
            }
            let Some(message) = input.get(at + 4..at + 4 + length) else { break };
            at += 4 + length;
            stats.received += 1;
            self.packets.0 += 1;
            match self.stage {
                Stage::New => self.greet(shared, message, stats)?,
                _ => self.request(shared, message, stats)?,
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

    /// Hands a call or a sync to the order. The answer comes to the slot.
    fn ask(
        &mut self,
        shared: &SharedKeys,
        head: RequestHead,
        shape: ReplyShape,
        input: impl FnOnce(AskedRequest) -> ConnectionInput,
    ) {
        let asked =
            AskedRequest { connection: self.id, slot: self.answered + self.slots.len() as u64 };
        shared.inbox.send(input(asked));
        self.wait(Slot::Asked(head.xid, shape), head);
    }

    /// Adds a request that waits, and counts its bytes.
    fn wait(&mut self, slot: Slot, head: RequestHead) {
        let RequestHead { xid, number, bytes } = head;
        let bytes = bytes + SLOT_BYTES;
        self.slots_bytes += bytes;
        self.slots.push_back(Waiting { slot, bytes, number, xid, since: Instant::now() });
    }

    /// Opens a session or goes on with one.
    fn greet(
        &mut self,
        shared: &SharedKeys,
        message: &[u8],
        stats: &mut Stats,
    ) -> Result<(), ConnectionEnd> {
        let hello = &mut Fields::new(message);
        let mut read = || -> Result<_, Malformed> {
            let (_protocol, seen, asked_ms) = (hello.int()?, hello.long()?, hello.int()?);
            Ok((seen, asked_ms, hello.long()?, hello.buffer()?))
        };
        let (seen, asked_ms, session, password) = read().map_err(|error| {
            stats.refusals.note(self.peer, &ClientRefusal::Hello(error));
            ConnectionEnd::from(error)
        })?;
        let has_read_only = !hello.is_empty();
        let timeout_ms = shared.settings.zookeeper.timeout_ms(asked_ms);
        let is_new = session == 0;
        let random = || random_number().map_err(|_| ConnectionEnd::Gone);
        let (session, password) = match (is_new, password.first_chunk()) {
            (true, _) => (random()?, random()?),
            (false, Some(password)) => (session as u64, u64::from_le_bytes(*password)),
            (false, None) => {
                stats.refusals.note(self.peer, &ClientRefusal::Session(session as u64));
                return Err(ConnectionEnd::Malformed);
            }
        };
        let command = Command::Open { timeout_ms, password, is_new };
        let call = KeyCall { session, opened: 0, sequence: 0, at_ms: now_ms(), command };
        (self.session, self.timeout_ms, self.stage) = (session, timeout_ms.into(), Stage::Greeting);
        let shape = ReplyShape::Open(Hello { seen, password, has_read_only });
        let head = RequestHead { xid: 0, number: op::OPEN, bytes: 0 };
        self.ask(shared, head, shape, |asked| ConnectionInput::call(&call, Some(asked)));
        Ok(())
    }

    /// Takes one request. As in ZooKeeper, a request that cannot be read is answered by an error,
    /// and the connection goes on. Without a xid and a number there is nothing to answer.
    fn request(
        &mut self,
        shared: &SharedKeys,
        message: &[u8],
        stats: &mut Stats,
    ) -> Result<(), ConnectionEnd> {
        let mut fields = Fields::new(message);
        let (xid, number, bytes) = (fields.int()?, fields.int()?, message.len());
        let head = RequestHead { xid, number, bytes };
        let revision = shared.keys().revision();
        let taken = match number {
            op::PING => Ok(Some(Slot::Ready(JuteMessage::reply(PING_XID, revision, error::OK)))),
            // ZooKeeper, too, closes the connection at a proof that cannot be read.
            op::AUTH => Ok(Some(self.authenticate(shared, xid, &mut fields, stats)?)),
            _ => ZooKeeperRequest::read(number, &message[8..], &self.who)
                .and_then(|request| self.take_request(shared, head, request, stats)),
        };
        let slot = taken.unwrap_or_else(|what| {
            stats.refusals.note(self.peer, &ClientRefusal::Request(number, what));
            Some(Slot::Ready(JuteMessage::reply(xid, revision, error::MARSHALLING)))
        });
        let Some(slot) = slot else { return Ok(()) };
        let bytes = match &slot {
            Slot::Ready(answer) => answer.length(),
            Slot::Read(_, query) => bytes + query.overhead_bytes(),
            _ => bytes,
        };
        self.wait(slot, RequestHead { bytes, ..head });
        Ok(())
    }

    /// Hands a request to the order, or returns the slot of a request that needs no order.
    fn take_request(
        &mut self,
        shared: &SharedKeys,
        head: RequestHead,
        request: ZooKeeperRequest,
        stats: &mut Stats,
    ) -> Result<Option<Slot>, Malformed> {
        let (session, opened) = (self.session, self.opened);
        let call = |command| KeyCall { session, opened, sequence: 0, at_ms: now_ms(), command };
        let number = match request {
            ZooKeeperRequest::Read(query) => return Ok(Some(Slot::Read(head.xid, query))),
            ZooKeeperRequest::Sync(path, lease) => {
                // A lease does not tell of this client's own requests that are under way.
                let lease = lease.filter(|_| self.slots.is_empty());
                self.ask(shared, head, ReplyShape::Sync(path), |asked| {
                    ConnectionInput::Sync(asked, lease)
                });
                return Ok(None);
            }
            ZooKeeperRequest::Write(command, shape) => {
                if matches!(shape, ReplyShape::Close) {
                    self.stage = Stage::Leaving;
                }
                let call = call(command);
                self.ask(shared, head, shape, |asked| ConnectionInput::call(&call, Some(asked)));
                return Ok(None);
            }
            ZooKeeperRequest::Call(body) => return self.own_call(shared, head, &body),
            ZooKeeperRequest::Limit(mib @ 1..) if self.is_of_this_host(shared) => {
                let command = Command::Limit { bytes: (mib as u64) << 20, is_first: false };
                let call = KeyCall { session: 0, ..call(command) };
                self.ask(shared, head, ReplyShape::Delete, |asked| {
                    ConnectionInput::call(&call, Some(asked))
                });
                return Ok(None);
            }
            ZooKeeperRequest::Limit(_) if self.is_of_this_host(shared) => error::BAD_ARGUMENTS,
            ZooKeeperRequest::Limit(_) => error::NO_AUTH,
            ZooKeeperRequest::Retire(rack) => self.retire(shared, rack),
            ZooKeeperRequest::Error(number) => number,
            ZooKeeperRequest::Unknown => {
                self.stage = Stage::Leaving;
                stats.refusals.note(self.peer, &ClientRefusal::Operation(head.number));
                error::UNIMPLEMENTED
            }
        };
        Ok(Some(Slot::Ready(JuteMessage::reply(head.xid, shared.keys().revision(), number))))
    }

    /// Whether the client runs on the host of this replica.
    fn is_of_this_host(&self, shared: &SharedKeys) -> bool {
        let ip = self.peer.ip();
        ip.is_loopback() || ip == shared.settings.listen.ip()
    }

    /// Hands in the plan that a rack leaves, and returns the error of the answer.
    fn retire(&self, shared: &SharedKeys, rack: i32) -> i32 {
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
        shared.inbox.send(ConnectionInput::Retire(at));
        error::OK
    }

    /// A call with a sequence. Its session and identities are replaced by those of the connection.
    fn own_call(
        &mut self,
        shared: &SharedKeys,
        head: RequestHead,
        body: &Bytes,
    ) -> Result<Option<Slot>, Malformed> {
        let call = KeyCall::decode(body)?;
        let (Command::Change(ops) | Command::ChangeBy(_, ops)) = call.command else {
            let reply = JuteMessage::reply(head.xid, 0, error::UNIMPLEMENTED);
            return Ok(Some(Slot::Ready(reply)));
        };
        let command = Command::ChangeBy(self.who.clone(), ops);
        let (session, opened, sequence) = (self.session, self.opened, call.sequence);
        let call = KeyCall { session, opened, sequence, at_ms: now_ms(), command };
        let head = RequestHead { bytes: body.len(), ..head };
        self.ask(shared, head, ReplyShape::Call, |asked| ConnectionInput::call(&call, Some(asked)));
        Ok(None)
    }

    /// Checks who the client says it is. A client whose proof is wrong, or who has too many
    /// identities, gets an error. The connection then ends.
    fn authenticate(
        &mut self,
        shared: &SharedKeys,
        xid: i32,
        fields: &mut Fields<'_>,
        stats: &mut Stats,
    ) -> Result<Slot, ConnectionEnd> {
        let (_kind, scheme, proof) = (fields.int()?, fields.text()?, fields.buffer()?);
        let super_digest = shared.settings.zookeeper.super_digest.as_deref();
        let revision = shared.keys().revision();
        let Some(new) = rights::authenticate(&scheme, proof, super_digest, self.peer.ip()) else {
            return Ok(self.refuse_proof(xid, revision, stats));
        };
        for identity in new {
            if !self.who.contains(&identity) {
                self.who.push(identity);
            }
        }
        let bytes = |who: &AclIdentity| who.scheme.len() + who.name.len();
        self.who_bytes = self.who.iter().map(bytes).sum();
        if self.who.len() > IDENTITIES_MAX || self.who_bytes > IDENTITIES_BYTES_MAX {
            return Ok(self.refuse_proof(xid, revision, stats));
        }
        // Clients of ZooKeeper give their proofs any xid, and wait for an answer to it.
        Ok(Slot::Ready(JuteMessage::reply(xid, revision, error::OK)))
    }

    fn refuse_proof(&mut self, xid: i32, revision: u64, stats: &mut Stats) -> Slot {
        self.stage = Stage::Leaving;
        stats.refusals.note(self.peer, &ClientRefusal::Proof);
        Slot::Ready(JuteMessage::reply(xid, revision, error::AUTH_FAILED))
    }

    /// The answer of the order to a slot.
    pub fn answer_of(
        &mut self,
        slot: u64,
        answer: ReplicaAnswer,
        stats: &mut Stats,
    ) -> Result<(), ConnectionEnd> {
        let at = slot.checked_sub(self.answered).and_then(|at| usize::try_from(at).ok());
        let Some(waiting) = at.and_then(|at| self.slots.get_mut(at)) else { return Ok(()) };
        let (reply, revision) = match answer {
            ReplicaAnswer::Applied(reply, revision) => (reply, revision),
            // The end of the connection tells the client to ask again.
            ReplicaAnswer::Unknown => return Err(ConnectionEnd::Gone),
            ReplicaAnswer::TooLong(bytes) => {
                // Asking again is no use: the request is too long for every replica.
                stats.refusals.note(self.peer, &ClientRefusal::Call(bytes));
                (KeyReply::Refused(0, KeyRefusal::TooLong), self.shown.last_revision)
            }
        };
        let nothing = Slot::Ready(JuteMessage::default());
        waiting.slot = match core::mem::replace(&mut waiting.slot, nothing) {
            Slot::Asked(xid, shape) => {
                stats.latency.add(waiting.since.elapsed().as_micros() as u64);
                self.slots_bytes -= waiting.bytes;
                waiting.bytes = reply.bytes() + SLOT_BYTES;
                self.slots_bytes += waiting.bytes;
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
        shared: &SharedKeys,
        stats: &mut Stats,
        room: &mut usize,
    ) -> Result<(), ConnectionEnd> {
        while self.output.len() - self.taken < OUTPUT_HIGH_BYTES {
            match self.slots.front().map(|first| &first.slot) {
                None | Some(Slot::Asked(..)) => break,
                Some(Slot::Read(..)) if *room == 0 => break,
                Some(_) => {}
            }
            let Some(waiting) = self.slots.pop_front() else { break };
            self.slots_bytes -= waiting.bytes;
            self.answered += 1;
            self.note_answer(&waiting, keys.revision());
            let message = match waiting.slot {
                Slot::Ready(message) => message,
                Slot::Answered(_, ReplyShape::Open(hello), reply, revision) => {
                    self.opened(hello, &reply, revision, keys, stats)?
                }
                // As ZooKeeper does: the client of an earlier connection gets no answer here.
                Slot::Answered(_, _, KeyReply::Refused(_, KeyRefusal::Moved), _) => {
                    return Err(ConnectionEnd::Gone);
                }
                Slot::Answered(xid, shape, reply, revision) => {
                    let is_end = matches!((&shape, &reply), (ReplyShape::Close, KeyReply::Done(_)));
                    // A client whose session has ended needs a new one.
                    let has_ended = matches!(reply, KeyReply::Refused(_, KeyRefusal::NoSession));
                    if is_end || has_ended {
                        self.stage = Stage::Closing;
                    }
                    shape.answer(xid, revision, &reply)
                }
                Slot::Read(xid, query) => {
                    let (connection, session, who) = (self.id, self.session, &self.who[..]);
                    let mut reading = ReadingClient::new(connection, session, who);
                    let message = query.answer(xid, keys, shared, &mut reading);
                    let ReadingClient { missed, is_full, work, .. } = reading;
                    *room = room.saturating_sub(work + message.length() / BYTES_PER_WORK);
                    if is_full {
                        stats.refusals.note(self.peer, &ClientRefusal::Watches);
                        return Err(ConnectionEnd::Gone);
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
        reply: &KeyReply,
        revision: u64,
        keys: &Keys,
        stats: &mut Stats,
    ) -> Result<JuteMessage, ConnectionEnd> {
        // The revision of the call is above every revision that this client has seen. Otherwise the
        // client has seen another service.
        if hello.seen > revision as i64 {
            let refusal = ClientRefusal::Ahead { seen: hello.seen, known: revision };
            stats.refusals.note(self.peer, &refusal);
            return Err(ConnectionEnd::Gone);
        }
        let is_open = matches!(reply, KeyReply::Done(_));
        if !is_open {
            stats.refusals.note(self.peer, &ClientRefusal::Session(self.session));
            (self.session, self.timeout_ms) = (0, 0);
        } else if let Some(session) = keys.session(self.session) {
            self.timeout_ms = session.timeout_ms.into();
        }
        self.opened = revision;
        self.stage = if is_open { Stage::Open } else { Stage::Closing };
        let mut shown = hello.password.to_le_bytes().to_vec();
        shown.resize(PASSWORD_BYTES, 0);
        let message = JuteMessage::default().int(0).int(self.timeout_ms as i32);
        let message = message.long(self.session as i64).buffer(&shown);
        // As ZooKeeper does: a client that did not name the field gets none, because such a client
        // counts the bytes.
        Ok(if hello.has_read_only { message.bool(false) } else { message })
    }

    /// Notes an answer for `cons`.
    fn note_answer(&mut self, waiting: &Waiting, revision: u64) {
        let us = waiting.since.elapsed().as_micros() as u64;
        self.shown.latency.add(us);
        self.shown.last_latency_us = us;
        self.shown.last_operation = waiting.number;
        self.shown.last_xid = waiting.xid;
        self.shown.last_revision = revision;
        self.shown.last_response_ms = now_ms();
    }

    /// Sends an event before all answers that are not in the output yet. A client that may not read
    /// the key does not get the event.
    pub fn tell(&mut self, event: &Event, stats: &mut Stats) -> Result<(), ConnectionEnd> {
        if !allows(&event.rights, READ, &self.who) {
            return Ok(());
        }
        let message = JuteMessage::reply(EVENT_XID, u64::MAX, 0);
        let message = message.int(event.told as i32).int(CONNECTED).text(&event.path);
        self.output.extend(message.finish());
        stats.sent += 1;
        self.packets.1 += 1;
        if self.output.len() - self.taken > OUTPUT_BYTES_MAX {
            return Err(ConnectionEnd::Gone);
        }
        Ok(())
    }

    /// Sends a text for people, without a head.
    pub fn say(&mut self, text: &str) {
        self.output.extend(text.as_bytes());
    }

    /// Sends the client as much of the output as it takes now.
    pub fn write(&mut self) -> Result<(), ConnectionEnd> {
        while self.wants_output() {
            match self.stream.write(&self.output[self.taken..]) {
                Ok(0) => return Err(ConnectionEnd::Gone),
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
                Err(_) => return Err(ConnectionEnd::Gone),
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
