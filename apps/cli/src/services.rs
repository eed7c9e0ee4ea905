//! The registry: every service that this program knows. `run`, `config`, `stat` and the pages walk
//! this list, and nothing else knows the roles.

use std::path::Path;

use clap::builder::PossibleValue;
use evenfall_files_service::service::FilesService;
use evenfall_multicast_recorder::service::RecorderService;
use evenfall_multicast_service::gateway::service::GatewayService;
use evenfall_multicast_service::service::MulticastService;
use evenfall_placement_survey::service::SurveyService;
use evenfall_runtime::service::{self, Service};
use evenfall_runtime::settings::{Node, SettingsDocument, SettingsError, SettingsMistake};
use evenfall_store_server::service::StoreService;

/// The settings file, when none is given.
pub const CONFIG: &str = "evenfall.toml";
/// The word after `evenfall run` for all servers of files on this machine, which is no role of a
/// node.
pub const FILES: &str = "files";

/// Every service, in the order in which `config check` counts their nodes.
pub const SERVICES: &[&dyn Service] = &[
    &MulticastService,
    &GatewayService,
    &RecorderService {
        hold_recent: crate::bursts::hold_recent,
        open_tables: crate::store::OPEN_TABLES,
        serve_readers: crate::store::serve_readers,
    },
    &SurveyService,
    &StoreService,
    &FilesService,
    &KEYS,
];

#[cfg(feature = "keys")]
const KEYS: evenfall_keys_zookeeper::service::KeysService =
    evenfall_keys_zookeeper::service::KeysService { open_membership: crate::keys::open_membership };
#[cfg(not(feature = "keys"))]
const KEYS: absent::KeysService = absent::KeysService;

/// A service that this build lacks. Its nodes may stand in a settings file of several hosts.
#[cfg(not(feature = "keys"))]
mod absent {
    use evenfall_runtime::service::{NotBuilt, RoleSpec, Service, Start};
    use evenfall_runtime::settings::{KnownTable, SettingsDocument, SettingsError};

    /// Replicas of ordered keys, whose section is checked where they are built.
    pub struct KeysService;

    impl Service for KeysService {
        fn roles(&self) -> &'static [RoleSpec] {
            const {
                &[RoleSpec {
                    word: "keys",
                    aliases: &["order"],
                    nouns: ["replica of keys", "replicas of keys"],
                    help: "Keeps ordered keys; this build lacks the role",
                    keys: &["keys", "rack"],
                    keeps_data: true,
                }]
            }
        }

        fn tables(&self) -> Vec<KnownTable> {
            ["keys", "order"].map(|table| KnownTable { table, keys: &[] }).to_vec()
        }

        fn values(&self, _: &SettingsDocument) -> Result<toml::Table, SettingsError> {
            Ok(toml::Table::new())
        }

        fn check(&self, _: &SettingsDocument) -> Result<(), SettingsError> {
            Ok(())
        }

        fn check_run(&self, _: &SettingsDocument) -> Result<(), SettingsError> {
            Ok(())
        }

        fn run(&self, _: &Start<'_>) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
            Err(NotBuilt { role: "keys", feature: "keys" }.into())
        }
    }
}

/// The words that `evenfall run` takes.
pub fn role_words() -> Vec<PossibleValue> {
    let word = |(_, role): (_, &service::RoleSpec)| {
        PossibleValue::new(role.word).help(role.help).aliases(role.aliases)
    };
    let files = PossibleValue::new(FILES)
        .help("Keeps replicated files: all servers on this machine. No settings file is read");
    service::all_roles(SERVICES).map(word).chain([files]).collect()
}

/// Reads a settings file and checks it against all services.
///
/// # Errors
/// The file, line and key, or the override, and what is allowed.
pub fn load(path: &Path, sets: &[String]) -> Result<SettingsDocument, SettingsError> {
    let document = SettingsDocument::load(path, sets)?;
    service::check(SERVICES, &document)?;
    Ok(document)
}

/// As [`load`], and also refuses settings that `evenfall run` would refuse later, or that would
/// make it wait without end.
///
/// # Errors
/// As for [`load`], and the missing part.
pub fn load_runnable(path: &Path, sets: &[String]) -> Result<SettingsDocument, SettingsError> {
    let document = SettingsDocument::load(path, sets)?;
    check_runnable(&document)?;
    Ok(document)
}

/// The checks of [`load_runnable`].
///
/// # Errors
/// As there.
pub fn check_runnable(document: &SettingsDocument) -> Result<(), SettingsError> {
    service::check(SERVICES, document)?;
    if document.list::<Node>("node")?.is_empty() {
        let why = "no [[node]]: a run needs one root and at least one receiver or recorder; \
                   `evenfall config default` ends with an example";
        return Err(document.refuse(SettingsMistake::new("", why)));
    }
    service::check_run(SERVICES, document)
}

/// The tables of all services, with every default.
///
/// # Errors
/// As for [`load`].
pub fn values(document: &SettingsDocument) -> Result<toml::Table, SettingsError> {
    let mut all = toml::Table::new();
    for service in SERVICES {
        all.extend(service.values(document)?);
    }
    Ok(all)
}
