//! Starts the program, and reads its output and its files.

use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use evenfall_host::ports;
use serde_json::Value;
use tempfile::TempDir;

/// A process that still runs after this hangs.
const HANGS: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(20);

/// Seats of the stage for each core. A feed of a test keeps a core busy for a tenth of its time, so
/// that three feeds on two cores do not wait for each other.
const SEATS_PER_CORE: usize = 3;
/// Seats on a machine with one or two cores: three feeds run at once.
const SEATS_MIN: usize = 6;
/// Seats of a feed whose messages have deadlines.
const FEED_SEATS: usize = 2;
/// Seats of a test whose processes have no deadlines, such as a store or a survey.
const SEAT: usize = 1;

/// Hands out seats, which limit how many tests have processes at once. Tests get seats in the order
/// in which they asked, so that a test that needs all seats gets them too.
static STAGE: Stage =
    Stage { queue: Mutex::new(Queue { asked: 0, seated: 0, taken: 0 }), moved: Condvar::new() };

struct Stage {
    queue: Mutex<Queue>,
    moved: Condvar,
}

/// Tests that have asked for seats so far, those of them that got seats, and the seats in use.
struct Queue {
    asked: u64,
    seated: u64,
    taken: usize,
}

impl Stage {
    fn seats() -> usize {
        std::thread::available_parallelism()
            .map_or(SEATS_MIN, |cores| SEATS_MIN.max(cores.get() * SEATS_PER_CORE))
    }

    fn take(&'static self, seats: usize) -> Turn {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let own = queue.asked;
        queue.asked += 1;
        let is_full =
            |queue: &mut Queue| queue.seated != own || queue.taken + seats > Self::seats();
        let waited = self.moved.wait_while(queue, is_full);
        let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
        queue.seated += 1;
        queue.taken += seats;
        self.moved.notify_all();
        Turn(seats)
    }
}

/// The seats of a test, given back at the end.
struct Turn(usize);

impl Drop for Turn {
    fn drop(&mut self) {
        STAGE.queue.lock().unwrap_or_else(PoisonError::into_inner).taken -= self.0;
        STAGE.moved.notify_all();
    }
}

/// The seats of a test, and a directory that is removed at its end.
pub struct Scratch {
    directory: TempDir,
    network: u8,
    _turn: Turn,
}

impl Scratch {
    /// For a run whose messages have deadlines. Few other feeds run at the same time.
    pub fn new() -> Self {
        Self::with(FEED_SEATS)
    }

    /// For a test without deadlines. Many other tests run at the same time.
    pub fn beside() -> Self {
        Self::with(SEAT)
    }

    /// For a run that is judged by its times, or that takes most file descriptors of this process.
    /// No other test has processes at the same time.
    pub fn alone() -> Self {
        Self::with(Stage::seats())
    }

    fn with(seats: usize) -> Self {
        // Far fewer than 250 tests run at once, so no two of them share a network.
        static NETWORKS: AtomicU64 = AtomicU64::new(0);
        let turn = STAGE.take(seats);
        let network = (1 + NETWORKS.fetch_add(1, Ordering::Relaxed) % 250) as u8;
        let directory = TempDir::new().expect("a temporary directory");
        Self { directory, network, _turn: turn }
    }

    /// The loopback address of a host of this test. No other test binds this address.
    pub fn host(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, self.network, number)
    }

    /// An address with a port that is free for UDP and for TCP.
    pub fn address(&self, host: u8) -> SocketAddr {
        ports::free(self.host(host).into()).expect("a port")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// The program with these arguments. Its output goes to pipes.
pub fn evenfall(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenfall"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The output and the end of a process.
pub struct Said {
    pub ok: bool,
    /// The exit code; none when a signal ended it.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Waits for the end of the process, and kills it when it hangs.
pub fn finish(mut child: Child) -> Said {
    let drain = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = String::new();
            pipe.map(|mut pipe| pipe.read_to_string(&mut text));
            text
        })
    };
    let out = drain(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let err = drain(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let end = Instant::now() + HANGS;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if Instant::now() > end {
            child.kill().ok();
            child.wait().ok();
            panic!("still running after {HANGS:?}: {}", err.join().expect("a reader"));
        }
        sleep(LOOK);
    };
    let (out, err) = (out.join().expect("a reader"), err.join().expect("a reader"));
    Said { ok: status.success(), code: status.code(), out, err }
}

/// Runs the program with these arguments to its end.
pub fn say(args: &[&str]) -> Said {
    let Output { status, stdout, stderr } = evenfall(args).output().expect("the program");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Said { ok: status.success(), code: status.code(), out: text(stdout), err: text(stderr) }
}

/// A demo and its directory.
pub struct Demo {
    scratch: Scratch,
    pub said: Said,
    /// The results; null when none were printed.
    pub json: Value,
}

/// Three receivers below two proxies, and a feed of a second.
pub const SMALL: [&str; 8] =
    ["--receivers", "3", "--fanout", "2", "--messages", "1500", "--fit", "1s"];

/// Starts a demo.
pub fn start_demo(scratch: &Scratch, args: &[&str]) -> Child {
    let dir = scratch.path("run").display().to_string();
    let always = ["demo", "--json", "--dir", &dir, "--set", "run.warm_up=300ms"];
    let all: Vec<&str> = always.into_iter().chain(args.iter().copied()).collect();
    evenfall(&all).spawn().expect("the program")
}

/// Runs a demo to its end.
pub fn demo(args: &[&str]) -> Demo {
    let scratch = Scratch::new();
    let child = start_demo(&scratch, args);
    Demo::of(scratch, child)
}

impl Demo {
    pub fn of(scratch: Scratch, child: Child) -> Self {
        let said = finish(child);
        let json = serde_json::from_str(&said.out).unwrap_or_default();
        Self { scratch, said, json }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.path("run").join(name)
    }

    pub fn read(&self, name: &str) -> Value {
        read_json(&self.file(name))
    }

    pub fn number(&self, key: &str) -> u64 {
        self.json[key]
            .as_u64()
            .unwrap_or_else(|| panic!("no {key}: {} {}", self.json, self.said.err))
    }

    /// Asserts that this many receivers released exactly the messages of the feed.
    pub fn is_whole(&self, equal: u64) -> &Self {
        assert!(self.said.ok, "{}", self.said.err);
        self.has_what_was_sent(equal)
    }

    /// Asserts that this many receivers released exactly the messages that the root sent.
    pub fn has_what_was_sent(&self, equal: u64) -> &Self {
        let found = (self.number("lost"), self.number("receivers_with_equal_content"));
        assert_eq!(found, (0, equal), "{}\n{}", self.json, self.read("run.json")["events"]);
        self
    }

    /// Kinds of the events on the report's timeline that concern a node.
    pub fn events_of(&self, name: &str) -> Vec<String> {
        let info = self.read("run.json");
        let nodes = info["nodes"].as_array().expect("nodes");
        let id = &nodes.iter().find(|node| node["name"] == name).expect("a node")["id"];
        let events = info["events"].as_array().expect("events").iter();
        let kinds = events.filter(|event| event["node"] == *id).map(|event| event["kind"].as_str());
        kinds.map(|kind| kind.expect("a kind").to_owned()).collect()
    }
}

pub fn read_json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Waits until `look` gives a value. Panics with `what` after a while.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + HANGS;
    while Instant::now() < end {
        if let Some(found) = look() {
            return found;
        }
        sleep(LOOK);
    }
    panic!("never came: {what}");
}

/// Processes of the program whose command line names this directory.
pub fn pids_in(directory: &Path) -> Vec<u32> {
    let wanted = directory.display().to_string();
    let entries = fs::read_dir("/proc").expect("proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_of = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&wanted)
    };
    pids.filter(is_of).collect()
}

/// Number of processes of the program whose command line names this directory.
pub fn processes_in(directory: &Path) -> usize {
    pids_in(directory).len()
}

/// Writes a key that only its owner can read.
pub fn write_key(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, "5a".repeat(32)).expect("a key");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("permissions");
}

/// Sends a signal by its name.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(sent.expect("kill").success());
}

/// Whether the tests run as root, which namespaces need.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// A file of the project's real inputs: `../shared/data` beside the repository, or the folder that
/// `EVENFALL_DATA` names.
pub fn data(file: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("EVENFALL_DATA").map_or_else(beside, PathBuf::from);
    let path = folder.join(file);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: no data (set EVENFALL_DATA)");
    None
}

/// The generated feed as a file of ITCH behind 2-byte lengths: its bytes and where messages begin.
pub fn feed_file(messages: u64) -> (Vec<u8>, Vec<usize>) {
    use evenfall_feed_formats::MessageSource;
    use evenfall_feed_formats::synthetic::{Config, Generator};
    let config = Config { seed: 3, symbols: 20, messages, ..Config::default() };
    let mut generator = Generator::new(config).expect("a feed");
    let (mut bytes, mut starts) = (Vec::new(), Vec::new());
    while let Some(message) = generator.next_message().expect("generated") {
        starts.push(bytes.len());
        bytes.extend_from_slice(&(message.bytes.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&message.bytes);
    }
    (bytes, starts)
}

/// The document of a page after its script ran, without the script and its data. `None`, and a line
/// that says so, where there is no browser.
pub fn dom_in_chromium(url: &str, profile: &Path) -> Option<String> {
    let Ok(output) = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--virtual-time-budget=5000", "--dump-dom"])
        .arg(url)
        .output()
    else {
        println!("skipped: no chromium");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let dom = String::from_utf8_lossy(&output.stdout);
    Some(dom.split("<script").next().unwrap_or_default().to_owned())
}

/// The address of a file for a browser.
pub fn file_url(page: &Path) -> String {
    format!("file://{}", page.display())
}
