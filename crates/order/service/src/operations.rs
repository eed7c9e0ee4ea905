//! The operations of clients: which call a write is, and how reads and writes are answered.

use bytes::Bytes;
use evenfall_core::Malformed;
use evenfall_order_machine::keys::{self, Command, Entry, Existing, Keys, Kind, Op, Reply};

use crate::connection::Connection;
use crate::jute::{Fields, Message, error, error_of, op};
use crate::shared::Shared;
use crate::watches::{Event, Kind as Watch, Told};

/// Keys that one read of a range gives.
const RANGE_MAX: usize = 10_000;
/// Bytes of keys and values that one read of a range gives; a range that is longer is read on from
/// its last key.
const RANGE_BYTES_MAX: usize = 1 << 20;
/// Reads in one `multiRead`.
const READS_MAX: usize = 4_096;

/// A request, read.
#[derive(Debug)]
pub enum Request {
    /// A call for the order, and the shape of its answer.
    Write(Command, Shape),
    /// A call with its sequence, as the client encoded it.
    Call(Bytes),
    /// A wait for everything that was answered before.
    Sync(String),
    /// A read.
    Read(Query),
    /// A request that is answered by an error alone.
    Error(i32),
}

/// How a write is answered.
#[derive(Debug)]
pub enum Shape {
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
    SetWatches(u64, Vec<(Set, Vec<String>)>),
    /// `addWatch`.
    AddWatch(String, Watch),
    /// `checkWatches`, and `removeWatches` when the truth is set.
    Watches(String, Vec<Watch>, bool),
    /// `getEphemerals` below a path.
    Ephemerals(String),
    /// `getAllChildrenNumber`.
    Count(String),
    /// A prefix, the first key, and how many.
    Range(String, String, usize),
}

/// Kinds of watches that a client sets again after it has connected anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
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

/// A path of a client, or the number of an error.
fn path(fields: &mut Fields<'_>) -> Result<Result<String, i32>, Malformed> {
    let path = fields.text()?;
    let is_path = path.starts_with('/') && keys::check_key(path).is_ok();
    Ok(if is_path { Ok(path.to_owned()) } else { Err(error::BAD_ARGUMENTS) })
}

fn version(number: i32) -> Option<u32> {
    (number >= 0).then_some(number as u32)
}

/// The rights of a new node: only everything for everybody is there.
fn rights(fields: &mut Fields<'_>) -> Result<Result<(), i32>, Malformed> {
    let count = fields.count()?;
    let mut is_open = count > 0;
    for _ in 0..count {
        let (rights, scheme, id) = (fields.int()?, fields.text()?, fields.text()?);
        is_open &= (rights, scheme, id) == (31, "world", "anyone");
    }
    Ok(if is_open { Ok(()) } else { Err(error::INVALID_ACL) })
}

/// A new node, or the number of an error. The name of a numbered node may be its number alone, and
/// its path then ends with a slash.
fn new_node(fields: &mut Fields<'_>) -> Result<Result<Op, i32>, Malformed> {
    let key = fields.text()?.to_owned();
    let value = Bytes::copy_from_slice(fields.buffer()?);
    let rights = rights(fields)?;
    let (kind, numbered) = match fields.int()? {
        0 => (Kind::Persistent, false),
        1 => (Kind::Ephemeral, false),
        2 => (Kind::Persistent, true),
        3 => (Kind::Ephemeral, true),
        4 => (Kind::Container, false),
        5 | 6 => return Ok(Err(error::UNIMPLEMENTED)),
        _ => return Ok(Err(error::BAD_ARGUMENTS)),
    };
    let sample = if numbered { format!("{key}0") } else { key.clone() };
    if !key.starts_with('/') || keys::check_key(&sample).is_err() {
        return Ok(Err(error::BAD_ARGUMENTS));
    }
    let existing = Existing::None;
    Ok(rights.map(|()| Op::Put { key, value, existing, kind, numbered }))
}

/// An operation that a call may have, or the number of an error.
fn change(number: i32, fields: &mut Fields<'_>) -> Result<Result<Op, i32>, Malformed> {
    if matches!(number, op::CREATE | op::CREATE2 | op::CREATE_CONTAINER) {
        return new_node(fields);
    }
    let path = path(fields)?;
    let op = match number {
        op::SET_DATA => {
            let value = Bytes::copy_from_slice(fields.buffer()?);
            let existing = version(fields.int()?).map_or(Existing::Any(false), Existing::Version);
            let (kind, numbered) = (Kind::Persistent, false);
            path.map(|key| Op::Put { key, value, existing, kind, numbered })
        }
        op::DELETE => {
            let version = version(fields.int()?);
            path.map(|key| Op::Delete { key, version })
        }
        op::CHECK => {
            let version = version(fields.int()?);
            path.map(|key| Op::Check { key, version })
        }
        _ => Err(error::UNIMPLEMENTED),
    };
    Ok(op)
}

fn create(number: i32, fields: &mut Fields<'_>) -> Result<Request, Malformed> {
    Ok(match change(number, fields)? {
        Ok(op) => Request::Write(Command::Change(vec![op]), Shape::Create(number != op::CREATE)),
        Err(error) => Request::Error(error),
    })
}

fn multi(fields: &mut Fields<'_>) -> Result<Request, Malformed> {
    let (mut ops, mut numbers) = (Vec::new(), Vec::new());
    loop {
        let (number, is_last, _) = (fields.int()?, fields.bool()?, fields.int()?);
        if is_last {
            break;
        }
        if ops.len() >= keys::OPS_MAX {
            return Ok(Request::Error(error::BAD_ARGUMENTS));
        }
        match change(number, fields)? {
            Ok(op) => ops.push(op),
            Err(error) => return Ok(Request::Error(error)),
        }
        numbers.push(number);
    }
    Ok(Request::Write(Command::Change(ops), Shape::Multi(numbers)))
}

fn multi_read(fields: &mut Fields<'_>) -> Result<Request, Malformed> {
    let mut queries = Vec::new();
    loop {
        let (number, is_last, _) = (fields.int()?, fields.bool()?, fields.int()?);
        if is_last {
            return Ok(Request::Read(Query::Multi(queries)));
        }
        let path = path(fields)?;
        let watch = fields.bool()?;
        if queries.len() >= READS_MAX {
            return Ok(Request::Error(error::BAD_ARGUMENTS));
        }
        queries.push(match (number, path) {
            (op::GET_DATA, Ok(path)) => Query::Data(path, watch),
            (op::GET_CHILDREN, Ok(path)) => Query::Children(path, watch, false),
            (_, Ok(_)) => return Ok(Request::Error(error::UNIMPLEMENTED)),
            (_, Err(error)) => return Ok(Request::Error(error)),
        });
    }
}

fn set_watches(number: i32, fields: &mut Fields<'_>) -> Result<Request, Malformed> {
    let seen = fields.long()?.max(0) as u64;
    let all = [Set::Data, Set::Exist, Set::Children, Set::Persistent, Set::Recursive];
    let count = if number == op::SET_WATCHES { 3 } else { 5 };
    let mut sets = Vec::new();
    for set in &all[..count] {
        let paths = fields.texts()?.into_iter().map(str::to_owned).collect();
        sets.push((*set, paths));
    }
    Ok(Request::Read(Query::SetWatches(seen, sets)))
}

impl Request {
    /// Reads the part of a request behind its number.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are cut, or are no such request.
    pub fn read(number: i32, bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields::new(bytes);
        let f = &mut fields;
        let query = match number {
            op::CREATE | op::CREATE2 | op::CREATE_CONTAINER => return create(number, f),
            op::SET_DATA | op::DELETE => {
                let shape = if number == op::DELETE { Shape::Delete } else { Shape::Set };
                return Ok(match change(number, f)? {
                    Ok(op) => Self::Write(Command::Change(vec![op]), shape),
                    Err(error) => Self::Error(error),
                });
            }
            op::MULTI => return multi(f),
            op::MULTI_READ => return multi_read(f),
            op::SET_WATCHES | op::SET_WATCHES2 => return set_watches(number, f),
            op::SYNC => return Ok(Self::Sync(f.text()?.to_owned())),
            op::CLOSE => return Ok(Self::Write(Command::Close, Shape::Close)),
            op::CALL => return Ok(Self::Call(Bytes::copy_from_slice(f.buffer()?))),
            op::RANGE => {
                let (prefix, first) = (f.text()?.to_owned(), f.text()?.to_owned());
                let count = usize::try_from(f.int()?).unwrap_or(0).min(RANGE_MAX);
                return Ok(Self::Read(Query::Range(prefix, first, count)));
            }
            op::EXISTS => {
                // Our own client asks for keys that are no paths.
                let key = f.text()?.to_owned();
                Query::Exists(key, f.bool()?)
            }
            op::GET_DATA => {
                let key = f.text()?.to_owned();
                Query::Data(key, f.bool()?)
            }
            op::ADD_WATCH => {
                let key = f.text()?.to_owned();
                let kind = if f.int()? == 1 { Watch::Recursive } else { Watch::Persistent };
                Query::AddWatch(key, kind)
            }
            op::GET_EPHEMERALS => Query::Ephemerals(f.text()?.to_owned()),
            _ => match path(f)? {
                Ok(path) => Self::query(number, path, f)?,
                Err(error) => return Ok(Self::Error(error)),
            },
        };
        Ok(match query {
            Query::Multi(none) if none.is_empty() => Self::Error(error::UNIMPLEMENTED),
            query => Self::Read(query),
        })
    }

    /// A read that begins with a path. An empty multi-read stands for an unknown number.
    fn query(number: i32, path: String, f: &mut Fields<'_>) -> Result<Query, Malformed> {
        Ok(match number {
            op::GET_CHILDREN => Query::Children(path, f.bool()?, false),
            op::GET_CHILDREN2 => Query::Children(path, f.bool()?, true),
            op::GET_ACL => Query::Rights(path),
            op::COUNT_CHILDREN => Query::Count(path),
            op::CHECK_WATCHES | op::REMOVE_WATCHES => {
                let kinds = match f.int()? {
                    1 => vec![Watch::Children],
                    2 => vec![Watch::Data],
                    _ => {
                        vec![Watch::Data, Watch::Children, Watch::Persistent, Watch::Recursive]
                    }
                };
                Query::Watches(path, kinds, number == op::REMOVE_WATCHES)
            }
            _ => Query::Multi(Vec::new()),
        })
    }
}

impl Shape {
    /// The answer to a write.
    pub fn answer(&self, xid: i32, revision: u64, reply: &Reply) -> Message {
        let ok = Message::reply(xid, revision, error::OK);
        let outcomes = match (self, reply) {
            (Self::Call, reply) => {
                let mut bytes = Vec::new();
                reply.put(&mut bytes);
                return ok.buffer(&bytes);
            }
            (Self::Multi(numbers), Reply::Refused(at, refusal)) => {
                return refused(ok, numbers.len(), usize::from(*at), error_of(*refusal));
            }
            (_, Reply::Refused(_, refusal)) => {
                return Message::reply(xid, revision, error_of(*refusal));
            }
            (_, Reply::Done(outcomes)) => outcomes,
        };
        match (self, outcomes.first()) {
            (Self::Create(false), Some(made)) => ok.text(&made.key),
            (Self::Create(true), Some(made)) => ok.text(&made.key).stat(&made.stat),
            (Self::Set, Some(set)) => ok.stat(&set.stat),
            (Self::Sync(path), _) => ok.text(path),
            (Self::Multi(numbers), _) => {
                let each = numbers.iter().zip(outcomes);
                let all = each.fold(ok, |message, (number, outcome)| {
                    let message = message.int(*number).bool(false).int(error::OK);
                    match *number {
                        op::CREATE => message.text(&outcome.key),
                        op::CREATE2 | op::CREATE_CONTAINER => {
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

fn end_of_multi(message: Message) -> Message {
    message.int(-1).bool(true).int(-1)
}

/// The answer to a multi of which the operation at `at` was refused.
fn refused(message: Message, count: usize, at: usize, number: i32) -> Message {
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
    /// The answer out of these keys. Watches are set before anybody can change the keys.
    pub fn answer(&self, xid: i32, keys: &Keys, shared: &Shared, to: &Connection) -> Message {
        let revision = keys.revision();
        let failed = |error| Message::reply(xid, revision, error);
        let ok = Message::reply(xid, revision, error::OK);
        match self {
            Self::Multi(queries) => {
                let all = queries.iter().fold(ok, |message, query| {
                    let number = match query {
                        Self::Data(..) => op::GET_DATA,
                        _ => op::GET_CHILDREN,
                    };
                    match query.entry(keys) {
                        Ok(entry) => {
                            query.watch(shared, to);
                            let message = message.int(number).bool(false).int(error::OK);
                            query.put(message, keys, entry)
                        }
                        Err(error) => message.int(-1).bool(false).int(error).int(error),
                    }
                });
                end_of_multi(all)
            }
            Self::SetWatches(seen, sets) => {
                for (set, paths) in sets {
                    paths.iter().for_each(|path| set_again(*seen, *set, path, keys, shared, to));
                }
                ok
            }
            Self::AddWatch(path, kind) => {
                let is_set = shared.watches().set(to.id, path, *kind);
                if is_set { ok.int(error::OK) } else { failed(error::QUOTA_EXCEEDED) }
            }
            Self::Watches(path, kinds, removes) => {
                let mut watches = shared.watches();
                let mut found = false;
                for kind in kinds {
                    found |= match removes {
                        true => watches.remove(to.id, path, *kind),
                        false => watches.has(to.id, path, *kind),
                    };
                }
                if found { ok } else { failed(error::NO_WATCHER) }
            }
            Self::Ephemerals(prefix) => {
                let own = keys.owned(to.session());
                let own: Vec<_> = own.filter(|key| key.starts_with(prefix.as_str())).collect();
                own.iter().fold(ok.int(own.len() as i32), |message, key| message.text(key))
            }
            Self::Range(prefix, first, count) => range(ok, keys, prefix, first, *count),
            _ => {
                let entry = self.entry(keys);
                let sets = entry.is_ok() || matches!(self, Self::Exists(..));
                if sets && !self.watch(shared, to) {
                    return failed(error::QUOTA_EXCEEDED);
                }
                match entry {
                    Ok(entry) => self.put(ok, keys, entry),
                    Err(error) => failed(error),
                }
            }
        }
    }

    /// The entry that the read is about.
    fn entry<'a>(&self, keys: &'a Keys) -> Result<&'a Entry, i32> {
        match self {
            Self::Exists(path, _)
            | Self::Data(path, _)
            | Self::Children(path, ..)
            | Self::Rights(path)
            | Self::Count(path) => keys.get(path).ok_or(error::NO_NODE),
            _ => Err(error::UNIMPLEMENTED),
        }
    }

    /// Sets the watch that the read asks for. False when the client has too many.
    fn watch(&self, shared: &Shared, to: &Connection) -> bool {
        match self {
            Self::Exists(path, true) | Self::Data(path, true) => {
                shared.watches().set(to.id, path, Watch::Data)
            }
            Self::Children(path, true, _) => shared.watches().set(to.id, path, Watch::Children),
            _ => true,
        }
    }

    fn put(&self, message: Message, keys: &Keys, entry: &Entry) -> Message {
        match self {
            Self::Exists(..) => message.stat(&entry.stat()),
            Self::Data(..) => message.buffer(&entry.value).stat(&entry.stat()),
            Self::Children(_, _, with_stat) => {
                let count = entry.children.len() as i32;
                let names = entry.children.iter();
                let message = names.fold(message.int(count), |message, name| message.text(name));
                if *with_stat { message.stat(&entry.stat()) } else { message }
            }
            Self::Rights(_) => {
                message.int(1).int(31).text("world").text("anyone").stat(&entry.stat())
            }
            Self::Count(path) => {
                let below = if path == "/" { "/".to_owned() } else { format!("{path}/") };
                let count = keys.range("", &below).filter(|(key, _)| &***key != "/").count();
                message.int(count as i32)
            }
            _ => message,
        }
    }
}

/// Keys of a range: a list of key, value and stat, and whether there are more.
fn range(ok: Message, keys: &Keys, prefix: &str, first: &str, count: usize) -> Message {
    let (mut found, mut bytes, mut is_cut) = (Vec::new(), 0, false);
    for (key, entry) in keys.range(first, prefix).filter(|(key, _)| &***key != "/") {
        bytes += key.len() + entry.value.len();
        let is_long = !found.is_empty() && bytes > RANGE_BYTES_MAX;
        if found.len() == count || is_long {
            is_cut = true;
            break;
        }
        found.push((key, entry));
    }
    let message = found.iter().fold(ok.int(found.len() as i32), |message, (key, entry)| {
        message.text(key).buffer(&entry.value).stat(&entry.stat())
    });
    message.bool(is_cut)
}

/// Sets a watch of a client that has connected anew, or tells at once what the client has missed.
fn set_again(seen: u64, set: Set, path: &str, keys: &Keys, shared: &Shared, to: &Connection) {
    let entry = keys.get(path);
    let told = match (set, entry) {
        (Set::Data | Set::Children, None) => Some(Told::Deleted),
        (Set::Data, Some(entry)) if entry.modified > seen => Some(Told::Changed),
        (Set::Children, Some(entry)) if entry.children_modified > seen => Some(Told::Children),
        (Set::Exist, Some(_)) => Some(Told::Created),
        _ => None,
    };
    if let Some(told) = told {
        return to.tell(Event { told, path: path.to_owned() });
    }
    let kind = match set {
        Set::Data | Set::Exist => Watch::Data,
        Set::Children => Watch::Children,
        Set::Persistent => Watch::Persistent,
        Set::Recursive => Watch::Recursive,
    };
    if !shared.watches().set(to.id, path, kind) {
        to.end();
    }
}
