//! Full disks, lost directories, and two writers of one file.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use evenfall_files_service::{BytesSource, FilesClient};

use super::cluster::{Cluster, ask};
use super::operating::{stored, until};
use super::processes::{MEGABYTE, in_order, local, read};

/// Bytes of a disk that a test fills.
const SMALL_MEGABYTES: usize = 12;

#[test]
fn a_full_disk_refuses_a_write_by_its_name_and_keeps_what_was_acknowledged() {
    let Some(cluster) = Cluster::with_small_disk(1, SMALL_MEGABYTES) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let (kept, kept_bytes) = local(place.path(), "kept", MEGABYTE);
    let (big, big_bytes) = local(place.path(), "big", 20 * MEGABYTE);
    let client = cluster.client();
    let source = || BytesSource::File(kept.clone());
    client.put(source(), "/kept", false, Some(1), &mut |_| {}).expect("there is room");
    let names = cluster.addresses[0].to_string();
    let hasty = FilesClient::new(&names, "ann", Duration::from_secs(3));
    let refused = hasty.put(BytesSource::File(big), "/big", false, Some(1), &mut |_| {});
    let refused = refused.expect_err("the file is larger than the disk").to_string();
    assert!(refused.contains("the disk of the dataserver is full"), "{refused}");
    assert!(read(&client, "/kept") == kept_bytes, "other bytes");
    // The file has the bytes that were acknowledged, and no others.
    let there = read(&client, "/big");
    assert!(!there.is_empty() && big_bytes.starts_with(&there), "{} bytes", there.len());

    // The disk has room for the log of the nameserver, whatever comes.
    for number in 0..100 {
        let name = format!("/a-directory-of-a-long-name-so-that-the-records-fill-pages-{number}");
        client.change(&name, "MKDIRS", &[]).expect("a record needs no room of chunks");
    }
    assert!(client.delete("/big", false).expect("it lives"));
    client.put(source(), "/again", false, Some(1), &mut |_| {}).expect("there is room again");
    assert!(read(&client, "/again") == kept_bytes, "other bytes");
}

#[test]
fn a_file_goes_on_without_a_dataserver_whose_disk_is_full() {
    let Some(mut cluster) = Cluster::with_small_disk(3, SMALL_MEGABYTES) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let (big, all) = local(place.path(), "big", 20 * MEGABYTE);
    let client = cluster.client();
    client.put(BytesSource::File(big), "/big", false, Some(3), &mut |_| {}).expect("two have room");
    assert!(read(&client, "/big") == all, "other bytes");
    let primary = cluster.number(cluster.primary("/big"));
    cluster.kill(primary);
    assert!(read(&client, "/big") == all, "other bytes on the other disk");
}

#[test]
fn a_dataserver_whose_directory_is_gone_gets_its_copies_anew() {
    let mut cluster = Cluster::new(3);
    let place = tempfile::tempdir().expect("a directory");
    let (source, mut all) = local(place.path(), "source", 3 * MEGABYTE);
    let (more, more_bytes) = local(place.path(), "more", 2 * MEGABYTE);
    let client = cluster.client();
    client.put(BytesSource::File(source), "/a", false, Some(3), &mut |_| {}).expect("servers live");
    in_order(&client);
    std::fs::remove_dir_all(cluster.directory.path().join("1")).expect("a directory");
    client.append(BytesSource::File(more), "/a", &mut |_| {}).expect("two directories are there");
    all.extend(more_bytes);
    // Copies take turns.
    (0..3).for_each(|_| assert!(read(&client, "/a") == all, "other bytes"));
    cluster.kill(1);
    cluster.start(1);
    until("the copy is not made anew", || stored(&cluster, 1) == stored(&cluster, 2));
    in_order(&client);
    (2..=3).for_each(|number| cluster.kill(number));
    assert!(read(&client, "/a") == all, "other bytes in the new copy");
}

#[test]
fn a_second_writer_of_a_file_is_refused_until_the_first_has_ended() {
    let cluster = Cluster::new(2);
    let client = cluster.client();
    let source = BytesSource::Stream(Box::new(&b"begin "[..]));
    client.put(source, "/a", false, Some(2), &mut |_| {}).expect("servers live");
    let names = cluster.addresses[0];
    let answer = ask(names, "POST /webhdfs/v1/a?op=APPEND");
    let to = answer.lines().find_map(|line| line.strip_prefix("location: http://"));
    let (host, path) = to.expect("a redirect").split_once('/').expect("a path");
    let mut first = TcpStream::connect(host).expect("it lives");
    let head = format!(
        "POST /{path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 12\r\n\
         Connection: close\r\n\r\nfirst "
    );
    first.write_all(head.as_bytes()).expect("it lives");
    // The two have one lease. A second writer that came first would end it.
    let leases = || client.report("leases").expect("it lives")["leases"].clone();
    until("nobody holds the lease", || leases()[0]["path"] == "/a");
    let exception = "\"exception\":\"AlreadyBeingCreatedException\"";
    let data = host.parse().expect("an address");
    until("the second writer is not refused", || {
        let second = ask(data, &format!("POST /{path}"));
        second.starts_with("HTTP/1.1 403 ") && second.contains(exception)
    });
    first.write_all(b"writer").expect("it lives");
    let mut answer = String::new();
    first.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(read(&client, "/a"), b"begin first writer");
    let second = BytesSource::Stream(Box::new(&b" second"[..]));
    client.append(second, "/a", &mut |_| {}).expect("the first writer has ended");
    assert_eq!(read(&client, "/a"), b"begin first writer second");

    // A writer that dies in the middle of an append leaves the file to the next writer.
    let mut dead = TcpStream::connect(host).expect("it lives");
    dead.write_all(head.as_bytes()).expect("it lives");
    drop(dead);
    let third = BytesSource::Stream(Box::new(&b" third"[..]));
    client.append(third, "/a", &mut |_| {}).expect("the writer is dead");
    let all = read(&client, "/a");
    assert!(all.starts_with(b"begin first writer second") && all.ends_with(b" third"));
}

#[test]
fn a_writer_that_slept_past_its_lease_is_refused_by_name() {
    let cluster = Cluster::with_short_leases(2);
    let client = cluster.client();
    let source = BytesSource::Stream(Box::new(&b"begin "[..]));
    client.put(source, "/a", false, Some(2), &mut |_| {}).expect("servers live");
    let answer = ask(cluster.addresses[0], "POST /webhdfs/v1/a?op=APPEND&user.name=ann");
    let to = answer.lines().find_map(|line| line.strip_prefix("location: http://"));
    let (host, path) = to.expect("a redirect").split_once('/').expect("a path");
    let mut first = TcpStream::connect(host).expect("it lives");
    let head = format!(
        "POST /{path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 12\r\n\
         Connection: close\r\n\r\nfirst "
    );
    first.write_all(head.as_bytes()).expect("it lives");
    let leases = || client.report("leases").expect("it lives")["leases"].clone();
    until("nobody holds the lease", || leases()[0]["path"] == "/a");
    let words = leases()[0]["words"].as_str().unwrap_or_default().to_owned();
    assert!(words.starts_with("ann@127.") && words.contains(" since "), "{words}");

    // A client that makes the file anew is refused too, unless it overwrites. The client that
    // appends waits until the soft limit is over, and then until the lease has ended.
    let create = ask(cluster.addresses[0], "PUT /webhdfs/v1/a?op=CREATE");
    let classes = ["AlreadyBeingCreatedException", "RecoveryInProgressException"];
    assert!(classes.iter().any(|class| create.contains(class)), "{create}");
    let second = BytesSource::Stream(Box::new(&b"second"[..]));
    client.append(second, "/a", &mut |_| {}).expect("the first writer sleeps");

    first.write_all(b"writer").expect("the server waits for the rest");
    let mut answer = String::new();
    first.read_to_string(&mut answer).expect("an answer");
    let exception = "\"exception\":\"LeaseExpiredException\"";
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains(exception), "{answer}");
    let all = read(&client, "/a");
    let text = String::from_utf8_lossy(&all);
    assert!(["begin second", "begin first second"].contains(&&*text), "{text}");
    assert_eq!(leases(), serde_json::json!([]));
}

#[test]
fn two_clients_that_append_at_once_never_mix_their_bytes() {
    let cluster = Cluster::new(2);
    let place = tempfile::tempdir().expect("a directory");
    let client = cluster.client();
    let source = BytesSource::Stream(Box::new(&b"begin"[..]));
    client.put(source, "/a", false, Some(2), &mut |_| {}).expect("servers live");
    let (one, one_bytes) = local(place.path(), "one", 3 * MEGABYTE);
    let (other, other_bytes) = local(place.path(), "other", 4 * MEGABYTE);
    let append = |source| client.append(BytesSource::File(source), "/a", &mut |_| {}).is_ok();
    let done = std::thread::scope(|scope| {
        let one = scope.spawn(|| append(one));
        let other = append(other);
        [one.join().expect("no panic"), other]
    });
    assert!(done[0] || done[1], "neither append is done");
    let all = read(&client, "/a");
    let parts = |first: &[u8], second: &[u8]| [b"begin", first, second].concat() == all;
    let is_whole = match done {
        [true, false] => parts(&one_bytes, &[]),
        [false, true] => parts(&other_bytes, &[]),
        _ => parts(&one_bytes, &other_bytes) || parts(&other_bytes, &one_bytes),
    };
    assert!(is_whole, "{done:?}: {} bytes", all.len());
}
