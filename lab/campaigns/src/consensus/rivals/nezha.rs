//! Nezha: requests in the order of deadlines on synchronised clocks (Geng and others, VLDB 2022).
//!
//! The replica that made a batch gives it a deadline, by which the batch has reached all replicas,
//! and sends it to all. Each replica holds a batch that comes in time until the deadline, and then
//! puts the batch at the end of its log, so that the logs are equal without a message between
//! replicas. Evenfall's multicast holds messages in the same way. A batch that comes late to the
//! leader gets a later deadline; a batch that comes late to a follower waits until the leader has
//! given its place.
//!
//! Each follower tells the replica of the batch a hash of its log. The **fast path**: hashes of a
//! super quorum equal that of the leader. The **slow path**: enough followers have repaired their
//! logs by the leader's.
//!
//! The replica of a batch plays the part of the proxy, the first leader stays, and the order is not
//! relaxed for batches that have no key in common.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use evenfall_core::{Malformed, SyncTime, Timestamp};

use super::wire::{Batch, WireField as _, messages};
use super::{ActionPace, Config, Rival, RivalContext};

/// A batch: the replica that made it, and its number there.
type Id = (u32, u64);

/// The leader tells its order at most this many times in the time between two batches.
const ORDERS_PER_BATCH: u32 = 8;
/// When a shorter delay is measured, the estimated delay falls by the difference over this number.
const FALL: u64 = 16;

messages! {
    enum Message {
        /// A batch, when it was sent, and its deadline, by the synchronised clock.
        Request { batch: Batch, sent: u64, deadline: u64 },
        /// The sender has the receiver's batch in its log. `hash` is the hash of this log up to the
        /// batch, and `delay` is the time that the batch was on its way. In the slow path, this log
        /// equals the leader's log up to the batch.
        Reply { number: u64, hash: u64, is_slow: bool, delay: u64 },
        /// The next batches of the leader's log, and how many batches of the log are committed.
        Order { next: Vec<(u32, u64)>, committed: u64 },
        /// The log of the sender equals the leader's log up to this entry.
        Synced { upto: u64 },
    }
}

/// The state of a batch's commit, as the replica of the batch knows it.
#[derive(Debug, Default)]
struct Open {
    /// The hashes of followers.
    fast: Vec<u64>,
    /// Followers that have repaired their logs.
    slow: u32,
    /// The place of the batch in the leader's log, and the hash of that log up to the batch.
    place: Option<(u64, u64)>,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Nezha {
    me: u32,
    leader: u32,
    count: u32,
    /// Longest delay that is believed, because a clock may be wrong.
    delay_max: u64,
    /// The delay to each other replica in nanoseconds, estimated from above.
    delays: Vec<u64>,
    /// Batches that are not executed, each with the time that the batch was on its way.
    bodies: BTreeMap<Id, (Batch, u64)>,
    /// Batches that wait for their deadlines, and the last deadline at which a batch was released.
    early: BTreeSet<(u64, Id)>,
    deadlines: BTreeMap<Id, u64>,
    released: u64,
    /// Batches that were released here and are not in the leader's log yet, each with the hash that
    /// was sent.
    tail: VecDeque<(Id, u64)>,
    /// The hash of the log with its tail.
    tip: u64,
    /// The leader's log behind what is executed here, with its hashes.
    order: VecDeque<(Id, u64)>,
    /// The hash of the leader's log up to the last entry that is known here.
    hash: u64,
    executed: u64,
    committed: u64,
    /// Entries of the leader whose batches this replica does not have yet.
    ordered: VecDeque<Id>,
    /// Own batches that are not committed, by number.
    open: BTreeMap<u64, Open>,
    /// At the leader: how far the log of each follower equals the leader's log.
    synced: Vec<u64>,
    /// At the leader: entries that the leader has not told the followers.
    untold: Vec<Id>,
    /// At a follower: how far its log equals the leader's log, as the follower told the leader.
    told: u64,
    /// At the leader: the number of committed entries that the leader has told the followers.
    told_committed: u64,
    order_pace: ActionPace,
    sync_pace: ActionPace,
    /// The deadline of the last own batch: requests of one client keep their order.
    last_deadline: u64,
    /// When the next batch is released.
    release_at: Option<Timestamp>,
}

fn chain(hash: u64, (origin, number): Id) -> u64 {
    (hash ^ u64::from(origin) << 48 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

impl Nezha {
    /// The replica with number `me`.
    pub fn new(config: &Config, me: u32) -> Self {
        let count = config.addresses.len() as u32;
        Self {
            me,
            leader: config.leader,
            count,
            delay_max: config.retry.as_nanos() as u64,
            delays: vec![0; count as usize],
            bodies: BTreeMap::new(),
            early: BTreeSet::new(),
            deadlines: BTreeMap::new(),
            released: 0,
            tail: VecDeque::new(),
            tip: 0,
            order: VecDeque::new(),
            hash: 0,
            executed: 0,
            committed: 0,
            ordered: VecDeque::new(),
            open: BTreeMap::new(),
            synced: vec![0; count as usize],
            untold: Vec::new(),
            told: 0,
            told_committed: 0,
            order_pace: ActionPace::new(config.batch_every / ORDERS_PER_BATCH),
            sync_pace: ActionPace::new(config.batch_every),
            last_deadline: 0,
            release_at: None,
        }
    }

    fn is_leader(&self) -> bool {
        self.me == self.leader
    }

    /// Entries of the leader's log that are known here.
    fn known(&self) -> u64 {
        self.executed + self.order.len() as u64
    }

    /// Number of followers that may fail.
    fn failures(&self) -> u32 {
        self.count.saturating_sub(1) / 2
    }

    /// Followers that make a super quorum with the leader.
    fn fast_followers(&self) -> usize {
        super::fast_quorum(self.count) as usize
    }

    /// Holds a batch until its deadline, or keeps it until the leader has ordered it.
    fn hold(&mut self, batch: Batch, mut deadline: u64, delay: u64) {
        let id = (batch.origin, batch.number);
        self.bodies.insert(id, (batch, delay));
        if self.ordered.contains(&id) {
            return;
        }
        if deadline <= self.released {
            if !self.is_leader() {
                return;
            }
            deadline = self.released + 1;
        }
        self.early.insert((deadline, id));
        self.deadlines.insert(id, deadline);
    }

    /// Releases the batches that are due to the end of the log.
    fn release(&mut self, out: &mut RivalContext) {
        let time = out.clock.sync(out.now).nanos();
        while let Some(first) = self.early.first().copied().filter(|first| first.0 <= time) {
            self.early.remove(&first);
            let (_, id) = first;
            self.deadlines.remove(&id);
            self.released = first.0;
            if self.is_leader() {
                self.adopt(out, id);
                continue;
            }
            self.tip = chain(self.tip, id);
            self.tail.push_back((id, self.tip));
            self.reply(out, id, self.tip, false);
        }
        let next = self.early.first().map(|first| out.clock.local(SyncTime::from_nanos(first.0)));
        self.release_at = next;
    }

    fn reply(&mut self, out: &mut RivalContext, id: Id, hash: u64, is_slow: bool) {
        let (origin, number) = id;
        if origin == self.me {
            return self.count_reply(number, hash, is_slow);
        }
        let delay = self.bodies.get(&id).map_or(0, |(_, delay)| *delay);
        out.send(origin, &Message::Reply { number, hash, is_slow, delay });
    }

    /// Takes the next entry of the leader's log.
    fn adopt(&mut self, out: &mut RivalContext, id: Id) {
        self.hash = chain(self.hash, id);
        self.order.push_back((id, self.hash));
        let (place, hash) = (self.known(), self.hash);
        if self.is_leader() {
            self.untold.push(id);
        } else {
            let first = self.tail.front().copied();
            match first.filter(|(first, _)| *first == id) {
                Some((_, told)) => {
                    self.tail.pop_front();
                    if told != hash {
                        self.reply(out, id, hash, true);
                    }
                }
                None => {
                    self.tail.retain(|(other, _)| *other != id);
                    if let Some(deadline) = self.deadlines.remove(&id) {
                        self.early.remove(&(deadline, id));
                    }
                    self.tip = self.tail.iter().fold(hash, |hash, (id, _)| chain(hash, *id));
                    self.reply(out, id, hash, true);
                }
            }
        }
        if id.0 == self.me
            && let Some(open) = self.open.get_mut(&id.1)
        {
            open.place = Some((place, hash));
            self.judge(id.1);
        }
    }

    fn count_reply(&mut self, number: u64, hash: u64, is_slow: bool) {
        let Some(open) = self.open.get_mut(&number) else { return };
        match is_slow {
            true => open.slow += 1,
            false => open.fast.push(hash),
        }
        self.judge(number);
    }

    /// Commits a batch of this replica when enough followers have the batch in the leader's place.
    fn judge(&mut self, number: u64) {
        let Some(open) = self.open.get(&number) else { return };
        let Some((place, hash)) = open.place else { return };
        // A follower whose hash was another one replies again in the slow path.
        let equal = open.fast.iter().filter(|told| **told == hash).count();
        let is_fast = equal + open.slow as usize >= self.fast_followers();
        if is_fast || open.slow >= self.failures() {
            self.open.remove(&number);
            self.committed = self.committed.max(place);
        }
    }

    fn execute(&mut self, out: &mut RivalContext) {
        while self.executed < self.committed
            && let Some((id, _)) = self.order.pop_front()
        {
            self.executed += 1;
            if id.0 == self.me {
                self.open.remove(&id.1);
            }
            if let Some((batch, _)) = self.bodies.remove(&id) {
                out.execute(batch);
            }
        }
    }

    /// Tells the other replicas how long the log is.
    fn tell(&mut self, out: &mut RivalContext) {
        if !self.is_leader() {
            let known = self.known();
            if known > self.told && self.sync_pace.begin(out.now) {
                self.told = known;
                out.send(self.leader, &Message::Synced { upto: known });
            }
            return;
        }
        let has_more = self.committed > self.told_committed;
        let is_due = !self.untold.is_empty() && self.order_pace.begin(out.now);
        if is_due || (has_more && self.sync_pace.begin(out.now)) {
            let next = core::mem::take(&mut self.untold);
            self.told_committed = self.committed;
            out.broadcast(&Message::Order { next, committed: self.committed });
        }
    }
}

impl Rival for Nezha {
    fn propose(&mut self, out: &mut RivalContext, batch: Batch) {
        let sent = out.clock.sync(out.now).nanos();
        let bound = self.delays.iter().max().copied().unwrap_or(0);
        let deadline = (sent + bound.min(self.delay_max)).max(self.last_deadline + 1);
        self.last_deadline = deadline;
        self.open.insert(batch.number, Open::default());
        out.broadcast(&Message::Request { batch: batch.clone(), sent, deadline });
        self.hold(batch, deadline, 0);
    }

    fn hear(
        &mut self,
        out: &mut RivalContext,
        from: u32,
        message: &Bytes,
    ) -> Result<(), Malformed> {
        match Message::whole(message)? {
            Message::Request { batch, sent, deadline } => {
                if batch.origin != from {
                    return Err(Malformed { what: "a batch of another replica", offset: 0 });
                }
                let delay = out.clock.sync(out.now).nanos().saturating_sub(sent);
                self.hold(batch, deadline, delay.min(self.delay_max));
            }
            Message::Reply { number, hash, is_slow, delay } => {
                let known = &mut self.delays[from as usize];
                *known = delay.max(*known - known.saturating_sub(delay).div_ceil(FALL));
                self.count_reply(number, hash, is_slow);
            }
            Message::Order { next, committed } => {
                self.ordered.extend(next);
                self.committed = self.committed.max(committed);
            }
            Message::Synced { upto } => {
                let synced = &mut self.synced[from as usize];
                *synced = upto.max(*synced);
                let mut synced = self.synced.clone();
                synced[self.me as usize] = u64::MAX;
                synced.sort_unstable();
                self.committed = self.committed.max(synced[(self.count as usize - 1) / 2]);
            }
        }
        Ok(())
    }

    fn turn(&mut self, out: &mut RivalContext) {
        self.release(out);
        while let Some(id) = self.ordered.front().copied()
            && self.bodies.contains_key(&id)
        {
            self.ordered.pop_front();
            self.adopt(out, id);
        }
        self.execute(out);
        self.tell(out);
    }

    fn wake(&self) -> Option<Timestamp> {
        let (order, sync) = (self.order_pace.next(), self.sync_pace.next());
        let tell = match self.is_leader() {
            true => (!self.untold.is_empty()).then_some(order),
            false => (self.known() > self.told).then_some(sync),
        };
        let commit = self.is_leader() && self.committed > self.told_committed;
        [tell, commit.then_some(sync), self.release_at].into_iter().flatten().min()
    }
}
