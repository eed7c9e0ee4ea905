//! The machine of a fault run: the real machine, with tampering and mutations between it and the
//! world.

use bytes::Bytes;
use evenfall_core::{Arrival, Prng, Timestamp};
use evenfall_sim::Altered;

use super::mutants::Mutation;
use super::node::{Actor, Node};

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

    pub(super) fn maybe(&mut self, now: Timestamp, mut arrival: Arrival) -> Arrival {
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

/// The machine of a fault run, with what alters its input and output.
pub type Subject = Altered<Node, Mutation>;

impl Actor for Subject {
    fn node(&self) -> &Node {
        self.machine()
    }

    fn input(&mut self, now: Timestamp, call: &mut dyn FnMut(&mut Node)) {
        Self::input(self, now, call);
    }
}
