//! The right to acknowledge requests, for a limited time.
//!
//! The holder counts the time from before its request, on a clock that continues while the machine
//! sleeps, and stops when nine tenths have passed. The directory of names counts from its answer.
//! As long as the two clocks run within a tenth of each other, the holder has therefore stopped
//! when the lease is free. Its acknowledged records are then in place when another node reads them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::NamesError;
use super::name_service::NameService;
use crate::lock;

/// Renewals that are asked for within the time of a lease.
const RENEWALS: u32 = 3;
/// A renewal that failed is repeated after this part of a lease.
const RETRIES: u32 = 10;

/// Nanoseconds of a clock that is never set, and that continues while the machine sleeps.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[derive(Debug)]
struct Held {
    node: u32,
    id: i64,
    /// Time of the lease as the directory of names granted it.
    ttl: Duration,
    valid_until_ns: AtomicU64,
    is_over: AtomicBool,
    is_stopping: Mutex<bool>,
    wake: Condvar,
}

/// A lease and the thread that renews it. Dropping the lease lets it run out, as a crash does.
pub struct Lease {
    held: Arc<Held>,
    directory: Arc<dyn NameService>,
    renewer: Option<JoinHandle<()>>,
}

impl Lease {
    /// Takes a lease for a store node.
    ///
    /// # Errors
    /// When the directory of names does not grant it.
    pub fn take(
        directory: &Arc<dyn NameService>,
        node: u32,
        ttl: Duration,
    ) -> Result<Self, NamesError> {
        let asked_ns = now_ns();
        let (id, ttl) = directory.lease_grant(ttl.as_secs().max(2))?;
        let held = Arc::new(Held {
            node,
            id,
            ttl,
            valid_until_ns: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            is_stopping: Mutex::new(false),
            wake: Condvar::new(),
        });
        held.renewed(asked_ns);
        let (shared, client) = (Arc::clone(&held), Arc::clone(directory));
        let thread = std::thread::Builder::new().name("store-lease".into());
        let renewer = thread.spawn(move || shared.renew(&*client));
        let renewer = renewer.map_err(|error| NamesError::Failed(error.to_string()))?;
        Ok(Self { held, directory: Arc::clone(directory), renewer: Some(renewer) })
    }

    /// Number of the lease in the directory of names.
    pub fn id(&self) -> i64 {
        self.held.id
    }

    /// How long the lease lasts from each renewal on.
    pub fn ttl(&self) -> Duration {
        self.held.ttl
    }

    /// Checks that the lease is held at present.
    ///
    /// # Errors
    /// [`NamesError::LeaseLost`].
    pub fn check(&self) -> Result<(), NamesError> {
        let (node, is_over) = (self.held.node, self.held.is_over.load(Relaxed));
        if is_over || now_ns() > self.held.valid_until_ns.load(Relaxed) {
            return Err(NamesError::LeaseLost { node, is_over });
        }
        Ok(())
    }

    /// Gives the lease back at once. Nothing may be acknowledged afterwards.
    pub fn give_back(&self) {
        self.held.is_over.store(true, Relaxed);
        self.held.stop();
        // Without an answer the lease runs out by itself.
        let _ = self.directory.lease_revoke(self.held.id);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.held.stop();
        if let Some(renewer) = self.renewer.take() {
            let _ = renewer.join();
        }
    }
}

impl Held {
    fn renewed(&self, asked_ns: u64) {
        let held_ns = (self.ttl - self.ttl / RETRIES).as_nanos() as u64;
        self.valid_until_ns.store(asked_ns + held_ns, Relaxed);
    }

    fn stop(&self) {
        *lock(&self.is_stopping) = true;
        self.wake.notify_all();
    }

    fn renew(&self, directory: &dyn NameService) {
        let mut pause = self.ttl / RENEWALS;
        loop {
            let waiting = lock(&self.is_stopping);
            let waited = self.wake.wait_timeout_while(waiting, pause, |stopping| !*stopping);
            if *waited.unwrap_or_else(|e| e.into_inner()).0 {
                return;
            }
            let asked_ns = now_ns();
            match directory.lease_keep_alive(self.id) {
                Ok(true) => {
                    self.renewed(asked_ns);
                    pause = self.ttl / RENEWALS;
                }
                Ok(false) => {
                    self.is_over.store(true, Relaxed);
                    return;
                }
                Err(_) => pause = self.ttl / RETRIES,
            }
        }
    }
}
