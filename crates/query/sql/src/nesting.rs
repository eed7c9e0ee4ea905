//! How deeply a statement may nest.
//!
//! The parser, the planner and the operators walk expressions by recursion. `1 + 1 + 1` is a tree
//! of two levels, and a statement of a mebibyte can have half a million of them, which no stack
//! holds: the process would end. Statements are therefore measured before they are parsed, without
//! recursion, and the threads of queries have stacks for the levels that are taken.

use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Token, Tokenizer};

/// Levels of a statement. People write ten; programs that build a condition out of a list write
/// some hundred, where `IN` would do.
pub(crate) const NESTING_MAX: usize = 1_000;

/// Bytes of stack that a thread needs which parses, plans or runs statements. A level took up to 40
/// KiB in builds without optimisation.
pub const QUERY_STACK_BYTES: usize = 128 << 20;

/// Refuses a statement that nests too deeply.
///
/// # Errors
/// The limit, and a text that has no tokens, such as one whose quote is not closed.
pub(crate) fn check_nesting(sql: &str) -> Result<(), String> {
    // Each level takes a byte at least.
    if sql.len() <= NESTING_MAX {
        return Ok(());
    }
    let tokens = Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize();
    match count_levels(&tokens.map_err(|error| error.to_string())?) > NESTING_MAX {
        true => Err(format!(
            "the statement nests too deeply: {NESTING_MAX} levels of operators and brackets are \
             taken. A list of values is written as IN (...) or joined as VALUES"
        )),
        false => Ok(()),
    }
}

/// Levels of a statement, or more: operators of one level are counted as if each took the one
/// before as its operand.
pub(crate) fn count_levels(tokens: &[Token]) -> usize {
    // Operators so far in each open bracket, and their sum.
    let mut open = vec![0];
    let (mut sum, mut deepest) = (0, 0);
    for token in tokens {
        match token {
            Token::LParen | Token::LBracket | Token::LBrace => open.push(0),
            Token::RParen | Token::RBracket | Token::RBrace => close(&mut open, &mut sum),
            Token::Word(word) if word.keyword == Keyword::CASE => open.push(0),
            Token::Word(word) if word.keyword == Keyword::END => close(&mut open, &mut sum),
            // The next expression of a list begins anew.
            Token::Comma | Token::SemiColon => {
                if let Some(count) = open.last_mut() {
                    sum -= std::mem::take(count);
                }
            }
            token if is_operator(token) => {
                if let Some(count) = open.last_mut() {
                    *count += 1;
                    sum += 1;
                }
            }
            _ => {}
        }
        deepest = deepest.max(sum + open.len());
    }
    deepest
}

fn close(open: &mut Vec<usize>, sum: &mut usize) {
    // A bracket too many is the parser's to refuse.
    if open.len() > 1
        && let Some(count) = open.pop()
    {
        *sum -= count;
    }
}

fn is_operator(token: &Token) -> bool {
    match token {
        Token::Word(word) => matches!(
            word.keyword,
            Keyword::AND
                | Keyword::OR
                | Keyword::NOT
                | Keyword::IS
                | Keyword::LIKE
                | Keyword::ILIKE
                | Keyword::BETWEEN
                | Keyword::IN
                | Keyword::UNION
                | Keyword::INTERSECT
                | Keyword::EXCEPT
                | Keyword::JOIN
                | Keyword::AT
                | Keyword::COLLATE
        ),
        Token::Whitespace(_)
        | Token::Number(..)
        | Token::Char(_)
        | Token::SingleQuotedString(_)
        | Token::EscapedStringLiteral(_)
        | Token::DoubleQuotedString(_)
        | Token::Placeholder(_)
        | Token::Period
        | Token::EOF => false,
        // Whatever else is no word and no value is an operator, or is counted as one.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(sql: &str) -> usize {
        count_levels(&Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize().unwrap())
    }

    #[test]
    fn chains_and_brackets_count_and_lists_do_not() {
        assert!(levels(&format!("SELECT {}", ["1"; 500].join(" + "))) >= 499);
        assert!(levels(&format!("SELECT {}1{}", "(".repeat(500), ")".repeat(500))) >= 500);
        assert!(levels(&format!("SELECT {}true", "NOT ".repeat(500))) >= 500);
        let cases =
            format!("SELECT {}1{}", "CASE WHEN a = 1 THEN ".repeat(500), " END".repeat(500));
        assert!(levels(&cases) >= 500);
        assert!(levels(&["SELECT 1"; 500].join(" UNION ALL ")) >= 499);
        let list = format!("SELECT a + 1 FROM t WHERE a IN ({})", ["-1"; 5_000].join(", "));
        assert!(levels(&list) < 10, "{}", levels(&list));
        let rows = format!("VALUES {}", ["(1, -2)"; 5_000].join(", "));
        assert!(levels(&rows) < 10, "{}", levels(&rows));
    }

    #[test]
    fn a_statement_over_the_limit_is_refused_before_it_is_parsed() {
        let long = format!("SELECT {}", ["1"; 200_000].join("+"));
        assert!(check_nesting(&long).unwrap_err().contains("too deeply"));
        assert!(check_nesting(&format!("SELECT {}1", "(".repeat(100_000))).is_err());
        assert!(check_nesting(&format!("SELECT {}", ["1"; 900].join("+"))).is_ok());
    }
}
