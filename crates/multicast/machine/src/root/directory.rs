//! What the root can say of each node by name: its place, its state and its own figures.

use std::collections::BTreeMap;

use evenfall_core::{NodeId, Timestamp};

use crate::control::{DepartureReason, MemberFigures, Role};
use crate::members::{MEMBERS_MAX, Members};

/// How a node stands with the root.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// The node has joined, and has not acknowledged a place yet.
    Joining,
    /// The node has its place.
    Sound,
    /// The node is a proxy without a place, which waits to replace another.
    Spare,
    /// The node feeds beside a straggler, on trial.
    Trial,
    /// A neighbour does not hear the node, and the root asks it.
    Suspected,
    /// The node is out, for this reason.
    Gone(DepartureReason),
}

impl MemberState {
    /// Whether the node is no member any more.
    pub fn is_gone(self) -> bool {
        matches!(self, Self::Gone(_))
    }

    /// One word for pages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Sound => "sound",
            Self::Spare => "spare",
            Self::Trial => "trial",
            Self::Suspected => "suspected",
            Self::Gone(DepartureReason::Left) => "left",
            Self::Gone(DepartureReason::Silent) => "silent",
            Self::Gone(DepartureReason::TooSlow) => "too slow",
            Self::Gone(DepartureReason::Restarted) => "restarted",
        }
    }
}

/// One node, as the root knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The node.
    pub id: NodeId,
    /// What it does in the tree.
    pub role: Role,
    /// How it stands.
    pub state: MemberState,
    /// Its parent; `None` without a place.
    pub parent: Option<NodeId>,
    /// The nodes that send it extra copies.
    pub aunts: Vec<NodeId>,
    /// The node's own figures, with their age. `None` until the node has told any.
    pub figures: Option<MemberFigures>,
}

/// What is known of a node beside its membership.
#[derive(Clone, Debug)]
struct Entry {
    role: Role,
    /// The figures and when they came.
    figures: Option<(MemberFigures, Timestamp)>,
    gone: Option<DepartureReason>,
}

/// The nodes of the run, by id.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberDirectory {
    entries: BTreeMap<NodeId, Entry>,
}

impl MemberDirectory {
    /// A node has joined, for the first time or again.
    pub(super) fn note_join(&mut self, id: NodeId, role: Role) {
        self.entries.insert(id, Entry { role, figures: None, gone: None });
        // A flood of nodes that join and leave shall not fill the memory.
        if self.entries.len() > MEMBERS_MAX {
            let oldest = self.entries.iter().find(|(_, entry)| entry.gone.is_some());
            if let Some(id) = oldest.map(|(id, _)| *id) {
                self.entries.remove(&id);
            }
        }
    }

    /// A node is out.
    pub(super) fn note_removal(&mut self, id: NodeId, reason: DepartureReason) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.gone = Some(reason);
        }
    }

    /// Figures have come up the tree.
    pub(super) fn hear(&mut self, now: Timestamp, told: &[MemberFigures]) {
        for figures in told {
            if let Some(entry) = self.entries.get_mut(&figures.id) {
                entry.figures = Some((*figures, now));
            }
        }
    }

    /// All nodes, by id.
    pub(super) fn list(&self, now: Timestamp, members: &Members) -> Vec<MemberStatus> {
        let one = |(id, entry): (&NodeId, &Entry)| {
            let sources = members.tree().map(|tree| tree.neighbours(*id).sources);
            let mut sources = sources.unwrap_or_default().into_iter();
            MemberStatus {
                id: *id,
                role: entry.role,
                state: entry.gone.map_or_else(|| members.state_of(*id), MemberState::Gone),
                parent: sources.next(),
                aunts: sources.collect(),
                figures: entry.figures.map(|(figures, at)| {
                    let waited = u32::try_from(now.since(at).as_millis()).unwrap_or(u32::MAX);
                    MemberFigures { age_ms: figures.age_ms.saturating_add(waited), ..figures }
                }),
            }
        };
        self.entries.iter().map(one).collect()
    }
}
