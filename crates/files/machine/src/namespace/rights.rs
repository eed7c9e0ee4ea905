//! Who may do what: owner, group and mode, as HDFS checks them for users who are believed by name.
//!
//! | call | rights that it needs beside `x` on every directory of the way |
//! |---|---|
//! | a new entry | `w` on the last directory that exists |
//! | a deletion | `w` on the directory, and `rwx` on every directory with entries that goes with it
//! |
//! | a rename | `w` on both directories |
//! | bytes, times and number of copies of a file | `w` on the file |
//! | rights | to be the owner |
//! | group | to be the owner, and in the new group |
//! | owner | to be the superuser |
//!
//! In a directory with the sticky bit, only the owner of an entry, the owner of the directory and
//! the superuser remove or move the entry. A new entry has its maker as owner, and the group of its
//! directory.

use super::{Inode, InodeKind, Namespace, ROOT};
use crate::{FilesRefusal, InodeId};

/// The right to read.
pub const READ: u16 = 0o4;
/// The right to write.
pub const WRITE: u16 = 0o2;
/// The right to search a directory.
pub const EXECUTE: u16 = 0o1;
/// All rights.
pub const ALL: u16 = READ | WRITE | EXECUTE;
/// The bit of a directory in which only owners remove entries.
const STICKY: u16 = 0o1000;

/// The user who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user's name.
    pub user: String,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// Whether the user may do everything.
    pub is_superuser: bool,
}

impl Caller {
    /// A user who may do everything.
    pub fn superuser(user: &str) -> Self {
        Self { user: user.to_owned(), groups: Vec::new(), is_superuser: true }
    }
}

/// Rights as a listing shows them, such as `rwxr-xr-x`.
fn letters(mode: u16) -> String {
    let letter = |(bit, letter): (u16, char)| if mode >> bit & 1 == 1 { letter } else { '-' };
    (0..9).rev().zip("rwxrwxrwx".chars()).map(letter).collect()
}

/// A kind of access as HDFS calls it.
fn access_name(access: u16) -> &'static str {
    const NAMES: [&str; 8] =
        ["NONE", "EXECUTE", "WRITE", "WRITE_EXECUTE", "READ", "READ_EXECUTE", "READ_WRITE", "ALL"];
    NAMES[usize::from(access & ALL)]
}

impl Namespace {
    fn permits(&self, caller: &Caller, inode: &Inode, access: u16) -> bool {
        let shift = match () {
            () if inode.owner == caller.user => 6,
            () if caller.groups.contains(&inode.group) => 3,
            () => 0,
        };
        caller.is_superuser || inode.mode >> shift & access == access
    }

    /// Whether a caller has rights on an inode. The way to the inode is not looked at.
    ///
    /// # Errors
    /// [`FilesRefusal::Denied`].
    pub fn check_access(
        &self,
        caller: &Caller,
        id: InodeId,
        access: u16,
    ) -> Result<(), FilesRefusal> {
        let inode = &self.inodes[&id];
        if self.permits(caller, inode, access) {
            return Ok(());
        }
        let kind = if matches!(inode.kind, InodeKind::Directory(_)) { 'd' } else { '-' };
        let (user, access, path) = (&caller.user, access_name(access), self.path(id));
        let (owner, group, mode) = (&inode.owner, &inode.group, letters(inode.mode));
        Err(FilesRefusal::Denied(format!(
            "Permission denied: user={user}, access={access}, \
             inode=\"{path}\":{owner}:{group}:{kind}{mode}"
        )))
    }

    /// Whether a caller may remove an entry from its directory, or move the entry.
    pub(super) fn check_removal(&self, caller: &Caller, id: InodeId) -> Result<(), FilesRefusal> {
        if id == ROOT {
            return Ok(());
        }
        let inode = &self.inodes[&id];
        self.check_access(caller, inode.parent, WRITE)?;
        let above = &self.inodes[&inode.parent];
        let is_free = above.mode & STICKY == 0;
        if is_free || caller.is_superuser || [&above.owner, &inode.owner].contains(&&caller.user) {
            return Ok(());
        }
        let (user, path) = (&caller.user, self.path(id));
        Err(FilesRefusal::Denied(format!(
            "Permission denied by sticky bit: user={user}, path=\"{path}\":{}:{}",
            inode.owner, inode.group
        )))
    }

    /// Whether a caller may remove everything below a directory.
    pub(super) fn check_removal_below(
        &self,
        caller: &Caller,
        id: InodeId,
    ) -> Result<(), FilesRefusal> {
        let mut rest = if caller.is_superuser { Vec::new() } else { vec![id] };
        while let Some(id) = rest.pop() {
            let inode = &self.inodes[&id];
            let InodeKind::Directory(entries) = &inode.kind else { continue };
            if entries.is_empty() {
                continue;
            }
            self.check_access(caller, id, ALL)?;
            if inode.mode & STICKY != 0 {
                entries.values().try_for_each(|entry| self.check_removal(caller, *entry))?;
            }
            rest.extend(entries.values());
        }
        Ok(())
    }

    /// Whether a caller owns an inode.
    pub(super) fn check_owner(&self, caller: &Caller, id: InodeId) -> Result<(), FilesRefusal> {
        if caller.is_superuser || self.inodes[&id].owner == caller.user {
            return Ok(());
        }
        let (user, path) = (&caller.user, self.path(id));
        Err(FilesRefusal::Denied(format!(
            "Permission denied. user={user} is not the owner of inode={path}"
        )))
    }

    /// Whether a caller may give an inode to another owner or group.
    pub(super) fn check_gift(
        &self,
        caller: &Caller,
        id: InodeId,
        owner: Option<&str>,
        group: Option<&str>,
    ) -> Result<(), FilesRefusal> {
        self.check_owner(caller, id)?;
        let user = &caller.user;
        if caller.is_superuser {
            return Ok(());
        }
        if owner.is_some_and(|owner| owner != user) {
            return Err(FilesRefusal::Denied(format!(
                "User {user} is not a super user (non-super user cannot change owner)."
            )));
        }
        match group {
            Some(group) if !caller.groups.iter().any(|own| own == group) => {
                Err(FilesRefusal::Denied(format!("User {user} does not belong to {group}")))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DiskId;
    use crate::namespace::NamespaceCall;

    fn plain(user: &str, groups: &[&str]) -> Caller {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Caller { user: user.to_owned(), groups, is_superuser: false }
    }

    #[derive(Default)]
    struct Disk(Namespace);

    impl Disk {
        fn call(&mut self, caller: &Caller, call: NamespaceCall) -> Result<(), FilesRefusal> {
            for record in self.0.decide(&call, caller, 1, &[DiskId(1)])? {
                self.0.apply(record);
            }
            Ok(())
        }

        fn mkdir(&mut self, caller: &Caller, path: &str, mode: u16) -> Result<(), FilesRefusal> {
            self.call(caller, NamespaceCall::Mkdirs { path: path.into(), mode })
        }

        fn create(&mut self, caller: &Caller, path: &str, mode: u16) -> Result<(), FilesRefusal> {
            let (path, replication, overwrite, writer) = (path.into(), 1, true, None);
            let block_bytes = crate::config::BLOCK_BYTES;
            self.call(
                caller,
                NamespaceCall::Create { path, mode, replication, overwrite, writer, block_bytes },
            )
        }

        fn delete(&mut self, caller: &Caller, path: &str) -> Result<(), FilesRefusal> {
            self.call(caller, NamespaceCall::Delete { path: path.into(), recursive: true })
        }

        fn rename(&mut self, caller: &Caller, from: &str, to: &str) -> Result<(), FilesRefusal> {
            let (from, to, overwrite, is_exact) = (from.into(), to.into(), true, true);
            self.call(caller, NamespaceCall::Rename { from, to, overwrite, is_exact })
        }

        fn give(
            &mut self,
            caller: &Caller,
            path: &str,
            to: [Option<&str>; 2],
        ) -> Result<(), FilesRefusal> {
            let [owner, group] = to.map(|name| name.map(str::to_owned));
            self.call(caller, NamespaceCall::SetOwner { path: path.into(), owner, group })
        }
    }

    /// The directory /people/ann with a file of mode 640, and the directory /tmp, which is sticky.
    fn disk() -> (Disk, Caller, Caller) {
        let (mut disk, root) = (Disk::default(), Caller::superuser("root"));
        let (ann, bob) = (plain("ann", &["staff"]), plain("bob", &["staff", "desk"]));
        disk.mkdir(&root, "/people/ann", 0o755).unwrap();
        disk.give(&root, "/people/ann", [Some("ann"), Some("staff")]).unwrap();
        disk.mkdir(&root, "/tmp", 0o1777).unwrap();
        disk.create(&ann, "/people/ann/f", 0o640).unwrap();
        (disk, ann, bob)
    }

    #[test]
    fn a_user_reads_and_writes_what_owner_group_and_mode_allow() {
        let (mut disk, ann, bob) = disk();
        let eve = plain("eve", &[]);
        let (id, inode) = disk.0.find("/people/ann/f").unwrap();
        assert_eq!((inode.owner.as_str(), inode.group.as_str()), ("ann", "staff"));
        for (caller, access, is_allowed) in [
            (&ann, READ | WRITE, true),
            (&bob, READ, true),
            (&bob, WRITE, false),
            (&eve, READ, false),
            (&Caller::superuser("hdfs"), ALL, true),
        ] {
            assert_eq!(disk.0.check_access(caller, id, access).is_ok(), is_allowed, "{caller:?}");
        }
        let denied = disk.0.check_access(&eve, id, READ).unwrap_err().to_string();
        let words = "user=eve, access=READ, inode=\"/people/ann/f\":ann:staff:-rw-r-----";
        assert!(denied.contains(words), "{denied}");
        for refused in [
            disk.create(&bob, "/people/ann/g", 0o644),
            disk.create(&bob, "/people/ann/f", 0o644),
            disk.mkdir(&bob, "/x", 0o755),
            disk.delete(&bob, "/people/ann/f"),
            disk.rename(&bob, "/people/ann/f", "/tmp/f"),
            disk.rename(&ann, "/people/ann/f", "/people/f"),
        ] {
            assert!(matches!(refused, Err(FilesRefusal::Denied(_))), "{refused:?}");
        }
    }

    #[test]
    fn a_closed_directory_tells_nothing_of_its_entries() {
        let (mut disk, ann, bob) = disk();
        let path = || "/people/ann".to_owned();
        disk.call(&ann, NamespaceCall::SetMode { path: path(), mode: 0o700 }).unwrap();
        for name in ["/people/ann/f", "/people/ann/none"] {
            assert!(matches!(disk.0.find_as(&bob, name), Err(FilesRefusal::Denied(_))), "{name}");
        }
        assert!(disk.0.find_as(&bob, "/people/ann").is_ok());
        assert!(matches!(disk.0.find_as(&ann, "/people/ann/none"), Err(FilesRefusal::NotFound(_))));
    }

    #[test]
    fn in_a_sticky_directory_entries_belong_to_their_owners() {
        let (mut disk, ann, bob) = disk();
        disk.create(&ann, "/tmp/a", 0o666).unwrap();
        disk.create(&bob, "/tmp/b", 0o666).unwrap();
        for refused in [disk.delete(&bob, "/tmp/a"), disk.rename(&bob, "/tmp/a", "/tmp/c")] {
            let words = refused.unwrap_err().to_string();
            assert!(words.contains("sticky bit"), "{words}");
        }
        assert!(disk.rename(&bob, "/tmp/b", "/tmp/a").is_err(), "the entry that is replaced");
        disk.delete(&bob, "/tmp/b").unwrap();
        disk.rename(&ann, "/tmp/a", "/tmp/c").unwrap();
    }

    #[test]
    fn a_tree_is_deleted_by_a_user_who_may_delete_all_of_it() {
        let (mut disk, ann, bob) = disk();
        disk.mkdir(&ann, "/tmp/tree/inner", 0o755).unwrap();
        disk.create(&ann, "/tmp/tree/inner/f", 0o644).unwrap();
        disk.give(&Caller::superuser("root"), "/tmp/tree", [Some("bob"), None]).unwrap();
        assert!(disk.delete(&bob, "/tmp/tree").is_err(), "the inner directory is ann's");
        disk.delete(&ann, "/tmp/tree/inner").unwrap_err();
        disk.give(&Caller::superuser("root"), "/tmp/tree/inner", [Some("bob"), None]).unwrap();
        disk.delete(&bob, "/tmp/tree").unwrap();
    }

    #[test]
    fn rights_are_changed_by_the_owner_and_owners_by_the_superuser() {
        let (mut disk, ann, bob) = disk();
        let path = || "/people/ann/f".to_owned();
        let mode = |mode| NamespaceCall::SetMode { path: path(), mode };
        assert!(disk.call(&bob, mode(0o777)).is_err());
        disk.call(&ann, mode(0o600)).unwrap();
        assert!(disk.give(&ann, &path(), [Some("bob"), None]).is_err());
        assert!(disk.give(&ann, &path(), [None, Some("desk")]).is_err(), "not her group");
        assert!(disk.give(&bob, &path(), [None, Some("desk")]).is_err(), "not his file");
        disk.give(&ann, &path(), [None, Some("staff")]).unwrap();
        let times = |modified_ms| {
            let (path, accessed_ms) = (path(), None);
            NamespaceCall::SetTimes { path, modified_ms, accessed_ms }
        };
        assert!(disk.call(&bob, times(Some(1))).is_err());
        let copies = NamespaceCall::SetReplication { path: path(), replication: 2 };
        assert!(disk.call(&bob, copies.clone()).is_err());
        disk.call(&ann, copies).unwrap();
    }
}
