//! Nodes on this machine whose clocks are wrong on purpose. All of them read one monotonic clock
//! below the planted ones, so that the true error of each reading is known.
//!
//! Every node is a thread with a port of its own. The probes pass through the kernel, and the
//! threads compete for the cores of this machine as processes do.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use evenfall_core::{ClockError, ClockReading, SyncTime, Timestamp};
use evenfall_host::Error;
use evenfall_host::clock::{MonotonicClock, thread_cpu};
use evenfall_port::run::Loop;
use evenfall_port::{Options, Port};

use crate::mesh::Member;
use crate::{ClockSettings, Mesh, Plant, View};

/// Time between two samples of a node. No multiple of the time between two readings.
const SAMPLE_EVERY: Duration = Duration::from_millis(37);

/// What is planted.
#[derive(Clone, Debug, PartialEq)]
pub struct Planted {
    /// Nodes. The first is the reference, and its clock is planted too.
    pub hosts: u32,
    /// Samples of each node. The first one is taken when the node knows its time, and the others
    /// follow 27 times a second.
    pub samples: u32,
    /// The nodes' clocks, and what is planted in them.
    pub clock: ClockSettings,
}

/// One look at the clock of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The node.
    pub node: u32,
    /// What the node showed less what the reference showed at the same instant, in nanoseconds.
    pub error_ns: i64,
    /// The proven bound at the time, in nanoseconds.
    pub proven_ns: Option<u64>,
    /// The assumed bound at the time, in nanoseconds.
    pub assumed_ns: Option<u64>,
}

/// What came of a laboratory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The samples of all nodes but the reference, those of each node in the order of time.
    pub samples: Vec<Sample>,
    /// Greatest share of a core that a node took, system calls included.
    pub core_share: f64,
    /// The most that a node sent over two seconds, in bits a second with the headers of all layers.
    pub sent_bits_s: u64,
}

/// A node's part: its port, its clock and what is planted there.
struct Host {
    node: u32,
    port: Box<dyn Port>,
    mesh: Mesh,
    plant: Plant,
}

/// What a node showed at an instant of the monotonic clock.
struct Shown {
    node: u32,
    at: Timestamp,
    run_ns: u64,
    proven_ns: Option<u64>,
    assumed_ns: Option<u64>,
}

/// Runs the nodes, and compares every sample with the truth.
///
/// # Errors
/// When a port cannot be opened, or a thread cannot be started.
pub fn run(planted: &Planted) -> Result<Found, Error> {
    let hosts = hosts(planted)?;
    let (truth, reference) = (hosts[0].plant, hosts[0].mesh.view());
    let (left, shown) = (AtomicU32::new(planted.hosts), Mutex::new(Vec::new()));
    let mut found = Found::default();
    std::thread::scope(|scope| {
        let turning: Vec<_> = hosts
            .into_iter()
            .map(|host| scope.spawn(|| host.turn(planted.samples, &left, &shown)))
            .collect();
        turning.into_iter().try_for_each(|thread| {
            let turned = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let (share, bits) = turned?;
            found.core_share = found.core_share.max(share);
            found.sent_bits_s = found.sent_bits_s.max(bits);
            Ok::<(), Error>(())
        })
    })?;
    let base_ns = reference.standing().base_ns;
    let sample = |shown: Shown| {
        let right = truth.shown(shown.at).nanos().saturating_add_signed(base_ns);
        let (node, run) = (shown.node, SyncTime::from_nanos(shown.run_ns));
        let error_ns = run.signed_since(SyncTime::from_nanos(right));
        Sample { node, error_ns, proven_ns: shown.proven_ns, assumed_ns: shown.assumed_ns }
    };
    let shown = shown.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.samples = shown.into_iter().filter(|shown| shown.node > 0).map(sample).collect();
    Ok(found)
}

fn hosts(planted: &Planted) -> Result<Vec<Host>, Error> {
    let options = Options { kernel_timestamps: true, ..Options::default() };
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let open = |_| evenfall_port::open(any, options.clone());
    let ports: Result<Vec<Box<dyn Port>>, Error> = (0..planted.hosts).map(open).collect();
    let ports = ports?;
    let addresses: Vec<_> = ports.iter().map(|port| port.local_addr()).collect();
    let since = MonotonicClock::now();
    let host = |(node, port): (u32, Box<dyn Port>)| {
        let plant = planted.clock.plant(node, since);
        let member = Member { addresses: addresses.clone(), place: node };
        let mesh = Mesh::new(&planted.clock, member, None, None, (since, plant));
        Host { node, port, mesh, plant }
    };
    Ok((0..).zip(ports).map(host).collect())
}

impl Host {
    /// Takes samples. Returns the share of a core that the node took, and the bits a second that it
    /// sent. A node that has all of its own goes on answering probes until the last node
    /// has its samples too.
    fn turn(
        mut self,
        samples: u32,
        left: &AtomicU32,
        shown: &Mutex<Vec<Shown>>,
    ) -> Result<(f64, u64), Error> {
        let began = MonotonicClock::now();
        let (node, view, mut turn) = (self.node, self.mesh.view(), Loop::new());
        turn.set_beside(self.mesh.beside());
        let mut reading = None;
        let mut own = Vec::new();
        let mut sample_at = MonotonicClock::now();
        while left.load(Ordering::Acquire) > 0 {
            let port = self.port.as_mut();
            turn.turn::<Mesh>(&mut [], port, Some(sample_at), &mut |_, _, _| {})?;
            reading = turn.reading().or(reading);
            let now = MonotonicClock::now();
            if now < sample_at {
                continue;
            }
            sample_at = now + SAMPLE_EVERY;
            let Some(reading) = reading.filter(|_| own.len() < samples as usize) else { continue };
            own.push(look(node, now, reading, &view));
            if own.len() == samples as usize {
                left.fetch_sub(1, Ordering::Release);
            }
        }
        shown.lock().unwrap_or_else(PoisonError::into_inner).extend(own);
        let passed = MonotonicClock::now().since(began);
        let share = thread_cpu().as_secs_f64() / passed.as_secs_f64().max(f64::MIN_POSITIVE);
        Ok((share, view.standing().sent_bits_s))
    }
}

fn look(node: u32, at: Timestamp, reading: ClockReading, view: &View) -> Shown {
    let standing = view.standing();
    let assumed_ns = match reading.error {
        ClockError::Within(bound) => Some(evenfall_core::time::nanos(bound)),
        _ => None,
    };
    // What the rate of the clock adds until the next reading counts for both bounds.
    let more = assumed_ns.zip(standing.assumed_ns).map_or(0, |(with, own)| with.abs_diff(own));
    Shown {
        node,
        at,
        run_ns: at.nanos().saturating_add_signed(reading.offset_ns),
        proven_ns: standing.proven_ns.map(|ns| ns.saturating_add(more)),
        assumed_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Planting;

    /// All but the bounds depends on the load of this machine, and the proven bound holds under any
    /// load: a probe that waits is late and never early.
    #[test]
    fn planted_clocks_are_found_within_their_proven_bounds() {
        let planted = Planted {
            hosts: 4,
            samples: 200,
            clock: ClockSettings {
                plant: Some(Planting { offset: Duration::from_millis(20), drift_ppb: 100_000 }),
                ..ClockSettings::default()
            },
        };
        let found = run(&planted).expect("loopback has ports");
        let samples = found.samples;
        let outside = |sample: &&Sample| match sample.proven_ns {
            Some(bound) => sample.error_ns.unsigned_abs() > bound,
            None => true,
        };
        let wrong: Vec<&Sample> = samples.iter().filter(outside).collect();
        println!("{} samples, {} outside of their proven bounds", samples.len(), wrong.len());
        assert_eq!(samples.len(), 3 * 200);
        assert!(found.sent_bits_s > 0 && found.core_share > 0.0);
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
