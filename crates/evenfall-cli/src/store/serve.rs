//! `evenfall store serve`: a store on a port of this machine, until a signal comes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenfall_io::interrupt;
use evenfall_node::store::{NamesError, Server, Store, StoreError};

use super::backing::Backing;
use super::{said, tell};
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
    #[arg(long, conflicts_with = "objects")]
    no_objects: bool,
    #[command(flatten)]
    backing: Backing,
}

/// Runs it.
pub fn serve(args: &Serve) -> Outcome {
    let waker = evenfall_io::Waker::new()?;
    interrupt::watch(waker)?;
    let mut config = args.backing.config(&args.dir)?;
    if args.no_objects {
        config.objects = None;
    }
    let store = Arc::new(said(Store::open(config)?));
    let server = Server::start(Arc::clone(&store), args.listen)?;
    println!("serving tcp://{}", server.address());
    if let Some(member) = store.member() {
        member.serve_at(Some(server.address().to_string()))?;
    }
    let lost = attend(&store, args.backing.take_over);
    let counts = server.stop();
    let store = Arc::into_inner(store).ok_or("a connection holds the store")?;
    store.close()?;
    println!(
        "stopped: {} connections, {} turned away, {} malformed, {} appends failed",
        counts.accepted, counts.turned_away, counts.malformed, counts.failed_appends
    );
    Ok(lost?)
}

/// Until a signal comes or the lease is over. Files of nodes that are gone are taken over
/// meanwhile.
fn attend(store: &Store, take_over: bool) -> Result<(), StoreError> {
    let mut looked_at = Instant::now();
    while !interrupt::raised() {
        std::thread::sleep(LOOK_EVERY);
        let Some(member) = store.member() else { continue };
        match member.lease().check() {
            Err(error @ NamesError::LeaseLost { is_over: true, .. }) => return Err(error.into()),
            _ if take_over && looked_at.elapsed() > member.lease().ttl() / 4 => {
                looked_at = Instant::now();
                // What fails now is tried again.
                if let Ok((taken, losses)) = store.take_over() {
                    tell(&losses);
                    if taken > 0 {
                        println!("{taken} files taken over");
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}
