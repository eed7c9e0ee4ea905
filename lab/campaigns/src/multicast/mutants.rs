//! Machines with one defect each, which test the checkers.
//!
//! A mutation sits between a real machine and the world, and alters its input or output. Production
//! code therefore needs no switches: a machine whose requests for repair are swallowed *is* a
//! machine that forgets to repair.

use std::collections::VecDeque;

use bytes::Bytes;
use evenfall_core::time::nanos;
use evenfall_core::{Arrival, ClockError, ClockReading, Timestamp, TrafficClass, Transmit};
use evenfall_multicast_machine::{ReceiverEvent, Release, RootEvent, wire};
use evenfall_sim::{Alteration, named_variants};

use super::node::{CampaignNode, NodeEvent};
use super::subject::{OldKeyAttack, Tamper};

named_variants! {
    /// The defect of a mutant.
    pub enum Mutant {
        /// De-duplication is off: some frames are released twice.
        ReleasesTwice,
        /// Two frames change places.
        SwapsFrames,
        /// Releases half a millisecond early: its clock is ahead of the time that it was told.
        ReleasesEarly,
        /// The root stamps by its host's clock, and follows every step.
        RootTrustsItsHost,
        /// A receiver releases by its host's clock, and follows every step.
        ReceiverTrustsItsHost,
        /// A receiver releases by a clock that has left its proven bound.
        BelievesDisproved,
        /// The root stamps by a clock that has left its proven bound.
        RootBelievesDisproved,
        /// Holds messages 20 ms longer from some frame on.
        HoldsLonger,
        /// Never asks for repair.
        ForgetsRepair,
        /// Skips lost frames and does not report them.
        SwallowsLost,
        /// Skips a frame now and then.
        SkipsQuietly,
        /// Releases bytes that the feed did not have.
        TrustsTampered,
        /// Shortens the hold, so that a deadline lies before an earlier frame's.
        LowersDeadline,
        /// Ignores every view after the first, and so keeps its first place.
        ForgetsToReparent,
        /// Believes a report that claims too much.
        BelievesForgedReport,
        /// Keeps more than its configuration allows.
        IgnoresLimits,
        /// Does not notice when the root dies.
        IgnoresRoot,
        /// Answers one child's requests before it forwards to the others.
        ServesTheSlowFirst,
        /// Lets go of a straggler before the spare feeds.
        BreaksBeforeMaking,
        /// Reports more than a datagram holds.
        ReportsTooMuch,
        /// Does not say that it has caught up.
        NeverCatchesUp,
        /// The signatures of the root are damaged on their way.
        MarsSignatures,
        /// Takes frames under a key of the run that has been out of use for long.
        TakesOldKeys,
    }
}

/// A mutant at work.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// The defect, if there is one.
    mutant: Option<Mutant>,
    /// Tampering on the path.
    tamper: Option<Tamper>,
    /// Frames under keys that are out of use.
    attack: Option<OldKeyAttack>,
    /// Counts events, because the defect strikes only some of them.
    count: u64,
    kept: Option<NodeEvent>,
    placed: bool,
    starved: u32,
    /// From the decision to replace a proxy until the next view.
    broken: bool,
}

/// By how much [`Mutant::HoldsLonger`] holds messages longer.
const LONGER: core::time::Duration = core::time::Duration::from_millis(20);
/// The frame after which [`Mutant::HoldsLonger`] holds messages longer.
const LONGER_FROM: u64 = 300;
/// Every how many releases something goes wrong.
const EVERY: u64 = 97;
/// Frames that wait while a slow child is served. One request asks for up to 512 frames.
const STARVED: u32 = 32;
/// Offset of the kind of a datagram, see [`wire`].
const KIND_OFFSET: usize = 3;
/// Offset of the number of released messages in a report: behind the header, the receivers and the
/// finished receivers.
const REPORT_RELEASED: usize = wire::HEADER_BYTES + 8;

impl Mutation {
    /// A mutant that has not acted yet, with tampering on the path.
    pub fn new(mutant: Option<Mutant>, tamper: Option<Tamper>) -> Self {
        Self {
            mutant,
            tamper,
            attack: None,
            count: 0,
            kept: None,
            placed: false,
            starved: 0,
            broken: false,
        }
    }

    /// The same with an attacker that has an old key of the run.
    pub fn with_attack(self, attack: Option<OldKeyAttack>) -> Self {
        Self { attack, ..self }
    }
}

impl Alteration<CampaignNode> for Mutation {
    fn arrival(
        &mut self,
        node: &CampaignNode,
        now: Timestamp,
        mut arrival: Arrival,
    ) -> Option<Arrival> {
        if let Some(tamper) = &mut self.tamper {
            arrival = tamper.maybe(now, arrival);
        }
        if let Some(attack) = &mut self.attack {
            let takes_old_keys = self.mutant == Some(Mutant::TakesOldKeys);
            arrival = attack.maybe_forge(now, arrival, takes_old_keys);
        }
        let Some(mutant) = self.mutant else { return Some(arrival) };
        let kind = arrival.datagram.get(KIND_OFFSET).copied();
        match (mutant, node) {
            (Mutant::ForgetsToReparent, CampaignNode::Receiver(_) | CampaignNode::Relay(_))
                if kind == Some(wire::DatagramKind::Assign as u8) =>
            {
                (!core::mem::replace(&mut self.placed, true)).then_some(arrival)
            }
            (Mutant::BelievesForgedReport, CampaignNode::Root(_))
                if kind == Some(wire::DatagramKind::Report as u8) =>
            {
                let mut bytes = arrival.datagram.to_vec();
                if let Some(byte) = bytes.get_mut(REPORT_RELEASED + 2) {
                    *byte ^= 1;
                }
                arrival.datagram = Bytes::from(bytes);
                Some(arrival)
            }
            (Mutant::ServesTheSlowFirst, CampaignNode::Relay(_))
                if kind == Some(wire::DatagramKind::Nack as u8) =>
            {
                self.starved = STARVED;
                Some(arrival)
            }
            _ => Some(arrival),
        }
    }

    fn reading(&self, node: &CampaignNode, reading: ClockReading) -> ClockReading {
        let ahead = core::time::Duration::from_micros(500);
        match (self.mutant, node) {
            (Some(Mutant::ReleasesEarly), CampaignNode::Receiver(_)) => {
                let offset_ns = reading.offset_ns + nanos(ahead) as i64;
                ClockReading { offset_ns, ..reading }
            }
            // One clock for all has no error, so that a machine believes it blindly.
            (Some(Mutant::RootTrustsItsHost), CampaignNode::Root(_))
            | (Some(Mutant::ReceiverTrustsItsHost), CampaignNode::Receiver(_)) => {
                ClockReading { error: ClockError::SameClock, ..reading }
            }
            (Some(Mutant::RootBelievesDisproved), CampaignNode::Root(_))
                if reading.error == ClockError::Disproved =>
            {
                ClockReading { error: ClockError::SameClock, ..reading }
            }
            (Some(Mutant::BelievesDisproved), CampaignNode::Receiver(_))
                if reading.error == ClockError::Disproved =>
            {
                ClockReading { error: ClockError::Within(ahead), ..reading }
            }
            _ => reading,
        }
    }

    fn sends(&mut self, transmit: &mut Transmit) -> bool {
        let kind = transmit.head.as_slice().get(KIND_OFFSET).copied();
        if self.mutant == Some(Mutant::ReportsTooMuch)
            && kind == Some(wire::DatagramKind::Report as u8)
        {
            transmit.body = Bytes::from([&transmit.body[..], &[0; 1_500]].concat());
        }
        if self.mutant == Some(Mutant::MarsSignatures)
            && kind == Some(wire::DatagramKind::Signature as u8)
        {
            transmit.body = mar_signature(&transmit.body);
        }
        if self.starved > 0 && transmit.class == TrafficClass::Live {
            self.starved -= 1;
            return false;
        }
        if self.broken && transmit.class == TrafficClass::Live {
            return false;
        }
        self.mutant != Some(Mutant::ForgetsRepair) || kind != Some(wire::DatagramKind::Nack as u8)
    }

    fn event(&mut self, event: NodeEvent, out: &mut VecDeque<NodeEvent>) {
        let Some(mutant) = self.mutant else { return out.push_back(event) };
        if mutant == Mutant::BreaksBeforeMaking {
            match &event {
                NodeEvent::Root(RootEvent::Replacement(_)) => self.broken = true,
                NodeEvent::Root(RootEvent::View(_)) => self.broken = false,
                _ => {}
            }
        }
        let hit = match &event {
            NodeEvent::Receiver(ReceiverEvent::Released(_))
            | NodeEvent::Root(RootEvent::Framed(_)) => {
                self.count += 1;
                self.count.is_multiple_of(EVERY)
            }
            _ => false,
        };
        match (mutant, event) {
            (Mutant::SwallowsLost, NodeEvent::Receiver(ReceiverEvent::Lost { .. }))
            | (Mutant::IgnoresRoot, NodeEvent::Receiver(ReceiverEvent::RootLost))
            | (Mutant::NeverCatchesUp, NodeEvent::Receiver(ReceiverEvent::CaughtUp)) => {}
            (Mutant::SkipsQuietly, NodeEvent::Receiver(ReceiverEvent::Released(_))) if hit => {}
            (Mutant::ReleasesTwice, event @ NodeEvent::Receiver(_)) if hit => {
                out.extend([event.clone(), event]);
            }
            (Mutant::SwapsFrames, event @ NodeEvent::Receiver(ReceiverEvent::Released(_))) => {
                if hit {
                    self.kept = Some(event);
                } else {
                    out.push_back(event);
                    out.extend(self.kept.take());
                }
            }
            (Mutant::TrustsTampered, NodeEvent::Receiver(ReceiverEvent::Released(release)))
                if hit =>
            {
                let tampered = tampered(release);
                out.push_back(NodeEvent::Receiver(ReceiverEvent::Released(tampered)));
            }
            (Mutant::LowersDeadline, NodeEvent::Root(RootEvent::Framed(mut framed))) if hit => {
                let earlier = core::time::Duration::from_millis(5);
                framed.deadline = framed.deadline.map(|deadline| deadline - earlier);
                out.push_back(NodeEvent::Root(RootEvent::Framed(framed)));
            }
            (Mutant::HoldsLonger, NodeEvent::Root(RootEvent::Framed(mut framed)))
                if framed.sequence > LONGER_FROM =>
            {
                framed.deadline = framed.deadline.map(|deadline| deadline + LONGER);
                out.push_back(NodeEvent::Root(RootEvent::Framed(framed)));
            }
            (_, event) => out.push_back(event),
        }
    }
}

/// The same body of a signature with another last byte: of a digest, or of the seal's tag where the
/// feed has a key.
pub(crate) fn mar_signature(body: &Bytes) -> Bytes {
    let mut body = body.to_vec();
    if let Some(last) = body.last_mut() {
        *last ^= 1;
    }
    body.into()
}

/// The same release with one bit of its body changed.
fn tampered(mut release: Release) -> Release {
    let mut body = Vec::new();
    for message in release.messages.clone() {
        body.extend_from_slice(&(message.len() as u16).to_le_bytes());
        body.extend_from_slice(&message);
    }
    if let Some(last) = body.last_mut() {
        *last ^= 1;
    }
    if let Ok(messages) = wire::Messages::new(body.into(), release.count) {
        release.messages = messages;
    }
    release
}
