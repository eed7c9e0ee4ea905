//! How much wider the bands of pairs are than they lately were.
//!
//! The band of a pair is as wide as the shortest round trip of its probes. A host that is busy, or
//! a queue that never empties, delays all probes of a window, and the band is then wider than
//! usual. When all of the delay lies on one of the two ways, the estimate is wrong by the extra
//! half width. The estimate is never wrong by more.
//!
//! A busy host delays the probes of all its pairs alike. The estimates around all loops then still
//! add up to zero, and the remainders of the least squares do not show the error. So the extra
//! widths are the only sign of this error.

use std::collections::BTreeMap;

use crate::mesh::ClockEdge;
use crate::solver::median;

/// Share of the distance to a wider band by which the usual width of a pair grows in one window. A
/// pair whose route has become longer has its new usual width within a minute.
const FORGETTING: f64 = 1.0 / 8.0;

/// Pairs of each node whose usual widths are kept. A node of a large mesh has some twenty pairs, so
/// that only hostile reports lead to more. Beyond the limit all usual widths are learnt anew.
const PAIRS_MAX: usize = 64;

/// The usual widths of the bands of all pairs.
#[derive(Clone, Debug, Default)]
pub(crate) struct BandWidening {
    /// The narrowest half band of each pair lately, in nanoseconds. A pair without an estimate
    /// keeps its usual width, because a busy host also sends its reports too late.
    usual: BTreeMap<(u32, u32), f64>,
}

impl BandWidening {
    /// The extra half width of the bands of each node, in nanoseconds: the median over the node's
    /// pairs.
    pub(crate) fn extra<'a>(
        &mut self,
        nodes: usize,
        edges: impl Iterator<Item = &'a ClockEdge>,
    ) -> Vec<f64> {
        if self.usual.len() > PAIRS_MAX * nodes {
            self.usual.clear();
        }
        let mut by_node = vec![Vec::new(); nodes];
        for edge in edges {
            let half = edge.estimate.half_ns as f64;
            let usual = self.usual.entry((edge.a, edge.b)).or_insert(half);
            *usual = half.min(*usual + FORGETTING * (half - *usual));
            for node in [edge.a, edge.b] {
                by_node[node as usize].push(half - *usual);
            }
        }
        by_node.iter().map(|extra| median(extra)).collect()
    }
}
