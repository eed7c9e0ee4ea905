//! What a desk asks of standing workers: answers, workers that are killed, hang or come late, and
//! wrong arguments.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::thread::spawn;

use serde_json::Value;

use super::common::{Said, Scratch, evenfall, eventually, finish, say, signal};

fn json(said: &Said) -> Value {
    assert!(said.ok, "{}", said.err);
    serde_json::from_str(&said.out).expect("JSON")
}

#[test]
fn answers_of_a_desk_equal_those_of_a_plain_program() {
    let _turn = Scratch::new();
    let local = ["--local", "3", "--records", "600", "--silence", "5s", "--last", "2s"];
    let ask = |word, more: &[&str]| json(&say(&[&["burst", word], &local[..], more].concat()));
    let all = ask("nbbo", &["--asks", "5", "--json"]);
    assert_eq!(all["answer_equals_plain"], true, "{all}");
    assert_eq!(
        (&all["workers"], &all["asks"], &all["unanswered"]),
        (&3.into(), &5.into(), &0.into())
    );
    assert_eq!(all["missing"], Value::Array(Vec::new()), "{all}");
    let symbols = all["answer"]["symbols"].as_array().expect("symbols");
    assert!(symbols.len() > 100 && symbols[0]["bid"]["price"].as_f64() > Some(0.0), "{all}");
    assert!(symbols.iter().any(|row| row["traded_through"].as_u64() > Some(0)), "{all}");
    let fills = all["answer"]["fills"].as_array().expect("fills");
    assert!(fills.iter().any(|row| row["markout_dollars"].is_f64()), "{all}");
    let all = ask("reprice", &["--asks", "5", "--worst", "3", "--json"]);
    assert_eq!(all["answer_equals_plain"], true, "{all}");
    assert_eq!(all["answer"]["positions"], 100_000, "{all}");
    assert_eq!(all["answer"]["worst"].as_array().map(Vec::len), Some(3), "{all}");
    for key in ["rows", "bytes_moved"] {
        assert!(all[key].as_u64() > Some(0), "{key}: {all}");
    }
    for key in ["p50", "p99"] {
        assert!(all["answer_us"][key].as_f64() > Some(0.0), "{key}: {all}");
    }
    let said = say(&[&["burst", "reprice"], &local[..], &["--asks", "1"]].concat());
    assert!(said.ok && said.out.contains("1000 accounts with 100000 positions"), "{}", said.out);
}

/// Asks until the note that says so, kills this worker, and returns the end.
fn ask_and_kill(word: &str, victim: usize) -> Value {
    let arguments = ["burst", word, "--local", "4", "--records", "400", "--last", "2s"];
    let rest = ["--asks", "200", "--silence", "700ms", "--json"];
    let mut command = evenfall(&[&arguments[..], &rest].concat());
    let mut child = command.env("EVENFALL_LOG", "debug").spawn().expect("the program");
    let list = format!("/proc/{0}/task/{0}/children", child.id());
    let notes = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut lines = notes.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("asking 4 workers")), "no note");
    let text = fs::read_to_string(&list).expect("children");
    let workers: Vec<u32> = text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    assert_eq!(workers.len(), 4);
    signal(workers[victim], "KILL");
    // The pipe of notes is emptied beside that of the answer, so that neither fills up.
    let rest = spawn(move || lines.collect::<Vec<_>>().join("\n"));
    let said = finish(child);
    assert!(said.ok, "{}", rest.join().expect("notes"));
    json(&said)
}

#[test]
fn a_worker_that_is_killed_is_named_and_the_others_answer() {
    let _turn = Scratch::new();
    // `make test-long` kills fifty.
    let kills = if std::env::var_os("EVENFALL_SEEDS").is_some() { 50 } else { 2 };
    for kill in 0..kills {
        let word = if kill % 2 == 0 { "nbbo" } else { "reprice" };
        let all = ask_and_kill(word, kill % 4);
        assert_eq!(all["answer_equals_plain"], true, "{word}: {all}");
        assert_eq!((&all["workers"], &all["unanswered"]), (&3.into(), &0.into()), "{word}: {all}");
        let missing = all["missing"].as_array().expect("a list");
        assert_eq!(missing.len(), 1, "{word}: {all}");
        assert_eq!(missing[0]["worker"], kill % 4, "{word}: {all}");
    }
}

/// A worker of generated rows that stands by itself, and its address.
fn stand(number: usize) -> (Child, String) {
    let mut command = evenfall(&["burst", "nbbo", "--local", "3", "--records", "200"]);
    command.env("EVENFALL_LOCAL_WORKER", number.to_string()).stderr(Stdio::null());
    let mut worker = command.spawn().expect("the program");
    let mut line = String::new();
    let mut out = BufReader::new(worker.stdout.take().expect("a pipe"));
    out.read_line(&mut line).expect("an address");
    (worker, line.trim().to_owned())
}

#[test]
fn workers_of_a_file_that_hang_or_come_late_are_named_and_come_back() {
    let scratch = Scratch::new();
    let list = scratch.path("workers");
    let mut workers: Vec<(Child, String)> = (0..3).map(stand).collect();
    let addresses: Vec<&str> = workers.iter().map(|(_, address)| address.as_str()).collect();
    fs::write(&list, addresses.join("\n")).expect("a file");
    let list = list.display().to_string();
    let ask = |asks| {
        let ask = ["burst", "nbbo", "--workers", &list, "--silence", "400ms", "--asks", asks];
        say(&[&ask[..], &["--json"]].concat())
    };
    assert_eq!(json(&ask("2"))["workers"], 3);
    signal(workers[1].0.id(), "STOP");
    let all = json(&ask("3"));
    assert_eq!(all["workers"], 2, "{all}");
    assert_eq!(all["missing"][0]["address"], workers[1].1.as_str(), "{all}");
    assert_eq!(all["missing"][0]["why"], "silent for 400 ms", "{all}");
    signal(workers[1].0.id(), "CONT");
    let back = eventually("all workers", || {
        let all = json(&ask("2"));
        (all["workers"] == 3).then_some(all)
    });
    assert_eq!(back["missing"], Value::Array(Vec::new()), "{back}");
    // Two of three are gone, and there is no answer of one.
    for (worker, _) in &mut workers[..2] {
        worker.kill().expect("a worker");
        worker.wait().expect("its end");
    }
    let said = ask("1");
    assert!(!said.ok, "{}", said.out);
    assert!(said.err.contains("1 of 3 workers answer, and 2 are needed"), "{}", said.err);
    assert!(said.err.contains(&format!("{}: silent for 400 ms", workers[0].1)), "{}", said.err);
    workers[2].0.kill().expect("a worker");
    workers[2].0.wait().expect("its end");
}

#[test]
fn mistakes_in_a_question_are_said_in_words() {
    let scratch = Scratch::beside();
    let (empty, afar, fills) = (scratch.path("empty"), scratch.path("afar"), scratch.path("fills"));
    fs::write(&empty, "\n").expect("a file");
    fs::write(&afar, "10.1.2.3:7000\n").expect("a file");
    fs::write(&fills, "time_ns,symbol,side,price,shares\n5,AAPL,hold,1.5,3\n").expect("a file");
    let text = |path: &std::path::Path| path.display().to_string();
    let (empty, afar, fills) = (text(&empty), text(&afar), text(&fills));
    let (many, twice) = (scratch.path("many"), scratch.path("twice"));
    let line = |port| format!("127.0.0.1:{port}\n");
    fs::write(&many, (7_001..7_201).map(line).collect::<String>()).expect("a file");
    fs::write(&twice, [7_001, 7_001].map(line).concat()).expect("a file");
    let (many, twice) = (text(&many), text(&twice));
    for (arguments, words) in [
        (&["burst", "sums"][..], "there are q1, q2, q3, reprice and nbbo"),
        (&["burst", "nbbo", "--local", "0"], "--local 0: between 1 and 194"),
        (&["burst", "nbbo", "--local", "195"], "--local 195: between 1 and 194 workers"),
        (&["burst", "reprice", "--workers", &many], "200 workers: a question names all of them"),
        (&["burst", "reprice", "--workers", &many], "has room for the first 194"),
        (&["burst", "reprice", "--workers", &twice], "lines 1 and 2: both are 127.0.0.1:7001"),
        (&["burst", "reprice", "--last", "0s"], "must be above 0"),
        (&["burst", "reprice", "--silence", "0s"], "must be between 5ms and 1day"),
        (&["burst", "reprice", "--silence", "2m", "--local", "1"], "must be between 5ms and 60s"),
        (&["burst", "nbbo", "--workers", "no/file"], "--workers no/file"),
        (&["burst", "nbbo", "--workers", &empty], "no address in it"),
        (&["burst", "nbbo", "--workers", &afar], "--key-file"),
        (&["burst", "nbbo", "--workers", &afar, "--local", "3"], "--local"),
        (&["burst", "nbbo", "--workers", &afar, "--fills", &fills], "line 2: side \"hold\""),
        (&["burst", "nbbo", "--local", "2", "--fills", &fills], "--fills: has an effect only with"),
    ] {
        let said = say(arguments);
        assert!(!said.ok && said.err.contains(words), "{arguments:?}: {}", said.err);
    }
}
