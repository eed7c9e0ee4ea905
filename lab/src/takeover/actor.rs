//! The machine of a node: a candidate among the roots, or any other node of the overlay.

use evenfall_core::{
    Arrival, ClockReading, ForwardCounters, ForwardId, Install, Machine, Malformed, Sent,
    Timestamp, Transmit,
};
use evenfall_multicast_service::candidate::{Candidate, CandidateEvent};

use crate::multicast::node::{Node, NodeEvent};

/// A machine of this campaign.
pub enum Actor {
    /// One of the roots.
    Candidate(Box<Candidate>),
    /// A proxy or a receiver.
    Node(Node),
}

/// What a machine of this campaign tells its owner.
#[derive(Clone, Debug)]
pub enum Told {
    /// From a candidate.
    Candidate(CandidateEvent),
    /// From a proxy or a receiver.
    Node(NodeEvent),
}

macro_rules! each {
    ($actor:expr, $machine:ident => $call:expr) => {
        match $actor {
            Actor::Candidate($machine) => $call,
            Actor::Node($machine) => $call,
        }
    };
}

impl Machine for Actor {
    type Event = Told;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        each!(self, m => m.handle(now, arrival))
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        each!(self, m => m.handle_timeout(now));
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        each!(self, m => m.handle_clock(now, reading));
    }

    fn handle_sent(&mut self, now: Timestamp, sent: Sent) {
        each!(self, m => m.handle_sent(now, sent));
    }

    fn handle_counters(&mut self, now: Timestamp, of: ForwardId, counters: ForwardCounters) {
        each!(self, m => m.handle_counters(now, of, counters));
    }

    fn poll_event(&mut self) -> Option<Told> {
        match self {
            Self::Candidate(m) => m.poll_event().map(Told::Candidate),
            Self::Node(m) => m.poll_event().map(Told::Node),
        }
    }

    fn poll_install(&mut self) -> Option<Install> {
        each!(self, m => m.poll_install())
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        each!(self, m => m.poll_transmit(now))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        each!(self, m => m.poll_timeout())
    }

    fn poll_lull(&self) -> Option<Timestamp> {
        each!(self, m => m.poll_lull())
    }
}
