//! Lists of ends, and what a replica takes of them.

use evenfall_core::{ClockReading, Machine as _, durable};

use super::*;
use crate::checkpoint::Checkpoint;
use crate::disk_identity::DiskRecord;
use crate::group::GroupEntry;
use crate::journal::{self, Commit};
use crate::{Config, EmulationTable, LeafMember, LeafOnlyTree, SuperLeaf, VnodeState};

const CLUSTER: u64 = 7;

fn list(ends: &[(u16, u32, u64)]) -> Ends {
    let add = |list: Ends, (leaf, incarnation, end): &(u16, u32, u64)| {
        list.with(VnodeId(*leaf), *incarnation, *end)
    };
    ends.iter().fold(Ends::new(CLUSTER), add)
}

/// A replica of two super-leaves of three with this log.
fn replica(log: &[ReplicaRecord]) -> Canopus {
    let member = |n: u32| {
        let address = ([127, 0, 0, 1], 7_000 + n as u16).into();
        LeafMember { node: NodeId(n), address }
    };
    let leaf = |n: u32| SuperLeaf {
        path: vec![n as u8],
        members: (3 * n..3 * n + 3).map(member).collect(),
    };
    let tree = LeafOnlyTree::new(vec![leaf(0), leaf(1)]).expect("a tree");
    let config = Config { second_round: SecondRound::External, ..Config::default() };
    let log = evenfall_core::journal::log_of(log.iter().map(journal::body));
    Canopus::new(config, tree, NodeId(0), 1, &log).expect("a replica")
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
fn a_list_of_others_or_of_less_is_refused() {
    let mut replica = replica(&[]);
    let now = Timestamp::from_nanos(1_000_000_000);
    let ours = |ends: &[(u16, u32, u64)]| Ends { cluster: replica.digest, ..list(ends) }.encode();
    let (one, two) = (ours(&[(2, 0, 5)]), ours(&[(2, 0, 5), (2, 1, 9)]));
    let (other, more) = (ours(&[(2, 0, 6)]), ours(&[(2, 0, 6), (2, 1, 9), (2, 2, 20)]));
    let (foreign, unknown) = (list(&[]).encode(), ours(&[(7, 0, 5)]));
    let full = Ends { version: u64::MAX, cluster: replica.digest, ..list(&[]) }.encode();
    let garbage = Bytes::from_static(b"something else");
    for bytes in [foreign, unknown, full, garbage] {
        let refused = replica.apply_membership(now, Some(&bytes));
        assert!(matches!(refused, Err(ConsensusError::ExternalList(_))), "{bytes:?}: {refused:?}");
    }
    assert!(!replica.hears_service(now));
    assert_eq!(replica.apply_membership(now, None), Ok(()));
    assert_eq!(replica.apply_membership(now, Some(&one)), Ok(()));
    // The same number of changes, and other ones.
    assert_eq!(
        replica.apply_membership(now, Some(&other)),
        Err(ConsensusError::ExternalList(LACKS))
    );
    assert_eq!(replica.apply_membership(now, Some(&two)), Ok(()));
    let said =
        |replica: &Canopus| replica.others.membership.ends.as_ref().map(|e| e.said(VnodeId(2), 1));
    assert_eq!(said(&replica), Some(Said::End(9)));
    // The service lost its last change, all changes, or has others.
    for lost in [Some(&one), Some(&more), None] {
        assert_eq!(replica.apply_membership(now, lost), Err(ConsensusError::ExternalList(LACKS)));
        assert_eq!(said(&replica), Some(Said::End(9)));
    }
}

#[test]
fn a_list_with_too_many_ends_of_a_super_leaf_is_refused() {
    let mut ends = list(&[]);
    ends.ends.extend((0..17).map(|incarnation| ((VnodeId(1), incarnation), 5)));
    assert!(Ends::decode(&ends.encode()).is_err());
}

/// What a replica writes.
fn written(replica: &mut Canopus) -> Vec<ReplicaRecord> {
    let mut log = evenfall_core::journal::log_of::<&[u8]>([]).to_vec();
    while let Some(write) = replica.journal.poll() {
        match write.change {
            durable::Change::Append(bytes) => log.extend_from_slice(&bytes),
            durable::Change::Replace(bytes) => log = bytes.to_vec(),
            _ => {}
        }
        let done = replica.journal.handle_written(Timestamp::ZERO, write.id, Ok(()));
        done.expect("the disk writes");
    }
    journal::read(&log.into()).expect("a log").0
}

#[test]
fn a_replica_that_starts_again_notices_that_the_service_lost_its_list() {
    let mut first = replica(&[]);
    let now = Timestamp::from_nanos(1_000_000_000);
    let one = Ends { cluster: first.digest, ..list(&[(2, 0, 5)]) }.encode();
    assert_eq!(first.apply_membership(now, Some(&one)), Ok(()));
    let log = written(&mut first);
    assert!(log.contains(&ReplicaRecord::List(one.clone())));
    let mut again = replica(&log);
    assert!(
        again.others.membership.ends.as_ref().is_some_and(|ends| ends.has_ended(VnodeId(2), 0))
    );
    assert!(!again.hears_service(now));
    assert_eq!(again.apply_membership(now, None), Err(ConsensusError::ExternalList(LACKS)));
    // Compaction keeps the list.
    again.progress.committed = 3;
    assert!(again.checkpoint(b"all"));
    assert!(written(&mut again).contains(&ReplicaRecord::List(one)));
}

/// The tables of two super-leaves of which the first came back once, and takes part from cycle 25
/// on. The table is that after cycle 30.
fn table_after_a_return(replica: &Canopus) -> EmulationTable {
    let mut table = EmulationTable::new(&replica.tree);
    let config = &replica.config;
    table.apply(AgreedChange::Retire(VnodeId(1), 0, LeavingReason::Vanished), 10, config);
    for node in 0..3 {
        table.apply(AgreedChange::Join(NodeId(node), 1), 21, config);
    }
    table.forget(30);
    table
}

/// The record of a state of super-leaf 2.
fn state(cycle: u64) -> ReplicaRecord {
    let commit = Commit { cycle, number: 1, changes: Vec::new(), sets: Vec::new() };
    ReplicaRecord::State(VnodeId(2), 0, commit)
}

/// The log of a replica that promised something under incarnation 0 of its super-leaf, which came
/// back, and that has voted up to cycle 32 since then.
fn log_after_a_return() -> Vec<ReplicaRecord> {
    let new = replica(&[]);
    let checkpoint = Checkpoint {
        cycle: 30,
        table: table_after_a_return(&new),
        ends: Vec::new(),
        snapshot: Bytes::new(),
    };
    let report =
        DurableReport { have: 31, next: 31, promised: (1, NodeId(0)), end: None, closed: false };
    let group = ReplicaRecord::Group(owner_of(VnodeId(2)), 0, report);
    let mut disk = new.disk.own.clone();
    disk.votes = true;
    vec![
        ReplicaRecord::Checkpoint(checkpoint),
        ReplicaRecord::Disk(disk),
        group,
        state(31),
        state(32),
    ]
}

#[test]
fn votes_behind_a_promise_that_holds_no_more_are_remembered() {
    let owner = owner_of(VnodeId(2));
    let report = |log: &[ReplicaRecord]| {
        let mine = replica(log).groups[&owner].mine();
        (mine.have, mine.next)
    };
    let mut log = log_after_a_return();
    assert_eq!(report(&log), (33, 33));
    // The own super-leaf is out again.
    if let Some(ReplicaRecord::Checkpoint(checkpoint)) = log.first_mut() {
        let vanish = AgreedChange::Retire(VnodeId(1), 1, LeavingReason::Vanished);
        checkpoint.table.apply(vanish, 26, &Config::default());
    }
    assert_eq!(report(&log), (33, 33));
    // A promise that holds ends the votes, and not those in front of it.
    log.extend([ReplicaRecord::Promise(owner, 0, floor(1) + 1, NodeId(0)), state(33)]);
    assert_eq!(report(&log), (34, 33));
}

#[test]
fn a_replica_decides_nothing_for_which_its_table_is_too_old() {
    let owner = owner_of(VnodeId(2));
    for (ahead, is_known) in [(0, true), (1, false)] {
        let mut replica = replica(&log_after_a_return());
        assert_eq!(replica.apply_membership(Timestamp::from_nanos(1_000_000_000), None), Ok(()));
        let last = replica.votes_until() + ahead;
        let group = replica.groups.get_mut(&owner).expect("a group");
        while group.mine().have <= last {
            let (cycle, vnode) = (group.mine().have, VnodeId(2));
            let state =
                VnodeState { cycle, vnode, number: 1, changes: Vec::new(), sets: Vec::new() };
            assert!(group.store(&GroupEntry::State(state.into())));
        }
        replica.beat.ticks = 1_000;
        group.promise(group.new_term(), NodeId(0));
        let promised = group.mine();
        group.hear(NodeId(0), &promised);
        group.hear(NodeId(1), &promised);
        assert_eq!(group.won(NodeId(0)), Some((promised.promised.0, last + 1)));
        assert_eq!(replica.wanted_change().is_some(), is_known, "the last entry is {last}");
    }
}

#[test]
fn a_term_of_another_super_leaf_does_not_raise_those_of_the_own() {
    let mut replica = replica(&[]);
    let group = replica.groups.get_mut(&owner_of(VnodeId(2))).expect("a group");
    let far = DurableReport { promised: (floor(5) + 1, NodeId(4)), ..group.mine() };
    group.hear(NodeId(4), &far);
    assert_eq!(group.new_term(), 1);
    let near = DurableReport { promised: (7, NodeId(1)), ..group.mine() };
    group.hear(NodeId(1), &near);
    assert_eq!(group.new_term(), 8);
}

#[test]
fn nobody_promises_a_term_of_an_earlier_incarnation() {
    let mut replica = replica(&log_after_a_return());
    let group = replica.groups.get_mut(&owner_of(VnodeId(2))).expect("a group");
    let asked = |term| DurableReport { promised: (term, NodeId(1)), next: 99, ..group.mine() };
    assert!(!group.may_promise(&asked(2)));
    assert!(!group.may_promise(&asked(floor(1))));
    assert!(group.may_promise(&asked(floor(1) + 1)));
}

#[test]
fn votes_behind_a_promise_that_holds_no_more_are_written_and_told() {
    let (mut replica, owner) = (replica(&[]), owner_of(VnodeId(2)));
    replica.disk.restore(DiskRecord { votes: true, ..replica.disk.own.clone() }).expect("a disk");
    written(&mut replica);
    let group = replica.groups.get_mut(&owner).expect("a group");
    group.promise(1, NodeId(1));
    group.skip(5);
    let mine = group.mine();
    assert_eq!((mine.have, mine.next), (5, 1));
    // The own super-leaf has come back.
    replica.table = table_after_a_return(&replica);
    replica.progress.committed = 30;
    replica.end_groups();
    replica.store_all_states();
    assert_eq!(replica.groups[&owner].mine().next, 5);
    let promise = ReplicaRecord::Promise(owner, 0, 1, NodeId(1));
    assert!(written(&mut replica).contains(&promise));
}

#[test]
fn a_super_leaf_that_was_to_leave_stays_when_it_is_the_last_one() {
    let (mut replica, own) = (replica(&[]), VnodeId(1));
    let now = Timestamp::from_nanos(1_000_000_000);
    replica.handle_clock(now, ClockReading::default());
    replica.groups.get_mut(&NodeId(0)).expect("the own group").skip(12);
    let cycle = |cycle, changes| VnodeState {
        cycle,
        vnode: VnodeId::ROOT,
        number: 1,
        changes,
        sets: Vec::new(),
    };
    let retire = AgreedChange::Retire(own, 0, LeavingReason::Planned);
    replica.adopt(cycle(1, vec![retire]).into());
    assert!(replica.is_leaving);
    // All super-leaves are out, so that all come back by rule.
    let vanish = AgreedChange::Retire(VnodeId(2), 0, LeavingReason::Vanished);
    replica.adopt(cycle(2, vec![vanish]).into());
    assert!(!replica.is_leaving && replica.is_due());
    // The same, in one cycle.
    let mut replica = self::replica(&[]);
    replica.handle_clock(now, ClockReading::default());
    replica.groups.get_mut(&NodeId(0)).expect("the own group").skip(12);
    replica.adopt(cycle(1, vec![retire, vanish]).into());
    assert!(!replica.is_leaving);
}

#[test]
fn a_super_leaf_is_new_when_all_others_say_so_and_the_service_has_no_list() {
    let mut replica = replica(&[]);
    let now = Timestamp::from_nanos(1_000_000_000);
    replica.others.nodes.values_mut().take(2).for_each(|remote| remote.knows = Some(true));
    // Nobody has asked the service.
    assert_eq!(replica.is_new_leaf(), None);
    assert_eq!(replica.apply_membership(now, None), Ok(()));
    assert_eq!(replica.is_new_leaf(), Some(true));
    let earlier = Ends { cluster: replica.digest, ..list(&[(2, 0, 5)]) }.encode();
    assert_eq!(replica.apply_membership(now, Some(&earlier)), Ok(()));
    assert_eq!(replica.is_new_leaf(), Some(false));
    assert!(replica.finds_earlier_list());
}

#[test]
fn a_checkpoint_leaves_no_open_group_of_a_super_leaf_that_is_gone() {
    let (mut replica, leaf) = (replica(&[]), VnodeId(2));
    let now = Timestamp::from_nanos(1_000_000_000);
    let mut table = EmulationTable::new(&replica.tree);
    table.apply(AgreedChange::Retire(leaf, 0, LeavingReason::Vanished), 10, &replica.config);
    table.forget(40);
    // The checkpoint does not tell where the super-leaf ended.
    let checkpoint = Checkpoint { cycle: 40, table, ends: Vec::new(), snapshot: Bytes::new() };
    replica.install(now, checkpoint);
    assert_eq!(replica.progress.committed, 40);
    assert!(!replica.groups.contains_key(&owner_of(leaf)));
    let mut again = self::replica(&written(&mut replica));
    assert!(!again.groups.contains_key(&owner_of(leaf)));
    again.found_groups();
    assert!(!again.groups.contains_key(&owner_of(leaf)));
}

#[test]
fn a_replica_that_lost_its_disk_does_not_vote_in_groups_of_owners_that_have_left() {
    // The own super-leaf has left before cycle 33.
    let log = |has_lost: bool| {
        let new = replica(&[]);
        let mut table = EmulationTable::new(&new.tree);
        table.apply(AgreedChange::Retire(VnodeId(1), 0, LeavingReason::Vanished), 30, &new.config);
        let (ends, snapshot) = (Vec::new(), Bytes::new());
        let checkpoint = Checkpoint { cycle: 40, table, ends, snapshot };
        let mut disk = new.disk.own.clone();
        (disk.votes, disk.proposes_from) = (true, if has_lost { 2 } else { 0 });
        [ReplicaRecord::Checkpoint(checkpoint), ReplicaRecord::Disk(disk)]
    };
    for has_lost in [false, true] {
        let mut replica = replica(&log(has_lost));
        replica.handle_clock(Timestamp::from_nanos(1_000_000_000), ClockReading::default());
        let owner = NodeId(1);
        // A member that is behind asks to end the group, in which both once had entries.
        let asks = DurableReport {
            have: 30,
            next: 30,
            promised: (1, NodeId(2)),
            end: None,
            closed: false,
        };
        let now = Timestamp::from_nanos(10_000_000_000);
        replica.beat.tick_at = Some(now);
        replica.take_reports(now, NodeId(2), [(owner, 0, asks)].iter());
        let is_told = replica.status().groups.iter().any(|(of, ..)| *of == owner);
        assert_eq!((replica.is_elector(owner), is_told), (!has_lost, !has_lost));
        assert_eq!(replica.groups[&owner].mine().promised.0, u32::from(!has_lost));
        // A node that lost its disk as well hears of the group, and not as of one without promises.
        let known = replica.known_reports();
        let (.., known) = known.iter().find(|(of, ..)| *of == owner).expect("the group");
        assert_eq!(known.promised.0, u32::from(has_lost));
    }
}
