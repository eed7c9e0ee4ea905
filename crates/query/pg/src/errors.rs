//! Errors as PostgreSQL words them: a code, a sentence, and the place in the statement.

use datafusion::common::DataFusionError;
use evenfall_query_sql::error_words;
use pgwire::error::{ErrorInfo, PgWireError};

/// An error of a statement, by its code and with the place in the statement.
pub(crate) fn user_error(code: &str, what: &str, position: Option<usize>) -> PgWireError {
    let mut info = ErrorInfo::new("ERROR".to_owned(), code.to_owned(), what.to_owned());
    info.position = position.map(|at| at.to_string());
    PgWireError::UserError(Box::new(info))
}

/// An error that ends the connection.
pub(crate) fn fatal_error(code: &str, what: &str) -> PgWireError {
    let info = ErrorInfo::new("FATAL".to_owned(), code.to_owned(), what.to_owned());
    PgWireError::UserError(Box::new(info))
}

/// Another layer's error under a code.
pub(crate) fn plain_error(code: &str, error: impl std::fmt::Display) -> PgWireError {
    user_error(code, &error.to_string(), None)
}

/// An error of the engine, with PostgreSQL's code for its kind and the place in the statement.
pub(crate) fn sql_error(error: DataFusionError, sql: &str) -> PgWireError {
    use datafusion::common::SchemaError;
    let position = place(&error, sql);
    let root = error.find_root();
    let code = match root {
        DataFusionError::SQL(..) => "42601",
        DataFusionError::SchemaError(error, _) => match error.as_ref() {
            SchemaError::FieldNotFound { .. } => "42703",
            SchemaError::AmbiguousReference { .. } => "42702",
            _ => "42P10",
        },
        DataFusionError::Plan(what) if what.contains("not found") && what.contains("table") => {
            "42P01"
        }
        DataFusionError::Plan(what) if what.contains("Invalid function") => "42883",
        DataFusionError::Plan(what) if what.contains("only statements that read") => "25006",
        DataFusionError::Plan(_) => "42000",
        DataFusionError::NotImplemented(_) => "0A000",
        DataFusionError::ResourcesExhausted(_) => "53200",
        DataFusionError::ArrowError(..) | DataFusionError::Execution(_) => "22000",
        DataFusionError::External(_) => "58030",
        _ => "XX000",
    };
    user_error(code, &error_words(&error), position)
}

/// The place of an error as PostgreSQL counts it: characters from 1.
fn place(error: &DataFusionError, sql: &str) -> Option<usize> {
    if let Some(span) = error.diagnostic().and_then(|diagnostic| diagnostic.span) {
        return character_of(sql, span.start.line as usize, span.start.column as usize);
    }
    // The parser has its place in its words: "... at Line: 1, Column: 8".
    let text = error.to_string();
    let line = number_after(&text, "Line: ")?;
    let column = number_after(&text, "Column: ")?;
    character_of(sql, line, column)
}

fn number_after(text: &str, word: &str) -> Option<usize> {
    let rest = &text[text.rfind(word)? + word.len()..];
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

fn character_of(sql: &str, line: usize, column: usize) -> Option<usize> {
    let before: usize =
        sql.split('\n').take(line.checked_sub(1)?).map(|line| line.chars().count() + 1).sum();
    Some(before + column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_characters_over_lines() {
        assert_eq!(character_of("select\nfrom x", 2, 1), Some(8));
        assert_eq!(number_after("found: x at Line: 3, Column: 14", "Line: "), Some(3));
        assert_eq!(number_after("found: x at Line: 3, Column: 14", "Column: "), Some(14));
    }
}
