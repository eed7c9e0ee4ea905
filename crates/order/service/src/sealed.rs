//! A port whose datagrams only replicas with the same key can read or make.
//!
//! ```text
//!  | random number of this process 16 | count u64 | sealed datagram, code 16 |
//! ```
//!
//! The seal is XChaCha20-Poly1305. The random number and the count are its nonce, so no nonce is
//! used twice with one key. A datagram that does not open is dropped. A datagram that somebody
//! recorded and sends again does open: the machine above takes old and doubled datagrams anyway,
//! and each names the replica that made it.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use bytes::{Bytes, BytesMut};
use chacha20poly1305::aead::{AeadInPlace as _, KeyInit as _};
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};
use evenfall_core::{Arrival, Class, Head, Install, Installed, SharedKey, Timestamp, Transmit};
use evenfall_host::{Waker, random};
use evenfall_port::{Answer, Counters, Port, Refusal, Wake};

use crate::ServiceError;

const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// Bytes that the seal adds to a datagram.
pub const OVERHEAD_BYTES: usize = NONCE_BYTES + TAG_BYTES;

/// See the module documentation.
pub struct Sealed {
    inner: Box<dyn Port>,
    cipher: XChaCha20Poly1305,
    nonce: [u8; NONCE_BYTES],
    count: u64,
    arrivals: Vec<Arrival>,
}

impl Sealed {
    /// Seals what goes through a port.
    ///
    /// # Errors
    /// The kernel gives no random number.
    pub fn new(inner: Box<dyn Port>, key: &SharedKey) -> Result<Self, ServiceError> {
        let derived = blake3::derive_key("evenfall order v1 datagrams", key.secret());
        let mut nonce = [0; NONCE_BYTES];
        let failed = |error| ServiceError::Io("read a random number".into(), error);
        random::fill(&mut nonce[..16]).map_err(failed)?;
        let cipher = XChaCha20Poly1305::new((&derived).into());
        Ok(Self { inner, cipher, nonce, count: 0, arrivals: Vec::new() })
    }

    fn seal(&mut self, head: &[u8], body: &[u8]) -> Option<Bytes> {
        self.count += 1;
        self.nonce[16..].copy_from_slice(&self.count.to_le_bytes());
        let mut out = BytesMut::with_capacity(head.len() + body.len() + OVERHEAD_BYTES);
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(head);
        out.extend_from_slice(body);
        let nonce = XNonce::from(self.nonce);
        let code =
            self.cipher.encrypt_in_place_detached(&nonce, b"", &mut out[NONCE_BYTES..]).ok()?;
        out.extend_from_slice(&code);
        Some(out.freeze())
    }

    fn open(&self, datagram: &[u8]) -> Option<Bytes> {
        let (nonce, sealed) = datagram.split_at_checked(NONCE_BYTES)?;
        let (sealed, code) = sealed.split_at_checked(sealed.len().checked_sub(TAG_BYTES)?)?;
        let mut out = BytesMut::from(sealed);
        let (nonce, code) = (XNonce::from_slice(nonce), Tag::from_slice(code));
        self.cipher.decrypt_in_place_detached(nonce, b"", &mut out, code).ok()?;
        Some(out.freeze())
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

    fn has_room(&self, class: Class) -> bool {
        self.inner.has_room(class)
    }

    fn send(&mut self, owner: usize, transmit: Transmit) -> Result<(), Refusal> {
        let sealed = self.seal(transmit.head.as_slice(), &transmit.body).ok_or(Refusal::TooLong)?;
        self.inner.send(owner, Transmit { head: Head::new(&[]), body: sealed, ..transmit })
    }

    fn flush(&mut self) -> bool {
        self.inner.flush()
    }

    fn receive(&mut self, out: &mut Vec<Arrival>) -> usize {
        let mut arrivals = core::mem::take(&mut self.arrivals);
        self.inner.receive(&mut arrivals);
        let before = out.len();
        for arrival in arrivals.drain(..) {
            match self.open(&arrival.datagram) {
                Some(datagram) => out.push(Arrival { datagram, ..arrival }),
                None => tracing::debug!("a datagram of {} does not open", arrival.from),
            }
        }
        self.arrivals = arrivals;
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
        self.inner.counters()
    }

    fn waiting_bytes(&self) -> u64 {
        self.inner.waiting_bytes()
    }
}

#[cfg(test)]
mod tests {
    use evenfall_port::Options;

    use super::*;

    #[test]
    fn a_datagram_opens_with_the_same_key_and_unchanged() {
        let port = |byte| {
            let at = "127.0.0.1:0".parse().expect("an address");
            let port = evenfall_port::open(at, Options::default()).expect("a port");
            Sealed::new(port, &SharedKey::new(1, [byte; 32])).expect("a random number")
        };
        let (mut one, other, stranger) = (port(1), port(1), port(2));
        let sealed = one.seal(b"head", b"body").expect("short");
        assert_eq!(sealed.len(), 8 + OVERHEAD_BYTES);
        assert_eq!(other.open(&sealed).as_deref(), Some(&b"headbody"[..]));
        assert_eq!(stranger.open(&sealed), None);
        assert_ne!(one.seal(b"head", b"body").expect("short"), sealed, "a nonce is used once");
        for at in 0..sealed.len() {
            let mut changed = sealed.to_vec();
            changed[at] ^= 1;
            assert_eq!(other.open(&changed), None, "byte {at}");
            assert_eq!(other.open(&sealed[..at]), None, "cut at {at}");
        }
    }
}
