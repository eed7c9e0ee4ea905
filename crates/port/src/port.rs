//! The one door between machines and whatever moves their datagrams.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use evenfall_core::{
    Arrival, Class, ClockReading, ForwardCounters, ForwardId, GroupId, Install, Installed, Sent,
    Timestamp, Transmit,
};
use evenfall_host::{Error, Waker};

use crate::wait::Wake;

/// Most bytes of a datagram: 65,535 less the headers of IPv4 and UDP.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

/// What moves the datagrams of the machines of one thread. Machines on one port are told apart by
/// their number, `owner`.
///
/// Copies for one destination leave in the order in which they were queued, class by class. Copies
/// of a more urgent class leave first.
pub trait Port: Send {
    /// Adopts state of a machine. A new value replaces the old value of its name between two
    /// datagrams.
    ///
    /// # Errors
    /// [`Error::Unkeyed`] for a member beyond loopback without a key; nothing is changed then.
    fn install(&mut self, owner: usize, install: &Install) -> Result<Installed, Error>;

    /// Whether a transmit of this class, or of a more urgent class, would be queued.
    fn has_room(&self, class: Class) -> bool;

    /// Queues a transmit. A group is resolved now: copies go to the members that the group has at
    /// this moment.
    ///
    /// # Errors
    /// Says why the transmit was not queued, and counts it.
    fn send(&mut self, owner: usize, transmit: Transmit) -> Result<(), Refusal>;

    /// Sends what is queued, class by class, until nothing is left or no more is taken for now.
    /// Whether nothing is left.
    fn flush(&mut self) -> bool;

    /// Appends what has arrived, at most one batch, without waiting. How many datagrams.
    fn receive(&mut self, out: &mut Vec<Arrival>) -> usize;

    /// Whether the last [`receive`](Self::receive) is known to have left nothing behind.
    fn is_drained(&self) -> bool;

    /// Waits for an arrival, for room to send when no more was taken, for a wake-up, or for the
    /// deadline. With a `lull`, arrivals may stay unread until that moment or until as long as the
    /// port's options allow.
    fn wait(&mut self, lull: Option<Timestamp>, deadline: Option<Timestamp>) -> Wake;

    /// Appends what became of transmits that carried a token, and what installed state did since
    /// the last call.
    fn answers(&mut self, out: &mut Vec<Answer>);

    /// The synchronised clock was read. A port that writes times of sending writes them by this
    /// reading from now on.
    fn adopt_clock(&mut self, reading: ClockReading) {
        let _ = reading;
    }

    /// The address at which others reach this port.
    fn local_addr(&self) -> SocketAddr;

    /// A handle that interrupts [`wait`](Self::wait) from another thread or a signal handler.
    fn waker(&self) -> Waker;

    /// A descriptor that polls readable while something has arrived, so that another port can
    /// [`watch`](Self::watch) this port.
    ///
    /// # Errors
    /// When the process may open no more files.
    fn handle(&self) -> Result<OwnedFd, Error>;

    /// From now on [`wait`](Self::wait) also ends when one of these descriptors, at most
    /// [`OTHERS_MAX`](crate::OTHERS_MAX), polls readable. Take what has arrived there before the
    /// next wait, which ends at once otherwise.
    ///
    /// # Panics
    /// When there are more.
    fn watch(&mut self, others: Vec<OwnedFd>);

    /// What was asked for and not granted, with what to do, for people to read.
    fn notes(&self) -> &[String];

    /// What the port did so far.
    fn counters(&self) -> &Counters;

    /// Memory that datagrams take now which have arrived and were not yet received. Zero where the
    /// port cannot tell.
    fn waiting_bytes(&self) -> u64 {
        0
    }
}

/// What a port has to tell a machine about what it was given to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// For [`Machine::handle_sent`](evenfall_core::Machine::handle_sent) of the machine of that
    /// number.
    Sent(usize, Sent),
    /// For [`Machine::handle_counters`](evenfall_core::Machine::handle_counters) of the machine of
    /// that number.
    Counters(usize, ForwardId, ForwardCounters),
}

/// Why a transmit was not queued. The refusal is counted, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue of its class is full.
    Full,
    /// The transmit names a group that is not installed.
    UnknownGroup(GroupId),
    /// The transmit goes beyond loopback without a key.
    Unkeyed(SocketAddr),
    /// The transmit is longer than [`DATAGRAM_BYTES_MAX`].
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

/// What a port did so far. Arrays are by class: control, live, repair, bulk. A count of what a kind
/// of port does not have stays zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Copies that the network took.
    pub sent: [u64; 4],
    /// Bytes of them, without the headers of IP and UDP.
    pub sent_bytes: u64,
    /// Calls to send (`sendmmsg`) that took something.
    pub send_calls: u64,
    /// Copies of transmits that were dropped because the queue of their class was full.
    pub dropped_full: [u64; 4],
    /// Transmits refused for another reason: unknown group, no key, too long.
    pub refused: u64,
    /// Copies that the network refused for good; the rest of their batch went on.
    pub failed: u64,
    /// `errno` of the last such refusal; zero for none.
    pub last_send_error: i32,
    /// Times that no more was taken for now.
    pub blocked: u64,
    /// Times that the kernel refused a segmented send, which then went out in single datagrams.
    pub segmentation_refused: u64,
    /// "Connection refused" reports: a receiver's port is closed. Harmless.
    pub connection_refused: u64,
    /// Datagrams received.
    pub received: u64,
    /// Bytes of them.
    pub received_bytes: u64,
    /// Calls to receive (`recvmmsg`) that returned something.
    pub receive_calls: u64,
    /// Datagrams dropped because they were longer than
    /// [`Options::datagram_bytes_max`](crate::Options::datagram_bytes_max).
    pub truncated: u64,
    /// Datagrams copied to memory of their own because the pinned budget was used up.
    pub copied_out: u64,
    /// Datagrams dropped because the room for arrivals was full. The kernel counts those of a
    /// socket itself.
    pub overrun: u64,
    /// Answers ([`Answer::Sent`]) dropped because nobody had taken so many others.
    pub answers_dropped: u64,
    /// Installs that the port could not act by.
    pub installs_ignored: u64,
    /// Datagrams dropped because
    /// [`Inject::queue_datagrams_max`](crate::Inject::queue_datagrams_max) were held back already.
    pub inject_dropped: u64,
    /// Datagrams lost on purpose, by a rule of [`Inject::file`](crate::Inject::file).
    pub inject_lost: u64,
}
