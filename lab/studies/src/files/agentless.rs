//! A policy that needs no agent in the network: the hosts of a read measure their flows and change
//! source ports.
//!
//! A tenant cannot set up paths, and no switch tells a tenant the load of a link. A tenant controls
//! three things:
//!
//! - **the copies' hosts.** A dataserver knows its flows and their rates, so it can estimate the
//!   share of a new flow at its network card. The client estimates the share at its own card. A
//!   probe asks all three dataservers;
//! - **the source port.** Switches hash the port, so a new port gives a random other path. A flow
//!   that is much slower than both cards allow is congested between them. The flow moves to a new
//!   port, and back to the best known port when the new port is slower;
//! - **two copies at once.** When the first copy cannot fill the client's card, a second copy reads
//!   parts of the block. The faster copy takes over parts of the slower copy, so a slow path does
//!   not delay the end of the read. A read never has more than two flows.
//!
//! A flow of which no byte has come for a while is hedged: its part is read from another copy. The
//! wait follows the silences that the hosts have measured ([`Patience`]). A client of `evenfall
//! files` keeps the old connection until the first bytes of the new one. Here the new flow moves
//! its first bytes at once, so the old flow ends at once.
//!
//! `evenfall files get` reads by the same rules for ports and for silence
//! ([`evenfall_files_flow::agentless`]). It does not probe dataservers.
//!
//! The policy does not know which links the paths of two ports share, and therefore not the harm to
//! other flows. It knows that a farther copy takes more links, which others need too, and prefers
//! the nearer one of two copies that promise about the same ([`FARTHER`]).

use std::collections::BTreeMap;
use std::time::Duration;

use evenfall_core::{Prng, Timestamp};
use evenfall_files_flow::agentless::{PORTS_MAX, REST};
use evenfall_files_flow::{
    BeginningRead, Count, FlowId, FlowLeg, FlowRoute, PathChange, PathTrials, Patience, Policy,
    Reroute, ThreeTier, TopologyNode, fair_share,
};

use crate::files::rivals::links_between;

/// Time between two measurements of a flow by its hosts. In 50 ms a flow of 500 Mb/s moves 3 MB,
/// which takes many round trips, and the shortest read is measured twenty times.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A copy one tier farther away has to promise 1 / .7 times the rate to be read instead. With .5 to
/// .8 the mean time is within 2 % of the least one, on other seeds than those of the tables.
const FARTHER: f64 = 0.7;
/// A second copy is read when its card promises at least this part of the rate of the first copy's
/// card, after both were weighed by [`FARTHER`].
const SECOND_MIN: f64 = 0.25;
/// A flow is silent until so many more bytes have come: one packet.
const PACKET_BYTES: f64 = 1_460.0;

/// The record that the two hosts of a flow keep.
struct Seen {
    from: TopologyNode,
    to: TopologyNode,
    moved: f64,
    at: Timestamp,
    /// Bytes a second since the last measurement; before the first, the rate that the cards
    /// promise.
    rate: f64,
    port: u16,
    /// The port before the present one, to which the flow goes back after a trial.
    port_before: u16,
    trials: PathTrials,
    /// When the last packet came, and the bytes up to that packet.
    heard: (Timestamp, f64),
    copies: Vec<TopologyNode>,
    /// The other flow of the same read, if there is one.
    beside: FlowId,
}

/// See the module documentation.
pub struct Agentless {
    spec: ThreeTier,
    prng: Prng,
    flows: BTreeMap<FlowId, Seen>,
    /// For each host, the rate of its fastest flow to or from another rack, in bytes a second. The
    /// rate shows what the links between racks carry, whatever the cards promise.
    widest: BTreeMap<TopologyNode, f64>,
    patience: Patience,
    /// Hosts that fell silent, with the time until which they are not read.
    silent: BTreeMap<TopologyNode, Timestamp>,
}

impl Agentless {
    /// A policy without flows. It takes only the speed of a card and the base round trip from
    /// `spec`.
    pub fn new(spec: ThreeTier, seed: u64) -> Self {
        let (flows, widest, silent) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (prng, patience) = (Prng::new(seed), Patience::default());
        Self { spec, prng, flows, widest, patience, silent }
    }

    /// The share that a card gives to a flow beside the card's other flows, in bytes a second.
    /// `but` is the flow itself, if the card has it already.
    fn promise(&self, fits: impl Fn(&Seen) -> bool, but: Option<FlowId>) -> f64 {
        let beside = self.flows.iter().filter(|(flow, seen)| Some(**flow) != but && fits(seen));
        fair_share(self.spec.host_bytes_per_s, beside.map(|(_, seen)| seen.rate).collect())
    }

    /// Whether two hosts are in one rack. A real client would see this in the base round trip.
    fn is_near(&self, one: TopologyNode, other: TopologyNode) -> bool {
        links_between(&self.spec, one, other) <= 2
    }

    /// The rate that a flow between two hosts may reach: the lower share of both cards, and between
    /// racks at most the fastest rate that either host has seen there.
    fn both(&self, from: TopologyNode, to: TopologyNode, but: Option<FlowId>) -> f64 {
        let sends = self.promise(|seen| seen.from == from, but);
        let cards = sends.min(self.promise(|seen| seen.to == to, but));
        if self.is_near(from, to) {
            return cards;
        }
        let seen = [from, to].into_iter().filter_map(|host| self.widest.get(&host).copied());
        seen.reduce(f64::max).map_or(cards, |widest| cards.min(widest))
    }

    fn leg(
        &mut self,
        now: Timestamp,
        read: &BeginningRead<'_>,
        leg: usize,
        copy: TopologyNode,
    ) -> FlowLeg {
        let (flow, port) = (read.flows[leg], self.prng.next_u64() as u16);
        let rate = self.both(copy, read.client, None);
        let (from, to) = (copy, read.client);
        let seen = Seen {
            from,
            to,
            moved: 0.0,
            at: now,
            rate,
            port,
            port_before: port,
            trials: PathTrials::new(PORTS_MAX),
            heard: (now, 0.0),
            copies: read.copies.to_vec(),
            beside: read.flows[1 - leg],
        };
        self.flows.insert(flow, seen);
        FlowLeg { flow, copy, route: FlowRoute::Port(port), bytes: read.bytes }
    }

    /// Whether the host fell silent a moment ago, so that a probe of it would get no answer.
    fn rests(&self, now: Timestamp, host: TopologyNode) -> bool {
        self.silent.get(&host).is_some_and(|until| now < *until)
    }

    /// Moves a silent flow to the copy that promises most: one that the read does not use, or else
    /// the copy of its other flow. `None` when all of them are silent.
    fn hedge(&mut self, now: Timestamp, flow: FlowId) -> Option<Reroute> {
        let seen = self.flows.get(&flow)?;
        let (own, to) = (seen.from, seen.to);
        let beside = self.flows.get(&seen.beside).map(|other| other.from);
        self.silent.insert(own, now + REST);
        let awake = |copy: &TopologyNode| *copy != own && !self.rests(now, *copy);
        let promise = |copy: &TopologyNode| self.both(*copy, to, Some(flow));
        let others = seen.copies.iter().copied().filter(awake);
        let free = others.clone().filter(|copy| Some(*copy) != beside);
        let best = free.max_by(|one, other| promise(one).total_cmp(&promise(other)));
        let copy = best.or_else(|| others.clone().next())?;
        let (rate, port) = (promise(&copy), self.prng.next_u64() as u16);
        let seen = self.flows.get_mut(&flow)?;
        (seen.from, seen.rate, seen.port, seen.heard.0) = (copy, rate, port, now);
        seen.trials = PathTrials::new(PORTS_MAX);
        Some(Reroute { flow, copy: Some(copy), route: FlowRoute::Port(port) })
    }
}

impl Policy for Agentless {
    fn choose(&mut self, now: Timestamp, read: &BeginningRead<'_>) -> Vec<FlowLeg> {
        let mut copies: Vec<(bool, f64, u32, u64, TopologyNode)> = Vec::new();
        for &copy in read.copies {
            // A real client would see the distance of a copy in the base round trip.
            let away = links_between(&self.spec, copy, read.client);
            let tiers = (away / 2).saturating_sub(1);
            let rate = self.both(copy, read.client, None);
            let worth = (0..tiers).fold(rate, |worth, _| worth * FARTHER);
            copies.push((self.rests(now, copy), worth, away, self.prng.next_u64(), copy));
        }
        copies.sort_by(|one, other| {
            let by_worth = one.0.cmp(&other.0).then(other.1.total_cmp(&one.1));
            by_worth.then(one.2.cmp(&other.2)).then(one.3.cmp(&other.3))
        });
        let (first, second) = (copies[0], copies[1]);
        let rate = self.both(first.4, read.client, None);
        let whole = rate >= self.promise(|seen| seen.to == read.client, None);
        let divide = !whole && !second.0 && second.1 >= SECOND_MIN * first.1;
        let mut legs = vec![self.leg(now, read, 0, first.4)];
        if divide {
            legs.push(self.leg(now, read, 1, second.4));
            for leg in &mut legs {
                leg.bytes /= 2;
            }
        }
        legs
    }

    fn ended(&mut self, _: Timestamp, flow: FlowId) {
        self.flows.remove(&flow);
    }

    fn counted(&mut self, now: Timestamp, counts: &[Count]) -> Vec<Reroute> {
        let mut moves = Vec::new();
        for count in counts {
            let flow = count.flow;
            let Some(seen) = self.flows.get_mut(&flow) else { continue };
            let seconds = now.since(seen.at).as_secs_f64();
            if seconds < LOOK_EVERY.as_secs_f64() / 2.0 {
                continue;
            }
            seen.rate = (count.moved - seen.moved) / seconds;
            (seen.moved, seen.at) = (count.moved, now);
            let silence = now.since(seen.heard.0);
            if count.moved - seen.heard.1 >= PACKET_BYTES {
                seen.heard = (now, count.moved);
                self.patience.heard(silence);
            } else if silence >= self.patience.wait()
                && let Some(hedge) = self.hedge(now, flow)
            {
                moves.push(hedge);
                continue;
            }
            let Some(seen) = self.flows.get_mut(&flow) else { continue };
            let (from, to, rate) = (seen.from, seen.to, seen.rate);
            let near = self.is_near(from, to);
            if !near {
                for host in [from, to] {
                    let widest = self.widest.entry(host).or_insert(0.0);
                    *widest = widest.max(rate);
                }
            }
            // Within a rack there is only one path, so a new port gives no other path.
            let promised = (!near).then(|| self.both(from, to, Some(flow)));
            let seen = self.flows.get_mut(&flow).expect("just seen");
            seen.port = match seen.trials.judge_rate(rate, promised) {
                PathChange::Keep => continue,
                PathChange::Back => seen.port_before,
                PathChange::Try => {
                    seen.port_before = seen.port;
                    self.prng.next_u64() as u16
                }
            };
            moves.push(Reroute { flow, copy: None, route: FlowRoute::Port(seen.port) });
        }
        moves
    }

    fn interval(&self) -> Duration {
        LOOK_EVERY
    }
}
