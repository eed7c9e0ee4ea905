//! Table 2.2: the largest partition of 120 servers with 7,000 records each.

use evenfall_core::Prng;
use evenfall_query_burst::partition::splitters;
use evenfall_query_burst::pivots::{Naive, PivotList, SplitterRule, Tag, Weighted, draw};

/// A rule with a fault, which the table must tell from the right one.
#[derive(Debug)]
struct WrongRule<R> {
    rule: R,
    /// A splitter is the first pivot beyond its share, and not the first that reaches it.
    crosses_late: bool,
    /// The first and the last pivot weigh as much as the others.
    weighs_ends_fully: bool,
}

impl<R: SplitterRule> SplitterRule for WrongRule<R> {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn takes_first(&self) -> bool {
        self.rule.takes_first()
    }

    fn reached(&self, total: u64, count: usize, place: usize) -> u64 {
        match self.weighs_ends_fully {
            true => Naive.reached(total, count, place),
            false => self.rule.reached(total, count, place),
        }
    }

    fn crosses(&self, reached: u64, number: u32, total: u64, parts: usize) -> bool {
        // Shares are rounded up by at most a unit for each list, so `>` has to pass these by.
        let beyond = if self.crosses_late { parts as u128 * 1_000 } else { 0 };
        u128::from(reached) * parts as u128 >= u128::from(number) * u128::from(total) + beyond
    }
}

const SERVERS: usize = 120;
const RECORDS: usize = 7_000;
/// Runs of a row here. The source has 1,000.
const RUNS: u64 = 30;

/// By how many percent the largest partition exceeds the mean.
fn imbalance_percent(rule: &dyn SplitterRule, lists: &[Vec<Tag>], per_rank: usize) -> f64 {
    let pivots: Vec<PivotList> =
        lists.iter().map(|list| draw(rule, list.as_slice(), per_rank * SERVERS)).collect();
    let splitters = splitters(rule, &pivots, SERVERS).expect("all splitters");
    let mut bounds = vec![0; SERVERS + 1];
    for list in lists {
        for (bound, splitter) in bounds.iter_mut().skip(1).zip(&splitters) {
            *bound += list.partition_point(|record| record < splitter);
        }
    }
    bounds[SERVERS] = SERVERS * RECORDS;
    let largest = bounds.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    100.0 * (largest as f64 / RECORDS as f64 - 1.0)
}

/// Keys of all servers, sorted at each.
fn lists(seed: u64) -> Vec<Vec<Tag>> {
    let mut prng = Prng::new(seed);
    let mut list = |rank: usize| {
        let tag = |index| (rank as u128) << 32 | index as u128;
        let mut tags: Vec<Tag> =
            (0..RECORDS).map(|index| u128::from(prng.next_u64()) << 64 | tag(index)).collect();
        tags.sort_unstable();
        tags
    };
    (0..SERVERS).map(&mut list).collect()
}

fn median(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[test]
fn the_table_tells_wrong_rules_from_right_ones() {
    let late = WrongRule { rule: Naive, crosses_late: true, weighs_ends_fully: false };
    let full = WrongRule { rule: Weighted, crosses_late: false, weighs_ends_fully: true };
    let (mut lates, mut fulls) = (Vec::new(), Vec::new());
    for seed in 0..RUNS {
        let lists = lists(seed);
        lates.push(imbalance_percent(&late, &lists, 1));
        fulls.push(imbalance_percent(&full, &lists, 1));
    }
    let (late, full) = (median(&mut lates), median(&mut fulls));
    assert!((late - 33.6).abs() > 4.0, "> for >= gives {late:.1} %");
    assert!((full - 6.9).abs() > 0.5, "a weight of 1 at the ends gives {full:.1} %");
}

#[test]
fn the_largest_partition_is_that_of_table_2_2() {
    // Pivots a server, then P50 of naive and weighted pivots, uniform keys.
    const TABLE: [(usize, f64, f64); 5] =
        [(1, 33.6, 6.9), (2, 23.5, 4.4), (3, 15.9, 3.1), (4, 11.5, 2.5), (5, 9.6, 2.0)];
    let mut found = vec![(Vec::new(), Vec::new()); TABLE.len()];
    for seed in 0..RUNS {
        let lists = lists(seed);
        for ((per_rank, ..), (naive, weighted)) in TABLE.iter().zip(&mut found) {
            naive.push(imbalance_percent(&Naive, &lists, *per_rank));
            weighted.push(imbalance_percent(&Weighted, &lists, *per_rank));
        }
    }
    for ((per_rank, naive, weighted), (naives, weighteds)) in TABLE.into_iter().zip(&mut found) {
        let (of_naive, of_weighted) = (median(naives), median(weighteds));
        let words = format!("{} pivots: {of_naive:.1}, {of_weighted:.1}", per_rank * SERVERS);
        println!("{words}");
        assert!((of_naive - naive).abs() <= 4.0, "{words}; the table has {naive}");
        assert!((of_weighted - weighted).abs() <= 0.5, "{words}; the table has {weighted}");
    }
}
