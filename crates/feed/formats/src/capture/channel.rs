//! One channel of a capture: its format, the envelope around its messages, and what its packets
//! hold.

use super::{CapturedPacket, ChannelEnds, key_of};
use crate::arbiter::FeedSide;
use crate::codec::{self, Codec, Format};
use crate::mold::{Body, MoldPacket, SessionId};
use crate::pcap::packet::Transport;
use crate::soup::{SoupPacket, SoupStream, is_start_of_packets};
use bytes::Bytes;

/// Packets of a channel by which it is recognised. By chance, four packets in a thousand look like
/// a packet of some other format. Sixteen in a row do not.
const LOOK_PACKETS: usize = 16;

/// What is around the messages of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Envelope {
    /// A datagram is one message.
    None,
    MoldUdp64,
    SoupBinTcp,
}

/// What a channel carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChannelKind {
    pub envelope: Envelope,
    pub format: Format,
    /// Whether its packets have numbers.
    pub is_numbered: bool,
}

/// Messages with numbers that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NumberedRun {
    pub session: Option<SessionId>,
    /// The number of the first message; `None` where numbers are not known.
    pub sequence: Option<u64>,
    pub messages: Vec<Bytes>,
}

/// What a packet holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Messages(NumberedRun),
    /// All messages of the session before this number exist.
    Heartbeat {
        session: SessionId,
        next: u64,
    },
    /// A message without a number, in an envelope with numbers.
    Unsequenced,
    Nothing,
}

/// Recognises a channel by its first packets. `wanted` is the format that the user names.
pub(super) fn recognise<'a>(
    packets: impl Iterator<Item = &'a CapturedPacket> + Clone,
    is_tcp: bool,
    wanted: Option<Format>,
) -> Option<ChannelKind> {
    if is_tcp {
        return recognise_stream(packets, wanted);
    }
    let payloads = packets.map(|packet| &packet.payload[..]).take(LOOK_PACKETS);
    if wanted == Some(Format::OPAQUE) {
        let (envelope, format) = (Envelope::None, Format::OPAQUE);
        return Some(ChannelKind { envelope, format, is_numbered: false });
    }
    let is_taken = |codec: &dyn Codec, bytes: &[u8]| {
        codec.is_packet(bytes) || wanted.is_some() && codec.type_name(bytes).is_some()
    };
    if let Some(codec) = codec::of_most(payloads.clone(), wanted, is_taken) {
        let is_numbered = payloads.clone().any(|bytes| codec.packet_head(bytes).is_some());
        let (envelope, format) = (Envelope::None, codec.format());
        return Some(ChannelKind { envelope, format, is_numbered });
    }
    recognise_mold(payloads, wanted)
}

fn recognise_mold<'a>(
    payloads: impl Iterator<Item = &'a [u8]> + Clone,
    wanted: Option<Format>,
) -> Option<ChannelKind> {
    let total = payloads.clone().count();
    let packets: Vec<MoldPacket<'_>> = payloads.filter_map(mold_packet).collect();
    if packets.is_empty() || packets.len() * 4 < total * 3 {
        return None;
    }
    let messages = packets.iter().filter_map(|packet| match packet.body {
        Body::Messages(messages) => Some(messages),
        Body::Heartbeat | Body::EndOfSession => None,
    });
    let format = format_of_messages(messages.flatten().take(LOOK_PACKETS), wanted)?;
    Some(ChannelKind { envelope: Envelope::MoldUdp64, format, is_numbered: true })
}

/// A MoldUDP64 packet. A session has letters and digits, which other protocols do not have there.
fn mold_packet(bytes: &[u8]) -> Option<MoldPacket<'_>> {
    let packet = MoldPacket::decode(bytes).ok()?;
    let session = packet.session.0;
    let is_name = session.iter().all(|byte| *byte == b' ' || byte.is_ascii_alphanumeric());
    (is_name && session != [b' '; 10]).then_some(packet)
}

fn recognise_stream<'a>(
    packets: impl Iterator<Item = &'a CapturedPacket> + Clone,
    wanted: Option<Format>,
) -> Option<ChannelKind> {
    let first = packets.clone().find(|packet| !packet.payload.is_empty())?;
    if !is_start_of_packets(&first.payload) || wanted == Some(Format::OPAQUE) {
        return None;
    }
    let mut stream = SoupStream::default();
    let read = packets.flat_map(|packet| match packet.transport {
        Transport::Tcp { sequence, is_start } => {
            stream.push(sequence, is_start, packet.payload.clone())
        }
        Transport::Udp => Vec::new(),
    });
    let message = |packet| match packet {
        SoupPacket::Sequenced(bytes) => Some(bytes),
        _ => None,
    };
    let messages: Vec<Bytes> = read.filter_map(message).take(LOOK_PACKETS).collect();
    let format = format_of_messages(messages.iter().map(|bytes| &bytes[..]), wanted)?;
    Some(ChannelKind { envelope: Envelope::SoupBinTcp, format, is_numbered: true })
}

/// The format of messages in an envelope; opaque when no codec takes them. `None` when they are not
/// of the format that the user names.
fn format_of_messages<'a>(
    messages: impl Iterator<Item = &'a [u8]> + Clone,
    wanted: Option<Format>,
) -> Option<Format> {
    let is_empty = messages.clone().next().is_none();
    let is_taken = |codec: &dyn Codec, bytes: &[u8]| codec.type_name(bytes).is_some();
    match codec::of_most(messages, wanted, is_taken) {
        Some(codec) => Some(codec.format()),
        // Heartbeats alone say nothing about the messages.
        None if is_empty => Some(wanted.unwrap_or(Format::OPAQUE)),
        None => wanted.is_none().then_some(Format::OPAQUE),
    }
}

impl ChannelKind {
    /// Whether the channel is more than a stream of unknown bytes.
    pub fn has_known_messages(&self) -> bool {
        self.envelope == Envelope::MoldUdp64 || self.format != Format::OPAQUE
    }

    /// What a datagram holds.
    pub fn content(&self, payload: &Bytes) -> Content {
        if self.envelope == Envelope::MoldUdp64 {
            return mold_content(payload);
        }
        let codec = codec::of(self.format).filter(|codec| codec.is_packet(payload));
        let head = codec.and_then(|codec| codec.packet_head(payload));
        Content::Messages(NumberedRun {
            session: None,
            sequence: head.map(|head| head.sequence),
            messages: vec![payload.clone()],
        })
    }

    /// Whether a datagram has numbered messages.
    pub fn is_numbered_packet(&self, payload: &Bytes) -> bool {
        let content = (self.envelope != Envelope::SoupBinTcp).then(|| self.content(payload));
        matches!(content, Some(Content::Messages(NumberedRun { sequence: Some(_), .. })))
    }
}

fn mold_content(payload: &Bytes) -> Content {
    let Ok(packet) = MoldPacket::decode(payload) else {
        // What is no packet of the envelope is given as it is.
        let messages = vec![payload.clone()];
        return Content::Messages(NumberedRun { session: None, sequence: None, messages });
    };
    let (session, next) = (packet.session, packet.sequence);
    match packet.body {
        Body::Messages(messages) => Content::Messages(NumberedRun {
            session: Some(session),
            sequence: Some(next),
            messages: messages.map(|message| payload.slice_ref(message)).collect(),
        }),
        Body::Heartbeat | Body::EndOfSession => Content::Heartbeat { session, next },
    }
}

/// A connection that is put together.
#[derive(Debug, Default)]
struct SoupChannel {
    stream: SoupStream,
    session: Option<SessionId>,
    /// The number of the next message, where the login was captured and no bytes are missing.
    next: Option<u64>,
    /// Holes that were known when the last message came.
    holes: u64,
}

impl SoupChannel {
    fn content(&mut self, packet: SoupPacket) -> Content {
        if self.stream.holes > self.holes {
            self.holes = self.stream.holes;
            self.next = None;
        }
        match packet {
            SoupPacket::LoginAccepted { session, sequence } => {
                (self.session, self.next) = (Some(session), Some(sequence));
                Content::Nothing
            }
            SoupPacket::Sequenced(bytes) => {
                let (session, sequence) = (self.session, self.next);
                self.next = self.next.map(|next| next + 1);
                Content::Messages(NumberedRun { session, sequence, messages: vec![bytes] })
            }
            SoupPacket::Unsequenced(_) => Content::Unsequenced,
            SoupPacket::Control => Content::Nothing,
        }
    }
}

/// A channel.
#[derive(Debug)]
pub(super) struct Channel {
    ends: ChannelEnds,
    /// The key of its bare datagrams.
    pub key: u32,
    /// `None` for a stranger.
    pub kind: Option<ChannelKind>,
    /// The side, once another channel was found to be the other side.
    pub side: Option<FeedSide>,
    /// Whether the other side has been found.
    pub has_other_side: bool,
    /// The place of its numbers.
    pub line: Option<usize>,
    soup: SoupChannel,
}

impl Channel {
    pub fn new(ends: ChannelEnds, kind: Option<ChannelKind>) -> Self {
        let soup = SoupChannel::default();
        Self { ends, key: key_of(ends), kind, side: None, has_other_side: false, line: None, soup }
    }

    /// The channel's address, for people.
    pub fn name(&self) -> String {
        match self.ends {
            (None, destination) => destination.to_string(),
            (Some(source), destination) => format!("{source} to {destination}"),
        }
    }

    /// What a packet of the channel holds, or completes.
    pub fn open_packet(&mut self, packet: &CapturedPacket) -> Vec<Content> {
        let Some(kind) = self.kind else { return Vec::new() };
        match packet.transport {
            Transport::Tcp { sequence, is_start } => {
                let payload = packet.payload.clone();
                let packets = self.soup.stream.push(sequence, is_start, payload);
                packets.into_iter().map(|packet| self.soup.content(packet)).collect()
            }
            Transport::Udp => vec![kind.content(&packet.payload)],
        }
    }

    /// What waited for bytes that the capture does not have.
    pub fn finish(&mut self) -> Vec<Content> {
        let packets = self.soup.stream.finish();
        packets.into_iter().map(|packet| self.soup.content(packet)).collect()
    }

    /// A sentence about bytes that the capture does not have.
    pub fn remark(&self) -> Option<String> {
        let holes = self.soup.stream.holes;
        let name = self.name();
        (holes > 0).then(|| format!("bytes are missing at {holes} places of the connection {name}"))
    }
}
