//! `evenfall store serve`: a store on a port of this machine, until a signal comes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenfall_io::interrupt;
use evenfall_node::store::{Server, Store, StoreConfig};

use super::said;
use crate::Outcome;

/// How soon a signal is seen.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Arguments of `evenfall store serve`.
#[derive(clap::Args, Debug)]
pub struct Serve {
    /// The store's directory; made when it is not there.
    dir: PathBuf,
    /// Where to listen: a loopback address, because connections have no key. Port 0 takes a free
    /// one.
    #[arg(long, default_value = "127.0.0.1:7410")]
    listen: SocketAddr,
    /// Leave chunks on the local disk and upload nothing.
    #[arg(long)]
    no_objects: bool,
    /// Bytes of appended records that may wait in memory for the disk.
    #[arg(long)]
    memory_bytes: Option<u64>,
    /// Bytes of the local disk that chunks may take before they are uploaded.
    #[arg(long)]
    local_bytes: Option<u64>,
    /// Bytes of memory for segments that are read again.
    #[arg(long)]
    cache_bytes: Option<u64>,
    /// A connection that asks for nothing for this long is closed.
    #[arg(long, default_value = "1h", value_parser = humantime::parse_duration)]
    idle_timeout: Duration,
}

/// Runs it.
pub fn serve(args: &Serve) -> Outcome {
    let waker = evenfall_io::Waker::new()?;
    interrupt::watch(waker)?;
    let mut config = StoreConfig::new(&args.dir);
    if args.no_objects {
        config.objects = None;
    }
    config.memory_bytes_max = args.memory_bytes.unwrap_or(config.memory_bytes_max);
    config.local_bytes_max = args.local_bytes.unwrap_or(config.local_bytes_max);
    config.cache_bytes = args.cache_bytes.unwrap_or(config.cache_bytes);
    let store = Arc::new(said(Store::open(config)?));
    let server = Server::start_with(Arc::clone(&store), args.listen, args.idle_timeout)?;
    println!("serving tcp://{}", server.address());
    while !interrupt::raised() {
        std::thread::sleep(LOOK_EVERY);
    }
    let counts = server.stop();
    let store = Arc::into_inner(store).ok_or("a connection holds the store")?;
    store.close()?;
    println!(
        "stopped: {} connections, {} turned away, {} malformed, {} timed out, {} appends failed",
        counts.accepted,
        counts.turned_away,
        counts.malformed,
        counts.timed_out,
        counts.failed_appends
    );
    Ok(())
}
