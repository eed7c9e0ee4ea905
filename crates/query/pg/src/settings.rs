//! The statements by which a client makes itself at home: `SET`, `SHOW`, transactions.
//!
//! All statements only read, so that a transaction is a word without an effect. Settings of the
//! planner are not taken: a client could undo the limits of the process with them.

use std::collections::BTreeMap;
use std::time::Duration;

use datafusion::sql::sqlparser::ast::{Expr, Reset, ResetStatement, Set, Statement, Value};
use pgwire::error::PgWireError;

use crate::errors::user_error;
use crate::zones::PrintedZone;

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
    /// The setting has no such value.
    Wrong {
        name: String,
        value: String,
        takes: &'static str,
    },
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
            Self::Wrong { name, value, takes } => {
                let words = format!("invalid value for parameter \"{name}\": \"{value}\"; {takes}");
                user_error("22023", &words, None)
            }
        }
    }
}

/// What a time limit takes.
const TAKES_TIME: &str = "write milliseconds, or a whole number and us, ms, s, min, h or d";

/// What a zone takes.
const TAKES_ZONE: &str = "write a name such as America/New_York, or hours east of UTC";

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
            Statement::Discard { .. } => Some(Ok(self.reset_all("DISCARD ALL"))),
            // Pools of connections close cursors and end notifications that no client has here.
            Statement::Close { .. } => Some(Ok(SettingsAnswer::Done("CLOSE CURSOR"))),
            Statement::UNLISTEN { .. } => Some(Ok(SettingsAnswer::Done("UNLISTEN"))),
            Statement::Reset(ResetStatement { reset: Reset::ALL }) => {
                Some(Ok(self.reset_all("RESET")))
            }
            Statement::Reset(ResetStatement { reset: Reset::ConfigurationParameter(name) }) => {
                Some(self.assign(&name.to_string(), None))
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
                let is_default = matches!(values.as_slice(), [value] if is_default(value));
                let value = values.iter().map(plain).collect::<Vec<_>>().join(", ");
                self.assign(&name, (!is_default).then_some(value))
            }
            Set::SetTimeZone { value, .. } => {
                self.assign("timezone", (!is_default(value)).then(|| plain(value)))
            }
            // Isolation, roles and names of characters change nothing about statements that read.
            _ => Ok(SettingsAnswer::Done("SET")),
        }
    }

    /// Forgets what the connection has set.
    fn reset_all(&mut self, tag: &'static str) -> SettingsAnswer {
        let had_path = self.search_path().is_some();
        *self = Self::default();
        if had_path { SettingsAnswer::SearchPath(None) } else { SettingsAnswer::Done(tag) }
    }

    /// Sets a value, or the default one.
    fn assign(
        &mut self,
        name: &str,
        value: Option<String>,
    ) -> Result<SettingsAnswer, RefusedSetting> {
        let name = name.trim_matches('"').to_ascii_lowercase();
        if name.starts_with("datafusion.") {
            return Err(RefusedSetting::Unknown(name));
        }
        let value = match value {
            Some(value) => value.trim_matches('\'').to_owned(),
            None => Self::default().values.remove(&name).unwrap_or_default(),
        };
        let takes = match name.as_str() {
            "statement_timeout" if parse_duration(&value).is_none() => Some(TAKES_TIME),
            "timezone" if PrintedZone::parse(&value).is_none() => Some(TAKES_ZONE),
            _ => None,
        };
        if let Some(takes) = takes {
            let value = value.chars().take(64).collect();
            return Err(RefusedSetting::Wrong { name, value, takes });
        }
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
                self.assign(&name, Some(value))?;
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
        parse_duration(self.values.get("statement_timeout")?).filter(|limit| !limit.is_zero())
    }

    /// The zone in which instants are printed.
    pub(crate) fn time_zone(&self) -> PrintedZone {
        self.value("timezone").and_then(PrintedZone::parse).unwrap_or(PrintedZone::UTC)
    }
}

/// A duration as PostgreSQL writes it.
fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..split].parse().ok()?;
    let unit_us = match text[split..].trim() {
        "us" => 1,
        "" | "ms" => 1_000,
        "s" => 1_000_000,
        "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    };
    let us = number.checked_mul(unit_us)?;
    // Part of a millisecond counts as a whole one, because 0 is no limit.
    Some(Duration::from_millis(us.div_ceil(1_000)))
}

/// Whether a value is the word DEFAULT or LOCAL, which resets the setting.
fn is_default(value: &Expr) -> bool {
    matches!(value, Expr::Identifier(word) if word.quote_style.is_none()
        && ["default", "local"].iter().any(|name| word.value.eq_ignore_ascii_case(name)))
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
    fn a_limit_or_a_zone_that_means_nothing_is_refused_and_changes_nothing() {
        let mut settings = ConnectionSettings::default();
        answer(&mut settings, "SET statement_timeout = '90s'");
        for wrong in ["'90 parsecs'", "'-5'", "'1.5s'", "''", "'99999999999999999999d'", "soon"] {
            let sql = format!("SET statement_timeout TO {wrong}");
            let statements = Parser::parse_sql(&PostgreSqlDialect {}, &sql).unwrap();
            let refused = settings.answer(&statements[0]).unwrap();
            let Err(RefusedSetting::Wrong { takes, .. }) = refused else { panic!("{refused:?}") };
            assert!(takes.contains("min"), "{sql}");
            assert_eq!(settings.statement_timeout(), Some(Duration::from_secs(90)), "{sql}");
        }
        for (text, ms) in [("'2 min'", 120_000), ("250", 250), ("'1us'", 1), ("'1d'", 86_400_000)] {
            answer(&mut settings, &format!("SET statement_timeout TO {text}"));
            assert_eq!(settings.statement_timeout(), Some(Duration::from_millis(ms)), "{text}");
        }
        let mut parameters = BTreeMap::from([("TimeZone".to_owned(), "Nowhere/Else".to_owned())]);
        assert!(settings.apply_startup(&parameters).is_err());
        parameters.insert("TimeZone".to_owned(), "America/New_York".to_owned());
        settings.apply_startup(&parameters).unwrap();
        assert_eq!(settings.time_zone().offset_s(1_795_185_000_000_000), -5 * 3_600);
    }

    #[test]
    fn what_was_set_is_reset() {
        let mut settings = ConnectionSettings::default();
        for reset in ["SET statement_timeout TO DEFAULT", "RESET statement_timeout", "RESET ALL"] {
            answer(&mut settings, "SET statement_timeout = '90s'");
            answer(&mut settings, reset);
            assert_eq!(settings.statement_timeout(), None, "{reset}");
        }
        answer(&mut settings, "SET search_path TO aapl");
        assert_eq!(answer(&mut settings, "DISCARD ALL"), SettingsAnswer::SearchPath(None));
        answer(&mut settings, "SET TIME ZONE LOCAL");
        assert_eq!(settings.value("timezone"), Some("Etc/UTC"));
    }

    #[test]
    fn settings_of_the_planner_are_refused() {
        let sql = "SET datafusion.execution.batch_size = 1";
        let statements = Parser::parse_sql(&PostgreSqlDialect {}, sql).unwrap();
        let refused = ConnectionSettings::default().answer(&statements[0]).unwrap();
        assert_eq!(refused, Err(RefusedSetting::Unknown("datafusion.execution.batch_size".into())));
    }
}
