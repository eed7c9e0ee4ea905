//! One time for all nodes, with two bounds on every reading.
//!
//! A feed is as fair as the clocks of its hosts. A host's own clock may be wrong by 24 ns or by
//! 50 ms, and the host does not know by how much. So the nodes measure each other's clocks over the
//! links that they use anyway, and state how wrong each clock may be. The method is that of Huygens
//! (Geng et al., NSDI 2018), whose code was never published. The graph and the two layers are those
//! of Firefly (SIGCOMM 2025).
//!
//! ```text
//!  probes, stamps      PairMeter        Mesh              Verdict         SoftwareClock
//!  of two nodes   -->  a band of   -->  one offset   -->  of a node, -->  a reading with
//!                      two hulls        for each node     two bounds      two bounds
//! ```
//!
//! 1. **Pairs.** Every node sends coded pairs of probes to O(log N) neighbours. Delays are never
//!    negative, so the probes of both ways leave a band for the difference of two clocks. The
//!    middle of the widest band is the estimate, and what fits into the band is proven.
//! 2. **The network effect.** The estimates around a loop must add up to zero. Least squares over
//!    all loops average the errors of pairs, and find nodes that tell their neighbours different
//!    times.
//! 3. **Two bounds.** The *proven* bound holds as long as delays are not negative, stamps are
//!    honest and clocks keep the configured worst drift and wander. The *assumed* bound also takes
//!    the errors of the network for random, plus a stated floor for asymmetry, which no probe
//!    shows. The assumed bound is some hundred times narrower.
//! 4. **UTC.** Sources of UTC are laid side by side on the time of the mesh. A source that leaves
//!    its own bound is named and dropped.
//! 5. **Discipline.** A clock in use is slewed and never steps.
//!
//! One error cannot be measured. When everything that leaves a node takes longer than everything
//! that comes in, the node's clock looks ahead by half of the difference. The assumed bound has a
//! share for this error ([`Config::asymmetry_share`]), and the proven bound holds in any case.
//!
//! With node keys, each datagram is under a key of its two ends, so that no third node can write a
//! probe or a verdict. With one key for all nodes, each of them can.
//!
//! Nodes with a key of the run are trusted to stamp honestly, with one exception: a node that
//! tells its neighbours different times is found and left out. A node that moves all its stamps by
//! the same time is a node with another clock, and harms nobody else. The proven bound of a node
//! survives one lying neighbour that was not found, and does not survive two. A node that has fewer
//! than two neighbours with such a bound survives none. All nodes trust the reference.
//!
//! | module | what it holds |
//! |---|---|
//! | [`timekeeper`] | [`Timekeeper`], the machine on every node |
//! | [`pair`] | [`PairMeter`]: coded pairs, windows, the estimate of two clocks |
//! | [`hull`] | the widest band between two clouds of points, exactly |
//! | [`graph`] | the pairs of nodes that probe each other |
//! | [`mesh`] | [`MeshSolver`]: the network effect, liars, proven bounds along paths |
//! | [`bound`] | [`ClockVerdict`] and [`BoundedReading`]: the clock of a node, with its two bounds |
//! | [`sources`] | UTC out of sources that are vetted against each other |
//! | [`discipline`] | [`SoftwareClock`]: slewed, never stepped |
//! | [`wire`] | the datagrams, byte by byte |
//! | [`forging`] | datagrams of an attacker, for tests |
//! | [`config`] | every limit, with unit and reason |
//!
//! Two clocks, one of which is 5 ms ahead, and a delay of 30 us each way:
//!
//! ```
//! use std::time::Duration;
//! use evenfall_clock_machine::{CodedPair, Config, PairMeter};
//! use evenfall_core::Timestamp;
//!
//! let (config, mut meter) = (Config::default(), PairMeter::default());
//! let ours = |us: u64| Timestamp::from_nanos(1_000_000_000_000 + 1_000 * us);
//! let theirs = |us: u64| ours(us + 5_000);
//! for ms in (0..2_000).step_by(50) {
//!     let us = 1_000 * ms;
//!     let (sent, received) = ([us, us + 20], [us + 30, us + 50]);
//!     let there = CodedPair { sent: sent.map(ours), received: received.map(theirs) };
//!     let back = CodedPair { sent: sent.map(theirs), received: received.map(ours) };
//!     meter.outgoing(there, config.tolerance);
//!     meter.incoming(back, config.tolerance);
//! }
//! let estimate = meter.close(ours(2_000_000), &config).expect("both ways were heard");
//! assert_eq!((estimate.offset_ns, estimate.half_ns), (5_000_000, 30_000));
//! let [low, high] = estimate.proven_ns;
//! assert!(low < 5_000_000 && 5_000_000 < high);
//! ```
#![forbid(unsafe_code)]

mod band_widening;
pub mod bound;
pub mod config;
pub mod discipline;
mod ends;
mod filter;
pub mod forging;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod graph;
pub mod hull;
pub mod mesh;
pub mod pair;
mod solver;
pub mod sources;
mod table;
pub mod timekeeper;
#[cfg(test)]
mod trace;
pub mod wire;

pub use bound::{BoundedReading, ClockState, ClockVerdict};
pub use config::Config;
pub use discipline::SoftwareClock;
pub use ends::NeighbourKey;
pub use mesh::{ClockEdge, Health, MeshSolver};
pub use pair::{CodedPair, Gap, PairEstimate, PairMeter};
pub use sources::{Utc, Witness};
pub use timekeeper::{ClockSeat, TimeEvent, Timekeeper};
pub use wire::Claim;
