use bytes::Bytes;

use super::*;
use crate::{AgreedChange, Config, LeafMember, LeafOnlyTree, SuperLeaf};

#[test]
fn a_peer_that_has_to_catch_up_is_not_taken_back() {
    let member =
        |n| LeafMember { node: NodeId(n), address: ([127, 0, 0, 1], 7_000 + n as u16).into() };
    let leaf = SuperLeaf { path: Vec::new(), members: (0..3).map(member).collect() };
    let tree = LeafOnlyTree::new(vec![leaf]).expect("a tree");
    let config = Config::default();
    let replica = Canopus::new(config, tree, NodeId(0), 1, &Bytes::new());
    let (mut replica, peer) = (replica.expect("a replica"), NodeId(2));
    replica.table.apply(AgreedChange::Leave(peer, 0), 10, &config);
    replica.progress.committed = 100;
    let near = 100 - JOIN_LAG * config.pipeline;
    for (committed, is_taken) in [(10, false), (near - 1, false), (near, true), (100, true)] {
        replica.sponsored.clear();
        replica.take_join(peer, 1, committed);
        assert_eq!(replica.sponsored.contains(&(peer, 1)), is_taken, "at cycle {committed}");
    }
}
