//! Shuffles between processes: their contents, losses, a rank that dies, wrong arguments, Ctrl-C,
//! and a lab.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::common::{Said, Scratch, evenfall, eventually, finish, is_root, say, signal};

/// Four ranks with short messages.
const SMALL: [&str; 10] = [
    "bench",
    "shuffle",
    "--ranks",
    "4",
    "--mean-bytes",
    "20000",
    "--rounds",
    "3",
    "--warm-up",
    "1",
];

fn shuffle(more: &[&str]) -> Said {
    say(&[&SMALL[..], more].concat())
}

fn json(said: &Said) -> Value {
    assert!(said.ok, "{}", said.err);
    serde_json::from_str(&said.out).expect("JSON")
}

#[test]
fn ranks_shuffle_over_loopback_and_all_figures_are_there() {
    let _turn = Scratch::new();
    let all = json(&shuffle(&["--skewness", ".5", "--json"]));
    for key in ["completion_us", "throughput_gbps", "buffer_bytes_max", "cpu_us_per_message"] {
        assert!(all[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {all}");
    }
    // Loopback has no limit of its rate and therefore no bound. A paced link has a bound.
    assert!(all["bound_us"].is_null() && all["efficiency"].is_null(), "{all}");
    let paced = json(&shuffle(&["--link-mbps", "200", "--json"]));
    assert!(paced["bound_us"].as_f64() > Some(1_000.0), "{paced}");
    assert!(paced["efficiency"].as_f64() > Some(0.0), "{paced}");
    let words = shuffle(&[]);
    assert!(words.ok && words.out.contains("4 ranks, message skewness"), "{}", words.out);
}

#[test]
fn a_twentieth_of_all_datagrams_lost_and_contents_are_whole() {
    let _turn = Scratch::new();
    let all = json(&shuffle(&["--loss", ".05", "--packet-bytes", "1000", "--json"]));
    assert!(all["injected_losses"].as_u64() > Some(0), "{all}");
    assert!(all["data_again"].as_u64() > Some(0), "{all}");
}

#[test]
fn a_rank_that_dies_is_named_by_all_others() {
    let _turn = Scratch::new();
    let many = [&SMALL[..6], &["--rounds", "400", "--kill", "2@3", "--silence", "300ms"]].concat();
    let said = say(&many);
    assert!(!said.ok, "{}", said.out);
    assert!(said.err.contains("3 of 3 ranks that were left name rank 2"), "{}", said.err);
}

#[test]
fn mistakes_are_said_in_words() {
    let scratch = Scratch::beside();
    let path = scratch.path("matrix").display().to_string();
    let with = |text: &str| {
        fs::write(scratch.path("matrix"), text).expect("a file");
        let said = shuffle(&["--matrix", &path]);
        assert!(!said.ok, "{}", said.out);
        said.err
    };
    assert!(with("1 2\n3 -4\n").contains("line 2, cell 2: \"-4\" is negative"));
    assert!(with("1 2\n3\n").contains("line 2 has 1 cells, but there are 2 rows"));
    assert!(with("1 2\n3 4\n").contains("2 rows, but --ranks is 4"));
    let has_mpi = Command::new("mpirun").arg("--version").output().is_ok();
    for (args, words) in [
        (["--cross", "30"], "--lab"),
        (["--kill", "9@1"], "no such rank"),
        (["--kill", "9"], "RANK@ROUND"),
        (["--mpi", "no/such/program"], if has_mpi { "openmpi tcp" } else { "install OpenMPI" }),
    ] {
        let said = shuffle(&args);
        assert!(!said.ok && said.err.contains(words), "{args:?}: {}", said.err);
    }
}

/// Processes whose parent is this one.
fn children_of(pid: u32) -> Vec<u32> {
    let list = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(list).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

#[test]
fn ctrl_c_leaves_no_rank_behind() {
    let _turn = Scratch::new();
    let child = evenfall(&[&SMALL[..6], &["--rounds", "1000000"]].concat()).spawn();
    let child = child.expect("the program");
    let ranks = eventually("four ranks", || {
        let ranks = children_of(child.id());
        (ranks.len() == 4).then_some(ranks)
    });
    signal(child.id(), "INT");
    let said = finish(child);
    assert!(!said.ok && said.err.contains("interrupted"), "{}", said.err);
    for rank in ranks {
        assert!(!fs::exists(format!("/proc/{rank}")).unwrap_or(true), "rank {rank} still runs");
    }
}

#[test]
fn eight_ranks_in_two_racks_shuffle_beside_other_traffic() {
    let _turn = Scratch::new();
    if !is_root() {
        println!("skipped: namespaces need root");
        return;
    }
    let lab = ["bench", "shuffle", "--lab", "--rounds", "2", "--warm-up", "1", "--json"];
    let all = json(&say(&[&lab[..], &["--mean-bytes", "20000", "--cross", "30"]].concat()));
    // Token buckets and queues let a shuffle end before the bound, but not in half of its time.
    let (bound, took) = (all["bound_us"].as_f64(), all["completion_us"].as_f64());
    assert!(bound > Some(5_000.0) && took > bound.map(|bound| bound / 2.0), "{all}");
    assert_eq!(all["packet_bytes"], 1_440, "{all}");
}
