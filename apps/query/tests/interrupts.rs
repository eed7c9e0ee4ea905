//! Ctrl-C at the command line and at the prompt.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::limits::{ASOF, ENDLESS};
use crate::served::{cpu_ticks, record_day};

/// Rows for ever.
const ENDLESS_ROWS: &str = "SELECT * FROM generate_series(1, 1000000000000)";

/// How often a program is looked at, and how often at most: a minute.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: usize = 1_200;

/// The program that runs beside the test.
struct Asking(Child);

impl Asking {
    fn start(dir: &Path, arguments: &[&str]) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_evenfall-query"));
        program.arg(dir).args(arguments).stdin(Stdio::piped());
        program.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(program.spawn().unwrap())
    }

    fn interrupt(&self) {
        let sent = Command::new("kill").args(["-INT", &self.0.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits until the program hears SIGINT, and has computed since.
    fn until_busy(&self) {
        self.until_hearing();
        let before = cpu_ticks(self.0.id());
        wait_until("the program computes", || cpu_ticks(self.0.id()) >= before + 10);
    }

    /// Waits until SIGINT does not end the program by itself any more.
    fn until_hearing(&self) {
        let path = format!("/proc/{}/status", self.0.id());
        wait_until("the program hears SIGINT", || {
            let status = std::fs::read_to_string(&path).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            // The signals are bits from 1 on, and SIGINT is number 2.
            u64::from_str_radix(caught.trim(), 16).unwrap() & 2 != 0
        });
    }

    fn until_ended(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("the program ends", || {
            ended = self.0.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }

    fn said(&mut self) -> String {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let found = (0..LOOKS).any(|_| {
        std::thread::sleep(LOOK);
        is_so()
    });
    assert!(found, "never came: {what}");
}

#[test]
fn ctrl_c_ends_a_statement_inside_each_operator() {
    let dir = record_day();
    for sql in ENDLESS {
        // With one thread, the statement leaves no other thread of queries free.
        let mut asking = Asking::start(dir.path(), &[sql, "--threads", "1"]);
        asking.until_busy();
        asking.interrupt();
        let status = asking.until_ended();
        assert_eq!(status.code(), Some(130), "{sql}: {status}");
        let said = asking.said();
        assert!(said.contains("interrupted: the statement was ended"), "{sql}: {said}");
    }
}

#[test]
fn ctrl_c_leaves_no_unfinished_file_and_waits_for_no_reader() {
    let dir = record_day();
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("rows.csv");
    std::fs::write(&file, "as it was").unwrap();
    let names = ["--format", "csv", "--out", file.to_str().unwrap()];
    let mut asking = Asking::start(dir.path(), &[&[ENDLESS_ROWS][..], &names].concat());
    wait_until("the file is begun", || std::fs::read_dir(out.path()).unwrap().count() == 2);
    asking.interrupt();
    assert_eq!(asking.until_ended().code(), Some(130));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "as it was");
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 1, "an unfinished file is left");

    // Nobody reads the rows: the program waits in a write.
    let mut asking = Asking::start(dir.path(), &[ENDLESS_ROWS, "--format", "csv"]);
    asking.until_hearing();
    let mut before = 0;
    wait_until("the program waits", || {
        let now = cpu_ticks(asking.0.id());
        std::mem::replace(&mut before, now) == now
    });
    asking.interrupt();
    assert_eq!(asking.until_ended().code(), Some(130));
}

#[test]
fn ctrl_c_at_a_prompt_ends_the_statement_and_then_the_program() {
    let dir = record_day();
    let mut asking = Asking::start(dir.path(), &["--interactive", "--format", "csv"]);
    let mut input = asking.0.stdin.take().unwrap();
    let mut lines = BufReader::new(asking.0.stdout.take().unwrap()).lines();
    let mut next_line = move || lines.next().unwrap().unwrap();
    for sql in [ENDLESS[0], ASOF] {
        // The answer before shows that the next statement is not yet under way.
        writeln!(input, "SELECT 1 AS before;").unwrap();
        assert_eq!([next_line(), next_line()], ["before", "1"]);
        writeln!(input, "{sql};").unwrap();
        asking.until_busy();
        asking.interrupt();
        writeln!(input, "SELECT 2 AS after;").unwrap();
        assert_eq!([next_line(), next_line()], ["after", "2"], "{sql}");
    }
    // The prompt is idle soon after its answer, and then Ctrl-C ends the program.
    let mut ended = None;
    wait_until("the prompt ends", || {
        asking.interrupt();
        ended = asking.0.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().code(), Some(130));
    assert!(asking.said().contains("interrupted: the statement was ended"));
}
