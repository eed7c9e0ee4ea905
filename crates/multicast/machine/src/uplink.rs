//! The way up, which proxies and receivers share: joining, the place in the tree, missing frames
//! and the nodes to ask for them, and signs of life of the parent and the root.

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use evenfall_core::{
    Arrival, Clock, ClockReading, Malformed, NodeId, Prng, Reader, Timestamp, TrafficClass,
};

use crate::clock_soundness::{self, ClockSoundness};
use crate::config::Config;
use crate::control::{
    Beacon, Begin, DepartureReason, Join, Located, Peer, RANGE_BYTES, RANGES_MAX, Role,
    TreePosition, decode_pair, decode_verdict, encode_pair, encode_ranges, encode_verdict,
};
use crate::merge::Edges;
use crate::outbox::Outbox;
use crate::parts::{Assembly, AssignedPlace};
use crate::seal::{RunKey, Seal, SharedKey};
use crate::window::{Answer, Gaps, Seen, Window};
use crate::wire::{self, Datagram, DatagramKind, EPOCH_OFFSET, NUMBER_MAX, OriginHeader};

mod locate;
mod roots;

use self::locate::Locating;

/// The identity of a node, and the address of the root.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its name.
    pub id: NodeId,
    /// The tree that the node joins.
    pub stream: u32,
    /// Address of the root of that tree.
    pub root: SocketAddr,
    /// Addresses of the roots that may take over from the root.
    pub standbys: Vec<SocketAddr>,
    /// A number that grows at every start of the node, such as the time of the start.
    pub incarnation: u64,
}

/// News of the way up for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The node has its first place, or a new place.
    Placed(TreePosition),
    /// The root started a new run, and this is the node's place in it. Frames below `known` of the
    /// old run existed.
    Restarted { place: TreePosition, epoch: u32, known: u64 },
    /// The root took the node out. The node joins again unless it was too slow.
    Evicted(DepartureReason),
    /// The root has been silent for the stated time.
    RootLost,
    /// The end of the stream is known.
    Ended,
    /// A recorder named the frame to begin with, or no recorder did in time.
    Located(Option<(u64, u64)>),
}

/// Nodes whose control numbers are remembered. Neighbours are few, but all nodes may ask a
/// recorder.
const SENDERS_MAX: usize = 65_536;

/// Counters of refused datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Refusals {
    /// Datagrams that did not parse.
    pub malformed: u64,
    /// Datagrams that failed authentication or came from a wrong address.
    pub forged: u64,
    /// Control datagrams that repeat an older datagram.
    pub replayed: u64,
    /// Authentic datagrams that no place allows: at a root those of another run and of nodes that
    /// are no members, at a root and a proxy the reports of nodes that are no longer its children.
    /// Some come after every change of the tree.
    pub unplaced: u64,
}

pub(crate) struct Uplink {
    /// When the earliest timer was due at the last look. Signs of life put timers off without
    /// changing this time, because an occasional needless look is cheaper than a look per packet.
    due: Timestamp,
    pub window: Option<Window>,
    /// The judgement of this node's clock by the delays of the feed.
    pub soundness: ClockSoundness,
    pub gaps: Gaps,
    /// The frame after the highest frame that is known to exist, even when that frame lies beyond
    /// the window.
    heard: u64,
    /// Frames and messages of the whole stream, once the root has ended the stream.
    pub end: Option<(u64, u64)>,
    parent_heard: Timestamp,
    root_heard: Timestamp,
    /// When the next report goes. A report without news is still a heartbeat.
    report_at: Timestamp,
    /// When the next request to join, or to leave, goes to the root.
    join_at: Option<Timestamp>,
    root_id: Option<NodeId>,
    /// The latest epoch of this run that any node has named.
    newest_epoch: u32,
    /// Epoch and run id of the root, once this node has a place.
    run: Option<(u32, u64)>,
    pub role: Role,
    leaving: bool,
    root_lost: bool,
    recorders_fail: bool,
    locating: Option<Box<Locating>>,
    /// The recorders. `recorders_fail` is true when the recorders were asked in vain.
    recorders: Vec<Peer>,
    pub edges: Edges,
    pub repaired: u64,
    /// Machines of one process can share their settings.
    pub config: Arc<Config>,
    /// The root that sent the present order.
    ordered_by: SocketAddr,
    pub place: Option<TreePosition>,
    pub out: Outbox,
    pub who: Identity,
    pub previous: Option<TreePosition>,
    /// The parts of a place that have arrived.
    assembly: Assembly,
    pub root_beat: u64,
    pub refusals: Refusals,
    /// Frames that had not arrived when they were given up.
    pub given_up: u64,
    /// Whether other keys of the run are in use than at the last look.
    pub has_turned: bool,
    /// Where this node wants to begin.
    pub begin: Begin,
    /// Run and frame with which this node resumes.
    pub resume: Option<(u32, u64)>,
    /// The cookie of the root's last challenge.
    cookie: u64,
    rejoins: u64,
    /// The epoch and the control sequence that each sender may use next, so that a recorded
    /// datagram cannot be replayed. A root counts from zero in every epoch.
    last_control: BTreeMap<NodeId, (u32, u64)>,
    /// Random delays, so that nodes which miss the same frame ask for it at different times.
    jitter: Prng,
}

impl Uplink {
    pub(crate) fn new(
        config: Arc<Config>,
        who: Identity,
        role: Role,
        key: Option<&SharedKey>,
        now: Timestamp,
    ) -> Self {
        let seal = Seal::new(key);
        let live_max = config.framing.send_queue_frames;
        // The reports of different nodes are spread over the interval.
        let interval = config.membership.report_interval;
        let phase = interval * (who.id.0 % 16) / 16;
        let jitter = Prng::new(who.incarnation).fork(u64::from(who.id.0));
        Self {
            out: Outbox::new(who.id, who.stream, seal, who.incarnation.min(NUMBER_MAX), live_max),
            ordered_by: who.root,
            config,
            who,
            role,
            place: None,
            previous: None,
            assembly: Assembly::default(),
            window: None,
            gaps: Gaps::default(),
            edges: Edges::default(),
            soundness: ClockSoundness::default(),
            end: None,
            root_beat: 0,
            refusals: Refusals::default(),
            repaired: 0,
            given_up: 0,
            has_turned: false,
            begin: Begin::Live,
            locating: None,
            resume: None,
            heard: 0,
            recorders: Vec::new(),
            recorders_fail: false,
            run: None,
            newest_epoch: 0,
            root_id: None,
            parent_heard: now,
            root_heard: now,
            join_at: Some(now),
            cookie: 0,
            rejoins: 0,
            leaving: false,
            root_lost: false,
            last_control: BTreeMap::new(),
            report_at: now + phase,
            jitter,
            due: now,
        }
    }

    /// The run that the node is in, once it has a place.
    pub(crate) fn epoch(&self) -> Option<u32> {
        self.run.map(|(epoch, _)| epoch)
    }

    /// The number of this node's life. It grows whenever the root has taken the node out.
    fn incarnation(&self) -> u64 {
        self.who.incarnation.saturating_add(self.rejoins).min(NUMBER_MAX)
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.out.clock
    }

    /// Parses and authenticates a datagram. `Ok(None)` means a genuine datagram that is ignored.
    pub(crate) fn open(
        &mut self,
        now: Timestamp,
        arrival: &Arrival,
    ) -> Result<Option<Datagram>, Malformed> {
        let datagram =
            wire::parse(&arrival.datagram).inspect_err(|_| self.refusals.malformed += 1)?;
        if let Err(error) = self.authenticate(&datagram, arrival.from) {
            self.refusals.forged += 1;
            return Err(error);
        }
        self.check_business(&datagram, arrival.from)?;
        let from = datagram.hop.from;
        if datagram.fixed.kind.is_frame() {
            self.has_turned |= self.out.seal.turn_to(datagram.fixed.key_id);
        }
        if datagram.fixed.class == TrafficClass::Control {
            if self.last_control.len() >= SENDERS_MAX && !self.last_control.contains_key(&from) {
                let what = "more senders than a node remembers";
                return Err(Malformed { what, offset: wire::SENDER_OFFSET });
            }
            let OriginHeader { epoch, sequence, .. } = datagram.fixed;
            let next = self.last_control.entry(from).or_default();
            if (epoch, sequence) < *next {
                self.refusals.replayed += 1;
                return Ok(None);
            }
            *next = (epoch, sequence + 1);
        }
        if self.place.as_ref().and_then(TreePosition::parent).is_some_and(|p| p.id == from) {
            self.parent_heard = now;
        }
        self.ordered_by = arrival.from;
        if self.run.is_some_and(|(_, id)| id == datagram.fixed.run_id) {
            self.newest_epoch = self.newest_epoch.max(datagram.fixed.epoch);
        }
        Ok(Some(datagram))
    }

    fn authenticate(&self, datagram: &Datagram, from: SocketAddr) -> Result<(), Malformed> {
        use DatagramKind::{Assign, Challenge, Evict, Probe};
        let fixed = &datagram.fixed;
        if fixed.stream != self.out.stream {
            return Err(Malformed { what: "another stream", offset: wire::STREAM_OFFSET });
        }
        self.out.seal.verify(datagram)?;
        let run = (fixed.epoch, fixed.run_id);
        if matches!(fixed.kind, Assign | Evict | Probe | Challenge) {
            return self.authenticate_order(datagram.hop.from, from, run);
        }
        // A successor goes on with the run in a later epoch.
        if self.run.is_some_and(|mine| mine.1 != run.1) {
            return Err(Malformed { what: "another run of the root", offset: EPOCH_OFFSET });
        }
        Ok(())
    }

    /// Handles the datagrams that proxies and receivers treat alike.
    pub(crate) fn on_control(
        &mut self,
        now: Timestamp,
        datagram: &Datagram,
    ) -> Result<Option<News>, Malformed> {
        let news = self.obey(now, datagram);
        self.rearm();
        news
    }

    fn obey(&mut self, now: Timestamp, datagram: &Datagram) -> Result<Option<News>, Malformed> {
        match datagram.fixed.kind {
            DatagramKind::Assign => self.on_assign(now, datagram),
            DatagramKind::Beacon => self.on_beacon(now, datagram),
            DatagramKind::Located => {
                let located = Located::decode(&datagram.body)?;
                Ok(self.on_located(datagram.hop.from, located))
            }
            DatagramKind::Probe if self.leaving => {
                self.say_good_bye();
                Ok(None)
            }
            DatagramKind::Probe => {
                let probe = Reader::new(&datagram.body).u64()?;
                let body = encode_pair(probe, self.incarnation());
                self.out.control_to_root(self.who.root, DatagramKind::Alive, body);
                Ok(None)
            }
            DatagramKind::Challenge => {
                let (incarnation, cookie) = decode_pair(&datagram.body)?;
                let waits = self.join_at.is_some() && !self.leaving;
                if waits && incarnation == self.incarnation() && self.cookie != cookie {
                    self.cookie = cookie;
                    self.join_at = Some(now);
                }
                Ok(None)
            }
            DatagramKind::Evict => {
                let (node, reason) = decode_verdict(&datagram.body)?;
                if node != self.who.id {
                    return Ok(None);
                }
                if self.leaving {
                    return Ok(self.join_at.take().map(|_| News::Evicted(DepartureReason::Left)));
                }
                if self.place.is_none() {
                    return Ok(None);
                }
                self.place = None;
                self.previous = None;
                if reason != DepartureReason::TooSlow {
                    // The node begins a new life under the old name, and the root forgets the old
                    // life.
                    self.rejoins += 1;
                    self.join_at = Some(now);
                }
                Ok(Some(News::Evicted(reason)))
            }
            _ => Ok(None),
        }
    }

    fn on_assign(
        &mut self,
        now: Timestamp,
        datagram: &Datagram,
    ) -> Result<Option<News>, Malformed> {
        let (epoch, ends) = (datagram.fixed.epoch, self.out.seal.ends.as_ref());
        let part = match ends {
            Some(ends) => {
                let body = ends.open_place(datagram.hop.from, &datagram.fixed, &datagram.body)?;
                self.assembly.take(epoch, &body, true)?
            }
            None => self.assembly.take(epoch, &datagram.body, false)?,
        };
        let Some(AssignedPlace { mut place, given, run_keys }) = part else { return Ok(None) };
        if place.sources.is_empty() {
            // The parent is the root that gave the order, which may be a successor.
            place.sources.push(Peer { id: datagram.hop.from, addr: self.ordered_by });
        }
        let OriginHeader { epoch, run_id, .. } = datagram.fixed;
        if self.leaving || self.epoch().is_some_and(|old| epoch < old) {
            return Ok(None);
        }
        let mut restarted = None;
        if self.run.is_some_and(|mine| mine.1 == run_id && mine.0 < epoch) {
            self.follow_successor((epoch, run_id), &mut place);
        } else if self.epoch() != Some(epoch) {
            // The root started a new run, in which no frame of the old stream continues.
            restarted = self.run.and(self.window.as_ref()).map(Window::next);
            self.run = Some((epoch, run_id));
            self.out.run = (epoch, run_id);
            (self.place, self.previous, self.window) = (None, None, None);
            self.gaps = Gaps::default();
            self.end = None;
            self.heard = 0;
            // The node was there when the last run ended, so it begins with the live feed of the
            // next run.
            self.begin = if restarted.is_some() { Begin::Live } else { self.begin };
            self.locating = None;
            // The new root counts its beats from one again.
            self.root_beat = 0;
        }
        self.obey_root(datagram.hop.from);
        self.root_heard = now;
        self.acknowledge(&place, &run_keys);
        if self.place.as_ref().is_some_and(|old| old.view >= place.view) {
            return Ok(None);
        }
        if let Some(ends) = &mut self.out.seal.ends {
            ends.take_given(given);
        }
        self.out.level = place.level;
        self.join_at = None;
        self.parent_heard = now;
        if self.recorders != place.recorders {
            self.recorders.clone_from(&place.recorders);
            self.recorders_fail = false;
        }
        if self.begin != Begin::Live && self.window.is_none() {
            self.begin_to_locate(now);
        } else {
            let kept = self.resume.filter(|(run, _)| *run == epoch);
            self.start_at(kept.map_or(place.start, |(_, frame)| frame));
        }
        if let Some(old) = self.place.replace(place.clone()) {
            self.previous = Some(old);
        }
        Ok(Some(match restarted {
            Some(known) => {
                // The new root may have another clock.
                self.soundness.forget_delays();
                News::Restarted { place, epoch, known }
            }
            None => News::Placed(place),
        }))
    }

    /// Takes the keys of the run that came with a place, and acknowledges both.
    fn acknowledge(&mut self, place: &TreePosition, run_keys: &[RunKey]) {
        let mut body = place.view.to_le_bytes().to_vec();
        if !run_keys.is_empty() {
            self.out.seal.take_run_keys(run_keys);
            self.has_turned = true;
            body.push(self.out.seal.newest_key_id());
        }
        self.out.control_to_root(self.who.root, DatagramKind::Assigned, body.into());
    }

    /// This node must have all frames from this one on.
    pub(crate) fn start_at(&mut self, frame: u64) {
        let frames = self.config.repair.window_frames;
        self.window.get_or_insert_with(|| Window::new(frames, frame));
    }

    /// Whether to wait for recorders instead of giving up frames that have left the window. A proxy
    /// never waits: the nodes below want the newest frames, and ask for the older frames
    /// themselves.
    fn is_patient(&self) -> bool {
        self.role.receives() && !self.recorders.is_empty() && !self.recorders_fail
    }

    fn on_beacon(
        &mut self,
        now: Timestamp,
        datagram: &Datagram,
    ) -> Result<Option<News>, Malformed> {
        let beacon = Beacon::decode(&datagram.body)?;
        // Beats of another epoch are of another root.
        let is_of_root = self.epoch() == Some(datagram.fixed.epoch);
        if is_of_root && beacon.root_beat > self.root_beat {
            self.root_beat = beacon.root_beat;
            self.root_heard = now;
        }
        self.hear_of(now, beacon.next);
        let news = self.end.is_none() && beacon.end.is_some();
        self.end = self.end.or(beacon.end);
        Ok(news.then_some(News::Ended))
    }

    /// Whether the node is a proxy without a place. No node below a spare can miss a frame.
    fn is_spare(&self) -> bool {
        let idle = |place: &TreePosition| place.children.is_empty() && place.nieces.is_empty();
        self.role == Role::Proxy && self.place.as_ref().is_some_and(idle)
    }

    /// Frames below `next` exist. The frames among them that were not heard of before are missing.
    pub(crate) fn hear_of(&mut self, now: Timestamp, next: u64) {
        self.heard = self.heard.max(next);
        if self.is_spare() {
            // A spare follows the end of the stream but gets no frames, so that it can begin there
            // when it gets a place. Frames for a spare would cost the root as much as a child.
            if self.window.as_ref().is_some_and(|w| w.next() < next) {
                self.root_heard = now;
                self.skip(next);
            }
            return;
        }
        if let Some(gap) = self.window.as_mut().and_then(|w| w.hear_of(next)) {
            // Only the root makes new frames, so the root lives.
            self.root_heard = now;
            if !self.is_patient() || !self.gaps.extend(gap) {
                self.open_gap(now, gap);
            }
        }
    }

    /// The frame after the highest frame that is known to exist.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.max(self.window.as_ref().map_or(0, Window::next))
    }

    /// Moves the window so that it reaches this frame, and gives up the missing frames that fall
    /// out. `false` when recorders may still have these frames. The new frame is then asked for in
    /// its turn.
    pub(crate) fn reach(&mut self, sequence: u64) -> bool {
        let Some(window) = &self.window else { return true };
        if sequence >= window.base() + window.capacity() {
            if self.is_patient() {
                return false;
            }
            let limit = sequence + 1 - window.capacity();
            self.give_up(limit);
        }
        true
    }

    /// The window has moved on, so frames that were beyond it may now be within it.
    pub(crate) fn catch_up(&mut self, now: Timestamp) {
        let Some(window) = &mut self.window else { return };
        if self.heard <= window.next() {
            return;
        }
        let Some(gap) = window.hear_of(self.heard) else { return };
        if !self.gaps.extend(gap) {
            self.open_gap(now, gap);
        }
    }

    fn open_gap(&mut self, now: Timestamp, gap: (u64, u64)) {
        // Siblings miss the same frames at the same time. The first request brings the parent a
        // copy, or makes the parent ask for one, before most of the other requests are due.
        let reorder_delay = self.config.repair.reorder_delay;
        let delay = reorder_delay + reorder_delay.mul_f64(self.jitter.unit());
        if let Some(limit) = self.gaps.open(now, gap, delay) {
            self.give_up(limit);
        }
        self.rearm();
    }

    /// A data frame arrived. Returns whether it is the first copy. The result is never `Beyond`,
    /// since giving up missing frames makes room in the window.
    pub(crate) fn on_data(
        &mut self,
        now: Timestamp,
        datagram: &Datagram,
        received: Timestamp,
    ) -> Seen {
        if datagram.fixed.class == TrafficClass::Live {
            self.time(now, datagram, received);
        }
        let sequence = datagram.fixed.sequence;
        if !self.reach(sequence) {
            self.hear_of(now, sequence + 1);
            return Seen::Beyond;
        }
        let Some(window) = &mut self.window else { return Seen::Duplicate };
        let highest = sequence >= window.next();
        let (seen, gap) = window.insert(sequence);
        if seen != Seen::First {
            return seen;
        }
        if highest {
            // Only the root makes new frames, so the root lives.
            self.root_heard = now;
        } else if !self.gaps.is_empty() {
            let from = datagram.hop.from;
            let repair = datagram.fixed.class == TrafficClass::Repair;
            let answer = if repair { self.answer(from) } else { None };
            if self.gaps.fill(now, sequence, answer) {
                self.repaired += u64::from(repair);
            }
            if repair {
                self.recorders_fail &= self.recorders.iter().all(|recorder| recorder.id != from);
                self.rearm();
            }
        }
        if let Some(gap) = gap {
            self.open_gap(now, gap);
        }
        self.catch_up(now);
        seen
    }

    /// Times the edge over which a live frame came. An edge between clocks of which one is wrong is
    /// left out, because its time would accuse a proxy that is not slow. A sender whose clock is
    /// disproved says that it sent at time zero, which is before any frame's origin.
    fn time(&mut self, now: Timestamp, datagram: &Datagram, received: Timestamp) {
        let (origin, sent) = (datagram.fixed.origin, datagram.hop.sent);
        let arrived = self.clock().sync(received);
        self.soundness.note_delay(now, origin, arrived);
        let is_possible =
            origin <= sent + clock_soundness::SLACK && sent <= arrived + clock_soundness::SLACK;
        if is_possible && self.soundness.is_sound() {
            self.edges.arrived(datagram.hop.from, arrived.since(sent));
        }
    }

    /// Takes a reading of the synchronised clock. Until the feed vouches for the clock, the clock
    /// may step. The first good reading of a clock that was disproved may step the clock too.
    pub(crate) fn follow(&mut self, now: Timestamp, reading: ClockReading) {
        let may_step = self.soundness.may_step();
        self.soundness.note_error(reading.error);
        let before = self.clock().reading().offset_ns;
        self.out.clock.follow(now, reading, may_step);
        let moved = self.clock().reading().offset_ns.abs_diff(before);
        if may_step && moved > evenfall_core::time::nanos(clock_soundness::SLACK) {
            self.soundness.forget_delays();
        }
    }

    /// Gives up all missing frames below this frame.
    pub(crate) fn give_up(&mut self, sequence: u64) {
        self.given_up += self.skip(sequence);
    }

    /// Skips to a frame. Returns how many earlier frames had not arrived.
    fn skip(&mut self, sequence: u64) -> u64 {
        let missing = self.window.as_mut().map_or(0, |window| window.give_up(sequence));
        self.gaps.give_up(sequence);
        self.rearm();
        missing
    }

    /// Gives up gaps that no node could repair in time, and stops waiting for recorders until a
    /// recorder answers.
    pub(crate) fn give_up_overdue(&mut self, now: Timestamp, limit: u64) {
        self.give_up(limit);
        self.recorders_fail = true;
        self.catch_up(now);
    }

    /// The frame after the oldest gaps, when these have waited long enough without progress.
    pub(crate) fn overdue(&self, now: Timestamp) -> Option<u64> {
        self.gaps.stale(now - self.config.repair.gap_timeout)
    }

    /// The parent, to which reports and first requests for repair go.
    pub(crate) fn parent(&self) -> Option<Peer> {
        self.place.as_ref().and_then(TreePosition::parent).copied()
    }

    pub(crate) fn handle_timeout(&mut self, now: Timestamp) -> Option<News> {
        let news = self.run_timers(now);
        self.rearm();
        news
    }

    fn run_timers(&mut self, now: Timestamp) -> Option<News> {
        let m = self.config.membership;
        if self.join_at.is_none() && self.seeks_root(now) {
            self.join_at = Some(now);
        }
        if self.place.is_some() && !self.seeks_root(now) {
            self.join_at = None;
        }
        if self.join_at.is_some_and(|at| at <= now) {
            self.join_at = Some(now + m.join_retry);
            if self.leaving {
                self.say_good_bye();
                return None;
            }
            let (incarnation, cookie) = (self.incarnation(), self.cookie);
            let join = Join { role: self.role, incarnation, cookie };
            self.tell_roots(DatagramKind::Join, &join.encode());
        }
        if self.gaps.next_ask().is_some_and(|at| at <= now) {
            self.ask(now);
        }
        if self.place.is_some() && now.since(self.parent_heard) >= m.silence {
            self.parent_heard = now;
            if let Some(parent) = self.place.as_ref().and_then(TreePosition::parent) {
                let body = encode_verdict(parent.id, DepartureReason::Silent);
                self.out.control_to_root(self.who.root, DatagramKind::Suspect, body);
            }
        }
        if let Some(news) = self.locate(now) {
            return Some(news);
        }
        if self.awaits_root() && now.since(self.root_heard) >= m.root_timeout {
            self.root_lost = true;
            return Some(News::RootLost);
        }
        None
    }

    /// Whether the root's silence means that the root is lost. A root that was never heard may not
    /// have been started yet, so the node asks it for as long as it takes.
    fn awaits_root(&self) -> bool {
        self.root_id.is_some() && !self.root_lost && !self.leaving
    }

    /// The nodes to ask for missing frames, in this order: parent, aunts, the root, recorders.
    fn targets(&self) -> Vec<Peer> {
        let mut targets: Vec<Peer> = self.place.iter().flat_map(|p| &p.sources).copied().collect();
        if targets.iter().all(|target| target.addr != self.who.root) {
            // A node with a place knows the name of its root.
            let id = self.root_id.unwrap_or_default();
            targets.push(Peer { id, addr: self.who.root });
        }
        targets.extend(&self.recorders);
        targets
    }

    /// The next step after a repair copy from this node.
    fn answer(&self, from: NodeId) -> Option<Answer> {
        let listed = |peers: &[Peer]| peers.iter().find(|p| p.id == from).map(|p| p.addr);
        let addr = if self.root_id == Some(from) {
            Some(self.who.root)
        } else {
            let source = self.place.as_ref().and_then(|place| listed(&place.sources));
            source.or_else(|| listed(&self.recorders))
        };
        let source = self.targets().iter().position(|target| Some(target.addr) == addr)? as u32;
        Some(Answer { source, patience: self.config.repair.retry })
    }

    /// Asks for missing frames. When a node does not answer, the next node is asked.
    fn ask(&mut self, now: Timestamp) {
        let ranges = RANGES_MAX.min(self.body_bytes_max() / RANGE_BYTES - 1);
        let due = self.gaps.due(now, self.config.repair.retry, ranges);
        let targets = self.targets();
        let mut asks: Vec<Vec<(u64, u16)>> = vec![Vec::new(); targets.len()];
        for ask in due {
            asks[ask.attempt as usize % targets.len()].push((ask.first, ask.count));
        }
        for (target, ranges) in targets.into_iter().zip(asks).filter(|(_, r)| !r.is_empty()) {
            self.out.control_to(target, DatagramKind::Nack, encode_ranges(&ranges));
        }
    }

    /// Reads the lines of the cache that a frame needs. The result depends on each of these lines.
    pub(crate) fn prefetch(&self) -> u64 {
        let place = self.place.as_ref().map_or(0, |place| place.start ^ u64::from(place.view));
        let times = self.due.nanos() ^ self.root_heard.nanos() ^ self.report_at.nanos();
        let numbers = self.heard ^ self.repaired ^ u64::from(self.newest_epoch);
        let lengths = self.recorders.len() ^ self.who.standbys.len();
        place ^ times ^ numbers ^ lengths as u64 ^ self.soundness.prefetch() ^ self.out.prefetch()
    }

    /// Reads the parent, the edge from it, and the word of the window that has the next frame.
    pub(crate) fn prefetch_far(&self) -> u64 {
        let parent = self.place.as_ref().and_then(TreePosition::parent).map_or(0, |up| up.id.0);
        let window = self.window.as_ref().map_or(0, Window::prefetch);
        u64::from(parent) ^ window ^ self.edges.prefetch()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Timestamp> {
        (self.due < Timestamp::MAX).then_some(self.due)
    }

    /// Recomputes the earliest timer. Every change that can bring a timer forward ends with this
    /// call.
    fn rearm(&mut self) {
        let m = &self.config.membership;
        let parent = self.place.is_some().then(|| self.parent_heard + m.silence);
        let seek = (self.may_seek_root() && self.join_at.is_none())
            .then(|| self.root_heard + m.silence / 2);
        let root = self.awaits_root().then(|| self.root_heard + m.root_timeout);
        let overdue = self.gaps.progress().map(|at| at + self.config.repair.gap_timeout);
        let report = self.place.is_some().then_some(self.report_at);
        let locate = self.locating.as_ref().map(|l| l.next_ask.min(l.until));
        let timers =
            [self.join_at, self.gaps.next_ask(), parent, seek, root, overdue, report, locate];
        self.due = timers.into_iter().flatten().min().unwrap_or(Timestamp::MAX);
    }

    /// Makes a report due at once.
    pub(crate) fn report_now(&mut self, now: Timestamp) {
        self.report_at = now;
        self.rearm();
    }

    /// Whether a report is due. Sets the time of the next report.
    pub(crate) fn report_due(&mut self, now: Timestamp) -> bool {
        if self.place.is_none() || now < self.report_at {
            return false;
        }
        // After a pause, missed reports are skipped and not sent in a burst.
        self.report_at = (self.report_at + self.interval()).max(now + self.interval() / 2);
        self.rearm();
        true
    }

    /// How long no sign of the root has come on any path.
    pub(crate) fn root_silence(&self, now: Timestamp) -> Duration {
        now.since(self.root_heard)
    }

    /// Room for the body of a control datagram that IP need not fragment.
    pub(crate) fn body_bytes_max(&self) -> usize {
        self.config.framing.body_bytes(0)
    }

    pub(crate) fn interval(&self) -> Duration {
        self.config.membership.report_interval
    }

    /// Tells the root that this node leaves, until the root has acknowledged it.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
        self.place = None;
        self.join_at = Some(Timestamp::ZERO);
        self.rearm();
    }

    fn say_good_bye(&mut self) {
        let body = encode_verdict(self.who.id, DepartureReason::Left);
        self.tell_roots(DatagramKind::Leave, &body);
    }
}
