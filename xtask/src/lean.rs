//! Holds the size of the lean program, the one that a newcomer builds: bytes and foreign crates.

use std::collections::BTreeSet;
use std::path::Path;

use crate::tree;
use crate::{Checked, Finding};

/// Limit of the bytes of the stripped program. A larger program takes longer to build and to copy
/// to the hosts of a run. It was 12 million until a store pushed records to its readers, which
/// takes 80 kB; the choice of a port and the losses of the card take 50 kB more, keys of nodes and
/// of runs 73 kB, and a store's judgement of clocks and full disks 31 kB. The sealed stream, the
/// page of a served store and room on a full disk take 112 kB together. Reading at any node of a
/// cluster, and plans that choose their shape and mend a part, take 216 kB. Packs, journals that
/// are read on behind damage, rows held in memory, entries of CME MDP and MIAX MACH as rows, and
/// keys of clocks take 491 kB. A stream in one file, a thread a tree, and disks that open while
/// their objects are away take 153 kB. Votes that count once, symbols of LOBSTER, faults of a demo
/// that are all named, and disks that open while they are full take 60 kB. Copies that open for one
/// participant take 15 kB.
const BYTES_MAX: u64 = 13_285_000;
/// Limit of the foreign crates in the program: the 93 of today and room for one.
const CRATES_MAX: usize = 94;
/// The package whose default build is the lean program.
const PACKAGE: &str = "evenfall-cli";
/// The manifest that decides what is in the program.
const MANIFEST: &str = "apps/cli/Cargo.toml";

/// Foreign crates of a listing by `cargo tree --prefix none --format {p}`, in which crates of the
/// workspace have a path.
fn count_foreign(listing: &str) -> usize {
    let crates: BTreeSet<&str> = listing
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|line| !line.is_empty() && !line.contains('/'))
        .collect();
    crates.len()
}

/// What is wrong with a program of this size.
fn judge(bytes: u64, crates: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    let instead = "put what is new behind a feature, or raise the limit in xtask/src/lean.rs with \
                   the reason";
    if bytes > BYTES_MAX {
        let what = format!("the lean program has {bytes} bytes, more than {BYTES_MAX}");
        findings.push(Finding::new(MANIFEST, 1, what, instead));
    }
    if crates > CRATES_MAX {
        let what = format!("the lean program has {crates} foreign crates, more than {CRATES_MAX}");
        findings.push(Finding::new(MANIFEST, 1, what, instead));
    }
    findings
}

/// Builds the lean program, and compares it with the limits.
pub(crate) fn check(root: &Path) -> Checked {
    let cargo = tree::cargo();
    tree::run(root, &cargo, &["build", "--profile", "lean", "--package", PACKAGE, "--quiet"])?;
    let metadata = tree::metadata(root)?;
    let target = metadata["target_directory"].as_str().unwrap_or("target");
    let program = Path::new(target).join("lean/evenfall");
    let bytes = std::fs::metadata(&program)
        .map_err(|error| format!("{}: {error}", program.display()))?
        .len();
    let listing = ["tree", "-p", PACKAGE, "-e", "normal", "--prefix", "none", "--format", "{p}"];
    let crates = count_foreign(&tree::run(root, &cargo, &listing)?);
    let words = format!("{bytes} bytes of {BYTES_MAX}, {crates} foreign crates of {CRATES_MAX}");
    Ok((judge(bytes, crates), words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_crates_are_counted_once() {
        let listing = "evenfall-cli v0.2.0 (/a/b)\nserde v1.0.0\nserde v1.0.0 (*)\nserde v2.0.0\n";
        assert_eq!(count_foreign(listing), 2);
    }

    #[test]
    fn a_program_beyond_a_limit_is_found() {
        assert_eq!(judge(BYTES_MAX, CRATES_MAX), []);
        assert_eq!(judge(BYTES_MAX + 1, CRATES_MAX + 1).len(), 2);
    }
}
