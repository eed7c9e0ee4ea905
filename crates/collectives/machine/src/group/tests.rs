//! Calls over a network in memory that loses, repeats and reorders datagrams.

use evenfall_core::{Destination, Prng, StampedBy};

use super::sample::{CALLS, SampleCalls};
use super::*;
use crate::shuffle::Outbound;

const STEP: Duration = Duration::from_micros(500);

/// The ranks, and the datagrams between them.
struct Net {
    ranks: Vec<ProcessGroup>,
    wire: Vec<(SocketAddr, Arrival)>,
    now: Timestamp,
    prng: Prng,
    events: Vec<Vec<CollectiveEvent>>,
}

fn address(rank: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7_000 + rank as u16))
}

impl Net {
    fn new(ranks: usize, seed: u64) -> Self {
        let members: Vec<_> = (0..ranks).map(address).collect();
        Self::with_lists(vec![members; ranks], seed)
    }

    /// Each rank has this list of addresses, and states a hash of it.
    fn with_lists(lists: Vec<Vec<SocketAddr>>, seed: u64) -> Self {
        let shuffle = ShuffleConfig {
            packet_bytes: 64,
            resend_after: Duration::from_millis(2),
            silence_max: Duration::from_millis(100),
            ..ShuffleConfig::default()
        };
        let ranks = lists.len();
        let group = |(rank, members): (usize, Vec<SocketAddr>)| {
            let ports = members.iter().map(|member| u64::from(member.port()));
            let agreed = ports.fold(0, |hash, port| mix(hash ^ port)) as u32;
            let shuffle = shuffle.clone();
            let settings = GroupSettings { shuffle, agreed, ..GroupSettings::default() };
            ProcessGroup::new(rank, members, settings).expect("a rank")
        };
        Self {
            ranks: lists.into_iter().enumerate().map(group).collect(),
            wire: Vec::new(),
            now: Timestamp::from_nanos(1_000_000_000),
            prng: Prng::new(seed),
            events: vec![Vec::new(); ranks],
        }
    }

    fn call(&mut self, rank: usize, call: Collective) -> Result<u64, StartError> {
        self.ranks[rank].call(self.now, call)
    }

    /// Half a millisecond passes. The datagrams under way arrive in any order, and one in fifty is
    /// lost.
    fn step(&mut self) {
        self.now += STEP;
        let mut wire = core::mem::take(&mut self.wire);
        self.prng.shuffle(&mut wire);
        for (to, arrival) in wire {
            let here = |group: &ProcessGroup| group.members()[group.rank()] == to;
            if let Some(group) = self.ranks.iter_mut().find(|group| here(group))
                && self.prng.chance(0.98)
            {
                group.handle(self.now, arrival).expect("ours");
            }
        }
        for (rank, group) in self.ranks.iter_mut().enumerate() {
            let from = group.members()[rank];
            if group.poll_timeout().is_some_and(|due| due <= self.now) {
                group.handle_timeout(self.now);
            }
            while let Some(event) = group.poll_event() {
                self.events[rank].push(event);
            }
            while let Some(transmit) = group.poll_transmit(self.now) {
                let Destination::One(to) = transmit.to else { panic!("no groups") };
                let datagram = [transmit.head.as_slice(), &transmit.body].concat().into();
                let arrival = Arrival::new(from, datagram, self.now, StampedBy::User);
                self.wire.push((to, arrival));
            }
        }
    }

    fn run(&mut self, until: impl Fn(&[CollectiveEvent]) -> bool) {
        for _ in 0..5_000 {
            self.step();
            if self.events.iter().all(|events| until(events)) {
                return;
            }
        }
        panic!("not over: {:?}", self.events);
    }
}

#[test]
fn every_call_ends_as_told_whatever_the_number_of_ranks() {
    for ranks in 1..=27 {
        let mut net = Net::new(ranks, ranks as u64);
        let (seed, body_bytes_max) = (ranks as u64, 300);
        let calls = |me| {
            let roots = [ranks / 2, ranks - 1].into_iter();
            roots.flat_map(move |root| SampleCalls { ranks, root, seed, body_bytes_max }.calls(me))
        };
        for me in 0..ranks {
            for (call, _) in calls(me) {
                net.call(me, call).expect("begun");
            }
        }
        net.run(|events| events.len() >= 2 * CALLS.len());
        for (me, events) in net.events.iter().enumerate() {
            let mut ended = vec![None; 2 * CALLS.len()];
            for event in events {
                let CollectiveEvent::Done { call, outcome } = event else {
                    panic!("{ranks}: {event:?}")
                };
                assert_eq!(ended[*call as usize].replace(outcome.clone()), None);
            }
            let ended: Vec<CollectiveOutcome> = ended.into_iter().flatten().collect();
            let told: Vec<CollectiveOutcome> = calls(me).map(|(_, outcome)| outcome).collect();
            assert_eq!(ended, told, "rank {me} of {ranks}");
        }
    }
}

/// The failure with which the first call of a rank has ended.
fn failure(net: &Net, rank: usize) -> RankFailure {
    match net.events[rank][..] {
        [CollectiveEvent::Failed { failure, .. }] => failure,
        _ => panic!("rank {rank}: {:?}", net.events[rank]),
    }
}

#[test]
fn ranks_with_different_lists_disagree_and_none_is_called_silent() {
    let list = |ports: &[usize]| ports.iter().map(|&port| address(port)).collect::<Vec<_>>();
    let right = list(&[0, 1, 2, 3]);
    // Another address of a third rank, one line more, and the lines of two others changed.
    for wrong in [list(&[0, 1, 2, 9]), list(&[0, 1, 2, 3, 4]), list(&[3, 1, 2, 0])] {
        let lists = vec![right.clone(), wrong.clone(), right.clone(), right.clone()];
        let mut net = Net::with_lists(lists, 7);
        for rank in 0..4 {
            net.call(rank, Collective::AllGather { body: Bytes::new() }).expect("begun");
        }
        net.run(|events| !events.is_empty());
        for rank in 0..4 {
            let failure = failure(&net, rank);
            assert!(failure.is_disagreement(), "{wrong:?}, rank {rank}: {failure}");
            // Rank 1 finds the difference, or another rank does and names it.
            let by_1 = matches!(failure, RankFailure::Aborted { by: 1, .. });
            let names_1 = rank == 1 || failure.rank() == 1 || by_1;
            assert!(names_1, "{wrong:?}, rank {rank}: {failure}");
        }
    }
}

#[test]
fn a_rank_that_sends_from_another_address_is_told_so_and_is_named_with_that_address() {
    let right = vec![address(0), address(1)];
    let mut net = Net::with_lists(vec![right, vec![address(0), address(8)]], 3);
    for rank in 0..2 {
        net.call(rank, Collective::Barrier).expect("begun");
    }
    net.run(|events| !events.is_empty());
    assert_eq!(failure(&net, 0), RankFailure::Elsewhere { rank: 1, address: address(8) });
    assert_eq!(failure(&net, 1), RankFailure::Disagrees { rank: 0 });
}

#[test]
fn a_stranger_that_claims_to_be_a_rank_changes_nothing() {
    let mut net = Net::new(2, 4);
    for rank in 0..2 {
        net.call(rank, Collective::Barrier).expect("begun");
    }
    net.step();
    for (to, mut arrival) in net.wire.clone() {
        // The agreement of another list.
        let mut datagram = arrival.datagram.to_vec();
        datagram[28] ^= 1;
        (arrival.from, arrival.datagram) = (address(77), datagram.into());
        net.wire.push((to, arrival));
    }
    net.run(|events| !events.is_empty());
    let is_done = |events: &Vec<CollectiveEvent>| matches!(events[0], CollectiveEvent::Done { .. });
    assert!(net.events.iter().all(is_done), "{:?}", net.events);
}

/// Passes what arrives on to a rank, twice.
#[derive(Debug)]
struct Twice(Option<usize>);

impl CollectiveAlgorithm for Twice {
    fn take(&mut self, _: usize, body: Bytes, out: &mut course::Sends) -> Result<(), Malformed> {
        out.extend(self.0.into_iter().flat_map(|to| [(to, body.clone()), (to, body.clone())]));
        Ok(())
    }

    fn outcome(&mut self) -> Result<CollectiveOutcome, u16> {
        Ok(CollectiveOutcome::Nothing)
    }
}

#[test]
fn a_call_that_sends_what_it_did_not_list_fails_and_says_why() {
    // Rank 1 sends a message to rank 0 and expects one. Rank 0 lists one message to rank 1, or
    // none, and sends two.
    for listed in [Outbound::Later, Outbound::Nothing] {
        let mut net = Net::new(2, 5);
        let (sends, expects) = (vec![Outbound::Nothing, listed], vec![false, true]);
        let broken = Script { sends, expects, course: Box::new(Twice(Some(1))) };
        let sends = vec![Outbound::Now(Bytes::new()), Outbound::Nothing];
        let right = Script { sends, expects: vec![true, false], course: Box::new(Twice(None)) };
        for (rank, script) in [broken, right].into_iter().enumerate() {
            let members = net.ranks[rank].members().to_vec();
            let begun = Begun { number: 0, rank, members, among: None, about: 0 };
            net.ranks[rank].begin(net.now, begun, script).expect("begun");
        }
        net.run(|events| !events.is_empty());
        let told = failure(&net, 0);
        assert_eq!(told, RankFailure::Unlisted { rank: 0, to: 1 });
        assert!(told.to_string().contains("at most one message"), "{told}");
        assert_eq!(failure(&net, 1).rank(), 0);
    }
}

#[test]
fn every_call_has_a_number_of_its_own_and_a_row_on_the_page_of_the_wire() {
    let group = ProcessGroup::new(0, vec![address(0)], GroupSettings::default()).expect("a rank");
    let sample = SampleCalls { ranks: 1, root: 0, seed: 1, body_bytes_max: 8 };
    let mut numbers: Vec<u32> = CALLS
        .iter()
        .map(|call| check(&call(&sample, 0), 1, group.arity).expect("a call"))
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), CALLS.len(), "two calls have one kind number");
    let page = include_str!("../../../../../docs/wire/shuffle.md");
    let (_, table) = page.split_once("| call | kind |").expect("the table of calls");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|')).count();
    assert_eq!(rows, CALLS.len(), "docs/wire/shuffle.md has a row for each call");
}

#[test]
fn values_are_reduced_as_the_numbers_that_they_are() {
    let bits = f64::to_bits;
    for (by, values, told) in [
        (Reduce::Sum, [u64::MAX, 2], 1),
        (Reduce::Min, [2, 3], 2),
        (Reduce::Max, [2, 3], 3),
        (Reduce::SumF64, [bits(1.5), bits(-3.0)], bits(-1.5)),
        (Reduce::MinF64, [bits(1.5), bits(-3.0)], bits(-3.0)),
        (Reduce::MaxF64, [bits(1.5), bits(-3.0)], bits(1.5)),
    ] {
        let [a, b] = values.map(u64::to_le_bytes);
        assert_eq!(by.lanes(&a, &b)[..], told.to_le_bytes(), "{by:?}");
    }
}

#[test]
fn a_barrier_holds_until_the_last_has_come() {
    let mut net = Net::new(6, 1);
    (0..5).for_each(|rank| assert!(net.call(rank, Collective::Barrier).is_ok()));
    (0..40).for_each(|_| net.step());
    assert!(net.events.iter().all(Vec::is_empty));
    assert!(net.call(5, Collective::Barrier).is_ok());
    net.run(|events| events.len() == 1);
}

#[test]
fn who_makes_another_call_is_named() {
    let mut net = Net::new(4, 2);
    for rank in 0..3 {
        net.call(rank, Collective::AllGather { body: Bytes::new() }).expect("begun");
    }
    net.call(3, Collective::Barrier).expect("begun");
    net.run(|events| !events.is_empty());
    let blames_3 = |events: &Vec<CollectiveEvent>| match events[..] {
        [CollectiveEvent::Failed { failure, .. }] => failure.rank() == 3,
        _ => false,
    };
    assert!(net.events[..3].iter().any(blames_3), "{:?}", net.events);
    let failed =
        |events: &Vec<CollectiveEvent>| matches!(events[..], [CollectiveEvent::Failed { .. }]);
    assert!(net.events.iter().all(failed), "{:?}", net.events);
}

#[test]
fn calls_that_make_no_sense_are_refused_with_words() {
    let mut net = Net::new(3, 3);
    let refused = |net: &mut Net, call| net.call(0, call).expect_err("refused").to_string();
    let body = Bytes::from_static(b"12345");
    assert!(
        refused(&mut net, Collective::Broadcast { root: 3, body: body.clone() }).contains("rank 3")
    );
    let by = Reduce::Sum;
    assert!(refused(&mut net, Collective::AllReduce { values: body, by }).contains("8 bytes"));
    let words = refused(&mut net, Collective::Shuffle { messages: vec![Bytes::new(); 2] });
    assert!(words.contains("2 messages for 3 members"), "{words}");
    assert_eq!(net.call(0, Collective::Barrier), Ok(0));
}

#[test]
fn a_rank_that_is_busy_with_an_earlier_call_is_not_taken_for_dead() {
    let mut net = Net::new(3, 4);
    // Rank 0 waits in a call that only it makes, for longer than a rank may be silent.
    for rank in 0..3 {
        net.call(rank, Collective::Barrier).expect("begun");
    }
    net.run(|events| events.len() == 1);
    (1..3).for_each(|rank| assert!(net.call(rank, Collective::Barrier).is_ok()));
    (0..1_000).for_each(|_| net.step());
    assert!(net.events.iter().all(|events| events.len() == 1), "{:?}", net.events);
    net.call(0, Collective::Barrier).expect("begun");
    net.run(|events| events.len() == 2);
    assert!(net.events.iter().flatten().all(|event| matches!(event, CollectiveEvent::Done { .. })));
}

/// The sample of a group of some ranks, made by them under a number that all ranks reserved. The
/// other ranks make no call.
fn among(net: &mut Net, number: u64, ranks: &[u16], sample: &SampleCalls, kind: usize) {
    for (place, &rank) in ranks.iter().enumerate() {
        let call = CALLS[kind](sample, place);
        let (now, ranks) = (net.now, ranks.to_vec().into());
        net.ranks[usize::from(rank)].call_among(now, number, ranks, call).expect("begun");
    }
}

#[test]
fn calls_among_some_ranks_tell_arrivals_and_results_before_they_end() {
    for seed in 0..20 {
        let ranks: Vec<u16> = [1, 2, 4, 7, 8, 10, 11].into();
        let mut net = Net::new(12, seed);
        let firsts: Vec<u64> =
            net.ranks.iter_mut().map(|group| group.reserve(CALLS.len() as u64)).collect();
        assert!(firsts.iter().all(|&first| first == 0));
        let sample = SampleCalls { ranks: ranks.len(), root: 3, seed, body_bytes_max: 300 };
        (0..CALLS.len()).for_each(|kind| among(&mut net, kind as u64, &ranks, &sample, kind));
        let over = |events: &[CollectiveEvent]| {
            let done = |event: &&CollectiveEvent| matches!(event, CollectiveEvent::Done { .. });
            events.iter().filter(done).count() == CALLS.len()
        };
        for _ in 0..2_000 {
            net.step();
            if ranks.iter().all(|&rank| over(&net.events[usize::from(rank)])) {
                break;
            }
        }
        for (place, &rank) in ranks.iter().enumerate() {
            let events = &net.events[usize::from(rank)];
            assert!(over(events), "rank {rank}: {events:?}");
            for (kind, (_, wanted)) in sample.calls(place).into_iter().enumerate() {
                let call = kind as u64;
                let at = |wanted: CollectiveEvent| events.iter().position(|e| *e == wanted);
                let here = at(CollectiveEvent::Here { call, outcome: wanted });
                let nothing = CollectiveOutcome::Nothing;
                let done = at(CollectiveEvent::Done { call, outcome: nothing });
                assert!(here.is_some() && here < done, "rank {rank}, call {kind}: {events:?}");
            }
            let from = |event: &CollectiveEvent| match event {
                CollectiveEvent::Arrived { from, .. } => Some(*from),
                _ => None,
            };
            assert!(events.iter().filter_map(from).all(|from| ranks.contains(&from)));
        }
        assert!(net.events[0].is_empty() && net.events[3].is_empty());
    }
}

#[test]
fn a_rank_that_released_its_calls_with_a_failure_ends_those_of_all_who_wait_for_it() {
    let mut net = Net::new(5, 9);
    net.ranks.iter_mut().for_each(|group| assert_eq!(group.reserve(4), 0));
    let sample = SampleCalls { ranks: 3, root: 0, seed: 1, body_bytes_max: 300 };
    // Ranks 0 and 2 wait for rank 4, which never begins the call.
    for (place, rank) in [0, 2].into_iter().enumerate() {
        let (now, call) = (net.now, CALLS[2](&sample, place));
        net.ranks[rank].call_among(now, 2, [0, 2, 4].into(), call).expect("begun");
    }
    (0..600).for_each(|_| net.step());
    assert!(net.events[0].iter().all(|e| matches!(e, CollectiveEvent::Arrived { .. })));
    net.ranks[4].release(0, Some(RankFailure::Silent { rank: 3 }));
    (0..100).for_each(|_| net.step());
    for rank in [0, 2] {
        let Some(CollectiveEvent::Failed { failure, .. }) = net.events[rank].last() else {
            panic!("rank {rank}: {:?}", net.events[rank]);
        };
        assert_eq!(failure.rank(), 3, "{failure}");
    }
}

#[test]
fn calls_among_ranks_that_make_no_sense_are_refused() {
    let mut net = Net::new(4, 3);
    net.ranks[1].reserve(1);
    for wrong in [&[0, 2][..], &[2, 1], &[1, 1], &[1, 9]] {
        let refused = net.ranks[1].call_among(net.now, 0, wrong.into(), Collective::Barrier);
        assert_eq!(refused, Err(StartError::Among { rank: 1 }), "{wrong:?}");
    }
}
