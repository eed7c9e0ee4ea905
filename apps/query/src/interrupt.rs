//! Ctrl-C: under way it ends the statement, and at a prompt the program.
//!
//! Signals are heard on a thread of their own, and statements compute on the threads of queries, so
//! that a statement hears of Ctrl-C whatever it computes.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenfall_runtime::output_file::remove_unfinished;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The status of a program that SIGINT has ended, as shells know it: 128 and the signal's number.
pub(crate) const INTERRUPTED_STATUS: u8 = 130;

/// How long a program that answers one statement may take to clean up after Ctrl-C. Without
/// a limit, a reader that stops reading the output would hold the program for ever.
const CLEAN_UP: Duration = Duration::from_secs(3);

/// A statement that Ctrl-C has ended.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted: the statement was ended")
    }
}

impl std::error::Error for Interrupted {}

/// Hears Ctrl-C from now on.
pub(crate) struct Interrupts {
    count: watch::Receiver<u64>,
    /// Whether a statement is under way that has not been interrupted yet.
    is_busy: Arc<AtomicBool>,
}

impl Interrupts {
    /// Hears Ctrl-C. After the first one the program goes on, for a prompt, or ends within
    /// [`CLEAN_UP`].
    ///
    /// # Errors
    /// The errors of the system.
    pub(crate) fn hear(goes_on: bool) -> io::Result<Self> {
        let signals = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // From here on the signal does not end the process by itself.
        let mut interrupts = {
            let _entered = signals.enter();
            signal(SignalKind::interrupt())?
        };
        let (sender, count) = watch::channel(0);
        let is_busy = Arc::new(AtomicBool::new(false));
        let busy = Arc::clone(&is_busy);
        std::thread::spawn(move || {
            signals.block_on(async {
                while interrupts.recv().await.is_some() {
                    // A second Ctrl-C ends a program whose statement does not end.
                    if !busy.swap(false, Ordering::SeqCst) {
                        remove_unfinished();
                        std::process::exit(INTERRUPTED_STATUS.into());
                    }
                    sender.send_modify(|count| *count += 1);
                    if !goes_on {
                        tokio::time::sleep(CLEAN_UP).await;
                        remove_unfinished();
                        std::process::exit(INTERRUPTED_STATUS.into());
                    }
                }
            });
        });
        Ok(Self { count, is_busy })
    }

    /// What the work of a statement gives, or [`Interrupted`]. The work is dropped then.
    pub(crate) async fn or_interrupted<T>(
        &self,
        work: impl Future<Output = Result<T, Box<dyn std::error::Error>>>,
    ) -> Result<T, Box<dyn std::error::Error>> {
        let mut count = self.count.clone();
        count.mark_unchanged();
        self.is_busy.store(true, Ordering::SeqCst);
        let answered = tokio::select! {
            answered = work => answered,
            _ = count.changed() => Err(Interrupted.into()),
        };
        self.is_busy.store(false, Ordering::SeqCst);
        answered
    }
}
