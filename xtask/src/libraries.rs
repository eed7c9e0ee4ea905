//! Rules about what `cargo test` makes of a library. It compiles the library a second time for its
//! unit tests, and runs rustdoc over the library for its examples. A library that has neither says
//! so in its manifest, because each costs every cold build some seconds.

use serde_json::Value;

use crate::Finding;

/// A library of the workspace, from `cargo metadata`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Library {
    /// Absolute, as cargo prints it.
    pub(crate) manifest: String,
    /// Whether `cargo test` builds its unit tests.
    has_unit_tests: bool,
    /// Whether `cargo test` runs the examples of its documentation.
    has_examples: bool,
}

/// The libraries in the JSON of `cargo metadata --no-deps`.
pub(crate) fn list_libraries(metadata: &Value) -> Vec<Library> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let library = |package: &Value| {
        let is_lib = |target: &&Value| {
            let kinds = target["kind"].as_array().into_iter().flatten();
            kinds.into_iter().any(|kind| kind == "lib" || kind == "rlib")
        };
        let target = package["targets"].as_array()?.iter().find(is_lib)?;
        Some(Library {
            manifest: package["manifest_path"].as_str()?.to_owned(),
            has_unit_tests: target["test"] == true,
            has_examples: target["doctest"] == true,
        })
    };
    packages.filter_map(library).collect()
}

/// Compares what the manifest says with the sources: the paths and texts of the files below `src`.
pub(crate) fn check(library: &Library, manifest: &str, sources: &[(&str, &str)]) -> Vec<Finding> {
    let first = |find: fn(&str) -> Option<usize>| {
        sources.iter().find_map(|&(path, text)| Some((path, find(text)?)))
    };
    let unit_test = first(|text| text.lines().position(is_unit_test).map(|line| line + 1));
    let example = first(find_example);
    let parts = [
        ("test", "unit tests", library.has_unit_tests, unit_test),
        ("doctest", "examples in its documentation", library.has_examples, example),
    ];
    let judge = |(key, what, is_built, found): (&str, &str, bool, Option<(&str, usize)>)| match (
        is_built, found,
    ) {
        (true, None) => Some(Finding::new(
            manifest,
            1,
            format!("`cargo test` builds the library for {what}, of which it has none"),
            format!("write `{key} = false` under `[lib]`"),
        )),
        (false, Some((path, line))) => Some(Finding::new(
            path,
            line,
            format!("never runs, because the manifest says `{key} = false`"),
            format!("remove the line from {manifest}, or move this to `tests/`"),
        )),
        _ => None,
    };
    parts.into_iter().filter_map(judge).collect()
}

fn is_unit_test(line: &str) -> bool {
    !line.trim_start().starts_with("//") && line.contains("#[test]")
}

/// The first line of code that rustdoc would compile.
fn find_example(text: &str) -> Option<usize> {
    const COMPILED: [&str; 6] =
        ["rust", "no_run", "should_panic", "compile_fail", "standalone_crate", "edition2024"];
    let mut is_inside = false;
    for (line, text) in text.lines().enumerate() {
        let text = text.trim_start();
        let Some(text) = text.strip_prefix("///").or_else(|| text.strip_prefix("//!")) else {
            is_inside = false;
            continue;
        };
        let Some(words) = text.trim_start().strip_prefix("```") else { continue };
        let mut words = words.split([',', ' ']).filter(|word| !word.is_empty());
        if !is_inside && words.all(|word| COMPILED.contains(&word)) {
            return Some(line + 1);
        }
        is_inside = !is_inside;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(has_unit_tests: bool, has_examples: bool, source: &str) -> Vec<String> {
        let library = Library { manifest: String::new(), has_unit_tests, has_examples };
        let found = check(&library, "a/Cargo.toml", &[("a/src/lib.rs", source)]);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn libraries_are_read_from_the_metadata() {
        let target =
            |kind, test| serde_json::json!({"kind": [kind], "test": test, "doctest": true});
        let targets = [target("bin", true), target("lib", false)];
        let package = serde_json::json!({"manifest_path": "/a/Cargo.toml", "targets": targets});
        let program =
            serde_json::json!({"manifest_path": "/b/Cargo.toml", "targets": targets[..1]});
        let read = list_libraries(&serde_json::json!({"packages": [package, program]}));
        let library =
            Library { manifest: "/a/Cargo.toml".into(), has_unit_tests: false, has_examples: true };
        assert_eq!(read, [library]);
    }

    #[test]
    fn a_library_says_what_it_does_not_have() {
        let text = "//! ```text\n//! a -> b\n//! ```\n// #[test]\n";
        let found = findings(true, true, text);
        assert!(found[0].contains("for unit tests") && found[0].contains("`test = false`"));
        assert!(found[1].contains("for examples") && found[1].contains("`doctest = false`"));
        assert_eq!(findings(false, false, text), Vec::<String>::new());
    }

    #[test]
    fn a_test_or_an_example_that_never_runs_is_found() {
        let text = "/// ```text\n/// ```\n/// ```no_run\n/// ```\nfn a() {}\n\n    #[test]\n";
        assert_eq!(findings(true, true, text), Vec::<String>::new());
        let found = findings(false, false, text);
        assert!(found[0].starts_with("a/src/lib.rs:7: never runs"), "{found:?}");
        assert!(found[1].starts_with("a/src/lib.rs:3: never runs"), "{found:?}");
    }
}
