//! A port whose datagrams can be read and made only by processes with the same key.
//!
//! ```text
//!  | random number of the sending process 16 | count u64 | sealed datagram, code 16 |
//! ```
//!
//! The seal is ChaCha20-Poly1305. Each sending process has a key of its own, which is derived from
//! the shared key and the random number of the process. The count is the nonce, so no nonce is used
//! twice with one key.
//!
//! A datagram that does not open is dropped and counted. A datagram is also dropped and counted if
//! the same count came before, or if the count lies far behind the last count of the sending
//! process.
//!
//! A port remembers the counts of 256 sending processes. When the process that was heard longest
//! ago has been silent for a minute, a new process takes its place. Otherwise the datagram of the
//! new process is dropped and counted. Recorded datagrams of processes that are gone therefore do
//! not push out a process that still sends. Such datagrams may keep a new process out for a minute.
//! A receiving process that starts anew has forgotten all counts. A recorded datagram of a
//! forgotten process opens once more, and a machine must survive such a datagram like a delayed
//! datagram.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use evenfall_core::cipher::TAG_BYTES;
use evenfall_core::{
    Arrival, Cipher, Head, Install, Installed, SharedKey, Timestamp, TrafficClass, Transmit,
};
use evenfall_host::{Waker, random};

use crate::{Answer, Counters, Port, Refusal, Wake};

/// Bytes of the random number that names the life of a sender.
const LIFE_BYTES: usize = 16;
/// Bytes in front of the sealed bytes: the life of the sender, and the count of the datagram.
const PREFIX_BYTES: usize = LIFE_BYTES + 8;
/// Bytes that the seal adds to a datagram.
pub const OVERHEAD_BYTES: usize = PREFIX_BYTES + TAG_BYTES;
/// Limit of the sending processes whose counts are remembered. The largest cluster has a few dozen
/// processes.
const PEERS_MAX: usize = 256;
/// How long a process must have been silent before a new process may take its place. Processes of a
/// cluster send each other signs of life within seconds.
const SILENCE: Duration = Duration::from_secs(60);
/// A count that lies this far behind the last count of its process is dropped.
const WINDOW: u64 = u128::BITS as u64;

/// The counts that were taken from one sending process: the last count, and a bit for each of the
/// [`WINDOW`] counts up to the last.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    last: u64,
    bits: u128,
    /// When the last new datagram of the process arrived.
    heard: Timestamp,
}

impl Taken {
    /// Takes a count. Returns false when the count was taken before, or lies too far behind.
    fn take(&mut self, count: u64) -> bool {
        if count > self.last {
            let ahead = count - self.last;
            self.bits = if ahead >= WINDOW { 1 } else { self.bits << ahead | 1 };
            self.last = count;
            return true;
        }
        let behind = self.last - count;
        let is_new = behind < WINDOW && self.bits >> behind & 1 == 0;
        if is_new {
            self.bits |= 1 << behind;
        }
        is_new
    }
}

/// See the documentation of the module.
pub struct Sealed {
    inner: Box<dyn Port>,
    key: SharedKey,
    purpose: &'static str,
    life: [u8; LIFE_BYTES],
    /// The cipher of this process.
    cipher: Cipher,
    count: u64,
    /// The cipher and the counts of each sending process, by its random number.
    peers: BTreeMap<[u8; LIFE_BYTES], (Cipher, Taken)>,
    arrivals: Vec<Arrival>,
    /// The counters of the port below, with the counters of the seal.
    counters: Counters,
}

fn cipher(purpose: &'static str, key: &SharedKey, life: &[u8; LIFE_BYTES]) -> Cipher {
    let material = [&key.secret()[..], life].concat();
    Cipher::new(&blake3::derive_key(purpose, &material))
}

impl Sealed {
    /// Seals the datagrams of a port. `purpose` names the protocol and its version: datagrams of
    /// another purpose do not open.
    ///
    /// # Errors
    /// When the kernel gives no random number.
    pub fn new(inner: Box<dyn Port>, key: &SharedKey, purpose: &'static str) -> io::Result<Self> {
        let mut life = [0; LIFE_BYTES];
        random::fill(&mut life)?;
        let (peers, arrivals) = (BTreeMap::new(), Vec::new());
        let (cipher, key) = (cipher(purpose, key, &life), key.clone());
        let counters = Counters::default();
        Ok(Self { inner, key, purpose, life, cipher, count: 0, peers, arrivals, counters })
    }

    fn seal(&mut self, head: &[u8], body: &[u8]) -> Bytes {
        self.count += 1;
        let mut out = BytesMut::with_capacity(head.len() + body.len() + OVERHEAD_BYTES);
        out.extend_from_slice(&self.life);
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(head);
        out.extend_from_slice(body);
        let tag = self.cipher.seal(self.count, b"", &mut out[PREFIX_BYTES..]);
        out.extend_from_slice(&tag);
        out.freeze()
    }

    /// Opens a datagram that arrived at `now`. Returns `None` for a datagram that is dropped.
    fn open(&mut self, now: Timestamp, datagram: &[u8]) -> Option<Bytes> {
        let Some((life, count, opened)) = self.unseal(datagram) else {
            self.counters.unopened += 1;
            return None;
        };
        let is_new = self.is_new(now, life, count);
        self.counters.replayed += u64::from(!is_new);
        is_new.then_some(opened)
    }

    /// The random number of the sending process, the count and the bytes of a sealed datagram.
    /// Returns `None` for a datagram that does not open.
    fn unseal(&self, datagram: &[u8]) -> Option<([u8; LIFE_BYTES], u64, Bytes)> {
        let (life, counted) = datagram.split_first_chunk::<LIFE_BYTES>()?;
        let (count, sealed) = counted.split_first_chunk::<8>()?;
        let count = u64::from_le_bytes(*count);
        let opened = match self.peers.get(life) {
            Some((cipher, _)) => cipher.open(count, b"", sealed),
            None => cipher(self.purpose, &self.key, life).open(count, b"", sealed),
        };
        Some((*life, count, opened?))
    }

    fn is_new(&mut self, now: Timestamp, life: [u8; LIFE_BYTES], count: u64) -> bool {
        if !self.peers.contains_key(&life) && self.peers.len() >= PEERS_MAX {
            let oldest = self.peers.iter().min_by_key(|(_, (_, taken))| taken.heard);
            let silent = oldest.filter(|(_, (_, taken))| now.since(taken.heard) >= SILENCE);
            let Some(oldest) = silent.map(|(life, _)| *life) else { return false };
            self.peers.remove(&oldest);
        }
        let new = || (cipher(self.purpose, &self.key, &life), Taken::default());
        let (_, taken) = self.peers.entry(life).or_insert_with(new);
        let is_new = taken.take(count);
        if is_new {
            taken.heard = now;
        }
        is_new
    }

    /// Copies the counters of the port below, and keeps the counters of the seal.
    fn recount(&mut self) {
        let Counters { unopened, replayed, .. } = self.counters;
        self.counters = Counters { unopened, replayed, ..*self.inner.counters() };
    }
}

impl Port for Sealed {
    fn install(
        &mut self,
        owner: usize,
        install: &Install,
    ) -> Result<Installed, evenfall_host::Error> {
        match install {
            Install::Group(..) => self.inner.install(owner, install),
            // The port below cannot read what it would forward.
            _ => Ok(Installed::Ignored),
        }
    }

    fn has_room(&self, class: TrafficClass) -> bool {
        self.inner.has_room(class)
    }

    fn send(&mut self, owner: usize, transmit: Transmit) -> Result<(), Refusal> {
        let sealed = self.seal(transmit.head.as_slice(), &transmit.body);
        let sent =
            self.inner.send(owner, Transmit { head: Head::new(&[]), body: sealed, ..transmit });
        self.recount();
        sent
    }

    fn flush(&mut self) -> bool {
        let is_empty = self.inner.flush();
        self.recount();
        is_empty
    }

    fn receive(&mut self, out: &mut Vec<Arrival>) -> usize {
        let mut arrivals = core::mem::take(&mut self.arrivals);
        self.inner.receive(&mut arrivals);
        let before = out.len();
        for arrival in arrivals.drain(..) {
            match self.open(arrival.received, &arrival.datagram) {
                Some(datagram) => out.push(Arrival { datagram, ..arrival }),
                None => tracing::debug!("a datagram of {} is dropped", arrival.from),
            }
        }
        self.arrivals = arrivals;
        self.recount();
        out.len() - before
    }

    fn is_drained(&self) -> bool {
        self.inner.is_drained()
    }

    fn wait(&mut self, lull: Option<Timestamp>, deadline: Option<Timestamp>) -> Wake {
        self.inner.wait(lull, deadline)
    }

    fn wait_idly(&mut self, lull: Option<Timestamp>, deadline: Option<Timestamp>) -> Wake {
        self.inner.wait_idly(lull, deadline)
    }

    fn answers(&mut self, out: &mut Vec<Answer>) {
        self.inner.answers(out);
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn handle(&self) -> Result<OwnedFd, evenfall_host::Error> {
        self.inner.handle()
    }

    fn watch(&mut self, others: Vec<OwnedFd>) {
        self.inner.watch(others);
    }

    fn notes(&self) -> &[String] {
        self.inner.notes()
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn waiting_bytes(&self) -> u64 {
        self.inner.waiting_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    fn port(byte: u8, purpose: &'static str) -> Sealed {
        let at = "127.0.0.1:0".parse().expect("an address");
        let port = crate::open(at, Options::default()).expect("a port");
        Sealed::new(port, &SharedKey::new(1, [byte; 32]), purpose).expect("a random number")
    }

    #[test]
    fn a_datagram_opens_once_unchanged_and_with_its_own_key_and_purpose() {
        let (mut one, mut other) = (port(1, "a"), port(1, "a"));
        let now = Timestamp::from_nanos(1);
        let sealed = one.seal(b"head", b"body");
        assert_eq!(sealed.len(), 8 + OVERHEAD_BYTES);
        for at in 0..sealed.len() {
            let mut changed = sealed.to_vec();
            changed[at] ^= 1;
            assert_eq!(other.open(now, &changed), None, "byte {at}");
            assert_eq!(other.open(now, &sealed[..at]), None, "cut at {at}");
        }
        assert_eq!(port(2, "a").open(now, &sealed), None);
        assert_eq!(port(1, "b").open(now, &sealed), None);
        let next = one.seal(b"head", b"body");
        assert_ne!(next, sealed, "a nonce is used once");
        assert_eq!(other.open(now, &next).as_deref(), Some(&b"headbody"[..]));
        let overtaken = other.open(now, &sealed);
        assert_eq!(overtaken.as_deref(), Some(&b"headbody"[..]), "overtaken by the next");
        assert_eq!(other.open(now, &sealed), None, "a second time");
        let counted = (other.counters.unopened, other.counters.replayed);
        assert_eq!(counted, (2 * sealed.len() as u64, 1));
    }

    #[test]
    fn counts_are_taken_once_and_not_from_far_behind() {
        let mut taken = Taken::default();
        assert!(taken.take(1) && !taken.take(1) && taken.take(5) && taken.take(3));
        assert!(!taken.take(3) && taken.take(5 + WINDOW) && !taken.take(5) && taken.take(6));
        assert!(taken.take(1 << 40) && !taken.take(5 + WINDOW));
    }

    #[test]
    fn recorded_datagrams_of_old_processes_do_not_push_out_a_process_that_still_sends() {
        let mut one = port(1, "a");
        let (life, at) =
            (|n: u128| n.to_le_bytes(), |s: u64| Timestamp::from_nanos(s * 1_000_000_000));
        assert!(one.is_new(at(0), life(0), 1));
        let all = PEERS_MAX as u128;
        let opened = (1..2 * all).filter(|n| one.is_new(at(1), life(*n), 1)).count();
        assert_eq!((opened, one.peers.len()), (PEERS_MAX - 1, PEERS_MAX));
        assert!(!one.is_new(at(1), life(0), 1), "the counts of the first are still known");
        assert!(one.is_new(at(59), life(0), 2));
        assert!(!one.is_new(at(60), life(0), 2), "a count that came before is no sign of life");
        // The other processes have been silent for a minute, and make room.
        assert!((2 * all..3 * all - 1).all(|n| one.is_new(at(61), life(n), 1)));
        assert!(!one.is_new(at(61), life(3 * all), 1), "only the first is left, and it is heard");
        assert!(one.is_new(at(62), life(0), 3));
        assert_eq!(one.peers.len(), PEERS_MAX);
    }
}
