//! Decides whether there is a tree within a limit, by a search through all trees that are not ruled
//! out.
//!
//! The inner places are filled in every way that prices allow. A partial choice is dropped when its
//! cheapest completion costs more than all hosts together, or when its proxies together reach too
//! few leaves. When all inner places are filled, a matching of leaves to last proxies remains,
//! which is easy. The work has a limit, and a search that reaches the limit proves nothing.

use super::hosts::HostSet;
use super::prices::{Market, Proxy};
use crate::paths::{Length, Lengths};
use crate::tree::TreeShape;

/// The result of a proof.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// No tree is within the limit.
    None,
    /// The hosts of a tree, place by place.
    Found(Vec<usize>),
    /// The proof reached its limit of work.
    Unknown,
}

/// Largest price of a possible choice. All prices sum to 1, and the small excess allows for
/// rounding.
const PAYABLE: f64 = 1.0 + 1e-9;

struct Trial<'a> {
    market: &'a Market,
    work: u64,
    used: HostSet,
    heads: Vec<usize>,
    proxies: Vec<&'a Proxy>,
}

/// Tries all trees of an exact market.
pub(super) fn try_all(market: &Market, root: usize, work: u64) -> Verdict {
    if !market.exact {
        return Verdict::Unknown;
    }
    let mut used = HostSet::new(market.prices().len());
    used.insert(root);
    let mut trial = Trial { market, work, used, heads: Vec::new(), proxies: Vec::new() };
    match trial.heads(0, 0.0) {
        Verdict::Found(mut below) => {
            below.insert(0, root);
            Verdict::Found(below)
        }
        other => other,
    }
}

impl<'a> Trial<'a> {
    fn spend(&mut self, work: u64) -> bool {
        self.work = self.work.saturating_sub(work);
        self.work > 0
    }

    /// Chooses the heads, from number `from` on.
    fn heads(&mut self, from: usize, cost: f64) -> Verdict {
        let missing = self.market.heads_needed - self.heads.len();
        if missing == 0 {
            return self.proxies(0, 0, cost);
        }
        for index in from..self.market.heads.len() {
            let Some(next) = self.market.heads.get(index..index + missing) else { break };
            // Heads are sorted by price, so when these are too expensive, all following choices are
            // too.
            if cost + next.iter().map(|head| head.price).sum::<f64>() > PAYABLE {
                break;
            }
            if !self.spend(1) {
                return Verdict::Unknown;
            }
            let head = &next[0];
            self.heads.push(index);
            head.host.into_iter().for_each(|host| self.used.insert(host));
            let verdict = self.heads(index + 1, cost + head.price);
            if verdict != Verdict::None {
                return verdict;
            }
            head.host.into_iter().for_each(|host| self.used.remove(host));
            self.heads.pop();
        }
        Verdict::None
    }

    /// Chooses the proxies below the heads, from number `from` of the current head on. `cost`
    /// includes each head with its cheapest proxies, so a choice adds its difference to the
    /// cheapest.
    fn proxies(&mut self, head: usize, from: usize, cost: f64) -> Verdict {
        let Some(&index) = self.heads.get(head) else { return self.leaves() };
        let (market, below) = (self.market, &self.market.heads[index].proxies);
        let chosen = self.proxies.len() - head * market.proxies_needed;
        let missing = market.proxies_needed - chosen;
        if missing == 0 {
            return self.proxies(head + 1, 0, cost);
        }
        // Price of the cheapest proxies that this head still has to choose.
        let Some(cheapest) = below.get(chosen..market.proxies_needed) else {
            return Verdict::None;
        };
        let cheapest: f64 = cheapest.iter().map(|proxy| proxy.price).sum();
        for next in from..below.len() {
            let Some(these) = below.get(next..next + missing) else { break };
            let extra = these.iter().map(|proxy| proxy.price).sum::<f64>() - cheapest;
            if cost + extra > PAYABLE {
                break;
            }
            if !self.spend(1 + self.proxies.len() as u64) {
                return Verdict::Unknown;
            }
            let proxy = &these[0];
            if self.used.contains(proxy.host) {
                continue;
            }
            self.used.insert(proxy.host);
            self.proxies.push(proxy);
            if self.reaches_enough() {
                let extra = proxy.price - below[chosen].price;
                let verdict = self.proxies(head, next + 1, cost + extra);
                if verdict != Verdict::None {
                    return verdict;
                }
            }
            self.proxies.pop();
            self.used.remove(proxy.host);
        }
        Verdict::None
    }

    /// Hall's condition for all chosen proxies together, and for each proxy alone.
    fn reaches_enough(&self) -> bool {
        let needed = self.market.leaves_needed;
        let mut all = HostSet::new(self.market.prices().len());
        self.proxies.iter().for_each(|proxy| all.extend(&proxy.leaves));
        all.len_without(&self.used) >= needed * self.proxies.len()
            && self.proxies.iter().all(|proxy| proxy.leaves.len_without(&self.used) >= needed)
    }

    fn leaves(&mut self) -> Verdict {
        if !self.spend(10 * self.proxies.len() as u64) {
            return Verdict::Unknown;
        }
        let leaves: Vec<&HostSet> = self.proxies.iter().map(|proxy| &proxy.leaves).collect();
        let Some(owners) = matching(&leaves, &self.used, self.market.leaves_needed) else {
            return Verdict::None;
        };
        let mut hosts: Vec<usize> =
            self.heads.iter().filter_map(|&head| self.market.heads[head].host).collect();
        hosts.extend(self.proxies.iter().map(|proxy| proxy.host));
        for proxy in 0..self.proxies.len() {
            hosts.extend((0..owners.len()).filter(|&leaf| owners[leaf] == Some(proxy)));
        }
        Verdict::Found(hosts)
    }
}

/// Gives every proxy the leaves that it needs, without used hosts and without sharing. Returns the
/// proxy of each leaf, or `None` when no such matching exists (augmenting paths, Kuhn).
fn matching(leaves: &[&HostSet], used: &HostSet, needed: usize) -> Option<Vec<Option<usize>>> {
    fn augment(
        proxy: usize,
        leaves: &[&HostSet],
        used: &HostSet,
        seen: &mut HostSet,
        owners: &mut [Option<usize>],
    ) -> bool {
        for leaf in leaves[proxy].without(used) {
            if owners[leaf].is_none() {
                owners[leaf] = Some(proxy);
                return true;
            }
        }
        for leaf in leaves[proxy].without(used) {
            let Some(owner) = owners[leaf].filter(|&owner| owner != proxy) else { continue };
            if seen.contains(owner) {
                continue;
            }
            seen.insert(owner);
            if augment(owner, leaves, used, seen, owners) {
                owners[leaf] = Some(proxy);
                return true;
            }
        }
        false
    }
    let mut owners = vec![None; used.capacity()];
    for proxy in 0..leaves.len() {
        for _ in 0..needed {
            let mut seen = HostSet::new(leaves.len());
            seen.insert(proxy);
            if !augment(proxy, leaves, used, &mut seen, &mut owners) {
                return None;
            }
        }
    }
    Some(owners)
}

/// Tries all trees of a small pool, place by place.
pub(super) fn exhaust(
    lengths: &Lengths,
    shape: TreeShape,
    root: Option<usize>,
    limit: f64,
    work: u64,
) -> Verdict {
    struct Places<'a> {
        lengths: &'a Lengths,
        shape: TreeShape,
        root: Option<usize>,
        limit: f64,
        work: u64,
        hosts: Vec<usize>,
        ways: Vec<Length>,
    }
    impl Places<'_> {
        fn fill(&mut self) -> Verdict {
            let place = self.hosts.len();
            if place == self.shape.places() {
                return Verdict::Found(self.hosts.clone());
            }
            let parent = self.shape.parent(place);
            for host in 0..self.lengths.hosts() {
                // Siblings are interchangeable, so only their ascending order is tried.
                let sibling = place.checked_sub(1).filter(|&s| self.shape.parent(s) == parent);
                let ascends = sibling.is_none_or(|s| s == 0 || self.hosts[s] < host);
                let misplaced = place == 0 && self.root.is_some_and(|root| root != host);
                if self.hosts.contains(&host) || !ascends || misplaced {
                    continue;
                }
                let way = parent.map_or(Length::default(), |parent| {
                    self.ways[parent].plus(self.lengths.edge(self.hosts[parent], host))
                });
                if way.us() > self.limit {
                    continue;
                }
                self.work = self.work.saturating_sub(1);
                if self.work == 0 {
                    return Verdict::Unknown;
                }
                self.hosts.push(host);
                self.ways.push(way);
                let verdict = self.fill();
                if verdict != Verdict::None {
                    return verdict;
                }
                self.hosts.pop();
                self.ways.pop();
            }
            Verdict::None
        }
    }
    let (hosts, ways) = (Vec::new(), Vec::new());
    Places { lengths, shape, root, limit, work, hosts, ways }.fill()
}
