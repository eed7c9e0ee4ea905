//! Processes that this process starts: signals to them, and ties that end them with their parent.
//!
//! A process that outlives the program that started it keeps a core busy until somebody stops it by
//! hand. Two ties hold such a process, because each tie has a gap. The kernel's parent-death signal
//! also reaches a stopped process, but the kernel forgets the signal when the process executes a
//! program with file capabilities. The end of a pipe ([`Lifeline`]) has no such gap, but only a
//! running process can notice it.

use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::unix::process::CommandExt;
use std::process::{self, Command};

/// Stack of the thread that reads the lifeline. The thread calls only `read` and `kill`.
const LIFELINE_STACK_BYTES: usize = 64 << 10;

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
    /// Attach the kernel's programs of the port anew, where there are any.
    Reload,
}

impl Signal {
    fn number(self) -> libc::c_int {
        match self {
            Self::Terminate => libc::SIGTERM,
            Self::Kill => libc::SIGKILL,
            Self::Stop => libc::SIGSTOP,
            Self::Continue => libc::SIGCONT,
            Self::Reload => libc::SIGUSR1,
        }
    }
}

/// Sends a signal to a process. A process that has ended is no error.
pub fn send(pid: u32, signal: Signal) {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return };
    // SAFETY: takes integers. The pid of a child that was not waited for cannot belong to another
    // process.
    unsafe { libc::kill(pid, signal.number()) };
}

/// Makes the process get this signal when the thread that starts it ends, in whatever way. The
/// caller should be the main thread, which ends with the program, because a thread that ends
/// earlier ends the process too.
pub fn end_with_parent(command: &mut Command, signal: Signal) {
    let parent = process::id();
    let tie = move || {
        // SAFETY: takes integers.
        let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal.number()) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have ended between the fork and the call above. The process then has
        // another parent already, and the signal would never come.
        // SAFETY: takes nothing and cannot fail.
        if unsafe { libc::getppid() }.cast_unsigned() != parent {
            // SAFETY: ends this process without running the exit handlers of the parent.
            unsafe { libc::_exit(libc::EXIT_FAILURE) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec only `prctl`, `getppid` and `_exit` are called, which are plain
    // system calls.
    unsafe { command.pre_exec(tie) };
}

/// A pipe into which no process writes. Only this process holds the writing end, so a reader sees
/// the end of the pipe when this process is gone.
#[derive(Debug)]
pub struct Lifeline {
    reader: PipeReader,
    _writer: PipeWriter,
}

impl Lifeline {
    /// Makes the pipe. The pipe takes two file descriptors for any number of processes.
    ///
    /// # Errors
    /// The errors of the kernel, such as too many open files.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self { reader, _writer: writer })
    }

    /// Ties a process to this one by both ties. The process must call [`end_with_stdin`].
    ///
    /// # Errors
    /// The errors of the kernel, such as too many open files.
    pub fn tie(&self, command: &mut Command) -> io::Result<()> {
        command.stdin(self.reader.try_clone()?);
        end_with_parent(command, Signal::Kill);
        Ok(())
    }
}

/// From now on this process is killed when its standard input ends.
///
/// # Errors
/// When no thread can be started.
pub fn end_with_stdin() -> io::Result<()> {
    let watch = || {
        let mut ignored = [0; 64];
        while !matches!(io::stdin().read(&mut ignored), Ok(0) | Err(_)) {}
        send(process::id(), Signal::Kill);
    };
    let thread = std::thread::Builder::new().name("lifeline".into());
    thread.stack_size(LIFELINE_STACK_BYTES).spawn(watch).map(drop)
}
