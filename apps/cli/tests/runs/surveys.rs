//! Live plans over real agents. Loopback addresses stand for hosts, and in one test namespaces do.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::Child;

use serde_json::Value;

use super::common::{Said, Scratch, evenfall, eventually, finish, is_root, signal, write_key};

/// Agents in one settings file, with injected delays.
struct Pool {
    scratch: Scratch,
    agents: Vec<SocketAddr>,
    running: Vec<Child>,
}

impl Pool {
    /// Hosts `slow` are 120 ms further away than the others, both ways. A busy machine keeps a
    /// process from its core for up to 100 ms, and that wait must not look like distance.
    fn new(hosts: usize, slow: &[usize], keyed: bool) -> Self {
        let scratch = Scratch::beside();
        let agents: Vec<SocketAddr> =
            (0..hosts).map(|host| scratch.address(host as u8 + 20)).collect();
        let mut text = format!(
            "[run]\nclock = \"same-host\"\n{}[inject]\nfile = \"delays\"\n",
            if keyed { "key_file = \"shared.key\"\n" } else { "" }
        );
        let mut delays = String::from("* * 300 100\n");
        for (host, address) in agents.iter().enumerate() {
            let _ = write!(
                text,
                "[[node]]\nname = \"h{host}\"\nid = {host}\nrole = \"agent\"\n\
                 address = \"{address}\"\n"
            );
            if slow.contains(&host) {
                let _ = write!(delays, "{address} * 120000\n* {address} 120000\n");
            }
        }
        fs::write(scratch.path("e.toml"), text).expect("settings");
        fs::write(scratch.path("delays"), delays).expect("delays");
        write_key(&scratch.path("shared.key"));
        Self { scratch, agents, running: Vec::new() }
    }

    fn config(&self) -> String {
        self.scratch.path("e.toml").display().to_string()
    }

    fn start(&mut self, hosts: impl Iterator<Item = usize>) {
        for host in hosts {
            let (name, config) = (format!("h{host}"), self.config());
            let args = ["run", "agent", "--name", &name, "--config", &config];
            self.running.push(evenfall(&args).spawn().expect("the program"));
            eventually("an agent", || TcpStream::connect(self.agents[host]).ok());
        }
    }

    /// Starts the shortest survey that the settings allow.
    fn plan(&self, more: &[&str]) -> Child {
        let config = self.config();
        let always = ["plan", "live", "--config", &config, "--json"];
        let short = ["--rate", "200", "--rounds", "1", "--roots", "2"];
        let all: Vec<&str> = always.into_iter().chain(short).chain(more.iter().copied()).collect();
        evenfall(&all).spawn().expect("the program")
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for child in &mut self.running {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn tree(said: &Said) -> (Value, Vec<String>) {
    assert!(said.ok, "{}", said.err);
    let json: Value = serde_json::from_str(&said.out).expect("one JSON object");
    let name = |name: &Value| name.as_str().expect("a name").to_owned();
    let names = json["tree"].as_array().expect("a tree").iter().map(name).collect();
    (json, names)
}

const SHORT: [&str; 2] = ["--duration", "200ms"];

#[test]
fn stragglers_are_avoided_and_a_dead_agent_is_named() {
    for keyed in [false, true] {
        let mut pool = Pool::new(7, &[2, 5], keyed);
        pool.start(0..6);
        let shape = ["--depth", "1", "--fanout", "3", "--candidates", "5"];
        let said = finish(pool.plan(&[&SHORT[..], &shape].concat()));
        let (json, names) = tree(&said);
        assert_eq!(names.len(), 4);
        let bad = ["h2", "h5", "h6"];
        assert!(!names.iter().any(|name| bad.contains(&name.as_str())), "{names:?}\n{json}");
        assert_eq!(json["failed"][0]["host"], "h6");
        let reason = json["failed"][0]["reason"].as_str().expect("a reason");
        assert!(reason.contains("does not answer"), "{reason}");
        assert_eq!(json["leaves"].as_array().expect("leaves").len(), 3);
        // The path has an injected delay of 300 us at least, less the rounding of a bucket.
        assert!(json["worst_leaf_us"].as_f64().is_some_and(|us| us > 250.0), "{json}");
        assert_eq!(json["leaves"][0]["clock_error_us"], 0.0);
    }
}

#[test]
fn all_pairs_give_a_tree_as_well() {
    let mut pool = Pool::new(5, &[1], false);
    pool.start(0..5);
    // Three receivers of five agents have room in one hop alone.
    let shape = ["--depth", "auto", "--receivers", "3"];
    let (json, names) = tree(&finish(pool.plan(&[&SHORT[..], &shape].concat())));
    assert!(!names.contains(&"h1".to_owned()), "{names:?}");
    let costs = json["shapes"].as_array().expect("shapes");
    assert!(costs.len() == 1 && (&json["depth"], &json["fanout"]) == (&1.into(), &3.into()));
    assert_eq!(json["measured"].as_array().expect("pairs").len(), 5 * 4);
}

#[test]
fn plan_of_minmax_on_some_pairs_is_written_into_the_feed_and_a_run_can_begin_with_it() {
    let mut pool = Pool::new(6, &[1], false);
    pool.start(0..6);
    let feed = pool.scratch.path("feed.toml");
    let node = |host: usize| {
        let role = ["root", "receiver"][usize::from(host > 0)];
        let ip = pool.agents[host].ip();
        format!(
            "\n[[node]] # machine {host}\nname = \"n{host}\"\nid = {host}\nrole = \"{role}\"\n\
             address = \"{ip}:0\"\n"
        )
    };
    let text = "# our feed\n[run]\nclock = \"same-host\"\n".to_owned();
    fs::write(&feed, text + &(0..6).map(node).collect::<String>()).expect("a feed");
    let path = feed.display().to_string();
    let shape = ["--depth", "2", "--fanout", "1"];
    let more = ["--method", "minmax", "--pairs", "60", "--apply", &path];
    let (json, names) = tree(&finish(pool.plan(&[&SHORT[..], &shape, &more].concat())));
    assert!(names.len() == 3 && !names.contains(&"h1".to_owned()), "{json}");
    assert!(json["planned_us"].as_f64().is_some_and(|us| us > 500.0), "{json}");
    let text = fs::read_to_string(&feed).expect("a feed");
    assert!(text.starts_with("# our feed\n") && text.contains("[[node]] # machine 3"), "{text}");
    let said = finish(evenfall(&["config", "check", &path]).spawn().expect("the program"));
    assert!(said.ok || said.err.contains("port"), "{}\n{text}", said.err);
    let settings: toml_edit::DocumentMut = text.parse().expect("TOML");
    let nodes = settings["node"].as_array_of_tables().expect("nodes");
    let place = |name: &String| {
        let node = nodes.iter().find(|node| node["name"].as_str() == Some(&name.replace('h', "n")));
        let node = node.expect("a node");
        (node["id"].as_integer(), node["role"].as_str())
    };
    let wanted = [(Some(0), Some("root")), (Some(1), Some("proxy")), (Some(2), Some("receiver"))];
    assert_eq!(names.iter().map(place).collect::<Vec<_>>(), wanted, "{text}");
    assert_eq!(settings["multicast"]["shape"]["depth"].as_integer(), Some(2));
    assert!(json["applied"].as_array().is_some_and(|changes| changes.len() > 3), "{json}");

    // The receiver's machine is given up, and the root and the proxy stay as they are.
    let given_up = names[2].replace('h', "n");
    let part = ["--rebuild", &given_up, "--avoid", &given_up, "--apply", &path];
    let (json, part) = tree(&finish(pool.plan(&[&SHORT[..], &part].concat())));
    assert!(part.len() == 2 && part[0] == names[1] && !names.contains(&part[1]), "{json}");
    let changes = json["applied"].to_string();
    assert!(changes.contains(&format!("node {given_up}: role receiver -> proxy")), "{changes}");
    let kept = [&names[0], &names[1]].map(|name| format!("node {}:", name.replace('h', "n")));
    assert!(kept.iter().all(|node| !changes.contains(node)), "{changes}");

    let wrong = fs::read_to_string(&feed).expect("a feed");
    let wrong = wrong.replace(&format!("{}:0", pool.agents[2].ip()), "127.0.0.99:0");
    fs::write(&feed, &wrong).expect("a feed");
    let said = finish(pool.plan(&[&SHORT[..], &shape, &more].concat()));
    assert!(!said.ok && said.err.contains("node.address"), "{}", said.err);
    assert_eq!(fs::read_to_string(&feed).expect("a feed"), wrong);
}

#[test]
fn ctrl_c_leaves_agents_idle_and_the_survey_goes_on_where_it_was() {
    let mut pool = Pool::new(4, &[], false);
    pool.start(0..4);
    let state = pool.scratch.path("state.jsonl").display().to_string();
    let shape = ["--method", "weighted", "--depth", "1", "--fanout", "2"];
    let args = [&["--duration", "700ms", "--state", &state][..], &shape].concat();
    let child = pool.plan(&args);
    let lines = || fs::read_to_string(&state).map_or(0, |text| text.lines().count());
    eventually("a first result", || (lines() > 0).then_some(()));
    signal(child.id(), "INT");
    let said = finish(child);
    assert!(!said.ok && said.err.contains("the agents are idle"), "{}", said.err);
    let kept = lines();
    let said = finish(pool.plan(&args));
    // No agent was busy with the earlier survey, because the plan would have waited for it.
    assert!(said.err.contains("4 of 4 agents answered"), "{}", said.err);
    let (json, _) = tree(&said);
    // Two roots, the measurements of the chosen root less the kept measurements, and the tree.
    assert_eq!(json["jobs"], 2 - kept + 1, "{kept} kept\n{}", said.err);
    let said = finish(pool.plan(&[&args[..], &["--seed", "9"]].concat()));
    assert!(!said.ok && said.err.contains("other settings"), "{}", said.err);
}

#[test]
fn an_experiment_runs_on_agents_as_well() {
    let mut pool = Pool::new(5, &[2], false);
    pool.start(0..5);
    let text = "title = \"live\"\n[on.live]\nsettings = \"e.toml\"\n[probe]\nrate = 200\n\
                duration = \"200ms\"\n[evaluation]\nwindows = 2\nduration = \"200ms\"\n\
                [[run]]\nname = \"BEST\"\ndepth = 1\nfanout = 3\ncandidates = 4\n\
                strategies = [\"weighted\", \"minmax\"]\nroots = [\"h0\"]\n";
    let (file, dir) = (pool.scratch.path("experiment.toml"), pool.scratch.path("out"));
    fs::write(&file, text).expect("an experiment");
    let (file, dir_text) = (file.display().to_string(), dir.display().to_string());
    let args = ["plan", "run", &file, "--dir", &dir_text, "--json"];
    let said = finish(evenfall(&args).spawn().expect("the program"));
    assert!(said.ok && said.out.contains("\"done\":2"), "{}", said.err);
    for run in ["BEST-s1-1", "BEST-s2-1"] {
        let path = dir.join("runs").join(format!("{run}.json"));
        let text = fs::read_to_string(path).expect("a run");
        let record: Value = serde_json::from_str(&text).expect("JSON");
        let tree = record["tree"].as_array().expect("a tree");
        assert!(tree.len() == 4 && tree.iter().all(|host| host != "h2"), "{record}");
        let windows = record["statistics"]["windows"].as_array().expect("windows");
        assert!(windows.len() == 2 && windows[0]["clock_error_us"] == 0.0, "{record}");
        assert!(record["timers"]["measuring_s"].as_f64().is_some_and(|s| s > 0.2), "{record}");
    }
    let said = finish(evenfall(&["plan", "report", &dir_text]).spawn().expect("the program"));
    assert!(said.ok && dir.join("report.html").exists(), "{}", said.err);

    // An agent beside the runs gives them out, and they come home as they are.
    let http = pool.scratch.address(41);
    let text = format!(
        "[run]\nclock = \"same-host\"\n[survey]\nresults = \"out\"\n[[node]]\nname = \"m\"\n\
         id = 40\nrole = \"agent\"\naddress = \"{}\"\nhttp = \"{http}\"\n",
        pool.scratch.address(40)
    );
    let manager = pool.scratch.path("manager.toml").display().to_string();
    fs::write(&manager, text).expect("settings");
    let args = ["run", "agent", "--name", "m", "--config", &manager];
    pool.running.push(evenfall(&args).spawn().expect("the program"));
    eventually("its pages", || TcpStream::connect(http).ok());
    let home = pool.scratch.path("home");
    let home_text = home.display().to_string();
    let args = ["plan", "fetch", &home_text, "--config", &manager, "--json"];
    let said = finish(evenfall(&args).spawn().expect("the program"));
    assert!(said.ok && said.out.contains("\"missing\":0"), "{}{}", said.out, said.err);
    for name in ["experiment.json", "runs/BEST-s1-1.json", "runs/BEST-s2-1.json"] {
        let [there, here] = [&dir, &home].map(|dir| fs::read(dir.join(name)).expect("a file"));
        assert!(there == here, "{name}");
    }
}

#[test]
fn the_model_of_a_pool_is_written_and_says_of_each_number_where_it_comes_from() {
    let mut pool = Pool::new(5, &[], false);
    pool.start(0..5);
    let path = pool.scratch.path("pool.toml");
    let out = path.display().to_string();
    let shape = ["--depth", "1", "--fanout", "2", "--model-out", &out, "--model-base", "gcp"];
    let (json, _) = tree(&finish(pool.plan(&[&["--duration", "1s"][..], &shape].concat())));
    assert_eq!(json["model"].as_str(), Some(&*out), "{json}");
    assert_eq!(json["measured"].as_array().expect("pairs").len(), 5 * 4);
    let model = evenfall_model::Model::named(&out).expect("a model");
    assert_eq!(model.name, "pool");
    let (measured, taken) = (&model.path.base_us.source, &model.host.cores.source);
    assert!(measured.contains("20 pairs of 5 hosts"), "{measured}");
    assert!(taken.starts_with("not measured, as gcp: "), "{taken}");
    // 300 us are injected, and 100 us more in the mean.
    let us = |key: &str| model.number(key).expect(key);
    let median = us("path.base_us") + us("path.wait.median_us");
    assert!((290.0..30_000.0).contains(&median), "{median}");
}

#[test]
fn mistakes_are_said_with_what_to_do() {
    let three = "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3";
    let four = "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3,127.0.0.1:4";
    let mistakes: [(&[&str], &str); 7] = [
        (&["plan", "live", "--agents", three, "--model-out", "m.toml"], "survey more agents"),
        (&["plan", "live", "--agents", four, "--model-out", "no/where.toml"], "does not exist"),
        (
            &["plan", "live", "--agents", four, "--model-out", "m.toml", "--model-base", "mars"],
            "not one of aws, gcp, quiet",
        ),
        (&["plan", "live"], "no agents"),
        (&["plan", "live", "--agents", "10.0.0.1:9400"], "without a key nothing leaves loopback"),
        (&["plan", "live", "--agents", "127.0.0.1:1,127.0.0.1:1"], "named twice"),
        (&["plan", "live", "--agents", "127.0.0.1:1", "--rate", "0"], "must be 1 to"),
    ];
    for (args, words) in mistakes {
        let said = finish(evenfall(args).spawn().expect("the program"));
        assert!(!said.ok && said.err.contains(words), "{args:?}: {}", said.err);
    }
}

#[test]
fn planted_stragglers_of_a_lab_are_found_and_avoided() {
    if !is_root() {
        println!("skipped: a lab needs root");
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.path("lab").display().to_string();
    let args = ["plan", "lab", "--hosts", "10", "--slow", "3,7", "--slow-us", "20000", "--json"];
    let short = ["--rate", "200", "--duration", "200ms", "--rounds", "1", "--dir", &dir];
    let said = finish(evenfall(&[&args[..], &short].concat()).spawn().expect("the program"));
    let (json, names) = tree(&said);
    assert_eq!(names.len(), 7);
    assert!(!names.contains(&"h3".to_owned()) && !names.contains(&"h7".to_owned()), "{names:?}");
    // The slow hosts were measured, and their delays are long.
    let edges = json["measured"].as_array().expect("measured");
    let far = edges.iter().filter(|edge| edge["to"] == "h3" || edge["to"] == "h7");
    let p50: Vec<f64> = far.map(|edge| edge["p50_us"].as_f64().expect("a median")).collect();
    assert!(!p50.is_empty() && p50.iter().all(|us| *us > 15_000.0), "{p50:?}");
}
