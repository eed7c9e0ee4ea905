//! The places of parameters in a statement.

use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::tokenizer::{Location, Token, Tokenizer};

/// The same statement with each `?` numbered, `$1` first. JDBC writes parameters without numbers,
/// and the engine tells them apart by their numbers alone. A `?` inside a text or a comment stays.
///
/// # Errors
/// A text that has no tokens, such as one whose quote is not closed.
pub(crate) fn number_placeholders(sql: &str) -> Result<String, String> {
    if !sql.contains('?') {
        return Ok(sql.to_owned());
    }
    let tokens = Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize_with_location();
    let tokens = tokens.map_err(|error| error.to_string())?;
    let mut places = tokens.into_iter().filter(|token| match &token.token {
        Token::Question => true,
        Token::Placeholder(name) => name == "?",
        _ => false,
    });
    let mut next = places.next();
    let mut numbered = String::with_capacity(sql.len() + 16);
    let (mut count, mut here) = (0, Location { line: 1, column: 1 });
    let mut was_place = false;
    for character in sql.chars() {
        if next.as_ref().is_some_and(|token| token.span.start == here) {
            count += 1;
            // A sign in front would begin a text of its own, as `$$` does.
            if numbered.ends_with(is_of_word) {
                numbered.push(' ');
            }
            numbered.push_str(&format!("${count}"));
            next = places.next();
            was_place = true;
        } else {
            // A digit behind would make another number.
            if was_place && is_of_word(character) {
                numbered.push(' ');
            }
            numbered.push(character);
            was_place = false;
        }
        match character {
            '\n' => here = Location { line: here.line + 1, column: 1 },
            _ => here.column += 1,
        }
    }
    Ok(numbered)
}

fn is_of_word(character: char) -> bool {
    character.is_alphanumeric() || character == '$' || character == '_'
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
        // What stands beside a parameter is not drawn into its number.
        assert_eq!(number_placeholders("SELECT ?1, $?2").unwrap(), "SELECT $1 1, $ $2 2");
    }
}
