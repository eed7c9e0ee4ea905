//! The messages expected of receivers that left before the end.
//!
//! The root knows when it took a receiver out, but not which messages that receiver had. A receiver
//! that said good-bye is expected to have the messages of its log. The same holds for a receiver
//! whose log breaks off. That receiver was killed, and nobody knows its releases between its last
//! written record and the moment at which its silence was noticed. A receiver that was taken out
//! while it lived (too slow, or cut off) is expected to have every message up to then, and a
//! missing message is lost.

use std::collections::BTreeMap;
use std::path::Path;

use evenfall_core::NodeId;

use super::{ReportError, RunInfo, open_logs};
use crate::runlog::{RunLogRecord, RunLogTail};

/// How far the log of a receiver goes.
struct Reach {
    /// Per stream, the message after the last one in the log.
    next: BTreeMap<u32, u64>,
    clean: bool,
}

/// By node and start of its process, because a node that was started again has several logs.
type Reaches = BTreeMap<(NodeId, u64), Reach>;

fn reaches(info: &RunInfo, directory: &Path) -> Result<Reaches, ReportError> {
    let gone = |id| info.memberships.iter().any(|m| m.receiver == id && m.until.is_some());
    let mut reaches = BTreeMap::new();
    for mut log in open_logs(directory)? {
        let (id, started_ns) = (log.reader.header().node, log.reader.header().started_ns);
        if !gone(id) {
            continue;
        }
        let mut next = BTreeMap::new();
        for record in log.reader.by_ref() {
            let (stream, end) = match record {
                RunLogRecord::Released(r) => (r.stream, r.first_message + u64::from(r.count)),
                RunLogRecord::Lost(l) => (l.stream, l.first_message.saturating_add(l.count)),
                _ => continue,
            };
            let known = next.entry(stream).or_insert(end);
            *known = end.max(*known);
        }
        let clean = *log.reader.tail() == RunLogTail::Clean;
        reaches.insert((id, started_ns), Reach { next, clean });
    }
    Ok(reaches)
}

/// Ends memberships where the logs of receivers that left end. Returns warnings for the report.
pub(super) fn settle(info: &mut RunInfo, directory: &Path) -> Result<Vec<String>, ReportError> {
    if info.memberships.iter().all(|m| m.until.is_none()) {
        return Ok(Vec::new());
    }
    let reaches = reaches(info, directory)?;
    let mut notes = Vec::new();
    for membership in &mut info.memberships {
        let latest_ns = if membership.started_ns == 0 { u64::MAX } else { membership.started_ns };
        let mut lives = reaches.range((membership.receiver, 0)..=(membership.receiver, latest_ns));
        let (Some(until), Some((_, reach))) = (membership.until, lives.next_back()) else {
            continue;
        };
        let next = reach.next.get(&membership.stream).copied().unwrap_or(0);
        let end = next.clamp(membership.from.min(until), until);
        if end == until || (reach.clean && !membership.left) {
            continue;
        }
        membership.until = Some(end);
        if !reach.clean {
            let name = info.nodes.iter().find(|node| node.id == membership.receiver);
            notes.push(format!(
                "{} was killed: its log ends before message {end} of tree {}; the {} after it, \
                 until its silence was noticed, are not counted",
                name.map_or("a receiver", |node| node.name.as_str()),
                membership.stream,
                until - end
            ));
        }
    }
    Ok(notes)
}
