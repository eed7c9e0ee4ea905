//! Histories of ordered keys before porcupine, a checker of linearizability that is not ours. Our
//! own checks know the order on which the replicas agreed, and porcupine knows only what clients
//! saw.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use evenfall_campaigns::consensus::history::Operation;
use evenfall_campaigns::consensus::{CONSENSUS, Mutant, SESSIONS};
use serde_json::json;

use super::campaigns::setting;

/// The program of `scripts/porcupine`; `None` where there is no Go.
fn porcupine() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/porcupine");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("porcupine");
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(&program).arg(".").current_dir(source);
        match go.status() {
            Ok(done) => {
                assert!(done.success(), "go build fails: {done}");
                Some(program)
            }
            Err(error) => {
                println!(
                    "skipped: no Go to build porcupine ({error}; scripts/deps.sh installs it)"
                );
                None
            }
        }
    };
    PROGRAM.get_or_init(build).as_deref()
}

/// Whether porcupine finds all histories linearizable, and what it printed. Without operations, and
/// after a search without an end, it has no verdict.
fn judge(program: &Path, histories: String) -> (bool, String) {
    let mut command = Command::new(program);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("porcupine");
    let mut input = child.stdin.take().expect("a pipe");
    let feed = std::thread::spawn(move || input.write_all(histories.as_bytes()));
    let said = child.wait_with_output().expect("its end");
    feed.join().expect("a thread").expect("porcupine reads everything");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(matches!(said.status.code(), Some(0 | 1)), "{text}");
    (said.status.success(), text)
}

fn lines(text: &mut String, history: &str, operations: &[Operation]) {
    for one in operations {
        let line = json!({
            "history": history, "client": one.client, "key": one.register.to_string(),
            "write": one.is_write, "value": one.value, "version": one.version,
            "begin": one.begin.nanos(), "end": one.end.map(|at| at.nanos()),
        });
        let _ = writeln!(text, "{line}");
    }
}

#[test]
fn simulated_histories_are_linearizable_for_porcupine_too() {
    /// Seeds of one call of porcupine, which keeps all of their operations in memory.
    const SEEDS: u64 = 1_000;
    let Some(program) = porcupine() else { return };
    let all = setting("EVENFALL_SEEDS").unwrap_or(SEEDS);
    for first in (0..all).step_by(SEEDS as usize) {
        let mut text = String::new();
        for seed in first..all.min(first + SEEDS) {
            lines(&mut text, &format!("seed {seed}"), &SESSIONS.operations(seed, None));
        }
        let (is_linearizable, said) = judge(program, text);
        assert!(is_linearizable, "{said}");
        println!("porcupine: {}", said.trim());
    }
}

#[test]
fn porcupine_finds_the_mutants_that_clients_can_see() {
    let Some(program) = porcupine() else { return };
    let seen = [
        (Mutant::ReadsAtOnce, 0..20),
        (Mutant::ReadsUnderLeases, 0..40),
        (Mutant::LeasesAnotherKey, 0..40),
    ];
    for (mutant, seeds) in seen {
        let mut text = String::new();
        for seed in seeds {
            lines(&mut text, &format!("seed {seed}"), &CONSENSUS.operations(seed, Some(mutant)));
        }
        let (is_linearizable, said) = judge(program, text);
        assert!(!is_linearizable, "{mutant:?}: {said}");
    }
}
