//! Which write lease a command needs, and which lease a read looks at.
//!
//! A key that does not begin with `/` has a lease of its own. A key that is a path shares the lease
//! of all keys below the same first name, because a new child changes the numbers of its parent:
//!
//! ```text
//!  greeting          its own lease
//!  /a/b, /a/b/c, /a  the lease of /a        a read of / looks at all leases
//!  a change of /a    the lease of all keys, because / counts its children
//! ```

use evenfall_consensus_machine::LeaseKey;
use evenfall_keys_machine::Command;

/// The lease under which sessions are opened and live on. No read looks at this lease, because a
/// key has at least one byte.
const SESSIONS: &[u8] = b"";

/// The lease that a read of a key looks at. A read of several keys has the key "" and looks at all
/// leases.
pub fn of_read(key: &str) -> LeaseKey {
    match first_name(key) {
        _ if key.is_empty() => LeaseKey::ALL,
        Some("") => LeaseKey::ALL,
        Some(first) => LeaseKey::of(&key.as_bytes()[..=first.len()]),
        None => LeaseKey::of(key.as_bytes()),
    }
}

/// The first name of a path; `None` for a key that is no path.
fn first_name(key: &str) -> Option<&str> {
    key.strip_prefix('/')?.split('/').next()
}

/// The lease that a change of a key needs.
fn of_change(key: &str) -> LeaseKey {
    let is_high = first_name(key).is_some_and(|first| first.len() + 1 == key.len());
    if is_high { LeaseKey::ALL } else { of_read(key) }
}

/// The lease that a command needs.
pub fn of_command(command: &Command) -> LeaseKey {
    match command {
        Command::Change(ops) | Command::ChangeBy(_, ops) => {
            let mut leases = ops.iter().map(|op| of_change(op.key()));
            let Some(first) = leases.next() else { return LeaseKey::ALL };
            if leases.all(|other| other == first) { first } else { LeaseKey::ALL }
        }
        Command::Open { .. } | Command::Touch(_) => LeaseKey::of(SESSIONS),
        // The end of a session deletes keys anywhere.
        Command::Close | Command::Expire { .. } | Command::Reap { .. } => LeaseKey::ALL,
        Command::Limit { .. } => LeaseKey::of(SESSIONS),
    }
}

#[cfg(test)]
mod tests {
    use evenfall_keys_machine::{Existing, KeyOperation};

    use super::*;

    fn put(keys: &[&str]) -> LeaseKey {
        let ops = keys.iter().map(|key| KeyOperation::put(*key, "x", Existing::Any(true)));
        of_command(&Command::Change(ops.collect()))
    }

    #[test]
    fn a_change_has_the_lease_that_a_read_of_each_key_that_it_changes_looks_at() {
        assert_eq!(put(&["greeting"]), of_read("greeting"));
        assert_ne!(put(&["greeting"]), of_read("other"));
        // A new child changes its parent.
        assert_eq!(put(&["/a/b/c"]), of_read("/a/b"));
        assert_eq!(put(&["/a/b"]), of_read("/a"));
        assert_ne!(put(&["/a/b"]), of_read("/ab"));
        assert_eq!(put(&["/a"]), LeaseKey::ALL);
        assert_eq!(put(&["/a/b", "/a/c"]), of_read("/a"));
        assert_eq!(put(&["/a/b", "/c/d"]), LeaseKey::ALL);
        assert_eq!((of_read("/"), of_read("")), (LeaseKey::ALL, LeaseKey::ALL));
        assert_eq!(of_command(&Command::Close), LeaseKey::ALL);
    }
}
