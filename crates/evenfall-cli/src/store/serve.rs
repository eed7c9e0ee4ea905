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
}

/// Runs it.
pub fn serve(args: &Serve) -> Outcome {
    let waker = evenfall_io::Waker::new()?;
    interrupt::watch(waker)?;
    let mut config = StoreConfig::new(&args.dir);
    if args.no_objects {
        config.objects = None;
    }
    let store = Arc::new(said(Store::open(config)?));
    let server = Server::start(Arc::clone(&store), args.listen)?;
    println!("serving tcp://{}", server.address());
    while !interrupt::raised() {
        std::thread::sleep(LOOK_EVERY);
    }
    let counts = server.stop();
    let store = Arc::into_inner(store).ok_or("a connection holds the store")?;
    store.close()?;
    println!(
        "stopped: {} connections, {} turned away, {} malformed, {} appends failed",
        counts.accepted, counts.turned_away, counts.malformed, counts.failed_appends
    );
    Ok(())
}
