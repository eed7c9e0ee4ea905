//! The description of a job: the hosts of each layer, the pace, and the longest time.
//!
//! Hosts are listed level by level, as in a heap. The leader is first, and the members under place
//! `p` are the existing places of `p * fanout + 1 ..= p * fanout + fanout`. A subtree is also a
//! list of this form, so each layer passes on the list of the hosts below it.

use core::time::Duration;
use std::net::SocketAddr;

use serde::Serialize;

/// Hosts that one job may have. A place is two bytes on the wire, and one task must fit one
/// message.
pub const HOSTS_MAX: usize = 4_096;
/// Hosts that an all-to-all job may have. 512 hosts are 262,000 pairs, each with about 300 bytes in
/// the memory of the leader and of the surveyor (80 MB).
pub const MESH_HOSTS_MAX: usize = 512;
/// Fan-out of the tree over which an all-to-all job is ordered and gathered.
pub const MESH_FANOUT: u16 = 8;
/// Place of the leader.
pub const LEADER: u16 = 0;
/// Largest probe in bytes. A probe of this size fits into one Ethernet frame.
pub const PROBE_BYTES_MAX: u16 = 1_400;
/// Most probes per second to one host.
pub const RATE_MAX: u32 = 100_000;
/// Longest job.
pub const LENGTH_MAX: Duration = Duration::from_secs(600);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum MeasurementKind {
    /// The delays from the leader to every other host.
    Parent = 0,
    /// The leader sends to all hosts, and each host forwards to the hosts below it, as the feed
    /// would.
    Multicast = 1,
    /// The delays from every host to every other host.
    AllToAll = 2,
    /// Each host forwards the probes of the leader as in [`Multicast`](Self::Multicast), and also
    /// sends probes to the host above it. The delays of the two ways of a pair show the difference
    /// of the pair's clocks.
    BothWays = 3,
}

impl MeasurementKind {
    pub(super) fn from_wire(byte: u8) -> Option<Self> {
        let all = [Self::Parent, Self::Multicast, Self::AllToAll, Self::BothWays];
        all.get(usize::from(byte)).copied()
    }
}

/// How probes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ProbePace {
    /// Probes per second from each sender to each of its receivers.
    pub rate_hz: u32,
    /// Time in which probes count.
    pub duration: Duration,
    /// Time before the measurement, in which probes are sent and do not count.
    pub warm_up: Duration,
    /// Bytes of a probe, its header included.
    pub probe_bytes: u16,
}

impl Default for ProbePace {
    /// 500 probes after 50 that warm the path up: the error of a p90 is then about 5 % of the
    /// spread. 64 bytes are the header and the padding to the smallest Ethernet frame.
    fn default() -> Self {
        Self {
            rate_hz: 500,
            duration: Duration::from_secs(1),
            warm_up: Duration::from_millis(100),
            probe_bytes: 64,
        }
    }
}

impl ProbePace {
    /// Time from the first probe to the last probe.
    pub fn length(&self) -> Duration {
        self.warm_up + self.duration
    }

    /// Checks the pace against the limits of agents.
    ///
    /// # Errors
    /// The wrong value and the allowed range.
    pub fn check(&self) -> Result<(), ProbePaceError> {
        if self.rate_hz == 0 || self.rate_hz > RATE_MAX {
            let why = format!("rate {}: must be 1 to {RATE_MAX} per second", self.rate_hz);
            return Err(ProbePaceError(why));
        }
        if self.duration.is_zero() || self.length() > LENGTH_MAX {
            return Err(ProbePaceError(format!(
                "duration {:?} and warm-up {:?}: must be above 0 and {LENGTH_MAX:?} at most",
                self.duration, self.warm_up
            )));
        }
        let least = super::probe::HEADER_BYTES as u16;
        if !(least..=PROBE_BYTES_MAX).contains(&self.probe_bytes) {
            return Err(ProbePaceError(format!(
                "probe of {} bytes: must be {least} to {PROBE_BYTES_MAX}",
                self.probe_bytes
            )));
        }
        Ok(())
    }
}

/// A pace that no agent may be asked for, with the wrong value and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProbePaceError(String);

/// The times of control. All hosts of a job use the same times, because the job carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time between two polls of a subordinate. A poll is a heartbeat, and repeats lost messages.
    pub poll: Duration,
    /// Time that one layer may take besides the probes, for lost and slow messages.
    pub step: Duration,
    /// An agent that is not polled for this long drops its job. An agent that does not answer for
    /// this long is taken for dead.
    pub lease: Duration,
}

impl Default for Timing {
    /// A step is ten polls, so that a tenth of all messages may be lost. A lease is two steps, so
    /// that a process may be paused for a second.
    fn default() -> Self {
        Self {
            poll: Duration::from_millis(50),
            step: Duration::from_millis(500),
            lease: Duration::from_millis(1_000),
        }
    }
}

impl Timing {
    /// How long the hosts under a host of this height may take until they are ready.
    pub fn ready_limit(&self, height: u32) -> Duration {
        self.step * (height + 1)
    }

    /// How long a host of this height may take from the go to its report.
    pub fn report_limit(&self, height: u32, pace: &ProbePace) -> Duration {
        pace.length() + self.step * (height + 2)
    }

    /// The longest that a host of this height is busy with a job, whatever happens. Parts of large
    /// results may take four steps in each layer.
    pub fn life_limit(&self, height: u32, pace: &ProbePace) -> Duration {
        pace.length() + self.step * (8 * (height + 1)) + self.lease * 2
    }

    /// Time after which an agent of this height is idle when its surveyor is gone.
    pub fn idle_limit(&self, height: u32) -> Duration {
        (self.lease + self.poll) * (height + 1)
    }
}

/// A job as a program asks for it. Hosts are numbers of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// What is measured.
    pub kind: MeasurementKind,
    /// The hosts of the job, level by level, with the leader first.
    pub hosts: Vec<usize>,
    /// Hosts under each host. For [`MeasurementKind::Parent`] and [`MeasurementKind::AllToAll`] the
    /// kind decides this number.
    pub fanout: u16,
    /// How probes are sent.
    pub pace: ProbePace,
}

impl JobSpec {
    /// A job in which the parent measures its delay to every candidate.
    pub fn parent(parent: usize, candidates: &[usize], pace: ProbePace) -> Self {
        let hosts: Vec<usize> = [parent].iter().chain(candidates).copied().collect();
        Self { kind: MeasurementKind::Parent, fanout: candidates.len().max(1) as u16, hosts, pace }
    }

    /// A job that measures a whole tree. Hosts are listed level by level.
    pub fn multicast(hosts: Vec<usize>, fanout: u16, pace: ProbePace) -> Self {
        Self { kind: MeasurementKind::Multicast, hosts, fanout, pace }
    }

    /// A job that measures the same tree in both ways.
    pub fn both_ways(self) -> Self {
        Self { kind: MeasurementKind::BothWays, ..self }
    }

    /// A job that measures every ordered pair of hosts.
    pub fn all_to_all(hosts: Vec<usize>, pace: ProbePace) -> Self {
        Self { kind: MeasurementKind::AllToAll, hosts, fanout: MESH_FANOUT, pace }
    }

    /// Layers below the leader.
    pub fn height(&self) -> u32 {
        height(self.hosts.len(), self.fanout)
    }
}

/// A host of a job: its place and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobSeat {
    /// Number in the list of the whole job.
    pub place: u16,
    /// Its address, for control and probes.
    pub address: SocketAddr,
}

/// The order for one host and the hosts below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// What is measured.
    pub kind: MeasurementKind,
    /// Hosts under each host.
    pub fanout: u16,
    /// How probes are sent.
    pub pace: ProbePace,
    /// Limits of time.
    pub timing: Timing,
    /// The place of the host above. The leader has its own place here.
    pub above: u16,
    /// This host and the hosts below it, level by level.
    pub seats: Vec<JobSeat>,
    /// For an all-to-all job, all hosts in the order of their places. For a job in both ways, the
    /// host above this host, or the leader itself at the leader. For other jobs, the list is empty.
    pub mesh: Vec<JobSeat>,
}

impl Task {
    /// The seat of the host that has this task.
    pub fn me(&self) -> JobSeat {
        self.seats[0]
    }

    /// Layers below.
    pub fn height(&self) -> u32 {
        height(self.seats.len(), self.fanout)
    }

    /// The tasks of the hosts directly below.
    pub fn below(&self) -> impl Iterator<Item = Self> + '_ {
        let children = self.seats.len().saturating_sub(1).min(usize::from(self.fanout));
        (0..children).map(|child| Self {
            seats: subtree(&self.seats, usize::from(self.fanout), child + 1),
            mesh: match self.kind {
                MeasurementKind::BothWays => vec![self.me()],
                MeasurementKind::Parent
                | MeasurementKind::Multicast
                | MeasurementKind::AllToAll => self.mesh.clone(),
            },
            above: self.me().place,
            ..*self
        })
    }

    /// The hosts directly below, to which this host sends or forwards each probe at once. An
    /// all-to-all job has none.
    pub(super) fn children(&self) -> &[JobSeat] {
        let count = match self.kind {
            MeasurementKind::AllToAll => 0,
            MeasurementKind::Parent | MeasurementKind::Multicast | MeasurementKind::BothWays => {
                usize::from(self.fanout)
            }
        };
        let below = &self.seats[1..];
        &below[..below.len().min(count)]
    }

    /// Whether this host sends probes to its receivers in turn, and not to all of them at once.
    pub(super) fn sends_in_turn(&self) -> bool {
        match self.kind {
            MeasurementKind::Parent | MeasurementKind::Multicast => false,
            MeasurementKind::AllToAll => true,
            MeasurementKind::BothWays => self.me().place != LEADER,
        }
    }

    /// Copies of probes that this host sends for each probe of the leader.
    pub(super) fn copies(&self) -> usize {
        let own = if self.sends_in_turn() { self.receivers().len() } else { 0 };
        own + self.children().len()
    }

    /// Whether this host forwards probes that come from this place to its children.
    pub(super) fn forwards(&self, place: u16) -> bool {
        matches!(self.kind, MeasurementKind::Multicast | MeasurementKind::BothWays)
            && place == self.above
            && self.seats.len() > 1
    }

    /// The hosts to which this host sends its own probes. For a host without probes of its own, the
    /// hosts to which this host forwards the probes of the leader.
    pub fn receivers(&self) -> Vec<JobSeat> {
        let me = self.me().place;
        match self.kind {
            MeasurementKind::AllToAll => {
                // The list begins at the next place, so that no two hosts begin with the same
                // receiver.
                let (up_to, behind): (Vec<JobSeat>, Vec<JobSeat>) =
                    self.mesh.iter().partition(|seat| seat.place <= me);
                behind.into_iter().chain(up_to).filter(|seat| seat.place != me).collect()
            }
            MeasurementKind::BothWays if me != LEADER => self.mesh.clone(),
            MeasurementKind::Parent | MeasurementKind::Multicast | MeasurementKind::BothWays => {
                self.children().to_vec()
            }
        }
    }

    /// Whether a probe may come from this place.
    pub fn hears(&self, place: u16) -> bool {
        match self.kind {
            MeasurementKind::AllToAll => {
                place != self.me().place
                    && self.mesh.binary_search_by_key(&place, |seat| seat.place).is_ok()
            }
            MeasurementKind::BothWays if self.children().iter().any(|seat| seat.place == place) => {
                true
            }
            MeasurementKind::Parent | MeasurementKind::Multicast | MeasurementKind::BothWays => {
                place == self.above && place != self.me().place
            }
        }
    }
}

/// Layers below the first place of a list.
fn height(hosts: usize, fanout: u16) -> u32 {
    let (mut height, mut level, mut covered) = (0, 1usize, 1usize);
    while covered < hosts {
        level = level.saturating_mul(usize::from(fanout.max(1)));
        covered = covered.saturating_add(level);
        height += 1;
    }
    height
}

/// The list of all hosts at and below a place.
fn subtree(seats: &[JobSeat], fanout: usize, place: usize) -> Vec<JobSeat> {
    let mut cut = Vec::new();
    let (mut first, mut width) = (place, 1usize);
    while first < seats.len() {
        cut.extend_from_slice(&seats[first..seats.len().min(first + width)]);
        first = first.saturating_mul(fanout).saturating_add(1);
        width = width.saturating_mul(fanout);
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(hosts: u16, fanout: u16) -> Task {
        let address = |n: u16| SocketAddr::from(([10, 0, 0, 1], n));
        let seats = (0..hosts).map(|place| JobSeat { place, address: address(place) }).collect();
        Task {
            kind: MeasurementKind::Multicast,
            fanout,
            pace: ProbePace::default(),
            timing: Timing::default(),
            above: 0,
            seats,
            mesh: Vec::new(),
        }
    }

    #[test]
    fn a_subtree_of_a_list_is_a_list_again() {
        for (hosts, fanout) in [(1, 3), (7, 2), (8, 2), (13, 3), (20, 19), (100, 4)] {
            let whole = task(hosts, fanout);
            let below: Vec<Task> = whole.below().collect();
            let seats: usize = below.iter().map(|task| task.seats.len()).sum();
            assert_eq!(seats + 1, usize::from(hosts), "everybody below is in one subtree");
            for task in &below {
                assert!(task.height() < whole.height());
                let grandchildren: Vec<u16> = task.below().map(|task| task.me().place).collect();
                let me = task.me().place;
                let right: Vec<u16> =
                    (me * fanout + 1..=me * fanout + fanout).filter(|n| *n < hosts).collect();
                assert_eq!(grandchildren, right, "{hosts} hosts, fan-out {fanout}, under {me}");
            }
        }
    }

    #[test]
    fn limits_grow_with_length_and_layers() {
        let timing = Timing::default();
        let (short, pace) = (ProbePace::default(), ProbePace::default());
        let long = ProbePace { duration: Duration::from_secs(9), ..pace };
        for height in 0..4 {
            assert!(timing.ready_limit(height) < timing.ready_limit(height + 1));
            assert!(timing.report_limit(height, &short) < timing.report_limit(height + 1, &short));
            assert!(timing.report_limit(height, &short) < timing.report_limit(height, &long));
            assert!(timing.report_limit(height, &long) < timing.life_limit(height, &long));
        }
    }
}
