//! A participant: a receiver that trades on what it releases.
//!
//! The process is a receiver of the demo (`evenfall run receiver`) with a hidden option that names
//! the exchange. Each release is decoded, and the algorithm of all participants judges its price.
//! An order is stamped with the receiver's synchronised clock and leaves at once by UDP.

use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::str::FromStr;

use evenfall_core::SyncTime;
use evenfall_feed_formats::event::Events;
use evenfall_feed_formats::synthetic::trades::DemoTrade;
use evenfall_host::clock::MonotonicClock;
use evenfall_multicast_machine::Release;
use evenfall_multicast_report::market::{PARTICIPANTS, StampConduct};
use evenfall_multicast_service::Settings;
use evenfall_multicast_service::roles::receiver::{self, Sink};
use evenfall_runtime::service::Start;
use serde_json::Value;

use super::order::OrderDatagram;

/// What `--trade` tells a receiver: where the exchange is, and which participant the receiver is.
///
/// The text is `ADDRESS/RUN/SEAT/CONDUCT`. RUN is hexadecimal. CONDUCT adds 1 for a participant
/// that opens early and 2 for one that writes deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParticipantSeat {
    /// Where the exchange takes orders.
    pub exchange: SocketAddr,
    /// The demo that orders are for.
    pub run: u64,
    /// The place in the market, from 0.
    pub seat: usize,
    /// What the participant does with its stamps.
    pub conduct: StampConduct,
}

impl fmt::Display for ParticipantSeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exchange, run, seat, conduct } = self;
        let StampConduct { opens_early, writes_deadline } = *conduct;
        let conduct = u8::from(opens_early) | u8::from(writes_deadline) << 1;
        write!(f, "{exchange}/{run:x}/{seat}/{conduct}")
    }
}

impl FromStr for ParticipantSeat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split('/');
        let mut part = || parts.next().ok_or("ADDRESS/RUN/SEAT/CONDUCT");
        let exchange = part()?.parse().map_err(|error| format!("the exchange: {error}"))?;
        let run = u64::from_str_radix(part()?, 16).map_err(|error| format!("the run: {error}"))?;
        let seat = part()?.parse().ok().filter(|seat| *seat < PARTICIPANTS);
        let seat = seat.ok_or_else(|| format!("a seat from 0 to {}", PARTICIPANTS - 1))?;
        let conduct: Option<u8> = part()?.parse().ok().filter(|conduct| *conduct < 4);
        let conduct = conduct.ok_or("a conduct from 0 to 3")?;
        let conduct =
            StampConduct { opens_early: conduct & 1 != 0, writes_deadline: conduct & 2 != 0 };
        if parts.next().is_some() {
            return Err("ADDRESS/RUN/SEAT/CONDUCT and nothing more".into());
        }
        Ok(Self { exchange, run, seat, conduct })
    }
}

/// Places an order for each release that is worth an order.
struct OrderSink {
    seat: ParticipantSeat,
    socket: UdpSocket,
    events: Events,
    placed: u64,
    /// Orders that the socket did not take.
    unsent: u64,
}

impl OrderSink {
    fn open(seat: ParticipantSeat) -> std::io::Result<Self> {
        let local = SocketAddr::new(seat.exchange.ip(), 0);
        let socket = UdpSocket::bind(local)?;
        socket.connect(seat.exchange)?;
        // A receiver that waited here would release the next message late. The order is given up
        // and counted.
        socket.set_nonblocking(true)?;
        Ok(Self { seat, socket, events: Events::new(), placed: 0, unsent: 0 })
    }
}

impl Sink for OrderSink {
    fn released(&mut self, release: &Release, at: SyncTime) {
        let entered = MonotonicClock::now();
        let (arrived_ns, conduct) = (release.arrived.nanos(), self.seat.conduct);
        let deadline_ns = release.deadline.map(SyncTime::nanos);
        for (number, message) in (release.first_message..).zip(release.messages.clone()) {
            let trade = DemoTrade::of_event(&self.events.read(release.format, &message));
            if trade.and_then(DemoTrade::profit_cents).is_none() {
                continue;
            }
            // The clock was read just before this call. What the decision took comes on top.
            let own = at + MonotonicClock::now().since(entered);
            let order = OrderDatagram {
                participant: self.seat.seat as u32,
                run: self.seat.run,
                trade: number,
                stamp_ns: conduct.stamp(arrived_ns, own.nanos(), deadline_ns),
            };
            self.placed += 1;
            self.unsent += u64::from(self.socket.send(&order.encode()).is_err());
        }
    }

    fn lost(&mut self, _: u32, _: Option<u64>, _: Option<u64>) {}
}

/// Runs a participant to the end of the feed.
///
/// # Errors
/// As a receiver, and when no socket can be opened.
pub fn take_part(
    start: &Start<'_>,
    seat: ParticipantSeat,
) -> Result<Value, Box<dyn std::error::Error>> {
    let settings = Settings::of(start.document)?;
    let node = settings.node(&start.node.name)?;
    let exchange = seat.exchange;
    let mut sink =
        OrderSink::open(seat).map_err(|error| format!("the exchange {exchange}: {error}"))?;
    let summary = receiver::run(&settings, node, &mut sink)?;
    let OrderSink { placed, unsent, .. } = sink;
    let name = &node.name;
    tracing::info!("{name}: {placed} orders placed, {unsent} of them not sent");
    Ok(serde_json::to_value(summary)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seat_is_read_as_it_was_written_and_mistakes_are_named() {
        for (opens_early, writes_deadline) in [(false, false), (true, false), (true, true)] {
            let conduct = StampConduct { opens_early, writes_deadline };
            let exchange = SocketAddr::from(([127, 0, 0, 1], 7_000));
            let seat = ParticipantSeat { exchange, run: u64::MAX - 1, seat: 3, conduct };
            assert_eq!(seat.to_string().parse(), Ok(seat));
        }
        for (text, word) in [
            ("", "exchange"),
            ("127.0.0.1:1", "CONDUCT"),
            ("127.0.0.1:1/g/0/0", "run"),
            ("127.0.0.1:1/1/4/0", "seat"),
            ("127.0.0.1:1/1/0/x", "conduct"),
            ("127.0.0.1:1/1/0/4", "conduct"),
            ("127.0.0.1:1/1/0/0/x", "nothing more"),
        ] {
            let said = text.parse::<ParticipantSeat>().unwrap_err();
            assert!(said.contains(word), "{text}: {said}");
        }
    }
}
