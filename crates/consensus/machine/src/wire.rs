//! The datagrams and the records, byte by byte. Decoding is total: any bytes give a value or
//! [`Malformed`], and a decoder keeps no more than the bytes that it was given.
//!
//! A proposal, a state or a checkpoint that is longer than [`Config::datagram_bytes`] travels as
//! several PART datagrams. See [`ValuePart`].
//!
//! [`Config::datagram_bytes`]: crate::Config::datagram_bytes
//!
//! All integers are little-endian. Every datagram begins with 16 bytes. The digest is that of the
//! tree and of the settings that all replicas share:
//!
//! ```text
//!  0        2         3      4            8                    16
//!  | magic  | version | kind | from node  | digest of the tree |
//!
//!  STATUS   disk u64, started u64, committed u64, oldest u64, leaves u8, count u8, then per
//!           group: owner u32, incarnation u32, report
//!  ENTRY    a proposal
//!  WANT     owner u32, incarnation u32, cycle u64
//!  REQUEST  cycle u64, vnode u16
//!  STATE    a state
//!  JOIN     incarnation u32, committed u64
//!  PART     kind u8 (of ENTRY, STATE or FETCH), cycle u64, of u32, under u32, length u32,
//!           offset u32, bytes to the end
//!  FETCH    cycle u64, offset u32
//!  ASK      incarnation u32, stamp u64
//!  VOUCH    incarnation u32, stamp u64
//!  FORGOT   cycle u64
//!  GREET    disk u64, count u32
//!  KNOWN    asked u64, disk u64, knows u8, votes u8, first u8, count u32, count u8, then groups
//!           as in STATUS
//!  BALLOT   started u64, committed u64, count u8, then groups of super-leaves as in STATUS
//!
//!  report   have u64, next u64, promised term u32, promised to u32, end term u32, end u64,
//!           closed u8
//!  set      node u32, incarnation u32, number u64, count u16, then per request:
//!           client u64, sequence u64, length u32, body
//!  change   0 leave or 1 join u8, node u32, incarnation u32; or 2 lease u8, key u64;
//!           or 3 retire u8, vnode u16, incarnation u32, reason u8 (0 vanished,
//!           1 planned, 2 anew)
//!  proposal cycle u64, count u16, changes, set
//!  state    cycle u64, vnode u16, number u64, count u16, changes, count u16, sets
//! ```

use bytes::Bytes;
use evenfall_core::{Head, Malformed, NodeId, Reader};

use crate::group::DurableReport;
use crate::{
    AgreedChange, LeaseKey, LeavingReason, Proposal, RequestSet, Requests, VnodeId, VnodeState,
};

/// "EO" in ASCII.
pub const MAGIC: u16 = u16::from_le_bytes(*b"EO");
/// Version of this layout. Another version is refused.
pub const VERSION: u8 = 8;

/// Kinds of datagrams, as the fourth byte of the head tells them.
pub mod kind {
    #![allow(missing_docs, reason = "the drawing of the module explains each kind")]
    pub const STATUS: u8 = 1;
    pub const ENTRY: u8 = 2;
    pub const WANT: u8 = 3;
    pub const REQUEST: u8 = 4;
    pub const STATE: u8 = 5;
    pub const JOIN: u8 = 6;
    pub const PART: u8 = 7;
    pub const FETCH: u8 = 8;
    pub const ASK: u8 = 9;
    pub const VOUCH: u8 = 10;
    pub const FORGOT: u8 = 11;
    pub const GREET: u8 = 12;
    pub const KNOWN: u8 = 13;
    pub const BALLOT: u8 = 14;
}

/// What a replica says of itself to its super-leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The number of the replica's disk.
    pub disk: u64,
    /// The last cycle that the replica has started.
    pub started: u64,
    /// The last cycle that the replica has committed.
    pub committed: u64,
    /// The first cycle of which the replica can still send the state of the root.
    pub oldest: u64,
    /// Whether the replica leaves as planned.
    pub leaves: bool,
    /// What the replica has on its disk of every group.
    pub groups: Vec<(NodeId, u32, DurableReport)>,
}

/// What a replica says about the disk of a peer that greets it. See `disk_identity`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownDisk {
    /// The number of the peer's disk.
    pub asked: u64,
    /// The number of the replica's own disk.
    pub disk: u64,
    /// Whether the replica counts the reports of the peer's disk from now on.
    pub knows: bool,
    /// Whether the replica votes.
    pub votes: bool,
    /// Whether the replica votes and never lost a disk.
    pub is_first: bool,
    /// How many disks of the peer the replica has known.
    pub count: u32,
    /// What the replica has on its disk of every group.
    pub groups: Vec<(NodeId, u32, DurableReport)>,
}

/// What a replica says of itself to the other super-leaves, with consensus in the second round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ballot {
    /// The last cycle that the replica has started.
    pub started: u64,
    /// The last cycle that the replica has committed.
    pub committed: u64,
    /// What the replica has on its disk of the group of every super-leaf.
    pub groups: Vec<(NodeId, u32, DurableReport)>,
}

/// The name of a value that is too long for one datagram. All nodes that have the value have the
/// same bytes, so parts from several senders fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whole {
    /// The entry of this owner, incarnation and cycle.
    Entry(NodeId, u32, u64),
    /// The state of this vnode in this cycle.
    State(u64, VnodeId),
    /// The checkpoint that this node made after this cycle. Two nodes may encode what they have
    /// executed differently.
    Checkpoint(u64, NodeId),
}

/// Some bytes of a value that is too long for one datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuePart {
    /// The value.
    pub of: Whole,
    /// Bytes of the whole value.
    pub length: u32,
    /// The place of the first byte.
    pub offset: u32,
    /// The bytes; at least one.
    pub bytes: Bytes,
}

/// Bytes of a datagram that say its kind and its sender.
pub(crate) const HEAD_BYTES: usize = 16;
/// The place of the kind in a datagram.
const KIND_AT: usize = 3;

/// Bytes of a PART datagram in front of the part.
pub const PART_HEAD_BYTES: usize = HEAD_BYTES + 25;

/// A datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaMessage {
    /// See [`Status`].
    Status(Status),
    /// An entry of the group of the node that proposed.
    Entry(Proposal),
    /// "Send me the entry of this owner, incarnation and cycle."
    Want(NodeId, u32, u64),
    /// A proposal-request: "send me the state of the vnode in the cycle, once you have it."
    Request(u64, VnodeId),
    /// A state.
    State(VnodeState),
    /// "Let me take part again, under this incarnation. I have committed this cycle."
    Join(u32, u64),
    /// See [`ValuePart`].
    Part(ValuePart),
    /// "Send me your checkpoint, which you made after this cycle, from this byte on." Cycle 0
    /// stands for the newest checkpoint.
    Fetch(u64, u32),
    /// "Vouch for me under this incarnation." The stamp stands for the moment of the question.
    Ask(u32, u64),
    /// The answer, with the same incarnation and stamp.
    Vouch(u32, u64),
    /// "I have committed this cycle, and I have forgotten its states." Only a checkpoint helps.
    Forgot(u64),
    /// "My disk has this number. You have known this many other disks of mine."
    Greet(u64, u32),
    /// See [`KnownDisk`].
    Known(KnownDisk),
    /// See [`Ballot`].
    Ballot(Ballot),
}

impl ReplicaMessage {
    fn kind(&self) -> u8 {
        match self {
            Self::Status(_) => kind::STATUS,
            Self::Entry(_) => kind::ENTRY,
            Self::Want(..) => kind::WANT,
            Self::Request(..) => kind::REQUEST,
            Self::State(_) => kind::STATE,
            Self::Join(..) => kind::JOIN,
            Self::Part(_) => kind::PART,
            Self::Fetch(..) => kind::FETCH,
            Self::Ask(..) => kind::ASK,
            Self::Vouch(..) => kind::VOUCH,
            Self::Forgot(_) => kind::FORGOT,
            Self::Greet(..) => kind::GREET,
            Self::Known(_) => kind::KNOWN,
            Self::Ballot(_) => kind::BALLOT,
        }
    }

    /// About how many bytes the message has beside its fixed fields: with less room a long message
    /// would be copied again and again while it grows.
    fn request_bytes(&self) -> usize {
        match self {
            Self::Entry(proposal) => proposal.set.requests.as_bytes().len(),
            Self::State(state) => state.bytes() + 32 * state.sets.len(),
            Self::Part(part) => part.bytes.len(),
            _ => 0,
        }
    }

    /// The datagram.
    pub fn encode(&self, from: NodeId, tree: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.request_bytes());
        put_head(&mut out, self.kind(), from, tree);
        match self {
            Self::Status(status) => put_status(&mut out, status),
            Self::Entry(proposal) => put_proposal(&mut out, proposal),
            Self::Want(owner, incarnation, cycle) => {
                out.extend(owner.0.to_le_bytes());
                out.extend(incarnation.to_le_bytes());
                out.extend(cycle.to_le_bytes());
            }
            Self::Request(cycle, vnode) => {
                out.extend(cycle.to_le_bytes());
                out.extend(vnode.0.to_le_bytes());
            }
            Self::State(state) => put_state(&mut out, state),
            Self::Join(incarnation, committed) => {
                out.extend(incarnation.to_le_bytes());
                out.extend(committed.to_le_bytes());
            }
            Self::Ballot(ballot) => {
                out.extend(ballot.started.to_le_bytes());
                out.extend(ballot.committed.to_le_bytes());
                put_groups(&mut out, &ballot.groups);
            }
            Self::Forgot(cycle) => out.extend(cycle.to_le_bytes()),
            Self::Greet(disk, count) => {
                out.extend(disk.to_le_bytes());
                out.extend(count.to_le_bytes());
            }
            Self::Known(known) => put_known(&mut out, known),
            Self::Part(part) => put_part(&mut out, part),
            Self::Fetch(cycle, offset) => {
                out.extend(cycle.to_le_bytes());
                out.extend(offset.to_le_bytes());
            }
            Self::Ask(incarnation, stamp) | Self::Vouch(incarnation, stamp) => {
                out.extend(incarnation.to_le_bytes());
                out.extend(stamp.to_le_bytes());
            }
        }
        out
    }

    /// The sender and the message of a datagram.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are not of this protocol, version and tree.
    pub fn decode(bytes: &Bytes, tree: u64) -> Result<(NodeId, Self), Malformed> {
        let r = &mut Reader::new(bytes);
        if r.u16()? != MAGIC {
            return Err(r.malformed("not of the order protocol"));
        }
        if r.u8()? != VERSION {
            return Err(r.malformed("another version of the order protocol"));
        }
        let number = r.u8()?;
        let from = NodeId(r.u32()?);
        if r.u64()? != tree {
            return Err(r.malformed("of another tree, or of replicas with other settings"));
        }
        let message = match number {
            kind::STATUS => Self::Status(status(r)?),
            kind::ENTRY => Self::Entry(proposal(r, bytes)?),
            kind::WANT => Self::Want(NodeId(r.u32()?), r.u32()?, r.u64()?),
            kind::REQUEST => Self::Request(r.u64()?, VnodeId(r.u16()?)),
            kind::STATE => Self::State(state(r, bytes)?),
            kind::JOIN => Self::Join(r.u32()?, r.u64()?),
            kind::PART => Self::Part(part(r, bytes)?),
            kind::FETCH => Self::Fetch(r.u64()?, r.u32()?),
            kind::ASK => Self::Ask(r.u32()?, r.u64()?),
            kind::VOUCH => Self::Vouch(r.u32()?, r.u64()?),
            kind::FORGOT => Self::Forgot(r.u64()?),
            kind::GREET => Self::Greet(r.u64()?, r.u32()?),
            kind::KNOWN => Self::Known(known(r)?),
            kind::BALLOT => {
                let (started, committed) = (r.u64()?, r.u64()?);
                Self::Ballot(Ballot { started, committed, groups: groups(r)? })
            }
            _ => return Err(r.malformed("no such kind")),
        };
        r.finish()?;
        Ok((from, message))
    }
}

fn put_head(out: &mut Vec<u8>, kind: u8, from: NodeId, tree: u64) {
    out.extend(MAGIC.to_le_bytes());
    out.extend([VERSION, kind]);
    out.extend(from.0.to_le_bytes());
    out.extend(tree.to_le_bytes());
}

/// Whether a datagram is a part, if it is of this protocol.
pub(crate) fn is_part(datagram: &[u8]) -> bool {
    datagram.get(KIND_AT) == Some(&kind::PART)
}

/// The bytes of a PART datagram in front of the part. The part itself is not copied.
pub(crate) fn part_head(part: &ValuePart, from: NodeId, tree: u64) -> Head {
    let mut out = Vec::with_capacity(PART_HEAD_BYTES);
    put_head(&mut out, kind::PART, from, tree);
    put_part_head(&mut out, part);
    Head::new(&out)
}

/// The value that a multi-part message carries; `None` for messages that fit one datagram.
pub(crate) fn whole_of(message: &ReplicaMessage) -> Option<Whole> {
    match message {
        ReplicaMessage::Entry(proposal) => {
            Some(Whole::Entry(proposal.set.node, proposal.set.incarnation, proposal.cycle))
        }
        ReplicaMessage::State(state) => Some(Whole::State(state.cycle, state.vnode)),
        _ => None,
    }
}

fn put_part(out: &mut Vec<u8>, part: &ValuePart) {
    put_part_head(out, part);
    out.extend_from_slice(&part.bytes);
}

fn put_part_head(out: &mut Vec<u8>, part: &ValuePart) {
    let (whole, cycle, of, under) = match part.of {
        Whole::Entry(owner, incarnation, cycle) => (kind::ENTRY, cycle, owner.0, incarnation),
        Whole::State(cycle, vnode) => (kind::STATE, cycle, vnode.0.into(), 0),
        Whole::Checkpoint(cycle, node) => (kind::FETCH, cycle, node.0, 0),
    };
    out.push(whole);
    out.extend(cycle.to_le_bytes());
    [of, under, part.length, part.offset].iter().for_each(|word| out.extend(word.to_le_bytes()));
}

fn part(r: &mut Reader<'_>, bytes: &Bytes) -> Result<ValuePart, Malformed> {
    let (whole, cycle, of, under) = (r.u8()?, r.u64()?, r.u32()?, r.u32()?);
    let of = match (whole, u16::try_from(of), under) {
        (kind::ENTRY, _, incarnation) => Whole::Entry(NodeId(of), incarnation, cycle),
        (kind::STATE, Ok(vnode), 0) => Whole::State(cycle, VnodeId(vnode)),
        (kind::FETCH, _, 0) => Whole::Checkpoint(cycle, NodeId(of)),
        _ => return Err(r.malformed("a part of nothing that there is")),
    };
    let (length, offset) = (r.u32()?, r.u32()?);
    let bytes = bytes.slice(PART_HEAD_BYTES..);
    r.take(bytes.len())?;
    let end = u64::from(offset) + bytes.len() as u64;
    if bytes.is_empty() || end > u64::from(length) {
        return Err(r.malformed("a part that is empty or goes beyond the whole"));
    }
    Ok(ValuePart { of, length, offset, bytes })
}

fn put_status(out: &mut Vec<u8>, status: &Status) {
    out.extend(status.disk.to_le_bytes());
    out.extend(status.started.to_le_bytes());
    out.extend(status.committed.to_le_bytes());
    out.extend(status.oldest.to_le_bytes());
    out.push(u8::from(status.leaves));
    put_groups(out, &status.groups);
}

fn status(r: &mut Reader<'_>) -> Result<Status, Malformed> {
    let (disk, started, committed, oldest) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    let leaves = r.u8()?;
    if leaves > 1 {
        return Err(r.malformed("neither leaving nor staying"));
    }
    Ok(Status { disk, started, committed, oldest, leaves: leaves == 1, groups: groups(r)? })
}

fn put_groups(out: &mut Vec<u8>, groups: &[(NodeId, u32, DurableReport)]) {
    out.push(groups.len() as u8);
    for (owner, incarnation, report) in groups {
        out.extend(owner.0.to_le_bytes());
        out.extend(incarnation.to_le_bytes());
        put_report(out, report);
    }
}

fn groups(r: &mut Reader<'_>) -> Result<Vec<(NodeId, u32, DurableReport)>, Malformed> {
    let mut groups = Vec::new();
    for _ in 0..r.u8()? {
        groups.push((NodeId(r.u32()?), r.u32()?, report(r)?));
    }
    Ok(groups)
}

fn put_known(out: &mut Vec<u8>, known: &KnownDisk) {
    out.extend(known.asked.to_le_bytes());
    out.extend(known.disk.to_le_bytes());
    out.extend([known.knows, known.votes, known.is_first].map(u8::from));
    out.extend(known.count.to_le_bytes());
    put_groups(out, &known.groups);
}

fn known(r: &mut Reader<'_>) -> Result<KnownDisk, Malformed> {
    let (asked, disk, knows, votes, first) = (r.u64()?, r.u64()?, r.u8()?, r.u8()?, r.u8()?);
    if knows > 1 || votes > 1 || first > 1 {
        return Err(r.malformed("an answer that is neither yes nor no"));
    }
    let (knows, votes, is_first) = (knows == 1, votes == 1, first == 1);
    Ok(KnownDisk { asked, disk, knows, votes, is_first, count: r.u32()?, groups: groups(r)? })
}

pub(crate) fn put_report(out: &mut Vec<u8>, report: &DurableReport) {
    out.extend(report.have.to_le_bytes());
    out.extend(report.next.to_le_bytes());
    out.extend(report.promised.0.to_le_bytes());
    out.extend(report.promised.1.0.to_le_bytes());
    let (term, end) = report.end.unwrap_or((0, 0));
    out.extend(term.to_le_bytes());
    out.extend(end.to_le_bytes());
    out.push(u8::from(report.closed));
}

pub(crate) fn report(r: &mut Reader<'_>) -> Result<DurableReport, Malformed> {
    let (have, next, promised) = (r.u64()?, r.u64()?, (r.u32()?, NodeId(r.u32()?)));
    let (term, end, closed) = (r.u32()?, r.u64()?, r.u8()?);
    if closed > 1 || (term == 0 && (end != 0 || closed == 1)) {
        return Err(r.malformed("an end without a term"));
    }
    let end = (term > 0).then_some((term, end));
    Ok(DurableReport { have, next, promised, end, closed: closed == 1 })
}

pub(crate) fn put_set(out: &mut Vec<u8>, set: &RequestSet) {
    out.extend(set.node.0.to_le_bytes());
    out.extend(set.incarnation.to_le_bytes());
    out.extend(set.number.to_le_bytes());
    out.extend((set.requests.len() as u16).to_le_bytes());
    out.extend_from_slice(set.requests.as_bytes());
}

pub(crate) fn set(r: &mut Reader<'_>, bytes: &Bytes) -> Result<RequestSet, Malformed> {
    let (node, incarnation, number, count) = (NodeId(r.u32()?), r.u32()?, r.u64()?, r.u16()?);
    Ok(RequestSet { node, incarnation, number, requests: Requests::read(r, bytes, count)? })
}

pub(crate) fn put_changes(out: &mut Vec<u8>, changes: &[AgreedChange]) {
    for change in changes {
        let (kind, node, incarnation) = match change {
            AgreedChange::Leave(node, incarnation) => (0, node, incarnation),
            AgreedChange::Join(node, incarnation) => (1, node, incarnation),
            AgreedChange::Lease(key) => {
                out.push(2);
                out.extend(key.0.to_le_bytes());
                continue;
            }
            AgreedChange::Retire(leaf, incarnation, reason) => {
                out.push(3);
                out.extend(leaf.0.to_le_bytes());
                out.extend(incarnation.to_le_bytes());
                out.push(*reason as u8);
                continue;
            }
        };
        out.push(kind);
        out.extend(node.0.to_le_bytes());
        out.extend(incarnation.to_le_bytes());
    }
}

pub(crate) fn changes(r: &mut Reader<'_>, count: u16) -> Result<Vec<AgreedChange>, Malformed> {
    let mut changes = Vec::new();
    for _ in 0..count {
        changes.push(match r.u8()? {
            0 => AgreedChange::Leave(NodeId(r.u32()?), r.u32()?),
            1 => AgreedChange::Join(NodeId(r.u32()?), r.u32()?),
            2 => AgreedChange::Lease(LeaseKey(r.u64()?)),
            3 => {
                let (leaf, incarnation) = (VnodeId(r.u16()?), r.u32()?);
                let reason = match r.u8()? {
                    0 => LeavingReason::Vanished,
                    1 => LeavingReason::Planned,
                    2 => LeavingReason::Anew,
                    _ => return Err(r.malformed("no such reason")),
                };
                AgreedChange::Retire(leaf, incarnation, reason)
            }
            _ => return Err(r.malformed("no such change")),
        });
    }
    Ok(changes)
}

pub(crate) fn put_proposal(out: &mut Vec<u8>, proposal: &Proposal) {
    out.extend(proposal.cycle.to_le_bytes());
    out.extend((proposal.changes.len() as u16).to_le_bytes());
    put_changes(out, &proposal.changes);
    put_set(out, &proposal.set);
}

pub(crate) fn proposal(r: &mut Reader<'_>, bytes: &Bytes) -> Result<Proposal, Malformed> {
    let (cycle, count) = (r.u64()?, r.u16()?);
    let changes = changes(r, count)?;
    Ok(Proposal { cycle, changes, set: set(r, bytes)? })
}

pub(crate) fn put_state(out: &mut Vec<u8>, state: &VnodeState) {
    out.extend(state.cycle.to_le_bytes());
    out.extend(state.vnode.0.to_le_bytes());
    out.extend(state.number.to_le_bytes());
    out.extend((state.changes.len() as u16).to_le_bytes());
    put_changes(out, &state.changes);
    out.extend((state.sets.len() as u16).to_le_bytes());
    state.sets.iter().for_each(|set| put_set(out, set));
}

pub(crate) fn state(r: &mut Reader<'_>, bytes: &Bytes) -> Result<VnodeState, Malformed> {
    let (cycle, vnode, number, count) = (r.u64()?, VnodeId(r.u16()?), r.u64()?, r.u16()?);
    let changes = changes(r, count)?;
    let count = r.u16()?;
    let mut sets = Vec::new();
    for _ in 0..count {
        sets.push(set(r, bytes)?);
    }
    Ok(VnodeState { cycle, vnode, number, changes, sets })
}
