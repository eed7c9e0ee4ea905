//! Finds all files of the repository and applies all rules to them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Finding, layers, libraries, names, signatures, text};

/// The result of a whole check.
pub(crate) struct Report {
    pub(crate) findings: Vec<Finding>,
    /// Text files read.
    pub(crate) files: usize,
    /// Crates of the workspace.
    pub(crate) crates: usize,
}

/// The root of the repository that this tool runs for.
pub(crate) fn root() -> Result<PathBuf, String> {
    // Cargo sets the variable for the program that it runs. The value of the build may be that of
    // another checkout, which shares the target directory.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into());
    let here = PathBuf::from(here);
    here.parent().map(Path::to_owned).ok_or_else(|| format!("{} has no parent", here.display()))
}

/// Checks everything under `root`.
pub(crate) fn check(root: &Path) -> Result<Report, String> {
    let mut findings = Vec::new();
    let mut files = 0;
    let mut names = names::Names::default();
    let paths = files_of(root)?;
    for path in &paths {
        if let Some(joined) = joined_by(path, &paths) {
            findings.extend(text::check_joined(path, &joined, &read(&root.join(&joined))?));
        }
        // A file that git lists and that is gone was deleted and not yet committed.
        let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
        // What is not text has no lines to judge.
        let Ok(content) = String::from_utf8(bytes) else { continue };
        files += 1;
        findings.extend(text::check(path, &content));
        findings.extend(signatures::check(path, &content));
        names.add(path, &content);
    }
    // A tree without a list breaks no rule of that list by intention.
    let lists = names::LISTS.map(|list| read(&root.join(list.file)).unwrap_or_default());
    findings.extend(names.check(&lists));
    let metadata = metadata(root)?;
    let members = layers::members(&metadata)?;
    let relative = |manifest: &str| {
        let path = Path::new(manifest);
        path.strip_prefix(root).unwrap_or(path).display().to_string()
    };
    for member in &members {
        let content = read(Path::new(&member.manifest))?;
        findings.extend(layers::check_lints(&relative(&member.manifest), &content));
    }
    for library in libraries::list_libraries(&metadata) {
        let manifest = relative(&library.manifest);
        let folder = manifest.replace("Cargo.toml", "src/");
        let of = paths.iter().filter(|path| path.starts_with(&folder) && path.ends_with(".rs"));
        let read = of.filter_map(|path| Some((&path[..], read(&root.join(path)).ok()?)));
        let sources: Vec<(&str, String)> = read.collect();
        let sources: Vec<_> = sources.iter().map(|(path, text)| (*path, &text[..])).collect();
        findings.extend(libraries::check(&library, &manifest, &sources));
    }
    let table = layers::table(&read(&root.join(layers::TABLE_FILE))?)?;
    findings.extend(layers::check(&table, &members, relative));
    findings.sort();
    Ok(Report { findings, files, crates: members.len() })
}

/// Removes from the lists of [`names`] what is not needed any more. Returns how many entries the
/// lists lost, and how many are left.
pub(crate) fn prune_lists(root: &Path) -> Result<[usize; 2], String> {
    let mut names = names::Names::default();
    for path in &files_of(root)? {
        if let Ok(content) = std::fs::read_to_string(root.join(path)) {
            names.add(path, &content);
        }
    }
    let [mut lost, mut left] = [0, 0];
    for (list, needed) in names::LISTS.iter().zip(names.entries()) {
        let path = root.join(list.file);
        let before = read(&path)?;
        let after = names::prune(&before, &needed);
        lost += before.lines().count() - after.lines().count();
        left += after.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
        std::fs::write(&path, after).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok([lost, left])
}

/// The program that has to take this file of tests in: `tests/main.rs` beside the file, if any.
fn joined_by(path: &str, paths: &[String]) -> Option<String> {
    let (directory, name) = path.rsplit_once('/')?;
    let main = format!("{directory}/main.rs");
    let is_test = directory.ends_with("/tests") && name.ends_with(".rs") && name != "main.rs";
    (is_test && paths.contains(&main)).then_some(main)
}

/// Files that are, or would be, committed. A directory of which git tracks nothing is not judged,
/// because a run may have left it behind. `git add` brings a new directory under judgement.
fn files_of(root: &Path) -> Result<Vec<String>, String> {
    let arguments = ["ls-files", "--cached", "--others", "--directory", "--exclude-standard", "-z"];
    let listing = run(root, "git", &arguments)?;
    let is_file = |path: &&str| !path.is_empty() && !path.ends_with('/');
    let mut paths: Vec<String> = listing.split('\0').filter(is_file).map(str::to_owned).collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// The cargo that runs this program, or the cargo on the PATH.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

pub(crate) fn metadata(root: &Path) -> Result<serde_json::Value, String> {
    let json = run(root, &cargo(), &["metadata", "--no-deps", "--format-version", "1"])?;
    serde_json::from_str(&json).map_err(|error| format!("cargo metadata: {error}"))
}

pub(crate) fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The output of a program that runs in the root and succeeds.
pub(crate) fn run(root: &Path, program: &str, arguments: &[&str]) -> Result<String, String> {
    let shown = format!("{program} {}", arguments.join(" "));
    let mut command = Command::new(program);
    // `cargo run` tells this program where its crate is. Build scripts that look at these variables
    // would run again in a cargo that inherits them, and in the next one without them.
    let inherited = std::env::vars_os().map(|(name, _)| name);
    let of_crate = |name: &std::ffi::OsString| {
        name.to_string_lossy().starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR"
    };
    for name in inherited.filter(of_crate) {
        command.env_remove(name);
    }
    let output = command
        .args(arguments)
        .current_dir(root)
        // Set by cargo and by git hooks; they would point the child at another tree.
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE")
        .output()
        .map_err(|error| format!("cannot start `{shown}`: {error}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{shown}` in {} failed: {}", root.display(), reason.trim()));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("`{shown}` printed no UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace of two crates in a directory of its own, removed when dropped.
    struct Fixture(PathBuf);

    impl Fixture {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("tidy-{name}-{}", std::process::id()));
            let fixture = Self(root);
            fixture.write(
                "ARCHITECTURE.md",
                "| crate | may depend on |\n|---|---|\n| `a` | nothing |\n| `b` | `a` |\n",
            );
            fixture.write(
                "Cargo.toml",
                "[workspace]\nresolver = \"3\"\nmembers = [\"a\", \"b\"]\n[workspace.lints]\n",
            );
            fixture.manifest("a", "");
            fixture.manifest("b", "[dependencies]\na = { path = \"../a\" }\n");
            fixture.write("a/src/lib.rs", "//! A.\n");
            fixture.write("b/src/lib.rs", "//! B.\n");
            run(&fixture.0, "git", &["init", "--quiet"]).expect("git");
            run(&fixture.0, "git", &["add", "."]).expect("git");
            fixture
        }

        fn write(&self, path: &str, content: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            std::fs::write(path, content).expect("a file");
        }

        fn manifest(&self, name: &str, dependencies: &str) {
            self.write(
                &format!("{name}/Cargo.toml"),
                &format!(
                    "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\
                     [lib]\ntest = false\ndoctest = false\n\
                     {dependencies}[lints]\nworkspace = true\n"
                ),
            );
        }

        fn findings(&self) -> Vec<String> {
            let report = check(&self.0).expect("a report");
            report.findings.iter().map(ToString::to_string).collect()
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            // Best effort: a fixture left behind in the temporary directory harms nobody.
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn tidy_tree_has_no_findings() {
        let fixture = Fixture::new("clean");
        assert_eq!(fixture.findings(), Vec::<String>::new());
    }

    #[test]
    fn broken_tree_names_every_break() {
        let fixture = Fixture::new("broken");
        fixture.manifest("a", "[dependencies]\nb = { path = \"../b\" }\n");
        fixture.manifest("b", "");
        fixture.write(
            "b/Cargo.toml",
            "[package]\nname = \"b\"\nversion = \"0.1.0\"\n[lib]\ntest = false\ndoctest = false\n",
        );
        fixture.write("b/src/lib.rs", &format!("//! B.\n// {}\n", concat!("TO", "DO")));
        let found = fixture.findings();
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(found[0].starts_with("a/Cargo.toml:1: `a` must not depend on `b`"));
        assert!(found[1].starts_with("b/Cargo.toml:1: does not take the workspace's lints"));
        assert!(found[2].starts_with("b/src/lib.rs:2: "));
    }

    #[test]
    fn ignored_files_are_not_judged() {
        let fixture = Fixture::new("ignored");
        fixture.write(".gitignore", "out/\n");
        fixture.write("out/x.rs", concat!("to", "do!()"));
        assert_eq!(fixture.findings(), Vec::<String>::new());
    }

    #[test]
    fn what_a_run_left_is_not_judged_and_a_new_file_beside_others_is() {
        let fixture = Fixture::new("stray");
        fixture.write("evenfall-demo/evenfall.toml", concat!("dir = \"/ho", "me/x\"\n"));
        fixture.write("a/left/x.rs", concat!("to", "do!()"));
        assert_eq!(fixture.findings(), Vec::<String>::new());
        fixture.write("a/src/new.rs", concat!("to", "do!()"));
        assert_eq!(fixture.findings().len(), 1);
    }

    #[test]
    fn a_file_of_tests_that_its_program_does_not_take_in_is_found() {
        let fixture = Fixture::new("joined");
        fixture.write("a/tests/main.rs", "//! All.\nmod known;\n");
        fixture.write("a/tests/known.rs", "//! Known.\n");
        fixture.write("b/tests/alone.rs", "//! Alone.\n");
        run(&fixture.0, "git", &["add", "."]).expect("git");
        assert_eq!(fixture.findings(), Vec::<String>::new());
        fixture.write("a/tests/forgotten.rs", "//! Forgotten.\n");
        let found = fixture.findings();
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].starts_with("a/tests/forgotten.rs:1: no test here runs"), "{found:#?}");
    }

    #[test]
    fn missing_table_is_said() {
        let fixture = Fixture::new("tableless");
        fixture.write("ARCHITECTURE.md", "# nothing\n");
        assert!(check(&fixture.0).err().expect("an error").contains("no table"));
    }
}
