//! Builds every feature of every crate alone. The other steps build with all features, where a
//! feature may use what another feature brings.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::tree;
use crate::{Checked, Finding};

/// A feature of a crate of the workspace.
#[derive(Debug, PartialEq, Eq)]
struct Feature {
    package: String,
    manifest: String,
    /// Empty for the crate without any feature.
    name: String,
}

/// The features of all crates that `cargo metadata` names, and each crate without any.
fn list_features(metadata: &Value) -> Vec<Feature> {
    let mut all = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        let names: Vec<&String> =
            package["features"].as_object().into_iter().flat_map(|all| all.keys()).collect();
        if names.is_empty() {
            continue;
        }
        let one = |name: &str| Feature {
            package: text("name"),
            manifest: text("manifest_path"),
            name: name.to_owned(),
        };
        all.push(one(""));
        all.extend(names.into_iter().filter(|name| *name != "default").map(|name| one(name)));
    }
    all
}

/// The first complaint of the compiler, if it has one. A warning is a complaint.
fn find_complaint(said: &str) -> Option<&str> {
    let is_complaint = |line: &&str| {
        line.contains(": error") || line.contains(": warning") || line.starts_with("error")
    };
    said.lines().find(is_complaint)
}

/// Checks each feature alone.
pub(crate) fn check(root: &Path) -> Checked {
    let features = list_features(&tree::metadata(root)?);
    let mut findings = Vec::new();
    for feature in &features {
        let mut command = Command::new(tree::cargo());
        command.current_dir(root).args(["check", "--quiet", "--message-format", "short"]);
        command.args(["--no-default-features", "--package", &feature.package]);
        if !feature.name.is_empty() {
            command.args(["--features", &feature.name]);
        }
        let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr);
        let complaint = find_complaint(&said).map(str::to_owned);
        let failed = (!output.status.success()).then(|| "does not build".to_owned());
        if let Some(complaint) = complaint.or(failed) {
            let path = Path::new(&feature.manifest);
            let file = path.strip_prefix(root).unwrap_or(path).display().to_string();
            let with = match feature.name.as_str() {
                "" => "without features".to_owned(),
                name => format!("with the feature `{name}` alone"),
            };
            let what = format!("{} {with}: {complaint}", feature.package);
            findings.push(Finding::new(&file, 1, what, "name what the feature needs"));
        }
    }
    Ok((findings, format!("{} builds of single features", features.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_is_listed_alone_and_the_crate_without_any() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "a", "manifest_path": "a/Cargo.toml", "features": {} },
            { "name": "b", "manifest_path": "b/Cargo.toml",
              "features": { "default": ["x"], "x": [], "y": ["x"] } },
        ] });
        let names: Vec<_> = list_features(&metadata).into_iter().map(|f| f.name).collect();
        assert_eq!(names, ["", "x", "y"]);
    }

    #[test]
    fn warnings_are_complaints() {
        assert!(find_complaint("a/src/b.rs:3:5: warning: unused variable: `options`").is_some());
        assert!(find_complaint("").is_none());
    }
}
