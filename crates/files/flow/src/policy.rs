//! What every way to steer reads can be asked: Mayflower, its rivals, and clients on their own.

use core::time::Duration;

use evenfall_core::Timestamp;

use crate::model::FlowId;
use crate::topology::{LinkIndex, NodeIndex};

/// A read that begins.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// Who reads.
    pub client: NodeIndex,
    /// Who has a copy, the primary first.
    pub copies: &'a [NodeIndex],
    /// How much.
    pub bytes: u64,
    /// The names that the flows of this read shall have.
    pub flows: [FlowId; 2],
}

/// How the packets of a flow find their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By the shortest path of this number, from the copy to the client: somebody sets it up.
    Path(usize),
    /// By whatever the switches make of this source port: nobody sets anything up.
    Port(u16),
}

/// A flow to start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Leg {
    /// Its name.
    pub flow: FlowId,
    /// Which copy it reads.
    pub copy: NodeIndex,
    /// Over which path.
    pub route: Route,
    /// How many bytes the policy expects it to read. Where two legs read, [`crate::Parts`] says
    /// who reads what.
    pub bytes: u64,
}

/// A flow takes another path from now on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reroute {
    /// Which flow.
    pub flow: FlowId,
    /// Its new path.
    pub route: Route,
}

/// How many bytes of a flow have passed since it began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Count {
    /// Which flow.
    pub flow: FlowId,
    /// Bytes.
    pub moved: f64,
}

/// Chooses copies and paths. Pure: time is passed in, and what was measured.
pub trait Policy {
    /// Which copies to read, over which paths: one leg or two. None when no copy can be reached.
    fn choose(&mut self, now: Timestamp, read: &Read<'_>) -> Vec<Leg>;

    /// The flow is done, or was given up.
    fn ended(&mut self, now: Timestamp, flow: FlowId);

    /// Byte counts of some flows. Returns the flows that shall take another path.
    fn counted(&mut self, now: Timestamp, counts: &[Count]) -> Vec<Reroute>;

    /// Somebody else's flow was seen on this path; its size is unknown.
    fn background(&mut self, now: Timestamp, flow: FlowId, path: &[LinkIndex]) {
        let _ = (now, flow, path);
    }

    /// How often each flow is counted.
    fn interval(&self) -> Duration;
}
