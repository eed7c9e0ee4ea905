//! Demos in every mode, with a key, with several trees and in a lab: no message is lost, all
//! contents are equal, and all figures are printed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::common::{
    Demo, SMALL, Scratch, demo, dom_in_chromium, file_url, is_root, say, start_demo,
};

/// Keys that the JSON of a demo must have.
const KEYS: [&str; 9] = [
    "messages",
    "receivers",
    "delivered",
    "lost",
    "duplicates_dropped",
    "on_time_fraction",
    "clock_error_us",
    "content_hash",
    "report",
];
const DISTRIBUTIONS: [&str; 5] =
    ["oml_us", "held_oml_us", "window_us", "release_late_us", "wait_us"];

fn small(more: &[&str]) -> Vec<&'static str> {
    let leaked: Vec<&'static str> = more.iter().map(|s| &*String::from(*s).leak()).collect();
    SMALL.into_iter().chain(leaked).collect()
}

#[test]
fn json_has_every_figure_and_nothing_is_lost() {
    let demo = demo(&SMALL);
    demo.is_whole(3);
    for key in KEYS {
        assert!(!demo.json[key].is_null(), "{key} in {}", demo.json);
    }
    for key in DISTRIBUTIONS {
        for percentile in ["p50", "p90", "p99", "max"] {
            assert!(demo.json[key][percentile].is_number(), "{key}.{percentile}");
        }
    }
    assert_eq!((demo.number("messages"), demo.number("delivered")), (1_500, 4_500));
    assert_eq!((demo.number("receivers"), demo.number("clock_error_us")), (3, 0));
    if let Some(dom) = drawn_report(&demo) {
        assert!(!dom.contains("data-errors") && dom.matches("<svg viewBox").count() >= 8, "{dom}");
        assert!(dom.matches("<path").count() > 8, "curves are drawn");
    }
    report_has_a_line_per_message(&demo.file("fair.csv"), &demo.file(""), 1_500);
}

/// The report of a demo in a browser.
fn drawn_report(demo: &Demo) -> Option<String> {
    let url = file_url(&demo.file("report.html"));
    dom_in_chromium(&url, &demo.file("browser"))
}

fn report_has_a_line_per_message(csv: &Path, run: &Path, messages: usize) {
    let (csv, run) = (csv.display().to_string(), run.display().to_string());
    let said = say(&["report", &run, "--csv", &csv, "--json"]);
    assert!(said.ok, "{}", said.err);
    let text = fs::read_to_string(&csv).expect("the fairness log");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), messages + 1, "a header, and a line per message");
    let columns = lines[0].split(',').count();
    assert!(lines.iter().all(|line| line.split(',').count() == columns));
}

#[test]
fn key_several_trees_and_spares_deliver_everything() {
    let demo = demo(&small(&["--key", "--trees", "2", "--spares", "1"]));
    demo.is_whole(3);
    let key = fs::read_to_string(demo.file("evenfall.key")).expect("a key");
    assert_eq!(key.len(), 64);
    let mode = fs::metadata(demo.file("evenfall.key")).expect("a key").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "nobody else reads the key");
    let report = fs::read_to_string(demo.file("report.html")).expect("a page");
    assert!(!report.contains(key.trim()), "the key stays out of the report");
}

/// Runs a small demo in hosts of its own, of which no host may be left. `None` where there can be
/// no hosts.
fn lab_demo(more: &[&str]) -> Option<Demo> {
    if !is_root() {
        println!("skipped: not root");
        return None;
    }
    let scratch = Scratch::new();
    let args: Vec<&str> = ["--lab"].iter().chain(more).copied().collect();
    let child = start_demo(&scratch, &small(&args));
    let prefix = format!("ef{}-", child.id());
    let demo = Demo::of(scratch, child);
    if demo.said.err.contains("iproute2") || demo.said.err.contains("Operation not permitted") {
        println!("skipped: no namespaces here: {}", demo.said.err);
        return None;
    }
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let left = names.filter(|name| name.file_name().to_string_lossy().starts_with(&prefix));
    assert_eq!(left.count(), 0, "namespaces of the demo");
    Some(demo)
}

#[test]
fn lab_delivers_everything_and_leaves_no_namespace() {
    if let Some(demo) = lab_demo(&[]) {
        demo.is_whole(3);
        assert_eq!((demo.number("forwarded_by_port"), demo.number("checksum_errors")), (0, 0));
    }
}

#[test]
fn the_kernel_forwards_a_keyed_feed_and_every_receiver_gets_all() {
    if let Some(lacks) = evenfall_port::PortKind::Tc.lacks() {
        println!("skipped: ports of kind tc: {lacks}");
        return;
    }
    // The programs are taken off and attached anew under the feed.
    let faults = ["--fault", "reload:proxy-1@1", "--fault", "reload:root@1.5"];
    let arguments = [&["--key", "--port", "tc"], &faults[..]].concat();
    let Some(demo) = lab_demo(&arguments) else { return };
    demo.is_whole(3);
    assert_eq!((demo.json["port"].as_str(), demo.number("checksum_errors")), (Some("tc"), 0));
    let (all, by_port) = (demo.number("forwarded"), demo.number("forwarded_by_port"));
    // The first frames of the rehearsal come before the tables.
    assert!(by_port * 10 >= all * 9, "{by_port} of {all}");
    let (copies, made) = (demo.number("root_copies"), demo.number("root_copies_by_port"));
    assert!(copies > 0 && made * 10 >= copies * 9, "{made} of {copies}");
}

#[test]
fn nodes_that_choose_their_ports_say_what_they_took_and_every_receiver_gets_all() {
    let Some(demo) = lab_demo(&["--key", "--port", "auto"]) else { return };
    demo.is_whole(3);
    assert_eq!(demo.number("checksum_errors"), 0);
    let why = demo.json["port_why"].as_str().expect("a reason");
    assert!(why.contains("tc: "), "{why}");
    let port = demo.json["port"].as_str().expect("a kind");
    let (all, by_port) = (demo.number("forwarded"), demo.number("forwarded_by_port"));
    match port {
        // The root sends single datagrams, whatever it took itself.
        "tc" => assert!(by_port * 10 >= all * 9, "{by_port} of {all}: {why}"),
        "udp" => assert_eq!(by_port, 0, "{why}"),
        other => panic!("{other}: {why}"),
    }
    let why = demo.json["root_port_why"].as_str().expect("a reason");
    assert!(why.contains("tc: "), "{why}");
    let made = demo.number("root_copies_by_port");
    assert_eq!(made > 0, demo.json["root_port"] == "tc", "{made} copies: {why}");
}

/// Starts a demo on loopback whose nodes choose their ports, without a capability that tc needs.
fn start_demo_without_net_admin(scratch: &Scratch) -> Child {
    let dir = scratch.path("run").display().to_string();
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-net_admin", "--inh-caps=-all"]);
    command.args([env!("CARGO_BIN_EXE_evenfall"), "demo", "--json", "--dir", &dir]);
    command.args(["--set", "run.warm_up=300ms", "--port", "auto"]).args(SMALL);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("setpriv")
}

#[test]
fn nodes_that_lack_a_right_choose_udp_and_name_the_right_and_every_receiver_gets_all() {
    if let Some(lacks) = evenfall_port::PortKind::Tc.lacks() {
        println!("skipped: ports of kind tc: {lacks}");
        return;
    }
    if !is_root() {
        println!("skipped: only root can take a capability from a process");
        return;
    }
    if !Command::new("setpriv").arg("--version").output().is_ok_and(|said| said.status.success()) {
        println!("skipped: no setpriv");
        return;
    }
    let scratch = Scratch::new();
    let child = start_demo_without_net_admin(&scratch);
    let demo = Demo::of(scratch, child);
    demo.is_whole(3);
    for (port, why) in [("port", "port_why"), ("root_port", "root_port_why")] {
        let why = demo.json[why].as_str().expect("a reason");
        assert_eq!(demo.json[port], "udp", "{why}");
        assert!(why.ends_with("tc: needs the capability CAP_NET_ADMIN"), "{why}");
    }
    assert_eq!(demo.number("forwarded_by_port"), 0);
}

/// Clocks that differ by seconds would spread releases over seconds, however quick the machine is.
#[test]
fn planted_clocks_are_found_and_nothing_is_lost_or_spread() {
    let Some(demo) = lab_demo(&["--plant-clocks", "10s,100ppm"]) else { return };
    demo.is_whole(3);
    let error_us = demo.json["clock_error_us"].as_f64().expect("a bound");
    assert!(error_us > 0.0 && error_us < 1e6, "{}", demo.json);
    for distribution in ["window_us", "oml_us"] {
        let p50 = demo.json[distribution]["p50"].as_f64().expect("a number");
        assert!(p50.abs() < 1e6, "{distribution}: {p50}");
    }
    for name in ["root", "proxy-1", "receiver-1", "receiver-2", "receiver-3"] {
        let summary = fs::read_to_string(demo.file(&format!("summary-{name}.json")));
        let summary: Value = serde_json::from_str(&summary.expect("a summary")).expect("JSON");
        let clock = &summary["clock"];
        assert_eq!(clock["state"], "synchronised", "{name}: {clock}");
        assert!(clock["proven_ns"].is_number() && clock["assumed_ns"].is_number(), "{clock}");
    }
}

#[test]
fn second_demo_in_a_directory_is_refused_and_the_first_goes_on() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let first = start_demo(&scratch, &["--receivers", "3", "--messages", "1500", "--fit", "4s"]);
    super::common::eventually("the tree", || run.join("run.json").exists().then_some(()));
    let said = say(&["demo", "--dir", &run.display().to_string()]);
    assert!(!said.ok && said.err.contains("another demo plays there"), "{}", said.err);
    Demo::of(scratch, first).is_whole(3);
}

#[test]
fn demo_that_does_not_fit_is_refused_before_anything_is_made() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let said = say(&["demo", "--receivers", "100000", "--dir", &run.display().to_string()]);
    assert!(!said.ok && !run.exists(), "{}", said.err);
    for words in ["--receivers 100000 takes 100318 processes", "this machine carries", " fits;"] {
        assert!(said.err.contains(words), "{words} in: {}", said.err);
    }
}

/// Asserts that no message is lost in this mode, and that messages were held if the mode holds
/// them.
fn delivers_everything(mode: &str, results: &serde_json::Value) {
    let found = (&results["messages"], &results["lost"]);
    assert_eq!(found, (&1_500.into(), &0.into()), "{mode}: {results}");
    let wait = results["wait_us"]["p50"].as_f64().unwrap_or(0.0);
    assert_eq!(wait > 0.0, matches!(mode, "release" | "cloudex"), "{mode}: wait {wait} us");
}

#[test]
fn every_mode_delivers_all_of_one_feed_and_is_compared_by_one_kind_of_stamp() {
    let cloudex = demo(&small(&["--mode", "cloudex"]));
    delivers_everything("cloudex", &cloudex.is_whole(3).json);
    let content = cloudex.json["content_hash"].clone();
    drop(cloudex);
    let demo = demo(&small(&["--compare"]));
    assert!(demo.said.ok, "{}", demo.said.err);
    let runs = demo.json["runs"].as_array().expect("runs");
    let modes: Vec<&str> = runs.iter().filter_map(|run| run["mode"].as_str()).collect();
    assert_eq!(modes, ["unicast", "tree", "hedge", "release"]);
    for run in runs {
        let results = &run["results"];
        let mode = run["mode"].as_str().expect("a mode");
        delivers_everything(mode, results);
        for receiver in 1..=3 {
            let summary = demo.read(&format!("{mode}/summary-receiver-{receiver}.json"));
            assert_eq!(summary["content_hash"], content, "{mode}: one seed, one feed");
        }
        assert!(results["window_us"]["p50"].as_f64().expect("a window") > 0.0, "{run}");
        let share = run["p_f_of_allowance"].as_f64().expect("a share");
        assert!((0.0..=1.0).contains(&share), "{run}");
        // Without holding, the program hands a message on as soon as it takes it, so the two stamps
        // are close.
        if results["p_f"].is_null() {
            let (taken, handed) = (&results["arrival_window_us"], &results["window_us"]);
            let [taken, handed] = [taken, handed].map(|w| w["p50"].as_f64().expect("a window"));
            assert!(taken > 0.0 && handed > 0.0, "{run}");
        }
    }
    assert!(demo.json["allowance_us"].as_f64().expect("a hold") > 0.0);
    assert!(demo.json["verdict"].as_str().is_some_and(|words| words.contains("even")));
    if let Some(dom) = drawn_report(&demo) {
        assert!(!dom.contains("data-errors") && dom.contains("Delivery window by mode"), "{dom}");
    }
}
