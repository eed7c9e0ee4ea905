//! Runs the commands of the pages as they are written.

#[expect(dead_code, reason = "the tests of the parsers use the rest")]
mod blocks;

use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::{Scratch, evenfall, is_root};
use blocks::{Block, Kind, Page};

/// A block that still runs after this time hangs. The longest block is a demo of half a minute.
const BLOCK_HANGS: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(20);

/// As root, each block runs in a network of its own with loopback alone, so that no two blocks
/// share a port.
const ALONE: &str = "ip link set lo up && exec bash -euo pipefail -c \"$0\"";

fn shell(script: &str) -> Command {
    if is_root() {
        let mut command = Command::new("unshare");
        command.args(["--net", "bash", "-c", ALONE, script]);
        return command;
    }
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]);
    command
}

/// The script of a block. After each server that a line starts in the background, the script waits
/// until the server listens, as a person does.
fn script(text: &str) -> String {
    let mut script = String::new();
    for line in text.replace("\\\n", " ").lines() {
        writeln!(script, "{line}").expect("a string");
        let command = line.split(" #").next().unwrap_or_default().trim_end();
        let listen = command.strip_suffix('&').and_then(|rest| rest.split_once("--listen "));
        if let Some((_, address)) = listen {
            let address = address.split_whitespace().next().expect("an address");
            let (host, port) = address.rsplit_once(':').expect("a port");
            let there = format!("(exec 3<>/dev/tcp/{host}/{port}) 2>/dev/null");
            writeln!(script, "until {there}; do sleep .05; done").expect("a string");
        }
    }
    script
}

/// The programs under test before all others.
fn path() -> String {
    let own = Path::new(env!("CARGO_BIN_EXE_evenfall")).parent().expect("a folder");
    format!("{}:{}", own.display(), std::env::var("PATH").unwrap_or_default())
}

fn wait(child: &mut Child) -> Option<ExitStatus> {
    let end = Instant::now() + BLOCK_HANGS;
    while Instant::now() < end {
        if let Some(status) = child.try_wait().expect("a child") {
            return Some(status);
        }
        sleep(LOOK);
    }
    None
}

/// Runs the block, and ends the servers that it left behind.
fn run(text: &str, folder: &Path, place: &str) {
    let log = folder.with_extension("log");
    let output = File::create(&log).expect("a log");
    let mut child = shell(&script(text))
        .current_dir(folder)
        .env("PATH", path())
        .stdin(Stdio::null())
        .stderr(output.try_clone().expect("a log"))
        .stdout(output)
        .process_group(0)
        .spawn()
        .expect("a shell");
    let status = wait(&mut child);
    let group = format!("-{}", child.id());
    // After most blocks no process of the group is left, and kill fails.
    Command::new("kill").args(["-s", "KILL", "--", &group]).stderr(Stdio::null()).status().ok();
    child.wait().ok();
    let said = fs::read_to_string(&log).unwrap_or_default();
    let what = if status.is_none() { "hangs" } else { "does not run as written" };
    assert!(status.is_some_and(|status| status.success()), "{place} {what}:\n{text}\n{said}");
}

fn needs_the_lab(block: &Block) -> bool {
    let lab = Path::new(env!("CARGO_BIN_EXE_evenfall")).with_file_name("evenfall-lab");
    let is_instrument = |line: &str| {
        ["evenfall sim ", "evenfall bench ", "plans/simulated"].iter().any(|at| line.contains(at))
    };
    !lab.exists() && block.text.lines().any(is_instrument)
}

fn check_settings(folder: &Path, file: &str, block: &Block, place: &str) {
    fs::write(folder.join(file), &block.text).expect("settings");
    let output = evenfall(&["config", "check", file]).current_dir(folder).output();
    let output = output.expect("the program");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{place}: {said}\n{}", block.text);
}

/// The directory in which the commands of a page run, with a link to the repository's `plans/`.
fn folder_of(scratch: &Scratch) -> PathBuf {
    let folder = scratch.path("page");
    fs::create_dir(&folder).expect("a folder");
    symlink(blocks::repository().join("plans"), folder.join("plans")).expect("a link");
    folder
}

/// Runs the blocks of a page in order.
fn follow(page: &Page) {
    let scratch = Scratch::new();
    let folder = folder_of(&scratch);
    for block in &page.blocks {
        let place = format!("{}:{}", page.name, block.line);
        match &block.kind {
            Kind::Run if needs_the_lab(block) => {
                println!("skipped: {place} needs evenfall-lab beside evenfall");
            }
            Kind::Run => run(&block.text, &folder, &place),
            Kind::Settings(file) => check_settings(&folder, file, block, &place),
            Kind::Part => {
                let table = block.text.parse::<toml::Table>();
                assert!(table.is_ok(), "{place}: {table:?}");
            }
            Kind::Parse | Kind::Other => {}
        }
    }
}

#[test]
fn commands_of_the_pages_run_as_they_are_written() {
    let only = std::env::var("PAGES").unwrap_or_default();
    let pages = blocks::all();
    // Pages of results cite commands that take hours.
    let is_run = |page: &&Page| !page.name.starts_with("docs/results");
    let wanted = pages.iter().filter(is_run).filter(|page| page.name.contains(&only));
    if is_root() {
        std::thread::scope(|readers| {
            wanted.for_each(|page| {
                readers.spawn(|| follow(page));
            });
        });
    } else {
        // Without a network for each block, two pages may name the same port, so the pages run one
        // after the other.
        wanted.for_each(follow);
    }
}

#[test]
fn make_demo_runs_what_the_makefile_says() {
    let makefile = fs::read_to_string(blocks::repository().join("Makefile")).expect("a makefile");
    let (_, recipe) = makefile.split_once("\ndemo:\n").expect("a target");
    let arguments = recipe.lines().find_map(|line| Some(line.split_once(" -- ")?.1));
    let arguments = arguments.expect("arguments of the program");
    let scratch = Scratch::new();
    let folder = folder_of(&scratch);
    run(&format!("evenfall {arguments}\n"), &folder, "Makefile: demo");
    assert!(folder.join("target/demo/report.html").exists());
}
