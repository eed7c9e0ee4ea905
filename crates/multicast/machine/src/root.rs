//! The root. It numbers and frames the messages of one stream, sets their deadline, keeps the book
//! of members and the tree, and takes in the reports of receivers.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use evenfall_core::{
    Arrival, Clock, ClockReading, Destination, EndKeys, Format, FrameMemory, GroupId, Install,
    Machine, Malformed, MasterKey, NodeId, Reader, SyncTime, Timestamp, TrafficClass, Transmit,
};

use crate::admission::{Admission, GuestList, RootRun};
use crate::config::{Config, Mode, Repair};
use crate::control::{
    Beacon, DepartureReason, Join, Peer, Report, Role, Tally, TreePosition, Worst, decode_pair,
    decode_ranges, decode_verdict, encode_pair, encode_verdict,
};
use crate::draft::Draft;
use crate::hold::{HoldControl, LoadClass};
use crate::members::{Action, Joined, Members, View};
use crate::merge::{Merger, saturating_ns};
use crate::outbox::Outbox;
use crate::parts::{PlaceKeys, split};
use crate::replace::{Replacement, Replacements, Watch};
use crate::ring::{Frame, RepairQueue, Ring, Stored};
use crate::seal::{Seal, SharedKey};
use crate::signing::{CHAIN_BYTES, FrameHasher, FrameSigner, SigningChain};
use crate::uplink::Refusals;
use crate::wire::{
    self, Datagram, DatagramKind, EPOCH_OFFSET, HEADER_BYTES, MESSAGE_OVERHEAD, OriginHeader,
    SAMPLED, SENDER_OFFSET, TIMED, put_message,
};

mod digest;
mod directory;
mod fairness;
mod report;
mod rotation;
mod sampling;
mod signed;
mod voted;

use self::directory::MemberDirectory;
use self::rotation::KeyRotation;
use self::sampling::{SampleCredit, SampledFrame, SampledFrames};
use self::voted::Voted;

pub use self::directory::{MemberState, MemberStatus};
pub use self::fairness::{DurationCounts, FairnessSums, LiveFairness};
pub use self::report::{Framed, PublishError, RootEvent, RootStatus};

/// The frame under construction.
#[derive(Debug, Default)]
struct Open {
    body: BytesMut,
    count: u16,
    format: Format,
}

/// Largest body: the largest datagram that IP carries, without its headers, our header and the tag
/// of the seal.
const BODY_BYTES_MAX: usize = 65_507 - HEADER_BYTES - crate::seal::TAG_BYTES;

/// Bytes of a chunk of memory for frames.
const CHUNK_BYTES: usize = 65_536;

/// Memory for the frames that the ring keeps. Frames of up to 4 KiB leave at most a sixteenth of a
/// chunk unused at its end, and frames that left the ring may still wait to be sent.
fn frame_memory(ring: &Repair) -> FrameMemory {
    let chunks = ring.ring_bytes / CHUNK_BYTES;
    FrameMemory::new(CHUNK_BYTES, chunks + chunks / 16 + 16)
}

/// Frames a second whose releases receivers report: a thousand in ten seconds, of which ten lie
/// beyond the 99th percentile.
const TIMED_PER_SECOND: u32 = 100;

/// The root of one tree.
pub struct Root {
    config: Config,
    me: NodeId,
    stream: u32,
    run: RootRun,
    admission: Admission,
    out: Outbox,
    ring: Ring,
    repair_queue: RepairQueue,
    merger: Merger,
    hold: HoldControl,
    watch: Watch,
    members: Members,
    view: View,
    groups: (GroupId, GroupId),
    open: Open,
    /// Time before which the next frame does not leave.
    next_close: Timestamp,
    next_frame: u64,
    next_message: u64,
    last_origin: SyncTime,
    last_deadline: SyncTime,
    sampling: SampleCredit,
    timing: SampleCredit,
    fairness: LiveFairness,
    directory: MemberDirectory,
    /// Hold and messages of the frames whose overall latency is not yet known.
    sampled_frames: SampledFrames,
    ended: bool,
    finished: bool,
    beat: u64,
    beacon_at: Timestamp,
    sent_since_beacon: bool,
    report_at: Timestamp,
    /// The control sequence that each member may use next, as in `Uplink`.
    last_control: BTreeMap<NodeId, u64>,
    events: VecDeque<RootEvent>,
    installs: VecDeque<Install>,
    status: RootStatus,
    /// The frames of this root among the voters; `None` for a root without voters.
    voted: Option<Voted>,
    /// What is to be signed; `None` for a root without a signing key.
    signing: Option<Box<SigningChain>>,
    /// The frame behind the last signature, and the hash of the chain up to it.
    signed: (u64, [u8; CHAIN_BYTES]),
    /// The keys of the run; `None` without node keys.
    rotation: Option<Box<KeyRotation>>,
}

impl Root {
    /// The root of a stream. It lets every node in, unless [`admitting`](Self::admitting) limits
    /// it.
    pub fn new(
        config: Config,
        me: NodeId,
        stream: u32,
        run: RootRun,
        key: Option<&SharedKey>,
        now: Timestamp,
    ) -> Self {
        let seal = Seal::new(key).with_memory(frame_memory(&config.repair));
        Self::sealing(config, (me, stream), run, seal, now)
    }

    fn sealing(
        config: Config,
        (me, stream): (NodeId, u32),
        run: RootRun,
        seal: Seal,
        now: Timestamp,
    ) -> Self {
        // Nodes compare the epoch before the sequence, so every run can count from zero.
        let live_max = config.framing.send_queue_frames;
        let mut out = Outbox::new(me, stream, seal, 0, live_max);
        out.run = (run.epoch, run.id);
        let group = |slot: u32| GroupId(stream << 8 | slot);
        Self {
            config,
            me,
            stream,
            run,
            admission: Admission::new(me, &run),
            out,
            ring: Ring::new(&config.repair, 0),
            repair_queue: RepairQueue::new(&config.repair),
            merger: Merger::default(),
            hold: HoldControl::new(config.deadline),
            watch: Watch::default(),
            members: Members::new(me),
            view: View {
                number: 0,
                depth: 0,
                children: Vec::new(),
                spares: Vec::new(),
                receivers: 0,
                proxies: 0,
                missing: 0,
                overlap: None,
            },
            groups: (group(2), group(3)),
            open: Open::default(),
            next_close: Timestamp::ZERO,
            next_frame: 0,
            next_message: 0,
            last_origin: SyncTime::ZERO,
            last_deadline: SyncTime::ZERO,
            sampling: SampleCredit::new(now),
            timing: SampleCredit::new(now),
            fairness: LiveFairness::default(),
            directory: MemberDirectory::default(),
            sampled_frames: SampledFrames::default(),
            ended: false,
            finished: false,
            beat: 0,
            beacon_at: now,
            sent_since_beacon: false,
            report_at: now,
            last_control: BTreeMap::new(),
            events: VecDeque::new(),
            installs: VecDeque::new(),
            status: RootStatus::default(),
            voted: None,
            signing: None,
            signed: (0, [0; CHAIN_BYTES]),
            rotation: None,
        }
    }

    /// Lets in only the nodes that this list permits.
    pub fn admitting(mut self, guests: GuestList) -> Self {
        self.admission.set_guests(guests);
        self
    }

    /// Takes a message of the feed and returns its number. The message leaves with its frame. A
    /// frame is closed by [`flush`](Self::flush), by a full datagram, or by a message of another
    /// format.
    ///
    /// # Errors
    /// [`PublishError`]; the message was not taken.
    pub fn publish(
        &mut self,
        now: Timestamp,
        format: Format,
        message: &[u8],
    ) -> Result<u64, PublishError> {
        if self.ended {
            return Err(PublishError::Ended);
        }
        let bytes = message.len() + MESSAGE_OVERHEAD;
        if bytes > BODY_BYTES_MAX {
            let max = BODY_BYTES_MAX - MESSAGE_OVERHEAD;
            return Err(PublishError::TooLarge { bytes: message.len(), max });
        }
        let unsent = self.out.live_len() + self.proposed();
        if unsent + 1 >= self.config.framing.send_queue_frames {
            return Err(PublishError::Full);
        }
        let room = self.config.framing.body_bytes(self.out.seal.overhead());
        let fits = self.open.body.len() + bytes <= room && self.open.format == format;
        if self.open.count > 0 && !fits {
            self.close(now);
        }
        self.open.format = format;
        put_message(&mut self.open.body, message);
        self.open.count += 1;
        self.next_message += 1;
        if self.open.count >= self.config.framing.messages_max {
            self.close(now);
        }
        Ok(self.next_message - 1)
    }

    /// Closes the open frame if the last frame left `framing.coalesce` ago. The caller calls this
    /// when nothing else is due.
    pub fn flush(&mut self, now: Timestamp) {
        if self.open.count > 0 && now >= self.next_close {
            self.close(now);
        }
    }

    /// Sends a frame without messages, so that paths are measured before the first message.
    pub fn warm_up(&mut self, now: Timestamp) {
        if self.open.count == 0 && !self.ended {
            self.close(now);
        }
    }

    /// Forgets the measurements of the warm-up. Processes had just started then, and touched every
    /// page for the first time.
    pub fn forget_warm_up(&mut self, now: Timestamp) {
        self.hold.forget(now, Duration::ZERO);
    }

    /// No message follows. The root tells the receivers where the stream ends.
    pub fn finish(&mut self, now: Timestamp) {
        if self.open.count > 0 {
            self.close(now);
        }
        self.sign_waiting(now);
        self.ended = true;
        self.beacon_at = now;
    }

    /// Changes how messages travel. The change takes effect with one of the next frames.
    pub fn set_mode(&mut self, now: Timestamp, mode: Mode) {
        self.config.mode = mode;
        self.members.rebuild(now, &self.config);
    }

    /// The root's knowledge of the run.
    pub fn status(&self) -> RootStatus {
        RootStatus {
            view: self.view.number,
            receivers: self.members.receivers(),
            proxies: self.members.proxies(),
            frames: self.next_frame,
            messages: self.next_message,
            hold_ns: evenfall_core::time::nanos(self.hold.hold()),
            tally: self.merger.tally(),
            replacements: self.watch.counts,
            voters_ns: self.voted.as_ref().map(Voted::took_ns),
            stored: Stored {
                asked: self.repair_queue.longest(),
                queued: self.out.live_len(),
                ..self.ring.size()
            },
            ..self.status.clone()
        }
    }

    /// How even the deliveries are, as far as receivers have reported.
    pub fn fairness(&self) -> &LiveFairness {
        &self.fairness
    }

    /// All members, and the nodes that were members of this run, by id.
    pub fn members(&self, now: Timestamp) -> Vec<MemberStatus> {
        self.directory.list(now, &self.members)
    }

    /// Whether this node has joined and is still a member.
    pub fn has_member(&self, id: NodeId) -> bool {
        self.members.has(id)
    }

    /// The root's own name.
    pub fn id(&self) -> NodeId {
        self.me
    }

    /// The tree of this root.
    pub fn stream(&self) -> u32 {
        self.stream
    }

    /// The first frame that a member must have. Earlier frames do not count as missing. `None` when
    /// the member has no place yet.
    pub fn start_of(&self, member: NodeId) -> Option<u64> {
        self.members.start_of(member)
    }

    /// The tree that is in force or about to come into force.
    pub fn tree(&self) -> Option<&crate::tree::Tree> {
        self.members.tree()
    }

    /// Where a node that joins now begins: with the frame under construction.
    fn start(&self) -> (u64, u64) {
        (self.next_frame, self.next_message - u64::from(self.open.count))
    }

    fn close(&mut self, now: Timestamp) {
        self.next_close = now + self.config.framing.coalesce;
        // The clock may be slewed back by microseconds between two frames.
        let origin = self.out.clock.sync(now).max(self.last_origin);
        self.last_origin = origin;
        let (hold, load) = self.hold.next(now);
        let deadline = self.config.mode.holds().then(|| {
            // Deadlines never decrease, so that a shorter hold cannot let a message overtake
            // another. No frame is held longer than `hold_max`, whatever the last deadline was.
            let latest = origin + self.config.deadline.hold_max;
            self.last_deadline = self.last_deadline.max(origin + hold).min(latest);
            self.last_deadline
        });
        let Open { mut body, count, format } = core::mem::take(&mut self.open);
        let fixed = OriginHeader {
            kind: DatagramKind::Data,
            class: TrafficClass::Live,
            key_id: self.out.seal.key_id(),
            count,
            stream: self.stream,
            epoch: self.run.epoch,
            run_id: self.run.id,
            sequence: self.next_frame,
            first_message: self.next_message - u64::from(count),
            origin,
            deadline,
            format,
        };
        if let Some(signing) = &mut self.signing {
            signing.add(now, &fixed, &body);
        }
        self.dispatch(now, fixed, &body, load);
        // The next frame is built in the same memory.
        body.clear();
        self.open.body = body;
        if self.signing.as_ref().is_some_and(|signing| signing.is_full()) {
            self.sign_waiting(now);
        }
    }

    /// Sends a frame, or asks the voters first.
    fn dispatch(&mut self, now: Timestamp, fixed: OriginHeader, body: &[u8], load: LoadClass) {
        self.next_frame += 1;
        match &mut self.voted {
            Some(voted) => {
                let draft = Draft::new(fixed, Bytes::copy_from_slice(body));
                voted.propose(now, draft, load);
            }
            None => self.send(now, fixed, body, load),
        }
    }

    /// Seals a frame and sends it to the children.
    fn send(&mut self, now: Timestamp, fixed: OriginHeader, body: &[u8], load: LoadClass) {
        let flags =
            if fixed.kind == DatagramKind::Data { self.sample(now, &fixed, load) } else { 0 };
        let frame = self.keep(fixed, flags, body);
        if !self.view.children.is_empty() {
            if flags & SAMPLED != 0 {
                self.merger.sampled(now, frame.fixed.sequence);
            }
            self.out.live(Destination::Group(self.groups.0), self.view.number, frame);
            self.sent_since_beacon = true;
        }
    }

    /// Seals a frame, keeps it for repair and tells the owner.
    fn keep(&mut self, fixed: OriginHeader, flags: u8, body: &[u8]) -> Frame {
        self.note_signature(&fixed, body);
        self.follow_run_keys(&fixed);
        let body = self.out.seal.seal(&fixed, body);
        let frame = Frame { fixed, flags, body };
        self.ring.insert(frame.clone());
        let OriginHeader { sequence, first_message, count, origin, deadline, .. } = fixed;
        let framed = Framed { sequence, first_message, count, origin, deadline };
        self.events.push_back(RootEvent::Framed(framed));
        frame
    }

    /// Decides whether receivers report the arrival of this frame, and its release.
    fn sample(&mut self, now: Timestamp, fixed: &OriginHeader, load: LoadClass) -> u8 {
        let per_second = self.config.deadline.samples_per_second.max(1);
        if !self.sampling.choose(now, per_second) {
            return 0;
        }
        let hold = fixed.deadline.map(|deadline| saturating_ns(deadline.since(fixed.origin)));
        let sampled = SampledFrame { hold_ns: hold, messages: fixed.count, load, was_late: None };
        self.sampled_frames.push_frame(fixed.sequence, sampled);
        // Releases of the rehearsal concern nobody.
        let is_timed = fixed.count > 0 && self.timing.choose(now, TIMED_PER_SECOND);
        if is_timed { SAMPLED | TIMED } else { SAMPLED }
    }

    fn open_datagram(&mut self, arrival: &Arrival) -> Result<Option<Datagram>, Malformed> {
        let datagram =
            wire::parse(&arrival.datagram).inspect_err(|_| self.status.refusals.malformed += 1)?;
        self.authenticate(&datagram).inspect_err(|_| self.status.refusals.forged += 1)?;
        self.check_standing(&datagram, arrival.from)?;
        // Only a member has an entry, which is made when it joins. Only datagrams from the member's
        // own address move the entry on. Strangers can neither grow the table nor spoil it.
        let OriginHeader { kind, sequence, .. } = datagram.fixed;
        let from = datagram.hop.from;
        if kind != DatagramKind::Join
            && self.members.is(from, arrival.from)
            && let Some(next) = self.last_control.get_mut(&from)
        {
            if sequence < *next {
                self.status.refusals.replayed += 1;
                return Ok(None);
            }
            *next = sequence + 1;
        }
        Ok(Some(datagram))
    }

    fn authenticate(&self, datagram: &Datagram) -> Result<(), Malformed> {
        if datagram.fixed.stream != self.stream {
            return Err(Malformed { what: "another stream", offset: wire::STREAM_OFFSET });
        }
        self.out.seal.verify(datagram)
    }

    /// Checks that an authentic datagram is of this run, and of a member at its own address. Counts
    /// the datagrams that it refuses.
    fn check_standing(&mut self, datagram: &Datagram, from: SocketAddr) -> Result<(), Malformed> {
        let (fixed, id) = (&datagram.fixed, datagram.hop.from);
        if matches!(fixed.kind, DatagramKind::Join | DatagramKind::Suspect | DatagramKind::Leave) {
            return Ok(());
        }
        if !self.is_of_this_run(fixed) {
            self.status.refusals.unplaced += 1;
            return Err(Malformed { what: "another run of the root", offset: EPOCH_OFFSET });
        }
        if !self.members.is(id, from) {
            // Somebody else sent a member's datagram from another address. A node that was removed
            // a moment ago forges nothing.
            let is_forged = self.members.has(id);
            self.status.refusals.forged += u64::from(is_forged);
            self.status.refusals.unplaced += u64::from(!is_forged);
            return Err(Malformed { what: "sender is not a member", offset: SENDER_OFFSET });
        }
        Ok(())
    }

    fn is_of_this_run(&self, fixed: &OriginHeader) -> bool {
        (fixed.epoch, fixed.run_id) == (self.run.epoch, self.run.id)
    }

    fn on_join(
        &mut self,
        now: Timestamp,
        datagram: &Datagram,
        from: SocketAddr,
    ) -> Result<(), Malformed> {
        let join = Join::decode(&datagram.body)?;
        let id = datagram.hop.from;
        let permitted = self.admission.permit(id, from, &join);
        permitted.inspect_err(|_| self.status.refusals.forged += 1)?;
        if !self.admission.is_answered(now, from, id, &join) {
            let cookie = self.admission.cookie(now, from, id, &join);
            let body = encode_pair(join.incarnation, cookie);
            self.out.control_to(Peer { id, addr: from }, DatagramKind::Challenge, body);
            return Ok(());
        }
        let joined = self.members.join(now, (id, from), join, &self.config);
        // The old life of the node is removed first, so that no datagram of the new life counts for
        // the old one.
        self.act(now);
        if joined == Joined::New {
            self.last_control.insert(id, datagram.fixed.sequence + 1);
            self.directory.note_join(id, join.role);
            self.events.push_back(RootEvent::Joined(id, join.role, join.incarnation));
        }
        Ok(())
    }

    fn on_suspect(
        &mut self,
        now: Timestamp,
        datagram: &Datagram,
        from: SocketAddr,
    ) -> Result<(), Malformed> {
        let (suspect, reason) = decode_verdict(&datagram.body)?;
        let by = datagram.hop.from;
        // A place of the last run, sent before its root died, may have arrived after the join.
        let is_here = self.is_of_this_run(&datagram.fixed);
        if is_here && self.members.is(by, from) {
            self.merger.heard(now, by);
            self.members.suspect(now, by, suspect, reason, &self.config);
        } else {
            // The node was taken out while it was away, or is in another run, and does not know.
            let body = encode_verdict(by, DepartureReason::Silent);
            self.out.control_to(Peer { id: by, addr: from }, DatagramKind::Evict, body);
        }
        Ok(())
    }

    /// A node repeats its good-bye until it is answered, so the root also answers nodes that are
    /// already out.
    fn on_leave(&mut self, now: Timestamp, datagram: &Datagram, from: SocketAddr) {
        let id = datagram.hop.from;
        if self.members.is(id, from) {
            self.members.remove(now, id, DepartureReason::Left, &self.config);
        } else {
            let body = encode_verdict(id, DepartureReason::Left);
            self.out.control_to(Peer { id, addr: from }, DatagramKind::Evict, body);
        }
    }

    fn on_report(&mut self, now: Timestamp, datagram: &Datagram) -> Result<(), Malformed> {
        let report = Report::decode(&datagram.body)?;
        if !self.merger.absorb(now, datagram.hop.from, &report) {
            self.status.refusals.unplaced += 1;
            return Ok(());
        }
        self.check_finished();
        Ok(())
    }

    fn check_finished(&mut self) {
        let tally = self.merger.tally();
        let finished = tally.finished == tally.receivers;
        // The sum exceeds the number of receivers: both the old and the new parent counted a
        // receiver that moved.
        let all = match self.members.receivers() {
            0 => self.members.is_deserted(),
            receivers => finished && tally.receivers as usize == receivers,
        };
        let all = all && self.proposed() == 0;
        if self.ended && all && !core::mem::replace(&mut self.finished, true) {
            self.events.push_back(RootEvent::Finished(tally));
        }
    }

    fn on_nack(
        &mut self,
        now: Timestamp,
        datagram: &Datagram,
        from: SocketAddr,
    ) -> Result<(), Malformed> {
        let ranges = decode_ranges(&datagram.body)?;
        let asker = (datagram.hop.from, from);
        self.merger.heard(now, asker.0);
        if self.repair_queue.ask(now, asker, &ranges, &self.ring, &self.config.repair) {
            self.repair_queue.forget(asker.0);
            self.members.suspect(now, self.me, asker.0, DepartureReason::TooSlow, &self.config);
        }
        Ok(())
    }

    fn beacon(&mut self, now: Timestamp) {
        self.beacon_at = now + self.config.membership.beacon_interval;
        self.beat += 1;
        // Nodes must not ask for a frame that the voters may still refuse.
        let next = self.next_frame - self.proposed() as u64;
        let end =
            (self.ended && next == self.next_frame).then_some((self.next_frame, self.next_message));
        let body = Beacon { next, root_beat: self.beat, end }.encode();
        for spare in &self.view.spares {
            self.out.control_to(*spare, DatagramKind::Beacon, body.clone());
        }
        // A frame that was just sent tells the children all that a beacon tells, except the end of
        // the stream.
        if !core::mem::take(&mut self.sent_since_beacon) || self.ended {
            let children = self.view.children.iter();
            self.out.control_to_group(self.groups.0, children, DatagramKind::Beacon, body);
        }
    }

    fn act(&mut self, now: Timestamp) {
        for action in self.members.take_actions() {
            match action {
                Action::Assign(to, place) => {
                    self.assign(to, &place);
                }
                Action::Probe(to) => {
                    let body = Bytes::copy_from_slice(&now.nanos().to_le_bytes());
                    self.out.control_to(to, DatagramKind::Probe, body);
                }
                Action::Removed(peer, reason) => self.removed(peer, reason),
                Action::View(view) => self.enter(now, *view),
            }
        }
    }

    /// Sends a node its place, with the keys for the nodes above it.
    fn assign(&mut self, to: Peer, place: &TreePosition) {
        let seal = &self.out.seal;
        let bytes_max = self.config.framing.body_bytes(seal.place_overhead());
        let parts = match &seal.ends {
            Some(ends) => {
                let (above, run) = (|upper| ends.key_of_nodes(upper, to.id), seal.run_keys());
                split(place, bytes_max, Some(PlaceKeys { above: &above, run: &run }))
            }
            None => split(place, bytes_max, None),
        };
        parts.into_iter().for_each(|part| self.out.control_to(to, DatagramKind::Assign, part));
    }

    fn removed(&mut self, peer: Peer, reason: DepartureReason) {
        self.repair_queue.forget(peer.id);
        self.last_control.remove(&peer.id);
        self.directory.note_removal(peer.id, reason);
        if reason != DepartureReason::Restarted {
            self.out.control_to(peer, DatagramKind::Evict, encode_verdict(peer.id, reason));
        }
        self.events.push_back(RootEvent::Removed(peer.id, reason));
    }

    fn enter(&mut self, now: Timestamp, view: View) {
        self.groups = (self.groups.1, self.groups.0);
        let members: Arc<[_]> = view.children.iter().map(|p| p.addr).collect();
        self.installs.push_back(Install::Group(self.groups.0, members));
        let children = view.children.iter().map(|p| p.id);
        self.merger.expect(now, children, view.spares.iter().map(|p| p.id));
        self.beacon_at = now;
        if let Some(pair) = view.overlap {
            self.watch.feeding(now, pair, self.next_frame);
        }
        self.view = view.clone();
        self.events.push_back(RootEvent::View(view));
    }
}

impl Machine for Root {
    type Event = RootEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        if self.is_waiting() {
            return Ok(());
        }
        let Some(datagram) = self.open_datagram(&arrival)? else { return Ok(()) };
        match datagram.fixed.kind {
            DatagramKind::Join => self.on_join(now, &datagram, arrival.from)?,
            DatagramKind::Assigned => {
                let mut r = Reader::new(&datagram.body);
                let view = r.u32()?;
                let has_keys = self.rotation.is_none() || r.u8()? == self.out.seal.newest_key_id();
                r.finish()?;
                if has_keys {
                    self.members.acknowledged(datagram.hop.from, view);
                }
                self.members.handle_timeout(now, &self.config, self.start());
            }
            DatagramKind::Report => self.on_report(now, &datagram)?,
            DatagramKind::Nack => self.on_nack(now, &datagram, arrival.from)?,
            DatagramKind::Suspect => self.on_suspect(now, &datagram, arrival.from)?,
            DatagramKind::Alive => {
                let (_, incarnation) = decode_pair(&datagram.body)?;
                self.members.alive(now, datagram.hop.from, incarnation, &self.config);
            }
            DatagramKind::Leave => self.on_leave(now, &datagram, arrival.from),
            DatagramKind::Data
            | DatagramKind::Signature
            | DatagramKind::Beacon
            | DatagramKind::Assign
            | DatagramKind::Probe
            | DatagramKind::Evict
            | DatagramKind::Locate
            | DatagramKind::Located
            | DatagramKind::Challenge => {
                self.status.refusals.forged += 1;
                return Err(Malformed { what: "a kind that no root is sent", offset: 3 });
            }
        }
        self.act(now);
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if self.is_waiting() {
            return;
        }
        self.members.handle_timeout(now, &self.config, self.start());
        self.turn_run_keys(now);
        self.flush(now);
        if self.signature_due().is_some_and(|at| at <= now) {
            self.sign_waiting(now);
        }
        self.repair_queue.handle_timeout(now);
        if self.report_at <= now {
            self.report_at = now + self.config.membership.report_interval;
            self.digest(now);
        }
        if self.beacon_at <= now {
            self.beacon(now);
        }
        self.act(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        // Deadlines rest on this clock from the first frame on.
        self.out.clock.follow(now, reading, self.next_frame == 0);
    }

    fn clock(&self) -> Option<Clock> {
        Some(self.out.clock)
    }

    fn poll_event(&mut self) -> Option<RootEvent> {
        self.events.pop_front()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.installs.pop_front()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        if let Some(transmit) = self.out.next(now) {
            return Some(transmit);
        }
        let (to, frame) = self.repair_queue.next(now, &self.ring)?;
        self.status.repairs_sent += 1;
        Some(self.out.repair(now, to, &frame))
    }

    fn poll_urgent(&mut self, now: Timestamp) -> Option<Transmit> {
        self.out.next(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        if self.is_waiting() {
            return None;
        }
        let close = (self.open.count > 0).then_some(self.next_close);
        let members = self.members.poll_timeout();
        let signature = self.signature_due();
        let timers = [Some(self.report_at), Some(self.beacon_at), close, members, signature];
        let more = [self.repair_queue.poll_timeout(), self.rotation_due()];
        timers.into_iter().chain(more).flatten().min()
    }
}
