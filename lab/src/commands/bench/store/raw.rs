//! The rate that the disk gives to a program that only writes one file.

use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Args, Failure};

/// Bytes that one way of writing writes at most.
const BYTES_MAX: u64 = 2 << 30;

/// Records per second of a raw file, synced in three ways: after each batch, after as many bytes as
/// the store may have under way, and once at the end.
pub(super) fn run(args: &Args, duration: Duration) -> Result<Value, Failure> {
    let batch = (args.batch * usize::from(args.record_bytes)) as u64;
    let window = args.window_bytes().div_ceil(batch) * batch;
    Ok(json!({
        "each_batch": write(args, duration, batch)?,
        "each_window": write(args, duration, window)?,
        "once": write(args, duration, u64::MAX)?,
    }))
}

fn write(args: &Args, duration: Duration, sync_bytes: u64) -> Result<f64, Failure> {
    let path = args.dir.join(format!("evenfall-bench-raw-{}", std::process::id()));
    let mut file = File::create(&path)?;
    let size = usize::from(args.record_bytes);
    let mut batch = vec![0u8; args.batch * size];
    let (mut clock, mut written, mut synced) = (0i64, 0u64, 0u64);
    let started = Instant::now();
    while started.elapsed() < duration && written < BYTES_MAX {
        for record in batch.chunks_exact_mut(size) {
            clock += 1;
            record[..8].copy_from_slice(&clock.to_le_bytes());
        }
        file.write_all(&batch)?;
        written += batch.len() as u64;
        if written - synced >= sync_bytes {
            file.sync_data()?;
            synced = written;
        }
    }
    file.sync_data()?;
    let elapsed = started.elapsed();
    std::fs::remove_file(&path)?;
    Ok((written / size as u64) as f64 / elapsed.as_secs_f64())
}
