//! A role in a thread of its own, and the queue from which the role takes the messages of a
//! program.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use evenfall_feed_service::intake::handover::{Handover, Taker};

use crate::roles::{RoleError, file_error};

/// A role that runs until its program ends the queue. When the value is dropped, the role is
/// cancelled, and the drop waits until the role has ended.
pub struct RoleThread<T> {
    pub queue: Arc<Handover>,
    thread: Option<JoinHandle<Result<T, RoleError>>>,
}

impl<T: Send + 'static> RoleThread<T> {
    /// Starts a role, and returns when the role listens. Returns `None` when the role ended without
    /// an error before it listened.
    pub fn start(
        role: &str,
        run: impl FnOnce(&mut Taker) -> Result<T, RoleError> + Send + 'static,
    ) -> Result<Option<Self>, RoleError> {
        let queue = Arc::new(Handover::default());
        let (attached, listens) = sync_channel(1);
        let mut taker = Taker::new(Arc::clone(&queue), attached);
        let thread = std::thread::Builder::new()
            .name(format!("evenfall-{role}"))
            .spawn(move || run(&mut taker))
            .map_err(|error| file_error(format!("the {role}'s thread").as_ref(), error))?;
        let does_listen = listens.recv().is_ok();
        let hired = Self { queue, thread: Some(thread) };
        if does_listen {
            return Ok(Some(hired));
        }
        hired.ended().map(|_| None)
    }

    /// Tells the role that no message follows, and waits until the role has ended.
    pub fn finish(self) -> Result<T, RoleError> {
        self.queue.finish();
        self.ended()
    }

    fn ended(mut self) -> Result<T, RoleError> {
        let thread = self.thread.take().expect("a role has its thread until it has ended");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl<T> Drop for RoleThread<T> {
    fn drop(&mut self) {
        self.queue.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
