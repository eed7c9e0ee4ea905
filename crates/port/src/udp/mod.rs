//! UDP: queues, batched sending and receiving, and waiting to the microsecond.
//!
//! ```no_run
//! use std::sync::Arc;
//! use evenfall_core::{Class, Destination, GroupId, Head, Install, Transmit};
//! use evenfall_port::udp::{Options, UdpDriver};
//!
//! let mut driver = UdpDriver::bind("127.0.0.1:0".parse()?, Options::default())?;
//! let members: Arc<[_]> = Arc::from(["127.0.0.1:7001".parse()?, "127.0.0.1:7002".parse()?]);
//! driver.install(&Install::Group(GroupId(1), members))?;
//! driver.push(Transmit {
//!     class: Class::Live,
//!     to: Destination::Group(GroupId(1)),
//!     head: Head::new(b"header"),
//!     body: b"shared by both copies".as_slice().into(),
//! })?;
//! driver.flush();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Limits: [`Options::queue_frames_max`] frames wait per class, the newest is dropped and counted;
//! arrivals pin at most [`Options::pinned_bytes_max`]. Sending allocates nothing once every queue
//! has been as full as it gets.

mod inbox;
pub(crate) mod inject;
mod options;
mod outbox;
mod plan;
mod socket;
#[cfg(test)]
mod tests;
mod wait;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use evenfall_core::{Arrival, Class, GroupId, Install, Timestamp, Transmit};

pub use inject::Inject;
pub use options::Options;
pub use wait::Wake;

use self::inbox::Inbox;
use self::inject::DelayLine;
use self::outbox::{Blocked, Outbox};
use self::socket::Socket;
use evenfall_host::clock::MonotonicClock;
use evenfall_host::{Error, Waker};

/// Most bytes of a datagram: 65,535 less the headers of IPv4 and UDP.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

/// The longest packet, headers of IP and UDP included, that the link from here towards an address
/// takes in one piece.
///
/// # Errors
/// When there is no way from here to there.
pub fn link_mtu(from: IpAddr, to: SocketAddr) -> Result<u32, Error> {
    socket::link_mtu(from, to).map_err(|source| Error::Os {
        what: format!("find the way from {from} to {to}"),
        source,
        advice: "are both addresses of this network?",
    })
}

/// Why a transmit was not queued. It is counted, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue of its class is full.
    Full,
    /// It names a group that is not installed.
    UnknownGroup(GroupId),
    /// It goes beyond loopback without a key.
    Unkeyed(SocketAddr),
    /// It is longer than [`DATAGRAM_BYTES_MAX`].
    TooLong,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the send queue of this class is full"),
            Self::UnknownGroup(group) => write!(f, "group {} is not installed", group.0),
            Self::Unkeyed(address) => {
                write!(f, "{}", Error::Unkeyed { address: *address, verb: "send to" })
            }
            Self::TooLong => write!(f, "longer than a datagram's {DATAGRAM_BYTES_MAX} bytes"),
        }
    }
}

impl std::error::Error for Refusal {}

/// What a driver did so far. Arrays are by class: control, live, repair, bulk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Copies that the kernel took.
    pub sent: [u64; 4],
    /// Bytes of them, without the headers of IP and UDP.
    pub sent_bytes: u64,
    /// `sendmmsg` calls that took something.
    pub send_calls: u64,
    /// Copies of transmits that were dropped because the queue of their class was full.
    pub dropped_full: [u64; 4],
    /// Transmits refused for another reason: unknown group, no key, too long.
    pub refused: u64,
    /// Copies that the kernel refused for good; the rest of their batch went on.
    pub failed: u64,
    /// `errno` of the last such refusal; zero for none.
    pub last_send_error: i32,
    /// Times that the kernel took no more for now.
    pub blocked: u64,
    /// Times that it refused a segmented send, which then went out in single datagrams.
    pub segmentation_refused: u64,
    /// "Connection refused" reports: a receiver's port is closed. Harmless.
    pub connection_refused: u64,
    /// Datagrams received.
    pub received: u64,
    /// Bytes of them.
    pub received_bytes: u64,
    /// `recvmmsg` calls that returned something.
    pub receive_calls: u64,
    /// Datagrams dropped because they were longer than [`Options::datagram_bytes_max`].
    pub truncated: u64,
    /// Datagrams copied to memory of their own because the pinned budget was used up.
    pub copied_out: u64,
    /// Datagrams dropped because [`Inject::queue_datagrams_max`] were held back already.
    pub inject_dropped: u64,
    /// Datagrams lost on purpose, by a rule of [`Inject::file`].
    pub inject_lost: u64,
}

/// One UDP socket that drives machines: the network half of the contract.
pub struct UdpDriver {
    socket: Socket,
    options: Options,
    outbox: Outbox,
    inbox: Inbox,
    delays: Option<Box<DelayLine>>,
    waker: Waker,
    /// Our own handles to the sockets of [`watch`](Self::watch).
    others: Vec<OwnedFd>,
    counters: Counters,
    blocked: Blocked,
    /// When a deadline was last waited for to its end.
    spun_at: Timestamp,
}

impl UdpDriver {
    /// Opens and binds a socket.
    ///
    /// # Errors
    /// [`Error::Unkeyed`] beyond loopback without a key, else what the kernel refused. Options that
    /// the kernel does not grant are no errors, see [`notes`](Self::notes).
    pub fn bind(address: SocketAddr, options: Options) -> Result<Self, Error> {
        if !outbox::is_open(address, &options) {
            return Err(Error::Unkeyed { address, verb: "bind to" });
        }
        let socket = Socket::bind(address, &options)?;
        let waker = Waker::new().map_err(|source| Error::Os {
            what: "create an eventfd".into(),
            source,
            advice: "raise the limit of open files (ulimit -n)",
        })?;
        Ok(Self {
            outbox: Outbox::new(&options, socket.segmentation),
            inbox: Inbox::new(&options, socket.coalescing),
            delays: options.inject.as_ref().map(|i| Box::new(DelayLine::new(i, socket.local))),
            socket,
            options,
            waker,
            others: Vec::new(),
            counters: Counters::default(),
            blocked: Blocked::No,
            spun_at: Timestamp::ZERO,
        })
    }

    /// The address that the socket is bound to, with the port that the kernel chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.local
    }

    /// What was asked for and not granted, with what to do, for people to read.
    pub fn notes(&self) -> &[String] {
        &self.socket.notes
    }

    /// What the driver did so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A handle that interrupts [`wait`](Self::wait) from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The socket, to be polled with others. It stays the driver's.
    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// From now on [`wait`](Self::wait) also ends when something arrives at one of these drivers,
    /// at most three; none for its own socket alone. Take what has arrived before the next wait,
    /// which ends at once otherwise.
    ///
    /// # Errors
    /// When the process may open no more files.
    ///
    /// # Panics
    /// When there are more than three.
    pub fn watch(&mut self, others: &[&Self]) -> Result<(), Error> {
        assert!(others.len() <= wait::OTHERS_MAX, "three sockets at most can be watched");
        let handles = others.iter().map(|other| other.socket.handle());
        self.others = handles.collect::<std::io::Result<_>>().map_err(|source| Error::Os {
            what: "watch another socket".into(),
            source,
            advice: "raise the limit of open files (ulimit -n)",
        })?;
        Ok(())
    }

    /// Memory that datagrams take in the kernel now which have arrived and were not yet received;
    /// a system call.
    pub fn waiting_bytes(&self) -> u64 {
        self.socket.waiting_bytes()
    }

    /// Longest datagram that may be a segment of a larger send; zero when every datagram is sent
    /// by itself. Falls while running when the kernel refuses.
    pub fn segment_bytes_max(&self) -> usize {
        self.outbox.segment_bytes_max()
    }

    /// Adopts state of the first machine on this socket.
    ///
    /// # Errors
    /// [`Error::Unkeyed`] for a member beyond loopback without a key; nothing is changed then.
    pub fn install(&mut self, install: &Install) -> Result<(), Error> {
        self.install_for(0, install)
    }

    /// Adopts state of machine number `owner`: each machine on a socket names its own groups.
    ///
    /// # Errors
    /// As [`install`](Self::install).
    pub fn install_for(&mut self, owner: usize, install: &Install) -> Result<(), Error> {
        self.outbox.install(owner, install, &self.options)
    }

    /// Whether a transmit of any class would be queued.
    pub fn has_room(&self) -> bool {
        self.outbox.has_room(&self.options)
    }

    /// Whether a transmit of this class, or of a more urgent class, would be queued.
    pub fn has_room_for(&self, class: Class) -> bool {
        self.outbox.has_room_for(class, &self.options)
    }

    /// Queues a transmit of the first machine on this socket. A group is resolved now: copies go to
    /// the members that it has at this moment.
    ///
    /// # Errors
    /// Says why it was not queued, and counts it.
    pub fn push(&mut self, transmit: Transmit) -> Result<(), Refusal> {
        self.push_for(0, transmit)
    }

    /// Queues a transmit of machine number `owner`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_for(&mut self, owner: usize, transmit: Transmit) -> Result<(), Refusal> {
        self.outbox.push(owner, transmit, &self.options, &mut self.counters)
    }

    /// Sends what is queued, class by class, until nothing is left or the kernel takes no more.
    /// Whether nothing is left.
    pub fn flush(&mut self) -> bool {
        self.blocked = self.outbox.flush(&mut self.socket, &self.options, &mut self.counters);
        self.blocked == Blocked::No
    }

    /// Appends what has arrived, at most one batch, without waiting. How many datagrams.
    pub fn recv(&mut self, out: &mut Vec<Arrival>) -> usize {
        let before = out.len();
        if let Some(delays) = &mut self.delays {
            self.inbox.receive(self.socket.fd(), delays.fresh(), &mut self.counters);
            let now = MonotonicClock::now();
            delays.hold(now, &mut self.counters);
            delays.release(now, out);
        } else {
            self.inbox.receive(self.socket.fd(), out, &mut self.counters);
        }
        out.len() - before
    }

    /// Whether the last [`recv`](Self::recv) left nothing in the socket: its batch was not full.
    pub fn is_drained(&self) -> bool {
        self.delays.is_none() && self.inbox.is_drained()
    }

    /// Waits for an arrival, for room to send when the kernel took no more, for a wake-up, or for
    /// the deadline.
    pub fn wait(&mut self, deadline: Option<Timestamp>) -> Wake {
        let held = self.delays.as_ref().and_then(|delays| delays.next_due());
        if let Some(held) = held.filter(|held| deadline.is_none_or(|deadline| *held < deadline)) {
            return match self.wait_until(Some(held), true) {
                // What was held back arrives.
                Wake::Deadline => Wake::Readable,
                wake => wake,
            };
        }
        self.wait_until(deadline, true)
    }

    /// Waits as [`wait`](Self::wait), but leaves arrivals in the socket until this moment, if
    /// `moderation` allows to wait for so long.
    pub fn rest(&mut self, lull: Timestamp, deadline: Timestamp) -> Wake {
        if self.options.moderation.is_zero() || self.delays.is_some() {
            return self.wait(Some(deadline));
        }
        let longest = MonotonicClock::now() + self.options.moderation;
        self.wait_until(Some(deadline.min(lull).min(longest)), false)
    }

    fn wait_until(&mut self, deadline: Option<Timestamp>, readable: bool) -> Wake {
        let wake = self.wait_once(deadline, readable);
        if wake == Wake::Deadline {
            self.spun_at = MonotonicClock::now();
        }
        wake
    }

    /// How long to spin now, so that its share of the time is kept.
    fn spin(&self) -> Duration {
        let Options { spin, spin_share, .. } = self.options;
        if spin_share >= 1.0 {
            return spin;
        }
        spin.min(MonotonicClock::now().since(self.spun_at).mul_f64(spin_share.max(0.0)))
    }

    fn wait_once(&self, deadline: Option<Timestamp>, readable: bool) -> Wake {
        let wait = wait::Wait {
            fd: self.socket.fd(),
            waker: &self.waker,
            others: &self.others,
            readable,
            writable: self.blocked == Blocked::Socket,
            spin: self.spin(),
            yield_for: self.options.yield_for,
            never_sleep: self.options.never_sleep,
        };
        if self.blocked != Blocked::Device {
            return wait.until(deadline);
        }
        let retry = MonotonicClock::now() + wait::DEVICE_RETRY;
        match wait.until(Some(deadline.map_or(retry, |deadline| deadline.min(retry)))) {
            Wake::Deadline if deadline.is_none_or(|deadline| retry < deadline) => Wake::Writable,
            wake => wake,
        }
    }
}
