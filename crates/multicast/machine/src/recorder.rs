//! The recorder: a receiver whose owner keeps every frame. It repairs frames that the root and the
//! proxies have forgotten.
//!
//! Rings are short. A node that was away for longer, or joined late, finds its frames in no ring. A
//! recorder joins as a leaf like any other receiver, and the root names it in every place. Nodes
//! ask the recorder last, with the same request as they ask other nodes ([`DatagramKind::Nack`]). A
//! replay from the beginning is therefore the repair of a very long gap. The window of the asking
//! node limits the frames under way, and its de-duplication makes the step to the live feed without
//! a hole and without a second copy.
//!
//! The owner decides where frames are kept, and may take its time to read them:
//!
//! ```text
//!  asker  --Nack-->   Recorder  --poll_wanted-->  owner: reads its archive
//!  asker  <--Data--   Recorder  <--supply------   owner
//! ```
//!
//! `repair.child_queue_max` bounds the frames that an asker waits for. Frames leave no faster than
//! `repair.recorder_frames_per_second`, or twice as fast as the live feed, whichever is more. A
//! request that does not fit is dropped, and so is a request for a frame that is not in the
//! archive. The asker then asks again.
//!
//! Equal shares would help no asker: each of two late joiners would get no more frames than the
//! feed grows by meanwhile. The asker that is nearest to the live feed is therefore served first,
//! until it needs the recorder no more. Every eighth read goes to the other askers in turn, so that
//! they do not give up. A frame is sealed as the root sealed it, so a copy from the archive has the
//! same bytes.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::{
    Arrival, Clock, ClockReading, Format, Install, Machine, Malformed, NodeId, NodeKey, SyncTime,
    Timestamp, TrafficClass, Transmit,
};

use crate::config::Config;
use crate::control::{Begin, Located, Peer, Role, TreePosition, decode_ranges};
use crate::pace::Pace;
use crate::receiver::{Receiver, ReceiverEvent, ReceiverStatus, Release, Resume};
use crate::ring::Frame;
use crate::seal::SharedKey;
use crate::signing::{ReleaseAfter, SignatureVerifier};
use crate::uplink::Identity;
use crate::wire::{Datagram, DatagramKind, OriginHeader, put_message};

/// Askers that are served at once. Further askers ask again later.
const ASKERS_MAX: usize = 1_024;
/// Frames in one read of the archive: some kilobytes.
const READ_FRAMES: u64 = 64;
/// Reads that may be under way, so that the next read is done while the frames of one are sent.
const READS_MAX: usize = 4;
/// Frames that are read and not yet sent, at which the owner is asked for no more.
const WAITING_MAX: usize = 256;
/// Frames that may leave at once after a pause: a full segmented send.
const BURST: u32 = 64;
/// One read in this many is for the askers in turn. The other reads are for the foremost asker.
const IN_TURN_EVERY: u32 = 8;
/// The pace of replay as a multiple of the live feed. The foremost asker gets seven eighths of the
/// pace, which is 1.75 times as many frames as the feed grows by.
const FEED_MULTIPLE: f64 = 2.0;
/// Limit of the pace as a multiple of the configured rate. After an outage the recorder hears of
/// many frames at once, and that jump is no rate of the feed.
const PACE_MULTIPLE_MAX: u32 = 8;
/// Signatures that a recorder keeps for nodes that missed them, 80 MB at most: those of the last
/// minute, where the root makes one each millisecond.
const SIGNATURES_MAX: usize = 65_536;
/// How often the rate of the live feed is measured.
const RATE_EVERY: Duration = Duration::from_secs(1);

/// A frame in the form in which the archive keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archived {
    /// Frame number.
    pub sequence: u64,
    /// Number of its first message.
    pub first_message: u64,
    /// When the root sent the frame.
    pub origin: SyncTime,
    /// When the frame was to be released; `None` when it was not held.
    pub deadline: Option<SyncTime>,
    /// The format of its messages.
    pub format: Format,
    /// Its messages; none in a signature.
    pub messages: Vec<Bytes>,
    /// The body of a signature; `None` for a frame of the feed, which may have no messages.
    pub signature: Option<Bytes>,
}

/// A read that the owner is to do. Each read is answered once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Read frames, and answer by [`Recorder::supply`].
    Frames {
        /// Node that needs the frames.
        asker: NodeId,
        /// First frame.
        first: u64,
        /// Number of frames.
        count: u16,
    },
    /// Find the frame with which a node begins, and answer by [`Recorder::locate`].
    Location {
        /// Node that asks.
        asker: NodeId,
        /// Where the node wants to begin.
        begin: Begin,
    },
}

/// Counters of a recorder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RecorderStatus {
    /// Counters of the recorder as a receiver.
    pub receiver: ReceiverStatus,
    /// Frames sent to nodes that asked.
    pub repairs_sent: u64,
    /// Requested frames that were dropped because the asker had too many waiting.
    pub dropped: u64,
    /// Requested frames that the archive does not have.
    pub absent: u64,
    /// Late nodes that were told where to begin.
    pub located: u64,
    /// Askers that wait at present.
    pub askers: usize,
}

#[derive(Debug)]
struct Asker {
    to: SocketAddr,
    wanted: BTreeSet<u64>,
    locate: Option<Begin>,
    /// Reads under way for this asker.
    reads: usize,
}

/// One recorder of one tree.
pub struct Recorder {
    receiver: Receiver,
    config: Config,
    asked: BTreeMap<NodeId, Asker>,
    /// The asker that had the last turn.
    last: NodeId,
    /// Reads so far, which decide the next turn.
    turns: u32,
    reads: usize,
    ready: VecDeque<(SocketAddr, Frame)>,
    pace: Pace,
    /// When the rate of the feed was last measured, and the feed's next frame at that time.
    measured: (Timestamp, u64),
    /// The bodies of the newest signatures, by number. The archive gets them a moment later.
    signatures: BTreeMap<u64, Bytes>,
    status: RecorderStatus,
}

impl Recorder {
    /// A recorder that joins at the first call of its timeout.
    pub fn new(config: Config, who: Identity, key: Option<&SharedKey>, now: Timestamp) -> Self {
        Self {
            receiver: Receiver::of_role(Role::Recorder, config.into(), who, key, now),
            config,
            asked: BTreeMap::new(),
            last: NodeId(0),
            turns: 0,
            reads: 0,
            ready: VecDeque::new(),
            pace: Pace::new(config.repair.recorder_frames_per_second, BURST),
            measured: (now, 0),
            signatures: BTreeMap::new(),
            status: RecorderStatus::default(),
        }
    }

    /// Resumes a recording of this run. Frames that were sent since come by repair, from rings or
    /// from another recorder. Frames that no node has are reported lost. A root that is in another
    /// run is reported as [`ReceiverEvent::Restarted`]. The call must come before the recorder
    /// joins.
    pub fn resuming(mut self, resume: Resume) -> Self {
        self.receiver = self.receiver.resuming(resume);
        self
    }

    /// See [`Receiver::with_node_key`].
    pub fn with_node_key(mut self, key: NodeKey) -> Self {
        self.receiver = self.receiver.with_node_key(key);
        self
    }

    /// See [`Receiver::check_signatures`].
    pub fn check_signatures(
        mut self,
        verifier: Arc<dyn SignatureVerifier>,
        rule: ReleaseAfter,
    ) -> Self {
        self.receiver = self.receiver.check_signatures(verifier, rule);
        self
    }

    /// See [`Receiver::leave`].
    pub fn leave(&mut self) {
        self.receiver.leave();
    }

    /// The tree that is recorded.
    pub fn stream(&self) -> u32 {
        self.receiver.stream()
    }

    /// Its place in the tree, if it has one.
    pub fn place(&self) -> Option<&TreePosition> {
        self.receiver.place()
    }

    /// Its counters.
    pub fn status(&self) -> RecorderStatus {
        let (receiver, askers) = (self.receiver.status(), self.asked.len());
        RecorderStatus { receiver, askers, ..self.status }
    }

    /// Whether the root has been silent for so long that no node needs this recorder any more. A
    /// root falls silent when all receivers have everything.
    pub fn is_alone(&mut self, now: Timestamp) -> bool {
        let silence = self.config.membership.silence;
        self.asked.is_empty() && self.receiver.up().root_silence(now) >= silence * 2
    }

    /// The next read for the owner; `None` while enough frames wait to be sent.
    pub fn poll_wanted(&mut self) -> Option<Wanted> {
        if self.reads >= READS_MAX || self.ready.len() >= WAITING_MAX {
            return None;
        }
        let id = self.next_asker()?;
        self.turns = self.turns.wrapping_add(1);
        let asker = self.asked.get_mut(&id)?;
        self.reads += 1;
        asker.reads += 1;
        if let Some(begin) = asker.locate.take() {
            return Some(Wanted::Location { asker: id, begin });
        }
        let first = asker.wanted.pop_first().expect("it waits for frames");
        let mut end = first + 1;
        while end < first + READ_FRAMES && asker.wanted.remove(&end) {
            end += 1;
        }
        Some(Wanted::Frames { asker: id, first, count: (end - first) as u16 })
    }

    /// The asker that is served next: mostly the asker that is nearest to the live feed.
    fn next_asker(&mut self) -> Option<NodeId> {
        let waits =
            |(_, asker): &(&NodeId, &Asker)| !asker.wanted.is_empty() || asker.locate.is_some();
        if !self.turns.is_multiple_of(IN_TURN_EVERY) {
            // A node that asks where to begin is answered in one read.
            let place = |asker: &Asker| (asker.locate.is_some(), asker.wanted.first().copied());
            let foremost = self.asked.iter().filter(waits).max_by_key(|(_, asker)| place(asker));
            return foremost.map(|(id, _)| *id);
        }
        let after = NodeId(self.last.0.wrapping_add(1));
        let later = self.asked.range(after..).find(waits);
        let (&id, _) = later.or_else(|| self.asked.iter().find(waits))?;
        self.last = id;
        Some(id)
    }

    /// Sets the pace of replay by the rate of the feed.
    fn follow_feed(&mut self, now: Timestamp) {
        let (since, first) = self.measured;
        let span = now.since(since);
        if span < RATE_EVERY {
            return;
        }
        let next = self.receiver.up().heard();
        let frames = next.saturating_sub(first) as f64 / span.as_secs_f64();
        let least = self.config.repair.recorder_frames_per_second;
        let feed = (FEED_MULTIPLE * frames) as u32;
        let most = least.saturating_mul(PACE_MULTIPLE_MAX);
        self.pace.set_rate(if first == 0 { least } else { feed.clamp(least, most) });
        self.measured = (now, next);
    }

    fn answered(&mut self, asker: NodeId) -> Option<SocketAddr> {
        self.reads = self.reads.saturating_sub(1);
        let there = self.asked.get_mut(&asker)?;
        there.reads = there.reads.saturating_sub(1);
        let to = there.to;
        if there.reads == 0 && there.wanted.is_empty() && there.locate.is_none() {
            self.asked.remove(&asker);
        }
        Some(to)
    }

    /// Answers [`Wanted::Frames`] with the frames that the archive has.
    pub fn supply(
        &mut self,
        asker: NodeId,
        count: u16,
        frames: impl IntoIterator<Item = Archived>,
    ) {
        let Some(to) = self.answered(asker) else { return };
        let before = self.ready.len();
        for archived in frames.into_iter().take(usize::from(count)) {
            let frame = self.seal(archived);
            self.ready.push_back((to, frame));
        }
        let found = self.ready.len() - before;
        self.status.absent += u64::from(count).saturating_sub(found as u64);
    }

    fn seal(&mut self, archived: Archived) -> Frame {
        let stream = self.receiver.stream();
        let out = &mut self.receiver.up().out;
        let mut body = bytes::BytesMut::new();
        archived.messages.iter().for_each(|message| put_message(&mut body, message));
        let kept = self.signatures.get(&archived.sequence);
        let signature = archived.signature.as_ref().or(kept);
        if let Some(signature) = signature {
            body.extend_from_slice(signature);
        }
        let fixed = OriginHeader {
            kind: if signature.is_some() { DatagramKind::Signature } else { DatagramKind::Data },
            class: TrafficClass::Live,
            key_id: out.seal.key_id(),
            count: archived.messages.len() as u16,
            stream,
            epoch: out.run.0,
            run_id: out.run.1,
            sequence: archived.sequence,
            first_message: archived.first_message,
            origin: archived.origin,
            deadline: archived.deadline,
            format: archived.format,
        };
        let body = out.seal.seal(&fixed, &body);
        Frame { fixed, flags: 0, body }
    }

    /// Answers [`Wanted::Location`]: the frame to begin with and the number of its first message.
    pub fn locate(&mut self, asker: NodeId, begin: Begin, at: Option<(u64, u64)>) {
        let Some(to) = self.answered(asker) else { return };
        self.status.located += 1;
        let body = Located { begin, at }.encode();
        self.receiver.up().out.control_to(
            Peer { id: asker, addr: to },
            DatagramKind::Located,
            body,
        );
    }

    fn asker(&mut self, id: NodeId, to: SocketAddr) -> Option<&mut Asker> {
        if self.asked.len() >= ASKERS_MAX && !self.asked.contains_key(&id) {
            return None;
        }
        let new = Asker { to, wanted: BTreeSet::new(), locate: None, reads: 0 };
        let asker = self.asked.entry(id).or_insert(new);
        asker.to = to;
        Some(asker)
    }

    fn on_nack(&mut self, datagram: &Datagram, from: SocketAddr) -> Result<(), Malformed> {
        let ranges = decode_ranges(&datagram.body)?;
        let most = self.config.repair.child_queue_max;
        let mut dropped = 0;
        if let Some(asker) = self.asker(datagram.hop.from, from) {
            for (first, count) in ranges {
                for sequence in first..first.saturating_add(u64::from(count)) {
                    if asker.wanted.len() < most {
                        asker.wanted.insert(sequence);
                    } else {
                        dropped += 1;
                    }
                }
            }
            if asker.wanted.is_empty() && asker.locate.is_none() && asker.reads == 0 {
                self.asked.remove(&datagram.hop.from);
            }
        }
        self.status.dropped += dropped;
        Ok(())
    }

    fn on_locate(&mut self, datagram: &Datagram, from: SocketAddr) -> Result<(), Malformed> {
        let begin = Begin::decode(&datagram.body)?;
        if let Some(asker) = self.asker(datagram.hop.from, from) {
            asker.locate = Some(begin);
        }
        Ok(())
    }

    /// A copy that may leave by now.
    fn paced(&mut self, now: Timestamp) -> Option<Transmit> {
        if self.ready.is_empty() || !self.pace.allows(now) {
            return None;
        }
        let (to, frame) = self.ready.pop_front()?;
        self.pace.spend(now);
        self.status.repairs_sent += 1;
        Some(self.receiver.up().out.repair(now, to, &frame))
    }
}

impl Machine for Recorder {
    type Event = ReceiverEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let Some(datagram) = self.receiver.up().open(now, &arrival)? else { return Ok(()) };
        match datagram.fixed.kind {
            DatagramKind::Nack => self.on_nack(&datagram, arrival.from),
            DatagramKind::Locate => self.on_locate(&datagram, arrival.from),
            _ => self.receiver.take(now, datagram, arrival.received),
        }
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.receiver.handle_timeout(now);
        self.pace.handle_timeout(now);
        self.follow_feed(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.receiver.handle_clock(now, reading);
    }

    fn clock(&self) -> Option<Clock> {
        self.receiver.clock()
    }

    fn poll_event(&mut self) -> Option<ReceiverEvent> {
        let event = self.receiver.poll_event()?;
        match &event {
            ReceiverEvent::Restarted { .. } => {
                // The requests were for frames of the last run.
                self.asked.clear();
                self.ready.clear();
                self.signatures.clear();
            }
            ReceiverEvent::Released(Release { sequence, signature: Some(signature), .. }) => {
                // A slice would keep the whole buffer of the port that it came in.
                self.signatures.insert(*sequence, Bytes::copy_from_slice(signature));
                if self.signatures.len() > SIGNATURES_MAX {
                    self.signatures.pop_first();
                }
            }
            _ => {}
        }
        Some(event)
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.receiver.poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        self.receiver.poll_transmit(now).or_else(|| self.paced(now))
    }

    fn poll_urgent(&mut self, now: Timestamp) -> Option<Transmit> {
        self.receiver.poll_urgent(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.receiver.poll_timeout().into_iter().chain(self.pace.retry_at()).min()
    }
}
