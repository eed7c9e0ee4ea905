//! Search from the newest node, and summaries of ranges.

use super::{FAN_OUT, Geometry, IndexNode, IndexRoot, IndexSummary};
use crate::error::Result;

/// A source of written nodes: a cache, chunks or objects.
pub trait NodeSource {
    /// The node of this number.
    ///
    /// # Errors
    /// Damage, or the reason why the node cannot be read.
    fn node(&mut self, number: u32) -> Result<IndexNode>;
}

/// The condition of a search. Times never go back, so a condition holds for a first part of the
/// file and not for the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Segments that end before this time.
    EndsBefore(i64),
    /// Segments that begin at or before this time.
    BeginsBy(i64),
}

impl Bound {
    /// Whether the segments that begin at `min_ns` may hold the divide.
    fn reaches(self, min_ns: i64) -> bool {
        match self {
            Self::EndsBefore(time) => min_ns < time,
            Self::BeginsBy(time) => min_ns <= time,
        }
    }

    pub(super) fn holds(self, summary: &IndexSummary) -> bool {
        self.holds_of(summary.min_ns, summary.max_ns)
    }

    fn holds_of(self, min_ns: i64, max_ns: i64) -> bool {
        match self {
            Self::EndsBefore(time) => max_ns < time,
            Self::BeginsBy(time) => min_ns <= time,
        }
    }
}

/// The part of an index that a search has in memory: its size, and the node that is being filled.
#[derive(Clone, Debug)]
pub struct IndexView<'a> {
    /// The arithmetic.
    pub geometry: Geometry,
    /// Written nodes.
    pub nodes: u32,
    /// Times at which the trees of the written nodes begin, oldest first; empty when they are not
    /// known.
    pub begins_ns: &'a [i64],
    /// Entries of the node being filled.
    pub entries: &'a [IndexSummary],
}

/// Number of segments from the first on for which the bound holds.
///
/// # Errors
/// The errors of `source` for the nodes on the way: at most `k` for each level.
pub fn partition(view: &IndexView, bound: Bound, source: &mut dyn NodeSource) -> Result<u32> {
    let per_node = view.geometry.entries_per_node();
    if view.entries.first().is_some_and(|first| bound.reaches(first.min_ns)) {
        let inside = view.entries.partition_point(|entry| bound.holds(entry)) as u32;
        return Ok(view.nodes * per_node + inside);
    }
    let roots = view.geometry.roots(view.nodes);
    let mut begins = view.begins_ns.iter().rev();
    for root in roots.into_iter().rev() {
        // A tree that begins too late is passed by without its root being fetched.
        if begins.next().is_some_and(|begin| !bound.reaches(*begin)) {
            continue;
        }
        let node = source.node(root.node)?;
        let first = if root.height > 0 { node.child(0) } else { node.entry(0) };
        if first.is_some_and(|first| bound.reaches(first.min_ns)) {
            return descend(view.geometry, root, node, bound, source);
        }
    }
    Ok(0)
}

/// The divide lies in the tree of `node`.
fn descend(
    geometry: Geometry,
    mut root: IndexRoot,
    mut node: IndexNode,
    bound: Bound,
    source: &mut dyn NodeSource,
) -> Result<u32> {
    let per_node = geometry.entries_per_node();
    // A level less with each turn, so this ends.
    loop {
        let own = node.entry(0).is_some_and(|first| bound.reaches(first.min_ns));
        if own || root.height == 0 {
            let (mut low, mut high) = (0, node.len());
            while low < high {
                let middle = low + (high - low) / 2;
                match node.times(middle).is_some_and(|(min, max)| bound.holds_of(min, max)) {
                    true => low = middle + 1,
                    false => high = middle,
                }
            }
            return Ok(root.node * per_node + low);
        }
        let reaches =
            |child: &u32| node.child(*child).is_some_and(|summary| bound.reaches(summary.min_ns));
        let Some(child) = (0..FAN_OUT).rev().find(reaches) else {
            return Ok(geometry.first_segment(root));
        };
        root = geometry.children(root).nth(child as usize).expect("an inner node has k children");
        node = source.node(root.node)?;
    }
}

/// The summary of the segments `first..end`, without reading records; `None` for an empty range.
///
/// # Errors
/// The errors of `source` for the nodes on the way.
pub fn summarise(
    view: &IndexView,
    first: u32,
    end: u32,
    source: &mut dyn NodeSource,
) -> Result<Option<IndexSummary>> {
    let mut all: Option<IndexSummary> = None;
    let mut take = |part: IndexSummary| match &mut all {
        Some(all) => all.merge(&part),
        None => all = Some(part),
    };
    let per_node = view.geometry.entries_per_node();
    // Trees that are partly inside; depth-first, never more than k for each level.
    let mut open: Vec<IndexRoot> = view.geometry.roots(view.nodes);
    while let Some(root) = open.pop() {
        let tree = view.geometry.first_segment(root)..(root.node + 1) * per_node;
        if tree.end <= first || tree.start >= end {
            continue;
        }
        let node = source.node(root.node)?;
        let own = root.node * per_node;
        let entries = (0..node.len()).filter(|at| (first..end).contains(&(own + at)));
        entries.filter_map(|at| node.entry(at)).for_each(&mut take);
        for (number, child) in view.geometry.children(root).enumerate() {
            let below = view.geometry.first_segment(child)..(child.node + 1) * per_node;
            if first <= below.start && below.end <= end {
                node.child(number as u32).into_iter().for_each(&mut take);
            } else {
                open.push(child);
            }
        }
    }
    let own = view.nodes * per_node;
    let entries = view.entries.iter().zip(own..).filter(|(_, at)| (first..end).contains(at));
    entries.for_each(|(entry, _)| take(entry.clone()));
    Ok(all)
}
