//! The metadata of files: a node for each file, grouped in blocks.
//!
//! A node of 128 bytes changes whenever its file is published. 127 nodes share a block of 16 KiB,
//! which is put as one object (thesis, section 5.4.3). A block belongs to one life of one store
//! node: no other life writes the block, and a file that is claimed anew moves into a block of the
//! new life. The directory of names and the catalogue name the block of a file.
//!
//! ```text
//! block                               node (128 bytes)
//!  0  "EFMB" magic                     0  file id      u64     32  first record kept   u64
//!  4  version, 3 zero                  8  token        u32     40  data chunks         u32
//!  8  store node  u32                 12  record bytes u16     44  index chunks        u32
//! 12  block       u32                 14  aggregates   u16     48  index nodes         u32
//! 16  nodes       u32                 16  records      u64     52  tail segments       u32
//! 20  zero                            24  time of last i64     56  tail generation     u32
//! 28  crc32c      u32  of all else                             60  five parts: pack, offset
//! 32  nodes ...                                                    and bytes, u32 each
//! ```
//!
//! Version 1 had no parts: the end of a file was an object of its own, the tail. Nodes of version 1
//! are still read.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::layout::{FileId, SEGMENT_BYTES};
use crate::pack::{PARTS_MAX, PackPart};

/// Bytes of a node.
pub const NODE_BYTES: usize = 128;
/// Nodes of a block.
pub const NODES_PER_BLOCK: usize = (SEGMENT_BYTES - HEADER_BYTES) / NODE_BYTES;
/// Bytes of the header of a block.
const HEADER_BYTES: usize = 32;
/// The first bytes of a block.
const MAGIC: &[u8; 4] = b"EFMB";
/// Version of the layout of a block. Version 1 is read too.
const VERSION: u8 = 2;

/// The published state of a file in the object store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataNode {
    /// The file.
    pub file: FileId,
    /// Token of the primary that published this state.
    pub token: u32,
    /// Bytes of a record.
    pub record_bytes: u16,
    /// Aggregate fields of its index.
    pub aggregates: u16,
    /// Records that can be read from objects.
    pub records: u64,
    /// Time of the last published record.
    pub last_ns: i64,
    /// First record that is kept.
    pub first: u64,
    /// Full chunks of data that are objects.
    pub data_chunks: u32,
    /// Full chunks of the index that are objects.
    pub index_chunks: u32,
    /// Written index nodes. The nodes after the last full chunk are in the tail.
    pub index_nodes: u32,
    /// Segments in the tail object of version 1.
    pub tail_segments: u32,
    /// Generation of that tail. Still earlier versions, which had one tail name for all
    /// generations, have zero.
    pub tail_generation: u32,
    /// The parts of packs that have the segments which no chunk has, older parts first.
    pub parts: [PackPart; PARTS_MAX],
}

impl MetadataNode {
    /// The parts in packs.
    pub fn packed_parts(&self) -> impl Iterator<Item = PackPart> {
        self.parts.iter().copied().filter(|part| part.bytes > 0)
    }

    fn write(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.file.0.to_le_bytes());
        out[8..12].copy_from_slice(&self.token.to_le_bytes());
        out[12..14].copy_from_slice(&self.record_bytes.to_le_bytes());
        out[14..16].copy_from_slice(&self.aggregates.to_le_bytes());
        out[16..24].copy_from_slice(&self.records.to_le_bytes());
        out[24..32].copy_from_slice(&self.last_ns.to_le_bytes());
        out[32..40].copy_from_slice(&self.first.to_le_bytes());
        let counts = [
            self.data_chunks,
            self.index_chunks,
            self.index_nodes,
            self.tail_segments,
            self.tail_generation,
        ];
        for (count, out) in counts.iter().zip(out[40..60].chunks_exact_mut(4)) {
            out.copy_from_slice(&count.to_le_bytes());
        }
        let words = self.parts.iter().flat_map(|part| [part.pack, part.offset, part.bytes]);
        for (word, out) in words.zip(out[60..120].chunks_exact_mut(4)) {
            out.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn read(bytes: &[u8]) -> Self {
        let long = |at: usize| bytes[at..at + 8].try_into().expect("eight bytes");
        let word =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Self {
            file: FileId(u64::from_le_bytes(long(0))),
            token: word(8),
            record_bytes: u16::from_le_bytes([bytes[12], bytes[13]]),
            aggregates: u16::from_le_bytes([bytes[14], bytes[15]]),
            records: u64::from_le_bytes(long(16)),
            last_ns: i64::from_le_bytes(long(24)),
            first: u64::from_le_bytes(long(32)),
            data_chunks: word(40),
            index_chunks: word(44),
            index_nodes: word(48),
            tail_segments: word(52),
            tail_generation: word(56),
            parts: std::array::from_fn(|part| {
                let at = 60 + 12 * part;
                PackPart { pack: word(at), offset: word(at + 4), bytes: word(at + 8) }
            }),
        }
    }
}

/// A block of nodes.
///
/// # Panics
/// With more than [`NODES_PER_BLOCK`] nodes.
pub fn encode_block(node: u32, block: u32, nodes: &[MetadataNode]) -> Bytes {
    assert!(nodes.len() <= NODES_PER_BLOCK, "a block has {NODES_PER_BLOCK} nodes");
    let mut bytes = vec![0; SEGMENT_BYTES];
    bytes[..4].copy_from_slice(MAGIC);
    bytes[4] = VERSION;
    bytes[8..12].copy_from_slice(&node.to_le_bytes());
    bytes[12..16].copy_from_slice(&block.to_le_bytes());
    bytes[16..20].copy_from_slice(&(nodes.len() as u32).to_le_bytes());
    for (node, out) in nodes.iter().zip(bytes[HEADER_BYTES..].chunks_exact_mut(NODE_BYTES)) {
        node.write(out);
    }
    let crc = checksum(&bytes);
    bytes[28..32].copy_from_slice(&crc.to_le_bytes());
    Bytes::from(bytes)
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..28]), &bytes[HEADER_BYTES..])
}

/// The nodes of a block.
///
/// # Errors
/// [`Error::Damaged`], [`Error::Version`].
pub fn decode_block(bytes: &[u8], place: &str) -> Result<Vec<MetadataNode>> {
    if bytes.len() != SEGMENT_BYTES || bytes[..4] != *MAGIC {
        return Err(Error::damaged(place, "not a block of metadata"));
    }
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    if word(28) != checksum(bytes) {
        return Err(Error::damaged(place, "wrong checksum"));
    }
    if !(1..=VERSION).contains(&bytes[4]) {
        return Err(Error::Version { place: place.into(), version: bytes[4] });
    }
    let count = word(16) as usize;
    if count > NODES_PER_BLOCK {
        return Err(Error::damaged(place, "more nodes than fit"));
    }
    let nodes = bytes[HEADER_BYTES..].chunks_exact(NODE_BYTES).take(count);
    Ok(nodes.map(MetadataNode::read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_reads_back_and_every_flipped_byte_is_found() {
        let node = |n: u64| MetadataNode {
            file: FileId(n),
            token: 2,
            record_bytes: 16,
            records: n * 1_000,
            last_ns: -1,
            tail_segments: 9,
            tail_generation: 3,
            parts: std::array::from_fn(|at| PackPart { pack: 7, offset: at as u32, bytes: 9 }),
            ..MetadataNode::default()
        };
        let nodes: Vec<_> = (0..NODES_PER_BLOCK as u64).map(node).collect();
        assert_eq!(nodes.len(), 127);
        let mut bytes = encode_block(1, 2, &nodes).to_vec();
        assert_eq!(decode_block(&bytes, "here").unwrap(), nodes);
        for at in (0..bytes.len()).step_by(3) {
            bytes[at] ^= 1;
            assert!(decode_block(&bytes, "here").is_err(), "byte {at}");
            bytes[at] ^= 1;
        }
        assert!(decode_block(&[], "here").is_err());
    }
}
