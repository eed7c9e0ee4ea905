//! Seeds in which a whole super-leaf vanishes, or leaves as planned.

use std::time::Duration;

use evenfall_core::{NodeId, Prng};
use evenfall_order_machine::SecondRound;
use evenfall_sim::{Fault, NodeIndex, Plan, SimTime};

use super::{Kind, Operation, lease_cycles};

/// Nodes of a super-leaf.
const MEMBERS: u32 = 3;

/// When the nodes of a super-leaf that left as planned start again.
const RESTART_AT: SimTime = SimTime::from_millis(1_300);

/// The second round of a seed: half of the seeds without leases, and with a tree of two levels,
/// have one. Half of these have a membership service outside.
pub fn second_round(plan: &Plan) -> SecondRound {
    let is_wide = matches!(plan.knob("tree"), 1 | 2);
    let is_on = is_wide && lease_cycles(plan.seed) == 0 && prng(plan).chance(0.5);
    match prng(plan).fork(4).chance(0.5) {
        _ if !is_on => SecondRound::Off,
        true => SecondRound::Outside,
        false => SecondRound::Consensus,
    }
}

/// Whether a super-leaf may vanish for good: the others can go on without it.
fn may_stay_away(plan: &Plan) -> bool {
    match second_round(plan) {
        SecondRound::Off => false,
        SecondRound::Consensus => leaves(plan) > 2,
        SecondRound::Outside => leaves(plan) > 1,
    }
}

fn prng(plan: &Plan) -> Prng {
    Prng::new(plan.seed).fork(0x7661_6e69)
}

/// The number of super-leaves of a tree.
fn leaves(plan: &Plan) -> u32 {
    [1, 2, 3, 4][plan.knob("tree") as usize]
}

fn nodes(leaf: u32) -> impl Iterator<Item = NodeIndex> {
    (leaf * MEMBERS..(leaf + 1) * MEMBERS).map(NodeIndex)
}

/// Whether two nodes are of one super-leaf.
pub fn is_one_leaf(one: NodeId, other: NodeId) -> bool {
    one.0 / MEMBERS == other.0 / MEMBERS
}

/// What happens to a super-leaf as a whole.
enum Fate {
    /// It leaves as planned, and its nodes start again later.
    Retires,
    /// It crashes or is cut off, for some time or for good.
    Vanishes,
}

/// The super-leaf that something happens to, what it is, and when it begins and ends.
fn fate(plan: &Plan) -> Option<(u32, Fate, SimTime, SimTime)> {
    let mut prng = prng(plan).fork(1);
    let (leaf, chance) = (prng.below(leaves(plan).into()) as u32, prng.below(100));
    let at = SimTime::from_millis(100 + prng.below(700));
    let until = at + Duration::from_millis(200 + prng.below(500));
    match chance {
        ..15 if leaves(plan) > 1 => Some((leaf, Fate::Retires, at, RESTART_AT)),
        30.. if second_round(plan).is_on() => Some((leaf, Fate::Vanishes, at, until)),
        _ => None,
    }
}

/// Adds what happens to a super-leaf to the faults of a seed. The nodes of the super-leaf have no
/// other outages.
pub fn aimed(mut plan: Plan) -> Plan {
    let Some((leaf, fate, at, until)) = fate(&plan) else { return plan };
    let own = |node: &NodeIndex| nodes(leaf).any(|of| of == *node);
    plan.faults.retain(|(_, fault)| match fault {
        Fault::Crash(node) | Fault::Restart(node) | Fault::Pause(node, _) => !own(node),
        _ => true,
    });
    let mut prng = prng(&plan).fork(2);
    let is_for_good = may_stay_away(&plan) && prng.chance(0.3);
    match fate {
        Fate::Vanishes if prng.chance(0.3) => {
            plan.faults.push((at, Fault::Partition(nodes(leaf).collect())));
            plan.faults.push((until, Fault::Heal));
        }
        Fate::Vanishes => {
            plan.faults.extend(nodes(leaf).map(|node| (at, Fault::Crash(node))));
            let back = nodes(leaf).filter(|_| !is_for_good);
            plan.faults.extend(back.map(|node| (until, Fault::Restart(node))));
        }
        Fate::Retires => {
            let stops = until + Duration::from_millis(1);
            plan.faults.extend(nodes(leaf).map(|node| (until, Fault::Crash(node))));
            plan.faults.extend(nodes(leaf).map(|node| (stops, Fault::Restart(node))));
        }
    }
    plan.faults.sort_by_key(|(at, _)| *at);
    plan
}

/// Whether a node that starts again has lost its disk together with all nodes of its super-leaf.
pub fn takes_disk(plan: &Plan, node: NodeIndex) -> bool {
    let all = fate(plan).filter(|_| may_stay_away(plan));
    let Some((leaf, Fate::Vanishes, ..)) = all else { return false };
    nodes(leaf).any(|of| of == node) && prng(plan).fork(3).chance(0.4)
}

/// The operation that takes a super-leaf out as planned, at a node of another super-leaf.
pub fn retirement(plan: &Plan) -> Option<Operation> {
    let (leaf, Fate::Retires, at, _) = fate(plan)? else { return None };
    let node = NodeIndex((leaf + 1) % leaves(plan) * MEMBERS);
    Some(Operation { at, node, kind: Kind::Retire(leaf as usize) })
}
