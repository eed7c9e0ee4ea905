//! The border to C: panics become a status, and a handle is used by one thread of one process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::status::{CallStatus, Failure, keep_words};

/// Runs a call. Its failure becomes a status and the last error of the thread.
pub(crate) fn run_call(call: impl FnOnce() -> Result<CallStatus, Failure>) -> CallStatus {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => {
            keep_words(&failure.words);
            failure.status
        }
        Err(_) => {
            keep_words("a fault of evenfall; its words are on standard error. Please report it");
            CallStatus::EvenfallPanicked
        }
    }
}

/// The process that made a handle. The threads of evenfall do not live in the child of a fork.
pub(crate) struct HomeProcess(u32);

impl HomeProcess {
    /// This process.
    pub(crate) fn of_caller() -> Self {
        Self(std::process::id())
    }

    /// Whether the caller is that process.
    pub(crate) fn is_here(&self) -> bool {
        self.0 == std::process::id()
    }

    /// Refuses the child of a fork.
    pub(crate) fn expect_here(&self) -> Result<(), Failure> {
        if self.is_here() {
            return Ok(());
        }
        Err(refuse_as_busy("the handle is of the process before a fork; open one in the child"))
    }
}

/// What a handle holds: a value that one call at a time uses, in the process that made it.
pub(crate) struct Guarded<T> {
    value: Mutex<T>,
    home: HomeProcess,
}

impl<T> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), home: HomeProcess::of_caller() }
    }

    /// Whether the caller is the process that made the handle.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.home.is_here()
    }

    /// Takes the value for one call.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, T>, Failure> {
        self.home.expect_here()?;
        self.value.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                refuse_as_busy("another thread is in a call with this handle")
            }
            TryLockError::Poisoned(_) => Failure {
                status: CallStatus::EvenfallPanicked,
                words: "an earlier call with this handle ended by a fault; free the handle".into(),
            },
        })
    }
}

pub(crate) fn refuse_as_busy(words: &str) -> Failure {
    Failure { status: CallStatus::EvenfallBusy, words: words.into() }
}

/// What a pointer of the caller points to, or a failure that names the argument.
///
/// # Safety
/// The pointer is null, or points to a value that lives and is not changed meanwhile.
pub(crate) unsafe fn look_behind<'p, T>(
    pointer: *const T,
    argument: &str,
) -> Result<&'p T, Failure> {
    // SAFETY: the caller's promise, passed on.
    unsafe { pointer.as_ref() }
        .ok_or_else(|| Failure::wrong_argument(format!("{argument} is a null pointer")))
}

/// Writes a value where the caller wants it.
///
/// # Safety
/// The pointer is null, or may be written to.
pub(crate) unsafe fn hand_out<T>(pointer: *mut T, argument: &str, value: T) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::wrong_argument(format!("{argument} is a null pointer")));
    }
    // SAFETY: the pointer is not null, and may be written to by the caller's promise.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Frees a handle, unless it is null. In the child of a fork the memory is left to the system.
///
/// # Safety
/// The pointer is null, or came from `Box::into_raw` and is not used afterwards.
pub(crate) unsafe fn free_handle<H>(handle: *mut H, of_this_process: impl FnOnce(&H) -> bool) {
    if handle.is_null() {
        return;
    }
    // SAFETY: the caller's promise: a live handle.
    if !of_this_process(unsafe { &*handle }) {
        return;
    }
    // SAFETY: the caller's promise: it came from a box, and nobody uses it afterwards.
    let handle = unsafe { Box::from_raw(handle) };
    run_call(|| {
        drop(handle);
        Ok(CallStatus::EvenfallOk)
    });
}
