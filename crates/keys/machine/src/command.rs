//! Calls and replies, byte by byte. All integers are little-endian, and a string or a value stands
//! behind its length in 32 bits.
//!
//! ```text
//!  call   version u8 (3), session u64, opened u64, sequence u64, time in ms u64, kind u8, then
//!    1 change   count u16, identities, count u16, ops
//!    2 open     timeout in ms u32, password u64, is new u8
//!    3 touch    count u32, sessions u64 each
//!    4 close
//!    5 expire   session u64, touched u64
//!    6 reap     node u32, nodes u32, count u32, keys: key, revision u64
//!    7 trusted  count u16, ops
//!    8 limit    bytes u64, is first u8
//!  op     1 check    key, has a version u8, version u32
//!         2 put      key, has a value u8, value, existing u8, version u32, kind, numbered u8,
//!                    rights
//!         3 delete   key, has a version u8, version u32
//!         4 rights   key, has a version u8, version u32, rights
//!         5 expect   key, state u8, number u64
//!         6 refuse   key, refusal u8
//!  state          0 modified at this revision, 1 owned by this session
//!  rights         count u16, rights: bits u32, identity
//!  identity       scheme, name
//!  kind           0 persistent, 1 ephemeral, 2 container, 3 timed: ms u64
//!  reply  0 done     count u16, outcomes: key, stat
//!         1 refused  place u16, refusal u8
//!  stat   created u64, modified u64, created ms u64, modified ms u64, version u32, births u32,
//!         owner u64, length u32, children u32, children modified u64, version of rights u32, kind
//! ```

use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::{Malformed, Reader};

use crate::rights::{self, AclIdentity, Right};
use crate::{KeyEntry, OPS_MAX};

/// How long a key lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyLifetime {
    /// Until it is deleted.
    #[default]
    Persistent,
    /// Until its session ends.
    Ephemeral,
    /// Until its last child is gone for a while.
    Container,
    /// Until it has had no children, and its value was not set, for this long in milliseconds.
    Timed(u64),
}

/// The state of the key that a put expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Anything. The key is made when it is missing, if that is allowed.
    Any(bool),
    /// Nothing: the key is made.
    None,
    /// The key with this version.
    Version(u32),
}

impl Existing {
    pub(super) fn may_create(self) -> bool {
        matches!(self, Self::Any(true) | Self::None)
    }
}

/// The state that [`KeyOperation::Expect`] asks for. A version counts from the making of a key, so
/// that a key which was deleted and made again may have its earlier version. Such a key is in
/// neither of its earlier states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedState {
    /// The value was last set at this revision; 0 for a missing key.
    Modified(u64),
    /// The key is ephemeral, of this session.
    Owned(u64),
}

/// A part of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyOperation {
    /// Refuses the call when the key is missing or has another version.
    Check {
        /// The key.
        key: String,
        /// The version, or any.
        version: Option<u32>,
    },
    /// Refuses the call when the key is in another state.
    Expect {
        /// The key.
        key: String,
        /// The state.
        state: ExpectedState,
    },
    /// Makes the key or sets its value.
    Put {
        /// The key.
        key: String,
        /// The value, or none.
        value: Option<Bytes>,
        /// The expected state of the key.
        existing: Existing,
        /// How long a new key lives.
        kind: KeyLifetime,
        /// Whether the name gets ten more digits: the number of children that the parent ever had.
        numbered: bool,
        /// The rights of a new key. An empty list means that everybody may do everything.
        rights: Vec<Right>,
    },
    /// Deletes the key.
    Delete {
        /// The key.
        key: String,
        /// The version, or any.
        version: Option<u32>,
    },
    /// Sets the rights of the key.
    SetRights {
        /// The key.
        key: String,
        /// The version of the rights, or any.
        version: Option<u32>,
        /// The rights.
        rights: Vec<Right>,
    },
    /// Refuses the call: the client asked for something that is refused whatever the keys are, such
    /// as a name that no key may have. An operation before this one that is refused comes first.
    Refuse {
        /// The key as the client named it.
        key: String,
        /// Why.
        refusal: KeyRefusal,
    },
}

impl KeyOperation {
    /// The key that the operation is about.
    pub fn key(&self) -> &str {
        match self {
            Self::Check { key, .. }
            | Self::Expect { key, .. }
            | Self::Put { key, .. }
            | Self::Delete { key, .. }
            | Self::SetRights { key, .. }
            | Self::Refuse { key, .. } => key,
        }
    }

    /// Sets a value, or makes a persistent key that everybody may change.
    pub fn put(key: impl Into<String>, value: impl Into<Bytes>, existing: Existing) -> Self {
        Self::Put {
            key: key.into(),
            value: Some(value.into()),
            existing,
            kind: KeyLifetime::Persistent,
            numbered: false,
            rights: Vec::new(),
        }
    }
}

/// What a call asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// These operations, all or none, whatever the rights of the keys are.
    Change(Vec<KeyOperation>),
    /// These operations, all or none, as far as these identities have the rights.
    ChangeBy(Vec<AclIdentity>, Vec<KeyOperation>),
    /// Opens the session of the call, or goes on with it.
    Open {
        /// Silence after which the session may be expired.
        timeout_ms: u32,
        /// The password with which the client goes on with the session.
        password: u64,
        /// Whether the session is made when there is none.
        is_new: bool,
    },
    /// Signs of life of sessions.
    Touch(Vec<u64>),
    /// Ends the session of the call.
    Close,
    /// Ends a session that nobody has touched since.
    Expire {
        /// The session.
        session: u64,
        /// The number of its signs of life, as far as the proposer knows.
        touched: u64,
    },
    /// Keys whose time is over, as one node sees it. See the module `mortal`.
    Reap {
        /// The node.
        node: u32,
        /// How many nodes there are. More than half of them have to agree that a time is over.
        nodes: u32,
        /// Keys, each with the revision at which the node saw it change last.
        keys: Vec<(String, u64)>,
    },
    /// Sets the limit of all keys and values.
    Limit {
        /// The limit in bytes.
        bytes: u64,
        /// Whether the call changes nothing when an earlier call has set a limit.
        is_first: bool,
    },
}

/// The body of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyCall {
    /// The session; 0 for none.
    pub session: u64,
    /// The revision at which the connection of the call opened the session. A call of another
    /// connection than the last is refused. Without a session it counts for nothing.
    pub opened: u64,
    /// The client's number of the call, from 1 on; 0 for a call that is never sent again.
    pub sequence: u64,
    /// The time at the node that took the call, in milliseconds since 1970.
    pub at_ms: u64,
    /// What is asked for.
    pub command: Command,
}

/// The versions, times and owner of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The revision that made the key.
    pub created: u64,
    /// The revision that last set the value.
    pub modified: u64,
    /// Time of `created`, in milliseconds since 1970.
    pub created_ms: u64,
    /// Time of `modified`.
    pub modified_ms: u64,
    /// How often the value was set since the key was made.
    pub version: u32,
    /// How many children were ever made.
    pub births: u32,
    /// The session of an ephemeral key; 0 of others.
    pub owner: u64,
    /// Bytes of the value.
    pub length: u32,
    /// Keys right below.
    pub children: u32,
    /// The revision that last made or deleted a child.
    pub children_modified: u64,
    /// How often the rights were set since the key was made.
    pub rights_version: u32,
    /// How long the key lives.
    pub kind: KeyLifetime,
}

/// A key after an operation, or before it was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOutcome {
    /// The key, with its number when it got one.
    pub key: Arc<str>,
    /// The versions, times and owner of the key.
    pub stat: Stat,
}

impl KeyOutcome {
    pub(super) fn new(key: Arc<str>, entry: &KeyEntry) -> Self {
        Self { key, stat: entry.stat() }
    }
}

impl Stat {
    /// Adds the stat to a message.
    pub fn put(&self, out: &mut Vec<u8>) {
        for word in [self.created, self.modified, self.created_ms, self.modified_ms] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.version.to_le_bytes());
        out.extend(self.births.to_le_bytes());
        out.extend(self.owner.to_le_bytes());
        out.extend(self.length.to_le_bytes());
        out.extend(self.children.to_le_bytes());
        out.extend(self.children_modified.to_le_bytes());
        out.extend(self.rights_version.to_le_bytes());
        self.kind.put(out);
    }

    /// Reads a stat.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are no stat.
    pub fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            created: r.u64()?,
            modified: r.u64()?,
            created_ms: r.u64()?,
            modified_ms: r.u64()?,
            version: r.u32()?,
            births: r.u32()?,
            owner: r.u64()?,
            length: r.u32()?,
            children: r.u32()?,
            children_modified: r.u64()?,
            rights_version: r.u32()?,
            kind: KeyLifetime::read(r)?,
        })
    }
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyReply {
    /// An outcome for each operation.
    Done(Vec<KeyOutcome>),
    /// Nothing was done, because the operation with this index was refused.
    Refused(u16, KeyRefusal),
}

impl Default for KeyReply {
    fn default() -> Self {
        Self::Done(Vec::new())
    }
}

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyRefusal {
    /// The body is no call.
    Malformed,
    /// There is no such key.
    NoKey,
    /// The key is there already.
    KeyExists,
    /// The key has another version.
    BadVersion,
    /// The path above is missing.
    NoParent,
    /// The path above is ephemeral and cannot have children.
    EphemeralParent,
    /// The path has children.
    NotEmpty,
    /// The session has ended, or never was.
    NoSession,
    /// Keys and values, or sessions, take all the room that they may take.
    Full,
    /// The key or the value is too long.
    TooLong,
    /// The text cannot be a key.
    BadKey,
    /// The call was applied so long ago that its reply is forgotten.
    Forgotten,
    /// The client has no right to do this.
    NoRight,
    /// The client has connected anew since, and the call is of an earlier connection.
    Moved,
    /// The list of rights names nobody, or names somebody in a way that does not exist.
    BadRights,
    /// There is no such operation.
    Unknown,
}

impl KeyRefusal {
    const ALL: [(Self, &'static str); 16] = [
        (Self::Malformed, "the request cannot be read"),
        (Self::NoKey, "there is no such key"),
        (Self::KeyExists, "the key exists already"),
        (Self::BadVersion, "the key has another version"),
        (Self::NoParent, "the path above the key is missing"),
        (Self::EphemeralParent, "the path above the key is ephemeral"),
        (Self::NotEmpty, "the key has keys below it"),
        (Self::NoSession, "the session has ended"),
        (Self::Full, "the store takes no more keys"),
        (Self::TooLong, "the key or the value is too long"),
        (Self::BadKey, "this cannot be a key"),
        (Self::Forgotten, "the request was answered long ago"),
        (Self::NoRight, "the client has no right to do this"),
        (Self::Moved, "the session has moved to a later connection"),
        (Self::BadRights, "the list of rights is not valid"),
        (Self::Unknown, "there is no such operation"),
    ];

    /// The number of the refusal in calls and replies: its place in the list.
    fn tag(self) -> u8 {
        Self::ALL.iter().position(|(known, _)| *known == self).unwrap_or(0) as u8
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let tag = r.u8()?;
        let refusal = Self::ALL.get(usize::from(tag)).map(|(refusal, _)| *refusal);
        refusal.ok_or_else(|| r.malformed("no such refusal"))
    }
}

impl core::fmt::Display for KeyRefusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let words = Self::ALL.iter().find(|(refusal, _)| refusal == self);
        f.write_str(words.map_or("refused", |(_, words)| words))
    }
}

impl std::error::Error for KeyRefusal {}

const VERSION: u8 = 3;
/// Bytes that an outcome is counted for beside its key.
const OUTCOME_BYTES: usize = 128;

impl KeyCall {
    /// The body of a request.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![VERSION];
        let words = [self.session, self.opened, self.sequence, self.at_ms];
        words.iter().for_each(|word| out.extend(word.to_le_bytes()));
        match &self.command {
            Command::ChangeBy(who, ops) => {
                out.push(1);
                rights::put_identities(&mut out, who);
                put_ops(&mut out, ops);
            }
            Command::Change(ops) => {
                out.push(7);
                put_ops(&mut out, ops);
            }
            Command::Open { timeout_ms, password, is_new } => {
                out.push(2);
                out.extend(timeout_ms.to_le_bytes());
                out.extend(password.to_le_bytes());
                out.push(u8::from(*is_new));
            }
            Command::Touch(ids) => {
                out.push(3);
                out.extend((ids.len() as u32).to_le_bytes());
                ids.iter().for_each(|id| out.extend(id.to_le_bytes()));
            }
            Command::Close => out.push(4),
            Command::Expire { session, touched } => {
                out.push(5);
                out.extend(session.to_le_bytes());
                out.extend(touched.to_le_bytes());
            }
            Command::Reap { node, nodes, keys } => {
                out.push(6);
                out.extend(node.to_le_bytes());
                out.extend(nodes.to_le_bytes());
                out.extend((keys.len() as u32).to_le_bytes());
                for (key, seen) in keys {
                    put_bytes(&mut out, key.as_bytes());
                    out.extend(seen.to_le_bytes());
                }
            }
            Command::Limit { bytes, is_first } => {
                out.push(8);
                out.extend(bytes.to_le_bytes());
                out.push(u8::from(*is_first));
            }
        }
        out.into()
    }

    /// Reads a body.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are no call.
    pub fn decode(body: &Bytes) -> Result<Self, Malformed> {
        let r = &mut Reader::new(body);
        if r.u8()? != VERSION {
            return Err(r.malformed("another version of calls"));
        }
        let (session, opened, sequence, at_ms) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        let command = match r.u8()? {
            1 => Command::ChangeBy(rights::identities(r)?, ops(r, body)?),
            2 => {
                let (timeout_ms, password, is_new) = (r.u32()?, r.u64()?, r.u8()? == 1);
                Command::Open { timeout_ms, password, is_new }
            }
            3 => {
                let mut ids = Vec::new();
                for _ in 0..r.u32()? {
                    ids.push(r.u64()?);
                }
                Command::Touch(ids)
            }
            4 => Command::Close,
            5 => Command::Expire { session: r.u64()?, touched: r.u64()? },
            6 => {
                let (node, nodes, mut keys) = (r.u32()?, r.u32()?, Vec::new());
                for _ in 0..r.u32()? {
                    keys.push((text(r)?.to_owned(), r.u64()?));
                }
                Command::Reap { node, nodes, keys }
            }
            7 => Command::Change(ops(r, body)?),
            8 => Command::Limit { bytes: r.u64()?, is_first: r.u8()? == 1 },
            _ => return Err(r.malformed("no such command")),
        };
        r.finish()?;
        Ok(Self { session, opened, sequence, at_ms, command })
    }
}

/// Adds bytes behind their length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Reads bytes behind their length, as a part of `body`.
///
/// # Errors
/// [`Malformed`] when there are fewer.
pub fn bytes(r: &mut Reader<'_>, body: &Bytes) -> Result<Bytes, Malformed> {
    let length = r.u32()? as usize;
    Ok(body.slice_ref(r.take(length)?))
}

/// Reads a text behind its length.
///
/// # Errors
/// [`Malformed`] when there are fewer bytes, or when they are not UTF-8.
pub fn text<'a>(r: &mut Reader<'a>) -> Result<&'a str, Malformed> {
    let length = r.u32()? as usize;
    let bytes = r.take(length)?;
    core::str::from_utf8(bytes).map_err(|_| r.malformed("a text that is not UTF-8"))
}

fn put_version(out: &mut Vec<u8>, version: Option<u32>) {
    out.push(u8::from(version.is_some()));
    out.extend(version.unwrap_or(0).to_le_bytes());
}

fn version(r: &mut Reader<'_>) -> Result<Option<u32>, Malformed> {
    let (is_there, version) = (r.u8()? == 1, r.u32()?);
    Ok(is_there.then_some(version))
}

fn put_ops(out: &mut Vec<u8>, ops: &[KeyOperation]) {
    out.extend((ops.len() as u16).to_le_bytes());
    ops.iter().for_each(|op| put_op(out, op));
}

fn ops(r: &mut Reader<'_>, body: &Bytes) -> Result<Vec<KeyOperation>, Malformed> {
    let count = r.u16()?;
    if usize::from(count) > OPS_MAX {
        return Err(r.malformed("too many operations"));
    }
    let mut ops = Vec::new();
    for _ in 0..count {
        ops.push(op(r, body)?);
    }
    Ok(ops)
}

pub(super) fn put_optional(out: &mut Vec<u8>, value: Option<&Bytes>) {
    out.push(u8::from(value.is_some()));
    put_bytes(out, value.map_or(&[], |value| value));
}

pub(super) fn optional(r: &mut Reader<'_>, body: &Bytes) -> Result<Option<Bytes>, Malformed> {
    let (is_there, value) = (r.u8()? == 1, bytes(r, body)?);
    Ok(is_there.then_some(value))
}

fn put_op(out: &mut Vec<u8>, op: &KeyOperation) {
    match op {
        KeyOperation::Check { key, version } => {
            out.push(1);
            put_bytes(out, key.as_bytes());
            put_version(out, *version);
        }
        KeyOperation::Expect { key, state } => {
            out.push(5);
            put_bytes(out, key.as_bytes());
            let (tag, number) = match state {
                ExpectedState::Modified(revision) => (0, *revision),
                ExpectedState::Owned(session) => (1, *session),
            };
            out.push(tag);
            out.extend(number.to_le_bytes());
        }
        KeyOperation::Put { key, value, existing, kind, numbered, rights } => {
            out.push(2);
            put_bytes(out, key.as_bytes());
            put_optional(out, value.as_ref());
            let (tag, version) = match existing {
                Existing::Any(true) => (0, 0),
                Existing::Any(false) => (1, 0),
                Existing::None => (2, 0),
                Existing::Version(version) => (3, *version),
            };
            out.push(tag);
            out.extend(version.to_le_bytes());
            kind.put(out);
            out.push(u8::from(*numbered));
            rights::put(out, rights);
        }
        KeyOperation::Delete { key, version } => {
            out.push(3);
            put_bytes(out, key.as_bytes());
            put_version(out, *version);
        }
        KeyOperation::SetRights { key, version, rights } => {
            out.push(4);
            put_bytes(out, key.as_bytes());
            put_version(out, *version);
            rights::put(out, rights);
        }
        KeyOperation::Refuse { key, refusal } => {
            out.push(6);
            put_bytes(out, key.as_bytes());
            out.push(refusal.tag());
        }
    }
}

fn op(r: &mut Reader<'_>, body: &Bytes) -> Result<KeyOperation, Malformed> {
    let tag = r.u8()?;
    let key = text(r)?.to_owned();
    Ok(match tag {
        1 => KeyOperation::Check { key, version: version(r)? },
        5 => match (r.u8()?, r.u64()?) {
            (0, revision) => KeyOperation::Expect { key, state: ExpectedState::Modified(revision) },
            (1, session) => KeyOperation::Expect { key, state: ExpectedState::Owned(session) },
            _ => return Err(r.malformed("no such state")),
        },
        2 => {
            let value = optional(r, body)?;
            let (tag, version) = (r.u8()?, r.u32()?);
            let existing = match tag {
                0 => Existing::Any(true),
                1 => Existing::Any(false),
                2 => Existing::None,
                3 => Existing::Version(version),
                _ => return Err(r.malformed("no such expectation")),
            };
            let (kind, numbered) = (KeyLifetime::read(r)?, r.u8()? == 1);
            let rights = rights::read(r)?.to_vec();
            KeyOperation::Put { key, value, existing, kind, numbered, rights }
        }
        3 => KeyOperation::Delete { key, version: version(r)? },
        4 => {
            let (version, rights) = (version(r)?, rights::read(r)?.to_vec());
            KeyOperation::SetRights { key, version, rights }
        }
        6 => KeyOperation::Refuse { key, refusal: KeyRefusal::read(r)? },
        _ => return Err(r.malformed("no such operation")),
    })
}

impl KeyLifetime {
    pub(super) fn put(self, out: &mut Vec<u8>) {
        match self {
            Self::Persistent => out.push(0),
            Self::Ephemeral => out.push(1),
            Self::Container => out.push(2),
            Self::Timed(ms) => {
                out.push(3);
                out.extend(ms.to_le_bytes());
            }
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match r.u8()? {
            0 => Self::Persistent,
            1 => Self::Ephemeral,
            2 => Self::Container,
            3 => Self::Timed(r.u64()?),
            _ => return Err(r.malformed("no such kind of key")),
        })
    }

    /// Whether nodes look for the end of such a key.
    pub fn is_mortal(self) -> bool {
        matches!(self, Self::Container | Self::Timed(_))
    }
}

impl KeyReply {
    /// The bytes of memory for which the reply counts.
    pub fn bytes(&self) -> usize {
        let outcomes = match self {
            Self::Done(outcomes) => outcomes.as_slice(),
            Self::Refused(..) => &[],
        };
        outcomes.iter().map(|outcome| outcome.key.len() + OUTCOME_BYTES).sum()
    }

    /// Adds the reply to a message.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Done(outcomes) => {
                out.push(0);
                out.extend((outcomes.len() as u16).to_le_bytes());
                for outcome in outcomes {
                    put_bytes(out, outcome.key.as_bytes());
                    outcome.stat.put(out);
                }
            }
            Self::Refused(at, refusal) => {
                out.push(1);
                out.extend(at.to_le_bytes());
                out.push(refusal.tag());
            }
        }
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are no reply.
    pub fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        match r.u8()? {
            0 => {
                let mut outcomes = Vec::new();
                for _ in 0..r.u16()? {
                    outcomes.push(KeyOutcome { key: text(r)?.into(), stat: Stat::read(r)? });
                }
                Ok(Self::Done(outcomes))
            }
            1 => {
                let at = r.u16()?;
                Ok(Self::Refused(at, KeyRefusal::read(r)?))
            }
            _ => Err(r.malformed("no such reply")),
        }
    }
}
