//! The interface of all policies that steer reads: Mayflower, its rivals, and clients that choose
//! alone.

use core::time::Duration;

use evenfall_core::Timestamp;

use crate::model::FlowId;
use crate::topology::{LinkIndex, TopologyNode};

/// A read that begins.
#[derive(Clone, Copy, Debug)]
pub struct BeginningRead<'a> {
    /// The host that reads.
    pub client: TopologyNode,
    /// The hosts that have a copy, the primary first.
    pub copies: &'a [TopologyNode],
    /// Length of the read.
    pub bytes: u64,
    /// Names for the flows of this read; the second name is used when the read is divided.
    pub flows: [FlowId; 2],
}

/// How the network routes the packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowRoute {
    /// The number of a shortest path from the copy to the client. The driver sets the path up in
    /// the switches.
    Path(usize),
    /// A source port. The switches choose the path by a hash of the port.
    Port(u16),
}

/// A flow to start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowLeg {
    /// Its name.
    pub flow: FlowId,
    /// The host whose copy the flow reads.
    pub copy: TopologyNode,
    /// The path of the flow.
    pub route: FlowRoute,
    /// Bytes that the policy expects this flow to read. For a read with two legs,
    /// [`crate::ReadDivision`] decides which leg reads which bytes.
    pub bytes: u64,
}

/// A change of path for a running flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reroute {
    /// Which flow.
    pub flow: FlowId,
    /// The host whose copy the flow reads from now on; `None` when the copy stays the same.
    pub copy: Option<TopologyNode>,
    /// Its new path.
    pub route: FlowRoute,
}

/// The byte count of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Count {
    /// Which flow.
    pub flow: FlowId,
    /// Bytes that have passed since the flow began.
    pub moved: f64,
}

/// Chooses copies and paths. The caller passes in the time and the measurements.
pub trait Policy {
    /// Chooses the copies and paths of a read. Returns one leg or two, and none when no copy can be
    /// reached.
    fn choose(&mut self, now: Timestamp, read: &BeginningRead<'_>) -> Vec<FlowLeg>;

    /// Reports that the flow has finished or was given up.
    fn ended(&mut self, now: Timestamp, flow: FlowId);

    /// Takes in byte counts. Returns the flows that change their path.
    fn counted(&mut self, now: Timestamp, counts: &[Count]) -> Vec<Reroute>;

    /// Reports a flow on this path that belongs to no read. Its size is unknown.
    fn background(&mut self, now: Timestamp, flow: FlowId, path: &[LinkIndex]) {
        let _ = (now, flow, path);
    }

    /// Time between two byte counts of a flow.
    fn interval(&self) -> Duration;
}
