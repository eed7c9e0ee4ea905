//! What a nameserver says of its dataservers and of its files, beside WebHDFS.

use std::ops::Bound;

use evenfall_core::Timestamp;
use evenfall_files_machine::nameserver::Server;
use evenfall_files_machine::space::Kind;
use evenfall_files_machine::{DiskId, FileId, Nameserver};
use evenfall_runtime::http::streams::Answer;
use serde_json::{Value, json};

use crate::owner::Inbox;
use crate::webhdfs::{Exception, json_of};

/// Files that are not in order and that are named.
const WRONG_MAX: usize = 10_000;
/// Inodes that are looked at in one call of the owner.
const STEP: usize = 5_000;

/// What the nameserver knows of the dataservers.
pub fn servers(inbox: &Inbox<Nameserver>) -> Result<Answer, Exception> {
    let value = inbox.ask(|server, now| {
        let one = |(disk, one): (&DiskId, &Server)| {
            let state = match (server.is_live(now, *disk), one.is_ill) {
                (false, _) => "dead",
                (true, true) => "full",
                (true, false) => "live",
            };
            json!({
                "http": one.place.http.to_string(), "disk": format!("{:016x}", disk.0),
                "state": state, "used": one.used, "free": one.free,
            })
        };
        let all: Vec<Value> = server.servers().iter().map(one).collect();
        json!({ "dataservers": all, "names": server.space().inodes().len() })
    })?;
    Ok(json_of(&value))
}

/// Files that lack copies or bytes.
pub fn fsck(inbox: &Inbox<Nameserver>) -> Result<Answer, Exception> {
    let (mut wrong, mut files, mut after) = (Vec::new(), 0, Some(FileId(0)));
    while let Some(last) = after {
        let (found, count, next) = inbox.ask(move |server, now| step(server, now, last))?;
        wrong.extend(found.into_iter().take(WRONG_MAX - wrong.len()));
        (files, after) = (files + count, next);
    }
    Ok(json_of(&json!({ "files": files, "wrong": wrong })))
}

/// Files behind a number that lack something, how many files were looked at, and the last number
/// when there are more.
fn step(server: &Nameserver, now: Timestamp, after: FileId) -> (Vec<Value>, u64, Option<FileId>) {
    let (space, mut wrong, mut count, mut last) = (server.space(), Vec::new(), 0, None);
    let behind = space.inodes().range((Bound::Excluded(after), Bound::Unbounded));
    for (seen, (id, inode)) in behind.take(STEP).enumerate() {
        last = (seen + 1 == STEP).then_some(*id);
        let Kind::File(file) = &inode.kind else { continue };
        count += 1;
        let members = file.group.members.iter();
        let live = members.filter(|disk| server.is_live(now, **disk)).count();
        if live >= usize::from(file.replication) && file.group.lost.is_none() {
            continue;
        }
        let lost = file.group.lost.map(|(from, to)| json!({ "from": from, "to": to }));
        wrong.push(json!({
            "path": space.path(*id), "length": file.length, "copies": live,
            "wanted": file.replication, "lost": lost,
        }));
    }
    (wrong, count, last)
}
