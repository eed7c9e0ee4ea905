//! The recorder as a [`Service`].

use std::any::Any;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenfall_host::interrupt;
use evenfall_multicast_service::Settings;
use evenfall_runtime::service::{RoleSpec, Service, Start};
use evenfall_runtime::settings::{
    self, KnownTable, OPEN, SettingsDocument, SettingsError, SettingsMistake,
};
use evenfall_store_engine::{Store, StoreConfig};
use evenfall_store_recording::layouts::message_layouts;
use serde_json::Value;

use crate::recent::{BYTES_LEAST, BurstLimits, HoldRecent, ROWS_LEAST, RecentHolding};
use crate::role::{self, RecorderExtras};
use crate::tables::OpenTables;

/// The role of this service.
const ROLES: &[RoleSpec] = &[RoleSpec {
    word: "recorder",
    aliases: &[],
    nouns: ["recorder", "recorders"],
    help: "Receives like a receiver, keeps every message in a store, and answers nodes that missed \
           messages",
    keys: &["burst", "burst_listen", "positions", "record", "serve", "tables"],
    keeps_data: true,
}];

/// Serves readers of a store at an address until the returned value is dropped.
type ServeReaders = fn(&Arc<Store>, SocketAddr) -> Result<Box<dyn Any>, Box<dyn Error>>;

/// Recorders. They read the settings of the multicast, which checks them.
pub struct RecorderService {
    /// Holds the last seconds in memory and answers questions about them, for a node with `burst`.
    pub hold_recent: HoldRecent,
    /// Opens the trades and quotes beside the messages; `None` in a program that lacks them.
    pub open_tables: Option<OpenTables>,
    /// Serves readers at the address `serve` of a node. The server of a store is another crate.
    pub serve_readers: ServeReaders,
}

/// The keys of `[[node]]` that the settings of the multicast do not have.
#[derive(serde::Deserialize)]
struct RecorderNodeKeys {
    name: String,
    #[serde(default, deserialize_with = "evenfall_runtime::address::deserialize_optional")]
    address: Option<SocketAddr>,
    #[serde(default, deserialize_with = "evenfall_runtime::address::deserialize_optional")]
    serve: Option<SocketAddr>,
    #[serde(default, with = "humantime_serde")]
    burst: Option<Duration>,
    #[serde(default, deserialize_with = "evenfall_runtime::address::deserialize_optional")]
    burst_listen: Option<SocketAddr>,
    positions: Option<PathBuf>,
    tables: Option<bool>,
}

/// The windows that may be held: below, a question would miss its rows; above, a recording answers.
const WINDOW: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);

impl RecorderNodeKeys {
    /// What is wrong with the keys, and at which key.
    fn check(&self, is_keyed: bool) -> Result<(), (&'static str, String)> {
        let name = &self.name;
        let Some(burst) = self.burst else {
            let given = [
                ("burst_listen", self.burst_listen.is_some()),
                ("positions", self.positions.is_some()),
            ];
            return match given.into_iter().find(|(_, is_given)| *is_given) {
                Some((key, _)) => Err((
                    key,
                    format!(
                        "node {name}: `{key}` belongs to `burst`: give burst = \"5s\" or --burst 5s"
                    ),
                )),
                None => Ok(()),
            };
        };
        if !WINDOW.contains(&burst) {
            return Err((
                "burst",
                format!(
                    "node {name}: burst = \"{}\": must be between 100ms and 10m",
                    humantime::format_duration(burst)
                ),
            ));
        }
        match self.burst_listen {
            Some(listen) if !listen.ip().is_loopback() && !is_keyed => {
                Err(("burst_listen", format!("node {name}: burst_listen = {listen}: {OPEN}")))
            }
            _ => Ok(()),
        }
    }

    /// Where questions are taken: as given, or on a free port of the node's own address.
    fn listens_at(&self) -> SocketAddr {
        let own = self.address.map_or(IpAddr::from(Ipv4Addr::LOCALHOST), |address| address.ip());
        self.burst_listen.unwrap_or(SocketAddr::new(own, 0))
    }
}

/// The limits in the table `[burst]`.
fn limits_of(document: &SettingsDocument) -> Result<BurstLimits, SettingsError> {
    let limits: BurstLimits = document.part("burst")?;
    let least =
        [("rows_max", limits.rows_max, ROWS_LEAST), ("bytes_max", limits.bytes_max, BYTES_LEAST)];
    match least.into_iter().find(|(_, value, least)| value < least) {
        Some((key, value, least)) => {
            let why = format!("burst.{key} = {value}: must be at least {least}");
            Err(document.refuse(SettingsMistake::new(format!("burst.{key}"), why)))
        }
        None => Ok(limits),
    }
}

/// What a node is to hold; `None` without `burst`.
fn holding_of(
    settings: &Settings,
    document: &SettingsDocument,
    keys: &RecorderNodeKeys,
) -> Result<Option<RecentHolding>, Box<dyn Error>> {
    let Some(keep) = keys.burst else { return Ok(None) };
    Ok(Some(RecentHolding {
        name: keys.name.clone(),
        keep,
        limits: limits_of(document)?,
        listen: keys.listens_at(),
        positions: keys.positions.as_ref().map(|file| document.base().join(file)),
        key: settings.key()?,
    }))
}

impl Service for RecorderService {
    fn roles(&self) -> &'static [RoleSpec] {
        ROLES
    }

    fn tables(&self) -> Vec<KnownTable> {
        vec![KnownTable { table: "burst", keys: &[] }]
    }

    fn values(&self, document: &SettingsDocument) -> Result<toml::Table, SettingsError> {
        let mut tables = toml::Table::new();
        settings::put(&mut tables, "burst", &limits_of(document)?);
        Ok(tables)
    }

    fn check(&self, document: &SettingsDocument) -> Result<(), SettingsError> {
        limits_of(document)?;
        let is_keyed = Settings::of(document)?.run.is_keyed();
        let nodes: Vec<RecorderNodeKeys> = document.list("node")?;
        for (at, node) in nodes.iter().enumerate() {
            node.check(is_keyed).map_err(|(key, why)| {
                document.refuse(SettingsMistake::new(format!("node.{at}.{key}"), why))
            })?;
        }
        Ok(())
    }

    fn check_run(&self, _: &SettingsDocument) -> Result<(), SettingsError> {
        Ok(())
    }

    fn run(&self, start: &Start<'_>) -> Result<Value, Box<dyn Error>> {
        let settings = Settings::of(start.document)?;
        let node = settings.node(&start.node.name)?;
        let directory = node.record.as_ref().ok_or_else(|| {
            let name = &node.name;
            format!("node {name}: no directory to record in: give record = \"DIR\" or --record DIR")
        })?;
        let (remembered, layouts) = (StoreConfig::remembered(directory)?, message_layouts());
        let opened = Store::open(StoreConfig { layouts, ..remembered })?;
        opened.losses.iter().for_each(|loss| tracing::warn!("{loss}"));
        let keys: Vec<RecorderNodeKeys> = start.document.list("node")?;
        let keys = keys.into_iter().find(|keys| keys.name == node.name);
        let listen = keys.as_ref().and_then(|keys| keys.serve);
        let wants_tables = keys.as_ref().and_then(|keys| keys.tables).unwrap_or(true);
        let holding = keys.map(|keys| holding_of(&settings, start.document, &keys)).transpose()?;
        let store = Arc::new(opened.store);
        let server = listen.map(|listen| (self.serve_readers)(&store, listen)).transpose()?;
        let holder = holding.flatten().map(self.hold_recent).transpose()?;
        let extras = RecorderExtras {
            recent: holder.as_deref(),
            open_tables: self.open_tables.filter(|_| wants_tables),
            is_served: listen.is_some(),
        };
        let recorded = role::run(&settings, node, &store, extras);
        drop((server, holder));
        if let Some(step) = store.clock_step() {
            tracing::warn!("{}: {step}", node.name);
        }
        let store = Arc::into_inner(store).ok_or("a connection holds the store")?;
        // A supervisor that stops a recorder waits for seconds, and the end of a feed for all.
        if interrupt::raised() { store.stop() } else { store.close() }?;
        Ok(serde_json::to_value(recorded?)?)
    }
}
