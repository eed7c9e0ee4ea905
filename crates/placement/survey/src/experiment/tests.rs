use super::execute::execute;
use super::field::{Recorded, RunField, RunWatch};
use super::file::{Experiment, RunPlan};
use super::record::RunRecord;
use super::{ExperimentRun, RunsDirectory, Want};
use evenfall_placement_planner::delays::EdgeStats;
use std::time::Duration;

const FILE: &str = r#"title = "t"
repetitions = 2
[on.recorded]
owd = "x"
[evaluation]
windows = 2
[[run]]
name = "BEST"
depth = 1
fanout = 2
strategies = ["p90", "minmax"]
roots = ["any", "1"]
"#;

fn experiment(sets: &[&str]) -> Result<Experiment, String> {
    let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
    Experiment::parse(FILE, "e.toml", &sets).map_err(|error| error.to_string())
}

/// Four hosts. The last one is far from the others.
const MATRIX: &str = "0,10,20,900\n10,0,30,900\n20,30,0,900\n900,900,900,0\n";

fn field() -> Recorded {
    let text: String = MATRIX.replace(',', " ");
    Recorded::new(
        evenfall_placement_planner::delays::DelayMatrix::parse(&text).expect("a matrix").delays,
    )
}

#[test]
fn a_mistake_names_line_key_and_what_is_allowed() {
    for (from, to, words) in [
        ("depth = 1", "depth = 0", &["line 9", "must be 1 to 16"][..]),
        ("\"p90\", ", "\"p95\", ", &["line 11", "p95", "allowed: minmax"]),
        ("\"any\"", "\"reach x\"", &["line 12", "reach x", "\"reach N\""]),
        ("\"any\"", "\"reach 2\"", &["line 7", "minmax takes"]),
        ("windows", "window", &["line 6", "window", "windows"]),
        ("recorded]\nowd", "recordet]\nowd", &["line 3", "recordet", "simulated"]),
        ("name = \"BEST\"", "name = \"a/b\"", &["line 8", "a/b"]),
        ("[\"p90\", \"minmax\"]", "[]", &["line 7", "one at least"]),
        ("title = \"t\"", "", &["title"]),
    ] {
        assert!(FILE.contains(from));
        let text = FILE.replace(from, to);
        let said = Experiment::parse(&text, "e.toml", &[]).expect_err(to).to_string();
        for word in words {
            assert!(said.starts_with("e.toml") && said.contains(word), "{to}: {said}");
        }
    }
    let said = experiment(&["repetitions=0"]).expect_err("none");
    assert!(said.contains("--set repetitions=0") && said.contains("1 to 1000"), "{said}");
}

#[test]
fn runs_are_strategies_times_roots_times_repetitions_with_paired_seeds() {
    let plans = experiment(&["seed=7"]).expect("an experiment").plans();
    let ids: Vec<&str> = plans.iter().map(|plan| plan.id.as_str()).collect();
    assert_eq!(plans.len(), 8);
    assert_eq!(ids[..2], ["BEST-s1-r1-1", "BEST-s1-r2-1"]);
    assert!(plans[..4].iter().all(|plan| plan.seed == 7));
    assert!(plans[4..].iter().all(|plan| plan.seed == 8 && plan.repetition == 2));
}

fn run(directory: &RunsDirectory, sets: &[&str], force: bool) -> Result<(usize, usize), String> {
    let experiment = experiment(sets)?;
    directory.describe(&experiment).map_err(|error| error.to_string())?;
    let outcome = execute(&experiment, directory, &mut field(), force, &mut |_| {});
    outcome.map(|outcome| (outcome.kept, outcome.done)).map_err(|error| error.to_string())
}

#[test]
fn complete_runs_are_kept_and_half_runs_are_run_again() {
    let scratch = tempfile::tempdir().expect("a directory");
    let directory = RunsDirectory::create(scratch.path()).expect("a directory");
    assert_eq!(run(&directory, &[], false), Ok((0, 8)));
    assert_eq!(run(&directory, &[], false), Ok((8, 0)));
    let one = scratch.path().join("runs/BEST-s1-r1-1.json");
    let text = std::fs::read_to_string(&one).expect("a run");
    std::fs::remove_file(&one).expect("a file");
    std::fs::write(one.with_extension("json.part"), &text[..text.len() / 2]).expect("half a run");
    assert_eq!(run(&directory, &[], false), Ok((7, 1)));
    let again = std::fs::read_to_string(&one).expect("a run");
    let of = |text: &str| serde_json::from_str::<RunRecord>(text).expect("a record");
    assert_eq!((of(&again).tree, of(&again).statistics), (of(&text).tree, of(&text).statistics));
    assert_eq!(run(&directory, &[], true), Ok((0, 8)));
    let said = run(&directory, &["seed=2"], false).expect_err("others");
    assert!(said.contains("other settings") && said.contains("--force"), "{said}");
}

#[test]
fn a_record_has_stages_tree_statistics_and_timers() {
    #[derive(Default)]
    struct Kept(Vec<RunRecord>);
    impl RunWatch for Kept {
        fn over(&mut self, record: RunRecord) -> bool {
            self.0.push(record);
            true
        }
    }
    let mut kept = Kept::default();
    let plans: Vec<RunPlan> = experiment(&[]).expect("an experiment").plans();
    field().carry_out(plans, &mut kept).expect("runs");
    let rooted = &kept.0[1];
    assert_eq!((rooted.tree[0].as_str(), rooted.tree.len()), ("1", 3));
    let stage = &rooted.stages[0];
    assert_eq!((stage.parent.as_deref(), stage.candidates.len()), (Some("1"), 3));
    let mut chosen = stage.chosen.clone();
    chosen.sort();
    assert_eq!(chosen, ["2", "3"]);
    let statistics = rooted.statistics.as_ref().expect("statistics");
    assert_eq!((statistics.worst_leaf.as_str(), statistics.windows.len()), ("3", 2));
    assert_eq!(statistics.worst().expect("a leaf").figures.p90_us, 20.0);
    let planned = &kept.0[3];
    assert!(planned.stages[0].parent.is_none() && planned.bound_us.is_some());
}

/// A host that dies in the evaluation was measured before and looked best. The next plan must leave
/// it out.
#[test]
fn host_that_dies_after_all_pairs_were_measured_is_not_in_the_next_tree() {
    for strategy in ["minmax", "greedy", "lemondrop"] {
        let text = FILE.replace("\"p90\", \"minmax\"", &format!("{strategy:?}"));
        let experiment = Experiment::parse(&text, "e.toml", &[]).expect("an experiment");
        let plan = experiment.plans().remove(0);
        let names: Vec<String> = (0..14).map(|host| host.to_string()).collect();
        let mut course = ExperimentRun::new(RunPlan { depth: 2, ..plan }, names, Vec::new());
        let Want::AllToAll(hosts) = course.want() else { panic!("all pairs first") };
        let us = |host: usize| 10.0 + 5.0 * host as f64;
        let to = |from: usize| {
            let edge = move |&to: &usize| (from, to, EdgeStats::constant(us(from) + us(to)));
            hosts.iter().filter(move |to| **to != from).map(edge)
        };
        let pairs: Vec<_> = hosts.iter().flat_map(|from| to(*from)).collect();
        course.take_matrix(&pairs, &[], false, Duration::ZERO, 0);
        let Want::Tree(tree) = course.want() else { panic!("a tree") };
        let dead = [tree.hosts()[1], tree.hosts()[6]];
        let failed = dead.map(|host| (host, "gone".to_owned()));
        course.take_tree(Vec::new(), &failed, Duration::ZERO, 0);
        let Want::Tree(tree) = course.want() else { panic!("another tree") };
        assert!(!tree.hosts().iter().any(|host| dead.contains(host)), "{strategy}: {tree:?}");
    }
}

#[test]
fn run_that_lacks_a_field_is_over_with_an_error_and_the_others_go_on() {
    let mut list = "parent,child,p25_us,p50_us,p75_us,p90_us,p99_us\n".to_owned();
    for (from, row) in MATRIX.lines().enumerate() {
        for (to, us) in row.split(',').enumerate().filter(|(to, _)| *to != from) {
            list += &format!("{from},{to},{us},{us},{us},{us},{us}\n");
        }
    }
    let delays =
        evenfall_placement_planner::delays::DelayMatrix::parse(&list).expect("a list").delays;
    let mut plans = experiment(&[]).expect("an experiment").plans();
    let lacking = Experiment::parse(&FILE.replace("\"p90\"", "\"stddev\""), "e.toml", &[]);
    let mut lacking = lacking.expect("an experiment").plans();
    lacking.truncate(1);
    let count = plans.len() + 1;
    lacking.append(&mut plans);
    struct Seen(Vec<RunRecord>);
    impl RunWatch for Seen {
        fn over(&mut self, record: RunRecord) -> bool {
            self.0.push(record);
            true
        }
    }
    let mut seen = Seen(Vec::new());
    Recorded::new(delays)
        .carry_out(lacking, &mut seen)
        .expect("nothing keeps the others from going on");
    assert_eq!(seen.0.len(), count);
    let error = seen.0[0].error.as_deref().expect("it lacks a field");
    assert!(error.contains("which the file does not have"), "{error}");
    let failed: Vec<_> = seen.0[1..].iter().filter_map(|record| record.error.as_ref()).collect();
    assert_eq!(failed, Vec::<&String>::new());
}
