//! A root that may die: what voters agree on before a frame leaves.
//!
//! One root numbers the messages of a feed. When it dies, another root has to go on with the next
//! number, and no number may be used twice. A second root that only watches the first cannot know
//! which frames have left: it would skip some numbers, or use some again.
//!
//! So several roots vote. A root that leads makes a frame, and sends it only when a majority has
//! the frame in one agreed order. Every voter takes the agreed entries in that order by
//! [`AgreedFeed`], and so knows the same feed:
//!
//! ```text
//!  publish ──> leading root: a draft with its number
//!                 │ FeedEntry::Frame, with the term of the leader
//!                 v
//!              the order of the voters ──> AgreedFeed of every voter: taken, or refused
//!                                             │ taken
//!                 ┌───────────────────────────┴──────┐
//!                 v                                  v
//!              leading root: seals, sends,        waiting roots: keep the frame for repair
//!              tells its owner
//! ```
//!
//! - **The lead** follows from the order too. The first voter leads in term 0. When the voters have
//!   agreed that the leader has left, the next voter that takes part leads, and the term grows. An
//!   entry of another voter or of another term is refused by every voter alike.
//! - **Numbers.** An entry is taken only when its frame and its first message are the next ones. So
//!   a number has one content, and no number is left out.
//! - **Acknowledgement.** A message is acknowledged when its frame is agreed
//!   ([`Framed`](evenfall_multicast_machine::RootEvent::Framed)). Every later leader has the frame.
//! - **Epochs.** A leader has the run id of the first leader, and an epoch that grows with the
//!   term. Nodes take an order of a root with the same run id and a later epoch, keep all that they
//!   have, and refuse the orders of earlier epochs from then on. Frames of earlier epochs stay
//!   valid.
//! - **Nonces.** A body is sealed under a key of the run and the epoch, with the frame's number as
//!   the nonce, after the frame is agreed. A later root that repairs the frame seals the agreed
//!   content, times and epoch again, which gives the same bytes. A root that was deposed has no
//!   agreed frame of its own, so it seals nothing.
//!
//! The order itself is made by the consensus: see [`replicated_root`](crate::replicated_root).

pub mod session;

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::{Malformed, NodeId, Reader, SyncTime};
use evenfall_multicast_machine::wire::{DatagramKind, FIXED_BYTES, Messages, OriginHeader};
use evenfall_multicast_machine::{Draft, ProducerMark};

use crate::producer::{ProducerTable, SessionChange};

/// An entry on which a leader asks the voters to agree.
///
/// ```text
///  0       1          5
///  | kind  | term u32 | 1 open   epoch u32, run id u64
///                     | 2 begin  time u64: when the first message is due
///                     | 3 frame  the fixed header of 57 bytes, and the body: of messages, or of
///                     |          a signature
///                     | 4 over
///                     | 5 marked frame  count u16, as many marks, and then as a frame
///                     |   a mark        author u64, place u64, count u16
///                     | 6 end of a line author u64, messages u64
///                     | 7 begin of a line author u64, name u64
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedEntry {
    /// The epoch of term 0, and the random id of the run.
    Open(u32, u64),
    /// When the first message of the feed is due.
    Begin(SyncTime),
    /// The next frame.
    Frame(Draft),
    /// Every receiver has the whole stream, so no successor is needed any more.
    Over,
    /// The line of an author begins or ends.
    Session(SessionChange),
}

impl FeedEntry {
    /// The body of the request by which a leader of this term asks for the entry.
    pub fn encode(&self, term: u32) -> Bytes {
        let mut out = BytesMut::with_capacity(32);
        let kind = match self {
            Self::Open(..) => 1,
            Self::Begin(_) => 2,
            Self::Frame(draft) if draft.marks().is_empty() => 3,
            Self::Over => 4,
            Self::Frame(_) => 5,
            Self::Session(SessionChange::End { .. }) => 6,
            Self::Session(SessionChange::Begin { .. }) => 7,
        };
        out.put_u8(kind);
        out.put_u32_le(term);
        match self {
            Self::Open(epoch, run_id) => {
                out.put_u32_le(*epoch);
                out.put_u64_le(*run_id);
            }
            Self::Begin(at) => out.put_u64_le(at.nanos()),
            Self::Frame(draft) => {
                if !draft.marks().is_empty() {
                    put_marks(&mut out, draft.marks());
                }
                out.put_slice(&draft.fixed().encode());
                out.put_slice(draft.body());
            }
            Self::Over => {}
            Self::Session(change) => {
                let (SessionChange::Begin { author, name: word }
                | SessionChange::End { author, places: word }) = change;
                out.put_u64_le(*author);
                out.put_u64_le(*word);
            }
        }
        out.freeze()
    }

    /// The term and the entry of a request.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are no entry.
    pub fn decode(body: &Bytes) -> Result<(u32, Self), Malformed> {
        let mut r = Reader::new(body);
        let (kind, term) = (r.u8()?, r.u32()?);
        let entry = match kind {
            1 => Self::Open(r.u32()?, r.u64()?),
            2 => Self::Begin(SyncTime::from_nanos(r.u64()?)),
            3 => Self::Frame(read_frame(&mut r, body, Vec::new())?),
            4 => Self::Over,
            5 => {
                let marks = read_marks(&mut r)?;
                Self::Frame(read_frame(&mut r, body, marks)?)
            }
            6 => Self::Session(SessionChange::End { author: r.u64()?, places: r.u64()? }),
            7 => Self::Session(SessionChange::Begin { author: r.u64()?, name: r.u64()? }),
            _ => return Err(r.malformed("no such entry")),
        };
        r.finish()?;
        Ok((term, entry))
    }
}

/// Bytes of an entry in front of its content.
const ENTRY_HEAD_BYTES: usize = 5;
/// Bytes of a mark.
const MARK_BYTES: usize = 18;

fn put_marks(out: &mut BytesMut, marks: &[ProducerMark]) {
    // A frame has at most as many marks as messages.
    out.put_u16_le(marks.len() as u16);
    for mark in marks {
        out.put_u64_le(mark.author);
        out.put_u64_le(mark.place);
        out.put_u16_le(mark.count);
    }
}

fn read_marks(r: &mut Reader<'_>) -> Result<Vec<ProducerMark>, Malformed> {
    let count = r.u16()?;
    if count == 0 {
        return Err(r.malformed("a marked frame without a mark"));
    }
    let mark = |_| {
        let mark = ProducerMark { author: r.u64()?, place: r.u64()?, count: r.u16()? };
        match mark.place.checked_add(u64::from(mark.count)) {
            Some(_) => Ok(mark),
            None => Err(r.malformed("no such place")),
        }
    };
    (0..count).map(mark).collect()
}

/// The frame that follows `marks`.
fn read_frame(
    r: &mut Reader<'_>,
    entry: &Bytes,
    marks: Vec<ProducerMark>,
) -> Result<Draft, Malformed> {
    let fixed = OriginHeader::read(r)?;
    let is_signature = fixed.kind == DatagramKind::Signature;
    if !fixed.kind.is_frame() || is_signature && (fixed.count, marks.len()) != (0, 0) {
        return Err(r.malformed("a frame that is not of the feed"));
    }
    let marked: u64 = marks.iter().map(|mark| u64::from(mark.count)).sum();
    if !marks.is_empty() && marked != u64::from(fixed.count) {
        return Err(r.malformed("a frame with messages that have no mark"));
    }
    let head = if marks.is_empty() { 0 } else { 2 + MARK_BYTES * marks.len() };
    let body = entry.slice(ENTRY_HEAD_BYTES + head + FIXED_BYTES..);
    r.take(body.len())?;
    if !is_signature {
        Messages::new(body.clone(), fixed.count)?;
    }
    Ok(Draft::new(fixed, body).marked(marks))
}

/// Whether a voter takes part, under which incarnation.
#[derive(Clone, Copy, Debug)]
struct VoterState {
    node: NodeId,
    incarnation: u32,
    is_in: bool,
}

/// A voter that left the order, or came back, under this incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipChange {
    /// The voter left.
    Left(NodeId, u32),
    /// The voter came back.
    Back(NodeId, u32),
}

/// The feed as the voters agreed on it. All voters give it the same entries in the same order.
#[derive(Clone, Debug)]
pub struct AgreedFeed {
    voters: Vec<VoterState>,
    leader: Option<NodeId>,
    term: u32,
    run: Option<(u32, u64)>,
    has_begun: bool,
    next: (u64, u64),
    lines: ProducerTable,
}

impl AgreedFeed {
    /// A feed that has not begun. The first voter leads, and the others follow in this order.
    pub fn new(voters: &[NodeId]) -> Self {
        let voter = |node: &NodeId| VoterState { node: *node, incarnation: 0, is_in: true };
        Self {
            voters: voters.iter().map(voter).collect(),
            leader: voters.first().copied(),
            term: 0,
            run: None,
            has_begun: false,
            next: (0, 0),
            lines: ProducerTable::default(),
        }
    }

    /// The voter that leads; `None` while no voter takes part.
    pub fn leader(&self) -> Option<NodeId> {
        self.leader
    }

    /// How often the lead has changed.
    pub fn term(&self) -> u32 {
        self.term
    }

    /// The epoch of the present term, and the id of the run; `None` before the run is open.
    pub fn run(&self) -> Option<(u32, u64)> {
        self.run.map(|(first, id)| (first.wrapping_add(self.term), id))
    }

    /// The frame and the message that are agreed on next.
    pub fn next(&self) -> (u64, u64) {
        self.next
    }

    /// The lines of the authors.
    pub fn lines(&self) -> &ProducerTable {
        &self.lines
    }

    /// Takes the next request of the order. Returns its entry, or `None` for an entry that is
    /// ignored, because it is of another root than the leader, of another term, or out of turn.
    pub fn take(&mut self, from: NodeId, body: &Bytes) -> Option<FeedEntry> {
        let (term, entry) = FeedEntry::decode(body).ok()?;
        let is_leading = self.leader == Some(from) && term == self.term;
        if is_leading { self.accept(entry) } else { None }
    }

    fn accept(&mut self, entry: FeedEntry) -> Option<FeedEntry> {
        match &entry {
            FeedEntry::Open(epoch, run_id) if self.run.is_none() => {
                self.run = Some((epoch.wrapping_sub(self.term), *run_id));
            }
            FeedEntry::Begin(_) if !self.has_begun => self.has_begun = true,
            FeedEntry::Frame(draft) => {
                let fixed = draft.fixed();
                let is_next = (fixed.sequence, fixed.first_message) == self.next;
                let is_of_run = self.run() == Some((fixed.epoch, fixed.run_id));
                if !is_next || !is_of_run || !self.lines.fits(draft.marks()) {
                    return None;
                }
                self.lines.take(draft.marks(), fixed.first_message);
                self.next = draft.next();
            }
            FeedEntry::Session(change) if self.lines.grant(change) => {}
            FeedEntry::Over => {}
            FeedEntry::Open(..) | FeedEntry::Begin(_) | FeedEntry::Session(_) => return None,
        }
        Some(entry)
    }

    /// Takes in the changes of the voters on which the voters agreed. Returns whether the lead has
    /// changed.
    pub fn apply_changes(&mut self, changes: impl Iterator<Item = MembershipChange>) -> bool {
        for change in changes {
            let (node, incarnation, is_in) = match change {
                MembershipChange::Left(node, incarnation) => (node, incarnation, false),
                MembershipChange::Back(node, incarnation) => (node, incarnation, true),
            };
            let Some(voter) = self.voters.iter_mut().find(|voter| voter.node == node) else {
                continue;
            };
            // The order repeats changes.
            let is_new =
                voter.is_in != is_in && incarnation == voter.incarnation + u32::from(is_in);
            if is_new {
                (voter.incarnation, voter.is_in) = (incarnation, is_in);
                if !is_in && self.leader == Some(node) {
                    self.leader = None;
                }
            }
        }
        if self.leader.is_some() {
            return false;
        }
        self.leader = self.voters.iter().find(|voter| voter.is_in).map(|voter| voter.node);
        self.term += u32::from(self.leader.is_some());
        self.leader.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenfall_core::{Format, TrafficClass};

    const BEGIN: SessionChange = SessionChange::Begin { author: 7, name: 3 };
    const END: SessionChange = SessionChange::End { author: 7, places: 2 };
    const VOTERS: [NodeId; 3] = [NodeId(4), NodeId(5), NodeId(6)];

    fn draft(epoch: u32, sequence: u64) -> FeedEntry {
        let fixed = OriginHeader {
            class: TrafficClass::Live,
            count: 1,
            run_id: 9,
            sequence,
            first_message: sequence,
            format: Format(3),
            ..OriginHeader::control(DatagramKind::Data, 0, epoch, 0)
        };
        FeedEntry::Frame(Draft::new(fixed, Bytes::from_static(b"\x03\0abc")))
    }

    fn marked(epoch: u32, sequence: u64, place: u64) -> FeedEntry {
        let FeedEntry::Frame(draft) = draft(epoch, sequence) else { unreachable!() };
        FeedEntry::Frame(draft.marked(vec![ProducerMark { author: 7, place, count: 1 }]))
    }

    fn opened() -> AgreedFeed {
        let mut sequence = AgreedFeed::new(&VOTERS);
        let open = FeedEntry::Open(100, 9);
        assert_eq!(sequence.take(VOTERS[0], &open.encode(0)), Some(open));
        sequence
    }

    #[test]
    fn entries_survive_the_wire_and_broken_ones_are_refused() {
        let all = [
            FeedEntry::Open(7, u64::MAX),
            FeedEntry::Begin(SyncTime::from_nanos(5)),
            FeedEntry::Over,
        ];
        let marked = marked(100, 8, 3);
        let lines = [END, BEGIN].map(FeedEntry::Session);
        for entry in all.into_iter().chain([draft(100, 8), marked]).chain(lines) {
            let bytes = entry.encode(3);
            assert_eq!(FeedEntry::decode(&bytes), Ok((3, entry)));
            for length in 0..bytes.len() {
                assert!(FeedEntry::decode(&bytes.slice(..length)).is_err());
            }
        }
    }

    #[test]
    fn a_number_is_taken_once_and_none_is_left_out() {
        let mut sequence = opened();
        assert!(sequence.take(VOTERS[0], &draft(100, 0).encode(0)).is_some());
        for wrong in [0, 2] {
            assert_eq!(sequence.take(VOTERS[0], &draft(100, wrong).encode(0)), None);
        }
        assert_eq!(sequence.next(), (1, 1));
    }

    #[test]
    fn a_place_of_an_author_is_taken_once_whichever_root_leads() {
        let mut sequence = opened();
        assert_eq!(sequence.take(VOTERS[0], &marked(100, 0, 0).encode(0)), None, "not begun");
        assert!(sequence.take(VOTERS[0], &FeedEntry::Session(BEGIN).encode(0)).is_some());
        assert_eq!(sequence.take(VOTERS[0], &marked(100, 0, 1).encode(0)), None, "passed over");
        assert!(sequence.take(VOTERS[0], &marked(100, 0, 0).encode(0)).is_some());
        assert!(sequence.apply_changes([MembershipChange::Left(VOTERS[0], 0)].into_iter()));
        assert_eq!(sequence.take(VOTERS[1], &marked(101, 1, 0).encode(1)), None, "again");
        assert!(sequence.take(VOTERS[1], &marked(101, 1, 1).encode(1)).is_some());
        let early = SessionChange::End { author: 7, places: 1 };
        assert_eq!(sequence.take(VOTERS[1], &FeedEntry::Session(early).encode(1)), None);
        assert!(sequence.take(VOTERS[1], &FeedEntry::Session(END).encode(1)).is_some());
        assert_eq!(sequence.take(VOTERS[1], &marked(101, 2, 2).encode(1)), None, "behind the end");
    }

    #[test]
    fn the_next_voter_leads_when_the_leader_has_left_and_the_old_one_is_refused() {
        let mut sequence = opened();
        let apply_changes =
            |sequence: &mut AgreedFeed, change| sequence.apply_changes([change].into_iter());
        assert!(!apply_changes(&mut sequence, MembershipChange::Left(VOTERS[1], 0)));
        assert!(apply_changes(&mut sequence, MembershipChange::Left(VOTERS[0], 0)));
        assert!(!apply_changes(&mut sequence, MembershipChange::Left(VOTERS[0], 0)), "a repeat");
        assert_eq!((sequence.leader(), sequence.run()), (Some(VOTERS[2]), Some((101, 9))));
        assert!(!apply_changes(&mut sequence, MembershipChange::Back(VOTERS[0], 1)));
        assert_eq!(sequence.take(VOTERS[0], &draft(100, 0).encode(0)), None);
        assert_eq!(sequence.take(VOTERS[0], &draft(101, 0).encode(1)), None, "does not lead");
        assert_eq!(sequence.take(VOTERS[2], &draft(100, 0).encode(1)), None, "another epoch");
        assert!(sequence.take(VOTERS[2], &draft(101, 0).encode(1)).is_some());
    }

    #[test]
    fn a_feed_without_a_voter_goes_on_with_the_first_that_comes_back() {
        let mut sequence = opened();
        let left = VOTERS.map(|voter| MembershipChange::Left(voter, 0));
        assert!(!sequence.apply_changes(left.into_iter()));
        assert_eq!((sequence.leader(), sequence.term()), (None, 0));
        assert!(sequence.apply_changes([MembershipChange::Back(VOTERS[2], 1)].into_iter()));
        assert_eq!((sequence.leader(), sequence.term()), (Some(VOTERS[2]), 1));
        assert_eq!(sequence.take(VOTERS[2], &draft(100, 0).encode(0)), None, "of its first term");
    }
}
