//! One settings file and a process for each host. Loopback addresses stand for hosts.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::Child;

use evenfall_core::{NodeId, Prng};
use evenfall_multicast_machine::forging::forge;
use evenfall_multicast_machine::wire;
use evenfall_runtime::settings::read_key;
use serde_json::Value;

use super::common::{Said, Scratch, evenfall, eventually, finish, read_json, say, write_key};

/// The settings of a run, and where it writes.
struct Hosts {
    scratch: Scratch,
    nodes: Vec<(&'static str, &'static str, SocketAddr, SocketAddr)>,
}

const CAST: [(&str, &str); 6] = [
    ("root", "root"),
    ("proxy-1", "proxy"),
    ("proxy-2", "proxy"),
    ("receiver-1", "receiver"),
    ("receiver-2", "receiver"),
    ("late", "receiver"),
];

const SHARED: &str = "key_file = \"shared.key\"\n";
const OF_NODES: &str = "master_key_file = \"master.key\"\nnode_key_file = \"keys/{name}.key\"\n";

impl Hosts {
    /// Six hosts. The tree stands when all but the last one have joined.
    fn new(keyed: bool, messages: u64) -> Self {
        Self::with_run(if keyed { SHARED } else { "" }, messages)
    }

    /// Six hosts, each with a key of its own.
    fn with_node_keys(messages: u64) -> Self {
        let hosts = Self::with_run(&format!("{SHARED}{OF_NODES}"), messages);
        let said = say(&["key", "new", "--nodes", "--config", &hosts.settings()]);
        assert!(said.ok, "{}", said.err);
        hosts
    }

    /// The nodes measure each other's clocks.
    fn in_mesh(self) -> Self {
        let text = fs::read_to_string(self.settings()).expect("settings");
        let meshed = text.replace("clock = \"same-host\"", "clock = \"mesh\"");
        assert_ne!(text, meshed);
        fs::write(self.settings(), meshed).expect("settings");
        self
    }

    fn with_run(keys: &str, messages: u64) -> Self {
        let scratch = Scratch::new();
        let named = |(number, (name, role)): (usize, _)| {
            let host = number as u8 + 10;
            (name, role, scratch.address(host), scratch.address(host))
        };
        let nodes: Vec<_> = CAST.into_iter().enumerate().map(named).collect();
        let mut text = format!(
            "[run]\nclock = \"same-host\"\nwarm_up = \"300ms\"\n{keys}\
             [feed]\nrate = 1000.0\n\
             synthetic = {{ seed = 3, symbols = 20, messages = {messages} }}\n\
             [multicast.shape]\ndepth = 2\nfanout = 2\n\
             [multicast.membership]\nexpect_receivers = 2\n"
        );
        for (id, (name, role, udp, tcp)) in nodes.iter().enumerate() {
            let _ = write!(
                text,
                "[[node]]\nname = \"{name}\"\nid = {id}\nrole = \"{role}\"\n\
                 address = \"{udp}\"\nhttp = \"{tcp}\"\n"
            );
        }
        fs::write(scratch.path("e.toml"), text).expect("settings");
        write_key(&scratch.path("shared.key"));
        Self { scratch, nodes }
    }

    fn settings(&self) -> String {
        self.scratch.path("e.toml").display().to_string()
    }

    fn run_file(&self, name: &str) -> PathBuf {
        self.scratch.path("run").join(name)
    }

    fn start(&self, name: &str) -> Child {
        let role = self.nodes.iter().find(|node| node.0 == name).expect("a node").1;
        let config = self.settings();
        let args = ["run", role, "--name", name, "--config", &config, "--json"];
        evenfall(&args).spawn().expect("the program")
    }

    fn start_all_but_the_last(&self) -> Vec<Child> {
        CAST[..5].iter().map(|(name, _)| self.start(name)).collect()
    }

    fn stat(&self, more: &[&str]) -> Said {
        say(&[&["stat", "--config", &self.settings()][..], more].concat())
    }

    /// The counters of the root.
    fn root_status(&self) -> Value {
        let root = self.nodes[0].3.to_string();
        let status: Value = serde_json::from_str(&get(&root, "/status")).unwrap_or_default();
        status[0].clone()
    }

    /// Messages that the root has published.
    fn published(&self) -> u64 {
        self.root_status()["messages"].as_u64().unwrap_or(0)
    }

    fn wait_for(&self, messages: u64) {
        eventually("messages", || (self.published() >= messages).then_some(()));
    }

    fn report(&self) -> Value {
        let said = say(&["report", &self.run_file("").display().to_string(), "--json"]);
        assert!(said.ok, "{}", said.err);
        serde_json::from_str(&said.out).expect("JSON")
    }
}

/// The body of a page; empty when no answer comes.
fn get(address: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let mut answer = String::new();
    if let Ok(mut stream) = std::net::TcpStream::connect(address) {
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok();
        stream.read_to_string(&mut answer).ok();
    }
    answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned())
}

fn all_end_well(children: Vec<Child>) {
    for child in children {
        let said = finish(child);
        assert!(said.ok, "{}", said.err);
    }
}

/// Asserts that every line is a comment, or `name{labels} number` of a metric whose type was
/// stated.
fn is_prometheus_text(text: &str) {
    let mut typed = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            match kind {
                "histogram" => {
                    typed.extend(["bucket", "sum", "count"].map(|of| format!("{name}_{of}")));
                }
                _ => typed.push(name.to_owned()),
            }
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let name = series.split('{').next().expect("a name");
            assert!(typed.contains(&name.to_owned()) && series.ends_with('}'), "{line}");
        }
    }
    assert!(!typed.is_empty());
}

#[test]
fn late_receiver_mode_switch_and_metrics_while_the_feed_runs() {
    let hosts = Hosts::new(false, 4_000);
    let mut children = hosts.start_all_but_the_last();
    hosts.wait_for(500);
    for (name, _, _, http) in &hosts.nodes[..5] {
        let text = get(&http.to_string(), "/metrics");
        is_prometheus_text(&text);
        assert!(text.contains(&format!("node=\"{name}\"")), "{text}");
        assert_eq!(get(&http.to_string(), "/healthz"), "ok\n", "{name}");
    }
    children.push(hosts.start("late"));
    let switched = hosts.stat(&["--set-mode", "cloudex"]);
    assert!(switched.ok, "{}", switched.err);
    let wrong = hosts.stat(&["--set-mode", "walk"]);
    assert!(!wrong.ok && wrong.err.contains("cloudex"), "{}", wrong.err);
    eventually("the late receiver", || {
        let late = get(&hosts.nodes[5].3.to_string(), "/healthz");
        (late == "ok\n").then_some(())
    });
    let all = hosts.stat(&["--json"]);
    assert!(all.ok, "{}", all.err);
    let all: Value = serde_json::from_str(&all.out).expect("JSON");
    assert_eq!(all.as_object().expect("nodes by name").len(), 6, "{all}");
    let back = hosts.stat(&["--set-mode", "release"]);
    assert!(back.ok, "{}", back.err);
    all_end_well(children);

    let report = hosts.report();
    assert_eq!((&report["messages"], &report["lost"]), (&4_000.into(), &0.into()), "{report}");
    let info = read_json(&hosts.run_file("run.json"));
    let from = info["memberships"][0]["from"].as_u64().expect("the late one's first message");
    let late = read_json(&hosts.run_file("summary-late.json"));
    assert!(from > 0);
    assert_eq!(late["messages"].as_u64(), Some(4_000 - from), "{info}");
    let hash = |name: &str| read_json(&hosts.run_file(name))["content_hash"].clone();
    assert_eq!(hash("summary-receiver-1.json"), hash("summary-root.json"));
    assert_eq!(hash("summary-receiver-2.json"), hash("summary-root.json"));
}

/// Sends bytes that are no datagrams, and datagrams of every kind from a stranger. Also sends
/// reports in the name of a receiver, for the tree of this run and for trees of similar numbers.
fn attack(hosts: &Hosts, prng: &mut Prng, keyed: bool) {
    let stranger = UdpSocket::bind((hosts.scratch.host(99), 0)).expect("loopback");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("1970");
    for (_, _, address, _) in &hosts.nodes[..5] {
        for number in 0..200_u64 {
            let length = (prng.next_u64() % 300) as usize;
            let mut bytes: Vec<u8> = (0..length).map(|_| prng.next_u64() as u8).collect();
            if number % 2 == 0 && bytes.len() >= 88 {
                bytes[..2].copy_from_slice(&wire::MAGIC.to_le_bytes());
                bytes[2] = wire::VERSION;
                // Without a key, any process on loopback may send datagrams about membership in the
                // name of a node, so these kinds are left out.
                let kinds: &[u8] =
                    if keyed { &[1, 2, 3, 4, 5, 6, 8, 11, 12] } else { &[1, 2, 3, 4] };
                bytes[3] = kinds[(number / 2) as usize % kinds.len()];
                bytes[4] = u8::from(bytes[3] == 1);
                bytes[5] = u8::from(keyed);
                bytes[8..12].fill(0);
                let epoch = now.as_secs() as u32 - (number % 8) as u32;
                bytes[12..16].copy_from_slice(&epoch.to_le_bytes());
                bytes[60..64].copy_from_slice(&3_u32.to_le_bytes());
            }
            stranger.send_to(&bytes, address).expect("loopback");
        }
    }
}

fn is_attacked(keyed: bool) {
    let hosts = Hosts::new(keyed, 2_000);
    let children = hosts.start_all_but_the_last();
    let mut prng = Prng::new(8);
    for part in [300, 800, 1_300] {
        hosts.wait_for(part);
        attack(&hosts, &mut prng, keyed);
    }
    all_end_well(children);
    let report = hosts.report();
    // The sixth host of the settings was never started.
    let info = read_json(&hosts.run_file("run.json"));
    assert_eq!(info["memberships"].as_array().map(Vec::len), Some(0), "{info}");
    assert_eq!((&report["messages"], &report["lost_reported"]), (&2_000.into(), &0.into()));
    let root = read_json(&hosts.run_file("summary-root.json"));
    for (name, role, ..) in &hosts.nodes[..5] {
        let summary = read_json(&hosts.run_file(&format!("summary-{name}.json")));
        assert!(summary["malformed"].as_u64() >= Some(600), "{summary}");
        let status = if *role == "proxy" { &summary["status"] } else { &summary["trees"][0] };
        // Without a key nothing shows that a stranger's datagram is not a node's without a place.
        let refused = |why: &str| status["refusals"][why].as_u64().unwrap_or(0);
        assert!(refused("forged") + refused("unplaced") > 0, "{name}: {summary}");
        if *role == "receiver" {
            assert_eq!(summary["content_hash"], root["content_hash"], "{name}");
        }
    }
}

#[test]
fn random_bytes_and_forgeries_are_counted_and_ignored() {
    is_attacked(false);
}

#[test]
fn random_bytes_and_forgeries_are_counted_and_ignored_under_a_key() {
    is_attacked(true);
}

/// A process that holds the shared key joins under the name of the sixth host, which is not there.
/// Returns what the root answers, once the root has answered or refused.
fn join_as_the_sixth(hosts: &Hosts) -> Option<Vec<u8>> {
    let shared = read_key(&hosts.scratch.path("shared.key")).expect("the shared key");
    let own = UdpSocket::bind((hosts.scratch.host(99), 0)).expect("loopback");
    own.set_nonblocking(true).expect("a socket");
    let body = [&[1][..], &7_u64.to_le_bytes(), &[0; 8]].concat();
    let hop = wire::Hop { from: NodeId(5), ..wire::Hop::default() };
    let refused = || hosts.root_status()["refusals"]["forged"].as_u64().unwrap_or(0);
    let before = refused();
    for sequence in 1.. {
        let fixed = wire::OriginHeader::control(wire::DatagramKind::Join, 0, 0, sequence);
        let join = forge(Some(&shared), &fixed, &hop, &body);
        own.send_to(&join, hosts.nodes[0].2).expect("loopback");
        let mut answer = vec![0; 2_048];
        if let Ok(length) = own.recv(&mut answer) {
            answer.truncate(length);
            return Some(answer);
        }
        if refused() > before {
            return None;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    None
}

/// Starts five hosts. Returns what the root answered to a forged join while the feed ran.
fn is_joined_falsely(hosts: &Hosts) -> Option<Vec<u8>> {
    let children = hosts.start_all_but_the_last();
    hosts.wait_for(300);
    let answer = join_as_the_sixth(hosts);
    all_end_well(children);
    let report = hosts.report();
    // The sixth host of the settings was never started.
    assert_eq!((&report["messages"], &report["lost_reported"]), (&2_000.into(), &0.into()));
    answer
}

#[test]
fn a_participant_joins_under_another_name_where_all_have_one_key() {
    let answer = is_joined_falsely(&Hosts::new(true, 2_000)).expect("a challenge");
    assert_eq!(answer[3], wire::DatagramKind::Challenge as u8);
}

/// Datagrams of neighbours that a node may refuse while five nodes join.
const EARLY_MAX: u64 = 4;

#[test]
fn nodes_with_keys_of_their_own_refuse_what_a_participant_forges() {
    let hosts = Hosts::with_node_keys(2_000).in_mesh();
    assert_eq!(is_joined_falsely(&hosts), None);
    for (name, role, ..) in &hosts.nodes[..5] {
        let summary = read_json(&hosts.run_file(&format!("summary-{name}.json")));
        let status = if *role == "proxy" { &summary["status"] } else { &summary["trees"][0] };
        // What the nodes sent each other was taken. While they join, a neighbour's first datagrams
        // may come before the place whose keys open them.
        let forged = status["refusals"]["forged"].as_u64().expect("a count");
        let is_right = if *role == "root" { forged > 0 } else { forged <= EARLY_MAX };
        assert!(is_right, "{name}: {summary}");
        // The root handed out the keys of neighbours, and each node was told its time.
        let clock = &summary["clock"];
        assert!(clock["windows"].as_u64() > Some(0), "{name}: {clock}");
        assert_eq!((&clock["state"], &clock["neighbours"]), (&"synchronised".into(), &5.into()));
    }
}

#[test]
fn a_node_that_is_shut_out_gets_no_place_and_no_key_while_the_feed_goes_on() {
    let hosts = Hosts::with_node_keys(4_000);
    let mut children = hosts.start_all_but_the_last();
    hosts.wait_for(300);
    let unknown = hosts.stat(&["--shut-out", "nobody"]);
    assert!(!unknown.ok && unknown.err.contains("no node is called nobody"), "{}", unknown.err);
    let ordered = hosts.stat(&["--shut-out", "receiver-2"]);
    assert!(ordered.ok, "{}", ordered.err);
    eventually("another key", || (hosts.root_status()["key_turns"] == 1).then_some(()));
    eventually("refused joins", || {
        let forged = hosts.root_status()["refusals"]["forged"].as_u64();
        (forged > Some(2)).then_some(())
    });
    let mut out = children.pop().expect("receiver-2");
    out.kill().expect("a child");
    out.wait().expect("a child");
    all_end_well(children);
    let root = read_json(&hosts.run_file("summary-root.json"));
    let whole = read_json(&hosts.run_file("summary-receiver-1.json"));
    assert_eq!(whole["content_hash"], root["content_hash"]);
    assert_eq!(whole["trees"][0]["refusals"]["forged"], 0, "{whole}");
}

#[test]
fn a_node_without_its_own_key_does_not_start() {
    let hosts = Hosts::with_node_keys(100);
    let key = |name: &str| hosts.scratch.path("keys").join(format!("{name}.key"));
    fs::copy(key("receiver-2"), key("receiver-1")).expect("another key");
    fs::remove_file(key("receiver-2")).expect("a key");
    for (name, why) in [
        ("receiver-1", "is the key of node 4, and receiver-1 has id 3"),
        ("receiver-2", "run.node_key_file"),
    ] {
        let said = finish(hosts.start(name));
        assert!(!said.ok && said.err.contains(why), "{}", said.err);
    }
    let again = say(&["key", "new", "--nodes", "--config", &hosts.settings()]);
    assert!(!again.ok && again.err.contains("is not the key of receiver-1"), "{}", again.err);
    fs::remove_file(key("receiver-1")).expect("a key");
    let again = say(&["key", "new", "--nodes", "--config", &hosts.settings()]);
    assert!(again.ok && again.out.lines().count() == 2, "{}{}", again.out, again.err);
    fs::copy(hosts.scratch.path("shared.key"), hosts.scratch.path("master.key")).expect("a key");
    let said = finish(hosts.start("root"));
    assert!(!said.ok && said.err.contains("is the shared key"), "{}", said.err);
}

/// The manifest of a program that is no part of the workspace and depends on the crate `evenfall`.
const OUTSIDE: &str = "[package]\nname = \"outside\"\nedition = \"2024\"\n[workspace]\n\
                       [dependencies.evenfall]\ndefault-features = false\n\
                       features = [\"subscriber\"]\n";

/// The example `subscriber` as a program outside of the workspace: it has a directory of its own
/// and one dependency, and is built offline from the versions that the workspace has locked.
fn outside_program() -> Option<PathBuf> {
    let scratch = Scratch::beside();
    let Some(cargo) = std::env::var_os("CARGO") else {
        println!("skipped: not run by cargo");
        return None;
    };
    let house = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (home, face) = (scratch.path("outside"), house.join("crates/evenfall"));
    fs::create_dir_all(home.join("src")).expect("a directory");
    fs::copy(face.join("examples/subscriber.rs"), home.join("src/main.rs")).expect("the example");
    fs::copy(house.join("Cargo.lock"), home.join("Cargo.lock")).expect("the locked versions");
    let manifest = format!("{OUTSIDE}path = \"{}\"\n", face.display());
    fs::write(home.join("Cargo.toml"), manifest).expect("a manifest");
    // The build directory lies beside that of the workspace, so that the next run finds the build.
    let built = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("outside");
    let mut build = std::process::Command::new(cargo);
    build.args(["build", "--quiet", "--offline", "--target-dir"]).arg(&built).current_dir(&home);
    // Compiler flags of the test's own build must not apply to this program.
    build.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    // The program is never debugged, and debug information takes a sixth of its build.
    build.env("CARGO_PROFILE_DEV_DEBUG", "false").env("CARGO_INCREMENTAL", "0");
    let said = build.output().expect("cargo");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    Some(built.join("debug/outside"))
}

#[test]
fn program_outside_the_workspace_gets_its_symbols_and_nothing_else() {
    let Some(program) = outside_program() else { return };
    let hosts = Hosts::new(false, 1_500);
    let mut children: Vec<Child> = CAST[..4].iter().map(|(name, _)| hosts.start(name)).collect();
    let mut desk = std::process::Command::new(program);
    let (root, own) = (hosts.nodes[0].2.to_string(), hosts.nodes[4].2.to_string());
    desk.args([&root, &own, "4", "A", "C"]);
    desk.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    children.push(desk.spawn().expect("the program"));
    let said = finish(children.pop().expect("the program"));
    all_end_well(children);
    assert!(said.ok, "{}", said.err);
    let got: Vec<u64> = said
        .out
        .lines()
        .map(|line| line.split(' ').next().and_then(|n| n.parse().ok()).expect("a number"))
        .collect();
    assert_eq!(got, expected_of(&["A", "C"], 1_500));
}

/// Numbers of the messages of these symbols, and of messages that concern no single symbol.
fn expected_of(symbols: &[&str], messages: u64) -> Vec<u64> {
    use evenfall_feed_formats::itch::{Symbols, View};
    let (bytes, starts) = super::common::feed_file(messages);
    let mut known = Symbols::new();
    let mut numbers = Vec::new();
    for (number, &start) in (0..).zip(&starts) {
        let length = usize::from(u16::from_be_bytes([bytes[start], bytes[start + 1]]));
        let view = View::decode(&bytes[start + 2..start + 2 + length]).expect("ITCH");
        known.observe(&view);
        let symbol = known.symbol(view.stock_locate().into());
        if symbol.is_none_or(|symbol| symbols.contains(&symbol.to_string().as_str())) {
            numbers.push(number);
        }
    }
    numbers
}
