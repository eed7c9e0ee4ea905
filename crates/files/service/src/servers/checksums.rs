//! The checksum of a file as HDFS has it: the MD5 of the MD5 of each block, and the MD5 of a block
//! is that of the CRC32C of each 512 bytes.
//!
//! Hadoop's client of WebHDFS reads this checksum alone, and `distcp` compares two clusters by it.
//! Files are equal by it only if their block sizes are, as in HDFS.

use evenfall_files_machine::config::CHECKSUM_PIECE_BYTES;
use md5::{Digest as _, Md5};

/// A sum over the bytes of a file, in order.
pub struct BlockChecksum {
    block_bytes: u64,
    /// The checksum and the length of the piece that is not whole yet.
    piece: (u32, u64),
    /// Bytes of the block that is not whole yet.
    block_len: u64,
    block: Md5,
    file: Md5,
    blocks: u64,
}

impl BlockChecksum {
    /// The sum of an empty file with this block size.
    pub fn new(block_bytes: u64) -> Self {
        let (block, file) = (Md5::new(), Md5::new());
        Self { block_bytes, piece: (0, 0), block_len: 0, block, file, blocks: 0 }
    }

    /// Adds the next bytes of the file.
    pub fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = CHECKSUM_PIECE_BYTES - self.piece.1;
            let room = room.min(self.block_bytes - self.block_len);
            let (now, rest) = bytes.split_at(bytes.len().min(room as usize));
            self.piece =
                (crc32c::crc32c_append(self.piece.0, now), self.piece.1 + now.len() as u64);
            self.block_len += now.len() as u64;
            bytes = rest;
            if self.piece.1 == CHECKSUM_PIECE_BYTES {
                self.end_piece();
            }
            if self.block_len == self.block_bytes {
                self.end_block();
            }
        }
    }

    fn end_piece(&mut self) {
        if self.piece.1 > 0 {
            self.block.update(self.piece.0.to_be_bytes());
            self.piece = (0, 0);
        }
    }

    fn end_block(&mut self) {
        self.end_piece();
        if self.block_len > 0 {
            self.file.update(self.block.finalize_reset());
            (self.blocks, self.block_len) = (self.blocks + 1, 0);
        }
    }

    /// The name of the algorithm, and the checksum in hexadecimal digits, as Hadoop writes them:
    /// the bytes of a piece, the pieces of a block, and the MD5.
    pub fn finish(mut self) -> (String, String) {
        self.end_block();
        let hex = |md5: &[u8]| md5.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        if self.blocks == 0 {
            // Hadoop's clients compare empty files by this constant: the MD5 of 32 zeros.
            let md5 = hex(&Md5::digest([0; 32]));
            return ("MD5-of-0MD5-of-0CRC32".into(), format!("{:024x}{md5}", 0));
        }
        // Hadoop counts the pieces of a block only for files of several blocks.
        let pieces = if self.blocks > 1 { self.block_bytes / CHECKSUM_PIECE_BYTES } else { 0 };
        let name = format!("MD5-of-{pieces}MD5-of-{CHECKSUM_PIECE_BYTES}CRC32C");
        let md5 = hex(&self.file.finalize());
        (name, format!("{CHECKSUM_PIECE_BYTES:08x}{pieces:016x}{md5}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8], block: u64, step: usize) -> (String, String) {
        let mut sum = BlockChecksum::new(block);
        bytes.chunks(step).for_each(|piece| sum.add(piece));
        sum.finish()
    }

    /// The same sum by its definition.
    fn plain(bytes: &[u8], block: usize) -> String {
        let mut file = Vec::new();
        for block in bytes.chunks(block) {
            let sums = block.chunks(512).flat_map(|piece| crc32c::crc32c(piece).to_be_bytes());
            file.extend_from_slice(&Md5::digest(sums.collect::<Vec<u8>>()));
        }
        Md5::digest(file).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_checksum_of_an_empty_file_is_the_constant_of_hadoop() {
        let (name, sum) = of(b"", 1 << 20, 1);
        assert_eq!(name, "MD5-of-0MD5-of-0CRC32");
        assert_eq!(sum, "00000000000000000000000070bc8f4b72a86921468bf8e8441dce51");
    }

    #[test]
    fn blocks_and_pieces_are_summed_wherever_the_bytes_are_cut() {
        let all: Vec<u8> = (0..10_000_u32).map(|n| (n % 251) as u8).collect();
        for (len, block, pieces) in [(700, 2_048, 0), (2_048, 2_048, 0), (10_000, 2_048, 4)] {
            let (bytes, md5) = (&all[..len], plain(&all[..len], block));
            for step in [1, 511, 512, 4_000, 10_000] {
                let (name, sum) = of(bytes, block as u64, step);
                assert_eq!(name, format!("MD5-of-{pieces}MD5-of-512CRC32C"));
                assert_eq!(sum, format!("00000200{pieces:016x}{md5}"), "{len} {step}");
            }
        }
    }
}
