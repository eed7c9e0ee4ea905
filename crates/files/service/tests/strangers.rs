//! Clients that are foreign, and clients that mean harm.

use std::path::Path;
use std::process::Command;

use evenfall_files_service::BytesSource;

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
    let source = BytesSource::Stream(Box::new(&b"0123456789"[..]));
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
        ("PUT", "/d?op=CREATE&overwrite=true", 403, "FileAlreadyExistsException"),
        ("PUT", "/none/x?op=CREATE&createparent=false", 404, missing),
        ("PUT", "/d/file/x?op=CREATE", 403, "ParentNotDirectoryException"),
        ("PUT", "/d/file?op=MKDIRS", 403, "FileAlreadyExistsException"),
        ("PUT", "/d/file/x?op=MKDIRS", 403, "ParentNotDirectoryException"),
        ("PUT", "/x?op=CREATE&replication=0", 400, argument),
        ("PUT", "/x?op=CREATE&permission=9", 400, argument),
        ("PUT", "/d?op=RENAME", 400, argument),
        ("PUT", "/d?op=RENAME&destination=x", 400, argument),
        ("DELETE", "/d?op=DELETE", 403, "PathIsNotEmptyDirectoryException"),
        ("DELETE", "/?op=DELETE", 403, "PathIsNotEmptyDirectoryException"),
        ("DELETE", "/d?op=DELETE&recursive=perhaps", 400, argument),
        ("GET", "/d", 400, argument),
        ("GET", "/d?op=GETXATTRS", 400, unsupported),
        ("PUT", "/d?op=CREATESNAPSHOT", 400, unsupported),
        ("GET", "/d/file?op=CHECKACCESS&fsaction=yes", 400, argument),
        ("GET", "/none?op=CHECKACCESS&fsaction=r--", 404, missing),
        ("GET", "/d?op=GETFILEBLOCKLOCATIONS", 404, missing),
        ("POST", "/d/file?op=TRUNCATE", 400, argument),
        ("POST", "/d/file?op=TRUNCATE&newlength=11", 400, argument),
        ("POST", "/d?op=TRUNCATE&newlength=0", 404, missing),
        ("POST", "/d/file?op=CONCAT", 400, argument),
        ("POST", "/d/file?op=CONCAT&sources=/d/none", 404, missing),
        ("POST", "/d/file?op=CONCAT&sources=/d/file", 400, argument),
        ("PUT", "/d/file?op=REPLACE&with=/d/file", 400, argument),
        ("PUT", "/d/file?op=MAKE", 400, argument),
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
    let root = ask(names, "DELETE /webhdfs/v1/?op=DELETE&recursive=true");
    assert!(root.contains("{\"boolean\":false}"), "{root}");
    // The first step of CREATE makes nothing.
    let first = ask(names, "PUT /webhdfs/v1/d/new?op=CREATE");
    assert!(first.starts_with("HTTP/1.1 307 ") && first.contains("op=CREATE"), "{first}");
    is_refused(&ask(names, "GET /webhdfs/v1/d/new?op=GETFILESTATUS"), 404, missing);
    // Nothing of all this has changed anything.
    let mut all = Vec::new();
    client.open("/d/file", &mut all, &mut |_| {}, &mut |_| {}).expect("servers live");
    assert_eq!(all, b"0123456789");
}

#[test]
fn offsets_and_lengths_give_the_bytes_that_they_name() {
    let cluster = Cluster::new(1);
    let client = cluster.client();
    let source = BytesSource::Stream(Box::new(&b"0123456789"[..]));
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

#[test]
fn files_are_cut_and_joined_as_one_change() {
    let cluster = Cluster::new(3);
    let client = cluster.client();
    let post = |path: &str| ask(cluster.addresses[0], &format!("POST /webhdfs/v1{path}"));
    for (path, bytes) in [("/d/a", "0123456789"), ("/d/b", "abc"), ("/d/c", "xyz")] {
        let source = BytesSource::Stream(Box::new(bytes.as_bytes()));
        client.put(source, path, false, None, &mut |_| {}).expect("servers live");
    }
    client.change("/d/a", "SETPERMISSION", &[("permission", "640")]).expect("it lives");
    let is_done = |answer: &str| assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    is_done(&post("/d/a?op=TRUNCATE&newlength=4"));
    is_done(&post("/d/a?op=CONCAT&sources=/d/c,/d/b"));
    let mut all = Vec::new();
    client.open("/d/a", &mut all, &mut |_| {}, &mut |_| {}).expect("servers live");
    assert_eq!(all, b"0123xyzabc");
    is_done(&post("/d/a?op=TRUNCATE&newlength=0"));
    let status = client.get("/d", "LISTSTATUS", &[]).expect("it lives");
    let list = status["FileStatuses"]["FileStatus"].as_array().expect("statuses");
    assert_eq!(list.len(), 1, "{status}");
    let shown = (&list[0]["pathSuffix"], &list[0]["length"], &list[0]["permission"]);
    assert_eq!(shown, (&"a".into(), &0.into(), &"640".into()));
}

#[test]
fn a_file_is_replaced_only_while_it_is_the_one_that_the_caller_knows() {
    let cluster = Cluster::new(1);
    let client = cluster.client();
    for path in ["/d/a", "/d/b", "/d/c"] {
        let source = BytesSource::Stream(Box::new(path.as_bytes()));
        client.put(source, path, false, Some(1), &mut |_| {}).expect("servers live");
    }
    let status = client.get("/d/a", "GETFILESTATUS", &[]).expect("it lives");
    let was = format!("{}:{}", status["FileStatus"]["fileId"], status["FileStatus"]["length"]);
    let replace = |with| {
        let request = format!("PUT /webhdfs/v1/d/a?op=REPLACE&with={with}&was={was}");
        ask(cluster.addresses[0], &request)
    };
    let first = replace("/d/b");
    assert!(first.starts_with("HTTP/1.1 200 "), "{first}");
    is_refused(&replace("/d/c"), 403, "ConcurrentModificationException");
    let mut all = Vec::new();
    client.open("/d/a", &mut all, &mut |_| {}, &mut |_| {}).expect("servers live");
    assert_eq!(all, b"/d/b");
}

#[test]
fn hadoop_is_told_of_blocks_and_defaults_in_its_own_words() {
    let cluster = Cluster::new(2);
    let client = cluster.client();
    let source = BytesSource::Stream(Box::new(&b"0123456789"[..]));
    client.put(source, "/f", false, Some(2), &mut |_| {}).expect("servers live");
    let get = |path: &str, op: &str| client.get(path, op, &[]).expect("it lives");
    let blocks = get("/f", "GETFILEBLOCKLOCATIONS");
    let block = &blocks["BlockLocations"]["BlockLocation"][0];
    assert_eq!((&block["offset"], &block["length"]), (&0.into(), &10.into()), "{blocks}");
    let mut names: Vec<String> = cluster.addresses[1..].iter().map(ToString::to_string).collect();
    let mut told: Vec<&str> =
        block["names"].as_array().expect("names").iter().filter_map(|name| name.as_str()).collect();
    names.sort_unstable();
    told.sort_unstable();
    assert_eq!(told, names);
    let blocks = get("/f", "GET_BLOCK_LOCATIONS");
    assert_eq!(blocks["LocatedBlocks"]["locatedBlocks"][0]["block"]["numBytes"], 10);
    assert_eq!(get("/", "GETSERVERDEFAULTS")["FsServerDefaults"]["blockSize"], 128 << 20);
    assert_eq!(get("/f", "GETTRASHROOT")["Path"], "/user/ann/.Trash");
    assert_eq!(get("/", "GETQUOTAUSAGE")["QuotaUsage"]["fileAndDirectoryCount"], 2);
    assert!(get("/", "GETSTATUS")["FsStatus"]["remaining"].as_u64().is_some_and(|left| left > 0));
    assert_eq!(get("/f", "GETACLSTATUS")["AclStatus"]["permission"], "644");
    assert_eq!(get("/", "GETDELEGATIONTOKEN")["Token"], serde_json::Value::Null);
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
