//! Every rank ends with the name of the rank that dies, disagrees or exceeds the memory.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use evenfall_collectives_machine::RankFailure;
use evenfall_query_burst::rows::{QueryName, make};
use evenfall_query_member::{
    BurstMember, Duplicates, GroupError, GroupMember, KeyDraw, MilliQuery, SortConfig, SortMember,
    make_records,
};

use crate::group::{run_ranks, settings};

fn sort_as(member: GroupMember, levels: usize, count: usize) -> Result<usize, GroupError> {
    let records = make_records(KeyDraw::Uniform, 2, member.rank(), count);
    let mut sorter = SortMember::new(member, SortConfig::weighted(levels));
    let sorted = sorter.sort_records(records)?.output.records.len();
    sorter.into_member().leave();
    Ok(sorted)
}

/// The failures of all ranks but one, which must all name that one.
fn assert_named(ends: &[Option<Result<usize, GroupError>>], named: u16) {
    for (rank, end) in ends.iter().enumerate().filter(|(rank, _)| *rank != usize::from(named)) {
        match end {
            Some(Err(GroupError::Failed(failure))) => {
                assert_eq!(failure.rank(), named, "rank {rank}: {failure}");
            }
            other => panic!("rank {rank}: {other:?}"),
        }
    }
}

#[test]
fn a_rank_that_never_comes_is_named_within_its_silence() {
    let begin = Instant::now();
    let ends =
        run_ranks(4, &settings(), |member| (member.rank() != 2).then(|| sort_as(member, 1, 2_000)));
    assert_named(&ends, 2);
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn a_rank_with_another_plan_is_named_or_names_another() {
    let ends = run_ranks(3, &settings(), |member| {
        if member.rank() < 2 {
            return sort_as(member, 1, 100).map(drop);
        }
        let rows = make(QueryName::Q2, 1, 2, 3, 100);
        BurstMember::new(member)
            .run_burst(MilliQuery::new(3, rows, Duplicates::OutBefore))
            .map(drop)
    });
    for (rank, end) in ends.iter().enumerate() {
        let failed = matches!(end, Err(GroupError::Failed(_)));
        assert!(failed, "rank {rank}: {end:?}");
    }
    let disagrees = |end: &Result<(), GroupError>| {
        matches!(end, Err(GroupError::Failed(RankFailure::Disagrees { .. })))
    };
    assert!(ends.iter().any(disagrees), "{ends:?}");
}

#[test]
fn incoming_records_beyond_the_memory_fail_the_sort() {
    let mut settings = settings();
    settings.shuffle.incoming_bytes_max = 50_000;
    let ends = run_ranks(3, &settings, |member| sort_as(member, 1, 2_000));
    let too_much = |end: &Result<usize, GroupError>| {
        matches!(end, Err(GroupError::Failed(RankFailure::TooMuch { .. })))
    };
    assert!(ends.iter().any(too_much), "{ends:?}");
    assert!(ends.iter().all(Result::is_err), "{ends:?}");
}

#[test]
fn datagrams_of_strangers_change_nothing() {
    let ends = run_ranks(3, &settings(), |mut member| {
        let own = member.group().members()[member.rank()];
        let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for length in 0..120_u8 {
            stranger.send_to(&vec![length; usize::from(length)], own).expect("sent");
        }
        member.barrier().expect("all are here");
        sort_as(member, 1, 1_000)
    });
    let sum: usize = ends.into_iter().map(|end| end.expect("sorted")).sum();
    assert_eq!(sum, 3_000);
}

#[test]
fn a_rank_that_works_for_longer_than_its_silence_is_waited_for() {
    let ends = run_ranks(3, &settings(), |mut member| {
        let wait = Duration::from_millis(if member.rank() == 1 { 1_500 } else { 0 });
        member.work_beside(|| std::thread::sleep(wait)).expect("done");
        member.barrier().expect("all are here");
        sort_as(member, 1, 500)
    });
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
}
