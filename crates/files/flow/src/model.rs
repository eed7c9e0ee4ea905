//! The model of the network: its flows, the bandwidth of each flow and the bytes that each flow
//! still has to send.
//!
//! No flow reserves bandwidth, so the share of each flow is an estimate. Three rules keep the
//! estimates near the measured rates (thesis, 3.2.2):
//!
//! - The model gives a new flow its share by the max-min rule, and cuts the flows on its path by
//!   the same rule. Flows on other paths may gain bandwidth by the cut. The model learns of the
//!   gain from byte counts.
//! - When a flow ends, the model divides the free bandwidth among the flows that shared a link with
//!   it.
//! - Byte counts arrive every one to five seconds. A count corrects the bytes left at once. A count
//!   corrects the share only after the freeze, because a flow sends slowly in its first second.
//!   With a measured share from that second, its path would look empty and attract every new read.

use core::time::Duration;
use std::collections::BTreeMap;

use evenfall_core::Timestamp;

use crate::shares::{cut, newcomer};
use crate::topology::{DirectedLink, LinkIndex};

/// The name of a flow, chosen by the client that starts the flow. A read from two copies has two
/// flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

/// Settings of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Time after its start in which a flow keeps its estimated share, whatever the byte counts
    /// say. The default is one second, as in the thesis: one interval of the byte counters of a
    /// switch.
    pub freeze: Duration,
    /// Assumed bytes left of a flow of unknown size, until 16 sizes are known. From then on the
    /// model assumes the mean of the known sizes. The default of 128 MB is the block size of HDFS
    /// and of the thesis.
    pub elephant_bytes: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { freeze: Duration::from_secs(1), elephant_bytes: 128e6 }
    }
}

/// Number of recent sizes in the mean. 16 sizes are enough that a single large file does not
/// dominate the mean, and few enough that a new kind of load changes the mean within seconds.
const SIZES: f64 = 16.0;

/// The model's record of one flow.
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

/// The share of a new flow on a path and its harm to other flows: the two terms of equation 3.2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Bytes a second of the new flow.
    pub share: f64,
    /// Sum over the flows on the path of the seconds by which the new flow delays their ends.
    pub harm_s: f64,
}

impl Estimate {
    /// Equation 3.2: the duration of the new flow plus its harm to other flows, in seconds.
    pub fn cost_s(&self, bytes: f64) -> f64 {
        bytes / self.share + self.harm_s
    }
}

/// An estimate, and the share that remains for the other half of the same read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Weighed {
    pub(crate) estimate: Estimate,
    /// Share of the other half, in bytes a second; `None` for an undivided read.
    pub(crate) half: Option<f64>,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct FlowModel {
    config: Config,
    capacity: Vec<f64>,
    /// For each link, the slots of its flows.
    on: Vec<Vec<u32>>,
    flows: Vec<Option<Flow>>,
    /// Estimated bytes a second of each flow. The shares are apart from the other fields of a flow,
    /// because a decision reads the shares of all flows on 48 paths and little else.
    shares: Vec<f64>,
    free: Vec<u32>,
    ids: BTreeMap<FlowId, u32>,
    elephant_bytes: f64,
    marks: Marks,
}

/// Buffers that are kept between calls, so that a decision allocates no memory.
#[derive(Clone, Debug, Default)]
struct Marks {
    /// The round in which a flow was last seen, and the share it would be cut to.
    flows: Vec<(u32, f64)>,
    round: u32,
    touched: Vec<u32>,
    /// For each link: the round, the share of a new flow, and the sum of all shares on the link.
    links: Vec<(u32, f64, f64)>,
    /// For each link, the cut by the new flow that was last weighed there.
    cuts: Vec<Cut>,
    links_round: u32,
}

/// What a new flow does to the flows of one link.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The round and the share of the new flow for which the values below hold.
    round: u32,
    share: f64,
    /// The share to which larger flows are cut; infinite when all fit.
    level: f64,
    /// The harm to the flows of this link, if they have no narrower link on the path; `None` until
    /// it is needed.
    harm_s: Option<f64>,
}

/// A cut of a round that never comes.
const NO_CUT: Cut = Cut { round: 0, share: 0.0, level: f64::INFINITY, harm_s: None };

impl FlowModel {
    /// A network of these links, without flows.
    pub fn new(config: Config, links: &[DirectedLink]) -> Self {
        let elephant_bytes = config.elephant_bytes;
        let marks = Marks {
            links: vec![(0, 0.0, 0.0); links.len()],
            cuts: vec![NO_CUT; links.len()],
            ..Marks::default()
        };
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

    /// The share of a new flow on this path: the least share over its links. A path without links
    /// gives an infinite share.
    ///
    /// The model remembers the share of each link until [`Self::forget_links`], because the
    /// candidates of one decision have most of their links in common.
    pub(crate) fn share_on(&mut self, path: &[LinkIndex]) -> f64 {
        let mut share = f64::INFINITY;
        for &link in path {
            share = share.min(self.newcomer_on(link));
        }
        share
    }

    /// Begins a decision: forgets the shares of links that an earlier decision computed.
    pub(crate) fn forget_links(&mut self) {
        self.marks.links_round = self.marks.links_round.wrapping_add(1);
        if self.marks.links_round == 0 {
            self.marks.links.fill((0, 0.0, 0.0));
            self.marks.cuts.fill(NO_CUT);
            self.marks.links_round = 1;
        }
    }

    /// Equation 3.2 for a path. The flow `half` is the other half of the same read. Its delay does
    /// not count as harm, and its remaining share is returned beside the estimate. Returns `None`
    /// as soon as the harm exceeds `harm_max_s`. One decision always has the same time and half.
    ///
    /// The harm of the path is at least the harm on each of its links. The candidates of a decision
    /// share most of their links and shares, so that the harm on a link is computed once for many
    /// candidates, and most candidates end here.
    pub(crate) fn weigh(
        &mut self,
        now: Timestamp,
        path: &[LinkIndex],
        half: Option<FlowId>,
        harm_max_s: f64,
    ) -> Option<Weighed> {
        let share = self.share_on(path);
        let half = half.and_then(|id| self.ids.get(&id).copied());
        if harm_max_s < f64::INFINITY
            && path.iter().any(|&link| self.harm_on(now, link, share, half) > harm_max_s)
        {
            return None;
        }
        self.cut_along(path, share);
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

    /// Estimates the share and the harm of a new flow on this path.
    pub fn estimate(&mut self, now: Timestamp, path: &[LinkIndex]) -> Estimate {
        self.forget_links();
        self.weigh(now, path, None, f64::INFINITY).expect("no harm exceeds infinity").estimate
    }

    /// Adds a new flow and cuts the flows on its path. Returns the share of the new flow. A flow of
    /// the same name is replaced. `bytes` is `None` for a flow of unknown size.
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

    /// Removes a flow and gives its bandwidth to the flows that shared a link with it. Returns
    /// whether the flow was known.
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

    /// Reverts [`Self::add`]: removes the flow and restores the earlier shares of all other flows.
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

    /// The shares of all flows that have a link in common with the path.
    pub(crate) fn shares_along(&mut self, path: &[LinkIndex]) -> Vec<(FlowId, f64)> {
        self.touch(path);
        let slots = self.marks.touched.iter();
        slots.map(|&slot| (self.flow(slot).id, self.shares[slot as usize])).collect()
    }

    /// Takes in a byte count: `moved` bytes of the flow have passed since its start.
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
            // A stalled flow keeps a small share of every link on its path, because a share of zero
            // would place its end infinitely late.
            let least = flow.path.iter().map(|link| self.capacity[link.0 as usize]);
            let least = least.fold(f64::INFINITY, f64::min) / 1e3;
            self.shares[slot as usize] = measured.max(least);
        }
    }

    /// Forgets flows without a start or a byte count within `silence`, and returns their names. The
    /// message of their end was lost, for instance because the client died.
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

    /// Lists each flow that has a link in common with the path once, with its share before any cut.
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

    /// The share to which a new flow with this share cuts the larger flows of a link.
    fn level_on(&mut self, link: LinkIndex, share: f64) -> f64 {
        let at = link.0 as usize;
        self.newcomer_on(link);
        let known = self.marks.cuts[at];
        if known.round == self.marks.links_round && known.share == share {
            return known.level;
        }
        let rest = self.capacity[at] - share;
        let level = if self.marks.links[at].2 <= rest {
            f64::INFINITY
        } else {
            cut(rest, self.on[at].iter().map(|&slot| self.shares[slot as usize]))
        };
        let round = self.marks.links_round;
        self.marks.cuts[at] = Cut { round, share, level, harm_s: None };
        level
    }

    /// The harm of a new flow with this share to the flows of one link but `half`.
    fn harm_on(&mut self, now: Timestamp, link: LinkIndex, share: f64, half: Option<u32>) -> f64 {
        let (at, level) = (link.0 as usize, self.level_on(link, share));
        if let Some(harm_s) = self.marks.cuts[at].harm_s {
            return harm_s;
        }
        let mut harm_s = 0.0;
        for &slot in self.on[at].iter().filter(|&&slot| level.is_finite() && Some(slot) != half) {
            let share = self.shares[slot as usize];
            if share > level {
                let left = self.left_of(now, slot);
                harm_s += left / level - left / share;
            }
        }
        self.marks.cuts[at].harm_s = Some(harm_s);
        harm_s
    }

    /// Marks the flows that a new flow with this share cuts, with their shares after the cut.
    fn cut_along(&mut self, path: &[LinkIndex], share: f64) {
        self.next_round();
        for &link in path {
            let at = link.0 as usize;
            let level = self.level_on(link, share);
            if level.is_infinite() {
                continue;
            }
            for index in 0..self.on[at].len() {
                let slot = self.on[at][index];
                if self.shares[slot as usize] > level {
                    self.mark(slot, level);
                }
            }
        }
    }

    /// Shares the bandwidth that other flows leave among the flows that have a link in common with
    /// the path. The method is progressive filling: link by link, the fullest link first.
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
                // The estimates of other flows may add up to more than the link carries. A flow
                // keeps at least its earlier share.
                let share = level.max(self.shares[slot as usize]);
                self.give(now, slot, share);
            }
        }
    }
}
