//! Formats results for a terminal.

/// A number with its noun, in the singular or the plural: `1 file`, `3 files`.
pub fn counted(number: usize, thing: &str) -> String {
    match (number, thing.strip_suffix('y')) {
        (1, _) => format!("1 {thing}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        _ => format!("{number} {thing}s"),
    }
}
