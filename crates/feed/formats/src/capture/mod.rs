//! Captures as feeds: the messages in the UDP datagrams and connections of pcap and pcapng files.
//!
//! A venue's multicast is recorded as packets, so a capture is the most honest input: real sizes,
//! real bursts, both redundant sides. A capture is also a mixture: several channels with two sides
//! each, snapshots, time servers, other hosts. **Everything is therefore decided for each
//! channel**, never for the file, when the first packet of the channel comes, by the packets of the
//! channel among the next [`WINDOW_PACKETS`]:
//!
//! | question | answer |
//! |---|---|
//! | is it of a format? | if a codec takes its messages, bare or in MoldUDP64 or SoupBinTCP |
//! | if not? | a stranger: skipped, and counted by its address |
//! | is it a side? | two channels with equal packets under equal numbers are sides A and B |
//! | if not? | it passes as it was captured, and holes in its numbers are counted |
//!
//! Where no channel has a format, all of them are kept as opaque bytes.
//!
//! A channel of UDP is a destination address and port. The sender does not count, because order
//! must hold when a venue fails over to another publisher of the same group. A channel of TCP is
//! one direction of a connection.
//!
//! A bare datagram is one message, with the channel as its key. MoldUDP64 and SoupBinTCP are taken
//! off, and each message in them is a message with the key and the time that its codec reads.
//!
//! A choice that is made here never fails later. What is not taken is counted, and a capture of
//! which nothing is taken is an error.

mod channel;
mod lines;
mod strangers;

#[cfg(test)]
mod tests;

use crate::arbiter::{CopyCounts, FeedSide};
use crate::codec::{self, Codec, Format, TimeOrigin};
use crate::error::{FeedError, FeedFault};
use crate::pcap::{CapturedPacket, PcapReader, Skipped, channel as channel_of, packet::Transport};
use crate::source::{FeedMessage, MessageSource, PacketOrigin};
use bytes::Bytes;
use channel::{Channel, ChannelKind, Content, Envelope};
use core::net::SocketAddr;
use lines::Lines;
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use strangers::Strangers;

/// Packets that are read ahead. The skew of two paths is a few packets, rarely a hundred, and a
/// channel of a busy venue has several packets among so many.
const WINDOW_PACKETS: usize = 512;

/// Which copies of a capture with sides A and B are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyChoice {
    /// The first copy of each packet, where two sides are recognised.
    FirstWhereRecognised,
    /// The first copy of each packet. A capture without two sides is an error.
    First,
    /// All packets, as they were captured.
    #[default]
    All,
}

impl CopyChoice {
    /// The choice of a setting that may be left out.
    pub fn of_setting(is_arbitrated: Option<bool>) -> Self {
        match is_arbitrated {
            None => Self::FirstWhereRecognised,
            Some(true) => Self::First,
            Some(false) => Self::All,
        }
    }
}

/// How a capture is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureOptions {
    /// The format of the messages, where the user names it.
    pub format: Option<Format>,
    /// The copies that are given.
    pub copies: CopyChoice,
}

/// The two ends of a channel. A channel of UDP has no sender.
type ChannelEnds = (Option<SocketAddr>, SocketAddr);

fn ends_of(packet: &CapturedPacket) -> ChannelEnds {
    match packet.transport {
        Transport::Udp => (None, packet.destination),
        Transport::Tcp { .. } => (Some(packet.source), packet.destination),
    }
}

/// The packets that are read ahead.
#[derive(Debug)]
struct PacketWindow<R> {
    reader: PcapReader<R>,
    packets: VecDeque<CapturedPacket>,
    /// The end or the error that the reader met.
    end: Option<Result<(), FeedError>>,
}

impl<R: Read> PacketWindow<R> {
    fn fill(&mut self) {
        while self.packets.len() < WINDOW_PACKETS && self.end.is_none() {
            match self.reader.next_packet() {
                Ok(Some(packet)) => self.packets.push_back(packet),
                Ok(None) => self.end = Some(Ok(())),
                Err(error) => self.end = Some(Err(error)),
            }
        }
    }
}

/// A capture as a [`MessageSource`].
#[derive(Debug)]
pub struct PcapSource<R> {
    window: PacketWindow<R>,
    options: CaptureOptions,
    channels: Vec<Channel>,
    places: BTreeMap<ChannelEnds, usize>,
    lines: Lines,
    strangers: Strangers,
    /// Whether a channel of the first window has a format.
    has_feed: bool,
    days: Days,
    /// Messages that wait to be given.
    ready: VecDeque<(FeedMessage, PacketOrigin)>,
    /// The end, once all packets were taken.
    end: Option<Result<(), FeedError>>,
    given: u64,
    origin: PacketOrigin,
    /// Messages of no format, and messages without a number in SoupBinTCP.
    opaque: u64,
    unsequenced: u64,
    unknown: u64,
}

impl<R: Read> PcapSource<R> {
    /// Reads from `reader`. Errors call it `name`.
    pub fn new(reader: R, name: &str) -> Self {
        let options = CaptureOptions::default();
        Self::begin(PcapReader::new(reader, name), options)
    }

    /// Reads as the options say.
    pub fn with_options(reader: R, name: &str, options: CaptureOptions) -> Self {
        Self::begin(PcapReader::new(reader, name), options)
    }

    fn begin(reader: PcapReader<R>, options: CaptureOptions) -> Self {
        let mut window = PacketWindow { reader, packets: VecDeque::new(), end: None };
        window.fill();
        let mut source = Self {
            window,
            options,
            channels: Vec::new(),
            places: BTreeMap::new(),
            lines: Lines::default(),
            strangers: Strangers::default(),
            has_feed: false,
            days: Days::default(),
            ready: VecDeque::new(),
            end: None,
            given: 0,
            origin: PacketOrigin::default(),
            opaque: 0,
            unsequenced: 0,
            unknown: 0,
        };
        let first: Vec<_> = source.channel_ends().into_iter().collect();
        let kinds: Vec<_> = first.iter().filter_map(|ends| source.recognise(*ends)).collect();
        source.has_feed = kinds.iter().any(ChannelKind::has_known_messages);
        source.days.begin(&kinds, source.window.packets.front());
        source
    }

    /// The channels in the window.
    fn channel_ends(&self) -> std::collections::BTreeSet<ChannelEnds> {
        self.window.packets.iter().map(ends_of).collect()
    }

    /// The packets of a channel in the window.
    fn packets_of(&self, ends: ChannelEnds) -> impl Iterator<Item = &CapturedPacket> + Clone {
        self.window.packets.iter().filter(move |packet| ends_of(packet) == ends)
    }

    fn recognise(&self, ends: ChannelEnds) -> Option<ChannelKind> {
        let is_tcp = ends.0.is_some();
        channel::recognise(self.packets_of(ends), is_tcp, self.options.format)
    }

    fn has_two_sides(&self) -> bool {
        let ends: Vec<_> = self.channel_ends().into_iter().collect();
        ends.iter().enumerate().any(|(at, one)| {
            let Some(kind) = self.recognise(*one) else { return false };
            ends[at + 1..].iter().any(|other| {
                self.recognise(*other) == Some(kind) && self.share_packets(&kind, *one, *other)
            })
        })
    }

    /// Whether two channels of one kind have an equal packet under an equal number in the window.
    fn share_packets(&self, kind: &ChannelKind, one: ChannelEnds, other: ChannelEnds) -> bool {
        let numbered = |packet: &&CapturedPacket| kind.is_numbered_packet(&packet.payload);
        let ours: std::collections::BTreeSet<&Bytes> =
            self.packets_of(one).filter(numbered).map(|packet| &packet.payload).collect();
        self.packets_of(other).any(|packet| ours.contains(&packet.payload))
    }

    fn found_in_place_of_sides(&self) -> String {
        let ends: Vec<_> = self.channel_ends().into_iter().collect();
        let kinds: Vec<_> = ends.iter().filter_map(|ends| self.recognise(*ends)).collect();
        match kinds.first() {
            None => "datagrams of no known format, whose packets have no numbers".to_owned(),
            Some(kind) if !kind.is_numbered => {
                format!("{}, whose packets have no numbers", codec::name(kind.format))
            }
            Some(_) => format!("{} channels, of which no two have equal packets", kinds.len()),
        }
    }

    /// The channel of a packet, which is decided when its first packet comes.
    fn place_of(&mut self, packet: &CapturedPacket) -> usize {
        let ends = ends_of(packet);
        if let Some(place) = self.places.get(&ends) {
            return *place;
        }
        let kind = self.recognise(ends).or_else(|| self.kind_of_unrecognised(ends));
        let place = self.channels.len();
        self.places.insert(ends, place);
        self.channels.push(Channel::new(ends, kind));
        if let Some(kind) = kind.filter(|kind| kind.is_numbered) {
            self.join_line(place, &kind, ends);
        }
        place
    }

    /// A capture without a channel of a known format is kept as it is, or under the format that
    /// the user names.
    fn kind_of_unrecognised(&self, ends: ChannelEnds) -> Option<ChannelKind> {
        let is_kept = !self.has_feed && ends.0.is_none();
        let format = self.options.format.unwrap_or(Format::OPAQUE);
        is_kept.then_some(ChannelKind { envelope: Envelope::None, format, is_numbered: false })
    }

    /// Makes a channel the other side of a channel with equal packets, or gives it numbers of its
    /// own.
    fn join_line(&mut self, place: usize, kind: &ChannelKind, ends: ChannelEnds) {
        let is_shared = |other: ChannelEnds| {
            other != ends
                && self.recognise(other) == Some(*kind)
                && self.share_packets(kind, ends, other)
        };
        let sides_in_window = self.channel_ends().into_iter().filter(|other| is_shared(*other));
        let partner_ends = sides_in_window.min_by_key(|other| !self.places.contains_key(other));
        let known = partner_ends.and_then(|other| self.places.get(&other).copied());
        let known = known.or_else(|| self.partner_by_memory(place, kind, ends));
        let is_free = |at: &usize| !self.channels[*at].has_other_side;
        let copies_wanted = self.options.copies != CopyChoice::All;
        match known.filter(is_free) {
            Some(partner) => {
                self.channels[partner].side = Some(FeedSide::A);
                self.channels[partner].has_other_side = true;
                self.channels[place].has_other_side = true;
                self.channels[place].side = Some(FeedSide::B);
                if copies_wanted {
                    let line = self.channels[partner].line;
                    self.channels[place].line = line;
                    if let Some(line) = line {
                        self.lines.pair(line);
                    }
                    return;
                }
            }
            None if partner_ends.is_some_and(|other| !self.places.contains_key(&other)) => {
                let start = copies_wanted.then(|| self.first_number(kind, ends, partner_ends));
                let line = self.lines.open(copies_wanted, start.flatten());
                self.channels[place].line = Some(line);
                self.channels[place].side = Some(FeedSide::A);
                return;
            }
            None => {}
        }
        self.channels[place].line = Some(self.lines.open(false, None));
    }

    /// A channel of this kind that has given the same packets, before the window.
    fn partner_by_memory(
        &self,
        place: usize,
        kind: &ChannelKind,
        ends: ChannelEnds,
    ) -> Option<usize> {
        let packets: Vec<_> = self.packets_of(ends).collect();
        (0..place).find(|at| {
            let other = &self.channels[*at];
            other.kind == Some(*kind)
                && other.line.is_some_and(|line| {
                    packets.iter().any(|packet| {
                    let content = kind.content(&packet.payload);
                    matches!(content, Content::Messages(run) if self.lines.has_taken(line, &run))
                })
                })
        })
    }

    /// The number at which a feed of two sides begins: the least number of the window from which
    /// the packets of both sides lead up to the first packet. The slower side begins earlier.
    fn first_number(
        &self,
        kind: &ChannelKind,
        ends: ChannelEnds,
        partner: Option<ChannelEnds>,
    ) -> Option<u64> {
        /// Packets of both sides that are looked at: numbers that begin anew come later.
        const START_PACKETS: usize = 64;
        let both = self
            .window
            .packets
            .iter()
            .filter(|packet| ends_of(packet) == ends || Some(ends_of(packet)) == partner);
        let mut runs =
            both.take(START_PACKETS).filter_map(|packet| match kind.content(&packet.payload) {
                Content::Messages(run) => Some((run.session, run.sequence?, run.messages.len())),
                _ => None,
            });
        let (session, mut start, _) = runs.next()?;
        let rest: Vec<_> = runs.filter(|(other, ..)| *other == session).collect();
        while let Some((_, earlier, _)) =
            rest.iter().find(|(_, at, count)| *at < start && *at + *count as u64 == start)
        {
            start = *earlier;
        }
        Some(start)
    }

    /// Takes the next packet, or ends the feed.
    fn step(&mut self) {
        self.window.fill();
        // The channel is decided while its first packet is still in the window.
        let Some(front) = self.window.packets.front().cloned() else {
            return self.finish();
        };
        let place = self.place_of(&front);
        self.window.packets.pop_front();
        self.days.advance(front.time_ns);
        if self.channels[place].kind.is_none() {
            self.strangers.count(&front);
            return;
        }
        for content in self.channels[place].open_packet(&front) {
            self.take(place, front.time_ns, content);
        }
    }

    fn take(&mut self, place: usize, time_ns: u64, content: Content) {
        match content {
            Content::Messages(run) => {
                let line = self.channels[place].line;
                match (run.sequence, line) {
                    (Some(sequence), Some(line)) => {
                        let side = self.channels[place].side.unwrap_or(FeedSide::A);
                        let is_arbitrated = self.lines.is_arbitrated(line);
                        if !is_arbitrated {
                            self.give_all(place, time_ns, &run);
                        }
                        self.lines.offer(line, place, side, sequence, run);
                        self.give_of_line(line, place, time_ns);
                    }
                    _ => self.give_all(place, time_ns, &run),
                }
            }
            Content::Heartbeat { session, next } => {
                if let Some(line) = self.channels[place].line {
                    self.lines.announce(line, session, next);
                    self.give_of_line(line, place, time_ns);
                }
            }
            Content::Unsequenced => self.unsequenced += 1,
            Content::Nothing => {}
        }
    }

    /// Gives the messages of a channel that passes as it was captured.
    fn give_all(&mut self, place: usize, time_ns: u64, run: &channel::NumberedRun) {
        for (bytes, at) in run.messages.iter().zip(0..) {
            let sequence = run.sequence.map(|sequence| sequence + at);
            self.give(place, time_ns, sequence, bytes.clone(), false);
        }
    }

    /// Gives what the first copies of a line complete.
    fn give_of_line(&mut self, line: usize, place: usize, time_ns: u64) {
        let is_arbitrated = self.lines.is_arbitrated(line);
        while let Some((sequence, bytes)) = self.lines.poll(line) {
            if is_arbitrated {
                self.give(place, time_ns, Some(sequence), bytes, true);
            }
        }
    }

    fn give(
        &mut self,
        place: usize,
        captured_ns: u64,
        sequence: Option<u64>,
        bytes: Bytes,
        is_first_copy: bool,
    ) {
        let channel = &self.channels[place];
        let Some(ChannelKind { envelope, format, .. }) = channel.kind else { return };
        let codec = codec::of(format);
        let head = codec.and_then(|codec| codec.packet_head(&bytes));
        let (mut time_ns, mut shard_key) = (captured_ns, channel.key);
        if envelope == Envelope::None {
            // Side B may be captured before side A, so the venue's own time orders first copies.
            if let Some(head) = head.filter(|_| is_first_copy) {
                time_ns = head.sent_ns;
            }
            if is_first_copy {
                shard_key = channel.line.map_or(shard_key, |line| self.first_key(line));
            }
        } else if let Some(codec) = codec {
            shard_key = codec.shard_key(&bytes);
            time_ns = self.days.time_of(codec, &bytes, captured_ns);
        }
        let is_known = codec.is_none_or(|codec| codec.type_name(&bytes).is_some());
        self.unknown += u64::from(!is_known);
        self.opaque += u64::from(codec.is_none());
        let sent_ns = head.map(|head| head.sent_ns);
        let origin = PacketOrigin { channel: channel.key, side: channel.side, sequence, sent_ns };
        let message = FeedMessage { index: 0, time_ns, shard_key, format, bytes };
        self.ready.push_back((message, origin));
    }

    /// The key of a line's first channel, so that both sides have one key.
    fn first_key(&self, line: usize) -> u32 {
        let of_line = self.channels.iter().find(|channel| channel.line == Some(line));
        of_line.map_or(0, |channel| channel.key)
    }

    /// Ends all channels, and the feed.
    fn finish(&mut self) {
        for place in 0..self.channels.len() {
            let time_ns = self.days.last_ns;
            for content in self.channels[place].finish() {
                self.take(place, time_ns, content);
            }
        }
        for line in 0..self.lines.len() {
            self.lines.finish(line);
            let place = self.channels.iter().position(|channel| channel.line == Some(line));
            if let Some(place) = place {
                self.give_of_line(line, place, self.days.last_ns);
            }
        }
        let end = self.window.end.clone().unwrap_or(Ok(()));
        self.end = Some(end.and_then(|()| self.judge()));
    }

    /// Whether a capture that was read to its end may count as read.
    fn judge(&self) -> Result<(), FeedError> {
        if self.given == 0 && self.ready.is_empty() {
            let found = self.not_taken().unwrap_or_else(|| "no packet".to_owned());
            return Err(self.window.reader.error(FeedFault::NothingTaken { found }));
        }
        let counts = self.lines.counts_of_pairs().unwrap_or_default();
        if counts.reused > 0 {
            let fault = FeedFault::NumbersReused { messages: counts.reused };
            return Err(self.window.reader.error(fault));
        }
        Ok(())
    }

    /// What was not taken, in words.
    fn not_taken(&self) -> Option<String> {
        let skipped = self.skipped();
        let has_skipped = skipped != Skipped::default();
        let parts = [has_skipped.then(|| skipped.to_string()), self.strangers.remark()];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

impl<R: Read> MessageSource for PcapSource<R> {
    fn next_message(&mut self) -> Result<Option<FeedMessage>, FeedError> {
        loop {
            if let Some((message, origin)) = self.ready.pop_front() {
                let index = self.given;
                self.given += 1;
                self.origin = origin;
                return Ok(Some(FeedMessage { index, ..message }));
            }
            match &self.end {
                Some(Ok(())) => return Ok(None),
                Some(Err(error)) => return Err(FeedError { index: self.given, ..error.clone() }),
                None => self.step(),
            }
        }
    }

    fn skipped(&self) -> Skipped {
        Skipped { unknown_types: self.unknown, ..self.window.reader.skipped() }
    }

    #[cfg(feature = "files")]
    fn date(&self) -> Option<crate::dates::Date> {
        self.days.first
    }

    fn copies(&self) -> Option<CopyCounts> {
        self.lines.counts_of_pairs()
    }

    fn choose_copies(&mut self, choice: CopyChoice) -> Result<(), FeedError> {
        if choice == CopyChoice::First && !self.has_two_sides() {
            let fault = FeedFault::NoTwoSides { found: self.found_in_place_of_sides() };
            return Err(self.window.reader.error(fault));
        }
        self.options.copies = choice;
        Ok(())
    }

    fn origin(&self) -> Option<PacketOrigin> {
        Some(self.origin)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        notes.extend(self.strangers.remark());
        if self.unsequenced > 0 {
            let count = self.unsequenced;
            notes.push(format!("{count} unsequenced messages of SoupBinTCP were not taken"));
        }
        notes.extend(self.lines.remarks(&self.channels));
        notes.extend(self.channels.iter().filter_map(Channel::remark));
        notes.extend(self.window.reader.note());
        if self.opaque > 0 && self.options.format != Some(Format::OPAQUE) {
            let count = self.opaque;
            notes.push(format!(
                "{count} messages are of no known format: they are kept as bytes, without types \
                 and columns; --format names one of {}",
                codec::words()
            ));
        }
        notes
    }
}

/// The days of a capture, for messages that state only a time of day.
#[derive(Debug, Default)]
struct Days {
    /// When the last packet was captured.
    last_ns: u64,
    clock: Option<TimeOrigin>,
    #[cfg(feature = "files")]
    first: Option<crate::dates::Date>,
    /// Whole days since the first day.
    days: u64,
    /// The instant at which the present day ends.
    #[cfg(feature = "files")]
    ends_ns: u64,
}

impl Days {
    /// Notes the first day, when a channel states times of day.
    fn begin(&mut self, kinds: &[ChannelKind], first: Option<&CapturedPacket>) {
        let clocks = kinds.iter().filter_map(|kind| codec::of(kind.format)).map(Codec::clock);
        self.clock = clocks.into_iter().find(|clock| *clock != TimeOrigin::Epoch);
        self.last_ns = first.map_or(0, |packet| packet.time_ns);
        #[cfg(feature = "files")]
        if let Some(clock) = self.clock {
            self.first = i64::try_from(self.last_ns).ok().and_then(|ns| clock.date_of(ns));
        }
    }

    /// Goes on to the time of a packet.
    fn advance(&mut self, time_ns: u64) {
        self.last_ns = time_ns;
        #[cfg(feature = "files")]
        if time_ns >= self.ends_ns
            && let (Some(clock), Some(first)) = (self.clock, self.first)
            && let Some(today) = i64::try_from(time_ns).ok().and_then(|ns| clock.date_of(ns))
        {
            let days = today.since(first).map_or(0, |span| span.get_days());
            self.days = u64::try_from(days).unwrap_or(0);
            let tomorrow = today.tomorrow().ok().and_then(|day| clock.of_day_ns(day, 0));
            self.ends_ns = tomorrow.and_then(|ns| u64::try_from(ns).ok()).unwrap_or(u64::MAX);
        }
    }

    /// The own time of a message, or when it was captured.
    fn time_of(&self, codec: &dyn Codec, message: &[u8], captured_ns: u64) -> u64 {
        let own = codec.own_time_ns(message);
        own.map_or(captured_ns, |own| self.days * codec::DAY_NS + own)
    }
}

/// The channel of a destination, as a key.
fn key_of(ends: ChannelEnds) -> u32 {
    channel_of(ends.0.unwrap_or(ends.1))
}
