//! The statements by which a client makes itself at home: `SET`, `SHOW`, transactions.
//!
//! All statements only read, so that a transaction is a word without an effect. Settings of the
//! planner are not taken: a client could undo the limits of the process with them.

use std::collections::BTreeMap;
use std::time::Duration;

use datafusion::sql::sqlparser::ast::{Expr, Set, Statement, Value};
use pgwire::error::PgWireError;

use crate::errors::user_error;

/// What a connection has set.
#[derive(Debug)]
pub(crate) struct ConnectionSettings {
    values: BTreeMap<String, String>,
}

/// The answer to a statement of this module.
#[derive(Debug, PartialEq)]
pub(crate) enum SettingsAnswer {
    /// A command without rows, by its tag.
    Done(&'static str),
    /// A transaction begins.
    Begun,
    /// A transaction ends.
    Ended(&'static str),
    /// One row of one column.
    Shown { name: String, value: String },
    /// The settings change what names mean.
    SearchPath(Option<String>),
}

/// A setting that is not taken, or unknown to `SHOW`.
#[derive(Debug, PartialEq)]
pub(crate) enum RefusedSetting {
    Unknown(String),
    /// The setting would hold more than a connection may.
    TooLong(String),
}

impl RefusedSetting {
    pub(crate) fn into_error(self) -> PgWireError {
        match self {
            Self::Unknown(name) => {
                let words = format!("unrecognized configuration parameter \"{name}\"");
                user_error("42704", &words, None)
            }
            Self::TooLong(name) => {
                let words = format!(
                    "{name}: a setting has {SETTING_BYTES} bytes at most, and a connection has \
                     {SETTINGS_MAX} settings"
                );
                user_error("54000", &words, None)
            }
        }
    }
}

/// Bytes of a setting's name and value.
const SETTING_BYTES: usize = 1_024;

/// Settings of a connection. The server knows two dozen, and remembers others for their client.
const SETTINGS_MAX: usize = 100;

impl Default for ConnectionSettings {
    fn default() -> Self {
        let known = [
            ("application_name", ""),
            ("bytea_output", "hex"),
            ("client_encoding", "UTF8"),
            ("client_min_messages", "notice"),
            ("datestyle", "ISO, YMD"),
            ("default_transaction_isolation", "read committed"),
            ("default_transaction_read_only", "on"),
            ("extra_float_digits", "1"),
            ("integer_datetimes", "on"),
            ("intervalstyle", "postgres"),
            ("lc_collate", "C"),
            ("lc_ctype", "C"),
            ("max_identifier_length", "63"),
            ("search_path", DEFAULT_PATH),
            ("server_encoding", "UTF8"),
            ("server_version", SERVER_VERSION),
            ("server_version_num", "160006"),
            ("standard_conforming_strings", "on"),
            ("statement_timeout", "0"),
            ("timezone", "Etc/UTC"),
            ("transaction_isolation", "read committed"),
            ("transaction_read_only", "on"),
        ];
        let known = known.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { values: known.into() }
    }
}

/// The search path of a connection that sets none: the recording of its database comes first.
const DEFAULT_PATH: &str = "\"$user\", public";

/// The version of PostgreSQL whose answers clients may expect.
pub(crate) const SERVER_VERSION: &str = "16.6";

impl ConnectionSettings {
    /// Answers a statement of this module; `None` for every other statement.
    pub(crate) fn answer(
        &mut self,
        statement: &Statement,
    ) -> Option<Result<SettingsAnswer, RefusedSetting>> {
        match statement {
            Statement::StartTransaction { .. } => Some(Ok(SettingsAnswer::Begun)),
            Statement::Deallocate { .. } => Some(Ok(SettingsAnswer::Done("DEALLOCATE"))),
            // Nothing is written, so that there is nothing to go back to.
            Statement::Savepoint { .. } => Some(Ok(SettingsAnswer::Done("SAVEPOINT"))),
            Statement::ReleaseSavepoint { .. } => Some(Ok(SettingsAnswer::Done("RELEASE"))),
            Statement::Rollback { savepoint: Some(_), .. } => {
                Some(Ok(SettingsAnswer::Done("ROLLBACK")))
            }
            Statement::Commit { .. } => Some(Ok(SettingsAnswer::Ended("COMMIT"))),
            Statement::Rollback { .. } => Some(Ok(SettingsAnswer::Ended("ROLLBACK"))),
            Statement::Discard { .. } => {
                *self = Self::default();
                Some(Ok(SettingsAnswer::Done("DISCARD ALL")))
            }
            Statement::Set(set) => Some(self.set(set)),
            Statement::ShowVariable { variable } => {
                let words: Vec<_> = variable.iter().map(|word| word.value.as_str()).collect();
                Some(self.show(&words.join("_")))
            }
            _ => None,
        }
    }

    fn set(&mut self, set: &Set) -> Result<SettingsAnswer, RefusedSetting> {
        match set {
            Set::SingleAssignment { variable, values, .. } => {
                let name = variable.to_string();
                let value: Vec<_> = values.iter().map(plain).collect();
                self.assign(&name, value.join(", "))
            }
            Set::SetTimeZone { value, .. } => self.assign("timezone", plain(value)),
            // Isolation, roles and names of characters change nothing about statements that read.
            _ => Ok(SettingsAnswer::Done("SET")),
        }
    }

    fn assign(&mut self, name: &str, value: String) -> Result<SettingsAnswer, RefusedSetting> {
        let name = name.trim_matches('"').to_ascii_lowercase();
        if name.starts_with("datafusion.") {
            return Err(RefusedSetting::Unknown(name));
        }
        let value = value.trim_matches('\'').to_owned();
        let is_full = self.values.len() >= SETTINGS_MAX && !self.values.contains_key(&name);
        if name.len() + value.len() > SETTING_BYTES || is_full {
            return Err(RefusedSetting::TooLong(name.chars().take(64).collect()));
        }
        self.values.insert(name.clone(), value);
        match name.as_str() {
            "search_path" => Ok(SettingsAnswer::SearchPath(self.search_path())),
            _ => Ok(SettingsAnswer::Done("SET")),
        }
    }

    fn show(&self, name: &str) -> Result<SettingsAnswer, RefusedSetting> {
        let lower = name.to_ascii_lowercase();
        let lower = match lower.as_str() {
            "time_zone" => "timezone",
            "transaction_isolation_level" => "transaction_isolation",
            other => other,
        };
        match self.values.get(lower) {
            Some(value) => {
                Ok(SettingsAnswer::Shown { name: lower.to_owned(), value: value.clone() })
            }
            None => Err(RefusedSetting::Unknown(name.to_owned())),
        }
    }

    /// Takes what a client sends when it connects: settings by their names, and settings in the
    /// words of a command line (`options`). Names that the server does not know are passed over.
    pub(crate) fn apply_startup(
        &mut self,
        parameters: &BTreeMap<String, String>,
    ) -> Result<(), RefusedSetting> {
        let options = parameters.get("options").map(String::as_str).unwrap_or_default();
        let options = options.split_whitespace().filter_map(|word| {
            let word = word.trim_start_matches("-c").trim_start_matches("--");
            word.split_once('=').map(|(name, value)| (name.replace('-', "_"), value.to_owned()))
        });
        let named = parameters.iter().map(|(name, value)| (name.clone(), value.clone()));
        for (name, value) in named.chain(options) {
            let name = name.to_ascii_lowercase();
            if self.values.contains_key(&name) {
                self.assign(&name, value)?;
            }
        }
        Ok(())
    }

    /// The first schema of the search path; `None` for the path that nobody has set.
    pub(crate) fn search_path(&self) -> Option<String> {
        let path = self.values.get("search_path")?;
        let first = path.split(',').next().unwrap_or_default().trim().trim_matches('"');
        (path != DEFAULT_PATH && !first.is_empty()).then(|| first.to_owned())
    }

    /// The value of a setting.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.values.get(&name.to_ascii_lowercase()).map(String::as_str)
    }

    /// How long a statement may take; `None` without a limit.
    pub(crate) fn statement_timeout(&self) -> Option<Duration> {
        let text = self.values.get("statement_timeout")?.trim();
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let number: u64 = text[..split].parse().ok()?;
        let unit_ms = match text[split..].trim() {
            "" | "ms" => 1,
            "s" => 1_000,
            "min" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        let ms = number.checked_mul(unit_ms)?;
        (ms > 0).then(|| Duration::from_millis(ms))
    }

    /// The zone in which instants are printed.
    pub(crate) fn time_zone(&self) -> &str {
        self.values.get("timezone").map_or("Etc/UTC", String::as_str)
    }
}

fn plain(value: &Expr) -> String {
    match value {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => text.clone(),
            other => other.to_string(),
        },
        other => other.to_string().trim_matches('"').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    fn answer(settings: &mut ConnectionSettings, sql: &str) -> SettingsAnswer {
        let statements = Parser::parse_sql(&PostgreSqlDialect {}, sql).unwrap();
        settings.answer(&statements[0]).unwrap().unwrap()
    }

    #[test]
    fn a_setting_is_shown_as_it_was_set() {
        let mut settings = ConnectionSettings::default();
        assert_eq!(
            answer(&mut settings, "SET statement_timeout = '2s'"),
            SettingsAnswer::Done("SET")
        );
        assert_eq!(settings.statement_timeout(), Some(Duration::from_secs(2)));
        let shown = SettingsAnswer::Shown { name: "statement_timeout".into(), value: "2s".into() };
        assert_eq!(answer(&mut settings, "SHOW statement_timeout"), shown);
        let path = SettingsAnswer::SearchPath(Some("aapl".into()));
        assert_eq!(answer(&mut settings, "SET search_path TO aapl"), path);
        answer(&mut settings, "SET statement_timeout = 0");
        assert_eq!(settings.statement_timeout(), None);
    }

    #[test]
    fn settings_of_the_planner_are_refused() {
        let sql = "SET datafusion.execution.batch_size = 1";
        let statements = Parser::parse_sql(&PostgreSqlDialect {}, sql).unwrap();
        let refused = ConnectionSettings::default().answer(&statements[0]).unwrap();
        assert_eq!(refused, Err(RefusedSetting::Unknown("datafusion.execution.batch_size".into())));
    }
}
