//! Membership from outside, as in `external_membership.rs` of the machine: three super-leaves, each
//! one actor.
//!
//! The model has promises, votes, the list with compare-and-swap, late reads, commits that are
//! learned from others, planned leaves and returns. The model leaves these things out:
//!
//! - **A super-leaf is one actor.** Its majority votes, promises and commits as one.
//! - **Votes need no messages.** A vote only grows, so that a decision by an old vote is possible
//!   with the present vote, too. An actor that does not hear a vote is an actor that does not act.
//! - **A state is proposed as early as the pipeline allows.** A state that nobody else has written
//!   has no effect.
//! - **A promise without an end is left out**, because it takes votes away and does nothing else.
//! - **A cycle's plan is chosen when the cycle is decided**, because nobody sees the plan before.
//!   One cycle at most has a planned leave, and one has a return.
//! - **A change of the list arrives at once.** A change that is on its way while its author goes on
//!   is not in the model.
//! - Disks, checkpoints, the forgotten part of the list and the wait for other super-leaves that
//!   lack states are not in the model.
//!
//! States that differ only in the names of the super-leaves count as one. The check is exhaustive
//! within the cycles and the ends of each test; two ends are the most that three super-leaves can
//! have without a return.

mod lives;
mod machine;

use super::is_long;
use lives::Lives;
use stateright::{Checker, HasDiscoveries, Model, Property};

/// Super-leaves, each one actor.
const LEAVES: usize = 3;
/// The most cycles that a state of the model can hold.
const CYCLES_MAX: usize = 6;
/// The most changes of the list that a state of the model can hold.
const CHANGES_MAX: usize = 3;
/// Incarnations of a super-leaf that a list can end.
const INCARNATIONS: usize = 2;

/// The property that no actor reads what it has committed otherwise.
const CONTRADICTION: &str = "no list contradicts a commit";

type Leaf = usize;
/// The first cycle without a super-leaf under an incarnation; 0 when it has not ended.
type Ends = [[u8; INCARNATIONS]; LEAVES];

/// What a cycle has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Agreed {
    is_decided: bool,
    /// The super-leaves whose states the cycle has, as bits.
    with: u8,
    /// A super-leaf that leaves as planned, and its incarnation.
    leaves: Option<(u8, u8)>,
    /// A super-leaf that comes back, and its next incarnation.
    returns: Option<(u8, u8)>,
}

impl Agreed {
    fn has(&self, leaf: Leaf) -> bool {
        self.with & (1 << leaf) != 0
    }
}

/// The group of a super-leaf, as an actor knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Group {
    /// The first cycle of which the actor has no state.
    have: u8,
    /// The vote: the first cycle whose state the actor does not count as written.
    next: u8,
    /// The actor's own incarnation under which it promised to write no later state.
    promised: Option<u8>,
}

/// A super-leaf, whose majority acts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Actor {
    committed: u8,
    groups: [Group; LEAVES],
    /// The change of the list that the actor has read last.
    read: u8,
}

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Fault {
    /// Two actors decide a cycle in two ways.
    Disagreement,
    /// An actor reads the end of a super-leaf before a cycle that it has committed with it.
    Contradiction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    actors: [Actor; LEAVES],
    /// The list after each change; the first is empty.
    lists: [Ends; CHANGES_MAX + 1],
    /// The number of changes of the list.
    changes: u8,
    agreed: [Agreed; CYCLES_MAX + 1],
    /// The cycles, as bits, in which each super-leaf has proposed a state.
    made: [u8; LEAVES],
    /// For each super-leaf, the super-leaves that have put its end on the list, as bits.
    enders: [u8; LEAVES],
    fault: Option<Fault>,
}

/// A deviation from the protocol that the model has to catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// An actor decides a cycle before it has committed the cycles in front of it.
    DecidesAhead,
    /// The service takes a change of an outdated list.
    BlindWrite,
    /// A promise does not stop the votes.
    VotesAfterPromise,
    /// A super-leaf that is on the list ends another one.
    EndedActs,
    /// A committed cycle without a super-leaf takes it out of the count.
    EndByCommit,
}

#[derive(Clone, Copy, Debug)]
struct MembershipModel {
    pipeline: u8,
    cycles: u8,
    /// Ends that the list may have.
    ends: u8,
    /// Whether a super-leaf may leave as planned.
    leaves: bool,
    /// Whether a super-leaf has left as planned in cycle 1, which all have committed.
    has_left: bool,
    /// Whether the plan comes before the changes for super-leaves that have vanished. The machine
    /// takes the changes of a cycle in the order of names, which the model does not have.
    plan_first: bool,
    /// Whether a super-leaf may come back.
    returns: bool,
    /// Whether states keep the names of the super-leaves, for paths to read.
    is_named: bool,
    mutant: Option<Mutant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    /// The first writes the next state of the second, and votes for it.
    Vote(Leaf, Leaf),
    /// The first promises to vote for no later state of the second.
    Promise(Leaf, Leaf),
    /// The first puts the end of the second on the list.
    End(Leaf, Leaf),
    /// Reads the list as it was after a change.
    Read(Leaf, u8),
    /// Decides and commits the next cycle by votes and by the list.
    Decide(Leaf),
    /// The same; the cycle carries that the second leaves as planned.
    DecideLeave(Leaf, Leaf),
    /// The same; the cycle carries that the second comes back.
    DecideReturn(Leaf, Leaf),
    /// Decides a later cycle.
    DecideAhead(Leaf, u8),
    /// Commits the next cycle, which another one has committed.
    Learn(Leaf),
}

/// All orders of three super-leaves: the place of each one.
const ORDERS: [[Leaf; LEAVES]; 6] =
    [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

impl core::hash::Hash for World {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        let mut bytes = [0_u8; 160];
        let mut at = 0;
        let mut put = |byte: u8| {
            bytes[at] = byte;
            at += 1;
        };
        let optional = |value: Option<u8>| value.map_or(u8::MAX, |value| value);
        for actor in &self.actors {
            put(actor.committed);
            put(actor.read);
            for group in &actor.groups {
                put(group.have);
                put(group.next);
                put(optional(group.promised));
            }
        }
        self.lists.iter().flatten().flatten().for_each(|end| put(*end));
        for agreed in &self.agreed {
            put(agreed.with | (u8::from(agreed.is_decided) << 7));
            for change in [agreed.leaves, agreed.returns] {
                put(change.map_or(u8::MAX, |(leaf, under)| leaf << 4 | under));
            }
        }
        self.enders.iter().for_each(|by| put(*by));
        self.made.iter().for_each(|made| put(*made));
        put(self.changes);
        put(self.fault.map_or(0, |fault| fault as u8 + 1));
        state.write(&bytes);
    }
}

impl World {
    fn new() -> Self {
        let actor = Actor { committed: 0, groups: [Group::new(1); LEAVES], read: 0 };
        Self {
            actors: [actor; LEAVES],
            lists: [Ends::default(); CHANGES_MAX + 1],
            changes: 0,
            agreed: [Agreed::default(); CYCLES_MAX + 1],
            made: [0; LEAVES],
            enders: [0; LEAVES],
            fault: None,
        }
    }

    /// The same state with other names of the super-leaves.
    fn renamed(&self, order: &[Leaf; LEAVES]) -> Self {
        let mut new = *self;
        for (old, place) in order.iter().enumerate() {
            let actor = &self.actors[old];
            new.actors[*place] = *actor;
            for (leaf, to) in order.iter().enumerate() {
                new.actors[*place].groups[*to] = actor.groups[leaf];
            }
            new.made[*place] = self.made[old];
            new.enders[*place] =
                (0..LEAVES).map(|by| (self.enders[old] >> by & 1) << order[by]).sum();
            for (list, from) in new.lists.iter_mut().zip(&self.lists) {
                list[*place] = from[old];
            }
        }
        let name = |named: Option<(u8, u8)>| {
            named.map(|(leaf, under)| (order[usize::from(leaf)] as u8, under))
        };
        for (agreed, old) in new.agreed.iter_mut().zip(&self.agreed) {
            agreed.with = (0..LEAVES).map(|leaf| u8::from(old.has(leaf)) << order[leaf]).sum();
            (agreed.leaves, agreed.returns) = (name(old.leaves), name(old.returns));
        }
        new
    }

    /// One state of all that differ in nothing but the names of the super-leaves.
    fn representative(&self) -> Self {
        ORDERS.iter().map(|order| self.renamed(order)).min().unwrap_or(*self)
    }

    /// The super-leaves that the list ends.
    fn ended(&self) -> impl Iterator<Item = Leaf> {
        let list = &self.lists[usize::from(self.changes)];
        (0..LEAVES).filter(|leaf| list[*leaf].iter().any(|end| *end > 0))
    }
}

impl Model for MembershipModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut world = World::new();
        if self.has_left {
            let all = (1 << LEAVES) - 1;
            let leaves = Some((0, 0));
            world.agreed[1] = Agreed { is_decided: true, with: all, leaves, returns: None };
            for actor in &mut world.actors {
                (actor.committed, actor.groups) = (1, [Group::new(2); LEAVES]);
            }
        }
        self.propose_all(&mut world);
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.fault.is_none() {
            let lives = self.lives(world);
            for me in 0..LEAVES {
                machine::View::new(self, world, &lives, me).actions(&lives, actions);
            }
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = *world;
        self.step(&mut next, action);
        self.propose_all(&mut next);
        if self.is_in_vain(&next) {
            return None;
        }
        Some(if self.is_named { next } else { next.representative() })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always("agreement", |_: &Self, world: &World| {
                world.fault != Some(Fault::Disagreement)
            }),
            Property::always(CONTRADICTION, |_: &Self, world: &World| {
                world.fault != Some(Fault::Contradiction)
            }),
            Property::sometimes("the last of three commits alone", |_: &Self, world: &World| {
                let end = world.lists[usize::from(world.changes)].iter().flatten().max();
                let last = (0..LEAVES).find(|leaf| world.ended().all(|ended| ended != *leaf));
                let commits = |leaf: Leaf| Some(&world.actors[leaf].committed) >= end;
                world.ended().count() == 2 && last.is_some_and(commits)
            }),
        ];
        if self.leaves {
            all.push(Property::sometimes(
                "a super-leaf leaves as planned",
                |model: &Self, world: &World| {
                    let mut lives = model.lives(world).into_iter().zip(&world.actors);
                    let left = |lives: &Lives, cycle| {
                        world.ended().count() == 0
                            && (0..LEAVES).any(|leaf| lives.incarnation(leaf, cycle).is_none())
                    };
                    lives.any(|(lives, actor)| left(&lives, actor.committed))
                },
            ));
        }
        if self.returns {
            all.push(Property::sometimes(
                "a super-leaf comes back",
                |model: &Self, world: &World| {
                    let mut lives = model.lives(world).into_iter().zip(&world.actors);
                    let is_back = |lives: &Lives, cycle| {
                        (0..LEAVES).any(|leaf| lives.incarnation(leaf, cycle) > Some(0))
                    };
                    lives.any(|(lives, actor)| is_back(&lives, actor.committed))
                },
            ));
        }
        all
    }
}

const PLAIN: MembershipModel = MembershipModel {
    pipeline: 1,
    cycles: 4,
    ends: 2,
    leaves: false,
    has_left: false,
    plan_first: false,
    returns: false,
    is_named: false,
    mutant: None,
};

/// Checks all states of a model. A large one also has to reach what it is about.
fn check(model: MembershipModel, is_large: bool) {
    let checker = model.checker().spawn_bfs().join();
    checker.assert_no_discovery("agreement");
    checker.assert_no_discovery(CONTRADICTION);
    if is_large {
        checker.assert_properties();
    }
    println!("{} states: {model:?}", checker.unique_state_count());
}

/// Whether the model finds a fault of a mutant.
fn is_caught(mutant: Mutant, model: MembershipModel) -> bool {
    let model = MembershipModel { mutant: Some(mutant), ..model };
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    checker.discoveries().keys().any(|name| ["agreement", CONTRADICTION].contains(name))
}

#[test]
fn two_of_three_vanish() {
    check(PLAIN, true);
}

#[test]
fn super_leaf_leaves_as_planned_while_two_vanish() {
    let (is_large, cycles) = (is_long(), if is_long() { 4 } else { 3 });
    for plan_first in [false, true] {
        check(MembershipModel { leaves: true, plan_first, cycles, ..PLAIN }, is_large);
    }
}

#[test]
fn super_leaf_comes_back() {
    let cycles = if is_long() { 4 } else { 3 };
    check(MembershipModel { returns: true, cycles, ..PLAIN }, is_long());
}

#[test]
fn two_of_three_vanish_in_a_pipeline() {
    let cycles = if is_long() { 3 } else { 2 };
    check(MembershipModel { pipeline: 2, cycles, ..PLAIN }, is_long());
}

#[test]
fn super_leaf_has_left_in_a_pipeline() {
    let cycles = if is_long() { 4 } else { 3 };
    check(MembershipModel { pipeline: 2, cycles, has_left: true, ..PLAIN }, is_long());
}

#[test]
fn blind_write_of_the_list_is_caught() {
    assert!(is_caught(Mutant::BlindWrite, PLAIN));
}

#[test]
fn votes_after_a_promise_are_caught() {
    assert!(is_caught(Mutant::VotesAfterPromise, PLAIN));
}

#[test]
fn end_by_a_super_leaf_that_has_ended_is_caught() {
    assert!(is_caught(Mutant::EndedActs, PLAIN));
}

/// A pipeline of one cycle is safe: a super-leaf then has no votes beyond the cycle of the end.
#[test]
fn end_that_only_a_commit_tells_is_caught() {
    assert!(is_caught(Mutant::EndByCommit, MembershipModel { pipeline: 2, cycles: 2, ..PLAIN }));
}

/// A super-leaf ends another one and leaves, and an actor that has not committed the cycle of the
/// end decides the first one without the super-leaf that left.
#[test]
fn decision_before_its_turn_is_caught() {
    let model = MembershipModel { pipeline: 2, cycles: 4, has_left: true, ..PLAIN };
    assert!(is_caught(Mutant::DecidesAhead, model));
}
