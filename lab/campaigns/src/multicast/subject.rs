//! The machine of a fault run: the real machine, with tampering and mutations between it and the
//! world.

use bytes::Bytes;
use evenfall_core::node_keys::run_key_id;
use evenfall_core::{Arrival, MasterKey, Prng, SharedKey, Timestamp};
use evenfall_multicast_machine::forging::forge;
use evenfall_multicast_machine::wire::{self, DatagramKind};
use evenfall_sim::Altered;

use super::mutants::Mutation;
use super::node::{CampaignNode, MulticastActor};

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

/// A node that was shut out, and that has a key of the run that is out of use. It writes frames
/// with other messages under that key, in the place of frames of the feed.
#[derive(Clone, Debug)]
pub struct OldKeyAttack {
    prng: Prng,
    master: MasterKey,
    chance: f64,
    until: Timestamp,
}

impl OldKeyAttack {
    /// Puts forged frames in the place of this share of frames, until this time.
    pub fn new(seed: u64, master: MasterKey, chance: f64, until: Timestamp) -> Self {
        Self { prng: Prng::new(seed), master, chance, until }
    }

    /// The frame, or one that the attacker wrote in its place. Two keys are valid at a time, so the
    /// attacker has the key before the last two. A machine that still takes that key
    /// (`takes_old_keys`) is a machine for which the attacker has the key in use.
    pub(super) fn maybe_forge(
        &mut self,
        now: Timestamp,
        mut arrival: Arrival,
        takes_old_keys: bool,
    ) -> Arrival {
        if now >= self.until || !self.prng.chance(self.chance) {
            return arrival;
        }
        let Ok(genuine) = wire::parse(&arrival.datagram) else { return arrival };
        let fixed = genuine.fixed;
        let generation = (2..u32::from(u8::MAX)).find(|n| run_key_id(*n) == fixed.key_id);
        let Some(generation) =
            generation.filter(|_| fixed.kind == DatagramKind::Data && fixed.count > 0)
        else {
            return arrival;
        };
        let generation = if takes_old_keys { generation } else { generation - 2 };
        let secret = self.master.of_run(fixed.run_id, generation);
        let key = SharedKey::new(run_key_id(generation), secret);
        // Each message has its length, then its bytes.
        let message = [&[4, 0][..], b"fake"].concat();
        let body = message.repeat(usize::from(fixed.count));
        arrival.datagram = forge(Some(&key), &fixed, &genuine.hop, &body);
        arrival
    }
}

/// The machine of a fault run, with what alters its input and output.
pub type Subject = Altered<CampaignNode, Mutation>;

impl MulticastActor for Subject {
    fn node(&self) -> &CampaignNode {
        self.machine()
    }

    fn input(&mut self, now: Timestamp, call: &mut dyn FnMut(&mut CampaignNode)) {
        Self::input(self, now, call);
    }
}
