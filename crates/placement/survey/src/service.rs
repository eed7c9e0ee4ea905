//! The agents of surveys as a [`Service`].

use std::error::Error;

use evenfall_runtime::service::{RoleSpec, Service, Start};
use evenfall_runtime::settings::{self, KnownTable, SettingsDocument, SettingsError};
use serde_json::Value;

use crate::Settings;
use crate::settings::AGENT;

/// The role of this service.
const ROLES: &[RoleSpec] = &[RoleSpec {
    word: AGENT,
    aliases: &[],
    nouns: ["agent", "agents"],
    help: "Measures delays when `evenfall plan live` asks",
    keys: &[],
    keeps_data: false,
}];

/// Agents.
pub struct SurveyService;

impl Service for SurveyService {
    fn roles(&self) -> &'static [RoleSpec] {
        ROLES
    }

    fn tables(&self) -> Vec<KnownTable> {
        vec![KnownTable { table: "survey", keys: &[] }]
    }

    fn values(&self, document: &SettingsDocument) -> Result<toml::Table, SettingsError> {
        let mut tables = toml::Table::new();
        settings::put(&mut tables, "survey", &Settings::of(document)?.survey);
        Ok(tables)
    }

    fn check(&self, document: &SettingsDocument) -> Result<(), SettingsError> {
        Settings::of(document).map(drop)
    }

    fn check_run(&self, document: &SettingsDocument) -> Result<(), SettingsError> {
        Settings::of(document)?.check_closed().map_err(|mistake| document.refuse(mistake))
    }

    #[cfg(feature = "agents")]
    fn run(&self, start: &Start<'_>) -> Result<Value, Box<dyn Error>> {
        let settings = Settings::of(start.document)?;
        Ok(serde_json::to_value(crate::agent::run(&settings, start.node)?)?)
    }

    #[cfg(not(feature = "agents"))]
    fn run(&self, _: &Start<'_>) -> Result<Value, Box<dyn Error>> {
        Err(evenfall_runtime::service::NotBuilt { role: AGENT, feature: "agents" }.into())
    }
}
