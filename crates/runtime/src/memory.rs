//! How much memory a process has over a run: `memory-NAME.csv` in the run's directory, a row per
//! second.
//!
//! ```text
//! seconds,resident_bytes,cpu_seconds
//! 0.200,7340032,0.012
//! ```
//!
//! The file is bounded without losing the end of a long run: after every 3,600 rows the rows
//! become half as frequent, so a day has some 16,000 of them.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_core::Timestamp;
use evenfall_host::procstat;

/// Time between two rows at first.
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
    /// Makes the file, or empties an earlier one.
    ///
    /// # Errors
    /// When the directory does not take the file.
    pub fn create(dir: &Path, name: &str, now: Timestamp) -> io::Result<Self> {
        let mut out = File::create(path(dir, name))?;
        out.write_all(b"seconds,resident_bytes,cpu_seconds\n")?;
        Ok(Self { out, start: now, next: now, period: PERIOD, rows: 0 })
    }

    /// Writes a row if it is time; a full disk costs rows, not the run.
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

/// Resident bytes of one process over its run.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct MemoryCurve {
    /// The node.
    pub name: String,
    /// Seconds since its start.
    pub seconds: Vec<f64>,
    /// Resident memory then, bytes.
    pub resident_bytes: Vec<u64>,
}

/// Reads the file of a node; none when there is none. Rows that are cut or damaged are left out.
pub fn read(dir: &Path, name: &str) -> Option<MemoryCurve> {
    let text = std::fs::read_to_string(path(dir, name)).ok()?;
    let mut curve =
        MemoryCurve { name: name.to_owned(), seconds: Vec::new(), resident_bytes: Vec::new() };
    for line in text.lines().skip(1) {
        let mut fields = line.split(',');
        let (Some(seconds), Some(bytes)) = (fields.next(), fields.next()) else { continue };
        if let (Ok(seconds), Ok(bytes)) = (seconds.parse(), bytes.parse()) {
            curve.seconds.push(seconds);
            curve.resident_bytes.push(bytes);
        }
    }
    Some(curve)
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
        let curve = read(dir.path(), "root").unwrap();
        assert!((14_000..20_000).contains(&curve.seconds.len()), "{}", curve.seconds.len());
        assert_eq!(curve.seconds[..3], [0.0, 1.0, 2.0]);
        assert!(*curve.seconds.last().unwrap() > 86_350.0);
        assert!(curve.resident_bytes.iter().all(|bytes| *bytes > 0));
        assert!(read(dir.path(), "nobody").is_none());
    }
}
