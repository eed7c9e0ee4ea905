//! SIGINT and SIGTERM as a flag and a wake-up of waiting threads, and SIGUSR1 as a count of
//! reloads.
//!
//! The first signal asks the program to end in order, so that reports are written. The second
//! signal ends it at once, as without this module.
//!
//! A program turns this behaviour on by [`install`]. A program that embeds this library without
//! [`install`] keeps its own handling of signals: the flag stays down, and [`watch`] does nothing.

use std::io;
use std::mem;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst,
};

use crate::waker::{self, Waker};
use crate::{Error, sys::checked};

/// Wakers that a signal can reach. The array is fixed, because a handler may use nothing but
/// atomics. No process has 64 drivers.
const WAKERS_MAX: usize = 64;
/// The entry of a place without a waker. No descriptor is negative.
const FREE: i32 = -1;

static INSTALLED: AtomicBool = AtomicBool::new(false);
/// The number of the first signal; 0 before it.
static RAISED: AtomicU8 = AtomicU8::new(0);
/// Signals of SIGUSR1 that have come.
static RELOADS: AtomicU64 = AtomicU64::new(0);
static WAKE: [AtomicI32; WAKERS_MAX] = [const { AtomicI32::new(FREE) }; WAKERS_MAX];
/// Handlers that run now, and may be about to write to a descriptor of [`WAKE`].
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// From now on SIGINT and SIGTERM raise the flag and wake all watched wakers, and SIGUSR1 counts a
/// reload. The program calls this before it starts anything, because it replaces the earlier
/// handlers.
///
/// # Errors
/// When the kernel refuses the handler.
pub fn install() -> Result<(), Error> {
    INSTALLED.store(true, SeqCst);
    // Without SA_RESTART a signal ends a wait. After the first signal the default handler is back.
    let handle = |signal| handle_signal(signal, on_signal, libc::SA_RESETHAND);
    [libc::SIGINT, libc::SIGTERM].into_iter().try_for_each(handle)?;
    handle_signal(libc::SIGUSR1, on_reload, libc::SA_RESTART)
}

/// Number of reloads that SIGUSR1 has asked for since [`install`].
pub fn reloads_asked() -> u64 {
    RELOADS.load(SeqCst)
}

/// Sets a handler, which may store to atomics and write to descriptors.
fn handle_signal(
    signal: libc::c_int,
    handler: extern "C" fn(libc::c_int),
    flags: libc::c_int,
) -> Result<(), Error> {
    // SAFETY: `sigaction` is plain integers and pointers, for which zero is a value.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = flags;
    // SAFETY: the handlers of this module only store to atomics and write to descriptors, and a
    // handler may do both. `action` outlives the call.
    let result = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    let failed = |source| Error::Os { what: "handle signals".into(), source, advice: "" };
    checked(result).map(drop).map_err(failed)
}

/// A waker that signals reach until this value is dropped.
#[derive(Debug)]
#[must_use = "signals reach the waker only as long as this is kept"]
pub struct Watch {
    slot: Option<&'static AtomicI32>,
    /// Keeps the descriptor open.
    _waker: Waker,
}

/// Registers a waker that every signal wakes. A program calls this for every driver. Without
/// [`install`], no signal wakes it.
///
/// # Errors
/// When 64 wakers are registered.
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
        // A handler in another thread that has read the slot finishes with the descriptor before
        // the descriptor is closed. A handler in this thread has returned.
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

extern "C" fn on_reload(_signal: libc::c_int) {
    RELOADS.fetch_add(1, SeqCst);
}

extern "C" fn on_signal(signal: libc::c_int) {
    AT_WORK.fetch_add(1, SeqCst);
    // Only the two signals of `install` come here.
    RAISED.compare_exchange(0, signal as u8, SeqCst, SeqCst).ok();
    for slot in &WAKE {
        let fd = slot.load(SeqCst);
        if fd != FREE {
            // SAFETY: errno belongs to the interrupted code, and is put back below.
            let errno = unsafe { *libc::__errno_location() };
            waker::signal(fd);
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = errno };
        }
    }
    AT_WORK.fetch_sub(1, SeqCst);
}
