//! Clients that are not ours: psql, Python drivers, and what dashboards send when they connect.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::pg::PgClient;
use crate::served::{Served, record_day};

/// What a client sends when it connects and shows its first page.
const CONNECTS: [(&str, &str); 3] = [
    ("DBeaver", include_str!("connect/dbeaver.sql")),
    ("Metabase", include_str!("connect/metabase.sql")),
    ("Grafana", include_str!("connect/grafana.sql")),
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn what_dashboards_send_at_connect_is_answered() {
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    let mut failures = Vec::new();
    for (client, text) in CONNECTS {
        let mut connection = PgClient::connect(&served.pg, "day").unwrap();
        for sql in text.lines().filter(|line| !line.trim().is_empty()) {
            for (how, answer) in [
                ("plain", connection.query(sql)),
                ("prepared", connection.query_prepared(sql.trim_end_matches(';'), &[])),
            ] {
                if let Err(error) = answer {
                    failures.push(format!("{client}, {how}: {sql}\n    {error}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn psql_lists_and_describes_tables() {
    if Command::new("psql").arg("--version").output().is_err() {
        println!("skipped: no psql (package postgresql-client)");
        return;
    }
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    let (host, port) = served.pg.split_once(':').unwrap();
    for (command, words) in [
        ("\\dt day.*", &["messages", "trades", "quotes"][..]),
        ("\\d day.messages", &["symbol", "bigint", "timestamp without time zone"]),
        ("\\dn", &["day", "public"]),
        ("\\l", &["day"]),
        ("\\conninfo", &["day"]),
        ("SELECT count(*) FROM messages", &["600"]),
        ("SELECT max(time) FROM messages", &["2026-11-20 09:30:00.599"]),
    ] {
        let mut psql = Command::new("psql");
        psql.args(["-X", "-h", host, "-p", port, "-U", "anyone", "-d", "day"]);
        let output = psql.args(["-v", "ON_ERROR_STOP=1", "-c", command]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {said}{errors}");
        for word in words {
            assert!(said.contains(word), "{command}: no {word} in {said}");
        }
    }
}

#[test]
fn questions_of_traders_have_one_answer_at_every_door() {
    let python = repository().join("target/venv-query/bin/python");
    let has_psql = Command::new("psql").arg("--version").output().is_ok();
    if !python.is_file() || !has_psql {
        println!("skipped: no psql, or no Python drivers in target/venv-query (make deps)");
        return;
    }
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    let mut script = Command::new(python);
    script.arg(repository().join("scripts/query/questions.py"));
    script.arg(env!("CARGO_BIN_EXE_evenfall-query")).arg(dir.path());
    script.args([&served.pg, &served.flight]);
    // The books that the questions ask for are of another day.
    let output = script.args(["--recording", "day", "--without", "book("]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
}

#[test]
fn python_drivers_read_what_was_recorded() {
    let python = repository().join("target/venv-query/bin/python");
    if !python.is_file() {
        println!("skipped: no Python drivers in target/venv-query (make deps)");
        return;
    }
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    let script = repository().join("scripts/query/clients.py");
    let output =
        Command::new(python).arg(script).args([&served.pg, &served.flight]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
}
