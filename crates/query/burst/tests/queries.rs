//! Answers of queries are those of a plain program.

use evenfall_query_burst::query::{Answer, Duplicates, MilliQuery, QueryRows, answer_plainly};
use evenfall_query_burst::rows::{QueryName, make};

use crate::net::Net;

fn answer(rows: &[QueryRows], duplicates: Duplicates, seed: u64) -> Answer {
    let mut net = Net::new(rows.len(), seed, 0.02);
    for (rank, own) in rows.iter().enumerate() {
        net.start(rank, MilliQuery::new(rows.len(), own.clone(), duplicates));
    }
    net.run();
    let answers: Vec<Answer> = net.results().into_iter().map(|output| output.answer).collect();
    assert!(answers[1..].iter().all(Vec::is_empty), "the answer is at rank 0 alone");
    answers.into_iter().next().expect("a rank")
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
