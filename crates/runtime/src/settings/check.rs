//! What the types of the settings allow and a run does not: a [`Mistake`] names the key, so that
//! the document can name the line or the override.

use std::fmt::{self, Display};
use std::ops::RangeInclusive;

/// A value that is wrong, or keys that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where: a dotted key, in which an entry of a list goes by its index. Empty for the file.
    pub key: String,
    /// What is wrong, and what is allowed.
    pub why: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Mistake {}

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
