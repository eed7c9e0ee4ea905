//! Replicas of ordered keys in the racks of a settings file: `evenfall kv retire`, and a rack that
//! vanishes while etcd says who has.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Child;
use std::time::Instant;

use super::common::{Said, Scratch, evenfall, eventually, finish, say, signal};
use super::servers;

/// Six replicas in the racks `left` and `right` of a settings file, one after the other.
struct Keys {
    addresses: Vec<SocketAddr>,
    config: String,
    dir: String,
    /// Further arguments of each replica.
    more: Vec<String>,
    replicas: Vec<Child>,
    _scratch: Scratch,
}

impl Keys {
    fn start(more: &[&str]) -> Self {
        let scratch = Scratch::beside();
        let addresses: Vec<SocketAddr> = (1..=6).map(|host| scratch.address(host)).collect();
        let mut file = String::new();
        for (n, address) in addresses.iter().enumerate() {
            let rack = ["left", "right"][n % 2];
            writeln!(
                file,
                "[[node]]\nname = \"n{n}\"\nid = {n}\nrole = \"keys\"\naddress = \"{address}\"\n\
                 rack = \"{rack}\""
            )
            .expect("text");
        }
        let config = scratch.path("keys.toml").display().to_string();
        std::fs::write(&config, &file).expect("a file");
        let dir = scratch.path("keys").display().to_string();
        let more = more.iter().map(|word| word.to_string()).collect();
        let mut keys = Self { addresses, config, dir, more, replicas: vec![], _scratch: scratch };
        keys.replicas = (0..6).map(|n| keys.replica(n)).collect();
        eventually("replicas that take changes", || keys.kv(&["put", "key", "1"]).ok.then_some(()));
        keys
    }

    fn replica(&self, n: usize) -> Child {
        let name = format!("n{n}");
        let run = ["run", "keys", "--config", &self.config, "--name", &name, "--dir", &self.dir];
        let more = self.more.iter().map(String::as_str);
        let words: Vec<&str> = run.into_iter().chain(more).collect();
        evenfall(&words).spawn().expect("a replica")
    }

    /// Ends the replicas of the right rack.
    fn end_right(&mut self, signalled: &str) {
        for n in [1, 3, 5] {
            signal(self.replicas[n].id(), signalled);
            self.replicas[n].wait().expect("its end");
        }
    }

    /// Starts the right rack, and waits until it takes part and no rack is out.
    fn start_right(&mut self) {
        for n in [1, 3, 5] {
            self.replicas[n] = self.replica(n);
        }
        let server = self.addresses[3].to_string();
        eventually("the rack", || {
            let said = say(&["kv", "--servers", &server, "status", "--json"]);
            let row: serde_json::Value = serde_json::from_str(&said.out).ok()?;
            let is_back = row["state"] != "observer" && row["racks_out"] == "none";
            (is_back && row["rack"] == 1).then_some(())
        });
    }

    /// A command to a replica of the left rack.
    fn kv(&self, words: &[&str]) -> Said {
        self.kv_at(0, words)
    }

    fn kv_at(&self, n: usize, words: &[&str]) -> Said {
        let server = self.addresses[n].to_string();
        say(&[&["kv", "--servers", &server][..], words].concat())
    }

    fn finish(self) {
        for replica in self.replicas {
            signal(replica.id(), "INT");
            let said = finish(replica);
            assert!(said.ok, "{}", said.err);
        }
    }
}

#[test]
fn a_rack_of_the_settings_leaves_as_planned_and_comes_back() {
    let mut keys = Keys::start(&[]);
    let refused = keys.kv(&["retire", "2"]);
    assert!(!refused.ok && refused.err.contains("there is no such rack"), "{}", refused.err);
    let said = keys.kv(&["retire", "1"]);
    assert!(said.ok && said.out.contains("rack 1 is out"), "{}", said.err);
    let needed = keys.kv(&["retire", "0"]);
    assert!(!needed.ok && needed.err.contains("could not go on"), "{}", needed.err);

    // The second name in the file is rack 1, and its replicas may go.
    keys.end_right("INT");
    let said = keys.kv(&["put", "key", "2"]);
    assert!(said.ok, "{}", said.err);
    keys.start_right();
    assert_eq!(keys.kv_at(3, &["get", "key"]).out.trim(), "2");
    keys.finish();
}

#[test]
fn one_of_two_racks_may_vanish_when_etcd_says_who_has() {
    let Some(etcd) = servers::etcd() else { return };
    let mut keys = Keys::start(&["--membership", &etcd.address_of("racks")]);
    keys.end_right("KILL");
    let killed = Instant::now();
    let said = keys.kv(&["put", "key", "2"]);
    println!("a change after the rack was killed: {} ms", killed.elapsed().as_millis());
    assert!(said.ok, "{}", said.err);
    let started = Instant::now();
    keys.start_right();
    println!("the rack is back: {} ms", started.elapsed().as_millis());
    assert_eq!(keys.kv_at(3, &["get", "key"]).out.trim(), "2");
    // A rack that came back may be the last one.
    for n in [0, 2, 4] {
        signal(keys.replicas[n].id(), "KILL");
        keys.replicas[n].wait().expect("its end");
    }
    let killed = Instant::now();
    let said = keys.kv_at(3, &["put", "key", "3"]);
    println!("a change after the other rack was killed: {} ms", killed.elapsed().as_millis());
    assert!(said.ok, "{}", said.err);
    for n in [0, 2, 4] {
        keys.replicas[n] = keys.replica(n);
    }
    eventually("the left rack", || (keys.kv(&["get", "key"]).out.trim() == "3").then_some(()));
    keys.finish();
}

#[test]
fn replicas_that_start_again_notice_that_etcd_lost_their_list() {
    let Some(etcd) = servers::etcd() else { return };
    let mut keys = Keys::start(&["--membership", &etcd.address_of("racks")]);
    keys.end_right("KILL");
    assert!(keys.kv(&["put", "key", "2"]).ok);
    keys.start_right();
    // Nobody has written anything under the other name.
    keys.more[1] = etcd.address_of("empty");
    for n in 0..6 {
        signal(keys.replicas[n].id(), "INT");
        keys.replicas[n].wait().expect("its end");
    }
    keys.replicas = (0..6).map(|n| keys.replica(n)).collect();
    eventually("replicas that go on", || keys.kv(&["put", "key", "3"]).ok.then_some(()));
    for replica in keys.replicas {
        signal(replica.id(), "INT");
        let said = finish(replica);
        assert!(said.ok && said.err.contains("lacks what it had before"), "{}", said.err);
    }
}
