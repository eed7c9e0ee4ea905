//! Rules about what crates promise to programs: no error of a public function is a bare text, and
//! no error tells its cause twice.
//!
//! A program can only print a `String`. A program can match an error with its own type, ask it for
//! its cause, and go on working when the type gets new variants. A program prints an error and then
//! the chain of its causes. The words that an error takes from its cause must therefore not come
//! back from `source()`.

use crate::Finding;

/// Crates that programs use. Applications and instruments print what they meet.
const PRODUCT: &str = "crates/";

/// Files whose public functions may return texts, with the reasons.
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
    let mut findings = told_twice(path, &lines);
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

/// Arms of `source()` that return what the same variant's arm of `Display` has already printed.
fn told_twice(path: &str, lines: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_source = false;
    for (at, line) in lines.iter().enumerate() {
        in_source |= line.contains("fn source(&self)");
        in_source &= *line != "    }";
        let Some((variants, cause)) = line.split_once(" => Some(").filter(|_| in_source) else {
            continue;
        };
        let (cause, _) = cause.split_once(')').unwrap_or((cause, ""));
        let printed = [format!("{{{cause}}}"), format!("{cause}.fmt(f)")];
        for variant in variants.split('|').map(str::trim) {
            let name = variant.split(['(', ' ']).next().unwrap_or(variant);
            if printed.iter().any(|printed| arm_has(lines, name, printed)) {
                findings.push(Finding::new(
                    path,
                    at + 1,
                    format!("`source()` of `{name}` returns the cause that `Display` prints"),
                    format!("return `std::error::Error::source({cause})`, the cause behind it"),
                ));
            }
        }
    }
    findings
}

/// Whether an arm of a match on this variant has this text.
fn arm_has(lines: &[&str], variant: &str, text: &str) -> bool {
    let mut in_arm = false;
    lines.iter().map(|line| line.trim_start()).any(|line| {
        if line.starts_with("Self::") || line == "}" {
            in_arm = line.split(['(', ' ']).next() == Some(variant);
        }
        in_arm && line.contains(text)
    })
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

    /// An error whose file cannot be opened. Lines 9 to 12 are `source()`.
    fn error(printed: &str, source: &str) -> String {
        format!(
            "impl fmt::Display for E {{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {{
        match self {{
            Self::Open(path, error) => {{
                {printed}
            }}
            Self::Closed => f.write_str(\"closed\"),
impl Error for E {{
    fn source(&self) -> Option<&(dyn Error + 'static)> {{
        match self {{
            Self::Open(_, error) => {source},
            Self::Closed => None,
"
        )
    }

    #[test]
    fn a_cause_that_is_printed_and_returned_is_found() {
        let printed = "write!(f, \"{}: {error}\", path.display())";
        assert_eq!(lines(&error(printed, "Some(error)")), [11]);
        assert_eq!(lines(&error("error.fmt(f)", "Some(error)")), [11]);
        assert!(lines(&error(printed, "Error::source(error)")).is_empty());
        assert!(lines(&error("write!(f, \"{path}\")", "Some(error)")).is_empty());
    }
}
