//! The users of a server: their keys, what each may do with which files, and how much.
//!
//! ```text
//!  users file --> StoreUsers --> handshake: whose key? --> StoreUser: rights by prefix, meter
//!       | changed: read again; who was taken out or changed is disconnected
//! ```
//!
//! A right holds for the files whose names begin with one of its prefixes. The empty prefix is
//! every file. The files of a recording begin with its name.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenfall_core::{UserKey, UserKeyError};
use evenfall_store_engine::{StoreError, lock, shorten_name};

#[cfg(feature = "users")]
pub mod users_file;

/// Connections of a user at once, where the users file does not say. A program has a few.
const CONNECTIONS: usize = 64;
/// Files that a user may have, where the users file does not say. A recording of a stream is about
/// ten.
const FILES: u64 = 10_000;
/// The slowest rate. At a slower one a request of a mebibyte takes longer than the minute after
/// which a client gives the server up.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// Why the users of a server cannot be read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum UsersError {
    /// The file cannot be read or written, or is open to other users of the machine.
    File(std::io::Error),
    /// The text of the file is wrong in this line. The words show no part of it, because it may be
    /// a key.
    Text {
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// The name or the key of a user is malformed.
    Key(UserKeyError),
    /// A limit under which a user could do nothing.
    Limit {
        /// The key of the users file.
        key: &'static str,
        /// Its least value.
        least: u64,
    },
    /// Two users have this name.
    SameName(String),
    /// What is wrong with this user.
    OfUser(String, Box<UsersError>),
    /// What is wrong with this file.
    OfFile(PathBuf, Box<UsersError>),
}

impl fmt::Display for UsersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::Text { line, what } => write!(f, "line {line}: {what}"),
            Self::Key(error) => error.fmt(f),
            Self::Limit { key, least } => write!(f, "{key} must be {least} at least"),
            Self::SameName(name) => write!(f, "two users have the name {name}"),
            Self::OfUser(name, error) => write!(f, "user {name}: {error}"),
            Self::OfFile(path, error) => write!(f, "users file {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for UsersError {
    /// The cause behind the wrapped error, whose own words `Display` shows already.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File(error) => std::error::Error::source(error),
            Self::OfUser(_, error) | Self::OfFile(_, error) => std::error::Error::source(error),
            Self::Key(_) | Self::Text { .. } | Self::Limit { .. } | Self::SameName(_) => None,
        }
    }
}

/// What a user may do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRight {
    /// List it, and read its records.
    Read,
    /// Append records.
    Append,
    /// Create it.
    Create,
    /// Copy it here as the first node of this second node, which may fence an earlier first node.
    /// It includes reading.
    Admin,
}

impl FileRight {
    /// The key of the users file that grants it.
    fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Append => "append",
            Self::Create => "create",
            Self::Admin => "admin",
        }
    }
}

/// Rights and limits of a user, as the users file states them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRights {
    /// Prefixes of the files that the user may list and read.
    pub read: Vec<String>,
    /// Prefixes of the files that the user may append to.
    pub append: Vec<String>,
    /// Prefixes of the files that the user may create.
    pub create: Vec<String>,
    /// Prefixes of the files of which the user may keep copies here.
    pub admin: Vec<String>,
    /// Connections at once.
    pub connections: usize,
    /// The user creates no file while this many files begin with a prefix of `create`.
    pub files: u64,
    /// Bytes a second in both directions, over all connections of the user.
    pub bytes_per_second: Option<u64>,
}

impl Default for UserRights {
    fn default() -> Self {
        let [read, append, create, admin] = [const { Vec::new() }; 4];
        let (connections, files, bytes_per_second) = (CONNECTIONS, FILES, None);
        Self { read, append, create, admin, connections, files, bytes_per_second }
    }
}

impl UserRights {
    /// Refuses limits with which a user could do nothing.
    ///
    /// # Errors
    /// The limit, and its least value.
    pub fn check(&self) -> Result<(), UsersError> {
        let wrong = |key, least| Err(UsersError::Limit { key, least });
        if self.bytes_per_second.is_some_and(|rate| rate < BYTES_PER_SECOND_MIN) {
            return wrong("bytes_per_second", BYTES_PER_SECOND_MIN);
        }
        if self.connections == 0 { wrong("connections", 1) } else { Ok(()) }
    }

    fn prefixes_of(&self, right: FileRight) -> &[String] {
        match right {
            FileRight::Read => &self.read,
            FileRight::Append => &self.append,
            FileRight::Create => &self.create,
            FileRight::Admin => &self.admin,
        }
    }

    /// Whether the user may do this with the file of this name.
    pub fn has_right(&self, right: FileRight, name: &str) -> bool {
        let begins = |right| self.prefixes_of(right).iter().any(|prefix| name.starts_with(prefix));
        begins(right) || (right == FileRight::Read && begins(FileRight::Admin))
    }

    /// Whether the user may do anything with the file.
    fn allow_some(&self, name: &str) -> bool {
        use FileRight::{Admin, Append, Create, Read};
        [Read, Append, Create, Admin].into_iter().any(|right| self.has_right(right, name))
    }
}

/// How many bytes a user has used beyond the rate.
struct ByteMeter {
    at: Instant,
    /// Bytes beyond the rate; below zero while the user has used less. One second may be saved up.
    debt: f64,
}

/// A user of a server.
pub struct StoreUser {
    key: UserKey,
    rights: UserRights,
    connections: AtomicUsize,
    meter: Mutex<ByteMeter>,
    /// The users file does not have this user any more.
    is_revoked: AtomicBool,
}

impl fmt::Debug for StoreUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUser({})", self.key.name())
    }
}

fn refuse_for_good<T>(what: String) -> Result<T, StoreError> {
    Err(StoreError::Remote { what, is_retryable: false })
}

impl StoreUser {
    /// A user with this key.
    pub fn new(key: UserKey, rights: UserRights) -> Self {
        let rate = rights.bytes_per_second.unwrap_or_default() as f64;
        let meter = Mutex::new(ByteMeter { at: Instant::now(), debt: -rate });
        let (connections, is_revoked) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { key, rights, connections, meter, is_revoked }
    }

    /// The user of a connection that names a key of nobody. No record of the connection opens, so
    /// nothing is served to this user.
    #[cfg(feature = "users")]
    pub(crate) fn unknown() -> Self {
        let key = UserKey::new("unknown", [0; 32]).expect("a name of letters");
        Self::new(key, UserRights { connections: 0, ..UserRights::default() })
    }

    /// The name of the user.
    pub fn name(&self) -> &str {
        self.key.name()
    }

    /// The secret that a client has to prove.
    pub fn secret(&self) -> &[u8; 32] {
        self.key.secret()
    }

    /// What the user may do.
    pub fn user_rights(&self) -> &UserRights {
        &self.rights
    }

    /// Whether the user was taken out of the users file, or changed there.
    pub fn is_revoked(&self) -> bool {
        self.is_revoked.load(Relaxed)
    }

    /// Refuses what the user may not do.
    ///
    /// # Errors
    /// The right, the file, and who can grant it.
    pub fn expect(&self, right: FileRight, name: &str) -> Result<(), StoreError> {
        match self.rights.has_right(right, name) {
            true => Ok(()),
            false => refuse_for_good(self.lacks(right, name)),
        }
    }

    /// Refuses a user who may do nothing with this file, whether it is there or not.
    ///
    /// # Errors
    /// As [`expect`](Self::expect).
    pub fn expect_some(&self, name: &str) -> Result<(), StoreError> {
        match self.rights.allow_some(name) {
            true => Ok(()),
            false => refuse_for_good(self.lacks(FileRight::Read, name)),
        }
    }

    fn lacks(&self, right: FileRight, name: &str) -> String {
        let (word, user) = (right.word(), self.name());
        let shown = shorten_name(name);
        format!(
            "user {user} has no right to {word} {shown}: who operates this server grants it in \
             its users file, by a prefix in {word} = [...] of this user"
        )
    }

    /// Refuses another file of a user who has as many as allowed. `names` are all files.
    ///
    /// # Errors
    /// The limit, and who can raise it.
    pub fn expect_room<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<(), StoreError> {
        let most = self.rights.files;
        let count =
            names.filter(|name| self.rights.has_right(FileRight::Create, name)).count() as u64;
        if count < most {
            return Ok(());
        }
        let user = self.name();
        refuse_for_good(format!(
            "user {user} has {count} files, and its limit is {most}: delete some, or let who \
             operates this server raise files = {most} in its users file"
        ))
    }

    /// Counts bytes that the user has sent or received. Returns how long the thread has to rest to
    /// keep the user's rate.
    pub fn charge_bytes(&self, bytes: usize) -> Duration {
        let Some(rate) = self.rights.bytes_per_second else { return Duration::ZERO };
        let (rate, now) = (rate.max(1) as f64, Instant::now());
        let mut meter = lock(&self.meter);
        let paid = now.saturating_duration_since(meter.at).as_secs_f64() * rate;
        meter.debt = (meter.debt - paid).max(-rate) + bytes as f64;
        meter.at = now;
        Duration::from_secs_f64(meter.debt.max(0.0) / rate)
    }

    /// Begins a connection of the user.
    ///
    /// # Errors
    /// When the user has as many as allowed. The user may try again later.
    pub fn connect(self: &Arc<Self>) -> Result<UserSession, StoreError> {
        let most = self.rights.connections;
        let count = self.connections.fetch_add(1, Relaxed);
        let session = UserSession(Arc::clone(self));
        if count < most {
            return Ok(session);
        }
        let what = format!(
            "user {} has {count} connections, and its limit is {most}: close one, or let who \
             operates this server raise connections = {most} in its users file",
            self.name()
        );
        Err(StoreError::Remote { what, is_retryable: true })
    }
}

/// A connection of a user, counted until it is dropped.
#[derive(Debug)]
pub struct UserSession(Arc<StoreUser>);

impl Drop for UserSession {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

/// The users of a server, by name.
#[derive(Debug, Default)]
pub struct StoreUsers(Mutex<BTreeMap<String, Arc<StoreUser>>>);

impl StoreUsers {
    /// The users with these keys and rights.
    ///
    /// # Errors
    /// The name that two users have.
    pub fn new(users: Vec<(UserKey, UserRights)>) -> Result<Self, UsersError> {
        let all = Self::default();
        all.replace(users)?;
        Ok(all)
    }

    /// Takes these users in the place of the users so far. Users that stay as they are keep their
    /// connections, and the others are revoked. Returns whether anybody was.
    ///
    /// # Errors
    /// The name that two users have. The users so far stay.
    pub fn replace(&self, users: Vec<(UserKey, UserRights)>) -> Result<bool, UsersError> {
        let mut known = lock(&self.0);
        let mut next = BTreeMap::new();
        for (key, rights) in users {
            let name = key.name().to_owned();
            let same = known.get(&name).filter(|user| user.key == key && user.rights == rights);
            let user = same.map_or_else(|| Arc::new(StoreUser::new(key, rights)), Arc::clone);
            if next.insert(name.clone(), user).is_some() {
                return Err(UsersError::SameName(name));
            }
        }
        let before = std::mem::replace(&mut *known, next);
        let is_gone = |user: &Arc<StoreUser>| {
            known.get(user.name()).is_none_or(|now| !Arc::ptr_eq(now, user))
        };
        let gone: Vec<_> = before.into_values().filter(is_gone).collect();
        gone.iter().for_each(|user| user.is_revoked.store(true, Relaxed));
        Ok(!gone.is_empty())
    }

    /// The user of this name.
    pub fn find(&self, name: &str) -> Option<Arc<StoreUser>> {
        lock(&self.0).get(name).cloned()
    }
}

#[cfg(test)]
mod tests;
