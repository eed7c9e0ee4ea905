//! `evenfall store serve`: serves a store on a port of this machine, until a signal comes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenfall_host::interrupt;
use evenfall_runtime::address::look_up;
use evenfall_store_engine::{NamesError, Store, StoreConfig, StoreError};
use evenfall_store_server::Server;
use humantime::parse_duration;

use super::backing::Appends;
use super::{said, tell};
use crate::Outcome;

/// Prints a line. A server continues when nobody reads its output.
macro_rules! offer {
    ($($words:tt)*) => {
        evenfall_runtime::program::offer(format_args!("{}\n", format_args!($($words)*)))
    };
}

/// How often the command looks for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Arguments of `evenfall store serve`.
#[derive(clap::Args, Debug)]
pub struct Serve {
    /// The store's directory; a missing directory is created.
    dir: PathBuf,
    /// Loopback address to listen on. Other addresses are refused, because connections have no key.
    /// Port 0 takes a free port.
    #[arg(long, default_value = "127.0.0.1:7410", value_parser = look_up)]
    listen: SocketAddr,
    /// Keep all chunks on the local disk, and upload nothing.
    #[arg(long, conflicts_with = "objects")]
    no_objects: bool,
    #[command(flatten)]
    appends: Appends,
    /// Bytes of records that are on no disk yet. Beyond this limit appends wait, and are then
    /// refused.
    #[arg(long, default_value_t = limits().memory_bytes_max)]
    memory_bytes: u64,
    /// Bytes of chunks on the local disk beyond which appends are refused. From half of this limit
    /// on, uploaded chunks leave the disk.
    #[arg(long, default_value_t = limits().local_bytes_max)]
    local_bytes: u64,
    /// Bytes of recent segments kept in memory for readers.
    #[arg(long, default_value_t = limits().cache_bytes)]
    cache_bytes: u64,
    /// Bytes that each file without a retention of its own keeps. Without it, files keep all
    /// records.
    #[arg(long)]
    keep_bytes: Option<u64>,
    /// Close a connection that asks for nothing for this long. A connection that has never asked
    /// for anything is closed after 30s. When 256 connections are open, a new one replaces the
    /// connection that was idle for longest.
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
    fn config(&self) -> Result<StoreConfig, Box<dyn std::error::Error>> {
        let mut config = self.appends.config(&self.dir)?;
        if self.no_objects {
            config.objects = None;
        }
        config.memory_bytes_max = self.memory_bytes;
        config.local_bytes_max = self.local_bytes;
        config.cache_bytes = self.cache_bytes;
        config.keep.bytes_max = self.keep_bytes;
        Ok(config)
    }
}

pub fn serve(args: &Serve) -> Outcome {
    interrupt::install()?;
    let mut listen = args.listen;
    loop {
        let store = Arc::new(said(Store::open(args.config()?)?));
        let server = Server::start_with(Arc::clone(&store), listen, args.idle_timeout)?;
        listen = server.address();
        offer!("serving tcp://{listen}");
        if let Some(member) = store.member() {
            member.serve_at(Some(listen.to_string()))?;
        }
        let end = attend(&store, &server, args);
        let counts = server.stop();
        let store = Arc::into_inner(store).ok_or("a connection holds the store")?;
        store.close()?;
        if matches!(end, Ok(End::NewLife)) {
            offer!("taking over: the store is opened again");
            continue;
        }
        offer!(
            "stopped: {} connections, {} turned away, {} made room, {} malformed, {} timed out, \
             {} appends failed",
            counts.accepted,
            counts.turned_away,
            counts.made_room,
            counts.malformed,
            counts.timed_out,
            counts.failed_appends
        );
        return Ok(end.map(drop)?);
    }
}

/// Why a store is closed.
enum End {
    Signal,
    /// Some files can only be taken over by a new life of the store.
    NewLife,
}

/// Waits until a signal comes or the lease is over. Meanwhile it takes over files of nodes that are
/// gone.
fn attend(store: &Store, server: &Server, args: &Serve) -> Result<End, StoreError> {
    let (mut looked_at, mut printed_at) = (Instant::now(), Instant::now());
    let mut said = BTreeSet::new();
    let take_over = args.appends.backing.take_over;
    while !interrupt::raised() {
        std::thread::sleep(LOOK_EVERY);
        if args.occupancy_every.is_some_and(|every| printed_at.elapsed() >= every) {
            printed_at = Instant::now();
            let mut sizes = serde_json::to_value(store.occupancy()).unwrap_or_default();
            sizes["sent_bytes"] = server.counts().sent_bytes.into();
            offer!("{sizes}");
        }
        let Some(member) = store.member() else { continue };
        match member.check_lease() {
            Err(error @ NamesError::LeaseLost { is_over: true, .. }) => return Err(error.into()),
            _ if take_over && looked_at.elapsed() > member.lease_ttl() / 4 => {
                looked_at = Instant::now();
                // A takeover that fails now is tried again.
                if let Ok(taken) = store.take_over() {
                    tell(&taken.losses);
                    if taken.files > 0 {
                        offer!("{} files taken over", taken.files);
                    }
                    for (name, error) in taken.failed {
                        let what = format!("file {name} is not taken over yet: {error}");
                        if said.insert(name) {
                            eprintln!("note: {what}; it is tried again");
                        }
                    }
                }
                if store.is_new_life_due().unwrap_or(false) {
                    return Ok(End::NewLife);
                }
            }
            _ => {}
        }
    }
    Ok(End::Signal)
}
