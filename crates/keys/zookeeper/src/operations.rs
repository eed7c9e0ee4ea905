//! The operations of clients. Writes become calls for the order, and reads are answered from the
//! keys.

use std::borrow::Cow;

use bytes::Bytes;
use evenfall_consensus_machine::LeaseKey;
use evenfall_core::Malformed;
use evenfall_keys_machine::rights::{ADMIN, READ, allows};
use evenfall_keys_machine::{
    self as keys, AclIdentity, Command, Existing, KeyEntry, KeyLifetime, KeyOperation, KeyRefusal,
    KeyReply, Keys,
};

use crate::connection::Hello;
use crate::reading::ReadingClient;
use crate::shared::SharedKeys;
use crate::watches::{Event, WatchKind as Watch};
use crate::{leased, rights};
use evenfall_keys_machine::jute::{
    Fields, JuteMessage, TTL_MS_MAX, WatchEventKind, error, error_of, op,
};

/// Most keys that one read of a range gives.
const RANGE_MAX: usize = 10_000;
/// Most bytes of keys and values that one read of a range gives. The client reads the rest of a
/// longer range with further reads, from the last key on.
const RANGE_BYTES_MAX: usize = 1 << 20;
/// Most reads in one `multiRead`.
const READS_MAX: usize = 4_096;
/// Most bytes of one answer. ZooKeeper has no limit, and its clients take 4 MiB by default.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A request of a client.
#[derive(Debug)]
pub enum ZooKeeperRequest {
    /// A call for the order, and the shape of its answer.
    Write(Command, ReplyShape),
    /// A call with its sequence, as the client encoded it.
    Call(Bytes),
    /// A wait until this replica has applied everything that was answered before, or every such
    /// change of the key.
    Sync(String, Option<LeaseKey>),
    /// A read.
    Read(Query),
    /// The rack of this number is to leave as planned.
    Retire(i32),
    /// The limit of all keys and values is to be this many MiB.
    Limit(i32),
    /// A request that is answered by an error alone.
    Error(i32),
    /// A request whose operation does not exist. ZooKeeper closes the connection after the answer.
    Unknown,
}

/// How a write is answered.
#[derive(Debug)]
pub enum ReplyShape {
    /// The path, and the stat with `create2`.
    Create(bool),
    /// The stat.
    Set,
    /// Nothing.
    Delete,
    /// A result for each operation, by its number.
    Multi(Vec<i32>),
    /// A path.
    Sync(String),
    /// A reply of keys.
    Call,
    /// Nothing; then the connection is closed.
    Close,
    /// The session, for a client that has just connected.
    Open(Hello),
}

/// A read of keys.
#[derive(Debug)]
pub enum Query {
    /// `exists`, with a watch or without.
    Exists(String, bool),
    /// `getData`.
    Data(String, bool),
    /// `getChildren`, and with the stat `getChildren2`.
    Children(String, bool, bool),
    /// `getACL`.
    Rights(String),
    /// `multiRead`.
    Multi(Vec<Self>),
    /// `setWatches`: the revision that the client has seen, and paths by kind of watch.
    SetWatches(u64, Vec<(WatchSets, Vec<String>)>),
    /// `addWatch`.
    AddWatch(String, Watch),
    /// `checkWatches`, or `removeWatches` if the boolean is set.
    Watches(String, Vec<Watch>, bool),
    /// `getEphemerals` below a path.
    Ephemerals(String),
    /// `getAllChildrenNumber`.
    Count(String),
    /// `whoAmI`.
    Who,
    /// The keys with a prefix: the prefix, the first key, and the most keys.
    Range(String, String, usize),
}

/// Kinds of watches that a client sets again after it has connected anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchSets {
    /// On a key that was there.
    Data,
    /// On a key that was missing.
    Exist,
    /// On the keys right below.
    Children,
    /// Persistent.
    Persistent,
    /// Recursive.
    Recursive,
}

/// A path of a client, or why it is refused.
fn path(fields: &mut Fields<'_>) -> Result<Result<String, KeyRefusal>, Malformed> {
    let path = fields.text()?;
    let is_path = path.starts_with('/') && keys::check_key(&path).is_ok();
    Ok(if is_path { Ok(path.into_owned()) } else { Err(KeyRefusal::BadKey) })
}

/// The path of a node that is to be deleted. As in ZooKeeper, a path that no node can have is the
/// path of a missing node, unless it cannot be a path at all.
fn path_of_deleted(fields: &mut Fields<'_>) -> Result<Result<String, KeyRefusal>, Malformed> {
    let path = fields.text()?;
    Ok(match path.contains('/') && !path.contains('\0') && path != "/" {
        true if path.starts_with('/') && keys::check_key(&path).is_ok() => Ok(path.into_owned()),
        true => Err(KeyRefusal::NoKey),
        false => Err(KeyRefusal::BadKey),
    })
}

/// A key of a client, which may be no path for evenfall's own client, or why it is refused. Nothing
/// is kept for a text that is too long to be a key.
fn key(fields: &mut Fields<'_>) -> Result<Result<String, KeyRefusal>, Malformed> {
    let key = fields.text()?;
    let is_key = key.len() <= keys::KEY_BYTES_MAX;
    Ok(if is_key { Ok(key.into_owned()) } else { Err(KeyRefusal::TooLong) })
}

/// The node that a read of ZooKeeper's clients is about. As in ZooKeeper, a text that is no path
/// names a node that is missing.
fn node(fields: &mut Fields<'_>) -> Result<Result<String, KeyRefusal>, Malformed> {
    let path = fields.text()?;
    let is_path = path.starts_with('/') && path.len() <= keys::KEY_BYTES_MAX;
    Ok(if is_path { Ok(path.into_owned()) } else { Err(KeyRefusal::NoKey) })
}

/// The version that a request expects; `None` for -1, which stands for any. No key has another
/// negative version.
fn version(number: i32) -> Option<u32> {
    (number != -1).then_some(number as u32)
}

/// A new node, or why it is refused. The order judges the name, because ZooKeeper says first that a
/// parent is missing. The name of a numbered node may be its number alone, and its path then ends
/// with a slash.
fn new_node(
    number: i32,
    fields: &mut Fields<'_>,
    who: &[AclIdentity],
) -> Result<Result<KeyOperation, KeyRefusal>, Malformed> {
    let key = fields.text()?.into_owned();
    let value = fields.optional()?.map(Bytes::copy_from_slice);
    let rights = rights::read(fields, who)?;
    let mode = fields.int()?;
    let ttl_ms = if number == op::CREATE_TTL { fields.long()? } else { 0 };
    let (kind, numbered) = match mode {
        0 => (KeyLifetime::Persistent, false),
        1 => (KeyLifetime::Ephemeral, false),
        2 => (KeyLifetime::Persistent, true),
        3 => (KeyLifetime::Ephemeral, true),
        4 => (KeyLifetime::Container, false),
        5 | 6 if (1..=TTL_MS_MAX).contains(&ttl_ms) => {
            (KeyLifetime::Timed(ttl_ms as u64), mode == 6)
        }
        5 | 6 => return Ok(Err(KeyRefusal::BadKey)),
        _ => return Ok(Err(KeyRefusal::Malformed)),
    };
    if !key.starts_with('/') || key.contains('\0') || key.len() > keys::KEY_BYTES_MAX {
        return Ok(Err(KeyRefusal::BadKey));
    }
    let existing = Existing::None;
    Ok(rights.map(|rights| KeyOperation::Put { key, value, existing, kind, numbered, rights }))
}

/// Whether an operation makes a node.
fn is_create(number: i32) -> bool {
    matches!(number, op::CREATE | op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL)
}

/// An operation that a call may have, or why it is refused whatever the keys are.
fn change(
    number: i32,
    fields: &mut Fields<'_>,
    who: &[AclIdentity],
) -> Result<Result<KeyOperation, KeyRefusal>, Malformed> {
    if is_create(number) {
        return new_node(number, fields, who);
    }
    let path = if number == op::DELETE { path_of_deleted(fields)? } else { path(fields)? };
    let op = match number {
        op::SET_DATA => {
            let value = fields.optional()?.map(Bytes::copy_from_slice);
            let existing = version(fields.int()?).map_or(Existing::Any(false), Existing::Version);
            let (kind, numbered, rights) = (KeyLifetime::Persistent, false, Vec::new());
            path.map(|key| KeyOperation::Put { key, value, existing, kind, numbered, rights })
        }
        op::SET_ACL => {
            let rights = rights::read(fields, who)?;
            let version = version(fields.int()?);
            let set = |key| rights.map(|rights| KeyOperation::SetRights { key, version, rights });
            path.and_then(set)
        }
        op::DELETE => {
            let version = version(fields.int()?);
            path.map(|key| KeyOperation::Delete { key, version })
        }
        op::CHECK => {
            let version = version(fields.int()?);
            path.map(|key| KeyOperation::Check { key, version })
        }
        _ => Err(KeyRefusal::Unknown),
    };
    Ok(op)
}

/// A change of one node.
fn single(
    number: i32,
    fields: &mut Fields<'_>,
    who: &[AclIdentity],
) -> Result<ZooKeeperRequest, Malformed> {
    let shape = match number {
        op::DELETE => ReplyShape::Delete,
        op::SET_DATA | op::SET_ACL => ReplyShape::Set,
        _ => ReplyShape::Create(number != op::CREATE),
    };
    Ok(match change(number, fields, who)? {
        Ok(op) => ZooKeeperRequest::Write(Command::ChangeBy(who.to_vec(), vec![op]), shape),
        Err(refusal) => ZooKeeperRequest::Error(error_of(refusal)),
    })
}

/// Several changes that are made together. An operation that is refused whatever the keys are still
/// has its place among the others: the first that fails is the one that the client is told of.
fn multi(fields: &mut Fields<'_>, who: &[AclIdentity]) -> Result<ZooKeeperRequest, Malformed> {
    let (mut ops, mut numbers) = (Vec::new(), Vec::new());
    loop {
        let (number, is_last, _) = (fields.int()?, fields.bool()?, fields.int()?);
        if is_last {
            break;
        }
        let is_known = is_create(number) || matches!(number, op::SET_DATA | op::DELETE | op::CHECK);
        if !is_known {
            return Err(fields.malformed("an operation that a multi cannot have"));
        }
        if numbers.len() >= keys::OPS_MAX {
            return Ok(ZooKeeperRequest::Error(error::BAD_ARGUMENTS));
        }
        ops.push(match change(number, fields, who)? {
            // As in ZooKeeper, a kind of node that does not exist makes the whole call unreadable.
            Err(KeyRefusal::Malformed) => return Err(fields.malformed("a node of an unknown kind")),
            Err(refusal) => KeyOperation::Refuse { key: String::new(), refusal },
            Ok(op) => op,
        });
        numbers.push(number);
    }
    Ok(ZooKeeperRequest::Write(Command::ChangeBy(who.to_vec(), ops), ReplyShape::Multi(numbers)))
}

fn multi_read(fields: &mut Fields<'_>) -> Result<ZooKeeperRequest, Malformed> {
    let mut queries = Vec::new();
    loop {
        let (number, is_last, _) = (fields.int()?, fields.bool()?, fields.int()?);
        if is_last {
            return Ok(ZooKeeperRequest::Read(Query::Multi(queries)));
        }
        if !matches!(number, op::GET_DATA | op::GET_CHILDREN) {
            return Err(fields.malformed("an operation that a multiRead cannot have"));
        }
        // A path that no node can have is that of a missing node.
        let (path, watch) = (node(fields)?.unwrap_or_default(), fields.bool()?);
        if queries.len() >= READS_MAX {
            return Ok(ZooKeeperRequest::Error(error::BAD_ARGUMENTS));
        }
        queries.push(match number {
            op::GET_DATA => Query::Data(path, watch),
            _ => Query::Children(path, watch, false),
        });
    }
}

fn set_watches(number: i32, fields: &mut Fields<'_>) -> Result<ZooKeeperRequest, Malformed> {
    let seen = fields.long()?.max(0) as u64;
    let all = [
        WatchSets::Data,
        WatchSets::Exist,
        WatchSets::Children,
        WatchSets::Persistent,
        WatchSets::Recursive,
    ];
    let count = if number == op::SET_WATCHES { 3 } else { 5 };
    let mut sets = Vec::new();
    for set in &all[..count] {
        let paths = fields.texts()?;
        if paths.iter().any(|path| path.len() > keys::KEY_BYTES_MAX) {
            return Ok(ZooKeeperRequest::Error(error::BAD_ARGUMENTS));
        }
        sets.push((*set, paths.into_iter().map(Cow::into_owned).collect()));
    }
    Ok(ZooKeeperRequest::Read(Query::SetWatches(seen, sets)))
}

impl ZooKeeperRequest {
    /// Reads the part of a request behind its number.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are cut, or are no such request.
    pub fn read(number: i32, bytes: &[u8], who: &[AclIdentity]) -> Result<Self, Malformed> {
        let mut fields = Fields::new(bytes);
        let f = &mut fields;
        let query = match number {
            op::SET_DATA | op::SET_ACL | op::DELETE => return single(number, f, who),
            _ if is_create(number) => return single(number, f, who),
            op::MULTI => return multi(f, who),
            op::MULTI_READ => return multi_read(f),
            op::SET_WATCHES | op::SET_WATCHES2 => return set_watches(number, f),
            op::SYNC => return Ok(Self::Sync(f.text()?.into_owned(), None)),
            op::SYNC_KEY => {
                let key = f.text()?;
                let lease = leased::of_read(&key);
                return Ok(Self::Sync(key.into_owned(), Some(lease)));
            }
            op::CLOSE => return Ok(Self::Write(Command::Close, ReplyShape::Close)),
            op::RETIRE => return Ok(Self::Retire(f.int()?)),
            op::LIMIT => return Ok(Self::Limit(f.int()?)),
            op::CALL => return Ok(Self::Call(Bytes::copy_from_slice(f.buffer()?))),
            op::RANGE => {
                let (prefix, first) = (f.text()?.into_owned(), f.text()?.into_owned());
                let count = usize::try_from(f.int()?).unwrap_or(0).min(RANGE_MAX);
                return Ok(Self::Read(Query::Range(prefix, first, count)));
            }
            op::EXISTS | op::GET_DATA | op::ADD_WATCH => match key(f)? {
                // Of all reads, ZooKeeper looks for this byte in `exists` alone.
                Ok(key) if number == op::EXISTS && key.contains('\0') => {
                    return Ok(Self::Error(error::BAD_ARGUMENTS));
                }
                Ok(key) => return Self::of_key(number, key, f),
                Err(refusal) => return Ok(Self::Error(error_of(refusal))),
            },
            op::GET_EPHEMERALS => Query::Ephemerals(f.text()?.into_owned()),
            op::WHO_AM_I => Query::Who,
            op::RECONFIGURE => return Ok(Self::Error(error::RECONFIGURATION_DISABLED)),
            op::GET_CHILDREN
            | op::GET_CHILDREN2
            | op::GET_ACL
            | op::COUNT_CHILDREN
            | op::CHECK_WATCHES
            | op::REMOVE_WATCHES => match node(f)? {
                Ok(path) => Self::query(number, path, f)?,
                Err(_) if matches!(number, op::CHECK_WATCHES | op::REMOVE_WATCHES) => {
                    return Ok(Self::Error(error::NO_WATCHER));
                }
                Err(refusal) => return Ok(Self::Error(error_of(refusal))),
            },
            _ => return Ok(Self::Unknown),
        };
        Ok(Self::Read(query))
    }

    /// A read that begins with a key.
    fn of_key(number: i32, key: String, f: &mut Fields<'_>) -> Result<Self, Malformed> {
        Ok(Self::Read(match number {
            op::EXISTS => Query::Exists(key, f.bool()?),
            op::GET_DATA => Query::Data(key, f.bool()?),
            _ => match f.int()? {
                0 => Query::AddWatch(key, Watch::Persistent),
                1 => Query::AddWatch(key, Watch::Recursive),
                _ => return Ok(Self::Error(error::BAD_ARGUMENTS)),
            },
        }))
    }

    /// A read that begins with a path.
    fn query(number: i32, path: String, f: &mut Fields<'_>) -> Result<Query, Malformed> {
        Ok(match number {
            op::GET_CHILDREN => Query::Children(path, f.bool()?, false),
            op::GET_CHILDREN2 => Query::Children(path, f.bool()?, true),
            op::GET_ACL => Query::Rights(path),
            op::COUNT_CHILDREN => Query::Count(path),
            _ => {
                let kinds = match f.int()? {
                    1 => vec![Watch::Children],
                    2 => vec![Watch::Data],
                    _ => {
                        vec![Watch::Data, Watch::Children, Watch::Persistent, Watch::Recursive]
                    }
                };
                Query::Watches(path, kinds, number == op::REMOVE_WATCHES)
            }
        })
    }
}

impl ReplyShape {
    /// The answer to a write.
    pub fn answer(&self, xid: i32, revision: u64, reply: &KeyReply) -> JuteMessage {
        let ok = JuteMessage::reply(xid, revision, error::OK);
        let outcomes = match (self, reply) {
            (Self::Call, reply) => {
                let mut bytes = Vec::new();
                reply.put(&mut bytes);
                return ok.buffer(&bytes);
            }
            (Self::Multi(numbers), KeyReply::Refused(at, refusal)) => {
                return refused(ok, numbers.len(), usize::from(*at), error_of(*refusal));
            }
            (_, KeyReply::Refused(_, refusal)) => {
                return JuteMessage::reply(xid, revision, error_of(*refusal));
            }
            (_, KeyReply::Done(outcomes)) => outcomes,
        };
        match (self, outcomes.first()) {
            (Self::Create(false), Some(made)) => ok.text(&made.key),
            (Self::Create(true), Some(made)) => ok.text(&made.key).stat(&made.stat),
            (Self::Set, Some(set)) => ok.stat(&set.stat),
            (Self::Sync(path), _) => ok.text(path),
            (Self::Multi(numbers), _) => {
                let each = numbers.iter().zip(outcomes);
                let all = each.fold(ok, |message, (number, outcome)| {
                    // As in ZooKeeper, every node that comes with a stat was made by `create2`.
                    // Java's client knows no other number here.
                    let is_made = is_create(*number) && *number != op::CREATE;
                    let shown = if is_made { op::CREATE2 } else { *number };
                    let message = message.int(shown).bool(false).int(error::OK);
                    match *number {
                        op::CREATE => message.text(&outcome.key),
                        number if is_create(number) => {
                            message.text(&outcome.key).stat(&outcome.stat)
                        }
                        op::SET_DATA => message.stat(&outcome.stat),
                        _ => message,
                    }
                });
                end_of_multi(all)
            }
            _ => ok,
        }
    }
}

fn end_of_multi(message: JuteMessage) -> JuteMessage {
    message.int(-1).bool(true).int(-1)
}

/// The answer to a multi of which the operation at `at` was refused.
fn refused(message: JuteMessage, count: usize, at: usize, number: i32) -> JuteMessage {
    let all = (0..count).fold(message, |message, place| {
        let error = match place.cmp(&at) {
            core::cmp::Ordering::Less => error::OK,
            core::cmp::Ordering::Equal => number,
            core::cmp::Ordering::Greater => error::INCONSISTENT,
        };
        message.int(-1).bool(false).int(error).int(error)
    });
    end_of_multi(all)
}

impl Query {
    /// The answer to a read, from these keys. The read sets its watches while the caller holds the
    /// lock of the keys, so that no change comes in between.
    pub fn answer(
        &self,
        xid: i32,
        keys: &Keys,
        shared: &SharedKeys,
        to: &mut ReadingClient<'_>,
    ) -> JuteMessage {
        let revision = keys.revision();
        let failed = |error| JuteMessage::reply(xid, revision, error);
        let ok = JuteMessage::reply(xid, revision, error::OK);
        match self {
            Self::Multi(queries) => {
                all(ok, queries, keys, shared, to).unwrap_or(failed(error::BAD_ARGUMENTS))
            }
            Self::SetWatches(seen, sets) => {
                for (set, paths) in sets {
                    to.work += paths.len();
                    paths.iter().for_each(|path| set_again(*seen, *set, path, keys, shared, to));
                }
                ok
            }
            Self::AddWatch(path, kind) => {
                let is_set = shared.watches().set(to.connection, path, *kind);
                if is_set { ok.int(error::OK) } else { failed(error::QUOTA_EXCEEDED) }
            }
            Self::Watches(path, kinds, removes) => {
                let mut watches = shared.watches();
                let mut found = false;
                for kind in kinds {
                    found |= match removes {
                        true => watches.remove(to.connection, path, *kind),
                        false => watches.has(to.connection, path, *kind),
                    };
                }
                if found { ok } else { failed(error::NO_WATCHER) }
            }
            Self::Ephemerals(prefix) => {
                let own = keys.owned(to.session).inspect(|_| to.work += 1);
                let own: Vec<_> = own.filter(|key| key.starts_with(prefix.as_str())).collect();
                if is_too_long(own.iter().map(|key| key.len())) {
                    return failed(error::BAD_ARGUMENTS);
                }
                own.iter().fold(ok.int(own.len() as i32), |message, key| message.text(key))
            }
            Self::Range(prefix, first, count) => {
                range(ok, keys, (prefix.as_str(), first.as_str()), *count, to)
            }
            Self::Who => to.who.iter().fold(ok.int(to.who.len() as i32), |message, one| {
                // A digest is as good as a password, so nobody is told the digest.
                let name = one.name.split(':').next().unwrap_or_default();
                let name = if one.scheme == "digest" { name } else { &one.name };
                message.text(&one.scheme).text(name)
            }),
            _ => {
                let entry = self.entry(keys, to);
                let is_missing = matches!(entry, Err(error::NO_NODE));
                let sets = entry.is_ok() || (is_missing && matches!(self, Self::Exists(..)));
                if sets && !self.watch(shared, to) {
                    return failed(error::QUOTA_EXCEEDED);
                }
                match entry {
                    Ok(entry) if self.is_too_long(entry) => failed(error::BAD_ARGUMENTS),
                    Ok(entry) => self.put(ok, keys, entry, to),
                    Err(error) => failed(error),
                }
            }
        }
    }

    /// Bytes that the read takes in memory beside those of its message.
    pub fn overhead_bytes(&self) -> usize {
        let texts = match self {
            Self::SetWatches(_, sets) => sets.iter().map(|(_, paths)| paths.len()).sum(),
            Self::Multi(queries) => queries.len(),
            _ => 1,
        };
        texts * size_of::<Self>()
    }

    /// The entry that the read is about, if the client may read it.
    fn entry<'a>(&self, keys: &'a Keys, to: &mut ReadingClient<'_>) -> Result<&'a KeyEntry, i32> {
        let (path, bits) = match self {
            Self::Exists(path, _)
            | Self::Data(path, _)
            | Self::Children(path, ..)
            | Self::Count(path) => (path, READ),
            Self::Rights(path) => (path, READ | ADMIN),
            _ => return Err(error::UNIMPLEMENTED),
        };
        let entry = keys.get(path).ok_or(error::NO_NODE)?;
        to.work += entry.rights.len() * to.who.len();
        if matches!(self, Self::Children(..)) {
            to.work += entry.children.len();
        }
        if allows(&entry.rights, bits, to.who) { Ok(entry) } else { Err(error::NO_AUTH) }
    }

    /// Sets the watch that the read asks for. Returns false when the client has too many watches.
    fn watch(&self, shared: &SharedKeys, to: &ReadingClient<'_>) -> bool {
        match self {
            Self::Exists(path, true) | Self::Data(path, true) => {
                shared.watches().set(to.connection, path, Watch::Data)
            }
            Self::Children(path, true, _) => {
                shared.watches().set(to.connection, path, Watch::Children)
            }
            _ => true,
        }
    }

    /// Whether the answer would have more bytes than an answer may have.
    fn is_too_long(&self, entry: &KeyEntry) -> bool {
        let names = entry.children.iter().map(|name| name.len());
        matches!(self, Self::Children(..)) && is_too_long(names)
    }

    fn put(
        &self,
        message: JuteMessage,
        keys: &Keys,
        entry: &KeyEntry,
        to: &mut ReadingClient<'_>,
    ) -> JuteMessage {
        match self {
            Self::Exists(..) => message.stat(&entry.stat()),
            Self::Data(..) => message.optional(entry.value.as_deref()).stat(&entry.stat()),
            Self::Children(_, _, with_stat) => {
                let count = entry.children.len() as i32;
                let names = entry.children.iter();
                let message = names.fold(message.int(count), |message, name| message.text(name));
                if *with_stat { message.stat(&entry.stat()) } else { message }
            }
            Self::Rights(_) => rights::put(message, entry, to.who).stat(&entry.stat()),
            Self::Count(path) => {
                let below = if path == "/" { "/".to_owned() } else { format!("{path}/") };
                let count = keys.range("", &below).filter(|(key, _)| &***key != "/").count();
                to.work += count;
                message.int(count as i32)
            }
            _ => message,
        }
    }
}

/// Whether texts of these lengths are too long for one answer.
fn is_too_long(lengths: impl Iterator<Item = usize>) -> bool {
    lengths.map(|length| 4 + length).sum::<usize>() > ANSWER_BYTES_MAX
}

/// The answers to several reads; `None` when they are too long together.
fn all(
    mut message: JuteMessage,
    queries: &[Query],
    keys: &Keys,
    shared: &SharedKeys,
    to: &mut ReadingClient<'_>,
) -> Option<JuteMessage> {
    for query in queries {
        to.work += 1;
        let number = match query {
            Query::Data(..) => op::GET_DATA,
            _ => op::GET_CHILDREN,
        };
        message = match query.entry(keys, to) {
            Ok(entry) if query.is_too_long(entry) => return None,
            Ok(entry) => {
                to.is_full |= !query.watch(shared, to);
                let message = message.int(number).bool(false).int(error::OK);
                query.put(message, keys, entry, to)
            }
            Err(error) => message.int(-1).bool(false).int(error).int(error),
        };
        if message.length() > ANSWER_BYTES_MAX {
            return None;
        }
    }
    Some(end_of_multi(message))
}

/// Keys of a range that the client may read: a list of key, value and stat, and whether there are
/// more.
fn range(
    ok: JuteMessage,
    keys: &Keys,
    (prefix, first): (&str, &str),
    count: usize,
    to: &mut ReadingClient<'_>,
) -> JuteMessage {
    let (mut found, mut bytes, mut is_cut) = (Vec::new(), 0, false);
    let is_shown =
        |key: &str, entry: &KeyEntry| !keys::is_always(key) && allows(&entry.rights, READ, to.who);
    let all = keys.range(first, prefix).inspect(|_| to.work += 1);
    for (key, entry) in all.filter(|(key, entry)| is_shown(key, entry)) {
        bytes += key.len() + entry.value.as_ref().map_or(0, Bytes::len);
        let is_long = !found.is_empty() && bytes > RANGE_BYTES_MAX;
        if found.len() == count || is_long {
            is_cut = true;
            break;
        }
        found.push((key, entry));
    }
    let message = found.iter().fold(ok.int(found.len() as i32), |message, (key, entry)| {
        message.text(key).optional(entry.value.as_deref()).stat(&entry.stat())
    });
    message.bool(is_cut)
}

/// Sets a watch of a client that has connected anew. If the client has missed a change, the client
/// gets the event at once instead.
fn set_again(
    seen: u64,
    set: WatchSets,
    path: &str,
    keys: &Keys,
    shared: &SharedKeys,
    to: &mut ReadingClient<'_>,
) {
    let entry = keys.get(path);
    let told = match (set, entry) {
        (WatchSets::Data | WatchSets::Children, None) => Some(WatchEventKind::Deleted),
        (WatchSets::Data, Some(entry)) if entry.modified > seen => Some(WatchEventKind::Changed),
        (WatchSets::Children, Some(entry)) if entry.children_modified > seen => {
            Some(WatchEventKind::Children)
        }
        (WatchSets::Exist, Some(_)) => Some(WatchEventKind::Created),
        _ => None,
    };
    if let Some(told) = told {
        to.missed.push(Event { told, path: path.to_owned(), rights: Default::default() });
        return;
    }
    let kind = match set {
        WatchSets::Data | WatchSets::Exist => Watch::Data,
        WatchSets::Children => Watch::Children,
        WatchSets::Persistent => Watch::Persistent,
        WatchSets::Recursive => Watch::Recursive,
    };
    to.is_full |= !shared.watches().set(to.connection, path, kind);
}
