//! Gateways: participants without the key take the whole feed, by our own tap and by a client that
//! is not ours; readers that never read and strangers delay nobody.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use serde_json::Value;

use super::common::{SMALL, Scratch, demo, evenfall, finish, read_json, say};

/// Messages of a feed that is played to participants.
const MESSAGES: u64 = 4_000;
/// The relay loses one datagram in this many.
const LOST_ONE_IN: usize = 20;

fn demo_behind(protocol: &str, more: &[&str]) -> Value {
    let args = [&SMALL[..], &["--gateway", protocol, "--key"], more].concat();
    let demo = demo(&args);
    // The gateway counts as one more receiver.
    demo.is_whole(4);
    let gateway = demo.json["gateway"].clone();
    assert_eq!(gateway["handed"], 1_500, "{gateway}");
    assert_eq!(gateway["participant_has_equal_content"], true, "{gateway}");
    assert_eq!((&gateway["dropped"], &gateway["failed"]), (&0.into(), &0.into()), "{gateway}");
    for percentile in ["p50", "p99", "max"] {
        assert!(gateway["handed_us"][percentile].as_f64() > Some(0.0), "{gateway}");
        // The run log says the same, within the histograms' error.
        assert!(demo.json["handed_us"][percentile].as_f64() > Some(0.0), "{}", demo.json);
    }
    assert_eq!(demo.number("handed"), 1_500);
    let status = demo.read("summary-gateway.json");
    assert_eq!(status["content_hash"], demo.json["content_hash"], "the gateway is a receiver");
    gateway
}

#[test]
fn a_participant_without_the_key_takes_the_whole_feed_and_asks_for_what_it_lost() {
    let gateway = demo_behind("mold", &[]);
    let participant = &gateway["participant"];
    let count = |value: &Value| value.as_u64().expect("a number");
    assert!(count(&participant["dropped"]) > 0 && count(&gateway["rerequested"]) > 0, "{gateway}");
    assert_eq!((count(&participant["messages"]), count(&participant["lost"])), (1_500, 0));
    assert_eq!(participant["ended"], "the session ended");
    assert_eq!(gateway["sessions"][0], participant["session"], "{gateway}");
}

#[test]
fn plain_datagrams_have_the_whole_feed_too() {
    let gateway = demo_behind("plain", &[]);
    assert_eq!(gateway["participant"]["messages"], 1_500, "{gateway}");
    assert_eq!((&gateway["requests"], &gateway["datagrams"]), (&0.into(), &1_500.into()));
}

#[test]
fn sealed_datagrams_have_the_whole_feed_for_the_participant_with_the_key() {
    let gateway = demo_behind("sealed", &[]);
    let participant = &gateway["participant"];
    assert_eq!((&participant["messages"], &participant["lost"]), (&1_500.into(), &0.into()));
    assert_eq!((&participant["refused"], &gateway["protocol"]), (&0.into(), &"sealed".into()));
}

/// The client of the crate `moldudp`, which `scripts/deps.sh` builds.
fn foreign_client() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench-peers/moldudp");
    let program = folder.join("target/release/moldudp-peer");
    if !program.exists() {
        println!("skipped: no moldudp-peer (scripts/deps.sh builds it)");
        return None;
    }
    Some(program)
}

/// Passes datagrams on and loses some. The thread ends with the test's process.
fn start_relay(from: SocketAddr, to: SocketAddr) {
    let socket = UdpSocket::bind(from).expect("the relay's address");
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        for number in 0_usize.. {
            let Ok((length, _)) = socket.recv_from(&mut buffer) else { return };
            if number % LOST_ONE_IN != LOST_ONE_IN - 1 {
                socket.send_to(&buffer[..length], to).ok();
            }
        }
    });
}

fn start(config: &str, role: &str) -> Child {
    evenfall(&["run", role, "--config", config, "--json"]).spawn().expect("the program")
}

fn summary(child: Child) -> Value {
    let said = finish(child);
    assert!(said.ok, "{}", said.err);
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {}", said.out))
}

/// A root and a gateway with these participants. The gateway stays for them longer than it would
/// wait for a root that is silent in the midst of its stream. Returns the file, and where requests
/// are answered.
fn stage(scratch: &Scratch, participants: &[SocketAddr], more: &str) -> (String, SocketAddr) {
    let feed = scratch.path("day.itch").display().to_string();
    let made = say(&["feed", "make", &feed, "--messages", &MESSAGES.to_string(), "--seed", "5"]);
    assert!(made.ok, "{}", made.err);
    let server = scratch.address(3);
    let listed: Vec<String> = participants.iter().map(|to| format!("\"{to}\"")).collect();
    let text = format!(
        "[run]\nclock = \"same-host\"\nwarm_up = \"300ms\"\n\
         [feed]\nfile = \"day.itch\"\nrate = 4000.0\n\
         [gateway]\nlinger = \"4s\"\n\
         [multicast.membership]\nroot_timeout = \"2s\"\n\
         [[node]]\nname = \"root\"\nid = 0\nrole = \"root\"\naddress = \"{}\"\n\
         [[node]]\nname = \"gw\"\nid = 1\nrole = \"gateway\"\naddress = \"{}\"\n\
         participants = [{}]\nrerequest = \"{server}\"\n{more}",
        scratch.address(1),
        scratch.address(2),
        listed.join(", "),
    );
    let config = scratch.path("e.toml");
    fs::write(&config, text).expect("settings");
    (config.display().to_string(), server)
}

#[test]
fn a_client_that_is_not_ours_takes_the_whole_feed_with_gaps_filled() {
    let Some(program) = foreign_client() else { return };
    let scratch = Scratch::new();
    let (relay, foreign, ours) = (scratch.address(4), scratch.address(5), scratch.address(6));
    // One participant never reads, and nobody listens at another's port.
    let never_reads = UdpSocket::bind(scratch.address(7)).expect("an address");
    let closed = scratch.address(8);
    let unread = never_reads.local_addr().expect("an address");
    let (config, server) = stage(&scratch, &[unread, closed, relay, ours], "");
    start_relay(relay, foreign);
    let out = scratch.path("foreign.itch").display().to_string();
    let args = [&foreign.to_string(), &server.to_string(), &MESSAGES.to_string(), &out];
    let client = Command::new(program).arg("hear").args(args).spawn().expect("the client");
    let (address, server) = (ours.to_string(), server.to_string());
    let tap = ["tap", &address, "--from", "1", "--request", &server, "--drop", ".05", "--json"];
    let tap = evenfall(&tap).spawn().expect("the tap");
    let (gateway, root) = (start(&config, "gateway"), start(&config, "root"));
    let root = summary(root);
    let tapped = summary(tap);
    assert!(finish(client).ok, "the foreign client");
    let gateway = summary(gateway);
    let wanted = root["content_hash"].as_str().expect("a hash");
    let foreign: Value = {
        let said = say(&["feed", "info", &out, "--json"]);
        serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {}{}", said.out, said.err))
    };
    let hashes = [&gateway["content_hash"], &tapped["content_hash"], &foreign["content_hash"]];
    assert_eq!(hashes, [wanted; 3]);
    let handed = &gateway["gateway"];
    assert_eq!(handed["handed"], MESSAGES, "{handed}");
    assert!(handed["rerequested"].as_u64() > Some(0), "{handed}");
    assert_eq!((&handed["participants"], &handed["dropped"]), (&4.into(), &0.into()), "{handed}");
    let kept = read_json(&scratch.path("run").join("summary-gw.json"));
    assert_eq!(kept["gateway"]["handed"], MESSAGES);
}

#[test]
fn the_members_of_a_multicast_group_take_the_feed() {
    let scratch = Scratch::new();
    let group = SocketAddr::from(([239, 192, 77, 9], scratch.address(4).port()));
    let (config, server) = stage(&scratch, &[group], "interface = \"127.0.0.1\"\n");
    let (address, server) = (group.to_string(), server.to_string());
    let join = ["tap", &address, "--interface", "127.0.0.1", "--json"];
    let asks = ["--from", "1", "--request", &server, "--drop", ".05"];
    let taps = [&asks[..], &["--from", "1", "--request", &server]]
        .map(|more| evenfall(&[&join[..], more].concat()).spawn().expect("a tap"));
    let (gateway, root) = (start(&config, "gateway"), start(&config, "root"));
    let root = summary(root);
    for tap in taps {
        let tapped = summary(tap);
        assert_eq!((&tapped["content_hash"], &tapped["lost"]), (&root["content_hash"], &0.into()));
    }
    assert_eq!(summary(gateway)["gateway"]["participants"], 1);
}

#[test]
fn a_tap_that_takes_nothing_says_so_and_fails() {
    let scratch = Scratch::beside();
    let address = scratch.address(1).to_string();
    let said = say(&["tap", &address, "--silence", "200ms", "--json"]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(said.err.contains("no message came to 127."), "{}", said.err);
    let summary: Value = serde_json::from_str(&said.out).expect("a summary all the same");
    assert_eq!(summary["ended"], "no message came any more");
    let said = say(&["tap", &address, "--protocol", "plain", "--request", "127.0.0.1:1"]);
    assert!(!said.ok && said.err.contains("plain datagrams have no requests"), "{}", said.err);
    // Datagrams of any bytes are counted.
    let tap = evenfall(&["tap", &address, "--silence", "700ms", "--json"]).spawn().expect("a tap");
    let stranger = UdpSocket::bind(scratch.address(2)).expect("an address");
    for length in [0, 1, 20, 40, 9_000] {
        std::thread::sleep(Duration::from_millis(60));
        stranger.send_to(&vec![0xfe; length], &address).ok();
    }
    let said = finish(tap);
    let summary: Value = serde_json::from_str(&said.out).expect("a summary");
    assert!(said.code == Some(1) && summary["refused"].as_u64() > Some(0), "{summary}");
}
