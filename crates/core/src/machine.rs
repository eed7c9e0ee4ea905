//! The contract between a protocol and the world.
//!
//! A [`Machine`] has no sockets, no clock and no threads. A driver owns the machine and repeats six
//! steps:
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
//! 5. pull [`poll_transmit`](Machine::poll_transmit) as fast as the driver can send, and no faster;
//!    while only the queue of a less urgent class is full, pull
//!    [`poll_urgent`](Machine::poll_urgent);
//! 6. sleep until [`poll_timeout`](Machine::poll_timeout) or the next arrival. Arrivals may wait
//!    unread until [`poll_lull`](Machine::poll_lull).
//!
//! **The rule:** after every single input, the driver repeats steps 3 and 4 until they give `None`,
//! before it hands in the next input. Step 5 may lag: a machine bounds its queue for each class and
//! destination, and documents what it drops. The simulator asserts the rule, and `evenfall-port`
//! follows it.

use core::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;

use crate::durable::Durable;
use crate::forward::{Forward, ForwardCounters, ForwardId};
use crate::{Clock, ClockReading, Timestamp};

/// What a datagram is for. Drivers map the class to priorities. A class with a lower number goes
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TrafficClass {
    /// Membership, reports and acknowledgements: few small datagrams that must never starve.
    Control = 0,
    /// The feed itself.
    Live = 1,
    /// Copies of messages that a node missed.
    Repair = 2,
    /// Traffic that can wait.
    Bulk = 3,
}

impl TrafficClass {
    /// The class with this number on the wire.
    pub fn from_wire(byte: u8) -> Option<Self> {
        [Self::Control, Self::Live, Self::Repair, Self::Bulk].get(usize::from(byte)).copied()
    }
}

/// The source of the time stamp of an [`Arrival`] or of a departure ([`Sent`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampedBy {
    /// The network card, when the packet passed the wire.
    Hardware,
    /// The kernel, when the packet entered the socket or was handed to the network card.
    Kernel,
    /// This process, when it read the socket, or when the system call for sending had returned.
    User,
}

/// A received datagram. The value is owned and cheap to clone, so holding, keeping in a ring and
/// forwarding share its bytes.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Source address as the network gave it. The address is not yet authenticated.
    pub from: SocketAddr,
    /// The whole datagram.
    pub datagram: Bytes,
    /// Local time at which the datagram was received. The time is never later than the `now` of the
    /// call.
    pub received: Timestamp,
    /// The source of `received`.
    pub stamped_by: StampedBy,
    /// Whether the port has already sent this datagram on, as an installed [`Forward`] told it to.
    /// The machine then does not send the datagram on a second time.
    pub is_forwarded: bool,
}

impl Arrival {
    /// A datagram that no port has sent on yet.
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
    /// Every member of an installed group. Each member gets one copy.
    Group(GroupId),
}

/// Bytes that a [`Head`] can hold: a fixed header and all the fields that change from hop to hop.
pub const HEAD_BYTES_MAX: usize = 128;

/// The first bytes of a datagram. These bytes are stored inline, because they differ from hop to
/// hop. All copies share the body that follows.
#[derive(Clone, Copy)]
pub struct Head {
    len: u8,
    bytes: [u8; HEAD_BYTES_MAX],
}

impl Head {
    /// A head with these bytes.
    ///
    /// # Panics
    /// When there are more than [`HEAD_BYTES_MAX`] bytes: the caller's format is broken.
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

/// The name that a machine gives to a [`Transmit`] whose time of departure it wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// The answer to a [`Transmit`] that asked for its time of departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The name that the transmit carried.
    pub token: Token,
    /// Local time at which the last copy left. `None` when no copy left: the driver refused the
    /// transmit, or the network took none of its copies.
    pub at: Option<Timestamp>,
    /// The source of `at`.
    pub stamped_by: StampedBy,
}

/// A datagram for one or many destinations. The wire carries `head` followed by `body`.
///
/// A transmit names all destinations at once, so that each driver can make the copies in its best
/// way.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// Priority.
    pub class: TrafficClass,
    /// Receivers of the copies.
    pub to: Destination,
    /// Bytes that belong to this hop.
    pub head: Head,
    /// Bytes that all copies of the message share.
    pub body: Bytes,
    /// When set, the driver calls [`Machine::handle_sent`] once for all copies.
    pub token: Option<Token>,
}

impl Transmit {
    /// A datagram without a token: the machine does not ask for its departure.
    pub fn new(class: TrafficClass, to: Destination, head: Head, body: Bytes) -> Self {
        Self { class, to, head, body, token: None }
    }

    /// The same datagram with a token, so that the driver tells its time of departure.
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
/// value. An install replaces the whole earlier install of the same name.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Install {
    /// The group has exactly these members from now on; an empty list forgets the group.
    Group(GroupId, Arc<[SocketAddr]>),
    /// The driver sends matching datagrams on by these rules, and hands them in as well. `None`
    /// forgets the rules and their window of numbers.
    Forward(ForwardId, Option<Arc<Forward>>),
}

/// A driver's answer to an [`Install`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The driver acts by the install from now on.
    Taken,
    /// The driver cannot act by this kind of state, or has no room for it. The machine goes on by
    /// hand, as before any install of that name.
    Ignored,
}

/// Bytes that are no message of this protocol. Drivers count and ignore them, and no process ends
/// because of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {offset}")]
pub struct Malformed {
    /// What was wrong, in words for a log line.
    pub what: &'static str,
    /// Offset of the wrong byte in the datagram.
    pub offset: usize,
}

/// A protocol without IO. The documentation of the module states the loop and the rule.
pub trait Machine {
    /// The events of the machine for its owner.
    type Event;

    /// One datagram arrived.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are not of this protocol. The machine has then changed nothing
    /// but a counter.
    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed>;

    /// The time that [`poll_timeout`](Self::poll_timeout) named has come. An early call is
    /// harmless.
    fn handle_timeout(&mut self, now: Timestamp);

    /// The synchronised clock was read, and may have stepped.
    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading);

    /// A transmit with a [`Token`] has left, or will never leave. Each token gets one answer. A
    /// driver keeps a stated number of answers, and drops the oldest when the machine asks faster
    /// than the driver hands answers in. A machine that sets no tokens leaves this method out.
    fn handle_sent(&mut self, now: Timestamp, sent: Sent) {
        let _ = (now, sent);
    }

    /// The counters of an installed [`Forward`] since its last report. A machine that installs no
    /// [`Forward`] leaves this method out.
    fn handle_counters(&mut self, now: Timestamp, of: ForwardId, counters: ForwardCounters) {
        let _ = (now, of, counters);
    }

    /// The next thing to tell the owner.
    fn poll_event(&mut self) -> Option<Self::Event>;

    /// The next state that the driver shall keep. A machine that installs nothing leaves this
    /// method out.
    fn poll_install(&mut self) -> Option<Install> {
        None
    }

    /// The next datagram. Its time of sending is `now`.
    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit>;

    /// The next datagram of the classes [`TrafficClass::Control`] and [`TrafficClass::Live`]. A
    /// driver without room for a less urgent class calls this method instead of
    /// [`poll_transmit`](Self::poll_transmit). A full queue of repairs therefore does not hold up
    /// the feed. A machine without less urgent classes leaves this method out.
    fn poll_urgent(&mut self, now: Timestamp) -> Option<Transmit> {
        let _ = now;
        None
    }

    /// The time at which the driver shall call [`handle_timeout`](Self::handle_timeout); `None` for
    /// never. The method must be cheap, because drivers call it after every input.
    fn poll_timeout(&self) -> Option<Timestamp>;

    /// The time until which arrivals may wait unread, because the machine would do nothing with
    /// them earlier. `None` when the machine wants each arrival at once. A driver may then wake
    /// once for many arrivals, if the kernel's stamps tell when each of them arrived.
    fn poll_lull(&self) -> Option<Timestamp> {
        None
    }

    /// The synchronised clock as the machine has it; `None` when the machine keeps none. A machine
    /// may not follow each reading, and its owner stamps by the machine's clock.
    fn clock(&self) -> Option<Clock> {
        None
    }

    /// The machine as one that asks for writes. The driver carries the writes out and answers each
    /// of them. A machine whose promises need no disk leaves this out.
    fn durable(&mut self) -> Option<&mut dyn Durable> {
        None
    }
}

/// A boxed machine is a machine, so that an owner of `Box<dyn Machine>` does not name the protocol.
impl<M: Machine + ?Sized> Machine for Box<M> {
    type Event = M::Event;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        (**self).handle(now, arrival)
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        (**self).handle_timeout(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        (**self).handle_clock(now, reading);
    }

    fn handle_sent(&mut self, now: Timestamp, sent: Sent) {
        (**self).handle_sent(now, sent);
    }

    fn handle_counters(&mut self, now: Timestamp, of: ForwardId, counters: ForwardCounters) {
        (**self).handle_counters(now, of, counters);
    }

    fn poll_event(&mut self) -> Option<M::Event> {
        (**self).poll_event()
    }

    fn poll_install(&mut self) -> Option<Install> {
        (**self).poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        (**self).poll_transmit(now)
    }

    fn poll_urgent(&mut self, now: Timestamp) -> Option<Transmit> {
        (**self).poll_urgent(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        (**self).poll_timeout()
    }

    fn poll_lull(&self) -> Option<Timestamp> {
        (**self).poll_lull()
    }

    fn clock(&self) -> Option<Clock> {
        (**self).clock()
    }

    fn durable(&mut self) -> Option<&mut dyn Durable> {
        (**self).durable()
    }
}
