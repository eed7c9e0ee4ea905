//! Clients that are foreign, and clients that mean harm.

use std::path::Path;
use std::process::Command;

use evenfall_files_service::Source;

use super::cluster::{Cluster, ask, raw};

/// Asserts that an answer has this status and this exception.
#[track_caller]
fn is_refused(answer: &str, status: u16, exception: &str) {
    let is_status = answer.starts_with(&format!("HTTP/1.1 {status} "));
    let named = format!("\"exception\":\"{exception}\"");
    assert!(is_status && answer.contains(&named), "not {status} {exception}: {answer:.600}");
}

#[test]
fn requests_that_cannot_be_answered_get_the_exceptions_of_hadoop() {
    let cluster = Cluster::new(1);
    let names = cluster.addresses[0];
    let client = cluster.client();
    let source = Source::Stream(Box::new(&b"0123456789"[..]));
    client.put(source, "/d/file", false, Some(1), &mut |_| {}).expect("servers live");
    let long = "x".repeat(10_000);
    let deep = "/a".repeat(3_000);
    let argument = "IllegalArgumentException";
    let unsupported = "UnsupportedOperationException";
    let missing = "FileNotFoundException";
    let cases = [
        ("GET", "/d/../file?op=OPEN", 400, argument),
        ("GET", "/d/%2e%2e/file?op=GETFILESTATUS", 400, argument),
        ("GET", "/a%00b?op=GETFILESTATUS", 400, argument),
        ("PUT", "/a%00b?op=MKDIRS", 400, argument),
        ("GET", "/%ff?op=GETFILESTATUS", 400, argument),
        ("GET", &format!("/{long}?op=GETFILESTATUS"), 400, argument),
        ("PUT", &format!("{deep}?op=MKDIRS"), 400, argument),
        ("GET", "/d/file?op=OPEN&offset=-1", 400, argument),
        ("GET", "/d/file?op=OPEN&length=-1", 400, argument),
        ("GET", "/d/file?op=OPEN&offset=99999999999999999999", 400, argument),
        ("GET", "/d/file?op=OPEN&offset=11", 403, "IOException"),
        ("GET", "/d?op=OPEN", 404, missing),
        ("GET", "/none?op=OPEN", 404, missing),
        ("GET", "/none?op=LISTSTATUS", 404, missing),
        ("POST", "/none?op=APPEND", 404, missing),
        ("PUT", "/d/file?op=CREATE", 403, "FileAlreadyExistsException"),
        ("PUT", "/d?op=CREATE&overwrite=true", 404, missing),
        ("PUT", "/d/file?op=MKDIRS", 403, "FileAlreadyExistsException"),
        ("PUT", "/d/file/x?op=MKDIRS", 403, "ParentNotDirectoryException"),
        ("PUT", "/x?op=CREATE&replication=0", 400, argument),
        ("PUT", "/x?op=CREATE&permission=9", 400, argument),
        ("PUT", "/d?op=RENAME", 400, argument),
        ("PUT", "/d?op=RENAME&destination=x", 400, argument),
        ("DELETE", "/d?op=DELETE", 403, "PathIsNotEmptyDirectoryException"),
        ("DELETE", "/?op=DELETE&recursive=true", 400, argument),
        ("DELETE", "/d?op=DELETE&recursive=perhaps", 400, argument),
        ("GET", "/d", 400, argument),
        ("GET", "/d?op=GETXATTRS", 400, unsupported),
        ("PUT", "/d?op=CREATESNAPSHOT", 400, unsupported),
        ("POST", "/d/file?op=TRUNCATE&newlength=1", 400, unsupported),
        ("POST", "/d/file?op=CONCAT&sources=/x", 400, unsupported),
        ("PATCH", "/d/file?op=OPEN", 400, unsupported),
    ];
    for (method, path, status, exception) in cases {
        let answer = ask(names, &format!("{method} /webhdfs/v1{path}"));
        is_refused(&answer, status, exception);
    }
    is_refused(&ask(names, "GET /other"), 400, unsupported);
    let foreign = "POST /webhdfs/v1/d/file?op=APPEND HTTP/1.1\r\nHost: 127.0.0.1\r\n\
                   Origin: http://example.org\r\nConnection: close\r\n\r\n";
    is_refused(&raw(names, foreign.as_bytes()), 403, "AccessControlException");
    let rebound = "GET /webhdfs/v1/?op=LISTSTATUS HTTP/1.1\r\nHost: example.org\r\n\
                   Connection: close\r\n\r\n";
    is_refused(&raw(names, rebound.as_bytes()), 403, "AccessControlException");

    let data = cluster.addresses[1];
    for (request, status, exception) in [
        ("GET /webhdfs/v1/d/file?op=OPEN", 400, argument),
        ("GET /webhdfs/v1/d/file?op=OPEN&file=-1", 400, argument),
        ("GET /webhdfs/v1/d/file?op=LISTSTATUS&file=1", 400, unsupported),
        ("PUT /webhdfs/v1/d/file?op=MKDIRS&file=1", 400, unsupported),
    ] {
        is_refused(&ask(data, request), status, exception);
    }
    // Nothing of all this has changed anything.
    let mut all = Vec::new();
    client.open("/d/file", &mut all, &mut |_| {}, &mut |_| {}).expect("servers live");
    assert_eq!(all, b"0123456789");
}

#[test]
fn offsets_and_lengths_give_the_bytes_that_they_name() {
    let cluster = Cluster::new(1);
    let client = cluster.client();
    let source = Source::Stream(Box::new(&b"0123456789"[..]));
    client.put(source, "/f", false, Some(1), &mut |_| {}).expect("servers live");
    for (query, wanted) in [
        ("", "0123456789"),
        ("&offset=4", "456789"),
        ("&offset=4&length=3", "456"),
        ("&offset=8&length=100", "89"),
        ("&length=0", ""),
        ("&offset=10", ""),
    ] {
        let answer = ask(cluster.addresses[0], &format!("GET /webhdfs/v1/f?op=OPEN{query}"));
        let to = answer.lines().find_map(|line| line.strip_prefix("location: http://"));
        let (host, rest) = to.expect("a redirect").split_once('/').expect("a path");
        let answer = ask(host.parse().expect("an address"), &format!("GET /{rest}"));
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(body, wanted, "{query}");
    }
}

#[test]
fn a_directory_of_more_entries_than_a_page_is_listed_whole() {
    let cluster = Cluster::new(1);
    let client = cluster.client();
    let expected: Vec<String> = (0..2_500).map(|n| format!("{n:04}")).collect();
    std::thread::scope(|scope| {
        for names in expected.chunks(125) {
            let client = client.clone();
            scope.spawn(move || {
                for name in names {
                    client.change(&format!("/many/{name}"), "MKDIRS", &[]).expect("it lives");
                }
            });
        }
    });
    let list = client.get("/many", "LISTSTATUS", &[]).expect("it lives");
    let list = list["FileStatuses"]["FileStatus"].as_array().expect("statuses").iter();
    let names: Vec<&str> = list.map(|one| one["pathSuffix"].as_str().expect("a name")).collect();
    assert_eq!(names, expected);
    let mut paged = Vec::new();
    let mut each = |one: &serde_json::Value| paged.push(one["pathSuffix"].to_string());
    client.list("/many", &mut each).expect("it lives");
    assert!(paged.iter().map(|name| name.trim_matches('"')).eq(&expected));
    let sums = client.get("/", "GETCONTENTSUMMARY", &[]).expect("it lives");
    assert_eq!(sums["ContentSummary"]["directoryCount"], 2_502);
    let page = [("startafter", "0999")];
    let page = client.get("/many", "LISTSTATUS_BATCH", &page).expect("it lives");
    let page = &page["DirectoryListing"];
    let list = page["partialListing"]["FileStatuses"]["FileStatus"].as_array().expect("statuses");
    assert_eq!((list.len(), &list[0]["pathSuffix"]), (1_000, &"1000".into()));
    assert_eq!(page["remainingEntries"], 500);
}

/// `hdfs` and `fsspec` are clients of WebHDFS in Python. `scripts/deps.sh` installs them.
#[test]
fn clients_in_python_find_what_they_expect() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = folder.join("../../../target/venv-webhdfs/bin/python");
    if !python.exists() {
        println!("skipped: no hdfs and fsspec (scripts/deps.sh installs them)");
        return;
    }
    let cluster = Cluster::new(3);
    // The first request waits for the servers.
    cluster.client().change("/python", "MKDIRS", &[]).expect("it lives");
    let script = folder.join("tests/webhdfs.py");
    let server = cluster.addresses[0].to_string();
    let said = Command::new(python).arg(script).arg(server).output().expect("Python");
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success() && out.contains("all there"), "{out}\n{err}");
}
