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
    // Two parts of this sort and two parts of the earlier one would not be a sorted file.
    let fewer = say(&["sort", "--in", &file, "--out", &out, "--ranks", "2"]);
    assert!(!fewer.ok && fewer.err.contains("of an earlier sort by more than 2"), "{}", fewer.err);
}

#[test]
fn rank_of_a_list_fails_when_the_others_are_not_there() {
    let scratch = Scratch::new();
    let members = scratch.path("members");
    let lines = [1, 2, 3].map(|host| format!("{}\n", scratch.address(host)));
    fs::write(&members, lines.concat()).expect("a file");
    let members = members.display().to_string();
    let alone = ["--members", &members, "--rank", "2", "--records", "10", "--silence", "200ms"];
    for command in [&["sort"][..], &["burst", "q2"]] {
        let said = say(&[command, &alone].concat());
        assert!(!said.ok && said.err.contains("rank 2: rank "), "{command:?}: {}", said.err);
    }
}

/// Runs two ranks of a list and returns what they said. Each has options of its own.
fn two_ranks(command: &[&str], lists: [&str; 2], own: [&[&str]; 2]) -> [Said; 2] {
    let start = |rank: usize| {
        let number = rank.to_string();
        let place = ["--members", lists[rank], "--rank", &number, "--silence", "2s"];
        evenfall(&[command, &place, own[rank]].concat()).spawn().expect("the program")
    };
    [start(0), start(1)].map(finish)
}

#[test]
fn ranks_with_different_options_are_named_with_both_of_them() {
    let scratch = Scratch::new();
    let (members, file) = (scratch.path("members"), scratch.path("records"));
    let host = scratch.host(1);
    fs::write(&members, format!("{host}:7001\n{host}:7002\n")).expect("a file");
    fs::write(&file, [7; 1_000]).expect("a file");
    let (list, file) = (members.display().to_string(), file.display().to_string());
    let sort = ["sort", "--records", "500"];
    for (command, first, second, words) in [
        (&sort[..], &[][..], &["--splitters", "naive"][..], "\"--splitters naive\""),
        (&sort, &["--pivots", "2"], &[], "\"--pivots 1\" where rank 0 has \"--pivots 2\""),
        (&sort, &[], &["--levels", "2"], "\"--levels 2\""),
        (&sort, &[], &["--keys", "few"], "\"--keys few\""),
        (&sort, &["--seed", "9"], &[], "\"--seed 1\" where rank 0 has \"--seed 9\""),
        (&sort, &[], &["--verify"], "\"--verify\" where rank 0 has \"no --verify\""),
        (&["sort"], &["--records", "10"], &["--records", "12"], "\"--records 12\""),
        (&["sort"], &["--records", "10"], &["--in", &file], "\"--in\" where rank 0 has"),
        (&["burst"], &["q1"], &["q2"], "burst q2\" where rank 0 has"),
        (&["burst", "q2"], &[], &["--partition", "range"], "\"--partition range\""),
    ] {
        for said in two_ranks(command, [&list, &list], [first, second]) {
            assert!(!said.ok, "{second:?}: {}", said.out);
            assert!(said.err.contains("rank 1 has "), "{second:?}: {}", said.err);
            assert!(said.err.contains(words), "{second:?}: {}", said.err);
        }
    }
}

#[test]
fn ranks_with_different_lists_are_named_and_none_is_called_dead() {
    let scratch = Scratch::new();
    let host = scratch.host(1);
    let list = |name: &str, ports: &[u16]| {
        let (file, line) = (scratch.path(name), |port| format!("{host}:{port}\n"));
        fs::write(&file, ports.iter().map(line).collect::<String>()).expect("a file");
        file.display().to_string()
    };
    let right = list("right", &[7001, 7002]);
    let more = list("more", &[7001, 7002, 7003]);
    let other = list("other", &[7001, 7009]);
    let sort = ["sort", "--records", "500"];
    let words =
        |rank, other| format!("rank {rank} has another list of --members than rank {other}");
    // Each of the two ranks either finds the difference or is told of it.
    for said in two_ranks(&sort, [&right, &more], [&[], &[]]) {
        let is_named = said.err.contains(&words(1, 0)) || said.err.contains(&words(0, 1));
        assert!(is_named && !said.ok, "{}", said.err);
    }
    let said = two_ranks(&sort, [&right, &other], [&[], &[]]);
    let elsewhere = format!("rank 1 is silent at its address, but sends from {host}:7009");
    assert!(said[0].err.contains(&elsewhere) && !said[0].ok, "{}", said[0].err);
    assert!(said[1].err.contains(&words(0, 1)) && !said[1].ok, "{}", said[1].err);
}

#[test]
fn more_records_than_the_memory_has_room_for_are_refused_before_they_are_made() {
    for command in [
        &["sort", "--ranks", "2"][..],
        &["sort", "--ranks", "4", "--verify"],
        &["burst", "q1", "--local", "3"],
        &["burst", "nbbo", "--local", "3"],
    ] {
        let said = say(&[command, &["--records", "4200000000"]].concat());
        assert!(!said.ok, "{command:?}: {}", said.out);
        assert!(said.err.contains("--records 4200000000: needs "), "{command:?}: {}", said.err);
        assert!(said.err.contains("bytes are available"), "{command:?}: {}", said.err);
    }
}

#[test]
fn more_records_than_a_rank_can_hold_are_refused() {
    let huge = u64::MAX.to_string();
    for command in [&["sort", "--ranks", "2"][..], &["burst", "q1", "--local", "2"]] {
        let said = say(&[command, &["--records", &huge]].concat());
        assert!(!said.ok && said.err.contains("4294967296"), "{command:?}: {}", said.err);
    }
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
fn the_rows_of_an_answer_are_printed_from_the_greatest_on() {
    let _turn = Scratch::new();
    for (query, begin, counts) in [
        ("q1", "  language 0 ", " views"),
        ("q2", "  address 0 ", " edits"),
        ("q3", "  language ", " bytes"),
    ] {
        let burst = ["burst", query, "--local", "2", "--records", "3000"];
        let words = say(&burst);
        assert!(words.ok, "{}", words.err);
        let rows: Vec<&str> = words.out.lines().filter(|line| line.ends_with(counts)).collect();
        assert!(rows.len() == 10 && rows[0].starts_with(begin), "{}", words.out);
        let sum = |row: &str| row.split_whitespace().rev().nth(1)?.parse::<u64>().ok();
        assert!(rows.iter().map(|row| sum(row)).is_sorted_by(|a, b| a >= b), "{}", words.out);
        let all = json(&say(&[&burst[..], &["--json"]].concat()));
        let answer = all["answer"].as_array().expect("rows");
        assert_eq!(all["answer_rows"], answer.len(), "{all}");
        let name = counts.trim();
        let most = answer.iter().filter_map(|row| row[name].as_u64()).max();
        assert_eq!(most, sum(rows[0]), "{all}");
    }
}

/// The processes that a process has started, when they are this many.
fn children(parent: u32, count: usize) -> Vec<u32> {
    let list = format!("/proc/{parent}/task/{parent}/children");
    eventually("all processes", || {
        let text = fs::read_to_string(&list).unwrap_or_default();
        let all: Vec<u32> = text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        (all.len() == count).then_some(all)
    })
}

fn expect_ends(processes: &[u32]) {
    for process in processes {
        eventually("the end of a process", || {
            let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            (state.is_empty() || state.contains(") Z ")).then_some(())
        });
    }
}

#[test]
fn a_rank_that_is_killed_is_named_and_no_process_is_left() {
    let _turn = Scratch::new();
    let sort = ["sort", "--records", "300000", "--ranks", "3"];
    let child = evenfall(&sort).spawn().expect("the program");
    let ranks = children(child.id(), 2);
    signal(ranks[1], "KILL");
    let said = finish(child);
    assert!(!said.ok && said.err.contains("rank 2"), "{}", said.err);
    expect_ends(&ranks);
}

#[test]
fn a_signal_ends_all_processes_whatever_they_do_and_leaves_no_part() {
    let scratch = Scratch::new();
    let out = scratch.path("sorted");
    let part = |rank| out.join(format!(".part-0000{rank}.partial"));
    let directory = out.display().to_string();
    let sort = ["sort", "--records", "2000000", "--ranks", "2", "--out", &directory];
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let child = evenfall(&sort).spawn().expect("the program");
        let ranks = children(child.id(), 1);
        eventually("both parts", || (part(0).exists() && part(1).exists()).then_some(()));
        // A process that is stopped answers nobody.
        signal(ranks[0], "STOP");
        signal(child.id(), name);
        let said = finish(child);
        assert_eq!(said.code, Some(code), "{}", said.err);
        expect_ends(&ranks);
        assert_eq!(fs::read_dir(&out).expect("a directory").count(), 0);
    }
    let burst = ["burst", "reprice", "--local", "2", "--records", "2000000"];
    let child = evenfall(&burst).spawn().expect("the program");
    let workers = children(child.id(), 2);
    // The command waits for the first line of a worker, which never comes.
    workers.iter().for_each(|&worker| signal(worker, "STOP"));
    signal(child.id(), "INT");
    let said = finish(child);
    assert_eq!(said.code, Some(130), "{}", said.err);
    expect_ends(&workers);
}

#[test]
fn a_part_that_cannot_be_written_leaves_none_and_is_named() {
    let scratch = Scratch::new();
    let (file, out) = (scratch.path("file"), scratch.path("sorted"));
    fs::write(&file, "no directory").expect("a file");
    let file = file.display().to_string();
    let sort = |out: &str| say(&["sort", "--records", "5000", "--ranks", "3", "--out", out]);
    let said = sort(&file);
    assert!(!said.ok, "{}", said.out);
    assert!(said.err.contains(&format!("--out cannot make the directory {file}")), "{}", said.err);
    // Every write to this file fails as on a full disk.
    fs::create_dir(&out).expect("a directory");
    std::os::unix::fs::symlink("/dev/full", out.join(".part-00001.partial")).expect("a link");
    let said = sort(&out.display().to_string());
    assert!(!said.ok && said.err.contains("rank 1: --out cannot write "), "{}", said.err);
    assert!(said.err.contains("No space left"), "{}", said.err);
    assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    eventually("no parts", || (fs::read_dir(&out).ok()?.count() == 0).then_some(()));
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
    let (file, empty, twice) = (scratch.path("short"), scratch.path("empty"), scratch.path("two"));
    fs::write(&file, [7; 130]).expect("a file");
    fs::write(&empty, "").expect("a file");
    fs::write(&twice, "127.0.0.1:7001\n\n127.0.0.1:7002\n127.0.0.1:7001\n").expect("a file");
    let [file, empty, twice] = [file, empty, twice].map(|path| path.display().to_string());
    for (arguments, words) in [
        (&["sort", "--in", &file][..], "130 bytes, which are no whole records"),
        (&["sort", "--in", "no/such/file"], "--in cannot read no/such/file"),
        (&["sort", "--in", "/dev/zero"], "--in /dev/zero is no regular file"),
        (&["sort", "--in", "/dev"], "--in /dev is no regular file"),
        (&["sort", "--in", &empty], "is empty: there is no record to sort"),
        (&["sort", "--records", "0"], "--records"),
        (&["sort", "--in", &file, "--seed", "3"], "--seed"),
        (&["sort", "--in", &file, "--keys", "few"], "--keys"),
        (&["sort", "--records", "5", "--silence", "0s"], "must be between 5ms and 1day"),
        (
            &["sort", "--records", "5", "--members", &twice, "--rank", "1"],
            "lines 1 and 4: both are 127.0.0.1:7001",
        ),
        (&["burst", "q1", "--records", "0"], "between 1 and 4294967296"),
        (
            &["burst", "q1", "--partition", "range"],
            "--partition: has an effect only with q2 and q3",
        ),
        (&["burst", "q1", "--duplicates", "after"], "--duplicates: has an effect only with q2"),
        (&["burst", "q2", "--last", "1s"], "--last: has an effect only with reprice and nbbo"),
        (&["burst", "q2", "--workers", &twice], "--workers: has an effect only with reprice"),
        (&["burst", "nbbo", "--worst", "3"], "--worst: has an effect only with reprice"),
        (&["burst", "reprice", "--markout", "1s"], "--markout: has an effect only with nbbo"),
        (&["burst", "reprice", "--duplicates", "after"], "--duplicates: has an effect only with"),
        (
            &["burst", "reprice", "--members", &twice, "--rank", "0"],
            "--members: has an effect only",
        ),
        (&["burst", "nbbo", "--workers", &twice, "--seed", "2"], "--seed: has an effect only with"),
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
