//! SIGINT and SIGTERM: a flag, and a wake-up for whoever waits.
//!
//! The first signal asks the program to end in order, so that reports are written. The second ends
//! it at once, as without this module.
//!
//! A program asks for that by [`install`]. One that embeds this library and does not keeps its own
//! ways with signals; the flag stays down and [`watch`] does nothing.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicUsize, Ordering::SeqCst};

use crate::waker::{self, Waker};
use crate::{Error, sys::checked};

/// Wakers that a signal can reach: a handler may touch nothing but atomics. More than a process
/// has drivers.
const WAKERS_MAX: usize = 64;
const FREE: i32 = -1;

static INSTALLED: AtomicBool = AtomicBool::new(false);
/// The number of the first signal that came; 0 before.
static RAISED: AtomicU8 = AtomicU8::new(0);
static WAKE: [AtomicI32; WAKERS_MAX] = [const { AtomicI32::new(FREE) }; WAKERS_MAX];
/// Handlers at work, which may be about to write to a descriptor of [`WAKE`].
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// From now on SIGINT and SIGTERM raise the flag and wake whoever [`watch`]es. For the program
/// itself to say, before it starts anything: it replaces the handlers that were there.
///
/// # Errors
/// When the kernel refuses the handler.
pub fn install() -> Result<(), Error> {
    INSTALLED.store(true, SeqCst);
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

/// A waker that signals reach until this is dropped.
#[derive(Debug)]
#[must_use = "signals reach the waker only as long as this is kept"]
pub struct Watch {
    slot: Option<&'static AtomicI32>,
    /// Keeps the descriptor open.
    _waker: Waker,
}

/// Wakes this waker when a signal comes. Call it for every driver. Without [`install`] none does.
///
/// # Errors
/// When there are 64 wakers.
pub fn watch(waker: Waker) -> Result<Watch, Error> {
    if !INSTALLED.load(SeqCst) {
        return Ok(Watch { slot: None, _waker: waker });
    }
    let take = |slot: &&AtomicI32| slot.compare_exchange(FREE, waker.fd(), SeqCst, SeqCst).is_ok();
    let Some(slot) = WAKE.iter().find(take) else {
        let source = io::Error::other(format!("there are {WAKERS_MAX} already"));
        return Err(Error::Os {
            what: "watch for signals with another waker".into(),
            source,
            advice: "let several threads share one",
        });
    };
    Ok(Watch { slot: Some(slot), _waker: waker })
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        slot.store(FREE, SeqCst);
        // A handler in another thread that has read the slot before is done with the descriptor
        // before it is closed. One in this thread has returned.
        while AT_WORK.load(SeqCst) > 0 {
            std::thread::yield_now();
        }
    }
}

/// Whether SIGINT or SIGTERM has come since [`install`].
pub fn raised() -> bool {
    signal().is_some()
}

/// The number of the signal that has come since [`install`]: 2 for SIGINT, 15 for SIGTERM.
pub fn signal() -> Option<u8> {
    Some(RAISED.load(SeqCst)).filter(|signal| *signal != 0)
}

extern "C" fn on_signal(signal: libc::c_int) {
    AT_WORK.fetch_add(1, SeqCst);
    // Only the two signals of `install` come here.
    RAISED.compare_exchange(0, signal as u8, SeqCst, SeqCst).ok();
    for slot in &WAKE {
        let fd = slot.load(SeqCst);
        if fd != FREE {
            // SAFETY: errno belongs to the interrupted code; it is put back below.
            let errno = unsafe { *libc::__errno_location() };
            waker::signal(fd);
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = errno };
        }
    }
    AT_WORK.fetch_sub(1, SeqCst);
}
