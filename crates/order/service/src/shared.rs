//! What the threads of a replica share: the keys, the watches and the connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;
use evenfall_order_machine::Canopus;
use evenfall_order_machine::keys::{Keys, Reply};

use crate::connection::Connection;
use crate::replica::Inbox;
use crate::watches::Watches;

/// What is told to `mntr` and to `kv status`.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that were accepted.
    pub accepted: AtomicU64,
    /// Connections that were closed at once, because there were as many as may be.
    pub turned_away: AtomicU64,
    /// Requests that were read.
    pub requests: AtomicU64,
    /// Connections that were closed because their bytes could not be read.
    pub malformed: AtomicU64,
    /// The last cycle that is committed here.
    pub cycle: AtomicU64,
    /// Whether this replica takes part: 0 or 1.
    pub is_member: AtomicU64,
    /// Calls that wait for a cycle.
    pub waiting: AtomicU64,
}

/// See the module documentation. Locks are taken in the order keys, watches, connections.
#[derive(Debug)]
pub struct Shared {
    keys: RwLock<Keys>,
    watches: Mutex<Watches>,
    connections: Mutex<BTreeMap<u64, Arc<Connection>>>,
    /// Sessions that gave a sign of life since the last report.
    alive: Mutex<BTreeSet<u64>>,
    /// How calls reach the order.
    pub inbox: Inbox,
    /// What is counted.
    pub counters: Counters,
    /// The number of this replica.
    pub node: usize,
}

/// Takes a lock. A thread that panicked with the lock held has left a value that is whole: every
/// change under these locks is one call.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// What a replica begins with.
    pub fn new(keys: RwLock<Keys>, inbox: Inbox, node: usize) -> Self {
        Self {
            keys,
            watches: Mutex::default(),
            connections: Mutex::default(),
            alive: Mutex::default(),
            inbox,
            counters: Counters::default(),
            node,
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

    /// Applies the body of a request, and tells those who watch.
    pub fn apply(&self, revision: u64, body: &Bytes) -> Reply {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let applied = keys.apply(revision, body);
        if applied.changes.is_empty() && applied.ended.is_empty() {
            return applied.reply;
        }
        let events = self.watches().fire(&applied.changes);
        let connections = lock(&self.connections);
        for (to, event) in events {
            if let Some(connection) = connections.get(&to) {
                connection.tell(event);
            }
        }
        for connection in connections.values() {
            if applied.ended.contains(&connection.session()) {
                connection.expire();
            }
        }
        applied.reply
    }

    /// Takes the keys of a snapshot. What changed in between is unknown, so connections with
    /// watches are closed. Their clients connect again and set their watches anew.
    pub fn replace(&self, new: Keys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = new;
        let watching = self.watches().watching();
        let connections = lock(&self.connections);
        watching
            .iter()
            .filter_map(|id| connections.get(id))
            .for_each(|connection| connection.end());
    }

    /// A connection begins. False when there are as many as may be.
    pub fn begin(&self, id: u64, connection: &Arc<Connection>, most: usize) -> bool {
        let mut connections = lock(&self.connections);
        let has_room = connections.len() < most;
        if has_room {
            connections.insert(id, Arc::clone(connection));
        }
        has_room
    }

    /// A connection has ended.
    pub fn finish(&self, id: u64) {
        self.watches().forget(id);
        lock(&self.connections).remove(&id);
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        lock(&self.connections).len()
    }

    /// Closes other connections of a session: the client has come back by a new one.
    pub fn move_session(&self, session: u64, id: u64) {
        let connections = lock(&self.connections);
        let others =
            connections.iter().filter(|(other, c)| **other != id && c.session() == session);
        others.for_each(|(_, connection)| connection.end());
    }

    /// A session gave a sign of life.
    pub fn touch(&self, session: u64) {
        lock(&self.alive).insert(session);
    }

    /// Sessions that gave a sign of life since the last call.
    pub fn take_alive(&self) -> Vec<u64> {
        core::mem::take(&mut *lock(&self.alive)).into_iter().collect()
    }

    /// Notes what the machine says of itself.
    pub fn note(&self, machine: &Canopus) {
        self.counters.cycle.store(machine.committed(), Relaxed);
        self.counters.is_member.store(machine.is_member().into(), Relaxed);
        self.counters.waiting.store(machine.waiting() as u64, Relaxed);
    }
}
