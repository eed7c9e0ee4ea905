//! UDP: queues, batched sending and receiving, and waiting to the microsecond.
//!
//! ```no_run
//! use std::sync::Arc;
//! use evenfall_core::{TrafficClass, Destination, GroupId, Head, Install, Transmit};
//! use evenfall_port::{Options, Port, udp::UdpDriver};
//!
//! let mut driver = UdpDriver::bind("127.0.0.1:0".parse()?, Options::default())?;
//! let members: Arc<[_]> = Arc::from(["127.0.0.1:7001".parse()?, "127.0.0.1:7002".parse()?]);
//! driver.install(0, &Install::Group(GroupId(1), members))?;
//! let to = Destination::Group(GroupId(1));
//! let body = b"shared by both copies".as_slice().into();
//! driver.send(0, Transmit::new(TrafficClass::Live, to, Head::new(b"header"), body))?;
//! driver.flush();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Limits: [`Options::queue_frames_max`] frames and [`Options::queue_bytes_max`] bytes wait per
//! class, and the newest beyond that is dropped and counted. Arrivals pin at most
//! [`Options::pinned_bytes_max`]. Sending allocates nothing once every queue has reached its
//! greatest length. At most 64 departures wait for a stamp of the kernel.

pub(crate) mod copies;
mod departures;
mod gate;
mod inbox;
pub(crate) mod inject;
mod outbox;
pub(crate) mod plan;
pub(crate) mod senders;
mod socket;
pub(crate) mod streams;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use evenfall_core::{Arrival, ClockReading, Install, Installed, Timestamp, TrafficClass, Transmit};

use self::copies::CopyGate;
use self::inbox::Inbox;
use self::inject::DelayLine;
use self::outbox::Outbox;
use self::socket::Socket;
use self::streams::StreamShare;
use crate::groups::is_open;
use crate::wait::{Blocked, Waiting};
use crate::{Answer, Counters, Options, Port, Refusal, Wake};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::{Error, Waker};

/// The longest packet, with the headers of IP and UDP, that the link towards an address takes in
/// one piece.
///
/// # Errors
/// When there is no route to the address.
pub fn link_mtu(from: IpAddr, to: SocketAddr) -> Result<u32, Error> {
    socket::link_mtu(from, to).map_err(|source| Error::Os {
        what: format!("find the way from {from} to {to}"),
        source,
        advice: "are both addresses of this network?",
    })
}

/// What carries out forwarding installs beside a socket. It marks the packets that it has sent on,
/// and the socket still gets every datagram. It may also make the copies of what the socket sends
/// to a group.
pub(crate) trait ForwardingBackend: Send {
    #[cfg_attr(not(feature = "ebpf"), allow(dead_code, reason = "only the kernel marks"))]
    /// The mark of a packet that was sent on.
    fn mark(&self) -> u32;

    /// Adopts a group or a table. The socket has the same group. `gate` belongs to a group with
    /// members. The gate is open while datagrams that the socket sends to the group are copied
    /// beside the socket. The gate that the group had before is shut.
    fn install(
        &mut self,
        owner: usize,
        install: &Install,
        gate: Option<Arc<CopyGate>>,
    ) -> Installed;

    /// Appends the counters that have grown, and opens and shuts gates. The call is cheap, because
    /// a loop calls it each turn. Returns copies that were counted as sent and did not leave.
    fn answers(&mut self, out: &mut Vec<Answer>) -> u64;

    /// Adopts a reading of the synchronised clock.
    fn adopt_clock(&mut self, reading: ClockReading);
}

/// One UDP socket that drives machines. By itself the socket ignores forwarding installs, because
/// the kernel would have to wake this process for each datagram anyway.
pub struct UdpDriver {
    socket: Socket,
    options: Options,
    outbox: Outbox,
    inbox: Inbox,
    delays: Option<Box<DelayLine>>,
    waiting: Waiting,
    counters: Counters,
    blocked: Blocked,
    /// Whether the last wait ended by an arrival or by a stamp of a departure.
    is_roused: bool,
    beside: Option<Box<dyn ForwardingBackend>>,
    /// The part of this socket in a port that several sockets share, each with a stream.
    share: Option<StreamShare>,
}

impl UdpDriver {
    /// Opens and binds a socket.
    ///
    /// # Errors
    /// [`Error::Unkeyed`] beyond loopback without a key, else the kernel's refusal. Options that
    /// the kernel does not grant are no errors; see [`notes`](Port::notes).
    pub fn bind(address: SocketAddr, options: Options) -> Result<Self, Error> {
        if !is_open(address, &options) {
            return Err(Error::Unkeyed { address, verb: "bind to" });
        }
        Self::over(Socket::bind(address, &options)?, options)
    }

    fn over(socket: Socket, options: Options) -> Result<Self, Error> {
        Ok(Self {
            outbox: Outbox::new(&options, &socket),
            inbox: Inbox::new(&options, socket.coalescing),
            delays: options.inject.as_ref().map(|i| Box::new(DelayLine::new(i, socket.local))),
            socket,
            options,
            waiting: Waiting::new()?,
            counters: Counters::default(),
            blocked: Blocked::No,
            is_roused: false,
            beside: None,
            share: None,
        })
    }

    /// From now on forwarding installs go to what `open` opens for the address of this socket.
    #[cfg(feature = "ebpf")]
    pub(crate) fn forward_beside(
        &mut self,
        open: impl FnOnce(SocketAddr) -> Result<Box<dyn ForwardingBackend>, Error>,
    ) -> Result<(), Error> {
        let beside = open(self.socket.local)?;
        self.socket.tell_marks()?;
        self.inbox.mark = Some(beside.mark());
        self.beside = Some(beside);
        Ok(())
    }

    /// Longest datagram that may be a segment of a larger send; zero when every datagram is sent by
    /// itself. The value falls during a run when the kernel refuses a segment.
    pub fn segment_bytes_max(&self) -> usize {
        self.outbox.segment_bytes_max()
    }
}

impl Port for UdpDriver {
    fn install(&mut self, owner: usize, install: &Install) -> Result<Installed, Error> {
        let mut installed = self.outbox.install(owner, install, &self.options)?;
        if let Some(beside) = &mut self.beside {
            #[cfg(feature = "ebpf")]
            let gate = match install {
                Install::Group(id, _) => self.outbox.gate_of(owner, *id),
                _ => None,
            };
            #[cfg(not(feature = "ebpf"))]
            let gate = None;
            installed = beside.install(owner, install, gate);
        }
        self.counters.installs_ignored += u64::from(installed == Installed::Ignored);
        Ok(installed)
    }

    fn has_room(&self, class: TrafficClass) -> bool {
        self.outbox.has_room(class, &self.options)
    }

    fn send(&mut self, owner: usize, transmit: Transmit) -> Result<(), Refusal> {
        self.outbox.push(owner, transmit, &self.options, &mut self.counters)
    }

    fn flush(&mut self) -> bool {
        self.blocked = self.outbox.flush(&mut self.socket, &self.options, &mut self.counters);
        self.blocked == Blocked::No
    }

    fn receive(&mut self, out: &mut Vec<Arrival>) -> usize {
        let before = out.len();
        if let Some(delays) = &mut self.delays {
            self.inbox.receive(self.socket.fd(), delays.fresh(), &mut self.counters);
            let now = MonotonicClock::now();
            delays.hold(now, &mut self.counters);
            delays.release(now, out);
        } else {
            self.inbox.receive(self.socket.fd(), out, &mut self.counters);
        }
        if let Some(share) = &mut self.share {
            share.sort_arrivals(before, out, &mut self.counters);
        }
        let count = out.len() - before;
        // A stamp of a departure ends a wait as an arrival does.
        let is_sought = count == 0 && self.is_roused;
        self.outbox.take_stamps(is_sought, &self.socket, &mut self.counters);
        count
    }

    fn is_drained(&self) -> bool {
        self.delays.is_none() && self.inbox.is_drained()
    }

    fn wait(&mut self, lull: Option<Timestamp>, deadline: Option<Timestamp>) -> Wake {
        let Self { socket, options, blocked, .. } = self;
        let Some(delays) = &self.delays else {
            let wake = self.waiting.wait(socket.fd(), options, *blocked, lull, deadline);
            self.is_roused = wake == Wake::Readable;
            return wake;
        };
        let held = delays.next_due();
        let due = held.filter(|held| deadline.is_none_or(|deadline| *held < deadline));
        let wake = self.waiting.wait(socket.fd(), options, *blocked, None, due.or(deadline));
        self.is_roused = wake == Wake::Readable;
        match wake {
            // Datagrams that were held back now arrive.
            Wake::Deadline if due.is_some() => Wake::Readable,
            wake => wake,
        }
    }

    fn wait_idly(&mut self, lull: Option<Timestamp>, deadline: Option<Timestamp>) -> Wake {
        self.waiting.is_idle = true;
        let wake = self.wait(lull, deadline);
        self.waiting.is_idle = false;
        wake
    }

    fn answers(&mut self, out: &mut Vec<Answer>) {
        self.outbox.take_answers(out, &mut self.counters);
        if let Some(beside) = &mut self.beside {
            self.counters.failed += beside.answers(out);
        }
    }

    fn adopt_clock(&mut self, reading: ClockReading) {
        if let Some(beside) = &mut self.beside {
            beside.adopt_clock(reading);
        }
    }

    fn local_addr(&self) -> SocketAddr {
        self.socket.local
    }

    fn waker(&self) -> Waker {
        self.waiting.waker.clone()
    }

    fn handle(&self) -> Result<OwnedFd, Error> {
        self.socket.handle().map_err(|source| Error::Os {
            what: "watch another socket".into(),
            source,
            advice: "raise the limit of open files (ulimit -n)",
        })
    }

    fn watch(&mut self, others: Vec<OwnedFd>) {
        self.waiting.watch(others);
    }

    fn notes(&self) -> &[String] {
        &self.socket.notes
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn waiting_bytes(&self) -> u64 {
        self.socket.waiting_bytes()
    }
}
