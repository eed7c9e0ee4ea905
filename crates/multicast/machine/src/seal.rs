//! Keys: one shared secret authenticates every datagram and seals the bodies of the feed.
//!
//! The root seals a body once, so that every copy has the same bytes. The seal is ChaCha20-Poly1305
//! under a key that is derived for the stream, epoch and run id. The frame number is the nonce, and
//! the fixed header is the associated data. Every datagram also carries a short code of the hop
//! that sent it: SipHash-2-4 (a keyed function of 64 bits) over the header and the body. Of a
//! sealed body the code covers only the tag, so that a kernel program computes it in the same short
//! time for every length ([`HopCode`]). A proxy therefore never opens a body, and sends no frame on
//! that a node without the key made. The proxy does send a frame on whose sealed bytes were changed
//! on the way. A receiver opens a body before it counts the frame, so the changed frame is missing
//! there, and is repaired.
//!
//! With node keys, the key of the frames is not the shared key. It comes with a place, and another
//! key takes its place while the feed runs (`root/rotation.rs`). The header names the key of each
//! frame, and two keys are valid at a time.
//!
//! The run id is a random number that the root draws at its start. Two runs that begin in the same
//! second, or under a clock that was set back, therefore seal under different keys, and no nonce is
//! used twice with one key.

use bytes::Bytes;
pub use evenfall_core::SharedKey;
pub use evenfall_core::cipher::TAG_BYTES;
use evenfall_core::forward::HopCode;
use evenfall_core::node_keys::{NODE_KEY_ID, next_run_key_id};
use evenfall_core::{Cipher, EndKeys, FrameMemory, MacKey, Malformed};

use crate::ends::{End, Ends};
use crate::wire::{
    Datagram, DatagramKind, HEADER_BYTES, Hop, MAC_OFFSET, OriginHeader, encode_header,
};

/// Bytes of a chunk of memory for opened bodies. A chunk has room for five full datagrams, and a
/// simulated world has thousands of receivers.
const CHUNK_BYTES: usize = 8_192;
/// Chunks of a receiver: 4 MiB, the bodies of 40 ms of a feed of 70,000 full datagrams a second. A
/// program that keeps more messages gets later ones in memory of their own.
const CHUNKS_MAX: usize = 512;

/// Stream, epoch and run id. Each combination has its own body key.
type RunOfStream = (u32, u32, u64);

/// Seals, opens and authenticates for one stream.
#[derive(Clone)]
pub(crate) struct Seal {
    /// The ciphers are large, and a machine without a key has none.
    keyed: Option<Box<Keyed>>,
    /// The key of a run that comes next, or that was in use before; `None` without node keys, and
    /// before the first rotation.
    beside: Option<Box<Keyed>>,
    /// The keys of control datagrams; `None` when these are under the shared key.
    pub ends: Option<Box<Ends>>,
    /// Memory of the bodies that are sealed, or opened, here.
    memory: FrameMemory,
}

/// A key of the frames of a run: its id and its secret.
pub(crate) type RunKey = (u8, [u8; 32]);

#[derive(Clone)]
struct Keyed {
    id: u8,
    master: [u8; 32],
    hop: [u8; 16],
    mac: MacKey,
    /// The cipher of the last stream and run. An overlay has one stream and one run at a time.
    body: Option<(RunOfStream, Cipher)>,
}

impl Keyed {
    fn new((id, master): RunKey) -> Box<Self> {
        let mac = blake3::derive_key("evenfall multicast v2 hop authentication", &master);
        let hop: [u8; 16] = *mac.first_chunk().expect("32 bytes");
        Box::new(Self { id, master, hop, mac: MacKey::new(id, &hop), body: None })
    }

    fn is(&self, key: &RunKey) -> bool {
        (self.id, &self.master) == (key.0, &key.1)
    }
}

impl Seal {
    pub(crate) fn new(key: Option<&SharedKey>) -> Self {
        let keyed = key.map(|key| Keyed::new((key.id(), *key.secret())));
        let memory = FrameMemory::new(CHUNK_BYTES, CHUNKS_MAX);
        Self { keyed, beside: None, ends: None, memory }
    }

    /// Uses this memory for bodies. The call must come before the first body.
    pub(crate) fn with_memory(self, memory: FrameMemory) -> Self {
        Self { memory, ..self }
    }

    /// Takes the keys of a run: the key in use, and the key that comes next or was in use before.
    pub(crate) fn take_run_keys(&mut self, keys: &[RunKey]) {
        let mut known = [self.keyed.take(), self.beside.take()];
        let mut take = |key: &RunKey| {
            let mut known = known.iter_mut();
            // The cipher of a known key is made already.
            let same = known.find(|known| known.as_ref().is_some_and(|known| known.is(key)));
            same.and_then(Option::take).unwrap_or_else(|| Keyed::new(*key))
        };
        self.keyed = keys.first().map(&mut take);
        self.beside = keys.get(1).map(&mut take);
    }

    /// The keys of the run: the key in use first.
    pub(crate) fn run_keys(&self) -> Vec<RunKey> {
        let keys = [&self.keyed, &self.beside].into_iter().flatten();
        keys.map(|keyed| (keyed.id, keyed.master)).collect()
    }

    /// The id of the newest key of the run, whether it is in use or comes next.
    pub(crate) fn newest_key_id(&self) -> u8 {
        let next =
            self.beside.as_ref().filter(|beside| beside.id == next_run_key_id(self.key_id()));
        next.map_or(self.key_id(), |next| next.id)
    }

    /// Puts the key with this id in use, if it is the key that comes next. Returns whether the key
    /// in use has changed.
    pub(crate) fn turn_to(&mut self, key_id: u8) -> bool {
        let turns = key_id != self.key_id() && key_id == self.newest_key_id();
        if turns {
            core::mem::swap(&mut self.keyed, &mut self.beside);
        }
        turns
    }

    /// Whether frames under this key are valid.
    pub(crate) fn has_key(&self, key_id: u8) -> bool {
        self.key_of(key_id).is_some()
    }

    /// The key of a frame, if it is valid.
    fn key_of(&self, key_id: u8) -> Option<&Keyed> {
        [&self.keyed, &self.beside].into_iter().flatten().find(|key| key.id == key_id).map(|k| &**k)
    }

    fn key_of_mut(&mut self, key_id: u8) -> Option<&mut Keyed> {
        let mut keys = [&mut self.keyed, &mut self.beside].into_iter().flatten();
        keys.find(|key| key.id == key_id).map(|key| &mut **key)
    }

    /// Puts control datagrams under keys of their two ends.
    pub(crate) fn with_ends(&mut self, keys: EndKeys) {
        self.ends = Some(Box::new(Ends::new(keys)));
    }

    /// The id of the key that authenticates control datagrams.
    pub(crate) fn control_key_id(&self) -> u8 {
        if self.ends.is_some() { NODE_KEY_ID } else { self.key_id() }
    }

    /// Bytes that the seal of a place adds.
    pub(crate) fn place_overhead(&self) -> usize {
        if self.ends.is_some() { TAG_BYTES } else { 0 }
    }

    pub(crate) fn key_id(&self) -> u8 {
        self.keyed.as_ref().map_or(0, |k| k.id)
    }

    pub(crate) fn overhead(&self) -> usize {
        if self.keyed.is_some() { TAG_BYTES } else { 0 }
    }

    fn cipher<'k>(keyed: &'k mut Keyed, fixed: &OriginHeader) -> &'k Cipher {
        let wanted = (fixed.stream, fixed.epoch, fixed.run_id);
        if keyed.body.as_ref().is_none_or(|(run, _)| *run != wanted) {
            keyed.body = Some((wanted, Self::derive_cipher(&keyed.master, wanted)));
        }
        let (_, cipher) = keyed.body.as_ref().expect("was made above");
        cipher
    }

    fn derive_cipher(master: &[u8; 32], (stream, epoch, run_id): RunOfStream) -> Cipher {
        let mut material = [0; 48];
        material[..32].copy_from_slice(master);
        material[32..36].copy_from_slice(&stream.to_le_bytes());
        material[36..40].copy_from_slice(&epoch.to_le_bytes());
        material[40..].copy_from_slice(&run_id.to_le_bytes());
        Cipher::new(&blake3::derive_key("evenfall multicast v2 body", &material))
    }

    /// Seals a copy of the body of a data frame and appends the tag. Without a key the copy is
    /// open.
    pub(crate) fn seal(&mut self, fixed: &OriginHeader, body: &[u8]) -> Bytes {
        let no_tag = [0; TAG_BYTES];
        let room = &no_tag[..self.overhead()];
        let mut sealed = self.memory.copy_parts(&[body, room]);
        // No body leaves open where there is a key, whatever key its header names.
        let id = if self.has_key(fixed.key_id) { fixed.key_id } else { self.key_id() };
        if let Some(keyed) = self.key_of_mut(id) {
            let (text, room) = sealed.split_at_mut(body.len());
            let cipher = Self::cipher(keyed, fixed);
            let tag = cipher.seal(fixed.sequence, &fixed.associated_data(), text);
            room.copy_from_slice(&tag);
        }
        sealed.freeze()
    }

    /// Opens the body of a data frame. Without a key the body is returned unchanged.
    pub(crate) fn open(&mut self, fixed: &OriginHeader, body: &Bytes) -> Result<Bytes, Malformed> {
        if self.keyed.is_none() {
            return Ok(body.clone());
        }
        let unknown = Malformed { what: "sealed under a key that is not valid", offset: 5 };
        if !self.has_key(fixed.key_id) {
            return Err(unknown);
        }
        let mut opened = self.memory.copy_parts(&[body]);
        let keyed = self.key_of_mut(fixed.key_id).ok_or(unknown)?;
        let (cipher, beside) = (Self::cipher(keyed, fixed), fixed.associated_data());
        let is_genuine = cipher.open_in_place(fixed.sequence, &beside, &mut opened);
        let forged = Malformed { what: "body does not open under its key", offset: HEADER_BYTES };
        is_genuine.then(|| opened.freeze()).ok_or(forged)
    }

    /// The code of a hop over a frame of the feed, as a port checks and writes it.
    pub(crate) fn hop_code(&self) -> Option<HopCode> {
        let keyed = self.keyed.as_ref()?;
        Some(HopCode::new(&keyed.hop, MAC_OFFSET as u8, TAG_BYTES as u8, MAC_OFFSET as u8))
    }

    fn mac(key: &MacKey, kind: DatagramKind, header: &[u8], body: &[u8]) -> u64 {
        // Only the bodies of the feed are sealed. The body of every other kind is covered whole.
        let from = if kind.is_frame() { body.len().saturating_sub(TAG_BYTES) } else { 0 };
        key.mac(&[&header[..MAC_OFFSET], &body[from..]])
    }

    /// The header of a copy that leaves now for this end.
    pub(crate) fn header(
        &self,
        to: End,
        fixed: &OriginHeader,
        hop: &Hop,
        body: &[u8],
    ) -> [u8; HEADER_BYTES] {
        let mut header = encode_header(fixed, hop);
        let mac = match (&self.ends, self.key_of(fixed.key_id)) {
            (Some(ends), _) if !fixed.kind.is_frame() => {
                Self::mac(&ends.key_to(to, fixed.kind), fixed.kind, &header, body)
            }
            (_, Some(keyed)) => Self::mac(&keyed.mac, fixed.kind, &header, body),
            (_, None) => 0,
        };
        header[MAC_OFFSET..].copy_from_slice(&mac.to_le_bytes());
        header
    }

    /// Checks that a node with the key wrote the datagram. With node keys, checks that the node
    /// that a control datagram names wrote it for this node.
    pub(crate) fn verify(&self, datagram: &Datagram) -> Result<(), Malformed> {
        let kind = datagram.fixed.kind;
        if let Some(ends) = self.ends.as_ref().filter(|_| !kind.is_frame()) {
            let header = encode_header(&datagram.fixed, &datagram.hop);
            let key = ends.key_from(datagram.hop.from, kind);
            let is_right = datagram.fixed.key_id == NODE_KEY_ID
                && Self::mac(&key, kind, &header, &datagram.body) == datagram.mac;
            let what = "not under the key of this node and the node that it names";
            return is_right.then_some(()).ok_or(Malformed { what, offset: MAC_OFFSET });
        }
        if self.keyed.is_none() && datagram.fixed.key_id == 0 {
            return Ok(());
        }
        let other = Malformed { what: "sealed under another key, or none", offset: 5 };
        let keyed = self.key_of(datagram.fixed.key_id).ok_or(other)?;
        if kind.is_frame() && datagram.body.len() < TAG_BYTES {
            return Err(Malformed { what: "a body without its tag", offset: HEADER_BYTES });
        }
        let header = encode_header(&datagram.fixed, &datagram.hop);
        if Self::mac(&keyed.mac, kind, &header, &datagram.body) == datagram.mac {
            Ok(())
        } else {
            Err(Malformed { what: "message authentication failed", offset: MAC_OFFSET })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::DatagramKind;
    use evenfall_core::{Format, SyncTime, TrafficClass};

    fn frame() -> OriginHeader {
        OriginHeader {
            kind: DatagramKind::Data,
            class: TrafficClass::Live,
            key_id: 1,
            count: 1,
            stream: 1,
            epoch: 2,
            run_id: 9,
            sequence: 3,
            first_message: 4,
            origin: SyncTime::from_nanos(5),
            deadline: Some(SyncTime::from_nanos(6)),
            format: Format::OPAQUE,
        }
    }

    #[test]
    fn a_body_opens_only_unchanged_and_under_its_own_header() {
        let key = SharedKey::new(1, [7; 32]);
        let mut seal = Seal::new(Some(&key));
        let sealed = seal.seal(&frame(), b"body");
        assert_eq!(sealed.len(), 4 + TAG_BYTES);
        assert_eq!(&seal.open(&frame(), &sealed).unwrap()[..], b"body");
        let repair = OriginHeader { class: TrafficClass::Repair, ..frame() };
        assert!(seal.open(&repair, &sealed).is_ok(), "a repair copy is the same bytes");
        let later = OriginHeader { deadline: Some(SyncTime::from_nanos(7)), ..frame() };
        assert!(seal.open(&later, &sealed).is_err(), "the deadline is sealed too");
        let another = OriginHeader { format: Format(1), ..frame() };
        assert!(seal.open(&another, &sealed).is_err(), "and the format");
        let mut tampered = sealed.to_vec();
        tampered[0] ^= 1;
        assert!(seal.open(&frame(), &tampered.into()).is_err());
    }

    #[test]
    fn two_runs_of_one_epoch_never_seal_under_the_same_key() {
        let mut seal = Seal::new(Some(&SharedKey::new(1, [7; 32])));
        let mut sealed =
            |run_id, text: &'static [u8]| seal.seal(&OriginHeader { run_id, ..frame() }, text);
        let (one, two) = (sealed(1, b"buy"), sealed(2, b"sel"));
        let apart = one.iter().zip(&two).take(3).map(|(a, b)| a ^ b);
        let plain = b"buy".iter().zip(b"sel").map(|(a, b)| a ^ b);
        assert!(!apart.eq(plain), "the key stream must not cancel out");
    }

    #[test]
    fn a_body_changed_on_the_way_is_refused_by_its_code_or_by_who_opens_it() {
        let key = SharedKey::new(1, [7; 32]);
        let mut seal = Seal::new(Some(&key));
        let sealed = seal.seal(&frame(), b"body");
        let report =
            OriginHeader { kind: DatagramKind::Report, class: TrafficClass::Control, ..frame() };
        for (fixed, covered_from) in [(frame(), 4), (report, 0)] {
            let header = seal.header(End::Everybody, &fixed, &Hop::default(), &sealed);
            for at in 0..sealed.len() {
                let mut bytes = [&header[..], &sealed].concat();
                bytes[HEADER_BYTES + at] ^= 1;
                let datagram = crate::wire::parse(&bytes.into()).unwrap();
                assert_eq!(seal.verify(&datagram).is_err(), at >= covered_from, "byte {at}");
                assert!(seal.open(&fixed, &datagram.body).is_err());
            }
            let short = [&header[..], &sealed[..TAG_BYTES - 1]].concat();
            assert!(seal.verify(&crate::wire::parse(&short.into()).unwrap()).is_err());
        }
    }

    #[test]
    fn a_header_from_another_key_is_refused() {
        let (ours, theirs) = (SharedKey::new(1, [7; 32]), SharedKey::new(1, [8; 32]));
        let mut fixed = OriginHeader::control(DatagramKind::Report, 1, 2, 3);
        fixed.key_id = 1;
        for (key, good) in [(&ours, true), (&theirs, false)] {
            let header =
                Seal::new(Some(key)).header(End::Everybody, &fixed, &Hop::default(), b"report");
            let bytes: Bytes = [&header[..], b"report"].concat().into();
            let datagram = crate::wire::parse(&bytes).unwrap();
            assert_eq!(Seal::new(Some(&ours)).verify(&datagram).is_ok(), good);
        }
    }

    #[test]
    fn a_key_text_that_is_wrong_says_how_without_showing_it() {
        assert!(SharedKey::from_hex(1, &"ab".repeat(32)).is_ok());
        assert!(SharedKey::from_hex(1, "abc").unwrap_err().to_string().contains("64"));
        let error =
            SharedKey::from_hex(1, &("zz".to_owned() + &"ab".repeat(31))).unwrap_err().to_string();
        assert!(error.contains("digit 1") && !error.contains("zz"), "{error}");
    }
}
