//! The messages of a client, each within its limits.
//!
//! A message says its length in front:
//!
//! ```text
//!  startup   | length, 4 | code, 4 |           body |    the first packets of a connection
//!  later     | type, 1 | length, 4 |           body |
//! ```
//!
//! pgwire has a decoder as well. It believes lengths up to 1 GiB and buffers them, it reads a short
//! body beyond its end, and takes what a long body leaves for the next message. Here the length is
//! judged before a byte of the body is held, and a body is decoded as what it is or refused.
//!
//! A message that is too long is refused by its length and the limit. Where the connection can go
//! on, the body is thrown away as it comes. Longer messages of all connections share a budget, so
//! that a thousand clients cannot hold a thousand statements of a mebibyte. A message that has
//! begun must be whole in time.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use evenfall_query_sql::{BESIDE_STATEMENT_BYTES, BudgetShare, LongMessageBudget, UNCOUNTED_BYTES};
use pgwire::messages::cancel::CancelRequest;
use pgwire::messages::extendedquery::{Bind, Close, Describe, Execute, Flush, Parse, Sync};
use pgwire::messages::simplequery::Query;
use pgwire::messages::startup::{GssEncRequest, SecretKey, SslRequest, Startup};
use pgwire::messages::terminate::Terminate;
use pgwire::messages::{PgWireFrontendMessage, SslNegotiationMetaMessage};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The first packet of a connection, as in PostgreSQL.
const STARTUP_BYTES: usize = 10_000;

/// A password. The server asks for none, and a client may send one all the same.
const PASSWORD_BYTES: usize = 1_024;

/// Messages without a statement and without values: they hold two names at most.
const SMALL_BYTES: usize = 10_000;

/// Bytes that are asked of the socket at once.
const READ_BYTES: usize = 8 << 10;

/// The keys of a startup packet: drivers send a dozen.
const STARTUP_KEYS: usize = 64;

/// The limits of the messages of a listener.
#[derive(Clone, Debug)]
pub(crate) struct MessageBounds {
    /// Bytes of a statement, and of the values of its parameters.
    statement_bytes: usize,
    /// Time from the first byte of a message to its last.
    message_time: Duration,
    budget: LongMessageBudget,
}

impl MessageBounds {
    pub(crate) fn new(statement_bytes: usize, message_time: Duration) -> Self {
        Self { statement_bytes, message_time, budget: LongMessageBudget::new(statement_bytes) }
    }

    /// Bytes of a message of this type, its length included, and the option that sets the limit.
    fn limit_of(&self, kind: u8) -> (usize, &'static str) {
        match kind {
            b'Q' | b'P' | b'B' => {
                let limit = self.statement_bytes.saturating_add(BESIDE_STATEMENT_BYTES);
                (limit, " (--statement-bytes)")
            }
            b'p' => (PASSWORD_BYTES, ""),
            _ => (SMALL_BYTES, ""),
        }
    }
}

/// A message that is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MessageRefusal {
    /// The code of PostgreSQL.
    pub(crate) code: &'static str,
    pub(crate) words: String,
    /// Whether the connection must end.
    pub(crate) is_fatal: bool,
    /// Whether the message is one of the extended protocol, whose later messages are skipped until
    /// the client synchronises.
    pub(crate) is_extended: bool,
}

impl MessageRefusal {
    fn refuse_fatally(code: &'static str, words: String) -> Self {
        Self { code, words, is_fatal: true, is_extended: false }
    }

    fn malformed(what: &str) -> Self {
        Self::refuse_fatally("08P01", format!("a message is malformed: {what}"))
    }

    /// A refusal after which the connection goes on.
    fn refuse_one(code: &'static str, words: String, kind: u8) -> Self {
        let is_extended = matches!(kind, b'P' | b'B' | b'D' | b'E' | b'C' | b'H' | b'S');
        Self { code, words, is_fatal: false, is_extended }
    }
}

/// Why there is no message.
#[derive(Debug)]
pub(crate) enum NoMessage {
    Refused(MessageRefusal),
    /// The client has gone.
    Gone,
}

impl From<MessageRefusal> for NoMessage {
    fn from(refusal: MessageRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<io::Error> for NoMessage {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// Reads the messages of one client.
pub(crate) struct MessageReader {
    bounds: MessageBounds,
    buffer: BytesMut,
    /// Whether the startup packet has come.
    is_started: bool,
    /// Bytes of a refused body that are still to be thrown away.
    refused_left: usize,
    /// The share of a longer message in the budget, kept until the next message begins: the message
    /// is worked on meanwhile.
    share: Option<BudgetShare>,
}

impl fmt::Debug for MessageReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageReader").field("held", &self.buffer.len()).finish_non_exhaustive()
    }
}

impl MessageReader {
    pub(crate) fn new(bounds: MessageBounds) -> Self {
        let buffer = BytesMut::new();
        Self { bounds, buffer, is_started: false, refused_left: 0, share: None }
    }

    /// Bytes of memory that the reader holds.
    #[cfg(any(fuzzing, test))]
    pub(crate) fn held_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// The next message. Dropping the future loses no byte.
    ///
    /// # Errors
    /// A message that is not taken, and a client that has gone.
    pub(crate) async fn next(
        &mut self,
        socket: &mut (impl AsyncRead + Unpin),
    ) -> Result<PgWireFrontendMessage, NoMessage> {
        // A client may think as long as it likes before it begins a message.
        if self.buffer.is_empty() && self.refused_left == 0 {
            self.read_some(socket, READ_BYTES).await?;
        }
        let time = self.bounds.message_time;
        match tokio::time::timeout(time, self.next_begun(socket)).await {
            Ok(message) => message,
            Err(_) => {
                let words = format!("a message was not whole within {} seconds", time.as_secs());
                Err(MessageRefusal::refuse_fatally("08P01", words).into())
            }
        }
    }

    async fn next_begun(
        &mut self,
        socket: &mut (impl AsyncRead + Unpin),
    ) -> Result<PgWireFrontendMessage, NoMessage> {
        while self.refused_left > 0 {
            if self.buffer.is_empty() {
                self.read_some(socket, READ_BYTES).await?;
            }
            let thrown = self.refused_left.min(self.buffer.len());
            self.buffer.advance(thrown);
            self.refused_left -= thrown;
        }
        // Startup packets have no type in front of their length.
        let length_at = usize::from(self.is_started);
        while self.buffer.len() < length_at + 4 {
            self.read_some(socket, READ_BYTES).await?;
        }
        let kind = self.buffer[0];
        let length = (&self.buffer[length_at..]).get_u32() as usize;
        self.share = None;
        self.judge(kind, length)?;
        let whole = length_at + length;
        while self.buffer.len() < whole {
            let missing = whole - self.buffer.len();
            self.read_some(socket, missing.max(READ_BYTES)).await?;
        }
        let mut body = self.buffer.split_to(whole).freeze();
        body.advance(length_at + 4);
        if self.is_started {
            return Ok(decode_message(kind, body)?);
        }
        let packet = decode_startup(body)?;
        self.is_started = !matches!(packet, PgWireFrontendMessage::SslNegotiation(_));
        Ok(packet)
    }

    /// Refuses a message by its type and length.
    fn judge(&mut self, kind: u8, length: usize) -> Result<(), MessageRefusal> {
        if length < 4 {
            return Err(MessageRefusal::malformed("its length is shorter than its head"));
        }
        if !self.is_started {
            if length > STARTUP_BYTES {
                let words =
                    format!("a startup packet of {length} bytes; {STARTUP_BYTES} are taken");
                return Err(MessageRefusal::refuse_fatally("08P01", words));
            }
            return Ok(());
        }
        let (limit, option) = self.bounds.limit_of(kind);
        if length > limit {
            let words = format!("a message of {length} bytes; {limit} are taken{option}");
            if kind == b'p' {
                return Err(MessageRefusal::refuse_fatally("54000", words));
            }
            self.refused_left = length + 1;
            return Err(MessageRefusal::refuse_one("54000", words, kind));
        }
        if length <= UNCOUNTED_BYTES {
            return Ok(());
        }
        self.share = self.bounds.budget.take_share(length);
        if self.share.is_some() {
            return Ok(());
        }
        self.refused_left = length + 1;
        let words = "long statements of other clients hold the memory for statements; ask again \
                     later";
        Err(MessageRefusal::refuse_one("53200", words.to_owned(), kind))
    }

    /// Reads at least one byte, and room for as many as are wanted.
    async fn read_some(
        &mut self,
        socket: &mut (impl AsyncRead + Unpin),
        wanted: usize,
    ) -> Result<(), NoMessage> {
        if self.buffer.capacity() - self.buffer.len() < READ_BYTES {
            self.buffer.reserve(wanted);
        }
        match socket.read_buf(&mut self.buffer).await? {
            0 => Err(NoMessage::Gone),
            _ => Ok(()),
        }
    }
}

/// The bytes of a body, each of which is asked for.
struct Body(Bytes);

impl Body {
    fn text(&mut self) -> Result<String, MessageRefusal> {
        let end = self.0.iter().position(|byte| *byte == 0);
        let end = end.ok_or_else(|| MessageRefusal::malformed("a text has no end"))?;
        let text = self.0.split_to(end);
        self.0.advance(1);
        String::from_utf8(text.into())
            .map_err(|_| MessageRefusal::refuse_fatally("22021", "a text is not UTF-8".to_owned()))
    }

    /// A name, of which the empty one is none.
    fn name(&mut self) -> Result<Option<String>, MessageRefusal> {
        self.text().map(|name| Some(name).filter(|name| !name.is_empty()))
    }

    fn take(&mut self, bytes: usize) -> Result<Bytes, MessageRefusal> {
        if self.0.len() < bytes {
            return Err(MessageRefusal::malformed("it ends too early"));
        }
        Ok(self.0.split_to(bytes))
    }

    fn u8(&mut self) -> Result<u8, MessageRefusal> {
        self.take(1).map(|mut bytes| bytes.get_u8())
    }

    fn take_i16(&mut self) -> Result<i16, MessageRefusal> {
        self.take(2).map(|mut bytes| bytes.get_i16())
    }

    fn u32(&mut self) -> Result<u32, MessageRefusal> {
        self.take(4).map(|mut bytes| bytes.get_u32())
    }

    /// As many values as a count in front of them says. The count reserves nothing.
    fn list<T>(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<T, MessageRefusal>,
    ) -> Result<Vec<T>, MessageRefusal> {
        let count = self.take_i16()? as u16;
        (0..count).map(|_| one(self)).collect()
    }

    fn value(&mut self) -> Result<Option<Bytes>, MessageRefusal> {
        let length = self.u32()? as i32;
        usize::try_from(length).ok().map(|length| self.take(length)).transpose()
    }

    fn end<T>(&self, message: T) -> Result<T, MessageRefusal> {
        match self.0.is_empty() {
            true => Ok(message),
            false => Err(MessageRefusal::malformed("it has bytes after its end")),
        }
    }
}

/// Decodes a packet that comes before the client has started.
pub(crate) fn decode_startup(body: Bytes) -> Result<PgWireFrontendMessage, MessageRefusal> {
    use PgWireFrontendMessage::{CancelRequest as Cancel, SslNegotiation, Startup as Started};
    let mut body = Body(body);
    match body.u32()? as i32 {
        SslRequest::BODY_MAGIC_NUMBER => {
            let asked = SslNegotiationMetaMessage::PostgresSsl(SslRequest::new());
            body.end(SslNegotiation(asked))
        }
        GssEncRequest::BODY_MAGIC_NUMBER => {
            let asked = SslNegotiationMetaMessage::PostgresGss(GssEncRequest::new());
            body.end(SslNegotiation(asked))
        }
        CANCEL_CODE => {
            let pid = body.u32()? as i32;
            let secret = body.0;
            match (4..=256).contains(&secret.len()) {
                true => Ok(Cancel(CancelRequest::new(pid, SecretKey::Bytes(secret)))),
                false => Err(MessageRefusal::malformed("a secret has 4 to 256 bytes")),
            }
        }
        version if version >> 16 == 3 => {
            let mut startup = Startup::new();
            startup.protocol_number_minor = version as u16;
            loop {
                let key = body.text()?;
                if key.is_empty() {
                    return body.end(Started(startup));
                }
                startup.parameters.insert(key, body.text()?);
                if startup.parameters.len() > STARTUP_KEYS {
                    return Err(MessageRefusal::malformed("it has too many parameters"));
                }
            }
        }
        version => {
            let (major, minor) = (version >> 16, version & 0xffff);
            let words = format!("version {major}.{minor} of the protocol is not spoken here; 3 is");
            Err(MessageRefusal::refuse_fatally("08P01", words))
        }
    }
}

/// The code of a packet that cancels a statement of another connection.
const CANCEL_CODE: i32 = 80_877_102;

/// Decodes a message of a client that has started.
pub(crate) fn decode_message(
    kind: u8,
    body: Bytes,
) -> Result<PgWireFrontendMessage, MessageRefusal> {
    use PgWireFrontendMessage as Message;
    let mut body = Body(body);
    let message = match kind {
        b'Q' => Message::Query(Query::new(body.text()?)),
        b'P' => Message::Parse(Parse::new(body.name()?, body.text()?, body.list(Body::u32)?)),
        b'B' => Message::Bind(Bind::new(
            body.name()?,
            body.name()?,
            body.list(Body::take_i16)?,
            body.list(Body::value)?,
            body.list(Body::take_i16)?,
        )),
        b'D' => Message::Describe(Describe::new(body.u8()?, body.name()?)),
        b'C' => Message::Close(Close::new(body.u8()?, body.name()?)),
        b'E' => Message::Execute(Execute::new(body.name()?, body.u32()? as i32)),
        b'H' => Message::Flush(Flush::new()),
        b'S' => Message::Sync(Sync::new()),
        b'X' => Message::Terminate(Terminate::new()),
        b'p' => return Err(MessageRefusal::malformed("nobody asked for a password")),
        b'd' | b'c' | b'f' => {
            let words = "COPY is not served, so that its data are not expected";
            return Err(MessageRefusal::refuse_fatally("08P01", words.to_owned()));
        }
        b'F' => {
            let words = "function calls of the protocol are not served".to_owned();
            return Err(MessageRefusal::refuse_one("0A000", words, kind));
        }
        other => {
            return Err(MessageRefusal::refuse_fatally(
                "08P01",
                format!("invalid message type {other}"),
            ));
        }
    };
    body.end(message)
}

#[cfg(test)]
mod tests;
