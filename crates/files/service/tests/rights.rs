//! What users may do, and what Hadoop's clients ask beside bytes.

use evenfall_files_service::BytesSource;

use super::cluster::{Cluster, ask};

/// Asserts that an answer is a refusal for want of a right.
#[track_caller]
fn is_denied(answer: &str) {
    let is_it = answer.starts_with("HTTP/1.1 403 ")
        && answer.contains("\"exception\":\"AccessControlException\"");
    assert!(is_it, "not denied: {answer:.400}");
}

#[test]
fn a_user_without_rights_reads_and_changes_nothing() {
    let cluster = Cluster::new(1);
    let names = cluster.addresses[0];
    let source = BytesSource::Stream(Box::new(&b"0123456789"[..]));
    cluster.client().put(source, "/d/f", false, Some(1), &mut |_| {}).expect("servers live");
    let set = "PUT /webhdfs/v1/d/f?op=SETPERMISSION&permission=640&user.name=ann";
    assert!(ask(names, set).starts_with("HTTP/1.1 200 "));
    for request in [
        "GET /webhdfs/v1/d/f?op=OPEN",
        "GET /webhdfs/v1/d/f?op=GETFILECHECKSUM",
        "GET /webhdfs/v1/d/f?op=GET_BLOCK_LOCATIONS",
        "GET /webhdfs/v1/d/f?op=CHECKACCESS&fsaction=r--",
        "POST /webhdfs/v1/d/f?op=APPEND",
        "POST /webhdfs/v1/d/f?op=TRUNCATE&newlength=1",
        "POST /webhdfs/v1/d/f?op=CONCAT&sources=/d/f",
        "PUT /webhdfs/v1/d/f?op=CREATE&overwrite=true",
        "PUT /webhdfs/v1/d/g?op=CREATE",
        "PUT /webhdfs/v1/d/e?op=MKDIRS",
        "PUT /webhdfs/v1/d/f?op=RENAME&destination=/d/g",
        "PUT /webhdfs/v1/d/f?op=SETPERMISSION&permission=777",
        "PUT /webhdfs/v1/d/f?op=SETOWNER&owner=no-such-user",
        "PUT /webhdfs/v1/d/f?op=SETTIMES&modificationtime=1",
        "PUT /webhdfs/v1/d/f?op=SETREPLICATION&replication=2",
        "DELETE /webhdfs/v1/d/f?op=DELETE",
        "DELETE /webhdfs/v1/d?op=DELETE&recursive=true",
    ] {
        is_denied(&ask(names, &format!("{request}&user.name=no-such-user")));
    }
    is_denied(&ask(names, "POST /evenfall/balance?bytes=1&user.name=no-such-user"));
    for request in ["/d/f?op=GETFILESTATUS", "/d?op=LISTSTATUS", "/d?op=CHECKACCESS&fsaction=r-x"] {
        let answer = ask(names, &format!("GET /webhdfs/v1{request}&user.name=no-such-user"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert!(ask(names, "GET /webhdfs/v1/d/f?op=OPEN&user.name=ann").starts_with("HTTP/1.1 307 "));
}

#[test]
fn the_copies_of_nothing_cannot_be_set_which_is_no_error() {
    let cluster = Cluster::new(1);
    let names = cluster.addresses[0];
    cluster.client().change("/d", "MKDIRS", &[]).expect("it lives");
    for path in ["/none", "/d"] {
        let answer = ask(names, &format!("PUT /webhdfs/v1{path}?op=SETREPLICATION&replication=2"));
        assert!(answer.contains("{\"boolean\":false}"), "{path}: {answer}");
    }
}

#[test]
fn a_file_has_the_block_size_of_its_maker_and_the_checksum_of_hadoop() {
    let cluster = Cluster::new(1);
    let names = cluster.addresses[0];
    let make = |path: &str, block: u64| {
        let first = ask(names, &format!("PUT /webhdfs/v1{path}?op=CREATE&blocksize={block}"));
        let to = first.lines().find_map(|line| line.strip_prefix("location: http://"));
        let Some((host, rest)) = to.and_then(|to| to.split_once('/')) else { return first };
        ask(host.parse().expect("an address"), &format!("PUT /{rest}"))
    };
    let made = make("/f", 1 << 20);
    assert!(made.starts_with("HTTP/1.1 201 "), "{made}");
    for block in [1_000, (1 << 20) + 1] {
        let refused = make("/g", block);
        assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    }
    let client = cluster.client();
    let status = client.get("/f", "GETFILESTATUS", &[]).expect("it lives");
    assert_eq!(status["FileStatus"]["blockSize"], 1 << 20);
    let sum = |path: &str, more: &str| {
        let first = ask(names, &format!("GET /webhdfs/v1{path}?op=GETFILECHECKSUM{more}"));
        let to = first.lines().find_map(|line| line.strip_prefix("location: http://"));
        let (host, rest) = to.expect("a redirect").split_once('/').expect("a path");
        ask(host.parse().expect("an address"), &format!("GET /{rest}"))
    };
    let empty = sum("/f", "");
    assert!(empty.contains("\"algorithm\":\"MD5-of-0MD5-of-0CRC32\""), "{empty}");
    let source = BytesSource::Stream(Box::new(&[7; 3 << 20][..]));
    client.append(source, "/f", &mut |_| {}).expect("servers live");
    let whole = sum("/f", "");
    assert!(whole.contains("\"algorithm\":\"MD5-of-2048MD5-of-512CRC32C\""), "{whole}");
    assert!(whole.contains("\"length\":28"), "{whole}");
    let composite = sum("/f", "&combine=COMPOSITE_CRC");
    assert!(composite.contains("\"algorithm\":\"COMPOSITE-CRC32C\""), "{composite}");
}

#[test]
fn servers_tell_their_state() {
    let cluster = Cluster::new(1);
    for (address, name) in [
        (cluster.addresses[0], "evenfall_dataservers_live{"),
        (cluster.addresses[1], "evenfall_copies{"),
    ] {
        let page = ask(address, "GET /metrics");
        assert!(page.starts_with("HTTP/1.1 200 ") && page.contains(name), "{page}");
        let page = ask(address, "GET /healthz");
        assert!(page.starts_with("HTTP/1.1 200 ") && page.ends_with("ok\n"), "{page}");
        assert!(ask(address, "GET /status").contains("\"used_bytes\":"));
    }
}
