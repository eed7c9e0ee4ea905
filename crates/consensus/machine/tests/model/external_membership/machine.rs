//! The steps of an actor: the code of the machine, with a super-leaf in the place of its majority.

use super::{Action, Actor, Agreed, Ends, Fault, Group, LEAVES, Leaf, Lives};
use super::{MembershipModel, Mutant, World};

/// Whether a list ends a super-leaf under this incarnation or a later one.
fn has_ended(list: &Ends, leaf: Leaf, incarnation: u8) -> bool {
    list[leaf][usize::from(incarnation)..].iter().any(|end| *end > 0)
}

impl Group {
    pub fn new(first: u8) -> Self {
        Self { have: first, next: first, promised: None }
    }

    fn tell(&mut self, end: Option<u8>, mutant: Option<Mutant>) {
        if self.promised.is_none() || mutant == Some(Mutant::VotesAfterPromise) {
            self.next = self.have.min(end.unwrap_or(u8::MAX)).max(self.next);
        }
    }
}

/// An actor with what its table and its list say.
pub struct View<'a> {
    model: &'a MembershipModel,
    world: &'a World,
    me: Leaf,
    actor: &'a Actor,
    lives: &'a Lives,
    list: &'a Ends,
}

impl<'a> View<'a> {
    pub fn new(
        model: &'a MembershipModel,
        world: &'a World,
        lives: &'a [Lives; LEAVES],
        me: Leaf,
    ) -> Self {
        let actor = &world.actors[me];
        let list = &world.lists[usize::from(actor.read)];
        Self { model, world, me, actor, lives: &lives[me], list }
    }

    /// The last cycle of which the actor knows who takes part.
    fn known(&self) -> u8 {
        self.actor.committed + self.model.pipeline
    }

    fn incarnation(&self, leaf: Leaf) -> u8 {
        self.lives.group(leaf, self.known()).1
    }

    /// The end of the group that the actor has of a super-leaf: by the list, or by the first
    /// committed cycle without the super-leaf.
    fn closed(&self, leaf: Leaf) -> Option<u8> {
        let incarnation = self.incarnation(leaf);
        let listed = self.list[leaf][usize::from(incarnation)];
        if listed > 0 {
            return Some(listed);
        }
        (1..=self.actor.committed).find(|cycle| {
            let is_in = self.lives.incarnation(leaf, *cycle) == Some(incarnation);
            is_in && !self.world.agreed[usize::from(*cycle)].has(leaf)
        })
    }

    fn can_store(&self, leaf: Leaf) -> bool {
        let have = self.actor.groups[leaf].have;
        have <= self.known().min(self.model.cycles) && self.closed(leaf).is_none_or(|e| have < e)
    }

    fn can_propose(&self) -> bool {
        let have = self.actor.groups[self.me].have;
        self.can_store(self.me) && self.lives.incarnation(self.me, have).is_some()
    }

    fn can_vote(&self, leaf: Leaf) -> bool {
        let is_made = self.world.made[leaf] & (1 << self.actor.groups[leaf].have) != 0;
        leaf != self.me && is_made && self.can_store(leaf)
    }

    fn can_promise(&self, leaf: Leaf) -> bool {
        let is_needed = || {
            let next = self.lives.incarnation(leaf, self.actor.committed + 1);
            next == Some(self.incarnation(leaf))
        };
        let is_new = self.actor.groups[leaf].promised.is_none();
        leaf != self.me && is_new && is_needed() && self.closed(leaf).is_none()
    }

    /// `Canopus::decided`: whether the actor may put the end of a super-leaf on the list.
    fn can_end(&self, leaf: Leaf) -> bool {
        let (Group { next: end, promised, .. }, under) =
            (self.actor.groups[leaf], self.incarnation(leaf));
        let Some(own) = self.lives.incarnation(self.me, end) else { return false };
        let is_current = self.actor.read == self.world.changes;
        let is_free = !has_ended(self.list, self.me, own);
        let is_in = |cycle| self.lives.incarnation(leaf, cycle) == Some(under);
        promised.is_some_and(|promised| promised >= own)
            && (is_current || self.model.mutant == Some(Mutant::BlindWrite))
            && (is_free || self.model.mutant == Some(Mutant::EndedActs))
            && self.closed(leaf).is_none()
            && !has_ended(self.list, leaf, under)
            && end <= self.known() + 1
            && (is_in(end) || is_in(end - 1))
            && self.world.changes < self.model.ends
    }

    /// `Canopus::external_part`: whether a cycle has the state of a super-leaf; `None` when nobody
    /// knows yet.
    fn part(&self, lives: &[Lives; LEAVES], leaf: Leaf, cycle: u8) -> Option<bool> {
        let has = self.actor.groups[leaf].have > cycle;
        if let Some(end) = self.closed(leaf) {
            return if cycle >= end { Some(false) } else { has.then_some(true) };
        }
        let incarnation = self.incarnation(leaf);
        let wrote = |other: Leaf| {
            let known = self.world.actors[other].committed + self.model.pipeline;
            let is_same = lives[other].group(leaf, known).1 == incarnation;
            is_same && self.world.actors[other].groups[leaf].next > cycle
        };
        let is_out = |other: Leaf, under: u8| {
            let by_commit = self.model.mutant == Some(Mutant::EndByCommit)
                && under == self.incarnation(other)
                && self.closed(other).is_some();
            by_commit || has_ended(self.list, other, under)
        };
        let mut others = 0..LEAVES;
        let all = others.all(|other| {
            let under = self.lives.incarnation(other, cycle);
            wrote(other) || under.is_none_or(|under| is_out(other, under))
        });
        (has && all).then_some(true)
    }

    /// `Canopus::of_leaves`: what a cycle has, when that is agreed.
    pub fn decided(&self, lives: &[Lives; LEAVES], cycle: u8) -> Option<Agreed> {
        let mut agreed = Agreed { is_decided: true, ..Agreed::default() };
        for leaf in 0..LEAVES {
            let Some(incarnation) = self.lives.incarnation(leaf, cycle) else { continue };
            if self.incarnation(leaf) != incarnation {
                return None;
            }
            agreed.with |= u8::from(self.part(lives, leaf, cycle)?) << leaf;
        }
        Some(agreed)
    }

    /// Whether a list that the actor reads ends a super-leaf in a cycle that the actor has
    /// committed with it.
    fn contradicts(&self, list: &Ends) -> bool {
        (0..LEAVES).any(|leaf| {
            let incarnation = self.incarnation(leaf);
            let end = list[leaf][usize::from(incarnation)];
            let was_in = self.lives.incarnation(leaf, self.actor.committed) == Some(incarnation);
            end > 0 && self.closed(leaf).is_none() && was_in && end <= self.actor.committed
        })
    }

    pub fn actions(&self, lives: &[Lives; LEAVES], actions: &mut Vec<Action>) {
        let (me, next) = (self.me, usize::from(self.actor.committed + 1));
        for leaf in 0..LEAVES {
            let (vote, promise) = (Action::Vote(me, leaf), Action::Promise(me, leaf));
            actions.extend(self.can_vote(leaf).then_some(vote));
            actions.extend(self.can_promise(leaf).then_some(promise));
            actions.extend(self.can_end(leaf).then_some(Action::End(me, leaf)));
        }
        // Other versions are read in turn; a list that lacks something is refused.
        let last = match self.model.mutant {
            Some(Mutant::BlindWrite) => self.world.changes,
            _ => self.world.changes.min(self.actor.read + 1),
        };
        for version in self.actor.read + 1..=last {
            let list = &self.world.lists[usize::from(version)];
            let mut ends = self.list.iter().flatten().zip(list.iter().flatten());
            if ends.all(|(known, read)| *known == 0 || known == read) {
                actions.push(Action::Read(me, version));
            }
        }
        if next <= usize::from(self.model.cycles) {
            let agreed = self.world.agreed[next];
            let decided = self.decided(lives, self.actor.committed + 1);
            let is_news = |with: Agreed| !agreed.is_decided || with.with != agreed.with;
            if agreed.is_decided {
                actions.push(Action::Learn(me));
            }
            if decided.is_some_and(is_news) {
                actions.push(Action::Decide(me));
                self.plans(decided, actions);
            }
        }
        if self.model.mutant == Some(Mutant::DecidesAhead) {
            self.ahead(lives, actions);
        }
    }

    /// A mutant decides later cycles of which it knows who takes part.
    fn ahead(&self, lives: &[Lives; LEAVES], actions: &mut Vec<Action>) {
        for cycle in self.actor.committed + 2..=self.known().min(self.model.cycles) {
            let agreed = self.world.agreed[usize::from(cycle)];
            let is_news = |with: Agreed| !agreed.is_decided || with.with != agreed.with;
            if self.decided(lives, cycle).is_some_and(is_news) {
                actions.push(Action::DecideAhead(self.me, cycle));
            }
        }
    }
}

impl View<'_> {
    /// A state carries a change of its maker's choice. Nobody sees the change before the cycle is
    /// decided, so that the choice may be made then.
    fn plans(&self, decided: Option<Agreed>, actions: &mut Vec<Action>) {
        if decided.is_none_or(|decided| decided.with == 0) {
            return;
        }
        let mut agreed = self.world.agreed.iter();
        let plans = self.model.leaves && agreed.all(|agreed| agreed.leaves.is_none());
        let mut agreed = self.world.agreed.iter();
        let returns = self.model.returns && agreed.all(|agreed| agreed.returns.is_none());
        for leaf in 0..LEAVES {
            if plans && self.lives.latest(leaf).is_some() {
                actions.push(Action::DecideLeave(self.me, leaf));
            }
            if returns && self.lives.next(leaf).is_some() {
                actions.push(Action::DecideReturn(self.me, leaf));
            }
        }
    }
}

impl MembershipModel {
    pub fn lives(&self, world: &World) -> [Lives; LEAVES] {
        world.actors.map(|actor| Lives::new(&world.agreed, actor.committed, self))
    }

    fn store(&self, world: &mut World, lives: &[Lives; LEAVES], me: Leaf, leaf: Leaf) {
        let end = View::new(self, world, lives, me).closed(leaf);
        let group = &mut world.actors[me].groups[leaf];
        group.have += 1;
        group.tell(end, self.mutant);
    }

    /// Each super-leaf proposes as early as it may. A state that nobody else has written has no
    /// effect, so that a late proposal needs no step of its own.
    pub fn propose_all(&self, world: &mut World) {
        let lives = self.lives(world);
        for me in 0..LEAVES {
            while View::new(self, world, &lives, me).can_propose() {
                world.made[me] |= 1 << world.actors[me].groups[me].have;
                self.store(world, &lives, me, me);
            }
        }
    }

    /// Whether an actor has promised something and can no longer put the end on the list. The
    /// promise takes votes away and does nothing else, so that every path with the promise has a
    /// path without it.
    pub fn is_in_vain(&self, world: &World) -> bool {
        let lives = self.lives(world);
        let list = &world.lists[usize::from(world.changes)];
        (0..LEAVES).any(|me| {
            let view = View::new(self, world, &lives, me);
            (0..LEAVES).any(|leaf| {
                let Some(own) = world.actors[me].groups[leaf].promised else { return false };
                let end = list[leaf][usize::from(view.incarnation(leaf))];
                if world.enders[leaf] & (1 << me) != 0 {
                    return false;
                }
                world.changes == self.ends
                    || (self.mutant != Some(Mutant::BlindWrite) && end > 0)
                    || (self.mutant.is_none() && has_ended(list, me, own))
            })
        })
    }

    fn end(&self, world: &mut World, me: Leaf, leaf: Leaf) {
        let lives = self.lives(world);
        let view = View::new(self, world, &lives, me);
        let (mut list, under) = (*view.list, view.incarnation(leaf));
        list[leaf][usize::from(under)] = world.actors[me].groups[leaf].next;
        world.enders[leaf] |= 1 << me;
        world.changes += 1;
        world.lists[usize::from(world.changes)] = list;
    }

    fn commit(&self, world: &mut World, me: Leaf) {
        let before = self.lives(world)[me];
        world.actors[me].committed += 1;
        let committed = world.actors[me].committed;
        let all = self.lives(world);
        for leaf in 0..LEAVES {
            let known = committed + self.pipeline;
            let (old, new) = (before.group(leaf, known - 1), all[me].group(leaf, known));
            let end = View::new(self, world, &all, me).closed(leaf);
            let own = all[me].latest_by(me, committed + 1);
            let group = &mut world.actors[me].groups[leaf];
            if old.1 != new.1 {
                *group = Group::new(new.0);
                continue;
            }
            if group.have <= committed {
                group.have = committed + 1;
                group.tell(end, self.mutant);
            }
            if group.promised.is_some_and(|promised| promised < own) {
                group.promised = None;
                group.tell(end, self.mutant);
            }
        }
    }

    fn decide(&self, world: &mut World, me: Leaf, leaves: Option<Leaf>, returns: Option<Leaf>) {
        let lives = self.lives(world);
        let cycle = world.actors[me].committed + 1;
        let view = View::new(self, world, &lives, me);
        let Some(decided) = view.decided(&lives, cycle) else { return };
        let agreed = &mut world.agreed[usize::from(cycle)];
        if agreed.is_decided {
            world.fault = Some(Fault::Disagreement);
            return;
        }
        *agreed = decided;
        agreed.leaves = leaves.and_then(|leaf| Some((leaf as u8, lives[me].latest(leaf)?)));
        agreed.returns = returns.and_then(|leaf| Some((leaf as u8, lives[me].next(leaf)?)));
        self.commit(world, me);
    }

    /// A mutant decides a cycle before it has committed the cycle in front.
    fn decide_ahead(&self, world: &mut World, me: Leaf, cycle: u8) {
        let lives = self.lives(world);
        let view = View::new(self, world, &lives, me);
        let Some(decided) = view.decided(&lives, cycle) else { return };
        let agreed = &mut world.agreed[usize::from(cycle)];
        if agreed.is_decided {
            world.fault = Some(Fault::Disagreement);
        } else {
            *agreed = decided;
        }
    }

    pub fn step(&self, world: &mut World, action: Action) {
        match action {
            Action::Vote(me, leaf) => self.store(world, &self.lives(world), me, leaf),
            Action::Promise(me, leaf) => {
                let next = world.actors[me].committed + 1;
                let own = self.lives(world)[me].latest_by(me, next);
                world.actors[me].groups[leaf].promised = Some(own);
            }
            Action::End(me, leaf) => self.end(world, me, leaf),
            Action::Read(me, version) => {
                let lives = self.lives(world);
                let list = world.lists[usize::from(version)];
                if View::new(self, world, &lives, me).contradicts(&list) {
                    world.fault = Some(Fault::Contradiction);
                }
                world.actors[me].read = version;
            }
            Action::Decide(me) => self.decide(world, me, None, None),
            Action::DecideLeave(me, leaf) => self.decide(world, me, Some(leaf), None),
            Action::DecideReturn(me, leaf) => self.decide(world, me, None, Some(leaf)),
            Action::DecideAhead(me, cycle) => self.decide_ahead(world, me, cycle),
            Action::Learn(me) => self.commit(world, me),
        }
    }
}
