//! `evenfall run order` and `evenfall kv`: ordered keys.

#[cfg(feature = "order")]
mod keys;
#[cfg(feature = "order")]
mod local;

use std::net::SocketAddr;
use std::path::PathBuf;

#[cfg(feature = "order")]
pub use keys::{KvArgs, kv};
#[cfg(feature = "order")]
pub use local::run;

#[cfg(not(feature = "order"))]
use crate::Outcome;

/// Arguments of `evenfall run order`.
#[derive(clap::Args, Debug)]
pub struct RunArgs {
    /// Run this many replicas on this machine, each a process, until Ctrl-C.
    #[arg(long, value_name = "REPLICAS")]
    pub(crate) local: Option<usize>,
    /// Port of the first replica, or its loopback address and port. ZooKeeper's clients and
    /// `evenfall kv` connect there. Each further replica listens on the next port. Replicas talk to
    /// each other by UDP on the same ports.
    #[arg(long, value_name = "PORT", default_value = "21811", value_parser = first)]
    pub(crate) zookeeper: SocketAddr,
    /// Directory of the logs. A replica that finds its log there goes on where the log ends.
    #[arg(long, value_name = "DIR", default_value = "evenfall-order")]
    pub(crate) dir: PathBuf,
    /// Limit of all keys and values together, in MiB. Changes beyond the limit are refused.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub(crate) keys_mib: usize,
    /// Number of this process among the replicas of `--of`, from 0.
    #[arg(long, hide = true)]
    pub(crate) node: Option<usize>,
    /// Number of replicas.
    #[arg(long, hide = true)]
    pub(crate) of: Option<usize>,
}

/// A port of this machine, or a loopback address with its port.
fn first(text: &str) -> Result<SocketAddr, String> {
    let address = match text.parse::<u16>() {
        Ok(port) => SocketAddr::from(([127, 0, 0, 1], port)),
        Err(_) => text.parse().map_err(|_| "give a port, or an address with a port".to_owned())?,
    };
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err("connections have no key, so the address has to be a loopback address".into()),
    }
}

#[cfg(not(feature = "order"))]
pub use crate::missing::Args as KvArgs;

/// Says how to get the command.
#[cfg(not(feature = "order"))]
pub fn kv(_: &KvArgs) -> Outcome {
    crate::missing::main("evenfall kv", "order")
}

/// Says how to get the role.
#[cfg(not(feature = "order"))]
pub fn run(_: &RunArgs) -> Outcome {
    crate::missing::main("the role order", "order")
}
