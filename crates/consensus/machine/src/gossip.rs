//! The messages inside a super-leaf: reports, missing entries, suspicion, the ends of groups, and
//! the return of nodes.

use core::time::Duration;

use evenfall_core::{NodeId, Timestamp};

use crate::canopus::{Canopus, Event, Peer};
use crate::config::UNWRITTEN_BYTES_MAX;
use crate::cycles::PATIENCE;
use crate::group::{DurableReport, NOBODY, OWNERS, leaf_of};
use crate::journal::{Effect, ReplicaRecord};
use crate::wire::{ReplicaMessage, Status};
use crate::{Proposal, VnodeId};

/// Pipelines of cycles that a peer may be behind when it is taken back. Two are enough: the peer
/// learns of a cycle within the time of one pipeline, and its status is under way for another.
const JOIN_LAG: u64 = 2;

impl Canopus {
    /// The status that this replica sends to its peers.
    pub fn status(&self) -> Status {
        Status {
            disk: self.disk.own.number,
            started: self.progress.started,
            committed: self.progress.committed,
            oldest: self.oldest(),
            leaves: self.is_leaving,
            groups: self.reports(NodeId(0)),
        }
    }

    /// What this replica has on its disk of the groups of all owners from this name on.
    pub(crate) fn reports(&self, from: NodeId) -> Vec<(NodeId, u32, DurableReport)> {
        let groups = self.groups.range(from..);
        let counts = |owner: NodeId| match leaf_of(owner) {
            None => !self.is_left(owner),
            Some(_) => self.is_elector(owner),
        };
        let groups = groups.filter(|(owner, _)| counts(**owner));
        groups.map(|(owner, g)| (*owner, g.incarnation(), g.durable(self.me))).collect()
    }

    /// As [`reports`](Self::reports), for a node that lost its disk. A group in which this replica
    /// does not vote, because it once lost its own, counts as one with a promise: the node must not
    /// take the group for one without.
    pub(crate) fn known_reports(&self) -> Vec<(NodeId, u32, DurableReport)> {
        let left = self.groups.range(..OWNERS).filter(|(owner, _)| self.is_left(**owner));
        let left = left.map(|(owner, g)| {
            let report = g.durable(self.me);
            let promised = (report.promised.0.max(1), NOBODY);
            (*owner, g.incarnation(), DurableReport { promised, ..report })
        });
        self.reports(NodeId(0)).into_iter().chain(left).collect()
    }

    pub(crate) fn take_status(&mut self, now: Timestamp, from: NodeId, status: &Status) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if !self.disk.knows(from, status.disk) {
            return;
        }
        peer.learns = false;
        peer.heard = now;
        peer.committed = peer.committed.max(status.committed);
        peer.oldest = status.oldest;
        peer.leaves = status.leaves;
        // A peer's status makes this replica start at most as many cycles as the replica keeps for
        // its peers.
        self.progress.seen =
            self.progress.seen.max(status.started.min(self.progress.started + self.config.history));
        if self.is_external() {
            for (owner, group) in self.groups.range_mut(OWNERS..) {
                let is_it = |(of, under, _): &(NodeId, u32, DurableReport)| {
                    (of, *under) == (owner, group.incarnation())
                };
                group.set_mute(from, !status.groups.iter().any(is_it));
            }
        }
        self.take_reports(now, from, status.groups.iter());
    }

    /// Takes what a node has on its disk of some groups.
    pub(crate) fn take_reports<'a>(
        &mut self,
        now: Timestamp,
        from: NodeId,
        reports: impl Iterator<Item = &'a (NodeId, u32, DurableReport)>,
    ) {
        for (owner, incarnation, report) in reports {
            let Some(group) = self.group(*owner, *incarnation) else { continue };
            group.hear(from, report);
            if self.is_elector(*owner) {
                self.consider(now, from, *owner, report);
            }
        }
        self.decide();
    }

    /// Answers a peer's report about a group: accepts the end that the report has, or promises the
    /// term that the peer asks for.
    fn consider(&mut self, now: Timestamp, from: NodeId, owner: NodeId, report: &DurableReport) {
        let is_heard = match leaf_of(owner) {
            // Each super-leaf promises among its own nodes.
            Some(leaf) if self.is_external() && !self.may_promise(leaf, from, report) => return,
            Some(leaf) if self.is_external() => {
                !self.is_blamed(now, leaf, self.config.vanish_after / 2)
            }
            Some(leaf) => !self.is_overdue(now, leaf, self.config.vanish_after / 2),
            None => owner != from && owner != self.me && !self.is_quiet(owner),
        };
        let ends = self.is_ending(owner);
        let is_bound = owner != from && self.is_bound(now, owner);
        let me = self.me;
        let Some(group) = self.groups.get_mut(&owner) else { return };
        if let Some((term, end)) = group.may_accept(report) {
            group.accept(term, end);
            return self.write_end(owner, term, end);
        }
        if me < from && group.is_split(me, from, report) {
            // One of the two asks again at its next heartbeat, and the other after its wait. If
            // both waited, they could ask at the same heartbeat once more.
            self.beat.next_campaign.insert(owner, now);
        }
        let asks = report.promised.1 == from && group.may_promise(report);
        // A member that still hears the owner does not help to end the owner's group, unless the
        // group cannot go on anyway.
        if asks && !is_bound && (!is_heard || ends) {
            group.promise(report.promised.0, from);
            self.write_promise(owner);
        }
    }

    pub(crate) fn is_ending(&self, owner: NodeId) -> bool {
        let lives = |node| node == self.me || !self.is_quiet(node);
        self.groups.get(&owner).is_some_and(|group| group.is_ending(owner, lives))
    }

    pub(crate) fn write_promise(&mut self, owner: NodeId) {
        let Some(group) = self.groups.get(&owner) else { return };
        let (incarnation, mine) = (group.incarnation(), group.mine());
        let record = ReplicaRecord::Promise(owner, incarnation, mine.promised.0, mine.promised.1);
        self.record(&record, [Effect::Report(owner, incarnation, mine)]);
    }

    fn write_end(&mut self, owner: NodeId, term: u32, end: u64) {
        let Some(group) = self.groups.get(&owner) else { return };
        let (incarnation, mine) = (group.incarnation(), group.mine());
        let record = ReplicaRecord::End(owner, incarnation, term, end);
        self.record(&record, [Effect::Report(owner, incarnation, mine)]);
    }

    /// Ends the groups whose leader this replica has become.
    pub(crate) fn decide(&mut self) {
        if !self.disk.votes() {
            return;
        }
        let me = self.me;
        let won: Vec<_> = self
            .groups
            .iter()
            .filter(|(owner, _)| self.is_elector(**owner))
            .filter(|(owner, _)| **owner < OWNERS || !self.is_external())
            .filter_map(|(owner, group)| Some((*owner, group.won(me)?)))
            .collect();
        for (owner, (term, end)) in won {
            if let Some(group) = self.groups.get_mut(&owner) {
                group.accept(term, end);
                self.write_end(owner, term, end);
            }
        }
    }

    pub(crate) fn take_entry(&mut self, proposal: Proposal) {
        let (owner, cycle) = (proposal.set.node, proposal.cycle);
        if !self.peers.contains_key(&owner) {
            return;
        }
        let incarnation = proposal.set.incarnation;
        let Some(group) = self.group(owner, incarnation) else { return };
        let have = group.mine().have;
        if self.journal.unwritten() > UNWRITTEN_BYTES_MAX {
            // The disk is slow. This replica asks for the entry again with its next heartbeat.
        } else if cycle > have && self.may_come_early(have, cycle) {
            self.early.insert((owner, cycle), proposal);
        } else if self.store(proposal) {
            let mut next = cycle + 1;
            while let Some(proposal) = self.early.remove(&(owner, next)) {
                if proposal.set.incarnation != incarnation || !self.store(proposal) {
                    break;
                }
                next += 1;
            }
        }
    }

    /// Whether nothing was heard of a peer for as long as it takes to suspect it.
    pub(crate) fn is_silent(&self, now: Timestamp, node: NodeId) -> bool {
        let peer = self.peers.get(&node);
        peer.is_some_and(|peer| now.since(peer.heard) > self.config.suspect_after)
    }

    /// Whether a peer was not heard for half that time, at the last tick.
    fn is_quiet(&self, node: NodeId) -> bool {
        let now = self.beat.tick_at.unwrap_or(Timestamp::ZERO);
        let peer = self.peers.get(&node);
        peer.is_some_and(|peer| now.since(peer.heard) > self.config.suspect_after / 2)
    }

    /// A heartbeat: a sign of life, and a look at what is missing.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        self.beat.ticks += 1;
        self.beat.status_due = true;
        self.others.ballots_due = self.config.second_round.is_on();
        self.others.told.clear();
        self.want();
        if self.disk.votes() {
            self.give_up_earlier();
            self.ask_to_vouch(now);
            self.campaign(now);
        } else {
            self.greet_all();
        }
        for cycle in self.progress.committed + 1..=self.progress.started {
            self.fetch(now, cycle);
        }
        self.catch_up(now);
        if self.table.latest(self.me).is_none() && self.disk.votes() {
            self.come_back();
        }
        // A slow disk may have put this off.
        self.store_all_states();
        self.events.extend(self.wanted_change().map(Event::ExternalChangeWanted));
        self.tidy();
    }

    /// Asks for entries that others have and this replica lacks.
    fn want(&mut self) {
        let turn = self.beat.ticks as usize;
        let wants: Vec<_> = self
            .groups
            .iter()
            .filter(|(owner, _)| **owner != self.me && **owner < OWNERS)
            .filter_map(|(owner, group)| {
                let source = group.source(group.mine().have, turn);
                let source = source.filter(|source| *source != self.me)?;
                Some((source, ReplicaMessage::Want(*owner, group.incarnation(), group.mine().have)))
            })
            .collect();
        for (source, want) in wants {
            self.send(source, &want);
        }
    }

    /// Asks for promises, in order to end the groups of silent members, and the groups whose end
    /// another member began and did not complete.
    fn campaign(&mut self, now: Timestamp) {
        let owners: Vec<NodeId> = self.groups.keys().copied().collect();
        for owner in owners {
            let Some(group) = self.groups.get(&owner) else { continue };
            if group.is_closed() {
                self.beat.next_campaign.remove(&owner);
                continue;
            }
            let (ends, patience) = match leaf_of(owner) {
                None => {
                    let leaves = owner == self.me && self.is_leaving;
                    let ends = leaves || self.is_ending(owner) || self.is_silent(now, owner);
                    (ends, self.config.suspect_after)
                }
                Some(leaf) if self.is_external() => {
                    (self.asks_to_end(now, leaf), self.config.vanish_after)
                }
                Some(leaf) => {
                    let patience = self.config.vanish_after;
                    let ends = self.is_overdue(now, leaf, patience)
                        && self.is_elector(owner)
                        && self.hears_majority(now, owner);
                    (ends, patience)
                }
            };
            if !ends {
                self.beat.next_campaign.remove(&owner);
                continue;
            }
            if self.is_bound(now, owner) {
                continue;
            }
            let wait = patience.as_nanos() as u64;
            // At a random time, so that two members rarely take each other's promises away (as in
            // Raft, section 5.2).
            let next = now + Duration::from_nanos(self.prng.below(wait + 1));
            let due = *self.beat.next_campaign.entry(owner).or_insert(next);
            if now < due {
                continue;
            }
            self.beat.next_campaign.insert(owner, next + patience);
            let me = self.me;
            if let Some(group) = self.groups.get_mut(&owner) {
                let term = group.new_term();
                group.promise(term, me);
                self.write_promise(owner);
            }
        }
    }

    /// Asks for cycles that others have committed and this replica has not. A peer that is silent
    /// is not asked: it may be down. Cycles that the silent peer once had would hide that all other
    /// peers have forgotten them, and that a checkpoint is needed.
    fn catch_up(&mut self, now: Timestamp) {
        let next = self.progress.committed + 1;
        let is_ahead = |(node, peer): (&NodeId, &Peer)| {
            let answers = peer.committed >= next && !self.is_silent(now, *node);
            answers.then_some((*node, peer.committed, peer.oldest))
        };
        let ahead: Vec<(NodeId, u64, u64)> = self.peers.iter().filter_map(is_ahead).collect();
        if ahead.is_empty() {
            // The whole super-leaf may be behind, and the other super-leaves may have forgotten
            // what it needs.
            if let Some((from, _)) = self.checkpoint.forgotten.filter(|(_, cycle)| *cycle >= next) {
                self.fall_back(now, next, from);
            } else if let Some((to, most)) = self.far_ahead(next, self.beat.ticks as usize) {
                self.ask_far(now, to, most);
            }
            return;
        }
        let turn = self.beat.ticks as usize;
        let near: Vec<_> = ahead.iter().filter(|(.., oldest)| *oldest <= next).collect();
        if near.is_empty() {
            return self.fall_back(now, next, ahead[turn % ahead.len()].0);
        }
        let age = self.cycles.get(&next).map(|cycle| now.since(cycle.started_at));
        if age.is_some_and(|age| age < self.config.heartbeat) {
            return;
        }
        let (to, most, _) = *near[turn % near.len()];
        self.ask_roots(to, most);
    }

    /// Asks a node of another super-leaf for the next cycle and later ones. Super-leaves commit a
    /// cycle at different times, so a replica asks only when the cycle takes far longer than usual.
    fn ask_far(&mut self, now: Timestamp, to: NodeId, committed: u64) {
        let every = self.config.fetch_every;
        let Some(next) = self.cycles.get_mut(&(self.progress.committed + 1)) else { return };
        let last = next.asked.get(&VnodeId::ROOT).map(|(at, _)| *at);
        let is_due = last.is_none_or(|last| now.since(last) >= every);
        if is_due && now.since(next.started_at) >= every * PATIENCE {
            next.asked.insert(VnodeId::ROOT, (now, 1));
            self.ask_roots(to, committed);
        }
    }

    /// Fetches a checkpoint from this node, or goes on with the checkpoint that is on its way.
    fn fall_back(&mut self, now: Timestamp, next: u64, from: NodeId) {
        if !core::mem::replace(&mut self.progress.is_behind, true) {
            self.events.push_back(Event::Behind(next));
        }
        let patience = self.config.heartbeat * PATIENCE;
        let goes_on =
            self.checkpoint.fetching.filter(|fetching| now.since(fetching.heard) < patience);
        self.fetch_checkpoint(now, goes_on.map_or(from, |fetching| fetching.from));
    }

    /// Asks for all cycles that are under way here and committed there.
    fn ask_roots(&mut self, to: NodeId, committed: u64) {
        self.progress.asked_until = self.progress.started;
        for cycle in self.progress.committed + 1..=committed.min(self.progress.started) {
            self.send(to, &ReplicaMessage::Request(cycle, VnodeId::ROOT));
        }
    }

    /// The state of a root came from this peer. A replica that is still behind asks the peer for
    /// the next ones at once.
    pub(crate) fn ask_on(&mut self, from: NodeId) {
        let near = self.peers.get(&from).map(|peer| peer.committed);
        let remote = self.others.nodes.get(&from).map(|remote| remote.committed);
        let there = near.or(remote).unwrap_or(0);
        if self.progress.committed >= self.progress.asked_until && there > self.progress.committed {
            self.ask_roots(from, there);
        }
    }

    /// Asks another node to propose that this replica takes part again. Peers are asked first,
    /// because they know how far this replica is.
    fn come_back(&mut self) {
        if self.is_leaving || !self.is_ready() {
            return;
        }
        let Some(incarnation) = self.table.next(self.me) else { return };
        let peers_committed = self.peers.values().map(|peer| peer.committed).max().unwrap_or(0);
        if peers_committed > self.progress.committed + self.config.pipeline {
            return;
        }
        let takes_part = |node: &NodeId| self.table.latest(*node).is_some();
        let mut present: Vec<NodeId> = self.peers.keys().copied().filter(takes_part).collect();
        if present.is_empty() {
            let all = self.tree.members().map(|member| member.node);
            present = all.filter(|node| *node != self.me && takes_part(node)).collect();
        }
        if !present.is_empty() {
            let to = present[self.beat.ticks as usize % present.len()];
            self.send(to, &ReplicaMessage::Join(incarnation, self.progress.committed));
        }
    }

    /// Takes the wish of another node to take part again. The node has committed the cycles up to
    /// `at`. All replicas wait for a node that takes part, so a node that still has to catch up is
    /// not taken, and asks again with its next heartbeat. The node itself cannot tell: a process
    /// that was paused first reads what came during the pause, and takes the old news for the
    /// latest.
    pub(crate) fn take_join(&mut self, from: NodeId, incarnation: u32, at: u64) {
        let near = self.progress.committed.saturating_sub(JOIN_LAG * self.config.pipeline);
        // A node that does not know yet that its super-leaf has left may not want to come back.
        let left = self.table.home(from).and_then(|home| self.table.left(home)).unwrap_or(0);
        if at >= near.max(left.saturating_sub(1)) && self.table.next(from) == Some(incarnation) {
            self.sponsored.insert((from, incarnation));
        }
    }
}

#[cfg(test)]
mod tests;
