//! A wake-up that another thread or a signal handler can give to a waiting driver.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::sys::checked;

/// A handle that interrupts the wait of a driver on its sockets. Clones wake the same
/// driver.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// A handle of its own, for a thread that waits for signals without a driver.
    ///
    /// # Errors
    /// When the process may open no more files.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked before it is owned.
        let fd = checked(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: `eventfd` returned this descriptor, and nobody else owns it.
        Ok(Self(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Ends the driver's current wait, or its next one.
    pub fn wake(&self) {
        signal(self.0.as_raw_fd());
    }

    /// Forgets the wake-ups so far.
    pub fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: an eventfd read writes eight bytes, the size of `count`. It fails only when there
        // was nothing to read, which is what is wanted.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// A descriptor of the caller's own that polls readable from a wake-up until it is forgotten.
    ///
    /// # Errors
    /// When the process may open no more files.
    pub fn handle(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// What a wait polls beside its own sockets.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Wakes whoever polls the eventfd. Safe inside a signal handler.
pub fn signal(fd: RawFd) {
    let one = 1_u64;
    // SAFETY: `one` is eight readable bytes. A full counter fails with EAGAIN, and then a wake-up
    // is already pending.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}
