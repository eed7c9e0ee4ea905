//! `evenfall files` and curl at a cluster on this machine.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::process::{Child, Command, Stdio};

use evenfall_host::ports;

use super::common::{Scratch, evenfall, eventually, finish, say, signal};

/// A cluster of one dataserver that takes files, and the address of its nameserver. A dataserver
/// has the port after that of its nameserver.
fn cluster(scratch: &Scratch) -> (Child, String) {
    let server = ports::consecutive(scratch.host(1).into(), 2).expect("two ports").to_string();
    let dir = scratch.path("cluster").display().to_string();
    let run = ["run", "files", "--local", "1", "--webhdfs", &server, "--dir", &dir];
    let cluster = evenfall(&run).spawn().expect("a cluster");
    let first = scratch.path("first").display().to_string();
    fs::write(&first, "first").expect("a file");
    let put = ["files", "--webhdfs", &server, "put", &first, "/first"];
    eventually("a cluster that takes files", || say(&put).ok.then_some(()));
    (cluster, server)
}

fn end(cluster: Child) {
    signal(cluster.id(), "INT");
    let said = finish(cluster);
    assert!(said.ok, "{}", said.err);
}

#[test]
fn a_pipe_gets_the_bytes_and_stays_a_pipe() {
    let scratch = Scratch::beside();
    let (cluster, server) = cluster(&scratch);
    let (local, pipe) = (scratch.path("local"), scratch.path("pipe"));
    fs::write(&local, "a tick").expect("a file");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let (local, pipe) = (local.display().to_string(), pipe.display().to_string());
    let files = |words: &[&str]| say(&[&["files", "--webhdfs", &server][..], words].concat());
    let said = files(&["put", &local, "/tick"]);
    assert!(said.ok, "{}", said.err);

    let reader = {
        let pipe = pipe.clone();
        std::thread::spawn(move || Command::new("timeout").args(["20", "cat", &pipe]).output())
    };
    let said = files(&["get", "/tick", &pipe]);
    assert!(said.ok, "{}", said.err);
    assert!(fs::symlink_metadata(&pipe).expect("the pipe").file_type().is_fifo());
    let read = reader.join().expect("a reader").expect("cat");
    assert_eq!(String::from_utf8_lossy(&read.stdout), "a tick");

    // A regular file says how it was read.
    let copy = scratch.path("copy").display().to_string();
    let said = files(&["get", "/tick", &copy, "--json", "--connections", "3"]);
    assert!(said.ok, "{}", said.err);
    assert_eq!(fs::read_to_string(&copy).expect("a file"), "a tick");
    let how: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(how["length"], 6, "{how}");
    assert!(how["connections"].as_u64() >= Some(1), "{how}");
    assert!(!files(&["get", "/tick", &copy, "--connections", "9"]).ok);
    end(cluster);
}

#[test]
fn curl_is_sent_to_a_dataserver_before_it_sends_a_body() {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: no curl");
        return;
    }
    let scratch = Scratch::beside();
    let (cluster, server) = cluster(&scratch);
    let big = scratch.path("big");
    fs::write(&big, vec![b'x'; 20 << 20]).expect("a file");
    let url = format!("http://{server}/webhdfs/v1/big?op=CREATE&overwrite=true&user.name=evenfall");
    for _ in 0..5 {
        let mut curl = Command::new("curl");
        curl.args(["-sSLv", "--max-time", "60", "-w", "%{http_code}", "-T"]).arg(&big).arg(&url);
        let out = curl.output().expect("curl");
        let (said, talk) =
            (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success() && said.ends_with("201"), "{said}\n{talk}");
        let lines: Vec<&str> =
            talk.lines().filter(|line| line.starts_with("< HTTP/1.1 ")).collect();
        let statuses: Vec<&str> = lines.iter().map(|line| &line[11..14]).collect();
        assert_eq!(statuses, ["307", "100", "201"], "{talk}");
    }
    end(cluster);
}

/// A server that answers every request with this, and its address.
fn answering(scratch: &Scratch, answer: &'static str) -> String {
    let listener = TcpListener::bind((scratch.host(1), 0)).expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut head = BufReader::new(client.try_clone().expect("a socket")).lines();
            while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            client.write_all(answer.as_bytes()).ok();
        }
    });
    address
}

#[test]
fn a_client_without_a_key_follows_no_redirect_to_another_host() {
    let scratch = Scratch::beside();
    let server = answering(
        &scratch,
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://203.0.113.2:80/webhdfs/v1/x\r\n\
         Content-Length: 0\r\nConnection: close\r\n\r\n",
    );
    let local = scratch.path("local").display().to_string();
    fs::write(&local, "a tick").expect("a file");
    let said = say(&["files", "--webhdfs", &server, "--patience", "1s", "put", &local, "/x"]);
    assert!(!said.ok && said.err.contains("203.0.113.2:80 lies beyond loopback"), "{}", said.err);
    assert!(said.err.contains("--open"), "{}", said.err);
    // The nameserver itself may not be on another host either.
    let said = say(&["files", "--webhdfs", "203.0.113.7:9870", "ls", "/"]);
    assert!(!said.ok && said.err.contains("203.0.113.7:9870 lies beyond loopback"), "{}", said.err);
}

#[test]
fn a_get_from_a_stopped_nameserver_ends() {
    let scratch = Scratch::beside();
    // The kernel takes connections for a stopped process, and nothing answers them.
    let stopped = TcpListener::bind((scratch.host(1), 0)).expect("a port");
    let server = stopped.local_addr().expect("an address").to_string();
    let copy = scratch.path("copy");
    let get = ["files", "--webhdfs", &server, "--patience", "1s", "get", "/x"];
    let copy_name = copy.display().to_string();
    let said =
        finish(evenfall(&[&get[..], &[copy_name.as_str()]].concat()).spawn().expect("the program"));
    assert!(!said.ok && said.err.contains("does not answer"), "{}", said.err);
    assert!(!copy.exists(), "a copy of nothing");
}
