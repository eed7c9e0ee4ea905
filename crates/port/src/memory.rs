//! Ports without a network: machines of one process reach each other through shared memory.
//!
//! A [`Switch`] knows its ports by address. A port has the queues, the refusals and the waits of a
//! socket, and its only system call wakes a waiting thread. A program that drives all its machines
//! in one process, on one thread or several, needs no other kind of port.
//!
//! ```
//! use evenfall_core::{TrafficClass, Destination, Head, Transmit};
//! use evenfall_port::{Options, Port, memory::Switch};
//!
//! let switch = Switch::new();
//! let mut here = switch.port(Options::default())?;
//! let mut there = switch.port(Options::default())?;
//! let to = Destination::One(there.local_addr());
//! here.send(0, Transmit::new(TrafficClass::Live, to, Head::new(b"ping"), Default::default()))?;
//! here.flush();
//! let mut arrivals = Vec::new();
//! assert_eq!(there.receive(&mut arrivals), 1);
//! assert_eq!(&arrivals[0].datagram[..], b"ping");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`MemoryPort::forwarding`] makes a port that carries out forwarding installs
//! ([`evenfall_core::forward`]). The port stands for all ports that forward, in tests that run with
//! and without forwarding.
//!
//! Limits: [`Options::queue_frames_max`] frames and [`Options::queue_bytes_max`] bytes wait per
//! class, and arrivals wait up to [`Options::receive_buffer_bytes`]. At each limit the newest is
//! dropped and counted.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockReading, Forwarder, Install, Installed, StampedBy, Timestamp, TrafficClass,
    Transmit,
};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::{Error, Waker};

use crate::answers::Answers;
use crate::groups::{Groups, Members, is_open};
use crate::wait::{Blocked, Waiting, eventfd};
use crate::{Answer, Counters, Options, Port, Refusal, Wake, lock};

/// Arrivals taken at once, as many as a loop sends in one turn.
const ARRIVALS_PER_BATCH: usize = 256;
/// Bytes that a waiting arrival takes besides its datagram: its record and its reference count.
const ARRIVAL_BYTES: usize = 128;
/// How often counters of installed state are told. Ten milliseconds are often enough for a live
/// page, and the reports are few beside the counted frames.
const COUNTERS_EVERY: Duration = Duration::from_millis(10);

/// Connects the ports of one process. Clones are the same switch.
#[derive(Clone, Default)]
pub struct Switch(Arc<Mutex<BTreeMap<SocketAddr, Arc<Inbox>>>>);

impl Switch {
    /// A switch without ports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a port at the first free address: 127.0.0.1, from port 1 on.
    ///
    /// # Errors
    /// When the process may not open more files, or all 65,535 addresses are taken.
    pub fn port(&self, options: Options) -> Result<MemoryPort, Error> {
        self.open(None, options)
    }

    /// Opens a port at this address.
    ///
    /// # Errors
    /// [`Error::Unkeyed`] beyond loopback without a key, and when the address is taken or the
    /// process may open no more files.
    pub fn port_at(&self, address: SocketAddr, options: Options) -> Result<MemoryPort, Error> {
        if !is_open(address, &options) {
            return Err(Error::Unkeyed { address, verb: "bind to" });
        }
        self.open(Some(address), options)
    }

    fn open(&self, address: Option<SocketAddr>, options: Options) -> Result<MemoryPort, Error> {
        let inbox = Arc::new(Inbox {
            bytes_max: options.receive_buffer_bytes,
            arrived: eventfd()?,
            waiting: Mutex::default(),
        });
        let waiting = Waiting::new()?;
        let mut ports = lock(&self.0);
        let mut any = (1..=u16::MAX).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let address = match address {
            Some(address) if ports.contains_key(&address) => return Err(in_use(address)),
            Some(address) => address,
            None => any
                .find(|address| !ports.contains_key(address))
                .ok_or_else(|| in_use((Ipv4Addr::LOCALHOST, 0).into()))?,
        };
        ports.insert(address, Arc::clone(&inbox));
        let notes = options.lacks_in_memory();
        Ok(MemoryPort {
            switch: self.clone(),
            address,
            inbox,
            sender: Sender {
                options,
                lanes: Default::default(),
                lane_bytes: [0; 4],
                groups: Groups::new(),
                answers: Answers::default(),
                counters: Counters::default(),
            },
            forwarder: None,
            waiting,
            is_drained: false,
            counted_at: Timestamp::ZERO,
            notes,
        })
    }
}

fn in_use(address: SocketAddr) -> Error {
    Error::Os {
        what: format!("open a port in memory at {address}"),
        source: std::io::ErrorKind::AddrInUse.into(),
        advice: "another port of this switch has the address: choose another",
    }
}

/// The arrivals of a port that were not received yet.
struct Inbox {
    bytes_max: usize,
    /// Readable while an arrival waits.
    arrived: Waker,
    waiting: Mutex<Arrived>,
}

#[derive(Default)]
struct Arrived {
    arrivals: VecDeque<Arrival>,
    bytes: usize,
    overrun: u64,
}

impl Inbox {
    fn put(&self, arrival: Arrival) {
        let mut waiting = lock(&self.waiting);
        let bytes = arrival.datagram.len() + ARRIVAL_BYTES;
        if waiting.bytes + bytes > self.bytes_max {
            waiting.overrun += 1;
            return;
        }
        waiting.bytes += bytes;
        waiting.arrivals.push_back(arrival);
        if waiting.arrivals.len() == 1 {
            self.arrived.wake();
        }
    }

    /// Takes one batch. Returns whether no arrival is left.
    fn take(&self, out: &mut Vec<Arrival>, counters: &mut Counters) -> bool {
        let mut waiting = lock(&self.waiting);
        counters.overrun = waiting.overrun;
        let count = waiting.arrivals.len().min(ARRIVALS_PER_BATCH);
        if count == 0 {
            return true;
        }
        let before = out.len();
        out.extend(waiting.arrivals.drain(..count));
        let bytes: usize = out[before..].iter().map(|arrival| arrival.datagram.len()).sum();
        waiting.bytes -= bytes + count * ARRIVAL_BYTES;
        counters.received += count as u64;
        counters.received_bytes += bytes as u64;
        counters.receive_calls += 1;
        let is_empty = waiting.arrivals.is_empty();
        if is_empty {
            self.arrived.clear();
        }
        is_empty
    }
}

/// A transmit and the machine that sends it.
struct Frame {
    owner: usize,
    transmit: Transmit,
    to: Members<Box<[SocketAddr]>>,
}

impl Frame {
    fn members(&self) -> &[SocketAddr] {
        match &self.to {
            Members::One(address) => std::slice::from_ref(address),
            Members::Group(group) => group,
        }
    }
}

/// One port of a [`Switch`].
pub struct MemoryPort {
    switch: Switch,
    address: SocketAddr,
    inbox: Arc<Inbox>,
    sender: Sender,
    /// Carries out forwarding installs; `None` when the port ignores them.
    forwarder: Option<Forwarder>,
    waiting: Waiting,
    is_drained: bool,
    counted_at: Timestamp,
    notes: Vec<String>,
}

/// The sending half of a port. Forwarding uses it as machines do.
struct Sender {
    options: Options,
    /// Queues by class. The first leaves first.
    lanes: [VecDeque<Frame>; 4],
    /// Bytes of the frames in each queue.
    lane_bytes: [usize; 4],
    groups: Groups<Box<[SocketAddr]>>,
    answers: Answers,
    counters: Counters,
}

impl Sender {
    fn has_room(&self, class: TrafficClass) -> bool {
        (0..=class as usize).all(|class| self.takes_frame(class))
    }

    fn takes_frame(&self, class: usize) -> bool {
        let Options { queue_frames_max, queue_bytes_max, .. } = self.options;
        self.lanes[class].len() < queue_frames_max && self.lane_bytes[class] < queue_bytes_max
    }

    fn queue(&mut self, owner: usize, transmit: Transmit) -> Result<(), Refusal> {
        let to = self.groups.resolve(owner, &transmit, &self.options);
        let to = to.inspect_err(|_| self.counters.refused += 1)?;
        let class = transmit.class as usize;
        let frame = Frame { owner, transmit, to };
        if !self.takes_frame(class) {
            self.counters.dropped_full[class] += frame.members().len() as u64;
            return Err(Refusal::Full);
        }
        self.lane_bytes[class] += frame.transmit.len();
        self.lanes[class].push_back(frame);
        Ok(())
    }
}

impl MemoryPort {
    /// The same port, which carries out forwarding installs from now on.
    pub fn forwarding(mut self) -> Self {
        self.forwarder = Some(Forwarder::default());
        self
    }

    /// Sends on the arrivals for which machines installed tables, and marks them.
    fn forward(&mut self, arrivals: &mut [Arrival]) {
        let Some(forwarder) = self.forwarder.as_mut().filter(|f| !f.is_empty()) else { return };
        let sender = &mut self.sender;
        for arrival in arrivals {
            let now = MonotonicClock::now();
            forwarder.offer(now, arrival, |owner, transmit| {
                sender.has_room(transmit.class) && sender.queue(owner, transmit).is_ok()
            });
        }
        self.flush();
    }
}

impl Drop for MemoryPort {
    fn drop(&mut self) {
        lock(&self.switch.0).remove(&self.address);
    }
}

impl Port for MemoryPort {
    fn install(&mut self, owner: usize, install: &Install) -> Result<Installed, Error> {
        let installed = match (install, &mut self.forwarder) {
            (Install::Group(id, members), _) => {
                let (groups, options) = (&mut self.sender.groups, &self.sender.options);
                groups.install((owner, *id), members, options, |members| members.into())?;
                Installed::Taken
            }
            (Install::Forward(id, rules), Some(forwarder)) => {
                forwarder.install(owner, *id, rules.as_ref())
            }
            _ => Installed::Ignored,
        };
        self.sender.counters.installs_ignored += u64::from(installed == Installed::Ignored);
        Ok(installed)
    }

    fn has_room(&self, class: TrafficClass) -> bool {
        self.sender.has_room(class)
    }

    fn send(&mut self, owner: usize, transmit: Transmit) -> Result<(), Refusal> {
        let token = transmit.token;
        let queued = self.sender.queue(owner, transmit);
        if let (Err(_), Some(token)) = (queued, token) {
            self.sender.answers.left(owner, token, None, &mut self.sender.counters);
        }
        queued
    }

    fn flush(&mut self) -> bool {
        let from = self.address;
        let Sender { lanes, lane_bytes, counters, answers, .. } = &mut self.sender;
        *lane_bytes = [0; 4];
        if lanes.iter().all(VecDeque::is_empty) {
            return true;
        }
        let ports = lock(&self.switch.0);
        counters.send_calls += 1;
        for frame in lanes.iter_mut().flat_map(|lane| lane.drain(..)) {
            let Transmit { head, body, class, token, .. } = &frame.transmit;
            let datagram: Bytes = [head.as_slice(), body].concat().into();
            let now = MonotonicClock::now();
            for to in frame.members() {
                counters.sent[*class as usize] += 1;
                counters.sent_bytes += datagram.len() as u64;
                let arrival = Arrival::new(from, datagram.clone(), now, StampedBy::User);
                match ports.get(to) {
                    Some(inbox) => inbox.put(arrival),
                    None => counters.connection_refused += 1,
                }
            }
            if let Some(token) = token {
                answers.left(frame.owner, *token, Some(MonotonicClock::now()), counters);
            }
        }
        true
    }

    fn receive(&mut self, out: &mut Vec<Arrival>) -> usize {
        let before = out.len();
        self.is_drained = self.inbox.take(out, &mut self.sender.counters);
        self.forward(&mut out[before..]);
        out.len() - before
    }

    fn is_drained(&self) -> bool {
        self.is_drained
    }

    fn wait(&mut self, lull: Option<Timestamp>, deadline: Option<Timestamp>) -> Wake {
        let (fd, options) = (self.inbox.arrived.fd(), &self.sender.options);
        self.waiting.wait(fd, options, Blocked::No, lull, deadline)
    }

    fn answers(&mut self, out: &mut Vec<Answer>) {
        self.sender.answers.take(out);
        let Some(forwarder) = &mut self.forwarder else { return };
        let now = MonotonicClock::now();
        if now.since(self.counted_at) >= COUNTERS_EVERY {
            self.counted_at = now;
            forwarder.take_counters(|owner, id, counters| {
                out.push(Answer::Counters(owner, id, counters));
            });
        }
    }

    fn adopt_clock(&mut self, reading: ClockReading) {
        if let Some(forwarder) = &mut self.forwarder {
            forwarder.adopt_clock(reading);
        }
    }

    fn local_addr(&self) -> SocketAddr {
        self.address
    }

    fn waker(&self) -> Waker {
        self.waiting.waker.clone()
    }

    fn handle(&self) -> Result<OwnedFd, Error> {
        self.inbox.arrived.handle().map_err(|source| Error::Os {
            what: "watch another port".into(),
            source,
            advice: "raise the limit of open files (ulimit -n)",
        })
    }

    fn watch(&mut self, others: Vec<OwnedFd>) {
        self.waiting.watch(others);
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn counters(&self) -> &Counters {
        &self.sender.counters
    }

    fn waiting_bytes(&self) -> u64 {
        lock(&self.inbox.waiting).bytes as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Inject;

    #[test]
    fn what_a_port_in_memory_cannot_do_is_noted_by_the_options_name() {
        let notes = |options| Switch::new().port(options).expect("a port").notes().to_vec();
        assert_eq!(notes(Options::default()), Vec::<String>::new());
        let all = Options {
            kernel_timestamps: true,
            multicast_interface: Some(Ipv4Addr::LOCALHOST),
            busy_poll: Some(Duration::from_micros(50)),
            dscp: Some([46, 46, 0, 0]),
            inject: Some(Inject { file: "delays".into(), seed: 1, queue_datagrams_max: 1 }),
            ..Options::default()
        };
        let noted = notes(all);
        let names = ["kernel_timestamps", "multicast_interface", "busy_poll", "dscp", "inject"];
        let begins = noted.iter().zip(names).all(|(note, name)| note.starts_with(name));
        assert!(begins && noted.len() == names.len(), "{noted:?}");
    }
}
