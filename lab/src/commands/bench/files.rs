//! `evenfall bench files`: how fast replicated files are written and read over loopback, beside
//! bytes that the kernel moves from a file to a socket (`sendfile`).
//!
//! ```text
//!  raw get   file ─ sendfile ─> TCP ─> reader that drops the bytes
//!  raw put   file ─ sendfile ─> TCP ─> reader that writes a file, and syncs it or not
//!  get, put  the same file by the client of `evenfall files`
//! ```
//!
//! The client of both sides runs in this process. Other servers of WebHDFS are measured by the same
//! client (`--server`). `--lab` measures policies of bulk reads instead ([`fabric`]).

mod fabric;

use std::fs::File;
use std::io::{self, Cursor, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenfall_core::Prng;
use evenfall_files_service::{BytesSource, FilesClient};
use evenfall_host::{ports, process, procstat};
use evenfall_runtime::program::Outcome;
use serde_json::{Map, Value, json};

use super::medians;
use crate::product;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long servers may take to start, and how long a request is tried again.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes that the reader of the raw transfer takes at once.
const PIECE_BYTES: usize = 256 << 10;
/// The directory of the servers' files.
const FOLDER: &str = "/bench";

/// Arguments of `evenfall bench files`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Number of dataservers on this machine, each of which keeps a copy of every file.
    #[arg(long, default_value_t = 1)]
    copies: u16,
    /// Bytes of a large file.
    #[arg(long, default_value_t = 64_000_000)]
    bytes: usize,
    /// Large files that are written and read in each round.
    #[arg(long, default_value_t = 5)]
    files: usize,
    /// Files of 1,000 bytes that are written and read in each round; 0 leaves them out.
    #[arg(long, default_value_t = 1_000)]
    small: usize,
    /// Clients that write and read small files at once.
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Number of rounds. The medians are printed.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Directory below which the servers have their files, which are removed afterwards.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Measure another server of WebHDFS, such as 127.0.0.1:9870, instead of servers of our own.
    #[arg(long)]
    server: Option<String>,
    /// The process of the other server, whose processor time is counted.
    #[arg(long, requires = "server")]
    pid: Option<u32>,
    /// The name of the user who asks, by default the user of this process.
    #[arg(long, default_value_t = evenfall_files_service::user_of_environment())]
    user: String,
    /// Print one JSON object; with --lab one for each policy.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    fabric: fabric::Args,
}

/// Servers of our own, which end when this value is dropped, or those of another program.
struct Servers {
    child: Option<Child>,
    address: String,
    pids: Vec<u32>,
}

impl Drop for Servers {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            process::send(child.id(), process::Signal::Terminate);
            // The exit status of a process that was ended tells nothing.
            drop(child.wait());
        }
    }
}

impl Servers {
    fn start(args: &Args, directory: &Path) -> Result<Self, Failure> {
        if let Some(server) = &args.server {
            let pids = args.pid.into_iter().collect();
            return Ok(Self { child: None, address: server.clone(), pids });
        }
        let count = args.copies + 1;
        let address = ports::consecutive(Ipv4Addr::LOCALHOST.into(), count)?.to_string();
        let mut command = Command::new(product::program());
        command.args(["run", "files", "--local"]).arg(args.copies.to_string());
        command.args(["--webhdfs", &address, "--dir"]).arg(directory.join("servers"));
        process::end_with_parent(&mut command, process::Signal::Terminate);
        let child = command.stdout(Stdio::null()).spawn()?;
        let pid = child.id();
        let mut servers = Self { child: Some(child), address, pids: Vec::new() };
        let client = servers.client(args);
        let end = Instant::now() + PATIENCE;
        let live = |status: &Value| {
            let all = status["dataservers"].as_array().map_or(&[][..], Vec::as_slice);
            all.iter().filter(|one| one["state"] == "live").count()
        };
        while client.report("status").as_ref().map_or(0, live) < usize::from(args.copies) {
            if Instant::now() > end {
                return Err("the dataservers do not start".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        servers.pids = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        Ok(servers)
    }

    fn client(&self, args: &Args) -> FilesClient {
        FilesClient::new(&self.address, &args.user, PATIENCE)
    }

    /// Processor seconds that the servers and this process have taken so far.
    fn cpu(&self) -> Result<f64, Failure> {
        let mut all = procstat::this_process()?.cpu;
        for pid in &self.pids {
            all += procstat::process(*pid)?.cpu;
        }
        Ok(all.as_secs_f64())
    }
}

/// Sends a file by `sendfile` to a reader, which writes it to `to` or drops it. Returns the
/// seconds.
fn raw(from: &Path, to: Option<(&Path, bool)>) -> Result<f64, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || -> Result<(), Failure> {
            let (socket, file) = (TcpStream::connect(address)?, File::open(from)?);
            let length = file.metadata()?.len();
            let mut at = 0;
            while at < length {
                let left = (length - at) as usize;
                if rustix::fs::sendfile(&socket, &file, Some(&mut at), left)? == 0 {
                    return Err("the file has become shorter".into());
                }
            }
            Ok(())
        });
        let (mut socket, _) = listener.accept()?;
        let mut out = to.map(|(path, _)| File::create(path)).transpose()?;
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let len = socket.read(&mut piece)?;
            if len == 0 {
                break;
            }
            if let Some(out) = &mut out {
                out.write_all(&piece[..len])?;
            }
        }
        if let (Some(out), Some((_, true))) = (&out, to) {
            out.sync_data()?;
        }
        sender.join().map_err(|_| "the sender panicked")??;
        Ok(begun.elapsed().as_secs_f64())
    })
}

/// Runs `work`, and returns its seconds and its processor seconds.
fn timed(
    servers: &Servers,
    work: impl FnOnce() -> Result<(), Failure>,
) -> Result<(f64, f64), Failure> {
    let (cpu, begun) = (servers.cpu()?, Instant::now());
    work()?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok((seconds, servers.cpu()? - cpu))
}

/// Calls `work` for each of the small files, from several threads. Each thread has a client.
fn small(
    args: &Args,
    client: &FilesClient,
    work: impl Fn(&FilesClient, &str) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let one = |from: usize| {
            let work = &work;
            scope.spawn(move || {
                (from..args.small)
                    .step_by(args.clients)
                    .try_for_each(|n| work(client, &format!("{FOLDER}/small-{n}")))
            })
        };
        let threads: Vec<_> = (0..args.clients).map(one).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a panic")?)
    })
}

/// A writer that drops all bytes.
struct Dropped;

impl io::Write for Dropped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One round: the rates of all ways.
fn round(
    args: &Args,
    servers: &Servers,
    local: &Path,
    scratch: &Path,
) -> Result<Map<String, Value>, Failure> {
    let client = servers.client(args);
    let (megabytes, copies) = (args.bytes as f64 / 1e6, Some(args.copies));
    let (mut rates, all) = (Map::new(), args.files as f64 * megabytes);
    let raw_ways = [
        ("raw_get_mb_s", None),
        ("raw_put_unsynced_mb_s", Some((scratch, false))),
        ("raw_put_mb_s", Some((scratch, true))),
    ];
    for (name, to) in raw_ways {
        let cpu = procstat::this_process()?.cpu;
        let seconds = (0..args.files).map(|_| raw(local, to)).sum::<Result<f64, Failure>>()?;
        rates.insert(name.into(), json!(all / seconds));
        let cpu = (procstat::this_process()?.cpu - cpu).as_secs_f64();
        let name = name.replace("mb_s", "cpu_s_per_gb");
        rates.insert(name, json!(cpu / all * 1e3));
    }
    let path = |n: usize| format!("{FOLDER}/large-{n}");
    let put = timed(servers, || {
        (0..args.files).try_for_each(|n| {
            let source = BytesSource::File(local.to_owned());
            Ok(client.put(source, &path(n), true, copies, &mut |_| {})?)
        })
    })?;
    let get = timed(servers, || {
        (0..args.files).try_for_each(|n| {
            let read = client.open(&path(n), &mut Dropped, &mut |_| {}, &mut |_| {})?;
            match read == args.bytes as u64 {
                true => Ok(()),
                false => Err(format!("{} has {read} bytes", path(n)).into()),
            }
        })
    })?;
    for (name, (seconds, cpu)) in [("put", put), ("get", get)] {
        rates.insert(format!("{name}_mb_s"), json!(all / seconds));
        rates.insert(format!("{name}_cpu_s_per_gb"), json!(cpu / all * 1e3));
    }
    if args.small > 0 {
        let body = [7_u8; 1_000];
        let write = timed(servers, || {
            small(args, &client, |client, path| {
                let source = BytesSource::Stream(Box::new(Cursor::new(body)));
                Ok(client.put(source, path, true, copies, &mut |_| {})?)
            })
        })?;
        let read = timed(servers, || {
            small(args, &client, |client, path| {
                let mut all = Vec::new();
                client.open(path, &mut all, &mut |_| {}, &mut |_| {})?;
                if all == body { Ok(()) } else { Err(format!("{path} has other bytes").into()) }
            })
        })?;
        for (name, (seconds, cpu)) in [("small_writes", write), ("small_reads", read)] {
            rates.insert(format!("{name}_per_s"), json!(args.small as f64 / seconds));
            rates.insert(format!("{name}_cpu_ms"), json!(cpu / args.small as f64 * 1e3));
        }
    }
    client.delete(FOLDER, true)?;
    Ok(rates)
}

/// Measures, and prints the medians.
pub fn main(args: &Args) -> Outcome {
    if args.fabric.lab {
        return fabric::main(&args.fabric, args.json);
    }
    if args.copies == 0 || args.clients == 0 || args.files == 0 || args.bytes == 0 {
        return Err("--copies, --clients, --files and --bytes: must be 1 or more".into());
    }
    let directory = args.dir.join(format!("evenfall-bench-files-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let rates = measure(args, &directory);
    // The error of the measurement is reported, and not that of the removal.
    let _ = std::fs::remove_dir_all(&directory);
    let mut rates = rates.map_err(|error| error.to_string())?;
    let of = |name: &str| rates[name].as_f64().unwrap_or(f64::NAN);
    if args.json {
        let share = |way: &str| of(&format!("{way}_mb_s")) / of(&format!("raw_{way}_mb_s"));
        let (put, get) = (share("put"), share("get"));
        (rates["put_share"], rates["get_share"]) = (json!(put), json!(get));
        (rates["copies"], rates["bytes"]) = (json!(args.copies), json!(args.bytes));
        rates["rounds"] = json!(args.rounds.max(1));
        say!("{rates}");
        return Ok(());
    }
    say!("files of {} bytes in {} copies, medians of {}", args.bytes, args.copies, args.rounds);
    for (name, raw) in [("get", "raw_get"), ("put", "raw_put")] {
        let (rate, most) = (of(&format!("{name}_mb_s")), of(&format!("{raw}_mb_s")));
        let (cpu, least) =
            (of(&format!("{name}_cpu_s_per_gb")), of(&format!("{raw}_cpu_s_per_gb")));
        say!(
            "  {name}: {rate:.0} MB/s, {:.0} % of sendfile's {most:.0}; {cpu:.2} CPU seconds a GB, \
             sendfile {least:.2}",
            100.0 * rate / most
        );
    }
    say!("  sendfile into a file without a sync: {:.0} MB/s", of("raw_put_unsynced_mb_s"));
    for (name, what) in [("small_writes", "written"), ("small_reads", "read")] {
        let rate = of(&format!("{name}_per_s"));
        if !rate.is_nan() {
            say!("  files of 1,000 bytes: {rate:.0} {what} per second");
        }
    }
    Ok(())
}

fn measure(args: &Args, directory: &Path) -> Result<Value, Failure> {
    let (local, scratch) = (directory.join("local"), directory.join("scratch"));
    let mut prng = Prng::new(1);
    let words = (0..args.bytes.div_ceil(8)).flat_map(|_| prng.next_u64().to_le_bytes());
    let bytes: Vec<u8> = words.take(args.bytes).collect();
    std::fs::write(&local, bytes)?;
    let servers = Servers::start(args, directory)?;
    let mut rounds = Vec::new();
    for number in 0..args.rounds.max(1) {
        if !args.json {
            aside!("round {} of {}", number + 1, args.rounds.max(1));
        }
        rounds.push(Value::Object(round(args, &servers, &local, &scratch)?));
    }
    Ok(medians(&rounds))
}
