//! Table 2.2: the largest partition of 120 servers with 7,000 records each.

use evenfall_core::Prng;
use evenfall_query_burst::partition::splitters;
use evenfall_query_burst::pivots::{Naive, PivotList, SplitterRule, Tag, Weighted, draw};

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

#[test]
fn the_largest_partition_is_that_of_table_2_2() {
    // Pivots a server, then P50 of naive and weighted pivots, uniform keys.
    const TABLE: [(usize, f64, f64); 5] =
        [(1, 33.6, 6.9), (2, 23.5, 4.4), (3, 15.9, 3.1), (4, 11.5, 2.5), (5, 9.6, 2.0)];
    let mut found = vec![(Vec::new(), Vec::new()); TABLE.len()];
    for seed in 0..RUNS {
        let mut prng = Prng::new(seed);
        let mut list = |rank: usize| {
            let mut tags: Vec<Tag> = (0..RECORDS)
                .map(|index| {
                    u128::from(prng.next_u64()) << 64 | (rank as u128) << 32 | index as u128
                })
                .collect();
            tags.sort_unstable();
            tags
        };
        let lists: Vec<Vec<Tag>> = (0..SERVERS).map(&mut list).collect();
        for ((per_rank, ..), (naive, weighted)) in TABLE.iter().zip(&mut found) {
            naive.push(imbalance_percent(&Naive, &lists, *per_rank));
            weighted.push(imbalance_percent(&Weighted, &lists, *per_rank));
        }
    }
    let median = |all: &mut Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    for ((per_rank, naive, weighted), (naives, weighteds)) in TABLE.into_iter().zip(&mut found) {
        let (of_naive, of_weighted) = (median(naives), median(weighteds));
        let words = format!("{} pivots: {of_naive:.1}, {of_weighted:.1}", per_rank * SERVERS);
        println!("{words}");
        assert!((of_naive - naive).abs() <= 4.0, "{words}; the table has {naive}");
        assert!((of_weighted - weighted).abs() <= 0.5, "{words}; the table has {weighted}");
    }
}
