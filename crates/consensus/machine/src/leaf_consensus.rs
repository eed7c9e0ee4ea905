//! Consensus in the second round (section 4.7.1): a minority of super-leaves may vanish.
//!
//! Without this, every cycle waits for the state of every super-leaf. With
//! [`Config::second_round`](crate::Config::second_round) each super-leaf has a group over all
//! nodes, as each node has a group over its super-leaf (see [`group`](crate::group)). The entries
//! of the group are the states of the super-leaf, cycle by cycle:
//!
//! ```text
//!   round 1   the members of X agree on the state of X in cycle c       one value, as ever
//!   round 2   every node that has the state writes it and tells all     BALLOT
//!             a majority has written it                             => cycle c has it
//!             the group of X ended before c                         => cycle c is without X
//! ```
//!
//! - **A majority** is a majority of the nodes of a super-leaf, in a majority of the super-leaves.
//!   Any two majorities have a node in common, so that a committed state and an end before it
//!   cannot both be agreed. Thus less than half of the super-leaves may vanish.
//! - **Each commit takes one more one-way delay between racks**: a state travels to the other
//!   super-leaves, and the word that it is written travels on. A state that was fetched may be used
//!   only after that.
//! - **Any node may ask to end a group**, when it has waited for the super-leaf in a cycle for
//!   [`Config::vanish_after`](crate::Config::vanish_after), and hears a majority. A node that has
//!   waited for less than half of that time does not help.
//! - **A super-leaf that was left behind** learns the cycles that it missed from the others. It
//!   proposes in later cycles again when a majority of it has caught up: one of its nodes asks any
//!   node to let it back in, and its group begins anew. The requests that its nodes had proposed in
//!   the cycles without it wait for a later cycle.
//! - **When each super-leaf's group has ended**, all super-leaves begin new groups by rule, because
//!   nobody is left to let one in.
//! - **A replica that lost its disk** has forgotten its ballots. It gives none in groups that began
//!   before it came back, because its earlier disk may have given some there. So it asks that each
//!   super-leaf in turn leaves and comes back with a new group, which takes a few cycles. Until
//!   then no second replica of the super-leaf may lose its disk.
//! - **A super-leaf that lost all its disks** looks new to itself. So its replicas vote as new ones
//!   only when a majority of the other super-leaves knew their disks before any cycle. Otherwise
//!   they wait until the others have gone on without their super-leaf, and then come back. The
//!   price is that the first cycle begins when all nodes have started once, or after the time for a
//!   super-leaf that has vanished. **Nobody notices** when a super-leaf loses all its disks in the
//!   moment in which it begins its first cycle.

use core::time::Duration;

use evenfall_core::{NodeId, Timestamp};

use crate::canopus::{Canopus, Event};
use crate::config::UNWRITTEN_BYTES_MAX;
use crate::disk_identity::PeerDisk;
use crate::group::{GroupEntry, MemberPart, OWNERS, ProposalGroup, leaf_of, owner_of};
use crate::journal::{Effect, ReplicaRecord};
use crate::wire::{Ballot, ReplicaMessage};
use crate::{AgreedChange, ConsensusError, LeavingReason, VnodeId, VnodeState};

/// What this replica knows of a node of another super-leaf.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RemoteLeafPeer {
    pub(crate) heard: Timestamp,
    pub(crate) committed: u64,
    /// Whether the node votes: it has sent ballots.
    pub(crate) votes: bool,
    /// When the last of these ballots came.
    pub(crate) voted: Timestamp,
    /// Whether the node knew the disk of this replica before it started a cycle.
    pub(crate) knows: Option<bool>,
}

impl Canopus {
    /// The groups that the table asks for and this replica does not have yet.
    pub(crate) fn found_groups(&mut self) {
        let own = &mut self.disk.own;
        if let Some((from, incarnation)) = self.table.joined(self.me)
            && own.since == 0
            && (1..=incarnation).contains(&own.proposes_from)
        {
            own.since = from;
        }
        if let Some((from, _)) = self.table.leaf_joined(self.place.ancestors[0])
            && (own.since == 0 && own.fresh_from > 0)
            && from >= own.fresh_from
        {
            own.since = from;
        }
        // Until then the group before may be needed.
        let known = self.progress.committed + self.config.pipeline;
        let is_near = |joined: &(u64, u32)| joined.0 <= known;
        let mut founded = Vec::new();
        for member in &self.place.leaf.members {
            if let Some(joined) = self.table.joined(member.node).filter(is_near) {
                founded.push((member.node, joined));
            }
        }
        for leaf in self.leaves().filter(|_| self.config.second_round.is_on()) {
            if let Some(joined) = self.table.leaf_joined(leaf).filter(is_near) {
                founded.push((owner_of(leaf), joined));
            }
        }
        for (owner, (from, incarnation)) in founded {
            let known = self.groups.get(&owner);
            if known.is_none_or(|group| group.incarnation() < incarnation) {
                let group = self.new_group(owner, incarnation, from.max(1));
                self.groups.insert(owner, group);
            }
        }
        if !self.config.second_round.is_on() {
            return;
        }
        self.end_groups();
        let mut owners = self.tree.leaves().map(|(leaf, _)| owner_of(leaf));
        let is_counted = self.disk.own.since > 0 && owners.all(|owner| self.is_elector(owner));
        if is_counted && !core::mem::replace(&mut self.disk.is_counted, true) {
            self.events.push_back(Event::Counts);
        }
    }

    /// A group of an owner in the way that the settings ask for: a node has it in its super-leaf,
    /// and a super-leaf over all nodes.
    pub(crate) fn new_group(&self, owner: NodeId, incarnation: u32, first: u64) -> ProposalGroup {
        match leaf_of(owner) {
            None => ProposalGroup::new(
                owner,
                incarnation,
                first,
                &self.place.racks[self.place.rack..=self.place.rack],
            ),
            Some(_) if self.is_external() => {
                ProposalGroup::new(owner, incarnation, first, &self.place.racks)
                    .decided_externally(self.place.rack)
            }
            Some(_) => ProposalGroup::new(owner, incarnation, first, &self.place.racks),
        }
    }

    /// Stores the states of a super-leaf in its group that are next in turn.
    pub(crate) fn store_states(&mut self, leaf: VnodeId) {
        if !self.config.second_round.is_on() || self.journal.unwritten() > UNWRITTEN_BYTES_MAX {
            return;
        }
        let owner = owner_of(leaf);
        let last = self.votes_until();
        while let Some(group) = self.groups.get_mut(&owner)
            && group.takes_next()
            && group.mine().have <= last
            && let Some(cycle) = self.cycles.get(&group.mine().have)
            && let Some(state) = cycle.states.get(&leaf)
        {
            let entry = GroupEntry::State(state.clone());
            group.store(&entry);
            let (incarnation, mine) = (group.incarnation(), group.mine());
            let record = self.record_of(owner, incarnation, &entry);
            self.record(&record, [Effect::Report(owner, incarnation, mine)]);
        }
    }

    /// Stores the states of all super-leaves that are next in turn, and writes the votes that count
    /// again, because the promises against them hold no more.
    pub(crate) fn store_all_states(&mut self) {
        self.write_voided();
        let leaves: Vec<VnodeId> = self.leaves().collect();
        leaves.into_iter().for_each(|leaf| self.store_states(leaf));
    }

    /// The record of an entry of a group.
    pub(crate) fn record_of(
        &self,
        owner: NodeId,
        incarnation: u32,
        entry: &GroupEntry,
    ) -> ReplicaRecord {
        match (entry, leaf_of(owner)) {
            (GroupEntry::State(state), Some(leaf)) => {
                ReplicaRecord::State(leaf, incarnation, self.entry_of(state))
            }
            (GroupEntry::Proposal(proposal), _) => ReplicaRecord::Entry(proposal.clone()),
            (GroupEntry::State(_), None) => unreachable!("a node proposes no state"),
        }
    }

    /// The state of the root, when it is agreed which super-leaves the cycle has.
    pub(crate) fn of_leaves(&self, cycle: u64) -> Option<VnodeState> {
        if self.is_external() && cycle != self.progress.committed + 1 {
            return None;
        }
        let (mut states, mut without) = (Vec::new(), Vec::new());
        for (leaf, _) in self.tree.leaves() {
            let Some(incarnation) = self.table.leaf_incarnation(leaf, cycle) else { continue };
            let group = self.groups.get(&owner_of(leaf))?;
            if group.incarnation() != incarnation {
                return None;
            }
            let part = match self.is_external() {
                true => self.external_part(leaf, group, cycle),
                false => group.part(cycle),
            };
            match part {
                MemberPart::Open => return None,
                MemberPart::Proposed(entry) => states.push(entry.state()?.as_ref()),
                MemberPart::Absent => {
                    without.push(AgreedChange::Retire(leaf, incarnation, LeavingReason::Vanished));
                }
            }
        }
        Some(VnodeState::of_states(cycle, VnodeId::ROOT, states.into_iter(), without.into_iter()))
    }

    /// Whether the votes of this replica count in a group.
    pub(crate) fn is_elector(&self, owner: NodeId) -> bool {
        if !self.disk.votes() || self.disk.own.proposes_from == 0 {
            return self.disk.votes();
        }
        let Some(leaf) = leaf_of(owner) else { return !self.is_left(owner) };
        let group = self.groups.get(&owner).map(ProposalGroup::incarnation);
        let joined = self.table.leaf_joined(leaf);
        // The group of the latest incarnation is founded when no cycle needs the group before.
        let is_it = joined.map(|(_, incarnation)| incarnation) == group;
        // Promises of an earlier disk do not outlive an incarnation of the own super-leaf, when a
        // service outside decides.
        let is_fresh = self.is_external() && !self.began_before(self.place.ancestors[0]);
        is_it && (is_fresh || !self.began_before(leaf))
    }

    /// Whether this replica once lost its disk, and the node that owns this group has left. Such a
    /// replica votes again without the end of the group ([`may_vote`](Self::may_vote)). Members
    /// that are behind still need the group, and votes of the earlier disk may count there.
    pub(crate) fn is_left(&self, owner: NodeId) -> bool {
        let Some(group) = self.groups.get(&owner) else { return false };
        let next = self.table.next_in(owner, self.progress.committed + 1);
        self.disk.own.proposes_from > 0 && next.is_some_and(|next| next > group.incarnation())
    }

    /// A node of another super-leaf greets. This replica notes the number of the node's disk as
    /// long as it has started no cycle and knows no state.
    pub(crate) fn take_remote_greeting(&mut self, from: NodeId, number: u64) {
        if !self.config.second_round.is_on() || self.disk.is_new() || number == 0 {
            return;
        }
        let is_known = self.disk.knows(from, number);
        if is_known {
            return self.answer_written(from, number);
        }
        let has_states = self.cycles.values().any(|cycle| !cycle.states.is_empty());
        if self.progress.started > 0 || has_states {
            return self.send(from, &ReplicaMessage::Known(self.known(number, 0, false)));
        }
        self.note_disk(from, PeerDisk { number, count: 1 });
        self.greet_back(from);
    }

    /// How long this replica has run.
    pub(crate) fn running(&self) -> Duration {
        self.config.heartbeat * (self.beat.ticks as u32)
    }

    /// Whether this replica may start cycles. Before the first one it waits until it knows the disk
    /// of each node that does not vote yet, but not for longer than for a super-leaf that has
    /// vanished: a super-leaf that the others learn of later does not count as new.
    pub(crate) fn may_begin(&self) -> bool {
        let is_first =
            self.config.second_round.is_on() && self.disk.votes() && self.progress.started == 0;
        let waits = || self.running() < self.config.vanish_after;
        let known = &self.disk.own.peers;
        let knows = || {
            self.others.nodes.iter().all(|(node, remote)| remote.votes || known.contains_key(node))
        };
        self.disk.may_start() && (!is_first || knows() || !waits())
    }

    /// Whether this super-leaf, of which no member has an earlier disk, is new; `None` while nobody
    /// can know.
    pub(crate) fn is_new_leaf(&self) -> Option<bool> {
        if !self.config.second_round.is_on() || self.others.nodes.is_empty() {
            return Some(true);
        }
        if self.is_new_to_others() {
            return self.is_none_ended();
        }
        self.others.nodes.values().any(|remote| remote.knows == Some(false)).then_some(false)
    }

    /// Whether enough other super-leaves have known the disk of this replica since before the first
    /// cycle.
    fn is_new_to_others(&self) -> bool {
        let knows = |node: &&NodeId| {
            self.others.nodes.get(*node).is_some_and(|remote| remote.knows == Some(true))
        };
        let is_known = |rack: &&Vec<NodeId>| rack.iter().filter(knows).count() > rack.len() / 2;
        let needed = match self.is_external() {
            true => self.place.racks.len() - 1,
            false => (self.place.racks.len() / 2 + 1).min(self.place.racks.len() - 1),
        };
        self.place.racks.iter().filter(is_known).count() >= needed
    }

    /// Whether this replica waits for ever: all replicas are new, and the service outside has the
    /// list of an earlier cluster of the same settings.
    pub fn finds_earlier_list(&self) -> bool {
        let is_new = self.is_external() && !self.disk.votes() && self.is_new_to_others();
        is_new && self.is_none_ended() == Some(false)
    }

    /// The first incarnation under which this replica may propose after the loss of all disks of
    /// its super-leaf, when the others have gone on without the super-leaf. An earlier disk may
    /// have heard of one more return.
    pub(crate) fn returns_as(&self) -> Option<u32> {
        let next = self.progress.committed + 1;
        let is_near = self
            .others
            .nodes
            .values()
            .all(|remote| remote.committed <= self.progress.committed + 1);
        let is_out = self.table.leaf_incarnation(self.place.ancestors[0], next).is_none();
        if is_near && is_out { Some(self.table.next(self.me)? + 1) } else { None }
    }

    /// Whether the latest group of a super-leaf began before this replica took part with its disk.
    fn began_before(&self, leaf: VnodeId) -> bool {
        let since = self.disk.own.since;
        since == 0 || self.table.leaf_joined(leaf).is_none_or(|(from, _)| from < since)
    }

    /// Whether the next cycle has waited for this super-leaf for longer than this.
    pub(crate) fn is_overdue(&self, now: Timestamp, leaf: VnodeId, after: Duration) -> bool {
        let cycle = self.progress.committed + 1;
        let is_in = self.table.leaf_incarnation(leaf, cycle);
        let group = self.groups.get(&owner_of(leaf));
        let is_open = group.is_some_and(|group| {
            Some(group.incarnation()) == is_in && group.part(cycle) == MemberPart::Open
        });
        let started = self.cycles.get(&cycle).filter(|_| cycle <= self.progress.started);
        is_open && started.is_some_and(|started| now.since(started.started_at) > after)
    }

    /// Whether this replica has heard a majority lately.
    pub(crate) fn hears_majority(&self, now: Timestamp, owner: NodeId) -> bool {
        let after = self.config.vanish_after;
        let group = self.groups.get(&owner);
        group.is_some_and(|group| group.is_majority(|node, _| self.heard_within(now, node, after)))
    }

    /// Whether a node was heard within this time.
    pub(crate) fn heard_within(&self, now: Timestamp, node: NodeId, within: Duration) -> bool {
        let peer = self.peers.get(&node).map(|peer| peer.heard);
        let heard = peer.or_else(|| self.others.nodes.get(&node).map(|remote| remote.heard));
        node == self.me || heard.is_some_and(|heard| now.since(heard) < within)
    }

    /// A node of another super-leaf that has committed a cycle, counted from `turn` on.
    pub(crate) fn far_ahead(&self, cycle: u64, turn: usize) -> Option<(NodeId, u64)> {
        let ahead = self.others.nodes.iter().filter(|(_, remote)| remote.committed >= cycle);
        let ahead: Vec<_> = ahead.map(|(node, remote)| (*node, remote.committed)).collect();
        (!ahead.is_empty()).then(|| ahead[turn % ahead.len()])
    }

    /// Whether the super-leaf of this replica takes part, after all changes so far.
    pub(crate) fn is_leaf_in(&self) -> bool {
        self.leaf_after_all().is_some()
    }

    /// The incarnation of the super-leaf of this replica, after all changes so far.
    pub(crate) fn leaf_after_all(&self) -> Option<u32> {
        self.table.leaf_incarnation(self.place.ancestors[0], u64::MAX)
    }

    /// A super-leaf that was to leave as planned and that is back does not leave any more: the
    /// others have vanished meanwhile.
    pub(crate) fn consider_staying(&mut self, before: Option<u32>) {
        let after = self.leaf_after_all();
        self.is_leaving &= after.is_none() || after == before;
    }

    /// Whether the super-leaf of this replica may come back: a majority of it lives.
    pub(crate) fn may_return(&self) -> bool {
        let now = self.beat.tick_at.unwrap_or(Timestamp::ZERO);
        let stays = self.peers.iter().filter(|(_, peer)| !peer.leaves);
        let live = stays.filter(|(node, _)| !self.is_silent(now, **node)).count() + 1;
        !self.is_leaving && live > self.place.leaf.members.len() / 2
    }

    /// When ballots are to leave: at once, but not more often than four times for each cycle that
    /// starts.
    pub(crate) fn ballots_at(&self) -> Option<Timestamp> {
        let is_due = self.others.ballots_due && self.disk.votes();
        is_due.then(|| self.others.spoke_at + self.config.cycle_every / 4)
    }

    /// Tells all nodes of the other super-leaves what this replica has written: everything at each
    /// heartbeat, and what has changed since then at other times.
    pub(crate) fn send_ballots(&mut self, now: Timestamp) {
        (self.others.ballots_due, self.others.spoke_at) = (false, now);
        let all = self.reports(OWNERS);
        let told = core::mem::replace(&mut self.others.told, all.clone());
        let groups = all.into_iter().filter(|report| !told.contains(report)).collect();
        let (started, committed) = (self.progress.started, self.progress.committed);
        let ballot = ReplicaMessage::Ballot(Ballot { started, committed, groups });
        let remote: Vec<NodeId> = self.others.nodes.keys().copied().collect();
        remote.into_iter().for_each(|node| self.send(node, &ballot));
    }

    pub(crate) fn take_ballot(&mut self, now: Timestamp, from: NodeId, ballot: &Ballot) {
        let Some(remote) =
            self.others.nodes.get_mut(&from).filter(|_| self.config.second_round.is_on())
        else {
            return;
        };
        (remote.committed, remote.votes) = (remote.committed.max(ballot.committed), true);
        remote.voted = now;
        self.progress.seen =
            self.progress.seen.max(ballot.started.min(self.progress.started + self.config.history));
        let groups = ballot.groups.iter().filter(|(owner, ..)| leaf_of(*owner).is_some());
        self.take_reports(now, from, groups);
    }

    /// Takes a super-leaf out as planned. The other super-leaves go on without it when
    /// [`Canopus::is_retired`] is true, and its hosts may then be stopped. It comes back when a
    /// majority of its replicas is started again. Any replica takes the plan. The last super-leaf
    /// stays.
    ///
    /// # Errors
    /// [`ConsensusError::Needed`], [`ConsensusError::DiskFull`] or [`ConsensusError::Stopped`].
    pub fn retire(&mut self, now: Timestamp, leaf: VnodeId) -> Result<(), ConsensusError> {
        self.takes()?;
        if !self.may_retire(leaf) {
            return Err(ConsensusError::Needed);
        }
        if self.table.leaf_incarnation(leaf, u64::MAX).is_some() {
            self.others.retires = Some(leaf);
            self.advance(now);
        }
        Ok(())
    }

    /// Whether the other super-leaves could go on without this one.
    pub fn may_retire(&self, leaf: VnodeId) -> bool {
        self.table.may_leave(leaf, LeavingReason::Planned, self.progress.committed, &self.config)
    }

    /// Whether a super-leaf takes no part in the cycles to come.
    pub fn is_retired(&self, leaf: VnodeId) -> bool {
        self.table.leaf_incarnation(leaf, self.progress.committed + 1).is_none()
    }

    /// How many nodes take part, after all changes so far.
    pub fn members(&self) -> usize {
        let nodes = self.place.racks.iter().flatten();
        nodes.filter(|node| self.table.latest(**node).is_some()).count()
    }

    /// Whether this node is the first of all nodes that take part, after all changes so far.
    pub fn is_first_member(&self) -> bool {
        let mut nodes = self.place.racks.iter().flatten();
        nodes.find(|node| self.table.latest(**node).is_some()) == Some(&self.me)
    }

    /// The super-leaves, in order.
    pub fn leaves(&self) -> impl Iterator<Item = VnodeId> {
        self.tree.leaves().map(|(leaf, _)| leaf)
    }

    /// The super-leaf that this replica asks to leave: as planned, or in order to begin a new group
    /// in which the ballots of this replica count.
    pub(crate) fn retirement(&self) -> Option<AgreedChange> {
        let incarnation = |leaf| self.table.leaf_incarnation(leaf, u64::MAX);
        if let Some(leaf) = self.others.retires
            && let Some(incarnation) = incarnation(leaf)
        {
            return Some(AgreedChange::Retire(leaf, incarnation, LeavingReason::Planned));
        }
        // Another super-leaf has to take part meanwhile.
        let others = self.table.leaves_in().count() > 1;
        if !self.config.second_round.is_on() || self.disk.own.since == 0 || !others {
            return None;
        }
        let counts_with = |leaf: &VnodeId| !self.is_external() || *leaf == self.place.ancestors[0];
        let mut leaves = self.table.leaves_in().filter(counts_with);
        let leaf = leaves.find(|leaf| self.began_before(*leaf))?;
        if !self.table.may_leave(leaf, LeavingReason::Anew, self.progress.committed, &self.config) {
            return None;
        }
        Some(AgreedChange::Retire(leaf, incarnation(leaf)?, LeavingReason::Anew))
    }

    /// A super-leaf leaves as planned, as agreed in a cycle.
    pub(crate) fn retired(&mut self, cycle: u64, leaf: VnodeId) {
        self.others.retires = self.others.retires.filter(|retires| *retires != leaf);
        if self.table.leaf_incarnation(leaf, u64::MAX).is_some() {
            return;
        }
        let table = &self.table;
        self.sponsored.retain(|(node, _)| table.home(*node) != Some(leaf));
        if leaf == self.place.ancestors[0] {
            // A replica that was down then, and learns of the plan later, is started for good. So
            // is a replica whose earlier life proposed in this cycle.
            let own = self.groups.get(&self.me).map_or(0, |own| own.mine().have);
            self.is_leaving |= own > cycle && cycle > self.progress.started_before;
        }
    }
}
