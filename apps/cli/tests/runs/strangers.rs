//! Processes with hostile HTTP and gRPC clients, and processes whose notes have no reader.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use super::common::{Scratch, evenfall, eventually, finish, signal};

/// Bytes by which an attack may enlarge a process: the sum of the limits of its servers, and the
/// memory that the allocator keeps.
const GROWTH_MAX: u64 = 24 << 20;

/// Settings of nodes by name and role, all with HTTP.
fn settings(scratch: &Scratch, nodes: &[(&str, &str)]) -> (PathBuf, Vec<(SocketAddr, SocketAddr)>) {
    let mut text = "[run]\nclock = \"same-host\"\nwarm_up = \"100ms\"\n\
                    [feed]\nrate = 500.0\nsynthetic = { messages = 1000 }\n"
        .to_owned();
    let mut addresses = Vec::new();
    for (id, (name, role)) in nodes.iter().enumerate() {
        let (address, http) = (scratch.address(1), scratch.address(1));
        let _ = write!(
            text,
            "[[node]]\nname = \"{name}\"\nid = {id}\nrole = \"{role}\"\n\
             address = \"{address}\"\nhttp = \"{http}\"\n"
        );
        addresses.push((address, http));
    }
    let path = scratch.path("e.toml");
    fs::write(&path, text).expect("settings");
    (path, addresses)
}

fn run(role: &str, name: &str, config: &std::path::Path) -> std::process::Command {
    evenfall(&["run", role, "--name", name, "--config", &config.display().to_string()])
}

/// The status line of a page, if there is an answer.
fn asked(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.lines().next().map(str::to_owned)
}

fn answers(http: SocketAddr) {
    let is_page = |line: &String| line.contains("200") || line.contains("503");
    eventually("/healthz", || asked(http, "/healthz").filter(is_page));
}

fn resident_bytes(child: &Child) -> u64 {
    let path = format!("/proc/{}/status", child.id());
    let text = fs::read_to_string(path).expect("a process that lives");
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") << 10
}

/// Makes every attack over HTTP that once hurt a node. Returns connections that stay open.
fn attack_http(http: SocketAddr) -> Vec<TcpStream> {
    let send = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(http).expect("the port");
        stream.write_all(bytes).ok();
        stream
    };
    let mut open = Vec::new();
    for length in ["4611686018427387904", "5000"] {
        let head = format!("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        open.push(send(head.as_bytes()));
        answers(http);
    }
    let mut endless = send(b"GET / HTTP/1.1\r\nX: ");
    let part = vec![b'a'; 1 << 20];
    // The server closes the connection before it takes all of this.
    let taken = (0..300).take_while(|_| endless.write_all(&part).is_ok()).count();
    assert!(taken < 300, "all of an endless header was read");
    // 640 connections are ten times the limit of the server, and fewer than this process may open.
    let idle = (0..640).filter_map(|_| TcpStream::connect(http).ok());
    open.extend(idle);
    answers(http);
    open
}

#[test]
fn hostile_http_clients_cost_a_root_nothing_and_do_not_keep_it_from_ending() {
    let scratch = Scratch::beside();
    let (config, nodes) = settings(&scratch, &[("root", "root"), ("receiver-1", "receiver")]);
    let root = run("root", "root", &config).spawn().expect("the program");
    let http = nodes[0].1;
    answers(http);
    let before = resident_bytes(&root);
    let open = attack_http(http);
    let grown = resident_bytes(&root).saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{grown} bytes more than {before}");
    // The clients keep their connections until the server has ended.
    signal(root.id(), "TERM");
    let said = finish(root);
    assert!(said.ok, "{:?}: {}", said.code, said.err);
    drop(open);
}

#[test]
fn hostile_grpc_clients_cost_an_agent_nothing() {
    let scratch = Scratch::alone();
    let (config, nodes) = settings(&scratch, &[("m1", "agent")]);
    let agent = run("agent", "m1", &config).spawn().expect("the program");
    let (grpc, http) = nodes[0];
    answers(http);
    let before = resident_bytes(&agent);
    let silent: Vec<TcpStream> = (0..1_500).filter_map(|_| TcpStream::connect(grpc).ok()).collect();
    // The server closes all connections: those beyond its limit at once, and the others when their
    // headers are late.
    for mut client in silent {
        client.read_to_end(&mut Vec::new()).ok();
    }
    answers(http);
    let grown = resident_bytes(&agent).saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{grown} bytes more than {before}");
    signal(agent.id(), "TERM");
    let said = finish(agent);
    assert!(said.ok, "{:?}: {}", said.code, said.err);
}

/// Asserts that a run of a root and a receiver completes when the root's notes go to `stderr`.
fn goes_on_with(stderr: Stdio, hang_up: impl FnOnce()) {
    let scratch = Scratch::beside();
    let (config, nodes) = settings(&scratch, &[("root", "root"), ("receiver-1", "receiver")]);
    let root = run("root", "root", &config).stderr(stderr).spawn().expect("the program");
    hang_up();
    // The wait is longer than the time after which the root first names the nodes that it waits
    // for.
    eventually("the root", || asked(nodes[0].1, "/healthz"));
    std::thread::sleep(std::time::Duration::from_millis(5_500));
    let receiver = run("receiver", "receiver-1", &config).spawn().expect("the program");
    let said = finish(root);
    assert_eq!((said.code, said.out.trim()), (Some(0), "the stream ended"));
    let said = finish(receiver);
    assert!(said.ok, "{}", said.err);
    for words in [
        "receiver-1: receiver listening on 127.0.",
        ", HTTP on 127.0.",
        "receiver-1: has its place",
        "receiver-1: the stream ended: 1000 messages released, ",
    ] {
        assert!(said.err.contains(words), "{words} in:\n{}", said.err);
    }
}

#[test]
fn root_goes_on_when_its_notes_meet_a_full_disk() {
    let full = OpenOptions::new().write(true).open("/dev/full").expect("Linux");
    goes_on_with(full.into(), || {});
}

#[test]
fn root_goes_on_when_the_reader_of_its_notes_has_gone() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    goes_on_with(writer.into(), || drop(reader));
}

#[test]
fn root_says_where_it_listens_that_the_tree_stands_and_how_it_ended() {
    let scratch = Scratch::beside();
    let (config, _) = settings(&scratch, &[("root", "root"), ("receiver-1", "receiver")]);
    let root = run("root", "root", &config).spawn().expect("the program");
    let mut receiver = run("receiver", "receiver-1", &config);
    let receiver = receiver.env("EVENFALL_LOG", "warn").spawn().expect("the program");
    let said = finish(root);
    for words in [
        " INFO root: root listening on 127.0.",
        " INFO root: the tree stands: 1 receivers and recorders, 0 proxies, 1 trees, mode ",
        " INFO root: the stream ended: 1000 messages sent; the 1 receivers at the end report 1000 \
         released, ",
    ] {
        assert!(said.err.contains(words), "{words} in:\n{}", said.err);
    }
    let said = finish(receiver);
    assert!(said.ok && !said.err.contains(" INFO "), "{}", said.err);
    let loud = run("root", "root", &config).env("EVENFALL_LOG", "loud").spawn();
    let said = finish(loud.expect("the program"));
    assert!(said.code == Some(1) && said.err.contains("EVENFALL_LOG = loud"), "{}", said.err);
}
