//! Appends over loopback, with a server in its own process and client threads in this process.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evenfall_host::process;
use evenfall_host::procstat::number_after;
use evenfall_store_engine::{
    AppendCompletion, Client, ConnectOptions, RemoteFile, Store, StoreAckLevel, StoreConfig,
    StoreError, read_user_key,
};
use evenfall_store_format::Schema;
use serde_json::{Value, json};

use super::disk_limit::DiskLimit;
use super::ticks::Ticks;
use super::{Args, Failure, median, percentile, times_us};
use crate::product;

/// How long records may take to leave the memory, and chunks to leave for the objects.
const SETTLE_PATIENCE: Duration = Duration::from_secs(600);

/// Appends whose start is remembered: more than a server allows under way.
const STARTS: usize = 1 << 16;
/// How long a server may take to print a line.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the server prints the sizes of its stages.
const SAMPLE_EVERY: &str = "100ms";

/// The sizes that the server printed at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) stages: Value,
}

/// A server process, which ends when this value is dropped.
pub(super) struct Served {
    child: Child,
    address: String,
    /// The file of the key with which clients connect.
    key: Option<PathBuf>,
    samples: Arc<Mutex<Vec<Sample>>>,
    /// The second node, for which `replica` waits.
    copy: Option<Box<Served>>,
    /// Dropped after the process has ended.
    disk_limit: Option<DiskLimit>,
}

impl Served {
    /// Makes the files in this process, where one commit makes all of them, and serves them.
    pub(super) fn start(args: &Args, dir: &Path, streams: usize) -> Result<Self, Failure> {
        let mut config = StoreConfig::new(dir);
        // The directory remembers a place that is not below it from its first files on.
        config.objects = args.objects.clone();
        let store = Store::open(config)?.store;
        let schema = Schema::opaque(args.record_bytes);
        let wanted: Vec<_> = (0..streams).map(|n| (format!("s{n}"), schema.clone())).collect();
        store.create_all(&wanted)?;
        store.close()?;
        if !args.ack.waits().iter().any(|wait| wait.needs_second_node()) {
            return Self::spawn(args, dir, None);
        }
        std::fs::create_dir_all(dir.join("copy"))?;
        // The second node has objects of its own.
        let of_copy = Args { objects: None, ..args.clone() };
        let copy = Self::spawn(&of_copy, &dir.join("copy"), None)?;
        let served = Self::spawn(args, dir, Some(copy))?;
        let end = Instant::now() + PATIENCE;
        while served.sample()?["is_replica_away"] != json!(false) {
            if Instant::now() > end {
                return Err("the second node does not answer the first".into());
            }
        }
        Ok(served)
    }

    pub(super) fn spawn(args: &Args, dir: &Path, copy: Option<Self>) -> Result<Self, Failure> {
        Self::spawn_with(args, dir, copy, &[])
    }

    /// Serves a directory, with further arguments of the server.
    pub(super) fn spawn_with(
        args: &Args,
        dir: &Path,
        copy: Option<Self>,
        more: &[&str],
    ) -> Result<Self, Failure> {
        let mut command = Command::new(product::program());
        command.args(["store", "serve", "--listen", "127.0.0.1:0"]).arg(dir);
        command.args(["--occupancy-every", SAMPLE_EVERY]).args(more);
        command.args(["--memory-bytes", &args.memory_bytes.to_string()]);
        command.args(["--cache-bytes", &args.cache_bytes.to_string()]);
        let limits = [
            ("--keep-bytes", args.keep_bytes),
            ("--local-bytes", args.local_bytes),
            ("--upload-bytes-per-s", args.upload_bytes_per_s),
        ];
        for (name, bytes) in limits {
            bytes.iter().for_each(|bytes| {
                command.args([name, &bytes.to_string()]);
            });
        }
        if let Some(place) = &args.objects {
            command.args(["--objects", place]);
        } else if args.no_objects {
            command.arg("--no-objects");
        }
        if let Some(copy) = &copy {
            command.args(["--replica", &copy.address]);
            copy.key.iter().for_each(|key| {
                command.arg("--replica-key").arg(key);
            });
        }
        let key = if args.sealed { Some(make_user(dir, &mut command)?) } else { None };
        process::end_with_parent(&mut command, process::Signal::Kill);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().ok_or("the server has no output")?;
        let mut lines = BufReader::new(out).lines();
        let line = lines.next().transpose()?.unwrap_or_default();
        let address = line.trim().strip_prefix("serving tcp://").map(str::to_owned);
        let address = address.ok_or_else(|| format!("the server did not start: {line}"))?;
        let samples = Arc::<Mutex<Vec<Sample>>>::default();
        let kept = Arc::clone(&samples);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Ok(stages) = serde_json::from_str(&line) {
                    let sample = Sample { at: Instant::now(), stages };
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
                }
            }
        });
        let copy = copy.map(Box::new);
        let mut served = Self { child, address, key, samples, copy, disk_limit: None };
        if let Some(bytes_per_s) = args.disk_bytes_per_s {
            let limit = DiskLimit::put_on(served.child.id(), dir, bytes_per_s)?;
            served.disk_limit = Some(limit);
        }
        Ok(served)
    }

    pub(super) fn connect(&self) -> Result<Client, Failure> {
        let key = self.key.as_deref().map(read_user_key).transpose()?;
        Ok(Client::connect_with(self.address.parse()?, &ConnectOptions::with_key(key))?)
    }

    /// A number that the kernel tells of the server in a file of `/proc`.
    pub(super) fn number_of_process(&self, file: &str, key: &str) -> Result<u64, Failure> {
        let file = format!("/proc/{}/{file}", self.child.id());
        Ok(number_after(&file, key).ok_or_else(|| format!("{file} has no number {key}"))?)
    }

    /// Waits until nothing is in these stages, and returns the seconds.
    pub(super) fn wait_for_empty(&self, stages: &[&str]) -> Result<f64, Failure> {
        let begun = Instant::now();
        while begun.elapsed() < SETTLE_PATIENCE {
            let sample = self.sample()?;
            if stages.iter().all(|stage| sample[*stage] == 0) {
                return Ok(begun.elapsed().as_secs_f64());
            }
        }
        Err(format!("{} are not empty after ten minutes", stages.join(" and ")).into())
    }

    /// The next sample of the server, taken after this call.
    pub(super) fn sample(&self) -> Result<Value, Failure> {
        let from = Instant::now();
        while from.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
            if let Some(sample) = self.samples(from, Instant::now()).first() {
                return Ok(sample.stages.clone());
            }
        }
        Err("the server says nothing".into())
    }

    /// The server's samples between two moments.
    pub(super) fn samples(&self, from: Instant, to: Instant) -> Vec<Sample> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.iter().filter(|sample| (from..to).contains(&sample.at)).cloned().collect()
    }
}

/// Makes a user who may do everything with a server, and tells the server. Returns the file of the
/// key.
fn make_user(dir: &Path, server: &mut Command) -> Result<PathBuf, Failure> {
    let (users, key) = (dir.join("users.toml"), dir.join("bench.key"));
    let mut command = Command::new(product::program());
    command.args(["store", "user", "new", "bench", "--read", "", "--append", "", "--create", ""]);
    command.args(["--admin", "", "--users"]).arg(&users).arg("--out").arg(&key);
    let made = command.stdout(Stdio::null()).status()?;
    if !made.success() {
        return Err(format!("evenfall store user new: {made}").into());
    }
    server.arg("--users").arg(&users);
    Ok(key)
}

impl Drop for Served {
    fn drop(&mut self) {
        // The copy's contents are not needed any more.
        self.copy = None;
        process::send(self.child.id(), process::Signal::Kill);
        let _ = self.child.wait();
    }
}

/// The appends under way, and the results of finished ones.
struct Flow {
    started: Instant,
    /// When each append was due, and its file.
    starts: Vec<(Instant, usize)>,
    times_ns: Vec<u64>,
    /// Milliseconds of the run at which each of these appends was acknowledged.
    done_ms: Vec<u32>,
    /// Bytes under way.
    bytes: u64,
    records: u64,
    /// Records that were offered.
    offered: u64,
    /// Appends that the server gave up after ten seconds of refusals, and the appends behind them.
    failed: u64,
    /// Files that must be opened again after a failure.
    stopped: BTreeSet<usize>,
}

/// Pause before a file that takes no appends is opened again.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether a stage at its limit refused the append, or an append before it. Such an append is tried
/// again.
pub(super) fn is_refusal(error: &StoreError) -> bool {
    error.is_retryable() || error.to_string().contains("open it again")
}

impl Flow {
    fn done(&mut self, completion: AppendCompletion, bytes: u64) -> Result<(), Failure> {
        let (begun, file) = self.starts[completion.request as usize % STARTS];
        self.bytes -= bytes;
        match completion.first {
            Ok(_) => {
                let now = Instant::now();
                self.times_ns.push(now.saturating_duration_since(begun).as_nanos() as u64);
                self.done_ms.push(now.duration_since(self.started).as_millis() as u32);
            }
            Err(error) if is_refusal(&error) => {
                self.failed += 1;
                self.stopped.insert(file);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Records that were taken.
    fn taken(&self, batch: usize) -> u64 {
        self.records - self.failed * batch as u64
    }
}

/// What a server took.
pub(super) struct Appended {
    client: Client,
    files: Vec<RemoteFile>,
    flow: Flow,
    started: Instant,
    elapsed: Duration,
}

impl Appended {
    /// Records that were acknowledged.
    pub(super) fn records(&self, args: &Args) -> u64 {
        self.flow.taken(args.batch)
    }

    /// Appends that the server gave up, and the appends behind them.
    pub(super) fn failed_appends(&self) -> u64 {
        self.flow.failed
    }

    /// The nanoseconds of the appends that were acknowledged in each second of the run.
    pub(super) fn times_by_second(&self) -> Vec<Vec<u64>> {
        let mut seconds = Vec::<Vec<u64>>::new();
        for (time_ns, done_ms) in self.flow.times_ns.iter().zip(&self.flow.done_ms) {
            let second = *done_ms as usize / 1_000;
            seconds.resize_with(seconds.len().max(second + 1), Vec::new);
            seconds[second].push(*time_ns);
        }
        seconds
    }

    /// Appends one more record to each file, and waits until these records are objects. All
    /// records before them are objects then.
    pub(super) fn publish_all(&mut self, args: &Args) -> Result<(), Failure> {
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as i64;
        let mut record = vec![0; usize::from(args.record_bytes)];
        record[..8].copy_from_slice(&now_ns.to_le_bytes());
        for (n, file) in self.files.iter().enumerate() {
            // A file with a failed append takes no other before it is opened again.
            self.client.open(&format!("s{n}"))?;
            self.client.append(file, &record, StoreAckLevel::Object)?;
        }
        while let Some(completion) = self.client.completion()? {
            completion.first?;
        }
        Ok(())
    }
}

/// Appends to the files of a server for the duration of the arguments.
pub(super) fn append_all(args: &Args, served: &Served) -> Result<Appended, Failure> {
    let mut client = served.connect()?;
    let open = |n| client.open(&format!("s{n}"));
    let files: Vec<RemoteFile> = (0..args.streams).map(open).collect::<Result<_, _>>()?;
    let started = Instant::now();
    let mut flow = Flow {
        started,
        starts: vec![(started, 0); STARTS],
        times_ns: Vec::new(),
        done_ms: Vec::new(),
        bytes: 0,
        records: 0,
        offered: 0,
        failed: 0,
        stopped: BTreeSet::new(),
    };
    let elapsed = append(args, &mut client, &files, &mut flow)?;
    Ok(Appended { client, files, flow, started, elapsed })
}

pub(super) fn run(args: &Args, dir: &Path) -> Result<Value, Failure> {
    let served = Served::start(args, dir, args.streams)?;
    let appended = append_all(args, &served)?;
    let uploaded = || served.wait_for_empty(&["upload_chunks", "memory_bytes"]);
    let upload_lag_s = (!args.no_objects).then(uploaded).transpose()?;
    let taken = appended.records(args);
    let Appended { mut client, files, mut flow, started, elapsed } = appended;
    let samples = served.samples(started, started + elapsed);
    let rate = taken as f64 / elapsed.as_secs_f64();
    let mut value = json!({
        "records": taken, "records_per_s": rate, "append_us": times_us(&mut flow.times_ns),
        "failed_appends": flow.failed,
        "range_10k_us": ranges(&mut client, &files[0])?,
        "flush_lag": lag(&samples, rate * f64::from(args.record_bytes)),
    });
    let written = served.sample()?["written"].take();
    let parts = written.as_object().into_iter().flat_map(|parts| parts.values());
    let bytes: u64 = parts.filter_map(Value::as_u64).sum();
    let appended = taken.max(1) * u64::from(args.record_bytes);
    value["written_per_byte"] = json!(bytes as f64 / appended as f64);
    value["written"] = written;
    value["upload_lag_s"] = json!(upload_lag_s);
    value["resident_bytes_max"] = json!(served.number_of_process("status", "VmHWM:")? << 10);
    if args.rate.is_some() {
        value["share_of_offered"] = json!(taken as f64 / flow.offered.max(1) as f64);
    }
    if args.burst {
        value["curve"] = curve(&samples, started);
    }
    Ok(value)
}

/// When an append of the schedule is due. In bursts, the first second of five has twice the rate
/// and the others three quarters of it, so the mean is the rate.
pub(super) fn due(args: &Args, rate: f64, turn: u64) -> Duration {
    let records = turn as f64 * args.batch as f64;
    if !args.burst {
        return Duration::from_secs_f64(records / rate);
    }
    let (rounds, rest) = ((records / (5.0 * rate)).floor(), records % (5.0 * rate));
    let within = match rest < 2.0 * rate {
        true => rest / (2.0 * rate),
        false => 1.0 + (rest - 2.0 * rate) / (0.75 * rate),
    };
    Duration::from_secs_f64(rounds * 5.0 + within)
}

fn append(
    args: &Args,
    client: &mut Client,
    files: &[RemoteFile],
    flow: &mut Flow,
) -> Result<Duration, Failure> {
    let size = usize::from(args.record_bytes);
    let mut batch = vec![0u8; args.batch * size];
    let (bytes, window) = (batch.len() as u64, args.window_bytes());
    let (mut ticks, mut turn) = (Ticks::new(args.record_bytes), 0);
    let started = Instant::now();
    while started.elapsed() < args.duration {
        ticks.fill_batch(&mut batch);
        let due = args.rate.map(|rate| started + due(args, rate, turn));
        while let Some(due) = due.filter(|due| Instant::now() < *due) {
            match client.completion_until(due)? {
                Some(completion) => flow.done(completion, bytes)?,
                None => std::thread::sleep(due.saturating_duration_since(Instant::now())),
            }
        }
        // The time of an append counts from its due time, also when the append was sent late
        // because no room was left.
        let begun = due.unwrap_or_else(Instant::now);
        let file = turn as usize % files.len();
        if flow.stopped.remove(&file) {
            // The earlier appends still fail, and their answers come before this one's.
            std::thread::sleep(PAUSE);
            client.open(&format!("s{file}"))?;
        }
        let request = client.append(&files[file], &batch, args.ack)?;
        flow.starts[request as usize % STARTS] = (begun, file);
        flow.records += args.batch as u64;
        flow.bytes += bytes;
        turn += 1;
        while flow.bytes > window {
            let Some(completion) = client.completion()? else { break };
            flow.done(completion, bytes)?;
        }
        while let Some(completion) = client.completed() {
            flow.done(completion, bytes)?;
        }
    }
    while let Some(completion) = client.completion()? {
        flow.done(completion, bytes)?;
    }
    let elapsed = started.elapsed();
    flow.offered = args.rate.map_or(0.0, |rate| rate * args.duration.as_secs_f64()) as u64;
    Ok(elapsed)
}

/// How far the disk was behind: in bytes that no synced chunk had, and in seconds at the run's
/// rate. The lag grows when its last quarter exceeds its second quarter by more than half and by 32
/// MiB.
fn lag(samples: &[Sample], bytes_per_s: f64) -> Value {
    let bytes = |sample: &Sample| sample.stages["memory_bytes"].as_f64().unwrap_or(0.0);
    let all: Vec<f64> = samples.iter().map(bytes).collect();
    let quarter = all.len() / 4;
    let part = |range: std::ops::Range<usize>| median(all[range].to_vec());
    let (early, late) = match quarter {
        0 => (f64::NAN, f64::NAN),
        _ => (part(quarter..2 * quarter), part(all.len() - quarter..all.len())),
    };
    let most = all.iter().fold(0.0, |most: f64, bytes| most.max(*bytes));
    let half = median(all.clone());
    let refused = samples.last().map_or(0.0, |s| s.stages["refused"].as_f64().unwrap_or(0.0));
    let grows = late > 1.5 * early + f64::from(32 << 20);
    json!({
        "samples": all.len(), "memory_mib": {
            "p50": half / 1_048_576.0, "max": most / 1_048_576.0,
            "second_quarter": early / 1_048_576.0, "last_quarter": late / 1_048_576.0,
        },
        "seconds": {"p50": half / bytes_per_s, "max": most / bytes_per_s},
        "grows": f64::from(u8::from(grows)), "refused_and_tried_again": refused,
    })
}

/// Sizes of the stages over time, one row per second.
fn curve(samples: &[Sample], started: Instant) -> Value {
    let mut rows = Vec::new();
    for sample in samples {
        let second = sample.at.duration_since(started).as_secs();
        if second < rows.len() as u64 {
            continue;
        }
        let mib = |name: &str| sample.stages[name].as_f64().unwrap_or(0.0) / 1_048_576.0;
        rows.push(json!({
            "s": second, "memory_mib": mib("memory_bytes"), "cache_mib": mib("cache_bytes"),
            "local_mib": mib("local_bytes"), "upload_chunks": sample.stages["upload_chunks"],
            "refused": sample.stages["refused"],
        }));
    }
    Value::Array(rows)
}

/// Median time of reading the last 10,000 records.
fn ranges(client: &mut Client, file: &RemoteFile) -> Result<f64, Failure> {
    let end = client.size(file)?.end;
    let first = client.record(file, end.saturating_sub(10_000))?;
    let from = evenfall_store_format::layout::record_time(&first);
    let mut times = Vec::new();
    for _ in 0..101 {
        let begun = Instant::now();
        client.between(file, from, i64::MAX)?;
        times.push(begun.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    Ok(percentile(&times, 0.5))
}
