//! What `evenfall generate` makes, in the hands of the programs that it is for.

use std::path::Path;
use std::process::Command;

use super::common::Scratch;

/// The exit code of `alerts.py` where there is no Prometheus.
const PROMETHEUS_MISSING: i32 = 3;

#[test]
fn prometheus_takes_the_settings_and_alerts_of_dead_nodes_fire() {
    let scratch = Scratch::beside();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/alerts.py");
    let said = Command::new("python3")
        .arg(script)
        .args([env!("CARGO_BIN_EXE_evenfall"), "--quiet", "5"])
        .args(["--host", &scratch.host(1).to_string()])
        .output()
        .expect("python3");
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    println!("{out}");
    let is_skipped = said.status.code() == Some(PROMETHEUS_MISSING);
    assert!(said.status.success() || is_skipped, "{out}\n{err}");
}
