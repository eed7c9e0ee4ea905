//! Processes that are killed and paused while the feed runs, and a demo that is interrupted.

use std::time::Duration;

use super::common::{Demo, Scratch, demo, processes_in, signal, start_demo};

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
