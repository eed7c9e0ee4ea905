//! Proves by prices that no tree is as good as a threshold.
//!
//! The question is whether there is a tree whose leaves all lie within T. Every host gets a price,
//! and all prices together are 1. A tree uses each host at most once, so a tree costs at most 1.
//! Now the cheapest tree within T is built that *may* use a host several times. This is easy, level
//! by level from the leaves up. If even this tree costs more than 1, there is no real tree within
//! T.
//!
//! ```text
//! leaves below b    the F cheapest c with  way(a) + (a,b) + (b,c) <= T
//! b below a         the F cheapest of  price(b) + its leaves
//! a below the root  the F cheapest of  price(a) + its b with their leaves
//! ```
//!
//! Good prices make the hosts expensive that many places want. The search for good prices raises
//! the price of every host that the cheapest tree uses more than once, and lowers the price of
//! unused hosts (multiplicative weights). The proof holds whatever the prices are. Bad prices only
//! prove nothing.
//!
//! Down to depth 3 the cheapest tree is exact on ways. For deeper trees, and for pools too large to
//! look at every pair, the shortest way to each host over any others replaces the levels above the
//! last proxies. The bound is then lower, but not wrong.

use super::hosts::HostSet;
use super::labels::Labels;
use crate::paths::{Length, Lengths};
use crate::tree::TreeShape;

/// Rounds of raising prices.
const ROUNDS: usize = 300;
/// Step of the first round, and the factor from round to round. The last of 300 rounds has a
/// thirtieth of the first step.
const STEP: (f64, f64) = (0.3, 0.9887);
/// Price above which a tree is refused. The value is slightly above 1, so that rounding errors
/// prove nothing.
const SURE: f64 = 1.0 + 1e-9;

/// A proxy of the last level and the leaves that it reaches within the limit.
#[derive(Clone, Debug)]
pub(super) struct Proxy {
    /// The host.
    pub host: usize,
    /// Leaves in time.
    pub leaves: HostSet,
    /// Price of the proxy and its cheapest leaves.
    pub price: f64,
}

/// A host above proxies of the last level.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// The host; `None` when the market leaves the levels above out.
    pub host: Option<usize>,
    /// Proxies that may be below it.
    pub proxies: Vec<Proxy>,
    /// Price of the host and the cheapest proxies below it.
    pub price: f64,
}

/// All hosts that may be part of a tree within a limit, with their prices.
#[derive(Clone, Debug)]
pub(super) struct Market {
    /// Hosts of level D - 2, or a single entry that stands for all of them.
    pub heads: Vec<Head>,
    /// Heads of a tree.
    pub heads_needed: usize,
    /// Last proxies below a head.
    pub proxies_needed: usize,
    /// Leaves below a last proxy.
    pub leaves_needed: usize,
    /// Whether the market is exact: it contains every real tree within the limit, and each of its
    /// trees of distinct hosts is a real tree within the limit.
    pub exact: bool,
    /// Number of hosts on levels that the market leaves out.
    above: usize,
    prices: Vec<f64>,
}

impl Market {
    /// The hosts that may stand in a tree of depth 2 at least whose leaves lie within `limit`.
    /// `labels` has the ways from the root and from the other hosts. `pairs` says whether depth 3
    /// is looked at pair by pair.
    pub fn new(
        lengths: &Lengths,
        shape: TreeShape,
        labels: &Labels,
        limit: f64,
        pairs: bool,
        prices: &[f64],
    ) -> Self {
        let fanout = shape.fanout as usize;
        let pairs = pairs && shape.depth == 3 && labels.root.is_some();
        let exact = labels.root.is_some() && (shape.depth == 2 || pairs);
        let heads = if pairs {
            let ways = labels.level(1);
            let head = |a: usize| Some((a, *ways[a].first()?));
            let heads = (0..lengths.hosts()).filter_map(head).map(|(a, way)| Head {
                host: Some(a),
                proxies: proxies(lengths, labels, limit, fanout, Some(a), |b| {
                    vec![way.plus(lengths.edge(a, b))]
                }),
                price: 0.0,
            });
            heads.filter(|head| head.proxies.len() >= fanout).collect()
        } else {
            let level = shape.depth as usize - 1;
            let below = |b: usize| labels.level(level)[b].clone();
            let proxies = proxies(lengths, labels, limit, fanout, None, below);
            vec![Head { host: None, proxies, price: 0.0 }]
        };
        Self {
            heads,
            heads_needed: if pairs { fanout } else { 1 },
            proxies_needed: if pairs { fanout } else { shape.width(shape.depth - 1) },
            leaves_needed: fanout,
            exact,
            above: if pairs { 0 } else { (1..shape.depth - 1).map(|l| shape.width(l)).sum() },
            prices: prices.to_vec(),
        }
    }

    /// The prices that [`refuses`](Self::refuses) found.
    pub fn prices(&self) -> &[f64] {
        &self.prices
    }

    /// Searches for prices that prove that no tree is within the limit. Returns whether it found
    /// them.
    pub fn refuses(&mut self) -> bool {
        let mut best = (0.0, self.prices.clone());
        let mut step = STEP.0;
        for _ in 0..ROUNDS {
            let total: f64 = self.prices.iter().sum();
            self.prices.iter_mut().for_each(|price| *price /= total);
            let Some((cost, uses)) = self.cheapest() else { return true };
            if cost > SURE {
                return true;
            }
            if cost > best.0 {
                best = (cost, self.prices.clone());
            }
            step *= STEP.1;
            for (price, &uses) in self.prices.iter_mut().zip(&uses) {
                // Use beyond three times too often does not raise the step further.
                *price = (*price * (1.0 + step * (f64::from(uses) - 1.0).min(3.0))).max(1e-12);
            }
        }
        // The following proof prunes by prices, and the best prices prune most.
        self.prices = best.1;
        let total: f64 = self.prices.iter().sum();
        self.prices.iter_mut().for_each(|price| *price /= total);
        self.cheapest().is_none_or(|(cost, _)| cost > SURE)
    }

    /// The cheapest tree that may use hosts repeatedly: its price, and how often it uses each host.
    fn cheapest(&mut self) -> Option<(f64, Vec<u32>)> {
        let mut order: Vec<usize> = (0..self.prices.len()).collect();
        order.sort_unstable_by(|&a, &b| self.prices[a].total_cmp(&self.prices[b]));
        let (prices, leaves) = (&self.prices, self.leaves_needed);
        for head in &mut self.heads {
            for proxy in &mut head.proxies {
                let cheap = order.iter().filter(|&&host| proxy.leaves.contains(host));
                let below: f64 = cheap.take(leaves).map(|&host| prices[host]).sum();
                proxy.price = prices[proxy.host] + below;
            }
            head.proxies.sort_unstable_by(|a, b| a.price.total_cmp(&b.price));
            let proxies = head.proxies.get(..self.proxies_needed)?;
            head.price = head.host.map_or(0.0, |host| prices[host])
                + proxies.iter().map(|proxy| proxy.price).sum::<f64>();
        }
        self.heads.sort_unstable_by(|a, b| a.price.total_cmp(&b.price));
        let mut uses = vec![0; self.prices.len()];
        let mut cost = 0.0;
        for head in self.heads.get(..self.heads_needed)? {
            cost += head.price;
            head.host.into_iter().for_each(|host| uses[host] += 1);
            for proxy in &head.proxies[..self.proxies_needed] {
                uses[proxy.host] += 1;
                let cheap = order.iter().filter(|&&host| proxy.leaves.contains(host));
                cheap.take(leaves).for_each(|&host| uses[host] += 1);
            }
        }
        for &host in order.get(..self.above)? {
            cost += self.prices[host];
            uses[host] += 1;
        }
        Some((cost, uses))
    }
}

/// Proxies of the last level that reach enough leaves.
fn proxies(
    lengths: &Lengths,
    labels: &Labels,
    limit: f64,
    fanout: usize,
    head: Option<usize>,
    ways: impl Fn(usize) -> Vec<Length>,
) -> Vec<Proxy> {
    let hosts = lengths.hosts();
    let barred = |host: usize| Some(host) == labels.root || Some(host) == head;
    let proxy = |b: usize| {
        let ways = if barred(b) { Vec::new() } else { ways(b) };
        let mut leaves = HostSet::new(hosts);
        let others = if ways.is_empty() { 0..0 } else { 0..hosts };
        for c in others.filter(|&c| c != b && !barred(c)) {
            let edge = lengths.edge(b, c);
            if ways.iter().any(|way| way.plus(edge).us() <= limit) {
                leaves.insert(c);
            }
        }
        Proxy { host: b, leaves, price: 0.0 }
    };
    (0..hosts).map(proxy).filter(|proxy| proxy.leaves.len() >= fanout).collect()
}
