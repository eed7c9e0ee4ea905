//! Users of a served store, as the commands make and take them.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Child;

use evenfall_host::process;

use super::common::{Scratch, evenfall, eventually, finish, say};

fn serve_users(dir: &Path, users: &Path) -> (Child, String) {
    let (dir, users) = (dir.display().to_string(), users.display().to_string());
    let listen = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--users", &users];
    let serve = [&["store", "serve", &dir][..], &listen].concat();
    let mut child = evenfall(&serve).spawn().expect("a server");
    let out = child.stdout.as_mut().expect("its output");
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("serving ").expect("an address").to_owned();
    (child, address)
}

#[test]
fn users_are_made_served_and_taken_out_by_commands() {
    let scratch = Scratch::beside();
    let path = |name: &str| scratch.path(name).display().to_string();
    let (users, reader, feeder) = (path("users.toml"), path("reader.key"), path("feeder.key"));
    let new = |name: &str, key: &str, rights: &[&str]| {
        let args = ["store", "user", "new", name, "--users", &users, "--out", key];
        say(&[&args[..], rights].concat())
    };
    assert!(new("reader", &reader, &["--read", "trades"]).ok);
    assert!(new("feeder", &feeder, &["--append", "trades"]).ok);
    let again = new("reader", &path("other.key"), &[]);
    assert!(again.err.contains("has a user reader already"), "{}", again.err);
    let listed = say(&["store", "user", "ls", "--users", &users]);
    assert_eq!(listed.out, "reader  read \"trades\"\nfeeder  append \"trades\"\n");

    let (schema, csv, dir) = (path("trades.json"), path("trades.csv"), path("store"));
    let text = r#"{"record_bytes": 16, "fields": [
        {"name": "time", "offset": 0, "len": 8, "type": "time"},
        {"name": "number", "offset": 8, "len": 8, "type": "u64"}]}"#;
    std::fs::write(&schema, text).expect("a schema");
    std::fs::write(&csv, "time,number\n1795184999698000000,1\n").expect("a table");
    let made = say(&["store", "create", &dir, "trades", "--schema", &schema]);
    assert!(made.ok, "{}", made.err);
    let (server, address) = serve_users(Path::new(&dir), Path::new(&users));

    let append = ["store", "append", &address, "trades", "--csv", &csv, "--key"];
    let taken = say(&[&append[..], &[feeder.as_str()]].concat());
    assert!(taken.ok, "{}", taken.err);
    let refused = say(&[&append[..], &[reader.as_str()]].concat());
    assert!(refused.err.contains("reader has no right to append trades"), "{}", refused.err);
    let plain = say(&["store", "ls", &address]);
    assert!(plain.err.contains("serves users with keys only"), "{}", plain.err);
    let listed = evenfall(&["store", "ls", &address]).env("EVENFALL_STORE_KEY", &reader).output();
    let listed = String::from_utf8(listed.expect("the program").stdout).expect("text");
    assert!(listed.contains("1 records") && listed.contains("trades"), "{listed}");

    assert!(say(&["store", "user", "remove", "reader", "--users", &users]).ok);
    let read = ["store", "read", &address, "trades", "--key", &reader];
    eventually("the reader is shut out", || (!say(&read).ok).then_some(()));
    process::send(server.id(), process::Signal::Terminate);
    let said = finish(server);
    assert!(said.ok, "{}", said.err);
    assert!(said.err.contains("the users have changed"), "{}", said.err);
}
