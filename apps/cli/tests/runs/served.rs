//! A served store: killed in the middle of appends, and stopped by a signal.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Child;

use evenfall_host::process;
use evenfall_store_engine::{Client, Level};
use evenfall_store_format::Schema;

use super::common::{Scratch, evenfall, finish, say};

const BATCH: u64 = 100;

fn serve(dir: &Path) -> (Child, SocketAddr) {
    let dir = dir.display().to_string();
    let mut child =
        evenfall(&["store", "serve", &dir, "--listen", "127.0.0.1:0"]).spawn().expect("a server");
    let out = child.stdout.as_mut().expect("its output");
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("serving tcp://").expect("an address");
    (child, address.parse().expect("an address"))
}

fn records(batch: u64) -> Vec<u8> {
    let of = |n: u64| [(n as i64).to_le_bytes(), (n * 7).to_le_bytes()].concat();
    (batch * BATCH..(batch + 1) * BATCH).flat_map(of).collect()
}

/// Appends until the server is gone; gives the batches that were acknowledged.
fn append_until_killed(client: &mut Client, kill_after: u64, kill: &dyn Fn()) -> u64 {
    let file = client.create("a", &Schema::opaque(16)).expect("a file");
    let mut acknowledged = 0;
    for batch in 0.. {
        if client.append(&file, &records(batch), Level::Local).is_err() {
            return acknowledged;
        }
        if batch == kill_after {
            client.flush().ok();
            // Some are acknowledged, and many are under way.
            for _ in 0..kill_after / 2 {
                client.completion().expect("a reply").expect("an append").first.expect("taken");
                acknowledged += 1;
            }
            kill();
        }
        while let Some(completion) = client.completed() {
            acknowledged += u64::from(completion.first.is_ok());
        }
    }
    acknowledged
}

#[test]
fn what_a_killed_server_acknowledged_local_is_there_after_its_restart() {
    let scratch = Scratch::new();
    let dir = scratch.path("store");
    let (mut child, address) = serve(&dir);
    let mut client = Client::connect(address).expect("a connection");
    let pid = child.id();
    let kill = || process::send(pid, process::Signal::Kill);
    let acknowledged = append_until_killed(&mut client, 600, &kill);
    child.wait().expect("its end");
    assert!(acknowledged >= 300, "{acknowledged}");

    let (child, address) = serve(&dir);
    let mut client = Client::connect(address).expect("a connection");
    let file = client.open("a").expect("the file");
    let there = file.numbers.end;
    assert!(there >= acknowledged * BATCH, "{there} records of {acknowledged} batches");
    let all: Vec<u8> = (0..=there / BATCH).flat_map(records).collect();
    let read = client.numbers(&file, 0..there).expect("its records");
    assert!(read == all[..read.len()] && read.len() as u64 == there * 16, "other records");

    let listed = say(&["store", "ls", &format!("tcp://{address}")]);
    assert!(listed.ok && listed.out.contains(&format!("{there} records")), "{}", listed.out);
    drop(client);
    process::send(child.id(), process::Signal::Terminate);
    let said = finish(child);
    assert!(said.ok, "{}", said.err);
    let verified = say(&["store", "verify", &dir.display().to_string()]);
    assert!(verified.ok, "{}", verified.err);
}

#[test]
fn a_served_store_does_not_leave_loopback() {
    let scratch = Scratch::new();
    let dir = scratch.path("store").display().to_string();
    let said = say(&["store", "serve", &dir, "--listen", "0.0.0.0:0"]);
    assert!(!said.ok && said.err.contains("nothing leaves loopback"), "{}", said.err);
}
