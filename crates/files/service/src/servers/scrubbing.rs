//! Reads all copies of a dataserver again and again, slowly, and reports damaged copies.
//!
//! A byte that changes on a disk is found when somebody reads it. Files that nobody reads would
//! lose one copy after the other unnoticed, so a separate thread reads all copies at a bounded
//! rate.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use evenfall_files_machine::chunk::{AppendReader, Damage};
use evenfall_files_machine::{CopyView, Dataserver, FilesRefusal, InodeId};
use evenfall_host::interrupt;

use super::logs::Logs;
use super::owner::OwnerInbox;

/// Time between two rounds over all copies, and the longest rest.
const ROUND: Duration = Duration::from_secs(1);
/// Copies that one call of the owner names.
const PAGE: usize = 1_000;

/// Reads copies until the process ends.
pub struct Scrubber {
    inbox: OwnerInbox<Dataserver>,
    logs: Logs,
    bytes_per_s: u64,
    /// When the reading began or was last behind its rate, and the bytes read since then.
    since: Instant,
    bytes: u64,
}

impl Scrubber {
    /// Reads the chunks of this directory at this rate.
    pub fn new(inbox: OwnerInbox<Dataserver>, directory: PathBuf, bytes_per_s: u64) -> Self {
        let (logs, since) = (Logs::new(directory), Instant::now());
        Self { inbox, logs, bytes_per_s: bytes_per_s.max(1), since, bytes: 0 }
    }

    /// Reads round after round.
    pub fn run(mut self) {
        while !interrupt::raised() {
            // An error means that the owner has ended.
            if self.round().is_err() {
                return;
            }
            std::thread::sleep(ROUND);
        }
    }

    fn round(&mut self) -> Result<(), FilesRefusal> {
        let mut after = None;
        loop {
            let files = self.inbox.ask(move |server, _| server.files(after, PAGE))?;
            let Some(last) = files.last().copied() else { return Ok(()) };
            after = Some(last);
            for file in files {
                self.read(file)?;
            }
        }
    }

    /// Reads the committed bytes of a copy.
    fn read(&mut self, file: InodeId) -> Result<(), FilesRefusal> {
        let look = move |server: &mut Dataserver, _| {
            server.view(file).map(|view| (view, server.epoch(file)))
        };
        let Some((CopyView { chunks, committed, .. }, epoch)) = self.inbox.ask(look)? else {
            return Ok(());
        };
        let (mut appends, mut at) = (AppendReader::new(file, chunks), 0);
        while at < committed && !interrupt::raised() {
            let logs = &mut self.logs;
            match appends.read(at, &mut |log: &str, at, len| logs.read(log, at, len)) {
                Ok((begin, _, body)) => {
                    at = begin + body.len() as u64;
                    self.rest(body.len() as u64);
                }
                Err(damage) => return self.report(file, epoch, &damage),
            }
        }
        // A chunk that was deleted meanwhile keeps its room on the disk as long as it is open.
        self.logs.close();
        Ok(())
    }

    fn report(
        &self,
        file: InodeId,
        epoch: Option<u64>,
        damage: &Damage,
    ) -> Result<(), FilesRefusal> {
        if report(&self.inbox, file, epoch, damage)? {
            tracing::warn!("file {}: {damage}: the copy is made anew", file.0);
        }
        Ok(())
    }

    /// Rests as long as the bytes so far take. After a long pause the reading does not make up for
    /// the pause.
    fn rest(&mut self, bytes: u64) {
        self.bytes += bytes;
        let due = Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_s as f64);
        match due.checked_sub(self.since.elapsed()) {
            Some(rest) => std::thread::sleep(rest.min(ROUND)),
            None => (self.since, self.bytes) = (Instant::now(), 0),
        }
    }
}

/// Tells the machine of damage in a copy of this epoch, and returns whether the copy is made anew.
/// A copy of another epoch may have been cut or removed since, which is no damage. A disk that
/// refuses to open a file is no damage either.
///
/// # Errors
/// The owner has ended.
pub fn report(
    inbox: &OwnerInbox<Dataserver>,
    file: InodeId,
    epoch: Option<u64>,
    damage: &Damage,
) -> Result<bool, FilesRefusal> {
    if !matches!(damage, Damage::At(_)) {
        return Ok(false);
    }
    inbox.ask(move |server, _| {
        let is_same = server.epoch(file) == epoch;
        if is_same {
            server.report_bad(file);
        }
        is_same
    })
}
