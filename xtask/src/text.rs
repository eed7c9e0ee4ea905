//! Rules about the text of one file.

use crate::Finding;

/// Limit of the lines of a source file, about what a reader can keep in mind.
const FILE_LINES_MAX: usize = 800;
/// Limit of the columns of a line of Rust. `rustfmt.toml` has the same limit, but rustfmt does not
/// break strings and comments.
const COLUMNS_MAX: usize = 100;

/// Limit of the lines of a function's body, about one screen. Tests may be longer.
const BODY_LINES_MAX: usize = 70;

/// Words that must not be in a commit, with the places of the rule. The words are assembled from
/// halves, so that this file passes.
const UNFINISHED: [(&str, &str, &str); 6] = [
    (concat!("TO", "DO"), "a note to oneself", "do it, or open an issue and describe the state"),
    (concat!("FIX", "ME"), "a note to oneself", "fix it, or open an issue and describe the state"),
    (concat!("X", "XX"), "a note to oneself", "say what is wrong in a sentence"),
    (concat!("to", "do!"), "an unfinished body", "finish it, or do not expose it yet"),
    (concat!("unimple", "mented!"), "an unfinished body", "finish it, or return an error"),
    (concat!("#[ig", "nore"), "a disabled test", "mend it, or print `skipped:` with the reason"),
];

/// Functions of floating-point numbers whose last bit depends on the platform's library of
/// mathematics, or on the compiler. The square root, rounding and the four operations do not.
const UNSTEADY: [&str; 26] = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "exp",
    "exp2", "exp_m1", "hypot", "ln", "ln_1p", "log", "log10", "log2", "mul_add", "powf", "powi",
    "sin", "sin_cos", "sinh", "tan",
];
/// Folders whose numbers become part of results. An unsteady function there would give different
/// results on different computers.
const STEADY: [&str; 3] = ["apps/", "crates/", "lab/"];
/// The module that stands in for [`UNSTEADY`], whose tests compare it with the platform's library.
const OUR_MATHEMATICS: &str = "crates/core/src/math";

/// Beginnings of absolute paths that exist on a single machine only.
const WORKPLACES: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Use", "rs/")];

/// All findings in one file. `path` is relative to the root of the repository.
pub(crate) fn check(path: &str, text: &str) -> Vec<Finding> {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    let source = matches!(extension, "rs" | "py" | "c" | "h" | "js");
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if source && lines > FILE_LINES_MAX {
        findings.push(Finding::new(
            path,
            FILE_LINES_MAX + 1,
            format!("{lines} lines, more than {FILE_LINES_MAX}"),
            "split it along its ideas; move tests to a sibling tests.rs",
        ));
    }
    if extension == "rs" && !is_test(path) {
        findings.extend(long_bodies(path, text));
    }
    for (index, line) in text.lines().enumerate() {
        if source || matches!(extension, "sh" | "toml") {
            findings.extend(unfinished(path, index + 1, line));
        }
        // A row of a Markdown table cannot be broken.
        let wide = line.chars().count() > COLUMNS_MAX && !is_table_row(line);
        if extension == "rs" && wide {
            findings.push(Finding::new(
                path,
                index + 1,
                format!("{} columns, more than {COLUMNS_MAX}", line.chars().count()),
                "break the line; rustfmt leaves strings and comments to you",
            ));
        }
        findings.extend(workplace(path, index + 1, line));
        let steady = STEADY.iter().any(|part| path.starts_with(part));
        if extension == "rs" && steady && !path.starts_with(OUR_MATHEMATICS) {
            findings.extend(unsteady(path, index + 1, line));
        }
    }
    findings
}

/// Checks that the program `main` includes a file of tests beside it. The tests of a file that it
/// leaves out do not run.
pub(crate) fn check_joined(path: &str, main: &str, program: &str) -> Option<Finding> {
    let module = path.rsplit('/').next().and_then(|name| name.strip_suffix(".rs"))?;
    let line = format!("mod {module};");
    let is_taken = program.lines().any(|found| found == line);
    (!is_taken).then(|| {
        let what = format!("no test here runs, for {main} does not take this file in");
        Finding::new(path, 1, what, format!("write `{line}` there"))
    })
}

fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("tests.rs")
}

/// Functions with more lines than a screen. As rustfmt leaves them: the body begins at the end of a
/// line and ends with a brace as far in as the `fn`.
fn long_bodies(path: &str, text: &str) -> Vec<Finding> {
    let lines: Vec<&str> = text.lines().take_while(|line| *line != "mod tests {").collect();
    let mut findings = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = function(line) else { continue };
        let opens = |line: &&str| line.ends_with('{') || line.ends_with(';') || line.ends_with('}');
        let Some(head) = lines[at..].iter().position(opens) else { continue };
        let body = at + head + 1;
        let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
        if !lines[body - 1].ends_with('{') {
            continue;
        }
        let long = lines[body..].iter().position(|line| *line == end).unwrap_or(0);
        if long > BODY_LINES_MAX {
            findings.push(Finding::new(
                path,
                at + 1,
                format!("`{name}` has {long} lines, more than {BODY_LINES_MAX}"),
                "split it where its steps have names",
            ));
        }
    }
    findings
}

/// The name of the function that begins in this line.
fn function(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let before = ["pub", "const", "unsafe", "async", "extern", "\"C\""];
    let is_before = |word: &&str| before.contains(word) || word.starts_with("pub(");
    words.find(|word| !is_before(word)).filter(|word| *word == "fn")?;
    words.next()?.split(['(', '<']).next()
}

fn unfinished(path: &str, number: usize, line: &str) -> Option<Finding> {
    UNFINISHED.iter().find(|(word, ..)| has_word(line, word)).map(|(word, what, instead)| {
        Finding::new(path, number, format!("`{word}` is {what}"), *instead)
    })
}

/// A call of the platform's mathematics, as a method or by its path.
fn unsteady(path: &str, number: usize, line: &str) -> Option<Finding> {
    let code = line.trim_start();
    let called = |name: &&&str| {
        let is_method = code.contains(&format!(".{name}("));
        is_method || ["f32", "f64"].iter().any(|of| has_word(code, &format!("{of}::{name}")))
    };
    let name = UNSTEADY.iter().filter(|_| !code.starts_with("//")).find(called)?;
    let what = format!("`{name}` of a float has another last bit on another computer");
    Some(Finding::new(path, number, what, "use `evenfall_core::math`, or multiply by hand"))
}

fn workplace(path: &str, number: usize, line: &str) -> Option<Finding> {
    WORKPLACES.iter().find(|place| has_word(line, place)).map(|place| {
        Finding::new(
            path,
            number,
            format!("`{place}` names a place on one machine"),
            "use a path relative to the repository, an argument, or a temporary directory",
        )
    })
}

fn is_table_row(line: &str) -> bool {
    let line = line.trim();
    (line.starts_with("//! |") || line.starts_with("/// |")) && line.ends_with('|')
}

/// Whether `word` stands in `line` and is not a part of a longer word or path. A word that ends in
/// punctuation has its own end.
fn has_word(line: &str, word: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
    let open_ended = word.ends_with(|c: char| !c.is_alphanumeric()) || word.starts_with('#');
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let starts = word.starts_with('#') || !before.is_some_and(joins);
        let ends = open_ended || !after.is_some_and(|c| c.is_alphanumeric() || c == '_');
        starts && ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(path: &str, text: &str) -> Vec<usize> {
        check(path, text).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn file_longer_than_the_limit_is_found_in_source_only() {
        let long = "a\n".repeat(FILE_LINES_MAX + 1);
        assert_eq!(lines_of("a.rs", &long), [FILE_LINES_MAX + 1]);
        assert_eq!(lines_of("a.py", &long), [FILE_LINES_MAX + 1]);
        assert!(lines_of("a.csv", &long).is_empty());
        assert!(lines_of("a.rs", &"a\n".repeat(FILE_LINES_MAX)).is_empty());
    }

    #[test]
    fn function_longer_than_a_screen_is_found_but_not_in_tests() {
        let function = |lines: usize| {
            let body = "        x();\n".repeat(lines);
            let head = "impl A {\n    pub(crate) fn b(\n        &self,\n    ) -> u8 {\n";
            format!("{head}{body}    }}\n}}\n")
        };
        assert_eq!(lines_of("src/a.rs", &function(BODY_LINES_MAX + 1)), [2]);
        assert!(lines_of("src/a.rs", &function(BODY_LINES_MAX)).is_empty());
        for test in ["a/tests/b.rs", "src/a/tests.rs"] {
            assert!(lines_of(test, &function(BODY_LINES_MAX + 1)).is_empty(), "{test}");
        }
        let within = format!("mod tests {{\n{}}}\n", function(BODY_LINES_MAX + 1));
        assert!(lines_of("src/a.rs", &within).is_empty());
        let declared = "trait A {\n    fn b(&self);\n}\n".to_owned() + &"//\n".repeat(90);
        assert!(lines_of("src/a.rs", &declared).is_empty());
    }

    #[test]
    fn columns_are_characters_and_not_bytes() {
        assert!(lines_of("a.rs", &"\u{b5}".repeat(COLUMNS_MAX)).is_empty());
        assert_eq!(lines_of("a.rs", &format!("\n{}", "x".repeat(COLUMNS_MAX + 1))), [2]);
        assert!(lines_of("a.rs", &format!("//! | {} |", "x".repeat(COLUMNS_MAX))).is_empty());
    }

    #[test]
    fn every_unfinished_word_is_found_by_line() {
        for (word, ..) in UNFINISHED {
            assert_eq!(lines_of("a.rs", &format!("ok\n    {word} \nok")), [2], "{word}");
            assert!(lines_of("a.md", word).is_empty(), "prose may speak of {word}");
        }
        let reasoned = format!("{} = \"slow\"]", UNFINISHED[5].0);
        assert_eq!(lines_of("a.rs", &reasoned), [1]);
    }

    #[test]
    fn platform_mathematics_is_found_where_results_are_made() {
        for call in ["x.ln()", "x.map(f64::exp)", "1.0_f32.powi(2)", "a.mul_add(b, c)"] {
            assert_eq!(lines_of("crates/a/src/b.rs", &format!("ok\n{call}\n")), [2], "{call}");
            assert_eq!(lines_of("lab/tests/b.rs", &format!("{call}\n")), [1], "{call}");
            for place in ["crates/core/src/math/tests.rs", "xtask/src/a.rs", "crates/a/README.md"] {
                assert!(lines_of(place, call).is_empty(), "{place}");
            }
        }
        for fine in ["x.sqrt()", "math::ln(x)", "x.floor()", "x.logs()", "// like x.ln()"] {
            assert!(lines_of("crates/a/src/b.rs", fine).is_empty(), "{fine}");
        }
    }

    #[test]
    fn word_within_a_word_is_no_finding() {
        let longer = format!("let {}S = 1; // {}1", UNFINISHED[0].0, UNFINISHED[2].0);
        assert!(lines_of("a.rs", &longer).is_empty());
    }

    #[test]
    fn absolute_path_of_a_workplace_is_found_anywhere() {
        for place in WORKPLACES {
            assert_eq!(lines_of("a.md", &format!("see `{place}x`")), [1], "{place}");
        }
        let relative = format!("../net{0}x and example.org{0}y", WORKPLACES[0]);
        assert!(lines_of("a.md", &relative).is_empty());
    }

    #[test]
    fn finding_says_where_what_and_what_to_do() {
        let finding = &check("crates/a/src/b.rs", UNFINISHED[3].0)[0];
        let shown = finding.to_string();
        assert!(shown.starts_with("crates/a/src/b.rs:1: `"), "{shown}");
        assert!(shown.ends_with(UNFINISHED[3].2), "{shown}");
    }
}
