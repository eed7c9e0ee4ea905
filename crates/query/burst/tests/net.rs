//! Ranks and the datagrams between them, in memory. Datagrams are lost and arrive in any order.

use std::net::SocketAddr;
use std::time::Duration;

use evenfall_collectives_machine::group::{GroupSettings, ProcessGroup};
use evenfall_collectives_machine::{RankFailure, ShuffleConfig};
use evenfall_core::{Arrival, Destination, Machine, Prng, StampedBy, Timestamp};
use evenfall_query_burst::burst::{Burst, BurstEvent, BurstProgram};

const STEP: Duration = Duration::from_micros(500);

fn address(rank: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7_000 + rank as u16))
}

/// How a burst ended at each rank.
pub type Ends<O> = Vec<Option<Result<O, RankFailure>>>;

/// The ranks of a group, each with a program.
pub struct Net<P: BurstProgram> {
    pub ranks: Vec<Burst<P>>,
    wire: Vec<(usize, Arrival)>,
    now: Timestamp,
    prng: Prng,
    loss: f64,
    /// The rank that answers nothing.
    pub dead: Option<usize>,
    pub ends: Ends<P::Output>,
}

impl<P: BurstProgram> Net<P> {
    pub fn new(ranks: usize, seed: u64, loss: f64) -> Self {
        let members: Vec<_> = (0..ranks).map(address).collect();
        let shuffle = ShuffleConfig {
            packet_bytes: 512,
            resend_after: Duration::from_millis(2),
            silence_max: Duration::from_millis(200),
            ..ShuffleConfig::default()
        };
        let settings = GroupSettings { shuffle, ..GroupSettings::default() };
        let group = |rank| ProcessGroup::new(rank, members.clone(), settings.clone()).unwrap();
        let ends = (0..ranks).map(|_| None).collect();
        Self {
            ranks: (0..ranks).map(|rank| Burst::new(group(rank))).collect(),
            wire: Vec::new(),
            now: Timestamp::from_nanos(1_000_000_000),
            prng: Prng::new(seed),
            loss,
            dead: None,
            ends,
        }
    }

    pub fn start(&mut self, rank: usize, program: P) {
        self.ranks[rank].start(self.now, program);
    }

    pub fn step(&mut self) {
        self.now += STEP;
        let mut wire = std::mem::take(&mut self.wire);
        self.prng.shuffle(&mut wire);
        for (to, arrival) in wire {
            if Some(to) != self.dead && !self.prng.chance(self.loss) {
                self.ranks[to].handle(self.now, arrival).expect("ours");
            }
        }
        for (rank, burst) in self.ranks.iter_mut().enumerate() {
            if Some(rank) == self.dead {
                continue;
            }
            burst.run_work(self.now);
            if burst.poll_timeout().is_some_and(|due| due <= self.now) {
                burst.handle_timeout(self.now);
            }
            while let Some(event) = burst.poll_event() {
                match event {
                    BurstEvent::Result { output, .. } => self.ends[rank] = Some(Ok(output)),
                    BurstEvent::Ended => {}
                    BurstEvent::Failed(failure) => self.ends[rank] = Some(Err(failure)),
                }
            }
            while let Some(transmit) = burst.poll_transmit(self.now) {
                let Destination::One(to) = transmit.to else { panic!("no groups") };
                let datagram = [transmit.head.as_slice(), &transmit.body].concat().into();
                let arrival = Arrival::new(address(rank), datagram, self.now, StampedBy::User);
                self.wire.push((usize::from(to.port()) - 7_000, arrival));
            }
        }
    }

    /// Runs until no rank is in a burst.
    pub fn run(&mut self) {
        for _ in 0..10_000 {
            self.step();
            let rests =
                |(rank, burst): (usize, &Burst<P>)| Some(rank) == self.dead || !burst.is_running();
            if self.ranks.iter().enumerate().all(rests) {
                return;
            }
        }
        panic!("the burst does not end");
    }

    /// The results of all ranks.
    pub fn results(self) -> Vec<P::Output> {
        let output = |end: Option<Result<P::Output, RankFailure>>| {
            end.expect("an end").unwrap_or_else(|failure| panic!("{failure}"))
        };
        self.ends.into_iter().map(output).collect()
    }
}
