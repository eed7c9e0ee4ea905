//! SIGINT and SIGTERM: a flag, and a wake-up for whoever waits.
//!
//! The first signal asks the program to end in order, so that reports are written. The second ends
//! it at once, as without this module.

use std::io;
use std::mem;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::waker::{self, Waker};
use crate::{Error, sys::checked};

/// Wakers that a signal can reach: a handler may touch nothing but atomics. More than a process
/// has drivers.
const WAKERS_MAX: usize = 64;

static RAISED: AtomicBool = AtomicBool::new(false);
static WAKE: [AtomicI32; WAKERS_MAX] = [const { AtomicI32::new(-1) }; WAKERS_MAX];
/// Keeps the descriptors in [`WAKE`] open for as long as the process lives.
static KEPT: Mutex<Vec<Waker>> = Mutex::new(Vec::new());

/// From now on SIGINT and SIGTERM raise the flag and wake this waker. Call it for every driver.
///
/// # Errors
/// When the kernel refuses the handler, or there are more than 64 wakers.
pub fn watch(waker: Waker) -> Result<(), Error> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(slot) = WAKE.get(kept.len()) else {
        let source = io::Error::other(format!("there are {WAKERS_MAX} already"));
        return Err(Error::Os {
            what: "watch for signals with another waker".into(),
            source,
            advice: "let several threads share one",
        });
    };
    slot.store(waker.fd(), Ordering::Release);
    kept.push(waker);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: `sigaction` is plain integers and pointers, for which zero is a value.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
        // No SA_RESTART: a wait shall end. After the first signal the default is back.
        action.sa_flags = libc::SA_RESETHAND;
        // SAFETY: the handler only stores to atomics and writes to descriptors, both allowed in a
        // handler; `action` outlives the call.
        let result = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        checked(result).map_err(|source| Error::Os {
            what: "handle signals".into(),
            source,
            advice: "",
        })?;
    }
    Ok(())
}

/// Whether SIGINT or SIGTERM has come.
pub fn raised() -> bool {
    RAISED.load(Ordering::Acquire)
}

extern "C" fn on_signal(_: libc::c_int) {
    RAISED.store(true, Ordering::Release);
    for slot in &WAKE {
        let fd = slot.load(Ordering::Acquire);
        if fd >= 0 {
            // SAFETY: errno belongs to the interrupted code; it is put back below.
            let errno = unsafe { *libc::__errno_location() };
            waker::signal(fd);
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = errno };
        }
    }
}
