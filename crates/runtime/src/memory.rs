//! The memory of a process over a run: `memory-NAME.csv` in the run's directory, with a row per
//! second.
//!
//! ```text
//! seconds,resident_bytes,cpu_seconds
//! 0.200,7340032,0.012
//! ```
//!
//! The file is bounded without losing the end of a long run: after every 3,600 rows the rows become
//! half as frequent. A day has about 16,000 rows.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use evenfall_core::Timestamp;
use evenfall_host::clock::MonotonicClock;
use evenfall_host::{pin, procstat};

/// Time between two rows at the start.
const PERIOD: Duration = Duration::from_secs(1);
/// Rows after which the time between two rows doubles.
const ROWS_PER_PERIOD: u32 = 3_600;

/// The name of the file of a node.
pub fn file_name(name: &str) -> String {
    format!("memory-{name}.csv")
}

/// The file of a node in a directory.
pub fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(file_name(name))
}

/// Writes the file.
#[derive(Debug)]
pub struct MemoryLog {
    out: File,
    start: Timestamp,
    next: Timestamp,
    period: Duration,
    rows: u32,
}

impl MemoryLog {
    /// Creates the file, or empties an earlier file.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn create(dir: &Path, name: &str, now: Timestamp) -> io::Result<Self> {
        let mut out = File::create(path(dir, name))?;
        out.write_all(b"seconds,resident_bytes,cpu_seconds\n")?;
        Ok(Self { out, start: now, next: now, period: PERIOD, rows: 0 })
    }

    /// Writes a row when it is due. A full disk costs rows, not the run.
    pub fn sample(&mut self, now: Timestamp) {
        if now < self.next {
            return;
        }
        self.next = now + self.period;
        self.rows += 1;
        if self.rows.is_multiple_of(ROWS_PER_PERIOD) {
            self.period *= 2;
        }
        let Ok(usage) = procstat::this_process() else { return };
        let seconds = now.since(self.start).as_secs_f64();
        let (resident, cpu) = (usage.resident_bytes, usage.cpu.as_secs_f64());
        self.out.write_all(format!("{seconds:.3},{resident},{cpu:.3}\n").as_bytes()).ok();
    }
}

/// Writes the file of this process until it is dropped, in a thread of its own: a look at `/proc`
/// takes tens of microseconds, in which a release may be due.
#[derive(Debug)]
pub struct MemoryWatch {
    /// The thread ends when this is dropped.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryWatch {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the process may not start another thread.
    pub fn start(mut log: MemoryLog) -> io::Result<Self> {
        let (end, ended) = channel();
        let work = move || {
            pin::to_all_cores();
            loop {
                log.sample(MonotonicClock::now());
                if ended.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = Some(Builder::new().name("memory".into()).spawn(work)?);
        Ok(Self { end: Some(end), thread })
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Curves that a report shows: those of the processes that used most. A reader cannot tell more
/// lines apart in a picture.
pub const CURVES_MAX: usize = 40;
/// Points of a curve in a report. Every third unit of the picture's width has a point.
pub const POINTS_MAX: usize = 360;

/// Resident bytes of one process over its run.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct MemoryCurve {
    /// Name of the node.
    pub name: String,
    /// Seconds since the start of the node, at most [`POINTS_MAX`] values.
    pub seconds: Vec<f64>,
    /// Resident memory at these times, in bytes. A point stands for the rows around it, with their
    /// largest value.
    pub resident_bytes: Vec<u64>,
}

/// Reads the file of a node; `None` when it is missing. Rows that are cut or damaged are left out.
pub fn read(dir: &Path, name: &str) -> Option<MemoryCurve> {
    let lines = BufReader::new(File::open(path(dir, name)).ok()?).lines();
    let mut points = Vec::new();
    for line in lines.skip(1).map_while(Result::ok) {
        let mut fields = line.split(',');
        let (Some(seconds), Some(bytes)) = (fields.next(), fields.next()) else { continue };
        let (Ok(seconds), Ok(bytes)) = (seconds.parse::<f64>(), bytes.parse()) else { continue };
        if seconds.is_finite() {
            points.push((seconds, bytes));
        }
    }
    let points = thinned(points);
    let (seconds, resident_bytes) = points.into_iter().unzip();
    Some(MemoryCurve { name: name.to_owned(), seconds, resident_bytes })
}

/// At most [`POINTS_MAX`] points: the first, the last, and the largest of every stretch between
/// them.
fn thinned(points: Vec<(f64, u64)>) -> Vec<(f64, u64)> {
    let [first, inner @ .., last] = points.as_slice() else { return points };
    if points.len() <= POINTS_MAX {
        return points;
    }
    let stretches = inner.chunks(inner.len().div_ceil(POINTS_MAX - 2));
    let peaks = stretches.filter_map(|stretch| stretch.iter().max_by_key(|(_, bytes)| *bytes));
    iter::once(first).chain(peaks).chain([last]).copied().collect()
}

/// The [`CURVES_MAX`] curves with the highest peaks, the highest first.
pub fn largest(curves: impl Iterator<Item = MemoryCurve>) -> Vec<MemoryCurve> {
    let mut kept: Vec<MemoryCurve> = Vec::new();
    for curve in curves {
        let peak = |curve: &MemoryCurve| curve.resident_bytes.iter().max().copied();
        let at = kept.partition_point(|other| peak(other) >= peak(&curve));
        kept.insert(at, curve);
        kept.truncate(CURVES_MAX);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_takes_few_rows_and_keeps_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = MemoryLog::create(dir.path(), "root", Timestamp::ZERO).unwrap();
        // Five looks a second, as roles do; the log takes a day of them in one go.
        for look in 0..86_400 * 5 {
            log.sample(Timestamp::from_nanos(look * 200_000_000));
        }
        drop(log);
        let rows = std::fs::read_to_string(path(dir.path(), "root")).unwrap();
        assert!((14_000..20_000).contains(&rows.lines().count()), "{}", rows.lines().count());
        let curve = read(dir.path(), "root").unwrap();
        assert_eq!(curve.seconds[0], 0.0);
        assert!(*curve.seconds.last().unwrap() > 86_350.0);
        assert!(curve.resident_bytes.iter().all(|bytes| *bytes > 0));
        assert!(read(dir.path(), "nobody").is_none());
    }

    #[test]
    fn a_watched_process_has_a_row_when_its_watch_ends() {
        let dir = tempfile::tempdir().unwrap();
        let log = MemoryLog::create(dir.path(), "root", MonotonicClock::now()).unwrap();
        let watch = MemoryWatch::start(log).unwrap();
        drop(watch);
        let curve = read(dir.path(), "root").unwrap();
        assert!(curve.resident_bytes[0] > 0 && curve.seconds.len() == 1);
        assert!(procstat::resident_bytes_max() > 0);
    }

    #[test]
    fn report_keeps_the_peaks_of_a_long_run_in_few_points() {
        let dir = tempfile::tempdir().unwrap();
        let mut rows = String::from("seconds,resident_bytes,cpu_seconds\n");
        for second in 0..16_000u64 {
            let bytes = if second == 9_999 { 77_000_000 } else { 1_000_000 + second };
            rows += &format!("{second}.000,{bytes},0.1\n");
        }
        rows += "inf,1,1\nNaN,1,1\n16000.0,12";
        std::fs::write(path(dir.path(), "root"), rows).unwrap();
        let curve = read(dir.path(), "root").unwrap();
        assert!((POINTS_MAX / 2..=POINTS_MAX).contains(&curve.seconds.len()));
        assert_eq!(curve.resident_bytes.iter().max(), Some(&77_000_000));
        assert_eq!((curve.seconds[0], *curve.seconds.last().unwrap()), (0.0, 16_000.0));
        assert!(curve.seconds.is_sorted());
    }

    #[test]
    fn report_of_many_processes_keeps_the_largest() {
        let curve = |peak| MemoryCurve {
            name: format!("receiver-{peak}"),
            seconds: vec![0.0, 1.0],
            resident_bytes: vec![1, peak],
        };
        let kept = largest((0..5_000).map(|at| curve(at * 7 % 5_000)));
        let peaks: Vec<u64> = kept.iter().map(|curve| curve.resident_bytes[1]).collect();
        assert_eq!((kept.len(), peaks[0], peaks[39]), (CURVES_MAX, 4_999, 4_960));
    }
}
