//! The local clock, and where the synchronised clock comes from.
//!
//! Timers run on `CLOCK_MONOTONIC`, which never steps. Deadlines are on a clock that all hosts
//! share up to an error. The machines get that clock as an offset and a bound on the error
//! ([`ClockReading`]). On one host the shared clock is the monotonic clock itself, with offset zero
//! and no error.

pub mod clockbound;
mod sources;
#[cfg(test)]
mod tests;

use std::time::Duration;

use evenfall_core::{ClockReading, Timestamp};

#[doc(hidden)]
pub use sources::root_distance;
pub use sources::{SyncSource, auto};

use crate::Error;

/// Bracketed reads of two clocks, of which the tightest is kept. Eight reads of 50 ns outlast an
/// interruption of one of them.
const OFFSET_READS: usize = 8;

/// `CLOCK_MONOTONIC`. All processes of a host read the same time.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl MonotonicClock {
    /// The present time.
    #[inline]
    pub fn now() -> Timestamp {
        Timestamp::from_nanos(read(libc::CLOCK_MONOTONIC))
    }
}

/// Turns stamps by the host's clock, by which the kernel stamps packets, into local times.
///
/// The kernel slews the host's clock and the local clock alike, so that the difference of the two
/// changes only when somebody steps the host's clock. A read of the host's clock between two reads
/// of the local clock bounds the difference from both sides. All reads since the last step together
/// bound it within some ten nanoseconds, also when the thread was stopped between two reads.
#[derive(Clone, Copy, Debug)]
pub struct HostStamps {
    /// The least and the greatest value that a stamp may need added, in nanoseconds.
    offset_ns: [i64; 2],
}

impl Default for HostStamps {
    fn default() -> Self {
        Self { offset_ns: Self::bracket() }
    }
}

impl HostStamps {
    fn bracket() -> [i64; 2] {
        let before = read(libc::CLOCK_MONOTONIC) as i64;
        let host = read(libc::CLOCK_REALTIME) as i64;
        let after = read(libc::CLOCK_MONOTONIC) as i64;
        [before - host, after - host]
    }

    /// Reads both clocks again. False when the host's clock has stepped since the last look: a
    /// stamp from between the two looks may be from before the step or from after it.
    pub fn look(&mut self) -> bool {
        self.narrow(Self::bracket())
    }

    fn narrow(&mut self, fresh: [i64; 2]) -> bool {
        let both = [self.offset_ns[0].max(fresh[0]), self.offset_ns[1].min(fresh[1])];
        let is_same = both[0] <= both[1];
        self.offset_ns = if is_same { both } else { fresh };
        is_same
    }

    /// The local time of a stamp, and never a later time.
    pub fn earliest(&self, host_ns: u64) -> Timestamp {
        Timestamp::from_nanos(host_ns.saturating_add_signed(self.offset_ns[0]))
    }

    /// The local time of a stamp, and never an earlier time.
    pub fn latest(&self, host_ns: u64) -> Timestamp {
        Timestamp::from_nanos(host_ns.saturating_add_signed(self.offset_ns[1]))
    }
}

/// Nanoseconds of a clock of the operating system.
#[inline]
pub(crate) fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live local. The clocks used here exist on every Linux, so the call cannot
    // fail. If it failed, the time would be zero.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Processor time that the calling thread has used.
pub fn thread_cpu() -> Duration {
    Duration::from_nanos(read(libc::CLOCK_THREAD_CPUTIME_ID))
}

/// Processor time that all threads of this process have used.
pub fn process_cpu() -> Duration {
    Duration::from_nanos(read(libc::CLOCK_PROCESS_CPUTIME_ID))
}

/// The offset of another clock to the monotonic clock, and half the width of the tightest bracket,
/// which bounds the error of the offset.
fn bracketed_offset(other: impl Fn() -> u64) -> (i64, Duration) {
    let mut best = (0, u64::MAX);
    for _ in 0..OFFSET_READS {
        let before = read(libc::CLOCK_MONOTONIC);
        let there = other();
        let after = read(libc::CLOCK_MONOTONIC);
        let width = after.saturating_sub(before);
        if width < best.1 {
            best = (there as i64 - (before + width / 2) as i64, width);
        }
    }
    (best.0, Duration::from_nanos(best.1.div_ceil(2)))
}

/// Reads a source in a thread of its own, because some take milliseconds, and keeps the last
/// answer.
#[derive(Debug)]
pub struct ClockWatch {
    shared: std::sync::Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
    seen: u64,
}

#[derive(Debug)]
struct Shared {
    latest: std::sync::Mutex<ClockReading>,
    generation: std::sync::atomic::AtomicU64,
    stop: std::sync::atomic::AtomicBool,
}

impl ClockWatch {
    /// Reads `source` at once and then every `period`.
    ///
    /// # Errors
    /// When the first read fails. A later failure makes the error bound unknown.
    pub fn start(source: SyncSource, period: Duration) -> Result<Self, Error> {
        use std::sync::atomic::Ordering;
        let first = source.read()?;
        let shared = std::sync::Arc::new(Shared {
            latest: std::sync::Mutex::new(first),
            generation: 1.into(),
            stop: false.into(),
        });
        let writer = std::sync::Arc::clone(&shared);
        let work = move || {
            while !writer.stop.load(Ordering::Relaxed) {
                std::thread::park_timeout(period);
                let mut latest =
                    writer.latest.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let unknown = ClockReading { error: evenfall_core::ClockError::Unknown, ..*latest };
                *latest = source.read().unwrap_or(unknown);
                writer.generation.fetch_add(1, Ordering::Release);
            }
        };
        let thread = std::thread::Builder::new().name("clock-watch".into()).spawn(work).map_err(
            |source| Error::Os {
                what: "start the clock thread".into(),
                source,
                advice: "raise the limit of processes (ulimit -u)",
            },
        )?;
        Ok(Self { shared, thread: Some(thread), seen: 0 })
    }

    /// The last reading, when it was not returned before. The call is cheap.
    pub fn fresh(&mut self) -> Option<ClockReading> {
        let generation = self.shared.generation.load(std::sync::atomic::Ordering::Acquire);
        if generation == self.seen {
            return None;
        }
        // A caller that finds the lock taken returns, because it must not wait for a slow source.
        let reading = *self.shared.latest.try_lock().ok()?;
        self.seen = generation;
        Some(reading)
    }
}

impl Drop for ClockWatch {
    fn drop(&mut self) {
        self.shared.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread ends by itself. Its panic, if any, has been printed.
            drop(thread.join());
        }
    }
}
