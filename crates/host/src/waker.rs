//! A wake-up that another thread or a signal handler gives to a waiting driver.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::sys::checked;

/// A handle that interrupts the wait of a driver on its sockets. Clones wake the same
/// driver.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// A handle without a driver, for a thread that waits for signals.
    ///
    /// # Errors
    /// When the process may not open more files.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked before it is owned.
        let fd = checked(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: `eventfd` returned this descriptor, and no other value owns it.
        Ok(Self(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Ends the driver's present wait, or its next wait.
    pub fn wake(&self) {
        signal(self.0.as_raw_fd());
    }

    /// Forgets the wake-ups that have come.
    pub fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: an eventfd read writes eight bytes, the size of `count`. The read fails only when
        // no wake-up had come, and the failure is harmless.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// A descriptor that belongs to the caller. The descriptor polls readable from a wake-up until
    /// [`clear`](Self::clear).
    ///
    /// # Errors
    /// When the process may not open more files.
    pub fn handle(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// The descriptor that a wait polls beside its own sockets.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Wakes the threads that poll the eventfd. The call is safe inside a signal handler.
pub fn signal(fd: RawFd) {
    let one = 1_u64;
    // SAFETY: `one` is eight readable bytes. A full counter fails with EAGAIN, and a wake-up is
    // then already pending.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}
