//! A few tests of ZooKeeper's own Java client and of Curator against three replicas, and random
//! calls whose answers are compared with those of a server of ZooKeeper. `make test-long` runs all
//! tests and more calls.

use std::path::Path;
use std::process::Command;

use super::common::Scratch;

/// The exit code of `differential.py` where there is no Java, or where there are no jars.
const JARS_MISSING: i32 = 3;

#[test]
fn java_clients_and_random_calls_find_what_they_find_at_zookeeper() {
    let scratch = Scratch::beside();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/zookeeper-suites.sh");
    let said = Command::new(&script)
        .args([env!("CARGO_BIN_EXE_evenfall"), "smoke", "zookeeper", "curator"])
        .env("SUITE_HOST", scratch.host(1).to_string())
        .output()
        .expect("bash");
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    println!("{out}");
    assert!(said.status.success(), "{out}\n{err}");
    let is_judged = |suite: &str| {
        let passed = |line: &str| line.starts_with(suite) && line.contains("tests passed");
        out.contains(&format!("skipped: {suite}")) || out.lines().any(passed)
    };
    assert!(is_judged("zookeeper") && is_judged("curator"), "{out}\n{err}");

    // The jars that the suites have fetched have a server too.
    let differential = script.with_file_name("zookeeper").join("differential.py");
    let said = Command::new("python3")
        .arg(differential)
        .args([env!("CARGO_BIN_EXE_evenfall"), "--calls", "2000"])
        .output()
        .expect("python3");
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    println!("{out}");
    let is_skipped = said.status.code() == Some(JARS_MISSING);
    assert!(said.status.success() || is_skipped, "{out}\n{err}");
}
