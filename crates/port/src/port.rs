//! The trait between machines and the ports that move their datagrams.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use evenfall_core::{
    Arrival, ClockReading, ForwardCounters, ForwardId, GroupId, Install, Installed, Sent,
    Timestamp, TrafficClass, Transmit,
};
use evenfall_host::{Error, Waker};

use crate::wait::Wake;

/// Bytes of the largest datagram: 65,535 less the headers of IPv4 and UDP.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

/// A port moves the datagrams of the machines of one thread. The number `owner` tells the machines
/// on one port apart.
///
/// Copies for one destination leave in the order in which they were queued, class by class. Copies
/// of a more urgent class leave first.
pub trait Port: Send {
    /// Adopts state of a machine. A new value replaces the old value of the same name between two
    /// datagrams.
    ///
    /// # Errors
    /// [`Error::Unkeyed`] for a member beyond loopback without a key; the state is unchanged then.
    fn install(&mut self, owner: usize, install: &Install) -> Result<Installed, Error>;

    /// Whether a transmit of this class, or of a more urgent class, would be queued.
    fn has_room(&self, class: TrafficClass) -> bool;

    /// Queues a transmit. A group is resolved now: copies go to the members that the group has at
    /// this moment.
    ///
    /// # Errors
    /// The reason why the transmit was not queued. The refusal is also counted.
    fn send(&mut self, owner: usize, transmit: Transmit) -> Result<(), Refusal>;

    /// Sends queued frames, class by class, until the queues are empty or the network takes no more
    /// for now. Returns whether the queues are empty.
    fn flush(&mut self) -> bool;

    /// Appends at most one batch of arrivals, without waiting. Returns their number.
    fn receive(&mut self, out: &mut Vec<Arrival>) -> usize;

    /// Whether the last [`receive`](Self::receive) is known to have left nothing behind.
    fn is_drained(&self) -> bool;

    /// Waits for an arrival, for room to send after the network took no more, for a wake-up, or for
    /// the deadline. With a `lull`, arrivals may stay unread until that moment, or as long as the
    /// port's options allow.
    fn wait(&mut self, lull: Option<Timestamp>, deadline: Option<Timestamp>) -> Wake;

    /// Like [`wait`](Self::wait), for a deadline that may be missed by the time that a thread takes
    /// to wake up. A port that spins before deadlines does not spin before this one.
    fn wait_idly(&mut self, lull: Option<Timestamp>, deadline: Option<Timestamp>) -> Wake {
        self.wait(lull, deadline)
    }

    /// Appends the answers to transmits with a token, and the counters of installed state since the
    /// last call.
    fn answers(&mut self, out: &mut Vec<Answer>);

    /// Adopts a reading of the synchronised clock. A port that writes times of sending writes them
    /// by the last reading.
    fn adopt_clock(&mut self, reading: ClockReading) {
        let _ = reading;
    }

    /// The address at which other ports reach this port.
    fn local_addr(&self) -> SocketAddr;

    /// A handle that interrupts [`wait`](Self::wait) from another thread or a signal handler.
    fn waker(&self) -> Waker;

    /// A descriptor that polls readable while arrivals wait, so that another port can
    /// [`watch`](Self::watch) this port.
    ///
    /// # Errors
    /// When the process may not open more files.
    fn handle(&self) -> Result<OwnedFd, Error>;

    /// From now on [`wait`](Self::wait) also ends when one of these descriptors, at most
    /// [`OTHERS_MAX`](crate::OTHERS_MAX), polls readable. The caller must take the arrivals there
    /// before the next wait, which otherwise ends at once.
    ///
    /// # Panics
    /// When there are more descriptors.
    fn watch(&mut self, others: Vec<OwnedFd>);

    /// Options that were asked for and not granted, with advice, for people to read.
    fn notes(&self) -> &[String];

    /// Counters of the port.
    fn counters(&self) -> &Counters;

    /// Memory of the datagrams that have arrived and were not received yet; zero where the port
    /// cannot tell.
    fn waiting_bytes(&self) -> u64 {
        0
    }
}

/// An answer of a port to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// For [`Machine::handle_sent`](evenfall_core::Machine::handle_sent) of the machine with this
    /// number.
    Sent(usize, Sent),
    /// For [`Machine::handle_counters`](evenfall_core::Machine::handle_counters) of the machine
    /// with this number.
    Counters(usize, ForwardId, ForwardCounters),
}

/// Why a transmit was not queued. The refusal is also counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The queue of its class is full.
    #[error("the send queue of this class is full")]
    Full,
    /// The transmit names a group that is not installed.
    #[error("group {} is not installed", .0.0)]
    UnknownGroup(GroupId),
    /// The transmit goes beyond loopback without a key.
    #[error("{}", Error::Unkeyed { address: *.0, verb: "send to" })]
    Unkeyed(SocketAddr),
    /// The transmit is longer than
    /// [`PortKind::datagram_bytes_max`](crate::PortKind::datagram_bytes_max).
    #[error("longer than the longest datagram of this kind of port")]
    TooLong,
}

/// Counters of a port. Arrays are by class: control, live, repair, bulk. A counter stays zero when
/// the kind of port has no such event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Copies that the network took.
    pub sent: [u64; 4],
    /// Copies among the sent ones that the kernel makes of a datagram to one member of a group.
    pub sent_by_kernel: [u64; 4],
    /// Bytes of the sent copies, without the headers of IP and UDP.
    pub sent_bytes: u64,
    /// Calls to send (`sendmmsg`) that took a copy.
    pub send_calls: u64,
    /// Copies of transmits that were dropped because the queue of their class was full.
    pub dropped_full: [u64; 4],
    /// Transmits that were refused for another reason: unknown group, no key, too long.
    pub refused: u64,
    /// Copies that the network refused for good. The rest of their batch was sent.
    pub failed: u64,
    /// `errno` of the last copy that was refused for good; zero for none.
    pub last_send_error: i32,
    /// Times that the network took no more for now.
    pub blocked: u64,
    /// Times that repairs did not leave because much waited in the kernel.
    pub repairs_held: u64,
    /// Times that the kernel refused a segmented send, which then went out in single datagrams.
    pub segmentation_refused: u64,
    /// "Connection refused" reports: the port of a receiver is closed. The reports do no harm.
    pub connection_refused: u64,
    /// Datagrams received.
    pub received: u64,
    /// Bytes of the received datagrams.
    pub received_bytes: u64,
    /// Calls to receive (`recvmmsg`) that returned a datagram.
    pub receive_calls: u64,
    /// Datagrams dropped because they were longer than
    /// [`Options::datagram_bytes_max`](crate::Options::datagram_bytes_max).
    pub truncated: u64,
    /// Datagrams copied to memory of their own because the pinned budget was used up.
    pub copied_out: u64,
    /// Datagrams dropped because the room for arrivals was full. The kernel itself counts those of
    /// a socket.
    pub overrun: u64,
    /// Datagrams that came to the socket of another stream, which handed them to its port.
    pub strayed: u64,
    /// Answers ([`Answer::Sent`]) that were dropped because too many others waited.
    pub answers_dropped: u64,
    /// Installs that the port could not act by.
    pub installs_ignored: u64,
    /// Datagrams dropped because
    /// [`Inject::queue_datagrams_max`](crate::Inject::queue_datagrams_max) others were held back.
    pub inject_dropped: u64,
    /// Datagrams of a sealed port that did not open. Such a datagram is forged or damaged, or has
    /// another key or another purpose.
    pub unopened: u64,
    /// Datagrams of a sealed port that opened and were dropped. The count of the datagram came
    /// before or lies too far behind. Or the sending process is unknown, and the port has no room
    /// to remember the process.
    pub replayed: u64,
    /// Datagrams lost on purpose, by a rule of [`Inject::file`](crate::Inject::file).
    pub inject_lost: u64,
}

impl Counters {
    /// Adds the counters of another port, whose last error stands if it has one.
    pub(crate) fn add(&mut self, other: &Self) {
        // All counters by name, so that the compiler points at a new one.
        let Self {
            sent,
            sent_by_kernel,
            sent_bytes,
            send_calls,
            dropped_full,
            refused,
            failed,
            last_send_error,
            blocked,
            repairs_held,
            segmentation_refused,
            connection_refused,
            received,
            received_bytes,
            receive_calls,
            truncated,
            copied_out,
            overrun,
            strayed,
            answers_dropped,
            installs_ignored,
            inject_dropped,
            unopened,
            replayed,
            inject_lost,
        } = other;
        let classes = [
            (&mut self.sent, sent),
            (&mut self.sent_by_kernel, sent_by_kernel),
            (&mut self.dropped_full, dropped_full),
        ];
        for (sum, counts) in classes {
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let counts = [
            (&mut self.sent_bytes, sent_bytes),
            (&mut self.send_calls, send_calls),
            (&mut self.refused, refused),
            (&mut self.failed, failed),
            (&mut self.blocked, blocked),
            (&mut self.repairs_held, repairs_held),
            (&mut self.segmentation_refused, segmentation_refused),
            (&mut self.connection_refused, connection_refused),
            (&mut self.received, received),
            (&mut self.received_bytes, received_bytes),
            (&mut self.receive_calls, receive_calls),
            (&mut self.truncated, truncated),
            (&mut self.copied_out, copied_out),
            (&mut self.overrun, overrun),
            (&mut self.strayed, strayed),
            (&mut self.answers_dropped, answers_dropped),
            (&mut self.installs_ignored, installs_ignored),
            (&mut self.inject_dropped, inject_dropped),
            (&mut self.unopened, unopened),
            (&mut self.replayed, replayed),
            (&mut self.inject_lost, inject_lost),
        ];
        counts.into_iter().for_each(|(sum, count)| *sum += count);
        if *last_send_error != 0 {
            self.last_send_error = *last_send_error;
        }
    }
}
