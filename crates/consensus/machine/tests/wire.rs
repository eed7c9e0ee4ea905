//! Any bytes give a message or an error, and what decodes is encoded to the same bytes.

use std::time::Duration;

use bytes::Bytes;
use evenfall_consensus_machine::group::DurableReport;
use evenfall_consensus_machine::wire::{
    Ballot, KnownDisk, PART_HEAD_BYTES, ReplicaMessage, Status, ValuePart, Whole,
};
use evenfall_consensus_machine::{
    AgreedChange, ClientRequest, LeaseKey, LeavingReason, Proposal, RequestSet, VnodeId,
    VnodeState, journal,
};
use evenfall_core::{NodeId, Prng};

const TREE: u64 = 77;

fn set(node: u32) -> RequestSet {
    let body = Bytes::from_static(b"a body");
    let requests = vec![ClientRequest { client: 5, sequence: 6, body }; 3].iter().collect();
    RequestSet { node: NodeId(node), incarnation: 1, number: 9, requests }
}

fn part(of: Whole) -> ReplicaMessage {
    ReplicaMessage::Part(ValuePart {
        of,
        length: 20,
        offset: 14,
        bytes: Bytes::from_static(b"middle"),
    })
}

fn messages() -> Vec<ReplicaMessage> {
    let open =
        DurableReport { have: 9, next: 8, promised: (0, NodeId(1)), end: None, closed: false };
    let ended = DurableReport { end: Some((3, 7)), closed: true, ..open };
    let groups = vec![(NodeId(1), 0, open), (NodeId(2), 4, ended)];
    let known = KnownDisk {
        asked: 10,
        disk: 11,
        knows: true,
        votes: false,
        is_first: false,
        count: 1,
        groups: groups.clone(),
    };
    let ballot = Ballot { started: 5, committed: 4, groups: groups.clone() };
    let changes = vec![
        AgreedChange::Leave(NodeId(1), 0),
        AgreedChange::Join(NodeId(2), 3),
        AgreedChange::Lease(LeaseKey(7)),
        AgreedChange::Retire(VnodeId(2), 1, LeavingReason::Planned),
    ];
    let sets = vec![set(1), set(2)];
    vec![
        ReplicaMessage::Status(Status {
            disk: 8,
            started: 3,
            committed: 2,
            oldest: 1,
            leaves: true,
            groups,
        }),
        ReplicaMessage::Entry(Proposal { cycle: 4, set: set(3), changes: changes.clone() }),
        ReplicaMessage::Want(NodeId(1), 2, 3),
        ReplicaMessage::Request(4, VnodeId(2)),
        ReplicaMessage::State(VnodeState { cycle: 4, vnode: VnodeId(1), number: 9, changes, sets }),
        ReplicaMessage::Join(2, 7),
        ReplicaMessage::Ballot(ballot),
        part(Whole::Entry(NodeId(1), 2, 3)),
        part(Whole::State(3, VnodeId(2))),
        part(Whole::Checkpoint(3, NodeId(1))),
        ReplicaMessage::Fetch(3, 4),
        ReplicaMessage::Ask(3, 4),
        ReplicaMessage::Vouch(3, 4),
        ReplicaMessage::Forgot(9),
        ReplicaMessage::Greet(10, 1),
        ReplicaMessage::Known(known),
    ]
}

#[test]
fn every_message_comes_back_as_it_was() {
    for message in messages() {
        let bytes = Bytes::from(message.encode(NodeId(8), TREE));
        assert_eq!(ReplicaMessage::decode(&bytes, TREE), Ok((NodeId(8), message)));
        assert!(ReplicaMessage::decode(&bytes, TREE + 1).is_err(), "another tree");
    }
}

#[test]
fn cut_and_changed_datagrams_are_errors_or_other_messages_and_never_panics() {
    let mut prng = Prng::new(1);
    for message in messages() {
        let bytes = message.encode(NodeId(8), TREE);
        for end in 0..bytes.len() {
            let cut = Bytes::copy_from_slice(&bytes[..end]);
            // A part that is cut is a shorter part.
            let is_shorter = end > PART_HEAD_BYTES && matches!(message, ReplicaMessage::Part(_));
            let is_refused = ReplicaMessage::decode(&cut, TREE).is_err();
            assert_eq!(is_refused, !is_shorter, "{end} bytes of {message:?}");
        }
        for _ in 0..2_000 {
            let mut changed = bytes.clone();
            let at = prng.below(changed.len() as u64) as usize;
            changed[at] = prng.next_u64() as u8;
            let changed = Bytes::from(changed);
            if let Ok((from, again)) = ReplicaMessage::decode(&changed, TREE) {
                assert_eq!(Bytes::from(again.encode(from, TREE)), changed);
            }
        }
    }
}

#[test]
fn a_torn_log_is_read_up_to_the_last_whole_record() {
    let mut journal = journal::ReplicaJournal::new(journal::LOG, Duration::ZERO);
    journal.add(&journal::body(&journal::ReplicaRecord::Promise(NodeId(1), 0, 2, NodeId(3))), []);
    journal.add(&journal::body(&journal::ReplicaRecord::End(NodeId(1), 0, 2, 9)), []);
    let write = journal.poll().expect("two records");
    let evenfall_core::durable::Change::Append(log) = write.change else { panic!("an append") };
    let (records, good) = journal::read(&log).expect("our own records");
    assert_eq!((records.len(), good), (2, log.len() as u64));
    for end in 0..log.len() {
        let (records, good) = journal::read(&log.slice(..end)).expect("a cut is no error");
        assert!(records.len() < 2 && good <= end as u64);
    }
}
