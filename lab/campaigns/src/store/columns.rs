//! How the first node of the campaign puts its whole chunks into columns, in the steps of the
//! engine, with crashes in between.

use evenfall_core::Disk as _;
use evenfall_store_format::columnar::columnar_name;
use evenfall_store_format::layout::{DataChunk, SEGMENTS_PER_CHUNK};
use evenfall_store_format::volume::Recovered;
use evenfall_store_format::{ColumnDisk, Result, Volume, VolumeConfig};

use super::packing::Packing;
use super::{Broken, Hand, Scene};

/// Opens a disk after a crash, and removes what a switch that was cut short has left.
pub(super) fn open(
    hand: Hand,
    config: &VolumeConfig,
) -> Result<(Volume<ColumnDisk<Hand>>, Recovered)> {
    let disk = ColumnDisk::open(hand, Some(&Packing))?;
    disk.sweep()?;
    Volume::open(disk, config.clone())
}

/// Limit of the bytes of an append. With most seeds a run fills segments, and with some chunks.
pub(super) fn append_bytes_max(seed: u64) -> u64 {
    match seed % 16 {
        3 => 1_600_000,
        11 => 4_000_000,
        _ => 200_000,
    }
}

impl Scene {
    /// Puts the raw chunks of a stream into columns, as far as they are synced. The power may go
    /// between any two steps.
    pub(super) fn put_into_columns(&mut self) -> Result<(), Broken> {
        let at = self.prng.below(self.streams.len() as u64) as usize;
        let file = self.streams[at].appender.file();
        let layout = self.streams[at].appender.layout();
        let full = layout.full_segments(self.volume.synced(file)) / SEGMENTS_PER_CHUNK;
        for number in 0..full {
            let chunk = DataChunk { file, number };
            if self.volume.disk().columnar_chunks().iter().any(|(of, _)| *of == chunk) {
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
                    self.volume.count_columnar(chunk, bytes);
                    self.outcome.columns += 1;
                }
                Ok(bytes.is_some())
            }
        }
    }
}
