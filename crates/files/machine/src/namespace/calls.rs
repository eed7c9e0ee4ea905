//! Calls of clients, checked against the present state. The rules of paths, of renames and of
//! deletions are those of HDFS.

use std::collections::BTreeMap;

use super::rights::{Caller, EXECUTE, READ, WRITE};
use super::{CopyGroup, FIRST_EPOCH, File, Inode, InodeKind, Namespace, NamespaceChange, ROOT};
use crate::config::{
    BLOCK_BYTES_MIN, CHECKSUM_PIECE_BYTES, DEPTH_MAX, ENTRIES_MAX, INODES_MAX, NAME_BYTES_MAX,
    PATH_BYTES_MAX, REPLICATION_MAX,
};
use crate::leases::WriterLease;
use crate::{DiskId, FilesRefusal, InodeId};

/// A change that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceCall {
    /// Makes a directory, and the missing directories above it.
    Mkdirs {
        /// The path.
        path: String,
        /// The rights.
        mode: u16,
    },
    /// Makes an empty file, and the missing directories above it.
    Create {
        /// The path.
        path: String,
        /// The rights.
        mode: u16,
        /// Number of copies that the file shall have.
        replication: u16,
        /// Whether a file of this path is replaced.
        overwrite: bool,
        /// The disk of the dataserver that takes the bytes. This disk leads the file.
        writer: Option<DiskId>,
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// Puts a new file into the place of another file, and deletes the files whose bytes the new
    /// file has. The new file takes over the rights, owner, times and number of copies of the
    /// replaced file. The whole call is one change.
    Replace {
        /// The file that is replaced.
        path: String,
        /// The file that takes its place.
        with: String,
        /// The files that are deleted.
        sources: Vec<String>,
        /// The number and the length that the file at `path` had, and then those of each source.
        /// The call is refused when one of these paths has another file now, or one of these files
        /// has another length.
        was: Vec<(InodeId, u64)>,
    },
    /// Moves a file or a directory.
    Rename {
        /// The old path.
        from: String,
        /// The new path, or the directory that gets the entry.
        to: String,
        /// Whether a file or an empty directory of this path is replaced.
        overwrite: bool,
        /// Whether the new path is taken as it stands. Otherwise an entry moves into a directory of
        /// this path.
        is_exact: bool,
    },
    /// Deletes a file or a directory.
    Delete {
        /// The path.
        path: String,
        /// Whether a directory with entries may go.
        recursive: bool,
    },
    /// Sets rights.
    SetMode {
        /// The path.
        path: String,
        /// The rights.
        mode: u16,
    },
    /// Sets the owner, the group or both.
    SetOwner {
        /// The path.
        path: String,
        /// The owner.
        owner: Option<String>,
        /// The group.
        group: Option<String>,
    },
    /// Sets the times.
    SetTimes {
        /// The path.
        path: String,
        /// Milliseconds since 1970 of the last change.
        modified_ms: Option<u64>,
        /// Milliseconds since 1970 of the last read.
        accessed_ms: Option<u64>,
    },
    /// Sets how many copies a file shall have.
    SetReplication {
        /// The path.
        path: String,
        /// Number of copies.
        replication: u16,
    },
}

/// A path as its names.
///
/// # Errors
/// [`FilesRefusal::Invalid`], which says what is wrong with the path.
pub fn names(path: &str) -> Result<Vec<&str>, FilesRefusal> {
    let invalid = |what: &str| {
        let shown: String = path.chars().take(100).collect();
        Err(FilesRefusal::Invalid(format!("Invalid path name {shown:?}: {what}")))
    };
    if path.len() > PATH_BYTES_MAX {
        return invalid("it is too long");
    }
    let Some(rest) = path.strip_prefix('/') else {
        return invalid("it does not begin with /");
    };
    let names: Vec<&str> = rest.split('/').filter(|name| !name.is_empty()).collect();
    if names.len() > DEPTH_MAX {
        return invalid("it has too many parts");
    }
    for name in &names {
        if matches!(*name, "." | "..") || name.contains(['\0', ':']) {
            return invalid("a part is . or .. or has a colon or a NUL");
        }
        if name.len() > NAME_BYTES_MAX {
            return invalid("a part is too long");
        }
    }
    Ok(names)
}

/// The block size of a new file.
fn checked_block(bytes: u64) -> Result<u64, FilesRefusal> {
    if bytes < BLOCK_BYTES_MIN {
        return Err(FilesRefusal::Invalid(format!(
            "Specified block size is less than the minimum of {BLOCK_BYTES_MIN} bytes: {bytes}"
        )));
    }
    match bytes % CHECKSUM_PIECE_BYTES {
        0 => Ok(bytes),
        _ => Err(FilesRefusal::Invalid(format!(
            "the block size {bytes} is no multiple of {CHECKSUM_PIECE_BYTES} bytes"
        ))),
    }
}

/// Refuses new names with control characters, such as line breaks: nobody could tell their entries
/// from others in a listing. Entries that have such names already can be read, moved and deleted.
fn check_new(name: &str) -> Result<(), FilesRefusal> {
    match name.contains(|letter: char| letter.is_control()) {
        true => Err(FilesRefusal::Invalid(format!(
            "Invalid name {name:?}: a new name has no control characters, such as line breaks"
        ))),
        false => Ok(()),
    }
}

impl Namespace {
    /// The records that make the change of a call, if the caller has the rights for it. `members`
    /// are the disks of a new file.
    ///
    /// # Errors
    /// The reason for which the call is refused.
    pub fn decide(
        &self,
        call: &NamespaceCall,
        caller: &Caller,
        at_ms: u64,
        members: &[DiskId],
    ) -> Result<Vec<NamespaceChange>, FilesRefusal> {
        match call {
            NamespaceCall::Mkdirs { path, mode } => {
                let names = names(path)?;
                let (id, depth) = self.walk(Some(caller), &names)?;
                if depth == names.len() {
                    return match self.inodes[&id].kind {
                        InodeKind::Directory(_) => Ok(Vec::new()),
                        InodeKind::File(_) => Err(FilesRefusal::Exists(path.clone())),
                    };
                }
                let last = InodeKind::Directory(BTreeMap::new());
                self.make(id, &names[depth..], (caller, *mode, at_ms), last)
            }
            NamespaceCall::Create { path, mode, replication, overwrite, block_bytes, .. } => {
                let file = File {
                    replication: (*replication).clamp(1, REPLICATION_MAX),
                    length: 0,
                    block_bytes: checked_block(*block_bytes)?,
                    group: CopyGroup {
                        epoch: FIRST_EPOCH,
                        members: members.to_vec(),
                        ..CopyGroup::default()
                    },
                    lease: WriterLease::default(),
                };
                self.create(path, *overwrite, (caller, *mode, at_ms), file)
            }
            NamespaceCall::Rename { from, to, overwrite, is_exact } => {
                self.rename(caller, from, to, (*overwrite, *is_exact), at_ms)
            }
            NamespaceCall::Replace { path, with, sources, was } => {
                self.replace(caller, path, with, (sources, was), at_ms)
            }
            NamespaceCall::Delete { path, recursive } => {
                self.delete(caller, path, *recursive, at_ms)
            }
            NamespaceCall::SetMode { path, mode } => {
                let (id, _) = self.find_as(caller, path)?;
                self.check_owner(caller, id)?;
                // The sticky bit means something here. Set-user and set-group bits do not.
                Ok(self.changed(id, |inode| inode.mode = *mode & 0o1777))
            }
            NamespaceCall::SetOwner { path, owner, group } => {
                let (id, _) = self.find_as(caller, path)?;
                self.check_gift(caller, id, owner.as_deref(), group.as_deref())?;
                Ok(self.changed(id, |inode| {
                    inode.owner = owner.clone().unwrap_or_else(|| inode.owner.clone());
                    inode.group = group.clone().unwrap_or_else(|| inode.group.clone());
                }))
            }
            NamespaceCall::SetTimes { path, modified_ms, accessed_ms } => {
                let (id, _) = self.find_as(caller, path)?;
                self.check_access(caller, id, WRITE)?;
                Ok(self.changed(id, |inode| {
                    inode.modified_ms = modified_ms.unwrap_or(inode.modified_ms);
                    inode.accessed_ms = accessed_ms.unwrap_or(inode.accessed_ms);
                }))
            }
            NamespaceCall::SetReplication { path, replication } => {
                self.set_replication(caller, path, *replication)
            }
        }
    }

    /// The records that set how many copies a file shall have.
    fn set_replication(
        &self,
        caller: &Caller,
        path: &str,
        replication: u16,
    ) -> Result<Vec<NamespaceChange>, FilesRefusal> {
        if !(1..=REPLICATION_MAX).contains(&replication) {
            return Err(FilesRefusal::Invalid(format!("a file has 1 to {REPLICATION_MAX} copies")));
        }
        let (id, inode) = self.find_as(caller, path)?;
        if let InodeKind::Directory(_) = inode.kind {
            return Err(FilesRefusal::IsDirectory(path.to_owned()));
        }
        self.check_access(caller, id, WRITE)?;
        Ok(self.changed(id, |inode| {
            if let InodeKind::File(file) = &mut inode.kind {
                file.replication = replication;
            }
        }))
    }

    /// The records that make an empty file, and the missing directories above it.
    fn create(
        &self,
        path: &str,
        overwrite: bool,
        (caller, mode, at_ms): (&Caller, u16, u64),
        file: File,
    ) -> Result<Vec<NamespaceChange>, FilesRefusal> {
        let names = names(path)?;
        let (mut id, mut depth) = self.walk(Some(caller), &names)?;
        let mut records = Vec::new();
        if depth == names.len() {
            let is_file = matches!(self.inodes[&id].kind, InodeKind::File(_));
            if !is_file || !overwrite {
                return Err(FilesRefusal::Exists(path.to_owned()));
            }
            self.check_access(caller, id, WRITE)?;
            records.push(NamespaceChange::Gone { id, at_ms });
            (id, depth) = (self.inodes[&id].parent, depth - 1);
        }
        let last = InodeKind::File(file);
        records.extend(self.make(id, &names[depth..], (caller, mode, at_ms), last)?);
        Ok(records)
    }

    /// Whether a directory takes one more entry.
    ///
    /// # Errors
    /// [`FilesRefusal::NotDirectory`] or [`FilesRefusal::Limit`].
    fn check_room(&self, directory: InodeId) -> Result<(), FilesRefusal> {
        match &self.inodes[&directory].kind {
            InodeKind::File(_) => Err(FilesRefusal::NotDirectory(self.path(directory))),
            InodeKind::Directory(entries) if entries.len() >= ENTRIES_MAX => {
                Err(FilesRefusal::Limit(format!("a directory has {ENTRIES_MAX} entries at most")))
            }
            InodeKind::Directory(_) => Ok(()),
        }
    }

    /// The records that make an inode of the kind `last` below `id`. The last of the names is the
    /// name of that inode, and the names before are those of the directories on the way.
    fn make(
        &self,
        id: InodeId,
        names: &[&str],
        (caller, mode, at_ms): (&Caller, u16, u64),
        last: InodeKind,
    ) -> Result<Vec<NamespaceChange>, FilesRefusal> {
        self.check_room(id)?;
        self.check_access(caller, id, WRITE)?;
        // As in HDFS, an entry gets the group of its directory.
        let group = self.inodes[&id].group.clone();
        if self.inodes.len() + names.len() > INODES_MAX {
            return Err(FilesRefusal::Limit(format!(
                "there are {INODES_MAX} files and directories"
            )));
        }
        let (mut parent, mut records, mut last) = (id, Vec::new(), Some(last));
        for (at, name) in names.iter().enumerate() {
            check_new(name)?;
            let id = self.number(at);
            let is_last = at + 1 == names.len();
            let kind = last.take_if(|_| is_last);
            let kind = kind.unwrap_or_else(|| InodeKind::Directory(BTreeMap::new()));
            let inode = Inode {
                parent,
                owner: caller.user.clone(),
                group: group.clone(),
                mode: if is_last { mode & 0o1777 } else { 0o755 },
                modified_ms: at_ms,
                accessed_ms: at_ms,
                kind,
            };
            records.push(NamespaceChange::Inode { id, name: Some((*name).to_owned()), inode });
            parent = id;
        }
        Ok(records)
    }

    fn changed(&self, id: InodeId, change: impl FnOnce(&mut Inode)) -> Vec<NamespaceChange> {
        let mut inode = self.inodes[&id].clone();
        change(&mut inode);
        // The entries of a directory are in their own records.
        if let InodeKind::Directory(entries) = &mut inode.kind {
            entries.clear();
        }
        vec![NamespaceChange::Inode { id, name: None, inode }]
    }

    fn delete(
        &self,
        caller: &Caller,
        path: &str,
        recursive: bool,
        at_ms: u64,
    ) -> Result<Vec<NamespaceChange>, FilesRefusal> {
        let (id, inode) = self.find_as(caller, path)?;
        self.check_removal(caller, id)?;
        self.check_removal_below(caller, id)?;
        if let (InodeKind::Directory(entries), false) = (&inode.kind, recursive)
            && !entries.is_empty()
        {
            return Err(FilesRefusal::NotEmpty(path.to_owned()));
        }
        match id == ROOT {
            true => Err(FilesRefusal::Invalid("the root cannot be deleted".into())),
            false => Ok(vec![NamespaceChange::Gone { id, at_ms }]),
        }
    }

    fn replace(
        &self,
        caller: &Caller,
        path: &str,
        with: &str,
        (sources, was): (&[String], &[(InodeId, u64)]),
        at_ms: u64,
    ) -> Result<Vec<NamespaceChange>, FilesRefusal> {
        let mut gone = Vec::new();
        if was.len() != sources.len() + 1 {
            return Err(FilesRefusal::Invalid("each replaced file needs its number".into()));
        }
        let replaced = std::iter::once(path).chain(sources.iter().map(String::as_str));
        for (path, (known, length)) in replaced.zip(was) {
            let (id, inode) = self.find_as(caller, path)?;
            let InodeKind::File(file) = &inode.kind else {
                return Err(FilesRefusal::IsDirectory(path.to_owned()));
            };
            match gone.is_empty() {
                true => self.check_access(caller, id, WRITE)?,
                // The bytes of a source are read, and the source is deleted.
                false => self.check_access(caller, id, READ)?,
            }
            self.check_removal(caller, id)?;
            if (id, file.length) != (*known, *length) {
                return Err(FilesRefusal::Changed(path.to_owned()));
            }
            gone.push(id);
        }
        let (id, new) = self.find_as(caller, with)?;
        self.check_removal(caller, id)?;
        let (InodeKind::File(new), false) = (&new.kind, gone.contains(&id)) else {
            return Err(FilesRefusal::Invalid(format!("{with} is no new file")));
        };
        let mut inode = self.inodes[&gone[0]].clone();
        let (parent, name) = (inode.parent, self.names[&gone[0]].clone());
        inode.modified_ms = inode.modified_ms.max(at_ms);
        if let InodeKind::File(file) = &mut inode.kind {
            let (replication, block_bytes) = (file.replication, file.block_bytes);
            *file = File { replication, block_bytes, ..new.clone() };
        }
        let mut records: Vec<NamespaceChange> =
            gone.into_iter().map(|id| NamespaceChange::Gone { id, at_ms }).collect();
        records.push(NamespaceChange::Moved { id, parent, name, at_ms });
        records.push(NamespaceChange::Inode { id, name: None, inode });
        Ok(records)
    }

    fn rename(
        &self,
        caller: &Caller,
        from: &str,
        to: &str,
        (overwrite, is_exact): (bool, bool),
        at_ms: u64,
    ) -> Result<Vec<NamespaceChange>, FilesRefusal> {
        let (id, inode) = self.find_as(caller, from)?;
        let (old, mut new) = (names(from)?, names(to)?);
        if id == ROOT {
            return Err(FilesRefusal::Invalid("the root cannot be renamed".into()));
        }
        self.check_removal(caller, id)?;
        let mut there = match self.find_as(caller, to) {
            Err(denied @ FilesRefusal::Denied(_)) => return Err(denied),
            found => found.ok(),
        };
        // As `mv` does, a rename moves the entry into an existing directory.
        if let (Some((_, Inode { kind: InodeKind::Directory(entries), .. })), false) =
            (there, is_exact)
        {
            let name = old[old.len() - 1];
            new.push(name);
            there = entries.get(name).map(|entry| (*entry, &self.inodes[entry]));
        }
        if new.starts_with(&old) {
            return match new.len() == old.len() {
                true => Ok(Vec::new()),
                false => Err(FilesRefusal::Invalid(format!("{from} cannot move below itself"))),
            };
        }
        let Some((name, above)) = new.split_last() else {
            return Err(FilesRefusal::Exists(to.to_owned()));
        };
        check_new(name)?;
        let mut records = Vec::new();
        if let Some((other, replaced)) = there {
            match (&replaced.kind, &inode.kind) {
                _ if !overwrite => return Err(FilesRefusal::Exists(to.to_owned())),
                (InodeKind::File(_), InodeKind::Directory(_)) => {
                    return Err(FilesRefusal::NotDirectory(to.to_owned()));
                }
                (InodeKind::Directory(_), InodeKind::File(_)) => {
                    return Err(FilesRefusal::IsDirectory(to.to_owned()));
                }
                (InodeKind::Directory(entries), _) if !entries.is_empty() => {
                    return Err(FilesRefusal::NotEmpty(to.to_owned()));
                }
                _ => records.push(NamespaceChange::Gone { id: other, at_ms }),
            }
            self.check_removal(caller, other)?;
        }
        let (parent, depth) = self.walk(Some(caller), above)?;
        if depth < above.len() {
            return Err(FilesRefusal::NotFound(format!("/{}", above.join("/"))));
        }
        self.check_room(parent)?;
        self.check_access(caller, parent, WRITE | EXECUTE)?;
        records.push(NamespaceChange::Moved { id, parent, name: (*name).to_owned(), at_ms });
        Ok(records)
    }
}
