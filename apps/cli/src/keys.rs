//! `evenfall run keys` and `evenfall kv`: ordered keys.

#[cfg(feature = "keys")]
mod kv;
#[cfg(feature = "keys")]
mod local;
#[cfg(feature = "keys")]
mod membership;

use std::net::SocketAddr;
use std::time::Duration;

use humantime::parse_duration;

#[cfg(feature = "keys")]
pub use kv::{KvArgs, kv};
#[cfg(feature = "keys")]
pub use local::run;

#[cfg(not(feature = "keys"))]
use crate::Outcome;

/// Arguments of `evenfall run keys`.
#[derive(clap::Args, Debug)]
pub struct RunArgs {
    /// Port of the first replica, or its loopback address and port. ZooKeeper's clients and
    /// `evenfall kv` connect there. Each further replica listens on the next port. Replicas talk to
    /// each other by UDP on the same ports.
    #[arg(long, value_name = "PORT", default_value = "21811", value_parser = crate::local::first)]
    pub(crate) zookeeper: SocketAddr,
    /// Limit of all keys and values together, in MiB; by default 256. Changes beyond the limit are
    /// refused. The replicas agree on a limit when they start for the first time, and `evenfall kv
    /// limit` changes it.
    #[arg(long, value_name = "MIB")]
    pub(crate) keys_mib: Option<usize>,
    /// Cycles for which a write lease lasts; 0 for no leases. With leases, `evenfall kv get` of a
    /// key that nobody changes is answered at once, and a change of a key waits for its lease. All
    /// replicas need the same number, and a replica keeps the number of its first start.
    #[arg(long, value_name = "CYCLES", default_value_t = 0)]
    pub(crate) lease_cycles: u64,
    /// Racks over which the replicas of --local are spread evenly, in the order of their numbers.
    /// In a settings file each node of the role keys names its `rack`.
    #[arg(long, value_name = "RACKS", default_value_t = 1)]
    pub(crate) racks: usize,
    /// Let the racks agree by consensus on what each cycle has, so that a minority of the racks may
    /// vanish. A write may then take one more way between racks. All replicas need the same choice.
    /// Needs at least three racks, and excludes --lease-cycles.
    #[arg(long)]
    pub(crate) second_round: bool,
    /// Let etcd say which racks have vanished, so that all racks but one may vanish: an address
    /// such as etcd://127.0.0.1:2379/name. Several endpoints are separated by commas. A write then
    /// takes the time to every rack and back. All replicas need the same name. Needs at least two
    /// racks, and excludes --lease-cycles.
    #[arg(long, value_name = "ETCD", conflicts_with = "second_round")]
    pub(crate) membership: Option<String>,
    /// The farthest round trip between two racks, rounded up. All replicas need the same, and a
    /// replica keeps the value of its first start.
    #[arg(long, value_name = "DURATION", default_value = "0ms", value_parser = parse_duration)]
    pub(crate) round_trip: Duration,
    /// Set an option that ZooKeeper's servers read from zoo.cfg, such as --zoo tickTime=500. May be
    /// repeated. docs/keys.md lists all options.
    #[arg(long = "zoo", value_name = "NAME=VALUE")]
    pub(crate) zookeeper_options: Vec<String>,
}

#[cfg(not(feature = "keys"))]
pub use crate::missing::Args as KvArgs;

/// Says how to get the command.
#[cfg(not(feature = "keys"))]
pub fn kv(_: &KvArgs) -> Outcome {
    crate::missing::main("evenfall kv", "keys")
}

/// Says how to get the role.
#[cfg(not(feature = "keys"))]
pub fn run(
    _: &crate::local::LocalArgs,
    _: &RunArgs,
    _: Option<(&evenfall_runtime::settings::Document, &str)>,
) -> Outcome {
    crate::missing::main("the role keys", "keys")
}
