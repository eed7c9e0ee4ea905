//! The parts of a store that is opened to write: its objects, its names and its second node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_store_engine::{ChunkForm, StoreConfig, StorePlaces, chunk_codec, read_user_key};
use evenfall_store_recording::layouts::message_layouts;
use humantime::parse_duration;

/// The places of a store's objects and names. The store's directory remembers both.
#[derive(clap::Args, Debug)]
pub struct StorageArgs {
    /// Place of the objects: a directory, s3://bucket/prefix, gs://bucket/prefix or
    /// az://container/prefix, with keys from AWS_*, GOOGLE_* or AZURE_*; or
    /// files://127.0.0.1:9870/path for evenfall's replicated files. By default, a directory below
    /// the store.
    #[arg(long, value_name = "PLACE")]
    pub objects: Option<String>,
    /// Names that the store nodes of a cluster share: in etcd, etcd://127.0.0.1:2379/name, or in
    /// evenfall's own ordered keys, keys://127.0.0.1:21811,127.0.0.1:21812/name.
    #[arg(long, value_name = "ADDRESS")]
    pub names: Option<String>,
    /// Time after which a silent node of the cluster may be replaced, such as 10s; 2s at least.
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = parse_duration)]
    pub lease: Duration,
    /// Take over the files whose primary has no lease any more. Without --names, take over the
    /// files of which this directory has copies.
    #[arg(long)]
    pub take_over: bool,
    /// Form of whole chunks, on the disk and in the objects: columns (Parquet files, which DuckDB,
    /// polars and pyarrow read), or raw. A store reads both.
    #[arg(long, default_value = form_name(ChunkForm::default()), value_name = "FORM",
          value_parser = chunk_form)]
    pub chunks: ChunkForm,
    /// Take this machine's wall clock as right. After a step of the clock of more than an hour, and
    /// after a longer time in which the machine was off, no record is deleted for its age until
    /// this is said.
    #[arg(long)]
    pub confirm_clock: bool,
}

fn form_name(form: ChunkForm) -> &'static str {
    match form {
        ChunkForm::Raw => "raw",
        ChunkForm::Columns => "columns",
    }
}

fn chunk_form(text: &str) -> Result<ChunkForm, String> {
    match text {
        "raw" => Ok(ChunkForm::Raw),
        "columns" if chunk_codec().is_none() => {
            Err(crate::missing::words("chunks in columns", "arrow"))
        }
        "columns" => Ok(ChunkForm::Columns),
        _ => Err("the form is raw or columns".into()),
    }
}

/// The places of a store that takes appends, and the limits of the appends.
#[derive(clap::Args, Debug)]
pub struct Appends {
    #[command(flatten)]
    pub storage: StorageArgs,
    /// How far a record's time may lie ahead of this machine's clock. A batch with a later record
    /// is refused.
    #[arg(long, default_value = "1d", value_name = "DURATION", value_parser = parse_duration)]
    pub time_ahead: Duration,
    /// The server of a second node, such as 127.0.0.1:7411. The second node gets a copy of each
    /// append at the level replica.
    #[arg(long, value_name = "ADDRESS", value_parser = evenfall_runtime::address::look_up)]
    pub replica: Option<SocketAddr>,
    /// File of the key with which this node connects to the second node, as a user with the rights
    /// read and admin there. The second node may then be on another machine.
    #[arg(long, value_name = "FILE", requires = "replica")]
    pub replica_key: Option<PathBuf>,
}

impl StorageArgs {
    /// The configuration of a store in this directory.
    ///
    /// # Errors
    /// When `dir` is an address, because a directory of that name would be made.
    pub fn config(&self, dir: &Path) -> Result<StoreConfig, Box<dyn std::error::Error>> {
        if super::is_address(dir) {
            return Err(format!(
                "{} is an address: this command works in the directory of a store, on the machine \
                 that has it. A server takes records by `evenfall store append tcp://... NAME \
                 --csv FILE`, and is read by `ls`, `read`, `tail` and `export`",
                dir.display()
            )
            .into());
        }
        super::refuse_file(dir)?;
        let names = self.names.clone();
        names.as_deref().map_or(Ok(()), check_names)?;
        let places = StorePlaces {
            objects: self.objects.clone(),
            names,
            lease: self.lease,
            take_over: self.take_over,
        };
        let (chunks, confirm_clock) = (self.chunks, self.confirm_clock);
        let (placed, layouts) = (StoreConfig::placed(dir, &places)?, message_layouts());
        Ok(StoreConfig { chunks, confirm_clock, layouts, ..placed })
    }
}

impl Appends {
    /// The configuration of a store in this directory.
    ///
    /// # Errors
    /// As for [`StorageArgs::config`].
    pub fn config(&self, dir: &Path) -> Result<StoreConfig, Box<dyn std::error::Error>> {
        let (replica, time_ahead_max) = (self.replica, self.time_ahead);
        let replica_key = self.replica_key.as_deref().map(read_user_key).transpose()?;
        Ok(StoreConfig { replica, replica_key, time_ahead_max, ..self.storage.config(dir)? })
    }
}

/// Whether a place is the address of a cluster's names.
pub fn is_names(place: &str) -> bool {
    ["etcd://", "keys://", "order://"].iter().any(|scheme| place.starts_with(scheme))
}

/// Checks that this build reaches the names at such an address.
pub fn check_names(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    match address.split_once("://") {
        Some(("etcd", _)) if !cfg!(feature = "etcd") => {
            Err(crate::missing::words("names in etcd", "etcd").into())
        }
        Some(("keys" | "order", _)) if !cfg!(feature = "keys") => {
            Err(crate::missing::words("names in ordered keys", "keys").into())
        }
        _ => Ok(()),
    }
}

/// The configuration of a store whose objects are where its directory says.
pub fn remembered(dir: &Path) -> Result<StoreConfig, Box<dyn std::error::Error>> {
    Ok(StoreConfig::remembered(dir)?)
}
