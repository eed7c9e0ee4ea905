//! Checks the licences and sources of all dependencies, where cargo-deny is not installed. The list
//! of licences is in `deny.toml`, so both tools use the same list.
//!
//! A licence is an expression of SPDX: `(MIT OR Apache-2.0) AND Unicode-3.0`. `OR` needs one side
//! that is allowed, `AND` needs both and binds closer. `MIT/Apache-2.0`, as older crates write, is
//! an `OR`.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;

/// The file that has the list.
pub(crate) const LIST_FILE: &str = "deny.toml";

/// Arguments of `cargo tree`, which lists every package that is built for the platforms of
/// `deny.toml`: its name, its version, its source unless it is the default registry, and its
/// licence. `cargo metadata` would also list packages that no combination of features builds.
pub(crate) const TREE: [&str; 11] = [
    "tree",
    "--workspace",
    "--all-features",
    "--target",
    "x86_64-unknown-linux-gnu",
    "--target",
    "aarch64-unknown-linux-gnu",
    "--prefix",
    "none",
    "--format",
    "{p}|{l}",
];

/// The licences that the list allows.
pub(crate) struct AllowedLicences {
    everywhere: BTreeSet<String>,
    /// Of one crate, and what it may have beside: `{ crate = "name", allow = ["licence"] }`, each
    /// on a line of its own.
    exceptions: BTreeMap<String, BTreeSet<String>>,
}

impl AllowedLicences {
    /// Reads the list.
    ///
    /// # Errors
    /// When there is no such list.
    pub(crate) fn read(list: &str) -> Result<Self, String> {
        let after = list.split_once("\nallow = [").map(|(_, after)| after);
        let body = after.and_then(|after| after.split_once(']')).map(|(body, _)| body);
        let body = body.ok_or_else(|| format!("{LIST_FILE} has no `allow = [` of licences"))?;
        let everywhere = quoted(body).collect();
        let entries = list.lines().filter(|line| line.trim_start().starts_with("{ crate = "));
        let exceptions = entries.filter_map(|line| {
            let mut words = quoted(line);
            words.next().map(|name| (name, everywhere_and(&everywhere, words)))
        });
        Ok(Self { exceptions: exceptions.collect(), everywhere })
    }

    /// What a crate may have.
    fn of(&self, name: &str) -> &BTreeSet<String> {
        self.exceptions.get(name).unwrap_or(&self.everywhere)
    }
}

fn everywhere_and(
    everywhere: &BTreeSet<String>,
    more: impl Iterator<Item = String>,
) -> BTreeSet<String> {
    everywhere.iter().cloned().chain(more).collect()
}

/// The texts between quotation marks.
fn quoted(text: &str) -> impl Iterator<Item = String> {
    text.split('"').skip(1).step_by(2).map(str::to_owned)
}

/// Packages whose licence or source is not allowed, and how many packages there are. Our own crates
/// lie below `root`.
pub(crate) fn check(allowed: &AllowedLicences, tree: &str, root: &str) -> (Vec<Finding>, usize) {
    let is_ours = |source: &str| source.starts_with(&format!("({root}"));
    let mut findings = Vec::new();
    // A package that was listed before ends in an asterisk; trees are apart by an empty line.
    let lines = tree.lines().filter(|line| !line.is_empty());
    let lines: BTreeSet<&str> = lines.map(|line| line.trim_end_matches(" (*)")).collect();
    for line in &lines {
        let (package, licence) = line.rsplit_once('|').unwrap_or((line, ""));
        let mut words_of = package.split(' ');
        let [crate_name, version] =
            [words_of.next(), words_of.next()].map(Option::unwrap_or_default);
        let name = format!("{crate_name} {version}");
        let mut found = |what: String, instead: &str| {
            findings.push(Finding::new("Cargo.lock", 1, what, instead));
        };
        let source = words_of.find(|word| *word != "(proc-macro)" && !is_ours(word));
        if let Some(source) = source {
            found(format!("{name} comes from {source}"), "take it from the default registry");
        }
        if licence.is_empty() {
            found(format!("{name} says no licence"), "take another crate");
        } else if !Expression(&words(licence)).satisfied_by(allowed.of(crate_name)) {
            let instead = "take another crate, or allow the licence in deny.toml with the reason";
            found(format!("{name} is licensed {licence}"), instead);
        }
    }
    (findings, lines.len())
}

/// The words of an expression, brackets among them.
fn words(licence: &str) -> Vec<String> {
    let spaced = licence.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    spaced.split_whitespace().map(str::to_owned).collect()
}

/// The unread rest of an expression.
struct Expression<'a>(&'a [String]);

impl Expression<'_> {
    /// Whether the whole expression can be read and the allowed licences satisfy it.
    fn satisfied_by(mut self, allowed: &BTreeSet<String>) -> bool {
        self.either(allowed) && self.0.is_empty()
    }

    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.0.first().is_some_and(|next| next == word);
        if is_next {
            self.0 = &self.0[1..];
        }
        is_next
    }

    fn either(&mut self, allowed: &BTreeSet<String>) -> bool {
        let mut is_allowed = self.both(allowed);
        while self.takes("OR") {
            is_allowed |= self.both(allowed);
        }
        is_allowed
    }

    fn both(&mut self, allowed: &BTreeSet<String>) -> bool {
        let mut is_allowed = self.single(allowed);
        while self.takes("AND") {
            is_allowed &= self.single(allowed);
        }
        is_allowed
    }

    fn single(&mut self, allowed: &BTreeSet<String>) -> bool {
        if self.takes("(") {
            let is_allowed = self.either(allowed);
            return self.takes(")") && is_allowed;
        }
        let Some((name, rest)) = self.0.split_first() else { return false };
        self.0 = rest;
        // An exception (`WITH`) takes obligations away and adds none.
        if self.takes("WITH") && !self.0.is_empty() {
            self.0 = &self.0[1..];
        }
        allowed.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "[licenses]\n# Why.\nallow = [\n  \"MIT\",\n  \"Apache-2.0\",\n]\n\
                        exceptions = [\n  { crate = \"maker\", allow = [\"MPL-2.0\"] },\n]\n";

    fn list() -> AllowedLicences {
        AllowedLicences::read(LIST).expect("a list")
    }

    fn is_allowed(licence: &str) -> bool {
        Expression(&words(licence)).satisfied_by(&list().everywhere)
    }

    #[test]
    fn a_licence_is_allowed_when_the_list_has_a_choice_that_it_offers() {
        for licence in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(GPL-3.0 OR MIT) AND Apache-2.0",
            "MIT OR GPL-3.0 AND BSD-3-Clause",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
        ] {
            assert!(is_allowed(licence), "{licence}");
        }
        for licence in
            ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR GPL-3.0) AND ISC", "(MIT", "MIT MIT", ""]
        {
            assert!(!is_allowed(licence), "{licence}");
        }
    }

    #[test]
    fn a_package_of_another_licence_or_source_is_named() {
        let tree = "ours v0.1.0 (/here/ours)|MIT\ngood v1.0.0|MIT\ngood v1.0.0|MIT (*)\n\
                    derive v1.0.0 (proc-macro)|MIT\nviral v2.0.0|GPL-3.0\nwithout v3.0.0|\n\
                    stray v4.0.0 (https://a.b/c#1)|MIT\nmaker v1.0.0|MPL-2.0\n\
                    other v1.0.0|MPL-2.0\n\nours v0.1.0 (/here/ours)|MIT\n";
        let (findings, count) = check(&list(), tree, "/here");
        let said: Vec<_> = findings.iter().map(|finding| finding.what.as_str()).collect();
        let wanted = [
            "other v1.0.0 is licensed MPL-2.0",
            "stray v4.0.0 comes from (https://a.b/c#1)",
            "viral v2.0.0 is licensed GPL-3.0",
            "without v3.0.0 says no licence",
        ];
        assert_eq!((said.as_slice(), count), (&wanted[..], 8));
    }

    #[test]
    fn a_list_that_is_missing_is_said() {
        assert!(AllowedLicences::read("[bans]\n").is_err());
    }
}
