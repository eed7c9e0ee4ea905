//! The start of a replica with its log.

use std::sync::Arc;

use evenfall_core::NodeId;

use crate::canopus::{Canopus, Event};
use crate::checkpoint::Checkpoint;
use crate::group::{GroupEntry, owner_of};
use crate::journal::{Effect, ReplicaRecord};
use crate::{ConsensusError, VnodeId};

impl Canopus {
    /// Repeats the decisions that the log has.
    pub(crate) fn replay(&mut self, records: Vec<ReplicaRecord>) -> Result<(), ConsensusError> {
        self.found_groups();
        for record in records {
            match record {
                ReplicaRecord::Entry(proposal) => {
                    let (owner, incarnation) = (proposal.set.node, proposal.set.incarnation);
                    self.restore(owner, incarnation, &GroupEntry::Proposal(proposal));
                }
                ReplicaRecord::State(leaf, incarnation, commit) => {
                    let (owner, cycle) = (owner_of(leaf), commit.cycle);
                    match self.state_of(leaf, commit) {
                        Some(state) => {
                            self.restore(owner, incarnation, &GroupEntry::State(state.into()));
                        }
                        None => {
                            // The promise that the record stands for holds without the state.
                            self.group(owner, incarnation).map(|group| group.skip(cycle + 1));
                        }
                    }
                }
                ReplicaRecord::Promise(owner, incarnation, term, to) => {
                    if let Some(group) = self.group(owner, incarnation) {
                        group.promise(term, to);
                    }
                }
                ReplicaRecord::End(owner, incarnation, term, end) => {
                    if let Some(group) = self.group(owner, incarnation) {
                        group.accept(term, end);
                    }
                }
                ReplicaRecord::Committed(commit) => {
                    let cycle = commit.cycle;
                    if cycle == self.progress.committed + 1
                        && let Some(state) = self.state_of(VnodeId::ROOT, commit)
                    {
                        self.progress.started = self.progress.started.max(cycle);
                        self.end_vanished(cycle, &state.changes);
                        self.skip(cycle + 1);
                        self.adopt(Arc::new(state));
                    }
                }
                ReplicaRecord::Checkpoint(checkpoint) => self.resume(checkpoint),
                ReplicaRecord::Disk(disk) => self.disk.restore(disk)?,
                ReplicaRecord::List(list) => self.restore_list(&list)?,
                ReplicaRecord::Group(owner, incarnation, report) => {
                    let mut group = self.new_group(owner, incarnation, 1);
                    group.restore(report);
                    self.groups.insert(owner, group);
                    // The votes in the records that follow count in spite of voided promises.
                    self.end_groups();
                }
            }
        }
        self.begin();
        if self.disk.is_new() {
            self.record_disk([Effect::Greet]);
        }
        Ok(())
    }

    /// Ends the replay: what the log has counts as this replica's reports, and the cycles that the
    /// replica had begun are under way again.
    fn begin(&mut self) {
        // A replica that is started again is to take part again.
        self.is_leaving = false;
        self.end_groups();
        self.others.membership.voided.clear();
        let me = self.me;
        let owners: Vec<NodeId> = self.groups.keys().copied().collect();
        for owner in owners {
            let counts = self.is_elector(owner);
            if let Some(group) = self.groups.get_mut(&owner).filter(|_| counts) {
                let mine = group.mine();
                group.hear(me, &mine);
            }
        }
        if let Some(own) = self.groups.get(&me) {
            self.progress.started = self.progress.started.max(own.mine().have.saturating_sub(1));
        }
        for cycle in self.progress.committed + 1..=self.progress.started {
            self.cycles.entry(cycle).or_default();
        }
        (self.progress.seen, self.progress.started_before) =
            (self.progress.started, self.progress.started);
    }

    /// Takes an entry from the log into its group.
    fn restore(&mut self, owner: NodeId, incarnation: u32, entry: &GroupEntry) {
        if let Some(group) = self.group(owner, incarnation)
            && !group.store(entry)
        {
            group.recall(entry);
        }
    }

    /// Goes on behind the checkpoint on the own disk.
    fn resume(&mut self, checkpoint: Checkpoint) {
        self.adopt_checkpoint(&checkpoint);
        self.found_groups();
        self.forget_groups();
        let (cycle, snapshot) = (checkpoint.cycle, checkpoint.snapshot.clone());
        self.events.push_back(Event::Installed { cycle, snapshot, unknown: Vec::new() });
        let mut encoded = Vec::new();
        checkpoint.put(&mut encoded);
        (self.checkpoint.encoded, self.checkpoint.cycle) = (encoded.into(), cycle);
    }
}
