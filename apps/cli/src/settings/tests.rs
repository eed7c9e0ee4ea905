//! Settings as people write them, and the errors for mistakes in them.

use std::time::Duration;

use evenfall_multicast_service::Settings;
use evenfall_runtime::service;
use evenfall_runtime::settings::{SettingsDocument, SettingsError};

use crate::services::{SERVICES, check_runnable};

fn two_trees() -> impl Iterator<Item = (String, String)> {
    [("EVENFALL_RUN__TREES".to_owned(), "2".to_owned())].into_iter()
}

fn parse(text: &str, sets: &[&str]) -> Result<Settings, String> {
    let sets: Vec<String> = sets.iter().map(|&s| s.to_owned()).collect();
    of(text, two_trees(), &sets)
}

fn of(
    text: &str,
    variables: impl Iterator<Item = (String, String)>,
    sets: &[String],
) -> Result<Settings, String> {
    let document = SettingsDocument::parse(text, "e.toml", variables, sets);
    let checked = document.and_then(|document| {
        service::check(SERVICES, &document)?;
        Settings::of(&document)
    });
    checked.map_err(|error| error.to_string())
}

#[test]
fn a_mistake_names_line_key_and_what_is_allowed() {
    let error = parse("[run]\n\n[multicast]\nmode = \"treee\"\n", &[]).unwrap_err();
    assert!(error.contains("line 4"), "{error}");
    assert!(error.contains("treee") && error.contains("cloudex"), "{error}");
    let error = parse("[multicast.repair]\nring_frame = 1\n", &[]).unwrap_err();
    assert!(error.contains("line 2") && error.contains("ring_frames"), "{error}");
    let error = parse("", &["multicast.deadline.target=3"]).unwrap_err();
    assert!(error.contains("0.5 .. 1.0"), "{error}");
    let error = parse("", &["multicast.mode=tree2"]).unwrap_err();
    assert!(error.starts_with("--set multicast.mode=tree2"), "{error}");
    let error = parse("", &["nonsense"]).unwrap_err();
    assert!(error.contains("key=value"), "{error}");
}

#[test]
fn environment_and_set_override_the_file() {
    let text = "[multicast.deadline]\nhold_max = \"5ms\"\nhold_initial = \"1ms\"\n";
    let sets = ["multicast.deadline.hold_max=7ms", "feed.rate=5000", "multicast.mode=tree"];
    let settings = parse(text, &sets).unwrap();
    assert_eq!(settings.multicast.deadline.hold_max, Duration::from_millis(7));
    assert_eq!((settings.course.trees, settings.feed.rate), (2, Some(5_000.0)));
    let again = Settings::parse(&settings.to_toml(), "again", std::iter::empty(), &[]).unwrap();
    assert_eq!(again, settings);
}

#[test]
fn what_is_out_of_range_is_named_by_its_line_or_by_what_set_it() {
    let node = "[[node]]\nname=\"a\"\nid=1\nrole=\"proxy\"\naddress=\"127.0.0.1:1\"\n";
    let cases = [
        ("[feed]\n\n[run]\ntrees = 100\n", "line 4: run.trees = 100: must be 1 to 64"),
        ("[io]\nreal_time = 200\n", "line 2: io.real_time = 200: must be 1 to 99"),
        ("[io]\nport = \"quick\"\n", "line 2: io.port = \"quick\": must be udp, tc or auto"),
        ("[io]\nspin = \"1h\"\n", "line 2: io.spin = 3600s: must be 0s to 100ms"),
        (
            "[feed.synthetic]\nsymbols = 0\n",
            "line 2: feed.synthetic.symbols = 0: must be 1 to 65535",
        ),
        (
            "feed.synthetic.mean_rate = 0\n",
            "line 1: feed.synthetic.mean_rate = 0: must be 1 to 1000000000",
        ),
        (
            "[multicast.shape]\nhedging = 99\n",
            "line 2: multicast.shape.hedging = 99: must be 0 to 16",
        ),
        (
            "[feed]\nrate = 9.0\nfit = \"1s\"\n",
            "line 3: feed.rate and feed.fit: each sets the pace",
        ),
        ("[feed]\nspeed = 2.0\nfit = \"1s\"\n", "line 2: feed.fit and feed.speed: each sets"),
        (&format!("{node}{node}"), "line 7: node: a (id 1) and a (id 1) share a name"),
        (&format!("{node}tree = 3\n"), "line 6: node a: tree = 3, but run.trees = 1"),
        (&format!("{node}from = \"start\"\n"), "line 6: node a: a node with role = \"proxy\" does"),
        (&node.replace("127.0.0.1", "224.0.0.1"), "line 5: node a: address = 224.0.0.1:1: this is"),
        (
            &node.replace("127.0.0.1", "255.255.255.255"),
            "line 5: node a: address = 255.255.255.255",
        ),
        // When the file leaves the key out, the error names its table.
        ("\n[multicast.deadline]\nhold_max = \"1ms\"\n", "line 2: multicast.deadline.hold_initial"),
    ];
    for (text, wanted) in cases {
        let error = of(text, std::iter::empty(), &[]).unwrap_err();
        assert!(error.starts_with("e.toml: ") && error.contains(wanted), "{wanted}: {error}");
    }
    assert!(parse("[io]\nport = \"auto\"\n", &[]).is_ok());
    let error = parse("[run]\ntrees = 1\n", &["run.trees=65"]).unwrap_err();
    assert!(error.starts_with("--set run.trees=65: run.trees = 65"), "{error}");
    assert!(
        parse("[feed]\nspeed = 1.0\nrate = 9.0\n", &[]).is_ok(),
        "the default was not asked for"
    );
}

#[test]
fn what_is_no_duration_and_no_address_is_told_what_one_looks_like() {
    let error = parse("[feed]\nfit = 50\n", &[]).unwrap_err();
    assert!(error.contains("expected a duration, such as \"50ms\""), "{error}");
    let error = parse("", &["feed.fit=50"]).unwrap_err();
    assert!(error.contains("such as \"50ms\""), "{error}");
    let error = parse("[feed]\nmold = \"here\"\n", &[]).unwrap_err();
    assert!(error.contains("such as \"10.0.0.2:9000\""), "{error}");
}

/// The error for a file that is to be run.
fn refusal(text: &str) -> String {
    let runnable =
        || check_runnable(&SettingsDocument::parse(text, "e.toml", std::iter::empty(), &[])?);
    runnable().map_or_else(|error: SettingsError| error.to_string(), |()| "ok".to_owned())
}

#[test]
fn what_cannot_run_is_refused_before_it_is_run() {
    let node = |id: u32, role: &str, address: &str| {
        format!(
            "[[node]]\nname = \"n{id}\"\nid = {id}\nrole = \"{role}\"\naddress = \"{address}\"\n"
        )
    };
    let (here, there) = ("127.0.0.1:9000", "127.0.0.1:9001");
    let root = node(1, "root", there);
    for role in ["receiver", "recorder"] {
        assert_eq!(refusal(&(root.clone() + &node(2, role, here))), "ok");
    }
    assert_eq!(refusal(&node(1, "agent", here)), "ok");
    assert!(refusal("").contains("no [[node]]: a run needs one root and at least one receiver"));
    for text in [root.clone(), root.clone() + &node(2, "proxy", here)] {
        assert!(refusal(&text).contains("no receivers"), "{text}");
    }
    // The receivers stand in another file.
    assert_eq!(refusal(&format!("multicast.membership.expect_receivers = 3\n{root}")), "ok");
    let away = root.clone() + &node(2, "receiver", "10.0.0.2:9000");
    let said = refusal(&away);
    assert!(said.contains("line 10: node n2: address = 10.0.0.2:9000"), "{said}");
    assert!(said.contains("run.key_file"), "{said}");
    let key = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(key.path(), "5".repeat(64)).expect("a key");
    let keyed = format!("run.key_file = {:?}\n", key.path().display().to_string());
    assert_eq!(refusal(&format!("{keyed}{away}")), "ok");
    let near = root.clone() + &node(2, "receiver", here);
    let said = refusal(&format!("{near}http = \"0.0.0.0:80\"\n"));
    assert!(said.contains("line 11: node n2: http = 0.0.0.0:80"), "{said}");
    let said = refusal(&format!("feed.mold = \"10.0.0.9:1\"\n{near}"));
    assert!(said.contains("line 1: feed.mold = 10.0.0.9:1"), "{said}");
    let group = "feed.mold = \"239.1.1.1:1\"\nfeed.mold_interface = \"127.0.0.1\"\n";
    assert_eq!(refusal(&format!("{group}{near}")), "ok");
}

#[test]
fn durations_and_rates_that_no_clock_can_count_are_refused() {
    for (text, wanted) in [
        ("[run]\nwarm_up = \"99999999999years\"\n", "line 2: run.warm_up = "),
        ("[feed]\nrate = 10.0\nmold_gap_timeout = \"31days\"\n", "line 3: feed.mold_gap_timeout"),
        ("multicast.membership.root_timeout = \"1year\"\n", "line 1: multicast.membership.root_"),
        ("[survey]\nlease = \"40days\"\n", "line 2: survey.lease = "),
        ("[feed]\nrate = 1e-308\n", "line 2: feed.rate = "),
        ("[feed]\nrate = inf\n", "line 2: feed.rate = inf: must be 0.001 to 1000000000"),
        ("[feed]\nrate = nan\n", "line 2: feed.rate = NaN"),
        ("[feed]\nspeed = -1.0\n", "line 2: feed.speed = -1: must be 0.001"),
        ("[feed.synthetic]\nmean_rate = 1e300\n", "line 2: feed.synthetic.mean_rate = "),
    ] {
        let error = of(text, std::iter::empty(), &[]).unwrap_err();
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
    let error = parse("", &["run.finish_timeout=99years"]).unwrap_err();
    assert!(error.starts_with("--set run.finish_timeout=99years: run.finish_timeout"), "{error}");
    let most = parse("[run]\nwarm_up = \"30days\"\ntrees = 64\n", &["run.trees=64"]).unwrap();
    assert!(most.course.rehearsal() > most.course.warm_up);
}

#[test]
fn names_that_are_no_file_names_are_refused() {
    let named = |name: &str| {
        let name = toml::Value::from(name);
        let node = format!("[[node]]\nid=1\nname={name}\nrole=\"root\"\naddress=\"127.0.0.1:1\"\n");
        of(&node, std::iter::empty(), &[])
    };
    for name in ["", ".", "..", "../x", "a/b", "a b", "a\nb", "a\u{1b}[31m", "\u{e9}"] {
        let error = named(name).unwrap_err();
        assert!(error.starts_with("e.toml: line 3: node: name = "), "{error}");
    }
    assert!(named(&"x".repeat(129)).is_err());
    for name in ["root", "receiver-1", "ip-10-0-0-1.ec2.internal", "A_b.2"] {
        assert!(named(name).is_ok(), "{name}");
    }
}

#[test]
fn two_nodes_of_one_address_are_refused_with_the_line_of_the_second() {
    let node = |id: u32, role: &str, addresses: &str| {
        format!("[[node]]\nname=\"n{id}\"\nid={id}\nrole=\"{role}\"\n{addresses}\n")
    };
    let two = |first: &str, second: &str| {
        refusal(&(node(1, "root", first) + &node(2, "receiver", second)))
    };
    let same = "address=\"127.0.0.1:9000\"";
    let said = two(same, same);
    assert!(said.contains("line 10: node n2: address = 127.0.0.1:9000: node n1 has it"), "{said}");
    let said = two(
        "address=\"127.0.0.1:1\"\nhttp=\"127.0.0.1:3\"",
        "address=\"127.0.0.1:2\"\nhttp=\"127.0.0.1:3\"",
    );
    assert!(said.contains("node n2: http = 127.0.0.1:3: node n1 has it"), "{said}");
    let free = "address=\"127.0.0.1:0\"";
    assert_eq!(two(same, free), "ok");
    assert!(two(free, free).contains("nobody finds a root on port 0"), "{}", two(free, free));
    assert_eq!(two(same, "address=\"127.0.0.2:9000\""), "ok");
}

#[test]
fn role_of_a_receiver_has_two_words() {
    let settings = |word| {
        let node = "[[node]]\nname=\"a\"\nid=1\naddress=\"127.0.0.1:1\"\n";
        let root = "[[node]]\nname=\"r\"\nid=2\nrole=\"root\"\naddress=\"127.0.0.1:2\"\n";
        parse(&format!("{node}role=\"{word}\"\n{root}"), &[]).expect("settings")
    };
    assert_eq!(settings("recv"), settings("receiver"));
}

#[test]
fn the_old_name_of_the_gap_timeout_is_refused_by_the_new_name() {
    let error = parse("[multicast.repair]\nring_frames = 8192\nmissing_hold = \"1s\"\n", &[]);
    let said = error.unwrap_err();
    for words in ["line 3", "`missing_hold` is called `gap_timeout` now"] {
        assert!(said.contains(words), "{said}");
    }
    let said = parse("", &["multicast.repair.missing_hold=1s"]).unwrap_err();
    assert!(said.contains("--set multicast.repair.missing_hold=1s"), "{said}");
    assert!(said.contains("gap_timeout"), "{said}");
}

#[test]
fn two_nodes_of_one_name_are_refused() {
    let node = "[[node]]\nname=\"a\"\nid=1\nrole=\"proxy\"\naddress=\"127.0.0.1:1\"\n";
    let error = parse(&node.repeat(2), &[]).unwrap_err();
    assert!(error.contains("share a name"), "{error}");
}

/// A root, a proxy and a receiver at these addresses.
fn cast(addresses: [&str; 3], more: &str) -> String {
    let node = |(id, (role, address)): (usize, (&str, &str))| {
        format!(
            "[[node]]\nname = \"{role}\"\nid = {id}\nrole = \"{role}\"\naddress = \"{address}\"\n"
        )
    };
    let nodes = ["proxy", "root", "receiver"].into_iter().zip(addresses).enumerate().map(node);
    format!("{more}{}", nodes.collect::<String>())
}

#[test]
fn nodes_on_several_hosts_keep_one_time_when_each_can_find_every_other() {
    let hosts = ["10.0.0.1:9000", "10.0.0.2:9000", "10.0.0.3:9000"];
    let meshed = |addresses, more: &str| parse(&cast(addresses, more), &[]).unwrap().is_meshed();
    assert!(meshed(hosts, ""));
    assert!(!meshed(["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], ""), "one host, one clock");
    assert!(!meshed([hosts[0], hosts[1], "10.0.0.3:0"], ""), "any port");
    assert!(!meshed([hosts[0], hosts[1], "0.0.0.0:9000"], ""), "any address");
    assert!(!meshed(hosts, "[run]\nclock = \"host\"\n"));
    let guests = "[multicast.membership]\nexpect_receivers = 5\n";
    assert!(!meshed(hosts, guests), "four receivers stand in other files");
    let settings = parse(&cast(hosts, ""), &[]).unwrap();
    let place = |name: &str| settings.member(settings.node(name).unwrap()).unwrap().place;
    assert_eq!(["root", "proxy", "receiver"].map(place), [0, 1, 2], "the root is the reference");
}

#[test]
fn a_mesh_whose_nodes_cannot_find_each_other_is_refused_by_name() {
    let lost = ["10.0.0.1:9000", "10.0.0.2:9000", "10.0.0.3:0"];
    let settings = parse(&cast(lost, "[run]\nclock = \"mesh\"\nkey_file = \"k\"\n"), &[]).unwrap();
    let mistake = settings.check_run().unwrap_err().why;
    assert!(mistake.contains("node receiver") && mistake.contains("mesh"), "{mistake}");
    let lost = ["127.0.0.1:1", "127.0.0.1:0", "127.0.0.1:2"];
    let mistake = parse(&cast(lost, ""), &[]).unwrap().check_run().unwrap_err().why;
    assert!(mistake.contains("node root: address = 127.0.0.1:0"), "{mistake}");
    let planted = "[run]\nclock = \"host\"\nkey_file = \"k\"\n[clock]\nplant = \"1ms,5ppm\"\n";
    let hosts = ["10.0.0.1:9000", "10.0.0.2:9000", "10.0.0.3:9000"];
    let mistake = parse(&cast(hosts, planted), &[]).unwrap().check_run().unwrap_err().why;
    assert!(mistake.contains("clock.plant"), "{mistake}");
    let error = parse("[clock]\nplant = \"20ms\"\n", &[]).unwrap_err();
    assert!(error.contains("line 2") && error.contains("20ms,100ppm"), "{error}");
}

#[test]
fn standbys_come_in_pairs_and_need_one_tree_and_a_feed_that_each_can_play() {
    let run = |standbys: usize, more: &str| {
        let roles =
            ["root", "receiver"].into_iter().chain(std::iter::repeat_n("standby", standbys));
        let node = |(id, role): (usize, &str)| {
            let port = 9_000 + id;
            format!(
                "[[node]]\nname = \"n{id}\"\nid = {id}\nrole = \"{role}\"\n\
                 address = \"127.0.0.1:{port}\"\n"
            )
        };
        let text = format!("{more}{}", roles.enumerate().map(node).collect::<String>());
        of(&text, std::iter::empty(), &[])
    };
    for standbys in [0, 2, 4] {
        let settings = run(standbys, "").unwrap();
        let voters: Vec<_> = settings.voters().iter().map(|node| node.id.0).collect();
        let all: Vec<u32> = [0].into_iter().chain(2..2 + standbys as u32).collect();
        assert_eq!(voters, if standbys == 0 { Vec::new() } else { all });
    }
    for standbys in [1, 3, 5] {
        let error = run(standbys, "").unwrap_err();
        assert!(error.contains("must be 2 or 4"), "{error}");
    }
    let error = run(2, "run.trees = 2\n").unwrap_err();
    assert!(error.contains("line 1: run.trees = 2"), "{error}");
    let error = run(2, "feed.mold = \"127.0.0.1:1\"\n").unwrap_err();
    assert!(error.contains("line 1: feed.mold"), "{error}");
    let text = "[[node]]\nname = \"s\"\nid = 9\nrole = \"standby\"\naddress = \"127.0.0.1:0\"\n";
    let error = run(1, text).unwrap_err();
    assert!(error.contains("node s: address = 127.0.0.1:0"), "{error}");
}
