//! The datagrams between authors and roots.
//!
//! ```text
//!  0       2         3      4        5   8          16           24         32           40
//!  | magic | version | kind | key id | 0 | name u64 | author u64 | life u64 | run id u64 |
//! 40           48
//!  | number u64 | body
//!
//!  ProduceRequest      have u64 | place u64 | is the end u8 | count u16 | as many messages
//!                      a message: format u8, length u16, bytes
//!  ProduceResponse     epoch u32 | flags u8 | base u64 | next place u64 | count u8 | as many
//!                      stretches
//!                      a stretch: place u64, number u64, count u32
//! ```
//!
//! The name is the id of the author's node and 1, or 0 for an author without a name. With a key,
//! the body is sealed (ChaCha20-Poly1305) with the 48 bytes in front of it as associated data. With
//! node keys the secret is that of the node that the name states, which this node and the roots
//! alone have. Otherwise the secret is the shared key. An author seals under a key of its own
//! random number. A root seals under a key of the author and of its own random number, the life.
//! The number of the letter is the nonce. The run id makes a recorded letter worthless in another
//! run. A letter that is recorded and sent again in the same run has places that are in the feed
//! already.

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::{Cipher, Format, Head, Malformed, Reader, SharedKey};

use super::NumberedRange;
use evenfall_core::cipher::TAG_BYTES;

/// "EL" in ASCII.
pub const MAGIC: [u8; 2] = *b"EL";
/// Version of this layout. Another version is refused.
const VERSION: u8 = 2;
/// Bytes of a letter in front of its body.
pub const ENVELOPE_BYTES: usize = 48;
/// Bytes of a [`ProduceRequest`] in front of its messages.
const SAY_BYTES: usize = 19;
/// Bytes that a message has in a letter besides its own.
pub const MESSAGE_OVERHEAD: usize = 3;
/// Bytes that a letter with one message has besides those of the message.
pub const LETTER_OVERHEAD: usize = ENVELOPE_BYTES + SAY_BYTES + MESSAGE_OVERHEAD + TAG_BYTES;
/// Stretches in an answer, so that an answer fits a frame of Ethernet.
pub const STRETCHES_MAX: usize = 60;

/// The direction of a datagram: publisher to root, or root to publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProducerDirection {
    /// An author to a root.
    ToRoot = 1,
    /// A root to an author.
    ToPublisher = 2,
}

/// The outside of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerEnvelope {
    /// The direction of the datagram.
    pub kind: ProducerDirection,
    /// The name that the author shares with the processes before it; 0 for none.
    pub name: u64,
    /// The random number of the author.
    pub author: u64,
    /// The random number of the root in an answer, and 0 in a letter of an author.
    pub life: u64,
    /// The run; 0 when the sender knows none.
    pub run_id: u64,
    /// The number of the letter among those of its sender.
    pub number: u64,
}

/// What an author says. Without a message and without the end, the author asks which root leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceRequest {
    /// The first place whose number the author does not know.
    pub have: u64,
    /// The place of the first message.
    pub place: u64,
    /// Whether no message follows.
    pub is_end: bool,
    /// The messages.
    pub messages: Vec<(Format, Bytes)>,
}

/// What a root answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceResponse {
    /// The epoch of the present lead.
    pub epoch: u32,
    /// Whether this root leads and takes messages.
    pub leads: bool,
    /// Whether the line of the author is over.
    pub is_over: bool,
    /// Whether the author is one too many.
    pub is_refused: bool,
    /// Whether the author itself has ended the line. Another process of its name ends a line too.
    pub is_finished: bool,
    /// Whether the line of the author has begun. Its messages are taken from then on.
    pub is_begun: bool,
    /// The messages in the earlier lines of the author's name.
    pub base: u64,
    /// The place that is taken next.
    pub next: u64,
    /// Places and their numbers.
    pub stretches: Vec<NumberedRange>,
}

fn cipher(key: &SharedKey, envelope: &ProducerEnvelope) -> Cipher {
    let mut material = [0; 49];
    material[..32].copy_from_slice(key.secret());
    material[32..40].copy_from_slice(&envelope.author.to_le_bytes());
    material[40..48].copy_from_slice(&envelope.life.to_le_bytes());
    material[48] = envelope.kind as u8;
    Cipher::new(&blake3::derive_key("evenfall line v1 letters", &material))
}

impl ProducerEnvelope {
    fn encode(&self, key_id: u8) -> Head {
        let mut out = BytesMut::with_capacity(ENVELOPE_BYTES);
        out.put_slice(&MAGIC);
        out.put_slice(&[VERSION, self.kind as u8, key_id, 0, 0, 0]);
        for word in [self.name, self.author, self.life, self.run_id, self.number] {
            out.put_u64_le(word);
        }
        Head::new(&out)
    }

    /// A letter with this body.
    pub fn seal(&self, key: Option<&SharedKey>, mut body: BytesMut) -> (Head, Bytes) {
        let head = self.encode(key.map_or(0, SharedKey::id));
        if let Some(key) = key {
            let tag = cipher(key, self).seal(self.number, head.as_slice(), &mut body);
            body.put_slice(&tag);
        }
        (head, body.freeze())
    }

    /// The envelope and the body of a letter.
    ///
    /// # Errors
    /// [`Malformed`] when the datagram is no letter, or is not sealed under the key.
    pub fn open(key: Option<&SharedKey>, datagram: &Bytes) -> Result<(Self, Bytes), Malformed> {
        let mut r = Reader::new(datagram);
        if r.array::<2>()? != MAGIC || r.u8()? != VERSION {
            return Err(r.malformed("no letter of this version"));
        }
        let kind = match r.u8()? {
            1 => ProducerDirection::ToRoot,
            2 => ProducerDirection::ToPublisher,
            _ => return Err(r.malformed("no such kind of letter")),
        };
        if r.u8()? != key.map_or(0, SharedKey::id) || r.array::<3>()? != [0; 3] {
            return Err(r.malformed("a letter under another key, or none"));
        }
        let (name, author, life) = (r.u64()?, r.u64()?, r.u64()?);
        let (run_id, number) = (r.u64()?, r.u64()?);
        let envelope = Self { kind, name, author, life, run_id, number };
        let body = datagram.slice(ENVELOPE_BYTES..);
        let Some(key) = key else { return Ok((envelope, body)) };
        let opened = cipher(key, &envelope).open(number, &datagram[..ENVELOPE_BYTES], &body);
        let forged = r.malformed("a letter that does not open under the key of its author");
        Ok((envelope, opened.ok_or(forged)?))
    }
}

/// The name in a letter, under whose key the letter is sealed; `None` for bytes that are no letter.
pub(super) fn name_in(datagram: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*datagram.get(8..)?.first_chunk()?))
}

impl ProduceRequest {
    /// The body of the letter.
    pub fn encode(&self) -> BytesMut {
        let bytes: usize = self.messages.iter().map(|(_, m)| m.len() + MESSAGE_OVERHEAD).sum();
        let mut out = BytesMut::with_capacity(SAY_BYTES + bytes + TAG_BYTES);
        out.put_u64_le(self.have);
        out.put_u64_le(self.place);
        out.put_u8(u8::from(self.is_end));
        out.put_u16_le(self.messages.len() as u16);
        for (format, message) in &self.messages {
            out.put_u8(format.0);
            out.put_u16_le(message.len() as u16);
            out.put_slice(message);
        }
        out
    }

    /// What the body of a letter says.
    ///
    /// # Errors
    /// [`Malformed`] when the body says nothing.
    pub fn decode(body: &Bytes) -> Result<Self, Malformed> {
        let mut r = Reader::new(body);
        let (have, place) = (r.u64()?, r.u64()?);
        let (is_end, count) = (r.u8()?, r.u16()?);
        if is_end > 1 || place.checked_add(u64::from(count)).is_none() {
            return Err(r.malformed("no such place"));
        }
        let mut messages = Vec::new();
        for _ in 0..count {
            let (format, length) = (Format(r.u8()?), usize::from(r.u16()?));
            messages.push((format, body.slice_ref(r.take(length)?)));
        }
        r.finish()?;
        Ok(Self { have, place, is_end: is_end == 1, messages })
    }
}

impl ProduceResponse {
    /// The body of the letter.
    pub fn encode(&self) -> BytesMut {
        let mut out = BytesMut::with_capacity(22 + 20 * self.stretches.len() + TAG_BYTES);
        out.put_u32_le(self.epoch);
        let flags = [self.leads, self.is_over, self.is_refused, self.is_begun, self.is_finished];
        out.put_u8(flags.iter().rev().fold(0, |all, flag| all << 1 | u8::from(*flag)));
        out.put_u64_le(self.base);
        out.put_u64_le(self.next);
        out.put_u8(self.stretches.len() as u8);
        for stretch in &self.stretches {
            out.put_u64_le(stretch.place);
            out.put_u64_le(stretch.number);
            out.put_u32_le(stretch.count);
        }
        out
    }

    /// The answer in the body of a letter.
    ///
    /// # Errors
    /// [`Malformed`] when the body is no answer.
    pub fn decode(body: &Bytes) -> Result<Self, Malformed> {
        let mut r = Reader::new(body);
        let (epoch, flags, base) = (r.u32()?, r.u8()?, r.u64()?);
        let (next, count) = (r.u64()?, r.u8()?);
        if flags > 31 {
            return Err(r.malformed("no such flags"));
        }
        let mut stretches = Vec::new();
        for _ in 0..count {
            let stretch = NumberedRange { place: r.u64()?, number: r.u64()?, count: r.u32()? };
            let (places, numbers) = (next.checked_sub(stretch.place), stretch.number);
            let is_sound = places.is_some_and(|places| u64::from(stretch.count) <= places)
                && numbers.checked_add(u64::from(stretch.count)).is_some();
            if !is_sound {
                return Err(r.malformed("no such places"));
            }
            stretches.push(stretch);
        }
        r.finish()?;
        let flag = |bit: u8| flags >> bit & 1 == 1;
        let (leads, is_over, is_refused) = (flag(0), flag(1), flag(2));
        let (is_begun, is_finished) = (flag(3), flag(4));
        Ok(Self { epoch, leads, is_over, is_refused, is_finished, is_begun, base, next, stretches })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope() -> ProducerEnvelope {
        ProducerEnvelope {
            kind: ProducerDirection::ToRoot,
            name: 2,
            author: 7,
            life: 0,
            run_id: 9,
            number: 3,
        }
    }

    fn say() -> ProduceRequest {
        let messages = vec![(Format(1), "one".into()), (Format::OPAQUE, Bytes::new())];
        ProduceRequest { have: 4, place: 5, is_end: true, messages }
    }

    #[test]
    fn letters_survive_the_wire_and_broken_ones_are_refused() {
        let body = say().encode().freeze();
        assert_eq!(ProduceRequest::decode(&body), Ok(say()));
        let stretches = vec![NumberedRange { place: 2, number: 9, count: 3 }];
        let answer = ProduceResponse {
            epoch: 5,
            leads: true,
            is_over: false,
            is_refused: true,
            is_finished: true,
            is_begun: true,
            base: 8,
            next: 5,
            stretches,
        };
        let answered = answer.encode().freeze();
        assert_eq!(ProduceResponse::decode(&answered), Ok(answer));
        for length in 0..body.len() {
            assert!(ProduceRequest::decode(&body.slice(..length)).is_err());
        }
        for length in 0..answered.len() {
            assert!(ProduceResponse::decode(&answered.slice(..length)).is_err());
        }
    }

    #[test]
    fn a_sealed_letter_opens_under_its_key_and_unchanged() {
        let key = SharedKey::new(1, [7; 32]);
        let (head, body) = envelope().seal(Some(&key), say().encode());
        let datagram = Bytes::from([head.as_slice(), &body].concat());
        let (opened, inside) = ProducerEnvelope::open(Some(&key), &datagram).expect("own letter");
        assert_eq!((opened, ProduceRequest::decode(&inside)), (envelope(), Ok(say())));
        assert!(ProducerEnvelope::open(None, &datagram).is_err(), "without the key");
        for at in 0..datagram.len() {
            let mut changed = datagram.to_vec();
            changed[at] ^= 1;
            assert!(ProducerEnvelope::open(Some(&key), &changed.into()).is_err(), "byte {at}");
        }
        let (head, body) = envelope().seal(None, say().encode());
        let open = Bytes::from([head.as_slice(), &body].concat());
        assert!(ProducerEnvelope::open(Some(&key), &open).is_err(), "an open letter");
        assert!(ProducerEnvelope::open(None, &open).is_ok());
    }
}
