//! The servers of replicated files as a [`Service`].

use std::error::Error;

use evenfall_runtime::service::{RoleSpec, Service, Start};
use evenfall_runtime::settings::{self, KnownTable, SettingsDocument, SettingsError};
use serde_json::Value;

use crate::settings::{DATASERVER, FLOWSERVER, NAMESERVER, Settings};

/// The roles of this service.
const ROLES: &[RoleSpec] = &[
    RoleSpec {
        word: NAMESERVER,
        aliases: &[],
        nouns: [NAMESERVER, "nameservers"],
        help: "Keeps the names of replicated files, and the places of their copies",
        keys: &["advertise", "files"],
        keeps_data: true,
    },
    RoleSpec {
        word: DATASERVER,
        aliases: &[],
        nouns: [DATASERVER, "dataservers"],
        help: "Keeps copies of replicated files",
        keys: &["advertise", "files", "rack"],
        keeps_data: true,
    },
    RoleSpec {
        word: FLOWSERVER,
        aliases: &[],
        nouns: [FLOWSERVER, "flowservers"],
        help: "Chooses the copies from which clients read, by the flows that it knows",
        keys: &["advertise"],
        keeps_data: false,
    },
];

/// Nameservers, dataservers and flowservers.
pub struct FilesService;

impl Service for FilesService {
    fn roles(&self) -> &'static [RoleSpec] {
        ROLES
    }

    fn tables(&self) -> Vec<KnownTable> {
        Settings::known()
    }

    fn values(&self, document: &SettingsDocument) -> Result<toml::Table, SettingsError> {
        let mut tables = toml::Table::new();
        settings::put(&mut tables, "files", &Settings::of(document)?.files);
        Ok(tables)
    }

    fn check(&self, document: &SettingsDocument) -> Result<(), SettingsError> {
        Settings::of(document).map(drop)
    }

    fn check_run(&self, document: &SettingsDocument) -> Result<(), SettingsError> {
        Settings::of(document)?.check_closed().map_err(|mistake| document.refuse(mistake))
    }

    #[cfg(feature = "servers")]
    fn run(&self, start: &Start<'_>) -> Result<Value, Box<dyn Error>> {
        let settings = Settings::of(start.document)?;
        let node = settings.node(start.role.word, Some(&start.node.name))?;
        let options = crate::Options::of(&settings, node)?;
        let started = || {
            let (name, address) = (&node.plain.name, node.reached_by());
            (start.say)(&format!("{name} takes clients at {address}"));
        };
        match start.role.word {
            NAMESERVER => crate::run_nameserver(&options, started)?,
            FLOWSERVER => crate::run_flowserver(&options, started)?,
            _ => crate::run_dataserver(&options, started)?,
        }
        Ok(serde_json::json!({ "name": start.node.name, "ended": "stopped by a signal" }))
    }

    #[cfg(not(feature = "servers"))]
    fn run(&self, start: &Start<'_>) -> Result<Value, Box<dyn Error>> {
        let role = start.role.word;
        Err(evenfall_runtime::service::NotBuilt { role, feature: "files" }.into())
    }
}
