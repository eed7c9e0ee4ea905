//! [`Server`]: a store on a port of this machine.
//!
//! One thread per connection reads requests and answers them; a second thread answers appends at
//! higher levels than `memory` when their commit is done. An append that a stage refuses is tried
//! again for ten seconds, while the connection reads nothing and the client runs out of credit.
//! Then the append fails, and the file takes no append on that connection until the file is opened
//! again: later appends must not overtake the failed append.

mod connection;
#[cfg(feature = "service")]
pub mod role;
#[cfg(feature = "service")]
pub mod service;
#[cfg(feature = "service")]
pub mod settings;

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::connection::Connection;
use evenfall_store_engine::{Store, StoreError, expect_loopback, lock};

/// Limit of connections. Each connection takes one or two threads and some megabytes.
const CONNECTIONS_MAX: usize = 256;

/// Time without requests after which a connection may be closed for a new one. A more recent
/// request suggests that the client is still active.
const IDLE_MIN: Duration = Duration::from_secs(1);
/// A connection that asks for nothing for this long, and waits for nothing, is closed.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(3_600);

/// Counts of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ServerCounts {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused because all 256 connections had running requests.
    pub turned_away: u64,
    /// Idle connections that were closed for a new connection.
    pub made_room: u64,
    /// Connections closed because of malformed bytes, or because the client exceeded its credit.
    pub malformed: u64,
    /// Connections closed because their client said nothing for too long.
    pub timed_out: u64,
    /// Appends that failed.
    pub failed_appends: u64,
    /// Bytes of replies sent.
    pub sent_bytes: u64,
}

#[derive(Default)]
struct Counters {
    accepted: AtomicU64,
    turned_away: AtomicU64,
    made_room: AtomicU64,
    malformed: AtomicU64,
    timed_out: AtomicU64,
    failed_appends: AtomicU64,
    sent_bytes: AtomicU64,
}

/// What the threads share.
struct Served {
    store: Arc<Store>,
    counters: Counters,
    idle_timeout: Duration,
    /// Whether requests that change the store are refused.
    is_for_readers: bool,
    is_stopping: AtomicBool,
    open: Mutex<BTreeMap<u64, Open>>,
}

/// A connection that is served.
struct Open {
    stream: TcpStream,
    thread: JoinHandle<()>,
    idle: Arc<Idle>,
}

/// The time since which a connection has no running requests.
struct Idle(Mutex<Option<Instant>>);

impl Idle {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Instant::now()))))
    }

    fn begin(&self) {
        lock(&self.0).get_or_insert_with(Instant::now);
    }

    fn end(&self) {
        *lock(&self.0) = None;
    }

    fn since(&self) -> Option<Instant> {
        *lock(&self.0)
    }
}

/// A store on a port, until it is stopped or dropped.
pub struct Server {
    served: Arc<Served>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

fn failed(what: String) -> StoreError {
    StoreError::Remote { what, is_retryable: false }
}

impl Server {
    /// Listens at this address; port 0 takes a free port.
    ///
    /// # Errors
    /// When the address is not loopback, because connections have no key, and without a key nothing
    /// leaves loopback. When the address cannot be bound.
    pub fn start(store: Arc<Store>, listen: SocketAddr) -> Result<Self, StoreError> {
        Self::start_with(store, listen, IDLE_TIMEOUT)
    }

    /// As [`start`](Self::start), with another idle timeout.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        store: Arc<Store>,
        listen: SocketAddr,
        idle_timeout: Duration,
    ) -> Result<Self, StoreError> {
        Self::listen(store, listen, idle_timeout, false)
    }

    /// As [`start`](Self::start), for a store that another part of the process writes: readers are
    /// answered, and requests that would change the store are refused.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_for_readers(store: Arc<Store>, listen: SocketAddr) -> Result<Self, StoreError> {
        Self::listen(store, listen, IDLE_TIMEOUT, true)
    }

    fn listen(
        store: Arc<Store>,
        listen: SocketAddr,
        idle_timeout: Duration,
        is_for_readers: bool,
    ) -> Result<Self, StoreError> {
        expect_loopback("listen address", listen).map_err(|error| failed(error.to_string()))?;
        let said = |error| failed(format!("listen on {listen}: {error}"));
        let listener = TcpListener::bind(listen).map_err(said)?;
        let address = listener.local_addr().map_err(said)?;
        let served = Arc::new(Served {
            store,
            counters: Counters::default(),
            // A socket takes a timeout of zero for no timeout.
            idle_timeout: idle_timeout.max(Duration::from_millis(1)),
            is_for_readers,
            is_stopping: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let shared = Arc::clone(&served);
        let thread = std::thread::Builder::new().name("store-accept".into());
        let acceptor = thread.spawn(move || accept(&shared, &listener)).map_err(said)?;
        Ok(Self { served, address, acceptor: Some(acceptor) })
    }

    /// The address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts so far.
    pub fn counts(&self) -> ServerCounts {
        let counters = &self.served.counters;
        ServerCounts {
            accepted: counters.accepted.load(Relaxed),
            turned_away: counters.turned_away.load(Relaxed),
            made_room: counters.made_room.load(Relaxed),
            malformed: counters.malformed.load(Relaxed),
            timed_out: counters.timed_out.load(Relaxed),
            failed_appends: counters.failed_appends.load(Relaxed),
            sent_bytes: counters.sent_bytes.load(Relaxed),
        }
    }

    /// Closes the port and every connection, and waits for their threads; nothing holds the store
    /// afterwards.
    pub fn stop(mut self) -> ServerCounts {
        self.end();
        self.counts()
    }

    fn end(&mut self) {
        self.served.is_stopping.store(true, Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let open = std::mem::take(&mut *lock(&self.served.open));
        for one in open.into_values() {
            let _ = one.stream.shutdown(Shutdown::Both);
            let _ = one.thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Removes and returns the connection that has been idle for longest, if there is one. Otherwise
/// 256 silent clients could lock out a new client.
fn longest_idle(open: &mut BTreeMap<u64, Open>) -> Option<Open> {
    let idle = open.iter().filter_map(|(number, one)| Some((one.idle.since()?, *number)));
    let (since, number) = idle.min()?;
    if since.elapsed() < IDLE_MIN {
        return None;
    }
    open.remove(&number)
}

fn accept(served: &Arc<Served>, listener: &TcpListener) {
    for number in 0.. {
        let accepted = listener.accept();
        if served.is_stopping.load(Relaxed) {
            return;
        }
        let Ok((stream, _)) = accepted else {
            // The process is probably out of file descriptors, so other connections must end first.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let mut open = lock(&served.open);
        open.retain(|_, one| !one.thread.is_finished());
        if open.len() >= CONNECTIONS_MAX {
            match longest_idle(&mut open) {
                Some(one) => {
                    let _ = one.stream.shutdown(Shutdown::Both);
                    let _ = one.thread.join();
                    served.counters.made_room.fetch_add(1, Relaxed);
                }
                None => {
                    drop(open);
                    served.counters.turned_away.fetch_add(1, Relaxed);
                    connection::turn_away(stream, CONNECTIONS_MAX);
                    continue;
                }
            }
        }
        let shared = Arc::clone(served);
        let thread = std::thread::Builder::new().name("store-connection".into());
        let Ok(kept) = stream.try_clone() else { continue };
        let idle = Idle::new();
        let seen = Arc::clone(&idle);
        let run = move || {
            if Connection::serve(&shared, stream, seen) {
                shared.counters.malformed.fetch_add(1, Relaxed);
            }
        };
        if let Ok(thread) = thread.spawn(run) {
            served.counters.accepted.fetch_add(1, Relaxed);
            open.insert(number, Open { stream: kept, thread, idle });
        }
    }
}

#[cfg(test)]
mod tests;
