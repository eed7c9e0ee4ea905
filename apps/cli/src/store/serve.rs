//! `evenfall store serve`: serves a store on a port of this machine, until a signal comes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenfall_host::interrupt;
use evenfall_runtime::address::look_up;
use evenfall_runtime::telemetry::{Metrics, Telemetry};
use evenfall_store_engine::StoreConfig;
use evenfall_store_server::CONNECTIONS_MAX;
use evenfall_store_server::role::{self, ServeOutput, ServedStore};
use evenfall_store_server::settings::{STORE, StoreSettings};
use humantime::parse_duration;

use super::storage_args::{Appends, check_names};
use super::tell;
use crate::Outcome;

/// Prints a line. A server continues when nobody reads its output.
macro_rules! offer {
    ($($words:tt)*) => {
        evenfall_runtime::program::offer(format_args!("{}\n", format_args!($($words)*)))
    };
}

/// Arguments of `evenfall store serve`.
#[derive(clap::Args, Debug)]
pub struct Serve {
    /// The store's directory; a missing directory is created.
    dir: PathBuf,
    /// Address to listen on. Without --users, addresses beyond loopback are refused, because
    /// connections then have no key. Port 0 takes a free port.
    #[arg(long, default_value = "127.0.0.1:7410", value_parser = look_up)]
    listen: SocketAddr,
    /// File of users with keys, which `evenfall store user new` writes. Only these users may then
    /// connect, over sealed connections, and the server may listen on any address. The file is read
    /// again when it changes.
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// Loopback address of the pages /metrics, /healthz and /status.
    #[arg(long, value_name = "ADDRESS", value_parser = look_up)]
    http: Option<SocketAddr>,
    /// Keep all chunks on the local disk, and upload nothing.
    #[arg(long, conflicts_with = "objects")]
    no_objects: bool,
    #[command(flatten)]
    appends: Appends,
    /// Bytes of records in memory that are in no synced chunk. Beyond this limit appends wait, and
    /// are then refused.
    #[arg(long, default_value_t = limits().memory_bytes_max)]
    memory_bytes: u64,
    /// Bytes of journals. The opening after a crash reads no more of them.
    #[arg(long, default_value_t = limits().recovery_bytes_max)]
    recovery_bytes: u64,
    /// Bytes of chunks on the local disk beyond which appends are refused. From half of this limit
    /// on, uploaded chunks leave the disk.
    #[arg(long, default_value_t = limits().local_bytes_max)]
    local_bytes: u64,
    /// Bytes of chunks that are uploaded to the objects in a second. Without it, uploads have no
    /// limit.
    #[arg(long, value_name = "BYTES", conflicts_with = "no_objects",
          value_parser = clap::value_parser!(u64).range(1..))]
    upload_bytes_per_s: Option<u64>,
    /// Bytes of recent segments kept in memory for readers.
    #[arg(long, default_value_t = limits().cache_bytes)]
    cache_bytes: u64,
    /// Bytes that each file without a retention of its own keeps. Without it, files keep all
    /// records.
    #[arg(long)]
    keep_bytes: Option<u64>,
    /// Connections at once. When as many are open, a new one replaces the connection that was idle
    /// for longest.
    #[arg(long, default_value_t = CONNECTIONS_MAX, value_name = "COUNT")]
    connections: usize,
    /// File of the key with which this node of a cluster asks the primaries of other nodes' files
    /// for records that are not published, as a user with the right read there. The nodes may then
    /// be on several machines.
    #[arg(long, value_name = "FILE")]
    primary_key: Option<PathBuf>,
    /// Close a connection that asks for nothing for this long. A connection that has never asked
    /// for anything is closed after 30s.
    #[arg(long, default_value = "1h", value_name = "DURATION", value_parser = parse_duration)]
    idle_timeout: Duration,
    /// Print the sizes of the stages at this interval, such as 10s, each time as one line of JSON.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    occupancy_every: Option<Duration>,
}

/// The limits of a store by default.
fn limits() -> StoreConfig {
    StoreConfig::new(Path::new(""))
}

impl Serve {
    fn settings(&self) -> Result<StoreSettings, Box<dyn std::error::Error>> {
        let Appends { storage, time_ahead, replica, replica_key } = &self.appends;
        if super::is_address(&self.dir) {
            // The error about an address in the place of a directory has one place.
            storage.config(&self.dir)?;
        }
        super::refuse_file(&self.dir)?;
        if self.users.is_some() && !cfg!(feature = "users") {
            return Err(crate::missing::words("users of a store", "users").into());
        }
        storage.names.as_deref().map_or(Ok(()), check_names)?;
        if self.connections == 0 {
            return Err("--connections must be 1 at least".into());
        }
        Ok(StoreSettings {
            objects: storage.objects.clone(),
            upload: !self.no_objects,
            names: storage.names.clone(),
            lease: storage.lease,
            take_over: storage.take_over,
            time_ahead: *time_ahead,
            replica: *replica,
            replica_key_file: replica_key.clone(),
            primary_key_file: self.primary_key.clone(),
            users_file: self.users.clone(),
            memory_bytes: self.memory_bytes,
            recovery_bytes: self.recovery_bytes,
            local_bytes: self.local_bytes,
            upload_bytes_per_s: self.upload_bytes_per_s,
            chunks: storage.chunks,
            cache_bytes: self.cache_bytes,
            keep_bytes: self.keep_bytes,
            confirm_clock: storage.confirm_clock,
            connections: self.connections,
            idle_timeout: self.idle_timeout,
        })
    }
}

pub fn serve(args: &Serve) -> Outcome {
    interrupt::install()?;
    let voice = ServeOutput {
        say: &|line| offer!("{line}"),
        tell: &|loss| tell(std::slice::from_ref(loss)),
        note: &|line| aside!("{line}"),
    };
    let (served, every) = (Arc::new(ServedStore::default()), args.occupancy_every);
    let settings = args.settings()?;
    let labels = Metrics::of(&args.dir.display().to_string(), STORE);
    let observed = Arc::clone(&served);
    let _pages = Telemetry::observe(args.http, false, labels, observed)?;
    let counts = role::serve(&settings, &args.dir, args.listen, &served, &voice, every)?;
    offer!(
        "stopped: {} connections, {} turned away, {} made room, {} malformed, {} timed out, \
         {} without a key, {} without a right, {} appends failed",
        counts.accepted,
        counts.turned_away,
        counts.made_room,
        counts.malformed,
        counts.timed_out,
        counts.refused_handshakes,
        counts.refused_rights,
        counts.failed_appends
    );
    Ok(())
}
