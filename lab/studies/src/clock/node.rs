//! The machine under study. Its stamps have the noise of a host's stamps, and some nodes lie.

use evenfall_clock_machine::{TimeEvent, Timekeeper};
use evenfall_core::{
    Arrival, ClockReading, Install, Machine, Malformed, Prng, Sent, Timestamp, Transmit, math,
};

/// Greatest error of a liar's stamps towards one neighbour, in nanoseconds. The error is twice the
/// delay of a quiet network, so that delays cannot explain the larger lies.
const LIE_NS: u64 = 60_000;

/// A node with noisy stamps. A liar tells each neighbour another time.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) keeper: Timekeeper,
    pub(super) noise_ns: u64,
    pub(super) lies: bool,
    pub(super) prng: Prng,
}

impl Node {
    fn noisy(&mut self, at: Timestamp, shift: i64) -> Timestamp {
        let noise = self.prng.below(2 * self.noise_ns + 1) as i64 - self.noise_ns as i64;
        Timestamp::from_nanos(at.nanos().saturating_add_signed(noise + shift))
    }
}

impl Machine for Node {
    type Event = TimeEvent;

    fn handle(&mut self, now: Timestamp, mut arrival: Arrival) -> Result<(), Malformed> {
        let mut shift = 0;
        if self.lies {
            let neighbour = math::fnv1a(7, arrival.from.to_string().as_bytes());
            shift = Prng::new(neighbour).below(2 * LIE_NS) as i64 - LIE_NS as i64;
        }
        arrival.received = self.noisy(arrival.received, shift);
        self.keeper.handle(now, arrival)
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.keeper.handle_timeout(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.keeper.handle_clock(now, reading);
    }

    fn handle_sent(&mut self, now: Timestamp, mut sent: Sent) {
        sent.at = sent.at.map(|at| self.noisy(at, 0));
        self.keeper.handle_sent(now, sent);
    }

    fn poll_event(&mut self) -> Option<TimeEvent> {
        self.keeper.poll_event()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.keeper.poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        self.keeper.poll_transmit(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.keeper.poll_timeout()
    }
}
