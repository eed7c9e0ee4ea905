//! A simulator of long flows as fluids, which share their links by the max-min rule.
//!
//! A bulk read of 128 MB is 85,000 packets, and a study has millions of reads. Over seconds the
//! packets matter little, because senders that react to congestion settle near equal shares of
//! their bottleneck. A flow here is a number of bytes on a fixed list of links. Its rate is its
//! max-min share: no flow can gain bandwidth without taking it from a flow that has no more.
//!
//! **Exact.** Between two changes all rates are constant, so the simulator computes the end of each
//! flow directly. Shares come from progressive filling (Bertsekas and Gallager, *Data networks*,
//! 6.5.2): the link with the smallest share per flow fixes the rates of its flows, and the rest of
//! the bandwidth is shared among the other flows in the same way.
//!
//! **Fast.** A flow that begins or ends changes only the flows that common links connect with it,
//! directly or through other flows. Only these flows are filled again. The search for the next end
//! walks over all live flows, which costs less than keeping hundreds of changing ends in order.
//!
//! The simulator leaves out what packets add: the start of a connection, round-trip times, unequal
//! shares because of unequal round-trip times, and losses. `tests/fluid.rs` compares the simulator
//! with a packet network whose ports serve flows in turns.
//!
//! ```
//! use evenfall_sim::{Fluid, SimTime};
//!
//! let mut fluid = Fluid::new();
//! let [edge, core] = [125_000_000, 62_500_000].map(|bytes_per_s| fluid.link(bytes_per_s));
//! let start = SimTime::ZERO;
//! let far = fluid.start(start, &[edge, core], 125_000_000);
//! let near = fluid.start(start, &[edge], 125_000_000);
//! assert_eq!(fluid.rate(far), 62_500_000.0);
//!
//! // Both need two seconds of half the edge.
//! let (at, first) = fluid.next_end().expect("two flows");
//! assert_eq!((at, first), (SimTime::from_millis(2_000), far));
//! fluid.stop(at, far);
//! assert_eq!(fluid.next_end(), Some((at, near)));
//! ```

use crate::SimTime;

/// A link of a [`Fluid`]. Numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FluidLink(pub u32);

/// The name of a flow of a [`Fluid`]. No two flows of a run have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FluidFlow {
    slot: u32,
    turn: u32,
}

#[derive(Clone, Debug)]
struct Link {
    bytes_per_s: f64,
    flows: Vec<u32>,
    carried: f64,
    /// Number of the last filling that this link was part of. The next two fields belong to that
    /// filling: bandwidth left, and flows that have no rate yet.
    round: u64,
    room: f64,
    unfixed: u32,
}

#[derive(Clone, Debug, Default)]
struct Flow {
    turn: u32,
    live: bool,
    path: Vec<u32>,
    rate: f64,
    /// Bytes left at `since`.
    left: f64,
    since: u64,
    end: u64,
    round: u64,
    fixed: bool,
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub struct Fluid {
    links: Vec<Link>,
    flows: Vec<Flow>,
    live: Vec<u32>,
    free: Vec<u32>,
    now: u64,
    round: u64,
    /// Buffers for a filling: its links, and the links with flows that have no rate yet.
    near: Vec<u32>,
    open: Vec<u32>,
}

impl Fluid {
    /// A network without links and flows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a link of `bytes_per_s`.
    ///
    /// # Panics
    /// When the link carries nothing.
    pub fn link(&mut self, bytes_per_s: u64) -> FluidLink {
        assert!(bytes_per_s > 0, "a link carries bytes");
        let (bytes_per_s, flows) = (bytes_per_s as f64, Vec::new());
        let link = Link { bytes_per_s, flows, carried: 0.0, round: 0, room: 0.0, unfixed: 0 };
        self.links.push(link);
        FluidLink(self.links.len() as u32 - 1)
    }

    /// Starts a flow. A flow without links has no limit, and ends at once.
    ///
    /// # Panics
    /// When a link is unknown or on the path twice, or when time goes back.
    pub fn start(&mut self, at: SimTime, path: &[FluidLink], bytes: u64) -> FluidFlow {
        self.reach(at);
        let slot = self.free.pop().unwrap_or(self.flows.len() as u32);
        if slot as usize == self.flows.len() {
            self.flows.push(Flow::default());
        }
        let flow = &mut self.flows[slot as usize];
        let turn = flow.turn;
        flow.live = true;
        (flow.rate, flow.left) = (0.0, bytes as f64);
        (flow.since, flow.end) = (self.now, u64::MAX);
        self.live.push(slot);
        self.join(slot, path);
        FluidFlow { slot, turn }
    }

    /// Stops a flow, finished or not. Returns the bytes that it has not sent: 0 for a finished
    /// flow.
    ///
    /// # Panics
    /// When the flow has ended before, or when time goes back.
    pub fn stop(&mut self, at: SimTime, flow: FluidFlow) -> f64 {
        self.reach(at);
        let slot = self.slot(flow);
        self.settle(slot);
        let left = self.flows[slot as usize].left;
        self.leave(slot);
        let flow = &mut self.flows[slot as usize];
        flow.live = false;
        flow.turn += 1;
        self.live.retain(|&other| other != slot);
        self.free.push(slot);
        left
    }

    /// Moves a flow to other links.
    ///
    /// # Panics
    /// As [`Self::start`] and [`Self::stop`].
    pub fn reroute(&mut self, at: SimTime, flow: FluidFlow, path: &[FluidLink]) {
        self.reach(at);
        let slot = self.slot(flow);
        self.settle(slot);
        self.leave(slot);
        self.join(slot, path);
    }

    /// Sets the bytes that a flow has left, more or fewer than before. No rate changes.
    ///
    /// # Panics
    /// When the flow has ended, or when time goes back.
    pub fn resize(&mut self, at: SimTime, flow: FluidFlow, bytes: u64) {
        self.reach(at);
        let slot = self.slot(flow);
        self.settle(slot);
        self.flows[slot as usize].left = bytes as f64;
        self.aim(slot);
    }

    /// The flow that ends next, with the time of its end. Of several flows that end together, the
    /// flow that began first.
    pub fn next_end(&self) -> Option<(SimTime, FluidFlow)> {
        let slot = *self.live.iter().min_by_key(|&&slot| self.flows[slot as usize].end)?;
        let flow = &self.flows[slot as usize];
        Some((SimTime::from_nanos(flow.end), FluidFlow { slot, turn: flow.turn }))
    }

    /// The rate of a flow in bytes a second; infinite for a flow without links.
    ///
    /// # Panics
    /// When the flow has ended.
    pub fn rate(&self, flow: FluidFlow) -> f64 {
        self.flows[self.slot(flow) as usize].rate
    }

    /// Bytes that a flow has not sent.
    ///
    /// # Panics
    /// When the flow has ended.
    pub fn left(&self, at: SimTime, flow: FluidFlow) -> f64 {
        let flow = &self.flows[self.slot(flow) as usize];
        flow.left_at(at.nanos())
    }

    /// Sum of the rates of all flows on a link, in bytes a second.
    pub fn load(&self, link: FluidLink) -> f64 {
        let flows = self.links[link.0 as usize].flows.iter();
        flows.map(|&slot| self.flows[slot as usize].rate).sum()
    }

    /// Bytes that a link has carried since the start of the run.
    pub fn carried(&self, at: SimTime, link: FluidLink) -> f64 {
        let link = &self.links[link.0 as usize];
        let moving = link.flows.iter().map(|&slot| {
            let flow = &self.flows[slot as usize];
            flow.left - flow.left_at(at.nanos())
        });
        link.carried + moving.sum::<f64>()
    }

    /// How many flows live.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether no flow lives.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    fn slot(&self, flow: FluidFlow) -> u32 {
        let known = &self.flows[flow.slot as usize];
        assert!(known.live && known.turn == flow.turn, "the flow has ended");
        flow.slot
    }

    fn reach(&mut self, at: SimTime) {
        assert!(at.nanos() >= self.now, "time goes back from {} to {}", self.now, at.nanos());
        self.now = at.nanos();
    }

    /// Subtracts the bytes that have passed at the present rate.
    fn settle(&mut self, slot: u32) {
        let flow = &mut self.flows[slot as usize];
        let left = flow.left_at(self.now);
        let moved = flow.left - left;
        (flow.left, flow.since) = (left, self.now);
        for &link in &flow.path {
            self.links[link as usize].carried += moved;
        }
    }

    /// Computes the end of a settled flow.
    fn aim(&mut self, slot: u32) {
        let flow = &mut self.flows[slot as usize];
        // Rounded up, so that at its end nothing is left.
        let nanos = (flow.left / flow.rate * 1e9).ceil();
        flow.end =
            if flow.left == 0.0 { flow.since } else { flow.since.saturating_add(nanos as u64) };
    }

    fn join(&mut self, slot: u32, path: &[FluidLink]) {
        let mut links = std::mem::take(&mut self.flows[slot as usize].path);
        links.clear();
        for link in path {
            assert!(!links.contains(&link.0), "link {} is on the path twice", link.0);
            links.push(link.0);
            self.links[link.0 as usize].flows.push(slot);
        }
        if links.is_empty() {
            self.flows[slot as usize].rate = f64::INFINITY;
            self.aim(slot);
        }
        self.flows[slot as usize].path = links;
        self.fill(slot);
    }

    fn leave(&mut self, slot: u32) {
        for at in 0..self.flows[slot as usize].path.len() {
            let link = self.flows[slot as usize].path[at];
            self.links[link as usize].flows.retain(|&other| other != slot);
        }
        self.fill(slot);
    }

    /// Computes the rates of all flows that are connected with the path of a flow. The flow itself
    /// may have left the path.
    fn fill(&mut self, slot: u32) {
        self.gather(slot);
        let mut open = std::mem::take(&mut self.open);
        open.clone_from(&self.near);
        loop {
            open.retain(|&link| self.links[link as usize].unfixed > 0);
            let level = |link: &u32| {
                let link = &self.links[*link as usize];
                link.room / f64::from(link.unfixed)
            };
            let Some(full) = open.iter().copied().min_by(|a, b| level(a).total_cmp(&level(b)))
            else {
                break;
            };
            let level = level(&full);
            for at in 0..self.links[full as usize].flows.len() {
                let slot = self.links[full as usize].flows[at];
                if !self.flows[slot as usize].fixed {
                    self.fix(slot, level);
                }
            }
        }
        self.open = open;
    }

    fn fix(&mut self, slot: u32, rate: f64) {
        self.flows[slot as usize].fixed = true;
        for &link in &self.flows[slot as usize].path {
            let link = &mut self.links[link as usize];
            link.room = (link.room - rate).max(0.0);
            link.unfixed -= 1;
        }
        if self.flows[slot as usize].rate != rate {
            self.settle(slot);
            self.flows[slot as usize].rate = rate;
            self.aim(slot);
        }
    }

    /// Lists the links and flows that are connected with the path of a flow.
    fn gather(&mut self, slot: u32) {
        self.round += 1;
        self.near.clear();
        for at in 0..self.flows[slot as usize].path.len() {
            let link = self.flows[slot as usize].path[at];
            self.visit(link);
        }
        let mut next = 0;
        while next < self.near.len() {
            let link = self.near[next] as usize;
            next += 1;
            for at in 0..self.links[link].flows.len() {
                let slot = self.links[link].flows[at];
                let flow = &mut self.flows[slot as usize];
                if flow.round == self.round {
                    continue;
                }
                (flow.round, flow.fixed) = (self.round, false);
                for at in 0..self.flows[slot as usize].path.len() {
                    let link = self.flows[slot as usize].path[at];
                    self.visit(link);
                }
            }
        }
    }

    fn visit(&mut self, link: u32) {
        let known = &mut self.links[link as usize];
        if known.round == self.round {
            return;
        }
        known.round = self.round;
        known.room = known.bytes_per_s;
        known.unfixed = known.flows.len() as u32;
        self.near.push(link);
    }
}

impl Flow {
    fn left_at(&self, now: u64) -> f64 {
        if now >= self.end {
            return 0.0;
        }
        // A flow of infinite rate has no bytes left.
        (self.left - self.rate * now.saturating_sub(self.since) as f64 / 1e9).max(0.0)
    }
}
