//! The copies of some frames, laid out for `sendmmsg`.
//!
//! The obvious loop, one `sendto` per copy, pays a system call and a copy of the body per receiver.
//! A plan instead writes a frame down once, as two `iovec`s (its head and its body), and every copy
//! is a message header that points at them:
//!
//! ```text
//!  frames     [ head 0 | body 0 ]  [ head 1 | body 1 ]          owned by the plan, never moved
//!                 ^        ^           ^        ^
//!  iovecs       [ 0 ]    [ 1 ]       [ 2 ]    [ 3 ]
//!                 ^-------------------------^
//!  messages     to a: iovecs 0..4, segments of len(frame)       one system call for all
//!               to b: iovecs 0..4, segments of len(frame)
//! ```
//!
//! When one frame waits, or without segmentation, messages are laid out frame by frame: all
//! destinations of a frame come before any of the next frame. When several frames wait, messages
//! are laid out destination by destination. Each destination gets runs of equally long frames as
//! one segmented send, in the order in which the frames were queued. A run may end with a shorter
//! frame, as the kernel allows. The first destination changes from layout to layout, so that no
//! member of a group is always served last. Destinations that get the same frames share the same
//! iovecs.
//!
//! Where the kernel copies for a group ([`CopyGate`]), one marked message stands for the copies to
//! all members. Frame by frame each message has its own way. Destination by destination this is so
//! when all frames of the plan go to one group: with other frames in between, a member would get
//! its frames in another order than that in which they were queued.
//!
//! The kernel may take only a part of a plan. The plan keeps a cursor until all of it has left.

use std::collections::HashMap;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use evenfall_core::{Timestamp, Token, Transmit};

use super::copies::{CopyGate, MarkedWay};
use crate::sys::{Control, RawAddress};

/// Frames that are laid out at once: the segments that every kernel with `UDP_SEGMENT` takes in one
/// send.
pub(super) const FRAMES_PER_PLAN: usize = 64;
/// Segments in one send (`UDP_MAX_SEGMENTS` of kernels before 6.10).
pub(crate) const SEGMENTS_MAX: usize = 64;
/// Bytes in one send: 65,535 less the headers of IPv4 and UDP.
const SEND_BYTES_MAX: usize = 65_507;
/// Messages in one `sendmmsg` (`UIO_MAXIOV`). The kernel ignores further messages.
const MESSAGES_PER_CALL: usize = 1024;

/// The members of an installed group, in the kernel's form.
pub(super) struct Group {
    pub(super) members: Box<[(SocketAddr, RawAddress)]>,
    pub(super) gate: Arc<CopyGate>,
}

impl Group {
    pub(super) fn new(members: &[SocketAddr]) -> Self {
        let members = members.iter().map(|a| (*a, RawAddress::from(*a))).collect();
        Self { members, gate: Arc::default() }
    }

    /// One message for all members, with frames from `order[first..]`.
    fn marked_span(&self, way: MarkedWay, first: u32) -> Span {
        let MarkedWay { mark, lead } = way;
        let copies = self.members.len() as u16;
        Span { to: &raw const self.members[lead].1, first, count: 1, copies, mark }
    }
}

/// The receivers of a frame, fixed when the frame was queued.
pub(super) enum Receivers {
    One(SocketAddr, RawAddress),
    Group(Arc<Group>),
}

/// A transmit with its receivers.
pub(super) struct Frame {
    /// The number of the frame's machine.
    pub(super) owner: usize,
    pub(super) transmit: Transmit,
    pub(super) receivers: Receivers,
}

impl Frame {
    pub(super) fn copies(&self) -> usize {
        match &self.receivers {
            Receivers::One(..) => 1,
            Receivers::Group(group) => group.members.len(),
        }
    }
}

/// One destination of a plan and the frames it gets.
struct Slot {
    raw: RawAddress,
    frames: Vec<u16>,
}

/// One message of a plan: frames `order[first..][..count]` to one address.
#[derive(Clone, Copy)]
struct Span {
    to: *const RawAddress,
    first: u32,
    count: u16,
    /// Members of a group for which the message stands; one for a message without a mark.
    copies: u16,
    /// The mark by which the kernel copies the message to all members; zero for none.
    mark: u32,
}

impl Span {
    fn plain(to: *const RawAddress, first: u32) -> Self {
        Self { to, first, count: 1, copies: 1, mark: 0 }
    }
}

/// A frame whose machine wants to know when it left.
struct Asked {
    frame: u16,
    token: Token,
    /// Copies that have neither left nor failed.
    copies: usize,
    left: Option<Timestamp>,
    /// Whether the kernel stamps the departure of the frame.
    is_stamped: bool,
}

/// The departure of a frame whose machine asks when the frame left.
pub(super) struct Departed {
    /// The number of the machine.
    pub(super) owner: usize,
    pub(super) token: Token,
    /// When the call that sent the last copy returned. `None` when no copy left.
    pub(super) at: Option<Timestamp>,
    /// Whether the kernel will send its own stamp of the departure.
    pub(super) is_stamped: bool,
}

/// The layout of some frames. Every vector keeps its memory from plan to plan.
pub(super) struct Plan {
    frames: Vec<Frame>,
    slots: Vec<Slot>,
    slots_used: usize,
    slots_of_groups: Vec<u32>,
    /// The groups met so far and the start of their slots, so that a group needs one look-up, not
    /// one per copy.
    groups: Vec<(*const Group, usize)>,
    index: HashMap<SocketAddr, u32>,
    /// Frame numbers, run after run; entry `i` has the iovecs `2i` and `2i + 1`.
    order: Vec<u16>,
    iovecs: Vec<libc::iovec>,
    spans: Vec<Span>,
    messages: Vec<libc::mmsghdr>,
    controls: Vec<Control>,
    cursor: usize,
    asked: Vec<Asked>,
    /// A number that grows with every layout and decides which destination is served first. In a
    /// fixed order the last member of a group would always get its frames last.
    turn: usize,
    /// Whether the kernel stamps the departures of frames that ask.
    stamps: bool,
}

// SAFETY: the raw pointers of a plan lead to memory that the plan owns, directly or through the
// `Arc` and `Bytes` of its frames, and that does not move with it. Only `&mut self` uses them.
unsafe impl Send for Plan {}

impl Plan {
    /// An empty plan. `stamps` says whether the kernel stamps departures.
    pub(super) fn new(stamps: bool) -> Self {
        Self {
            stamps,
            frames: Vec::with_capacity(FRAMES_PER_PLAN),
            slots: Vec::new(),
            slots_used: 0,
            slots_of_groups: Vec::new(),
            groups: Vec::new(),
            index: HashMap::new(),
            order: Vec::new(),
            iovecs: Vec::new(),
            spans: Vec::new(),
            messages: Vec::new(),
            controls: Vec::new(),
            cursor: 0,
            asked: Vec::new(),
            turn: 0,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.cursor == self.messages.len()
    }

    /// Lays out these frames. `segment_bytes_max` is zero when segmentation is off, else the
    /// longest frame that may be a segment.
    pub(super) fn fill(&mut self, frames: impl Iterator<Item = Frame>, segment_bytes_max: usize) {
        self.clear();
        self.turn = self.turn.wrapping_add(1);
        self.frames.extend(frames);
        for (number, frame) in self.frames.iter().enumerate() {
            if let Some(token) = frame.transmit.token {
                let (frame, copies) = (number as u16, frame.copies());
                self.asked.push(Asked { frame, token, copies, left: None, is_stamped: false });
            }
        }
        if segment_bytes_max == 0 || self.frames.len() == 1 {
            self.lay_out_by_frame();
        } else if let Some(way) = self.shared_way() {
            self.lay_out_for_group(way, segment_bytes_max);
        } else {
            self.lay_out_by_destination(segment_bytes_max);
        }
        self.write_messages();
    }

    fn clear(&mut self) {
        self.frames.clear();
        self.order.clear();
        self.spans.clear();
        self.messages.clear();
        self.asked.clear();
        self.cursor = 0;
    }

    fn lay_out_by_frame(&mut self) {
        for (number, frame) in self.frames.iter().enumerate() {
            let first = number as u32;
            self.order.push(number as u16);
            match &frame.receivers {
                Receivers::One(_, raw) => self.spans.push(Span::plain(raw, first)),
                Receivers::Group(group) => {
                    if let Some(way) = group.gate.way_for(frame.transmit.len()) {
                        self.spans.push(group.marked_span(way, first));
                        continue;
                    }
                    let first_served = (self.turn + number) % group.members.len();
                    let (last, served) = group.members.split_at(first_served);
                    let members = served.iter().chain(last);
                    self.spans.extend(members.map(|(_, raw)| Span::plain(raw, first)));
                }
            }
        }
    }

    fn lay_out_by_destination(&mut self, segment_bytes_max: usize) {
        self.assign_slots();
        let all = self.frames.len();
        // The runs of the first slot that gets every frame serve all such slots.
        let mut shared: Option<(usize, usize)> = None;
        for place in 0..self.slots_used {
            let slot = (self.turn + place) % self.slots_used;
            let to = &raw const self.slots[slot].raw;
            if self.slots[slot].frames.len() == all {
                if let Some((start, end)) = shared {
                    for span in start..end {
                        self.spans.push(Span { to, ..self.spans[span] });
                    }
                    continue;
                }
                shared = Some((self.spans.len(), self.spans.len()));
            }
            self.lay_out_runs(slot, to, segment_bytes_max);
            if let Some((start, end)) = &mut shared
                && *start == *end
            {
                *end = self.spans.len();
            }
        }
    }

    /// How the kernel copies all frames, when all go to one group.
    fn shared_way(&self) -> Option<MarkedWay> {
        let Receivers::Group(group) = &self.frames.first()?.receivers else { return None };
        let goes_there = |frame: &Frame| match &frame.receivers {
            Receivers::Group(other) => Arc::ptr_eq(group, other),
            Receivers::One(..) => false,
        };
        let longest = self.frames.iter().map(|frame| frame.transmit.len()).max()?;
        let way = group.gate.way_for(longest)?;
        self.frames.iter().all(goes_there).then_some(way)
    }

    fn lay_out_for_group(&mut self, way: MarkedWay, segment_bytes_max: usize) {
        let Receivers::Group(group) = &self.frames[0].receivers else { return };
        let group = Arc::clone(group);
        self.clear_slots();
        let (address, raw) = &group.members[way.lead];
        let slot = self.slot_of(*address, raw) as usize;
        self.slots[slot].frames.extend(0..self.frames.len() as u16);
        self.lay_out_runs(slot, raw, segment_bytes_max);
        for span in &mut self.spans {
            *span = Span { count: span.count, ..group.marked_span(way, span.first) };
        }
    }

    fn clear_slots(&mut self) {
        self.slots_used = 0;
        self.slots_of_groups.clear();
        self.groups.clear();
        self.index.clear();
    }

    /// Sorts the frames by destination, keeping their order.
    fn assign_slots(&mut self) {
        self.clear_slots();
        let frames = mem::take(&mut self.frames);
        for (number, frame) in frames.iter().enumerate() {
            match &frame.receivers {
                Receivers::One(address, raw) => {
                    let slot = self.slot_of(*address, raw);
                    self.slots[slot as usize].frames.push(number as u16);
                }
                Receivers::Group(group) => {
                    let start = self.resolve(group);
                    for at in start..start + group.members.len() {
                        let slot = self.slots_of_groups[at] as usize;
                        self.slots[slot].frames.push(number as u16);
                    }
                }
            }
        }
        self.frames = frames;
    }

    /// Where the slots of this group's members start in `slots_of_groups`.
    fn resolve(&mut self, group: &Arc<Group>) -> usize {
        let pointer = Arc::as_ptr(group);
        // The newest group is tried first, because consecutive frames mostly have the same
        // receivers.
        if let Some((_, start)) = self.groups.iter().rev().find(|(known, _)| *known == pointer) {
            return *start;
        }
        let start = self.slots_of_groups.len();
        for (address, raw) in &group.members {
            let slot = self.slot_of(*address, raw);
            self.slots_of_groups.push(slot);
        }
        self.groups.push((pointer, start));
        start
    }

    fn slot_of(&mut self, address: SocketAddr, raw: &RawAddress) -> u32 {
        if let Some(slot) = self.index.get(&address) {
            return *slot;
        }
        let slot = self.slots_used;
        self.slots_used += 1;
        self.index.insert(address, slot as u32);
        match self.slots.get_mut(slot) {
            Some(reused) => {
                reused.raw = *raw;
                reused.frames.clear();
            }
            None => {
                self.slots.push(Slot { raw: *raw, frames: Vec::with_capacity(FRAMES_PER_PLAN) })
            }
        }
        slot as u32
    }

    /// Cuts the frames of a slot into runs that one segmented send can carry.
    fn lay_out_runs(&mut self, slot: usize, to: *const RawAddress, segment_bytes_max: usize) {
        let mut run: Option<(Span, usize, usize)> = None;
        for number in &self.slots[slot].frames {
            let len = self.frames[usize::from(*number)].transmit.len();
            if let Some((span, segment, bytes)) = &mut run {
                let fits = *segment <= segment_bytes_max
                    && len <= *segment
                    && len > 0
                    && usize::from(span.count) < SEGMENTS_MAX
                    && *bytes + len <= SEND_BYTES_MAX;
                if fits {
                    span.count += 1;
                    *bytes += len;
                    self.order.push(*number);
                    if len < *segment {
                        self.spans.extend(run.take().map(|(span, ..)| span));
                    }
                    continue;
                }
                self.spans.push(*span);
            }
            let span = Span::plain(to, self.order.len() as u32);
            self.order.push(*number);
            run = Some((span, len, len));
        }
        self.spans.extend(run.map(|(span, ..)| span));
    }

    /// Writes the kernel's structures for the spans.
    fn write_messages(&mut self) {
        self.iovecs.clear();
        for number in &self.order {
            let transmit = &self.frames[usize::from(*number)].transmit;
            for part in [transmit.head.as_slice(), &transmit.body[..]] {
                // The kernel only reads through the iovecs of a send.
                let iov_base = part.as_ptr().cast_mut().cast();
                self.iovecs.push(libc::iovec { iov_base, iov_len: part.len() });
            }
        }
        self.messages.clear();
        self.controls.clear();
        self.controls.resize(self.spans.len(), Control::EMPTY);
        for (span, control) in self.spans.iter().zip(&mut self.controls) {
            let first = span.first as usize;
            let number = self.order[first];
            let frame = &self.frames[usize::from(number)];
            let asked = match (self.stamps, &frame.receivers) {
                (true, Receivers::One(..)) if span.count == 1 => {
                    self.asked.binary_search_by_key(&number, |asked| asked.frame).ok()
                }
                _ => None,
            };
            // SAFETY: the address is in a slot or behind a frame of this plan, neither of which
            // changes until the plan is cleared.
            let name_len = unsafe { (*span.to).len() };
            // SAFETY: message headers are plain integers and pointers, for which zero is a value.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            let header = &mut message.msg_hdr;
            header.msg_name = span.to.cast_mut().cast();
            header.msg_namelen = name_len;
            header.msg_iov = &raw mut self.iovecs[2 * first];
            header.msg_iovlen = 2 * usize::from(span.count);
            let mut control_len = 0;
            if span.count > 1 {
                control_len += control.ask_segments(control_len, frame.transmit.len() as u16);
            } else if frame.transmit.body.is_empty() {
                header.msg_iovlen = 1;
            }
            if span.mark != 0 {
                control_len += control.ask_mark(control_len, span.mark);
            }
            if let Some(asked) = asked {
                control_len += control.ask_departure(control_len);
                self.asked[asked].is_stamped = true;
            }
            if control_len > 0 {
                header.msg_control = (&raw mut *control).cast();
                header.msg_controllen = control_len;
            }
            self.messages.push(message);
        }
    }

    /// Sends as many of the remaining messages as the kernel takes in one call. Returns their
    /// number, or the kernel's error for the first.
    pub(super) fn send(&mut self, fd: RawFd) -> std::io::Result<usize> {
        let left = &mut self.messages[self.cursor..];
        let count = left.len().min(MESSAGES_PER_CALL);
        // SAFETY: each message points at an address, iovecs, control bytes and frames that this
        // plan holds unchanged until it is cleared; the kernel writes only `msg_len`.
        let sent = unsafe { libc::sendmmsg(fd, left.as_mut_ptr(), count as libc::c_uint, 0) };
        crate::sys::checked(sent).map(|sent| sent as usize)
    }

    /// Messages that have neither left nor failed.
    pub(super) fn left(&self) -> usize {
        self.messages.len() - self.cursor
    }

    /// Whether a machine wants to know when frames of this plan leave.
    pub(super) fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Moves past `messages` messages, which left at `left` or will never leave. Returns the copies
    /// and bytes that they carried. For every frame without further copies in the plan, `answer`
    /// gets the departure as far as it is known.
    pub(super) fn advance(
        &mut self,
        messages: usize,
        left: Option<Timestamp>,
        mut answer: impl FnMut(Departed),
    ) -> (u64, u64) {
        let done = self.cursor..self.cursor + messages;
        self.cursor = done.end;
        let (mut copies, mut bytes) = (0, 0);
        for span in &self.spans[done] {
            copies += u64::from(span.count) * u64::from(span.copies);
            let first = span.first as usize;
            for number in &self.order[first..first + usize::from(span.count)] {
                let len = self.frames[usize::from(*number)].transmit.len() as u64;
                bytes += len * u64::from(span.copies);
                if let Ok(at) = self.asked.binary_search_by_key(number, |asked| asked.frame) {
                    let asked = &mut self.asked[at];
                    asked.copies -= usize::from(span.copies);
                    asked.left = left.or(asked.left);
                    if asked.copies == 0 {
                        let owner = self.frames[usize::from(*number)].owner;
                        let Asked { token, left: at, is_stamped, .. } = *asked;
                        answer(Departed { owner, token, at, is_stamped });
                    }
                }
            }
        }
        if self.is_done() {
            // Bodies are dropped as soon as their last copy has left.
            self.clear();
        }
        (copies, bytes)
    }

    /// Length of a segment of the next message; zero when it is not segmented.
    pub(super) fn segment_bytes(&self) -> usize {
        match self.spans.get(self.cursor) {
            Some(span) if span.count > 1 => {
                self.frames[usize::from(self.order[span.first as usize])].transmit.len()
            }
            _ => 0,
        }
    }

    /// Notes that `messages` messages left, so that those with a mark can be compared with what the
    /// kernel copied. Returns the copies of the messages with a mark.
    pub(super) fn count_marked(&self, messages: usize) -> u64 {
        let mut copies = 0;
        let left = self.spans[self.cursor..][..messages].iter();
        for span in left.filter(|span| span.mark != 0) {
            if let Some(group) = self.group_of(span) {
                group.gate.count_sent();
            }
            copies += u64::from(span.count) * u64::from(span.copies);
        }
        copies
    }

    fn group_of(&self, span: &Span) -> Option<&Arc<Group>> {
        match &self.frames[usize::from(self.order[span.first as usize])].receivers {
            Receivers::Group(group) => Some(group),
            Receivers::One(..) => None,
        }
    }

    /// Whether the next message has a mark.
    pub(super) fn is_marked(&self) -> bool {
        self.spans.get(self.cursor).is_some_and(|span| span.mark != 0)
    }

    /// Whether the kernel still copies every message with a mark as when the plan was laid out.
    pub(super) fn has_true_marks(&self) -> bool {
        let is_true = |span: &Span| {
            let group = self.group_of(span);
            // Every way takes an empty datagram.
            let way = group.and_then(|group| group.gate.way_for(0));
            span.mark == 0 || way.is_some_and(|way| way.mark == span.mark)
        };
        self.spans.get(self.cursor..).is_none_or(|rest| rest.iter().all(is_true))
    }

    /// Splits every message with a mark that has not left into messages to all members.
    pub(super) fn split_copies(&mut self) {
        let mut spans = Vec::with_capacity(self.spans.len());
        for span in &self.spans[self.cursor..] {
            match self.group_of(span).filter(|_| span.mark != 0) {
                Some(group) => spans.extend(group.members.iter().map(|(_, to)| Span {
                    to,
                    copies: 1,
                    mark: 0,
                    ..*span
                })),
                None => spans.push(*span),
            }
        }
        self.spans = spans;
        self.cursor = 0;
        self.write_messages();
    }

    /// Splits every segmented message that has not left into its datagrams.
    pub(super) fn split_segments(&mut self) {
        let mut spans = Vec::with_capacity(self.spans.len());
        for span in &self.spans[self.cursor..] {
            let each = (0..span.count).map(|i| Span {
                first: span.first + u32::from(i),
                count: 1,
                ..*span
            });
            spans.extend(each);
        }
        self.spans = spans;
        self.cursor = 0;
        self.write_messages();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use evenfall_core::{Destination, GroupId, Head, TrafficClass};

    use super::*;

    #[test]
    fn no_member_of_a_group_is_always_served_last() {
        let members: Vec<SocketAddr> =
            (1..=5).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        let group = Arc::new(Group::new(&members));
        let to = Destination::Group(GroupId(0));
        let frame = || Frame {
            owner: 0,
            transmit: Transmit::new(TrafficClass::Live, to, Head::new(b"frame"), Bytes::new()),
            receivers: Receivers::Group(Arc::clone(&group)),
        };
        for frames in [1, 3] {
            let mut plan = Plan::new(false);
            let mut served_last = BTreeMap::new();
            for _ in 0..members.len() {
                plan.fill((0..frames).map(|_| frame()), usize::from(u16::MAX));
                assert_eq!(plan.spans.len(), members.len());
                let last = plan.spans[members.len() - 1].to;
                // SAFETY: the address is in a slot of the plan, or behind its group.
                let port = unsafe { (*last).to_std() };
                *served_last.entry(port).or_insert(0) += 1;
            }
            assert!(served_last.values().all(|times| *times == 1), "{served_last:?}");
            assert_eq!(served_last.len(), members.len());
        }
    }
}
