//! Processes that are killed and paused while the feed runs, and a demo that is interrupted.

use std::time::Duration;

use super::common::{Demo, Scratch, demo, is_root, processes_in, say, signal, start_demo};

/// Four receivers below two proxies.
const FEED: [&str; 6] = ["--receivers", "4", "--fanout", "2", "--messages", "4000"];

fn hurt(fault: &str, more: &[&str]) -> Demo {
    // Long enough that who was paused for two seconds is back before the end.
    demo(&[&FEED[..], &["--fault", fault, "--fit", "4s"], more].concat())
}

#[test]
fn killed_proxy_costs_no_message() {
    for spares in ["0", "1"] {
        let demo = hurt("kill:proxy-1@.5", &["--spares", spares]);
        demo.is_whole(4);
        let events = demo.events_of("proxy-1");
        assert!(events.contains(&"fault".into()) && events.contains(&"evict".into()), "{events:?}");
        assert_eq!(demo.number("receivers"), 4, "a proxy is no receiver");
    }
}

#[test]
fn paused_proxy_receiver_or_root_costs_no_message() {
    for name in ["proxy-1", "recv-1", "root"] {
        let fault = format!("pause:{name}@.3+2");
        let demo = hurt(&fault, &[]);
        demo.is_whole(4);
        let events = demo.events_of(name);
        assert!(events.contains(&"fault".into()), "{name}: {events:?}");
    }
}

#[test]
fn killed_receiver_is_noticed_and_the_others_are_not_affected() {
    let demo = hurt("kill:recv-2@.5", &[]);
    demo.is_whole(3);
    assert!(demo.events_of("recv-2").contains(&"evict".into()));
    assert!(demo.json["warnings"].to_string().contains("recv-2 was killed"), "{}", demo.json);
}

#[test]
fn killed_root_ends_everybody_with_a_reason_and_a_report() {
    let demo = hurt("kill:root@.5", &[]);
    assert!(!demo.said.ok);
    let err = &demo.said.err;
    assert!(err.contains("the root has been silent for 5s"), "{err}");
    for name in ["proxy-1", "proxy-2", "recv-1", "recv-2", "recv-3", "recv-4"] {
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
    std::thread::sleep(Duration::from_millis(1_500));
    signal(child.id(), "INT");
    let demo = Demo::of(scratch, child);
    demo.is_whole(4);
    assert!(demo.number("unsent") > 0);
    assert_eq!(demo.json["stopped"], true);
    assert!(demo.file("report.html").exists());
    assert_eq!(processes_in(&run), 0, "orphans");
}

/// Median hold of messages that were sent from one time to another, seconds from the first one, and
/// how many of them were late, by the fairness log.
fn holds_and_late(demo: &Demo) -> impl Fn(f64, f64) -> (f64, usize) + use<> {
    let (csv, run) = (demo.file("fair.csv"), demo.file(""));
    let (csv, run) = (csv.display().to_string(), run.display().to_string());
    let said = say(&["report", &run, "--csv", &csv, "--json"]);
    assert!(said.ok, "{}", said.err);
    let text = std::fs::read_to_string(csv).expect("the fairness log");
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let column = |name| names.iter().position(|n| *n == name).expect("a column");
    let (sent, deadline, late) = (column("sent_ns"), column("deadline_ns"), column("late"));
    let number = |line: &str, column| -> u64 {
        line.split(',').nth(column).and_then(|n| n.parse().ok()).expect("a number")
    };
    let lines: Vec<&str> = lines.collect();
    let first = number(lines[0], sent);
    let rows: Vec<(f64, f64, u64)> = lines
        .iter()
        .map(|line| {
            let (sent, deadline) = (number(line, sent), number(line, deadline));
            let ms = deadline.saturating_sub(sent) as f64 / 1e6;
            ((sent - first) as f64 / 1e9, ms, number(line, late))
        })
        .collect();
    move |from, to| {
        let within = rows.iter().filter(|(at, ..)| (from..to).contains(at));
        let mut holds: Vec<f64> = within.clone().map(|(_, ms, _)| *ms).collect();
        holds.sort_by(f64::total_cmp);
        let late = within.filter(|(.., late)| *late > 0).count();
        (holds[holds.len() / 2], late)
    }
}

#[test]
fn proxy_that_turns_slow_is_replaced_and_the_deadline_comes_down_again() {
    // Ten hosts: the root, three proxies and two spares, four receivers. Without hedging, so that a
    // slow proxy cannot hide behind its siblings; with a window of a second, so that the deadline
    // comes down within a test.
    let feed = ["--receivers", "4", "--fanout", "3", "--hedging", "0", "--spares", "2"];
    let pace = ["--messages", "9000", "--fit", "9s", "--fault", "slow:proxy-2@2+20ms"];
    let window = ["--set", "multicast.deadline.window=1s"];
    let hosts: &[&str] = if is_root() { &["--lab"] } else { &[] };
    let demo = demo(&[&feed[..], &pace, &window, hosts].concat());
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
    assert!(said("proxy-2 was slowed by 20ms"), "{info}");
    assert!(said("proxy-2 is replaced by proxy-"), "{info}");
    let hold_and_late = holds_and_late(&demo);
    // Two delays of 20 ms bound what a deadline by way of the straggler can be.
    let (slow, _) = hold_and_late(2.5, 3.0);
    let (after, _) = hold_and_late(8.0, 10.0);
    assert!(slow > 40.0 && after < 20.0, "{slow} ms, then {after} ms: {info}");
}
