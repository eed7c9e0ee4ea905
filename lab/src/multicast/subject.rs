//! The machine of a fault run: the real one, watched by [`Strict`], with tampering and mutations
//! between it and the world.

use std::collections::VecDeque;

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockReading, ForwardCounters, ForwardId, Install, Machine, Malformed, Prng, Sent,
    Timestamp, Transmit,
};
use evenfall_sim::Strict;

use super::mutants::Mutation;
use super::node::{Actor, Node, NodeEvent};

/// Bits flipped in what arrives, as by somebody on the path.
#[derive(Clone, Debug)]
pub struct Tamper {
    prng: Prng,
    chance: f64,
    until: Timestamp,
}

impl Tamper {
    /// Tampering with this share of datagrams until this time.
    pub fn new(seed: u64, chance: f64, until: Timestamp) -> Self {
        Self { prng: Prng::new(seed), chance, until }
    }

    fn maybe(&mut self, now: Timestamp, mut arrival: Arrival) -> Arrival {
        let hit = now < self.until && self.prng.chance(self.chance);
        if hit && !arrival.datagram.is_empty() {
            let mut bytes = arrival.datagram.to_vec();
            let at = self.prng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.prng.below(8);
            arrival.datagram = Bytes::from(bytes);
        }
        arrival
    }
}

/// See the module documentation.
pub struct Subject {
    inner: Strict<Node>,
    /// Somebody on the path.
    pub tamper: Option<Tamper>,
    /// What is wrong with the machine.
    pub mutation: Option<Mutation>,
    events: VecDeque<NodeEvent>,
}

impl Subject {
    /// The machine as it is.
    pub fn new(node: Node) -> Self {
        Self { inner: Strict::new(node), tamper: None, mutation: None, events: VecDeque::new() }
    }
}

impl Machine for Subject {
    type Event = NodeEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let arrival = match &mut self.tamper {
            Some(tamper) => tamper.maybe(now, arrival),
            None => arrival,
        };
        match &mut self.mutation {
            None => self.inner.handle(now, arrival),
            Some(mutation) => match mutation.arrival(&self.inner.inner, arrival) {
                Some(arrival) => self.inner.handle(now, arrival),
                None => Ok(()),
            },
        }
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.inner.handle_timeout(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        let reading = match &self.mutation {
            Some(mutation) => mutation.reading(&self.inner.inner, reading),
            None => reading,
        };
        self.inner.handle_clock(now, reading);
    }

    fn handle_sent(&mut self, now: Timestamp, sent: Sent) {
        self.inner.handle_sent(now, sent);
    }

    fn handle_counters(&mut self, now: Timestamp, of: ForwardId, counters: ForwardCounters) {
        self.inner.handle_counters(now, of, counters);
    }

    fn poll_event(&mut self) -> Option<NodeEvent> {
        let Some(mutation) = &mut self.mutation else { return self.inner.poll_event() };
        while let Some(event) = self.inner.poll_event() {
            mutation.event(event, &mut self.events);
        }
        self.events.pop_front()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.inner.poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        loop {
            let mut transmit = self.inner.poll_transmit(now)?;
            if self.mutation.as_mut().is_none_or(|mutation| mutation.sends(&mut transmit)) {
                return Some(transmit);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.inner.poll_timeout()
    }

    fn poll_lull(&self) -> Option<Timestamp> {
        self.inner.poll_lull()
    }
}

impl Actor for Subject {
    fn node(&self) -> &Node {
        &self.inner.inner
    }

    fn input(&mut self, now: Timestamp, call: &mut dyn FnMut(&mut Node)) {
        self.inner.input(now, call);
    }
}
