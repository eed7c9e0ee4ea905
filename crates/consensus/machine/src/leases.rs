//! Write leases (section 4.5.2): reads that are answered at once.
//!
//! A write to a key is proposed only in a cycle in which the key has a write lease. A node asks for
//! the lease in its proposal. A lease that is agreed in cycle c applies from cycle c + pipeline, at
//! all nodes alike:
//!
//! ```text
//!   cycle      c    c+1   ...   c+p   c+p+1   ...   c+p+n        p = pipeline, n = lease_cycles
//!            lease            |<---------- lease ---------->|
//!            agreed             the write is proposed here
//! ```
//!
//! A node has committed cycle j - p before it starts cycle j. So the node knows the leases of all
//! cycles under way, and a key without a lease in these cycles is not written in them. The node
//! answers a read of such a key at once, from the cycles that it has committed.
//!
//! **A node that is expelled without knowing it.** The others may be cycles ahead of such a node,
//! under leases that the node has never seen. The thesis assumes that a node that is thought dead
//! is dead. Here a node answers at once only while a majority of its super-leaf vouches for it. The
//! node asks with every heartbeat (ASK). A member that answers (VOUCH) promises not to help to end
//! the node's group for half of [`Config::suspect_after`]. The node counts three quarters of that
//! time, from the moment at which it asked, so that its clock may run at three quarters of the
//! speed of the member's. A member that restarts helps to end no group for the same time.
//!
//! [`Config::suspect_after`]: crate::Config::suspect_after

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use evenfall_core::math::{FNV_BASIS, fnv1a};
use evenfall_core::{Malformed, NodeId, Reader, Timestamp};

use crate::canopus::{Canopus, Event, Pending, bytes_of};
use crate::wire::ReplicaMessage;
use crate::{AgreedChange, ClientRequest, ConsensusError, Requests};

/// Leases that one proposal asks for. A node that needs leases for more keys asks for the lease of
/// all keys instead. A state of [`NODES_MAX`](crate::config::NODES_MAX) nodes then has fewer
/// changes than the two bytes of their number can count.
pub const LEASES_MAX: usize = 256;
/// Keys that have leases. A lease for a further key becomes a lease of all keys.
pub const LEASED_KEYS_MAX: usize = 65_536;
/// Bytes of one lease in a proposal or in a state.
pub(crate) const LEASE_BYTES: usize = 9;

/// The name of a key, or of a group of keys that share their lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey(pub u64);

impl LeaseKey {
    /// All keys. A write that names no key needs this lease, and the lease permits every write.
    pub const ALL: Self = Self(u64::MAX);

    /// The name of a key of any length. Two keys with one name share their lease.
    pub fn of(key: &[u8]) -> Self {
        Self(fnv1a(FNV_BASIS, key))
    }
}

/// The first cycle of a lease, and the first cycle after it.
type Span = (u64, u64);

/// The leases of the cycles that are not committed yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    /// The spans of each key: apart from each other, sorted, never empty.
    keys: BTreeMap<LeaseKey, Vec<Span>>,
}

impl Leases {
    /// Adds an agreed lease. Leases without a gap become one. A gap stays, because a read may have
    /// been answered in it.
    pub(crate) fn grant(&mut self, key: LeaseKey, from: u64, until: u64) {
        let is_known = self.keys.contains_key(&key);
        let key = if is_known || self.keys.len() < LEASED_KEYS_MAX { key } else { LeaseKey::ALL };
        let spans = self.keys.entry(key).or_default();
        match spans.last_mut() {
            Some(last) if last.1 >= from => last.1 = last.1.max(until),
            _ => spans.push((from, until)),
        }
    }

    fn has(&self, key: LeaseKey, first: u64, last: u64) -> bool {
        let spans = self.keys.get(&key);
        spans.is_some_and(|spans| spans.iter().any(|(from, until)| *from <= last && first < *until))
    }

    /// Whether a write to the key may be proposed in a cycle.
    pub fn permits(&self, key: LeaseKey, cycle: u64) -> bool {
        self.has(key, cycle, cycle) || self.has(LeaseKey::ALL, cycle, cycle)
    }

    /// Whether the key may be written in any cycle from `first` to `last`.
    pub fn is_written(&self, key: LeaseKey, first: u64, last: u64) -> bool {
        let has_any = |of: &LeaseKey| self.has(*of, first, last);
        match key {
            LeaseKey::ALL => self.keys.keys().any(has_any),
            _ => has_any(&key) || has_any(&LeaseKey::ALL),
        }
    }

    /// Forgets the leases that ended with this cycle or before it.
    pub(crate) fn forget(&mut self, cycle: u64) {
        self.keys.retain(|_, spans| {
            spans.retain(|(_, until)| *until > cycle + 1);
            !spans.is_empty()
        });
    }

    /// Spans u32; then per span the key u64, the first cycle u64, the first cycle after it u64.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let count: usize = self.keys.values().map(Vec::len).sum();
        out.extend((count as u32).to_le_bytes());
        for (key, spans) in &self.keys {
            for (from, until) in spans {
                [key.0, *from, *until].iter().for_each(|word| out.extend(word.to_le_bytes()));
            }
        }
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut leases = Self::default();
        for _ in 0..r.u32()? {
            let (key, from, until) = (LeaseKey(r.u64()?), r.u64()?, r.u64()?);
            let spans = leases.keys.entry(key).or_default();
            if from >= until || spans.last().is_some_and(|last| last.1 >= from) {
                return Err(r.malformed("a lease that ends before it begins"));
            }
            spans.push((from, until));
        }
        Ok(leases)
    }

    /// A digest of the leases of a cycle, on top of another digest.
    pub(crate) fn digest(&self, basis: u64, cycle: u64) -> u64 {
        let keys = self.keys.keys().filter(|key| self.has(**key, cycle, cycle));
        keys.fold(basis, |digest, key| fnv1a(digest, &key.0.to_le_bytes()))
    }
}

impl Canopus {
    /// Proposes a request that writes the keys of this name and no others. With write leases the
    /// request waits for the lease. [`Event::Committed`] reports its place in the order.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_to(
        &mut self,
        now: Timestamp,
        request: ClientRequest,
        key: LeaseKey,
    ) -> Result<(), ConsensusError> {
        self.take_write(now, request, key)
    }

    /// Reads keys of this name. [`Event::Answered`] follows at once when no write to the keys is
    /// under way. Otherwise the read waits as [`read`](Self::read) says. The caller takes `now`
    /// after the read has arrived.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_of(
        &mut self,
        now: Timestamp,
        token: u64,
        key: LeaseKey,
    ) -> Result<(), ConsensusError> {
        let has_leases = self.config.lease_cycles > 0;
        if has_leases && self.takes()? && self.is_vouched_for(now) {
            let (first, last) = (self.progress.committed + 1, self.progress.started);
            if first > last || !self.table.leases().is_written(key, first, last) {
                self.events.push_back(Event::Answered(token));
                return Ok(());
            }
        }
        self.read(now, token)
    }

    /// Whether no cycle after the last started one can be committed anywhere without this replica.
    fn is_vouched_for(&self, now: Timestamp) -> bool {
        let Some(own) = self.groups.get(&self.me).filter(|own| own.is_open()) else { return false };
        let incarnation = Some(own.incarnation());
        let is_in = self.table.latest(self.me) == incarnation
            && self.table.incarnation(self.me, self.progress.started + 1) == incarnation;
        let counted = self.vouch_time() * 3 / 4;
        let is_fresh = |asked: &Timestamp| now < *asked + counted;
        let peers = self.peers.values().filter(|peer| {
            peer.vouched.is_some_and(|(of, asked)| Some(of) == incarnation && is_fresh(&asked))
        });
        is_in && !self.is_leaving && peers.count() + 1 > self.place.leaf.members.len() / 2
    }

    fn vouch_time(&self) -> Duration {
        self.config.suspect_after / 2
    }

    /// Asks all members of the super-leaf to vouch for this replica.
    pub(crate) fn ask_to_vouch(&mut self, now: Timestamp) {
        let own = self.groups.get(&self.me).filter(|own| own.is_open());
        if self.config.lease_cycles > 0
            && let Some(own) = own
        {
            let stamp = self.life.wrapping_add(now.nanos());
            self.tell_peers(&ReplicaMessage::Ask(own.incarnation(), stamp));
        }
    }

    pub(crate) fn take_ask(&mut self, now: Timestamp, from: NodeId, incarnation: u32, stamp: u64) {
        let until = now + self.vouch_time();
        let is_loyal = self.group(from, incarnation).is_some_and(|group| group.is_open());
        if is_loyal
            && self.disk.votes()
            && self.config.lease_cycles > 0
            && let Some(peer) = self.peers.get_mut(&from)
        {
            peer.bound_until = until;
            self.send(from, &ReplicaMessage::Vouch(incarnation, stamp));
        }
    }

    pub(crate) fn take_vouch(
        &mut self,
        now: Timestamp,
        from: NodeId,
        incarnation: u32,
        stamp: u64,
    ) {
        // The stamp of another life of this replica is some time in the far future, or long ago.
        let asked = Timestamp::from_nanos(stamp.wrapping_sub(self.life));
        if asked <= now
            && let Some(peer) = self.peers.get_mut(&from)
        {
            let known = peer.vouched.filter(|(of, at)| *of == incarnation && *at > asked);
            peer.vouched = known.or(Some((incarnation, asked)));
        }
    }

    /// After a start, this replica is bound by the promises of its earlier life.
    pub(crate) fn bind_all(&mut self, now: Timestamp) {
        if self.config.lease_cycles > 0 {
            let until = now + self.vouch_time();
            self.peers.values_mut().for_each(|peer| peer.bound_until = until);
        }
    }

    /// Whether this replica has vouched for the owner of a group and so may not help to end the
    /// group. An owner that has given up its own group answers no reads at once.
    pub(crate) fn is_bound(&self, now: Timestamp, owner: NodeId) -> bool {
        let is_loyal = self.groups.get(&owner).is_some_and(|group| group.is_loyal(owner));
        is_loyal && self.peers.get(&owner).is_some_and(|peer| now < peer.bound_until)
    }

    /// Takes the reads that wait, and the writes whose keys have a lease in this cycle. Adds to
    /// `changes` the leases that this replica needs. A write that has no lease yet holds up the
    /// later writes of its client.
    pub(crate) fn take_leased(
        &mut self,
        cycle: u64,
        changes: &mut Vec<AgreedChange>,
    ) -> Vec<Pending> {
        let (mut taken, mut held) = (Vec::new(), VecDeque::new());
        let (mut clients, mut wanted) = (BTreeSet::new(), BTreeSet::new());
        let (mut writes, mut bytes, bytes_max) = (0, 0, self.batch_bytes_max());
        let applies = cycle + self.config.pipeline;
        for next in core::mem::take(&mut self.own.pending) {
            let Pending::Write(request, key) = &next else {
                taken.push(next);
                continue;
            };
            let leases = self.table.leases();
            if !leases.permits(*key, applies) && !self.asks_for(*key) {
                wanted.insert(*key);
            }
            let size = bytes_of(&next);
            let has_room = bytes + size <= bytes_max && writes < Requests::COUNT_MAX;
            if has_room && leases.permits(*key, cycle) && !clients.contains(&request.client) {
                (bytes, writes) = (bytes + size, writes + 1);
                taken.push(next);
            } else {
                clients.insert(request.client);
                held.push_back(next);
            }
        }
        self.own.pending = held;
        self.own.pending_bytes -= bytes;
        if wanted.len() > LEASES_MAX {
            wanted = BTreeSet::from([LeaseKey::ALL]);
        }
        self.own.leases_asked.extend(wanted.iter().map(|key| (*key, cycle)));
        changes.extend(wanted.into_iter().map(AgreedChange::Lease));
        taken
    }

    /// Whether a proposal under way asks for the lease.
    fn asks_for(&self, key: LeaseKey) -> bool {
        let asked = &self.own.leases_asked;
        asked.contains_key(&key) || asked.contains_key(&LeaseKey::ALL)
    }
}

#[cfg(test)]
mod tests;
