//! A simulated cloud for evenfall's machines: event-driven, in nanoseconds, from one seed.
//!
//! No desk has thousands of receivers, and on rented machines no stall and no step of a clock
//! happens twice. In the simulator the *same machines* that run over sockets run over a model. A
//! seed gives the same run on any computer, to the nanosecond, so the number of a seed is all that
//! replays a failing run.
//!
//! **One event per hop.** The whole way of a packet is computed when the packet is sent: the
//! sender's processor, its network card, the network, and the receiver's socket. The queue
//! therefore holds one event per packet in flight. The receiver is nearly always idle, and the same
//! event then hands the packet in. Only a busy receiver needs a second event, which wakes it for
//! the packets that wait.
//!
//! **An input that has begun runs to its end.** A packet that is handed in at `t` and costs 2 us
//! moves the node's own time to `t + 2 us` at once, and the node's answers leave after that. Times
//! therefore never go back on one node, but events of two nodes may be seen out of order by the
//! cost of one input. This saves an event for each input. In return, a crash cannot hit the middle
//! of an input.
//!
//! **Nothing ambient.** A run depends on no wall clock, no memory address, no iteration over hashed
//! maps and no function of the platform's mathematical library. Delays come from tables of
//! quantiles that are built by the four operations and the square root. Every part draws from its
//! own fork of the seed.
//!
//! **Several cores can share one run.** [`World::run_until_on`] works in windows that are shorter
//! than the least delay of the network, and gives the results of one core to the last bit. Many
//! seeds run faster with a core for each seed.
//!
//! **The contract is kept for the machine, and asserted against it.** The world drains events and
//! installs after every input, and pulls transmits no faster than processor and card allow. A
//! machine that keeps asking for a timeout in the past, or never stops emitting, causes a panic
//! that names the machine. [`Strict`] asserts the other side.
//!
//! **A node may have a port that forwards.** [`World::offload`] has forwarding installs carried out
//! ahead of the node's process and at no cost to its processor, as a kernel or a card does. Without
//! the call forwarding installs are ignored, and the machine forwards by hand.
//!
//! | module | what it holds |
//! |---|---|
//! | [`world`] | [`World`]: nodes, hosts, the run; start reading here |
//! | [`network`] | [`Network`], the trait that models implement; [`Wire`], the simplest one |
//! | [`cloud`] | [`Cloud`]: paths as processes in time, stragglers, load, losses, network cards |
//! | [`fattree`] | [`FatTree`]: racks and a core, priorities, buffers, oversubscription |
//! | [`fluid`] | [`Fluid`]: long flows that share links max-min fairly, without packets |
//! | [`host`] | [`HostSpec`]: processor costs, cores, card, socket buffers, late timers, pre-emptions |
//! | [`clock`] | [`ClockSpec`]: drift and wander of the local clock, error of the synchronised one |
//! | [`quantiles`] | [`Quantiles`]: any distribution of delays, parametric or measured |
//! | [`observer`] | [`Observer`]: watches a run and acts in it |
//! | [`faults`] | [`Fault`], plans of faults from a seed, coverage |
//! | [`disk`] | [`SimDisk`]: tears writes, fails or forgets syncs, survives crashes |
//! | [`objects`] | [`SimObjects`]: fails, answers late, takes effect late, lists late |
//! | [`writes`] | [`SimWrites`]: the writes of machines, which a crash tears or loses |
//! | [`campaign`] | [`Campaign`]: a protocol under many seeds of faults, its checks and mutants |
//! | [`any_machine!`] | several kinds of machines in one world |
//! | [`altered`] | [`Altered`]: a machine with altered inputs or outputs, for mutants |
//! | [`transcript`] | a run as text |
//! | [`strict`] | [`Strict`]: the rule of the contract, asserted |
//!
//! Absent on purpose: sockets' kernel behaviour beyond a bounded buffer, and links inside the cloud
//! that several pairs share (their effect is in the measured delays of each pair by itself).
//!
//! Two machines that throw a ball, by hand:
//!
//! ```
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use bytes::Bytes;
//! use evenfall_core::*;
//! use evenfall_sim::{Collect, HostSpec, SimTime, Wire, World};
//!
//! /// Throws back what it catches, and says how often it did.
//! #[derive(Default)]
//! struct Player {
//!     caught: u32,
//!     seen: Option<u32>,
//!     throw: Option<SocketAddr>,
//! }
//!
//! impl Machine for Player {
//!     type Event = u32;
//!     fn handle(&mut self, _: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
//!         self.caught += 1;
//!         self.seen = Some(self.caught);
//!         self.throw = Some(arrival.from);
//!         Ok(())
//!     }
//!     fn handle_timeout(&mut self, _: Timestamp) {}
//!     fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}
//!     fn poll_event(&mut self) -> Option<u32> {
//!         self.seen.take()
//!     }
//!     fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
//!         let to = Destination::One(self.throw.take()?);
//!         Some(Transmit::new(TrafficClass::Live, to, Head::new(b"ball"), Bytes::new()))
//!     }
//!     fn poll_timeout(&self) -> Option<Timestamp> {
//!         None
//!     }
//! }
//!
//! let mut world = World::new(Wire::new(Duration::from_micros(50)), 1);
//! let ping = world.add(Player::default(), HostSpec::ideal());
//! let pong = world.add(Player::default(), HostSpec::ideal());
//!
//! let mut watch = Collect::default();
//! let to = world.address(pong);
//! world.call(ping, &mut watch, |player, _now| player.throw = Some(to));
//! world.run_until(SimTime::from_micros(200), &mut watch);
//!
//! // Caught at 50, 100, 150 and 200 us, in turns.
//! let catches: Vec<_> = watch.0.iter().map(|(seen, n)| (seen.at.nanos() / 1_000, *n)).collect();
//! assert_eq!(catches, [(50, 1), (100, 1), (150, 2), (200, 2)]);
//! assert_eq!(world.machine(ping).caught, 2);
//! ```
#![forbid(unsafe_code)]

pub mod altered;
pub mod campaign;
pub mod clock;
pub mod cloud;
pub mod disk;
pub mod fattree;
pub mod faults;
pub mod fluid;
pub mod host;
pub mod network;
pub mod objects;
pub mod observer;
pub mod quantiles;
mod queue;
mod several_machines;
pub mod strict;
mod time;
mod timers;
pub mod transcript;
pub mod world;
pub mod writes;

use core::fmt;

use evenfall_core::math;

pub use altered::{Alteration, Altered, Asked};
pub use campaign::{AnyCampaign, Campaign, Run, Violation};
pub use clock::ClockSpec;
pub use cloud::{
    Cloud, CloudProfile, HostLoad, Outages, PathLoss, Reroutes, Spread, Stragglers, Waits,
};
pub use disk::{DiskFaults, SimDisk};
pub use fattree::{Costs, FatTree, FatTreeSpec, Priorities, QueueOccupancy};
pub use faults::{Bounds, Coverage, Fault, FaultKind, Plan, Victims};
pub use fluid::{Fluid, FluidFlow, FluidLink};
pub use host::{HostSpec, StallSpec};
pub use network::{Loss, Network, Packet, Rates, Verdict, Wire};
pub use objects::{ObjectFaults, SimObjects};
pub use observer::{Collect, Discard, Observer, Seen};
pub use quantiles::Quantiles;
pub use strict::Strict;
pub use time::SimTime;
pub use transcript::Transcript;
pub use world::{Action, Bursts, Cut, Late, PartitionId, Prefetch, World, WorldTally};
pub use writes::SimWrites;

/// A node of a world: one machine with one address. Numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u32);

impl NodeIndex {
    /// The address of the node, which is known before the node is there.
    pub fn address(self) -> std::net::SocketAddr {
        world::address_of(self.0)
    }
}

impl fmt::Display for NodeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// A host of a world: what nodes share a processor, a network card and a clock. Numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostIndex(pub u32);
