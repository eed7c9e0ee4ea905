//! Experiment files from end to end: their runs, Ctrl-C and resumption, and the report in a
//! browser.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::common::{
    Scratch, data, dom_in_chromium, evenfall, eventually, file_url, finish, read_json, say, signal,
};

fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans").join(name);
    path.display().to_string()
}

#[test]
fn public_pairs_give_the_published_order_and_a_page() {
    let Some(pairs) = data("latency/gcp_pairs_owd_us.csv") else { return };
    let scratch = Scratch::beside();
    let (dir, file) = (scratch.path("out").display().to_string(), example("gcp-pairs.toml"));
    let owd = format!("on.recorded.owd={}", pairs.canonicalize().expect("a file").display());
    let args = ["plan", "run", &file, "--dir", &dir, "--set", &owd, "--json"];
    let said = say(&args);
    assert!(said.ok && said.out.contains("\"done\":50"), "{}", said.err);
    assert!(said.err.contains("seed 10"), "{}", said.err);
    let said = say(&args);
    assert!(said.ok && said.out.contains("\"kept\":50"), "{}", said.err);
    let said = say(&["plan", "report", &dir, "--json"]);
    assert!(said.ok, "{}", said.err);
    let page: Value = serde_json::from_str(&said.out).expect("one JSON object");
    let groups = page["groups"].as_array().expect("groups");
    let p90 = |name: &str| {
        let group = groups.iter().find(|group| group["name"] == name).expect("a group");
        group["worst"]["p90_us"].as_f64().expect("a percentile")
    };
    let (best, random, worst) = (p90("BEST weighted"), p90("RAND"), p90("WORST"));
    assert!(best < random && random < worst, "{best} {random} {worst}");
    assert!(p90("MINMAX") <= best);
    let html = scratch.path("out").join("report.html");
    let profile = scratch.path("browser");
    let Some(dom) = dom_in_chromium(&file_url(&html), &profile) else { return };
    assert!(!dom.contains("data-errors"), "{}", &dom[..dom.len().min(2_000)]);
    // Distribution, spread, three series, the table, and the leaves of five groups.
    assert!(dom.contains("data-drawn=\"11\""), "{}", &dom[..dom.len().min(300)]);
    assert!(!dom.contains("NaN") && !dom.contains("undefined"));
    draws_one_picture_alone(&html, &scratch);
}

/// The first picture without the page: its words and colours are in it.
fn draws_one_picture_alone(html: &Path, scratch: &Scratch) {
    let url = format!("{}#picture=1", file_url(html));
    let alone = dom_in_chromium(&url, &scratch.path("browser")).expect("a browser");
    let body = alone.split_once("<body>").expect("a body").1;
    assert!(body.starts_with("<svg") && body.matches("<svg").count() == 1, "{body:.300}");
    for words in ["Delay of the worst leaf", "BEST weighted", "RAND", "fill=\"rgb("] {
        assert!(body.contains(words), "{words}");
    }
    assert!(body.matches("<path").count() >= 5);
}

/// Short runs in the simulator, so many of them that the test can interrupt the experiment.
const SIMULATED: &str = r#"
title = "short"
repetitions = 400
[on.simulated]
hosts = 6
slow = [2]
slow_factor = 5.0
[probe]
rate = 200
duration = "200ms"
[evaluation]
windows = 2
duration = "200ms"
[[run]]
name = "BEST"
depth = 1
fanout = 2
candidates = 5
strategies = ["weighted"]
roots = ["h0"]
"#;

#[test]
fn ctrl_c_keeps_what_is_complete_and_the_same_command_goes_on() {
    let scratch = Scratch::beside();
    let (file, dir) = (scratch.path("e.toml"), scratch.path("out"));
    fs::write(&file, SIMULATED).expect("a file");
    let (file, dir_text) = (file.display().to_string(), dir.display().to_string());
    let args = ["plan", "run", &file, "--dir", &dir_text];
    let child = evenfall(&args).spawn().expect("the program");
    let runs = || -> Vec<PathBuf> {
        let entries = fs::read_dir(dir.join("runs"))
            .map_or(Vec::new(), |all| all.flatten().map(|entry| entry.path()).collect::<Vec<_>>());
        entries.into_iter().filter(|path| path.extension() == Some("json".as_ref())).collect()
    };
    eventually("a first run", || (!runs().is_empty()).then_some(()));
    signal(child.id(), "INT");
    let said = finish(child);
    assert!(!said.ok && said.err.contains("goes on with what is missing"), "{}", said.err);
    let kept = runs().len();
    assert!(kept < 400);
    let record = read_json(&runs()[0]);
    assert!(record["tree"].as_array().expect("a tree").iter().all(|host| host != "h2"), "{record}");
    assert!(record["timers"]["measuring_s"].as_f64().is_some_and(|s| s > 0.2), "{record}");
    let less = format!("repetitions={}", kept + 1);
    let said = say(&["plan", "run", &file, "--dir", &dir_text, "--set", &less, "--json"]);
    assert!(said.ok && said.out.contains("\"done\":1,"), "{} {}", said.out, said.err);
}

#[test]
fn mistakes_are_said_with_line_and_what_is_allowed() {
    let scratch = Scratch::beside();
    let file = scratch.path("e.toml");
    fs::write(&file, SIMULATED.replace("\"weighted\"", "\"p95\"")).expect("a file");
    let said = say(&["plan", "run", &file.display().to_string()]);
    assert!(
        !said.ok && said.err.contains("line 19") && said.err.contains("minmax"),
        "{}",
        said.err
    );
    let said = say(&["plan", "report", &scratch.path("none").display().to_string()]);
    assert!(!said.ok && said.err.contains("evenfall plan run"), "{}", said.err);
}
