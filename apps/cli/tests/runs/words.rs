//! The errors for users' mistakes. An error says what is wrong, where, and what to do.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::common::{Scratch, evenfall, finish, is_root, say, signal, write_key};

fn check(text: &str) -> String {
    let scratch = Scratch::beside();
    let path = scratch.path("e.toml");
    fs::write(&path, text).expect("a file");
    let said = say(&["config", "check", &path.display().to_string()]);
    assert!(!said.ok, "accepted: {text}");
    said.err
}

#[test]
fn mistakes_in_settings_name_key_line_and_what_is_allowed() {
    let node = "[[node]]\nname = \"a\"\nid = 1\nrole = \"proxy\"\naddress = \"127.0.0.1:1\"\n";
    let receiver = node
        .replace("proxy", "receiver")
        .replace("\"a\"\nid = 1", "\"b\"\nid = 2")
        .replace(":1", ":2");
    let run = node.replace("proxy", "root") + &receiver;
    let cases = [
        ("[run]\n\n[multicast]\nmode = \"tre\"\n", &["line 4", "tre", "cloudex"][..]),
        ("[multicast.repair]\nring_frame = 1\n", &["line 2", "ring_frame", "ring_frames"]),
        ("[feed]\nfit = \"fast\"\n", &["line 2", "fit"]),
        ("[run]\ntrees = -1\n", &["line 2", "trees"]),
        ("[run\n", &["line 1"]),
        ("[multicast.deadline]\ntarget = 2.0\n", &["deadline.target", "0.5 .. 1.0"]),
        ("[run]\nclock = \"sundial\"\n", &["run.clock", "sundial", "chrony"]),
        ("[run]\ntrees = 65\n", &["run.trees", "1 to 64"]),
        (&format!("run.key_file = \"none.key\"\n{run}"), &["run.key_file", "none.key"]),
        (&node.repeat(2), &["share a name"]),
        (&format!("[feed]\nfile = \"none.itch\"\n{run}"), &["line 2", "feed.file", "none.itch"]),
        (&format!("[run]\nclock = \"/dev/ptp99\"\n{run}"), &["line 2", "run.clock", "ptp99"]),
        (&run.replace(":2", ":1"), &["node b", "127.0.0.1:1", "node a has it"]),
        (&run.replace("127.0.0.1:2", "[::1]:2"), &["node b", "[::1]:2", "node a", "IPv6"]),
        (&format!("[feed]\nfile = \"/\"\n{run}"), &["line 2", "feed.file", "directory"]),
        (&node.replace("proxy", "porter"), &["line 4", "porter", "receiver"]),
        (node, &["role = \"root\""]),
        ("", &["no [[node]]", "at least one receiver"]),
        (&node.replace("proxy", "root"), &["no receivers", "at least one receiver"]),
        ("[run]\ntrees = 65\n", &["line 2"]),
        ("[io]\nreal_time = 200\n", &["line 2", "io.real_time", "1 to 99"]),
    ];
    for (text, wanted) in cases {
        let err = check(text);
        for word in wanted {
            assert!(err.contains(word), "{word} in:\n{err}");
        }
        assert!(err.contains("e.toml") || err.contains("none.key"), "the file: {err}");
    }
}

/// The settings of a node that has the name of its role.
fn node(id: u32, role: &str) -> String {
    format!(
        "[[node]]\nname = \"{role}\"\nid = {id}\nrole = \"{role}\"\naddress = \"127.0.0.1:{id}\"\n"
    )
}

#[test]
fn key_that_others_can_read_is_refused_with_the_way_to_mend_it() {
    let scratch = Scratch::beside();
    let (key, path) = (scratch.path("e.key"), scratch.path("e.toml"));
    write_key(&key);
    let text = "run.key_file = \"e.key\"\n".to_owned() + &node(1, "root") + &node(2, "receiver");
    fs::write(&path, text).expect("a file");
    let path = path.display().to_string();
    assert!(say(&["config", "check", &path]).ok);
    for mode in [0o644, 0o640, 0o666] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).expect("permissions");
        let said = say(&["config", "check", &path]);
        let wanted =
            format!("{} gives the key to other users; run chmod 600", format_args!("{mode:o}"));
        assert!(!said.ok && said.err.contains(&wanted), "{}", said.err);
    }
}

#[test]
fn default_settings_and_two_nodes_can_be_run() {
    let scratch = Scratch::beside();
    let path = scratch.path("default.toml");
    let default = say(&["config", "default"]).out;
    fs::write(&path, default + &node(1, "root") + &node(2, "receiver")).expect("a file");
    let path = path.display().to_string();
    let said = say(&["config", "check", &path, "--json"]);
    assert!(said.ok, "{}", said.err);
    serde_json::from_str::<serde_json::Value>(&said.out).expect("JSON");
    let said = say(&["config", "check", "--config", &path]);
    assert!(said.ok, "{}", said.err);
    for words in ["1 root, 1 receiver\n", "mode release: ", " 1 tree\n"] {
        assert!(said.out.contains(words), "{words} in:\n{}", said.out);
    }
}

#[test]
fn a_root_says_whom_it_waits_for_and_its_report_that_the_tree_never_stood() {
    let scratch = Scratch::beside();
    let path = scratch.path("e.toml");
    let mut text = "[multicast.membership]\nexpect_timeout = \"1s\"\n".to_owned();
    let roles =
        [("root", "root"), ("receiver-1", "receiver"), ("tape", "recorder"), ("p", "proxy")];
    for (id, (name, role)) in roles.into_iter().enumerate() {
        text += &format!("[[node]]\nname = \"{name}\"\nid = {id}\nrole = \"{role}\"\n");
        text += "address = \"127.0.0.1:0\"\n";
    }
    fs::write(&path, text).expect("a file");
    let config = path.display().to_string();
    let mut root = evenfall(&["run", "root", "--config", &config]).spawn().expect("the program");
    let stderr = root.stderr.as_mut().expect("its words");
    // Notes about options that the kernel does not grant may come first.
    let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
    let line = lines.find(|line| line.contains("waiting"));
    signal(root.id(), "TERM");
    let said = finish(root);
    let wanted = " INFO root: waiting for 2 of 2 receivers (receiver-1, tape), 1 of 1 proxy (p)";
    assert!(line.as_ref().is_some_and(|line| line.ends_with(wanted)), "{line:?}{}", said.err);
    let said = say(&["report", &scratch.path("run").display().to_string()]);
    assert!(!said.ok && said.err.contains("the tree never stood"), "{}{}", said.out, said.err);
}

#[test]
fn wrong_arguments_are_refused_with_what_is_right() {
    let nowhere = std::env::temp_dir().join("evenfall-nowhere").display().to_string();
    let scratch = Scratch::beside();
    let config = scratch.path("root.toml").display().to_string();
    let root = "[[node]]\nname = \"a\"\nid = 1\nrole = \"root\"\naddress = \"127.0.0.1:1\"\n";
    fs::write(&config, root).expect("a file");
    let owd = scratch.path("owd.csv").display().to_string();
    fs::write(&owd, "host,a,b\na,0,5\nb,5,0\n").expect("a file");
    let store = scratch.path("store").display().to_string();
    let noise = scratch.path("noise.csv").display().to_string();
    fs::write(&noise, [0xff, 0x00, 0xfe]).expect("a file");
    let empty = scratch.path("empty");
    fs::create_dir(&empty).expect("a directory");
    let empty = empty.display().to_string();
    let absent = scratch.path("absent").display().to_string();
    let cases: [(&[&str], &[&str]); 69] = [
        (&["demo", "--fault", "kill:proxy-9@1", "--dir", &nowhere], &["proxy-9", "proxy-1"]),
        (&["demo", "--fault", "stop:root@1"], &["kill:NAME@SECONDS"]),
        (&["demo", "--fault", "kill:root@1e19"], &["1e19", "86400 seconds"]),
        (&["demo", "--messages", "0"], &["--messages", "1.."]),
        (&["demo", "--mode", "walk"], &["walk", "cloudex"]),
        (&["demo", "--receivers", "0"], &["--receivers", "1.."]),
        (&["demo", "--fanout", "0"], &["--fanout", "1.."]),
        (&["demo", "--trees", "0"], &["--trees", "1..=64"]),
        (&["demo", "--rate=-5"], &["--rate", "above 0"]),
        (&["demo", "--set", "multicast.mood=tree", "--dir", &nowhere], &["multicast.mood=tree"]),
        (&["run", "root", "--config", "no.toml"], &["no.toml", "evenfall init"]),
        (&["report", &nowhere], &["run.json", "directory of a run"]),
        (&["stat", "--http", "127.0.0.1:1"], &["is a node running", "1 of 1 node did not answer"]),
        (&["clock", "report", "--config", &config], &["root.toml", "run.clock = \"mesh\""]),
        (&["stat", "--config", &config], &["root.toml", "http = \"ADDRESS\""]),
        (&["run", "receiver", "--config", &config], &["role = \"receiver\"", "a (root)"]),
        (&["run", "proxy", "--name", "a", "--config", &config], &["root, not proxy", "none"]),
        (&["run", "agent", "--config", &config], &["no [[node]]", "role = \"agent\""]),
        (&["config", "check", "no.toml"], &["no.toml", "name a settings file"]),
        (&["store", "append", &nowhere, "x"], &["--feed", "--csv"]),
        (
            &["store", "append", &store, "trades", "--csv", &owd],
            &["no file trades", "store create --schema"],
        ),
        (&["store", "create", &store, "trades", "--schema", &owd], &["owd.csv: not a schema"]),
        (&["run", "keys", "--local", "3", "--dir", &config], &["root.toml/", "cannot start"]),
        (&["bench", "fanout", "--fanout", "0"], &["--fanout", "1 or more"]),
        (&["bench", "fanout", "--size", "70000"], &["--size 70000", "65000 bytes at most"]),
        (&["bench", "fanout", "--pack", "65537"], &["--pack 65537", "1 to 32", "--size"]),
        (&["bench", "receive", "--pack", "0"], &["--pack 0", "1 to 31", "--size"]),
        (&["bench", "receive", "--size", "700"], &["--pack 20", "1 to 1", "700 bytes"]),
        (&["sim", "study", "goal", "--receivers", "0"], &["--receivers", "1 or more"]),
        (&["sim", "study", "time", "--receivers", "1"], &["--receivers 1", "2 or more"]),
        (&["sim", "study", "clocks", "--messages", "0"], &["--messages 0", "1 or more"]),
        (&["sim", "study", "hold", "--target", "7"], &["deadline.target = 7", "0.5"]),
        (&["sim", "campaign", "clock", "--seeds", "0"], &["--seeds", "0 is not in 1.."]),
        (&["store", "append", &store, "", "--feed", &owd], &["1 to 960 bytes"]),
        (&["store", "append", &store, "a\nb", "--feed", &owd], &["control characters"]),
        (&["store", "create", &store, &"x".repeat(961)], &["1 to 960 bytes"]),
        (&["store", "ls", &empty], &["no store is there", "--record"]),
        (&["store", "verify", &empty], &["no store is there"]),
        (&["store", "delete", &empty, "x"], &["no store is there"]),
        (
            &["store", "verify", &absent, "--objects"],
            &["absent: the bucket does not exist", "no such directory"],
        ),
        (&["store", "verify", &empty, "--objects"], &["no object is there"]),
        (&["store", "verify", &store, "--objects"], &["this is a store", "store/objects"]),
        (&["store", "ls", "s3://x"], &["s3://x is an address", "--objects"]),
        (&["store", "ls", "tcp://127.0.0.1:1"], &["127.0.0.1:1", "is `evenfall store serve`"]),
        (&["store", "serve", &config], &["root.toml", "a store is a directory"]),
        (&["demo", "--dir", "/proc/x"], &["--dir /proc/x", "name another directory"]),
        (&["stat", "--http", "localhost"], &["localhost", "--http"]),
        (&["feed", "make", "/dev/full", "--messages", "9000"], &["/dev/full: No space"]),
        (&["feed", "make", "x.itch50", "--messages", "0"], &["--messages", "1.."]),
        (&["feed", "info", &empty], &["this is a directory: give a file"]),
        (&["feed", "play", &owd, "--mold", "127.0.0.1:0"], &["127.0.0.1:0", "port 0"]),
        (&["tap", "127.0.0.1:0"], &["127.0.0.1:0", "port 0"]),
        (&["init", "nowhere.toml", "--port", "0"], &["--port", "1.."]),
        (&["feed", "play", &owd, "--mold", "127.0.0.1:9", "--fit", "0s"], &["feed.fit = 0s"]),
        (
            &["plan", "tree", "--owd", &noise, "--depth", "1", "--fanout", "1"],
            &["noise.csv: not a text file"],
        ),
        (
            &["plan", "tree", "--owd", &owd, "--depth", "1", "--fanout", "1", "--method", "best"],
            &["--method best", "lemondrop"],
        ),
        (&["store", "read", &nowhere, "x", "--from", "noon"], &["09:30:00.5", "09:30,"]),
        (&["sim", "multicast", "--size", "70000"], &["--size 70000", "65000 bytes at most"]),
        (&["sim", "multicast", "--rate", "1e12"], &["--rate 1000000000000", "at most 10000000"]),
        (
            &["sim", "multicast", "--receivers", "1000000000"],
            &["--receivers 1000000000", "at most 100000 receivers"],
        ),
        (
            &[
                "sim",
                "multicast",
                "--receivers",
                "1000",
                "--trees",
                "100",
                "--depth",
                "2",
                "--fanout",
                "1000",
            ],
            &["--trees 100", "--fanout", "112000 at most"],
        ),
        (&["sim", "multicast", "--duration", "0s"], &["--duration 0s", "above 0"]),
        (&["sim", "multicast", "--model", "/dev/zero"], &["/dev/zero", "1048576 bytes"]),
        (&["sim", "clock", "--nodes", "1000000000"], &["--nodes", "2..=100000"]),
        (&["sim", "clock", "--load", "-1"], &["--load -1", "from 0 to below 1"]),
        (&["sim", "clock", "--duration", "100y"], &["--duration 100years", "--nodes"]),
        (&["clock", "lab", "--offset", "101y"], &["--offset", "100 years of 365 days"]),
        (&["clock", "lab", "--samples", "0"], &["--samples", "1..=1000000"]),
        (&["clock", "watch", "--every", "0s"], &["--every", "100ms to 24 hours"]),
    ];
    for (args, wanted) in cases {
        let said = say(args);
        assert!(!said.ok, "accepted: {args:?}");
        for word in wanted {
            assert!(said.err.contains(word), "{word} in what {args:?} said:\n{}", said.err);
        }
        assert_eq!(
            said.code == Some(2),
            said.err.contains("try '--help'"),
            "{args:?}: {}",
            said.err
        );
    }
}

#[test]
fn help_of_every_command_says_what_it_is_for() {
    let commands =
        ["demo", "run", "report", "stat", "plan", "sim", "bench", "store", "feed", "config"];
    let top = say(&["--help"]).out;
    assert!(top.starts_with("Fair, fast market data on cloud machines"), "{top}");
    for command in commands {
        assert!(top.contains(command), "{command}");
        let help = say(&[command, "--help"]);
        assert!(help.ok && help.out.contains("Usage: evenfall"), "{}", help.out);
    }
}

#[test]
fn lab_without_permission_says_what_to_do() {
    let said = if is_root() {
        let scratch = Scratch::beside();
        use std::os::unix::fs::PermissionsExt;
        // The program is copied to a directory that every user can enter, because the build
        // directory may be closed to the user `nobody`.
        let program = scratch.path("evenfall");
        fs::copy(env!("CARGO_BIN_EXE_evenfall"), &program).expect("a copy");
        let open = |path: &std::path::Path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("permissions");
        };
        open(&program);
        open(program.parent().expect("a directory"));
        let mut nobody = Command::new("setpriv");
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        let dir = scratch.path("everybody");
        fs::create_dir(&dir).expect("a directory");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("permissions");
        let dir = dir.join("demo").display().to_string();
        match nobody.args(["demo", "--lab", "--dir", &dir]).output() {
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => {
                println!("skipped: setpriv: {error}");
                return;
            }
        }
    } else {
        say(&["demo", "--lab"]).err
    };
    assert!(said.contains("need root") && said.contains("loopback needs no rights"), "{said}");
}

#[test]
fn whoever_stops_reading_ends_a_command_without_a_word() {
    for arguments in [&["config", "default"][..], &["feed", "--help"]] {
        let mut child = evenfall(arguments).spawn().expect("the program");
        // The pipe is closed before the program writes, so that its first line has no reader.
        drop(child.stdout.take());
        let said = finish(child);
        assert!(said.ok && said.err.is_empty(), "{arguments:?}: {}", said.err);
    }
}

#[test]
fn full_disk_under_the_result_is_an_error() {
    for arguments in [&["config", "default"][..], &["feed", "--help"], &["--version"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux");
        let said = finish(evenfall(arguments).stdout(full).spawn().expect("the program"));
        let wanted = "evenfall: standard output: No space left on device";
        assert!(
            said.code == Some(1) && said.err.starts_with(wanted),
            "{arguments:?}: {}",
            said.err
        );
    }
}

#[test]
fn reader_that_has_seen_enough_ends_a_read_of_the_store_quietly() {
    let scratch = Scratch::beside();
    let (store, feed) = (scratch.path("store"), scratch.path("20191230.itch50"));
    fs::write(&feed, super::common::feed_file(20_000).0).expect("a feed");
    let (store, feed) = (store.display().to_string(), feed.display().to_string());
    let said = say(&["store", "append", &store, "day", "--feed", &feed]);
    assert!(said.ok, "{}", said.err);
    for format in ["csv", "json", "arrow"] {
        let read = ["store", "read", &store, "day", "--format", format];
        let mut child = evenfall(&read).spawn().expect("the program");
        let mut first = [0; 10];
        let out = child.stdout.as_mut().expect("its output");
        std::io::Read::read_exact(out, &mut first).expect("the first bytes");
        drop(child.stdout.take());
        let said = finish(child);
        assert!(said.ok && said.err.is_empty(), "{format}: {:?}: {}", said.code, said.err);
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux");
        let said = finish(evenfall(&read).stdout(full).spawn().expect("the program"));
        assert_eq!(said.code, Some(1), "{format}: {}", said.err);
    }
}
