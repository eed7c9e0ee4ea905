//! A participant: takes a feed as MoldUDP64, as plain datagrams or as datagrams sealed for it, asks
//! again for what is missing, and says what is lost. It holds no key of the run.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::prng::Prng;
use evenfall_core::{Arrival, Format, SharedKey, Timestamp};
use evenfall_feed_formats::plain::sealed::PlainOpener;
use evenfall_feed_formats::plain::{HEAD_BYTES, PlainHead, PlainKind};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::interrupt;
use evenfall_port::{Options, Port};
use evenfall_runtime::settings::Io;
use serde::Serialize;

use crate::IntakeError;
use crate::intake::mold::{Mold, PlannedLosses};
use crate::intake::{FeedStatus, Intake, Next};
use crate::settings::Feed;

#[cfg(test)]
mod tests;

/// How far ahead a plain datagram may be and still be believed. One damaged or forged number would
/// else count billions as lost.
const JUMP_MAX: u64 = 1 << 22;

/// How a participant gets its feed.
#[derive(Clone, Debug, Default)]
pub enum TapProtocol {
    /// As MoldUDP64.
    #[default]
    Mold,
    /// As plain datagrams.
    Plain,
    /// As plain datagrams that are sealed under the key of this participant.
    Sealed(SharedKey),
}

/// What a participant wants.
#[derive(Clone, Debug)]
pub struct TapSettings {
    /// Where the feed comes to: an address of this host, or a multicast group.
    pub address: SocketAddr,
    /// How the feed comes.
    pub protocol: TapProtocol,
    /// Where MoldUDP64 requests go; `None` asks nobody.
    pub request: Option<SocketAddr>,
    /// The interface on which a group is joined.
    pub interface: Option<Ipv4Addr>,
    /// The first sequence that is wanted: 1 for the whole session, `None` for the live feed.
    pub from: Option<u64>,
    /// How long missing messages are waited for.
    pub gap_timeout: Duration,
    /// Share of the datagrams that are lost on purpose.
    pub drop: f64,
    /// Seed of these losses.
    pub seed: u64,
    /// Kernel memory for waiting datagrams.
    pub receive_buffer_bytes: usize,
}

impl TapSettings {
    /// The live feed at this address as MoldUDP64, without requests.
    pub fn new(address: SocketAddr) -> Self {
        let feed = Feed::default();
        Self {
            address,
            protocol: TapProtocol::default(),
            request: None,
            interface: None,
            from: None,
            gap_timeout: feed.mold_gap_timeout,
            drop: 0.0,
            seed: 1,
            receive_buffer_bytes: Io::default().receive_buffer_bytes,
        }
    }
}

/// What a tap gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TapEvent {
    /// The next message.
    Message {
        /// Its sequence: from 1 in MoldUDP64, the number from 0 in plain datagrams.
        sequence: u64,
        /// The format, as far as it is known.
        format: Format,
        /// The message.
        bytes: Bytes,
    },
    /// These sequences were given up.
    Lost(Range<u64>),
    /// Something that people should know.
    Note(String),
    /// Nothing came in the time of the wait.
    Quiet,
    /// The feed is over.
    End,
}

/// Counts of a tap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TapStatus {
    /// The session of MoldUDP64; the run and the tree of plain datagrams.
    pub session: String,
    /// Messages taken.
    pub messages: u64,
    /// Messages that came only after they were asked for.
    pub rerequested: u64,
    /// Requests that were sent.
    pub requests: u64,
    /// Ranges of messages that were missing when later ones came.
    pub gaps: u64,
    /// Messages given up.
    pub lost: u64,
    /// Further copies, and messages that came too late.
    pub ignored: u64,
    /// Datagrams that were not of the protocol, of another sender or of another session.
    pub refused: u64,
    /// Datagrams lost on purpose.
    pub dropped: u64,
}

enum Source {
    Mold(Box<Mold>),
    Plain(Box<PlainSource>),
}

/// A participant that listens.
pub struct Tap {
    source: Source,
    _signals: interrupt::Watch,
    /// Events of one look at the source. Plain datagrams bring two events each at most. A session
    /// brings its next message, the lost ranges before it, and notes.
    events: VecDeque<TapEvent>,
}

impl Tap {
    /// Listens at the address of the settings.
    ///
    /// # Errors
    /// When an address cannot be bound, or the group cannot be joined.
    pub fn open(settings: &TapSettings) -> Result<Self, IntakeError> {
        let losses = (settings.drop > 0.0).then(|| PlannedLosses {
            share: settings.drop,
            luck: Prng::new(settings.seed),
            dropped: 0,
        });
        let io = Io { receive_buffer_bytes: settings.receive_buffer_bytes, ..Io::default() };
        let opener = match &settings.protocol {
            TapProtocol::Mold => None,
            TapProtocol::Plain => Some(None),
            TapProtocol::Sealed(key) => Some(Some(PlainOpener::new(key.clone()))),
        };
        let (source, signals) = if let Some(opener) = opener {
            let source = PlainSource::open(settings, opener, &io, losses)?;
            let signals = interrupt::watch(source.port.waker())?;
            (Source::Plain(Box::new(source)), signals)
        } else {
            let feed = Feed {
                mold: Some(settings.address),
                mold_request: settings.request,
                mold_interface: settings.interface,
                mold_from: settings.from,
                mold_gap_timeout: settings.gap_timeout,
                ..Feed::default()
            };
            // A participant has no key, and this program was told to listen here.
            let mut mold = Mold::open(settings.address, &feed, true, &io)?;
            losses.into_iter().for_each(|losses| mold.lose(losses));
            let signals = interrupt::watch(mold.waiting_port()?.waker())?;
            (Source::Mold(Box::new(mold)), signals)
        };
        Ok(Self { source, _signals: signals, events: VecDeque::new() })
    }

    /// The next event. Waits for it until this time, or until a signal comes.
    ///
    /// # Errors
    /// None at present: a datagram of any bytes is counted.
    pub fn next(&mut self, until: Timestamp) -> Result<TapEvent, IntakeError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let now = MonotonicClock::now();
            let wake_at = match &mut self.source {
                Source::Mold(mold) => next_of_mold(mold, now, &mut self.events)?,
                Source::Plain(plain) => plain.next(&mut self.events),
            };
            if !self.events.is_empty() {
                continue;
            }
            if now >= until || interrupt::raised() {
                return Ok(TapEvent::Quiet);
            }
            let wake_at = wake_at.min(until);
            match &mut self.source {
                Source::Mold(mold) => mold.wait(wake_at),
                Source::Plain(plain) => drop(plain.port.wait(None, Some(wake_at))),
            }
        }
    }

    /// The counts so far.
    pub fn status(&self) -> TapStatus {
        match &self.source {
            Source::Plain(plain) => plain.status.clone(),
            Source::Mold(mold) => {
                let status: FeedStatus = mold.status().unwrap_or_default();
                TapStatus {
                    session: status.session,
                    messages: status.delivered,
                    rerequested: status.first_again,
                    requests: status.requests,
                    gaps: status.gaps,
                    lost: status.lost,
                    ignored: status.copies_ignored + status.late + status.reused,
                    refused: status.malformed + status.foreign + status.far + status.other_sessions,
                    dropped: mold.dropped(),
                }
            }
        }
    }
}

/// Queues what a MoldUDP64 session has now. Returns when the session is to be looked at again.
fn next_of_mold(
    mold: &mut Mold,
    now: Timestamp,
    events: &mut VecDeque<TapEvent>,
) -> Result<Timestamp, IntakeError> {
    let step = mold.next(now).map_err(|error| IntakeError::Broken { error, sent: 0 })?;
    events.extend(mold.take_lost().into_iter().map(TapEvent::Lost));
    let news = mold.news().into_iter().filter(|(kind, _)| *kind != "feed lost");
    events.extend(news.map(|(_, text)| TapEvent::Note(text)));
    let sequence = mold.sequence().unwrap_or_default();
    match step {
        Next::Message(message, _) => {
            let (format, bytes) = (message.format, message.bytes);
            events.push_back(TapEvent::Message { sequence, format, bytes });
            mold.take();
            Ok(now)
        }
        Next::NotBefore(until) => Ok(until),
        Next::End => {
            events.push_back(TapEvent::End);
            Ok(now)
        }
    }
}

/// Plain datagrams of one tree.
struct PlainSource {
    port: Box<dyn Port>,
    /// Opens the datagrams, where they are sealed.
    opener: Option<PlainOpener>,
    arrivals: Vec<Arrival>,
    losses: Option<PlannedLosses>,
    /// Run and tree of the first datagram, which this source follows, and the next number.
    at: Option<(u32, u32, u64)>,
    status: TapStatus,
}

impl PlainSource {
    fn open(
        settings: &TapSettings,
        opener: Option<PlainOpener>,
        io: &Io,
        losses: Option<PlannedLosses>,
    ) -> Result<Self, IntakeError> {
        let options = Options {
            // A participant has no key, and this program was told to listen here.
            keyed: true,
            segmentation: false,
            receive_buffer_bytes: io.receive_buffer_bytes,
            multicast_interface: settings.interface,
            ..Options::default()
        };
        let port = evenfall_port::open(settings.address, options)?;
        for note in port.notes() {
            tracing::warn!("{note}");
        }
        let (arrivals, status) = (Vec::new(), TapStatus::default());
        Ok(Self { port, opener, arrivals, losses, at: None, status })
    }

    /// Queues what has come. Returns when to look again.
    fn next(&mut self, events: &mut VecDeque<TapEvent>) -> Timestamp {
        let mut arrivals = core::mem::take(&mut self.arrivals);
        self.port.receive(&mut arrivals);
        if let Some(losses) = &mut self.losses {
            let before = arrivals.len();
            arrivals.retain(|_| !losses.luck.chance(losses.share));
            losses.dropped += (before - arrivals.len()) as u64;
            self.status.dropped = losses.dropped;
        }
        for arrival in arrivals.drain(..) {
            let plain = match &mut self.opener {
                Some(opener) => opener.open(&arrival.datagram),
                None => Some(arrival.datagram),
            };
            match plain {
                Some(plain) => self.take_datagram(&plain, events),
                None => self.refuse_sealed(events),
            }
        }
        self.arrivals = arrivals;
        Timestamp::MAX
    }

    /// Counts a datagram that did not open, and says so of the first.
    fn refuse_sealed(&mut self, events: &mut VecDeque<TapEvent>) {
        if self.status.refused == 0 {
            let text = "datagrams come that do not open: is this the key of this participant, and \
                        is gateway.protocol \"sealed\"?";
            events.push_back(TapEvent::Note(text.into()));
        }
        self.status.refused += 1;
    }

    fn take_datagram(&mut self, datagram: &Bytes, events: &mut VecDeque<TapEvent>) {
        let Ok((head, _)) = PlainHead::decode(datagram) else {
            self.status.refused += 1;
            return;
        };
        let is_sealed = self.opener.is_some();
        // Whoever sealed a datagram of a later run is a gateway, and the first datagram of all may
        // have been one of yesterday, sent again.
        let is_later = |(run, tree, _): &(u32, u32, u64)| *tree == head.tree && *run < head.run;
        if is_sealed && self.at.as_ref().is_some_and(is_later) {
            self.at = None;
            self.status.session.clear();
        }
        let (run, tree, next) = *self.at.get_or_insert((head.run, head.tree, head.number));
        let is_far = !is_sealed && head.number > next.saturating_add(JUMP_MAX);
        if (run, tree) != (head.run, head.tree) || is_far {
            self.status.refused += 1;
            return;
        }
        if self.status.session.is_empty() {
            self.status.session = format!("{run:08x}{tree:02x}");
            let text = format!("run {run:08x}, tree {tree} has been found");
            events.push_back(TapEvent::Note(text));
        }
        if head.number < next && head.kind != PlainKind::Heartbeat {
            self.status.ignored += 1;
            return;
        }
        if head.number > next {
            self.status.gaps += 1;
            self.status.lost = self.status.lost.saturating_add(head.number - next);
            events.push_back(TapEvent::Lost(next..head.number));
        }
        let after = match head.kind {
            PlainKind::Message => {
                self.status.messages += 1;
                let bytes = datagram.slice(HEAD_BYTES..);
                let (sequence, format) = (head.number, head.format);
                events.push_back(TapEvent::Message { sequence, format, bytes });
                head.number.saturating_add(1)
            }
            PlainKind::Lost(count) if is_sealed || count <= JUMP_MAX => {
                self.status.lost = self.status.lost.saturating_add(count);
                events.push_back(TapEvent::Lost(head.number..head.number.saturating_add(count)));
                head.number.saturating_add(count)
            }
            // No gateway loses as many between two messages.
            PlainKind::Lost(_) => next,
            PlainKind::Heartbeat => head.number,
            PlainKind::End => {
                events.push_back(TapEvent::End);
                head.number
            }
        };
        self.at = Some((run, tree, next.max(after)));
    }
}
