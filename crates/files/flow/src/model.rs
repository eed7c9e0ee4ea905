//! What is known of the network: the flows on it, their shares and what is left of them.
//!
//! Nobody reserves bandwidth, so every share here is an estimate. Three things keep it near the
//! truth (thesis, 3.2.2):
//!
//! - a new flow is given its share by the max-min rule, and the flows on its path are cut by the
//!   same rule. Flows on other paths may gain by that; the gain is left out until it is measured;
//! - when a flow ends, the flows that met it are filled anew within what all others leave;
//! - byte counts come every second or every few seconds. They correct what is left at once, and
//!   the share once the flow is older than the freeze: the first second of a flow is a start and
//!   not a share, and a path that looks empty for a second would draw every new read.

use core::time::Duration;
use std::collections::BTreeMap;

use evenfall_core::Timestamp;

use crate::shares::{cut, newcomer};
use crate::topology::{Link, LinkIndex};

/// The name of a flow, given by who starts it. A read from two copies is two flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

/// Settings of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// For how long after its start a flow keeps the share that it was given, whatever is
    /// measured. One second, as in the thesis: one interval of the byte counters of a switch.
    pub freeze: Duration,
    /// Bytes that are taken to be left of a flow of unknown size until 16 sizes are known, from
    /// then on their mean. 128 MB is the block of HDFS and of the thesis.
    pub elephant_bytes: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { freeze: Duration::from_secs(1), elephant_bytes: 128e6 }
    }
}

/// How many of the last known sizes stand behind the mean: enough that a single large file does
/// not set it, few enough that a new kind of load shows within seconds.
const SIZES: f64 = 16.0;

/// A flow as the model sees it.
#[derive(Clone, Debug)]
struct Flow {
    id: FlowId,
    path: Box<[LinkIndex]>,
    /// Estimated bytes left at `since`; of a flow of unknown size always the mean.
    left: f64,
    since: Timestamp,
    size: Option<f64>,
    begun: Timestamp,
    counted: f64,
    counted_at: Timestamp,
}

/// What a new flow on a path would get and cost: the parts of equation 3.2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Bytes a second of the new flow.
    pub share: f64,
    /// Seconds that the flows on the path end later, summed over all of them.
    pub harm_s: f64,
}

impl Estimate {
    /// Equation 3.2: the time of the new flow and the harm to others.
    pub fn cost_s(&self, bytes: f64) -> f64 {
        bytes / self.share + self.harm_s
    }
}

/// An estimate, and what would be left to the other half of the same read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Weighed {
    pub(crate) estimate: Estimate,
    /// Share of the other half; `None` when there is no other half.
    pub(crate) half: Option<f64>,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Model {
    config: Config,
    capacity: Vec<f64>,
    /// Slots of the flows on each link.
    on: Vec<Vec<u32>>,
    flows: Vec<Option<Flow>>,
    /// Estimated bytes a second of each flow. Apart, because a decision reads the shares of all
    /// flows on 48 paths and little else.
    shares: Vec<f64>,
    free: Vec<u32>,
    ids: BTreeMap<FlowId, u32>,
    elephant_bytes: f64,
    marks: Marks,
}

/// Scratch that outlives a call, so that a decision allocates nothing.
#[derive(Clone, Debug, Default)]
struct Marks {
    /// The round in which a flow was last seen, and the share it would be cut to.
    flows: Vec<(u32, f64)>,
    round: u32,
    touched: Vec<u32>,
    /// The share of a newcomer on each link, and the sum of all shares there, by round.
    links: Vec<(u32, f64, f64)>,
    links_round: u32,
}

impl Model {
    /// A network of these links, without flows.
    pub fn new(config: Config, links: &[Link]) -> Self {
        let elephant_bytes = config.elephant_bytes;
        let marks = Marks { links: vec![(0, 0.0, 0.0); links.len()], ..Marks::default() };
        Self {
            config,
            capacity: links.iter().map(|link| link.bytes_per_s).collect(),
            on: vec![Vec::new(); links.len()],
            flows: Vec::new(),
            shares: Vec::new(),
            free: Vec::new(),
            ids: BTreeMap::new(),
            elephant_bytes,
            marks,
        }
    }

    /// How many flows are known.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether no flow is known.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether the flow is known.
    pub fn knows(&self, id: FlowId) -> bool {
        self.ids.contains_key(&id)
    }

    /// The estimated share of a flow, in bytes a second.
    pub fn share(&self, id: FlowId) -> Option<f64> {
        self.ids.get(&id).map(|&slot| self.shares[slot as usize])
    }

    /// Sets the share of a flow, in bytes a second, as if it had been measured.
    pub fn set_share(&mut self, now: Timestamp, id: FlowId, bytes_per_s: f64) {
        if let Some(&slot) = self.ids.get(&id) {
            self.give(now, slot, bytes_per_s);
        }
    }

    /// The estimated bytes that are left of a flow.
    pub fn left(&self, now: Timestamp, id: FlowId) -> Option<f64> {
        self.ids.get(&id).map(|&slot| self.left_of(now, slot))
    }

    /// The share that the path alone would give to a new flow: the least over its links. Infinite
    /// where the path has no links.
    ///
    /// The shares of links are remembered until [`Self::forget_links`], because the candidates of
    /// one decision share most of their links.
    pub(crate) fn share_on(&mut self, path: &[LinkIndex]) -> f64 {
        let mut share = f64::INFINITY;
        for &link in path {
            share = share.min(self.newcomer_on(link));
        }
        share
    }

    /// Begins a decision: shares of links are computed anew.
    pub(crate) fn forget_links(&mut self) {
        self.marks.links_round = self.marks.links_round.wrapping_add(1);
        if self.marks.links_round == 0 {
            self.marks.links.fill((0, 0.0, 0.0));
            self.marks.links_round = 1;
        }
    }

    /// Equation 3.2 for a path. The flow `half`, the other half of the same read, is no harmed
    /// stranger: what is left to it is told apart. `None` as soon as the harm exceeds `harm_max_s`.
    pub(crate) fn weigh(
        &mut self,
        now: Timestamp,
        path: &[LinkIndex],
        half: Option<FlowId>,
        harm_max_s: f64,
    ) -> Option<Weighed> {
        let share = self.share_on(path);
        self.cut_along(path, share);
        let half = half.and_then(|id| self.ids.get(&id).copied());
        let mut half_share = half.map(|slot| self.shares[slot as usize]);
        let mut harm_s = 0.0;
        for &slot in &self.marks.touched {
            let share = self.shares[slot as usize];
            let reduced = self.marks.flows[slot as usize].1;
            if reduced >= share {
                continue;
            }
            if Some(slot) == half {
                half_share = Some(reduced);
            } else {
                let left = self.left_of(now, slot);
                harm_s += left / reduced - left / share;
                if harm_s > harm_max_s {
                    return None;
                }
            }
        }
        Some(Weighed { estimate: Estimate { share, harm_s }, half: half_share })
    }

    /// What a new flow on this path would get and cost.
    pub fn estimate(&mut self, now: Timestamp, path: &[LinkIndex]) -> Estimate {
        self.forget_links();
        self.weigh(now, path, None, f64::INFINITY).expect("no harm exceeds infinity").estimate
    }

    /// Takes in a new flow and cuts the flows on its path. Returns its share. A flow of the same
    /// name is replaced. Bytes are `None` when nobody knows the size.
    pub fn add(
        &mut self,
        now: Timestamp,
        id: FlowId,
        path: &[LinkIndex],
        bytes: Option<f64>,
    ) -> f64 {
        self.remove(now, id);
        self.forget_links();
        let share = self.share_on(path);
        self.cut_along(path, share);
        for at in 0..self.marks.touched.len() {
            let slot = self.marks.touched[at];
            let reduced = self.marks.flows[slot as usize].1;
            if reduced < self.shares[slot as usize] {
                self.give(now, slot, reduced);
            }
        }
        if let Some(bytes) = bytes {
            self.elephant_bytes += (bytes - self.elephant_bytes) / SIZES;
        }
        let flow = Flow {
            id,
            path: path.into(),
            left: bytes.unwrap_or(self.elephant_bytes),
            since: now,
            size: bytes,
            begun: now,
            counted: 0.0,
            counted_at: now,
        };
        self.insert(flow, share);
        share
    }

    fn insert(&mut self, flow: Flow, share: f64) {
        let slot = self.free.pop().unwrap_or(self.flows.len() as u32);
        if slot as usize == self.flows.len() {
            self.flows.push(None);
            self.shares.push(0.0);
            self.marks.flows.push((0, 0.0));
        }
        for &link in &flow.path {
            self.on[link.0 as usize].push(slot);
        }
        self.ids.insert(flow.id, slot);
        self.flows[slot as usize] = Some(flow);
        self.shares[slot as usize] = share;
    }

    /// Takes a flow out, and gives what it leaves to the flows that met it. Returns whether the
    /// flow was known.
    pub fn remove(&mut self, now: Timestamp, id: FlowId) -> bool {
        let Some(slot) = self.ids.remove(&id) else { return false };
        let flow = self.flows[slot as usize].take().expect("a named flow is there");
        self.free.push(slot);
        for &link in &flow.path {
            self.on[link.0 as usize].retain(|&other| other != slot);
        }
        self.refill(now, &flow.path);
        true
    }

    /// Takes back [`Self::add`]: the flow goes, and every other flow has the share of before.
    pub(crate) fn undo(&mut self, now: Timestamp, id: FlowId, before: &[(FlowId, f64)]) {
        let Some(slot) = self.ids.remove(&id) else { return };
        let flow = self.flows[slot as usize].take().expect("a named flow is there");
        self.free.push(slot);
        for &link in &flow.path {
            self.on[link.0 as usize].retain(|&other| other != slot);
        }
        for &(id, share) in before {
            self.set_share(now, id, share);
        }
    }

    /// The shares of all flows that meet a path.
    pub(crate) fn shares_along(&mut self, path: &[LinkIndex]) -> Vec<(FlowId, f64)> {
        self.touch(path);
        let slots = self.marks.touched.iter();
        slots.map(|&slot| (self.flow(slot).id, self.shares[slot as usize])).collect()
    }

    /// A byte count: so many bytes of the flow have passed since it began.
    pub fn count(&mut self, now: Timestamp, id: FlowId, moved: f64) {
        let freeze = self.config.freeze;
        let Some(&slot) = self.ids.get(&id) else { return };
        let flow = self.flows[slot as usize].as_mut().expect("a named flow is there");
        let seconds = now.since(flow.counted_at).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let measured = (moved - flow.counted).max(0.0) / seconds;
        (flow.counted, flow.counted_at) = (moved, now);
        if let Some(size) = flow.size {
            (flow.left, flow.since) = ((size - moved).max(0.0), now);
        }
        if now.since(flow.begun) > freeze {
            // A flow that has stopped still takes its turn at every link: a share of nothing would
            // make its end infinitely late.
            let least = flow.path.iter().map(|link| self.capacity[link.0 as usize]);
            let least = least.fold(f64::INFINITY, f64::min) / 1e3;
            self.shares[slot as usize] = measured.max(least);
        }
    }

    /// Forgets flows that were neither begun nor counted for so long: their ends died unheard.
    pub fn expire(&mut self, now: Timestamp, silence: Duration) -> Vec<FlowId> {
        let dead = |flow: &&Flow| now.since(flow.counted_at) > silence;
        let dead: Vec<_> = self.flows.iter().flatten().filter(dead).map(|flow| flow.id).collect();
        for &id in &dead {
            self.remove(now, id);
        }
        dead
    }

    fn flow(&self, slot: u32) -> &Flow {
        self.flows[slot as usize].as_ref().expect("a listed flow is there")
    }

    fn left_of(&self, now: Timestamp, slot: u32) -> f64 {
        let (flow, share) = (self.flow(slot), self.shares[slot as usize]);
        if flow.size.is_none() {
            return self.elephant_bytes;
        }
        (flow.left - share * now.since(flow.since).as_secs_f64()).max(0.0)
    }

    fn give(&mut self, now: Timestamp, slot: u32, share: f64) {
        let left = self.left_of(now, slot);
        let flow = self.flows[slot as usize].as_mut().expect("a listed flow is there");
        (flow.left, flow.since) = (left, now);
        self.shares[slot as usize] = share;
    }

    fn newcomer_on(&mut self, link: LinkIndex) -> f64 {
        let at = link.0 as usize;
        let (round, share, _) = self.marks.links[at];
        if round == self.marks.links_round {
            return share;
        }
        let shares = self.on[at].iter().map(|&slot| self.shares[slot as usize]);
        let share = newcomer(self.capacity[at], shares.clone());
        let sum = shares.sum();
        self.marks.links[at] = (self.marks.links_round, share, sum);
        share
    }

    /// Lists the flows that meet a path, each a single time, uncut.
    fn touch(&mut self, path: &[LinkIndex]) {
        self.next_round();
        for &link in path {
            for at in 0..self.on[link.0 as usize].len() {
                let slot = self.on[link.0 as usize][at];
                self.mark(slot, f64::INFINITY);
            }
        }
    }

    fn next_round(&mut self) {
        self.marks.touched.clear();
        self.marks.round = self.marks.round.wrapping_add(1);
        if self.marks.round == 0 {
            self.marks.flows.fill((0, 0.0));
            self.marks.round = 1;
        }
    }

    fn mark(&mut self, slot: u32, reduced: f64) {
        let mark = &mut self.marks.flows[slot as usize];
        if mark.0 == self.marks.round {
            mark.1 = mark.1.min(reduced);
        } else {
            *mark = (self.marks.round, reduced);
            self.marks.touched.push(slot);
        }
    }

    /// Marks the flows that a new flow with this share cuts, and what they are cut to.
    fn cut_along(&mut self, path: &[LinkIndex], share: f64) {
        self.next_round();
        for &link in path {
            let at = link.0 as usize;
            self.newcomer_on(link);
            let rest = self.capacity[at] - share;
            if self.marks.links[at].2 <= rest {
                continue;
            }
            let shares = self.on[at].iter().map(|&slot| self.shares[slot as usize]);
            let level = cut(rest, shares);
            for index in 0..self.on[at].len() {
                let slot = self.on[at][index];
                if self.shares[slot as usize] > level {
                    self.mark(slot, level);
                }
            }
        }
    }

    /// Fills the flows that meet a path anew, within what all other flows leave: progressive
    /// filling, link by link, the fullest first.
    fn refill(&mut self, now: Timestamp, path: &[LinkIndex]) {
        self.touch(path);
        let slots = self.marks.touched.clone();
        let mut rooms: BTreeMap<LinkIndex, (f64, Vec<u32>)> = BTreeMap::new();
        for &slot in &slots {
            for &link in &self.flow(slot).path {
                rooms.entry(link).or_insert((0.0, Vec::new())).1.push(slot);
            }
        }
        for (link, (room, _)) in &mut rooms {
            let others = self.on[link.0 as usize].iter();
            let others =
                others.filter(|&&slot| self.marks.flows[slot as usize].0 != self.marks.round);
            let taken: f64 = others.map(|&slot| self.shares[slot as usize]).sum();
            *room = (self.capacity[link.0 as usize] - taken).max(0.0);
        }
        while let Some((level, full)) = rooms
            .iter()
            .map(|(&link, (room, slots))| (room / slots.len() as f64, link))
            .min_by(|one, other| one.0.total_cmp(&other.0))
        {
            for slot in rooms.remove(&full).expect("a link of the map").1 {
                for link in self.flow(slot).path.clone() {
                    let Some((room, slots)) = rooms.get_mut(&link) else { continue };
                    *room = (*room - level).max(0.0);
                    slots.retain(|&other| other != slot);
                    if slots.is_empty() {
                        rooms.remove(&link);
                    }
                }
                // Estimates of others may exceed a link: nobody falls behind the share he had.
                let share = level.max(self.shares[slot as usize]);
                self.give(now, slot, share);
            }
        }
    }
}
