//! Chooses the copy of a file and the network path for a bulk read, so that the read ends early and
//! delays other reads little.
//!
//! A file of gigabytes lies on three hosts. Systems pick the nearest copy, and the network then
//! picks a path by a hash. Neither knows of the other, so reads of a popular file queue at one
//! host's link while two other copies are idle, and two large flows share a path while the next
//! path is empty. Choosing the copy first and the path afterwards does not help: when the chosen
//! copy is busy, every path to that copy is slow.
//!
//! This crate chooses copy and path together, as Mayflower does (S. Rizvi, *On the Importance of
//! Infrastructure-Awareness in Large-Scale Distributed Storage Systems*, chapter 3). Every shortest
//! path from every copy is a candidate. The cost of a candidate is the duration of the new read
//! plus the delay that the read causes to all flows on its path (equation 3.2):
//!
//! ```text
//!  cost = bytes / b  +  sum over flows f on the path of ( left_f / b'_f  -  left_f / b_f )
//!
//!  b     what the new flow gets: its max-min share at the narrowest link of the path
//!  b_f   what flow f has now        b'_f  what flow f keeps beside the new flow
//! ```
//!
//! A read uses two copies at once when two flows have a lower cost than one ([`selector`]). The
//! read is then divided into parts, and the faster copy takes over bytes of the slower copy
//! ([`parts`]).
//!
//! | module | what it holds |
//! |---|---|
//! | [`selector`] | [`Selector`]: the least cost over copies and paths; start reading here |
//! | [`model`] | [`FlowModel`]: flows, their shares and what is left of them |
//! | [`flowserver`] | [`Flowserver`]: the selector of a cluster, with the flows of its clients |
//! | [`topology`] | [`Topology`]: links and shortest paths; [`ThreeTier`], a data centre |
//! | [`parts`] | [`ReadDivision`]: who reads which bytes of a divided read |
//! | [`agentless`] | [`PathTrials`]: which source ports a reader tries without help of the network |
//! | [`patience`] | [`Patience`]: how long a reader waits before it reads a part twice |
//! | [`policy`] | [`Policy`]: the interface that rivals share |
//!
//! A driver reads the clock, opens sockets, sets up paths and passes byte counts to this crate.
//! Three things are absent on purpose: paths longer than the shortest, reservations of bandwidth,
//! and predictions of what flows elsewhere gain when a flow is cut. Byte counts show these gains
//! later.
//!
//! ```
//! use std::time::Duration;
//! use evenfall_core::Timestamp;
//! use evenfall_files_flow::{
//!     BeginningRead, Config, FlowId, TopologyNode, Policy, Selector, ThreeTier, Two,
//! };
//!
//! let topology = ThreeTier::thesis(2.0, 8.0).build();
//! let second = Duration::from_secs(1);
//! let mut selector = Selector::new(topology, Config::default(), Two::Finish, second);
//! let (client, copies) = (TopologyNode(0), [TopologyNode(1), TopologyNode(5), TopologyNode(40)]);
//! let flows = [FlowId(0), FlowId(1)];
//! let read = BeginningRead { client, copies: &copies, bytes: 128_000_000, flows };
//!
//! // Nobody else reads: the copy in the client's rack fills the client's link alone.
//! let legs = selector.choose(Timestamp::ZERO, &read);
//! assert_eq!((legs.len(), legs[0].copy), (1, TopologyNode(1)));
//!
//! // Host 1 sends already, so a neighbour reads from elsewhere as well.
//! let flows = [FlowId(2), FlowId(3)];
//! let read = BeginningRead { client: TopologyNode(2), flows, ..read };
//! let legs = selector.choose(Timestamp::ZERO, &read);
//! assert_eq!(legs[0].copy, TopologyNode(5));
//! ```
#![forbid(unsafe_code)]

pub mod agentless;
pub mod flowserver;
pub mod model;
pub mod parts;
pub mod patience;
pub mod policy;
pub mod selector;
mod shares;
pub mod topology;

pub use agentless::{PathChange, PathTrials, fair_share, is_end_late};
pub use flowserver::Flowserver;
pub use model::{Config, Estimate, FlowId, FlowModel};
pub use parts::{PART_BYTES, ReadDivision, STOLEN_BYTES_MIN};
pub use patience::Patience;
pub use policy::{BeginningRead, Count, FlowLeg, FlowRoute, Policy, Reroute};
pub use selector::{PathCandidate, Selector, Two};
pub use topology::{
    DirectedLink, LinkIndex, PATHS_MAX, ShortestPaths, ThreeTier, Topology, TopologyNode,
};
