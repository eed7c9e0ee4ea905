//! The recorder as a [`Service`].

use std::any::Any;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use evenfall_multicast_service::Settings;
use evenfall_runtime::service::{RoleSpec, Service, Start};
use evenfall_runtime::settings::{Document, KnownTable, SettingsError};
use evenfall_store_engine::{Store, StoreConfig};
use serde_json::Value;

use crate::role;

/// The role of this service.
const ROLES: &[RoleSpec] = &[RoleSpec {
    word: "recorder",
    aliases: &[],
    nouns: ["recorder", "recorders"],
    help: "Receives like a receiver, keeps every message in a store, and answers nodes that missed \
           messages",
    keys: &["record", "serve"],
    keeps_data: true,
}];

/// Serves readers of a store at an address until the returned value is dropped.
type ServeReaders = fn(&Arc<Store>, SocketAddr) -> Result<Box<dyn Any>, Box<dyn Error>>;

/// Recorders. They read the settings of the multicast, which checks them.
pub struct RecorderService {
    /// Serves readers at the address `serve` of a node. The server of a store is another crate.
    pub serve_readers: ServeReaders,
}

/// The key of `[[node]]` that the settings of the multicast do not have.
#[derive(serde::Deserialize)]
struct RecorderNodeKeys {
    name: String,
    #[serde(default, deserialize_with = "evenfall_runtime::address::deserialize_optional")]
    serve: Option<SocketAddr>,
}

impl Service for RecorderService {
    fn roles(&self) -> &'static [RoleSpec] {
        ROLES
    }

    fn tables(&self) -> Vec<KnownTable> {
        Vec::new()
    }

    fn values(&self, _: &Document) -> Result<toml::Table, SettingsError> {
        Ok(toml::Table::new())
    }

    fn check(&self, document: &Document) -> Result<(), SettingsError> {
        document.list::<RecorderNodeKeys>("node").map(drop)
    }

    fn check_run(&self, _: &Document) -> Result<(), SettingsError> {
        Ok(())
    }

    fn run(&self, start: &Start<'_>) -> Result<Value, Box<dyn Error>> {
        let settings = Settings::of(start.document)?;
        let node = settings.node(&start.node.name)?;
        let directory = node.record.as_ref().ok_or_else(|| {
            let name = &node.name;
            format!("node {name}: no directory to record in: give record = \"DIR\" or --record DIR")
        })?;
        let opened = Store::open(StoreConfig::remembered(directory)?)?;
        opened.losses.iter().for_each(|loss| tracing::warn!("{loss}"));
        let keys: Vec<RecorderNodeKeys> = start.document.list("node")?;
        let listen = keys.into_iter().find(|keys| keys.name == node.name).and_then(|k| k.serve);
        let store = Arc::new(opened.store);
        let server = listen.map(|listen| (self.serve_readers)(&store, listen)).transpose()?;
        let recorded = role::run(&settings, node, &store);
        drop(server);
        Arc::into_inner(store).ok_or("a connection holds the store")?.close()?;
        Ok(serde_json::to_value(recorded?)?)
    }
}
