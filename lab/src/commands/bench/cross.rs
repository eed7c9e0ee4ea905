//! Other traffic for `evenfall bench shuffle --cross`: datagrams at a constant rate that nobody
//! asked for and nobody answers.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use evenfall_host::lab::Lab;
use evenfall_host::process::{Signal, send};

use super::shuffle::program;
use evenfall_runtime::program::Outcome;

/// Where it goes, which nobody reads.
const PORT: u16 = 9_301;
/// Payload, and bytes of a link that it takes.
const PAYLOAD_BYTES: usize = 1_472;
const FRAME_BYTES: u64 = 1_514;
/// How often it is seen to that enough was sent.
const TICK: Duration = Duration::from_millis(1);
/// What was missed beyond this is not made up for.
const BEHIND_MAX: Duration = Duration::from_millis(20);

/// Arguments of the hidden `evenfall bench cross`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// From here.
    #[arg(long)]
    bind: SocketAddr,
    /// To there.
    #[arg(long)]
    to: SocketAddr,
    /// So fast.
    #[arg(long)]
    bits_per_s: u64,
}

/// Sends until it is ended.
pub fn main(args: &Args) -> Outcome {
    let socket = UdpSocket::bind(args.bind)?;
    let payload = [0; PAYLOAD_BYTES];
    let each = Duration::from_secs_f64(FRAME_BYTES as f64 * 8.0 / args.bits_per_s.max(1) as f64);
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        next = next.max(now.checked_sub(BEHIND_MAX).unwrap_or(now));
        while next <= now {
            // What the kernel does not take is what a full queue would have dropped.
            socket.send_to(&payload, args.to).ok();
            next += each;
        }
        std::thread::sleep(TICK);
    }
}

/// Senders that end with this value.
pub struct Cross(Vec<Child>);

impl Drop for Cross {
    fn drop(&mut self) {
        for child in &mut self.0 {
            send(child.id(), Signal::Kill);
            // It has been told; a status is of no use to anybody.
            drop(child.wait());
        }
    }
}

/// From the additional host of each rack, which come after the ranks, to that of the next one.
pub fn start(lab: &Lab, ranks: usize, bits_per_s: u64) -> Result<Cross, String> {
    let mut cross = Cross(Vec::new());
    let racks = lab.hosts() - ranks;
    let at = |rack: usize| SocketAddr::new(IpAddr::V4(lab.address(ranks + rack)), PORT);
    for rack in 0..racks {
        let mut command = program()?;
        command.args(["bench", "cross", "--bits-per-s", &bits_per_s.to_string()]);
        command.args(["--bind", &at(rack).to_string()]);
        command.args(["--to", &at((rack + 1) % racks).to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        lab.inside(ranks + rack, &mut command).map_err(|error| error.to_string())?;
        cross.0.push(command.spawn().map_err(|error| format!("cross traffic: {error}"))?);
    }
    Ok(cross)
}
