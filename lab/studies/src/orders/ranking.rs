//! Places of orders: what each ranking knows when an order comes, and what it waits for.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use evenfall_core::time::nanos;

use super::upward::{UpwardArrival, UpwardContent};
use super::{OrderRanking, RESPONSES, RaceOrder};

/// The sequencer's delay at first, nanoseconds: about the 99th percentile of a way back.
const DELAY_FIRST_NS: u64 = 100_000;
/// The share of orders that may come too late. Assumed.
const LATE_SHARE: f64 = 0.01;
/// Orders between two changes of the delay: ten of them may be late.
const DELAY_WINDOW: u32 = 1_000;

/// The place of an order in the sequence, and when the exchange knew it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OrderDecision {
    pub(super) place: u32,
    pub(super) at_ns: u64,
}

/// The sequence as it grows.
struct OrderSequence {
    /// By number of the order.
    decided: Vec<Option<OrderDecision>>,
    length: u32,
}

impl OrderSequence {
    fn append(&mut self, order: u32, at_ns: u64) {
        self.decided[order as usize] = Some(OrderDecision { place: self.length, at_ns });
        self.length += 1;
    }
}

/// The sequencer's delay. It grows fast and shrinks slowly, because a late order is unfair and a
/// long delay only slow.
struct SequencerDelay {
    ns: u64,
    orders: u32,
    late: u32,
}

impl SequencerDelay {
    fn count_order(&mut self, is_late: bool) {
        self.orders += 1;
        self.late += u32::from(is_late);
        if self.orders < DELAY_WINDOW {
            return;
        }
        let share = f64::from(self.late) / f64::from(self.orders);
        if share > LATE_SHARE {
            self.ns += self.ns / 8;
        } else if share < LATE_SHARE / 2.0 {
            self.ns -= self.ns / 32;
        }
        (self.orders, self.late) = (0, 0);
    }
}

/// The place of each order. An order that never came, or that waits for ever, has none.
pub(super) fn rank_orders(
    ranking: OrderRanking,
    orders: &[RaceOrder],
    arrivals: &[UpwardArrival],
    participants: usize,
) -> Vec<Option<OrderDecision>> {
    let mut sequence = OrderSequence { decided: vec![None; orders.len()], length: 0 };
    match ranking {
        OrderRanking::Arrival => {
            for arrival in arrivals {
                if let UpwardContent::Order(order) = arrival.content {
                    sequence.append(order, arrival.at_ns);
                }
            }
        }
        OrderRanking::Sequencer => rank_by_stamp(orders, arrivals, &mut sequence),
        OrderRanking::DeliveryClock => {
            rank_by_delivery(orders, arrivals, participants, &mut sequence);
        }
    }
    sequence.decided
}

fn rank_by_stamp(orders: &[RaceOrder], arrivals: &[UpwardArrival], sequence: &mut OrderSequence) {
    let mut delay = SequencerDelay { ns: DELAY_FIRST_NS, orders: 0, late: 0 };
    // Stamp, number and arrival.
    let mut waiting: BinaryHeap<Reverse<(u64, u32, u64)>> = BinaryHeap::new();
    let (mut last_stamp, mut last_at) = (0, 0);
    let ends = arrivals.iter().map(Some).chain([None]);
    for arrival in ends {
        let now = arrival.map_or(u64::MAX, |arrival| arrival.at_ns);
        while let Some(&Reverse((stamp, order, came))) = waiting.peek() {
            let at = (stamp + delay.ns).max(came).max(last_at);
            if at > now {
                break;
            }
            waiting.pop();
            (last_stamp, last_at) = (stamp.max(last_stamp), at);
            sequence.append(order, at);
        }
        let Some(arrival) = arrival else { break };
        let UpwardContent::Order(order) = arrival.content else { continue };
        let stamp = orders[order as usize].stamp_ns;
        delay.count_order(stamp < last_stamp);
        waiting.push(Reverse((stamp, order, arrival.at_ns)));
    }
}

fn rank_by_delivery(
    orders: &[RaceOrder],
    arrivals: &[UpwardArrival],
    participants: usize,
    sequence: &mut OrderSequence,
) {
    /// A message and the time since its delivery.
    type DeliveryTime = (u32, u64);
    let mut waiting: BinaryHeap<Reverse<(DeliveryTime, u32)>> = BinaryHeap::new();
    // How far each participant is, and the one that is least far.
    let mut reached: Vec<Option<DeliveryTime>> = vec![None; participants];
    let mut passed = None;
    for arrival in arrivals {
        let told = match arrival.content {
            UpwardContent::Order(number) => {
                let order = &orders[number as usize];
                let time = (order.message, order.response_ns);
                waiting.push(Reverse((time, number)));
                time
            }
            UpwardContent::Report(message) => (message, nanos(RESPONSES[1])),
        };
        let own = &mut reached[arrival.participant as usize];
        let was_last = *own == passed;
        *own = (*own).max(Some(told));
        if was_last {
            passed = reached.iter().copied().min().flatten();
        }
        while let Some(&Reverse((time, order))) = waiting.peek()
            && Some(time) <= passed
        {
            waiting.pop();
            sequence.append(order, arrival.at_ns);
        }
    }
}
