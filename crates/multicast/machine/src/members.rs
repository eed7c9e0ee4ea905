//! The root's book of members: which nodes have joined, which places they have, and which nodes are
//! suspected.
//!
//! Places change by *views*. The root sends a new view to every node whose place differs. Frames
//! follow the old view until all proxies that the new view changes have acknowledged it, or a
//! stated time has passed. Every proxy forwards a frame by the view that the frame names. A change
//! of the tree therefore loses no frame: the new paths stand before the old paths go.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use evenfall_core::{NodeId, Timestamp};

use crate::config::Config;
use crate::control::{DepartureReason, Join, Peer, RECORDERS_MAX, Role, TreePosition};
use crate::replace::{Replacement, ReplacementStep};
use crate::root::MemberState;
use crate::tree::{Neighbours, Tree};

/// The next frame, and the number of its first message.
pub(crate) type Start = (u64, u64);

/// One node that joined.
#[derive(Clone, Debug)]
struct Member {
    addr: SocketAddr,
    role: Role,
    incarnation: u64,
    /// The place that the root last sent to the node.
    place: Option<TreePosition>,
    /// The view of the last place that the node acknowledged.
    acked: u32,
    retry_at: Timestamp,
}

/// A node that may be gone, and the node that reported its silence.
#[derive(Clone, Debug)]
struct Suspicion {
    /// Time by which the suspect must have answered.
    until: Timestamp,
    next_probe: Timestamp,
    by: NodeId,
}

/// The effect of a request to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// The node is new, or back under a new incarnation.
    New,
    /// The request repeats a join that is known.
    Known,
    /// Another life of the node has the name, and may still live. The root probes that life, and
    /// the node repeats its request.
    Contested,
    Full,
}

/// Members that one tree may have. The number is larger than any overlay of the papers, and a flood
/// of joins of that size cannot fill the memory of a root without a list of nodes.
pub(crate) const MEMBERS_MAX: usize = 65_536;

/// An action that the book asks of its owner.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Send its place to this node.
    Assign(Peer, TreePosition),
    /// Ask this node whether it lives.
    Probe(Peer),
    /// The node was taken out. Tell the node the reason.
    Removed(Peer, DepartureReason),
    /// A view has come into force. The root's own children and the targets of its beacons follow
    /// from the view.
    View(Box<View>),
}

/// A tree that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Number of the view.
    pub number: u32,
    /// Hops from the root to a receiver.
    pub depth: u8,
    /// Children of the root in the view.
    pub children: Vec<Peer>,
    /// Proxies without a place.
    pub spares: Vec<Peer>,
    /// Receivers in the tree.
    pub receivers: usize,
    /// Proxies in the tree, without spares.
    pub proxies: usize,
    /// Proxies that the wanted dimensions need beyond those that joined.
    pub missing: usize,
    /// A proxy that may be replaced, and the node that feeds beside it.
    pub overlap: Option<(NodeId, NodeId)>,
}

/// A neighbour may suspect another twice within this many times the silence. The link between the
/// two nodes is then taken for broken, although both nodes live.
const LINK_MEMORY: u32 = 4;
/// Doubtful links that are remembered. The oldest links are forgotten first.
const LINKS_MAX: usize = 1_024;

/// The level of a spare. The root sends beacons to a spare as to the first layer.
const SPARE_LEVEL: u8 = 1;

pub(crate) struct Members {
    root: NodeId,
    members: BTreeMap<NodeId, Member>,
    /// Members that release messages.
    receivers: usize,
    tree: Option<Tree>,
    /// Number of the newest view.
    view: u32,
    /// The newest view until it is in force, and the latest time at which it comes into force.
    coming: Option<(Timestamp, Box<View>)>,
    /// Time at which a new view is made because members changed. `rebuild` says whether the whole
    /// tree is built anew.
    change_at: Option<Timestamp>,
    rebuild: bool,
    /// Nodes that have not acknowledged their place. The tree looks at them again at their
    /// `retry_at`.
    unacked: BTreeSet<NodeId>,
    retry_at: Option<Timestamp>,
    suspects: BTreeMap<NodeId, Suspicion>,
    links: BTreeMap<(NodeId, NodeId), Timestamp>,
    forming_until: Option<Timestamp>,
    /// Proxies that were replaced, with the time. They are the last to get a place again.
    let_go: BTreeMap<NodeId, Timestamp>,
    /// Whether the last receiver has said good-bye. The tree then waits for no receiver.
    is_deserted: bool,
    actions: Vec<Action>,
}

impl Members {
    pub(crate) fn new(root: NodeId) -> Self {
        Self {
            root,
            members: BTreeMap::new(),
            receivers: 0,
            tree: None,
            view: 0,
            coming: None,
            change_at: None,
            rebuild: false,
            unacked: BTreeSet::new(),
            retry_at: None,
            suspects: BTreeMap::new(),
            links: BTreeMap::new(),
            forming_until: None,
            let_go: BTreeMap::new(),
            is_deserted: false,
            actions: Vec::new(),
        }
    }

    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        core::mem::take(&mut self.actions)
    }

    /// Whether this id at this address is a member.
    pub(crate) fn is(&self, id: NodeId, addr: SocketAddr) -> bool {
        self.members.get(&id).is_some_and(|m| m.addr == addr)
    }

    pub(crate) fn has(&self, id: NodeId) -> bool {
        self.members.contains_key(&id)
    }

    /// The first frame that a member is expected to have; `None` until the member has a place.
    pub(crate) fn start_of(&self, id: NodeId) -> Option<u64> {
        self.members.get(&id)?.place.as_ref().map(|place| place.start)
    }

    pub(crate) fn proxies(&self) -> usize {
        self.members.len() - self.receivers
    }

    /// Members that release messages, with the recorders.
    pub(crate) fn receivers(&self) -> usize {
        self.receivers
    }

    /// Whether the last receiver has said good-bye and no receiver has joined since.
    pub(crate) fn is_deserted(&self) -> bool {
        self.is_deserted && self.receivers() == 0
    }

    /// How a member stands.
    pub(crate) fn state_of(&self, id: NodeId) -> MemberState {
        let Some(member) = self.members.get(&id) else { return MemberState::Joining };
        let tree = self.tree.as_ref();
        let is_on_trial = tree.and_then(Tree::overlap).is_some_and(|(_, new)| new == id);
        let is_spare = tree.is_some_and(|tree| tree.spares().contains(&id));
        if self.suspects.contains_key(&id) {
            return MemberState::Suspected;
        }
        match (is_on_trial, is_spare, member.acked > 0) {
            (true, ..) => MemberState::Trial,
            (_, true, _) => MemberState::Spare,
            (.., true) => MemberState::Sound,
            _ => MemberState::Joining,
        }
    }

    /// The tree. `None` also while the tree waits to be built anew, because it may have gaps.
    pub(crate) fn tree(&self) -> Option<&Tree> {
        self.tree.as_ref().filter(|_| !self.rebuild)
    }

    pub(crate) fn join(
        &mut self,
        now: Timestamp,
        (id, addr): (NodeId, SocketAddr),
        join: Join,
        config: &Config,
    ) -> Joined {
        let is_full = self.members.len() >= MEMBERS_MAX;
        match self.members.get_mut(&id) {
            Some(old) if old.incarnation == join.incarnation && old.addr == addr => {
                // The node has not received its place, so the place is sent again at once.
                old.retry_at = now;
                self.retry_at = Some(now);
                return Joined::Known;
            }
            // Of two processes at one address, only the later can be alive.
            Some(old) if old.incarnation < join.incarnation && old.addr == addr => {
                self.remove(now, id, DepartureReason::Restarted, config);
            }
            // A node keeps its name as long as it lives, whatever incarnation another node claims.
            Some(_) => {
                self.doubt(now, id, self.root, config);
                return Joined::Contested;
            }
            None if is_full => return Joined::Full,
            None => {}
        }
        let Join { role, incarnation, .. } = join;
        let member = Member { addr, role, incarnation, place: None, acked: 0, retry_at: now };
        self.members.insert(id, member);
        self.receivers += usize::from(role.receives());
        if let Some(tree) = self.tree.as_mut().filter(|_| !self.rebuild) {
            match role {
                Role::Receiver | Role::Recorder => tree.add_receiver(id),
                Role::Proxy => {
                    tree.add_spare(id);
                    self.rebuild |= tree.missing() > 0;
                }
            }
        }
        let timeout = config.membership.expect_timeout;
        self.forming_until.get_or_insert(now + timeout);
        // Nodes that join at about the same time share one view.
        self.changed(now, config);
        Joined::New
    }

    fn changed(&mut self, now: Timestamp, config: &Config) {
        let soon = now + config.membership.join_retry / 4;
        // A later time, such as the wait for further members before the first tree, is moved
        // forward.
        self.change_at = Some(self.change_at.map_or(soon, |at| at.min(soon)));
    }

    /// Builds the whole tree anew, for another mode or shape.
    pub(crate) fn rebuild(&mut self, now: Timestamp, config: &Config) {
        self.rebuild = true;
        self.changed(now, config);
    }

    pub(crate) fn remove(
        &mut self,
        now: Timestamp,
        id: NodeId,
        reason: DepartureReason,
        config: &Config,
    ) {
        let Some(member) = self.members.remove(&id) else { return };
        self.unacked.remove(&id);
        self.suspects.remove(&id);
        self.let_go.remove(&id);
        if member.role.receives() {
            self.receivers -= 1;
            self.is_deserted = reason == DepartureReason::Left && self.receivers() == 0;
        }
        // A tree that waits to be built anew may have gaps, so it takes no more changes.
        if let Some(tree) = self.tree.as_mut().filter(|_| !self.rebuild) {
            self.rebuild = !tree.remove(id);
        }
        self.actions.push(Action::Removed(Peer { id, addr: member.addr }, reason));
        self.changed(now, config);
    }

    /// Whether no view is being made and no view waits to come into force.
    pub(crate) fn is_settled(&self) -> bool {
        self.coming.is_none() && self.change_at.is_none() && !self.rebuild
    }

    /// Whether a spare may be tried: no node suspects the spare, and it was not replaced within
    /// `cooldown`.
    pub(crate) fn is_usable(&self, now: Timestamp, spare: NodeId, cooldown: Duration) -> bool {
        let rested = self.let_go.get(&spare).is_none_or(|at| now.since(*at) >= cooldown);
        rested && !self.suspects.contains_key(&spare)
    }

    /// Carries out a step of a replacement.
    pub(crate) fn replace(&mut self, now: Timestamp, replacement: &Replacement, config: &Config) {
        let Some(tree) = self.tree.as_mut().filter(|_| !self.rebuild) else { return };
        let Replacement { old, new, step, .. } = *replacement;
        match step {
            ReplacementStep::Tried => drop(tree.begin_overlap(old, new)),
            ReplacementStep::Made => {
                tree.end_overlap(true);
                self.let_go.insert(old, now);
            }
            ReplacementStep::RolledBack => tree.end_overlap(false),
            ReplacementStep::Abandoned => return,
        }
        self.changed(now, config);
    }

    pub(crate) fn acknowledged(&mut self, id: NodeId, view: u32) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.acked = member.acked.max(view);
        if member.place.as_ref().is_some_and(|place| place.view <= member.acked) {
            self.unacked.remove(&id);
        }
    }

    /// Sends every node its place again, with the keys that hold from now on.
    pub(crate) fn renew_places(&mut self, now: Timestamp) {
        for (id, member) in self.members.iter_mut().filter(|(_, member)| member.place.is_some()) {
            member.retry_at = now;
            self.unacked.insert(*id);
        }
        self.retry_at = Some(now);
    }

    /// `by` does not hear `suspect`, or evicts it for asking too much.
    pub(crate) fn suspect(
        &mut self,
        now: Timestamp,
        by: NodeId,
        suspect: NodeId,
        reason: DepartureReason,
        config: &Config,
    ) {
        let Some(member) = self.members.get_mut(&suspect) else {
            // The suspect is out already, and `by` may have missed the new view.
            if let Some(member) = self.members.get_mut(&by) {
                member.retry_at = now;
                self.unacked.insert(by);
                self.retry_at = Some(now);
            }
            return;
        };
        if reason == DepartureReason::TooSlow {
            // Only a receiver is taken out for being slow. A slow proxy shows itself by silence.
            if member.role.receives() {
                self.remove(now, suspect, reason, config);
            }
            return;
        }
        self.doubt(now, suspect, by, config);
    }

    /// Asks a member whether it lives. A member that does not answer is taken out.
    fn doubt(&mut self, now: Timestamp, suspect: NodeId, by: NodeId, config: &Config) {
        let until = now + config.membership.probe_timeout;
        self.suspects.entry(suspect).or_insert(Suspicion { until, next_probe: now, by });
    }

    /// The suspect answered the root in its present life.
    pub(crate) fn alive(&mut self, now: Timestamp, id: NodeId, incarnation: u64, config: &Config) {
        if self.members.get(&id).is_none_or(|member| member.incarnation != incarnation) {
            return;
        }
        let Some(suspicion) = self.suspects.remove(&id) else { return };
        if suspicion.by == self.root {
            return;
        }
        let memory = config.membership.silence * LINK_MEMORY;
        let again = self
            .links
            .insert((suspicion.by, id), now)
            .is_some_and(|last| now.since(last) <= memory);
        if self.links.len() > LINKS_MAX {
            self.links.retain(|_, last| now.since(*last) <= memory);
        }
        while self.links.len() > LINKS_MAX {
            let oldest = self.links.iter().min_by_key(|(_, last)| **last).map(|(link, _)| *link);
            oldest.and_then(|link| self.links.remove(&link));
        }
        let Some(tree) = self.tree.as_mut().filter(|_| again && !self.rebuild) else { return };
        // A view may have parted the two nodes since. In that case there is nothing to mend.
        let child = match suspicion.by {
            by if tree.parent(by) == Some(id) => by,
            by if tree.parent(id) == Some(by) => id,
            _ => return,
        };
        if tree.move_away_from_parent(child) {
            self.changed(now, config);
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Timestamp, config: &Config, start: Start) {
        self.probe(now, config);
        self.activate(now);
        // Views follow one after the other. A node remembers the newest view and the view before
        // it, so a view that is made before its predecessor is in force would cut off the frames of
        // an older view.
        if self.coming.is_none()
            && self.change_at.is_some_and(|at| at <= now)
            && self.may_form(now, config)
        {
            self.change_at = None;
            self.make_view(now, config, start);
            self.activate(now);
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.assign(now, config);
        }
    }

    /// Sends again the places that are due.
    fn assign(&mut self, now: Timestamp, config: &Config) {
        self.retry_at = None;
        // A node that asks before it has a place gets its place with the next view.
        self.unacked.retain(|id| self.members[id].place.is_some());
        for id in &self.unacked {
            let member = self.members.get_mut(id).expect("unacked are members");
            if member.retry_at <= now
                && let Some(place) = &member.place
            {
                member.retry_at = now + config.membership.join_retry;
                let to = Peer { id: *id, addr: member.addr };
                self.actions.push(Action::Assign(to, place.clone()));
            }
            let next = self.retry_at.map_or(member.retry_at, |at| at.min(member.retry_at));
            self.retry_at = Some(next);
        }
    }

    /// Whether the first tree may be built. Later trees may always be built. If not, sets the time
    /// of the next look.
    fn may_form(&mut self, now: Timestamp, config: &Config) -> bool {
        let m = &config.membership;
        let receivers = self.receivers();
        let enough =
            receivers >= m.expect_receivers as usize && self.proxies() >= m.expect_proxies as usize;
        let timed_out = self.forming_until.is_none_or(|until| until <= now);
        if self.tree.is_some() || receivers > 0 && (enough || timed_out) {
            return true;
        }
        // Without any receiver, only the next join can start the tree.
        self.change_at = self.forming_until.filter(|_| !timed_out);
        false
    }

    fn probe(&mut self, now: Timestamp, config: &Config) {
        let mut dead = Vec::new();
        for (id, suspicion) in &mut self.suspects {
            if suspicion.until <= now {
                dead.push(*id);
            } else if suspicion.next_probe <= now {
                suspicion.next_probe = now + config.membership.probe_timeout / 4;
                if let Some(member) = self.members.get(id) {
                    self.actions.push(Action::Probe(Peer { id: *id, addr: member.addr }));
                }
            }
        }
        for id in dead {
            self.remove(now, id, DepartureReason::Silent, config);
        }
    }

    /// The ids of the receivers, or of the proxies.
    fn ids(&self, receives: bool) -> Vec<NodeId> {
        let wanted = self.members.iter().filter(|(_, m)| m.role.receives() == receives);
        wanted.map(|(id, _)| *id).collect()
    }

    /// The first recorders, one more than a place names, because the place of a recorder leaves
    /// that recorder out.
    fn recorders(&self) -> Vec<Peer> {
        let recorders = self.members.iter().filter(|(_, m)| m.role == Role::Recorder);
        recorders.map(|(id, m)| Peer { id: *id, addr: m.addr }).take(RECORDERS_MAX + 1).collect()
    }

    fn make_view(&mut self, now: Timestamp, config: &Config, start: Start) {
        if self.tree.is_none() || core::mem::take(&mut self.rebuild) {
            let (mut proxies, receivers) = (self.ids(false), self.ids(true));
            proxies.sort_by_key(|id| self.let_go.get(id));
            let (shape, mode) = (&config.shape, config.mode);
            self.tree = Some(Tree::build(self.root, &proxies, &receivers, shape, mode));
        }
        self.view += 1;
        let tree = self.tree.as_ref().expect("a view is made from a tree");
        let recorders = self.recorders();
        let moved = self.members.iter().filter_map(|(id, member)| {
            let near = self.near(tree, *id);
            let others = recorders.iter().copied().filter(|peer| peer.id != *id);
            let others = others.take(RECORDERS_MAX);
            let old = member.place.as_ref();
            let same = old.is_some_and(|old| self.is_same(old, &near, others.clone()));
            (!same).then(|| {
                // A node must have all frames from its join on, also after it moved to another
                // place.
                let start = old.map_or(start, |old| (old.start, old.start_message));
                (*id, self.place(&near, others.collect(), start))
            })
        });
        for (id, place) in moved.collect::<Vec<_>>() {
            let member = self.members.get_mut(&id).expect("a key of this map");
            member.place = Some(place);
            member.retry_at = now;
            self.unacked.insert(id);
            self.retry_at = Some(now);
        }
        let due = now + config.membership.view_timeout;
        self.coming = Some((due, Box::new(self.describe())));
    }

    /// The neighbours of a node, as its place states them.
    fn near(&self, tree: &Tree, id: NodeId) -> Neighbours {
        let mut near = tree.neighbours(id);
        if near.level.is_none() || near.sources.first() == Some(&self.root) {
            // An empty list of sources means the root.
            near.sources.clear();
        }
        near
    }

    fn peers<'a>(&'a self, ids: &'a [NodeId]) -> impl Iterator<Item = Peer> + 'a {
        ids.iter().filter_map(|id| self.peer(*id))
    }

    /// Whether a node still has the place that it was sent. The comparison does not build the new
    /// place, because most nodes keep their place in most views.
    fn is_same(
        &self,
        old: &TreePosition,
        near: &Neighbours,
        recorders: impl Iterator<Item = Peer>,
    ) -> bool {
        let lists = [
            (&near.sources, &old.sources),
            (&near.children, &old.children),
            (&near.nieces, &old.nieces),
        ];
        old.level == near.level.unwrap_or(SPARE_LEVEL)
            && lists.into_iter().all(|(ids, peers)| self.peers(ids).eq(peers.iter().copied()))
            && recorders.eq(old.recorders.iter().copied())
    }

    fn place(
        &self,
        near: &Neighbours,
        recorders: Vec<Peer>,
        (start, start_message): Start,
    ) -> TreePosition {
        let peers = |ids| self.peers(ids).collect();
        TreePosition {
            view: self.view,
            level: near.level.unwrap_or(SPARE_LEVEL),
            start,
            start_message,
            sources: peers(&near.sources),
            children: peers(&near.children),
            nieces: peers(&near.nieces),
            recorders,
        }
    }

    fn peer(&self, id: NodeId) -> Option<Peer> {
        self.members.get(&id).map(|m| Peer { id, addr: m.addr })
    }

    /// The newest view, described from its tree.
    fn describe(&self) -> View {
        let tree = self.tree.as_ref().expect("a view is made from a tree");
        let peers = |ids| self.peers(ids).collect();
        let placed = tree.nodes().count() - 1;
        let receivers = tree.nodes().filter(|(_, level)| *level == tree.depth()).count();
        View {
            number: self.view,
            depth: tree.depth(),
            children: peers(&tree.neighbours(self.root).children),
            spares: peers(tree.spares()),
            receivers,
            proxies: placed - receivers,
            missing: tree.missing(),
            overlap: tree.overlap(),
        }
    }

    /// Puts the newest view in force when its proxies have acknowledged it, or have had enough
    /// time.
    fn activate(&mut self, now: Timestamp) {
        // Acknowledgements count only while a view is coming. Acknowledgements of receivers put no
        // view in force.
        let members = &self.members;
        let is_waiting = || self.unacked.iter().any(|id| members[id].role == Role::Proxy);
        if let Some((_, view)) = self.coming.take_if(|(due, _)| *due <= now || !is_waiting()) {
            self.actions.push(Action::View(view));
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Timestamp> {
        let probe = self.suspects.values().map(|s| s.next_probe.min(s.until)).min();
        let due = self.coming.as_ref().map(|(due, _)| *due);
        let change = self.change_at.filter(|_| due.is_none());
        [change, due, self.retry_at, probe].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECEIVERS: u32 = 5_000;

    fn address(id: NodeId) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1_000 + id.0 as u16))
    }

    /// Lets time pass until the book is settled. Each node acknowledges its place at once.
    fn settle(members: &mut Members, now: &mut Timestamp, config: &Config) -> Vec<NodeId> {
        let mut assigned = Vec::new();
        for _ in 0..100 {
            *now += config.membership.join_retry / 4;
            members.handle_timeout(*now, config, (0, 0));
            for action in members.take_actions() {
                if let Action::Assign(to, place) = action {
                    members.acknowledged(to.id, place.view);
                    assigned.push(to.id);
                }
            }
        }
        assigned
    }

    #[test]
    fn a_join_among_five_thousand_receivers_tells_only_those_whose_place_it_changes() {
        let mut config = Config::default();
        (config.membership.expect_receivers, config.membership.expect_proxies) = (RECEIVERS, 1_110);
        let mut members = Members::new(NodeId(0));
        let mut now = Timestamp::from_nanos(1_000_000_000);
        let join = |members: &mut Members, now, id: NodeId, role| {
            let join = Join { role, incarnation: 1, cookie: 0 };
            members.join(now, (id, address(id)), join, &config);
        };
        (1..=1_110).for_each(|id| join(&mut members, now, NodeId(id), Role::Proxy));
        let ids = (2_000..2_000 + RECEIVERS).map(NodeId);
        ids.for_each(|id| join(&mut members, now, id, Role::Receiver));
        let all = settle(&mut members, &mut now, &config);
        assert_eq!(all.len(), 1_110 + RECEIVERS as usize);

        let newcomer = NodeId(9_000);
        join(&mut members, now, newcomer, Role::Receiver);
        let mut assigned = settle(&mut members, &mut now, &config);
        let tree = members.tree().unwrap();
        let mut expected = tree.neighbours(newcomer).sources;
        expected.push(newcomer);
        expected.sort();
        assigned.sort();
        assert_eq!(assigned, expected);
    }
}
