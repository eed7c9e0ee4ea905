//! Answers of queries are those of a plain program.

use evenfall_query_burst::placement::KeyPlacement;
use evenfall_query_burst::query::{Duplicates, MilliQuery, QueryAnswer, QueryRows, answer_plainly};
use evenfall_query_burst::rows::{QueryName, make};

use crate::net::Net;

fn answer(rows: &[QueryRows], duplicates: Duplicates, seed: u64) -> QueryAnswer {
    let by = |placement| answer_by(placement, rows, duplicates, seed).0;
    let (by_hash, by_range) = (by(KeyPlacement::Hash), by(KeyPlacement::Range));
    assert_eq!(by_hash, by_range, "the places of keys do not change an answer");
    by_hash
}

/// The answer, and the rows that the fullest rank added up.
fn answer_by(
    placement: KeyPlacement,
    rows: &[QueryRows],
    duplicates: Duplicates,
    seed: u64,
) -> (QueryAnswer, u64) {
    let mut net = Net::new(rows.len(), seed, 0.02);
    for (rank, own) in rows.iter().enumerate() {
        let query = MilliQuery::new(rows.len(), own.clone(), duplicates);
        net.start(rank, query.placed_by(placement, rank as u16));
    }
    net.run();
    let outputs = net.results();
    let most = outputs.iter().map(|output| output.summed).max().expect("a rank");
    assert!(outputs[1..].iter().all(|output| output.answer.is_empty()), "rank 0 alone has it");
    (outputs.into_iter().next().expect("a rank").answer, most)
}

#[test]
fn a_hot_key_shares_its_rank_with_others_by_hash_and_not_by_range() {
    // Each rank has a key that a tenth of all rows have, and keys of its own.
    let edits = |rank: u32| {
        let own = (0..360).map(move |at| 10 * at + rank);
        QueryRows::Edits(own.chain([7_777_777; 40]).collect())
    };
    let rows: Vec<QueryRows> = (0..10).map(edits).collect();
    let by = |placement| answer_by(placement, &rows, Duplicates::OutAfter, 1);
    let ((hashed, hash_most), (ranged, range_most)) =
        (by(KeyPlacement::Hash), by(KeyPlacement::Range));
    assert_eq!(hashed, ranged);
    // The mean is 400, which is what the hot key has alone.
    assert!(hash_most > 550 && range_most < 480, "{hash_most} by hash, {range_most} by range");
}

#[test]
fn every_query_answers_as_a_plain_program_does() {
    for query in [QueryName::Q1, QueryName::Q2, QueryName::Q3] {
        for (seed, ranks) in [(1, 1), (2, 2), (3, 7), (4, 13)] {
            for count in [0, 1, 37, 700] {
                let rows: Vec<_> =
                    (0..ranks).map(|rank| make(query, seed, rank, ranks, count)).collect();
                let plain = answer_plainly(&rows);
                for duplicates in [Duplicates::OutBefore, Duplicates::OutAfter] {
                    let found = answer(&rows, duplicates, seed);
                    assert_eq!(found, plain, "{query:?}, {ranks} ranks, {count} rows");
                }
            }
        }
    }
}

#[test]
fn a_rank_without_rows_takes_part() {
    let mut rows: Vec<_> = (0..5).map(|rank| make(QueryName::Q2, 9, rank, 5, 100)).collect();
    rows[2] = QueryRows::Edits(Vec::new());
    assert_eq!(answer(&rows, Duplicates::OutBefore, 9), answer_plainly(&rows));
}
