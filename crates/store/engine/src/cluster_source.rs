//! [`ClusterSource`]: any file of a cluster, from any node.
//!
//! Published records come from the object store, and the file's primary learns nothing of the read.
//! Records that are not published yet come from the primary, over its protocol. The primary is
//! asked only if the reader wants these records and the request reaches beyond the published end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Instant;

use super::archive::ArchivedFile;
use super::names::cluster::Cluster;
use super::source::{Each, poll_ends};
use super::{
    Bucket, BucketOptions, Client, ConnectOptions, Entry, FileListing, Freshness, KnownEnd,
    NamesError, RecordSource, StoreError, lock,
};
use evenfall_core::UserKey;
use evenfall_store_format::Error;

/// The files of a cluster.
pub struct ClusterSource {
    cluster: Cluster,
    bucket: Bucket,
    freshness: Freshness,
    /// How primaries are asked.
    options: ConnectOptions,
    /// Connections without a request under way.
    connections: Mutex<BTreeMap<SocketAddr, Client>>,
}

impl ClusterSource {
    /// Opens the cluster behind this directory of names. The directory also tells where the objects
    /// are, unless `objects` does.
    ///
    /// # Errors
    /// When the directory does not answer, or the place of the objects is unknown.
    pub fn open(
        names: &str,
        objects: Option<&str>,
        options: &BucketOptions,
        freshness: Freshness,
    ) -> Result<Self, StoreError> {
        let cluster = Cluster::open(names)?;
        let known = match objects {
            Some(place) => Some(place.to_owned()),
            None => cluster.objects()?,
        };
        let Some(place) = known else {
            let what = "no store node has said where its objects are";
            return Err(NamesError::Failed(what.into()).into());
        };
        let bucket = Bucket::open_to_read(&place, options)?;
        // A node that has lost the file since must not answer with what is published.
        let options = ConnectOptions { freshness: Freshness::Primary, ..ConnectOptions::default() };
        let connections = Mutex::default();
        Ok(Self { cluster, bucket, freshness, options, connections })
    }

    /// The same source, which asks primaries as the user of this key.
    #[must_use]
    pub fn with_key(mut self, key: Option<UserKey>) -> Self {
        self.options.key = key;
        self
    }

    fn entry(&self, name: &str) -> Result<Entry, StoreError> {
        let unknown = || Error::UnknownFile { file: name.into() };
        let found = self.cluster.find(name)?.filter(|entry| !entry.is_deleted);
        Ok(found.ok_or_else(unknown)?)
    }

    /// The published part of the file; `None` when no part is published.
    fn published(&self, name: &str) -> Result<(Entry, Option<ArchivedFile<'_>>), StoreError> {
        let entry = self.entry(name)?;
        if entry.listed == 0 {
            return Ok((entry, None));
        }
        match ArchivedFile::open(&self.bucket, &entry) {
            Ok(file) => Ok((entry, Some(file))),
            // A new primary may have published the file since, and removed the objects of the old
            // primary.
            Err(error) => {
                let newer = self.entry(name)?;
                if newer.listed == entry.listed {
                    return Err(error);
                }
                let file = ArchivedFile::open(&self.bucket, &newer)?;
                Ok((newer, Some(file)))
            }
        }
    }

    /// Asks the file's primary.
    fn ask<T>(
        &self,
        name: &str,
        entry: &Entry,
        ask: impl FnOnce(&mut Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let failed = |what: String| StoreError::Remote { what, is_retryable: true };
        let node = self.cluster.nodes()?.remove(&entry.primary);
        let address = node.and_then(|node| node.address);
        let address: SocketAddr = address.and_then(|a| a.parse().ok()).ok_or_else(|| {
            let primary = entry.primary;
            failed(format!(
                "store node {primary}, the primary of {name}, serves nowhere now: wait for it or \
                 for its successor, or read what is published"
            ))
        })?;
        let idle = lock(&self.connections).remove(&address);
        let mut client = match idle.filter(Client::is_open) {
            Some(client) => client,
            None => Client::connect_with(address, &self.options)?,
        };
        // A connection whose request failed may be broken, so the next request connects anew.
        let answer = ask(&mut client)?;
        lock(&self.connections).insert(address, client);
        Ok(answer)
    }

    /// The error for a primary that does not say how many records a file has: the published ones
    /// are known.
    fn name_silent(&self, name: &str, entry: &Entry, why: StoreError) -> StoreError {
        let (file, primary, why) = (name.to_owned(), entry.primary, Box::new(why));
        match self.published(name) {
            Ok((_, known)) => {
                let published = known.map_or(0, |file| file.records());
                StoreError::PrimarySilent { file, primary, published, why }
            }
            Err(_) => *why,
        }
    }
}

impl RecordSource for ClusterSource {
    fn listed(&self) -> Result<Vec<FileListing>, StoreError> {
        let mut all = Vec::new();
        for (name, entry) in self.cluster.list()? {
            if entry.is_deleted {
                continue;
            }
            let records = match self.freshness {
                Freshness::Published => self.published(&name)?.1.map_or(0, |file| file.records()),
                Freshness::Fresh | Freshness::Primary => self
                    .ask(&name, &entry, |client| Ok(client.open(&name)?.numbers.end))
                    .map_err(|why| self.name_silent(&name, &entry, why))?,
            };
            all.push(FileListing { name, schema: entry.schema, records });
        }
        Ok(all)
    }

    fn between(&self, name: &str, from_ns: i64, to_ns: i64) -> Result<Range<u64>, StoreError> {
        let (entry, mut published) = self.published(name)?;
        let old = match &mut published {
            Some(file) => file.find(from_ns, to_ns)?,
            None => 0..0,
        };
        // After the last published time there may be further records. Before it there are none.
        let last_ns = published.as_ref().map_or(i64::MIN, ArchivedFile::last_ns);
        let is_inside = published.is_some() && to_ns < last_ns;
        if self.freshness == Freshness::Published || is_inside {
            return Ok(old);
        }
        let recent = self.ask(name, &entry, |client| {
            let file = client.open(name)?;
            client.find(&file, from_ns.max(last_ns), to_ns)
        })?;
        let start = if from_ns < last_ns { old.start } else { recent.start };
        Ok(start..recent.end)
    }

    fn read(&self, name: &str, numbers: Range<u64>, each: &mut Each<'_>) -> Result<(), StoreError> {
        let (entry, published) = self.published(name)?;
        let end = published.as_ref().map_or(0, ArchivedFile::records).min(numbers.end);
        if let Some(mut file) = published.filter(|_| numbers.start < end) {
            file.read_numbers(numbers.start..end, each)?;
        }
        let rest = numbers.start.max(end)..numbers.end;
        if rest.is_empty() {
            return Ok(());
        }
        if self.freshness == Freshness::Published {
            let (first, record) = (entry.first, rest.start.to_string());
            return Err(Error::NoRecord { record, first, end }.into());
        }
        self.ask(name, &entry, |client| {
            let file = client.open(name)?;
            client.read(&file, rest, each)
        })
    }

    /// The primary of the files wakes the reader. Published records, and files of several
    /// primaries, are looked at now and then.
    fn wait_past(&self, ends: &[KnownEnd], until: Instant) -> Result<bool, StoreError> {
        let is_fresh = self.freshness != Freshness::Published;
        let Some(first) = ends.first().filter(|_| is_fresh) else {
            return Ok(poll_ends(until));
        };
        let entry = self.entry(&first.name)?;
        for known in &ends[1..] {
            if self.entry(&known.name)?.primary != entry.primary {
                return Ok(poll_ends(until));
            }
        }
        self.ask(&first.name, &entry, |client| client.wait_past(ends, until))
    }

    fn published_end(&self, name: &str) -> Result<Option<u64>, StoreError> {
        if self.freshness != Freshness::Published {
            return Ok(None);
        }
        let (_, published) = self.published(name)?;
        Ok(Some(published.map_or(0, |file| file.records())))
    }
}
