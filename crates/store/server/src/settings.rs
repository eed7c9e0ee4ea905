//! The section `[store]` of the settings, and the nodes that serve a store.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use evenfall_runtime::settings::{
    KnownTable, Node, RunSettings, SettingsDocument, SettingsError, SettingsMistake,
    check_addresses, check_nodes,
};
use evenfall_store_engine::{
    ChunkForm, StoreConfig, StoreError, StorePlaces, TIME_AHEAD_MAX, chunk_codec, expect_closed,
    read_user_key,
};
use evenfall_store_recording::layouts::message_layouts;
use serde::{Deserialize, Serialize};

use crate::{CONNECTIONS_MAX, IDLE_TIMEOUT, LISTEN_ADVICE};

/// The value of `role` in `[[node]]`.
pub const STORE: &str = "store";
/// Shortest lease: a node renews it several times, and a pause of a machine takes tens of
/// milliseconds.
const LEASE_MIN: Duration = Duration::from_secs(2);

/// The keys of the table `[store]`, which all servers of the file share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreSettings {
    /// Place of the objects: a directory, or an address. Without it, each server keeps its objects
    /// where its directory remembers, at first below the directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<String>,
    /// Whether chunks are uploaded to the objects at all.
    pub upload: bool,
    /// Names that the servers of a cluster share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names: Option<String>,
    /// Time after which a silent node of the cluster may be replaced.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// Whether a server takes over the files whose primary has no lease any more.
    pub take_over: bool,
    /// How far a record's time may lie ahead of the server's clock.
    #[serde(with = "humantime_serde")]
    pub time_ahead: Duration,
    /// The server of a second node, which gets a copy of each append at the level `replica`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<SocketAddr>,
    /// File of the key of a user of the second node. With it, the second node may be on another
    /// machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica_key_file: Option<PathBuf>,
    /// File of the key of a user of the other nodes, with which a node asks the primary of a file
    /// for records that are not published. With it, the nodes may be on other machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_key_file: Option<PathBuf>,
    /// File of the users with keys, who alone may connect then. With it, the servers may listen on
    /// any address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users_file: Option<PathBuf>,
    /// Bytes of records in memory that are in no synced chunk. Beyond this limit appends wait, and
    /// are then refused.
    pub memory_bytes: u64,
    /// Bytes of journals on the local disk. The opening after a crash reads no more of them.
    pub recovery_bytes: u64,
    /// Bytes of chunks on the local disk beyond which appends are refused.
    pub local_bytes: u64,
    /// Bytes of chunks that are uploaded in a second. Without it, uploads have no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload_bytes_per_s: Option<u64>,
    /// Form of whole chunks: `columns` (Parquet files) or `raw`.
    pub chunks: ChunkForm,
    /// Bytes of recent segments kept in memory for readers.
    pub cache_bytes: u64,
    /// Bytes that each file without a retention of its own keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_bytes: Option<u64>,
    /// Whether the wall clock is right at each opening, by the word of an operator. Retention by
    /// age then goes on after a step of the clock.
    pub confirm_clock: bool,
    /// Connections at once. A new one then takes the place of the connection that was idle for
    /// longest.
    pub connections: usize,
    /// A connection that asks for nothing for this long is closed.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
}

impl Default for StoreSettings {
    fn default() -> Self {
        let limits = StoreConfig::new(std::path::Path::new(""));
        Self {
            objects: None,
            upload: true,
            names: None,
            lease: Duration::from_secs(10),
            take_over: false,
            time_ahead: TIME_AHEAD_MAX,
            replica: None,
            replica_key_file: None,
            primary_key_file: None,
            users_file: None,
            memory_bytes: limits.memory_bytes_max,
            recovery_bytes: limits.recovery_bytes_max,
            local_bytes: limits.local_bytes_max,
            upload_bytes_per_s: None,
            chunks: limits.chunks,
            cache_bytes: limits.cache_bytes,
            keep_bytes: None,
            confirm_clock: false,
            connections: CONNECTIONS_MAX,
            idle_timeout: IDLE_TIMEOUT,
        }
    }
}

impl StoreSettings {
    /// The configuration of a store in this directory.
    ///
    /// # Errors
    /// As [`StoreConfig::placed`], and those of the key of the second node.
    pub fn config(&self, directory: &std::path::Path) -> Result<StoreConfig, StoreError> {
        let (lease, take_over) = (self.lease, self.take_over);
        let (objects, names) = (self.objects.clone(), self.names.clone());
        let places = StorePlaces { objects, names, lease, take_over };
        let mut config = StoreConfig::placed(directory, &places)?;
        if !self.upload {
            config.objects = None;
        }
        config.replica = self.replica;
        config.replica_key = self.replica_key_file.as_deref().map(read_user_key).transpose()?;
        config.primary_key = self.primary_key_file.as_deref().map(read_user_key).transpose()?;
        config.time_ahead_max = self.time_ahead;
        config.memory_bytes_max = self.memory_bytes;
        config.recovery_bytes_max = self.recovery_bytes;
        config.local_bytes_max = self.local_bytes;
        config.upload_bytes_per_s = self.upload_bytes_per_s;
        config.chunks = self.chunks;
        config.layouts = message_layouts();
        config.cache_bytes = self.cache_bytes;
        config.keep.bytes_max = self.keep_bytes;
        config.confirm_clock = self.confirm_clock;
        Ok(config)
    }

    fn check(&self) -> Result<(), SettingsMistake> {
        let wrong = |key: &str, why: &str| Err(SettingsMistake::new(key, format!("{key}: {why}")));
        if self.lease < LEASE_MIN {
            return wrong("store.lease", "must be 2s at least");
        }
        if self.connections == 0 {
            return wrong("store.connections", "must be 1 at least");
        }
        if self.upload_bytes_per_s == Some(0) {
            return wrong("store.upload_bytes_per_s", "must be 1 at least");
        }
        if self.chunks == ChunkForm::Columns && chunk_codec().is_none() {
            return wrong("store.chunks", "columns are not in this build, build the feature arrow");
        }
        if !self.upload && self.objects.is_some() {
            return wrong("store.upload", "is false, and store.objects says where to upload");
        }
        if self.users_file.is_some() && !cfg!(feature = "users") {
            return wrong(
                "store.users_file",
                "users are not in this build, build the feature users",
            );
        }
        let is_keyed = self.replica_key_file.is_some();
        let advice = "name the key of a user of that store (store.replica_key_file), or use \
                      127.0.0.1 and a tunnel";
        let closed = |replica| {
            expect_closed("store.replica", replica, is_keyed, advice)
                .map_err(|error| SettingsMistake::new("store.replica", error.to_string()))
        };
        self.replica.map_or(Ok(()), closed)
    }
}

/// The key of `[[node]]` that only stores have.
#[derive(Clone, Debug, Deserialize)]
struct StoreNodeKeys {
    /// Directory of the store, relative to the settings file.
    store: Option<PathBuf>,
}

/// A server of a store among the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreNode {
    /// The keys that every service knows.
    pub plain: Node,
    /// Directory of the store.
    pub directory: PathBuf,
}

/// The settings that servers of stores read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The run itself.
    pub run: RunSettings,
    /// The table `[store]`.
    pub store: StoreSettings,
    /// The servers.
    pub nodes: Vec<StoreNode>,
}

impl Settings {
    /// The tables and keys that these settings own, for [`SettingsDocument::refuse_unknown`].
    pub fn known() -> Vec<KnownTable> {
        vec![KnownTable { table: "store", keys: &[] }]
    }

    /// The settings of a document.
    ///
    /// # Errors
    /// Which file, line and key, or which override, and what is allowed.
    pub fn of(document: &SettingsDocument) -> Result<Self, SettingsError> {
        let refuse = |mistake| document.refuse(mistake);
        let plain: Vec<Node> = document.list("node")?;
        check_nodes(&plain).map_err(refuse)?;
        let keys: Vec<StoreNodeKeys> = document.list("node")?;
        let mut run: RunSettings = document.part("run")?;
        document.check_durations()?;
        run.rebase(document.base());
        let mut store: StoreSettings = document.part("store")?;
        store.check().map_err(refuse)?;
        let StoreSettings { users_file, replica_key_file, primary_key_file, .. } = &mut store;
        for file in [users_file, replica_key_file, primary_key_file] {
            *file = file.take().map(|file| document.base().join(file));
        }
        let is_path = |place: &String| !place.contains("://");
        if let Some(place) = store.objects.as_mut().filter(|place| is_path(place)) {
            *place = document.base().join(&*place).display().to_string();
        }
        let mut nodes = Vec::new();
        for (plain, keys) in plain.into_iter().zip(keys).filter(|(plain, _)| plain.role == STORE) {
            let directory = keys.store.map(|directory| document.base().join(directory));
            let directory = directory.unwrap_or_else(|| run.dir.join(&plain.name));
            nodes.push(StoreNode { plain, directory });
        }
        Ok(Self { run, store, nodes })
    }

    /// Refuses servers that are open to more than this machine without users, because connections
    /// then have no key.
    ///
    /// # Errors
    /// The first of them, and what to do.
    pub fn check_closed(&self) -> Result<(), SettingsMistake> {
        let plain: Vec<Node> = self.nodes.iter().map(|node| node.plain.clone()).collect();
        check_addresses(&plain)?;
        let has_users = self.store.users_file.is_some();
        let open = plain.iter().find_map(|node| {
            expect_closed(&node.name, node.address, has_users, LISTEN_ADVICE).err()
        });
        open.map_or(Ok(()), |error| Err(SettingsMistake::new("node", error.to_string())))
    }
}
