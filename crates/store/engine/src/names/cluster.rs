//! The directory of names of many store nodes, in etcd or in ordered keys.
//!
//! ```text
//!  evenfall/<name>/counters/file, /token, /node     the last number that was given out
//!  evenfall/<name>/objects                          where the objects are
//!  evenfall/<name>/nodes/<node>                     token and address; goes with the node's lease
//!  evenfall/<name>/files/<name of a file>           its entry
//! ```
//!
//! In etcd each key has a slash in front.
//!
//! A node writes on two conditions in one transaction: its key among the nodes belongs to its own
//! lease, and the entry is unchanged since it was read, with the node's own token. To take a file
//! over, the node needs a third condition: the old primary has no key among the nodes any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenfall_store_format::{FileId, Schema};
use serde::{Deserialize, Serialize};

use super::lease::Lease;
use super::membership::ClusterMembership;
use super::name_service::{self, NameService};
use super::{Claimed, Entry, NamesError};

/// Files of one transaction. etcd takes 128 conditions and steps, ordered keys take more.
const BATCH_FILES: usize = 50;
/// Bytes of the entries of one transaction. etcd takes 1.5 MiB and ordered keys 1 MiB.
const BATCH_BYTES: usize = 512 << 10;
/// Times that a transaction is tried while other nodes write.
const TRIES: u32 = 50;
/// How often a node looks while it waits for its number.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How much later than promised an unrenewed lease may end, because etcd looks twice a second, and
/// ordered keys four times.
const LEASE_SLACK: Duration = Duration::from_secs(3);

/// A store node that holds a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterNode {
    /// Token of the node's life.
    pub token: u32,
    /// Address at which the node serves, if it does.
    pub address: Option<String>,
}

/// The directory of names as any reader sees it.
pub struct Cluster {
    directory: Arc<dyn NameService>,
    prefix: String,
}

fn failed(what: impl Into<String>) -> NamesError {
    NamesError::Failed(what.into())
}

fn decode<T: serde::de::DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, NamesError> {
    serde_json::from_slice(value).map_err(|error| failed(format!("the key {key}: {error}")))
}

/// Parts of a list, each for one transaction.
fn batches<T>(mut rest: &[T], bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        let mut sum = 0;
        let fits = |one: &&T| {
            sum += bytes(one);
            sum <= BATCH_BYTES
        };
        let count = rest.iter().take(BATCH_FILES).take_while(fits).count().max(1);
        let (batch, later) = rest.split_at(count);
        all.push(batch);
        rest = later;
    }
    all
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

impl Cluster {
    /// Opens `etcd://127.0.0.1:2379/name` or `keys://127.0.0.1:21811/name`. Several endpoints are
    /// separated by commas.
    ///
    /// # Errors
    /// When the text is no such address, or this build lacks the feature. No connection is made
    /// yet.
    pub fn open(address: &str) -> Result<Self, NamesError> {
        let (directory, prefix) = name_service::open(address)?;
        Ok(Self { directory, prefix })
    }

    fn key(&self, rest: impl std::fmt::Display) -> String {
        format!("{}{rest}", self.prefix)
    }

    fn file_key(&self, name: &str) -> String {
        self.key(format_args!("files/{name}"))
    }

    fn node_key(&self, node: u32) -> String {
        self.key(format_args!("nodes/{node:08x}"))
    }

    /// Every name, in order.
    ///
    /// # Errors
    /// [`NamesError::Unavailable`], [`NamesError::Failed`]. All methods have these errors.
    pub fn list(&self) -> Result<Vec<(String, Entry)>, NamesError> {
        let listed = self.listed()?;
        Ok(listed.into_iter().map(|(name, entry, _)| (name, entry)).collect())
    }

    fn listed(&self) -> Result<Vec<(String, Entry, i64)>, NamesError> {
        let prefix = self.key("files/");
        let mut all = Vec::new();
        for found in self.directory.list(&prefix)? {
            let name = found.key.get(prefix.len()..).unwrap_or_default().to_owned();
            all.push((name, decode(&found.key, &found.value)?, found.revision));
        }
        Ok(all)
    }

    /// The entry of this name.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn find(&self, name: &str) -> Result<Option<Entry>, NamesError> {
        let found = self.directory.get(&self.file_key(name))?;
        found.map(|found| decode(&found.key, &found.value)).transpose()
    }

    /// Names the nodes that serve reads of a file beside its primary. Without any, all nodes do.
    /// The nodes learn of it with their next look at the file.
    ///
    /// # Errors
    /// As for [`list`](Self::list). Also when there is no such file.
    pub fn assign_readers(&self, name: &str, readers: &[u32]) -> Result<(), NamesError> {
        let key = self.file_key(name);
        for _ in 0..TRIES {
            let found = self.directory.get(&key)?;
            let found = found.ok_or_else(|| failed(format!("there is no file {name}")))?;
            let entry: Entry = decode(&found.key, &found.value)?;
            let entry = Entry { readers: readers.to_vec(), ..entry };
            let steps = vec![name_service::put(&key, encode(&entry), 0)];
            if self
                .directory
                .commit(vec![name_service::is_unchanged(&key, found.revision)], steps)?
            {
                return Ok(());
            }
        }
        Err(NamesError::Unavailable(format!("{key} changes all the time")))
    }

    /// The nodes that hold a lease.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn nodes(&self) -> Result<BTreeMap<u32, ClusterNode>, NamesError> {
        let prefix = self.key("nodes/");
        let mut nodes = BTreeMap::new();
        for found in self.directory.list(&prefix)? {
            let digits = found.key.get(prefix.len()..).unwrap_or_default();
            let number = u32::from_str_radix(digits, 16)
                .map_err(|_| failed(format!("{}: this is no store node", found.key)))?;
            nodes.insert(number, decode(&found.key, &found.value)?);
        }
        Ok(nodes)
    }

    /// Where the objects are, once a node has noted the place.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn objects(&self) -> Result<Option<String>, NamesError> {
        let found = self.directory.get(&self.key("objects"))?;
        Ok(found.map(|found| String::from_utf8_lossy(&found.value).into_owned()))
    }

    /// Notes where the objects are. The first node to do so decides.
    ///
    /// # Errors
    /// As for [`list`](Self::list). Also when the objects are elsewhere.
    pub fn set_objects(&self, place: &str) -> Result<(), NamesError> {
        let key = self.key("objects");
        self.directory.commit(
            vec![name_service::is_absent(&key)],
            vec![name_service::put(&key, place.to_owned(), 0)],
        )?;
        match self.objects()? {
            Some(there) if there != place => Err(failed(format!(
                "the objects of this directory of names are at {there}, not at {place}"
            ))),
            _ => Ok(()),
        }
    }

    /// The next number of a counter.
    fn allot(&self, counter: &str) -> Result<u64, NamesError> {
        let key = self.key(format_args!("counters/{counter}"));
        for _ in 0..TRIES {
            let (last, seen) = self.counter(&key)?;
            let steps = vec![name_service::put(&key, (last + 1).to_string(), 0)];
            if self.directory.commit(vec![name_service::is_unchanged(&key, seen)], steps)? {
                return Ok(last + 1);
            }
        }
        Err(NamesError::Unavailable(format!("{key} changes all the time")))
    }

    /// Makes a counter go on behind this number at least.
    fn raise(&self, counter: &str, least: u64) -> Result<(), NamesError> {
        let key = self.key(format_args!("counters/{counter}"));
        for _ in 0..TRIES {
            let (last, seen) = self.counter(&key)?;
            let steps = vec![name_service::put(&key, least.to_string(), 0)];
            if last >= least
                || self.directory.commit(vec![name_service::is_unchanged(&key, seen)], steps)?
            {
                return Ok(());
            }
        }
        Err(NamesError::Unavailable(format!("{key} changes all the time")))
    }

    /// A counter and its last change.
    fn counter(&self, key: &str) -> Result<(u64, i64), NamesError> {
        let Some(found) = self.directory.get(key)? else { return Ok((0, 0)) };
        Ok((decode(&found.key, &found.value)?, found.revision))
    }

    /// A number for a store node that has none.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn allot_node(&self) -> Result<u32, NamesError> {
        Ok(self.allot("node")? as u32)
    }
}

/// A store node in a cluster. A node may write as long as its lease holds.
pub struct Member {
    cluster: Cluster,
    node: u32,
    /// Token of this life.
    token: AtomicU32,
    lease: Lease,
}

impl Member {
    /// Takes a lease, and puts the key of this node under it. Waits while another process, or the
    /// last life of this node, still has the key.
    ///
    /// # Errors
    /// As for [`Cluster::list`]. Also when another process keeps the key.
    pub fn join(cluster: Cluster, node: u32, ttl: Duration) -> Result<Self, NamesError> {
        let lease = Lease::take(&cluster.directory, node, ttl)?;
        let key = cluster.node_key(node);
        // The last life may have had a longer lease than this one was granted.
        let end = Instant::now() + lease.ttl().max(ttl) + LEASE_SLACK;
        let value = encode(&ClusterNode { token: 0, address: None });
        loop {
            let condition = vec![name_service::is_absent(&key)];
            let taken = cluster
                .directory
                .commit(condition, vec![name_service::put(&key, value.clone(), lease.id())])?;
            // The answer to an earlier try may have been lost.
            if taken
                || cluster
                    .directory
                    .commit(vec![name_service::has_lease(&key, lease.id())], vec![])?
            {
                break;
            }
            if Instant::now() > end {
                let what = "is held by another process, or by a copy of this directory";
                return Err(failed(format!("store node {node} {what}")));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        cluster.raise("node", node.into())?;
        let token = AtomicU32::new(cluster.allot("token")? as u32);
        let member = Self { cluster, node, token, lease };
        member.serve_at(None)?;
        Ok(member)
    }

    /// A transaction on condition that our lease holds.
    fn commit(
        &self,
        mut compare: Vec<name_service::Condition>,
        steps: Vec<name_service::Step>,
    ) -> Result<bool, NamesError> {
        let key = self.cluster.node_key(self.node);
        compare.push(name_service::has_lease(&key, self.lease.id()));
        self.cluster.directory.commit(compare, steps)
    }

    fn not_primary(&self, name: &str, entry: &Entry) -> Result<NamesError, NamesError> {
        let node = self.cluster.nodes()?.remove(&entry.primary);
        Ok(NamesError::NotPrimary {
            file: name.to_owned(),
            primary: entry.primary,
            is_alive: node.is_some(),
            address: node.and_then(|node| node.address),
        })
    }

    fn create_batch(&self, files: &[(String, Schema)]) -> Result<Vec<(Entry, bool)>, NamesError> {
        let cluster = &self.cluster;
        let counter = cluster.key("counters/file");
        let keys: Vec<String> = files.iter().map(|(name, _)| cluster.file_key(name)).collect();
        for _ in 0..TRIES {
            let (mut last, seen) = cluster.counter(&counter)?;
            let (mut compare, mut steps) =
                (vec![name_service::is_unchanged(&counter, seen)], vec![]);
            let mut entries = Vec::new();
            for ((name, schema), (key, found)) in
                files.iter().zip(keys.iter().zip(cluster.directory.get_all(&keys)?))
            {
                if let Some(found) = found {
                    let entry: Entry = decode(&found.key, &found.value)?;
                    if entry.primary != self.node {
                        return Err(self.not_primary(name, &entry)?);
                    }
                    // A file that has our token and is not open was created by a try whose answer
                    // was lost.
                    entries.push((entry.clone(), entry.token == self.token() && entry.listed == 0));
                    continue;
                }
                last += 1;
                let entry = Entry::new(FileId(last), schema, self.node, self.token());
                compare.push(name_service::is_absent(key));
                steps.push(name_service::put(key, encode(&entry), 0));
                entries.push((entry, true));
            }
            if steps.is_empty() {
                return Ok(entries);
            }
            steps.push(name_service::put(&counter, last.to_string(), 0));
            if self.commit(compare, steps)? {
                return Ok(entries);
            }
            self.confirm()?;
        }
        Err(NamesError::Unavailable("others create files all the time".into()))
    }

    fn claim_batch(
        &self,
        batch: &[(String, Entry, i64)],
        claimed: &mut Vec<Claimed>,
    ) -> Result<bool, NamesError> {
        let (mut compare, mut steps, mut new) = (vec![], vec![], vec![]);
        let others: BTreeSet<u32> = batch.iter().map(|(_, entry, _)| entry.primary).collect();
        for other in others.into_iter().filter(|other| *other != self.node) {
            compare.push(name_service::is_absent(&self.cluster.node_key(other)));
        }
        for (name, entry, seen) in batch {
            let key = self.cluster.file_key(name);
            let was_ours = entry.primary == self.node;
            let entry = Entry { primary: self.node, token: self.token(), ..entry.clone() };
            compare.push(name_service::is_unchanged(&key, *seen));
            steps.push(name_service::put(&key, encode(&entry), 0));
            new.push(Claimed { name: name.clone(), entry, was_ours });
        }
        let done = self.commit(compare, steps)?;
        if done {
            claimed.append(&mut new);
        }
        Ok(done)
    }

    fn rewrite(
        &self,
        names: &[&str],
        step: &dyn Fn(&str, Entry) -> name_service::Step,
    ) -> Result<(), NamesError> {
        let keys: Vec<String> = names.iter().map(|name| self.cluster.file_key(name)).collect();
        for _ in 0..TRIES {
            let mut changes = Vec::new();
            for (key, found) in keys.iter().zip(self.cluster.directory.get_all(&keys)?) {
                let Some(found) = found else { continue };
                let entry: Entry = decode(&found.key, &found.value)?;
                let (file, token, newer) = (entry.id, self.token(), entry.token);
                if (entry.primary, newer) != (self.node, token) {
                    return Err(NamesError::Fenced { file, token, newer });
                }
                changes.push((name_service::is_unchanged(key, found.revision), step(key, entry)));
            }
            let mut is_done = true;
            for batch in batches(&changes, |(_, step)| step.bytes()) {
                let (compare, steps) = batch.iter().cloned().unzip();
                is_done &= self.commit(compare, steps)?;
            }
            if is_done {
                return Ok(());
            }
            // Some of the files may be changed already. They are changed once more.
            self.confirm()?;
        }
        Err(NamesError::Unavailable("others change these files all the time".into()))
    }
}

impl ClusterMembership for Member {
    fn node(&self) -> u32 {
        self.node
    }

    fn token(&self) -> u32 {
        self.token.load(Relaxed)
    }

    fn lease_id(&self) -> i64 {
        self.lease.id()
    }

    fn lease_ttl(&self) -> Duration {
        self.lease.ttl()
    }

    fn check_lease(&self) -> Result<(), NamesError> {
        self.lease.check()
    }

    fn leave(&self) {
        self.lease.give_back();
    }

    fn list(&self) -> Result<Vec<(String, Entry)>, NamesError> {
        self.cluster.list()
    }

    fn find(&self, name: &str) -> Result<Option<Entry>, NamesError> {
        self.cluster.find(name)
    }

    fn nodes(&self) -> Result<BTreeMap<u32, ClusterNode>, NamesError> {
        self.cluster.nodes()
    }

    fn set_objects(&self, place: &str) -> Result<(), NamesError> {
        self.cluster.set_objects(place)
    }

    fn reserve(&self, file: FileId) -> Result<(), NamesError> {
        self.cluster.raise("file", file.0)
    }

    fn serve_at(&self, address: Option<String>) -> Result<(), NamesError> {
        let key = self.cluster.node_key(self.node);
        let value = encode(&ClusterNode { token: self.token(), address });
        self.commit(vec![], vec![name_service::put(&key, value, self.lease.id())]).and_then(
            |done| {
                let over = NamesError::LeaseLost { node: self.node, is_over: true };
                if done { Ok(()) } else { Err(over) }
            },
        )
    }

    fn whose(&self, name: &str) -> Result<Option<NamesError>, NamesError> {
        let found = self.cluster.find(name)?.filter(|entry| entry.primary != self.node);
        found.map(|entry| self.not_primary(name, &entry)).transpose()
    }

    fn create(&self, files: &[(String, Schema)]) -> Result<Vec<(Entry, bool)>, NamesError> {
        let mut all = Vec::new();
        for batch in batches(files, |(name, schema)| 2 * name.len() + encode(schema).len()) {
            all.extend(self.create_batch(batch)?);
        }
        Ok(all)
    }

    fn confirm(&self) -> Result<(), NamesError> {
        match self.commit(vec![], vec![])? {
            true => Ok(()),
            false => Err(NamesError::LeaseLost { node: self.node, is_over: true }),
        }
    }

    fn claim(
        &self,
        take_over: bool,
        is_new: bool,
        open: &BTreeSet<FileId>,
    ) -> Result<Vec<Claimed>, NamesError> {
        let alive: BTreeSet<u32> = self.cluster.nodes()?.into_keys().collect();
        let mut due = self.cluster.listed()?;
        let is_left = |entry: &Entry| {
            let is_ours = (entry.primary, entry.token) == (self.node, self.token());
            is_ours && !open.contains(&entry.id)
        };
        let left = due.iter().filter(|(_, entry, _)| is_left(entry));
        let again = |(name, entry, _): &(String, Entry, i64)| Claimed {
            name: name.clone(),
            entry: entry.clone(),
            was_ours: false,
        };
        let mut claimed: Vec<Claimed> = left.map(again).collect();
        due.retain(|(_, entry, _)| match entry.primary == self.node {
            true => entry.token != self.token(),
            false if !take_over || alive.contains(&entry.primary) => false,
            false => match entry.replica {
                // The replica has more records than the objects, and no other node may continue
                // without them.
                Some(replica) => replica == self.node && is_new,
                None => is_new || entry.token < self.token(),
            },
        });
        for batch in batches(&due, |(name, entry, _)| 2 * name.len() + encode(entry).len()) {
            if self.claim_batch(batch, &mut claimed)? {
                continue;
            }
            self.confirm()?;
            // Another node has changed one of the files. The others can still be claimed.
            for one in batch.chunks(1) {
                self.claim_batch(one, &mut claimed)?;
            }
        }
        Ok(claimed)
    }

    fn is_new_life_due(&self) -> Result<bool, NamesError> {
        let alive = self.cluster.nodes()?;
        Ok(self.cluster.listed()?.iter().any(|(_, entry, _)| {
            let is_orphan = entry.primary != self.node && !alive.contains_key(&entry.primary);
            is_orphan && entry.replica.map_or(entry.token > self.token(), |node| node == self.node)
        }))
    }

    fn change(&self, names: &[&str], change: &dyn Fn(&mut Entry)) -> Result<(), NamesError> {
        names.chunks(BATCH_FILES).try_for_each(|batch| {
            self.rewrite(batch, &|key, mut entry| {
                change(&mut entry);
                name_service::put(key, encode(&entry), 0)
            })
        })
    }

    fn remove(&self, name: &str) -> Result<(), NamesError> {
        self.rewrite(&[name], &|key, _| name_service::delete(key))
    }

    fn restore(&self, files: &[(String, Entry)]) -> Result<(), NamesError> {
        let cluster = &self.cluster;
        let file = files.iter().map(|(_, entry)| entry.id.0).max().unwrap_or(0);
        let token = files.iter().map(|(_, entry)| entry.token).max().unwrap_or(0);
        cluster.raise("file", file)?;
        cluster.raise("token", token.into())?;
        let node = files.iter().map(|(_, entry)| entry.primary).max().unwrap_or(0);
        cluster.raise("node", node.into())?;
        // Our token was given out before the restored tokens were known.
        self.token.store(cluster.allot("token")? as u32, Relaxed);
        self.serve_at(None)?;
        for (name, entry) in files {
            let key = cluster.file_key(name);
            self.commit(
                vec![name_service::is_absent(&key)],
                vec![name_service::put(&key, encode(entry), 0)],
            )?;
        }
        Ok(())
    }
}
