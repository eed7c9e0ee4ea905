//! The state that only the reference keeps: the mesh, all reports, and who contradicts whom.

use std::collections::{BTreeMap, BTreeSet};

use evenfall_core::Timestamp;

use crate::sources::Witness;
use crate::wire::Claim;
use crate::{ClockEdge, ClockVerdict, Config, MeshSolver, PairEstimate};

/// The state that only the reference keeps.
#[derive(Debug)]
pub(super) struct ReferenceState {
    pub(super) mesh: MeshSolver,
    pub(super) close_at: Timestamp,
    pub(super) solve_at: Option<Timestamp>,
    pub(super) closed: Timestamp,
    pub(super) edges: BTreeMap<(u32, u32), PairEstimate>,
    pub(super) sources: BTreeMap<u32, Claim>,
    /// Pairs of nodes whose probes contradicted their proven bounds since the last solve.
    pub(super) crossed: BTreeSet<(u32, u32)>,
    /// Pairs that each node had in the last solve.
    pub(super) degrees: Vec<u32>,
    /// Nodes whose clocks have jumped since the last solve.
    pub(super) jumped: BTreeSet<u32>,
    /// Whether the clock of the reference has jumped, by a time that is not known yet.
    pub(super) is_astray: bool,
    /// The time of the mesh less the clock of the reference: the sum of all jumps of that clock,
    /// with the opposite sign.
    pub(super) shift_ns: i64,
}

impl ReferenceState {
    pub(super) fn new(config: &Config, nodes: u32, now: Timestamp) -> Self {
        Self {
            mesh: MeshSolver::new(config.clone(), nodes, 0),
            close_at: now + config.window,
            solve_at: None,
            closed: now,
            edges: BTreeMap::new(),
            sources: BTreeMap::new(),
            crossed: BTreeSet::new(),
            degrees: vec![0; nodes as usize],
            jumped: BTreeSet::new(),
            is_astray: false,
            shift_ns: 0,
        }
    }

    /// Counts the pairs of each node.
    pub(super) fn count(&mut self, edges: &[ClockEdge]) {
        self.degrees.fill(0);
        for node in edges.iter().flat_map(|edge| [edge.a, edge.b]) {
            self.degrees[node as usize] += 1;
        }
    }

    /// Whether more than half of a node's pairs contradict their proven bounds. In a mesh of two
    /// nodes each node contradicts the other node, and the reference is trusted.
    pub(super) fn is_contradicted(&self, node: u32) -> bool {
        let pairs = self.degrees[node as usize];
        let contradicting = self.crossed.iter().filter(|(a, b)| node == *a || node == *b).count();
        2 * contradicting as u32 > pairs && (node > 0 || pairs > 1)
    }

    /// Whether the clock of the reference has jumped: most neighbours contradict the reference, and
    /// other nodes agree with each other.
    pub(super) fn has_lost_itself(&self, edges: &[ClockEdge]) -> bool {
        let contradicting = self.crossed.iter().filter(|(a, _)| *a == 0).count();
        let agreeing = edges.iter().filter(|edge| edge.a == 0).count();
        let others = edges.iter().any(|edge| edge.a > 0);
        self.jumped.contains(&0) || (contradicting > 1 && contradicting > agreeing && others)
    }

    /// The sources of all nodes on the time of the mesh. The bound of a witness is the bound of the
    /// source plus the assumed bound of the node's clock.
    pub(super) fn witnesses(
        &mut self,
        verdicts: &[Option<ClockVerdict>],
        config: &Config,
    ) -> Vec<Witness> {
        let sources = core::mem::take(&mut self.sources);
        let witness = |(node, claim): (u32, Claim)| {
            let verdict = verdicts.get(node as usize).copied().flatten()?;
            let reading = verdict.reading(verdict.at, config);
            let bound_ns = claim.bound_ns.saturating_add(reading.assumed_ns?);
            let offset_ns = claim.offset_ns.saturating_sub(reading.offset_ns);
            Some(Witness { node, claim: Claim { offset_ns, bound_ns } })
        };
        sources.into_iter().filter_map(witness).collect()
    }
}
