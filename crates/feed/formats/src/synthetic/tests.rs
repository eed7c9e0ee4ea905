use super::*;
use crate::itch::View;
use std::collections::BTreeMap;

fn all(config: Config) -> Vec<FeedMessage> {
    let mut generator = Generator::new(config).unwrap();
    core::iter::from_fn(|| generator.next_message().unwrap()).collect()
}

#[derive(Debug)]
struct Resting {
    locate: u16,
    buy: bool,
    shares: u32,
    price: Price4,
}

/// A receiver's books, kept from the messages alone.
#[derive(Default)]
struct Receiver {
    orders: BTreeMap<u64, Resting>,
    last_match: u64,
}

impl Receiver {
    fn add(&mut self, reference: u64, resting: Resting) {
        let crossed = self.orders.values().any(|other| {
            let (bid, ask) = if resting.buy { (&resting, other) } else { (other, &resting) };
            other.locate == resting.locate && other.buy != resting.buy && bid.price >= ask.price
        });
        assert!(!crossed, "{resting:?} crosses its book");
        assert!(resting.shares > 0 && resting.price.0 > 0);
        assert!(self.orders.insert(reference, resting).is_none(), "{reference} twice");
    }

    fn take(&mut self, reference: u64, locate: u16, shares: Option<u32>) -> Resting {
        let order = self.orders.get_mut(&reference).expect("the reference exists");
        assert_eq!(order.locate, locate);
        let taken = shares.unwrap_or(order.shares);
        assert!(taken > 0 && taken <= order.shares);
        order.shares -= taken;
        let Resting { buy, price, shares, .. } = *order;
        if shares == 0 {
            self.orders.remove(&reference);
        }
        Resting { locate, buy, shares, price }
    }

    fn apply(&mut self, view: &View<'_>) {
        let locate = view.stock_locate();
        match view {
            View::AddOrder(add) => {
                let buy = add.side().0 == b'B';
                let (shares, price) = (add.shares(), add.price());
                self.add(add.order_reference(), Resting { locate, buy, shares, price });
            }
            View::AddOrderMpid(add) => {
                let buy = add.side().0 == b'B';
                let (shares, price) = (add.shares(), add.price());
                self.add(add.order_reference(), Resting { locate, buy, shares, price });
            }
            View::OrderExecuted(done) => {
                self.take(done.order_reference(), locate, Some(done.executed_shares()));
                self.last_match = done.match_number();
            }
            View::OrderExecutedWithPrice(done) => {
                self.take(done.order_reference(), locate, Some(done.executed_shares()));
                self.last_match = done.match_number();
            }
            View::OrderCancel(cancel) => {
                let shares = Some(cancel.cancelled_shares());
                let left = self.take(cancel.order_reference(), locate, shares);
                assert!(left.shares > 0, "a cancel of all shares is a delete");
            }
            View::OrderDelete(delete) => {
                self.take(delete.order_reference(), locate, None);
            }
            View::OrderReplace(replace) => {
                let buy = self.take(replace.original_reference(), locate, None).buy;
                let (shares, price) = (replace.shares(), replace.price());
                self.add(replace.new_reference(), Resting { locate, buy, shares, price });
            }
            View::Trade(trade) => self.last_match = trade.match_number(),
            View::CrossTrade(cross) => self.last_match = cross.match_number(),
            View::BrokenTrade(broken) => assert!(broken.match_number() <= self.last_match),
            _ => {}
        }
    }
}

#[test]
fn every_reference_exists_and_no_book_is_crossed() {
    for seed in 0..4 {
        let symbols = [1, 3, 40, 300][seed as usize];
        let mut receiver = Receiver::default();
        for message in all(Config { seed, symbols, messages: 12_000, ..Config::default() }) {
            receiver.apply(&View::decode(&message.bytes).unwrap());
        }
        assert!(!receiver.orders.is_empty());
    }
}

#[test]
fn a_seed_gives_one_feed() {
    let config = Config { messages: 5_000, symbols: 50, ..Config::default() };
    assert_eq!(all(config), all(config));
    assert_ne!(all(config), all(Config { seed: 2, ..config }));
}

#[test]
fn a_day_opens_with_its_directory_and_closes_with_its_events() {
    let messages = all(Config { symbols: 30, messages: 1_000, ..Config::default() });
    assert_eq!(messages.len(), 1_000);
    let letters: String = messages.iter().map(|message| char::from(message.bytes[0])).collect();
    assert!(letters.starts_with(&format!("SV{}SS", "RHY".repeat(30))), "{letters}");
    assert!(letters.ends_with("SSS"));
    let mut symbols = crate::itch::Symbols::new();
    let mut last_ns = 0;
    for message in &messages {
        let view = View::decode(&message.bytes).unwrap();
        symbols.observe(&view);
        let key = match view.stock_locate() {
            0 => crate::sharding::GLOBAL,
            locate => locate.into(),
        };
        assert_eq!(message.shard_key, key);
        assert_eq!(message.time_ns, view.timestamp_ns());
        assert!(message.time_ns >= last_ns, "time goes back");
        last_ns = message.time_ns;
    }
    assert_eq!(symbols.len(), 30);
    assert_eq!(symbols.symbol(27), Stock::new("AA"));
    assert!(messages[93].time_ns < OPEN_NS && messages[94].time_ns >= OPEN_NS);
}

#[test]
fn a_feed_shorter_than_its_directory_is_cut() {
    assert_eq!(all(Config { messages: 0, ..Config::default() }).len(), 0);
    assert_eq!(all(Config { messages: 17, ..Config::default() }).len(), 17);
    let slow = Config { messages: 20, symbols: 1, mean_rate: 1.0, ..Config::default() };
    assert_eq!(all(slow).len(), 20);
}

#[test]
fn types_come_as_often_as_on_a_real_day() {
    let messages = all(Config { symbols: 500, messages: 300_000, ..Config::default() });
    let trading = &messages[1_504..];
    let mut counts = BTreeMap::new();
    for message in trading {
        *counts.entry(ItchKind::from_letter(message.bytes[0]).unwrap()).or_insert(0u64) += 1;
    }
    let total: u64 = MIX.iter().map(|&(_, weight)| weight).sum();
    for (kind, weight) in MIX {
        let real = weight as f64 / total as f64;
        let ours = counts.get(&kind).copied().unwrap_or(0) as f64 / trading.len() as f64;
        assert!((ours - real).abs() < 0.003, "{kind:?}: {ours:.4} for {real:.4}");
    }
}

#[test]
fn symbols_follow_zipfs_law() {
    let messages = all(Config { symbols: 1_000, messages: 200_000, ..Config::default() });
    let mut counts = vec![0u32; 1_001];
    let of_one = messages[3_004..].iter().filter(|m| m.shard_key != crate::sharding::GLOBAL);
    of_one.for_each(|message| counts[message.shard_key as usize] += 1);
    counts.sort_unstable_by_key(|&count| core::cmp::Reverse(count));
    let (first, tenth) = (f64::from(counts[0]), f64::from(counts[9]));
    assert!((8.0..12.5).contains(&(first / tenth)), "{:?}", &counts[..12]);
}

/// The rates of 300,000 bins, fifty minutes, without making the messages.
fn rates() -> Vec<f64> {
    let mut prng = Prng::new(5);
    let mut rates = arrivals::Rates::new(&mut prng);
    (0..300_000).map(|_| rates.next(&mut prng)).collect()
}

#[test]
fn rates_have_the_quantiles_of_the_real_open() {
    let mut rates = rates();
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    assert!((mean - 1.0).abs() < 0.1, "{mean}");
    rates.sort_unstable_by(f64::total_cmp);
    for (share, messages) in [(0.1, 296.0), (0.5, 423.0), (0.9, 864.0), (0.98, 4_705.0)] {
        let ours = rates[(share * rates.len() as f64) as usize];
        let real = messages / 680.7;
        assert!((ours / real - 1.0).abs() < 0.25, "{share}: {ours} for {real}");
    }
}

#[test]
fn bursts_last_as_long_as_at_the_real_open() {
    let logs: Vec<f64> = rates().iter().map(|rate| math::ln(*rate)).collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let variance: f64 = logs.iter().map(|log| math::square(log - mean)).sum();
    for (lag, real) in facts::LOG_RATE_AUTOCORRELATION {
        let pairs = logs.iter().zip(&logs[lag..]);
        let ours = pairs.map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>() / variance;
        assert!((ours - real).abs() < 0.12, "lag {lag}: {ours:.3} for {real}");
    }
}

#[test]
fn the_mean_rate_is_kept_with_and_without_bursts() {
    for (bursts, tolerance) in [(false, 0.02), (true, 0.3)] {
        let config = Config {
            symbols: 10,
            messages: 400_000,
            mean_rate: 4_000.0,
            bursts,
            ..Config::default()
        };
        let messages = all(config);
        let seconds = (messages.last().unwrap().time_ns - OPEN_NS) as f64 / 1e9;
        let rate = messages.len() as f64 / seconds;
        assert!((rate / 4_000.0 - 1.0).abs() < tolerance, "{rate}");
    }
}

#[test]
fn what_makes_no_feed_is_refused_by_name() {
    let refused = |config| Generator::new(config).unwrap_err();
    assert_eq!(refused(Config { symbols: 0, ..Config::default() }), ConfigError::Symbols);
    let error = refused(Config { mean_rate: 0.0, ..Config::default() });
    assert_eq!(error, ConfigError::MeanRate(0.0));
    let error = refused(Config { zipf_exponent: 9.0, ..Config::default() });
    assert!(error.to_string().contains("give 0 to 4"));
}
