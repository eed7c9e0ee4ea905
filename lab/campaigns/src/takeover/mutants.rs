//! Machines with one defect each, which test the checks.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use evenfall_consensus_machine::ClientRequest;
use evenfall_consensus_machine::wire::ReplicaMessage;
use evenfall_core::{
    Arrival, Destination, GroupId, Head, NodeId, Timestamp, TrafficClass, Transmit,
};
use evenfall_multicast_machine::ReceiverEvent;
use evenfall_multicast_machine::wire::{self, DatagramKind, HEADER_BYTES};
use evenfall_multicast_sessions::FeedEntry;
use evenfall_multicast_sessions::producer::NumberedRange;
use evenfall_multicast_sessions::producer::wire::{
    self as letter, ProduceRequest, ProduceResponse, ProducerEnvelope,
};
use evenfall_multicast_sessions::standby::session::VOTE_HEAD_BYTES;
use evenfall_sim::{Alteration, NodeIndex, named_variants};

use super::actor::{Actor, Told};
use crate::consensus::exaggerate;
use crate::multicast::mutants::mar_signature;
use crate::multicast::node::NodeEvent;

named_variants! {
    /// The defect of a mutant.
    pub enum Mutant {
        /// Voters take any report for the report of a voter that has ten entries more.
        BelievesAnyVote,
        /// A root sends some frames to the tree instead of to the voters.
        SendsAtOnce,
        /// A root stamps the frames that it repairs anew.
        StampsRepairAnew,
        /// A receiver skips a frame now and then.
        SkipsQuietly,
        /// A successor goes on with the epoch of the first leader.
        KeepsTheEpoch,
        /// Standbys stop voting after a second.
        StopsVoting,
        /// A node confirms some places under the first epoch that it knew.
        ObeysTheOld,
        /// A node asks for a successor after two seconds.
        SeeksLate,
        /// Children of a root report to the first root, whichever root leads.
        ReportsToTheFirst,
        /// A root that is started again draws the random number of its first life.
        KeepsTheLife,
        /// Standbys take no notice of the authors of the messages on which they agree.
        ForgetsThePlaces,
        /// An author that sends messages again begins a new line with them.
        BeginsTheLineAnew,
        /// An author that is started again has no name.
        ForgetsItsName,
        /// A root answers some messages before the voters agree on them.
        AnswersAhead,
        /// An author never tells the end of its line.
        LosesItsLine,
        /// The signatures of a root are damaged on their way.
        MarsSignatures,
    }
}

/// A mutant at work on one node.
pub struct Wrong {
    mutant: Mutant,
    node: NodeIndex,
    is_receiver: bool,
    count: u64,
    first_epoch: Option<[u8; 4]>,
    /// When the node first sent a request to join, or a vote.
    joined: Option<Timestamp>,
    sought: Option<Timestamp>,
    now: Timestamp,
    /// The author's number in a line begun anew, and the place at which that line begins.
    anew: Option<(u64, u64)>,
    /// The author's number in its first line, and the place behind the last that it sent.
    first_life: Option<u64>,
    said: u64,
}

/// Every how many frames something goes wrong.
const EVERY: u64 = 31;
/// How long [`Mutant::SeeksLate`] waits, and how long after its first request to join.
const LATE: Duration = Duration::from_secs(2);
const FIRST: Duration = Duration::from_millis(500);
/// How long [`Mutant::StopsVoting`] votes.
const VOTES: Duration = Duration::from_secs(1);
const KIND: usize = 3;
const EPOCH: core::ops::Range<usize> = 12..16;
const ORIGIN: usize = 40;

impl Wrong {
    /// A mutant that has not acted yet.
    pub fn new(mutant: Mutant, node: NodeIndex, is_receiver: bool) -> Self {
        Self {
            mutant,
            node,
            is_receiver,
            count: 0,
            first_epoch: None,
            joined: None,
            sought: None,
            now: Timestamp::ZERO,
            anew: None,
            first_life: None,
            said: 0,
        }
    }

    fn is_root(&self) -> bool {
        self.node.0 < super::ROOTS
    }

    fn strikes(&mut self) -> bool {
        self.count += 1;
        self.count.is_multiple_of(EVERY)
    }
}

/// A datagram of the overlay with another head.
fn with_head(transmit: &mut Transmit, change: impl FnOnce(&mut [u8])) {
    let mut head = transmit.head.as_slice().to_vec();
    change(&mut head);
    transmit.head = Head::new(&head);
}

/// The datagram of the order in a vote, with its sender and the digest of its tree.
fn vote(datagram: &Bytes) -> Option<(NodeId, u64, ReplicaMessage)> {
    let bytes = datagram.slice(VOTE_HEAD_BYTES.min(datagram.len())..);
    let digest = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
    let (from, message) = ReplicaMessage::decode(&bytes, digest).ok()?;
    Some((from, digest, message))
}

/// The frame of a proposal, as a datagram to the tree.
fn to_the_tree(transmit: &Transmit) -> Option<Transmit> {
    let bytes = Bytes::from([transmit.head.as_slice(), &transmit.body[..]].concat());
    let (_, _, ReplicaMessage::Entry(proposal)) = vote(&bytes)? else { return None };
    let body = proposal.set.requests.iter().next()?.body;
    let Ok((_, FeedEntry::Frame(_))) = FeedEntry::decode(&body) else { return None };
    let mut head = body[5..5 + 57].to_vec();
    head.resize(HEADER_BYTES, 0);
    let to = Destination::Group(GroupId(3));
    Some(Transmit::new(TrafficClass::Live, to, Head::new(&head), body.slice(5 + 57..)))
}

/// The envelope and the body of a letter.
fn letter(datagram: &Bytes) -> Option<(ProducerEnvelope, Bytes)> {
    if !datagram.starts_with(&letter::MAGIC) {
        return None;
    }
    ProducerEnvelope::open(None, datagram).ok()
}

/// The proposal of a vote without the authors of its frames.
fn without_places(datagram: &Bytes) -> Option<Bytes> {
    let (from, digest, ReplicaMessage::Entry(mut proposal)) = vote(datagram)? else { return None };
    let mut requests: Vec<ClientRequest> = proposal.set.requests.iter().collect();
    for request in &mut requests {
        if let Ok((term, FeedEntry::Frame(draft))) = FeedEntry::decode(&request.body) {
            request.body = FeedEntry::Frame(draft.marked(Vec::new())).encode(term);
        }
    }
    proposal.set.requests = requests.iter().collect();
    let head = &datagram[..VOTE_HEAD_BYTES];
    Some([head, &ReplicaMessage::Entry(proposal).encode(from, digest)].concat().into())
}

impl Wrong {
    /// What an author says. It begins a new line whenever it sends something again.
    fn says_anew(&mut self, transmit: &mut Transmit) {
        let bytes = Bytes::from([transmit.head.as_slice(), &transmit.body[..]].concat());
        let Some((envelope, body)) = letter(&bytes) else { return };
        let Ok(say) = ProduceRequest::decode(&body) else { return };
        let own = *self.first_life.get_or_insert(envelope.author);
        if !say.messages.is_empty() {
            if say.place < self.said {
                self.count += 1;
                self.anew = Some((own ^ self.count, say.have));
            }
            self.said = say.place + say.messages.len() as u64;
        }
        let (author, base) = self.anew.unwrap_or((own, 0));
        let (have, place) = (say.have.saturating_sub(base), say.place.saturating_sub(base));
        let say = ProduceRequest { have, place, ..say };
        (transmit.head, transmit.body) =
            ProducerEnvelope { author, ..envelope }.seal(None, say.encode());
    }

    /// What an author hears of its present line, with the places of its first line.
    fn hears_anew(&self, arrival: Arrival) -> Arrival {
        let Some((envelope, body)) = letter(&arrival.datagram) else { return arrival };
        let Ok(mut answer) = ProduceResponse::decode(&body) else { return arrival };
        let own = self.first_life.unwrap_or(envelope.author);
        let (author, base) = self.anew.unwrap_or((own, 0));
        if author != envelope.author {
            answer.stretches.clear();
            answer.is_over = false;
        }
        answer.next += base;
        answer.stretches.iter_mut().for_each(|stretch| stretch.place += base);
        let (head, body) = ProducerEnvelope { author: own, ..envelope }.seal(None, answer.encode());
        Arrival { datagram: [head.as_slice(), &body].concat().into(), ..arrival }
    }

    /// Answers a message before the voters agree on it.
    fn answers_ahead(&mut self, transmit: &mut Transmit) {
        let bytes = Bytes::from([transmit.head.as_slice(), &transmit.body[..]].concat());
        let Some((envelope, body)) = letter(&bytes) else { return };
        let Ok(mut answer) = ProduceResponse::decode(&body) else { return };
        let Some(last) = answer.stretches.last().copied() else { return };
        if self.strikes() {
            let count = u64::from(last.count);
            let (place, number) = (last.place + count, last.number + count);
            answer.stretches.push(NumberedRange { place, number, count: 1 });
            answer.next = place + 1;
            (transmit.head, transmit.body) = envelope.seal(None, answer.encode());
        }
    }
}

impl Alteration<Actor> for Wrong {
    fn arrival(&mut self, actor: &Actor, now: Timestamp, arrival: Arrival) -> Option<Arrival> {
        self.now = now;
        match self.mutant {
            Mutant::ForgetsThePlaces if self.is_root() && self.node.0 > 0 => {
                let datagram = without_places(&arrival.datagram);
                return Some(
                    datagram.map_or(arrival.clone(), |datagram| Arrival { datagram, ..arrival }),
                );
            }
            Mutant::BeginsTheLineAnew if matches!(actor, Actor::ProducerSession(_)) => {
                return Some(self.hears_anew(arrival));
            }
            Mutant::BelievesAnyVote => {}
            _ => return Some(arrival),
        }
        let Some((from, digest, ReplicaMessage::Status(mut status))) = vote(&arrival.datagram)
        else {
            return Some(arrival);
        };
        exaggerate(&mut status, NodeId(self.node.0));
        let head = &arrival.datagram[..VOTE_HEAD_BYTES];
        let datagram = [head, &ReplicaMessage::Status(status).encode(from, digest)].concat().into();
        Some(Arrival { datagram, ..arrival })
    }

    fn sends(&mut self, transmit: &mut Transmit) -> bool {
        let head = transmit.head.as_slice();
        let is_overlay = head.starts_with(&wire::MAGIC.to_le_bytes());
        let kind = head.get(KIND).copied().filter(|_| is_overlay);
        let is = |of: DatagramKind| kind == Some(of as u8);
        match self.mutant {
            Mutant::SendsAtOnce if self.is_root() && !is_overlay => {
                if let Some(early) = to_the_tree(transmit).filter(|_| self.strikes()) {
                    *transmit = early;
                }
            }
            Mutant::StopsVoting if self.is_root() && !is_overlay => {
                let joined = *self.joined.get_or_insert(self.now);
                return self.node.0 == 0 || self.now.since(joined) < VOTES;
            }
            Mutant::StampsRepairAnew
                if self.is_root()
                    && is(DatagramKind::Data)
                    && transmit.class == TrafficClass::Repair =>
            {
                with_head(transmit, |head| head[ORIGIN] ^= 1);
            }
            Mutant::MarsSignatures if self.is_root() && is(DatagramKind::Signature) => {
                transmit.body = mar_signature(&transmit.body);
            }
            Mutant::KeepsTheEpoch if self.is_root() && is_overlay => {
                with_head(transmit, |head| {
                    head[EPOCH].copy_from_slice(&super::EPOCH.to_le_bytes());
                });
            }
            Mutant::ObeysTheOld if is(DatagramKind::Assigned) => {
                let epoch = head[EPOCH].try_into().unwrap_or_default();
                let first = *self.first_epoch.get_or_insert(epoch);
                self.count += 1;
                if first != epoch && self.count.is_multiple_of(2) {
                    with_head(transmit, |head| head[EPOCH].copy_from_slice(&first));
                }
            }
            Mutant::SeeksLate if is(DatagramKind::Join) => {
                // The first joins, before the feed begins, are in time.
                let joined = *self.joined.get_or_insert(self.now);
                if self.now.since(joined) > FIRST {
                    let sought = *self.sought.get_or_insert(self.now);
                    return self.now.since(sought) >= LATE;
                }
            }
            Mutant::BeginsTheLineAnew if !self.is_root() => self.says_anew(transmit),
            Mutant::AnswersAhead if self.is_root() => self.answers_ahead(transmit),
            Mutant::LosesItsLine if !self.is_root() => {
                let says = ProduceRequest::decode(&transmit.body).is_ok_and(|say| say.is_end);
                return !(says && transmit.head.as_slice().starts_with(&letter::MAGIC));
            }
            Mutant::ReportsToTheFirst if is(DatagramKind::Report) => {
                let roots = (0..super::ROOTS).map(|root| NodeIndex(root).address());
                if roots.map(Destination::One).any(|root| root == transmit.to) {
                    transmit.to = Destination::One(NodeIndex(0).address());
                }
            }
            _ => {}
        }
        true
    }

    fn event(&mut self, event: Told, out: &mut VecDeque<Told>) {
        let is_release =
            matches!(event, Told::Node(NodeEvent::Receiver(ReceiverEvent::Released(_))));
        if self.mutant == Mutant::SkipsQuietly && self.is_receiver && is_release && self.strikes() {
            return;
        }
        out.push_back(event);
    }
}
