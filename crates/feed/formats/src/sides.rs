//! One feed out of a capture of both its sides: the first copy of each packet, in the order of the
//! packets' numbers.
//!
//! A capture of a venue's multicast usually holds side A and side B of each channel. A plain replay
//! or recording of the capture would have every packet twice. Two sides are recognised by the same
//! bytes under the same number on two channels. This needs a format that numbers its packets
//! ([`Codec::packet_head`]).

use crate::arbiter::{Arbiter, Counts, Event, Limits, Side};
use crate::codec::{self, Codec, Format, PacketHead};
use crate::error::{Fault, FeedError};
use crate::pcap::Skipped;
use crate::source::{Message, Source};
use std::collections::{BTreeMap, VecDeque};

/// Messages by which two sides are recognised. The skew of two paths is a few packets, rarely a
/// hundred.
const LOOK_MESSAGES: usize = 512;

type AnySource = Box<dyn Source + Send>;

/// Chooses first copies of a source that may have two sides. `wanted` decides whether it does.
/// Without `wanted` it does so where two sides are recognised.
///
/// # Errors
/// When first copies are wanted of messages without packet numbers.
pub fn first_copies(source: AnySource, wanted: Option<bool>) -> Result<AnySource, FeedError> {
    if wanted == Some(false) {
        return Ok(source);
    }
    let ahead = Ahead::of(source);
    let format = ahead.messages.front().map_or(Format::OPAQUE, |message| message.format);
    let codec = codec::of(format);
    let head = ahead.messages.front().and_then(|m| codec?.packet_head(&m.bytes));
    match codec {
        Some(codec) if head.is_some() && (wanted.is_some() || are_two_sides(codec, &ahead)) => {
            Ok(Box::new(FirstCopies::new(ahead, codec)))
        }
        _ if wanted.is_none() => Ok(Box::new(ahead)),
        _ => Err(FeedError {
            name: "feed".to_owned(),
            offset: 0,
            index: 0,
            fault: Fault::Malformed {
                what: "capture of two sides",
                found: format!("{}, whose packets have no numbers", codec::name(format)),
            },
        }),
    }
}

fn are_two_sides(codec: &dyn Codec, ahead: &Ahead) -> bool {
    let mut channels = Vec::new();
    let mut seen = BTreeMap::new();
    let mut is_copy = false;
    for message in &ahead.messages {
        if !channels.contains(&message.shard_key) {
            channels.push(message.shard_key);
        }
        let Some(head) = codec.packet_head(&message.bytes) else { return false };
        let (key, bytes) =
            *seen.entry(head.sequence).or_insert((message.shard_key, &message.bytes));
        is_copy |= key != message.shard_key && *bytes == message.bytes;
    }
    channels.len() == 2 && is_copy
}

/// A source whose first messages have been read.
struct Ahead {
    source: AnySource,
    messages: VecDeque<Message>,
    end: Option<Result<(), FeedError>>,
}

impl Ahead {
    fn of(mut source: AnySource) -> Self {
        let (mut messages, mut end) = (VecDeque::new(), None);
        while messages.len() < LOOK_MESSAGES && end.is_none() {
            match source.next_message() {
                Ok(Some(message)) => messages.push_back(message),
                Ok(None) => end = Some(Ok(())),
                Err(error) => end = Some(Err(error)),
            }
        }
        Self { source, messages, end }
    }
}

impl Source for Ahead {
    fn next_message(&mut self) -> Result<Option<Message>, FeedError> {
        match (self.messages.pop_front(), &self.end) {
            (Some(message), _) => Ok(Some(message)),
            (None, Some(end)) => end.clone().map(|()| None),
            (None, None) => self.source.next_message(),
        }
    }

    fn skipped(&self) -> Skipped {
        self.source.skipped()
    }

    fn notes(&self) -> Vec<String> {
        self.source.notes()
    }

    #[cfg(feature = "files")]
    fn date(&self) -> Option<crate::dates::Date> {
        self.source.date()
    }
}

/// The first copy of each packet.
struct FirstCopies {
    source: Ahead,
    codec: &'static dyn Codec,
    arbiter: Arbiter,
    channels: Vec<u32>,
    end: Option<Result<(), FeedError>>,
    given: u64,
}

impl FirstCopies {
    fn new(source: Ahead, codec: &'static dyn Codec) -> Self {
        let arbiter = Arbiter::new(None, Limits::default());
        Self { source, codec, arbiter, channels: Vec::new(), end: None, given: 0 }
    }

    /// The side of a channel. The channel that sends first is A.
    fn side(&mut self, message: &Message) -> Result<Side, FeedError> {
        if !self.channels.contains(&message.shard_key) {
            self.channels.push(message.shard_key);
        }
        match self.channels.iter().position(|channel| *channel == message.shard_key) {
            Some(0) => Ok(Side::A),
            Some(1) => Ok(Side::B),
            _ => {
                Err(self.wrong(message, "a third channel; keep all channels as they were captured"))
            }
        }
    }

    fn wrong(&self, message: &Message, found: &str) -> FeedError {
        let found = format!("{found} (datagram {})", message.index);
        let fault = Fault::Malformed { what: "capture of two sides", found };
        FeedError { name: "feed".to_owned(), offset: 0, index: self.given, fault }
    }

    fn head(&self, bytes: &[u8]) -> Option<PacketHead> {
        self.codec.packet_head(bytes)
    }

    /// Takes the next packet of either side. At the end, gives up the packets that neither side
    /// has.
    fn step(&mut self) {
        let taken = match self.source.next_message() {
            Ok(Some(message)) => self.take(&message),
            Ok(None) => {
                self.end = Some(Ok(()));
                Ok(())
            }
            Err(error) => Err(error),
        };
        if let Err(error) = taken {
            self.end = Some(Err(error));
        }
        while self.end.is_some() && self.arbiter.missing().next().is_some() {
            self.arbiter.abandon();
        }
    }

    fn take(&mut self, message: &Message) -> Result<(), FeedError> {
        let side = self.side(message)?;
        let head = self.head(&message.bytes);
        let head = head.ok_or_else(|| self.wrong(message, "a datagram without a number"))?;
        // A place that is not believed is counted.
        self.arbiter.offer(side, head.sequence, message.bytes.clone()).ok();
        Ok(())
    }
}

impl Source for FirstCopies {
    fn next_message(&mut self) -> Result<Option<Message>, FeedError> {
        loop {
            while let Some(event) = self.arbiter.poll() {
                let Event::Message { bytes, .. } = event else { continue };
                let index = self.given;
                self.given += 1;
                let time_ns = self.head(&bytes).map_or(0, |head| head.sent_ns);
                let (format, shard_key) = (self.codec.format(), self.channels[0]);
                return Ok(Some(Message { index, time_ns, shard_key, format, bytes }));
            }
            match &self.end {
                Some(Ok(())) => return Ok(None),
                Some(Err(error)) => return Err(FeedError { index: self.given, ..error.clone() }),
                None => self.step(),
            }
        }
    }

    fn skipped(&self) -> Skipped {
        self.source.skipped()
    }

    fn notes(&self) -> Vec<String> {
        self.source.notes()
    }

    fn copies(&self) -> Option<Counts> {
        Some(self.arbiter.counts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::MDP3;
    use bytes::Bytes;

    /// A packet of MDP 3.0 with one message of no fields.
    fn packet(sequence: u32) -> Bytes {
        let head = [&sequence.to_le_bytes()[..], &u64::from(sequence).to_le_bytes()].concat();
        let words = [10u16, 0, 46, 1, 9].map(u16::to_le_bytes).concat();
        [head, words].concat().into()
    }

    struct Given(VecDeque<Message>);

    impl Source for Given {
        fn next_message(&mut self) -> Result<Option<Message>, FeedError> {
            Ok(self.0.pop_front())
        }
    }

    fn source(packets: &[(u32, u32)]) -> AnySource {
        let message = |(shard_key, sequence): &(u32, u32)| Message {
            shard_key: *shard_key,
            format: MDP3,
            bytes: packet(*sequence),
            ..Message::default()
        };
        Box::new(Given(packets.iter().map(message).collect()))
    }

    fn read(mut source: AnySource) -> Result<Vec<u64>, FeedError> {
        let mut numbers = Vec::new();
        while let Some(message) = source.next_message()? {
            assert_eq!(message.index, numbers.len() as u64);
            numbers.push(message.time_ns);
        }
        Ok(numbers)
    }

    const BOTH: [(u32, u32); 6] = [(1, 5), (2, 5), (1, 7), (2, 6), (2, 7), (1, 8)];

    #[test]
    fn two_sides_are_recognised_and_each_packet_is_kept_once() {
        assert_eq!(read(first_copies(source(&BOTH), None).unwrap()), Ok(vec![5, 6, 7, 8]));
        assert_eq!(first_copies(source(&BOTH), Some(false)).unwrap().copies(), None);
    }

    #[test]
    fn two_channels_of_different_packets_are_not_two_sides() {
        let two = [(1, 5), (2, 105), (1, 6), (2, 106)];
        assert!(first_copies(source(&two), None).unwrap().copies().is_none());
    }

    #[test]
    fn what_neither_side_has_is_counted_and_a_third_channel_is_an_error() {
        let mut feed = first_copies(source(&[(1, 5), (2, 5), (1, 9)]), None).unwrap();
        while feed.next_message().unwrap().is_some() {}
        assert_eq!(feed.copies().unwrap().lost, 3);
        let third = [&BOTH[..], &[(3, 8)]].concat();
        let error = read(first_copies(source(&third), Some(true)).unwrap()).unwrap_err();
        assert!(error.to_string().contains("a third channel"), "{error}");
    }
}
