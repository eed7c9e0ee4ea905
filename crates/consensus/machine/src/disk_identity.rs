//! Which disk a member has. A member that lost its disk has forgotten its votes.
//!
//! A replica with an empty log may be new, or it may have lost its disk. A replica that lost its
//! disk may have acknowledged an entry that only one other member has, or have promised a term. If
//! the replica voted again as if it had never voted, the group of the entry could end without the
//! entry. So a replica with an empty log first asks the other members of its super-leaf.
//!
//! ```text
//!   empty log: draw a disk number, write it
//!   replica ──GREET number──> every member: forgets the reports of the replica's earlier disk,
//!                             writes the number, answers
//!   replica <──KNOWN────────  count, what the member has decided in every group
//!
//!   every count is 1: no member ever knew another disk        => the replica votes
//!   otherwise: the replica LEARNS until it has more than its
//!   earlier disk can have promised                            => the replica votes
//!              its own group has ended, so it asks to come back under a new incarnation
//! ```
//!
//! - **A member counts the reports of one disk only.** Each STATUS names the disk of its sender. A
//!   STATUS of an earlier disk, late or doubled, is ignored.
//! - **A replica is new when every member says so.** An earlier disk voted only after every member
//!   had written its number. So one member that did not lose its own disk is enough to tell. The
//!   price is that a super-leaf begins when all its members have started once.
//! - **A replica that learns** stores entries, commits cycles and sends what it has. The replica
//!   sends no STATUS, proposes nothing, vouches for nobody, and does not count itself. The others
//!   suspect the replica and end its group, as if the replica were down.
//! - **What the earlier disk can have promised.** The earlier disk acknowledged only entries that
//!   their owner had. The earlier disk promised terms only to members that had promised these terms
//!   to themselves. All of this was on those members' disks before. So the replica waits until, for
//!   each group in the members' answers, the group has ended, or no member had promised a later
//!   term and the replica has all entries that any member had. A member answers after the member
//!   forgot the earlier disk.
//! - **The group of an owner that has left** may stay open, since a super-leaf that leaves ends no
//!   groups. The replica does not wait for the end of such a group, and never votes in it. Members
//!   that are behind may still need the group, and count votes of the earlier disk there. The
//!   replica has committed all cycles of the group, and sends them to these members.
//! - **The replica's own group** has to have ended, because the replica does not know its earlier
//!   proposals. The earlier disk may have asked to come back, and may have heard of the return
//!   before all others. So the replica proposes under later incarnations only, and gives up an
//!   earlier one.
//!
//! **Two members without their disks.** A member that learns is no witness. A super-leaf of three
//! in which two members lost their disks at once stalls for ever, because nobody knows what the
//! two have acknowledged. In a super-leaf of more than three, a replica without its disk waits
//! until all other members answer.
//!
//! **Old greetings.** A greeting has a count of disks. A member takes a new number only when the
//! count is the number of disks that the member has known. The member tells this number to a
//! replica that greets with another count. So a late greeting of an earlier disk changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use evenfall_core::{Malformed, NodeId, Prng, Reader, Timestamp};

use crate::canopus::{Canopus, Event};
use crate::config::SecondRound;
use crate::group::{DurableReport, NOBODY, OWNERS};
use crate::journal::{Effect, ReplicaRecord};
use crate::wire::{KnownDisk, ReplicaMessage};
use crate::{Config, ConsensusError};

/// The disk of a peer, as a replica knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerDisk {
    /// The number of the disk; 0 when the replica does not know it yet.
    pub number: u64,
    /// How many disks of the peer the replica has known. A replica that learned counts two, because
    /// it has forgotten whether there was an earlier disk.
    pub count: u32,
}

/// The record of disks in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskRecord {
    /// The node that writes this log.
    pub node: NodeId,
    /// The random number of this disk; never 0.
    pub number: u64,
    /// The length of write leases in all cycles of this log.
    pub lease_cycles: u64,
    /// The pipeline in all cycles of this log.
    pub pipeline: u64,
    /// What the second round is in all cycles of this log.
    pub second_round: SecondRound,
    /// Whether the reports of this disk count.
    pub votes: bool,
    /// The first incarnation under which this disk may propose.
    pub proposes_from: u32,
    /// The cycle from which the replica took part with this disk; 0 before, and for a replica that
    /// never lost a disk.
    pub since: u64,
    /// The first cycle of which an earlier disk of this replica has told nothing; 0 without an
    /// earlier disk. It matters only when a service outside decides who has vanished.
    pub fresh_from: u64,
    /// The disks of the other members.
    pub peers: BTreeMap<NodeId, PeerDisk>,
}

impl DiskRecord {
    /// The record of a new disk.
    pub(crate) fn new(node: NodeId, number: u64, config: &Config) -> Self {
        Self {
            node,
            number,
            lease_cycles: config.lease_cycles,
            pipeline: config.pipeline,
            second_round: config.second_round,
            votes: false,
            proposes_from: 0,
            since: 0,
            fresh_from: 0,
            peers: BTreeMap::new(),
        }
    }

    /// Node u32, number u64, lease cycles u64, pipeline u64, second round u8, votes u8, first
    /// incarnation u32, since u64, fresh from u64, count u8; then per peer: node u32, number u64,
    /// count u32.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.node.0.to_le_bytes());
        out.extend(self.number.to_le_bytes());
        out.extend(self.lease_cycles.to_le_bytes());
        out.extend(self.pipeline.to_le_bytes());
        out.extend([self.second_round.word(), u8::from(self.votes)]);
        out.extend(self.proposes_from.to_le_bytes());
        out.extend(self.since.to_le_bytes());
        out.extend(self.fresh_from.to_le_bytes());
        out.push(self.peers.len() as u8);
        for (node, disk) in &self.peers {
            out.extend(node.0.to_le_bytes());
            out.extend(disk.number.to_le_bytes());
            out.extend(disk.count.to_le_bytes());
        }
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (node, number, lease_cycles) = (NodeId(r.u32()?), r.u64()?, r.u64()?);
        let (pipeline, second_round, votes) = (r.u64()?, SecondRound::read(r)?, r.u8()? == 1);
        let (proposes_from, since) = (r.u32()?, r.u64()?);
        let (fresh_from, count) = (r.u64()?, r.u8()?);
        let mut peers = BTreeMap::new();
        for _ in 0..count {
            peers.insert(NodeId(r.u32()?), PeerDisk { number: r.u64()?, count: r.u32()? });
        }
        Ok(Self {
            node,
            number,
            lease_cycles,
            pipeline,
            second_round,
            votes,
            proposes_from,
            since,
            fresh_from,
            peers,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The number of the disk is not written yet.
    New,
    /// The members are asked.
    Asks,
    /// The members have answered, and the replica writes that it votes.
    Begins,
    /// The reports of this replica count.
    Votes,
}

/// The disks of a super-leaf, and what this replica has asked about its own disk.
#[derive(Debug)]
pub(crate) struct DiskIdentity {
    pub(crate) own: DiskRecord,
    phase: Phase,
    /// The peers whose numbers are on this replica's disk.
    written: BTreeSet<NodeId>,
    /// The counts of the peers that did not take the number of this disk.
    counts: BTreeMap<NodeId, u32>,
    /// The answers of the peers that took the number of this disk.
    answers: BTreeMap<NodeId, KnownDisk>,
    learns: bool,
    /// Whether [`Event::Counts`] was told.
    pub(crate) is_counted: bool,
}

impl DiskIdentity {
    pub(crate) fn new(node: NodeId, config: &Config, seed: u64) -> Self {
        // The number is odd, so it is not 0.
        let number = Prng::new(seed).fork(0x6469_736b).next_u64() | 1;
        Self {
            own: DiskRecord::new(node, number, config),
            phase: Phase::New,
            written: BTreeSet::new(),
            counts: BTreeMap::new(),
            answers: BTreeMap::new(),
            learns: false,
            is_counted: false,
        }
    }

    /// Takes over what the log says.
    pub(crate) fn restore(&mut self, disk: DiskRecord) -> Result<(), ConsensusError> {
        if disk.node != self.own.node {
            return Err(ConsensusError::OtherNode(disk.node));
        }
        let (log, given) = (disk.lease_cycles, self.own.lease_cycles);
        if log != given {
            return Err(ConsensusError::OtherLeases { log, given });
        }
        let (log, given) = (disk.pipeline, self.own.pipeline);
        if log != given {
            return Err(ConsensusError::OtherPipeline { log, given });
        }
        if disk.second_round != self.own.second_round {
            return Err(ConsensusError::OtherRounds(disk.second_round));
        }
        self.phase = if disk.votes { Phase::Votes } else { Phase::Asks };
        self.written = disk.peers.keys().copied().collect();
        self.own = disk;
        Ok(())
    }

    /// Whether the number of the disk is not on the disk yet.
    pub(crate) fn is_new(&self) -> bool {
        self.phase == Phase::New
    }

    pub(crate) fn votes(&self) -> bool {
        self.phase == Phase::Votes
    }

    /// Whether a peer's reports under this number count.
    pub(crate) fn knows(&self, peer: NodeId, number: u64) -> bool {
        self.own.peers.get(&peer).is_some_and(|disk| disk.number == number)
    }

    /// Whether this replica may start cycles. A replica that does not know yet whether it is new
    /// starts none, because it would have to propose in the cycles if it is.
    pub(crate) fn may_start(&self) -> bool {
        self.votes() || self.learns
    }

    pub(crate) fn may_propose(&self, incarnation: u32) -> bool {
        self.votes() && incarnation >= self.own.proposes_from
    }
}

impl Canopus {
    pub(crate) fn record_disk(&mut self, effects: impl IntoIterator<Item = Effect>) {
        let record = ReplicaRecord::Disk(self.disk.own.clone());
        self.record(&record, effects);
    }

    /// The number of this disk is written, so the members may be asked.
    pub(crate) fn number_written(&mut self) {
        self.disk.phase = Phase::Asks;
        self.greet_all();
    }

    /// Asks the members, while this replica waits for their answers.
    pub(crate) fn greet_all(&mut self) {
        if self.disk.phase == Phase::Asks {
            let peers: Vec<NodeId> = self.peers.keys().copied().collect();
            peers.into_iter().for_each(|peer| self.greet(peer));
            let remote =
                self.others.nodes.keys().copied().filter(|_| self.config.second_round.is_on());
            remote.collect::<Vec<_>>().into_iter().for_each(|node| self.greet(node));
            self.consider_voting();
        }
    }

    /// The members of the super-leaf whose answers this replica needs before it votes.
    pub fn awaited(&self) -> Vec<NodeId> {
        let is_awaited = |peer: &NodeId| !self.disk.answers.contains_key(peer);
        let peers = self.peers.keys().copied().filter(is_awaited);
        if self.disk.votes() { Vec::new() } else { peers.collect() }
    }

    fn greet(&mut self, peer: NodeId) {
        let count = self.disk.counts.get(&peer).copied().unwrap_or(0);
        self.send(peer, &ReplicaMessage::Greet(self.disk.own.number, count));
    }

    pub(crate) fn take_greeting(&mut self, from: NodeId, number: u64, count: u32) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return self.take_remote_greeting(from, number);
        };
        if self.disk.is_new() || number == 0 {
            return;
        }
        peer.learns = true;
        let known = self.disk.own.peers.get(&from).copied().unwrap_or_default();
        if known.number == number {
            return self.answer_written(from, number);
        }
        if known.count != count {
            return self.send(from, &ReplicaMessage::Known(self.known(number, known.count, false)));
        }
        // The peer has to learn again what its earlier disk had.
        (peer.committed, peer.oldest) = (0, 0);
        self.disk.answers.remove(&from);
        for (owner, group) in &mut self.groups {
            group.forget_reports(from, *owner);
        }
        self.note_disk(from, PeerDisk { number, count: count.saturating_add(1) });
        self.greet_back(from);
    }

    /// Greets a node that has just greeted. The node may have ignored the first greeting, because
    /// its number was not written.
    pub(crate) fn greet_back(&mut self, from: NodeId) {
        if self.disk.phase == Phase::Asks {
            self.greet(from);
        }
    }

    /// Writes the number of a node's disk, and then answers the node.
    pub(crate) fn note_disk(&mut self, from: NodeId, disk: PeerDisk) {
        self.disk.own.peers.insert(from, disk);
        self.disk.written.remove(&from);
        self.record_disk([Effect::Answer(from, disk.number)]);
    }

    /// Answers a node when its number is written.
    pub(crate) fn answer_written(&mut self, from: NodeId, number: u64) {
        if self.disk.written.contains(&from) {
            self.answer(from, number);
        }
    }

    /// Tells a node that this number is on this replica's disk.
    pub(crate) fn answer(&mut self, peer: NodeId, number: u64) {
        let disk = self.disk.own.peers.get(&peer).filter(|disk| disk.number == number);
        if let Some(disk) = disk {
            let known = self.known(number, disk.count, true);
            self.disk.written.insert(peer);
            self.send(peer, &ReplicaMessage::Known(known));
        }
    }

    pub(crate) fn known(&self, asked: u64, count: u32, knows: bool) -> KnownDisk {
        let own = &self.disk.own;
        let groups = if knows { self.known_reports() } else { Vec::new() };
        let (disk, votes) = (own.number, self.disk.votes());
        let is_first = votes && own.proposes_from == 0;
        KnownDisk { asked, disk, knows, votes, is_first, count, groups }
    }

    pub(crate) fn take_known(&mut self, from: NodeId, known: KnownDisk) {
        let is_due = known.asked == self.disk.own.number && self.disk.phase == Phase::Asks;
        if let Some(remote) = self.others.nodes.get_mut(&from).filter(|_| is_due) {
            remote.knows = Some(known.knows);
            return self.consider_voting();
        }
        if !is_due || !self.peers.contains_key(&from) {
            return;
        }
        if !known.knows {
            self.disk.counts.insert(from, known.count);
            return self.greet(from);
        }
        if known.count > 1 && !core::mem::replace(&mut self.disk.learns, true) {
            self.events.push_back(Event::Learns);
            for peer in self.peers.keys() {
                let unknown = PeerDisk { number: 0, count: 2 };
                self.disk.own.peers.entry(*peer).or_insert(unknown);
            }
        }
        let disk = self.disk.own.peers.entry(from).or_insert(PeerDisk { number: 0, count: 1 });
        if disk.number == 0 {
            disk.number = known.disk;
            self.record_disk([Effect::Answer(from, known.disk)]);
        } else if disk.number != known.disk {
            return;
        }
        // The first answer tells all that the earlier disk can have promised.
        let first = self.disk.answers.get(&from);
        if first.is_none_or(|first| !first.votes) {
            self.disk.answers.insert(from, known);
        }
        self.consider_voting();
    }

    /// Begins to vote when the members have answered, and when this replica has learned enough.
    pub(crate) fn consider_voting(&mut self) {
        if self.disk.phase != Phase::Asks {
            return;
        }
        let has_begun = self.is_new_leaf() == Some(false);
        if has_begun && !core::mem::replace(&mut self.disk.learns, true) {
            self.events.push_back(Event::Learns);
        }
        let Some(proposes_from) = self.may_vote() else { return };
        self.disk.phase = Phase::Begins;
        self.disk.own.votes = true;
        self.disk.own.proposes_from = proposes_from;
        if proposes_from > 0 && self.is_external() {
            self.disk.own.fresh_from = self.fresh_from();
        }
        let reports = self.groups.iter();
        let reports = reports.map(|(owner, g)| Effect::Report(*owner, g.incarnation(), g.mine()));
        let effects: Vec<Effect> = [Effect::Vote].into_iter().chain(reports).collect();
        self.record_disk(effects);
    }

    /// The first incarnation under which this replica may propose, when it may vote.
    fn may_vote(&self) -> Option<u32> {
        let answers = self.peers.keys().map(|peer| self.disk.answers.get(peer));
        let answers = answers.collect::<Option<Vec<&KnownDisk>>>()?;
        if answers.iter().all(|known| known.count == 1) {
            let is_new = answers.iter().any(|known| known.is_first) || self.is_new_leaf()?;
            // Members that have brought the super-leaf back meanwhile never knew an earlier disk of
            // this replica, so that it voted only in groups from before.
            match if is_new { Some(0) } else { self.returns_as() } {
                None if self.is_leaf_in() => {}
                first => return first,
            }
        }
        if !answers.iter().all(|known| known.votes) {
            return None;
        }
        let mut proposes_from = 0;
        for (owner, group) in self.groups.range(..OWNERS) {
            let told = answers.iter().flat_map(|known| &known.groups);
            let told = told.filter(|(of, ..)| of == owner);
            let latest = told.clone().map(|(_, incarnation, _)| *incarnation).max()?;
            let reports: Vec<&DurableReport> =
                told.filter(|(_, i, _)| *i == latest).map(|t| &t.2).collect();
            if *owner == self.me {
                proposes_from = latest.saturating_add(2);
            }
            let is_it = group.incarnation() == latest;
            // An owner that has left takes part in no cycle that is open. Until then, its group may
            // go on: a super-leaf that leaves as planned ends no groups.
            let next = self.table.next_in(*owner, self.progress.committed + 1);
            let has_left = next.is_some_and(|next| next > latest);
            let has_ended =
                has_left || group.incarnation() > latest || (is_it && group.is_closed());
            let is_loyal = reports.iter().all(|report| report.promised.0 == 0);
            let has_all = reports.iter().all(|report| group.mine().have >= report.next);
            let is_safe = is_it && *owner != self.me && is_loyal && has_all;
            if !has_ended && !is_safe {
                return None;
            }
        }
        Some(proposes_from)
    }

    /// The record that this replica votes is on the disk.
    pub(crate) fn vote(&mut self, now: Timestamp) {
        self.disk.phase = Phase::Votes;
        self.disk.answers.clear();
        self.peers.values_mut().for_each(|peer| peer.heard = now);
        self.beat.status_due = true;
        if self.disk.learns {
            self.events.push_back(Event::Learned);
        }
    }

    /// Gives up this replica's group when an earlier disk may have proposed in it.
    pub(crate) fn give_up_earlier(&mut self) {
        let me = self.me;
        if let Some(own) = self.groups.get_mut(&me)
            && own.is_open()
            && own.incarnation() < self.disk.own.proposes_from
        {
            let term = own.new_term();
            own.promise(term, NOBODY);
            self.write_promise(me);
        }
    }
}

#[cfg(test)]
mod tests;
