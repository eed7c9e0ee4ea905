//! Clusters with keys and racks, disks that leave, old logs, and reads of two copies.

use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use evenfall_core::math::{FNV_BASIS, fnv1a};
use evenfall_files_machine::wire::{DataserverBeat, FilesControl, FilesMessage};
use evenfall_files_machine::{DiskId, InodeId, chunk};
use evenfall_files_service::{
    BytesSource, Fetched, FilesClient, Options, rebuild, run_dataserver, run_nameserver,
};
use evenfall_host::process::Signal;
use serde_json::Value;

use super::cluster::{Cluster, PATIENCE, ask};
use super::processes::{MEGABYTE, in_order, local, read};

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The dataservers, when so many of them are in this state.
pub fn dataservers(client: &FilesClient, state: &str, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    until(state, || {
        let status = client.report("status").expect("the nameserver lives");
        found = status["dataservers"].as_array().cloned().unwrap_or_default();
        found.retain(|one| one["state"] == state);
        found.len() == count
    });
    found
}

/// The disks that keep the nameserver's log.
fn keepers(client: &FilesClient) -> Vec<Value> {
    let status = client.report("status").expect("the nameserver lives");
    status["logCopies"].as_array().cloned().unwrap_or_default()
}

/// Bytes of chunks in the directory of a dataserver.
pub fn stored(cluster: &Cluster, number: usize) -> u64 {
    let entries = std::fs::read_dir(cluster.directory.path().join(number.to_string()));
    let entries = entries.into_iter().flatten().flatten();
    let chunks = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with('f'));
    chunks.filter_map(|entry| entry.metadata().ok()).map(|about| about.len()).sum()
}

fn fetch(cluster: &Cluster, client: &FilesClient, path: &str) -> (Vec<u8>, Fetched) {
    let to = cluster.directory.path().join("fetched");
    let file = File::create(&to).expect("a file");
    let fetched = client.fetch(path, &file, &mut |_| {}, &mut |_| {}).expect("servers live");
    (std::fs::read(to).expect("a file"), fetched)
}

#[test]
fn a_cluster_with_a_key_takes_nothing_that_is_not_sealed_under_it() {
    let cluster = Cluster::with(2, true);
    let place = tempfile::tempdir().expect("a directory");
    let (source, all) = local(place.path(), "source", 3 * MEGABYTE);
    let client = cluster.client();
    client.put(BytesSource::File(source), "/a", false, Some(2), &mut |_| {}).expect("servers live");
    assert!(read(&client, "/a") == all, "other bytes");
    assert!(fetch(&cluster, &client, "/a").0 == all, "other bytes");
    // Clients of this host may come without the key.
    assert!(read(&client.clone().keyed(None), "/a") == all, "other bytes");
    let other = evenfall_core::SharedKey::new(1, [8; 32]);
    let names = cluster.addresses[0].to_string();
    let stranger = FilesClient::new(&names, "ann", Duration::ZERO).keyed(Some(other));
    assert!(stranger.get("/a", "GETFILESTATUS", &[]).is_err());

    // A plain datagram changes nothing: no further dataserver is known.
    let beat = FilesControl::Beat(DataserverBeat::new(DiskId(5), cluster.addresses[1]));
    let (head, body) = FilesMessage::Control(beat).encode(0);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.send_to(&[&head[..], &body].concat(), cluster.addresses[0]).expect("it leaves");
    // The beats of the others come after the plain one, and are taken.
    dataservers(&client, "live", 2);
    std::thread::sleep(Duration::from_millis(500));
    dataservers(&client, "live", 2);
}

#[test]
fn copies_leave_a_dataserver_that_shall_go_and_stay_in_two_racks() {
    let cluster = Cluster::new(4);
    let place = tempfile::tempdir().expect("a directory");
    let (source, all) = local(place.path(), "source", 2 * MEGABYTE);
    let client = cluster.client();
    dataservers(&client, "live", 4);
    for n in 0..4 {
        let source = BytesSource::File(source.clone());
        let path = format!("/{n}");
        client.put(source, &path, false, Some(2), &mut |_| {}).expect("servers live");
    }
    in_order(&client);
    // Dataservers 1 and 3 are in one rack. Each file has a copy there and one elsewhere.
    assert_eq!(
        stored(&cluster, 1) + stored(&cluster, 3),
        stored(&cluster, 2) + stored(&cluster, 4)
    );
    let name = format!("port-{}", cluster.addresses[1].port());
    assert!(client.order("leave", &[("server", "nobody")]).is_err());
    client.order("leave", &[("server", &name)]).expect("it is there");
    until("copies stay on a disk that they shall leave", || stored(&cluster, 1) == 0);
    in_order(&client);
    assert_eq!(stored(&cluster, 3), stored(&cluster, 2) + stored(&cluster, 4));
    assert_eq!(dataservers(&client, "leaving", 1)[0]["name"], name.as_str());
    for n in 0..4 {
        assert!(read(&client, &format!("/{n}")) == all, "other bytes");
    }
    client.order("stay", &[("server", &name)]).expect("it is there");
    dataservers(&client, "live", 4);
}

#[test]
fn a_file_is_read_from_two_copies_at_once_and_around_a_server_that_hangs() {
    let cluster = Cluster::new(2);
    let place = tempfile::tempdir().expect("a directory");
    let (source, all) = local(place.path(), "source", 40 * MEGABYTE);
    let client = cluster.client();
    client.put(BytesSource::File(source), "/a", false, Some(2), &mut |_| {}).expect("servers live");
    in_order(&client);
    let (bytes, fetched) = fetch(&cluster, &client, "/a");
    assert!(bytes == all, "other bytes");
    assert_eq!(fetched.from.values().sum::<u64>(), all.len() as u64);
    assert_eq!(fetched.from.len(), 2, "{fetched:?}");
    // A server that stands still takes connections and answers none. The nameserver may notice
    // before the client meets the server.
    until("no part is hedged", || {
        dataservers(&client, "live", 2);
        cluster.signal(2, Signal::Stop);
        let (bytes, fetched) = fetch(&cluster, &client, "/a");
        cluster.signal(2, Signal::Continue);
        assert!(bytes == all, "other bytes");
        fetched.hedged > 0
    });
}

#[test]
fn a_flowserver_chooses_copies_counts_flows_and_is_not_missed_when_it_dies() {
    let mut cluster = Cluster::with_flowserver(3);
    let place = tempfile::tempdir().expect("a directory");
    let (source, all) = local(place.path(), "source", 20 * MEGABYTE);
    let flowserver = cluster.addresses[4];
    let client = cluster.client().steered(Some(flowserver.into()));
    client.put(BytesSource::File(source), "/a", false, Some(3), &mut |_| {}).expect("servers live");
    in_order(&client);
    let state = || {
        let answer = ask(flowserver, "GET /evenfall/flows");
        let (_, body) = answer.split_once("\r\n\r\n").expect("an answer");
        serde_json::from_str::<Value>(body).expect("JSON")
    };
    // The client put 20 MB by one dataserver, which sent them to both others.
    assert_eq!(state()["writes"], 3);
    let mut steered = 0;
    until("no read is steered", || {
        let (bytes, fetched) = fetch(&cluster, &client, "/a");
        assert!(bytes == all, "other bytes");
        steered += u64::from(fetched.is_steered);
        // Where paths were set up beforehand, each copy is read over a chosen one.
        assert!(!fetched.is_steered || !fetched.paths.is_empty(), "{fetched:?}");
        assert!(fetched.paths.values().all(|path| path.starts_with("path-2")), "{fetched:?}");
        fetched.is_steered
    });
    until("flows stay", || state()["flows"] == 0);
    assert!(state()["reads"].as_u64() >= Some(steered));
    // A read that begins and is never heard of again.
    let copies = cluster.addresses[1].to_string();
    let read = format!("POST /evenfall/read?copies={copies}&length=1000000000");
    assert!(ask(flowserver, &read).contains("\"copy\":0"), "no copy");
    assert_eq!(state()["flows"], 1);
    until("a dead flow stays", || state()["flows"] == 0);
    assert!(state()["expired"].as_u64() >= Some(1));
    for wrong in ["read?copies=x", "end?flows=x", "count?counts=1", "nothing", "place?host=1.2"] {
        let answer = ask(flowserver, &format!("POST /evenfall/{wrong}"));
        assert!(answer.starts_with("HTTP/1.1 400 "), "{wrong}: {answer}");
    }
    cluster.kill(4);
    let (bytes, fetched) = fetch(&cluster, &client, "/a");
    assert!(bytes == all && !fetched.is_steered, "other bytes");
}

#[test]
fn damage_that_no_reader_meets_is_found_and_mended() {
    let cluster = Cluster::new(2);
    let place = tempfile::tempdir().expect("a directory");
    let (source, _) = local(place.path(), "source", MEGABYTE);
    let client = cluster.client();
    client.put(BytesSource::File(source), "/a", false, Some(2), &mut |_| {}).expect("servers live");
    in_order(&client);
    let folder = cluster.directory.path().join("2");
    let chunk = || {
        let entries = std::fs::read_dir(&folder).expect("a directory").flatten();
        let mut chunks = entries.filter(|entry| {
            let is_chunk = entry.file_name().to_string_lossy().starts_with('f');
            is_chunk && entry.metadata().is_ok_and(|about| about.len() > 0)
        });
        chunks.next().map(|entry| entry.path())
    };
    let path = chunk().expect("a copy");
    let good = std::fs::read(&path).expect("a chunk");
    let mut bad = good.clone();
    bad[500_000] ^= 1;
    std::fs::write(&path, &bad).expect("a flip");
    until("the copy is not made anew", || {
        chunk().is_some_and(|path| std::fs::read(path).is_ok_and(|bytes| bytes == good))
    });
}

#[test]
fn servers_refuse_the_log_of_an_earlier_build_and_change_no_file() {
    let directory = tempfile::tempdir().expect("a directory");
    // Before logs had a header, a log began with a record: length, checksum, body.
    let body = br#"{"Disk":{"disk":7}}"#;
    let sum = fnv1a(FNV_BASIS, body);
    let old = [&(body.len() as u32).to_le_bytes()[..], &sum.to_le_bytes(), body].concat();
    let chunk = chunk::log_name(InodeId(1), 0);
    for name in ["names", "copies", &chunk] {
        std::fs::write(directory.path().join(name), &old).expect("a file");
    }
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let options = Options::local(listen, listen, directory.path().to_owned());
    for (name, ended) in [
        ("names", run_nameserver(&options, || panic!("the nameserver starts"))),
        ("copies", run_dataserver(&options, || panic!("the dataserver starts"))),
    ] {
        let error = ended.expect_err("the log is refused").to_string();
        let path = directory.path().join(name).display().to_string();
        assert!(error.starts_with(&path) && error.contains("an earlier build"), "{error}");
    }
    for name in ["names", "copies", &chunk] {
        assert!(std::fs::read(directory.path().join(name)).expect("a file") == old, "{name}");
    }
}

#[test]
fn a_nameserver_with_an_old_log_changes_nothing_and_is_rebuilt() {
    let mut cluster = Cluster::new(1);
    let place = tempfile::tempdir().expect("a directory");
    let (source, all) = local(place.path(), "source", MEGABYTE);
    let client = cluster.client();
    let put = |path: &str| {
        let source = BytesSource::File(source.clone());
        client.put(source, path, false, Some(1), &mut |_| {}).expect("servers live");
    };
    put("/old");
    let log = cluster.directory.path().join("0").join("names");
    cluster.kill(0);
    let old = std::fs::read(&log).expect("a log");
    cluster.start(0);
    // Without a keeper, the newer file would be named in the log alone that is replaced below.
    until("no dataserver keeps the log", || !keepers(&client).is_empty());
    put("/newer");
    let before = stored(&cluster, 1);
    cluster.kill(0);
    std::fs::write(&log, old).expect("a log");
    cluster.start(0);
    until("the newer file is not noticed", || {
        client.report("fsck").expect("the nameserver lives")["unnamed"] == 1
    });
    let mut tried = 0;
    until("the old log is not noticed", || {
        // The old log knows of no keeper, so the first changes may be taken. A directory that is
        // there already is no change.
        tried += 1;
        let made = client.change(&format!("/x{tried}"), "MKDIRS", &[]);
        made.is_err_and(|error| error.to_string().contains("rebuild"))
    });
    assert!(read(&client, "/old") == all, "other bytes");
    assert!(client.get("/newer", "GETFILESTATUS", &[]).is_err());
    assert!(stored(&cluster, 1) >= before, "the newer file is gone");

    cluster.kill(0);
    let options = || {
        let directory = cluster.directory.path().join("0");
        Options::local(cluster.addresses[0], cluster.addresses[0], directory)
    };
    assert!(rebuild(&options(), &cluster.addresses[1..], false).is_err(), "there is a log");
    std::fs::remove_file(&log).expect("a log");
    rebuild(&options(), &cluster.addresses[1..], false).expect("a copy of the log");
    cluster.start(0);
    put("/another");
    for path in ["/old", "/newer", "/another"] {
        assert!(read(&client, path) == all, "other bytes in {path}");
    }
}

#[test]
fn a_cluster_takes_changes_again_when_dead_keepers_of_the_log_are_given_up() {
    let mut cluster = Cluster::new(2);
    let client = cluster.client();
    until("two dataservers keep no copies of the log", || keepers(&client).len() == 2);
    client.change("/before", "MKDIRS", &[]).expect("the keepers live");
    (1..=2).for_each(|number| cluster.kill(number));
    dataservers(&client, "dead", 2);
    // A client that does not try again sees the error.
    let hasty = FilesClient::new(&cluster.addresses[0].to_string(), "ann", Duration::ZERO);
    let mut refused = String::new();
    until("changes are not refused", || {
        let made = hasty.change("/refused", "MKDIRS", &[]);
        refused = made.map_or_else(|error| error.to_string(), |_| String::new());
        refused.contains("evenfall files forget")
    });
    // The beats of the two do not come at the same time, so the nameserver may have left one of
    // them out before it missed the other. The error names each dataserver that changes wait for.
    let name = |one: &Value| one["name"].as_str().expect("a name").to_owned();
    let dead = dataservers(&client, "dead", 2);
    let waited_for = dead.iter().filter(|one| keepers(&client).contains(&one["disk"]));
    let waited_for: Vec<String> = waited_for.map(name).collect();
    let named = dead.iter().map(name).filter(|name| refused.contains(name));
    assert_eq!(named.collect::<Vec<String>>(), waited_for, "{refused}");
    assert!(!waited_for.is_empty(), "{refused}");
    let forget = |servers: &str| hasty.order("forget", &[("server", servers)]);
    forget(&waited_for.join(",")).expect("they are dead");
    assert!(keepers(&client).is_empty());
    client.change("/after", "MKDIRS", &[]).expect("the dead are given up");

    std::fs::remove_dir_all(cluster.directory.path().join("1")).expect("a directory");
    cluster.start(1);
    until("a new dataserver keeps no copy of the log", || keepers(&client).len() == 1);
    let started = format!("port-{}", cluster.addresses[1].port());
    let lives = forget(&started).expect_err("it lives").to_string();
    assert!(lives.contains("decommission"), "{lives}");
    for path in ["/before", "/after"] {
        client.get(path, "GETFILESTATUS", &[]).expect("it was made");
    }
}

#[test]
fn a_nameserver_that_lost_its_disk_has_moves_and_deletions_out_of_the_dataservers() {
    let mut cluster = Cluster::new(4);
    let place = tempfile::tempdir().expect("a directory");
    let (source, all) = local(place.path(), "source", MEGABYTE);
    let client = cluster.client();
    dataservers(&client, "live", 4);
    until("no dataserver keeps the log", || !keepers(&client).is_empty());
    for path in ["/d/moved", "/deleted", "/kept"] {
        let source = BytesSource::File(source.clone());
        client.put(source, path, false, None, &mut |_| {}).expect("servers live");
    }
    let to = [("destination", "/d/e/here"), ("renameoptions", "NONE")];
    client.change("/d/e", "MKDIRS", &[]).expect("it lives");
    client.change("/d/moved", "RENAME", &to).expect("it lives");
    client.change("/kept", "SETOWNER", &[("owner", "bob")]).expect("it lives");
    assert!(client.delete("/deleted", false).expect("it lives"));
    // The last change follows all others, and is on the disks of the keepers.
    client.change("/last", "MKDIRS", &[]).expect("it lives");
    (0..=4).for_each(|number| cluster.kill(number));
    let directory = cluster.directory.path().join("0");
    std::fs::remove_dir_all(&directory).expect("a directory");
    let address = cluster.addresses[0];
    let options = || Options::local(address, address, directory.clone());
    let nobody = rebuild(&options(), &cluster.addresses[1..], false);
    assert!(nobody.expect_err("no dataserver lives").to_string().contains("none of"));
    let far = rebuild(&options(), &[([192, 0, 2, 1], 9_871).into()], false);
    assert!(far.expect_err("there is no key").to_string().contains("needs a key"));
    (1..=4).for_each(|number| cluster.start(number));
    until("no copy of the log", || rebuild(&options(), &cluster.addresses[1..], false).is_ok());
    cluster.start(0);
    assert!(read(&client, "/d/e/here") == all && read(&client, "/kept") == all, "other bytes");
    for gone in ["/deleted", "/d/moved"] {
        assert!(client.get(gone, "GETFILESTATUS", &[]).is_err(), "{gone}");
    }
    let status = client.get("/kept", "GETFILESTATUS", &[]).expect("it lives");
    assert_eq!(status["FileStatus"]["owner"], "bob");
    client.get("/last", "GETFILESTATUS", &[]).expect("it was there");
    in_order(&client);
}
