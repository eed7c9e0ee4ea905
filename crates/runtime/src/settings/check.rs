//! What the types of the settings allow and a run does not: a [`Mistake`] names the key, so that
//! the document can name the line or the override.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The longest duration of any key: a month is more than any phase of a run takes, and times of it,
/// such as one for each tree, still fit into the clock.
const DURATION_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);

/// A value that is wrong, or keys that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where: a dotted key, in which an entry of a list goes by its index. Empty for the file.
    pub key: String,
    /// What is wrong, and what is allowed.
    pub why: String,
}

impl Mistake {
    /// A mistake of this key.
    pub fn new(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self { key: key.into(), why: why.into() }
    }

    /// A mistake in words that begin with their key.
    pub fn in_words(why: String) -> Self {
        let key = why.split([' ', ':']).next().unwrap_or_default();
        Self::new(key, why.clone())
    }

    /// The line of the key in the text, or that of its table where the text leaves the key out.
    pub(super) fn line(&self, text: &str) -> Option<usize> {
        line_of(text, &self.key)
    }
}

/// The line of a dotted key in a TOML text, in which an entry of a list goes by its index; that of
/// its table where the text leaves the key out.
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

/// Refuses a value outside the range.
///
/// # Errors
/// The value, and the range.
pub fn within<T: PartialOrd + Display>(
    key: &str,
    value: T,
    range: &RangeInclusive<T>,
) -> Result<(), Mistake> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    Err(Mistake::new(key, format!("{key} = {value}: must be {least} to {most}")))
}

/// Refuses durations of more than a month, in a table and the tables within.
pub(super) fn durations(key: &str, value: &toml::Value) -> Result<(), Mistake> {
    match value {
        toml::Value::Table(table) => table.iter().try_for_each(|(name, value)| {
            let dot = if key.is_empty() { "" } else { "." };
            durations(&format!("{key}{dot}{name}"), value)
        }),
        // Other words than durations are none of more than a month.
        toml::Value::String(text) => match humantime::parse_duration(text) {
            Ok(duration) if duration > DURATION_MAX => {
                let most = humantime::format_duration(DURATION_MAX);
                Err(Mistake::new(key, format!("{key} = {text}: must be {most} at most")))
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}
