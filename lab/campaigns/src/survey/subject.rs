//! The machines of a survey as one type, watched by [`Strict`], with their mutants.

use core::time::Duration;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use evenfall_core::{
    Arrival, ClockError, ClockReading, Destination, Install, Machine, Malformed, Timestamp,
    TrafficClass, Transmit,
};
use evenfall_placement_machine::probe::{DelayProbe, HEADER_BYTES, MAGIC as PROBE};
use evenfall_placement_machine::surveyor::Welcome;
use evenfall_placement_machine::wire::MAGIC as CONTROL;
use evenfall_placement_machine::{
    Agent, AgentEvent, HostFailure, JobOutcome, PairDelays, Program, SurveyStep, Surveyor,
    SurveyorEvent, TreeSurvey,
};
use evenfall_sim::{Strict, any_machine, named_variants};

/// A program that a mutant can make deaf to failures.
#[derive(Debug)]
pub struct Ear {
    /// The program.
    pub survey: TreeSurvey,
    /// Whether the program is told of no failures.
    pub deaf: bool,
}

impl Program for Ear {
    fn greeted(&mut self, pool: &[Result<Welcome, HostFailure>]) {
        let fine = |answer: &Result<Welcome, HostFailure>| match answer {
            Err(_) if self.deaf => {
                Ok(Welcome { software: String::new(), clock: ClockError::Unknown })
            }
            answer => answer.clone(),
        };
        self.survey.greeted(&pool.iter().map(fine).collect::<Vec<_>>());
    }

    fn next(&mut self) -> SurveyStep {
        self.survey.next()
    }

    fn take(&mut self, outcome: &JobOutcome) {
        let mut outcome = outcome.clone();
        if self.deaf {
            let leader = outcome.spec.hosts[0];
            let like = outcome.pairs.first().cloned();
            for (to, _) in core::mem::take(&mut outcome.failures) {
                let record = like.as_ref().map(|pair| pair.record.clone()).unwrap_or_default();
                outcome.pairs.push(PairDelays { from: leader, to, path: false, sent: 0, record });
            }
        }
        self.survey.take(&outcome);
    }
}

/// A machine of a survey.
#[derive(Debug)]
pub enum Station {
    /// An agent on a host of the pool.
    Agent(Box<Agent>),
    /// The surveyor, which orders jobs.
    Surveyor(Box<Surveyor<Ear>>),
}

/// Events of a machine of a survey for its owner.
#[derive(Clone, Debug)]
pub enum StationEvent {
    /// An event of an agent.
    Agent(AgentEvent),
    /// An event of the surveyor.
    Surveyor(SurveyorEvent),
}

any_machine! {
    impl Machine for Station {
        type Event = StationEvent;

        Agent(agent) => agent.poll_event().map(StationEvent::Agent),
        Surveyor(surveyor) => surveyor.poll_event().map(StationEvent::Surveyor),
    }
}

named_variants! {
    /// Faults put into a machine on purpose. The campaign must detect each of them.
    pub enum Mutant {
        /// An agent that goes on after its lease has ended.
        ForgetsLease,
        /// A surveyor without time limits.
        WaitsForever,
        /// An agent that counts probes of other jobs.
        CountsOthers,
        /// An agent that counts duplicates of a probe.
        CountsTwice,
        /// An agent that does not notice a step of its clock.
        TrustsClock,
        /// A surveyor that does not recognise an agent of another version.
        MissesVersion,
        /// A program that is told of no failures.
        Deaf,
    }
}

/// Offset of the version in a control message.
const VERSION_OFFSET: usize = 2;
/// The version of the agent of another version.
pub const FOREIGN_VERSION: u8 = 9;
/// Silence after which the mutant `WaitsForever` ignores timeouts.
const NAP: Duration = Duration::from_millis(200);

/// The probe that a rogue agent repeats.
#[derive(Debug, Default)]
struct Rogue {
    probe: Option<Transmit>,
    to: Vec<SocketAddr>,
    turn: usize,
    due: bool,
}

impl Rogue {
    /// The repeated probe, which follows every control message.
    fn again(&mut self) -> Option<Transmit> {
        let probe = self.probe.as_ref().filter(|_| core::mem::take(&mut self.due))?;
        self.turn += 1;
        let to = Destination::One(*self.to.get(self.turn % self.to.len().max(1))?);
        Some(Transmit { to, ..probe.clone() })
    }

    fn sent(&mut self, transmit: &Transmit) {
        self.due = transmit.class == TrafficClass::Control;
        let counts = transmit.head.as_slice().get(3) == Some(&0);
        if transmit.class == TrafficClass::Live && counts && self.probe.is_none() {
            self.probe = Some(transmit.clone());
        }
    }
}

/// A machine of a fault run.
#[derive(Debug)]
pub struct SurveySubject {
    inner: Strict<Station>,
    mutant: Option<Mutant>,
    foreign: bool,
    /// Repeats a probe of its first job for ever, as from a queue that drains late.
    rogue: Option<Rogue>,
    heard: Timestamp,
    /// Run and job of the last probe that belonged to the agent's own job.
    own: Option<[u8; 12]>,
    counted: u32,
    last_timeout: Timestamp,
}

impl SurveySubject {
    /// A machine, with or without a mutant. With `foreign`, it uses another version of the
    /// protocol.
    pub fn new(station: Station, mutant: Option<Mutant>, foreign: bool) -> Self {
        Self {
            inner: Strict::new(station),
            mutant,
            foreign,
            rogue: None,
            heard: Timestamp::ZERO,
            own: None,
            counted: 0,
            last_timeout: Timestamp::ZERO,
        }
    }

    /// The same machine as a rogue, which repeats probes of its first job for ever.
    pub fn rogue(self) -> Self {
        Self { rogue: Some(Rogue::default()), ..self }
    }

    /// The machine under test.
    pub fn station(&self) -> &Station {
        &self.inner.inner
    }

    fn is_agent(&self) -> bool {
        matches!(self.station(), Station::Agent(_))
    }

    fn naps(&self, at: Timestamp) -> bool {
        let who = match self.mutant {
            Some(Mutant::ForgetsLease) => self.is_agent(),
            Some(Mutant::WaitsForever) => !self.is_agent(),
            _ => false,
        };
        // The mutant strikes only after the machine's first message, because a machine that never
        // ran would prove nothing.
        who && self.heard > Timestamp::ZERO && at > self.heard + NAP
    }

    /// The probes that a mutant hands to the machine in place of one probe.
    fn probe(&mut self, arrival: Arrival) -> (Arrival, Option<Arrival>) {
        let job = 8..20;
        match self.mutant {
            Some(Mutant::CountsOthers) => {
                let mut bytes = BytesMut::from(&arrival.datagram[..]);
                if let (Some(own), true) = (self.own, bytes.len() >= HEADER_BYTES) {
                    bytes[job].copy_from_slice(&own);
                    self.counted += 1;
                    bytes[20..24].copy_from_slice(&self.counted.to_le_bytes());
                }
                (Arrival { datagram: bytes.freeze(), ..arrival }, None)
            }
            Some(Mutant::CountsTwice) => {
                let mut bytes = BytesMut::from(&arrival.datagram[..]);
                if let Some(byte) = bytes.get_mut(22) {
                    *byte = 1;
                }
                (arrival.clone(), Some(Arrival { datagram: bytes.freeze(), ..arrival }))
            }
            _ => (arrival, None),
        }
    }
}

impl Machine for SurveySubject {
    type Event = StationEvent;

    fn handle(&mut self, now: Timestamp, mut arrival: Arrival) -> Result<(), Malformed> {
        if arrival.datagram.starts_with(&PROBE) && self.is_agent() {
            if self.foreign {
                return Ok(());
            }
            let (first, second) = self.probe(arrival);
            let result = self.inner.handle(now, first);
            while self.inner.poll_event().is_some() {}
            while self.inner.poll_install().is_some() {}
            return match second {
                Some(second) => self.inner.handle(now, second),
                None => result,
            };
        }
        self.heard = now;
        let foreign = arrival.datagram.get(VERSION_OFFSET) == Some(&FOREIGN_VERSION);
        if self.mutant == Some(Mutant::MissesVersion) && foreign {
            return Ok(());
        }
        if arrival.datagram.starts_with(&CONTROL) {
            // A task gives the number of the agent's own job from now on.
            if arrival.datagram.get(3) == Some(&2)
                && let Some(job) = arrival.datagram.get(8..20)
            {
                self.own = job.try_into().ok();
            }
            if self.foreign {
                arrival.datagram = of_version(&arrival.datagram, FOREIGN_VERSION);
            }
        }
        self.inner.handle(now, arrival)
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.last_timeout = now;
        if !self.naps(now) {
            self.inner.handle_timeout(now);
        }
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        let trusting = self.mutant == Some(Mutant::TrustsClock) && self.is_agent();
        let error = if trusting { ClockError::Unknown } else { reading.error };
        self.inner.handle_clock(now, ClockReading { error, ..reading });
    }

    fn poll_event(&mut self) -> Option<StationEvent> {
        self.inner.poll_event()
    }

    fn poll_install(&mut self) -> Option<Install> {
        let install = self.inner.poll_install()?;
        if let (Some(rogue), Install::Group(_, members)) = (&mut self.rogue, &install)
            && rogue.to.is_empty()
        {
            rogue.to = members.to_vec();
        }
        Some(install)
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        if let Some(again) = self.rogue.as_mut().and_then(Rogue::again) {
            return Some(again);
        }
        let mut transmit = self.inner.poll_transmit(now)?;
        if let Some(rogue) = &mut self.rogue {
            rogue.sent(&transmit);
        }
        if self.foreign && transmit.class == TrafficClass::Control {
            transmit.body = of_version(&transmit.body, FOREIGN_VERSION);
        }
        Some(transmit)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let at = self.inner.poll_timeout()?;
        (!self.naps(at) && !self.naps(self.last_timeout)).then_some(at)
    }
}

fn of_version(message: &Bytes, version: u8) -> Bytes {
    let mut bytes = BytesMut::from(&message[..]);
    if let Some(byte) = bytes.get_mut(VERSION_OFFSET) {
        *byte = version;
    }
    bytes.freeze()
}

/// The probe in a datagram; `None` when the datagram is not a probe.
pub fn probe_of(
    datagram: &[u8],
    key: Option<&evenfall_placement_machine::MacKey>,
) -> Option<DelayProbe> {
    DelayProbe::decode(datagram, key).ok()
}
