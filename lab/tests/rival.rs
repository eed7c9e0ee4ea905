//! The services of the product over a rival of the lab: replicas of ordered keys agree by Raft, and
//! each is a process with its own sockets.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use evenfall_keys_client::KeysClient;
use evenfall_keys_machine::{Existing, KeyOperation};

/// Limit of the wait for an answer. A vote for another leader takes about half a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// Processes that end with the test, however it ends.
struct Servers(Vec<Child>);

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn command(protocol: &str) -> Command {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_evenfall-lab"));
    lab.args(["bench", "keys-replica", "--protocol", protocol]).stdin(Stdio::null());
    lab
}

#[test]
fn ordered_keys_over_raft_go_on_when_the_leader_is_killed() {
    let directory = tempfile::tempdir().expect("a directory");
    let free = |host: u8| evenfall_host::ports::free(Ipv4Addr::new(127, 0, 78, host).into());
    let addresses: Vec<SocketAddr> = (1..=3).map(|host| free(host).expect("a free port")).collect();
    let all = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut servers = Servers(Vec::new());
    for (node, address) in addresses.iter().enumerate() {
        let mut lab = command("raft");
        lab.args(["--node", &node.to_string(), "--replicas", &all]);
        lab.arg("--dir").arg(directory.path().join(node.to_string()));
        let mut child = lab.stdout(Stdio::piped()).spawn().expect("the program runs");
        let out = child.stdout.take().expect("an output");
        servers.0.push(child);
        let line = BufReader::new(out).lines().next().expect("a line").expect("text");
        assert_eq!(line, format!("serving {address}"));
    }
    let put = |client: &mut KeysClient, value: u32| {
        let op = KeyOperation::put("trade", value.to_string(), Existing::Any(true));
        client.change(vec![op]).expect("a majority lives");
    };
    let mut first = KeysClient::new(addresses.clone(), PATIENCE);
    (0..10).for_each(|value| put(&mut first, value));
    // The first replica leads from the start. Both the client and the other replicas lose it.
    servers.0[0].kill().expect("a process");
    servers.0[0].wait().expect("a process");
    (10..20).for_each(|value| put(&mut first, value));
    for address in &addresses[1..] {
        let found = KeysClient::new(vec![*address], PATIENCE).get("trade");
        let found = found.expect("a majority lives").expect("the key");
        // The version counts the puts: each was made once.
        assert_eq!((found.stat.version, &found.value[..]), (19, &b"19"[..]), "{address}");
    }
}

#[test]
fn a_rival_without_one_order_is_refused_and_the_others_are_named() {
    let mut lab = command("epaxos");
    let lab = lab.args(["--node", "0", "--replicas", "127.0.0.1:1", "--dir", "none"]);
    let output = lab.output().expect("the program runs");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{complaint}");
    assert!(complaint.contains("canopus, raft, multi-paxos, nezha"), "{complaint}");
}
