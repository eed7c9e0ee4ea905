//! Names that a person may have meant, and names that a new file may have.

use std::fmt::{self, Display};

use evenfall_store_engine::protocol::NAME_BYTES_MAX;

/// Bytes of a name that are left for what a recording adds to it: side, stream and class.
const ADDED_BYTES_MAX: usize = 64;

/// A name that no new file and no recording may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNameError;

impl Display for NewNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max = NAME_BYTES_MAX - ADDED_BYTES_MAX;
        write!(f, "must be 1 to {max} bytes without control characters")
    }
}

impl std::error::Error for NewNameError {}

/// Checks the name of a new file or recording. A server could not list a store with a longer name,
/// and a name with the end of a line would be two names in a list.
///
/// # Errors
/// [`NewNameError`].
pub fn check_new_name(text: &str) -> Result<(), NewNameError> {
    let max = NAME_BYTES_MAX - ADDED_BYTES_MAX;
    match text.is_empty() || text.len() > max || text.chars().any(char::is_control) {
        true => Err(NewNameError),
        false => Ok(()),
    }
}

/// Names in the end of an error: more would not be read.
const NAMES_SHOWN: usize = 5;
/// Characters of the wanted name that are compared. A statement may name a megabyte, and each known
/// name takes a step for each character.
const COMPARED_MAX: usize = 64;

/// Names that are near to a name that nothing has, as the end of a sentence; up to five.
pub fn near_names(name: &str, known: &[String]) -> String {
    let wanted: String = name.chars().take(COMPARED_MAX).collect();
    let wanted = wanted.to_lowercase();
    let mut by_distance: Vec<(usize, &String)> =
        known.iter().map(|other| (edit_distance(&wanted, &other.to_lowercase()), other)).collect();
    by_distance.sort();
    let nearest = by_distance.iter().take(NAMES_SHOWN).map(|(_, name)| name.as_str());
    let nearest: Vec<&str> = nearest.collect();
    match nearest.is_empty() {
        true => String::new(),
        false => format!("; the nearest are {}", nearest.join(", ")),
    }
}

/// Characters to insert, delete or replace between two words (Levenshtein).
fn edit_distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (at, same) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *same);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}
