//! Checks of values that the types allow and a run does not. A [`SettingsMistake`] names the key,
//! so that the document can name the line or the override.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// A value that is wrong, or keys that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct SettingsMistake {
    /// The dotted key. An entry of a list stands in it by its index. Empty for the whole file.
    pub key: String,
    /// The reason, and what is allowed.
    pub why: String,
}

impl SettingsMistake {
    /// A mistake of this key.
    pub fn new(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self { key: key.into(), why: why.into() }
    }

    /// A mistake whose words begin with their key.
    pub fn in_words(why: String) -> Self {
        let key = why.split([' ', ':']).next().unwrap_or_default();
        Self::new(key, why.clone())
    }
}

/// Refuses a value outside the range.
///
/// # Errors
/// The value and the range.
pub fn within<T: PartialOrd + Display>(
    key: &str,
    value: T,
    range: &RangeInclusive<T>,
) -> Result<(), SettingsMistake> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    Err(SettingsMistake::new(key, format!("{key} = {value}: must be {least} to {most}")))
}
