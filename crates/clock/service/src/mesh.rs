//! The machine beside a role: a [`Timekeeper`] whose events are readings of the run's clock.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenfall_clock_machine::timekeeper::OVERHEAD_BYTES;
use evenfall_clock_machine::wire::MAGIC;
use evenfall_clock_machine::{
    BoundedReading, ClockSeat, ClockState, Config, TimeEvent, Timekeeper,
};
use evenfall_core::{
    Arrival, ClockError, ClockReading, EndKeys, Machine, Malformed, NodeId, Sent, SharedKey,
    Timestamp, Transmit, math,
};
use evenfall_host::clock::{ClockWatch, SyncSource};
use evenfall_port::cpu_meter::CpuMeter;
use evenfall_port::run::Sidecar;
use evenfall_runtime::telemetry::Metrics;
use serde::Serialize;

use crate::{ClockSettings, Plant};

/// Time between two readings. In 20 ms a clock of 100 ppm moves by 2 us.
const TELL_EVERY: Duration = Duration::from_millis(20);
/// Each reading that is less late than the kept lateness makes the kept lateness smaller by one
/// part in this many. After half a minute a quarter of a lateness is left.
const LATE_SHRINKS: u32 = 1_000;
/// The bound of a reading allows for a lateness of this many times the kept lateness. With a factor
/// of one, 3 of 2,700 readings were beyond their bound, on two cores with a load of 25.
const LATE_TIMES: f64 = 2.0;
/// How often the host's own source of UTC is read. A claim counts for one window of two seconds.
const SOURCE_EVERY: Duration = Duration::from_millis(500);
/// Time over which the cost of the clock is averaged. A window of two seconds has probes, reports
/// and verdicts in it.
const COST_EVERY: Duration = Duration::from_secs(2);

/// The last state of a node's clock, as the node knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Standing {
    /// The place of the node among the nodes of the mesh; the reference has place 0.
    pub place: u32,
    /// Nodes of the mesh.
    pub nodes: u32,
    /// Nodes that this node exchanges probes with.
    pub neighbours: u32,
    /// `unknown`, `synchronised`, `free-running` or `disrupted`.
    pub state: &'static str,
    /// When the node read its clock, in nanoseconds of the local clock.
    pub at_ns: u64,
    /// Nanoseconds to add to the local clock for the time of the reference.
    pub offset_ns: i64,
    /// Nanoseconds to add to the time of the reference, so that stamps count from 1970.
    pub base_ns: i64,
    /// The error is not larger, as long as delays are not negative.
    pub proven_ns: Option<u64>,
    /// The error is not larger, if the network errs as it did.
    pub assumed_ns: Option<u64>,
    /// UTC less the time of the run, as the vetted sources of all nodes have it.
    pub utc_ns: Option<i64>,
    /// Bound on the error of `utc_ns`.
    pub utc_bound_ns: Option<u64>,
    /// Windows in which this node was told its time.
    pub windows: u64,
    /// Datagrams that were refused: forged, recorded at an earlier time, or not of this run.
    pub refused: u64,
    /// Nodes that tell different times to different neighbours; known at the reference.
    pub liars: Vec<u32>,
    /// Nodes that no probe of the last window reached; known at the reference.
    pub lost: Vec<u32>,
    /// Nodes whose clocks left their proven bounds in the last window; known at the reference.
    pub disrupted: Vec<u32>,
    /// Nodes whose source of UTC left its own bound; known at the reference.
    pub sources_dropped: Vec<u32>,
    /// Limit of the bits that the node sends for its probes in a second, with all headers.
    pub budget_bits_s: u64,
    /// Bits a second that the node sent for its clock in the last seconds, with all headers.
    pub sent_bits_s: u64,
    /// Limit of the processor time that the node takes for its clock, as a share of a core.
    pub budget_core_share: f64,
    /// Share of a core that the clock took in the last seconds, system calls included.
    pub core_share: f64,
    /// Pairs of probes that the node sends in a second now, within both limits.
    pub pairs_per_s: f64,
}

impl Standing {
    /// How much wider the proven bound is at the local time `now`, when the last reading is still
    /// in use and the next reading is overdue.
    pub fn overdue_ns(&self, now: Timestamp) -> u64 {
        let due = Timestamp::from_nanos(self.at_ns) + TELL_EVERY;
        let overdue = now.since(due).mul_f64(Config::default().drift_max());
        evenfall_core::time::nanos(overdue)
    }

    /// Adds the clock to the metrics of a node.
    pub fn put(&self, m: &mut Metrics) {
        let seconds = |ns: u64| ns as f64 * 1e-9;
        let well = f64::from(u8::from(self.state == "synchronised"));
        m.gauge("clock_synchronised", "1 when the last window was measured.", 0, well);
        let help = "What the node adds to its clock for the root's.";
        m.gauge("clock_offset_seconds", help, 0, self.offset_ns as f64 * 1e-9);
        if let Some(ns) = self.proven_ns {
            let help = "Error bound that rests on delays alone.";
            m.gauge("clock_proven_seconds", help, 0, seconds(ns));
        }
        if let Some(ns) = self.assumed_ns {
            let help = "Error bound if the network errs as it did.";
            m.gauge("clock_assumed_seconds", help, 0, seconds(ns));
        }
        if let Some(ns) = self.utc_bound_ns {
            m.gauge("clock_utc_bound_seconds", "Bound on the error to UTC.", 0, seconds(ns));
        }
        let help = "Windows in which the node was told its time.";
        m.counter("clock_windows_total", help, 0, self.windows);
        let help = "Datagrams of the clock that were refused.";
        m.counter("clock_refused_total", help, 0, self.refused);
        let help = "Bits a second that the node sends for its clock.";
        m.gauge("clock_sent_bits_per_second", help, 0, self.sent_bits_s as f64);
        let help = "Share of a core that the clock takes, with its system calls.";
        m.gauge("clock_core_share", help, 0, self.core_share);
        let help = "Pairs of probes that the node sends in a second.";
        m.gauge("clock_pairs_per_second", help, 0, self.pairs_per_s);
        if self.place == 0 {
            let help = "Nodes that tell their neighbours different times.";
            m.gauge("clock_liars", help, 0, self.liars.len() as f64);
            m.gauge("clock_lost", "Nodes without a probe.", 0, self.lost.len() as f64);
            let help = "Nodes whose clocks left their proven bounds.";
            m.gauge("clock_disrupted", help, 0, self.disrupted.len() as f64);
            let help = "Sources of UTC beyond their bound.";
            m.gauge("clock_sources_dropped", help, 0, self.sources_dropped.len() as f64);
        }
    }
}

/// The standing of a [`ClockMesh`], for other threads and for the owner of its loop.
#[derive(Clone, Debug, Default)]
pub struct MeshView(Arc<Mutex<Standing>>);

impl MeshView {
    /// The last standing.
    pub fn standing(&self) -> Standing {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, standing: &Standing) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone_from(standing);
    }
}

/// A node among the nodes of a mesh.
#[derive(Clone, Debug)]
pub struct MeshMember {
    /// The addresses of all nodes in an order that all nodes share. The reference is the first.
    pub addresses: Vec<SocketAddr>,
    /// The place of this node.
    pub place: u32,
}

/// The cost of the clock, measured over spans of [`COST_EVERY`].
#[derive(Debug)]
struct Cost {
    since: Timestamp,
    bytes: u64,
    probes: u32,
    /// The processor time that the loop has taken for the clock since the loop began.
    spent: CpuMeter,
    /// The processor time that the loop had taken for the clock when the span began.
    before: Duration,
    /// Processor time of a pair of probes, as a mean over spans. The last span has the weight 1/2,
    /// the span before it has the weight 1/4, and so on.
    pair: Option<Duration>,
}

impl Cost {
    fn new(since: Timestamp) -> Self {
        let (spent, before) = (CpuMeter::default(), Duration::ZERO);
        Self { since, bytes: 0, probes: 0, spent, before, pair: None }
    }

    /// If the span is over, puts the figures of the span into the standing and begins the next
    /// span. Returns the cost of a pair of probes if the node sent a pair in the span.
    fn tell(&mut self, now: Timestamp, standing: &mut Standing) -> Option<Duration> {
        let span = now.since(self.since);
        if span < COST_EVERY {
            return None;
        }
        let total = self.spent.total();
        let busy = total.saturating_sub(self.before);
        standing.sent_bits_s = (8.0 * self.bytes as f64 / span.as_secs_f64()) as u64;
        standing.core_share = busy.as_secs_f64() / span.as_secs_f64();
        let pairs = self.probes / 2;
        (self.since, self.bytes, self.probes, self.before) = (now, 0, 0, total);
        if pairs == 0 || busy.is_zero() {
            return None;
        }
        let last = busy / pairs;
        let cost = self.pair.map_or(last, |usual| (usual + last) / 2);
        self.pair = Some(cost);
        Some(cost)
    }
}

/// See the module documentation.
pub struct ClockMesh {
    keeper: Timekeeper,
    plant: Plant,
    source: Option<ClockWatch>,
    /// When the next reading is due.
    tell_at: Timestamp,
    /// The kept lateness of readings, which come late where the process waits for a core: about the
    /// greatest lateness of the last half minute.
    late: Duration,
    events: VecDeque<ClockReading>,
    standing: Standing,
    cost: Cost,
    view: MeshView,
}

fn word(state: ClockState) -> &'static str {
    match state {
        ClockState::Unknown => "unknown",
        ClockState::Synchronised => "synchronised",
        ClockState::FreeRunning => "free-running",
        ClockState::Disrupted => "disrupted",
    }
}

/// A number for the run, which is the same at every node: a hash of all addresses.
fn run_of(addresses: &[SocketAddr]) -> u64 {
    let hash = |hash, address: &SocketAddr| math::fnv1a(hash, format!("{address} ").as_bytes());
    addresses.iter().fold(math::FNV_BASIS, hash)
}

impl ClockMesh {
    /// The clock of a node that begins to probe at `now`. The host's clock gives the base of the
    /// run at the reference, once. `source` is vetted against those of all other nodes.
    ///
    /// # Panics
    /// When the place is not among the addresses.
    pub fn new(
        settings: &ClockSettings,
        member: MeshMember,
        key: Option<&SharedKey>,
        source: Option<SyncSource>,
        (now, plant): (Timestamp, Plant),
    ) -> Self {
        let host = SyncSource::Realtime.read().map_or(0, |reading| reading.offset_ns);
        let unix_s = (now.nanos().saturating_add_signed(host) / 1_000_000_000) as u32;
        let MeshMember { addresses, place } = member;
        let (nodes, run) = (addresses.len() as u32, run_of(&addresses));
        let seat = ClockSeat { addresses, number: place, run, started: unix_s };
        let mut keeper = Timekeeper::new(settings.config(), seat, key, plant.shown(now));
        let ahead = plant.shown(now).signed_since(now);
        keeper.set_base(host.saturating_sub(ahead));
        let neighbours = keeper.neighbours() as u32;
        let standing = Standing {
            place,
            nodes,
            neighbours,
            state: word(ClockState::Unknown),
            budget_bits_s: settings.budget_bits_s,
            budget_core_share: settings.budget_core_share,
            pairs_per_s: keeper.pairs_per_second(),
            ..Standing::default()
        };
        Self {
            keeper,
            plant,
            source: source.and_then(|source| ClockWatch::start(source, SOURCE_EVERY).ok()),
            tell_at: now,
            late: Duration::ZERO,
            events: VecDeque::new(),
            standing,
            cost: Cost::new(now),
            view: MeshView::default(),
        }
    }

    /// Puts every datagram of the clock under a key of its two ends. The reference needs the master
    /// key. `ids` are the ids of all nodes by their places, and `nonce` is a random number.
    ///
    /// # Panics
    /// When the places have not one id each.
    #[must_use]
    pub fn with_node_keys(mut self, keys: EndKeys, ids: Vec<NodeId>, nonce: u64) -> Self {
        self.keeper = self.keeper.with_node_keys(keys, ids, nonce);
        self
    }

    /// The last state of the mesh.
    pub fn view(&self) -> MeshView {
        self.view.clone()
    }

    /// The machine, for a loop.
    pub fn sidecar(self) -> Sidecar {
        Sidecar { magic: MAGIC, meter: self.cost.spent.clone(), machine: Box::new(self) }
    }

    /// The reading of the node's local clock, which may be planted.
    pub fn read(&self, now: Timestamp) -> BoundedReading {
        self.keeper.read(self.plant.shown(now))
    }

    fn take_events(&mut self, now: Timestamp) {
        while let Some(event) = self.keeper.poll_event() {
            match event {
                TimeEvent::Verdict(..) => {
                    self.standing.windows += 1;
                    self.tell_at = now;
                }
                TimeEvent::Solved(health, utc) => {
                    self.standing.liars = health.liars;
                    self.standing.lost = health.lost;
                    self.standing.disrupted = health.disrupted;
                    self.standing.sources_dropped = utc.dropped;
                }
                TimeEvent::LeftOut => self.tell_at = now,
                _ => {}
            }
        }
    }

    fn tell(&mut self, now: Timestamp) {
        self.late = now.since(self.tell_at).max(self.late - self.late / LATE_SHRINKS);
        self.tell_at = now + TELL_EVERY;
        let (reading, next) = (self.read(now), self.read(self.tell_at));
        let standing = &mut self.standing;
        standing.state = word(reading.state);
        (standing.proven_ns, standing.assumed_ns) = (reading.proven_ns, reading.assumed_ns);
        (standing.at_ns, standing.offset_ns) = (now.nanos(), reading.offset_ns);
        let base_ns = self.keeper.base_ns();
        standing.base_ns = base_ns;
        let utc = self.keeper.utc();
        standing.utc_ns = utc.map(|utc| utc.offset_ns.saturating_sub(base_ns));
        standing.utc_bound_ns = utc.map(|utc| utc.bound_ns);
        if let Some(cost) = self.cost.tell(now, standing) {
            self.keeper.set_pair_cost(cost);
            standing.pairs_per_s = self.keeper.pairs_per_second();
        }
        self.view.set(standing);
        if reading.state == ClockState::Unknown {
            return;
        }
        // Messages are stamped from now on, so that the clock is slewed.
        self.keeper.begin_use();
        // The role uses this reading until the next one, which may be late. The reading
        // therefore has the offset of the middle of the time until then. Its bound includes the
        // drift of the clock from the middle to a late end.
        let total = |at: Timestamp, reading: BoundedReading| {
            let ahead = self.plant.shown(at).signed_since(at);
            reading.offset_ns.saturating_add(ahead).saturating_add(base_ns)
        };
        let (from, to) = (total(now, reading), total(self.tell_at, next));
        let added = Duration::from_nanos(from.abs_diff(to));
        let late = LATE_TIMES * self.late.as_secs_f64() / TELL_EVERY.as_secs_f64();
        let meanwhile = added.mul_f64(0.5 + late) + Duration::from_nanos(1);
        let within = |ns| ClockError::Within(Duration::from_nanos(ns) + meanwhile);
        let error = match self.keeper.is_left_out() {
            true => ClockError::Disproved,
            false => reading.assumed_ns.map_or(ClockError::Unknown, within),
        };
        self.events.push_back(ClockReading { offset_ns: from.midpoint(to), error });
    }
}

impl Machine for ClockMesh {
    type Event = ClockReading;

    fn handle(&mut self, now: Timestamp, mut arrival: Arrival) -> Result<(), Malformed> {
        arrival.received = self.plant.shown(arrival.received);
        let done = self.keeper.handle(self.plant.shown(now), arrival);
        self.standing.refused += u64::from(done.is_err());
        self.take_events(now);
        done
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        let shown = self.plant.shown(now);
        if let Some(mut reading) = self.source.as_mut().and_then(ClockWatch::fresh) {
            let ahead = shown.signed_since(now);
            reading.offset_ns = reading.offset_ns.saturating_sub(ahead);
            self.keeper.handle_clock(shown, reading);
        }
        if self.keeper.poll_timeout().is_some_and(|at| at <= shown) {
            self.keeper.handle_timeout(shown);
            self.take_events(now);
        }
        if self.tell_at <= now {
            self.tell(now);
        }
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn handle_sent(&mut self, now: Timestamp, mut sent: Sent) {
        sent.at = sent.at.map(|at| self.plant.shown(at));
        self.keeper.handle_sent(self.plant.shown(now), sent);
    }

    fn poll_event(&mut self) -> Option<ClockReading> {
        self.events.pop_front()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        let transmit = self.keeper.poll_transmit(self.plant.shown(now))?;
        self.cost.bytes += (transmit.len() + OVERHEAD_BYTES) as u64;
        // Only a probe asks for the time of its departure.
        self.cost.probes += u32::from(transmit.token.is_some());
        Some(transmit)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let keeper = self.keeper.poll_timeout().map(|at| self.plant.real(at));
        keeper.into_iter().chain([self.tell_at]).min()
    }
}

#[cfg(test)]
mod tests {
    use evenfall_clock_machine::ClockVerdict;
    use evenfall_clock_machine::wire::{ClockBody, ClockMessage};
    use evenfall_core::StampedBy;
    use evenfall_host::clock::MonotonicClock;

    use super::*;

    #[test]
    fn readings_of_a_node_that_was_left_out_are_disproved_until_the_next_verdict() {
        let addresses = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port))).to_vec();
        let run = run_of(&addresses);
        let now = MonotonicClock::now();
        let member = MeshMember { addresses: addresses.clone(), place: 1 };
        let settings = ClockSettings::default();
        let mut mesh = ClockMesh::new(&settings, member, None, None, (now, Plant::default()));
        let mut hear = |number: u32, body: ClockBody| {
            let datagram = ClockMessage { run, from: 0, number, body }.encode(None);
            let arrival = Arrival::new(addresses[0], datagram, now, StampedBy::Kernel);
            mesh.handle(now, arrival).expect("well formed");
            mesh.handle_timeout(now);
            std::iter::from_fn(|| mesh.poll_event()).last().map(|reading| reading.error)
        };
        let verdict = ClockVerdict {
            horizon: Duration::from_secs(4),
            proven_ns: [-9_000.0, 9_000.0],
            ..ClockVerdict::reference(now)
        };
        let told = ClockBody::Verdict { verdict, base_ns: 7, utc: None };
        assert_eq!(hear(5, ClockBody::Close), None, "nobody has told the node its time");
        assert!(matches!(hear(5, told.clone()), Some(ClockError::Within(_))));
        hear(6, ClockBody::Close);
        assert_eq!(hear(6, ClockBody::LeftOut), Some(ClockError::Disproved));
        hear(7, ClockBody::Close);
        assert!(matches!(hear(7, told), Some(ClockError::Within(_))));
    }
}
