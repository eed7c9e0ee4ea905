//! What fuzzers call: the steps of a statement before it is planned.
//!
//! A fuzz target takes this module, `nesting`, `placeholders` and `syntax` by their files, because
//! the crate brings a query engine, which builds for ten minutes. Those modules therefore know the
//! parser alone.

use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::Tokenizer;

use crate::nesting::{check_nesting, count_levels};
use crate::placeholders::number_placeholders;
use crate::syntax::rewrite_statement;

/// Levels of a statement in this exercise: the threads of queries have a larger stack than those of
/// a fuzzer.
const LEVELS_MAX: usize = 100;

/// Any bytes of a client are a statement or are refused.
///
/// # Panics
/// When a statement ends the process, and when its parameters are not all numbered.
pub fn read_statements(data: &[u8]) {
    // A door refuses bytes that are no text.
    let Ok(sql) = std::str::from_utf8(data) else { return };
    let is_taken = check_nesting(sql).is_ok();
    let Ok(tokens) = Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize() else { return };
    assert!(is_taken || count_levels(&tokens) > LEVELS_MAX, "refused by its tokens alone");
    if count_levels(&tokens) > LEVELS_MAX {
        return;
    }
    if let Ok(numbered) = number_placeholders(sql) {
        assert_eq!(number_placeholders(&numbered).as_ref(), Ok(&numbered), "{sql}");
    }
    let Ok(mut statements) = Parser::parse_sql(&PostgreSqlDialect {}, sql) else { return };
    for statement in &mut statements {
        if rewrite_statement(statement).is_ok() {
            // A statement is printed in errors and in plans.
            let printed = statement.to_string();
            assert!(printed.len() <= 64 * (sql.len() + 64), "{} bytes of {sql}", printed.len());
        }
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use std::path::Path;

    fn texts() -> Vec<Vec<u8>> {
        let corpus =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/sql_statements");
        let files = std::fs::read_dir(corpus).expect("the corpus is in the repository");
        files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
    }

    #[test]
    fn what_once_was_interesting_stays_harmless() {
        super::replay::corpora(&[("sql_statements", super::read_statements)]);
    }

    /// A fuzzer without coverage, for machines without a nightly Rust: texts that are cut, glued
    /// and changed at places that a counter chooses.
    #[test]
    fn changed_bytes_are_statements_or_refused() {
        let texts = texts();
        let mut state = 7u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below.max(1)
        };
        for _ in 0..3_000 {
            let mut bytes = texts[next(texts.len())].clone();
            bytes.truncate(600);
            for _ in 0..=next(4) {
                let at = next(bytes.len());
                let other = &texts[next(texts.len())];
                match next(4) {
                    0 => bytes[at] = 32 + next(95) as u8,
                    1 => bytes.truncate(at.max(1)),
                    2 => bytes.insert(at, b"?'\"$;()-"[next(8)]),
                    _ => bytes.extend(other.iter().skip(next(other.len())).take(100)),
                }
            }
            super::read_statements(&bytes);
        }
    }
}
