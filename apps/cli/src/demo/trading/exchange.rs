//! The exchange of a demo: a thread that collects orders, and what it fills at the end.
//!
//! The exchange fills the trades in their order when the feed has ended. Which order is filled
//! depends on nothing that comes later, so the outcome is that of an exchange that fills at once.
//! The exchange then knows the deadline of every message from the log of the root.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use evenfall_feed_formats::synthetic::trades::DemoTrade;
use evenfall_host::clock::MonotonicClock;
use evenfall_multicast_report::market::{Market, TradeOrders};
use evenfall_multicast_service::Settings;
use evenfall_multicast_service::runlog::{RunLogReader, RunLogRecord, file_name};
use evenfall_multicast_service::settings::MulticastNode;
use evenfall_port::{Options, Port};

use super::collection::OrderCollection;
use super::outcome::TradingOutcome;
use super::participant::ParticipantSeat;
use super::{StampRule, name_participants, seat_of};
use crate::demo::{Args, processes, summary};

/// How long the exchange sleeps at most before it looks whether the demo is over.
const LOOK: Duration = Duration::from_millis(50);

/// How long the exchange reads at most after the end of the demo. It reads the orders that are in
/// its socket then. A sender that goes on for ever must not keep the demo from its end.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// An exchange that collects orders.
pub struct Exchange {
    run: u64,
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<OrderCollection>>,
}

/// The deadline of each message, as far as the roots logged it. The log of a root that was killed
/// ends early, and a standby has the rest.
fn read_deadlines(settings: &Settings, messages: usize) -> Vec<Option<u64>> {
    let mut deadlines_ns = vec![None; messages];
    for root in processes::roots(settings) {
        let path = settings.run.dir.join(file_name(&root.name));
        let Some(log) = File::open(path).ok().and_then(|file| RunLogReader::new(file).ok()) else {
            continue;
        };
        for record in log {
            let RunLogRecord::Sent(sent) = record else { continue };
            let place = usize::try_from(sent.message).ok();
            if let Some(deadline_ns) = place.and_then(|place| deadlines_ns.get_mut(place)) {
                *deadline_ns = deadline_ns.or(sent.deadline_ns);
            }
        }
    }
    deadlines_ns
}

/// Collects orders until the demo is over and no order waits.
fn collect(port: &mut dyn Port, orders: &mut OrderCollection, is_over: &AtomicBool) {
    let (mut arrivals, mut end) = (Vec::new(), None);
    loop {
        // The last orders are in the socket when the demo is over.
        if is_over.load(Relaxed) {
            end.get_or_insert_with(|| MonotonicClock::now() + DRAIN_MAX);
        }
        let count = port.receive(&mut arrivals);
        let now = MonotonicClock::now();
        arrivals.drain(..).for_each(|arrival| orders.take_datagram(now, &arrival.datagram));
        match end {
            Some(end) if count == 0 || now >= end => return,
            None if count == 0 => _ = port.wait(None, Some(now + LOOK)),
            _ => {}
        }
    }
}

impl Exchange {
    /// Opens the exchange of a demo; `None` for a demo without trading.
    ///
    /// # Errors
    /// When there are no random numbers, or no socket can be opened.
    pub fn open(args: &Args) -> Result<Option<Self>, Box<dyn std::error::Error>> {
        if !args.trading.is_on() {
            return Ok(None);
        }
        let run = evenfall_host::random::number()?;
        let profits = (0..args.messages).map(|n| DemoTrade::of(args.seed, n).profit_cents());
        let mut orders = OrderCollection::new(run, profits);
        // Orders have no key, so the port listens on loopback alone.
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let options = Options { coalescing: false, ..Options::default() };
        let mut port = evenfall_port::open(at, options)?;
        let (address, is_over) = (port.local_addr(), Arc::new(AtomicBool::new(false)));
        let seen = Arc::clone(&is_over);
        let body = move || {
            collect(port.as_mut(), &mut orders, &seen);
            orders
        };
        let thread = Some(std::thread::Builder::new().name("exchange".into()).spawn(body)?);
        Ok(Some(Self { run, address, is_over, thread }))
    }

    /// What the process of a node needs to take part in the market; `None` for a node that does not
    /// trade.
    pub fn describe_seat(&self, args: &Args, node: &MulticastNode) -> Option<String> {
        let seat = seat_of(args.receivers, &node.name)?;
        let (exchange, run) = (self.address, self.run);
        let conduct = args.trading.conduct_of(seat);
        Some(ParticipantSeat { exchange, run, seat, conduct }.to_string())
    }

    /// Ends the collection of orders, and fills them.
    ///
    /// # Errors
    /// When the thread of the exchange panicked.
    pub fn settle(mut self, args: &Args, settings: &Settings) -> Result<TradingOutcome, String> {
        self.is_over.store(true, Relaxed);
        let ended = self.thread.take().and_then(|thread| thread.join().ok());
        let orders = ended.ok_or("the exchange: it panicked")?;
        let deadlines_ns = read_deadlines(settings, orders.messages());
        let mut market = Market::new(args.seed, args.trading.stamps == StampRule::NotEarly);
        let (mut trades, mut unanswered) = (0, 0);
        for (number, trade) in orders.open_trades() {
            trades += 1;
            unanswered += u64::from(trade.stamps.iter().all(Option::is_none));
            let deadline_ns = deadlines_ns.get(number as usize).copied().flatten();
            let (profit_cents, stamps) = (trade.profit_cents, trade.stamps);
            market.fill(&TradeOrders { profit_cents, deadline_ns, stamps });
        }
        let participants = name_participants(args.receivers);
        let ended = participants.each_ref().map(|name| !summary(args, name).is_null());
        let (placed, refused) = (orders.placed(), orders.refused());
        Ok(TradingOutcome { participants, ended, market, trades, unanswered, placed, refused })
    }
}

impl Drop for Exchange {
    /// A demo that ends early leaves no exchange behind that goes on listening.
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn flood_does_not_keep_the_exchange_from_ending() {
        let options = Options { coalescing: false, ..Options::default() };
        let mut port = evenfall_port::open("127.0.0.1:0".parse().unwrap(), options).unwrap();
        let to = port.local_addr();
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                while !has_ended.load(Relaxed) {
                    let _ = socket.send_to(b"flood", to);
                }
            });
            let mut orders = OrderCollection::new(1, [Some(5)]);
            collect(port.as_mut(), &mut orders, &AtomicBool::new(true));
            has_ended.store(true, Relaxed);
            assert_eq!(orders.placed(), [0; 4]);
        });
    }
}
