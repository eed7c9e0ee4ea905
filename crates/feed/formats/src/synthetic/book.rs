//! One symbol's order book, so that every reference in a message exists.

use evenfall_core::{Prng, math};

/// Orders that one book may hold. At this limit an order must leave before the next comes. Real
/// books of busy symbols have a few thousand orders.
pub(super) const ORDERS_MAX: usize = 4096;

/// Prices are whole cents; the feed's unit is 1/10,000 dollar.
pub(super) const UNITS_PER_CENT: u32 = 100;

/// The middle price stays within these cents, far from both ends of the number.
const MIDDLE_CENTS: (u32, u32) = (100, 500_000);

/// Mean distance of a new order from the middle price in cents. Most activity is at the top of the
/// book.
const DISTANCE_CENTS: f64 = 3.0;

/// How often one of the newest orders is chosen, because most orders live for milliseconds.
const NEWEST_CHANCE: f64 = 0.7;
/// Number of orders that count as the newest.
const NEWEST: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub reference: u64,
    pub shares: u32,
    pub price_cents: u32,
    pub buy: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Book {
    middle_cents: u32,
    orders: Vec<Order>,
}

impl Book {
    /// An empty book around a price between 2 and 2,000 dollars, 40 in the middle.
    pub fn new(prng: &mut Prng) -> Self {
        let cents = 4_000.0 * math::exp(prng.normal());
        Self { middle_cents: (cents as u32).clamp(200, 200_000), orders: Vec::new() }
    }

    pub fn middle_cents(&self) -> u32 {
        self.middle_cents
    }

    pub fn len(&self) -> usize {
        self.orders.len()
    }

    /// The best order of one side: best price, then first come.
    pub fn best(&self, buy: bool) -> Option<usize> {
        let side = (0..self.orders.len()).filter(|&at| self.orders[at].buy == buy);
        side.min_by_key(|&at| {
            let Order { price_cents, reference, .. } = self.orders[at];
            (if buy { u32::MAX - price_cents } else { price_cents }, reference)
        })
    }

    /// An order to delete, reduce or replace: often one of the newest.
    pub fn any(&self, prng: &mut Prng) -> Option<usize> {
        let count = self.orders.len();
        let newest = if prng.chance(NEWEST_CHANCE) { NEWEST.min(count) } else { count };
        (count > 0).then(|| count - 1 - prng.below(newest as u64) as usize)
    }

    pub fn order(&self, at: usize) -> Order {
        self.orders[at]
    }

    /// Adds an order at a price that does not cross the other side.
    pub fn add(&mut self, prng: &mut Prng, reference: u64, buy: bool) -> Order {
        self.drift(prng);
        let distance = 1 + prng.exponential(DISTANCE_CENTS) as u32;
        let other = self.best(!buy).map(|at| self.orders[at].price_cents);
        let price_cents = if buy {
            let price = self.middle_cents.saturating_sub(distance).max(1);
            other.map_or(price, |ask| price.min(ask - 1))
        } else {
            let price = self.middle_cents + distance;
            other.map_or(price, |bid| price.max(bid + 1))
        };
        let order = Order { reference, shares: shares(prng), price_cents, buy };
        self.orders.push(order);
        order
    }

    /// Removes an order. The other orders keep their order of arrival.
    pub fn remove(&mut self, at: usize) -> Order {
        self.orders.remove(at)
    }

    /// Takes shares from an order. The order leaves with its last share.
    pub fn reduce(&mut self, at: usize, shares: u32) {
        self.orders[at].shares -= shares;
        if self.orders[at].shares == 0 {
            self.orders.remove(at);
        }
    }

    /// Moves the middle price by a cent from time to time.
    fn drift(&mut self, prng: &mut Prng) {
        let (low, high) = MIDDLE_CENTS;
        self.middle_cents = match prng.below(64) {
            0 => self.middle_cents + 1,
            1 => self.middle_cents - 1,
            _ => self.middle_cents,
        }
        .clamp(low, high);
    }
}

/// Shares of a new order: mostly round lots, some odd lots.
fn shares(prng: &mut Prng) -> u32 {
    if prng.chance(0.7) {
        100 * (1 + prng.exponential(1.5) as u32)
    } else {
        1 + prng.below(99) as u32
    }
}
