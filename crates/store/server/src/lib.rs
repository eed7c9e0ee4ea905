//! [`Server`]: a store on a port of this machine.
//!
//! One thread per connection reads requests and answers them; a second thread answers appends at
//! higher levels than `memory` when their commit is done. An append that a stage refuses is tried
//! again for ten seconds, while the connection reads nothing and the client runs out of credit.
//! Then the append fails, and the file takes no append on that connection until the file is opened
//! again: later appends must not overtake the failed append. A third thread pushes records to
//! subscribers and answers requests that wait for appends. A connection that rests keeps the first
//! thread alone, and small buffers, because a server has thousands of connections.
//!
//! A node of a cluster answers reads of all files of the cluster. The engine finds the records of
//! another node's file in the objects, and asks its primary for those that are not there when the
//! reader wants fresh records.
//!
//! A server without users listens on loopback alone. With [`users`] each connection is sealed under
//! the key of a user, and may come from another machine. Until its first record has opened, a
//! connection is that of a stranger, and takes one of few places for strangers alone.

mod connection;
#[cfg(feature = "service")]
pub mod role;
#[cfg(feature = "service")]
pub mod service;
#[cfg(feature = "service")]
pub mod settings;
#[cfg(feature = "service")]
mod settlement_watch;
pub mod users;

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::connection::{Connection, RoomSeekers};
use self::users::{StoreUser, StoreUsers, UserSession};
use evenfall_store_engine::{Store, StoreError, expect_closed, lock};

/// Limit of connections where the settings say no other. An idle connection takes a file
/// descriptor, a thread with a small stack and some kilobytes of buffers. The thesis has 800
/// clients a node.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Stack of a thread that serves a connection. The kernel makes a stack of two mebibytes, the usual
/// size, out of one huge page where it may, and ten thousand of those are 20 GiB.
const STACK_BYTES: usize = 1 << 20;
/// Connections that the kernel holds until they are accepted: many clients may connect at once.
const BACKLOG: i32 = 4_096;
/// Limit of connections that have proved no key, in a server with users: beside those above, so
/// that strangers take no place of a user. A handshake takes a round trip, and the oldest of 64
/// goes first. It has been silent for longer, unless 64 come within a round trip.
const STRANGERS_MAX: usize = 64;
/// Longest part of a rest, after which a thread looks whether the server stops.
const REST_PART: Duration = Duration::from_millis(50);

/// Time without requests after which a connection may be closed for a new one. A more recent
/// request suggests that the client is still active.
const IDLE_MIN: Duration = Duration::from_secs(1);
/// A connection without a request under way that sends none for this long is closed.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(3_600);

/// A subscriber that grants no bytes for this long is told so, and its subscription ends. The
/// socket shows when a client has gone. This limit finds a program that runs and has forgotten its
/// subscription, which takes one of the sixteen places of its connection. Ten minutes let a program
/// stop in a debugger and go on.
pub const CREDIT_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a server that stops gives its connections to send their last replies. Loopback takes
/// them in milliseconds from a client that reads. A client that does not read would hold up the
/// stop for 30 s, which is the timeout of a write.
const LAST_REPLIES: Duration = Duration::from_secs(1);

/// How many clients a server serves, and how long it waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Connections at once. In a server with users, those of users.
    pub connections_max: usize,
    /// How long a connection that waits for nothing may send no request.
    pub idle_timeout: Duration,
    /// How long a subscriber without credit may grant none.
    pub credit_timeout: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            idle_timeout: IDLE_TIMEOUT,
            credit_timeout: CREDIT_TIMEOUT,
        }
    }
}

/// Counts of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ServerCounts {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused because all connections had running requests, or because the machine had
    /// no thread left.
    pub turned_away: u64,
    /// Idle connections that were closed for a new connection.
    pub made_room: u64,
    /// Connections closed because of malformed bytes, or because the client exceeded its credit.
    pub malformed: u64,
    /// Connections closed because their client said nothing for too long.
    pub timed_out: u64,
    /// Subscriptions begun.
    pub subscriptions: u64,
    /// Subscriptions that ended because their reader gave no credit.
    pub starved_subscriptions: u64,
    /// Appends that failed.
    pub failed_appends: u64,
    /// Bytes of replies sent.
    pub sent_bytes: u64,
    /// Bytes of records that were read from this node because it is their primary: by other nodes
    /// for their readers, and by readers of the cluster.
    pub primary_bytes: u64,
    /// Connections without a key, or without the key of a user.
    pub refused_handshakes: u64,
    /// Requests for which their user lacks the right.
    pub refused_rights: u64,
}

#[derive(Default)]
struct Counters {
    accepted: AtomicU64,
    turned_away: AtomicU64,
    made_room: AtomicU64,
    malformed: AtomicU64,
    timed_out: AtomicU64,
    subscriptions: AtomicU64,
    starved_subscriptions: AtomicU64,
    failed_appends: AtomicU64,
    sent_bytes: AtomicU64,
    primary_bytes: AtomicU64,
    refused_handshakes: AtomicU64,
    refused_rights: AtomicU64,
}

/// What the threads share.
struct Served {
    store: Arc<Store>,
    counters: Counters,
    limits: ClientLimits,
    /// Whether requests that change the store are refused.
    is_for_readers: bool,
    /// Who may connect; without users, every program on this machine.
    users: Option<Arc<StoreUsers>>,
    /// Connections whose append waits until the store has room.
    room: RoomSeekers,
    is_stopping: AtomicBool,
    open: Mutex<BTreeMap<u64, Open>>,
}

impl Served {
    /// Lets a thread rest, for a rate of bytes.
    fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.is_stopping.load(Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(REST_PART));
        }
    }

    /// Counts a connection for the user who has proved a key, and makes room for it.
    fn admit(
        &self,
        user: &Arc<StoreUser>,
        state: &ConnectionState,
    ) -> Result<UserSession, StoreError> {
        let session = user.connect()?;
        let open = lock(&self.open);
        let is_of_user = |one: &&Open| one.state.user().is_some() && !one.state.is_leaving();
        if open.values().filter(is_of_user).count() >= self.limits.connections_max {
            let idle = open.values().filter(is_of_user);
            let idle = idle.filter_map(|one| Some((one.state.idle_since()?, one)));
            match idle.min_by_key(|(since, _)| *since) {
                Some((since, one)) if since.elapsed() >= IDLE_MIN => {
                    one.leave();
                    self.counters.made_room.fetch_add(1, Relaxed);
                }
                _ => {
                    self.counters.turned_away.fetch_add(1, Relaxed);
                    let what = self.busy_words();
                    return Err(StoreError::Remote { what, is_retryable: true });
                }
            }
        }
        // Users are revoked before their connections are closed, under this lock.
        if user.is_revoked() {
            return Err(failed(format!("user {} was taken out or changed just now", user.name())));
        }
        state.set_user(user);
        Ok(session)
    }

    /// Gives file descriptors back: those of ended connections, or else that of the connection that
    /// was idle for longest. Users keep their connections.
    fn close_one(&self) {
        let mut open = lock(&self.open);
        let before = open.len();
        open.retain(|_, one| !one.thread.is_finished());
        if open.len() == before && self.users.is_none() {
            self.close_idle(&mut open);
        }
    }

    /// Closes the connection that was idle for longest, and waits for its thread. Returns whether
    /// there was one.
    fn close_idle(&self, open: &mut BTreeMap<u64, Open>) -> bool {
        let Some(one) = longest_idle(open) else { return false };
        let _ = one.stream.shutdown(Shutdown::Both);
        let _ = one.thread.join();
        self.counters.made_room.fetch_add(1, Relaxed);
        true
    }

    fn busy_words(&self) -> String {
        let most = self.limits.connections_max;
        format!("{most} connections have requests under way here: try later")
    }

    /// Closes the oldest stranger when there are as many as may be.
    fn limit_strangers(&self, open: &BTreeMap<u64, Open>) {
        let strangers = open.values().filter(|one| one.state.user().is_none());
        let mut strangers = strangers.filter(|one| !one.state.is_leaving());
        if let Some(oldest) = strangers.next()
            && strangers.count() + 1 >= STRANGERS_MAX
        {
            oldest.leave();
            self.counters.made_room.fetch_add(1, Relaxed);
        }
    }
}

/// A connection that is served.
struct Open {
    stream: Arc<TcpStream>,
    thread: JoinHandle<()>,
    state: Arc<ConnectionState>,
}

impl Open {
    /// Closes the connection, whose thread then ends by itself.
    fn leave(&self) {
        self.state.is_leaving.store(true, Relaxed);
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// What the server knows of a connection.
struct ConnectionState {
    /// Since when the connection has no running requests.
    idle_since: Mutex<Option<Instant>>,
    /// The user who has proved the key.
    user: OnceLock<Arc<StoreUser>>,
    /// The connection is closed, and its thread has not ended yet.
    is_leaving: AtomicBool,
}

impl ConnectionState {
    fn new() -> Arc<Self> {
        let (user, is_leaving) = (OnceLock::new(), AtomicBool::new(false));
        Arc::new(Self { idle_since: Mutex::new(Some(Instant::now())), user, is_leaving })
    }

    fn begin_idleness(&self) {
        lock(&self.idle_since).get_or_insert_with(Instant::now);
    }

    fn end_idleness(&self) {
        *lock(&self.idle_since) = None;
    }

    fn idle_since(&self) -> Option<Instant> {
        *lock(&self.idle_since)
    }

    fn user(&self) -> Option<&Arc<StoreUser>> {
        self.user.get()
    }

    fn set_user(&self, user: &Arc<StoreUser>) {
        let _ = self.user.set(Arc::clone(user));
    }

    fn is_leaving(&self) -> bool {
        self.is_leaving.load(Relaxed)
    }
}

/// The advice for an address that other machines reach, without users.
pub const LISTEN_ADVICE: &str = "give a file of users with keys (--users FILE, store.users_file), \
                                 or use 127.0.0.1 and a tunnel";

/// Who may connect.
enum ServedClients {
    /// Programs on this machine.
    Programs,
    /// Programs on this machine that change nothing.
    Readers,
    /// Users with keys.
    #[cfg_attr(
        not(feature = "users"),
        allow(dead_code, reason = "no build without seals has users")
    )]
    Users(Arc<StoreUsers>),
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
        Self::start_with(store, listen, ClientLimits::default())
    }

    /// As [`start`](Self::start), with other limits of clients.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        store: Arc<Store>,
        listen: SocketAddr,
        limits: ClientLimits,
    ) -> Result<Self, StoreError> {
        Self::listen(store, listen, limits, ServedClients::Programs)
    }

    /// As [`start_with`](Self::start_with), for users with keys. The address may be any address.
    ///
    /// # Errors
    /// When the address cannot be bound.
    #[cfg(feature = "users")]
    pub fn start_for_users(
        store: Arc<Store>,
        listen: SocketAddr,
        limits: ClientLimits,
        users: Arc<StoreUsers>,
    ) -> Result<Self, StoreError> {
        Self::listen(store, listen, limits, ServedClients::Users(users))
    }

    /// As [`start`](Self::start), for a store that another part of the process writes: readers are
    /// answered, and requests that would change the store are refused.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_for_readers(store: Arc<Store>, listen: SocketAddr) -> Result<Self, StoreError> {
        Self::listen(store, listen, ClientLimits::default(), ServedClients::Readers)
    }

    fn listen(
        store: Arc<Store>,
        listen: SocketAddr,
        limits: ClientLimits,
        clients: ServedClients,
    ) -> Result<Self, StoreError> {
        let is_for_readers = matches!(clients, ServedClients::Readers);
        let users = match clients {
            ServedClients::Users(users) => Some(users),
            ServedClients::Programs | ServedClients::Readers => None,
        };
        expect_closed("listen address", listen, users.is_some(), LISTEN_ADVICE)
            .map_err(|error| failed(error.to_string()))?;
        let said = |error| failed(format!("listen on {listen}: {error}"));
        let listener = TcpListener::bind(listen).map_err(said)?;
        // The standard library listens with a backlog of 128, and a second call changes it.
        rustix::net::listen(&listener, BACKLOG).map_err(|error| said(error.into()))?;
        let address = listener.local_addr().map_err(said)?;
        let served = Arc::new(Served {
            store,
            counters: Counters::default(),
            // A socket takes a timeout of zero for no timeout.
            limits: ClientLimits {
                connections_max: limits.connections_max.max(1),
                idle_timeout: limits.idle_timeout.max(Duration::from_millis(1)),
                ..limits
            },
            is_for_readers,
            users,
            room: RoomSeekers::default(),
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
            subscriptions: counters.subscriptions.load(Relaxed),
            starved_subscriptions: counters.starved_subscriptions.load(Relaxed),
            failed_appends: counters.failed_appends.load(Relaxed),
            sent_bytes: counters.sent_bytes.load(Relaxed),
            primary_bytes: counters.primary_bytes.load(Relaxed),
            refused_handshakes: counters.refused_handshakes.load(Relaxed),
            refused_rights: counters.refused_rights.load(Relaxed),
        }
    }

    /// Closes the connections of users who were taken out of the users file, or changed there.
    /// Returns how many connections.
    pub fn close_revoked(&self) -> usize {
        let open = lock(&self.served.open);
        let is_revoked = |one: &&Open| one.state.user().is_some_and(|user| user.is_revoked());
        let revoked: Vec<&Open> = open.values().filter(is_revoked).collect();
        revoked.iter().for_each(|one| one.leave());
        revoked.len()
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
        // Each connection reads no further request, and sends its last replies.
        for one in open.values() {
            let _ = one.stream.shutdown(Shutdown::Read);
        }
        let until = Instant::now() + LAST_REPLIES;
        while open.values().any(|one| !one.thread.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
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

/// Removes and returns the connection that has been idle for longest, if there is one. It makes
/// room for a new client, which silent clients could lock out otherwise.
fn longest_idle(open: &mut BTreeMap<u64, Open>) -> Option<Open> {
    let idle = open.iter().filter_map(|(number, one)| Some((one.state.idle_since()?, *number)));
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
            served.close_one();
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let mut open = lock(&served.open);
        open.retain(|_, one| !one.thread.is_finished());
        if served.users.is_some() {
            served.limit_strangers(&open);
        } else if open.len() >= served.limits.connections_max && !served.close_idle(&mut open) {
            drop(open);
            served.counters.turned_away.fetch_add(1, Relaxed);
            connection::turn_away(&stream, &served.busy_words());
            continue;
        }
        let (shared, state) = (Arc::clone(served), ConnectionState::new());
        let (stream, seen) = (Arc::new(stream), Arc::clone(&state));
        let socket = Arc::clone(&stream);
        let run = move || {
            if Connection::serve(&shared, socket, seen) {
                shared.counters.malformed.fetch_add(1, Relaxed);
            }
        };
        match connection_thread("store-connection").spawn(run) {
            Ok(thread) => {
                served.counters.accepted.fetch_add(1, Relaxed);
                open.insert(number, Open { stream, thread, state });
            }
            Err(error) => {
                drop(open);
                served.counters.turned_away.fetch_add(1, Relaxed);
                let what = format!("this machine gives the server no further thread: {error}");
                connection::turn_away(&stream, &what);
            }
        }
    }
}

/// A thread for a part of a connection.
fn connection_thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.into()).stack_size(STACK_BYTES)
}

#[cfg(test)]
mod tests;
