//! A prompt: statements line by line, each answered when its semicolon has come.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use evenfall_query_sql::QuerySession;
use evenfall_query_sql::datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use evenfall_query_sql::datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use crate::Outcome;
use crate::ask::{AskArgs, run_statement};
use crate::interrupt::Interrupts;
use crate::output::is_reader_gone;

const HELP: &str = "  A statement ends with a semicolon.
  \\d        the tables
  \\d NAME   the columns of a table
  \\q        the end
  Ctrl-C ends a statement under way, and otherwise the program.";

/// What a line asks for beside SQL.
#[derive(Debug, PartialEq, Eq)]
enum PromptCommand {
    Help,
    End,
    /// A statement that answers.
    Ask(String),
}

/// The command of a line; `None` for a line of SQL.
fn command_of(line: &str) -> Option<PromptCommand> {
    let rest = line.trim().trim_end_matches(';').strip_prefix('\\')?;
    let (word, name) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    Some(match (word, name.trim()) {
        ("q", _) => PromptCommand::End,
        ("d" | "dt", "") => PromptCommand::Ask(
            "SELECT table_schema AS schema, table_name AS name FROM information_schema.tables \
             WHERE table_schema <> 'information_schema' ORDER BY 1, 2"
                .to_owned(),
        ),
        ("d", name) => {
            let text = |part: &str| format!("'{}'", part.trim_matches('"').replace('\'', "''"));
            let (schema, table) = match name.split_once('.') {
                Some((schema, table)) => (format!("table_schema = {} AND ", text(schema)), table),
                None => (String::new(), name),
            };
            PromptCommand::Ask(format!(
                "SELECT column_name AS column, data_type AS type, is_nullable AS nullable \
                 FROM information_schema.columns WHERE {schema}table_name = {} \
                 ORDER BY table_schema, ordinal_position",
                text(table)
            ))
        }
        _ => PromptCommand::Help,
    })
}

/// Whether a text ends with a semicolon that is in no quote and no comment.
fn is_whole(text: &str) -> bool {
    let Ok(tokens) = Tokenizer::new(&PostgreSqlDialect {}, text).tokenize() else { return false };
    let mut words = tokens.iter().rev().filter(|token| !matches!(token, Token::Whitespace(_)));
    words.next() == Some(&Token::SemiColon)
}

/// Answers statements until the end of the input. A statement that fails says so, and the next one
/// is read.
///
/// # Errors
/// An error when the input cannot be read, or when the reader of the answers is gone.
pub(crate) fn answer_prompt(
    session: &QuerySession,
    args: &AskArgs,
    runtime: &tokio::runtime::Runtime,
) -> Outcome {
    let interrupts = Interrupts::hear(true)?;
    let is_terminal = std::io::stdin().is_terminal();
    let show = |words: &str| {
        if is_terminal {
            aside_part!("{words}");
            let _ = std::io::stderr().flush();
        }
    };
    show("Statements end with a semicolon; \\? says more.\n");
    let mut text = String::new();
    let mut lines = std::io::stdin().lock().lines();
    loop {
        show(if text.is_empty() { "evenfall> " } else { "       -> " });
        let Some(line) = lines.next() else {
            // A text without its semicolon is asked as it is, as psql does with a file.
            if !text.is_empty() {
                answer(session, args, &text, runtime, &interrupts)?;
            }
            return Ok(());
        };
        let line = line?;
        match command_of(&line).filter(|_| text.is_empty()) {
            Some(PromptCommand::End) => return Ok(()),
            Some(PromptCommand::Help) => aside!("{HELP}"),
            Some(PromptCommand::Ask(sql)) => answer(session, args, &sql, runtime, &interrupts)?,
            None => {
                if text.is_empty() && line.trim().is_empty() {
                    continue;
                }
                text.push_str(&line);
                text.push('\n');
                let is_long = session.check_text(&text).is_err();
                if is_long || is_whole(&text) {
                    let whole = std::mem::take(&mut text);
                    answer(session, args, &whole, runtime, &interrupts)?;
                }
            }
        }
    }
}

/// Answers a statement. The error of a statement that fails is printed.
///
/// # Errors
/// An error when the reader of the answers is gone. It ends the prompt.
fn answer(
    session: &QuerySession,
    args: &AskArgs,
    sql: &str,
    runtime: &tokio::runtime::Runtime,
    interrupts: &Interrupts,
) -> Outcome {
    let statement = run_statement(session, args, sql, runtime.handle());
    match runtime.block_on(interrupts.or_interrupted(statement)) {
        Err(error) if is_reader_gone(&*error) => Err(error),
        Err(error) => {
            aside!("{error}");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_ends_with_a_semicolon_outside_of_quotes() {
        assert!(is_whole("SELECT 1;"));
        assert!(is_whole("SELECT 1; -- the end\n"));
        assert!(!is_whole("SELECT 1"));
        assert!(!is_whole("SELECT ';"));
        assert!(!is_whole("SELECT 1 -- ;"));
        assert!(!is_whole(""));
    }

    #[test]
    fn commands_begin_with_a_backslash() {
        assert_eq!(command_of("\\q"), Some(PromptCommand::End));
        assert_eq!(command_of(" \\q;"), Some(PromptCommand::End));
        assert_eq!(command_of("\\?"), Some(PromptCommand::Help));
        assert_eq!(command_of("SELECT '\\d'"), None);
        let Some(PromptCommand::Ask(sql)) = command_of("\\d day.o'clock") else { panic!() };
        assert!(sql.contains("table_schema = 'day' AND table_name = 'o''clock'"), "{sql}");
    }
}
