//! What is said to somebody who made a mistake: what, where, and what to do.

use std::fs;
use std::process::Command;

use super::common::{Scratch, evenfall, finish, is_root, say};

fn check(text: &str) -> String {
    let scratch = Scratch::new();
    let path = scratch.path("e.toml");
    fs::write(&path, text).expect("a file");
    let said = say(&["config", "check", &path.display().to_string()]);
    assert!(!said.ok, "accepted: {text}");
    said.err
}

#[test]
fn mistakes_in_settings_name_key_line_and_what_is_allowed() {
    let node = "[[node]]\nname = \"a\"\nid = 1\nrole = \"proxy\"\naddress = \"127.0.0.1:1\"\n";
    let cases = [
        ("[run]\n\n[multicast]\nmode = \"tre\"\n", &["line 4", "tre", "cloudex"][..]),
        ("[multicast.repair]\nring_frame = 1\n", &["line 2", "ring_frame", "ring_frames"]),
        ("[feed]\nfit = \"fast\"\n", &["line 2", "fit"]),
        ("[run]\ntrees = -1\n", &["line 2", "trees"]),
        ("[run\n", &["line 1"]),
        ("[multicast.deadline]\ntarget = 2.0\n", &["deadline.target", "0.5 .. 1.0"]),
        ("[run]\nclock = \"sundial\"\n", &["run.clock", "sundial", "chrony"]),
        ("[run]\ntrees = 65\n", &["run.trees", "1 to 64"]),
        ("[run]\nkey_file = \"none.key\"\n", &["run.key_file", "none.key"]),
        (&node.repeat(2), &["share a name"]),
        (&node.replace("proxy", "porter"), &["line 4", "porter", "receiver"]),
        (node, &["role = \"root\""]),
    ];
    for (text, wanted) in cases {
        let err = check(text);
        for word in wanted {
            assert!(err.contains(word), "{word} in:\n{err}");
        }
        assert!(err.contains("e.toml") || err.contains("none.key"), "the file: {err}");
    }
}

#[test]
fn default_settings_pass_their_own_check() {
    let scratch = Scratch::new();
    let path = scratch.path("default.toml");
    fs::write(&path, say(&["config", "default"]).out).expect("a file");
    let said = say(&["config", "check", &path.display().to_string(), "--json"]);
    assert!(said.ok, "{}", said.err);
    serde_json::from_str::<serde_json::Value>(&said.out).expect("JSON");
}

#[test]
fn wrong_arguments_are_refused_with_what_is_right() {
    let nowhere = std::env::temp_dir().join("evenfall-nowhere").display().to_string();
    let cases: [(&[&str], &[&str]); 11] = [
        (&["demo", "--fault", "kill:proxy-9@1", "--dir", &nowhere], &["proxy-9", "proxy-1"]),
        (&["demo", "--fault", "stop:root@1"], &["kill:NAME@SECONDS"]),
        (&["demo", "--mode", "walk"], &["walk", "cloudex"]),
        (&["demo", "--receivers", "0"], &["--receivers", "1.."]),
        (&["demo", "--trees", "0"], &["--trees", "1..=64"]),
        (&["demo", "--rate=-5"], &["--rate", "above 0"]),
        (&["demo", "--set", "multicast.mood=tree", "--dir", &nowhere], &["multicast.mood=tree"]),
        (&["run", "root", "--config", "no.toml"], &["no.toml", "--config"]),
        (&["report", &nowhere], &["run.json", "directory of a run"]),
        (&["sim", "multicast", "--size", "70000"], &["--size 70000", "65000 bytes at most"]),
        (&["stat", "--http", "127.0.0.1:1"], &["127.0.0.1:1"]),
    ];
    for (args, wanted) in cases {
        let said = say(args);
        assert!(!said.ok, "accepted: {args:?}");
        for word in wanted {
            assert!(said.err.contains(word), "{word} in what {args:?} said:\n{}", said.err);
        }
    }
}

#[test]
fn help_of_every_command_says_what_it_is_for() {
    let commands = ["demo", "run", "report", "stat", "config", "bench"];
    let top = say(&["--help"]).out;
    for command in commands {
        assert!(top.contains(command), "{command}");
        let help = say(&[command, "--help"]);
        assert!(help.ok && help.out.contains("Usage: evenfall"), "{}", help.out);
    }
}

#[test]
fn lab_without_permission_says_what_to_do() {
    let said = if is_root() {
        let scratch = Scratch::new();
        // Where nobody may go: the build directory may belong to root alone.
        let program = scratch.path("evenfall");
        fs::copy(env!("CARGO_BIN_EXE_evenfall"), &program).expect("a copy");
        let open = |path: &std::path::Path| {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("permissions");
        };
        open(&program);
        open(program.parent().expect("a directory"));
        let mut nobody = Command::new("setpriv");
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        match nobody.args(["demo", "--lab"]).output() {
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
        // Closed before anything was written: any line finds nobody.
        drop(child.stdout.take());
        let said = finish(child);
        assert!(said.ok && said.err.is_empty(), "{arguments:?}: {}", said.err);
    }
}
