//! Trees that `plan tree` chooses from files of delays.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::common::{Said, Scratch, say};

/// Runs `plan tree` on this text with these options.
fn plan(text: &str, options: &str) -> Said {
    let scratch = Scratch::beside();
    let path = scratch.path("owd.csv").display().to_string();
    fs::write(&path, text).expect("a file");
    let mut args = vec!["plan", "tree", "--owd", &path];
    args.extend(options.split_whitespace());
    say(&args)
}

const MATRIX: &str = "host,a,b,c,d\na,0,5,9,7\nb,6,0,2,9\nc,8,3,0,4\nd,1,7,5,0\n";

fn json(said: &Said) -> Value {
    assert!(said.ok, "{}", said.err);
    serde_json::from_str(&said.out).expect("JSON")
}

#[test]
fn the_best_tree_of_four_hosts_is_found_and_proven() {
    let said = json(&plan(MATRIX, "--depth 3 --fanout 1 --hedging 0 --method minmax --json"));
    // b c d a: 2 + 4 + 1.
    assert_eq!(said["tree"], serde_json::json!(["b", "c", "d", "a"]));
    assert_eq!((said["worst_leaf_us"].as_f64(), said["gap"].as_f64()), (Some(7.0), Some(0.0)));
    assert_eq!(said["bound_us"], said["worst_leaf_us"]);
}

#[test]
fn every_method_says_how_far_from_the_best_it_is() {
    let scores = ["weighted", "p90", "p50", "rand", "mean"];
    for strategy in scores.into_iter().chain(["lemondrop", "greedy", "minmax"]) {
        let options =
            format!("--depth 1 --fanout 2 --hedging 0 --root b --method {strategy} --json");
        let said = json(&plan(MATRIX, &options));
        assert_eq!(said["tree"][0], "b", "{strategy}");
        assert!(said["gap"].as_f64() >= Some(0.0), "{strategy}");
        assert_eq!(said["bound_us"].as_f64(), Some(6.0), "{strategy}");
    }
}

/// Delays between five hosts, of which c is far from all others. The clock of c is ahead by this
/// much.
fn measured(ahead_us: i64) -> String {
    let mut text = "host,a,b,c,d,e\n".to_owned();
    for (from, name) in (0..5).zip(["a", "b", "c", "d", "e"]) {
        let is_c = |host: i64| i64::from(host == 2);
        let way = |to: i64| match to == from {
            true => 0,
            false => {
                let far = 30 * (is_c(from) + is_c(to));
                60 + 5 * ((3 * from + 7 * to) % 5) + far + ahead_us * (is_c(to) - is_c(from))
            }
        };
        let cells: Vec<String> = (0..5).map(|to| way(to).to_string()).collect();
        text.push_str(&format!("{name},{}\n", cells.join(",")));
    }
    text
}

#[test]
fn a_planted_clock_error_changes_the_tree_unless_clocks_are_corrected() {
    for method in ["minmax", "weighted"] {
        let options = format!("--depth 1 --fanout 2 --hedging 0 --root a --method {method} --json");
        let corrected = format!("{options} --correct-clocks");
        let tree =
            |ahead_us, options: &str| json(&plan(&measured(ahead_us), options))["tree"].clone();
        assert_ne!(tree(0, &options), tree(-50, &options), "{method}: the host seems near");
        assert_eq!(tree(0, &corrected), tree(-50, &corrected), "{method}");
        assert_eq!(tree(0, &corrected), tree(50, &corrected), "{method}");
        let said = json(&plan(&measured(50), &corrected));
        // Delays of a matrix are single numbers. The true delays are not negative.
        let (error, worst) = (said["clock_error_us"].as_f64(), said["worst_leaf_us"].as_f64());
        assert!(error >= Some(60.0) && error <= worst.map(|us| us + 30.0), "{method}: {said}");
        assert!(said["sampling_error_us"].is_null() && said["error_us"].is_null(), "{said}");
        let uncompared = json(&plan(&measured(50), &options));
        assert!(uncompared["clock_error_us"].is_null(), "{uncompared}");
    }
}

#[test]
fn lengths_of_counted_probes_say_how_wrong_they_may_be() {
    let columns = "parent,child,p25_us,p50_us,p75_us,p90_us,p99_us,recv,clock_error_us";
    let mut text = format!("{columns}\n");
    for (from, to) in [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c"), ("c", "a"), ("c", "b")] {
        text.push_str(&format!("{from},{to},50,60,70,80,100,10000,2.5\n"));
    }
    let options = "--depth 1 --fanout 2 --hedging 0 --root a";
    let said = json(&plan(&text, &format!("{options} --json")));
    assert_eq!(said["worst_leaf_us"].as_f64(), Some(80.0), "{said}");
    assert_eq!(said["clock_error_us"].as_f64(), Some(2.5), "{said}");
    // 90 of 100 +- .6, and from the 90th to the 99th percentile delays grow by 20 us: half a
    // microsecond or so.
    let sampling = said["sampling_error_us"].as_f64().expect("counted probes");
    assert!((0.2..1.0).contains(&sampling), "{said}");
    let both = said["error_us"].as_f64().expect("both parts");
    assert!((both - 2.5 - sampling).abs() < 1e-9, "{said}");
    assert!((said["gap_error"].as_f64().expect("a bound") - (2.5 + sampling) / 80.0).abs() < 1e-9);
    let said = plan(&text, options);
    assert!(said.out.contains("error of that length: clocks 2.5 us, sampling 0."), "{}", said.out);
}

#[test]
fn what_is_wrong_with_files_and_options_is_said() {
    let tree = "--depth 1 --fanout 2";
    let cases = [
        (MATRIX.replace('9', "x"), tree, &["owd.csv", "row 1 (a)", "column 3 (c)", "\"x\""][..]),
        (MATRIX.replace("8,3", "-8,3"), tree, &["row 3 (c)", "column 1 (a)", "-8"]),
        (MATRIX.replace("8,3", ",3"), tree, &["row 3 (c)", "a gap"]),
        (MATRIX.into(), "--depth 2 --fanout 2", &["7 places", "3 are missing"]),
        (MATRIX.into(), "--depth 1 --fanout 2 --root e", &["--root e", "no such host"]),
        (MATRIX.into(), "--depth 1 --fanout 2 --strategy p95", &["p95", "p25"]),
        (MATRIX.into(), "--depth 1 --fanout 2 --percentile 5", &["50 to 99.9"]),
        (MATRIX.into(), "--depth 1 --fanout 0", &["1 or more"]),
    ];
    for (text, options, wanted) in cases {
        let said = plan(&text, options);
        assert!(!said.ok, "{options}: {}", said.out);
        for word in wanted {
            assert!(said.err.contains(word), "{word} in:\n{}", said.err);
        }
    }
}

#[test]
fn the_public_measurements_give_a_plan_with_its_gap() {
    let data = std::env::var_os("EVENFALL_DATA").map(PathBuf::from);
    let data = data
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"));
    let Ok(text) = fs::read_to_string(data.join("latency/gcp_pairs_owd_us.csv")) else {
        println!("skipped: no data");
        return;
    };
    let said = plan(&text, "--depth 2 --fanout 2 --hedging 0 --strategy minmax --json");
    assert!(
        said.err.lines().count() == 1 && said.err.contains("rows were left out"),
        "{}",
        said.err
    );
    let said = json(&said);
    assert_eq!(said["tree"].as_array().map(Vec::len), Some(7));
    assert_eq!(said["gap"].as_f64(), Some(0.0));
}
