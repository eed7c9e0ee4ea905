//! The time index: a k-ary post-order heap (thesis, section 5.5).
//!
//! An index over the segments of a file must grow at one end, must never change written nodes, and
//! must be searchable without being loaded. A B-tree rewrites nodes when it splits. In post order a
//! parent follows its last child, so the index only appends nodes. The number of a node gives its
//! height, its children and its segments, so no addresses are stored.
//!
//! ```text
//!            2            5            8 . . . heights: 0 0 1  0 0 1  0 ...   (k = 2)
//!          /   \        /   \        /
//!         0     1      3     4      6  7      and 6 = parent of 2 and 5, height 2
//!
//! node j = one segment of kind I:
//! +--------+---------------------------+--------------------------------------+
//! | header | k summaries of children   | n entries: segments j*n .. (j+1)*n   |
//! +--------+---------------------------+--------------------------------------+
//!            zero in a leaf
//! entry = summary of a segment: min i64, max i64, count u64, then per aggregate field
//!         sum, min, max i128
//! ```
//!
//! Inner nodes have entries of their own, so the segments below a node are contiguous and end with
//! the node's own segments. A search goes from the newest node backwards. A search for the last
//! seconds therefore reads only the node that is still being filled, in memory.

mod search;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use search::{Bound, IndexView, NodeSource, partition, summarise};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::layout::{FileId, PAYLOAD_BYTES, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentKind};
use crate::segment::{self, SegmentHeader};

/// Children of an inner node. With 32, the summaries of children take a twentieth of a node, and
/// the tree of a file of a terabyte has height four.
pub const FAN_OUT: u32 = 32;
/// Fields of which sums and extremes may be kept: each costs 48 bytes in every entry.
pub const AGGREGATES_MAX: usize = 4;

/// Sum and extremes of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aggregate {
    /// Sum, which is exact for a file of any possible length.
    pub sum: i128,
    /// Least.
    pub min: i128,
    /// Greatest.
    pub max: i128,
}

impl Aggregate {
    /// The aggregate of one value.
    pub fn of(value: i128) -> Self {
        Self { sum: value, min: value, max: value }
    }

    /// Adds another aggregate.
    pub fn merge(&mut self, other: &Self) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

/// A summary of consecutive records, which can be used without reading the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexSummary {
    /// Time of the first record.
    pub min_ns: i64,
    /// Time of the last record.
    pub max_ns: i64,
    /// Number of records.
    pub count: u64,
    /// In order of the schema's aggregate fields.
    pub aggregates: Vec<Aggregate>,
}

impl IndexSummary {
    /// The summary of no record, which stands behind records up to this time. To add it changes no
    /// other summary.
    pub fn of_nothing(at_ns: i64, aggregates: usize) -> Self {
        let none = Aggregate { sum: 0, min: i128::MAX, max: i128::MIN };
        Self { min_ns: at_ns, max_ns: at_ns, count: 0, aggregates: vec![none; aggregates] }
    }

    /// Adds the summary of the records that follow.
    pub fn merge(&mut self, other: &Self) {
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.count += other.count;
        for (mine, theirs) in self.aggregates.iter_mut().zip(&other.aggregates) {
            mine.merge(theirs);
        }
    }

    fn write(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.min_ns.to_le_bytes());
        out[8..16].copy_from_slice(&self.max_ns.to_le_bytes());
        out[16..24].copy_from_slice(&self.count.to_le_bytes());
        for (aggregate, out) in self.aggregates.iter().zip(out[24..].chunks_exact_mut(48)) {
            out[..16].copy_from_slice(&aggregate.sum.to_le_bytes());
            out[16..32].copy_from_slice(&aggregate.min.to_le_bytes());
            out[32..48].copy_from_slice(&aggregate.max.to_le_bytes());
        }
    }

    fn read(bytes: &[u8], aggregates: usize) -> Self {
        let long = |at: usize| bytes[at..at + 8].try_into().expect("eight bytes");
        let wide = |bytes: &[u8], at: usize| {
            i128::from_le_bytes(bytes[at..at + 16].try_into().expect("sixteen bytes"))
        };
        Self {
            min_ns: i64::from_le_bytes(long(0)),
            max_ns: i64::from_le_bytes(long(8)),
            count: u64::from_le_bytes(long(16)),
            aggregates: bytes[24..]
                .chunks_exact(48)
                .take(aggregates)
                .map(|b| Aggregate { sum: wide(b, 0), min: wide(b, 16), max: wide(b, 32) })
                .collect(),
        }
    }
}

/// The arithmetic of the heap for one number of aggregates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    aggregates: usize,
}

/// A tree of the forest: its root's number, its height and its number of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexRoot {
    /// Number of the root, which is the tree's last node.
    pub node: u32,
    /// Levels below the root.
    pub height: u32,
    /// Nodes of the tree.
    pub nodes: u32,
}

/// Nodes of a perfect tree of this height.
fn tree_nodes(height: u32) -> u32 {
    (0..=height).fold(0u32, |nodes, _| nodes.saturating_mul(FAN_OUT).saturating_add(1))
}

impl Geometry {
    /// The arithmetic for this many aggregate fields.
    ///
    /// # Errors
    /// [`Error::Schema`] above [`AGGREGATES_MAX`].
    pub fn new(aggregates: usize) -> Result<Self> {
        if aggregates > AGGREGATES_MAX {
            let what = format!("{aggregates} aggregate fields, at most {AGGREGATES_MAX}");
            return Err(Error::Schema { what });
        }
        Ok(Self { aggregates })
    }

    /// Aggregate fields.
    pub fn aggregates(self) -> usize {
        self.aggregates
    }

    /// Bytes of one summary.
    pub fn entry_bytes(self) -> usize {
        24 + 48 * self.aggregates
    }

    /// Segments that one node indexes itself.
    pub fn entries_per_node(self) -> u32 {
        (PAYLOAD_BYTES / self.entry_bytes()) as u32 - FAN_OUT
    }

    /// The trees of the first `nodes` nodes, oldest first.
    pub fn roots(self, nodes: u32) -> Vec<IndexRoot> {
        let mut roots = Vec::new();
        let (mut done, mut left) = (0, nodes);
        let mut height = 0;
        while tree_nodes(height + 1) <= left {
            height += 1;
        }
        while left > 0 {
            let size = tree_nodes(height);
            while size <= left {
                done += size;
                left -= size;
                roots.push(IndexRoot { node: done - 1, height, nodes: size });
            }
            height = height.saturating_sub(1);
        }
        roots
    }

    /// The height of a node, from its number alone.
    pub fn height(self, node: u32) -> u32 {
        self.roots(node + 1).last().map_or(0, |root| root.height)
    }

    /// The children of a tree's root, oldest first.
    pub fn children(self, root: IndexRoot) -> impl DoubleEndedIterator<Item = IndexRoot> {
        let size = if root.height == 0 { 0 } else { tree_nodes(root.height - 1) };
        let first = root.node + 1 - root.nodes;
        (0..if root.height == 0 { 0 } else { FAN_OUT }).map(move |child| IndexRoot {
            node: first + (child + 1) * size - 1,
            height: root.height - 1,
            nodes: size,
        })
    }

    /// First segment below a tree's root.
    pub fn first_segment(self, root: IndexRoot) -> u32 {
        (root.node + 1 - root.nodes) * self.entries_per_node()
    }
}

/// A written node, read in place.
#[derive(Clone, Debug)]
pub struct IndexNode {
    geometry: Geometry,
    height: u32,
    count: u32,
    bytes: Bytes,
}

impl IndexNode {
    /// The node in this segment. The caller has [checked](segment::expect) the segment already,
    /// because a check reads all bytes, and a search opens the same nodes many times.
    ///
    /// # Errors
    /// [`Error::Damaged`] when it is not this node of this file.
    pub fn open(geometry: Geometry, file: FileId, number: u32, bytes: Bytes) -> Result<Self> {
        let found = segment::header(&bytes).filter(|header| {
            (header.kind, header.file, header.number) == (SegmentKind::Index, file, number)
        });
        let header = found.ok_or_else(|| {
            Error::damaged(format!("index node {number} of {file}"), "it is another segment")
        })?;
        let room = geometry.entries_per_node();
        if usize::from(header.entry_bytes) != geometry.entry_bytes() || header.count > room {
            let place = format!("index node {number} of {file}");
            return Err(Error::damaged(place, "its entries are of another schema"));
        }
        Ok(Self { geometry, height: geometry.height(number), count: header.count, bytes })
    }

    fn slot(&self, slot: u32) -> IndexSummary {
        let size = self.geometry.entry_bytes();
        let at = SEGMENT_HEADER_BYTES + slot as usize * size;
        IndexSummary::read(&self.bytes[at..at + size], self.geometry.aggregates)
    }

    /// Summary of the tree of this child.
    pub fn child(&self, child: u32) -> Option<IndexSummary> {
        (self.height > 0 && child < FAN_OUT).then(|| self.slot(child))
    }

    /// Entries in the node.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Whether the node has no entry. Every written node has one.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Summary of a segment, by its place in the node.
    pub fn entry(&self, at: u32) -> Option<IndexSummary> {
        (at < self.count).then(|| self.slot(FAN_OUT + at))
    }

    /// Times of the first and last record of a segment, by its place in the node.
    fn times(&self, at: u32) -> Option<(i64, i64)> {
        let size = self.geometry.entry_bytes();
        let from = SEGMENT_HEADER_BYTES + (FAN_OUT + at) as usize * size;
        let entry = self.bytes.get(from..from + 16).filter(|_| at < self.count)?;
        let long = |at: usize| i64::from_le_bytes(entry[at..at + 8].try_into().expect("8 bytes"));
        Some((long(0), long(8)))
    }

    /// Summary of the whole tree of this node.
    pub fn summary(&self) -> Option<IndexSummary> {
        let parts = (0..FAN_OUT).filter_map(|child| self.child(child));
        let mut parts = parts.chain((0..self.count).filter_map(|at| self.entry(at)));
        let first = parts.next()?;
        Some(parts.fold(first, |mut all, part| {
            all.merge(&part);
            all
        }))
    }
}

fn begins(roots: &[(u32, IndexSummary)]) -> Arc<Vec<i64>> {
    Arc::new(roots.iter().map(|(_, summary)| summary.min_ns).collect())
}

/// The writing end: the node being filled, and the roots so far.
#[derive(Clone, Debug)]
pub struct Builder {
    geometry: Geometry,
    /// Nodes written.
    nodes: u32,
    roots: Vec<(u32, IndexSummary)>,
    /// Times at which the trees of `roots` begin. Snapshots of readers share the list.
    begins_ns: Arc<Vec<i64>>,
    /// Shared with the snapshots of readers, so that a read copies none of it.
    entries: Arc<Vec<IndexSummary>>,
}

impl Builder {
    /// The index of an empty file.
    pub fn new(geometry: Geometry) -> Self {
        let (begins_ns, entries) = (Arc::default(), Arc::default());
        Self { geometry, nodes: 0, roots: Vec::new(), begins_ns, entries }
    }

    /// The index of a file whose first `nodes` nodes are written.
    ///
    /// # Errors
    /// The errors of `source`; [`Error::Damaged`] for a node without entries.
    pub fn resume(geometry: Geometry, nodes: u32, source: &mut dyn NodeSource) -> Result<Self> {
        let mut roots = Vec::new();
        for root in geometry.roots(nodes) {
            let summary = source.node(root.node)?.summary().ok_or_else(|| {
                Error::damaged(format!("index node {}", root.node), "it has no entries")
            })?;
            roots.push((root.height, summary));
        }
        let begins_ns = begins(&roots);
        Ok(Self { geometry, nodes, roots, begins_ns, entries: Arc::default() })
    }

    /// The arithmetic.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Nodes that are full and written.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Times at which the trees of the written nodes begin, oldest first.
    pub fn begins_ns(&self) -> &Arc<Vec<i64>> {
        &self.begins_ns
    }

    /// Entries of the node being filled.
    pub fn entries(&self) -> &Arc<Vec<IndexSummary>> {
        &self.entries
    }

    /// Segments indexed.
    pub fn segments(&self) -> u32 {
        self.nodes * self.geometry.entries_per_node() + self.entries.len() as u32
    }

    /// Adds the next segment. Returns the bytes of the node when the segment fills it.
    pub fn push(&mut self, entry: IndexSummary, file: FileId, token: u32) -> Option<Bytes> {
        Arc::make_mut(&mut self.entries).push(entry);
        if (self.entries.len() as u32) < self.geometry.entries_per_node() {
            return None;
        }
        let bytes = self.encode(file, token);
        let height = self.geometry.height(self.nodes);
        let children = if height > 0 { FAN_OUT as usize } else { 0 };
        let below = self.roots.split_off(self.roots.len() - children);
        let entries = std::mem::take(&mut self.entries);
        let parts = below.into_iter().map(|(_, s)| s).chain(entries.iter().cloned());
        let summary = parts.reduce(|mut all, part| {
            all.merge(&part);
            all
        });
        self.roots.push((height, summary.expect("a full node has entries")));
        self.begins_ns = begins(&self.roots);
        self.nodes += 1;
        Some(bytes)
    }

    /// The node being filled, as a segment.
    pub fn encode(&self, file: FileId, token: u32) -> Bytes {
        let size = self.geometry.entry_bytes();
        let mut bytes = vec![0; SEGMENT_BYTES];
        let mut slots = bytes[SEGMENT_HEADER_BYTES..].chunks_exact_mut(size);
        let height = self.geometry.height(self.nodes);
        let children = if height > 0 { FAN_OUT as usize } else { 0 };
        let below = &self.roots[self.roots.len() - children..];
        for (slot, (_, summary)) in slots.by_ref().take(FAN_OUT as usize).zip(below) {
            summary.write(slot);
        }
        let body = bytes[SEGMENT_HEADER_BYTES..].chunks_exact_mut(size).skip(FAN_OUT as usize);
        for (slot, summary) in body.zip(self.entries.iter()) {
            summary.write(slot);
        }
        let header = SegmentHeader {
            kind: SegmentKind::Index,
            entry_bytes: size as u16,
            file,
            number: self.nodes,
            count: self.entries.len() as u32,
            token,
        };
        segment::seal(&header, &mut bytes);
        Bytes::from(bytes)
    }
}
