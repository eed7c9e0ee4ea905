//! A recorder among the hosts of a run: it mends what rings have forgotten, replays to who comes
//! late, and its death is nobody else's.

use std::fmt::Write as _;
use std::fs;
use std::net::UdpSocket;
use std::process::Child;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use super::common::{Scratch, evenfall, finish, say, signal};

const CAST: [(&str, &str); 7] = [
    ("root", "root"),
    ("proxy-1", "proxy"),
    ("proxy-2", "proxy"),
    ("recv-1", "receiver"),
    ("recv-2", "receiver"),
    ("tape", "recorder"),
    ("late", "receiver"),
];

/// Messages of the feed, a thousand a second.
const MESSAGES: u64 = 9_000;

/// Rings of a quarter of a second, and sockets that hold little more.
fn stage() -> Scratch {
    let scratch = Scratch::new();
    let mut text = format!(
        "[run]\nclock = \"same-host\"\nwarm_up = \"300ms\"\n\
         [feed]\nrate = 1000.0\n\
         synthetic = {{ seed = 3, symbols = 20, messages = {MESSAGES} }}\n\
         [io]\nreceive_buffer_bytes = 65536\n\
         [multicast.shape]\ndepth = 2\nfanout = 2\n\
         [multicast.repair]\nring_frames = 256\nwindow_frames = 1024\n\
         [multicast.membership]\nexpect_receivers = 3\n",
    );
    for (id, (name, role)) in CAST.iter().enumerate() {
        let udp = UdpSocket::bind("127.0.0.1:0").and_then(|s| s.local_addr()).expect("loopback");
        let more = match *role {
            "recorder" => "record = \"ticks\"\n",
            _ => "",
        };
        let _ = write!(
            text,
            "[[node]]\nname = \"{name}\"\nid = {id}\nrole = \"{role}\"\naddress = \"{udp}\"\n{more}"
        );
    }
    fs::write(scratch.path("e.toml"), text).expect("settings");
    scratch
}

fn start(scratch: &Scratch, name: &str, more: &[&str]) -> Child {
    let role = match CAST.iter().find(|node| node.0 == name).expect("a node").1 {
        "receiver" => "recv",
        role => role,
    };
    let config = scratch.path("e.toml").display().to_string();
    let args = ["run", role, "--name", name, "--config", &config, "--json"];
    evenfall(&[&args[..], more].concat()).spawn().expect("the program")
}

fn start_all_but_the_last(scratch: &Scratch) -> Vec<Child> {
    CAST[..CAST.len() - 1].iter().map(|(name, _)| start(scratch, name, &[])).collect()
}

/// Ends well and says what it had.
fn summary(child: Child) -> Value {
    let said = finish(child);
    assert!(said.ok, "{}", said.err);
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {}", said.out))
}

/// Nothing lost, and what it released is the whole feed.
fn is_whole(summary: &Value, hash: &Value) {
    assert_eq!(summary["trees"][0]["tally"]["lost"], 0, "{summary}");
    assert_eq!((&summary["messages"], &summary["content_hash"]), (&MESSAGES.into(), hash));
}

#[test]
fn a_receiver_that_stopped_and_one_that_came_late_have_the_whole_feed_by_the_recorder() {
    let scratch = stage();
    let mut cast = start_all_but_the_last(&scratch);
    sleep(Duration::from_millis(2_500));
    signal(cast[4].id(), "STOP");
    sleep(Duration::from_millis(2_500));
    signal(cast[4].id(), "CONT");
    let late = start(&scratch, "late", &["--from", "start"]);
    let tape = summary(cast.remove(5));
    let (stopped, steady) = (summary(cast.remove(4)), summary(cast.remove(3)));
    let late = summary(late);
    let hash = &steady["content_hash"];
    for receiver in [&steady, &stopped, &late] {
        is_whole(receiver, hash);
    }
    assert_eq!(&tape["content_hash"], hash, "{tape}");
    assert_eq!((&tape["messages"], &tape["lost"]), (&MESSAGES.into(), &0.into()), "{tape}");
    // What rings could not give: most of two and a half seconds, and of what was before `late`.
    let sent = tape["trees"][0]["repairs_sent"].as_u64().expect("a number");
    assert!(sent > 4_000, "{tape}");
    cast.into_iter().for_each(|child| assert!(finish(child).ok));
    let dir = scratch.path("ticks").display().to_string();
    let said = say(&["store", "verify", &dir]);
    assert!(said.ok, "{}{}", said.out, said.err);
    let rows = say(&["store", "read", &dir, "feed"]);
    assert_eq!(rows.out.lines().count() as u64, 1 + MESSAGES, "{}", rows.err);
}

#[test]
fn the_death_of_a_recorder_is_nobody_elses() {
    let scratch = stage();
    let mut cast = start_all_but_the_last(&scratch);
    sleep(Duration::from_millis(3_000));
    let mut tape = cast.remove(5);
    tape.kill().expect("a process");
    tape.wait().expect("a process");
    let from_here = start(&scratch, "late", &["--from", "start"]);
    let (second, first) = (summary(cast.remove(4)), summary(cast.remove(3)));
    is_whole(&first, &first["content_hash"]);
    is_whole(&second, &first["content_hash"]);
    // Who came for what was before has what there is, and says what it has not.
    let late = summary(from_here);
    let tally = &late["trees"][0]["tally"];
    let (released, lost) = (tally["released"].as_u64(), tally["lost"].as_u64());
    assert_eq!(released.zip(lost).map(|(a, b)| a + b), Some(MESSAGES), "{late}");
    assert!(lost > Some(0), "{late}");
    cast.into_iter().for_each(|child| assert!(finish(child).ok));
    // What was acknowledged is there.
    let dir = scratch.path("ticks").display().to_string();
    let said = say(&["store", "verify", &dir, "--partial"]);
    assert!(said.ok, "{}{}", said.out, said.err);
}

#[test]
fn where_to_begin_is_checked() {
    let scratch = stage();
    let said = finish(start(&scratch, "late", &["--from", "yesterday"]));
    assert!(!said.ok && said.err.contains("must be start, live"), "{}", said.err);
}
