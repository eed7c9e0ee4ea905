//! Calls of clients, checked against the present state. The rules of paths, of renames and of
//! deletions are those of HDFS.

use std::collections::BTreeMap;

use super::{FIRST_EPOCH, File, Group, Inode, Kind, ROOT, Record, Space};
use crate::config::{
    DEPTH_MAX, ENTRIES_MAX, INODES_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX, REPLICATION_MAX,
};
use crate::{DiskId, FileId, Refusal};

/// A change that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
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
        was: Vec<(FileId, u64)>,
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
/// [`Refusal::Invalid`], which says what is wrong with the path.
pub fn names(path: &str) -> Result<Vec<&str>, Refusal> {
    let invalid = |what: &str| {
        let shown: String = path.chars().take(100).collect();
        Err(Refusal::Invalid(format!("Invalid path name {shown:?}: {what}")))
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

/// Refuses new names with control characters, such as line breaks: nobody could tell their entries
/// from others in a listing. Entries that have such names already can be read, moved and deleted.
fn check_new(name: &str) -> Result<(), Refusal> {
    match name.contains(|letter: char| letter.is_control()) {
        true => Err(Refusal::Invalid(format!(
            "Invalid name {name:?}: a new name has no control characters, such as line breaks"
        ))),
        false => Ok(()),
    }
}

impl Space {
    /// The records that make the change of a call. `members` are the disks of a new file.
    ///
    /// # Errors
    /// The reason for which the call is refused.
    pub fn decide(
        &self,
        call: &Call,
        user: &str,
        at_ms: u64,
        members: &[DiskId],
    ) -> Result<Vec<Record>, Refusal> {
        match call {
            Call::Mkdirs { path, mode } => {
                let names = names(path)?;
                let (id, depth) = self.walk(&names)?;
                if depth == names.len() {
                    return match self.inodes[&id].kind {
                        Kind::Directory(_) => Ok(Vec::new()),
                        Kind::File(_) => Err(Refusal::Exists(path.clone())),
                    };
                }
                let last = Kind::Directory(BTreeMap::new());
                self.make(id, &names[depth..], (user, *mode, at_ms), last)
            }
            Call::Create { path, mode, replication, overwrite, .. } => {
                let names = names(path)?;
                let (mut id, mut depth) = self.walk(&names)?;
                let mut records = Vec::new();
                if depth == names.len() {
                    let is_file = matches!(self.inodes[&id].kind, Kind::File(_));
                    if !is_file || !overwrite {
                        return Err(Refusal::Exists(path.clone()));
                    }
                    records.push(Record::Gone { id, at_ms });
                    (id, depth) = (self.inodes[&id].parent, depth - 1);
                }
                let replication = (*replication).clamp(1, REPLICATION_MAX);
                let group =
                    Group { epoch: FIRST_EPOCH, members: members.to_vec(), ..Group::default() };
                let last = Kind::File(File { replication, length: 0, group });
                records.extend(self.make(id, &names[depth..], (user, *mode, at_ms), last)?);
                Ok(records)
            }
            Call::Rename { from, to, overwrite, is_exact } => {
                self.rename(from, to, (*overwrite, *is_exact), at_ms)
            }
            Call::Replace { path, with, sources, was } => {
                self.replace(path, with, (sources, was), at_ms)
            }
            Call::Delete { path, recursive } => self.delete(path, *recursive, at_ms),
            Call::SetMode { path, mode } => self.changed(path, |inode| inode.mode = *mode & 0o1777),
            Call::SetOwner { path, owner, group } => self.changed(path, |inode| {
                inode.owner = owner.clone().unwrap_or_else(|| inode.owner.clone());
                inode.group = group.clone().unwrap_or_else(|| inode.group.clone());
            }),
            Call::SetTimes { path, modified_ms, accessed_ms } => self.changed(path, |inode| {
                inode.modified_ms = modified_ms.unwrap_or(inode.modified_ms);
                inode.accessed_ms = accessed_ms.unwrap_or(inode.accessed_ms);
            }),
            Call::SetReplication { path, replication } => {
                if !(1..=REPLICATION_MAX).contains(replication) {
                    let what = format!("a file has 1 to {REPLICATION_MAX} copies");
                    return Err(Refusal::Invalid(what));
                }
                if let (_, Inode { kind: Kind::Directory(_), .. }) = self.find(path)? {
                    return Err(Refusal::IsDirectory(path.clone()));
                }
                self.changed(path, |inode| {
                    if let Kind::File(file) = &mut inode.kind {
                        file.replication = *replication;
                    }
                })
            }
        }
    }

    /// Whether a directory takes one more entry.
    ///
    /// # Errors
    /// [`Refusal::NotDirectory`] or [`Refusal::Limit`].
    fn check_room(&self, directory: FileId) -> Result<(), Refusal> {
        match &self.inodes[&directory].kind {
            Kind::File(_) => Err(Refusal::NotDirectory(self.path(directory))),
            Kind::Directory(entries) if entries.len() >= ENTRIES_MAX => {
                Err(Refusal::Limit(format!("a directory has {ENTRIES_MAX} entries at most")))
            }
            Kind::Directory(_) => Ok(()),
        }
    }

    /// The records that make an inode of the kind `last` below `id`. The last of the names is the
    /// name of that inode, and the names before are those of the directories on the way.
    fn make(
        &self,
        id: FileId,
        names: &[&str],
        (user, mode, at_ms): (&str, u16, u64),
        last: Kind,
    ) -> Result<Vec<Record>, Refusal> {
        self.check_room(id)?;
        if self.inodes.len() + names.len() > INODES_MAX {
            return Err(Refusal::Limit(format!("there are {INODES_MAX} files and directories")));
        }
        let (mut parent, mut records, mut last) = (id, Vec::new(), Some(last));
        for (at, name) in names.iter().enumerate() {
            check_new(name)?;
            let id = self.number(at);
            let is_last = at + 1 == names.len();
            let kind = last.take_if(|_| is_last);
            let kind = kind.unwrap_or_else(|| Kind::Directory(BTreeMap::new()));
            let inode = Inode {
                parent,
                owner: user.to_owned(),
                group: "supergroup".into(),
                mode: if is_last { mode & 0o1777 } else { 0o755 },
                modified_ms: at_ms,
                accessed_ms: at_ms,
                kind,
            };
            records.push(Record::Inode { id, name: Some((*name).to_owned()), inode });
            parent = id;
        }
        Ok(records)
    }

    fn changed(&self, path: &str, change: impl FnOnce(&mut Inode)) -> Result<Vec<Record>, Refusal> {
        let (id, inode) = self.find(path)?;
        let mut inode = inode.clone();
        change(&mut inode);
        // The entries of a directory are in their own records.
        if let Kind::Directory(entries) = &mut inode.kind {
            entries.clear();
        }
        Ok(vec![Record::Inode { id, name: None, inode }])
    }

    fn delete(&self, path: &str, recursive: bool, at_ms: u64) -> Result<Vec<Record>, Refusal> {
        let (id, inode) = self.find(path)?;
        if let (Kind::Directory(entries), false) = (&inode.kind, recursive)
            && !entries.is_empty()
        {
            return Err(Refusal::NotEmpty(path.to_owned()));
        }
        match id == ROOT {
            true => Err(Refusal::Invalid("the root cannot be deleted".into())),
            false => Ok(vec![Record::Gone { id, at_ms }]),
        }
    }

    fn replace(
        &self,
        path: &str,
        with: &str,
        (sources, was): (&[String], &[(FileId, u64)]),
        at_ms: u64,
    ) -> Result<Vec<Record>, Refusal> {
        let mut gone = Vec::new();
        if was.len() != sources.len() + 1 {
            return Err(Refusal::Invalid("each replaced file needs its number".into()));
        }
        let replaced = std::iter::once(path).chain(sources.iter().map(String::as_str));
        for (path, (known, length)) in replaced.zip(was) {
            let (id, inode) = self.find(path)?;
            let Kind::File(file) = &inode.kind else {
                return Err(Refusal::IsDirectory(path.to_owned()));
            };
            if (id, file.length) != (*known, *length) {
                return Err(Refusal::Changed(path.to_owned()));
            }
            gone.push(id);
        }
        let (id, new) = self.find(with)?;
        let (Kind::File(new), false) = (&new.kind, gone.contains(&id)) else {
            return Err(Refusal::Invalid(format!("{with} is no new file")));
        };
        let mut inode = self.inodes[&gone[0]].clone();
        let (parent, name) = (inode.parent, self.names[&gone[0]].clone());
        inode.modified_ms = inode.modified_ms.max(at_ms);
        if let Kind::File(file) = &mut inode.kind {
            let replication = file.replication;
            *file = File { replication, ..new.clone() };
        }
        let mut records: Vec<Record> =
            gone.into_iter().map(|id| Record::Gone { id, at_ms }).collect();
        records.push(Record::Moved { id, parent, name, at_ms });
        records.push(Record::Inode { id, name: None, inode });
        Ok(records)
    }

    fn rename(
        &self,
        from: &str,
        to: &str,
        (overwrite, is_exact): (bool, bool),
        at_ms: u64,
    ) -> Result<Vec<Record>, Refusal> {
        let (id, inode) = self.find(from)?;
        let (old, mut new) = (names(from)?, names(to)?);
        if id == ROOT {
            return Err(Refusal::Invalid("the root cannot be renamed".into()));
        }
        let mut there = self.find(to).ok();
        // As `mv` does, a rename moves the entry into an existing directory.
        if let (Some((_, Inode { kind: Kind::Directory(entries), .. })), false) = (there, is_exact)
        {
            let name = old[old.len() - 1];
            new.push(name);
            there = entries.get(name).map(|entry| (*entry, &self.inodes[entry]));
        }
        if new.starts_with(&old) {
            return match new.len() == old.len() {
                true => Ok(Vec::new()),
                false => Err(Refusal::Invalid(format!("{from} cannot move below itself"))),
            };
        }
        let Some((name, above)) = new.split_last() else {
            return Err(Refusal::Exists(to.to_owned()));
        };
        check_new(name)?;
        let mut records = Vec::new();
        if let Some((other, replaced)) = there {
            match (&replaced.kind, &inode.kind) {
                _ if !overwrite => return Err(Refusal::Exists(to.to_owned())),
                (Kind::File(_), Kind::Directory(_)) => {
                    return Err(Refusal::NotDirectory(to.to_owned()));
                }
                (Kind::Directory(_), Kind::File(_)) => {
                    return Err(Refusal::IsDirectory(to.to_owned()));
                }
                (Kind::Directory(entries), _) if !entries.is_empty() => {
                    return Err(Refusal::NotEmpty(to.to_owned()));
                }
                _ => records.push(Record::Gone { id: other, at_ms }),
            }
        }
        let (parent, depth) = self.walk(above)?;
        if depth < above.len() {
            return Err(Refusal::NotFound(format!("/{}", above.join("/"))));
        }
        self.check_room(parent)?;
        records.push(Record::Moved { id, parent, name: (*name).to_owned(), at_ms });
        Ok(records)
    }
}
