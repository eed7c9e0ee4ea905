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
//! **Changes.** A call has a list of [`KeyOperation`]s, which take effect together or not at all.
//!
//! **Revisions** count the calls that could change something. The revisions of two successive
//! changes therefore differ by one, as in ZooKeeper.
//!
//! **Sessions** make calls that take effect once ([`KeySession`]).
//!
//! **Rights** ([`rights`]) say which client may do what with a key.
//!
//! **Containers and timed keys** end without a client (`mortal`).
//!
//! **ZooKeeper's wire** ([`jute`]) is what clients and replicas speak.
//!
//! The shape follows ZooKeeper's tree, so that a front for its clients needs no state of its own.
#![forbid(unsafe_code)]

pub mod command;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod jute;
mod mortal;
pub mod rights;
mod sessions;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

pub use command::{
    Command, Existing, ExpectedState, KeyCall, KeyLifetime, KeyOperation, KeyOutcome, KeyRefusal,
    KeyReply, Stat,
};
pub use mortal::REAPED_MAX;
pub use rights::{AclIdentity, Right, Rights};
pub use sessions::{KeySession, REPLIES_BYTES_MAX, REPLIES_MAX, SESSIONS_MAX};

/// Limit of the bytes of all keys and values before a call sets another.
pub const BYTES_MAX: usize = 256 << 20;
/// Most bytes of a key.
pub const KEY_BYTES_MAX: usize = 4_096;
/// Most bytes of a value, as ZooKeeper allows by default.
pub const VALUE_BYTES_MAX: usize = 1_048_575;
/// Most operations in one call, because a call counts them in 16 bits. ZooKeeper limits only the
/// length of a message.
pub const OPS_MAX: usize = u16::MAX as usize;
/// Keys that always exist: the root, and the keys below it that ZooKeeper's clients look for.
const ALWAYS: [&str; 4] = ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"];
/// Bytes that a key or a session is counted for beside its own bytes.
const OVERHEAD_BYTES: usize = 256;

/// The state of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyEntry {
    /// The value. ZooKeeper's clients distinguish no value from an empty value.
    pub value: Option<Bytes>,
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
    pub kind: KeyLifetime,
    /// The session that made the key; an ephemeral key is deleted with the session.
    pub owner: u64,
    /// The last parts of the paths right below.
    pub children: BTreeSet<Arc<str>>,
    /// How many children were ever made.
    pub births: u32,
    /// The revision that last made or deleted a child.
    pub children_modified: u64,
    /// The rights of the key.
    pub rights: Rights,
    /// How often the rights were set since the key was made.
    pub rights_version: u32,
}

/// What happened to a key.
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
pub struct KeyChange {
    /// The key.
    pub key: Arc<str>,
    /// What happened to the key.
    pub what: What,
    /// The rights of the key. A client that may not read the key gets no event.
    pub rights: Rights,
}

/// What a call did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The answer to the client.
    pub reply: KeyReply,
    /// Changes of keys, in order.
    pub changes: Vec<KeyChange>,
    /// Sessions that have ended.
    pub ended: Vec<u64>,
    /// The session that has moved to another connection.
    pub moved: Option<u64>,
}

/// The keys of one replica. See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    entries: BTreeMap<Arc<str>, KeyEntry>,
    sessions: BTreeMap<u64, KeySession>,
    /// Containers and timed keys.
    mortal: BTreeSet<Arc<str>>,
    /// For each timed key, the revision of its last change and the nodes that have since reported
    /// that the time of the key is over.
    votes: BTreeMap<Arc<str>, (u64, BTreeSet<u32>)>,
    /// The session of each reply that is kept, by the revision of its call.
    kept: BTreeMap<u64, u64>,
    /// Bytes of all replies that are kept.
    kept_bytes: usize,
    revision: u64,
    now_ms: u64,
    /// Bytes of all keys, values and rights with their overhead.
    bytes: usize,
    bytes_max: usize,
    /// Whether a call has set the limit.
    has_limit: bool,
}

/// The way to undo an operation when a later operation of the same call is refused.
enum Undo {
    Put(Arc<str>, Option<KeyEntry>),
    /// The births of a parent, and the revision of its children.
    Parent(Arc<str>, u32, u64),
}

/// The client for which an operation is carried out.
struct Caller<'a> {
    session: u64,
    /// The identities of the client; `None` for a caller who may do everything.
    who: Option<&'a [AclIdentity]>,
}

impl Caller<'_> {
    fn needs(&self, bits: u32, on: &KeyEntry) -> Result<(), KeyRefusal> {
        match self.who {
            Some(who) if !rights::allows(&on.rights, bits, who) => Err(KeyRefusal::NoRight),
            _ => Ok(()),
        }
    }
}

impl Keys {
    /// Only the keys that always exist. Puts are refused when keys and values would take more bytes
    /// than `bytes_max`, which has to be equal at all replicas, until a call sets another limit
    /// ([`Command::Limit`]).
    pub fn new(bytes_max: usize) -> Self {
        let mut keys = Self {
            entries: BTreeMap::new(),
            sessions: BTreeMap::new(),
            mortal: BTreeSet::new(),
            votes: BTreeMap::new(),
            kept: BTreeMap::new(),
            kept_bytes: 0,
            revision: 0,
            now_ms: 0,
            bytes: 0,
            bytes_max,
            has_limit: false,
        };
        for key in ALWAYS {
            // Everybody may read the configuration, and only a super user may set it.
            let reads = Right { bits: rights::READ, who: AclIdentity::world() };
            let rights = (key == "/zookeeper/config").then_some(reads).into_iter().collect();
            // Curator's client fails when the configuration has no value.
            let value = Some(Bytes::new());
            keys.insert(key.into(), KeyEntry { value, rights, ..KeyEntry::default() });
        }
        keys
    }

    /// The revision of the last call that could change something.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Number of keys, with the keys that always exist.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are only the keys that always exist.
    pub fn is_empty(&self) -> bool {
        self.len() == ALWAYS.len()
    }

    /// Bytes of all keys and values with their overhead.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The limit of these bytes that a call has set.
    pub fn limit(&self) -> Option<usize> {
        self.has_limit.then_some(self.bytes_max)
    }

    /// A key.
    pub fn get(&self, key: &str) -> Option<&KeyEntry> {
        self.entries.get(key)
    }

    /// Keys from `first` on that begin with `prefix`, in order.
    pub fn range<'a>(
        &'a self,
        first: &'a str,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a KeyEntry)> {
        let from = first.max(prefix);
        let bounds = (core::ops::Bound::Included(from), core::ops::Bound::Unbounded);
        let all = self.entries.range::<str, _>(bounds);
        all.take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// A session.
    pub fn session(&self, id: u64) -> Option<&KeySession> {
        self.sessions.get(&id)
    }

    /// All sessions.
    pub fn sessions(&self) -> impl Iterator<Item = (u64, &KeySession)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    /// The ephemeral keys of a session.
    pub fn owned(&self, id: u64) -> impl Iterator<Item = &Arc<str>> {
        self.sessions.get(&id).into_iter().flat_map(|session| &session.owned)
    }

    /// Applies the call of a request. A body that is no call is refused, and changes nothing.
    pub fn apply(&mut self, body: &Bytes) -> Applied {
        let Ok(call) = KeyCall::decode(body) else {
            return Applied {
                reply: KeyReply::Refused(0, KeyRefusal::Malformed),
                ..Applied::default()
            };
        };
        self.now_ms = self.now_ms.max(call.at_ms);
        let refused =
            |refusal| Applied { reply: KeyReply::Refused(0, refusal), ..Applied::default() };
        if call.sequence > 0
            && let Some(session) = self.sessions.get(&call.session)
        {
            if let Some(kept) = session.replies.iter().find(|kept| kept.sequence == call.sequence) {
                return Applied { reply: kept.reply.clone(), ..Applied::default() };
            }
            if call.sequence <= session.forgotten {
                return refused(KeyRefusal::Forgotten);
            }
        }
        // Such a refusal is not kept: the client sends the call again on its new connection.
        if let Err(refusal) = self.check_session(&call) {
            return refused(refusal);
        }
        if call.sequence > 0 || !matches!(call.command, Command::Touch(_)) {
            self.revision += 1;
        }
        let applied = self.carry_out(&call);
        if call.sequence > 0 {
            self.keep(call.session, call.sequence, &applied.reply);
        }
        applied
    }

    fn carry_out(&mut self, call: &KeyCall) -> Applied {
        let mut applied = Applied::default();
        let done = match &call.command {
            Command::Change(ops) => {
                let caller = Caller { session: call.session, who: None };
                applied.reply = self.change(&caller, ops, &mut applied.changes);
                return applied;
            }
            Command::ChangeBy(who, ops) => {
                let caller = Caller { session: call.session, who: Some(who) };
                applied.reply = self.change(&caller, ops, &mut applied.changes);
                return applied;
            }
            Command::Open { timeout_ms, password, is_new } => {
                let is_known = self.sessions.contains_key(&call.session);
                let opened = self.open(call.session, *timeout_ms, *password, *is_new);
                applied.moved = (is_known && opened.is_ok()).then_some(call.session);
                opened
            }
            Command::Touch(ids) => {
                for id in ids {
                    if let Some(session) = self.sessions.get_mut(id) {
                        session.touched += 1;
                    }
                }
                Ok(())
            }
            Command::Close => self.end(call.session, &mut applied),
            Command::Expire { session, touched } => {
                // A sign of life that was ordered in front of this command saves the session, which
                // the proposer could not know.
                let is_same = self.sessions.get(session).is_some_and(|s| s.touched == *touched);
                if is_same { self.end(*session, &mut applied) } else { Ok(()) }
            }
            Command::Limit { bytes, is_first } => {
                if !(*is_first && self.has_limit) {
                    self.bytes_max = usize::try_from(*bytes).unwrap_or(usize::MAX);
                    self.has_limit = true;
                }
                Ok(())
            }
            Command::Reap { node, nodes, keys } => {
                self.reap(*node, *nodes, keys, &mut applied.changes);
                Ok(())
            }
        };
        applied.reply = match done {
            Ok(()) => KeyReply::Done(Vec::new()),
            Err(refusal) => KeyReply::Refused(0, refusal),
        };
        applied
    }

    /// Deletes a key without children, without a check of rights.
    fn drop_key(&mut self, key: Arc<str>, changes: &mut Vec<KeyChange>) {
        let caller = Caller { session: 0, who: None };
        if let Ok(gone) = self.delete(&caller, &key, None, &mut Vec::new()) {
            changes.push(KeyChange { key, what: What::Deleted, rights: gone.rights });
        }
    }

    /// Carries out all operations, or none of them. The error has the index of the first operation
    /// that is refused.
    fn change(
        &mut self,
        caller: &Caller<'_>,
        ops: &[KeyOperation],
        changes: &mut Vec<KeyChange>,
    ) -> KeyReply {
        let (mut outcomes, mut undos) = (Vec::new(), Vec::new());
        for (at, op) in ops.iter().enumerate() {
            match self.operate(caller, op, &mut undos, changes) {
                Ok(outcome) => outcomes.push(outcome),
                Err(refusal) => {
                    changes.clear();
                    self.undo(undos);
                    return KeyReply::Refused(at as u16, refusal);
                }
            }
        }
        KeyReply::Done(outcomes)
    }

    fn operate(
        &mut self,
        caller: &Caller<'_>,
        op: &KeyOperation,
        undos: &mut Vec<Undo>,
        changes: &mut Vec<KeyChange>,
    ) -> Result<KeyOutcome, KeyRefusal> {
        let (key, what) = match op {
            KeyOperation::Check { key, version } => {
                let entry = self.entries.get(key.as_str()).ok_or(KeyRefusal::NoKey)?;
                caller.needs(rights::READ, entry)?;
                check_version(entry.version, *version)?;
                return Ok(KeyOutcome::new(key.as_str().into(), entry));
            }
            KeyOperation::Expect { key, state } => {
                let stat = self.expect(caller, key, *state)?;
                return Ok(KeyOutcome { key: key.as_str().into(), stat });
            }
            KeyOperation::Refuse { refusal, .. } => return Err(*refusal),
            KeyOperation::Put { key, numbered, .. } => {
                match *numbered || !self.entries.contains_key(key.as_str()) {
                    true => (self.create(caller, op, undos)?, What::Created),
                    false => (self.set(caller, op, undos)?, What::Set),
                }
            }
            KeyOperation::Delete { key, version } => {
                let gone = self.delete(caller, key, *version, undos)?;
                let key: Arc<str> = key.as_str().into();
                let (what, rights) = (What::Deleted, gone.rights.clone());
                changes.push(KeyChange { key: key.clone(), what, rights });
                return Ok(KeyOutcome::new(key, &gone));
            }
            KeyOperation::SetRights { key, version, rights } => {
                let key = self.set_rights(caller, key, *version, rights, undos)?;
                // A change of rights fires no watch.
                let entry = self.entries.get(&key).ok_or(KeyRefusal::NoKey)?;
                return Ok(KeyOutcome::new(key, entry));
            }
        };
        let entry = self.entries.get(&key).ok_or(KeyRefusal::NoKey)?;
        changes.push(KeyChange { key: key.clone(), what, rights: entry.rights.clone() });
        Ok(KeyOutcome::new(key, entry))
    }

    /// The stat of a key that has to be in this state; that of a missing key is all zeros.
    fn expect(
        &self,
        caller: &Caller<'_>,
        key: &str,
        state: ExpectedState,
    ) -> Result<Stat, KeyRefusal> {
        check_key(key)?;
        let Some(entry) = self.entries.get(key) else {
            let is_expected = state == ExpectedState::Modified(0);
            return is_expected.then(Stat::default).ok_or(KeyRefusal::NoKey);
        };
        caller.needs(rights::READ, entry)?;
        let is_so = match state {
            ExpectedState::Modified(0) => return Err(KeyRefusal::KeyExists),
            ExpectedState::Modified(revision) => entry.modified == revision,
            ExpectedState::Owned(session) => {
                (entry.kind, entry.owner) == (KeyLifetime::Ephemeral, session)
            }
        };
        if is_so { Ok(entry.stat()) } else { Err(KeyRefusal::BadVersion) }
    }

    /// Makes the key of a put.
    fn create(
        &mut self,
        caller: &Caller<'_>,
        op: &KeyOperation,
        undos: &mut Vec<Undo>,
    ) -> Result<Arc<str>, KeyRefusal> {
        let KeyOperation::Put { key, value, existing, kind, numbered, rights } = op else {
            return Err(KeyRefusal::Malformed);
        };
        if !existing.may_create() {
            return Err(KeyRefusal::NoKey);
        }
        let parent: Option<Arc<str>> = parent(key).map(Into::into);
        let above = parent.as_ref().map(|path| self.entries.get(path).ok_or(KeyRefusal::NoParent));
        let above = above.transpose()?;
        let number = above.map_or(0, |above| above.births);
        let key: Arc<str> = match numbered {
            true => format!("{key}{number:010}").into(),
            false => key.as_str().into(),
        };
        // In ZooKeeper's order: the parent, the rights, the name, and then what is there.
        if let Some(above) = above {
            caller.needs(rights::CREATE, above)?;
        }
        check_key(&key)?;
        if above.is_some_and(|above| above.kind == KeyLifetime::Ephemeral) {
            return Err(KeyRefusal::EphemeralParent);
        }
        if self.entries.contains_key(&key) {
            return Err(KeyRefusal::KeyExists);
        }
        let entry = KeyEntry {
            value: value.clone(),
            created: self.revision,
            modified: self.revision,
            created_ms: self.now_ms,
            modified_ms: self.now_ms,
            kind: *kind,
            owner: if *kind == KeyLifetime::Ephemeral { caller.session } else { 0 },
            children_modified: self.revision,
            rights: rights.as_slice().into(),
            ..KeyEntry::default()
        };
        if entry.length() > VALUE_BYTES_MAX || rights.len() > rights::RIGHTS_MAX {
            return Err(KeyRefusal::TooLong);
        }
        if self.bytes + entry.bytes(&key) > self.bytes_max {
            return Err(KeyRefusal::Full);
        }
        if *kind == KeyLifetime::Ephemeral && !self.sessions.contains_key(&caller.session) {
            return Err(KeyRefusal::NoSession);
        }
        undos.push(Undo::Put(key.clone(), None));
        let revision = self.revision;
        if let Some(path) = parent
            && let Some(above) = self.entries.get_mut(&path)
        {
            undos.push(Undo::Parent(path, above.births, above.children_modified));
            above.births += 1;
            above.children_modified = revision;
        }
        self.insert(key.clone(), entry);
        Ok(key)
    }

    /// Sets the value of the key of a put.
    fn set(
        &mut self,
        caller: &Caller<'_>,
        op: &KeyOperation,
        undos: &mut Vec<Undo>,
    ) -> Result<Arc<str>, KeyRefusal> {
        let KeyOperation::Put { key, value, existing, .. } = op else {
            return Err(KeyRefusal::Malformed);
        };
        let Some((key, entry)) = self.entries.get_key_value(key.as_str()) else {
            return Err(KeyRefusal::NoKey);
        };
        if *existing == Existing::None {
            // A client that may not make the key must not learn whether the key exists.
            let above = parent(key).and_then(|path| self.entries.get(path));
            above.map_or(Ok(()), |above| caller.needs(rights::CREATE, above))?;
            return Err(KeyRefusal::KeyExists);
        }
        caller.needs(rights::WRITE, entry)?;
        if let Existing::Version(version) = existing {
            check_version(entry.version, Some(*version))?;
        }
        let length = value.as_ref().map_or(0, Bytes::len);
        if length > VALUE_BYTES_MAX {
            return Err(KeyRefusal::TooLong);
        }
        let bytes = self.bytes - entry.length() + length;
        if length > entry.length() && bytes > self.bytes_max {
            return Err(KeyRefusal::Full);
        }
        let key = key.clone();
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

    fn set_rights(
        &mut self,
        caller: &Caller<'_>,
        key: &str,
        version: Option<u32>,
        rights: &[Right],
        undos: &mut Vec<Undo>,
    ) -> Result<Arc<str>, KeyRefusal> {
        let Some((key, entry)) = self.entries.get_key_value(key) else {
            return Err(KeyRefusal::NoKey);
        };
        caller.needs(rights::ADMIN, entry)?;
        check_version(entry.rights_version, version)?;
        if rights.len() > rights::RIGHTS_MAX {
            return Err(KeyRefusal::TooLong);
        }
        let (before, after) = (rights::size(&entry.rights), rights::size(rights));
        let bytes = self.bytes - before + after;
        if after > before && bytes > self.bytes_max {
            return Err(KeyRefusal::Full);
        }
        let key = key.clone();
        undos.push(Undo::Put(key.clone(), Some(entry.without_children())));
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.rights = rights.into();
            entry.rights_version = entry.rights_version.wrapping_add(1);
        }
        self.bytes = bytes;
        Ok(key)
    }

    fn delete(
        &mut self,
        caller: &Caller<'_>,
        key: &str,
        version: Option<u32>,
        undos: &mut Vec<Undo>,
    ) -> Result<KeyEntry, KeyRefusal> {
        if is_always(key) {
            return Err(KeyRefusal::BadKey);
        }
        let path = parent(key);
        let above = path.and_then(|path| self.entries.get(path));
        // A client that may not delete the key must not learn whether the key exists.
        above.map_or(Ok(()), |above| caller.needs(rights::DELETE, above))?;
        let entry = self.entries.get(key).ok_or(KeyRefusal::NoKey)?;
        check_version(entry.version, version)?;
        if !entry.children.is_empty() {
            return Err(KeyRefusal::NotEmpty);
        }
        let (key, entry) = self.remove(key).ok_or(KeyRefusal::NoKey)?;
        undos.push(Undo::Put(key, Some(entry.clone())));
        let revision = self.revision;
        if let Some(path) = path
            && let Some(above) = self.entries.get_mut(path)
        {
            undos.push(Undo::Parent(path.into(), above.births, above.children_modified));
            above.children_modified = revision;
        }
        Ok(entry)
    }

    /// Adds a key to all lists of keys.
    fn insert(&mut self, key: Arc<str>, entry: KeyEntry) {
        self.bytes += entry.bytes(&key);
        if let Some(owner) = self.sessions.get_mut(&entry.owner) {
            owner.owned.insert(key.clone());
        }
        if entry.kind.is_mortal() {
            self.mortal.insert(key.clone());
        }
        if let Some(above) = parent(&key).and_then(|path| self.entries.get_mut(path)) {
            above.children.insert(name(&key).into());
        }
        self.entries.insert(key, entry);
    }

    /// Removes a key from all lists of keys.
    fn remove(&mut self, key: &str) -> Option<(Arc<str>, KeyEntry)> {
        let (key, entry) = self.entries.remove_entry(key)?;
        self.bytes -= entry.bytes(&key);
        if let Some(owner) = self.sessions.get_mut(&entry.owner) {
            owner.owned.remove(&key);
        }
        if entry.kind.is_mortal() {
            self.mortal.remove(&key);
        }
        if let Some(above) = parent(&key).and_then(|path| self.entries.get_mut(path)) {
            above.children.remove(name(&key));
        }
        Some((key, entry))
    }

    /// Takes operations back, the last first.
    fn undo(&mut self, undos: Vec<Undo>) {
        for undo in undos.into_iter().rev() {
            match undo {
                Undo::Parent(path, births, children_modified) => {
                    if let Some(above) = self.entries.get_mut(&path) {
                        (above.births, above.children_modified) = (births, children_modified);
                    }
                }
                Undo::Put(key, before) => {
                    let now = self.remove(&key);
                    let Some(mut before) = before else { continue };
                    before.children = now.map(|(_, now)| now.children).unwrap_or_default();
                    self.insert(key, before);
                }
            }
        }
    }
}

impl KeyEntry {
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
            length: self.length() as u32,
            children: self.children.len() as u32,
            children_modified: self.children_modified,
            rights_version: self.rights_version,
            kind: self.kind,
        }
    }

    /// Bytes of the value.
    fn length(&self) -> usize {
        self.value.as_ref().map_or(0, Bytes::len)
    }

    /// The bytes for which the key counts. The name of a key that always exists counts for none.
    fn bytes(&self, key: &str) -> usize {
        let own = if is_always(key) { 0 } else { key.len() + OVERHEAD_BYTES };
        own + self.length() + rights::size(&self.rights)
    }

    /// The part of the entry that undoing needs. The names of its children are not copied.
    fn without_children(&self) -> Self {
        Self {
            children: BTreeSet::new(),
            value: self.value.clone(),
            rights: self.rights.clone(),
            ..*self
        }
    }
}

fn check_version(is: u32, expected: Option<u32>) -> Result<(), KeyRefusal> {
    match expected {
        Some(expected) if expected != is => Err(KeyRefusal::BadVersion),
        _ => Ok(()),
    }
}

/// Checks that the text can be a key.
///
/// # Errors
/// [`KeyRefusal::BadKey`] or [`KeyRefusal::TooLong`].
pub fn check_key(key: &str) -> Result<(), KeyRefusal> {
    if key.len() > KEY_BYTES_MAX {
        return Err(KeyRefusal::TooLong);
    }
    // The characters that ZooKeeper refuses.
    let is_private = |c| matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
    let is_bad = |c: char| c.is_control() || is_private(c);
    let is_dots = |part: &str| part.is_empty() || part == "." || part == "..";
    let is_bad_path = key.starts_with('/') && key.len() > 1 && key[1..].split('/').any(is_dots);
    if key.is_empty() || key.contains(is_bad) || is_bad_path {
        return Err(KeyRefusal::BadKey);
    }
    Ok(())
}

/// Whether the key always exists and cannot be deleted.
pub fn is_always(key: &str) -> bool {
    ALWAYS.contains(&key)
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
