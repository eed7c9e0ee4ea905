//! A settings file with the changes from the environment and the command line.
//!
//! A [`SettingsDocument`] knows no role. A service asks it for the tables that the service owns
//! ([`SettingsDocument::part`]), and several services may own keys of one table. The program knows
//! all owned keys, and refuses the others ([`SettingsDocument::refuse_unknown`]).
//!
//! A mistake names the key, the line and what is allowed. `EVENFALL_MULTICAST__MODE=tree` and
//! `--set multicast.mode=tree` change the same key: `__` in a variable is the dot.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_host::whole_file::{SETTINGS_BYTES_MAX, read_text_up_to};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{SettingsError, SettingsMistake, part};

/// The longest duration of any key. A month is longer than any phase of a run, and small multiples
/// of it, such as one for each tree, still fit into the clock.
const DURATION_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);
/// Prefix of the variables that change a setting.
const ENVIRONMENT: &str = "EVENFALL_";
/// Variables with the prefix that are no settings: those of tests, the programs for SQL and for
/// simulations that the Python package starts, the key of a client of a store, and the level of
/// notes.
const NO_SETTINGS: [&str; 8] = [
    "EVENFALL_DATA",
    "EVENFALL_LAB",
    "EVENFALL_MINIO",
    "EVENFALL_QUERY",
    "EVENFALL_SEEDS",
    "EVENFALL_SEED_FIRST",
    "EVENFALL_STORE_KEY",
    crate::LEVEL_VARIABLE,
];

/// The environment's variables that are settings.
///
/// # Errors
/// The variable that is no UTF-8. Variables without the prefix are ignored.
pub fn overrides() -> Result<Vec<(String, String)>, SettingsError> {
    overrides_of(std::env::vars_os())
}

fn overrides_of(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String)>, SettingsError> {
    let ours = |(name, _): &(OsString, OsString)| {
        name.as_encoded_bytes().starts_with(ENVIRONMENT.as_bytes())
    };
    let text = |(name, value): (OsString, OsString)| {
        let shown = name.to_string_lossy().into_owned();
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => Ok((name, value)),
            _ => Err(SettingsError(format!("environment variable {shown}: is no UTF-8"))),
        }
    };
    variables.filter(ours).map(text).collect()
}

/// A table of the settings file, and keys of it that one owner knows. Without keys, the owner of
/// the table refuses unknown keys by itself.
#[derive(Clone, Copy, Debug)]
pub struct KnownTable {
    /// The name of the table.
    pub table: &'static str,
    /// The keys that the owner knows.
    pub keys: &'static [&'static str],
}

/// One override, and the whole text with this override and all before it.
#[derive(Clone)]
struct Override {
    /// The override as the user wrote it: the variable, or `--set key=value`.
    origin: String,
    key: String,
    text: String,
}

/// The settings of the file, the environment and the command line together.
#[derive(Clone)]
pub struct SettingsDocument {
    name: String,
    base: PathBuf,
    file: String,
    overrides: Vec<Override>,
}

impl SettingsDocument {
    /// Reads the file, then the environment, then `sets` (`key=value`).
    ///
    /// # Errors
    /// The file and line, or the override, and what is allowed.
    pub fn load(path: &Path, sets: &[String]) -> Result<Self, SettingsError> {
        // Some commands take the file by --config, some by its place, and Python by an argument.
        let text = read_text_up_to(path, SETTINGS_BYTES_MAX).map_err(|error| {
            let path = path.display();
            let why =
                format!("{path}: {error}; name a settings file, as `evenfall init` writes it");
            SettingsError(why)
        })?;
        let variables = overrides()?.into_iter();
        let mut document = Self::parse(&text, &path.display().to_string(), variables, sets)?;
        document.base = path.parent().unwrap_or(Path::new(".")).to_owned();
        Ok(document)
    }

    /// Parses a text and applies overrides.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn parse(
        text: &str,
        name: &str,
        variables: impl Iterator<Item = (String, String)>,
        sets: &[String],
    ) -> Result<Self, SettingsError> {
        let _: toml_edit::DocumentMut = text
            .parse()
            .map_err(|error| SettingsError(format!("{name}: {}", format!("{error}").trim_end())))?;
        let from_environment = variables
            .filter(|(variable, _)| !NO_SETTINGS.contains(&variable.as_str()))
            .map(|(variable, value)| {
                let key = variable[ENVIRONMENT.len()..].to_lowercase().replace("__", ".");
                (variable, key, value)
            });
        let from_sets = sets.iter().map(|set| {
            let (key, value) = set.split_once('=').unwrap_or((set, ""));
            (format!("--set {set}"), key.trim().to_owned(), value.trim().to_owned())
        });
        let (name, file) = (name.to_owned(), text.to_owned());
        let mut all = Self { name, base: PathBuf::new(), file, overrides: Vec::new() };
        for (origin, key, value) in from_environment.chain(from_sets) {
            all.set(&origin, &key, &value)?;
        }
        Ok(all)
    }

    /// Changes a key. `origin` is how the user wrote the change, such as `--from start`. An entry
    /// of a list stands in the key by its index: `node.2.from`.
    ///
    /// # Errors
    /// The origin, and why the key cannot be set.
    pub fn set(&mut self, origin: &str, key: &str, value: &str) -> Result<(), SettingsError> {
        let mut document: toml_edit::DocumentMut =
            self.text().parse().expect("every text of a document was parsed before");
        apply(&mut document, key, value)
            .map_err(|why| SettingsError(format!("{origin}: {why}")))?;
        let (origin, key, text) = (origin.to_owned(), key.to_owned(), document.to_string());
        self.overrides.push(Override { origin, key, text });
        Ok(())
    }

    /// The file with all overrides, as a text that needs none of them.
    pub fn text_with_overrides(&self) -> &str {
        self.text()
    }

    /// The file with all overrides.
    fn text(&self) -> &str {
        self.overrides.last().map_or(&self.file, |last| &last.text)
    }

    /// The keys of an entry of a list of tables, in the order of the file.
    pub fn keys_in_list(&self, list: &str, at: usize) -> Vec<String> {
        let Ok(tables) = self.text().parse::<toml::Table>() else { return Vec::new() };
        let entry = tables.get(list).and_then(|list| list.get(at)).and_then(|e| e.as_table());
        entry.map_or_else(Vec::new, |entry| entry.keys().cloned().collect())
    }

    /// Whether the document has a table of this name.
    pub fn has(&self, table: &str) -> bool {
        self.text().parse::<toml::Table>().is_ok_and(|tables| tables.contains_key(table))
    }

    /// The directory from which relative paths of the settings begin.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The keys of this table that `T` knows. Absent keys have the defaults of `T`. Keys of other
    /// owners are skipped when `T` does not deny them.
    ///
    /// # Errors
    /// The line and key of the file, or the override, and what is allowed.
    pub fn part<T: DeserializeOwned + Default>(&self, table: &str) -> Result<T, SettingsError> {
        Ok(self.find(table)?.unwrap_or_default())
    }

    /// The entries of a list of tables, such as `[[node]]`.
    ///
    /// # Errors
    /// As [`part`](Self::part).
    pub fn list<T: DeserializeOwned>(&self, table: &str) -> Result<Vec<T>, SettingsError> {
        Ok(self.find(table)?.unwrap_or_default())
    }

    fn find<T: DeserializeOwned>(&self, table: &str) -> Result<Option<T>, SettingsError> {
        // The file is read by itself first, so that its mistakes have their own line numbers.
        let mut found = part::of(&self.file, table).map_err(|error| {
            let (words, such) = (error.to_string(), such_as(error.message()));
            SettingsError(format!("{}: {}{such}", self.name, words.trim_end()))
        })?;
        for step in &self.overrides {
            found = part::of(&step.text, table).map_err(|error| {
                let (words, such) = (error.message(), such_as(error.message()));
                SettingsError(format!("{}: {words}{such}", step.origin))
            })?;
        }
        Ok(found)
    }

    /// Refuses tables and keys that no service owns. `known` names each table with some of its
    /// keys, and a table may appear several times. A table whose only owner denies unknown keys
    /// itself is named without keys.
    ///
    /// # Errors
    /// The first table or key without an owner, its place, and the known names.
    pub fn refuse_unknown(&self, known: &[KnownTable]) -> Result<(), SettingsError> {
        let Ok(document) = self.text().parse::<toml_edit::DocumentMut>() else { return Ok(()) };
        let tables: Vec<&str> = known.iter().map(|known| known.table).collect();
        for (table, item) in document.iter() {
            if !tables.contains(&table) {
                return Err(self.unknown(table, table, &tables));
            }
            let keys: Vec<&str> = known
                .iter()
                .filter(|known| known.table == table)
                .flat_map(|known| known.keys.iter().copied())
                .collect();
            if keys.is_empty() {
                continue;
            }
            let entries: Vec<(String, &dyn toml_edit::TableLike)> = match item {
                toml_edit::Item::ArrayOfTables(list) => list
                    .iter()
                    .enumerate()
                    .map(|(at, entry)| {
                        (format!("{table}.{at}"), entry as &dyn toml_edit::TableLike)
                    })
                    .collect(),
                item => item.as_table_like().map(|t| (table.to_owned(), t)).into_iter().collect(),
            };
            for (place, entry) in entries {
                if let Some((key, _)) = entry.iter().find(|(key, _)| !keys.contains(key)) {
                    return Err(self.unknown(&format!("{place}.{key}"), key, &keys));
                }
            }
        }
        Ok(())
    }

    /// Refuses a key under the name that it had in an earlier version.
    ///
    /// # Errors
    /// The place of the old name, and the present name.
    pub fn refuse_renamed(&self, old: &str, new: &str) -> Result<(), SettingsError> {
        let Ok(tables) = self.text().parse::<toml::Table>() else { return Ok(()) };
        let (path, name) = old.rsplit_once('.').unwrap_or(("", old));
        let table = path.split('.').try_fold(&tables, |at, part| at.get(part)?.as_table());
        if table.is_some_and(|table| table.contains_key(name)) {
            let why = format!("`{name}` is called `{new}` now; rename it in [{path}]");
            return Err(self.refuse(SettingsMistake::new(old, why)));
        }
        Ok(())
    }

    fn unknown(&self, place: &str, word: &str, known: &[&str]) -> SettingsError {
        let mut known: Vec<String> = known.iter().map(|key| format!("`{key}`")).collect();
        known.sort_unstable();
        known.dedup();
        let why = format!("unknown field `{word}`, expected one of {}", known.join(", "));
        self.refuse(SettingsMistake::new(place, why))
    }

    /// Refuses durations that no run can have, in any key, because the clocks of machines add them
    /// up.
    ///
    /// # Errors
    /// The first such duration, and the longest that is allowed.
    pub fn check_durations(&self) -> Result<(), SettingsError> {
        let Ok(mut tables) = self.text().parse::<toml::Table>() else { return Ok(()) };
        // Names of nodes may look like durations.
        tables.remove("node");
        durations("", &tables.into()).map_err(|mistake| self.refuse(mistake))
    }

    /// Adds the place of a mistake: the override that made it, or the line of the file.
    pub fn refuse(&self, mistake: SettingsMistake) -> SettingsError {
        let origin = self.overrides.iter().rev().find(|step| step.key == mistake.key);
        let place = match (origin, line_of(&self.file, &mistake.key)) {
            (Some(step), _) => step.origin.clone(),
            (None, Some(line)) => format!("{}: line {line}", self.name),
            (None, None) => self.name.clone(),
        };
        SettingsError(format!("{place}: {}", mistake.why))
    }
}

/// Puts the keys of a part into its table of a document that is to be written.
pub fn put(document: &mut toml::Table, table: &str, part: &impl Serialize) {
    let part = toml::Table::try_from(part).expect("settings are plain tables");
    let entry = document.entry(table).or_insert_with(|| toml::Table::new().into());
    if let toml::Value::Table(table) = entry {
        table.extend(part);
    }
}

/// An example of the expected value, where the libraries' message has none.
fn such_as(message: &str) -> &'static str {
    if message.ends_with("expected a duration") { ", such as \"50ms\"" } else { "" }
}

/// Sets a dotted key in a document, and creates missing tables.
///
/// # Errors
/// The reason why the key cannot be set.
pub fn apply(
    document: &mut toml_edit::DocumentMut,
    key: &str,
    value: &str,
) -> Result<(), SettingsError> {
    if key.is_empty() || value.is_empty() {
        return Err(SettingsError::new("must be key=value, such as multicast.mode=tree"));
    }
    // A value that is no TOML by itself is taken as a string: mode=tree, hold_max=5ms.
    let value = value.parse().unwrap_or_else(|_| toml_edit::Value::from(value));
    let mut table = document.as_table_mut() as &mut dyn toml_edit::TableLike;
    let parts: Vec<&str> = key.split('.').collect();
    let mut path = parts[..parts.len() - 1].iter();
    while let Some(part) = path.next() {
        let item = table.entry(part).or_insert(toml_edit::table());
        let kind = item.type_name();
        if item.is_array_of_tables() {
            let index = path.next().and_then(|index| index.parse::<usize>().ok());
            let entry = item.as_array_of_tables_mut().zip(index);
            let entry = entry.and_then(|(list, index)| list.get_mut(index));
            let no_entry =
                || SettingsError(format!("{part} is a list: say {part}.0 for its first"));
            table = entry.ok_or_else(no_entry)?;
            continue;
        }
        let not_a_table = || SettingsError(format!("{part} is a {kind}, not a table"));
        table = item.as_table_like_mut().ok_or_else(not_a_table)?;
    }
    table.insert(parts[parts.len() - 1], toml_edit::value(value));
    Ok(())
}

/// The line of a dotted key in a TOML text. An entry of a list stands in the key by its index. When
/// the text leaves the key out, the line of its table.
pub fn line_of(text: &str, key: &str) -> Option<usize> {
    let document = toml_edit::Document::parse(text).ok()?;
    let mut item = document.as_item();
    let mut found = None;
    for part in key.split('.') {
        let next = part.parse().map_or_else(|_| item.get(part), |index: usize| item.get(index));
        let Some(next) = next else { break };
        item = next;
        found = item.span().or(found);
    }
    found.map(|span| text[..span.start].matches('\n').count() + 1)
}

/// Refuses durations of more than a month, in a table and the tables inside it.
fn durations(key: &str, value: &toml::Value) -> Result<(), SettingsMistake> {
    match value {
        toml::Value::Table(table) => table.iter().try_for_each(|(name, value)| {
            let dot = if key.is_empty() { "" } else { "." };
            durations(&format!("{key}{dot}{name}"), value)
        }),
        // A text that is no duration is not refused here.
        toml::Value::String(text) => match humantime::parse_duration(text) {
            Ok(duration) if duration > DURATION_MAX => {
                let most = humantime::format_duration(DURATION_MAX);
                Err(SettingsMistake::new(key, format!("{key} = {text}: must be {most} at most")))
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
