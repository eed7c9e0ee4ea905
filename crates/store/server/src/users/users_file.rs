//! The file of the users of a server: TOML, a table for each user, closed to other users of the
//! machine like the file of a key.
//!
//! ```toml
//! [[user]]
//! name = "feed"
//! key = "0123456789abcdef..."   # 64 hexadecimal digits
//! append = ["ticks."]
//! create = ["ticks."]
//! bytes_per_second = 100000000
//! ```

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use evenfall_core::UserKey;
use evenfall_host::whole_file::read_secret_up_to;
use serde::{Deserialize, Serialize};

use super::{StoreUsers, UserRights, UsersError};

/// Most bytes of a users file: ten thousand users of 400 bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// The mode of a users file: only its owner reads it.
const OWNER_READS: u32 = 0o600;

/// A user as the file has it. What is left out has the value of [`UserRights::default`].
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct UserEntry {
    name: String,
    key: String,
    read: Vec<String>,
    append: Vec<String>,
    create: Vec<String>,
    admin: Vec<String>,
    connections: Option<usize>,
    files: Option<u64>,
    bytes_per_second: Option<u64>,
}

/// The whole file.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct UserTables {
    user: Vec<UserEntry>,
}

/// The users out of the text of a file.
///
/// # Errors
/// What is wrong, with its user or its line, and without the text itself: a line may have a key.
fn parse_users(text: &str) -> Result<Vec<(UserKey, UserRights)>, UsersError> {
    let tables: UserTables = toml::from_str(text).map_err(|error| {
        let before = error.span().map(|span| &text[..span.start.min(text.len())]);
        let line = before.map_or(1, |before| 1 + before.matches('\n').count());
        UsersError::Text { line, what: error.message().to_owned() }
    })?;
    tables.user.into_iter().map(check_entry).collect()
}

fn check_entry(entry: UserEntry) -> Result<(UserKey, UserRights), UsersError> {
    let UserEntry { name, key, read, append, create, admin, .. } = entry;
    let plain = UserRights::default();
    let rights = UserRights {
        read,
        append,
        create,
        admin,
        connections: entry.connections.unwrap_or(plain.connections),
        files: entry.files.unwrap_or(plain.files),
        bytes_per_second: entry.bytes_per_second,
    };
    let shown: String = name.chars().take(80).collect();
    let wrong = |error| UsersError::OfUser(shown.clone(), Box::new(error));
    let key = UserKey::from_hex(&name, &key).map_err(|error| wrong(UsersError::Key(error)))?;
    rights.check().map_err(wrong)?;
    Ok((key, rights))
}

/// Reads the users of a file.
///
/// # Errors
/// When the file cannot be read, is open to other users of the machine, or is wrong.
pub fn read_users(path: &Path) -> Result<Vec<(UserKey, UserRights)>, UsersError> {
    let text = read_secret_up_to(path, FILE_BYTES_MAX).map_err(UsersError::File);
    text.and_then(|text| parse_users(&text)).map_err(|error| name_file(path, error))
}

/// Writes the users of a file: all of them, or the file stays as it was.
///
/// # Errors
/// When the file cannot be written.
pub fn write_users(path: &Path, users: &[(UserKey, UserRights)]) -> Result<(), UsersError> {
    let plain = UserRights::default();
    let entry = |(key, rights): &(UserKey, UserRights)| {
        let UserRights { read, append, create, admin, .. } = rights.clone();
        UserEntry {
            name: key.name().to_owned(),
            key: key.to_hex(),
            read,
            append,
            create,
            admin,
            connections: Some(rights.connections).filter(|most| *most != plain.connections),
            files: Some(rights.files).filter(|most| *most != plain.files),
            bytes_per_second: rights.bytes_per_second,
        }
    };
    let tables = UserTables { user: users.iter().map(entry).collect() };
    let mut text = "# Users of a store: `evenfall store user --help`.\n".to_owned();
    let written = toml::to_string(&tables).map_err(std::io::Error::other);
    let written = written.map_err(|error| name_file(path, UsersError::File(error)))?;
    let _ = write!(text, "\n{written}");
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let write = || -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(OWNER_READS).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|error| {
        if error.kind() != std::io::ErrorKind::AlreadyExists {
            let _ = fs::remove_file(&beside);
        }
        name_file(&beside, UsersError::File(error))
    })
}

/// A users file that a server reads again when it changes.
pub struct WatchedUsers {
    path: PathBuf,
    /// When the file was changed, and its bytes, as they were read last.
    seen: Option<(SystemTime, u64)>,
    /// Its users.
    pub users: std::sync::Arc<StoreUsers>,
}

impl WatchedUsers {
    /// Reads the file.
    ///
    /// # Errors
    /// As [`read_users`], and the name that two users have.
    pub fn open(path: &Path) -> Result<Self, UsersError> {
        let seen = look_at(path);
        let users = StoreUsers::new(read_users(path)?).map_err(|error| name_file(path, error))?;
        Ok(Self { path: path.to_owned(), seen, users: users.into() })
    }

    /// Reads the file again when it has changed. Returns whether users were revoked, whose
    /// connections the server has to close.
    ///
    /// # Errors
    /// As [`open`](Self::open). The users so far stay.
    pub fn refresh(&mut self) -> Result<bool, UsersError> {
        let seen = look_at(&self.path);
        if seen == self.seen {
            return Ok(false);
        }
        self.seen = seen;
        let users = read_users(&self.path)?;
        self.users.replace(users).map_err(|error| name_file(&self.path, error))
    }
}

fn name_file(path: &Path, error: UsersError) -> UsersError {
    UsersError::OfFile(path.to_owned(), Box::new(error))
}

fn look_at(path: &Path) -> Option<(SystemTime, u64)> {
    let about = fs::metadata(path).ok()?;
    Some((about.modified().ok()?, about.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_read_as_they_were_written_and_errors_show_no_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users.toml");
        let key = UserKey::new("ann", [7; 32]).unwrap();
        let rights = UserRights {
            read: vec!["a\"b".into(), String::new()],
            files: 3,
            bytes_per_second: Some(1 << 20),
            ..UserRights::default()
        };
        let users = vec![
            (key.clone(), rights),
            (UserKey::new("bob", [8; 32]).unwrap(), UserRights::default()),
        ];
        write_users(&path, &users).unwrap();
        assert_eq!(read_users(&path).unwrap(), users);
        let mut watched = WatchedUsers::open(&path).unwrap();
        assert!(!watched.refresh().unwrap());
        write_users(&path, &users[..1]).unwrap();
        assert!(watched.refresh().unwrap(), "bob is taken out");
        let digits = key.to_hex();
        for (text, why) in [
            (format!("[[user]]\nname = \"ann\"\nkey = \"{digits}"), "line 3"),
            (format!("[[user]]\nname = \"ann\"\nkey = \"{digits}0\""), "user ann: a key has 64"),
            (format!("[[user]]\nname = \"a b\"\nkey = \"{digits}\""), "user a b: the name"),
            (format!("[[user]]\nkey = \"{digits}\"\nreads = [\"\"]"), "unknown field"),
            (
                format!("[[user]]\nname = \"ann\"\nkey = \"{digits}\"\nbytes_per_second = 1"),
                "65536 at least",
            ),
        ] {
            let error = parse_users(&text).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains(&digits[..9]), "{error}");
        }
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read_users(&path).unwrap_err().to_string().contains("chmod 600"));
    }
}
