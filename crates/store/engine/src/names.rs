//! Names of files: the number of each file, the meaning of its records, and the node that may write
//! it.
//!
//! ```text
//!  Names ──> Embedded   one redb file; the lock of the directory keeps a second writer out
//!       └──> ClusterMembership   one node's, in names that several nodes share
//!              └─ Member    in a Cluster; a lease keeps a second writer out
//!                   ├─ Lease       held by a thread, asked before anything is acknowledged
//!                   └─ NameService Etcd or OrderedNames: keys with transactions and leases
//! ```
//!
//! Each life of a store node has a token that is greater than all before, and claims files with it.
//! Every segment, tail, block of metadata and journal frame carries the token. Every later change
//! of a file's entry succeeds only while the entry still has the token.

pub mod cluster;
pub mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod lease;
pub mod membership;
pub mod name_service;
#[cfg(feature = "keys")]
pub mod ordered;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use evenfall_store_format::retention::Retention;
use evenfall_store_format::{FileId, Schema};
use serde::{Deserialize, Serialize};

use crate::DiskDirectory;
use embedded::Embedded;
use membership::ClusterMembership;

/// The file in the store's directory.
pub const FILE: &str = "names.redb";

/// Takeovers that an entry remembers. A node that was away during more takeovers has all its
/// records put aside.
const FORKS_MAX: usize = 64;

/// The entry of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The file's number.
    pub id: FileId,
    /// Meaning of the records.
    pub schema: Schema,
    /// The store node that may append.
    pub primary: u32,
    /// The token with which the primary has claimed the file. No greater token was ever given out
    /// for the file.
    pub token: u32,
    /// Place of the file's metadata node among all nodes.
    pub slot: u32,
    /// First record that is kept.
    #[serde(default)]
    pub first: u64,
    /// How long and how much of the file is kept.
    #[serde(default)]
    pub retention: Retention,
    /// Token of the life with the newest publication in the object store; zero for none.
    #[serde(default)]
    pub listed: u32,
    /// The last takeovers by other nodes, each with its token and the number of records that the
    /// file had. A node that comes back learns from them which of its records are no part of the
    /// file.
    #[serde(default)]
    pub forks: Vec<(u32, u64)>,
    /// The node whose journal has the records that were acknowledged at `replica`. While the
    /// primary is away, no other node may take the file over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<u32>,
    /// The nodes that serve reads of the file beside its primary; without any, all nodes do. Each
    /// node that serves a file caches what its readers read, and asks the primary for new records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readers: Vec<u32>,
    /// Whether the file is being deleted. Its name is deleted last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_deleted: bool,
    /// For a copy of another node's file, the token of the primary that it follows. Only the
    /// directory with the copy has this value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u32>,
}

impl Entry {
    fn new(id: FileId, schema: &Schema, primary: u32, token: u32) -> Self {
        let (slot, schema) = ((id.0 - 1) as u32, schema.clone());
        let (first, listed, retention) = (0, 0, Retention::default());
        let forks = Vec::new();
        Self {
            id,
            schema,
            primary,
            token,
            slot,
            first,
            retention,
            listed,
            forks,
            replica: None,
            readers: Vec::new(),
            is_deleted: false,
            copies: None,
        }
    }

    /// Remembers a takeover, which may have been tried before.
    pub(super) fn fork(&mut self, records: u64) {
        self.forks.retain(|(by, _)| *by != self.token);
        if self.forks.len() >= FORKS_MAX {
            self.forks.remove(0);
        }
        self.forks.push((self.token, records));
    }

    /// Whether another node took the file over after a life of this token.
    pub(super) fn has_forked_since(&self, token: u32) -> bool {
        self.forks.iter().any(|(by, _)| *by > token)
    }

    /// Number of records after which a life of this token and the file have parted.
    pub(super) fn forked_at(&self, token: u32) -> u64 {
        let later = self.forks.iter().filter(|(by, _)| *by > token);
        later.map(|(_, records)| *records).min().unwrap_or(0)
    }
}

/// A file of which this node is the primary from now on.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Its name.
    pub name: String,
    /// Its entry.
    pub entry: Entry,
    /// Whether this node was the primary before.
    pub was_ours: bool,
}

/// Why the directory of names did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NamesError {
    /// This build has no names at such an address: it lacks this feature.
    Lacks(&'static str),
    /// The directory did not answer in time. The request may have been carried out or not.
    Unavailable(String),
    /// The directory refused, or is damaged. The text is the directory's own.
    Failed(String),
    /// The node's lease has run out, so nothing may be acknowledged.
    LeaseLost {
        /// The store node.
        node: u32,
        /// Whether the lease is over for this life. Otherwise the directory of names was not
        /// reached in time, and the lease may still be renewed.
        is_over: bool,
    },
    /// Another node is the file's primary.
    NotPrimary {
        /// The file's name.
        file: String,
        /// Number of the primary.
        primary: u32,
        /// Address of the primary, if it serves one.
        address: Option<String>,
        /// Whether the primary holds a lease.
        is_alive: bool,
    },
    /// The names give the reads of the file to other nodes.
    NotReader {
        /// The file's name.
        file: String,
        /// The nodes that serve reads of it, with their addresses.
        readers: Vec<(u32, Option<String>)>,
    },
    /// The file of this name is being deleted.
    Deleted {
        /// The file's name.
        file: String,
    },
    /// Another node has claimed the file since.
    Fenced {
        /// The file.
        file: FileId,
        /// Our token.
        token: u32,
        /// The token in force.
        newer: u32,
    },
}

impl std::fmt::Display for NamesError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lacks(feature) => write!(
                f,
                "names at {feature}:// are not in this build: it lacks the feature {feature}"
            ),
            Self::Unavailable(what) => write!(f, "the directory of names does not answer: {what}"),
            Self::Failed(what) => write!(f, "directory of names: {what}"),
            Self::LeaseLost { node, is_over: true } => write!(
                f,
                "lease lost: that of store node {node} is over, another node may have its files; \
                 open the store again"
            ),
            Self::LeaseLost { node, is_over: false } => write!(
                f,
                "lease lost: store node {node} could not renew it in time; appends go on if the \
                 directory of names answers again before another node takes over"
            ),
            Self::NotPrimary { file, primary, address, is_alive } => {
                write!(f, "store node {primary} is the primary of {file}")?;
                match (address, is_alive) {
                    (Some(address), _) => write!(f, ": append at tcp://{address}"),
                    (None, true) => f.write_str(", and holds its lease: append there"),
                    (None, false) => f.write_str(", and has no lease any more: take over with it"),
                }
            }
            Self::NotReader { file, readers } => {
                write!(f, "this node serves no reads of {file}: read it at")?;
                for (place, (node, address)) in readers.iter().enumerate() {
                    f.write_str(if place == 0 { " " } else { ", " })?;
                    match address {
                        Some(address) => write!(f, "tcp://{address}")?,
                        None => write!(f, "store node {node}, which is away")?,
                    }
                }
                Ok(())
            }
            Self::Deleted { file } => write!(
                f,
                "the deletion of {file} was cut short: delete it once more, or open the store again"
            ),
            Self::Fenced { file, token, newer } => write!(
                f,
                "file {file}: token {token} is not valid any more, {newer} is: another node is \
                 its primary"
            ),
        }
    }
}

impl std::error::Error for NamesError {}

/// The settings of a store that belongs to a cluster.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Address of the cluster: `etcd://127.0.0.1:2379/name` or `keys://127.0.0.1:21811/name`.
    /// Several endpoints are separated by commas.
    pub address: String,
    /// Time of the lease. A node that is not heard of for this long may be replaced. Whole seconds,
    /// 2 at least.
    pub lease: Duration,
    /// Whether this node takes over files whose primary has no lease any more.
    pub take_over: bool,
}

/// The directory of names, as a writing store uses it.
pub struct Names {
    local: Embedded,
    member: Option<Box<dyn ClusterMembership>>,
    node: u32,
}

/// The setting under which a directory remembers the cluster's address.
const CLUSTER: &str = "cluster";
/// The setting under which a directory remembers where its objects are, when they are not below it.
const OBJECTS: &str = "objects";

impl Names {
    /// Opens or creates the file. With a cluster, it joins the cluster under the number that the
    /// file remembers, and waits while another process holds that number.
    ///
    /// # Errors
    /// When the file cannot be opened or is damaged, or the cluster cannot be joined.
    pub fn open(
        path: &Path,
        node: u32,
        cluster: Option<&ClusterConfig>,
    ) -> Result<Self, NamesError> {
        let local = Embedded::open(path)?;
        let joined = local.setting(CLUSTER)?;
        let Some(config) = cluster else {
            return match joined {
                None => Ok(Self { local, member: None, node }),
                Some(there) => Err(NamesError::Failed(format!(
                    "this directory has its names at {there}: open it with them"
                ))),
            };
        };
        if joined.is_none() && !local.list()?.is_empty() {
            let what = "this directory has files with names of its own: begin with an empty one";
            return Err(NamesError::Failed(what.into()));
        }
        Self::join(local, config)
    }

    fn join(local: Embedded, config: &ClusterConfig) -> Result<Self, NamesError> {
        /// The setting under which a directory remembers its number in a cluster.
        const NODE: &str = "node";
        let known = local.setting(NODE)?.and_then(|number| number.parse().ok());
        let cluster = cluster::Cluster::open(&config.address)?;
        let node = match known {
            Some(node) => node,
            None => cluster.allot_node()?,
        };
        local.set(NODE, &node.to_string())?;
        local.set(CLUSTER, &config.address)?;
        let member = cluster::Member::join(cluster, node, config.lease)?;
        Ok(Self { local, member: Some(Box::new(member)), node })
    }

    /// A copy of the file in memory, as it is; empty when the file is missing.
    ///
    /// # Errors
    /// When the file cannot be read or is damaged.
    pub fn open_to_read(path: &Path) -> Result<Self, NamesError> {
        Ok(Self { local: Embedded::open_to_read(path)?, member: None, node: 0 })
    }

    /// Checks the file's own checksums without changing the file.
    ///
    /// # Errors
    /// The damage of the file.
    pub fn check(path: &Path) -> Result<(), NamesError> {
        Embedded::check(path)
    }

    /// Where the objects of a store in this directory are, as the directory remembers; `None` for a
    /// store with its objects below itself.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn objects_of(directory: &Path) -> Result<Option<String>, NamesError> {
        Self::look_into(directory)?.setting(OBJECTS)
    }

    /// The cluster that a store in this directory belongs to, as the directory remembers.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn cluster_of(directory: &Path) -> Result<Option<String>, NamesError> {
        Self::look_into(directory)?.setting(CLUSTER)
    }

    /// The file of a directory that this process has not opened.
    fn look_into(directory: &Path) -> Result<Embedded, NamesError> {
        let path = directory.join(FILE);
        Embedded::open_to_read(&path).or_else(|_| {
            // A copy of a file that another process is writing looks damaged. Under the lock of the
            // directory nobody writes.
            let locked = DiskDirectory::open_to_read(directory);
            let _locked = locked.map_err(|error| NamesError::Failed(error.to_string()))?;
            Embedded::open_to_read(&path)
        })
    }

    /// Remembers where the objects are. A cluster has all objects in one place.
    ///
    /// # Errors
    /// When the objects are elsewhere.
    pub fn settle_objects(&self, directory: &Path, place: &str) -> Result<(), NamesError> {
        let absolute = match place.contains("://") {
            true => place.to_owned(),
            false => std::fs::canonicalize(place)
                .map_err(|error| NamesError::Failed(format!("{place}: {error}")))?
                .display()
                .to_string(),
        };
        if let Some(member) = &self.member {
            member.set_objects(&absolute)?;
        }
        let below = directory.join("objects");
        let own = std::fs::canonicalize(&below).unwrap_or(below).display().to_string();
        let there = match self.local.setting(OBJECTS)? {
            None if self.local.list()?.is_empty() => absolute.clone(),
            known => known.unwrap_or_else(|| own.clone()),
        };
        if there != absolute {
            let what = format!("the objects of this store are at {there}, not at {absolute}");
            return Err(NamesError::Failed(what));
        }
        if absolute == own { Ok(()) } else { self.local.set(OBJECTS, &absolute) }
    }

    /// Number of this store node.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Token of this life; zero before the claim.
    pub fn token(&self) -> u32 {
        self.member().map_or_else(|| self.local.token(), ClusterMembership::token)
    }

    /// The part in a cluster, if there is one.
    pub fn member(&self) -> Option<&dyn ClusterMembership> {
        self.member.as_deref()
    }

    /// The notes of the directory besides its names.
    pub fn local(&self) -> &Embedded {
        &self.local
    }

    /// Whether a request may be acknowledged now.
    ///
    /// # Errors
    /// [`NamesError::LeaseLost`].
    pub fn check_lease(&self) -> Result<(), NamesError> {
        self.member().map_or(Ok(()), ClusterMembership::check_lease)
    }

    /// Whether a finished request may be acknowledged. A request that outlives this node
    /// (`is_shared`) is acknowledged only when the directory of names itself states that our lease
    /// holds. A node that takes over later has then read all that we wrote before, whatever the
    /// clocks do.
    ///
    /// # Errors
    /// [`NamesError::LeaseLost`]; [`NamesError::Unavailable`].
    pub fn confirm(&self, is_shared: bool) -> Result<(), NamesError> {
        self.check_lease()?;
        match &self.member {
            Some(member) if is_shared => member.confirm(),
            _ => Ok(()),
        }
    }

    /// The names whose primary this node is, or last was, in order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn list(&self) -> Result<Vec<(String, Entry)>, NamesError> {
        self.local.list()
    }

    /// Whether the directory of names has no file.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn is_empty(&self) -> Result<bool, NamesError> {
        match &self.member {
            Some(member) => Ok(member.list()?.is_empty()),
            None => Ok(self.local.list()?.is_empty()),
        }
    }

    /// Gives new names numbers, slots and this life's token. Existing names keep their entries.
    ///
    /// # Errors
    /// When the directory cannot be written; [`NamesError::NotPrimary`].
    pub fn create(&self, files: &[(String, Schema)]) -> Result<Vec<(Entry, bool)>, NamesError> {
        let Some(member) = &self.member else { return self.local.create(files, self.node) };
        let created = member.create(files)?;
        let named = files.iter().zip(&created).map(|((name, _), (entry, _))| (name, entry));
        let new: Vec<_> = named.map(|(name, entry)| (name.clone(), entry.clone())).collect();
        self.local.restore(&new)?;
        Ok(created)
    }

    /// Makes this node the primary of its files, with the token of a new life. Without a cluster
    /// these are all files of the directory. In a cluster these are the files that the node had,
    /// and, if the settings say so, files whose primary has no lease any more. Copies in a
    /// directory without a cluster are claimed if the settings say so.
    ///
    /// Only a life that has just begun (`is_new`) may claim every such file: later, the last
    /// primary may have a greater token than this life. Files that this life has claimed and that
    /// are not `open` are returned once more.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn claim(
        &self,
        take_over: bool,
        is_new: bool,
        open: &BTreeSet<FileId>,
    ) -> Result<Vec<Claimed>, NamesError> {
        let Some(member) = &self.member else { return self.local.claim_all(self.node, take_over) };
        let claimed = member.claim(take_over, is_new, open)?;
        let copy: Vec<_> = claimed.iter().map(|c| (c.name.clone(), c.entry.clone())).collect();
        self.local.restore(&copy)?;
        Ok(claimed)
    }

    /// Never again gives out a file number up to this number, and without a cluster no token
    /// either.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn reserve(&self, file: FileId, token: u32) -> Result<(), NamesError> {
        if let Some(member) = &self.member {
            return member.reserve(file);
        }
        self.local.reserve(file, token)
    }

    /// Notes that a file is being deleted.
    ///
    /// # Errors
    /// When the directory cannot be written; [`NamesError::Fenced`].
    pub fn bury(&self, name: &str) -> Result<(), NamesError> {
        self.change(&[name], &|entry| entry.is_deleted = true)
    }

    /// Changes the retention of a file.
    ///
    /// # Errors
    /// When the directory cannot be written; [`NamesError::Fenced`].
    pub fn keep(&self, name: &str, first: u64, retention: Retention) -> Result<(), NamesError> {
        self.change(&[name], &|entry| (entry.first, entry.retention) = (first, retention))
    }

    /// Notes that this life continues another node's file after this many records.
    ///
    /// # Errors
    /// When the directory cannot be written; [`NamesError::Fenced`].
    pub fn fork(&self, name: &str, records: u64) -> Result<(), NamesError> {
        self.change(&[name], &|entry| entry.fork(records))
    }

    /// Notes that this node's journal and that of `replica` have the records acknowledged at
    /// `replica`.
    ///
    /// # Errors
    /// When the directory cannot be written; [`NamesError::Fenced`].
    pub fn replicate(&self, name: &str, replica: u32) -> Result<(), NamesError> {
        self.change(&[name], &|entry| entry.replica = Some(replica))
    }

    /// Begins or continues a copy of this file of another node. In a cluster the copy has the
    /// number of the original. In a directory with its own names it has a number of that directory.
    ///
    /// # Errors
    /// When the file cannot be written; [`NamesError::Failed`] when the cluster has no such file.
    pub fn copy(&self, name: &str, original: &Entry) -> Result<Entry, NamesError> {
        let mut entry = match &self.member {
            Some(member) => {
                member.find(name)?.filter(|e| e.id == original.id).ok_or_else(|| {
                    NamesError::Failed(format!("this cluster has no file {name} of that number"))
                })?
            }
            None => match self.local.find(name)? {
                Some(there) => there,
                None => self.local.allot(original, self.node)?,
            },
        };
        entry.copies = Some(original.token);
        self.local.restore(&[(name.to_owned(), entry.clone())])?;
        Ok(entry)
    }

    /// Forgets a copy. The file continues at its primary.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn remove_copy(&self, name: &str) -> Result<(), NamesError> {
        self.local.remove(name)
    }

    /// Notes that the newest publication of these files is of this life.
    ///
    /// # Errors
    /// When the directory cannot be written; [`NamesError::Fenced`].
    pub fn list_published(&self, names: &[&str]) -> Result<(), NamesError> {
        self.change(names, &|entry| entry.listed = entry.token)
    }

    fn change(&self, names: &[&str], change: &dyn Fn(&mut Entry)) -> Result<(), NamesError> {
        if let Some(member) = &self.member {
            member.change(names, change)?;
        }
        self.local.change(names, change)
    }

    /// Forgets a name. Its number is never used again.
    ///
    /// # Errors
    /// When the directory cannot be written; [`NamesError::Fenced`].
    pub fn remove(&self, name: &str) -> Result<(), NamesError> {
        if let Some(member) = &self.member {
            member.remove(name)?;
        }
        self.local.remove(name)
    }

    /// Restores names from the objects, after the directory itself was lost.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn restore(&self, files: &[(String, Entry)]) -> Result<(), NamesError> {
        match &self.member {
            Some(member) => member.restore(files),
            None => self.local.restore(files),
        }
    }

    /// Gives the lease back, so that no node has to wait for its end.
    pub fn leave(&self) {
        if let Some(member) = &self.member {
            member.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_another_process_is_writing_is_not_called_damaged() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join(FILE), "half a page").unwrap();
        let said = || Names::objects_of(place.path()).unwrap_err().to_string();
        let busy = "another process has the store open";
        assert!(!said().contains(busy), "{}", said());
        // The lock of a directory refuses a second opening in the same process too.
        let _writer = DiskDirectory::open(place.path()).unwrap();
        assert!(said().contains(busy) && !said().contains("damaged"), "{}", said());
    }
}
