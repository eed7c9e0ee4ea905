//! The state that the two threads of a replica share: the keys, the watches, and notices for
//! clients.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use evenfall_consensus_machine::{ClientRequest, ConsensusStatus, Requests};
use evenfall_host::Waker;
use evenfall_keys_machine::{BYTES_MAX, Keys};

use crate::Settings;
use crate::replica::{AskedRequest, ReplicaAnswer, ReplicaInbox};
use crate::watches::{Event, Watches};

/// Numbers that the replica thread keeps for `mntr` and `kv status`.
#[derive(Debug, Default)]
pub struct ReplicaCounters {
    /// The last cycle that is committed here.
    pub cycle: AtomicU64,
    /// Whether this replica takes part.
    pub is_member: AtomicBool,
    /// Whether this replica is the first of those that take part.
    pub is_first: AtomicBool,
    /// Whether this replica waits for room on its disk.
    pub is_disk_full: AtomicBool,
    /// Replicas that take part.
    pub members: AtomicU64,
    /// A bit for each rack that takes no part.
    pub racks_out: AtomicU64,
    /// A bit for each rack without which the others could not go on.
    pub racks_needed: AtomicU64,
    /// Calls that wait for a cycle.
    pub waiting: AtomicU64,
    /// Reads that were answered at once, under write leases.
    pub reads_at_once: AtomicU64,
}

/// A notice of the replica thread for the front. Notices come in the order in which things
/// happened.
#[derive(Debug)]
pub enum Notice {
    /// The answer to a call or a sync.
    Answer(AskedRequest, ReplicaAnswer),
    /// An event for a connection.
    Event(u64, Event),
    /// A session has ended, or has moved to another connection.
    Left(u64),
    /// Keys have changed without events, so these connections have missed events.
    Missed(Vec<u64>),
}

/// See the module documentation. Locks are taken in the order keys, watches, notices.
#[derive(Debug)]
pub struct SharedKeys {
    keys: RwLock<Keys>,
    watches: Mutex<Watches>,
    notices: Mutex<Vec<Notice>>,
    /// Wakes the front.
    front: Waker,
    /// Sessions that gave a sign of life since the last report.
    alive: Mutex<BTreeSet<u64>>,
    /// The inbox of the replica thread.
    pub inbox: ReplicaInbox,
    /// What the replica thread counts.
    pub counters: ReplicaCounters,
    /// What the replica was started with.
    pub settings: Settings,
}

/// Takes a lock. A thread that panicked while it held the lock has left the value in order, because
/// every change under these locks is one call.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedKeys {
    /// The shared state of a replica that starts.
    pub fn new(settings: Settings, inbox: ReplicaInbox, front: Waker) -> Self {
        Self {
            keys: RwLock::new(Keys::new(BYTES_MAX)),
            watches: Mutex::default(),
            notices: Mutex::default(),
            front,
            alive: Mutex::default(),
            inbox,
            counters: ReplicaCounters::default(),
            settings,
        }
    }

    /// The keys, which do not change until the guard is dropped.
    pub fn keys(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watches.
    pub fn watches(&self) -> MutexGuard<'_, Watches> {
        lock(&self.watches)
    }

    /// Notices for the front. The front is woken for the first of them. Their number is bounded by
    /// the requests and watches of connections, which have limits.
    pub fn tell(&self, new: impl IntoIterator<Item = Notice>) {
        let mut notices = lock(&self.notices);
        let was_empty = notices.is_empty();
        notices.extend(new);
        if was_empty && !notices.is_empty() {
            self.front.wake();
        }
    }

    /// The notices that have come. A caller that holds the keys during this call gets the events of
    /// all changes that these keys contain.
    pub fn take_notices(&self) -> Vec<Notice> {
        core::mem::take(&mut *lock(&self.notices))
    }

    /// Applies requests. Queues the events for the connections that watch, and the answers to the
    /// requests for which `asked` names a waiting connection. The locks are taken once for all
    /// requests.
    pub fn apply(
        &self,
        requests: &Requests,
        mut asked: impl FnMut(&ClientRequest) -> Option<AskedRequest>,
    ) {
        let mut notices = Vec::new();
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        for request in requests {
            let applied = keys.apply(&request.body);
            if !applied.changes.is_empty() {
                let events = self.watches().fire(&applied.changes, &keys);
                notices.extend(events.into_iter().map(|(to, event)| Notice::Event(to, event)));
            }
            notices.extend(applied.ended.into_iter().chain(applied.moved).map(Notice::Left));
            let answer = |asked| {
                Notice::Answer(asked, ReplicaAnswer::Applied(applied.reply, keys.revision()))
            };
            notices.extend(asked(&request).map(answer));
        }
        self.tell(notices);
    }

    /// Takes the keys of a snapshot. What changed in between is unknown, so connections with
    /// watches are closed. Their clients connect again and set their watches anew.
    pub fn replace(&self, new: Keys) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        *keys = new;
        self.tell([Notice::Missed(self.watches().watching())]);
    }

    /// A session gave a sign of life.
    pub fn touch(&self, session: u64) {
        lock(&self.alive).insert(session);
    }

    /// Sessions that gave a sign of life since the last call.
    pub fn take_alive(&self) -> Vec<u64> {
        core::mem::take(&mut *lock(&self.alive)).into_iter().collect()
    }

    /// Takes over the counters of the replica of the consensus.
    pub fn note(&self, status: &ConsensusStatus) {
        let counters = &self.counters;
        counters.cycle.store(status.committed, Relaxed);
        counters.is_member.store(status.is_member && !status.is_disk_full, Relaxed);
        counters.is_first.store(status.is_first_member, Relaxed);
        counters.is_disk_full.store(status.is_disk_full, Relaxed);
        counters.members.store(status.members as u64, Relaxed);
        counters.racks_out.store(status.racks_out, Relaxed);
        counters.racks_needed.store(status.racks_needed, Relaxed);
        counters.waiting.store(status.waiting as u64, Relaxed);
    }
}
