//! Words around statements: what went wrong, and where an error points.

use datafusion::common::{DataFusionError, Result};
use datafusion::sql::sqlparser::parser::ParserError;

use crate::placeholders;

/// The sentence of an error, without the words that DataFusion puts around it.
pub fn error_words(error: &DataFusionError) -> String {
    match error.find_root() {
        // The store says by itself what went wrong, and where.
        DataFusionError::External(cause) => cause.to_string(),
        DataFusionError::Plan(words) => {
            let end = words.find(DataFusionError::BACK_TRACE_SEP).unwrap_or(words.len());
            words[..end].to_owned()
        }
        DataFusionError::SQL(error, _) => match error.as_ref() {
            ParserError::ParserError(words) | ParserError::TokenizerError(words) => words.clone(),
            other => other.to_string(),
        },
        root => root.strip_backtrace(),
    }
}

/// An error with the line of the statement that it points at.
pub fn statement_error(error: &DataFusionError, sql: &str) -> String {
    let root = error_words(error);
    let span = error.diagnostic().and_then(|diagnostic| diagnostic.span);
    let Some(span) = span else { return root };
    let Some(line) = sql.lines().nth((span.start.line as usize).saturating_sub(1)) else {
        return root;
    };
    // A person reads the line, and a statement of a program may be one line of a mebibyte.
    let shown: String = line.chars().take(SHOWN_CHARACTERS).collect();
    let column = (span.start.column as usize).saturating_sub(1);
    if column >= SHOWN_CHARACTERS {
        return format!("{root} (line {}, column {})", span.start.line, span.start.column);
    }
    format!("{root}\n  {shown}\n  {}^", " ".repeat(column))
}

/// Characters of a line that an error shows.
const SHOWN_CHARACTERS: usize = 400;

/// The same statement with each `?` numbered, `$1` first.
///
/// # Errors
/// A text that has no tokens, such as one whose quote is not closed.
pub fn number_placeholders(sql: &str) -> Result<String> {
    placeholders::number_placeholders(sql).map_err(DataFusionError::Plan)
}
