//! The receiver. It holds each message until the deadline by its own clock, releases messages in
//! order, asks for missing frames, and reports its losses and margins.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::{
    Arrival, Clock, ClockReading, EndKeys, Format, Machine, Malformed, NodeId, NodeKey, SyncTime,
    Timestamp, TrafficClass, Transmit,
};

use crate::config::Config;
use crate::control::{Begin, DepartureReason, Role, Tally, TreePosition};
use crate::merge::Margins;
use crate::seal::SharedKey;
use crate::signing::{ChainBreak, SignatureCheck, TrustCounts};
use crate::uplink::{Identity, News, Refusals, Uplink};
use crate::window::Seen;
use crate::wire::{Datagram, DatagramKind, Messages, SAMPLED, TIMED};

mod checked;

/// A frame handed to the application: one or more messages with one deadline.
#[derive(Clone, Debug)]
pub struct Release {
    /// Tree of the frame.
    pub stream: u32,
    /// Run of the tree's root.
    pub epoch: u32,
    /// The random number of the run, which a root that takes over keeps.
    pub run_id: u64,
    /// Frame number.
    pub sequence: u64,
    /// Number of the frame's first message within the stream.
    pub first_message: u64,
    /// The messages.
    pub messages: Messages,
    /// Number of messages.
    pub count: u16,
    /// Format of all messages in the frame.
    pub format: Format,
    /// When the root sent the frame.
    pub origin: SyncTime,
    /// When the frame was to be released; `None` when it was not held.
    pub deadline: Option<SyncTime>,
    /// When the first copy of the frame arrived, by this receiver's clock.
    pub arrived: SyncTime,
    /// When this program took that copy, by the same clock. The stamp of the arrival may be the
    /// kernel's, and a sleeping program takes the copy later.
    pub taken: SyncTime,
    /// The node that sent the first copy.
    pub via: NodeId,
    /// Whether a node other than the parent sent the first copy.
    pub hedge_win: bool,
    /// Whether the first copy came only after this receiver asked for it.
    pub repaired: bool,
    /// The body of a signature; `None` for a frame with messages.
    pub signature: Option<Bytes>,
}

/// Where a node resumes that was in the run before and kept its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The run of the root in which the node was.
    pub epoch: u32,
    /// The next frame that the node needs.
    pub frame: u64,
    /// Number of the first message of that frame.
    pub message: u64,
}

/// An event of a receiver for its owner.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum ReceiverEvent {
    /// The receiver has a place in the tree and misses no frame from this frame on.
    Placed(TreePosition),
    /// These messages may be handed on now, in this order. The owner measures the time of the
    /// hand-over.
    Released(Release),
    /// These frames could not be repaired in the stated time.
    Lost {
        /// First frame.
        first: u64,
        /// Number of frames.
        frames: u64,
        /// Number of the first lost message; `None` for a stream without a place.
        first_message: Option<u64>,
        /// Number of lost messages; `None` when the root started a new run after them.
        messages: Option<u64>,
    },
    /// The receiver begins earlier than the live feed, with this frame. A recorder's frames come as
    /// repair until they reach the frames that the root sends. No frame between is missed, and no
    /// frame comes twice. Frames that no recorder has are reported lost.
    Replaying {
        /// First frame.
        first: u64,
        /// Number of the first message of that frame.
        first_message: u64,
    },
    /// The replay has ended: all its frames are released or reported lost, and so are the frames
    /// that were sent meanwhile and could not be held. The live feed follows.
    CaughtUp,
    /// For five seconds the replay has not gained on the live feed. This receiver catches up only
    /// if the feed slows down, or if receivers that are served before it finish.
    FallingBehind {
        /// Frames between the next one to release and the newest one.
        behind: u64,
        /// Frames replayed per second.
        replayed_per_second: u64,
        /// Frames that the feed grew by per second.
        live_per_second: u64,
    },
    /// No recorder could name the frame to begin with. The messages before the live feed are
    /// reported lost.
    NotReplayed,
    /// Everything up to the end of the stream was released or reported lost.
    Finished,
    /// The root started again under this epoch. Messages of its last run that were not released are
    /// lost, and frames and messages count from zero again. A receiver that wanted to resume
    /// another run gets this event first.
    Restarted {
        /// The new run.
        epoch: u32,
    },
    /// A frame is not what the root signed. The receiver releases nothing any more. With
    /// [`ReleaseAfter::Deadline`](crate::ReleaseAfter::Deadline) it may have released this frame
    /// and frames behind it.
    Broken(ChainBreak),
    /// The root took this receiver out.
    Evicted(DepartureReason),
    /// The root has been silent for `membership.root_timeout`.
    RootLost,
}

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ReceiverStatus {
    /// The counters since this receiver began, over all runs of the root. The root is told those of
    /// its own run.
    pub tally: Tally,
    /// Frames that are held at present.
    pub held: u64,
    /// Frames refused because too many frames were held. They are repaired later.
    pub refused_full: u64,
    /// Delays of sampled frames that were dropped because reports had no room.
    pub samples_dropped: u64,
    /// Whether the delays of the feed vouch for the clock. A receiver without a sound clock
    /// releases each message the hold's length after its arrival.
    pub clock_is_sound: bool,
    /// Steps of the host's clock that the receiver did not follow.
    pub clock_steps: u64,
    /// Counters of refused datagrams.
    pub refusals: Refusals,
    /// Counters of checked signatures; `None` for a receiver that checks none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<TrustCounts>,
}

/// Time in which a replay must gain on the live feed. Five seconds hold several turns of a recorder
/// that serves other nodes first.
const GAIN_WITHIN: Duration = Duration::from_secs(5);

/// Progress of a replay at some time.
#[derive(Clone, Copy, Debug)]
struct ReplayMark {
    at: Timestamp,
    next: u64,
    heard: u64,
}

/// A frame that waits.
#[derive(Clone, Debug)]
struct Held {
    release: Release,
    /// When it arrived, by the clock that never steps.
    received: Timestamp,
    /// Whether the root wants to know when this receiver releases it.
    is_timed: bool,
}

impl Held {
    /// Reads both lines.
    fn prefetch(&self) -> u64 {
        let Release { sequence, first_message, origin, taken, via, .. } = &self.release;
        let times = origin.nanos() ^ taken.nanos() ^ self.received.nanos();
        sequence ^ first_message ^ times ^ u64::from(via.0)
    }
}

/// One receiver of one tree.
pub struct Receiver {
    /// Frames that wait for their deadline or for a predecessor, in the order of their numbers.
    held: VecDeque<Held>,
    /// Number of the next frame to release.
    next: u64,
    next_message: Option<u64>,
    /// Messages below this number are skipped, though their frame may be released.
    from_message: u64,
    /// The next event for the owner, which is nearly always the only one.
    event: Option<ReceiverEvent>,
    /// Further events for the owner, in order.
    events: VecDeque<ReceiverEvent>,
    /// The first frame that comes by the live feed and not by replay; `None` once it is reached.
    replay_until: Option<u64>,
    started: bool,
    finished: bool,
    margins: Margins,
    /// The counters of earlier runs of the root.
    earlier: Tally,
    up: Uplink,
    refused_full: u64,
    /// Progress of the replay when its gain was last measured.
    replay_mark: Option<ReplayMark>,
    /// Where to resume; `None` once there is a place.
    resume: Option<Resume>,
    /// The checks of signatures; `None` for a receiver that trusts all holders of the shared key.
    check: Option<Box<SignatureCheck>>,
}

impl Receiver {
    /// A receiver that joins at the first call of its timeout. Receivers of one process can share
    /// their settings.
    pub fn new(
        config: impl Into<Arc<Config>>,
        who: Identity,
        key: Option<&SharedKey>,
        now: Timestamp,
    ) -> Self {
        Self::of_role(Role::Receiver, config.into(), who, key, now)
    }

    /// Speaks to the roots and to nodes above and below under keys of the two ends. The call must
    /// come before the receiver joins.
    pub fn with_node_key(mut self, key: NodeKey) -> Self {
        self.up.out.seal.with_ends(EndKeys::Node(key));
        self
    }

    /// Sets where the receiver begins instead of the live feed. A recorder must have the earlier
    /// messages. The call must come before the receiver joins.
    pub fn beginning(mut self, begin: Begin) -> Self {
        self.up.begin = begin;
        self
    }

    /// Resumes a run that the receiver was in before. Frames that were sent meanwhile come by
    /// repair, as far as any node has them, and the others are reported lost. The call must come
    /// before the receiver joins.
    pub(crate) fn resuming(mut self, resume: Resume) -> Self {
        self.up.resume = Some((resume.epoch, resume.frame));
        self.resume = Some(resume);
        self
    }

    pub(crate) fn of_role(
        role: Role,
        config: Arc<Config>,
        who: Identity,
        key: Option<&SharedKey>,
        now: Timestamp,
    ) -> Self {
        let mut margins = Margins::default();
        margins.tally.receivers = 1;
        Self {
            up: Uplink::new(config, who, role, key, now),
            margins,
            earlier: Tally::default(),
            held: VecDeque::new(),
            next: 0,
            next_message: None,
            event: None,
            events: VecDeque::new(),
            started: false,
            finished: false,
            refused_full: 0,
            from_message: 0,
            replay_until: None,
            replay_mark: None,
            resume: None,
            check: None,
        }
    }

    /// Says good-bye to the root, which answers with an eviction for [`DepartureReason::Left`].
    pub fn leave(&mut self) {
        self.up.leave();
        self.check.iter_mut().for_each(|check| check.suspend_checks());
    }

    /// The tree of this receiver.
    pub fn stream(&self) -> u32 {
        self.up.who.stream
    }

    /// The run of the root that this receiver follows; `None` before it has heard of one.
    pub fn epoch(&self) -> Option<u32> {
        self.up.epoch()
    }

    /// Its counters.
    pub fn status(&self) -> ReceiverStatus {
        let mut tally = self.tally();
        tally.add(&self.earlier);
        ReceiverStatus {
            tally,
            held: self.held.len() as u64,
            refused_full: self.refused_full,
            samples_dropped: self.margins.dropped(),
            clock_is_sound: self.up.soundness.is_sound(),
            clock_steps: self.up.clock().steps(),
            refusals: self.up.refusals,
            trust: self.check.as_ref().map(|check| check.counts()),
        }
    }

    /// Reads the fields that the next input needs, and changes nothing. A simulator of thousands of
    /// receivers calls this method for several of them before their turns.
    pub fn prefetch(&self) -> u64 {
        let lengths = self.held.len() ^ self.events.len();
        let event = u64::from(self.event.is_some());
        lengths as u64 ^ event ^ self.margins.prefetch() ^ self.up.prefetch()
    }

    /// Follows what [`prefetch`](Self::prefetch) has read.
    pub fn prefetch_far(&self) -> u64 {
        // The release of the first held frame looks at the second frame, and an arrival looks at
        // the last frame.
        let read = |held: Option<&Held>| held.map_or(0, Held::prefetch);
        let held = read(self.held.get(1)) ^ read(self.held.back());
        let first = self.held.front();
        // A released frame drops its bytes, whose count of owners lies beside them.
        let bytes = first.map_or(0, |held| held.release.messages.prefetch());
        read(first) ^ held ^ u64::from(bytes) ^ self.margins.prefetch_far() ^ self.up.prefetch_far()
    }

    /// Its place in the tree, if it has one.
    pub fn place(&self) -> Option<&TreePosition> {
        self.up.place.as_ref()
    }

    pub(crate) fn up(&mut self) -> &mut Uplink {
        &mut self.up
    }

    fn tally(&self) -> Tally {
        Tally { repaired: self.up.repaired, ..self.margins.tally }
    }

    fn on_news(&mut self, now: Timestamp, news: News) {
        if let (Some(check), News::Placed(place) | News::Restarted { place, .. }) =
            (&mut self.check, &news)
        {
            check.begin(now, self.up.who.stream, self.up.out.run.1, place.start);
        }
        if let (Some(check), News::Evicted(_)) = (&mut self.check, &news) {
            check.suspend_checks();
        }
        match news {
            News::Placed(place) => {
                let live = self.up.begin == Begin::Live;
                if live && !core::mem::replace(&mut self.started, true) {
                    self.next = place.start;
                    self.next_message = Some(place.start_message);
                    if let Some(resume) = self.resume.take() {
                        self.go_on(now, resume, place.start);
                    }
                }
                self.tell(ReceiverEvent::Placed(place));
            }
            News::Located(at) => self.begin(now, at),
            News::Restarted { place, epoch, known } => {
                self.restart((place.start, place.start_message), known);
                self.tell(ReceiverEvent::Restarted { epoch });
                self.tell(ReceiverEvent::Placed(place));
            }
            News::Evicted(reason) => self.tell(ReceiverEvent::Evicted(reason)),
            News::RootLost => self.tell(ReceiverEvent::RootLost),
            News::Ended => {}
        }
        self.settle(now);
    }

    /// A recorder named the frame to begin with, or no recorder did in time.
    fn begin(&mut self, now: Timestamp, at: Option<(u64, u64)>) {
        let Some(place) = &self.up.place else { return };
        let live = (place.start, place.start_message);
        let (frame, message) = at.filter(|(frame, _)| *frame <= live.0).unwrap_or(live);
        let begin = self.up.begin;
        self.up.begin = Begin::Live;
        self.started = true;
        self.up.start_at(frame);
        (self.next, self.next_message) = (frame, Some(message));
        self.from_message = match begin {
            Begin::Message(number) => number,
            _ => 0,
        };
        // The part of the beginning that no recorder has is reported lost.
        let before = match begin {
            Begin::Start => Some((0, 0)),
            Begin::Message(number) if number < message => Some((frame.saturating_sub(1), number)),
            _ => None,
        };
        let before = before.filter(|(first, _)| *first < frame);
        let (first, first_message) = before.unwrap_or((frame, message));
        if at.is_some() {
            self.replay_until = Some(live.0);
        } else {
            self.tell(ReceiverEvent::NotReplayed);
        }
        self.tell(ReceiverEvent::Replaying { first, first_message });
        if before.is_some() {
            (self.next, self.next_message) = (first, Some(first_message));
            self.report_lost(frame, Some(message));
            (self.next, self.next_message) = (frame, Some(message));
        }
        self.up.catch_up(now);
    }

    /// Resumes when the present run is the run of `resume` and has got as far as its frame.
    fn go_on(&mut self, now: Timestamp, resume: Resume, live: u64) {
        let epoch = self.up.epoch().unwrap_or_default();
        if epoch != resume.epoch {
            self.tell(ReceiverEvent::Restarted { epoch });
            return;
        }
        let Resume { frame: first, message: first_message, .. } = resume;
        (self.next, self.next_message) = (first, Some(first_message));
        self.replay_until = Some(live);
        self.tell(ReceiverEvent::Replaying { first, first_message });
        self.up.hear_of(now, live);
    }

    /// The root started a new run. Frames of the last run that are held or missing are lost, since
    /// no node can repair them or say where the run ends.
    fn restart(&mut self, (start, start_message): (u64, u64), known: u64) {
        if self.next < known {
            self.report_lost(known, None);
        }
        self.held.clear();
        self.next = start;
        self.next_message = Some(start_message);
        self.finished = false;
        self.started = true;
        (self.from_message, self.replay_until) = (0, None);
        let run = Tally { receivers: 0, finished: 0, ..self.tally() };
        self.earlier.add(&run);
        self.up.repaired = 0;
        self.margins.restart();
    }

    fn on_data(
        &mut self,
        now: Timestamp,
        datagram: Datagram,
        received: Timestamp,
    ) -> Result<(), Malformed> {
        let sequence = datagram.fixed.sequence;
        if self.is_broken() {
            return Ok(());
        }
        if self.up.window.as_ref().is_none_or(|w| w.contains(sequence)) {
            self.up.on_data(now, &datagram, received);
            self.margins.tally.duplicates += 1;
            return Ok(());
        }
        if !self.up.reach(sequence) {
            // Recorders are asked for the frame when all frames before it have arrived.
            self.refuse(now, sequence);
            return Ok(());
        }
        // Held frames are counted from the next frame to release, so that the frame for which
        // others wait always has room. When no frame is held, frames that were given up do not
        // count.
        let settled = self.up.window.as_ref().map_or(0, |w| w.base());
        let from = if self.held.is_empty() { settled.max(self.next) } else { self.next };
        if sequence >= from + self.up.config.framing.held_frames as u64 {
            // The frame is asked for again when its turn is nearer.
            self.refuse(now, sequence);
            return Ok(());
        }
        // The body is opened before the frame counts as seen, because a tampered copy must not hide
        // the genuine one.
        let opened = self.up.out.seal.open(&datagram.fixed, &datagram.body);
        let body = opened.inspect_err(|_| self.up.refusals.forged += 1)?;
        let (signature, messages) = match datagram.fixed.kind {
            // A signature has no messages, whatever its header says.
            DatagramKind::Signature => (Some(body), Messages::of_signature(datagram.fixed.count)),
            _ => (None, Messages::new(body, datagram.fixed.count)),
        };
        let messages = messages.inspect_err(|_| self.up.refusals.malformed += 1)?;
        let repaired_before = self.up.repaired;
        if self.up.on_data(now, &datagram, received) != Seen::First {
            return Ok(());
        }
        self.note_copy(now, &datagram, signature.as_ref().unwrap_or(messages.body()));
        let arrived = self.up.clock().sync(received);
        if !self.is_replayed(sequence) {
            let delay = self.up.soundness.is_sound().then(|| arrived.since(datagram.fixed.origin));
            self.margins.arrived(sequence, delay, datagram.hop.flags & SAMPLED != 0);
        }
        let parent = self.up.place.as_ref().and_then(TreePosition::parent);
        let fixed = datagram.fixed;
        let release = Release {
            stream: fixed.stream,
            epoch: fixed.epoch,
            run_id: fixed.run_id,
            sequence,
            first_message: fixed.first_message,
            messages,
            count: fixed.count,
            format: fixed.format,
            origin: fixed.origin,
            deadline: fixed.deadline,
            arrived,
            taken: self.up.clock().sync(now),
            via: datagram.hop.from,
            hedge_win: fixed.class == TrafficClass::Live
                && parent.is_some_and(|p| p.id != datagram.hop.from),
            repaired: self.up.repaired > repaired_before,
            signature,
        };
        self.margins.tally.hedge_wins += u64::from(release.hedge_win);
        let is_timed = datagram.hop.flags & TIMED != 0 && !self.is_replayed(sequence);
        self.hold(Held { release, received, is_timed });
        self.settle(now);
        Ok(())
    }

    /// Adds a frame to the held ones. Nearly every frame comes in its turn and goes to the end.
    fn hold(&mut self, held: Held) {
        let sequence = held.release.sequence;
        if self.held.back().is_none_or(|last| last.release.sequence < sequence) {
            return self.held.push_back(held);
        }
        let at = self.held.partition_point(|other| other.release.sequence < sequence);
        self.held.insert(at, held);
    }

    /// The receiver has no room yet for a frame.
    fn refuse(&mut self, now: Timestamp, sequence: u64) {
        self.refused_full += 1;
        // The live feed begins after all frames that must be replayed instead.
        self.replay_until = self.replay_until.map(|until| until.max(sequence + 1));
        self.up.hear_of(now, sequence + 1);
    }

    /// Reports a replay that does not gain on the live feed.
    fn watch_replay(&mut self, now: Timestamp) {
        if self.replay_until.is_none() {
            self.replay_mark = None;
            return;
        }
        let mark = ReplayMark { at: now, next: self.next, heard: self.up.heard() };
        let last = *self.replay_mark.get_or_insert(mark);
        let span = now.since(last.at);
        if span < GAIN_WITHIN {
            return;
        }
        self.replay_mark = Some(mark);
        let per_second = |frames: u64| (frames as f64 / span.as_secs_f64()) as u64;
        let replayed = mark.next.saturating_sub(last.next);
        let live = mark.heard.saturating_sub(last.heard);
        if replayed <= live {
            self.tell(ReceiverEvent::FallingBehind {
                behind: mark.heard.saturating_sub(mark.next),
                replayed_per_second: per_second(replayed),
                live_per_second: per_second(live),
            });
        }
    }

    /// Releases the frames that are due and in order, and reports the frames that the window has
    /// given up.
    fn release(&mut self, now: Timestamp) {
        if self.is_broken() {
            return;
        }
        // All frames below `settled` were seen or given up. A frame above a hole may be released
        // when the whole hole lies below `settled`.
        let settled = self.up.window.as_ref().map_or(0, |w| w.base());
        while let Some(first) = self.held.front() {
            let sequence = first.release.sequence;
            let in_order = sequence == self.next || sequence <= settled;
            if !in_order || due(first, &self.up) > now || !self.is_permitted(sequence) {
                break;
            }
            let Some(held) = self.held.pop_front() else { break };
            if sequence > self.next {
                self.report_lost(sequence, Some(held.release.first_message));
            }
            if held.is_timed && self.up.soundness.is_sound() {
                // The owner hands the frame on within this turn, for which the clock was read.
                let at = self.up.clock().sync(now);
                self.margins.released(sequence, at.since(held.release.origin));
            }
            self.hand_on(held.release);
            self.next = sequence + 1;
        }
        if self.held.is_empty() {
            // The next frame then takes the first place again, whose memory a cache still has.
            self.held.clear();
        }
        if self.replay_until.take_if(|until| self.next >= *until || settled >= *until).is_some() {
            self.tell(ReceiverEvent::CaughtUp);
            // A replay may have held as many frames as the limit allows.
            self.held.shrink_to_fit();
        }
        let Some((end, end_message)) = self.up.end.filter(|_| self.started) else { return };
        if self.next < end && self.held.is_empty() && settled >= end {
            self.report_lost(end, Some(end_message));
            self.next = end;
        }
        let is_checked = self.check.as_ref().is_none_or(|check| check.is_settled());
        if !self.finished && self.next >= end && is_checked {
            self.finished = true;
            self.margins.tally.finished = 1;
            // The report goes at once, because the root waits for it.
            self.up.report_now(now);
            self.tell(ReceiverEvent::Finished);
        }
    }

    /// When the first held frame is due. Only a frame whose predecessors are settled waits for its
    /// time. Other frames wait for repair.
    fn next_release(&self) -> Option<Timestamp> {
        let settled = self.up.window.as_ref().map_or(0, |w| w.base());
        let first = self.held.front()?;
        let sequence = first.release.sequence;
        let in_order = sequence == self.next || sequence <= settled;
        (in_order && self.is_permitted(sequence)).then(|| due(first, &self.up))
    }

    /// Frames `self.next..to` are lost. `message` is the first message after them.
    fn report_lost(&mut self, to: u64, message: Option<u64>) {
        if let Some(check) = &mut self.check {
            check.skip_to(to);
        }
        let messages = match (self.next_message, message) {
            (Some(first), Some(after)) => Some(after.saturating_sub(first)),
            _ => None,
        };
        self.margins.tally.lost += messages.unwrap_or(0);
        self.tell(ReceiverEvent::Lost {
            first: self.next,
            frames: to - self.next,
            first_message: self.next_message,
            messages,
        });
    }

    fn hand_on(&mut self, mut release: Release) {
        self.next_message = Some(release.first_message + u64::from(release.count));
        let is_late = |deadline| release.arrived > deadline || !self.up.soundness.is_sound();
        let late = release.deadline.is_some_and(is_late);
        let late = late && !self.is_replayed(release.sequence);
        let unwanted = self.from_message.saturating_sub(release.first_message);
        let unwanted = unwanted.min(u64::from(release.count)) as u16;
        (0..unwanted).for_each(|_| drop(release.messages.next()));
        release.first_message += u64::from(unwanted);
        release.count -= unwanted;
        let count = u64::from(release.count);
        self.margins.tally.released += count;
        self.margins.tally.late += if late { count } else { 0 };
        self.tell(ReceiverEvent::Released(release));
    }

    /// Tells the owner an event, after all events that the owner has not taken yet.
    fn tell(&mut self, event: ReceiverEvent) {
        if self.event.is_none() && self.events.is_empty() {
            self.event = Some(event);
        } else {
            self.events.push_back(event);
        }
    }

    /// Whether a frame was made before the root expected this receiver to have it. Such a frame
    /// cannot be late, and its delay does not measure the tree.
    fn is_replayed(&self, sequence: u64) -> bool {
        self.up.place.as_ref().is_some_and(|place| sequence < place.start)
    }

    /// Takes a datagram that was authenticated.
    pub(crate) fn take(
        &mut self,
        now: Timestamp,
        datagram: Datagram,
        received: Timestamp,
    ) -> Result<(), Malformed> {
        if datagram.fixed.kind.is_frame() {
            return self.on_data(now, datagram, received);
        }
        if let Some(news) = self.up.on_control(now, &datagram)? {
            self.on_news(now, news);
        }
        Ok(())
    }
}

/// When a frame may be released, by the clock that never steps. A frame arrives after it was sent,
/// so that its deadline comes at the latest the hold's length after the arrival. A receiver whose
/// clock is behind does not wait longer, and a receiver whose clock is not sound waits that long.
fn due(held: &Held, up: &Uplink) -> Timestamp {
    let Some(deadline) = held.release.deadline else { return Timestamp::ZERO };
    let latest = held.received + deadline.since(held.release.origin);
    if up.soundness.is_sound() { up.clock().local(deadline).min(latest) } else { latest }
}

impl Machine for Receiver {
    type Event = ReceiverEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        match self.up.open(now, &arrival)? {
            Some(datagram) => self.take(now, datagram, arrival.received),
            None => Ok(()),
        }
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if let Some(news) = self.up.handle_timeout(now) {
            self.on_news(now, news);
        }
        if let Some(limit) = self.up.overdue(now) {
            self.up.give_up_overdue(now, limit);
        }
        self.settle(now);
        if self.up.report_due(now) {
            self.watch_replay(now);
            self.margins.tally = self.tally();
            if self.replay_until.is_some() {
                // The receiver lacks frames that the tree brought in time.
                self.margins.skip_a_number();
            }
            let clock = self.up.clock().reading().error;
            let mut report = self.margins.take(now, self.up.who.id, &mut self.up.edges, clock);
            let body = report.encode(self.up.body_bytes_max());
            self.margins.put_back(report);
            if let Some(parent) = self.up.parent() {
                self.up.out.control_to(parent, DatagramKind::Report, body);
            }
        }
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.up.follow(now, reading);
        self.settle(now);
    }

    fn clock(&self) -> Option<Clock> {
        Some(*self.up.clock())
    }

    fn poll_event(&mut self) -> Option<ReceiverEvent> {
        self.event.take().or_else(|| self.events.pop_front())
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        self.up.out.next(now)
    }

    fn poll_urgent(&mut self, now: Timestamp) -> Option<Transmit> {
        self.up.out.next(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let timers = [self.next_release(), self.up.poll_timeout(), self.check_due()];
        timers.into_iter().flatten().min()
    }

    /// Deadlines never decrease, so no frame under way is due before the held frame. Where a frame
    /// is missing, its repair is wanted at once.
    fn poll_lull(&self) -> Option<Timestamp> {
        let is_quiet = self.up.gaps.is_empty() && !self.reads_at_once();
        if is_quiet { self.next_release() } else { None }
    }
}
