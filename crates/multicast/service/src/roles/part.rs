//! The loop of the roles that have a place in a tree: proxy, receiver and recorder.

use std::mem;
use std::time::Duration;

use evenfall_core::{Clock, Machine, Timestamp};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::interrupt;
use evenfall_multicast_machine::{
    DepartureReason, Receiver, ReceiverEvent, Recorder, Relay, RelayEvent,
};

use super::{RoleError, RoleProcess};

/// How long a node that leaves repeats its good-bye when the root does not answer.
const FAREWELL: Duration = Duration::from_millis(500);

/// The end of a role: the reason of a normal end, or an error.
pub type Ended = Result<&'static str, RoleError>;

/// A machine that has a place in a tree, and can leave it.
pub trait TreeMember: Machine {
    /// Whether the node is in the tree.
    fn has_place(&self) -> bool;
    /// Says good-bye to the root.
    fn leave(&mut self);
    /// Whether this event is the root's answer to a good-bye.
    fn has_left(event: &Self::Event) -> bool;
}

macro_rules! member {
    ($machine:ty, $event:ident) => {
        impl TreeMember for $machine {
            fn has_place(&self) -> bool {
                self.place().is_some()
            }

            fn leave(&mut self) {
                Self::leave(self);
            }

            fn has_left(event: &Self::Event) -> bool {
                matches!(event, $event::Evicted(DepartureReason::Left))
            }
        }
    };
}
member!(Relay, RelayEvent);
member!(Receiver, ReceiverEvent);
member!(Recorder, ReceiverEvent);

/// The work of a role around its machines.
pub trait Part<M: TreeMember> {
    /// Handles an event of a machine.
    fn on(&mut self, machine: &M, now: Timestamp, event: M::Event);

    /// Sets the clock that holds from now on.
    fn set_clock(&mut self, _: Clock) {}

    /// Called after each turn.
    fn turned(&mut self, _: &mut RoleProcess, _: &mut [M]) {}

    /// Publishes the state of the role. Called when housekeeping is due.
    fn housekeep(&mut self, process: &mut RoleProcess, machines: &[M]);

    /// The end of the role, once it has ended.
    fn ended(&mut self, machines: &mut [M]) -> Option<Ended>;

    /// The latest time of the next turn, if the role needs one.
    fn until(&self) -> Option<Timestamp> {
        None
    }

    /// Whether to leave.
    fn wants_to_stop(&self) -> bool {
        false
    }

    /// Makes the machines on other threads say good-bye.
    fn leave(&mut self) {}

    /// Whether the root knows that the machines on other threads leave.
    fn has_left(&self) -> bool {
        true
    }

    /// Whether the machines on other threads have their places.
    fn has_places(&self) -> bool {
        true
    }
}

impl RoleProcess {
    /// Turns the machines until the role is over. After a signal, or when the role wants to stop,
    /// the turns end when the root has acknowledged that this node leaves.
    pub fn play<M: TreeMember>(
        &mut self,
        machines: &mut [M],
        part: &mut impl Part<M>,
    ) -> Result<Ended, RoleError> {
        let (mut first, mut left) = (true, 0);
        let mut leaves_at: Option<Timestamp> = None;
        let mut was_placed = false;
        loop {
            let mut on = |m: &M, now, event| part.on(m, now, event);
            self.keep_time(machines, mem::take(&mut first), &mut on)?;
            part.set_clock(self.base.clock());
            let until = leaves_at.or(part.until());
            let mut on = |m: &M, now, event| {
                left += usize::from(leaves_at.is_some() && M::has_left(&event));
                part.on(m, now, event);
            };
            self.base.driver.turn(machines, self.base.port.as_mut(), until, &mut on)?;
            part.turned(self, machines);
            if self.housekeeping_due() {
                part.housekeep(self, machines);
            }
            if let Some(ended) = part.ended(machines) {
                return Ok(ended);
            }
            let is_placed = machines.iter().all(M::has_place) && part.has_places();
            if leaves_at.is_none() && mem::replace(&mut was_placed, is_placed) != is_placed {
                let words = if is_placed { "has its place" } else { "is out, and asks again" };
                tracing::info!("{}: {words}", self.base.name);
            }
            let now = MonotonicClock::now();
            match leaves_at {
                Some(at) if at <= now || left == machines.len() && part.has_left() => {
                    return Ok(Ok("asked to stop"));
                }
                None if interrupt::raised() || part.wants_to_stop() => {
                    // A node without a place is missed by no node, so it says good-bye once.
                    let known = machines.iter().any(M::has_place);
                    tracing::info!("{}: asked to stop", self.base.name);
                    leaves_at = Some(if known { now + FAREWELL } else { now });
                    machines.iter_mut().for_each(M::leave);
                    part.leave();
                }
                _ => {}
            }
        }
    }
}
