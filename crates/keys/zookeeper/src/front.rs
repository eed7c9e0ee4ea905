//! Where clients connect: one thread that waits for all of them at once.
//!
//! An idle client costs its socket and a few hundred bytes, so ten thousand of them are no load. A
//! turn of the thread reads what has come, hands the calls to the replica thread, and answers in
//! the order of each client's requests.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenfall_host::Waker;
use evenfall_keys_machine::Keys;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::connection::{Connection, ConnectionEnd};
#[cfg(doc)]
use crate::reading::ReadingClient;
use crate::refusals::ClientRefusal;
use crate::replica::ConnectionInput;
use crate::shared::{Notice, SharedKeys};
use crate::stats::Stats;
use crate::{KeysError, words};

/// Limit of the bytes that this replica holds for all clients together. Beyond the limit, clients
/// with many bytes are turned away.
const HELD_BYTES_MAX: usize = 256 << 20;
/// Only clients for which more bytes than these are held are turned away at that limit.
const LONG_BYTES: usize = 64 << 10;
/// Most sockets that one turn serves.
const READY_MAX: usize = 1_024;
/// Most connections that one turn accepts.
const ACCEPTS_PER_TURN: usize = 256;
/// Work of reads (see [`ReadingClient::work`]) after which the front gives the keys back, so that
/// the replica can apply what was ordered. The read that is under way then is still finished.
const WORK_MAX: usize = 20_000;
/// Time between two lines about clients that cannot connect.
const REFUSED_EVERY: Duration = Duration::from_secs(5);
/// Time between two looks for clients that are late.
const LOOK: Duration = Duration::from_millis(500);
/// Bytes that one read takes from a socket at most.
const SCRATCH_BYTES: usize = 64 << 10;
/// The numbers of what is waited for beside connections.
const WAKER: u64 = 0;
const LISTENER: u64 = 1;
const FIRST: u64 = 2;

/// Listens in a thread of its own. The waker is the one that `shared` wakes.
pub fn start(
    shared: &Arc<SharedKeys>,
    listener: TcpListener,
    waker: Waker,
) -> Result<(), KeysError> {
    let failed = |error| KeysError::Io("wait for clients".into(), error);
    let front = Front::new(Arc::clone(shared), listener, waker).map_err(failed)?;
    let thread = std::thread::Builder::new().name("keys-front".into());
    let ended = Ended(Arc::clone(shared));
    let run = move || {
        let _ended = ended;
        front.run();
    };
    thread.spawn(run).map_err(failed)?;
    Ok(())
}

/// Ends the replica when the thread of its clients ends, however it ends.
struct Ended(Arc<SharedKeys>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.inbox.send(ConnectionInput::FrontEnded);
        self.0.inbox.wake();
    }
}

/// All clients of a replica.
#[derive(Debug)]
pub struct Front {
    /// What this thread shares with the replica thread.
    pub shared: Arc<SharedKeys>,
    /// Connections by their numbers.
    pub connections: BTreeMap<u64, Connection>,
    /// What is counted.
    pub stats: Stats,
    /// When the replica began to serve clients.
    pub started: Instant,
    /// Bytes in the buffers of all clients.
    pub held_bytes: usize,
    /// The clients for which this replica holds many bytes, each with the time since when.
    long: BTreeSet<(Instant, u64)>,
    listener: TcpListener,
    waker: Waker,
    epoll: OwnedFd,
    /// The events for which the thread waits, for each socket.
    interest: HashMap<u64, EventFlags>,
    by_session: HashMap<u64, u64>,
    by_address: HashMap<IpAddr, usize>,
    next: u64,
    looked: Instant,
    /// The client that is answered first in the next turn.
    first: u64,
    /// When it was last said that clients cannot connect.
    refused_at: Option<Instant>,
}

impl Front {
    fn new(shared: Arc<SharedKeys>, listener: TcpListener, waker: Waker) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let add = |fd: BorrowedFd<'_>, number| {
            epoll::add(&epoll, fd, EventData::new_u64(number), EventFlags::IN)
        };
        add(waker.handle()?.as_fd(), WAKER)?;
        add(listener.as_fd(), LISTENER)?;
        Ok(Self {
            shared,
            connections: BTreeMap::new(),
            stats: Stats::default(),
            started: Instant::now(),
            held_bytes: 0,
            long: BTreeSet::new(),
            listener,
            waker,
            epoll,
            interest: HashMap::new(),
            by_session: HashMap::new(),
            by_address: HashMap::new(),
            next: FIRST,
            looked: Instant::now(),
            first: FIRST,
            refused_at: None,
        })
    }

    fn run(mut self) {
        let mut scratch = vec![0; SCRATCH_BYTES];
        let mut ready = Vec::with_capacity(READY_MAX);
        // Clients for which a further step is possible without waiting.
        let mut more = BTreeSet::new();
        loop {
            let wait = if more.is_empty() { LOOK } else { Duration::ZERO };
            let wait = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as _ };
            ready.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), Some(&wait))
            {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!("clients cannot be waited for: {error}");
                    return;
                }
            }
            let mut due = core::mem::take(&mut more);
            for event in &ready {
                let flags = event.flags;
                match event.data.u64() {
                    WAKER => self.waker.clear(),
                    LISTENER => self.accept(),
                    id => {
                        due.insert(id);
                        self.read(id, flags, &mut scratch);
                    }
                }
            }
            more = self.turn(due);
            if self.looked.elapsed() >= LOOK {
                self.looked = Instant::now();
                self.end_late();
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let (stream, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    if self.refused_at.is_none_or(|at| at.elapsed() > REFUSED_EVERY) {
                        self.refused_at = Some(Instant::now());
                        tracing::warn!("a client cannot connect: {error}");
                    }
                    // No file descriptor is left: some connection has to end first.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            };
            self.stats.accepted += 1;
            let options = &self.shared.settings.zookeeper;
            let bytes_max = options.message_bytes_max;
            let of_address = self.by_address.get(&peer.ip()).copied().unwrap_or(0);
            let is_over = |count: usize, most: usize| most > 0 && count >= most;
            let is_full = is_over(of_address, options.client_connections_max)
                || is_over(self.connections.len(), options.connections_max);
            let id = self.next;
            let is_ready = !is_full
                && stream.set_nodelay(true).is_ok()
                && stream.set_nonblocking(true).is_ok()
                && epoll::add(&self.epoll, &stream, EventData::new_u64(id), EventFlags::IN).is_ok();
            if !is_ready {
                self.stats.turned_away += 1;
                if is_full {
                    let refusal = ClientRefusal::Connections(self.connections.len());
                    self.stats.refusals.note(peer, &refusal);
                }
                continue;
            }
            self.next += 1;
            self.interest.insert(id, EventFlags::IN);
            *self.by_address.entry(peer.ip()).or_default() += 1;
            self.connections.insert(id, Connection::new(id, stream, peer, bytes_max));
        }
    }

    fn read(&mut self, id: u64, flags: EventFlags, scratch: &mut [u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let is_gone = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        let is_read = match connection.wants_input() {
            true => connection.read(scratch),
            // The client is gone: its last bytes are not wanted, and no byte reaches the client.
            false if is_gone => Err(ConnectionEnd::Gone),
            false => Ok(()),
        };
        self.check(id, is_read);
    }

    /// Serves these clients and all clients that have notices. Returns the clients for which a
    /// further step is possible at once.
    fn turn(&mut self, mut due: BTreeSet<u64>) -> BTreeSet<u64> {
        let shared = Arc::clone(&self.shared);
        let mut says = Vec::new();
        for id in &due {
            self.take(*id, &mut says);
        }
        for (id, word) in says {
            let text = words::answer(&word, self);
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.say(&text);
            }
        }
        self.answer(&shared, &mut due);
        let mut more = BTreeSet::new();
        for id in &due {
            // A client that has taken answers may have requests that waited for room.
            self.take(*id, &mut Vec::new());
            let Some(connection) = self.connections.get_mut(id) else { continue };
            let written = connection.write();
            if written.is_ok() && connection.can_go_on() {
                more.insert(*id);
            }
            self.check(*id, written);
            self.settle(*id);
        }
        shared.inbox.wake();
        more
    }

    /// Hands out the notices that have come, and answers these clients and the clients of the
    /// notices, as long as the keys may be held.
    fn answer(&mut self, shared: &SharedKeys, due: &mut BTreeSet<u64>) {
        // The events of all changes that a read sees are sent before its answer. Events of later
        // changes are sent after the answer, because only then does the client know of the watch
        // that the read has set.
        let keys = shared.keys();
        let mut room = WORK_MAX;
        for notice in shared.take_notices() {
            self.notice(notice, &keys, due);
        }
        let in_turn: Vec<u64> =
            due.range(self.first..).chain(due.range(..self.first)).copied().collect();
        for id in in_turn {
            if room == 0 {
                // The others have something to go on with, so that the next turn begins at once.
                self.first = id;
                break;
            }
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            let before = connection.session;
            let answered = connection.answer(&keys, shared, &mut self.stats, &mut room);
            let session = connection.session;
            debug_assert!(before == session || session == 0);
            // The session may have moved on before this connection got to know that it has it.
            let answered = match connection.is_known_to(&keys) {
                true => answered,
                false => Err(ConnectionEnd::Gone),
            };
            if answered.is_ok() && session != 0 && connection.is_open() {
                self.adopt(id, session);
            }
            self.check(id, answered);
            self.count(id);
        }
    }

    /// Counts anew how many bytes this replica holds for a client. While this replica holds more
    /// than [`HELD_BYTES_MAX`] for all clients, a client with more than [`LONG_BYTES`] is turned
    /// away: the one that has had so many for longest. So clients that stop in the middle of a long
    /// write, or send it byte by byte, go before a client that has just begun one.
    fn count(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let held = connection.held_bytes();
        let before = core::mem::replace(&mut connection.counted_bytes, held);
        self.held_bytes = self.held_bytes + held - before;
        if let Some(since) = connection.long_since.take_if(|_| held <= LONG_BYTES) {
            self.long.remove(&(since, id));
        } else if held > LONG_BYTES && connection.long_since.is_none() {
            let since = Instant::now();
            connection.long_since = Some(since);
            self.long.insert((since, id));
        }
        while self.held_bytes > HELD_BYTES_MAX
            && let Some((_, longest)) = self.long.first().copied()
        {
            self.stats.turned_away += 1;
            if let Some(connection) = self.connections.get(&longest) {
                let refusal = ClientRefusal::Memory(connection.held_bytes());
                self.stats.refusals.note(connection.peer, &refusal);
            }
            self.check(longest, Err(ConnectionEnd::Gone));
        }
    }

    /// Takes the requests of a client.
    fn take(&mut self, id: u64, says: &mut Vec<(u64, [u8; 4])>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.has_request() {
            let taken = connection.take(&self.shared, &mut self.stats, says);
            self.check(id, taken);
        }
    }

    fn notice(&mut self, notice: Notice, keys: &Keys, due: &mut BTreeSet<u64>) {
        let (id, done) = match notice {
            Notice::Answer(asked, answer) => {
                let id = asked.connection;
                let Some(connection) = self.connections.get_mut(&id) else { return };
                (id, connection.answer_of(asked.slot, answer, &mut self.stats))
            }
            Notice::Event(id, event) => {
                let Some(connection) = self.connections.get_mut(&id) else { return };
                (id, connection.tell(&event, &mut self.stats))
            }
            Notice::Left(session) => {
                let Some(id) = self.by_session.get(&session).copied() else { return };
                // A client that has asked to close its session still waits for the answer.
                let is_asked = self.connections.get(&id).is_some_and(Connection::is_leaving);
                (id, if is_asked { Ok(()) } else { Err(ConnectionEnd::Gone) })
            }
            Notice::Missed(ids) => {
                ids.into_iter().for_each(|id| self.check(id, Err(ConnectionEnd::Gone)));
                let all = self.connections.values();
                let left = all.filter(|connection| !connection.is_known_to(keys));
                let left: Vec<u64> = left.map(|connection| connection.id).collect();
                left.into_iter().for_each(|id| self.check(id, Err(ConnectionEnd::Gone)));
                return;
            }
        };
        due.insert(id);
        self.check(id, done);
    }

    /// A session goes on at this connection. Its earlier connection is closed, because the client
    /// has left that connection.
    fn adopt(&mut self, id: u64, session: u64) {
        if let Some(other) = self.by_session.insert(session, id)
            && other != id
        {
            self.check(other, Err(ConnectionEnd::Gone));
        }
    }

    /// Ends a connection that has failed.
    fn check(&mut self, id: u64, done: Result<(), ConnectionEnd>) {
        let Err(end) = done else { return };
        let Some(connection) = self.connections.remove(&id) else { return };
        self.held_bytes -= connection.counted_bytes;
        if let Some(since) = connection.long_since {
            self.long.remove(&(since, id));
        }
        self.stats.malformed += u64::from(end == ConnectionEnd::Malformed);
        self.interest.remove(&id);
        self.shared.watches().forget(id);
        if self.by_session.get(&connection.session) == Some(&id) {
            self.by_session.remove(&connection.session);
        }
        if let Some(count) = self.by_address.get_mut(&connection.peer.ip()) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&connection.peer.ip());
            }
        }
        let _ = epoll::delete(&self.epoll, connection.stream());
    }

    /// Closes a connection that is over. For another connection, sets the events for which the
    /// thread waits.
    fn settle(&mut self, id: u64) {
        self.count(id);
        let Some(connection) = self.connections.get(&id) else { return };
        if connection.is_over() {
            return self.check(id, Err(ConnectionEnd::Gone));
        }
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, connection.wants_input());
        wanted.set(EventFlags::OUT, connection.wants_output());
        let Some(interest) = self.interest.get_mut(&id) else { return };
        if *interest != wanted {
            *interest = wanted;
            let data = EventData::new_u64(id);
            if epoll::modify(&self.epoll, connection.stream(), data, wanted).is_err() {
                self.check(id, Err(ConnectionEnd::Gone));
            }
        }
    }

    /// Closes connections that are silent for too long.
    fn end_late(&mut self) {
        let now = Instant::now();
        let mut ended = Vec::new();
        for connection in self.connections.values() {
            if let Some(bytes) = connection.stalls(now) {
                self.stats.refusals.note(connection.peer, &ClientRefusal::Stalled(bytes));
            } else if !connection.is_late(now) {
                continue;
            }
            ended.push(connection.id);
        }
        ended.into_iter().for_each(|id| self.check(id, Err(ConnectionEnd::Gone)));
    }
}
