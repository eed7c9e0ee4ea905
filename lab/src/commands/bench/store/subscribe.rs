//! How far readers are behind the appends: a subscriber, and beside it a reader that polls.
//!
//! Appends of one client leave at a fixed rate. Two readers of the same file run meanwhile, each
//! with a connection and a thread: one is pushed the records, the other asks ten times a second, as
//! `tail --follow` did before there were subscriptions. An append is received when its last record
//! is. The reader is behind by the time from the acknowledgement of the append to that moment, and
//! by nothing when the records came first.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenfall_store_engine::Client;
use serde_json::{Value, json};

use super::remote::{Served, due};
use super::{Args, Failure, times_us};

/// How often the reader that polls asks.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// How long a reader may take for the last records.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a reader looks whether all appends are made.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Records in all, before all are appended.
const UNKNOWN: u64 = u64::MAX;

/// The appends, in order.
#[derive(Default)]
struct AppendTimes {
    sent: Vec<Instant>,
    acknowledged: Vec<Instant>,
}

/// When the last record of each append came, in order.
struct Receipts {
    batch: u64,
    next: u64,
    came: Vec<Instant>,
}

impl Receipts {
    fn note(&mut self, end: u64) {
        let now = Instant::now();
        self.next = end;
        while (self.came.len() as u64 + 1) * self.batch <= end {
            self.came.push(now);
        }
    }

    /// Microseconds behind these moments.
    fn behind_us(&self, moments: &[Instant]) -> Value {
        let behind = self.came.iter().zip(moments);
        let behind = behind.map(|(came, at)| came.saturating_duration_since(*at));
        times_us(&mut behind.map(|time| time.as_nanos() as u64).collect::<Vec<_>>())
    }
}

pub(super) fn run(args: &Args, dir: &Path) -> Result<Value, Failure> {
    let rate = args.rate.ok_or("--subscribe needs a --rate")?;
    let served = Served::start(args, dir, 1)?;
    let (subscriber, poller, appender) = (served.connect()?, served.connect()?, served.connect()?);
    let records = AtomicU64::new(UNKNOWN);
    let started = Instant::now();
    let (times, pushed, polled) = std::thread::scope(|scope| {
        let pushed = scope.spawn(|| take_pushed(args, subscriber, &records).map_err(said));
        let polled = scope.spawn(|| poll_new(args, poller, &records).map_err(said));
        let times = append_at_rate(args, rate, appender);
        // Readers of a run that failed end too.
        let taken = times.as_ref().map_or(0, |times| times.acknowledged.len() * args.batch);
        records.store(taken as u64, Relaxed);
        let joined = |reader: std::thread::ScopedJoinHandle<'_, Result<Receipts, String>>| {
            reader.join().map_err(|_| "a reader panicked".to_owned()).flatten()
        };
        (times, joined(pushed), joined(polled))
    });
    let elapsed = started.elapsed().as_secs_f64();
    let (times, pushed, polled) = (times?, pushed?, polled?);
    let behind = pushed.behind_us(&times.acknowledged);
    let polls = polled.behind_us(&times.acknowledged);
    let ratio = |name: &str| {
        let of = |value: &Value| value[name].as_f64().unwrap_or(f64::NAN);
        of(&polls) / of(&behind).max(1.0)
    };
    let ratios = json!({"p50": ratio("p50"), "p99": ratio("p99")});
    let acknowledged = times.sent.iter().zip(&times.acknowledged);
    let mut append_ns: Vec<u64> =
        acknowledged.map(|(sent, done)| (*done - *sent).as_nanos() as u64).collect();
    let taken = records.load(Relaxed) as f64;
    Ok(json!({
        "records": taken, "records_per_s": taken / elapsed,
        "share_of_offered": taken / (rate * args.duration.as_secs_f64()),
        "append_us": times_us(&mut append_ns),
        "behind_us": behind, "behind_send_us": pushed.behind_us(&times.sent),
        "polls_behind_us": polls, "polls_per_s": POLL_EVERY.as_secs_f64().recip(),
        "polls_over_subscription": ratios,
    }))
}

fn said(error: Failure) -> String {
    error.to_string()
}

/// Appends at the rate, and takes each acknowledgement as it comes.
fn append_at_rate(args: &Args, rate: f64, mut client: Client) -> Result<AppendTimes, Failure> {
    let file = client.open("s0")?;
    let size = usize::from(args.record_bytes);
    let mut batch = vec![0u8; args.batch * size];
    let (mut clock, mut turn, mut times) = (0i64, 0, AppendTimes::default());
    let started = Instant::now();
    while started.elapsed() < args.duration {
        for record in batch.chunks_exact_mut(size) {
            clock += 1;
            record[..8].copy_from_slice(&clock.to_le_bytes());
        }
        let due = started + due(args, rate, turn);
        // An appender that is late takes what has come before it sends. An acknowledgement that
        // waited would be stamped late, and the readers would seem to be nearer than they are.
        while let Some(completion) = client.completion_until(due)? {
            completion.first?;
            times.acknowledged.push(Instant::now());
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        times.sent.push(Instant::now());
        client.append(&file, &batch, args.ack)?;
        client.flush()?;
        turn += 1;
    }
    while let Some(completion) = client.completion()? {
        completion.first?;
        times.acknowledged.push(Instant::now());
    }
    Ok(times)
}

fn take_pushed(args: &Args, mut client: Client, records: &AtomicU64) -> Result<Receipts, Failure> {
    let mut receipts = Receipts { batch: args.batch as u64, next: 0, came: Vec::new() };
    let file = client.open("s0")?;
    let subscription = client.subscribe_to(&file, 0)?;
    let mut waited_since = Instant::now();
    while receipts.next < records.load(Relaxed) {
        let pushed = client.next_batch(subscription, Instant::now() + LOOK_EVERY)?;
        if let Some(pushed) = pushed {
            let count = pushed.records.len() as u64 / u64::from(args.record_bytes);
            receipts.note(pushed.first + count);
            waited_since = Instant::now();
        } else if waited_since.elapsed() > PATIENCE {
            return Err("nothing is pushed".into());
        }
    }
    Ok(receipts)
}

fn poll_new(args: &Args, mut client: Client, records: &AtomicU64) -> Result<Receipts, Failure> {
    let mut receipts = Receipts { batch: args.batch as u64, next: 0, came: Vec::new() };
    let file = client.open("s0")?;
    let mut waited_since = Instant::now();
    while receipts.next < records.load(Relaxed) {
        let end = client.size(&file)?.end;
        if end > receipts.next {
            client.numbers(&file, receipts.next..end)?;
            receipts.note(end);
            waited_since = Instant::now();
        } else if waited_since.elapsed() > PATIENCE {
            return Err("nothing is read".into());
        }
        std::thread::sleep(POLL_EVERY);
    }
    Ok(receipts)
}
