//! Frames that wait to be sent: a bounded queue and a plan per class, in the order of the classes.

use std::collections::VecDeque;
use std::io;
#[cfg(feature = "ebpf")]
use std::sync::Arc;

#[cfg(feature = "ebpf")]
use evenfall_core::GroupId;
use evenfall_core::{Install, Installed, Timestamp, TrafficClass, Transmit};

#[cfg(feature = "ebpf")]
use super::copies::CopyGate;
use super::departures::{self, Departures};
use super::gate::RepairGate;
use super::plan::{Departed, FRAMES_PER_PLAN, Frame, Group, Plan, Receivers};
use super::socket::Socket;
use crate::answers::Answers;
use crate::groups::{Groups, Members};
use crate::sys::RawAddress;
use crate::wait::Blocked;
use crate::{Answer, Counters, Options, Refusal};
use evenfall_host::Error;
use evenfall_host::clock::MonotonicClock;

/// The classes in the order in which they are sent.
const CLASSES: [TrafficClass; 4] =
    [TrafficClass::Control, TrafficClass::Live, TrafficClass::Repair, TrafficClass::Bulk];
/// Attempts to send one message while the kernel answers with an error of another message. The
/// kernel reports a pending ICMP error of an earlier datagram once, instead of sending.
const ATTEMPTS: u32 = 3;
/// Refused segmented sends after which segmentation is off for good. Paths differ in their longest
/// frame, but no host has paths with more than eight sizes.
const SEGMENTATION_REFUSALS: u64 = 8;

struct Lane {
    queue: VecDeque<Frame>,
    /// Bytes of the frames in the queue.
    queue_bytes: usize,
    plan: Plan,
}

impl Lane {
    fn takes_frame(&self, options: &Options) -> bool {
        self.queue.len() < options.queue_frames_max && self.queue_bytes < options.queue_bytes_max
    }

    /// Lays out the first frames of the queue.
    fn fill_plan(&mut self, segment_bytes_max: usize) {
        let count = self.queue.len().min(FRAMES_PER_PLAN);
        let Self { queue, queue_bytes, plan } = self;
        let frames = queue.drain(..count).inspect(|frame| *queue_bytes -= frame.transmit.len());
        plan.fill(frames, segment_bytes_max);
    }
}

/// The receivers of a transmit at this moment.
pub(super) fn resolve_receivers(
    groups: &Groups<Group>,
    owner: usize,
    transmit: &Transmit,
    options: &Options,
) -> Result<Receivers, Refusal> {
    Ok(match groups.resolve(owner, transmit, options)? {
        Members::One(address) => Receivers::One(address, RawAddress::from(address)),
        Members::Group(group) => Receivers::Group(group),
    })
}

pub(super) struct Outbox {
    lanes: [Lane; 4],
    groups: Groups<Group>,
    answers: Answers,
    departures: Departures,
    gate: RepairGate,
    /// Longest frame that may be a segment; zero when the kernel does not segment.
    segment_bytes_max: usize,
    attempts: u32,
}

impl Outbox {
    pub(super) fn new(options: &Options, socket: &Socket) -> Self {
        let lane = |_| Lane {
            queue: VecDeque::with_capacity(options.queue_frames_max),
            queue_bytes: 0,
            plan: Plan::new(socket.stamps_departures),
        };
        Self {
            lanes: CLASSES.map(lane),
            groups: Groups::new(),
            answers: Answers::default(),
            departures: Departures::default(),
            gate: RepairGate::default(),
            segment_bytes_max: if socket.segmentation { usize::from(u16::MAX) } else { 0 },
            attempts: 0,
        }
    }

    pub(super) fn install(
        &mut self,
        owner: usize,
        install: &Install,
        options: &Options,
    ) -> Result<Installed, Error> {
        match install {
            Install::Group(id, members) => {
                self.groups.install((owner, *id), members, options, Group::new)?;
                Ok(Installed::Taken)
            }
            _ => Ok(Installed::Ignored),
        }
    }

    /// The gate of an installed group.
    #[cfg(feature = "ebpf")]
    pub(super) fn gate_of(&self, owner: usize, id: GroupId) -> Option<Arc<CopyGate>> {
        self.groups.find_group(owner, id).map(|group| Arc::clone(&group.gate))
    }

    /// Whether this class, and every class that is more urgent, has room for another frame.
    pub(super) fn has_room(&self, class: TrafficClass, options: &Options) -> bool {
        let lanes = &self.lanes[..=class as usize];
        lanes.iter().all(|lane| lane.takes_frame(options))
    }

    pub(super) fn push(
        &mut self,
        owner: usize,
        transmit: Transmit,
        options: &Options,
        counters: &mut Counters,
    ) -> Result<(), Refusal> {
        let (class, token) = (transmit.class as usize, transmit.token);
        let refusal = match resolve_receivers(&self.groups, owner, &transmit, options) {
            Ok(receivers) => {
                let frame = Frame { owner, transmit, receivers };
                if self.lanes[class].takes_frame(options) {
                    self.push_frame(frame);
                    return Ok(());
                }
                counters.dropped_full[class] += frame.copies() as u64;
                Refusal::Full
            }
            Err(refusal) => {
                counters.refused += 1;
                refusal
            }
        };
        if let Some(token) = token {
            self.answers.left(owner, token, None, counters);
        }
        Err(refusal)
    }

    /// Whether this class itself has room for another frame.
    pub(super) fn takes_frame(&self, class: TrafficClass, options: &Options) -> bool {
        self.lanes[class as usize].takes_frame(options)
    }

    /// Queues a frame whose receivers are fixed.
    pub(super) fn push_frame(&mut self, frame: Frame) {
        let lane = &mut self.lanes[frame.transmit.class as usize];
        lane.queue_bytes += frame.transmit.len();
        lane.queue.push_back(frame);
    }

    /// Takes the answers to transmits with a token.
    pub(super) fn take_answers(&mut self, out: &mut Vec<Answer>, counters: &mut Counters) {
        self.departures.give_up(&mut self.answers, counters);
        self.answers.take(out);
    }

    /// Takes the stamps of departures that have come back. `is_sought` says that the port woke and
    /// read no arrival. A stamp for which no departure waits any more may have ended the wait.
    pub(super) fn take_stamps(
        &mut self,
        is_sought: bool,
        socket: &Socket,
        counters: &mut Counters,
    ) {
        if !socket.stamps_departures {
            return;
        }
        if self.departures.is_waiting() {
            self.departures.take(socket.fd(), &mut self.answers, counters);
        } else if is_sought {
            departures::discard(socket.fd());
        }
    }

    /// Sends until the queues are empty or the kernel takes no more.
    pub(super) fn flush(
        &mut self,
        socket: &mut Socket,
        options: &Options,
        counters: &mut Counters,
    ) -> Blocked {
        for class in CLASSES {
            loop {
                let lane = &mut self.lanes[class as usize];
                if lane.plan.is_done() {
                    if lane.queue.is_empty() {
                        break;
                    }
                    lane.fill_plan(self.segment_bytes_max);
                } else if !lane.plan.has_true_marks() {
                    lane.plan.split_copies();
                }
                if class == TrafficClass::Repair {
                    let (now, max) = (MonotonicClock::now(), options.repair_backlog_bytes_max);
                    if !self.gate.lets_pass(now, max, || socket.departing_bytes()) {
                        counters.repairs_held += 1;
                        return Blocked::Device;
                    }
                }
                socket.mark(class, options);
                let is_asked = lane.plan.is_asked();
                let began = if is_asked { self.departures.begin(socket) } else { Timestamp::ZERO };
                match lane.plan.send(socket.fd()) {
                    Ok(messages) => {
                        self.attempts = 0;
                        let left = is_asked.then(MonotonicClock::now);
                        if is_asked && messages < lane.plan.left() {
                            self.departures.miscount();
                        }
                        let marked = lane.plan.count_marked(messages);
                        let answer = |departed: Departed| {
                            self.departures.left(began, departed, &mut self.answers, counters);
                        };
                        let (copies, bytes) = lane.plan.advance(messages, left, answer);
                        counters.sent[class as usize] += copies;
                        counters.sent_by_kernel[class as usize] += marked;
                        counters.sent_bytes += bytes;
                        counters.send_calls += 1;
                        // The kernel mostly stamps within the call.
                        if self.departures.is_waiting() {
                            self.departures.take(socket.fd(), &mut self.answers, counters);
                        }
                    }
                    Err(error) => {
                        if is_asked {
                            self.departures.miscount();
                        }
                        match self.rejected(class, &error, counters) {
                            Blocked::No => {}
                            blocked => return blocked,
                        }
                    }
                }
            }
        }
        Blocked::No
    }

    /// Handles a refusal of the next message of this class. `No` means that sending goes on.
    fn rejected(
        &mut self,
        class: TrafficClass,
        error: &io::Error,
        counters: &mut Counters,
    ) -> Blocked {
        let plan = &mut self.lanes[class as usize].plan;
        let segment = plan.segment_bytes();
        match error.raw_os_error() {
            Some(libc::EINTR) => return Blocked::No,
            Some(libc::EAGAIN) => {
                counters.blocked += 1;
                return Blocked::Socket;
            }
            Some(libc::ENOBUFS) => {
                counters.blocked += 1;
                return Blocked::Device;
            }
            // A card without checksum offload cannot segment at all (EIO). The kernel refuses a
            // segment longer than the path's frames (EINVAL, and EMSGSIZE where fragments are
            // refused).
            Some(libc::EIO) if segment > 0 => {
                self.segment_bytes_max = 0;
                counters.segmentation_refused += 1;
                plan.split_segments();
                return Blocked::No;
            }
            Some(libc::EINVAL | libc::EMSGSIZE) if segment > 0 => {
                counters.segmentation_refused += 1;
                let off = counters.segmentation_refused >= SEGMENTATION_REFUSALS;
                self.segment_bytes_max =
                    if off { 0 } else { self.segment_bytes_max.min(segment - 1) };
                plan.split_segments();
                return Blocked::No;
            }
            Some(libc::ECONNREFUSED) => {
                counters.connection_refused += 1;
                self.attempts += 1;
                if self.attempts < ATTEMPTS {
                    return Blocked::No;
                }
            }
            // What forbids a mark does not forbid the same datagrams without one.
            _ if plan.is_marked() => {
                plan.split_copies();
                return Blocked::No;
            }
            other => counters.last_send_error = other.unwrap_or(0),
        }
        // This message will not leave, and the messages after it shall.
        self.attempts = 0;
        let answer = |Departed { owner, token, at, .. }| {
            self.answers.left(owner, token, at, counters);
        };
        let (copies, _) = plan.advance(1, None, answer);
        counters.failed += copies;
        Blocked::No
    }

    pub(super) fn segment_bytes_max(&self) -> usize {
        self.segment_bytes_max
    }
}
