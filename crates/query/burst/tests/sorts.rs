//! What comes out of a sort is what went in, in order, whatever the keys and the levels.

use std::sync::Arc;

use evenfall_core::Prng;
use evenfall_query_burst::partition::PartitionConfig;
use evenfall_query_burst::pivots::{Naive, SplitterRule, Weighted};
use evenfall_query_burst::sort::{MilliSort, SortConfig, SortRecords};

use crate::net::Net;

/// Short values, which are all different: rank and index.
const VALUE_BYTES: usize = 6;

/// How keys are drawn.
#[derive(Clone, Copy, Debug)]
enum Keys {
    Any,
    Equal,
    FewDifferent,
}

pub fn config(levels: usize, rule: Arc<dyn SplitterRule>) -> SortConfig {
    let partition = PartitionConfig { levels, pivots_per_rank: 1, rule };
    SortConfig { value_bytes: VALUE_BYTES, partition }
}

/// A record of a plain sort.
type Row = (Vec<u8>, Vec<u8>);

fn records(rank: usize, count: usize, keys: Keys, prng: &mut Prng) -> Vec<Row> {
    let row = |index: usize| {
        let key = match keys {
            Keys::Any => (0..10).map(|_| prng.next_u64() as u8).collect(),
            Keys::Equal => vec![7; 10],
            Keys::FewDifferent => vec![prng.below(3) as u8; 10],
        };
        let value = [&(rank as u16).to_le_bytes()[..], &(index as u32).to_le_bytes()].concat();
        (key, value)
    };
    (0..count).map(row).collect()
}

fn blocks(rows: &[Row]) -> SortRecords {
    let keys = rows.iter().flat_map(|row| row.0.clone()).collect();
    let values = rows.iter().flat_map(|row| row.1.clone()).collect();
    SortRecords { keys, values }
}

/// Sorts, and compares all bytes with a stable sort of all records in one place. Gives the
/// numbers of records by rank.
fn check(counts: &[usize], keys: Keys, config: &SortConfig, seed: u64) -> Vec<usize> {
    let ranks = counts.len();
    let mut net = Net::new(ranks, seed, 0.02);
    let mut prng = Prng::new(seed);
    let mut all = Vec::new();
    for (rank, &count) in counts.iter().enumerate() {
        let rows = records(rank, count, keys, &mut prng);
        net.start(rank, MilliSort::new(config.clone(), rank as u16, ranks, blocks(&rows)));
        all.extend(rows);
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    net.run();
    let sorted = net.results();
    let wanted = blocks(&all);
    let joined = |of: fn(&SortRecords) -> &[u8]| -> Vec<u8> {
        sorted.iter().flat_map(|one| of(&one.records).to_vec()).collect()
    };
    let words = format!("{counts:?} {keys:?} {config:?} seed {seed}");
    assert!(joined(|records| &records.keys) == wanted.keys, "keys: {words}");
    assert!(joined(|records| &records.values) == wanted.values, "values: {words}");
    sorted.iter().map(|one| one.records.len()).collect()
}

#[test]
fn any_number_of_ranks_on_any_number_of_levels_sorts_as_one_program_does() {
    let mut seed = 0;
    for ranks in [1, 2, 3, 7, 9, 10, 11, 19, 25] {
        for levels in 1..=3 {
            for rule in [Arc::new(Naive) as Arc<dyn SplitterRule>, Arc::new(Weighted)] {
                seed += 1;
                check(&vec![60; ranks], Keys::Any, &config(levels, rule), seed);
            }
        }
    }
}

#[test]
fn empty_ranks_one_record_and_none_at_all_are_sorted() {
    let weighted = || config(2, Arc::new(Weighted));
    for (seed, counts) in [
        vec![0; 13],
        [vec![0; 12], vec![1]].concat(),
        [vec![500], vec![0; 11]].concat(),
        (0..14).map(|rank| rank % 3).collect(),
        vec![1; 12],
    ]
    .into_iter()
    .enumerate()
    {
        check(&counts, Keys::Any, &weighted(), seed as u64);
        check(&counts, Keys::Any, &config(3, Arc::new(Naive)), seed as u64);
    }
}

#[test]
fn equal_keys_keep_the_bound_and_their_order() {
    for levels in 1..=2 {
        for keys in [Keys::Equal, Keys::FewDifferent, Keys::Any] {
            let (ranks, each) = (20, 200);
            let naive = check(&vec![each; ranks], keys, &config(levels, Arc::new(Naive)), 5);
            // (1 + 1/s) N / M, with s = 1, and a record on each side of the cut.
            let most = naive.into_iter().max().unwrap_or(0);
            assert!(most <= 2 * each + ranks, "{keys:?}: {most}");
            let weighted = check(&vec![each; ranks], keys, &config(levels, Arc::new(Weighted)), 5);
            let most = weighted.into_iter().max().unwrap_or(0);
            assert!(most <= each + each / 2, "{keys:?}: {most}");
        }
    }
}

#[test]
fn ranks_with_different_numbers_of_records_share_them_evenly() {
    let counts: Vec<usize> = (0..12).map(|rank| 40 * rank).collect();
    let mean = counts.iter().sum::<usize>() / 12;
    for levels in 1..=2 {
        let parts = check(&counts, Keys::Any, &config(levels, Arc::new(Weighted)), 3);
        let most = parts.into_iter().max().unwrap_or(0);
        assert!(most <= mean * 3 / 2, "{most} of {mean}");
    }
}

#[test]
fn a_rank_that_dies_ends_the_sort_of_all_others_with_its_name() {
    for (seed, dead_at) in [(1, 0), (2, 3), (3, 6), (4, 9), (5, 12)] {
        let (ranks, victim) = (12, 4);
        let mut net = Net::new(ranks, seed, 0.0);
        let mut prng = Prng::new(seed);
        for rank in 0..ranks {
            let rows = records(rank, 2_000, Keys::Any, &mut prng);
            let config = config(2, Arc::new(Weighted));
            net.start(rank, MilliSort::new(config, rank as u16, ranks, blocks(&rows)));
        }
        (0..dead_at).for_each(|_| net.step());
        net.dead = Some(victim);
        net.run();
        for (rank, end) in net.ends.iter().enumerate().filter(|end| end.0 != victim) {
            match end {
                Some(Ok(_)) => {}
                Some(Err(failure)) => {
                    assert_eq!(usize::from(failure.rank()), victim, "rank {rank}: {failure}");
                }
                None => panic!("seed {seed}: rank {rank} has no end"),
            }
        }
        let failed = net.ends.iter().filter(|end| matches!(end, Some(Err(_)))).count();
        assert!(failed > 0 || dead_at > 9, "seed {seed}: nobody noticed");
    }
}

#[test]
fn a_rank_that_comes_late_delays_the_sort_and_nothing_else() {
    let (ranks, late) = (11, 3);
    let mut net = Net::new(ranks, 8, 0.01);
    let mut prng = Prng::new(8);
    let mut programs: Vec<MilliSort> = Vec::new();
    for rank in 0..ranks {
        let rows = records(rank, 50, Keys::Any, &mut prng);
        let config = config(2, Arc::new(Weighted));
        programs.push(MilliSort::new(config, rank as u16, ranks, blocks(&rows)));
    }
    let last = programs.remove(late);
    for (rank, program) in (0..ranks).filter(|&rank| rank != late).zip(programs) {
        net.start(rank, program);
    }
    // Ten times as long as a rank may be silent.
    (0..4_000).for_each(|_| net.step());
    assert!(net.ends.iter().all(Option::is_none));
    net.start(late, last);
    net.run();
    assert_eq!(net.results().iter().map(|one| one.records.len()).sum::<usize>(), 550);
}
