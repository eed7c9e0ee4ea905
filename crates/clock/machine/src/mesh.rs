//! The network effect: estimates of many pairs make one offset for each node.
//!
//! Asymmetric paths make the estimate of a pair wrong by half of the asymmetry, and nothing that
//! two nodes measure shows it. Three nodes show it: the estimates around a loop must add up to
//! zero, and their *surplus* is the sum of the errors. Least squares over all loops spread the
//! surpluses over the pairs (Huygens, section 4). The offsets of nodes that leave the least sum of
//! squares at the pairs are the same solution. A single solve of a graph's Laplacian gives these
//! offsets.
//!
//! Four steps, each linear in the number of pairs:
//!
//! 1. A tree from the reference gives every node a coarse offset in whole nanoseconds. What is left
//!    is small, also when clocks are years apart. A pair beside the tree closes a loop; its surplus
//!    is kept for the report.
//! 2. Conjugate gradients solve the least squares, several times: a pair whose remainder is large
//!    loses weight. A node of which most pairs remain large tells its neighbours different times.
//!    The node is named as a liar and left out, and the rest is solved again.
//! 3. Rates are solved in the same way, with the weights of step 2.
//! 4. Proven bounds go from node to node: a node is as far ahead as a neighbour can be plus what
//!    the pair can be. Every node takes the second-best of its neighbours, so that one unnoticed
//!    liar among them does not make the bound wrong. A node that gets no bound in this way
//!    takes the best of its neighbours. No bound rests on the estimates.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use evenfall_core::{Timestamp, math};

use crate::band_widening::BandWidening;
use crate::bound::ClockVerdict;
use crate::filter::Filter;
use crate::pair::PairEstimate;
use crate::solver::{Laplacian, median};
use crate::{ClockState, Config};

/// Rounds of giving large remainders less weight. The weights of the fifth round differ from those
/// of the fourth by less than a hundredth when one node in ten lies.
const REWEIGHTINGS: usize = 5;
/// A pair whose remainder is up to this many times the usual remainder keeps its whole weight. With
/// a smaller factor the solve would prefer pairs that agree by chance, and the remainders would be
/// smaller than the errors.
const PLAIN: f64 = 3.0;
/// Remainders that are this many times the usual remainder belong to a liar or to a broken pair.
/// Six times the deviation of a normal law happens once in 500 million.
const REMAINDER_MAX: f64 = 6.0;
/// Remainders below this never make a liar: estimates are in whole nanoseconds, and perfect
/// networks have no usual remainder to compare with.
const REMAINDER_FLOOR_NS: f64 = 20.0;
/// Number of looks for liars, because liars hide each other. The sixth look found none in any test.
const LOOKS: usize = 6;
/// Number of assumed loops that are added to the measured loops, each with an error of a quarter of
/// a band. Two nodes close no loop, so that no measurement shows the errors of the network between
/// them. Beside the 36 loops of ten nodes these two count little.
const LOOPS_ASSUMED: f64 = 2.0;
/// Number of rounds in which proven bounds spread from neighbour to neighbour. A graph of 5,000
/// nodes is six hops wide, and later rounds only narrow bounds that are right already.
const BOUND_ROUNDS: usize = 12;

/// The estimate of a pair of nodes, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockEdge {
    /// The node on whose clock the estimate is stated.
    pub a: u32,
    /// The other node, whose clock the estimate is about.
    pub b: u32,
    /// `b's clock - a's clock`.
    pub estimate: PairEstimate,
}

/// The findings of a solve besides the verdicts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Health {
    /// Nodes that tell their neighbours different times.
    pub liars: Vec<u32>,
    /// Nodes without a pair that leads to the reference.
    pub lost: Vec<u32>,
    /// Nodes whose clocks have jumped: nodes whose jump was seen, and lost nodes with a pair
    /// between whose probes no line fits.
    pub disrupted: Vec<u32>,
    /// The median of the surpluses of loops, in nanoseconds.
    pub surplus_ns: f64,
    /// The usual remainder at a pair after the least squares, in nanoseconds.
    pub remainder_ns: f64,
    /// The same for rates, in parts per billion.
    pub remainder_ppb: f64,
}

impl Health {
    /// Calls a node disrupted if the node's clock was seen to jump. A lost node is also called
    /// disrupted if no line fits between the probes of one of the node's pairs.
    pub(crate) fn name_disrupted(
        &mut self,
        jumped: &BTreeSet<u32>,
        crossed: &BTreeSet<(u32, u32)>,
    ) {
        let mut disrupted = jumped.clone();
        disrupted.extend(crossed.iter().flat_map(|(a, b)| [a, b]).filter(|node| {
            // The other pairs of a node that is not lost still give the node its time.
            self.lost.contains(node)
        }));
        self.lost.retain(|node| !disrupted.contains(node));
        self.disrupted = disrupted.into_iter().collect();
    }
}

/// Solves the network once each window, and remembers every node's course in between.
#[derive(Clone, Debug)]
pub struct MeshSolver {
    config: Config,
    reference: u32,
    filters: Vec<Option<Filter>>,
    /// Remainders of the last solve. The part of a remainder that changes from solve to solve is
    /// noise, and the part that stays is asymmetry.
    remainders: BTreeMap<(u32, u32), f64>,
    widening: BandWidening,
}

/// One attempt over the nodes that are not left out.
struct Attempt<'a> {
    edges: Vec<&'a ClockEdge>,
    coarse: Vec<Option<i64>>,
    fine: Vec<f64>,
    rates: Vec<f64>,
    remainders: Vec<f64>,
    rate_remainders: Vec<f64>,
    /// The usual remainder, as far as loops show it.
    usual: f64,
    /// The assumed error of a pair, which also holds where few loops show errors.
    error: f64,
    /// The assumed error of the rate of a pair where no loop shows errors, in nanoseconds a second:
    /// the pair is wrong by `error` at both ends of the window, in opposite directions.
    tilt: f64,
    surplus: f64,
}

impl MeshSolver {
    /// A mesh of `nodes` nodes whose time is that of the node `reference`.
    pub fn new(config: Config, nodes: u32, reference: u32) -> Self {
        let filters = vec![None; nodes as usize];
        Self {
            config,
            reference,
            filters,
            remainders: BTreeMap::new(),
            widening: BandWidening::default(),
        }
    }

    /// The verdicts of all nodes that have one, and the health of the network. `now` is the time of
    /// the reference at which the windows of the estimates ended.
    pub fn solve(
        &mut self,
        now: Timestamp,
        edges: &[ClockEdge],
    ) -> (Vec<Option<ClockVerdict>>, Health) {
        let middle = now - self.config.window / 2;
        let mut liars: Vec<u32> = Vec::new();
        let mut attempt = self.attempt(middle, edges, &liars);
        for _ in 0..LOOKS {
            let found = self.liars(&attempt);
            if found.is_empty() {
                break;
            }
            liars.extend(found);
            attempt = self.attempt(middle, edges, &liars);
        }
        liars.sort_unstable();
        let verdicts = self.verdicts((middle, now), &attempt);
        let lost = |&n: &u32| attempt.coarse[n as usize].is_none() && !liars.contains(&n);
        let health = Health {
            lost: (0..self.filters.len() as u32).filter(lost).collect(),
            disrupted: Vec::new(),
            surplus_ns: attempt.surplus,
            remainder_ns: attempt.usual,
            remainder_ppb: 1.482_6 * median(&attempt.rate_remainders) * 1e9,
            liars,
        };
        (verdicts, health)
    }

    /// Finds by how much the clock of the reference has jumped, and moves all courses by the jump.
    /// The clocks of the other nodes have not jumped. Each neighbour of the reference shows a jump,
    /// and the median counts. `None` when no neighbour of the reference has a course.
    pub fn reference_jumped(&mut self, now: Timestamp, edges: &[ClockEdge]) -> Option<i64> {
        let middle = now - self.config.window / 2;
        let jump = |edge: &ClockEdge| {
            let filter = self.filters.get(edge.b as usize)?.as_ref()?;
            let estimate = &edge.estimate;
            let later = difference(estimate, middle, 0) - estimate.offset_ns as f64;
            Some(filter.jump_of_reference(middle, (estimate.offset_ns, later)))
        };
        let own = edges.iter().filter(|edge| edge.a == self.reference);
        let mut jumps: Vec<i64> = own.filter_map(jump).collect();
        jumps.sort_unstable();
        let by = *jumps.get(jumps.len() / 2)?;
        self.filters.iter_mut().flatten().for_each(|filter| filter.follow_reference(by));
        Some(by)
    }

    fn attempt<'a>(&self, middle: Timestamp, all: &'a [ClockEdge], without: &[u32]) -> Attempt<'a> {
        let n = self.filters.len();
        let mut out = vec![false; n];
        without.iter().for_each(|&liar| out[liar as usize] = true);
        let inside = |node: u32| out.get(node as usize) == Some(&false);
        let mut edges: Vec<&ClockEdge> = all
            .iter()
            .filter(|edge| inside(edge.a) && inside(edge.b) && edge.a != edge.b)
            .collect();
        let (coarse, in_tree) = self.coarse(middle, &edges);
        let mut loops = Vec::new();
        let mut left = Vec::new();
        let mut reached = Vec::new();
        for (edge, in_tree) in edges.iter().zip(in_tree) {
            let (Some(a), Some(b)) = (coarse[edge.a as usize], coarse[edge.b as usize]) else {
                continue;
            };
            let rest = difference(&edge.estimate, middle, a) - apart(a, b) as f64;
            if !in_tree {
                loops.push(rest.abs());
            }
            left.push(rest);
            reached.push(*edge);
        }
        edges = reached;
        let ends: Vec<(u32, u32)> = edges.iter().map(|edge| (edge.a, edge.b)).collect();
        let mut laplacian = Laplacian::new(n, self.reference as usize, ends);
        let mut remainders = Vec::new();
        let mut fine = vec![0.0; n];
        for _ in 0..REWEIGHTINGS {
            laplacian.solve(&left, &mut fine);
            remainders = laplacian.remainders(&left, &fine);
            laplacian.reweigh(&remainders, PLAIN * usual(&remainders));
        }
        let rates_left: Vec<f64> = edges.iter().map(|edge| edge.estimate.rate).collect();
        let mut rates = vec![0.0; n];
        laplacian.solve(&rates_left, &mut rates);
        let rate_remainders: Vec<f64> =
            laplacian.remainders(&rates_left, &rates).iter().map(|rest| rest.abs()).collect();
        // The solve chooses one number for each node, which makes the remainders smaller than the
        // errors. The factor below corrects for that.
        let nodes = coarse.iter().flatten().count();
        let free = (edges.len() + 1).saturating_sub(nodes).max(1) as f64;
        let usual = usual(&remainders) * (edges.len().max(1) as f64 / free).sqrt();
        let bands: Vec<f64> = edges.iter().map(|edge| edge.estimate.half_ns as f64).collect();
        let (seen, assumed) = (usual * usual, math::square(median(&bands) / 2.0));
        let closed = (edges.len() + 1).saturating_sub(nodes) as f64;
        let error = (closed * seen + LOOPS_ASSUMED * assumed) / (closed + LOOPS_ASSUMED);
        let (error, surplus) = (error.sqrt(), median(&loops));
        let window = self.config.window.as_secs_f64();
        let tilt = if closed > 0.0 { 0.0 } else { 2.0 * error / window };
        Attempt {
            edges,
            coarse,
            fine,
            rates,
            remainders,
            rate_remainders,
            usual,
            error,
            tilt,
            surplus,
        }
    }

    /// Whole nanoseconds of every node against the reference along a tree, and which edges made it.
    fn coarse(&self, middle: Timestamp, edges: &[&ClockEdge]) -> (Vec<Option<i64>>, Vec<bool>) {
        let n = self.filters.len();
        let beside = adjacency(n, edges.iter().map(|edge| (edge.a, edge.b)));
        let mut coarse: Vec<Option<i64>> = vec![None; n];
        let mut in_tree = vec![false; edges.len()];
        let mut queue = VecDeque::from([self.reference]);
        if let Some(offset) = coarse.get_mut(self.reference as usize) {
            *offset = Some(0);
        }
        while let Some(node) = queue.pop_front() {
            let Some(here) = coarse.get(node as usize).copied().flatten() else { continue };
            for &(other, k) in &beside[node as usize] {
                if coarse[other as usize].is_some() {
                    continue;
                }
                let edge = edges[k as usize];
                // On the way from b to a, the estimate's own offset gives the time at a.
                let step = if edge.a == node {
                    difference(&edge.estimate, middle, here) as i64
                } else {
                    let at_a = here.saturating_sub(edge.estimate.offset_ns);
                    (difference(&edge.estimate, middle, at_a) as i64).saturating_neg()
                };
                coarse[other as usize] = Some(here.saturating_add(step));
                in_tree[k as usize] = true;
                queue.push_back(other);
            }
        }
        (coarse, in_tree)
    }

    /// Nodes of which more than half of the pairs remain far off. Only the worst of neighbours is
    /// named in one look, because a liar spoils the pairs of its neighbours too.
    fn liars(&self, attempt: &Attempt<'_>) -> Vec<u32> {
        let most = (REMAINDER_MAX * attempt.usual).max(REMAINDER_FLOOR_NS);
        let mut bad = vec![(0u32, 0u32); self.filters.len()];
        for (edge, rest) in attempt.edges.iter().zip(&attempt.remainders) {
            for node in [edge.a, edge.b] {
                bad[node as usize].0 += u32::from(rest.abs() > most);
                bad[node as usize].1 += 1;
            }
        }
        let share = |node: u32| f64::from(bad[node as usize].0) / f64::from(bad[node as usize].1);
        let suspect =
            |node: u32| node != self.reference && bad[node as usize].0 >= 2 && share(node) > 0.5;
        let mut suspects: Vec<u32> = (0..bad.len() as u32).filter(|&node| suspect(node)).collect();
        let worse = |edge: &&ClockEdge, node: u32| {
            let other = if edge.a == node { edge.b } else { edge.a };
            suspect(other) && (share(other), other) > (share(node), node)
        };
        let shadowed: Vec<u32> = attempt
            .edges
            .iter()
            .flat_map(|edge| [edge.a, edge.b].into_iter().filter(move |&node| worse(edge, node)))
            .collect();
        suspects.retain(|node| !shadowed.contains(node));
        suspects
    }

    fn verdicts(
        &mut self,
        at: (Timestamp, Timestamp),
        attempt: &Attempt<'_>,
    ) -> Vec<Option<ClockVerdict>> {
        let (middle, now) = at;
        let noise = self.noise(attempt);
        let rate_noise = 1.482_6 * median(&attempt.rate_remainders);
        let mut degrees = vec![0u32; self.filters.len()];
        for edge in &attempt.edges {
            degrees[edge.a as usize] += 1;
            degrees[edge.b as usize] += 1;
        }
        let least = attempt.least(self.filters.len());
        let window = self.config.window.as_secs_f64();
        let horizon = 2 * self.config.window;
        let proven = [now, now + horizon].map(|at| self.proven(at, attempt));
        let own = degrees.get(self.reference as usize).copied().unwrap_or(0).max(1);
        let widening = self.widening.extra(self.filters.len(), attempt.edges.iter().copied());
        let hazy = widening[self.reference as usize];
        let verdict = |(n, coarse): (usize, &Option<i64>)| {
            let filter = &mut self.filters[n];
            let Some(coarse) = *coarse else {
                *filter = None;
                return None;
            };
            if n == self.reference as usize {
                return Some(ClockVerdict::reference(now));
            }
            // The variance of a node's offset is the variance of a pair times the resistance of the
            // graph between the node and the reference. In a random graph nearly all of the
            // resistance lies at the two ends.
            let ends = 1.0 / f64::from(degrees[n].max(1)) + 1.0 / f64::from(own);
            let offset = (coarse, attempt.fine[n]);
            // The offset of a host whose probes all waited is wrong by the extra width at most. The
            // extra width counts as two standard errors. The wait may change within the window, so
            // that the rate is wrong too.
            let extra = (widening[n] + hazy) / 2.0;
            let turned = 2.0 * extra * 1e-9 / window;
            let variances = (
                noise * noise * ends + extra * extra + 0.1,
                rate_noise * rate_noise * ends + turned * turned + 1e-22,
            );
            let moved = Filter::advance(filter, middle, offset, attempt.rates[n], variances);
            let filter = filter.as_ref().expect("the filter was just set");
            let bounds = [proven[0][n], proven[1][n]];
            let floor = self.config.asymmetry_share * least[n];
            let standing = attempt.error * ends.sqrt();
            let mut verdict = filter.verdict(now, coarse, bounds, horizon);
            verdict.standing_ns = floor + self.config.assumed_errors * standing;
            // A wrong rate turns the line around the middle of the window, half a window before the
            // verdict.
            let (tilt, half) = (attempt.tilt * attempt.tilt * ends, window / 2.0);
            let [offset, both, rate] = &mut verdict.variances;
            (*offset, *both) = (*offset + tilt * half * half, *both + tilt * half);
            *rate += tilt;
            verdict.state = if moved { ClockState::Synchronised } else { ClockState::Disrupted };
            Some(verdict)
        };
        attempt.coarse.iter().enumerate().map(verdict).collect()
    }

    /// How much the remainder of a pair changes from one solve to the next: twice the variance of
    /// an estimate. Before the second solve all of the remainder may be noise.
    fn noise(&mut self, attempt: &Attempt<'_>) -> f64 {
        let mut changes = Vec::with_capacity(attempt.edges.len());
        let mut now = BTreeMap::new();
        for (edge, &rest) in attempt.edges.iter().zip(&attempt.remainders) {
            let before = self.remainders.get(&(edge.a, edge.b));
            changes.extend(before.map(|before| (rest - before).abs()));
            now.insert((edge.a, edge.b), rest);
        }
        self.remainders = now;
        let half = 1.482_6 * median(&changes) * core::f64::consts::FRAC_1_SQRT_2;
        if changes.is_empty() { attempt.usual } else { half.min(attempt.usual.max(1.0)) }
    }

    /// The least and the greatest offset of every node against the reference at a time of the
    /// reference, less the coarse offset.
    fn proven(&self, at: Timestamp, attempt: &Attempt<'_>) -> Vec<[f64; 2]> {
        let n = self.filters.len();
        let mut spans: Vec<Vec<(u32, f64, f64)>> = vec![Vec::new(); n];
        for edge in &attempt.edges {
            let (a, b) = (attempt.place(edge.a), attempt.place(edge.b));
            let [low, high] = self.span(edge, at, a);
            let rest = |bound: (i64, f64)| (i128::from(bound.0) - apart(a, b)) as f64 + bound.1;
            let (low, high) = (rest(low), rest(high));
            spans[edge.b as usize].push((edge.a, low, high));
            spans[edge.a as usize].push((edge.b, -high, -low));
        }
        let mut bounds = vec![[f64::NEG_INFINITY, f64::INFINITY]; n];
        bounds[self.reference as usize] = [0.0, 0.0];
        // In a large graph few nodes have two neighbours with a bound of their own, so that the
        // others get none. Their bounds then rest on one way of honest nodes.
        for passed_over in [self.config.liars_beside, 0] {
            let is_bounded = |bound: &[f64; 2]| bound.iter().all(|side| side.is_finite());
            let open: Vec<usize> = (0..n).filter(|&node| !is_bounded(&bounds[node])).collect();
            for _ in 0..BOUND_ROUNDS {
                let before = bounds.clone();
                for &node in &open {
                    bounds[node] = self.narrowed(&spans[node], &bounds, passed_over);
                }
                if before == bounds {
                    break;
                }
            }
        }
        bounds
    }

    /// A node's bounds from the bounds of its neighbours. The reference is trusted, and of all
    /// other neighbours the `passed_over` neighbours with the narrowest bounds are left out.
    fn narrowed(
        &self,
        spans: &[(u32, f64, f64)],
        bounds: &[[f64; 2]],
        passed_over: usize,
    ) -> [f64; 2] {
        let mut highs: Vec<f64> = Vec::with_capacity(spans.len());
        let mut lows: Vec<f64> = Vec::with_capacity(spans.len());
        let mut best = [f64::NEG_INFINITY, f64::INFINITY];
        for &(other, low, high) in spans {
            let [other_low, other_high] = bounds[other as usize];
            if other == self.reference {
                best = [best[0].max(low), best[1].min(high)];
            } else {
                lows.push(-(other_low + low));
                highs.push(other_high + high);
            }
        }
        let passed = |values: &mut Vec<f64>| {
            let k = passed_over.min(values.len().saturating_sub(1));
            values.sort_by(f64::total_cmp);
            values.get(k).copied().unwrap_or(f64::INFINITY)
        };
        [best[0].max(-passed(&mut lows)), best[1].min(passed(&mut highs))]
    }

    /// The least and the greatest `b - a` when the reference shows `at` and a's clock shows `at +
    /// a`.
    fn span(&self, edge: &ClockEdge, at: Timestamp, a: i64) -> [(i64, f64); 2] {
        let estimate = &edge.estimate;
        let here = i128::from(at.nanos()) + i128::from(a);
        let age = (here - i128::from(estimate.end.nanos())) as f64;
        let [slow, fast] = estimate.proven_rate.map(|rate| rate * age);
        let bend = self.config.bend_ns(age) + 1.0;
        [
            (estimate.proven_ns[0], slow.min(fast) - bend),
            (estimate.proven_ns[1], slow.max(fast) + bend),
        ]
    }
}

impl Attempt<'_> {
    fn place(&self, node: u32) -> i64 {
        self.coarse[node as usize].expect("edges of an attempt lead to the reference")
    }

    /// The least round trip of every node's pairs, in nanoseconds; zero without pairs.
    fn least(&self, nodes: usize) -> Vec<f64> {
        let mut least = vec![f64::INFINITY; nodes];
        for edge in &self.edges {
            for node in [edge.a, edge.b] {
                let round_trip = 2.0 * edge.estimate.half_ns as f64;
                least[node as usize] = least[node as usize].min(round_trip);
            }
        }
        least.into_iter().map(|ns| if ns.is_finite() { ns } else { 0.0 }).collect()
    }
}

/// The difference of a pair when the reference shows `at` and a's clock shows `at + a`.
fn difference(estimate: &PairEstimate, at: Timestamp, a: i64) -> f64 {
    let here = i128::from(at.nanos()) + i128::from(a);
    let age = (here - i128::from(estimate.middle.nanos())) as f64;
    estimate.offset_ns as f64 + estimate.rate * age
}

/// The clock of b less the clock of a. Two hostile estimates can make the difference wider than 64
/// bits.
fn apart(a: i64, b: i64) -> i128 {
    i128::from(b) - i128::from(a)
}

/// The deviation of a normal law with this median.
fn usual(remainders: &[f64]) -> f64 {
    let absolute: Vec<f64> = remainders.iter().map(|rest| rest.abs()).collect();
    1.482_6 * median(&absolute)
}

/// For each node its neighbours, each with the number of the pair.
fn adjacency(n: usize, pairs: impl Iterator<Item = (u32, u32)>) -> Vec<Vec<(u32, u32)>> {
    let mut beside = vec![Vec::new(); n];
    for (k, (a, b)) in pairs.enumerate() {
        beside[a as usize].push((b, k as u32));
        beside[b as usize].push((a, k as u32));
    }
    beside
}

#[cfg(test)]
mod tests;
