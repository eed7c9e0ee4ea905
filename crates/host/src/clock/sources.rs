//! Sources of synchronised time, and the error bound that each source states.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use evenfall_core::{ClockError, ClockReading};

use super::{bracketed_offset, clockbound};
use crate::Error;
use crate::sys::checked;

/// The source of the synchronised clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncSource {
    /// The monotonic clock of this host, for runs on one host. All processes read the same clock,
    /// so there is no error between them.
    SameHost,
    /// `CLOCK_REALTIME`, with the bound that the kernel's own discipline states (`adjtimex`).
    Realtime,
    /// `CLOCK_REALTIME`, with the root distance that chrony states.
    Chrony,
    /// `CLOCK_REALTIME`, with the bound in the shared memory of ClockBound.
    ClockBound(PathBuf),
    /// Another source, ahead by as many nanoseconds as a file says. A tool for experiments: without
    /// the file nothing is added, and the source's bound stays as it was.
    Stepped(Box<SyncSource>, PathBuf),
    /// A PTP hardware clock (`/dev/ptpN`), with the bound that its card states.
    Ptp(PathBuf),
}

impl fmt::Display for SyncSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SameHost => f.write_str("same clock"),
            Self::Realtime => f.write_str("system clock"),
            Self::Chrony => f.write_str("system clock under chrony"),
            Self::ClockBound(_) => f.write_str("system clock under ClockBound"),
            Self::Stepped(source, path) => write!(f, "{source}, stepped by {}", path.display()),
            Self::Ptp(path) => write!(f, "hardware clock {}", path.display()),
        }
    }
}

impl SyncSource {
    /// The same source with the planted steps of this file, if there is one.
    pub fn stepped_by(self, file: Option<&Path>) -> Self {
        match file {
            Some(file) => Self::Stepped(Box::new(self), file.to_owned()),
            None => self,
        }
    }

    /// Reads the source. Chrony takes milliseconds, and the other sources take microseconds.
    ///
    /// # Errors
    /// When the source does not exist or does not answer.
    pub fn read(&self) -> Result<ClockReading, Error> {
        match self {
            Self::SameHost => Ok(ClockReading { offset_ns: 0, error: ClockError::SameClock }),
            Self::Realtime => Ok(realtime(kernel_bound())),
            Self::Chrony => Ok(realtime(Some(chrony_bound("chronyc")?))),
            Self::ClockBound(path) => {
                Ok(realtime(Some(clockbound::bound(path, super::MonotonicClock::now)?)))
            }
            Self::Stepped(source, path) => {
                let reading = source.read()?;
                let step = std::fs::read_to_string(path).ok();
                let step_ns = step.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
                let offset_ns = reading.offset_ns.saturating_add(step_ns);
                Ok(ClockReading { offset_ns, ..reading })
            }
            Self::Ptp(path) => ptp(path),
        }
    }
}

/// The best source of this host, and the reason in words. `one_host` says whether the run stays on
/// this host.
pub fn auto(one_host: bool) -> (SyncSource, String) {
    if one_host {
        return (SyncSource::SameHost, "all processes are on this host: same clock".into());
    }
    let mut tried = Vec::new();
    for source in [
        SyncSource::Ptp("/dev/ptp0".into()),
        SyncSource::ClockBound(clockbound::SEGMENT.into()),
        SyncSource::Chrony,
        SyncSource::Realtime,
    ] {
        match source.read().map(|reading| reading.error) {
            Ok(ClockError::Within(bound)) => {
                tried.push(format!("{source} states its error, {bound:?}"));
                return (source, tried.join("; "));
            }
            Ok(_) => tried.push(format!("{source} states no bound on its error")),
            Err(error) => tried.push(error.to_string()),
        }
    }
    tried.push("using the system clock with unknown error".into());
    (SyncSource::Realtime, tried.join("; "))
}

fn realtime(bound: Option<Duration>) -> ClockReading {
    let (offset_ns, reading) = bracketed_offset(|| super::read(libc::CLOCK_REALTIME));
    let error = bound.map_or(ClockError::Unknown, |bound| ClockError::Within(bound + reading));
    ClockReading { offset_ns, error }
}

/// The greatest error that the kernel's clock discipline states; `None` when no program disciplines
/// the clock.
fn kernel_bound() -> Option<Duration> {
    // SAFETY: `timex` is plain integers, for which zero is a value; zero modes only read.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `timex` is a live local of the right type.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    bound_of_timex(state, timex.status, timex.maxerror)
}

pub(super) fn bound_of_timex(state: i32, status: i32, maxerror_us: i64) -> Option<Duration> {
    // TIME_ERROR is also the state of a clock that no program has set. `maxerror` is then a
    // default.
    if state < 0 || state == libc::TIME_ERROR || status & libc::STA_UNSYNC != 0 {
        return None;
    }
    Some(Duration::from_micros(u64::try_from(maxerror_us).ok()?))
}

/// The bound that chrony's command-line program states.
pub(super) fn chrony_bound(program: impl AsRef<OsStr>) -> Result<Duration, Error> {
    let output = Command::new(program)
        .args(["-c", "tracking"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::Clock { what: format!("chronyc cannot be run: {error}") })?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(Error::Clock { what: format!("chronyc says: {}", text.trim()) });
    }
    root_distance(&text).ok_or_else(|| Error::Clock {
        what: format!("chrony is not synchronised: {}", text.trim()),
    })
}

/// The bound on the error of the system clock, from `chronyc -c tracking`. The fields are:
/// reference id, name, stratum, reference time, system time, last offset, RMS offset, frequency,
/// residual frequency, skew, root delay, root dispersion, update interval, leap status. By chrony's
/// manual: error <= |system time offset| + root dispersion + root delay / 2.
pub fn root_distance(csv: &str) -> Option<Duration> {
    let fields: Vec<&str> = csv.trim().split(',').collect();
    let seconds = |at: usize| fields.get(at)?.parse::<f64>().ok();
    if fields.len() < 14 || fields[13] == "Not synchronised" || fields[2] == "0" {
        return None;
    }
    let distance = seconds(4)?.abs() + seconds(11)? + seconds(10)? / 2.0;
    Duration::try_from_secs_f64(distance).ok()
}

/// Pairs of reads that the kernel makes in one ioctl. The kernel's own maximum is 25.
const PTP_SAMPLES: usize = 8;

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PtpTime {
    seconds: i64,
    nanos: u32,
    reserved: u32,
}

impl PtpTime {
    fn nanos(self) -> i64 {
        self.seconds * 1_000_000_000 + i64::from(self.nanos)
    }
}

/// `struct ptp_sys_offset` of `linux/ptp_clock.h`: system, device, system, device, ..., system.
#[derive(Clone, Copy)]
#[repr(C)]
struct PtpOffset {
    samples: u32,
    reserved: [u32; 3],
    times: [PtpTime; 51],
}

/// `PTP_SYS_OFFSET`, `_IOW('=', 5, struct ptp_sys_offset)`.
const PTP_SYS_OFFSET: libc::c_ulong =
    (1 << 30) | ((size_of::<PtpOffset>() as libc::c_ulong) << 16) | (0x3d << 8) | 5;

fn ptp(path: &Path) -> Result<ClockReading, Error> {
    let fail = |error: std::io::Error| Error::Clock {
        what: format!("{}: {error}; it must exist and be readable by this user", path.display()),
    };
    let device = File::open(path).map_err(fail)?;
    let mut request = PtpOffset {
        samples: PTP_SAMPLES as u32,
        reserved: [0; 3],
        times: [PtpTime::default(); 51],
    };
    // SAFETY: the ioctl reads and writes one `ptp_sys_offset`, which is what `request` is.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), PTP_SYS_OFFSET, &raw mut request) };
    checked(result).map_err(fail)?;
    let (device_to_realtime, half) = tightest(&request.times[..2 * PTP_SAMPLES + 1]);
    let (realtime_to_monotonic, reading) = bracketed_offset(|| super::read(libc::CLOCK_REALTIME));
    let error = ptp_bound(Path::new("/sys"), path)
        .map_or(ClockError::Unknown, |bound| ClockError::Within(bound + half + reading));
    Ok(ClockReading { offset_ns: device_to_realtime + realtime_to_monotonic, error })
}

/// The device's offset to the system clock from the sample with the narrowest bracket, and half of
/// that bracket.
fn tightest(times: &[PtpTime]) -> (i64, Duration) {
    times
        .windows(3)
        .step_by(2)
        .map(|sample| {
            let (before, device, after) = (sample[0].nanos(), sample[1].nanos(), sample[2].nanos());
            (device - before.midpoint(after), (after - before).max(0) as u64)
        })
        .min_by_key(|(_, width)| *width)
        .map_or((0, Duration::MAX), |(offset, width)| (offset, Duration::from_nanos(width / 2)))
}

/// The error bound in nanoseconds that the card states, where its driver has a file for it (the
/// Amazon adapter's `phc_error_bound`). The ioctl itself states no error of the device.
pub(super) fn ptp_bound(sys: &Path, path: &Path) -> Option<Duration> {
    let name = path.file_name()?.to_str()?;
    let file = sys.join(format!("class/ptp/{name}/device/phc_error_bound"));
    let text = std::fs::read_to_string(file).ok()?;
    text.trim().parse().ok().map(Duration::from_nanos)
}
