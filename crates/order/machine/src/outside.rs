//! Membership from outside (section 4.7.1): all super-leaves but one may vanish.
//!
//! With [`SecondRound::Outside`] a membership service that all can reach, such as etcd, has a list
//! of the super-leaves that have vanished. Each super-leaf has a group over all nodes, as with
//! consensus in the second round (see [`second`](crate::second)), and the groups end in another
//! way:
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
//! - **Who is no longer needed is read from the list alone.** A committed cycle and a checkpoint
//!   also tell that a group has ended, but not what was decided before, so they take no super-leaf
//!   out of the count.
//! - **A promise holds as long as the super-leaf of the node takes part under one incarnation.** A
//!   super-leaf that came back decides nothing with promises from before. The upper half of a term
//!   is the incarnation.
//! - **The node waits until the other super-leaves that it hears have the last states of X.** If
//!   the one super-leaf that has these states vanishes as well before the others have them, all
//!   wait until one of the two is back.
//! - **A super-leaf that reaches the others, but not the service**, learns committed cycles from
//!   the others. Super-leaves that reach each other need no service, until one of them has promised
//!   in a moment of silence.
//! - **The service must not forget.** A replica refuses a list that lacks what the replica has read
//!   before.
//!
//! The owner of a replica reads and changes the list: see [`Canopus::outside`] and
//! [`Canopus::outside_wanted`].
//!
//! # Known faults
//!
//! A reader found these. Each needs several things at once, and none is mended.
//!
//! - A restart from a compacted log forgets votes that followed a voided promise, because the log
//!   does not have the group's floor.
//! - A node may decide an end for which its table is too old, because it stores states up to two
//!   pipelines ahead.
//! - With five super-leaves or more, one that lost all its disks may count as new although a single
//!   other one has gone on without it.
//! - The list is not in the log. A replica that restarts after the service lost its list does not
//!   notice.
//! - Terms of other super-leaves raise those of the own one, so that a promise may outlive its
//!   incarnation, and cycles wait.
//! - A node waits for the states of super-leaves that only greet, because they lost their disks.
//! - A node that asked for promises votes for no later state, even when nobody promised.
//! - A super-leaf may be taken out although it only waits for another one, when the service was
//!   away for long.

use core::time::Duration;
use std::collections::BTreeMap;

use bytes::Bytes;
use evenfall_core::{Malformed, NodeId, Reader, Timestamp};

use crate::canopus::Canopus;
use crate::config::SecondRound;
use crate::group::{Group, OWNERS, Part, Report, owner_of};
use crate::{Change, OrderError, Reason, VnodeId};

/// Ends of one super-leaf that the list remembers. A replica that needs an earlier one learns the
/// cycle from others.
const ENDS_PER_LEAF: usize = 16;
/// The first bytes of a list.
const MAGIC: [u8; 4] = *b"EFM1";
/// Pipelines that an earlier disk of a replica can have been ahead of what the replica knows.
const LEAD: u64 = 6;
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
        for _ in 0..r.u16()? {
            list.ends.insert((VnodeId(r.u16()?), r.u32()?), r.u64()?);
        }
        r.finish()?;
        Ok(list)
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

/// Bytes that are a list are encoded and read as an equal list.
pub(crate) fn check(bytes: &[u8]) {
    if let Ok(list) = Ends::decode(bytes) {
        assert_eq!(Ends::decode(&list.encode()), Ok(list));
    }
}

/// What a replica knows of the service.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    ends: Option<Ends>,
    heard: Timestamp,
    /// While the own super-leaf is out: the last cycle that was committed when a majority of it
    /// lived.
    ready: Option<u64>,
}

/// A change of the list: the service has to replace `old`, or nothing, by `new`, and to change
/// nothing when it has something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The bytes of the list that this replica knows; `None` when there is no list.
    pub old: Option<Bytes>,
    /// The bytes of the list with one more end.
    pub new: Bytes,
}

impl Canopus {
    /// Whether a service outside decides who has vanished.
    pub(crate) fn is_outside(&self) -> bool {
        self.config.second_round == SecondRound::Outside
    }

    /// Takes the list that the service outside has; `None` when it has none. The owner reads the
    /// list several times in [`Config::vanish_after`](crate::Config::vanish_after), and after every
    /// attempt to change it. A list that is older than one that was read before is ignored.
    ///
    /// # Errors
    /// [`OrderError::Outside`] when the list is of another cluster or lacks what an earlier list
    /// had. The replica goes on with the earlier list.
    pub fn outside(&mut self, now: Timestamp, bytes: Option<&Bytes>) -> Result<(), OrderError> {
        let read = match bytes {
            None => Ends::new(self.digest),
            Some(bytes) => {
                let ends = Ends::decode(bytes);
                ends.map_err(|_| OrderError::Outside("cannot be read"))?
            }
        };
        if read.cluster != self.digest {
            return Err(OrderError::Outside("is of another cluster, or of other settings"));
        }
        if let Some(known) = &self.outside.ends {
            if read.version < known.version {
                return Ok(());
            }
            if !read.continues(known) {
                return Err(OrderError::Outside("lacks what it had before"));
            }
        }
        (self.outside.ends, self.outside.heard) = (Some(read), now);
        self.end_groups();
        self.advance(now);
        Ok(())
    }

    /// The change of the list that this replica asks for; `None` when there is none. It stays until
    /// a list that is read makes it needless, so that the owner may try again and again.
    pub fn outside_wanted(&self) -> Option<Wanted> {
        let ends = self.outside.ends.as_ref()?;
        let mut others = self.leaves().filter(|leaf| *leaf != self.ancestors[0]);
        let new = others.find_map(|leaf| {
            let (incarnation, end) = self.decided(ends, leaf)?;
            Some(ends.with(leaf, incarnation, end).encode())
        })?;
        // The service has no list before the first change.
        Some(Wanted { old: (ends.version > 0).then(|| ends.encode()), new })
    }

    /// The incarnation and the end of a super-leaf that this replica may put on the list: a
    /// majority of its own super-leaf promised it to write no later state, and is itself needed for
    /// the first cycle without the other super-leaf.
    fn decided(&self, ends: &Ends, leaf: VnodeId) -> Option<(u32, u64)> {
        let owner = owner_of(leaf);
        let group = self.groups.get(&owner).filter(|_| self.is_elector(owner))?;
        let (term, end) = group.won(self.me)?;
        let incarnation = group.incarnation();
        let own = self.table.leaf_incarnation(self.ancestors[0], end)?;
        let may = ends.said(self.ancestors[0], own) == Said::Nothing
            && ends.said(leaf, incarnation) == Said::Nothing
            && term >= floor(own)
            && self.table.leaf_incarnation(leaf, end) == Some(incarnation)
            && self.others_have(ends, leaf, group, end);
        may.then_some((incarnation, end))
    }

    /// Whether each other super-leaf that this replica heard lately has all states of `leaf` before
    /// the cycle `end`.
    fn others_have(&self, ends: &Ends, leaf: VnodeId, group: &Group, end: u64) -> bool {
        let now = self.tick_at.unwrap_or(Timestamp::ZERO);
        let mut racks = self.leaves().zip(&self.racks).filter(|(other, _)| *other != leaf);
        racks.all(|(other, rack)| {
            let incarnation = self.table.leaf_incarnation(other, end);
            incarnation.is_none_or(|incarnation| ends.said(other, incarnation) != Said::Nothing)
                || !self.is_heard(now, rack, self.config.vanish_after / 2)
                || group.has_majority(rack, end - 1, |report| report.have)
        })
    }

    /// Whether a majority of these nodes was heard within this time.
    fn is_heard(&self, now: Timestamp, rack: &[NodeId], within: Duration) -> bool {
        let is_heard = |node: &&NodeId| self.heard_within(now, **node, within);
        rack.iter().filter(is_heard).count() > rack.len() / 2
    }

    /// Whether the service was heard lately. Promises about a super-leaf are of no use otherwise.
    pub(crate) fn hears_outside(&self, now: Timestamp) -> bool {
        let heard = self.outside.heard;
        self.outside.ends.is_some() && now.since(heard) < self.config.vanish_after
    }

    /// What a super-leaf's part in a cycle is, by the list and by what all super-leaves have
    /// written.
    pub(crate) fn part_outside<'a>(&'a self, group: &'a Group, cycle: u64) -> Part<'a> {
        if group.is_closed() {
            return group.part(cycle);
        }
        let Some(entry) = group.entry(cycle) else { return Part::Open };
        let mut racks = self.leaves().zip(&self.racks);
        let wrote = racks.all(|(other, rack)| {
            let Some(incarnation) = self.table.leaf_incarnation(other, cycle) else { return true };
            match self.said(other, incarnation) {
                Said::Nothing => group.has_majority(rack, cycle, |report| report.next),
                Said::End(_) => true,
                Said::Forgotten => false,
            }
        });
        if wrote { Part::Proposed(entry) } else { Part::Open }
    }

    fn said(&self, leaf: VnodeId, incarnation: u32) -> Said {
        let ends = self.outside.ends.as_ref();
        ends.map_or(Said::Nothing, |ends| ends.said(leaf, incarnation))
    }

    /// Ends the groups that the list ends, and voids promises that were made before the own
    /// super-leaf came back.
    pub(crate) fn end_groups(&mut self) {
        if !self.is_outside() {
            return;
        }
        let own = self.table.leaf_incarnation(self.ancestors[0], self.committed + 1);
        for leaf in self.tree.leaves().map(|(leaf, _)| leaf) {
            let Some(group) = self.groups.get_mut(&owner_of(leaf)) else { continue };
            let ends = self.outside.ends.as_ref();
            let said = ends.map(|ends| ends.said(leaf, group.incarnation()));
            if let Some(Said::End(end)) = said {
                group.end(end);
            }
            if let Some(own) = own {
                group.void_promises(floor(own));
            }
        }
    }

    /// A cycle is without some super-leaves. Their groups have ended before it, so that this
    /// replica never tells that it has their states of this cycle or later ones.
    pub(crate) fn end_vanished(&mut self, cycle: u64, changes: &[Change]) {
        for change in changes {
            if let Change::Retire(leaf, incarnation, Reason::Vanished) = change {
                self.end_group(*leaf, *incarnation, cycle);
            }
        }
    }

    /// A committed cycle, or a checkpoint, tells that the group of a super-leaf has ended.
    pub(crate) fn end_group(&mut self, leaf: VnodeId, incarnation: u32, end: u64) {
        if self.is_outside()
            && let Some(group) = self.group(owner_of(leaf), incarnation)
            && group.ended().is_none()
        {
            group.end(end);
        }
    }

    /// The ends of groups that this replica knows, for a checkpoint.
    pub(crate) fn known_ends(&self) -> Vec<(VnodeId, u32, u64)> {
        let leaves = self.leaves().filter(|_| self.is_outside());
        let end = |leaf| {
            let group = self.groups.get(&owner_of(leaf))?;
            Some((leaf, group.incarnation(), group.ended()?))
        };
        leaves.filter_map(end).collect()
    }

    /// Whether this replica may promise another node something about a super-leaf: the node is of
    /// its own super-leaf, and asks about another one.
    pub(crate) fn may_promise(&self, leaf: VnodeId, to: NodeId) -> bool {
        self.peers.contains_key(&to) && leaf != self.ancestors[0]
    }

    /// The first cycle of which an earlier disk of this replica has told nothing. The earlier disk
    /// was at most two pipelines ahead of any super-leaf whose votes it needed, and told of states
    /// two further pipelines ahead.
    pub(crate) fn fresh_from(&self) -> u64 {
        let own = self.groups.range(..OWNERS).map(|(_, group)| group.mine().have);
        own.fold(self.committed, u64::max) + LEAD * self.config.pipeline
    }

    /// Whether the own super-leaf takes part, or may come back now. With a service outside,
    /// replicas that lost their disks vote only in cycles of which their earlier disks have told
    /// nothing, and a super-leaf of which most do not vote would hold up all others.
    pub(crate) fn is_ready(&mut self) -> bool {
        let disks = &self.disks.own;
        let has_lost = disks.fresh_from > 0 || disks.peers.values().any(|disk| disk.count > 1);
        let (is_in, may_return) = (self.is_leaf_in(), self.may_return());
        if is_in || !may_return || !self.is_outside() || !has_lost {
            self.outside.ready = None;
            return is_in || may_return;
        }
        let peers = self.peers.values().map(|peer| peer.committed);
        let latest = peers.fold(self.committed, u64::max);
        let ready = *self.outside.ready.get_or_insert(latest);
        // Peers may have had entries two pipelines ahead.
        self.committed >= ready + (LEAD + 2) * self.config.pipeline
    }

    /// Whether this replica asks its super-leaf for promises about another one.
    pub(crate) fn asks_to_end(&self, now: Timestamp, leaf: VnodeId) -> bool {
        let owner = owner_of(leaf);
        let has_won = self.groups.get(&owner).is_some_and(|group| group.won(self.me).is_some());
        // Promises without an end would hold up this super-leaf's own part.
        let ends = self.is_blamed(now, leaf, self.config.vanish_after) || self.is_ending(owner);
        let may = leaf != self.ancestors[0] && self.is_elector(owner) && self.hears_outside(now);
        ends && may && !has_won
    }

    /// Whether the next cycle has waited for longer than this, and another super-leaf is to blame:
    /// its state is missing, or it does not tell that it has the states of the others.
    pub(crate) fn is_blamed(&self, now: Timestamp, leaf: VnodeId, after: Duration) -> bool {
        let cycle = self.committed + 1;
        let started = self.cycles.get(&cycle).filter(|_| cycle <= self.started);
        let Some(waited) = started.map(|started| now.since(started.started_at)) else {
            return false;
        };
        let is_in = self.table.leaf_incarnation(leaf, cycle);
        let group = self.groups.get(&owner_of(leaf));
        let group = group.filter(|group| Some(group.incarnation()) == is_in && !group.is_closed());
        let place = self.leaves().position(|other| other == leaf);
        let (Some(group), Some(place)) = (group, place) else { return false };
        if leaf == self.ancestors[0] || waited <= after {
            return false;
        }
        let rack = &self.racks[place];
        let lacks = |group: &Group| {
            let next = |report: &Report| report.next;
            !group.is_closed() && !group.has_majority(rack, cycle, next)
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

/// Terms from this one on may be promised while the own super-leaf has this incarnation.
fn floor(incarnation: u32) -> u32 {
    incarnation.min(u32::MAX >> TERM_BITS) << TERM_BITS
}

#[cfg(test)]
mod tests;
