//! Replicas of ordered keys in the racks of a settings file, and `evenfall kv retire`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Child;

use super::common::{Scratch, evenfall, eventually, finish, say, signal};

#[test]
fn a_rack_of_the_settings_leaves_as_planned_and_comes_back() {
    let scratch = Scratch::beside();
    let addresses: Vec<SocketAddr> = (1..=6).map(|host| scratch.address(host)).collect();
    let mut file = String::new();
    for (n, address) in addresses.iter().enumerate() {
        let rack = ["left", "right"][n % 2];
        writeln!(
            file,
            "[[node]]\nname = \"n{n}\"\nid = {n}\nrole = \"order\"\naddress = \"{address}\"\n\
             rack = \"{rack}\""
        )
        .expect("text");
    }
    let config = scratch.path("keys.toml").display().to_string();
    std::fs::write(&config, &file).expect("a file");
    let dir = scratch.path("keys").display().to_string();
    let start = |n: usize| -> Child {
        let name = format!("n{n}");
        let run = ["run", "order", "--config", &config, "--name", &name, "--dir", &dir];
        evenfall(&run).spawn().expect("a replica")
    };
    let mut replicas: Vec<Child> = (0..6).map(start).collect();
    let kv = |words: &[&str]| {
        let server = addresses[0].to_string();
        say(&[&["kv", "--servers", &server][..], words].concat())
    };
    eventually("replicas that take changes", || kv(&["put", "key", "1"]).ok.then_some(()));
    let refused = kv(&["retire", "2"]);
    assert!(!refused.ok && refused.err.contains("there is no such rack"), "{}", refused.err);
    let said = kv(&["retire", "1"]);
    assert!(said.ok && said.out.contains("rack 1 is out"), "{}", said.err);
    let needed = kv(&["retire", "0"]);
    assert!(!needed.ok && needed.err.contains("could not go on"), "{}", needed.err);

    // The second name in the file is rack 1, and its replicas may go.
    for n in [1, 3, 5] {
        signal(replicas[n].id(), "INT");
        replicas[n].wait().expect("its end");
    }
    let said = kv(&["put", "key", "2"]);
    assert!(said.ok, "{}", said.err);
    for n in [1, 3, 5] {
        replicas[n] = start(n);
    }
    let server = addresses[3].to_string();
    eventually("the rack", || {
        let said = say(&["kv", "--servers", &server, "status", "--json"]);
        let row: serde_json::Value = serde_json::from_str(&said.out).ok()?;
        (row["state"] == "follower" && row["racks_out"] == "none" && row["rack"] == 1).then_some(())
    });
    assert_eq!(say(&["kv", "--servers", &server, "get", "key"]).out.trim(), "2");
    for replica in replicas {
        signal(replica.id(), "INT");
        let said = finish(replica);
        assert!(said.ok, "{}", said.err);
    }
}
