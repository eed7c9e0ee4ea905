//! Nodes on this machine whose clocks are wrong on purpose. All nodes read one monotonic clock
//! below their planted clocks, so that the true error of each reading is known.
//!
//! [`run`] makes every node a thread with a port of its own. A program with the rights to make
//! network namespaces makes every node a process in a namespace of its own, from the same parts:
//! [`Host`] takes the samples, and [`compared`] knows the truth. In both cases the probes pass
//! through the kernel, and the nodes compete for the cores of this machine.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use evenfall_clock_service::{ClockMesh, ClockSettings, MeshMember, MeshView, Plant, Standing};
use evenfall_core::{ClockError, ClockReading, SharedKey, SyncTime, Timestamp};
use evenfall_host::Error;
use evenfall_host::clock::{MonotonicClock, thread_cpu};
use evenfall_port::run::Loop;
use evenfall_port::{Options, Port};
use serde::{Deserialize, Serialize};

/// Time between two samples of a node. No multiple of the time between two readings.
const SAMPLE_EVERY: Duration = Duration::from_millis(37);

/// How long arrivals may wait until the node wakes up. A node reads its clock every 20 ms, and
/// wakes up for each reading.
const MODERATION: Duration = Duration::from_millis(40);

/// A node that has no time after this long gives up. Nodes of an idle machine have their time
/// within ten seconds, and those of a busy machine may need several windows more.
const LEARN_MAX: Duration = Duration::from_secs(120);

/// The nodes of a laboratory, and the errors that are planted in their clocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Planted {
    /// Nodes. The first is the reference, and its clock is planted too.
    pub hosts: u32,
    /// Samples of each node. The first one is taken when the node knows its time, and the others
    /// follow 27 times a second.
    pub samples: u32,
    /// The settings of the nodes' clocks, with the planted errors.
    pub clock: ClockSettings,
}

/// One look at the clock of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// The node.
    pub node: u32,
    /// The time that the node showed less the time that the reference showed at the same instant,
    /// in nanoseconds.
    pub error_ns: i64,
    /// The proven bound at the time, in nanoseconds.
    pub proven_ns: Option<u64>,
    /// The assumed bound at the time, in nanoseconds.
    pub assumed_ns: Option<u64>,
}

/// The results of a laboratory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaboratoryResults {
    /// The samples of all nodes but the reference, those of each node in the order of time.
    pub samples: Vec<ClockSample>,
    /// Greatest share of a core that a node took from its first sample on, system calls included.
    pub core_share: f64,
    /// Greatest share of a core that any node's own measurement shows for its clock at the end.
    pub clock_core_share: f64,
    /// The most that a node sent over two seconds, in bits a second with the headers of all layers.
    pub sent_bits_s: u64,
    /// The fewest pairs of probes that a node sent in a second at the end.
    pub pairs_per_s: f64,
}

/// A node: its port, its clock and the error that is planted in the clock.
pub struct Host {
    node: u32,
    port: Box<dyn Port>,
    mesh: ClockMesh,
}

/// The time that a node showed at an instant of the monotonic clock.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ShownTime {
    node: u32,
    at_ns: u64,
    run_ns: u64,
    proven_ns: Option<u64>,
    assumed_ns: Option<u64>,
}

/// The results of one node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Turned {
    /// The looks at its clock, in the order of time.
    pub shown: Vec<ShownTime>,
    /// Nanoseconds to add to the time of the reference, so that stamps count from 1970.
    pub base_ns: i64,
    /// Share of a core that the node took from its first sample on, system calls included.
    pub core_share: f64,
    /// Share of a core that the node's own measurement shows for its clock at the end.
    pub clock_core_share: f64,
    /// Bits a second that the node sent in the end, with the headers of all layers.
    pub sent_bits_s: u64,
    /// Pairs of probes that the node sent in a second at the end.
    pub pairs_per_s: f64,
}

/// The options of a node's port. The kernel stamps arrivals, so that arrivals may wait until a node
/// is awake for its next probes.
pub fn options() -> Options {
    Options { kernel_timestamps: true, moderation: MODERATION, ..Options::default() }
}

/// Runs the nodes as threads on loopback, and compares every sample with the truth.
///
/// # Errors
/// When a port cannot be opened, or a node fails.
pub fn run(planted: &Planted) -> Result<LaboratoryResults, Error> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let open = |_| evenfall_port::open(any, options());
    let ports: Result<Vec<Box<dyn Port>>, Error> = (0..planted.hosts).map(open).collect();
    let ports = ports?;
    let addresses: Vec<_> = ports.iter().map(|port| port.local_addr()).collect();
    let since = MonotonicClock::now();
    let (left, has_failed) = (AtomicU32::new(planted.hosts), AtomicBool::new(false));
    let mut turned = Vec::new();
    std::thread::scope(|scope| {
        let turning = (0..).zip(ports).map(|(node, port)| {
            let member = MeshMember { addresses: addresses.clone(), place: node };
            let host = Host::new(&planted.clock, member, port, None, since);
            scope.spawn(|| {
                let full = || {
                    left.fetch_sub(1, Ordering::Release);
                };
                let is_on =
                    || left.load(Ordering::Acquire) > 0 && !has_failed.load(Ordering::Relaxed);
                let turned = host.turn(planted.samples, full, is_on);
                turned.inspect_err(|_| has_failed.store(true, Ordering::Relaxed))
            })
        });
        turning.collect::<Vec<_>>().into_iter().try_for_each(|thread| {
            let done = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            turned.push(done?);
            Ok::<(), Error>(())
        })
    })?;
    Ok(compared(&planted.clock, since, &turned))
}

/// Compares the times that all nodes showed with the times that the reference showed at the same
/// instants. The reference is the first node. The clocks were planted from `since` on.
///
/// # Panics
/// When there is no node.
pub fn compared(clock: &ClockSettings, since: Timestamp, turned: &[Turned]) -> LaboratoryResults {
    let (truth, base_ns) = (clock.plant(0, since), turned[0].base_ns);
    let sample = |shown: &ShownTime| {
        let at = Timestamp::from_nanos(shown.at_ns);
        let right = truth.shown(at).nanos().saturating_add_signed(base_ns);
        let error_ns = SyncTime::from_nanos(shown.run_ns).signed_since(SyncTime::from_nanos(right));
        let ShownTime { node, proven_ns, assumed_ns, .. } = *shown;
        ClockSample { node, error_ns, proven_ns, assumed_ns }
    };
    let mut found = LaboratoryResults::default();
    for turned in turned {
        let shown = turned.shown.iter().filter(|shown| shown.node > 0);
        found.samples.extend(shown.map(sample));
        found.core_share = found.core_share.max(turned.core_share);
        found.clock_core_share = found.clock_core_share.max(turned.clock_core_share);
        found.sent_bits_s = found.sent_bits_s.max(turned.sent_bits_s);
    }
    found.pairs_per_s = turned.iter().map(|turned| turned.pairs_per_s).fold(f64::MAX, f64::min);
    found
}

impl Host {
    /// A node whose clock is planted from `since` on.
    ///
    /// # Panics
    /// When the place is not among the addresses.
    pub fn new(
        clock: &ClockSettings,
        member: MeshMember,
        port: Box<dyn Port>,
        key: Option<&SharedKey>,
        since: Timestamp,
    ) -> Self {
        let node = member.place;
        let plant: Plant = clock.plant(node, since);
        Self { node, port, mesh: ClockMesh::new(clock, member, key, None, (since, plant)) }
    }

    /// Takes samples, and calls `full` after the last sample. Answers probes until `is_on` is
    /// false, because the other nodes may not have all of their samples yet.
    ///
    /// # Errors
    /// When the port fails, or the node has no time after two minutes.
    pub fn turn(
        mut self,
        samples: u32,
        full: impl Fn(),
        is_on: impl Fn() -> bool,
    ) -> Result<Turned, Error> {
        let (mut began, mut busy) = (MonotonicClock::now(), thread_cpu());
        let (view, mut turn) = (self.mesh.view(), Loop::new());
        turn.set_sidecar(self.mesh.sidecar());
        let mut reading = None;
        let mut shown = Vec::new();
        let mut sample_at = began;
        let give_up_at = began + LEARN_MAX;
        while is_on() {
            let port = self.port.as_mut();
            turn.turn::<ClockMesh>(&mut [], port, Some(sample_at), &mut |_, _, _| {})?;
            reading = turn.reading().or(reading);
            let now = MonotonicClock::now();
            if now < sample_at {
                continue;
            }
            sample_at = now + SAMPLE_EVERY;
            if reading.is_none() && now > give_up_at {
                let (node, most) = (self.node, LEARN_MAX.as_secs());
                let what = format!(
                    "node {node} has no time after {most} s, because too few probes come back in \
                     time; try fewer nodes, or end other work on this machine"
                );
                return Err(Error::Clock { what });
            }
            let Some(reading) = reading.filter(|_| shown.len() < samples as usize) else {
                continue;
            };
            if shown.is_empty() {
                (began, busy) = (now, thread_cpu());
            }
            shown.push(look(self.node, now, reading, &view));
            if shown.len() == samples as usize {
                full();
            }
        }
        let passed = MonotonicClock::now().since(began);
        let busy = thread_cpu().saturating_sub(busy);
        let core_share = busy.as_secs_f64() / passed.as_secs_f64().max(f64::MIN_POSITIVE);
        let standing = view.standing();
        let Standing { base_ns, sent_bits_s, pairs_per_s, core_share: clock_core_share, .. } =
            standing;
        Ok(Turned { shown, base_ns, core_share, clock_core_share, sent_bits_s, pairs_per_s })
    }
}

fn look(node: u32, at: Timestamp, reading: ClockReading, view: &MeshView) -> ShownTime {
    let standing = view.standing();
    let assumed_ns = match reading.error {
        ClockError::Within(bound) => Some(evenfall_core::time::nanos(bound)),
        _ => None,
    };
    // The drift of the clock until the next reading widens both bounds.
    let more = assumed_ns.zip(standing.assumed_ns).map_or(0, |(with, own)| with.abs_diff(own));
    let more = more.saturating_add(standing.overdue_ns(at));
    ShownTime {
        node,
        at_ns: at.nanos(),
        run_ns: at.nanos().saturating_add_signed(reading.offset_ns),
        proven_ns: standing.proven_ns.map(|ns| ns.saturating_add(more)),
        assumed_ns,
    }
}

#[cfg(test)]
mod tests {
    use evenfall_clock_service::Planting;

    use super::*;

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
        let outside = |sample: &&ClockSample| match sample.proven_ns {
            Some(bound) => sample.error_ns.unsigned_abs() > bound,
            None => true,
        };
        let wrong: Vec<&ClockSample> = samples.iter().filter(outside).collect();
        say!("{} samples, {} outside of their proven bounds", samples.len(), wrong.len());
        assert_eq!(samples.len(), 3 * 200);
        assert!(found.sent_bits_s > 0 && found.core_share > 0.0);
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    /// A node with two neighbours sends five pairs of probes a second however much they cost. The
    /// limit of a hundredth of a percent of a core allows more than five pairs only if a pair costs
    /// less than 20 us. With all system calls, a pair and the answer to another pair cost more.
    #[test]
    fn nodes_that_may_take_little_processor_time_probe_less() {
        let planted = Planted {
            hosts: 3,
            samples: 150,
            clock: ClockSettings { budget_core_share: 0.0001, ..ClockSettings::default() },
        };
        let found = run(&planted).expect("loopback has ports");
        let fewest = 2.0 * 5.0 / 2.0;
        assert!((found.pairs_per_s - fewest).abs() < 0.1, "{} pairs/s", found.pairs_per_s);
        assert!(found.clock_core_share > 0.0 && found.clock_core_share < 1.0);
    }
}
