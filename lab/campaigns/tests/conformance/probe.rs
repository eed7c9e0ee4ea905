//! A machine that sends datagrams on request and records its inputs.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockReading, Destination, GroupId, Head, Install, Machine, Malformed, Sent,
    Timestamp, Token, TrafficClass, Transmit,
};

const GROUP: GroupId = GroupId(1);

/// An input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saw {
    /// A reading of the synchronised clock.
    Clock,
    /// A datagram with this number.
    Datagram(u32),
}

/// See the module documentation.
#[derive(Default)]
pub struct Probe {
    pub saw: Vec<Saw>,
    timeout: Option<Timestamp>,
    pub timeouts: u32,
    /// Timeouts handed in before they were due.
    pub early: u32,
    /// Answers about transmits that asked: the token, and whether its copies left in the time
    /// since the transmit was made.
    pub answered: Vec<(u64, bool)>,
    made: Timestamp,
    installs: VecDeque<Install>,
    transmits: VecDeque<Transmit>,
}

impl Probe {
    /// Number of the last datagram that a receiver waits for.
    pub const LAST: u32 = 299;
    /// Time between two timeouts.
    const EVERY: Duration = Duration::from_millis(3);

    /// A machine with a periodic timeout.
    pub fn ticking(now: Timestamp) -> Self {
        Self { timeout: Some(now + Self::EVERY), ..Self::default() }
    }

    pub fn group(&mut self, members: &[SocketAddr]) {
        self.installs.push_back(Install::Group(GROUP, members.into()));
    }

    pub fn send_group(&mut self, number: u32) {
        self.send(Destination::Group(GROUP), TrafficClass::Live, number);
    }

    /// Sends as [`send_group`](Self::send_group), and asks for the departure time.
    pub fn ask_group(&mut self, now: Timestamp, number: u32) {
        self.made = now;
        self.send_group(number);
        let transmit = self.transmits.pop_back().map(|t| t.asking(Token(number.into())));
        self.transmits.extend(transmit);
    }

    pub fn send_one(&mut self, to: SocketAddr, class: TrafficClass, number: u32) {
        self.send(Destination::One(to), class, number);
    }

    fn send(&mut self, to: Destination, class: TrafficClass, number: u32) {
        let body = Bytes::copy_from_slice(&number.to_le_bytes());
        self.transmits.push_back(Transmit::new(class, to, Head::new(b"probe"), body));
    }

    pub fn seen_last(&self) -> bool {
        self.saw.last() == Some(&Saw::Datagram(Self::LAST))
    }
}

impl Machine for Probe {
    type Event = ();

    fn handle(&mut self, _: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let number = arrival.datagram.strip_prefix(b"probe").and_then(|n| n.try_into().ok());
        let number = number.ok_or(Malformed { what: "no probe", offset: 0 })?;
        self.saw.push(Saw::Datagram(u32::from_le_bytes(number)));
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if let Some(due) = self.timeout {
            self.timeouts += 1;
            self.early += u32::from(now < due);
            self.timeout = Some(now + Self::EVERY);
        }
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {
        self.saw.push(Saw::Clock);
    }

    fn handle_sent(&mut self, now: Timestamp, sent: Sent) {
        let in_time = sent.at.is_some_and(|at| self.made <= at && at <= now);
        self.answered.push((sent.token.0, in_time));
    }

    fn poll_event(&mut self) -> Option<()> {
        None
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.installs.pop_front()
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.timeout
    }
}
