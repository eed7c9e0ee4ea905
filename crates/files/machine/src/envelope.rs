//! A machine whose datagrams are sealed. Nobody without the key reads, changes or makes one.
//!
//! ```text
//!  0        2         3      4        5      8           16            24
//!  | magic  | version | kind | key id | 0 0 0 | life u64 | number u64 | a datagram, sealed | tag |
//! ```
//!
//! Each process draws a random number at its start, its **life**, and seals under a key of its own
//! that follows from the shared key and the life. The seal is ChaCha20-Poly1305. The number of the
//! datagram is the nonce, and the bytes in front of the sealed ones are the associated data.
//!
//! A receiver takes each number of a life once, and no number that lies far behind the last one. A
//! receiver that starts anew has forgotten the numbers. A datagram that somebody has recorded and
//! sends again is then an old datagram, which the machines survive like one that was delayed.

use std::collections::BTreeMap;

use bytes::{BufMut as _, BytesMut};
use chacha20poly1305::aead::{AeadInPlace, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce, Tag};
use evenfall_core::durable::Durable;
use evenfall_core::{
    Arrival, Clock, ClockReading, ForwardCounters, ForwardId, Head, Install, Machine, Malformed,
    Reader, Sent, SharedKey, Timestamp, Transmit,
};

use crate::wire::{MAGIC, VERSION};

/// The kind of a sealed datagram. The kinds of [`crate::wire`] are lower.
const KIND: u8 = 9;
/// Bytes in front of the sealed ones.
const HEAD_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// Bytes that sealing adds to a datagram.
pub const SEALED_BYTES: usize = HEAD_BYTES + TAG_BYTES;
/// Lives whose last numbers are remembered: those of 256 servers. The life that was heard longest
/// ago is forgotten first.
const LIVES_MAX: usize = 256;
/// Numbers behind the last one that are still taken.
const WINDOW: u64 = u128::BITS as u64;

/// The numbers of one life that were taken: the last one, and a bit for each in front of it.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    last: u64,
    bits: u128,
}

impl Taken {
    /// Takes a number. False when it was taken before, or lies too far behind.
    fn take(&mut self, number: u64) -> bool {
        if number > self.last {
            let ahead = number - self.last;
            self.bits = if ahead >= WINDOW { 1 } else { self.bits << ahead | 1 };
            self.last = number;
            return true;
        }
        let behind = self.last - number;
        let is_new = behind < WINDOW && self.bits >> behind & 1 == 0;
        if is_new {
            self.bits |= 1 << behind;
        }
        is_new
    }
}

struct Peer {
    cipher: ChaCha20Poly1305,
    taken: Taken,
    heard: Timestamp,
}

struct Seal {
    key: SharedKey,
    life: u64,
    cipher: ChaCha20Poly1305,
    sent: u64,
    peers: BTreeMap<u64, Peer>,
}

fn cipher_of(key: &SharedKey, life: u64) -> ChaCha20Poly1305 {
    let material = [&key.secret()[..], &life.to_le_bytes()].concat();
    let key = blake3::derive_key("evenfall files v1 datagrams", &material);
    ChaCha20Poly1305::new(Key::from_slice(&key))
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    nonce.into()
}

impl Seal {
    fn head(&self, life: u64, number: u64) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..2].copy_from_slice(&MAGIC.to_le_bytes());
        head[2..5].copy_from_slice(&[VERSION, KIND, self.key.id()]);
        head[8..16].copy_from_slice(&life.to_le_bytes());
        head[16..].copy_from_slice(&number.to_le_bytes());
        head
    }

    fn seal(&mut self, transmit: Transmit) -> Transmit {
        self.sent += 1;
        let head = self.head(self.life, self.sent);
        let mut body = BytesMut::with_capacity(transmit.len() + TAG_BYTES);
        body.put_slice(transmit.head.as_slice());
        body.put_slice(&transmit.body);
        let tag = self
            .cipher
            .encrypt_in_place_detached(&nonce(self.sent), &head, &mut body)
            .expect("a datagram is far below the cipher's limit of 256 GiB");
        body.put_slice(&tag);
        Transmit { head: Head::new(&head), body: body.freeze(), ..transmit }
    }

    fn open(&mut self, now: Timestamp, arrival: Arrival) -> Result<Arrival, Malformed> {
        let datagram = &arrival.datagram;
        let mut r = Reader::new(datagram);
        let head: [u8; HEAD_BYTES] = r.array()?;
        let (life, number) = {
            let mut r = Reader::new(&head[8..]);
            (r.u64()?, r.u64()?)
        };
        if head != self.head(life, number) || life == self.life {
            return Err(r.malformed("not sealed under the key of this cluster"));
        }
        let split = datagram.len() - TAG_BYTES.min(datagram.len() - HEAD_BYTES);
        let mut body = BytesMut::from(&datagram[HEAD_BYTES..split]);
        let tag: [u8; TAG_BYTES] = Reader::new(&datagram[split..]).array()?;
        let known = self.peers.get(&life).map(|peer| peer.cipher.clone());
        let cipher = known.unwrap_or_else(|| cipher_of(&self.key, life));
        cipher
            .decrypt_in_place_detached(&nonce(number), &head, &mut body, Tag::from_slice(&tag))
            .map_err(|_| r.malformed("does not open under the key of this cluster"))?;
        if !self.peers.contains_key(&life) && self.peers.len() >= LIVES_MAX {
            let oldest = self.peers.iter().min_by_key(|(_, peer)| peer.heard);
            if let Some(oldest) = oldest.map(|(life, _)| *life) {
                self.peers.remove(&oldest);
            }
        }
        let taken = Taken::default();
        let peer = self.peers.entry(life).or_insert(Peer { cipher, taken, heard: now });
        peer.heard = now;
        if !peer.taken.take(number) {
            return Err(r.malformed("a datagram that came before"));
        }
        Ok(Arrival { datagram: body.freeze(), ..arrival })
    }
}

/// See the documentation of the module.
pub struct Envelope<M> {
    machine: M,
    seal: Option<Seal>,
}

impl<M> Envelope<M> {
    /// A machine whose datagrams are sealed under this key, or left as they are without a key.
    /// `life` is a random number that no other process has.
    pub fn new(machine: M, key: Option<&SharedKey>, life: u64) -> Self {
        let seal = key.map(|key| {
            let cipher = cipher_of(key, life);
            Seal { key: key.clone(), life, cipher, sent: 0, peers: BTreeMap::new() }
        });
        Self { machine, seal }
    }

    /// The machine.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// The machine, for calls of its owner.
    pub fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    fn sealed(&mut self, transmit: Transmit) -> Transmit {
        match &mut self.seal {
            Some(seal) => seal.seal(transmit),
            None => transmit,
        }
    }
}

impl<M: Machine> Machine for Envelope<M> {
    type Event = M::Event;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let arrival = match &mut self.seal {
            Some(seal) => seal.open(now, arrival)?,
            None => arrival,
        };
        self.machine.handle(now, arrival)
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.machine.handle_timeout(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.machine.handle_clock(now, reading);
    }

    fn handle_sent(&mut self, now: Timestamp, sent: Sent) {
        self.machine.handle_sent(now, sent);
    }

    fn handle_counters(&mut self, now: Timestamp, of: ForwardId, counters: ForwardCounters) {
        self.machine.handle_counters(now, of, counters);
    }

    fn poll_event(&mut self) -> Option<M::Event> {
        self.machine.poll_event()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.machine.poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        let transmit = self.machine.poll_transmit(now)?;
        Some(self.sealed(transmit))
    }

    fn poll_urgent(&mut self, now: Timestamp) -> Option<Transmit> {
        let transmit = self.machine.poll_urgent(now)?;
        Some(self.sealed(transmit))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.machine.poll_timeout()
    }

    fn poll_lull(&self) -> Option<Timestamp> {
        self.machine.poll_lull()
    }

    fn clock(&self) -> Option<Clock> {
        self.machine.clock()
    }

    fn durable(&mut self) -> Option<&mut dyn Durable> {
        self.machine.durable()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use evenfall_core::{Class, Destination, StampedBy};

    use super::*;

    /// Sends back what it gets.
    #[derive(Default)]
    struct Echo(Vec<Bytes>);

    impl Machine for Echo {
        type Event = ();

        fn handle(&mut self, _: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
            self.0.push(arrival.datagram);
            Ok(())
        }

        fn handle_timeout(&mut self, _: Timestamp) {}

        fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

        fn poll_event(&mut self) -> Option<()> {
            None
        }

        fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
            let body = self.0.pop()?;
            let to = Destination::One(([127, 0, 0, 1], 1).into());
            Some(Transmit::new(Class::Live, to, Head::new(b"head"), body))
        }

        fn poll_timeout(&self) -> Option<Timestamp> {
            None
        }
    }

    fn hand_in(to: &mut Envelope<Echo>, datagram: &[u8]) -> Result<(), Malformed> {
        let (now, from) = (Timestamp::ZERO, ([127, 0, 0, 1], 2).into());
        to.handle(now, Arrival::new(from, Bytes::copy_from_slice(datagram), now, StampedBy::User))
    }

    fn sent_by(from: &mut Envelope<Echo>, body: &'static [u8]) -> Vec<u8> {
        from.machine_mut().0.push(Bytes::from_static(body));
        let transmit = from.poll_transmit(Timestamp::ZERO).expect("one");
        [transmit.head.as_slice(), &transmit.body].concat()
    }

    #[test]
    fn a_sealed_datagram_opens_once_unchanged_and_under_its_own_key() {
        let key = SharedKey::new(1, [7; 32]);
        let of = |key: &SharedKey, life| Envelope::new(Echo::default(), Some(key), life);
        let (mut one, mut other) = (of(&key, 1), of(&key, 2));
        let datagram = sent_by(&mut one, b"secret");
        assert!(!datagram.windows(6).any(|bytes| bytes == b"secret"));
        for at in 0..datagram.len() {
            let mut changed = datagram.clone();
            changed[at] ^= 1;
            assert!(hand_in(&mut other, &changed).is_err(), "{at}");
            assert!(hand_in(&mut other, &datagram[..at]).is_err(), "{at}");
        }
        assert!(hand_in(&mut of(&SharedKey::new(1, [8; 32]), 3), &datagram).is_err());
        assert!(hand_in(&mut one, &datagram).is_err(), "its own");
        let next = sent_by(&mut one, b"next");
        assert_eq!(hand_in(&mut other, &next), Ok(()));
        assert_eq!(hand_in(&mut other, &datagram), Ok(()), "overtaken by the next");
        assert!(hand_in(&mut other, &datagram).is_err(), "a second time");
        assert_eq!(other.machine().0, [&b"headnext"[..], b"headsecret"]);
        let mut open = Envelope::new(Echo::default(), None, 0);
        assert_eq!(sent_by(&mut open, b"plain"), b"headplain");
    }

    #[test]
    fn numbers_are_taken_once_and_not_from_far_behind() {
        let mut taken = Taken::default();
        assert!(taken.take(1) && !taken.take(1) && taken.take(5) && taken.take(3));
        assert!(!taken.take(3) && taken.take(5 + WINDOW) && !taken.take(5) && taken.take(6));
        assert!(taken.take(1 << 40) && !taken.take(5 + WINDOW));
    }
}
