//! Rules about what the crates promise to programs: no public function fails with a bare text.
//!
//! A program can only print a `String`. An error with a type of its own can be matched, has a
//! cause, and may grow.

use crate::Finding;

/// Crates that programs use. Applications and instruments print what they meet.
const PRODUCT: &str = "crates/";

/// Where public functions may return texts, and why.
const TEXTS: [(&str, &str); 1] =
    [("crates/sim/src/", "what checkers found under a seed, in words for people")];

/// All findings in one file. `path` is relative to the root of the repository.
pub(crate) fn check(path: &str, text: &str) -> Vec<Finding> {
    let is_product = path.starts_with(PRODUCT) && path.contains("/src/") && path.ends_with(".rs");
    let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
    if !is_product || is_test || TEXTS.iter().any(|(place, _)| path.starts_with(place)) {
        return Vec::new();
    }
    let lines: Vec<&str> = text.lines().take_while(|line| *line != "mod tests {").collect();
    let mut findings = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let words = line.trim_start();
        let signature = if is_public_function(words) {
            signature(&lines[at..])
        } else if words.starts_with("pub ") || words.starts_with("type Err") {
            words.to_owned()
        } else {
            continue;
        };
        if signature.starts_with("type Err = String") || fails_with_text(&signature) {
            findings.push(Finding::new(
                path,
                at + 1,
                "a public item fails with a `String`",
                "give the crate or module an error type, named by a noun, with `source()`",
            ));
        }
    }
    findings
}

/// Whether a line begins a function that other crates can call.
fn is_public_function(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("pub ") else { return false };
    let mut words = rest.split_whitespace();
    words.find(|word| !["const", "async", "unsafe"].contains(word)) == Some("fn")
}

/// The lines of a signature in one: up to its body, or the end of its declaration.
fn signature(lines: &[&str]) -> String {
    let mut signature = String::new();
    for line in lines {
        signature += line.trim();
        signature.push(' ');
        if line.ends_with('{') || line.ends_with(';') || line.ends_with('}') {
            break;
        }
    }
    signature
}

/// Whether a `Result` of the signature has `String` for its error.
fn fails_with_text(signature: &str) -> bool {
    let starts = signature.match_indices("Result<").map(|(at, word)| at + word.len());
    starts.into_iter().any(|start| error_of(&signature[start..]) == Some("String"))
}

/// The second argument of a generic type of which this follows the opening bracket.
fn error_of(arguments: &str) -> Option<&str> {
    let (mut depth, mut comma, mut before) = (0_u32, None, ' ');
    for (at, letter) in arguments.char_indices() {
        match letter {
            '<' | '(' | '[' => depth += 1,
            // The end of an arrow closes nothing.
            '>' if before == '-' => {}
            '>' | ')' | ']' if depth == 0 => return Some(arguments[comma?..at].trim()),
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => comma = Some(at + 1),
            _ => {}
        }
        before = letter;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "crates/store/engine/src/import.rs";

    fn lines(text: &str) -> Vec<usize> {
        check(PATH, text).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn public_function_that_fails_with_a_text_is_found() {
        assert_eq!(lines("pub fn a() -> Result<(), String> {\n}\n"), [1]);
        assert_eq!(
            lines("//! B.\npub fn b(\n    at: u8,\n) -> Result<Vec<(u8, u8)>, String> {\n}\n"),
            [2]
        );
        assert_eq!(lines("    pub const fn c(x: fn(&str) -> Result<u8, String>) {}\n"), [1]);
        assert_eq!(lines("    pub check: fn(&str) -> Result<(), String>,\n"), [1]);
        assert_eq!(lines("    type Err = String;\n"), [1]);
    }

    #[test]
    fn texts_elsewhere_are_no_errors() {
        for fine in [
            "fn private() -> Result<(), String> {\n}\n",
            "pub(crate) fn inner() -> Result<(), String> {\n}\n",
            "pub fn map() -> Result<BTreeMap<String, String>, FeedError> {\n}\n",
            "pub fn text() -> Result<String, FeedError> {\n}\n",
            "pub fn io(path: String) -> io::Result<String> {\n}\n",
        ] {
            assert!(lines(fine).is_empty(), "{fine}");
        }
        assert!(check("apps/cli/src/stat.rs", "pub fn a() -> Result<(), String> {").is_empty());
    }
}
