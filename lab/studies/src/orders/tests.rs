use evenfall_campaigns::model::Model;
use evenfall_core::Hedging;
use evenfall_multicast_machine::Mode;

use super::upward::UpwardArrival;
use super::*;
use crate::tables::overlay::Effort;

const LONGEST_NS: u64 = 20_000;

/// An order of message 0 that its participant got at this time.
fn order(participant: u32, delivered_ns: u64, response_ns: u64) -> RaceOrder {
    let leaves_ns = delivered_ns + response_ns;
    RaceOrder { message: 0, participant, response_ns, leaves_ns, stamp_ns: leaves_ns }
}

fn arrivals(all: &[(u64, u32, UpwardContent)]) -> Vec<UpwardArrival> {
    let arrival = |&(at_ns, participant, content)| UpwardArrival { at_ns, participant, content };
    all.iter().map(arrival).collect()
}

#[test]
fn each_ranking_puts_by_what_it_knows() {
    // The slower answer comes from the participant that had the message earlier.
    let orders = [order(0, 50_000, 9_000), order(1, 30_000, 14_000)];
    let comes = arrivals(&[
        (80_000, 1, UpwardContent::Order(1)),
        (95_000, 0, UpwardContent::Order(0)),
        (100_000, 1, UpwardContent::Report(0)),
        (120_000, 0, UpwardContent::Report(0)),
    ]);
    let decided = |ranking| rank_orders(ranking, &orders, &comes, 2).map_places();
    assert_eq!(decided(OrderRanking::Arrival), [Some((1, 95_000)), Some((0, 80_000))]);
    // Stamps are 59 us and 44 us, and the first delay is 100 us.
    assert_eq!(decided(OrderRanking::Sequencer), [Some((1, 159_000)), Some((0, 144_000))]);
    // The first order is known when the other participant is past 9 us, the second when both are
    // past 14 us.
    assert_eq!(decided(OrderRanking::DeliveryClock), [Some((0, 95_000)), Some((1, 120_000))]);
}

/// Places and times, for comparison with literals.
trait MapPlaces {
    fn map_places(self) -> Vec<Option<(u32, u64)>>;
}

impl MapPlaces for Vec<Option<OrderDecision>> {
    fn map_places(self) -> Vec<Option<(u32, u64)>> {
        self.into_iter().map(|decision| decision.map(|d| (d.place, d.at_ns))).collect()
    }
}

#[test]
fn a_late_order_is_behind_those_that_were_released_before_it_came() {
    let orders = [order(0, 0, 5_000), order(1, 0, 8_000)];
    // The first order is under way for longer than the delay after the stamp of the second.
    let comes =
        arrivals(&[(40_000, 1, UpwardContent::Order(1)), (130_000, 0, UpwardContent::Order(0))]);
    let decided = rank_orders(OrderRanking::Sequencer, &orders, &comes, 2).map_places();
    assert_eq!(decided, [Some((1, 130_000)), Some((0, 108_000))]);
}

#[test]
fn without_word_of_a_participant_the_delivery_clock_decides_nothing() {
    let orders = [order(0, 0, 5_000)];
    let comes = arrivals(&[(40_000, 0, UpwardContent::Order(0))]);
    let decided = rank_orders(OrderRanking::DeliveryClock, &orders, &comes, 2);
    assert!(decided[0].is_none(), "{decided:?}");
}

#[test]
fn release_buffers_deliver_no_closer_than_the_longest_response() {
    let mut book = DeliveryBook::new(1);
    for (message, release_ns) in [(0, 100_000), (1, 105_000), (2, 300_000)] {
        book.hear(MessageCourse::Sent { message, scheduled_ns: 0, deadline_ns: None });
        let (receiver, arrival_ns, ahead_ns) = (0, release_ns, 0);
        book.hear(MessageCourse::Released { message, receiver, arrival_ns, release_ns, ahead_ns });
    }
    book.space_out(LONGEST_NS);
    let at: Vec<u64> = book.deliveries.iter().map(|delivery| delivery.at_ns).collect();
    assert_eq!(at, [100_000, 120_000, 300_000]);
}

#[test]
fn a_delivery_clock_is_fair_where_the_first_to_come_is_not() {
    let model = Model::named("aws").expect("built in");
    let effort = Effort { messages: 300, warm_up: 100, ..Effort::on(model) };
    let run = |mode, ranking| {
        let params = effort.params(20, mode, Hedging(0));
        run_orders(&OrderScene { params, ranking })
    };
    let first_come = run(Mode::Unicast, OrderRanking::Arrival);
    assert!(first_come.fastest_first < 0.5, "{first_come:?}");
    let dbo = run(Mode::Unicast, OrderRanking::DeliveryClock);
    assert_eq!((dbo.fastest_first, dbo.pairs_in_order), (1.0, 1.0));
    assert!(dbo.decided_us[0] > first_come.decided_us[0], "{dbo:?} after {first_come:?}");
    let held = run(Mode::Cloudex, OrderRanking::Sequencer);
    assert!(held.fastest_first > first_come.fastest_first, "{held:?}");
}
