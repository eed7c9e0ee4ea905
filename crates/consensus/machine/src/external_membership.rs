//! Membership from outside (section 4.7.1): all super-leaves but one may vanish.
//!
//! With [`SecondRound::External`] a membership service that all can reach, such as etcd, has a list
//! of the super-leaves that have vanished. Each super-leaf has a group over all nodes, as with
//! consensus in the second round (see [`leaf_consensus`](crate::leaf_consensus)), and the groups
//! end in another way:
//!
//! ```text
//!   every node that has the state of X in cycle c writes it and tells all       BALLOT
//!   a majority of *every* super-leaf that takes part has written it          => c has it
//!
//!   X is silent: a node of A asks its own super-leaf for promises about X
//!   a majority of A promises: A writes no later state of X
//!   the node adds "X ends before e" to the list, if A is not on it              LIST
//!   who reads this:  states of X before e count, cycles from e on are without X
//! ```
//!
//! - **Why no cycle is both with and without X.** A cycle with the state of X needs a majority of
//!   A. That majority has a node in common with the one that promised, unless A itself is on the
//!   list. The service takes changes one after the other, and a change of A only while A is not on
//!   the list. So whoever reads that A has ended also reads what A decided before.
//! - **A node decides cycle by cycle.** A super-leaf that ended X before e takes part in e, and may
//!   leave afterwards. Whoever has committed e knows that X has ended. A node that decided a later
//!   cycle first might no longer count the super-leaf, and take a state of X.
//! - **Who is no longer needed is read from the list alone.** A committed cycle and a checkpoint
//!   also tell that a group has ended, but not what was decided before, so they take no super-leaf
//!   out of the count.
//! - **A promise holds as long as the super-leaf of the node takes part under one incarnation.** A
//!   super-leaf that came back decides nothing with promises from before. The upper half of a term
//!   is the incarnation.
//! - **A node votes and decides only in cycles of which it knows who takes part**, which is a
//!   pipeline ahead of what it has committed.
//! - **A node that asks for promises votes for no later state of X**, even when nobody promises. So
//!   it asks only while it hears a majority of its super-leaf, and nobody there is ahead of it.
//!   When most nodes have asked in vain, X is taken out although it lives, and comes back.
//! - **The node waits until the other super-leaves that vote have the last states of X.** If the
//!   one super-leaf that has these states vanishes as well before the others have them, all wait
//!   until one of the two is back.
//! - **A super-leaf that reaches the others, but not the service**, learns committed cycles from
//!   the others. Super-leaves that reach each other need the service once, for their first cycle,
//!   and then no more until one of them has promised in a moment of silence.
//! - **The service must not forget.** The list is in the log of each replica. A replica refuses a
//!   list that lacks what the replica has read before, or that ends a super-leaf in a cycle that
//!   was committed with it. A replica that has lost its disk, too, cannot notice.
//!
//! The owner of a replica reads and changes the list: see [`Canopus::apply_membership`] and
//! [`Canopus::wanted_change`].

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use evenfall_core::{Malformed, NodeId, Reader, Timestamp};

use crate::canopus::{Canopus, Peer};
use crate::config::SecondRound;
use crate::group::{DurableReport, MemberPart, OWNERS, ProposalGroup, leaf_of, owner_of};
use crate::journal::ReplicaRecord;
use crate::{AgreedChange, ConsensusError, LeavingReason, VnodeId};

/// Ends of one super-leaf that the list remembers. A replica that needs an earlier one learns the
/// cycle from others.
const ENDS_PER_LEAF: usize = 16;
/// The first bytes of a list.
const MAGIC: [u8; 4] = *b"EFM1";
/// Pipelines that an earlier disk of a replica can have been ahead of what the replica knows.
const LEAD: u64 = 6;
/// Why a list of a service that forgot is refused.
const LACKS: &str = "lacks what it had before: give the service its data back";
/// Bits of a term below the incarnation.
const TERM_BITS: u32 = 16;

/// The list: which super-leaves have vanished, under which incarnation, and the first cycle without
/// each.
///
/// ```text
///   magic 4 bytes, cluster u64, version u64, count u16; then per end:
///   super-leaf u16, incarnation u32, first cycle u64
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ends {
    cluster: u64,
    /// The number of changes so far.
    version: u64,
    ends: BTreeMap<(VnodeId, u32), u64>,
}

/// What the list says of a super-leaf under an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// Nothing: it takes part.
    Nothing,
    /// The first cycle without it.
    End(u64),
    /// The list may have forgotten.
    Forgotten,
}

impl Ends {
    fn new(cluster: u64) -> Self {
        Self { cluster, version: 0, ends: BTreeMap::new() }
    }

    fn of(&self, leaf: VnodeId) -> impl Iterator<Item = (u32, u64)> {
        let all = self.ends.range((leaf, 0)..=(leaf, u32::MAX));
        all.map(|((_, incarnation), end)| (*incarnation, *end))
    }

    /// Whether a super-leaf has ended under this incarnation or a later one, so that it decides
    /// nothing any more under this one.
    fn has_ended(&self, leaf: VnodeId, incarnation: u32) -> bool {
        self.of(leaf).any(|(ended, _)| ended >= incarnation)
    }

    fn said(&self, leaf: VnodeId, incarnation: u32) -> Said {
        let first = self.of(leaf).next().map_or(0, |(first, _)| first);
        match self.ends.get(&(leaf, incarnation)) {
            Some(end) => Said::End(*end),
            None if incarnation < first && self.of(leaf).count() >= ENDS_PER_LEAF => {
                Said::Forgotten
            }
            None => Said::Nothing,
        }
    }

    /// The list with one more end.
    fn with(&self, leaf: VnodeId, incarnation: u32, end: u64) -> Self {
        let mut next = self.clone();
        next.version += 1;
        next.ends.insert((leaf, incarnation), end);
        if next.of(leaf).count() > ENDS_PER_LEAF {
            let first = next.of(leaf).next().map_or(0, |(first, _)| first);
            next.ends.remove(&(leaf, first));
        }
        next
    }

    /// Whether this list has what an earlier list has and may not have forgotten.
    fn continues(&self, earlier: &Self) -> bool {
        let keeps = |((leaf, incarnation), end): (&(VnodeId, u32), &u64)| {
            let said = self.said(*leaf, *incarnation);
            said == Said::End(*end) || said == Said::Forgotten
        };
        earlier.ends.iter().all(keeps)
            && (self.version > earlier.version || self.ends == earlier.ends)
    }

    fn encode(&self) -> Bytes {
        let mut out = MAGIC.to_vec();
        out.extend(self.cluster.to_le_bytes());
        out.extend(self.version.to_le_bytes());
        out.extend((self.ends.len() as u16).to_le_bytes());
        for ((leaf, incarnation), end) in &self.ends {
            out.extend(leaf.0.to_le_bytes());
            out.extend(incarnation.to_le_bytes());
            out.extend(end.to_le_bytes());
        }
        out.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let r = &mut Reader::new(bytes);
        if r.take(MAGIC.len())? != MAGIC {
            return Err(r.malformed("no list of ends"));
        }
        let mut list = Self { version: 0, ..Self::new(r.u64()?) };
        list.version = r.u64()?;
        if list.version == u64::MAX {
            return Err(r.malformed("a list that cannot change any more"));
        }
        for _ in 0..r.u16()? {
            let leaf = VnodeId(r.u16()?);
            list.ends.insert((leaf, r.u32()?), r.u64()?);
            if list.of(leaf).count() > ENDS_PER_LEAF {
                return Err(r.malformed("too many ends of a super-leaf"));
            }
        }
        r.finish()?;
        // The service compares bytes.
        if list.encode() != bytes { Err(r.malformed("a list in another order")) } else { Ok(list) }
    }
}

/// The super-leaves of a list, the incarnation and the first cycle without each.
///
/// # Errors
/// The bytes are no list.
pub fn ended(list: &[u8]) -> Result<Vec<(VnodeId, u32, u64)>, Malformed> {
    let of = |((leaf, incarnation), end): ((VnodeId, u32), u64)| (leaf, incarnation, end);
    Ok(Ends::decode(list)?.ends.into_iter().map(of).collect())
}

/// Panics when bytes can be read as a list, and the list is encoded as other bytes.
#[cfg(any(fuzzing, test))]
pub(crate) fn check(bytes: &[u8]) {
    if let Ok(list) = Ends::decode(bytes) {
        assert_eq!(list.encode(), bytes);
    }
}

/// What a replica knows of the service.
#[derive(Debug, Default)]
pub(crate) struct ExternalMembership {
    ends: Option<Ends>,
    heard: Option<Timestamp>,
    /// While the own super-leaf is out: the last cycle that was committed when a majority of it
    /// lived.
    ready: Option<u64>,
    /// Groups in which votes count again, because a promise holds no more, and are not written yet.
    pub(crate) voided: BTreeSet<NodeId>,
}

/// A change of the list: the service has to replace `old`, or nothing, by `new`, and to change
/// nothing when it has something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedChange {
    /// The bytes of the list that this replica knows; `None` when there is no list.
    pub old: Option<Bytes>,
    /// The bytes of the list with one more end.
    pub new: Bytes,
}

impl Canopus {
    /// Whether a service outside decides who has vanished.
    pub(crate) fn is_external(&self) -> bool {
        self.config.second_round == SecondRound::External
    }

    /// Takes the list that the service outside has; `None` when it has none. The owner reads the
    /// list several times in [`Config::vanish_after`](crate::Config::vanish_after), and after every
    /// attempt to change it. Each list is at least as new as the lists that were read before.
    ///
    /// # Errors
    /// [`ConsensusError::ExternalList`] when the list is of another cluster, lacks what an
    /// earlier list had, or contradicts what was committed. The replica goes on with the earlier
    /// list.
    pub fn apply_membership(
        &mut self,
        now: Timestamp,
        bytes: Option<&Bytes>,
    ) -> Result<(), ConsensusError> {
        let read = match bytes {
            None => Ends::new(self.digest),
            Some(bytes) => {
                let ends = Ends::decode(bytes);
                ends.map_err(|_| ConsensusError::ExternalList("cannot be read"))?
            }
        };
        if read.cluster != self.digest {
            return Err(ConsensusError::ExternalList(
                "is of another cluster, or of other settings",
            ));
        }
        if read.ends.keys().any(|(leaf, _)| self.leaves().all(|known| known != *leaf)) {
            return Err(ConsensusError::ExternalList("names a rack that does not exist"));
        }
        if self.others.membership.ends.as_ref().is_some_and(|known| !read.continues(known)) {
            return Err(ConsensusError::ExternalList(LACKS));
        }
        if read.ends.iter().any(|((leaf, under), end)| self.contradicts(*leaf, *under, *end)) {
            return Err(ConsensusError::ExternalList(
                "ends a rack in a cycle that was committed with it",
            ));
        }
        if read.version > self.others.membership.ends.as_ref().map_or(0, |known| known.version) {
            self.record(&ReplicaRecord::List(read.encode()), []);
        }
        (self.others.membership.ends, self.others.membership.heard) = (Some(read), Some(now));
        self.end_groups();
        self.advance(now);
        Ok(())
    }

    /// Whether a cycle was committed here with a super-leaf that had ended before the cycle.
    fn contradicts(&self, leaf: VnodeId, incarnation: u32, end: u64) -> bool {
        let group = self.groups.get(&owner_of(leaf));
        let is_open = group.is_some_and(|g| g.incarnation() == incarnation && !g.is_closed());
        let was_in =
            self.table.leaf_incarnation(leaf, self.progress.committed) == Some(incarnation);
        is_open && was_in && end <= self.progress.committed
    }

    /// Takes the list that the log has, so that a service that lost its list is noticed.
    pub(crate) fn restore_list(&mut self, bytes: &[u8]) -> Result<(), ConsensusError> {
        let ends = Ends::decode(bytes).map_err(ConsensusError::Record)?;
        self.others.membership.ends = Some(ends);
        self.end_groups();
        Ok(())
    }

    /// The record of the list, for a log that is compacted.
    pub(crate) fn record_of_list(&self) -> Option<ReplicaRecord> {
        let ends = self.others.membership.ends.as_ref().filter(|ends| ends.version > 0)?;
        Some(ReplicaRecord::List(ends.encode()))
    }

    /// Whether no super-leaf has vanished so far; `None` while the service has not answered.
    pub(crate) fn is_none_ended(&self) -> Option<bool> {
        if !self.is_external() {
            return Some(true);
        }
        self.others.membership.ends.as_ref().map(|ends| ends.version == 0)
    }

    /// The change of the list that this replica asks for; `None` when there is none. The
    /// request is repeated until a list read from the service contains the change.
    pub fn wanted_change(&self) -> Option<WantedChange> {
        let ends = self.others.membership.ends.as_ref()?;
        let mut others = self.leaves().filter(|leaf| *leaf != self.place.ancestors[0]);
        let new = others.find_map(|leaf| {
            let (incarnation, end) = self.decided(ends, leaf)?;
            Some(ends.with(leaf, incarnation, end).encode())
        })?;
        // The service has no list before the first change.
        Some(WantedChange { old: (ends.version > 0).then(|| ends.encode()), new })
    }

    /// The incarnation and the end of a super-leaf that this replica may put on the list: a
    /// majority of its own super-leaf promised it to write no later state, and is itself needed for
    /// the first cycle without the other super-leaf.
    fn decided(&self, ends: &Ends, leaf: VnodeId) -> Option<(u32, u64)> {
        let owner = owner_of(leaf);
        let group = self.groups.get(&owner).filter(|_| self.is_elector(owner))?;
        // A replica that has just started does not know yet who votes.
        if self.running() < self.config.vanish_after / 2 {
            return None;
        }
        let (term, end) = group.won(self.me)?;
        let incarnation = group.incarnation();
        let own = self.ends_as(end)?;
        // A super-leaf that leaves as planned may end behind its last cycle.
        let is_in = |cycle| self.table.leaf_incarnation(leaf, cycle) == Some(incarnation);
        let may = !ends.has_ended(leaf, incarnation)
            && term > floor(own)
            && end <= self.votes_until() + 1
            && (is_in(end) || is_in(end.saturating_sub(1)))
            && self.others_have(ends, leaf, group, end);
        may.then_some((incarnation, end))
    }

    /// Whether each other super-leaf that this replica heard lately has all states of `leaf` before
    /// the cycle `end`.
    fn others_have(&self, ends: &Ends, leaf: VnodeId, group: &ProposalGroup, end: u64) -> bool {
        let now = self.beat.tick_at.unwrap_or(Timestamp::ZERO);
        let mut racks = self.leaves().zip(&self.place.racks).filter(|(other, _)| *other != leaf);
        racks.all(|(other, rack)| {
            let incarnation = self.table.leaf_incarnation(other, end);
            incarnation.is_none_or(|incarnation| ends.has_ended(other, incarnation))
                || !self.is_heard(now, rack, self.config.vanish_after / 2)
                || group.has_majority(rack, end - 1, |report| report.have)
        })
    }

    /// Whether a majority of these nodes has voted within this time. Nodes that lost their disks
    /// are heard before they vote.
    fn is_heard(&self, now: Timestamp, rack: &[NodeId], within: Duration) -> bool {
        let is_heard = |node: &&NodeId| match self.others.nodes.get(*node) {
            Some(far) => now.since(far.voted) < within,
            None => self.heard_within(now, **node, within),
        };
        rack.iter().filter(is_heard).count() > rack.len() / 2
    }

    /// The last cycle in which this replica votes for states of super-leaves. With a service
    /// outside, a super-leaf ends behind the last vote for it, and whoever decides the end has to
    /// know who takes part there.
    pub(crate) fn votes_until(&self) -> u64 {
        if self.is_external() { self.progress.committed + self.config.pipeline } else { u64::MAX }
    }

    /// Whether the service was heard lately. Promises about a super-leaf are of no use otherwise.
    pub(crate) fn hears_service(&self, now: Timestamp) -> bool {
        let heard = self.others.membership.heard;
        heard.is_some_and(|heard| now.since(heard) < self.config.vanish_after)
    }

    /// What a super-leaf's part in a cycle is, by the list and by what all super-leaves have
    /// written.
    pub(crate) fn external_part<'a>(
        &'a self,
        leaf: VnodeId,
        group: &'a ProposalGroup,
        cycle: u64,
    ) -> MemberPart<'a> {
        if group.is_closed() {
            return group.part(cycle);
        }
        let Some(entry) = group.entry(cycle) else { return MemberPart::Open };
        let ends = self.others.membership.ends.as_ref();
        let has_ended = |other, under| ends.is_some_and(|ends| ends.has_ended(other, under));
        let mut racks = self.leaves().zip(&self.place.racks);
        let wrote = racks.all(|(other, rack)| {
            let under = self.table.leaf_incarnation(other, cycle);
            under.is_none_or(|under| has_ended(other, under))
                || group.has_majority(rack, cycle, |report| report.next)
        });
        let said = ends.map_or(Said::Nothing, |ends| ends.said(leaf, group.incarnation()));
        if wrote && said == Said::Nothing { MemberPart::Proposed(entry) } else { MemberPart::Open }
    }

    /// Ends the groups that the list ends, and voids promises that were made before the own
    /// super-leaf came back.
    pub(crate) fn end_groups(&mut self) {
        if !self.is_external() {
            return;
        }
        let floor = floor(self.own_incarnation());
        for leaf in self.tree.leaves().map(|(leaf, _)| leaf) {
            let Some(group) = self.groups.get_mut(&owner_of(leaf)) else { continue };
            let ends = self.others.membership.ends.as_ref();
            let said = ends.map(|ends| ends.said(leaf, group.incarnation()));
            if let Some(Said::End(end)) = said {
                group.end(end);
            }
            if group.void_promises(floor) {
                self.others.membership.voided.insert(owner_of(leaf));
            }
        }
    }

    /// Writes the votes that count again, because the promises against them hold no more. Each vote
    /// is written as its promise once more, which changes nothing in a replay.
    pub(crate) fn write_voided(&mut self) {
        for owner in core::mem::take(&mut self.others.membership.voided) {
            self.write_promise(owner);
        }
    }

    /// The incarnation under which this super-leaf can end another one before this cycle; `None`
    /// when it does not take part in the cycle, as far as this replica knows, or is on the list.
    fn ends_as(&self, cycle: u64) -> Option<u32> {
        let (own, ends) = (self.place.ancestors[0], self.others.membership.ends.as_ref()?);
        let under = self.table.leaf_incarnation(own, cycle)?;
        (!ends.has_ended(own, under)).then_some(under)
    }

    /// The latest incarnation of this super-leaf by the next cycle.
    fn own_incarnation(&self) -> u32 {
        self.table.leaf_latest(self.place.ancestors[0], self.progress.committed + 1).unwrap_or(0)
    }

    /// A cycle is without some super-leaves. Their groups have ended before it, so that this
    /// replica never tells that it has their states of this cycle or later ones.
    pub(crate) fn end_vanished(&mut self, cycle: u64, changes: &[AgreedChange]) {
        for change in changes {
            if let AgreedChange::Retire(leaf, incarnation, LeavingReason::Vanished) = change {
                self.end_group(*leaf, *incarnation, cycle);
            }
        }
    }

    /// A committed cycle, or a checkpoint, tells that the group of a super-leaf has ended.
    pub(crate) fn end_group(&mut self, leaf: VnodeId, incarnation: u32, end: u64) {
        if self.is_external()
            && let Some(group) = self.group(owner_of(leaf), incarnation)
            && group.ended().is_none()
        {
            group.end(end);
        }
    }

    /// Forgets open groups of super-leaves that no cycle behind a checkpoint needs. They may have
    /// ended, in a cycle that this replica has not seen, and a replica must not tell that it has
    /// states from behind the end.
    pub(crate) fn forget_groups(&mut self) {
        if !self.is_external() {
            return;
        }
        let (table, next) = (&self.table, self.progress.committed + 1);
        self.groups.retain(|owner, group| {
            let Some(leaf) = leaf_of(*owner) else { return true };
            let latest = table.leaf_joined(leaf).map(|(_, incarnation)| incarnation);
            let known = [latest, table.leaf_incarnation(leaf, next)];
            group.is_closed() || known.contains(&Some(group.incarnation()))
        });
    }

    /// The ends of groups that this replica knows, for a checkpoint.
    pub(crate) fn known_ends(&self) -> Vec<(VnodeId, u32, u64)> {
        let leaves = self.leaves().filter(|_| self.is_external());
        let end = |leaf| {
            let group = self.groups.get(&owner_of(leaf))?;
            Some((leaf, group.incarnation(), group.ended()?))
        };
        leaves.filter_map(end).collect()
    }

    /// Whether this replica may promise another node something about a super-leaf: the node is of
    /// its own super-leaf, and asks about another one, which the own one can end.
    pub(crate) fn may_promise(&self, leaf: VnodeId, to: NodeId, asked: &DurableReport) -> bool {
        let is_mate = self.peers.contains_key(&to) && leaf != self.place.ancestors[0];
        is_mate && self.ends_as(asked.next).is_some()
    }

    /// The first cycle of which an earlier disk of this replica has told nothing. The earlier disk
    /// was at most two pipelines ahead of any super-leaf whose votes it needed, and told of states
    /// two further pipelines ahead.
    pub(crate) fn fresh_from(&self) -> u64 {
        let own = self.groups.range(..OWNERS).map(|(_, group)| group.mine().have);
        own.fold(self.progress.committed, u64::max) + LEAD * self.config.pipeline
    }

    /// Whether the own super-leaf takes part, or may come back now. With a service outside,
    /// replicas that lost their disks vote only in cycles of which their earlier disks have told
    /// nothing, and a super-leaf of which most do not vote would hold up all others.
    pub(crate) fn is_ready(&mut self) -> bool {
        let disks = &self.disk.own;
        let has_lost = disks.fresh_from > 0 || disks.peers.values().any(|disk| disk.count > 1);
        let (is_in, may_return) = (self.is_leaf_in(), self.may_return());
        if is_in || !may_return || !self.is_external() || !has_lost {
            self.others.membership.ready = None;
            return is_in || may_return;
        }
        let peers = self.peers.values().map(|peer| peer.committed);
        let latest = peers.fold(self.progress.committed, u64::max);
        let ready = *self.others.membership.ready.get_or_insert(latest);
        // Peers may have had entries two pipelines ahead.
        self.progress.committed >= ready + (LEAD + 2) * self.config.pipeline
    }

    /// Whether this replica asks its super-leaf for promises about another one.
    pub(crate) fn asks_to_end(&self, now: Timestamp, leaf: VnodeId) -> bool {
        let owner = owner_of(leaf);
        let within = self.config.vanish_after / 2;
        // A replica that asked votes no more, so it asks only for what the others can promise.
        let may_win = |group: &ProposalGroup| {
            let has_terms = group.new_term() < floor(self.own_incarnation() + 1);
            let refuses = |(node, peer): (&NodeId, &Peer)| {
                let is_ahead = group.is_ahead(*node) || peer.committed > self.progress.committed;
                is_ahead && self.heard_within(now, *node, within)
            };
            has_terms
                && self.ends_as(group.mine().next).is_some()
                && self.is_heard(now, &self.place.racks[self.place.rack], within)
                && !self.peers.iter().any(refuses)
                && group.won(self.me).is_none()
        };
        // Promises without an end would hold up this super-leaf's own part.
        let ends = self.is_blamed(now, leaf, self.config.vanish_after) || self.is_ending(owner);
        let may =
            leaf != self.place.ancestors[0] && self.is_elector(owner) && self.hears_service(now);
        ends && may && self.groups.get(&owner).is_some_and(may_win)
    }

    /// Whether the next cycle has waited for longer than this, and another super-leaf is to blame:
    /// its state is missing, or it does not tell that it has the states of the others.
    pub(crate) fn is_blamed(&self, now: Timestamp, leaf: VnodeId, after: Duration) -> bool {
        let cycle = self.progress.committed + 1;
        let started = self.cycles.get(&cycle).filter(|_| cycle <= self.progress.started);
        let Some(waited) = started.map(|started| now.since(started.started_at)) else {
            return false;
        };
        let is_in = self.table.leaf_incarnation(leaf, cycle);
        let group = self.groups.get(&owner_of(leaf));
        let group = group.filter(|group| Some(group.incarnation()) == is_in && !group.is_closed());
        let place = self.leaves().position(|other| other == leaf);
        let (Some(group), Some(place)) = (group, place) else { return false };
        if leaf == self.place.ancestors[0] || waited <= after {
            return false;
        }
        let rack = &self.place.racks[place];
        // A super-leaf is not to blame for a state that is missing here, too.
        let lacks = |group: &ProposalGroup| {
            let next = |report: &DurableReport| report.next;
            let is_here = group.entry(cycle).is_some();
            is_here && !group.is_closed() && !group.has_majority(rack, cycle, next)
        };
        let mut others = self.leaves();
        let lacks_any = others.any(|other| {
            let is_in = self.table.leaf_incarnation(other, cycle).is_some();
            is_in && self.groups.get(&owner_of(other)).is_some_and(lacks)
        });
        // A super-leaf that lives may only wait for the one that is to blame.
        let is_silent = !self.is_heard(now, rack, after / 2);
        group.entry(cycle).is_none() || (lacks_any && (is_silent || waited > after * 2))
    }
}

/// Terms above this one, and up to the floor of the next incarnation, may be promised while the own
/// super-leaf has this incarnation. A super-leaf that has come back 65,535 times asks for no more
/// promises.
fn floor(incarnation: u32) -> u32 {
    incarnation.min(u32::MAX >> TERM_BITS) << TERM_BITS
}

#[cfg(test)]
mod tests;
