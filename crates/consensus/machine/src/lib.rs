//! One order of requests across racks and sites: Canopus as a machine.
//!
//! Consensus with a leader sends the same bytes over the same wide link again and again, and loads
//! one node. Canopus follows the network. Nodes of one rack form a super-leaf and talk much; two
//! racks exchange one message in a cycle. No node leads.
//!
//! The protocol is that of chapter 4 of a thesis on infrastructure-aware storage (Canopus). In a
//! **cycle** every node broadcasts a **proposal** to its super-leaf: the requests of its clients
//! and a random number. The proposals, sorted by number, are the **state** of the super-leaf. In
//! each further round the super-leaf fetches the states of the siblings of its ancestors, and sorts
//! again. After as many rounds as the tree is high, every node has the state of the root: all
//! requests in one order. Clients' reads are not sent to anybody: a read waits for the end of a
//! cycle that starts after the read arrived, and such a cycle has all writes that were answered
//! before.
//!
//! Owners, such as keys and a root, hold a [`Consensus`], and Canopus is one. A second protocol for
//! one order is a module of this crate beside these, with `evenfall_core::journal` as its log.
//! "Another protocol" in `crates/sim/src/campaign.rs` has the steps.
//!
//! | module | what it holds |
//! |---|---|
//! | [`consensus`] | the contract that owners hold, and what a replica is made of |
//! | [`Canopus`] | the machine: requests and reads in, committed cycles out |
//! | `cycles` | when cycles start, how states are computed, fetched and committed |
//! | `gossip` | the talk inside a super-leaf: reports, suspicion, coming back |
//! | [`checkpoint`] | what many cycles have made, for the log and for a replica that missed them |
//! | `parts` | values that are longer than a datagram |
//! | [`leases`] | write leases: reads that are answered at once |
//! | [`leaf_consensus`] | consensus in the second round: a super-leaf may vanish, or leave as planned |
//! | [`external_membership`] | the same, when a membership service outside decides who has vanished |
//! | [`disk_identity`] | which disk a member has: the first start, and the start without the old disk |
//! | [`group`] | the reliable broadcast: a Raft group per member, and how it ends |
//! | [`LeafOnlyTree`], [`EmulationTable`] | who is where; who takes part in which cycle |
//! | [`VnodeState`], [`Proposal`] | what is agreed, and how it is merged |
//! | [`journal`], `replay` | what is on the disk; write, then send; the start with a log |
//! | [`wire`] | datagrams and records, drawn |
//! | [`config`] | every limit |
//!
//! **Failures.** A member that is silent is suspected; the other members end its group, and all
//! agree at which cycle. Later cycles go on without the member, the change is part of their states,
//! and so all nodes of all super-leaves have the same table of members in the same cycle. A member
//! that lives goes on learning and comes back by itself under a new incarnation. A super-leaf of
//! which a majority is down stalls, all others stall with it, and all resume when the majority is
//! back. With [`Config::second_round`] the others go on without it. A node that restarts with its
//! disk goes on where it was. A node that lost its disk learns from the other members of its
//! super-leaf, and comes back under a new incarnation. A node whose disk is full falls silent,
//! tries again, and comes back when there is room. A node whose disk failed stops sending, because
//! it may have forgotten a promise.
//!
//! **Limits.** Every queue has a limit. Requests that find no room are refused by name. Datagrams
//! that find no room are dropped and counted, and the node that misses one asks again. A disk that
//! is too slow delays entries and commits. Committed cycles are forgotten beyond
//! [`Config::history`] and [`Config::history_bytes`], and a replica that needs one of those fetches
//! a checkpoint. The log is replaced by a checkpoint when it is longer than [`Config::log_bytes`].
//!
//! **Where this differs from the thesis.** A fetched state is relayed inside the super-leaf without
//! a Raft group: a state has one value, so any copy is right. Acknowledgements of a broadcast go to
//! all members, which saves the leader's second message. A super-leaf that has lost every member
//! from the table takes all of them back by rule.
//!
//! **Write leases** are off by default: see [`Config::lease_cycles`]. With leases a read of a key
//! that nobody writes is answered at once, and a write waits for its lease first. The thesis lets a
//! node answer for as long as the node believes that it takes part. Here a majority of the
//! super-leaf has to vouch for the node, because a node may be expelled without knowing it.
//!
//! **Not there yet.**
//! - A checkpoint is encoded and written in one piece, and the replica does nothing else while its
//!   owner encodes it.
//! - The tree is fixed: no place for a further node can be added. A new host may take the place of
//!   an old one.
//! - A super-leaf begins when all its members have started once. Of a super-leaf of three, one
//!   member at a time may be without its disk ([`disk_identity`]).
//! - Datagrams are not authenticated.
//! - A node that asks for the leases of too many keys gets the lease of all keys: see
//!   [`leases::LEASES_MAX`]. Reads then wait as they do without leases.
//!
//! An example of three replicas in one super-leaf. A loop plays the part of the driver. It carries
//! datagrams and answers writes at once:
//!
//! ```
//! use bytes::Bytes;
//! use evenfall_core::*;
//! use evenfall_consensus_machine::{
//!     Canopus, ClientRequest, Config, Event, LeafMember, LeafOnlyTree, SuperLeaf,
//! };
//!
//! let address = |n: u32| std::net::SocketAddr::from(([127, 0, 0, 1], 7000 + n as u16));
//! let member = |n| LeafMember { node: NodeId(n), address: address(n) };
//! let members = (0..3).map(member).collect();
//! let tree = LeafOnlyTree::new(vec![SuperLeaf { path: vec![], members }])?;
//! let config = Config::default();
//! let new = |n| Canopus::new(config, tree.clone(), NodeId(n), n.into(), &Bytes::new());
//! let mut replicas = [new(0)?, new(1)?, new(2)?];
//! let now = Timestamp::from_nanos(1_000_000_000);
//! for replica in &mut replicas {
//!     replica.handle_clock(now, ClockReading::default());
//! }
//!
//! let body = Bytes::from_static(b"x = 1");
//! replicas[0].submit(now, ClientRequest { client: 7, sequence: 1, body })?;
//! replicas[2].read(now, 42)?;
//! let mut heard = Vec::new();
//! for _ in 0..20 {
//!     for n in 0..3_u32 {
//!         let replica = &mut replicas[n as usize];
//!         while let Some(write) = replica.poll_write() {
//!             replica.handle_written(now, write.id, Ok(()));
//!         }
//!         heard.extend(std::iter::from_fn(|| replica.poll_event()).map(|event| (n, event)));
//!         while let Some(transmit) = replicas[n as usize].poll_transmit(now) {
//!             let bytes = [transmit.head.as_slice(), &transmit.body[..]].concat();
//!             let datagram = Bytes::from(bytes);
//!             let is_to = |to: &u32| match transmit.to {
//!                 Destination::One(one) => one == address(*to),
//!                 Destination::Group(_) => *to != n,
//!             };
//!             for to in (0..3).filter(is_to) {
//!                 let arrival = Arrival::new(address(n), datagram.clone(), now, StampedBy::User);
//!                 replicas[to as usize].handle(now, arrival)?;
//!             }
//!         }
//!     }
//! }
//! let committed = |n: u32| {
//!     let mine = heard.iter().filter(move |(of, _)| *of == n);
//!     mine.filter_map(|(_, event)| match event {
//!         Event::Committed { state, reads, .. } => Some((state.sets.clone(), reads.len())),
//!         _ => None,
//!     })
//!     .collect::<Vec<_>>()
//! };
//! assert!(!committed(0).is_empty());
//! assert_eq!(committed(0)[0].0, committed(1)[0].0);
//! assert_eq!(committed(2).iter().map(|(_, reads)| reads).sum::<usize>(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod canopus;
pub mod checkpoint;
pub mod config;
pub mod consensus;
mod cycles;
pub mod disk_identity;
mod error;
pub mod external_membership;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod gossip;
pub mod group;
pub mod journal;
pub mod leaf_consensus;
pub mod leases;
mod parts;
mod proposal;
mod replay;
mod replica_state;
mod table;
mod tree;
pub mod wire;

pub use canopus::{Canopus, DueRead, Event};
pub use config::{Config, SecondRound};
pub use consensus::{Consensus, ConsensusStart, ConsensusStatus, WriteState};
pub use error::ConsensusError;
pub use leases::LeaseKey;
pub use proposal::{
    AgreedChange, ClientRequest, LeavingReason, Proposal, RequestSet, Requests, VnodeState,
};
pub use table::EmulationTable;
pub use tree::{LeafMember, LeafOnlyTree, SuperLeaf, VnodeId};
