//! Real feed files, and files that are cut off or of another format.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use super::common::{
    Demo, Said, Scratch, data, demo, evenfall, feed_file, finish, say, start_demo,
};

const CAST: [&str; 4] = ["--receivers", "3", "--fanout", "2"];

fn replay(file: &str, more: &[&str]) {
    let Some(path) = data(file) else { return };
    let path = path.display().to_string();
    demo(&[&CAST[..], &["--feed", &path], more].concat()).is_whole(3);
}

#[test]
fn real_itch_file_reaches_everybody() {
    replay("itch/nasdaq_20191230_aapl.itch50", &["--fit", "8s"]);
}

#[test]
fn real_itch_file_of_many_symbols_reaches_everybody_by_two_trees() {
    replay("itch/nasdaq_20191230_open_multi_symbol.itch50", &["--fit", "1s", "--trees", "2"]);
}

#[test]
fn real_capture_of_two_sides_reaches_everybody() {
    replay("pcap/Cme.Mdp3.Sbe.v6.1.pcap", &["--fit", "3s"]);
}

#[test]
fn real_capture_reaches_everybody_under_a_key() {
    replay("pcap/Miax.Tom.Mach.v1.9.Example.pcap", &["--fit", "6s", "--key"]);
}

#[test]
fn real_order_book_messages_reach_everybody() {
    replay("lobster/LOBSTER_SampleFile_AAPL_2012-06-21_1.zip", &["--fit", "15s"]);
}

#[test]
fn cut_file_names_its_place_and_what_is_before_is_delivered() {
    let scratch = Scratch::new();
    let (bytes, starts) = feed_file(1_000);
    let (index, cut) = (700, starts[700] + 9);
    let path = scratch.path("cut.itch50");
    fs::write(&path, &bytes[..cut]).expect("a file");
    let path = path.display().to_string();
    let child = start_demo(&scratch, &[&CAST[..], &["--feed", &path, "--fit", "1s"]].concat());
    let demo = Demo::of(scratch, child);
    assert!(!demo.said.ok);
    let err = &demo.said.err;
    assert!(err.contains(&format!("message {index}")), "the message: {err}");
    assert!(err.contains(&starts[index].to_string()), "byte {}: {err}", starts[index]);
    assert!(err.contains("the 700 messages before this place were sent"), "{err}");
    assert_eq!((demo.number("messages"), demo.number("lost")), (700, 0));
    assert_eq!(demo.number("receivers_with_equal_content"), 3);
}

#[test]
fn foreign_or_missing_file_is_refused_before_anything_starts() {
    let scratch = Scratch::new();
    let path = scratch.path("letter.txt");
    fs::write(&path, "Dear Sir or Madam, this is no market data.\n").expect("a file");
    let path = path.display().to_string();
    let child = start_demo(&scratch, &["--feed", &path]);
    let demo = Demo::of(scratch, child);
    assert!(!demo.said.ok && demo.said.err.contains("letter.txt"), "{}", demo.said.err);
    assert!(demo.said.err.contains("byte 0"), "{}", demo.said.err);
    drop(demo);
    let missing = super::common::demo(&["--feed", "no-such-file.itch50"]);
    assert!(!missing.said.ok && missing.said.err.contains("no-such-file.itch50"));
}

#[test]
fn a_file_name_writes_no_escapes_to_the_terminal() {
    let scratch = Scratch::beside();
    let whole = scratch.path("\u{1b}[31mred\n2 messages_20191230.itch50");
    let (bytes, starts) = feed_file(100);
    fs::write(&whole, &bytes).expect("a file");
    let cut = scratch.path("\u{1b}[31mcut_20191230.itch50");
    fs::write(&cut, &bytes[..starts[70] + 9]).expect("a file");
    let missing = scratch.path("\u{1b}[31mmissing");
    for (path, is_whole) in [(whole, true), (cut, false), (missing, false)] {
        let said = say(&["feed", "info", &path.display().to_string()]);
        let all = said.out + &said.err;
        assert_eq!(said.ok, is_whole, "{all}");
        assert!(all.contains("\\u{1b}[31m") && !all.contains('\u{1b}'), "{all:?}");
        assert!(all.lines().all(|line| !line.starts_with("2 messages")), "{all}");
    }
}

/// The file is opened once, so that nothing of a pipe is lost to the look at its first bytes.
#[test]
fn a_feed_in_a_pipe_is_recognised_and_read_whole() {
    let scratch = Scratch::beside();
    let (bytes, _) = feed_file(100);
    let file = scratch.path("day_20191230.itch50");
    fs::write(&file, &bytes).expect("a file");
    let hash = |said: &Said| {
        assert!(said.ok, "{}{}", said.out, said.err);
        let found: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
        assert_eq!(found["messages"], 100, "{found}");
        found["content_hash"].clone()
    };
    let of_file = hash(&say(&["feed", "info", &file.display().to_string(), "--json"]));
    for place in ["-", "/dev/stdin"] {
        let mut info = evenfall(&["feed", "info", place, "--json"]);
        let mut info = info.stdin(Stdio::piped()).spawn().expect("the program");
        // A pipe holds all of these bytes, and its end is the end of the feed.
        info.stdin.take().expect("a pipe").write_all(&bytes).expect("its room");
        assert_eq!(hash(&finish(info)), of_file, "{place}");
    }
}
