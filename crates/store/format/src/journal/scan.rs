//! Reads a journal file, also behind damage in it.
//!
//! ```text
//!  header | commit 0 | commit 1 | ~~~~~~~~ | commit 3 | commit 4 | torn, zeros, remains
//!                               damaged: whole commits behind    dropped: none behind
//! ```
//!
//! A write that power has torn is the last of its journal, so nothing whole of the journal lies
//! behind it. Whole commits behind bytes that are no commit mean that these bytes were synced, and
//! have changed since. The search for the next whole commit tries each byte once. A candidate has
//! the magic and the journal's identity, and its checksum is taken from the checksums of all bytes
//! up to its two ends. So the search takes time in proportion to the file, whatever lengths the
//! candidates state.
//!
//! Without a whole copy of the header, the identity is that of the commit right behind it, where no
//! client's bytes can be. If that commit is damaged too, several whole commits must agree on the
//! identity, and none may disagree. A record that looks like a commit then counts only in a journal
//! of which no other commit is whole. Remains of an earlier journal disagree, so that the journal
//! is named and not read.

use core::ops::Range;
use std::collections::BTreeSet;

use bytes::Bytes;

use super::{
    COMMIT_BYTES, COMMIT_MAGIC, END_BYTES, Frame, HEADER_BYTES, HEADER_COPY_BYTES, JournalHeader,
    VERSION, VERSION_BEFORE, frame_count, head_checksum, long, parse_frames, parse_header, word,
};
use crate::error::Result;

/// What is in a journal file.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Frames of whole commits, in order. [`scan_commits`] gives them to its caller instead.
    pub frames: Vec<Frame>,
    /// Whole commits.
    pub commits: u64,
    /// Bytes of the file up to the end of the last whole commit.
    pub bytes: u64,
    /// Synced bytes that have changed, with whole commits behind them.
    pub damaged: Vec<JournalDamage>,
    /// Bytes behind the last whole commit that are neither a commit nor the end: a torn commit, or
    /// damage of the last commits.
    pub dropped: Option<Dropped>,
    /// Number of the commit at the beginning of the journal, when it is whole.
    pub first_sequence: Option<u64>,
    /// The number behind that of the last whole commit.
    pub next_sequence: Option<u64>,
}

/// A whole commit of a journal.
#[derive(Clone, Debug)]
pub struct ScannedCommit {
    /// Its bytes in the file.
    pub place: Range<u64>,
    /// Its number.
    pub sequence: u64,
    /// Its frames, in order.
    pub frames: Vec<Frame>,
}

/// Synced bytes of a journal that have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalDamage {
    /// The bytes.
    pub place: Range<u64>,
    /// Commits that were there, by the numbers of those around them; `None` where the first commit
    /// of the journal is not whole. No commit is lost with a copy of the header.
    pub commits_lost: Option<u64>,
    /// Whole commits behind.
    pub commits_behind: u64,
    /// The fault of the first of these bytes.
    pub what: &'static str,
}

/// Bytes at which a journal neither continues nor ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// First byte.
    pub at: u64,
    /// Bytes to the end of the file, including remains of an earlier journal.
    pub bytes: u64,
    /// Whole commits among these bytes: the lone commit of a journal without a whole header, or
    /// commits that cannot be believed, because nothing tells the journal's identity, or behind
    /// damage in a journal of the version before.
    pub commits_behind: u64,
    /// The fault of the first of these bytes.
    pub what: &'static str,
}

impl Dropped {
    /// Whether a crash in the middle of a write leaves the same.
    pub fn is_torn_end(&self) -> bool {
        // Header and first commit are synced together, so a crash may take the header alone.
        self.commits_behind <= u64::from(self.at == 0)
    }
}

/// Reads a journal file. A spare counts as empty.
///
/// # Errors
/// [`Error::Version`](crate::Error::Version) of another format. Damage is in the result.
pub fn scan(name: &str, bytes: &Bytes) -> Result<Scan> {
    let mut frames = Vec::new();
    let mut scan = scan_commits(name, bytes, &mut |mut commit| frames.append(&mut commit.frames))?;
    scan.frames = frames;
    Ok(scan)
}

/// As [`scan()`], with each whole commit for itself.
///
/// # Errors
/// As [`scan()`].
pub fn scan_commits(
    name: &str,
    bytes: &Bytes,
    each: &mut dyn FnMut(ScannedCommit),
) -> Result<Scan> {
    let mut scan = Scan::default();
    let parsed = parse_header(name, bytes)?;
    let Some(header) = parsed.or_else(|| infer_header(bytes)) else {
        let (commits_behind, what) = (commits_of_any_journal(bytes), "not a journal's header");
        let dropped = Dropped { at: 0, bytes: bytes.len() as u64, commits_behind, what };
        scan.dropped = (!bytes.is_empty()).then_some(dropped);
        return Ok(scan);
    };
    if let Some(at) = header.damaged_copy.filter(|_| !header.is_spare) {
        scan.damaged.push(JournalDamage {
            place: at as u64..(at + HEADER_COPY_BYTES) as u64,
            commits_lost: Some(0),
            commits_behind: 0,
            what: "one of the two copies of the header is not whole",
        });
    }
    let what = "neither copy of the header is whole";
    if parsed.is_none() {
        let place = 0..HEADER_BYTES as u64;
        scan.damaged.push(JournalDamage { place, commits_lost: Some(0), commits_behind: 0, what });
    }
    if !header.is_spare {
        scan_behind_header(&header, bytes, &mut scan, each);
    }
    if parsed.is_none() && scan.commits <= 1 {
        // Header and first commit are synced together, so a crash may take the header alone.
        scan.damaged.clear();
        let (bytes, commits_behind) = (bytes.len() as u64, scan.commits);
        scan.dropped = Some(Dropped { at: 0, bytes, commits_behind, what });
    }
    for damage in &mut scan.damaged {
        // The field has had the number of whole commits in front of the damage.
        damage.commits_behind = scan.commits - damage.commits_behind;
    }
    Ok(scan)
}

fn scan_behind_header(
    header: &JournalHeader,
    bytes: &Bytes,
    scan: &mut Scan,
    each: &mut dyn FnMut(ScannedCommit),
) {
    let mut commits = Commits { header, bytes: &bytes[..], sums: None };
    let mut at = header.first_commit().min(bytes.len());
    while at < bytes.len() {
        let here = commits.check_at(at, scan.next_sequence);
        // Commits of the version before do not say where they belong, so that a record which looks
        // like one could be taken for one.
        let is_before = header.version == VERSION_BEFORE;
        let found = match here {
            Ok(commit) => Some(commit),
            Err(_) if is_before => None,
            Err(_) => commits.search_from(at, scan.next_sequence),
        };
        let Some(CommitPlace { start, end, sequence }) = found else {
            let what = here.err().unwrap_or_default();
            scan.dropped = commits.dropped_from(at, what, is_before);
            break;
        };
        if start > at || scan.next_sequence.is_some_and(|next| next != sequence) {
            scan.damaged.push(JournalDamage {
                place: at as u64..start as u64,
                commits_lost: scan.next_sequence.map(|next| sequence - next),
                commits_behind: scan.commits,
                what: here.err().unwrap_or_default(),
            });
        } else if scan.commits == 0 {
            scan.first_sequence = Some(sequence);
        }
        each(ScannedCommit {
            place: start as u64..end as u64,
            sequence,
            frames: parse_frames(&bytes.slice(start + COMMIT_BYTES..end)),
        });
        scan.commits += 1;
        scan.next_sequence = Some(sequence.saturating_add(1));
        at = end;
    }
    scan.bytes = at as u64;
}

/// A commit that is whole.
#[derive(Clone, Copy, Debug)]
struct CommitPlace {
    start: usize,
    end: usize,
    sequence: u64,
}

/// The commits of a journal file.
struct Commits<'a> {
    header: &'a JournalHeader,
    bytes: &'a [u8],
    /// Made at the first damage.
    sums: Option<PartSums<'a>>,
}

impl<'a> Commits<'a> {
    /// The commit at this byte, if it is whole, of this journal and the next in turn.
    fn check_at(&self, at: usize, next: Option<u64>) -> Result<CommitPlace, &'static str> {
        let head = &self.bytes[at..];
        if head.len() < COMMIT_BYTES || head[..4] != *COMMIT_MAGIC {
            return Err("no commit begins here");
        }
        if long(head, 16) != self.header.identity {
            return Err("the commit is of an earlier journal");
        }
        let commit = self.check_whole(at)?;
        match next {
            Some(next) if next != commit.sequence => Err("the commit is not the next one"),
            _ => Ok(commit),
        }
    }

    /// The commit at this byte, of whatever number.
    fn check_whole(&self, at: usize) -> Result<CommitPlace, &'static str> {
        let place = (self.header.version != VERSION_BEFORE).then_some(at as u64);
        let commit = check_commit(self.bytes, self.sums.as_ref(), at, place)?;
        // The checksum is right, so a wrong structure is a fault of the writer. The commit is still
        // refused.
        let frames = &self.bytes[at + COMMIT_BYTES..commit.end];
        match frame_count(frames) == Some(word(&self.bytes[at..], 24)) {
            true => Ok(commit),
            false => Err("the commit's frames do not fill it"),
        }
    }

    /// The first whole commit from this byte on whose number is not less than `next`.
    fn search_from(&mut self, from: usize, next: Option<u64>) -> Option<CommitPlace> {
        let (bytes, identity) = (self.bytes, self.header.identity.to_le_bytes());
        let last = bytes.len().checked_sub(COMMIT_BYTES)?;
        for at in from..=last {
            if bytes[at..at + 4] != *COMMIT_MAGIC || bytes[at + 16..at + 24] != identity {
                continue;
            }
            self.sums.get_or_insert_with(|| PartSums::of(bytes));
            let is_in_turn = |commit: &CommitPlace| next.is_none_or(|next| commit.sequence >= next);
            if let Some(commit) = self.check_whole(at).ok().filter(is_in_turn) {
                return Some(commit);
            }
        }
        None
    }

    /// The bytes from here on, of which none is in a commit that can be believed; `None` for the
    /// zeros behind the last commit.
    fn dropped_from(&self, at: usize, what: &'static str, is_before: bool) -> Option<Dropped> {
        let bytes = &self.bytes[at..];
        let commits_behind = match is_before {
            true => count_commits(bytes, |head| long(head, 16) == self.header.number, false),
            false => 0,
        };
        let is_end = bytes.iter().take(END_BYTES).all(|byte| *byte == 0);
        let dropped = Dropped { at: at as u64, bytes: bytes.len() as u64, commits_behind, what };
        (!is_end || commits_behind > 0).then_some(dropped)
    }
}

/// The commit at this byte, if its checksum is right. The checksum covers `place`, the commit's
/// first byte in the file. Checksums of the previous version cover no place.
fn check_commit(
    bytes: &[u8],
    sums: Option<&PartSums<'_>>,
    at: usize,
    place: Option<u64>,
) -> Result<CommitPlace, &'static str> {
    let head = &bytes[at..at + COMMIT_BYTES];
    let (start, body) = (at + COMMIT_BYTES, word(head, 4) as usize);
    let Some(frames) = bytes.get(start..start + body) else {
        return Err("the commit goes past the end");
    };
    let head_sum = head_checksum(head, place);
    let sum = match sums {
        None => crc32c::crc32c_append(head_sum, frames),
        Some(sums) => crc32c::crc32c_combine(head_sum, sums.part(start, start + body), body),
    };
    match sum == word(head, 28) {
        true => Ok(CommitPlace { start: at, end: start + body, sequence: long(head, 8) }),
        false => Err("the commit's checksum is wrong"),
    }
}

/// The number of whole commits in these bytes whose header fulfils a condition. A commit may begin
/// at any byte. With `is_placed`, the checksum of a commit covers the byte at which it begins.
fn count_commits(bytes: &[u8], is_wanted: impl Fn(&[u8]) -> bool, is_placed: bool) -> u64 {
    let mut found = 0;
    visit_commits(bytes, is_wanted, is_placed, |_| found += 1);
    found
}

/// Calls `each` with the header of each commit that [`count_commits`] counts. The search goes on
/// behind a commit that it has found, so no commit inside of another one is found.
fn visit_commits(
    bytes: &[u8],
    is_wanted: impl Fn(&[u8]) -> bool,
    is_placed: bool,
    mut each: impl FnMut(&[u8]),
) {
    let (mut sums, mut at) = (None, 0);
    while at + COMMIT_BYTES <= bytes.len() {
        let head = &bytes[at..at + COMMIT_BYTES];
        at += 1;
        if head[..4] != *COMMIT_MAGIC || !is_wanted(head) {
            continue;
        }
        let sums = sums.get_or_insert_with(|| PartSums::of(bytes));
        let place = is_placed.then_some(at as u64 - 1);
        if let Ok(commit) = check_commit(bytes, Some(&*sums), at - 1, place) {
            each(head);
            at = commit.end;
        }
    }
}

/// The header of a journal file without a whole copy of it, as far as its commits tell: without its
/// number.
fn infer_header(bytes: &[u8]) -> Option<JournalHeader> {
    let identity = first_identity(bytes).or_else(|| common_identity(bytes))?;
    let (number, version) = (0, VERSION);
    Some(JournalHeader { number, identity, is_spare: false, version, damaged_copy: None })
}

/// The identity in the commit right behind the header, if it is whole.
fn first_identity(bytes: &[u8]) -> Option<u64> {
    let head = bytes.get(HEADER_BYTES..HEADER_BYTES + COMMIT_BYTES)?;
    let is_whole = || check_commit(bytes, None, HEADER_BYTES, Some(HEADER_BYTES as u64)).is_ok();
    (head[..4] == *COMMIT_MAGIC && is_whole()).then(|| long(head, 16))
}

/// The identity in which all whole commits agree, if there are several.
fn common_identity(bytes: &[u8]) -> Option<u64> {
    let (mut identities, mut commits) = (BTreeSet::new(), 0);
    visit_commits(
        bytes,
        |_| true,
        true,
        |head| {
            identities.insert(long(head, 16));
            commits += 1;
        },
    );
    let is_one = identities.len() == 1 && commits > 1;
    // In a journal of the version before, a record may look like a commit of this version.
    let identity = identities.pop_first().filter(|_| is_one)?;
    (count_commits(bytes, |_| true, false) == 0).then_some(identity)
}

/// The number of whole commits in a file whose header is not whole.
fn commits_of_any_journal(bytes: &[u8]) -> u64 {
    count_commits(bytes, |_| true, true).max(count_commits(bytes, |_| true, false))
}

/// Distance of the places up to which [`PartSums`] keeps a checksum.
const SUM_EVERY: usize = 4 << 10;

/// Gives the checksum of any part of some bytes, in a time that does not grow with the part: it is
/// computed from the checksums of all bytes up to the part's two ends. Records of a client may look
/// like headers of many long commits, and the opening of a store must not read the bytes behind
/// each of them.
pub(super) struct PartSums<'a> {
    bytes: &'a [u8],
    sums: Vec<u32>,
}

impl<'a> PartSums<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        let mut sums = vec![0];
        for part in bytes.chunks_exact(SUM_EVERY) {
            sums.push(crc32c::crc32c_append(sums[sums.len() - 1], part));
        }
        Self { bytes, sums }
    }

    fn up_to(&self, end: usize) -> u32 {
        let at = end / SUM_EVERY;
        crc32c::crc32c_append(self.sums[at], &self.bytes[at * SUM_EVERY..end])
    }

    pub(super) fn part(&self, start: usize, end: usize) -> u32 {
        self.up_to(end) ^ crc32c::crc32c_combine(self.up_to(start), 0, end - start)
    }
}
