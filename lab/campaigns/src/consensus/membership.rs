//! The membership service outside, as a campaign has it: one value that is compared and replaced.
//!
//! Owners of replicas look at the service at fixed times. An owner tells its replica what it read
//! at its look before, and asks for a change whose effect may come later than the asker's end. Some
//! nodes do not reach the service for some time.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use evenfall_consensus_machine::external_membership::{self, WantedChange};
use evenfall_consensus_machine::{Canopus, ConsensusError, SecondRound, VnodeId};
use evenfall_core::Prng;
use evenfall_sim::{NodeIndex, Plan, Seen, SimTime};

use super::{END, Kind, Operation, vanish};

/// Time between two looks of a node.
const LOOK_EVERY: Duration = Duration::from_millis(8);
/// Longest time until a change takes effect.
const EFFECT: Duration = Duration::from_millis(30);

/// See the module documentation.
pub struct Membership {
    value: Option<Bytes>,
    takes_all: bool,
    /// Changes that have not taken effect, each with its time.
    late: Vec<(SimTime, WantedChange)>,
    /// What each node read at its look before.
    read: BTreeMap<NodeIndex, Option<Bytes>>,
    /// The nodes that do not reach the service, from when until when.
    cut_off: BTreeMap<NodeIndex, (SimTime, SimTime)>,
    prng: Prng,
    /// Changes that took effect.
    pub changes: u64,
}

impl Membership {
    /// The service of a seed. With `takes_all` it is wrong: it compares nothing.
    pub fn new(plan: &Plan, takes_all: bool) -> Self {
        let mut prng = Prng::new(plan.seed).fork(0x6f75_7473);
        let mut cut_off = BTreeMap::new();
        for node in (0..9).filter(|_| prng.chance(0.3)).collect::<Vec<_>>() {
            let from = SimTime::from_millis(prng.below(1_000));
            let until = from + Duration::from_millis(prng.below(500));
            cut_off.insert(NodeIndex(node), (from, until));
        }
        let (late, read) = (Vec::new(), BTreeMap::new());
        Self { value: None, takes_all, late, read, cut_off, prng, changes: 0 }
    }

    /// Whether the list has, or may soon have, the end of a super-leaf under this incarnation.
    pub fn may_end(&self, leaf: VnodeId, incarnation: u32) -> bool {
        let late = self.late.iter().map(|(_, wanted)| &wanted.new);
        let ended =
            late.chain(&self.value).filter_map(|list| external_membership::ended(list).ok());
        ended.flatten().any(|(of, under, _)| (of, under) == (leaf, incarnation))
    }

    /// The owner of a node looks at the service.
    pub fn look(&mut self, seen: Seen, replica: &mut Canopus) -> Result<(), ConsensusError> {
        let (is_due, late) = self.late.drain(..).partition(|(at, _)| *at <= seen.at);
        self.late = late;
        let due: Vec<(SimTime, WantedChange)> = is_due;
        for (_, wanted) in due {
            if wanted.old == self.value || self.takes_all {
                self.value = Some(wanted.new);
                self.changes += 1;
            }
        }
        let is_off = self.cut_off.get(&seen.node);
        if is_off.is_some_and(|(from, until)| (*from..*until).contains(&seen.at)) {
            self.read.remove(&seen.node);
            return Ok(());
        }
        let read = self.read.insert(seen.node, self.value.clone());
        let told = read.map_or(Ok(()), |read| replica.apply_membership(seen.local, read.as_ref()));
        if let Some(wanted) = replica.wanted_change() {
            let after = Duration::from_nanos(self.prng.below(EFFECT.as_nanos() as u64));
            self.late.push((seen.at + after, wanted));
        }
        told
    }
}

/// The looks of all nodes of a seed with a service outside.
pub fn looks(plan: &Plan, nodes: u32) -> Vec<Operation> {
    if vanish::second_round(plan) != SecondRound::External {
        return Vec::new();
    }
    let all = (0..).map(|number| SimTime::ZERO + LOOK_EVERY * number / nodes);
    let nodes = (0..nodes).map(NodeIndex).cycle();
    let looks = all.zip(nodes).map(|(at, node)| Operation { at, node, kind: Kind::Look });
    looks.take_while(|look| look.at < END).collect()
}
