//! Orders on their way back: whose order is first at the exchange, and when the exchange knows it.
//!
//! A feed that comes to all participants at one instant helps nobody whose order loses its lead on
//! the way back. So ways are compared on the whole race. A message goes out, ten participants
//! answer it, each after a time of its own, and the exchange puts their orders in a sequence. The
//! race is fair when the participant that answered fastest comes first.
//!
//! ```text
//! exchange  | message 17                                  sequence: P4, P9
//! P4        |------ has it |- 9 us -| order --------->  |
//! P9        |--- has it |---- 14 us ----| order -->  |
//! ```
//!
//! | ranking | place of an order | what the exchange waits for |
//! |---|---|---|
//! | [`Arrival`](OrderRanking::Arrival) | as it comes | nothing |
//! | [`Sequencer`](OrderRanking::Sequencer) | by its stamp | a delay after the stamp |
//! | [`DeliveryClock`](OrderRanking::DeliveryClock) | by the message that it answers, and the time since its delivery | word from all participants |
//!
//! The sequencer is that of CloudEx (Ghalayini et al., HotOS 2021), the delivery clock that of DBO
//! (Goyal et al., SIGCOMM 2023).
//!
//! Every way gets the same races: participants and response times depend on the seed alone. Orders
//! travel over the cloud of the run, between the same hosts, which pause at the same times. They
//! share no queue with the feed, because a card has a queue for each direction.

mod ranking;
mod upward;

use core::time::Duration;

use evenfall_campaigns::multicast::{MessageCourse, OverlayParams, run_heard};
use evenfall_core::time::nanos;
use evenfall_core::{Prng, nearest_rank};

use ranking::{OrderDecision, rank_orders};
use upward::{UpwardContent, UpwardDeparture, send_upward};

/// Participants that answer a message.
pub const RESPONDERS: usize = 10;
/// The shortest and the longest time for an answer. DBO promises fairness only up to a longest
/// time, so that it is told the longest one here. Assumed: fast programs, which differ by
/// microseconds.
const RESPONSES: [Duration; 2] = [Duration::from_micros(5), Duration::from_micros(20)];
/// The first of this many parts of the feed is not judged, because delays are learned in it.
const UNJUDGED: usize = 5;
/// Word of the random numbers of races.
const RACES: u64 = 0x72_61_63_65;

/// How the exchange puts orders in a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderRanking {
    /// First come, first served.
    Arrival,
    /// By the stamps of the gateways that release messages. An order waits until a delay after its
    /// stamp has passed. The delay follows the share of orders that come too late.
    Sequencer,
    /// By the message that an order answers and the time since the message was delivered to its
    /// sender. A release buffer beside each participant measures this time by its local clock,
    /// delivers messages no closer than the longest response, and reports when this time has
    /// passed. An order waits until the reports of all participants are past its place.
    DeliveryClock,
}

/// A feed and the orders that answer it.
#[derive(Clone, Debug)]
pub struct OrderScene {
    /// The run of the feed.
    pub params: OverlayParams,
    /// How the exchange ranks.
    pub ranking: OrderRanking,
}

/// What the races came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OrderFigures {
    /// Share of the races in which the fastest answer has the first place.
    pub fastest_first: f64,
    /// Share of the pairs of orders of a race whose faster answer has the earlier place.
    pub pairs_in_order: f64,
    /// From the time at which a message was due until the exchange knows the first order of its
    /// race: percentiles 50, 90 and 99, microseconds.
    pub decided_us: [f64; 3],
}

/// A message at a participant, in nanoseconds of true time.
#[derive(Clone, Copy, Debug)]
struct MessageDelivery {
    at_ns: u64,
    /// How far the clock that stamps the answer is ahead.
    ahead_ns: i64,
}

/// A message that has not come.
const ABSENT: MessageDelivery = MessageDelivery { at_ns: u64::MAX, ahead_ns: 0 };

/// When every participant had each message.
#[derive(Debug)]
struct DeliveryBook {
    participants: usize,
    due_ns: Vec<u64>,
    /// Of each message in turn, the delivery to every participant.
    deliveries: Vec<MessageDelivery>,
}

/// An answer to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RaceOrder {
    message: u32,
    participant: u32,
    response_ns: u64,
    /// When it leaves its participant.
    leaves_ns: u64,
    /// The same by the clock of the participant's gateway.
    stamp_ns: u64,
}

impl DeliveryBook {
    fn new(participants: u32) -> Self {
        let participants = participants as usize;
        Self { participants, due_ns: Vec::new(), deliveries: Vec::new() }
    }

    fn hear(&mut self, course: MessageCourse) {
        match course {
            MessageCourse::Sent { scheduled_ns, .. } => {
                self.due_ns.push(scheduled_ns);
                self.deliveries.resize(self.due_ns.len() * self.participants, ABSENT);
            }
            MessageCourse::Released { message, receiver, release_ns, ahead_ns, .. } => {
                let place = message as usize * self.participants + receiver as usize;
                self.deliveries[place] = MessageDelivery { at_ns: release_ns, ahead_ns };
            }
        }
    }

    /// Delivers the messages of each participant at least this far apart.
    fn space_out(&mut self, gap_ns: u64) {
        let mut free = vec![0; self.participants];
        for deliveries in self.deliveries.chunks_mut(self.participants) {
            for (delivery, free) in deliveries.iter_mut().zip(&mut free) {
                if delivery.at_ns < u64::MAX {
                    delivery.at_ns = delivery.at_ns.max(*free);
                    *free = delivery.at_ns + gap_ns;
                }
            }
        }
    }

    /// The answers to all messages, message by message. A participant that has no message gives no
    /// answer.
    fn draw_orders(&self, seed: u64) -> Vec<RaceOrder> {
        let mut prng = Prng::new(seed).fork(RACES);
        let mut everybody: Vec<u32> = (0..self.participants as u32).collect();
        let [least, most] = RESPONSES.map(nanos);
        let mut orders = Vec::new();
        for (message, deliveries) in (0..).zip(self.deliveries.chunks(self.participants)) {
            prng.shuffle(&mut everybody);
            for &participant in everybody.iter().take(RESPONDERS) {
                let response_ns = least + prng.below(most - least);
                let MessageDelivery { at_ns, ahead_ns } = deliveries[participant as usize];
                if at_ns < u64::MAX {
                    let leaves_ns = at_ns + response_ns;
                    let stamp_ns = leaves_ns.saturating_add_signed(ahead_ns);
                    orders.push(RaceOrder {
                        message,
                        participant,
                        response_ns,
                        leaves_ns,
                        stamp_ns,
                    });
                }
            }
        }
        orders
    }

    /// What each participant sends, in order: its orders, and a report when the longest response
    /// time after a delivery has passed.
    fn list_departures(&self, orders: &[RaceOrder], reports: bool) -> Vec<Vec<UpwardDeparture>> {
        let mut departures: Vec<Vec<UpwardDeparture>> = vec![Vec::new(); self.participants];
        for (number, order) in (0..).zip(orders) {
            let content = UpwardContent::Order(number);
            let departure = UpwardDeparture { at_ns: order.leaves_ns, content };
            departures[order.participant as usize].push(departure);
        }
        let all = (0..).zip(self.deliveries.chunks(self.participants)).filter(|_| reports);
        for (message, deliveries) in all {
            for (delivery, own) in deliveries.iter().zip(&mut departures) {
                if delivery.at_ns < u64::MAX {
                    let at_ns = delivery.at_ns + nanos(RESPONSES[1]);
                    own.push(UpwardDeparture { at_ns, content: UpwardContent::Report(message) });
                }
            }
        }
        departures.iter_mut().for_each(|own| own.sort_by_key(|departure| departure.at_ns));
        departures
    }

    fn figures(&self, orders: &[RaceOrder], decided: &[Option<OrderDecision>]) -> OrderFigures {
        let (mut races, mut fair) = (0_u64, 0_u64);
        let (mut pairs, mut in_order) = (0_u64, 0_u64);
        let mut times = Vec::new();
        let mut first = 0;
        for race in orders.chunk_by(|a, b| a.message == b.message) {
            let places = &decided[first..first + race.len()];
            first += race.len();
            let message = race[0].message as usize;
            if message < self.due_ns.len() / UNJUDGED {
                continue;
            }
            let mut known: Vec<(OrderDecision, u64)> = race
                .iter()
                .zip(places)
                .filter_map(|(order, decision)| Some(((*decision)?, order.response_ns)))
                .collect();
            known.sort_unstable_by_key(|(decision, _)| decision.place);
            let Some(&(winner, response_ns)) = known.first() else { continue };
            let fastest = known.iter().map(|(_, response_ns)| *response_ns).min();
            races += 1;
            fair += u64::from(fastest == Some(response_ns));
            for (at, (_, ahead)) in known.iter().enumerate() {
                for (_, behind) in &known[at + 1..] {
                    pairs += 1;
                    in_order += u64::from(ahead <= behind);
                }
            }
            times.push(winner.at_ns.saturating_sub(self.due_ns[message]));
        }
        times.sort_unstable();
        let share = |part: u64, of: u64| if of == 0 { f64::NAN } else { part as f64 / of as f64 };
        OrderFigures {
            fastest_first: share(fair, races),
            pairs_in_order: share(in_order, pairs),
            decided_us: [0.5, 0.9, 0.99]
                .map(|q| nearest_rank(&times, q).map_or(f64::NAN, |ns| ns as f64 / 1e3)),
        }
    }
}

/// Runs the feed, sends the orders back and ranks them.
///
/// # Panics
/// When participants share hosts or there are several trees: orders have no such scene.
pub fn run_orders(scene: &OrderScene) -> OrderFigures {
    let params = &scene.params;
    assert!(params.receivers_per_host <= 1 && params.trees <= 1, "one host each, one tree");
    let mut book = DeliveryBook::new(params.receivers);
    run_heard(params, &mut |_| {}, &mut |course| book.hear(course));
    let reports = scene.ranking == OrderRanking::DeliveryClock;
    if reports {
        book.space_out(nanos(RESPONSES[1]));
    }
    let orders = book.draw_orders(params.seed);
    let arrivals = send_upward(params, book.list_departures(&orders, reports));
    let decided = rank_orders(scene.ranking, &orders, &arrivals, book.participants);
    book.figures(&orders, &decided)
}

#[cfg(test)]
mod tests;
