//! Other traffic for `evenfall bench shuffle --cross` and `evenfall clock lab --traffic`: datagrams
//! at a constant rate, without a request and without an answer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use evenfall_host::lab::Lab;
use evenfall_host::process::{Signal, send};

use super::shuffle::program;
use evenfall_runtime::program::Outcome;

/// Port of the receiver. No program reads it.
const PORT: u16 = 9_301;
/// Bytes of a payload, the most that fit a packet of Ethernet behind the headers of IPv4 and UDP.
const PAYLOAD_BYTES: usize = 1_472;
/// Bytes of the payload with the headers of IPv4, UDP and Ethernet.
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

impl Cross {
    fn add(
        &mut self,
        bind: SocketAddr,
        to: SocketAddr,
        bits: u64,
        lab: At<'_>,
    ) -> Result<(), String> {
        let mut command = program()?;
        command.args(["bench", "cross", "--bits-per-s", &bits.to_string()]);
        command.args(["--bind", &bind.to_string(), "--to", &to.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some((lab, host)) = lab {
            lab.inside(host, &mut command).map_err(|error| error.to_string())?;
        }
        self.0.push(command.spawn().map_err(|error| format!("cross traffic: {error}"))?);
        Ok(())
    }
}

/// A host of a lab.
type At<'a> = Option<(&'a Lab, usize)>;

/// Starts a sender on each host from number `first` on. Each sends to the next of these hosts.
pub fn start(lab: &Lab, first: usize, bits_per_s: u64) -> Result<Cross, String> {
    let mut cross = Cross(Vec::new());
    let count = lab.hosts() - first;
    let at = |host: usize| SocketAddr::new(IpAddr::V4(lab.address(first + host)), PORT);
    for host in 0..count {
        cross.add(at(host), at((host + 1) % count), bits_per_s, Some((lab, first + host)))?;
    }
    Ok(cross)
}

/// Starts a sender on loopback, which sends to itself.
pub fn start_on_loopback(bits_per_s: u64) -> Result<Cross, String> {
    let mut cross = Cross(Vec::new());
    let own = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);
    cross.add(own, own, bits_per_s, None)?;
    Ok(cross)
}
