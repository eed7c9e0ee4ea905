//! The state of a nameserver: directories, files, and the disks that have the bytes of each file.
//!
//! A call is checked against the present state and becomes [`Record`]s. Applying a record makes the
//! change. The log has the same records, so a nameserver that starts has the same state. The rules
//! of paths, of renames and of deletions are those of HDFS.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::config::{
    DEPTH_MAX, ENTRIES_MAX, INODES_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX, REPLICATION_MAX,
};
use crate::valid::Valid;
use crate::{DiskId, FileId, Refusal};

/// The root directory.
pub const ROOT: FileId = FileId(1);

/// The disks that have the bytes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The epoch.
    pub epoch: u64,
    /// The length that all members had when the epoch began.
    pub start: u64,
    /// Disks that have every acknowledged byte. The first is the primary's.
    pub members: Vec<DiskId>,
    /// Disks of former members, each with the bytes of its copy that are right.
    pub former: Vec<(DiskId, Valid)>,
    /// Set when all members have lost their disks and a former member or a joiner is the only
    /// member now. The value says which bytes of its copy are right.
    pub adopted: Option<Valid>,
    /// The range of acknowledged bytes that no disk has any more: the first offset, and the offset
    /// behind the last byte.
    pub lost: Option<(u64, u64)>,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Number of copies that the file shall have.
    pub replication: u16,
    /// The acknowledged length, as the primary last told it.
    pub length: u64,
    /// The disks that have the bytes.
    pub group: Group,
}

/// The kind of an inode, with the part of its state that only this kind has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A directory with its entries.
    Directory(BTreeMap<String, FileId>),
    /// A file.
    File(File),
}

/// A file or a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    /// The directory of the inode. The root is its own directory.
    pub parent: FileId,
    /// The user who owns the inode: its maker, or a later owner.
    pub owner: String,
    /// The group of users that owns the inode.
    pub group: String,
    /// The rights as in POSIX. Rights are kept and shown, and not enforced.
    pub mode: u16,
    /// Milliseconds since 1970 of the last change.
    pub modified_ms: u64,
    /// Milliseconds since 1970 of the last read that was noted.
    pub accessed_ms: u64,
    /// File or directory.
    pub kind: Kind,
}

/// A change that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Makes a directory, and the missing directories above it.
    Mkdirs {
        /// The path.
        path: String,
        /// Its rights.
        mode: u16,
    },
    /// Makes an empty file, and the missing directories above it.
    Create {
        /// The path.
        path: String,
        /// Its rights.
        mode: u16,
        /// Number of copies that the file shall have.
        replication: u16,
        /// Whether a file of this path is replaced.
        overwrite: bool,
        /// The disk of the dataserver that takes the bytes. This disk leads the file.
        writer: Option<DiskId>,
    },
    /// Puts a file into the place of another file, and deletes the files whose bytes the new file
    /// has. The new file takes over rights, owner, times and number of copies. All of this is one
    /// change.
    Replace {
        /// The file that is replaced.
        path: String,
        /// The file that takes its place.
        with: String,
        /// The files that are deleted.
        sources: Vec<String>,
        /// The number and the length of the file at `path`, and then of each source. The call is
        /// refused when another file has one of these paths by now, or a file has another length.
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

/// A change of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// The name of the cluster.
    Cluster {
        /// A random number.
        cluster: u64,
    },
    /// The new state of an inode. A new inode is entered in its directory under the name.
    Inode {
        /// Its number.
        id: FileId,
        /// The name of a new inode; `None` for an inode that exists.
        name: Option<String>,
        /// Its state.
        inode: Inode,
    },
    /// An entry moves to a place where no other entry stands.
    Moved {
        /// The inode.
        id: FileId,
        /// The new directory.
        parent: FileId,
        /// The new name.
        name: String,
        /// When.
        at_ms: u64,
    },
    /// An inode is gone, with everything below it.
    Gone {
        /// The inode.
        id: FileId,
        /// When.
        at_ms: u64,
    },
    /// The disks that have the bytes of a file.
    Group {
        /// The file.
        id: FileId,
        /// The disks.
        group: Group,
    },
    /// The acknowledged length of a file.
    Length {
        /// The file.
        id: FileId,
        /// The length.
        length: u64,
        /// When.
        at_ms: u64,
    },
    /// A disk will never come back.
    DiskGone {
        /// The disk.
        disk: DiskId,
    },
    /// All copies shall leave a disk, or the disk may have copies again.
    Leaving {
        /// The disk.
        disk: DiskId,
        /// Whether its copies shall leave.
        is_leaving: bool,
    },
    /// A nameserver begins to give numbers of this term.
    Term {
        /// A random number, which no other life of a nameserver has.
        term: u64,
        /// The count of the first number of the term.
        from: u64,
    },
    /// The next number of an inode. Numbers are never given twice.
    Next {
        /// The number, of which the term does not count.
        next: FileId,
    },
    /// Several changes, of which a crash leaves all or none.
    All {
        /// The changes, in their order.
        records: Vec<Self>,
    },
}

/// Bits of the count in the number of an inode. The bits above are the term.
const COUNT_BITS: u32 = 40;
/// Bits of a term. Java's clients read the number of a file as a positive integer of 64 bits.
pub(crate) const TERM_BITS: u32 = 22;

fn count(id: FileId) -> u64 {
    id.0 & ((1 << COUNT_BITS) - 1)
}

impl Record {
    /// A record that changes nothing. A call without a change writes this record, so that its
    /// effects wait for all earlier records.
    pub(crate) const NOTHING: Self = Self::Next { next: FileId(0) };
}

/// All names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// The name of the cluster.
    pub cluster: u64,
    inodes: BTreeMap<FileId, Inode>,
    /// The name of each inode in its directory.
    names: BTreeMap<FileId, String>,
    /// The count of the next number of an inode.
    next: u64,
    /// The terms of this log, each with the count of its first number, in the order of the counts.
    terms: Vec<(u64, u64)>,
    /// Disks that will never come back.
    gone: BTreeSet<DiskId>,
    /// Disks that all copies shall leave.
    leaving: BTreeSet<DiskId>,
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

impl Default for Space {
    fn default() -> Self {
        let root = Inode {
            parent: ROOT,
            owner: "evenfall".into(),
            group: "supergroup".into(),
            mode: 0o755,
            modified_ms: 0,
            accessed_ms: 0,
            kind: Kind::Directory(BTreeMap::new()),
        };
        let (next, terms) = (ROOT.0 + 1, vec![(0, 0)]);
        let inodes = [(ROOT, root)].into();
        let (names, gone, leaving) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { cluster: 0, inodes, names, next, terms, gone, leaving }
    }
}

impl Space {
    /// All inodes, by number.
    pub fn inodes(&self) -> &BTreeMap<FileId, Inode> {
        &self.inodes
    }

    /// Whether a disk will never come back.
    pub fn is_gone(&self, disk: DiskId) -> bool {
        self.gone.contains(&disk)
    }

    /// Whether the number of an inode was given in this log. A number that was given and has no
    /// inode belongs to a deleted file. A number that was not given in this log comes from a
    /// nameserver with a longer log, as after an old log is put back.
    pub fn has_given(&self, id: FileId) -> bool {
        let Some(at) = self.terms.iter().position(|(term, _)| *term == id.0 >> COUNT_BITS) else {
            return false;
        };
        let end = self.terms.get(at + 1).map_or(self.next, |(_, from)| *from);
        (self.terms[at].1..end).contains(&count(id))
    }

    /// The record that begins a term. A term is a random number, so that a nameserver with an old
    /// log gives no number a second time.
    pub(crate) fn begin_term(&self, mut random: impl FnMut() -> u64) -> Record {
        let mut term = random() >> (64 - TERM_BITS);
        while self.terms.iter().any(|(known, _)| *known == term) {
            term = random() >> (64 - TERM_BITS);
        }
        Record::Term { term, from: self.next }
    }

    /// The number behind the last one that was given.
    fn number(&self, at: usize) -> FileId {
        let term = self.terms.last().map_or(0, |(term, _)| *term);
        FileId(term << COUNT_BITS | (self.next + at as u64))
    }

    /// Whether all copies shall leave a disk.
    pub fn is_leaving(&self, disk: DiskId) -> bool {
        self.leaving.contains(&disk)
    }

    /// A file by its number.
    pub fn file(&self, id: FileId) -> Option<&File> {
        match &self.inodes.get(&id)?.kind {
            Kind::File(file) => Some(file),
            Kind::Directory(_) => None,
        }
    }

    /// The path of an inode.
    pub fn path(&self, id: FileId) -> String {
        let (mut names, mut at) = (Vec::new(), id);
        while let (true, Some(name)) = (at != ROOT, self.names.get(&at)) {
            names.push(name.as_str());
            at = self.inodes.get(&at).map_or(ROOT, |inode| inode.parent);
        }
        names.reverse();
        format!("/{}", names.join("/"))
    }

    /// The inode of a path.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::NotDirectory`] or [`Refusal::Invalid`].
    pub fn find(&self, path: &str) -> Result<(FileId, &Inode), Refusal> {
        let names = names(path)?;
        let (id, depth) = self.walk(&names)?;
        match depth == names.len() {
            true => Ok((id, &self.inodes[&id])),
            false => Err(Refusal::NotFound(path.to_owned())),
        }
    }

    /// The last inode on the way that exists, and how many names lead to that inode.
    fn walk(&self, names: &[&str]) -> Result<(FileId, usize), Refusal> {
        let mut id = ROOT;
        for (depth, name) in names.iter().enumerate() {
            let Kind::Directory(entries) = &self.inodes[&id].kind else {
                return Err(Refusal::NotDirectory(self.path(id)));
            };
            match entries.get(*name) {
                Some(next) => id = *next,
                None => return Ok((id, depth)),
            }
        }
        Ok((id, names.len()))
    }

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
                let group = Group { epoch: 1, members: members.to_vec(), ..Group::default() };
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

    /// Makes a change. Returns the files that are gone.
    pub fn apply(&mut self, record: Record) -> Vec<(FileId, Group)> {
        let mut gone = Vec::new();
        match record {
            Record::All { records } => {
                gone.extend(records.into_iter().flat_map(|record| self.apply(record)));
            }
            Record::Cluster { cluster } => self.cluster = cluster,
            Record::DiskGone { disk } => {
                self.gone.insert(disk);
                self.leaving.remove(&disk);
            }
            Record::Leaving { disk, is_leaving: true } => drop(self.leaving.insert(disk)),
            Record::Leaving { disk, .. } => drop(self.leaving.remove(&disk)),
            Record::Next { next } => self.next = self.next.max(count(next)),
            Record::Term { term, from } => {
                // A term in which no number was given is forgotten.
                self.terms.retain(|(_, begun)| *begun < from);
                self.terms.push((term, from));
            }
            Record::Inode { id, name, mut inode } => {
                self.next = self.next.max(count(id) + 1);
                match name {
                    Some(name) => self.enter(inode.parent, name, id, inode.modified_ms),
                    None => {
                        if let (
                            Kind::Directory(new),
                            Some(Inode { kind: Kind::Directory(old), .. }),
                        ) = (&mut inode.kind, self.inodes.get_mut(&id))
                        {
                            *new = core::mem::take(old);
                        }
                    }
                }
                self.inodes.insert(id, inode);
            }
            Record::Moved { id, parent, name, at_ms } => {
                self.leave(id, at_ms);
                self.enter(parent, name, id, at_ms);
                if let Some(inode) = self.inodes.get_mut(&id) {
                    inode.parent = parent;
                }
            }
            Record::Gone { id, at_ms } => {
                self.leave(id, at_ms);
                let mut rest = vec![id];
                while let Some(id) = rest.pop() {
                    self.names.remove(&id);
                    match self.inodes.remove(&id).map(|inode| inode.kind) {
                        Some(Kind::Directory(entries)) => rest.extend(entries.values()),
                        Some(Kind::File(file)) => gone.push((id, file.group)),
                        None => {}
                    }
                }
            }
            Record::Group { id, group } => {
                if let Some(file) = self.file_mut(id) {
                    file.group = group;
                }
            }
            Record::Length { id, length, at_ms } => {
                if let Some(file) = self.file_mut(id) {
                    file.length = length;
                }
                if let Some(inode) = self.inodes.get_mut(&id) {
                    inode.modified_ms = inode.modified_ms.max(at_ms);
                }
            }
        }
        gone
    }

    fn file_mut(&mut self, id: FileId) -> Option<&mut File> {
        match &mut self.inodes.get_mut(&id)?.kind {
            Kind::File(file) => Some(file),
            Kind::Directory(_) => None,
        }
    }

    fn enter(&mut self, parent: FileId, name: String, id: FileId, at_ms: u64) {
        if let Some(inode) = self.inodes.get_mut(&parent)
            && let Kind::Directory(entries) = &mut inode.kind
        {
            entries.insert(name.clone(), id);
            inode.modified_ms = inode.modified_ms.max(at_ms);
            self.names.insert(id, name);
        }
    }

    fn leave(&mut self, id: FileId, at_ms: u64) {
        let parent = self.inodes.get(&id).map(|inode| inode.parent);
        if let (Some(parent), Some(name)) = (parent, self.names.get(&id))
            && let Some(inode) = self.inodes.get_mut(&parent)
            && let Kind::Directory(entries) = &mut inode.kind
        {
            entries.remove(name);
            inode.modified_ms = inode.modified_ms.max(at_ms);
        }
    }

    /// Records that make this state out of an empty state. Directories come before their entries.
    pub fn records(&self) -> Vec<Record> {
        let next = Record::Next { next: FileId(self.next) };
        let mut records = vec![Record::Cluster { cluster: self.cluster }, next];
        let terms = self.terms.iter();
        records.extend(terms.map(|(term, from)| Record::Term { term: *term, from: *from }));
        records.extend(self.gone.iter().map(|disk| Record::DiskGone { disk: *disk }));
        let leaving = self.leaving.iter();
        records.extend(leaving.map(|disk| Record::Leaving { disk: *disk, is_leaving: true }));
        let mut rest = vec![ROOT];
        while let Some(id) = rest.pop() {
            let mut inode = self.inodes[&id].clone();
            if let Kind::Directory(entries) = &mut inode.kind {
                rest.extend(core::mem::take(entries).values());
            }
            records.push(Record::Inode { id, name: self.names.get(&id).cloned(), inode });
        }
        // Entering a child changes the time of its directory, so the times come again at the end.
        let directories = self.inodes.iter().filter(|(_, i)| matches!(i.kind, Kind::Directory(_)));
        records.extend(directories.map(|(id, inode)| {
            let kind = Kind::Directory(BTreeMap::new());
            Record::Inode { id: *id, name: None, inode: Inode { kind, ..inode.clone() } }
        }));
        records
    }
}

#[cfg(test)]
mod tests;
