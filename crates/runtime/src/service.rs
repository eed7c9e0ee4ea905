//! The contract of a service: what every role of `[[node]]` brings to a process.
//!
//! A capability owns some roles, such as `root` and `proxy`, and some tables of the settings file.
//! The program has one list of all services. `evenfall run`, `config`, `stat` and the pages walk
//! this list, so that a role which is in the list is complete: it has a section of the settings,
//! checks, pages with metrics and health, and a way to run. A role outside the list does not exist.
//!
//! ```text
//!  file --SettingsDocument--> check ----> run(Start) ----> summary
//!                     |  every service        | the service of the role
//!                     |                       +--> Telemetry, `http`: /metrics, /healthz, /status
//!                     +--> describe: the lines of `config check`
//! ```
//!
//! A service whose machines run on the loop of [`Process`](crate::Process) publishes its pages from
//! that loop. Any other service implements [`Observed`], and [`Telemetry::observe`] asks it when a
//! page is read.
//!
//! [`Telemetry::observe`]: crate::telemetry::Telemetry::observe

use std::error::Error;

use serde_json::Value;

use crate::settings::{KnownTable, Node, SettingsDocument, SettingsError, SettingsMistake};
use crate::telemetry::Metrics;

/// The keys of `[[node]]` that every role uses.
const NODE_KEYS: [&str; 5] = ["name", "id", "role", "address", "http"];

/// A role that a node may have.
#[derive(Clone, Copy, Debug)]
pub struct RoleSpec {
    /// The word of the role in `[[node]]` and after `evenfall run`.
    pub word: &'static str,
    /// Earlier words of the role. They are still understood.
    pub aliases: &'static [&'static str],
    /// One node with this role, and several, as `config check` counts them.
    pub nouns: [&'static str; 2],
    /// What the role does, for `evenfall run --help`.
    pub help: &'static str,
    /// The keys of `[[node]]` that this role uses beside name, id, role, address and http.
    pub keys: &'static [&'static str],
    /// Whether the role has data that must outlive its process, such as a log or a recording.
    pub keeps_data: bool,
}

impl RoleSpec {
    /// Whether a node's `role` names this role.
    pub fn is_named(&self, word: &str) -> bool {
        self.word == word || self.aliases.contains(&word)
    }
}

/// The process that a service is to run.
pub struct Start<'a> {
    /// All settings, with overrides.
    pub document: &'a SettingsDocument,
    /// The role of the process.
    pub role: &'static RoleSpec,
    /// The node of the settings that the process is.
    pub node: &'a Node,
    /// Tells the user a line when clients can connect. A service that needs no clients says
    /// nothing.
    pub say: &'a dyn Fn(&str),
}

/// The roles of one capability, and everything that a program needs to know about them.
pub trait Service: Sync {
    /// The roles that this service runs.
    fn roles(&self) -> &'static [RoleSpec];

    /// The tables of the settings that the service owns, with their keys. The keys of `[[node]]`
    /// follow from the roles.
    fn tables(&self) -> Vec<KnownTable>;

    /// The tables as the document sets them, with every default, for `config default` and
    /// `config check --json`.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    fn values(&self, document: &SettingsDocument) -> Result<toml::Table, SettingsError>;

    /// Refuses settings that no process of this service could start with.
    ///
    /// # Errors
    /// The line and key of the first mistake, and what is allowed.
    fn check(&self, document: &SettingsDocument) -> Result<(), SettingsError>;

    /// Refuses settings with which a process would start and then wait without end, or which name
    /// files that are missing here.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    fn check_run(&self, document: &SettingsDocument) -> Result<(), SettingsError>;

    /// What `config check` says about the service beside the number of its nodes, a line each.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    fn describe(&self, document: &SettingsDocument) -> Result<Vec<String>, SettingsError> {
        let _ = document;
        Ok(Vec::new())
    }

    /// Runs a node until a signal comes or its work is done. Serves the pages of the node at its
    /// `http` address. Returns the summary of the run, whose `ended` says why it ended.
    ///
    /// # Errors
    /// Why the process could not begin or go on.
    fn run(&self, start: &Start<'_>) -> Result<Value, Box<dyn Error>>;
}

/// A running service that answers when its pages are read.
pub trait Observed: Send + Sync + 'static {
    /// Adds the present counts.
    fn metrics(&self, metrics: &mut Metrics);

    /// Why the service is not well, if it is not.
    fn explain_illness(&self) -> Option<String>;

    /// The present state.
    fn status(&self) -> Value;
}

/// The error of a build that lacks a service.
#[derive(Debug, thiserror::Error)]
#[error(
    "this build lacks the role {role}; install it with `cargo install --path apps/cli --features \
     full`, or with the feature {feature} alone"
)]
pub struct NotBuilt {
    /// The role.
    pub role: &'static str,
    /// The feature of the program that brings it.
    pub feature: &'static str,
}

/// Every role of these services.
pub fn all_roles<'a>(
    services: &'a [&'static dyn Service],
) -> impl Iterator<Item = (&'static dyn Service, &'static RoleSpec)> + 'a {
    services.iter().flat_map(|service| service.roles().iter().map(move |role| (*service, role)))
}

/// The service and the role that a word names.
///
/// # Errors
/// The words that are understood.
pub fn find_role(
    services: &[&'static dyn Service],
    word: &str,
) -> Result<(&'static dyn Service, &'static RoleSpec), SettingsError> {
    all_roles(services).find(|(_, role)| role.is_named(word)).ok_or_else(|| {
        let words: Vec<&str> = all_roles(services).map(|(_, role)| role.word).collect();
        SettingsError::new(format!("must be one of {}", words.join(", ")))
    })
}

/// Checks a document against all services: tables, roles, keys that a role does not use, and the
/// checks of each service.
///
/// # Errors
/// The first mistake with its line.
pub fn check(
    services: &[&'static dyn Service],
    document: &SettingsDocument,
) -> Result<(), SettingsError> {
    let mut known: Vec<KnownTable> = services.iter().flat_map(|service| service.tables()).collect();
    known.push(KnownTable { table: "node", keys: &NODE_KEYS });
    let of_roles =
        all_roles(services).map(|(_, role)| KnownTable { table: "node", keys: role.keys });
    known.extend(of_roles);
    document.refuse_unknown(&known)?;
    let nodes: Vec<Node> = document.list("node")?;
    for (at, node) in nodes.iter().enumerate() {
        let role = find_role(services, &node.role).map_err(|words| {
            let why = format!("node {}: role = \"{}\": {words}", node.name, node.role);
            document.refuse(SettingsMistake::new(format!("node.{at}.role"), why))
        })?;
        refuse_unused(services, document, at, node, role.1)?;
    }
    services.iter().try_for_each(|service| service.check(document))
}

/// Refuses a key of a node that its role does not use.
fn refuse_unused(
    services: &[&'static dyn Service],
    document: &SettingsDocument,
    at: usize,
    node: &Node,
    role: &'static RoleSpec,
) -> Result<(), SettingsError> {
    let is_used = |key: &str| NODE_KEYS.contains(&key) || role.keys.contains(&key);
    let Some(key) = document.keys_in_list("node", at).into_iter().find(|key| !is_used(key)) else {
        return Ok(());
    };
    let owners = all_roles(services).filter(|(_, role)| role.keys.contains(&key.as_str()));
    let owners: Vec<&str> = owners.map(|(_, role)| role.word).collect();
    let why = format!(
        "node {}: a node with role = \"{}\" does not use `{key}`; it belongs to {}",
        node.name,
        role.word,
        owners.join(", ")
    );
    Err(document.refuse(SettingsMistake::new(format!("node.{at}.{key}"), why)))
}

/// As [`check`], and refuses settings with which a process would wait without end.
///
/// # Errors
/// The first mistake with its line.
pub fn check_run(
    services: &[&'static dyn Service],
    document: &SettingsDocument,
) -> Result<(), SettingsError> {
    check(services, document)?;
    services.iter().try_for_each(|service| service.check_run(document))
}

/// How many nodes of each role a document has, such as `3 replicas of keys`, in the order of the
/// services.
///
/// # Errors
/// As [`check`].
pub fn counts(
    services: &[&'static dyn Service],
    document: &SettingsDocument,
) -> Result<Vec<String>, SettingsError> {
    let nodes: Vec<Node> = document.list("node")?;
    let count = |role: &RoleSpec| nodes.iter().filter(|node| role.is_named(&node.role)).count();
    let counted = all_roles(services).map(|(_, role)| match (count(role), role.nouns) {
        (1, [one, _]) => format!("1 {one}"),
        (count, [_, several]) => format!("{count} {several}"),
    });
    Ok(counted.filter(|words| !words.starts_with("0 ")).collect())
}

#[cfg(test)]
mod tests;
