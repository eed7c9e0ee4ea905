//! Words around statements: where an error points, and the places of parameters.

use datafusion::common::{DataFusionError, Result};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, Tokenizer};

/// An error with the line of the statement that it points at.
pub fn statement_error(error: &DataFusionError, sql: &str) -> String {
    let root = error.find_root().strip_backtrace();
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

/// The same statement with each `?` numbered, `$1` first. JDBC writes parameters without numbers,
/// and the engine tells them apart by their numbers alone. A `?` inside a text or a comment stays.
///
/// # Errors
/// A text that has no tokens, such as one whose quote is not closed.
pub fn number_placeholders(sql: &str) -> Result<String> {
    if !sql.contains('?') {
        return Ok(sql.to_owned());
    }
    let tokens = Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize_with_location();
    let tokens = tokens.map_err(|error| DataFusionError::Plan(error.to_string()))?;
    let mut places = tokens.into_iter().filter(|token| match &token.token {
        Token::Question => true,
        Token::Placeholder(name) => name == "?",
        _ => false,
    });
    let mut next = places.next();
    let mut numbered = String::with_capacity(sql.len() + 16);
    let (mut count, mut here) = (0, Location { line: 1, column: 1 });
    for character in sql.chars() {
        if next.as_ref().is_some_and(|token| token.span.start == here) {
            count += 1;
            numbered.push_str(&format!("${count}"));
            next = places.next();
        } else {
            numbered.push(character);
        }
        match character {
            '\n' => here = Location { line: here.line + 1, column: 1 },
            _ => here.column += 1,
        }
    }
    Ok(numbered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_outside_of_texts_and_comments() {
        let numbered = number_placeholders("SELECT ? -- why?\n, '?', \"é?\"\nWHERE a > ?");
        assert_eq!(numbered.unwrap(), "SELECT $1 -- why?\n, '?', \"é?\"\nWHERE a > $2");
        assert_eq!(number_placeholders("SELECT $2, '?'").unwrap(), "SELECT $2, '?'");
        assert!(number_placeholders("SELECT '?").is_err());
    }
}
