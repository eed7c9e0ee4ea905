//! `evenfall files` between a cluster on this machine and places that are no regular files.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::process::Command;

use super::common::{Scratch, evenfall, eventually, finish, say, signal};

#[test]
fn a_pipe_gets_the_bytes_and_stays_a_pipe() {
    let scratch = Scratch::beside();
    // A dataserver has the port after that of its nameserver.
    let (server, _) = (scratch.address(1).to_string(), scratch.address(1));
    let dir = scratch.path("cluster").display().to_string();
    let run = ["run", "files", "--local", "1", "--webhdfs", &server, "--dir", &dir];
    let cluster = evenfall(&run).spawn().expect("a cluster");
    let (local, pipe) = (scratch.path("local"), scratch.path("pipe"));
    fs::write(&local, "a tick").expect("a file");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let (local, pipe) = (local.display().to_string(), pipe.display().to_string());
    let files = |words: &[&str]| say(&[&["files", "--webhdfs", &server][..], words].concat());
    eventually("a cluster that takes files", || files(&["put", &local, "/tick"]).ok.then_some(()));

    let reader = {
        let pipe = pipe.clone();
        std::thread::spawn(move || Command::new("timeout").args(["20", "cat", &pipe]).output())
    };
    let said = files(&["get", "/tick", &pipe]);
    assert!(said.ok, "{}", said.err);
    assert!(fs::symlink_metadata(&pipe).expect("the pipe").file_type().is_fifo());
    let read = reader.join().expect("a reader").expect("cat");
    assert_eq!(String::from_utf8_lossy(&read.stdout), "a tick");

    signal(cluster.id(), "INT");
    let said = finish(cluster);
    assert!(said.ok, "{}", said.err);
}
