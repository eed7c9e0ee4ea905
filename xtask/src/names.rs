//! Rules about names and shapes: search must find things, and a signature must say what it takes.
//!
//! - A public type's name occurs once in the workspace, so that a text search finds the type. The
//!   general words of [`GENERAL`] are used with their module.
//! - No parameter is an anonymous tuple. Two values that travel together have a name together.
//! - A struct has [`FIELDS_MAX`] fields at most. A larger struct is several things.
//! - A function is a verb with its object. One word is enough only for the words in a list.
//!
//! What broke a rule when the rule came stands in a list below `xtask/lists/`. A list may only
//! shrink: a new entry is a finding in the code, and an entry that is not needed any more is a
//! finding in the list.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;

/// Most fields of a struct.
const FIELDS_MAX: usize = 30;
/// Public type names that may occur in any number of crates, because their module says whose they
/// are.
const GENERAL: [&str; 7] =
    ["Args", "Config", "ConfigError", "Error", "Event", "Options", "Settings"];
/// Where the rules apply.
const PLACES: [&str; 3] = ["apps/", "crates/", "lab/"];

/// A list of what broke a rule when the rule came.
pub(crate) struct List {
    /// Path from the root of the repository.
    pub(crate) file: &'static str,
    /// What an entry breaks, and the remedy.
    rule: [&'static str; 2],
}

/// The lists, in the order of [`Names`].
pub(crate) const LISTS: [List; 4] = [
    List {
        file: "xtask/lists/duplicate-types.txt",
        rule: [
            "is the name of another public type too",
            "name it by the field's own compound word, such as `RepairQueue`",
        ],
    },
    List {
        file: "xtask/lists/tuple-parameters.txt",
        rule: [
            "takes an anonymous tuple",
            "give the values that travel together a struct, or pass them one by one",
        ],
    },
    List {
        file: "xtask/lists/large-structs.txt",
        rule: ["is a struct of more than 30 fields", "divide it by what changes together"],
    },
    List {
        file: "xtask/lists/one-word-functions.txt",
        rule: [
            "is the name of a function, and one word",
            "name it by a verb with its object, such as `drain_events`",
        ],
    },
];

/// Where a name occurs: the file and the line of each occurrence.
type Places = BTreeMap<String, Vec<(String, usize)>>;

/// Everything of the whole tree that the rules look at.
#[derive(Default)]
pub(crate) struct Names {
    types: Places,
    tuples: Places,
    structs: Places,
    functions: Places,
}

impl Names {
    /// Takes a file in. `path` is relative to the root of the repository.
    pub(crate) fn add(&mut self, path: &str, text: &str) {
        let is_source = PLACES.iter().any(|place| path.starts_with(place))
            && path.contains("/src/")
            && path.ends_with(".rs");
        if !is_source || path.contains("/tests/") || path.ends_with("tests.rs") {
            return;
        }
        let lines: Vec<&str> = text.lines().take_while(|line| *line != "mod tests {").collect();
        let put = |of: &mut Places, name: &str, at: usize| {
            of.entry(name.to_owned()).or_default().push((path.to_owned(), at + 1));
        };
        // The bodies of macros are not functions of their own.
        let mut in_macro = false;
        for (at, line) in lines.iter().enumerate() {
            in_macro |= line.starts_with("macro_rules!");
            in_macro &= *line != "}";
            if in_macro {
                continue;
            }
            if let Some(name) = public_type(line) {
                put(&mut self.types, name, at);
            }
            if let Some(name) = struct_name(line)
                && fields(&lines[at..]) > FIELDS_MAX
            {
                put(&mut self.structs, name, at);
            }
            let Some(name) = function_name(line) else { continue };
            if !name.contains('_') {
                put(&mut self.functions, name, at);
            }
            if takes_tuple(&lines[at..]) {
                put(&mut self.tuples, &format!("{path} {name}"), at);
            }
        }
    }

    /// The findings beside the lists, whose contents are in the order of [`LISTS`].
    pub(crate) fn check(mut self, lists: &[String; 4]) -> Vec<Finding> {
        self.types.retain(|name, at| at.len() > 1 && !GENERAL.contains(&name.as_str()));
        let found = [self.types, self.tuples, self.structs, self.functions];
        let mut findings = Vec::new();
        for ((list, text), found) in LISTS.iter().zip(lists).zip(found) {
            let is_entry = |line: &&str| !line.is_empty() && !line.starts_with('#');
            let known: BTreeSet<&str> = text.lines().filter(is_entry).collect();
            for (name, places) in &found {
                // A name that occurs twice is told at its second place, because one may stay.
                let Some((file, line)) = places.last() else { continue };
                if !known.contains(name.as_str()) {
                    let word = name.rsplit(' ').next().unwrap_or(name);
                    let what = format!("`{word}` {}", list.rule[0]);
                    findings.push(Finding::new(file, *line, what, list.rule[1]));
                }
            }
            for (at, line) in text.lines().enumerate().filter(|(_, line)| is_entry(line)) {
                if !found.contains_key(line) {
                    let what = format!("`{line}` keeps the rule now");
                    findings.push(Finding::new(list.file, at + 1, what, "remove the line"));
                }
            }
        }
        findings
    }

    /// The contents of the lists as they would be for this tree.
    pub(crate) fn entries(mut self) -> [Vec<String>; 4] {
        self.types.retain(|name, at| at.len() > 1 && !GENERAL.contains(&name.as_str()));
        [self.types, self.tuples, self.structs, self.functions]
            .map(|found| found.into_keys().collect())
    }
}

/// A list without the entries that are not needed any more. An entry that is needed and missing is
/// not added, because it is a finding.
pub(crate) fn prune(list: &str, needed: &[String]) -> String {
    let stays = |line: &&str| {
        line.is_empty() || line.starts_with('#') || needed.iter().any(|entry| entry == line)
    };
    list.lines().filter(stays).map(|line| format!("{line}\n")).collect()
}

/// The word behind a keyword, up to what cannot be part of a name.
fn word(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}

/// The name of a public type that a line declares outside of any body.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "union ", "trait ", "type "];
    kinds.iter().find_map(|kind| word(rest.strip_prefix(kind)?))
}

/// The name of a struct that a line declares, public or not.
fn struct_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = ["pub(crate) ", "pub(super) ", "pub "]
        .iter()
        .find_map(|visibility| line.strip_prefix(visibility))
        .unwrap_or(line);
    word(line.strip_prefix("struct ")?)
}

/// The number of fields of the struct that begins with these lines.
fn fields(lines: &[&str]) -> usize {
    if !lines[0].ends_with('{') {
        return 0;
    }
    let indent = lines[0].len() - lines[0].trim_start().len() + 4;
    let is_field = |line: &&&str| {
        let own = line.len() - line.trim_start().len();
        let words = line.trim_start().trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        own == indent && word(words).is_some_and(|name| words[name.len()..].starts_with(':'))
    };
    let body = lines[1..].iter().take_while(|line| line.trim_start() != "}");
    body.filter(is_field).count()
}

/// The name of the function that a line begins.
fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if rest.starts_with("//") {
        return None;
    }
    loop {
        let before = ["pub(crate) ", "pub(super) ", "pub ", "const ", "async ", "unsafe "];
        match before.iter().find_map(|word| rest.strip_prefix(word)) {
            Some(next) => rest = next,
            None => break word(rest.strip_prefix("fn ")?),
        }
    }
}

/// Whether a parameter of the function that begins with these lines is a tuple.
fn takes_tuple(lines: &[&str]) -> bool {
    let mut signature = String::new();
    for line in lines {
        signature += line.trim();
        signature.push(' ');
        if line.ends_with('{') || line.ends_with(';') || line.ends_with('}') {
            break;
        }
    }
    let Some((_, behind)) = signature.split_once("fn ") else { return false };
    parameters(behind).iter().any(|parameter| {
        let Some((_, kind)) = split_type(parameter) else { return false };
        let kind = kind.trim_start().trim_start_matches('&').trim_start();
        let kind = match kind.strip_prefix('\'') {
            Some(life) => life.split_once(' ').map_or("", |(_, kind)| kind),
            None => kind,
        };
        let kind = kind.strip_prefix("mut ").unwrap_or(kind);
        kind.starts_with('(') && kind.contains(',')
    })
}

/// A pattern and its type, which the first colon outside of brackets divides.
fn split_type(parameter: &str) -> Option<(&str, &str)> {
    let mut depth = 0_i32;
    for (at, letter) in parameter.char_indices() {
        match letter {
            '(' | '[' | '<' | '{' => depth += 1,
            ')' | ']' | '>' | '}' => depth -= 1,
            ':' if depth == 0 => return Some((&parameter[..at], &parameter[at + 1..])),
            _ => {}
        }
    }
    None
}

/// The parameters of a function, whose name and generics this begins with.
fn parameters(behind: &str) -> Vec<&str> {
    let (mut angle, mut depth, mut start, mut before) = (0_i32, 0_i32, 0, ' ');
    let mut all = Vec::new();
    for (at, letter) in behind.char_indices() {
        match letter {
            '<' => angle += 1,
            // The end of an arrow closes nothing.
            '>' if before != '-' => angle -= 1,
            '(' if depth == 0 && angle == 0 => (depth, start) = (1, at + 1),
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 1 && angle == 0 => {
                all.push(&behind[start..at]);
                return all;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 1 && angle == 0 => {
                all.push(&behind[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        before = letter;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "crates/store/engine/src/import.rs";

    fn of(text: &str) -> [Vec<String>; 4] {
        let mut names = Names::default();
        names.add(PATH, text);
        names.entries()
    }

    #[test]
    fn a_public_type_of_two_crates_is_found_and_a_general_word_is_not() {
        let mut names = Names::default();
        for path in ["crates/a/src/lib.rs", "crates/b/src/lib.rs", "xtask/src/c.rs"] {
            names.add(path, "pub struct Desk;\npub enum Error {}\nstruct Own;\n");
        }
        names.add("crates/a/tests/x.rs", "pub struct Own;\npub struct Own2;\n");
        assert_eq!(names.entries()[0], ["Desk"]);
    }

    #[test]
    fn tuples_are_found_as_parameters_alone() {
        let tuples = |text: &str| of(text)[1].len();
        for wrong in [
            "fn a_b((x, y): (u8, u8)) {\n",
            "    pub fn a_b(&self, at: &(u8, u8)) -> u8 {\n",
            "fn a_b<T: Fn(u8) -> u8>(\n    t: T,\n    two: &'static mut (u8, u8),\n) {\n",
        ] {
            assert_eq!(tuples(wrong), 1, "{wrong}");
        }
        for fine in [
            "fn a_b(x: u8) -> (u8, u8) {\n",
            "fn a_b(all: &[(u8, u8)], f: impl Fn((u8, u8))) {\n",
            "fn a_b(nothing: ()) {\n",
            "fn a_b(m: BTreeMap<u8, (u8, u8)>) {\n",
            "// fn a_b(x: (u8, u8)) {\n",
        ] {
            assert_eq!(tuples(fine), 0, "{fine}");
        }
    }

    #[test]
    fn a_struct_of_too_many_fields_is_found() {
        let body = |fields: usize| {
            let fields: String =
                (0..fields).map(|n| format!("    /// It.\n    pub(crate) f{n}: u8,\n")).collect();
            format!("pub struct Big {{\n{fields}}}\n")
        };
        assert_eq!(of(&body(FIELDS_MAX))[2], Vec::<String>::new());
        assert_eq!(of(&body(FIELDS_MAX + 1))[2], ["Big"]);
    }

    #[test]
    fn functions_of_one_word_are_found_outside_of_tests_and_macros() {
        let text = "fn ask() {}\npub(crate) const fn told(&self) {}\nfn ask_again() {}\n\
                    macro_rules! m {\n    () => {\n        fn inner() {}\n    };\n}\n\
                    mod tests {\nfn helper() {}\n";
        assert_eq!(of(text)[3], ["ask", "told"]);
    }

    #[test]
    fn lists_may_only_shrink() {
        let mut names = Names::default();
        names.add(PATH, "fn ask() {}\n");
        let list = |words: &str| [String::new(), String::new(), String::new(), words.to_owned()];
        assert_eq!(names.check(&list("# Words.\n\nask\n")), []);
        let mut names = Names::default();
        names.add(PATH, "fn ask() {}\n");
        let found = names.check(&list("hear\n"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].file.as_str(), found[0].line), (PATH, 1));
        assert!(found[1].file.ends_with("one-word-functions.txt") && found[1].line == 1);
        let pruned = prune("# Words.\n\nask\nhear\n", &["ask".to_owned(), "tell".to_owned()]);
        assert_eq!(pruned, "# Words.\n\nask\n");
    }
}
