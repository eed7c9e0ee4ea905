//! The one contract between protocols and the world.
//!
//! A [`Machine`] has no sockets, no clock and no threads. A driver owns it and repeats:
//!
//! 1. read the clock once: `now`;
//! 2. hand in one input: [`handle`](Machine::handle), [`handle_timeout`](Machine::handle_timeout),
//!    [`handle_clock`](Machine::handle_clock), [`handle_sent`](Machine::handle_sent),
//!    [`handle_counters`](Machine::handle_counters) or
//!    [`handle_written`](crate::Durable::handle_written);
//! 3. drain [`poll_event`](Machine::poll_event) until `None`;
//! 4. apply [`poll_install`](Machine::poll_install) until `None`; of a machine that is
//!    [`durable`](Machine::durable), take [`poll_write`](crate::Durable::poll_write) until `None`
//!    or until [`WRITES_MAX`](crate::durable::WRITES_MAX) writes are under way;
//! 5. pull [`poll_transmit`](Machine::poll_transmit) as fast as it can send, and no faster; while
//!    only the queue of a less urgent class is full, pull [`poll_urgent`](Machine::poll_urgent);
//! 6. sleep until [`poll_timeout`](Machine::poll_timeout) or the next arrival; arrivals may wait to
//!    be read until [`poll_lull`](Machine::poll_lull).
//!
//! **The rule:** after every single input, steps 3 and 4 run to `None` before the next input. Step
//! 5 may lag: a machine bounds what it queues per class and destination, and says what it drops.
//! The simulator asserts the rule; `evenfall-port` follows it.

use core::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;

use crate::durable::Durable;
use crate::forward::{Forward, ForwardCounters, ForwardId};
use crate::{ClockReading, Timestamp};

/// What a datagram is for. Drivers map it to priorities; lower value first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// Membership, reports, acknowledgements: small, few, must not starve.
    Control = 0,
    /// The feed itself.
    Live = 1,
    /// Copies of what somebody missed.
    Repair = 2,
    /// Everything that can wait.
    Bulk = 3,
}

impl Class {
    /// The class with this number on the wire.
    pub fn from_wire(byte: u8) -> Option<Self> {
        [Self::Control, Self::Live, Self::Repair, Self::Bulk].get(usize::from(byte)).copied()
    }
}

/// Who took the time stamp of an [`Arrival`] or of a departure ([`Sent`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampedBy {
    /// The network card, when the packet passed the wire.
    Hardware,
    /// The kernel, when the packet entered the socket or was handed to the card.
    Kernel,
    /// This process, when it read the socket or when the system call that sent had returned.
    User,
}

/// One received datagram. Owned, and cheap to clone: holding, ringing and forwarding share it.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Source address as the network gave it; not yet authenticated.
    pub from: SocketAddr,
    /// The whole datagram.
    pub datagram: Bytes,
    /// When it was received, on the local clock. Never later than the `now` it is handed in with.
    pub received: Timestamp,
    /// Who took `received`.
    pub stamped_by: StampedBy,
    /// The port has sent this datagram on already, as a [`Forward`] told it to. The machine does
    /// not send the datagram on a second time.
    pub is_forwarded: bool,
}

impl Arrival {
    /// A datagram that nobody has sent on yet.
    pub fn new(
        from: SocketAddr,
        datagram: Bytes,
        received: Timestamp,
        stamped_by: StampedBy,
    ) -> Self {
        Self { from, datagram, received, stamped_by, is_forwarded: false }
    }
}

/// The name of a set of destinations that a machine installed in its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// Where a [`Transmit`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// One address.
    One(SocketAddr),
    /// Every member of an installed group, each exactly once.
    Group(GroupId),
}

/// Most bytes a [`Head`] can hold: a fixed header and everything that changes from hop to hop.
pub const HEAD_BYTES_MAX: usize = 128;

/// The first bytes of a datagram, held inline because they differ from hop to hop while the body
/// behind them is shared by every copy.
#[derive(Clone, Copy)]
pub struct Head {
    len: u8,
    bytes: [u8; HEAD_BYTES_MAX],
}

impl Head {
    /// A head of these bytes.
    ///
    /// # Panics
    /// When there are more than [`HEAD_BYTES_MAX`]: the caller's format is broken.
    pub fn new(bytes: &[u8]) -> Self {
        let mut head = Self { len: bytes.len() as u8, bytes: [0; HEAD_BYTES_MAX] };
        head.bytes[..bytes.len()].copy_from_slice(bytes);
        head
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Head({} bytes)", self.len)
    }
}

/// The name that a machine gives a [`Transmit`] whose departure it wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// What became of a [`Transmit`] that asked when it left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The name that the transmit carried.
    pub token: Token,
    /// When its last copy left, on the local clock. `None` when no copy left: the transmit was
    /// refused, or the network took none of its copies.
    pub at: Option<Timestamp>,
    /// Who took `at`.
    pub stamped_by: StampedBy,
}

/// One datagram to send, to one or to many: the wire carries `head` followed by `body`.
///
/// Fan-out is a word of the contract and not a loop, so that each driver can do it in its best way.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// Priority.
    pub class: Class,
    /// Receivers of the copies.
    pub to: Destination,
    /// Bytes of this hop.
    pub head: Head,
    /// Bytes shared with every other copy of the same message.
    pub body: Bytes,
    /// Asks for [`Machine::handle_sent`], once for all copies.
    pub token: Option<Token>,
}

impl Transmit {
    /// A datagram whose machine does not ask when it left.
    pub fn new(class: Class, to: Destination, head: Head, body: Bytes) -> Self {
        Self { class, to, head, body, token: None }
    }

    /// The same datagram, with the question when it left.
    pub fn asking(self, token: Token) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Bytes of one copy.
    pub fn len(&self) -> usize {
        self.head.as_slice().len() + self.body.len()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// State that a driver keeps so that it can act without asking the machine. An install is a plain
/// value, and replaces the last install of the same name as a whole.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Install {
    /// The group has exactly these members from now on; an empty list forgets the group.
    Group(GroupId, Arc<[SocketAddr]>),
    /// Datagrams that match are sent on as this says, and are handed in as well. `None` forgets
    /// the table and its window of numbers.
    Forward(ForwardId, Option<Arc<Forward>>),
}

/// What a driver made of an [`Install`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The driver acts by it from now on.
    Taken,
    /// The driver cannot act by this kind of state, or not by so much of it. The machine goes on by
    /// hand, as before any install of that name.
    Ignored,
}

/// Bytes that are not a message of this protocol. Counted and ignored by drivers, never fatal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// What was wrong, in words fit for a log line.
    pub what: &'static str,
    /// Byte offset in the datagram at which it went wrong.
    pub offset: usize,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.offset)
    }
}

impl std::error::Error for Malformed {}

/// A protocol without IO. See the module documentation for the loop and the rule.
pub trait Machine {
    /// What the machine tells its owner.
    type Event;

    /// One datagram arrived.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are not of this protocol; the machine is then unchanged but for
    /// a counter.
    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed>;

    /// The time named by [`poll_timeout`](Self::poll_timeout) has come. Early calls are harmless.
    fn handle_timeout(&mut self, now: Timestamp);

    /// The synchronised clock was read, and may have stepped.
    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading);

    /// A transmit that carried a [`Token`] has left, or never will. The answer comes once for each
    /// token, unless the machine asks faster than the driver hands answers in: a driver keeps a
    /// stated number of answers and drops the oldest beyond. A machine that asks nothing leaves
    /// this out.
    fn handle_sent(&mut self, now: Timestamp, sent: Sent) {
        let _ = (now, sent);
    }

    /// What the driver did by an installed [`Forward`] since it last said so. A machine that
    /// installs none leaves this out.
    fn handle_counters(&mut self, now: Timestamp, of: ForwardId, counters: ForwardCounters) {
        let _ = (now, of, counters);
    }

    /// The next thing to tell the owner.
    fn poll_event(&mut self) -> Option<Self::Event>;

    /// The next state for the driver to hold.
    fn poll_install(&mut self) -> Option<Install>;

    /// The next datagram, stamped with `now` as its time of sending.
    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit>;

    /// The next datagram of the classes [`Class::Control`] and [`Class::Live`], as
    /// [`poll_transmit`](Self::poll_transmit) would give it. A driver that has no room for a less
    /// urgent class asks here, so that a full queue of repairs does not hold up the feed. A machine
    /// without such classes leaves this out.
    fn poll_urgent(&mut self, now: Timestamp) -> Option<Transmit> {
        let _ = now;
        None
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called; `None` for never. Must be
    /// cheap: drivers ask after every input.
    fn poll_timeout(&self) -> Option<Timestamp>;

    /// Until when arrivals may wait unread, because nothing would come of them earlier; `None` when
    /// each is wanted at once. A driver may use it to be woken once for many, if it knows by the
    /// kernel's stamps when they came.
    fn poll_lull(&self) -> Option<Timestamp> {
        None
    }

    /// The machine as one that asks for writes. The driver carries the writes out and answers each
    /// of them. A machine whose promises need no disk leaves this out.
    fn durable(&mut self) -> Option<&mut dyn Durable> {
        None
    }
}
