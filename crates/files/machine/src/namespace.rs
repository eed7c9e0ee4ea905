//! The state of a nameserver: directories, files, and the disks that have the bytes of each file.
//!
//! A call is checked against the present state and becomes [`NamespaceChange`]s. Applying a record
//! makes the change. The log has the same records, so a nameserver that starts has the same state.

mod calls;
pub mod rights;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::config::BLOCK_BYTES;
use crate::leases::WriterLease;
use crate::valid_length::ValidLength;
use crate::{DiskId, FilesRefusal, InodeId};

pub use calls::{NamespaceCall, names};
pub use rights::Caller;

/// The root directory.
pub const ROOT: InodeId = InodeId(1);
/// The epoch of a new file.
pub(crate) const FIRST_EPOCH: u64 = 1;

/// The disks that have the bytes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyGroup {
    /// The epoch.
    pub epoch: u64,
    /// The length that all members had when the epoch began.
    pub start: u64,
    /// Disks that have every acknowledged byte. The first is the primary's.
    pub members: Vec<DiskId>,
    /// Disks of former members, each with the bytes of its copy that are right.
    pub former: Vec<(DiskId, ValidLength)>,
    /// The right bytes of the only member's copy, if that member is a former member or a joiner
    /// that took over because all members had lost their disks.
    pub adopted: Option<ValidLength>,
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
    /// Bytes of a block, as the maker of the file named them.
    #[serde(default = "default_block_bytes")]
    pub block_bytes: u64,
    /// The disks that have the bytes.
    pub group: CopyGroup,
    /// The lease of its writer. Logs of earlier versions have none.
    #[serde(default, skip_serializing_if = "WriterLease::is_new")]
    pub lease: WriterLease,
}

/// Logs of earlier versions name no block size.
fn default_block_bytes() -> u64 {
    BLOCK_BYTES
}

/// The kind of an inode, with the part of its state that only this kind has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InodeKind {
    /// A directory with its entries.
    Directory(BTreeMap<String, InodeId>),
    /// A file.
    File(File),
}

/// A file or a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    /// The directory of the inode. The root is its own directory.
    pub parent: InodeId,
    /// The user who owns the inode: its maker, or a later owner.
    pub owner: String,
    /// The group of users that owns the inode.
    pub group: String,
    /// The rights as in POSIX, with the sticky bit of a directory.
    pub mode: u16,
    /// Milliseconds since 1970 of the last change.
    pub modified_ms: u64,
    /// Milliseconds since 1970 of the last read that was noted.
    pub accessed_ms: u64,
    /// File or directory.
    pub kind: InodeKind,
}

/// A change of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceChange {
    /// The name of the cluster.
    Cluster {
        /// A random number.
        cluster: u64,
    },
    /// The new state of an inode. A new inode is entered in its directory under the name.
    Inode {
        /// Its number.
        id: InodeId,
        /// The name of a new inode; `None` for an inode that exists.
        name: Option<String>,
        /// Its state.
        inode: Inode,
    },
    /// An entry moves to a place where no other entry stands.
    Moved {
        /// The inode.
        id: InodeId,
        /// The new directory.
        parent: InodeId,
        /// The new name.
        name: String,
        /// When.
        at_ms: u64,
    },
    /// An inode is gone, with everything below it.
    Gone {
        /// The inode.
        id: InodeId,
        /// When.
        at_ms: u64,
    },
    /// The disks that have the bytes of a file.
    Group {
        /// The file.
        id: InodeId,
        /// The disks.
        group: CopyGroup,
    },
    /// The acknowledged length of a file.
    Length {
        /// The file.
        id: InodeId,
        /// The length.
        length: u64,
        /// When.
        at_ms: u64,
    },
    /// The lease of a file was granted, or has ended.
    Lease {
        /// The file.
        id: InodeId,
        /// The lease from now on.
        lease: WriterLease,
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
    /// The dataservers that keep copies of the log from now on.
    Keepers {
        /// The disks of these dataservers.
        disks: Vec<DiskId>,
    },
    /// Sets both counts of the log. A compacted log ends with this record, because its other
    /// records are fewer than the changes that were made.
    Counted {
        /// Number of the nameserver's last life.
        starts: u64,
        /// Number of changes that all lives of the nameserver have made.
        changes: u64,
    },
    /// The next number of an inode. Numbers are never given twice.
    Next {
        /// The number. The term in the number is ignored.
        next: InodeId,
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

fn count(id: InodeId) -> u64 {
    id.0 & ((1 << COUNT_BITS) - 1)
}

impl NamespaceChange {
    /// A record that changes nothing. A call without a change writes this record, so that its
    /// effects wait for all earlier records.
    pub(crate) const NOTHING: Self = Self::Next { next: InodeId(0) };

    /// Several changes as one record, of which a crash leaves all or none.
    pub(crate) fn together(mut records: Vec<Self>) -> Self {
        match records.len() {
            0 | 1 => records.pop().unwrap_or(Self::NOTHING),
            _ => Self::All { records },
        }
    }
}

/// All names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The name of the cluster.
    pub cluster: u64,
    inodes: BTreeMap<InodeId, Inode>,
    /// The name of each inode in its directory.
    names: BTreeMap<InodeId, String>,
    /// The count of the next number of an inode.
    next: u64,
    /// The terms of this log, each with the count of its first number, in the order of the counts.
    terms: Vec<(u64, u64)>,
    /// Disks that will never come back.
    gone: BTreeSet<DiskId>,
    /// Disks that all copies shall leave.
    leaving: BTreeSet<DiskId>,
    /// Disks that keep copies of the log.
    keepers: BTreeSet<DiskId>,
    /// Number of the nameserver's present life. A rebuild adds lives that a missing keeper may have
    /// heard of.
    starts: u64,
    /// Number of changes that all lives of the nameserver have made. A rebuild adds changes that a
    /// missing keeper may have.
    changes: u64,
}

impl Default for Namespace {
    fn default() -> Self {
        let root = Inode {
            parent: ROOT,
            owner: "evenfall".into(),
            group: "supergroup".into(),
            mode: 0o755,
            modified_ms: 0,
            accessed_ms: 0,
            kind: InodeKind::Directory(BTreeMap::new()),
        };
        let (next, terms) = (ROOT.0 + 1, vec![(0, 0)]);
        let inodes = [(ROOT, root)].into();
        Self {
            cluster: 0,
            inodes,
            names: BTreeMap::new(),
            next,
            terms,
            gone: BTreeSet::new(),
            leaving: BTreeSet::new(),
            keepers: BTreeSet::new(),
            starts: 0,
            changes: 0,
        }
    }
}

impl Namespace {
    /// All inodes, by number.
    pub fn inodes(&self) -> &BTreeMap<InodeId, Inode> {
        &self.inodes
    }

    /// Whether a disk will never come back.
    pub fn is_gone(&self, disk: DiskId) -> bool {
        self.gone.contains(&disk)
    }

    /// Whether the number of an inode was given in this log. A number that was given and has no
    /// inode belongs to a deleted file. A number that was not given in this log comes from a
    /// nameserver with a longer log, as after an old log is put back.
    pub fn has_given(&self, id: InodeId) -> bool {
        let Some(at) = self.terms.iter().position(|(term, _)| *term == id.0 >> COUNT_BITS) else {
            return false;
        };
        let end = self.terms.get(at + 1).map_or(self.next, |(_, from)| *from);
        (self.terms[at].1..end).contains(&count(id))
    }

    /// The record that begins a term. A term is a random number, so that a nameserver with an old
    /// log gives no number a second time.
    pub(crate) fn begin_term(&self, mut random: impl FnMut() -> u64) -> NamespaceChange {
        let mut term = random() >> (64 - TERM_BITS);
        while self.terms.iter().any(|(known, _)| *known == term) {
            term = random() >> (64 - TERM_BITS);
        }
        NamespaceChange::Term { term, from: self.next }
    }

    /// The number that the inode `at` of the next new inodes gets.
    fn number(&self, at: usize) -> InodeId {
        InodeId(self.term() << COUNT_BITS | (self.next + at as u64))
    }

    /// Disks that keep copies of the log.
    pub fn keepers(&self) -> &BTreeSet<DiskId> {
        &self.keepers
    }

    /// Number of the nameserver's present life. A rebuild adds lives that a missing keeper may have
    /// heard of.
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// Number of changes that all lives of the nameserver have made. A rebuild adds changes that a
    /// missing keeper may have.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The term of the nameserver's present life.
    pub(crate) fn term(&self) -> u64 {
        self.terms.last().map_or(0, |(term, _)| *term)
    }

    /// Whether all copies shall leave a disk.
    pub fn is_leaving(&self, disk: DiskId) -> bool {
        self.leaving.contains(&disk)
    }

    /// A file by its number.
    pub fn file(&self, id: InodeId) -> Option<&File> {
        match &self.inodes.get(&id)?.kind {
            InodeKind::File(file) => Some(file),
            InodeKind::Directory(_) => None,
        }
    }

    /// The path of an inode.
    pub fn path(&self, id: InodeId) -> String {
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
    /// [`FilesRefusal::NotFound`], [`FilesRefusal::NotDirectory`] or [`FilesRefusal::Invalid`].
    pub fn find(&self, path: &str) -> Result<(InodeId, &Inode), FilesRefusal> {
        self.found(None, path)
    }

    /// The inode of a path, if the caller may search the directories on the way.
    ///
    /// # Errors
    /// Those of [`find`](Self::find), and [`FilesRefusal::Denied`].
    pub fn find_as(&self, caller: &Caller, path: &str) -> Result<(InodeId, &Inode), FilesRefusal> {
        self.found(Some(caller), path)
    }

    fn found(
        &self,
        caller: Option<&Caller>,
        path: &str,
    ) -> Result<(InodeId, &Inode), FilesRefusal> {
        let names = names(path)?;
        let (id, depth) = self.walk(caller, &names)?;
        match depth == names.len() {
            true => Ok((id, &self.inodes[&id])),
            false => Err(FilesRefusal::NotFound(path.to_owned())),
        }
    }

    /// The last inode on the way that exists, and how many names lead to that inode. A caller has
    /// to have the right to search each directory on the way.
    fn walk(
        &self,
        caller: Option<&Caller>,
        names: &[&str],
    ) -> Result<(InodeId, usize), FilesRefusal> {
        let mut id = ROOT;
        for (depth, name) in names.iter().enumerate() {
            let InodeKind::Directory(entries) = &self.inodes[&id].kind else {
                return Err(FilesRefusal::NotDirectory(self.path(id)));
            };
            if let Some(caller) = caller {
                self.check_access(caller, id, rights::EXECUTE)?;
            }
            match entries.get(*name) {
                Some(next) => id = *next,
                None => return Ok((id, depth)),
            }
        }
        Ok((id, names.len()))
    }

    /// Makes a change. Returns the files that are gone.
    pub fn apply(&mut self, record: NamespaceChange) -> Vec<(InodeId, CopyGroup)> {
        let mut gone = Vec::new();
        // A record of several changes is not counted, because each of its changes is counted.
        self.changes += u64::from(!matches!(record, NamespaceChange::All { .. }));
        match record {
            NamespaceChange::All { records } => {
                gone.extend(records.into_iter().flat_map(|record| self.apply(record)));
            }
            NamespaceChange::Keepers { disks } => self.keepers = disks.into_iter().collect(),
            NamespaceChange::Counted { starts, changes } => {
                (self.starts, self.changes) = (starts, changes)
            }
            NamespaceChange::Cluster { cluster } => self.cluster = cluster,
            NamespaceChange::DiskGone { disk } => {
                self.gone.insert(disk);
                self.leaving.remove(&disk);
            }
            NamespaceChange::Leaving { disk, is_leaving: true } => drop(self.leaving.insert(disk)),
            NamespaceChange::Leaving { disk, .. } => drop(self.leaving.remove(&disk)),
            NamespaceChange::Next { next } => self.next = self.next.max(count(next)),
            NamespaceChange::Term { term, from } => {
                // A term in which no number was given is forgotten.
                self.terms.retain(|(_, begun)| *begun < from);
                self.terms.push((term, from));
                self.starts += 1;
            }
            NamespaceChange::Inode { id, name, inode } => self.put(id, name, inode),
            NamespaceChange::Moved { id, parent, name, at_ms } => {
                self.leave(id, at_ms);
                self.enter(parent, name, id, at_ms);
                if let Some(inode) = self.inodes.get_mut(&id) {
                    inode.parent = parent;
                }
            }
            NamespaceChange::Gone { id, at_ms } => {
                self.leave(id, at_ms);
                let mut rest = vec![id];
                while let Some(id) = rest.pop() {
                    self.names.remove(&id);
                    match self.inodes.remove(&id).map(|inode| inode.kind) {
                        Some(InodeKind::Directory(entries)) => rest.extend(entries.values()),
                        Some(InodeKind::File(file)) => gone.push((id, file.group)),
                        None => {}
                    }
                }
            }
            NamespaceChange::Group { id, group } => {
                if let Some(file) = self.file_mut(id) {
                    file.group = group;
                }
            }
            NamespaceChange::Lease { id, lease } => {
                if let Some(file) = self.file_mut(id) {
                    file.lease = lease;
                }
            }
            NamespaceChange::Length { id, length, at_ms } => {
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

    /// Takes the state of an inode. A new inode has a name.
    fn put(&mut self, id: InodeId, name: Option<String>, mut inode: Inode) {
        self.next = self.next.max(count(id) + 1);
        if let Some(name) = name {
            self.enter(inode.parent, name, id, inode.modified_ms);
        } else if let InodeKind::Directory(new) = &mut inode.kind
            && let Some(Inode { kind: InodeKind::Directory(old), .. }) = self.inodes.get_mut(&id)
        {
            *new = core::mem::take(old);
        }
        self.inodes.insert(id, inode);
    }

    fn file_mut(&mut self, id: InodeId) -> Option<&mut File> {
        match &mut self.inodes.get_mut(&id)?.kind {
            InodeKind::File(file) => Some(file),
            InodeKind::Directory(_) => None,
        }
    }

    fn enter(&mut self, parent: InodeId, name: String, id: InodeId, at_ms: u64) {
        if let Some(inode) = self.inodes.get_mut(&parent)
            && let InodeKind::Directory(entries) = &mut inode.kind
        {
            entries.insert(name.clone(), id);
            inode.modified_ms = inode.modified_ms.max(at_ms);
            self.names.insert(id, name);
        }
    }

    fn leave(&mut self, id: InodeId, at_ms: u64) {
        let parent = self.inodes.get(&id).map(|inode| inode.parent);
        if let (Some(parent), Some(name)) = (parent, self.names.get(&id))
            && let Some(inode) = self.inodes.get_mut(&parent)
            && let InodeKind::Directory(entries) = &mut inode.kind
        {
            entries.remove(name);
            inode.modified_ms = inode.modified_ms.max(at_ms);
        }
    }

    /// Records that make this state out of an empty state. Directories come before their entries.
    pub fn records(&self) -> Vec<NamespaceChange> {
        let next = NamespaceChange::Next { next: InodeId(self.next) };
        let mut records = vec![NamespaceChange::Cluster { cluster: self.cluster }, next];
        let terms = self.terms.iter();
        records
            .extend(terms.map(|(term, from)| NamespaceChange::Term { term: *term, from: *from }));
        records.extend(self.gone.iter().map(|disk| NamespaceChange::DiskGone { disk: *disk }));
        let leaving = self.leaving.iter();
        records
            .extend(leaving.map(|disk| NamespaceChange::Leaving { disk: *disk, is_leaving: true }));
        let mut rest = vec![ROOT];
        while let Some(id) = rest.pop() {
            let mut inode = self.inodes[&id].clone();
            if let InodeKind::Directory(entries) = &mut inode.kind {
                rest.extend(core::mem::take(entries).values());
            }
            records.push(NamespaceChange::Inode { id, name: self.names.get(&id).cloned(), inode });
        }
        // Entering a child changes the time of its directory, so the times come again at the end.
        let directories =
            self.inodes.iter().filter(|(_, i)| matches!(i.kind, InodeKind::Directory(_)));
        records.extend(directories.map(|(id, inode)| {
            let kind = InodeKind::Directory(BTreeMap::new());
            NamespaceChange::Inode { id: *id, name: None, inode: Inode { kind, ..inode.clone() } }
        }));
        records.push(NamespaceChange::Keepers { disks: self.keepers.iter().copied().collect() });
        records.push(NamespaceChange::Counted { starts: self.starts, changes: self.changes });
        records
    }
}

#[cfg(test)]
mod tests;
