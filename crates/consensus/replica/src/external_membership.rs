//! The thread that talks to a membership service outside.
//!
//! ```text
//!  replica thread ──a change that it wants──> this thread ──> the service
//!        ^                                        │
//!        └────────────── what the list is ────────┘  after each change, and a few times a second
//! ```

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use bytes::Bytes;
use evenfall_consensus_machine::external_membership::WantedChange;
use evenfall_host::Waker;

use crate::ReplicaError;

/// A service outside the racks that keeps one value, such as a key in etcd. Reads and changes are
/// linearizable.
pub trait MembershipService: Send {
    /// The value; `None` when there is none yet.
    ///
    /// # Errors
    /// What failed, with the name of the service.
    fn read(&self) -> Result<Option<Bytes>, String>;

    /// Replaces the value, unless the service has another value than `old`.
    ///
    /// # Errors
    /// As [`read`](Self::read). The change may have been made.
    fn replace(&self, old: Option<&Bytes>, new: &Bytes) -> Result<(), String>;
}

/// The changes that wait: one, because the replica asks again at each heartbeat.
const WANTED_MAX: usize = 1;

/// Starts the thread, which ends when the returned sender is dropped. It reads the value once in
/// this time, gives it, and wakes the replica.
pub fn start(
    membership: Box<dyn MembershipService>,
    give: SyncSender<Option<Bytes>>,
    waker: Waker,
    every: Duration,
) -> Result<SyncSender<WantedChange>, ReplicaError> {
    let (asks, asked) = sync_channel(WANTED_MAX);
    let thread = std::thread::Builder::new().name("membership".into());
    let started = thread.spawn(move || {
        let told = |list| {
            // An error means that the replica has stopped, and the process ends.
            let _ = give.send(list);
            waker.wake();
        };
        talk(membership.as_ref(), &told, &asked, every);
    });
    started.map_err(|error| ReplicaError::Io("start a thread".into(), error))?;
    Ok(asks)
}

fn talk(
    membership: &dyn MembershipService,
    told: &dyn Fn(Option<Bytes>),
    asked: &Receiver<WantedChange>,
    every: Duration,
) {
    let mut failed = false;
    loop {
        match membership.read() {
            Ok(value) => {
                if core::mem::take(&mut failed) {
                    tracing::info!("the membership service answers again");
                }
                told(value);
            }
            Err(error) => warn_once(&mut failed, &error),
        }
        match asked.recv_timeout(every) {
            Ok(WantedChange { old, new }) => {
                if let Err(error) = membership.replace(old.as_ref(), &new) {
                    warn_once(&mut failed, &error);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Says that the service does not answer, once until it answers again.
fn warn_once(failed: &mut bool, error: &str) {
    if !core::mem::replace(failed, true) {
        tracing::warn!(
            "{error}: while the membership service does not answer, no rack that vanishes is left \
             out, and no new replica begins"
        );
    }
}
