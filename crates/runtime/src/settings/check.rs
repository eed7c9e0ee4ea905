//! What the types of the settings allow and a run does not: a [`Mistake`] names the key, so that
//! the document can name the line or the override.

use std::fmt::Display;
use std::ops::RangeInclusive;

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
        let document = toml_edit::Document::parse(text).ok()?;
        let mut item = document.as_item();
        let mut found = None;
        for part in self.key.split('.') {
            let next = part.parse().map_or_else(|_| item.get(part), |index: usize| item.get(index));
            let Some(next) = next else { break };
            item = next;
            found = item.span().or(found);
        }
        found.map(|span| text[..span.start].matches('\n').count() + 1)
    }
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

/// Refuses what is not above zero.
///
/// # Errors
/// The value.
pub fn above_zero(key: &str, value: f64) -> Result<(), Mistake> {
    if value > 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(Mistake::new(key, format!("{key} = {value}: must be above 0")))
}

/// Refuses what is below one.
///
/// # Errors
/// The value.
pub fn one_at_least(key: &str, value: f64) -> Result<(), Mistake> {
    if value >= 1.0 && value.is_finite() {
        return Ok(());
    }
    Err(Mistake::new(key, format!("{key} = {value}: must be at least 1")))
}
