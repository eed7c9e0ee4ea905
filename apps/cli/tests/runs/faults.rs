//! Processes that are killed and paused while the feed runs, and a demo that is interrupted.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::common::{
    Demo, Scratch, demo, evenfall, eventually, finish, is_root, pids_in, processes_in, say, signal,
    start_demo,
};

/// Four receivers below two proxies.
const FEED: [&str; 6] = ["--receivers", "4", "--fanout", "2", "--messages", "3000"];

fn hurt(fault: &str, more: &[&str]) -> Demo {
    // Three seconds are long enough for a process that was paused for two seconds to come back
    // before the end.
    demo(&[&FEED[..], &["--fault", fault, "--fit", "3s"], more].concat())
}

fn proxy_is_killed(spares: &str) {
    let demo = hurt("kill:proxy-1@.5", &["--spares", spares]);
    demo.is_whole(4);
    let events = demo.events_of("proxy-1");
    assert!(events.contains(&"fault".into()) && events.contains(&"evict".into()), "{events:?}");
    assert_eq!(demo.number("receivers"), 4, "a proxy is no receiver");
}

#[test]
fn killed_proxy_costs_no_message() {
    proxy_is_killed("0");
}

#[test]
fn killed_proxy_with_a_spare_costs_no_message() {
    proxy_is_killed("1");
}

fn node_is_paused(name: &str) {
    let demo = hurt(&format!("pause:{name}@.3+2"), &[]);
    demo.is_whole(4);
    let events = demo.events_of(name);
    assert!(events.contains(&"fault".into()), "{name}: {events:?}");
}

#[test]
fn paused_proxy_costs_no_message() {
    node_is_paused("proxy-1");
}

#[test]
fn paused_receiver_costs_no_message() {
    node_is_paused("receiver-1");
}

/// The clocks of the root, a proxy, two receivers and the recorder step while the feed runs.
#[test]
fn steps_of_hosts_clocks_cost_no_message_and_misdate_none() {
    let scratch = Scratch::new();
    let record = scratch.path("kept").display().to_string();
    let steps = [
        "step:root@.5+10s",
        "step:proxy-1@.7-1h",
        "step:receiver-1@.9+30years",
        "step:receiver-2@1.1-10s",
        "step:receiver-3@1.3-30years",
        "step:recorder@1.5+1h",
    ];
    let steps: Vec<&str> = steps.iter().flat_map(|step| ["--fault", step]).collect();
    let more = ["--fit", "5s", "--record", &record];
    let child = start_demo(&scratch, &[&FEED[..], &steps, &more].concat());
    let demo = Demo::of(scratch, child);
    demo.is_whole(4);
    assert!(demo.said.err.contains("equal to what was sent"), "{}", demo.said.err);
    assert!(demo.events_of("recorder").contains(&"fault".into()), "{}", demo.json);
    let mut followed = Vec::new();
    for name in ["receiver-1", "receiver-2", "receiver-3", "receiver-4"] {
        let trees = &demo.read(&format!("summary-{name}.json"))["trees"];
        followed.push(trees[0]["clock_steps"].as_u64().expect("a count"));
    }
    assert_eq!(followed, [1, 1, 1, 0], "steps that were seen and not followed");
    // A step that showed would move releases by ten seconds at least.
    let held_us = demo.json["held_oml_us"]["max"].as_f64().expect("a number");
    assert!(held_us > 0.0 && held_us < 9e6, "{held_us}");
}

#[test]
fn paused_root_costs_no_message() {
    node_is_paused("root");
}

/// Harms roots of a demo with standbys, and asserts that every message arrived. On a busy machine a
/// root may also be taken for dead that only had to wait for a core, so a root may lead twice.
fn harmed_roots(fault: &str) -> Demo {
    let demo = demo(&[&FEED[..], &["--fit", "4s", "--standby", "--fault", fault]].concat());
    demo.is_whole(4);
    assert_eq!(demo.number("unsent"), 0);
    assert!(demo.json["voting"]["p50_us"].as_f64().is_some_and(|us| us > 0.0), "{}", demo.json);
    demo
}

/// Asserts that a standby took over, and that the demo says how fair the run was around it.
fn standby_led(demo: &Demo) {
    let takeover = &demo.json["takeovers"][0];
    assert!(takeover["text"].to_string().contains("standby-"), "{}", demo.json);
    for key in ["silent_ms", "p_f_before", "p_f_after"] {
        assert!(takeover[key].is_number(), "{key}: {takeover}");
    }
}

#[test]
fn killed_root_with_standbys_costs_no_message() {
    let demo = harmed_roots("kill:root@1");
    standby_led(&demo);
    let leads = |name: &&str| demo.read(&format!("summary-{name}.json"))["leads"] == true;
    assert_eq!(["standby-1", "standby-2"].iter().filter(|name| leads(name)).count(), 1);
}

#[test]
fn paused_root_with_standbys_costs_no_message_and_reads_along_afterwards() {
    let demo = harmed_roots("pause:root@.7+1.5");
    standby_led(&demo);
    let root = demo.read("summary-root.json");
    assert_eq!(root["ended"], "the stream ended");
    assert_eq!(root["content_hash"], demo.json["content_hash"]);
}

/// Asserts that the author of a demo with this many messages published all of them, whichever of
/// its processes did. Returns how many messages the last process found in the feed.
fn published_all(demo: &Demo) -> u64 {
    let author = demo.read("summary-author.json");
    let count = |key: &str| author[key].as_u64().expect("a count");
    assert_eq!(count("before") + count("messages"), demo.number("messages"), "{author}");
    assert_eq!(count("unanswered"), 0, "{author}");
    count("before")
}

#[test]
fn killed_root_whose_messages_an_author_publishes_costs_no_message() {
    let fault = ["--fit", "4s", "--standby", "--author", "--fault", "kill:root@1"];
    let demo = demo(&[&FEED[..], &fault].concat());
    demo.is_whole(4);
    assert_eq!(demo.number("unsent"), 0);
    standby_led(&demo);
    assert_eq!(published_all(&demo), 0);
}

#[test]
fn killed_author_goes_on_where_it_stopped_when_it_is_started_again() {
    let fault = ["--fit", "4s", "--author", "--fault", "kill:author@1"];
    let demo = demo(&[&FEED[..], &fault].concat());
    demo.is_whole(4);
    assert_eq!(demo.number("unsent"), 0);
    assert!(published_all(&demo) > 0, "the first process published something");
}

#[test]
fn killed_standby_costs_no_message() {
    harmed_roots("kill:standby-1@.5");
}

#[test]
fn killed_receiver_is_noticed_and_the_others_are_not_affected() {
    // The last two faults come to nobody: the process is dead, and the run is over.
    let more = ["--fault", "pause:receiver-2@1+1", "--fault", "kill:receiver-2@600"];
    let demo = hurt("kill:receiver-2@.5", &more);
    demo.is_whole(3);
    assert!(demo.events_of("receiver-2").contains(&"evict".into()));
    let warnings = demo.json["warnings"].to_string();
    for words in [
        "receiver-2 was killed",
        "receiver-2 was not paused, because it had ended before",
        "receiver-2 was not killed, because the run was over before",
    ] {
        assert!(warnings.contains(words), "{words}: {warnings}");
    }
}

#[test]
fn killed_root_ends_everybody_with_a_reason_and_a_report() {
    let demo = hurt("kill:root@.5", &["--set", "multicast.membership.root_timeout=3s"]);
    assert!(!demo.said.ok);
    let err = &demo.said.err;
    assert!(err.contains("the root has been silent for 3s"), "{err}");
    for name in ["proxy-1", "proxy-2", "receiver-1", "receiver-2", "receiver-3", "receiver-4"] {
        let ended = demo.read(&format!("summary-{name}.json"))["ended"].to_string();
        assert!(ended.contains("root has been silent"), "{name}: {ended}");
    }
    assert!(demo.file("report.html").exists());
    assert!(demo.events_of("root").contains(&"fault".into()));
    assert!(demo.number("unsent") > 0);
}

#[test]
fn interrupted_demo_delivers_what_was_sent_and_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let child = start_demo(&scratch, &[&FEED[..], &["--fit", "60s"]].concat());
    super::common::eventually("the tree", || run.join("run.json").exists().then_some(()));
    // By now some messages have been sent, and most of the feed has not.
    std::thread::sleep(Duration::from_millis(1_000));
    signal(child.id(), "INT");
    let demo = Demo::of(scratch, child);
    assert_eq!(demo.said.code, Some(130), "{}", demo.said.err);
    demo.has_what_was_sent(4);
    assert!(demo.number("unsent") > 0);
    assert_eq!(demo.json["stopped"], true);
    assert!(demo.file("report.html").exists());
    assert_eq!(processes_in(&run), 0, "orphans");
}

/// A demo of sixteen processes that wait for ever unless the demo ends them.
const PATIENT: [&str; 8] = [
    "--receivers",
    "16",
    "--fit",
    "60s",
    "--set",
    "multicast.membership.root_timeout=1h",
    "--set",
    "multicast.membership.expect_timeout=1h",
];

/// Stops a demo by a signal once `is_time` is true of its directory, and asserts that no process
/// stays behind. Returns the exit code of the demo.
fn stopped_leaves_nobody(
    name: &str,
    more: &[&str],
    is_time: impl Fn(&Path) -> bool,
) -> Option<i32> {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let child = start_demo(&scratch, &[&PATIENT[..], more].concat());
    eventually("the moment to stop", || is_time(&run).then_some(()));
    signal(child.id(), name);
    let said = finish(child);
    assert!(!said.err.contains("panicked"), "{}", said.err);
    eventually("an end of everybody", || (processes_in(&run) == 0).then_some(()));
    said.code
}

#[test]
fn demo_that_is_stopped_while_it_starts_leaves_nobody() {
    for (name, code) in [("TERM", Some(143)), ("INT", Some(130)), ("KILL", None)] {
        // The root is started first, so most processes are started after the signal.
        let ended = stopped_leaves_nobody(name, &[], |run| run.join("root.stderr").exists());
        assert_eq!(ended, code, "{name}");
    }
}

#[test]
fn demo_that_is_killed_while_it_runs_leaves_nobody_not_even_who_stands_still() {
    let stands = |run: &Path| run.join("run.json").exists();
    stopped_leaves_nobody("TERM", &[], stands);
    stopped_leaves_nobody("KILL", &[], stands);
    let pause = ["--fault", "pause:receiver-7@0+3600"];
    stopped_leaves_nobody("KILL", &pause, |run| pids_in(run).into_iter().any(stands_still));
}

/// Whether a process was stopped by a signal.
fn stands_still(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:\tT"))
}

#[test]
fn process_on_a_lifeline_ends_when_its_standard_input_does() {
    let scratch = Scratch::beside();
    let path = scratch.path("e.toml");
    let node = |id, role| {
        format!(
            "[[node]]\nname = \"{role}\"\nid = {id}\nrole = \"{role}\"\naddress = \"127.0.0.1:0\"\n"
        )
    };
    std::fs::write(&path, node(1, "root") + &node(2, "receiver")).expect("a file");
    let mut command = evenfall(&["run", "root", "--lifeline", "--config"]);
    let mut root = command.arg(&path).stdin(Stdio::piped()).spawn().expect("the program");
    let lines = BufReader::new(root.stderr.as_mut().expect("its words")).lines();
    let line = lines.map_while(Result::ok).find(|line| line.contains("waiting"));
    assert!(line.is_some(), "it waits for its receiver");
    drop(root.stdin.take());
    assert!(!finish(root).ok, "killed");
}

/// A message of the fairness log: seconds from the first message to its sending, its hold in
/// milliseconds, and the time to its last arrival in milliseconds.
type Course = (f64, f64, f64);

fn courses(demo: &Demo) -> Vec<Course> {
    let (csv, run) = (demo.file("fair.csv"), demo.file(""));
    let (csv, run) = (csv.display().to_string(), run.display().to_string());
    let said = say(&["report", &run, "--csv", &csv, "--json"]);
    assert!(said.ok, "{}", said.err);
    let text = std::fs::read_to_string(csv).expect("the fairness log");
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let columns = ["sent_ns", "deadline_ns", "last_arrival_ns"]
        .map(|name| names.iter().position(|n| *n == name).expect("a column"));
    let rows: Vec<[u64; 3]> = lines
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            columns.map(|column| cells[column].parse().expect("a number"))
        })
        .collect();
    let first = rows[0][0];
    let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
    let course =
        |[sent, due, last]: &[u64; 3]| (ms(first, *sent) / 1e3, ms(*sent, *due), ms(*sent, *last));
    rows.iter().map(course).collect()
}

/// The median of a value over the messages that were sent between two times.
fn median(all: &[Course], from: f64, to: f64, value: fn(&Course) -> f64) -> f64 {
    let within = all.iter().filter(|course| (from..to).contains(&course.0));
    let mut values: Vec<f64> = within.map(value).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn proxy_that_turns_slow_is_replaced_and_the_deadline_comes_down_again() {
    // Ten hosts: the root, three proxies and two spares, four receivers. Without hedging, so that a
    // slow proxy cannot hide behind its siblings; with a window of a second, so that the deadline
    // comes down within a test. An edge of a busy machine takes up to thirty quick hops and the
    // fault adds hundreds: nobody is replaced before the fault.
    let feed = ["--receivers", "4", "--fanout", "3", "--hedging", "0", "--spares", "2"];
    let pace = ["--messages", "10000", "--fit", "10s", "--fault", "slow:proxy-2@2+60ms"];
    let limits = [
        "multicast.deadline.window=1s",
        "multicast.deadline.hold_max=400ms",
        "multicast.replace.slow_factor=50",
    ];
    let limits = limits.map(|limit| ["--set", limit]).concat();
    let hosts: &[&str] = if is_root() { &["--lab"] } else { &[] };
    let scratch = Scratch::alone();
    let child = start_demo(&scratch, &[&feed[..], &pace, &limits, hosts].concat());
    let demo = Demo::of(scratch, child);
    if demo.said.err.contains("iproute2") || demo.said.err.contains("Operation not permitted") {
        println!("skipped: no namespaces here: {}", demo.said.err);
        return;
    }
    demo.is_whole(4);
    let info = demo.read("run.json");
    let events = info["events"].as_array().expect("events");
    let said = |text: &str| {
        let found = |event: &&serde_json::Value| event["text"].to_string().contains(text);
        events.iter().any(|event| found(&event))
    };
    assert!(said("proxy-2 was slowed by 60ms"), "{info}");
    assert!(said("proxy-2 is replaced by proxy-"), "{info}");
    // A message by way of the straggler takes at least twice 60 ms. Later messages are compared
    // with the time that messages took on this machine meanwhile.
    let all = courses(&demo);
    let slow = median(&all, 2.3, 2.6, |course| course.2);
    let after = median(&all, 7.0, 11.0, |course| course.2);
    assert!(
        slow > 120.0 && after < slow / 2.0,
        "{slow} ms to the last arrival, then {after}: {info}"
    );
    // The hold follows the slowest receiver. While the slow proxy serves receivers, the hold is at
    // least as long as the way over that proxy. After the replacement the hold is shorter than the
    // longest of that way and the slowest message that this machine's own load caused.
    let holds = (8..19).map(|half| f64::from(half) / 2.0);
    let least = holds.map(|from| median(&all, from, from + 0.5, |course| course.1));
    let least = least.fold(f64::MAX, f64::min);
    let worst = all.iter().filter(|course| course.0 >= 4.0).map(|course| course.2);
    let bound = worst.fold(slow, f64::max);
    assert!(least < bound, "{bound} ms, then the deadline stays {least} ms or more: {info}");
}
