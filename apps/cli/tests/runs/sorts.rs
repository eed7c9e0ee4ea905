//! Sorts and queries over processes: their results, files, a rank that dies, wrong arguments.

use std::fs;

use serde_json::Value;

use super::common::{Said, Scratch, evenfall, eventually, finish, say, signal};

fn json(said: &Said) -> Value {
    assert!(said.ok, "{}", said.err);
    serde_json::from_str(&said.out).expect("JSON")
}

#[test]
fn processes_sort_and_all_figures_are_there() {
    let _turn = Scratch::new();
    let sort = ["sort", "--records", "30001", "--ranks", "3", "--keys", "few", "--verify"];
    let all = json(&say(&[&sort[..], &["--json"]].concat()));
    for key in ["seconds", "records_per_ms_per_core", "cpu_seconds"] {
        assert!(all[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {all}");
    }
    assert!(all["imbalance"].as_f64().is_some_and(|value| (1.0..1.6).contains(&value)), "{all}");
    for key in ["ordered", "same_records", "stable", "equals_plain_sort"] {
        assert_eq!(all[key], true, "{key}: {all}");
    }
    assert_eq!(
        (&all["records"], &all["ranks"], &all["levels"]),
        (&30001.into(), &3.into(), &1.into())
    );
    for phase in ["local_sort", "partition", "shuffle", "rearrange"] {
        let times = &all["phases_us"][phase];
        assert!(times["mean"].as_f64() > Some(0.0), "{phase}: {all}");
        assert!(times["max"].as_f64() >= times["mean"].as_f64(), "{phase}: {all}");
        assert!(times["max_over_min"].as_f64() >= Some(1.0), "{phase}: {all}");
    }
    assert!(all["phases_us"]["pivot_shuffle"].is_null(), "one level has none: {all}");
    let words = say(&sort);
    assert!(words.ok && words.out.contains("30001 records in order, by 3 ranks"), "{}", words.out);
}

#[test]
fn parts_of_a_file_one_behind_the_other_are_the_file_in_order() {
    let scratch = Scratch::new();
    let (file, out) = (scratch.path("records"), scratch.path("sorted"));
    let record = |n: u32| {
        let key = n.wrapping_mul(2_654_435_761) % 500;
        [format!("{key:010}").into_bytes(), format!("{n:090}").into_bytes()].concat()
    };
    let mut rows: Vec<Vec<u8>> = (0..4_000).map(record).collect();
    fs::write(&file, rows.concat()).expect("a file");
    let (file, out) = (file.display().to_string(), out.display().to_string());
    let all = json(&say(&["sort", "--in", &file, "--out", &out, "--ranks", "4", "--json"]));
    assert_eq!((&all["stable"], &all["same_records"]), (&Value::Null, &true.into()), "{all}");
    rows.sort_by(|a, b| a[..10].cmp(&b[..10]));
    let part = |rank| fs::read(format!("{out}/part-0000{rank}")).expect("a part");
    assert!((0..4).flat_map(part).eq(rows.concat()));
}

#[test]
fn queries_answer_as_a_plain_program_does() {
    let _turn = Scratch::new();
    for query in ["q1", "q2", "q3"] {
        let all = json(&say(&["burst", query, "--local", "3", "--records", "2000", "--json"]));
        assert_eq!(all["answer_equals_plain"], true, "{all}");
        assert_eq!(all["records"], 6_000, "{all}");
        for key in ["completion_us", "imbalance", "answer_rows"] {
            assert!(all[key].as_f64() > Some(0.0), "{key}: {all}");
        }
        assert!(all["phases_us"]["scan"]["max"].as_f64() > Some(0.0), "{all}");
    }
}

#[test]
fn a_rank_that_is_killed_is_named_and_no_process_is_left() {
    let _turn = Scratch::new();
    let sort = ["sort", "--records", "300000", "--ranks", "3"];
    let child = evenfall(&sort).spawn().expect("the program");
    let list = format!("/proc/{0}/task/{0}/children", child.id());
    let ranks: Vec<u32> = eventually("two more ranks", || {
        let text = fs::read_to_string(&list).unwrap_or_default();
        let ranks: Vec<u32> = text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        (ranks.len() == 2).then_some(ranks)
    });
    signal(ranks[1], "KILL");
    let said = finish(child);
    assert!(!said.ok && said.err.contains("rank 2"), "{}", said.err);
    for rank in ranks {
        eventually("the end of a rank", || {
            let state = fs::read_to_string(format!("/proc/{rank}/stat")).unwrap_or_default();
            (state.is_empty() || state.contains(") Z ")).then_some(())
        });
    }
}

#[test]
fn hosts_of_a_file_sort_together() {
    let scratch = Scratch::new();
    let (members, out) = (scratch.path("members"), scratch.path("sorted"));
    let host = scratch.host(1);
    fs::write(&members, format!("{host}:7001\n{host}:7002\n")).expect("a file");
    let (members, out) = (members.display().to_string(), out.display().to_string());
    let sort = ["sort", "--members", &members, "--records", "5000", "--out", &out, "--json"];
    let second = evenfall(&[&sort[..], &["--rank", "1"]].concat()).spawn().expect("the program");
    let all = json(&say(&[&sort[..], &["--rank", "0"]].concat()));
    assert!(finish(second).ok);
    assert_eq!((&all["ordered"], &all["records"]), (&true.into(), &5_000.into()), "{all}");
    let bytes = |rank| fs::metadata(format!("{out}/part-0000{rank}")).expect("a part").len();
    assert_eq!(bytes(0) + bytes(1), 500_000);
}

#[test]
fn mistakes_in_a_sort_are_said_in_words() {
    let scratch = Scratch::beside();
    let file = scratch.path("short");
    fs::write(&file, [7; 130]).expect("a file");
    let file = file.display().to_string();
    for (arguments, words) in [
        (&["sort", "--in", &file][..], "130 bytes, which are no whole records"),
        (&["sort", "--in", "no/such/file"], "no/such/file"),
        (&["sort"], "--records"),
        (&["sort", "--records", "5", "--ranks", "0"], "0 ranks: between 1 and 256"),
        (&["sort", "--records", "5", "--levels", "4"], "--levels"),
        (&["sort", "--records", "5", "--keys", "odd"], "there are uniform, gaussian"),
        (&["sort", "--records", "5", "--members", &file], "--rank"),
        (&["burst", "q4"], "there are q1, q2, q3, reprice and nbbo"),
    ] {
        let said = say(arguments);
        assert!(!said.ok && said.err.contains(words), "{arguments:?}: {}", said.err);
    }
}
