//! What a nameserver says of its dataservers and of its files, beside WebHDFS.

use std::ops::Bound;
use std::sync::mpsc::sync_channel;

use evenfall_core::Timestamp;
use evenfall_files_machine::nameserver::KnownDataserver;
use evenfall_files_machine::namespace::InodeKind;
use evenfall_files_machine::{DiskId, FilesRefusal, InodeId, Nameserver};
use evenfall_runtime::http::streams::StreamAnswer;
use serde_json::{Value, json};

use super::owner::{EndedCall, OwnerInbox, PendingCall};
use super::webhdfs::{WebHdfsException, json_of};
use super::webhdfs_nameserver::PATIENCE;

/// Most files that a report names as not in order.
const WRONG_MAX: usize = 10_000;
/// Inodes that are looked at in one call of the owner.
const STEP: usize = 5_000;

/// What the nameserver knows of the dataservers.
pub fn servers(inbox: &OwnerInbox<Nameserver>) -> Result<StreamAnswer, WebHdfsException> {
    let value = inbox.ask(|server, now| {
        let one = |(disk, one): (&DiskId, &KnownDataserver)| {
            let is_leaving = server.namespace().is_leaving(*disk);
            let state = match (server.is_live(now, *disk), one.is_ill, is_leaving) {
                (false, ..) => "dead",
                (true, true, _) => "full",
                (true, false, true) => "leaving",
                (true, false, false) => "live",
            };
            json!({
                "http": one.place.http.to_string(), "disk": disk.to_string(),
                "name": one.name, "rack": one.rack,
                "state": state, "used": one.used, "free": one.free,
            })
        };
        let all: Vec<Value> = server.servers().iter().map(one).collect();
        let keepers = server.namespace().keepers().iter();
        let keepers: Vec<String> = keepers.map(ToString::to_string).collect();
        let refused = server.check_changes().err().map(|refusal| refusal.to_string());
        json!({
            "dataservers": all, "names": server.namespace().inodes().len(),
            "logCopies": keepers, "refused": refused,
            "balancing": server.is_balancing(), "balanced": server.balanced(),
        })
    })?;
    Ok(json_of(&value))
}

/// Waits until a change is in the log and in its copies.
///
/// # Errors
/// The reason why the change waits for longer than [`PATIENCE`].
pub fn logged(
    inbox: &OwnerInbox<Nameserver>,
    pending: &PendingCall,
) -> Result<EndedCall, WebHdfsException> {
    if let Some(ended) = pending.wait(PATIENCE) {
        return Ok(ended);
    }
    let why = match inbox.ask(|server, _| server.check_changes())? {
        Err(refusal) => format!("the change may still be made: {refusal}"),
        Ok(()) => {
            "a disk that keeps the log of the nameserver does not answer, or is full".to_owned()
        }
    };
    Err(WebHdfsException::io(why))
}

/// Makes a change that returns a value, and waits until the change is in the log and in its copies.
///
/// # Errors
/// The refusal of the change, or as [`logged`].
pub fn logged_value<T, F>(inbox: &OwnerInbox<Nameserver>, change: F) -> Result<T, WebHdfsException>
where
    T: Send + 'static,
    F: FnOnce(&mut Nameserver, Timestamp, u64) -> Result<T, FilesRefusal> + Send + 'static,
{
    let (tell, told) = sync_channel(1);
    let pending = inbox.begin(move |server, now, token| {
        let value = change(server, now, token)?;
        // The receiver waits below.
        let _ = tell.send(value);
        Ok(())
    });
    logged(inbox, &pending)??;
    told.recv().map_err(|_| FilesRefusal::Unknown.into())
}

/// The disk of the dataserver that an operator calls by its name, by its address or by the number
/// of its disk. A dataserver that the nameserver has not heard since its start can be called by the
/// number of its disk alone.
fn disk_of(server: &Nameserver, called: &str) -> Result<DiskId, FilesRefusal> {
    let is_called = |(disk, one): &(&DiskId, &KnownDataserver)| {
        [one.name.clone(), one.place.http.to_string(), disk.to_string()]
            .iter()
            .any(|name| name == called)
    };
    let heard = server.servers().iter().find(is_called).map(|(disk, _)| *disk);
    let keeper =
        || server.namespace().keepers().iter().find(|disk| disk.to_string() == called).copied();
    heard
        .or_else(keeper)
        .ok_or_else(|| FilesRefusal::Invalid(format!("no dataserver is called {called}")))
}

/// Gives up the disks of dataservers that never come back. The calls of several dataservers have
/// commas between them.
pub fn forget(
    inbox: &OwnerInbox<Nameserver>,
    called: &str,
    is_forced: bool,
) -> Result<StreamAnswer, WebHdfsException> {
    let called: Vec<String> = called.split(',').map(str::to_owned).collect();
    let pending = inbox.begin(move |server, now, token| {
        let disks = called.iter().map(|one| disk_of(server, one)).collect::<Result<Vec<_>, _>>()?;
        server.forget(now, token, &disks, is_forced)
    });
    logged(inbox, &pending)??;
    Ok(json_of(&json!({ "forgotten": true })))
}

/// Moves all copies away from a dataserver, or lets the dataserver have copies again. The
/// dataserver is called by its name, by its address or by its disk.
pub fn leave(
    inbox: &OwnerInbox<Nameserver>,
    called: &str,
    is_leaving: bool,
) -> Result<StreamAnswer, WebHdfsException> {
    let called = called.to_owned();
    let disk = logged_value(inbox, move |server, _, token| {
        let disk = disk_of(server, &called)?;
        server.leave(token, disk, is_leaving)?;
        Ok(disk)
    })?;
    Ok(json_of(&json!({ "disk": disk.to_string(), "leaving": is_leaving })))
}

/// Begins to move copies from full disks to empty disks at this rate. A rate of 0 stops the moves.
pub fn balance(
    inbox: &OwnerInbox<Nameserver>,
    bytes_per_s: u64,
) -> Result<StreamAnswer, WebHdfsException> {
    inbox.ask(move |server, _| server.balance((bytes_per_s > 0).then_some(bytes_per_s)))?;
    Ok(json_of(&json!({ "bytesPerSecond": bytes_per_s })))
}

/// Files that lack copies or bytes.
pub fn fsck(inbox: &OwnerInbox<Nameserver>) -> Result<StreamAnswer, WebHdfsException> {
    let (mut wrong, mut files, mut after) = (Vec::new(), 0, Some(InodeId(0)));
    while let Some(last) = after {
        let (found, count, next) = inbox.ask(move |server, now| step(server, now, last))?;
        wrong.extend(found.into_iter().take(WRONG_MAX - wrong.len()));
        (files, after) = (files + count, next);
    }
    let strangers = inbox.ask(|server, _| server.strangers().len())?;
    Ok(json_of(&json!({ "files": files, "wrong": wrong, "unnamed": strangers })))
}

/// Looks at some files whose numbers are above `after`. Returns the files that lack copies or
/// bytes, how many files were looked at, and the last number if there are more files.
fn step(server: &Nameserver, now: Timestamp, after: InodeId) -> (Vec<Value>, u64, Option<InodeId>) {
    let (namespace, mut wrong, mut count, mut last) = (server.namespace(), Vec::new(), 0, None);
    let behind = namespace.inodes().range((Bound::Excluded(after), Bound::Unbounded));
    for (seen, (id, inode)) in behind.take(STEP).enumerate() {
        last = (seen + 1 == STEP).then_some(*id);
        let InodeKind::File(file) = &inode.kind else { continue };
        count += 1;
        let members = file.group.members.iter();
        let live = members.filter(|disk| server.is_live(now, **disk)).count();
        if live >= usize::from(file.replication) && file.group.lost.is_none() {
            continue;
        }
        let lost = file.group.lost.map(|(from, to)| json!({ "from": from, "to": to }));
        wrong.push(json!({
            "path": namespace.path(*id), "length": file.length, "copies": live,
            "wanted": file.replication, "lost": lost,
        }));
    }
    (wrong, count, last)
}
