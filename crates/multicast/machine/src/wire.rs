//! The datagrams, byte by byte. The same drawing with prose is in `docs/wire/multicast.md`.
//!
//! All integers are little-endian. Every datagram starts with 88 bytes:
//!
//! ```text
//!  0        2        3       4        5        6        8
//!  | magic  |version | kind  | class  | key id | count  |
//!  8                 12               16                                  24
//!  | stream          | epoch          | run id                             |
//! 24                                  32                                  40
//!  | sequence                         | first message number               |
//! 40                                  48                                  56
//!  | origin: root's send time, ns     | deadline, ns; 0 = release at once  |
//! 56       57
//!  | format |
//!  ---- fixed up to here: sealed with the body; below: rewritten at every hop ----
//! 57       58       59      60                64               68
//!  | level  | flags  | spare | sender          | view            |
//! 68                72                                  80                88
//!  | earlier         | sent: sender's send time, ns      | authentication |
//! 88  body
//! ```
//!
//! `earlier` and `spare` are reserved for measuring clocks. A sender writes zero into both at
//! present. A receiver authenticates both and ignores their values. A later sender can therefore
//! state when its previous datagram really left, without another version of this layout.
//!
//! `class` lies inside the fixed part so that every driver finds it at one offset. The seal of a
//! body counts it as zero, because a repair copy has the same sealed bytes in another class.
//!
//! Decoding is total: any bytes give a value or [`Malformed`].

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::{Format, Malformed, NodeId, Reader, SyncTime, TrafficClass};

/// "EF" in ASCII.
pub const MAGIC: u16 = u16::from_le_bytes(*b"EF");
/// Version of this layout. A datagram of another version is refused by its number.
pub const VERSION: u8 = 4;
/// Bytes of the fixed part.
pub const FIXED_BYTES: usize = 57;
/// Bytes in front of the body.
pub const HEADER_BYTES: usize = 88;
/// Largest number of a frame, message or control datagram. A stream of a thousand million a second
/// takes 292 years to reach it, and the sum of two such numbers fits in 64 bits.
pub const NUMBER_MAX: u64 = 1 << 63;
/// Offset of the authentication code.
pub(crate) const MAC_OFFSET: usize = 80;
/// Offset of the epoch, for errors that name it.
pub(crate) const EPOCH_OFFSET: usize = 12;
/// Offset of the sender, for errors that name it.
pub(crate) const SENDER_OFFSET: usize = 60;
/// Offset of `stream`, by which a process with several machines finds the right machine.
pub const STREAM_OFFSET: usize = 8;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum DatagramKind {
    /// Messages of the feed.
    Data = 1,
    /// A sign of life, with the end of the stream so far: parent to children.
    Beacon = 2,
    /// Margins and counters, merged: child to parent.
    Report = 3,
    /// Frames that are missing: node to parent, aunt, root or recorder.
    Nack = 4,
    /// A request for a place in the tree: node to root.
    Join = 5,
    /// A place in the tree: root to node.
    Assign = 6,
    /// The acknowledgement of a place: node to root.
    Assigned = 7,
    /// The name of a silent neighbour: node to root.
    Suspect = 8,
    /// The question whether a suspect lives: root to the suspect.
    Probe = 9,
    /// The answer of a suspect that lives: suspect to root.
    Alive = 10,
    /// The good-bye of a node: node to root.
    Leave = 11,
    /// The notice that a node was taken out, with the reason: root to the node.
    Evict = 12,
    /// The place where a late joiner wants to begin: late joiner to recorder.
    Locate = 13,
    /// The frame with which the late joiner begins: recorder to late joiner.
    Located = 14,
    /// The cookie with which a node must repeat its join: root to the node.
    Challenge = 15,
    /// The root's signature of the frames before it, which travels as a frame does.
    Signature = 16,
}

impl DatagramKind {
    pub(crate) const ALL: [Self; 16] = [
        Self::Data,
        Self::Beacon,
        Self::Report,
        Self::Nack,
        Self::Join,
        Self::Assign,
        Self::Assigned,
        Self::Suspect,
        Self::Probe,
        Self::Alive,
        Self::Leave,
        Self::Evict,
        Self::Locate,
        Self::Located,
        Self::Challenge,
        Self::Signature,
    ];

    /// Whether datagrams of this kind have the numbers of frames. They are kept, forwarded and
    /// repaired alike.
    pub fn is_frame(self) -> bool {
        matches!(self, Self::Data | Self::Signature)
    }
}

/// The part of the header that the origin of a datagram writes once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginHeader {
    /// Kind of the datagram.
    pub kind: DatagramKind,
    /// Priority of the datagram.
    pub class: TrafficClass,
    /// Id of the key that seals the body; 0 for none.
    pub key_id: u8,
    /// Messages in the body (data only). A frame without messages warms the paths up.
    pub count: u16,
    /// Tree of the datagram.
    pub stream: u32,
    /// Run of the root. A later run has a larger number.
    pub epoch: u32,
    /// A random number that the root drew for this run, so that no two runs seal under the same
    /// key.
    pub run_id: u64,
    /// Frame number of a data datagram or a signature. Other datagrams carry a counter that grows
    /// per sender.
    pub sequence: u64,
    /// Number of the first message in the body (data only).
    pub first_message: u64,
    /// When the root sent the datagram.
    pub origin: SyncTime,
    /// When receivers may release the frame. `None` means at once, which the wire writes as zero.
    pub deadline: Option<SyncTime>,
    /// The format of all messages in the body (data only).
    pub format: Format,
}

/// The part of the header that every hop rewrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Hop {
    /// The sender of this copy.
    pub from: NodeId,
    /// The view by which the copy is forwarded.
    pub view: u32,
    /// The sender's level: 0 for the root.
    pub level: u8,
    /// [`SAMPLED`], [`TIMED`] or nothing.
    pub flags: u8,
    /// When the sender of this copy sent it, by its synchronised clock; zero when that clock is
    /// disproved.
    pub sent: SyncTime,
    /// Reserved for the time at which the sender's previous datagram left. Written as zero and
    /// ignored.
    pub earlier: u32,
    /// Reserved beside `earlier`. Written as zero and ignored.
    pub spare: u8,
}

/// Flag: receivers report the delay of this frame by itself.
pub const SAMPLED: u8 = 1;
/// Flag: receivers report when they release this frame. The root sets it on some of the frames that
/// are [`SAMPLED`].
pub const TIMED: u8 = 2;

/// A parsed datagram. The body is shared with the arrival.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// The part that the origin wrote.
    pub fixed: OriginHeader,
    /// The part that the last hop wrote.
    pub hop: Hop,
    /// The code as received. `Seal` checks it.
    pub mac: u64,
    /// Everything behind the header.
    pub body: Bytes,
}

/// Reads the number of a frame or message, which must have successors.
pub(crate) fn number(r: &mut Reader<'_>) -> Result<u64, Malformed> {
    let number = r.u64()?;
    if number > NUMBER_MAX {
        return Err(r.malformed("a number that no stream reaches"));
    }
    Ok(number)
}

impl OriginHeader {
    /// The fixed part of a control datagram.
    pub fn control(kind: DatagramKind, stream: u32, epoch: u32, sequence: u64) -> Self {
        Self {
            kind,
            class: TrafficClass::Control,
            key_id: 0,
            count: 0,
            stream,
            epoch,
            run_id: 0,
            sequence,
            first_message: 0,
            origin: SyncTime::ZERO,
            deadline: None,
            format: Format::OPAQUE,
        }
    }

    /// Reads the fixed part of a datagram of this protocol and version.
    pub fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        if r.u16()? != MAGIC {
            return Err(Malformed { what: "not an evenfall datagram", offset: 0 });
        }
        if r.u8()? != VERSION {
            return Err(Malformed {
                what: "another version of the evenfall wire (this is 4)",
                offset: 2,
            });
        }
        let kind = r.u8()?;
        let Some(&kind) = DatagramKind::ALL.get(usize::from(kind).wrapping_sub(1)) else {
            return Err(Malformed { what: "unknown kind", offset: 3 });
        };
        let Some(class) = TrafficClass::from_wire(r.u8()?) else {
            return Err(Malformed { what: "unknown class", offset: 4 });
        };
        Ok(Self {
            kind,
            class,
            key_id: r.u8()?,
            count: r.u16()?,
            stream: r.u32()?,
            epoch: r.u32()?,
            run_id: r.u64()?,
            sequence: number(r)?,
            first_message: number(r)?,
            origin: SyncTime::from_nanos(r.u64()?),
            deadline: off_wire(r.u64()?),
            format: Format(r.u8()?),
        })
    }

    /// The bytes of the fixed part.
    pub fn encode(&self) -> [u8; FIXED_BYTES] {
        let mut out = [0; FIXED_BYTES];
        out[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        out[2] = VERSION;
        out[3] = self.kind as u8;
        out[4] = self.class as u8;
        out[5] = self.key_id;
        out[6..8].copy_from_slice(&self.count.to_le_bytes());
        out[8..12].copy_from_slice(&self.stream.to_le_bytes());
        out[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        out[16..24].copy_from_slice(&self.run_id.to_le_bytes());
        out[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        out[32..40].copy_from_slice(&self.first_message.to_le_bytes());
        out[40..48].copy_from_slice(&self.origin.nanos().to_le_bytes());
        out[48..56].copy_from_slice(&on_wire(self.deadline).to_le_bytes());
        out[56] = self.format.0;
        out
    }

    /// The associated data of the seal of a body.
    pub(crate) fn associated_data(&self) -> [u8; FIXED_BYTES] {
        let mut out = self.encode();
        out[4] = 0;
        out
    }
}

/// The whole header with an authentication code of zero, which `Seal` fills in.
pub(crate) fn encode_header(fixed: &OriginHeader, hop: &Hop) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..FIXED_BYTES].copy_from_slice(&fixed.encode());
    out[57] = hop.level;
    out[58] = hop.flags;
    out[59] = hop.spare;
    out[60..64].copy_from_slice(&hop.from.0.to_le_bytes());
    out[64..68].copy_from_slice(&hop.view.to_le_bytes());
    out[68..72].copy_from_slice(&hop.earlier.to_le_bytes());
    out[72..80].copy_from_slice(&hop.sent.nanos().to_le_bytes());
    out
}

/// A deadline as the wire and the files of a run write it: nanoseconds, zero for none.
pub fn on_wire(deadline: Option<SyncTime>) -> u64 {
    deadline.map_or(0, SyncTime::nanos)
}

/// The deadline that these nanoseconds stand for; zero stands for none.
pub fn off_wire(nanos: u64) -> Option<SyncTime> {
    (nanos > 0).then(|| SyncTime::from_nanos(nanos))
}

/// Parses the header of a datagram and leaves the body alone.
///
/// # Errors
/// [`Malformed`] when the bytes are no datagram of this protocol and version.
pub fn parse(bytes: &Bytes) -> Result<Datagram, Malformed> {
    if bytes.len() < HEADER_BYTES {
        return Err(Malformed { what: "shorter than a header", offset: bytes.len() });
    }
    let mut r = Reader::new(bytes);
    let fixed = OriginHeader::read(&mut r)?;
    let hop = Hop {
        level: r.u8()?,
        flags: r.u8()?,
        spare: r.u8()?,
        from: NodeId(r.u32()?),
        view: r.u32()?,
        earlier: r.u32()?,
        sent: SyncTime::from_nanos(r.u64()?),
    };
    Ok(Datagram { fixed, hop, mac: r.u64()?, body: bytes.slice(HEADER_BYTES..) })
}

/// Appends one message to the body of a frame under construction.
pub(crate) fn put_message(body: &mut BytesMut, message: &[u8]) {
    body.put_u16_le(message.len() as u16);
    body.put_slice(message);
}

/// Bytes that a message takes in a body.
pub(crate) const MESSAGE_OVERHEAD: usize = 2;

/// Walks the messages of an opened body.
#[derive(Clone, Debug)]
pub struct Messages {
    body: Bytes,
    left: u16,
}

impl Messages {
    /// The messages of this body, checked: the frame holds exactly `count` of them.
    ///
    /// # Errors
    /// [`Malformed`] when the lengths or the count disagree with the bytes.
    pub fn new(body: Bytes, count: u16) -> Result<Self, Malformed> {
        let mut r = Reader::new(&body);
        for _ in 0..count {
            let len = r.u16()?;
            r.take(usize::from(len))?;
        }
        r.finish()?;
        Ok(Self { body, left: count })
    }

    /// The messages of a signature: none.
    ///
    /// # Errors
    /// [`Malformed`] when the header counts some.
    pub(crate) fn of_signature(count: u16) -> Result<Self, Malformed> {
        match count {
            0 => Ok(Self { body: Bytes::new(), left: 0 }),
            _ => Err(Malformed { what: "a signature with messages", offset: 6 }),
        }
    }

    /// The bytes of the messages that are left.
    pub(crate) fn body(&self) -> &Bytes {
        &self.body
    }

    /// Reads the line of the cache that has the first message.
    pub(crate) fn prefetch(&self) -> u8 {
        self.body.first().copied().unwrap_or(0)
    }
}

impl Iterator for Messages {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.left = self.left.checked_sub(1)?;
        let len = usize::from(u16::from_le_bytes([self.body[0], self.body[1]]));
        let message = self.body.slice(MESSAGE_OVERHEAD..MESSAGE_OVERHEAD + len);
        self.body = self.body.slice(MESSAGE_OVERHEAD + len..);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (OriginHeader, Hop) {
        let fixed = OriginHeader {
            kind: DatagramKind::Data,
            class: TrafficClass::Live,
            key_id: 3,
            count: 2,
            stream: 5,
            epoch: 77,
            run_id: u64::MAX,
            sequence: 9,
            first_message: 18,
            origin: SyncTime::from_nanos(1_000),
            deadline: Some(SyncTime::from_nanos(2_000)),
            format: Format(3),
        };
        let hop = Hop {
            from: NodeId(4),
            view: 6,
            level: 1,
            flags: SAMPLED | TIMED,
            sent: SyncTime::from_nanos(1_500),
            // Values that a later sender may write come back unchanged.
            earlier: 7,
            spare: 1,
        };
        (fixed, hop)
    }

    #[test]
    fn header_survives_the_wire() {
        let (fixed, hop) = sample();
        let datagram = parse(&Bytes::copy_from_slice(&encode_header(&fixed, &hop))).unwrap();
        assert_eq!((datagram.fixed, datagram.hop), (fixed, hop));
    }

    #[test]
    fn any_truncation_and_any_other_version_is_malformed() {
        let (fixed, hop) = sample();
        let bytes = encode_header(&fixed, &hop);
        for len in 0..HEADER_BYTES {
            assert!(parse(&Bytes::copy_from_slice(&bytes[..len])).is_err());
        }
        let mut other = bytes;
        other[2] = VERSION - 1;
        let error = parse(&Bytes::copy_from_slice(&other)).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("version of the evenfall wire (this is {VERSION})"))
        );
    }

    #[test]
    fn a_body_whose_lengths_lie_is_malformed() {
        let mut body = BytesMut::new();
        put_message(&mut body, b"one");
        put_message(&mut body, b"");
        let body = body.freeze();
        let messages: Vec<_> = Messages::new(body.clone(), 2).unwrap().collect();
        assert_eq!(messages, [&b"one"[..], b""]);
        assert!(Messages::new(body.clone(), 1).is_err(), "bytes left over");
        assert!(Messages::new(body.clone(), 3).is_err(), "one message too few");
        assert!(Messages::new(body.slice(..4), 1).is_err(), "cut inside a message");
    }
}
