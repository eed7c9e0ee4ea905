//! A replica of Canopus or of a rival, with the events of Canopus.

use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::{NodeId, Timestamp, any_machine};
use evenfall_order_machine::{Event, OrderError, Read, Request, RequestSet, State, VnodeId};

use super::memory::Logged;
use super::rivals::{Replica, Told};

/// See the module documentation.
pub enum Ordered {
    /// Canopus.
    Canopus(Box<Logged>),
    /// A rival.
    Rival(Box<Replica>),
}

any_machine! {
    impl Machine for Ordered {
        type Event = Event;
        Canopus(replica) => replica.poll_event(),
        Rival(replica) => {
            let me = replica.me();
            replica.poll_event().map(|told| event(told, me))
        },
    }
}

/// The events of a rival, as cycles of Canopus in which at most one node has requests.
fn event(told: Told, me: u32) -> Event {
    let (mut sets, mut due) = (Vec::new(), Vec::new());
    match told {
        Told::Read(tokens) => due = tokens.iter().map(|&token| Read { token, after: 0 }).collect(),
        Told::Executed(batch) => {
            let (node, after) = (NodeId(batch.origin), batch.writes.len());
            if batch.origin == me {
                let read = |read: Request| Read { token: read.sequence, after };
                due = batch.reads.iter().map(read).collect();
            }
            let requests = batch.writes;
            sets.push(RequestSet { node, incarnation: 0, number: 0, requests });
        }
    }
    let state = State { cycle: 0, vnode: VnodeId::ROOT, number: 0, changes: Vec::new(), sets };
    Event::Committed { state: Arc::new(state), reads: due, table: 0 }
}

impl Ordered {
    /// The replica's node.
    pub fn node(&self) -> NodeId {
        match self {
            Self::Canopus(replica) => replica.machine.node(),
            Self::Rival(replica) => NodeId(replica.me()),
        }
    }

    /// Orders a write. A call of [`settle`](Self::settle) follows one or many requests.
    ///
    /// # Errors
    /// As [`Canopus::submit`](evenfall_order_machine::Canopus::submit).
    pub fn write(&mut self, now: Timestamp, request: Request) -> Result<(), OrderError> {
        match self {
            Self::Canopus(replica) => replica.machine.submit(now, request),
            Self::Rival(replica) => taken(replica.write(now, request)),
        }
    }

    /// Asks for the answer to a read. The answer comes under the read's sequence. A protocol that
    /// orders reads sends the body of the request.
    ///
    /// # Errors
    /// As [`Canopus::read`](evenfall_order_machine::Canopus::read).
    pub fn read(&mut self, now: Timestamp, request: Request) -> Result<(), OrderError> {
        match self {
            Self::Canopus(replica) => replica.machine.read(now, request.sequence),
            Self::Rival(replica) => taken(replica.read(now, request)),
        }
    }

    /// Gives Canopus a snapshot. Rivals keep no log and ask for none.
    pub fn checkpoint(&mut self, snapshot: Bytes) {
        if let Self::Canopus(replica) = self {
            replica.machine.checkpoint(snapshot);
        }
    }

    /// Ends an input from outside the contract: some requests, or a checkpoint.
    pub fn settle(&mut self, now: Timestamp) {
        match self {
            Self::Canopus(replica) => replica.settle(now),
            Self::Rival(replica) => replica.settle(now),
        }
    }

    /// Number of datagrams that the replica dropped.
    pub fn dropped(&self) -> u64 {
        match self {
            Self::Canopus(replica) => replica.machine.dropped(),
            // The links of a rival keep all bytes until the bytes are acknowledged.
            Self::Rival(_) => 0,
        }
    }
}

fn taken(is_in: bool) -> Result<(), OrderError> {
    if is_in { Ok(()) } else { Err(OrderError::Full) }
}
