//! Roots that are processes of their own: one that is started again, and one with another feed.

use std::fmt::Write as _;
use std::process::Child;
use std::time::Duration;

use serde_json::Value;

use super::common::{Scratch, evenfall, eventually, finish, signal};

const CAST: [(&str, &str); 4] =
    [("root", "root"), ("twin-1", "standby"), ("twin-2", "standby"), ("desk", "receiver")];
/// Messages of the feed, a thousand a second.
const MESSAGES: u64 = 3_000;

fn stage() -> Scratch {
    let scratch = Scratch::new();
    let mut text = format!(
        "[run]\ndir = \"run\"\nclock = \"same-host\"\nwarm_up = \"300ms\"\n\
         [feed]\nrate = 1000.0\nsynthetic = {{ seed = 3, messages = {MESSAGES} }}\n"
    );
    for (id, (name, role)) in CAST.iter().enumerate() {
        let udp = scratch.address(1);
        let _ = write!(
            text,
            "[[node]]\nname = \"{name}\"\nid = {id}\nrole = \"{role}\"\naddress = \"{udp}\"\n"
        );
    }
    std::fs::write(scratch.path("e.toml"), text).expect("settings");
    scratch
}

fn start(scratch: &Scratch, name: &str, more: &[&str]) -> Child {
    let role = CAST.iter().find(|node| node.0 == name).expect("a node").1;
    let config = scratch.path("e.toml").display().to_string();
    let args = ["run", role, "--name", name, "--config", &config, "--json"];
    evenfall(&[&args[..], more].concat()).spawn().expect("the program")
}

/// Waits until the feed has been sent for a second.
fn wait_for_feed(scratch: &Scratch) {
    eventually("the tree", || scratch.path("run/run.json").exists().then_some(()));
    std::thread::sleep(Duration::from_millis(1_300));
}

/// Asserts that these processes ended well with the whole feed, and returns the hashes of the feed.
fn whole(children: impl IntoIterator<Item = Child>) -> Vec<Value> {
    let hash = |child| {
        let said = finish(child);
        assert!(said.ok, "{}", said.err);
        let summary: Value = serde_json::from_str(&said.out).expect("a summary");
        assert_eq!(summary["messages"], MESSAGES, "{summary}");
        summary["content_hash"].clone()
    };
    children.into_iter().map(hash).collect()
}

#[test]
fn root_that_is_started_again_is_told_so_and_the_run_goes_on_without_it() {
    let scratch = stage();
    let mut all: Vec<Child> = CAST.iter().map(|(name, _)| start(&scratch, name, &[])).collect();
    wait_for_feed(&scratch);
    let root = all.remove(0);
    signal(root.id(), "KILL");
    assert!(!finish(root).ok);
    let said = finish(start(&scratch, "root", &[]));
    assert!(!said.ok && said.err.contains("this root was started again"), "{}", said.err);
    let hashes = whole(all);
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    // The second life of the root left the log of its first life in its place.
    assert!(scratch.path("run/root.evlog").exists() && !scratch.path("run/root.1.evlog").exists());
}

#[test]
fn standby_with_another_feed_ends_and_the_run_goes_on_without_it() {
    let scratch = stage();
    let other = ["--set", "feed.synthetic.seed=4"];
    let more = |name| if name == "twin-2" { &other[..] } else { &[] };
    let mut all: Vec<Child> =
        CAST.iter().map(|(name, _)| start(&scratch, name, more(*name))).collect();
    let said = finish(all.remove(2));
    assert!(
        !said.ok && said.err.contains("of this node's feed is not the message"),
        "{}",
        said.err
    );
    let hashes = whole(all);
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}
