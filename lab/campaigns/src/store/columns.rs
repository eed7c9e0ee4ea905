//! How the first node of the campaign puts its whole chunks into columns, in the steps of the
//! engine, with crashes in between. The rows of a chunk are on the disk, or held in memory.

use bytes::Bytes;
use evenfall_core::Disk as _;
use evenfall_store_format::columnar::columnar_name;
use evenfall_store_format::journal;
use evenfall_store_format::layout::{DataChunk, SEGMENTS_PER_CHUNK, parse_journal_name};
use evenfall_store_format::volume::Recovered;
use evenfall_store_format::{ColumnDisk, Result, Volume, VolumeConfig};

use super::packing::Packing;
use super::{Broken, Hand, Mutant, Scene};

/// Opens a disk after a crash, and removes what a switch that was cut short has left.
pub(super) fn open(
    hand: Hand,
    config: &VolumeConfig,
) -> Result<(Volume<ColumnDisk<Hand>>, Recovered)> {
    let codec: &'static Packing = match hand.mutant {
        Some(Mutant::SealCutsMessage) => &Packing { cuts_messages: true },
        _ => &Packing { cuts_messages: false },
    };
    let disk = ColumnDisk::open(hand, Some(codec))?;
    disk.sweep()?;
    Volume::open(disk, config.clone())
}

/// The sizes of the first node. With some seeds whole chunks are held in memory, and with others
/// the journals are too few for a chunk, so that what is held goes to the disk raw.
pub(super) fn volume_sizes(seed: u64, journal_bytes_max: u64) -> VolumeConfig {
    let (held_chunks_max, recovery_bytes_max) = match seed % 32 {
        3 | 13 | 27 => (3, 64 << 20),
        other if other % 4 == 2 => (1, journal_bytes_max * (2 + seed % 3)),
        _ => (0, 2 * journal_bytes_max),
    };
    VolumeConfig { node: 1, journal_bytes_max, recovery_bytes_max, held_chunks_max, secret: 0 }
}

/// Limit of the bytes of an append. With most seeds a run fills segments, and with some chunks.
pub(super) fn append_bytes_max(seed: u64) -> u64 {
    match seed % 16 {
        3 => 1_600_000,
        11 => 4_000_000,
        // Messages, of which a few seeds fill chunks.
        13 if seed % 64 == 13 => 4_000_000,
        _ => 200_000,
    }
}

impl Scene {
    /// Puts the chunks of a stream into columns: the raw ones as far as they are synced, and the
    /// one behind them when it is whole and held. The power may go between any two steps.
    pub(super) fn put_into_columns(&mut self) -> Result<(), Broken> {
        if self.config.held_chunks_max > 1 {
            // The disk thread has no more to do, so that a chunk may be whole.
            while let Some(sealed) = self.waiting.pop_front() {
                let _ = self.volume.hold_segment(sealed);
            }
        }
        let at = self.prng.below(self.streams.len() as u64) as usize;
        let file = self.streams[at].appender.file();
        let layout = self.streams[at].appender.layout();
        let full = layout.full_segments(self.volume.synced(file)) / SEGMENTS_PER_CHUNK;
        for number in 0..=full {
            let chunk = DataChunk { file, number };
            let is_whole = number < full || self.volume.held_chunk(chunk).is_some();
            if !is_whole || self.volume.disk().is_columnar(chunk) {
                continue;
            }
            for step in 0..4 {
                if self.prng.chance(0.1) {
                    self.tell("crash while a chunk changes its form").crash()?;
                    return Ok(());
                }
                if !self.step_into_columns(at, chunk, step).unwrap_or(false) {
                    // The disk refuses, the chunk has lost rows, or is in the objects alone. The
                    // switch begins anew another time.
                    let _ = self.volume.disk().abandon(chunk);
                    break;
                }
            }
        }
        Ok(())
    }

    /// One step of the switch. Returns whether the next may follow.
    fn step_into_columns(&mut self, at: usize, chunk: DataChunk, step: u32) -> Result<bool> {
        let stream = &self.streams[at];
        let disk = self.volume.disk().clone();
        match step {
            0 => {
                if let Some(segments) = self.volume.held_chunk(chunk) {
                    disk.begin_switch(chunk);
                    let rows = Bytes::from(segments.concat());
                    return Ok(disk.stage_rows(&stream.schema, chunk, &rows)?.is_some());
                }
                let is_stated = self.volume.state_chunk(chunk)?;
                Ok(is_stated && disk.stage(&stream.schema, chunk)?.is_some())
            }
            1 => disk.adopt(chunk),
            2 => {
                disk.sync(&columnar_name(chunk))?;
                Ok(true)
            }
            _ => {
                let bytes = disk.drop_raw(chunk)?;
                if let Some(bytes) = bytes {
                    match self.volume.seal_chunk(chunk, bytes)? {
                        true => self.outcome.sealed += 1,
                        false => self.volume.count_columnar(chunk, bytes),
                    }
                    self.outcome.columns += 1;
                }
                Ok(bytes.is_some())
            }
        }
    }

    /// The fault of a store that removes all journals but the newest, whatever is held.
    pub(super) fn drop_old_journals(&self) {
        let number = |name: &str| {
            let header = self.disk.read(name, 0, journal::HEADER_BYTES).ok()?;
            let header = journal::parse_header(name, &header).ok()??;
            (!header.is_spare).then_some(header.number)
        };
        let mut journals: Vec<(u64, String)> = Vec::new();
        for (name, _) in self.disk.list().unwrap_or_default() {
            if let Some(number) = parse_journal_name(&name).and_then(|_| number(&name)) {
                journals.push((number, name));
            }
        }
        journals.sort_unstable();
        journals.pop();
        for (_, name) in journals {
            let _ = self.disk.remove(&name);
        }
    }
}
