//! Waiting without the interpreter's lock, and with an eye on Ctrl-C.

use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::ThreadId;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::kinds::ForkedError;

/// How long a wait lasts before it looks for Ctrl-C: short enough that a call ends within 100 ms.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The process that imported the module, and Python's main thread, where signals are handled.
struct ImportedIn {
    process: u32,
    main_thread: Option<ThreadId>,
}

static IMPORTED_IN: OnceLock<ImportedIn> = OnceLock::new();

/// Remembers the process and the thread of the import.
pub(crate) fn remember_process(py: Python<'_>) -> PyResult<()> {
    let threading = py.import("threading")?;
    let current = threading.call_method0("current_thread")?;
    let is_main = current.is(&threading.call_method0("main_thread")?);
    let main_thread = is_main.then(|| std::thread::current().id());
    IMPORTED_IN.get_or_init(|| ImportedIn { process: std::process::id(), main_thread });
    Ok(())
}

/// Refuses a forked child, in which no thread of a store or a subscription lives.
pub(crate) fn expect_own_process() -> PyResult<()> {
    match IMPORTED_IN.get() {
        Some(imported) if imported.process != std::process::id() => {
            let words = "evenfall was imported before this process was forked, and its threads are \
                         in the parent: start processes by multiprocessing's method \"spawn\"";
            Err(ForkedError::new_err(words))
        }
        _ => Ok(()),
    }
}

/// Whether this is Python's main thread.
pub(crate) fn is_main_thread() -> bool {
    let main_thread = IMPORTED_IN.get().and_then(|imported| imported.main_thread);
    main_thread == Some(std::thread::current().id())
}

/// Asks `step` again and again until it answers, without the interpreter's lock. `step` waits for
/// the given time at most.
///
/// # Errors
/// `KeyboardInterrupt`, and what other handlers of signals raise.
pub(crate) fn wait_for<T: Send>(
    py: Python<'_>,
    mut step: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<T> {
    expect_own_process()?;
    loop {
        if let Some(answer) = py.detach(|| step(LOOK_EVERY)) {
            return Ok(answer);
        }
        py.check_signals()?;
    }
}

/// Runs `work` on a thread of its own and waits for its answer. After Ctrl-C the thread goes on
/// until its work is done, and its answer is dropped.
///
/// # Errors
/// `KeyboardInterrupt`, and what other handlers of signals raise.
pub(crate) fn run_beside<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    expect_own_process()?;
    let (to, from) = sync_channel(1);
    std::thread::spawn(move || to.send(work()).ok());
    let answer = wait_for(py, move |time| match from.recv_timeout(time) {
        Ok(answer) => Some(Some(answer)),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(None),
    })?;
    answer.ok_or_else(|| PyRuntimeError::new_err("a thread of evenfall has panicked"))
}
