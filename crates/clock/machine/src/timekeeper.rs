//! The machine on every node: probes, windows, and at the reference the solve.
//!
//! ```text
//!   a == two probes, 20 us apart ==> b      b stamps the arrivals; its next probes carry them back
//!   a <== two probes, 20 us apart == b      the probes after these carry the stamps of departure
//!
//!   reference --close k--> all     all --report k--> reference     reference --verdict k--> each
//! ```
//!
//! Of two neighbours the one with the lower number keeps the stamps of both ways and reports. All
//! windows end at one call of the reference, so that all estimates are of one time. A node that
//! misses the call goes on with its window, and its readings run free meanwhile.
//!
//! When a clock jumps by more than its proven bound, the next probes contradict the proven bounds
//! of the last window. The node that keeps the stamps of a pair tells the reference at once. A node
//! whose clock has jumped contradicts most of its neighbours, and each neighbour contradicts few
//! nodes. Within some probes the reference names the node whose clock has jumped, and tells that
//! node. The node's readings are [`ClockState::Disrupted`](crate::ClockState) until the window
//! after the jump is solved. The end of the window shows jumps that single probes do not show: no
//! line fits between the probes of any pair of the node ([`Gap::Crossed`]), and the solve has no
//! place for the node.
//!
//! When the clock of the reference itself jumps, most neighbours contradict the reference. No other
//! node is left out then, and the other nodes go on by their last verdicts. After the next window
//! the reference knows by how much its clock has jumped, and takes the jump out of its readings.
//! The time of the mesh goes on as if the clock had not jumped.
//!
//! With node keys ([`Timekeeper::with_node_keys`]) every datagram is under a key of its two ends. A
//! node asks the reference for the keys that it has with its neighbours before it probes them.

mod neighbour;
mod reference_state;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::time::nanos;
use evenfall_core::{
    Arrival, ClockError, ClockReading, Destination, EndKeys, HEAD_BYTES_MAX, Head, MacKey, Machine,
    Malformed, NodeId, Sent, SharedKey, StampedBy, Timestamp, Token, TrafficClass, Transmit,
};

use self::neighbour::{Departure, Neighbour, PAIRS_KEPT};
use self::reference_state::ReferenceState;
use crate::ends::ClockEnds;
use crate::sources::{Utc, vet};
use crate::wire::{Claim, ClockBody, ClockMessage, CodedProbe, REPORT_ESTIMATES, stated_sender};
use crate::{
    BoundedReading, ClockEdge, ClockVerdict, CodedPair, Config, Gap, Health, PairEstimate,
    SoftwareClock, graph,
};

/// Headers below a datagram: UDP 8, IPv4 20, Ethernet 14 + 4, preamble and gap 20.
pub const OVERHEAD_BYTES: usize = 66;
/// Pairs that a node sends to one neighbour in a second at most, on average over its life. The
/// default budget gives 20.
const PAIRS_PER_SECOND_MAX: u32 = 1_000;
/// Pairs that a node sends to each neighbour in a window, however much processor time a pair costs.
/// A small budget of bits may allow fewer. Five pairs a window are 50 kb/s for eight neighbours.
/// The errors of simulated nodes are then three times those of the default budget, and all readings
/// keep their bounds.
const PAIRS_PER_WINDOW_MIN: u32 = 5;
/// Time that the reference waits for the reports of a window. Reports are a few packets, and a
/// virtual machine that was paused sends them late. Later reports are ignored.
const REPORT_WAIT: Duration = Duration::from_millis(100);
/// Datagrams that may wait to be sent. The reference of 5,000 nodes queues 5,000 at once. Beyond
/// the limit the oldest is dropped and counted.
const QUEUE_MAX: usize = 8_192;
/// How far one call to send moves the usual time of a call, which is the median: a longer call
/// makes it longer by this share, and a shorter call shorter. Calls that were interrupted count no
/// more than others.
const CALL_STEP: f64 = 1.0 / 64.0;
/// Datagrams in a window by which a node tells the reference that a pair contradicts its bounds.
/// Each of them may be lost.
const JUMPS_TOLD: u32 = 4;
/// Time between two requests of a node for its keys. The reference may be started after the node.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// The context in which the key of the clock's datagrams is derived from the shared key.
const KEY_CONTEXT: &str = "evenfall clock 2026-11 datagrams";

/// A node among all nodes.
#[derive(Clone, Debug)]
pub struct ClockSeat {
    /// Addresses of all nodes, in an order that all nodes share. The first is the reference.
    pub addresses: Vec<SocketAddr>,
    /// The place of this node.
    pub number: u32,
    /// The run: datagrams of another run are refused, and the graph of probes is drawn from it.
    pub run: u64,
    /// A number that grows from one start of this node to the next by one a second at least, such
    /// as the seconds since 1970. Windows and probes are numbered from it, so that the numbers of a
    /// node that was started again are newer than those of its last life.
    pub started: u32,
}

/// An event of the machine for its owner.
#[derive(Clone, Debug, PartialEq)]
pub enum TimeEvent {
    /// A window ended and the node knows its clock anew.
    Verdict(ClockVerdict, Option<Claim>),
    /// A window with a neighbour ended, as this node saw it.
    Window(u32, Result<PairEstimate, Gap>),
    /// Two probes of a neighbour are complete: the neighbour, whether this node sent the probes,
    /// and the stamps. Comparisons with other methods need the stamps.
    Pair(u32, bool, CodedPair),
    /// The reference solved a window.
    Solved(Health, Utc),
    /// The reference left this node out of a solve.
    LeftOut,
}

/// The machine. See the module documentation.
#[derive(Debug)]
pub struct Timekeeper {
    config: Config,
    seat: ClockSeat,
    /// The key of all nodes; not used where there are keys of two ends.
    key: Option<MacKey>,
    /// The keys of two ends.
    ends: Option<Box<ClockEnds>>,
    /// When the node asks for its keys again.
    ask_at: Option<Timestamp>,
    neighbours: Vec<Neighbour>,
    places: BTreeMap<u32, usize>,
    reference_state: Option<ReferenceState>,
    clock: SoftwareClock,
    source: Option<(Timestamp, ClockReading)>,
    utc: Option<Claim>,
    base_ns: i64,
    /// Usual time from asking the port to send a probe until its stamp of departure, where the
    /// program stamps departures. A stamp by the kernel counts as no time.
    call_ns: Option<f64>,
    window: u32,
    /// Next neighbour to probe, and when.
    turn: usize,
    probe_at: Option<Timestamp>,
    second_at: Option<(Timestamp, usize)>,
    gap: Duration,
    /// Datagrams that wait to leave, with the places of their receivers.
    out: VecDeque<(u32, ClockMessage, Option<Token>)>,
    events: VecDeque<TimeEvent>,
    dropped: u64,
    tells_pairs: bool,
}

impl Timekeeper {
    /// A node that begins to probe at `now`.
    ///
    /// # Panics
    /// When the seat is not among the addresses.
    pub fn new(config: Config, seat: ClockSeat, key: Option<&SharedKey>, now: Timestamp) -> Self {
        let nodes = seat.addresses.len() as u32;
        assert!(seat.number < nodes, "a node has a place among all nodes");
        let pairs = graph::pairs(nodes, graph::degree(nodes), seat.run);
        let other = |&(a, b): &(u32, u32)| match seat.number {
            n if n == a => Some(b),
            n if n == b => Some(a),
            _ => None,
        };
        let neighbours: Vec<Neighbour> =
            pairs.iter().filter_map(other).map(|number| Neighbour::new(number, &seat)).collect();
        let places = neighbours.iter().enumerate().map(|(k, n)| (n.number, k)).collect();
        let key = key.map(Self::shared_code);
        let reference_state = (seat.number == 0).then(|| ReferenceState::new(&config, nodes, now));
        let mut clock = SoftwareClock::new(config.clone());
        if reference_state.is_some() {
            // The time of the mesh is that of the reference from the first moment on.
            clock.follow(now, ClockVerdict::reference(now));
        }
        let gap = config.gap_by_bits();
        // Nodes begin to probe at different instants.
        let phase = nanos(gap) * u64::from(seat.number % 64) / 64;
        Self {
            clock,
            config,
            key,
            ends: None,
            ask_at: None,
            places,
            reference_state,
            source: None,
            utc: None,
            base_ns: 0,
            call_ns: None,
            window: if seat.number == 0 { seat.started } else { 0 },
            turn: 0,
            probe_at: (!neighbours.is_empty()).then(|| now + Duration::from_nanos(phase)),
            second_at: None,
            gap,
            out: VecDeque::new(),
            events: VecDeque::new(),
            dropped: 0,
            tells_pairs: false,
            neighbours,
            seat,
        }
    }

    /// Puts every datagram under a key of its two ends. The reference needs the master key. `ids`
    /// are the ids of all nodes by their places, and `nonce` is a random number for this life of
    /// the node.
    ///
    /// # Panics
    /// When the places have not one id each.
    #[must_use]
    pub fn with_node_keys(mut self, keys: EndKeys, ids: Vec<NodeId>, nonce: u64) -> Self {
        let nodes = self.seat.addresses.len() as u32;
        assert_eq!(ids.len(), nodes as usize, "a place has one id");
        let pairs = graph::pairs(nodes, graph::degree(nodes), self.seat.run);
        self.ends = Some(Box::new(ClockEnds::new(keys, ids, self.seat.number, &pairs, nonce)));
        self.ask_at = self.probe_at.filter(|_| self.seat.number > 0);
        self
    }

    /// Gives a [`TimeEvent::Pair`] for every pair of probes that is completed after this call.
    pub fn tell_pairs(&mut self) {
        self.tells_pairs = true;
    }

    /// The clock at the local time `now`: offset to the time of the reference, and bounds.
    ///
    /// Where the program stamps departures, a probe left at an unknown time within the call that
    /// sent the probe. The assumed bound then allows for half of this call at this node and at the
    /// reference.
    pub fn read(&self, now: Timestamp) -> BoundedReading {
        let mut reading = self.clock.read(now);
        if self.reference_state.is_none() {
            let most = reading.proven_ns.unwrap_or(u64::MAX);
            let call = self.call_ns.unwrap_or(0.0) as u64;
            let with_call = |bound: u64| bound.saturating_add(call).min(most);
            reading.assumed_ns = reading.assumed_ns.map(with_call);
        }
        reading
    }

    /// Nanoseconds to add to the time of the reference, so that stamps count from 1970. The
    /// reference chooses the number once, and all nodes adopt it with their first verdict.
    pub fn base_ns(&self) -> i64 {
        self.base_ns
    }

    /// Sets the base of the run; at the reference, before the first window.
    pub fn set_base(&mut self, base_ns: i64) {
        self.base_ns = base_ns;
    }

    /// Tells the processor time that a pair of probes costs the node. The node then sends as many
    /// pairs as the budgets of bits and of processor time allow. The budget of processor time
    /// always allows five pairs a window to each neighbour.
    pub fn set_pair_cost(&mut self, cost: Duration) {
        let pairs = PAIRS_PER_WINDOW_MIN * self.neighbours.len().max(1) as u32;
        let (most, share) = (self.config.window / pairs, self.config.budget_core_share);
        let by_cost = Duration::try_from_secs_f64(cost.as_secs_f64() / share);
        let by_cost = by_cost.map_or(most, |gap| gap.min(most));
        self.gap = self.config.gap_by_bits().max(by_cost);
    }

    /// Pairs of probes that the node sends in a second now.
    pub fn pairs_per_second(&self) -> f64 {
        self.gap.as_secs_f64().recip()
    }

    /// Nodes that this node exchanges probes with.
    pub fn neighbours(&self) -> usize {
        self.neighbours.len()
    }

    /// UTC less the time of the reference, as the vetted sources have it.
    pub fn utc(&self) -> Option<Claim> {
        self.utc
    }

    /// The first message is about to be stamped: the clock does not step any more.
    pub fn begin_use(&mut self) {
        self.clock.begin_use();
    }

    /// The code under the shared key.
    pub(crate) fn shared_code(key: &SharedKey) -> MacKey {
        let (id, bytes) = key.derive(KEY_CONTEXT);
        MacKey::new(id, &bytes)
    }

    /// All keys of two ends that this node knows.
    pub(crate) fn known_keys(&self) -> impl Iterator<Item = &MacKey> {
        self.ends.iter().flat_map(|ends| ends.known_keys())
    }

    /// Whether the last solve left this node out: its clock has left its proven bound, or tells
    /// different neighbours different times.
    pub fn is_left_out(&self) -> bool {
        self.clock.is_held()
    }

    /// Datagrams that found the queue full.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn queue(&mut self, to: u32, number: u32, body: ClockBody, token: Option<Token>) {
        // The key of a neighbour may be on its way.
        if self.ends.as_ref().is_some_and(|ends| !ends.reaches(to)) {
            return;
        }
        if self.out.len() == QUEUE_MAX {
            self.out.pop_front();
            self.dropped += 1;
        }
        let message = ClockMessage { run: self.seat.run, from: self.seat.number, number, body };
        self.out.push_back((to, message, token));
    }

    /// Queues one probe of the present pair with a neighbour.
    fn probe(&mut self, now: Timestamp, k: usize, second: bool) {
        let neighbour = &mut self.neighbours[k];
        if !second {
            neighbour.next = neighbour.next.wrapping_add(1).max(1);
            let departure = Departure { number: neighbour.next, ..Departure::default() };
            neighbour.departures.push_back(departure);
            if neighbour.departures.len() > PAIRS_KEPT {
                neighbour.departures.pop_front();
            }
        }
        let number = neighbour.next;
        let before = neighbour.departures.iter().rev().find(|departure| departure.number != number);
        let departed = before
            .filter(|before| before.number.wrapping_add(1) == number)
            .map_or([Timestamp::ZERO; 2], Departure::at);
        let (heard_number, heard) = neighbour.heard;
        let probe = CodedProbe { second, sent: now, departed, heard_number, heard };
        let token = (k as u64) << 33 | u64::from(number) << 1 | u64::from(second);
        let to = neighbour.number;
        self.queue(to, number, ClockBody::Probe(probe), Some(Token(token)));
    }

    fn take_probe(
        &mut self,
        k: usize,
        number: u32,
        probe: &CodedProbe,
        arrival: &Arrival,
    ) -> Result<(), Malformed> {
        let tolerance = self.config.tolerance;
        let neighbour = &mut self.neighbours[k];
        let is_proven = match &self.ends {
            Some(_) => neighbour.admit(arrival.received, number, probe),
            None => Some(true),
        };
        let old = Malformed { what: "a probe of an earlier time", offset: 20 };
        let is_proven = is_proven.ok_or(old)?;
        let mut told: [Option<(bool, CodedPair)>; 2] = [None; 2];
        let mut defies = false;
        neighbour.arrived(number, probe, arrival.received);
        if !is_proven {
            return Ok(());
        }
        // The stamps of departure of the pair before complete what came in.
        if let Some(pair) = neighbour.completed(number.wrapping_sub(1), probe.departed) {
            if let Some(meter) = &mut neighbour.meter {
                defies |= meter.incoming_defies(&pair, &self.config);
                meter.incoming(pair, tolerance);
            }
            told[0] = Some((false, pair));
        }
        if let Some(pair) = neighbour.echoed(probe) {
            if let Some(meter) = &mut neighbour.meter {
                defies |= meter.outgoing_defies(&pair, &self.config);
                meter.outgoing(pair, tolerance);
            }
            told[1] = Some((true, pair));
        }
        if defies && neighbour.defying < JUMPS_TOLD {
            neighbour.defying += 1;
            let other = neighbour.number;
            if self.reference_state.is_some() {
                self.accuse(0, other);
            } else {
                self.queue(0, other, ClockBody::Jump { window: self.window }, None);
            }
        }
        let neighbour = &mut self.neighbours[k];
        if self.tells_pairs {
            let number = neighbour.number;
            let event = |(ours, pair)| TimeEvent::Pair(number, ours, pair);
            self.events.extend(told.into_iter().flatten().map(event));
        }
        Ok(())
    }

    /// The key of a datagram, by the sender that it names.
    fn key_of_sender(&self, datagram: &[u8]) -> Result<Option<MacKey>, Malformed> {
        let Some(ends) = &self.ends else { return Ok(self.key.clone()) };
        let what = "from a node that has no key with this node";
        let key = ends.key_with(stated_sender(datagram)?);
        key.map(Some).ok_or(Malformed { what, offset: 16 })
    }

    /// The number that the reference has to repeat before this node believes its windows.
    fn unanswered(&self) -> Option<u64> {
        self.ends.as_ref().and_then(|ends| ends.unanswered())
    }

    /// Sends a node the keys that it has with its neighbours.
    fn answer(&mut self, node: u32, nonce: u64) {
        // Requests that somebody recorded and sends again must not crowd out verdicts.
        let has_room = self.out.len() < QUEUE_MAX / 2;
        let keys = self.ends.as_ref().filter(|_| has_room).and_then(|ends| ends.answer(node));
        if let Some(keys) = keys {
            self.queue(node, self.window, ClockBody::Keys { nonce, keys }, None);
        }
    }

    /// A window ends at `now`.
    fn close(&mut self, now: Timestamp, window: u32) {
        if window <= self.window {
            return;
        }
        self.window = window;
        let mut estimates = Vec::new();
        for neighbour in &mut self.neighbours {
            neighbour.defying = 0;
            let Some(meter) = &mut neighbour.meter else { continue };
            let estimate = meter.close(now, &self.config);
            let told = match estimate {
                Err(Gap::Crossed) => Some(PairEstimate::crossed(now)),
                estimate => estimate.ok(),
            };
            estimates.extend(told.map(|told| (neighbour.number, told)));
            self.events.push_back(TimeEvent::Window(neighbour.number, estimate));
        }
        let source = self.claim(now);
        if self.reference_state.is_some() {
            self.file(0, source, &estimates);
            return;
        }
        let mut parts: Vec<Vec<_>> =
            estimates.chunks(REPORT_ESTIMATES).map(<[_]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        for estimates in parts {
            self.queue(0, window, ClockBody::Report { source, estimates }, None);
        }
    }

    /// The claim of the host's own source, if the source states a bound and was read in this
    /// window.
    fn claim(&self, now: Timestamp) -> Option<Claim> {
        let (at, reading) = self.source.filter(|(at, _)| now.since(*at) <= self.config.window)?;
        let ClockError::Within(bound) = reading.error else { return None };
        let drift = nanos(now.since(at)) / 1_000_000 * u64::from(self.config.drift_ppb_max) / 1_000;
        Some(Claim { offset_ns: reading.offset_ns, bound_ns: nanos(bound).saturating_add(drift) })
    }

    fn file(&mut self, from: u32, source: Option<Claim>, estimates: &[(u32, PairEstimate)]) {
        // A report that comes after the solve is ignored.
        let reference_state = self
            .reference_state
            .as_mut()
            .filter(|reference_state| reference_state.solve_at.is_some());
        let Some(reference_state) = reference_state else { return };
        reference_state.sources.extend(source.map(|claim| (from, claim)));
        for &(peer, estimate) in estimates {
            if from >= peer || peer as usize >= self.seat.addresses.len() {
                continue;
            }
            if estimate.is_crossed() {
                reference_state.crossed.insert((from, peer));
            } else {
                reference_state.edges.insert((from, peer), estimate);
            }
        }
    }

    /// Notes that the clock of `a` or the clock of `b` has jumped. Leaves out a node as soon as
    /// most of its neighbours contradict the node.
    fn accuse(&mut self, a: u32, b: u32) {
        let Some(reference_state) = &mut self.reference_state else { return };
        let known =
            |node: u32| reference_state.degrees.get(node as usize).is_some_and(|pairs| *pairs > 0);
        if !known(a) || !known(b) || a >= b {
            return;
        }
        reference_state.crossed.insert((a, b));
        let is_new = |&node: &u32| {
            !reference_state.jumped.contains(&node) && reference_state.is_contradicted(node)
        };
        let found: Vec<u32> = [a, b].into_iter().filter(is_new).collect();
        reference_state.jumped.extend(&found);
        found.into_iter().for_each(|node| self.leave_out(node));
    }

    fn leave_out(&mut self, node: u32) {
        if node == 0 {
            self.clock.hold();
            self.events.push_back(TimeEvent::LeftOut);
        } else {
            self.queue(node, self.window, ClockBody::LeftOut, None);
        }
    }

    /// The reference has waited for the reports.
    fn solve(&mut self, now: Timestamp) {
        let Some(reference_state) = &mut self.reference_state else { return };
        reference_state.solve_at = None;
        let edges = core::mem::take(&mut reference_state.edges);
        let edge = |((a, b), estimate)| ClockEdge { a, b, estimate };
        let edges: Vec<ClockEdge> = edges.into_iter().map(edge).collect();
        let has_lost_itself = reference_state.has_lost_itself(&edges);
        let crossed = core::mem::take(&mut reference_state.crossed);
        let jumped = core::mem::take(&mut reference_state.jumped);
        // Verdicts are offsets to the clock of this node. While that clock is the wrong one, none
        // is given.
        if has_lost_itself {
            reference_state.is_astray = true;
            reference_state.sources.clear();
            let health = Health { disrupted: vec![0], ..Health::default() };
            self.events.push_back(TimeEvent::Solved(health, Utc::default()));
            self.leave_out(0);
            return;
        }
        // The time of the run goes on as before the jump: all verdicts are shifted back by it.
        if core::mem::take(&mut reference_state.is_astray) {
            let by =
                reference_state.mesh.reference_jumped(reference_state.closed, &edges).unwrap_or(0);
            reference_state.shift_ns = reference_state.shift_ns.saturating_sub(by);
        }
        reference_state.count(&edges);
        let (mut verdicts, mut health) = reference_state.mesh.solve(reference_state.closed, &edges);
        for verdict in verdicts.iter_mut().flatten() {
            verdict.offset_ns = verdict.offset_ns.saturating_add(reference_state.shift_ns);
        }
        let utc = vet(&reference_state.witnesses(&verdicts, &self.config));
        health.name_disrupted(&jumped, &crossed);
        let window = self.window;
        for &number in health.disrupted.iter().chain(&health.liars) {
            self.leave_out(number);
        }
        for (number, verdict) in verdicts.into_iter().enumerate() {
            let Some(verdict) = verdict.filter(|_| !jumped.contains(&(number as u32))) else {
                continue;
            };
            if number == 0 {
                self.adopt(now, verdict, utc.claim);
            } else {
                let body = ClockBody::Verdict { verdict, base_ns: self.base_ns, utc: utc.claim };
                self.queue(number as u32, window, body, None);
            }
        }
        self.events.push_back(TimeEvent::Solved(health, utc));
    }

    /// Sets the timers anew when the local clock has jumped. A jump back would leave every timer
    /// far ahead. A jump ahead would end a window in which no probe is from after the jump.
    fn mind_own_jump(&mut self, now: Timestamp) {
        let soonest = |at: Timestamp, within: Duration| at.min(now + within);
        self.probe_at = self.probe_at.map(|at| soonest(at, self.gap));
        self.second_at = self.second_at.map(|(at, k)| (soonest(at, self.config.spacing), k));
        self.ask_at = self.ask_at.map(|at| soonest(at, ASK_EVERY));
        let Some(reference_state) = &mut self.reference_state else { return };
        reference_state.close_at = soonest(reference_state.close_at, self.config.window);
        reference_state.solve_at = reference_state.solve_at.map(|at| soonest(at, REPORT_WAIT));
        if now.since(reference_state.close_at) > self.config.window {
            reference_state.close_at = now + self.config.window;
        }
    }

    fn adopt(&mut self, now: Timestamp, verdict: ClockVerdict, utc: Option<Claim>) {
        self.clock.follow(now, verdict);
        self.utc = utc;
        self.events.push_back(TimeEvent::Verdict(verdict, utc));
    }
}

impl Machine for Timekeeper {
    type Event = TimeEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        self.mind_own_jump(now);
        let key = self.key_of_sender(&arrival.datagram)?;
        let message = ClockMessage::decode(&arrival.datagram, key.as_ref())?;
        let stranger = Malformed { what: "not of this run", offset: 8 };
        if message.run != self.seat.run
            || self.seat.addresses.get(message.from as usize) != Some(&arrival.from)
        {
            return Err(stranger);
        }
        match message.body {
            ClockBody::Probe(probe) => {
                let k = *self.places.get(&message.from).ok_or(stranger)?;
                return self.take_probe(k, message.number, &probe, &arrival);
            }
            // A node that has just begun cannot tell present windows from recorded ones.
            ClockBody::Close | ClockBody::Verdict { .. } | ClockBody::LeftOut
                if self.unanswered().is_some() => {}
            ClockBody::Close if message.from == 0 => self.close(arrival.received, message.number),
            ClockBody::Report { source, estimates } if message.number == self.window => {
                self.file(message.from, source, &estimates);
            }
            // A verdict of an earlier window came late, and is ignored.
            ClockBody::Verdict { verdict, base_ns, utc }
                if message.from == 0 && message.number == self.window =>
            {
                if base_ns != self.base_ns {
                    // Another reference: its local clock may be years from the local clock of the
                    // last reference.
                    self.clock = SoftwareClock::new(self.config.clone());
                    self.base_ns = base_ns;
                }
                self.adopt(now, verdict, utc);
            }
            // The call that ends a window may be on its way to the node.
            ClockBody::Jump { window } if self.window.wrapping_sub(window) <= 1 => {
                self.accuse(message.from, message.number);
            }
            ClockBody::KeyRequest { nonce } => self.answer(message.from, nonce),
            ClockBody::Keys { nonce, keys } if message.from == 0 => {
                let ends = self.ends.as_mut();
                if ends.is_some_and(|ends| ends.take_answer(nonce, &keys)) {
                    self.ask_at = None;
                    self.window = self.window.max(message.number);
                }
            }
            ClockBody::LeftOut if message.from == 0 && message.number == self.window => {
                self.clock.hold();
                self.events.push_back(TimeEvent::LeftOut);
            }
            _ => {}
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.mind_own_jump(now);
        if let Some((_, k)) = self.second_at.filter(|(at, _)| *at <= now) {
            self.second_at = None;
            self.probe(now, k, true);
        }
        if self.second_at.is_none() && self.probe_at.is_some_and(|at| at <= now) {
            let k = self.turn;
            self.turn = (k + 1) % self.neighbours.len();
            self.probe(now, k, false);
            self.second_at = Some((now + self.config.spacing, k));
            // After a pause the probes that were not sent are left out, so that no second exceeds
            // the budget.
            self.probe_at = Some(now + self.gap);
        }
        if let Some(nonce) = self.unanswered().filter(|_| self.ask_at.is_some_and(|at| at <= now)) {
            self.ask_at = Some(now + ASK_EVERY);
            self.queue(0, 0, ClockBody::KeyRequest { nonce }, None);
        }
        let Some(reference_state) = &mut self.reference_state else { return };
        if reference_state.solve_at.is_some_and(|at| at <= now) {
            self.solve(now);
        }
        let Some(reference_state) = &mut self.reference_state else { return };
        if reference_state.close_at <= now {
            reference_state.close_at = now + self.config.window;
            reference_state.solve_at = Some(now + REPORT_WAIT);
            reference_state.closed = now;
            let window = self.window.saturating_add(1);
            self.close(now, window);
            for number in 1..self.seat.addresses.len() as u32 {
                self.queue(number, window, ClockBody::Close, None);
            }
        }
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.source = Some((now, reading));
    }

    fn handle_sent(&mut self, _: Timestamp, sent: Sent) {
        let Token(token) = sent.token;
        let (k, number, half) = ((token >> 33) as usize, (token >> 1) as u32, (token & 1) as usize);
        // A stamp that this process takes after the call may be later than the departure. The delay
        // would then look too short, and the proven bound would be wrong. Such a stamp therefore
        // only tells how long the call took.
        let Some(neighbour) = self.neighbours.get_mut(k) else { return };
        let departure = neighbour.departures.iter_mut().find(|own| own.number == number);
        let Some(departure) = departure else { return };
        let Some(at) = sent.at else { return };
        let call = match sent.stamped_by {
            StampedBy::User => at.since(departure.asked[half]).as_nanos() as f64,
            StampedBy::Kernel | StampedBy::Hardware => {
                departure.left[half] = Some(at);
                0.0
            }
        };
        let moved = |usual: f64| {
            let step = if call > usual { CALL_STEP } else { -CALL_STEP };
            (usual * (1.0 + step)).max(1.0)
        };
        self.call_ns = Some(self.call_ns.map_or(call, moved));
    }

    fn poll_event(&mut self) -> Option<TimeEvent> {
        self.events.pop_front()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        let (to, mut message, token) = self.out.pop_front()?;
        if let ClockBody::Probe(probe) = &mut message.body {
            probe.sent = now;
        }
        if let Some(Token(token)) = token {
            let (k, number) = ((token >> 33) as usize, (token >> 1) as u32);
            let departures = &mut self.neighbours[k].departures;
            if let Some(own) = departures.iter_mut().find(|own| own.number == number) {
                own.asked[(token & 1) as usize] = now;
            }
        }
        let key = match &self.ends {
            // Only datagrams to nodes with a key are queued.
            Some(ends) => Some(ends.key_with(to)?),
            None => self.key.clone(),
        };
        let to = self.seat.addresses[to as usize];
        let bytes = message.encode(key.as_ref());
        let (head, body) = if bytes.len() <= HEAD_BYTES_MAX {
            (Head::new(&bytes), Bytes::new())
        } else {
            (Head::new(&bytes[..HEAD_BYTES_MAX]), bytes.slice(HEAD_BYTES_MAX..))
        };
        let transmit = Transmit::new(TrafficClass::Control, Destination::One(to), head, body);
        Some(match token {
            Some(token) => transmit.asking(token),
            None => transmit,
        })
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let reference_state = self.reference_state.as_ref();
        let second = self.second_at.map(|(at, _)| at);
        let probe = self.probe_at.filter(|_| second.is_none());
        let close = reference_state.map(|reference_state| reference_state.close_at);
        let solve = reference_state.and_then(|reference_state| reference_state.solve_at);
        [second, probe, self.ask_at, close, solve].into_iter().flatten().min()
    }
}
