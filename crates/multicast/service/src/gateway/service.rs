//! Gateways as a [`Service`]. They read the settings of the multicast, which checks them, and a
//! table of their own.

use std::error::Error;

use evenfall_runtime::service::{RoleSpec, Service, Start};
use evenfall_runtime::settings::{self, KnownTable, SettingsDocument, SettingsError, keys_of};
use serde_json::Value;

use super::role;
use super::settings::{GatewayNode, GatewaySettings, all_gateways, table};
use crate::settings::Settings;

/// The role of this service.
const ROLES: &[RoleSpec] = &[RoleSpec {
    word: "gateway",
    aliases: &[],
    nouns: ["gateway", "gateways"],
    help: "Receives like a receiver, and hands each message on at its release to participants who \
           have neither our code nor our key: by UDP, as MoldUDP64, plain or sealed for each",
    keys: &["participants", "participant_keys", "rerequest", "requesters", "interface"],
    keeps_data: false,
}];

/// Gateways.
pub struct GatewayService;

impl Service for GatewayService {
    fn roles(&self) -> &'static [RoleSpec] {
        ROLES
    }

    fn tables(&self) -> Vec<KnownTable> {
        vec![KnownTable { table: "gateway", keys: keys_of::<GatewaySettings>() }]
    }

    fn values(&self, document: &SettingsDocument) -> Result<toml::Table, SettingsError> {
        let mut tables = toml::Table::new();
        settings::put(&mut tables, "gateway", &table(document)?);
        Ok(tables)
    }

    fn check(&self, document: &SettingsDocument) -> Result<(), SettingsError> {
        table(document)?;
        all_gateways(document).map(drop)
    }

    fn check_run(&self, _: &SettingsDocument) -> Result<(), SettingsError> {
        Ok(())
    }

    fn describe(&self, document: &SettingsDocument) -> Result<Vec<String>, SettingsError> {
        let protocol = table(document)?.protocol;
        let line = |gateway: GatewayNode| {
            let requests = gateway.rerequest.map(|at| format!(", requests at {at}"));
            let plural = if gateway.participants.len() == 1 { "" } else { "s" };
            format!(
                "{}: hands on to {} participant{plural} as {protocol}{}",
                gateway.name,
                gateway.participants.len(),
                requests.unwrap_or_default()
            )
        };
        Ok(all_gateways(document)?.into_iter().map(line).collect())
    }

    fn run(&self, start: &Start<'_>) -> Result<Value, Box<dyn Error>> {
        let settings = Settings::of(start.document)?;
        let node = settings.node(&start.node.name)?;
        let gateway = GatewayNode::of(start.document, &node.name)?;
        let table = table(start.document)?;
        Ok(serde_json::to_value(role::run(&settings, node, &gateway, &table)?)?)
    }
}
