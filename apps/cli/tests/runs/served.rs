//! A served store: killed in the middle of appends, and stopped by a signal.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use evenfall_host::process;
use evenfall_store_engine::{Client, FileSubscription, StoreAckLevel};
use evenfall_store_format::Schema;

use super::common::{Scratch, evenfall, finish, say};

const BATCH: u64 = 100;

fn serve(dir: &Path) -> (Child, SocketAddr) {
    let dir = dir.display().to_string();
    let mut child =
        evenfall(&["store", "serve", &dir, "--listen", "127.0.0.1:0"]).spawn().expect("a server");
    let out = child.stdout.as_mut().expect("its output");
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("serving tcp://").expect("an address");
    (child, address.parse().expect("an address"))
}

fn records(batch: u64) -> Vec<u8> {
    let of = |n: u64| [(n as i64).to_le_bytes(), (n * 7).to_le_bytes()].concat();
    (batch * BATCH..(batch + 1) * BATCH).flat_map(of).collect()
}

#[test]
fn the_bench_measures_a_server_in_a_process_of_its_own() {
    let _turn = Scratch::new();
    let brief = ["bench", "store", "--no-objects", "--duration", "200ms", "--runs", "1", "--json"];
    let said = say(&brief);
    assert!(said.ok, "{}", said.err);
    let all: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert!(all["records_per_s"].as_f64() > Some(0.0), "{all}");
    assert_eq!(all["failed_appends"].as_f64(), Some(0.0), "{all}");
    let subscribe = ["--subscribe", "--rate", "50000", "--batch", "100"];
    let said = say(&[&brief[..], &subscribe].concat());
    assert!(said.ok, "{}", said.err);
    let all: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    // No record comes before its append leaves. The reader that asks ten times a second is farther
    // behind than the one that is pushed the records.
    assert!(all["behind_send_us"]["p50"].as_f64() > Some(0.0), "{all}");
    assert!(all["polls_over_subscription"]["p50"].as_f64() > Some(1.0), "{all}");
}

#[test]
fn the_figures_of_full_stages_end_with_all_records_in_the_objects() {
    let _turn = Scratch::new();
    let brief = ["bench", "store", "--duration", "100ms", "--batch", "100", "--json", "--figure"];
    for figure in ["5.8", "5.9"] {
        let said = say(&[&brief[..], &[figure]].concat());
        assert!(said.ok, "{figure}: {}", said.err);
        let all: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
        assert!(all["records"].as_u64() > Some(0), "{figure}: {all}");
        assert!(all["back_after_s"].as_f64() > Some(0.0), "{figure}: {all}");
        assert!(all["curve"][0]["resident_bytes"].as_u64() > Some(0), "{figure}: {all}");
        // The run is too short for a limit.
        assert_eq!(all["refused"], 0, "{figure}: {all}");
    }
}

#[test]
fn connections_of_the_mix_and_a_limit_of_the_disk_are_taken() {
    let _turn = Scratch::new();
    let brief = ["bench", "store", "--no-objects", "--duration", "50ms", "--json"];
    let mix = ["--figure", "5.11", "--connections", "6", "--streams", "6"];
    let said = say(&[&brief[..], &mix].concat());
    assert!(said.ok, "{}", said.err);
    let all: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(all["connections"], 6, "{all}");
    let rows = all["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4, "{all}");
    assert!(rows.iter().all(|row| row["p99_us"].as_f64() > Some(0.0)), "{all}");
    assert!(rows[0]["read_us"]["p50"].is_null(), "all requests of the first row are appends");
    let said = say(&[&brief[..], &["--disk-bytes-per-s", "250000000"]].concat());
    // A limit needs root, and a machine that has groups for it.
    assert!(said.ok || said.err.contains("control groups"), "{}", said.err);
}

/// Appends until the server is gone. Returns the acknowledged batches.
fn append_until_killed(client: &mut Client, kill_after: u64, kill: &dyn Fn()) -> u64 {
    let file = client.create("a", &Schema::opaque(16)).expect("a file");
    let mut acknowledged = 0;
    for batch in 0.. {
        if client.append(&file, &records(batch), StoreAckLevel::Local).is_err() {
            return acknowledged;
        }
        if batch == kill_after {
            client.flush().ok();
            // By now some appends are acknowledged, and many are under way.
            for _ in 0..kill_after / 2 {
                client.completion().expect("a reply").expect("an append").first.expect("taken");
                acknowledged += 1;
            }
            kill();
        }
        while let Some(completion) = client.completed() {
            acknowledged += u64::from(completion.first.is_ok());
        }
    }
    acknowledged
}

/// Takes what is pushed until this record is next, and compares it with what was appended.
fn take_pushed(client: &mut Client, from: FileSubscription, next: &mut u64, end: u64) {
    while *next < end {
        let until = Instant::now() + Duration::from_secs(30);
        let pushed = client.next_batch(from, until).expect("no end").expect("records");
        assert_eq!(pushed.first, *next);
        let count = pushed.records.len() as u64 / 16;
        let of = |n: u64| [(n as i64).to_le_bytes(), (n * 7).to_le_bytes()].concat();
        assert!(pushed.records == (*next..*next + count).flat_map(of).collect::<Vec<u8>>());
        *next += count;
    }
}

/// Appends these batches, and waits until they are synced.
fn append_synced(client: &mut Client, batches: std::ops::Range<u64>) {
    let file = client.create("a", &Schema::opaque(16)).expect("a file");
    for batch in batches {
        client.append(&file, &records(batch), StoreAckLevel::Local).expect("sent");
    }
    while let Some(done) = client.completion().expect("a reply") {
        done.first.expect("taken");
    }
}

#[test]
fn a_subscriber_hears_of_a_killed_server_and_goes_on_after_its_restart() {
    let scratch = Scratch::beside();
    let dir = scratch.path("store");
    let (mut child, address) = serve(&dir);
    let mut client = Client::connect(address).expect("a connection");
    append_synced(&mut client, 0..300);
    let mut reader = Client::connect(address).expect("a connection");
    let file = reader.open("a").expect("the file");
    let subscription = reader.subscribe_to(&file, 0).expect("sent");
    let mut next = 0;
    take_pushed(&mut reader, subscription, &mut next, 300 * BATCH);
    process::send(child.id(), process::Signal::Kill);
    child.wait().expect("its end");
    // Not the moment until which the reader waits ends the wait: that would be no error.
    let ended = reader.next_batch(subscription, Instant::now() + Duration::from_secs(30));
    let words = ended.expect_err("the server is gone").to_string();
    assert!(words.contains("connection to the store"), "{words}");

    let (child, address) = serve(&dir);
    let mut reader = Client::connect(address).expect("a connection");
    let file = reader.open("a").expect("the file");
    let subscription = reader.subscribe_to(&file, next).expect("sent");
    let mut client = Client::connect(address).expect("a connection");
    append_synced(&mut client, 300..400);
    take_pushed(&mut reader, subscription, &mut next, 400 * BATCH);
    process::send(child.id(), process::Signal::Terminate);
    let ended = reader.next_batch(subscription, Instant::now() + Duration::from_secs(30));
    let words = ended.expect_err("the server stops").to_string();
    assert!(words.contains("subscribe again from record 40000"), "{words}");
    assert!(finish(child).ok);
}

#[test]
fn what_a_killed_server_acknowledged_local_is_there_after_its_restart() {
    let scratch = Scratch::beside();
    let dir = scratch.path("store");
    let (mut child, address) = serve(&dir);
    let mut client = Client::connect(address).expect("a connection");
    let pid = child.id();
    let kill = || process::send(pid, process::Signal::Kill);
    let acknowledged = append_until_killed(&mut client, 600, &kill);
    child.wait().expect("its end");
    assert!(acknowledged >= 300, "{acknowledged}");

    let (child, address) = serve(&dir);
    let mut client = Client::connect(address).expect("a connection");
    let file = client.open("a").expect("the file");
    let there = file.numbers.end;
    assert!(there >= acknowledged * BATCH, "{there} records of {acknowledged} batches");
    let all: Vec<u8> = (0..=there / BATCH).flat_map(records).collect();
    let read = client.numbers(&file, 0..there).expect("its records");
    assert!(read == all[..read.len()] && read.len() as u64 == there * 16, "other records");

    let listed = say(&["store", "ls", &format!("tcp://{address}")]);
    assert!(listed.ok && listed.out.contains(&format!("{there} records")), "{}", listed.out);
    drop(client);
    process::send(child.id(), process::Signal::Terminate);
    let said = finish(child);
    assert!(said.ok, "{}", said.err);
    let verified = say(&["store", "verify", &dir.display().to_string()]);
    assert!(verified.ok, "{}", verified.err);
}

#[test]
fn what_a_killed_server_acknowledged_at_memory_a_second_ago_is_there() {
    let scratch = Scratch::beside();
    let dir = scratch.path("store");
    let (mut child, address) = serve(&dir);
    let mut client = Client::connect(address).expect("a connection");
    let file = client.create("a", &Schema::opaque(16)).expect("a file");
    // The batches fill some segments and the beginning of another one.
    for batch in 0..55 {
        client.append(&file, &records(batch), StoreAckLevel::Memory).expect("a request");
    }
    while let Some(completion) = client.completion().expect("a reply") {
        completion.first.expect("taken");
    }
    // The documented bound is half a second. The test waits twice as long for a busy machine.
    std::thread::sleep(std::time::Duration::from_secs(1));
    process::send(child.id(), process::Signal::Kill);
    child.wait().expect("its end");
    let (child, address) = serve(&dir);
    let mut client = Client::connect(address).expect("a connection");
    assert_eq!(client.open("a").expect("the file").numbers.end, 55 * BATCH);
    drop(client);
    process::send(child.id(), process::Signal::Terminate);
    assert!(finish(child).ok);
}

#[test]
fn a_server_on_a_full_disk_answers_and_ends() {
    let scratch = Scratch::beside();
    let disk = scratch.path("disk");
    std::fs::create_dir_all(&disk).expect("a directory");
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=12m", "tmpfs"])
        .arg(&disk)
        .output();
    if !mount.is_ok_and(|done| done.status.success()) {
        println!("skipped: a tmpfs cannot be mounted here (root can)");
        return;
    }
    let (child, address) = serve(&disk.join("store"));
    let mut client = Client::connect(address).expect("a connection");
    let file = client.create("a", &Schema::opaque(16)).expect("a file");
    // Columns of counters would fit in a hundredth of the disk, and those of noise do not.
    let noisy = |batch: u64| {
        let noise = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ (n << 40);
        let of = |n: u64| [(n as i64).to_le_bytes(), noise(n).to_le_bytes()].concat();
        (batch * BATCH..(batch + 1) * BATCH).flat_map(of).collect::<Vec<u8>>()
    };
    let said = (0..20_000).find_map(|batch| {
        client.append(&file, &noisy(batch), StoreAckLevel::Local).expect("a request");
        let completion = client.completion().expect("a reply").expect("an append");
        completion.first.err().map(|error| error.to_string())
    });
    let said = said.expect("twelve megabytes are not enough");
    assert!(said.contains("the local disk is full"), "{said}");
    drop(client);
    process::send(child.id(), process::Signal::Terminate);
    let ended = finish(child);
    assert!(ended.err.contains("no room left"), "{}", ended.err);
    std::process::Command::new("umount").arg("-l").arg(&disk).status().expect("umount");
}

#[test]
fn records_are_appended_to_a_server_and_an_address_is_never_made_a_directory() {
    let scratch = Scratch::beside();
    let dir = scratch.path("store");
    let schema = scratch.path("schema.json");
    let text = serde_json::to_string(&Schema::opaque(16)).expect("a schema");
    std::fs::write(&schema, text).expect("a file");
    let path = |path: &Path| path.display().to_string();
    let made = say(&["store", "create", &path(&dir), "a", "--schema", &path(&schema)]);
    assert!(made.ok, "{}", made.err);
    let table = scratch.path("table.csv");
    let (child, address) = serve(&dir);
    let server = format!("tcp://{address}");
    let header = say(&["store", "read", &server, "a"]).out;
    let line = |n: u64| format!("{n},{}\n", "00".repeat(8));
    std::fs::write(&table, header.clone() + &line(1) + &line(2)).expect("a file");
    let appended = say(&["store", "append", &server, "a", "--csv", &path(&table)]);
    assert!(appended.ok && appended.out.contains("2 records appended"), "{}", appended.err);
    // A record that goes back in time is named by its line, and the lines before it are appended.
    std::fs::write(&table, header + &line(7) + &line(8) + &line(5) + &line(9)).expect("a file");
    let appended = say(&["store", "append", &server, "a", "--csv", &path(&table)]);
    assert!(!appended.ok && appended.out.contains("2 records appended"), "{}", appended.out);
    assert!(appended.err.contains("table.csv, line 4: record 0"), "{}", appended.err);
    let mut client = Client::connect(address).expect("a connection");
    client.create("red\u{1b}[31m\nname", &Schema::opaque(16)).expect("a file");
    let listed = say(&["store", "ls", &server]).out;
    assert!(listed.contains("4 records") && !listed.contains('\u{1b}'), "{listed}");
    assert_eq!(listed.lines().count(), 2, "{listed}");
    let feed = say(&["store", "append", &server, "b", "--feed", &path(&table)]);
    assert!(!feed.ok && feed.err.contains("is an address"), "{}", feed.err);
    assert!(!Path::new("tcp:").exists());
    drop(client);
    process::send(child.id(), process::Signal::Terminate);
    assert!(finish(child).ok);
}

#[test]
fn a_served_store_does_not_leave_loopback() {
    let scratch = Scratch::beside();
    let dir = scratch.path("store").display().to_string();
    let said = say(&["store", "serve", &dir, "--listen", "0.0.0.0:0"]);
    assert!(!said.ok && said.err.contains("nothing leaves loopback"), "{}", said.err);
}
