//! Figure 2.3 of the source, as a transcript of a real sort of 100 ranks.

use std::fmt::Write;
use std::sync::Arc;

use evenfall_core::Prng;
use evenfall_query_burst::pivots::Naive;
use evenfall_query_burst::sort::{MilliSort, SortRecords};

use crate::net::Net;
use crate::sorts::config;

const TRANSCRIPT: &str = "\
100 ranks, 2 levels, 1 pivot a rank and rank
level 1: 100 ranks draw 100 pivots each, 10000 in all
level 1: 10 sorters merge 1000 pivots each
level 2: 10 sorters draw 10 pivots each, 100 in all
level 2: 1 sorters merge 100 pivots each
level 2: 9 splitters
level 1: 99 splitters
every rank has its part
";

#[test]
fn figure_2_3_with_100_ranks() {
    let ranks = 100;
    let mut net = Net::new(ranks, 1, 0.0);
    let mut prng = Prng::new(1);
    for rank in 0..ranks {
        let keys = (0..1_500).map(|_| prng.next_u64() as u8).collect();
        let records = SortRecords { keys, values: vec![0; 150 * 6].into() };
        let config = config(2, Arc::new(Naive));
        net.start(rank, MilliSort::new(config, rank as u16, ranks, records));
    }
    net.run();
    let sorted = net.results();
    let mut text = String::from("100 ranks, 2 levels, 1 pivot a rank and rank\n");
    let of = |level: usize, count: fn(&evenfall_query_burst::partition::LevelCounts) -> usize| {
        let counts: Vec<usize> =
            sorted.iter().map(|one| count(&one.levels[level])).filter(|&count| count > 0).collect();
        assert!(level == 0 || counts.len() <= 10, "{counts:?}");
        counts
    };
    for level in 0..2 {
        let (drawn, merged) = (of(level, |counts| counts.drawn), of(level, |counts| counts.merged));
        let who = if level == 0 { "ranks" } else { "sorters" };
        let sum: usize = drawn.iter().sum();
        assert!(drawn.iter().all(|&count| count == drawn[0]), "{drawn:?}");
        assert!(merged.iter().all(|&count| count == merged[0]), "{merged:?}");
        let (number, count) = (level + 1, drawn.len());
        let each = drawn[0];
        writeln!(text, "level {number}: {count} {who} draw {each} pivots each, {sum} in all")
            .unwrap();
        let (count, each) = (merged.len(), merged[0]);
        writeln!(text, "level {number}: {count} sorters merge {each} pivots each").unwrap();
    }
    for level in [1, 0] {
        let picked: usize = of(level, |counts| counts.picked).iter().sum();
        writeln!(text, "level {}: {picked} splitters", level + 1).unwrap();
    }
    let records: usize = sorted.iter().map(|one| one.records.len()).sum();
    assert_eq!(records, ranks * 150);
    assert!(sorted.iter().all(|one| !one.records.is_empty()));
    text.push_str("every rank has its part\n");
    assert_eq!(text, TRANSCRIPT);
}
