//! Other traffic for `evenfall bench shuffle --cross`: datagrams at a constant rate, without a
//! request and without an answer.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use evenfall_host::lab::Lab;
use evenfall_host::process::{Signal, send};

use super::shuffle::program;
use evenfall_runtime::program::Outcome;

/// Port of the receiver. No program reads it.
const PORT: u16 = 9_301;
/// Bytes of a payload. A frame takes more bytes on the link.
const PAYLOAD_BYTES: usize = 1_472;
const FRAME_BYTES: u64 = 1_514;
/// How often the sender checks how much it has sent.
const TICK: Duration = Duration::from_millis(1);
/// Longest delay that the sender makes up for.
const BEHIND_MAX: Duration = Duration::from_millis(20);

/// Arguments of the hidden `evenfall bench cross`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Address of the sender.
    #[arg(long)]
    bind: SocketAddr,
    /// Address of the receiver.
    #[arg(long)]
    to: SocketAddr,
    /// Rate in bits per second.
    #[arg(long)]
    bits_per_s: u64,
}

/// Sends until the process is ended.
pub fn main(args: &Args) -> Outcome {
    let socket = UdpSocket::bind(args.bind)?;
    let payload = [0; PAYLOAD_BYTES];
    let each = Duration::from_secs_f64(FRAME_BYTES as f64 * 8.0 / args.bits_per_s.max(1) as f64);
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        next = next.max(now.checked_sub(BEHIND_MAX).unwrap_or(now));
        while next <= now {
            // A refused datagram counts as dropped, as by a full queue of a switch.
            socket.send_to(&payload, args.to).ok();
            next += each;
        }
        std::thread::sleep(TICK);
    }
}

/// Senders that end when this value is dropped.
pub struct Cross(Vec<Child>);

impl Drop for Cross {
    fn drop(&mut self) {
        for child in &mut self.0 {
            send(child.id(), Signal::Kill);
            // The sender was killed, so its exit status tells nothing.
            drop(child.wait());
        }
    }
}

/// Starts a sender in each rack. The additional hosts come after the ranks, and each sends to the
/// additional host of the next rack.
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
