//! Two super-leaves of three nodes, as in figure 4.2 of the thesis, with the reliable broadcast
//! taken as given.
//!
//! Nodes propose, compute the state of height 1, fetch the state of the other super-leaf, commit
//! cycle by cycle, and take failed members out of their tables. One member of each super-leaf may
//! fail at any moment: the member crashes, or the others suspect it although it lives.
//!
//! The model leaves these things out:
//!
//! - **The broadcast is one step.** A proposal reaches all live members at once, or the members
//!   agree that the proposer's group has ended before this cycle. The group itself, with promises,
//!   terms and disks, is not in the model.
//! - **The proposal numbers are fixed**, in an order that differs from that of the names. The
//!   requests of a proposal are not in the model: a proposal is its node and its cycle.
//! - **A request needs no step.** Every node asks every member of the other super-leaf for every
//!   cycle, and a member answers when it has the state. All answers stay on the network. A node
//!   takes an answer at any time, or never. Lost, late and doubled requests and answers are thereby
//!   answers that a node takes never, late or after another one.
//! - **A node may start a cycle as soon as the pipeline allows**, whether a request came or not.
//! - **A node computes and commits at once** what its inputs allow. A slow node is a node that
//!   receives late.
//! - Members that come back, checkpoints, restarts and leases are not in the model.
//!
//! The check is exhaustive within two cycles: 168,457 states without a pipeline when members crash,
//! 327,121 when members are suspected, too, and 19,321 with a pipeline of two when nobody fails.

use std::collections::BTreeSet;

use super::is_long;
use stateright::{Checker, HasDiscoveries, Model, Property};

const NODES: usize = 6;
/// The cycles of the model.
const CYCLES: usize = 2;

type Node = usize;

/// The proposal of a node in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Part {
    Open,
    Delivered,
    /// The group of the node ended before the cycle.
    Absent,
}

/// The state of a super-leaf, or of the root, in a cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Sets {
    /// The nodes whose proposals the state has, in the agreed order.
    order: Vec<u8>,
    /// The members, as bits, that have left.
    left: u8,
    /// The largest proposal number.
    number: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Replica {
    /// The state of the own super-leaf in each cycle.
    own: [Option<Sets>; CYCLES],
    /// The state of the other super-leaf in each cycle.
    other: [Option<Sets>; CYCLES],
    root: [Option<Sets>; CYCLES],
    /// The cycles in the order in which the node committed them.
    log: Vec<u8>,
    /// The nodes, as bits, that take part in each cycle, as far as the node knows.
    table: [u8; CYCLES],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    parts: [[Part; CYCLES]; NODES],
    /// The nodes, as bits, that have crashed.
    crashed: u8,
    /// The nodes, as bits, that the others suspect although they live.
    suspected: u8,
    /// The answers on the network: super-leaf, cycle and state.
    answers: BTreeSet<(u8, usize, Sets)>,
    replicas: [Replica; NODES],
}

/// What the first node does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// The node takes a member as absent before the members have agreed.
    PresumesAbsent,
    /// The node sorts by name.
    SortsByName,
    /// The node makes up the proposal of an absent member.
    MakesUp,
    /// The node applies a change one cycle late.
    LateTable,
    /// The node commits a cycle as soon as it has the states of the cycle.
    AnyOrder,
}

/// How one member of each super-leaf may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failures {
    None,
    Crashes,
    /// The member crashes, or the others suspect it although it lives.
    Suspicions,
}

#[derive(Clone, Copy, Debug)]
struct TwoLeaves {
    pipeline: usize,
    failures: Failures,
    mutant: Option<Mutant>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Propose(Node),
    Crash(Node),
    /// The members agree that the group of a member has ended.
    End(Node),
    Receive(Node, usize, Sets),
    /// The mutant takes a member that has not proposed in a cycle as absent.
    Presume(Node, usize),
}

fn leaf(node: Node) -> u8 {
    (node / 3) as u8
}

fn has(bits: u8, node: Node) -> bool {
    bits & (1 << node) != 0
}

/// The proposal number of a node: another order than that of the names, and another one in each
/// cycle.
fn number(node: u8, cycle: usize) -> u8 {
    [[4, 1, 3, 6, 2, 5], [2, 5, 1, 3, 6, 4]][cycle][usize::from(node)]
}

impl TwoLeaves {
    fn is(&self, node: Node, mutant: Mutant) -> bool {
        node == 0 && self.mutant == Some(mutant)
    }

    /// Whether a node may work on a cycle.
    fn is_near(&self, replica: &Replica, cycle: usize) -> bool {
        cycle < (replica.log.len() + self.pipeline).min(CYCLES)
    }

    /// The state of the own super-leaf; `None` while nobody knows.
    fn of_members(&self, world: &World, me: Node, cycle: usize, presumed: u8) -> Option<Sets> {
        let mut sets = Sets::default();
        let table = world.replicas[me].table[cycle];
        for member in (0..NODES).filter(|node| leaf(*node) == leaf(me) && has(table, *node)) {
            match world.parts[member][cycle] {
                Part::Open if !has(presumed, member) => return None,
                Part::Absent if self.is(me, Mutant::MakesUp) => sets.order.push(member as u8),
                Part::Open | Part::Absent => sets.left |= 1 << member,
                Part::Delivered => sets.order.push(member as u8),
            }
        }
        if !self.is(me, Mutant::SortsByName) {
            sets.order.sort_by_key(|node| number(*node, cycle));
        }
        sets.number = sets.order.iter().map(|node| number(*node, cycle)).max().unwrap_or(0);
        Some(sets)
    }

    /// The state of the root out of the states of both super-leaves.
    fn of_leaves(own: &Sets, other: &Sets) -> Sets {
        let (first, last) = if own.number < other.number { (own, other) } else { (other, own) };
        let order = first.order.iter().chain(&last.order).copied().collect();
        Sets { order, left: own.left | other.left, number: last.number }
    }

    /// A node computes and commits all that it can.
    fn advance(&self, world: &mut World, me: Node) {
        for cycle in 0..CYCLES {
            if world.replicas[me].own[cycle].is_none() && self.is_near(&world.replicas[me], cycle) {
                world.replicas[me].own[cycle] = self.of_members(world, me, cycle, 0);
            }
            if let Some(own) = &world.replicas[me].own[cycle] {
                world.answers.insert((leaf(me), cycle, own.clone()));
            }
            let late = usize::from(self.is(me, Mutant::LateTable));
            let any = self.is(me, Mutant::AnyOrder);
            let replica = &mut world.replicas[me];
            let is_next = any || replica.log.len() == cycle;
            let (Some(own), Some(other)) = (&replica.own[cycle], &replica.other[cycle]) else {
                continue;
            };
            if is_next && replica.root[cycle].is_none() {
                let root = Self::of_leaves(own, other);
                for table in replica.table.iter_mut().skip(cycle + self.pipeline + late) {
                    *table &= !root.left;
                }
                replica.root[cycle] = Some(root);
                replica.log.push(cycle as u8);
            }
        }
    }

    fn of_node(&self, world: &World, me: Node, actions: &mut Vec<Action>) {
        let replica = &world.replicas[me];
        let failed = world.crashed | world.suspected;
        let is_first = (0..NODES).all(|node| leaf(node) != leaf(me) || !has(failed, node));
        let next = world.parts[me].iter().position(|part| *part == Part::Open);
        if is_first && self.failures != Failures::None {
            actions.push(Action::Crash(me));
        }
        if next.is_some()
            && ((is_first && self.failures == Failures::Suspicions) || has(world.crashed, me))
        {
            actions.push(Action::End(me));
        }
        if has(world.crashed, me) {
            return;
        }
        if next.is_some_and(|cycle| self.is_near(replica, cycle) && has(replica.table[cycle], me)) {
            actions.push(Action::Propose(me));
        }
        for cycle in (0..CYCLES).filter(|cycle| self.is_near(replica, *cycle)) {
            if replica.own[cycle].is_none() && self.is(me, Mutant::PresumesAbsent) {
                let members = (0..NODES).filter(|node| leaf(*node) == leaf(me) && *node != me);
                actions.extend(members.map(|member| Action::Presume(member, cycle)));
            }
        }
        for (from, cycle, sets) in &world.answers {
            let is_wanted = replica.other[*cycle].is_none() && self.is_near(replica, *cycle);
            if *from != leaf(me) && is_wanted {
                actions.push(Action::Receive(me, *cycle, sets.clone()));
            }
        }
    }
}

impl Model for TwoLeaves {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let none = [const { None }; CYCLES];
        let table = [(1 << NODES) - 1; CYCLES];
        let (own, other, root) = (none.clone(), none.clone(), none);
        let replica = Replica { own, other, root, log: Vec::new(), table };
        vec![World {
            parts: [[Part::Open; CYCLES]; NODES],
            crashed: 0,
            suspected: 0,
            answers: BTreeSet::new(),
            replicas: core::array::from_fn(|_| replica.clone()),
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for me in 0..NODES {
            self.of_node(world, me, actions);
        }
        actions.dedup();
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Propose(me) => {
                let cycle = next.parts[me].iter().position(|part| *part == Part::Open)?;
                next.parts[me][cycle] = Part::Delivered;
            }
            Action::Crash(me) => next.crashed |= 1 << me,
            Action::End(me) => {
                next.suspected |= !next.crashed & (1 << me);
                let open = next.parts[me].iter_mut().filter(|part| **part == Part::Open);
                open.for_each(|part| *part = Part::Absent);
            }
            Action::Receive(me, cycle, sets) => next.replicas[me].other[cycle] = Some(sets),
            Action::Presume(member, cycle) => {
                next.replicas[0].own[cycle] = self.of_members(world, 0, cycle, 1 << member);
            }
        }
        (0..NODES).filter(|node| !has(world.crashed, *node)).for_each(|node| {
            self.advance(&mut next, node);
        });
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("agreement", |_: &Self, world: &World| {
                (0..CYCLES).all(|cycle| {
                    let mut roots = world.replicas.iter().filter_map(|r| r.root[cycle].as_ref());
                    let first = roots.next();
                    roots.all(|root| Some(root) == first)
                })
            }),
            Property::always("same table", |model: &Self, world: &World| {
                (0..CYCLES).all(|cycle| {
                    let knows = |replica: &&Replica| model.is_near(replica, cycle);
                    let mut tables = world.replicas.iter().filter(knows).map(|r| r.table[cycle]);
                    let first = tables.next();
                    tables.all(|table| Some(table) == first)
                })
            }),
            Property::always("only proposals", |_: &Self, world: &World| {
                let mut all = world.replicas.iter().flat_map(|r| r.root.iter().enumerate());
                all.all(|(cycle, root)| {
                    let mut order = root.iter().flat_map(|root| &root.order);
                    order.all(|n| world.parts[usize::from(*n)][cycle] == Part::Delivered)
                })
            }),
            Property::always("cycles in order", |_: &Self, world: &World| {
                world.replicas.iter().all(|replica| replica.log.is_sorted())
                    && world.replicas.iter().all(|r| r.log.first().is_none_or(|c| *c == 0))
            }),
            Property::sometimes("all live nodes commit", |_: &Self, world: &World| {
                let live = (0..NODES).filter(|node| !has(world.crashed, *node));
                live.clone().count() > 0
                    && live.into_iter().all(|node| world.replicas[node].log.len() == CYCLES)
            }),
            Property::sometimes("a cycle without a failed member", |_: &Self, world: &World| {
                let roots = world.replicas.iter().flat_map(|replica| &replica.root).flatten();
                roots.into_iter().any(|root| root.order.len() < NODES)
            }),
        ]
    }
}

/// Checks all states, and returns how many there are.
fn check(pipeline: usize, failures: Failures) -> usize {
    let checker = TwoLeaves { pipeline, failures, mutant: None }.checker().spawn_bfs().join();
    for property in ["agreement", "same table", "only proposals", "cycles in order"] {
        checker.assert_no_discovery(property);
    }
    checker.assert_any_discovery("all live nodes commit");
    if failures != Failures::None {
        checker.assert_any_discovery("a cycle without a failed member");
    }
    checker.unique_state_count()
}

/// Whether the model finds that a property does not hold for a mutant.
fn is_caught(mutant: Mutant, pipeline: usize, property: &'static str) -> bool {
    let failures = if pipeline > 1 { Failures::None } else { Failures::Crashes };
    let model = TwoLeaves { pipeline, failures, mutant: Some(mutant) };
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = model.checker().finish_when(found).spawn_dfs().join();
    checker.discovery(property).is_some()
}

#[test]
fn two_super_leaves_agree_when_members_fail() {
    assert_eq!(check(1, Failures::Crashes), 168_457);
    if is_long() {
        assert_eq!(check(1, Failures::Suspicions), 327_121);
    }
}

#[test]
fn two_super_leaves_agree_with_a_pipeline() {
    assert_eq!(check(2, Failures::None), 19_321);
}

#[test]
fn member_taken_as_absent_by_one_node_is_caught() {
    assert!(is_caught(Mutant::PresumesAbsent, 1, "agreement"));
}

#[test]
fn order_by_name_at_one_node_is_caught() {
    assert!(is_caught(Mutant::SortsByName, 1, "agreement"));
}

#[test]
fn proposal_that_nobody_made_is_caught() {
    assert!(is_caught(Mutant::MakesUp, 1, "only proposals"));
}

#[test]
fn late_table_is_caught() {
    assert!(is_caught(Mutant::LateTable, 1, "same table"));
}

#[test]
fn commits_in_any_order_are_caught() {
    assert!(is_caught(Mutant::AnyOrder, 2, "cycles in order"));
}
