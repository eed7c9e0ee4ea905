//! Rules about crates: the table of ARCHITECTURE.md against what the manifests say.
//!
//! The table is the source of truth and is written for people, so it is read as people read it: the
//! first Markdown table with the columns `crate` and `may depend on`, names in backquotes. In a
//! name, `*` stands for any one word between hyphens. A row with the whole name of a crate goes
//! before a row with `*`. The table is an upper bound: a crate need not use all that it may.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::Finding;

/// The file that has the table.
pub(crate) const TABLE_FILE: &str = "ARCHITECTURE.md";

/// Forbidden endings of crate names, which say nothing about the contents of a crate.
const OWNERLESS: [&str; 6] = ["types", "utils", "util", "common", "helpers", "misc"];

/// One row of the table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    line: usize,
    may: BTreeSet<String>,
    tests_also: BTreeSet<String>,
}

/// One crate of the workspace, from `cargo metadata`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Absolute, as cargo prints it.
    pub(crate) manifest: String,
    /// (name, whether only tests use it), of crates in the workspace.
    depends_on: Vec<(String, bool)>,
}

/// Reads the layer table.
pub(crate) fn table(markdown: &str) -> Result<BTreeMap<String, Row>, String> {
    let mut columns: Option<(usize, usize, Option<usize>)> = None;
    let mut rows = BTreeMap::new();
    for (index, line) in markdown.lines().enumerate() {
        let Some(cells) = cells(line) else {
            if columns.is_some() {
                break;
            }
            continue;
        };
        let at = |title: &str| cells.iter().position(|cell| cell.eq_ignore_ascii_case(title));
        match columns {
            None => {
                if let (Some(name), Some(may)) = (at("crate"), at("may depend on")) {
                    columns = Some((name, may, at("tests also")));
                }
            }
            Some((name, may, tests_also)) => {
                let words = |column: usize| quoted(cells.get(column).copied().unwrap_or(""));
                for crate_name in words(name) {
                    let row = Row {
                        line: index + 1,
                        may: words(may),
                        tests_also: tests_also.map(words).unwrap_or_default(),
                    };
                    if rows.insert(crate_name.clone(), row).is_some() {
                        return Err(format!(
                            "{TABLE_FILE}:{}: second row of {crate_name}",
                            index + 1
                        ));
                    }
                }
            }
        }
    }
    if rows.is_empty() {
        return Err(format!("{TABLE_FILE}: no table with columns `crate` and `may depend on`"));
    }
    Ok(rows)
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

fn quoted(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The workspace's crates in the JSON of `cargo metadata --no-deps`.
pub(crate) fn members(metadata: &Value) -> Result<Vec<Member>, String> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata has no packages")?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut members = Vec::new();
    for package in packages {
        let name = text(&package["name"]).ok_or("a package without a name")?;
        let manifest = text(&package["manifest_path"]).ok_or("a package without a manifest")?;
        let mut depends_on = Vec::new();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            // Crates of the workspace have a path, and crates of registries have none.
            if let (Some(name), Some(_)) = (text(&dependency["name"]), dependency["path"].as_str())
            {
                depends_on.push((name, dependency["kind"] == "dev"));
            }
        }
        members.push(Member { name, manifest, depends_on });
    }
    Ok(members)
}

/// Compares the table with the crates. `relative` maps a manifest to its path in the repository.
pub(crate) fn check(
    table: &BTreeMap<String, Row>,
    members: &[Member],
    relative: impl Fn(&str) -> String,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in members {
        let manifest = relative(&member.manifest);
        if let Some(ending) = OWNERLESS.iter().find(|e| member.name.ends_with(&format!("-{e}"))) {
            findings.push(Finding::new(
                &manifest,
                1,
                format!("`{}`: a crate named -{ending} belongs to nobody", member.name),
                "give each thing in it to the crate whose idea it is; shared words are core's",
            ));
        }
        let with_star = || table.iter().find(|(name, _)| covers(name, &member.name));
        let row = table.get(&member.name).or_else(|| with_star().map(|(_, row)| row));
        let Some(row) = row else {
            findings.push(Finding::new(
                TABLE_FILE,
                1,
                format!("crate `{}` has no row in the layer table", member.name),
                "add a row that says its layer and what it may depend on",
            ));
            continue;
        };
        for (dependency, only_tests) in &member.depends_on {
            let is_in = |names: &BTreeSet<String>| names.iter().any(|n| covers(n, dependency));
            let allowed = is_in(&row.may)
                || (*only_tests && is_in(&row.tests_also))
                || *dependency == member.name;
            if !allowed {
                findings.push(Finding::new(
                    &manifest,
                    1,
                    format!("`{}` must not depend on `{dependency}`", member.name),
                    format!(
                        "imports point down only ({TABLE_FILE}:{}): pass plain values and wire \
                         them in a service, or change the table and say why",
                        row.line
                    ),
                ));
            }
        }
    }
    for (name, row) in table {
        if !members.iter().any(|member| covers(name, &member.name)) {
            findings.push(Finding::new(
                TABLE_FILE,
                row.line,
                format!("the layer table names `{name}`, which is no crate of the workspace"),
                "remove the row; a crate gets one when it is created",
            ));
        }
    }
    findings
}

/// Whether a name of the table is this crate's: equal, word by word, but for `*`.
fn covers(of_table: &str, name: &str) -> bool {
    let (of_table, name) = (of_table.split('-'), name.split('-'));
    let is_same_length = of_table.clone().count() == name.clone().count();
    is_same_length && of_table.zip(name).all(|(mine, theirs)| mine == "*" || mine == theirs)
}

/// Whether this manifest takes the workspace's lints.
pub(crate) fn check_lints(path: &str, manifest: &str) -> Option<Finding> {
    let mut in_lints = false;
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            in_lints = line == "[lints]";
        } else if in_lints && line.replace(' ', "") == "workspace=true" {
            return None;
        }
    }
    Some(Finding::new(
        path,
        1,
        "does not take the workspace's lints",
        "add `[lints]` and `workspace = true` under it",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
# Map

| not | this |
|---|---|
| `x` | `y` |

| layer | crate | may depend on | tests also |
|---|---|---|---|
| 0 | `core` | nothing | nothing |
| 1 | `feed` | `core` | `sim` |
| 2 | `sim` | `core` | nothing |

| a | later table |
|---|---|
| `z` | `w` |
";

    fn member(name: &str, depends_on: &[(&str, bool)]) -> Member {
        Member {
            name: name.into(),
            manifest: format!("{name}/Cargo.toml"),
            depends_on: depends_on.iter().map(|&(n, dev)| (n.into(), dev)).collect(),
        }
    }

    fn findings(members: &[Member]) -> Vec<String> {
        let table = table(TABLE).expect("a table");
        check(&table, members, str::to_owned).iter().map(ToString::to_string).collect()
    }

    fn whole() -> [Member; 3] {
        [
            member("core", &[]),
            member("feed", &[("core", false), ("sim", true)]),
            member("sim", &[("core", false)]),
        ]
    }

    #[test]
    fn tree_that_follows_the_table_has_no_findings() {
        assert_eq!(findings(&whole()), Vec::<String>::new());
    }

    #[test]
    fn upward_dependency_is_found() {
        let mut crates = whole();
        crates[0] = member("core", &[("feed", false)]);
        let found = findings(&crates);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("core/Cargo.toml:1: `core` must not depend on `feed`"));
        assert!(found[0].contains("ARCHITECTURE.md:9"), "{found:?}");
    }

    #[test]
    fn what_tests_may_use_the_crate_itself_may_not() {
        let mut crates = whole();
        crates[1] = member("feed", &[("sim", false)]);
        assert_eq!(findings(&crates).len(), 1);
    }

    #[test]
    fn crate_without_row_and_row_without_crate_are_found() {
        let crates = [member("core", &[]), member("sim", &[]), member("extra", &[])];
        let found = findings(&crates);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("`extra` has no row"));
        assert!(found[1].starts_with("ARCHITECTURE.md:10: the layer table names `feed`"));
    }

    #[test]
    fn a_star_stands_for_one_word_and_a_whole_name_goes_first() {
        let table = table(
            "| crate | may depend on |\n|---|---|\n| `e-core` | nothing |\n\
             | `e-*-machine` | `e-core` |\n| `e-plan-machine` | `e-*-machine` |\n",
        );
        let table = table.expect("a table");
        let on_clock = &[("e-clock-machine", false)];
        let crates = [
            member("e-core", &[]),
            member("e-clock-machine", &[("e-core", false)]),
            member("e-plan-machine", on_clock),
        ];
        assert!(check(&table, &crates, str::to_owned).is_empty());
        let [core, clock, plan] = crates;
        let keys = member("e-keys-machine", on_clock);
        let deep = member("e-keys-deep-machine", &[]);
        let found = check(&table, &[core, clock, plan, keys, deep], str::to_owned);
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("`e-keys-machine` must not depend on `e-clock-machine`"));
        assert!(found[1].contains("`e-keys-deep-machine` has no row"));
    }

    #[test]
    fn ownerless_name_is_found() {
        let mut crates = Vec::from(whole());
        crates.push(member("evenfall-utils", &[]));
        assert!(findings(&crates)[0].contains("named -utils"));
    }

    #[test]
    fn markdown_without_the_table_is_an_error_and_so_is_a_double_row() {
        assert!(table("| a | b |\n").unwrap_err().contains("no table"));
        let double = TABLE.replace("`sim` | `core` | nothing", "`feed` | `core` | nothing");
        assert!(table(&double).unwrap_err().contains("second row of feed"));
    }

    #[test]
    fn only_dependencies_with_a_path_count() {
        let metadata = serde_json::json!({"packages": [{
            "name": "feed", "manifest_path": "/a/Cargo.toml",
            "dependencies": [
                {"name": "bytes", "kind": null},
                {"name": "core", "kind": null, "path": "/a/core"},
                {"name": "sim", "kind": "dev", "path": "/a/sim"},
            ],
        }]});
        let read = members(&metadata).expect("members");
        assert_eq!(read[0].depends_on, [("core".into(), false), ("sim".into(), true)]);
        assert!(members(&serde_json::json!({})).is_err());
    }

    #[test]
    fn lints_must_be_taken_from_the_workspace() {
        assert_eq!(check_lints("a", "[package]\nname = \"a\"\n[lints]\nworkspace = true\n"), None);
        assert!(check_lints("a", "[lints.rust]\nworkspace = true\n").is_some());
        assert!(check_lints("a", "[package]\nname = \"a\"\n").is_some());
    }
}
