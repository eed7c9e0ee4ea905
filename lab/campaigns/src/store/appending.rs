//! How the campaign appends to a stream of the first node, and commits.

use evenfall_sim::DiskFaults;
use evenfall_store_format::journal::JournalBatch;

use super::{Broken, Scene, works};

impl Scene {
    /// Appends records or messages to a stream, and commits them or not.
    pub(super) fn append(&mut self) -> Result<(), Broken> {
        let at = self.prng.below(self.streams.len() as u64) as usize;
        let local = self.prng.chance(0.5);
        let crafted = self.craft_commit(at);
        let size = self.streams[at].size();
        let budget = [400, 20_000, self.append_bytes_max][self.prng.below(3) as usize];
        let records = 1 + self.prng.below(1 + budget / size as u64);
        let mut batch = match self.streams[at].is_parted() {
            true => self.draft_messages(at, records),
            false => self.draft_records(at, records),
        };
        if let Some(crafted) = crafted {
            batch[8..8 + crafted.len()].copy_from_slice(&crafted);
        }
        let (now, later) = batch.split_at(batch.len() - self.bytes_left_out(at, &batch));
        self.take_records(at, now)?;
        if local {
            self.commit(at)?;
        }
        self.take_records(at, later)
    }

    /// The next records of a stream.
    fn draft_records(&mut self, at: usize, records: u64) -> Vec<u8> {
        let stream = &mut self.streams[at];
        let size = stream.size();
        let mut batch = Vec::new();
        for _ in 0..records {
            stream.clock += self.prng.below(3) as i64;
            let start = batch.len();
            batch.extend_from_slice(&stream.clock.to_le_bytes());
            let mark = (stream.truth.len() + start) as u64 ^ self.prng.next_u64();
            batch.extend(mark.to_le_bytes().iter().cycle().take(size - 8));
        }
        batch
    }

    fn take_records(&mut self, at: usize, records: &[u8]) -> Result<(), Broken> {
        let stream = &mut self.streams[at];
        let mut sealed = Vec::new();
        stream.appender.append(records, &mut sealed).map_err(works)?;
        self.waiting.extend(sealed);
        stream.truth.extend_from_slice(records);
        self.outcome.records += (records.len() / stream.size()) as u64;
        Ok(())
    }

    /// Commits the records of a stream. Repeats a failed commit until it succeeds or the node gives
    /// up.
    fn commit(&mut self, at: usize) -> Result<(), Broken> {
        let stream = &mut self.streams[at];
        let mut batch = JournalBatch::default();
        // As the disk thread does: what does not fit into a frame is copied first.
        if !stream.appender.push_uncommitted(&mut batch)
            && let Some((first, records)) = stream.appender.take_uncommitted()
        {
            batch.push_records(stream.origin(), first, &records);
        }
        if batch.is_empty() {
            stream.local = stream.local.max(stream.appender.records());
            stream.acknowledged = stream.drafted;
            self.outcome.local += 1;
            return Ok(());
        }
        for _ in 0..20 {
            if self.volume.commit(&mut batch).is_ok() {
                stream.local = stream.appender.records();
                stream.acknowledged = stream.drafted;
                self.outcome.local += 1;
                return Ok(());
            }
        }
        // The disk stays broken, so the process ends without an acknowledgement.
        self.disk.set_faults(DiskFaults::default());
        self.crash()
    }
}
