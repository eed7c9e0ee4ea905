//! ZooKeeper's wire: integers are big-endian, and each message stands behind its length.
//!
//! ```text
//!  connect   protocol i32, last revision i64, timeout in ms i32, session i64, password buffer
//!  connected protocol i32, timeout in ms i32, session i64, password buffer, read only u8
//!  request   xid i32, operation i32, ...
//!  reply     xid i32, revision i64, error i32, ...        an event has the xid -1
//!  buffer    length i32 (-1: none), bytes                 a string is a buffer
//!  stat      created i64, modified i64, created ms i64, modified ms i64, version i32,
//!            version of children i32, version of rights i32, owner i64, length i32,
//!            children i32, children modified i64
//! ```

use std::borrow::Cow;

use evenfall_core::{Malformed, Reader};

use crate::{KeyRefusal, Stat};

/// Longest message of a client: what ZooKeeper's `jute.maxbuffer` allows by default.
pub const FRAME_BYTES_MAX: usize = 0xf_ffff;
/// Longest time to live in milliseconds: ZooKeeper keeps 40 bits of it.
pub const TTL_MS_MAX: i64 = (1 << 40) - 1;
/// Most entries of a list in a request.
const LIST_MAX: i32 = 100_000;

/// Operations by their numbers.
pub mod op {
    #![allow(missing_docs, reason = "the names are ZooKeeper's, and say all")]
    pub const CREATE: i32 = 1;
    pub const DELETE: i32 = 2;
    pub const EXISTS: i32 = 3;
    pub const GET_DATA: i32 = 4;
    pub const SET_DATA: i32 = 5;
    pub const GET_ACL: i32 = 6;
    pub const SET_ACL: i32 = 7;
    pub const GET_CHILDREN: i32 = 8;
    pub const SYNC: i32 = 9;
    pub const PING: i32 = 11;
    pub const GET_CHILDREN2: i32 = 12;
    pub const CHECK: i32 = 13;
    pub const MULTI: i32 = 14;
    pub const CREATE2: i32 = 15;
    pub const RECONFIGURE: i32 = 16;
    pub const CHECK_WATCHES: i32 = 17;
    pub const REMOVE_WATCHES: i32 = 18;
    pub const CREATE_CONTAINER: i32 = 19;
    pub const CREATE_TTL: i32 = 21;
    pub const MULTI_READ: i32 = 22;
    pub const AUTH: i32 = 100;
    pub const SET_WATCHES: i32 = 101;
    pub const GET_EPHEMERALS: i32 = 103;
    pub const COUNT_CHILDREN: i32 = 104;
    pub const SET_WATCHES2: i32 = 105;
    pub const ADD_WATCH: i32 = 106;
    pub const WHO_AM_I: i32 = 107;
    /// The number of the first message, which names no operation.
    pub const OPEN: i32 = -10;
    pub const CLOSE: i32 = -11;
    /// Our own: a call as `keys::Call` encodes it, answered by a `keys::Reply`.
    pub const CALL: i32 = 1_000;
    /// Our own: a prefix, the first key and a limit, answered by keys with values and stats.
    pub const RANGE: i32 = 1_001;
    /// Our own: a key, or nothing for all keys. The answer comes when this replica has applied
    /// every change of the key that was answered before.
    pub const SYNC_KEY: i32 = 1_002;
    /// Our own: the number of a rack that is to leave as planned. A client on the replica's own
    /// host may ask for it. The answer says only that the replica has taken the plan.
    pub const RETIRE: i32 = 1_003;
    /// Our own: sets the limit of the keys in MiB.
    pub const LIMIT: i32 = 1_004;
}

/// Errors by their numbers.
pub mod error {
    #![allow(missing_docs, reason = "the names are ZooKeeper's, and say all")]
    pub const OK: i32 = 0;
    pub const SYSTEM: i32 = -1;
    pub const INCONSISTENT: i32 = -2;
    pub const MARSHALLING: i32 = -5;
    pub const UNIMPLEMENTED: i32 = -6;
    pub const BAD_ARGUMENTS: i32 = -8;
    pub const NO_NODE: i32 = -101;
    pub const NO_AUTH: i32 = -102;
    pub const BAD_VERSION: i32 = -103;
    pub const NO_CHILDREN_FOR_EPHEMERALS: i32 = -108;
    pub const NODE_EXISTS: i32 = -110;
    pub const NOT_EMPTY: i32 = -111;
    pub const SESSION_EXPIRED: i32 = -112;
    pub const INVALID_ACL: i32 = -114;
    pub const AUTH_FAILED: i32 = -115;
    pub const NO_WATCHER: i32 = -121;
    pub const RECONFIGURATION_DISABLED: i32 = -123;
    pub const QUOTA_EXCEEDED: i32 = -125;
}

/// The kinds of events, with ZooKeeper's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub enum WatchEventKind {
    /// The key was made.
    Created = 1,
    /// The key was deleted.
    Deleted = 2,
    /// The value was set.
    Changed = 3,
    /// A key right below was made or deleted.
    Children = 4,
}

/// The number of a refusal.
pub fn error_of(refusal: KeyRefusal) -> i32 {
    match refusal {
        KeyRefusal::NoKey | KeyRefusal::NoParent => error::NO_NODE,
        KeyRefusal::KeyExists => error::NODE_EXISTS,
        KeyRefusal::BadVersion => error::BAD_VERSION,
        KeyRefusal::EphemeralParent => error::NO_CHILDREN_FOR_EPHEMERALS,
        KeyRefusal::NotEmpty => error::NOT_EMPTY,
        KeyRefusal::NoSession => error::SESSION_EXPIRED,
        KeyRefusal::NoRight => error::NO_AUTH,
        KeyRefusal::Full => error::QUOTA_EXCEEDED,
        KeyRefusal::BadRights => error::INVALID_ACL,
        KeyRefusal::Unknown => error::UNIMPLEMENTED,
        KeyRefusal::Malformed | KeyRefusal::TooLong | KeyRefusal::BadKey => error::BAD_ARGUMENTS,
        _ => error::SYSTEM,
    }
}

/// Reads the fields of a message, one after the other.
pub struct Fields<'a>(Reader<'a>);

impl<'a> Fields<'a> {
    /// The fields of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(Reader::new(bytes))
    }

    /// An integer of 32 bits.
    ///
    /// # Errors
    /// [`Malformed`] at the end of the bytes.
    pub fn int(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_be_bytes(self.0.array()?))
    }

    /// An integer of 64 bits.
    ///
    /// # Errors
    /// As [`int`](Self::int).
    pub fn long(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_be_bytes(self.0.array()?))
    }

    /// A boolean.
    ///
    /// # Errors
    /// As [`int`](Self::int).
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        Ok(self.0.u8()? != 0)
    }

    /// Bytes behind their length, or none.
    ///
    /// # Errors
    /// As [`int`](Self::int).
    pub fn optional(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        match usize::try_from(self.int()?) {
            Ok(length) => self.0.take(length).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Bytes behind their length. A missing buffer is read as an empty one.
    ///
    /// # Errors
    /// As [`int`](Self::int).
    pub fn buffer(&mut self) -> Result<&'a [u8], Malformed> {
        Ok(self.optional()?.unwrap_or(&[]))
    }

    /// A text behind its length. As in ZooKeeper, bytes that are not UTF-8 stand for U+FFFD, which
    /// no key may have, so that the request is refused and the connection goes on.
    ///
    /// # Errors
    /// As [`int`](Self::int).
    pub fn text(&mut self) -> Result<Cow<'a, str>, Malformed> {
        Ok(String::from_utf8_lossy(self.buffer()?))
    }

    /// An error at the place of the last field.
    pub fn malformed(&self, what: &'static str) -> Malformed {
        self.0.malformed(what)
    }

    /// Whether all fields were read.
    pub fn is_empty(&self) -> bool {
        self.0.finish().is_ok()
    }

    /// A stat. Fields that ZooKeeper's stat does not have are zero.
    ///
    /// # Errors
    /// As [`int`](Self::int).
    pub fn stat(&mut self) -> Result<Stat, Malformed> {
        let (created, modified) = (self.long()? as u64, self.long()? as u64);
        let (created_ms, modified_ms) = (self.long()? as u64, self.long()? as u64);
        let (version, _, rights_version) = (self.int()? as u32, self.int()?, self.int()? as u32);
        let (owner, length, children) = (self.long()? as u64, self.int()? as u32, self.int()?);
        Ok(Stat {
            created,
            modified,
            created_ms,
            modified_ms,
            version,
            rights_version,
            owner,
            length,
            children: children as u32,
            children_modified: self.long()? as u64,
            ..Stat::default()
        })
    }

    /// The length of a list.
    ///
    /// # Errors
    /// [`Malformed`] when it is too long.
    pub fn count(&mut self) -> Result<i32, Malformed> {
        let count = self.int()?;
        if count > LIST_MAX {
            return Err(self.0.malformed("a list that is too long"));
        }
        Ok(count)
    }

    /// A list of texts.
    ///
    /// # Errors
    /// As [`text`](Self::text).
    pub fn texts(&mut self) -> Result<Vec<Cow<'a, str>>, Malformed> {
        (0..self.count()?).map(|_| self.text()).collect()
    }
}

/// Writes the fields of a message, and leaves room for its length in front of them.
#[derive(Debug)]
pub struct JuteMessage(Vec<u8>);

impl Default for JuteMessage {
    fn default() -> Self {
        Self(vec![0; 4])
    }
}

impl JuteMessage {
    /// A reply with its head.
    pub fn reply(xid: i32, revision: u64, error: i32) -> Self {
        Self::default().int(xid).long(revision as i64).int(error)
    }

    /// Adds an integer of 32 bits.
    #[must_use]
    pub fn int(mut self, value: i32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Adds an integer of 64 bits.
    #[must_use]
    pub fn long(mut self, value: i64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Adds a truth.
    #[must_use]
    pub fn bool(mut self, value: bool) -> Self {
        self.0.push(value.into());
        self
    }

    /// Adds bytes behind their length.
    #[must_use]
    pub fn buffer(self, bytes: &[u8]) -> Self {
        let mut message = self.int(bytes.len() as i32);
        message.0.extend_from_slice(bytes);
        message
    }

    /// Adds bytes behind their length, or the mark of a missing buffer.
    #[must_use]
    pub fn optional(self, bytes: Option<&[u8]>) -> Self {
        match bytes {
            Some(bytes) => self.buffer(bytes),
            None => self.int(-1),
        }
    }

    /// Adds a text behind its length.
    #[must_use]
    pub fn text(self, text: &str) -> Self {
        self.buffer(text.as_bytes())
    }

    /// Adds a stat. As in ZooKeeper's answers, only a session is the owner of a key: a container or
    /// a timed key has none, so that programs do not take it for an ephemeral one.
    #[must_use]
    pub fn stat(self, stat: &Stat) -> Self {
        // ZooKeeper's version of the children counts children that were made and children that were
        // deleted.
        let children_version = stat.births.wrapping_mul(2).wrapping_sub(stat.children);
        self.long(stat.created as i64)
            .long(stat.modified as i64)
            .long(stat.created_ms as i64)
            .long(stat.modified_ms as i64)
            .int(stat.version as i32)
            .int(children_version as i32)
            .int(stat.rights_version as i32)
            .long(stat.owner as i64)
            .int(stat.length as i32)
            .int(stat.children as i32)
            .long(stat.children_modified as i64)
    }

    /// Bytes of the message so far.
    pub fn length(&self) -> usize {
        self.0.len()
    }

    /// The whole message with its length in front.
    pub fn finish(mut self) -> Vec<u8> {
        let length = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}
