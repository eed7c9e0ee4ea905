//! The replicas of ordered keys as a [`Service`].

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evenfall_consensus_replica::{MembershipService, Replica};
use evenfall_runtime::service::{Observed, RoleSpec, Service, Start};
use evenfall_runtime::settings::{self, KnownTable, SettingsDocument, SettingsError};
use evenfall_runtime::telemetry::{Metrics, Telemetry};
use serde_json::{Value, json};

use crate::KeysError;
use crate::replica::run_observed;
use crate::settings::{KEYS, KEYS_BEFORE, KeysFile};
use crate::shared::SharedKeys;

/// The role of this service.
const ROLES: &[RoleSpec] = &[RoleSpec {
    word: KEYS,
    aliases: &[KEYS_BEFORE],
    nouns: ["replica of keys", "replicas of keys"],
    help: "Keeps ordered keys for `evenfall kv` and for ZooKeeper's clients: with --name a replica \
           of the settings file, else replicas of this machine",
    keys: &["keys", "rack"],
    keeps_data: true,
}];

/// Opens the service that says which racks have vanished, by its address.
type OpenMembership = fn(&str) -> Result<Box<dyn MembershipService>, Box<dyn Error>>;

/// Replicas of ordered keys.
pub struct KeysService {
    /// Reaches the service of `keys.membership`, whose client belongs to another crate.
    pub open_membership: OpenMembership,
}

impl Service for KeysService {
    fn roles(&self) -> &'static [RoleSpec] {
        ROLES
    }

    fn tables(&self) -> Vec<KnownTable> {
        KeysFile::known()
    }

    fn values(&self, document: &SettingsDocument) -> Result<toml::Table, SettingsError> {
        let mut tables = toml::Table::new();
        settings::put(&mut tables, KEYS, &KeysFile::of(document)?.keys);
        Ok(tables)
    }

    fn check(&self, document: &SettingsDocument) -> Result<(), SettingsError> {
        KeysFile::of(document).map(drop)
    }

    fn check_run(&self, document: &SettingsDocument) -> Result<(), SettingsError> {
        KeysFile::of(document)?.check_closed().map_err(|mistake| document.refuse(mistake))
    }

    fn describe(&self, document: &SettingsDocument) -> Result<Vec<String>, SettingsError> {
        let note = format!("note: [{KEYS_BEFORE}] is called [{KEYS}] now, and is still read");
        Ok(document.has(KEYS_BEFORE).then_some(note).into_iter().collect())
    }

    fn run(&self, start: &Start<'_>) -> Result<Value, Box<dyn Error>> {
        if start.document.has(KEYS_BEFORE) {
            tracing::warn!("[{KEYS_BEFORE}] of the settings is called [{KEYS}] now");
        }
        let file = KeysFile::of(start.document)?;
        let number = file.number(&start.node.name)?;
        let replica = file.replica(number)?;
        let membership = file.keys.membership.as_deref().map(self.open_membership).transpose()?;
        evenfall_host::procstat::raise_files();
        let (of, listen) = (file.nodes.len(), replica.listen);
        let (http, keyed) = (start.node.http, replica.replica.key.is_some());
        let labels = Metrics::of(&start.node.name, KEYS);
        let mut pages = None;
        let started = |shared: &Arc<SharedKeys>| {
            let observed = Arc::new(ReplicaPages(Arc::clone(shared)));
            let failed = |error| KeysError::Io("pages".into(), std::io::Error::other(error));
            pages = Some(Telemetry::observe(http, keyed, labels, observed).map_err(failed)?);
            (start.say)(&format!("replica {number} of {of} takes clients at {listen}"));
            Ok(())
        };
        run_observed(&replica, Replica::open(&replica.replica, membership)?, started)?;
        drop(pages);
        Ok(json!({ "name": start.node.name, "ended": "stopped by a signal" }))
    }
}

/// A replica whose pages are read.
struct ReplicaPages(Arc<SharedKeys>);

impl Observed for ReplicaPages {
    fn metrics(&self, m: &mut Metrics) {
        let counters = &self.0.counters;
        let (count, bytes, revision) = self.keys();
        m.gauge("keys", "Keys at present.", 0, count as f64);
        m.gauge("keys_bytes", "Bytes of keys and values.", 0, bytes as f64);
        m.counter("keys_revision", "Changes of keys so far.", 0, revision);
        let cycle = counters.cycle.load(Relaxed);
        m.counter("cycles_total", "Cycles committed here.", 0, cycle);
        let reads = counters.reads_at_once.load(Relaxed);
        m.counter("reads_at_once_total", "Reads answered under write leases.", 0, reads);
        let waiting = counters.waiting.load(Relaxed) as f64;
        m.gauge("calls_waiting", "Calls that wait for a cycle.", 0, waiting);
        let members = counters.members.load(Relaxed) as f64;
        m.gauge("replicas", "Replicas that take part.", 0, members);
        let is_member = f64::from(u8::from(counters.is_member.load(Relaxed)));
        m.gauge("member", "1 while this replica takes part.", 0, is_member);
        let racks_out = f64::from(counters.racks_out.load(Relaxed).count_ones());
        m.gauge("racks_out", "Racks that take no part.", 0, racks_out);
    }

    fn explain_illness(&self) -> Option<String> {
        let counters = &self.0.counters;
        match (counters.is_disk_full.load(Relaxed), counters.is_member.load(Relaxed)) {
            (true, _) => Some("the disk is full".into()),
            (_, false) => Some("this replica takes no part".into()),
            _ => None,
        }
    }

    fn status(&self) -> Value {
        let counters = &self.0.counters;
        let (keys, bytes, revision) = self.keys();
        json!({
            "keys": keys, "bytes": bytes, "revision": revision,
            "cycle": counters.cycle.load(Relaxed), "member": counters.is_member.load(Relaxed),
            "replicas": counters.members.load(Relaxed), "waiting": counters.waiting.load(Relaxed),
            "racks_out": counters.racks_out.load(Relaxed).count_ones(),
        })
    }
}

impl ReplicaPages {
    /// How many keys there are, their bytes, and the number of the last change.
    fn keys(&self) -> (usize, usize, u64) {
        let keys = self.0.keys();
        (keys.len(), keys.bytes(), keys.revision())
    }
}
