//! The store's protocol on a connection: frames, requests, replies.
//!
//! A client sends many requests before it reads a reply. A reply names its request, and replies
//! come in any order. Each request spends credit for its own bytes, and its last reply grants that
//! credit again. Neither side therefore holds more bytes than the server first allowed.
//! `docs/wire/store.md` has the tables.
//!
//! ```text
//!  0          4          8          12     13     14     16
//!  | length   | request  | file     | kind | level| zero | body, `length` bytes   a request
//!  | length   | request  | grant    | kind | more | zero | body, `length` bytes   a reply
//! ```

use std::ops::Range;

use evenfall_store_format::Schema;

use super::{Entry, FileListing, StoreAckLevel};

/// Bytes of a frame before its body.
pub const HEADER_BYTES: usize = 16;
/// The version of the protocol. Version 2 has subscriptions and waits, and version 3 says of a read
/// how new its records have to be.
pub const VERSION: u32 = 3;
/// The version without freshness. A client of [`Freshness::Published`] speaks it, so that servers
/// of version 2 answer.
pub const VERSION_PLAIN: u32 = 2;
/// The earliest version that a server speaks. Later versions changed no frame of version 1.
pub const VERSION_MIN: u32 = 1;
/// `EFST` in ASCII. The first request shows whether a peer speaks this protocol.
const MAGIC: u32 = u32::from_le_bytes(*b"EFST");
/// Bytes of the largest body: an append of 65,536 records of 16 bytes.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Largest name of a file.
pub const NAME_BYTES_MAX: usize = 1_024;
/// Bytes of the largest schema, as JSON. A reply carries it beside a name and some numbers.
pub const SCHEMA_BYTES_MAX: usize = BODY_BYTES_MAX - NAME_BYTES_MAX - 64;
/// Files of one wait. The server looks at all of them after each append to one of them, so the
/// limit bounds what an append can cost it. A frame of a mebibyte holds as many names of 246 bytes.
pub const WAIT_FILES_MAX: usize = 4_096;
/// Bytes of the longest error text. Longer texts are cut.
const WORDS_BYTES_MAX: usize = 256;

/// Why bytes are no frame of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedFrame(pub &'static str);

impl std::fmt::Display for MalformedFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no frame of the store's protocol: {}", self.0)
    }
}

impl std::error::Error for MalformedFrame {}

/// How new the records are that a reader wants. A reader says so with each request, as the number
/// of the variant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// The records that the asked node has: of its own files all, and of other nodes' files the
    /// published records. The primary is not asked, and need not run.
    #[default]
    Published,
    /// All appended records. A node asks the primary for those that are not published.
    Fresh,
    /// All appended records, from a node that is the file's primary. Any other node refuses. A node
    /// that asks for its own readers asks so, and no node asks on for it.
    Primary,
}

impl Freshness {
    /// All variants, in the order of their numbers on the wire.
    const ALL: [Self; 3] = [Self::Published, Self::Fresh, Self::Primary];

    /// The version that a client of this freshness speaks.
    pub fn version(self) -> u32 {
        if self == Self::Published { VERSION_PLAIN } else { VERSION }
    }
}

/// The head of every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the body.
    pub length: usize,
    /// Number that the client gave the request.
    pub request: u32,
    /// For a request its file, for a reply the credit that it grants.
    pub extra: u32,
    kind: u8,
    detail: u8,
}

impl FrameHeader {
    /// Credit that the frame spends.
    pub fn cost(&self) -> u64 {
        (HEADER_BYTES + self.length) as u64
    }

    /// How new the records of this request have to be. [`StoreRequest::decode`] has checked the
    /// number.
    pub fn read_freshness(&self) -> Freshness {
        Freshness::ALL.get(usize::from(self.detail)).copied().unwrap_or_default()
    }
}

/// The first frame of these bytes; `None` while it is not whole.
///
/// # Errors
/// [`MalformedFrame`] as soon as the header shows that the bytes are no frame.
pub fn frame(bytes: &[u8]) -> Result<Option<(FrameHeader, &[u8])>, MalformedFrame> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let length = word(0) as usize;
    if length > BODY_BYTES_MAX {
        return Err(MalformedFrame("a body over the limit"));
    }
    if head[14] != 0 || head[15] != 0 {
        return Err(MalformedFrame("reserved bytes are not zero"));
    }
    let (request, extra) = (word(4), word(8));
    let header = FrameHeader { length, request, extra, kind: head[12], detail: head[13] };
    Ok(rest.get(..length).map(|body| (header, body)))
}

/// A request of a client. A file is the number that [`StoreReply::Opened`] gave on this connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRequest<'a> {
    /// The first request of a connection.
    Hello {
        /// The client's version.
        version: u32,
    },
    /// Opens a file. With a schema, a missing file is created.
    Open {
        /// Name of the file.
        name: &'a str,
        /// Meaning of the records.
        schema: Option<Schema>,
    },
    /// Appends whole records.
    Append {
        /// The file.
        file: u32,
        /// Level at which to reply.
        level: StoreAckLevel,
        /// The records.
        records: &'a [u8],
    },
    /// The record of this number.
    Record {
        /// The file.
        file: u32,
        /// The number.
        number: u64,
    },
    /// The latest record at or before a time.
    Latest {
        /// The file.
        file: u32,
        /// The time.
        time_ns: i64,
    },
    /// The records from one time to another, both included.
    Between {
        /// The file.
        file: u32,
        /// First time.
        from_ns: i64,
        /// Last time.
        to_ns: i64,
    },
    /// The numbers of the records that `Between` would return.
    Find {
        /// The file.
        file: u32,
        /// First time.
        from_ns: i64,
        /// Last time.
        to_ns: i64,
    },
    /// The records of these numbers.
    Numbers {
        /// The file.
        file: u32,
        /// Range of the numbers.
        numbers: Range<u64>,
    },
    /// The numbers of the records in the file.
    Size {
        /// The file.
        file: u32,
    },
    /// Files after this name, in order of names.
    List {
        /// The last name so far; empty in the first request.
        after: &'a str,
    },
    /// Begins or continues a copy of a file. A primary sends it to its second node.
    Follow {
        /// Name of the file.
        name: &'a str,
        /// Entry of the file at its primary.
        entry: Entry,
    },
    /// Records for a copy, which are acknowledged when they are synced in the journal.
    Copy {
        /// The file.
        file: u32,
        /// Number of the first record.
        first: u64,
        /// The records.
        records: &'a [u8],
    },
    /// Pushes the records of a file from a number on, those that come later too.
    Subscribe {
        /// The file.
        file: u32,
        /// Number of the first record.
        first: u64,
        /// Bytes of records that the server may push.
        credit: u64,
    },
    /// Lets the server push more bytes for the subscription of this request number.
    Grant {
        /// Bytes of records.
        credit: u64,
    },
    /// Ends the subscription of this request number.
    Unsubscribe,
    /// Replies as soon as one of the files has more records than stated, or when the time is over.
    Wait {
        /// How long, in milliseconds.
        time_ms: u32,
        /// The files.
        ends: Vec<KnownEnd>,
    },
}

/// How far a reader knows a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownEnd {
    /// Name of the file.
    pub name: String,
    /// Number behind the last record that the reader knows.
    pub end: u64,
}

/// Why a subscription ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubscriptionEnd {
    /// The client asked for the end.
    Asked,
    /// The client gave no credit for too long.
    NoCredit,
    /// Retention has deleted records that were still to be pushed.
    RecordsGone,
    /// The file was deleted.
    FileDeleted,
    /// The server stops.
    ServerStopping,
}

impl SubscriptionEnd {
    /// All reasons, in the order of their numbers on the wire.
    const ALL: [Self; 5] =
        [Self::Asked, Self::NoCredit, Self::RecordsGone, Self::FileDeleted, Self::ServerStopping];
}

/// A reply of a server.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreReply<'a> {
    /// The connection is open. Its grant is the whole credit of the client.
    Hello {
        /// The server's version.
        version: u32,
        /// Requests without a last reply that a client may have under way.
        requests_max: u32,
    },
    /// The file is open.
    Opened {
        /// Number of the file on this connection.
        file: u32,
        /// Numbers of the records in the file.
        numbers: Range<u64>,
        /// Meaning of the records.
        schema: Schema,
        /// Whether these are the published records of another node's file, which may have more.
        is_published: bool,
    },
    /// The append has reached its level.
    Appended {
        /// Number of the first record.
        first: u64,
    },
    /// Some of the records. [`StoreReply::Numbers`] follows after the last.
    Records {
        /// The records, one after the other.
        bytes: &'a [u8],
    },
    /// A range of record numbers.
    Numbers {
        /// The range.
        numbers: Range<u64>,
    },
    /// Some files. An empty list follows after the last.
    Listed {
        /// Files in order of names.
        files: Vec<FileListing>,
    },
    /// The copy is open.
    Followed {
        /// Number of the copy on this connection.
        file: u32,
        /// Numbers of the records in the copy.
        numbers: Range<u64>,
        /// Number of the node in a cluster; zero without a cluster.
        node: u32,
    },
    /// Records of a subscription.
    Pushed {
        /// Number of the first record.
        first: u64,
        /// The records.
        bytes: &'a [u8],
    },
    /// The subscription has ended.
    Ended {
        /// The reason.
        why: SubscriptionEnd,
        /// Number of the record that would have been pushed next.
        next: u64,
        /// Number of the first record that the file still has.
        kept: u64,
    },
    /// The request was not carried out.
    Failed {
        /// Whether the same request may succeed later.
        is_retryable: bool,
        /// Reason of the failure.
        what: &'a str,
    },
}

/// Takes values from the front of some bytes.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], MalformedFrame> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(MalformedFrame("cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedFrame> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(MalformedFrame("cut short"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16, MalformedFrame> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, MalformedFrame> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, MalformedFrame> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, MalformedFrame> {
        self.array().map(i64::from_le_bytes)
    }

    fn range(&mut self) -> Result<Range<u64>, MalformedFrame> {
        Ok(self.u64()?..self.u64()?)
    }

    fn name(&mut self) -> Result<&'a str, MalformedFrame> {
        let len = usize::from(self.u16()?);
        if len > NAME_BYTES_MAX {
            return Err(MalformedFrame("a name over the limit"));
        }
        text(self.take(len)?)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn end(&self) -> Result<(), MalformedFrame> {
        if self.0.is_empty() { Ok(()) } else { Err(MalformedFrame("bytes left over")) }
    }
}

fn text(bytes: &[u8]) -> Result<&str, MalformedFrame> {
    std::str::from_utf8(bytes).map_err(|_| MalformedFrame("text that is not UTF-8"))
}

fn schema_of(bytes: &[u8]) -> Result<Schema, MalformedFrame> {
    serde_json::from_slice(bytes).map_err(|_| MalformedFrame("a schema that is not one"))
}

fn json_of(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Bytes that a file takes in [`StoreReply::Listed`].
pub fn listed_bytes(file: &FileListing) -> usize {
    2 + file.name.len() + 8 + 4 + schema_bytes(&file.schema)
}

/// Bytes that a schema takes.
pub fn schema_bytes(schema: &Schema) -> usize {
    json_of(schema).len()
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(&(name.len() as u16).to_le_bytes());
    out.extend_from_slice(name.as_bytes());
}

/// Writes a frame. The length in the header is filled in after the body.
fn put(out: &mut Vec<u8>, words: [u32; 2], kind: [u8; 2], body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    out.extend_from_slice(&[kind[0], kind[1], 0, 0]);
    body(out);
    let length = (out.len() - start - HEADER_BYTES) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

fn put_words(out: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

impl<'a> StoreRequest<'a> {
    /// Reads the request of a frame.
    ///
    /// # Errors
    /// [`MalformedFrame`].
    pub fn decode(header: &FrameHeader, body: &'a [u8]) -> Result<Self, MalformedFrame> {
        let (mut cursor, file) = (Cursor(body), header.extra);
        let details = match header.kind {
            // The level of an append is read below.
            3 => u8::MAX,
            2 | 4..=10 | 13 | 16 => Freshness::ALL.len() as u8 - 1,
            _ => 0,
        };
        if header.detail > details {
            return Err(MalformedFrame("a level without an append, or a freshness without a read"));
        }
        let request = match header.kind {
            1 if cursor.u32()? != MAGIC => return Err(MalformedFrame("another protocol")),
            1 => Self::Hello { version: cursor.u32()? },
            2 => {
                let (name, schema) = (cursor.name()?, cursor.rest());
                let schema = (!schema.is_empty()).then(|| schema_of(schema)).transpose()?;
                Self::Open { name, schema }
            }
            3 => {
                let level = StoreAckLevel::of_number(header.detail);
                let level = level.ok_or(MalformedFrame("a level that is none"))?;
                Self::Append { file, level, records: cursor.rest() }
            }
            4 => Self::Record { file, number: cursor.u64()? },
            5 => Self::Latest { file, time_ns: cursor.i64()? },
            6 => Self::Between { file, from_ns: cursor.i64()?, to_ns: cursor.i64()? },
            7 => Self::Find { file, from_ns: cursor.i64()?, to_ns: cursor.i64()? },
            8 => Self::Numbers { file, numbers: cursor.range()? },
            9 => Self::Size { file },
            10 => Self::List { after: cursor.name()? },
            11 => {
                let (name, entry) = (cursor.name()?, serde_json::from_slice(cursor.rest()));
                Self::Follow {
                    name,
                    entry: entry.map_err(|_| MalformedFrame("an entry that is none"))?,
                }
            }
            12 => Self::Copy { file, first: cursor.u64()?, records: cursor.rest() },
            13 => Self::Subscribe { file, first: cursor.u64()?, credit: cursor.u64()? },
            14 => Self::Grant { credit: cursor.u64()? },
            15 => Self::Unsubscribe,
            16 => Self::Wait { time_ms: cursor.u32()?, ends: known_ends(&mut cursor)? },
            _ => return Err(MalformedFrame("a request that is none")),
        };
        cursor.end()?;
        Ok(request)
    }

    /// Writes the request as a frame.
    pub fn encode(&self, number: u32, out: &mut Vec<u8>) {
        let times = |from: i64, to: i64| [from as u64, to as u64];
        match self {
            Self::Hello { version } => put(out, [number, 0], [1, 0], |out| {
                out.extend_from_slice(&MAGIC.to_le_bytes());
                out.extend_from_slice(&version.to_le_bytes());
            }),
            Self::Open { name, schema } => put(out, [number, 0], [2, 0], |out| {
                put_name(out, name);
                out.extend_from_slice(&schema.as_ref().map(json_of).unwrap_or_default());
            }),
            Self::Append { file, level, records } => {
                let detail = level.number();
                put(out, [number, *file], [3, detail], |out| out.extend_from_slice(records));
            }
            Self::Record { file, number: record } => {
                put(out, [number, *file], [4, 0], |out| put_words(out, &[*record]));
            }
            Self::Latest { file, time_ns } => {
                put(out, [number, *file], [5, 0], |out| put_words(out, &[*time_ns as u64]));
            }
            Self::Between { file, from_ns, to_ns } => put(out, [number, *file], [6, 0], |out| {
                put_words(out, &times(*from_ns, *to_ns));
            }),
            Self::Find { file, from_ns, to_ns } => put(out, [number, *file], [7, 0], |out| {
                put_words(out, &times(*from_ns, *to_ns));
            }),
            Self::Numbers { file, numbers } => put(out, [number, *file], [8, 0], |out| {
                put_words(out, &[numbers.start, numbers.end]);
            }),
            Self::Size { file } => put(out, [number, *file], [9, 0], |_| ()),
            Self::List { after } => put(out, [number, 0], [10, 0], |out| put_name(out, after)),
            Self::Follow { name, entry } => put(out, [number, 0], [11, 0], |out| {
                put_name(out, name);
                out.extend_from_slice(&json_of(entry));
            }),
            Self::Copy { file, first, records } => put(out, [number, *file], [12, 0], |out| {
                put_words(out, &[*first]);
                out.extend_from_slice(records);
            }),
            Self::Subscribe { file, first, credit } => put(out, [number, *file], [13, 0], |out| {
                put_words(out, &[*first, *credit]);
            }),
            Self::Grant { credit } => {
                put(out, [number, 0], [14, 0], |out| put_words(out, &[*credit]));
            }
            Self::Unsubscribe => put(out, [number, 0], [15, 0], |_| ()),
            Self::Wait { time_ms, ends } => put(out, [number, 0], [16, 0], |out| {
                out.extend_from_slice(&time_ms.to_le_bytes());
                for known in ends {
                    put_name(out, &known.name);
                    put_words(out, &[known.end]);
                }
            }),
        }
    }

    /// Writes a read as a frame that says how new its records have to be.
    pub fn encode_fresh(&self, number: u32, freshness: Freshness, out: &mut Vec<u8>) {
        /// The byte of the header that has the level of an append.
        const DETAIL: usize = 13;
        let start = out.len();
        self.encode(number, out);
        if self.is_read() {
            out[start + DETAIL] = freshness as u8;
        }
    }

    /// Whether the request reads, so that it may say how new its records have to be.
    fn is_read(&self) -> bool {
        match self {
            Self::Open { schema, .. } => schema.is_none(),
            Self::Record { .. }
            | Self::Latest { .. }
            | Self::Between { .. }
            | Self::Find { .. }
            | Self::Numbers { .. }
            | Self::Size { .. }
            | Self::List { .. }
            | Self::Subscribe { .. }
            | Self::Wait { .. } => true,
            Self::Hello { .. }
            | Self::Append { .. }
            | Self::Follow { .. }
            | Self::Copy { .. }
            | Self::Grant { .. }
            | Self::Unsubscribe => false,
        }
    }

    /// Whether the request is under way until a reply. The others spend no credit.
    pub fn has_reply(&self) -> bool {
        !matches!(self, Self::Grant { .. } | Self::Unsubscribe)
    }
}

impl<'a> StoreReply<'a> {
    /// Whether no further reply follows for the same request.
    pub fn is_last(&self) -> bool {
        !matches!(self, Self::Records { .. } | Self::Pushed { .. })
    }

    /// Reads the reply of a frame.
    ///
    /// # Errors
    /// [`MalformedFrame`].
    pub fn decode(header: &FrameHeader, body: &'a [u8]) -> Result<Self, MalformedFrame> {
        let mut cursor = Cursor(body);
        let reply = match header.kind {
            129 => Self::Hello { version: cursor.u32()?, requests_max: cursor.u32()? },
            130 | 135 if header.detail > 1 => return Err(MalformedFrame("a flag that is none")),
            130 => Self::Opened {
                file: cursor.u32()?,
                numbers: cursor.range()?,
                schema: schema_of(cursor.rest())?,
                is_published: header.detail == 1,
            },
            131 => Self::Appended { first: cursor.u64()? },
            132 => Self::Records { bytes: cursor.rest() },
            133 => Self::Numbers { numbers: cursor.range()? },
            134 => Self::Listed { files: listed(&mut cursor)? },
            135 => Self::Failed { is_retryable: header.detail == 1, what: text(cursor.rest())? },
            136 => Self::Followed {
                file: cursor.u32()?,
                numbers: cursor.range()?,
                node: cursor.u32()?,
            },
            137 => Self::Pushed { first: cursor.u64()?, bytes: cursor.rest() },
            138 => {
                let why = SubscriptionEnd::ALL.get(usize::from(header.detail)).copied();
                let why = why.ok_or(MalformedFrame("a reason that is none"))?;
                Self::Ended { why, next: cursor.u64()?, kept: cursor.u64()? }
            }
            _ => return Err(MalformedFrame("a reply that is none")),
        };
        cursor.end()?;
        Ok(reply)
    }

    /// Writes the reply as a frame.
    pub fn encode(&self, request: u32, grant: u32, out: &mut Vec<u8>) {
        let words = [request, grant];
        match self {
            Self::Hello { version, requests_max } => put(out, words, [129, 0], |out| {
                out.extend_from_slice(&version.to_le_bytes());
                out.extend_from_slice(&requests_max.to_le_bytes());
            }),
            Self::Opened { file, numbers, schema, is_published } => {
                put(out, words, [130, u8::from(*is_published)], |out| {
                    out.extend_from_slice(&file.to_le_bytes());
                    put_words(out, &[numbers.start, numbers.end]);
                    out.extend_from_slice(&json_of(schema));
                });
            }
            Self::Appended { first } => put(out, words, [131, 0], |out| put_words(out, &[*first])),
            Self::Records { bytes } => {
                put(out, words, [132, 0], |out| out.extend_from_slice(bytes));
            }
            Self::Numbers { numbers } => put(out, words, [133, 0], |out| {
                put_words(out, &[numbers.start, numbers.end]);
            }),
            Self::Listed { files } => put(out, words, [134, 0], |out| {
                for file in files {
                    put_name(out, &file.name);
                    put_words(out, &[file.records]);
                    let schema = json_of(&file.schema);
                    out.extend_from_slice(&(schema.len() as u32).to_le_bytes());
                    out.extend_from_slice(&schema);
                }
            }),
            Self::Followed { file, numbers, node } => put(out, words, [136, 0], |out| {
                out.extend_from_slice(&file.to_le_bytes());
                put_words(out, &[numbers.start, numbers.end]);
                out.extend_from_slice(&node.to_le_bytes());
            }),
            Self::Pushed { first, bytes } => put(out, words, [137, 0], |out| {
                put_words(out, &[*first]);
                out.extend_from_slice(bytes);
            }),
            Self::Ended { why, next, kept } => put(out, words, [138, *why as u8], |out| {
                put_words(out, &[*next, *kept]);
            }),
            Self::Failed { is_retryable, what } => {
                let mut len = what.len().min(WORDS_BYTES_MAX);
                while !what.is_char_boundary(len) {
                    len -= 1;
                }
                put(out, words, [135, u8::from(*is_retryable)], |out| {
                    out.extend_from_slice(&what.as_bytes()[..len]);
                });
            }
        }
    }
}

fn listed(cursor: &mut Cursor<'_>) -> Result<Vec<FileListing>, MalformedFrame> {
    let mut files = Vec::new();
    while !cursor.0.is_empty() {
        let (name, records) = (cursor.name()?.to_owned(), cursor.u64()?);
        let len = cursor.u32()? as usize;
        files.push(FileListing { name, schema: schema_of(cursor.take(len)?)?, records });
    }
    Ok(files)
}

/// Whether one wait may name these files.
pub(crate) fn fits_wait(ends: &[KnownEnd]) -> bool {
    // The time has four bytes, the length of a name two, and an end eight.
    let bytes: usize = ends.iter().map(|known| 2 + known.name.len() + 8).sum();
    ends.len() <= WAIT_FILES_MAX && 4 + bytes <= BODY_BYTES_MAX
}

fn known_ends(cursor: &mut Cursor<'_>) -> Result<Vec<KnownEnd>, MalformedFrame> {
    let mut ends = Vec::new();
    while !cursor.0.is_empty() {
        if ends.len() == WAIT_FILES_MAX {
            return Err(MalformedFrame("a wait for files over the limit"));
        }
        ends.push(KnownEnd { name: cursor.name()?.to_owned(), end: cursor.u64()? });
    }
    Ok(ends)
}

#[cfg(test)]
mod tests;
