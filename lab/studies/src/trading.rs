//! The trading demo of Jasper (section 8.4 and appendix C): what uneven delivery is worth.
//!
//! The feed is a series of trades. Of a hundred receivers the first two and the last two take part
//! in the market, all with the same algorithm: when the price of a trade is above a threshold,
//! place an order for it, stamped. The exchange fills the order with the earliest stamp; the others
//! come too late. After some thousand orders the shares of the profit show whom the delivery
//! favours.
//!
//! ```text
//! feed      trade 17 at 103.20            above the threshold of 100
//! P1        |-------- arrives, order stamped 10:00:00.000145
//! P2        |---------- arrives, order stamped       .000146
//! P99       |------------------ arrives, order       .000209    the exchange fills P1's
//! ```
//!
//! Every participant needs the same time to decide, so that the time does not count. Two orders of
//! the same stamp are decided by lot.
//!
//! Stamps are the participants' own, as in the source. A participant may have a clock that is
//! wrong, and may open a message before its deadline. [`OrderStamping`] says whose word the
//! exchange takes.

use evenfall_campaigns::model::{Model, Stack};
use evenfall_campaigns::multicast::{MessageCourse, OverlayParams, RunProgress, run_heard};
use evenfall_core::Hedging;
use evenfall_feed_formats::synthetic::trades::DemoTrade;
use evenfall_multicast_machine::Mode;
pub use evenfall_multicast_report::market::PARTICIPANTS;
use evenfall_multicast_report::market::{
    Market, OrderStamps, StampConduct, TradeOrders, find_participants,
};
use serde::Serialize;

use crate::tables::overlay::Effort;

/// Orders after which the published shares were taken.
pub const ORDERS: u32 = 5_000;
/// The published shares of the profit, in percent: Table 2.
pub const PUBLISHED: [(Mode, [f64; PARTICIPANTS]); 3] = [
    (Mode::Unicast, [49.79, 50.21, 0.0, 0.0]),
    (Mode::Tree, [56.95, 42.39, 0.40, 0.25]),
    (Mode::Release, [25.0, 24.97, 24.66, 25.36]),
];

/// Whose time an order has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderStamping {
    /// The participant's, whatever it is: as in the source.
    #[default]
    Participant,
    /// The participant's, and an order whose stamp is before the deadline of its message is
    /// refused: no honest participant can have such a stamp.
    NotEarly,
    /// The order is stamped by the host that releases the message, a gateway of the exchange, at
    /// the release. The participant has the message no earlier and cannot write the stamp.
    Release,
}

/// What a participant does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParticipantConduct {
    /// How far its clock is ahead, nanoseconds; behind, when negative.
    pub ahead_ns: i64,
    /// Whether it acts on a message when the message arrives, and not at the deadline.
    pub opens_early: bool,
    /// Whether it writes the deadline as the stamp when it is earlier than that.
    pub writes_deadline: bool,
}

/// A market on a run of the multicast.
#[derive(Clone, Debug)]
pub struct TradingScene {
    /// The run. Its duration is set by `orders`.
    pub params: OverlayParams,
    /// Orders that the exchange fills.
    pub orders: u32,
    /// The first two and the last two receivers.
    pub conducts: [ParticipantConduct; PARTICIPANTS],
    /// Whose time counts.
    pub stamping: OrderStamping,
}

/// What the market came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MarketOutcome {
    /// Share of the profit of each participant, percent.
    pub profit_share: [f64; PARTICIPANTS],
    /// Orders filled, of each participant.
    pub filled: [u64; PARTICIPANTS],
    /// Orders refused, of each participant: their stamps were before the deadline.
    pub refused: [u64; PARTICIPANTS],
    /// Orders filled in all.
    pub orders: u64,
    /// Median of the last release minus the first among the participants, microseconds of true
    /// time.
    pub window_p50_us: f64,
    /// Share of the messages that reached every receiver by the deadline.
    pub p_f: Option<f64>,
}

impl TradingScene {
    /// The published set-up on a model: 100 receivers, 5,000 messages a second, H=2 where the mode
    /// hedges.
    pub fn on(model: &Model, stack: Stack, mode: Mode) -> Self {
        let effort = Effort { stack, ..Effort::on(model.clone()) };
        let hedging = if mode == Mode::Tree { 0 } else { 2 };
        Self {
            params: effort.params(100, mode, Hedging(hedging)),
            orders: ORDERS,
            conducts: [ParticipantConduct::default(); PARTICIPANTS],
            stamping: OrderStamping::default(),
        }
    }

    fn seats(&self) -> [u32; PARTICIPANTS] {
        find_participants(self.params.receivers)
    }

    /// The parameters of the run: long enough for the orders, with the participants' clocks.
    fn run_params(&self) -> OverlayParams {
        // Half of the trades are above the threshold; a tenth more are enough for any seed.
        let messages = f64::from(self.orders) * 2.2 + 100.0;
        let duration = core::time::Duration::from_secs_f64(messages / self.params.rate);
        let ahead = self.seats().into_iter().zip(self.conducts.map(|conduct| conduct.ahead_ns));
        let clocks_ahead = ahead.filter(|(_, ahead)| *ahead != 0).collect();
        OverlayParams { duration, clocks_ahead, ..self.params.clone() }
    }
}

/// The orders for the messages of a run.
#[derive(Default)]
struct StampBook {
    stamps: Vec<OrderStamps>,
    releases: Vec<OrderStamps>,
    deadlines: Vec<Option<u64>>,
}

/// When a participant had a message, and how far its clock was ahead then. True time.
#[derive(Clone, Copy)]
struct ReleaseTimes {
    arrival_ns: u64,
    release_ns: u64,
    ahead_ns: i64,
}

/// The time that a participant's order has, in nanoseconds.
fn stamp(
    stamping: OrderStamping,
    conduct: ParticipantConduct,
    times: ReleaseTimes,
    deadline: Option<u64>,
) -> u64 {
    let opens_early = conduct.opens_early && stamping != OrderStamping::Release;
    let conduct = StampConduct { opens_early, writes_deadline: conduct.writes_deadline };
    let own = |at_ns: u64| at_ns.saturating_add_signed(times.ahead_ns);
    conduct.stamp(own(times.arrival_ns), own(times.release_ns), deadline)
}

/// Runs a market.
pub fn run(scene: &TradingScene, see: &mut dyn FnMut(RunProgress)) -> MarketOutcome {
    let (params, seats) = (scene.run_params(), scene.seats());
    let mut book = StampBook::default();
    let mut hear = |course| match course {
        MessageCourse::Sent { deadline_ns, .. } => {
            book.stamps.push([None; PARTICIPANTS]);
            book.releases.push([None; PARTICIPANTS]);
            book.deadlines.push(deadline_ns);
        }
        MessageCourse::Released { message, receiver, arrival_ns, release_ns, ahead_ns } => {
            let at = message as usize;
            for seat in (0..PARTICIPANTS).filter(|seat| seats[*seat] == receiver) {
                let times = ReleaseTimes { arrival_ns, release_ns, ahead_ns };
                let conduct = scene.conducts[seat];
                let stamp = stamp(scene.stamping, conduct, times, book.deadlines[at]);
                book.stamps[at][seat] = Some(stamp);
                book.releases[at][seat] = Some(release_ns);
            }
        }
    };
    let done = run_heard(&params, see, &mut hear);
    let mut market = book.settle(scene, params.seed);
    market.p_f = done.results.p_f;
    market
}

impl StampBook {
    /// Fills the orders of one trade after the other.
    fn settle(&self, scene: &TradingScene, seed: u64) -> MarketOutcome {
        let mut market = Market::new(seed, scene.stamping == OrderStamping::NotEarly);
        for (number, stamps) in self.stamps.iter().enumerate() {
            if market.all_filled() >= u64::from(scene.orders) {
                break;
            }
            let trade = DemoTrade::of(seed, number as u64);
            let Some(profit_cents) = trade.profit_cents() else { continue };
            let deadline_ns = self.deadlines[number];
            market.fill(&TradeOrders { profit_cents, deadline_ns, stamps: *stamps });
        }
        MarketOutcome {
            profit_share: market.profit_share(),
            filled: market.filled_orders(),
            refused: market.refused_orders(),
            orders: market.all_filled(),
            window_p50_us: self.window_p50_us(),
            p_f: None,
        }
    }

    fn window_p50_us(&self) -> f64 {
        let window = |releases: &OrderStamps| {
            let known: Option<Vec<u64>> = releases.iter().copied().collect();
            let known = known?;
            Some(known.iter().max()? - known.iter().min()?)
        };
        let mut windows: Vec<u64> = self.releases.iter().filter_map(window).collect();
        windows.sort_unstable();
        evenfall_core::nearest_rank(&windows, 0.5).map_or(f64::NAN, |ns| ns as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(mode: Mode) -> TradingScene {
        let model = Model::named("aws").expect("built in");
        let mut scene = TradingScene::on(&model, Stack::KernelBypass, mode);
        scene.orders = 300;
        scene.params.receivers = 30;
        scene.params.warm_up = core::time::Duration::from_millis(200);
        scene
    }

    #[test]
    fn unicast_gives_the_profit_to_the_first_receivers_and_release_shares_it() {
        let unicast = run(&scene(Mode::Unicast), &mut |_| {}).profit_share;
        assert!(unicast[0] + unicast[1] > 95.0, "{unicast:?}");
        let release = run(&scene(Mode::Release), &mut |_| {}).profit_share;
        assert!(release.iter().all(|share| (15.0..35.0).contains(share)), "{release:?}");
    }

    #[test]
    fn who_opens_early_takes_all_unless_such_stamps_are_refused_or_not_his() {
        let mut early = scene(Mode::Release);
        early.conducts[3].opens_early = true;
        let own = run(&early, &mut |_| {});
        assert!(own.profit_share[3] > 90.0, "{own:?}");
        early.stamping = OrderStamping::NotEarly;
        let refused = run(&early, &mut |_| {});
        assert!(refused.refused[3] > 250 && refused.profit_share[3] < 10.0, "{refused:?}");
        early.conducts[3].writes_deadline = true;
        let written = run(&early, &mut |_| {});
        assert!(written.profit_share[3] > 90.0, "{written:?}");
        early.stamping = OrderStamping::Release;
        let released = run(&early, &mut |_| {});
        assert!(released.profit_share.iter().all(|share| *share < 35.0), "{released:?}");
    }
}
