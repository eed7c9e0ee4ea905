//! One settings file with every role: `config check` counts its nodes, and each process serves
//! `/metrics`, `/healthz` and `/status`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Child;
use std::time::Duration;

use evenfall_runtime::http::{Method, Reply, ask};

use super::common::{Scratch, evenfall, eventually, finish, say, signal};

/// Every role, with the keys of `[[node]]` that it uses.
const NODES: [(&str, &str); 16] = [
    ("root", ""),
    ("standby", ""),
    ("standby", ""),
    ("author", ""),
    ("proxy", "tree = 0"),
    ("receiver", "from = \"live\""),
    ("gateway", "participants = [\"127.0.0.1:9\"]\nrerequest = \"127.0.0.1:0\""),
    ("recorder", "record = \"tape\""),
    ("agent", ""),
    ("store", "store = \"store\""),
    ("nameserver", "files = \"names\""),
    ("dataserver", "files = \"bytes\"\nrack = \"a\""),
    ("flowserver", ""),
    ("keys", "keys = \"keys-0\"\nrack = \"a\""),
    ("keys", "keys = \"keys-1\"\nrack = \"a\""),
    ("keys", "keys = \"keys-2\"\nrack = \"a\""),
];
/// A section of every service.
const SECTIONS: &str = "[run]\ndir = \"run\"\nclock = \"same-host\"\nwarm_up = \"300ms\"\n\
     [feed]\nrate = 200.0\nsynthetic = { messages = 20000 }\n\
     [survey]\npoll = \"60ms\"\n[gateway]\nheartbeat = \"100ms\"\n\
     [store]\ncache_bytes = 16777216\n\
     [files]\nroom_bytes_min = 1048576\nlog_copies = 1\n\
     [keys]\nlimit_mib = 16\nzookeeper = [\"tickTime=500\"]\n";

/// A process of the run, and the address of its pages. Dropping it kills the process.
struct Running {
    role: &'static str,
    http: SocketAddr,
    child: Option<Child>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn page(http: SocketAddr, path: &str) -> Option<Reply> {
    ask(http, Method::GET, path, Duration::from_secs(5)).ok()
}

#[test]
fn one_file_has_every_role_and_each_process_serves_its_pages() {
    let scratch = Scratch::alone();
    let mut text = SECTIONS.to_owned();
    let mut all = Vec::new();
    for (id, (role, keys)) in NODES.iter().enumerate() {
        let (address, http) = (scratch.address(1), scratch.address(2));
        let _ = write!(
            text,
            "[[node]]\nname = \"n{id}\"\nid = {id}\nrole = \"{role}\"\n\
             address = \"{address}\"\nhttp = \"{http}\"\n{keys}\n"
        );
        all.push(Running { role, http, child: None });
    }
    let config = scratch.path("e.toml").display().to_string();
    std::fs::write(&config, text).expect("settings");

    let said = say(&["config", "check", &config]);
    let counted = "ok: 1 root, 2 standbys, 1 author, 1 proxy, 1 receiver, 1 gateway, 1 recorder, \
                   1 agent, 1 store, 1 nameserver, 1 dataserver, 1 flowserver, \
                   3 replicas of keys\n";
    assert!(said.ok && said.out.starts_with(counted), "{}{}", said.out, said.err);
    let said = say(&["config", "check", "--json", &config]);
    let values: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(values["keys"]["limit_mib"], 16, "{values}");

    for (id, running) in all.iter_mut().enumerate() {
        let name = format!("n{id}");
        let command = ["run", running.role, "--config", &config, "--name", &name, "--json"];
        running.child = Some(evenfall(&command).spawn().expect("the program"));
    }
    for (id, Running { role, http, .. }) in all.iter().enumerate() {
        eventually(&format!("{role} is well"), || {
            page(*http, "/healthz").filter(|reply| reply.status.is_success())
        });
        let metrics = page(*http, "/metrics").expect("metrics").text;
        assert!(metrics.contains(&format!("node=\"n{id}\"")), "{role}: {metrics}");
        let families = metrics.lines().filter(|line| line.starts_with("# TYPE")).count();
        assert!(families >= 3, "{role}: {metrics}");
        let status = page(*http, "/status").expect("a status").text;
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        assert!(!status.is_null(), "{role}");
    }
    let said = say(&["stat", "--config", &config]);
    assert!(said.ok && said.out.lines().count() >= NODES.len(), "{}{}", said.out, said.err);

    let said = say(&["stat", "--healthy", "--config", &config]);
    assert!(said.ok && said.out.lines().all(|line| line.ends_with(": healthy")), "{}", said.out);

    for running in &mut all {
        let child = running.child.take().expect("a process");
        signal(child.id(), "TERM");
        let said = finish(child);
        assert!(said.ok, "{}: {}", running.role, said.err);
    }
}

#[test]
fn options_and_keys_of_other_roles_are_refused_by_name() {
    let scratch = Scratch::beside();
    let config = scratch.path("e.toml").display().to_string();
    let node = |id: u32, role: &str| {
        format!(
            "[[node]]\nname = \"{role}\"\nid = {id}\nrole = \"{role}\"\n\
             address = \"127.0.0.1:{}\"\n",
            9_700 + id
        )
    };
    std::fs::write(&config, node(1, "root") + &node(2, "receiver")).expect("settings");
    for (role, options, words) in [
        ("root", &["--from", "start"][..], "--from start: node root: a node with role"),
        ("receiver", &["--record", "x"], "`record`; it belongs to recorder"),
        ("receiver", &["--lease-cycles", "1"], "--lease-cycles: the role receiver does not use it"),
        ("root", &["--local", "3"], "--local: the role root does not use it"),
    ] {
        let args = [&["run", role, "--config", &config], options].concat();
        let said = say(&args);
        assert!(!said.ok && said.err.contains(words), "{role} {options:?}: {}", said.err);
    }
}
