//! The statements by which a client makes itself at home: `SET`, `SHOW`, transactions.
//!
//! All statements only read, so that a transaction is a word without an effect. Settings of the
//! planner are not taken: a client could undo the limits of the process with them.

use std::collections::BTreeMap;
use std::time::Duration;

use datafusion::sql::sqlparser::ast::{Expr, Set, Statement, Value};

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
    SearchPath(String),
}

/// A name that is unknown to `SHOW`.
#[derive(Debug, PartialEq)]
pub(crate) struct UnknownSetting(pub(crate) String);

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
            ("search_path", "\"$user\", public"),
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

/// The version of PostgreSQL whose answers clients may expect.
pub(crate) const SERVER_VERSION: &str = "16.6";

impl ConnectionSettings {
    /// Answers a statement of this module; `None` for every other statement.
    pub(crate) fn answer(
        &mut self,
        statement: &Statement,
    ) -> Option<Result<SettingsAnswer, UnknownSetting>> {
        match statement {
            Statement::StartTransaction { .. } => Some(Ok(SettingsAnswer::Begun)),
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

    fn set(&mut self, set: &Set) -> Result<SettingsAnswer, UnknownSetting> {
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

    fn assign(&mut self, name: &str, value: String) -> Result<SettingsAnswer, UnknownSetting> {
        let name = name.trim_matches('"').to_ascii_lowercase();
        if name.starts_with("datafusion.") {
            return Err(UnknownSetting(name));
        }
        let value = value.trim_matches('\'').to_owned();
        self.values.insert(name.clone(), value.clone());
        match name.as_str() {
            "search_path" => Ok(SettingsAnswer::SearchPath(value)),
            _ => Ok(SettingsAnswer::Done("SET")),
        }
    }

    fn show(&self, name: &str) -> Result<SettingsAnswer, UnknownSetting> {
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
            None => Err(UnknownSetting(name.to_owned())),
        }
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
        let path = SettingsAnswer::SearchPath("aapl".into());
        assert_eq!(answer(&mut settings, "SET search_path TO aapl"), path);
        answer(&mut settings, "SET statement_timeout = 0");
        assert_eq!(settings.statement_timeout(), None);
    }

    #[test]
    fn settings_of_the_planner_are_refused() {
        let sql = "SET datafusion.execution.batch_size = 1";
        let statements = Parser::parse_sql(&PostgreSqlDialect {}, sql).unwrap();
        let refused = ConnectionSettings::default().answer(&statements[0]).unwrap();
        assert_eq!(refused, Err(UnknownSetting("datafusion.execution.batch_size".into())));
    }
}
