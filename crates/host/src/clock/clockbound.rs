//! The bound that ClockBound states in its shared memory.
//!
//! The daemon of ClockBound writes a segment of 72 or 80 bytes into a file. All numbers have the
//! byte order of the processor (ClockBound's `docs/PROTOCOL.md`, versions 1 and 2):
//!
//! ```text
//!  0           8          12        14            16        32            48      56
//!  | magic     | length   | version | generation  | as of   | void after  | bound |
//! 56                                            version 1: | worst drift | zero  | status |
//! 56          version 2: | disruption marker    (8 bytes)  | worst drift | status         |
//! ```
//!
//! The daemon makes the generation odd before it changes the rest, and even afterwards. Both times
//! are on the monotonic clock, as seconds and nanoseconds.

use std::fs;
use std::path::Path;
use std::time::Duration;

use evenfall_core::Timestamp;

use crate::Error;

/// Where the daemon puts the segment of version 2 by default.
pub const SEGMENT: &str = "/var/run/clockbound/shm0";

/// The magic number, as two words.
const MAGIC: [u32; 2] = [0x414D_5A4E, 0x4342_0200];
/// Reads until one finds a segment that is not being changed. The daemon changes it once a second,
/// within a microsecond.
const READS_MAX: usize = 100;
/// The daemon takes the time from a coarse clock, whose ticks are up to 10 ms apart.
const COARSE: Duration = Duration::from_millis(10);
/// A worst drift of one second in each second is no drift of a clock.
const DRIFT_PPB_END: u32 = 1_000_000_000;
/// The states in which the daemon vouches for the bound: synchronised, and free running within the
/// stated drift.
const VOUCHED: [u32; 2] = [1, 2];

/// The bound on the error of the system clock at `now`.
///
/// # Errors
/// When there is no segment, or it states no bound.
pub fn bound(path: &Path, now: impl Fn() -> Timestamp) -> Result<Duration, Error> {
    let failed = |why: String| Error::Clock { what: format!("{}: {why}", path.display()) };
    for _ in 0..READS_MAX {
        let bytes = fs::read(path).map_err(|error| failed(error.to_string()))?;
        let again = fs::read(path).map_err(|error| failed(error.to_string()))?;
        if bytes == again && generation(&bytes).is_some_and(|generation| generation % 2 == 0) {
            return bound_of(&bytes, now()).map_err(|why| failed(why.into()));
        }
    }
    Err(failed(format!("ClockBound's daemon was changing it during each of {READS_MAX} reads")))
}

fn generation(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(14..)?.first_chunk()?))
}

/// The bound that a segment states for `now`.
pub(super) fn bound_of(bytes: &[u8], now: Timestamp) -> Result<Duration, &'static str> {
    const SHORT: &str = "is no segment of ClockBound: it ends too early";
    let word = |at: usize| bytes.get(at..)?.first_chunk().map(|chunk| u32::from_ne_bytes(*chunk));
    let long = |at: usize| bytes.get(at..)?.first_chunk().map(|chunk| i64::from_ne_bytes(*chunk));
    let time = |at: usize| {
        let nanos = long(at)?.checked_mul(1_000_000_000)?.checked_add(long(at + 8)?)?;
        Some(Timestamp::from_nanos(u64::try_from(nanos).ok()?))
    };
    if [word(0), word(4)] != MAGIC.map(Some) {
        return Err("is no segment of ClockBound");
    }
    let version = bytes.get(12..).and_then(<[u8]>::first_chunk).map(|two| u16::from_ne_bytes(*two));
    let (drift_at, status_at) = match version {
        Some(1) => (56, 64),
        Some(2) => (64, 68),
        _ => return Err("has a version of ClockBound's segment that is not known"),
    };
    let (as_of, void_after) = (time(16).ok_or(SHORT)?, time(32).ok_or(SHORT)?);
    let bound_ns = long(48).and_then(|ns| u64::try_from(ns).ok()).ok_or(SHORT)?;
    let drift_ppb = word(drift_at).filter(|ppb| *ppb < DRIFT_PPB_END).ok_or(SHORT)?;
    if !VOUCHED.contains(&word(status_at).ok_or(SHORT)?) {
        return Err("ClockBound does not know how wrong the clock is");
    }
    if now > void_after {
        return Err("ClockBound's daemon has stopped: its bound is void");
    }
    if as_of > now + COARSE {
        return Err("ClockBound's bound is for a time in the future");
    }
    let age_ns = u128::from(evenfall_core::time::nanos(now.since(as_of)));
    let drift_ns = age_ns * u128::from(drift_ppb) / 1_000_000_000;
    Ok(Duration::from_nanos(bound_ns.saturating_add(u64::try_from(drift_ns).unwrap_or(u64::MAX))))
}
