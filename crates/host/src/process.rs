//! Processes that this one starts: signals, and an end with their parent.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A signal that a run sends to its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// End in order.
    Terminate,
    /// End at once.
    Kill,
    /// Stand still.
    Stop,
    /// Go on.
    Continue,
}

/// Sends a signal to a process; one that has ended does not mind.
pub fn send(pid: u32, signal: Signal) {
    let signal = match signal {
        Signal::Terminate => libc::SIGTERM,
        Signal::Kill => libc::SIGKILL,
        Signal::Stop => libc::SIGSTOP,
        Signal::Continue => libc::SIGCONT,
    };
    let Ok(pid) = libc::pid_t::try_from(pid) else { return };
    // SAFETY: takes integers; a pid of a child that was not waited for cannot be another's.
    unsafe { libc::kill(pid, signal) };
}

/// Makes the process end when the thread that starts it does, however that ends.
pub fn end_with_parent(command: &mut Command) {
    let tie = || {
        // SAFETY: takes integers.
        let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec only `prctl` is called, which is a plain system call.
    unsafe { command.pre_exec(tie) };
}
