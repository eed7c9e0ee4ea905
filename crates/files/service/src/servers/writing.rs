//! The appends of one request, in their order.
//!
//! A body is cut into pieces, and each piece is one append of the machine: written whole or not at
//! all. Several appends are on their way at once. When the dataservers of the file change, the
//! machine tells of each append whether it is there. Those that are not there are sent again, in
//! the same order, from the first one on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_files_machine::{FilesRefusal, InodeId};

use super::owner::{EndedCall, PendingCall};
use super::webhdfs::WebHdfsException;
use super::webhdfs_dataserver::DataserverRoutes;

/// Longest wait for the end of an append, and longest time for which appends are repeated without
/// success. Leaving out a dead dataserver takes less time.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// A dataserver that has waited this long for an append and no longer leads the file was left out.
/// A change of the dataservers of a file takes less time.
const LEFT_OUT: Duration = Duration::from_secs(8);
/// Time between two looks at who leads.
const LOOK: Duration = Duration::from_secs(1);
/// Time between two attempts.
pub const ROUND: Duration = Duration::from_millis(20);
/// Limit of the appends that one request has on their way at the same time. Appends of the greatest
/// length have 13 MB together, which is below the window of a file. A disk whose sync takes 20 ms
/// then still takes 600 MB/s.
const PIPELINE: usize = 224;

/// See the documentation of the module.
pub struct Pipeline<'a> {
    files: &'a DataserverRoutes,
    file: InodeId,
    /// The generation of the writer's lease, which the machine checks with each append.
    lease: Option<u64>,
    /// Where the next append begins. The machine refuses an append that would begin elsewhere, so
    /// no append is made before an earlier append that was refused.
    next: u64,
    under_way: VecDeque<(Bytes, PendingCall)>,
    /// When the last append was acknowledged, or else when the request began.
    progress_at: Instant,
}

impl<'a> Pipeline<'a> {
    /// Appends that begin at `next`, under the lease of this generation.
    pub fn new(files: &'a DataserverRoutes, file: InodeId, lease: Option<u64>, next: u64) -> Self {
        Self { files, file, lease, next, under_way: VecDeque::new(), progress_at: Instant::now() }
    }

    /// Appends a piece. Waits for the first one when many are on their way.
    ///
    /// # Errors
    /// When an append was not made and is not sent again.
    pub fn push(&mut self, bytes: Bytes) -> Result<(), WebHdfsException> {
        while self.under_way.len() >= PIPELINE {
            self.settle_first()?;
        }
        self.send(bytes);
        Ok(())
    }

    fn send(&mut self, bytes: Bytes) {
        let (file, lease, body, at) = (self.file, self.lease, bytes.clone(), self.next);
        self.next += bytes.len() as u64;
        let pending = self.files.inbox().begin(move |server, now, token| {
            server.append(now, token, file, Some(at), lease, body)
        });
        self.under_way.push_back((bytes, pending));
    }

    /// Waits for the first append. When the first append was certainly not made, the first append
    /// and all appends behind it are sent again.
    fn settle_first(&mut self) -> Result<(), WebHdfsException> {
        let Some((bytes, pending)) = self.under_way.pop_front() else { return Ok(()) };
        let refusal = match self.end_of(&pending)? {
            Ok(()) => {
                self.progress_at = Instant::now();
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        let is_not_there = |refusal: &FilesRefusal| {
            matches!(refusal, FilesRefusal::Again | FilesRefusal::Busy | FilesRefusal::NotPrimary)
        };
        if !is_not_there(&refusal) || self.progress_at.elapsed() >= PATIENCE {
            return Err(refusal.into());
        }
        let mut again = vec![bytes];
        for (bytes, pending) in core::mem::take(&mut self.under_way) {
            match pending.wait(PATIENCE) {
                Some(Err(refusal)) if is_not_there(&refusal) => again.push(bytes),
                Some(Err(refusal)) => return Err(refusal.into()),
                // An append is never made without the appends before it.
                Some(Ok(())) | None => return Err(FilesRefusal::Unknown.into()),
            }
        }
        std::thread::sleep(ROUND);
        let first = self.next - again.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        let view = self.files.wait_to_lead(self.file, self.lease, PATIENCE)?;
        if view.queued != first {
            return Err(FilesRefusal::Unknown.into());
        }
        self.next = first;
        again.into_iter().for_each(|bytes| self.send(bytes));
        Ok(())
    }

    /// Waits for an append. Nobody tells a primary that was left out what became of its appends.
    fn end_of(&self, pending: &PendingCall) -> Result<EndedCall, WebHdfsException> {
        let begun = Instant::now();
        loop {
            if let Some(ended) = pending.wait(LOOK) {
                return Ok(ended);
            }
            let is_late = begun.elapsed() >= PATIENCE;
            let is_old = begun.elapsed() >= LEFT_OUT;
            if is_late || (is_old && !self.files.leads(self.file)?) {
                return Ok(Err(FilesRefusal::Unknown));
            }
        }
    }

    /// Waits for all appends.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn finish(mut self) -> Result<(), WebHdfsException> {
        while !self.under_way.is_empty() {
            self.settle_first()?;
        }
        Ok(())
    }
}
