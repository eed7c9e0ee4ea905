//! The nodes of `evenfall clock lab` as processes, each on a host of its own in a lab.
//!
//! ```text
//!   this process                         a node (hidden `evenfall clock node`)
//!     one line: the node's place    -->
//!                                   <--  one line: it has all of its samples
//!     the end of the input          -->
//!                                   <--  one line: the samples
//! ```

use std::io::{self, BufRead, BufReader, Write, stdin, stdout};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use evenfall_clock_service::{ClockSettings, MeshMember};
use evenfall_core::{SharedKey, Timestamp};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::interrupt;
use evenfall_host::lab::Lab;
use evenfall_host::process::{Signal, send};
use evenfall_runtime::program::Outcome;
use serde::{Deserialize, Serialize};

use crate::commands::bench::program;
use crate::laboratory::{Host, LaboratoryResults, Planted, Turned, compared, options};

/// Port of the nodes of the first mesh. The second mesh takes the next port.
const PORT: u16 = 9_320;
/// How long this process waits for a line before it looks for a signal.
const LOOK: Duration = Duration::from_millis(100);
/// Number of the key. A lab has one.
const KEY_ID: u8 = 1;

/// A node's place.
#[derive(Debug, Serialize, Deserialize)]
struct Spec {
    addresses: Vec<SocketAddr>,
    place: u32,
    samples: u32,
    clock: ClockSettings,
    since_ns: u64,
    key: [u8; 32],
}

/// A line that a node prints.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    /// The node has all of its samples.
    Full,
    /// The node has ended, and these are its samples.
    Turned(Turned),
}

/// The processes, which end when this value is dropped.
struct Nodes(Vec<Child>);

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            if !matches!(child.try_wait(), Ok(Some(_))) {
                send(child.id(), Signal::Kill);
            }
            // The node was killed or has said all, so its exit status tells nothing.
            drop(child.wait());
        }
    }
}

/// Runs the nodes of the mesh with this number, and compares every sample with the truth.
///
/// # Errors
/// When a node cannot be started, fails, or a signal came.
pub fn run(lab: &Lab, planted: &Planted, mesh: u16) -> Result<LaboratoryResults, String> {
    let mut key = [0; 32];
    evenfall_host::random::fill(&mut key).map_err(|error| format!("a key: {error}"))?;
    let since = MonotonicClock::now();
    let address = |host: u32| SocketAddr::new(IpAddr::V4(lab.address(host as usize)), PORT + mesh);
    let addresses: Vec<_> = (0..planted.hosts).map(address).collect();
    let mut nodes = Nodes(Vec::new());
    let (to, heard) = channel();
    for place in 0..planted.hosts {
        let spec = Spec {
            addresses: addresses.clone(),
            place,
            samples: planted.samples,
            clock: planted.clock.clone(),
            since_ns: since.nanos(),
            key,
        };
        let mut command = program()?;
        command.args(["clock", "node"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        lab.inside(place as usize, &mut command).map_err(|error| error.to_string())?;
        let mut child = command.spawn().map_err(|error| format!("node {place}: {error}"))?;
        let line = serde_json::to_string(&spec).map_err(|error| error.to_string())?;
        let input = child.stdin.as_mut().ok_or("no pipe")?;
        writeln!(input, "{line}").map_err(|error| format!("node {place}: {error}"))?;
        let (output, to) = (child.stdout.take(), to.clone());
        std::thread::spawn(move || {
            lines(output).for_each(|line| drop(to.send((place, Some(line)))));
            // The listener may be gone.
            drop(to.send((place, None)));
        });
        nodes.0.push(child);
    }
    for _ in 0..planted.hosts {
        let Line::Full = next(&heard)? else { return Err("a node ended early".into()) };
    }
    // The end of their input ends the nodes.
    nodes.0.iter_mut().for_each(|child| drop(child.stdin.take()));
    let mut turned = vec![Turned::default(); planted.hosts as usize];
    for _ in 0..planted.hosts {
        match heard_from(&heard)? {
            (place, Line::Turned(done)) => turned[place as usize] = done,
            (place, Line::Full) => return Err(format!("node {place} is full twice")),
        }
    }
    Ok(compared(&planted.clock, since, &turned))
}

fn lines(output: Option<ChildStdout>) -> impl Iterator<Item = String> {
    let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
    lines.map_while(Result::ok)
}

type Heard = Receiver<(u32, Option<String>)>;

fn next(heard: &Heard) -> Result<Line, String> {
    heard_from(heard).map(|(_, line)| line)
}

/// The next line of any node. The end of a node's output comes after its last line, which is its
/// samples.
fn heard_from(heard: &Heard) -> Result<(u32, Line), String> {
    let mut ended = Vec::new();
    loop {
        if interrupt::raised() {
            return Err("interrupted; the nodes were ended".into());
        }
        match heard.recv_timeout(LOOK) {
            Ok((place, Some(line))) => {
                let line = serde_json::from_str(&line);
                return Ok((place, line.map_err(|error| format!("node {place}: {error}"))?));
            }
            Ok((place, None)) => ended.push(place),
            Err(RecvTimeoutError::Timeout) if ended.is_empty() => {}
            // Nodes that have ended in order have sent their last line before.
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("node {} ended early", ended[0]));
            }
            Err(RecvTimeoutError::Disconnected) => return Err("all nodes are gone".into()),
        }
    }
}

/// Runs one node.
pub fn node() -> Outcome {
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    let spec: Spec = serde_json::from_str(&line)?;
    let Spec { addresses, place, samples, clock, since_ns, key } = spec;
    let own = *addresses.get(place as usize).ok_or("a place without an address")?;
    let key = SharedKey::new(KEY_ID, key);
    let port = evenfall_port::open(own, options().keyed())?;
    let member = MeshMember { addresses, place };
    let host = Host::new(&clock, member, port, Some(&key), Timestamp::from_nanos(since_ns));
    let is_on = Arc::new(AtomicBool::new(true));
    let heard = Arc::clone(&is_on);
    std::thread::spawn(move || {
        // An error of the input ends the node, as the end of the input does.
        drop(io::copy(&mut stdin(), &mut io::sink()));
        heard.store(false, Ordering::Release);
    });
    let say = |line: &Line| {
        let text = serde_json::to_string(line).unwrap_or_default();
        // Without a listener the input has ended too.
        drop(writeln!(stdout(), "{text}"));
    };
    let full = || say(&Line::Full);
    let turned = host.turn(samples, full, || is_on.load(Ordering::Acquire))?;
    say(&Line::Turned(turned));
    Ok(())
}
