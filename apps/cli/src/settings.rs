//! The union of all settings. Every service brings its section, and this program knows all
//! sections.

use std::path::Path;

use evenfall_files_service::settings::{Files, ROLES as FILES_ROLES};
use evenfall_multicast_service::Settings;
use evenfall_multicast_service::settings::ROLES;
use evenfall_placement_survey::settings::{AGENT, Survey};
use evenfall_runtime::settings::{self, Document, Mistake, SettingsError};

#[cfg(test)]
mod documented;
mod example;
#[cfg(test)]
mod tests;

pub use self::example::default_file;

/// The settings file, when none is given.
pub const CONFIG: &str = "evenfall.toml";
/// The role of a replica of ordered keys among the nodes.
pub const KEYS: &str = "keys";
/// The old word for the role of a replica of ordered keys.
const KEYS_BEFORE: &str = "order";

/// Whether a role is that of a replica of ordered keys.
pub fn is_keys(role: &str) -> bool {
    [KEYS, KEYS_BEFORE].contains(&role)
}

/// All settings of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Union {
    /// Settings of root, proxies, receivers and recorders.
    pub multicast: Settings,
    /// Settings of agents and surveyors.
    pub survey: evenfall_placement_survey::Settings,
    /// Settings of servers of replicated files.
    pub files: evenfall_files_service::Settings,
}

impl Union {
    /// Reads the file, then the environment, then `sets` (`key=value`).
    ///
    /// # Errors
    /// The file, line and key, or the override, and what is allowed.
    pub fn load(path: &Path, sets: &[String]) -> Result<Self, SettingsError> {
        Self::of(&Document::load(path, sets)?)
    }

    /// Settings with which a run can begin. Also refuses settings that `evenfall run` would refuse
    /// later, or that would make it wait without end.
    ///
    /// # Errors
    /// As for [`load`](Self::load), and the missing part.
    pub fn load_runnable(path: &Path, sets: &[String]) -> Result<Self, SettingsError> {
        let document = Document::load(path, sets)?;
        let settings = Self::of(&document)?;
        settings.multicast.check_run().map_err(|mistake| document.refuse(mistake))?;
        settings.multicast.check_here().map_err(|mistake| document.refuse(mistake))?;
        settings.survey.check_closed().map_err(|mistake| document.refuse(mistake))?;
        settings.files.check_closed().map_err(|mistake| document.refuse(mistake))?;
        settings.multicast.key()?;
        Ok(settings)
    }

    /// The settings of a document.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn of(document: &Document) -> Result<Self, SettingsError> {
        let mut known = Settings::known();
        known.push(("survey", &[]));
        known.extend(evenfall_files_service::Settings::known());
        document.refuse_unknown(&known)?;
        let nodes: Vec<settings::Node> = document.list("node")?;
        let is_known = |role: &str| {
            let others = ["recv", AGENT, KEYS, KEYS_BEFORE];
            [&ROLES[..], &FILES_ROLES, &others].iter().any(|roles| roles.contains(&role))
        };
        if let Some((at, node)) = nodes.iter().enumerate().find(|(_, node)| !is_known(&node.role)) {
            let why = format!(
                "node {}: role = \"{}\": must be {}, {}, {AGENT} or {KEYS}",
                node.name,
                node.role,
                ROLES.join(", "),
                FILES_ROLES.join(", ")
            );
            return Err(document.refuse(Mistake::new(format!("node.{at}.role"), why)));
        }
        Ok(Self {
            multicast: Settings::of(document)?,
            survey: evenfall_placement_survey::Settings::of(document)?,
            files: evenfall_files_service::Settings::of(document)?,
        })
    }

    /// The settings as tables that [`load`](Self::load) reads back.
    pub fn to_table(&self) -> toml::Table {
        let mut document = self.multicast.to_table();
        settings::put(&mut document, "survey", &self.survey.survey);
        settings::put(&mut document, "files", &self.files.files);
        document
    }
}

/// The tables of every default, in the order in which people read them.
fn defaults() -> toml::Table {
    let mut document = Settings::default().to_table();
    settings::put(&mut document, "survey", &Survey::default());
    settings::put(&mut document, "files", &Files::default());
    document
}
