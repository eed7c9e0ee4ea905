//! The section `[keys]` of the settings, and the nodes that are replicas of ordered keys.

use std::path::PathBuf;
use std::time::Duration;

use evenfall_consensus_replica::{RackSettings, SecondRound, Settings as ReplicaSettings};
use evenfall_core::SharedKey;
use evenfall_runtime::settings::{
    KnownTable, Node, RunSettings, SettingsDocument, SettingsError, SettingsMistake,
    check_addresses, check_closed, check_nodes,
};
use serde::{Deserialize, Serialize};

use crate::{Options, Settings};

/// The value of `role` in `[[node]]`, and the name of the section.
pub const KEYS: &str = "keys";
/// The word of an earlier version for both.
pub const KEYS_BEFORE: &str = "order";
/// Where replicas keep their logs when no directory is named, in the current directory.
const DIRECTORIES: [&str; 2] = ["evenfall-keys", "evenfall-order"];

/// The keys of the table `[keys]`, which all replicas share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeysSettings {
    /// Limit of all keys and values together, in MiB. The replicas agree on a limit when they
    /// start for the first time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_mib: Option<usize>,
    /// Cycles for which a write lease lasts; 0 for no leases.
    pub lease_cycles: u64,
    /// Whether the racks agree by consensus on what each cycle has, so that a minority of the racks
    /// may vanish.
    pub second_round: bool,
    /// The service in etcd that says which racks have vanished, so that all racks but one may
    /// vanish.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub membership: Option<String>,
    /// The farthest round trip between two racks, rounded up.
    #[serde(with = "humantime_serde")]
    pub round_trip: Duration,
    /// Options that ZooKeeper's servers read from their file `zoo.cfg`, each as `NAME=VALUE`.
    pub zookeeper: Vec<String>,
}

impl KeysSettings {
    /// How the racks agree on what each cycle has.
    pub fn second_round(&self) -> SecondRound {
        match (self.second_round, &self.membership) {
            (true, _) => SecondRound::Consensus,
            (_, Some(_)) => SecondRound::External,
            _ => SecondRound::Off,
        }
    }

    /// The options of ZooKeeper.
    ///
    /// # Errors
    /// An unknown option, or what is allowed.
    pub fn options(&self) -> Result<Options, SettingsMistake> {
        let mut options = Options::default();
        for option in &self.zookeeper {
            let wrong =
                |error| SettingsMistake::new("keys.zookeeper", format!("keys.zookeeper: {error}"));
            options.set(option).map_err(wrong)?;
        }
        Ok(options)
    }

    /// Checks the section beside the number of racks of the file.
    fn check(&self, racks: usize) -> Result<(), SettingsMistake> {
        let wrong = |key: &str, why: String| Err(SettingsMistake::new(format!("keys.{key}"), why));
        if self.second_round && self.membership.is_some() {
            return wrong("membership", "keys.membership excludes keys.second_round".into());
        }
        if self.second_round() != SecondRound::Off && self.lease_cycles > 0 {
            let why = "keys.lease_cycles excludes keys.second_round and keys.membership";
            return wrong("lease_cycles", why.into());
        }
        let why = format!("with {racks} racks, none may vanish");
        match self.second_round() {
            SecondRound::Consensus if racks < 3 => {
                wrong("second_round", format!("keys.second_round: {why}"))
            }
            SecondRound::External if racks < 2 => {
                wrong("membership", format!("keys.membership: {why}"))
            }
            _ => self.options().map(drop),
        }
    }
}

/// The keys of `[[node]]` that only replicas have.
#[derive(Clone, Debug, Deserialize)]
struct ReplicaNodeKeys {
    rack: Option<String>,
    keys: Option<PathBuf>,
}

/// The replicas of a settings file.
#[derive(Clone, Debug, Default)]
pub struct KeysFile {
    /// The run itself.
    pub run: RunSettings,
    /// The table `[keys]`.
    pub keys: KeysSettings,
    /// The replicas. The place of a replica in this list is its number.
    pub nodes: Vec<Node>,
    /// The directories of the replicas, as the file names them.
    directories: Vec<Option<PathBuf>>,
    /// The rack of each replica; empty when the file names no rack.
    racks: Vec<u8>,
}

impl KeysFile {
    /// The tables that these settings own, for [`SettingsDocument::refuse_unknown`].
    pub fn known() -> Vec<KnownTable> {
        [KEYS, KEYS_BEFORE].map(|table| KnownTable { table, keys: &[] }).to_vec()
    }

    /// The settings of a document.
    ///
    /// # Errors
    /// Which file, line and key, or which override, and what is allowed.
    pub fn of(document: &SettingsDocument) -> Result<Self, SettingsError> {
        let refuse = |mistake| document.refuse(mistake);
        let plain: Vec<Node> = document.list("node")?;
        check_nodes(&plain).map_err(refuse)?;
        let own: Vec<ReplicaNodeKeys> = document.list("node")?;
        let keys = match document.has(KEYS_BEFORE) {
            true if document.has(KEYS) => {
                let why = format!("[{KEYS_BEFORE}] is called [{KEYS}] now; the file has both");
                return Err(refuse(SettingsMistake::new(KEYS_BEFORE, why)));
            }
            true => document.part::<KeysSettings>(KEYS_BEFORE)?,
            false => document.part(KEYS)?,
        };
        let mut run: RunSettings = document.part("run")?;
        document.check_durations()?;
        run.rebase(document.base());
        let is_replica = |node: &Node| [KEYS, KEYS_BEFORE].contains(&node.role.as_str());
        let all = plain.into_iter().zip(own).enumerate();
        let (mut nodes, mut directories, mut named) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (node, own)) in all.filter(|(_, (node, _))| is_replica(node)) {
            directories.push(own.keys.map(|directory| document.base().join(directory)));
            named.push((at, node.name.clone(), own.rack));
            nodes.push(node);
        }
        let racks = number_racks(&named).map_err(refuse)?;
        if !nodes.is_empty() {
            let count = racks.iter().max().map_or(1, |last| usize::from(*last) + 1);
            keys.check(count).map_err(refuse)?;
        }
        Ok(Self { run, keys, nodes, directories, racks })
    }

    /// Refuses replicas that are open to more than this machine, when there is no key.
    ///
    /// # Errors
    /// The first of them, and what to do.
    pub fn check_closed(&self) -> Result<(), SettingsMistake> {
        check_addresses(&self.nodes)?;
        check_closed(&self.nodes, self.run.is_keyed())
    }

    /// The number of the replica that is this node.
    ///
    /// # Errors
    /// The names of the replicas.
    pub fn number(&self, name: &str) -> Result<usize, SettingsError> {
        self.nodes.iter().position(|node| node.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
            let names = names.join(", ");
            SettingsError::new(format!(
                "no [[node]] with role = \"{KEYS}\" is called {name}; there are: {names}"
            ))
        })
    }

    /// What the replica of this number needs to know.
    ///
    /// # Errors
    /// When the key cannot be read, or an option is unknown.
    pub fn replica(&self, number: usize) -> Result<Settings, SettingsError> {
        let key: Option<SharedKey> = self.run.key()?;
        let options = self.keys.options().map_err(|mistake| SettingsError::new(mistake.why))?;
        let directory = self.directories[number].clone();
        let replica = ReplicaSettings {
            node: number,
            replicas: self.nodes.iter().map(|node| node.address).collect(),
            directory: directory.unwrap_or_else(|| default_directory().join(number.to_string())),
            lease_cycles: self.keys.lease_cycles,
            racks: RackSettings {
                of: self.racks.clone(),
                second_round: self.keys.second_round(),
                round_trip: self.keys.round_trip,
            },
            key,
        };
        Ok(Settings {
            replica,
            listen: self.nodes[number].address,
            bytes_max: self.keys.limit_mib.map(|mib| mib.saturating_mul(1 << 20)),
            zookeeper: options,
        })
    }
}

/// The directory of the logs when none is named: the directory that an earlier version made, where
/// it is there alone.
pub fn default_directory() -> PathBuf {
    let [now, before] = DIRECTORIES.map(PathBuf::from);
    if before.is_dir() && !now.exists() { before } else { now }
}

/// The rack of each replica. Racks are numbered in the order in which the file names them. `named`
/// has the place among the nodes, the name and the rack of each replica.
fn number_racks(named: &[(usize, String, Option<String>)]) -> Result<Vec<u8>, SettingsMistake> {
    if named.iter().all(|(_, _, rack)| rack.is_none()) {
        return Ok(Vec::new());
    }
    let (mut racks, mut names) = (Vec::new(), Vec::<&str>::new());
    for (at, name, rack) in named {
        let Some(rack) = rack else {
            let why = format!("node {name} has no rack, and other replicas have one");
            return Err(SettingsMistake::new(format!("node.{at}"), why));
        };
        let number = names.iter().position(|known| known == rack).unwrap_or(names.len());
        if number == names.len() {
            names.push(rack);
        }
        if names.len() > RackSettings::MAX {
            let why = format!("the file names more than {} racks", RackSettings::MAX);
            return Err(SettingsMistake::new(format!("node.{at}.rack"), why));
        }
        racks.push(number as u8);
    }
    Ok(racks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<KeysFile, String> {
        let document = SettingsDocument::parse(text, "test", std::iter::empty(), &[]);
        document.and_then(|document| KeysFile::of(&document)).map_err(|error| error.to_string())
    }

    fn nodes(racks: &[&str]) -> String {
        let node = |(n, rack): (usize, &&str)| {
            format!(
                "[[node]]\nname = \"k{n}\"\nid = {n}\nrole = \"keys\"\n\
                 address = \"127.0.0.1:{}\"\nrack = \"{rack}\"\n",
                21_811 + n
            )
        };
        racks.iter().enumerate().map(node).collect()
    }

    #[test]
    fn replicas_take_their_options_from_the_section_and_their_racks_from_the_nodes() {
        let keys = "[keys]\nlimit_mib = 64\nround_trip = \"30ms\"\nsecond_round = true\n\
                    zookeeper = [\"tickTime=500\"]\n";
        let file = of(&format!("{keys}{}", nodes(&["a", "b", "c", "a"]))).unwrap();
        let replica = file.replica(file.number("k3").unwrap()).unwrap();
        assert_eq!((replica.replica.node, replica.bytes_max), (3, Some(64 << 20)));
        assert_eq!(replica.replica.racks.of, [0, 1, 2, 0]);
        assert_eq!(replica.replica.racks.second_round, SecondRound::Consensus);
        assert_eq!(replica.replica.racks.round_trip, Duration::from_millis(30));
        assert_eq!(replica.zookeeper.tick_ms, 500);
        let before = of(&format!("[order]\nlease_cycles = 16\n{}", nodes(&["a"]))).unwrap();
        assert_eq!(before.keys.lease_cycles, 16);
    }

    #[test]
    fn what_replicas_cannot_do_is_refused_with_its_line() {
        let three = nodes(&["a", "b", "c"]);
        for (text, said) in [
            ("[keys]\nsecond_round = true\nlease_cycles = 1\n".to_owned() + &three, "excludes"),
            ("[keys]\nsecond_round = true\n".to_owned() + &nodes(&["a", "b"]), "none may vanish"),
            ("[keys]\nmembership = \"etcd://x\"\n".to_owned() + &nodes(&["a"]), "none may vanish"),
            ("[keys]\nzookeeper = [\"tickTim=1\"]\n".to_owned() + &three, "tickTim"),
            ("[keys]\nlimit = 3\n".to_owned() + &three, "limit_mib"),
            ("[keys]\n[order]\n".to_owned() + &three, "has both"),
        ] {
            let error = of(&text).unwrap_err();
            assert!(error.contains(said) && error.contains("line"), "{error}");
        }
    }
}
