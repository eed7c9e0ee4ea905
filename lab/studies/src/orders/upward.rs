//! The way of orders from the participants to the exchange.
//!
//! The hosts are those of the feed, in the same order, so that the same seed gives them the same
//! paths and the same pauses. All local clocks show true time, because departures are given in true
//! time.

use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;

use evenfall_campaigns::multicast::OverlayParams;
use evenfall_core::{
    Arrival, ClockReading, Destination, Head, Machine, Malformed, Reader, Timestamp, TrafficClass,
    Transmit,
};
use evenfall_sim::{
    ClockSpec, Cloud, HostSpec, Network, NodeIndex, Observer, Seen, SimTime, World,
};

/// Bytes of an order and of a report.
const ORDER_BYTES: usize = 40;
/// First bytes of an order and of a report.
const TAG_ORDER: u8 = 1;
const TAG_REPORT: u8 = 2;
/// How long the last orders may be under way: longer than all but the rarest pauses of hosts.
const UNDER_WAY_MAX: Duration = Duration::from_millis(50);

/// What a participant's host sends to the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpwardContent {
    /// The order of this number.
    Order(u32),
    /// The longest response time after the delivery of this message has passed.
    Report(u32),
}

/// A datagram to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UpwardDeparture {
    pub(super) at_ns: u64,
    pub(super) content: UpwardContent,
}

/// What a datagram says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UpwardNote {
    participant: u32,
    content: UpwardContent,
}

/// A datagram at the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UpwardArrival {
    pub(super) at_ns: u64,
    pub(super) participant: u32,
    pub(super) content: UpwardContent,
}

/// The host of a participant, which sends its departures at their times, or the exchange or a
/// proxy, which have none.
struct OrderPort {
    exchange: SocketAddr,
    participant: u32,
    departures: Vec<UpwardDeparture>,
    /// Departures that are due, and those that have left.
    due: usize,
    left: usize,
    heard: VecDeque<UpwardNote>,
}

impl OrderPort {
    fn new(participant: u32, departures: Vec<UpwardDeparture>) -> Self {
        let exchange = NodeIndex(0).address();
        Self { exchange, participant, departures, due: 0, left: 0, heard: VecDeque::new() }
    }

    fn idle() -> Self {
        Self::new(0, Vec::new())
    }
}

fn write_note(note: UpwardNote) -> Head {
    let (tag, number) = match note.content {
        UpwardContent::Order(number) => (TAG_ORDER, number),
        UpwardContent::Report(message) => (TAG_REPORT, message),
    };
    let mut bytes = [0; ORDER_BYTES];
    bytes[0] = tag;
    bytes[1..5].copy_from_slice(&note.participant.to_le_bytes());
    bytes[5..9].copy_from_slice(&number.to_le_bytes());
    Head::new(&bytes)
}

fn read_note(datagram: &[u8]) -> Result<UpwardNote, Malformed> {
    let r = &mut Reader::new(datagram);
    let (tag, participant, number) = (r.u8()?, r.u32()?, r.u32()?);
    let content = match tag {
        TAG_ORDER => UpwardContent::Order(number),
        TAG_REPORT => UpwardContent::Report(number),
        _ => return Err(r.malformed("neither an order nor a report")),
    };
    Ok(UpwardNote { participant, content })
}

impl Machine for OrderPort {
    type Event = UpwardNote;

    fn handle(&mut self, _: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        self.heard.push_back(read_note(&arrival.datagram)?);
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        let rest = &self.departures[self.due..];
        self.due += rest.partition_point(|departure| departure.at_ns <= now.nanos());
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<UpwardNote> {
        self.heard.pop_front()
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        if self.left == self.due {
            return None;
        }
        let content = self.departures[self.left].content;
        self.left += 1;
        let head = write_note(UpwardNote { participant: self.participant, content });
        let to = Destination::One(self.exchange);
        Some(Transmit::new(TrafficClass::Live, to, head, Default::default()))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.departures.get(self.due).map(|departure| Timestamp::from_nanos(departure.at_ns))
    }
}

/// Notes what comes to the exchange.
#[derive(Default)]
struct ArrivalLog(Vec<UpwardArrival>);

impl<N: Network> Observer<OrderPort, N> for ArrivalLog {
    fn event(&mut self, seen: Seen, note: UpwardNote) {
        let UpwardNote { participant, content } = note;
        self.0.push(UpwardArrival { at_ns: seen.at.nanos(), participant, content });
    }
}

/// Sends what every participant has to send. Returns the arrivals at the exchange in the order of
/// their times.
pub(super) fn send_upward(
    params: &OverlayParams,
    departures: Vec<Vec<UpwardDeparture>>,
) -> Vec<UpwardArrival> {
    let last = departures.iter().flatten().map(|departure| departure.at_ns).max().unwrap_or(0);
    let network = Cloud::new(params.cloud.clone(), params.seed);
    let mut world: World<OrderPort, Cloud> = World::new(network, params.seed);
    let clock = ClockSpec { origin: Some(Timestamp::ZERO), ..ClockSpec::default() };
    let host = HostSpec { clock, ..params.host.clone() };
    world.add(OrderPort::idle(), host.clone());
    for _ in 0..params.proxies() {
        world.add(OrderPort::idle(), host.clone());
    }
    for (participant, own) in (0..).zip(departures) {
        world.add(OrderPort::new(participant, own), host.clone());
    }
    let mut log = ArrivalLog::default();
    world.run_until(SimTime::from_nanos(last) + UNDER_WAY_MAX, &mut log);
    log.0
}
