//! Seeds in which a whole super-leaf vanishes, or leaves as planned.

use std::time::Duration;

use evenfall_consensus_machine::SecondRound;
use evenfall_core::{NodeId, Prng};
use evenfall_sim::{Fault, NodeIndex, Plan, SimTime};

use super::{Kind, Operation, lease_cycles, racks};

/// Nodes of a super-leaf.
const MEMBERS: u32 = 3;

/// Shortest time from the end of an outage of a super-leaf to the beginning of its next one.
const APART: Duration = Duration::from_millis(20);
/// When the nodes of a super-leaf that left as planned start again.
const RESTART_AT: SimTime = SimTime::from_millis(1_300);

/// The second round of a seed: half of the seeds without leases, and with a tree of two levels,
/// have one. Half of these have a membership service outside.
pub fn second_round(plan: &Plan) -> SecondRound {
    if racks::is_of(plan) {
        return SecondRound::External;
    }
    let is_wide = matches!(plan.knob("tree"), 1 | 2);
    let is_on = is_wide && lease_cycles(plan) == 0 && prng(plan).chance(0.5);
    match prng(plan).fork(4).chance(0.5) {
        _ if !is_on => SecondRound::Off,
        true => SecondRound::External,
        false => SecondRound::Consensus,
    }
}

/// Whether a super-leaf may vanish for good: the others can go on without it.
fn may_stay_away(plan: &Plan) -> bool {
    match second_round(plan) {
        SecondRound::Off => false,
        SecondRound::Consensus => leaves(plan) > 2,
        SecondRound::External => leaves(plan) > 1,
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
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// It leaves as planned, and its nodes start again later.
    Retires,
    /// Its nodes crash.
    Crashes,
    /// It is cut off.
    IsCutOff,
}

/// What happens to one super-leaf.
#[derive(Clone, Copy)]
struct Fate {
    leaf: u32,
    what: What,
    at: SimTime,
    until: SimTime,
    /// Whether its nodes do not start again.
    is_for_good: bool,
    /// Whether its nodes start again without their disks.
    loses_disks: bool,
}

/// What happens to the super-leaves of a seed, in the order in which it begins. With a service
/// outside, several may vanish at the same time or one after the other, and one may vanish again.
fn fates(plan: &Plan) -> Vec<Fate> {
    let Some(first) = first(plan) else { return Vec::new() };
    let mut fates = vec![first];
    let mut prng = prng(plan).fork(5);
    if second_round(plan) == SecondRound::External {
        for _ in 0..prng.below(4) {
            let next = further(plan, &mut prng, first.is_for_good);
            let is_apart = |fate: &Fate| {
                // A super-leaf that leaves as planned may vanish before its hosts are stopped.
                let begins = |fate: &Fate| match fate.what {
                    What::Retires => fate.until,
                    What::Crashes | What::IsCutOff => fate.at,
                };
                let is_before = |one: &Fate, other: &Fate| one.until + APART <= begins(other);
                fate.leaf != next.leaf
                    || (!fate.is_for_good && is_before(fate, &next))
                    || is_before(&next, fate)
            };
            if fates.iter().all(is_apart) {
                fates.push(next);
            }
        }
    }
    fates.sort_by_key(|fate| fate.at);
    fates
}

fn first(plan: &Plan) -> Option<Fate> {
    let mut prng = prng(plan).fork(1);
    let (leaf, chance) = (prng.below(leaves(plan).into()) as u32, prng.below(100));
    let at = SimTime::from_millis(100 + prng.below(700));
    let until = at + Duration::from_millis(200 + prng.below(500));
    let fate =
        Fate { leaf, what: What::Retires, at, until, is_for_good: false, loses_disks: false };
    match chance {
        ..15 if leaves(plan) > 1 => Some(Fate { until: RESTART_AT, ..fate }),
        30.. if second_round(plan).is_on() => {
            let mut prng = self::prng(plan).fork(2);
            let is_for_good = may_stay_away(plan) && prng.chance(0.3);
            let what = if prng.chance(0.3) { What::IsCutOff } else { What::Crashes };
            let loses_disks = may_stay_away(plan) && self::prng(plan).fork(3).chance(0.4);
            let is_for_good = is_for_good && what == What::Crashes;
            Some(Fate { what, is_for_good, loses_disks, ..fate })
        }
        _ => None,
    }
}

/// One more super-leaf that vanishes, and comes back.
fn further(plan: &Plan, prng: &mut Prng, is_one_gone: bool) -> Fate {
    let leaf = prng.below(leaves(plan).into()) as u32;
    let at = SimTime::from_millis(100 + prng.below(1_100));
    let until = at + Duration::from_millis(5 + prng.below(500));
    let what = if prng.chance(0.3) { What::IsCutOff } else { What::Crashes };
    let loses_disks = !is_one_gone && prng.chance(0.3);
    Fate { leaf, what, at, until, is_for_good: false, loses_disks }
}

/// Adds what happens to super-leaves to the faults of a seed. The nodes of these super-leaves have
/// no other outages.
pub fn aimed(mut plan: Plan) -> Plan {
    let fates = fates(&plan);
    let own = |node: &NodeIndex| fates.iter().any(|fate| nodes(fate.leaf).any(|of| of == *node));
    plan.faults.retain(|(_, fault)| match fault {
        Fault::Crash(node) | Fault::Restart(node) | Fault::Pause(node, _) => !own(node),
        _ => true,
    });
    for Fate { leaf, what, at, until, is_for_good, .. } in fates {
        match what {
            What::IsCutOff => {
                plan.faults.push((at, Fault::Partition(nodes(leaf).collect())));
                plan.faults.push((until, Fault::Heal));
            }
            What::Crashes => {
                plan.faults.extend(nodes(leaf).map(|node| (at, Fault::Crash(node))));
                let back = nodes(leaf).filter(|_| !is_for_good);
                plan.faults.extend(back.map(|node| (until, Fault::Restart(node))));
            }
            What::Retires => {
                let stops = until + Duration::from_millis(1);
                plan.faults.extend(nodes(leaf).map(|node| (until, Fault::Crash(node))));
                plan.faults.extend(nodes(leaf).map(|node| (stops, Fault::Restart(node))));
            }
        }
    }
    plan.faults.sort_by_key(|(at, _)| *at);
    plan
}

/// Whether a node that starts for the `life`th time again has lost its disk together with all nodes
/// of its super-leaf.
pub fn takes_disk(plan: &Plan, node: NodeIndex, life: u64) -> bool {
    let all = fates(plan).into_iter();
    let is_restart = |fate: &Fate| nodes(fate.leaf).any(|of| of == node) && fate.restarts();
    let mut restarts: Vec<Fate> = all.filter(is_restart).collect();
    restarts.sort_by_key(|fate| fate.until);
    let fate = life.checked_sub(1).and_then(|life| restarts.get(life as usize));
    fate.is_some_and(|fate| fate.loses_disks)
}

/// The operation that takes a super-leaf out as planned, at a node of another super-leaf.
pub fn retirement(plan: &Plan) -> Option<Operation> {
    let Fate { leaf, at, .. } = first(plan).filter(|fate| fate.what == What::Retires)?;
    let node = NodeIndex((leaf + 1) % leaves(plan) * MEMBERS);
    Some(Operation { at, node, kind: Kind::Retire(leaf as usize) })
}

/// Checkpoints of the nodes of a super-leaf shortly before it vanishes, so that their logs have
/// hardly more than what compaction keeps.
pub fn checkpoints(plan: &Plan) -> Vec<Operation> {
    let mut prng = prng(plan).fork(6);
    let vanish = fates(plan).into_iter().filter(|fate| fate.what == What::Crashes);
    let drawn = vanish.filter(|_| prng.chance(0.5)).collect::<Vec<_>>();
    let of = |fate: Fate| {
        let at = fate.at - Duration::from_millis(prng.below(10));
        nodes(fate.leaf).map(move |node| Operation { at, node, kind: Kind::Checkpoint })
    };
    drawn.into_iter().flat_map(of).collect()
}

impl Fate {
    fn restarts(&self) -> bool {
        self.what == What::Retires || (self.what == What::Crashes && !self.is_for_good)
    }
}
