//! One node: a machine, its socket buffer, its groups.

use std::collections::VecDeque;

use bytes::Bytes;
use evenfall_core::{
    ClockReading, ForwardCounters, ForwardId, Forwarder, GroupId, Machine, Sent, StorageError,
    SyncTime, Timestamp, WriteId,
};

use super::departures::Departures;
use crate::SimWrites;

/// The time of an event that never happens.
pub(super) const NEVER: u64 = u64::MAX;

/// An input of a node.
pub(super) enum Input {
    /// A datagram that reached the socket at this true time.
    Datagram { from: u32, datagram: Bytes, arrived: u64, is_forwarded: bool },
    /// A call of the owner.
    Invoke(u64),
    /// A reading of the clock source, to be taken when the node gets to it.
    Clock,
    /// The answer to a transmit that asked for its departure.
    Sent(Sent),
    /// The counters of installed state.
    Counters(ForwardId, ForwardCounters),
    /// The answer to a write.
    Written(WriteId, Result<(), StorageError>),
    /// The timeout of the node has come.
    Timeout,
    /// No input: the node may go on sending.
    Nothing,
}

/// Installed groups by name, sorted, with the numbers of their members.
pub(super) type Groups = [(GroupId, Box<[u32]>)];

/// The fields that every turn needs come first, so that few lines of the cache hold them.
#[repr(C, align(64))]
pub(super) struct Node<M> {
    pub(super) machine: M,
    pub(super) host: u32,
    pub(super) up: bool,
    /// Whether a call that the owner put on the agenda ever came up.
    pub(super) called: bool,
    /// Whether the node has read its clock, and whether a call made it do so before its first
    /// scheduled reading.
    pub(super) booted: bool,
    pub(super) booted_early: bool,
    /// Whether the machine had more transmits when the node last stopped sending.
    pub(super) more: bool,
    /// Whether the last input was a timeout: then arrivals take their turn first.
    pub(super) timeout_last: bool,
    /// Whether a clock reading waits in the inbox already.
    pub(super) clock_waits: bool,
    /// The number of crashes, which tells the events of an earlier life from those of this life.
    pub(super) generation: u32,
    /// Datagrams in the inbox.
    pub(super) queued: u32,
    /// The time until which the thread of the node is busy.
    pub(super) busy: u64,
    /// The time until which a fault has stopped the process of the node.
    pub(super) stopped: u64,
    /// When the node may go on sending, if there is `more`.
    pub(super) send_at: u64,
    /// The time of the pending wake-up. A wake-up at any other time is out of date.
    pub(super) wake_at: u64,
    /// The timeout that the timer was last armed for.
    pub(super) armed: Option<Timestamp>,
    /// The true time at which that timeout fires, unless the node is busy.
    pub(super) fires: u64,
    /// An instant, and how many turns without new input the node has had at that instant.
    pub(super) spins: (u64, u32),
    pub(super) inbox: VecDeque<Input>,
    pub(super) reading: ClockReading,
    /// Carries out forwarding installs; `None` when they are ignored.
    pub(super) forwarder: Option<Box<Forwarder>>,
    /// Whether a look at the counters of installed state is due.
    pub(super) counts: bool,
    /// Carries out what a durable machine asks for, in true time.
    pub(super) writes: Option<Box<SimWrites>>,
    /// When the world looks for the next answer to a write; [`NEVER`] when nothing is under way.
    pub(super) written_at: u64,
    /// The threads that send; `None` when the node's only thread sends.
    pub(super) departures: Option<Box<Departures>>,
    groups: Vec<(GroupId, Box<[u32]>)>,
}

impl<M: Machine> Node<M> {
    pub(super) fn new(machine: M, host: u32) -> Self {
        Self {
            machine,
            host,
            up: true,
            called: false,
            booted: false,
            booted_early: false,
            more: false,
            timeout_last: false,
            clock_waits: false,
            generation: 0,
            queued: 0,
            busy: 0,
            stopped: 0,
            send_at: 0,
            wake_at: NEVER,
            armed: None,
            fires: NEVER,
            spins: (0, 0),
            inbox: VecDeque::new(),
            reading: ClockReading::default(),
            forwarder: None,
            counts: false,
            writes: None,
            written_at: NEVER,
            departures: None,
            groups: Vec::new(),
        }
    }

    /// Forgets the state that a process loses when the process dies. Returns the number of
    /// datagrams that were waiting.
    pub(super) fn crash(&mut self, now: u64) -> u32 {
        self.up = false;
        self.booted = false;
        self.booted_early = false;
        self.more = false;
        self.clock_waits = false;
        self.generation += 1;
        self.busy = now;
        self.stopped = now;
        self.wake_at = NEVER;
        self.armed = None;
        self.inbox.clear();
        self.groups.clear();
        // A kernel or a card forgets the state that a process installed when the process ends.
        self.forwarder = self.forwarder.as_ref().map(|_| Box::default());
        self.counts = false;
        if let Some(writes) = &mut self.writes {
            writes.crash();
        }
        self.written_at = NEVER;
        if let Some(departures) = &mut self.departures {
            departures.clear(now);
        }
        self.reading = ClockReading::default();
        core::mem::take(&mut self.queued)
    }

    /// The time from which the process of the node can take an input.
    #[inline]
    pub(super) fn free(&self) -> u64 {
        self.busy.max(self.stopped)
    }

    /// Reads the lines of the cache that a turn needs. The result depends on each of these lines.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        let lengths = self.inbox.len() ^ self.groups.len();
        self.busy ^ self.wake_at ^ self.spins.0 ^ self.reading.offset_ns as u64 ^ lengths as u64
    }

    /// The synchronised time, as the node's last reading has it.
    pub(super) fn sync(&self, local: Timestamp) -> SyncTime {
        SyncTime::from_nanos(local.nanos().saturating_add_signed(self.reading.offset_ns))
    }

    /// Installs or, when there are no members, forgets a group.
    pub(super) fn install(&mut self, group: GroupId, members: Box<[u32]>) {
        match self.groups.binary_search_by_key(&group, |&(id, _)| id) {
            Ok(at) if members.is_empty() => drop(self.groups.remove(at)),
            Ok(at) => self.groups[at].1 = members,
            Err(_) if members.is_empty() => {}
            Err(at) => self.groups.insert(at, (group, members)),
        }
    }

    /// The members of a group; none when it is not installed.
    #[inline]
    pub(super) fn members(groups: &Groups, group: GroupId) -> &[u32] {
        match groups.binary_search_by_key(&group, |&(id, _)| id) {
            Ok(at) => &groups[at].1,
            Err(_) => &[],
        }
    }

    /// The parts that forwarding without the machine needs; `None` when nothing is installed.
    pub(super) fn offload(&mut self) -> Option<(&mut Forwarder, &Groups)> {
        let forwarder = self.forwarder.as_deref_mut().filter(|forwarder| !forwarder.is_empty())?;
        Some((forwarder, &self.groups))
    }

    /// Gives the disk what the machine wants written. Returns the time of the first answer, unless
    /// the world waits for an answer at that time or before.
    ///
    /// # Panics
    /// When the machine asks for a write and the node has no disk: the owner's own mistake.
    pub(super) fn ask_writes(&mut self, index: u32, at: u64) -> Option<u64> {
        let machine = self.machine.durable()?;
        let Some(writes) = &mut self.writes else {
            let write = machine.poll_write().map(|write| write.log);
            assert!(write.is_none(), "node {index} writes to {write:?}: attach a disk to the node");
            return None;
        };
        writes.ask(Timestamp::from_nanos(at), machine);
        let first = writes.poll_timeout()?.nanos();
        (first < self.written_at).then(|| {
            self.written_at = first;
            first
        })
    }

    /// The parts that sending needs at the same time.
    pub(super) fn parts(&mut self) -> (&mut M, &Groups) {
        (&mut self.machine, &self.groups)
    }

    /// The parts that sending on other threads needs at the same time.
    pub(super) fn sending_parts(&mut self) -> Option<(&mut M, &Groups, &mut Departures)> {
        let departures = self.departures.as_deref_mut()?;
        Some((&mut self.machine, &self.groups, departures))
    }

    pub(super) fn take_input(&mut self) -> Option<Input> {
        let input = self.inbox.pop_front()?;
        match input {
            Input::Datagram { .. } => self.queued -= 1,
            Input::Clock => self.clock_waits = false,
            _ => {}
        }
        Some(input)
    }
}
