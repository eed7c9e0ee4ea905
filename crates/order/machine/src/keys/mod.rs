//! The state machine above the order: keys with versions, and sessions.
//!
//! Every replica applies the same calls in the same order ([`Keys::apply`]) and so has the same
//! keys. Nothing here reads a clock: a call carries the time of the node that took it, and the time
//! of the keys is the latest that any call carried.
//!
//! | kind of key | rule |
//! |---|---|
//! | begins with `/` | a path: its parent must exist and must not be ephemeral, and a path with children cannot be deleted |
//! | any other | has no parent and no children |
//!
//! **Changes.** A call has a list of [`Op`]s, which take effect together or not at all.
//!
//! **Exactly once.** A client that gets no answer sends its call again, perhaps to another node,
//! with the same session and the same sequence. The session keeps its last
//! [`REPLIES_MAX`] replies, so a call that was applied already is answered and not applied again.
//! Sequence 0 stands for a call that is never sent again.
//!
//! **Sessions** end when their owner closes them, or by [`Command::Expire`], which is ordered like
//! any other call. A node proposes to expire a session that nobody has touched for its timeout. The
//! proposal names the touch that it counted from, so a touch that is ordered before it wins.
//!
//! The shape follows ZooKeeper's tree, so that a front for its clients needs no state of its own.

pub mod command;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

pub use command::{Call, Command, Existing, Kind, Op, Outcome, Refusal, Reply, Stat};

/// Replies that a session keeps: a client may have as many calls without an answer.
pub const REPLIES_MAX: usize = 64;
/// Bytes of a key.
pub const KEY_BYTES_MAX: usize = 4_096;
/// Bytes of a value: what ZooKeeper allows by default.
pub const VALUE_BYTES_MAX: usize = 1_048_575;
/// Operations in one call.
pub const OPS_MAX: usize = 4_096;
/// Sessions at once. Opening another is refused.
pub const SESSIONS_MAX: usize = 100_000;
/// Bytes that a key or a session is counted for beside its own bytes.
const OVERHEAD_BYTES: usize = 256;

/// A key and what is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Bytes,
    /// The revision that made the key.
    pub created: u64,
    /// The revision that last set the value.
    pub modified: u64,
    /// How often the value was set since the key was made.
    pub version: u32,
    /// Time of `created`, in milliseconds since 1970.
    pub created_ms: u64,
    /// Time of `modified`.
    pub modified_ms: u64,
    /// How long the key lives.
    pub kind: Kind,
    /// The session that made the key; an ephemeral key is deleted with the session.
    pub owner: u64,
    /// The last parts of the paths right below.
    pub children: BTreeSet<Arc<str>>,
    /// How many children were ever made.
    pub births: u32,
    /// The revision that last made or deleted a child.
    pub children_modified: u64,
}

/// A client that may ask again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Silence after which nodes propose to expire the session.
    pub timeout_ms: u32,
    /// What the client has to show to go on with the session at another node.
    pub password: u64,
    /// The revision of the last sign of life.
    pub touched: u64,
    /// Keys that are deleted with the session.
    owned: BTreeSet<Arc<str>>,
    /// The last replies, by sequence.
    replies: VecDeque<(u64, Reply)>,
    /// The highest sequence that is no longer among the replies.
    forgotten: u64,
}

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The key was made.
    Created,
    /// The value was set.
    Set,
    /// The key is gone.
    Deleted,
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Arc<str>,
    /// What became of it.
    pub what: What,
}

/// What a call did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The answer to the client.
    pub reply: Reply,
    /// Changes of keys, in order.
    pub changes: Vec<Change>,
    /// Sessions that have ended.
    pub ended: Vec<u64>,
}

/// The keys of one replica. See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    entries: BTreeMap<Arc<str>, Entry>,
    sessions: BTreeMap<u64, Session>,
    revision: u64,
    now_ms: u64,
    /// Bytes of all keys and values with their overhead.
    bytes: usize,
    bytes_max: usize,
}

/// What undoes an operation of a call of which a later operation is refused.
enum Undo {
    Put(Arc<str>, Option<Entry>),
    Parent(Arc<str>, Option<Entry>),
}

impl Keys {
    /// No keys but `/`. Puts are refused when keys and values would take more bytes than
    /// `bytes_max`, which has to be equal at all replicas.
    pub fn new(bytes_max: usize) -> Self {
        let entries = [("/".into(), Entry::default())].into();
        let sessions = BTreeMap::new();
        Self { entries, sessions, revision: 0, now_ms: 0, bytes: 0, bytes_max }
    }

    /// The revision of the last call that was applied. Revisions only grow.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Keys, without `/`.
    pub fn len(&self) -> usize {
        self.entries.len() - 1
    }

    /// Whether there is no key but `/`.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all keys and values with their overhead.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A key.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Keys from `first` on that begin with `prefix`, in order.
    pub fn range<'a>(
        &'a self,
        first: &'a str,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Entry)> {
        let from = first.max(prefix);
        let bounds = (core::ops::Bound::Included(from), core::ops::Bound::Unbounded);
        let all = self.entries.range::<str, _>(bounds);
        all.take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// A session.
    pub fn session(&self, id: u64) -> Option<&Session> {
        self.sessions.get(&id)
    }

    /// All sessions.
    pub fn sessions(&self) -> impl Iterator<Item = (u64, &Session)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    /// The ephemeral keys of a session.
    pub fn owned(&self, id: u64) -> impl Iterator<Item = &Arc<str>> {
        self.sessions.get(&id).into_iter().flat_map(|session| &session.owned)
    }

    /// Applies the call of a request. Revisions have to grow from call to call. A body that is no
    /// call is refused, and changes nothing but the revision.
    pub fn apply(&mut self, revision: u64, body: &Bytes) -> Applied {
        self.revision = revision;
        let Ok(call) = Call::decode(body) else {
            return Applied { reply: Reply::Refused(0, Refusal::Malformed), ..Applied::default() };
        };
        self.now_ms = self.now_ms.max(call.at_ms);
        if call.sequence > 0
            && let Some(session) = self.sessions.get(&call.session)
        {
            if let Some((_, reply)) = session.replies.iter().find(|(s, _)| *s == call.sequence) {
                return Applied { reply: reply.clone(), ..Applied::default() };
            }
            if call.sequence <= session.forgotten {
                let reply = Reply::Refused(0, Refusal::Forgotten);
                return Applied { reply, ..Applied::default() };
            }
        }
        let applied = self.carry_out(&call);
        if call.sequence > 0
            && let Some(session) = self.sessions.get_mut(&call.session)
        {
            session.touched = revision;
            session.replies.push_back((call.sequence, applied.reply.clone()));
            if session.replies.len() > REPLIES_MAX
                && let Some((sequence, _)) = session.replies.pop_front()
            {
                session.forgotten = session.forgotten.max(sequence);
            }
        }
        applied
    }

    fn carry_out(&mut self, call: &Call) -> Applied {
        let mut applied = Applied::default();
        let done = match &call.command {
            Command::Change(ops) => {
                applied.reply = self.change(call.session, ops, &mut applied.changes);
                return applied;
            }
            Command::Open { timeout_ms, password, is_new } => {
                self.open(call.session, *timeout_ms, *password, *is_new)
            }
            Command::Touch(ids) => {
                for id in ids {
                    if let Some(session) = self.sessions.get_mut(id) {
                        session.touched = self.revision;
                    }
                }
                Ok(())
            }
            Command::Close => self.end(call.session, &mut applied),
            Command::Expire { session, touched } => {
                let is_same = self.sessions.get(session).is_some_and(|s| s.touched == *touched);
                if is_same { self.end(*session, &mut applied) } else { Ok(()) }
            }
        };
        applied.reply = match done {
            Ok(()) => Reply::Done(Vec::new()),
            Err(refusal) => Reply::Refused(0, refusal),
        };
        applied
    }

    fn open(
        &mut self,
        id: u64,
        timeout_ms: u32,
        password: u64,
        is_new: bool,
    ) -> Result<(), Refusal> {
        let touched = self.revision;
        if let Some(known) = self.sessions.get_mut(&id) {
            if known.password != password {
                return Err(Refusal::NoSession);
            }
            (known.timeout_ms, known.touched) = (timeout_ms, touched);
            return Ok(());
        }
        if !is_new {
            return Err(Refusal::NoSession);
        }
        if self.sessions.len() >= SESSIONS_MAX || id == 0 {
            return Err(Refusal::Full);
        }
        let session = Session { timeout_ms, password, touched, ..Session::default() };
        self.sessions.insert(id, session);
        Ok(())
    }

    fn end(&mut self, id: u64, applied: &mut Applied) -> Result<(), Refusal> {
        let session = self.sessions.remove(&id).ok_or(Refusal::NoSession)?;
        for key in session.owned {
            // An ephemeral key has no children, so nothing keeps the key.
            let mut undo = Vec::new();
            if self.delete(&key, None, &mut undo).is_ok() {
                applied.changes.push(Change { key, what: What::Deleted });
            }
        }
        applied.ended.push(id);
        Ok(())
    }

    /// All operations, or none and the place of the first that is refused.
    fn change(&mut self, session: u64, ops: &[Op], changes: &mut Vec<Change>) -> Reply {
        let (mut outcomes, mut undos) = (Vec::new(), Vec::new());
        for (at, op) in ops.iter().enumerate() {
            match self.operate(session, op, &mut undos, changes) {
                Ok(outcome) => outcomes.push(outcome),
                Err(refusal) => {
                    changes.clear();
                    self.undo(undos);
                    return Reply::Refused(at as u16, refusal);
                }
            }
        }
        Reply::Done(outcomes)
    }

    fn operate(
        &mut self,
        session: u64,
        op: &Op,
        undos: &mut Vec<Undo>,
        changes: &mut Vec<Change>,
    ) -> Result<Outcome, Refusal> {
        match op {
            Op::Check { key, version } => {
                let entry = self.entries.get(key.as_str()).ok_or(Refusal::NoKey)?;
                check_version(entry, *version)?;
                Ok(Outcome::new(key.as_str().into(), entry))
            }
            Op::Put { key, value, existing, kind, numbered } => {
                let is_new = !self.entries.contains_key(key.as_str()) || *numbered;
                let key = match is_new {
                    true => {
                        self.create(session, key, value, *existing, (*kind, *numbered), undos)?
                    }
                    false => self.set(key, value, *existing, undos)?,
                };
                let what = if is_new { What::Created } else { What::Set };
                changes.push(Change { key: key.clone(), what });
                let entry = self.entries.get(&key).ok_or(Refusal::NoKey)?;
                Ok(Outcome::new(key, entry))
            }
            Op::Delete { key, version } => {
                let gone = self.delete(key, *version, undos)?;
                let key: Arc<str> = key.as_str().into();
                changes.push(Change { key: key.clone(), what: What::Deleted });
                Ok(Outcome::new(key, &gone))
            }
        }
    }

    fn create(
        &mut self,
        session: u64,
        key: &str,
        value: &Bytes,
        existing: Existing,
        (kind, numbered): (Kind, bool),
        undos: &mut Vec<Undo>,
    ) -> Result<Arc<str>, Refusal> {
        let parent: Option<Arc<str>> = parent(key).map(Into::into);
        let above = parent.as_ref().map(|path| self.entries.get(path).ok_or(Refusal::NoParent));
        let above = above.transpose()?;
        let number = above.map_or(0, |above| above.births);
        let key: Arc<str> = match numbered {
            true => format!("{key}{number:010}").into(),
            false => key.into(),
        };
        check_key(&key)?;
        if above.is_some_and(|above| above.kind == Kind::Ephemeral) {
            return Err(Refusal::EphemeralParent);
        }
        if matches!(existing, Existing::Any(_) | Existing::Version(_)) && !existing.may_create() {
            return Err(Refusal::NoKey);
        }
        if self.entries.contains_key(&key) {
            return Err(Refusal::KeyExists);
        }
        let size = key.len() + value.len() + OVERHEAD_BYTES;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Refusal::TooLong);
        }
        if self.bytes + size > self.bytes_max {
            return Err(Refusal::Full);
        }
        if kind == Kind::Ephemeral {
            let owner = self.sessions.get_mut(&session).ok_or(Refusal::NoSession)?;
            owner.owned.insert(key.clone());
        }
        undos.push(Undo::Put(key.clone(), None));
        let (revision, now_ms) = (self.revision, self.now_ms);
        if let Some(path) = parent
            && let Some(above) = self.entries.get_mut(&path)
        {
            undos.push(Undo::Parent(path, Some(above.without_children())));
            above.births += 1;
            above.children_modified = revision;
            above.children.insert(name(&key).into());
        }
        let entry = Entry {
            value: value.clone(),
            created: revision,
            modified: revision,
            created_ms: now_ms,
            modified_ms: now_ms,
            kind,
            owner: if kind == Kind::Ephemeral { session } else { 0 },
            children_modified: revision,
            ..Entry::default()
        };
        self.bytes += size;
        self.entries.insert(key.clone(), entry);
        Ok(key)
    }

    fn set(
        &mut self,
        key: &str,
        value: &Bytes,
        existing: Existing,
        undos: &mut Vec<Undo>,
    ) -> Result<Arc<str>, Refusal> {
        let Some((key, entry)) = self.entries.get_key_value(key) else {
            return Err(Refusal::NoKey);
        };
        let key = key.clone();
        match existing {
            Existing::None => return Err(Refusal::KeyExists),
            Existing::Version(version) => check_version(entry, Some(version))?,
            Existing::Any(_) => {}
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(Refusal::TooLong);
        }
        let bytes = self.bytes - entry.value.len() + value.len();
        if value.len() > entry.value.len() && bytes > self.bytes_max {
            return Err(Refusal::Full);
        }
        undos.push(Undo::Put(key.clone(), Some(entry.without_children())));
        let (revision, now_ms) = (self.revision, self.now_ms);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.value = value.clone();
            entry.version = entry.version.wrapping_add(1);
            (entry.modified, entry.modified_ms) = (revision, now_ms);
        }
        self.bytes = bytes;
        Ok(key)
    }

    fn delete(
        &mut self,
        key: &str,
        version: Option<u32>,
        undos: &mut Vec<Undo>,
    ) -> Result<Entry, Refusal> {
        let entry = self.entries.get(key).ok_or(Refusal::NoKey)?;
        check_version(entry, version)?;
        if !entry.children.is_empty() {
            return Err(Refusal::NotEmpty);
        }
        if key == "/" {
            return Err(Refusal::BadKey);
        }
        let Some((key, entry)) = self.entries.remove_entry(key) else {
            return Err(Refusal::NoKey);
        };
        self.bytes -= key.len() + entry.value.len() + OVERHEAD_BYTES;
        if let Some(owner) = self.sessions.get_mut(&entry.owner) {
            owner.owned.remove(&key);
        }
        undos.push(Undo::Put(key.clone(), Some(entry.clone())));
        let revision = self.revision;
        if let Some(path) = parent(&key)
            && let Some(above) = self.entries.get_mut(path)
        {
            undos.push(Undo::Parent(path.into(), Some(above.without_children())));
            above.children.remove(name(&key));
            above.children_modified = revision;
        }
        Ok(entry)
    }

    /// Takes operations back, the last first.
    fn undo(&mut self, undos: Vec<Undo>) {
        for undo in undos.into_iter().rev() {
            match undo {
                Undo::Parent(path, Some(before)) => {
                    if let Some(above) = self.entries.get_mut(&path) {
                        above.births = before.births;
                        above.children_modified = before.children_modified;
                    }
                }
                Undo::Parent(_, None) => {}
                Undo::Put(key, before) => self.put_back(key, before),
            }
        }
    }

    fn put_back(&mut self, key: Arc<str>, before: Option<Entry>) {
        let now = self.entries.remove(&key);
        if let Some(now) = &now {
            self.bytes -= key.len() + now.value.len() + OVERHEAD_BYTES;
            if let Some(owner) = self.sessions.get_mut(&now.owner) {
                owner.owned.remove(&key);
            }
        }
        let above = parent(&key).and_then(|path| self.entries.get_mut(path));
        match before {
            None => {
                if let Some(above) = above {
                    above.children.remove(name(&key));
                }
            }
            Some(mut before) => {
                if let Some(above) = above {
                    above.children.insert(name(&key).into());
                }
                before.children = now.map(|now| now.children).unwrap_or_default();
                self.bytes += key.len() + before.value.len() + OVERHEAD_BYTES;
                if let Some(owner) = self.sessions.get_mut(&before.owner) {
                    owner.owned.insert(key.clone());
                }
                self.entries.insert(key, before);
            }
        }
    }
}

impl Entry {
    /// What is known beside the value.
    pub fn stat(&self) -> Stat {
        Stat {
            created: self.created,
            modified: self.modified,
            created_ms: self.created_ms,
            modified_ms: self.modified_ms,
            version: self.version,
            births: self.births,
            owner: self.owner,
            length: self.value.len() as u32,
            children: self.children.len() as u32,
            children_modified: self.children_modified,
            kind: self.kind,
        }
    }

    /// What undoing needs, without a copy of the names of all children.
    fn without_children(&self) -> Self {
        Self { children: BTreeSet::new(), value: self.value.clone(), ..*self }
    }
}

fn check_version(entry: &Entry, version: Option<u32>) -> Result<(), Refusal> {
    match version {
        Some(version) if version != entry.version => Err(Refusal::BadVersion),
        _ => Ok(()),
    }
}

/// Whether this may be a key.
///
/// # Errors
/// [`Refusal::BadKey`] or [`Refusal::TooLong`].
pub fn check_key(key: &str) -> Result<(), Refusal> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Refusal::TooLong);
    }
    let is_bad = |c: char| c == '\0' || c.is_control() || ('\u{f000}'..='\u{f8ff}').contains(&c);
    let is_dots = |part: &str| part.is_empty() || part == "." || part == "..";
    let is_bad_path = key.starts_with('/') && key.len() > 1 && key[1..].split('/').any(is_dots);
    if key.is_empty() || key.contains(is_bad) || is_bad_path {
        return Err(Refusal::BadKey);
    }
    Ok(())
}

/// The path above a path; `None` of `/` and of a key that is no path.
pub fn parent(key: &str) -> Option<&str> {
    let at = key.starts_with('/').then(|| key.rfind('/')).flatten()?;
    match at {
        0 if key.len() == 1 => None,
        0 => Some("/"),
        _ => Some(&key[..at]),
    }
}

/// The last part of a path.
fn name(key: &str) -> &str {
    key.rfind('/').map_or(key, |at| &key[at + 1..])
}

#[cfg(test)]
mod tests;
