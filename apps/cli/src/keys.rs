//! `evenfall run keys` and `evenfall kv`: ordered keys.

#[cfg(feature = "keys")]
mod kv;
#[cfg(feature = "keys")]
mod local;
#[cfg(feature = "keys")]
mod membership;

use std::net::SocketAddr;
use std::time::Duration;

use evenfall_runtime::settings::SettingsDocument;
use humantime::{format_duration, parse_duration};

#[cfg(feature = "keys")]
pub use kv::{KvArgs, kv};
#[cfg(feature = "keys")]
pub use local::run;
#[cfg(feature = "keys")]
pub use membership::open as open_membership;

use crate::Outcome;

/// Arguments of `evenfall run keys`. With a settings file, its section `[keys]` has them for all
/// replicas, and an option changes the section.
#[derive(clap::Args, Clone, Debug)]
pub struct RunArgs {
    /// Port of the first replica, or its loopback address and port [default: 21811]. ZooKeeper's
    /// clients and `evenfall kv` connect there. Each further replica listens on the next port.
    /// Replicas talk to each other by UDP on the same ports.
    #[arg(long, value_name = "PORT", value_parser = crate::local::first)]
    pub(crate) zookeeper: Option<SocketAddr>,
    /// Limit of all keys and values together, in MiB; by default 256. Changes beyond the limit are
    /// refused. The replicas agree on a limit when they start for the first time, and `evenfall kv
    /// limit` changes it.
    #[arg(long, value_name = "MIB")]
    pub(crate) keys_mib: Option<usize>,
    /// Cycles for which a write lease lasts; 0 for no leases. With leases, `evenfall kv get` of a
    /// key that nobody changes is answered at once, and a change of a key waits for its lease. All
    /// replicas need the same number, and a replica keeps the number of its first start.
    #[arg(long, value_name = "CYCLES")]
    pub(crate) lease_cycles: Option<u64>,
    /// Racks over which the replicas of --local are spread evenly, in the order of their numbers.
    /// In a settings file each node of the role keys names its `rack`.
    #[arg(long, value_name = "RACKS")]
    pub(crate) racks: Option<usize>,
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
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) round_trip: Option<Duration>,
    /// Set an option that ZooKeeper's servers read from zoo.cfg, such as --zoo tickTime=500. May be
    /// repeated. docs/keys.md lists all options.
    #[arg(long = "zoo", value_name = "NAME=VALUE")]
    pub(crate) zookeeper_options: Vec<String>,
}

impl RunArgs {
    /// The options that are keys of the section `[keys]`: the option, the key, and the value.
    fn settings(&self) -> Vec<(&'static str, &'static str, String)> {
        let mut all = Vec::new();
        let mut add = |option, key, value: Option<String>| {
            all.extend(value.map(|value| (option, key, value)));
        };
        let text = |text: &str| toml::Value::from(text).to_string();
        add("--keys-mib", "limit_mib", self.keys_mib.map(|mib| mib.to_string()));
        add("--lease-cycles", "lease_cycles", self.lease_cycles.map(|cycles| cycles.to_string()));
        add("--second-round", "second_round", self.second_round.then(|| "true".into()));
        add("--membership", "membership", self.membership.as_deref().map(text));
        let round_trip = self.round_trip.map(|time| text(&format_duration(time).to_string()));
        add("--round-trip", "round_trip", round_trip);
        let options = &self.zookeeper_options;
        let list = toml::Value::from(options.clone()).to_string();
        add("--zoo", "zookeeper", (!options.is_empty()).then_some(list));
        all
    }

    /// Changes the section `[keys]` of a settings file.
    pub(crate) fn apply(&self, document: &mut SettingsDocument) -> Outcome {
        let table = if document.has("order") { "order" } else { "keys" };
        for (option, key, value) in self.settings() {
            document.set(&format!("{option} {value}"), &format!("{table}.{key}"), &value)?;
        }
        if self.racks.is_some() || self.zookeeper.is_some() {
            let why = "--racks, --zookeeper: the settings file says where the replicas are";
            return Err(why.into());
        }
        Ok(())
    }

    /// The first of these options that was given.
    pub(crate) fn given_option(&self) -> Option<&'static str> {
        let placed = [self.racks.map(|_| "--racks"), self.zookeeper.map(|_| "--zookeeper")];
        let settings = self.settings().into_iter().map(|(option, ..)| option);
        settings.chain(placed.into_iter().flatten()).next()
    }
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
pub fn run(_: &crate::local::LocalArgs, _: &RunArgs) -> Outcome {
    crate::missing::main("the role keys", "keys")
}
