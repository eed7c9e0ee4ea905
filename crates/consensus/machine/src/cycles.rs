//! Consensus cycles: when they start, how states are computed and fetched, when they are committed.
//!
//! ```text
//!  start c ──> own proposal: write, then broadcast     requests for siblings' states leave now
//!     │
//!  round 1     every member of the super-leaf proposed, or its group ended  => state of height 1
//!  round i     the states of all children of the ancestor of height i       => state of height i
//!     │
//!  root known, and c - 1 committed ──> commit c: requests, reads, table of c + pipeline
//! ```
//!
//! A state of a vnode in a cycle has one value: round 1 takes only what groups have committed, and
//! later rounds are functions of the states below. So it does not matter from which node a state
//! comes, and a fetched state is relayed inside the super-leaf without a group of its own.

use std::sync::Arc;

use evenfall_core::{NodeId, Timestamp};

use crate::canopus::{Canopus, Cycle, DueRead, Event, Pending, bytes_of, joins};
use crate::config::UNWRITTEN_BYTES_MAX;
use crate::group::{GroupEntry, MemberPart, ProposalGroup, owner_of};
use crate::journal::{Commit, CommittedSet, Effect, ReplicaRecord};
use crate::wire::ReplicaMessage;
use crate::{AgreedChange, LeavingReason, Proposal, RequestSet, Requests, VnodeId, VnodeState};

/// Number of request intervals after which every member of a super-leaf asks for a missing state,
/// and no longer only its representatives. The state takes one interval, its relay another, and one
/// request may be lost.
pub(crate) const PATIENCE: u32 = 3;

impl Canopus {
    /// Starts, computes and commits every cycle for which that is possible now.
    pub(crate) fn advance(&mut self, now: Timestamp) {
        loop {
            let before = (self.progress.started, self.progress.committed);
            self.maybe_start(now);
            self.gather();
            self.commit();
            if before == (self.progress.started, self.progress.committed) {
                return;
            }
        }
    }

    /// Whether this replica has a reason to start a cycle by itself: requests wait, a node asks to
    /// come back, or a member has left and the other super-leaves do not know it yet.
    pub(crate) fn is_due(&self) -> bool {
        let (own, next) = (self.place.ancestors[0], self.progress.started + 1);
        let returns = self.table.leaf_joined(own).is_some_and(|(from, _)| from > next);
        if returns || self.table.leaf_incarnation(own, next).is_none() {
            // The cycles of the others show this super-leaf how far they are. When no other
            // super-leaf takes part, somebody has to go through the cycles before the return.
            return self.may_return();
        }
        let has_left = |node: NodeId| {
            let latest = self.table.latest(node);
            latest.is_none_or(|latest| {
                let group = self.groups.get(&node);
                group.is_some_and(|g| g.incarnation() == latest && g.is_closed())
            })
        };
        let mut members = self.place.leaf.members.iter().map(|member| member.node);
        if members.clone().all(has_left) {
            // No member can propose. A cycle without proposals takes all members back: see
            // `of_super_leaf`.
            return true;
        }
        // A replica that may not propose starts no cycle. Its requests would stay, and it would
        // start cycles without end.
        let is_in = self.groups.get(&self.me).is_some_and(|own| {
            own.is_open()
                && self.table.latest(self.me) == Some(own.incarnation())
                && self.disk.may_propose(own.incarnation())
        });
        let leaves = |node: NodeId| self.table.latest(node).is_some() && has_left(node);
        let has_news = !self.own.pending.is_empty()
            || !self.sponsored.is_empty()
            || self.retirement().is_some()
            || members.any(leaves);
        is_in && has_news
    }

    /// Whether a replica that has a reason may start a cycle now.
    pub(crate) fn may_start(&self, now: Timestamp) -> bool {
        let is_idle = self.progress.started == self.progress.committed;
        let is_time = now >= self.progress.last_start + self.config.cycle_every;
        let is_full = self.own.pending_bytes >= self.batch_bytes_max();
        let has_room = self.progress.started < self.progress.committed + self.config.pipeline;
        has_room && (is_idle || is_time || is_full)
    }

    fn maybe_start(&mut self, now: Timestamp) {
        while self.may_begin()
            && self.progress.started < self.progress.committed + self.config.pipeline
        {
            let own = self.may_start(now) && self.is_due();
            if !own && self.progress.seen <= self.progress.started {
                return;
            }
            self.start(now);
        }
    }

    fn start(&mut self, now: Timestamp) {
        self.progress.started += 1;
        self.progress.last_start = now;
        self.beat.status_due = true;
        let cycle = self.progress.started;
        self.cycles.entry(cycle).or_default().started_at = now;
        let is_in = self.table.incarnation(self.me, cycle);
        let can = self.groups.get(&self.me).is_some_and(|group| {
            group.is_open() && Some(group.incarnation()) == is_in && group.mine().have == cycle
        });
        if can
            && let Some(incarnation) = is_in
            && self.disk.may_propose(incarnation)
        {
            self.propose(cycle, incarnation);
        }
        self.fetch(now, cycle);
    }

    fn propose(&mut self, cycle: u64, incarnation: u32) {
        let mut changes = joins(&self.sponsored);
        changes.extend(self.retirement());
        let taken = match self.config.lease_cycles {
            0 => self.take_pending(),
            _ => self.take_leased(cycle, &mut changes),
        };
        let writes = taken.iter().filter_map(|one| match one {
            Pending::Write(request, _) => Some(request),
            Pending::Read(_) => None,
        });
        let requests = writes.collect();
        self.own.proposed.insert(cycle, taken);
        let number = self.prng.next_u64();
        let set = RequestSet { node: self.me, incarnation, number, requests };
        self.store(Proposal { cycle, set, changes });
    }

    /// Takes the requests and reads of the next proposal, in the order in which they came.
    fn take_pending(&mut self) -> Vec<Pending> {
        let (mut taken, mut writes, mut bytes) = (Vec::new(), 0, 0);
        let bytes_max = self.batch_bytes_max();
        while let Some(next) = self.own.pending.front() {
            let size = bytes_of(next);
            if bytes + size > bytes_max || writes == Requests::COUNT_MAX {
                break;
            }
            bytes += size;
            let Some(next) = self.own.pending.pop_front() else { break };
            writes += usize::from(matches!(next, Pending::Write(..)));
            taken.push(next);
        }
        self.own.pending_bytes -= bytes;
        taken
    }

    /// Stores an entry of any member's group, when it is the next one of the group.
    pub(crate) fn store(&mut self, proposal: Proposal) -> bool {
        let (owner, incarnation) = (proposal.set.node, proposal.set.incarnation);
        let cycle = proposal.cycle;
        let entry = GroupEntry::Proposal(proposal);
        let Some(group) = self.group(owner, incarnation) else { return false };
        if !group.store(&entry) {
            return false;
        }
        let report = Effect::Report(owner, incarnation, group.mine());
        let own = (owner == self.me).then_some(Effect::Propose(cycle));
        self.progress.seen = self.progress.seen.max(cycle);
        let record = self.record_of(owner, incarnation, &entry);
        self.record(&record, [report].into_iter().chain(own));
        true
    }

    /// Ends round 1 of the cycles whose turn it is. Members propose cycle by cycle, so a cycle that
    /// waits for a proposal is the only one to look at. The later rounds of a cycle advance when a
    /// state of the cycle comes.
    fn gather(&mut self) {
        self.progress.gathered = self.progress.gathered.max(self.progress.committed);
        if self.config.second_round.is_on() && self.progress.committed < self.progress.started {
            self.compute(self.progress.committed + 1);
        }
        // Who takes part in a cycle is known a pipeline ahead.
        while self.progress.gathered
            < self.progress.started.min(self.progress.committed + self.config.pipeline)
        {
            let cycle = self.progress.gathered + 1;
            self.compute(cycle);
            let is_there = |vnode| self.has_state(cycle, vnode);
            let is_in = self.table.leaf_incarnation(self.place.ancestors[0], cycle).is_some();
            if is_in && !is_there(self.place.ancestors[0]) && !is_there(VnodeId::ROOT) {
                return;
            }
            self.progress.gathered = cycle;
        }
    }

    /// Computes the states of all ancestors that can be computed.
    fn compute(&mut self, cycle: u64) {
        for height in 0..self.place.ancestors.len() {
            let vnode = self.place.ancestors[height];
            // A cycle in which no super-leaf takes part has a state of the root all the same.
            let is_out = vnode != VnodeId::ROOT && !self.takes_part(vnode, cycle);
            if is_out || self.has_state(cycle, vnode) {
                continue;
            }
            let state = match height {
                0 => self.of_super_leaf(cycle, vnode),
                _ if self.config.second_round.is_on() => self.of_leaves(cycle),
                _ => self.of_children(cycle, vnode),
            };
            if let Some(state) = state {
                self.keep(Arc::new(state));
            }
        }
    }

    fn of_super_leaf(&self, cycle: u64, vnode: VnodeId) -> Option<VnodeState> {
        let (mut proposals, mut leaves) = (Vec::new(), Vec::new());
        for member in &self.place.leaf.members {
            let Some(incarnation) = self.table.incarnation(member.node, cycle) else { continue };
            let group = self.groups.get(&member.node)?;
            if group.incarnation() != incarnation {
                return None;
            }
            match group.part(cycle) {
                MemberPart::Open => return None,
                MemberPart::Proposed(entry) => proposals.push(entry.proposal()?),
                MemberPart::Absent => leaves.push(AgreedChange::Leave(member.node, incarnation)),
            }
        }
        let mut changes = leaves;
        if proposals.is_empty() && changes.is_empty() {
            // No member is left that could propose to take a member back. All members come back
            // without a proposal.
            let members = self.place.leaf.members.iter().map(|member| member.node);
            changes.extend(members.filter_map(|node| {
                Some(AgreedChange::Join(node, self.table.next_in(node, cycle)?))
            }));
        }
        Some(VnodeState::of_proposals(cycle, vnode, proposals.into_iter(), changes.into_iter()))
    }

    fn of_children(&self, cycle: u64, vnode: VnodeId) -> Option<VnodeState> {
        let children = self.tree.children(vnode).iter();
        let children = children.filter(|child| self.takes_part(**child, cycle));
        let children = children.map(|child| self.known_state(cycle, *child));
        let children = children.collect::<Option<Vec<_>>>()?;
        let states = children.iter().copied().map(Arc::as_ref);
        Some(VnodeState::of_states(cycle, vnode, states, core::iter::empty()))
    }

    /// Whether any super-leaf below a vnode takes part in a cycle.
    fn takes_part(&self, vnode: VnodeId, cycle: u64) -> bool {
        self.tree.leaves_below(vnode).any(|leaf| self.table.leaf_incarnation(leaf, cycle).is_some())
    }

    pub(crate) fn state(&self, cycle: u64, vnode: VnodeId) -> Option<Arc<VnodeState>> {
        self.known_state(cycle, vnode).cloned()
    }

    fn has_state(&self, cycle: u64, vnode: VnodeId) -> bool {
        self.known_state(cycle, vnode).is_some()
    }

    fn known_state(&self, cycle: u64, vnode: VnodeId) -> Option<&Arc<VnodeState>> {
        let known = self.cycles.get(&cycle).and_then(|cycle| cycle.states.get(&vnode));
        // After a restart, a state may be in the log alone.
        let logged = || self.groups.get(&owner_of(vnode))?.entry(cycle)?.state();
        known.or_else(logged)
    }

    /// Keeps a state, and sends it to the nodes that wait for it.
    fn keep(&mut self, state: Arc<VnodeState>) {
        let (number, vnode) = (state.cycle, state.vnode);
        let Some(cycle) = self.cycles.get_mut(&number) else { return };
        cycle.states.insert(vnode, Arc::clone(&state));
        let is_root = vnode == VnodeId::ROOT;
        // The state of the root answers for all states below it.
        let waiting: Vec<_> =
            cycle.waiting.iter().filter(|(of, _)| is_root || *of == vnode).copied().collect();
        cycle.waiting.retain(|(of, _)| !is_root && *of != vnode);
        for (_, to) in waiting {
            self.send(to, &ReplicaMessage::State(state.as_ref().clone()));
        }
        self.store_states(vnode);
    }

    fn commit(&mut self) {
        // A disk that is too slow delays commits, so that the bytes that wait for the disk stay
        // bounded.
        while self.journal.unwritten() <= UNWRITTEN_BYTES_MAX
            && let Some(state) = self.state(self.progress.committed + 1, VnodeId::ROOT)
        {
            self.end_vanished(state.cycle, &state.changes);
            let skipped = self.skip(state.cycle + 1);
            let record = ReplicaRecord::Committed(self.commit_of(&state));
            self.record(&record, skipped);
            self.adopt(state);
            if self.is_external() {
                self.store_all_states();
            }
            self.consider_checkpoint();
            self.beat.status_due = true;
        }
    }

    /// The part of a committed cycle that the log does not have as entries.
    fn commit_of(&self, state: &VnodeState) -> Commit {
        Self::without(state, |node| self.logged(state.cycle, node))
    }

    /// The part of a super-leaf's state that the log does not have as proposals.
    pub(crate) fn entry_of(&self, state: &VnodeState) -> Commit {
        Self::without(state, |node| self.proposed(state.cycle, node))
    }

    /// A state without the sets that the log has.
    fn without<'a>(
        state: &VnodeState,
        logged: impl Fn(NodeId) -> Option<&'a RequestSet>,
    ) -> Commit {
        let sets = state.sets.iter().map(|set| match logged(set.node) {
            Some(logged) if logged.incarnation == set.incarnation => {
                CommittedSet::Named(set.node, set.incarnation)
            }
            _ => CommittedSet::Whole(set.clone()),
        });
        let (cycle, number, changes) = (state.cycle, state.number, state.changes.clone());
        Commit { cycle, number, changes, sets: sets.collect() }
    }

    /// The set that a node proposed in a cycle. An entry is in the log before a replica has it.
    fn proposed(&self, cycle: u64, node: NodeId) -> Option<&RequestSet> {
        Some(&self.groups.get(&node)?.entry(cycle)?.proposal()?.set)
    }

    /// The set of a node in a cycle, out of an entry of the node or of its super-leaf.
    fn logged(&self, cycle: u64, node: NodeId) -> Option<&RequestSet> {
        self.proposed(cycle, node).or_else(|| {
            let leaf = owner_of(self.table.home(node)?);
            self.groups.get(&leaf)?.entry(cycle)?.state()?.set_of(node)
        })
    }

    /// The state of a vnode that a record of the log stands for; `None` when the log lacks an entry
    /// that the record names. The peers then send this replica the cycle again.
    pub(crate) fn state_of(&self, vnode: VnodeId, commit: Commit) -> Option<VnodeState> {
        let Commit { cycle, number, changes, sets } = commit;
        let whole = |set: CommittedSet| match set {
            CommittedSet::Whole(set) => Some(set),
            CommittedSet::Named(node, incarnation) => {
                let logged = self.logged(cycle, node);
                logged.filter(|set| set.incarnation == incarnation).cloned()
            }
        };
        let sets = sets.into_iter().map(whole).collect::<Option<_>>()?;
        Some(VnodeState { cycle, vnode, number, changes, sets })
    }

    /// Notes that all cycles before `next` are committed here, so that no entries of these cycles
    /// are needed any more. Returns the reports about groups that this replica can then make. A
    /// report may be sent only when the record of the commit is on the disk.
    pub(crate) fn skip(&mut self, next: u64) -> Vec<Effect> {
        let me = self.me;
        let others = self.groups.iter_mut().filter(|(owner, _)| **owner != me);
        let skipped = others.filter_map(|(owner, group)| {
            let report =
                |group: &ProposalGroup| Effect::Report(*owner, group.incarnation(), group.mine());
            group.skip(next).then(|| report(group))
        });
        skipped.collect()
    }

    /// Commits the next cycle with this state of the root.
    pub(crate) fn adopt(&mut self, state: Arc<VnodeState>) {
        let cycle = state.cycle;
        self.progress.committed = cycle;
        self.cycles.entry(cycle).or_default().states.insert(VnodeId::ROOT, Arc::clone(&state));
        let table = self.table.digest(cycle);
        let reads = self.take_back(&state);
        self.events.push_back(Event::Committed { state: Arc::clone(&state), reads, table });
        let (was_in, before) = (self.table.latest(self.me).is_some(), self.leaf_after_all());
        for change in &state.changes {
            self.table.apply(*change, cycle, &self.config);
            if let AgreedChange::Retire(leaf, _, LeavingReason::Planned) = change {
                self.retired(cycle, *leaf);
            }
        }
        self.consider_staying(before);
        let is_in = self.table.latest(self.me).is_some();
        match (was_in, self.table.joined(self.me).filter(|_| is_in)) {
            (true, None) => self.events.push_back(Event::Expelled),
            (false, Some((from, _))) => self.events.push_back(Event::Joined(from)),
            _ => {}
        }
        if self.config.second_round.is_on() || !state.changes.is_empty() {
            self.found_groups();
        }
        let table = &self.table;
        self.sponsored.retain(|(node, incarnation)| table.next(*node) == Some(*incarnation));
        self.table.forget(cycle);
        self.own.leases_asked.retain(|_, asked| *asked > cycle);
        self.early.retain(|(_, of), _| *of > cycle);
        self.history_bytes += state.bytes();
        self.forget();
    }

    /// The first cycle of which this replica has the state of the root.
    pub(crate) fn oldest(&self) -> u64 {
        let first = self.cycles.first_key_value().map(|(number, _)| *number);
        first
            .filter(|first| *first <= self.progress.committed)
            .unwrap_or(self.progress.committed + 1)
    }

    /// Forgets the oldest cycles, and of later cycles all states below the root. Other nodes may
    /// still ask for the states of the last cycles. In later answers, the state of the root stands
    /// for them.
    fn forget(&mut self) {
        let near = self.progress.committed.saturating_sub(self.config.pipeline);
        if let Some(cycle) = self.cycles.get_mut(&near) {
            cycle.states.retain(|vnode, _| *vnode == VnodeId::ROOT);
        }
        let far = self.progress.committed.saturating_sub(self.config.history);
        while let Some(first) = self.cycles.first_entry() {
            let number = *first.key();
            let is_long = self.history_bytes > self.config.history_bytes && number < near;
            if number >= far && !is_long {
                break;
            }
            let root = first.remove().states.remove(&VnodeId::ROOT);
            self.history_bytes -= root.map_or(0, |root| root.bytes());
        }
        let oldest = self.oldest();
        for group in self.groups.values_mut() {
            group.forget(oldest);
        }
    }

    /// The reads of this replica that a committed cycle makes due. When the cycle does not have the
    /// replica's proposal, the requests and reads of the proposal wait again, before all others.
    fn take_back(&mut self, state: &VnodeState) -> Vec<DueRead> {
        let Some(mine) = self.own.proposed.remove(&state.cycle) else { return Vec::new() };
        if state.set_of(self.me).is_some() {
            let (mut after, mut reads) = (0, Vec::new());
            for one in &mine {
                match one {
                    Pending::Write(..) => after += 1,
                    Pending::Read(token) => reads.push(DueRead { token: *token, after }),
                }
            }
            return reads;
        }
        // The replica's group ended before this cycle, so no later cycle has a proposal of the
        // group either.
        let later = core::mem::take(&mut self.own.proposed).into_values().flatten();
        let back: Vec<Pending> = mine.into_iter().chain(later).collect();
        for one in back.into_iter().rev() {
            self.own.pending_bytes += bytes_of(&one);
            self.own.pending.push_front(one);
        }
        Vec::new()
    }

    /// The vnodes whose states this replica's super-leaf needs from others in a cycle.
    pub(crate) fn foreign(&self, cycle: u64) -> Vec<VnodeId> {
        let steps = self.place.ancestors.windows(2);
        let all = steps.flat_map(|step| {
            let own = step[0];
            self.tree.children(step[1]).iter().filter(move |child| **child != own)
        });
        all.filter(|vnode| self.takes_part(**vnode, cycle)).copied().collect()
    }

    /// Whether a vnode is one of [`foreign`](Self::foreign), without a list of them: every part of
    /// a state asks.
    fn is_foreign(&self, cycle: u64, vnode: VnodeId) -> bool {
        let mut steps = self.place.ancestors.windows(2);
        let is_other =
            |step: &[VnodeId]| vnode != step[0] && self.tree.children(step[1]).contains(&vnode);
        steps.any(is_other) && self.takes_part(vnode, cycle)
    }

    /// Whether this replica fetches a vnode's state for its super-leaf. The representatives of a
    /// vnode are some of the members that are not silent: the members are counted in the order of
    /// their names, from a place that differs from vnode to vnode.
    fn represents(&self, now: Timestamp, vnode: VnodeId) -> bool {
        let heard = |node: NodeId| node == self.me || !self.is_silent(now, node);
        let all = self.place.leaf.members.iter().map(|member| member.node);
        let live: Vec<NodeId> = all.filter(|node| heard(*node)).collect();
        let first = usize::from(vnode.0) % live.len();
        let count = self.config.redundancy.clamp(1, live.len());
        (0..count).any(|step| live[(first + step) % live.len()] == self.me)
    }

    /// Asks for the states of other super-leaves that this cycle still needs.
    pub(crate) fn fetch(&mut self, now: Timestamp, number: u64) {
        for vnode in self.foreign(number) {
            if self.has_state(number, vnode) {
                continue;
            }
            let represents = self.represents(now, vnode);
            let Some(cycle) = self.cycles.get_mut(&number) else { return };
            let patient = now.since(cycle.started_at) < self.config.fetch_every * PATIENCE;
            if !represents && patient {
                continue;
            }
            let (asked_at, times) = cycle.asked.get(&vnode).copied().unwrap_or_default();
            if times > 0 && now.since(asked_at) < self.config.fetch_every {
                continue;
            }
            cycle.asked.insert(vnode, (now, times + 1));
            // Every second request goes to a holder, so that each of the two kinds has its turns.
            let turn = number + u64::from(times / 2) + u64::from(self.me.0);
            // The super-leaf itself may have vanished, and other nodes have its state.
            let group = self.groups.get(&owner_of(vnode)).filter(|_| times % 2 == 1);
            if let Some(holder) = group.and_then(|group| group.source(number, turn as usize)) {
                self.send(holder, &ReplicaMessage::Request(number, vnode));
                continue;
            }
            let emulators = self.tree.emulators(vnode);
            let present: Vec<NodeId> = emulators
                .iter()
                .map(|member| member.node)
                .filter(|node| times % 2 == 1 || self.table.latest(*node).is_some())
                .collect();
            if !present.is_empty() {
                let to = present[turn as usize % present.len()];
                self.send(to, &ReplicaMessage::Request(number, vnode));
            }
        }
    }

    pub(crate) fn take_request(&mut self, from: NodeId, number: u64, vnode: VnodeId) {
        self.progress.seen =
            self.progress.seen.max(number.min(self.progress.started + self.config.pipeline));
        let is_mine = self.place.ancestors.contains(&vnode);
        // A super-leaf that was left out needs to know that it was.
        let root = || self.state(number, VnodeId::ROOT);
        let found = match self.config.second_round.is_on() {
            true => root().or_else(|| self.state(number, vnode)),
            false => self.state(number, vnode).or_else(root),
        };
        if let Some(state) = found {
            return self.send(from, &ReplicaMessage::State(state.as_ref().clone()));
        }
        if number <= self.progress.committed {
            return self.send(from, &ReplicaMessage::Forgot(number));
        }
        if is_mine && self.is_near(number) {
            // The cycle does not exist yet, and the request makes this replica start it.
            self.cycles.entry(number).or_default().waiting.insert((vnode, from));
        }
    }

    /// Whether another node may be in a cycle that is not committed here. A node that has committed
    /// a cycle has this replica's proposal of the cycle, and this replica proposes a pipeline ahead
    /// of what it has committed. The node starts cycles up to another pipeline ahead.
    fn is_near(&self, number: u64) -> bool {
        number > self.progress.committed
            && number <= self.progress.committed + 2 * self.config.pipeline
    }

    /// Whether an entry of a peer may come while the entry of cycle `have` is the next one here. A
    /// peer may be as far ahead as [`is_near`](Self::is_near) says. A replica that drops an early
    /// entry asks for the entry again at its next heartbeat, and all replicas wait for that replica
    /// until then.
    pub(crate) fn may_come_early(&self, have: u64, cycle: u64) -> bool {
        cycle <= have + 2 * self.config.pipeline
    }

    /// Whether this replica needs a state from another node. The state of the root ends a cycle, so
    /// the replica takes the state only after it has started the cycle. The state of another
    /// super-leaf may come before the start.
    pub(crate) fn wants_state(&self, number: u64, vnode: VnodeId) -> bool {
        let is_wanted = match vnode {
            VnodeId::ROOT => number > self.progress.committed && number <= self.progress.started,
            _ => self.is_near(number) && self.is_foreign(number, vnode),
        };
        is_wanted && !self.has_state(number, vnode)
    }

    pub(crate) fn take_state(&mut self, state: VnodeState) {
        let (number, vnode) = (state.cycle, state.vnode);
        if !self.wants_state(number, vnode) {
            return;
        }
        let cycle = self.cycles.entry(number).or_default();
        if cycle.asked.contains_key(&vnode) && vnode != VnodeId::ROOT {
            self.tell_peers(&ReplicaMessage::State(state.clone()));
        }
        self.keep(Arc::new(state));
        // The nodes that take part in a later cycle are not known yet.
        if number <= self.progress.started {
            self.compute(number);
        }
    }

    /// Drops cycles that this replica has not started, for whose states no node waits, and that
    /// have no state.
    pub(crate) fn tidy(&mut self) {
        let started = self.progress.started;
        self.cycles.retain(|number, cycle: &mut Cycle| {
            *number <= started || !cycle.waiting.is_empty() || !cycle.states.is_empty()
        });
        self.forget_parts();
    }
}
