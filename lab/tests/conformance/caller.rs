//! A rank of a group that makes some calls and keeps what came of them.

use bytes::Bytes;
use evenfall_core::{Arrival, ClockReading, Install, Machine, Malformed, Timestamp, Transmit};
use evenfall_exchange_machine::group::{Call, Event, Group, Outcome, Reduce, Settings};

/// See the module documentation.
pub struct Caller {
    group: Group,
    begun: bool,
    pub ended: Vec<Event>,
}

/// Bytes that tell sender and receiver; some messages are many packets long, some are empty.
fn body(from: usize, to: usize) -> Bytes {
    let length = (from * 7 + to * 13) % 11 * 5_000;
    (0..length).map(|at| (at * 31 + from * 3 + to * 17) as u8).collect()
}

fn lanes(value: u64) -> Bytes {
    Bytes::copy_from_slice(&value.to_le_bytes())
}

impl Caller {
    pub const CALLS: usize = 7;

    pub fn new(rank: usize, members: Vec<std::net::SocketAddr>) -> Self {
        let group = Group::new(rank, members, Settings::default()).expect("a rank");
        Self { group, begun: false, ended: Vec::new() }
    }

    /// Makes all calls, once.
    pub fn begin(&mut self, now: Timestamp) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let (me, ranks) = (self.group.rank(), self.group.members().len());
        let messages: Vec<Bytes> = (0..ranks).map(|to| body(me, to)).collect();
        let calls: [Call; Self::CALLS] = [
            Call::Barrier,
            Call::Broadcast { root: 1, body: body(me, 1) },
            Call::Gather { root: 2, body: body(me, 2) },
            Call::AllGather { body: body(me, 0) },
            Call::AllReduce { values: lanes(me as u64), by: Reduce::Sum },
            Call::Shuffle { messages: messages.clone() },
            Call::TwoLevelShuffle { messages },
        ];
        for call in calls {
            self.group.call(now, call).expect("begun");
        }
    }

    /// Outcomes in order of the calls, when all are here.
    pub fn outcomes(&self) -> Option<Vec<Outcome>> {
        let outcome = |number: usize| {
            self.ended.iter().find_map(|event| match event {
                Event::Done { call, outcome } if *call == number as u64 => Some(outcome.clone()),
                Event::Done { .. } => None,
                Event::Failed { failure, .. } => panic!("{failure}"),
            })
        };
        (0..Self::CALLS).map(outcome).collect()
    }

    /// What they should be.
    pub fn expected(me: usize, ranks: usize) -> Vec<Outcome> {
        let all = |to: usize| Outcome::All((0..ranks).map(|from| body(from, to)).collect());
        vec![
            Outcome::Nothing,
            Outcome::One(body(1, 1)),
            if me == 2 { all(2) } else { Outcome::Nothing },
            all(0),
            Outcome::One(lanes((0..ranks as u64).sum())),
            all(me),
            all(me),
        ]
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
