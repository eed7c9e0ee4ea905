//! The pages of the repository, cut into the blocks that a reader copies.
//!
//! The info string of a fence says what a test does with the block:
//!
//! | fence | what a test does |
//! |---|---|
//! | `sh` | runs the commands in order, in the directory of the page (on pages of results: parses) |
//! | `sh parse` | gives the arguments of each `evenfall` to the parser of the program |
//! | `toml NAME.toml` | saves the settings under that name and runs `evenfall config check` |
//! | `toml part` | parses the excerpt as TOML |

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The separators of arguments and of commands in the report of the shell. No page contains them.
const UNIT_END: char = '\u{1f}';
const RECORD_END: char = '\u{1e}';

/// The script that the shell runs first: it records the arguments of each `evenfall`, and hides all
/// other programs.
const RECORDER: &str = r#"
exec 9>&1 >/dev/null 2>&1
PATH=/nonexistent
evenfall() { local IFS=$'\x1f'; printf '%s\x1e' "evenfall$IFS$*" >&9; }
command_not_found_handle() { :; }
"#;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Run,
    Parse,
    /// Settings, and the file that the page saves them in.
    Settings(String),
    Part,
    Other,
}

#[derive(Debug)]
pub struct Block {
    pub line: usize,
    pub kind: Kind,
    pub text: String,
}

pub struct Page {
    /// Path from the root of the repository, such as `docs/store.md`.
    pub name: String,
    pub text: String,
    pub blocks: Vec<Block>,
}

pub fn repository() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let top = own.ancestors().find(|folder| folder.join("Cargo.lock").exists());
    top.expect("a package of the workspace").to_owned()
}

/// Hands each command on the pages to a parser, which answers `None` for a command of another
/// program. Returns the number of accepted commands.
///
/// # Panics
/// When the parser refuses a command.
pub fn parse_commands<E: std::fmt::Display>(
    parse: impl Fn(&[String]) -> Option<Result<(), E>>,
) -> usize {
    let mut accepted = 0;
    for page in all() {
        for block in page.blocks.iter().filter(|block| block.is_shell()) {
            for command in block.commands() {
                match parse(&command) {
                    Some(Err(error)) => {
                        panic!("{}:{}: {}\n{error}", page.name, block.line, command.join(" "))
                    }
                    Some(Ok(())) => accepted += 1,
                    None => {}
                }
            }
        }
    }
    accepted
}

/// Every page at the root of the repository, in `docs/` and in the folders of `docs/`.
pub fn all() -> Vec<Page> {
    let top = repository();
    let mut names = Vec::new();
    for folder in ["", "docs", "docs/results", "docs/results/shuffle", "docs/wire"] {
        let entries = fs::read_dir(top.join(folder)).expect("a folder of pages").flatten();
        let pages = entries.map(|entry| Path::new(folder).join(entry.file_name()));
        names.extend(pages.filter(|page| page.extension().is_some_and(|end| end == "md")));
    }
    names.sort();
    assert!(names.len() > 15, "pages: {names:?}");
    names.iter().map(|name| Page::read(&top, name)).collect()
}

impl Page {
    fn read(top: &Path, name: &Path) -> Self {
        let text = fs::read_to_string(top.join(name)).expect("a page");
        let name = name.display().to_string();
        let blocks = blocks(&text, name.starts_with("docs/results"));
        Self { name, text, blocks }
    }
}

fn kind(info: &str, only_parsed: bool) -> Kind {
    match info.split_whitespace().collect::<Vec<_>>()[..] {
        ["sh"] if only_parsed => Kind::Parse,
        ["sh"] => Kind::Run,
        ["sh", "parse"] => Kind::Parse,
        ["toml", "part"] => Kind::Part,
        ["toml", file] => Kind::Settings(file.to_owned()),
        ["sh" | "toml" | "bash" | "shell" | "console", ..] => {
            panic!("a fence says `{info}`; CONTRIBUTING.md lists the words that a test knows")
        }
        _ => Kind::Other,
    }
}

fn blocks(text: &str, only_parsed: bool) -> Vec<Block> {
    let (mut found, mut open) = (Vec::new(), None::<(usize, Block)>);
    for (at, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        match (line.trim_start().strip_prefix("```"), open.take()) {
            (Some(info), None) => {
                let kind = kind(info, only_parsed);
                open = Some((indent, Block { line: at + 1, kind, text: String::new() }));
            }
            (Some(_), Some((_, block))) => found.push(block),
            (None, Some((indent, mut block))) => {
                block.text.push_str(line.get(indent..).unwrap_or_default());
                block.text.push('\n');
                open = Some((indent, block));
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a fence that does not end");
    found
}

impl Block {
    pub fn is_shell(&self) -> bool {
        matches!(self.kind, Kind::Run | Kind::Parse)
    }

    /// The arguments of each `evenfall` in the block, as a shell hands them over.
    pub fn commands(&self) -> Vec<Vec<String>> {
        let script = format!("{RECORDER}\n{}\nwait\n", self.text);
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut shell = Command::new("bash");
        let output = shell.args(["-c", &script]).current_dir(folder.path()).output();
        let said = String::from_utf8(output.expect("bash").stdout).expect("UTF-8");
        let records = said.split_terminator(RECORD_END);
        records.map(|record| record.split(UNIT_END).map(str::to_owned).collect()).collect()
    }
}
