//! A client of the keys. Every change takes effect once, however often the client had to send it.

use std::collections::BTreeMap;
use std::io::{self, BufReader, ErrorKind, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::{Malformed, Reader};
use evenfall_keys_machine::jute::{
    FRAME_BYTES_MAX, Fields, JuteMessage, WatchEventKind, error, op,
};
use evenfall_keys_machine::{
    Command, KeyCall, KeyOperation, KeyOutcome, KeyRefusal, KeyReply, Stat,
};

use crate::ClientError;

/// Timeout of the session of a client that asks for none. Such a client has no ephemeral keys, so
/// the longest timeout that replicas give does no harm when the client is killed.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A client that gets no answer for this long repeats its request at another replica. Half of the
/// patience that is left is shorter for most clients.
const ATTEMPT: Duration = Duration::from_secs(5);
/// A client that gets no connection for this long tries another replica.
const CONNECT: Duration = Duration::from_secs(1);
/// Time between two rounds over all replicas.
const ROUND: Duration = Duration::from_millis(50);
/// Longest answer that is read. Long answers are ranges of values and lists of names.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Longest answer to a question about the replica itself.
const STATUS_BYTES_MAX: u64 = 64 << 10;
const PING_XID: i32 = -2;
const EVENT_XID: i32 = -1;

/// Reads the rest of a message of which the length has been read.
///
/// # Errors
/// [`InvalidData`](io::ErrorKind::InvalidData) when the message is longer than `bytes_max`, or the
/// error of the stream.
pub fn frame(length: [u8; 4], stream: &mut impl Read, bytes_max: usize) -> io::Result<Vec<u8>> {
    let length = u32::from_be_bytes(length) as usize;
    if length > bytes_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
    }
    let mut bytes = Vec::new();
    stream.take(length as u64).read_to_end(&mut bytes)?;
    match bytes.len() == length {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundKey {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Bytes,
    /// Versions, times and owner of the key.
    pub stat: Stat,
}

/// A change that a watch reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedChange {
    /// The kind of the change, such as `changed`.
    pub told: &'static str,
    /// The key that changed.
    pub key: String,
}

/// A client. Dropping the value closes its session.
#[derive(Debug)]
pub struct KeysClient {
    replicas: Vec<SocketAddr>,
    /// The index of the replica that is asked first.
    at: usize,
    stream: Option<BufReader<TcpStream>>,
    session: u64,
    /// The timeout of the session: what was asked for, and what the replicas gave.
    timeout: (Duration, Duration),
    password: Vec<u8>,
    /// The newest revision that was seen.
    revision: i64,
    sequence: u64,
    xid: i32,
    patience: Duration,
}

/// An answer: its error, and the fields behind its head.
type Answered = (i32, Vec<u8>);
/// Bytes in front of the fields of an answer.
const HEAD_BYTES: usize = 16;

impl KeysClient {
    /// A client of these replicas. An answer may take up to `patience`.
    pub fn new(replicas: Vec<SocketAddr>, patience: Duration) -> Self {
        Self {
            replicas,
            at: 0,
            stream: None,
            session: 0,
            timeout: (TIMEOUT, TIMEOUT),
            password: vec![0; 16],
            revision: 0,
            sequence: 0,
            xid: 0,
            patience,
        }
    }

    /// The client with another timeout of its session. When the client is silent for longer, the
    /// session ends, and with it the client's ephemeral keys. Each change is a sign of life that is
    /// ordered. A change of nothing is one, too.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout.0 = timeout;
        self
    }

    /// The session and the timeout that the replicas gave it. Opens a session when there is none.
    ///
    /// # Errors
    /// [`ClientError::Unanswered`].
    pub fn session(&mut self) -> Result<(u64, Duration), ClientError> {
        self.ask(op::SYNC_KEY, |message| message.text(""))?;
        Ok((self.session, self.timeout.1))
    }

    /// The number of the session, as far as the client knows; 0 for none. No change goes on in
    /// another session by itself.
    pub fn number(&self) -> u64 {
        self.session
    }

    /// Ends the session, and with it the client's ephemeral keys. The next call opens another one.
    ///
    /// # Errors
    /// [`ClientError::Unanswered`]. The session then ends at its timeout.
    pub fn end(&mut self) -> Result<(), ClientError> {
        let ended = self.ask(op::CLOSE, |message| message);
        self.abandon();
        ended.map(|_| ())
    }

    /// Leaves the session, which ends at its timeout, as if the client were killed. The next call
    /// opens another one.
    pub fn abandon(&mut self) {
        (self.stream, self.session) = (None, 0);
    }

    /// Changes keys: all operations, or none.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when nothing was changed, [`ClientError::Unanswered`] when it is
    /// unknown whether the change was made.
    pub fn change(&mut self, ops: Vec<KeyOperation>) -> Result<Vec<KeyOutcome>, ClientError> {
        self.sequence += 1;
        let (session, opened, sequence, at_ms) = (0, 0, self.sequence, 0);
        let call = KeyCall { session, opened, sequence, at_ms, command: Command::Change(ops) };
        let body = call.encode();
        let (_, fields) = self.ask(op::CALL, |message| message.buffer(&body))?;
        let mut fields = Fields::new(&fields);
        let bytes = fields.buffer().map_err(ClientError::Answer)?;
        match KeyReply::read(&mut Reader::new(bytes)).map_err(ClientError::Answer)? {
            KeyReply::Done(outcomes) => Ok(outcomes),
            KeyReply::Refused(_, refusal) => {
                if refusal == KeyRefusal::NoSession {
                    self.abandon();
                }
                Err(ClientError::Refused(refusal))
            }
        }
    }

    /// Asks the connected replica, which has to run on this host, to take a rack out as planned.
    /// [`status`] shows when the rack is out.
    ///
    /// # Errors
    /// [`ClientError::Rack`] when the replica refuses, or [`ClientError::Unanswered`].
    pub fn retire(&mut self, rack: u8) -> Result<(), ClientError> {
        let (number, _) = self.ask(op::RETIRE, |message| message.int(rack.into()))?;
        match number {
            error::OK => Ok(()),
            error::NO_AUTH => Err(ClientError::Rack(rack, "ask a replica on its own host")),
            error::NO_NODE => Err(ClientError::Rack(rack, "there is no such rack")),
            _ => Err(ClientError::Rack(rack, "the racks that are left could not go on")),
        }
    }

    /// Sets the limit of all keys and values. The connected replica has to run on this host.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the replica runs on another host, or
    /// [`ClientError::Unanswered`].
    pub fn limit(&mut self, mib: u32) -> Result<(), ClientError> {
        let mib = i32::try_from(mib).unwrap_or(i32::MAX);
        let (number, _) = self.ask(op::LIMIT, |message| message.int(mib))?;
        refused(number)
    }

    /// The value of a key, after all changes that were answered before this call.
    ///
    /// # Errors
    /// [`ClientError::Unanswered`].
    pub fn get(&mut self, key: &str) -> Result<Option<FoundKey>, ClientError> {
        self.ask(op::SYNC_KEY, |message| message.text(key))?;
        self.get_here(key)
    }

    /// The value of a key as the connected replica knows it.
    ///
    /// # Errors
    /// [`ClientError::Unanswered`].
    pub fn get_here(&mut self, key: &str) -> Result<Option<FoundKey>, ClientError> {
        let (number, fields) = self.ask(op::GET_DATA, |message| message.text(key).bool(false))?;
        if number == error::NO_NODE {
            return Ok(None);
        }
        refused(number)?;
        let read = || -> Result<FoundKey, Malformed> {
            let mut fields = Fields::new(&fields);
            let value = Bytes::copy_from_slice(fields.buffer()?);
            Ok(FoundKey { key: key.to_owned(), value, stat: fields.stat()? })
        };
        read().map(Some).map_err(ClientError::Answer)
    }

    /// Keys that begin with a prefix, from `first` on, and whether there are more.
    ///
    /// # Errors
    /// [`ClientError::Unanswered`].
    pub fn range(
        &mut self,
        prefix: &str,
        first: &str,
        count: usize,
    ) -> Result<(Vec<FoundKey>, bool), ClientError> {
        self.ask(op::SYNC_KEY, |message| message.text(""))?;
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        let (_, fields) =
            self.ask(op::RANGE, |message| message.text(prefix).text(first).int(count))?;
        let read = || -> Result<(Vec<FoundKey>, bool), Malformed> {
            let mut fields = Fields::new(&fields);
            let mut found = Vec::new();
            for _ in 0..fields.count()? {
                let key = fields.text()?.into_owned();
                let value = Bytes::copy_from_slice(fields.buffer()?);
                found.push(FoundKey { key, value, stat: fields.stat()? });
            }
            Ok((found, fields.bool()?))
        };
        read().map_err(ClientError::Answer)
    }

    /// Watches a key, and with `below` all paths below it. The watch ends with its connection.
    ///
    /// # Errors
    /// [`ClientError::Unanswered`].
    pub fn watch(mut self, key: &str, below: bool) -> Result<Watching, ClientError> {
        let mode = i32::from(below);
        let (number, _) = self.ask(op::ADD_WATCH, |message| message.text(key).int(mode))?;
        refused(number)?;
        Ok(Watching { client: self, asked: None })
    }

    /// Asks until a replica answers. An error that the keys gave is part of the answer.
    fn ask(
        &mut self,
        number: i32,
        fields: impl Fn(JuteMessage) -> JuteMessage,
    ) -> Result<Answered, ClientError> {
        let deadline = Instant::now() + self.patience;
        let mut has_said = false;
        loop {
            let (session, at) = (self.session, self.at);
            let left = deadline.saturating_duration_since(Instant::now());
            // The next replica gets the other half, and a single replica gets all.
            let attempt = if self.replicas.len() > 1 { left / 2 } else { left };
            let attempt = attempt.clamp(ROUND, ATTEMPT);
            let failed = match self.try_ask(number, attempt, &fields) {
                Ok((error::SESSION_EXPIRED, _)) => {
                    return Err(ClientError::Refused(KeyRefusal::NoSession));
                }
                Ok(answered) => return Ok(answered),
                Err(failed) if failed.kind() == ErrorKind::FileTooLarge => {
                    return Err(ClientError::Refused(KeyRefusal::TooLong));
                }
                Err(failed) => failed,
            };
            let is_connected = self.stream.take().is_some();
            // The next call begins elsewhere, too.
            self.at += 1;
            if session != 0 && self.session == 0 && number == op::CALL {
                // The session that remembers the reply is gone.
                return Err(ClientError::Refused(KeyRefusal::NoSession));
            }
            if Instant::now() >= deadline {
                let is_slow = matches!(failed.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                let hint = match is_connected && is_slow {
                    true => "it runs, and perhaps it lacks a majority",
                    false => "is `evenfall run keys` running?",
                };
                let what = format!("{}: {failed}: {hint}", self.replicas[at % self.replicas.len()]);
                return Err(ClientError::Unanswered(what));
            }
            if self.at.is_multiple_of(self.replicas.len()) {
                // Whoever waits hears at once that nobody listens, and not when patience ends.
                if !core::mem::replace(&mut has_said, true) && !is_connected {
                    let at: Vec<_> = self.replicas.iter().map(ToString::to_string).collect();
                    tracing::warn!(
                        "no replica can be reached at {} ({failed}): is `evenfall run keys` \
                         running? Tries again for up to {} s",
                        at.join(", "),
                        left.as_secs()
                    );
                }
                std::thread::sleep(ROUND);
            }
        }
    }

    fn try_ask(
        &mut self,
        number: i32,
        attempt: Duration,
        fields: &impl Fn(JuteMessage) -> JuteMessage,
    ) -> io::Result<Answered> {
        self.connect(attempt)?;
        self.xid = self.xid.wrapping_add(1) & i32::MAX;
        let xid = self.xid;
        let message = fields(JuteMessage::default().int(xid).int(number));
        if message.length() > 4 + FRAME_BYTES_MAX {
            // A replica would close the connection.
            return Err(ErrorKind::FileTooLarge.into());
        }
        self.send(message)?;
        loop {
            let (of, error, bytes) = self.receive()?;
            if of == xid {
                return Ok((error, bytes));
            }
        }
    }

    fn send(&mut self, message: JuteMessage) -> io::Result<()> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        stream.get_mut().write_all(&message.finish())
    }

    /// The next message: its xid, its error and its fields.
    fn receive(&mut self) -> io::Result<(i32, i32, Vec<u8>)> {
        let bytes = self.read_frame()?;
        let mut head = Fields::new(&bytes);
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let xid = head.int().map_err(invalid)?;
        self.revision = self.revision.max(head.long().map_err(invalid)?);
        let error = head.int().map_err(invalid)?;
        Ok((xid, error, bytes[HEAD_BYTES..].to_vec()))
    }

    fn read_frame(&mut self) -> io::Result<Vec<u8>> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        frame(length, stream, ANSWER_BYTES_MAX)
    }

    /// Connects to the replica whose turn it is, and goes on with the session if there is one.
    /// From now on, no wait on the connection is longer than an attempt.
    fn connect(&mut self, attempt: Duration) -> io::Result<()> {
        let limit = |stream: &TcpStream| {
            stream.set_read_timeout(Some(attempt))?;
            stream.set_write_timeout(Some(attempt))
        };
        if let Some(stream) = &self.stream {
            return limit(stream.get_ref());
        }
        let Some(to) = self.replicas.get(self.at % self.replicas.len().max(1)) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no replica is named"));
        };
        let stream = TcpStream::connect_timeout(to, CONNECT.min(attempt))?;
        stream.set_nodelay(true)?;
        limit(&stream)?;
        self.stream = Some(BufReader::new(stream));
        let asked_ms = i32::try_from(self.timeout.0.as_millis()).unwrap_or(i32::MAX);
        let hello = JuteMessage::default().int(0).long(self.revision).int(asked_ms);
        let hello = hello.long(self.session as i64).buffer(&self.password).bool(false);
        self.send(hello)?;
        let bytes = self.read_frame()?;
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut answer = Fields::new(&bytes);
        let (_protocol, given_ms) =
            (answer.int().map_err(invalid)?, answer.int().map_err(invalid)?);
        self.timeout.1 = Duration::from_millis(given_ms.max(0) as u64);
        self.session = answer.long().map_err(invalid)? as u64;
        self.password = answer.buffer().map_err(invalid)?.to_vec();
        match self.session {
            0 => Err(io::Error::other("the session has ended")),
            _ => Ok(()),
        }
    }
}

/// The refusal that the error of an answer stands for.
fn refused(number: i32) -> Result<(), ClientError> {
    Err(ClientError::Refused(match number {
        error::OK => return Ok(()),
        error::NO_AUTH => KeyRefusal::NoRight,
        error::QUOTA_EXCEEDED => KeyRefusal::Full,
        error::BAD_ARGUMENTS => KeyRefusal::BadKey,
        _ => return Err(ClientError::Unanswered(format!("the error {number}"))),
    }))
}

impl Drop for KeysClient {
    fn drop(&mut self) {
        if self.stream.is_some() {
            // The request may be lost, because the session then ends at its timeout.
            let _ = self.send(JuteMessage::default().int(0).int(op::CLOSE));
        }
    }
}

/// What a replica reports about itself: values by their names.
///
/// # Errors
/// When the replica cannot be reached, or does not answer the word `mntr`.
pub fn status(replica: SocketAddr) -> io::Result<BTreeMap<String, String>> {
    let mut stream = TcpStream::connect_timeout(&replica, CONNECT)?;
    stream.set_read_timeout(Some(CONNECT))?;
    stream.write_all(b"mntr")?;
    let mut text = String::new();
    stream.take(STATUS_BYTES_MAX).read_to_string(&mut text)?;
    let rows = text.lines().filter_map(|line| line.split_once('\t'));
    // Monitors want `zk_` in front of every name. The names of our own are known without it.
    let own = |name: &str| name.strip_prefix("zk_evenfall_").map(|rest| format!("evenfall_{rest}"));
    let rows: BTreeMap<_, _> = rows
        .map(|(name, value)| (own(name).unwrap_or_else(|| name.to_owned()), value.to_owned()))
        .collect();
    match (rows.is_empty(), text.is_empty()) {
        (false, _) => {}
        (true, true) => return Err(io::Error::other("it closes the connection at once")),
        (true, false) => return Err(io::Error::other("its 4lw.commands.whitelist lacks mntr")),
    }
    Ok(rows)
}

/// A watch. See [`KeysClient::watch`].
#[derive(Debug)]
pub struct Watching {
    client: KeysClient,
    /// When the first ping was sent that has no answer.
    asked: Option<Instant>,
}

impl Watching {
    /// The next change; `None` when nothing changed for `wait`.
    ///
    /// # Errors
    /// [`ClientError::Unanswered`] when the connection has ended. The caller may have missed
    /// changes, and has to watch the key anew.
    pub fn next(&mut self, wait: Duration) -> Result<Option<WatchedChange>, ClientError> {
        let ended = |error: io::Error| ClientError::Unanswered(error.to_string());
        let client = &mut self.client;
        // A ping keeps the session, and its answer ends the wait.
        let wait = wait.clamp(ROUND, ROUND.max(client.timeout.1 / 3));
        let stream =
            client.stream.as_ref().ok_or_else(|| ended(io::ErrorKind::NotConnected.into()))?;
        stream.get_ref().set_read_timeout(Some(wait)).map_err(ended)?;
        let begun = stream.buffer().is_empty().then(|| stream.get_ref().peek(&mut [0]));
        if let Some(Err(error)) = begun {
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
                if self.asked.get_or_insert_with(Instant::now).elapsed() > ATTEMPT {
                    return Err(ended(ErrorKind::TimedOut.into()));
                }
                client.send(JuteMessage::default().int(PING_XID).int(op::PING)).map_err(ended)?;
                return Ok(None);
            }
            return Err(ended(error));
        }
        // The first bytes of a message have come, so the rest will come soon.
        let stream =
            client.stream.as_ref().ok_or_else(|| ended(io::ErrorKind::NotConnected.into()))?;
        stream.get_ref().set_read_timeout(Some(CONNECT * 10)).map_err(ended)?;
        let (xid, _, bytes) = client.receive().map_err(ended)?;
        self.asked = None;
        if xid != EVENT_XID {
            return Ok(None);
        }
        let mut fields = Fields::new(&bytes);
        let mut read = || -> Result<(i32, String), Malformed> {
            let (told, _state) = (fields.int()?, fields.int()?);
            Ok((told, fields.text()?.into_owned()))
        };
        let (told, key) = read().map_err(ClientError::Answer)?;
        let known = [
            (WatchEventKind::Created, "created"),
            (WatchEventKind::Deleted, "deleted"),
            (WatchEventKind::Changed, "changed"),
            (WatchEventKind::Children, "children"),
        ];
        let told = known.iter().find(|(known, _)| *known as i32 == told);
        Ok(told.map(|(_, told)| WatchedChange { told, key }))
    }

    /// The client, to read what has changed.
    pub fn client(&mut self) -> &mut KeysClient {
        self.asked = None;
        &mut self.client
    }
}
