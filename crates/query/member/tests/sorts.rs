//! What ranks sort and answer over UDP is what a plain program sorts and answers.

use std::fs;

use evenfall_query_burst::query::answer_plainly;
use evenfall_query_burst::rows::{QueryName, make};
use evenfall_query_member::check::{PartSummary, SortVerdict, judge_sort, sort_plainly};
use evenfall_query_member::files::{
    RecordFileError, count_records, join_blocks, part_name, read_share, split_block, write_part,
};
use evenfall_query_member::{
    BurstMember, Duplicates, KeyDraw, MilliQuery, SortConfig, SortMember, SortRecords, make_records,
};

use crate::group::{run_ranks, settings};

/// Sorts what each rank has, and gives the parts.
fn sort_all(
    ranks: usize,
    levels: usize,
    input: impl Fn(usize) -> SortRecords + Sync,
) -> Vec<SortRecords> {
    run_ranks(ranks, &settings(), |member| {
        let records = input(member.rank());
        let mut sorter = SortMember::new(member, SortConfig::weighted(levels));
        let sorted = sorter.sort_records(records).expect("sorted").output.records;
        sorter.into_member().leave();
        sorted
    })
}

#[test]
fn ranks_sort_any_keys_as_one_program_does() {
    for (ranks, levels, keys, each) in [
        (1, 1, KeyDraw::Uniform, 500),
        (4, 1, KeyDraw::Uniform, 3_000),
        (3, 1, KeyDraw::Equal, 700),
        (4, 2, KeyDraw::Few, 2_000),
        (11, 2, KeyDraw::Gaussian, 300),
    ] {
        let input = |rank: usize| make_records(keys, 7, rank, each * usize::from(rank != 1));
        let parts = sort_all(ranks, levels, input);
        let before: Vec<SortRecords> = (0..ranks).map(input).collect();
        let joined = |all: &[SortRecords]| all.iter().map(join_blocks).collect::<Vec<_>>().concat();
        let wanted = join_blocks(&sort_plainly(&split_block(&joined(&before))));
        assert!(joined(&parts) == wanted, "{ranks} ranks, {levels} levels, {keys:?}");
        let summaries = |all: &[SortRecords]| all.iter().map(PartSummary::of).collect::<Vec<_>>();
        let verdict = judge_sort(&summaries(&before), &summaries(&parts));
        let right = SortVerdict { ordered: true, same_records: true, stable: true };
        assert_eq!(verdict, right, "{ranks} ranks, {keys:?}");
    }
}

#[test]
fn parts_one_behind_the_other_are_the_sorted_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, out) = (dir.path().join("records"), dir.path().join("sorted"));
    let all = make_records(KeyDraw::Few, 3, 0, 1_001);
    fs::write(&file, join_blocks(&all)).expect("a file");
    assert_eq!(count_records(&file).expect("records"), 1_001);
    let parts = sort_all(3, 1, |rank| read_share(&file, rank, 3).expect("a share"));
    for (rank, part) in parts.iter().enumerate() {
        write_part(&out, rank, part).expect("a part");
    }
    let bytes: Vec<u8> =
        (0..3).flat_map(|rank| fs::read(out.join(part_name(rank))).expect("a part")).collect();
    assert!(bytes == join_blocks(&sort_plainly(&all)));
    assert_eq!(fs::read_dir(&out).expect("a directory").count(), 3, "nothing else is left");
}

#[test]
fn a_file_with_a_rest_is_refused_with_its_length() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("records");
    fs::write(&file, [0; 250]).expect("a file");
    let error = count_records(&file).expect_err("no records");
    assert!(matches!(error, RecordFileError::Length { bytes: 250, .. }), "{error}");
    assert!(error.to_string().contains("250 bytes, which are no whole records of 100 bytes"));
    assert!(count_records(&dir.path().join("absent")).is_err());
}

#[test]
fn queries_over_udp_answer_as_a_plain_program_does() {
    for (query, duplicates) in [
        (QueryName::Q1, Duplicates::OutBefore),
        (QueryName::Q2, Duplicates::OutAfter),
        (QueryName::Q3, Duplicates::OutBefore),
    ] {
        let (ranks, each) = (4, 2_000);
        let rows = |rank| make(query, 5, rank, ranks, each);
        let outputs = run_ranks(ranks, &settings(), |member| {
            let own = rows(member.rank());
            let mut asker = BurstMember::new(member);
            // A member answers one question after the other.
            let first = MilliQuery::new(ranks, own.clone(), duplicates);
            let first = asker.run_burst(first).expect("an answer").output;
            let second = asker.run_burst(MilliQuery::new(ranks, own, duplicates));
            assert_eq!(second.expect("an answer").output, first);
            asker.into_member().leave();
            first
        });
        let all: Vec<_> = (0..ranks).map(rows).collect();
        assert_eq!(outputs[0].answer, answer_plainly(&all), "{query:?}");
        assert!(outputs.iter().map(|output| output.summed).sum::<u64>() > 0);
    }
}
