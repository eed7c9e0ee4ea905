//! Datagrams that wait to be sent.

use std::collections::VecDeque;
use std::net::SocketAddr;

use evenfall_core::{Destination, Head, TrafficClass, Transmit};

use crate::config::TRANSMITS_MAX;
use crate::wire::FilesMessage;

/// See the documentation of the module.
#[derive(Debug, Default)]
pub struct Outbox {
    transmits: VecDeque<Transmit>,
    /// Datagrams that found no room.
    pub dropped: u64,
}

impl Outbox {
    /// Queues a datagram. A datagram that finds no room is dropped and counted.
    pub fn send(&mut self, cluster: u64, to: SocketAddr, message: FilesMessage) {
        if self.transmits.len() >= TRANSMITS_MAX {
            self.dropped += 1;
            return;
        }
        let (head, body) = message.encode(cluster);
        let to = Destination::One(to);
        self.transmits.push_back(Transmit::new(TrafficClass::Live, to, Head::new(&head), body));
    }

    /// The next datagram.
    pub fn poll(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }
}
