//! Participants that are processes trade on the feed of a demo. Who wins depends on the scheduler
//! of this machine, so the tests assert what holds for any winner.

use std::net::{SocketAddr, UdpSocket};

use serde_json::Value;

use super::common::{Demo, Scratch, demo, eventually, pids_in, say, start_demo};

/// Four participants below two proxies, and some hundreds of trades above the threshold.
const MARKET: [&str; 7] = ["--trading", "--receivers", "4", "--fanout", "2", "--messages", "1500"];

fn market(more: &[&'static str]) -> Vec<&'static str> {
    MARKET.iter().chain(more).chain(&["--fit", "1500ms"]).copied().collect()
}

fn numbers(of: &Value) -> Vec<f64> {
    let all = of.as_array().unwrap_or_else(|| panic!("no list: {of}"));
    all.iter().map(|one| one.as_f64().expect("a number")).collect()
}

fn count(trading: &Value, key: &str) -> u64 {
    trading[key].as_u64().unwrap_or_else(|| panic!("no {key}: {trading}"))
}

/// Asserts what is true of every market, whoever won.
fn adds_up(trading: &Value) {
    let shares = numbers(&trading["profit_share"]);
    let (filled, placed) = (numbers(&trading["filled"]), numbers(&trading["placed"]));
    let (orders, trades) = (count(trading, "orders"), count(trading, "trades"));
    assert!((shares.iter().sum::<f64>() - 100.0).abs() < 1e-6, "{trading}");
    assert!(filled.iter().zip(&placed).all(|(filled, placed)| filled <= placed), "{trading}");
    assert_eq!(filled.iter().sum::<f64>(), orders as f64, "{trading}");
    // Every trade with an order is filled, unless all of its orders were refused.
    let unfilled = count(trading, "unanswered") + count(trading, "refused_early");
    assert!(orders > 0 && orders <= trades && orders + unfilled >= trades, "{trading}");
    assert!(count(trading, "ties") <= orders, "{trading}");
}

/// Where the exchange of a demo takes orders, from the command line of a participant.
fn find_exchange(scratch: &Scratch) -> SocketAddr {
    let run = scratch.path("run");
    eventually("a participant", || {
        pids_in(&run).into_iter().find_map(|pid| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
            let mut words = line.split('\0').skip_while(|word| *word != "--trade");
            words.nth(1)?.split('/').next()?.parse().ok()
        })
    })
}

#[test]
fn all_participants_trade_in_release_and_hostile_datagrams_are_counted() {
    let scratch = Scratch::new();
    let child = start_demo(&scratch, &market(&[]));
    let exchange = find_exchange(&scratch);
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let foreign = [&b"EVO1"[..], &[0; 28]].concat();
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], &[0xff; 1_400], b"", &foreign, &foreign[..31]] {
        stranger.send_to(bytes, exchange).expect("sent");
    }
    let demo = Demo::of(scratch, child);
    demo.is_whole(4);
    let trading = &demo.json["trading"];
    adds_up(trading);
    assert!(numbers(&trading["placed"]).iter().all(|placed| *placed > 0.0), "{trading}");
    assert_eq!(trading["ended_early"], serde_json::json!([]), "{trading}");
    assert_eq!(numbers(&trading["early"]), [0.0; 4], "nobody releases early: {trading}");
    let refused = (&trading["refused"]["malformed"], &trading["refused"]["strange"]);
    assert_eq!(refused, (&4.into(), &1.into()), "{trading}");
    assert!(count(trading, "refused_datagrams") >= 5, "{trading}");
}

#[test]
fn every_mode_of_a_comparison_has_a_market() {
    let demo = demo(&market(&["--compare"]));
    assert!(demo.said.ok, "{}", demo.said.err);
    for mode in ["unicast", "tree", "hedge", "release"] {
        let trading = &demo.json["trading"][mode];
        adds_up(trading);
        assert_eq!(trading["trades"], demo.json["trading"]["release"]["trades"], "one feed");
    }
}

#[test]
fn stamps_before_the_deadline_are_refused_where_the_exchange_checks_them() {
    let demo = demo(&market(&["--opens-early", "1", "--stamps", "not-early"]));
    demo.is_whole(4);
    let trading = &demo.json["trading"];
    adds_up(trading);
    let early = numbers(&trading["early"]);
    assert!(early[0] > 0.0 && early[1..].iter().all(|early| *early == 0.0), "{trading}");
    let (filled, placed) = (numbers(&trading["filled"]), numbers(&trading["placed"]));
    assert!(filled[0] + early[0] <= placed[0], "{trading}");
}

#[test]
fn participant_with_a_wrong_clock_has_all_messages_and_its_orders_count() {
    let demo = demo(&market(&["--mode", "tree", "--clock-behind", "4=20ms"]));
    demo.is_whole(4);
    let trading = &demo.json["trading"];
    adds_up(trading);
    let share = numbers(&trading["profit_share"])[3];
    assert!(share > 80.0, "a stamp 20 ms early is almost always the earliest: {trading}");
}

#[test]
fn receiver_with_a_slow_clock_holds_no_longer_and_its_stamps_are_early() {
    let demo = demo(&market(&["--clock-behind", "1=5ms", "--stamps", "not-early"]));
    demo.is_whole(4);
    let trading = &demo.json["trading"];
    adds_up(trading);
    let early = numbers(&trading["early"]);
    assert!(early[0] > 0.0 && early[1..].iter().all(|early| *early == 0.0), "{trading}");
}

#[test]
fn participant_that_dies_is_named_and_keeps_what_it_placed() {
    let args = ["--fault", "kill:receiver-1@.5", "--fit", "2500ms"];
    let demo = demo(&[&MARKET[..], &args[..]].concat());
    assert!(demo.said.ok, "{}", demo.said.err);
    let trading = &demo.json["trading"];
    adds_up(trading);
    assert_eq!(trading["ended_early"], serde_json::json!(["receiver-1"]), "{trading}");
    let placed = numbers(&trading["placed"]);
    assert!(placed[0] < placed[1], "{trading}");
}

#[test]
fn mistakes_of_trading_are_refused_before_a_process_starts() {
    let scratch = Scratch::beside();
    let dir = scratch.path("run").display().to_string();
    let said = say(&["demo", "--dir", &dir, "--trading", "--messages", "1000001"]);
    assert!(!said.ok && said.err.contains("1 to 1000000 trades"), "{}", said.err);
    let said = say(&["run", "proxy", "--trade", "127.0.0.1:1/1/9/0"]);
    assert!(!said.ok && said.err.contains("a seat from 0 to 3"), "{}", said.err);
}
