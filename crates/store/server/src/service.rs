//! The servers of stores as a [`Service`].

use std::error::Error;
use std::sync::Arc;

use evenfall_runtime::service::{RoleSpec, Service, Start};
use evenfall_runtime::settings::{self, KnownTable, SettingsDocument, SettingsError};
use evenfall_runtime::telemetry::{Metrics, Telemetry};
use serde_json::Value;

use crate::role::{ServeOutput, ServedStore, serve};
use crate::settings::{STORE, Settings};

/// The role of this service.
const ROLES: &[RoleSpec] = &[RoleSpec {
    word: STORE,
    aliases: &[],
    nouns: [STORE, "stores"],
    help: "Serves a store on a port of this machine",
    keys: &["store"],
    keeps_data: true,
}];

/// Servers of stores.
pub struct StoreService;

impl Service for StoreService {
    fn roles(&self) -> &'static [RoleSpec] {
        ROLES
    }

    fn tables(&self) -> Vec<KnownTable> {
        Settings::known()
    }

    fn values(&self, document: &SettingsDocument) -> Result<toml::Table, SettingsError> {
        let mut tables = toml::Table::new();
        settings::put(&mut tables, STORE, &Settings::of(document)?.store);
        Ok(tables)
    }

    fn check(&self, document: &SettingsDocument) -> Result<(), SettingsError> {
        Settings::of(document).map(drop)
    }

    fn check_run(&self, document: &SettingsDocument) -> Result<(), SettingsError> {
        Settings::of(document)?.check_closed().map_err(|mistake| document.refuse(mistake))
    }

    fn run(&self, start: &Start<'_>) -> Result<Value, Box<dyn Error>> {
        let settings = Settings::of(start.document)?;
        let node = settings.nodes.iter().find(|node| node.plain == *start.node);
        let node = node.ok_or_else(|| format!("no store is called {}", start.node.name))?;
        let served = Arc::new(ServedStore::default());
        let (name, keyed) = (&node.plain.name, settings.run.is_keyed());
        let labels = Metrics::of(name, STORE);
        let observed = Arc::clone(&served);
        let _pages = Telemetry::observe(node.plain.http, keyed, labels, observed)?;
        let voice = ServeOutput {
            say: start.say,
            tell: &|loss| tracing::warn!("{name}: {loss}"),
            note: &|words| tracing::warn!("{name}: {words}"),
        };
        let (store, listen) = (&settings.store, node.plain.address);
        let counts = serve(store, &node.directory, listen, &served, &voice, None)?;
        Ok(serde_json::json!({ "name": name, "counts": counts, "ended": "stopped by a signal" }))
    }
}
