use evenfall_core::NodeId;

use super::*;
use crate::{RequestSet, Requests};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const C: NodeId = NodeId(2);

fn proposal(cycle: u64) -> GroupEntry {
    let set = RequestSet { node: A, incarnation: 0, number: cycle, requests: Requests::default() };
    GroupEntry::Proposal(Proposal { cycle, set, changes: Vec::new() })
}

fn group() -> ProposalGroup {
    ProposalGroup::new(A, 0, 1, &[vec![A, B, C]])
}

#[test]
fn an_entry_is_committed_when_a_majority_has_it() {
    let mut group = group();
    assert!(group.store(&proposal(1)) && !group.store(&proposal(1)) && !group.store(&proposal(3)));
    let mine = group.mine();
    group.hear(B, &mine);
    assert_eq!(group.part(1), MemberPart::Open);
    group.hear(A, &mine);
    assert_eq!(group.part(1), MemberPart::Proposed(&proposal(1)));
    assert_eq!(group.part(2), MemberPart::Open);
}

#[test]
fn an_entry_taken_after_a_promise_does_not_count() {
    let mut group = group();
    group.promise(1, C);
    assert!(group.store(&proposal(1)));
    assert_eq!((group.mine().have, group.mine().next), (2, 1));
}

#[test]
fn a_member_with_a_shorter_log_is_not_promised_a_term() {
    let (mut b, mut c) = (group(), group());
    b.store(&proposal(1));
    c.promise(1, C);
    assert!(!b.may_promise(&c.mine()), "B has an entry that C lacks");
    b.promise(1, B);
    let mut fresh = group();
    assert!(fresh.may_promise(&b.mine()));
    fresh.promise(1, B);
    assert!(!fresh.may_promise(&c.mine()), "one promise a term");
}

#[test]
fn a_log_ends_where_the_elected_member_has_its_last_entry() {
    let (mut b, mut c) = (group(), group());
    b.store(&proposal(1));
    b.promise(1, B);
    b.hear(B, &b.mine());
    assert_eq!(b.won(B), None, "one of three");
    c.promise(1, B);
    b.hear(C, &c.mine());
    assert_eq!(b.won(B), Some((1, 2)));
    b.accept(1, 2);
    assert_eq!(c.may_accept(&b.mine()), None, "C lacks the entry of cycle 1");
    c.store(&proposal(1));
    assert_eq!(c.may_accept(&b.mine()), Some((1, 2)));
    c.accept(1, 2);
    b.hear(B, &b.mine());
    assert!(!b.is_closed());
    b.hear(C, &c.mine());
    assert_eq!((b.part(1), b.part(2)), (MemberPart::Proposed(&proposal(1)), MemberPart::Absent));
}

#[test]
fn an_end_that_was_accepted_is_repeated_by_the_next_leader() {
    let (mut b, mut c) = (group(), group());
    b.store(&proposal(1));
    b.accept(1, 1);
    c.store(&proposal(1));
    c.promise(2, C);
    assert!(!b.may_promise(&c.mine()), "an end is more up to date than entries");
    b.promise(3, B);
    b.hear(B, &b.mine());
    let mut a = group();
    assert!(a.may_promise(&b.mine()));
    a.promise(3, B);
    b.hear(A, &a.mine());
    assert_eq!(b.won(B), Some((3, 1)));
}

#[test]
fn two_members_that_ask_in_one_term_know_that_the_promises_are_split() {
    let (mut b, mut c) = (group(), group());
    b.promise(1, B);
    c.promise(1, C);
    assert!(b.is_split(B, C, &c.mine()) && c.is_split(C, B, &b.mine()));
    b.promise(2, B);
    assert!(!b.is_split(B, C, &c.mine()), "B asks in a later term, which C may promise");
    assert!(!c.is_split(C, A, &group().mine()), "A asks for nothing");
}

#[test]
fn a_majority_of_racks_is_a_majority_of_each_of_them() {
    let names = |from: u32| (from..from + 3).map(NodeId).collect();
    let mut group = ProposalGroup::new(owner_of(VnodeId(1)), 0, 1, &[names(0), names(3), names(6)]);
    let report = DurableReport { have: 2, next: 2, ..group.mine() };
    for member in [0, 1, 2, 3, 6] {
        group.hear(NodeId(member), &report);
        assert_eq!(group.part(1), MemberPart::Open, "a majority with node {member}");
    }
    group.store(&proposal(1));
    group.hear(NodeId(8), &report);
    assert_eq!(group.part(1), MemberPart::Proposed(&proposal(1)));
}
