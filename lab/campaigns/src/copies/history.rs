//! What clients were told, and the checks on it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use evenfall_files_machine::namespace::{File, Namespace};
use evenfall_files_machine::{DiskId, InodeId};
use evenfall_sim::{Run, Seen, SimTime, Violation};

use super::Check;
use super::node::{self, CopiesNode};

/// Most files of a run. Operations that would make more files are dropped.
pub const FILES_MAX: u64 = 12;

/// The bytes of an append: its token, and a pattern that only this append has.
pub fn block(token: u64, length: usize) -> Bytes {
    let head = (token << 16 | length as u64).to_le_bytes();
    let rest = (8..length).map(|at| (token as usize * 31 + at * 7) as u8);
    head.into_iter().chain(rest).collect()
}

/// The blocks of a content, each with its place; `None` when the content has something else.
fn blocks(bytes: &[u8]) -> Option<Vec<(u64, usize)>> {
    let (mut blocks, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let head = u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?);
        let (token, length) = (head >> 16, (head & 0xffff) as usize);
        if bytes.get(at..at + length)? != &block(token, length)[..] {
            return None;
        }
        blocks.push((token, at));
        at += length;
    }
    Some(blocks)
}

/// An append that a client began.
#[derive(Clone, Copy, Debug)]
struct Append {
    file: InodeId,
    length: usize,
    begun: SimTime,
    ended: Option<SimTime>,
    is_excused: bool,
    /// The generation of the lease that the writer believed to have.
    lease: Option<u64>,
}

/// A file as clients know it.
#[derive(Debug, Default)]
struct Known {
    /// The names that the file may have, each with the token of the call that gives the name.
    /// `None` stands for a deleted file. An acknowledged call ends the names before its own.
    names: Vec<(u64, Option<String>)>,
    /// The longest content that a reader saw.
    longest: Vec<u8>,
    was_acknowledged: bool,
    /// The greatest length of which a writer was told that the nameserver has noted it.
    noted: u64,
}

/// Everything that happened in a run.
#[derive(Default)]
pub struct CopiesHistory {
    files: BTreeMap<InodeId, Known>,
    appends: BTreeMap<u64, Append>,
    /// Flushes that were taken, by token: the file, and the length to be noted.
    flushes: BTreeMap<u64, (InodeId, u64)>,
    noted: u64,
    reads: u64,
    names: u64,
    lost: u64,
    /// Disks that lost everything.
    pub wiped: u64,
    /// Disks that all copies shall leave, by the token of the call: the disk, and whether the call
    /// was acknowledged.
    leaves: BTreeMap<u64, (DiskId, bool)>,
    /// Writes that failed.
    pub failed: u64,
    /// Nameservers that lost their disks and were rebuilt.
    pub rebuilt: u64,
    /// Appends that were refused, because the writer had slept past its lease.
    pub slept: u64,
    violations: Vec<Violation<Check>>,
}

impl CopiesHistory {
    /// Whether there are as many files as there may be.
    pub fn is_full(&self) -> bool {
        self.files.len() as u64 >= FILES_MAX
    }

    /// One of the files that were made.
    pub fn pick(&self, pick: u64) -> Option<InodeId> {
        let at = pick.checked_rem(self.files.len() as u64)?;
        self.files.keys().nth(at as usize).copied()
    }

    /// A change of a file's name was taken.
    pub fn names_begin(&mut self, file: InodeId, token: u64, to: Option<String>) {
        self.files.entry(file).or_default().names.push((token, to));
    }

    /// A call was taken that has all copies leave a disk.
    pub fn leave_begin(&mut self, token: u64, disk: DiskId) {
        self.leaves.insert(token, (disk, false));
    }

    /// A call at the nameserver was acknowledged. A change of a name ends the earlier names of the
    /// file.
    pub fn names_end(&mut self, token: u64) {
        if let Some((_, is_acknowledged)) = self.leaves.get_mut(&token) {
            *is_acknowledged = true;
            return;
        }
        self.names += 1;
        for known in self.files.values_mut() {
            if let Some(at) = known.names.iter().position(|(of, _)| *of == token) {
                known.names.drain(..at);
                known.was_acknowledged = true;
            }
        }
    }

    /// A dataserver took an append.
    pub fn append_begin(
        &mut self,
        seen: Seen,
        file: InodeId,
        token: u64,
        length: usize,
        lease: Option<u64>,
    ) {
        let append = Append { file, length, begun: seen.at, ended: None, is_excused: false, lease };
        self.appends.insert(token, append);
    }

    /// An append was acknowledged.
    pub fn append_end(&mut self, seen: Seen, token: u64) {
        if let Some(append) = self.appends.get_mut(&token) {
            append.ended.get_or_insert(seen.at);
        }
    }

    /// A primary took a flush: the nameserver shall note this length of a file.
    pub fn flush_begin(&mut self, token: u64, file: InodeId, length: u64) {
        self.flushes.insert(token, (file, length));
    }

    /// A writer was told that the nameserver has noted the length.
    pub fn flush_end(&mut self, token: u64) {
        let Some((file, length)) = self.flushes.remove(&token) else { return };
        self.noted += 1;
        if let Some(known) = self.files.get_mut(&file) {
            known.noted = known.noted.max(length);
        }
    }

    /// A reader asks the nameserver for the lengths of files.
    pub fn expect_noted(&mut self, seen: Seen, namespace: &Namespace) {
        for (id, known) in &self.files {
            let Some(file) = namespace.file(*id).filter(|file| file.length < known.noted) else {
                continue;
            };
            let what = format!("{id:?}: {} bytes of {} that were noted", file.length, known.noted);
            self.violations.push(Violation::at(Check::Fresh, seen.at, seen.node, what));
        }
    }

    /// A reader saw these bytes. Bytes of a copy in the making may be lost with the members, so a
    /// later reader need not see them.
    pub fn read(
        &mut self,
        seen: Seen,
        file: InodeId,
        bytes: Vec<u8>,
        is_whole: bool,
        is_member: bool,
    ) {
        self.reads += 1;
        let Some(known) = self.files.get_mut(&file) else { return };
        let common = bytes.len().min(known.longest.len());
        let agrees = bytes[..common] == known.longest[..common];
        if !agrees || !is_whole {
            let what = format!(
                "{file:?}: {} bytes, of which not all were read before ({is_whole})",
                bytes.len()
            );
            self.violations.push(Violation::at(Check::Prefix, seen.at, seen.node, what));
        }
        if is_member && bytes.len() > known.longest.len() {
            known.longest = bytes;
        }
    }

    /// A disk lost everything, or its server is gone for good. Acknowledged appends that no copy of
    /// these servers has are excused, because nothing can bring them back.
    pub fn excuse(&mut self, servers: &[CopiesNode]) {
        for (file, known) in &mut self.files {
            let (mut tokens, mut best) = (BTreeSet::new(), 0);
            for copy in servers.iter().filter_map(|server| server.member_content(*file)) {
                let same = copy.iter().zip(&known.longest).take_while(|(a, b)| a == b).count();
                best = best.max(same);
                tokens
                    .extend(blocks(&copy).unwrap_or_default().into_iter().map(|(token, _)| token));
            }
            known.longest.truncate(best);
            for (token, append) in &mut self.appends {
                let is_gone = append.file == *file && !tokens.contains(token);
                append.is_excused |= append.ended.is_some() && is_gone;
            }
        }
    }

    /// The nameserver says that a range of a file is lost. No disk may still have bytes of it.
    pub fn lost(&mut self, seen: Seen, file: InodeId, range: (u64, u64)) {
        self.lost += 1;
        let Some(known) = self.files.get_mut(&file) else { return };
        known.noted = known.noted.min(range.0);
        if known.longest.len() as u64 > range.0 {
            let has = known.longest.len();
            let what = format!("{file:?}: lost {range:?}, and a disk has {has} bytes");
            self.violations.push(Violation::at(Check::Kept, seen.at, seen.node, what));
        }
    }

    /// Judges the servers that live at the end of the run.
    pub fn judge(mut self, live: &[&CopiesNode], run: &mut Run<Check>) {
        run.violations.append(&mut self.violations);
        let names = live.iter().find_map(|node| match node {
            CopiesNode::Name(server) => Some(server),
            CopiesNode::Data(..) => None,
        });
        let Some(names) = names else { return };
        let namespace = names.namespace();
        for (file, known) in &self.files {
            let path = namespace.file(*file).map(|_| namespace.path(*file));
            let is_known = known.names.iter().any(|(_, name)| *name == path)
                || (path.is_none() && !known.was_acknowledged);
            run.expect(Check::Names, is_known, || {
                format!("{file:?} is {path:?} and not one of {:?}", known.names)
            });
        }
        let all = namespace.inodes().keys().filter(|id| namespace.file(**id).is_some());
        let invented = all.filter(|id| !self.files.contains_key(id)).count();
        run.expect(Check::Names, invented == 0, || format!("{invented} files that nobody made"));
        let mut epochs = 0;
        for file in self.files.keys() {
            let Some(there) = namespace.file(*file) else { continue };
            epochs += there.group.epoch - 1;
            let noted = self.files[file].noted;
            run.expect(Check::Fresh, there.length >= noted, || {
                format!("{file:?} has {} bytes of {noted} that were noted", there.length)
            });
            self.judge_file(*file, there, namespace, live, run);
        }
        let acknowledged = self.appends.values().filter(|append| append.ended.is_some());
        run.counts.push(("appends", acknowledged.count() as u64));
        run.counts.push(("reads", self.reads));
        run.counts.push(("noted", self.noted));
        run.counts.push(("names", self.names));
        run.counts.push(("epochs", epochs));
        run.counts.push(("wiped", self.wiped));
        run.counts.push(("lost", self.lost));
        run.counts.push(("failed", self.failed));
        run.counts.push(("leaves", self.leaves.values().filter(|(_, done)| *done).count() as u64));
        run.counts.push(("balanced", names.balanced()));
        run.counts.push(("rebuilt", self.rebuilt));
        run.counts.push(("slept", self.slept));
    }

    fn judge_file(
        &self,
        file: InodeId,
        there: &File,
        namespace: &Namespace,
        live: &[&CopiesNode],
        run: &mut Run<Check>,
    ) {
        if there.group.members.is_empty() || there.group.lost.is_some_and(|lost| lost.0 == 0) {
            return;
        }
        let lives = |disk: &DiskId| {
            let has =
                |node: &&CopiesNode| matches!(node, CopiesNode::Data(d, _) if d.disk() == *disk);
            live.iter().any(has)
        };
        // A server that never comes back may have had the only copy.
        if !there.group.members.iter().any(lives) {
            return;
        }
        let copies = live.iter().filter_map(|node| match node {
            CopiesNode::Data(server, disk) if there.group.members.contains(&server.disk()) => {
                let view = server.view(file)?;
                Some((node::content(disk, file, &view.chunks, view.committed), view))
            }
            _ => None,
        });
        let copies: Vec<_> = copies.collect();
        let wanted = usize::from(there.replication);
        run.expect(Check::Heals, copies.len() == wanted, || {
            format!("{file:?} has {} of {wanted} copies: {:?}", copies.len(), there.group)
        });
        let Some((content, _)) = copies.iter().max_by_key(|(content, _)| content.len()) else {
            return;
        };
        for (copy, view) in &copies {
            run.expect(
                Check::Heals,
                copy == content && view.committed == copy.len() as u64,
                || format!("{file:?}: copies of {} and {} bytes", copy.len(), content.len()),
            );
        }
        let last = self.appends.range(super::OPERATIONS + 1..);
        let is_taken =
            last.clone().any(|(_, append)| append.file == file && append.ended.is_some());
        run.expect(Check::Heals, is_taken, || format!("{file:?} takes no append at the end"));
        self.judge_content(file, content, run);
        self.judge_places(file, &there.group.members, namespace, live, run);
    }

    fn judge_places(
        &self,
        file: InodeId,
        members: &[DiskId],
        namespace: &Namespace,
        live: &[&CopiesNode],
        run: &mut Run<Check>,
    ) {
        let shall_leave =
            |disk: &DiskId| self.leaves.values().any(|(left, done)| left == disk && *done);
        run.expect(Check::Places, !members.iter().any(shall_leave), || {
            format!("{file:?} has a copy on a disk that all copies shall leave: {members:?}")
        });
        // A call without an answer may be in the nameserver's log all the same.
        let was_asked = |disk: &DiskId| self.leaves.values().any(|(left, _)| left == disk);
        let leaves =
            |disk: &DiskId| shall_leave(disk) || (was_asked(disk) && namespace.is_leaving(*disk));
        let racks = |is_member: bool| -> BTreeSet<&str> {
            let servers = live.iter().filter_map(|node| match node {
                CopiesNode::Data(server, _) => Some(server),
                CopiesNode::Name(_) => None,
            });
            let fit = servers.filter(|server| {
                let disk = server.disk();
                members.contains(&disk) == is_member && (is_member || !leaves(&disk))
            });
            fit.map(|server| server.rack()).collect()
        };
        let (own, others) = (racks(true), racks(false));
        let is_spread = members.len() < 2 || own.len() > 1 || others.is_subset(&own);
        run.expect(Check::Places, is_spread, || {
            format!("{file:?} has copies in {own:?} only, and there are {others:?}")
        });
    }

    fn judge_content(&self, file: InodeId, content: &[u8], run: &mut Run<Check>) {
        let known = &self.files[&file];
        let common = content.len().min(known.longest.len());
        run.expect(Check::Prefix, content.starts_with(&known.longest), || {
            format!("{file:?}: {} bytes were read and are not there", known.longest.len() - common)
        });
        let Some(blocks) = blocks(content) else {
            let what = format!("{file:?} has something that is no append");
            return run.expect(Check::Whole, false, || what);
        };
        let is_ours = |(token, _): &(u64, usize)| {
            self.appends.get(token).is_some_and(|append| append.file == file)
        };
        let tokens: BTreeSet<u64> = blocks.iter().map(|(token, _)| *token).collect();
        let is_good = blocks.iter().all(is_ours) && tokens.len() == blocks.len();
        run.expect(Check::Whole, is_good, || format!("{file:?} has appends twice, or of others"));
        for (token, append) in self.appends.iter().filter(|(_, append)| append.file == file) {
            let is_missing = append.ended.is_some() && !tokens.contains(token);
            run.expect(Check::Kept, !is_missing || append.is_excused, || {
                format!("{file:?}: append {token} of {} bytes is gone", append.length)
            });
        }
        let leases = blocks.iter().filter_map(|(token, _)| self.appends.get(token)?.lease);
        run.expect(Check::Leases, leases.is_sorted(), || {
            format!("{file:?}: an append of an earlier lease stands behind one of a later lease")
        });
        // Walking backwards: nothing stands behind an append that began after its end.
        let mut earliest_end = SimTime::from_nanos(u64::MAX);
        for (token, _) in blocks.iter().rev() {
            let Some(append) = self.appends.get(token) else { continue };
            run.expect(Check::Order, append.begun <= earliest_end, || {
                format!("{file:?}: append {token} stands in front of one that ended before it")
            });
            earliest_end = append.ended.map_or(earliest_end, |ended| ended.min(earliest_end));
        }
    }
}
