//! Lists of ends, and what a replica takes of them.

use super::*;
use crate::{Config, Member, SuperLeaf, Tree};

const CLUSTER: u64 = 7;

fn list(ends: &[(u16, u32, u64)]) -> Ends {
    let add = |list: Ends, (leaf, incarnation, end): &(u16, u32, u64)| {
        list.with(VnodeId(*leaf), *incarnation, *end)
    };
    ends.iter().fold(Ends::new(CLUSTER), add)
}

/// A replica of two super-leaves of three.
fn replica() -> Canopus {
    let member = |n: u32| {
        let address = ([127, 0, 0, 1], 7_000 + n as u16).into();
        Member { node: NodeId(n), address }
    };
    let leaf = |n: u32| SuperLeaf {
        path: vec![n as u8],
        members: (3 * n..3 * n + 3).map(member).collect(),
    };
    let tree = Tree::new(vec![leaf(0), leaf(1)]).expect("a tree");
    let config = Config { second_round: SecondRound::Outside, ..Config::default() };
    Canopus::new(config, tree, NodeId(0), 1, &Bytes::new()).expect("a replica")
}

#[test]
fn a_list_is_what_it_was_after_it_was_encoded() {
    let ends = list(&[(1, 0, 5), (2, 3, 9), (1, 1, 40)]);
    assert_eq!(Ends::decode(&ends.encode()), Ok(ends.clone()));
    assert_eq!(ends.said(VnodeId(1), 0), Said::End(5));
    assert_eq!(ends.said(VnodeId(1), 2), Said::Nothing);
    for bytes in [&b""[..], b"EFM1", &ends.encode()[..30], &[&ends.encode()[..], b"x"].concat()] {
        assert!(Ends::decode(bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn a_list_stays_short_and_says_what_it_has_forgotten() {
    let all: Vec<_> = (0..100).map(|n| (1, n, u64::from(n) * 10)).collect();
    let ends = list(&all);
    assert_eq!(ends.of(VnodeId(1)).count(), ENDS_PER_LEAF);
    assert_eq!(ends.said(VnodeId(1), 99), Said::End(990));
    assert_eq!(ends.said(VnodeId(1), 3), Said::Forgotten);
    assert_eq!(ends.said(VnodeId(2), 3), Said::Nothing);
    assert!(ends.continues(&list(&all[..50])));
    assert!(!list(&all[..50]).continues(&ends));
}

#[test]
fn a_list_of_others_or_of_less_is_refused_and_an_older_one_ignored() {
    let mut replica = replica();
    let now = Timestamp::from_nanos(1_000_000_000);
    let ours = |ends: &[(u16, u32, u64)]| Ends { cluster: replica.digest, ..list(ends) }.encode();
    let (one, two) = (ours(&[(2, 0, 5)]), ours(&[(2, 0, 5), (2, 1, 9)]));
    let (other, more) = (ours(&[(2, 0, 6)]), ours(&[(2, 0, 6), (2, 1, 9), (2, 2, 20)]));
    let foreign = list(&[]).encode();
    assert!(matches!(replica.outside(now, Some(&foreign)), Err(OrderError::Outside(_))));
    let garbage = Bytes::from_static(b"something else");
    assert!(matches!(replica.outside(now, Some(&garbage)), Err(OrderError::Outside(_))));
    assert!(!replica.hears_outside(now));
    assert_eq!(replica.outside(now, None), Ok(()));
    assert_eq!(replica.outside(now, Some(&one)), Ok(()));
    // The same number of changes, and other ones.
    assert!(matches!(replica.outside(now, Some(&other)), Err(OrderError::Outside(_))));
    assert_eq!(replica.outside(now, Some(&two)), Ok(()));
    assert_eq!(replica.outside(now, Some(&one)), Ok(()));
    assert_eq!(replica.said(VnodeId(2), 1), Said::End(9));
    assert!(matches!(replica.outside(now, Some(&more)), Err(OrderError::Outside(_))));
    // The service lost its list.
    assert_eq!(replica.outside(now, None), Ok(()));
    assert_eq!(replica.said(VnodeId(2), 1), Said::End(9));
}
