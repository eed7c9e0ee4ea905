//! Figures 5.8 and 5.9: bursts until the local disk is full, and back.
//!
//! | figure | why the disk fills | how it ends |
//! |---|---|---|
//! | 5.8 | the bucket has its limit of bytes, and takes no more | the bucket takes more again |
//! | 5.9 | uploads are slower than the appends | the appends end |
//!
//! The objects are a directory. A bucket that takes no more is a directory that is not there, so
//! it refuses reads too, which this load does not make. The thesis has 200 files and 800 clients,
//! 2 million records of 64 bytes a second and bursts of 4.5 million; a tenth of its rate is the
//! default here.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenfall_runtime::program::Outcome;
use serde_json::{Value, json};

use super::super::remote::{Served, append_all};
use super::super::{Args, Failure, times_us};
use super::{Column, print_table};

/// Why the disk fills.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    FullBucket,
    SlowUploads,
}

/// Records a second in the mean where no rate is given: four fifths of the time a tenth of 2
/// million, and one fifth a tenth of 4.5 million, make .25 million.
const RATE: f64 = 250_000.0;
/// Limit of the local disk: twenty chunks as they are appended.
const LOCAL_BYTES: u64 = 80 << 20;
/// Bytes of objects at which the bucket takes no more.
const BUCKET_BYTES: u64 = 80 << 20;
/// Bytes that are uploaded in a second, about half of what the default rate makes in columns.
const UPLOAD_BYTES_PER_S: u64 = 4_000_000;
/// How long appends are refused before the bucket takes more: less than the ten seconds after
/// which the server gives an append up.
const FULL_FOR: Duration = Duration::from_secs(3);
/// How long the stages may take to be empty after the appends.
const PATIENCE: Duration = Duration::from_secs(300);

const COLUMNS: [Column; 12] = [
    Column { head: "s", path: "/s", unit: 1.0, digits: 0 },
    Column { head: "appended, M/s", path: "/appended_per_s", unit: 1e6, digits: 2 },
    Column { head: "p50 ms", path: "/append_us/p50", unit: 1e3, digits: 1 },
    Column { head: "p99 ms", path: "/append_us/p99", unit: 1e3, digits: 1 },
    Column { head: "refused", path: "/refused", unit: 1.0, digits: 0 },
    Column { head: "resident MiB", path: "/resident_bytes", unit: 1_048_576.0, digits: 0 },
    Column { head: "memory MiB", path: "/memory_bytes", unit: 1_048_576.0, digits: 0 },
    Column { head: "cache MiB", path: "/cache_bytes", unit: 1_048_576.0, digits: 0 },
    Column { head: "local MiB", path: "/local_bytes", unit: 1_048_576.0, digits: 0 },
    Column { head: "chunks to upload", path: "/upload_chunks", unit: 1.0, digits: 0 },
    Column { head: "uploaded MB/s", path: "/uploaded_bytes_per_s", unit: 1e6, digits: 1 },
    Column { head: "bucket MiB", path: "/bucket_bytes", unit: 1_048_576.0, digits: 0 },
];

pub(super) fn main(args: &Args, cause: Cause) -> Outcome {
    let dir = args.fresh(0);
    std::fs::create_dir_all(&dir)?;
    let upload_bytes_per_s = match cause {
        Cause::FullBucket => args.upload_bytes_per_s,
        Cause::SlowUploads => Some(args.upload_bytes_per_s.unwrap_or(UPLOAD_BYTES_PER_S)),
    };
    let args = &Args {
        burst: true,
        rate: Some(args.rate.unwrap_or(RATE)),
        no_objects: false,
        objects: Some(dir.join("objects").display().to_string()),
        local_bytes: Some(args.local_bytes.unwrap_or(LOCAL_BYTES)),
        upload_bytes_per_s,
        ..args.clone()
    };
    let measured = measure_stages(args, cause, &dir);
    std::fs::remove_dir_all(&dir)?;
    let value = measured?;
    match args.json {
        true => say!("{value}"),
        false => print_stages(&value),
    }
    Ok(())
}

/// The directory of the objects, which is away while the bucket takes nothing.
struct LimitedBucket {
    objects: PathBuf,
    away: PathBuf,
    bytes_max: Option<u64>,
    /// Seconds of the run at which the bucket was full, and at which it took more.
    full_at_s: Option<f64>,
    room_at_s: Option<f64>,
}

impl LimitedBucket {
    fn is_full(&self) -> bool {
        self.full_at_s.is_some() && self.room_at_s.is_none()
    }

    /// Bytes of all objects.
    fn sum_bytes(&self) -> u64 {
        let place = if self.is_full() { &self.away } else { &self.objects };
        let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
    }

    /// Takes no more at its limit, and more again when it may.
    fn keep_limit(&mut self, bytes: u64, may_grow: bool, now_s: f64) -> std::io::Result<()> {
        if self.is_full() {
            if may_grow {
                std::fs::rename(&self.away, &self.objects)?;
                self.room_at_s = Some(now_s);
            }
        } else if self.full_at_s.is_none() && self.bytes_max.is_some_and(|max| bytes >= max) {
            std::fs::rename(&self.objects, &self.away)?;
            self.full_at_s = Some(now_s);
        }
        Ok(())
    }
}

/// What was seen of the server and its bucket at one moment.
struct SeenStages {
    second: usize,
    stages: Value,
    resident_bytes: u64,
    bucket_bytes: u64,
}

impl SeenStages {
    fn number_of(&self, stage: &str) -> u64 {
        self.stages[stage].as_u64().unwrap_or(0)
    }
}

fn measure_stages(args: &Args, cause: Cause, dir: &Path) -> Result<Value, Failure> {
    let served = Served::start(args, &dir.join("store"), args.streams)?;
    let bytes_max = args.bucket_bytes.unwrap_or(BUCKET_BYTES);
    let mut bucket = LimitedBucket {
        objects: dir.join("objects"),
        away: dir.join("away"),
        bytes_max: (cause == Cause::FullBucket).then_some(bytes_max),
        full_at_s: None,
        room_at_s: None,
    };
    let (started, is_over) = (Instant::now(), AtomicBool::new(false));
    let (appended, seen) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let seen = watch_stages(&served, &mut bucket, started, &is_over);
            seen.map_err(|error| error.to_string())
        });
        let appended = append_all(args, &served).map(|appended| (appended, Instant::now()));
        is_over.store(true, Relaxed);
        (appended, watcher.join().map_err(|_| "the watcher of the stages ended early"))
    });
    let (mut appended, ended) = appended?;
    let seen = seen??;
    appended.publish_all(args)?;
    let back_after_s = ended.elapsed().as_secs_f64();
    let mut times = appended.times_by_second();
    let curve = rows_by_second(args, &seen, &mut times);
    let refused = curve.iter().filter(|row| row["refused"].as_u64() > Some(0));
    let refused_s: Vec<&Value> = refused.map(|row| &row["s"]).collect();
    Ok(json!({
        "records": appended.records(args), "offered_per_s": args.rate,
        "append_us": times_us(&mut times.concat()),
        "refused": seen.last().map_or(0, |last| last.number_of("refused")),
        "failed_appends": appended.failed_appends(),
        "bucket_full_at_s": bucket.full_at_s, "bucket_room_at_s": bucket.room_at_s,
        "first_refused_s": refused_s.first(), "last_refused_s": refused_s.last(),
        "appends_end_s": ended.duration_since(started).as_secs_f64(),
        "back_after_s": back_after_s,
        "resident_bytes_max": served.number_of_process("status", "VmHWM:")? << 10,
        "curve": curve,
    }))
}

/// Looks at the stages, and keeps the limit of the bucket, until the appends are over and nothing
/// waits for the disk or the bucket.
fn watch_stages(
    served: &Served,
    bucket: &mut LimitedBucket,
    started: Instant,
    is_over: &AtomicBool,
) -> Result<Vec<SeenStages>, Failure> {
    let mut all = Vec::new();
    let (mut refused_at, mut over_at): (Option<Instant>, Option<Instant>) = (None, None);
    loop {
        let was_over = is_over.load(Relaxed);
        let seen = SeenStages {
            stages: served.sample()?,
            second: started.elapsed().as_secs() as usize,
            resident_bytes: served.number_of_process("status", "VmRSS:")? << 10,
            bucket_bytes: bucket.sum_bytes(),
        };
        let now = Instant::now();
        if seen.number_of("refused") > 0 {
            refused_at = refused_at.or(Some(now));
        }
        if was_over && now.duration_since(*over_at.get_or_insert(now)) > PATIENCE {
            return Err("the objects lack chunks five minutes after the appends".into());
        }
        let was_full = bucket.is_full();
        let is_long = refused_at.is_some_and(|at| now.duration_since(at) >= FULL_FOR);
        let now_s = now.duration_since(started).as_secs_f64();
        bucket.keep_limit(seen.bucket_bytes, was_over || is_long, now_s)?;
        let stages = ["memory_bytes", "encode_chunks", "upload_chunks"];
        let is_empty = stages.iter().all(|stage| seen.number_of(stage) == 0);
        all.push(seen);
        if was_over && is_empty && !was_full && !bucket.is_full() {
            return Ok(all);
        }
    }
}

/// The rates, the times and the stages in each second.
fn rows_by_second(args: &Args, seen: &[SeenStages], times: &mut [Vec<u64>]) -> Vec<Value> {
    let (mut rows, mut refused, mut stored) = (Vec::new(), 0, 0);
    for second in 0..seen.last().map_or(0, |last| last.second + 1) {
        let Some(at) = seen.iter().rfind(|one| one.second <= second) else { continue };
        let appends = times.get(second).map_or(0, Vec::len);
        let all_refused = at.number_of("refused");
        rows.push(json!({
            "s": second, "appended_per_s": appends * args.batch,
            "append_us": times.get_mut(second).map(|times| times_us(times)),
            "refused": all_refused - refused, "resident_bytes": at.resident_bytes,
            "memory_bytes": at.number_of("memory_bytes") + at.number_of("held_bytes"),
            "cache_bytes": at.number_of("cache_bytes"), "local_bytes": at.number_of("local_bytes"),
            "upload_chunks": at.number_of("upload_chunks"),
            "uploaded_bytes_per_s": at.bucket_bytes.saturating_sub(stored),
            "bucket_bytes": at.bucket_bytes,
        }));
        (refused, stored) = (all_refused, at.bucket_bytes);
    }
    rows
}

fn print_stages(value: &Value) {
    let of = |name: &str| match value[name].as_f64() {
        Some(number) => format!("{number:.1}"),
        None => "-".to_owned(),
    };
    say!(
        "{:.2} M records/s offered in the mean, twice that in one second of five\n",
        value["offered_per_s"].as_f64().unwrap_or(0.0) / 1e6
    );
    print_table(&COLUMNS, value["curve"].as_array().map_or(&[][..], Vec::as_slice));
    say!(
        "\nbucket full at {} s, with room again at {} s\nappends refused from second {} to {}, {} \
         given up\nall records are objects {} s after the appends, which end at {} s",
        of("bucket_full_at_s"),
        of("bucket_room_at_s"),
        of("first_refused_s"),
        of("last_refused_s"),
        of("failed_appends"),
        of("back_after_s"),
        of("appends_end_s")
    );
}
