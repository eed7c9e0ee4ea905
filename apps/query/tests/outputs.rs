//! Rows on their way out: to files, to pipes, and to readers that leave.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::served::record_day;

/// More rows than a pipe holds.
const MANY_ROWS: &str = "SELECT * FROM generate_series(1, 1000000)";

fn asking(dir: &Path, arguments: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_evenfall-query"));
    program.arg(dir).args(arguments).stdin(Stdio::null());
    program.stdout(Stdio::piped()).stderr(Stdio::piped());
    program
}

#[test]
fn pipe_under_out_stays_a_pipe_and_a_link_stays_a_link() {
    let (dir, out) = (record_day(), tempfile::tempdir().unwrap());
    let pipe = out.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // An end for both directions: the program need not wait for a reader.
    let mut end = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let rows = ["SELECT 1 AS one", "--format", "csv", "--out"];
    let to = |path: &Path| {
        let said = asking(dir.path(), &[&rows[..], &[path.to_str().unwrap()]].concat()).output();
        let said = said.unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    };
    to(&pipe);
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    let mut got = [0; 6];
    end.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"one\n1\n");

    let (file, link) = (out.path().join("rows.csv"), out.path().join("link"));
    fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    to(&link);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&file).unwrap(), "one\n1\n");
}

#[test]
fn reader_that_has_seen_enough_ends_a_statement_quietly_and_a_full_disk_is_named() {
    let dir = record_day();
    for format in ["table", "csv", "json", "arrow"] {
        let arguments = [MANY_ROWS, "--format", format];
        let mut program = asking(dir.path(), &arguments).spawn().unwrap();
        let mut first = [0; 10];
        program.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        drop(program.stdout.take());
        let said = program.wait_with_output().unwrap();
        let errors = String::from_utf8(said.stderr).unwrap();
        assert!(said.status.success(), "{format}: {}: {errors}", said.status);
        assert!(!errors.contains("pipe"), "{format}: {errors}");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let said = asking(dir.path(), &arguments).stdout(full).output().unwrap();
        let errors = String::from_utf8(said.stderr).unwrap();
        let wanted = "evenfall query: standard output: No space left on device";
        assert_eq!(said.status.code(), Some(1), "{format}: {errors}");
        assert!(errors.contains(wanted), "{format}: {errors}");
    }
}

#[test]
fn arguments_that_fit_nothing_are_refused_by_name() {
    let (dir, out) = (record_day(), tempfile::tempdir().unwrap());
    let empty = out.path().join("empty.csv");
    fs::write(&empty, "").unwrap();
    let table = |path: &Path| format!("a={}", path.display());
    for (arguments, words) in [
        (["--recording", "dya"], "there is no recording dya; the nearest are day"),
        (["--threads", "1000000"], "1..=1024"),
        (["--table", table(&empty).as_str()], "empty.csv: the file is empty"),
        (["--table", table(out.path()).as_str()], "this is no file"),
    ] {
        let said = asking(dir.path(), &[&["SELECT 1"][..], &arguments].concat()).output().unwrap();
        let errors = String::from_utf8(said.stderr).unwrap();
        assert!(!said.status.success() && errors.contains(words), "{arguments:?}: {errors}");
    }
    // One value of 100 MB makes no table, and all of it is in CSV.
    let sql = "SELECT repeat('x', 100000000) AS x";
    let said = asking(dir.path(), &[sql]).output().unwrap();
    let errors = String::from_utf8(said.stderr).unwrap();
    assert!(said.status.success() && errors.contains("1 rows are not shown"), "{errors}");
    assert!(said.stdout.len() < 1_000);
}
