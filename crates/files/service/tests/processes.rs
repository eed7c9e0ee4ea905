//! Files survive the death of their servers.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenfall_core::Prng;
use evenfall_files_service::{BytesSource, FilesClient};
use evenfall_host::process::Signal;

use super::cluster::{Cluster, PATIENCE, ask};

pub const MEGABYTE: usize = 1_000_000;

/// A local file of random bytes, and the bytes.
pub fn local(directory: &Path, name: &str, length: usize) -> (PathBuf, Vec<u8>) {
    let mut prng = Prng::new(length as u64);
    let mut bytes: Vec<u8> = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend(prng.next_u64().to_le_bytes());
    }
    bytes.truncate(length);
    let path = directory.join(name);
    std::fs::write(&path, &bytes).expect("a file");
    (path, bytes)
}

pub fn read(client: &FilesClient, path: &str) -> Vec<u8> {
    let mut all = Vec::new();
    let length = client.open(path, &mut all, &mut |_| {}, &mut |_| {}).expect("servers answer");
    assert_eq!(length, all.len() as u64);
    all
}

/// Waits until every file has all its copies.
pub fn in_order(client: &FilesClient) {
    let end = Instant::now() + PATIENCE;
    loop {
        let report = client.report("fsck").expect("the nameserver lives");
        if report["wrong"].as_array().is_some_and(Vec::is_empty) {
            return;
        }
        assert!(Instant::now() < end, "{report}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Appends a local file, and kills a server while the bytes are on their way. `choose` gets the
/// number of the primary, and returns the number of the server to kill. The killed server is
/// started again. Another dataserver stands still from the first byte until that start, so that the
/// append cannot end before the kill.
fn append_and_kill(cluster: &mut Cluster, source: &Path, path: &str, choose: fn(usize) -> usize) {
    let client = cluster.client();
    let primary = cluster.number(cluster.primary(path));
    let victim = choose(primary);
    let still = (1..=3).find(|number| ![primary, victim].contains(number)).expect("a follower");
    let (begin, begun) = std::sync::mpsc::sync_channel::<()>(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            begun.recv().expect("the append begins");
            cluster.signal(still, Signal::Stop);
            begun.recv().expect("the append goes on");
            std::thread::sleep(Duration::from_millis(300));
            cluster.kill(victim);
            cluster.start(victim);
            cluster.signal(still, Signal::Continue);
        });
        let mut begin = Some(begin);
        let mut tell = |_| {
            if let Some(begin) = begin.take() {
                (0..2).for_each(|_| begin.send(()).expect("the other thread waits"));
            }
        };
        client
            .append(BytesSource::File(source.to_owned()), path, &mut tell)
            .expect("two of three live");
    });
}

#[test]
fn what_was_put_and_appended_survives_kill_9_of_each_server_and_of_all_together() {
    let mut cluster = Cluster::new(3);
    let place = tempfile::tempdir().expect("a directory");
    let (source, mut all) = local(place.path(), "first", 20 * MEGABYTE);
    let client = cluster.client();
    client
        .put(BytesSource::File(source), "/d/big", false, None, &mut |_| {})
        .expect("servers live");
    assert!(read(&client, "/d/big") == all, "other bytes after the put");

    let primary: fn(usize) -> usize = |primary| primary;
    let follower = |primary| 1 + primary % 3;
    for (name, choose, megabytes) in
        [("primary", primary, 15), ("follower", follower, 12), ("nameserver", |_| 0, 10)]
    {
        let (source, more) = local(place.path(), name, megabytes * MEGABYTE);
        append_and_kill(&mut cluster, &source, "/d/big", choose);
        all.extend(more);
        assert!(read(&client, "/d/big") == all, "other bytes after the death of the {name}");
    }
    in_order(&client);
    let sum = checksum(&client, &cluster, "/d/big");
    assert_eq!(sum, format!("{:08x}", crc32c::crc32c(&all)));

    // All servers end at once, and go on from their directories.
    (0..=3).for_each(|number| cluster.kill(number));
    (0..=3).for_each(|number| cluster.start(number));
    assert!(read(&client, "/d/big") == all, "other bytes after the restart");
    in_order(&client);
    // Each copy alone has all bytes.
    for number in 1..=3 {
        let others = (1..=3).filter(|other| *other != number);
        let others: Vec<String> = others.map(|n| cluster.addresses[n].to_string()).collect();
        let query = format!("op=OPEN&excludedatanodes={}", others.join(","));
        let answer = ask(cluster.addresses[0], &format!("GET /webhdfs/v1/d/big?{query}"));
        assert!(answer.contains(&format!("http://{}/", cluster.addresses[number])), "{answer}");
        assert_eq!(checksum(&client, &cluster, "/d/big"), sum);
    }
}

/// The checksum of a file as the next copy in turn says it.
fn checksum(client: &FilesClient, cluster: &Cluster, path: &str) -> String {
    let arguments = [("noredirect", "true"), ("combine", "COMPOSITE_CRC")];
    let to = client.get(path, "GETFILECHECKSUM", &arguments).expect("servers live");
    let to = to["Location"].as_str().expect("a location").to_owned();
    let (host, rest) = to.strip_prefix("http://").expect("HTTP").split_once('/').expect("a path");
    let server = cluster.addresses[cluster.number(host.parse().expect("an address"))];
    let answer = ask(server, &format!("GET /{rest}"));
    let found = answer.split("\"bytes\":\"").nth(1).and_then(|rest| rest.split('"').next());
    found.unwrap_or_else(|| panic!("no checksum: {answer}")).to_owned()
}

#[test]
fn a_flipped_byte_on_a_disk_is_read_elsewhere_and_the_copy_is_made_anew() {
    let cluster = Cluster::new(3);
    let place = tempfile::tempdir().expect("a directory");
    let (source, all) = local(place.path(), "source", MEGABYTE);
    let client = cluster.client();
    client.put(BytesSource::File(source), "/a", false, None, &mut |_| {}).expect("servers live");
    let folder = cluster.directory.path().join("1");
    let chunk = || {
        let entries = std::fs::read_dir(&folder).expect("a directory").flatten();
        let mut chunks = entries.filter(|entry| {
            let is_chunk = entry.file_name().to_string_lossy().starts_with('f');
            is_chunk && entry.metadata().is_ok_and(|about| about.len() > 0)
        });
        chunks.next().map(|entry| std::fs::read(entry.path()).expect("a chunk"))
    };
    let good = chunk().expect("a copy");
    let mut bad = good.clone();
    bad[500_000] ^= 1;
    let name = std::fs::read_dir(&folder).expect("a directory").flatten();
    let name = name
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('f')));
    std::fs::write(name.expect("a chunk"), &bad).expect("a flip");
    // Copies take turns, so that three readings meet each of them.
    (0..3).for_each(|_| assert!(read(&client, "/a") == all, "other bytes"));
    let end = Instant::now() + PATIENCE;
    while chunk().as_ref() != Some(&good) {
        assert!(Instant::now() < end, "the copy is not made anew");
        std::thread::sleep(Duration::from_millis(50));
        assert!(read(&client, "/a") == all, "other bytes");
    }
    in_order(&client);
}

#[test]
fn a_source_that_is_cut_leaves_what_came_and_its_length_is_known() {
    /// Gives some bytes and fails.
    struct Cut(usize);
    impl std::io::Read for Cut {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let len = out.len().min(self.0);
            self.0 -= len;
            out[..len].fill(7);
            match len {
                0 => Err(std::io::Error::other("the source has ended")),
                len => Ok(len),
            }
        }
    }
    let cluster = Cluster::new(2);
    let client = cluster.client();
    let cut = BytesSource::Stream(Box::new(Cut(3_000_000)));
    assert!(client.put(cut, "/cut", false, None, &mut |_| {}).is_err());
    // The dataserver makes the file when the first bytes come, for which the client does not wait.
    // So many bytes leave before the source ends.
    let end = Instant::now() + PATIENCE;
    while client.get("/cut", "GETFILESTATUS", &[]).is_err() {
        assert!(Instant::now() < end, "the file is not made");
        std::thread::sleep(Duration::from_millis(20));
    }
    let whole = BytesSource::Stream(Box::new(&b"end"[..]));
    client.append(whole, "/cut", &mut |_| {}).expect("servers live");
    let all = read(&client, "/cut");
    let (sevens, end) = all.split_at(all.len() - 3);
    assert!(sevens.len() <= 3_000_000 && sevens.iter().all(|byte| *byte == 7), "{}", sevens.len());
    assert_eq!(end, b"end");
    assert!(
        client
            .put(BytesSource::Stream(Box::new(&b"x"[..])), "/cut", false, None, &mut |_| {})
            .is_err_and(|error| error.to_string() == "/cut exists already")
    );
}
