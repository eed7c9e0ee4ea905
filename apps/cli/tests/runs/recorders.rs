//! A recorder among the hosts of a run. The recorder repairs messages that the rings have
//! forgotten, and replays to late receivers. Its death ends no other process.

use std::fmt::Write as _;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use evenfall_store_engine::{RecordSource, Store, StoreConfig};
use evenfall_store_recording::{StoreTables, TableName, Tables as _};
use serde_json::Value;

use super::common::{Said, Scratch, evenfall, eventually, finish, say, signal};

const CAST: [(&str, &str); 7] = [
    ("root", "root"),
    ("proxy-1", "proxy"),
    ("proxy-2", "proxy"),
    ("receiver-1", "receiver"),
    ("receiver-2", "receiver"),
    ("tape", "recorder"),
    ("late", "receiver"),
];

/// Messages of the feed, a thousand a second.
const MESSAGES: u64 = 6_000;

/// Rings of a quarter of a second, and sockets that hold little more.
fn stage() -> Scratch {
    stage_of(&CAST, 256)
}

fn stage_of(cast: &[(&str, &str)], ring_frames: u32) -> Scratch {
    let scratch = Scratch::new();
    // The root waits for all but those that are to come late.
    let leaves = cast
        .iter()
        .filter(|(name, role)| *name != "late" && matches!(*role, "receiver" | "recorder"));
    let leaves = leaves.count();
    let mut text = format!(
        "[run]\nclock = \"same-host\"\nwarm_up = \"300ms\"\n\
         [feed]\nrate = 1000.0\n\
         synthetic = {{ seed = 3, symbols = 20, messages = {MESSAGES} }}\n\
         [io]\nreceive_buffer_bytes = 65536\n\
         [multicast.shape]\ndepth = 2\nfanout = 2\n\
         [multicast.repair]\nring_frames = {ring_frames}\nwindow_frames = {}\n\
         [multicast.membership]\nexpect_receivers = {}\n",
        ring_frames * 4,
        leaves,
    );
    for (id, (name, role)) in cast.iter().enumerate() {
        let udp = scratch.address(1);
        let more = match *role {
            "recorder" if *name == "tape" => "record = \"ticks\"\n",
            "recorder" => "record = \"ticks-too\"\n",
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
    let role = CAST.iter().find(|node| node.0 == name).map_or("recorder", |node| node.1);
    let config = scratch.path("e.toml").display().to_string();
    let args = ["run", role, "--name", name, "--config", &config, "--json"];
    evenfall(&[&args[..], more].concat()).spawn().expect("the program")
}

fn start_all_but_the_last(scratch: &Scratch) -> Vec<Child> {
    CAST[..CAST.len() - 1].iter().map(|(name, _)| start(scratch, name, &[])).collect()
}

/// Waits for a successful end, and returns the summary of the process.
fn summary(child: Child) -> Value {
    let said = finish(child);
    assert!(said.ok, "{}", said.err);
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {}", said.out))
}

/// Asserts that the receiver lost nothing and released the whole feed.
fn is_whole(summary: &Value, hash: &Value) {
    assert_eq!(summary["trees"][0]["tally"]["lost"], 0, "{summary}");
    assert_eq!((&summary["messages"], &summary["content_hash"]), (&MESSAGES.into(), hash));
}

#[test]
fn a_receiver_that_stopped_and_one_that_came_late_have_the_whole_feed_by_the_recorder() {
    let scratch = stage();
    let mut cast = start_all_but_the_last(&scratch);
    sleep(Duration::from_millis(1_500));
    signal(cast[4].id(), "STOP");
    sleep(Duration::from_millis(2_000));
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
    // The recorder sent the messages that the rings no longer had: most of two seconds for the
    // stopped receiver, and most messages from before the start of `late`.
    let sent = tape["trees"][0]["repairs_sent"].as_u64().expect("a number");
    // Frames hold several messages where the machine is busy.
    assert!(sent > MESSAGES / 8, "{tape}");
    cast.into_iter().for_each(|child| assert!(finish(child).ok));
    let dir = scratch.path("ticks").display().to_string();
    let said = say(&["store", "verify", &dir]);
    assert!(said.ok, "{}{}", said.out, said.err);
    let rows = say(&["store", "read", &dir, "feed"]);
    assert_eq!(rows.out.lines().count() as u64, 1 + MESSAGES, "{}", rows.err);
}

#[test]
fn a_recorder_answers_a_desk_about_the_last_seconds_of_its_feed() {
    let cast = [CAST[0], CAST[1], CAST[3], CAST[5]];
    let scratch = stage_of(&cast, 8_192);
    let (workers, positions) = (scratch.path("workers"), scratch.path("positions"));
    let asked_at = scratch.address(1);
    fs::write(&workers, format!("{asked_at}\n")).expect("a file");
    fs::write(&positions, "account,symbol,quantity\nfund-1,NOBODY,5\n").expect("a file");
    let (workers, positions) = (workers.display().to_string(), positions.display().to_string());
    let listen = asked_at.to_string();
    let mut others: Vec<Child> =
        cast[..3].iter().map(|(name, _)| start(&scratch, name, &[])).collect();
    let burst = ["--burst", "5s", "--burst-listen", &listen, "--positions", &positions];
    others.push(start(&scratch, "tape", &burst));
    let ask = |word| {
        let ask = ["burst", word, "--workers", &workers, "--silence", "2s", "--asks", "2"];
        say(&[&ask[..], &["--json"]].concat())
    };
    let found = eventually("quotes of the feed", || {
        let said = ask("nbbo");
        let all: Value = serde_json::from_str(&said.out).ok()?;
        let symbols = all["answer"]["symbols"].as_array()?.len();
        // A question that comes before the recorder listens has no answer.
        (symbols > 5 && all["unanswered"] == 0).then_some(all)
    });
    let quoted = |row: &Value| row["bid"]["price"].as_f64() > Some(0.0);
    assert!(found["answer"]["symbols"].as_array().is_some_and(|all| all.iter().any(quoted)));
    assert_eq!((&found["workers"], &found["unanswered"]), (&1.into(), &0.into()), "{found}");
    let said = ask("reprice");
    let all: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}", said.err));
    assert_eq!((&all["answer"]["positions"], &all["answer"]["unpriced"]), (&1.into(), &1.into()));
    let tape = summary(others.pop().expect("the recorder"));
    assert_eq!((&tape["messages"], &tape["lost"]), (&MESSAGES.into(), &0.into()), "{tape}");
    others.into_iter().for_each(|child| assert!(finish(child).ok));
}

#[test]
fn the_death_of_a_recorder_is_nobody_elses() {
    let scratch = stage();
    let mut cast = start_all_but_the_last(&scratch);
    sleep(Duration::from_millis(2_000));
    let mut tape = cast.remove(5);
    tape.kill().expect("a process");
    tape.wait().expect("a process");
    let from_here = start(&scratch, "late", &["--from", "start"]);
    let (second, first) = (summary(cast.remove(4)), summary(cast.remove(3)));
    is_whole(&first, &first["content_hash"]);
    is_whole(&second, &first["content_hash"]);
    // The late receiver has every message that a recorder has, and reports the others lost.
    let late = summary(from_here);
    let tally = &late["trees"][0]["tally"];
    let (released, lost) = (tally["released"].as_u64(), tally["lost"].as_u64());
    assert_eq!(released.zip(lost).map(|(a, b)| a + b), Some(MESSAGES), "{late}");
    assert!(lost > Some(0), "{late}");
    cast.into_iter().for_each(|child| assert!(finish(child).ok));
    // The acknowledged messages are in the recording.
    let dir = scratch.path("ticks").display().to_string();
    let said = say(&["store", "verify", &dir, "--partial"]);
    assert!(said.ok, "{}{}", said.out, said.err);
}

/// Kills the recorder during the feed and starts it again in its directory after the given time.
/// Returns its messages at the end, and its output.
fn recorder_killed_and_started_again(cast: &[(&str, &str)], ring_frames: u32) -> (u64, u64, Said) {
    let scratch = stage_of(cast, ring_frames);
    let names = cast.iter().map(|(name, _)| *name).filter(|name| *name != "late");
    let mut others: Vec<_> = names.map(|name| (name, start(&scratch, name, &[]))).collect();
    sleep(Duration::from_millis(1_500));
    let tape = others.iter().position(|(name, _)| *name == "tape").expect("the recorder");
    let (_, mut tape) = others.remove(tape);
    tape.kill().expect("a process");
    tape.wait().expect("a process");
    sleep(Duration::from_millis(1_000));
    let tape = start(&scratch, "tape", &[]);
    sleep(Duration::from_millis(1_000));
    let late = start(&scratch, "late", &["--from", "start"]);
    let said = finish(tape);
    assert!(said.ok, "{}", said.err);
    assert!(said.err.contains("goes on with frame"), "{}", said.err);
    let tape: Value = serde_json::from_str(&said.out).expect("its summary");
    let lost = tape["lost"].as_u64().expect("a number");
    let steady = others.iter().position(|(name, _)| *name == "receiver-1").expect("a receiver");
    let steady = summary(others.remove(steady).1);
    is_whole(&steady, &steady["content_hash"]);
    let late = summary(late);
    if lost == 0 {
        is_whole(&late, &steady["content_hash"]);
    }
    others.into_iter().for_each(|(_, child)| assert!(finish(child).ok));
    if lost == 0 {
        tables_are_those_of_the_messages(&scratch.path("ticks"));
    }
    let dir = scratch.path("ticks").display().to_string();
    let verified = say(&["store", "verify", &dir]);
    assert!(verified.ok, "{}{}", verified.out, verified.err);
    let rows = say(&["store", "read", &dir, "feed"]).out;
    let numbers: Vec<u64> = rows.lines().skip(1).map(number_of).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "a message twice");
    (numbers.len() as u64, lost, said)
}

/// The trades and quotes that the recorder has written are those that are made of its messages when
/// the store has none.
fn tables_are_those_of_the_messages(dir: &Path) {
    let tables = || {
        let store = Arc::new(Store::open(StoreConfig::remembered(dir).unwrap()).unwrap().store);
        let source: Arc<dyn RecordSource> = store.clone();
        let mut rows = Vec::new();
        for table in ["trades", "quotes"] {
            let opened = StoreTables::new(Arc::clone(&source));
            let opened = opened.open(&TableName::of_recording("feed", table)).expect("a table");
            let columns: Vec<usize> = (0..opened.info().schema.fields().len()).collect();
            let mut each = |batch| {
                rows.push(batch);
                ControlFlow::Continue(())
            };
            opened.scan(&opened.rows(), &columns, &mut each).expect("rows");
        }
        drop(source);
        (rows, store)
    };
    let (stored, store) = tables();
    let files = store.files().into_iter().map(|file| (file.name.clone(), file.records()));
    let derived = files.filter(|(name, _)| {
        [".trades", ".quotes", ".derived"].iter().any(|ending| name.ends_with(ending))
    });
    let derived: Vec<(String, u64)> = derived.collect();
    assert!(derived.len() == 3 && derived.iter().all(|(_, records)| *records > 10), "{derived:?}");
    for (name, _) in &derived {
        store.delete(name).expect("a file");
    }
    Arc::into_inner(store).expect("one owner").close().expect("a store");
    let (made, store) = tables();
    assert!(stored.iter().map(|batch| batch.num_rows()).sum::<usize>() > 500);
    assert_eq!(stored.len(), made.len());
    for (stored, made) in stored.iter().zip(&made) {
        assert_eq!(stored.num_rows(), made.num_rows());
        for (at, field) in stored.schema().fields().iter().enumerate() {
            // A row and not the table, which nobody could read.
            let differs = |row: &usize| {
                stored.column(at).slice(*row, 1).as_ref() != made.column(at).slice(*row, 1).as_ref()
            };
            if let Some(row) = (0..stored.num_rows()).find(differs) {
                panic!(
                    "{} of {:?} is not that of {:?}",
                    field.name(),
                    stored.slice(row, 1),
                    made.slice(row, 1)
                );
            }
        }
    }
    Arc::into_inner(store).expect("one owner").close().expect("a store");
}

/// The number of a message in its tree.
fn number_of(row: &str) -> u64 {
    row.split(',').nth(1).expect("a number").parse().expect("a number")
}

#[test]
fn a_recorder_that_was_killed_goes_on_and_has_all_of_it_out_of_the_rings() {
    let (kept, lost, _) = recorder_killed_and_started_again(&CAST, 8_192);
    assert_eq!((kept, lost), (MESSAGES, 0));
}

#[test]
fn a_recorder_that_was_killed_goes_on_and_has_all_of_it_from_another_recorder() {
    let with_another = [&CAST[..], &[("tape-too", "recorder")]].concat();
    let (kept, lost, _) = recorder_killed_and_started_again(&with_another, 256);
    assert_eq!((kept, lost), (MESSAGES, 0));
}

#[test]
fn a_recorder_that_was_killed_says_what_nobody_has_any_more() {
    let (kept, lost, said) = recorder_killed_and_started_again(&CAST, 256);
    // Messages that were recorded just before the kill may be present although they are counted as
    // lost.
    assert!(lost > 0 && kept >= MESSAGES - lost && kept < MESSAGES, "{kept} kept, {lost} lost");
    assert!(said.err.contains("lost: tree 0"), "{}", said.err);
}

#[test]
fn where_to_begin_is_checked() {
    let scratch = stage();
    let said = finish(start(&scratch, "late", &["--from", "yesterday"]));
    assert!(!said.ok && said.err.contains("must be start, live"), "{}", said.err);
}
