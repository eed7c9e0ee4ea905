//! Systems with a transport of their own. Each side is a process.
//!
//! This program talks to both sides in lines. A subscriber prints `ready`, then answers every line
//! with its count of copies so far. A publisher warms up, prints `warm`, waits for a line, sends,
//! and prints `done MESSAGES CPU_NS ELAPSED_NS`. Both end when their standard input ends.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use evenfall_host::procstat::ksoftirqd_cpu;

use crate::{PeerSample, Result, Setup};

/// How long copies may arrive after the last one was sent.
const QUIET: Duration = Duration::from_millis(500);

struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("a child without output")?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("a peer ended early; its error is above".into());
        }
        Ok(line.trim().to_owned())
    }

    fn ask(&mut self) -> Result<String> {
        self.input.as_mut().ok_or("no input")?.write_all(b"\n")?;
        self.line()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.input.take());
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn measure(setup: &Setup, subscriber: &mut Command, publisher: &mut Command) -> Result<PeerSample> {
    let mut subscriber = Process::start(subscriber)?;
    let ready = subscriber.line()?;
    publisher.env("PEER_READY", ready);
    let mut publisher = Process::start(publisher)?;
    publisher.line()?;
    let before: u64 = subscriber.ask()?.parse()?;
    let softirq = ksoftirqd_cpu()?;
    let start = Instant::now();
    let done = publisher.ask()?;
    let softirq = ksoftirqd_cpu()?.saturating_sub(softirq);
    let fields: Vec<u64> =
        done.split(' ').skip(1).map(str::parse).collect::<std::result::Result<_, _>>()?;
    let [messages, cpu_ns, _] = fields[..] else { return Err(format!("bad line: {done}").into()) };
    let copies = messages * setup.fanout as u64;
    let (mut delivered, mut changed) = (0, Instant::now());
    while delivered < copies && changed.elapsed() < QUIET {
        let now = subscriber.ask()?.parse::<u64>()? - before;
        if now != delivered {
            (delivered, changed) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // The time counts until the last copy arrived, because copies in a queue were not sent at the
    // measured rate.
    let elapsed = changed.duration_since(start).as_secs_f64();
    Ok(PeerSample {
        cpu_ns_per_copy: (cpu_ns as f64 + softirq.as_nanos() as f64) / delivered.max(1) as f64,
        messages_per_s: messages as f64 / elapsed,
        lost: 1.0 - delivered as f64 / copies.max(1) as f64,
    })
}

/// The highest rate without loss of a system with flow control: its rate flat out, if no copy was
/// lost.
pub fn own_pace(_: &Setup, flat_out: &PeerSample) -> Result<f64> {
    Ok(if flat_out.lost > 0.0 { f64::NAN } else { flat_out.messages_per_s })
}

fn publish_arguments(setup: &Setup, rate: Option<f64>) -> [String; 4] {
    [
        setup.fanout.to_string(),
        setup.size.to_string(),
        rate.unwrap_or(0.0).to_string(),
        setup.duration.as_secs_f64().to_string(),
    ]
}

/// Aeron multi-destination-cast.
pub fn aeron(setup: &Setup, rate: Option<f64>) -> Result<PeerSample> {
    let class_path = setup.aeron.as_deref().ok_or("no class path for Aeron")?;
    let java = || {
        let mut command = Command::new("java");
        command.args(["--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"]);
        command.args(["--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED"]);
        // Aeron's documentation recommends this for throughput: buffers without bounds checks.
        command.args(["-Dagrona.disable.bounds.checks=true", "-XX:+UseParallelGC"]);
        command.args(["-cp", class_path, "Peer"]);
        command
    };
    let mut subscriber = java();
    subscriber.arg("sub").arg(setup.fanout.to_string());
    let mut publisher = java();
    publisher.arg("pub").args(publish_arguments(setup, rate));
    measure(setup, &mut subscriber, &mut publisher)
}

/// ZeroMQ publish and subscribe.
pub fn zeromq(setup: &Setup, rate: Option<f64>) -> Result<PeerSample> {
    let this = std::env::current_exe()?;
    let mut subscriber = Command::new(&this);
    subscriber.arg("zeromq-sub").arg(setup.fanout.to_string());
    let mut publisher = Command::new(this);
    publisher.arg("zeromq-pub").args(publish_arguments(setup, rate));
    measure(setup, &mut subscriber, &mut publisher)
}
