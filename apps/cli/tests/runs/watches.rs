//! A run that is watched while it goes on: the live page, `top` in a pipe, `stat` as a table. One
//! run serves all assertions.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::Child;
use std::time::Duration;

use evenfall_runtime::http::{self, Method};
use serde_json::Value;

use super::common::{Scratch, dom_in_chromium, evenfall, eventually, finish, say, signal};

/// How long a page may take. A test that waits longer fails by its own limit.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looks of the watcher within which a node that was killed is red: a second, and the look that was
/// under way.
const LOOKS_MAX: u64 = 5;
/// The run.
const NODES: [(&str, &str); 4] = [
    ("root", "root"),
    ("proxy-1", "proxy"),
    ("receiver-1", "receiver"),
    ("receiver-2", "receiver"),
];

struct Watched {
    config: String,
    nodes: Vec<Child>,
    /// Pages of the nodes.
    http: Vec<SocketAddr>,
}

impl Watched {
    fn start(scratch: &Scratch) -> Self {
        let mut text = String::from(
            "[run]\nclock = \"same-host\"\nwarm_up = \"300ms\"\nlog = false\n\
             [feed]\nrate = 400.0\nsynthetic = { seed = 3, symbols = 20, messages = 400000 }\n\
             [multicast.shape]\ndepth = 2\nfanout = 2\n",
        );
        let mut http = Vec::new();
        for (id, (name, role)) in NODES.iter().enumerate() {
            let host = id as u8 + 10;
            let (udp, tcp) = (scratch.address(host), scratch.address(host));
            let _ = write!(
                text,
                "[[node]]\nname = \"{name}\"\nid = {id}\nrole = \"{role}\"\n\
                 address = \"{udp}\"\nhttp = \"{tcp}\"\n"
            );
            http.push(tcp);
        }
        std::fs::write(scratch.path("e.toml"), text).expect("settings");
        let config = scratch.path("e.toml").display().to_string();
        let run = |(name, role): &(&str, &str)| {
            evenfall(&["run", role, "--name", name, "--config", &config]).spawn().expect("a node")
        };
        let nodes = NODES.iter().map(run).collect();
        Self { config, nodes, http }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.kill().ok();
            node.wait().ok();
        }
    }
}

/// A watcher, and the address of its page.
struct Watcher {
    child: Child,
    page: SocketAddr,
}

impl Watcher {
    fn start(args: &[&str]) -> Self {
        let all = [&["watch", "--listen", "127.0.0.1:0"], args].concat();
        let mut child = evenfall(&all).spawn().expect("the program");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let page = line.trim().strip_prefix("live page: http://").expect("the address of the page");
        let page = page.trim_end_matches('/').parse().expect("an address");
        Self { child, page }
    }

    fn get(&self, path: &str) -> String {
        http::ask(self.page, Method::GET, path, PATIENCE).expect("an answer").text
    }

    fn live(&self, after: u64) -> Value {
        serde_json::from_str(&self.get(&format!("/live?after={after}"))).unwrap_or_default()
    }

    /// Waits for a picture that is as wanted.
    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || Some(self.live(0)).filter(|live| is_so(&live["picture"])))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn node<'a>(picture: &'a Value, name: &str) -> &'a Value {
    let nodes = picture["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    nodes.iter().find(|node| node["name"] == name).unwrap_or(&Value::Null)
}

fn ticks(live: &Value) -> Vec<u64> {
    let rows = live["points"].as_array().expect("points");
    rows.iter().map(|row| row[0].as_f64().expect("a tick") as u64).collect()
}

#[test]
fn a_run_is_watched_while_it_goes_on_and_a_killed_receiver_is_red_within_a_second() {
    let scratch = Scratch::new();
    let mut run = Watched::start(&scratch);
    let watcher = Watcher::start(&["--config", &run.config]);
    let is_known = |picture: &Value| {
        picture["phase"] == "feeding"
            && picture["span"]["window_us"]["p50"].is_number()
            && ["receiver-1", "receiver-2"].iter().all(|name| {
                let node = node(picture, name);
                node["p99"].is_number() && node["mood"] != "bad"
            })
    };
    let live = watcher.until("figures of both receivers", is_known);
    let picture = &live["picture"];
    assert!(picture["rate"].as_f64().expect("a rate") > 0.0, "{picture}");
    assert!(picture["hold"].as_f64().expect("a hold") > 0.0, "{picture}");
    assert!(
        picture["recent"].as_str().expect("a verdict").contains("all 2 receivers"),
        "{picture}"
    );
    assert!(picture["total"].as_str().expect("words").starts_with("Since the start"), "{picture}");
    let proxy = node(picture, "proxy-1");
    assert_eq!(node(picture, "receiver-1")["parent"], proxy["id"], "{picture}");
    let events = live["events"].as_array().expect("events");
    assert!(events.iter().any(|event| event["kind"] == "view"), "{events:?}");

    // A page that is opened twice, or comes back, has every look once.
    let all = ticks(&live);
    let more = ticks(&watcher.live(all[all.len() / 2]));
    assert_eq!(more[0], all[all.len() / 2] + 1, "from the next look on");
    assert!(more.windows(2).all(|pair| pair[1] == pair[0] + 1), "{more:?}");
    assert_eq!(ticks(&watcher.live(u64::MAX))[0], all[0], "ticks of an earlier watcher");

    prometheus_has_fairness(run.http[0]);
    stat_is_a_table(&run.config);
    top_prints_lines(run.http[0]);
    if let Some(dom) =
        dom_in_chromium(&format!("http://{}/", watcher.page), &scratch.path("browser"))
    {
        assert!(!dom.contains("data-errors"), "{dom}");
        assert!(dom.contains("all 2 receivers") && dom.contains("receiver-2"), "{dom}");
        assert!(dom.matches("class=\"tile").count() >= 6, "{dom}");
        assert!(dom.matches("<svg").count() >= 10, "six tiles and four pictures: {dom}");
        assert!(!dom.contains("NaN") && !dom.contains("undefined"), "{dom}");
    }

    let before = watcher.live(u64::MAX)["tick"].as_u64().expect("a tick");
    signal(run.nodes[3].id(), "KILL");
    run.nodes[3].wait().expect("it ends");
    let red = watcher.until("a red receiver", |p| node(p, "receiver-2")["mood"] == "bad");
    let after = red["tick"].as_u64().expect("a tick");
    assert!(after - before <= LOOKS_MAX, "{} looks", after - before);
    let is_said = |p: &Value| p["recent"].as_str().unwrap_or("").contains("receiver-2");
    watcher.until("the verdict names the receiver", is_said);
    assert_ne!(node(&watcher.live(0)["picture"], "receiver-1")["mood"], "bad");

    // A root that dies is said with the time since when.
    signal(run.nodes[0].id(), "KILL");
    run.nodes[0].wait().expect("it ends");
    let is_lost = |p: &Value| p["recent"].as_str().unwrap_or("").contains("No root that leads");
    watcher.until("the loss of the root", is_lost);
}

fn prometheus_has_fairness(root: SocketAddr) {
    let text = http::ask(root, Method::GET, "/metrics", PATIENCE).expect("metrics").text;
    for name in ["window_seconds", "release_lateness_seconds", "oml_seconds"] {
        assert!(text.contains(&format!("# TYPE evenfall_{name} histogram")), "{name}: {text}");
        let of = |suffix: &str| {
            let start = format!("evenfall_{name}_{suffix}{{");
            let line = text.lines().find(|line| line.starts_with(&start)).expect("a line");
            line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number")
        };
        assert!(of("count") > 0.0 && of("sum") > 0.0, "{name}");
        let last =
            format!("evenfall_{name}_bucket{{node=\"root\",role=\"root\",tree=\"0\",le=\"+Inf\"}}");
        assert!(text.contains(&last), "{last} in {text}");
    }
    let share = text.lines().find(|line| line.starts_with("evenfall_on_time_share{"));
    let share: f64 =
        share.and_then(|l| l.rsplit(' ').next()).expect("P(F)").parse().expect("a share");
    assert!((0.0..=1.0).contains(&share), "{share}");
}

fn stat_is_a_table(config: &str) {
    let said = say(&["stat", "--config", config]);
    assert!(said.ok, "{}", said.err);
    assert!(said.out.contains("in the last 10 s") && said.out.contains("hold"), "{}", said.out);
    let row = said.out.lines().find(|line| line.starts_with("receiver-1 ")).expect("a row");
    assert!(row.contains("receiver") && row.contains(" us"), "{row}");
}

fn top_prints_lines(root: SocketAddr) {
    let mut child = evenfall(&["top", "--root", &root.to_string()]).spawn().expect("the program");
    let mut out = BufReader::new(child.stdout.take().expect("its output"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    assert!(line.contains("receivers") && line.contains("msg/s"), "{line}");
    assert!(!line.contains('\u{1b}'), "no colours in a pipe: {line:?}");
    // The end of the pipe ends the program.
    drop(out);
    let said = finish(child);
    assert!(said.ok, "{}", said.err);
}

#[test]
fn a_watcher_stays_on_loopback_without_a_key_and_refuses_other_sites() {
    let scratch = Scratch::beside();
    let root = scratch.address(1).to_string();
    let said = say(&["watch", "--root", &root, "--listen", "0.0.0.0:0"]);
    assert!(!said.ok && said.err.contains("run.key_file"), "{}", said.err);
    let watcher = Watcher::start(&["--root", &root]);
    watcher.until("words about the root", |p| {
        p["recent"].as_str().unwrap_or("").contains("No root answers yet")
    });
    let mut stream = std::net::TcpStream::connect(watcher.page).expect("a connection");
    let request = "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    std::io::Write::write_all(&mut stream, request.as_bytes()).expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    let pages = watcher.get("/");
    assert!(pages.contains("evenfall") && pages.contains("live?after="), "the page is served");
}
