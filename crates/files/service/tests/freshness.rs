//! A reader that asks after an append was acknowledged gets the append, whichever dataserver it
//! reads.

use std::net::SocketAddr;

use evenfall_files_service::{BytesSource, FilesClient};

use super::cluster::{Cluster, ask};
use super::operating::until;
use super::processes::in_order;

/// Redirects from a dataserver that lacks bytes to one that has them.
const REDIRECTS_MAX: usize = 3;

/// The address in a URL, and what follows the address.
fn parts_of(url: &str) -> (SocketAddr, String) {
    let rest = url.strip_prefix("http://").unwrap_or_else(|| panic!("no URL: {url}"));
    let (host, path) = rest.split_once('/').expect("a path");
    (host.parse().expect("an address"), format!("/{path}"))
}

/// What the dataserver of this number answers to a reader whom the nameserver has sent there.
/// `None` when the nameserver does not send anybody there yet.
fn read_at(cluster: &Cluster, client: &FilesClient, number: usize) -> Option<String> {
    let own = cluster.addresses[number];
    let others = cluster.addresses[1..].iter().filter(|address| **address != own);
    let others: Vec<String> = others.map(SocketAddr::to_string).collect();
    let others = others.join(",");
    let arguments = [("noredirect", "true"), ("excludedatanodes", others.as_str())];
    let found = client.get("/a", "OPEN", &arguments).ok()?;
    let (mut at, mut path) = parts_of(found["Location"].as_str()?);
    assert_eq!(at, own, "another dataserver");
    for _ in 0..REDIRECTS_MAX {
        let answer = ask(at, &format!("GET {path}"));
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        if head.starts_with("HTTP/1.1 200 ") {
            return Some(body.to_owned());
        }
        let location = head.lines().find_map(|line| line.strip_prefix("location: "));
        (at, path) = parts_of(location.unwrap_or_else(|| panic!("no bytes: {answer}")));
    }
    panic!("redirects without end");
}

#[test]
fn a_reader_gets_what_was_acknowledged_before_it_asked_from_any_dataserver() {
    let mut cluster = Cluster::new(3);
    let client = cluster.client();
    let begin = BytesSource::Stream(Box::new(&b"begin"[..]));
    client.put(begin, "/a", false, Some(3), &mut |_| {}).expect("servers live");
    in_order(&client);
    let mut written = "begin".to_owned();
    for turn in 0..12 {
        let more = format!(" append {turn}");
        let source = BytesSource::Bytes(more.clone().into());
        client.append(source, "/a", &mut |_| {}).expect("servers live");
        written += &more;
        // A nameserver that starts again knows every length that was acknowledged.
        if turn == 6 {
            cluster.kill(0);
            cluster.start(0);
        }
        for number in 1..=3 {
            let mut read = None;
            until("the nameserver knows no such dataserver", || {
                read = read_at(&cluster, &client, number);
                read.is_some()
            });
            assert_eq!(read.as_deref(), Some(written.as_str()), "dataserver {number}");
        }
    }
}
