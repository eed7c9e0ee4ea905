//! A rank of a group that makes some calls and keeps their outcomes.

use evenfall_collectives_machine::group::sample::{CALLS, SampleCalls};
use evenfall_collectives_machine::group::{
    CollectiveEvent, CollectiveOutcome, GroupSettings, ProcessGroup,
};
use evenfall_core::{Arrival, ClockReading, Install, Machine, Malformed, Timestamp, Transmit};

/// See the module documentation.
pub struct Caller {
    group: ProcessGroup,
    begun: bool,
    pub ended: Vec<CollectiveEvent>,
}

/// Bodies of up to 50 KB. Some messages have many packets, and some are empty.
fn sample(ranks: usize) -> SampleCalls {
    SampleCalls { ranks, root: 1, seed: 1, body_bytes_max: 50_000 }
}

impl Caller {
    pub fn new(rank: usize, members: Vec<std::net::SocketAddr>) -> Self {
        let group = ProcessGroup::new(rank, members, GroupSettings::default()).expect("a rank");
        Self { group, begun: false, ended: Vec::new() }
    }

    /// Makes all calls at the first invocation, and nothing later.
    pub fn begin(&mut self, now: Timestamp) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let (me, sample) = (self.group.rank(), sample(self.group.members().len()));
        for (call, _) in sample.calls(me) {
            self.group.call(now, call).expect("begun");
        }
    }

    /// Outcomes in the order of the calls, when all calls have ended.
    pub fn outcomes(&self) -> Option<Vec<CollectiveOutcome>> {
        let outcome = |number: usize| {
            self.ended.iter().find_map(|event| match event {
                CollectiveEvent::Done { call, outcome } if *call == number as u64 => {
                    Some(outcome.clone())
                }
                CollectiveEvent::Done { .. }
                | CollectiveEvent::Arrived { .. }
                | CollectiveEvent::Here { .. } => None,
                CollectiveEvent::Failed { failure, .. } => panic!("{failure}"),
            })
        };
        (0..CALLS.len()).map(outcome).collect()
    }

    /// The outcomes that the calls must have.
    pub fn expected(me: usize, ranks: usize) -> Vec<CollectiveOutcome> {
        sample(ranks).calls(me).into_iter().map(|(_, outcome)| outcome).collect()
    }
}

impl Machine for Caller {
    type Event = ();

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        self.group.handle(now, arrival)
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.group.handle_timeout(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.group.handle_clock(now, reading);
    }

    fn poll_event(&mut self) -> Option<()> {
        self.ended.extend(std::iter::from_fn(|| self.group.poll_event()));
        None
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.group.poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        self.group.poll_transmit(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.group.poll_timeout()
    }
}
