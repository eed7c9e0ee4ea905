//! A few tests of ZooKeeper's own Java client and of Curator against three replicas. `make
//! test-long` runs all of them.

use std::path::Path;
use std::process::Command;

use super::common::Scratch;

#[test]
fn tests_of_java_clients_pass_that_passed_against_zookeeper() {
    let scratch = Scratch::beside();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/zookeeper-suites.sh");
    let said = Command::new(script)
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
}
