//! The connections of a server, and which of them makes room for a new one.
//!
//! A client may keep a connection between two requests, or open many and say nothing. When all
//! places are taken, a connection whose client owes something gives its place up:
//!
//! 1. connections that wait for a request come first, whether they are new or kept alive;
//! 2. then connections whose client has sent no byte of an awaited body for [`OWED_FOR`].
//!
//! Of these, the client with the most connections loses the one that has been silent for longest. A
//! client with one connection is therefore served while another client holds all the other places.
//! Connections whose request is being answered keep their places. When no connection owes anything,
//! the new one is closed at once.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Silence in the middle of a body after which a connection makes room for another. Packets that
/// were lost have come again by then.
const OWED_FOR: Duration = Duration::from_secs(2);

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The client owes the next request, or its key.
    Request,
    /// The client owes the next bytes of a body.
    Body,
    /// The server owes an answer, or the client takes one.
    Answer,
}

#[derive(Debug)]
struct State {
    /// When a byte of a request or an answer last moved.
    moved_at: Instant,
    awaited: Awaited,
}

/// How long a connection may go on as it is.
#[derive(Debug)]
pub(super) struct Life {
    client: IpAddr,
    state: Mutex<State>,
    /// The connection is closed when nothing moves for this time.
    patience: Duration,
    /// The connection is closed because it is late, so that what has come of a body is not all.
    is_cut: AtomicBool,
    /// The connection makes room for another.
    evicted: Notify,
}

impl Life {
    fn new(client: IpAddr, patience: Duration) -> Self {
        let state = State { moved_at: Instant::now(), awaited: Awaited::Request };
        let (state, is_cut, evicted) = (Mutex::new(state), AtomicBool::new(false), Notify::new());
        Self { client, state, patience, is_cut, evicted }
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// When the connection is closed, unless something moves before.
    pub(super) fn due(&self) -> Instant {
        self.with(|state| state.moved_at) + self.patience
    }

    /// A byte has moved.
    pub(super) fn moved(&self) {
        self.with(|state| state.moved_at = Instant::now());
    }

    /// The connection waits for something else from now on.
    pub(super) fn awaits(&self, awaited: Awaited) {
        self.with(|state| *state = State { moved_at: Instant::now(), awaited });
    }

    /// The connection waits for bytes of a body, or has got some. A body that goes on after its
    /// answer has left changes nothing.
    pub(super) fn owes_body(&self, is_owed: bool) {
        let (from, to) = match is_owed {
            true => (Awaited::Answer, Awaited::Body),
            false => (Awaited::Body, Awaited::Answer),
        };
        self.with(|state| {
            state.moved_at = Instant::now();
            if state.awaited == from {
                state.awaited = to;
            }
        });
    }

    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// Waits until the connection has to make room.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// What the client owes, and since when; `None` when the client owes nothing.
    fn debt(&self, now: Instant) -> Option<(Awaited, Instant)> {
        let (awaited, since) = self.with(|state| (state.awaited, state.moved_at));
        let is_owed = match awaited {
            Awaited::Request => true,
            Awaited::Body => now >= since + OWED_FOR,
            Awaited::Answer => false,
        };
        is_owed.then_some((awaited, since))
    }
}

/// See the documentation of the module.
#[derive(Debug)]
pub(super) struct Places {
    connections_max: usize,
    next: u64,
    taken: BTreeMap<u64, Arc<Life>>,
}

/// A place that could be had.
pub(super) struct Place {
    pub(super) number: u64,
    pub(super) life: Arc<Life>,
    /// Whether another connection made room.
    pub(super) has_evicted: bool,
}

impl Places {
    pub(super) fn new(connections_max: usize) -> Self {
        Self { connections_max, next: 0, taken: BTreeMap::new() }
    }

    /// A place for a new connection of a client; `None` when all places are taken and no connection
    /// can make room.
    pub(super) fn take(&mut self, client: IpAddr, patience: Duration) -> Option<Place> {
        let has_evicted = self.taken.len() >= self.connections_max;
        if has_evicted {
            let evicted = self.taken.remove(&self.silent()?)?;
            evicted.evicted.notify_one();
        }
        self.next += 1;
        let (number, life) = (self.next, Arc::new(Life::new(client, patience)));
        self.taken.insert(number, Arc::clone(&life));
        Some(Place { number, life, has_evicted })
    }

    /// The connection has ended.
    pub(super) fn leave(&mut self, number: u64) {
        self.taken.remove(&number);
    }

    /// The connection that makes room for another.
    fn silent(&self) -> Option<u64> {
        let now = Instant::now();
        let mut of_client: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for life in self.taken.values() {
            *of_client.entry(life.client).or_default() += 1;
        }
        let owing = self.taken.iter().filter_map(|(number, life)| {
            let (awaited, since) = life.debt(now)?;
            let count = of_client.get(&life.client).copied().unwrap_or(0);
            Some(((awaited == Awaited::Body, std::cmp::Reverse(count), since), *number))
        });
        owing.min().map(|(_, number)| number)
    }
}
