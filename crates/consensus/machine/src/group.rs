//! The reliable broadcast of one member's proposals in its super-leaf: a Raft group per member. The
//! second round has the same groups, one per super-leaf: see
//! [`leaf_consensus`](crate::leaf_consensus).
//!
//! Every member of a super-leaf owns a group, and all members store the entries of all groups. The
//! group's log has the owner's proposals, cycle by cycle, and ends when the owner fails:
//!
//! ```text
//!   cycle   1    2    3    4
//!         | P1 | P2 | P3 | end(term 1)       cycles from 4 on do without this owner
//! ```
//!
//! The variant of Raft:
//!
//! - **Term 0 belongs to the owner without an election.** Only the owner makes entries, and it has
//!   each entry on its disk before it sends the entry. So there is one entry of a cycle at most,
//!   and an owner that restarts with its disk goes on as leader of term 0.
//! - **A leader of a later term makes one entry only: the end.** A member that suspects the owner
//!   asks for promises in a new term. A member that promises stops taking the owner's entries into
//!   account (`next` no longer grows), and a member whose log is more up to date refuses, as in
//!   Raft. The elected leader ends the log at its own last entry, or repeats an end that it has.
//! - **Acknowledgements go to everybody.** Each member tells all others what its disk has
//!   ([`DurableReport`]). Every report only grows, so a lost, doubled or late report does no harm.
//!   An entry is committed when a majority reports it in term 0; an end when a majority reports the
//!   same term of it. A leader need not say so, which saves a message delay.
//! - **A member accepts an end only when it has all entries before the end**, so that a majority
//!   has them when the end is committed. Missing entries are asked for from any member.
//!
//! When the end is committed, all members have left the group: no cycle waits for it any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenfall_core::NodeId;

use crate::{Proposal, VnodeId, VnodeState};

/// No node has this name. A member that accepts an end in a term that it never promised promises
/// the term to this name. No second leader of the term can then end the log a second time.
pub const NOBODY: NodeId = NodeId(u32::MAX);
/// Names from this one on are no names of nodes. The name of a super-leaf as the owner of a group
/// is this number plus the number of its vnode.
pub const OWNERS: NodeId = NodeId(1 << 31);

/// The name under which a super-leaf owns its group in the second round.
pub fn owner_of(leaf: VnodeId) -> NodeId {
    NodeId(OWNERS.0 + u32::from(leaf.0))
}

/// The super-leaf that owns a group; `None` when a node owns the group.
pub fn leaf_of(owner: NodeId) -> Option<VnodeId> {
    (owner >= OWNERS).then_some(VnodeId(owner.0 as u16))
}

/// An entry of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupEntry {
    /// What a node proposes in the first round of a cycle.
    Proposal(Proposal),
    /// What a super-leaf proposes in the second round: its state in a cycle.
    State(Arc<VnodeState>),
}

impl GroupEntry {
    /// The cycle.
    pub fn cycle(&self) -> u64 {
        match self {
            Self::Proposal(proposal) => proposal.cycle,
            Self::State(state) => state.cycle,
        }
    }

    /// The proposal of a node.
    pub fn proposal(&self) -> Option<&Proposal> {
        match self {
            Self::Proposal(proposal) => Some(proposal),
            Self::State(_) => None,
        }
    }

    /// The state of a super-leaf.
    pub fn state(&self) -> Option<&Arc<VnodeState>> {
        match self {
            Self::Proposal(_) => None,
            Self::State(state) => Some(state),
        }
    }
}

/// What a member has on its disk of one group. Every field only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableReport {
    /// The first cycle of which the member has no entry.
    pub have: u64,
    /// The first cycle whose entry the member did not accept in term 0.
    pub next: u64,
    /// The highest term that the member promised, and to whom. Term 0 is the owner's.
    pub promised: (u32, NodeId),
    /// The end that the member accepted: its term, and the first cycle without the owner.
    pub end: Option<(u32, u64)>,
    /// Whether the end is committed.
    pub closed: bool,
}

impl DurableReport {
    fn new(owner: NodeId, first: u64) -> Self {
        Self { have: first, next: first, promised: (0, owner), end: None, closed: false }
    }

    /// Takes the larger of each field.
    pub fn merge(&mut self, other: &Self) {
        self.have = self.have.max(other.have);
        self.next = self.next.max(other.next);
        if other.promised.0 > self.promised.0 {
            self.promised = other.promised;
        }
        if other.end.map_or(0, |end| end.0) > self.end.map_or(0, |end| end.0) {
            self.end = other.end;
        }
        self.closed |= other.closed;
    }

    fn end_term(&self) -> u32 {
        self.end.map_or(0, |end| end.0)
    }
}

/// The state of a member's part in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberPart<'a> {
    /// Nobody knows yet.
    Open,
    /// The member proposed this.
    Proposed(&'a GroupEntry),
    /// The member's log ended before the cycle.
    Absent,
}

/// One group, as one member knows it.
#[derive(Clone, Debug)]
pub struct ProposalGroup {
    incarnation: u32,
    /// The decisions of this member. They may still be on their way to its disk.
    mine: DurableReport,
    /// The reports of all members, this one among them, about what their disks have.
    reports: BTreeMap<NodeId, DurableReport>,
    /// The members that promise and accept an end, rack by rack.
    racks: Vec<Vec<NodeId>>,
    /// Whether a service outside decides the end.
    is_external: bool,
    /// Promises of terms up to this one do not hold any more.
    floor: u32,
    /// The members that have told that their votes do not count in this group: each lost its disk.
    mute: BTreeSet<NodeId>,
    entries: BTreeMap<u64, GroupEntry>,
    /// The first entry that is not known to be committed.
    commit: u64,
    closed: Option<u64>,
}

impl ProposalGroup {
    /// A group whose first entry is that of cycle `first`. A majority is a majority of the members
    /// of a rack, in a majority of the racks. Any two such majorities have a member in common.
    pub fn new(owner: NodeId, incarnation: u32, first: u64, racks: &[Vec<NodeId>]) -> Self {
        let mine = DurableReport::new(owner, first);
        let reports = racks.iter().flatten().map(|member| (*member, mine)).collect();
        let (entries, racks) = (BTreeMap::new(), racks.to_vec());
        let (commit, closed) = (first, None);
        let (is_external, floor, mute) = (false, 0, BTreeSet::new());
        Self {
            incarnation,
            mine,
            reports,
            racks,
            is_external,
            floor,
            mute,
            entries,
            commit,
            closed,
        }
    }

    /// The group, when a service outside decides its end: all racks store entries, and only the
    /// nodes of one rack promise, each to another node of that rack. See
    /// [`external_membership`](crate::external_membership).
    pub fn decided_externally(mut self, rack: usize) -> Self {
        self.racks = vec![self.racks.swap_remove(rack)];
        self.is_external = true;
        self
    }

    /// The owner's incarnation.
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// What this member has decided.
    pub fn mine(&self) -> DurableReport {
        self.mine
    }

    /// What this member has decided or knows to be decided, for a log that is compacted.
    pub fn decided(&self) -> DurableReport {
        let end = self.closed_end(self.mine.end);
        DurableReport { closed: self.closed.is_some(), end, ..self.mine }
    }

    /// What this member's disk has.
    pub fn durable(&self, me: NodeId) -> DurableReport {
        let report = self.reports.get(&me).copied().unwrap_or(self.mine);
        if self.is_external {
            return DurableReport { end: None, closed: false, ..report };
        }
        DurableReport { closed: self.closed.is_some(), end: self.closed_end(report.end), ..report }
    }

    /// The end for a report: the committed end if there is one.
    fn closed_end(&self, accepted: Option<(u32, u64)>) -> Option<(u32, u64)> {
        match self.closed {
            Some(end) => Some((accepted.map_or(1, |accepted| accepted.0), end)),
            None => accepted,
        }
    }

    /// Whether the owner may still propose.
    pub fn is_open(&self) -> bool {
        self.is_own_term(&self.mine) && self.closed.is_none()
    }

    /// Whether a report has no promise that holds: the owner leads.
    fn is_own_term(&self, report: &DurableReport) -> bool {
        report.promised.0 <= self.floor
    }

    /// Promises of terms up to this one do not hold any more. Returns whether more entries count in
    /// the member's report now. A changed report has to be written.
    pub fn void_promises(&mut self, term: u32) -> bool {
        let before = self.mine.next;
        if term > self.floor {
            self.floor = term;
            if self.is_own_term(&self.mine) {
                self.tell_up_to(self.mine.have);
            }
        }
        self.mine.next > before
    }

    /// Ends the log before this cycle, as the service outside decided.
    pub fn end(&mut self, end: u64) {
        self.closed = Some(end);
    }

    /// The end, if it is committed.
    pub fn ended(&self) -> Option<u64> {
        self.closed
    }

    /// Lets this member's reports count all entries before `next`. When a service outside decides
    /// the end, the reports count no entry behind the end.
    fn tell_up_to(&mut self, next: u64) {
        let end = self.closed.filter(|_| self.is_external).unwrap_or(u64::MAX);
        self.mine.next = next.min(end).max(self.mine.next);
    }

    /// Whether the reports of a majority of a rack go beyond a cycle, where `until` is the first
    /// cycle that a report does not have.
    pub fn has_majority(
        &self,
        rack: &[NodeId],
        cycle: u64,
        until: impl Fn(&DurableReport) -> u64,
    ) -> bool {
        let report = |member: &&NodeId| self.reports.get(member);
        let has = |member: &&NodeId| report(member).is_some_and(|report| until(report) > cycle);
        rack.iter().filter(has).count() > rack.len() / 2
    }

    /// Whether a member's disk has no promise of a later term, as far as this member knows.
    pub fn is_loyal(&self, member: NodeId) -> bool {
        self.reports.get(&member).is_some_and(|report| self.is_own_term(report))
    }

    /// Whether the end is committed.
    pub fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Notes whether the votes of a member count in this group.
    pub fn set_mute(&mut self, member: NodeId, is_mute: bool) {
        match is_mute {
            true => self.mute.insert(member),
            false => self.mute.remove(&member),
        };
    }

    /// Whether the owner cannot go on and the end is not committed yet. This is the case when the
    /// owner has promised a later term, or when fewer living members that vote than a majority have
    /// promised no later term.
    pub fn is_ending(&self, owner: NodeId, lives: impl Fn(NodeId) -> bool) -> bool {
        let loyal = |report: &DurableReport| self.is_own_term(report);
        let mut members = self.racks.iter().flatten();
        let told = members.all(|member| self.reports.get(member).is_none_or(loyal));
        let all = loyal(&self.mine) && told;
        // A super-leaf is no member of its group.
        let owner_is = self.reports.get(&owner).is_none_or(loyal);
        let is_live = |node, report: &DurableReport| {
            loyal(report) && lives(node) && !self.mute.contains(&node)
        };
        self.closed.is_none() && !all && (!owner_is || !self.is_majority(is_live))
    }

    /// An entry that this member has.
    pub fn entry(&self, cycle: u64) -> Option<&GroupEntry> {
        self.entries.get(&cycle)
    }

    /// What the owner's part in a cycle is.
    pub fn part(&self, cycle: u64) -> MemberPart<'_> {
        match self.closed {
            Some(end) if cycle >= end => MemberPart::Absent,
            Some(_) => self.entries.get(&cycle).map_or(MemberPart::Open, MemberPart::Proposed),
            None if cycle < self.commit => {
                self.entries.get(&cycle).map_or(MemberPart::Open, MemberPart::Proposed)
            }
            None => MemberPart::Open,
        }
    }

    /// Whether the next entry is part of the log, as far as this member knows.
    pub fn takes_next(&self) -> bool {
        self.closed.is_none_or(|end| self.mine.have < end)
    }

    /// Stores an entry. Returns whether it was the next one. The next entry has to be written.
    pub fn store(&mut self, entry: &GroupEntry) -> bool {
        let is_next = entry.cycle() == self.mine.have;
        if is_next {
            self.mine.have += 1;
            if self.is_own_term(&self.mine) {
                self.tell_up_to(self.mine.have);
            }
            self.entries.insert(entry.cycle(), entry.clone());
        }
        is_next
    }

    /// Takes over the decisions of this member from a compacted log.
    pub fn restore(&mut self, report: DurableReport) {
        self.mine.merge(&report);
        if let (true, Some((_, end))) = (report.closed, report.end) {
            self.end(end);
        }
    }

    /// Restores an entry from the log. The member's report counts the entry already.
    pub fn recall(&mut self, entry: &GroupEntry) {
        if entry.cycle() < self.mine.have {
            self.entries.insert(entry.cycle(), entry.clone());
        }
    }

    /// All entries of cycles before `next` are decided, so the member's report counts them from now
    /// on. Returns whether the report changed. A changed report has to be written.
    pub fn skip(&mut self, next: u64) -> bool {
        let is_news = self.mine.have < next;
        if is_news {
            self.mine.have = next;
            if self.is_own_term(&self.mine) {
                self.tell_up_to(next);
            }
        }
        is_news
    }

    /// Entries of cycles from `first` on that this member has.
    pub fn entries_from(&self, first: u64) -> impl Iterator<Item = &GroupEntry> {
        self.entries.range(first..).map(|(_, entry)| entry)
    }

    /// Promises a term to a member, perhaps to itself. Has to be written.
    pub fn promise(&mut self, term: u32, to: NodeId) {
        self.mine.promised = (term, to);
    }

    /// Accepts an end. Has to be written.
    pub fn accept(&mut self, term: u32, end: u64) {
        if term > self.mine.promised.0 {
            self.mine.promised = (term, NOBODY);
        }
        self.mine.end = Some((term, end));
    }

    /// The first term above all terms that the members of the promising racks have promised.
    pub fn new_term(&self) -> u32 {
        let members = self.racks.iter().flatten();
        let reports = members.filter_map(|member| self.reports.get(member));
        let terms = reports.map(|report| report.promised.0.max(report.end_term()));
        terms.max().unwrap_or(0).max(self.mine.promised.0).max(self.floor).saturating_add(1)
    }

    /// Whether this member may promise what another asks for: a higher term, whose promises hold,
    /// and a log that is as up to date as its own.
    pub fn may_promise(&self, asked: &DurableReport) -> bool {
        let (mine, theirs) = (self.mine.end_term(), asked.end_term());
        let up_to_date =
            theirs > mine || (theirs == mine && (mine > 0 || asked.next >= self.mine.next));
        let is_new = asked.promised.0 > self.mine.promised.0.max(self.floor);
        self.closed.is_none() && is_new && up_to_date
    }

    /// Whether a member reports more entries than this member. A member with more entries will
    /// refuse this member's promise request.
    pub fn is_ahead(&self, member: NodeId) -> bool {
        self.reports.get(&member).is_some_and(|report| report.next > self.mine.next)
    }

    /// Whether this member and another both asked for promises in the same term, so that the
    /// promises may be split between the two.
    pub fn is_split(&self, me: NodeId, other: NodeId, told: &DurableReport) -> bool {
        let (term, to) = self.mine.promised;
        let is_tie = to == me && told.promised == (term, other);
        self.closed.is_none() && is_tie && self.mine.end_term() < term
    }

    /// The end that this member, which was elected in its term, asks all members to accept.
    pub fn won(&self, me: NodeId) -> Option<(u32, u64)> {
        let (term, to) = self.mine.promised;
        if self.closed.is_some() || term <= self.floor || to != me || self.mine.end_term() >= term {
            return None;
        }
        let end = self.mine.end.map_or(self.mine.next, |end| end.1);
        let has_won = self.is_majority(|_, report| report.promised == (term, me));
        has_won.then_some((term, end))
    }

    /// Whether this member may accept the end that another reports; it needs the entries for it.
    pub fn may_accept(&self, told: &DurableReport) -> Option<(u32, u64)> {
        let (term, end) = told.end?;
        let is_new = term > self.mine.end_term() && term >= self.mine.promised.0;
        (self.closed.is_none() && is_new && self.mine.have >= end).then_some((term, end))
    }

    /// Takes in the report of a member about its disk.
    pub fn hear(&mut self, member: NodeId, report: &DurableReport) {
        let Some(known) = self.reports.get_mut(&member) else { return };
        known.merge(report);
        if self.is_external {
            return;
        }
        if let (true, Some((_, end))) = (report.closed, report.end) {
            self.closed = Some(end);
        }
        if self.closed.is_none() {
            let term = self.reports.values().map(DurableReport::end_term).max().unwrap_or(0);
            if term > 0 && self.is_majority(|_, report| report.end_term() == term) {
                let mut same = self.reports.values().filter(|report| report.end_term() == term);
                self.closed = same.find_map(|report| report.end).map(|end| end.1);
            }
        }
        let next = |member: &NodeId| self.reports.get(member).map_or(0, |report| report.next);
        let in_rack = |rack: &Vec<NodeId>| most(rack.iter().map(next).collect());
        self.commit = self.commit.max(most(self.racks.iter().map(in_rack).collect()));
    }

    /// Forgets what a member's earlier disk had.
    pub fn forget_reports(&mut self, member: NodeId, owner: NodeId) {
        if let Some(known) = self.reports.get_mut(&member) {
            *known = DurableReport::new(owner, 0);
        }
    }

    /// A member that has the entry of a cycle, counted from `turn` on.
    pub fn source(&self, cycle: u64, turn: usize) -> Option<NodeId> {
        let has = |(_, report): &(&NodeId, &DurableReport)| report.have > cycle;
        let all: Vec<NodeId> = self.reports.iter().filter(has).map(|(node, _)| *node).collect();
        (!all.is_empty()).then(|| all[turn % all.len()])
    }

    /// Forgets entries of cycles before this one.
    pub fn forget(&mut self, before: u64) {
        self.entries = self.entries.split_off(&before);
    }

    /// Whether the members of which this is true are a majority.
    pub fn is_majority(&self, is_in: impl Fn(NodeId, &DurableReport) -> bool) -> bool {
        let counts = |member: &NodeId| {
            self.reports.get(member).is_some_and(|report| is_in(*member, report)).into()
        };
        let in_rack = |rack: &Vec<NodeId>| most(rack.iter().map(counts).collect());
        most(self.racks.iter().map(in_rack).collect()) > 0
    }
}

/// The largest number that a majority of these numbers reach.
fn most(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    numbers[numbers.len() / 2]
}

#[cfg(test)]
mod tests;
